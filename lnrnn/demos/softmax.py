"""The loss of every demo that names a class: cross-entropy behind a softmax, and its gradient."""

from __future__ import annotations

import numpy as np


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The negative logarithm of the probability of the right class, in nats, and its gradient by the logits.

    logits (..., classes), labels (...): integers. -> losses (...), gradients (..., classes), each of its own
    loss: where the loss of a batch is a mean, divide them as it does.
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_probability = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    right = labels[..., None]
    gradients = np.exp(log_probability)
    np.put_along_axis(gradients, right, np.take_along_axis(gradients, right, -1) - 1, -1)
    return -np.take_along_axis(log_probability, right, -1)[..., 0], gradients
