"""Kills processes that hold sessions, and compares every answer with a stream of each session's own.

kills: three shards (examples/session_shards.py; with --quick two) share a Redis server. In each round,
sessions join, step, are parked, and leave. Then a shard gets SIGKILL, or every third time SIGTERM. Another
takes its address.
After SIGTERM all sessions must be restored; after SIGKILL those that were parked, while live ones continue
from a checkpoint. All outputs must have the bits of `rnn.stream()`. server: the same for
examples/session_server, which is killed with frames under way. It is also stopped until its sessions have
joined another server: then it must not overwrite their states. serve: examples/ray_serve.py must give the
model's bits. control: the value of one session is
copied over another's, which the comparison must find.
"""

from __future__ import annotations

import importlib.util
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
from ray_serving import serve_with_ray
from server_kills import kill_server

import lnrnn
from lnrnn.rnn.state_bytes import decode, encode
from outcome import Missing, Wrong, needs
from session_shards import EVERY, Cluster, example

D, H = 3, 8
KILLS, QUICK_KILLS, SESSIONS = 50, 2, 12


class Sessions:
    """Sessions of a client. Each has the frames it has sent, from which the right outputs are computed."""

    def __init__(self, rnn, client, rng, count: int) -> None:
        self.rnn, self.client, self.rng = rnn, client, rng
        self.frames = {f"session {k}": [] for k in range(count)}
        self.streams = {id: rnn.stream() for id in self.frames}
        self.live, self.figures = set(), {"new": 0, "restored": 0, "checkpoint": 0, "outputs": 0}

    def join(self, id: str, *allowed: str) -> None:
        how, step = self.client.join(id)
        sent = self.frames[id]
        if how not in allowed or not 0 <= step <= len(sent) or (how == "restored" and step != len(sent)):
            raise Wrong(f"{id}: {how} at step {step} of {len(sent)}, where {allowed} is right")
        if how == "checkpoint" and len(sent) - step > 2 * EVERY:
            raise Wrong(f"{id}: the checkpoint at {step} of {len(sent)} steps is old")
        self.figures[how] += 1
        del sent[step:]  # the frames after a checkpoint are lost
        self.streams[id] = self.rnn.stream()
        for frame in sent:
            self.streams[id](frame)
        self.live.add(id)

    def step(self, id: str) -> None:
        frame = self.rng.standard_normal(D, dtype=np.float32)
        self.frames[id].append(frame)
        if not np.array_equal(self.client.step(id, frame), self.streams[id](frame)):
            raise Wrong(f"{id}: another output at step {len(self.frames[id])}")
        self.figures["outputs"] += 1

    def work(self, steps: int) -> None:
        """Joins, steps, parks and ends sessions in random order."""
        for _ in range(steps):
            id = str(self.rng.choice(list(self.frames)))
            if id not in self.live:
                self.join(id, "restored" if self.frames[id] else "new", "restored")
            chance = self.rng.random()
            if chance < 0.03:
                self.client.leave(id)
                self.frames[id].clear()
                self.live.discard(id)
            elif chance < 0.1:
                self.client.park(id)
                self.live.discard(id)
            else:
                self.step(id)


def round_of(cluster: Cluster, sessions: Sessions, number: signal.Signals) -> None:
    """Ends a shard, and continues all sessions: first on the other shards, or on one at the same address."""
    client, rng = sessions.client, sessions.rng
    shard = client.shards[rng.integers(len(client.shards))]
    lost = {id for id in sessions.live if client.shard_of(id) == shard}
    if number == signal.SIGKILL:
        time.sleep(0.1)  # `maintain` runs every 20 ms: all checkpoints that are due are stored
        for id in list(lost):
            sessions.step(id)  # may be lost
    cluster.end(shard, number)
    for id in lost:
        sessions.live.discard(id)
    moved = bool(rng.random() < 0.5)
    if moved:  # the sessions of this shard continue on the others
        client.shards.remove(shard)
    else:
        cluster.begin(shard[1])
    if shard in client.connections:
        client.connections.pop(shard).close()
    for id in sorted(lost):
        # A session without a checkpoint before the kill is new again.
        fresh = () if number == signal.SIGTERM or len(sessions.frames[id]) > EVERY else ("new",)
        sessions.join(id, "restored" if number == signal.SIGTERM else "checkpoint", *fresh)
        sessions.step(id)
    if moved:
        # Sessions leave their shards before a new shard changes the choice.
        for id in list(sessions.live):
            client.park(id)
            sessions.live.discard(id)
        cluster.begin(shard[1])
        client.shards.append(shard)


def run(options, kills: int) -> dict[str, int]:
    needs("redis-server")
    try:
        module = example()
    except ImportError as error:
        raise Missing(f"needs {error.name}") from None
    rnn = lnrnn.LSTM(D, H, seed=options.seed % 1000)
    with tempfile.TemporaryDirectory() as folder:  # a path of a socket must be short
        cluster = Cluster(Path(folder), rnn, 2 if options.quick else 3)
        client = module.Client(list(cluster.processes))
        try:
            sessions = Sessions(rnn, client, np.random.default_rng(options.seed), SESSIONS)
            done = 0
            for turn in range(kills + kills // 2):
                sessions.work(150)
                kill = turn % 3 != 2
                round_of(cluster, sessions, signal.SIGKILL if kill else signal.SIGTERM)
                done += kill
            sessions.work(150)
            return {"kills": done, "terminations": turn + 1 - done, **sessions.figures}
        finally:
            client.close()
            cluster.close()


def kills(options) -> dict[str, int]:
    return run(options, QUICK_KILLS if options.quick else KILLS)


def needs_modules(*names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise Missing(f"needs {name}")


def server(options) -> dict[str, int]:
    needs("redis-server")
    needs_modules("redis", "uvloop", "picows", "Cython", "setuptools")
    return kill_server(options.seed, 1 if options.quick else KILLS)


def serve(options) -> dict[str, int]:
    needs_modules("ray", "starlette", "fastapi", "grpc_reflection")
    return serve_with_ray(options.seed)


def control(options) -> str:
    """Mixes the values of two sessions, and expects Wrong."""
    needs("redis-server")
    needs_modules("redis")
    import redis

    rnn = lnrnn.LSTM(D, H, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), rnn, 1)
        client = example().Client(list(cluster.processes))
        try:
            sessions = Sessions(rnn, client, np.random.default_rng(options.seed), 2)
            for id in sessions.frames:
                sessions.join(id, "new")
                sessions.step(id)
                client.park(id)
            database = redis.Redis(unix_socket_path=str(cluster.socket))
            first, second = sorted(database.keys())
            # The value of another session is refused, so its state gets the notes of this session.
            *state, _ = decode(database.hget(second, "state"))
            *_, notes = decode(database.hget(first, "state"))
            database.hset(first, "state", encode(*state, notes))
            try:
                for id in sessions.frames:
                    sessions.join(id, "restored")
                    sessions.step(id)
            except Wrong as error:
                return f"notices: {error}"
            raise Wrong("a state in another session is not noticed")
        finally:
            client.close()
            cluster.close()


PARTS = {"kills": kills, "server": server, "serve": serve, "control": control}
