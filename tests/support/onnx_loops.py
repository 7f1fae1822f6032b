"""ONNX models with a Loop or Scan whose body is a step of a cell, for tests."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from onnx_cells import Writer, body, draw, step
from onnx_files import FLOAT, model

BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
D, H = 3, 4


def states_of(kind):
    return ["h", "c"][: 2 if kind == "LSTM" else 1]


def plain(w, rng, kind, D, H, x, old, p=None):
    """Adds a step without norms. Returns the names of the new states."""
    return list(step(w, kind, p or draw(rng, kind, D, H), x, old))


def scan(rng, kind, back=(0, 0), axes=(0, 0), layers=1, add=plain):
    """A model of one Scan. back: the directions of x and y. axes: those of steps in x and y. add: such as
    plain."""
    w, new, x = Writer(rng), [], "x_t"
    names = [f"{name}{k}" for k in range(layers) for name in states_of(kind)]
    for k in range(layers):
        own = names[k * len(names) // layers : (k + 1) * len(names) // layers]
        new += add(w, rng, kind, D if k == 0 else H, H, x, [f"{name}_in" for name in own])
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
    return model([node], given, ["y", *(f"{name}_n" for name in names)])


def loop(rng, kind, *, index="t", trip="shape", join="sequence", rnn_node=False):
    """A model of one Loop, as a scripted torch module becomes.

    index: "t" or "T - 1 - t". trip: "shape", or a number. join: "sequence", "front of sequence", or "scan
    output". rnn_node: whether the step is a node of ONNX.
    """
    names = states_of(kind)
    w = Writer(rng)
    at, one = "t", w.array(1, np.int64)
    if index == "T - 1 - t":
        at = w.node("Sub", w.node("Sub", "T", one), "t")
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
        new = plain(w, rng, kind, D, H, x, [f"{name}_in" for name in names])
    w.nodes.append(helper.make_node("Identity", ["go"], ["go_out"]))
    inputs = {"t": (INT64, ()), "go": (BOOL, ())} | {f"{name}_in": (FLOAT, ("B", H)) for name in names}
    outputs = dict.fromkeys(["go_out"], BOOL) | dict.fromkeys(new, FLOAT)
    nodes = [
        helper.make_node("Constant", [], ["zero"], value_ints=[0]),
        helper.make_node("Constant", [], ["axis"], value_ints=[0]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "axis"], ["T1"]),
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
    return model(nodes, given, ["y", *(f"{name}_n" for name in names)], arrays)


def unrolled(rng, kind, indices):
    """A model of unrolled steps. indices: of x at each step."""
    w, p, state, ys = Writer(), draw(rng, kind, D, H), [f"{name}0" for name in states_of(kind)], []
    given = {"x": (FLOAT, ("T", "B", D))} | {name: (FLOAT, ("B", H)) for name in state}
    for t in indices:
        x = w.node("Gather", "x", w.array(t, np.int64), axis=0)
        state = step(w, kind, p, x, state)
        ys.append(w.node("Unsqueeze", state[0], w.integers(0)))
    return model(w.nodes, given, [w.node("Concat", *ys, axis=0), *state], w.arrays)
