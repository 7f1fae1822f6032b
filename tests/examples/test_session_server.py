"""The server of sessions in examples/session_server, run as a process."""

import contextlib
import json
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import lnrnn
from compilers import native_compiler
from session_server import EXAMPLE, Client, running
from session_shards import redis_server

for name in ("uvloop", "picows", "safetensors", "Cython", "setuptools"):
    pytest.importorskip(name)
D, H = 6, 8


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    native_compiler()
    path = tmp_path_factory.mktemp("server") / "model.safetensors"
    lnrnn.LSTM(D, H, seed=0).save(path)
    return path


def until(done):
    """Waits until done() is true, at most 30 s, and returns whether it is."""
    end = time.monotonic() + 30
    while not done() and time.monotonic() < end:
        time.sleep(0.05)
    return done()


def joined_again(port, name, how):
    """Joins a session. The server may not know yet that its connection has ended, or its store is back."""
    for _ in range(100):
        client = Client(port, name)
        if "must be new" not in client.joined and "the store failed" not in client.joined:
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


def test_a_client_that_is_too_fast_waits_in_order(model, rng):
    x = rng.standard_normal((3000, D), dtype=np.float32)
    want = lnrnn.load(model)(x[:, None])[0][:, 0]
    with running(model, "--backlog", "5") as (process, port, _):
        ann, bob = Client(port, "ann"), Client(port, "bob")
        process.send_signal(signal.SIGSTOP)
        sender = threading.Thread(target=lambda: [ann.message(frame.tobytes()) for frame in x])
        sender.start()
        time.sleep(0.2)
        process.send_signal(signal.SIGCONT)
        np.testing.assert_array_equal(bob.step(x[0]), want[0])
        np.testing.assert_array_equal([ann.answer() for _ in x], want)
        sender.join()
    assert process.counts["refused"] == 0 and process.counts["too_fast"] >= 1
    assert "ann is too fast: more than 5 frames wait\n" in process.lines


def test_a_websocket_refuses_frames_beyond_the_backlog(model, rng):
    websockets = pytest.importorskip("websockets.sync.client")
    x = rng.standard_normal((40, D), dtype=np.float32)
    stream = lnrnn.load(model).stream()
    with running(model, "--backlog", "5") as (process, _, port):
        with websockets.connect(f"ws://127.0.0.1:{port}/ann", compression=None) as ann:
            assert ann.recv() == "new"
            process.send_signal(signal.SIGSTOP)
            for frame in x:
                ann.send(frame.tobytes())
            process.send_signal(signal.SIGCONT)
            answers = [ann.recv() for _ in x]
        texts = [answer for answer in answers if isinstance(answer, str)]
        right = [np.frombuffer(answer, np.float32) for answer in answers if isinstance(answer, bytes)]
        assert len(texts) >= 30 and set(texts) == {"more than 5 frames wait"} and len(right) >= 6
        np.testing.assert_array_equal(right[:6], [stream(frame[None])[0] for frame in x[:6]])
    assert process.counts["refused"] == len(texts)


def test_clients_that_send_half_a_frame_or_nothing_or_do_not_read(model, rng):
    x = rng.standard_normal((3, D), dtype=np.float32)
    stream = lnrnn.load(model).stream()
    with running(model) as (process, port, _):
        bob, half, deaf = Client(port, "bob"), Client(port, "half"), Client(port, "deaf")
        with socket.create_connection(("127.0.0.1", port)) as silent:
            half.step(x[0])
            half.socket.sendall(struct.pack("<i", 4 * D) + x[1].tobytes()[:7])
            with pytest.raises(ConnectionError):
                frames = (struct.pack("<i", 4 * D) + x[0].tobytes()) * 1000
                while True:
                    deaf.socket.sendall(frames)
            np.testing.assert_array_equal(bob.step(x[0]), stream(x[:1])[0])
            half.close()
            half = joined_again(port, "half", "restored 1")
            wrong = Client.__new__(Client)
            wrong.socket = Client.opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            wrong.message(bytes(4 * D))
            assert wrong.answer() == "the first message must be a name of at most 200 bytes"
            np.testing.assert_array_equal(bob.step(x[1]), stream(x[1:2])[0])
            Client.answer(wrong), wrong.close()
            assert b"no name has come in 2 s" in silent.recv(100)
            assert silent.recv(100) == b""
    assert process.counts["refused"] == 2 and process.counts["deaf"] == 1
    assert "deaf does not read its answers\n" in process.lines


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")
@pytest.mark.parametrize("fault", ["full", "killed", "stopped"])
def test_a_store_that_fails_stops_no_session(model, rng, tmp_path, fault):
    redis = pytest.importorskip("redis")
    x = rng.standard_normal((6, D), dtype=np.float32)
    streams = [lnrnn.load(model).stream() for _ in range(2)]
    with tempfile.TemporaryDirectory() as short:
        path, store = redis_server(Path(short))
        try:
            with running(model, "--store", f"unix://{path}", "--checkpoint", "1") as (process, port, _):
                ann, bob, cat = Client(port, "ann"), Client(port, "bob"), Client(port, "cat")
                np.testing.assert_array_equal(ann.step(x[0]), streams[0](x[:1])[0])
                if fault == "full":
                    with redis.Redis(unix_socket_path=str(path)) as database:
                        database.config_set("maxmemory-policy", "noeviction")
                        database.config_set("maxmemory", 1)
                else:
                    store.send_signal(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
                np.testing.assert_array_equal(bob.step(x[0]), streams[1](x[:1])[0])
                assert "the store failed to read session 'eve'" in Client(port, "eve").joined
                assert "it failed (" in (text := Client(port, "eve").joined) and "is asked again in" in text
                np.testing.assert_array_equal(ann.step(x[1]), streams[0](x[1:2])[0])
                ann.close(), cat.close()
                ann = joined_again(port, "ann", "restored 2")  # its state has waited here
                np.testing.assert_array_equal(bob.step(x[1]), streams[1](x[1:2])[0])
                ann.close()
                if fault == "full":
                    with redis.Redis(unix_socket_path=str(path)) as database:
                        database.config_set("maxmemory", 0)
                elif fault == "killed":
                    store.wait()
                    _, store = redis_server(Path(short))
                else:
                    store.send_signal(signal.SIGCONT)
                joined_again(port, "eve", "new")
                with redis.Redis(unix_socket_path=str(path)) as database:
                    for key in ("lnrnn:s:ann", "lnrnn:s:cat"):
                        assert until(lambda key=key: b'"parked"' in (database.hget(key, "state") or b""))
                ann = joined_again(port, "ann", "restored 2")
                np.testing.assert_array_equal(ann.step(x[2]), streams[0](x[2:3])[0])
                np.testing.assert_array_equal(bob.step(x[2]), streams[1](x[2:3])[0])
            assert process.counts["store_errors"] >= 1 and process.counts["refused"] >= 2
            assert any(line.startswith("the store fails, and ") for line in process.lines)
        finally:
            store.kill()
            store.communicate()


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")
@pytest.mark.parametrize("websocket", [False, True])
def test_no_session_waits_for_a_store_that_hangs(model, rng, websocket):
    pytest.importorskip("redis")
    client = pytest.importorskip("websockets.sync.client")
    x = rng.standard_normal((100, D), dtype=np.float32)
    stream = lnrnn.load(model).stream()
    with tempfile.TemporaryDirectory() as short:
        path, store = redis_server(Path(short))
        options = ("--store", f"unix://{path}", "--checkpoint", "1", "--store-seconds", "60")
        try:
            with running(model, *options) as (_, port, other), contextlib.ExitStack() as opened:
                ann = Client(port, "ann")
                store.send_signal(signal.SIGSTOP)
                if websocket:
                    eve = opened.enter_context(
                        client.connect(f"ws://127.0.0.1:{other}/eve", compression=None)
                    )
                    eve.send(x[0].tobytes())
                else:
                    eve = Client(port, "eve", wait=False)
                    eve.message(x[0].tobytes())  # not read as long as the store is asked
                for frame in x:
                    np.testing.assert_array_equal(ann.step(frame), stream(frame[None])[0])
                assert "must be new" in Client(port, "eve").joined
                assert not select.select([eve.socket], [], [], 0)[0]
                store.send_signal(signal.SIGCONT)
                want = lnrnn.load(model).stream()(x[:1])[0]
                answer = eve.recv if websocket else eve.answer
                assert answer() == "new"
                np.testing.assert_array_equal(np.frombuffer(answer(), np.float32), want)
        finally:
            store.kill()
            store.communicate()


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")
def test_a_client_hears_that_its_session_has_joined_another_server(model, rng):
    redis = pytest.importorskip("redis")
    x = rng.standard_normal((2, D), dtype=np.float32)
    stream = lnrnn.load(model).stream()
    with tempfile.TemporaryDirectory() as short:
        path, store = redis_server(Path(short))
        options = ("--store", f"unix://{path}", "--checkpoint", "1")
        try:
            with running(model, *options) as (process, port, _):
                ann, bob = Client(port, "ann"), Client(port, "bob")
                ann.step(x[0])
                with redis.Redis(unix_socket_path=str(path)) as database:
                    assert until(lambda: database.hget("lnrnn:s:ann", "state"))
                with running(model, *options) as (_, other, _):
                    again = Client(other, "ann")
                    assert again.joined == "checkpoint 1"
                    ann.step(x[1]), bob.step(x[1])
                    assert ann.answer() == "the session has joined another server" and ann.answer() is None
                    y = [stream(frame[None])[0] for frame in x]
                    np.testing.assert_array_equal(again.step(x[1]), y[1])
                    assert bob.step(x[0]).shape == (H,)
        finally:
            store.kill()
            store.communicate()
    assert process.counts["refused"] == 1


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")
def test_a_server_that_ends_waits_for_its_store(model, rng, tmp_path):
    pytest.importorskip("redis")
    x = rng.standard_normal((2, D), dtype=np.float32)
    stream = lnrnn.load(model).stream()
    with tempfile.TemporaryDirectory() as short:
        path, store = redis_server(Path(short))
        options = ("--store", f"unix://{path}")
        with running(model, *options) as (process, port, _):
            np.testing.assert_array_equal(Client(port, "ann").step(x[0]), stream(x[:1])[0])
            store.kill()
            store.communicate()
            process.send_signal(signal.SIGTERM)
            assert "1 sessions wait for it" in process.stdout.readline()
            _, store = redis_server(Path(short))
        try:
            with running(model, *options) as (_, port, _):
                ann = Client(port, "ann")
                assert ann.joined == "restored 1"
                np.testing.assert_array_equal(ann.step(x[1]), stream(x[1:])[0])
        finally:
            store.kill()
            store.communicate()


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
        ann.step(np.zeros(D)), ann.step(np.full(D, np.nan))
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=60) as page:
            lines = page.read().decode().splitlines()
    values = dict(line.split() for line in lines if not line.startswith("#"))
    assert float(values.pop("lnrnn_step_seconds_total")) > 0
    want = {
        "frames_total": 2,
        "bad_frames_total": 1,
        "steps_total": 1,
        "batches_total": 2,
        "refused_total": 1,
    }
    want |= {"late_frames_total": 0, "too_fast_total": 0, "deaf_total": 0, "sessions": 1}
    want |= {"stored_total": 0, "store_errors_total": 0, "store_waiting": 0}
    assert values == {f"lnrnn_{name}": str(float(value)) for name, value in want.items()}


@pytest.mark.parametrize("websocket", [False, True])
def test_the_load_generator(model, websocket):
    page = (EXAMPLE.parents[1] / "docs" / "sessions.md").read_text()
    words = re.search(r"^\$ python load.py (.*?) +#", page, re.M)[1].split()  # options that follow win
    command = [
        sys.executable,
        EXAMPLE / "load.py",
        *words,
        "--clients",
        "5",
        "--every",
        "50",
        "--seconds",
        "1",
    ]
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
