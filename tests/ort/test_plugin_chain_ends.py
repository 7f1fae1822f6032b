"""Unrolled loops that are no whole chain, or nearly one, in the plug-in, compared with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from onnx_cells import Writer, affine, cut, draw, layer_norm, lstm, step  # noqa: E402
from onnx_files import FLOAT, model  # noqa: E402
from plugin_runs import agree, alone, onnxruntime, options, plugged  # noqa: E402
from unrolled_steps import KINDS, WIDTHS, D, H, T, agrees, chain, check, finished, unrolled, xs_of  # noqa: E402

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


def stacked(w, hs, axis=0, into=None):
    ys = [w.node("Unsqueeze", h, w.integers(axis)) for h in hs]
    return w.node("Concat", *ys, axis=axis if into is None else into)


def two_that_share(w, hs):
    """Returns two Concats, each with half of all h at their places."""
    ys = [w.node("Unsqueeze", h, w.integers(0)) for h in hs]
    more = [w.node("Unsqueeze", f"g{t}", w.integers(0)) for t in range(len(hs))]
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


@pytest.mark.parametrize("change", ["axis", "value", "one more reader"])
def test_inputs_of_another_axis_or_value(rng, tmp_path, change):
    w, p, xs = Writer(), draw(rng, "GRU", D, H), []
    for t in range(3):
        of = "z" if t == 1 and change == "value" else "x"
        xs.append(w.node("Gather", of, w.array(t, np.int64), axis=int(change == "axis")))
    hs, _ = chain(w, "GRU", [p] * 3, xs)
    more = [w.node("Abs", xs[0])] if change == "one more reader" else []
    inputs = {name: (FLOAT, (3, 3, D)) for name in "xz"[: 1 + (change == "value")]}
    agrees(model(w.nodes, inputs | {"h0": (FLOAT, (3, H))}, [*hs, *more], w.arrays), rng, tmp_path)


@pytest.mark.parametrize("change", ["order of gates", "a bias", "hard sigmoids", "c for a subgraph"])
def test_another_step_in_a_chain(rng, tmp_path, change):
    w, p, state, hs = Writer(), draw(rng, "LSTM", D, H), ("h0", "c0"), []
    names = {key: w.array(a) for key, a in p.items()}
    for t in range(4):
        sides = ((f"x{t}", "ih"), (state[0], "hh"))
        x_, h_ = (w.node("Gemm", v, names[f"weight_{k}"], transB=1) for v, k in sides)
        a = w.node("Add", x_, h_)
        if t == 2 and change == "a bias":
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


def test_another_function(rng, tmp_path):
    w, p, state, hs = Writer(), draw(rng, "RNN", D, H), ("h0",), []
    for t in range(T):
        state = step(w, "RNN", p, f"x{t}", state, f="Relu" if t > 1 else "Tanh")
        hs += state
    agrees(finished(w, hs), rng, tmp_path)


@pytest.mark.parametrize("ranks", [(3, 3, 3, 2), (2, 3, 2, 2), (3, 2, 2, 2), (2, 2, 1, 2), (2, 2, 2, 1)])
def test_inputs_and_states_with_more_or_fewer_axes(rng, tmp_path, ranks):
    """ranks: of x0, x1, h0 and c0."""
    w, state, p, hs = Writer(), ("h0", "c0"), draw(rng, "LSTM", D, H), []
    for t in range(2):
        state = step(w, "LSTM", p, f"x{t}", state, product="MatMul")
        hs.append(state[0])
    inputs = {
        name: (FLOAT, (2, "B", width)[3 - rank :])
        for name, rank, width in zip(("x0", "x1", "h0", "c0"), ranks, (D, D, H, H), strict=True)
    }
    agrees(model(w.nodes, inputs, hs, w.arrays), rng, tmp_path, B=3)


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
