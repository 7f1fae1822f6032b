"""Wrong files and wrong arguments of lnrnn.onnx.Model are named errors."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")
pytest.importorskip("onnxruntime")

import onnx  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

import lnrnn  # noqa: E402
import state_models  # noqa: E402
from lnrnn.onnx import Model  # noqa: E402
from onnx_files import model_of, recurrent  # noqa: E402


@pytest.fixture
def path(tmp_path):
    return state_models.silero(tmp_path / "silero.onnx")


@pytest.fixture
def model(path):
    return Model(path, constants={"sr": 16000})


@pytest.fixture
def joint(tmp_path):
    return Model(state_models.decoder_joint(tmp_path / "joint.onnx"))


def test_a_path_is_a_path_of_an_onnx_file(tmp_path, path):
    with pytest.raises(TypeError, match="path must be the path of an ONNX file, got 3"):
        Model(3)
    with pytest.raises(FileNotFoundError):
        Model(tmp_path / "none.onnx")
    damaged = tmp_path / "damaged.onnx"
    whole = path.read_bytes()
    for size in (0, len(whole) // 2, len(whole) - 3):
        damaged.write_bytes(whole[:size])
        with pytest.raises(ValueError):
            Model(damaged)


def test_a_file_that_onnxruntime_refuses_is_named(tmp_path):
    nodes = [helper.make_node("Unknown", ["x"], ["y"])]
    values = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])] for name in "xy"]
    graph = helper.make_graph(nodes, "g", *values)
    onnx.save(model_of(graph), tmp_path / "m.onnx")
    with pytest.raises(
        ValueError, match=r"path '.*m.onnx' must be an ONNX file that onnxruntime runs.*Unknown"
    ):
        Model(tmp_path / "m.onnx")


@pytest.mark.parametrize("kind", [TensorProto.STRING, TensorProto.BFLOAT16])
def test_inputs_of_types_that_numpy_lacks_are_refused(tmp_path, kind):
    values = [[helper.make_tensor_value_info(name, kind, [2])] for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", *values)
    onnx.save(model_of(graph), tmp_path / "m.onnx")
    with pytest.raises(
        ValueError, match="input 'x' of the file must be a tensor of real numbers of a type that"
    ):
        Model(tmp_path / "m.onnx")


def test_sizes_of_0_do_not_reach_recurrent_nodes(joint, tmp_path):
    """onnxruntime calls abort() for an LSTM without sequences, and for a GRU without sequences or steps."""
    gru = Model(state_models.deep_filter(tmp_path / "gru.onnx"))
    for x in (np.zeros((0, 2, 3)), np.zeros((2, 0, 3))):
        with pytest.raises(
            ValueError, match="input 'emb' must be without a size of 0 for a file with recurrent n"
        ):
            gru(x)
    stream = joint.stream(2)
    none = dict(encoder_outputs=np.zeros((0, 3, 1)), targets=np.zeros((0, 1), int))
    none["target_length"] = np.zeros(0, int)
    with pytest.raises(
        ValueError, match=r"input 'encoder_outputs' must be without a size of 0.* \(0, 3, 1\)"
    ):
        stream(none, rows=[])
    with pytest.raises(ValueError, match="without a size of 0"):
        stream({name: value[None][:0] for name, value in none.items()}, rows=[])
    assert stream.step.tolist() == [0, 0] and len(stream.get_state([])) == 0


def test_shapes_name_the_axis_of_lanes(tmp_path):
    """A file for a fixed batch of three has one lane, or three."""
    text = "m (float[3, 4] x, float[{0}, {1}, 4] h_in) => (float[3, 4] y, float[{0}, {1}, 4] h_out)"
    body = " { h_out = Add (h_in, x) y = Relu (x) }"
    path = state_models.save(tmp_path / "m.onnx", text.format(1, 3) + body, {})
    stream = Model(path).stream()
    assert stream.state["h_in"].shape == (1, 3, 4)
    with pytest.raises(ValueError, match="rows must be None, because the file does not say which axis of"):
        stream(np.ones((3, 4)), rows=[])
    stream = Model(path, shapes={"h_in": (1, None, 4)}).stream(3)
    stream(np.ones((3, 4)))
    stream.reset([1])
    assert stream.state["h_in"].any(axis=(0, 2)).tolist() == [True, False, True]
    path = state_models.save(tmp_path / "m.onnx", text.format("A", "B") + body, {})
    wanted = (
        r"shapes must be given for state 'h_in', got the file's shape \(A, B, 4\); give its sizes, with No"
    )
    with pytest.raises(ValueError, match=wanted):  # "B" is a name of the axis of lanes, and A has no size
        Model(path).stream(3)
    assert Model(path, shapes={"h_in": (2, None, 4)}).stream(3).state["h_in"].shape == (2, 3, 4)


def test_sizes_that_fail_are_named_when_the_stream_is_made(tmp_path):
    """The file declares free sizes, and its nodes have fixed ones, as ten-vad's."""
    text = """m (float[N, 4] x, float[M, 4] h_in) => (float[K, 4] y, float[L, 4] h_out) {
        one = Constant <value = int64[2] {1, 4}> ()
        h_out = Reshape (h_in, one)
        y = Add (x, h_out)
    }"""
    model = Model(state_models.save(tmp_path / "m.onnx", text, {}))
    wanted = r"lanes must be a number with which state 'h_in' has the shape \(1, 4\), got 3"
    with pytest.raises(ValueError, match=wanted):
        model.stream(3)
    assert model.stream()(np.ones((1, 4))).shape == (1, 4)
    text = text.replace("Reshape (h_in, one)", "Identity (h_in)").replace("[M, 4]", "[2, 4]")
    model = Model(state_models.save(tmp_path / "m.onnx", text, {}), shapes={"h_in": (None, 4)})
    with pytest.raises(
        ValueError, match=r"'h_in' has the shape \(2, 4\), got 3 .*; if the file has a free axis"
    ):
        model.stream(3)
    assert model.stream(2).lanes == 2
    text = text.replace("[2, 4]", "[M, 4]").replace(
        "[L, 4]", "[2, 4]"
    )  # the caller knows more than the output
    model = Model(state_models.save(tmp_path / "m.onnx", text, {}), shapes={"h_in": (None, 4)})
    assert model.stream(3)(np.ones((3, 4))).shape == (3, 4)


def test_a_state_keeps_its_shape(tmp_path):
    text = """m (float[B, 4] x, float[P, 4] past_cache) => (float[B, 4] y, float[Q, 4] present_cache) {
        present_cache = Concat <axis = 0> (past_cache, x)
        y = Relu (x)
    }"""
    stream = Model(state_models.save(tmp_path / "m.onnx", text, {})).stream()
    text = r"output 'present_cache' must be of shape \(1, 4\) and .*, as 'past_cache', got .* \(2, 4\)"
    with pytest.raises(ValueError, match=text):
        stream(np.zeros((1, 4)))


def test_too_few_lanes_are_not_repeated(tmp_path):
    """Plain operators would broadcast one state to three lanes."""
    ifless = Model(state_models.ifless(tmp_path / "m.onnx"))
    with pytest.raises(ValueError, match=r"output 'stateN' must be of shape \(2, 1, 4\).*; give lanes if"):
        ifless.stream()(np.zeros((3, 3)))


def test_a_file_may_omit_shapes(tmp_path):
    """Inputs of any rank have no axis of time, unless `shapes` tells their rank."""
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        for names in (("x", "h"), ("y", "h_out"))
    ]
    nodes = [helper.make_node("Add", ["x", "h"], ["y"]), helper.make_node("Identity", ["y"], ["h_out"])]
    path = tmp_path / "m.onnx"
    onnx.save(model_of(helper.make_graph(nodes, "g", *values)), path)
    with pytest.raises(
        ValueError, match=r"shapes must be given for state 'h', got the file's shape \(\.\.\.\)"
    ):
        Model(path).stream()
    x = np.ones((3, 2, 4))
    model = Model(path, shapes={"h": (None, 4)})
    with pytest.raises(ValueError, match=r"output 'h_out' must be of shape \(2, 4\)"):
        model(x, lanes=2)
    model = Model(path, shapes={"h": (None, 4), "x": (None, 4)})
    y, state = model(x, lanes=2)
    assert y[:, 0, 0].tolist() == [1, 2, 3] and state["h"].shape == (2, 4)


def test_outputs_that_are_no_tensors_have_one_step(tmp_path):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("SequenceConstruct", ["x", "x"], ["y"])], "g", [x], [y])
    onnx.save(model_of(graph), tmp_path / "m.onnx")
    model = Model(tmp_path / "m.onnx")
    assert [each.tolist() for each in model(np.ones(2))[0]] == [[1, 1], [1, 1]]
    with pytest.raises(
        ValueError, match="output 'y' must be an array .* at all steps, got .*call the stream"
    ):
        model(np.ones((3, 2)))


def test_without_onnxruntime_the_error_says_how_to_install_it(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match="lnrnn.onnx.Model needs onnxruntime: pip install onnxruntime"):
        Model(path)


def test_external_data_is_a_part_of_the_file(tmp_path):
    """A state fits a copy of the file, and no file with the same graph and other weights."""
    files = []
    for number, seed in enumerate((0, 0, 1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        text = (
            "m (float[B, 9] x, float[B, 9] h) => (float[B, 9] y, float[B, 9] hn) {{ p = MatMul (h, M) {} }}"
        )
        text = text.format("hn = Add (p, x) y = Tanh (hn)")
        source = onnx.load(state_models.save(tmp_path / "m.onnx", text, {"M": (9, 9)}, seed))
        onnx.save(source, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
        assert (folder / "m.data").stat().st_size == 9 * 9 * 4
        files.append(Model(folder / "m.onnx"))
    state = files[0].stream().get_state()
    files[1].stream(2).set_state([1], state)
    with pytest.raises(ValueError, match="another file"):
        files[2].stream().set_state(None, state)


def test_external_data_is_in_the_folder_of_the_file(tmp_path):
    (tmp_path / "outside.data").write_bytes(bytes(64))
    folder = tmp_path / "inside"
    folder.mkdir()
    values = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4])] for name in "xy"]
    for location in ("../outside.data", "none.data", "/dev/zero"):
        weight = TensorProto(name="M", dims=[4, 4], data_type=TensorProto.FLOAT)
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location)
        graph = helper.make_graph([helper.make_node("Add", ["x", "M"], ["y"])], "g", *values, [weight])
        (folder / "m.onnx").write_bytes(model_of(graph).SerializeToString())
        with pytest.raises(
            ValueError, match=f"external data must be files in the folder .*, got '{location}'"
        ):
            Model(folder / "m.onnx")


@pytest.mark.parametrize("size, count", [(99999999999, 1), (134217728, 3)])
def test_states_have_a_size_that_memory_holds(tmp_path, size, count):
    given, returned = (
        ", ".join(f"float[B, {size}] h{k}_{end}" for k in range(count)) for end in ("in", "out")
    )
    nodes = " ".join(f"h{k}_out = Identity (h{k}_in)" for k in range(count))
    text = f"m (float[B, 4] x, {given}) => (float[B, 4] y, {returned}) {{ y = Tanh (x) {nodes} }}"
    path = state_models.save(tmp_path / "m.onnx", text, {})
    with pytest.raises(ValueError, match=rf"states must be of at most 268435456 .* lane, got \(B, {size}\)"):
        Model(path).stream()


def test_the_error_of_a_model_is_no_longer_than_a_screen(model):
    with pytest.raises(ValueError) as raised:
        model.stream(3)(np.zeros((2, 8)))
    assert len(str(raised.value)) < 900 and not re.search(r"\s{2}|\n", str(raised.value))


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_a_stream_of_a_file_that_reads_from_the_end_gives_a_warning(tmp_path, rng, direction):
    proto = recurrent(rng, "GRU", D=1 + (direction == "bidirectional"), direction=direction)
    (part,) = lnrnn.onnx.parts(proto)
    assert part.warnings == ["the state of node 'node' (GRU) begins at 0 in each call of the file"]
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.warns(UserWarning, match="the state of node starts at 0 in each run"):
        lnrnn.onnx.Model(tmp_path / "m.onnx").stream()


def test_the_error_says_to_give_lanes(model):
    with pytest.raises(ValueError, match="give lanes if the inputs have another number of lanes than the st"):
        model(np.zeros((8, 8)))
