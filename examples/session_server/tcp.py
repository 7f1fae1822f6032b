"""The raw TCP of server.py, on sockets.pyx."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import math
import socket
import struct
import termios
import time

import numpy as np
import sockets
from sessions import Server

LENGTH = struct.Struct("<i")
NAME_SECONDS = 2
ACCEPT_PAUSE = 0.1
NOTHING_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # descriptors, memory
CHECKED = 500  # connections of one call of `check`
ANSWERS = 1 << 16  # bytes that may wait in the kernel until a client reads them


class Raw:
    """A session over raw TCP."""

    __slots__ = ("behind", "connection", "ended", "id", "since", "tcp")

    def __init__(self, tcp: Tcp, connection: sockets.Connection) -> None:
        self.id, self.behind, self.ended, self.since = "", False, False, time.monotonic()
        self.tcp, self.connection = tcp, connection

    def accept(self) -> None:
        if not self.ended:
            self.tcp.sockets.accept(self.connection, self.id)

    def text(self, text: str) -> None:
        data = text.encode()
        try:
            self.connection.socket.send(LENGTH.pack(-len(data)) + data)
        except OSError:  # it has ended, or does not read
            self.close()

    def close(self) -> None:
        self.tcp.end(self)


class Tcp:
    """The connections over raw TCP. All that have sent a frame are one batch."""

    def __init__(self, server: Server, host: str, port: int) -> None:
        self.server, self.sessions = server, dict[sockets.Connection, Raw]()
        self.unchecked: list[Raw] = []
        self.sockets = sockets.Sockets(server.size)
        self.x = np.frombuffer(self.sockets.x, np.float32).reshape(-1, server.inputs)
        self.listening = socket.create_server((host, port), backlog=1000)
        self.listening.setblocking(False)
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(self.sockets, self.receive)
        self.listen()

    def listen(self) -> None:
        if self.listening.fileno() >= 0:
            self.loop.add_reader(self.listening, self.accept)

    def accept(self) -> None:
        try:
            client, _ = self.listening.accept()
        except OSError as error:
            if error.errno in NOTHING_LEFT:
                self.server.counts["refused"] += 1
                print(f"no client is accepted for {ACCEPT_PAUSE} s: {error}", flush=True)
                self.loop.remove_reader(self.listening)
                self.loop.call_later(ACCEPT_PAUSE, self.listen)
            return  # else the client has gone
        try:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * self.server.backlog * self.server.size)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ANSWERS)
            connection = sockets.Connection(client, self.server.size)
            self.sockets.add(connection)
        except OSError:
            client.close()
            return
        self.sessions[connection] = Raw(self, connection)

    def receive(self) -> None:
        since = time.perf_counter()
        connections, names, others = self.sockets.receive()
        if names:
            good, y = self.server.step(names, self.x[: len(names)])
            if good is not None:
                connections = [connections[k] for k in good]
            for connection in self.sockets.answer(connections, y.tobytes()):
                self.server.counts["deaf"] += 1
                print(f"{connection.name!r} does not read its answers", flush=True)
                self.end(self.sessions[connection])
            self.server.answered(len(names), since)
        for connection, message in others:
            if connection in self.sessions:
                self.other(self.sessions[connection], message)

    def other(self, session: Raw, message: bytes | None) -> None:
        """Handles the end of a connection (None), its name, or a wrong size."""
        if message is None:
            self.end(session)
            return
        size = LENGTH.unpack_from(message)[0]
        if session.id:
            wanted = f"a frame must have {self.server.size} bytes, got {abs(size)}"
        elif -sockets.LONGEST_NAME <= size < 0:
            session.since = math.inf
            self.sockets.pause(session.connection)
            self.server.join(session, message[4:].decode(errors="replace"))
            return
        else:
            wanted = f"the first message must be a name of at most {sockets.LONGEST_NAME} bytes"
        self.server.refuse(session, wanted)
        session.close()

    def end(self, session: Raw) -> None:
        if self.sessions.pop(session.connection, None):
            session.ended = True
            self.sockets.close(session.connection)
            self.server.park(session)

    def check(self) -> None:
        """Counts clients that are too fast. Ends connections without a name. A call looks at some of them."""
        if not self.unchecked:
            self.unchecked = list(self.sessions.values())
        some, self.unchecked = self.unchecked[:CHECKED], self.unchecked[CHECKED:]
        for session in some:
            if session.ended:
                continue
            if time.monotonic() - session.since > NAME_SECONDS:
                self.server.refuse(session, f"no name has come in {NAME_SECONDS} s")
                session.close()
                continue
            (waiting,) = LENGTH.unpack(fcntl.ioctl(session.connection.socket, termios.FIONREAD, bytes(4)))
            behind = waiting > self.server.backlog * (4 + self.server.size)
            if behind and not session.behind:
                self.server.counts["too_fast"] += 1
                print(f"{session.id!r} is too fast: more than {self.server.backlog} frames wait", flush=True)
            session.behind = behind

    def stop(self) -> None:
        """Accepts nothing more, and ends all connections."""
        self.loop.remove_reader(self.listening)
        self.listening.close()
        for session in list(self.sessions.values()):
            self.end(session)
