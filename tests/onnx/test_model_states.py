"""The states of ONNX files are found by their names, or by their way through the graph."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

import onnx  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

import state_models  # noqa: E402
from lnrnn.onnx import Part  # noqa: E402
from lnrnn.onnx.errors import OnnxFileError  # noqa: E402
from lnrnn.onnx.reading import read  # noqa: E402
from lnrnn.onnx.running.flow import Flow  # noqa: E402
from lnrnn.onnx.running.states import AmbiguousStatesError, find_states, stem  # noqa: E402

FOUND = {
    "silero": ({"state": "stateN"}, {"name"}, [1]),
    "silero_sequence": ({"h": "hn", "c": "cn"}, {"name"}, [None, None]),
    "ten": ({f"input_{k}": f"output_{k}" for k in (2, 3, 6, 7)}, {"flow"}, [0] * 4),
    "gtcrn": (
        {"conv_cache": "conv_cache_out", "inter_cache": "inter_cache_out"},
        {"name"},
        [None, None],
    ),
    "policy": ({"h_in": "h_out", "c_in": "c_out"}, {"name"}, [None, None]),
    "decoder_joint": (
        {"input_states_1": "output_states_1", "input_states_2": "output_states_2"},
        {"name"},
        [1, 1],
    ),
    "deep_filter": ({}, set(), []),
    "ifless": ({"state": "stateN"}, {"name"}, [1]),
    "loop": ({"a": "b"}, {"flow"}, [0]),
    "scan": ({"before": "after"}, {"flow"}, [None]),
    "delay": ({"pre": "post"}, {"flow"}, [0]),
    "plain": ({}, set(), []),
}
# Names of the same state before and after a step, in files of several exporters.
PAIRS = [
    ("state", "stateN"), ("h", "hn"), ("c", "cn"), ("h0", "hn"), ("h_in", "h_out"), ("h_prev", "h_next"),
    ("input_states_1", "output_states_1"), ("cache_last_channel", "cache_last_channel_next"),
    ("cache_last_channel_len", "cache_last_channel_next_len"), ("tra_cache", "tra_cache_out"),
    ("cached_len_0", "new_cached_len_0"), ("recurrent_in", "recurrent_out"), ("state_in_0", "state_out_0"),
    ("hidden", "next_hidden"), ("hx", "new_hx"), ("prevState", "nextState"), ("buf0", "buf0_out"),
    ("lstm_h_in", "lstm_h_out"),
]  # fmt: skip


def made(path, inputs, outputs, nodes):
    """Writes a graph of tensors {name: shape}, and returns the model."""
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in each.items()]
        for each in (inputs, outputs)
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", *values), opset_imports=[helper.make_opsetid("", 17)]
    )
    onnx.save(model, path)
    return read(path)


@pytest.mark.parametrize("name", FOUND)
def test_the_states_of_deployed_files_are_found(tmp_path, name):
    model = read(getattr(state_models, name)(tmp_path / "m.onnx"))
    pairs, evidence, axes = FOUND[name]
    found = find_states(model)
    assert {state.input: state.output for state in found} == pairs
    assert {state.evidence for state in found} == evidence
    assert [state.lane_axis for state in found] == axes
    assert all(state.dtype == np.float32 for state in found)


@pytest.mark.parametrize("name", ["silero", "silero_sequence", "gtcrn", "policy", "decoder_joint"])
def test_the_way_through_the_graph_suffices(tmp_path, name):
    """With names that say nothing, the same pairs are found."""
    path = getattr(state_models, name)(tmp_path / "m.onnx")
    pairs = FOUND[name][0]
    model = read(path)
    renamed = {}
    for k, value in enumerate([*model.graph.inputs, *model.graph.outputs]):
        renamed[f"v{k}"], value.name = value.name, f"v{k}"
    found = {renamed[state.input]: renamed[state.output] for state in find_states(model)}
    assert found == pairs


@pytest.mark.parametrize("one, other", PAIRS)
def test_names_suffice(tmp_path, one, other):
    nodes = [helper.make_node("Add", [one, "x"], [other]), helper.make_node("Relu", ["x"], ["y"])]
    model = made(tmp_path / "m.onnx", {"x": [2, 4], one: [2, 4]}, {"y": [2, 4], other: [2, 4]}, nodes)
    assert [(s.input, s.output, s.evidence) for s in find_states(model)] == [(one, other, "name")]


@pytest.mark.parametrize("one, other", [("x_in", "x_out"), ("input_1", "output_1"), ("lstm_input", "lstm")])
def test_names_of_data_are_no_proof(tmp_path, one, other):
    nodes = [helper.make_node("Relu", [one], [other])]
    assert not find_states(made(tmp_path / "m.onnx", {one: [2, 4]}, {other: [2, 4]}, nodes))


def test_stems_have_no_direction():
    assert stem("input_states_1") == stem("output_states_1") == ("states", "1")
    assert stem("stateN") == stem("next-state") == ("state",)
    assert stem("in") == ()


def test_shapes_and_types_of_a_state_agree(tmp_path):
    nodes = [helper.make_node("Relu", ["h"], ["h_out"])]
    assert not find_states(made(tmp_path / "m.onnx", {"h": [2, 4]}, {"h_out": [2, 5]}, nodes))
    assert not find_states(made(tmp_path / "m.onnx", {"h": [2, 4]}, {"h_out": [8]}, nodes))
    nodes = [helper.make_node("Cast", ["h"], ["h_out"], to=TensorProto.DOUBLE)]
    model = made(tmp_path / "m.onnx", {"h": [2, 4]}, {"h_out": [2, 4]}, nodes)
    assert find_states(model)
    model.graph.outputs[0].dtype = type(model.graph.inputs[0].dtype).DOUBLE
    assert not find_states(model)


def test_negative_sizes_are_free(tmp_path):
    nodes = [helper.make_node("Relu", ["h"], ["h_out"])]
    model = made(tmp_path / "m.onnx", {"h": [-1, 4]}, {"h_out": [-1, 4]}, nodes)
    assert [(state.shape, state.lane_axis) for state in find_states(model)] == [((None, 4), 0)]


def test_names_are_text(tmp_path):
    path = state_models.policy(tmp_path / "m.onnx")
    path.write_bytes(path.read_bytes().replace(b"h_in", b"h_i\xe0"))
    with pytest.raises(OnnxFileError, match=r"names must be text in UTF-8, got b'h_i"):
        find_states(read(path))


def test_a_state_is_of_numbers(tmp_path):
    path = tmp_path / "m.onnx"
    values = [[helper.make_tensor_value_info(name, TensorProto.STRING, [2])] for name in ("h", "h_out")]
    graph = helper.make_graph([helper.make_node("Identity", ["h"], ["h_out"])], "g", *values)
    onnx.save(helper.make_model(graph), path)
    assert not find_states(read(path))
    with pytest.raises(ValueError, match="got 'h_out' with another type than numbers"):
        find_states(read(path), {"h": "h_out"})


def test_a_loop_may_omit_inputs(tmp_path):
    path = state_models.loop(tmp_path / "m.onnx")
    model = onnx.load(path)
    loop = next(node for node in model.graph.node if node.op_type == "Loop")
    loop.input[1] = ""
    onnx.save(model, path)
    assert [(state.input, state.output) for state in find_states(read(path))] == [("a", "b")]
    loop.input[2] = ""  # not valid
    onnx.save(model, path)
    assert find_states(read(path)) == []


def test_an_input_that_is_returned_unchanged_is_no_state(tmp_path):
    """target_length of decoder_joint is returned as it is; a padded input has no numbers of other inputs."""
    nodes = [
        helper.make_node("Identity", ["a"], ["p"]),
        helper.make_node("Constant", [], ["k"], value=helper.make_tensor("k", TensorProto.FLOAT, [1], [0])),
        helper.make_node("Concat", ["b", "k"], ["q"], axis=0),
    ]
    model = made(tmp_path / "m.onnx", {"a": [2], "b": ["N"]}, {"p": [2], "q": ["M"]}, nodes)
    assert not find_states(model)


def test_a_step_s_only_output_is_its_state(tmp_path):
    """A GRU of one step whose output at all steps is the file's only output of the state."""
    weights = [helper.make_node("ConstantOfShape", [f"{name}_shape"], [name]) for name in ("W", "R")]
    shapes = [
        helper.make_node(
            "Constant",
            [],
            [f"{name}_shape"],
            value=helper.make_tensor("s", TensorProto.INT64, [3], [1, 12, n]),
        )
        for name, n in (("W", 3), ("R", 4))
    ]
    axis = helper.make_node(
        "Constant", [], ["axis"], value=helper.make_tensor("a", TensorProto.INT64, [1], [1])
    )
    gru = helper.make_node("GRU", ["x", "W", "R", "", "", "first"], ["Y"], hidden_size=4)
    squeeze = helper.make_node("Squeeze", ["Y", "axis"], ["last"])
    nodes = [*shapes, *weights, axis, gru, squeeze]

    def pairs(x, first, last):
        model = made(tmp_path / "m.onnx", {"x": x, "first": first}, {"last": last}, nodes)
        return [(state.input, state.output) for state in find_states(model)]

    assert pairs([1, "B", 3], [1, "B", 4], [1, "B", 4]) == [("first", "last")]
    assert pairs(["T", "B", 3], [1, "B", 4], ["T", "B", 4]) == []


def test_where_names_contradict_the_graph_the_graph_decides(tmp_path):
    path = state_models.policy(tmp_path / "m.onnx")
    model = read(path)
    h, c = model.graph.outputs[1:]
    h.name, c.name = "c_out", "h_out"
    found = {state.input: (state.output, state.evidence) for state in find_states(model)}
    assert found == {"h_in": ("c_out", "flow"), "c_in": ("h_out", "flow")}


@pytest.mark.parametrize("names", [("h_in", "c_in", "h_out", "c_out"), ("h0", "c0", "h", "c")])
def test_a_step_in_plain_operators_has_its_states_by_name(tmp_path, names):
    model = read(state_models.cell(tmp_path / "m.onnx", names))
    pairs = {names[0]: names[2], names[1]: names[3]}
    assert {state.input: state.output for state in find_states(model)} == pairs


def test_a_step_in_plain_operators_has_its_states_by_its_part(tmp_path, monkeypatch):
    """The names do not tell, but the part of the file that is a step of an LSTM does."""
    model = read(state_models.cell(tmp_path / "m.onnx", ("a", "b", "p", "q")))
    values = {value.name: value for node in model.graph for value in (*node.inputs, *node.outputs)}
    part = Part("cell", "LSTM step", ())
    part.h0, part.c0, part.h, part.c = ((values[name],) for name in ("a", "b", "hn", "cn"))
    for parts in ([part], [Part("other", "LSTM step", (), same=[part])]):
        monkeypatch.setattr("lnrnn.onnx.running.states.parts_of", lambda _, parts=parts: parts)
        found = {(state.input, state.output, state.evidence) for state in find_states(model)}
        assert found == {("a", "p", "flow"), ("b", "q", "flow")}
    pairs = {"a": "q", "b": "p"}
    assert [(s.input, s.output, s.evidence) for s in find_states(model, pairs)] == [
        ("a", "q", "caller"),
        ("b", "p", "caller"),
    ]


def test_several_candidates_are_an_error_that_lists_them(tmp_path):
    nodes = [helper.make_node("Relu", ["h"], [name]) for name in ("h_out", "h_next", "y")]
    model = made(tmp_path / "m.onnx", {"h": [2]}, {"y": [2], "h_out": [2], "h_next": [2]}, nodes)
    with pytest.raises(AmbiguousStatesError, match=r"h -> h_out or h_next; give the pairs") as raised:
        find_states(model)
    assert raised.value.candidates == {"h": ["h_out", "h_next"]}
    assert pickle.loads(pickle.dumps(raised.value)).candidates == raised.value.candidates
    assert [state.output for state in find_states(model, {"h": "h_next"})] == ["h_next"]
    assert find_states(model, {}) == []


def test_two_inputs_that_may_be_a_cache_are_an_error(tmp_path):
    text_nodes = [
        helper.make_node("Concat", ["a", "b"], ["all"], axis=0),
        helper.make_node("Split", ["all"], ["p", "q"], axis=0),
    ]
    model = made(tmp_path / "m.onnx", {"a": [2], "b": [2]}, {"p": [2], "q": [2]}, text_nodes)
    with pytest.raises(AmbiguousStatesError, match="a -> p or q; b -> p or q"):
        find_states(model)


def test_a_file_with_very_many_inputs_needs_the_pairs(tmp_path):
    names = [f"x{k}" for k in range(1001)]
    nodes = [helper.make_node("Relu", ["x0"], ["y"])]
    model = made(tmp_path / "m.onnx", dict.fromkeys(names, [1]), {"y": [1]}, nodes)
    with pytest.raises(
        ValueError, match="states must be given for a file of more than 1000 inputs or outputs"
    ):
        find_states(model)
    assert find_states(model, {"x0": "y"})


def test_the_search_in_a_large_graph_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("lnrnn.onnx.running.flow.MOST_VISITS", 20)
    model = read(state_models.ten(tmp_path / "m.onnx"))
    with pytest.raises(ValueError, match="states must be given for a file with so many nodes and inputs"):
        find_states(model)
    assert len(find_states(model, {"input_2": "output_2"})) == 1


@pytest.mark.parametrize(
    "name, nodes",
    [("deep_filter", ["GRU"]), ("silero", []), ("gtcrn", []), ("policy", []), ("ten", []), ("loop", [])],
)
def test_nodes_whose_state_starts_at_0_in_each_run(tmp_path, name, nodes):
    model = read(getattr(state_models, name)(tmp_path / "m.onnx"))
    assert [node.op_type for node in Flow(model.graph).restarting()] == nodes


def test_zeros_of_the_size_of_an_input_are_no_state(tmp_path):
    """torch exports an omitted state as zeros, whose shape is computed from that of the input."""
    path = state_models.deep_filter(tmp_path / "m.onnx")
    model = onnx.load(path)
    gru = next(node for node in model.graph.node if node.op_type == "GRU")
    gru.input.extend(["", "zeros"])
    shape = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("ConstantOfShape", ["sizes"], ["zeros"]),
    ]
    place = list(model.graph.node).index(gru)
    nodes = [*model.graph.node[:place], *shape, *model.graph.node[place:]]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, path)
    assert len(Flow(read(path).graph).restarting()) == 1
