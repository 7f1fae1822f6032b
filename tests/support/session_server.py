"""Builds examples/session_server, starts its server, and talks to it over raw TCP."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from outcome import Missing, Wrong

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "session_server"
D, H = 6, 8  # the inputs and units of the tests' model

BUILD = """
from Cython.Build import cythonize
from setuptools import Extension, setup
setup(ext_modules=cythonize([Extension("sockets", ["sockets.pyx"])], quiet=True))
"""


def environment() -> dict[str, str]:
    """Returns variables with which the server finds its compiled module, which is kept in build/."""
    text = (EXAMPLE / "sockets.pyx").read_bytes() + sys.version.encode()
    kept = EXAMPLE.parents[1] / "build" / f"session_server-{hashlib.sha256(text).hexdigest()[:16]}"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            shutil.copy(EXAMPLE / "sockets.pyx", folder)
            command = [sys.executable, "-c", BUILD, "-q", "build_ext", "--inplace"]
            flags = {**os.environ, "CFLAGS": "-O0"}
            done = subprocess.run(command, cwd=folder, env=flags, capture_output=True, text=True)
            if done.returncode:
                raise Missing(f"sockets.pyx cannot be compiled: {done.stderr[-500:]}")
            shutil.copytree(folder, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("build", "*.c"))
    path = os.pathsep.join(filter(None, (str(kept), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


class Client:
    """A session over raw TCP."""

    opened = contextlib.ExitStack()

    def __init__(self, port, name, wait=True):
        self.socket = self.opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        self.message(name.encode(), text=True)
        self.joined = self.answer() if wait else None

    def message(self, data, text=False):
        self.socket.sendall(struct.pack("<i", -len(data) if text else len(data)) + data)

    def answer(self):
        """Returns an array for an answer, a str for text, and None after the end."""
        head = self.read(4)
        if head is None:
            return None
        (size,) = struct.unpack("<i", head)
        data = self.read(abs(size))
        return data.decode() if size < 0 else np.frombuffer(data, np.float32)

    def read(self, size):
        data = b""
        while len(data) < size:
            with contextlib.suppress(ConnectionResetError):
                if part := self.socket.recv(size - len(data)):
                    data += part
                    continue
            return None
        return data

    def step(self, frame):
        self.message(np.float32(frame).tobytes())
        return self.answer()

    def close(self):
        self.socket.close()


def start(model, *arguments, port=0):
    """Starts a server. Returns the process, with its ports."""
    command = [sys.executable, EXAMPLE / "server.py", model, "--port", str(port), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    line = process.stdout.readline().split()
    if line[:1] != ["ports"]:
        process.kill()
        raise Wrong(f"the server did not start: {line}")
    process.ports = [int(word) for word in line[1:]]
    return process


@contextlib.contextmanager
def running(model, *arguments):
    """Yields a server and its ports. Then process.counts has its last line, process.lines the others."""
    with start(model, "--websocket-port", "0", *arguments) as process, Client.opened:
        try:
            yield process, *process.ports
            process.send_signal(signal.SIGTERM)
            *process.lines, last = process.stdout.readlines()
            process.counts = json.loads(last)
            if process.counts["exceptions"]:
                raise Wrong("the server had exceptions: they are on stderr")
        finally:
            process.kill()


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
