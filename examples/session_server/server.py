"""A server of live sessions: one model, many clients, raw TCP and websockets, one process on one core.

    pip install uvloop picows cython                            # and redis, for --store
    cythonize -i sockets.pyx                                    # compiles the raw TCP
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
from typing import Any

import uvloop
from picows import WSUpgradeRequest, ws_create_server
from sessions import Server
from tcp import Tcp
from websocket import Websocket, Websockets

import lnrnn
from lnrnn.sessions import RedisStore

STORE_PAUSE = 2  # seconds until a store that failed is asked again: each attempt may wait for a timeout


def pool_of(options: argparse.Namespace) -> tuple[Any, int]:
    """Returns the pool of sessions, and the numbers in a frame."""
    if options.engine == "onnxruntime":
        from onnxruntime_pool import RuntimePool

        return RuntimePool(options.model), lnrnn.load(options.model).input_size
    network = lnrnn.load(options.model)
    store, every = None, None
    if options.store:
        import redis

        client = redis.Redis.from_url(
            options.store, socket_timeout=0.2, socket_connect_timeout=0.2, retry=None
        )
        store, every = RedisStore(client), options.checkpoint
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


async def maintain(pool: Any, server: Server, tcp: Tcp) -> None:
    """Stores checkpoints, parks sessions that send nothing, and counts, ten times a second."""
    done = pool.maintain()
    while True:
        await asyncio.sleep(STORE_PAUSE if done.errors else 0.1)
        tcp.check()
        done = pool.maintain()
        if not done.errors:
            server.park_again()
        server.counts["stored"] += len(done.stored)
        server.counts["store_errors"] += len(done.errors)
        for text in {str(error) for error in done.errors.values()}:
            print(text, flush=True)
        for names, text in (
            (done.parked, "the session sent nothing for too long, and is parked"),
            (done.dropped, "the session has joined another server"),
        ):
            for name in filter(server.open.__contains__, names):
                session = server.open.pop(name)
                server.refuse(session, text)
                session.close()


async def serve(options: argparse.Namespace) -> None:
    pool, inputs = pool_of(options)
    server = Server(pool, inputs, options.backlog, options.late_ms / 1e3)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    tcp = Tcp(server, options.host, options.port)
    ports = [tcp.listening.getsockname()[1]]
    web = None
    if options.websocket_port is not None:
        websockets = Websockets(server)

        def listener(request: WSUpgradeRequest) -> Websocket:
            return Websocket(websockets, request.path.decode().strip("/"))

        web = await ws_create_server(
            listener, options.host, options.websocket_port, max_frame_size=max(200, server.size)
        )
        ports.append(web.sockets[0].getsockname()[1])
    if options.metrics_port is not None:
        import prometheus_client

        registry = prometheus_client.CollectorRegistry()
        registry.register(Metrics(server))
        prometheus_client.start_http_server(options.metrics_port, options.host, registry)
    print("ports", *ports, flush=True)
    began = resource.getrusage(resource.RUSAGE_SELF)
    keeper = loop.create_task(maintain(pool, server, tcp))
    await stop.wait()
    keeper.cancel()
    if web is not None:
        web.close()
    tcp.stop()
    for session in list(server.open.values()):  # of websockets
        session.close()
        server.park(session)
    while server.unparked:  # the store may be away: try until it is back
        await asyncio.sleep(0.2)
        server.park_again()
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
