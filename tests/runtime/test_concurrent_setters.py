"""Python threads compute, copy and save while others change the network: each sees one consistent version."""

from __future__ import annotations

import copy
import importlib.machinery
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import warnings

import numpy as np
import pytest

import lnrnn
from helpers import at_once, seen_while, using_threads
from networks import each_norm, network, normal, run_apart, same

T = 4
X = np.random.default_rng(0).standard_normal((T, 2, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def threads_that_take_turns_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def bits(arrays):
    return b"".join(np.asarray(a).tobytes() for a in arrays)


def streamed(rnn):
    stream = rnn.stream(2)
    return bits(stream(row) for row in X)


def files(path):
    def saved(rnn):
        name = path / f"{threading.get_ident()}.safetensors"
        rnn.save(name)
        return bits([lnrnn.load(name)(X)[0]])

    return saved


# These operations read a model. The result of each must come from one version.
READERS = {
    "call": lambda rnn: bits([rnn(X)[0]]),
    "state_dict": lambda rnn: bits(rnn.state_dict().values()),
    "parameters": lambda rnn: bits(rnn.parameters().values()),
    "copy": lambda rnn: bits([copy.copy(rnn)(X)[0]]),
    "deepcopy": lambda rnn: bits([copy.deepcopy(rnn)(X)[0]]),
    "pickle": lambda rnn: bits([pickle.loads(pickle.dumps(rnn))(X)[0]]),
    "to_dtype": lambda rnn: bits([rnn.to_dtype("int8")(X)[0]]),
    "stream": streamed,
    "file": None,
}


@pytest.mark.parametrize("way", READERS)
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_load_state_dict_is_atomic(tmp_path, way, norm):
    if way == "file":
        pytest.importorskip("safetensors")
    read = READERS[way] or files(tmp_path)
    options = dict(cell="GRU", norm=norm, num_layers=4, trained=T)
    rnn, other = network(3, 5, seed=0, **options), network(3, 5, seed=1, **options)
    states = [rnn.state_dict(), other.state_dict()]
    wanted = {read(rnn), read(other)}

    def change():
        for k in range(60):
            rnn.load_state_dict(states[k % 2])

    assert seen_while(change, lambda: read(rnn)) <= wanted
    assert read(rnn) == read(other)  # the last version is set


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("way", ["call", "stream", "copy"])
def test_a_state_loaded_while_weights_are_packed(monkeypatch, way, norm):
    """A state that is loaded while a call creates the compiled network is used by the next call."""
    options = dict(cell="LSTM", norm=norm, num_layers=3, trained=T)
    rnn, other = network(3, 5, seed=0, **options), network(3, 5, seed=1, **options)
    wanted, state, pack = READERS[way](copy.deepcopy(rnn)), other.state_dict(), lnrnn._core.Network
    rnn.gain_ih_l0 = rnn.gain_ih_l0  # drops the packed weights

    def load_then_pack(*arguments, **options):
        monkeypatch.setattr(lnrnn._core, "Network", pack)
        compiled = pack(*arguments, **options)
        rnn.load_state_dict(state)
        return compiled

    monkeypatch.setattr(lnrnn._core, "Network", load_then_pack)
    assert READERS[way](rnn) == wanted
    assert READERS[way](rnn) == READERS[way](other) != wanted


@pytest.mark.parametrize("what", ["calibrate", "overrun"])
def test_calibrate_and_overrun_are_atomic(what):
    """Either all layers and directions have the new statistics, or none."""
    rng = np.random.default_rng(3)
    norm = lnrnn.BatchNormSpec(overrun="last")
    rnn = network(3, 5, cell="LSTM", norm=norm, num_layers=3, bidirectional=True)
    data = [normal(rng, 2, n, 3) for n in (6, 9)]
    wanted = set()
    set_it = {
        "calibrate": lambda k: rnn.calibrate([data[k]]),
        "overrun": lambda k: setattr(rnn, "overrun", ("last", "mean")[k]),
    }[what]
    rnn.calibrate([data[0]])
    for k in (0, 1):
        set_it(k)
        wanted.add(READERS["call"](rnn))

    def change():
        for k in range(40):
            set_it(k % 2)

    assert len(wanted) == 2 and seen_while(change, lambda: READERS["call"](rnn)) <= wanted


def test_no_assignment_is_lost():
    """Several threads set one parameter each. Every call uses one value of each parameter."""
    rnn = network(3, 5, num_layers=2)
    names = ["weight_hh_l0", "gain_l0", "bias_l1"]
    values = {name: [getattr(rnn, name), -getattr(rnn, name)] for name in names}
    wanted = set()
    for k in range(8):
        for j, name in enumerate(names):
            setattr(rnn, name, values[name][k >> j & 1])
        wanted.add(READERS["call"](rnn))

    def setting(name):
        def work():
            for k in range(300):
                setattr(rnn, name, values[name][k % 2])
                np.testing.assert_array_equal(getattr(rnn, name), values[name][k % 2])

        return work

    jobs = [setting(name) for name in names]
    assert seen_while(lambda: at_once(jobs), lambda: READERS["call"](rnn)) <= wanted


def test_training_in_several_threads_keeps_statistics_consistent():
    """After every call, all layers have counted the same batches, and at the end all batches."""
    rng = np.random.default_rng(4)
    rnn = network(3, 5, cell="GRU", norm=lnrnn.BatchNormSpec(momentum=None), num_layers=3, bidirectional=True)
    batches = [normal(rng, T, n, 3) for n in (2, 3, 5)]
    counts = [f"count_l{k}{end}" for k in range(3) for end in ("", "_reverse")]

    def train(x):
        def work():
            for _ in range(10):
                rnn.forward_train(x)

        return work

    def read():
        state = rnn.state_dict()
        return all(np.array_equal(state[name], state["count_l0"]) for name in counts)

    assert seen_while(lambda: at_once([train(x) for x in batches]), read) == {True}
    np.testing.assert_array_equal(rnn.count_l0, [10 * 10] * T)


# --- layers -------------------------------------------------------------------------------------------------

V = np.random.default_rng(1).standard_normal((6, 3)).astype(np.float32)


@pytest.mark.parametrize("make", [lnrnn.LayerNorm, lnrnn.BatchNorm])
def test_load_state_dict_of_a_layer_is_atomic(make):
    layer, states, wanted = make(3).eval(), [], set()
    for k in (1, 2):
        states.append({name: np.full_like(value, k) for name, value in layer.state_dict().items()})
        layer.load_state_dict(states[-1])
        wanted.add(bits([layer(V)]) + bits(layer.state_dict().values()))

    def change():
        for k in range(600):
            layer.load_state_dict(states[k % 2])

    called = {w[: V.nbytes] for w in wanted}
    assert seen_while(change, lambda: bits([layer(V)]), 2) <= called
    assert seen_while(change, lambda: bits(layer.state_dict().values()), 2) <= {w[V.nbytes :] for w in wanted}


def test_running_mean_and_variance_are_of_the_same_batch():
    """With momentum 1, mean and variance are those of one batch."""
    layer, wanted = lnrnn.BatchNorm(3, momentum=1.0), set()

    def read():
        state = layer.state_dict()
        return bits([state["running_mean"], state["running_var"]])

    batches = [V, 3 * V + 1]
    for x in batches:
        layer(x)
        wanted.add(read())

    def train(x):
        def work():
            for _ in range(300):
                layer(x)

        return work

    assert seen_while(lambda: at_once([train(x) for x in batches]), read, 2) <= wanted
    assert layer.num_batches_tracked == 602  # no batch is lost


# --- processes ----------------------------------------------------------------------------------------------


def forks():
    """Asserts that a child can create models and set parameters, even if threads did so during the fork. A
    lock that another thread held would stay locked in the child."""
    warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of a fork with threads
    sys.setswitchinterval(1e-5)
    rnn, stop = network(3, 5), threading.Event()

    def work():
        while not stop.is_set():
            rnn.weight_hh_l0 = rnn.weight_hh_l0
            lnrnn.RNN(1, 1, norm=None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        child = os.fork()
        if not child:
            rnn.gain_l0 = rnn.gain_l0
            lnrnn.RNN(1, 1, norm=None)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    for thread in threads:
        thread.join(30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_parameters_are_set():
    run_apart(forks)


def forks_while_importing():
    """Asserts that a child can save if it was forked during the first save, which imports safetensors."""
    warnings.simplefilter("ignore", DeprecationWarning)
    importing = threading.Event()

    class Slow:
        """Finds safetensors.numpy before other finders do, and makes its execution slow. Python does not fork
        during the search of a module, but during its execution."""

        @staticmethod
        def find_spec(name, *where):
            if name != "safetensors.numpy":
                return None
            found = importlib.machinery.PathFinder.find_spec(name, *where)
            run = found.loader.exec_module

            def exec_module(module):
                importing.set()
                time.sleep(0.5)
                run(module)

            found.loader.exec_module = exec_module
            return found

    sys.meta_path.insert(0, Slow)
    rnn = network(3, 5)
    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=rnn.save, args=(os.path.join(folder, "parent"),))
        thread.start()
        assert importing.wait(30)
        child = os.fork()
        if not child:
            signal.alarm(20)  # ends the child if it hangs
            rnn.save(os.path.join(folder, "child"))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        thread.join(30)
        assert sorted(os.listdir(folder)) == ["child", "parent"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_the_first_file_is_saved():
    pytest.importorskip("safetensors")
    run_apart(forks_while_importing)


# --- large networks, whose calls release the interpreter's lock ---------------------------------------------


def first_calls():
    """Several threads make the first call of one network at the same time, so all of them may pack its large
    weights."""
    interval = sys.getswitchinterval()
    x = np.random.default_rng(0).standard_normal((3, 4, 3)).astype(np.float32)
    rnn = lnrnn.RNN(3, 1500, seed=0)
    want = rnn(x)[0]
    y, _, tape = rnn.forward_train(x)
    gradient = rnn.backward(tape, y)[0]
    for switch in (interval, 1e-6):
        sys.setswitchinterval(switch)
        try:
            for _ in range(2):
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
    run_apart(first_calls)  # in another process, because a defect here could crash it


def parameters_while_computing():
    """While a thread sets weights, every call uses either the old or the new weights of each layer."""
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


@each_norm
def test_a_network_computes_in_many_threads(rng, norm):
    """Each thread has batches of another size. Forward and backward results equal those of a single
    thread."""
    rnn = network(3, 65, norm=norm, num_layers=2, trained=9)
    batches = [normal(rng, 9, b, 3) for b in (1, 5, 64, 130)]
    work = [lambda x=x: rnn(x) for x in batches]
    if norm != "batch":  # because batch norm updates statistics in training

        def train(x):
            y, _, tape = rnn.forward_train(x)
            gx, gh0, grads = rnn.backward(tape, y)
            return gx, gh0, *grads.values()

        work += [lambda x=x: train(x) for x in batches]
    wanted = [w() for w in work]
    for _ in range(3):
        for got, want in zip(at_once(work), wanted, strict=True):
            for a, b in zip(got, want, strict=True):
                same(a, b)


def test_the_number_of_threads_is_set_while_others_compute(rng):
    rnn, x = network(3, 200), normal(rng, 6, 70, 3)
    want = rnn(x)[0]

    def change():
        for k in range(200):
            lnrnn.set_num_threads(1 + k % 5)

    with using_threads(2):
        for got in at_once([change, *[lambda: [rnn(x)[0] for _ in range(5)]] * 3])[1:]:
            for y in got:
                same(y, want)
