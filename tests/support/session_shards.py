"""Starts a Redis server and the processes of examples/session_shards.py."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import time
from pathlib import Path

from outcome import Wrong

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "session_shards.py"
EVERY = 5  # steps between checkpoints


def patient(socket: Path) -> str:
    """Returns the address of a Redis server that may be slow, as it is on a machine with much other load."""
    return f"unix://{socket}?socket_timeout=20&socket_connect_timeout=20"


def redis_server(folder: Path, *words: str) -> tuple[Path, subprocess.Popen]:
    """Starts a server that keeps nothing on the disk. Returns its socket in `folder`, and the process."""
    socket = folder / "redis.sock"
    socket.unlink(missing_ok=True)
    command = ["redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder, *words]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    until = time.monotonic() + 30
    while not socket.exists():
        if time.monotonic() > until or server.poll() is not None:
            raise Wrong("redis-server did not start")
        time.sleep(0.01)
    return socket, server


def example():
    spec = importlib.util.spec_from_file_location("session_shards", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Cluster:
    """A Redis server and shards. Each shard prints its port."""

    def __init__(self, folder: Path, rnn, shards: int) -> None:
        self.folder, self.processes = folder, {}
        rnn.save(folder / "model.safetensors")
        self.socket, self.redis = redis_server(folder)
        for _ in range(shards):
            self.begin()

    def begin(self, port: int = 0):
        command = [sys.executable, EXAMPLE, self.folder / "model.safetensors", "--port", str(port)]
        command += ["--redis", patient(self.socket), "--checkpoint", str(EVERY), "--idle", "1000"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = process.stdout.readline().split()
        if line[:1] != ["port"]:
            raise Wrong(f"a shard did not start: {line}")
        self.processes["127.0.0.1", int(line[1])] = process

    def end(self, shard, number: signal.Signals) -> None:
        process = self.processes.pop(shard)
        process.send_signal(number)
        process.communicate(timeout=60)
        if process.returncode != (-signal.SIGKILL if number == signal.SIGKILL else 0):
            raise Wrong(f"a shard ended with {process.returncode}")

    def close(self) -> None:
        for process in (*self.processes.values(), self.redis):
            process.kill()
            process.communicate()
