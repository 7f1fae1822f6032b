"""What several test files share: every ISA in turn, errors measured one way, arrays of every kind."""

from __future__ import annotations

import argparse
import importlib.util
import json
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DATA = Path(__file__).parents[1] / "data"

FLOATS = (np.float32, np.float64)

each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.__name__)

# What float32 is held to, float64 has to reach 2^29 times better: the same roundings, of 2^-53 and not 2^-24.
SCALE = {np.float32: 1.0, np.float64: 2.0**-29}

# More than three vectors of the widest ISA, one value at a time; then odd sizes beyond.
LENGTHS = (*range(1, 51), 63, 64, 65, 127, 129, 255, 257, 1000, 1023, 1024, 4099)


# --- ISAs ---------------------------------------------------------------------------------------------------


def available_isas() -> list[str]:
    """The ISAs of this machine, whatever LNRNN_ISA says."""
    import lnrnn

    return list(lnrnn.cpu_info()["available"])


# A set that is not tested where the machine has another one: that has all its kernels, together with a third
# one; or all but the int8 product, which test_units.py holds to the bits of that other one.
INSTEAD = {"avx512vnni": "avx512bf16", "avxvnni": "avx2", "neonbf16": "neoni8mm", "neondot": "neon"}


def tested_isas() -> list[str]:
    """Of these as many as have all kernels of all."""
    available = available_isas()
    return [name for name in available if INSTEAD.get(name) not in available]


def isa_families() -> list[str]:
    """The ISAs of this machine that differ in more than the products of bfloat16 and int8, which are all that
    sets with a unit have of their own."""
    return [name for name in available_isas() if name in ("avx512", "avx2", "sse2", "neon", "scalar")]


def without_units(name: str) -> str:
    """The set that a set with units has all other kernels from."""
    return "neon" if name.startswith("neon") else "avx2" if name == "avxvnni" else "avx512"


def rounds_bfloat16_rows() -> bool:
    """Whether the set in use multiplies bfloat16 weights with rows that are rounded to bfloat16 too."""
    import lnrnn

    return lnrnn.cpu_info()["units"]["bfloat16"] is not None


def isa_options(doc: str | None) -> argparse.ArgumentParser:
    """The parser of a program that goes through instruction sets: --isa, which says through which."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", action="append", help="only this instruction set; may be repeated")
    return parser


@contextmanager
def using_isa(name: str):
    """Run the body with the kernels of one ISA. The `isa` fixture does this for a whole test."""
    import lnrnn
    from lnrnn import _core

    before = lnrnn.cpu_info()["isa"]
    _core.use_isa(name)
    try:
        assert lnrnn.cpu_info()["isa"] == name
        yield name
    finally:
        _core.use_isa(before)


def on_every_isa(compute, names=None) -> dict[str, object]:
    """compute() once per ISA: {isa: result}. For property tests, where a fixture spans all examples."""
    results = {}
    for name in tested_isas() if names is None else names:
        with using_isa(name):
            results[name] = compute()
    return results


def on_every_family(compute) -> dict[str, object]:
    """As on_every_isa, for what is never shorter than float32."""
    return on_every_isa(compute, isa_families())


@contextmanager
def using_threads(n: int):
    """Run the body with up to n threads a call."""
    import lnrnn

    before = lnrnn.get_num_threads()
    lnrnn.set_num_threads(n)
    try:
        yield
    finally:
        lnrnn.set_num_threads(before)


# Bytes from which on an output is larger than the caches are in the body of using_small_caches.
LARGE_OUTPUT = 1 << 19


def using_small_caches():
    return using_caches((1 << 15, 1 << 18, LARGE_OUTPUT // 3 * 8))


@contextmanager
def using_caches(sizes: tuple[int, int, int] | None, reads_ahead: bool = False):
    """Run the body as on a machine whose L1, L2 and L3 have so many bytes, and whose cores read ahead by
    themselves or need prefetches; None: as it is."""
    from lnrnn import _core

    before = (*_core.caches(), _core.reads_ahead()) if sizes else None
    if sizes:
        _core.set_caches(*sizes, reads_ahead)
    try:
        yield
    finally:
        if before:
            _core.set_caches(*before)


FAST_L3 = (
    dict(multiply_adds=57, l2=105, l3=60, memory=20, all_memory=200, barrier=150, barrier_thread=60),
    (32 << 10, 1 << 20, 32 << 20),
)
SLOW_L3 = (
    dict(multiply_adds=86, l2=210, l3=28, memory=12, all_memory=250, barrier=250, barrier_thread=80),
    (48 << 10, 2 << 20, 260 << 20),
)
MACHINES = {"fast L3": FAST_L3, "slow L3": SLOW_L3}


@contextmanager
def on_machine(name: str):
    """Run the body with the CPU model and the caches of one of MACHINES."""
    from lnrnn import _core

    model, caches = MACHINES[name]
    before = _core.cpu_model()
    with using_caches(caches):
        _core.set_cpu_model(**model)
        try:
            yield
        finally:
            _core.set_cpu_model(**before)


@contextmanager
def _setting(setter: str, values: tuple, usual: tuple):
    """Run the body after _core.setter(*values)."""
    from lnrnn import _core

    getattr(_core, setter)(*values)
    try:
        yield
    finally:
        getattr(_core, setter)(*usual)


@contextmanager
def _switched(switch: str, value: Any, usual: Any):
    """Run the body after engine_switches.switch(value)."""
    import engine_switches

    getattr(engine_switches, switch)(value)
    try:
        yield
    finally:
        getattr(engine_switches, switch)(usual)


def using_partition(groups: int, units: int = 1, rows: bool = False):
    """Run the body with so many groups of sequences at a time and so many threads to each, which divide the
    units of a step, and with `rows` the rows of the states too: wherever a call may have as many threads."""
    return _setting("set_partition", (groups, units, rows), ())


def in_parts_of(size: float):
    """Run the body with long calls done in parts of so many multiply-adds, 1 being a step of a group."""
    return _switched("set_part", size, 0)


def using_network_way(way: str):
    """Run the body with layers and directions "in turn", "side by side" where that can be, or "fastest"."""
    return _switched("set_network_way", way, "fastest")


@contextmanager
def several_threads(n: int, divide: str = "tasks", had: int | None = None):
    """Run the body with up to n threads a call and assert that the largest team of its calls was one of n, or
    of `had`: that so many divided "tasks" (rows, sequences, blocks of a gradient), the "units" of a step, or
    "either" of these. A team of 1: every call ran alone.

    Calls do not run alone here for having waited for a busy core before.
    """
    import lnrnn
    from lnrnn import _core

    with using_threads(n):
        _core.set_barrier_mode("together")
        _core.teams_had()
        try:
            yield
            teams = dict(zip(("tasks", "units"), _core.teams_had(), strict=True))
        finally:
            _core.set_barrier_mode("normal")
    had = n if had is None else had
    if lnrnn.cpu_info()["team"] != "none":
        largest = max(1, *teams.values()) if had == 1 or divide == "either" else teams[divide]
        assert largest == had, f"{had} of {n} threads were to divide {divide}; so many did: {teams}"


def together(work, callers: int, patience: float = 60) -> None:
    """work(k) for k in range(callers), each in its own thread, all begun at once; raises what one raises."""
    begin, failures = threading.Barrier(callers), []

    def run(k):
        try:
            begin.wait(30)
            work(k)
        except BaseException as error:  # a thread's error would be lost
            failures.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience)
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads)


def at_once(jobs) -> list:
    """Calls all jobs, each in a thread of its own, all begun at once. -> their results."""
    results = [None] * len(jobs)

    def work(k):
        results[k] = jobs[k]()

    together(work, len(jobs))
    return results


def seen_while(change, read, readers=3):
    """What `read` gives in some threads while `change` runs in another. -> a set."""
    stop = threading.Event()

    def changing():
        try:
            change()
        finally:
            stop.set()

    def reading():
        seen = {read()}
        while not stop.is_set():
            seen.add(read())
        return seen

    return set().union(*at_once([changing] + [reading] * readers)[1:])


# --- errors -------------------------------------------------------------------------------------------------


def _finite_pairs(got, want):
    """got and want as wide floats where both are finite; NaN and infinities must agree exactly."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    wide = np.result_type(got.dtype, want.dtype, np.float64)
    got, want = got.astype(wide), want.astype(wide)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg="NaN in other places")
    infinite = np.isinf(want) | np.isinf(got)
    np.testing.assert_array_equal(got[infinite], want[infinite], err_msg="infinities differ")
    finite = np.isfinite(want)
    return got[finite], want[finite]


def absolute_error(got, want) -> float:
    """max |got - want|."""
    got, want = _finite_pairs(got, want)
    return float(np.abs(got - want).max(initial=0))


def relative_error(got, want) -> float:
    """max |got - want| / max |want|: the error of the array as a whole, as for gradients; 0 / 0 is 0."""
    got, want = _finite_pairs(got, want)
    error, scale = np.abs(got - want).max(initial=0), np.abs(want).max(initial=0)
    return float(error if error == 0 else error / scale if scale else np.inf)


def ulp_error(got, want) -> float:
    """max |got - want| in units in the last place of got's dtype at want; want is wider than got.

    Where want overflows got's dtype, got must be that infinity; where want is tiny, the unit is the smallest
    denormal.
    """
    got, want = np.asarray(got), np.asarray(want)
    with np.errstate(over="ignore"):
        rounded = want.astype(got.dtype)
    want = np.where(np.isinf(rounded), rounded, want)
    unit = np.spacing(np.abs(rounded[np.isfinite(rounded)])).astype(np.float64)
    got, want = _finite_pairs(got, want)
    return float((np.abs(got - want) / unit).max(initial=0))


# --- inputs -------------------------------------------------------------------------------------------------


def normal(rng, shape, dtype):
    return rng.standard_normal(shape).astype(dtype)


def wide(*arrays):
    """Arguments for the reference, in longdouble: float64 kernels need a judge better than themselves."""
    return [None if a is None else np.asarray(a).astype(np.longdouble) for a in arrays]


def misaligned(x):
    """A copy of x that starts one byte off any alignment."""
    raw = np.zeros(x.nbytes + 1, np.uint8)
    y = raw[1:].view(x.dtype).reshape(x.shape)
    y[...] = x
    assert not y.flags.aligned or x.size == 0
    return y


def offset(x, by=1):
    """A copy of x that starts `by` elements off a vector's alignment, aligned for its own dtype."""
    y = np.zeros(x.size + by, x.dtype)[by:].reshape(x.shape)
    y[...] = x
    return y


class Kind(np.ndarray):
    """A subclass of NumPy's array, which has nothing of its own."""


def read_only(x):
    y = x.copy()
    y.flags.writeable = False
    return y


def layouts(x):
    """The values of x in every memory layout that NumPy can give them: {name: array equal to x}."""
    wide = np.zeros(tuple(2 * n for n in x.shape), x.dtype)
    strided = wide[tuple(slice(None, None, 2) for _ in x.shape)]
    strided[...] = x
    padded = np.full((*x.shape[:-1], x.shape[-1] + 3), np.nan, x.dtype)[..., 1:-2]
    padded[...] = x
    backwards = x[tuple(slice(None, None, -1) for _ in x.shape)].copy()
    record = np.zeros(1, [("x", x.dtype, x.shape[1:]), ("more", "i1")])["x"] if x.shape[:1] == (1,) else None
    if record is not None:
        record[...] = x
    found = {
        "fortran": np.asfortranarray(x),
        "strided": strided,
        "rows with gaps": padded,
        "negative strides": backwards[tuple(slice(None, None, -1) for _ in x.shape)],
        "one element off": offset(x),
        "misaligned": misaligned(x),
        "read-only": read_only(x),
        "broadcast": np.broadcast_to(x[:1], x.shape) if x.shape[0] == 1 else None,
        "of a packed record": record,  # strides that are no multiple of an element
        "foreign byte order": x.astype(x.dtype.newbyteorder()),
    }
    return {name: y for name, y in found.items() if y is not None}


# --- bad input ----------------------------------------------------------------------------------------------


def program(path):
    """A program of the tests as a module, under its path's name, for the test of a quick part of it. What it
    adds to sys.path stays there."""
    spec = importlib.util.spec_from_file_location("_".join(path.parts[-2:])[: -len(".py")], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Anything:
    """An object that is no number; its name is the same in every process, as the ids of tests have to be."""

    def __repr__(self):
        return "Anything()"


NOT_REAL = [
    np.zeros((3, 4), complex), np.zeros((3, 4), object), np.full((3, 4), "a"), "abcd", Anything(), {}, None,
    np.zeros((3, 4), "M8[s]"), [[1, 2], [3]], np.zeros((3, 4), [("a", "f4")]),
]  # fmt: skip


def bad_outs(x):
    """(error, out): what must be refused as the output of a function of x, a float32 matrix."""
    return [
        (ValueError, np.zeros(x.shape[::-1], np.float32)),
        (ValueError, np.zeros((1, *x.shape), np.float32)),
        (ValueError, np.broadcast_to(np.float32(0), x.shape)),
        (TypeError, np.zeros(x.shape, np.float64)),
        (TypeError, np.zeros(x.shape, ">f4")),
        (TypeError, np.zeros(x.shape, np.int32)),
        (TypeError, x.tolist()),
        (TypeError, 1),
    ]


def named(name):
    """A pattern for messages that say the name of an argument, as a word of its own."""
    return rf"(?<![\w']){name}(?![\w'])"


# --- vectors from elsewhere ---------------------------------------------------------------------------------


def onnx_cases(op: str) -> list[dict]:
    """ONNX's node tests of one operator: name, attributes, inputs and outputs as dicts of float32 arrays."""
    with np.load(DATA / "onnx_node_tests.npz") as z:
        values, index = z["values"], json.loads(str(z["index"]))
    cases, at = [], 0
    for case in index:
        for kind in ("inputs", "outputs"):
            for tensor, shape in case[kind].items():
                size = int(np.prod(shape))
                case[kind][tensor] = values[at : at + size].reshape(shape)
                at += size
        if case["op"] == op:
            cases.append(case)
    assert at == values.size and cases
    return cases
