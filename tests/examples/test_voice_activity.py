"""Compares examples/voice_activity_server.py with silero-vad: a probability of speech for each frame."""

from __future__ import annotations

import asyncio
import importlib.util
import struct
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
silero = pytest.importorskip("silero_vad")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated:DeprecationWarning")
EXAMPLE = Path(__file__).parents[2] / "examples" / "voice_activity_server.py"
FRAME, SESSIONS = 512, 5
# The tolerance of a probability. On a Zen 5, silero-vad itself gives a frame and the same frame in a batch of
# five probabilities that differ by 1.8e-6.
ALIKE = 3e-6


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("voice_activity_server", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sound(rng):
    """Returns noise with changing loudness and pitch: 40 frames for each session, as 16-bit integers."""
    steps = 40 * FRAME
    loud = np.repeat(rng.uniform(0, 0.3, (SESSIONS, 40)), FRAME, axis=1)
    tone = np.sin(np.cumsum(np.repeat(rng.uniform(0.02, 0.4, (SESSIONS, 40)), FRAME, axis=1), axis=1))
    noise = rng.standard_normal((SESSIONS, steps))
    return np.int16(np.clip(loud * (tone + 0.3 * noise), -1, 1) * 32767)


def their_own(sound):
    """Returns the probabilities of silero-vad's model for one session."""
    model = torch.jit.load(str(Path(silero.__file__).parent / "data" / "silero_vad.jit")).eval()
    frames = torch.from_numpy(sound.astype(np.float32) / 32768).reshape(-1, 1, FRAME)
    with torch.inference_mode():
        return np.array([float(model(frame, 16000)[0, 0]) for frame in frames])


def test_the_answers_are_those_of_silero_vad(example, rng, sound):
    """Sessions begin and continue at different times, in lanes in any order."""
    detector = example.Detector(SESSIONS + 3)
    lanes, at = rng.permutation(SESSIONS + 3)[:SESSIONS], np.zeros(SESSIONS, int)
    got = np.zeros((SESSIONS, 40))
    frames = (sound.astype(np.float32) / 32768).reshape(SESSIONS, 40, FRAME)
    while (at < 40).any():
        who = rng.permutation(np.flatnonzero(at < 40))[: rng.integers(1, SESSIONS + 1)]
        got[who, at[who]] = detector(frames[who, at[who]], lanes[who])
        at[who] += 1
    want = np.array([their_own(one) for one in sound])
    assert np.ptp(want) > 0.2  # the answers vary, so the sound is not only silence for the model
    np.testing.assert_allclose(got, want, rtol=0, atol=ALIKE)


def test_the_server_answers_every_session(example, sound):
    """More clients than lanes connect one after another. While no lane is free, a connection is refused."""

    async def talk(port, samples):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        found = []
        for part in samples.reshape(-1, FRAME):
            writer.write(part.astype("<i2").tobytes())
            found.append(struct.unpack("<f", await reader.readexactly(4))[0])
        await example.close(writer)
        return found

    async def all_of_them():
        server = example.Server(2)
        worker = asyncio.create_task(server.work())
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        try:
            got = [*await asyncio.gather(talk(port, sound[0]), talk(port, sound[1]))]
            while len(server.free) < 2:
                await asyncio.sleep(0.001)
            opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            while server.free:
                await asyncio.sleep(0.001)
            opened.append(await asyncio.open_connection("127.0.0.1", port))
            assert await opened[2][0].read() == b""
            for _, writer in opened:
                await example.close(writer)
            while len(server.free) < 2:
                await asyncio.sleep(0.001)
            return [*got, await talk(port, sound[2])]
        finally:
            listening.close()
            worker.cancel()

    got = asyncio.run(asyncio.wait_for(all_of_them(), 60))
    want = [their_own(sound[k]) for k in range(3)]
    np.testing.assert_allclose(got, want, rtol=0, atol=ALIKE)
