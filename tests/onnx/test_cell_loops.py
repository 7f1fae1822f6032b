"""Loop and Scan nodes whose body is a step of a cell, such as those of masked layers of Keras by tf2onnx."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

pytest.importorskip("onnx_ir")

from lnrnn.onnx.graph.reading import read  # noqa: E402
from lnrnn.onnx.parts import parts  # noqa: E402
from lnrnn.onnx.proof import prove  # noqa: E402
from onnx_cells import Writer, body, draw, step  # noqa: E402
from onnx_files import FLOAT, INT32, model  # noqa: E402
from onnx_runs import run  # noqa: E402

BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
D, H = 3, 4


def only_part(proto):
    (part,) = parts(proto)
    assert part.network is not None, part.reason
    assert prove(part, read(proto)) == ""
    return part


def states_of(kind):
    return ["h", "c"][: 2 if kind == "LSTM" else 1]


# --- Scan ---------------------------------------------------------------------------------------------------


def scan(rng, kind, back=(0, 0), axes=(0, 0), outputs=None, layers=1, p=None):
    """A model of one Scan. back: the directions of x and y. axes: those of steps in x and y."""
    w, new, x = Writer(rng), [], "x_t"
    names = [f"{name}{k}" for k in range(layers) for name in states_of(kind)]
    for k in range(layers):
        own = names[k * len(names) // layers : (k + 1) * len(names) // layers]
        new += step(w, kind, p or draw(rng, kind, D if k == 0 else H, H), x, [f"{name}_in" for name in own])
        x = new[-len(own)]
    w.nodes.append(helper.make_node("Identity", [x], ["y_t"]))
    inputs = {f"{name}_in": (FLOAT, ("B", H)) for name in names} | {"x_t": (FLOAT, ("B", D))}
    graph = body(w, inputs, dict.fromkeys([*new, "y_t"], FLOAT))
    node = helper.make_node(
        "Scan", [f"{name}_0" for name in names] + ["x"], [f"{name}_n" for name in names] + ["y"], "scan",
        body=graph, num_scan_inputs=1, scan_input_directions=[back[0]], scan_output_directions=[back[1]],
        scan_input_axes=[axes[0]], scan_output_axes=[axes[1]],
    )  # fmt: skip
    given = {f"{name}_0": (FLOAT, ("B", H)) for name in names}
    given |= {"x": (FLOAT, ("B", "T", D) if axes[0] else ("T", "B", D))}
    return model([node], given, outputs or ["y", *(f"{name}_n" for name in names)])


@pytest.mark.parametrize("back", [(0, 0), (1, 1), (1, 0), (0, 1)], ids=str)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "LiGRU"])
def test_a_scan_is_a_network(rng, kind, back):
    p = draw(rng, kind, D, H)
    part = only_part(scan(rng, kind, back, p=p))
    assert part.kind == f"Scan of {kind}" and [node.name for node in part.nodes] == ["scan"]
    assert part.network.reverse == bool(back[0]) and part.flipped == (back[0] != back[1])
    assert np.array_equal(part.network.weight_ih_l0, p["weight_ih"])
    assert not part.baked and not part.warnings


@pytest.mark.parametrize("axes", [(1, 0), (0, 1), (1, 1)], ids=str)
def test_a_scan_of_other_axes(rng, axes):
    part = only_part(scan(rng, "LSTM", axes=axes))
    assert part.axes["x"] == ("BTI" if axes[0] else "TBI") and part.axes["y"] == ("BTH" if axes[1] else "TBH")


def test_a_scan_of_two_layers(rng):
    part = only_part(scan(rng, "GRU", layers=2))
    assert part.network.num_layers == 2 and [v.name for v in part.h0] == ["h0_0", "h1_0"]


def test_outputs_that_no_node_uses_are_none(rng):
    part = only_part(scan(rng, "LSTM", outputs=["y"]))
    assert part.h == (None,) and part.c == (None,)
    part = only_part(scan(rng, "LSTM", outputs=["c0_n"]))
    assert part.y is None and part.h == (None,) and part.c[0].name == "c0_n"


def test_scans_of_both_directions_and_two_layers_are_one_network(rng):
    """y of both directions is concatenated, and the next layer reads it."""
    nodes, arrays, given, x, width = [], {}, {"x": (FLOAT, ("T", "B", D))}, "x", D
    for layer in range(2):
        for k in range(2):
            w, name = Writer(rng, f"{layer}{k}"), f"{layer}{k}"
            new = step(w, "GRU", draw(rng, "GRU", width, H), "x_t", ["h_in"])
            w.nodes.append(helper.make_node("Identity", [new[0]], ["y_t"]))
            graph = body(
                w, {"h_in": (FLOAT, ("B", H)), "x_t": (FLOAT, ("B", width))}, {new[0]: FLOAT, "y_t": FLOAT}
            )
            nodes.append(helper.make_node(
                "Scan", [f"h0{name}", x], [f"h{name}", f"y{name}"], name, body=graph, num_scan_inputs=1,
                scan_input_directions=[k], scan_output_directions=[k],
            ))  # fmt: skip
            given[f"h0{name}"] = (FLOAT, ("B", H))
        nodes.append(helper.make_node("Concat", [f"y{layer}0", f"y{layer}1"], [f"y{layer}"], axis=-1))
        x, width = f"y{layer}", 2 * H
    part = only_part(model(nodes, given, ["y1", "h00", "h01", "h10", "h11"], arrays))
    assert part.network.bidirectional and part.network.num_layers == 2 and len(part.nodes) == 6


# --- Loop ---------------------------------------------------------------------------------------------------


def loop(rng, kind, *, index="t", trip="shape", join="sequence", rnn_node=False, opset=17, extra=()):
    """A model of one Loop, as a scripted torch module becomes.

    index: "t", or "T - 1 - t". trip: "shape", or a number. join: "sequence", "front of sequence", or "scan
    output". rnn_node: whether the step is a node of ONNX.
    """
    names = states_of(kind)
    w = Writer(rng)
    at = "t"
    if index != "t":
        at = w.node("Sub", w.node("Sub", "T", w.array(1, np.int64)), "t")
    x = w.node("Gather", "x", at, axis=0)
    if rnn_node:
        G = {"LSTM": 4, "GRU": 3}[kind]
        zero = w.integers(0)
        arrays = [
            w.array(rng.uniform(-0.5, 0.5, shape)) for shape in ((1, G * H, D), (1, G * H, H), (1, 2 * G * H))
        ]
        olds = [w.node("Unsqueeze", f"{name}_in", zero) for name in names]
        options = {} if kind == "LSTM" else dict(linear_before_reset=1)
        given = [w.node("Unsqueeze", x, zero), *arrays, "", *olds]
        results = w.node(kind, *given, n=1 + len(names), hidden_size=H, **options)
        new = [w.node("Squeeze", v, zero) for v in results[1:]]
    else:
        new = list(step(w, kind, draw(rng, kind, D, H), x, [f"{name}_in" for name in names]))
    w.nodes.append(helper.make_node("Identity", ["go"], ["go_out"]))
    inputs = {"t": (INT64, ()), "go": (BOOL, ())} | {f"{name}_in": (FLOAT, ("B", H)) for name in names}
    outputs = dict.fromkeys(["go_out"], BOOL) | dict.fromkeys(new, FLOAT)
    nodes = [
        helper.make_node("Constant", [], ["zero"], value_ints=[0]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["T1"]),
        helper.make_node("Squeeze", ["T1", "zero"], ["T"]),
    ]
    given = {"x": (FLOAT, ("T", "B", D))} | {f"{name}0": (FLOAT, ("B", H)) for name in names}
    arrays = {"true": np.array(True)}
    if trip != "shape":
        arrays["M"] = np.array(trip, np.int64)
    before, after = [f"{name}0" for name in names], [f"{name}_n" for name in names]
    if "sequence" in join:
        front = (w.array(0, np.int64),) if join.startswith("front") else ()
        w.nodes.append(helper.make_node("SequenceInsert", ["ys", new[0], *front], ["ys_out"]))
        nodes.append(helper.make_node("SequenceEmpty", [], ["empty"]))
        before, after = [*before, "empty"], [*after, "ys_n"]
    graph = body(w, inputs, outputs)
    if "sequence" in join:
        kind_of = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
        graph.input.append(helper.make_value_info("ys", kind_of))
        graph.output.append(helper.make_value_info("ys_out", kind_of))
    else:
        w.nodes.append(helper.make_node("Identity", [new[0]], ["y_t"]))
        graph = body(w, inputs, outputs | {"y_t": FLOAT})
        after.append("y")
    nodes.append(
        helper.make_node(
            "Loop", ["M" if trip != "shape" else "T", "true", *before], after, "loop", body=graph
        )
    )
    if "sequence" in join:
        nodes.append(helper.make_node("ConcatFromSequence", ["ys_n"], ["y"], axis=0, new_axis=1))
    return model([*nodes, *extra], given, ["y", *(f"{name}_n" for name in names)], arrays, opset)


@pytest.mark.parametrize("join", ["sequence", "front of sequence", "scan output"])
@pytest.mark.parametrize("index", ["t", "T - 1 - t"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_loop_is_a_network(rng, kind, index, join):
    part = only_part(loop(rng, kind, index=index, join=join))
    assert part.kind == f"Loop of {kind}"
    assert part.network.reverse == (index != "t")
    assert part.flipped == ((index != "t") != (join == "front of sequence"))
    assert not part.baked


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_loop_of_a_node_of_one_step(rng, kind):
    part = only_part(loop(rng, kind, rnn_node=True))
    assert part.kind == f"Loop of {kind}" and not part.baked


def test_a_loop_of_a_fixed_length_says_so(rng):
    part = only_part(loop(rng, "GRU", trip=5))
    assert part.baked == {"T": 5} and "a length of 5 steps is baked in" in part.warnings[0]


def test_a_loop_in_a_branch_of_if(rng):
    """The path names the nodes around a Loop."""
    inner = loop(rng, "GRU")
    branch = helper.make_graph(inner.graph.node, "branch", [], inner.graph.output, inner.graph.initializer)
    other = helper.make_graph(
        [helper.make_node("Identity", [name], [f"{name}_else"]) for name in ("x", "h0")], "other", [],
        [helper.make_tensor_value_info(f"{name}_else", FLOAT, None) for name in ("x", "h0")],
    )  # fmt: skip
    node = helper.make_node("If", ["which"], ["y2", "h2"], "if", then_branch=branch, else_branch=other)
    given = {v.name: (FLOAT, None) for v in inner.graph.input} | {"which": (BOOL, ())}
    given["x"] = (FLOAT, ("T", "B", D))
    assert only_part(model([node], given, ["y2", "h2"])).path == "if/then_branch/loop"


# --- loops of Keras -----------------------------------------------------------------------------------------


def select(w, mask, new, old):
    """Keras' choice of a masked step, as tf2onnx writes it."""
    not_mask = w.node("Cast", w.node("Not", mask), to=FLOAT)
    return w.node("Add", w.node("Mul", w.node("Cast", mask, to=FLOAT), new), w.node("Mul", old, not_mask))


def keras_loop(rng, kind, zeros=True, where=False, backwards=False, swapped=False):
    """A masked layer of Keras, as tf2onnx writes it.

    zeros: whether y is 0 at masked steps, as in Bidirectional; otherwise the last output is repeated. where:
    whether Where makes the choice. backwards: the second direction of Bidirectional.
    """
    names = states_of(kind)
    w, p = Writer(rng), draw(rng, kind, D, H)
    x_t, mask_t = w.node("Gather", "xr", "t"), w.node("Gather", "mr", "t")
    new = step(w, kind, p, x_t, [f"{name}_in" for name in names], product="MatMul", blended="1 - z")

    def choose(a, b):
        return w.node("Where", mask_t, a, b) if where else select(w, mask_t, a, b)

    y = choose(new[0], "zero_in" if zeros else "last_in")
    states = [choose(a, f"{name}_in") for a, name in zip(new, names, strict=True)]
    if swapped:
        states = [select(w, mask_t, f"{name}_in", a) for a, name in zip(new, names, strict=True)]
    w.nodes += [
        helper.make_node("Identity", [y], ["y_t"]),
        helper.make_node("Identity", ["n_in"], ["n_out"]),
        helper.make_node("Identity", ["zero_in"], ["zero_out"]),
    ]
    more = w.node("Add", "t", w.array(1, np.int32))
    go = w.node("Less", w.node("Cast", more, to=FLOAT), w.node("Cast", "n_in", to=FLOAT))
    inputs = {
        "counter": (INT64, ()), "go": (BOOL, ()), "t": (INT32, ()), "last_in": (FLOAT, ("B", H)),
        **{f"{name}_in": (FLOAT, ("B", H)) for name in names}, "n_in": (INT32, ()), "zero_in": (FLOAT, None),
    }  # fmt: skip
    graph = body(w, inputs, {go: BOOL, more: INT32, y: FLOAT, **dict.fromkeys(states, FLOAT), "n_out": INT32,
                             "zero_out": FLOAT, "y_t": FLOAT})  # fmt: skip
    o = Writer(None, "o")
    shape = o.node("Cast", o.node("Shape", "x"), to=INT32)
    n = o.node("Squeeze", o.node("Slice", shape, o.integers(0), o.integers(1), o.integers(0)), o.integers(0))
    start = o.node("Less", o.array(0.0), o.node("Cast", n, to=FLOAT))
    lengths = o.node("Expand", o.node("Gather", o.node("Shape", "x"), o.integers(0)),
                     o.node("Gather", o.node("Shape", "x"), o.integers(1)))  # fmt: skip
    for source, target in (("x", "xr"), ("mask", "mr")):
        o.nodes.append(
            helper.make_node("ReverseSequence", [source, lengths], [target], time_axis=0, batch_axis=1)
            if backwards else helper.make_node("Identity", [source], [target])
        )  # fmt: skip
    zero = o.node("ConstantOfShape", o.node("Shape", "h0"))
    o.nodes.append(helper.make_node(
        "Loop", ["", start, o.array(0, np.int32), zero, *(f"{name}0" for name in names), n, zero],
        ["t_n", "last_n", *(f"{name}_n" for name in names), "n_n", "zero_n", "yr"], "while", body=graph,
    ))  # fmt: skip
    if backwards:
        turned = o.node("Transpose", o.node("Transpose", "yr", perm=[1, 0, 2]), perm=[1, 0, 2])
        o.nodes.append(
            helper.make_node("ReverseSequence", [turned, lengths], ["y"], time_axis=0, batch_axis=1)
        )
    else:
        o.nodes.append(helper.make_node("Identity", ["yr"], ["y"]))
    given = {"x": (FLOAT, ("T", "B", D)), "mask": (BOOL, ("T", "B", 1))}
    given |= {f"{name}0": (FLOAT, ("B", H)) for name in names}
    return model(o.nodes, given, ["y", *(f"{name}_n" for name in names)], o.arrays, 15), p


@pytest.mark.parametrize("where", [False, True], ids=["Mul", "Where"])
@pytest.mark.parametrize("zeros", [True, False], ids=["zeros", "repeats"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_masked_layer_of_keras(rng, kind, zeros, where):
    proto, p = keras_loop(rng, kind, zeros, where)
    part = only_part(proto)
    assert part.kind == f"Loop of {kind}" and part.mask.name == "mask"
    assert any("repeats its last output" in text for text in part.warnings) != zeros
    assert np.array_equal(part.network.weight_hh_l0, p["weight_hh"])


def test_the_second_direction_of_a_masked_bidirectional_layer(rng):
    """Keras reverses all T steps, so the masked ones come first, and lnrnn each sequence."""
    proto, _ = keras_loop(rng, "LSTM", backwards=True)
    part = only_part(proto)
    assert part.network.reverse and not part.flipped and part.mask.name == "mask"
    T, B = 6, 3
    lengths = np.array([6, 1, 4])
    mask = np.arange(T)[:, None, None] < lengths[:, None]
    x, h, c = (rng.standard_normal(s).astype(np.float32) for s in ((T, B, D), (B, H), (B, H)))
    theirs = run(proto, {"x": x, "mask": mask, "h0": h, "c0": c})
    y, (h, c) = part.network(x, (h[None], c[None]), lengths=lengths)
    for a, b in ((y, theirs["y"]), (h[0], theirs["h_n"]), (c[0], theirs["c_n"])):
        assert np.abs(a - b).max() < 1e-6


def test_a_mask_that_keeps_the_new_state_is_none(rng):
    proto, _ = keras_loop(rng, "LSTM", swapped=True)
    assert not any(part.kind.startswith("Loop") for part in parts(proto))


def test_lengths_become_a_mask_and_lengths_again(rng):
    """A mask that is arange(T) < lengths gives lengths."""
    w = Writer(rng)
    new = step(w, "GRU", draw(rng, "GRU", D, H), "x_t", ["h_in"])
    row = w.node("Unsqueeze", "m_t", w.integers(1))
    h = w.node("Where", row, new[0], "h_in")
    y = w.node("Where", row, new[0], w.array(0.0))
    graph = body(
        w, {"h_in": (FLOAT, ("B", H)), "x_t": (FLOAT, ("B", D)), "m_t": (BOOL, ("B",))}, {h: FLOAT, y: FLOAT}
    )
    o = Writer(None, "o")
    T = o.node("Squeeze", o.node("Gather", o.node("Shape", "x"), o.integers(0)), o.integers(0))
    count = o.node("Range", o.array(0, np.int64), T, o.array(1, np.int64))
    mask = o.node("Less", o.node("Unsqueeze", count, o.integers(1)), o.node("Cast", "lengths", to=INT64))
    o.nodes.append(helper.make_node("Scan", ["h0", "x", mask], ["h", "y"], body=graph, num_scan_inputs=2))
    given = {"x": (FLOAT, ("T", "B", D)), "h0": (FLOAT, ("B", H)), "lengths": (INT32, ("B",))}
    part = only_part(model(o.nodes, given, ["y", "h"], o.arrays))
    assert part.lengths.name == "lengths" and part.mask is None
