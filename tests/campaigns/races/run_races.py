"""Searches for races: threads that use one network, and forks. tests/runtime has the end of the interpreter.

readers: one thread sets a part of a network to two values in turn, and others read the network in every way.
A reader must get the bits of one value or the other. fork: while threads compute, a forked child and its
child must compute the same bits.
control: parameters are set one after the other, which readers must notice.
"""

from __future__ import annotations

import argparse
import copy
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import lnrnn
from helpers import at_once
from networks import VARIANTS, drawn_state, network, normal
from outcome import Wrong, until

CAN_HANG = True
T, B, D, H = 6, 4, 5, 9
PATIENCE = 30  # a child that takes more seconds hangs


def bits(result: Any) -> bytes:
    if isinstance(result, (tuple, list)):
        return b"".join(map(bits, result))
    return np.asarray(result).tobytes()


def shown(rnn) -> bytes:
    return bits(list(rnn.state_dict().values()))


def readers(rnn, x, folder: Path) -> dict[str, Callable[[], bytes]]:
    """Returns all functions that read a network, by name."""
    h0 = drawn_state(np.random.default_rng(3), rnn, B)
    ways = {
        "call": lambda: call(rnn, x),
        "call, ragged": lambda: bits(rnn(x, h0, [T, 0, 3, 1])),
        "state_dict": lambda: shown(rnn),
        "parameters": lambda: bits(list(rnn.parameters().values())),
        "copy": lambda: shown(copy.copy(rnn)),
        "deepcopy": lambda: shown(copy.deepcopy(rnn)),
        "pickle": lambda: shown(pickle.loads(pickle.dumps(rnn))),
        "bfloat16": lambda: bits(rnn.to_dtype("bfloat16")(x)),
        "int8": lambda: bits(rnn.to_dtype("int8")(x)),
        "file": lambda: saved(rnn, folder),
    }
    if not rnn.bidirectional:
        ways["stream"] = lambda: streamed(rnn, x)
    if rnn.norm is None or rnn.norm == type(rnn)(4, 4).norm:
        ways["forward_train"] = lambda: trained(rnn, x)
    return ways


def call(rnn, x) -> bytes:
    return bits(rnn(x))


def streamed(rnn, x) -> bytes:
    stream = rnn.stream(x.shape[1])
    return bits([stream(row) for row in x])


def saved(rnn, folder: Path) -> bytes:
    path = folder / f"{threading.get_ident()}.safetensors"
    rnn.save(path)
    return shown(lnrnn.load(path))


def trained(rnn, x) -> bytes:
    y, h, tape = rnn.forward_train(x)
    gx, gh0, grads = rnn.backward(tape, y)
    return bits([y, h, gx, gh0, list(grads.values())])


def setters(rnn, other, rng) -> dict[str, Callable[[int], Any]]:
    """Returns {name: function that sets a part of a network}. The argument 0 or 1 chooses the value."""
    states = [rnn.state_dict(), other.state_dict()]
    ways = {"load_state_dict": lambda k: rnn.load_state_dict(states[k])}
    for name in rnn.parameters():
        ways[name] = lambda k, name=name: setattr(rnn, name, states[k][name])
    if isinstance(rnn.norm, lnrnn.BatchNormSpec):
        data = [normal(rng, T, n, D) for n in (8, 13)]
        ways["calibrate"] = lambda k: rnn.calibrate([data[k]])
        ways["overrun"] = lambda k: setattr(rnn, "overrun", ("last", "mean")[k])
    return ways


class Mixed(AssertionError):
    """Is raised if a reader got bits that belong to neither value."""


def race(change, read, wanted: set[bytes], seconds: float, threads: int = 3) -> int:
    """Reads in several threads while another calls change(0), change(1), ... Returns the number of reads."""
    stop, reads = threading.Event(), [0] * threads

    def changing():
        end, k = time.monotonic() + seconds, 0
        try:
            while time.monotonic() < end:
                change(k % 2)
                k += 1
        finally:
            stop.set()

    def reading(place):
        while not stop.is_set():
            if read() not in wanted:
                raise Mixed("neither one value nor the other")
            reads[place] += 1

    at_once([changing, *(lambda place=place: reading(place) for place in range(threads))])
    return sum(reads)


def read_and_set(options: argparse.Namespace) -> Counter[str]:
    """Runs random pairs of a reader and a setter on random networks."""
    rng, seen = np.random.default_rng(options.seed), Counter()
    sys.setswitchinterval(1e-5)
    lnrnn.set_num_threads(2)
    for _ in until(options.seconds):
        variant = str(rng.choice(list(VARIANTS)))
        layers, both = int(rng.integers(1, 4)), bool(rng.integers(2))
        spec = dict(VARIANTS[variant], num_layers=layers, bidirectional=both, trained=T)
        rnn, other = network(D, H, seed=0, **spec), network(D, H, seed=1, **spec)
        ways, sets = readers(rnn, normal(rng, T, B, D), options.folder), setters(rnn, other, rng)
        for _ in range(6):
            reader, setter = str(rng.choice(list(ways))), str(rng.choice(list(sets)))
            wanted = set()
            for k in (0, 1):
                sets[setter](k)
                wanted.add(ways[reader]())
            try:
                reads = race(sets[setter], ways[reader], wanted, 0.15)
            except Mixed as error:
                where = f"{variant}, {layers} layers, bidirectional={both}: reads {reader}, sets {setter}"
                raise Mixed(f"{where}: {error}") from None
            seen["pairs of a reader and a setter"] += 1
            seen["reads"] += reads
    return seen


def control(options: argparse.Namespace) -> str:
    """Sets the parameters of a network one after the other. Readers must notice."""
    sys.setswitchinterval(1e-5)
    rnn, other = network(D, H, seed=0), network(D, H, seed=1)
    states, x = [rnn.state_dict(), other.state_dict()], normal(np.random.default_rng(options.seed), T, B, D)
    wanted = {call(rnn, x), call(other, x)}
    try:
        race(lambda k: [setattr(rnn, *item) for item in states[k].items()], lambda: call(rnn, x), wanted, 1.0)
    except Mixed:
        return "noticed"
    raise Wrong("readers did not notice a setter that works in two steps")


# --- processes ----------------------------------------------------------------------------------------------


class Load:
    """Threads that compute, train, set and (with a folder) save, until the body of `with` ends."""

    def __init__(self, seed: int, folder: Path | None) -> None:
        rng = np.random.default_rng(seed)
        self.rnn = network(12, 70, cell=str(rng.choice(["RNN", "LSTM", "GRU"])), num_layers=2)
        self.x, self.rows = normal(rng, 30, 40, 12), normal(rng, 3000, 300)
        self.stop, self.path = threading.Event(), os.path.join(folder or "", "m.safetensors")
        self.state = self.rnn.state_dict()
        self.want = self.result()
        jobs = [self.result, self.norm, self.train, self.set] + [self.save] * bool(folder)
        self.threads = [threading.Thread(target=self.loop, args=(job,), daemon=True) for job in jobs]

    def loop(self, job) -> None:
        while not self.stop.is_set():
            job()

    def result(self) -> bytes:
        return self.rnn(self.x)[0].tobytes() + self.norm()

    def norm(self) -> bytes:
        return lnrnn.layer_norm(self.rows, 300).tobytes()

    def train(self) -> None:
        y, _, tape = self.rnn.forward_train(self.x)
        self.rnn.backward(tape, y)

    def set(self) -> None:
        self.rnn.load_state_dict(self.state)

    def save(self) -> None:
        self.rnn.save(self.path)

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in self.threads), "a thread hangs"


def ended(child: int) -> int:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("a child hangs")


def child_of(load: Load) -> None:
    """Runs in a forked child: computes, sets the number of threads, trains, saves, and forks."""
    code = 1
    try:
        same = load.result() == load.want
        lnrnn.set_num_threads(3)
        load.train()
        load.set()
        load.path += str(os.getpid())
        load.save()
        inner = os.fork()
        if not inner:
            os._exit(0 if load.result() == load.want else 3)
        code = 0 if same and ended(inner) == 0 else 2
    finally:
        os._exit(code)


def fork(options: argparse.Namespace) -> Counter[str]:
    rng, seen = np.random.default_rng(options.seed), Counter()
    warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks in a process with threads
    lnrnn.set_num_threads(2)
    for _ in until(options.seconds):
        with Load(int(rng.integers(1000)), options.folder) as load:
            for _ in range(8):
                time.sleep(rng.uniform(0, 0.02))
                child = os.fork()
                if not child:
                    child_of(load)
                status = ended(child)
                assert status == 0, f"child: status {status}"
                assert load.result() == load.want, "the parent computes other bits"
                seen["children"] += 1
                seen["grandchildren"] += 1
    return seen


PARTS = {"control": control, "readers": read_and_set, "fork": fork}
