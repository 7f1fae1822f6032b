"""Networks in safetensors files, with their arrays as tensors and a configuration in the metadata.

Python writes the files with the package safetensors. The C code in pyx/file/ reads and checks them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from .. import _core
from ..files import replacing
from ..state import CHANGES
from .architecture import DEFAULTS, Architecture, argument_names
from .cells import CELLS
from .snapshot import ACTIVATION_BITS, Snapshot, zoneout_entry
from .specs import KINDS
from .statistics import StepStatistics, named_shapes

SCHEMA = 1


def _safetensors() -> Any:
    try:
        with CHANGES:  # a fork waits for this import; else its locks could stay locked in the child
            import safetensors.numpy
    except ImportError:
        raise ImportError("saving models needs safetensors: pip install safetensors") from None
    return safetensors


def write(snapshot: Snapshot, path: str | os.PathLike[str]) -> None:
    """Writes a snapshot of a network to path; see lnrnn.io.save."""
    made = snapshot.architecture
    config = made.configuration(snapshot.dtype, snapshot.overrun)
    if snapshot.zoneout:
        config["zoneout"] = zoneout_entry(made, snapshot.zoneout)
    if snapshot.dropout:
        config["dropout"] = snapshot.dropout
    if snapshot.activation_bits == 8:  # absent for the default, so that older versions can read the file
        config["activation_bits"] = 8
    metadata = {"format": "lnrnn", "schema": str(SCHEMA), "config": json.dumps(config)}
    safetensors = _safetensors()
    with replacing(path) as put:  # some versions of safetensors overwrite the old file in place
        put(safetensors.numpy.save(snapshot.state(), metadata))


def read(path: str | os.PathLike[str]) -> Snapshot:
    """Returns the snapshot that `write` wrote to path; see lnrnn.io.load."""
    text, (eps, momentum, *zoneout, dropout), arrays = _core.read_model(os.fspath(path))
    config = json.loads(text)
    if norm := config["norm"]:
        norm["eps"] = eps
        norm |= {"momentum": momentum} if norm.get("momentum") is not None else {}
    made = architecture_of(config)
    rates = tuple(zoneout[: made.cell.states]) if any(zoneout) else ()
    bits = config.get("activation_bits") or (ACTIVATION_BITS[0] if config["dtype"] == "int8" else None)
    parameters = {name: arrays[name] for name in made.shapes}
    names = named_shapes(made.sides, 0)
    statistics = {
        end: StepStatistics({name: arrays[name + end] for name in names})
        for end in made.suffixes
        if made.sides
    }
    return Snapshot(
        made, parameters, statistics, made.batch_norm.overrun if made.batch_norm else None, config["dtype"],
        rates, bits, dropout,
    )  # fmt: skip


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """Returns the architecture for a result of Architecture.configuration."""
    cell = CELLS[config["cell"]]
    config = {**DEFAULTS, **config}
    arguments = {name: config[name] for name in argument_names(cell)}
    if arguments["norm"] is not None:
        norm = dict(arguments["norm"])
        kind = KINDS[norm.pop("kind")]
        arguments["norm"] = kind(**norm, **({"bias": config["bias"]} if hasattr(kind, "bias") else {}))
    return Architecture.checked(cell, **arguments)
