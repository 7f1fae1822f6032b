"""Streams in the middle of everything: steps beside setters, copies, pickles, files and resets. Every step is
compared, to the bit, with a whole sequence by a network that nobody has changed since the stream was made."""

from __future__ import annotations

import copy
import os
import pickle

import numpy as np

import lnrnn
from fuzz_draw import arranged, chance, network, parameters, pick, size
from fuzz_judge import alike
from fuzz_networks import FILE, anew, described, equal
from networks import normal, parts, whole

KNOWN = 6


class Follower:
    """A stream, the network as it was when it was made, and the input since its state was set."""

    def __init__(self, rnn, batch: int) -> None:
        self.twin = type(rnn).__new__(type(rnn))
        self.twin.__setstate__(copy.copy(rnn).__getstate__())
        self.stream, self.batch = rnn.stream(batch), batch
        self.begin(None)

    def begin(self, state) -> None:
        self.fed, self.start = [], state

    def copied(self, stream) -> Follower:
        other = copy.copy(self)
        other.stream, other.fed = stream, list(self.fed)
        return other

    def expected(self):
        """(y, state) after all that was fed."""
        x = np.array(self.fed, np.float32).reshape(len(self.fed), self.batch, -1)
        y, state = self.twin(x.swapaxes(0, 1) if self.twin.batch_first else x, self.start)
        return (y[:, -1] if self.twin.batch_first else y[-1]), state


def taken(stream) -> int:
    """The steps of a stream whose lanes go together."""
    steps = stream.step
    assert (steps == steps[0]).all()
    return int(steps[0])


def case(rng, judge) -> None:
    rnn = network(rng, known=KNOWN, stream=True, most_layers=3).to_dtype(
        pick(rng, ("float32",) * 3 + ("bfloat16", "int8"))
    )
    batch = size(rng) if chance(rng, 0.6) else 1
    batch = min(batch, 40)
    alive = Follower(rnn, batch)
    what = f"{described(rnn)}, overrun {rnn.overrun}, stream of {batch}"
    others: list[Follower] = []
    for number in range(int(rng.integers(5, 40))):
        said = f"{what}, action {number}"
        at = rng.random()
        if at < 0.66:
            alive = step(rng, judge, alive, said)
        elif at < 0.72:
            many_steps(rng, judge, alive, said)
        elif at < 0.80:
            change(rng, judge, rnn, said)
        elif at < 0.88:
            others.append(alive)
            alive = follow(rng, judge, alive, rnn, said)
        elif at < 0.93:
            state(rng, judge, alive, said)
        elif at < 0.96:
            alive.stream.reset()
            alive.begin(None)
            judge.true("stream setter", taken(alive.stream) == 0, said)
        else:
            stored(rng, judge, rnn, said)
    for other in others[-2:]:  # the streams that were copied have gone on as they were
        step(rng, judge, other, f"{what}, the stream that was copied")


def step(rng, judge, alive: Follower, what: str) -> Follower:
    """One step, in one of the ways to call it."""
    stream, batch = alive.stream, alive.batch
    x = normal(rng, batch, alive.twin.input_size)
    if alive.twin.overrun == "raise" and taken(stream) >= KNOWN:
        before = [s.copy() for s in parts(alive.twin, stream.state)]
        try:
            stream(x)
        except lnrnn.SequenceTooLongError as error:
            judge.true(
                "stream refused", error.known_steps == KNOWN and error.length == taken(stream) + 1, what
            )
        else:
            raise AssertionError(f"{what}: step {taken(stream)} of {KNOWN} was taken")
        for a, b in zip(before, parts(alive.twin, stream.state), strict=True):
            alike(a, b, f"{what}: a refused step changed the state")
        stream.reset()
        alive.begin(None)
    count = taken(stream)
    alive.fed.append(x)
    want, state = alive.expected()
    how = rng.integers(6)
    given = x
    if how == 0:
        found = list(arranged(rng, x, 1))
        given = found[0][1] if found else x
    elif how == 1:
        given = x.astype(np.float64)
    elif how == 2 and batch == 1:
        given, want = x[0], want[0]
    if how == 3:
        out = np.full(want.shape, np.nan, np.float32)
        y = stream(given, out=out)
        assert y is out, f"{what}: out is what is returned"
    elif how == 4:
        out = np.full((*want.shape[:-1], 2 * want.shape[-1]), np.nan, np.float32)[..., ::2]
        y = np.array(stream(given, out=out))
        assert np.shares_memory(out, out) and not np.isnan(out).all()
    else:
        y = stream(given)
    judge.same("stream step", y, np.ascontiguousarray(want), f"{what}, step {count}, given in way {how}")
    assert taken(stream) == count + 1, what
    if chance(rng, 0.3):
        equal(judge, "stream state", alive.twin, (y, stream.state), (y, state), f"{what}, state")
    if len(alive.fed) > 12 and alive.twin.overrun is None:  # a batch norm's history has to be whole
        alive.begin(state)
    elif len(alive.fed) > 24:
        stream.reset()
        alive.begin(None)
    return alive


def many_steps(rng, judge, alive: Follower, what: str) -> None:
    """A sequence from a state that was set, with and without an output of one's own, and beside it one of its
    places by a stream of its own."""
    stream, twin = alive.stream, alive.twin
    state(rng, judge, alive, what)
    steps = int(rng.integers(2, KNOWN + 1 if twin.overrun == "raise" else 30))
    x = normal(rng, steps, alive.batch, twin.input_size)
    alive.fed = list(x)
    start = parts(twin, alive.start)
    y, _ = twin(x.swapaxes(0, 1) if twin.batch_first else x, alive.start)
    y = np.ascontiguousarray(y.swapaxes(0, 1) if twin.batch_first else y)
    own = None
    if twin.overrun != "batch" or steps <= KNOWN:
        place = int(rng.integers(alive.batch))
        own = twin.stream(1)
        own.state = whole(twin, [np.ascontiguousarray(s[:, place : place + 1]) for s in start])
    out = np.empty_like(y[0])
    for t in range(steps):
        got = stream(x[t]) if t % 2 else stream(x[t], out=out)
        judge.same("stream step", got, y[t], f"{what}, step {t} of many")
        if own is not None:
            judge.same("stream step", own(x[t, place]), y[t, place], f"{what}, place {place} alone, step {t}")


def change(rng, judge, rnn, what: str) -> None:
    """Sets something of the network that the stream came from: the stream stays as it was, and the network
    computes what a new one of these parameters does."""
    drawn = parameters(rng, {name: v.shape for name, v in rnn.parameters().items()}, True)
    at = rng.random()
    if at < 0.5:
        name = pick(rng, list(drawn))
        value = drawn[name]
        found = list(arranged(rng, value, 1))
        setattr(rnn, name, found[0][1] if found and chance(rng, 0.5) else value)
        judge.same("setter", getattr(rnn, name), value, f"{what}, {name} was set")
    elif at < 0.8 or rnn.overrun is None:
        rnn.load_state_dict(rnn.state_dict() | drawn)
    else:
        rnn.overrun = pick(rng, ("raise", "last", "mean", "batch"))
    fresh = anew(rnn)
    x = normal(rng, 3, 3, rnn.input_size)
    equal(judge, "setter", rnn, rnn(x), fresh(x), f"{what}, after a setter")


def follow(rng, judge, alive: Follower, rnn, what: str) -> Follower:
    """Goes on with a copy, or with a new stream of the network as it is now."""
    at = rng.random()
    if at < 0.3:
        new, kind = alive.copied(copy.copy(alive.stream)), "copy"
    elif at < 0.5:
        new, kind = alive.copied(copy.deepcopy(alive.stream)), "deepcopy"
    elif at < 0.8:
        new, kind = alive.copied(pickle.loads(pickle.dumps(alive.stream))), "pickle"
    else:
        return Follower(rnn, alive.batch)
    judge.counts[kind] += 1
    assert taken(new.stream) == taken(alive.stream), what
    old, now = (parts(alive.twin, s.stream.state) for s in (alive, new))
    for a, b in zip(old, now, strict=True):
        alike(b, a, f"{what}, state of a {kind}")
    return new


def state(rng, judge, alive: Follower, what: str) -> None:
    """Sets the state; under batch norm the step is 0 then, for its history begins anew."""
    shape = parts(alive.twin, alive.stream.state)[0].shape
    drawn = [normal(rng, *shape) for _ in parts(alive.twin, None)]
    if alive.twin.overrun is not None:
        alive.stream.reset()
    elif chance(rng, 0.3):
        alive.stream.step = int(rng.integers(0, 1000))
    alive.stream.state = whole(alive.twin, drawn)
    alive.begin(whole(alive.twin, drawn))
    got = parts(alive.twin, alive.stream.state)
    judge.counts["stream setter"] += 1
    for g, d in zip(got, drawn, strict=True):
        alike(g, d, f"{what}, state that was set")
        g[...] = np.nan  # what one reads is a copy


def stored(rng, judge, rnn, what: str) -> None:
    """The network goes to a file and comes back."""
    rnn.save(FILE)
    back = lnrnn.load(FILE)
    os.remove(FILE)
    x = normal(rng, 2, 2, rnn.input_size)
    equal(judge, "file", rnn, back(x), rnn(x), f"{what}, from a file")
