"""`lnrnn onnx FILE` says which recurrent parts the plug-in takes, why not the others, and measures both."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("onnx_ir")

import lnrnn  # noqa: E402
import state_models  # noqa: E402
from deployed_models import MODELS  # noqa: E402
from lnrnn import cli  # noqa: E402
from lnrnn.onnx import plugin_trial, report  # noqa: E402
from lnrnn.onnx.parts import parts_of  # noqa: E402
from lnrnn.onnx.reading import read  # noqa: E402
from onnx_files import recurrent  # noqa: E402
from plugin_runs import claimed, data_of, version  # noqa: E402


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Returns a function that reports on a model, with little measuring. It returns each part's "plugin"."""
    monkeypatch.setattr(plugin_trial, "SECONDS", 0)

    def facts(model):
        path = tmp_path / "m.onnx"
        path.write_bytes(data_of(model))
        return [part["plugin"] for part in report.describe(path)["parts"]]

    return facts


def sizes(facts):
    assert all(call["lnrnn"] > 0 and call["onnxruntime"] > 0 for call in facts["calls"])
    return [(call["steps"], call["sequences"]) for call in facts["calls"]]


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("D, lengths", [(1, False), (2, True)])
def test_a_node_is_taken_and_measured(rng, plugin, kind, D, lengths):
    (facts,) = plugin(recurrent(rng, kind, D=D, lengths=lengths, states=True))
    assert facts["taken"] is True and facts["reason"] == "" and sizes(facts) == [(1, 1), (50, 1)]


def test_a_node_with_zeros_of_the_batch_of_another_input_is_measured(rng, plugin):
    """torch's exporter writes such states for zeros(layers, ids.size(0), H)."""
    model = recurrent(rng, "LSTM", states=True)
    nodes = [helper.make_node("ConstantOfShape", ["shape"], [name], f"of {name}") for name in ("h0", "c0")]
    for node in (*nodes, helper.make_node("Identity", ["ids"], ["shape"], "sizes")):
        model.graph.node.insert(0, node)
    del model.graph.input[1:]
    model.graph.input.append(helper.make_tensor_value_info("ids", TensorProto.INT64, (3,)))
    (facts,) = plugin(model)
    assert facts["taken"] is True and facts["reason"] == "" and sizes(facts) == [(1, 1), (50, 1)]


def test_a_node_that_only_the_plug_in_runs(rng, plugin):
    """ONNX Runtime refuses layout=1."""
    (facts,) = plugin(recurrent(rng, "GRU", layout=1))
    assert facts["taken"] and [call["onnxruntime"] for call in facts["calls"]] == [None, None]


@pytest.mark.parametrize("name", ["node", "x" + "é" * 150])  # the log cuts the second name inside of a letter
def test_nodes_that_are_left_have_the_reason_of_the_plug_in(rng, plugin, name):
    model = recurrent(rng, "LSTM", name=name)
    for each in model.graph.initializer:
        each.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(each).astype(np.float64), each.name))
    for each in (*model.graph.input, *model.graph.output):
        each.type.tensor_type.elem_type = TensorProto.DOUBLE
    assert plugin(model) == [{"taken": False, "reason": "input R is not float32", "calls": []}]


def test_a_part_without_a_network_is_left(rng, plugin):
    assert plugin(recurrent(rng, "LSTM", clip=1.0)) == [{"taken": False, "reason": "", "calls": []}]


@pytest.mark.parametrize("opset", [17, 6])
def test_a_node_in_a_function_is_reported_as_a_session_has_it(rng, plugin, opset, tmp_path):
    """onnx cannot convert a GRU of opset 6, whose function stays."""
    model, opsets = recurrent(rng, "GRU", bias=False), [helper.make_opsetid("", opset)]
    names = ["X", "W", "R"]
    node = helper.make_node("GRU", names, ["Y"], "node", hidden_size=4)
    model.functions.append(helper.make_function("own", "cell", names, ["Y"], [node], opsets))
    model.graph.node[0].CopyFrom(helper.make_node("cell", names, ["Y"], "call", domain="own"))
    del model.graph.output[1:]
    model.opset_import.append(helper.make_opsetid("own", 1))
    (facts,) = plugin(model)
    assert facts["taken"] is (True if opset == 17 else None) and bool(facts["calls"]) == (opset == 17)
    if opset == 17:
        given = {"X": rng.standard_normal((5, 2, 3)).astype(np.float32)}
        assert claimed(model, given, tmp_path)[1] == 1


def test_a_part_that_cannot_be_run_has_a_reason(rng, plugin, monkeypatch):
    def refuse(*arguments, **named):
        raise RuntimeError("no\nsession")

    monkeypatch.setattr(plugin_trial.plugin, "session", refuse)
    (facts,) = plugin(recurrent(rng, "RNN"))
    assert facts == {"taken": None, "reason": "ONNX Runtime says: no session", "calls": []}


@pytest.mark.parametrize(
    "options, want",
    [
        ({"step": True}, [(1, 1)]),
        ({"resets": True, "lengths": True}, [(1, 1), (50, 1)]),
        ({"states": False}, [(1, 1), (50, 1)]),
    ],
)
def test_a_whole_file_of_to_onnx_can_be_measured(tmp_path, monkeypatch, options, want):
    """So the report has costs as soon as the plug-in takes such a file."""
    monkeypatch.setattr(plugin_trial, "SECONDS", 0)
    rnn = lnrnn.SLSTM(3, 4)
    lnrnn.to_onnx(rnn, tmp_path / "m.onnx", **options)
    model = read(tmp_path / "m.onnx")
    (part,) = parts_of(model)
    data = (tmp_path / "m.onnx").read_bytes()
    calls = plugin_trial._calls(part, model, data, np.dtype(np.float32))
    assert sizes({"calls": calls}) == want


def test_the_lines_about_the_plug_in(tmp_path, capsys, rng, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugin_trial, "_least", lambda sessions, feed: [9.4e-6, 1.234e-3])
    state_models.policy(tmp_path / "m.onnx")
    assert cli.main(["onnx", "m.onnx"]) == 0
    out = capsys.readouterr().out
    assert (
        "     plug-in: takes it\n     estimate, T=1, B=1: 1.2 ms in ONNX Runtime, 9.4 us in the plug-in\n"
        in out
    )
    assert cli.main(["onnx", "m.onnx", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    (call, _) = facts["parts"][0]["plugin"]["calls"]
    assert call == {"steps": 1, "sequences": 1, "onnxruntime": 1.234e-3, "lnrnn": 9.4e-6}
    (call, _) = facts["parts"][0]["plugin"]["calls"] = [call | {"onnxruntime": None}] * 2
    assert "not run in ONNX Runtime, 9.4 us" in report.text(facts)
    facts["parts"][0]["plugin"] = {"taken": True, "reason": "one node has a clip", "calls": []}
    assert "plug-in: takes it in part: one node has a clip\n" in report.text(facts)
    facts["parts"][0]["plugin"] = {"taken": None, "reason": "it also reads 'z'", "calls": []}
    assert "plug-in: was not tried: it also reads 'z'\n" in report.text(facts)


@pytest.mark.parametrize(
    "seconds, want",
    [(1.23e-6, "1.2 us"), (9.96e-6, "10 us"), (9.94e-5, "99 us"), (123.4e-6, "123 us"), (0.9996e-3, "1 ms"),
     (0.0521, "52 ms"), (1.5, "1500 ms")],
)  # fmt: skip
def test_times_have_two_or_three_digits(seconds, want):
    assert report._time(seconds) == want


@pytest.mark.parametrize("name", MODELS)
def test_files_of_real_models(rng, name, plugin):
    deployed = MODELS[name](rng)
    model = onnx.load(deployed.model) if isinstance(deployed.model, str) else deployed.model
    every = plugin(model)
    assert every
    if deployed.nodes is not None:
        taken = deployed.taken(version()) > 0
        assert all((facts["taken"], bool(facts["calls"])) == (taken, taken) for facts in every)


def test_nothing_is_written_to_the_standard_error(rng, plugin, capfd):
    plugin(recurrent(rng, "GRU"))
    assert capfd.readouterr() == ("", "")
