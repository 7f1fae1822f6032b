"""`to_onnx` writes a network as an ONNX file."""

from __future__ import annotations

import os
from typing import Any

import onnx
from onnx import helper

from ..errors import bad_type, bad_value, flag, integer
from ..files import replacing
from ..rnn.network import Network, snapshot
from ..rnn.snapshot import Snapshot
from ..rnn.specs import LayerNormSpec
from .networks import Form, network_graph

OPSETS = 13, 24  # the first and the last
LAYER_NORM = 17  # the opset that has LayerNormalization
IR_VERSION = 8
MOST_BYTES = 2**31 - 1  # of a protobuf


def to_onnx(
    rnn: Network[Any],
    path: str | os.PathLike[str],
    *,
    opset: int = 17,
    step: bool = False,
    states: bool = True,
    lengths: bool = False,
    resets: bool = False,
) -> None:
    now = _checked(rnn)
    form = Form(*(flag(name, value) for name, value in
                  dict(step=step, states=states, lengths=lengths, resets=resets).items()))  # fmt: skip
    opset = integer("opset", opset, *OPSETS)
    _check_written(now, form, opset)
    model = helper.make_model(
        network_graph(now, form).proto(), opset_imports=[helper.make_opsetid("", opset)],
        ir_version=IR_VERSION, producer_name="lnrnn", producer_version=_version(),
    )  # fmt: skip
    with replacing(path) as write:
        write(model.SerializeToString(deterministic=True))


def _version() -> str:
    from .. import __version__

    return __version__


def _checked(rnn: Any) -> Snapshot:
    if not isinstance(rnn, Network):
        raise bad_type("rnn", "a network, such as lnrnn.LSTM", rnn)
    return snapshot(rnn)


def _check_written(now: Snapshot, form: Form, opset: int) -> None:
    """Raises ValueError for a network that a file cannot have."""
    made = now.architecture
    if form.step:
        for name, value in (("bidirectional", made.bidirectional), ("reverse", made.reverse)):
            if value:
                raise bad_value(name, "False for a file of one step", value)
        if form.lengths:
            raise bad_value("lengths", "False for a file of one step", True, "leave out ended sequences")
        if not form.states:
            raise bad_value("states", "True for a file of one step", False)
    norm = isinstance(made.norm, LayerNormSpec)
    if norm and opset < LAYER_NORM:
        raise bad_value("opset", f"at least {LAYER_NORM} for layer norm", opset)
    if made.sides:
        if now.overrun == "batch":
            raise bad_value("overrun", "'raise', 'last' or 'mean' in a file", now.overrun)
        if not min(s.known for s in now.statistics.values()):
            raise bad_value("known_steps", "at least 1", 0, "train, calibrate, or load statistics first")
