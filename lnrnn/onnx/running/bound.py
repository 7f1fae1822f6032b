"""Runs an ONNX file with arrays that onnxruntime reads and writes in place (IOBinding), for streams."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .file_session import FileSession

Array = np.ndarray
States = dict[str, Array]
Run = Callable[[Any, States], "tuple[list[Any], States] | None"]


def bound(file: FileSession, feed: Mapping[str, Array], states: States, results: list[Any]) -> Run | None:
    """Returns step(x, states), which runs a file with bound arrays, or None if the values cannot be bound.

    Two sets of arrays hold the states: a run reads one and writes the other, so the next run overwrites
    its argument. results: outputs of a run with inputs of the same shapes. step returns None if x has
    other dtypes or shapes than `feed`, if another thread uses the arrays, or if the run fails.
    """
    every = (*file.constants.values(), *feed.values(), *states.values(), *results)
    if not all(isinstance(a, np.ndarray) and a.size and a.dtype.kind in "biuf" for a in every):
        return None
    value = importlib.import_module("onnxruntime").OrtValue.ortvalue_from_numpy
    busy, run, names = threading.Lock(), file.session.run_with_iobinding, tuple(feed)
    inputs, outputs = [_aligned(a) for a in feed.values()], [_aligned(y) for y in results]
    one, other = ({name: _aligned(array) for name, array in states.items()} for _ in range(2))
    forth, back = file.session.io_binding(), file.session.io_binding()
    for binding, old, new in ((forth, one, other), (back, other, one)):
        for name, array in (*file.constants.items(), *zip(names, inputs, strict=True), *old.items()):
            binding.bind_ortvalue_input(name, value(array))
        for name, array in zip(file.returned, (*outputs, *new.values()), strict=True):
            binding.bind_ortvalue_output(name, value(array))

    def step(x: Any, states: States) -> tuple[list[Any], States] | None:
        # Python's data has left the CPU's caches during the run, so that each line takes up to 0.5 us.
        if type(x) is np.ndarray:
            x = (x,)
        elif type(x) is dict and len(x) == len(names):
            x = [x.get(name) for name in names]
        else:
            return None
        if len(x) != len(inputs) or not busy.acquire(False):
            return None
        try:
            for array, given in zip(inputs, x):  # noqa: B905 - they have the same length
                if type(given) is not np.ndarray or given.shape != array.shape or given.dtype != array.dtype:
                    return None
                array[...] = given
            if states is other:
                run(back)
                return [y.copy() for y in outputs], one
            if states is not one:
                for name, array in one.items():
                    array[...] = states[name]
            run(forth)
            return [y.copy() for y in outputs], other
        except Exception:  # the caller repeats the run, which raises errors with names
            return None
        finally:
            busy.release()

    return step


def _aligned(array: Array) -> Array:
    """Returns a copy whose address is a multiple of 64, as in onnxruntime, since results may depend on it."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    result: Array = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result
