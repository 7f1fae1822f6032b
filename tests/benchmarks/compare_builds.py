"""Compares the speed of this build with another one. Both take turns in one process, because a machine's
speed drifts by more than a few per cent between two runs.

    git worktree add ../before HEAD~1 && (cd ../before && python setup.py -q build_ext --inplace)
    PYTHONPATH=. python tests/benchmarks/compare_builds.py ../before/lnrnn
    PYTHONPATH=. python tests/benchmarks/compare_builds.py ../before/lnrnn --seconds 5 --pattern LSTM
    PYTHONPATH=. python tests/benchmarks/compare_builds.py --threads 2

Without another build, OpenMP's threads ("this") are compared with lnrnn's own ("other").
Answers are compared first, and a row says if their bits differ. Before
each turn the other build's threads go to sleep, and some calls are not timed. The columns are microseconds of
a call, minimum and lower quartile, and their ratio. Below 1 this build is faster. A copy of this build as the
other one shows the noise of the measurement."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

# Import this build first: Cython registers the first compiled module as "lnrnn._core".
import lnrnn  # isort: skip
import numpy as np

from race import Call, Pace, on_track, race

OTHER = "lnrnn_other"
COPY = tempfile.TemporaryDirectory()
TURN = 0.0004  # seconds; short, so that some turns run undisturbed
REST, WAKING, LONG_TURN = 0.06, 0.03, 0.02  # seconds; for several threads, because OpenMP spins after a call
FAR = 0.05  # a larger difference, relative to the largest value, is an error


def load(folder: Path) -> ModuleType:
    """Imports the package in `folder` from a copy. The copy and its shared library have other names, because
    a process loads only one library of a name."""
    if not (folder / "__init__.py").exists():
        raise SystemExit(f"{folder} is no package: it needs __init__.py and _core.*.so")
    folder = Path(shutil.copytree(folder, Path(COPY.name, OTHER)))
    for path in (*folder.glob("_core.*.so"), *folder.glob("liblnrnn.so.*")):
        renamed = path.with_name(path.name.replace("liblnrnn", "libother"))
        text = path.read_bytes().replace(b"liblnrnn.so.", b"libother.so.")
        path.unlink()
        renamed.write_bytes(text)
    place = folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(OTHER, place, submodule_search_locations=[str(folder)])
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[OTHER] = module
    spec.loader.exec_module(module)
    check_apart(module)
    return module


def check_apart(other: ModuleType) -> None:
    """Ends the program if the other build uses the compiled module of this build, or objects that it imported
    by `from lnrnn...` instead of `from .`."""
    ours, theirs = lnrnn._core.__file__, other._core.__file__
    if Path(ours).samefile(theirs):
        raise SystemExit(f"both builds have the same compiled module: {ours}")
    own = [module for name, module in sys.modules.items() if name.partition(".")[0] == OTHER]
    for module, value in ((one, value) for one in own for value in vars(one).values()):
        home = value if isinstance(value, ModuleType) else sys.modules.get(getattr(value, "__module__", None))
        # In both builds, functions of the compiled module have __module__ "lnrnn._core", so this attribute
        # does not tell them apart.
        compiled = home is lnrnn._core and value is not home
        if home is not None and home.__name__.partition(".")[0] == "lnrnn" and not compiled:
            raise SystemExit(f"{module.__name__} uses {value} of this build: it imports lnrnn by its name")


# (cell, batch, units, dtype); sequences have 20 steps
NETWORKS = (
    ("RNN", 1, 128, "float32"), ("LSTM", 1, 128, "float32"), ("GRU", 1, 128, "float32"),
    ("LSTM", 1, 100, "float32"), ("RNN", 1, 256, "float32"), ("RNN", 64, 128, "float32"),
    ("RNN", 8, 256, "float32"), ("LSTM", 8, 128, "float32"), ("LSTM", 17, 96, "float32"),
    ("GRU", 17, 96, "float32"), ("LSTM", 1, 512, "bfloat16"), ("LSTM", 1, 512, "int8"),
    ("RNN", 8, 256, "bfloat16"), ("RNN", 8, 256, "int8"),
)  # fmt: skip
STREAMS = (("RNN", 1, 128), ("LSTM", 1, 128), ("GRU", 8, 64))
ROWS = ((1, 64), (1, 1024), (64, 512), (512, 1024), (1000, 256), (256, 4096))

Make = Callable[[ModuleType], Callable[[], object]]


def cases() -> Iterator[tuple[str, Make]]:
    """Yields (name, function that returns a call of a build). Both builds use the same arrays, because the
    time of a call depends on their addresses."""
    rng = np.random.default_rng(0)

    def normal(*shape, dtype=np.float32):
        return rng.standard_normal(shape).astype(dtype)

    for cell, batch, units, dtype in NETWORKS:
        x = normal(20, batch, units)

        def network(build, cell=cell, units=units, dtype=dtype, x=x):
            return partial(getattr(build, cell)(units, units, seed=0).to_dtype(dtype), x)

        yield f"{cell} B{batch} H{units} {dtype}", network
    for cell, batch, units in STREAMS:
        x = normal(batch, units)

        def step(build, cell=cell, batch=batch, units=units, x=x):
            return partial(getattr(build, cell)(units, units, seed=0).stream(batch), x)

        yield f"{cell} B{batch} H{units} stream", step
    for norm in ("layer", "batch", None):
        x = normal(20, 16, 96)

        def train(build, norm=norm, x=x):
            model = build.LSTM(96, 96, norm=norm, seed=0)

            def forward_and_backward():
                y, _, tape = model.forward_train(x)
                gx, _, grads = model.backward(tape, y)
                return y, gx, *(grads[name] for name in sorted(grads))

            return forward_and_backward

        yield f"LSTM B16 H96 training {norm}", train
    for rows, n in ROWS:
        x, w, b = normal(rows, n), normal(n), normal(n)
        out = np.empty_like(x)
        yield (
            f"layer_norm {rows}x{n}",
            lambda build, x=x, w=w, b=b, out=out: partial(build.layer_norm, x, w.size, w, b, out=out),
        )
    x, gy, w = normal(512, 1024), normal(512, 1024), normal(1024)
    half, out = x.astype(np.float16), np.empty_like(x)
    half_out = np.empty_like(half)
    yield "layer_norm float16", lambda build: partial(build.layer_norm, half, 1024, out=half_out)
    yield "layer_norm_backward", lambda build: partial(build.layer_norm_backward, gy, x, 1024, w)
    yield "rms_norm", lambda build: partial(build.rms_norm, x, 1024, w, out=out)
    mean, var = normal(1024), rng.uniform(0.5, 2, 1024).astype(np.float32)
    yield "batch_norm", lambda build: partial(build.batch_norm, x, mean, var, w, w, out=out)
    yield (
        "batch_norm training",
        lambda build: partial(build.batch_norm, x, None, None, w, w, training=True, out=out),
    )
    yield "batch_norm_backward", lambda build: partial(build.batch_norm_backward, gy, x, None, None, w)


def arrays(answer) -> list[np.ndarray]:
    if isinstance(answer, tuple):
        return [array for part in answer for array in arrays(part)]
    return [] if answer is None else [np.array(answer)]


def difference(ours, theirs) -> float:
    """Returns max |a - b| / max |b| over the arrays of two answers, or 0 if all bits are equal."""
    ours, theirs = arrays(ours), arrays(theirs)
    if [(a.shape, a.dtype) for a in ours] != [(b.shape, b.dtype) for b in theirs]:
        raise SystemExit("the builds' answers have different shapes or dtypes")
    most = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a.tobytes() != b.tobytes():
            a, b = a.astype(np.float64), b.astype(np.float64)
            error = np.abs(a - b).max() / (np.abs(b).max() or 1)
            most = max(most, float(np.inf if np.isnan(error) else error), np.finfo(np.float64).tiny)
    return most


def after_rest(call, team: str | None) -> Call:
    def enter() -> None:
        if team:
            lnrnn._core.use_team(team)
        time.sleep(REST)
        until = time.perf_counter() + WAKING
        while time.perf_counter() < until:
            call()

    return Call(call, enter=enter)


def answer(call: Call) -> object:
    with on_track(call):
        return call.answer()


def compare(name: str, ours, theirs, seconds: float, threads: int, teams) -> str:
    if threads > 1:
        ours, theirs = map(after_rest, (ours, theirs), teams)
    else:
        ours, theirs = Call(ours), Call(theirs)
    apart = difference(answer(ours), answer(theirs))
    if apart > FAR:
        raise SystemExit(f"{name}: the answers differ by {apart:.1g} of the largest value")
    pace = Pace(rounds=10**9, turn=LONG_TURN if threads > 1 else TURN, limit=seconds)
    samples, _ = race({"this": ours, "other": theirs}, pace)
    row = f"{name:28s}"
    for q in (0, 0.25):
        this, other = (1e6 * float(np.quantile(samples[who], q)) for who in ("this", "other"))
        row += f" {this:10.2f} {other:10.2f} {this / other:7.3f}"
    return row + (f"   answers differ by {apart:.1g}" if apart else "")


def main() -> None:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    parser.add_argument("other", type=Path, nargs="?", help="the package folder of the other build")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row (default: 2)")
    parser.add_argument("--pattern", default="", help="only rows whose name contains this")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    other, teams = lnrnn, ("openmp", "pthread")
    if options.other:
        other, teams = load(options.other), (None, None)
    elif options.threads == 1 or sorted(lnrnn._core.team_list()) != sorted(teams):
        raise SystemExit(f"expected a build with OpenMP and --threads, got {lnrnn._core.team_list()}")
    for build in (lnrnn, other):
        build.set_num_threads(options.threads)
    print(f"this   {lnrnn._core.__file__}\nother  {other._core.__file__}\n")
    print(" " * 28, *(f"{least:>10s} {'other':>10s} {'ratio':>7s}" for least in ("least", "quartile")))
    for name, make in cases():
        if options.pattern in name:
            print(
                compare(name, make(lnrnn), make(other), options.seconds, options.threads, teams), flush=True
            )


if __name__ == "__main__":
    main()
