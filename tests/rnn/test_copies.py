"""Tests copied and pickled streams, and networks that are pickled by every protocol."""

from __future__ import annotations

import copy
import itertools
import os
import pickle

import numpy as np
import pytest

import lnrnn
from networks import VARIANTS, drawn_state, equal, equal_arrays, network, normal, parts, same, unchanged

T = 9
WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {p}": lambda s, p=p: pickle.loads(pickle.dumps(s, p))
        for p in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}
each_way = pytest.mark.parametrize("way", WAYS)
# Tests one kind of copy for each network, and every kind of copy for one network.
each_pair = pytest.mark.parametrize(
    "variant, way",
    [*zip(VARIANTS, itertools.cycle(WAYS), strict=False), *(("LSTM batch", way) for way in WAYS)],
)


def stands_at(rnn, stream, state, step):
    assert (stream.steps_done == step).all()
    for got, want in zip(parts(rnn, stream.state), parts(rnn, state), strict=True):
        same(got, want)


@each_pair
def test_a_copied_stream_is_independent(rng, variant, way):
    """A copy starts with the same state, step number and parameters."""
    rnn = network(3, 17, num_layers=2, trained=T, **VARIANTS[variant])
    x, other = normal(rng, T, 2, 3), normal(rng, T, 2, 3)
    stream = rnn.stream(2)
    stream.state = drawn_state(rng, rnn, 2)
    start = stream.state
    for row in x[:4]:
        stream(row)
    rnn.weight_hh_l0 = -rnn.weight_hh_l0
    twin, state = WAYS[way](stream), stream.state
    assert type(twin) is type(stream)
    stands_at(rnn, twin, state, 4)
    gone = [twin(row) for row in other[4:]]  # only the copy takes steps
    stands_at(rnn, stream, state, 4)
    went = [stream(row) for row in x[4:]]
    rnn.weight_hh_l0 = -rnn.weight_hh_l0
    for rows, got in ((other, gone), (x, went)):
        again = rnn.stream(2)
        again.state = start
        for row in x[:4]:
            again(row)
        same([again(row) for row in rows[4:]], got)
    twin.reset()
    assert (
        (stream.steps_done == T).all()
        and (twin.steps_done == 0).all()
        and any(s.any() for s in parts(rnn, stream.state))
    )


def test_copies_share_packed_weights(rng):
    """The copy of a stream needs memory only for its state and for a reference to the network."""
    rnn = network(3, 64)
    stream = rnn.stream()
    packed = rnn.packed_bytes
    assert packed > 0
    copies = [copy.copy(stream) for _ in range(3)] + [rnn.stream(2), rnn.stream(5)]
    assert rnn.packed_bytes == copy.copy(rnn).packed_bytes == packed
    for twin in copies:
        assert twin._snapshot.packed_bytes == packed
    assert pickle.loads(pickle.dumps(rnn)).packed_bytes == 0  # a pickle has none
    assert len(pickle.dumps(stream)) < sum(v.nbytes for v in rnn.parameters().values()) + 5000


def test_packed_weights_are_freed(rng):
    """50 networks of 2 MiB need the memory of a few."""
    x = normal(rng, 1, 1, 8)

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for calls in (5, 50):
        before = resident()
        for _ in range(calls):
            lnrnn.RNN(8, 700)(x)
    assert resident() - before < 2**25


@each_way
def test_a_copied_network_is_independent(rng, way):
    rnn = network(3, 17, cell="LSTM", norm="batch", num_layers=2, dropout=0.25, trained=T)
    rnn.zoneout = 0.25
    x = normal(rng, T, 5, 3)
    twin = WAYS[way](rnn)
    assert repr(twin) == repr(rnn) and "dropout=0.25, " in repr(rnn) and "zoneout=" in repr(rnn)
    want = rnn(x)
    given = twin.state_dict()
    equal_arrays(given, rnn.state_dict())
    for name, value in given.items():
        value[...] = 0  # state_dict copies
        assert not getattr(twin, name).flags.writeable
    equal(rnn, twin(x), want)
    with unchanged(rnn):
        twin.weight_hh_l1 = -twin.weight_hh_l1
        twin.forward_train(normal(rng, T, 4, 3))
    assert (twin(x)[0] != want[0]).any()
    equal(rnn, rnn(x), want)


@each_way
def test_a_copied_layer_is_independent(way):
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    layer = lnrnn.BatchNorm(4, momentum=None, eps=0.5)
    layer(x)
    twin = WAYS[way](layer)
    assert (twin.eps, twin.momentum, twin.training, int(twin.num_batches_tracked)) == (0.5, None, True, 1)
    same(twin(2 * x), layer(2 * x))
    for name, value in layer.state_dict().items():
        same(getattr(twin, name), value)
    twin(3 * x)  # a shallow copy has statistics of its own, too
    assert (twin.running_mean != layer.running_mean).all() and layer.num_batches_tracked == 2
