"""The server of examples/session_server, whose store fails, hangs, or is shared with another server."""

import contextlib
import select
import shutil
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest

import lnrnn
from session_server import Client, D, H, joined_again, running, until
from session_shards import redis_server

for name in ("uvloop", "picows", "safetensors", "Cython", "setuptools", "redis"):
    pytest.importorskip(name)
if shutil.which("redis-server") is None:
    pytest.skip("needs redis-server", allow_module_level=True)
import redis  # noqa: E402


@pytest.mark.parametrize("fault", ["full", "killed", "stopped"])
def test_a_store_that_fails_stops_no_session(model, rng, tmp_path, fault):
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


@pytest.mark.parametrize("websocket", [False, True])
def test_no_session_waits_for_a_store_that_hangs(model, rng, websocket):
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


def test_a_client_hears_that_its_session_has_joined_another_server(model, rng):
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


def test_a_server_that_ends_waits_for_its_store(model, rng, tmp_path):
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
