"""Trains a layer-normalised LSTM in torch, with lnrnn's kernels, and runs the trained network without torch.

    python examples/train_with_torch.py [--cell rnn|lstm|gru] [--epochs 40] [--seeds 1]

Needs torch. The network learns to recognise nine speakers of Japanese Vowels, a data set that comes with
lnrnn. If hidden states of lnrnn and of torch's own operations differ by more than TOLERANCE, the script ends
with an error. Accuracy depends on the seed and the machine, because training amplifies rounding errors.
--seeds N trains with the seeds 0 to N - 1, and prints mean and range.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

import lnrnn
import lnrnn.torch

HIDDEN, BATCH, NOISE, SPEAKERS = 64, 30, 0.3, 9
TOLERANCE = 1e-5  # for hidden states, which are in [-1, 1]; 30 trained networks differed by 5.5e-6 at most


class Classifier(torch.nn.Module):
    """A linear layer that computes a logit for each speaker from the state at the end of an utterance."""

    def __init__(self, cell: str) -> None:
        super().__init__()
        self.rnn = getattr(lnrnn.torch, cell)(12, HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, SPEAKERS)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        _, state = self.rnn(x, lengths=lengths)
        return self.head(hidden(state)[-1])


def hidden(state):
    """Returns h of a state, which is h or (h, c)."""
    return state[0] if isinstance(state, tuple) else state


def train(
    model: Classifier, x: torch.Tensor, lengths: torch.Tensor, labels: torch.Tensor, epochs: int
) -> None:
    """Trains with Adam on mini-batches, with noise on the input and clipped gradients."""
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for chosen in torch.randperm(len(labels)).split(BATCH):
            batch = x[:, chosen] + NOISE * torch.randn(len(x), len(chosen), x.shape[2])
            loss = torch.nn.functional.cross_entropy(model(batch, lengths[chosen]), labels[chosen])
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()


def timed(run):
    """Returns the result of run(), and the shortest of five times in seconds."""
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        result = run()
        best = min(best, time.perf_counter() - begin)
    return result, best


def train_and_serve(cell: str, seed: int, epochs: int) -> float:
    """Prints how torch and lnrnn answer on the test utterances. Returns the accuracy of lnrnn."""
    torch.manual_seed(seed)
    data = lnrnn.data.japanese_vowels()
    frames = np.concatenate(data.train.x)
    mean, deviation = frames.mean(0), frames.std(0)
    (x, lengths), (test_x, test_lengths) = (lnrnn.data.pad_sequence([(u - mean) / deviation for u in half.x])
                                            for half in (data.train, data.test))  # fmt: skip

    # Train: ordinary torch code for any device; on a CPU it uses lnrnn's kernels.
    model = Classifier(cell.upper())
    begin = time.perf_counter()
    train(model, *map(torch.from_numpy, (x, lengths, data.train.labels)), epochs)
    took = time.perf_counter() - begin
    print(
        f"seed {seed}: trained {model.rnn}\n"
        f"  for {epochs} epochs on {len(data.train)} utterances, {took:.1f} s"
    )
    model.eval()
    model.rnn.engine = "torch"  # now use torch's own operations, for the comparison
    with torch.no_grad():
        (_, state), there = timed(lambda: model.rnn(torch.from_numpy(test_x), lengths=test_lengths))
        by_torch = model.head(hidden(state)[-1]).argmax(1).numpy()

    # Serve: the converted network needs only NumPy.
    rnn = lnrnn.from_torch(model.rnn)
    (_, served), here = timed(lambda: rnn(test_x, lengths=test_lengths))
    weight, bias = (p.detach().numpy() for p in model.head.parameters())
    by_lnrnn = (hidden(served)[-1] @ weight.T + bias).argmax(1)

    for name, named, seconds in (("torch", by_torch, there), ("lnrnn", by_lnrnn, here)):
        right = int((named == data.test.labels).sum())
        share = f"{right} of {len(named)} test utterances right ({right / len(named):.1%})"
        print(f"  {name}: {share}, {seconds * 1e3:.1f} ms for all")
    apart = np.abs(hidden(served) - hidden(state).numpy()).max()
    differ = int((by_torch != by_lnrnn).sum())
    print(f"  largest difference of a hidden state {apart:.1e}; different answers: {differ}")
    if not apart <= TOLERANCE:
        raise SystemExit(f"hidden states should agree to {TOLERANCE:g}")
    return float((by_lnrnn == data.test.labels).mean())


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--cell", choices=["rnn", "lstm", "gru"], default="lstm")
    options.add_argument("--epochs", type=int, default=40)
    options.add_argument("--seeds", type=int, default=1, metavar="N")
    options = options.parse_args()
    torch.set_num_threads(1)  # such small operations take longer on several threads
    lnrnn.set_num_threads(1)
    accuracies = [train_and_serve(options.cell, seed, options.epochs) for seed in range(options.seeds)]
    if len(accuracies) > 1:
        spread = f"mean {np.mean(accuracies):.1%}, from {min(accuracies):.1%} to {max(accuracies):.1%}"
        print(f"accuracy over {len(accuracies)} seeds: {spread}")


if __name__ == "__main__":
    main()
