"""Serializes states of streams in the safetensors format: header length, JSON header, raw arrays.

The bytes may come from an untrusted source, so `decode` checks all of them and executes nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from math import prod
from typing import Any, NoReturn

import numpy as np

from ..arguments import Integer
from ..errors import bad_type, bad_value, message, real
from .cells import CELLS
from .snapshot import LAST_STEP

Array = np.ndarray
FORMAT, VERSION = "lnrnn state", "2"
_BEFORE = b'{"__metadata__":{"digest":"'
_DIGEST = slice(8 + len(_BEFORE), 8 + len(_BEFORE) + 16)  # position of the digest of all other bytes
MOST_HEADER = 1 << 20  # bytes; each array takes about 100
_DTYPES = {"F32": "<f4", "I64": "<i8", "F64": "<f8", "F16": "<f2", "BOOL": "|b1"}
_DTYPES |= {f"{kind.upper()}{8 * n}": f"<{kind}{n}" for kind in "iu" for n in (1, 2, 4)} | {"U64": "<u8"}
_NAMES = {np.dtype(text).newbyteorder("="): name for name, text in _DTYPES.items()}
_TUPLES = {cell.state_names for cell in CELLS.values()}
_OF_FILE = "state."  # prefix of the names of an ONNX file's states


def encode(state: Any, step: Any, fingerprint: str, notes: Mapping[str, str] | None = None) -> bytes:
    """Serializes the fields of a StreamState. notes: further entries of the metadata, or None."""
    arrays = {"step": real("step", step).astype(np.int64)}
    if isinstance(state, Mapping):
        arrays |= {_OF_FILE + name: real(f"state[{name!r}]", array) for name, array in state.items()}
    else:
        values = state if isinstance(state, tuple) else (state,)
        names = next((names for names in _TUPLES if len(names) == len(values)), None)
        if names is None:
            raise bad_type("state", "an array or a tuple of 2 or 4 arrays", state)
        arrays |= {name: _float32(name, array) for name, array in zip(names, values, strict=True)}
        _refuse_sizes(arrays, lambda got: bad_value("state", "of shape (num_layers, R, P)", got))
    known = {"digest": "0" * 16, "format": FORMAT, "version": VERSION, "fingerprint": fingerprint}
    header: dict[str, Any] = {"__metadata__": known | dict(notes or {})}
    parts, end = [], 0
    for name, array in arrays.items():
        kind = _NAMES.get(array.dtype.newbyteorder("="))
        if kind is None:
            raise bad_type(f"state[{name!r}]", f"of dtype {', '.join(_DTYPES)}", array)
        parts.append(array.astype(_DTYPES[kind], copy=False).tobytes())
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": (begin, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = bytearray().join((len(text).to_bytes(8, "little"), text, *parts))
    data[_DIGEST] = _digest(data)
    return bytes(data)


def _digest(data: Any) -> bytes:
    """Returns 64 bits of the SHA-256 of all other bytes. They detect damage, not deliberate changes."""
    found = hashlib.sha256(data[: _DIGEST.start])
    found.update(data[_DIGEST.stop :])
    return found.hexdigest()[:16].encode()


def decode(data: Any) -> tuple[Any, Array, str, dict[str, str]]:
    """Returns (state, step, fingerprint, metadata) from bytes of `encode`. Arrays are copies."""
    try:
        raw = memoryview(data).cast("B")
    except TypeError:
        raise bad_type("data", "the bytes of StreamState.to_bytes", data) from None
    header, content = _split(raw)
    notes = header.pop("__metadata__", None)
    if not isinstance(notes, dict) or notes.get("format") != FORMAT:
        _refuse(f"a header without the format {FORMAT!r}")
    if notes.get("version") != VERSION:
        _refuse(f"version {notes.get('version')!r:.40}; this lnrnn reads version {VERSION!r}")
    if raw[_DIGEST] != _digest(raw):
        _refuse("damaged bytes, with another digest")
    fingerprint = notes.get("fingerprint")
    if not isinstance(fingerprint, str) or not re.fullmatch("[0-9a-f]{64}", fingerprint):
        _refuse("a header without the fingerprint of a network")
    arrays = _arrays(header, content)
    step = arrays.pop("step", None)
    if step is None or step.dtype != np.int64 or step.ndim != 1:
        _refuse("no array 'step' of dtype I64 and shape (R,)")
    if step.size and not 0 <= step.min() <= step.max() <= LAST_STEP:
        _refuse(f"a step that is not between 0 and {LAST_STEP}")
    if all(name.startswith(_OF_FILE) for name in arrays):
        return {name[len(_OF_FILE) :]: array for name, array in arrays.items()}, step, fingerprint, notes
    names = next((names for names in _TUPLES if set(names) == set(arrays)), None)
    if names is None:
        _refuse(f"arrays of other names than h, or h and c: {', '.join(arrays)!r:.80}")
    for name, array in arrays.items():
        if array.dtype != np.float32:
            _refuse(f"array {name!r} of dtype {array.dtype}, instead of F32")
    _refuse_sizes({"step": step, **arrays}, lambda got: _refuse(f"an array of shape {got.shape}"))
    found = tuple(arrays[name] for name in names)
    return found[0] if len(found) == 1 else found, step, fingerprint, notes


def _refuse(got: str) -> NoReturn:
    raise ValueError(message("data", "the bytes of StreamState.to_bytes", got))


def _float32(name: str, array: Any) -> Array:
    return real(f"state, array {name},", array).astype(np.float32, copy=False)


def _refuse_sizes(arrays: dict[str, Array], refuse: Any) -> None:
    """Calls `refuse` unless step is (R,), and all states are (layers, R, *) with equal layers and R."""
    lanes, layers = arrays["step"].shape, None
    for name, array in arrays.items():
        if name != "step":
            layers = array.shape[:1] if layers is None else layers
            if array.ndim != 3 or len(lanes) != 1 or array.shape[:2] != layers + lanes:
                raise refuse(array)


def _split(raw: memoryview) -> tuple[dict[str, Any], memoryview]:
    """Returns (header as a dict, bytes after the header)."""
    if len(raw) < 8:
        _refuse(f"{len(raw)} bytes, without the length of a header")
    length = int.from_bytes(raw[:8], "little")
    if length > min(MOST_HEADER, len(raw) - 8):
        _refuse(f"{len(raw)} bytes with a header of {length}")
    try:
        header = json.loads(bytes(raw[8 : 8 + length]).decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        _refuse(f"a header that is not JSON: {error!s:.80}")
    if not isinstance(header, dict):
        _refuse("a header that is not a JSON object")
    return header, raw[8 + length :]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"an object has a key twice: {[name for name, _ in pairs]}")
    return found


def _arrays(header: dict[str, Any], content: memoryview) -> dict[str, Array]:
    """Returns copies of the arrays that the header describes. They must fill `content` without gaps."""
    found: dict[str, Array] = {}
    places = []
    for name, entry in header.items():
        try:
            kind, shape, (begin, end) = (entry[key] for key in ("dtype", "shape", "data_offsets"))
            dtype = np.dtype(_DTYPES[kind])
            for n in (*shape, begin, end):
                Integer(0).check(name, n)
            if len(entry) != 3 or end - begin != prod(shape) * dtype.itemsize:
                raise ValueError
            array = np.ndarray(shape, dtype, content, begin)
            if dtype.kind == "b" and (array.view(np.uint8) > 1).any():
                raise ValueError
        except (LookupError, TypeError, ValueError, OverflowError):
            _refuse(f"an array {name!r:.40} whose dtype, shape and data_offsets do not fit")
        places.append((begin, end))
        found[name] = array.astype(dtype.newbyteorder("="))
    position = 0
    for begin, end in sorted(places):
        if begin != position:
            _refuse("arrays that overlap or leave a gap")
        position = end
    if position != len(content):
        _refuse(f"{len(content)} bytes after the header, which describes {position}")
    return found
