"""A recurrent network with a linear softmax head that names the class of a sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

import lnrnn
from lnrnn.demos.softmax import cross_entropy


class SequenceClassifier:
    """The state at a sequence's own end, through a linear layer, gives one logit per class.

    rnn: a recurrent model with one layer and one direction. Of a state (h, c) the head reads h.
    The head's parameters are ``head_weight`` (classes, H), uniform in +-1/sqrt(H), and ``head_bias``
    (classes), zero.

    The head multiplies with einsum rather than ``@``: BLAS may add in another order with another number of
    threads, and a demo's numbers have to come out the same bit for bit.
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


def _hidden(state: np.ndarray | tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """h of the one layer, (N, H); a state is h, or (h, c)."""
    h: np.ndarray = (state[0] if isinstance(state, tuple) else state)[0]
    return h
