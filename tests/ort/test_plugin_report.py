"""`lnrnn onnx FILE` names the parts that a conversion replaces, and measures the file before and after."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("onnx_ir")

import lnrnn  # noqa: E402
from deployed_models import MODELS  # noqa: E402
from lnrnn import cli  # noqa: E402
from lnrnn.onnx import plugin_trial, report  # noqa: E402
from onnx_files import recurrent  # noqa: E402
from plugin_runs import data_of  # noqa: E402


@pytest.fixture
def report_of(tmp_path, monkeypatch):
    """Returns a function that reports on a model, with little measuring."""
    monkeypatch.setattr(plugin_trial, "SECONDS", 0)

    def facts(model):
        path = tmp_path / "m.onnx"
        path.write_bytes(data_of(model))
        return report.describe(path)

    return facts


def sizes(facts):
    assert all(call["lnrnn"] > 0 and call["onnxruntime"] > 0 for call in facts["calls"])
    return [call["size"] for call in facts["calls"]]


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("D, lengths", [(1, False), (2, True)])
def test_a_file_of_a_node_is_measured(rng, report_of, kind, D, lengths):
    facts = report_of(recurrent(rng, kind, D=D, lengths=lengths))
    assert facts["left"] == [] and facts["not_measured"] == "" and sizes(facts) == [1, 20]
    assert [*facts["parts"][0]["stays"].values()] == ["ONNX's own nodes compute it"]


def test_inputs_that_a_part_does_not_read_are_drawn_too(rng, report_of):
    """torch's exporter writes such states for zeros(layers, ids.size(0), H)."""
    model = recurrent(rng, "GRU")
    model.graph.node[0].input.extend([""] * (5 - len(model.graph.node[0].input)) + ["h0"])
    model.graph.node.insert(0, helper.make_node("Shape", ["ids"], ["rows"], "rows", start=1))
    model.graph.node.insert(1, helper.make_node("Concat", ["one", "rows", "units"], ["all"], "all", axis=0))
    model.graph.node.insert(2, helper.make_node("Expand", ["zero", "all"], ["h0"], "h0"))
    for name, number in {"one": [1], "units": [4], "zero": 0.0}.items():
        array = np.array(number, np.float32 if name == "zero" else np.int64)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.input.append(helper.make_tensor_value_info("ids", TensorProto.INT64, ("T", "B")))
    assert sizes(report_of(model)) == [1, 20]


def test_a_file_without_free_axes_is_measured_once(rng, report_of):
    model = recurrent(rng, "GRU")
    for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, (5, 2, 3), strict=True):
        dim.dim_value = size
    facts = report_of(model)
    assert sizes(facts) == [None] and "\nEstimate: " in report.text(facts)


def test_a_node_that_only_the_plug_in_runs(rng, report_of):
    """ONNX Runtime refuses layout=1."""
    calls = report_of(recurrent(rng, "GRU", layout=1))["calls"]
    assert [call["onnxruntime"] for call in calls] == [None, None] and calls[0]["lnrnn"] > 0


@pytest.mark.parametrize("name", ["node", "x" + "é" * 150])  # the log cuts the second name inside of a letter
def test_nodes_that_are_left_have_the_reason_of_the_plug_in(rng, report_of, name):
    model = recurrent(rng, "LSTM", name=name)
    for each in model.graph.initializer:
        each.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(each).astype(np.float64), each.name))
    for each in (*model.graph.input, *model.graph.output):
        each.type.tensor_type.elem_type = TensorProto.DOUBLE
    (left,) = report_of(model)["left"]
    assert (
        left.startswith("node 'x" if name[0] == "x" else "node 'node'")
        and "input R must be of float32, got float64" in left
    )


def test_a_file_that_cannot_be_run_has_a_reason(rng, report_of, monkeypatch):
    def refuse(*arguments, **named):
        raise RuntimeError("no\nsession")

    monkeypatch.setattr(plugin_trial.plugin, "session", refuse)
    facts = report_of(recurrent(rng, "RNN"))
    assert (facts["calls"], facts["not_measured"]) == ([], "no session")


@pytest.mark.parametrize("options", [{"step": True}, {"resets": True, "lengths": True}, {"states": False}])
def test_a_file_of_to_onnx_is_measured(tmp_path, report_of, options):
    lnrnn.to_onnx(lnrnn.SLSTM(3, 4), tmp_path / "m.onnx", **options)
    facts = report_of((tmp_path / "m.onnx").read_bytes())
    assert sizes(facts) == [1, 20]
    assert facts["parts"][0]["stays"] == {"SLSTM": "it has resets" if "resets" in options else ""}


def test_the_lines_about_a_conversion(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugin_trial, "_least", lambda sessions, feed: [9.4e-6, 1.234e-3])
    lnrnn.to_onnx(lnrnn.LSTM(3, 4), "m.onnx")
    assert cli.main(["onnx", "m.onnx"]) == 0
    out = capsys.readouterr().out
    assert "     LSTM_l0\n     converted: is replaced\n\n" in out
    assert "\nEstimate, free axes 1: 1.2 ms in ONNX Runtime, 9.4 us with the plug-in\n" in out
    assert cli.main(["onnx", "m.onnx", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["calls"][0] == {"size": 1, "onnxruntime": 1.234e-3, "lnrnn": 9.4e-6}
    facts["calls"][0]["onnxruntime"] = None
    facts["left"] = ["node 'a' (GRU): it has a clip"]
    assert "not run in ONNX Runtime, 9.4 us" in report.text(facts)
    assert "\nThe plug-in for ONNX Runtime leaves node 'a' (GRU): it has a clip\n" in report.text(facts)


@pytest.mark.parametrize(
    "seconds, want",
    [(1.23e-6, "1.2 us"), (9.96e-6, "10 us"), (9.94e-5, "99 us"), (123.4e-6, "123 us"), (0.9996e-3, "1 ms"),
     (0.0521, "52 ms"), (1.5, "1500 ms")],
)  # fmt: skip
def test_times_have_two_or_three_digits(seconds, want):
    assert report._time(seconds) == want


@pytest.mark.parametrize("name", ["predictor", "text_encoder", "silero_vad", "tashkeel", "nakdimon"])
def test_files_of_real_models(rng, name, report_of):
    deployed = MODELS[name](rng)
    facts = report_of(onnx.load(deployed.model) if isinstance(deployed.model, str) else deployed.model)
    assert facts["parts"] and (facts["calls"] or facts["not_measured"])


def test_nothing_is_written_to_the_standard_error(rng, report_of, capfd):
    report_of(recurrent(rng, "GRU"))
    assert capfd.readouterr() == ("", "")
