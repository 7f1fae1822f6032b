"""Wrong files and wrong arguments of lnrnn.onnx.Model are named errors."""

from __future__ import annotations

import re
import sys
import warnings

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")
pytest.importorskip("onnxruntime")

import onnx  # noqa: E402
import onnx.parser  # noqa: E402
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


def zeros(**changes):
    """Returns inputs of one step of decoder_joint for two lanes."""
    good = {
        "encoder_outputs": np.zeros((2, 3, 1), np.float32),
        "targets": np.zeros((2, 1), np.int32),
        "target_length": np.ones(2, np.int32),
    }
    return {name: value for name, value in (good | changes).items() if value is not None}


@pytest.mark.parametrize("options, error, text", [
    ({"states": {"stat": "stateN"}}, ValueError,
     "the input in states must be one of the file's inputs, input, state, sr, got 'stat'"),
    ({"states": {"state": "out"}}, ValueError,
     "the output in states must be one of the file's outputs, output, stateN, got 'out'"),
    ({"states": {"state": "output"}}, ValueError,
     r"states\['state'\] must be an input and an output of the same shape and dtype, got 'output' "
     "with 3 and 2 axes"),
    ({"states": {"sr": "stateN"}}, ValueError,
     r"states\['sr'\] must be .*, got 'stateN' with dtype int64 and float32"),
    ({"states": {"state": "stateN", "input": "stateN"}}, ValueError,
     "states must be pairs with different outputs, got 'stateN' twice"),
    ({"states": ["state"]}, TypeError,
     r"states must be a mapping of inputs to outputs, got \['state'\] \(list\)"),
    ({"constants": {"rate": 1}}, ValueError,
     r"constants\['rate'\] must be one of the file's inputs, input, sr, got another name"),
    ({"constants": {"state": 1}}, ValueError,
     r"constants\['state'\] must be one of the file's inputs, input, sr, got a state"),
    ({"constants": {"sr": 16000.0}}, TypeError,
     r"constants\['sr'\] must be of dtype int64, as the file's input, got .*float64"),
    ({"constants": {"sr": [16000]}}, ValueError,
     r"constants\['sr'\] must be of the file's shape \(\), got an array of shape \(1,\)"),
    ({"constants": 3}, TypeError, "constants must be a mapping of inputs to arrays, got 3"),
    ({"shapes": {"out": (1,)}}, ValueError,
     r"shapes\['out'\] must be of one of the file's inputs, input, state, sr, got another name"),
    ({"shapes": {"state": (2, 4)}}, ValueError,
     r"shapes\['state'\] must be of 3 sizes, as the file's \(2, \?, 4\), got \(2, 4\)"),
    ({"shapes": {"state": "2"}}, TypeError,
     r"shapes\['state'\] must be a tuple of sizes, with None for a free one"),
    ({"shapes": {"state": (2, -1, 4)}}, ValueError,
     r"shapes\['state'\] must be an integer of at least 0, got -1"),
    ({"shapes": []}, TypeError, "shapes must be a mapping of inputs to tuples"),
    ({"threads": 0}, ValueError, "threads must be an integer of at least 1 and at most 1024, got 0"),
])  # fmt: skip
def test_wrong_arguments_of_a_model(path, options, error, text):
    with pytest.raises(error, match=text):
        Model(path, **options)


def test_a_path_is_a_path_of_an_onnx_file(tmp_path, path):
    with pytest.raises(TypeError, match="path must be the path of an ONNX file, got 3"):
        Model(3)
    with pytest.raises(FileNotFoundError):
        Model(tmp_path / "none.onnx")
    damaged = tmp_path / "damaged.onnx"
    whole = path.read_bytes()
    for size in (0, 1, len(whole) // 2, len(whole) - 3):
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


@pytest.mark.parametrize("changes, error, text", [
    ({"targets": None}, ValueError,
     "x must be a mapping with the file's inputs, encoder_outputs, targets, target_length, got "
     r"missing targets; if an input is a state, give states=\{input: output\} to Model"),
    ({"target": 1}, ValueError, "x must be a mapping .*, got unexpected target$"),
    ({"input_states_1": 1}, ValueError,
     "x must be a mapping without states, got the state 'input_states_1'; set it by"),
    ({"encoder_outputs": np.zeros((2, 4, 1))}, ValueError,
     r"x\['encoder_outputs'\] must be of the file's shape \(B, 3, 1\), or \(T, B, 3, 1\) for T steps, "
     r"got an array of shape \(2, 4, 1\) and dtype float32"),
    ({"encoder_outputs": np.zeros((4, 2, 3, 2))}, ValueError,
     r"x\['encoder_outputs'\] must be of the file's shape"),
    ({"encoder_outputs": np.zeros((3, 1))}, ValueError,
     r"x\['encoder_outputs'\] must be of the file's shape"),
    ({"targets": np.zeros((2, 1))}, TypeError,
     r"x\['targets'\] must be of dtype int32, as the file's input, got an array of shape \(2, 1\) and "
     "dtype float64"),
    ({"targets": [[2**31], [0]]}, ValueError,
     r"x\['targets'\] must be within int32, the type of the file's input, got 2147483648"),
    ({"targets": [["a"], ["b"]]}, TypeError, r"x\['targets'\] must be an array of real numbers"),
    ({"encoder_outputs": np.zeros((2, 3, 1), complex)}, TypeError,
     r"x\['encoder_outputs'\] must be an array of real numbers"),
    ({"targets": np.zeros((5, 2, 1), int), "target_length": np.ones((4, 2), int)}, ValueError,
     r"x\['target_length'\] must be of 5 steps, as an input before it, got an array of shape \(4, 2\)"),
    ({"targets": np.zeros((3, 1), int)}, ValueError,
     r"the inputs must be ones with which onnxruntime runs the file, got encoder_outputs \(2, 3, 1\), "
     r"targets \(3, 1\)"),
])  # fmt: skip
def test_wrong_inputs_leave_the_states(joint, changes, error, text):
    stream = joint.stream(2)
    stream(zeros())
    before = stream.state
    with pytest.raises(error, match=text):
        stream(zeros(**changes))
    with pytest.raises(error, match=text):
        joint(zeros(**changes), lanes=2)
    assert all(np.array_equal(stream.state[name], before[name]) for name in before)
    assert stream.step.tolist() == [1, 1]


def test_several_inputs_need_names(joint):
    text = (
        r"x must be a mapping with the file's 3 inputs, got .*; give "
        r"{'encoder_outputs': ..., 'targets': ..., 'ta"
    )
    with pytest.raises(TypeError, match=text):
        joint(np.zeros((2, 3, 1)))


def test_an_error_at_a_later_step_leaves_the_states(joint):
    stream = joint.stream(2)
    targets = np.zeros((3, 2, 1), int)
    targets[2] = 99  # beyond the embedding
    with pytest.raises(ValueError, match="the inputs must be ones with which onnxruntime runs the file"):
        stream(zeros(targets=targets))
    assert not stream.step.any() and not any(each.any() for each in stream.state.values())


@pytest.mark.parametrize("value, error, text", [
    ({}, ValueError, "state must be a mapping with the names state, got none"),
    ({"state": 0, "h": 0}, ValueError, "state must be a mapping with the names state, got state, h"),
    ([0], TypeError, r"state must be a mapping of states' names to arrays, got \[0\]"),
    ({"state": np.zeros((2, 3, 4))}, ValueError,
     r"state\['state'\] must be of shape \(2, 2, 4\), got an array of shape \(2, 3, 4\)"),
    ({"state": np.zeros((2, 2, 4), object)}, TypeError,
     r"state\['state'\] must be an array of real numbers"),
    ({"state": np.zeros((2, 2, 4), complex)}, TypeError,
     r"state\['state'\] must be an array of real numbers"),
])  # fmt: skip
def test_wrong_states(model, value, error, text):
    stream = model.stream(2)
    with pytest.raises(error, match=text):
        stream.state = value
    with pytest.raises(error, match=text):
        model(np.zeros((2, 8)), value, lanes=2)


def test_wrong_lanes_and_rows(model, tmp_path):
    for lanes, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="lanes must be an integer of at least 1"):
            model.stream(lanes)
    stream = model.stream(3)
    x = np.zeros((2, 8))
    for rows, error, text in [
        ([0, 3], ValueError, "rows must be between 0 and 2, got 3"),
        ([-1, 0], ValueError, "rows must be between 0 and 2, got -1"),
        ([1, 1], ValueError, "rows must be different lanes, got lane 1 twice"),
        ([0.5, 1], TypeError, "rows must be an array of integers, or an integer, got an array"),
        (np.zeros((2, 1), int), ValueError, r"rows must be of shape \(R,\), got an array of shape \(2, 1\)"),
    ]:
        for call in (lambda rows: stream(x, rows), stream.reset, stream.get_state):
            with pytest.raises(error, match=text):
                call(rows)
    with pytest.raises(ValueError, match=r"give lanes=2. .*got sr \(\), input \(2, 8\), state \(2, 3, 4\)"):
        stream(x)
    policy = Model(state_models.policy(tmp_path / "policy.onnx"))
    with pytest.raises(ValueError, match="lanes must be 1 for a file whose states have fixed sizes, got 2"):
        policy.stream(2)
    one = policy.stream()
    assert one(np.zeros((1, 3)), rows=[0]).shape == (1, 2)
    with pytest.raises(
        ValueError, match="rows must be None, because the file does not say which axis of state 'h"
    ):
        one(np.zeros((1, 3)), rows=[])


def test_sizes_of_0_do_not_reach_recurrent_nodes(joint, tmp_path):
    """onnxruntime calls abort() for an LSTM without sequences, and for a GRU without sequences or steps."""
    gru = Model(state_models.deep_filter(tmp_path / "gru.onnx"))
    for x in (np.zeros((0, 2, 3)), np.zeros((2, 0, 3))):
        with pytest.raises(
            ValueError, match="input 'emb' must be without a size of 0 for a file with recurrent n"
        ):
            gru(x)
    stream = joint.stream(2)
    none = {name: value[:0] for name, value in zeros().items()}
    with pytest.raises(
        ValueError, match=r"input 'encoder_outputs' must be without a size of 0.* \(0, 3, 1\)"
    ):
        stream(none, rows=[])
    with pytest.raises(ValueError, match="without a size of 0"):
        stream({name: value[None][:0] for name, value in none.items()}, rows=[])
    assert stream.step.tolist() == [0, 0] and len(stream.get_state([])) == 0


def test_shapes_name_the_axis_of_lanes(tmp_path):
    """A file for a fixed batch of three has one lane, or three."""
    path = state_models.save(
        tmp_path / "m.onnx",
        """m (float[3, 4] x, float[1, 3, 4] h_in) => (float[1, 3, 4] y, float[1, 3, 4] h_out) {
            s = Add (x, h_in)
            h_out = Tanh (s)
            y = Identity (h_out)
        }""",
        {},
    )
    assert Model(path).stream().state["h_in"].shape == (1, 3, 4)
    stream = Model(path, shapes={"h_in": (1, None, 4)}).stream(3)
    stream(np.ones((3, 4)))
    stream.reset([1])
    assert stream.state["h_in"].any(axis=(0, 2)).tolist() == [True, False, True]


def test_a_state_of_several_free_sizes_needs_shapes(tmp_path):
    text = """m (float[N, M] x, float[{}, {}, 4] h_in) => (float[{}, {}, 4] y, float[{}, {}, 4] h_out) {{
        h_out = Tanh (h_in)
        y = Identity (h_out)
    }}""".format(*"ABABAB")
    path = state_models.save(tmp_path / "m.onnx", text, {})
    wanted = (
        r"shapes must be given for state 'h_in', got the file's shape \(A, B, 4\); give its sizes, with None"
    )
    # "B" is a name of the axis of lanes, and A has no size.
    with pytest.raises(ValueError, match=wanted):
        Model(path).stream(2)
    stream = Model(path, shapes={"h_in": (2, None, 4)}).stream(3)
    assert stream.state["h_in"].shape == (2, 3, 4)


def test_a_state_keeps_its_shape(tmp_path):
    path = state_models.growing(tmp_path / "m.onnx")
    stream = Model(path, shapes={"past_key": (None, 2, 4)}).stream()
    text = (
        r"output 'present_key' must be of shape \(1, 2, 4\) and dtype float32, as "
        r"'past_key', got .* \(1, 3, 4\)"
    )
    with pytest.raises(ValueError, match=text):
        stream(np.zeros((1, 1, 4)))


def test_too_few_lanes_are_not_repeated(tmp_path):
    """Plain operators would broadcast one state to three lanes."""
    ifless = Model(state_models.ifless(tmp_path / "m.onnx"))
    with pytest.raises(ValueError, match=r"output 'stateN' must be of shape \(2, 1, 4\).*; give lanes if"):
        ifless.stream()(np.zeros((3, 3)))


def test_outputs_of_several_steps_have_one_shape(tmp_path):
    path = state_models.save(
        tmp_path / "m.onnx",
        """m (float[N] x, int64[1] n) => (float[M] y) {
            zero = Constant <value = int64[1] {0}> ()
            y = Slice (x, zero, n)
        }""",
        {},
    )
    model = Model(path)
    x = np.arange(4)
    assert model({"x": x, "n": [[2], [2]]})[0].tolist() == [[0, 1], [0, 1]]
    with pytest.raises(ValueError, match=r"output 'y' must be of shape \(2,\) at all steps, got .*\(3,\)"):
        model({"x": x, "n": [[2], [3]]})


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
    with pytest.raises(TypeError, match="an output of several steps must be a tensor, got .*call the stream"):
        model(np.ones((3, 2)))


def test_states_of_other_files_are_refused(model, joint, tmp_path):
    stream = model.stream(2)
    with pytest.raises(
        ValueError, match="state must be a state of this file, got one of another file or other"
    ):
        stream.set_state(None, joint.stream(2).get_state())
    with pytest.raises(TypeError, match="state must be a StreamState, got"):
        stream.set_state(None, stream.state)
    with pytest.raises(ValueError, match=r"state.step must be of shape \(1,\)"):
        stream.set_state([0], stream.get_state())
    other = tmp_path / "again" / "copy.onnx"
    other.parent.mkdir()
    state_models.silero(other)
    Model(other).stream(2).set_state([1], stream.get_state([0]))


def test_misspelt_attributes_have_a_hint(model):
    with pytest.raises(AttributeError, match="no attribute 'sream'; did you mean 'stream'"):
        _ = model.sream
    with pytest.raises(AttributeError, match="did you mean 'state'"):
        model.stream().stat = {}


def test_without_onnxruntime_the_error_says_how_to_install_it(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match="lnrnn.onnx.Model needs onnxruntime: pip install onnxruntime"):
        Model(path)


def test_external_data_is_a_part_of_the_file(tmp_path):
    """A state does not fit a file with the same graph and other weights."""
    files = []
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        text = (
            "m (float[B, 64] x, float[B, 64] h_in) => (float[B, 64] y, float[B, 64] h_out) {\n"
            "p = MatMul (h_in, M)\nh_out = Add (p, x)\ny = Tanh (h_out)\n}"
        )
        source = state_models.save(tmp_path / "m.onnx", text, {"M": (64, 64)}, seed)
        onnx.save(onnx.load(source), folder / "m.onnx", save_as_external_data=True, location="m.data")
        assert (folder / "m.data").stat().st_size == 64 * 64 * 4
        files.append(Model(folder / "m.onnx"))
    state = files[0].stream().get_state()
    files[0].stream(2).set_state([1], state)
    with pytest.raises(ValueError, match="another file"):
        files[1].stream().set_state(None, state)


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


def test_a_state_has_a_size_that_memory_holds(tmp_path):
    path = state_models.save(
        tmp_path / "m.onnx",
        """m (float[B, 4] x, float[B, 99999999999] h_in) => (float[B, 4] y, float[B, 99999999999] h_out) {
            y = Tanh (x)
            h_out = Identity (h_in)
        }""",
        {},
    )
    text = r"state 'h_in' must be of at most 268435456 numbers in a lane, got \(B, 99999999999\)"
    with pytest.raises(ValueError, match=text):
        Model(path).stream()


def test_many_states_have_a_size_that_memory_holds(tmp_path):
    names = [f"{name}{k}" for k in range(3) for name in ("h_in", "h_out")]
    given, returned = (", ".join(f"float[B, 134217728] {n}" for n in names[k::2]) for k in (0, 1))
    nodes = " ".join(f"h_out{k} = Identity (h_in{k})" for k in range(3))
    text = f"m (float[B, 4] x, {given}) => (float[B, 4] y, {returned}) {{ y = Tanh (x) {nodes} }}"
    path = state_models.save(tmp_path / "m.onnx", text, {})
    with pytest.raises(ValueError, match="states must be of at most 268435456 numbers in a lane, got 3"):
        Model(path).stream()


def test_the_error_of_a_model_is_no_longer_than_a_screen(model):
    with pytest.raises(ValueError) as raised:
        model.stream(3)(np.zeros((2, 8)))
    assert len(str(raised.value)) < 900 and not re.search(r"\s{2}|\n", str(raised.value))


def test_threads_are_those_of_the_session(path):
    assert Model(path, threads=2).session.get_session_options().intra_op_num_threads == 2
    assert lnrnn.get_num_threads() >= 1


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_a_stream_of_a_file_that_reads_from_the_end_gives_a_warning(tmp_path, rng, direction):
    proto = recurrent(rng, "GRU", D=1 + (direction == "bidirectional"), direction=direction)
    (part,) = lnrnn.onnx.parts(proto)
    assert part.warnings == ["the state of node 'node' (GRU) begins at 0 in each call of the file"]
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.warns(UserWarning, match="the state of node starts at 0 in each run"):
        lnrnn.onnx.Model(tmp_path / "m.onnx").stream()


def test_the_advice_for_more_lanes_fits_the_file(tmp_path, path):
    """shapes= helps only where the file has a free axis, and lanes= only where the lanes differ."""
    state = "float[2, {0}, 4] state, float[{0}, 4] x) => (float[{1}] stateN, float[{0}, 4] y)"
    for sizes, want in (
        (("3", "2, 3, 4"), "; export it with a free batch axis$"),
        (("N", "2, 3, 4"), "; if axis 1 of 'state' has the lanes, give shapes={'state': .2, None, 4.}$"),
    ):
        body = "{ y = Identity (x) stateN = Identity (state) }"
        text = f'<ir_version: 8, opset_import: ["": 17]> g ({state.format(*sizes)} {body}'
        onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
        with pytest.raises(ValueError, match=want):
            Model(tmp_path / "m.onnx").stream(3 if sizes[0] == "N" else 5)
    model = Model(path, constants={"sr": 16000})
    frames = np.zeros((8, 576), np.float32)
    with pytest.raises(
        ValueError, match="^the file does not name the lanes of 'input'; give lanes=8. the inp"
    ):
        model(frames)
    with pytest.raises(ValueError) as error:
        model(frames[:, :100], lanes=8)
    assert "give lanes" not in str(error.value)


def test_states_of_a_cell_in_plain_operators_with_given_shapes(tmp_path):
    """The file declares a batch of 3, and its names do not tell the state."""
    torch = pytest.importorskip("torch")
    cell = torch.nn.GRUCell(4, 5)
    given = torch.zeros(3, 4), torch.zeros(3, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(cell, given, str(tmp_path / "m.onnx"), dynamo=False)
    pairs = Model(tmp_path / "m.onnx").states
    (name,) = pairs
    assert Model(tmp_path / "m.onnx", shapes={name: (None, 5)}).states == pairs
