"""Parts that a file starts from constants, reads backwards, or has in loops that do more."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

pytest.importorskip("onnx_ir")

import lnrnn  # noqa: E402
import quantized_lstm  # noqa: E402
from lnrnn.onnx import initial_states, parts  # noqa: E402
from onnx_cells import exported, only_part  # noqa: E402
from onnx_files import FLOAT, constant, recurrent  # noqa: E402
from onnx_loops import loop, scan  # noqa: E402
from onnx_runs import run  # noqa: E402
from unrolled_steps import unrolled  # noqa: E402

D, H, T, B = 3, 4, 4, 2
# Models whose states are inputs, and the numbers of layers and directions.
MODELS = {
    "LSTM": (lambda rng: recurrent(rng, "LSTM", states=True), 1),
    "GRU, both directions": (lambda rng: recurrent(rng, "GRU", D=2, states=True), 2),
    "RNN from the end": (lambda rng: recurrent(rng, "RNN", states=True, direction="reverse"), 1),
    "GRU, layout 1": (lambda rng: recurrent(rng, "GRU", D=2, states=True, layout=1), 2),
    "Scan of two layers": (lambda rng: scan(rng, "LSTM", layers=2), 2),
    "Scan from the end": (lambda rng: scan(rng, "GRU", (1, 1)), 1),
    "Loop": (lambda rng: loop(rng, "LSTM"), 1),
    "Loop of nodes": (lambda rng: loop(rng, "GRU", rnn_node=True), 1),
    "steps": (lambda rng: unrolled(rng, "LSTM", T, range(T)), 1),
    "quantised": (lambda rng: quantized_lstm.proto(quantized_lstm.quantized(rng, np.uint8, zero=128)), 2),
}  # fmt: skip


def values(rng, proto, rows, zero=()):
    """Returns random arrays for the states that are inputs of a model. rows: their batch. zero: names."""
    result = {}
    for value in [v for v in proto.graph.input if v.name[0] in "hc"]:
        dims = value.type.tensor_type.shape.dim
        shape = [d.dim_value or rows for d in dims] or [2 if "bidirectional" in str(proto) else 1, rows, H]
        if "layout" in str(proto):
            shape[:2] = shape[1::-1]
        array = rng.uniform(-0.9, 0.9, shape).astype(np.float32)
        result[value.name] = array * (value.name not in zero)
        proto.graph.input.remove(value)
    return result


def check(proto, states, rows, feed):
    """Compares a file with its network, which starts from `initial_states`."""
    with pytest.warns(UserWarning, match="the file starts from states that are constants other than 0, '"):
        rnn = lnrnn.from_onnx(proto)
    (part,) = parts(proto)
    pair = part.initial_states if isinstance(part.initial_states, tuple) else (part.initial_states,)
    assert len(pair) == 1 + isinstance(rnn, lnrnn.LSTM)
    for each in pair:
        assert each.dtype == np.float32 and each.shape == (states, rows, rnn.hidden_size)
    (text,) = [text for text in part.warnings if "other than 0" in text]
    assert ("Repeat them" if rows == 1 else f"a batch of {rows} sequences only") in text
    if feed is not None:
        (x,) = feed.values()
        given = tuple(each.repeat(x.shape[1] // rows, 1) for each in pair)
        y = rnn(x, given if len(given) > 1 else given[0])[0]
        want, *_ = run(proto, feed).values()
        want = want.swapaxes(1, 2).reshape(y.shape) if want.ndim == 4 else want
        limit = 0.02 if len(x) == 1 else 1e-6  # ONNX Runtime rounds x and h of a quantised node to 8 bits
        assert np.abs(want - y).max() < limit < np.abs(want - rnn(x)[0]).max()


@pytest.mark.parametrize("form", ["Constant", "initializer", "one row", "c0 alone", "h0 alone"])
@pytest.mark.parametrize("name", MODELS)
def test_states_that_are_constants_are_named_and_given(rng, name, form):
    make, states = MODELS[name]
    proto, rows = make(rng), 3 if name == "quantised" else B
    zero = {"c0 alone": ("h0", "h0_0", "h1_0"), "h0 alone": ("c0", "c0_0", "c1_0")}.get(form, ())
    arrays = values(rng, proto, rows, zero)
    if not any(a.any() for a in arrays.values()):
        pytest.skip("no c0")
    for key, array in arrays.items():
        if form == "one row":
            array[:] = array[:, :1] if array.ndim == 3 and "layout" not in str(proto) else array[:1]
        if form == "Constant":
            proto.graph.node.insert(0, constant(key, array))
        else:
            proto.graph.initializer.append(numpy_helper.from_array(array, key))
    dims, steps = proto.graph.input[0].type.tensor_type.shape.dim, 1 if name == "quantised" else T
    shape = [rows if d.dim_param == "B" else d.dim_value or steps for d in dims]
    feed = {proto.graph.input[0].name: rng.standard_normal(shape).astype(np.float32)}
    check(proto, states, 1 if form == "one row" else rows, None if "layout" in name else feed)


@pytest.mark.parametrize("kind, options, dynamo", [
    ("LSTM", {}, False), ("GRU", dict(batch_first=True), False), ("RNN", {}, False), ("GRU", {}, True),
], ids=str)  # fmt: skip
def test_a_learned_state_of_torch_is_named_and_given(rng, kind, options, dynamo):
    torch = pytest.importorskip("torch")

    class Learned(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = getattr(torch.nn, kind)(D, H, num_layers=2, bidirectional=True, **options)
            self.h = torch.nn.Parameter(torch.randn(4, 1, H))

        def forward(self, x):
            h = self.h.tanh().expand(-1, x.shape[0 if options else 1], -1).contiguous()
            return self.rnn(x, (h, 2 * h) if kind == "LSTM" else h)[0]

    x = torch.randn(T, B, D)
    sizes = {0: torch.export.Dim("a"), 1: torch.export.Dim("b")}
    axes = dict(dynamic_shapes=(sizes,)) if dynamo else dict(dynamic_axes={"x": {0: "a", 1: "b"}})
    proto = exported(Learned(), (x,), dynamo, input_names=["x"], **axes)
    feed = {"x": rng.standard_normal((T, T, D)).astype(np.float32)}
    check(proto, 4, 1, feed)


def test_a_state_that_nodes_make_of_sizes_is_given(rng):
    """ConstantOfShape, Tile and Reshape, whose shape depends on x."""
    proto = recurrent(rng, "LSTM", states=True)
    values(rng, proto, B)
    one = numpy_helper.from_array(np.array([0.5], np.float32))
    row = numpy_helper.from_array(rng.uniform(-0.9, 0.9, (1, 1, H)).astype(np.float32), "row")
    numbers = [constant(name, np.array(value)) for name, value in
               (("1", [1]), ("H", [H]), ("2", [2]), ("-1", [-1]))]  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["X"], ["n"], start=1, end=2),
        helper.make_node("Concat", ["1", "n", "H"], ["shape"], axis=0),
        helper.make_node("ConstantOfShape", ["shape"], ["h"], value=one),
        helper.make_node("Mul", ["h", "row"], ["h0"]),
        helper.make_node("Concat", ["1", "n", "1"], ["times"], axis=0),
        helper.make_node("Tile", ["row", "times"], ["c"]),
        helper.make_node("Reshape", ["c", "shape"], ["c0"]),
    ]
    for node in [*numbers, *nodes][::-1]:
        proto.graph.node.insert(0, node)
    proto.graph.initializer.append(row)
    check(proto, 1, 1, {"X": rng.standard_normal((T, B, D)).astype(np.float32)})


def test_the_proof_starts_from_the_constants(rng, monkeypatch):
    proto = recurrent(rng, "GRU", states=True)
    for name, array in values(rng, proto, B).items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    original = initial_states.constant
    monkeypatch.setattr(initial_states, "constant", lambda v, **to: original(v, **to) * (-1 if to else 1))
    with pytest.raises(ValueError, match="must compute the same as its network"):
        lnrnn.from_onnx(proto)


def test_constants_of_another_shape_are_refused(rng):
    proto = recurrent(rng, "GRU", D=2, states=True)
    proto.graph.input.pop()
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((3, B, H), np.float32), "h0"))
    with pytest.raises(ValueError, match=r"initial states must be of shape \(2, 2, 4\), got 'h0' of shape"):
        lnrnn.from_onnx(proto)


# --- the order of y -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [
    lambda rng: scan(rng, "LSTM", (1, 0)), lambda rng: scan(rng, "GRU", (0, 1)),
    lambda rng: loop(rng, "GRU", index="T - 1 - t"), lambda rng: loop(rng, "GRU", join="front of sequence"),
    lambda rng: unrolled(rng, "GRU", T, range(T)[::-1]),
])  # fmt: skip
def test_y_in_the_reverse_order_is_a_warning(rng, make):
    proto = make(rng)
    with pytest.warns(UserWarning, match=r"y has the steps in the reverse order of the network's: y\[::-1\]"):
        rnn = lnrnn.from_onnx(proto)
    shapes = {v.name: [{"T": T}.get(d.dim_param, d.dim_value or B) for d in v.type.tensor_type.shape.dim]
              for v in proto.graph.input}  # fmt: skip
    feed = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    state = tuple(a[None] for name, a in feed.items() if name != "x")
    y = rnn(feed["x"], state if len(state) > 1 else state[0])[0]
    assert np.abs(run(proto, feed)[parts(proto)[0].y.name] - y[::-1]).max() < 1e-6


@pytest.mark.parametrize("length, indices", [
    ("T", range(T)), ("T", range(T)[::-1]), (T, range(T)), (T, range(T)[::-1]),
    (T, range(-T, 0)), (T, range(-1, -T - 1, -1)),
])  # fmt: skip
def test_unrolled_steps_read_x_in_either_order(rng, length, indices):
    """A free length becomes the number of steps; a fixed one gives negative indices a place."""
    proto = unrolled(rng, "GRU", T, indices)
    (x,) = (v for v in proto.graph.input if v.name == "x")
    x.CopyFrom(helper.make_tensor_value_info("x", FLOAT, (length, "B", D)))
    part = only_part(proto)
    assert part.kind == f"{T} steps of GRU" and part.baked["T"] == T
    assert part.network.reverse == (indices[0] > indices[-1])


# --- loops around a part ------------------------------------------------------------------------------------


def changed(make, what):
    """Changes a value in the body of a Loop or Scan: the state after the step, or before it, x, or y."""

    def edit(rng):
        proto = make(rng)
        (body,) = (a.g for node in proto.graph.node for a in node.attribute if a.name == "body")
        k = len(body.output) - 1 if what == "y" else int(body.output[0].name == "go_out")
        if what in ("y", "state"):
            body.node.append(helper.make_node("Relu", [body.output[k].name], ["kept"]))
            body.output[k].name = "kept"
        else:
            names = [v.name for v in body.input]
            name = names[-1] if what == "x" else next(name for name in names if name[0] == "h")
            for node in body.node:
                node.input[:] = ["new" if each == name else each for each in node.input]
            body.node.insert(0, helper.make_node("Relu", [name], ["new"]))
        return proto

    return edit


@pytest.mark.parametrize("make", [
    lambda rng: scan(rng, "LSTM"), lambda rng: loop(rng, "GRU", join="scan output"),
    lambda rng: loop(rng, "GRU", rnn_node=True, join="scan output"),
], ids=["Scan", "Loop", "nodes"])  # fmt: skip
@pytest.mark.parametrize("what", ["state", "state before", "x", "y"])
def test_a_step_in_a_loop_that_does_more_is_warned_about_or_needs_its_name(rng, make, what):
    proto = changed(make, what)(rng)
    if what == "x" and proto.graph.node[-1].op_type != "Scan":
        pytest.skip("the body of a Loop has x by a Gather")
    (part,) = parts(proto)
    if what.startswith("state"):
        with pytest.raises(ValueError, match=f"carry its states unchanged .*; name={part.path!r}"):
            lnrnn.from_onnx(proto)
    name = part.path if what.startswith("state") else None
    with pytest.warns(UserWarning, match=f"part {part.path!r}: the (Scan|Loop) around it is not a part"):
        assert lnrnn.from_onnx(proto, name).hidden_size == H
