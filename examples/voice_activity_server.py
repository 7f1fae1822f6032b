"""Who is speaking? A server that watches many voices at once with silero-vad, its LSTM run by lnrnn.

    pip install silero-vad                                         # MIT; brings its weights
    python examples/voice_activity_server.py --port 5050 --sessions 1000
    python examples/voice_activity_server.py --measure 200         # so many voices at real time, in here

A connection is a session. It sends sound of 16 kHz, 16-bit integers, little-endian, one channel. For every
512 samples (32 ms) it gets back one float32, the probability of speech. Each session has a lane of one stream
(rnn.stream(sessions)), and all sessions with a frame are served together. Lanes do not depend on each other,
so a session gets the bits that the LSTM gives it alone. Torch runs the other layers from silero-vad's file: a
short-time Fourier transform and four convolutions before the LSTM, one after.
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

FRAME, CONTEXT, RATE = 512, 64, 16000  # samples that a step takes, of the frame before it, and of a second


class Detector:
    """The probability of speech for many sessions, each in its lane."""

    def __init__(self, sessions: int) -> None:
        model = torch.jit.load(str(Path(silero_vad.__file__).parent / "data" / "silero_vad.jit")).eval()
        self.around = model._model
        self.stream = lnrnn.from_torch(model.state_dict(), prefix="_model.decoder.rnn.").stream(sessions)
        self.before = np.zeros((sessions, CONTEXT), np.float32)

    def reset(self, rows: list[int]) -> None:
        self.stream.reset(rows)
        self.before[rows] = 0

    def __call__(self, frames: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """frames (R, 512) float32 in -1 .. 1, of the sessions rows (R,) -> probabilities (R,)."""
        sound = np.concatenate([self.before[rows], frames], axis=1)
        with torch.inference_mode():
            features = self.around.encoder(self.around.run_extractors(torch.from_numpy(sound)))
            h = self.stream(features[:, :, 0], rows)  # torch in, NumPy out
            found = self.around.decoder.decoder(torch.from_numpy(h)[:, :, None])
        self.before[rows] = frames[:, -CONTEXT:]
        return found[:, 0, 0].numpy()


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


class Server:
    """Connections, the lanes that are free, and the frames that wait."""

    def __init__(self, sessions: int) -> None:
        self.detector = Detector(sessions)
        self.free = list(range(sessions))[::-1]
        self.waiting: dict[int, deque[np.ndarray]] = {}  # by lane, of open sessions
        self.writers: dict[int, asyncio.StreamWriter] = {}
        self.some = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One session."""
        if not self.free:
            await close(writer)  # all lanes are taken: the caller sees the end of the connection
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
            while self.waiting[lane]:  # a session that leaves gets its last answers
                await asyncio.sleep(0.001)
        finally:
            del self.waiting[lane], self.writers[lane]
            self.free.append(lane)
            await close(writer)

    async def work(self) -> None:
        """Serves all sessions that have a frame, in one call, again and again."""
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
            await asyncio.sleep(0)  # connections are read in between


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
    """Frames of so many voices that come at any time, at the speed of real time: how late is the answer?"""
    rng = np.random.default_rng(0)
    detector, late = Detector(sessions), []
    sound = rng.standard_normal((sessions, FRAME), dtype=np.float32) * np.float32(0.1)
    length = FRAME / RATE
    begin = time.perf_counter() + 0.1
    due = begin + rng.uniform(0, length, sessions)  # when the next frame of each is complete
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
    print(f"{sessions} voices: an answer after {middle:.1f} ms in the median, {most:.1f} ms in 999 of 1000; "
          f"a frame has {length * 1e3:.0f} ms")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=5050)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--measure", type=int, metavar="VOICES")
    parser.add_argument("--seconds", type=float, default=10.0, help="of --measure")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lnrnn.set_num_threads(options.threads)
    if options.measure:
        measure(options.measure, options.seconds)
    else:
        asyncio.run(listen(options.port, options.sessions))


if __name__ == "__main__":
    main()
