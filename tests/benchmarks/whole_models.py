"""Times whole torch models before and after lnrnn.torch.accelerate, on one thread.

    python tests/benchmarks/whole_models.py [--dtype int8] [NAME ...]

A line has the share of the recurrent modules in the time of the model, and the gain of the kernels alone.
It then has the gain of the model that is possible, and the gain that was reached. Times are the least CPU
time of the thread. Runs of both alternate. The models have the sizes of published ones, and random weights.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import lnrnn
import lnrnn.torch

Recurrent = nn.RNNBase, nn.RNNCellBase
SECONDS = 6.0


class WaveRNN(nn.Module):
    """The loop of WaveRNN's infer: two GRUs of 512 units step by step, and two linear layers."""

    def __init__(self, steps: int = 100) -> None:
        super().__init__()
        self.steps = steps
        self.fc, self.rnn1, self.rnn2 = nn.Linear(113, 512), nn.GRU(512, 512), nn.GRU(544, 512)
        self.fc1, self.fc2, self.out = nn.Linear(544, 512), nn.Linear(544, 512), nn.Linear(512, 256)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        B = features.shape[1]
        h1 = h2 = features.new_zeros(1, B, 512)
        x, result = features.new_zeros(B, 1), []
        for t in range(self.steps):
            a = features[t]
            i = self.fc(torch.cat((x, a[:, :112]), 1))
            y, h1 = self.rnn1(i[None], h1)
            y = y[0] + i
            z, h2 = self.rnn2(torch.cat((y, a[:, 112:]), 1)[None], h2)
            y = z[0] + y
            y = torch.relu(self.fc1(torch.cat((y, a[:, 112:]), 1)))
            y = torch.relu(self.fc2(torch.cat((y, a[:, 112:]), 1)))
            x = self.out(y).argmax(1, keepdim=True) / 127.5 - 1
            result.append(x)
        return torch.cat(result, 1)


class Decoder(nn.Module):
    """The decoder of Tacotron 2: two LSTM cells of 1024 units, attention with locations, and a prenet."""

    def __init__(self, steps: int = 20) -> None:
        super().__init__()
        self.steps = steps
        self.prenet = nn.Sequential(nn.Linear(80, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.attention_rnn, self.decoder_rnn = nn.LSTMCell(768, 1024), nn.LSTMCell(1536, 1024)
        self.query, self.memory, self.score = nn.Linear(1024, 128), nn.Linear(512, 128), nn.Linear(128, 1)
        self.conv, self.location = (
            nn.Conv1d(2, 32, 31, padding=15, bias=False),
            nn.Linear(32, 128, bias=False),
        )
        self.projection, self.gate = nn.Linear(1536, 80), nn.Linear(1536, 1)

    def forward(self, memory: torch.Tensor) -> torch.Tensor:
        B, length, _ = memory.shape
        keys = self.memory(memory)
        ha = ca = hd = cd = memory.new_zeros(B, 1024)
        weights, total = memory.new_zeros(B, length), memory.new_zeros(B, length)
        context, frame, frames = memory.new_zeros(B, 512), memory.new_zeros(B, 80), []
        for _ in range(self.steps):
            ha, ca = self.attention_rnn(torch.cat((self.prenet(frame), context), 1), (ha, ca))
            where = self.location(self.conv(torch.stack((weights, total), 1)).transpose(1, 2))
            energies = self.score(torch.tanh(self.query(ha)[:, None] + where + keys))[..., 0]
            weights = energies.softmax(1)
            total = total + weights
            context = (weights[:, None] @ memory)[:, 0]
            hd, cd = self.decoder_rnn(torch.cat((ha, context), 1), (hd, cd))
            both = torch.cat((hd, context), 1)
            frame = self.projection(both)
            frames += [frame, self.gate(both)]
        return torch.cat(frames, 1)


class Transducer(nn.Module):
    """Greedy decoding of an RNN transducer: a predictor of two LSTM layers, and a joiner, for each symbol."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn = nn.Embedding(500, 512), nn.LSTM(512, 512, 2)
        self.enc, self.pred, self.out = nn.Linear(512, 512), nn.Linear(512, 512), nn.Linear(512, 500)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        h = (frames.new_zeros(2, 1, 512), frames.new_zeros(2, 1, 512))
        y, h = self.rnn(self.words(torch.zeros(1, 1, dtype=torch.long)), h)
        encoded, logits = self.enc(frames), []
        for t in range(len(frames)):
            scores = self.out(torch.tanh(encoded[t] + self.pred(y[0, 0])))
            logits.append(scores)
            if t % 3 == 0:  # a third of the frames has a symbol, as in speech
                y, h = self.rnn(self.words(scores.argmax()[None, None]), h)
        return torch.stack(logits)


class Policy(nn.Module):
    """The rollout of a recurrent policy: an LSTM of 256 units for actor and for critic, and their heads."""

    def __init__(self, steps: int = 50) -> None:
        super().__init__()
        self.steps = steps
        self.body = nn.Sequential(nn.Linear(24, 64), nn.Tanh())
        self.actor, self.critic = nn.LSTM(64, 256), nn.LSTM(64, 256)
        self.action, self.value = nn.Linear(256, 4), nn.Linear(256, 1)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        B = observations.shape[1]
        a = v = (observations.new_zeros(1, B, 256), observations.new_zeros(1, B, 256))
        result = []
        for t in range(self.steps):
            x = self.body(observations[t])[None]
            y, a = self.actor(x, a)
            z, v = self.critic(x, v)
            result += [self.action(y[0]), self.value(z[0])]
        return torch.cat(result, 1)


class DeepAR(nn.Module):
    """Sampling of DeepAR: an LSTM of two layers and 40 units, and 24 steps of 100 paths."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.args = nn.LSTM(20, 40, 2), nn.Linear(40, 3)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        h = (features.new_zeros(2, 100, 40), features.new_zeros(2, 100, 40))
        x, result = features.new_zeros(100, 1), []
        for t in range(24):
            y, h = self.rnn(torch.cat((x, features[t]), 1)[None], h)
            df, loc, scale = self.args(y[0]).split(1, 1)
            x = loc + nn.functional.softplus(scale) / (2 + nn.functional.softplus(df))
            result.append(x)
        return torch.cat(result, 1)


class Encoder(nn.Module):
    """An encoder of speech: two convolutions, three LSTM layers in both directions, a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(80, 256, 3, 2, 1), nn.ReLU(), nn.Conv1d(256, 256, 3, 2, 1), nn.ReLU()
        )
        self.rnn, self.out = nn.LSTM(256, 256, 3, bidirectional=True, batch_first=True), nn.Linear(512, 512)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return self.out(self.rnn(self.conv(frames).transpose(1, 2))[0])


Made = tuple[nn.Module, torch.Tensor]
MODELS: dict[str, Callable[[], Made]] = {
    "WaveRNN B=1": lambda: (WaveRNN(), torch.randn(100, 1, 144)),
    "Tacotron2 decoder B=1": lambda: (Decoder(), torch.randn(1, 100, 512)),
    "Tacotron2 decoder B=2": lambda: (Decoder(), torch.randn(2, 100, 512)),
    "transducer": lambda: (Transducer(), torch.randn(150, 512)),
    "policy B=8": lambda: (Policy(), torch.randn(50, 8, 24)),
    "DeepAR": lambda: (DeepAR(), torch.randn(24, 100, 19)),
    "speech encoder B=1": lambda: (Encoder(), torch.randn(1, 80, 400)),
    "speech encoder B=8": lambda: (Encoder(), torch.randn(8, 80, 400)),
}


class Watched:
    """Adds up the CPU time of recurrent modules, and notes the shapes of their calls."""

    def __init__(self, model: nn.Module) -> None:
        self.seconds, self.calls = 0.0, []  # type: ignore[var-annotated]
        for module in model.modules():
            if isinstance(module, Recurrent):
                module.forward = self._timed(module, module.forward)

    def _timed(self, module: Any, forward: Any) -> Any:
        def run(x: torch.Tensor, *rest: Any) -> Any:
            begin = time.thread_time()
            try:
                return forward(x, *rest)
            finally:
                self.seconds += time.thread_time() - begin
                self.calls.append((module, tuple(x.shape)))

        return run


def kernels(calls: list[tuple[Any, tuple[int, ...]]], dtype: Any) -> Callable[[], None]:
    """Returns a function that computes the same calls in streams, or as sequences.

    The order of calls is the model's, so that networks of several layers compete for the caches as there.
    """
    known: dict[Any, Callable[[], Any]] = {}
    rng = np.random.default_rng(0)
    for module, shape in calls:
        if (module, shape) not in known:
            network = lnrnn.from_torch(module, check=False).to_dtype(dtype)
            x = rng.standard_normal(shape, dtype=np.float32)
            steps = 1 if len(shape) == 2 else shape[1 if network.batch_first else 0]
            if steps == 1 and not network.bidirectional:
                known[module, shape] = partial(network.stream(shape[-2]), x.reshape(shape[-2:]))
            else:
                known[module, shape] = partial(network, x)
    runs = [known[call] for call in calls]

    def run() -> None:
        for each in runs:
            each()

    return run


def measure(name: str, dtype: Any) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    model.eval()
    ours, copied = copy.deepcopy(model), copy.deepcopy(model)
    report = lnrnn.torch.accelerate(ours, check=x, dtype=dtype)
    assert report.replaced, report
    error = float((model(x) - ours(x)).abs().max())
    watched = Watched(copied)
    copied(x)
    alone = kernels(watched.calls, dtype)
    best, recurrent = [float("inf")] * 4, float("inf")
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for k, run in enumerate((lambda: model(x), lambda: ours(x), alone, lambda: copied(x))):
            watched.seconds = 0.0
            begin = time.thread_time()
            run()
            now = time.thread_time() - begin
            if k == 3 and now < best[k]:
                recurrent = watched.seconds
            best[k] = min(best[k], now)
    share, ratio = recurrent / best[3], recurrent / best[2]
    limit, reached = 1 / (1 - share + share / ratio), best[0] / best[1]
    print(
        f"{name:22} {best[0] * 1e3:8.2f} ms  share {share:.2f}  kernels x{ratio:5.2f}  "
        f"possible x{limit:5.2f}  reached x{reached:5.2f} = {reached / limit:.2f}  difference {error:.1e}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}; default: all")
    parser.add_argument("--dtype", default="float32", help="of the packed weights")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lnrnn.set_num_threads(1)
    with torch.no_grad():
        for name in arguments.names or MODELS:
            measure(name, arguments.dtype)


if __name__ == "__main__":
    main()
