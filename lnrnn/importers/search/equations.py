"""The cells of lnrnn.reference with a module's parameters, and their distance from the module's outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...reference.cells import LSTM_SITES, RNN_SITES, lstm_step, rnn_step, sum_of_sides
from ...reference.gru import GRU_SITES, gru_step
from ...reference.time_loop import Norms, Site
from ...rnn.architecture import vectors
from ...rnn.cells import Cell
from ...rnn.specs import LayerNormSpec
from ..weights import Array, Weights
from .blocks import Parts, Piece, largest
from .runs import Limit

Roles = Mapping[str, Mapping[int, Sequence[Piece]]]  # lnrnn's name of a parameter -> gate -> its pieces


@dataclass(frozen=True)
class Sample:
    """Parameters, and the module's outputs with these parameters.

    values: the parameters by name. x_, h_: the products of the matrices with x and with h before each step,
    (T, B, gates, H). y: the module's outputs, (T, B, H).
    """

    values: Mapping[str, Array]
    x_: Array
    h_: Array
    y: Array


def sample(parts: Parts, values: Mapping[str, Array], x: Array, y: Array) -> Sample:
    before = np.concatenate([np.zeros_like(y[:1]), y[:-1]])

    def products(pieces: Sequence[Piece], a: Array) -> Array:
        rows = a.reshape(-1, a.shape[-1])  # NumPy's product is slow with three axes
        return np.stack([(rows @ p.of(values).T).reshape(*a.shape[:2], -1) for p in pieces], 2)

    return Sample(values, products(parts.x, x), products(parts.h, before), y)


@dataclass(frozen=True)
class Equation:
    """A cell of lnrnn, and the pieces of a module's parameters that become the cell's.

    order: the numbers of the module's gates, in lnrnn's order. flipped: whether a GRU's update gate
    multiplies the new state, not h. offsets: constants that forward adds to each gate, in lnrnn's order.
    """

    cell: Cell
    norm: LayerNormSpec | None
    order: tuple[int, ...]
    roles: Roles
    flipped: bool = False
    nonlinearity: str | None = None
    offsets: tuple[float, ...] = ()

    def vectors(self, values: Mapping[str, Array], H: int) -> dict[str, Array]:
        """Returns lnrnn's gains and biases, by name without suffix, from the module's parameters."""
        result = {}
        for name in vectors(self.cell, H, self.norm, True):
            gates = (0,) if name.endswith("_c") else self.order
            blocks = np.full((len(gates), H), float(name.startswith("gain")))
            for at, gate in enumerate(gates):
                pieces = [p.of(values) for p in self.roles.get(name, {}).get(gate, ())]
                if pieces:
                    blocks[at] = np.sum(pieces, 0)
                if self.flipped and at == 1 and not name.startswith("inner"):
                    blocks[at] *= -1
            result[name] = blocks.reshape(-1)
        if self.offsets:
            result["bias" if "bias" in result else "bias_ih"] += np.repeat(self.offsets, H)
        return result

    def weights(self, parts: Parts, values: Mapping[str, Array]) -> Weights:
        """Returns all of lnrnn's parameters, from the module's parameters."""
        sides = {"weight_ih": parts.x, "weight_hh": parts.h}
        result = {}
        for name, pieces in sides.items():
            blocks = [pieces[gate].of(values) for gate in self.order]
            if self.flipped and self.norm is None:
                blocks[1] = -blocks[1]
            result[name] = np.concatenate(blocks)
        result |= self.vectors(values, len(parts.x[0].rows))
        bias = any(self.offsets) or any(name.startswith("bias") for name in self.roles)
        if not bias:
            result = {name: v for name, v in result.items() if not name.startswith("bias")}
        return Weights(self.cell.name, self.norm, bias, result, self.nonlinearity)

    def outputs(self, sample: Sample, steps: int, rows: slice = slice(None)) -> Array:
        """Returns y (steps, B, H) of this cell. Each step reads the old h from the module's outputs."""
        norms, x_, h_ = self._products(sample, steps, rows)
        step, _, options = self._step()
        state = (np.zeros_like(sample.y[0, rows]),) * self.cell.states
        result = []
        for t in range(steps):
            state, _ = step(options, x_[t], h_[t], state, norms.forward)
            result.append(state[0])
            state = (sample.y[t, rows], *state[1:])
        return np.array(result)

    def lstm_distances(self, sample: Sample, steps: int, orders: Array) -> Array:
        """Returns the largest difference (n,) from the first sequence's y, for orders (n, 4) of the gates.

        All orders have the same pre-activations, which are computed once.
        """
        norms, x_, h_ = self._products(sample, steps, slice(0, 1))
        _, _, options = self._step()
        B, H, n = 1, sample.y.shape[-1], len(orders)
        result, c = np.zeros(n), np.zeros((n * B, H))
        for t in range(steps):
            a = sum_of_sides(options, x_[t], h_[t], norms.forward).reshape(B, 4, H)[:, orders]
            a = a.swapaxes(0, 1).reshape(n * B, 4 * H)
            joint = {**options, "placement": "joint"}
            (h, c), _ = lstm_step(
                joint, a, np.zeros(1), (c, c), lambda side, v: norms.forward("c", v) if side == "c" else v
            )
            result = np.maximum(result, np.abs(h.reshape(n, B, H) - sample.y[t, :1]).max((1, 2)))
        return result

    def _products(self, sample: Sample, steps: int, rows: slice) -> tuple[Norms, Array, Array]:
        """Returns the cell's norms, and x_ and h_ (steps, B, gates * H) for its step."""
        p = self.vectors(sample.values, sample.y.shape[-1])
        if self.cell.gates == 1 and self.norm is None:
            p = {"bias": p["bias_ih"] + p["bias_hh"]}
        kind, eps = (None, 0.0) if self.norm is None else ("layer", self.norm.eps)
        norms = Norms(self._step()[1], kind, eps, p, {})
        x_, h_ = (a[:steps, rows][:, :, list(self.order)] for a in (sample.x_, sample.h_))
        if self.flipped and self.norm is None:
            x_[:, :, 1] *= -1
            h_[:, :, 1] *= -1
        x_, h_ = (a.reshape(*a.shape[:2], -1) for a in (x_, h_))
        if self.norm is not None and self.norm.inner_bias:
            x_, h_ = x_ + p["inner_bias_ih"], h_ + p["inner_bias_hh"]
        return norms, x_, h_

    def _step(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        norm = self.norm
        placement = norm.placement if norm else None
        if self.cell.name == "RNN":
            placement = placement or "joint"
            return rnn_step, RNN_SITES[placement], {"placement": placement, "nonlinearity": self.nonlinearity}
        options = {"placement": placement or "split", "cell": norm.cell if norm else None}
        if self.cell.name == "LSTM":
            sites = dict(LSTM_SITES[placement])
            if norm and norm.cell:
                sites["c"] = Site("gain_c", "bias_c")
            return lstm_step, sites, options
        return gru_step, GRU_SITES["all" if norm and norm.span else placement], options


def distance(equation: Equation, samples: Sequence[Sample], steps: int | None = None) -> float:
    """Returns the largest difference of the equation's outputs from the module's outputs."""
    return max(largest(equation.outputs(t, steps or len(t.y)) - t.y[:steps]) for t in samples)


def fitted(
    equation: Equation, samples: Sequence[Sample], good: float, limit: Limit
) -> tuple[Equation, float]:
    """Fits the equation's offsets and eps to the module's outputs. Returns the equation and its distance.

    The fit is a least-squares fit to the first sequence, by the method of Levenberg and Marquardt.
    """
    G, free = equation.cell.gates, equation.norm is not None
    rows = slice(0, 1)

    def at(p: Array) -> Equation:
        norm = equation.norm and replace(equation.norm, eps=float(p[G]))
        return replace(equation, offsets=tuple(map(float, p[:G])), norm=norm)

    def residual(p: Array) -> Array:
        limit.look()
        e = at(p)
        return np.concatenate([(e.outputs(t, len(t.y), rows) - t.y[:, rows]).ravel() for t in samples])

    p = np.array([*(equation.offsets or [0.0] * G), equation.norm.eps if equation.norm else 0.0])
    r = residual(p)
    damping = 1e-3
    for iteration in range(12):
        if largest(r) <= good or largest(r) > (np.inf, np.inf, np.inf, 0.1, 1e-2)[min(iteration, 4)]:
            break
        moves = np.diag([1e-6] * G + [1e-7])[: G + free]
        J = np.stack([(residual(p + move) - r) / move.max() for move in moves], 1)
        scale = np.sqrt((J * J).sum(0)) + 1e-300
        J = J / scale
        while damping < 1e6:
            move = np.linalg.solve(J.T @ J + damping * np.eye(J.shape[1]), -J.T @ r) / scale
            tried = p.copy()
            tried[: G + free] += move
            tried[G] = max(tried[G], 1e-30)  # with h = 0, eps = 0 would divide by 0
            new = residual(tried)
            if new @ new < r @ r:
                p, r, damping = tried, new, max(damping / 30, 1e-12)
                break
            damping *= 10
        else:
            break
    result = at(p)
    return result, distance(result, samples)
