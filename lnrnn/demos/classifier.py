"""Recurrent networks with a linear softmax head: one names the class of a sequence, one a class per step."""

from __future__ import annotations

from typing import Any

import numpy as np

import lnrnn
from lnrnn.demos.softmax import cross_entropy


class Classifier:
    """A recurrent model and the linear layer that makes logits, one per class, of its states.

    rnn: a recurrent model with one layer and one direction. Of a state (h, c) the head reads h.
    The head's parameters are ``head_weight`` (classes, H), uniform in +-1/sqrt(H), and ``head_bias``
    (classes), zero.
    """

    def __init__(self, rnn: lnrnn.Network[Any], classes: int, rng: np.random.Generator) -> None:
        hidden_size = rnn.parameters()["weight_hh_l0"].shape[1]
        bound = hidden_size**-0.5
        self.rnn = rnn
        self.head_weight = rng.uniform(-bound, bound, (classes, hidden_size)).astype(np.float32)
        self.head_bias = np.zeros(classes, np.float32)

    def parameters(self) -> dict[str, np.ndarray]:
        """Everything that is trained, by name."""
        return {**self.rnn.parameters(), "head_weight": self.head_weight, "head_bias": self.head_bias}

    def set_parameters(self, values: dict[str, np.ndarray]) -> None:
        """The other way round: takes what ``parameters()`` gives."""
        for name, value in values.items():
            setattr(self if name.startswith("head_") else self.rnn, name, value)


class SequenceClassifier(Classifier):
    """The state at a sequence's own end gives the logits.

    The head multiplies with einsum rather than ``@``: BLAS may add in another order with another number of
    threads, and a demo's numbers have to come out the same bit for bit.
    """

    def logits(self, state: np.ndarray) -> np.ndarray:
        """state (..., H) -> logits (..., classes)."""
        return np.asarray(np.einsum("...h,ch->...c", state, self.head_weight) + self.head_bias)

    def predict(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """x (T, N, I), lengths (N,) -> the class of each sequence, (N,)."""
        _, state = self.rnn(x, lengths=lengths)
        return np.asarray(self.logits(_hidden(state)).argmax(axis=-1))

    def loss_and_gradients(
        self, x: np.ndarray, lengths: np.ndarray, labels: np.ndarray
    ) -> tuple[float, dict[str, np.ndarray]]:
        """Mean cross-entropy in nats over the N sequences of a batch, and its gradient by parameter name.

        x (T, N, I), lengths (N,), labels (N,). Under batch norm this also moves the running statistics.
        """
        return self.loss_and_all_gradients(x, lengths, labels)[:2]

    def loss_and_all_gradients(
        self, x: np.ndarray, lengths: np.ndarray, labels: np.ndarray
    ) -> tuple[float, dict[str, np.ndarray], np.ndarray]:
        """As ``loss_and_gradients``, and the loss's gradient by x, (T, N, I)."""
        y, state, tape = self.rnn.forward_train(x, lengths=lengths)
        h = _hidden(state)
        losses, glogits = cross_entropy(self.logits(h), labels)
        glogits /= len(labels)
        gh = np.einsum("nc,ch->nh", glogits, self.head_weight)[None]
        if isinstance(state, tuple):
            gh = gh, None
        gx, _, gradients = self.rnn.backward(tape, np.zeros_like(y), gh)
        gradients["head_weight"] = np.einsum("nc,nh->ch", glogits, h)
        gradients["head_bias"] = glogits.sum(axis=0)
        return float(losses.mean()), gradients, gx


class StepClassifier(Classifier):
    """The state at every step gives logits: a class per step, as in predicting the next character.

    The head is a stack of products, one per step: so small (N x H x classes up to a few 100,000) each is
    computed by one thread of BLAS, and in one order, and yet several times faster than with einsum.
    """

    def logits(self, y: np.ndarray) -> np.ndarray:
        """y (T, N, H), the states -> logits (T, N, classes)."""
        return np.asarray(np.matmul(y, self.head_weight.T) + self.head_bias)

    def losses(self, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Cross-entropy in nats at every step, at inference: x (T, N, I), labels (T, N) -> (T, N)."""
        return cross_entropy(self.logits(self.rnn(x)[0]), labels)[0]

    def loss_and_gradients(
        self, x: np.ndarray, lengths: np.ndarray, labels: np.ndarray
    ) -> tuple[float, dict[str, np.ndarray]]:
        """Mean cross-entropy in nats over all steps of all sequences, and its gradient by parameter name.

        x (T, N, I), lengths (N,), labels (T, N): what lies past a length does not count, but has to be a
        class. Under batch norm this also moves the running statistics.
        """
        y, _, tape = self.rnn.forward_train(x, lengths=lengths)
        losses, glogits = cross_entropy(self.logits(y), labels)
        alive = np.arange(len(x))[:, None] < lengths
        glogits *= (alive / np.float32(alive.sum()))[..., None]
        _, _, gradients = self.rnn.backward(tape, np.matmul(glogits, self.head_weight))
        gradients["head_weight"] = np.matmul(glogits.transpose(0, 2, 1), y).sum(axis=0)
        gradients["head_bias"] = glogits.sum(axis=(0, 1))
        return float(losses[alive].mean()), gradients


def _hidden(state: np.ndarray | tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """h of the one layer, (N, H); a state is h, or (h, c)."""
    h: np.ndarray = (state[0] if isinstance(state, tuple) else state)[0]
    return h
