"""Unrolled loops in the plug-in, compared with ONNX Runtime: a chain of equal steps is one node."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

from onnx import TensorProto, helper  # noqa: E402

from onnx_cells import Writer, affine, cut, draw, exported, layer_norm, lstm, step  # noqa: E402
from onnx_files import FLOAT, model  # noqa: E402
from plugin_runs import agree, alone, plugged, profiled  # noqa: E402

D, H, T = 3, 4, 4
KINDS = pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
WIDTHS = pytest.mark.parametrize("width", [D, H])  # H: an h may be an x


def finished(w, outputs, width=D):
    """Returns a model. Its inputs are x, x0, x1, .. and the states that nodes read."""
    read = {name for node in w.nodes for name in node.input} - {name for n in w.nodes for name in n.output}
    inputs = {}
    for name in sorted(read - set(w.arrays)):
        states = name[0] in "hcgd"
        inputs[name] = FLOAT, ("T", "B", width) if name == "x" else ("B", H if states else width)
    return model(w.nodes, inputs, [o for o in outputs if o], w.arrays)


def chain(w, kind, parameters, xs, state=("h0", "c0")):
    """Writes steps. parameters: those of each step. Returns the names of all h, and of the last c or None."""
    hs = []
    for p, x in zip(parameters, xs, strict=True):
        state = step(w, kind, p, x, state)
        hs.append(state[0])
    return hs, state[1] if len(state) > 1 else None


def unrolled(rng, kind, T, indices=None, joined=True, edit=None, width=D):
    """Returns a model with T steps of a cell. indices: of x at each step; None: each step has its own input.
    joined: whether a Concat joins the outputs. edit(w, t, p, x, state) changes a step."""
    w, p, state, ys = Writer(), draw(rng, kind, width, H), ("h0", "c0"), []
    for t in range(T):
        x = f"x{t}" if indices is None else w.node("Gather", "x", w.array(indices[t], np.int64), axis=0)
        weights = p
        if edit is not None:
            weights, x, state = edit(w, t, p, x, state)
        state = step(w, kind, weights, x, state)
        ys.append(w.node("Unsqueeze", state[0], w.integers(0)) if joined else state[0])
    return finished(w, [*([w.node("Concat", *ys, axis=0)] if joined else ys[:-1]), *state], width)


def check(proto, rng, tmp_path, nodes, others=None, **sizes):
    """Compares a model with the runtime. nodes: those of the plug-in. others: operators of the runtime.
    sizes: of axes, or the number of sequences of an input."""
    theirs, sizes = alone(proto), {"B": 2, "T": T} | sizes
    given = {
        i.name: rng.standard_normal(
            [sizes.get(i.name, 2) if n is None else sizes.get(n, n) for n in i.shape]
        ).astype(np.float32) for i in theirs.get_inputs()
    }  # fmt: skip
    ours, ran, left = profiled(proto, given, tmp_path)
    agree(ours, theirs.run(None, given))
    assert len(ran) == nodes
    if others is not None:
        assert left == others


def xs_of(n):
    return [f"x{t}" for t in range(n)]


# --- the forms of inputs and outputs ------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 33])
@KINDS
def test_steps_of_one_input_are_one_node(rng, tmp_path, kind, n):
    for indices in (range(n), range(n - 1, -1, -1), range(-n, 0)):
        proto = unrolled(rng, kind, n, indices)
        for B in (1, 3, 8):
            check(proto, rng, tmp_path, 1, set(), T=n, B=B)


@KINDS
@WIDTHS
@pytest.mark.parametrize("joined", [False, True])
def test_steps_with_their_own_inputs_or_outputs_are_one_node(rng, tmp_path, kind, joined, width):
    for indices in (None, range(1, 6)):
        check(unrolled(rng, kind, 5, indices, joined, width=width), rng, tmp_path, 1, set(), T=7, B=3)


def test_one_step_is_a_step(rng, tmp_path):
    check(unrolled(rng, "LSTM", 1, [0]), rng, tmp_path, 1, T=1, B=3)


@KINDS
@WIDTHS
def test_only_the_last_state_is_an_output(rng, tmp_path, kind, width):
    w = Writer()
    hs, _ = chain(w, kind, [draw(rng, kind, width, H)] * T, xs_of(T))
    check(finished(w, hs[-1:], width), rng, tmp_path, 1, set())


@pytest.mark.parametrize("indices", [(0, 1, 3, 4), (0, 2, 1, 3), (0, 1, 0, 1), (1, 1, 1, 1)])
def test_inputs_in_another_order_are_read_in_that_order(rng, tmp_path, indices):
    check(unrolled(rng, "GRU", 4, indices), rng, tmp_path, 1, {"Gather"}, T=5, B=2)


def test_a_read_beyond_the_input_is_an_error(rng):
    for indices in (range(4), range(3, -1, -1), range(-4, 0)):
        session = plugged(unrolled(rng, "GRU", 4, indices))
        x, h = rng.standard_normal((3, 2, D), dtype=np.float32), np.zeros((2, H), np.float32)
        with pytest.raises(Exception, match="unrolled steps read beyond their input"):
            session.run(None, {"x": x, "h0": h})
        with pytest.raises(Exception, match="differ in their numbers of sequences"):
            session.run(None, {"x": np.zeros((4, 2, D), np.float32), "h0": np.zeros((3, H), np.float32)})


def test_one_state_serves_all_sequences(rng, tmp_path):
    proto = unrolled(rng, "LSTM", 4, range(4))
    (given,) = (i for i in proto.graph.input if i.name == "h0")
    given.CopyFrom(helper.make_tensor_value_info("h0", FLOAT, (1, H)))
    check(proto, rng, tmp_path, 1, T=4, B=3)


def test_numbers_of_sequences(rng, tmp_path):
    proto = unrolled(rng, "GRU", 3, joined=False)
    for graph_input in proto.graph.input:
        graph_input.type.tensor_type.shape.dim[0].Clear()
    for batches in ({"h0": 1}, {"x1": 1}, {"x0": 1, "x1": 1, "x2": 1}, dict.fromkeys([*xs_of(3), "h0"], 1)):
        check(proto, rng, tmp_path, 1, **batches)
    given = {i.name: np.zeros((2, i.shape[1]), np.float32) for i in alone(proto).get_inputs()}
    with pytest.raises(Exception, match="lnrnn: the inputs and states"):
        plugged(proto).run(None, given | {"x2": np.zeros((3, D), np.float32)})
    one = {name: a[:1] for name, a in given.items()}
    with pytest.raises(Exception, match="lnrnn: a later unrolled step has more sequences"):
        plugged(proto).run(None, one | {"x2": given["x2"]})
    empty = {name: a[:0] for name, a in given.items()}
    assert [y.shape for y in plugged(proto).run(None, empty)] == [(0, H)] * 3


# --- where a chain ends -------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("name", ["weight_ih", "weight_hh", "bias_ih"])
def test_one_other_number_ends_a_chain(rng, tmp_path, kind, name):
    def edit(w, t, p, x, state):
        other = p[name].copy()
        other.flat[-1] += np.float32(0.25) * (t == 2)
        return p | {name: other}, x, state

    if kind != "RNN" or name == "bias_ih":  # an RNN's state is known by its equal matrices
        check(unrolled(rng, kind, 5, range(5), edit=edit), rng, tmp_path, 3, T=5, B=3)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_other_weights_in_each_step(rng, tmp_path, kind):
    w = Writer()
    hs, c = chain(w, kind, [draw(rng, kind, D, H) for _ in range(T)], xs_of(T))
    check(finished(w, [*hs, c]), rng, tmp_path, T)


@pytest.mark.parametrize("other, nodes", [(1e-5, 1), (1e-3, 2)])
def test_a_chain_ends_where_epsilon_differs(rng, tmp_path, other, nodes):
    w, p, state = Writer(), draw(rng, "LSTM", D, H, bias=False), ("h0", "c0")
    gains = rng.uniform(0.5, 1.5, (2, 4 * H))
    for t in range(6):
        eps = other if t >= 3 else 1e-5
        sides = (f"x{t}", "weight_ih", gains[0]), (state[0], "weight_hh", gains[1])
        a = w.node("Add", *(layer_norm(w, affine(w, v, p[k], None), gain, None, eps) for v, k, gain in sides))
        state = lstm(w, dict(zip("ifgo", cut(w, a, 4, H), strict=True)), state[1])
    check(finished(w, state), rng, tmp_path, nodes, B=3)


@pytest.mark.parametrize("kind, change", [
    ("LSTM", "h"), ("GRU", "h"), ("LSTM", "c0 again"), ("LSTM", "c is read"), ("LSTM", "c is an output"),
])  # fmt: skip
def test_a_state_that_is_changed_or_read_ends_a_chain(rng, tmp_path, kind, change):
    read = []

    def edit(w, t, p, x, state):
        if t == 3 and change == "h":
            return p, x, (w.node("Neg", state[0]), *state[1:])
        if t == 3 and change == "c0 again":
            return p, x, (state[0], "c0")
        if t == 3 and change != "h":
            read.append(w.node("Abs", state[1]) if change == "c is read" else state[1])
        return p, x, state

    proto = unrolled(rng, kind, 6, range(6), edit=edit)
    proto.graph.output.extend(helper.make_tensor_value_info(name, FLOAT, None) for name in read)
    check(proto, rng, tmp_path, 2, T=6, B=3)


@KINDS
@WIDTHS
@pytest.mark.parametrize("first", [False, True])
def test_an_input_that_needs_the_state_before_ends_a_chain(rng, tmp_path, kind, width, first):
    """As in a decoder, whose next input is computed from its last output."""

    def edit(w, t, p, x, state):
        if t:
            x = (
                w.node("Abs", state[0])
                if width == H
                else w.node("Mul", x, w.node("ReduceMean", state[0], axes=[1]))
            )
        return p, x, state

    check(unrolled(rng, kind, 4, range(4), not first, edit, width), rng, tmp_path, 4, B=3)


def test_an_input_that_a_subgraph_computes_from_the_state(rng):
    w, p = Writer(), draw(rng, "GRU", D, D)
    (h,) = step(w, "GRU", p, "x0", ("h0",))
    branches = [
        helper.make_graph([helper.make_node(op, [h], [op])], op, [],
                          [helper.make_tensor_value_info(op, FLOAT, None)]) for op in ("Neg", "Abs")
    ]  # fmt: skip
    w.nodes.append(helper.make_node("If", ["flag"], ["x1"], then_branch=branches[0], else_branch=branches[1]))
    (h,) = step(w, "GRU", p, "x1", (h,))
    inputs = {"x0": (FLOAT, ("B", D)), "h0": (FLOAT, ("B", D)), "flag": (TensorProto.BOOL, ())}
    proto = model(w.nodes, inputs, [h], w.arrays)
    for flag in (True, False):
        given = {name: rng.standard_normal((2, D), dtype=np.float32) for name in ("x0", "h0")}
        given["flag"] = np.array(flag)
        agree(plugged(proto).run(None, given), alone(proto).run(None, given))


def test_two_steps_after_one(rng, tmp_path):
    """Only one of them continues the chain."""
    w, p = Writer(), draw(rng, "LSTM", D, H)
    hs, c = chain(w, "LSTM", [p] * 2, xs_of(2))
    one = step(w, "LSTM", p, "x2", (hs[-1], c))
    two = step(w, "LSTM", p, "x3", (hs[-1], c))
    check(finished(w, [*one, *two]), rng, tmp_path, 3)


# --- near misses: as many nodes as it takes, with the runtime's results -------------------------------------


def agrees(proto, rng, tmp_path, **sizes):
    """Compares a model with the runtime. The plug-in may compute it in any number of nodes."""
    theirs, sizes = alone(proto), {"B": 2, "T": T} | sizes
    given = {
        i.name: rng.standard_normal([sizes.get(n, n) for n in i.shape]).astype(np.float32)
        for i in theirs.get_inputs()
    }
    ours, ran, _ = profiled(proto, given, tmp_path)
    agree(ours, theirs.run(None, given))
    assert ran


def stacked(w, hs, axis=0, into=None):
    ys = [w.node("Unsqueeze", h, w.integers(axis)) for h in hs]
    return w.node("Concat", *ys, axis=axis if into is None else into)


def two_that_share(w, hs):
    """Returns two Concats, each with half of all h at their places."""
    ys = [w.node("Unsqueeze", h, w.integers(0)) for h in hs]
    more = [w.node("Abs", y) for y in ys]
    pairs = list(zip(ys, more, strict=True))
    return [
        w.node("Concat", *(pair[(k + way) % 2] for k, pair in enumerate(pairs)), axis=0) for way in (0, 1)
    ]


def a_row(w):
    return next(n for n in w.nodes if n.op_type == "Unsqueeze").output[0]


OUTPUTS = {
    "other axis": lambda w, hs: [stacked(w, hs, 1)],
    "axis that no Unsqueeze made": lambda w, hs: [stacked(w, hs, 1, 0)],
    "axis of units": lambda w, hs: [stacked(w, hs, 0, 2)],
    "backwards": lambda w, hs: [stacked(w, hs[::-1])],
    "one twice": lambda w, hs: [stacked(w, [*hs, hs[0]])],
    "one less": lambda w, hs: [stacked(w, hs[:-1])],
    "two": lambda w, hs: [stacked(w, hs), stacked(w, hs)],
    "two that share": two_that_share,
    "row that is an output": lambda w, hs: [stacked(w, hs), a_row(w)],
    "row that is read": lambda w, hs: [stacked(w, hs), w.node("Abs", a_row(w))],
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_that_are_joined_in_another_way(rng, tmp_path, name):
    w = Writer()
    hs, _ = chain(w, "GRU", [draw(rng, "GRU", D, H)] * T, xs_of(T))
    agrees(finished(w, OUTPUTS[name](w, hs)), rng, tmp_path)


@pytest.mark.parametrize("indices", [(-1, 0, 1), (1, 0, -1), (0, 2, 4), (4, 2, 0), (0, -4, -3)])
def test_inputs_that_skip_or_wrap(rng, tmp_path, indices):
    agrees(unrolled(rng, "LSTM", len(indices), indices), rng, tmp_path, T=5)


def test_inputs_of_two_values_or_another_axis(rng, tmp_path):
    for name, axis in (("x", 0), ("x", 1), ("z", 0)):
        w, p, xs = Writer(), draw(rng, "GRU", D, H), []
        for t in range(3):
            of = name if t == 1 else "x"
            xs.append(w.node("Gather", of, w.array(t, np.int64), axis=axis))
        hs, _ = chain(w, "GRU", [p] * 3, xs)
        more = [w.node("Abs", xs[0])] if name == "x" else []
        shape = FLOAT, (3, 3, D)
        inputs = {n: shape for n in ("x", name)} | {"h0": (FLOAT, (3, H))}
        agrees(model(w.nodes, inputs, [*hs, *more], w.arrays), rng, tmp_path)


@pytest.mark.parametrize("change", ["order of gates", "one more bias", "hard sigmoids", "c for a subgraph"])
def test_another_step_in_a_chain(rng, tmp_path, change):
    w, p, state, hs = Writer(), draw(rng, "LSTM", D, H), ("h0", "c0"), []
    names = {key: w.array(a) for key, a in p.items()}
    for t in range(4):
        sides = ((f"x{t}", "ih"), (state[0], "hh"))
        x_, h_ = (w.node("Gemm", v, names[f"weight_{k}"], names[f"bias_{k}"], transB=1) for v, k in sides)
        a = w.node("Add", x_, h_)
        if t == 2 and change == "one more bias":
            a = w.node("Add", a, w.array(rng.standard_normal(4 * H)))
        order = "ofgi" if t == 2 and change == "order of gates" else "ifgo"
        sigmoid = "HardSigmoid" if t == 2 and change == "hard sigmoids" else "Sigmoid"
        state = lstm(w, dict(zip(order, cut(w, a, 4, H), strict=True)), state[1], sigmoid)
        hs.append(state[0])
        if t == 2 and change == "c for a subgraph":
            branches = [
                helper.make_graph([helper.make_node(op, [state[1]], [op])], op, [],
                                  [helper.make_tensor_value_info(op, FLOAT, None)]) for op in ("Neg", "Abs")
            ]  # fmt: skip
            flag = w.node("Cast", w.node("ReduceMax", "x0", keepdims=0), to=TensorProto.BOOL)
            w.nodes.append(
                helper.make_node("If", [flag], ["y"], then_branch=branches[0], else_branch=branches[1])
            )
            hs.append("y")
    agrees(finished(w, hs), rng, tmp_path)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_layers_with_equal_weights(rng, tmp_path, kind):
    """Each layer reads the one below: an x takes the place of a state."""
    w, p, x, hs = Writer(), draw(rng, kind, H, H), "x0", []
    for state in (("h0", "c0"), ("g0", "d0"), ("h1", "c1")):
        x = step(w, kind, p, x, state)[0]
        hs.append(x)
    agrees(finished(w, hs, H), rng, tmp_path)


def test_a_state_that_becomes_the_input(rng, tmp_path):
    w, p = Writer(), draw(rng, "RNN", H, H)
    hs, _ = chain(w, "RNN", [p] * 2, xs_of(2), ("h0",))
    hs += step(w, "RNN", p, hs[-1], ("h1",))
    hs += step(w, "RNN", p, "x3", (hs[-1],))
    agrees(finished(w, hs, H), rng, tmp_path)


@pytest.mark.parametrize("axes", [(1, 1, 1), (0, 1, 1), (1, 0, 0)])
def test_inputs_and_states_with_three_axes(rng, tmp_path, axes):
    """axes: whether x0, x1 and h0 have one more."""
    w, names = Writer(), ("x0", "x1", "h0")
    state = ("h0", "c0")
    p, hs = draw(rng, "LSTM", D, H), []
    for t in range(2):
        state = step(w, "LSTM", p, f"x{t}", state, product="MatMul")
        hs.append(state[0])
    proto = finished(w, hs)
    for value in proto.graph.input:
        if value.name in names and axes[names.index(value.name)]:
            width = value.type.tensor_type.shape.dim[1].dim_value
            value.CopyFrom(helper.make_tensor_value_info(value.name, FLOAT, (2, "B", width)))
    agrees(proto, rng, tmp_path, B=3)


# --- several chains -----------------------------------------------------------------------------------------


@KINDS
@WIDTHS
def test_layers_are_chains(rng, tmp_path, kind, width):
    for together in (False, True):  # all layers of a step first, or all steps of a layer
        w, p, q = Writer(), draw(rng, kind, width, H), draw(rng, kind, H, H)
        low, high, hs = ("h0", "c0"), ("g0", "d0"), []
        xs = [w.node("Gather", "x", w.array(t, np.int64), axis=0) for t in range(T)]
        if together:
            first, _ = chain(w, kind, [p] * T, xs, low)
            hs, _ = chain(w, kind, [q] * T, first, high)
        else:
            for x in xs:
                low = step(w, kind, p, x, low)
                high = step(w, kind, q, low[0], high)
                hs.append(high[0])
        ys = w.node("Concat", *(w.node("Unsqueeze", h, w.integers(0)) for h in hs), axis=0)
        check(finished(w, [ys, low[0]] if not together else [ys, first[-1]], width), rng, tmp_path, 2, set())


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("more, nodes", [(1, 3), (2, 6)])
def test_two_chains_that_read_each_other_are_not_both_claimed(rng, tmp_path, kind, more, nodes):
    """With two more steps, each chain would need a result of itself."""
    w, p, q = Writer(), draw(rng, kind, H, H), draw(rng, kind, H, H)
    a, b = step(w, kind, p, "x0", ("h0", "c0")), step(w, kind, q, "x1", ("g0", "d0"))
    for _ in range(more):
        a, b = step(w, kind, p, w.node("Abs", b[0]), a), step(w, kind, q, w.node("Neg", a[0]), b)
    check(finished(w, [a[0], b[0]], H), rng, tmp_path, nodes)


@pytest.mark.parametrize("late", [False, True])
def test_two_chains_of_which_one_reads_the_other(rng, tmp_path, late):
    """The second chain reads the first one's last state, in its first or in its last step."""
    w, p, q = Writer(), draw(rng, "GRU", H, H), draw(rng, "GRU", H, H)
    hs, _ = chain(w, "GRU", [p] * T, xs_of(T), ("h0",))
    inputs = xs_of(T)
    inputs[-1 if late else 0] = hs[-1]
    more, _ = chain(w, "GRU", [q] * T, inputs, ("g0",))
    check(finished(w, [*hs, *more], H), rng, tmp_path, 2)


# --- files of torch -----------------------------------------------------------------------------------------


def loop_of(torch, cell):
    """Returns a module that calls a cell for each of five steps."""

    class Loop(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def forward(self, x, *state):
            ys = []
            for t in range(5):
                new = self.cell(x[t], state if len(state) > 1 else state[0])
                state = new if isinstance(new, tuple) else (new,)
                ys.append(state[0])
            return torch.stack(ys), *state

    return Loop()


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell", "layer norm"])
def test_a_python_loop_that_torch_exports(rng, tmp_path, kind, dynamo):
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from torch_cells import LayerNormLSTMCell, shaken

    torch.manual_seed(1)
    states = [torch.randn(2, H) for _ in range(1 + (kind in ("LSTMCell", "layer norm")))]
    if kind == "layer norm":
        normed = shaken(LayerNormLSTMCell(D, H))

        class Cell(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.of = normed

            def forward(self, x, state):
                return self.of(x, *state)

        cell = Cell()
    else:
        cell = getattr(torch.nn, kind)(D, H)
    proto = exported(loop_of(torch, cell), (torch.randn(5, 2, D), *states), dynamo, 18 if dynamo else 17)
    check(proto, rng, tmp_path, 1)
