"""Fuzzes streams. A lane must have the bits of a call with its inputs since the last reset. A stream must not
change if its network is changed."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass

import numpy as np

import lnrnn
from fuzz_draw import arranged, caches, chance, described, maker, parameters, pick, swapped
from fuzz_judge import alike
from fuzz_networks import copy_of, equal
from helpers import using_caches
from networks import drawn_state, normal, parts, taken, widths

KNOWN = 4  # how many steps have statistics of batch norm
LONGEST = 9  # the largest number of steps between resets of a lane, for other norms


def most_steps(rnn) -> int:
    return KNOWN if rnn.overrun == "raise" else LONGEST


def case(rng, judge) -> None:
    make = maker(rng, known=KNOWN, stream=True)
    rnn = make()
    if rnn.overrun == "batch":  # with overrun "batch", sequences depend on each other
        rnn.overrun = "last"
    rnn = rnn.to_dtype(pick(rng, ("float32",) * 3 + ("bfloat16", "int8")))
    with using_caches(caches(rng) if chance(rng, 0.3) else None):
        lnrnn.set_num_threads(int(rng.integers(1, 4)))
        Lanes(rng, judge, rnn, make).play()


def alone(rnn, x, start):
    """Calls the network with one sequence x (T, D). Returns y (T, P) and the state."""
    y, h = rnn(swapped(rnn, x[:, None]), start)
    return swapped(rnn, y)[:, 0], h


@dataclass(frozen=True)
class History:
    """The history of a lane: an earlier state, its step number, and all inputs since then."""

    start: object
    x: np.ndarray
    before: int = 0

    def then(self, x: np.ndarray) -> History:
        return History(self.start, np.concatenate([self.x, x[None]]), self.before)


class Lanes:
    """A stream, a copy of the network from the time when the stream was created, and each lane's history."""

    def __init__(self, rng, judge, rnn, make) -> None:
        self.rng, self.judge, self.rnn, self.make_network = rng, judge, rnn, make
        self.count = int(rng.integers(1, 10)) if chance(rng, 0.9) else int(rng.integers(10, 90))
        self.other: tuple | None = None  # the original of a copied stream, with its histories
        self.make()

    def make(self) -> None:
        self.twin = type(self.rnn).__new__(type(self.rnn))
        self.twin.__setstate__(copy.copy(self.rnn).__getstate__())
        self.stream, self.most = self.rnn.stream(self.count), most_steps(self.rnn)
        zeros = taken(self.rnn, self.stream.state, slice(0, 1))
        self.fresh = History(zeros, np.zeros((0, self.rnn.input_size), np.float32))
        self.lanes = [self.fresh] * self.count
        self.label = f"{described(self.rnn)}, overrun {self.rnn.overrun}, {self.count} lanes"

    def play(self) -> None:
        actions = {
            self.step: 0.4, self.chunk: 0.2, self.move: 0.08, self.reset: 0.06, self.refused: 0.06,
            self.set_state: 0.06, self.copied: 0.06, self.change: 0.08,
        }  # fmt: skip
        for number in range(int(self.rng.integers(3, 20))):
            self.where = f"{self.label}, action {number}"
            list(actions)[self.rng.choice(len(actions), p=list(actions.values()))]()
        np.testing.assert_array_equal(
            self.stream.steps_done, [lane.before + len(lane.x) for lane in self.lanes]
        )
        if self.other:
            self.where = f"{self.label}, the stream that was copied"
            self.stream, self.lanes, self.twin = self.other
            self.step()

    def some(self) -> np.ndarray:
        return self.rng.permutation(self.count)[: self.rng.integers(0, self.count + 1)]

    def feed(self, lane: int, x: np.ndarray, reset: bool) -> None:
        self.lanes[lane] = (self.fresh if reset else self.lanes[lane]).then(x)

    def is_full(self, lane: int) -> bool:
        return len(self.lanes[lane].x) >= self.most

    def check(self, y, rows, counts) -> None:
        """Checks some rows of y, which has the last `counts` steps of each row."""
        for i in self.rng.permutation(len(rows))[:5]:
            lane = self.lanes[rows[i]]
            want, state = alone(self.twin, lane.x, lane.start)
            where = f"{self.where}, lane {rows[i]}"
            self.judge.same("lanes", y[i], want[len(lane.x) - counts[i] :], where)
            got_state = self.stream.get_state([int(rows[i])]).state
            for got, s in zip(parts(self.rnn, got_state), parts(self.rnn, state), strict=True):
                self.judge.same("lanes", got, s, f"{where}, state")

    def step(self) -> None:
        rows, width = self.some(), widths(self.rnn)[0]
        x = normal(self.rng, len(rows), self.rnn.input_size)
        resets = np.array([self.is_full(lane) for lane in rows], bool)
        resets |= self.rng.random(len(rows)) < 0.1
        for lane, row, reset in zip(rows, x, resets, strict=True):
            self.feed(lane, row, reset)
        if self.count == 1 and len(rows) and not resets[0] and chance(self.rng, 0.5):
            y = self.stream(x[0])[None]
        else:
            out = np.full((len(rows), 2 * width), np.nan, np.float32)
            out = pick(self.rng, (None, out[:, :width], out[:, ::2], np.ascontiguousarray(out[:, ::2])))
            layouts = [x, x.astype(np.float64), *(array for _, array in arranged(self.rng, x, 1))]
            lanes = list(rows) if len(rows) % 2 else rows
            y = self.stream(pick(self.rng, layouts), lanes, out=out, resets=resets)
            assert out is None or y is out
        self.check(np.array(y)[:, None], rows, [1] * len(rows))

    def chunk(self) -> None:
        rows, steps = self.some(), int(self.rng.integers(0, 5))
        x = normal(self.rng, steps, len(rows), self.rnn.input_size)
        counts = self.rng.integers(0, steps + 1, len(rows))
        resets = self.rng.random((steps, len(rows))) < 0.2
        for i, lane in enumerate(rows):
            for t in range(counts[i]):
                resets[t, i] |= self.is_full(lane)
                self.feed(lane, x[t, i], resets[t, i])
        y = self.stream(swapped(self.rnn, x), rows, lengths=counts, resets=swapped(self.rnn, resets))
        y = swapped(self.rnn, y)
        left = [min(n, len(self.lanes[lane].x)) for n, lane in zip(counts, rows, strict=True)]
        self.check([y[n - k : n, i] for i, (n, k) in enumerate(zip(counts, left, strict=True))], rows, left)
        for i, n in enumerate(counts):
            assert not y[n:, i].any(), f"{self.where}: y past the length of row {i}"

    def move(self) -> None:
        """Moves some sessions to other lanes, by get_state and set_state, with or without pickling."""
        rows = self.some()
        to = self.rng.permutation(self.count)[: len(rows)]
        state, histories = self.stream.get_state(rows), [self.lanes[lane] for lane in rows]
        if chance(self.rng, 0.5):
            state = pickle.loads(pickle.dumps(state))
        self.stream.set_state(to, state)
        for lane, history in zip(to, histories, strict=True):
            self.lanes[lane] = history

    def reset(self) -> None:
        rows = self.some() if chance(self.rng, 0.6) else None
        self.stream.reset(rows)
        for lane in range(self.count) if rows is None else rows:
            self.lanes[lane] = self.fresh

    def set_state(self) -> None:
        """Sets the state of all lanes, and their step numbers if there is no batch norm."""
        drawn, step = drawn_state(self.rng, self.rnn, self.count), 0
        if self.rnn.overrun is None:
            step = int(self.rng.integers(0, 1000))
            self.stream.steps_done = step
        else:
            self.stream.reset()
        self.stream.state = drawn
        for got, want in zip(parts(self.rnn, self.stream.state), parts(self.rnn, drawn), strict=True):
            self.judge.same("stream setter", got, want, f"{self.where}, state")
            got[...] = np.nan  # if `got` were no copy, the next steps would be wrong
        states = [taken(self.rnn, drawn, slice(k, k + 1)) for k in range(self.count)]
        self.lanes = [History(state, self.fresh.x, step) for state in states]

    def copied(self) -> None:
        """Continues with a copy of the stream. At the end `play` makes a step with the original."""
        self.other = self.stream, list(self.lanes), self.twin
        kind, self.stream = copy_of(self.rng, self.stream)
        self.judge.counts[kind] += 1
        np.testing.assert_array_equal(self.stream.steps_done, self.other[0].steps_done)
        old, new = (parts(self.rnn, stream.state) for stream in (self.other[0], self.stream))
        for a, b in zip(old, new, strict=True):
            alike(b, a, f"{self.where}, state of a {kind}")

    def change(self) -> None:
        """Sets a parameter or an option of the network. The stream must not change, and the network must have
        the bits of a new one. Sometimes a new stream replaces the old one."""
        rng, rnn = self.rng, self.rnn
        drawn, at = (
            parameters(rng, {name: v.shape for name, v in rnn.parameters().items()}, True),
            rng.random(),
        )
        if at < 0.5:
            name = pick(rng, list(drawn))
            layouts = [drawn[name], *(array for _, array in arranged(rng, drawn[name], 1))]
            setattr(rnn, name, pick(rng, layouts))
            self.judge.same("setter", getattr(rnn, name), drawn[name], f"{self.where}, {name} was set")
        elif at < 0.8 or rnn.overrun is None:
            rnn.load_state_dict(rnn.state_dict() | drawn)
        else:
            rnn.overrun = pick(rng, ("raise", "last", "mean"))
        x = normal(rng, 3, 3, rnn.input_size)
        new = self.make_network()
        new.load_state_dict(rnn.state_dict())
        if rnn.overrun:
            new.overrun = rnn.overrun
        new = new.to_dtype(rnn.dtype, rnn.activation_bits)
        equal(self.judge, "setter", rnn, rnn(x), new(x), f"{self.where}, after a setter")
        if chance(rng, 0.3):
            self.make()

    def refused(self) -> None:
        """Checks that a call with a wrong lane, a lane twice, or a step too many changes no lane."""
        before = [s.tobytes() for s in parts(self.rnn, self.stream.state)], self.stream.steps_done.tobytes()
        rows = self.some().tolist()
        rows += [pick(self.rng, (-1, self.count, *rows))]
        try:
            self.stream(normal(self.rng, len(rows), self.rnn.input_size), rows)
        except ValueError:
            self.judge.counts["lanes refused"] += 1
        else:
            raise AssertionError(f"{self.where}: rows {rows} were accepted")
        late = [number for number, lane in enumerate(self.lanes) if len(lane.x) >= KNOWN]
        if self.twin.overrun == "raise" and late:
            try:
                self.stream(normal(self.rng, self.count, self.rnn.input_size))
            except lnrnn.SequenceTooLongError as error:
                right = (error.sequence, error.known_steps, error.length) == (late[0], KNOWN, KNOWN + 1)
                self.judge.true("lanes refused", right, self.where)
            else:
                raise AssertionError(f"{self.where}: step {KNOWN} of lane {late[0]} was accepted")
        after = [s.tobytes() for s in parts(self.rnn, self.stream.state)], self.stream.steps_done.tobytes()
        assert before == after, f"{self.where}: a refused call changed a lane"
