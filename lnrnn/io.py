"""Models in safetensors files: tensors, and a configuration in the metadata. No pickle anywhere."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from .errors import flag, integer
from .files import replacing
from .rnn.parameters import shapes, suffixes
from .rnn.sites import statistics_sides
from .rnn.specs import BatchNormSpec, LayerNormSpec, norm_spec
from .rnn.statistics import named_shapes

if TYPE_CHECKING:
    from .rnn.models import GRU, LSTM, RNN
    from .rnn.network import Network

SCHEMA = 1
_SPECS = {"layer": LayerNormSpec, "batch": BatchNormSpec}


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError:
        raise ImportError("saving and loading models needs safetensors: pip install safetensors") from None
    return safetensors


def save(model: Network[Any], path: str | os.PathLike[str]) -> None:
    """Writes model to path.

    The file is written whole or not at all: a new file beside path takes its place when it is complete and on
    the disk. A symbolic link stays and its file is replaced; permissions are as open(path, "wb") leaves them.
    Raises ImportError without the safetensors package; OSError, with errno and path, if it cannot be written
    or if what stands there is no regular file; then that stays as it was.
    """
    norm: dict[str, Any] | None = None
    if model.norm is not None:
        kind = "layer" if isinstance(model.norm, LayerNormSpec) else "batch"
        norm = {"kind": kind, **vars(model.norm)}
        if kind == "batch":
            norm["overrun"] = model.overrun
    config = {name: getattr(model, name) for name in ("dtype", *model._arguments)}
    config |= {"cell": model._cell.name, "norm": norm}
    metadata = {"format": "lnrnn", "schema": str(SCHEMA), "config": json.dumps(config)}
    safetensors = _safetensors()
    with replacing(path) as write:  # some versions of safetensors would write over the old file
        write(safetensors.numpy.save(model.state_dict(), metadata))


def load(path: str | os.PathLike[str]) -> RNN | LSTM | GRU:
    """The model that `save` wrote to path.

    Raises ImportError without the safetensors package, FileNotFoundError, or ValueError if the file is
    damaged, not an lnrnn model, or of a newer schema.
    """
    safetensors, path = _safetensors(), os.fspath(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"no such file: {path!r}")
    if not os.path.isfile(path):
        raise ValueError(f"cannot load {path!r}: it is not a regular file")
    try:
        with safetensors.safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            tensors = {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
            if metadata.get("format") != "lnrnn":
                raise ValueError("it is a safetensors file, but not of an lnrnn model")
            if metadata.get("schema") != str(SCHEMA):
                raise ValueError(f"its schema is {metadata.get('schema')!r}, this version reads {SCHEMA}")
            config = json.loads(metadata.get("config", "null"))
            made, arguments = _arguments(config)
            _fits(made, arguments, tensors)
            state = {name: file.get_tensor(name) for name in tensors}
        model = made(**arguments)
        model.load_state_dict(state)
        if config["dtype"] != "float32":
            model = model.to_dtype(config["dtype"])
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
        raise ValueError(f"cannot load {path!r}: {str(error)[:400]}") from error
    return model


def _arguments(config: Any) -> tuple[type[RNN] | type[LSTM] | type[GRU], dict[str, Any]]:
    """The configuration as a class and its arguments."""
    from .rnn.models import CLASSES

    cell = config.get("cell") if isinstance(config, dict) else None
    if not isinstance(cell, str) or cell not in CLASSES:
        raise ValueError(f"its configuration is not that of an RNN, LSTM or GRU: {str(config)[:80]}")
    made = CLASSES[cell]
    if set(config) != {"cell", "dtype", *made._arguments}:
        raise ValueError(f"its configuration has the entries {sorted(config)}")
    arguments = {name: config[name] for name in made._arguments}
    norm = config["norm"]
    if norm is not None:
        if not isinstance(norm, dict) or not isinstance(norm.get("kind"), str) or norm["kind"] not in _SPECS:
            raise ValueError(f"its norm is unknown: {str(norm)[:80]}")
        norm = dict(norm)
        norm = norm_spec(_SPECS[norm.pop("kind")](**norm), made._cell)
    return made, {**arguments, "norm": norm}


def _fits(
    made: type[Network[Any]], arguments: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], str]]
) -> None:
    """Compares names, shapes and dtypes before a model of these sizes is made: a few bytes of metadata can
    ask for any amount of memory."""
    norm, names = arguments["norm"], ("input_size", "hidden_size", "num_layers")
    inputs, hidden, layers = (integer(name, arguments[name], 1) for name in names)
    bidirectional = flag("bidirectional", arguments["bidirectional"])
    if layers > len(tensors):
        raise ValueError(f"its configuration says {layers} layers, it has {len(tensors)} tensors")
    wanted = shapes(made._cell, inputs, hidden, layers, bidirectional, norm, flag("bias", arguments["bias"]))
    expected = {name: (shape, "F32") for name, shape in wanted.items()}
    if isinstance(norm, BatchNormSpec):
        steps = norm.max_steps or (*tensors.get("count_l0", ((),))[0], 0)[0]
        of_one = named_shapes(statistics_sides(made._cell, norm, hidden), steps)
        for suffix in suffixes(layers, bidirectional):
            expected |= {
                name + suffix: (shape, "I64" if name == "count" else "F64") for name, shape in of_one.items()
            }
    for name in sorted(expected.keys() | tensors.keys()):
        if expected.get(name) != tensors.get(name):
            found, want = (
                " ".join(map(str, t)) if t else "nothing" for t in (tensors.get(name), expected.get(name))
            )
            raise ValueError(f"tensor {name[:80]!r} is {found}, its configuration says {want}")
