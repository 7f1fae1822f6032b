"""Measures how many sequences per second `lnrnn.Scorer` and `lnrnn score` process.

    python tests/benchmarks/bulk.py             some minutes; --quick is a short run
    python tests/benchmarks/bulk.py --workers 1 2 4 --hidden 512

Sequences have 100 steps of 40 numbers. `rnn.ragged` on values in memory, and a Scorer on an Arrow table and
on a dict, take turns in one process on one thread. Then `lnrnn score` runs on a file, for every number
of workers. The shortest of --turns runs counts. A run on one row group measures how long the command
takes to start. All output files must have equal bytes."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import lnrnn

STEPS, INPUTS = 100, 40
ROOT = Path(lnrnn.__file__).parents[1]


def column(rng, rows):
    """Returns a column (rows,) of list<fixed_size_list<float, INPUTS>>."""
    values = rng.standard_normal(rows * STEPS * INPUTS, np.float32)
    steps = pa.FixedSizeListArray.from_arrays(pa.array(values), INPUTS)
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * STEPS), steps)


def in_one_process(path, rng, rows, rounds):
    """Returns the median seconds of a call of each function, over rounds in which each has a turn."""
    model = lnrnn.load(path)
    table = pa.table({"x": column(rng, rows)})
    steps = table["x"].chunk(0)
    values = steps.values.values.to_numpy().reshape(-1, INPUTS)
    offsets = steps.offsets.to_numpy().astype(np.int64)
    scorer = lnrnn.Scorer(path, "x")
    contenders = {
        "rnn.ragged": lambda: model.ragged(values, offsets, threads=1),
        "Scorer, Arrow": lambda: scorer(table),
        "Scorer, dict": lambda: scorer({"x": values, "x_offsets": offsets}),
    }
    state = contenders["rnn.ragged"]()[1]
    want = (state[0] if isinstance(state, tuple) else state)[-1]
    assert np.array_equal(scorer(table)["x_last"].combine_chunks().flatten().to_numpy(), want.reshape(-1))
    seconds = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            before = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - before)
    return {name: median(values) for name, values in seconds.items()}


def command(model, source, target, workers):
    """Returns how many seconds a process of `lnrnn score` takes."""
    words = [model, source, target, "--column", "x", "--workers", workers]
    before = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "lnrnn", "score", *map(str, words)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - before


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rows", type=int, default=50_000, help="of the file (default: 50000, 800 MB)")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7, help="in one process")
    parser.add_argument("--turns", type=int, default=3, help="of every command")
    parser.add_argument("--folder", type=Path, help="for the files (default: a temporary one)")
    parser.add_argument("--quick", action="store_true", help="few rows: a trial, no measurement")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.rounds, options.turns = 400, 1, 1
    rng = np.random.default_rng(0)
    info = lnrnn.cpu_info()
    cpu = platform.processor() or platform.machine()
    print(f"{cpu}, {info['cores']} cores, kernels {info['isa']}; LSTM, H = {options.hidden}, ", end="")
    print(f"{STEPS} steps of {INPUTS} numbers")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        model, source = Path(folder) / "m.safetensors", Path(folder) / "in.parquet"
        lnrnn.LSTM(INPUTS, options.hidden, seed=0).save(model)
        rows = min(2000, options.rows)
        seconds = in_one_process(model, rng, rows, options.rounds)
        for name, took in seconds.items():
            bare = seconds["rnn.ragged"] / took
            print(f"{name:<14} {rows / took:10.0f} sequences a second   {bare:.2f} of rnn.ragged", flush=True)

        groups = 40
        size = options.rows // groups
        with pq.ParquetWriter(source, pa.schema([("x", column(rng, 1).type)])) as writer:
            for _ in range(groups):
                writer.write_table(pa.table({"x": column(rng, size)}))
        small = source.with_name("small.parquet")
        pq.write_table(pq.ParquetFile(source).read_row_group(0), small)
        first = None
        seconds = {workers: [] for workers in options.workers}
        for _ in range(options.turns):
            for workers, took in seconds.items():
                target = source.with_name(f"{workers}.parquet")
                started = command(model, small, target, workers)
                target.unlink()
                took.append((command(model, source, target, workers), started))
                data = target.read_bytes()
                first = first or data
                assert data == first, workers
                target.unlink()
        for workers, each in seconds.items():
            took, started = map(min, zip(*each, strict=True))
            rate = size * (groups - 1) / (took - started)
            if workers == options.workers[0]:
                base = rate
            whole = f"{size * groups / took:10.0f} sequences a second from start to end"
            rest = f"{rate:10.0f} without starting ({rate / base:.2f}x), start {started:.1f} s"
            print(f"{workers:3} workers {whole}, {rest}")


if __name__ == "__main__":
    main()
