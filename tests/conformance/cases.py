"""Cases for the faces of networks, the results that each face must have, and the cases that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from networks import cell_of, only_forward, parts, whole, widths


@dataclass(frozen=True)
class Case:
    """A call of a network. start: the list of initial states, or None. resets: None, or bool (T, B)."""

    make: Any  # returns the network of this case; arguments replace those of its constructor
    x: Any
    start: list[Any] | None
    lengths: Any
    resets: Any
    threads: int

    @cached_property
    def rnn(self):
        return self.make()

    @cached_property
    def batch_first(self):
        return self.make(batch_first=True)

    @property
    def h0(self):
        return None if self.start is None else whole(self.rnn, self.start)

    @property
    def states(self):
        """Returns new arrays of the initial states."""
        lines, batch = self.rnn.num_layers * self.rnn.num_directions, self.x.shape[1]
        zeros = [np.zeros((lines, batch, width), np.float32) for width in widths(self.rnn)]
        return zeros if self.start is None else [s.copy() for s in self.start]

    @property
    def steps(self):
        """Returns the number of steps that each sequence has had since its last reset."""
        at = np.arange(len(self.x))[:, None]
        cut = np.zeros(self.x.shape[:2], bool) if self.resets is None else self.resets & (at < self.lengths)
        return self.lengths - np.where(cut, at, 0).max(0, initial=0)

    @property
    def longest(self):
        return max(self.lengths, default=0)

    def blank(self):
        return np.zeros((*self.x.shape[:2], widths(self.rnn)[0] * self.rnn.num_directions), np.float32)

    def ended(self, y, state):
        return y, parts(self.rnn, state)

    def of(self, rnn, **options):
        """Calls a network, with the case's number of threads unless options have another."""
        return self.ended(
            *rnn(self.x, self.h0, self.lengths, self.resets, **dict(threads=self.threads) | options)
        )


def alone(case, call=None):
    """Computes each part of each sequence, from reset to reset, by a call(x, h0) of its own."""
    rnn, y, ends = case.rnn, case.blank(), case.states
    call = call or partial(rnn, threads=1)
    back = np.resize([rnn.reverse, True], rnn.num_layers * rnn.num_directions)  # lines that begin at the end
    back = back if rnn.bidirectional else np.full_like(back, rnn.reverse)
    for b, n in enumerate(case.lengths):
        cut = np.zeros(n, bool) if case.resets is None else case.resets[:n, b]
        first = [0, *(np.flatnonzero(cut[1:]) + 1)]
        for k, (t, end) in enumerate(zip(first, [*first[1:], n], strict=True)):
            last = end == n
            zero = np.where(back, not last, k > 0 or cut[:1].any())
            own = [np.where(zero[:, None, None], np.float32(0), s[:, b : b + 1]) for s in case.states]
            y[t:end, b : b + 1], state = call(case.x[t:end, b : b + 1], whole(rnn, own))
            for s, e in zip(ends, parts(rnn, state), strict=True):
                lines = np.where(back, k == 0, last)
                s[lines, b] = e[lines, 0]
    return y, ends


# --- which face takes which case ----------------------------------------------------------------------------


def anything(case):
    return True


def is_long(case):
    """Has enough work for four threads. Most faces do not take such a case, because it takes long."""
    return case.x.shape[:2] == (32, 70)


def is_short(case):
    return not is_long(case)


def streams(case):
    return only_forward(case.rnn) and case.x.shape[1] > 0


def short_streams(case):
    return streams(case) and is_short(case)


def is_float32(case):
    return case.rnn.dtype == "float32" and is_short(case)


def in_torch(case):
    return is_float32(case) and not np.any(case.rnn.zoneout)


def trains(case):
    """Training draws zoneout's masks, and normalises with the statistics of the batch."""
    return in_torch(case) and case.rnn.known_steps is None


def in_torch_nn(case):
    """torch.nn has neither norms nor other cells."""
    own = dict(norm=None, reverse=False, num_heads=1, reset_after=True, gate_activation="sigmoid")
    own |= dict(peepholes=False)
    own |= dict(nonlinearity="tanh") if cell_of(case.rnn) == "GRU" else {}
    plain = all(getattr(case.rnn, name, value) == value for name, value in own.items())
    return plain and cell_of(case.rnn) in ("RNN", "LSTM", "GRU") and in_torch(case) and case.x.size > 0


def is_node(case):
    """Cases without resets and zoneout, of networks that to_onnx writes as nodes RNN, LSTM or GRU."""
    plain = cell_of(case.rnn) in ("RNN", "LSTM", "GRU") and case.rnn.norm is None and in_torch(case)
    return plain and case.resets is None and not getattr(case.rnn, "proj_size", 0)


def is_read(case):
    """One setting of each form of the network and the file, because reading takes long."""
    own = case.rnn.num_layers > 1 or case.rnn.reverse or not case.rnn.bias or np.any(case.rnn.zoneout)
    return is_float32(case) and case.x.size > 0 and own


def is_in_runtime(case):
    """A session converts other networks to calls, without resets and batch norm."""
    return is_node(case) or (is_read(case) and case.resets is None and case.rnn.known_steps is None)


def packs(case):
    """torch refuses to pack a sequence of no step."""
    return case.resets is None and case.x.size > 0 and bool(case.lengths.all())


def has_heads(case):
    """An SLSTM has a norm for each head. Each head of int8 has a scale."""
    return getattr(case.rnn, "num_heads", 1) > 1 and cell_of(case.rnn) != "SLSTM" and is_float32(case)


def is_reversible(case):
    """Masks of zoneout belong to steps, so they differ in a reversed sequence."""
    other = case.rnn.bidirectional or np.any(case.rnn.zoneout) or case.resets is not None
    return is_short(case) and not other


def is_full(case):
    return case.resets is None and bool((case.lengths == len(case.x)).all())
