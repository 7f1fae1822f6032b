"""The server of sessions in examples/session_server, run as a process."""

import contextlib
import json
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import lnrnn
from session_server import EXAMPLE, Client, D, H, joined_again, running

for name in ("uvloop", "picows", "safetensors", "Cython", "setuptools"):
    pytest.importorskip(name)


def test_sessions_have_the_bits_of_streams_and_continue(model, rng):
    x = rng.standard_normal((7, 2, D), dtype=np.float32)
    stream = lnrnn.load(model).stream(2)
    with running(model) as (process, port, _):
        ann, bob = Client(port, "ann"), Client(port, "bob")
        assert ann.joined == bob.joined == "new"
        assert "must be new" in Client(port, "bob").joined
        for t in range(7):
            if t == 4:
                bob.close()
                bob = joined_again(port, "bob", "restored 4")
            ann.message(x[t, 0].tobytes())
            y = bob.step(x[t, 1]), ann.answer()
            np.testing.assert_array_equal(y[::-1], stream(x[t]))
    assert process.counts["frames"] == 14
    assert process.counts["refused"] == 1


def test_wrong_frames_are_refused_by_name_and_change_no_other_session(model, rng):
    x = rng.standard_normal((2, D), dtype=np.float32)
    stream = lnrnn.load(model).stream()
    with running(model) as (process, port, _):
        ann, bob, eve = Client(port, "ann"), Client(port, "bob"), Client(port, "eve")
        for t in range(2):
            bob.message(np.full(D, np.nan, np.float32).tobytes())
            y = ann.step(x[t])
            assert "'bob'" in (text := bob.answer()) and "nan" in text
            np.testing.assert_array_equal(y, stream(x[t : t + 1])[0])
        eve.message(bytes(4 * D - 1))
        assert eve.answer() == "a frame must have 24 bytes, got 23"
        assert eve.answer() is None
        bob.socket.sendall(struct.pack("<i", 2**31 - 1))
        assert bob.answer() == "a frame must have 24 bytes, got 2147483647"
        assert bob.answer() is None
        assert ann.step(x[0]).shape == (H,)
    assert process.counts["refused"] == 4


@contextlib.contextmanager
def sent_too_fast(process, send, x):
    """Sends all frames x by a thread that begins while the server is stopped."""
    process.send_signal(signal.SIGSTOP)
    sender = threading.Thread(target=lambda: [send(frame.tobytes()) for frame in x])
    sender.start()
    time.sleep(0.2)
    process.send_signal(signal.SIGCONT)
    yield
    sender.join()


def test_a_client_that_is_too_fast_waits_in_order(model, rng):
    x = rng.standard_normal((500, D), dtype=np.float32)
    want = lnrnn.load(model)(x[:, None])[0][:, 0]
    with running(model, "--backlog", "5") as (process, port, _):
        ann, bob = Client(port, "ann\n"), Client(port, "bob")
        with sent_too_fast(process, ann.message, x):
            np.testing.assert_array_equal(bob.step(x[0]), want[0])
            np.testing.assert_array_equal([ann.answer() for _ in x], want)
    assert process.counts["refused"] == 0 and process.counts["too_fast"] >= 1
    assert r"'ann\n' is too fast: more than 5 frames wait" in map(str.strip, process.lines)


def test_a_websocket_that_is_too_fast_waits_in_order(model, rng):
    websockets = pytest.importorskip("websockets.sync.client")
    x = rng.standard_normal((3000, D), dtype=np.float32)
    want = lnrnn.load(model)(x[:, None])[0][:, 0]
    with (
        running(model, "--backlog", "5") as (process, port, other),
        websockets.connect(f"ws://127.0.0.1:{other}/ann", compression=None) as ann,
    ):
        assert ann.recv() == "new"
        bob = Client(port, "bob")
        with sent_too_fast(process, ann.send, x):
            np.testing.assert_array_equal(bob.step(x[0]), want[0])
            np.testing.assert_array_equal([np.frombuffer(ann.recv(), np.float32) for _ in x], want)
    assert process.counts["refused"] == 0 and process.counts["too_fast"] >= 1
    assert "'ann' is too fast: 5 frames wait\n" in process.lines


HANDSHAKE = (
    b"GET /%s HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def connected(port, name):
    """Returns a socket that has joined as a websocket."""
    raw = Client.opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
    raw.sendall(HANDSHAKE % name)
    head = b""
    while not head.endswith(b"\x81\x03new"):
        head += raw.recv(1000)
    return raw


def end_of(raw):
    """Returns all bytes until the server ends the connection."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := raw.recv(1000):
            data += part
    return data


def test_a_websocket_that_does_not_read_is_ended(model):
    with running(model) as (process, port, other):
        ann, deaf = Client(port, "ann"), connected(other, b"deaf")
        frames = (bytes([0x82, 0x80 + 4 * D]) + bytes(4 + 4 * D)) * 1000
        with pytest.raises(ConnectionError):
            while True:
                deaf.sendall(frames)
        assert ann.step(np.zeros(D)).shape == (H,)
    assert process.counts["deaf"] == 1 and process.counts["refused"] == 0
    assert "'deaf' does not read its answers\n" in process.lines


def test_bytes_of_other_protocols_end_only_their_connection(model):
    http = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    tls = bytes.fromhex("16030102000100") + bytes(300)
    masked = bytes([0x80]) + bytes(4)  # the length 0, and the mask
    frames = {
        b"text": (b"\x81" + masked, b"a message must be binary"),
        b"continued": (b"\x80" + masked, b"a message must be binary"),
        b"part": (b"\x02" + masked, b"a frame must have 24 bytes, got 0"),
        b"unmasked": (b"\x82\x18" + bytes(24), b"un-masked"),
        b"huge": (b"\x82\xff" + bytes([63] + [0] * 11), b"exceeding"),
        b"code": (b"\x83" + masked, b"invalid opcode"),
    }
    with running(model) as (process, port, other):
        ann = Client(port, "ann")
        for data in (http, tls, bytes(4), struct.pack("<i", -(2**31)), struct.pack("<i", -201) + bytes(201)):
            for place in (port, other):
                raw = Client.opened.enter_context(socket.create_connection(("127.0.0.1", place), timeout=60))
                raw.sendall(data)
                with contextlib.suppress(OSError):  # the server may have ended the connection already
                    raw.shutdown(socket.SHUT_WR)
                assert (b"the first message must be a name" in end_of(raw)) == (place == port)
        for name, (data, text) in frames.items():
            raw = connected(other, name)
            raw.sendall(data)
            assert text in end_of(raw)
        assert ann.step(np.zeros(D)).shape == (H,)
    assert process.counts["refused"] == 5 + len(frames)
    assert "'code' has sent bytes that are no websocket's\n" in process.lines


def test_connections_that_are_reset_while_they_join(model):
    with running(model) as (process, port, _):
        ann = Client(port, "ann")
        for k in range(300):
            with socket.create_connection(("127.0.0.1", port)) as raw:
                raw.sendall(struct.pack("<i", -3) + b"%03d" % k + struct.pack("<i", 4 * D) + b"half")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert ann.step(np.zeros(D)).shape == (H,)
    assert process.counts["refused"] == 0


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
def test_clients_wait_if_no_descriptor_is_left(model):
    with running(model) as (process, port, _):
        ann = Client(port, "ann")
        used = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
        _, most = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used + 2, most))
        clients = [Client(port, f"{k}", wait=False) for k in range(10)]
        assert [client.answer() for client in clients[:2]] == ["new", "new"]
        assert process.stdout.readline().startswith("no client is accepted for ")
        assert ann.step(np.zeros(D)).shape == (H,)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, most))
        assert [client.answer() for client in clients[2:]] == ["new"] * 8
    assert 1 <= process.counts["refused"] < 100


def test_clients_that_send_half_a_frame_or_nothing_or_do_not_read(model, rng):
    x = rng.standard_normal((3, D), dtype=np.float32)
    stream = lnrnn.load(model).stream()
    with running(model) as (process, port, _):
        bob, half, deaf = Client(port, "bob"), Client(port, "half"), Client(port, "deaf")
        with socket.create_connection(("127.0.0.1", port)) as silent:
            half.step(x[0])
            half.socket.sendall(struct.pack("<i", 4 * D) + x[1].tobytes()[:7])
            with pytest.raises(ConnectionError):
                frames = (struct.pack("<i", 4 * D) + x[0].tobytes()) * 1000
                while True:
                    deaf.socket.sendall(frames)
            np.testing.assert_array_equal(bob.step(x[0]), stream(x[:1])[0])
            half.close()
            half = joined_again(port, "half", "restored 1")
            wrong = Client.__new__(Client)
            wrong.socket = Client.opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            wrong.message(bytes(4 * D))
            assert wrong.answer() == "the first message must be a name of at most 200 bytes"
            np.testing.assert_array_equal(bob.step(x[1]), stream(x[1:2])[0])
            Client.answer(wrong), wrong.close()
            assert b"no name has come in 2 s" in silent.recv(100)
            assert silent.recv(100) == b""
    assert process.counts["refused"] == 2 and process.counts["deaf"] == 1
    assert "'deaf' does not read its answers\n" in process.lines


def test_a_silent_session_is_parked(model, rng):
    x = rng.standard_normal((2, D), dtype=np.float32)
    stream = lnrnn.load(model).stream()
    with running(model, "--idle", "0.3") as (_, port, _):
        ann = Client(port, "ann")
        np.testing.assert_array_equal(ann.step(x[0]), stream(x[:1])[0])
        assert "parked" in ann.answer()
        assert ann.answer() is None
        ann = joined_again(port, "ann", "restored 1")
        np.testing.assert_array_equal(ann.step(x[1]), stream(x[1:])[0])


def test_counters_for_prometheus(model):
    pytest.importorskip("prometheus_client")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        metrics = free.getsockname()[1]
    with running(model, "--metrics-port", str(metrics)) as (_, port, _):
        ann = Client(port, "ann")
        ann.step(np.zeros(D)), ann.step(np.full(D, np.nan))
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=60) as page:
            lines = page.read().decode().splitlines()
    values = dict(line.split() for line in lines if not line.startswith("#"))
    assert float(values.pop("lnrnn_step_seconds_total")) > 0
    want = {
        "frames_total": 2,
        "bad_frames_total": 1,
        "steps_total": 1,
        "batches_total": 2,
        "refused_total": 1,
    }
    want |= {"late_frames_total": 0, "too_fast_total": 0, "deaf_total": 0, "sessions": 1}
    want |= {"exceptions_total": 0, "stored_total": 0, "store_errors_total": 0, "store_waiting": 0}
    assert values == {f"lnrnn_{name}": str(float(value)) for name, value in want.items()}


@pytest.mark.parametrize("websocket", [False, True])
def test_the_load_generator(model, websocket):
    page = (EXAMPLE.parents[1] / "docs" / "sessions.md").read_text()
    words = re.search(r"^\$ python load.py (.*?) +#", page, re.M)[1].split()  # options that follow win
    command = [
        sys.executable,
        EXAMPLE / "load.py",
        *words,
        "--clients",
        "5",
        "--every",
        "50",
        "--seconds",
        "1",
    ]
    with running(model) as (process, *ports):
        command += ["--inputs", str(D), "--port", str(ports[websocket]), *["--websocket"] * websocket]
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # A timer of uvloop has whole milliseconds, so a client may send its last frame or not.
    assert 95 <= process.counts["frames"] == result["frames_per_second"] <= 100
    assert (result["unanswered"], result["errors"]) == (0, 0)


def test_onnx_runtime_has_the_same_answers(model, rng):
    pytest.importorskip("onnxruntime")
    x = rng.standard_normal((5, D), dtype=np.float32)
    stream = lnrnn.load(model).stream()
    with running(model, "--engine", "onnxruntime") as (_, port, _):
        ann, bob = Client(port, "ann"), Client(port, "bob")
        for t in range(5):
            bob.step(x[0])
            assert np.abs(ann.step(x[t]) - stream(x[t : t + 1])[0]).max() < 1e-5
