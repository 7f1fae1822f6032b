"""The server of sessions in examples/session_server, run as a process."""

import json
import socket
import struct
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest

import lnrnn
from compilers import native_compiler
from session_server import Client, folder, running

for name in ("uvloop", "picows", "safetensors", "Cython", "setuptools"):
    pytest.importorskip(name)
D, H = 6, 8


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    native_compiler()
    path = tmp_path_factory.mktemp("server") / "model.safetensors"
    lnrnn.LSTM(D, H, seed=0).save(path)
    return path


def joined_again(port, name, how):
    """Joins a session whose old connection has just ended: the server may not have noticed that yet."""
    for _ in range(100):
        client = Client(port, name)
        if "must be new" not in client.joined:
            assert client.joined == how
            return client
        time.sleep(0.05)
    raise AssertionError(client.joined)


def test_sessions_have_the_bits_of_streams_and_continue(model, rng):
    x = rng.standard_normal((7, 2, D), dtype=np.float32)
    stream = lnrnn.load(model).stream(2)
    with running(model) as (process, port, _):
        ann, bob = Client(port, "ann"), Client(port, "bob")
        assert ann.joined == bob.joined == "new"
        assert "must be new" in Client(port, "bob").joined
        for t in range(7):
            if t == 4:
                bob.close()
                bob = joined_again(port, "bob", "restored 4")
            ann.message(x[t, 0].tobytes())
            y = bob.step(x[t, 1]), ann.answer()
            np.testing.assert_array_equal(y[::-1], stream(x[t]))
    assert process.counts["frames"] == 14
    assert process.counts["refused"] == 1


def test_wrong_frames_are_refused_by_name_and_change_no_other_session(model, rng):
    x = rng.standard_normal((2, D), dtype=np.float32)
    stream = lnrnn.load(model).stream()
    with running(model) as (process, port, _):
        ann, bob, eve = Client(port, "ann"), Client(port, "bob"), Client(port, "eve")
        for t in range(2):
            bob.message(np.full(D, np.nan, np.float32).tobytes())
            y = ann.step(x[t])
            assert "'bob'" in (text := bob.answer()) and "nan" in text
            np.testing.assert_array_equal(y, stream(x[t : t + 1])[0])
        eve.message(bytes(4 * D - 1))
        assert eve.answer() == "a frame must have 24 bytes, got 23"
        assert eve.answer() is None
        bob.socket.sendall(struct.pack("<i", 2**31 - 1))
        assert bob.answer() == "a frame must have 24 bytes, got 2147483647"
        assert bob.answer() is None
        assert ann.step(x[0]).shape == (H,)
    assert process.counts["refused"] == 4


def test_frames_of_a_client_that_is_too_fast_wait_in_order_or_are_refused(model, rng):
    x = rng.standard_normal((40, D), dtype=np.float32)
    stream = lnrnn.load(model).stream()
    with running(model, "--backlog", "5") as (process, port, _):
        ann = Client(port, "ann")
        frames = b"".join(struct.pack("<i", 4 * D) + frame.tobytes() for frame in x)
        ann.socket.sendall(frames)
        answers = [ann.answer() for _ in range(40)]
        right = [a for a in answers if not isinstance(a, str)]
        assert 6 <= len(right) <= 40
        assert {a for a in answers if isinstance(a, str)} <= {"more than 5 frames wait"}
        np.testing.assert_array_equal(right[:6], [stream(frame[None])[0] for frame in x[:6]])
    assert process.counts["refused"] == 40 - len(right)


def test_a_silent_session_is_parked(model, rng):
    x = rng.standard_normal((2, D), dtype=np.float32)
    stream = lnrnn.load(model).stream()
    with running(model, "--idle", "0.3") as (_, port, _):
        ann = Client(port, "ann")
        np.testing.assert_array_equal(ann.step(x[0]), stream(x[:1])[0])
        assert "parked" in ann.answer()
        assert ann.answer() is None
        ann = joined_again(port, "ann", "restored 1")
        np.testing.assert_array_equal(ann.step(x[1]), stream(x[1:])[0])


def test_counters_for_prometheus(model):
    pytest.importorskip("prometheus_client")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        metrics = free.getsockname()[1]
    with running(model, "--metrics-port", str(metrics)) as (_, port, _):
        ann = Client(port, "ann")
        ann.step(np.zeros(D))
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=60) as page:
            lines = page.read().decode().splitlines()
    assert {"lnrnn_frames_total 1.0", "lnrnn_refused_total 0.0", "lnrnn_sessions 1.0"} <= set(lines)


@pytest.mark.parametrize("websocket", [False, True])
def test_the_load_generator(model, websocket):
    command = [sys.executable, folder() / "load.py", "--clients", "5", "--every", "50", "--seconds", "1"]
    with running(model) as (process, *ports):
        command += ["--inputs", str(D), "--port", str(ports[websocket]), *["--websocket"] * websocket]
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # A timer of uvloop has whole milliseconds, so a client may send its last frame or not.
    assert 95 <= process.counts["frames"] == result["frames_per_second"] <= 100
    assert (result["unanswered"], result["errors"]) == (0, 0)


def test_onnx_runtime_has_the_same_answers(model, rng):
    pytest.importorskip("onnxruntime")
    x = rng.standard_normal((5, D), dtype=np.float32)
    stream = lnrnn.load(model).stream()
    with running(model, "--engine", "onnxruntime") as (_, port, _):
        ann, bob = Client(port, "ann"), Client(port, "bob")
        for t in range(5):
            bob.step(x[0])
            assert np.abs(ann.step(x[t]) - stream(x[t : t + 1])[0]).max() < 1e-5
