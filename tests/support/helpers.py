"""Helpers of many test files: instruction sets (ISAs), threads, measures of errors, arrays of every kind."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compilers import ISAS

DATA = Path(__file__).parents[1] / "data"

FLOATS = (np.float32, np.float64)

each_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.__name__)

# float64 rounds at 2^-53 instead of 2^-24, so its errors must be 2^29 times smaller than float32's. The
# reference rounds there too if longdouble is no wider, as on Windows and Apple silicon.
WIDER = np.finfo(np.longdouble).eps < np.finfo(np.float64).eps
SCALE = {np.float32: 1.0, np.float64: 2.0**-29 if WIDER else 2.0**-19}

# Widths of rows: all up to a little more than three vectors of the widest ISA, then some larger ones.
LENGTHS = (*range(1, 51), 63, 64, 65, 127, 129, 255, 257, 1000, 1023, 1024, 4099)


# --- ISAs ---------------------------------------------------------------------------------------------------


def available_isas() -> list[str]:
    """Returns the ISAs of this machine, independently of LNRNN_ISA."""
    import lnrnn

    return list(lnrnn.cpu_info()["available"])


def only_int8() -> list[str]:
    """Returns the ISAs of this machine that add only an int8 product, whose bits test_units.py compares."""
    return [name for name in available_isas() if ISAS[name][1] == ("INT8",)]


def tested_isas() -> list[str]:
    """Returns the other ISAs of this machine, which have all other kernels."""
    return [name for name in available_isas() if name not in only_int8()]


def isa_families() -> list[str]:
    """Returns the ISAs of this machine that differ in more than the products of bfloat16 and int8."""
    return [name for name in available_isas() if "NORM" in ISAS[name][1]]


def vector_families() -> list[str]:
    """Returns the families without scalar if there are others, for large sizes and for tests of threads.

    scalar takes ten times as long. Its vectors have one lane, and its panels two, so large sizes are no
    special cases."""
    return [name for name in isa_families() if name != "scalar"] or ["scalar"]


def without_units(name: str) -> str:
    """Returns the ISA from which ISA `name` has all kernels but its product of bfloat16 or int8.

    The flags of `name` for the compiler include those of this family.
    """
    flags = {family: {*ISAS[family][2]} for family in isa_families()}
    return max((family for family in flags if flags[family] <= {*ISAS[name][2]}), key=lambda f: len(flags[f]))


def rounds_bfloat16_rows() -> bool:
    """Returns whether the current ISA rounds x and h to bfloat16 in products with bfloat16 weights."""
    import lnrnn

    return lnrnn.cpu_info()["units"]["bfloat16"] is not None


def isa_options(doc: str | None) -> argparse.ArgumentParser:
    """Returns the parser of a program that runs on all instruction sets, or on those of --isa."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", action="append", help="only this instruction set; may be repeated")
    return parser


@contextmanager
def using_isa(name: str):
    """Runs the body with the kernels of one ISA. The `isa` fixture does this for a whole test."""
    from lnrnn import _core

    before = _core.isa()  # cpu_info asks the system for caches and cores, which takes a millisecond
    _core.use_isa(name)
    try:
        assert _core.isa() == name
        yield name
    finally:
        _core.use_isa(before)


def on_every_family(compute, large: bool = False) -> dict[str, object]:
    """Returns {isa: compute()} for each of `isa_families`, or with `large` for those with vectors. Property
    tests use it instead of the fixture `family`."""
    results = {}
    for name in vector_families() if large else isa_families():
        with using_isa(name):
            results[name] = compute()
    return results


@contextmanager
def using_threads(n: int):
    import lnrnn

    before = lnrnn.get_num_threads()
    lnrnn.set_num_threads(n)
    try:
        yield
    finally:
        lnrnn.set_num_threads(before)


# Outputs of at least this many bytes are larger than the caches of using_small_caches.
LARGE_OUTPUT = 1 << 19


def using_small_caches():
    return using_caches((1 << 15, 1 << 18, LARGE_OUTPUT // 3 * 8))


@contextmanager
def using_caches(sizes: tuple[int, int, int] | None, reads_ahead: bool = False):
    """Runs the body with these sizes of L1, L2 and L3 in bytes.

    None changes nothing. reads_ahead: whether cores prefetch by themselves, or need prefetch instructions."""
    import engine_switches

    before = engine_switches.get_caches()
    if sizes:
        engine_switches.set_caches(engine_switches.Caches(*sizes, reads_ahead))
    try:
        yield
    finally:
        engine_switches.set_caches(before)


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
    """Runs the body with the CPU model and the caches of one of MACHINES."""
    import engine_switches

    model, caches = MACHINES[name]
    before = engine_switches.get_cpu_model()
    with using_caches(caches):
        engine_switches.set_cpu_model(engine_switches.CpuModel(**model))
        try:
            yield
        finally:
            engine_switches.set_cpu_model(before)


@contextmanager
def _switched(switch: str, value: Any, usual: Any):
    import engine_switches

    getattr(engine_switches, switch)(value)
    try:
        yield
    finally:
        getattr(engine_switches, switch)(usual)


@contextmanager
def using_partition(groups: int, units: int = 1, rows: bool = False):
    """Runs the body with this number of groups of sequences at a time, and of threads for each group.

    The threads of a group divide the units of a step, and with `rows` the rows of the states too. Calls with
    too few threads ignore these numbers."""
    import engine_switches

    engine_switches.set_partition(groups, units, rows)
    try:
        yield
    finally:
        engine_switches.set_partition()


def in_parts_of(size: float):
    """Runs the body with long calls split into parts of `size` multiply-adds, or of one step of a group."""
    return _switched("set_part", size, 0)


def using_network_way(way: str):
    """Runs the body with layers and directions "in turn", "side by side" if possible, or "fastest"."""
    return _switched("set_network_way", way, "fastest")


def using_share_of_blocks(share: float):
    """Runs the body with weights packed as blocks if at most this share of blocks is not zero: 0 never, 1
    always."""
    return _switched("set_share_of_blocks", share, -1)


@contextmanager
def several_threads(n: int, divide: str = "tasks", had: int | None = None):
    """Runs the body with up to n threads for each call, and asserts that the largest team had n threads.

    had: the expected number of threads, if it is not n; 1: every call uses one thread. divide: the shared
    work: "tasks" (rows, sequences, blocks of a gradient), the "units" of a step, or "either". Busy cores have
    no influence, because the back-off is switched off."""
    import engine_switches
    from lnrnn import _core

    with using_threads(n):
        engine_switches.set_barrier_mode("together")
        engine_switches.teams_had()
        try:
            yield
            teams = dict(zip(("tasks", "units"), engine_switches.teams_had(), strict=True))
        finally:
            engine_switches.set_barrier_mode("normal")
    had = n if had is None else had
    if _core.team() != "none":
        largest = max(1, *teams.values()) if had == 1 or divide == "either" else teams[divide]
        assert largest == had, f"{had} of {n} threads should divide {divide}; the largest teams are {teams}"


def together(work, callers: int, patience: float = 60) -> None:
    """Calls work(k) for k in range(callers), each in its own thread, all at once. Raises the first error."""
    begin, failures = threading.Barrier(callers), []

    def run(k):
        try:
            begin.wait(30)
            work(k)
        except BaseException as error:  # raised below, because Python ignores a thread's error
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
    """Calls all jobs, each in its own thread, all at once. Returns their results."""
    results = [None] * len(jobs)

    def work(k):
        results[k] = jobs[k]()

    together(work, len(jobs))
    return results


def seen_while(change, read, readers=3):
    """Returns the set of results of `read`, called in some threads while `change` runs in another."""
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
    """Returns the finite values of got and want as wide floats. NaN and infinities must be equal."""
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
    got, want = _finite_pairs(got, want)
    return float(np.abs(got - want).max(initial=0))


def relative_error(got, want) -> float:
    """Returns max |got - want| / max |want|, the error of an array as a whole; 0 / 0 is 0.

    It is for gradients: small numbers are sums of large terms, whose roundings have no other bound."""
    got, want = _finite_pairs(got, want)
    error, scale = np.abs(got - want).max(initial=0), np.abs(want).max(initial=0)
    return float(error if error == 0 else error / scale if scale else np.inf)


def ulp_error(got, want) -> float:
    """Returns max |got - want| in units in the last place of got's dtype. want has a wider dtype.

    If want overflows got's dtype, got must be infinity of that sign. If want is tiny, the unit is the
    smallest denormal number."""
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
    """Converts arguments of the reference to longdouble, because tests of float64 need more precision."""
    return [None if a is None else np.asarray(a).astype(np.longdouble) for a in arrays]


def misaligned(x):
    """Returns a copy of x at an odd address."""
    raw = np.zeros(x.nbytes + 1, np.uint8)
    y = raw[1:].view(x.dtype).reshape(x.shape)
    y[...] = x
    assert not y.flags.aligned or x.size == 0
    return y


def offset(x, by=1):
    """Returns a copy of x that starts `by` elements after an address aligned for vectors."""
    y = np.zeros(x.size + by, x.dtype)[by:].reshape(x.shape)
    y[...] = x
    return y


class Kind(np.ndarray):
    """A subclass of ndarray that adds nothing."""


def read_only(x):
    y = x.copy()
    y.flags.writeable = False
    return y


def layouts(x):
    """Returns {name: array equal to x} for every memory layout of NumPy."""
    wide = np.zeros(tuple(2 * n for n in x.shape), x.dtype)
    strided = wide[tuple(slice(None, None, 2) for _ in x.shape)]
    strided[...] = x
    padded = np.full((*x.shape[:-1], x.shape[-1] + 3), np.nan, x.dtype)[..., 1:-2]
    padded[...] = x
    backwards = x[tuple(slice(None, None, -1) for _ in x.shape)].copy()
    record = np.zeros(1, [("x", x.dtype, x.shape[1:]), ("more", "i1")])["x"] if x.shape[:1] == (1,) else None
    if record is not None:
        record[...] = x
    result = {
        "fortran": np.asfortranarray(x),
        "strided": strided,
        "rows with gaps": padded,
        "negative strides": backwards[tuple(slice(None, None, -1) for _ in x.shape)],
        "one element off": offset(x),
        "misaligned": misaligned(x),
        "read-only": read_only(x),
        "broadcast": np.broadcast_to(x[:1], x.shape) if x.shape[0] == 1 else None,
        "of a packed record": record,  # its stride is no multiple of the element size
        "foreign byte order": x.astype(x.dtype.newbyteorder()),
    }
    return {name: y for name, y in result.items() if y is not None}


# --- bad input ----------------------------------------------------------------------------------------------


def program(path):
    """Imports a program as a module, to test parts of it. The program's additions to sys.path stay."""
    spec = importlib.util.spec_from_file_location("_".join(path.parts[-2:])[: -len(".py")], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Anything:
    """An object that is no number. Its repr is the same in every process, because ids of tests contain it."""

    def __repr__(self):
        return "Anything()"


NOT_REAL = [
    np.zeros((3, 4), complex), np.zeros((3, 4), object), np.full((3, 4), "a"), "abcd", Anything(), {}, None,
    np.zeros((3, 4), "M8[s]"), [[1, 2], [3]], np.zeros((3, 4), [("a", "f4")]), np.ma.array([1, 2]),
    np.ma.array(np.ones((3, 4), np.float32), mask=True), [np.ma.ones(2)] * 2,
]  # fmt: skip


def bad_outs(x):
    """Returns pairs (error, out): invalid arguments `out` for a function of the float32 matrix x."""
    return [
        (ValueError, np.zeros(x.shape[::-1], np.float32)),
        (ValueError, np.zeros((1, *x.shape), np.float32)),
        (ValueError, np.broadcast_to(np.float32(0), x.shape)),
        (TypeError, np.zeros(x.shape, np.float64)),
        (TypeError, np.zeros(x.shape, ">f4")),
        (TypeError, np.zeros(x.shape, np.int32)),
        (TypeError, np.ma.zeros(x.shape, np.float32)),
        (TypeError, x.tolist()),
        (TypeError, 1),
    ]


def sealed(data):
    """Returns bytes of a state with the digest that the format demands, so that other checks refuse them."""
    digest = hashlib.sha256(data[:35] + data[51:]).hexdigest()[:16]
    return data[:35] + digest.encode() + data[51:]


def named(name):
    """Returns a pattern for messages that contain this name of an argument as a word."""
    return rf"(?<![\w']){name}(?![\w'])"


# --- test data of ONNX --------------------------------------------------------------------------------------


def onnx_cases(op: str) -> list[dict]:
    """Returns ONNX's tests of one operator: dicts of name, attributes, inputs and outputs in float32."""
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
