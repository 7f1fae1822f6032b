"""Trains a layer-normalised RNN with NumPy and SciPy alone, to recognise nine speakers of Japanese Vowels.

    python examples/train_with_scipy.py [--cell rnn|lstm|gru] [--iterations 60]

lnrnn computes the gradients of the recurrent network. The loss uses SciPy's log_softmax. SciPy's optimiser
L-BFGS uses all training utterances in each iteration. examples/train_with_torch.py uses mini-batches and
Adam.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

import lnrnn

HIDDEN, SPEAKERS, WEIGHT_DECAY = 32, 9, 1e-3


class Objective:
    """Loss and gradient of a recurrent network with a linear head, as functions of one flat float64 array.

    x (T, N, 12), lengths (N,): padded sequences. labels (N,): their classes."""

    def __init__(self, rnn, x: np.ndarray, lengths: np.ndarray, labels: np.ndarray) -> None:
        self.rnn, self.x, self.lengths = rnn, x, lengths
        self.right = np.arange(len(labels)), labels
        self.head = np.random.default_rng(0).normal(0, HIDDEN**-0.5, (SPEAKERS, HIDDEN))

    def parameters(self) -> dict[str, np.ndarray]:
        return {**self.rnn.parameters(), "head": self.head}

    def set(self, flat: np.ndarray) -> None:
        """Sets all parameters from one flat array, in the order of `parameters`."""
        start = 0
        for name, old in self.parameters().items():
            value = flat[start : start + old.size].reshape(old.shape)
            setattr(self if name == "head" else self.rnn, name, value)
            start += old.size

    def flat(self) -> np.ndarray:
        return np.concatenate([np.ravel(value) for value in self.parameters().values()]).astype(np.float64)

    def __call__(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns mean cross-entropy in nats plus weight decay, and the gradient."""
        self.set(flat)
        y, state, tape = self.rnn.forward_train(self.x, lengths=self.lengths)
        h = hidden(state)
        log_probability = log_softmax(h @ self.head.T, axis=1)
        loss = -log_probability[self.right].mean() + WEIGHT_DECAY / 2 * flat @ flat
        glogits = np.exp(log_probability)
        glogits[self.right] -= 1
        glogits /= len(h)
        gh = (glogits @ self.head)[None]
        _, _, gradients = self.rnn.backward(
            tape, np.zeros_like(y), (gh, None) if isinstance(state, tuple) else gh
        )
        gradients["head"] = glogits.T @ h
        by_name = [np.ravel(gradients[name]) for name in self.parameters()]
        return float(loss), np.concatenate(by_name) + WEIGHT_DECAY * flat


def hidden(state) -> np.ndarray:
    """Returns h (N, H) of a state, which is h or (h, c)."""
    return (state[0] if isinstance(state, tuple) else state)[0]


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--cell", choices=["rnn", "lstm", "gru"], default="rnn")
    options.add_argument("--iterations", type=int, default=60)
    options = options.parse_args()

    data = lnrnn.data.japanese_vowels()
    frames = np.concatenate(data.train.x)
    mean, deviation = frames.mean(0), frames.std(0)
    (x, lengths), (test_x, test_lengths) = (lnrnn.data.pad_sequence([(u - mean) / deviation for u in half.x])
                                            for half in (data.train, data.test))  # fmt: skip

    objective = Objective(
        getattr(lnrnn, options.cell.upper())(12, HIDDEN, seed=0), x, lengths, data.train.labels
    )
    start = objective.flat()
    first = objective(start)[0]
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": options.iterations})
    objective.set(found.x)
    print(f"LN-{options.cell.upper()}: loss {first:.3f} -> {found.fun:.3f} in {found.nit} iterations")

    _, state = objective.rnn(test_x, lengths=test_lengths)
    right = int(((hidden(state) @ objective.head.T).argmax(1) == data.test.labels).sum())
    print(f"{right} of {len(data.test)} test utterances right ({right / len(data.test):.1%})")


if __name__ == "__main__":
    main()
