"""Networks in safetensors files: arrays as tensors, and a configuration in the metadata.

In schema 2, two tensors may represent a weight W (n, k). W.blocks (count, 8, 4) has the nonzero blocks.
W.mask (n / 8, k / 4) is True where a block is nonzero, in C order. Files without such weights have schema 1.

Python writes files with the package safetensors. The C code in pyx/file/ reads and checks them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _core
from ..files import replacing
from ..state import CHANGES
from .architecture import BLOCK, DEFAULTS, WEIGHTS, Architecture, argument_names
from .cells import CELLS
from .snapshot import ACTIVATION_BITS, Snapshot, zoneout_entry
from .specs import KINDS
from .statistics import StepStatistics, named_shapes

Array = np.ndarray
ENTRIES = 256  # upper bound of a tensor's bytes in the header


def _safetensors() -> Any:
    try:
        with CHANGES:  # a fork waits for this import; its locks would stay locked in the child
            import safetensors.numpy
    except ImportError:
        raise ImportError("saving models needs safetensors: pip install safetensors") from None
    return safetensors


def _tensors(state: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the tensors of a file. Weights are stored as blocks where this makes the file smaller."""
    found: dict[str, Array] = {}
    for name, w in state.items():
        found[name] = w
        if not name.startswith(WEIGHTS) or w.shape[0] % BLOCK[0] or w.shape[1] % BLOCK[1]:
            continue
        grid = w.reshape(len(w) // BLOCK[0], BLOCK[0], -1, BLOCK[1]).swapaxes(1, 2)
        mask: Array = (grid.view(np.int32) != 0).any((2, 3))  # compares bits, to keep -0.0
        if np.count_nonzero(~mask) * w.nbytes > mask.size * (mask.nbytes + ENTRIES):
            found |= {f"{name}.blocks": grid[mask], f"{name}.mask": mask}
            del found[name]
    return found


def write(snapshot: Snapshot, path: str | os.PathLike[str]) -> None:
    """Writes a snapshot to a file, see lnrnn.io.save."""
    made = snapshot.architecture
    config = made.configuration(snapshot.dtype, snapshot.overrun)
    if snapshot.zoneout:
        config["zoneout"] = zoneout_entry(made, snapshot.zoneout)
    if snapshot.dropout:
        config["dropout"] = snapshot.dropout
    if snapshot.activation_bits == 8:  # absent for the default: older versions can read the file
        config["activation_bits"] = 8
    tensors = _tensors(snapshot.state())
    schema = "2" if any(name.endswith(".mask") for name in tensors) else "1"
    metadata = {"format": "lnrnn", "schema": schema, "config": json.dumps(config)}
    data = memoryview(_safetensors().numpy.save(tensors, metadata))
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8:end])) | {"__metadata__": metadata}  # save() orders entries randomly
    text = json.dumps(header, separators=(",", ":")).encode()
    with replacing(path) as put:  # some versions of safetensors overwrite the old file in place
        for part in (data[:8], text.ljust(end - 8), data[end:]):
            put(part)


def read(path: str | os.PathLike[str]) -> Snapshot:
    """Returns the snapshot in a file that `write` wrote, see lnrnn.io.load."""
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
    """Returns the architecture of a result of Architecture.configuration."""
    cell = CELLS[config["cell"]]
    config = {**DEFAULTS, **config}
    arguments = {name: config[name] for name in argument_names(cell)}
    if arguments["norm"] is not None:
        norm = dict(arguments["norm"])
        kind = KINDS[norm.pop("kind")]
        arguments["norm"] = kind(**norm, **({"bias": config["bias"]} if hasattr(kind, "bias") else {}))
    return Architecture.checked(cell, **arguments)
