"""A server that detects speech in many connections at once with silero-vad, whose LSTM lnrnn runs.

    pip install silero-vad                                         # MIT licence; contains the weights
    python examples/voice_activity_server.py --port 5050 --sessions 1000
    python examples/voice_activity_server.py --measure 200         # measures 200 voices, without a network

A connection is a session. It sends sound of 16 kHz in one channel, as 16-bit little-endian integers. For
every 512 samples (32 ms) it receives one float32, the probability of speech. Each session has a lane of one
stream, rnn.stream(sessions). One call steps all sessions that have a frame. Lanes are independent, so a
session gets the same bits as alone. Torch runs the other layers of silero-vad: a short-time Fourier transform
and four convolutions before the LSTM, and one convolution after it.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

import numpy as np
import silero_vad
import torch

import lnrnn

FRAME, CONTEXT, RATE = 512, 64, 16000  # samples: new in a step, repeated from the step before, per second


class Detector:
    """Computes the probability of speech for many sessions. Each has a lane of the LSTM's stream."""

    def __init__(self, sessions: int) -> None:
        model = torch.jit.load(str(Path(silero_vad.__file__).parent / "data" / "silero_vad.jit")).eval()
        self.around = model._model
        self.stream = lnrnn.from_torch(model.state_dict(), prefix="_model.decoder.rnn.").stream(sessions)
        self.before = np.zeros((sessions, CONTEXT), np.float32)

    def reset(self, rows: list[int]) -> None:
        self.stream.reset(rows)
        self.before[rows] = 0

    def __call__(self, frames: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Returns probabilities (R,). frames (R, 512): float32 in -1 .. 1. rows (R,): the lanes."""
        sound = np.concatenate([self.before[rows], frames], axis=1)
        with torch.inference_mode():
            features = self.around.encoder(self.around.run_extractors(torch.from_numpy(sound)))
            h = self.stream(features[:, :, 0], rows)  # takes a tensor, returns an array of NumPy
            found = self.around.decoder.decoder(torch.from_numpy(h)[:, :, None])
        self.before[rows] = frames[:, -CONTEXT:]
        return found[:, 0, 0].numpy()


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


class Server:
    """Accepts connections, assigns lanes to them, and collects their frames for the detector."""

    def __init__(self, sessions: int) -> None:
        self.detector = Detector(sessions)
        self.free = list(range(sessions))[::-1]
        self.waiting: dict[int, deque[np.ndarray]] = {}  # lane of an open session -> frames
        self.writers: dict[int, asyncio.StreamWriter] = {}
        self.some = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.free:
            await close(writer)  # no lane is free
            return
        lane = self.free.pop()
        self.detector.reset([lane])
        self.waiting[lane], self.writers[lane] = deque(), writer
        try:
            while True:
                sound = np.frombuffer(await reader.readexactly(2 * FRAME), "<i2")
                self.waiting[lane].append(sound.astype(np.float32) / 32768)
                self.some.set()
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            while self.waiting[lane]:  # send the last answers before the session ends
                await asyncio.sleep(0.001)
        finally:
            del self.waiting[lane], self.writers[lane]
            self.free.append(lane)
            await close(writer)

    async def work(self) -> None:
        """Repeats forever: one call of the detector for all sessions that have a frame."""
        while True:
            await self.some.wait()
            self.some.clear()
            rows = np.array([lane for lane, frames in self.waiting.items() if frames], np.int64)
            if not len(rows):
                continue
            frames = np.stack([self.waiting[lane][0] for lane in rows])
            found = self.detector(frames, rows)
            for lane, value in zip(rows.tolist(), found.tolist(), strict=True):
                self.writers[lane].write(struct.pack("<f", value))
                self.waiting[lane].popleft()
                if self.waiting[lane]:
                    self.some.set()
            await asyncio.sleep(0)  # let other tasks read connections


async def listen(port: int, sessions: int) -> None:
    server = Server(sessions)
    worker = asyncio.create_task(server.work())
    listening = await asyncio.start_server(server.serve, "127.0.0.1", port)
    print(f"port {listening.sockets[0].getsockname()[1]}, {sessions} sessions", flush=True)
    async with listening:
        await asyncio.wait(
            [worker, asyncio.create_task(listening.serve_forever())], return_when="FIRST_COMPLETED"
        )
    worker.result()


def measure(sessions: int, seconds: float) -> None:
    """Prints how late answers are if frames of many voices arrive in real time, at random offsets."""
    rng = np.random.default_rng(0)
    detector, late = Detector(sessions), []
    sound = rng.standard_normal((sessions, FRAME), dtype=np.float32) * np.float32(0.1)
    length = FRAME / RATE
    begin = time.perf_counter() + 0.1
    due = begin + rng.uniform(0, length, sessions)  # when each session's next frame is complete
    while (now := time.perf_counter()) < begin + seconds:
        rows = np.flatnonzero(due <= now)
        if not len(rows):
            time.sleep(max(0.0, float(due.min()) - now))
            continue
        detector(sound[rows], rows)
        done = time.perf_counter()
        late.extend(done - due[rows])
        due[rows] += length
    middle, most = np.quantile(late, [0.5, 0.999]) * 1e3
    print(f"{sessions} voices: answers take {middle:.1f} ms in the median, 99.9 % at most {most:.1f} ms; "
          f"a frame has {length * 1e3:.0f} ms")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=5050)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--measure", type=int, metavar="VOICES")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of --measure")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lnrnn.set_num_threads(options.threads)
    if options.measure:
        measure(options.measure, options.seconds)
    else:
        asyncio.run(listen(options.port, options.sessions))


if __name__ == "__main__":
    main()
