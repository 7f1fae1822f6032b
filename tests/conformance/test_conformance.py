"""Every face of a network has the bits of a call for each sequence alone, which has the reference's results.

All cells and norms meet settings of dtypes, directions, lengths, resets, states and threads.
A new face is a function of faces.py, and a new cell or norm a row of VARIANTS in tests/support/networks.py.
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
from cases import Case, alone, anything, is_float32
from faces import FACES, KERNELS

import lnrnn
from helpers import absolute_error
from networks import (
    VARIANTS,
    WITH_INNER_BIASES,
    calm,
    cell_of,
    drawn_state,
    normal,
    parts,
    reference_forward,
    sparse,
    zone_out,
)

KNOWN, QUICK = 4, "LSTM split out"
# Each setting is drawn with every variant. Unless it says otherwise: one layer of 17 units, 7 sequences of 6
# steps, zero states, one thread. lengths: the shortest one; one sequence has all steps. Batch norm has
# statistics of 4 steps, and repeats the last ones.
SETTINGS = {
    "one number": dict(T=1, B=1, D=1, H=1),
    "no step": dict(T=0, num_layers=3, state=True),
    "no sequence": dict(B=0, num_layers=2, bidirectional=True, resets=True),
    "one sequence": dict(B=1, D=20, H=33, num_layers=3, state=True),
    "threads": dict(T=32, B=70, D=33, H=98, state=True, lengths=0, resets=True, zoneout=(0.1, 0), threads=3),
    "threads, int8": dict(T=32, B=70, D=33, H=98, dtype="int8", lengths=0, threads=3),
    "lengths": dict(B=33, D=17, H=48, lengths=0, state=True, threads=2),
    "resets": dict(num_layers=2, nonlinearity="identity", resets=True, lengths=0, state=True),
    "resets from 0": dict(B=13, D=48, H=65, resets=True, overrun="mean"),
    "both ways": dict(num_layers=2, bidirectional=True, lengths=0, resets=True, state=True),
    "reverse": dict(B=20, H=15, reverse=True, nonlinearity="sigmoid", lengths=1, threads=2),
    "no bias": dict(
        B=3, bias=False, num_layers=2, bidirectional=True, nonlinearity="relu", lengths=1, state=True
    ),
    "zoneout": dict(zoneout=(0.25, 0.1), state=True, inner=True),
    "bfloat16": dict(dtype="bfloat16", num_layers=2, dropout=0.25, B=20, lengths=0),
    "int8": dict(dtype="int8", num_layers=2, B=20, D=33, H=48, lengths=0, state=True),
    "int8, 8 bits": dict(dtype="int8", bits=8, B=20, resets=True, zoneout=(0, 0.25)),
    "blocks": dict(B=9, D=16, H=48, density=0.3, num_layers=2, bidirectional=True, lengths=0, state=True),
    "blocks, threads": dict(T=32, B=70, D=32, H=192, density=0.35, lengths=0, threads=3),
    "blocks, bfloat16": dict(B=9, D=16, H=48, density=0.3, dtype="bfloat16", resets=True),
    "blocks, int8": dict(B=9, D=16, H=48, density=0.3, dtype="int8", num_layers=2, lengths=0),
}
USUAL = dict(
    T=6, B=7, D=3, H=17, dtype="float32", bits=None, zoneout=(0, 0), overrun="last", inner=False,
    nonlinearity=None, density=1,
)  # fmt: skip


def made(variant, D, H, dtype, bits, zoneout, overrun, inner, nonlinearity, density, **options):
    kind = WITH_INNER_BIASES.get(f"{variant} inner" if inner else variant, VARIANTS[variant])
    if kind["cell"] in ("RNN", "GRU", "LiGRU") and nonlinearity and not kind.get("nonlinearity"):
        options["nonlinearity"] = nonlinearity
    if kind["cell"] == "SLSTM" and dtype == "bfloat16":
        options["state_dtype"] = dtype
    rnn = calm(D, H, trained=KNOWN, **kind | options)
    if rnn.overrun is not None:
        rnn.overrun = overrun
        state = rnn.state_dict()  # modules of torch and files of ONNX have statistics of float32
        running = {name: a.astype(np.float32) for name, a in state.items() if name.startswith("running")}
        rnn.load_state_dict(state | running)
    zone_out(rnn, zoneout if cell_of(rnn) == "LSTM" else zoneout[0])
    return sparse(rnn, density).to_dtype(dtype, bits)


@cache
def drawn(variant, setting):
    given = USUAL | SETTINGS[setting]
    T, B, threads, least, resets, state = (
        given.pop(name, None) for name in ("T", "B", "threads", "lengths", "resets", "state")
    )
    make = partial(made, variant, **given)
    rng, rnn = np.random.default_rng(len(variant) * 100 + len(setting)), make()
    ends = np.full(B, T)
    if least is not None:
        ends = rng.permutation([least, T, *rng.integers(1, T + 1, B)][:B])
    x = normal(rng, T, B, given["D"])
    x[np.arange(T)[:, None] >= ends] = np.nan
    start = parts(rnn, drawn_state(rng, rnn, B)) if state else None
    resets = rng.random((T, B)) < 2 / max(T, 1) if resets else None
    return Case(make, x, start, ends, resets, threads or 1)


@cache
def wanted(variant, setting, isa):
    """Returns the result for each sequence alone, on the current instruction set."""
    return alone(drawn(variant, setting))


@cache
def true(variant, setting):
    """Returns the reference's result."""
    case = drawn(variant, setting)
    return reference_forward(case.rnn, np.nan_to_num(case.x), case.h0, case.lengths)


def some_settings(k, every, variant, takes):
    """Returns every n-th setting of those that a face takes. Other faces, and the next variants, have the
    others."""
    return [setting for setting in SETTINGS if takes(drawn(variant, setting))][k % every :: every]


def compare(face, variant, setting):
    """Asserts that a face has the bits of each sequence alone."""
    y, states = wanted(variant, setting, lnrnn.cpu_info()["isa"])
    got, ends = face(drawn(variant, setting))
    assert got.dtype == np.float32
    for a, b in zip((got, *(ends or ())), (y, *states), strict=bool(ends)):
        np.testing.assert_array_equal(a, b, err_msg=setting)


each_variant = pytest.mark.parametrize(
    "variant", [pytest.param(v, marks=[pytest.mark.quick] * (v == QUICK)) for v in VARIANTS]
)


@each_variant
@pytest.mark.parametrize("group", FACES)
def test_faces_have_the_bits_of_each_sequence_alone(group, variant):
    for k, (face, takes) in enumerate(FACES[group].values(), list(VARIANTS).index(variant)):
        for setting in some_settings(k, 5, variant, takes):
            compare(face, variant, setting)


# The tolerance, relative to a number above 1. The networks reduce errors from step to step. The states of an
# SLSTM are sums of terms that cancel, so its errors are relative to the largest number.
NEAR = 3e-6


@each_variant
def test_all_sets_have_these_bits_and_the_results_of_the_reference(family, variant):
    for setting in some_settings(list(VARIANTS).index(variant), 3, variant, anything):
        for face, takes in KERNELS.values():
            if takes(drawn(variant, setting)):
                compare(face, variant, setting)
        case = drawn(variant, setting)
        if is_float32(case) and case.resets is None:
            (y, states), (right, state) = wanted(variant, setting, family), true(variant, setting)[:2]
            for got, want in zip((y, *states), (right, *parts(case.rnn, state)), strict=True):
                size = np.maximum(1, np.abs(want))
                size = size.max(initial=1) if isinstance(case.rnn, lnrnn.SLSTM) else size
                assert absolute_error(got / size, want / size) < NEAR, setting
