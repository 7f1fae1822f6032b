"""Compares the plug-in for ONNX Runtime with the runtime's own kernels, in random graphs.

graphs: draws --graphs models of nodes RNN, LSTM and GRU, in turn and within If, Loop and Scan. Some nodes are
left to the runtime. A session with the plug-in runs two calls of other sizes, and the first again, which must
give equal bits. The results must differ by at most 2e-5 of the largest number from those of a session without
the plug-in. At least half of the graphs must differ in some bit, as a proof that the plug-in computed them.
--at repeats one graph.
control: W and R of each model are 1 % larger in the session with the plug-in. Nine of ten models must be
reported.
"""

from __future__ import annotations

import argparse

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


def graphs(options: argparse.Namespace) -> dict[str, float]:
    zero_lengths, at = checked(), options.folder / "at"
    from plugin_graphs import drawn

    count = differing = 0
    largest = 0.0
    if options.at is not None:
        seeds = iter([options.at])
    elif options.graphs:
        seeds = iter(range(options.seed, options.seed + options.graphs))
    else:
        seeds = (options.seed + k for k, _ in enumerate(until(options.seconds)))
    for seed in seeds:
        at.write_text(f"--at {seed}")
        proto, calls = drawn(seed, zero_lengths)
        now = compare(proto, calls, proto, 1 + seed % 2)
        if not now <= LIMIT:
            onnx.save(proto, options.folder / "wrong.onnx")
            raise Wrong(f"graph {seed}: the largest difference is {now:.3g}")
        count, differing, largest = count + 1, differing + (now > 0), max(largest, now)
        if count % 1000 == 0:
            print(f"{count} graphs, {differing} differ, by at most {largest:.2g}", flush=True)
    at.unlink()
    if options.at is None and differing * 2 < count:
        raise Wrong(f"only {differing} of {count} graphs differ in any bit")
    return {"graphs": count, "graphs that differ in a bit": differing, "largest difference": largest}


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


PARTS = {"graphs": graphs, "control": control}
