"""`lnrnn onnx FILE` lists recurrent parts, networks or reasons, warnings and states, as text or as JSON."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

import onnx  # noqa: E402
import onnx.parser  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

import lnrnn  # noqa: E402
import state_models  # noqa: E402
from lnrnn import cli  # noqa: E402
from lnrnn.onnx import parts, report  # noqa: E402

FILES = ["silero", "policy", "decoder_joint", "deep_filter", "ifless", "plain"]


@pytest.fixture
def run(capsys):
    """Returns a function that runs `lnrnn onnx` and returns exit code, stdout and stderr."""

    def command(*arguments):
        code = cli.main(["onnx", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def test_the_text_of_a_file(tmp_path, run, monkeypatch):
    """tests/ort/test_plugin_report.py has the lines about the plug-in."""
    state_models.decoder_joint(tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "register", lambda: importlib.import_module("no_such_module"))
    want = """\
m.onnx: opset 17

1 recurrent part, converted
  1. LSTM, 6 nodes: LSTM(3, 4, num_layers=2, batch_first=True, norm=None)
     LSTM of y0
     converted: stays as it is: ONNX's own nodes compute it

Plug-in for ONNX Runtime: not tried. No module named 'no_such_module'

States: 2
    input           output           shape      dtype    lane axis
    input_states_1  output_states_1  (2, B, 4)  float32  1
    input_states_2  output_states_2  (2, B, 4)  float32  1

Other inputs: 3
    encoder_outputs  (B, 3, 1)  float32
    targets          (B, U)     int32
    target_length    (B,)       int32

Other outputs: 2
    outputs          (B, U, 5)  float32
    prednet_lengths  (B,)       int32
"""
    assert run("m.onnx") == (0, want, "")


@pytest.mark.parametrize("name", FILES)
def test_every_line_fits_into_80_columns_and_json_has_the_same_facts(tmp_path, run, name, monkeypatch):
    monkeypatch.setattr("lnrnn.onnx.plugin_trial._least", lambda sessions, feed: [1e-5] * len(sessions))
    path = getattr(state_models, name)(tmp_path / "m.onnx")
    code, out, err = run(path)
    assert (code, err) == (0, "") and max(map(len, out.splitlines())) <= 80
    assert out == "\n".join(line.rstrip() for line in out.splitlines()) + "\n"
    code, text, err = run(path, "--json")
    assert (code, err) == (0, "")
    facts = json.loads(text)
    assert report.text(facts) + "\n" == out
    assert [part["path"] for part in facts["parts"]] == [part.path for part in parts(path)]
    for part, listed in zip(parts(path), facts["parts"], strict=True):
        assert (part.network is None) == (listed["network"] is None)
        assert listed["warnings"] == part.warnings and listed["reason"] == part.reason


def test_states_that_are_unclear_are_listed(tmp_path, run):
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("Relu", ["h"], [name]) for name in ("h_out", "h_next")]
    values = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in names]
        for names in (["h"], ["h_out", "h_next"])
    ]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", *values)), path)
    code, out, _ = run(path)
    assert code == 0
    assert "States of lnrnn.onnx.Model: unclear\n    states must be given if names" in out
    assert (
        "pass states={'h': 'h_out'}" in " ".join(out.split()) and "Inputs: 1\n    h  (2,)  float32\n" in out
    )
    assert "pass states={'h': 'h_out'}" in json.loads(run(path, "--json")[1])["unclear"]


def changed(path, change):
    """Changes the model of a file, and returns the file's path."""
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)
    return path


def test_a_part_without_a_network_has_a_reason(tmp_path, run):
    def clip(model):
        lstm = next(node for node in model.graph.node if node.op_type == "LSTM")
        lstm.attribute.append(helper.make_attribute("clip", 1.5))

    path = changed(state_models.policy(tmp_path / "m.onnx"), clip)
    code, out, _ = run(path)
    (part,) = parts(path)
    assert code == 0 and part.network is None and part.reason
    assert "1 recurrent part, not converted\n  1. LSTM, 1 node: no network\n" in out
    words = " ".join(out.split())
    assert f"reason: {part.reason}" in words and "clip" in words


def test_long_paths_break_after_slashes(tmp_path, run):
    def rename(model):
        for k, node in enumerate(model.graph.node):
            node.name = f"a_rather_long_name_of_a_node_{k}/" * 5

    code, out, _ = run(changed(state_models.silero(tmp_path / "m.onnx"), rename))
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    assert any(line.endswith("/") for line in out.splitlines())


def test_names_longer_than_a_line_are_broken(tmp_path, run):
    long, path = "h" * 200, tmp_path / "m.onnx"
    text = f"m (float[B, 4] {long}) => (float[B, 4] y) {{ y = Tanh ({long}) }}"
    _, out, _ = run(state_models.save(path, text, {}))
    assert max(map(len, out.splitlines())) <= 80 and long in out.replace("\n", "").replace(" ", "")
    assert json.loads(run(path, "--json")[1])["inputs"][0]["name"] == long


def test_names_do_not_move_the_cursor(tmp_path, run):
    path = state_models.plain(tmp_path / "m.onnx")
    change = lambda model: setattr(model, "producer_name", "evil\x1b[2J\n\rprogram")  # noqa: E731
    _, out, _ = run(changed(path, change))
    assert "\x1b" not in out and "\r" not in out and r"evil\x1b[2J\n\rprogram" in "".join(out.split("\n"))


def test_wrong_files_are_errors_of_one_line(tmp_path, run):
    whole = state_models.silero(tmp_path / "m.onnx").read_bytes()
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(whole[: len(whole) // 2])
    other = tmp_path / "other.onnx"
    other.write_bytes(whole.replace(b"stateN", b"state\xe0"))
    for path in (tmp_path / "none.onnx", tmp_path, damaged, other):
        code, out, err = run(path)
        assert (code, out) == (2, "") and err.startswith("lnrnn onnx: error: ") and err.count("\n") == 1


def test_without_onnx_the_error_says_how_to_install_it(tmp_path, run, monkeypatch):
    path = state_models.plain(tmp_path / "m.onnx")
    monkeypatch.setitem(sys.modules, "onnx_ir", None)
    code, out, err = run(path)
    assert (code, out) == (2, "") and "pip install onnx" in err and err.count("\n") == 1


def test_without_onnxruntime_the_plug_in_is_not_tried(tmp_path, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, out, _ = run(state_models.silero(tmp_path / "m.onnx"))
    assert code == 0 and "Estimate" not in out
    assert "Plug-in for ONNX Runtime: not tried. lnrnn.onnxruntime needs onnxruntime 1.25" in out


def test_a_scan_of_no_known_cell_is_listed(tmp_path, run):
    """The running sum of x is no cell."""
    body = onnx.parser.parse_graph("body (float[B, 3] s, float[B, 3] x) => (float[B, 3] t, float[B, 3] y) "
                                   "{ t = Add (s, x) y = Identity (t) }")  # fmt: skip
    scan = onnx.helper.make_node("Scan", ["s0", "x"], ["s", "y"], "sums", body=body, num_scan_inputs=1)
    info = [onnx.helper.make_tensor_value_info(n, 1, ("T", "B", 3)[n == "s0" :]) for n in ("s0", "x")]
    out = [onnx.helper.make_tensor_value_info(n, 1, None) for n in ("s", "y")]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([scan], "g", info, out)), tmp_path / "m.onnx")
    want = "'sums' (Scan): its body is no step of a cell of lnrnn"
    assert f"No recurrent part\n     no part: {want}\n" in run(tmp_path / "m.onnx")[1]
    with pytest.raises(ValueError, match=r"unrolled. It does not know 'sums' .Scan.: its body is no step"):
        lnrnn.from_onnx(tmp_path / "m.onnx")
