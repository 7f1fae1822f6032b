"""Wrong files and wrong arguments of lnrnn.onnx.Model are named errors. tests/arguments/onnx.txt has more."""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")
pytest.importorskip("onnxruntime")

import onnx  # noqa: E402
from onnx import parser  # noqa: E402

import lnrnn  # noqa: E402
import state_models  # noqa: E402
from lnrnn.onnx import Model  # noqa: E402
from onnx_files import recurrent  # noqa: E402


def graph(h, hn, nodes="hn = Identity (h) y = Add (x, hn)", x="N, 4"):
    """Returns the text of a file with the state h -> hn, whose sizes are given as text."""
    one = "one = Constant <value = int64[2] {1, 4}> ()"
    return f"m (float[{x}] x, float[{h}] h) => (float[{x}] y, float[{hn}] hn) {{ {one} {nodes} }}"


SUM = "hn = Add (h, x) y = Relu (x)"
BAKED = graph("M, 4", "L, 4", "hn = Reshape (h, one) y = Add (x, hn)")
PAIR = "m (float[2] x) => (seq(float[2]) y) { y = SequenceConstruct (x, x) }"
RANKS = "m (float[] x, float[] h) => (float[] y, float[] hn) { y = Add (x, h) hn = Identity (y) }"
AXIS = {"h": (None, 4)}
GIVEN, RETURNED = (", ".join(f"float[B, 134217728] h{k}_{end}" for k in range(3)) for end in ("in", "out"))
MANY = f"m (float[B, 4] x, {GIVEN}) => (float[B, 4] y, {RETURNED}) {{ y = Tanh (x) "
MANY += " ".join(f"h{k}_out = Identity (h{k}_in)" for k in range(3)) + " }"
# A file, a call with the model that m() makes, and the error, or None.
CALLS = {
    "an unknown operator": ("m (float[2] x) => (float[2] y) { y = Unknown (x) }", lambda m: m(),
        r"path '.*m.onnx' must be an ONNX file that onnxruntime runs.*Unknown"),
    "text": ("m (string[2] x) => (string[2] y) { y = Identity (x) }", lambda m: m(),
        "input 'x' of the file must be a tensor of a number type that NumPy has, got STRING"),
    "bfloat16": ("m (bfloat16[2] x) => (bfloat16[2] y) { y = Identity (x) }", lambda m: m(),
        "input 'x' of the file must be a tensor of a number type that NumPy has, got BFLOAT16"),
    # Files that declare free sizes, and whose nodes have fixed ones, as ten-vad's; and the other way round.
    "fixed by a node": (BAKED, lambda m: m().stream(3),
        r"lanes must be a number with which state 'h' has the shape \(1, 4\), got 3"),
    "one lane": (BAKED, lambda m: m().stream()(np.ones((1, 4))), None),
    "fixed input": (graph("2, 4", "L, 4"), lambda m: m(shapes=AXIS).stream(3),
        r"'h' has the shape \(2, 4\), got 3 .*; if the file has a free axis of lanes, give shapes"),
    "two lanes": (graph("2, 4", "L, 4"), lambda m: m(shapes=AXIS).stream(2), None),
    "fixed output": (graph("M, 4", "2, 4"), lambda m: m().stream(3), "lanes must be 1 for a file"),
    "the caller knows more than the output": (graph("M, 4", "2, 4"),
        lambda m: m(shapes=AXIS).stream(3)(np.ones((3, 4))), None),
    "no axis of lanes": (graph("1, 3, 4", "1, 3, 4", SUM, "3, 4"),
        lambda m: m().stream()(np.ones((3, 4)), lanes=[]),
        "lanes must be None, because the file does not say which axis of state 'h' has the lanes"),
    "no size": (graph("A, B, 4", "A, B, 4", SUM, "3, 4"), lambda m: m().stream(3),
        r"shapes must be given for state 'h', got the file's shape \(A, B, 4\); give its sizes, with None"),
    "a cache that grows": (graph("P, 4", "Q, 4", "hn = Concat <axis = 0> (h, x) y = Relu (x)"),
        lambda m: m().stream()(np.zeros((1, 4))),
        r"output 'hn' must be of shape \(1, 4\) and .* as 'h', got .* \(2, 4\)"),
    "one state for three lanes": (graph("B, 4", "B, 4", SUM), lambda m: m().stream()(np.ones((3, 4))),
        r"output 'hn' must be of shape \(1, 4\).*; give lanes if the number of lanes is wrong"),
    "no tensor": (PAIR, lambda m: m()(np.ones((3, 2))),
        "output 'y' must be an array .* at all steps, got .*call the stream for"),
    "a sequence": (PAIR, lambda m: m()(np.ones(2)), None),
    "a large state": (graph("B, 99999999999", "B, 99999999999", "hn = Identity (h) y = Relu (x)"),
        lambda m: m().stream(),
        r"states must be of at most 268435456 numbers in a lane, got \(B, 99999999999\)"),
    "many states": (MANY, lambda m: m().stream(),
        "states must be of at most 268435456 numbers in a lane, got"),
    "no shape": (RANKS, lambda m: m().stream(),
        r"shapes must be given for state 'h', got the file's shape \(\.\.\.\)"),
}  # fmt: skip


@pytest.fixture
def path(tmp_path):
    return state_models.silero(tmp_path / "silero.onnx")


@pytest.fixture
def model(path):
    return Model(path, constants={"sr": 16000})


@pytest.mark.parametrize("text, call, error", CALLS.values(), ids=CALLS)
def test_what_a_file_cannot_do_is_named(tmp_path, text, call, error):
    onnx.save(parser.parse_model(state_models.HEAD + text), tmp_path / "m.onnx")
    with pytest.raises(ValueError, match=error) if error else nullcontext():
        call(partial(Model, tmp_path / "m.onnx"))


def test_sizes_of_0_do_not_reach_recurrent_nodes(tmp_path):
    """onnxruntime calls abort() for an LSTM without sequences, and for a GRU without sequences or steps."""
    text = "input '{}' must be without a size of 0 for a file with recurrent nodes"
    gru = Model(state_models.deep_filter(tmp_path / "gru.onnx"))
    for x in (np.zeros((0, 2, 3)), np.zeros((2, 0, 3))):
        with pytest.raises(ValueError, match=text.format("emb")):
            gru(x)
    stream = Model(state_models.decoder_joint(tmp_path / "joint.onnx")).stream(2)
    none = {"encoder_outputs": np.zeros((0, 3, 1)), "targets": np.zeros((0, 1), int)}
    none["target_length"] = np.zeros(0, int)
    for x in (none, {name: value[None][:0] for name, value in none.items()}):
        with pytest.raises(ValueError, match=text.format("encoder_outputs")):
            stream(x, lanes=[])
    assert stream.steps_done.tolist() == [0, 0]


def test_shapes_name_the_axis_of_lanes(tmp_path):
    """A file for a fixed batch of three has one lane, or three."""
    path = state_models.save(tmp_path / "m.onnx", graph("1, 3, 4", "1, 3, 4", SUM, "3, 4"), {})
    assert Model(path).stream().state["h"].shape == (1, 3, 4)
    stream = Model(path, shapes={"h": (1, None, 4)}).stream(3)
    stream(np.ones((3, 4)))
    stream.reset([1])
    assert stream.state["h"].any(axis=(0, 2)).tolist() == [True, False, True]
    path = state_models.save(tmp_path / "m.onnx", graph("A, B, 4", "A, B, 4", SUM, "3, 4"), {})
    assert Model(path, shapes={"h": (2, None, 4)}).stream(3).state["h"].shape == (2, 3, 4)


def test_a_file_may_omit_shapes(tmp_path):
    """Inputs of any rank have no axis of time, unless `shapes` tells their rank."""
    onnx.save(parser.parse_model(state_models.HEAD + RANKS), tmp_path / "m.onnx")
    x = np.ones((3, 2, 4))
    with pytest.raises(ValueError, match=r"output 'hn' must be of shape \(2, 4\)"):
        Model(tmp_path / "m.onnx", shapes=AXIS)(x, lanes=2)
    y, state = Model(tmp_path / "m.onnx", shapes={**AXIS, "x": (None, 4)})(x, lanes=2)
    assert y[:, 0, 0].tolist() == [1, 2, 3] and state["h"].shape == (2, 4)


def test_external_data_is_a_part_of_the_file(tmp_path):
    """A state fits a copy of the file, and no file with the same graph and other weights."""
    text = "m (float[B, 9] x, float[B, 9] h) => (float[B, 9] y, float[B, 9] hn) "
    text += "{ p = MatMul (h, M) hn = Add (p, x) y = Tanh (hn) }"
    files = []
    for number, seed in enumerate((0, 0, 1)):
        (folder := tmp_path / str(number)).mkdir()
        source = onnx.load(state_models.save(tmp_path / "m.onnx", text, {"M": (9, 9)}, seed))
        onnx.save(source, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
        assert (folder / "m.data").stat().st_size == 9 * 9 * 4
        files.append(Model(folder / "m.onnx"))
    state = files[0].stream().get_state()
    files[1].stream(2).set_state([1], state)
    with pytest.raises(ValueError, match="another file"):
        files[2].stream().set_state(None, state)


def test_the_error_of_a_model_is_no_longer_than_a_screen(model):
    with pytest.raises(ValueError, match="; give lanes if the inputs have another number of lanes") as raised:
        model(np.zeros((2, 8)))
    assert len(str(raised.value)) < 900 and not re.search(r"\s{2}|\n", str(raised.value))


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_a_stream_of_a_file_that_reads_from_the_end_gives_a_warning(tmp_path, rng, direction):
    proto = recurrent(rng, "GRU", D=1 + (direction == "bidirectional"), direction=direction)
    (part,) = lnrnn.onnx.parts(proto)
    assert part.warnings == ["the state of node 'node' (GRU) begins at 0 in each call of the file"]
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.warns(UserWarning, match="the state of node starts at 0 in each run"):
        Model(tmp_path / "m.onnx").stream()
