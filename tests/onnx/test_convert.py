"""`lnrnn.onnx.convert` writes files that compute the same, and that from_onnx reads back with equal bits."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import warnings
import zlib
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

pytest.importorskip("onnx_ir")
onnxruntime = pytest.importorskip("onnxruntime")

import lnrnn  # noqa: E402
import lnrnn.onnx  # noqa: E402
import lnrnn.onnxruntime  # noqa: E402
from graph_cases import FOLDER, read  # noqa: E402
from lnrnn import cli  # noqa: E402
from lnrnn.onnx.errors import OnnxFileError  # noqa: E402
from lnrnn.onnx.report import describe  # noqa: E402
from lnrnn.onnx.writing import replacement  # noqa: E402
from lnrnn.onnx.writing.converter import in_memory  # noqa: E402
from lnrnn.rnn.settings import snapshot  # noqa: E402
from onnx_runs import session  # noqa: E402

LIMIT = 1e-6  # of a difference, relative to numbers above 1
SIZES = {"T": 5, "B": 3, "H": 4}, {"T": 7, "B": 1, "H": 4}
CASES = [case for path in sorted(FOLDER.glob("*.txt")) if path.name != "cells.txt" for case in read(path)]
STAYS = "error", "nothing", "without a network", "wrong", "unproved"  # words of the expected results
MAY_STAY = (
    "ONNX's own nodes",
    "nodes outside of it also read",
    "different numbers of sequences",
    "could not be checked",
)
INTEGERS = {
    "cell", "act", "input_size", "hidden_size", "num_layers", "bias", "bidirectional", "reverse",
    "reset_after", "norm", "placement", "span", "cell_norm", "inner_bias", "num_heads", "proj_size",
    "gate_activation", "exp_forget", "bfloat16_states", "step", "lengths",
}  # fmt: skip


@pytest.fixture
def convert(tmp_path):
    """Returns a function that converts a model, twice if asked. It returns the new model and the reasons."""

    def run(model, twice=True, **options):
        old, new, again = (tmp_path / f"{name}.onnx" for name in ("old", "new", "again"))
        if isinstance(model, onnx.ModelProto):
            old.write_bytes(model.SerializeToString())
        else:
            lnrnn.to_onnx(model, old, **options)
            options = {}
        reasons = lnrnn.onnx.convert(old, new, **options)
        if twice and new.read_bytes() != old.read_bytes():
            assert all(lnrnn.onnx.convert(new, again, **options).values())
            assert again.read_bytes() == new.read_bytes()
        return onnx.load(new), reasons

    return run


def draw(opened, rng, sizes):
    """Returns random inputs. Integers are 0 to 4. With B=1, masks are true at first and then false."""
    result = {}
    for each in opened.get_inputs():
        shape = [sizes.get(n, 2) if isinstance(n, str) else n for n in each.shape]
        a = rng.standard_normal(shape).astype(np.float32)
        if "int" in each.type:
            a = rng.integers(0, 5, shape, np.int64 if "int64" in each.type else np.int32)
        elif "bool" in each.type:
            a = np.sort(a, 0)[::-1] > 0 if shape and sizes["B"] == 1 else np.asarray(a > 0)
        result[each.name] = a
    return result


def runs_as(old, new, rng):
    """Compares the outputs of two models in ONNX Runtime. Inputs that fail in the old one fail in the new."""
    olds, news = session(old.SerializeToString()), session(new.SerializeToString())
    assert [each.name for each in olds.get_inputs()] == [each.name for each in news.get_inputs()]
    names = [each.name for each in olds.get_outputs() if "seq" not in each.type]
    for sizes in SIZES:
        given = draw(olds, rng, sizes)
        try:
            wants = olds.run(names, given)
        except Exception:
            with pytest.raises(Exception):  # noqa: B017
                news.run(names, given)
            continue
        for ours, want in zip(news.run(names, given), wants, strict=True):
            assert ours.shape == want.shape and ours.dtype == want.dtype
            assert np.abs(ours.astype(float) - want).max(initial=0) <= LIMIT * np.abs(want).max(initial=1)


def test_lengths_may_be_larger_than_int32(convert):
    old = next(case for case in CASES if case.name == "Scan of GRU with lengths").model()
    new, reasons = convert(old)
    assert not any(reasons.values())
    given = {"x": np.ones((3, 4, 3), np.float32), "h0": np.ones((4, 4), np.float32)}
    for longest in (2**31 - 1, 2**31, 2**63 - 1):
        given["lengths"] = np.array([longest, 2, -(2**40), 3])
        wants, found = (session(each.SerializeToString()).run(None, given) for each in (old, new))
        for ours, want in zip(found, wants, strict=True):
            np.testing.assert_allclose(ours, want, rtol=0, atol=1e-6)


def fingerprints(model):
    """Returns the fingerprints of the networks of all parts, whatever the order of their axes."""
    found = []
    for part in lnrnn.onnx.parts(model):
        if part.network is not None:
            now = snapshot(part.network)
            found.append(now.changed(architecture=replace(now.architecture, batch_first=False)).fingerprint())
    return sorted(found)


def checked(model):
    """Returns whether onnx's checker accepts a model."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("case", [
    pytest.param(case, id=case.name) for case in CASES
    if not any(text in case.expected for text in STAYS) and "computes other numbers" not in case.expected
    and "<float[5,3,3] x" not in case.name  # x is constant, and B=1 of the states stands for its 3 sequences
])  # fmt: skip
def test_a_cell_in_operators(case, convert):
    old = case.model()
    try:
        session(old.SerializeToString())
    except Exception:
        return  # ONNX Runtime refuses the file
    new, reasons = convert(old, twice=":" not in case.name)  # not for each change of a file
    stays = [reason for reason in reasons.values() if reason]
    assert all(any(text in reason for text in MAY_STAY) for reason in stays)
    if len(stays) == len(reasons):
        assert new == old
        return
    assert lnrnn.onnxruntime._may_have_cells(old.SerializeToString())  # so a session converts the file too
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    runs_as(old, new, rng)
    assert checked(new) or not checked(old)
    if ":" not in case.name or CASES.index(case) % 3 == 0:  # finds the cells of both files once more
        assert fingerprints(new) == fingerprints(old)


WRONG = [case for case in CASES if "wrong" in case.expected]


@pytest.mark.parametrize("case", WRONG, ids=[case.name for case in WRONG])
def test_a_part_that_computes_something_else_stays(case, convert):
    old = case.model()
    new, reasons = convert(old)
    assert new == old and all(reasons.values())
    assert in_memory(old.SerializeToString(), quick=True)[0] is None


# --- files of to_onnx ---------------------------------------------------------------------------------------

Norm = lnrnn.LayerNormSpec
CELLS = {
    "LSTM": (lnrnn.LSTM, {}), "joint": (lnrnn.LSTM, {"norm": Norm("joint", eps=1e-3)}),
    "carry": (lnrnn.LSTM, {"norm": Norm("gate", cell="carry", inner_bias=True), "reverse": True}),
    "zoneout": (lnrnn.LSTM, {"norm": None, "zoneout": (0.1, 0.2)}),
    "projection": (lnrnn.LSTM, {"norm": None, "proj_size": 2, "num_layers": 2}),
    "bidirectional": (lnrnn.LSTM, {"bidirectional": True, "num_layers": 2, "batch_first": True}),
    "GRU": (lnrnn.GRU, {"bias": False}), "span": (lnrnn.GRU, {"norm": Norm("split", span="all")}),
    "before": (lnrnn.GRU, {"reset_after": False}), "gates": (lnrnn.GRU, {"norm": Norm("gate")}),
    "heads": (lnrnn.GRU, {"norm": None, "num_heads": 2, "zoneout": 0.1, "reset_after": False}),
    "RNN": (lnrnn.RNN, {"nonlinearity": "relu"}), "LiGRU": (lnrnn.LiGRU, {}),
    "LiGRU without norm": (lnrnn.LiGRU, {"norm": None, "bidirectional": True}),
    "SLSTM": (lnrnn.SLSTM, {"num_heads": 2, "exp_forget": True, "state_dtype": "bfloat16"}),
}  # fmt: skip
FORMS = [{"states": False}, {"lengths": True}, {"step": True}]
OPTIONS = [(cell, form) for k, cell in enumerate(CELLS) for form in ({}, FORMS[(k + 1) % 3])
           if not (form.get("step") and {*CELLS[cell][1]} & {"bidirectional", "reverse"})]  # fmt: skip


@pytest.mark.parametrize("cell, form", OPTIONS)
def test_a_network_becomes_one_call_that_has_all_of_it(rng, convert, tmp_path, cell, form):
    kind, options = CELLS[cell]
    rates = {name: value for name, value in options.items() if name == "zoneout"}
    rnn = kind(3, 4, seed=1, **{name: value for name, value in options.items() if name != "zoneout"})
    for name, value in rates.items():
        setattr(rnn, name, value)
    new, reasons = convert(rnn, **form)
    assert [*reasons.values()] == [""]
    old = onnx.load(tmp_path / "old.onnx")
    runs_as(old, new, rng)
    # from_onnx knows these three by the whole file of to_onnx alone
    assert checked(new) and (cell in ("zoneout", "heads", "SLSTM") or fingerprints(new) == fingerprints(old))
    (call,) = (node for node in new.graph.node if node.domain == "lnrnn")
    assert {a.name for a in call.attribute} == INTEGERS | {"eps", "zoneout"}
    given = {a.name: onnx.helper.get_attribute_value(a) for a in call.attribute}
    assert all(type(given[name]) is int for name in INTEGERS) and len(given["zoneout"]) == 2
    read_back = lnrnn.from_onnx(tmp_path / "old.onnx", check=False)
    made, states = snapshot(read_back).architecture, rnn._cell.state_names
    assert given["step"] == form.get("step", 0) and given["lengths"] == form.get("lengths", 0)
    assert (given["hidden_size"], given["num_layers"]) == (4, made.num_layers)
    assert len(call.output) == 1 + len(states)
    stored = {a.name: numpy_helper.to_array(a) for a in new.graph.initializer}
    arrays = [stored.get(name) for name in call.input[1 + len(states) + given["lengths"] :]]
    assert all(np.array_equal(a, b) for a, b in zip(arrays, read_back.parameters().values(), strict=True))
    assert {(each.domain, each.version) for each in new.opset_import} == {("", 17), ("lnrnn", 1)}
    assert 8 <= new.ir_version <= 10 and [(f.domain, f.name) for f in new.functions] == [
        ("lnrnn", call.op_type)
    ]


@pytest.mark.parametrize("options", [{"norm": "batch"}, {"resets": True}])
def test_networks_that_stay(convert, options):
    resets = options.pop("resets", False)
    rnn = lnrnn.LSTM(3, 4, **options)
    if options:
        rnn.calibrate([np.ones((2, 3, 3), np.float32)])
    _, reasons = convert(rnn, resets=resets)
    assert [*reasons.values()] == ["it has resets" if resets else "it has batch norm"]


# --- files --------------------------------------------------------------------------------------------------


def altered(rnn, path, change):
    """Returns a file of to_onnx that `change` has altered, so that it is read as any other file."""
    lnrnn.to_onnx(rnn, path)
    model = onnx.load(path)
    del model.metadata_props[:]
    change(model.graph)
    return model


@pytest.mark.parametrize("kept", [("y",), ("h",), ("y", "h")])
def test_last_states_that_nobody_reads(convert, tmp_path, rng, kept):
    def change(graph):
        outputs = [each for each in graph.output if each.name in kept]
        del graph.output[:]
        graph.output.extend(outputs)

    old = altered(lnrnn.LSTM(3, 4, seed=0), tmp_path / "m.onnx", change)
    new, reasons = convert(old)
    assert [node.domain for node in new.graph.node].count("lnrnn") == 1 and not any(reasons.values())
    runs_as(old, new, rng)


@pytest.mark.parametrize("norm", ["layer", None])
def test_weights_that_a_caller_may_replace(convert, tmp_path, norm):
    def change(graph):
        graph.input.extend(
            onnx.helper.make_tensor_value_info(a.name, a.data_type, a.dims) for a in graph.initializer
        )

    old = altered(lnrnn.LiGRU(3, 4, seed=0, norm=norm), tmp_path / "m.onnx", change)
    new, reasons = convert(old)
    assert new == old and all("a caller may replace" in reason for reason in reasons.values())
    old.ir_version = 3  # where all initializers are inputs
    assert not any(convert(old)[1].values())


def test_other_nodes_keep_empty_inputs_and_external_data(tmp_path, rng):
    def change(graph):
        make, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
        body = onnx.helper.make_graph(
            [make("Identity", ["go"], ["on"]), make("Identity", ["at"], ["each"])], "body",
            [info("at", 7, []), info("go", 9, [])], [info("on", 9, []), info("each", 7, [])],
        )  # fmt: skip
        table = numpy_helper.from_array(np.arange(9.0), "table")
        graph.initializer.append(numpy_helper.from_array(np.array(3), "count"))
        graph.node.append(make("Constant", [], ["table"], value=table))
        graph.node.append(make("Loop", ["count", ""], ["steps"], body=body))
        graph.output.extend([info("steps", 7, [None]), info("table", 11, [9])])

    old = altered(lnrnn.GRU(3, 4, seed=0), tmp_path / "m.onnx", change)
    (tmp_path / "new").mkdir()
    onnx.save(
        old, tmp_path / "big.onnx", save_as_external_data=True, location="w.bin", size_threshold=100,
        convert_attribute=True,
    )  # fmt: skip
    assert not any(lnrnn.onnx.convert(tmp_path / "big.onnx", tmp_path / "new/big.onnx").values())
    given = draw(session(str(tmp_path / "big.onnx")), rng, SIZES[0])
    wants = session(str(tmp_path / "big.onnx")).run(None, given)
    for ours, want in zip(session(str(tmp_path / "new/big.onnx")).run(None, given), wants, strict=True):
        assert np.abs(ours - want).max() <= LIMIT


@pytest.fixture
def layer(tmp_path):
    """Returns the path of a file with layer norm."""
    lnrnn.to_onnx(lnrnn.LSTM(3, 16, seed=1), tmp_path / "layer.onnx")
    return tmp_path / "layer.onnx"


def test_functions_false_writes_no_functions(tmp_path, layer, rng):
    out = tmp_path / "out.onnx"
    assert lnrnn.onnx.convert(layer, out, functions=False) == {
        "LSTM_l0": "ONNX has no node for it, and functions=False"
    }
    assert out.read_bytes() == layer.read_bytes()


PRECISE = {"INFERENCE_PRECISION_HINT": "f32"}  # on some CPUs OpenVINO would compute in bfloat16


@pytest.mark.parametrize("name, converted", [("Scan of LSTM", True), ("masked Scan of GRU", False)])
def test_openvino_runs_a_file_without_functions(tmp_path, rng, name, converted):
    openvino = pytest.importorskip("openvino")
    case = next(case for case in CASES if case.name == name)
    (tmp_path / "old.onnx").write_bytes(case.model().SerializeToString())
    lnrnn.onnx.convert(tmp_path / "old.onnx", tmp_path / "new.onnx", functions=False)
    assert ("LSTM" in [node.op_type for node in onnx.load(tmp_path / "new.onnx").graph.node]) == converted
    opened = session(str(tmp_path / "old.onnx"))
    given, names = draw(opened, rng, SIZES[0]), [each.name for each in opened.get_outputs()]
    for each in (each for each in given.values() if each.dtype == bool):
        each[...] = np.sort(each, 0)[::-1]
    found = openvino.Core().compile_model(tmp_path / "new.onnx", "CPU", PRECISE)(given)
    for name, want in zip(names, opened.run(names, given), strict=True):
        assert np.abs(found[name] - want).max() <= 1e-5  # OpenVINO's activations are approximations


def test_an_output_that_cannot_be_written(tmp_path, layer, monkeypatch):
    before = layer.read_bytes()
    with pytest.raises(ValueError, match="the output must be another file than the input"):
        lnrnn.onnx.convert(layer, tmp_path / "." / "layer.onnx")
    with pytest.raises(IsADirectoryError):
        lnrnn.onnx.convert(layer, tmp_path)
    with pytest.raises(OnnxFileError, match="damaged"):
        (tmp_path / "damaged.onnx").write_bytes(before[:100])
        lnrnn.onnx.convert(tmp_path / "damaged.onnx", tmp_path / "out.onnx")
    with pytest.raises(TypeError, match="path must be a path"):
        lnrnn.onnx.convert(before, tmp_path / "out.onnx")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if os.path.exists("/dev/full"):
        with pytest.raises(OSError, match="not a regular file"):
            lnrnn.onnx.convert(layer, "/dev/full")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        lnrnn.onnx.convert(layer, tmp_path / "out.onnx")
    assert caught.value.filename == str(tmp_path / "out.onnx")
    assert {path.name for path in tmp_path.iterdir()} == {"layer.onnx", "damaged.onnx"}
    assert layer.read_bytes() == before


def test_external_data_stays_external(tmp_path, layer, rng, monkeypatch):
    model, folder = onnx.load(layer), tmp_path / "new"
    folder.mkdir()
    onnx.save(model, tmp_path / "big.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    lnrnn.onnx.convert(tmp_path / "big.onnx", folder / "big.onnx")
    assert {path.name for path in folder.iterdir()} == {"big.onnx", "big.onnx.data"}
    assert (folder / "big.onnx").stat().st_size < 10_000
    again = tmp_path / "again"
    again.mkdir()
    lnrnn.onnx.convert(folder / "big.onnx", again / "big.onnx")
    for name in ("big.onnx", "big.onnx.data"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()
    runs_as(onnx.load(layer), onnx.load(folder / "big.onnx"), rng)
    with pytest.raises(ValueError, match="the output must be another file"):
        lnrnn.onnx.convert(folder / "big.onnx", folder / "big.onnx.data")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("onnx_ir.save", full)
    with pytest.raises(OSError, match="No space left"):
        lnrnn.onnx.convert(folder / "big.onnx", again / "big.onnx")
    assert sorted(path.name for path in again.iterdir()) == ["big.onnx", "big.onnx.data"]
    assert (again / "big.onnx.data").read_bytes() == (folder / "big.onnx.data").read_bytes()


@pytest.mark.parametrize("functions", [True, False])
@pytest.mark.parametrize("changing", ["m.onnx", "w.bin"])
def test_a_file_that_changes_during_the_conversion(tmp_path, layer, monkeypatch, changing, functions):
    location = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(onnx.load(layer), tmp_path / "m.onnx", **location if changing == "w.bin" else {})
    changed = replacement.changed

    def slow(*arguments):
        result = changed(*arguments)
        os.utime(tmp_path / changing, (1, 1))
        return result

    monkeypatch.setattr(replacement, "changed", slow)
    with pytest.raises(OnnxFileError, match=f"{changing}.* changed during the conversion; convert it again"):
        lnrnn.onnx.convert(tmp_path / "m.onnx", tmp_path / "out.onnx", functions=functions)
    assert not [path for path in tmp_path.iterdir() if "out" in path.name or path.is_dir()]


def test_sparse_initializers_are_refused_by_their_name(layer):
    model = onnx.load(layer)
    values = numpy_helper.from_array(np.ones(1, np.float32), "sparse")
    place = numpy_helper.from_array(np.zeros(1, np.int64), "place")
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, place, [16]))
    assert lnrnn.onnx.parts(model)
    model.graph.node.append(onnx.helper.make_node("Add", ["y", "sparse"], ["z"], "sum"))
    with pytest.raises(OnnxFileError, match="must not be sparse, got one at 'sum'"):
        lnrnn.onnx.parts(model)


@pytest.mark.parametrize("opset, reason", [(16, "it needs an opset from 17"), (17, "")])
def test_functions_have_the_opset_of_the_file(convert, opset, reason):
    model = next(case for case in CASES if "NORM(sum)" in case.name).model()
    model.opset_import[0].version = opset
    new, reasons = convert(model)
    (text,) = reasons.values()
    assert text.startswith(reason) and bool(text) == bool(reason) == (not new.functions)
    assert all(each.version == opset for f in new.functions for each in f.opset_import)


def test_the_command(tmp_path, layer, capsys):
    out = tmp_path / "out.onnx"
    assert cli.main(["onnx", str(layer), "-o", str(out)]) == 0
    assert capsys.readouterr().out == "LSTM_l0: replaced\n"
    assert cli.main(["onnx", str(layer), "-o", str(out), "--json", "--no-functions"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["LSTM_l0"] and out.read_bytes() == layer.read_bytes()
    assert cli.main(["onnx", str(layer), "-o", str(layer)]) == 2


# --- sessions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", "bytes", "external data"])
def test_a_session_runs_a_converted_file(tmp_path, layer, rng, monkeypatch, kind):
    pytest.importorskip("onnxruntime", minversion="1.25")
    source = {"path": layer, "bytes": layer.read_bytes()}.get(kind, tmp_path / "big.onnx")
    if kind == "external data":
        onnx.save(onnx.load(layer), source, save_as_external_data=True, location="w.bin", size_threshold=0)
    seen, opens = [], onnxruntime.InferenceSession

    def noted(file, *arguments, **named):
        seen.append(file)
        return opens(file, *arguments, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", noted)
    opened = lnrnn.onnxruntime.session(source)
    assert [node.domain for node in onnx.load_from_string(seen[-1]).graph.node] == ["lnrnn"]
    plain = session(str(layer))
    given = draw(plain, rng, SIZES[0])
    for ours, want in zip(opened.run(None, given), plain.run(None, given), strict=True):
        assert np.abs(ours - want).max() <= LIMIT * 10


def test_a_session_says_that_a_file_is_too_large_to_convert(layer, monkeypatch, capsys):
    pytest.importorskip("onnxruntime", minversion="1.25")
    monkeypatch.setattr("lnrnn.onnx.writing.converter.MOST_BYTES", 1000)
    expected = r"functions: a model must have at most 1000 bytes to be converted .*, got \d{4}; convert"
    with pytest.warns(UserWarning, match=expected) as caught:
        opened = lnrnn.onnxruntime.session(layer)
    assert caught[0].filename == __file__
    assert [each.name for each in opened.get_inputs()] == [
        each.name for each in session(str(layer)).get_inputs()
    ]
    assert cli.main(["onnx", str(layer)]) == 0
    assert "at most 1000 bytes" in capsys.readouterr().out


def test_without_onnx_a_session_says_once_what_is_missing(layer, monkeypatch):
    pytest.importorskip("onnxruntime", minversion="1.25")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *more: None if name == "onnx_ir" else find(name, *more)
    )
    lnrnn.onnxruntime._say_what_is_missing.cache_clear()
    with pytest.warns(UserWarning, match="takes nodes RNN, LSTM and GRU alone: pip install onnx") as caught:
        lnrnn.onnxruntime.session(layer)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lnrnn.onnxruntime.session(layer)


def test_a_session_says_that_the_runtime_refuses_a_conversion(layer, monkeypatch):
    pytest.importorskip("onnxruntime", minversion="1.25")
    monkeypatch.setattr("lnrnn.onnx.writing.converter.in_memory", lambda *_, **__: (b"no file", {}))
    with pytest.warns(UserWarning, match="refuses the converted file, so the file runs as it is") as caught:
        assert lnrnn.onnxruntime.session(layer).get_outputs()
    assert caught[0].filename == __file__


def test_a_session_searches_no_file_that_has_nothing_to_convert(tmp_path, layer, monkeypatch):
    pytest.importorskip("onnxruntime", minversion="1.25")
    lnrnn.to_onnx(lnrnn.GRU(3, 4, norm=None), tmp_path / "plain.onnx")
    lnrnn.onnx.convert(layer, tmp_path / "converted.onnx")
    monkeypatch.setattr("lnrnn.onnx.writing.converter.in_memory", None)
    for name in ("plain", "converted"):
        assert lnrnn.onnxruntime.session(tmp_path / f"{name}.onnx").get_outputs()


def test_a_session_leaves_it_to_the_runtime_to_refuse_a_file(tmp_path):
    pytest.importorskip("onnxruntime", minversion="1.25")
    with pytest.raises(Exception, match="(?i)protobuf parsing failed"):
        lnrnn.onnxruntime.session(b"no file")
    with pytest.raises(Exception, match="(?i)doesn't exist"):
        lnrnn.onnxruntime.session(tmp_path / "none.onnx")


@pytest.mark.parametrize("place", ["metadata", "comment"])
def test_a_text_that_onnx_ir_cannot_write_is_refused(tmp_path, place):
    path = tmp_path / "m.onnx"
    lnrnn.to_onnx(lnrnn.LSTM(3, 4, seed=0), path)
    proto = onnx.load(path)
    if place == "metadata":
        proto.metadata_props.add(key="key", value="text")
    else:
        proto.graph.doc_string = "text"
    path.write_bytes(proto.SerializeToString().replace(b"text", b"t\xeext"))
    with pytest.raises(ValueError, match="onnx_ir cannot write the model"):
        lnrnn.onnx.convert(path, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()
    (part,) = describe(path)["parts"]
    assert ["onnx_ir cannot write the model" in why for why in part["stays"].values()] == [True]
