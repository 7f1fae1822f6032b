"""Tests files of RNN, LSTM and GRU with every norm, and files of a version that had only RNN."""

from __future__ import annotations

import json

import numpy as np
import pytest

import lnrnn
from helpers import DATA
from networks import VARIANTS, network

pytest.importorskip("safetensors", reason="models are saved by the safetensors package")

from test_io import equal, pack, parts, refused  # noqa: E402

OLD = {
    "rnn_layer_schema1": lambda: lnrnn.RNN(2, 3, 2, "relu", bidirectional=True, batch_first=True, bias=False),
    "rnn_spec_schema1": lambda: lnrnn.RNN(2, 3, norm=lnrnn.LayerNormSpec("joint", None, 1e-3)).to_dtype(
        "bfloat16"
    ),
    "rnn_none_schema1": lambda: lnrnn.RNN(2, 3, norm=None),
    "rnn_batch_schema1": lambda: lnrnn.RNN(2, 3, norm=lnrnn.BatchNormSpec(4, "mean", None, 0.5)),
}


@pytest.mark.parametrize("name", OLD)
def test_files_of_lnrnn_0_1_0_load(tmp_path, name):
    """lnrnn 0.1.0 had only the RNN, and only one placement of the norm."""
    rnn = OLD[name]()
    state = rnn.state_dict()
    for k, (key, value) in enumerate(rnn.parameters().items()):
        state[key] = (np.arange(value.size).reshape(value.shape) % 7 - 3 + k) / 8
    if "count_l0" in state:
        steps = np.arange(12.0).reshape(4, 3)
        state |= dict(running_mean_l0=steps / 4, running_var_l0=steps / 8, count_l0=np.array([5, 5, 2, 0]))
    rnn.load_state_dict(state)
    old = lnrnn.load(DATA / f"{name}.safetensors")
    equal(old, rnn)
    old.save(tmp_path / "m")  # the new file loads too
    equal(lnrnn.load(tmp_path / "m"), rnn)


NORMS = (dict(placement="joint"), dict(inner_bias=True), dict(span="half"))
CHANGES = (
    dict(cell="RNN"), dict(hidden_size=2**30), dict(num_layers=2),
    dict(bias=False), dict(norm="layer"), dict(input_size=2**31 - 1, hidden_size=2**30),
    dict(num_heads=2), dict(num_heads=3),
)  # fmt: skip


@pytest.mark.parametrize("name", ["LSTM split out", "GRU split all", "LSTM batch", "GRU none"])
def test_files_of_every_cell_are_checked(tmp_path, name):
    """Another configuration or a missing tensor is refused before memory is allocated."""
    rnn, file = network(2, 3, trained=2, **VARIANTS[name]), tmp_path / "m"
    header, data = parts(rnn, file)
    raw, config = file.read_bytes(), json.loads(header["__metadata__"]["config"])
    for change in (
        *({"norm": {"kind": "layer", **norm}} for norm in NORMS), *CHANGES,
        dict(cell="GRU" if name.startswith("LSTM") else "LSTM"),
        dict(nonlinearity="tanh" if name.startswith("LSTM") else "elu"),
    ):  # fmt: skip
        header["__metadata__"]["config"] = json.dumps(config | change)
        refused(file, pack(header, data))
    header["__metadata__"]["config"] = json.dumps(config)
    for key in set(header) - {"__metadata__"}:
        refused(file, pack({k: v for k, v in header.items() if k != key}, data))
    file.write_bytes(raw)
    equal(rnn, lnrnn.load(file))
