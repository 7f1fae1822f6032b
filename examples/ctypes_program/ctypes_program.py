"""Streams a saved model by calling liblnrnn through ctypes, as any language that calls C can do.

    python3 ctypes_program.py LIBRARY model.safetensors

LIBRARY: liblnrnn.so.4 after `make install`, or the path that lnrnn.get_library() returns.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

P = ctypes.c_void_p


class Stream:
    """Runs the model of a file step by step on one sequence."""

    def __init__(self, library: str, path: str) -> None:
        self.c = ctypes.CDLL(library)
        network, stream, self.handle = P(), P(), P()
        self.checked("network_open", path.encode(), ctypes.byref(network))
        self.checked("stream_create", network, ctypes.c_size_t(1), ctypes.byref(stream))
        self.checked("handle_create", stream, ctypes.c_size_t(1), 1, ctypes.byref(self.handle))
        size, inputs, outputs = ctypes.c_size_t, "lnrnn_network_inputs", "lnrnn_network_state_size"
        self.inputs = ctypes.CFUNCTYPE(size, P)((inputs, self.c))(network)
        self.outputs = ctypes.CFUNCTYPE(size, P, ctypes.c_int)((outputs, self.c))(network, 0)
        self.c.lnrnn_stream_release(stream)  # the handle keeps the stream, and the stream the network
        self.c.lnrnn_network_release(network)

    def checked(self, name: str, *arguments: Any) -> None:
        message = ctypes.create_string_buffer(256)
        if getattr(self.c, f"lnrnn_{name}")(*arguments, message):
            raise ValueError(message.value.decode())

    def step(self, x: list[float]) -> list[float]:
        y = (ctypes.c_float * self.outputs)()
        status = self.c.lnrnn_handle_step(self.handle, None, (ctypes.c_float * self.inputs)(*x), y)
        if status:
            raise ValueError(f"the step failed with status {status}")
        return list(y)

    def close(self) -> None:
        self.c.lnrnn_handle_free(self.handle)


if __name__ == "__main__":
    stream = Stream(*sys.argv[1:])
    for t in range(3):
        print(*(f"{value:.6f}" for value in stream.step([float(t)] * stream.inputs)))
    stream.close()
