"""Cells of lnrnn that a module might be, with their parameters put together from its pieces, and how far each
is from its outputs. The equations are the reference's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...reference.cells import GRU_SITES, LSTM_SITES, RNN_SITES, gru_step, lstm_step, rnn_step, sum_of_sides
from ...reference.time_loop import Norms, Site
from ...rnn.architecture import vectors
from ...rnn.cells import Cell
from ...rnn.specs import LayerNormSpec
from ..weights import Array, Weights
from .blocks import Parts, Piece, largest
from .runs import Limit

Roles = Mapping[str, Mapping[int, Sequence[Piece]]]  # lnrnn's name of a parameter -> gate -> what is there


@dataclass(frozen=True)
class Trial:
    """One draw of the parameters. x_, h_ (T, B, gates, H): the products, of x and of the outputs before each
    step. y (T, B, H): the module's outputs."""

    values: Mapping[str, Array]
    x_: Array
    h_: Array
    y: Array


def trial(parts: Parts, values: Mapping[str, Array], x: Array, y: Array) -> Trial:
    before = np.concatenate([np.zeros_like(y[:1]), y[:-1]])

    def products(pieces: Sequence[Piece], a: Array) -> Array:
        rows = a.reshape(-1, a.shape[-1])  # of one product each: of three axes NumPy's is slow
        return np.stack([(rows @ p.of(values).T).reshape(*a.shape[:2], -1) for p in pieces], 2)

    return Trial(values, products(parts.x, x), products(parts.h, before), y)


@dataclass(frozen=True)
class Equation:
    """A cell. order: the module's gates in lnrnn's order. flipped: whether its update gate says how much of h
    is new. offsets: what the forward adds to each gate, in lnrnn's order."""

    cell: Cell
    norm: LayerNormSpec | None
    order: tuple[int, ...]
    roles: Roles
    flipped: bool = False
    nonlinearity: str | None = None
    offsets: tuple[float, ...] = ()

    def vectors(self, values: Mapping[str, Array], H: int) -> dict[str, Array]:
        """lnrnn's gains and biases, without suffix."""
        found = {}
        for name in vectors(self.cell, H, self.norm, True):
            gates = (0,) if name.endswith("_c") else self.order
            blocks = np.full((len(gates), H), float(name.startswith("gain")))
            for at, gate in enumerate(gates):
                pieces = [p.of(values) for p in self.roles.get(name, {}).get(gate, ())]
                if pieces:
                    blocks[at] = np.sum(pieces, 0)
                if self.flipped and at == 1 and not name.startswith("inner"):
                    blocks[at] *= -1
            found[name] = blocks.reshape(-1)
        if self.offsets:
            found["bias" if "bias" in found else "bias_ih"] += np.repeat(self.offsets, H)
        return found

    def weights(self, parts: Parts, values: Mapping[str, Array]) -> Weights:
        """lnrnn's parameters."""
        sides = {"weight_ih": parts.x, "weight_hh": parts.h}
        found = {}
        for name, pieces in sides.items():
            blocks = [pieces[gate].of(values) for gate in self.order]
            if self.flipped and self.norm is None:
                blocks[1] = -blocks[1]
            found[name] = np.concatenate(blocks)
        found |= self.vectors(values, len(parts.x[0].rows))
        bias = any(v.any() for name, v in found.items() if name.startswith("bias"))
        if not bias:
            found = {name: v for name, v in found.items() if not name.startswith("bias")}
        return Weights(self.cell.name, self.norm, bias, found, self.nonlinearity)

    def outputs(self, trial: Trial, steps: int, rows: slice = slice(None)) -> Array:
        """y (steps, B, H), each step with the module's own outputs before it."""
        norms, x_, h_ = self._products(trial, steps, rows)
        step, _, options = self._step()
        state = (np.zeros_like(trial.y[0, rows]),) * self.cell.states
        found = []
        for t in range(steps):
            state, _ = step(options, x_[t], h_[t], state, norms.forward)
            found.append(state[0])
            state = (trial.y[t, rows], *state[1:])
        return np.array(found)

    def lstm_distances(self, trial: Trial, steps: int, orders: Array) -> Array:
        """The largest difference from the module's outputs of the first sequence, had the gates each of these
        orders (n, 4): what enters them is the same but for its order."""
        norms, x_, h_ = self._products(trial, steps, slice(0, 1))
        _, _, options = self._step()
        B, H, n = 1, trial.y.shape[-1], len(orders)
        found, c = np.zeros(n), np.zeros((n * B, H))
        for t in range(steps):
            a = sum_of_sides(options, x_[t], h_[t], norms.forward).reshape(B, 4, H)[:, orders]
            a = a.swapaxes(0, 1).reshape(n * B, 4 * H)
            joint = {**options, "placement": "joint"}
            (h, c), _ = lstm_step(
                joint, a, np.zeros(1), (c, c), lambda side, v: norms.forward("c", v) if side == "c" else v
            )
            found = np.maximum(found, np.abs(h.reshape(n, B, H) - trial.y[t, :1]).max((1, 2)))
        return found

    def _products(self, trial: Trial, steps: int, rows: slice) -> tuple[Norms, Array, Array]:
        """The cell's norms, and x_ and h_ (steps, B, gates * H) as its step takes them."""
        p = self.vectors(trial.values, trial.y.shape[-1])
        if self.cell.gates == 1 and self.norm is None:
            p = {"bias": p["bias_ih"] + p["bias_hh"]}
        kind, eps = (None, 0.0) if self.norm is None else ("layer", self.norm.eps)
        norms = Norms(self._step()[1], kind, eps, p, {})
        x_, h_ = (a[:steps, rows][:, :, list(self.order)] for a in (trial.x_, trial.h_))
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


def distance(equation: Equation, trials: Sequence[Trial], steps: int | None = None) -> float:
    """The largest difference from the module's outputs."""
    return max(largest(equation.outputs(t, steps or len(t.y)) - t.y[:steps]) for t in trials)


def fitted(equation: Equation, trials: Sequence[Trial], good: float, limit: Limit) -> tuple[Equation, float]:
    """The equation with the offsets and the eps that bring it nearest to the module's outputs, by least
    squares over the first sequence, and its distance."""
    G, free = equation.cell.gates, equation.norm is not None
    rows = slice(0, 1)

    def at(p: Array) -> Equation:
        norm = equation.norm and replace(equation.norm, eps=float(p[G]))
        return replace(equation, offsets=tuple(map(float, p[:G])), norm=norm)

    def residual(p: Array) -> Array:
        limit.look()
        e = at(p)
        return np.concatenate([(e.outputs(t, len(t.y), rows) - t.y[:, rows]).ravel() for t in trials])

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
            tried[G] = max(tried[G], 1e-30)  # 0 divides by 0 where h is 0
            new = residual(tried)
            if new @ new < r @ r:
                p, r, damping = tried, new, max(damping / 30, 1e-12)
                break
            damping *= 10
        else:
            break
    found = at(p)
    return found, distance(found, trials)
