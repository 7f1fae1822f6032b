"""A model as a deployment of Ray Serve: whole sequences over HTTP, batched, on as many replicas as needed.

    pip install "ray[serve]" numpy
    MODEL=model.safetensors serve run ray_serve:app
    curl --data-binary @sequence.bin http://127.0.0.1:8000/ > h.bin

The body of a request is a sequence (T, D) of float32, and its answer is the last h of the last layer, (H,).
Ray starts more replicas while requests wait. Live sessions need a process that keeps their states:
session_server.py.
"""

from __future__ import annotations

import os

import numpy as np
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

import lnrnn


@serve.deployment(
    autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 32},
    max_ongoing_requests=128,
    ray_actor_options={"num_cpus": 1},
)
class Sequences:
    def __init__(self, path: str) -> None:
        lnrnn.set_num_threads(1)  # a replica has one core
        self.rnn = lnrnn.load(path)

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.002)
    async def last(self, sequences: list[np.ndarray]) -> list[np.ndarray]:
        """One call computes the sequences of all requests that wait. The bits do not depend on the others."""
        offsets = np.cumsum([0, *map(len, sequences)])
        _, state = self.rnn.ragged(np.concatenate(sequences), offsets)
        h = state[0] if isinstance(state, tuple) else state
        return list(h[-1])

    async def __call__(self, request: Request) -> Response:
        body = await request.body()
        if not body or len(body) % (4 * self.rnn.input_size):
            text = f"a sequence must have steps of {self.rnn.input_size} float32, got {len(body)} bytes"
            return Response(text, status_code=400)
        x = np.frombuffer(body, np.float32).reshape(-1, self.rnn.input_size)
        return Response((await self.last(x)).tobytes(), media_type="application/octet-stream")


app = Sequences.bind(os.environ.get("MODEL", "model.safetensors"))
