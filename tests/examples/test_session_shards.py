"""Clients of examples/session_shards.py that break its rules. tests/campaigns/shards kills its processes."""

from __future__ import annotations

import shutil
import signal
import socket
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import lnrnn
from session_shards import Cluster, example

pytest.importorskip("redis")
pytest.importorskip("safetensors")
if shutil.which("redis-server") is None:
    pytest.skip("needs redis-server", allow_module_level=True)

RNN = lnrnn.LSTM(3, 8, seed=0)


@pytest.fixture(scope="module")
def cluster():
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), RNN, 1)
        yield cluster
        cluster.close()


@pytest.fixture
def client(cluster):
    client = example().Client(list(cluster.processes))
    yield client
    client.close()


def test_bad_requests_are_refused_and_disturb_nobody(client, cluster, rng):
    client.join("a")
    frame = rng.standard_normal(3, dtype=np.float32)
    for message, call in {
        "finite, got nan .* session 'a'": lambda: client.step("a", [np.nan, 0, 0]),
        "live sessions, got 'b'": lambda: client.step("b", frame),
        "a session that is not live": lambda: client.join("a"),
        "12 bytes, got 0": lambda: client.ask(b"S", "a"),
        "unknown operation": lambda: client.ask(b"X", "a"),
        "live or parked session": lambda: client.leave("b"),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
    for wrong in (b"S\1\0\xff\xff\xff\xffa", b"J\2\0\0\0\0\0\xff\xff"):
        with socket.create_connection(client.shards[0], timeout=30) as other:
            other.sendall(wrong)
            assert other.recv(100) == b""  # the shard ends this connection
    want = RNN.stream()
    for _ in range(3):
        assert np.array_equal(client.step("a", frame), want(frame))


def test_a_closed_connection_parks_its_sessions(client, cluster, rng):
    frames, want = rng.standard_normal((4, 3), dtype=np.float32), RNN.stream()
    client.join("c")
    assert np.array_equal(client.step("c", frames[0]), want(frames[0]))
    client.close()
    until = time.monotonic() + 30
    while True:  # the shard may notice the end after the next connection
        try:
            assert client.join("c") == ("restored", 1)
            break
        except ValueError:
            assert time.monotonic() < until
            time.sleep(0.01)
    assert np.array_equal(client.step("c", frames[1]), want(frames[1]))
    shard = client.shards[0]
    cluster.end(shard, signal.SIGTERM)  # with an open connection
    cluster.begin(shard[1])
    with pytest.raises(ConnectionError):
        client.step("c", frames[2])
    assert client.join("c") == ("restored", 2)
    assert np.array_equal(client.step("c", frames[2]), want(frames[2]))


def test_few_sessions_move_if_a_shard_is_added():
    client = example().Client([("host", port) for port in range(4)])
    ids = [f"session {k}" for k in range(2000)]
    before = [client.shard_of(id) for id in ids]
    client.shards.append(("host", 4))
    moved = [(old, new) for old, new in zip(before, map(client.shard_of, ids), strict=True) if old != new]
    assert all(new == ("host", 4) for _, new in moved) and 300 < len(moved) < 500
