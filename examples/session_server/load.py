"""Sends frames to server.py from many clients in real time, and prints how late the answers are.

    python load.py --port 9000 --clients 200 --every 10 --seconds 10
    python load.py --port 9001 --websocket --clients 200 --every 10

Each client sends a frame every `--every` milliseconds, and begins at a random moment. An answer is late if it
comes after the client's next frame is due. The clients are one process: it must have a core of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import time
from collections import deque
from typing import Any

import numpy as np
import uvloop
from picows import WSListener, WSMsgType, ws_connect

LENGTH = struct.Struct("<i")


class Client:
    """Sends frames at their times, and notes when the answers come."""

    def __init__(self, name: str, frames: list[bytes]) -> None:
        self.name, self.frames = name, frames
        self.sent: deque[float] = deque()
        self.delays: list[float] = []
        self.texts: list[str] = []
        self.joined = asyncio.get_running_loop().create_future()
        self.send: Any = None

    def answer(self) -> None:
        self.delays.append(time.perf_counter() - self.sent.popleft())

    def text(self, text: str) -> None:
        self.texts.append(text)
        if not self.joined.done():
            self.joined.set_result(text)

    def start(self, every: float, until: float) -> None:
        """Sends a frame now, and then every `every` seconds."""
        loop = asyncio.get_running_loop()
        at = loop.time()
        count = 0

        def frame() -> None:
            nonlocal at, count
            self.sent.append(time.perf_counter())
            self.send(self.frames[count % len(self.frames)])
            count += 1
            at += every
            if at < until:
                loop.call_at(at, frame)

        frame()


class Raw(asyncio.Protocol):
    def __init__(self, client: Client) -> None:
        self.client, self.rest = client, b""

    def connection_made(self, transport: Any) -> None:
        name = self.client.name.encode()
        transport.write(LENGTH.pack(-len(name)) + name)
        self.client.send = lambda data: transport.write(LENGTH.pack(len(data)) + data)

    def data_received(self, data: bytes) -> None:
        data = self.rest + data
        while len(data) >= 4 and len(data) >= 4 + abs(size := LENGTH.unpack_from(data)[0]):
            message, data = data[4 : 4 + abs(size)], data[4 + abs(size) :]
            if size < 0:
                self.client.text(message.decode())
            else:
                self.client.answer()
        self.rest = data


class Websocket(WSListener):  # type: ignore[misc]
    def __init__(self, client: Client) -> None:
        super().__init__()
        self.client = client

    def on_ws_connected(self, transport: Any) -> None:
        self.client.send = lambda data: transport.send(WSMsgType.BINARY, data)

    def on_ws_frame(self, transport: Any, frame: Any) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            self.client.text(frame.get_payload_as_utf8_text())
        else:
            self.client.answer()


async def run(options: argparse.Namespace) -> dict[str, float]:
    rng = np.random.default_rng(options.seed)
    frames = [rng.standard_normal(options.inputs, dtype=np.float32).tobytes() for _ in range(64)]
    clients = [Client(f"{options.prefix}{k}", frames) for k in range(options.clients)]
    loop = asyncio.get_running_loop()
    for client in clients:
        if options.websocket:
            await ws_connect(
                lambda c=client: Websocket(c), f"ws://{options.host}:{options.port}/{client.name}"
            )
        else:
            await loop.create_connection(lambda c=client: Raw(c), options.host, options.port)
        await client.joined
    every = options.every / 1e3
    begin = loop.time() + 0.1
    for client in clients:
        loop.call_at(begin + rng.uniform(0, every), client.start, every, begin + options.seconds)
    await asyncio.sleep(options.seconds + 0.5)
    delays = np.array([delay for client in clients for delay in client.delays])
    errors = sum(len(client.texts) - 1 for client in clients)
    p50, p99 = np.quantile(delays, [0.5, 0.99]) * 1e3
    return {
        "clients": len(clients),
        "frames_per_second": round(len(delays) / options.seconds),
        "p50_ms": round(p50, 2),
        "p99_ms": round(p99, 2),
        "late_percent": round(100 * float((delays > every).mean()), 2),
        "unanswered": sum(len(client.sent) for client in clients),
        "errors": errors,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--websocket", action="store_true")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--every", type=float, default=10, help="milliseconds between two frames of a client")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--inputs", type=int, default=40, help="numbers in a frame")
    parser.add_argument("--prefix", default="client-", help="of the names of sessions")
    parser.add_argument("--seed", type=int, default=0)
    print(json.dumps(uvloop.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()
