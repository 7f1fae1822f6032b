"""Compares the plug-in for ONNX Runtime with the runtime's own kernels, in random graphs.

graphs: draws --graphs models of nodes RNN, LSTM and GRU, in turn and within If, Loop and Scan. Some nodes are
left to the runtime. A session with the plug-in runs two calls of other sizes, and the first again, which must
give equal bits. The results must differ by at most 2e-5 of the largest number from those of a session without
the plug-in. At least half of the graphs must differ in some bit, as a proof that the plug-in computed them.
--at repeats one graph.
cells: draws --graphs models of cells in plain operators: one step, unrolled steps, a Scan or a Loop, with and
without layer norm. In six of ten, one edge, attribute, constant, operator or output is then changed. What the
runtime alone refuses, a session with the plug-in must refuse too.
quantized: draws --graphs models of one DynamicQuantizeLSTM. Steps with inputs that 8 bits represent are
compared with an LSTM of the same weights in float32. For other inputs, the error may be at most twice that of
the runtime's own kernel.
hostile: draws --graphs models with sizes, types or external files that contradict each other. A session must
raise an error that names the node and the input or attribute, or the runtime's error, or have its results.
control: W and R of each model are 1 % larger in the session with the plug-in. Nine of ten models must be
reported.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from outcome import Missing, Wrong, until

try:
    import onnx
    import onnxruntime
except ImportError:
    onnxruntime = None

LIMIT = 2e-5


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--graphs", type=int, help="instead of --seconds")
    parser.add_argument("--at", type=int, help="only the graph of this seed")


def error(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """Returns the largest difference, as a part of the largest number if that is above 1."""
    if any(a.shape != b.shape for a, b in zip(ours, theirs, strict=True)):
        return float("inf")
    errors = [
        float(np.abs(a - b).max(initial=0)) / max(1.0, float(np.abs(b).max(initial=0)))
        for a, b in zip(ours, theirs, strict=True)
    ]
    return max(errors) if np.isfinite(errors).all() else float("inf")


def compare(proto: onnx.ModelProto, calls: list, other: onnx.ModelProto, threads: int) -> float:
    """Returns the largest error of `proto` with the plug-in, compared with `other` without it."""
    from plugin_runs import alone, plugged

    ours, theirs = plugged(proto, threads=threads), alone(other)
    first = ours.run(None, calls[0])
    errors = [
        error(first, theirs.run(None, calls[0])),
        error(ours.run(None, calls[1]), theirs.run(None, calls[1])),
    ]
    if any(a.tobytes() != b.tobytes() for a, b in zip(first, ours.run(None, calls[0]), strict=True)):
        return float("inf")
    return max(errors)


def checked() -> bool:
    """Returns whether the runtime's own RNN computes sequences without steps."""
    version = [int(part) for part in onnxruntime.__version__.split(".")[:2]] if onnxruntime else [0]
    if version < [1, 24]:
        raise Missing("needs onnx and onnxruntime 1.24 or later")
    return version >= [1, 26]


def seeds_of(options: argparse.Namespace) -> Iterator[int]:
    """Returns the seeds of all graphs. Each is in the file `at` while its graph runs."""
    if options.at is not None:
        seeds: Iterable[int] = [options.at]
    elif options.graphs:
        seeds = range(options.seed, options.seed + options.graphs)
    else:
        seeds = (options.seed + k for k, _ in enumerate(until(options.seconds)))
    at = options.folder / "at"
    for count, seed in enumerate(seeds, 1):
        at.write_text(f"--at {seed}")
        yield seed
        if count % 1000 == 0:
            print(f"{count} graphs", flush=True)
    at.unlink()


def refuse(options: argparse.Namespace, proto: onnx.ModelProto, text: str) -> None:
    onnx.save(proto, options.folder / "wrong.onnx")
    raise Wrong(text)


def graphs(options: argparse.Namespace) -> dict[str, float]:
    zero_lengths = checked()
    from plugin_graphs import drawn

    count = differing = 0
    largest = 0.0
    for seed in seeds_of(options):
        proto, calls = drawn(seed, zero_lengths)
        now = compare(proto, calls, proto, 1 + seed % 2)
        if not now <= LIMIT:
            refuse(options, proto, f"graph {seed}: the largest difference is {now:.3g}")
        count, differing, largest = count + 1, differing + (now > 0), max(largest, now)
    if options.at is None and differing * 2 < count:
        raise Wrong(f"only {differing} of {count} graphs differ in any bit")
    return {"graphs": count, "graphs that differ in a bit": differing, "largest difference": largest}


def results_of(session: Any, calls: list) -> Any:
    """Returns the outputs of all calls, the first twice, or the runtime's error."""
    try:
        made = session()
        return [made.run(None, given) for given in [*calls, calls[0]]]
    except Exception as error:
        return error


def movement(proto: onnx.ModelProto, calls: list, wanted: list) -> float:
    """Returns how far the runtime's own results move if all inputs grow by 1e-6 of their values."""
    from plugin_runs import alone

    moved = [{k: a * np.float32(1 + 1e-6) if a.dtype == np.float32 else a for k, a in call.items()}
             for call in calls]  # fmt: skip
    found = results_of(lambda: alone(proto), moved)
    return max(error(a, b) for a, b in zip(found, wanted, strict=True))


def cells(options: argparse.Namespace) -> dict[str, float]:
    checked()
    from plugin_cells import changed, drawn

    from plugin_runs import alone, plugged

    count = whole = differing = refused = not_finite = 0
    largest = 0.0
    for seed in seeds_of(options):
        rng = np.random.default_rng([seed, 1])
        proto, calls = drawn(seed)
        what = changed(rng, proto) if rng.random() < 0.6 else ""
        theirs = results_of(lambda: alone(proto), calls)  # noqa: B023
        ours = results_of(lambda: plugged(proto, threads=1 + seed % 2), calls)  # noqa: B023
        count, whole = count + 1, whole + (not what)
        if isinstance(theirs, Exception):
            refused += 1
            if not what or not isinstance(ours, Exception):
                refuse(options, proto, f"graph {seed}, {what}: only the runtime alone has an error: {theirs}")
            continue
        if isinstance(ours, Exception):
            refuse(options, proto, f"graph {seed}, {what}: {ours}")
        if not all(np.isfinite(a).all() for call in theirs for a in call):
            not_finite += 1
            continue
        now = max(error(a, b) for a, b in zip(ours, theirs, strict=True))
        if any(a.tobytes() != b.tobytes() for a, b in zip(ours[0], ours[-1], strict=True)):
            refuse(options, proto, f"graph {seed}, {what}: two runs differ")
        if not now <= LIMIT and not now <= 10 * movement(proto, calls, theirs):
            refuse(options, proto, f"graph {seed}, {what}: the largest difference is {now:.3g}")
        differing += now > 0 and not what
        largest = max(largest, now)
    if options.at is None and differing * 2 < whole:
        raise Wrong(f"only {differing} of {whole} unchanged graphs differ in any bit")
    return {
        "graphs": count, "unchanged": whole, "unchanged that differ in a bit": differing, "refused": refused,
        "not finite": not_finite, "largest difference": largest,
    }  # fmt: skip


def control(options: argparse.Namespace) -> dict[str, str]:
    zero_lengths, found, count = checked(), 0, 20 if options.quick else 200
    from plugin_graphs import drawn

    for seed in range(options.seed, options.seed + count):
        proto, calls = drawn(seed, zero_lengths)
        changed = onnx.ModelProto()
        changed.CopyFrom(proto)
        for array in changed.graph.initializer:
            if array.name.endswith(("_W", "_R")):
                w = onnx.numpy_helper.to_array(array) * np.float32(1.01)
                array.CopyFrom(onnx.numpy_helper.from_array(w, array.name))
        found += not compare(changed, calls, proto, 1) <= LIMIT
    if found < 0.9 * count:
        raise Wrong(f"only {found} of {count} models with changed weights are reported")
    return {"changed models that are reported": f"{found} of {count}"}


PARTS = {"graphs": graphs, "cells": cells, "control": control}
