"""Tests from_torch on state dicts of each library, without torch.

Compares converted networks with the formulas of the library. Errors name the fault.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import foreign_cells
import lnrnn
from importing import FOREIGN, assert_agrees, drawn, initial, list_key, stack
from lnrnn.importers.torch_weights import convert_torch
from lnrnn.importers.weights import reordered

T, B, I, H = 9, 3, 5, 12  # noqa: E741 - the letters of the shapes in the documentation
STACKS = [
    (name, layers, directions)
    for name, foreign in FOREIGN.items()
    for layers in (1, 2)
    for directions in (1, 2)
    if directions == 1 or foreign.key is not list_key
]


def options(name):
    """Returns arguments of from_torch for settings that a state dict of this system does not contain."""
    return {"zoneout": 0} if "haste" in name else {"nonlinearity": "tanh"} if name == "torch RNN" else {}


def converted(rng, foreign, asked, layers=1, directions=1, scale=1.0, **given):
    """Compares a converted random state dict with foreign.cell. Returns (network, state dict).

    asked: options of convert_torch. given: options of the formula. scale: factor of weight_hh."""
    parts, state = stack(rng, foreign, I, H, layers, directions)
    for value in (v for name, v in state.items() if "weight_hh" in name):
        value *= scale
    nested, states = initial(rng, foreign.states, layers, directions, B, H)
    x = rng.standard_normal((T, B, I))
    result = convert_torch(state, **asked)
    assert_agrees(result, foreign_cells.run(partial(foreign.cell, **given), x, parts, nested), x, states)
    return result, state


@pytest.mark.parametrize(("name", "layers", "directions"), STACKS)
def test_every_system_computes_its_formula(rng, name, layers, directions):
    result, state = converted(rng, FOREIGN[name], options(name), layers, directions)
    assert convert_torch(state, kind=name.split()[0].lower(), **options(name)).cell == result.cell


WITH_EPS = "fastrnns", "torchaudio", "icefall"
OPTIONS = [
    *((name, {"eps": 0.3}, {}, 1) for name in FOREIGN if name.split()[0] in WITH_EPS),
    ("torch RNN", {"nonlinearity": "relu"}, {}, 0.3),  # so that relu's states stay small over nine steps
    ("haste LSTM", {"zoneout": 0.3}, {"zoneout": (0.3, 0.0)}, 1),
    ("haste GRU", {"zoneout": 0.3}, {"zoneout": 0.3}, 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "result", "scale"), OPTIONS)
def test_the_given_options_are_used(rng, name, given, result, scale):
    network, _ = converted(rng, FOREIGN[name], given, 2, scale=scale, **given)
    for option, value in result.items():
        assert getattr(network.model(), option) == value


# --- names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["", "cell.", "0.cell.", "layers.0.cell.", "directions.0.cell.", "layers.0.", "lstm_layers.0."]
)
@pytest.mark.parametrize("name", ["torch GRU", "fastrnns", "icefall GRU", "torchaudio", "haste LSTM"])
def test_one_cell_is_found_at_any_path(rng, name, path):
    p = drawn(rng, FOREIGN[name].shapes(I, H))
    want = convert_torch({list_key(leaf, 0, 0, 1): v for leaf, v in p.items()}, **options(name))
    got = convert_torch({path + leaf: v for leaf, v in p.items()}, **options(name))
    assert got.arguments == want.arguments
    np.testing.assert_equal(got.state, want.state)


def test_prefix_selects_a_part_of_a_larger_model(rng):
    _, state = stack(rng, FOREIGN["torchaudio"], I, H, 2)
    larger = {f"predictor.lstm_layers.{key}": v for key, v in state.items()}
    larger |= {"predictor.linear.weight": np.ones((2, H))}
    result = convert_torch(larger, prefix="predictor.lstm_layers.")
    np.testing.assert_equal(result.state, convert_torch(state).state)
    asked = "prefix must start a key, got 'encoder.'; the keys are .*predictor.linear.weight"
    with pytest.raises(ValueError, match=asked):
        convert_torch(larger, prefix="encoder.")
    for prefix in ({}, {"prefix": "predictor."}):
        with pytest.raises(ValueError, match=r"a part of it: give prefix='predictor.lstm_layers.'$"):
            convert_torch(larger, **prefix)
    head = {"head.weight": np.ones(3)}
    two = {f"{part}.rnn.{key}": v for part in ("decoder", "encoder") for key, v in state.items()}
    with pytest.raises(
        ValueError, match="no known cell.*give prefix='decoder.rnn.' or prefix='encoder.rnn.'$"
    ):
        convert_torch(two | head)
    with pytest.raises(ValueError, match="unexpected head.weight; .*give prefix='layers.'$"):
        convert_torch({f"layers.{key}": v for key, v in state.items()} | head)
    with pytest.raises(ValueError, match="no known cell") as error:  # the model has no cell of this kind
        convert_torch(larger, kind="haste")
    assert "give prefix" not in str(error.value)
    own = {f"rnn.{key}": v for key, v in lnrnn.GRU(I, H, seed=0).state_dict().items()}
    with pytest.raises(ValueError, match="give prefix='rnn.'$"):
        convert_torch(own | head)
    with pytest.raises(ValueError, match="eps must be None for lnrnn's own parameters"):
        lnrnn.from_torch(lnrnn.GRU(I, H, seed=0).state_dict(), eps=1e-3)


def test_icefall_is_batch_first_and_the_others_are_not(rng):
    for name, foreign in FOREIGN.items():
        _, state = stack(rng, foreign, I, H)
        assert convert_torch(state, **options(name)).arguments["batch_first"] == ("icefall" in name)
        for given in (True, False):
            assert convert_torch(state, batch_first=given, **options(name)).arguments["batch_first"] is given


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, "bfloat16"])
def test_floating_dtypes_are_accepted(rng, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    _, state = stack(rng, FOREIGN["torch LSTM"], I, H)
    got = lnrnn.from_torch({name: v.astype(dtype) for name, v in state.items()})
    for name, value in state.items():
        np.testing.assert_array_equal(getattr(got, name), value.astype(dtype).astype(np.float32))


def test_arguments_are_neither_changed_nor_kept(rng):
    _, state = stack(rng, FOREIGN["haste GRU"], I, H)
    state = {name: v.astype(np.float32) for name, v in state.items()}
    before = {name: v.copy() for name, v in state.items()}
    model = lnrnn.from_torch(state, zoneout=0)
    np.testing.assert_equal(state, before)
    kept = {name: v.copy() for name, v in model.parameters().items()}
    for v in state.values():
        v[...] = 0
    np.testing.assert_equal(dict(model.parameters()), kept)


def test_a_state_dict_of_lnrnn_is_accepted(rng):
    rnn = lnrnn.RNN(I, H, 2, norm="batch", bidirectional=True, seed=1)
    rnn.forward_train(rng.standard_normal((4, B, I)))
    got = lnrnn.from_torch(rnn.state_dict(), norm=rnn.norm, nonlinearity="tanh")
    x = rng.standard_normal((4, B, I))
    np.testing.assert_array_equal(got(x)[0], rnn(x)[0])
    gru = lnrnn.GRU(I, H, norm=lnrnn.LayerNormSpec("gate", inner_bias=True), bias=False, seed=1)
    got = lnrnn.from_torch(gru.state_dict(), norm=gru.norm)
    np.testing.assert_array_equal(got(x)[0], gru(x)[0])
    with pytest.raises(ValueError, match="norm must be given"):
        lnrnn.from_torch(gru.state_dict())
    with pytest.raises(ValueError, match="gain_hh_l0"):
        lnrnn.from_torch(gru.state_dict(), norm="layer")


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("layers", [1, 2])
def test_each_missing_key_is_named(rng, name, layers):
    _, state = stack(rng, FOREIGN[name], I, H, layers)
    for key in state:
        with pytest.raises(ValueError, match="missing|no known cell|nearest") as error:
            convert_torch({k: v for k, v in state.items() if k != key}, **options(name))
        leaf = key.removeprefix("layers.").removesuffix("_l0").removesuffix("_l1").split("cell.")[-1]
        assert leaf.lstrip("01.") in str(error.value)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_surplus_key_is_named(rng, name):
    _, state = stack(rng, FOREIGN[name], I, H)
    with pytest.raises(ValueError, match="unexpected .*momentum"):
        convert_torch({**state, "momentum": np.ones(3)}, **options(name))


def other_inputs(key, value):
    """Returns [the shape for one input less, which is valid too], or [] if `value` multiplies no inputs."""
    if "weight_ih" in key or "x2g" in key:
        return [(value.shape[0], value.shape[1] - 1)]
    return [(value.shape[0] - 1, value.shape[1])] if key == "0.kernel" else []


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("cut", [lambda v: v[:-1], lambda v: v[None], lambda v: v[..., :-1], lambda v: v[:0]])
def test_each_wrong_shape_is_named(rng, name, cut):
    _, state = stack(rng, FOREIGN[name], I, H)
    for key, value in state.items():
        if cut(value).shape in other_inputs(key, value):
            continue
        with pytest.raises(ValueError, match="must be of shape") as error:
            convert_torch({**state, key: cut(value)}, **options(name))
        # If one matrix is wrong, others may seem wrong, so the message may name any key of the state dict.
        assert any(leaf in str(error.value) for leaf in FOREIGN[name].shapes(I, H))


def test_missing_layers_and_layers_that_do_not_fit_are_refused(rng):
    foreign = FOREIGN["fastrnns"]
    _, state = stack(rng, foreign, I, H, 3)
    with pytest.raises(ValueError, match="weight_hh of layer 1"):
        convert_torch({k: v for k, v in state.items() if ".1." not in k})
    with pytest.raises(ValueError, match="layer 999999999"):
        convert_torch({k.replace("layers.2", "layers.999999999"): v for k, v in state.items()})
    _, two = stack(rng, FOREIGN["torch GRU"], I, H, 2, 2)
    with pytest.raises(ValueError, match="bias_hh of layer 1, direction 1"):
        convert_torch({k: v for k, v in two.items() if not k.endswith("l1_reverse")})
    wide = {f"1.{leaf}": v for leaf, v in drawn(rng, FOREIGN["torchaudio"].shapes(H, H + 1)).items()}
    _, state = stack(rng, FOREIGN["torchaudio"], I, H)
    with pytest.raises(ValueError, match=f"same hidden_size, got {H} in layer 0, {H + 1} in layer 1"):
        convert_torch(state | wide)
    narrow = {f"1.{leaf}": v for leaf, v in drawn(rng, FOREIGN["torchaudio"].shapes(H + 1, H)).items()}
    with pytest.raises(ValueError, match=f"layer 1 must take {H} inputs"):
        convert_torch(state | narrow)


def test_a_key_of_a_distant_layer_is_refused_quickly(rng):
    """The number in the key claims that the network has very many layers."""
    p = drawn(rng, FOREIGN["torch LSTM"].shapes(I, H))
    far = {f"{name}_l{layer}": value for layer in (0, 10**6) for name, value in p.items()}
    with pytest.raises(ValueError, match=f"got layer {10**6} but only {len(far)} keys"):
        convert_torch(far)


def test_gates_are_reordered():
    """Some orders are not their own inverse, so the test notices a reordering in the wrong direction."""
    value = np.arange(6).reshape(3, 2)
    np.testing.assert_array_equal(reordered(value, "abc", "bca"), value[[1, 2, 0]])
    np.testing.assert_array_equal(reordered(value.T, "abc", "cab", axis=1), value.T[:, [2, 0, 1]])


def test_one_parameter_under_two_names_is_refused(rng):
    p = drawn(rng, FOREIGN["torch LSTM"].shapes(I, H))
    with pytest.raises(ValueError, match="got weight_ih and cell.weight_ih for weight_ih"):
        convert_torch(p | {"cell.weight_ih": p["weight_ih"]})


@pytest.mark.parametrize("key", ["weight_hr_l0", "layers.0.cell.weight_hr", "weight_hr"])
def test_projections_that_do_not_fit_are_refused(rng, key):
    foreign = FOREIGN["torch LSTM" if key.endswith("l0") else "icefall LSTM"]
    _, state = stack(rng, foreign, I, H)
    with pytest.raises(ValueError, match="weight_h[hr]"):
        convert_torch({**state, key: np.ones((3, H))})


def test_zoneout_must_be_given_as_an_option(rng):
    _, state = stack(rng, FOREIGN["haste LSTM"], I, H)
    with pytest.raises(ValueError, match="zoneout must be given for a state dict"):
        convert_torch(state)


def test_options_that_mean_nothing_are_refused(rng):
    for name, option in (
        ("fastrnns", {"zoneout": 0}),
        ("icefall GRU", {"nonlinearity": "tanh"}),
    ):
        _, state = stack(rng, FOREIGN[name], I, H)
        with pytest.raises(ValueError, match=next(iter(option))):
            convert_torch(state, **option)


def test_a_wrong_kind_is_refused(rng):
    for name, foreign in FOREIGN.items():
        _, state = stack(rng, foreign, I, H)
        for kind in ("torch", "nemo", "torchaudio", "icefall", "haste"):
            if kind.split()[0] not in (name.split()[0], {"fastrnns": "nemo"}.get(name)):
                with pytest.raises(ValueError, match="missing|unexpected|no known cell"):
                    convert_torch(state, kind=kind, **options(name))
