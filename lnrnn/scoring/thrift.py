"""Reads and writes structs of Thrift's compact protocol, which Parquet uses for footers and page headers.

A struct is a dict from field numbers to pairs (type, value). A value is a bool, int, float, bytes, struct,
a List, or a Map. So fields that this library does not know are kept. The numbers of types are those of
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

Struct = dict[int, tuple[int, Any]]
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(1, 14)
DEPTH = 32  # the largest number of structs and lists in one another; Parquet needs fewer


class List(NamedTuple):
    """A list or a set. kind: the type of the values."""

    kind: int
    values: list[Any]


class Map(NamedTuple):
    """A map. kinds: the types of keys and values, in one byte."""

    kinds: int
    pairs: list[tuple[Any, Any]]


def read(data: bytes, at: int = 0) -> tuple[Struct, int]:
    """Returns the struct that begins at data[at], and the position after it.

    Raises IndexError if data end before the struct, and ValueError if it is none.
    """
    reader = _Reader(data, at)
    return reader.struct(DEPTH), reader.at


def written(value: Struct) -> bytes:
    """Returns the bytes of a struct."""
    data = bytearray()
    _write_struct(data, value)
    return bytes(data)


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise IndexError("the data end within a struct")
        result, self.at = self.data[self.at : end], end
        return result

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        result = shift = 0
        while True:
            byte = self.byte()
            result |= (byte & 127) << shift
            if byte < 128:
                return result
            shift += 7
            if shift > 63:
                raise ValueError("an integer of a struct has more than 64 bits")

    def integer(self) -> int:
        number = self.varint()
        return (number >> 1) ^ -(number & 1)

    def struct(self, depth: int) -> Struct:
        result: Struct = {}
        number = 0
        while True:
            header = self.byte()
            if not header:
                return result
            number = number + (header >> 4) if header >> 4 else self.integer()
            kind = header & 15
            result[number] = kind, kind == TRUE if kind in (TRUE, FALSE) else self.value(kind, depth)

    def value(self, kind: int, depth: int) -> Any:
        if not depth:
            raise ValueError("a struct has too many levels")
        if kind in (I16, I32, I64):
            return self.integer()
        if kind == BINARY:
            return self.take(self.varint())
        if kind == STRUCT:
            return self.struct(depth - 1)
        if kind in (LIST, SET):
            header = self.byte()
            count, of = header >> 4, header & 15
            count = self.varint() if count == 15 else count
            if of == STRUCT:
                return List(of, [self.struct(depth - 1) for _ in range(count)])
            return List(of, [self.value(of, depth - 1) for _ in range(count)])
        if kind in (TRUE, FALSE, BYTE):  # in a list, a bool has a byte
            return self.byte()
        if kind == DOUBLE:
            return struct.unpack("<d", self.take(8))[0]
        if kind == MAP:
            count = self.varint()
            kinds = self.byte() if count else 0
            pairs = range(count)
            return Map(
                kinds, [(self.value(kinds >> 4, depth - 1), self.value(kinds & 15, depth - 1)) for _ in pairs]
            )
        if kind == UUID:
            return self.take(16)
        raise ValueError(f"a struct has a field of the unknown type {kind}")


def _varint(data: bytearray, number: int) -> None:
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    data.append(number)


def _integer(data: bytearray, number: int) -> None:
    _varint(data, number << 1 if number >= 0 else ~(number << 1))


def _write_struct(data: bytearray, value: Struct) -> None:
    last = 0
    for number, (kind, each) in sorted(value.items()):
        if 0 < number - last < 16:
            data.append(number - last << 4 | kind)
        else:
            data.append(kind)
            _integer(data, number)
        last = number
        if kind not in (TRUE, FALSE):
            _write(data, kind, each)
    data.append(0)


def _write(data: bytearray, kind: int, value: Any) -> None:
    if kind in (I16, I32, I64):
        _integer(data, value)
    elif kind == BINARY:
        _varint(data, len(value))
        data += value
    elif kind == STRUCT:
        _write_struct(data, value)
    elif kind in (LIST, SET):
        count = len(value.values)
        data.append(min(count, 15) << 4 | value.kind)
        if count > 14:
            _varint(data, count)
        for each in value.values:
            _write(data, value.kind, each)
    elif kind in (TRUE, FALSE, BYTE):
        data.append(value)
    elif kind == DOUBLE:
        data += struct.pack("<d", value)
    elif kind == UUID:
        data += value
    else:
        _varint(data, len(value.pairs))
        if value.pairs:
            data.append(value.kinds)
        for pair in value.pairs:
            for part, each in zip((value.kinds >> 4, value.kinds & 15), pair, strict=True):
                _write(data, part, each)
