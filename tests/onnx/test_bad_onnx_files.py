"""Damaged and hostile ONNX files give a named error: no crash, no hang, no data of other files."""

from __future__ import annotations

import os
import tracemalloc
import warnings

import numpy as np
import pytest

pytest.importorskip("onnx_ir")

import onnx  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

import lnrnn  # noqa: E402
from graph_cases import FOLDER, Case, read  # noqa: E402
from lnrnn.onnx import OnnxFileError  # noqa: E402
from lnrnn.onnx.report import describe  # noqa: E402
from onnx_cells import Writer, affine, cut, draw, graph_parts, layer_norm, lstm, step, step_model  # noqa: E402
from onnx_files import FLOAT, model, recurrent, weights  # noqa: E402
from onnx_loops import loop  # noqa: E402

WIDTH, H = 3, 4
GIVEN = {"X": (FLOAT, ("T", "B", WIDTH))}


def refused(proto, message, error=OnnxFileError):
    with pytest.raises(error, match=message):
        lnrnn.from_onnx(proto)


def info(name):
    return helper.make_tensor_value_info(name, FLOAT, None)


def own_node(**options):
    return helper.make_node("GRU", ["X", "W", "R"], ["Y"], "node", hidden_size=H, **options)


# --- bytes --------------------------------------------------------------------------------------------------


def test_a_file_that_is_cut_off_is_refused(rng, tmp_path):
    raw = recurrent(rng, "LSTM", WIDTH, H).SerializeToString()
    path = tmp_path / "cut.onnx"
    for size in range(0, len(raw), 7):
        path.write_bytes(raw[:size])
        with pytest.raises(ValueError):
            lnrnn.from_onnx(path)


@pytest.mark.parametrize("raw", [b"", b"no model", b"\x00" * 100, b"{}", np.zeros(100).tobytes()])
def test_other_files_are_refused(raw):
    refused(raw, "the file must be an ONNX model, got")


def test_a_file_of_more_bytes_than_a_protobuf_may_have_is_not_read(tmp_path):
    path = tmp_path / "sparse.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(OnnxFileError, match="must have at most 2147483647 bytes, got 2147483648"):
        lnrnn.from_onnx(path)


def test_graphs_inside_of_many_graphs_are_refused(rng):
    def inside(field, raw):
        size, varint = len(raw), b""
        while size > 127:
            varint, size = varint + bytes([size & 127 | 128]), size >> 7
        return bytes([field << 3 | 2]) + varint + bytes([size]) + raw

    graph = b""
    for _ in range(4000):
        graph = inside(1, inside(5, inside(6, graph)))  # a node, its attribute, and its graph
    refused(inside(7, graph), "the file must be an ONNX model")


# --- tensors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dims", [[2**40, 2**20], [-1, 12, 3], [2**62, 2**62, 2**62], [1, 12, 4], [1, 12], []]
)
@pytest.mark.parametrize("kind", ["raw", "numbers", "nothing"])
def test_dims_that_contradict_the_data_are_refused(rng, dims, kind):
    proto = recurrent(rng, "GRU", WIDTH, H)
    w = proto.graph.initializer[0]
    numbers = onnx.numpy_helper.to_array(w)
    w.CopyFrom(TensorProto(name="W", data_type=FLOAT, dims=dims))
    if kind == "raw":
        w.raw_data = numbers.tobytes()
    elif kind == "numbers":
        w.float_data.extend(numbers.ravel())
    refused(proto, "tensor 'W' must have the data that its dims and type say, got", ValueError)


def node_after(proto):
    proto.graph.node.append(helper.make_node("LayerNormalization", ["X", "X"], ["a"], "wrong"))


FIELDS = {
    "kind 99": (lambda p: setattr(p.graph.initializer[0], "data_type", 99), "onnx_ir says: 99"),
    "kind 0": (lambda p: setattr(p.graph.initializer[0], "data_type", 0), "tensor 'W' must have the data"),
    "text": (lambda p: setattr(p.graph.initializer[0], "data_type", TensorProto.STRING), "W"),
    "no type": (lambda p: p.graph.node[0].attribute.append(onnx.AttributeProto(name="clip")),
        "attributes must have types, got none for 'clip' of node 'node'"),
    "two opsets": (lambda p: p.opset_import.append(helper.make_opsetid("ai.onnx", 7)),
        r"ONNX's operators must have one version, got \[7, 16\]"),
    "a later operator": (node_after,
        "node 'wrong' .LayerNormalization. must .* got an operator that opset 16 does not have"),
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_field_is_refused(rng, name):
    change, message = FIELDS[name]
    change(proto := recurrent(rng, "GRU", WIDTH, H, opset=16))
    refused(proto, message, ValueError)


def external(proto, location, **entries):
    """Returns a copy of a model whose weights W are in another file."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    w = result.graph.initializer[0]
    data = w.raw_data
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        w.external_data.add(key=key, value=str(value))
    return result, data


def test_external_data_in_the_folder_of_the_file_is_read(rng, tmp_path, monkeypatch):
    proto = recurrent(rng, "GRU", WIDTH, H)
    (tmp_path / "sub").mkdir()
    other, data = external(
        proto, "sub/weights.bin", offset=8, length=len(proto.graph.initializer[0].raw_data)
    )
    (tmp_path / "sub" / "weights.bin").write_bytes(b"unused.." + data)
    (tmp_path / "model.onnx").write_bytes(other.SerializeToString())
    want = lnrnn.from_onnx(proto).state_dict()
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "model.onnx", "model.onnx", "sub/../model.onnx"):
        got = lnrnn.from_onnx(path).state_dict()
        assert all(np.array_equal(got[name], want[name]) for name in want)
    refused(other, "path_or_model must be a path if the model has external data, got a model", ValueError)


def test_external_data_elsewhere_is_refused(rng, tmp_path):
    proto = recurrent(rng, "GRU", WIDTH, H)
    folder = tmp_path / "model"
    folder.mkdir()
    size = len(proto.graph.initializer[0].raw_data)
    (tmp_path / "secret").write_bytes(bytes(size))
    (folder / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe")
    (folder / "short").write_bytes(bytes(size - 1))
    (folder / "whole").write_bytes(bytes(size))
    for location, entries, message in (
        ("../secret", {}, "in the folder of the model's file, got '../secret' for 'W'"),
        (str(tmp_path / "secret"), {}, "in the folder"),
        ("/dev/zero", {}, "in the folder"),
        ("link", {}, "in the folder"),
        ("pipe", {}, "in the folder"),
        (".", {}, "in the folder"),
        ("none", {}, "in the folder"),
        ("", {}, "in the folder"),
        ("short", {}, f"must be {size} bytes in 'short', got a part of {size - 1} bytes from 0"),
        ("whole", {"offset": 1}, "must be 144 bytes"),
        ("whole", {"offset": -4}, "must be 144 bytes|onnx_ir says"),
        ("whole", {"offset": 2**70}, "must be 144 bytes"),
        ("whole", {"length": size - 4}, "must be 144 bytes"),
        ("whole", {"length": "x"}, "onnx_ir says"),
    ):
        (folder / "model.onnx").write_bytes(external(proto, location, **entries)[0].SerializeToString())
        with pytest.raises(ValueError, match=message):
            lnrnn.from_onnx(folder / "model.onnx")
        if location in ("../secret", "/dev/zero", "none"):
            with pytest.raises(ValueError, match=f"files in the folder .*, got '{location}'"):
                lnrnn.onnx.Model(folder / "model.onnx")


# --- graphs -------------------------------------------------------------------------------------------------


def test_empty_names_stand_for_nothing(rng):
    """ "" is an input or output that is left out, also if it occurs many times."""
    proto = recurrent(rng, "LSTM", WIDTH, H, bias=False, outputs=["", "", "Y_c"])
    proto.graph.node[0].input.extend(["", "", ""])
    del proto.graph.node[0].attribute[:]  # the weights have the number of units
    assert lnrnn.from_onnx(proto).hidden_size == H
    for field in ("input", "initializer"):
        proto = recurrent(rng, "LSTM", WIDTH, H)
        getattr(proto.graph, field)[0].name = ""
        refused(proto, f"{field}s must have names, got an empty one")


def test_nodes_without_inputs_or_outputs_are_refused_or_not_compared(rng):
    proto = recurrent(rng, "LSTM", WIDTH, H)
    del proto.graph.node[0].input[:]
    refused(proto, "input W must be a constant, got none", ValueError)
    proto = recurrent(rng, "LSTM", WIDTH, H)
    del proto.graph.node[0].output[:]
    del proto.graph.output[:]
    with pytest.warns(UserWarning, match="could not be checked: the file uses no output of it"):
        lnrnn.from_onnx(proto)


@pytest.mark.parametrize("name, value", [
    ("hidden_size", 2**40), ("hidden_size", -4), ("hidden_size", 0), ("hidden_size", "4"),
    ("hidden_size", [4]),
    ("direction", 3), ("direction", b"\xff\xfe"), ("direction", ["forward"]), ("layout", 1.5), ("layout", -1),
    ("activations", "Tanh"), ("activations", [1, 2]), ("activations", [b"\xff"]), ("activations", []),
    ("activation_alpha", 0.2), ("activation_alpha", ["a"]), ("clip", "a"), ("clip", [1.0]),
    ("input_forget", "a"), ("linear_before_reset", 7), ("linear_before_reset", "a"),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["RNN", "GRU"])
def test_attributes_of_any_type_and_value_are_refused_or_have_no_meaning(rng, kind, name, value):
    """An attribute that the node does not use is ignored, as by ONNX Runtime."""
    proto = recurrent(rng, kind, WIDTH, H)
    node = proto.graph.node[0]
    for each in [a for a in node.attribute if a.name == name]:
        node.attribute.remove(each)
    if isinstance(value, list) and not value:
        node.attribute.append(onnx.AttributeProto(name=name, type=onnx.AttributeProto.STRINGS))
    else:
        node.attribute.append(helper.make_attribute(name, value))
    try:
        rnn = lnrnn.from_onnx(proto, check=False)
    except ValueError as error:
        assert name.split("_")[0] in str(error) or "onnx_ir says" in str(error)
    else:
        assert rnn.hidden_size == H


@pytest.mark.parametrize("name", sorted(
    {name for kind in ("LSTM", "GRU") for name in onnx.defs.get_schema(kind).attributes}
))  # fmt: skip
def test_an_attribute_of_another_type_is_named(rng, name):
    proto = recurrent(rng, "GRU", WIDTH, H)
    del proto.graph.node[0].attribute[:]
    proto.graph.node[0].attribute.append(helper.make_attribute(name, [0.5] if name == "clip" else 0.5))
    refused(proto, f"node 'node' .GRU.: attribute {name} must be of type", ValueError)


def test_many_nodes_and_graphs_take_time_in_proportion(rng):
    """500 nodes If with graphs, and 500 nodes with equal names."""
    own = weights(rng, "GRU", WIDTH, H, bias=False)
    nodes = [own_node()]
    for i in range(500):
        names = f"a{i}", f"b{i}"
        graphs = [helper.make_graph([helper.make_node("Identity", ["X"], [name])], "g", [], [info(name)])
                  for name in names]  # fmt: skip
        nodes.append(helper.make_node("If", ["on"], [f"c{i}"], then_branch=graphs[0], else_branch=graphs[1]))
    proto = model(nodes, GIVEN | {"on": (TensorProto.BOOL, ())}, ["Y"], own)
    assert lnrnn.from_onnx(proto).hidden_size == H
    nodes = [helper.make_node("GRU", ["X", "W", "R"], [f"Y{i}"], "node", hidden_size=H) for i in range(500)]
    (part,) = graph_parts(model(nodes, GIVEN, ["Y0"], own))
    assert len(part.paths) == 500


def sums_of_itself(proto, name, op="Add", count=60):
    """Puts a chain of nodes before the readers of an input: x + x, (x + x) + (x + x), ..."""
    chain, last = [], name
    for k in range(count):
        chain.append(
            helper.make_node(op, [last, last], [f"sum{k}"], **({"axis": 0} if op == "Concat" else {}))
        )
        last = f"sum{k}"
    nodes = [*chain, *proto.graph.node]
    for node in proto.graph.node:
        node.input[:] = [last if each == name else each for each in node.input]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


@pytest.mark.parametrize("op", ["Add", "Mul", "Concat"])
@pytest.mark.parametrize("name", ["x", "h0"])
def test_values_that_are_read_twice_by_each_node_take_time_in_proportion(rng, name, op):
    """The node at the end depends on the first value in 2^60 ways."""
    assert len(lnrnn.onnx.parts(sums_of_itself(loop(rng, "GRU"), name, op))) == 1
    w = Writer(rng)
    new = step(w, "GRU", draw(rng, "GRU", WIDTH, H), "x", ("h0",))
    (part,) = lnrnn.onnx.parts(sums_of_itself(step_model(w, new, WIDTH, H), name, op))
    assert part.network.hidden_size == H


def test_numbers_that_are_squared_often_take_no_memory(rng):
    proto = loop(rng, "GRU", trip=5)
    proto.graph.input.append(helper.make_tensor_value_info("more", TensorProto.INT64, ()))
    proto = sums_of_itself(proto, "M", "Mul")
    (part,) = lnrnn.onnx.parts(proto)
    assert "its number of steps" in part.warnings[0]


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
@pytest.mark.parametrize("name", ["Sigmoid", "GRU"])
def test_functions_with_names_of_operators_are_refused(rng, domain, name):
    """ONNX Runtime runs the function in place of the operator."""
    proto = recurrent(rng, "GRU", WIDTH, H)
    nodes = [helper.make_node("Neg", ["a"], ["b"])]
    opsets = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function(domain, name, ["a"], ["b"], nodes, opsets))
    refused(proto, f"function '{name}' has the name of a standard operator")


def test_functions_of_functions_are_not_followed_without_end(rng):
    """2000 nodes Tanh, and the sum of two parts of the last."""
    w = Writer(rng)
    x = w.node("Gemm", "x", w.array(rng.standard_normal((WIDTH, 4 * H))))
    for _ in range(2000):
        x = w.node("Tanh", x)
    x = w.node("Add", *w.node("Split", x, n=4, axis=-1)[:2])
    new = step(w, "GRU", draw(rng, "GRU", H, H), x, ("h0",))
    (part,) = graph_parts(step_model(w, new, WIDTH, H))
    assert part.x.name == x


def test_many_equal_steps_are_joined_in_proportion(rng):
    """150 steps that read the same x, each with states of its own."""
    w, new = Writer(rng), []
    p = draw(rng, "GRU", WIDTH, H)
    for _ in range(150):
        new += step(w, "GRU", p, "x", ("h0",))
    (part,) = graph_parts(step_model(w, new, WIDTH, H))
    assert len(part.paths) == 150


def test_numbers_that_overflow_give_no_warnings_of_numpy(rng):
    w = Writer(rng)
    x = w.node("Div", "x", w.array(0.0))
    for _ in range(20):
        x = w.node("Mul", w.node("Add", x, x), w.array(3e38))
    new = step(w, "GRU", draw(rng, "GRU", WIDTH, H), x, ("h0",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(lnrnn.onnx.parts(step_model(w, new, WIDTH, H))) == 1


def chained(proto, count, operators, **arrays):
    """Adds a chain of nodes, which begins with X and has each array in turn as the other operand."""
    last, names = "X", list(arrays)
    for name, array in arrays.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    for k in range(count):
        proto.graph.node.append(helper.make_node(operators[k % 2], [last, names[k % 2]], [f"sum{k}"]))
        last = f"sum{k}"
    return proto


def test_sums_with_large_constants_are_refused(rng):
    """Sums and products with vectors of 30000 numbers have constants of their own."""
    arrays = {name: rng.standard_normal(30000) for name in ("factor", "row")}
    proto = chained(recurrent(rng, "GRU", WIDTH, H), 1000, ["Mul", "Add"], **arrays)
    refused(proto, "constants must need at most 16 bytes for each byte of the file, got more at node")


def test_columns_and_rows_of_constants_are_not_multiplied_out(rng):
    """A column and a row of 1024 numbers would have 2^20 products."""
    arrays = {"column": rng.standard_normal((1024, 1)), "row": rng.standard_normal((1, 1024))}
    proto = chained(recurrent(rng, "GRU", WIDTH, H), 200, ["Add", "Add"], **arrays)
    tracemalloc.start()
    assert lnrnn.from_onnx(proto).hidden_size == H
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**25


def test_a_shape_that_is_computed_by_many_nodes_ends_the_search(rng):
    """Each of 60 nodes Concat doubles the shape, which would have 2**60 numbers."""
    proto = recurrent(rng, "GRU", WIDTH, H)
    nodes = [helper.make_node("Transpose", ["Y"], ["t"], perm=[0, 2, 1, 3])]
    nodes += [helper.make_node("Shape", ["t"], ["c0"])]
    nodes += [helper.make_node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(60)]
    proto.graph.node.extend([*nodes, helper.make_node("Reshape", ["t", "c60"], ["out"])])
    proto.graph.output[0].name = "out"
    assert lnrnn.from_onnx(proto, check=False).hidden_size == H


def test_sizes_too_large_to_try_are_a_reason_not_to_run_a_part(tmp_path):
    (text,) = (case.text for case in read(FOLDER / "stacks.txt") if "float[6,B,3]" in case.text)
    proto = Case("large", text.replace("[6,", f"[{10**12},"), "").model()
    with pytest.warns(UserWarning, match="T=1000000000000 and B=3, which are too large to try"):
        assert lnrnn.from_onnx(proto).num_layers == 2
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    report = describe(tmp_path / "m.onnx")
    assert report["not_measured"].endswith("at most 100000000 elements, got shape (1000000000000, 1, 3)")


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_not_compared(rng, number):
    proto = recurrent(rng, "RNN", WIDTH, H, activations=["Relu"])
    w = onnx.numpy_helper.to_array(proto.graph.initializer[0]).copy()
    w[0, 0, 0] = number
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(w, "W"))
    with pytest.warns(UserWarning, match="could not be checked: its weights or outputs are not finite"):
        lnrnn.from_onnx(proto)


def test_weights_whose_squares_overflow_in_a_norm_are_not_compared(rng):
    """ONNX Runtime computes an infinite variance, and lnrnn does not."""
    w, p = Writer(rng), draw(rng, "LSTM", WIDTH, H)
    p["weight_hh"][0, 0] = 1e36
    a = w.node("Add", affine(w, "x", p["weight_ih"], None), affine(w, "h0", p["weight_hh"], None))
    gates = dict(zip("ifgo", cut(w, layer_norm(w, a, np.ones(4 * H), None), 4, H), strict=True))
    with pytest.warns(UserWarning, match="(squares of its weights|its weights or outputs) are not finite"):
        lnrnn.from_onnx(step_model(w, lstm(w, gates, "c0"), WIDTH, H))


def test_a_node_with_a_text_that_onnx_ir_cannot_write_is_not_compared(rng):
    proto = recurrent(rng, "GRU", WIDTH, H)
    proto.graph.node[0].doc_string = "text"
    raw = proto.SerializeToString().replace(b"text", b"\xee\xef\xee\xef")
    with pytest.warns(UserWarning, match="could not be checked: onnx_ir cannot write node 'node'"):
        lnrnn.from_onnx(raw)


@pytest.mark.parametrize("call", [lnrnn.from_onnx, lnrnn.onnx.parts, lnrnn.onnx.Model])
def test_an_error_names_the_file(tmp_path, rng, call):
    bad = recurrent(rng, "LSTM")
    whole = bad.SerializeToString()
    bad.graph.node[0].input[0] = "nobody computes this"
    for name, data, message in (
        ("damaged.onnx", b"\xff\xff", ""), ("half.onnx", whole[: len(whole) // 2], ""),
        ("wrong.onnx", bad.SerializeToString(), ""),
        ("names.onnx", whole.replace(b"node", b"n\xef\xee\xee"), "names must be text in UTF-8, got b'n"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name}.*{message}"):
            call(tmp_path / name)
