"""Converts nodes with all options that lnrnn has, compares with ONNX Runtime, and names the other options."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("onnx_ir")

import onnx  # noqa: E402
from onnx import helper  # noqa: E402

import lnrnn  # noqa: E402
from onnx_files import FLOAT, model, recurrent, weights  # noqa: E402
from onnx_runs import agree, outputs, run  # noqa: E402

T, B, D_IN, H = 6, 5, 3, 4
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def inputs(rng, kind, D=1, lengths=False, states=False):
    result = {"X": rng.standard_normal((T, B, D_IN), dtype=np.float32)}
    if lengths:
        result["lens"] = np.array([6, 1, 3, 6, 2], np.int32)
    for name in ["h0", "c0"][: (1 + (kind == "LSTM")) * states]:
        result[name] = rng.uniform(-0.9, 0.9, (D, B, H)).astype(np.float32)
    return result


def ours(rnn, feed):
    return outputs(rnn, feed["X"], feed.get("h0"), feed.get("c0"), feed.get("lens"))


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("opset", [7, 13, 14, 21, 22])
def test_a_node_has_the_outputs_of_onnx_runtime(rng, kind, direction, opset):
    D = DIRECTIONS[direction]
    resets = [{"linear_before_reset": n} for n in (0, 1)] if kind == "GRU" else [{}]
    for bias, lengths, states, more in itertools.product((True, False), (True, False), (True, False), resets):
        proto = recurrent(
            rng, kind, D_IN, H, D, bias=bias, lengths=lengths, states=states, opset=opset,
            direction=direction, **more,
        )  # fmt: skip
        rnn = lnrnn.from_onnx(proto)
        feed = inputs(rng, kind, D, lengths, states)
        agree(ours(rnn, feed), run(proto, feed))
        assert type(rnn).__name__ == kind and (rnn.bias, rnn.reverse) == (bias, direction == "reverse")


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_layout_1_is_a_network_with_batch_first(rng, kind, direction):
    """ONNX Runtime refuses layout=1, so it runs the same node with layout=0."""
    D = DIRECTIONS[direction]
    proto = recurrent(rng, kind, D_IN, H, D, states=True, lengths=True, direction=direction, layout=1)
    rnn = lnrnn.from_onnx(proto)
    assert rnn.batch_first
    for each in [a for a in proto.graph.node[0].attribute if a.name == "layout"]:
        proto.graph.node[0].attribute.remove(each)
    del proto.graph.input[0].type.tensor_type.shape.dim[:]
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    feed = inputs(rng, kind, D, lengths=True, states=True)
    agree(ours(rnn, feed), run(proto, feed))


@pytest.mark.parametrize(
    "kind, direction", [*(("RNN", way) for way in DIRECTIONS), *[("GRU", "bidirectional")]]
)
@pytest.mark.parametrize("name, options, nonlinearity", [
    ("Tanh", {}, "tanh"), ("Relu", {}, "relu"), ("Sigmoid", {}, "sigmoid"),
    ("Affine", {"activation_alpha": [1.0], "activation_beta": [0.0]}, "identity"),
])  # fmt: skip
def test_activations_become_nonlinearities(rng, kind, direction, name, options, nonlinearity):
    D = DIRECTIONS[direction]
    options = {key: value * D for key, value in options.items()}
    names = ["Sigmoid"] * (kind == "GRU") + [name]
    proto = recurrent(rng, kind, D_IN, H, D, direction=direction, activations=names * D, **options)
    rnn = lnrnn.from_onnx(proto)
    feed = inputs(rng, kind)
    agree(ours(rnn, feed), run(proto, feed))
    assert rnn.nonlinearity == nonlinearity


@pytest.mark.parametrize("names, more", [
    (["sigmoid", "tanh", "tanh"], {}),  # small letters
    # A number for each activation, where one for each that uses it is meant. The runtime refuses it.
    (["HardSigmoid", "Tanh", "Tanh"], {"activation_alpha": [0.3, 0, 0], "activation_beta": [0.5, 0, 0]}),
])  # fmt: skip
def test_other_spellings_of_activations_are_read(rng, names, more):
    rnn = lnrnn.from_onnx(recurrent(rng, "LSTM", D_IN, H, activations=names, **more), check=not more)
    assert rnn.gate_activation == ("hard_sigmoid" if more else "sigmoid")


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("alpha", [None, 0.2, 1 / 6, 0.3])
def test_a_hard_sigmoid_of_any_slope_becomes_lnrnns(rng, kind, alpha):
    names = ["HardSigmoid", "Tanh", "Tanh"][: 3 if kind == "LSTM" else 2]
    options = {} if alpha is None else {"activation_alpha": [alpha] * 2, "activation_beta": [0.5] * 2}
    for more in [{}, {"linear_before_reset": 1}] if kind == "GRU" else [{}]:
        proto = recurrent(rng, kind, D_IN, H, 2, activations=names * 2, **options, **more)
        for own in proto.graph.initializer:  # so large that some gates are 0 or 1
            own.CopyFrom(onnx.numpy_helper.from_array(4 * onnx.numpy_helper.to_array(own), own.name))
        rnn = lnrnn.from_onnx(proto)
        feed = inputs(rng, kind, 2)
        agree(ours(rnn, feed), run(proto, feed), 2e-5)
        assert rnn.gate_activation == "hard_sigmoid"


REFUSED = [
    ("LSTM", {"clip": 3.0}, "clip=3, and lnrnn's cells have no clip"),
    ("GRU", {"clip": 0.5}, "clip"),
    ("LSTM", {"input_forget": 1}, "input_forget=1, and the gates i and f"),
    ("LSTM", {"direction": "backward"}, "attribute direction .*'backward'"),
    ("LSTM", {"layout": 2}, "layout must be 0 or 1, got 2"),
    ("RNN", {"activations": ["Elu"]}, "activations .*Elu with alpha 1"),
    ("RNN", {"activations": ["Affine"]}, "activation_alpha must have 1 numbers"),
    ("RNN", {"activations": ["Affine"], "activation_alpha": [2.0], "activation_beta": [0.0]}, "alpha 2"),
    ("RNN", {"activations": ["Tanh", "Tanh"]}, "activations must have 1 names, got 2"),
    ("LSTM", {"activations": ["Sigmoid", "Relu", "Tanh"]}, "activations .*Sigmoid, Relu, Tanh"),
    ("LSTM", {"activations": ["HardSigmoid", "Tanh", "Tanh"], "activation_beta": [0.4]}, "beta 0.4"),
    ("GRU", {"activations": ["HardSigmoid", "Tanh"], "activation_alpha": [-0.2]}, "alpha -0.2"),
    ("GRU", {"activations": ["Sigmoid", "HardSigmoid"]}, "activations"),
    (
        "GRU",
        {"activations": ["Sigmoid", "Affine"], "activation_alpha": [2.0], "activation_beta": [0.0]},
        "Affine",
    ),
    ("GRU", {"activations": ["Relu", "Relu"]}, "for the gates"),
    ("RNN", {"D": 2, "activations": ["Tanh", "Relu"]}, "activations Tanh, Relu, and both directions"),
]


@pytest.mark.parametrize("kind, options, message", REFUSED, ids=lambda v: str(v)[:40])
def test_an_option_without_an_equivalent_is_named(rng, kind, options, message):
    proto = recurrent(rng, kind, D_IN, H, **options)
    with pytest.raises(ValueError, match=f"^no part can be converted: node 'node' .{kind}.:? .*{message}"):
        lnrnn.from_onnx(proto)


@pytest.mark.parametrize("opset", [1, 6])
def test_an_old_opset_is_named(rng, opset):
    with pytest.raises(ValueError, match=rf"the opset must be from 7 to \d+, got {opset}"):
        lnrnn.from_onnx(recurrent(rng, "LSTM", D_IN, H, opset=opset))
    with pytest.raises(ValueError, match="the opset must be from 7"):
        lnrnn.from_onnx(recurrent(rng, "LSTM", D_IN, H, opset=10**6))


@pytest.mark.parametrize("change, message", [
    (lambda own: own.update(W=own["W"][:, :-1]), "W and R must be of shape"),
    (lambda own: own.update(R=own["R"][:, :, :-1]), "W and R must be of shape"),
    (lambda own: own.update(R=own["R"][0]), "W and R must be arrays with three axes"),
    (lambda own: own.update(B=own["B"][:, :16]), r"input B must be of shape \(1, 32\), got \(1, 16\)"),
    (lambda own: own.update(P=own["B"][:, :4]), r"input P must be of shape \(1, 12\), got \(1, 4\)"),
    (lambda own: own.update(W=np.concatenate([own["W"]] * 2)), "W and R must be of shape"),
    (lambda own: own.update(W=own["W"][:, :, :0]), "W and R must be of shape"),
    (lambda own: own.update(W=own["W"].astype(np.int32)), "input W must be an array of floating-point"),
    (lambda own: own.update(W=own["W"] * 1e39), "float32's range"),
    (lambda own: own.update(size=5), r"attribute hidden_size must be 4, as R of shape .* has, got 5"),
    (lambda own: own.pop("W"), "input W must be a constant, got 'W', which depends on inputs of the model"),
])  # fmt: skip
def test_weights_that_do_not_fit_are_named(rng, change, message):
    own = weights(rng, "LSTM", D_IN, H)
    own["W"] = own["W"].astype(np.float64 if "range" in message else np.float32)
    change(own)
    size = own.pop("size", H)
    names = ["X", "W", "R", "B", "", "", "", "P"][: 8 if "P" in own else 4]
    node = helper.make_node("LSTM", names, ["Y"], "node", hidden_size=size)
    given = {"X": (FLOAT, None)} | ({} if "W" in own else {"W": (FLOAT, None)})
    with pytest.raises(ValueError, match=message):
        lnrnn.from_onnx(model([node], given, ["Y"], own))


@pytest.mark.parametrize("most, names", [(0.0, None), (0.6, None), (0.6, ["HardSigmoid", "Tanh", "Tanh"])])
@pytest.mark.parametrize("D", [1, 2])
def test_peepholes_are_taken_unless_they_are_zero(rng, D, most, names):
    options = {} if names is None else {"activations": names * D}
    proto = recurrent(rng, "LSTM", D_IN, H, D, lengths=True, states=True, peepholes=most, **options)
    feed, rnn = inputs(rng, "LSTM", D, lengths=True, states=True), lnrnn.from_onnx(proto)
    agree(ours(rnn, feed), run(proto, feed))
    assert rnn.peepholes == bool(most)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, "bfloat16"])
def test_weights_of_other_types_become_float32(rng, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    own = {name: a.astype(dtype) for name, a in weights(rng, "GRU", D_IN, H).items()}
    try:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    except ValueError:
        pytest.skip("this version of onnx writes no arrays of bfloat16")
    node = helper.make_node("GRU", ["X", "W", "R", "B"], ["Y"], "node", hidden_size=H)
    rnn = lnrnn.from_onnx(model([node], {"X": (kind, ("T", "B", D_IN))}, ["Y"], own, 22), check=False)
    z, r, n = np.split(own["W"][0].astype(np.float32), 3)
    np.testing.assert_array_equal(rnn.weight_ih_l0, np.concatenate([r, z, n]))


@pytest.mark.parametrize("form", ["declared", "Expand", "ConstantOfShape", "constant"])
def test_an_initial_state_of_another_size_is_refused(rng, form):
    """torch.onnx.export(nn.LSTM(6, 16, proj_size=4), dynamo=True) has such an initial_c."""
    own = weights(rng, "LSTM", D_IN, H) | {"one": np.int64([1]), "zero": np.float32([0])}
    inputs = ["X", "W", "R", "B", "", "", "c0"]
    nodes = [helper.make_node("LSTM", inputs, ["Y"], "node", hidden_size=H)]
    given = {"X": (FLOAT, ("T", "B", D_IN))}
    if form == "declared":
        given["c0"] = (FLOAT, (1, "B", 16))
    elif form == "constant":
        own["c0"] = np.zeros((1, 1, 16), np.float32)
    else:
        own["units"] = np.int64([16])
        nodes.insert(0, helper.make_node(form, ["zero", "s"][form != "Expand" :], ["c0"]))
        nodes.insert(0, helper.make_node("Concat", ["one", "b", "units"], ["s"], axis=0))
        nodes.insert(0, helper.make_node("Shape", ["X"], ["b"], start=1, end=2))
    message = r"node 'node' .LSTM.: initial_c must be of 4 units, as R, got 16, .*proj_size"
    with pytest.raises(ValueError, match=message):
        lnrnn.from_onnx(model(nodes, given, ["Y"], own))
