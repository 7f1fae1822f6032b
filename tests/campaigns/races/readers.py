"""Readers against setters, and many callers: threads of one process.

    python tests/campaigns/races/readers.py readers|callers|settings [--seed N] [--seconds S]

readers: while one thread sets something of a model between two versions, others have something of it in every
way there is: bit for bit of one version or of the other. callers: eight threads call one model, each its own
arrays; streams of it run beside. settings: the same while the number of threads changes, on every instruction
set (which may change only while nobody computes).
"""

from __future__ import annotations

import argparse
import copy
import pickle
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[2]
sys.path.insert(0, str(TESTS / "support"))

import numpy as np  # noqa: E402

import lnrnn  # noqa: E402
from helpers import at_once, available_isas, using_isa  # noqa: E402
from networks import VARIANTS, drawn_state, network, normal  # noqa: E402

T, B, D, H = 6, 4, 5, 9


def bits(found: Any) -> bytes:
    if isinstance(found, (tuple, list)):
        return b"".join(map(bits, found))
    return np.asarray(found).tobytes()


def shown(rnn) -> bytes:
    """What state_dict gives, as a reader of its own."""
    return bits(list(rnn.state_dict().values()))


def readers(rnn, x, folder: Path) -> dict[str, Callable[[], bytes]]:
    """Every way to have something of a model."""
    h0 = drawn_state(np.random.default_rng(3), rnn, B)
    ways = {
        "call": lambda: bits(rnn(x)),
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
        ways["stream"] = lambda: bits([s(row) for s in [rnn.stream(B)] for row in x])
    if rnn.norm is None or rnn.norm == type(rnn)(1, 1).norm:
        ways["forward_train"] = lambda: trained(rnn, x)
    return ways


def saved(rnn, folder: Path) -> bytes:
    path = folder / f"{threading.get_ident()}.safetensors"
    rnn.save(path)
    return shown(lnrnn.load(path))


def trained(rnn, x) -> bytes:
    y, h, tape = rnn.forward_train(x)
    gx, gh0, grads = rnn.backward(tape, y)
    return bits([y, h, gx, gh0, list(grads.values())])


def setters(rnn, other, rng) -> dict[str, Callable[[int], Any]]:
    """Every way to set something: with 0 one version, with 1 another."""
    states = [rnn.state_dict(), other.state_dict()]
    found = {"load_state_dict": lambda k: rnn.load_state_dict(states[k])}
    for name in rnn.parameters():
        found[name] = lambda k, name=name: setattr(rnn, name, states[k][name])
    if isinstance(rnn.norm, lnrnn.BatchNormSpec):
        data = [normal(rng, T, n, D) for n in (8, 13)]
        found["calibrate"] = lambda k: rnn.calibrate([data[k]])
        found["overrun"] = lambda k: setattr(rnn, "overrun", ("last", "mean")[k])
    return found


class Mixed(AssertionError):
    """What a reader had was neither of one version nor of the other."""


def race(change, read, wanted: set[bytes], seconds: float, threads: int = 3) -> int:
    """Reads in several threads while change(0), change(1), ... go on in another. -> how many reads."""
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
                raise Mixed("neither the one version nor the other")
            reads[place] += 1

    at_once([changing, *(lambda place=place: reading(place) for place in range(threads))])
    return sum(reads)


def read_and_set(seed: int, seconds: float, folder: Path) -> Counter[str]:
    """A random configuration, reader and setter, again and again."""
    rng, seen = np.random.default_rng(seed), Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        variant = str(rng.choice(list(VARIANTS)))
        layers, both = int(rng.integers(1, 4)), bool(rng.integers(2))
        options = dict(VARIANTS[variant], num_layers=layers, bidirectional=both, trained=T)
        rnn, other = network(D, H, seed=0, **options), network(D, H, seed=1, **options)
        ways, sets = readers(rnn, normal(rng, T, B, D), folder), setters(rnn, other, rng)
        for _ in range(6):
            way, what = str(rng.choice(list(ways))), str(rng.choice(list(sets)))
            wanted = set()
            for k in (0, 1):
                sets[what](k)
                wanted.add(ways[way]())
            try:
                reads = race(sets[what], ways[way], wanted, 0.15)
            except Mixed as error:
                case = f"{variant}, {layers} layers, bidirectional={both}: {way} beside {what}"
                raise Mixed(f"{case}: {error}; --seed {seed}") from None
            seen["pairs of a reader and a setter"] += 1
            seen["reads"] += reads
    return seen


def work(rng, rnn) -> list[tuple[Callable[[], bytes], bytes]]:
    """Calls of one model with arrays of their own, and streams."""
    found = []
    for k in range(8):
        x = normal(rng, int(rng.integers(1, 30)), int(rng.integers(1, 70)), rnn.input_size)
        if k % 4 == 3:
            jobs = lambda x=x: bits([s(row) for s in [rnn.stream(x.shape[1])] for row in x])  # noqa: E731
        elif k % 4 == 2 and "forward_train" in readers(rnn, x, Path()) and rnn.known_steps is None:
            jobs = lambda x=x: trained(rnn, x)  # noqa: E731
        else:
            jobs = lambda x=x: bits(rnn(x))  # noqa: E731
        found.append((jobs, jobs()))
    return found


def call_together(seed: int, seconds: float, changing: bool) -> Counter[str]:
    """Eight threads; with `changing` a ninth sets the number of threads, and each model has another
    instruction set."""
    rng, seen = np.random.default_rng(seed), Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        variant = str(rng.choice(list(VARIANTS)))
        spec = VARIANTS[variant]
        rnn = network(D, int(rng.integers(1, 150)), **spec, num_layers=int(rng.integers(1, 3)), trained=40)
        isa = str(rng.choice(available_isas())) if changing else lnrnn.cpu_info()["isa"]
        with using_isa(isa):
            jobs, stop = work(rng, rnn), threading.Event()

            def turning(stop=stop):
                k = 0
                while not stop.is_set():
                    lnrnn.set_num_threads(1 + k % 4)
                    k += 1

            side = threading.Thread(target=turning)
            if changing:
                side.start()
            try:
                for _ in range(3):
                    for got, (_, want) in zip(at_once([job for job, _ in jobs]), jobs, strict=True):
                        case = f"{variant}, H = {rnn.hidden_size}, {isa}"
                        assert got == want, f"{case}: other bits; --seed {seed}"
                        seen["calls"] += 1
            finally:
                stop.set()
                if changing:
                    side.join()
        seen["models"] += 1
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["readers", "callers", "settings"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    sys.setswitchinterval(1e-5)
    lnrnn.set_num_threads(2)
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "readers":
            seen = read_and_set(options.seed, options.seconds, Path(folder))
        else:
            seen = call_together(options.seed, options.seconds, options.what == "settings")
    print(f"{options.what}: {', '.join(f'{count} {name}' for name, count in seen.items())}")


if __name__ == "__main__":
    main()
