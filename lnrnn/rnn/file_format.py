"""Networks in safetensors files: tensors, and a configuration in the metadata. No pickle anywhere.

What is written and read here are a description, parameters and statistics; lnrnn.io makes models of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ..errors import choice
from ..files import replacing
from ..state import CHANGES
from .architecture import Architecture, argument_names
from .cells import CELLS
from .snapshot import DTYPES, Dtype, Snapshot
from .specs import BatchNormSpec, LayerNormSpec, Overrun
from .statistics import named_shapes

SCHEMA = 1
_SPECS = {"layer": LayerNormSpec, "batch": BatchNormSpec}


class Stored(NamedTuple):
    """What a file holds. state: as a state dict."""

    architecture: Architecture
    dtype: Dtype
    activation_bits: Any  # as Network.to_dtype takes them, which checks them
    zoneout: Any  # as Network.zoneout takes it, which checks it
    dropout: Any  # likewise
    state: dict[str, np.ndarray]


def _safetensors() -> Any:
    try:
        with CHANGES:  # a fork waits; a child that imported while a lost thread did would wait for ever
            import safetensors
            import safetensors.numpy
    except ImportError:
        raise ImportError("saving and loading models needs safetensors: pip install safetensors") from None
    return safetensors


def configuration(made: Architecture, dtype: Dtype, overrun: Overrun | None) -> dict[str, Any]:
    """What JSON says of a network: `architecture_of` reads it."""
    norm: dict[str, Any] | None = None
    if made.norm is not None:
        kind = "layer" if isinstance(made.norm, LayerNormSpec) else "batch"
        norm = {"kind": kind, **vars(made.norm)}
        if kind == "batch":
            norm["overrun"] = overrun
    return {"dtype": dtype, **made.arguments, "cell": made.cell.name, "norm": norm}


def write(snapshot: Snapshot, path: str | os.PathLike[str]) -> None:
    """Writes one version of a network to path; see lnrnn.io.save."""
    made = snapshot.architecture
    config = configuration(made, snapshot.dtype, snapshot.overrun)
    if snapshot.zoneout:
        config["zoneout"] = snapshot.zoneout if made.cell.states == 2 else snapshot.zoneout[0]
    if snapshot.dropout:
        config["dropout"] = snapshot.dropout
    if snapshot.activation_bits == 8:  # files of the default are those of versions that knew no other
        config["activation_bits"] = 8
    metadata = {"format": "lnrnn", "schema": str(SCHEMA), "config": json.dumps(config)}
    safetensors = _safetensors()
    with replacing(path) as put:  # some versions of safetensors would write over the old file
        put(safetensors.numpy.save(snapshot.state(), metadata))


@contextmanager
def loading(path: str) -> Iterator[None]:
    """Says of what goes wrong with a file, while it is read and made a model of, that path cannot be loaded:
    a ValueError. FileNotFoundError if there is none."""
    safetensors = _safetensors()
    if not os.path.exists(path):
        raise FileNotFoundError(f"no such file: {path!r}")
    if not os.path.isfile(path):
        raise ValueError(f"cannot load {path!r}: it is not a regular file")
    try:
        yield
    except (
        OSError,
        safetensors.SafetensorError,
        ValueError,
        TypeError,
        KeyError,
        OverflowError,
        RecursionError,
    ) as error:
        # What a hostile file says of itself may be megabytes long.
        said = str(error)[:400]
        if isinstance(error, safetensors.SafetensorError):
            said = f"it is no whole file of safetensors, which is what save writes: {said}"
        raise ValueError(f"cannot load {path!r}: {said}") from error


def read(path: str) -> Stored:
    """What `write` wrote to path. To be called inside `loading`, which says what is wrong with a file."""
    with _safetensors().safe_open(path, "numpy") as file:
        metadata = file.metadata() or {}
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        tensors = {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
        if metadata.get("format") != "lnrnn":
            raise ValueError("it is a safetensors file, but not of an lnrnn model")
        if metadata.get("schema") != str(SCHEMA):
            raise ValueError(f"its schema is {metadata.get('schema')!r}, this version reads {SCHEMA}")
        config = json.loads(metadata.get("config", "null"))
        known = isinstance(config, dict)  # entries of networks alone that have these
        zoneout = config.pop("zoneout", 0) if known else 0
        dropout = config.pop("dropout", 0) if known else 0
        bits = config.pop("activation_bits", None) if known else None
        made = architecture_of(config, len(tensors))
        _check_fits(made, tensors)
        dtype = choice("dtype", config["dtype"], DTYPES)
        return Stored(made, dtype, bits, zoneout, dropout, {name: file.get_tensor(name) for name in tensors})


def architecture_of(config: Any, tensors: int) -> Architecture:
    """Of the configuration of a file with so many tensors."""
    cell = CELLS.get(str(config.get("cell"))) if isinstance(config, dict) else None
    if cell is None:
        known = ", ".join(CELLS)
        raise ValueError(f"its configuration is not that of a known cell ({known}): {str(config)[:80]}")
    names = argument_names(cell)
    if set(config) != {"cell", "dtype", *names}:
        raise ValueError(f"its configuration has the entries {sorted(config)}")
    arguments = {name: config[name] for name in names}
    norm, layers = config["norm"], config["num_layers"]
    if norm is not None:
        if not isinstance(norm, dict) or not isinstance(norm.get("kind"), str) or norm["kind"] not in _SPECS:
            raise ValueError(f"its norm is unknown: {str(norm)[:80]}")
        norm = dict(norm)
        arguments["norm"] = _SPECS[norm.pop("kind")](**norm)
    if isinstance(layers, int) and layers > tensors:
        raise ValueError(f"its configuration says {layers} layers, it has {tensors} tensors")
    return Architecture.checked(cell, **arguments)


def _check_fits(made: Architecture, tensors: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    """Compares names, shapes and dtypes before a model of these sizes is made: a few bytes of metadata can
    ask for any amount of memory."""
    expected = {name: (shape, "F32") for name, shape in made.shapes.items()}
    if made.batch_norm:
        steps = made.batch_norm.max_steps or (*tensors.get("count_l0", ((),))[0], 0)[0]
        of_one = named_shapes(made.sides, steps)
        for suffix in made.suffixes:
            expected |= {
                name + suffix: (shape, "I64" if name == "count" else "F64") for name, shape in of_one.items()
            }
    for name in sorted(expected.keys() | tensors.keys()):
        if expected.get(name) != tensors.get(name):
            found, want = (
                " ".join(map(str, t)) if t else "nothing" for t in (tensors.get(name), expected.get(name))
            )
            raise ValueError(f"tensor {name[:80]!r} is {found}, its configuration says {want}")
