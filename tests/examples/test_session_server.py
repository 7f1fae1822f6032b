"""Tests examples/session_server.py, the server of docs/sessions.md: answers, and refused clients."""

import asyncio
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lnrnn

client = pytest.importorskip("websockets.asyncio.client")
from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "session_server.py"
D, SECRET, PAGE, LATER = 6, b"0123456789abcdef" * 2, "https://example.org", 10**12
RNN, example = lnrnn.LSTM(D, 8, seed=0), runpy.run_path(str(EXAMPLE))
token_of, TWICE = example["token_of"], (1013, "the session has another connection")


def serving(**options):
    """Returns a decorator that runs a coroutine function of a server in this process and its port."""

    async def serve(talk):
        server = example["SessionServer"](RNN, SECRET, **options)
        async with server.listen("127.0.0.1", 0, [PAGE]) as listening:
            await talk(server, listening.sockets[0].getsockname()[1])

    return lambda talk: asyncio.run(asyncio.wait_for(serve(talk), 60))


def connect(port, name, token=None, **options):
    offered = ["lnrnn", token or token_of(SECRET, name, LATER)]
    return client.connect(f"ws://127.0.0.1:{port}/{name}", subprotocols=offered, proxy=None, **options)


async def end_of(socket):
    await socket.wait_closed()
    return socket.close_code, socket.close_reason


async def join(port, name, first="new 0"):
    """Returns a connection after its first message. The server may not have parked the session yet."""
    while True:
        socket = await connect(port, name)
        try:
            assert await socket.recv() == first
            return socket
        except ConnectionClosed:
            assert await end_of(socket) == TWICE


async def step(socket, frame):
    await socket.send(np.asarray(frame, "<f4").tobytes())
    return np.frombuffer(await socket.recv(), "<f4")


def test_two_clients_get_the_bits_of_the_call_and_one_comes_back(rng):
    x, y, calls = rng.standard_normal((7, 2, D), dtype=np.float32), [], []

    @serving(on_call=calls.append)
    async def talk(server, port):
        ann, bob = await join(port, "ann"), await join(port, "bob")
        for t in range(6):
            if t == 4:
                await bob.close()
                bob = await join(port, "bob", "restored 4")
            y.append(await asyncio.gather(step(ann, x[t, 0]), step(bob, x[t, 1])))
        calls.clear()
        both = (server.step(name, frame.tobytes()) for name, frame in zip(("ann", "bob"), x[6], strict=True))
        y.append([np.frombuffer(answer, "<f4") for answer in await asyncio.gather(*both)])

    np.testing.assert_array_equal(y, RNN(x)[0])
    assert [counts.rows for counts in calls] == [2]  # one step for both


@pytest.mark.parametrize("token, more, status", [
    ("none", {}, 401), (token_of(SECRET, "bob", LATER), {}, 401), (token_of(SECRET, "ann", 1), {}, 401),
    (token_of(bytes(32), "ann", LATER), {}, 401), ("9" + token_of(SECRET, "ann", LATER), {}, 401),
    (None, {"additional_headers": {"Sec-WebSocket-Protocol": "é"}}, 401),
    (None, {"origin": "https://evil.example"}, 403), (None, {"origin": PAGE}, 101),
], ids=["none", "another session", "late", "another secret", "forged", "é", "page", "right"])  # fmt: skip
def test_a_wrong_token_or_origin_is_refused(token, more, status):
    @serving()
    async def talk(server, port):
        try:
            async with connect(port, "ann", token, **more) as socket:
                assert await socket.recv() == "new 0" and status == 101
        except InvalidStatus as error:
            assert error.response.status_code == status and not len(server.pool)


@pytest.mark.parametrize("message, code, reason", [
    (bytes(4 * D - 1), 1007, "a message must be a frame of 24 bytes, got 23 (bytes)"),
    ("x" * 4 * D, 1007, "a message must be a frame of 24 bytes, got 24 (str)"),
    (bytes(4 * D + 1), 1009, ""),
    (np.full(D, np.nan, "<f4").tobytes(), 1007, "the session cannot take this frame, which may have NaN"),
], ids=["short", "text", "long", "NaN"])  # fmt: skip
def test_a_wrong_frame_ends_only_its_connection(message, code, reason):
    @serving()
    async def talk(server, port):
        ann, bob = await join(port, "ann"), await join(port, "bob")
        y = [await step(bob, np.ones(D))]
        await bob.send(message), await ann.send(np.ones(D, "<f4").tobytes())
        assert await ann.recv() == y[0].tobytes()
        closed, why = await end_of(bob)
        assert closed == code and why.startswith(reason)
        y += [await step(ann, np.ones(D)), await step(await join(port, "bob", "restored 1"), np.ones(D))]
        np.testing.assert_array_equal(y, RNN(np.ones((2, 1, D)))[0][[0, 1, 1], 0])


def test_live_and_parked_sessions_are_bounded():
    @serving(max_sessions=2, parked=2)
    async def talk(server, port):
        sockets = {name: await join(port, name) for name in ("ann", "bob")}
        assert await end_of(await connect(port, "ann")) == TWICE
        code, reason = await end_of(await connect(port, "eve"))
        assert code == 1013 and "at most max_sessions 2" in reason and set(server.open) == {"ann", "bob"}
        for name in ("ann", "bob", "eve"):
            await (sockets.get(name) or await join(port, name)).close()
            while name in server.open:
                await asyncio.sleep(0)
        assert server.pool.parked == 2 and list(server.parked) == ["bob", "eve"]
        await join(port, "ann"), await join(port, "eve", "restored 0")
        assert list(server.parked) == ["bob"]


@pytest.mark.parametrize("reads", [True, False])
def test_an_idle_client_is_ended_even_if_it_does_not_read(reads, monkeypatch):
    monkeypatch.setitem(example["main"].__globals__, "PATIENCE", 60 if reads else 0.01)
    now = [0.0]

    @serving(park_after=60, clock=lambda: now[0])
    async def talk(server, port):
        ann, bob = await join(port, "ann"), await join(port, "bob")
        transport = server.open["ann"].transport
        if not reads:
            ann.transport.pause_reading()
            transport.write(bytes(2**26))  # fills the buffers
            await ann.send(bytes(4 * D))
        for now[0] in (0.0, 61.0):
            await step(bob, np.zeros(D))
        await server.maintain()
        assert transport.is_closing()
        while "ann" in server.open:
            await asyncio.sleep(0)
        assert list(server.parked) == ["ann"]
        await join(port, "ann", "restored 0" if reads else "restored 1")
        ann.transport.resume_reading()
        assert await end_of(ann) == (1001, "no frame has come for too long") or not reads
        await step(bob, np.zeros(D))


def test_the_program_gives_tokens_and_ends_its_connections(tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    RNN.save(model := tmp_path / "model.safetensors")
    monkeypatch.setenv("SECRET", "a")
    short = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True)
    assert short.returncode == 2 and "SECRET must have at least 32 bytes, got 1" in short.stderr
    monkeypatch.setenv("SECRET", SECRET.decode())
    token = subprocess.check_output([sys.executable, EXAMPLE, "--token", "ann"], text=True).strip()
    process = subprocess.Popen([sys.executable, EXAMPLE, model, "--port", "0"], stdout=subprocess.PIPE)

    async def talk(port):
        async with connect(port, "ann", token) as socket:
            assert await socket.recv() == "new 0" and (await step(socket, np.zeros(D))).shape == (8,)
            process.terminate()
            assert await end_of(socket) == (1001, "the server ends")

    try:
        asyncio.run(asyncio.wait_for(talk(int(process.stdout.readline().split()[1])), 60))
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
