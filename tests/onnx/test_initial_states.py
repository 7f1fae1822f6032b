"""Parts that a file starts from constants, reads backwards, or has in loops that do more."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from onnx import helper, numpy_helper

pytest.importorskip("onnx_ir")

import lnrnn  # noqa: E402
import quantized_lstm  # noqa: E402
from lnrnn.onnx import conversion, parts  # noqa: E402
from onnx_cells import exported  # noqa: E402
from onnx_files import constant, recurrent  # noqa: E402
from onnx_loops import loop, scan, unrolled  # noqa: E402
from onnx_runs import run  # noqa: E402

D, H, T, B = 3, 4, 4, 2
MODELS = {  # their states are inputs
    "LSTM": lambda rng: recurrent(rng, "LSTM", states=True),
    "GRU, both directions": lambda rng: recurrent(rng, "GRU", D=2, states=True),
    "RNN from the end": lambda rng: recurrent(rng, "RNN", states=True, direction="reverse"),
    "GRU, layout 1": lambda rng: recurrent(rng, "GRU", D=2, states=True, layout=1),
    "Scan of LSTM layers": lambda rng: scan(rng, "LSTM", layers=2),
    "Scan from the end": lambda rng: scan(rng, "GRU", (1, 1)),
    "Loop of LSTM": lambda rng: loop(rng, "LSTM"),
    "Loop of nodes": lambda rng: loop(rng, "GRU", rnn_node=True),
    "LSTM steps": lambda rng: unrolled(rng, "LSTM", range(T)),
    "LSTM, quantised": lambda rng: quantized_lstm.proto(quantized_lstm.quantized(rng, np.uint8, zero=128)),
}


def start(rng, proto, zero=""):
    """Makes states that are inputs constants. zero: the first letter of those that are 0, "" for none."""
    text = str(proto)
    for value in [v for v in proto.graph.input if v.name[0] in "hc"]:
        dims = value.type.tensor_type.shape.dim
        shape = [d.dim_value or B for d in dims] or [1 + ("bidirectional" in text), B, H]
        shape = shape[:2][::-1] + shape[2:] if "layout" in text else shape
        array = rng.uniform(-0.9, 0.9, shape).astype(np.float32) * (value.name[0] != zero)
        proto.graph.input.remove(value)
        if zero:
            proto.graph.initializer.append(numpy_helper.from_array(array, value.name))
        else:
            proto.graph.node.insert(0, constant(value.name, array))


def check(rng, proto, rows, limit=1e-6):
    """Compares a file with its network, which starts from `initial_states`, unless limit is None."""
    with pytest.warns(UserWarning, match="the file starts from states that are constants other than 0, '"):
        rnn = lnrnn.from_onnx(proto)
    (part,) = parts(proto)
    pair = part.initial_states if isinstance(rnn, lnrnn.LSTM) else (part.initial_states,)
    for each in pair:
        assert each.shape == (rnn.num_layers * (1 + rnn.bidirectional), rows, rnn.hidden_size)
    text = "Repeat them along axis 1 for several" if rows == 1 else f"a batch of {rows} sequences"
    assert any(text in each for each in part.warnings)
    if limit is not None:
        (x,) = proto.graph.input
        sizes = {"T": T, "B": rows, "": 1}
        shape = [d.dim_value or sizes.get(d.dim_param, T) for d in x.type.tensor_type.shape.dim]
        x = {x.name: rng.standard_normal(shape).astype(np.float32)}
        (given,) = x.values()
        batch = given.shape[0 if rnn.batch_first else 1]
        pair = tuple(each.repeat(batch // rows, 1) for each in pair)
        y = rnn(given, pair if len(pair) > 1 else pair[0])[0]
        want, *_ = run(proto, x).values()
        want = want.swapaxes(1, 2).reshape(y.shape) if want.ndim == 4 else want
        assert np.abs(want - y).max() < limit < np.abs(want - rnn(given)[0]).max()


@pytest.mark.parametrize("name, zero", [
    (name, zero) for name in MODELS for zero in (("", "h", "c") if "LSTM" in name else ("", "c"))
])  # fmt: skip
def test_states_that_are_constants_are_named_and_given(rng, name, zero):
    proto = MODELS[name](rng)
    start(rng, proto, zero)
    # ONNX Runtime rounds x and h of a quantised node to 8 bits, and does not run layout 1.
    limit = {"LSTM, quantised": 0.02, "GRU, layout 1": None}.get(name, 1e-6)
    check(rng, proto, 3 if "quantised" in name else B, limit)


@pytest.mark.parametrize("kind, options, dynamo", [
    ("LSTM", {}, False), ("GRU", dict(batch_first=True), False), ("RNN", {}, False), ("GRU", {}, True),
], ids=str)  # fmt: skip
def test_a_learned_state_of_torch_is_named_and_given(rng, kind, options, dynamo):
    torch = pytest.importorskip("torch")

    class Learned(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = getattr(torch.nn, kind)(D, H, num_layers=2, bidirectional=True, **options)
            self.h, self.c = (torch.nn.Parameter(torch.randn(4, 1, H)) for _ in range(2))

        def forward(self, x):
            h, c = (v.expand(-1, x.shape[0 if options else 1], -1).contiguous() for v in (self.h, self.c))
            return self.rnn(x, (h, c) if kind == "LSTM" else h)[0]

    check(rng, exported(Learned(), (torch.randn(T, B, D),), dynamo, free=True), 1)


def test_a_state_that_nodes_make_of_sizes_is_given(rng):
    proto = recurrent(rng, "LSTM", states=True)
    del proto.graph.input[1:]
    one = numpy_helper.from_array(np.array([0.5], np.float32))
    row = constant("row", rng.uniform(-0.9, 0.9, (1, 1, H)).astype(np.float32))
    numbers = [constant(str(value), np.array([value])) for value in (1, H)]
    nodes = [
        helper.make_node("Shape", ["X"], ["n"], start=1, end=2),
        helper.make_node("Concat", ["1", "n", "4"], ["shape"], axis=0),
        helper.make_node("ConstantOfShape", ["shape"], ["h0"], value=one),
        helper.make_node("Concat", ["1", "n", "1"], ["times"], axis=0),
        helper.make_node("Tile", ["row", "times"], ["c"]),
        helper.make_node("Reshape", ["c", "shape"], ["c0"]),
    ]
    for node in [row, *numbers, *nodes][::-1]:
        proto.graph.node.insert(0, node)
    check(rng, proto, 1)


def test_the_proof_starts_from_the_constants(rng, monkeypatch):
    def others(*arguments):
        (part,) = original(*arguments)
        part.initial_states = -part.initial_states
        return [part]

    proto, original = recurrent(rng, "GRU", states=True), conversion.parts_of
    start(rng, proto)
    monkeypatch.setattr(conversion, "parts_of", others)
    with pytest.raises(ValueError, match="does not reproduce part"):
        lnrnn.from_onnx(proto)


@pytest.mark.parametrize("fill, op, others, warned", [
    (0, "Tanh", [], False), (0, "Mul", ["half"], False), (0, "Sub", ["zero"], False), (1, "Clip", [], True),
    (1, "Sigmoid", [], True), (0, "Add", ["half"], True), (1, "Slice", ["2", "4"], True), (1, "", [], True),
    (None, "Slice", ["0", "2"], False),
])  # fmt: skip
def test_states_computed_from_constants_are_warned_about_unless_0(rng, fill, op, others, warned):
    proto = recurrent(rng, "GRU", D=2, states=True)
    proto.graph.input.pop()
    first = {"": 3, "Slice": 4}.get(op, 2)
    arrays = dict(first=[first], H=[H], half=np.float32(0.5), zero=np.float32(0)) | {
        "0": [0],
        "2": [2],
        "4": [4],
    }
    arrays["rows"] = np.float32([0, 0, 1, 1])[:, None, None]
    nodes = [
        *(constant(name, np.array(value)) for name, value in arrays.items()),
        helper.make_node("Shape", ["X"], ["n"], start=1, end=2),
        helper.make_node("Concat", ["first", "n", "H"], ["shape"], axis=0),
        helper.make_node("Expand", ["rows", "shape"], ["fill"]) if fill is None else helper.make_node(
            "ConstantOfShape", ["shape"], ["fill"], value=numpy_helper.from_array(np.float32([fill]))),
        helper.make_node(op, ["fill", *others], ["h0"]),
    ]  # fmt: skip
    if not op:  # not the shape of a state
        nodes = [constant("h0", np.ones((3, B, H), np.float32))]
    for node in nodes[::-1]:
        proto.graph.node.insert(0, node)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert lnrnn.from_onnx(proto).hidden_size == H
    text = "part 'node': the file computes its initial states from constants, 'h0', and network(x) starts"
    assert [str(each.message)[: len(text)] for each in told] == [text] * warned
    assert parts(proto)[0].initial_states is None


# --- loops around a part ------------------------------------------------------------------------------------
@pytest.mark.parametrize("what", ["y", "state"])
def test_a_loop_that_does_more_than_its_step_is_warned_about_or_the_step_needs_its_name(rng, what):
    """A Relu in the body changes y, or the state after the step."""
    proto = loop(rng, "GRU", rnn_node=True, join="scan output")
    (body,) = (a.g for node in proto.graph.node for a in node.attribute if a.name == "body")
    output = body.output[-1 if what == "y" else 1]
    body.node.append(helper.make_node("Relu", [output.name], ["new"]))
    output.name = "new"
    (part,) = parts(proto)
    name = part.path if what == "state" else None
    if name is not None:
        with pytest.raises(ValueError, match=f"carry its states unchanged .*; name={name!r}"):
            lnrnn.from_onnx(proto)
    with pytest.warns(UserWarning, match=f"part {part.path!r}: the Loop around it is not converted") as told:
        assert lnrnn.from_onnx(proto, name).hidden_size == H
    assert len(told) == 1
