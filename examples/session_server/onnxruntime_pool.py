"""The sessions of server.py on ONNX Runtime, batched, to compare."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime

import lnrnn


class RuntimePool:
    """Has the methods of lnrnn.SessionPool that server.py uses. One call steps all sessions of a batch."""

    def __init__(self, model: str, lanes: int = 4096) -> None:
        network = lnrnn.load(model)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step.onnx"
            lnrnn.to_onnx(network, path, step=True)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            self.runtime = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        names = [given.name for given in self.runtime.get_inputs()]
        self.x, self.names = names[0], names[1:]
        layers, _, width = self.runtime.get_inputs()[1].shape
        self.states = [np.zeros((layers, lanes, width), np.float32) for _ in self.names]
        self.free = list(range(lanes))
        self.lanes: dict[str, int] = {}

    def join(self, name: str) -> Any:
        lane = self.lanes[name] = self.free.pop()
        for state in self.states:
            state[:, lane] = 0
        return SimpleNamespace(how="new", step=0)

    def park(self, name: str) -> None:
        self.free.append(self.lanes.pop(name))

    def maintain(self, limit: int) -> Any:
        return SimpleNamespace(stored=[], parked=[], dropped=[], errors={})

    def step(self, names: list[str], x: np.ndarray) -> np.ndarray:
        rows = np.array([self.lanes[name] for name in names])
        given = {name: state[:, rows] for name, state in zip(self.names, self.states, strict=True)}
        y, *states = self.runtime.run(None, {self.x: x, **given})
        for state, new in zip(self.states, states, strict=True):
            state[:, rows] = new
        result: np.ndarray = y
        return result
