"""`from_rnnoise` reads the GRUs of weight files of RNNoise and Opus, which share one format.

A file is a list of arrays: a header of 64 bytes, then the data. It has no layer sizes: they follow from
sizes of arrays, and for the inputs of a block-sparse layer only from its index.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..arguments import TAKES, Instance, Integer, Optional, check
from ..errors import bad_type, bad_value, message
from ..rnn.architecture import BLOCK
from ..rnn.quantized import MOST_SCALE
from .weights import Array, Weights, network, reordered

# "DNNw", version, type, number of bytes, number of bytes with padding, zero-padded name.
_HEAD = struct.Struct("<4s4i44s")
_FLOAT, _INT, _INT8 = 0, 1, 3
_DTYPES = {_FLOAT: "<f4", _INT: "<i4", _INT8: "<i1"}
_RECURRENT = re.compile(r"(.+)_recurrent_(?:bias|weights_.+)")
_LEVELS = 127  # int8 inputs are multiples of 1 / 127
MOST = 4096  # largest number of units or inputs; RNNoise's own code permits 1024 and 2048
TAKES["from_rnnoise"] = {
    "name": Optional(Instance(str, "a str")), "input_size": Optional(Integer(1, MOST)),
}  # fmt: skip


def from_rnnoise(path_or_bytes: Any, name: str | None = None, *, input_size: int | None = None) -> Any:
    """Converts the GRUs in a file of weights of RNNoise or Opus, for inference.

    These files are RNNoise's weights_blob.bin, and Opus' files of DRED, concealment, FARGAN and OSCE.

    Parameters
    ----------
    path_or_bytes : str, path or bytes
        The file, or its contents.
    name : str, optional
        The name of one GRU, such as "gru1".
    input_size : int, optional
        The number of inputs of the one GRU that is read. Files do not have it. The default is the number of
        dense weights, or the end of the last block of sparse weights. This is too small if the last inputs
        have no block.

    Returns
    -------
    GRU or dict of GRU
        The network if the file has one GRU, or with `name`. Otherwise {name: network}. norm is None. Other
        layers of the file, such as convolutions, are left out.

    Raises
    ------
    ValueError
        For a file that is damaged or has no GRU, and for an unknown name; the message names the array. Blocks
        out of order are refused too, although RNNoise accepts them.
    TypeError
        For arguments of other types.

    Notes
    -----
    Blocks of 8 outputs by 4 inputs remain sparse, see `sparsify`. If a file has weights in float and int8,
    the float weights are used, as in RNNoise. int8 weights become float32. A network of these does not round
    x and h to multiples of 1/127, which RNNoise does, and it takes x beyond [-1, 1]. ``to_dtype("int8")``
    finds the integers of weight_ih again. It rounds those of weight_hh, because files have its diagonal in
    float. RNNoise approximates tanh and sigmoid.

    References
    ----------
    Valin, A Hybrid DSP/Deep Learning Approach to Real-Time Full-Band Speech Enhancement, 2018,
    https://arxiv.org/abs/1709.08243. The format: https://github.com/xiph/rnnoise, src/parse_lpcnet_weights.c.

    Examples
    --------
    >>> import struct
    >>> import numpy as np
    >>> import lnrnn
    >>> rng, file = np.random.default_rng(0), b""
    >>> for layer, inputs in (("gru_input_", 2), ("gru_recurrent_", 4)):
    ...     for array, shape in (("bias", 12), ("weights_float", (inputs, 12))):
    ...         w = rng.standard_normal(shape, dtype=np.float32)
    ...         file += struct.pack("<4s4i44s", b"DNNw", 0, 0, w.nbytes, w.nbytes, (layer + array).encode())
    ...         file += w.tobytes()
    >>> gru = lnrnn.from_rnnoise(file)
    >>> y, h = gru(np.zeros((5, 1, 2)))
    >>> y.shape
    (5, 1, 4)
    """
    name, input_size = check("from_rnnoise", {"name": name, "input_size": input_size})
    if isinstance(path_or_bytes, (str, os.PathLike)):
        with open(path_or_bytes, "rb") as file:
            path_or_bytes = file.read()
    elif not isinstance(path_or_bytes, bytes):
        raise bad_type("path_or_bytes", "a path or bytes", path_or_bytes)
    arrays = _Arrays(path_or_bytes)
    names = list(dict.fromkeys(found[1] for found in map(_RECURRENT.fullmatch, arrays.of) if found))
    if not names:
        raise arrays.lacks("arrays such as gru1_recurrent_bias")
    if name is not None and name not in names:
        raise bad_value("name", f"of a GRU of the file: {', '.join(names)}", name)
    chosen = names if name is None else [name]
    if input_size is not None and len(chosen) > 1:
        raise bad_value("input_size", f"None unless name is one of {', '.join(names)}", input_size)
    networks = {each: _gru(arrays, each, input_size) for each in chosen}
    return networks if len(chosen) > 1 else networks[chosen[0]]


def _gru(arrays: _Arrays, name: str, input_size: int | None) -> Any:
    hidden_bias = arrays.take(f"{name}_recurrent_bias", _FLOAT)
    units, left = divmod(hidden_bias.size, 3)
    if left or not 0 < units <= MOST:
        raise _wrong(f"{name}_recurrent_bias", f"of 3 * H numbers, with H from 1 to {MOST}", hidden_bias.size)
    hidden = _weights(arrays, f"{name}_recurrent", 3 * units, units)
    if f"{name}_recurrent_weights_idx" in arrays.of:  # sparse weights are stored without diagonal
        at = np.arange(3 * units)
        hidden[at, at % units] += arrays.take(f"{name}_recurrent_weights_diag", _FLOAT, 3 * units)
    theirs = {
        "weight_ih": _weights(arrays, f"{name}_input", 3 * units, input_size), "weight_hh": hidden,
        "bias_ih": arrays.take(f"{name}_input_bias", _FLOAT, 3 * units), "bias_hh": hidden_bias,
    }  # fmt: skip
    ours = {key: reordered(value, "zrn", "rzn") for key, value in theirs.items()}
    return network([[Weights("GRU", None, True, ours)]], batch_first=False).model()


def _weights(arrays: _Arrays, layer: str, outputs: int, inputs: int | None) -> Array:
    """Returns the weights (outputs, inputs) of a layer as float32. inputs: None if unknown."""
    int8 = f"{layer}_weights_float" not in arrays.of
    name, kind = (f"{layer}_weights_int8", _INT8) if int8 else (f"{layer}_weights_float", _FLOAT)
    rows, columns = BLOCK
    blocks = None
    if f"{layer}_weights_idx" in arrays.of:
        blocks = _blocks(f"{layer}_weights_idx", arrays.take(f"{layer}_weights_idx", _INT), outputs, inputs)
        inputs = inputs or int(blocks[:, 1].max(initial=0)) + columns
        stored = arrays.take(name, kind, len(blocks) * rows * columns)
    else:
        inputs = inputs or arrays.take(name, kind).size // outputs
        stored = arrays.take(name, kind, outputs * inputs)
    if not 0 < inputs <= MOST:
        raise _wrong(name, f"of {outputs} * I numbers, with I from 1 to {MOST}", stored.size)
    if blocks is None and not int8:
        return stored.reshape(inputs, outputs).T.copy()
    if outputs % rows or inputs % columns:
        raise _wrong(name, f"of a shape divisible by blocks of {BLOCK}", (outputs, inputs))
    w = np.zeros((outputs // rows, inputs // columns, rows, columns))
    # Blocks are (outputs, inputs) in int8, and (inputs, outputs) in float.
    each = stored.reshape(-1, rows, columns) if int8 else stored.reshape(-1, columns, rows).swapaxes(1, 2)
    if blocks is None:
        w[...] = each.reshape(w.shape)
    else:
        w[blocks[:, 0], blocks[:, 1] // columns] = each
    matrix: Array = w.swapaxes(1, 2).reshape(outputs, inputs)
    if int8:  # int8 scales apply to inputs times 127
        scale = _LEVELS * arrays.take(f"{layer}_scale", _FLOAT, outputs).astype(np.float64)
        if np.abs(scale).max() > MOST_SCALE:
            raise _wrong(f"{layer}_scale", f"at most {MOST_SCALE / _LEVELS:g}", np.abs(scale).max() / _LEVELS)
        matrix *= scale[:, None]
    return matrix.astype(np.float32)


def _blocks(name: str, index: Array, outputs: int, inputs: int | None) -> Array:
    """Returns (group of outputs, first input) of each block, in the file's order, as int64 (blocks, 2).

    index: for each group of 8 outputs, the number of its blocks, then the first input of each block.
    """
    rows, columns = BLOCK
    most = (MOST if inputs is None else inputs) - columns
    found, at = [np.empty((0, 2), np.int64)], 0
    for group in range(outputs // rows):
        count = int(index[at]) if at < index.size else -1
        first = index[at + 1 : at + 1 + max(count, 0)].astype(np.int64)
        if first.size != count:
            got = f"{count} blocks in group {group}, and {max(0, index.size - at - 1)} numbers after it"
            raise _wrong(name, f"a count and as many indices, for each of {outputs // rows} groups", got)
        ends = first.min(initial=0) < 0 or first.max(initial=0) > most
        if ends or np.any(first % columns) or np.any(np.diff(first) <= 0):
            expected = f"multiples of {columns} in ascending order, from 0 to {most}, in group {group}"
            raise _wrong(name, expected, f"{first.tolist()}"[:60])
        found.append(np.stack([np.full(count, group), first], 1))
        at += 1 + count
    if at != index.size:
        raise _wrong(name, f"of {at} numbers for {outputs} outputs", index.size)
    return np.concatenate(found)


def _wrong(name: str, expected: str, got: Any) -> ValueError:
    return ValueError(message(name, expected, str(got)))


class _Arrays:
    """The arrays of a file. `of`: {name: (type, bytes)}."""

    def __init__(self, data: bytes) -> None:
        self.of: dict[str, tuple[int, bytes]] = {}
        for name, kind, content in _records(data):
            if name in self.of:
                raise _wrong("path_or_bytes", "a file whose arrays have different names", f"{name!r} twice")
            self.of[name] = kind, content

    def lacks(self, what: str) -> ValueError:
        return _wrong("path_or_bytes", f"a file with {what}", ", ".join(self.of)[:200] or "no array")

    def take(self, name: str, kind: int, count: int | None = None) -> Array:
        """Returns an array by name. Raises ValueError if it is missing, or of another type or size."""
        if name not in self.of:
            raise self.lacks(f"the array {name}")
        found, content = self.of[name]
        dtype = np.dtype(_DTYPES[kind])
        if found != kind or len(content) % dtype.itemsize:
            raise _wrong(name, f"of type {kind}, {dtype}", f"type {found} and {len(content)} bytes")
        numbers = np.frombuffer(content, dtype)
        if count not in (None, numbers.size):
            raise _wrong(name, f"of {count} numbers", numbers.size)
        if kind == _FLOAT and not np.isfinite(numbers).all():
            raise _wrong(name, "finite numbers", numbers[~np.isfinite(numbers)][0])
        return numbers


def _records(data: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Yields (name, type, bytes) of each array."""
    at = 0
    while at < len(data):
        where = f"byte {at} of path_or_bytes"
        if len(data) - at < _HEAD.size:
            raise _wrong(where, f"the head of an array, of {_HEAD.size} bytes", f"{len(data) - at} bytes")
        magic, version, kind, size, padded, name = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if (magic, version) != (b"DNNw", 0) or name[-1:] != b"\0":
            expected = "a head with b'DNNw', version 0 and a name that ends with a zero byte"
            raise _wrong(where, expected, f"{magic!r}, version {version}, {name!r}")
        if not 0 < size <= padded <= len(data) - at:
            raise _wrong(
                where, f"an array of 1 to {len(data) - at} bytes", f"{size} bytes, {padded} with padding"
            )
        text = name.split(b"\0")[0].decode("latin-1")
        yield text.encode("unicode_escape").decode(), kind, data[at : at + size]
        at += padded
