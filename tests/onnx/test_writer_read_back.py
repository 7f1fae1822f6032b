"""from_onnx reads all files of to_onnx as networks. tests/conformance compares their bits.

Cells without a pattern have the network's arguments as metadata. from_onnx compares the graph with the one
that to_onnx would write.
"""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx_ir")

from onnx import numpy_helper  # noqa: E402

import lnrnn  # noqa: E402
from lnrnn.onnx.writing.read_back import KEY  # noqa: E402
from lnrnn.recognise.part import WHOLE_FILE  # noqa: E402
from lnrnn.reference import block_diagonal  # noqa: E402
from networks import MILD, WITH_INNER_BIASES, cell_of, network, normal, parts, same  # noqa: E402

UNKNOWN = re.compile("batch|rms|SLSTM|LiGRU (joint|split|gate)")
VARIANTS = {name: v for name, v in WITH_INNER_BIASES.items() if UNKNOWN.search(name)}


def equal_results(found, rnn, rng, steps=4):
    """Asserts that two networks of the same class have the same results."""
    assert cell_of(found) == cell_of(rnn) and found.batch_first == rnn.batch_first
    x = normal(rng, *((3, steps) if rnn.batch_first else (steps, 3)), rnn.input_size)
    (y, h), (right, right_h) = found(x), rnn(x)
    same(y, right)
    for got, want in zip(parts(found, h), parts(rnn, right_h), strict=True):
        same(got, want)


def read_back(rnn, path, **form):
    lnrnn.to_onnx(rnn, path, **form)
    (part,) = lnrnn.onnx.parts(path)
    assert part.kind == WHOLE_FILE and part.network is not None
    return lnrnn.from_onnx(path)


def test_heads_come_back_as_whole_matrices(tmp_path):
    rnn = network(5, 8, cell="LSTM", num_heads=4)
    lnrnn.to_onnx(rnn, tmp_path / "m.onnx")
    found = lnrnn.from_onnx(tmp_path / "m.onnx")
    same(found.weight_hh_l0, block_diagonal(rnn.weight_hh_l0, 4))


@pytest.mark.parametrize("norm", [None, "layer"])
def test_a_file_without_states_says_that_they_begin_at_0(tmp_path, norm):
    for states in (True, False):
        lnrnn.to_onnx(network(5, 8, cell="LSTM", norm=norm), tmp_path / "m.onnx", states=states)
        (part,) = lnrnn.onnx.parts(tmp_path / "m.onnx")
        assert any("begins at 0 in each call" in text for text in part.warnings) != states


@pytest.mark.parametrize("form", [{}, {"states": False}, {"lengths": True}], ids=str)
@pytest.mark.parametrize("options", [{}, {"norm": None}, {"bidirectional": True}, {"norm": MILD}], ids=str)
def test_batch_first_comes_back(tmp_path, rng, options, form):
    rnn = network(5, 8, cell="GRU", batch_first=True, trained=4, **options)
    lnrnn.to_onnx(rnn, tmp_path / "m.onnx", **form)
    equal_results(lnrnn.from_onnx(tmp_path / "m.onnx"), rnn, rng)


@pytest.mark.parametrize("overrun", ["raise", "last", "mean"])
@pytest.mark.parametrize("options", [
    dict(cell="LSTM"), dict(cell="GRU", bias=False), dict(cell="RNN", bidirectional=True),
    dict(cell="LiGRU", norm=lnrnn.BatchNormSpec(eps=2.5, max_steps=6)),
], ids=str)  # fmt: skip
def test_tables_of_batch_norm_become_statistics(tmp_path, rng, options, overrun):
    """Gains may be negative or 0. The means of all steps become those of one more step."""
    rnn = network(5, 8, trained=4, **dict(norm=MILD) | options)
    rnn.overrun = overrun
    for name, gain in rnn.parameters().items():
        if name.startswith("gain"):
            setattr(rnn, name, gain * np.resize([1, -1, 0, -2, 1e-30], gain.shape))
    found = read_back(rnn, tmp_path / "m.onnx")
    assert found.overrun == ("raise" if overrun == "raise" else "last")
    assert found.known_steps == (5 if overrun == "mean" else 4)
    equal_results(found, rnn, rng, 4)
    if overrun == "raise":
        with pytest.raises(lnrnn.SequenceTooLongError):
            found(normal(rng, 5, 3, 5))
    else:
        equal_results(found, rnn, rng, 7)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_rounded_weights_come_back_in_float32(tmp_path, dtype):
    rnn = network(6, 8, **VARIANTS["SLSTM"]).to_dtype(dtype)
    found = read_back(rnn, tmp_path / "m.onnx")
    lnrnn.to_onnx(found, tmp_path / "again.onnx")
    assert found.dtype == "float32"
    assert (tmp_path / "m.onnx").read_bytes() == (tmp_path / "again.onnx").read_bytes()


def written(path):
    lnrnn.to_onnx(network(6, 8, **VARIANTS["LiGRU joint"]), path)
    return onnx.load(path)


def is_read(proto):
    """Returns whether a file is still that of a whole network."""
    return [part.kind for part in lnrnn.onnx.parts(proto)] == [WHOLE_FILE]


def test_other_weights_are_those_of_the_network(tmp_path):
    proto = written(tmp_path / "m.onnx")
    (own,) = (each for each in proto.graph.initializer if each.name == "weight_ih_l0")
    own.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(own), own.name))
    same(lnrnn.from_onnx(proto).weight_ih_l0, numpy_helper.to_array(own))


@pytest.mark.parametrize("change", ["operator", "edge", "attribute", "number", "shape", "output", "missing"])
def test_a_changed_graph_is_not_the_network_of_its_metadata(tmp_path, change):
    proto = written(tmp_path / "m.onnx")
    assert is_read(proto)
    graph = proto.graph
    (scan,) = (node for node in graph.node if node.op_type == "Scan")
    (body,) = (a.g for a in scan.attribute if a.name == "body")
    if change == "operator":
        next(node for node in body.node if node.op_type == "Mul").op_type = "Add"
    elif change == "edge":
        node = next(node for node in body.node if node.op_type == "Mul")
        node.input[0] = node.input[1]
    elif change == "attribute":
        next(a for node in body.node for a in node.attribute if a.name == "epsilon").f *= 2
    elif change == "number":
        own = next(each for each in graph.initializer if each.name.startswith("number_1"))
        own.CopyFrom(numpy_helper.from_array(np.array(3, np.float32), own.name))
    elif change == "shape":
        own = next(each for each in graph.initializer if each.name == "gain_l0")
        own.CopyFrom(numpy_helper.from_array(np.ones(3, np.float32), own.name))
    elif change == "output":
        del graph.output[1:]
    else:
        for own in graph.initializer:
            own.name = own.name.replace("gain_l0", "another")
        for node in body.node:
            node.input[:] = [name.replace("gain_l0", "another") for name in node.input]
    assert not is_read(proto)


@pytest.mark.parametrize("edit", [
    lambda c: [], lambda c: {}, lambda c: c | {"form": {"step": True}}, lambda c: c | {"zoneout": [2.0]},
    lambda c: c | {"zoneout": "a"}, lambda c: c | {"network": {**c["network"], "cell": "Transformer"}},
    lambda c: c | {"network": {**c["network"], "hidden_size": 2**31 - 1}},
    lambda c: c | {"network": {**c["network"], "num_layers": 1024}},
    lambda c: c | {"network": {**c["network"], "norm": {"kind": "batch", "eps": 1e-5}}},
    lambda c: c | {"network": {**c["network"], "norm": {"kind": "layer", "placement": "gate"}}},
    lambda c: c | {"network": {**c["network"], "nonlinearity": "tanh"}},
    lambda c: c | {"network": {**c["network"], "input_size": None}},
])  # fmt: skip
def test_wrong_metadata_are_ignored(tmp_path, edit):
    proto = written(tmp_path / "m.onnx")
    (entry,) = (each for each in proto.metadata_props if each.key == KEY)
    entry.value = json.dumps(edit(json.loads(entry.value)))
    assert not is_read(proto)


@pytest.mark.parametrize("text", ["", "{", "[" * 9000, "1e999", "null", "9" * 9000, " " * 20_000])
def test_metadata_that_are_no_claim_are_ignored(tmp_path, text):
    proto = written(tmp_path / "m.onnx")
    (entry,) = (each for each in proto.metadata_props if each.key == KEY)
    entry.value = text
    assert not is_read(proto)
