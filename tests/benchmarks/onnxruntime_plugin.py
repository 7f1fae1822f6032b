"""Measures the plug-in for ONNX Runtime against the runtime alone, on one thread.

    python tests/benchmarks/onnxruntime_plugin.py [--seconds 2] [--pattern LSTM]

A row is a model. The columns are microseconds of a call in the runtime alone and with the plug-in, and their
ratio. The least time of many calls counts, so other processes disturb little. The two sessions take turns,
with bound inputs and outputs. Their answers are compared first. The row "empty" is a session of one Identity,
for the cost of a call without work. Rows of bfloat16 and int8 compare with float32 in the runtime, and print
the largest difference.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import deployed_models  # noqa: E402
from onnx_cells import exported  # noqa: E402
from onnx_files import FLOAT, model, recurrent  # noqa: E402
from plugin_runs import alone, plugged  # noqa: E402

NEAR = 1e-5
STEPS = 50  # of LN-LSTMs


def node(rng: np.random.Generator, kind: str, H: int, **options: Any) -> Any:
    """Returns a model of a node whose weights are as small as those of torch's modules at first."""
    result = recurrent(rng, kind, 64, H, **options)
    for each in result.graph.initializer:
        array = numpy_helper.to_array(each) / np.float32(0.6 * H**0.5)
        each.CopyFrom(numpy_helper.from_array(array, each.name))
    return result


def layer_norm_lstm(rng: np.random.Generator, scripted: bool, B: int, H: int) -> Any:
    """Returns torch's export of an LSTM with layer norm: a Loop if scripted, else unrolled steps."""
    import torch

    from torch_cells import LayerNormLSTMCell, Sequence, shaken

    module = shaken(Sequence(LayerNormLSTMCell(64, H)))
    given = torch.randn(STEPS, B, 64), torch.randn(B, H), torch.randn(B, H)
    return exported(torch.jit.script(module) if scripted else module, given, False)


def cases() -> Iterator[tuple[str, Callable[[np.random.Generator], Any], dict[str, int], dict[str, Any]]]:
    """Yields names, functions that return a model or a Deployed, sizes, and the plug-in's arguments."""
    empty = model([helper.make_node("Identity", ["x"], ["y"])], {"x": (FLOAT, (1, 64))}, ["y"])
    yield "empty", lambda rng: empty, {}, {}
    for kind in ("LSTM", "GRU", "RNN"):
        for T, B in ((1, 1), (50, 1), (100, 1), (100, 8)):
            for H in (64, 128, 256):
                make = partial(node, kind=kind, H=H, states=T == 1)
                yield f"{kind} T={T} B={B} H={H}", make, {"T": T, "B": B, "H": H}, {}
    for scripted in (True, False):
        for B in (1, 8):
            for H in (64, 128, 256):
                name = f"LN-LSTM {'Loop' if scripted else 'unrolled'} T={STEPS} B={B} H={H}"
                yield name, partial(layer_norm_lstm, scripted=scripted, B=B, H=H), {}, {}
    for dtype in ("float32", "bfloat16", "int8"):
        yield f"predictor 2x640 {dtype}", deployed_models.predictor, {}, {"dtype": dtype}
    for name in ("silero_vad", "silero_vad_op18_ifless"):
        yield name, deployed_models.silero(name), {}, {}


def measure(made: Any, sizes: dict[str, int], arguments: dict[str, Any], seconds: float) -> tuple[float, ...]:
    """Returns the least seconds of a call without and with the plug-in, and the largest difference."""
    rng = np.random.default_rng(0)
    proto = made.model if isinstance(made, deployed_models.Deployed) else made
    sessions = alone(proto), plugged(proto, **arguments)
    if proto is made:
        given = {}
        for each in sessions[0].get_inputs():
            shape = [sizes.get(n, n) for n in each.shape] or (1, sizes["B"], sizes["H"])
            given[each.name] = rng.uniform(-1, 1, shape).astype(np.float32)
    else:
        given = {**made.steps[0], **made.first}
    answers = [session.run(None, given) for session in sessions]
    difference = max(float(np.abs(a - b).max()) for a, b in zip(*answers, strict=True))
    if not arguments and difference > NEAR:
        raise SystemExit(f"the answers differ by {difference}")
    bound = []
    for session in sessions:
        binding = session.io_binding()
        for name, array in given.items():
            binding.bind_cpu_input(name, array)
        for each in session.get_outputs():
            binding.bind_output(each.name)
        bound.append(partial(session.run_with_iobinding, binding))
    least, until = [float("inf")] * 2, time.perf_counter() + seconds
    while time.perf_counter() < until:
        for k, run in enumerate(bound):
            for _ in range(10):
                start = time.perf_counter_ns()
                run()
                least[k] = min(least[k], 1e-9 * (time.perf_counter_ns() - start))
    return *least, difference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2, help="of each row")
    parser.add_argument("--pattern", default="", help="rows whose names contain it")
    options = parser.parse_args()
    print(f"{'':40}{'alone':>9}{'plug-in':>9}{'ratio':>8}")
    for name, make, sizes, arguments in cases():
        if options.pattern in name:
            alone_s, plugged_s, difference = measure(
                make(np.random.default_rng(0)), sizes, arguments, options.seconds
            )
            note = f"   differs by {difference:.1e}" if arguments else ""
            print(f"{name:40}{1e6 * alone_s:9.1f}{1e6 * plugged_s:9.1f}{alone_s / plugged_s:8.2f}{note}")


if __name__ == "__main__":
    main()
