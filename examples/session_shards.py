"""Sessions of one model on several processes, with Redis as their store.

    pip install redis
    redis-server --port 6379 &
    python examples/session_shards.py model.safetensors --port 5060 &      # a shard for each core
    python examples/session_shards.py model.safetensors --port 5061 &

Each shard is a process with a lnrnn.SessionPool. `Client` chooses a session's shard by its id. If a shard is
added, stopped or killed, only the sessions of that shard move.

A shard that gets SIGTERM parks all its sessions in Redis and ends. They continue on other shards, with equal
bits. A killed shard loses the steps since each session's last checkpoint, and `Client.join` says from which
step it continues. A shard that is only slow cannot overwrite a session that has joined another shard. Only
the shards should reach Redis.

A request is `HEAD`, the id in UTF-8, and for a step a frame of float32. The answer is `ANSWER`, and the text
of an error, `JOINED` for a join, or the outputs of a step, float32.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import signal
import socket
import struct
from contextlib import suppress

import numpy as np
import redis

import lnrnn
from lnrnn.sessions import Joined, RedisStore, SessionError

HEAD = struct.Struct("<cHI")  # the operation, the bytes of the id, the bytes after the id
ANSWER = struct.Struct("<?I")  # whether the request succeeded, the bytes that follow
JOINED = struct.Struct("<Bq")  # the index into HOW, the step
HOW = ("new", "restored", "checkpoint")
JOIN, STEP, PARK, LEAVE = b"J", b"S", b"P", b"L"
Address = tuple[str, int]


class Shard:
    """Answers requests of all connections. One step of the pool computes the frames that wait."""

    def __init__(self, pool: lnrnn.SessionPool, inputs: int) -> None:
        self.pool, self.frame = pool, 4 * inputs
        self.waiting: dict[str, tuple[bytes, asyncio.Future[bytes]]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        joined: set[str] = set()
        try:
            while True:
                operation, of_id, rest = HEAD.unpack(await reader.readexactly(HEAD.size))
                if rest not in (0, self.frame):
                    break  # where the next request begins is unknown
                id = (await reader.readexactly(of_id)).decode()
                frame = await reader.readexactly(rest)
                try:
                    good, text = True, await self.answer(operation, id, frame, joined)
                except (SessionError, ValueError) as error:
                    good, text = False, str(error).encode()
                writer.write(ANSWER.pack(good, len(text)) + text)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, UnicodeDecodeError):
            pass
        except asyncio.CancelledError:  # the shard ends
            pass
        finally:
            for id in filter(self.pool.__contains__, joined):  # the client has gone
                try:
                    self.pool.park(id)
                except SessionError as error:
                    print(error, flush=True)  # it stays live, until `maintain` parks it
            writer.close()

    async def answer(self, operation: bytes, id: str, frame: bytes, joined: set[str]) -> bytes:
        if operation == STEP:
            if len(frame) != self.frame:
                raise ValueError(f"a frame must have {self.frame} bytes, got {len(frame)}")
            if id in self.waiting:
                raise ValueError(f"session {id!r} already has a frame that waits")
            if not self.waiting:
                asyncio.get_running_loop().call_soon(self.step)
            future = asyncio.get_running_loop().create_future()
            self.waiting[id] = frame, future
            return await future
        if operation == JOIN:
            how, step = self.pool.join(id)
            joined.add(id)
            return JOINED.pack(HOW.index(how), step)
        if operation == PARK:
            self.pool.park(id)
        elif operation == LEAVE:
            self.pool.leave(id)
        else:
            raise ValueError(f"unknown operation {operation!r}")
        joined.discard(id)
        return b""

    def step(self) -> None:
        """Computes all frames that wait. A session that the pool refuses gets the error; the others go on."""
        waiting, self.waiting = self.waiting, {}
        while waiting:
            ids = list(waiting)
            x = np.frombuffer(b"".join(frame for frame, _ in waiting.values()), np.float32)
            try:
                y = self.pool.step(ids, x.reshape(len(ids), -1))
            except SessionError as error:
                for id in error.ids:
                    future = waiting.pop(str(id))[1]
                    if not future.done():
                        future.set_exception(ValueError(str(error)))
                continue
            for (_, future), row in zip(waiting.values(), y, strict=True):
                if not future.done():  # a connection that ended has cancelled its request
                    future.set_result(row.tobytes())
            return


async def run(options: argparse.Namespace) -> None:
    rnn = lnrnn.load(options.model)
    client = redis.Redis.from_url(options.redis, socket_timeout=0.2, socket_connect_timeout=0.2, retry=None)
    pool = lnrnn.SessionPool(
        rnn,
        options.sessions,
        store=RedisStore(client, options.keep),
        checkpoint_every=options.checkpoint,
        park_after=options.idle,
    )
    shard = Shard(pool, rnn.input_size)
    listening = await asyncio.start_server(shard.serve, options.host, options.port)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(f"port {listening.sockets[0].getsockname()[1]}", flush=True)
    while not stop.is_set():
        errors = pool.maintain().errors
        for error in errors.values():
            print(error, flush=True)
        with suppress(asyncio.TimeoutError):  # if the store is away, each attempt may wait for timeouts
            await asyncio.wait_for(stop.wait(), 1 if errors else 0.02)
    listening.close()  # no connection is accepted any more
    while errors := pool.drain().errors:  # the store may be away: try until it is back
        print(*set(map(str, errors.values())), sep="\n", flush=True)
        await asyncio.sleep(0.2)


class Client:
    """Sessions on shards. `shards` may change: a session joins the shard that its id then chooses."""

    def __init__(self, shards: list[Address]) -> None:
        self.shards = list(shards)
        self.connections: dict[Address, socket.socket] = {}

    def shard_of(self, id: str) -> Address:
        """Returns the shard with the largest hash of its address and the id (rendezvous hashing)."""

        def weight(shard: Address) -> bytes:
            return hashlib.blake2b(f"{shard} {id}".encode(), digest_size=8).digest()

        return max(self.shards, key=weight)

    def ask(self, operation: bytes, id: str, frame: bytes = b"") -> bytes:
        """Sends a request. Raises ValueError if it is refused, and ConnectionError if the shard has ended."""
        shard, name = self.shard_of(id), id.encode()
        try:
            if shard not in self.connections:
                self.connections[shard] = socket.create_connection(shard, timeout=30)
            connection = self.connections[shard]
            connection.sendall(HEAD.pack(operation, len(name), len(frame)) + name + frame)
            good, length = ANSWER.unpack(self.read(connection, ANSWER.size))
            text = self.read(connection, length)
        except ConnectionError:
            if shard in self.connections:
                self.connections.pop(shard).close()
            raise
        if not good:
            raise ValueError(text.decode())
        return text

    @staticmethod
    def read(connection: socket.socket, length: int) -> bytes:
        found = b""
        while len(found) < length:
            part = connection.recv(length - len(found))
            if not part:
                raise ConnectionResetError("the shard has ended")
            found += part
        return found

    def join(self, id: str) -> Joined:
        how, step = JOINED.unpack(self.ask(JOIN, id))
        return Joined(HOW[how], step)  # type: ignore[arg-type]

    def step(self, id: str, x: np.ndarray) -> np.ndarray:
        return np.frombuffer(self.ask(STEP, id, np.asarray(x, np.float32).tobytes()), np.float32)

    def park(self, id: str) -> None:
        self.ask(PARK, id)

    def leave(self, id: str) -> None:
        self.ask(LEAVE, id)

    def close(self) -> None:
        while self.connections:
            self.connections.popitem()[1].close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--redis", default="redis://127.0.0.1:6379/0")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5060)
    parser.add_argument("--sessions", type=int, help="at most so many live sessions")
    parser.add_argument("--checkpoint", type=int, default=50, help="steps between checkpoints of a session")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds until an idle session is parked")
    parser.add_argument("--keep", type=int, default=3600, help="seconds until Redis forgets a session")
    lnrnn.set_num_threads(1)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
