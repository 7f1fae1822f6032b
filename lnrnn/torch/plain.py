"""The engine "torch": recurrent layers as torch operations, one time step after another.

It runs on any device and dtype, and has derivatives of any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from ..rnn.architecture import Architecture
from ..rnn.batches import as_caller, checked_batch, time_first
from ..rnn.functional import divided
from ..rnn.rows import FIRST, LENGTH, SEQUENCE, STATE, padded, reset
from ..rnn.specs import BatchNormSpec, LayerNormSpec, Overrun, RMSNormSpec
from ..rnn.statistics import StepStatistics, blank, named_shapes, refuse_beyond

Tensor = torch.Tensor
Array = np.ndarray


def run(
    arch: Architecture, x: Tensor, start: Sequence[Tensor], lengths: Any, parameters: Mapping[str, Tensor],
    statistics: Mapping[str, Tensor], overrun: Overrun | None, training: bool,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:  # fmt: skip
    """Runs x (T, B, D), or (B, T, D) with batch_first. Returns (y with x's axes, last states, statistics).

    start: [h0] or [h0, c0], (layers * directions, B, *) each. lengths: see rnn/functional.py. parameters,
    statistics: by name. The returned list has the batch's statistics, for operator.update_statistics. It
    is empty without batch norm and in evaluation.
    """
    lengths = lengths.cpu().numpy() if isinstance(lengths, Tensor) else lengths
    call = partial(
        run, arch, parameters=parameters, statistics=statistics, overrun=overrun, training=training
    )
    if x.dim() == 2:
        return _packed(arch, x, start, lengths, call)
    lengths, resets = divided(lengths)
    if resets is not None:
        return _in_parts(arch, x, start, lengths, resets, call)
    without = np.empty((*x.shape[:-1], 0), np.float32)  # an array with x's shape for checked_batch
    _, ends, _ = checked_batch(without, lengths, 0, arch.batch_first)
    x = time_first(x, False, arch.batch_first)
    T, B, _ = x.shape
    learning = training and arch.batch_norm is not None
    if arch.batch_norm is not None:
        full = np.full(B, T) if ends is None else ends
        table = padded(full, T, B).table
        if learning:
            refuse_beyond(arch.batch_norm.max_steps, table)
        else:
            step_statistics(arch, "_l0", statistics).refuse_overrun(table, overrun)
        ends = full if learning or overrun == "batch" else ends
    alive, steps = None, len(x)  # without lengths no mask, so that exported graphs take any batch size
    times = torch.arange(steps, device=x.device)[:, None, None]
    backwards = times.flip(0)
    if ends is not None:
        own_lengths, steps = torch.from_numpy(ends[:, None]).to(x.device), int(ends.max(initial=0))
        alive = times < own_lengths  # (T, B, 1)
        backwards = torch.where(alive, own_lengths - 1 - times, times)
        x = torch.where(alive, x, 0)  # padding may contain NaN
    all_ends, norms = [], []
    for k, suffix in enumerate(arch.suffixes):
        reverse = arch.reversed[k]
        if k % arch.directions == 0:
            inputs, outputs = x, []
        norms.append(Norms(arch, suffix, parameters, statistics, overrun, alive, learning))
        own = inputs.gather(0, backwards.expand_as(inputs)) if reverse else inputs
        y, end = _layer(arch, own, [s[k] for s in start], norms[-1], steps)
        outputs.append(y.gather(0, backwards.expand_as(y)) if reverse else y)
        all_ends.append(end)
        x = torch.cat(outputs, -1)
    last = [torch.stack(part) for part in zip(*all_ends, strict=True)]
    seen = [torch.from_numpy(array) for norm in norms for array in norm.arrays()] if learning else []
    return as_caller(x, False, arch.batch_first), last, seen


def _in_parts(
    arch: Architecture, x: Tensor, start: Sequence[Tensor], lengths: Any, resets: Array,
    call: Callable[..., tuple[Tensor, list[Tensor], list[Tensor]]],
) -> tuple[Tensor, list[Tensor], list[Tensor]]:  # fmt: skip
    """Computes `run` with resets (T, B): each part of a sequence between resets is a sequence for `call`."""
    x = time_first(x, False, arch.batch_first)
    T, B, _ = x.shape
    rows = reset(resets, lengths, T, B)
    parts, longest = rows.parts, rows.longest
    if parts is None:
        raise AssertionError("internal error: rows with resets have no parts")
    table = rows.table[np.argsort(rows.table[:, STATE])]
    sequence, first, length = table[:, SEQUENCE], table[:, FIRST], table[:, LENGTH]

    def tensor(array: Array) -> Tensor:
        return torch.from_numpy(array).to(x.device)

    step = np.minimum(first + np.arange(longest)[:, None], T - 1)
    own = x[tensor(step), tensor(sequence)]  # (longest, parts, D)
    given = []
    for reverse in arch.reversed:
        begins = np.zeros(parts.count, bool)
        begins[parts.begun(reverse)] = True
        given.append(begins if reverse else begins & ~parts.fresh[sequence])
    start = [torch.where(tensor(np.stack(given))[..., None], s[:, tensor(sequence)], 0) for s in start]
    y, end, seen = call(as_caller(own, False, arch.batch_first), start, length)
    y = time_first(y, False, arch.batch_first)
    # For each of the caller's steps: its part (T, B), and its number within the part.
    cut = np.zeros((B, T), bool)
    cut[sequence[length > 0], first[length > 0]] = True
    part = parts.first + np.maximum(cut.cumsum(1).T - 1, 0)
    within = np.arange(T)[:, None] - first[part]
    alive = within < length[part]
    blank_step = y.new_zeros(1, *y.shape[1:])
    y = torch.cat([y, blank_step])[tensor(np.where(alive, within, longest)), tensor(part)]
    last = [
        torch.stack([e[k, tensor(parts.reached(reverse))] for k, reverse in enumerate(arch.reversed)])
        for e in end
    ]
    return as_caller(y, False, arch.batch_first), last, seen


def _packed(
    arch: Architecture, x: Tensor, start: Sequence[Tensor], table: Any,
    call: Callable[..., tuple[Tensor, list[Tensor], list[Tensor]]],
) -> tuple[Tensor, list[Tensor], list[Tensor]]:  # fmt: skip
    """Computes `run` for PackedSequence data x (N, D). table: from packed_rows. call: `run` for padded x."""
    lengths, order = table[:, LENGTH], table[:, STATE]
    alive = np.arange(lengths[0])[:, None] < lengths  # (T, B)
    place = np.zeros(alive.shape, np.int64)
    place[alive] = np.arange(len(x))
    padded, alive, back = (torch.from_numpy(a).to(x.device) for a in (place, alive, np.argsort(order)))
    start = [s[:, torch.from_numpy(order).to(x.device)] for s in start]
    y, end, seen = call(as_caller(x[padded], False, arch.batch_first), start, lengths)
    return time_first(y, False, arch.batch_first)[alive], [e[:, back] for e in end], seen


def step_statistics(arch: Architecture, suffix: str, statistics: Mapping[str, Tensor]) -> StepStatistics:
    """Returns copies of the statistics of one layer and direction, in float64."""
    return StepStatistics(
        {
            name: statistics[name + suffix].cpu().numpy().astype(np.int64 if name == "count" else float)
            for name in named_shapes(arch.sides, 0)
        }
    )


class Norms:
    """The norms and biases of one layer and direction. It is called for each side, see Architecture.

    For batch norm in training, `seen` collects the batch's statistics.
    """

    def __init__(
        self, arch: Architecture, suffix: str, parameters: Mapping[str, Tensor],
        statistics: Mapping[str, Tensor], overrun: Overrun | None, alive: Tensor | None, learning: bool,
    ) -> None:  # fmt: skip
        cut = len(suffix)
        self.arch, self.spec, self.sites = arch, arch.norm, arch.sites
        self.parameters = {name[:-cut]: p for name, p in parameters.items() if name.endswith(suffix)}
        self.buffers = {name[:-cut]: b for name, b in statistics.items() if name.endswith(suffix)}
        self.overrun, self.known = overrun, 0
        if arch.sides and not learning:
            self.known = int((self.buffers["count"] > 0).sum())
        self.alive = alive  # (T, B, 1), or None
        self.learning, self.step, self.seen = learning, 0, {}
        if alive is not None and learning:
            self.seen = blank(arch.sides, len(alive))
            self.seen["count"][:] = alive.sum((1, 2)).cpu().numpy()

    def arrays(self) -> list[np.ndarray]:
        """Returns the batch's statistics in the order of statistics.named_shapes."""
        return list(self.seen.values())

    def __call__(self, side: str, a: Tensor, rows: slice = slice(None)) -> Tensor:
        """Returns a (B, width) normalised, scaled and shifted. side: position. rows: of gain and bias."""
        names, H = self.sites.get(side, {}), self.arch.hidden_size
        of_rows = F.rms_norm if isinstance(self.spec, RMSNormSpec) else F.layer_norm
        if isinstance(self.spec, BatchNormSpec):
            a = self._over_batch(names, a, self.spec.eps, rows)
        elif isinstance(self.spec, LayerNormSpec) and side == "y":
            size = self.arch.h_width // self.arch.num_heads
            a = of_rows(a.reshape(-1, self.arch.num_heads, size), (size,), eps=self.spec.eps).flatten(-2)
        elif isinstance(self.spec, LayerNormSpec) and self.spec.placement != "output":
            spans: tuple[int, ...] = (int(a.shape[-1]) // H,)
            if self.spec.placement == "gate":
                spans = (1,) * spans[0]
            elif (
                self.spec.placement == "split" and self.spec.span is None and spans[0] == self.arch.cell.gates
            ):
                spans = self.arch.cell.spans
            sizes = [gates * H for gates in spans]
            parts = zip(torch.split(a, sizes, -1), sizes, strict=True)
            a = torch.cat([of_rows(part, (size,), eps=self.spec.eps) for part, size in parts], -1)
        if "gain" in names:
            a = a * self.parameters[names["gain"]][rows]
        if "bias" in names:
            a = a + self.parameters[names["bias"]][rows]
        return a

    def _over_batch(self, names: Mapping[str, str], a: Tensor, eps: float, rows: slice) -> Tensor:
        t, own = self.step, (names["mean"], names["variance"])
        if self.alive is not None and (self.learning or (t >= self.known and self.overrun == "batch")):
            alive, n = self.alive[t], self.alive[t].sum()
            mean = torch.where(alive, a, 0).sum(0) / n
            var = torch.where(alive, a - mean, 0).square().sum(0) / n
            if self.learning:
                for name, value in zip(own, (mean, var), strict=True):
                    self.seen[name][t, rows] = value.detach().cpu()
        else:
            running = (self.buffers[name][:, rows] for name in own)
            if t < self.known:
                mean, var = (b[t] for b in running)
            elif self.overrun == "last":
                mean, var = (b[self.known - 1] for b in running)
            else:
                mean, var = (b[: self.known].mean(0) for b in running)
        return (a - mean) / torch.sqrt(var + eps)


def _layer(
    arch: Architecture, x: Tensor, state: list[Tensor], norms: Norms, steps: int
) -> tuple[Tensor, list[Tensor]]:
    """Runs one layer and direction on x (T, B, D), already reversed if needed. Returns y and last states."""
    p, step = norms.parameters, _STEPS[arch.cell.name]
    x_ = F.linear(x, p["weight_ih"], p.get("inner_bias_ih"))
    outputs, alive = [], norms.alive
    for t in range(steps):
        norms.step = t
        if arch.reset_after:
            new = step(arch, x_[t], _hidden_product(arch, p, state[0]), state, norms)
        else:
            new = _gru_reset(arch, x_[t], state, norms)
        if "weight_hr" in p:
            new[0] = F.linear(new[0], p["weight_hr"])
        if alive is not None:
            new = [torch.where(alive[t], n, old) for n, old in zip(new, state, strict=True)]
        state, y = new, norms("y", new[0]) if "y" in norms.sites else new[0]
        outputs.append((y if alive is None else torch.where(alive[t], y, 0))[None])
    blank_steps = x.new_zeros(len(x) - steps, x.shape[1], arch.h_width)
    return torch.cat([*outputs, blank_steps]), state


def _hidden_product(
    arch: Architecture, p: Mapping[str, Tensor], h: Tensor, rows: slice = slice(None)
) -> Tensor:
    """Returns W_hh h + inner_bias_hh, (B, gates * H), for h (B, H). rows: only these rows of W_hh."""
    weight, bias = p["weight_hh"][rows], p.get("inner_bias_hh")
    bias = None if bias is None else bias[rows]
    if arch.num_heads == 1:
        return F.linear(h, weight, bias)
    units = weight.shape[1]
    blocks = weight.view(-1, arch.num_heads, units, units)
    h_ = torch.einsum("bhi,ghoi->bgho", h.view(-1, arch.num_heads, units), blocks).flatten(1)
    return h_ if bias is None else h_ + bias


# Functions for one step of a cell. x_, h_: products (B, gates * H). state: [h] or [h, c].
# They return the next state.


def _sum(x_: Tensor, h_: Tensor, norm: Norms) -> Tensor:
    """Returns the pre-activations of RNN and LSTM: norm(x_ + h_), or norm(x_) + norm(h_)."""
    return norm("", x_ + h_) if "" in norm.sites else norm("ih", x_) + norm("hh", h_)


def _activated(arch: Architecture, a: Tensor) -> Tensor:
    result: Tensor = a if arch.nonlinearity == "identity" else getattr(F, arch.nonlinearity)(a)
    return result


def _gates(arch: Architecture, a: Tensor) -> Tensor:
    return F.hardsigmoid(a) if arch.gate_activation == "hard_sigmoid" else torch.sigmoid(a)


def _rnn(arch: Architecture, x_: Tensor, h_: Tensor, state: list[Tensor], norm: Norms) -> list[Tensor]:
    return [_activated(arch, _sum(x_, h_, norm))]


def _lstm(arch: Architecture, x_: Tensor, h_: Tensor, state: list[Tensor], norm: Norms) -> list[Tensor]:
    i, f, g, o = _sum(x_, h_, norm).chunk(4, -1)
    if arch.peepholes:
        p_i, p_f, p_o = norm.parameters["peephole"].chunk(3)
        i, f = i + p_i * state[1], f + p_f * state[1]
    c = _gates(arch, f) * state[1] + _gates(arch, i) * torch.tanh(g)
    seen = norm("c", c) if "c" in norm.sites else c
    carry = isinstance(arch.norm, LayerNormSpec) and arch.norm.cell == "carry"
    o = o + p_o * c if arch.peepholes else o
    return [_gates(arch, o) * torch.tanh(seen), seen if carry else c]


def _gru(arch: Architecture, x_: Tensor, h_: Tensor, state: list[Tensor], norm: Norms) -> list[Tensor]:
    H = arch.hidden_size
    place = arch.norm.placement if isinstance(arch.norm, LayerNormSpec) else "split"
    if place == "joint":
        a_rz, a_n = torch.split(norm("", x_ + h_), [2 * H, H], -1)
        r, z = _gates(arch, a_rz).chunk(2, -1)
        n = _activated(arch, r * a_n)
    elif place == "gate":
        (x_rz, x_n), (h_rz, h_n) = torch.split(x_, [2 * H, H], -1), torch.split(h_, [2 * H, H], -1)
        r, z = _gates(arch, norm("", x_rz + h_rz, slice(2 * H))).chunk(2, -1)
        n = _activated(arch, norm("", x_n + r * h_n, slice(2 * H, None)))
    else:
        X, Y = norm("ih", x_), norm("hh", h_)
        (x_rz, x_n), (h_rz, h_n) = torch.split(X, [2 * H, H], -1), torch.split(Y, [2 * H, H], -1)
        r, z = _gates(arch, x_rz + h_rz).chunk(2, -1)
        n = _activated(arch, x_n + r * h_n)
    return [(1 - z) * n + z * state[0]]


def _slstm(arch: Architecture, x_: Tensor, h_: Tensor, state: list[Tensor], norm: Norms) -> list[Tensor]:
    i, f, z, o = _sum(x_, h_, norm).chunk(4, -1)
    _, c, n, m = state
    kept = (f if arch.exp_forget else F.logsigmoid(f)) + m
    fresh = n == 0  # then no gradient flows to c and m
    new_m = torch.where(fresh, i, torch.maximum(i, kept))
    i_gate = torch.exp(i - new_m)
    f_gate = torch.where(fresh, 0, torch.exp(torch.where(fresh, 0, kept - new_m)))
    new_c = f_gate * torch.where(fresh, 0, c) + i_gate * torch.tanh(z)
    new_n = f_gate * n + i_gate
    new = [torch.sigmoid(o) * new_c / new_n, new_c, new_n, new_m]
    if arch.state_dtype == "bfloat16":
        return [s + (s.detach().to(torch.bfloat16).to(s.dtype) - s.detach()) for s in new]
    return new


def _gru_reset(arch: Architecture, x_: Tensor, state: list[Tensor], norm: Norms) -> list[Tensor]:
    """Computes a GRU step with reset_after=False: the reset gate multiplies h before W_hh."""
    H, p = arch.hidden_size, norm.parameters
    rz, last = slice(2 * H), slice(2 * H, None)
    x_rz, x_n = torch.split(norm("ih", x_), [2 * H, H], -1)
    r, z = _gates(arch, x_rz + norm("hh", _hidden_product(arch, p, state[0], rz), rz)).chunk(2, -1)
    n = _activated(arch, x_n + norm("hh", _hidden_product(arch, p, r * state[0], last), last))
    return [(1 - z) * n + z * state[0]]


def _ligru(arch: Architecture, x_: Tensor, h_: Tensor, state: list[Tensor], norm: Norms) -> list[Tensor]:
    z, n = (norm("ih", x_) + h_ if list(norm.sites) == ["ih"] else _sum(x_, h_, norm)).chunk(2, -1)
    z, n = torch.sigmoid(z), _activated(arch, n)
    return [(1 - z) * n + z * state[0]]


_STEPS = {"RNN": _rnn, "LSTM": _lstm, "GRU": _gru, "LiGRU": _ligru, "SLSTM": _slstm}
