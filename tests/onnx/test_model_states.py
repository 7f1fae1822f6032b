"""The states of ONNX files are found by names and shapes, or the error has the pairs to give."""

from __future__ import annotations

import ast
import re
import warnings

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")
pytest.importorskip("onnxruntime")

import onnx  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

from lnrnn.onnx import Model  # noqa: E402

# Names of the same state before and after a step, in files of several exporters.
PAIRS = [
    ("state", "stateN"), ("h", "hn"), ("c", "cn"), ("h0", "hN"), ("h0", "h"), ("h_in", "h_out"),
    ("h_prev", "h_next"), ("input_states_1", "output_states_1"),
    ("cache_last_channel", "cache_last_channel_next"), ("tra_cache", "tra_cache_out"),
    ("cache_last_channel_len", "cache_last_channel_next_len"),
    ("cached_len_0", "new_cached_len_0"), ("recurrent_in", "recurrent_out"), ("state_in_0", "state_out_0"),
    ("hidden", "next_hidden"), ("hx", "new_hx"), ("prevState", "nextState"), ("buf0", "buf0_out"),
    ("lstm_h_in", "lstm_h_out"),
]  # fmt: skip
# Inputs and outputs with their shapes; and the states that the error proposes, or None without an error.
UNCLEAR = [
    # ten-vad, by tf2onnx
    ({"input_1": [3, 4], "input_2": ["A", 5], "input_3": ["B", 5]},
     {"output_1": [3, 1], "output_3": ["C", 5], "output_2": ["D", 5]},
     {"input_2": "output_2", "input_3": "output_3"}),
    # DTLN, whose mask has the shape of its frame
    ({"x": [1, 8], "s": [1, 2, 8]}, {"mask": ["N", 8], "stack": ["N", 2, 8]}, {"s": "stack"}),
    ({"x": [1, 2], "h": [4], "a": [4]}, {"y": [1, 2], "h_out": [4], "h_next": [4]}, {"h": "h_out"}),
    ({"x": [1, 2], "h": [3], "c": [3]}, {"y": [1], "h_out": [3], "p": [3]}, {"h": "h_out", "c": "p"}),
    ({"h": [4], "h_prev": [4]}, {"h_out": [4]}, {"h": "h_out"}),
    ({"x_in": [2, 4]}, {"x_out": [2, 4]}, None),
    ({"x": [2, 4], "h0": [1, 4]}, {"y": [2, 4], "z": [1]}, None),
    ({"h": [2, 4]}, {"h_out": [2, 5]}, None),
    ({"h": [2, 4]}, {"h_out": [8]}, None),
]  # fmt: skip


def written(path, inputs, outputs, kinds=(TensorProto.FLOAT, TensorProto.FLOAT)):
    """Writes a graph of tensors {name: shape}, whose outputs are constants, and returns its path."""
    ends = [[helper.make_tensor_value_info(name, kind, shape) for name, shape in each.items()]
            for each, kind in zip((inputs, outputs), kinds, strict=True)]  # fmt: skip
    nodes = [
        helper.make_node(
            "Constant", [], [name], value=helper.make_tensor("", kinds[1], sizes, np.ones(sizes))
        )
        for name, shape in outputs.items()
        for sizes in [[size if isinstance(size, int) and size > 0 else 1 for size in shape]]
    ]
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", *ends), opset_imports=opsets, ir_version=8), path
    )
    return path


def proposed(error):
    """Returns the first states of the error."""
    return ast.literal_eval(re.search(r"pass states=(\{.*?\})", str(error.value))[1])


@pytest.mark.parametrize("one, other", PAIRS)
def test_names_suffice(tmp_path, one, other):
    path = written(tmp_path / "m.onnx", {"x": [2, 4], one: [2, 4]}, {"y": [2, 4], other: [2, 4]})
    assert Model(path).states == {one: other}


@pytest.mark.parametrize("inputs, outputs, want", UNCLEAR)
def test_where_names_do_not_tell_the_error_has_the_states_to_give(tmp_path, inputs, outputs, want):
    path = written(tmp_path / "m.onnx", inputs, outputs)
    if want is None:
        assert Model(path).states == {}
        return
    with pytest.raises(ValueError, match="^states must be given if names do not show the states") as error:
        Model(path)
    assert proposed(error) == want
    assert Model(path, states=want).states == want and Model(path, states={}).states == {}


def test_integers_without_the_name_of_a_state_are_data(tmp_path):
    kinds = TensorProto.INT64, TensorProto.INT64
    assert not Model(written(tmp_path / "m.onnx", {"ids": [4], "lengths": [1]}, {"y": [4]}, kinds)).states
    path = written(tmp_path / "m.onnx", {"ids": [4], "cached_len": [1]}, {"new_cached_len": [1]}, kinds)
    assert Model(path).states == {"cached_len": "new_cached_len"}


def test_a_state_keeps_its_type_and_may_have_negative_sizes(tmp_path):
    kinds = TensorProto.FLOAT, TensorProto.DOUBLE
    path = written(tmp_path / "m.onnx", {"h": [2]}, {"h_out": [2]}, kinds)
    assert Model(path).states == {}
    with pytest.raises(ValueError, match="got 'h_out' with dtype float32 and float64"):
        Model(path, states={"h": "h_out"})
    stream = Model(written(tmp_path / "m.onnx", {"h": [-1, 4]}, {"h_out": [-1, 4]})).stream()
    assert stream.state["h"].shape == (1, 4)


def test_a_file_with_very_many_inputs_needs_the_pairs(tmp_path):
    path = written(tmp_path / "m.onnx", {f"x{k}": [1] for k in range(1001)}, {"y": [1]})
    with pytest.raises(ValueError, match="states must be given for a file of more than 1000 inputs or out"):
        Model(path)
    assert Model(path, states={"x0": "y"}).states == {"x0": "y"}


@pytest.mark.parametrize("kind, dynamo", [("GRU", False), ("LSTM", True)])
def test_the_proposed_states_of_a_policy_have_torch_s_outputs(tmp_path, rng, kind, dynamo):
    """torch's exporters number the outputs, in the order of the module."""
    torch = pytest.importorskip("torch")
    if dynamo:
        pytest.importorskip("onnxscript")

    class Policy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = getattr(torch.nn, kind)(3, 4, 2), torch.nn.Linear(4, 3)

        def forward(self, obs, *first):
            y, last = self.rnn(obs[None], first if len(first) > 1 else first[0])
            return self.out(y[0]), *(last if len(first) > 1 else [last])

    torch.manual_seed(0)
    policy, path = Policy().eval(), tmp_path / "m.onnx"
    states = [torch.zeros(2, 2, 4) for _ in range(2 if kind == "LSTM" else 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(policy, (torch.zeros(2, 3), *states), str(path), dynamo=dynamo, verbose=False)
    with pytest.raises(ValueError, match="if names do not show the states") as error:
        Model(path)
    stream = Model(path, states=proposed(error)).stream()
    for x in rng.standard_normal((6, 2, 3), np.float32):
        with torch.no_grad():
            y, *states = policy(torch.from_numpy(x), *states)
        assert stream(x) == pytest.approx(y.numpy(), abs=1e-5)
    for ours, state in zip(stream.state.values(), states, strict=True):
        assert ours == pytest.approx(state.numpy(), abs=1e-5)
