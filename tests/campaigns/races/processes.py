"""Forks, spawned processes and the end of the interpreter, in the middle of calls of other threads.

    python tests/campaigns/races/processes.py fork|pools|exit [--seed N] [--seconds S]

fork: a child of a process whose threads are computing, and a grandchild, compute the same bits. pools:
multiprocessing by fork, forkserver and spawn. exit: the interpreter ends while daemon threads compute, train
and set, with a call in atexit: exit code 0, nothing said. They do not save: up to Python 3.13 a thread that
wants the interpreter's lock back after its end is ended by the system, which code in Rust, as that of
safetensors, answers by ending the process (github.com/PyO3/pyo3/issues/6084).
"""

from __future__ import annotations

import argparse
import atexit
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS / "support"), str(Path(__file__).parent)]

import numpy as np  # noqa: E402

import lnrnn  # noqa: E402
from networks import network, normal, run_python  # noqa: E402

PATIENCE = 30  # seconds until a child counts as hanging


class Load:
    """Threads that compute, train, set and, given a folder, save without end."""

    def __init__(self, seed: int, folder: str | None) -> None:
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
    """The status of a child, which may not hang."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("a child hangs")


def child_of(load: Load) -> None:
    """What a child does: it computes, sets threads, trains, saves, and has a child."""
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


def fork(seed: int, seconds: float) -> Counter[str]:
    rng, seen = np.random.default_rng(seed), Counter()
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            with Load(int(rng.integers(1000)), folder) as load:
                for _ in range(8):
                    time.sleep(rng.uniform(0, 0.02))
                    child = os.fork()
                    if not child:
                        child_of(load)
                    status = ended(child)
                    assert status == 0, f"child: status {status}; --seed {seed}"
                    assert load.result() == load.want, "the parent computes something else"
                    seen["children"] += 1
                    seen["grandchildren"] += 1
    return seen


def in_a_pool(seed: int) -> bytes:
    x = normal(np.random.default_rng(seed), 30, 40, 12)
    return network(12, 70, cell="GRU", num_layers=2)(x)[0].tobytes()


def pools(seed: int, seconds: float) -> Counter[str]:
    seen = Counter()
    end = time.monotonic() + seconds
    want = [in_a_pool(k) for k in range(6)]
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            for method in ("fork", "forkserver", "spawn"):
                with Load(seed, folder), multiprocessing.get_context(method).Pool(2) as pool:
                    assert pool.map_async(in_a_pool, range(6), 1).get(PATIENCE * 3) == want, method
                    rnn = network(12, 70, cell="LSTM")  # and as an argument, by pickle
                    got = pool.map_async(rnn, [np.ones((3, 12), np.float32)] * 2).get(PATIENCE)
                    assert np.array_equal(got[0][0], rnn(np.ones((3, 12)))[0])
                seen[f"pools by {method}"] += 1
    return seen


def end_of_the_interpreter(seed: int, wait: float, how: str) -> None:
    """Runs in a process of its own."""
    load = Load(seed, None)
    at_the_end = load.result

    def last() -> None:
        assert at_the_end() == load.want
        print("computed at exit", flush=True)

    atexit.register(last)
    load.__enter__()
    time.sleep(wait)
    if how == "exit":
        sys.exit(0)
    if how == "error":
        raise SystemExit(0)
    if how == "interrupt":
        signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
        os.kill(os.getpid(), signal.SIGINT)
        load.result()


def exit_(seed: int, seconds: float) -> Counter[str]:
    rng, seen = np.random.default_rng(seed), Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        how, wait = str(rng.choice(["end", "exit", "error", "interrupt"])), rng.uniform(0, 0.05)
        call = f"end_of_the_interpreter({rng.integers(1000)}, {wait}, {how!r})"
        code = f"import sys; sys.path[:0] = {sys.path!r}; import processes; processes.{call}"
        done = run_python(code, timeout=PATIENCE * 2, LNRNN_NUM_THREADS=str(rng.integers(1, 4)))
        said = done.stdout.split("\n")[0]
        assert done.returncode == 0 and said == "computed at exit" and not done.stderr, (
            f"{call}: exit {done.returncode}, {done.stdout}{done.stderr[-1500:]}"
        )
        seen[f"ends by {how}"] += 1
    return seen


def main() -> None:
    warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads: that is the test
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["fork", "pools", "exit"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    lnrnn.set_num_threads(2)
    seen = {"fork": fork, "pools": pools, "exit": exit_}[options.what](options.seed, options.seconds)
    print(f"{options.what}: {', '.join(f'{count} {name}' for name, count in sorted(seen.items()))}")


if __name__ == "__main__":
    main()
