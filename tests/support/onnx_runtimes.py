"""Runs ONNX files in the runtimes that are installed, with one thread."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import lnrnn
from networks import drawn_state, normal, parts

RUNTIMES = ("reference", "onnxruntime", "openvino")
each_runtime = pytest.mark.parametrize("runtime", RUNTIMES)
NODES = ("RNN", "LSTM", "GRU")

# One step of D + H = 13 products and some 10 operations rounds 23 times, by 2**-24 of the largest number. The
# two layers reduce an error to 0.6 of its size at each step: 2 * 23 * 2**-24 / (1 - 0.6) = 7e-6.
NEAR = 1e-5
SIZES = (7, 3), (4, 5), (1, 2)  # T and B of the calls of one file


def opened(runtime, path, shapes=None):
    """Returns a function that runs a file on {input: array}. shapes: {input: fixed shape}, for OpenVINO."""
    return {"reference": _reference, "onnxruntime": _onnxruntime, "openvino": _openvino}[runtime](
        path, shapes
    )


def _reference(path, shapes):
    evaluator = ReferenceEvaluator(str(path))
    return lambda feeds: evaluator.run(None, feeds)


def _onnxruntime(path, shapes):
    from onnx_runs import onnxruntime, session  # which skips the test without onnxruntime

    if onnxruntime.__version__.startswith("1.23") and b"SLSTM" in Path(path).read_bytes():
        pytest.skip("the variance of its LayerNormalization is a difference of squares")
    try:
        opened = session(str(path))
    except Exception as error:
        if "is under development" in str(error):
            pytest.skip("this version of the runtime is older than the opset")
        raise
    return lambda feeds: opened.run(None, feeds)


@cache
def _core():
    """Returns the Core of the process.

    OpenVINO sets a stack for signal handlers, and frees its memory with the Core. With several Cores the
    stack in use may be one that is freed. The next signal then ends the process with a segmentation fault.
    """
    return pytest.importorskip("openvino").Core()


def _openvino(path, shapes):
    core = _core()
    model = core.read_model(str(path))
    if shapes:
        model.reshape({name: list(shape) for name, shape in shapes.items()})
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
    compiled = core.compile_model(model, "CPU", settings)

    def run(feeds):
        found = compiled(feeds)
        return [np.array(found[output]) for output in compiled.outputs]

    return run


def unsupported(runtime, path):
    """Returns why a runtime cannot run a file that is right, or None. docs/onnx.md lists the same."""
    nodes = list(onnx.load(str(path)).graph.node)
    attributes = {a.name: onnx.helper.get_attribute_value(a) for node in nodes for a in node.attribute}
    functions = [name.decode() for name in attributes.get("activations", [])]
    if runtime == "reference":
        if any(attributes.get("scan_input_directions", [])):
            return "onnx.reference has no Scan from the end"
        if any(node.op_type in NODES and len(node.input) > 4 and node.input[4] for node in nodes):
            return "onnx.reference ignores sequence_lens"
        if functions and functions[0] != "Affine":
            return "onnx.reference ignores activations, or does not know them"
    if runtime == "openvino" and functions and functions[0] in ("HardSigmoid", "Affine"):
        return f"OpenVINO refuses the activation {functions[0]}"
    if runtime == "openvino" and any(node.op_type == "LSTM" and len(node.input) > 7 for node in nodes):
        return "OpenVINO ignores peepholes"
    return None


@dataclass
class Case:
    """Random inputs of a file, by name, and the results of the network for them."""

    feeds: dict
    want: list

    @classmethod
    def drawn(cls, rng, rnn, T, B, states=True, lengths=False, resets=False, **_):
        x = normal(rng, *((B, T) if rnn.batch_first else (T, B)), rnn.input_size)
        given = {}
        if states:
            given["h0"] = drawn_state(rng, rnn, B)
        if lengths:
            given["lengths"] = rng.permutation(np.r_[0, T, rng.integers(0, T + 1, B - 2)]).astype(np.int32)
        if resets:
            given["resets"] = rng.random(x.shape[:2]) < 0.25
        y, h = rnn(x, **given)
        feeds = {"x": x} | {name: a for name, a in given.items() if name != "h0"}
        return cls(feeds | states_of(rnn, given.get("h0")), [y, *parts(rnn, h)])


def states_of(rnn, state):
    """Returns {input of a file: array} for a state."""
    return {} if state is None else {f"{name}0": s for name, s in zip("hcnm", parts(rnn, state))}  # noqa: B905


def close(found, want, tolerance):
    """Asserts that each number differs by at most tolerance times max(1, wanted value)."""
    assert len(found) == len(want)
    for got, right in zip(found, want, strict=True):
        assert got.shape == right.shape
        size = np.where(np.isfinite(right), np.maximum(1, np.abs(right)), 1)
        np.testing.assert_allclose(got / size, right / size, rtol=0, atol=tolerance)


def written(rnn, path, **options):
    lnrnn.to_onnx(rnn, path, **options)
    model = onnx.load(str(path))
    onnx.checker.check_model(model, full_check=True)
    return model


def has_results(rnn, path, rng, runtime, tolerance=NEAR, **options):
    """Writes a file, and compares it with the network at several T and B."""
    model = written(rnn, path, **options)
    if unsupported(runtime, path):
        return
    # OpenVINO ignores sequence_lens if T or B is free (docs/onnx.md).
    fixed = runtime == "openvino" and options.get("lengths") and model.graph.node[-1].op_type != "Scan"
    run = None
    for T, B in SIZES:
        case = Case.drawn(rng, rnn, T, B, **options)
        shapes = {name: a.shape for name, a in case.feeds.items()} if fixed else None
        run = opened(runtime, path, shapes) if run is None or fixed else run
        close(run(case.feeds), case.want, tolerance)
