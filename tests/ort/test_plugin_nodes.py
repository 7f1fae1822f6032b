"""Nodes RNN, LSTM and GRU in the plug-in, compared with ONNX Runtime's own kernels."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx")

from onnx import helper, numpy_helper  # noqa: E402

from onnx_files import FLOAT, recurrent  # noqa: E402
from plugin_runs import (  # noqa: E402
    KINDS,
    agree,
    alone,
    computed,
    feed,
    left,
    onnxruntime,
    options,
    plugged,
    version,
)  # fmt: skip


@pytest.mark.parametrize("opset", [7, 11, 14, 17, 22])
@pytest.mark.parametrize("kind", KINDS)
def test_opsets_and_nodes_without_bias(rng, tmp_path, kind, opset):
    model = recurrent(rng, kind, bias=opset != 11, opset=opset)
    given = feed(rng, kind)
    computed(model, given, tmp_path)


@pytest.mark.parametrize("outputs", [["Y"], ["", "Y_h"], ["Y", "Y_h"], ["", "", "Y_c"], ["Y", "", "Y_c"]])
@pytest.mark.parametrize("D", [1, 2])
def test_optional_outputs(rng, tmp_path, outputs, D):
    model = recurrent(rng, "LSTM", D=D, outputs=outputs, lengths=True)
    given = feed(rng, "LSTM", D=D, lengths=(7, 2, 5))
    computed(model, given, tmp_path)


@pytest.mark.parametrize("lengths", [None, (7, 0, 4)])
@pytest.mark.parametrize("D", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_layout_1_is_layout_0_with_its_axes_swapped(rng, kind, D, lengths):
    """The runtime's own kernels refuse layout 1."""
    if kind == "RNN" and lengths and version() < (1, 26):
        pytest.skip("the runtime's own RNN leaves the states of sequences without steps uninitialised")
    arguments = {"lengths": lengths is not None, "states": True, "opset": 14}
    model = recurrent(rng, kind, D=D, **arguments)
    swapped = onnx.ModelProto()
    swapped.CopyFrom(model)
    swapped.graph.node[0].attribute.append(helper.make_attribute("layout", 1))
    for value in swapped.graph.input:
        if value.name == "X":
            value.CopyFrom(helper.make_tensor_value_info("X", FLOAT, ("B", "T", 3)))
    given = feed(rng, kind, D=D, lengths=lengths, states=True)
    moved = {name: a if name == "lens" else a.swapaxes(0, 1).copy() for name, a in given.items()}
    y, *states = plugged(swapped).run(None, moved)
    agree([y.transpose(1, 2, 0, 3), *(s.swapaxes(0, 1) for s in states)], alone(model).run(None, given))


@pytest.mark.parametrize(
    "kind, activations, more",
    [
        ("RNN", ["Relu"], {}), ("RNN", ["Sigmoid"], {}), ("RNN", ["Tanh"], {}),
        ("RNN", ["Affine"], {"activation_alpha": [1.0], "activation_beta": [0.0]}),
        ("LSTM", ["Sigmoid", "Tanh", "Tanh"], {}), ("GRU", ["sigmoid", "tanh"], {}),
        ("LSTM", ["HardSigmoid", "Tanh", "Tanh"], {"activation_alpha": [0.2], "activation_beta": [0.5]}),
        ("GRU", ["HardSigmoid", "Tanh"], {"activation_alpha": [0.3], "activation_beta": [0.5]}),
        ("GRU", ["HardSigmoid", "Tanh"], {}),  # with the defaults of alpha and beta
        ("GRU", ["Sigmoid", "Relu"], {}), ("GRU", ["Sigmoid", "Sigmoid"], {}),
        ("GRU", ["HardSigmoid", "Affine"], {"activation_alpha": [0.3, 1.0], "activation_beta": [0.5, 0.0]}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("D", [1, 2])
def test_activations(rng, tmp_path, kind, activations, more, D):
    more = {name: values * D for name, values in more.items()}
    model = recurrent(rng, kind, D=D, activations=activations * D, **more)
    given = feed(rng, kind, D=D)
    computed(model, given, tmp_path)


@pytest.mark.parametrize("most", [0.0, 0.6])
@pytest.mark.parametrize("D", [1, 2])
def test_peepholes(rng, tmp_path, D, most):
    names = {"activations": ["HardSigmoid", "Tanh", "Tanh"] * D} if D == 2 else {}
    model = recurrent(rng, "LSTM", D=D, states=True, peepholes=most, bias=D == 1, **names)
    computed(model, feed(rng, "LSTM", D=D, states=True), tmp_path)


def test_constant_states_and_lengths_are_kept(rng, tmp_path):
    """The fused node has no constant inputs."""
    model = recurrent(rng, "LSTM", lengths=True, states=True)
    given = feed(rng, "LSTM", lengths=(7, 2, 5), states=True)
    for name in ("lens", "h0", "c0"):
        model.graph.initializer.append(numpy_helper.from_array(given.pop(name), name))
    del model.graph.input[1:]
    computed(model, given, tmp_path)


@pytest.mark.parametrize("T, B", [(0, 3), (1, 1), (4, 0), (50, 8)])
@pytest.mark.parametrize("kind", KINDS)
def test_sizes_that_change_from_run_to_run(rng, kind, T, B):
    model = recurrent(rng, kind, D=2, states=True)
    ours, theirs = plugged(model), alone(model)
    for steps, sequences in ((5, 2), (T, B), (9, 4)):
        given = feed(rng, kind, T=steps, B=sequences, D=2, states=True)
        if not steps or not sequences:
            y, *states = ours.run(None, given)
            assert y.shape == (steps, 2, sequences, 4)
            assert all(s.tobytes() == given[n].tobytes() for s, n in zip(states, ("h0", "c0"), strict=False))
        else:
            agree(ours.run(None, given), theirs.run(None, given))


@pytest.mark.parametrize(
    "kind, more, reason",
    [
        ("LSTM", {"clip": 0.5}, "attribute clip must be left out, got 0.5"),
        ("LSTM", {"input_forget": 1}, "attribute input_forget must be 0, got 1"),
        ("RNN", {"activations": ["Softsign"]}, "Tanh, Relu, Sigmoid or Affine (1, 0), got Softsign (alpha 0"),
        ("GRU", {"activations": ["Sigmoid", "Softsign"]}, "Sigmoid or Affine (1, 0), got Softsign (alpha 0"),
        ("LSTM", {"activations": ["Sigmoid", "Softsign", "Tanh"]}, "must have Tanh, got Softsign (alpha 0"),
        ("GRU", {"activations": ["Relu", "Tanh"]}, "with beta 0.5, got Relu (alpha 0, beta 0)"),
        ("LSTM", {"D": 2, "activations": ["Sigmoid", "Tanh", "Tanh", "HardSigmoid", "Tanh", "Tanh"],
                  "activation_alpha": [0.2], "activation_beta": [0.5]}, "HardSigmoid (alpha 0.2, beta 0.5)"),
        ("LSTM", {"activations": ["Sigmoid", "Relu", "Tanh"]}, "must have Tanh, got Relu (alpha 0, beta 0)"),
        ("RNN", {"activations": ["Tanh", "Relu"]}, "activations must have 1 names, got 2"),
        ("RNN", {"activations": ["Relu", "Relu"]}, "activations must have 1 names, got 2"),
        *(("RNN", {"activations": ["Affine"], "activation_alpha": [a], "activation_beta": [b]},
           f"or Affine (1, 0), got Affine (alpha {a:g}, beta {b:g})") for a, b in ((2.0, 0.0), (1.0, 0.5))),
        *(("GRU", {"activations": ["HardSigmoid", "Tanh"], "activation_alpha": [a], "activation_beta": [b]},
           f"with beta 0.5, got HardSigmoid (alpha {a:g}, beta {b:g})") for a, b in ((0.0, 0.5), (0.2, 0.4))),
        *(("GRU", {"D": 2, "activations": ["HardSigmoid", "Tanh"] * 2, "activation_alpha": [0.2, a],
                   "activation_beta": [0.5, b]}, f"activations, got HardSigmoid (alpha {a:g}, beta {b:g})")
          for a, b in ((0.3, 0.5), (0.2, 0.4))),
        ("GRU", {"D": 2, "activations": ["HardSigmoid", "Tanh"] * 2, "activation_alpha": [0.3, 0.0] * 2,
                 "activation_beta": [0.5, 0.0] * 2}, "activations, got HardSigmoid (alpha 0, beta 0)"),
        ("GRU", {"activations": ["Sigmoid", "LeakyRelu"]}, "activation_alpha must have 1 numbers, got 0"),
        ("GRU", {"activations": ["HardSigmoid", "HardSigmoid"], "activation_alpha": [0.2]},
         "activation_alpha must have 2 numbers, got 1"),
        ("GRU", {"activations": ["HardSigmoid", "HardSigmoid"], "activation_alpha": [0.2, 0.2],
                 "activation_beta": [0.5]}, "activation_beta must have 2 numbers, got 1"),
    ],
)  # fmt: skip
def test_other_nodes_are_left_to_the_runtime(rng, tmp_path, capfd, kind, more, reason):
    model = recurrent(rng, kind, **more)
    given = feed(rng, kind, D=more.get("D", 1))
    computed(model, given, tmp_path, 0)
    (said,) = left(model, capfd)
    assert f"node 'node' ({kind}) to the runtime" in said and reason in said


def test_an_empty_list_of_activations_is_the_default(rng, tmp_path):
    model = recurrent(rng, "GRU")
    model.graph.node[0].attribute.add(name="activations", type=onnx.AttributeProto.STRINGS)
    computed(model, feed(rng, "GRU"), tmp_path)


@pytest.mark.parametrize("name", ["R", "P"])
def test_weights_that_depend_on_inputs_are_left_to_the_runtime(rng, tmp_path, capfd, name):
    model = recurrent(rng, "LSTM", peepholes=0.5)
    (array,) = (a for a in model.graph.initializer if a.name == name)
    model.graph.initializer.remove(array)
    model.graph.input.append(helper.make_tensor_value_info(name, FLOAT, array.dims))
    given = feed(rng, "LSTM") | {name: numpy_helper.to_array(array)}
    computed(model, given, tmp_path, 0)
    plugged(model, sess_options=options(severity=0))
    assert "lnrnn leaves node 'node' (LSTM) to the runtime" in capfd.readouterr().err


@pytest.mark.parametrize("dtype, limit", [("float32", 1e-5), ("bfloat16", 0.02), ("int8", 0.02)])
def test_dtypes(rng, dtype, limit):
    model = recurrent(rng, "LSTM", width=24, H=32)
    given = feed(rng, "LSTM", I=24, H=32)
    ours, theirs = plugged(model, dtype=dtype).run(None, given), alone(model).run(None, given)
    agree(ours, theirs, limit)
    assert (dtype == "float32") == (float(np.abs(ours[0] - theirs[0]).max()) < 1e-5)


@pytest.mark.parametrize(
    "options_given, message",
    [({"dtype": "float16"}, "option dtype must be float32, bfloat16 or int8, got float16"),
     ({"threads": "0"}, "option threads must be between 1 and 1024, got 0"),
     ({"threads": "2x"}, "option threads must be between 1 and 1024, got 2x"),
     ({"threads": "1025"}, "option threads must be between 1 and 1024, got 1025"),
     ({"threads": "", "dtpye": "int8"}, "lnrnn: (option threads must|the options are)"),
     ({"advice": "no"}, "option advice must be 0 or 1, got no"),
     ({"dtpye": "int8"}, "the options are dtype, float32_nodes, .* got dtpye")],
)  # fmt: skip
def test_wrong_options_are_errors(rng, options_given, message):
    plugged(recurrent(rng, "RNN"))  # registers the plug-in
    chosen = options()
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "LnrnnExecutionProvider"]
    chosen.add_provider_for_devices(devices, options_given)
    with pytest.raises(Exception, match=message):
        onnxruntime.InferenceSession(recurrent(rng, "RNN").SerializeToString(), chosen, enable_fallback=0)
