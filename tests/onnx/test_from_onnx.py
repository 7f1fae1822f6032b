"""Tests from_onnx and parts: names, sub-graphs, results, checks, warnings and errors."""

from __future__ import annotations

import builtins
import sys
import warnings

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx_ir")

import onnx_ir  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import lnrnn  # noqa: E402
import state_models  # noqa: E402
from lnrnn.onnx.nodes import plain  # noqa: E402
from lnrnn.onnx.parts import parts_of  # noqa: E402
from lnrnn.onnx.proof import extracted  # noqa: E402
from lnrnn.onnx.reading import read  # noqa: E402
from onnx_cells import graph_parts  # noqa: E402
from onnx_files import FLOAT, constant, model, recurrent, weights  # noqa: E402
from onnx_runs import agree, outputs, run  # noqa: E402

WIDTH, H = 3, 4
GIVEN = {"X": (FLOAT, ("T", "B", WIDTH))}


def node(kind="LSTM", prefix="", name="node", x="X", y="Y", **options):
    names = [x, *(f"{prefix}{w}" for w in "WRB")]
    return helper.make_node(kind, names, [y], name, hidden_size=H, **options)


def two(rng, first="LSTM", second="GRU", **options):
    """Returns a model of two nodes with different weights, in parallel."""
    own = weights(rng, first, WIDTH, H, prefix="a") | weights(rng, second, WIDTH, H, prefix="b")
    nodes = [node(first, "a", "first", y="Y1"), node(second, "b", "second", y="Y2", **options)]
    return model(nodes, GIVEN, ["Y1", "Y2"], own)


def branches(rng, equal=True):
    """Returns a model with an If whose branches have a node each, with weights from the outer graph."""
    own = weights(rng, "LSTM", WIDTH, H, prefix="a") | weights(rng, "LSTM", WIDTH, H, prefix="b")
    graphs = []
    for i in range(2):
        each = node("LSTM", "a" if equal else "ab"[i], f"lstm{i}", y=f"Y{i}")
        info = helper.make_tensor_value_info(f"Y{i}", FLOAT, None)
        graphs.append(helper.make_graph([each], f"branch{i}", [], [info]))
    either = helper.make_node("If", ["on"], ["Y"], "either", then_branch=graphs[0], else_branch=graphs[1])
    return model([either], GIVEN | {"on": (TensorProto.BOOL, ())}, ["Y"], own)


def test_a_part_shows_no_nodes_or_weights(rng):
    (part,) = lnrnn.onnx.parts(recurrent(rng, "GRU", WIDTH, H))
    assert repr(part) == (
        f"Part(path='node', kind='GRU', network={part.network!r}, reason='', "
        "warnings=[\"the state of node 'node' (GRU) begins at 0 in each call of the file\"])"
    )
    shown = {"path", "kind", "network", "reason", "warnings", "initial_states", "flipped"}
    assert {name for name in dir(part) if name[0] != "_"} == shown


# --- results ------------------------------------------------------------------------------------------------


def test_one_part_is_a_network_and_several_are_a_dict(rng):
    assert type(lnrnn.from_onnx(recurrent(rng, "LSTM", WIDTH, H))) is lnrnn.LSTM
    networks = lnrnn.from_onnx(two(rng))
    assert {name: type(rnn) for name, rnn in networks.items()} == {"first": lnrnn.LSTM, "second": lnrnn.GRU}
    assert type(lnrnn.from_onnx(two(rng), "second")) is lnrnn.GRU
    with pytest.raises(ValueError, match="the path of a part, got 'third'; the paths are 'first', 'second'"):
        lnrnn.from_onnx(two(rng), "third")


def test_paths_bytes_protos_and_models_of_onnx_ir_are_accepted(rng, tmp_path):
    proto = recurrent(rng, "LSTM", WIDTH, H)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    sources = [
        path,
        str(path),
        path.read_bytes(),
        bytearray(path.read_bytes()),
        proto,
        onnx_ir.from_proto(proto),
    ]
    states = [lnrnn.from_onnx(source).state_dict() for source in sources]
    for state in states[1:]:
        assert all(np.array_equal(state[name], states[0][name]) for name in state)


def test_parts_without_a_network_are_warned_about_or_an_error(rng):
    proto = two(rng, clip=2.0)
    with pytest.warns(UserWarning, match="part 'second' has no network: node 'second' .GRU. has clip=2, and"):
        assert list(lnrnn.from_onnx(proto)) == ["first"]
    assert type(lnrnn.from_onnx(proto, "first")) is lnrnn.LSTM  # without a warning
    with pytest.raises(
        ValueError, match="no part can be converted: node 'second' .GRU. has clip=2, and lnrnn's"
    ):
        lnrnn.from_onnx(proto, "second")
    first, second = lnrnn.onnx.parts(proto)
    assert first.reason == "" and first.network is not None
    assert "clip" in second.reason and second.network is None


def test_a_file_without_a_part_is_refused(rng):
    proto = model([helper.make_node("Relu", ["X"], ["Y"])], GIVEN, ["Y"])
    assert lnrnn.onnx.parts(proto) == []
    with pytest.raises(ValueError, match="the file has no recurrent part. lnrnn finds .*, or unrolled$"):
        lnrnn.from_onnx(proto)


def test_parts_have_the_values_of_the_file(rng):
    proto = recurrent(rng, "LSTM", WIDTH, H, lengths=True, states=True)
    (part,) = graph_parts(proto)
    names = [value.name for value in (part.x, part.lengths, *part.h0, *part.c0, part.y, *part.h, *part.c)]
    assert names == ["X", "lens", "h0", "c0", "Y", "Y_h", "Y_c"]
    assert part.axes == {"x": "TBI", "y": "TDBH", "h": "DBH"} and part.warnings == []
    (part,) = graph_parts(recurrent(rng, "GRU", WIDTH, H, outputs=["", "Y_h"], layout=1))
    assert (part.y, part.h0, part.c, part.lengths) == (None, (None,), (), None)
    assert part.axes == {"x": "BTI", "y": "BTDH", "h": "BDH"}


@pytest.mark.parametrize("outputs", [["", "Y_h"], ["Y"], ["", "", "Y_c"]])
def test_outputs_that_are_left_out_are_not_compared(rng, outputs):
    assert lnrnn.from_onnx(recurrent(rng, "LSTM", WIDTH, H, outputs=outputs)).hidden_size == H


# --- sub-graphs ---------------------------------------------------------------------------------------------


def test_branches_with_equal_weights_are_one_part(rng):
    proto = branches(rng)
    (part,) = graph_parts(proto)
    assert part.paths == ("either/else_branch/lstm1", "either/then_branch/lstm0")
    assert [p.path for p in part.same] == ["either/then_branch/lstm0"] and part.same[
        0
    ].network is part.network
    feed = {"X": rng.standard_normal((5, 2, WIDTH), dtype=np.float32), "on": np.array(True)}
    for name in (None, *part.paths, "lstm0", "lstm1"):
        got = outputs(lnrnn.from_onnx(proto, name), feed["X"])
        agree({"Y": got["Y"]}, run(proto, feed))


def test_branches_with_different_weights_are_two_parts(rng):
    paths = ["either/else_branch/lstm1", "either/then_branch/lstm0"]
    assert list(lnrnn.from_onnx(branches(rng, equal=False))) == paths


def test_a_node_in_a_loop_or_scan_has_the_path_of_the_node_around_it(rng):
    own = weights(rng, "GRU", WIDTH, H)
    body = helper.make_graph(
        [node("GRU", y="Y", x="X"), helper.make_node("Identity", ["go"], ["on"])], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ()),
         helper.make_tensor_value_info("go", TensorProto.BOOL, ())],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, ()),
         helper.make_tensor_value_info("Y", FLOAT, None)],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["n", ""], ["all"], "again", body=body)
    proto = model([constant("n", np.array(2)), loop], GIVEN, ["all"], own)
    (part,) = lnrnn.onnx.parts(proto)
    assert part.path == "again/body/node" and part.network.hidden_size == H
    scan_body = helper.make_graph(
        [helper.make_node("Unsqueeze", ["x", "axis"], ["x1"]), node("GRU", y="Y", x="x1")], "body",
        [helper.make_tensor_value_info("x", FLOAT, (2, WIDTH))],
        [helper.make_tensor_value_info("Y", FLOAT, None)],
    )  # fmt: skip
    scan = helper.make_node("Scan", ["X"], ["all"], "scan", body=scan_body, num_scan_inputs=1)
    proto = model([constant("axis", np.array([0])), scan], GIVEN, ["all"], own)
    assert lnrnn.onnx.parts(proto)[0].path == "scan/body/node"
    with pytest.warns(UserWarning, match="part 'scan/body/node': the Scan around it is not converted"):
        assert lnrnn.from_onnx(proto).hidden_size == H


def test_nodes_without_a_name_or_with_equal_names_have_different_paths(rng):
    proto = two(rng)
    for each in proto.graph.node:
        each.name = "same"
    assert list(lnrnn.from_onnx(proto)) == ["same#1", "same#2"]
    for each in proto.graph.node:
        each.name = ""
    assert len(lnrnn.from_onnx(proto)) == 2


def in_functions(rng, opset=17, inner="GRU", calls=1, depth=2):
    """Returns a model whose GRU is in functions that call each other. inner: the first function's node."""
    proto, names = recurrent(rng, "GRU", WIDTH, H, bias=False), ["X", "W", "R"]
    nodes = [helper.make_node(inner, names, ["Y"], "node", domain="own" * (inner != "GRU"))]
    if inner == "GRU":
        nodes[0].attribute.append(onnx.AttributeProto(name="hidden_size", type=2, ref_attr_name="size"))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    for k in range(depth):
        given = ["size"] if k == 0 else []
        proto.functions.append(
            helper.make_function("own", f"f{k}", names, ["Y"], nodes, opsets, attributes=given)
        )
        size = {} if k else {"size": H}
        outputs = ["Y", *(f"Z{i}" for i in range(1, calls))]
        nodes = [helper.make_node(f"f{k}", names, [y], "call", domain="own", **size) for y in outputs]
    proto.graph.node[0].CopyFrom(nodes[0])
    del proto.graph.output[1:]
    proto.opset_import.append(opsets[1])
    return proto


@pytest.mark.parametrize("opset", [17, 14, 22])
def test_a_node_in_a_function_is_a_part(rng, opset):
    proto = in_functions(rng, opset)
    before = proto.SerializeToString()
    x = rng.standard_normal((5, 2, WIDTH), dtype=np.float32)
    for source in (proto, before, onnx_ir.from_proto(proto)):
        assert [part.path for part in lnrnn.onnx.parts(source)] == ["f0/node__2"]
        agree({"Y": outputs(lnrnn.from_onnx(source), x)["Y"]}, run(proto, {"X": x}))
    assert proto.SerializeToString() == before


@pytest.mark.parametrize("options", [dict(inner="f1"), dict(calls=2, depth=30)])  # a cycle, and 2^30 nodes
@pytest.mark.parametrize("called", [True, False])
def test_functions_that_call_themselves_or_too_much_stay(rng, options, called):
    proto = in_functions(rng, **options)
    own = weights(rng, "GRU", WIDTH, H, prefix="a")
    proto.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in own.items())
    proto.graph.node.append(node("GRU", "a", "other", y="other"))
    proto.graph.output[0].name = "other"
    if not called:
        del proto.graph.node[0]
    assert lnrnn.from_onnx(proto, "other").hidden_size == H


def test_functions_of_a_model_with_external_data(rng, tmp_path):
    path, options = tmp_path / "model.onnx", dict(save_as_external_data=True, size_threshold=0)
    onnx.save(in_functions(rng), path, location="data", **options)
    for source in (path, onnx_ir.load(path)):
        for name in (None, "f0/node__2", "node"):
            assert lnrnn.from_onnx(source, name).hidden_size == H


def test_constants_of_a_function_are_folded(rng):
    """A node Constant whose value is an attribute of the function is not."""
    own = weights(rng, "GRU", WIDTH, H, bias=False)
    nodes = [*(constant(name, a) for name, a in own.items()), node("GRU")]
    del nodes[-1].input[3]
    proto = model([helper.make_node("cell", ["X"], ["Y"], domain="own")], GIVEN, ["Y"],
                  more_opsets=[helper.make_opsetid("own", 1)])  # fmt: skip
    proto.functions.append(
        helper.make_function("own", "cell", ["X"], ["Y"], nodes, [helper.make_opsetid("", 17)])
    )
    assert lnrnn.from_onnx(proto).hidden_size == H
    attribute = proto.functions[0].node[0].attribute[0]
    attribute.CopyFrom(onnx.AttributeProto(name="value", type=4, ref_attr_name="w"))
    with pytest.raises(ValueError, match="input W must be a constant, got 'W__1'"):
        lnrnn.from_onnx(proto)


def test_an_initializer_that_is_also_an_input_has_its_default(rng):
    """So it is in files before IR version 4."""
    proto = recurrent(rng, "GRU", WIDTH, H)
    for own in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(own.name, FLOAT, own.dims))
    assert lnrnn.from_onnx(proto).hidden_size == H


def test_constants_of_a_changed_model_of_onnx_ir_are_read_again(rng):
    ir = onnx_ir.from_proto(recurrent(rng, "GRU", WIDTH, H))
    before = lnrnn.from_onnx(ir)
    value = ir.graph.initializers["W"]
    value.const_value = onnx_ir.tensor(value.const_value.numpy() * 2, name="W")
    np.testing.assert_array_equal(lnrnn.from_onnx(ir).weight_ih_l0, 2 * before.weight_ih_l0)


# --- checks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_a_network_with_other_outputs_than_its_part_is_refused(rng, kind, layout, monkeypatch):
    proto = recurrent(rng, kind, WIDTH, H, 2, states=True, lengths=True, layout=layout)
    original = plain._part

    def wrong(*given):
        part = original(*given)
        w = part.converted.state["weight_hh_l0_reverse"].copy()
        w[0, 0] += 1e-3
        part.converted.state["weight_hh_l0_reverse"] = w
        return part

    monkeypatch.setattr(plain, "_part", wrong)
    with pytest.raises(ValueError, match="does not reproduce part 'node': on random input"):
        lnrnn.from_onnx(proto)
    assert lnrnn.from_onnx(proto, check=False).hidden_size == H


def test_weights_that_magnify_rounding_are_compared_in_one_step_or_warned_about(rng):
    proto = recurrent(rng, "RNN", WIDTH, H, activations=["Relu"])
    for own in proto.graph.initializer:
        if own.name == "R":
            own.CopyFrom(numpy_helper.from_array(300 * numpy_helper.to_array(own), "R"))
    assert lnrnn.from_onnx(proto).hidden_size == H


def without(monkeypatch, *names):
    """Makes the import of packages fail."""
    original = builtins.__import__

    def imported(name, *rest, **more):
        if name.split(".")[0] in names:
            raise ImportError(f"No module named {name!r}")
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", imported)
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


def test_without_onnx_runtime_the_reference_checks_what_it_can(rng, monkeypatch):
    without(monkeypatch, "onnxruntime")
    assert lnrnn.from_onnx(recurrent(rng, "GRU", WIDTH, H, states=True)).hidden_size == H
    for options, message in (
        ({"lengths": True}, "onnxruntime is not installed, and onnx.reference ignores sequence_lens"),
        ({"activations": ["Sigmoid", "Tanh"]}, "onnxruntime is not installed, and onnx"),
    ):
        with pytest.warns(
            UserWarning, match=f"part 'node' could not be checked: {message}.*check=False skips"
        ):
            lnrnn.from_onnx(recurrent(rng, "GRU", WIDTH, H, **options))


def test_a_part_that_no_runtime_runs_is_warned_about(rng):
    """ONNX Runtime refuses the version of another domain, and onnx.reference ignores activations."""
    protos = [
        recurrent(rng, "GRU", WIDTH, H),
        recurrent(rng, "GRU", WIDTH, H, activations=["Sigmoid", "Tanh"]),
    ]
    for proto in protos:
        proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 10**6))
    assert lnrnn.from_onnx(protos[0]).hidden_size == H
    with pytest.warns(UserWarning, match="could not be checked: .*ONNX Runtime says"):
        lnrnn.from_onnx(protos[1])


@pytest.mark.parametrize("call, package, message", [
    (lnrnn.from_onnx, "onnx_ir", "from_onnx needs onnx_ir, of the extra 'onnx': pip install onnx onnx-ir"),
    (lnrnn.onnx.parts, "onnx_ir", "needs onnx_ir, of the extra 'onnx': pip install onnx onnx-ir"),
    (lnrnn.onnx.Model, "onnxruntime", "lnrnn.onnx.Model needs onnxruntime: pip install onnxruntime"),
    (lambda path: lnrnn.to_onnx(lnrnn.GRU(3, 4), path), "onnx",
     "to_onnx needs onnx, of the extra 'onnx': pip install onnx"),
], ids=["from_onnx", "parts", "Model", "to_onnx"])  # fmt: skip
def test_a_missing_package_is_named(tmp_path, monkeypatch, call, package, message):
    path = state_models.plain(tmp_path / "m.onnx")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=message):
        call(path)


# --- warnings -----------------------------------------------------------------------------------------------


def test_a_gru_of_torch_without_linear_before_reset_is_repaired_on_request(rng):
    proto = recurrent(rng, "GRU", WIDTH, H, producer="pytorch", linear_before_reset=0)
    with pytest.warns(UserWarning, match="November 2025 and June 2026.*reset_after=True.* repairs"):
        assert not lnrnn.from_onnx(proto).reset_after
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        repaired = lnrnn.from_onnx(proto, reset_after=True)
        other = lnrnn.from_onnx(recurrent(rng, "GRU", WIDTH, H, producer="tf2onnx"))
    assert repaired.reset_after and not other.reset_after
    x = rng.standard_normal((5, 2, WIDTH), dtype=np.float32)
    proto.graph.node[0].attribute[-1].i = 1
    agree(outputs(repaired, x), run(proto, {"X": x}))
    assert not lnrnn.from_onnx(proto, reset_after=False).reset_after


def test_numbers_that_rounding_could_explain_are_warned_about(rng):
    proto = recurrent(rng, "RNN", WIDTH, H)
    for own in proto.graph.initializer:
        own.CopyFrom(numpy_helper.from_array(1e-9 * numpy_helper.to_array(own), own.name))
    with pytest.warns(UserWarning, match="could not be checked: rounding alone may change its outputs by"):
        lnrnn.from_onnx(proto)


def test_one_value_may_be_several_states(rng):
    proto = recurrent(rng, "LSTM", WIDTH, H, states=True)
    proto.graph.node[0].input[6] = "h0"
    del proto.graph.input[2]
    assert lnrnn.from_onnx(proto).hidden_size == H


def test_layout_1_is_a_warning_of_the_part(rng):
    (part,) = lnrnn.onnx.parts(recurrent(rng, "GRU", WIDTH, H, layout=1))
    assert part.warnings[0].startswith("node 'node' (GRU) has layout=1. ONNX Runtime refuses it on a CPU, ")


def test_the_proof_runs_the_nodes_of_the_file(rng):
    """It also runs the nodes that compute the weights, so it would notice a wrong fold."""
    own = weights(rng, "GRU", WIDTH, H)
    own["W"] = own["W"].swapaxes(1, 2).copy()
    nodes = [helper.make_node("Transpose", ["W"], ["W2"], perm=[0, 2, 1]), node("GRU")]
    nodes[1].input[1] = "W2"
    proto = model(nodes, GIVEN, ["Y"], own)
    ir = read(proto)
    (part,) = parts_of(ir)
    extract, _ = extracted(part, ir)
    assert [each.op_type for each in extract.graph.node] == ["Transpose", "GRU"]
