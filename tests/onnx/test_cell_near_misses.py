"""Nodes that look like a step of a cell and are none have no network."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

pytest.importorskip("onnx_ir")

from lnrnn.onnx.parts import parts  # noqa: E402
from onnx_cells import Writer, affine, body, cut, draw, layer_norm, lstm, step, step_model  # noqa: E402
from onnx_files import FLOAT, model  # noqa: E402
from onnx_loops import BOOL, keras_loop, loop, scan  # noqa: E402

D, H = 3, 4


def networks(proto):
    return [part.network for part in parts(proto) if part.network is not None]


def lstm_step(rng, sigmoids="ifo", tanhs="gc", old_c="c0", order="ifgo", half=1.0):
    """A step whose functions and values may be other than an LSTM's. Returns the writer and names by role."""
    w, p = Writer(rng), draw(rng, "LSTM", D, H)
    a = w.node("Add", affine(w, "x", p["weight_ih"], p["bias_ih"]), affine(w, "h0", p["weight_hh"], None))
    v = dict(zip(order, cut(w, a, 4, H), strict=True)) | {"a": a}
    for gate in "ifgo":
        op = "Sigmoid" if gate in sigmoids else "Tanh" if gate in tanhs else "Softsign"
        v[f"f{gate}"] = w.node(op, v[gate])
    new = w.node("Mul", v["fi"], v["fg"])
    if half != 1:
        new = w.node("Mul", new, w.array(half))
    v["c"] = w.node("Add", w.node("Mul", v["ff"], old_c), new)
    v["tc"] = w.node("Tanh" if "c" in tanhs else "Softsign", v["c"])
    v["h"] = w.node("Mul", v["fo"], v["tc"])
    return w, v


def test_the_step_without_a_fault_matches(rng):
    w, v = lstm_step(rng)
    assert len(networks(step_model(w, [v["h"], v["c"]], D, H))) == 1


@pytest.mark.parametrize("fault", [
    dict(sigmoids="if"), dict(sigmoids="fo"), dict(sigmoids="io"), dict(sigmoids="ifog"), dict(tanhs="c"),
    dict(tanhs="g"), dict(half=0.5),
], ids=str)  # fmt: skip
def test_another_function_is_no_lstm(rng, fault):
    w, v = lstm_step(rng, **fault)
    assert not networks(step_model(w, [v["h"], v["c"]], D, H))


def test_h_in_place_of_c_is_no_lstm(rng):
    w, v = lstm_step(rng, old_c="h0")
    assert not networks(step_model(w, [v["h"], v["c"]], D, H))


@pytest.mark.parametrize("name", ["a", "i", "ff", "fg", "tc"])
def test_a_value_inside_that_is_read_outside_is_no_lstm(rng, name):
    """The reason names the reader."""
    w, v = lstm_step(rng)
    w.nodes.append(helper.make_node("Neg", [v[name]], ["more"], "reader"))
    (part,) = parts(step_model(w, [v["h"], v["c"], "more"], D, H))
    assert part.network is None and "node 'reader' reads a value inside of the step" in part.reason
    w, v = lstm_step(rng)
    (part,) = parts(step_model(w, [v["h"], v["c"], v[name]], D, H))
    assert part.network is None and f"the output {v[name]!r} reads a value inside" in part.reason


def gates_of(rng, edit):
    """A model of an LSTM step from the pre-activations that `edit` returns."""
    w, p = Writer(rng), draw(rng, "LSTM", D, H)
    x_, h_ = affine(w, "x", p["weight_ih"], p["bias_ih"]), affine(w, "h0", p["weight_hh"], None)
    gates = edit(w, x_, h_, p)
    i, f, o = (w.node("Sigmoid", gates[k]) for k in (0, 1, 3))
    c = w.node("Add", w.node("Mul", f, "c0"), w.node("Mul", i, w.node("Tanh", gates[2])))
    return step_model(w, [w.node("Mul", o, w.node("Tanh", c)), c], D, H)


def plain(w, x_, h_, p):
    return cut(w, w.node("Add", x_, h_), 4, H)


def without_h(w, x_, h_, p):
    return [*cut(w, w.node("Add", x_, h_), 4, H)[:3], cut(w, x_, 4, H)[3]]


def h_twice(w, x_, h_, p):
    return cut(w, w.node("Add", w.node("Add", x_, h_), affine(w, "h0", p["weight_hh"] * 2, None)), 4, H)


def x_is_h(w, x_, h_, p):
    return cut(w, w.node("Add", affine(w, "h0", p["weight_hh"] * 2, None), h_), 4, H)


def c_in_a_gate(w, x_, h_, p):
    """A peephole."""
    i, f, g, o = plain(w, x_, h_, p)
    return [i, f, g, w.node("Add", o, w.node("Mul", "c0", w.array(np.ones(H))))]


def uneven(w, x_, h_, p):
    """A cut that does not begin at a gate."""
    a = w.node("Add", x_, h_)
    ends = [(0, H), (H - 1, 2 * H - 1), (2 * H, 3 * H), (3 * H, 4 * H)]
    return [w.node("Slice", a, w.integers(b), w.integers(e), w.integers(1)) for b, e in ends]


def matrix_of_bias(w, x_, h_, p):
    """A bias that differs between sequences."""
    return cut(w, w.node("Add", w.node("Add", x_, h_), w.array(np.arange(8 * H).reshape(2, -1))), 4, H)


def one_norm_of_two_gates(w, x_, h_, p):
    parts_of = cut(w, w.node("Add", x_, h_), 2, 2 * H)
    return [g for a in parts_of for g in cut(w, layer_norm(w, a, np.ones(2 * H), None), 2, H)]


def two_eps(w, x_, h_, p):
    a = layer_norm(w, x_, np.ones(4 * H), None, 1e-5)
    return cut(w, w.node("Add", a, layer_norm(w, h_, np.ones(4 * H), None, 1e-3)), 4, H)


def norm_of_x_alone(w, x_, h_, p):
    return cut(w, w.node("Add", layer_norm(w, x_, np.ones(4 * H), None), h_), 4, H)


def twice(w, x_, h_, p):
    """Two gates from one part of a norm."""
    i, f, g, _ = cut(w, layer_norm(w, w.node("Add", x_, h_), np.ones(4 * H), None), 4, H)
    return [i, f, g, i]


def test_the_gates_without_a_fault_match(rng):
    assert len(networks(gates_of(rng, plain))) == 1


@pytest.mark.parametrize("edit", [
    without_h, h_twice, x_is_h, c_in_a_gate, matrix_of_bias, one_norm_of_two_gates, two_eps,
    norm_of_x_alone, twice,
], ids=lambda f: f.__name__)  # fmt: skip
def test_other_gates_are_no_lstm(rng, edit):
    assert not networks(gates_of(rng, edit))


def test_a_cut_elsewhere_takes_the_rows_where_it_is(rng):
    """The rows of a gate may begin anywhere without a norm."""
    (network,) = networks(gates_of(rng, uneven))
    assert network.hidden_size == H


def test_a_missing_bias_is_zero(rng):
    """A cell without biases, and with a bias of one gate."""

    def one(w, x_, h_, p):
        i, f, g, o = cut(w, w.node("Add", affine(w, "x", p["weight_ih"], None), h_), 4, H)
        return [i, w.node("Add", f, w.array(np.full(H, 3.0))), g, o]

    (network,) = networks(gates_of(rng, one))
    assert np.array_equal(network.bias_ih_l0, np.repeat(np.float32([0, 3, 0, 0]), H))


@pytest.mark.parametrize("fault", ["r of another gate", "no r", "r twice", "z twice", "old of x"])
def test_another_gru(rng, fault):
    w, p = Writer(rng), draw(rng, "GRU", H, H)
    x_, h_ = affine(w, "x", p["weight_ih"], p["bias_ih"]), affine(w, "h0", p["weight_hh"], p["bias_hh"])
    x, h = cut(w, x_, 3, H), cut(w, h_, 3, H)
    r, z = (w.node("Sigmoid", w.node("Add", x[k], h[k])) for k in (0, 1))
    inner = {"r of another gate": lambda: w.node("Mul", z, h[2]), "no r": lambda: h[2],
             "r twice": lambda: w.node("Mul", r, w.node("Mul", r, h[2]))}.get(
                 fault, lambda: w.node("Mul", r, h[2]))()  # fmt: skip
    n = w.node("Tanh", w.node("Add", x[2], inner))
    old = w.node("Mul", z, "x" if fault == "old of x" else "h0")
    rest = n if fault == "z twice" else w.node("Mul", w.node("Sub", w.array(1.0), z), n)
    proto = step_model(w, [w.node("Add", rest, old)], H, H)
    found = networks(proto)
    if fault == "no r":  # an LSTM's gates in a GRU: a LiGRU has no r either, but the same product in z and n
        assert not found or type(found[0]).__name__ == "LiGRU"
    else:
        assert not found


def test_an_attention_is_no_rnn(rng):
    """tanh(W q + U k) of values that are no states."""
    w, p = Writer(rng), draw(rng, "RNN", H, H)
    query = w.node("Relu", "x")
    keys = w.node("Relu", "h0")
    new = step(w, "RNN", p, query, (keys,))
    assert not parts(step_model(w, [w.node("ReduceSum", new[0])], H, H))


def test_float16_is_refused(rng):
    w, p = Writer(rng), draw(rng, "LSTM", D, H)
    new = step(w, "LSTM", p, "x", ("h0", "c0"))
    w.arrays = {name: a.astype(np.float16) if a.dtype == np.float32 else a for name, a in w.arrays.items()}
    assert not networks(step_model(w, new, D, H))


def two_steps(rng, kind="LSTM", size=3):
    """A model of two steps with different weights, for which x and h have the same size."""
    w, states, ys = Writer(rng), ("h0", "c0"), []
    for t in range(2):
        x = w.node("Gather", "x", w.array(t, np.int64), axis=0)
        states = step(w, kind, draw(rng, kind, size, size), x, states)
        ys.append(w.node("Unsqueeze", states[0], w.integers(0)))
    proto = step_model(w, [w.node("Concat", *ys, axis=0), *states], size, size)
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, (2, "B", size)))
    return proto


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_step_that_takes_the_states_of_another_is_no_layer_above_it(rng, kind):
    for part in parts(two_steps(rng, kind)):
        assert part.network.num_layers == 1 and part.x.producer().op_type == "Gather"


def test_a_ligru_with_hard_sigmoids_has_no_network(rng):
    w = Writer(rng)
    new = step(w, "LiGRU", draw(rng, "LiGRU", D, H), "x", ("h0",))
    for node in w.nodes:
        if node.op_type == "Sigmoid":
            node.op_type = "HardSigmoid"
    (part,) = parts(step_model(w, new, D, H))
    assert part.network is None
    assert part.reason == "the gates of an LiGRU with norm=None must be sigmoid, got hard_sigmoid"


def test_a_norm_with_hard_sigmoids_has_no_network(rng):
    w, p = Writer(rng), draw(rng, "LSTM", D, H)
    a = w.node("Add", affine(w, "x", p["weight_ih"], None), affine(w, "h0", p["weight_hh"], None))
    gates = dict(zip("ifgo", cut(w, layer_norm(w, a, np.ones(4 * H), None), 4, H), strict=True))
    (part,) = parts(step_model(w, lstm(w, gates, "c0", "HardSigmoid"), D, H))
    assert part.network is None and "an LSTM with a norm must be sigmoid" in part.reason


# --- loops --------------------------------------------------------------------------------------------------


def body_of(proto):
    """The body of the only Loop or Scan."""
    (graph,) = (a.g for node in proto.graph.node for a in node.attribute if a.name == "body")
    return graph


def only_steps(proto):
    """Asserts that the Loop is no part, and that the step inside says why. Returns the reason."""
    (part,) = parts(proto)
    assert part.kind.endswith("step")
    return " ".join(part.warnings)


def test_states_that_are_exchanged_are_no_loop(rng):
    proto = scan(rng, "LSTM")
    graph = body_of(proto)
    graph.input[0].name, graph.input[1].name = graph.input[1].name, graph.input[0].name
    assert "not carried to the next step" in only_steps(proto)


def test_a_state_that_stays_is_no_loop(rng):
    proto = scan(rng, "GRU")
    graph = body_of(proto)
    graph.output[0].name = "h0_in"
    assert "passes the states of no step on" in only_steps(proto)


def test_another_output_is_no_loop(rng):
    proto = scan(rng, "GRU")
    graph = body_of(proto)
    graph.node[-1].op_type = "Neg"
    assert "is not h" in only_steps(proto)


def masked(rng, mask, axis=None):
    """A Scan whose states a mask of some shape keeps. axis: that of an Unsqueeze of the mask of one step."""
    w = Writer(rng)
    new = step(w, "GRU", draw(rng, "GRU", D, H), "x_t", ["h_in"])
    row = "m_t" if axis is None else w.node("Unsqueeze", "m_t", w.integers(axis))
    h, y = w.node("Where", row, new[0], "h_in"), w.node("Where", row, new[0], w.array(0.0))
    given = {"h_in": (FLOAT, ("B", H)), "x_t": (FLOAT, ("B", D)), "m_t": (BOOL, mask[1:])}
    node = helper.make_node("Scan", ["h0", "x", "mask"], ["h", "y"], num_scan_inputs=2,
                            body=body(w, given, {h: FLOAT, y: FLOAT}))  # fmt: skip
    given = {"x": (FLOAT, ("T", "B", D)), "h0": (FLOAT, ("B", H)), "mask": (BOOL, mask)}
    return model([node], given, ["y", "h"])


@pytest.mark.parametrize("mask, axis", [(("T", "B"), 1), (("T", "B"), -1), (("T", "B", 1), None)])
def test_a_mask_with_one_number_for_each_step_and_sequence(rng, mask, axis):
    (part,) = parts(masked(rng, mask, axis))
    assert part.kind == "Scan of GRU" and part.mask.name == "mask"


@pytest.mark.parametrize("mask, axis", [
    (("T", "B"), 0), (("T", "B"), None), (("T", "B", H), None), (("T", "B", "any"), None),
    (("T", 1, "B"), None),
])  # fmt: skip
def test_a_mask_with_a_number_for_each_unit_is_no_loop(rng, mask, axis):
    """If there are as many sequences as units, ONNX permits a mask (1, B) in place of (B, 1)."""
    assert "the mask" in only_steps(masked(rng, mask, axis)) or axis == 0


def test_a_scan_of_another_domain_is_no_loop(rng):
    proto = scan(rng, "GRU")
    proto.graph.node[0].domain = "custom"
    del proto.graph.node[0].attribute[1:]
    only_steps(proto)


@pytest.mark.parametrize("op", ["Concat", "Unsqueeze", "Gather"])
def test_nodes_of_another_domain_are_no_steps_in_a_row(rng, op):
    w, p, states, ys = Writer(rng), draw(rng, "GRU", D, H), ("h0",), []
    for t in range(3):
        x = w.node("Gather", "x", w.array(t, np.int64), axis=0)
        states = step(w, "GRU", p, x, states)
        ys.append(w.node("Unsqueeze", states[0], w.integers(0)))
    proto = step_model(w, [w.node("Concat", *ys, axis=0), *states], D, H)
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, (3, "B", D)))
    assert [part.kind for part in parts(proto)] == ["3 steps of GRU"]
    for node in proto.graph.node:
        node.domain = "custom" if node.op_type == op else ""
    assert {part.kind for part in parts(proto)} == {"GRU step"}


def test_a_step_of_three_axes_has_no_network(rng):
    """The weights are those of an LSTM, but lnrnn would take the first axis for time."""
    w = Writer(rng)
    new = step(w, "LSTM", draw(rng, "LSTM", D, H), "x", ("h0", "c0"), product="MatMul")
    proto = step_model(w, new, D, H)
    for value, size in zip(proto.graph.input, (D, H, H), strict=True):
        value.CopyFrom(helper.make_tensor_value_info(value.name, FLOAT, ("A", "B", size)))
    (part,) = parts(proto)
    assert part.network is None and "'x' has 3 axes, where a step has 2" in part.reason


def test_an_output_twice_is_no_loop(rng):
    """ONNX Runtime computes other numbers if a body has the same value as a state and as an output."""
    proto = scan(rng, "GRU")
    graph = body_of(proto)
    graph.output[1].name = graph.output[0].name
    assert "its body has an output twice" in only_steps(proto)


@pytest.mark.parametrize("perm", [[1, 0], [1, 0, 2, 3], [0]])
def test_a_transpose_of_other_axes_after_a_loop(rng, perm):
    proto, _ = keras_loop(rng, "GRU", backwards=True)
    next(node for node in proto.graph.node if node.op_type == "Transpose").attribute[0].ints[:] = perm
    assert not any(part.flipped or (part.network and part.network.reverse) for part in parts(proto))


@pytest.mark.parametrize("index", ["t - 1", "2 t", "0"])
def test_other_elements_of_x_are_no_loop(rng, index):
    proto = loop(rng, "GRU", join="scan output")
    graph = body_of(proto)
    gather = next(node for node in graph.node if node.op_type == "Gather")
    graph.initializer.append(helper.make_tensor("two", 7, (), [2]))
    graph.initializer.append(helper.make_tensor("nought", 7, (), [0]))
    op = {"t - 1": ("Sub", ["t", "two"]), "2 t": ("Mul", ["t", "two"]), "0": ("Mul", ["t", "nought"])}[index]
    graph.node.insert(0, helper.make_node(op[0], op[1], ["other"]))
    gather.input[1] = "other"
    assert "elements of" in only_steps(proto)


def test_fewer_steps_than_x_has_are_no_loop(rng):
    proto = loop(rng, "GRU", join="scan output")
    at = next(k for k, n in enumerate(proto.graph.node) if n.op_type == "Loop")
    proto.graph.initializer.append(helper.make_tensor("one", 7, (), [1]))
    proto.graph.node.insert(at, helper.make_node("Sub", ["T", "one"], ["T - 1"]))
    proto.graph.node[at + 1].input[0] = "T - 1"
    assert "its number of steps is not the length of 'x'" in only_steps(proto)


def test_a_condition_of_the_state_is_no_loop(rng):
    proto = loop(rng, "GRU", join="scan output")
    graph = body_of(proto)
    new = graph.output[1].name
    graph.node.extend([
        helper.make_node("ReduceMax", [new], ["top"], keepdims=0),
        helper.make_node("Less", ["top", "top"], ["stop"]),
    ])  # fmt: skip
    graph.output[0].name = "stop"
    assert "condition" in only_steps(proto)


def test_a_mask_of_other_steps_is_no_loop(rng):
    proto, _ = keras_loop(rng, "GRU")
    graph = body_of(proto)
    gathers = [node for node in graph.node if node.op_type == "Gather"]
    graph.initializer.append(helper.make_tensor("nought", 6, (), [0]))
    next(node for node in gathers if node.input[0] == "mr").input[1] = "nought"
    assert not any(part.kind.startswith("Loop") for part in parts(proto))


def test_steps_of_different_weights_are_no_loop(rng):
    """Three steps, the last one with other weights: two steps of a network, and one step alone."""
    w, p = Writer(rng), draw(rng, "GRU", D, H)
    h, ys = "h0", []
    for t in range(3):
        x = w.node("Gather", "x", w.array(t, np.int64), axis=0)
        (h,) = step(w, "GRU", p if t < 2 else draw(rng, "GRU", D, H), x, (h,))
        ys.append(w.node("Unsqueeze", h, w.integers(0)))
    y = w.node("Concat", *ys, axis=0)
    proto = step_model(w, [y, h], D, H)
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, (3, "B", D)))
    found = parts(proto)
    assert all(part.kind == "GRU step" for part in found)
    assert len({part.network.weight_ih_l0.tobytes() for part in found}) == 2


def test_a_step_of_an_unrolled_loop_that_is_read_outside(rng):
    """The state of a step between is an output, so the steps are taken one by one."""
    w, p = Writer(rng), draw(rng, "GRU", D, H)
    states = ["h0"]
    for t in range(3):
        x = w.node("Gather", "x", w.array(t, np.int64), axis=0)
        states += step(w, "GRU", p, x, states[-1:])
    proto = step_model(w, states[2:], D, H)
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, (3, "B", D)))
    (part,) = parts(proto)  # with equal weights: one part with three paths
    assert part.kind == "GRU step" and len(part.paths) == 3
    assert "is read outside of the steps" in part.warnings[0]
