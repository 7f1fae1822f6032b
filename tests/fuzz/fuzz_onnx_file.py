"""Reads mutated ONNX files by lnrnn.from_onnx, under Atheris. Only a ValueError with a message is permitted.

The mutator changes fields of the model: bytes at random would seldom leave a protobuf.
"""

from __future__ import annotations

import random
import sys
import warnings

import atheris
from google.protobuf.message import DecodeError, Message

with atheris.instrument_imports(include=["lnrnn.recognise", "lnrnn.onnx"]):
    import lnrnn.onnx.parts
    import lnrnn.recognise.finding

import onnx

NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 4, 7, 16, 2**31 - 1, 2**40, 2**63 - 1)
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-5, 1e30, float("inf"), float("nan"))
WORDS = "RNN LSTM GRU Scan Loop If MatMul Gemm Add Mul Sub Sigmoid Tanh Concat Split Slice Squeeze Transpose"


def messages(root: Message) -> list[Message]:
    """Returns a message and all messages inside it."""
    found = [root]
    for field, value in root.ListFields():
        if field.message_type:
            for each in value if field.is_repeated else [value]:
                found += messages(each)
    return found


def texts(root: Message) -> list[str | bytes]:
    """Returns the names and words of a model, which the mutator puts in place of others."""
    found: list[str | bytes] = [*WORDS.split(), ""]
    for each in messages(root):
        for field, value in each.ListFields():
            if field.type == field.TYPE_STRING:
                found += value if field.is_repeated else [value]
    return found


def other(field, value, root: Message, chance: random.Random):
    """Returns another value of a field that is no message."""
    if field.type == field.TYPE_STRING:
        return chance.choice(texts(root))
    if field.type == field.TYPE_BYTES:
        cut = chance.randrange(len(value) + 1)
        return chance.choice([value[:cut], value + value[cut:], value[cut:] + value[:cut]])
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return chance.choice(REALS)
    if field.type == field.TYPE_ENUM:
        return chance.choice(field.enum_type.values).number
    least = 0 if field.type in (field.TYPE_UINT64, field.TYPE_UINT32) else -(2**63)
    most = 2**31 - 1 if field.type in (field.TYPE_INT32, field.TYPE_UINT32) else 2**63 - 1
    return min(max(chance.choice([value - 1, value + 1, *NUMBERS]), least, -most - 1), most)


def change(root: Message, chance: random.Random) -> None:
    """Changes, removes, repeats or moves one value of a random message of the model."""
    of = chance.choice([each for each in messages(root) if each.ListFields()])
    field, value = chance.choice(of.ListFields())
    if not field.is_repeated:
        if chance.random() < 0.1:
            of.ClearField(field.name)
        elif not field.message_type:
            setattr(of, field.name, other(field, value, root, chance))
        return
    at, items = chance.randrange(len(value)), list(value)
    how = chance.randrange(4)
    if how == 0:
        del items[at]
    elif how == 1:
        items.insert(chance.randrange(len(items) + 1), items[at])
    elif how == 2:
        chance.shuffle(items)
    elif not field.message_type:
        items[at] = other(field, items[at], root, chance)
    copies = (
        [type(item).FromString(item.SerializeToString()) for item in items] if field.message_type else items
    )
    of.ClearField(field.name)
    getattr(of, field.name).extend(copies)


def mutate(data: bytes, most: int, seed: int) -> bytes:
    chance = random.Random(seed)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return atheris.Mutate(data, most)
    if not model.ListFields() or chance.random() < 0.05:
        return atheris.Mutate(data, most)
    for _ in range(chance.choice([1, 1, 2, 4])):
        change(model, chance)
    changed = model.SerializeToString()
    return changed if len(changed) <= most else data


def test(data: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for check in (False, True):
            try:
                lnrnn.from_onnx(data, check=check)
            except ValueError as error:
                if not str(error).strip():
                    raise AssertionError("an error without a message") from error


if __name__ == "__main__":
    atheris.Setup(sys.argv, test, custom_mutator=mutate)
    atheris.Fuzz()
