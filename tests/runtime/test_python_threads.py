"""Several threads of Python compute with networks, and change what others compute with."""

from __future__ import annotations

import copy
import sys
import threading

import numpy as np
import pytest

import lnrnn
from helpers import at_once, seen_while, using_threads
from networks import NORMS, network, normal, run_apart


def first_calls():
    """Threads that share a new network meet in packing its weights: large ones, so that they do meet."""
    interval = sys.getswitchinterval()
    x = np.random.default_rng(0).standard_normal((3, 4, 3)).astype(np.float32)
    rnn = lnrnn.RNN(3, 1500, seed=0)
    want = rnn(x)[0]
    y, _, tape = rnn.forward_train(x)
    gradient = rnn.backward(tape, y)[0]
    for switch in (interval, 1e-6):
        sys.setswitchinterval(switch)
        try:
            for _ in range(3):
                fresh = lnrnn.RNN(3, 1500, seed=0)
                for got in at_once([lambda fresh=fresh: fresh(x)[0]] * 4):
                    assert np.array_equal(got, want)
                fresh = lnrnn.RNN(3, 1500, seed=0)
                tapes = [fresh.forward_train(x)[2] for _ in range(3)]
                for got in at_once([lambda fresh=fresh, t=t: fresh.backward(t, y)[0] for t in tapes]):
                    assert np.array_equal(got, gradient)
        finally:
            sys.setswitchinterval(interval)


def test_threads_that_share_a_new_network():
    run_apart(first_calls)  # weights were freed under a thread once: not in the process of the suite


def parameters_while_computing():
    """Whoever computes has the old weights or the new ones, of each layer, and no others."""
    rng = np.random.default_rng(0)
    x = normal(rng, 5, 3, 4)
    rnn = network(4, 400)
    versions = [rnn.weight_hh_l0, rng.uniform(-1, 1, (400, 400)).astype(np.float32)]
    wanted = []
    for w in versions:
        rnn.weight_hh_l0 = w
        wanted.append(rnn(x)[0].tobytes())

    def change():
        for k in range(120):
            rnn.weight_hh_l0 = versions[k % 2]

    assert seen_while(change, lambda: rnn(x)[0].tobytes()) <= set(wanted)
    assert rnn(x)[0].tobytes() == wanted[1]  # the last change is not lost


def test_parameters_set_while_others_compute():
    run_apart(parameters_while_computing)


@pytest.mark.parametrize("norm", NORMS)
def test_a_network_in_many_threads(rng, norm):
    """Batches of different sizes, forward and backward, each as if it were alone."""
    rnn = network(3, 65, norm=norm, num_layers=2, trained=9)
    batches = [normal(rng, 9, b, 3) for b in (1, 5, 64, 130)]
    work = [lambda x=x: rnn(x) for x in batches]
    if norm != "batch":  # which learns as it trains

        def train(x):
            y, _, tape = rnn.forward_train(x)
            gx, gh0, grads = rnn.backward(tape, y)
            return gx, gh0, *grads.values()

        work += [lambda x=x: train(x) for x in batches]
    wanted = [w() for w in work]
    for _ in range(3):
        for got, want in zip(at_once(work), wanted, strict=True):
            for a, b in zip(got, want, strict=True):
                np.testing.assert_array_equal(a, b)


def test_threads_set_while_others_compute(rng):
    rnn, x = network(3, 200), normal(rng, 6, 70, 3)
    want = rnn(x)[0]

    def change():
        for k in range(200):
            lnrnn.set_num_threads(1 + k % 5)

    with using_threads(2):
        for got in at_once([change, *[lambda: [rnn(x)[0] for _ in range(5)]] * 3])[1:]:
            for y in got:
                np.testing.assert_array_equal(y, want)


def test_a_parameter_set_while_another_thread_packs_is_not_lost(rng, monkeypatch):
    """A thread that is interrupted between reading the parameters and keeping what it packed."""
    rnn, x = network(3, 5), normal(rng, 4, 2, 3)
    pack, read, go_on = lnrnn._core.Layer, threading.Event(), threading.Event()

    def slow(*arguments, **options):
        layer = pack(*arguments, **options)
        read.set()
        assert go_on.wait(30)
        return layer

    monkeypatch.setattr(lnrnn._core, "Layer", slow)
    thread = threading.Thread(target=rnn, args=(x,))
    thread.start()
    assert read.wait(30)
    rnn.weight_hh_l0 = -rnn.weight_hh_l0
    go_on.set()
    thread.join(30)
    monkeypatch.undo()
    fresh = lnrnn.RNN(3, 5)
    fresh.load_state_dict(rnn.state_dict())
    np.testing.assert_array_equal(rnn(x)[0], fresh(x)[0])


def statistics_while_computing():
    """Whoever computes has all of the old statistics or all of the new ones."""
    sys.setswitchinterval(1e-6)
    rng = np.random.default_rng(0)
    rnn = network(3, 17, norm=lnrnn.BatchNormSpec(overrun="last"), trained=3)
    x, states = normal(rng, 8, 5, 3), [rnn.state_dict()]
    rnn.forward_train(normal(rng, 8, 5, 3))
    states.append(rnn.state_dict())
    wanted = []
    for state in states:
        rnn.load_state_dict(state)
        wanted.append(rnn(x)[0].tobytes())

    def change():
        for k in range(1500):
            rnn.load_state_dict(states[k % 2])

    assert seen_while(change, lambda: rnn(x)[0].tobytes(), 2) <= set(wanted)


def test_statistics_loaded_while_others_compute():
    run_apart(statistics_while_computing)


@pytest.mark.parametrize("norm", NORMS)
def test_a_shallow_copy_is_a_network_of_its_own(rng, norm):
    """What is set on a copy is not half set on the original."""
    rnn, x = network(3, 5, norm=norm, trained=4), normal(rng, 4, 2, 3)
    want, state = rnn(x)[0], rnn.state_dict()
    other = copy.copy(rnn)
    other.weight_hh_l0 = -other.weight_hh_l0
    other.forward_train(normal(rng, 6, 2, 3))
    for name, value in rnn.state_dict().items():
        np.testing.assert_array_equal(value, state[name], err_msg=name)
    np.testing.assert_array_equal(rnn(x)[0], want)
    assert (other(x)[0] != want).any()
