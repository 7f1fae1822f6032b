"""Kills of examples/session_server under load, and stops that make it late. Its sessions are in Redis."""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path

import numpy as np

import lnrnn
from outcome import Wrong
from session_server import Client, start
from session_shards import EVERY, patient, redis_server

D, H, SESSIONS = 3, 8, 16


class Load:
    """Sessions of one server at a time. Each has its frames, from which the right outputs are computed."""

    def __init__(self, folder: Path, seed: int) -> None:
        import redis

        self.rng = np.random.default_rng(seed)
        self.rnn, self.model = lnrnn.LSTM(D, H, seed=seed % 1000), folder / "model.safetensors"
        self.rnn.save(self.model)
        self.socket, self.redis = redis_server(folder)
        self.database = redis.Redis(unix_socket_path=str(self.socket))
        self.server = self.started()
        self.frames = {f"session {k}": [] for k in range(SESSIONS)}
        self.streams = {name: self.rnn.stream() for name in self.frames}
        self.clients: dict[str, Client] = {}
        self.figures = {"new": 0, "restored": 0, "checkpoint": 0, "outputs": 0, "late": 0}

    def started(self, port: int = 0):
        return start(self.model, "--store", patient(self.socket), "--checkpoint", str(EVERY), port=port)

    def join(self, name: str, allowed: set[str], oldest: int = 0) -> None:
        client = Client(self.server.ports[0], name)
        how, _, step = client.joined.partition(" ")
        sent, step = self.frames[name], int(step or 0)
        if how not in allowed or not oldest <= step <= len(sent) or (how == "restored" and step != len(sent)):
            raise Wrong(f"{name}: {client.joined!r} of {len(sent)} steps, where {allowed} is right")
        self.figures[how] += 1
        del sent[step:]
        self.streams[name] = self.rnn.stream()
        for frame in sent:
            self.streams[name](frame)
        self.clients[name] = client

    def send(self, names: list[str]) -> None:
        for name in names:
            self.frames[name].append(self.rng.standard_normal(D, dtype=np.float32))
            self.clients[name].message(self.frames[name][-1].tobytes())

    def step(self, times: int) -> None:
        """Steps some live sessions, all at once, and compares the outputs."""
        for _ in range(times):
            names = [name for name in self.clients if self.rng.random() < 0.7]
            self.send(names)
            for name in names:
                got, want = self.clients[name].answer(), self.streams[name](self.frames[name][-1])
                if not np.array_equal(got, want):
                    raise Wrong(f"{name}: another output at step {len(self.frames[name])}: {got}")
            self.figures["outputs"] += len(names)

    def park(self, names: list[str]) -> None:
        """Ends connections, and waits until their sessions are parked."""
        for name in names:
            self.clients.pop(name).close()
        until = time.monotonic() + 60
        for name in names:
            while b'"session":"parked"' not in (self.database.hget(f"lnrnn:s:{name}", "state") or b""):
                if time.monotonic() > until:
                    raise Wrong(f"{name} is not parked")
                time.sleep(0.01)

    def some(self) -> list[str]:
        return [name for name in self.clients if self.rng.random() < 0.3]

    def join_again(self, live: dict[str, int]) -> None:
        """Joins all sessions: parked ones, and those that a dead server had, with the oldest right step."""
        for name in self.frames:
            if name in live:
                self.join(name, {"checkpoint"} if live[name] else {"checkpoint", "new"}, live[name])
            elif name not in self.clients:
                self.join(name, {"restored"} if self.frames[name] else {"new", "restored"})

    def kill(self) -> None:
        """Kills the server while frames are under way. Another takes its port."""
        stored = self.rng.random() < 0.5
        if stored:
            time.sleep(0.5)  # `maintain` runs each 0.1 s, so that no checkpoint is old
        oldest = {name: max(0, len(self.frames[name]) - EVERY if stored else 0) for name in self.clients}
        self.send(list(self.clients))
        time.sleep(self.rng.random() * 0.02)
        self.server.kill()
        self.server.communicate()
        for client in self.clients.values():
            client.close()
        self.clients.clear()
        self.server = self.started(self.server.ports[0])
        self.join_again(oldest)

    def stop(self) -> None:
        """Stops the server until its sessions have joined another one, so it would then store old states."""
        old, clients = self.server, dict(self.clients)
        oldest = dict.fromkeys(clients, 0)
        old.send_signal(signal.SIGSTOP)
        for name in clients:  # they wait in the server, which steps and stores them when it continues
            for _ in range(EVERY):
                clients[name].message(np.zeros(D, np.float32).tobytes())
        self.clients.clear()
        self.server = self.started()
        self.join_again(oldest)
        self.step(3)
        old.send_signal(signal.SIGCONT)
        for client in clients.values():
            while (answer := client.answer()) is not None:
                self.figures["late"] += isinstance(answer, str) and "another server" in answer
            client.close()
        old.send_signal(signal.SIGTERM)
        old.communicate(timeout=60)
        self.step(2)
        self.park(list(self.clients))
        self.join_again({})

    def close(self) -> None:
        for process in (self.server, self.redis):
            process.kill()
            process.communicate()
        self.database.close()


def kill_server(seed: int, kills: int) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder, Client.opened:  # a path of a socket must be short
        load = Load(Path(folder), seed)
        try:
            load.join_again({})
            stops = 0
            for turn in range(kills):
                load.step(int(load.rng.integers(1, 12)))
                load.park(load.some())
                load.kill()
                if turn % 5 == 0:
                    load.step(EVERY)
                    load.stop()
                    stops += 1
            load.step(5)
            if not load.figures["late"]:
                raise Wrong("no server was late")
            return {"kills": kills, "stops": stops, **load.figures}
        finally:
            load.close()
