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
import sys
from typing import Any

import uvloop
from picows import WSUpgradeRequest, ws_create_server
from sessions import Server
from store import BackgroundStore
from tcp import Tcp
from websocket import Websocket, Websockets

import lnrnn

AT_ONCE = 50  # sessions of one call of `maintain`, which takes 10 us for each
TEXTS = {
    "frames": "Frames received.",
    "bad_frames": "Frames with NaN or infinity.",
    "steps": "Frames answered with the output of the model.",
    "step_seconds": "Time in steps of the model.",
    "batches": "Steps of many sessions at once.",
    "late_frames": "Frames answered too late.",
    "refused": "Messages and connections refused.",
    "too_fast": "Times that a client began to send faster than its frames are computed.",
    "deaf": "Connections ended because the client did not read.",
    "exceptions": "Errors of the server itself.",
    "stored": "States written to the store.",
    "store_errors": "Calls of the store that failed.",
}


def server_of(options: argparse.Namespace) -> Server:
    network = lnrnn.load(options.model)
    store, every = None, None
    if options.engine == "onnxruntime":
        from onnxruntime_pool import RuntimePool

        pool: Any = RuntimePool(options.model)
    else:
        if options.store:
            import redis

            seconds = {
                "socket_timeout": options.store_seconds,
                "socket_connect_timeout": options.store_seconds,
            }
            client = redis.Redis.from_url(options.store, retry=None, **seconds)
            store, every = BackgroundStore(client, options.store_pause), options.checkpoint
        pool = lnrnn.SessionPool(
            network, options.sessions, park_after=options.idle, store=store, checkpoint_every=every
        )
    return Server(pool, store, network.input_size, options.backlog, options.late_ms / 1e3)


class Metrics:
    """The server's counts for Prometheus, read when they are asked for. A hook of prometheus_client."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def collect(self) -> Any:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, value in self.server.totals().items():
            yield CounterMetricFamily(f"lnrnn_{name}", TEXTS[name], value=value)
        yield GaugeMetricFamily("lnrnn_sessions", "Sessions with a connection.", value=len(self.server.open))
        waiting = 0 if self.server.store is None else len(self.server.store.waiting)
        yield GaugeMetricFamily("lnrnn_store_waiting", "States that are not stored yet.", value=waiting)


async def maintain(server: Server, tcp: Tcp) -> None:
    """Stores checkpoints, parks sessions that send nothing, and looks for clients that are too fast."""
    while True:
        tcp.check()
        if server.store is not None:
            server.leave_taken()
        done = server.pool.maintain(AT_ONCE)
        for names, text in (
            (done.parked, "the session sent nothing for too long, and is parked"),
            (done.dropped, "the session has joined another server"),
        ):
            for name in filter(server.open.__contains__, names):
                session = server.open.pop(name)
                server.refuse(session, text)
                session.close()
        await asyncio.sleep(0.1 if sum(map(len, done)) < AT_ONCE else 0.01)


async def serve(options: argparse.Namespace) -> None:
    server = server_of(options)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(server.failed)
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
    keepers = [loop.create_task(maintain(server, tcp))]
    if server.store is not None:
        keepers.append(loop.create_task(server.store.write()))
    await stop.wait()
    keepers[0].cancel()
    if web is not None:
        web.close()
    tcp.stop()
    for session in list(server.open.values()):  # of websockets
        session.close()
        server.park(session)
    while server.store is not None and server.store.waiting:  # it may be away: wait until it is back
        await asyncio.sleep(0.05)
    ended = resource.getrusage(resource.RUSAGE_SELF)
    user, system = ended.ru_utime - began.ru_utime, ended.ru_stime - began.ru_stime
    print(json.dumps({**server.totals(), "user_seconds": user, "system_seconds": system}))


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
    parser.add_argument(
        "--store-seconds", type=float, default=0.2, help="how long a call of the store may take"
    )
    parser.add_argument(
        "--store-pause", type=float, default=2, help="seconds until a store that failed is asked again"
    )
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
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a descriptor for each connection
    sys.setswitchinterval(2e-4)  # the threads of the store give way to the sessions
    uvloop.run(serve(options))


if __name__ == "__main__":
    main()
