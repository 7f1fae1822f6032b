"""Unrolled steps in the plug-in: a chain of equal steps is one call. ONNX Runtime has the same results."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

from onnx import helper  # noqa: E402

from onnx_cells import Writer, cut, draw, layer_norm, lstm, step  # noqa: E402
from onnx_files import FLOAT, model  # noqa: E402
from plugin_runs import agree, alone, plugged, profiled  # noqa: E402

D, H, T = 3, 3, 4  # D is H, so that an h may be an x
KINDS = pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])


def chain(w, kind, parameters, xs, state=("h0", "c0")):
    """Writes steps. parameters: those of each step. Returns the names of h_t, and of the last c or None."""
    hs = []
    for p, x in zip(parameters, xs, strict=True):
        state = step(w, kind, p, x, state)
        hs.append(state[0])
    return hs, state[1] if len(state) > 1 else None


def finished(w, outputs, inputs, opset=17):
    """Returns a model. inputs: those of x; states are added."""
    names = [*inputs, *(s for s in ("h0", "c0", "g0", "d0") if any(s in node.input for node in w.nodes))]
    return model(w.nodes, {name: (FLOAT, ("B", D)) for name in names}, [o for o in outputs if o], w.arrays)


def check(proto, rng, tmp_path, nodes, **batches):
    """Compares outputs. nodes: those of the plug-in. batches: the numbers of sequences of inputs, else 2."""
    theirs = alone(proto)
    given = {
        i.name: rng.standard_normal((batches.get(i.name, 2), D), dtype=np.float32)
        for i in theirs.get_inputs()
    }
    ours, ran, _ = profiled(proto, given, tmp_path)
    agree(ours, theirs.run(None, given))
    assert len(ran) == nodes


def xs_of(n):
    return [f"x{t}" for t in range(n)]


@KINDS
@pytest.mark.parametrize("n", [2, 3, 33])
def test_a_chain_is_one_node(rng, tmp_path, kind, n):
    w, p = Writer(), draw(rng, kind, D, H)
    hs, c = chain(w, kind, [p] * n, xs_of(n))
    check(finished(w, [*hs, c], xs_of(n)), rng, tmp_path, 1)


@KINDS
def test_only_the_last_state_is_an_output(rng, tmp_path, kind):
    w, p = Writer(), draw(rng, kind, D, H)
    hs, _ = chain(w, kind, [p] * T, xs_of(T))
    check(finished(w, hs[-1:], xs_of(T)), rng, tmp_path, 1)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])  # an RNN's step is known by the weights of another one
def test_other_weights_in_each_step(rng, tmp_path, kind):
    w = Writer()
    hs, c = chain(w, kind, [draw(rng, kind, D, H) for _ in range(T)], xs_of(T))
    check(finished(w, [*hs, c], xs_of(T)), rng, tmp_path, T)


@pytest.mark.parametrize("name", ["weight_ih", "weight_hh", "bias_ih"])
def test_one_other_number_ends_a_chain(rng, tmp_path, name):
    w, p = Writer(), draw(rng, "LSTM", D, H)
    other = p | {name: np.array(p[name])}
    other[name].flat[5] += 1
    hs, c = chain(w, "LSTM", [p, p, other, p, p], xs_of(5))
    check(finished(w, [*hs, c], xs_of(5)), rng, tmp_path, 3)


def test_another_eps_ends_a_chain(rng, tmp_path):
    w = Writer()
    arrays = [w.array(rng.standard_normal(shape)) for shape in ((D, 4 * H), (H, 4 * H))]
    gain, bias = rng.standard_normal((2, 4 * H), dtype=np.float32)
    h, c, hs = "h0", "c0", []
    for t, eps in enumerate([1e-5, 1e-5, 1e-3, 1e-3]):
        a = w.node("Add", w.node("MatMul", f"x{t}", arrays[0]), w.node("MatMul", h, arrays[1]))
        gates = cut(w, layer_norm(w, a, gain, bias, eps), 4, H)
        h, c = lstm(w, dict(zip("ifgo", gates, strict=True)), c)
        hs.append(h)
    check(finished(w, [*hs, c], xs_of(T)), rng, tmp_path, 2)


def test_a_cell_state_that_is_read_ends_a_chain(rng, tmp_path):
    w, p = Writer(), draw(rng, "LSTM", D, H)
    hs, c = chain(w, "LSTM", [p] * 2, xs_of(2))
    more, last = chain(w, "LSTM", [p] * 2, xs_of(T)[2:], (hs[-1], c))
    check(finished(w, [*hs, *more, c, last], xs_of(T)), rng, tmp_path, 2)


@KINDS
def test_an_input_that_needs_the_state_before_ends_a_chain(rng, tmp_path, kind):
    """As in a decoder, whose x is computed from its last output."""
    w, p = Writer(), draw(rng, kind, D, H)
    state = "h0", "c0"
    x, hs = "x0", []
    for _ in range(T):
        state = step(w, kind, p, x, state)
        hs.append(state[0])
        x = w.node("Abs", state[0])
    check(finished(w, [*hs, *state[1:]], ["x0"]), rng, tmp_path, T)


@KINDS
def test_layers_are_chains(rng, tmp_path, kind):
    for together in (False, True):  # all steps of a layer first, or all layers of a step
        w, p, q = Writer(), draw(rng, kind, D, H), draw(rng, kind, H, H)
        low, high, hs = ("h0", "c0"), ("g0", "d0"), []
        if together:
            first, _ = chain(w, kind, [p] * T, xs_of(T), low)
            hs, _ = chain(w, kind, [q] * T, first, high)
        else:
            for x in xs_of(T):
                low = step(w, kind, p, x, low)
                high = step(w, kind, q, low[0], high)
                hs.append(high[0])
        check(finished(w, hs, xs_of(T)), rng, tmp_path, 2)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_two_chains_that_need_each_other(rng, tmp_path, kind):
    """Each layer reads results of the other. One may be a chain, but not both."""
    w, p, q = Writer(), draw(rng, kind, D, H), draw(rng, kind, D, H)
    a, b = ("h0", "c0"), ("g0", "d0")
    a, b = step(w, kind, p, "x0", a), step(w, kind, q, "x1", b)
    for _ in range(2):
        a, b = step(w, kind, p, w.node("Abs", b[0]), a), step(w, kind, q, w.node("Neg", a[0]), b)
    proto = finished(w, [a[0], b[0]], ["x0", "x1"])
    given = {i.name: rng.standard_normal((2, D), dtype=np.float32) for i in alone(proto).get_inputs()}
    agree(plugged(proto).run(None, given), alone(proto).run(None, given))


@pytest.mark.parametrize("late", [False, True])
def test_two_chains_of_which_one_reads_the_other(rng, tmp_path, late):
    """The second chain reads the first one's last state, in its first or in its last step."""
    w, p, q = Writer(), draw(rng, "GRU", D, H), draw(rng, "GRU", D, H)
    hs, _ = chain(w, "GRU", [p] * T, xs_of(T), ("h0",))
    inputs = xs_of(T)
    inputs[-1 if late else 0] = hs[-1]
    more, _ = chain(w, "GRU", [q] * T, inputs, ("g0",))
    check(finished(w, [*hs, *more], xs_of(T)), rng, tmp_path, 2)


def test_an_input_that_a_subgraph_computes_from_the_state(rng, tmp_path):
    w, p = Writer(), draw(rng, "GRU", D, H)
    (h,) = step(w, "GRU", p, "x0", ("h0",))
    branches = [
        helper.make_graph([helper.make_node(op, [h], [op])], op, [],
                          [helper.make_tensor_value_info(op, FLOAT, None)]) for op in ("Neg", "Abs")
    ]  # fmt: skip
    w.nodes.append(helper.make_node("If", ["flag"], ["x1"], then_branch=branches[0], else_branch=branches[1]))
    (h,) = step(w, "GRU", p, "x1", (h,))
    proto = finished(w, [h], ["x0"])
    proto.graph.input.append(helper.make_tensor_value_info("flag", 9, ()))
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
    check(finished(w, [*one, *two], xs_of(T)), rng, tmp_path, 3)


def test_numbers_of_sequences(rng, tmp_path):
    w, p = Writer(), draw(rng, "GRU", D, H)
    hs, _ = chain(w, "GRU", [p] * 3, xs_of(3))
    proto = finished(w, hs, xs_of(3))
    for graph_input in proto.graph.input:
        graph_input.type.tensor_type.shape.dim[0].Clear()
    for batches in (
        {"h0": 1},
        {"x1": 1},
        {"x0": 1, "x1": 1, "x2": 1},
        dict.fromkeys(["x0", "x1", "x2", "h0"], 1),
    ):
        check(proto, rng, tmp_path, 1, **batches)
    given = {name: np.zeros((2, D), np.float32) for name in ("x0", "x1", "x2", "h0")}
    with pytest.raises(Exception, match="another number of sequences than the inputs before"):
        plugged(proto).run(None, given | {"x2": np.zeros((3, D), np.float32)})
    one = {name: a[:1] for name, a in given.items()}
    with pytest.raises(Exception, match="has more sequences than the steps before"):
        plugged(proto).run(None, one | {"x2": given["x2"]})
    empty = {name: np.zeros((0, D), np.float32) for name in given}
    assert [y.shape for y in plugged(proto).run(None, empty)] == [(0, H)] * 3
