"""Unrolled loops over cells in the plug-in, compared with ONNX Runtime's own kernels."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

from onnx import helper  # noqa: E402

from onnx_cells import Writer, affine, cut, draw, exported, layer_norm, lstm, step  # noqa: E402
from onnx_files import FLOAT, model  # noqa: E402
from plugin_runs import agree, alone, plugged, profiled  # noqa: E402

D, H = 3, 4
KINDS = "LSTM", "GRU", "RNN"


def unrolled(rng, kind, T, indices=None, joined=True, edit=None):
    """Returns a model with T steps of a cell. indices: of x at each step; None: each step has its own input.
    joined: whether a Concat joins the outputs. edit(w, t, p, x, state) changes a step."""
    w, p = Writer(), draw(rng, kind, D, H)
    state = ("h0", "c0")[: 1 + (kind == "LSTM")]
    inputs = {name: (FLOAT, ("B", H)) for name in state}
    outputs, firsts = [], []
    for t in range(T):
        if indices is None:
            x, inputs[f"x{t}"] = f"x{t}", (FLOAT, ("B", D))
        else:
            inputs["x"] = FLOAT, ("T", "B", D)
            x = w.node("Gather", "x", w.array(indices[t], np.int64), axis=0)
        weights = p
        if edit is not None:
            weights, x, state = edit(w, t, p, x, state)
        state = step(w, kind, weights, x, state)
        firsts.append(w.node("Unsqueeze", state[0], w.integers(0)) if joined else state[0])
    outputs = [w.node("Concat", *firsts, axis=0)] if joined else firsts[:-1]
    return model(w.nodes, inputs, [*outputs, *state], w.arrays)


def check(proto, rng, tmp_path, nodes, others=None, **sizes):
    """Compares a model with the runtime. others: operators that only the runtime may run."""
    theirs = alone(proto)
    given = {
        i.name: rng.standard_normal([sizes.get(n, n) for n in i.shape]).astype(np.float32)
        for i in theirs.get_inputs()
    }
    ours, ran, left = profiled(proto, given, tmp_path)
    agree(ours, theirs.run(None, given))
    assert len(ran) == nodes
    if others is not None:
        assert left == others


@pytest.mark.parametrize("T", [2, 3, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_one_input_are_one_node(rng, tmp_path, kind, T):
    for indices in (range(T), range(T - 1, -1, -1), range(-T, 0)):
        proto = unrolled(rng, kind, T, indices)
        for B in (1, 3, 8):
            check(proto, rng, tmp_path, 1, set(), T=T, B=B)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("joined", [False, True])
def test_steps_with_their_own_inputs_or_outputs_are_one_node(rng, tmp_path, kind, joined):
    for indices in (None, range(1, 6)):
        check(unrolled(rng, kind, 5, indices, joined), rng, tmp_path, 1, set(), T=7, B=3)


def test_one_step_is_a_step(rng, tmp_path):
    check(unrolled(rng, "LSTM", 1, [0]), rng, tmp_path, 1, T=1, B=3)


@pytest.mark.parametrize("indices", [(0, 1, 3, 4), (0, 2, 1, 3), (0, 1, 0, 1), (1, 1, 1, 1)])
def test_inputs_in_another_order_are_read_in_that_order(rng, tmp_path, indices):
    check(unrolled(rng, "GRU", 4, indices), rng, tmp_path, 1, {"Gather"}, T=5, B=2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_ends_where_a_weight_differs(rng, tmp_path, kind):
    for name in ("weight_ih", "weight_hh", "bias_ih"):

        def edit(w, t, p, x, state, name=name):
            other = p[name].copy()
            other.flat[-1] += np.float32(0.25) * (t >= 3)
            return p | {name: other}, x, state

        if kind != "RNN" or name == "bias_ih":  # an RNN's state is known by its equal matrices
            check(unrolled(rng, kind, 6, range(6), edit=edit), rng, tmp_path, 2, T=6, B=3)


@pytest.mark.parametrize("other, nodes", [(1e-5, 1), (1e-3, 2)])
def test_a_chain_ends_where_epsilon_differs(rng, tmp_path, other, nodes):
    w, p, state = Writer(), draw(rng, "LSTM", D, H, bias=False), ("h0", "c0")
    gains = rng.uniform(0.5, 1.5, (2, 4 * H))
    for t in range(6):
        eps = other if t >= 3 else 1e-5
        sides = (f"x{t}", "weight_ih", gains[0]), (state[0], "weight_hh", gains[1])
        a = w.node("Add", *(layer_norm(w, affine(w, v, p[k], None), gain, None, eps) for v, k, gain in sides))
        state = lstm(w, dict(zip("ifgo", cut(w, a, 4, H), strict=True)), state[1])
    inputs = {f"x{t}": (FLOAT, ("B", D)) for t in range(6)}
    inputs |= {name: (FLOAT, ("B", H)) for name in ("h0", "c0")}
    check(model(w.nodes, inputs, list(state), w.arrays), rng, tmp_path, nodes, B=3)


def test_a_state_from_elsewhere_ends_a_chain(rng, tmp_path):
    def edit(w, t, p, x, state):
        return p, x, (w.node("Neg", state[0]), *state[1:]) if t == 3 else state

    check(unrolled(rng, "LSTM", 6, range(6), edit=edit), rng, tmp_path, 2, T=6, B=3)
    check(unrolled(rng, "GRU", 6, range(6), edit=edit), rng, tmp_path, 2, T=6, B=3)


def test_c_of_another_step_ends_a_chain(rng, tmp_path):
    def edit(w, t, p, x, state):
        return p, x, (state[0], "c0") if t == 3 else state

    check(unrolled(rng, "LSTM", 6, range(6), edit=edit), rng, tmp_path, 2, T=6, B=3)


def test_c_that_another_node_reads_ends_a_chain(rng, tmp_path):
    def edit(w, t, p, x, state):
        if t == 3:
            w.node("Abs", state[1])
        return p, x, state

    proto = unrolled(rng, "LSTM", 6, range(6), edit=edit)
    (last,) = (node for node in proto.graph.node if node.op_type == "Abs")
    proto.graph.output.append(helper.make_tensor_value_info(last.output[0], FLOAT, None))
    check(proto, rng, tmp_path, 2, T=6, B=3)


def test_steps_whose_inputs_need_their_outputs_are_no_chain(rng, tmp_path):
    """As in a decoder, whose next input is computed from its last output."""

    def edit(w, t, p, x, state):
        if t:
            x = w.node("Mul", x, w.node("ReduceMean", state[0], axes=[1]))
        return p, x, state

    check(unrolled(rng, "GRU", 4, range(4), edit=edit), rng, tmp_path, 4, T=4, B=3)


def test_two_chains_that_read_each_other_are_not_both_claimed(rng, tmp_path):
    w, inputs, states = Writer(), {"x": (FLOAT, ("B", H))}, []
    p = [draw(rng, "GRU", H, H) for _ in "ab"]
    inputs |= {f"h{k}": (FLOAT, ("B", H)) for k in range(2)}
    a0 = step(w, "GRU", p[0], "x", ["h0"])[0]
    b0 = step(w, "GRU", p[1], "x", ["h1"])[0]
    states.append(step(w, "GRU", p[0], w.node("Abs", b0), [a0])[0])
    states.append(step(w, "GRU", p[1], w.node("Abs", a0), [b0])[0])
    check(model(w.nodes, inputs, states, w.arrays), rng, tmp_path, 3, B=3)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_are_unrolled_together(rng, tmp_path, kind):
    w, p = Writer(), [draw(rng, kind, D, H), draw(rng, kind, H, H)]
    names = [[f"{s}{k}" for s in "hc"[: 1 + (kind == "LSTM")]] for k in range(2)]
    inputs = {"x": (FLOAT, ("T", "B", D))} | {name: (FLOAT, ("B", H)) for each in names for name in each}
    states, ys = list(names), []
    for t in range(5):
        x = w.node("Gather", "x", w.array(t, np.int64), axis=0)
        for k in range(2):
            states[k] = step(w, kind, p[k], x, states[k])
            x = states[k][0]
        ys.append(w.node("Unsqueeze", x, w.integers(0)))
    proto = model(w.nodes, inputs, [w.node("Concat", *ys, axis=0), *states[0], *states[1]], w.arrays)
    check(proto, rng, tmp_path, 2, set(), T=5, B=3)


def test_a_read_beyond_the_input_is_an_error(rng):
    for indices in (range(4), range(3, -1, -1), range(-4, 0)):
        session = plugged(unrolled(rng, "GRU", 4, indices))
        x, h = rng.standard_normal((3, 2, D), dtype=np.float32), np.zeros((2, H), np.float32)
        with pytest.raises(Exception, match=r"input x \('x'\) has fewer steps than are unrolled"):
            session.run(None, {"x": x, "h0": h})
        with pytest.raises(Exception, match="has another number of sequences than the inputs before"):
            session.run(None, {"x": np.zeros((4, 2, D), np.float32), "h0": np.zeros((3, H), np.float32)})


def test_one_state_serves_all_sequences(rng, tmp_path):
    proto = unrolled(rng, "LSTM", 4, range(4))
    (given,) = (i for i in proto.graph.input if i.name == "h0")
    given.CopyFrom(helper.make_tensor_value_info("h0", FLOAT, (1, H)))
    check(proto, rng, tmp_path, 1, T=4, B=3)


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
