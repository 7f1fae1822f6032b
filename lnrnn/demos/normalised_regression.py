"""Softmax regression with a norm before the softmax, and its Fisher information by exact sums.

logits = gain * norm(W x) + bias over C classes: a generalised linear model, with layer norm, batch norm,
weight norm (W x by the length of each row of W; Salimans, Kingma 2016), or none, which has no gain.
Everything is float64. Gradients and derivatives of layer norm and batch norm are the library's `_backward`:
the derivative of either by its input is a symmetric matrix, so that the function that takes gradients back
takes directions forward as well.

The Fisher information is F = mean over x of J' (diag(p) - p p') J with J the derivative of the logits and p
the softmax: the sum over all classes, not a sample of them. Under batch norm the images x are one batch, and
J has the derivatives of its statistics in it.

Products are einsum's, as everywhere in the demos: their bits do not depend on threads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

import lnrnn

NONE, WEIGHT, BATCH, LAYER = "no norm", "WN", "BN", "LN"
NORMS = (NONE, WEIGHT, BATCH, LAYER)


@dataclass(frozen=True)
class Regression:
    """weight (C, I), gain (C,), bias (C,), float64. Without norm the gain is 1, whatever it says."""

    norm: str
    weight: np.ndarray
    gain: np.ndarray
    bias: np.ndarray
    eps: float

    @classmethod
    def initial(cls, norm: str, inputs: int, classes: int, eps: float, seed: int) -> Regression:
        """Normal weights of variance 1 / inputs, so that a row is about 1 long; gains 1, biases 0."""
        weight = np.random.default_rng(seed).standard_normal((classes, inputs)) / inputs**0.5
        return cls(norm, weight, np.ones(classes), np.zeros(classes), eps)

    # --- forward and back -----------------------------------------------------------------------------------

    def products(self, x: np.ndarray) -> np.ndarray:
        """W x: (N, I) -> (N, C)."""
        return np.asarray(np.einsum("ni,ci->nc", x, self.weight))

    def normalised(self, z: np.ndarray) -> np.ndarray:
        """norm(z), z = W x (N, C); batch norm with the statistics of these N."""
        if self.norm == LAYER:
            return lnrnn.layer_norm(z, z.shape[1], eps=self.eps)
        if self.norm == BATCH:
            return lnrnn.batch_norm(z, None, None, training=True, eps=self.eps)
        return np.asarray(z / self.lengths() if self.norm == WEIGHT else z)

    def lengths(self) -> np.ndarray:
        """Of the rows of W, (C,)."""
        return np.asarray(np.sqrt(np.einsum("ci,ci->c", self.weight, self.weight)))

    def scales(self) -> np.ndarray:
        """The gain where there is one: (C,)."""
        return np.ones_like(self.gain) if self.norm == NONE else self.gain

    def logits(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.scales() * self.normalised(self.products(x)) + self.bias)

    def predict(self, x: np.ndarray, learnt: np.ndarray) -> np.ndarray:
        """The class of each x (N, I) at inference; batch norm with the statistics of ``learnt`` (M, I)."""
        if self.norm != BATCH:
            return np.asarray(self.logits(x).argmax(axis=1))
        z = self.products(learnt)
        mean, var = z.mean(axis=0), z.var(axis=0)
        found = lnrnn.batch_norm(self.products(x), mean, var, self.gain, self.bias, eps=self.eps)
        return np.asarray(found.argmax(axis=1))

    def loss_and_gradients(self, x: np.ndarray, labels: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
        """Mean cross-entropy in nats over x (N, I), and its gradient by weight, gain and bias."""
        z = self.products(x)
        n = self.normalised(z)
        p = softmax(self.scales() * n + self.bias)
        rows = np.arange(len(x))
        loss = -np.log(p[rows, labels]).mean()
        p[rows, labels] -= 1
        p /= len(x)
        gn = p * self.scales()
        if self.norm == WEIGHT:
            unit = self.weight / self.lengths()[:, None]
            g = np.einsum("nc,ni->ci", gn, x)
            gw = (g - unit * np.einsum("ci,ci->c", g, unit)[:, None]) / self.lengths()[:, None]
        else:
            gw = np.einsum("nc,ni->ci", self.through_norm(gn, z), x)
        ggain = np.zeros_like(self.gain) if self.norm == NONE else np.einsum("nc,nc->c", p, n)
        return float(loss), {"weight": gw, "gain": ggain, "bias": p.sum(axis=0)}

    def through_norm(self, g: np.ndarray, z: np.ndarray) -> np.ndarray:
        """The derivative of norm(z) times g, forward or back, both (N, C): it is symmetric. Not for weight
        norm, which depends on W beside z."""
        if self.norm == LAYER:
            return lnrnn.layer_norm_backward(g, z, z.shape[1], eps=self.eps)[0]
        if self.norm == BATCH:
            return lnrnn.batch_norm_backward(g, z, training=True, eps=self.eps)[0]
        return g

    def parameters(self) -> dict[str, np.ndarray]:
        return {"weight": self.weight, "gain": self.gain, "bias": self.bias}

    def scaled(self, factor: float | np.ndarray) -> Regression:
        """With the weight times a number, or times one for each row (C, 1)."""
        return replace(self, weight=factor * self.weight)

    # --- which weights the norm takes the length of ---------------------------------------------------------

    def groups(self, weight: np.ndarray) -> np.ndarray:
        """weight (C, I) by the vectors whose lengths do not matter: the rows, (C, I), but under layer norm
        all as one, (1, C * I)."""
        return weight.reshape(1, -1) if self.norm == LAYER else weight

    # --- the Fisher information -----------------------------------------------------------------------------

    def along(self, x: np.ndarray, direction: np.ndarray) -> float:
        """d' F d for a direction d of the weight, (C, I)."""
        z = self.products(x)
        moved = np.einsum("ni,ci->nc", x, direction)
        if self.norm == WEIGHT:
            unit = self.weight / self.lengths()[:, None]
            moved = (moved - self.normalised(z) * np.einsum("ci,ci->c", unit, direction)) / self.lengths()
        else:
            moved = self.through_norm(moved, z)
        return float(_variance(softmax(self.logits(x)), self.scales() * moved).mean())

    def along_itself(self, x: np.ndarray) -> float:
        """d' F d along a unit vector in the direction of the weights, mean over the groups."""
        groups = self.groups(self.weight)
        found = []
        for index in range(len(groups)):
            direction = np.zeros_like(groups)
            direction[index] = groups[index] / np.sqrt((groups[index] ** 2).sum())
            found.append(self.along(x, direction.reshape(self.weight.shape)))
        return float(np.mean(found))

    def row_derivatives(self, x: np.ndarray) -> np.ndarray:
        """The derivative of norm(W x)[:, c] by row c of W: (C, N, I). Not for layer norm, where each
        depends on all rows."""
        if self.norm == WEIGHT:
            unit = self.weight / self.lengths()[:, None]
            n = self.normalised(self.products(x))
            return np.stack(
                [(x - n[:, c, None] * unit[c]) / length for c, length in enumerate(self.lengths())]
            )
        z = self.products(x)
        return np.stack(
            [self.through_norm(x, np.repeat(z[:, c, None], x.shape[1], axis=1)) for c in range(z.shape[1])]
        )

    def weight_curvature(self, x: np.ndarray) -> float:
        """The trace of F over the weights, by their number: its mean over all directions."""
        p, gain = softmax(self.logits(x)), self.scales()
        if self.norm == LAYER:
            z = self.products(x)
            total = 0.0
            for unit in np.eye(z.shape[1]):
                moved = self.through_norm(np.broadcast_to(unit, z.shape), z)
                total += float((np.einsum("ni,ni->n", x, x) * _variance(p, gain * moved)).mean())
        else:
            total = float(self._row_curvatures(x, p).sum())
        return total / self.weight.size

    def _row_curvatures(self, x: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Trace of each row's diagonal block of F, (C,)."""
        squares = np.einsum("cni,cni->nc", *[self.row_derivatives(x)] * 2)
        return np.asarray((p * (1 - p) * self.scales() ** 2 * squares).mean(axis=0))

    def blocks(self, x: np.ndarray) -> tuple[float, float]:
        """Of F: the trace of the first row's diagonal block, by the row's length; and the Frobenius norm of
        its block with the second row. Not for layer norm."""
        p, gain, by_row = softmax(self.logits(x)), self.scales(), self.row_derivatives(x)
        factor = -p[:, 0] * p[:, 1] * gain[0] * gain[1] / len(x)
        cross = np.einsum("n,ni,nj->ij", factor, by_row[0], by_row[1])
        own = float(self._row_curvatures(x, p)[0]) / x.shape[1]
        return own, float(np.sqrt((cross**2).sum()))

    def gain_curvature(self, x: np.ndarray) -> float:
        """d' F d along the gain of one class, mean over the classes. Without norm: along the length of a row
        of W, which is what a gain stands for."""
        p = softmax(self.logits(x))
        n = self.normalised(self.products(x))
        if self.norm == NONE:
            n = n / self.lengths()
        return float((p * (1 - p) * n**2).mean())


def softmax(logits: np.ndarray) -> np.ndarray:
    """(N, C) -> (N, C)."""
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _variance(p: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """Of the values ``moved`` (N, C) under the probabilities p (N, C): (N,). The mean is taken off first: a
    difference of squares would lose what is small."""
    apart = moved - np.einsum("nc,nc->n", p, moved)[:, None]
    return np.asarray(np.einsum("nc,nc->n", p, apart**2))
