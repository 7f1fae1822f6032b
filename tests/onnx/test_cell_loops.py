"""Loop and Scan nodes whose body is a step of a cell. tests/cases/loops.txt has many more."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from onnx import helper

pytest.importorskip("onnx_ir")

import lnrnn  # noqa: E402
from onnx_cells import Writer, body, draw, only_part, step, taken  # noqa: E402
from onnx_files import FLOAT, model  # noqa: E402
from onnx_loops import BOOL, D, H, loop, plain, scan  # noqa: E402

# --- Scan ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("back", [(0, 0), (1, 1), (1, 0), (0, 1)], ids=str)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "LiGRU"])
def test_a_scan_is_a_network(rng, kind, back):
    p = draw(rng, kind, D, H)
    part = taken(scan(rng, kind, back, add=partial(plain, p=p)))
    assert part.kind == f"Scan of {kind}" and [node.name for node in part.nodes] == ["scan"]
    assert part.network.reverse == bool(back[0]) and part.flipped == (back[0] != back[1])
    assert np.array_equal(part.network.weight_ih_l0, p["weight_ih"])
    assert not part.baked and len(part.warnings) == part.flipped


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


@pytest.mark.parametrize("join", ["sequence", "front of sequence", "scan output"])
@pytest.mark.parametrize("index", ["t", "T - 1 - t"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_loop_is_a_network(rng, kind, index, join):
    part = taken(loop(rng, kind, index=index, join=join))
    assert part.kind == f"Loop of {kind}"
    assert part.network.reverse == (index != "t")
    assert part.flipped == ((index != "t") != (join == "front of sequence"))
    assert not part.baked


@pytest.mark.parametrize("reset_after", [False, True])
def test_reset_after_replaces_that_of_a_node_in_a_loop(rng, reset_after):
    rnn = lnrnn.from_onnx(loop(rng, "GRU", rnn_node=True), reset_after=reset_after)
    assert rnn.reset_after == reset_after


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
