"""The websockets of server.py. The path of the URL is the name; frames are binary messages."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

import numpy as np
from picows import WSListener, WSMsgType
from sessions import Server


class Websocket(WSListener):  # type: ignore[misc]
    """A session over a websocket."""

    def __init__(self, sockets: Websockets, name: str) -> None:
        super().__init__()
        self.sockets, self.server, self.name = sockets, sockets.server, name
        self.id = ""
        self.ended = self.closed = self.behind = False
        self.waiting: deque[bytes] | None = deque()  # None: no frame is in the next batch

    def on_ws_connected(self, transport: Any) -> None:
        self.transport = transport
        self.server.join(self, self.name)

    def accept(self) -> None:
        self.sockets.next(self)

    def text(self, text: str) -> None:
        if not self.ended:
            self.transport.send(WSMsgType.TEXT, text.encode())

    def close(self) -> None:
        self.closed = True
        self.transport.disconnect()

    def on_ws_frame(self, transport: Any, frame: Any) -> None:
        if frame.msg_type == WSMsgType.BINARY:
            self.sockets.frame(self, frame.get_payload_as_bytes())
        elif frame.msg_type == WSMsgType.CLOSE:
            self.closed = True
            transport.send_close()
            transport.disconnect()
        elif frame.msg_type in (WSMsgType.TEXT, WSMsgType.CONTINUATION):
            self.server.refuse(self, "a message must be binary, and have one part")
            self.close()

    def pause_writing(self) -> None:
        """Ends the connection, because too many answers wait until the client reads."""
        if not self.closed:
            self.server.counts["deaf"] += 1
            print(f"{self.name!r} does not read its answers", flush=True)
            self.closed = True
            self.transport.disconnect(graceful=False)

    def on_ws_disconnected(self, transport: Any) -> None:
        self.ended = True
        if transport.is_close_frame_sent and not self.closed:
            self.server.counts["refused"] += 1
            print(f"{self.name!r} has sent bytes that are no websocket's", flush=True)
        if self.waiting is None:  # else after the frames that it has sent
            self.server.park(self)


class Websockets:
    """Collects the frames of all websockets into batches."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.sessions: list[Websocket] = []  # of the next batch, with their frames
        self.frames: list[bytes] = []
        self.since = 0.0
        self.loop = asyncio.get_running_loop()

    def frame(self, session: Websocket, data: bytes) -> None:
        """Adds a frame to the next batch, or to those that wait for their turn."""
        server = self.server
        if len(data) != server.size:
            server.refuse(session, f"a frame must have {server.size} bytes, got {len(data)}")
            session.close()
        elif session.waiting is None:
            session.waiting = deque()
            self._add(session, data)
        else:
            session.waiting.append(data)
            if len(session.waiting) >= server.backlog and not session.behind:
                session.behind = True
                session.transport.underlying_transport.pause_reading()
                server.counts["too_fast"] += 1
                print(f"{session.name!r} is too fast: {server.backlog} frames wait", flush=True)

    def _add(self, session: Websocket, data: bytes) -> None:
        if not self.frames:
            self.since = time.perf_counter()
            self.loop.call_soon(self.step)
        self.sessions.append(session)
        self.frames.append(data)

    def next(self, session: Websocket) -> None:
        """Adds the next frame of a session that is in no batch, if one waits."""
        if session.waiting:
            self._add(session, session.waiting.popleft())
            if session.behind and len(session.waiting) <= self.server.backlog // 2 and not session.ended:
                session.behind = False
                session.transport.underlying_transport.resume_reading()
        else:
            session.waiting = None
            if session.ended:
                self.server.park(session)

    def step(self) -> None:
        """Steps all sessions that have a frame."""
        sessions, frames, since = self.sessions, self.frames, self.since
        self.sessions, self.frames = [], []
        x = np.frombuffer(b"".join(frames), np.float32).reshape(-1, self.server.inputs)
        good, y = self.server.step([session.id for session in sessions], x)
        data, width = y.tobytes(), 4 * y.shape[1]
        for row, k in enumerate(range(len(sessions)) if good is None else good):
            if not sessions[k].ended:
                sessions[k].transport.send(WSMsgType.BINARY, data[row * width : (row + 1) * width])
        for session in sessions:
            self.next(session)
        self.server.answered(len(sessions), since)
