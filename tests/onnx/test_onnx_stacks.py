"""Nodes that follow each other through Transpose, Reshape and Squeeze become the layers of one network."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx_ir")

from onnx import helper  # noqa: E402

import lnrnn  # noqa: E402
from lnrnn.onnx.report import describe  # noqa: E402
from onnx_files import FLOAT, constant, model, weights  # noqa: E402
from onnx_runs import run  # noqa: E402

T, B, WIDTH, H = 6, 5, 3, 4
GIVEN = {"X": (FLOAT, ("T", "B", WIDTH))}


def squeeze(source, target, axis):
    return [helper.make_node("Squeeze", [source, f"{axis}"], [target])]


def merge(source, target, shape=(0, 0, -1), allowzero=0, perm=(0, 2, 1, 3)):
    """Nodes from (T, D, B, H) to (T, B, D * H)."""
    return [
        helper.make_node("Transpose", [source], [f"{target} t"], perm=perm),
        constant(f"{target} shape", np.array(shape)),
        helper.make_node("Reshape", [f"{target} t", f"{target} shape"], [target], allowzero=allowzero),
    ]


def computed(source, target):
    """As merge, with a shape that is computed from the shape of the values, as torch's exporter writes it."""
    nodes = [helper.make_node("Transpose", [source], [f"{target} t"], perm=(0, 2, 1, 3)),
             helper.make_node("Shape", [f"{target} t"], [f"{target} s"])]  # fmt: skip
    for i in range(4):
        nodes.append(helper.make_node("Slice", [f"{target} s", f"{i}", f"{i + 1}"], [f"{target} {i}"]))
    return [
        *nodes,
        helper.make_node("Mul", [f"{target} 2", f"{target} 3"], [f"{target} u"]),
        helper.make_node("Concat", [f"{target} 0", f"{target} 1", f"{target} u"], [f"{target} all"], axis=0),
        helper.make_node("Reshape", [f"{target} t", f"{target} all"], [target], allowzero=1),
    ]


def stack(rng, kind, between, D=1, layers=3, more=(), widths=None, **attributes):
    """Returns a model of several nodes. between: makes the nodes after each node."""
    nodes = [constant(f"{i}", np.array([i])) for i in range(5)]
    own, x = {}, "X"
    direction = "bidirectional" if D == 2 else attributes.pop("direction", "forward")
    for k in range(layers):
        width = WIDTH if k == 0 else D * H
        size = widths[k] if widths else H
        own |= weights(rng, kind, width, size, D, prefix=f"{k}")
        nodes.append(helper.make_node(
            kind, [x, f"{k}W", f"{k}R", f"{k}B"], [f"{k}Y", f"{k}h"], f"node{k}", hidden_size=size,
            direction=direction, **attributes,
        ))  # fmt: skip
        nodes += between(f"{k}Y", f"{k}out")
        x = f"{k}out"
    return model([*nodes, *more], GIVEN, [x, *(f"{k}h" for k in range(layers))], own)


def check(rng, proto, layers, kept=None):
    """The network has the model's outputs. Returns the part."""
    rnn = lnrnn.from_onnx(proto)
    assert rnn.num_layers == layers
    x = rng.standard_normal((T, B, WIDTH), dtype=np.float32)
    want = run(proto, {"X": x})
    y, state = rnn(x)
    h = state[0] if isinstance(state, tuple) else state
    D = 1 + rnn.bidirectional
    np.testing.assert_allclose(y, want[f"{layers - 1}out"], atol=1e-6)
    np.testing.assert_allclose(h, np.concatenate([want[f"{k}h"] for k in range(layers)]), atol=1e-6)
    (part,) = lnrnn.onnx.parts(proto)
    assert len(part.layers) == layers and len(part.h) == layers and part.y.name == f"{layers - 1}out"
    assert part.axes == {"x": "TBI", "y": "TBH", "h": "DBH"} and 1 + rnn.bidirectional == D
    return part


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("D", [1, 2])
@pytest.mark.parametrize("between", [merge, computed])
def test_layers_with_transpose_and_reshape_are_one_network(rng, kind, D, between):
    check(rng, stack(rng, kind, between, D), 3)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_layers_with_squeeze_are_one_network(rng, direction):
    proto = stack(rng, "GRU", lambda a, b: squeeze(a, b, 1), direction=direction)
    check(rng, proto, 3)
    assert lnrnn.from_onnx(proto).reverse == (direction == "reverse")


def test_a_reshape_alone_merges_one_direction(rng):
    def reshape(source, target):
        return [constant(f"{target} shape", np.array([T, -1, H])),
                helper.make_node("Reshape", [source, f"{target} shape"], [target])]  # fmt: skip

    proto = stack(rng, "LSTM", reshape)
    assert len(lnrnn.from_onnx(proto)) == 3  # the file declares any number of steps, so these may be joined
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = T
    part = check(rng, proto, 3)
    assert part.baked == {"T": T} and "sets the number of steps to 6" in part.warnings[0]


def test_sizes_too_large_to_try_are_a_reason_not_to_run_a_part(rng, tmp_path):
    def reshape(source, target):
        return [constant(f"{target} shape", np.array([10**12, -1, H])),
                helper.make_node("Reshape", [source, f"{target} shape"], [target])]  # fmt: skip

    proto = stack(rng, "LSTM", reshape)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 10**12
    with pytest.warns(UserWarning, match="sizes that are too large to try, T=1000000000000 and B=3"):
        assert lnrnn.from_onnx(proto).num_layers == 3
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    report = describe(tmp_path / "m.onnx")
    assert report["not_measured"] == "input 'X' of shape (1000000000000, 1, 3) is too large to try"


def test_two_transposes_and_a_dropout_between_layers_vanish(rng):
    def between(source, target):
        names = [f"{target} {i}" for i in range(3)]
        return [
            *squeeze(source, names[0], 1),
            helper.make_node("Transpose", [names[0]], [names[1]], perm=(1, 0, 2)),
            helper.make_node("Dropout", [names[1]], [names[2]]),
            helper.make_node("Transpose", [names[2]], [target], perm=(1, 0, 2)),
        ]

    check(rng, stack(rng, "LSTM", between), 3)


def test_layers_without_bias_have_zeros_if_others_have_a_bias(rng):
    proto = stack(rng, "GRU", lambda a, b: squeeze(a, b, 1))
    second = next(node for node in proto.graph.node if node.name == "node1")
    second.input[3] = ""
    check(rng, proto, 3)
    assert not lnrnn.from_onnx(proto).bias_ih_l1.any() and lnrnn.from_onnx(proto).bias_ih_l2.any()


SEPARATE = {
    "a relu between": lambda a, b: [*squeeze(a, f"{b} s", 1), helper.make_node("Relu", [f"{b} s"], [b])],
    "the axes are exchanged": lambda a, b: merge(a, b, perm=(2, 0, 1, 3)),
    "training dropout": lambda a, b: [
        *squeeze(a, f"{b} s", 1),
        helper.make_node("Constant", [], [f"{b} on"], value=helper.make_tensor("on", 9, [], [True])),
        helper.make_node("Dropout", [f"{b} s", "", f"{b} on"], [b]),
    ],
    "units are squeezed": lambda a, b: [
        *squeeze(a, f"{b} s", 1), helper.make_node("Squeeze", [f"{b} s"], [b]),
    ],
    "a wrong operand": lambda a, b: [helper.make_node("Reshape", [f"{1}", a], [b])],
    "another domain": lambda a, b: [helper.make_node("Reshape", [a], [b], domain="own")],
    "an unknown shape": lambda a, b: [
        helper.make_node("Shape", ["X"], [f"{b} x"]), helper.make_node("Neg", [f"{b} x"], [f"{b} n"]),
        helper.make_node("Reshape", [a, f"{b} n"], [b]),
    ],
    "a negative size": lambda a, b: merge(a, b, (-3, 0, 4)),
    "two unknown sizes": lambda a, b: merge(a, b, (-1, -1, 4)),
    "a wrong number of units": lambda a, b: merge(a, b, (0, 0, 5)),
    "steps are joined": lambda a, b: [
        *merge(a, f"{b} m", (-1, 1, 4)), helper.make_node("Identity", [f"{b} m"], [b]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SEPARATE)
def test_other_nodes_between_end_a_network(rng, name):
    proto = stack(rng, "LSTM", SEPARATE[name], layers=2)
    networks = lnrnn.from_onnx(proto)
    assert list(networks) == ["node0", "node1"] and all(rnn.num_layers == 1 for rnn in networks.values())


def test_a_value_that_the_file_uses_elsewhere_ends_a_network(rng):
    proto = stack(rng, "LSTM", lambda a, b: squeeze(a, b, 1), layers=2)
    proto.graph.output.append(helper.make_tensor_value_info("0out", FLOAT, None))
    assert list(lnrnn.from_onnx(proto)) == ["node0", "node1"]


def test_layers_of_different_sizes_activations_or_lengths_are_networks_of_their_own(rng):
    proto = stack(rng, "RNN", lambda a, b: squeeze(a, b, 1), layers=2)
    nodes = [node for node in proto.graph.node if node.op_type == "RNN"]
    nodes[1].attribute.append(helper.make_attribute("activations", ["Relu"]))
    assert [rnn.nonlinearity for rnn in lnrnn.from_onnx(proto).values()] == ["tanh", "relu"]
    nodes[1].attribute[-1].strings[0] = b"Tanh"
    assert lnrnn.from_onnx(proto).num_layers == 2
    nodes[1].input.append("lens")
    proto.graph.input.append(helper.make_tensor_value_info("lens", 6, ("B",)))
    assert len(lnrnn.from_onnx(proto)) == 2


def test_a_shape_that_is_computed_by_many_nodes_ends_the_search(rng):
    """Each of 60 nodes Concat doubles the shape, which would have 2**60 numbers."""
    proto = stack(rng, "LSTM", lambda a, b: merge(a, b), layers=2)
    at, reshape = next((i, n) for i, n in enumerate(proto.graph.node) if n.op_type == "Reshape")
    nodes = [helper.make_node("Shape", [reshape.input[0]], ["c0"])]
    nodes += [helper.make_node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(60)]
    for node in reversed(nodes):
        proto.graph.node.insert(at, node)
    reshape.input[1] = "c60"
    assert len(lnrnn.from_onnx(proto)) == 2
