"""Tests from_keras on HDF5 files as Keras 2 writes them, and on the weights of its layers for CuDNN."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_from_keras import H, I, computed, weights

import lnrnn
from lnrnn.importers.keras_weights import convert_keras

h5py = pytest.importorskip("h5py")
GATED = {"activation": "tanh", "recurrent_activation": "sigmoid"}


def for_cudnn(p):
    """Returns weights as a layer for CuDNN has them: a gate's matrix in cuDNN's (H, I), and two biases."""
    gates = p["kernel"].shape[1] // H
    stored = {
        name: np.hstack([np.ascontiguousarray(w.T).reshape(w.shape) for w in np.hsplit(p[name], gates)])
        for name in ("kernel", "recurrent_kernel")
    }
    bias = p["bias"].reshape(-1) if gates == 3 else np.concatenate([p["bias"] - 0.5, np.full(4 * H, 0.5)])
    return stored | {"bias": bias}


def write(path, layers, *, whole=True, version="2.2.4"):
    """Writes {name: (entry of the configuration, {name of an array: array})}. whole: with a configuration."""
    with h5py.File(path, "w") as file:
        groups = file.create_group("model_weights") if whole else file
        groups.attrs["layer_names"] = [name.encode() for name in layers]
        groups.attrs["keras_version"] = version.encode()
        for name, (_, arrays) in layers.items():
            group = groups.create_group(name)
            group.attrs["weight_names"] = [each.encode() for each in arrays]
            for each, array in arrays.items():
                group[each] = array
        if whole:
            entries = [{"class_name": kind, "config": {"name": name, **config}}
                       for name, ((kind, config), _) in layers.items()]  # fmt: skip
            file.attrs["model_config"] = json.dumps(
                {"class_name": "Sequential", "config": {"layers": entries}}
            )
    return path


def named(name, p):
    return {f"{name}/{leaf}:0": array for leaf, array in p.items()}


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_the_weights_of_a_layer_for_cudnn_are_converted(rng, tmp_path, kind):
    p = weights(rng, kind)
    stored = for_cudnn(p)
    path = write(tmp_path / "m.h5", {"r": ((f"CuDNN{kind}", {}), named("r", stored))})
    for converted in (convert_keras(list(stored.values())), convert_keras(stored), convert_keras(path)):
        computed(rng, kind, [[p]])(converted)


@pytest.mark.parametrize("whole", [True, False])
def test_a_path_is_the_network_of_its_recurrent_layer(rng, tmp_path, whole):
    p, q = weights(rng, "LSTM"), weights(rng, "LSTM")
    dense = (("Dense", {}), {"dense/kernel:0": np.ones((H, 2))})
    both = named("b/forward_lstm", p) | named("b/backward_lstm", q)
    inner = {"class_name": "LSTM", "config": GATED | {"name": "lstm"}}
    layers = {"dense": dense, "b": (("Bidirectional", {"layer": inner, "merge_mode": "concat"}), both)}
    path = write(tmp_path / "m.h5", layers, whole=whole)
    computed(rng, "LSTM", [[p, q]])(convert_keras(str(path), bidirectional=not whole))


def test_several_layers_are_chosen_by_name(rng, tmp_path):
    p, q = weights(rng, "LSTM"), weights(rng, "LSTM", H)
    path = write(tmp_path / "m.h5", {name: (("LSTM", GATED), named(name, each)) for name, each in
                                     (("a", p), ("b", q))})  # fmt: skip
    computed(rng, "LSTM", [[p], [q]])(convert_keras(path, layer=["a", "b"]))
    computed(rng, "LSTM", [[p]])(convert_keras(path, layer="a"))
    for layer, words in ((None, "layer must be the name of one of .* layers: 'a', 'b'"), ("c", "got 'c'")):
        with pytest.raises(ValueError, match=words):
            lnrnn.from_keras(path, layer=layer)


@pytest.mark.parametrize("version, factor", [("2.3.1", 1.2), ("3.0.0", 1)])
def test_the_configuration_and_the_version_of_the_file_count(rng, tmp_path, version, factor):
    p = weights(rng, "GRU")
    config = dict(activation="linear", recurrent_activation="hard_sigmoid", go_backwards=True)
    path = write(tmp_path / "m.h5", {"g": (("GRU", config), named("g", p))}, version=version)
    gru = lnrnn.from_keras(path)
    own = gru.nonlinearity, gru.gate_activation, gru.reverse
    assert own == ("identity", "hard_sigmoid", True)
    rows = gru.weight_ih_l0[:H]
    np.testing.assert_allclose(rows, factor * p["kernel"][:, H : 2 * H].T, rtol=1e-6)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text.h5").write_text("text")
    with pytest.raises(ValueError, match="arrays_or_layer must be the path of an HDF5 file"):
        lnrnn.from_keras(tmp_path / "text.h5")
    with pytest.raises(FileNotFoundError):
        lnrnn.from_keras(tmp_path / "none.h5")
    for change in ("layer_names", "weight_names", "model_config"):
        path = write(tmp_path / "m.h5", {"a": (("LSTM", GATED), {"a/recurrent_kernel:0": np.ones((I, 2))})})
        with h5py.File(path, "r+") as file:
            where = {"weight_names": file["model_weights/a"], "model_config": file}.get(
                change, file["model_weights"]
            )
            where.attrs[change] = "{" if change == "model_config" else [b"other"]
        with pytest.raises(ValueError, match="must be the path of an intact file of Keras"):
            lnrnn.from_keras(path)
    path = write(tmp_path / "m.h5", {"dense": (("Dense", {}), {"dense/kernel:0": np.ones((I, 2))})})
    with pytest.raises(ValueError, match="must be the path of a file with a recurrent layer, got "):
        lnrnn.from_keras(path)
    with pytest.raises(ValueError, match="layer must be None unless a path is given"):
        lnrnn.from_keras([np.ones((I, 4 * H)), np.ones((H, 4 * H))], layer="a")
