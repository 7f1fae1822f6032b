"""A server of live sessions over websockets: one model, many clients, one process on one core.

    pip install websockets safetensors
    export SECRET=$(python -c "import secrets; print(secrets.token_hex(32))")
    python session_server.py model.safetensors --port 9000 --origin https://example.org
    python session_server.py --token ann                  # in another terminal with this SECRET

The path of a URL is the name of a session, in ASCII. A client offers two subprotocols, "lnrnn" and a token:
`new WebSocket("wss://example.org/ann", ["lnrnn", token])`. Your application knows its users, and calls
`token_of` for them. A token opens no other session.

The server's first message is text, "new 0" or "restored 120", the steps so far. Each message of a client is
one frame, D float32 in little-endian order, and its answer is P float32. Frames that arrive at the same time
are one step of a `lnrnn.SessionPool`. A fault of a client closes its connection, with a reason.

If a connection ends, or sends no frame for --idle seconds, its session is parked in memory. A later one
continues it. The oldest go when more than --parked are parked, and all when the process ends. Pings find
broken connections: until then, up to 40 s, a session refuses a second connection.

The server listens on 127.0.0.1, without TLS. Put a proxy with TLS before it, such as nginx or Caddy. It must
pass on the headers Origin, Upgrade and Connection, wait more than 20 s for data, and limit the connections of
an address. Without --origin no page in a browser may connect; other programs send no Origin.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

import lnrnn
from lnrnn.sessions import SessionError

GOING_AWAY, INVALID, TRY_AGAIN = 1001, 1007, 1013  # close codes of RFC 6455
PATIENCE = 10.0  # seconds until the connection of a client that does not read is aborted


def token_of(secret: bytes, name: str, until: int | str) -> str:
    """Returns a token for the session of this name. until: a time, in seconds since 1970."""
    return f"{until}.{hmac.new(secret, f'{until}.{name}'.encode(), 'sha256').hexdigest()}"


def valid(secret: bytes, name: str, token: str) -> bool:
    until = token.partition(".")[0]
    right = (name + token).isascii() and hmac.compare_digest(token, token_of(secret, name, until))
    return right and time.time() < int(until)


class SessionServer:
    """Sessions by name, of at most one connection each. secret: signs the tokens. parked: how many may be."""

    def __init__(self, rnn: Any, secret: bytes, parked: int = 10_000, **options: Any) -> None:
        self.pool = lnrnn.SessionPool(rnn, **options)
        self.size, self.secret, self.most_parked = 4 * rnn.input_size, secret, parked
        self.open: dict[str, ServerConnection] = {}
        self.parked: dict[str, None] = {}  # the oldest first
        self.waiting: dict[str, tuple[bytes, asyncio.Future[bytes]]] = {}  # frames of the next step

    def listen(self, host: str, port: int, origins: Iterable[str] = ()) -> serve:
        """Returns a context manager of websockets' server, which sends pings and bounds its buffers."""
        return serve(
            self.talk, host, port, process_request=self.check, origins=[None, *origins],
            subprotocols=["lnrnn"], max_size=self.size, compression=None,
        )  # fmt: skip

    def check(self, websocket: ServerConnection, request: Request) -> Response | None:
        """Refuses a client without a valid token. Then websockets refuses other origins."""
        offered = ",".join(request.headers.get_all("Sec-WebSocket-Protocol"))
        if valid(self.secret, request.path[1:], offered.partition(",")[2].strip()):
            return None
        return websocket.respond(401, "the second subprotocol must be a valid token of this session\n")

    async def talk(self, websocket: ServerConnection) -> None:
        """Serves one connection until it ends."""
        name, fault = websocket.request.path[1:], ""
        try:
            if name in self.open:
                raise SessionError("the session has another connection")
            joined = self.pool.join(name)
        except SessionError as error:  # of the pool: too many sessions
            await websocket.close(TRY_AGAIN, str(error)[:120])
            return
        self.open[name] = websocket
        self.parked.pop(name, None)
        try:
            await websocket.send(f"{joined.how} {joined.step}")
            async for frame in websocket:
                if type(frame) is not bytes or len(frame) != self.size:
                    got = f"{len(frame)} ({type(frame).__name__})"
                    raise ValueError(f"a message must be a frame of {self.size} bytes, got {got}")
                await websocket.send(await self.step(name, frame))
        except ConnectionClosed:
            pass
        except ValueError as error:
            fault = str(error)
        finally:
            del self.open[name]
            self.park(name)
        if fault:
            await websocket.close(INVALID, fault)

    def park(self, name: str) -> None:
        if name in self.pool:  # else `maintain` has parked it
            self.pool.park(name)
        self.parked[name] = None
        if len(self.parked) > self.most_parked:
            oldest = next(iter(self.parked))
            del self.parked[oldest]
            self.pool.leave(oldest)

    async def step(self, name: str, frame: bytes) -> bytes:
        """Returns the answer to a frame. A session has one frame at a time in the next step."""
        loop = asyncio.get_running_loop()
        if not self.waiting:
            loop.call_soon(self.step_all)
        self.waiting[name] = frame, loop.create_future()
        return await self.waiting[name][1]

    def step_all(self) -> None:
        """Steps all sessions that have a frame. The pool refuses some: then the others step without them."""
        waiting, self.waiting = self.waiting, {}
        while waiting:
            x = np.frombuffer(b"".join(frame for frame, _ in waiting.values()), "<f4")
            try:
                y = self.pool.step(list(waiting), x.reshape(len(waiting), -1))
            except SessionError as error:
                for name in error.ids:
                    fault = ValueError("the session cannot take this frame, which may have NaN or infinity")
                    waiting.pop(name)[1].set_exception(fault)
                continue
            for (_, answer), row in zip(waiting.values(), y, strict=True):
                answer.set_result(row.astype("<f4").tobytes())
            return

    async def maintain(self) -> None:
        """Parks the sessions that send nothing for too long, and ends their connections."""
        await self.end(self.pool.maintain().parked, "no frame has come for too long")

    async def end(self, names: Iterable[Any], reason: str) -> None:
        async def close(websocket: ServerConnection) -> None:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(websocket.close(GOING_AWAY, reason), PATIENCE)
            websocket.transport.abort()

        await asyncio.gather(*(close(self.open[name]) for name in names if name in self.open))


async def run(options: argparse.Namespace, secret: bytes) -> None:
    limits = {"max_sessions": options.sessions, "park_after": options.idle}
    server = SessionServer(lnrnn.load(options.model), secret, options.parked, **limits)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with server.listen(options.host, options.port, options.origin) as listening:
        print("port", listening.sockets[0].getsockname()[1], flush=True)
        while not stop.is_set():
            await server.maintain()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stop.wait(), 1)
        listening.close(close_connections=False)  # it would wait for clients that do not read
        await server.end(list(server.open), "the server ends")


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("model", nargs="?", help="a file of lnrnn's save")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000, help="0 chooses one")
    parser.add_argument("--origin", action="append", default=[], help="of pages; may be repeated")
    parser.add_argument("--sessions", type=int, default=1000, help="at most so many are live")
    parser.add_argument("--parked", type=int, default=10_000, help="at most so many are parked")
    parser.add_argument("--idle", type=float, default=60, help="seconds until a silent session is parked")
    parser.add_argument("--token", metavar="NAME", help="print a token of this session for an hour, and end")
    options = parser.parse_args()
    secret = os.environ.get("SECRET", "").encode()
    if len(secret) < 32:
        parser.error(f"the environment variable SECRET must have at least 32 bytes, got {len(secret)}")
    if (options.model is None) == (options.token is None):
        parser.error("give a model, or --token NAME")
    if options.token is not None:
        print(token_of(secret, options.token, int(time.time()) + 3600))
    else:
        lnrnn.set_num_threads(1)
        asyncio.run(run(options, secret))


if __name__ == "__main__":
    main()
