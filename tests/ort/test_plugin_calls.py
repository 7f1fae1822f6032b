"""Calls of functions of the domain lnrnn in the plug-in, compared with their bodies in the runtime alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx_ir")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import lnrnn  # noqa: E402
from networks import WITH_INNER_BIASES, drawn_state, network, normal, parts, zone_out  # noqa: E402
from onnx_files import FLOAT, recurrent  # noqa: E402
from plugin_runs import agree, alone, called, claimed, computed, draw_inputs, left, plugged  # noqa: E402

# The other networks of one direction are nodes of ONNX.
VARIANTS = {
    name: variant for name, variant in WITH_INNER_BIASES.items()
    if "batch" not in name and ("none" not in name or variant["cell"] in ("LiGRU", "SLSTM") or "proj" in name)
}  # fmt: skip
FORMS = {
    "sequence": ({}, {}),
    "two layers and directions, lengths": ({"num_layers": 2, "bidirectional": True}, {"lengths": True}),
    "reverse, zoneout, no biases": ({"reverse": True, "bias": False}, {}),
    "steps of two layers": ({"num_layers": 2}, {"step": True}),
}
SIZES = {"T": 7, "B": 3}, {"T": 1, "B": 1}, {"T": 20, "B": 5}


def lstm(**form):
    """Returns the model of one call without other nodes."""
    proto = called(network(3, 4, cell="LSTM"), **form)
    graph, call = proto.graph, call_of(proto)
    call.input[: len(graph.input)] = [value.name for value in graph.input]
    call.output[:] = [value.name for value in graph.output]
    del graph.node[:], graph.value_info[:]
    graph.node.append(call)
    return proto


def call_of(proto):
    (call,) = (node for node in proto.graph.node if node.domain == "lnrnn")
    return call


def fed(rng, rnn, form, T, B):
    """Returns inputs of a call. The states are some that the network reaches, for the n of an SLSTM."""
    feeds = {"x": normal(rng, *(() if "step" in form else (T,)), B, 5)}
    feeds |= {f"{name}0": s for name, s in zip("hcnm", parts(rnn, drawn_state(rng, rnn, B)), strict=False)}
    return feeds | ({"lengths": rng.integers(0, T + 1, B).astype(np.int32)} if "lengths" in form else {})


@pytest.mark.parametrize("variant", VARIANTS)
def test_calls_of_all_networks(rng, tmp_path, variant):
    """Each form has several networks. tests/conformance compares the bits of more."""
    how = list(FORMS)[list(VARIANTS).index(variant) % len(FORMS)]
    options, form = FORMS[how]
    rnn = network(5, 6, **VARIANTS[variant], **options)
    if "zoneout" in how and "SLSTM" not in variant:
        zone_out(rnn, (0.25, 0.125) if variant.startswith("LSTM") else 0.25)
    proto = called(rnn, **form)
    first = fed(rng, rnn, form, **SIZES[0])
    assert claimed(proto, first, tmp_path)[1] == 1
    ours, theirs = plugged(proto), alone(proto)
    for sizes in SIZES:
        given = fed(rng, rnn, form, **sizes)
        agree(ours.run(None, given), theirs.run(None, given), 2e-5)


# --- calls that are left ------------------------------------------------------------------------------------


def integer(name, value):
    def change(proto):
        (attribute,) = (a for a in call_of(proto).attribute if a.name == name)
        attribute.i = value

    return change


def other_attribute(name, value):
    """Returns a function that replaces an attribute, or removes it if value is None."""

    def change(proto):
        call, (function,) = call_of(proto), proto.functions
        kept = [a for a in call.attribute if a.name != name]
        kept += [] if value is None else [helper.make_attribute(name, value)]
        del call.attribute[:], function.attribute[:]
        call.attribute.extend(kept)
        function.attribute.extend(a.name for a in kept)

    return change


def version(proto):
    (opset,) = (each for each in proto.opset_import if each.domain == "lnrnn")
    opset.version = 2


def more_inputs(proto):
    call_of(proto).input.append("x")
    proto.functions[0].input.append("more")


def fewer_inputs(proto):
    """The body gets its last array as a constant."""
    call, (function,) = call_of(proto), proto.functions
    (array,) = (a for a in proto.graph.initializer if a.name == call.input[-1])
    own = helper.make_node("Constant", [], [function.input[-1]], value=array)
    nodes = [own, *function.node]
    del call.input[-1], function.input[-1], function.node[:]
    function.node.extend(nodes)


def left_out(proto):
    fewer_inputs(proto)
    call_of(proto).input.append("")
    proto.functions[0].input.append("unused")


def h0_in_place_of_a_weight(proto):
    fewer_inputs(proto)
    for inputs, unused in ((call_of(proto).input, ""), (proto.functions[0].input, "unused")):
        inputs.append(inputs[1])
        inputs[1] = unused


def back_and_forth(outer, inner, **number):
    """x passes an operator before the call, and another one in the body."""

    def change(proto):
        call, (function,), graph = call_of(proto), proto.functions, proto.graph
        numbers = helper.make_node("Constant", [], ["number"], **number)
        own = [call.input[0], *["number"][: outer == "Unsqueeze"]]
        graph.node.insert(0, numbers)
        graph.node.insert(1, helper.make_node(outer, own, ["moved"]))
        nodes = [numbers, helper.make_node(inner, ["moved", "number"], [function.input[0]]), *function.node]
        call.input[0] = function.input[0] = "moved"
        del function.node[:]
        function.node.extend(nodes)

    return change


def more_outputs(proto):
    call_of(proto).output.append("more")
    proto.functions[0].output.append("x_again")
    proto.functions[0].node.append(helper.make_node("Identity", ["x"], ["x_again"]))


def weight(proto, at=-1):
    """Returns an initializer."""
    return next(a for a in proto.graph.initializer if a.name == call_of(proto).input[at])


def overridable(proto):
    array = weight(proto)
    proto.graph.input.append(helper.make_tensor_value_info(array.name, FLOAT, array.dims))


def transposed(proto):
    """The last array is a Transpose, which the runtime folds only after it has inlined functions."""
    call, array = call_of(proto), weight(proto)
    proto.graph.node.insert(0, helper.make_node("Transpose", [array.name], ["computed"]))
    call.input[-1] = "computed"


def cast(proto):
    """The weights are float64, which the body rounds."""
    call, (function,) = call_of(proto), proto.functions
    array, inner = weight(proto), function.input[-1]
    wide = numpy_helper.to_array(array).astype(np.float64)
    array.CopyFrom(numpy_helper.from_array(wide, array.name))
    function.input[-1] = "wide"
    nodes = [helper.make_node("Cast", ["wide"], [inner], to=FLOAT), *function.node]
    del function.node[:]
    function.node.extend(nodes)
    assert call.input[-1] == array.name


def one_row(proto):
    array = weight(proto)
    array.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(array)[None], array.name))


LEFT = {
    "another version": (version, "the opset of domain lnrnn must be version 1, got 2"),
    "one attribute more": (other_attribute("more", 1), "attribute peepholes must be given, got none"),
    "no act": (other_attribute("act", None), "23 or 24 attributes in version 1 of domain lnrnn, got 22"),
    "no zoneout, but more": (
        lambda p: (other_attribute("zoneout", None)(p), other_attribute("more", [0.0, 0.0])(p)),
        "attributes eps (a float) and zoneout (2 floats) must be given",
    ),
    "eps is an integer": (other_attribute("eps", 0), "attribute type 3 and at most 4 bytes, got type 1"),
    "bias is a float": (other_attribute("bias", 1.0), "attribute type 1 and at most 8 bytes, got type 3"),
    "three rates": (other_attribute("zoneout", [0.0] * 3), "ONNX's attribute type 4 and at most 8 bytes"),
    "one rate": (other_attribute("zoneout", [0.0]), "attribute zoneout must have 2 numbers, got 1"),
    "zoneout 1": (other_attribute("zoneout", [1.0, 0.0]), "zoneout must be"),
    "eps nan": (other_attribute("eps", float("nan")), "eps must be"),
    **{
        f"{name} {value}": (integer(name, value), reason)
        for name, value, reason in (
            ("cell", 5, "cell must be within 0 .."), ("norm", 4, "norm must be within 0 .."),
            ("norm", 2, "attribute norm must not be 2, batch norm"),
            ("placement", 5, "placement must be within 0"), ("bias", 2, "bias must be within 0 .."),
            ("hidden_size", -1, "hidden_size must be within"), ("hidden_size", 0, "hidden_size must be"),
            ("num_layers", 2**62, "num_layers must be within 0"), ("num_layers", 1000, "have 8003 inputs"),
            ("num_heads", 3, "num_heads must be a divisor"), ("num_heads", 2, "input weight_hh_l0 must have"),
            ("input_size", 4, "input weight_ih_l0 must have shape (16, 4), got (16, 3)"),
            ("hidden_size", 8, "input weight_ih_l0 must have shape (32, 3), got (16, 3)"),
            ("reverse", -1, "reverse must be within 0 .."), ("bidirectional", 1, "must have 19 inputs"),
            ("cell", 2, "attributes must have the values that"), ("placement", 3, "placement must be"),
            ("exp_forget", 1, "exp_forget and bfloat16_states"), ("step", 1, "input 'x' must be float32 of "),
            ("lengths", 1, "must have 12 inputs"), ("proj_size", 2, "must have 12 inputs"),
        )
    },
    "a step with lengths": (integer("step", 1), "and no lengths, got bidirectional=0, lengths=1"),
    "a step of two directions": (
        lambda p: (integer("step", 1)(p), integer("bidirectional", 1)(p)), "got bidirectional=1, lengths=0",
    ),
    "a weight that is left out": (left_out, "input bias_c_l0 must be a constant, got none"),
    "a state that is left out": (h0_in_place_of_a_weight, "input 1 of the node must be given, got none"),
    "x is a sequence": (
        back_and_forth("SequenceConstruct", "SequenceAt", value_int=0),
        "must be float32 of shape (any, any, 3), got no tensor",
    ),
    "x has 9 axes": (
        back_and_forth("Unsqueeze", "Squeeze", value_ints=range(3, 9)), "got float32 of shape of more axes",
    ),
    "one input more": (more_inputs, "must have 11 inputs and 3 outputs, got 12 and 3"),
    "one input less": (fewer_inputs, "must have 11 inputs and 3 outputs, got 10 and 3"),
    "one output more": (more_outputs, "must have 11 inputs and 3 outputs, got 11 and 4"),
    "an initializer that is an input": (overridable, "input bias_c_l0 must be a constant"),
    "a computed weight": (transposed, "input bias_c_l0 must be a constant"),
    "float64 weights": (cast, "input bias_c_l0 must be "),
    "a weight of another shape": (one_row, "input bias_c_l0 must have shape (4,), got (1, 4)"),
}  # fmt: skip


@pytest.mark.parametrize("change, reason", LEFT.values(), ids=LEFT)
def test_other_calls_are_left_to_the_runtime(rng, tmp_path, capfd, change, reason):
    """The runtime computes the body, with the weights that the file has."""
    proto = lstm(lengths="no lengths" in reason)
    given = draw_inputs(alone(proto), rng)
    wanted = alone(proto).run(None, given)
    change(proto)
    ours, nodes = claimed(proto, given, tmp_path)
    assert nodes == 0
    agree(ours, wanted, 0)
    (said,) = left(proto, capfd)
    assert f"lnrnn leaves node '{call_of(proto).name}' (LSTM_" in said and reason in said


def test_calls_with_fewer_outputs_are_left_to_the_runtime(rng, tmp_path):
    proto = lstm()
    del call_of(proto).output[-1], proto.functions[0].output[-1], proto.graph.output[-1]
    computed(proto, draw_inputs(alone(proto), rng), tmp_path, 0)


def test_each_reason_is_logged_once(rng, capfd):
    """The runtime asks again after it has inlined the function of a call."""
    proto, other = lstm(), recurrent(rng, "LSTM", clip=9.0)
    version(proto)
    for name in ("a", "b"):
        node = onnx.NodeProto()
        node.CopyFrom(other.graph.node[0])
        node.name, node.output[:] = name, [f"{name}{k}" for k in range(3)]
        node.input[0] = "x"
        proto.graph.node.append(node)
        proto.graph.output.append(helper.make_tensor_value_info(node.output[0], FLOAT, None))
    proto.graph.initializer.extend(other.graph.initializer)
    assert len(left(proto, capfd)) == 3


@pytest.mark.parametrize("name, shape", [("x", ("T", 2, 4)), ("h0", (1, 1, 4)), ("h0", (2, 4))])
def test_shapes_that_contradict_the_call_are_left_to_the_runtime(rng, tmp_path, name, shape):
    """The body gives the input its shape."""
    proto = lstm()
    graph, (function,) = proto.graph, proto.functions
    for value, sizes in zip(graph.input, (("T", 2, 3), (1, 2, 4), (1, 2, 4)), strict=True):
        sizes = shape if value.name == name else sizes
        value.CopyFrom(helper.make_tensor_value_info(value.name, FLOAT, sizes))
    numbers = {"first": [0], "last": [3], "axes": [2], "whole": [1, 2, 4]}
    bounds = [helper.make_node("Constant", [], [key], value_ints=n) for key, n in numbers.items()]
    inner = [k for k, each in enumerate(call_of(proto).input) if each == name][0]
    inputs = ["given", "first", "last", "axes"] if name == "x" else ["given", "whole"]
    shaped = helper.make_node("Slice" if name == "x" else "Expand", inputs, [function.input[inner]])
    function.input[inner], nodes = "given", [*bounds, shaped, *function.node]
    del function.node[:]
    function.node.extend(nodes)
    given = draw_inputs(alone(proto), rng)
    computed(proto, given, tmp_path, 0)


def test_weights_that_are_fed_are_used(rng, tmp_path):
    """An initializer that is an input of the graph has a value, but not that of the run."""
    proto = lstm()
    given = draw_inputs(alone(proto), rng)
    name = weight(proto, 3).name
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    weight(changed, 3).CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weight(proto, 3)), name))
    wanted = alone(changed).run(None, given)
    given[name] = numpy_helper.to_array(weight(changed, 3))
    proto.graph.input.append(helper.make_tensor_value_info(name, FLOAT, given[name].shape))
    for is_default in (True, False):
        ours, nodes = claimed(proto, given, tmp_path)
        assert nodes == 0
        agree(ours, wanted, 0)
        if is_default:
            proto.graph.initializer.remove(weight(proto, 3))


# --- where calls stand --------------------------------------------------------------------------------------


def moved(proto, place):
    """Returns a model with the call in both branches of an If, or in the body of a Scan or Loop."""
    call, graph = call_of(proto), proto.graph
    outputs = [value.name for value in graph.output]
    call.output[:] = [f"{name}_in_body" for name in "yhc"]

    def within(ends, nodes=(), inputs=(), first=()):
        infos = [*first, *(helper.make_tensor_value_info(name, FLOAT, None) for name in ends)]
        return helper.make_graph([*nodes, call], "body", list(inputs), infos)

    boolean = TensorProto.BOOL
    if place == "If":
        branches = {"then_branch": within(call.output), "else_branch": within(call.output)}
        node = helper.make_node("If", ["flag"], outputs, **branches)
    else:
        states = [helper.make_tensor_value_info(f"{name}_in", FLOAT, (1, None, 4)) for name in "hc"]
        for k, value in enumerate(states):
            call.input[1 + k] = value.name
        ends = [*call.output[1:], call.output[0]]
        if place == "Loop":
            t, on, on_out = (
                helper.make_tensor_value_info(name, kind, ())
                for name, kind in (("t", TensorProto.INT64), ("on", boolean), ("on_out", boolean))
            )
            keep = helper.make_node("Identity", ["on"], ["on_out"])
            body = within(ends, [keep], [t, on, *states], [on_out])
            body.node[-1].input[0] = "x"
            graph.initializer.append(numpy_helper.from_array(np.array(3), "M"))
            node = helper.make_node("Loop", ["M", "flag", "h0", "c0"], ["h", "c", "y"], body=body)
        else:
            x = helper.make_tensor_value_info("x_t", FLOAT, (None, None, 3))
            call.input[0] = "x_t"
            body = within(ends, inputs=[*states, x])
            node = helper.make_node("Scan", ["h0", "c0", "xs"], ["h", "c", "y"], body=body, num_scan_inputs=1)
            graph.input[0].CopyFrom(helper.make_tensor_value_info("xs", FLOAT, ("N", "T", "B", 3)))
    del graph.node[:], graph.value_info[:]
    graph.node.append(node)
    if place != "Scan":
        graph.input.append(helper.make_tensor_value_info("flag", boolean, ()))
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    return proto


@pytest.mark.parametrize("place", ["If", "Scan", "Loop"])
def test_calls_in_subgraphs(rng, tmp_path, place):
    """The two branches of the If have the same call, and the same names."""
    proto = moved(lstm(), place)
    given = draw_inputs(alone(proto), rng, N=3)
    for flag in (True, False)[: 1 + (place == "If")]:
        given |= {"flag": np.array(flag)} if "flag" in given else {}
        computed(proto, given, tmp_path)


@pytest.mark.parametrize("used", [["h"], ["c", "h"], ["y"], []])
def test_outputs_that_nothing_reads_or_in_another_order(rng, tmp_path, used):
    """The function is called within another one, so that the fused node's outputs have another order."""
    proto = lstm()
    call, graph = call_of(proto), proto.graph
    names = dict(zip("yhc", call.output, strict=True))
    inputs = [*call.input]
    call.output[:] = [names[k] if k in used else "" for k in "yhc"]
    inner = [call, helper.make_node("Identity", ["x"], ["again"])]
    ends = [*(names[k] for k in used), "again"]
    outer = helper.make_function("own", "LSTM", inputs, ends, inner, [*proto.opset_import])
    results = [*(f"out_{k}" for k in used), "x_again"]
    del graph.node[:], graph.output[:], graph.value_info[:]
    graph.node.append(helper.make_node("LSTM", inputs, results, "wrap", domain="own"))
    graph.output.extend(helper.make_tensor_value_info(name, FLOAT, None) for name in results)
    proto.functions.append(outer)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    given = draw_inputs(alone(proto), rng)
    computed(proto, given, tmp_path)


def test_a_call_in_turn_with_itself_and_constant_states(rng, tmp_path):
    """The second call reads the states of the first one, which begins from constants."""
    proto = lstm()
    first, graph = call_of(proto), proto.graph
    second = onnx.NodeProto()
    second.CopyFrom(first)
    second.name, second.input[1:3], second.output[:] = "second", first.output[1:], ["y2", "h2", "c2"]
    graph.node.append(second)
    graph.output.extend(helper.make_tensor_value_info(name, FLOAT, None) for name in second.output)
    for name in ("h0", "c0"):
        (old,) = (value for value in graph.input if value.name == name)
        graph.input.remove(old)
        graph.initializer.append(numpy_helper.from_array(normal(rng, 1, 2, 4), name))
    given = draw_inputs(alone(proto), rng)
    computed(proto, given, tmp_path, 2)


# --- options and errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [{}, {"step": True}], ids=["sequence", "step"])
@pytest.mark.parametrize("cell", ["LSTM", "SLSTM", "LiGRU"])
def test_dtypes_and_threads(rng, cell, form):
    rnn = getattr(lnrnn, cell)(24, 64, seed=0)
    proto = called(rnn, **form)
    given = draw_inputs(alone(proto), rng) | {"n0": np.ones((1, 2, 64), np.float32)}
    given = {value.name: given[value.name] for value in proto.graph.input}
    theirs, one = alone(proto).run(None, given), plugged(proto).run(None, given)
    agree(plugged(proto, threads=2).run(None, given), one, 0)
    for dtype in ("bfloat16", "int8"):
        ours = plugged(proto, dtype=dtype).run(None, given)
        agree(ours, theirs, 0.05)
        assert float(np.abs(ours[0] - theirs[0]).max()) > 1e-5


@pytest.mark.parametrize("T, B", [(0, 3), (4, 0), (0, 0)])
@pytest.mark.parametrize("cell", ["LSTM", "SLSTM"])
def test_no_steps_and_no_sequences(rng, cell, T, B):
    rnn = getattr(lnrnn, cell)(3, 4, seed=0)
    proto = called(rnn, lengths=True)
    given = draw_inputs(alone(proto), rng, T=T, B=B) | {"lengths": np.zeros(B, np.int32)}
    y, *states = plugged(proto).run(None, given)
    assert y.shape == (T, B, 4)
    agree(states, [given[f"{name}0"] for name in "hcnm"[: len(states)]], 0)


WRONG = [
    ("x", (5, 2, 4), r"x must have shape \(any, any, 3\), got \(5, 2, 4\)"),
    ("x", (5, 3), r"x must have shape \(any, any, 3\), got \(5, 3\)"),
    ("h0", (1, 1, 4), r"h0 must have shape \(1, 2, 4\), got \(1, 1, 4\)"),
    ("c0", (1, 2, 5), r"c0 must have shape \(1, 2, 4\), got \(1, 2, 5\)"),
    ("lengths", (3,), r"lengths must have shape \(2,\), got \(3,\)"),
]


@pytest.mark.parametrize("name, shape, message", WRONG)
def test_wrong_inputs_are_errors_that_name_the_call_and_the_input(rng, name, shape, message):
    proto = lstm(lengths=True)
    for value in proto.graph.input:
        value.type.tensor_type.ClearField("shape")
    del proto.graph.value_info[:]
    given = {"x": normal(rng, 5, 2, 3), "h0": normal(rng, 1, 2, 4), "c0": normal(rng, 1, 2, 4)}
    given["lengths"] = np.array([5, 2], np.int32)
    session = plugged(proto)
    wrong = given | {name: np.zeros(shape, given[name].dtype)}
    with pytest.raises(Exception, match=rf"lnrnn: node '.*' \(LSTM_\w+\): input {message}"):
        session.run(None, wrong)
    with pytest.raises(Exception, match="input lengths must be between 0 and the 5 steps, got 6"):
        session.run(None, given | {"lengths": np.array([5, 6], np.int32)})
    agree(session.run(None, given), alone(proto).run(None, given))
