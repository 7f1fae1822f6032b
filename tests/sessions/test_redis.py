"""A real Redis server as the store of a pool: as it is, full, killed, and with a wrong client."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import lnrnn
from lnrnn.sessions import RedisStore, StoreError, TakenError
from networks import network, normal, same

redis = pytest.importorskip("redis")
if shutil.which("redis-server") is None:
    pytest.skip("needs redis-server", allow_module_level=True)

D, H = 3, 5


def redis_server(folder: Path, *words: str) -> tuple[Path, subprocess.Popen]:
    """Starts a server that keeps nothing on the disk. Returns its socket in `folder`, and the process."""
    socket = folder / "redis.sock"
    socket.unlink(missing_ok=True)
    command = ["redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder, *words]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    until = time.monotonic() + 30
    with client(socket) as database:
        while True:
            try:  # the socket exists before the server answers
                database.ping()
                return socket, server
            except redis.ConnectionError:
                assert time.monotonic() < until and server.poll() is None, "redis-server did not start"
                time.sleep(0.01)


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory() as name:  # a path of a socket must be short
        yield Path(name)


@pytest.fixture
def server(folder):
    socket, process = redis_server(folder)
    yield socket, process
    process.kill()
    process.communicate()


def client(socket, **options):
    return redis.Redis(unix_socket_path=str(socket), **options)


def test_a_client_of_redis_is_a_store(rng, server):
    rnn, x, ids = network(D, H, cell="LSTM"), normal(rng, 3, 3, D), ["ann", 7, b"\xff\0"]
    want = rnn(x)[0]
    with client(server[0]) as database:
        for t, how in enumerate(("new", "restored", "restored")):
            pool = lnrnn.SessionPool(rnn, store=database, checkpoint_every=1)
            assert [pool.join(id) for id in ids] == [(how, t)] * 3
            same(pool.step(ids, x[t]), want[t])
            assert not pool.drain().errors
        assert len(database.keys("lnrnn:*")) == 3
        pool.join("ann")
        pool.leave("ann"), pool.leave(7)
        assert database.keys() == [b"lnrnn:b:ff00"]


def test_a_killed_server_stops_no_session(rng, server, folder):
    rnn, x = network(D, H, cell="GRU"), normal(rng, 4, 2, D)
    want = rnn(x)[0]
    with client(server[0], retry=None) as database:
        pool = lnrnn.SessionPool(rnn, store=database, checkpoint_every=1)
        pool.join("a"), pool.join("b")
        same(pool.step(["a", "b"], x[0]), want[0])
        assert sorted(pool.maintain().stored) == ["a", "b"]
        server[1].kill()
        server[1].wait()
        for call in (lambda: pool.park("a"), lambda: pool.join("c")):
            with pytest.raises(StoreError, match="^the store failed to .* session '[ac]': ConnectionError"):
                call()
        same(pool.step(["a", "b"], x[1]), want[1])
        assert set(pool.maintain().errors) == {"a", "b"} == set(pool)
        same(pool.step(["a", "b"], x[2]), want[2])
        _, again = redis_server(folder)
        try:
            assert sorted(pool.drain().parked) == ["a", "b"]
            assert pool.join("a") == ("restored", 3) and pool.join("c").how == "new"
            same(pool.step(["a"], x[3, :1]), want[3, :1])
        finally:
            again.kill()
            again.communicate()


def test_a_full_server_refuses_by_name(rng, folder):
    rnn = network(D, H)
    socket, process = redis_server(folder, "--maxmemory", "1", "--maxmemory-policy", "noeviction")
    try:
        with client(socket) as database:
            pool = lnrnn.SessionPool(rnn, store=database)
            pool.join("a")
            with pytest.raises(StoreError, match="session 'a': .*maxmemory"):
                pool.park("a")
            assert "a" in pool and np.isfinite(pool.step(["a"], normal(rng, 1, D))).all()
    finally:
        process.kill()
        process.communicate()


def test_wrong_clients_and_values_are_named(server):
    rnn = network(D, H)
    with client(server[0], decode_responses=True) as texts, client(server[0]) as database:
        pool = lnrnn.SessionPool(rnn, store=database)
        pool.join("a")
        pool.park("a")
        with pytest.raises(StoreError, match="UnicodeEncodeError"):
            pool.join("\ud800")  # UTF-8 has no such text
        with pytest.raises(StoreError, match="session 'a'"):
            lnrnn.SessionPool(rnn, store=texts).join("a")
        database.delete("lnrnn:s:a")
        database.lpush("lnrnn:s:a", b"a list")
        with pytest.raises(StoreError, match="failed to read session 'a': .*WRONGTYPE"):
            pool.join("a")


def test_a_late_pool_cannot_overwrite_a_session_that_another_has_joined(rng, server):
    rnn, x, ids = network(D, H, cell="LSTM"), normal(rng, 4, 4, D), list("abcd")
    want = rnn(x)[0]
    with client(server[0]) as database:
        old, new = (lnrnn.SessionPool(rnn, store=RedisStore(database), checkpoint_every=1) for _ in range(2))
        assert all(old.join(id) == ("new", 0) for id in ids)
        same(old.step(ids, x[0]), want[0])
        assert sorted(old.maintain().stored) == ids
        same(old.step(ids, x[1]), want[1])  # after the last checkpoint, so these steps are lost
        assert new.join("a") == ("checkpoint", 1) and new.join("b") == ("checkpoint", 1)
        new.leave("b")
        done = old.maintain()
        assert sorted(done.stored) == ["c", "d"] and sorted(done.dropped) == ["a", "b"] == sorted(done.errors)
        assert all(isinstance(error, TakenError) for error in done.errors.values())
        assert set(old) == {"c", "d"} and not old.maintain().errors
        assert new.join("c") == new.join("d") == ("checkpoint", 2)
        for call in (old.park, old.leave):
            with pytest.raises(TakenError, match="session '[cd]' is not here any more: another pool"):
                call("c" if call == old.park else "d")
        assert not len(old)
        same(new.step(["a"], x[1, :1]), want[1, :1])
        same(new.step(["a", "c", "d"], x[2, [0, 2, 3]]), want[2, [0, 2, 3]])
        assert not new.drain().errors
        assert old.join("a") == old.join("c") == old.join("d") == ("restored", 3)
        assert old.join("b") == ("new", 0)
        same(old.step(["a", "c", "d"], x[3, [0, 2, 3]]), want[3, [0, 2, 3]])


def test_values_expire_and_a_server_without_data_is_used_again(rng, server):
    with client(server[0]) as database:
        pool = lnrnn.SessionPool(network(D, H), store=RedisStore(database, 1000), checkpoint_every=1)
        pool.join("a")
        database.flushall()
        database.script_flush()
        pool.step(["a"], normal(rng, 1, D))
        assert pool.maintain().stored == ["a"]
        assert 990 < database.ttl("lnrnn:s:a") <= 1000
        pool.leave("a")
        assert 990 < database.ttl("lnrnn:s:a") <= 1000 and not database.hexists("lnrnn:s:a", "state")
    with pytest.raises(ValueError, match="^seconds "):
        RedisStore(redis.Redis(), 0)
