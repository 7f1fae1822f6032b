"""A server of live sessions: one model, many clients, raw TCP and websockets, one process on one core.

    pip install uvloop picows                                   # and redis, for --store
    python server.py model.safetensors --port 9000 --websocket-port 9001
    python load.py --port 9000 --clients 200 --every 10         # in another terminal

Each connection is a session with a name. Frames of all sessions that arrive at the same time are one step of
a `lnrnn.SessionPool`. If a connection ends, its session is parked. A later connection of this name continues.

Over TCP a message is a little-endian int32, the number of bytes that follow, and these bytes. A negative
number announces text. The first message of a client is the name, as text. The server answers "new",
"restored 120" (the steps so far) or "checkpoint 118" (the state is older than the last answer). Each later
message is one frame, D float32, and its answer is P float32. An error is text, and changes no state. Over a
websocket the name is the path of the URL, text messages are text, and binary messages are frames.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import signal
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import uvloop
from picows import WSListener, WSMsgType, WSUpgradeRequest, ws_create_server

import lnrnn
from lnrnn.sessions import SessionError

LENGTH = struct.Struct("<i")
NAME = 200  # the largest number of bytes of a name


def ignore(answer: object) -> None:
    """Takes the answers of a session whose connection has ended."""


class Session:
    """The frames and the answers of one connection."""

    __slots__ = ("close", "ended", "id", "send", "text", "waiting")

    def __init__(
        self, send: Callable[[bytes], None], text: Callable[[str], None], close: Callable[[], None]
    ) -> None:
        self.send, self.text, self.close = send, text, close
        self.id = ""
        self.ended = False
        self.waiting: deque[bytes] | None = None  # None: no frame is in the next batch


class Server:
    """Collects frames, steps the pool once for all of them, and sends the answers.

    pool: a lnrnn.SessionPool, or an object with the same methods. inputs: numbers in a frame. backlog: the
    largest number of frames of a session that may wait. late: seconds from a frame's arrival to its answer.
    """

    def __init__(self, pool: Any, inputs: int, backlog: int = 50, late: float = 0.01) -> None:
        self.pool, self.inputs, self.backlog, self.late = pool, inputs, backlog, late
        self.size = 4 * inputs
        self.sessions: list[Session] = []  # of the next batch, with their frames
        self.frames: list[bytes] = []
        self.open: dict[str, Session] = {}
        self.since = 0.0
        self.loop = asyncio.get_running_loop()
        self.counts = {"frames": 0, "batches": 0, "refused": 0, "late": 0, "model_seconds": 0.0}

    def join(self, session: Session, name: str) -> bool:
        """Opens the session of a name. Returns whether that was possible."""
        try:
            if not name or name in self.open:
                raise ValueError(f"the name of a session must be new and not empty, got {name!r}")
            joined = self.pool.join(name)
        except ValueError as error:  # also of the pool: too many sessions, a store that fails
            self.refuse(session, error)
            session.close()
            return False
        session.id = name
        self.open[name] = session
        session.text("new" if joined.how == "new" else f"{joined.how} {joined.step}")
        return True

    def end(self, session: Session) -> None:
        """Parks the session of a connection that has ended, after the frames that it has sent."""
        session.ended, session.send, session.text = True, ignore, ignore
        if session.waiting is None:
            self._park(session)

    def _park(self, session: Session) -> None:
        if self.open.pop(session.id, None):
            try:
                self.pool.park(session.id)
            except SessionError as error:  # the session stays live; it joins again, or `maintain` parks it
                print(f"{session.id} is not parked: {error}", flush=True)

    def refuse(self, session: Session, reason: Any) -> None:
        self.counts["refused"] += 1
        session.text(str(reason))

    def frame(self, session: Session, data: bytes) -> None:
        """Adds a frame to the next batch, or to those that wait for their turn."""
        if len(data) != self.size:
            self.refuse(session, f"a frame must have {self.size} bytes, got {len(data)}")
            session.close()
        elif session.waiting is None:
            session.waiting = deque()
            self._add(session, data)
        elif len(session.waiting) < self.backlog:
            session.waiting.append(data)
        else:
            self.refuse(session, f"more than {self.backlog} frames wait")

    def _add(self, session: Session, data: bytes) -> None:
        if not self.frames:
            self.since = time.perf_counter()
            self.loop.call_soon(self.step)
        self.sessions.append(session)
        self.frames.append(data)

    def step(self) -> None:
        """Steps all sessions that have a frame."""
        sessions, frames, since = self.sessions, self.frames, self.since
        self.sessions, self.frames = [], []
        begin = time.thread_time()
        answered = sessions
        while answered:
            x = np.frombuffer(b"".join(frames), np.float32).reshape(-1, self.inputs)
            try:
                y = self.pool.step([session.id for session in answered], x)
            except SessionError as error:  # NaN in the frames of these sessions
                answered, frames = self._without(error, answered, frames)
            else:
                break
        self.counts["model_seconds"] += time.thread_time() - begin
        if answered:
            data, width = y.tobytes(), 4 * y.shape[1]
            for at, session in enumerate(answered):
                session.send(data[at * width : (at + 1) * width])
        for session in sessions:
            waiting = session.waiting
            if waiting:
                self._add(session, waiting.popleft())
            else:
                session.waiting = None
                if session.ended:
                    self._park(session)
        self.counts["frames"] += len(sessions)
        self.counts["batches"] += 1
        if time.perf_counter() - since > self.late:
            self.counts["late"] += len(sessions)

    def _without(
        self, error: SessionError, sessions: list[Session], frames: list[bytes]
    ) -> tuple[list[Session], list[bytes]]:
        """Tells the sessions of an error about it. Returns the others, with their frames."""
        left = []
        for session, frame in zip(sessions, frames, strict=True):
            if session.id in error.ids:
                self.refuse(session, error)
            else:
                left.append((session, frame))
        if len(left) == len(sessions):
            raise error
        return [session for session, _ in left], [frame for _, frame in left]


class Connection(asyncio.Protocol):
    """A session over raw TCP."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.rest = b""

    def connection_made(self, transport: Any) -> None:
        self.write = transport.write
        self.session = Session(self.send, self.text, transport.close)

    def send(self, data: bytes) -> None:
        self.write(LENGTH.pack(len(data)) + data)

    def text(self, text: str) -> None:
        data = text.encode()
        self.write(LENGTH.pack(-len(data)) + data)

    def data_received(self, data: bytes) -> None:
        if self.rest:
            data = self.rest + data
        at, end = 0, len(data)
        while end - at >= 4:
            (size,) = LENGTH.unpack_from(data, at)
            size = abs(size)
            if size > max(NAME, self.server.size):
                self.server.refuse(
                    self.session, f"a message must be at most {self.server.size} bytes, got {size}"
                )
                self.session.close()
                return
            if end - at < 4 + size:
                break
            message = data[at + 4 : at + 4 + size]
            at += 4 + size
            if self.session.id:
                self.server.frame(self.session, message)
            elif not self.server.join(self.session, message.decode(errors="replace")):
                return
        self.rest = data[at:]

    def connection_lost(self, error: Exception | None) -> None:
        self.server.end(self.session)


class Websocket(WSListener):  # type: ignore[misc]
    """A session over a websocket."""

    def __init__(self, server: Server, name: str) -> None:
        super().__init__()
        self.server, self.name = server, name

    def on_ws_connected(self, transport: Any) -> None:
        def send(data: bytes) -> None:
            transport.send(WSMsgType.BINARY, data)

        def text(text: str) -> None:
            transport.send(WSMsgType.TEXT, text.encode())

        self.session = Session(send, text, transport.disconnect)
        self.server.join(self.session, self.name)

    def on_ws_frame(self, transport: Any, frame: Any) -> None:
        if frame.msg_type == WSMsgType.BINARY:
            self.server.frame(self.session, frame.get_payload_as_bytes())
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.send_close()
            transport.disconnect()

    def on_ws_disconnected(self, transport: Any) -> None:
        self.server.end(self.session)


# --- the process --------------------------------------------------------------------------------------------


def pool_of(options: argparse.Namespace) -> tuple[Any, int]:
    """Returns the pool of sessions, and the numbers in a frame."""
    if options.engine == "onnxruntime":
        from onnxruntime_pool import RuntimePool

        return RuntimePool(options.model), lnrnn.load(options.model).input_size
    network = lnrnn.load(options.model)
    store, every = None, None
    if options.store:
        import redis

        store, every = redis.Redis.from_url(options.store), options.checkpoint
    pool = lnrnn.SessionPool(
        network, options.sessions, park_after=options.idle, store=store, checkpoint_every=every
    )
    return pool, network.input_size


class Metrics:
    """The server's counts for Prometheus, read when they are asked for. A hook of prometheus_client."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def collect(self) -> Any:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, value in self.server.counts.items():
            yield CounterMetricFamily(
                f"lnrnn_{name}", f"{name.replace('_', ' ')} since the start", value=value
            )
        yield GaugeMetricFamily("lnrnn_sessions", "connections that are open", value=len(self.server.open))


async def maintain(pool: Any, server: Server) -> None:
    """Stores checkpoints, and parks sessions that send nothing, a thousand a time."""
    while True:
        await asyncio.sleep(0.1)
        for name in pool.maintain().parked:
            if name in server.open:
                session = server.open.pop(name)
                server.refuse(session, "the session sent nothing for too long, and is parked")
                session.close()


async def serve(options: argparse.Namespace) -> None:
    pool, inputs = pool_of(options)
    server = Server(pool, inputs, options.backlog, options.late_ms / 1e3)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listening = [await loop.create_server(lambda: Connection(server), options.host, options.port)]
    if options.websocket_port is not None:

        def listener(request: WSUpgradeRequest) -> Websocket:
            return Websocket(server, request.path.decode().strip("/"))

        listening.append(
            await ws_create_server(
                listener, options.host, options.websocket_port, max_frame_size=max(NAME, server.size)
            )
        )
    if options.metrics_port is not None:
        import prometheus_client

        registry = prometheus_client.CollectorRegistry()
        registry.register(Metrics(server))
        prometheus_client.start_http_server(options.metrics_port, options.host, registry)
    ports = [each.sockets[0].getsockname()[1] for each in listening]
    print("ports", *ports, flush=True)
    began = resource.getrusage(resource.RUSAGE_SELF)
    keeper = loop.create_task(maintain(pool, server))
    await stop.wait()
    keeper.cancel()
    for each in listening:
        each.close()
    for session in list(server.open.values()):
        session.close()
        server.end(session)
    ended = resource.getrusage(resource.RUSAGE_SELF)
    user, system = ended.ru_utime - began.ru_utime, ended.ru_stime - began.ru_stime
    print(json.dumps({**server.counts, "user_seconds": user, "system_seconds": system}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a file of lnrnn's save")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000, help="of raw TCP; 0 chooses one")
    parser.add_argument("--websocket-port", type=int)
    parser.add_argument("--metrics-port", type=int, help="of counters; needs prometheus_client")
    parser.add_argument("--store", metavar="URL", help="redis://..., where parked sessions are kept")
    parser.add_argument("--sessions", type=int, help="the largest number of live sessions")
    parser.add_argument("--idle", type=float, metavar="SECONDS", help="park sessions that send nothing")
    parser.add_argument(
        "--checkpoint", type=int, default=100, metavar="STEPS", help="between two checkpoints"
    )
    parser.add_argument("--backlog", type=int, default=50, help="frames of a session that may wait")
    parser.add_argument(
        "--late-ms", type=float, default=10, help="an answer is late after so many milliseconds"
    )
    parser.add_argument(
        "--engine", choices=["lnrnn", "onnxruntime"], default="lnrnn", help="onnxruntime: to compare"
    )
    options = parser.parse_args()
    lnrnn.set_num_threads(1)
    uvloop.run(serve(options))


if __name__ == "__main__":
    main()
