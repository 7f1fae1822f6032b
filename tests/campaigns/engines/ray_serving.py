"""Requests to examples/ray_serve.py, in processes of Ray."""

from __future__ import annotations

import importlib.util
import os
import socket
import tempfile
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import lnrnn
from outcome import Wrong

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "ray_serve.py"
D, SEQUENCES = 3, 200


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def ask(url: str, body: bytes) -> np.ndarray | str:
    """Returns h, or the text of an answer with status 400."""
    try:
        with urllib.request.urlopen(url, data=body, timeout=60) as answer:
            return np.frombuffer(answer.read(), np.float32)
    except urllib.error.HTTPError as error:
        if error.code != 400:
            raise
        return error.read().decode()


def serve_with_ray(seed: int) -> dict[str, int]:
    import ray
    from ray import serve

    rng, rnn = np.random.default_rng(seed), lnrnn.LSTM(D, 8, num_layers=2, seed=seed % 1000)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MODEL"] = f"{folder}/model.safetensors"
        rnn.save(os.environ["MODEL"])
        spec = importlib.util.spec_from_file_location("ray_serve", EXAMPLE)
        example = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(example)
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
        try:
            port = free_port()
            serve.start(http_options={"port": port})
            serve.run(example.app)
            url = f"http://127.0.0.1:{port}/"
            lengths = rng.integers(1, 30, SEQUENCES)
            sequences = [rng.standard_normal((length, D), dtype=np.float32) for length in lengths]
            with ThreadPoolExecutor(8) as clients:
                answers = list(clients.map(lambda x: ask(url, x.tobytes()), sequences))
            for k, (x, h) in enumerate(zip(sequences, answers, strict=True)):
                if not np.array_equal(h, rnn(x)[1][0][-1]):
                    raise Wrong(f"the answer {k}, of {len(x)} steps, has other bits: {h}")
            for size in (0, 4 * D - 1):
                text = ask(url, bytes(size))
                if text != f"a sequence must have steps of {D} float32, got {size} bytes":
                    raise Wrong(f"{size} bytes are not refused: {text}")
        finally:
            serve.shutdown()
            ray.shutdown()
    return {"sequences": SEQUENCES}
