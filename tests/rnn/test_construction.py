"""Tests new networks: initial values, memory, parameters, and errors before memory is allocated."""

from __future__ import annotations

import copy
import json
import re
import tracemalloc
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error
from lnrnn.rnn.settings import snapshot
from networks import (
    CELLS,
    NORMS,
    VARIANTS,
    calm,
    each_cell,
    each_variant,
    equal,
    network,
    normal,
    reference_forward,
    same,
    spec,
)


def peak(make):
    """Returns the result of `make`, and the largest number of bytes in use while it ran."""
    tracemalloc.start()
    try:
        made = make()
        return made, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("cell, norm", [
    *((cell, norm) for cell in CELLS for norm in (*NORMS, spec(None, inner_bias=True))),
    ("SLSTM", "layer"), ("SLSTM", None),
], ids=str)  # fmt: skip
def test_a_seed_determines_the_initial_values(cell, norm):
    """One random generator draws all weights and biases in their order, uniformly from -1/sqrt(H) to
    1/sqrt(H). The gains of norms are 1, and their biases 0."""
    heads = dict(num_heads=1) if cell == "SLSTM" else {}  # H has no divisor
    make = partial(getattr(lnrnn, cell), 301, 149, 2, norm=norm, bidirectional=True, **heads)
    rnn, again, other, rng = make(seed=7), make(seed=None), make(seed=None), np.random.default_rng(7)
    for name, value in rnn.parameters().items():
        if name.startswith(("weight", "inner")) or norm is None or (heads and "_y_" not in name):
            want = rng.uniform(-(149**-0.5), 149**-0.5, value.shape).astype(np.float32)
            np.testing.assert_array_equal(value, want, err_msg=name)
            assert (getattr(again, name) != getattr(other, name)).any()
        else:
            assert (value == (1 if name.startswith("gain") else 0)).all()


@pytest.mark.parametrize(
    "rng", [7, [1, 2], np.random.SeedSequence(3), np.random.PCG64(4)], ids=lambda rng: type(rng).__name__
)
def test_rng_is_any_argument_of_default_rng(rng):
    generator = np.random.default_rng(copy.deepcopy(rng))
    rnn, same = lnrnn.RNN(3, 4, rng=rng), lnrnn.RNN(3, 4, rng=generator)
    np.testing.assert_array_equal(rnn.weight_ih_l0, same.weight_ih_l0)
    assert (lnrnn.RNN(3, 4, rng=generator).weight_ih_l0 != same.weight_ih_l0).any()  # the generator continues


@each_cell
def test_construction_allocates_little_more_than_the_weights(cell):
    rnn, most = peak(lambda: getattr(lnrnn, cell)(1024, 1024, seed=0))
    weights = sum(value.nbytes for value in rnn.parameters().values())
    assert weights <= most < 1.1 * weights


@pytest.mark.parametrize(
    "cell, inputs, hidden",
    [("RNN", 2**20, 2**20), ("LSTM", 2**19, 2**19), ("LSTM", 2**20, 2**18), ("GRU", 2**10, 605_395)],
)
def test_the_largest_allowed_weights(cell, inputs, hidden):
    """A matrix may have 2**40 elements. A larger matrix is refused before memory is allocated. The largest
    one passes the check of sizes, and is then refused for its wrong norm, so that the test allocates no
    memory."""
    gates = {"RNN": 1, "LSTM": 4, "GRU": 3}[cell]
    made = getattr(lnrnn, cell)
    assert gates * hidden * max(inputs, hidden) <= 2**40 < gates * (hidden + 1) * max(inputs, hidden + 1)
    with pytest.raises(ValueError, match="norm must be"):
        made(inputs, hidden, norm="none of these")
    for norm in ("none of these", "layer", "batch", None):
        with pytest.raises(ValueError, match=r"^hidden_size must be .*2\*\*40 elements"):
            made(inputs, hidden + 1, norm=norm)
    with pytest.raises(ValueError, match=r"2\*\*40 elements"):
        made(2**31 - 1, 2**31 - 1)


@pytest.mark.parametrize("known", [0, 3])
@pytest.mark.parametrize("room", [4, 10**6, 2**31 - 1])
def test_a_file_with_a_max_steps_beyond_its_tensors_is_refused(tmp_path, known, room):
    """max_steps is compared with the sizes of the tensors before memory for max_steps steps is allocated."""
    pytest.importorskip("safetensors")
    path = tmp_path / "m.safetensors"
    network(3, 5, norm="batch", trained=known).save(path)
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    config = json.loads(header["__metadata__"]["config"])
    config["norm"]["max_steps"] = room
    header["__metadata__"]["config"] = json.dumps(config)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size :])

    def load():
        want = rf"running_mean_l0 must be float64 \({room}, 5\), got float64 \({known}, 5\)"
        with pytest.raises(ValueError, match=want):
            lnrnn.load(path)

    assert peak(load)[1] < 300_000


T = 7
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3, "LiGRU": 2, "SLSTM": 4}


VECTORS = {
    "none": "bias_ih bias_hh",
    "split": "gain_ih gain_hh bias_ih bias_hh",
    "joint": "gain bias",
    "gate": "gain bias",
    "batch": "gain_ih gain_hh bias",
    "input": "gain_ih bias_ih",
    "output": "bias_ih bias_hh gain_y bias_y",
}


@each_variant
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_parameters_have_documented_names_and_shapes(variant, bias, inner):
    cell, *place = re.sub(" heads| reset| rms| peepholes", "", variant).split()
    options = dict(VARIANTS[variant])
    units = 1 if "num_heads" in options else 5
    if cell == "SLSTM":
        inner, place, units = False, ["none" if variant.endswith("none") else "output"], 5
    place = place or ["joint"]
    if inner and place[0] not in ("none", "batch"):
        options["norm"] = replace(options.pop("norm", lnrnn.LayerNormSpec()), inner_bias=True)
    rnn, G = network(3, 5, num_layers=2, bidirectional=True, bias=bias, **options), GATES[cell] * 5
    vectors = {"RNN batch": "gain bias", "LiGRU batch": VECTORS["input"]}.get(variant, VECTORS[place[0]])
    lengths = {vector: 5 if vector.endswith("_y") else G for vector in vectors.split()}
    if variant.startswith("LSTM batch") or place[-1] in ("out", "carry") or place == ["split", "projected"]:
        lengths |= {"gain_c": 5, "bias_c": 5}
    biases = bias and getattr(options.get("norm"), "bias", True)
    lengths = {vector: n for vector, n in lengths.items() if biases or not vector.startswith("bias")}
    if inner and place[0] not in ("none", "batch"):
        lengths |= {"inner_bias_ih": G, "inner_bias_hh": G}
    P, want = 2 if "projected" in variant else 5, {}
    for end, wide in (("_l0", 3), ("_l0_reverse", 3), ("_l1", 2 * P), ("_l1_reverse", 2 * P)):
        want |= {"weight_ih" + end: (G, wide), "weight_hh" + end: (G, P if P < 5 else units)}
        want |= {"weight_hr" + end: (P, 5)} if P < 5 else {}
        want |= {"peephole" + end: (15,)} if "peepholes" in variant else {}
        want |= {v + end: (n,) for v, n in lengths.items()}
    assert {key: value.shape for key, value in rnn.parameters().items()} == want
    for key, value in rnn.parameters().items():
        assert getattr(rnn, key) is value and value.dtype == np.float32 and key in dir(rnn)
        with pytest.raises(ValueError, match="read-only"):
            value[...] = 0


@each_variant
def test_each_parameter_affects_the_output(rng, variant):
    rnn = calm(3, 17, num_layers=2, bidirectional=True, trained=T, **VARIANTS[variant])
    x = normal(rng, T, 3, 3)
    rnn(x)
    assert rnn.packed_bytes > 0
    before = rnn(x)[0]
    for key in rnn.parameters():
        # A larger change could make the network amplify rounding errors.
        value = getattr(rnn, key) + rng.uniform(0.02, 0.05, getattr(rnn, key).shape)
        setattr(rnn, key, value)
        same(getattr(rnn, key), value.astype(np.float32))
        value[...] = np.nan  # the assignment has copied the value
        before, last = rnn(x)[0], before
        assert (before != last).any(), key
    assert absolute_error(before, reference_forward(rnn, x)[0]) < 3e-6


@each_variant
# The largest measured errors are 0.006 for bfloat16 and 0.013 for int8, but 0.015 and 0.026 for an SLSTM,
# which normalises y.
@pytest.mark.parametrize("dtype, most", [("bfloat16", 0.01), ("int8", 0.02)])
def test_to_dtype_is_accurate_small_and_reversible(isa, rng, variant, dtype, most):
    """Results are near those of float32 weights, and packed weights have a half or a quarter of the bytes.
    to_dtype("float32") restores the network."""
    rnn = calm(64, 96, trained=T, **VARIANTS[variant])
    x = normal(rng, T, 5, 64)
    short = rnn.to_dtype(dtype)
    want, got = rnn(x), short(x)
    most *= 2 if variant.startswith("SLSTM") else 1
    assert 0 < absolute_error(got[0], want[0]) < most
    smaller = {"bfloat16": 1.9, "int8": 3}[dtype]
    assert short.dtype == dtype and short.packed_bytes < rnn.packed_bytes / smaller
    equal(rnn, short.to_dtype("float32")(x), want)


def test_a_spec_is_resolved_for_its_cell():
    """rnn.norm always has a placement. It has `cell` only in an LSTM, which has a cell state."""
    made = {cell: getattr(lnrnn, cell)(2, 4) for cell in (*CELLS, "SLSTM")}
    found = [(rnn.norm.placement, rnn.norm.cell) for rnn in made.values()]
    assert found == [("joint", None), ("split", "out"), ("split", None), ("input", None), ("output", None)]
    assert lnrnn.RNN(2, 4, norm=spec("gate")).norm == made["RNN"].norm
    for rnn in made.values():
        assert type(rnn)(2, 4, norm=rnn.norm).norm == rnn.norm


# (cell, an argument that earlier versions did not have, a value that is not the default).
NEWER = [
    ("RNN", "reverse", True), ("LSTM", "num_heads", 2), ("GRU", "num_heads", 2), ("LSTM", "proj_size", 2),
    ("LSTM", "peepholes", True), ("GRU", "reset_after", False), ("GRU", "gate_activation", "hard_sigmoid"),
    ("SLSTM", "exp_forget", True), ("SLSTM", "state_dtype", "bfloat16"), ("LSTM", "zoneout", (0.25, 0.5)),
    ("LiGRU", "zoneout", 0.25),
]  # fmt: skip


@pytest.mark.parametrize("cell, name, value", NEWER)
def test_only_other_values_than_the_default_are_shown_and_stored(tmp_path, cell, name, value):
    pytest.importorskip("safetensors")
    plain, other = (getattr(lnrnn, cell)(3, 4, norm=None, seed=0) for _ in range(2))
    if name == "zoneout":
        other.zoneout = value
    else:
        other = getattr(lnrnn, cell)(3, 4, norm=None, seed=0, **{name: value})
    assert name not in repr(plain) and f"{name}={value!r}" in repr(other)
    plain.save(tmp_path / "plain")
    other.save(tmp_path / "other")
    assert name.encode() not in (tmp_path / "plain").read_bytes()
    assert getattr(lnrnn.load(tmp_path / "other"), name) == value
    assert not any("reverse" in key for key in other.state_dict())
    assert len({snapshot(rnn).fingerprint() for rnn in (plain, other, lnrnn.load(tmp_path / "plain"))}) == 2
