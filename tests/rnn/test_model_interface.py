"""What one does with RNN, LSTM and GRU beside calling them: parameters, copies, files, streams, and what is
refused."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

import lnrnn
from helpers import NOT_REAL, absolute_error, named
from networks import CELLS, VARIANTS, calm, drawn_state, network, normal, parts, reference_forward, spec

T = 7
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
same = np.testing.assert_array_equal
each_variant = pytest.mark.parametrize("name", VARIANTS)
each_cell = pytest.mark.parametrize("cell", CELLS)


def equal(rnn, got, want):
    for a, b in zip((got[0], *parts(rnn, got[1])), (want[0], *parts(rnn, want[1])), strict=True):
        same(a, b)


# --- parameters ---------------------------------------------------------------------------------------------

VECTORS = {
    "none": "bias_ih bias_hh",
    "split": "gain_ih gain_hh bias_ih bias_hh",
    "joint": "gain bias",
    "gate": "gain bias",
    "batch": "gain_ih gain_hh bias",
}


@each_variant
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_names_and_shapes(name, bias, inner):
    cell, *place = name.split()
    place = place or ["joint"]
    options = dict(VARIANTS[name])
    if inner and place[0] not in ("none", "batch"):
        options["norm"] = replace(options.pop("norm", lnrnn.LayerNormSpec()), inner_bias=True)
    rnn, G = network(3, 5, num_layers=2, bidirectional=True, bias=bias, **options), GATES[cell] * 5
    vectors = "gain bias" if name == "RNN batch" else VECTORS[place[0]]
    lengths = {vector: G for vector in vectors.split()}
    if name == "LSTM batch" or place[-1] in ("out", "carry"):
        lengths |= {"gain_c": 5, "bias_c": 5}
    lengths = {vector: n for vector, n in lengths.items() if bias or not vector.startswith("bias")}
    if inner and place[0] not in ("none", "batch"):
        lengths |= {"inner_bias_ih": G, "inner_bias_hh": G}
    want = {}
    for end, wide in (("_l0", 3), ("_l0_reverse", 3), ("_l1", 10), ("_l1_reverse", 10)):
        want |= {
            "weight_ih" + end: (G, wide),
            "weight_hh" + end: (G, 5),
            **{v + end: (n,) for v, n in lengths.items()},
        }
    assert {key: value.shape for key, value in rnn.parameters().items()} == want
    for key, value in rnn.parameters().items():
        assert getattr(rnn, key) is value and value.dtype == np.float32 and key in dir(rnn)
        with pytest.raises(ValueError, match="read-only"):
            value[...] = 0


@each_cell
def test_seeds(cell):
    """Gains 1, biases of norms 0, all else uniform in +-1/sqrt(H)."""
    for norm in ("layer", "batch", None, spec(None, inner_bias=True)):
        rnn, again, other = (getattr(lnrnn, cell)(3, 25, norm=norm, seed=s) for s in (5, 5, 6))
        for name, value in rnn.parameters().items():
            same(value, again.parameters()[name])
            if name.startswith(("weight", "inner")) or norm is None:
                assert np.abs(value).max() <= 0.2 and np.abs(value).max() > 0.15 and abs(value.mean()) < 0.06
                assert (value != other.parameters()[name]).any()
            else:
                assert (value == (1 if name.startswith("gain") else 0)).all()


@each_variant
def test_each_parameter_that_is_set_counts(rng, name):
    rnn = calm(3, 17, num_layers=2, bidirectional=True, trained=T, **VARIANTS[name])
    x = normal(rng, T, 3, 3)
    rnn(x)
    assert rnn.packed_bytes > 0 and f"packed_bytes={rnn.packed_bytes}" in repr(rnn)
    for key in rnn.parameters():
        before = rnn(x)[0]
        value = getattr(rnn, key) + rng.uniform(0.02, 0.05, getattr(rnn, key).shape)  # it stays calm
        setattr(rnn, key, value)
        same(getattr(rnn, key), value.astype(np.float32))
        y = rnn(x)[0]
        assert (y != before).any(), key
        assert absolute_error(y, reference_forward(rnn, x)[0]) < 3e-6, key


def loaded(rnn):
    other = type(rnn)(
        rnn.input_size, rnn.hidden_size, rnn.num_layers, norm=rnn.norm, bidirectional=rnn.bidirectional
    )
    other.load_state_dict(rnn.state_dict())
    return other


def saved(rnn):
    pytest.importorskip("safetensors")
    rnn.save("m.safetensors")
    return lnrnn.load("m.safetensors")


WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda rnn: pickle.loads(pickle.dumps(rnn)),
    "state_dict": loaded,
    "file": saved,
}


@each_variant
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_has_its_own_life(rng, tmp_path, monkeypatch, name, way):
    monkeypatch.chdir(tmp_path)
    rnn = network(3, 17, num_layers=2, bidirectional=True, trained=T, **VARIANTS[name])
    x, h0, ends = normal(rng, T, 5, 3), drawn_state(rng, rnn, 5), [7, 0, 3, 7, 1]
    want, state = rnn(x, h0, ends), rnn.state_dict()
    twin = WAYS[way](rnn)
    assert type(twin) is type(rnn)
    for field in ("norm", "overrun", "known_steps", "bias", "batch_first", "num_layers", "dtype"):
        assert getattr(twin, field) == getattr(rnn, field)
    equal(rnn, twin(x, h0, ends), want)
    assert list(twin.state_dict()) == list(state)
    for key, value in twin.state_dict().items():
        same(value, state[key])
    twin.weight_hh_l1 = -twin.weight_hh_l1
    assert (twin(x, h0, ends)[0] != want[0]).any()
    for key, value in rnn.state_dict().items():
        same(value, state[key])
    equal(rnn, rnn(x, h0, ends), want)


@each_variant
@pytest.mark.parametrize(
    "dtype, most", [("bfloat16", 0.01), ("int8", 0.02)]
)  # measured at most: 0.006, 0.013
def test_weights_of_another_type(isa, rng, name, dtype, most):
    """Near what the whole weights give, of half and a quarter of their bytes, and back without a loss."""
    rnn = calm(64, 96, trained=T, **VARIANTS[name])
    x = normal(rng, T, 5, 64)
    short = rnn.to_dtype(dtype)
    want, got = rnn(x), short(x)
    assert 0 < absolute_error(got[0], want[0]) < most
    assert short.dtype == dtype and short.packed_bytes < rnn.packed_bytes / (
        1.9 if dtype == "bfloat16" else 3
    )
    equal(rnn, short.to_dtype("float32")(x), want)


def test_what_a_spec_becomes():
    """norm says what the cell has: a placement, and a cell where there is a cell state."""
    made = {cell: getattr(lnrnn, cell)(2, 3) for cell in CELLS}
    assert [made[cell].norm.placement for cell in CELLS] == ["joint", "split", "split"]
    assert [made[cell].norm.cell for cell in CELLS] == [None, "out", None]
    assert lnrnn.RNN(2, 3, norm=spec("gate")).norm == made["RNN"].norm
    for rnn in made.values():
        assert type(rnn)(2, 3, norm=rnn.norm).norm == rnn.norm


@pytest.mark.parametrize(
    "cell, word, norm",
    [
        ("RNN", "cell", spec(None, "carry")),
        ("GRU", "cell", spec("gate", "carry")),
        ("RNN", "span", spec("split", span="all")),
        ("LSTM", "span", spec("split", span="all")),
        ("GRU", "span", spec("gate", span="all")),
        ("GRU", "span", spec("joint", span="all")),
        ("LSTM", "norm", "Layer"),
        ("GRU", "norm", "instance"),
    ],
)
def test_norms_that_a_cell_does_not_have(cell, word, norm):
    with pytest.raises(ValueError, match=named(word)):
        getattr(lnrnn, cell)(2, 3, norm=norm)


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_only_an_rnn_has_a_choice_of_nonlinearity(cell):
    with pytest.raises(TypeError, match="nonlinearity"):
        getattr(lnrnn, cell)(2, 3, nonlinearity="relu")


# --- streams ------------------------------------------------------------------------------------------------


@each_variant
@pytest.mark.parametrize("batch, hidden, layers", [(1, 1, 1), (1, 33, 3), (5, 48, 1), (13, 97, 2)])
def test_a_stream_gives_the_bits_of_the_whole_sequence(family, rng, name, batch, hidden, layers):
    """From any state, stopped anywhere and taken up by another stream."""
    rnn = network(3, hidden, num_layers=layers, trained=T, **VARIANTS[name])
    x, h0 = normal(rng, T, batch, 3), drawn_state(rng, rnn, batch)
    want = rnn(x, h0)
    first, second = rnn.stream(batch), rnn.stream(batch)
    first.state = h0
    y = [np.array(first(row)) for row in x[:3]]
    second.state, second.step = first.state, first.step
    y += [np.array(second(row)) for row in x[3:]]
    equal(rnn, (np.array(y), second.state), want)
    for kept in parts(rnn, second.state):
        kept[...] = np.nan  # a copy
    equal(rnn, (want[0], second.state), want)
    second.reset()
    assert (second.step == 0).all() and not any(s.any() for s in parts(rnn, second.state))
    same([np.array(second(row)) for row in x], rnn(x)[0])


@each_cell
def test_a_bidirectional_network_does_not_stream(cell):
    with pytest.raises(ValueError, match="bidirectional"):
        network(3, 5, cell=cell, bidirectional=True).stream()


# --- bad input ----------------------------------------------------------------------------------------------

X = np.ones((T, 4, 3), np.float32)


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("trained", [False, True])
def test_states_that_do_not_fit(cell, trained):
    rnn = network(3, 5, cell=cell, num_layers=2)
    call = rnn.forward_train if trained else rnn
    shapes = [(4, 5), (2, 4, 6), (1, 4, 5), (2, 5), (2, 4, 5, 1)]
    for bad in (*map(np.ones, shapes), *NOT_REAL[:5]):
        error = ValueError if isinstance(bad, np.ndarray) and bad.dtype == float else TypeError
        good = np.ones((2, 4, 5))
        for given in [(good, bad), (bad, good)] if cell == "LSTM" else [bad]:
            with pytest.raises(error, match=named("h0")):
                call(X, given)
            with pytest.raises(error, match=named("state")):
                rnn.stream(4).state = given
    stream = rnn.stream(4)
    no_pairs = [np.ones((2, 2, 4, 5)), np.ones((2, 4, 5)), (good,), (good,) * 3, "ab", 3]
    for bad in no_pairs if cell == "LSTM" else [(good, good)]:
        with pytest.raises((TypeError, ValueError), match=named("h0")):
            call(X, bad)
        with pytest.raises((TypeError, ValueError), match=named("state")):
            stream.state = bad
    assert not any(s.any() for s in parts(rnn, stream.state))  # nothing was half set


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("norm", ["layer", "batch", None])
def test_the_rest_is_refused_by_name(cell, norm):
    rnn = network(3, 5, cell=cell, norm=norm, trained=T)
    state = {name: value.tobytes() for name, value in rnn.state_dict().items()}
    for error, name, options in [
        (ValueError, "x", dict(x=np.ones((T, 4, 2)))),
        (ValueError, "x", dict(x=np.ones(3))),
        (TypeError, "x", dict(x="abc")),
        (ValueError, "lengths", dict(lengths=[1, 2, 3])),
        (ValueError, "lengths", dict(lengths=[1, 2, 3, T + 1])),
        (ValueError, "lengths", dict(lengths=[1, 2, 3, -1])),
        (TypeError, "lengths", dict(lengths=[1.0, 2, 3, 4])),
    ]:
        with pytest.raises(error, match=named(name)):
            rnn(**dict(x=X) | options)
    for name, value in rnn.parameters().items():
        with pytest.raises(ValueError, match=named(name)):
            setattr(rnn, name, value[:-1])
    for name in rnn.state_dict():
        with pytest.raises(ValueError, match=named(name)):
            rnn.load_state_dict({key: value for key, value in rnn.state_dict().items() if key != name})
    for name in ("hidden_size", "norm", "num_directions"):
        with pytest.raises(AttributeError, match=name):
            setattr(rnn, name, 3)
    assert {name: value.tobytes() for name, value in rnn.state_dict().items()} == state
