"""Reads recurrent layers from HDF5 files (.h5) of Keras 2, which Keras 3 mostly cannot open.

A file has the weights of each layer by name. A file of a whole model also has its configuration.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..errors import bad_value

RECURRENT = "recurrent_kernel"


def stored_layers(path: str | os.PathLike[str], wanted: str | Sequence[str] | None) -> list[Any]:
    """Returns a file's recurrent layers as `convert_keras` accepts them, or as {name: array} dicts.

    wanted: the names of layers, or None for the only recurrent layer. Dicts are for files of weights alone.
    """
    path = os.fspath(path)
    os.stat(path)  # raises FileNotFoundError, also without h5py
    try:
        h5py: Any = importlib.import_module("h5py")  # h5py has no type hints
    except ImportError:
        raise ImportError("from_keras of a path needs h5py: pip install h5py") from None
    if not h5py.is_hdf5(path):
        raise bad_value("arrays_or_layer", "the path of an HDF5 file of Keras", path)
    try:
        with h5py.File(path, "r") as file:
            groups = file.get("model_weights", file)
            entries = dict(_entries(json.loads(file.attrs.get("model_config", "{}")).get("config", {})))
            version = str(_text(groups.attrs.get("keras_version", "1")))
            every = {name: _arrays(groups[name]) for name in _names(groups, "layer_names")}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise bad_value("arrays_or_layer", f"the path of an intact file of Keras ({error})", path) from None
    weights = {name: own for name, own in every.items() if any(RECURRENT in each for each in own)}
    names = list(weights) if wanted is None else [wanted] if isinstance(wanted, str) else list(wanted)
    known = ", ".join(map(repr, weights))
    if not weights:
        raise bad_value("arrays_or_layer", "the path of a file with a recurrent layer", path)
    if wanted is None and len(names) != 1:
        raise bad_value("layer", f"the name of one of the file's recurrent layers: {known}", None)
    for name in names:
        if name not in weights:
            raise bad_value("layer", f"the name of a recurrent layer of the file: {known}", name)
    return [
        _layer(entries[name], list(weights[name].values()), version) if name in entries else weights[name]
        for name in names
    ]


def _arrays(group: Any) -> dict[str, Any]:
    return {name: np.asarray(group[name]) for name in _names(group, "weight_names")}


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _names(group: Any, what: str) -> list[str]:
    """Returns an attribute that is a list of names. Keras splits a long list into several attributes."""
    parts = [what] if what in group.attrs else [f"{what}{k}" for k in range(len(group.attrs))]
    return [str(_text(name)) for part in parts if part in group.attrs for name in group.attrs[part]]


def _entries(config: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields (name, configuration) of all layers, including layers of nested models."""
    for entry in config if isinstance(config, list) else config.get("layers", ()):
        yield entry["config"].get("name", entry.get("name")), entry
        yield from _entries(entry["config"]) if "layers" in entry["config"] else ()


def _layer(entry: Mapping[str, Any], arrays: list[Any], version: str) -> Any:
    """Returns an object that `convert_keras` reads like a Keras layer. arrays: as from get_weights()."""
    kind, config = entry["class_name"], entry["config"]
    if kind == "Bidirectional":
        half, ahead = len(arrays) // 2, config["layer"]
        parts = _layer(ahead, arrays[:half], version), _layer(ahead, arrays[half:], version)
        parts[1].go_backwards = not parts[0].go_backwards
        return SimpleNamespace(
            forward_layer=parts[0], backward_layer=parts[1], merge_mode=config.get("merge_mode"),
            get_weights=lambda: arrays,
        )  # fmt: skip
    return type(kind, (), {
        "version": version, "get_config": lambda self: config, "get_weights": lambda self: arrays,
        "go_backwards": config.get("go_backwards", False), "time_major": config.get("time_major", False),
    })()  # fmt: skip
