"""Compares a file's outputs with rounded and float32 weights, for `check` of lnrnn.onnxruntime.session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from ..errors import bad_type, bad_value, message
from ..onnx.errors import text_of
from ..rounding import INPUT, compared, timed


def checked(
    opened: Callable[[Sequence[str]], Any], provider: str, dtype: str, plain: Callable[[], Any], feed: Any,
    options: Mapping[str, Any],
) -> Any:  # fmt: skip
    """Returns a session with a Rounding report as its attribute `rounding`.

    opened(names): returns a session with float32 weights in these nodes, which records the plug-in's
    nodes. plain(): returns a session without the plug-in. feed: the argument `check`. options: tolerance etc.
    """
    whole = opened(())
    taken = (part for part in whole.get_provider_graph_assignment_info() if part.ep_name == provider)
    nodes = [node for part in taken for node in part.get_nodes()]
    names = list(dict.fromkeys(node.name for node in nodes))
    if any("\n" in name for name in names):  # line breaks separate names in the plug-in's option
        expected = "left out, because names of nodes in the file have line breaks"
        raise ValueError(message("check", expected, repr(names)))
    given = _checked_feed(feed, [each.name for each in whole.get_inputs()])

    def call(session: Any) -> Any:
        try:
            return session.run(None, given)
        except Exception as error:  # onnxruntime's errors have no common class
            shapes = ", ".join(f"{name} {a.shape} of {a.dtype}" for name, a in given.items())
            got = f"{shapes}: {text_of(error)}"
            raise ValueError(message("check", "inputs with which onnxruntime runs the file", got)) from None

    def run(short: Sequence[str]) -> tuple[Any, float]:
        kept = [name for name in names if name not in short]
        return timed(partial(call, opened(kept) if kept else whole))

    original = None
    with suppress(Exception):  # onnxruntime may refuse nodes that the plug-in runs
        original = call(plain())
    rounds = any(node.op_type == "DynamicQuantizeLSTM" for node in nodes)  # onnxruntime rounds inputs
    report = compared(run, names, dtype, original, **options, is_exact=not rounds)
    session = opened(report.kept) if report.kept else whole
    session.rounding = report
    return session


def _checked_feed(feed: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    if not isinstance(feed, Mapping):
        raise bad_type("check", f"a mapping with the inputs {', '.join(names)}", feed, INPUT)
    for name in (*names, *feed):
        if name not in feed or name not in names:
            got = f"{'no' if name in names else 'another'} input {name!r}"
            raise ValueError(message("check", f"a mapping with the inputs {', '.join(names)}", got))
    given = {name: np.asarray(feed[name]) for name in names}
    for name, array in given.items():
        if not array.size:  # some onnxruntime kernels crash
            raise bad_value(f"check[{name!r}]", "an array with elements", array, INPUT)
    return given
