"""Names, versions, bytes and refusals of to_onnx, and the arrays of networks with rounded weights."""

from __future__ import annotations

import pytest

onnx = pytest.importorskip("onnx")

import numpy as np  # noqa: E402
from onnx import numpy_helper  # noqa: E402

import lnrnn  # noqa: E402
from networks import VARIANTS, calm, network, normal, same  # noqa: E402
from onnx_runtimes import NEAR, Case, close, has_results, opened, written  # noqa: E402
from short_weights import to_bfloat16, to_int8  # noqa: E402

FIRST, LAYER_NORM, RMS_NORM, LAST = 13, 17, 23, 28


def arrays_of(model):
    return {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}


def shapes_of(values):
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


def test_inputs_and_outputs_have_the_names_of_a_call(tmp_path):
    rnn = network(3, 6, cell="LSTM", num_layers=2, bidirectional=True, projected=True)
    graph = written(rnn, tmp_path / "m.onnx", lengths=True, resets=True).graph
    states = dict(h0=[4, "B", 3], c0=[4, "B", 6])
    assert shapes_of(graph.input) == dict(x=["T", "B", 3], **states, lengths=["B"], resets=["T", "B"])
    assert shapes_of(graph.output) == dict(y=["T", "B", 6], h=[4, "B", 3], c=[4, "B", 6])

    graph = written(network(3, 6, cell="SLSTM", batch_first=True), tmp_path / "m.onnx", resets=True).graph
    assert list(shapes_of(graph.input)) == ["x", "h0", "c0", "n0", "m0", "resets"]
    assert shapes_of(graph.input)["resets"] == ["B", "T"] and shapes_of(graph.output)["y"] == ["B", "T", 6]
    assert list(shapes_of(graph.output)) == ["y", "h", "c", "n", "m"]

    rnn = network(3, 6, cell="GRU", norm="batch", trained=4)
    graph = written(rnn, tmp_path / "m.onnx", step=True).graph
    assert shapes_of(graph.input) == dict(x=["B", 3], h0=[1, "B", 6], step0=["B"])
    assert shapes_of(graph.output) == dict(y=["B", 6], h=[1, "B", 6], step=["B"])
    assert list(shapes_of(written(rnn, tmp_path / "m.onnx", states=False).graph.input)) == ["x"]


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_names_are_unique_and_all_arrays_are_used(tmp_path, variant, ragged):
    rnn = network(3, 4, trained=4, num_layers=2, bidirectional=True, **VARIANTS[variant])
    graph = written(rnn, tmp_path / "m.onnx", lengths=ragged, resets=ragged and "none" not in variant).graph
    values, nodes, graphs = [], [], [graph]
    for each in graphs:
        values += [v.name for v in (*each.input, *each.initializer)]
        for node in each.node:
            values += node.output
            nodes.append(node.name)
            graphs += [a.g for a in node.attribute if a.name == "body"]
    assert len(values) == len(set(values)) and len(nodes) == len(set(nodes)) and "" not in {*values, *nodes}
    used = {name for each in graphs for node in each.node for name in node.input}
    assert {each.name for each in graph.initializer} <= used


@pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU"])
def test_a_plain_layer_is_a_node(tmp_path, cell):
    rnn = network(3, 4, cell=cell, norm=None, num_layers=2, bidirectional=True)
    for options in ({}, dict(lengths=True), dict(states=False)):
        ops = [node.op_type for node in written(rnn, tmp_path / "m.onnx", **options).graph.node]
        assert ops.count(cell) == 2 and "Scan" not in ops
    rnn = network(3, 4, cell=cell, norm=None, num_layers=2)
    ops = [node.op_type for node in written(rnn, tmp_path / "m.onnx", step=True, resets=True).graph.node]
    assert ops.count(cell) == 2
    nodes = written(rnn, tmp_path / "m.onnx", resets=True).graph.node
    assert [node.name for node in nodes if node.op_type == "Scan"] == [f"{cell}_l0", f"{cell}_l1"]


def test_the_same_network_gives_the_same_bytes(tmp_path):
    for options in (dict(cell="LSTM", bidirectional=True), dict(cell="GRU", norm=None)):
        for name in ("a", "b"):
            lnrnn.to_onnx(network(3, 4, num_layers=2, **options), tmp_path / name, lengths=True)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    model = onnx.load(str(tmp_path / "a"))
    assert (model.producer_name, model.producer_version) == ("lnrnn", lnrnn.__version__)
    assert (model.ir_version, model.opset_import[0].version) == (8, 17)


@pytest.mark.parametrize("opset", [FIRST, LAYER_NORM, 18, 21, RMS_NORM, LAST])
@pytest.mark.parametrize("variant", [
    "LSTM none", "GRU reset none", "LSTM split out", "GRU batch", "SLSTM", "LSTM rms gate carry",
    "GRU rms split", "LSTM none peepholes",
])  # fmt: skip
def test_each_opset_has_the_same_results(tmp_path, rng, variant, opset):
    rnn = calm(5, 8, trained=12, **VARIANTS[variant])
    if opset < LAYER_NORM and variant in ("LSTM split out", "SLSTM"):
        with pytest.raises(ValueError, match="opset must be at least 17 for layer norm, got 13"):
            lnrnn.to_onnx(rnn, tmp_path / "m.onnx", opset=opset)
        return
    for runtime in ("reference", "onnxruntime", "openvino"):
        has_results(rnn, tmp_path / "m.onnx", rng, runtime, opset=opset, states=False)
    model = onnx.load(str(tmp_path / "m.onnx"))
    assert model.opset_import[0].version == opset
    assert (b"RMSNormalization" in model.SerializeToString()) == ("rms" in variant and opset >= RMS_NORM)
    if "rms" in variant:
        assert lnrnn.from_onnx(tmp_path / "m.onnx").norm == rnn.norm


def test_a_file_of_more_than_2_gib_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("lnrnn.onnx.writing.writer.MOST_BYTES", 200)
    with pytest.raises(ValueError, match="rnn must be at most 200 bytes in an ONNX file, got"):
        lnrnn.to_onnx(lnrnn.GRU(3, 4), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


# --- rounded weights ----------------------------------------------------------------------------------------


def rounded(dtype, w):
    if dtype == "bfloat16":
        return to_bfloat16(w)
    q, scale = to_int8(w)
    return (q * scale).astype(np.float32)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("variant", ["LSTM split out", "LSTM none projected", "GRU none", "LSTM heads none"])
def test_a_file_has_the_rounded_weights(tmp_path, rng, variant, dtype):
    rnn = calm(5, 8, **VARIANTS[variant])
    exact = calm(5, 8, **VARIANTS[variant])
    for name, w in rnn.parameters().items():
        if name.startswith("weight"):
            setattr(exact, name, rounded(dtype, w))
    written(rnn.to_dtype(dtype), tmp_path / "m.onnx")
    case = Case.drawn(rng, exact, 6, 3)
    close(opened("reference", tmp_path / "m.onnx")(case.feeds), case.want, NEAR)
    close(rnn.to_dtype(dtype)(case.feeds["x"], lnrnn_state(rnn, case))[:1], case.want[:1], 0.02)


def lnrnn_state(rnn, case):
    found = [case.feeds[f"{name}0"] for name in "hc" if f"{name}0" in case.feeds]
    return found[0] if len(found) == 1 else tuple(found)


def test_quantised_weights_stay_exact_with_int8(tmp_path, rng):
    """The file of an int8 network has the weights with which the network computes."""
    rnn = network(5, 40, norm=None)
    most = np.array([*rng.integers(1, 128, 37), 128, 128, 129])[:, None]
    q = np.rint(rng.uniform(-1, 1, (40, 5)) * most)
    q[:, 0] = most[:, 0] * np.where(most[:, 0] < 128, 1, -1)
    q[38, 1] = 128
    rnn.weight_ih_l0 = w = (q * 0.0123).astype(np.float32)
    stored = arrays_of(written(rnn.to_dtype("int8"), tmp_path / "m.onnx"))["W_l0"][0]
    same(stored, rounded("int8", w))
    np.testing.assert_allclose(stored[:38], w[:38], rtol=2.0**-22)
    assert (np.abs(stored[38:] / w[38:] - 1) > 1e-4).any(1).all()


def test_rows_of_zeros_and_of_tiny_weights_are_0_with_int8(tmp_path, rng):
    rnn = network(5, 4, norm=None)
    w = normal(rng, 4, 5)
    w[0], w[1] = 0, 2.0**-120
    rnn.weight_ih_l0 = w
    stored = arrays_of(written(rnn.to_dtype("int8"), tmp_path / "m.onnx"))["W_l0"][0]
    assert not stored[:2].any()
    same(stored[2:], rounded("int8", w[2:]))
