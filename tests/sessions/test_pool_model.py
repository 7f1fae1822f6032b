"""A pool of sessions against a plain model: a stream of one lane for each session. All bits are equal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import lnrnn
from lnrnn.sessions import SessionError, StoreError, blocks
from networks import network, same

D, H = 3, 5
NETWORKS = [
    network(D, H, cell="LSTM", num_layers=2),
    network(D, H, cell="GRU", norm=None),
    network(D, H, cell="SLSTM", num_heads=1),
    network(D, H, norm=lnrnn.BatchNormSpec(overrun="last"), trained=3),
]
IDS = st.sampled_from([*"abcdef", 0, 1, b"0", "0", b"a", 10**30])
FAILING = {"get", "put", "delete"}


class Store(dict):
    """A store whose methods fail if `broken` names them."""

    def __init__(self):
        super().__init__()
        self.broken = set()

    def refuse(self, name):
        if name in self.broken:
            raise ConnectionError(f"no {name}")

    def get(self, key):
        self.refuse("get")
        return super().get(key)

    def __setitem__(self, key, value):
        self.refuse("put")
        super().__setitem__(key, value)

    def update(self, values):
        for key, value in values.items():
            self[key] = value

    def __delitem__(self, key):
        self.refuse("delete")
        super().__delitem__(key)


class Pools(RuleBasedStateMachine):
    """live, parked: the stream of each session. saved: for each value of the store, a copy of the stream, and
    how it would be restored. A killed process is a new pool on the same store.
    """

    stores = False

    def __init__(self):
        super().__init__()
        self.time, self.rng = 0.0, np.random.default_rng(0)

    @initialize(
        rnn=st.sampled_from(NETWORKS),
        most=st.sampled_from([None, 4]),
        bad=st.sampled_from(["raise", "reset"]),
    )
    def begin(self, rnn, most, bad):
        self.rnn, self.most, self.bad = rnn, most, bad
        self.store = Store() if self.stores else None
        self.live, self.parked, self.saved, self.used = {}, {}, {}, {}
        self.start()

    def start(self):
        more = dict(store=self.store, checkpoint_every=2) if self.stores else {}
        self.pool = lnrnn.SessionPool(
            self.rnn, self.most, bad=self.bad, park_after=10, drop_after=25, clock=lambda: self.time, **more
        )
        self.kept = {}

    def copied(self, stream):
        other = self.rnn.stream()
        other.set_state(None, stream.get_state())
        return other

    def refused(self, call, *ids, error=SessionError):
        with pytest.raises(error) as found:
            call()
        assert found.value.ids == ids

    @rule(id=IDS)
    def join(self, id):
        if id in self.live or (self.most is not None and len(self.live) == self.most):
            return self.refused(lambda: self.pool.join(id), id)
        if self.stores and ("get" in self.store.broken or (
            "put" in self.store.broken and self.saved.get(id, (0, 0))[1] == "restored"
        )):  # fmt: skip
            return self.refused(lambda: self.pool.join(id), id, error=StoreError)
        how, stream = "new", self.rnn.stream()
        if id in self.parked:
            how, stream = "restored", self.parked.pop(id)
        elif id in self.saved:
            stream, how = self.saved[id]
            self.saved[id] = stream, "checkpoint"
            stream = self.copied(stream)
        assert self.pool.join(id) == (how, stream.steps_done[0])
        self.live[id], self.used[id], self.kept[id] = stream, self.time, int(stream.steps_done[0])

    @rule(data=st.data(), seconds=st.sampled_from([0, 4]), strided=st.booleans(), given=st.booleans())
    def step(self, data, seconds, strided, given):
        self.time += seconds
        ids = data.draw(st.lists(st.sampled_from(list(self.live)), unique=True)) if self.live else []
        x = self.rng.standard_normal((len(ids), 2 * D if strided else D), dtype=np.float32)
        x = x[:, ::2] if strided else x
        out = np.full((len(ids), H), 7, np.float32) if given else None
        y = self.pool.step(ids, x, out)
        assert not given or y is out
        for id, frame, row in zip(ids, x, y, strict=True):
            same(row, self.live[id](frame[None])[0])
            self.used[id] = self.time

    @precondition(lambda self: len(self.live) > 1)
    @rule(data=st.data(), value=st.sampled_from([np.nan, np.inf, -np.inf]))
    def bad_frame(self, data, value):
        ids = data.draw(st.permutations(list(self.live)))
        x = self.rng.standard_normal((len(ids), D), dtype=np.float32)
        k = data.draw(st.integers(0, len(ids) - 1))
        x[k, 1] = value
        if self.bad == "raise":
            return self.refused(lambda: self.pool.step(ids, x), ids[k])
        y = self.pool.step(ids, x)
        assert np.isnan(y[k]).all()
        for id, frame, row in zip(ids, x, y, strict=True):
            self.used[id] = self.time
            if id == ids[k]:
                self.live[id], self.kept[id] = self.rnn.stream(), 0
            else:
                same(row, self.live[id](frame[None])[0])

    @rule(id=IDS)
    def unknown_or_twice(self, id):
        x = np.zeros((2, D), np.float32)
        ids = [*self.live][:1] + [id]
        if id not in self.live:
            self.refused(lambda: self.pool.step(ids, x[: len(ids)]), id)
        self.refused(lambda: self.pool.step([id, id], x), *([id] if id in self.live else [id, id]))

    @rule(id=IDS)
    def park(self, id):
        if id not in self.live:
            return self.refused(lambda: self.pool.park(id), id)
        if self.stores and "put" in self.store.broken:
            return self.refused(lambda: self.pool.park(id), id, error=StoreError)
        self.pool.park(id)
        self.now_parked(id)

    def now_parked(self, id):
        stream = self.live.pop(id)
        if self.stores:
            self.saved[id] = self.copied(stream), "restored"
        else:
            self.parked[id] = stream

    @rule(id=IDS)
    def leave(self, id):
        known = id in self.live or id in self.parked
        self.live.pop(id, None), self.parked.pop(id, None)
        if self.stores and (
            "get" in self.store.broken or ("delete" in self.store.broken and id in self.saved)
        ):
            return self.refused(lambda: self.pool.leave(id), id, error=StoreError)
        if not known and id not in self.saved:
            return self.refused(lambda: self.pool.leave(id), id)
        self.pool.leave(id)
        self.saved.pop(id, None)

    @rule(seconds=st.sampled_from([0, 6, 11, 30]), limit=st.sampled_from([1, 3, 1000]))
    def maintain(self, seconds, limit):
        self.time += seconds
        stored, parked, dropped, errors = self.pool.maintain(limit)
        idle = {id: self.time - self.used[id] for id in (*self.live, *self.parked)}
        assert len({*stored, *parked, *dropped, *errors}) <= limit
        broken = self.store.broken if self.stores else set()
        for id in dropped:
            assert idle[id] > 25
            self.live.pop(id, None), self.parked.pop(id, None)
            if id not in errors:
                self.saved.pop(id, None)
        for id in parked:
            assert idle[id] > 10 and id not in errors
            self.now_parked(id)
        for id in stored:
            assert self.live[id].steps_done[0] - self.kept[id] >= 2 and id not in errors
            self.saved[id], self.kept[id] = (
                (self.copied(self.live[id]), "checkpoint"),
                int(self.live[id].steps_done[0]),
            )
        assert broken or not errors
        if limit == 1000:  # then nothing is left to do, unless the store has failed
            assert all(self.time - self.used[id] <= 25 for id in (*self.live, *self.parked))
            left = [id for id in self.live if id not in errors]
            assert all(self.time - self.used[id] <= 10 for id in left)
            assert not self.stores or all(self.live[id].steps_done[0] - self.kept[id] < 2 for id in left)

    @rule()
    def drain(self):
        stored, parked, dropped, errors = self.pool.drain()
        broken = self.stores and "put" in self.store.broken
        assert set(errors if broken else parked) == set(self.live)
        assert not (stored or dropped or (parked if broken else errors))
        for id in parked:
            self.now_parked(id)

    @precondition(lambda self: self.stores)
    @rule(broken=st.sets(st.sampled_from(sorted(FAILING)), max_size=2))
    def store_breaks_or_recovers(self, broken):
        self.store.broken = broken

    @precondition(lambda self: self.stores)
    @rule()
    def the_process_is_killed(self):
        self.live = {}
        self.start()

    @invariant()
    def the_same_sessions(self):
        assert set(self.pool) == set(self.live) and len(self.pool) == len(self.live)
        assert self.pool.parked == len(self.parked)
        assert all(id in self.pool for id in self.live)


class PoolsWithStore(Pools):
    stores = True


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Sessions are in several blocks of lanes."""
    monkeypatch.setattr(blocks, "FIRST", 2)
    monkeypatch.setattr(blocks, "LARGEST", 4)
    monkeypatch.setattr(blocks, "PART", 2)


TestPool = Pools.TestCase
TestPoolWithStore = PoolsWithStore.TestCase
TestPool.settings = TestPoolWithStore.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
