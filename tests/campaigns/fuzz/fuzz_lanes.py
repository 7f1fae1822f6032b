"""Lanes of a stream in every company and order, resets and ragged arrays: to the bit, against each sequence,
or part of one between two resets, by itself."""

from __future__ import annotations

import pickle

import numpy as np

import lnrnn
from fuzz_draw import arranged, caches, chance, inputs, lengths, network, pick
from fuzz_networks import described, equal
from helpers import using_caches
from networks import drawn_state, normal, parts, taken, whole

KNOWN = 4
LONGEST = 9  # steps of a lane before it is reset


def case(rng, judge) -> None:
    rnn = network(rng, known=KNOWN, stream=chance(rng, 0.6), most_layers=3)
    if rnn.overrun == "batch":
        rnn.overrun = "last"
    rnn = rnn.to_dtype(pick(rng, ("float32",) * 3 + ("bfloat16", "int8")))
    with using_caches(caches(rng) if chance(rng, 0.3) else None):
        lnrnn.set_num_threads(int(rng.integers(1, 4)))
        if rnn.bidirectional or chance(rng, 0.4):
            calls(rng, judge, rnn)
        else:
            Lanes(rng, judge, rnn).play()


def swapped(rnn, a):
    return a.swapaxes(0, 1) if rnn.batch_first else a


def alone(rnn, x, start):
    """y (T, W) and the state of one sequence x (T, D), in a call of its own."""
    y, h = rnn(swapped(rnn, x[:, None]), start)
    return swapped(rnn, y)[:, 0], h


def calls(rng, judge, rnn) -> None:
    """A call with resets, in parts; and the same sequences one after the other in one array."""
    batch = int(rng.integers(0, 8)) if chance(rng, 0.9) else int(rng.integers(8, 80))
    steps = int(rng.integers(0, KNOWN + 1 if rnn.overrun == "raise" else 10))
    x, ends = inputs(rng, rnn, steps, batch), lengths(rng, steps, batch)
    resets = rng.random((steps, batch)) < rng.random()
    start = drawn_state(rng, rnn, batch)
    what = f"{described(rnn)}, overrun {rnn.overrun}, {steps} steps of {batch}, lengths {ends}"
    y, h = rnn(swapped(rnn, x), start, ends, swapped(rnn, resets))
    y, ends = swapped(rnn, y), np.full(batch, steps) if ends is None else ends
    for b in range(min(batch, 6)):
        at = [0, *(t for t in range(1, ends[b]) if resets[t, b]), int(ends[b])]
        for k, (first, end) in enumerate(zip(at[:-1], at[1:], strict=True)):
            begin = [s.copy() for s in parts(rnn, taken(rnn, start, slice(b, b + 1)))]
            for s in begin:
                for d in range(rnn.num_directions):  # of layer after layer
                    if k < len(at) - 2 if d else k or (ends[b] and resets[0, b]):
                        s[d :: rnn.num_directions] = 0
            want, state = alone(rnn, x[first:end, b], whole(rnn, begin))
            judge.same("resets", y[first:end, b], want, f"{what}, part {k} of sequence {b}")
            for got, s in zip(parts(rnn, h), parts(rnn, state), strict=True):
                for d in range(rnn.num_directions):
                    if k == (0 if d else len(at) - 2):
                        own = slice(d, None, rnn.num_directions)
                        judge.same("resets", got[own, b], s[own, 0], f"{what}, state of {b}")
        assert not y[ends[b] :, b].any(), f"{what}: y past the length of {b}"
    gap = int(rng.integers(0, 3))
    offsets = gap + np.concatenate([[0], np.cumsum(ends)]).astype(int)
    values = normal(rng, offsets[-1] + gap, rnn.input_size)
    for b in range(batch):
        values[offsets[b] : offsets[b + 1]] = x[: ends[b], b]
    want, state = rnn(swapped(rnn, x), start, ends)
    want = swapped(rnn, want)
    flat = np.zeros((len(values), want.shape[2]), np.float32)
    for b in range(batch):
        flat[offsets[b] : offsets[b + 1]] = want[: ends[b], b]
    given = [found for _, found in arranged(rng, values, 1)] or [values]
    equal(judge, "ragged", rnn, rnn.ragged(given[0], offsets, start), (flat, state), f"{what}, ragged")


class Lanes:
    """A stream, and of each lane what it was fed since it began, and from what state."""

    def __init__(self, rng, judge, rnn) -> None:
        self.rng, self.judge, self.rnn = rng, judge, rnn
        self.count = int(rng.integers(1, 10)) if chance(rng, 0.9) else int(rng.integers(10, 90))
        self.stream = rnn.stream(self.count)
        none = taken(rnn, self.stream.state, slice(0, 1))
        self.fed = [(none, np.zeros((0, rnn.input_size), np.float32)) for _ in range(self.count)]
        self.most = KNOWN if rnn.overrun == "raise" else LONGEST
        self.what = f"{described(rnn)}, overrun {rnn.overrun}, {self.count} lanes"

    def play(self) -> None:
        for number in range(int(self.rng.integers(3, 20))):
            self.said = f"{self.what}, action {number}"
            at = self.rng.random()
            if at < 0.5:
                self.step()
            elif at < 0.75:
                self.chunk()
            elif at < 0.85:
                self.move()
            elif at < 0.92:
                rows = self.some()
                self.stream.reset(rows)
                self.begin(rows)
            else:
                self.refused()
        np.testing.assert_array_equal(self.stream.step, [len(x) for _, x in self.fed])

    def some(self) -> np.ndarray:
        return self.rng.permutation(self.count)[: self.rng.integers(0, self.count + 1)]

    def begin(self, rows) -> None:
        none = taken(self.rnn, self.rnn.stream(1).state, slice(0, 1))
        for lane in rows:
            self.fed[lane] = none, self.fed[lane][1][:0]

    def check(self, y, rows, counts) -> None:
        """y: for each row its last `counts` steps; a few of the rows are looked at."""
        for i in self.rng.permutation(len(rows))[:5]:
            start, x = self.fed[rows[i]]
            want, state = alone(self.rnn, x, start)
            said = f"{self.said}, lane {rows[i]}"
            self.judge.same("lanes", y[i], want[len(x) - counts[i] :], said)
            found = self.stream.get_state([int(rows[i])])
            for got, s in zip(parts(self.rnn, found.state), parts(self.rnn, state), strict=True):
                self.judge.same("lanes", got, s, f"{said}, state")

    def step(self) -> None:
        rows = self.some()
        x = normal(self.rng, len(rows), self.rnn.input_size)
        resets = np.array([len(self.fed[lane][1]) >= self.most for lane in rows], bool)
        resets |= self.rng.random(len(rows)) < 0.1
        self.begin(rows[resets])
        for lane, row in zip(rows, x, strict=True):
            self.fed[lane] = self.fed[lane][0], np.concatenate([self.fed[lane][1], row[None]])
        given = [found for _, found in arranged(self.rng, x, 1)] or [x]
        out = np.full((len(rows), 2 * self.rnn.hidden_size), np.nan, np.float32)
        out = pick(self.rng, (None, out[:, : self.rnn.hidden_size], np.ascontiguousarray(out[:, ::2])))
        y = self.stream(
            pick(self.rng, (given[0], x)), list(rows) if len(rows) % 2 else rows, out=out, resets=resets
        )
        assert out is None or y is out
        self.check(np.array(y)[:, None], rows, [1] * len(rows))

    def chunk(self) -> None:
        rows, steps = self.some(), int(self.rng.integers(0, 5))
        x = normal(self.rng, steps, len(rows), self.rnn.input_size)
        counts = self.rng.integers(0, steps + 1, len(rows))
        resets = self.rng.random((steps, len(rows))) < 0.2
        for i, lane in enumerate(rows):
            for t in range(counts[i]):
                if len(self.fed[lane][1]) >= self.most:
                    resets[t, i] = True
                if resets[t, i]:
                    self.begin([lane])
                self.fed[lane] = self.fed[lane][0], np.concatenate([self.fed[lane][1], x[t, i][None]])
        laid = swapped(self.rnn, x), swapped(self.rnn, resets)
        y = swapped(self.rnn, self.stream(laid[0], rows, lengths=counts, resets=laid[1]))
        left = [min(n, len(self.fed[lane][1])) for n, lane in zip(counts, rows, strict=True)]
        self.check([y[n - k : n, i] for i, (n, k) in enumerate(zip(counts, left, strict=True))], rows, left)
        for i, n in enumerate(counts):
            assert not y[n:, i].any(), f"{self.said}: y past the length of row {i}"

    def move(self) -> None:
        """Some sessions change lanes, pickled or not, in a copied stream or not; or all begin anew."""
        rows = self.some()
        to = self.rng.permutation(self.count)[: len(rows)]
        state = self.stream.get_state(rows)
        fed = [self.fed[lane] for lane in rows]
        if chance(self.rng, 0.5):
            state = pickle.loads(pickle.dumps(state))
        if chance(self.rng, 0.3):
            self.stream = pickle.loads(pickle.dumps(self.stream))
        self.stream.set_state(to, state)
        for lane, history in zip(to, fed, strict=True):
            self.fed[lane] = history
        if self.rnn.overrun is None and chance(self.rng, 0.3):
            drawn = drawn_state(self.rng, self.rnn, self.count)
            self.stream.state, self.stream.step = drawn, 0
            empty = self.fed[0][1][:0]
            self.fed = [(taken(self.rnn, drawn, slice(k, k + 1)), empty) for k in range(self.count)]

    def refused(self) -> None:
        """A call that names a lane twice, or one that is none, or one step too many: no lane moves."""
        before = [s.tobytes() for s in parts(self.rnn, self.stream.state)], self.stream.step.tobytes()
        rows = self.some().tolist()
        rows += [pick(self.rng, (-1, self.count, *rows))]
        try:
            self.stream(normal(self.rng, len(rows), self.rnn.input_size), rows)
        except ValueError:
            self.judge.counts["lanes refused"] += 1
        else:
            raise AssertionError(f"{self.said}: rows {rows} were taken")
        late = [lane for lane, (_, x) in enumerate(self.fed) if len(x) >= KNOWN]
        if self.rnn.overrun == "raise" and late:
            try:
                self.stream(normal(self.rng, self.count, self.rnn.input_size))
            except lnrnn.SequenceTooLongError as error:
                self.judge.true("lanes refused", error.sequence == late[0], self.said)
            else:
                raise AssertionError(f"{self.said}: step {KNOWN} of lane {late[0]} was taken")
        after = [s.tobytes() for s in parts(self.rnn, self.stream.state)], self.stream.step.tobytes()
        assert before == after, f"{self.said}: a refused call changed a lane"
