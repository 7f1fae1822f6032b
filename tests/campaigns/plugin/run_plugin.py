"""Compares the plug-in for ONNX Runtime with the runtime's own kernels, in random graphs.

graphs: draws --graphs models of nodes RNN, LSTM and GRU, in turn and within If, Loop and Scan. Some nodes are
left to the runtime. A session with the plug-in runs two calls of other sizes, and the first again, which must
give equal bits. The results must differ by at most 2e-5 of the largest number from those of a session without
the plug-in. At least half of the graphs must differ in some bit, as a proof that the plug-in computed them.
--at repeats one graph.
hostile: draws --graphs models with sizes, types or external files that contradict each other. A session must
raise an error that names the node and the input or attribute, or the runtime's error, or have its results.
control: W and R of each model are 1 % larger in the session with the plug-in. Nine of ten models must be
reported.
"""

from __future__ import annotations

import argparse
import os
import re
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
# A contradictory node, whose error cannot name an input.
NAMED = r"node '.*'.*: (the shape of )?(input|attribute) \w+"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--graphs", type=int, help="instead of --seconds")
    parser.add_argument("--at", type=int, help="only the graph of this seed")


def error(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """Returns the largest difference, as a part of the largest number if that is above 1.

    Empty results agree, because the runtime's sizes are 0 if a Loop made no step.
    """
    if any(a.shape != b.shape and (a.size or b.size) for a, b in zip(ours, theirs, strict=True)):
        return float("inf")
    errors = [
        float(np.abs(a - b).max(initial=0)) / max(1.0, float(np.abs(b).max(initial=0)))
        for a, b in zip(ours, theirs, strict=True)
        if a.size
    ]
    return max(errors, default=0.0) if np.isfinite(errors).all() else float("inf")


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
    if version < [1, 25]:
        raise Missing("needs onnx and onnxruntime 1.25 or later")
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


def caught(function: Any) -> Any:
    """Returns the result of a function, or the runtime's error."""
    try:
        return function()
    except Exception as error:
        return error


def hostile(options: argparse.Namespace) -> dict[str, int]:
    checked()
    from plugin_hostile import changed, drawn, one_node, saved

    from plugin_runs import alone, plugged
    from plugin_runs import options as chosen

    counts = {"graphs": 0, "errors of lnrnn": 0, "errors of the runtime": 0, "results": 0}
    for seed in seeds_of(options):
        rng, file = np.random.default_rng([seed, 2]), None
        if rng.random() < 0.2:
            proto, given = one_node(rng)
            path, file = saved(proto, options.folder)
            before = rng.random() < 0.5
            what = f"file, {before=}"
            if before:
                os.truncate(file, int(rng.integers(file.stat().st_size)))
        else:
            proto, given = drawn(seed)
            what = changed(rng, proto, given)
            path = proto.SerializeToString()

        def ours(path: Any = path, given: Any = given, file: Any = file) -> Any:
            session = plugged(path, sess_options=chosen(4))
            if file:  # lnrnn has copied all weights of the only node
                os.truncate(file, 0)
            return session.run(None, given)

        result = caught(ours)
        counts["graphs"] += 1
        if isinstance(result, Exception):
            own = "lnrnn" in str(result).replace("LnrnnExecutionProvider", "")
            counts["errors of lnrnn" if own else "errors of the runtime"] += 1
            if own and not re.search(NAMED, str(result)):
                refuse(options, proto, f"graph {seed}, {what}: the error names too little: {result}")
            continue
        counts["results"] += 1
        if not all(a.size for a in given.values()):  # the runtime alone may crash
            continue
        theirs = caught(lambda: alone(proto).run(None, given))  # noqa: B023
        if isinstance(theirs, Exception):
            if "layout_ == 0" in str(theirs) or what.startswith("shape"):
                continue  # the runtime lacks layout 1, and broadcasts fewer shapes of states
            refuse(options, proto, f"graph {seed}, {what}: only the runtime alone has an error: {theirs}")
        if not error(result, theirs) <= LIMIT:
            refuse(options, proto, f"graph {seed}, {what}: other results than those of the runtime")
    return counts


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


PARTS = {"graphs": graphs, "hostile": hostile, "control": control}
