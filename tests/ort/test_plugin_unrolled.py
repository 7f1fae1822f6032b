"""Unrolled loops in the plug-in, compared with ONNX Runtime: a chain of equal steps is one node."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from lnrnn.onnx import report  # noqa: E402
from onnx_cells import Writer, draw, exported, step  # noqa: E402
from onnx_files import FLOAT, model  # noqa: E402
from plugin_runs import agree, alone, check, data_of, onnxruntime, options, plugged  # noqa: E402
from unrolled_steps import KINDS, WIDTHS, D, H, T, chain, finished, unrolled, xs_of  # noqa: E402

# --- the forms of inputs and outputs ------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 33])
@KINDS
def test_steps_of_one_input_are_one_node(rng, tmp_path, kind, n):
    for indices in (range(n), range(n - 1, -1, -1), range(-n, 0)):
        proto = unrolled(rng, kind, n, indices)
        for B in (1, 3, 8):
            check(proto, rng, tmp_path, 1, others=set(), T=n, B=B)


@KINDS
@WIDTHS
@pytest.mark.parametrize("joined", [False, True])
def test_steps_with_their_own_inputs_or_outputs_are_one_node(rng, tmp_path, kind, joined, width):
    for indices in (None, range(1, 6)):
        check(unrolled(rng, kind, 5, indices, joined, width=width), rng, tmp_path, 1, others=set(), T=7, B=3)


@pytest.mark.parametrize("indices", [(0, 1, 3, 4), (0, 2, 1, 3), (0, 1, 0, 1), (1, 1, 1, 1)])
def test_inputs_in_another_order_are_read_in_that_order(rng, tmp_path, indices):
    check(unrolled(rng, "GRU", 4, indices), rng, tmp_path, 1, others={"Gather"}, T=5, B=2)


def test_a_read_beyond_the_input_is_an_error(rng):
    for indices in (range(4), range(3, -1, -1), range(-4, 0), range(-1, -5, -1)):
        session = plugged(unrolled(rng, "GRU", 4, indices))
        x, h = rng.standard_normal((3, 2, D), dtype=np.float32), np.zeros((2, H), np.float32)
        with pytest.raises(Exception, match="lnrnn: .*(beyond their input|fewer steps than)"):
            session.run(None, {"x": x, "h0": h})
        with pytest.raises(Exception, match="lnrnn: .* numbers? of sequences"):
            session.run(None, {"x": np.zeros((4, 2, D), np.float32), "h0": np.zeros((3, H), np.float32)})


def test_numbers_of_sequences(rng, tmp_path):
    proto = unrolled(rng, "GRU", 3, joined=False)
    for graph_input in proto.graph.input:
        graph_input.type.tensor_type.shape.dim[0].Clear()
    for batches in ({"h0": 1}, {"x1": 1}, {"x0": 1, "x1": 1, "x2": 1}, dict.fromkeys([*xs_of(3), "h0"], 1)):
        check(proto, rng, tmp_path, 1, **batches)
    given = {i.name: np.zeros((2, i.shape[1]), np.float32) for i in alone(proto).get_inputs()}
    with pytest.raises(Exception, match="lnrnn: .* numbers? of sequences"):
        plugged(proto).run(None, given | {"x2": np.zeros((3, D), np.float32)})
    one = {name: a[:1] for name, a in given.items()}
    with pytest.raises(Exception, match="lnrnn: .*more sequences than"):
        plugged(proto).run(None, one | {"x2": given["x2"]})
    empty = {name: a[:0] for name, a in given.items()}
    assert [y.shape for y in plugged(proto).run(None, empty)] == [(0, H)] * 3


def test_an_input_that_is_a_constant(rng):
    proto = unrolled(rng, "GRU", 3, range(3))
    (x,) = (i for i in proto.graph.input if i.name == "x")
    proto.graph.input.remove(x)
    proto.graph.initializer.append(
        numpy_helper.from_array(rng.standard_normal((3, 2, D)).astype(np.float32), "x")
    )
    given, chosen = {"h0": rng.standard_normal((2, H), dtype=np.float32)}, options()
    chosen.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    agree(plugged(proto, sess_options=chosen).run(None, given), alone(proto).run(None, given))


@pytest.mark.parametrize(
    "steps, name, shape",
    [
        (1, "x0", (2, D + 1)), (1, "c0", (2, H + 1)),  # a step also takes more axes
        (2, "x0", (1, 2, D)), (2, "x0", (2, D + 1)), (2, "h0", (2, 1, H)), (2, "c0", (2, H + 1)),
    ],
)  # fmt: skip
def test_shapes_that_the_model_says_wrongly_are_errors(rng, steps, name, shape):
    """The rank of a Reshape is known at a run only."""
    w, p = Writer(), draw(rng, "LSTM", D, H)
    names = [*xs_of(steps), "h0", "c0"]
    for each in names:
        w.nodes.append(helper.make_node("Reshape", [f"{each}_given", f"{each}_shape"], [each], f"to_{each}"))
    hs, c = chain(w, "LSTM", [p] * steps, xs_of(steps))
    inputs = {f"{each}_given": (FLOAT, (None,)) for each in names}
    inputs |= {f"{each}_shape": (TensorProto.INT64, (None,)) for each in names}
    proto = model(w.nodes, inputs, [*hs, c], w.arrays)
    widths = {each: D if each[0] == "x" else H for each in names}
    proto.graph.value_info.extend(
        helper.make_tensor_value_info(each, FLOAT, ("B", widths[each])) for each in names
    )
    shapes = {each: (2, widths[each]) for each in names}
    session = plugged(proto)

    def run():
        given = {f"{each}_shape": np.array(shapes[each]) for each in names}
        given |= {f"{each}_given": np.ones(np.prod(shapes[each]), np.float32) for each in names}
        return session.run(None, given)

    assert run()[0].shape == (2, H)
    shapes[name] = shape
    with pytest.raises(Exception, match="lnrnn: .* shape.* or types? that do(es)? not fit"):
        run()


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
        last = first[-1] if together else low[0]
        check(finished(w, [ys, last], width), rng, tmp_path, 2, others=set())


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


# --- heads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("from_zeros", [False, True])
@pytest.mark.parametrize("head, dynamo", [("Linear(4, 2)", False), ("ReLU()", False), ("SiLU()", True)])
def test_a_head_may_read_each_state(rng, tmp_path, head, dynamo, from_zeros):
    """The steps are GRUs with one product for x and h, and a norm over it, as in Dreamer."""
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.product, self.norm = nn.Linear(D + H, 3 * H, bias=False), nn.LayerNorm(3 * H)
            self.head = eval(f"nn.{head}", {"nn": nn})

        def forward(self, x, *state):
            h, ys = state[0] if state else torch.zeros(2, H), []
            for x_t in x:
                r, c, u = self.norm(self.product(torch.cat([x_t, h], -1))).chunk(3, -1)
                u = (u - 1).sigmoid()
                h = u * (r.sigmoid() * c).tanh() + (1 - u) * h
                ys.append(self.head(h))
            return torch.stack(ys), h

    args = torch.zeros(T, 2, D), *([] if from_zeros else [torch.zeros(2, H)])
    proto = exported(Model(), args, dynamo)
    theirs, path = alone(proto), tmp_path / "m.onnx"
    given = {i.name: rng.standard_normal(i.shape, dtype=np.float32) for i in theirs.get_inputs()}
    agree(plugged(proto).run(None, given), theirs.run(None, given))
    path.write_bytes(data_of(proto))
    assert all(part["plugin"]["taken"] for part in report.describe(path)["parts"])
