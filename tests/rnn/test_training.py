"""forward_train and backward of every cell and norm have the results of the reference. Also tests tapes."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import lnrnn
from helpers import absolute_error, available_isas, on_every_family, relative_error, using_isa
from lnrnn import reference as ref
from networks import (
    MILD,
    NONLINEARITIES,
    NORMS,
    WITH_INNER_BIASES,
    calm,
    drawn_run,
    drawn_state,
    each_cell,
    each_norm,
    equal_arrays,
    named_gradients,
    network,
    normal,
    nudged,
    parts,
    reference_forward,
    same,
    sides,
    spec,
    trained,
    true_gradients,
    whole,
)

by_row = pytest.mark.parametrize("norm", ["layer", None])  # with these norms sequences are independent
T = 9


def some_lengths(rng, norm, steps, batch):
    """Returns lengths from 0 to `steps`. With batch norm eight sequences have all steps, since statistics
    over few sequences amplify differences."""
    ends = rng.integers(0, steps + 1, batch)
    if norm == "batch":
        ends[:8] = steps
    return rng.permutation(ends)


def amplification(rnn, x, h0, ends, gy, gh, draws=3):
    """Returns {name: the change of the reference's gradient if its arguments are rounded to float32}."""
    rng = np.random.default_rng(0)
    want, moved = true_gradients(rnn, x, h0, ends, gy, gh), {}
    for _ in range(draws):
        other = copy.deepcopy(rnn)
        for name, value in rnn.parameters().items():
            setattr(other, name, nudged(rng, value))
        start, after = (whole(rnn, [nudged(rng, s) for s in parts(rnn, state)]) for state in (h0, gh))
        for name, value in true_gradients(other, nudged(rng, x), start, ends, nudged(rng, gy), after).items():
            moved[name] = max(moved.get(name, 0), relative_error(value, want[name]))
    return moved


# --- precision ----------------------------------------------------------------------------------------------

# Tolerances, relative to the largest entry of each gradient. The largest measured errors are 1.3e-6, and
# 5.4e-6 through three layers.
GRADIENT = 3e-6

# (hidden units, inputs, layers, directions, lengths). Sizes are near the widths of vectors and panels.
SIZES = [
    (15, 7, 1, 1, [5] * 5),
    (16, 31, 2, 1, [3] * 13),
    (17, 5, 1, 2, [9, 1, 9, 9, 9, 9, 9, 9, 9, 9, 5, 9, 0, 2]),
    (31, 33, 1, 1, [1] * 70),
    (33, 9, 2, 2, [4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1, 3, 0]),
    (47, 3, 1, 1, [5, 1, 2, 5, 3] + [5] * 28),
    (49, 16, 1, 1, [1] * 9),
    (64, 64, 1, 1, [9, 9, 9, 9, 9, 9, 9, 9, 9, 2]),
    (65, 33, 3, 1, [3, 3, 3, 3, 3, 3, 3, 3, 3, 2]),
    (97, 130, 1, 1, [2] * 31),
    (130, 17, 1, 2, [3, 2] * 9),
    (193, 65, 1, 1, [2] * 32),
]
KINDS = WITH_INNER_BIASES | {
    f"RNN {norm} {name}": dict(cell="RNN", norm=made, nonlinearity=name)
    for norm, made in {"layer": "layer", "batch": "batch", "none": None, "split": spec("split")}.items()
    for name in NONLINEARITIES[1:]
}


@pytest.mark.parametrize("name", KINDS)
def test_gradients_of_every_size_equal_the_reference(name):
    """A kind has every fourth size, the next ones the others. Each cell has many kinds."""
    kind, first = KINDS[name], list(KINDS).index(name) % 4
    for k, (hidden, inputs, layers, directions, ends) in list(enumerate(SIZES))[first::4]:
        inputs = 1 if inputs == 3 and kind["cell"] == "RNN" else inputs  # no norm is over its W x alone
        rnn = calm(inputs, hidden, seed=k, num_layers=layers, bidirectional=directions == 2, **kind)
        x, *rest = drawn_run(k, rnn, max(ends), ends)
        while not (want := true_gradients(rnn, x, *rest)):
            x = normal(np.random.default_rng(k + 100), *x.shape)
        for isa, got in on_every_family(partial(trained, rnn, x, *rest), large=hidden > 33).items():
            assert list(got)[-len(rnn.parameters()) :] == list(rnn.parameters())
            assert set(got) == set(want) and all(g.dtype == np.float32 for g in got.values())
            for key, g in got.items():
                assert relative_error(g, want[key]) < GRADIENT, (isa, key, hidden, inputs)


@each_cell
@pytest.mark.parametrize("width", [256, 264, 512, 768])
def test_backward_with_weights_of_several_panels(cell, width):
    """Matrices with rows of 1 or 2 KiB are read in place. Longer rows and partial vectors are packed."""
    rng = np.random.default_rng(width)
    rnn = calm(width, 256, cell=cell)
    for batch in (1, 9):
        x, gy, ends = normal(rng, 2, batch, width), normal(rng, 2, batch, 256), np.full(batch, 2)
        args = (x, drawn_state(rng, rnn, batch), ends, gy, drawn_state(rng, rnn, batch))
        want = true_gradients(rnn, *args)
        for isa, got in on_every_family(partial(trained, rnn, *args), large=batch > 1).items():
            for name, g in got.items():
                assert relative_error(g, want[name]) < GRADIENT, (isa, name, batch)


# (hidden units, inputs, batch).
AMPLIFYING = {
    "RNN": [(1, 5, 5), (2, 5, 5), (2, 5, 33), (3, 5, 2), (17, 5, 1), (33, 5, 2), (64, 5, 3)],
    "LSTM": [(1, 5, 5), (1, 1, 70), (2, 5, 5), (3, 5, 2), (5, 5, 33), (17, 1, 70)],
}
AMPLIFIED = {
    "RNN tanh": dict(cell="RNN"),
    "RNN identity": dict(cell="RNN", nonlinearity="identity"),
    "LSTM": dict(cell="LSTM"),
    "GRU": dict(cell="GRU"),
}


@pytest.mark.parametrize("kind", AMPLIFIED.values(), ids=AMPLIFIED)
@each_norm
def test_gradients_of_sizes_that_amplify(norm, kind):
    """A norm over two values is nearly the sign function; the gradients of a norm over one value are 0. Such
    norms are layer norm over two hidden units, or of W x with one input, and batch norm over two sequences.
    The error may be as large as the change of the reference by rounding its arguments to float32."""
    for hidden, inputs, batch in AMPLIFYING["RNN" if kind["cell"] == "RNN" else "LSTM"]:
        rng = np.random.default_rng(hidden)
        # Batch norm of one input hardly depends on the size of its weight, so the terms of the weight's
        # gradient cancel. MILD reduces this.
        rnn = calm(inputs, hidden, seed=3, norm=MILD if norm == "batch" and inputs == 1 else norm, **kind)
        ends = np.sort(rng.integers(0, T + 1, batch))
        x, gy = normal(rng, T, batch, inputs), normal(rng, T, batch, hidden)
        args = (x, drawn_state(rng, rnn, batch), ends, gy, drawn_state(rng, rnn, batch))
        want, loss = true_gradients(rnn, *args), amplification(rnn, *args)
        for isa, got in on_every_family(partial(trained, rnn, *args)).items():
            for name, g in got.items():
                # The terms of a gradient may cancel, so its errors are as large as those of the terms.
                size = np.abs(want[name]).max(initial=0)
                allowed = size * (GRADIENT + 2 * loss[name]) + 8e-6
                assert absolute_error(g, want[name]) < allowed, (isa, name, hidden)


@settings(max_examples=40)
@given(
    st.sampled_from([*(f"RNN {name}" for name in NONLINEARITIES), *["LSTM", "GRU"] * 3, "LiGRU"]),
    st.sampled_from(NORMS), st.integers(1, 3), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from((15, 17, 33, 48)), st.sampled_from((4, 5, 16, 33)), st.sampled_from((1, 9, 17, 33, 67)),
    st.sampled_from(["both", "gy", "gh"]), st.booleans(), st.integers(0, 99),
)  # fmt: skip
@example("RNN tanh", "batch", 2, True, True, True, 33, 5, 33, "both", False, 0)
@example("RNN sigmoid", None, 2, True, False, False, 17, 5, 9, "both", True, 0)
@example("LSTM", "layer", 2, True, True, True, 33, 5, 67, "both", True, 0)
@example("GRU", "layer", 2, True, False, False, 17, 5, 9, "both", False, 0)
@example("LSTM", "batch", 2, True, True, False, 17, 5, 67, "both", False, 0)
@example("GRU", "batch", 2, True, False, True, 33, 5, 67, "both", True, 0)
def test_gradients_of_layers_and_directions_equal_the_reference(
    kind, norm, layers, both, batch_first, bias, hidden, inputs, batch, given, drops, seed
):
    rng = np.random.default_rng(seed)
    cell, _, nonlinearity = kind.partition(" ")
    # Dropout may leave only one small value in a row. With a large eps layer norm does not amplify the value.
    norm = lnrnn.LayerNormSpec(eps=0.1) if norm == "layer" and drops else norm
    options = dict(cell=cell, norm=norm, num_layers=layers, bidirectional=both, batch_first=batch_first)
    options |= dict(nonlinearity=nonlinearity) if nonlinearity else {}
    rnn = calm(inputs, hidden, seed=seed, bias=bias, **options)
    chosen = {}
    if drops:
        rnn.zoneout = (0.3, 0.2) if cell == "LSTM" else 0.3
        chosen = dict(dropout=lnrnn.DropoutSpec(0.3 * (layers > 1), inputs=0.3, states=0.4), seed=seed)
    x, gy = normal(rng, T, batch, inputs), normal(rng, T, batch, hidden * (1 + both))
    h0, gh = drawn_state(rng, rnn, batch), drawn_state(rng, rnn, batch)
    ends = some_lengths(rng, norm, T, batch)
    gy, gh = (0 * gy if given == "gh" else gy), (None if given == "gy" else gh)
    swapped = (lambda a: a.swapaxes(0, 1)) if batch_first else np.asarray
    masks = rnn.forward_train(swapped(x), **chosen)[2].masks
    want = true_gradients(rnn, x, h0, ends, gy, gh, masks)
    assume(want)

    def compute():
        _, _, tape = rnn.forward_train(swapped(x), h0, ends, **chosen)
        return named_gradients(rnn, rnn.backward(tape, None if given == "gh" else swapped(gy), gh))

    for isa, got in on_every_family(compute).items():
        got["x"] = swapped(got["x"])
        for name, g in got.items():
            # A true gradient can be 0, for example that of a bias before batch norm. Then the result has only
            # rounding errors.
            scale = np.abs(want[name]).max(initial=1)
            assert absolute_error(g, want[name]) < 2 * GRADIENT * scale, (isa, name)


# --- results of a training run, and the statistics of batch norm --------------------------------------------


# The tolerance, relative to the largest number of an array. The largest measured error is 6e-7.
STATISTICS = 2e-6


@each_cell
@pytest.mark.parametrize("momentum, room", [(0.1, None), (0.25, T), (None, None)])
def test_training_updates_statistics_as_the_reference_does(cell, momentum, room):
    """Of three batches, one has more sequences than a tile, and one has a single sequence."""
    rng = np.random.default_rng(3)
    data = [
        (normal(rng, T, batch, 5), some_lengths(rng, "batch", steps, batch))
        for steps, batch in ((5, 70), (T, 12), (3, 1))
    ]

    def compute():
        norm = lnrnn.BatchNormSpec(room, momentum=momentum)
        rnn = calm(5, 17, cell=cell, norm=norm, num_layers=2, bidirectional=True)
        kept = {}
        for x, ends in data:
            h0 = drawn_state(np.random.default_rng(4), rnn, len(ends))
            y, end, _ = rnn.forward_train(x, h0, ends)
            want_y, want_end, tapes = reference_forward(rnn, x, h0, ends, training=True)
            assert relative_error(y, want_y) < GRADIENT and not y[np.arange(T)[:, None] >= ends].any()
            for got, want in zip(parts(rnn, end), parts(rnn, want_end), strict=True):
                assert relative_error(got, want) < GRADIENT
            for suffix, tape in tapes.items():
                for side in sides(rnn):
                    mean, var = tape.statistics[side]
                    old = kept.get((side, suffix), (*np.zeros((2, 0, mean.shape[1])), np.zeros(0, np.int64)))
                    new = kept[side, suffix] = ref.update_step_statistics(
                        old, (mean, var, tape.count), momentum
                    )
                    known = len(new[2])
                    assert rnn.known_steps == known
                    same(getattr(rnn, f"count{suffix}"), np.r_[new[2], [0] * (room - known if room else 0)])
                    for name, value in zip(("running_mean", "running_var"), new[:2], strict=True):
                        got = getattr(rnn, f"{name}{side and '_'}{side}{suffix}")
                        assert relative_error(got[:known], value) < STATISTICS, (name, side, suffix)
                        assert len(got) == (room or known) and not got[known:].any()

    on_every_family(compute)


# --- contents of a tape -------------------------------------------------------------------------------------


@each_cell
@each_norm
def test_later_changes_do_not_affect_a_tape(rng, cell, norm):
    rnn = network(3, 17, cell=cell, norm=norm, num_layers=2, bidirectional=True)
    x, gy, ends = normal(rng, T, 9, 3), normal(rng, T, 9, 34), np.array([9, 9, 9, 9, 9, 4, 7, 1, 0])
    h0, gh = drawn_state(rng, rnn, 9), drawn_state(rng, rnn, 9)
    want = trained(rnn, x, h0, ends, gy, gh)
    given = x.copy(), whole(rnn, [s.copy() for s in parts(rnn, h0)]), ends.copy()
    y, h, tape = rnn.forward_train(*given)
    for array in (given[0], *parts(rnn, given[1]), given[2], y, *parts(rnn, h)):
        array[...] = 1  # the caller changes its own arrays
    for name, value in rnn.parameters().items():
        setattr(rnn, name, value + 1)  # an optimizer's step
    rnn(x)
    rnn.forward_train(normal(rng, 20, 30, 3))  # the next batch
    if norm == "batch":
        rnn.calibrate([normal(rng, T, 30, 3)])
        rnn.overrun = "last"
        rnn(normal(rng, 20, 30, 3))
    for _ in range(2):  # backward can read a tape twice
        equal_arrays(named_gradients(rnn, rnn.backward(tape, gy, gh)), want)
    moved = trained(rnn, x, h0, ends, gy, gh)
    assert any((moved[name] != g).any() for name, g in want.items())


@each_cell
@each_norm
def test_missing_gradients_are_zeros(rng, cell, norm):
    rnn = network(3, 17, cell=cell, norm=norm, num_layers=2)
    x, gy, gh = normal(rng, T, 9, 3), normal(rng, T, 9, 17), drawn_state(rng, rnn, 9)
    zeros = whole(rnn, [0 * g for g in parts(rnn, gh)])
    _, _, tape = rnn.forward_train(x, drawn_state(rng, rnn, 9))
    for some_of_them, meant in (((None,), (0 * gy, zeros)), ((None, gh), (0 * gy, gh)), ((gy,), (gy, zeros))):
        want = named_gradients(rnn, rnn.backward(tape, *meant))
        some = any(np.any(m) for m in meant)
        for name, g in named_gradients(rnn, rnn.backward(tape, *some_of_them)).items():
            same(g, want[name], err_msg=name)
            assert g.any() == some


@each_cell
@by_row
def test_a_nan_reaches_its_own_sequence_and_the_parameters(rng, cell, norm):
    rnn = network(3, 17, cell=cell, norm=norm, num_layers=2)
    x, gy = normal(rng, T, 40, 3), normal(rng, T, 40, 17)
    clean = trained(rnn, x, None, None, gy, None)
    x[4, 6, 1] = np.nan
    got = trained(rnn, x, None, None, gy, None)
    for name in ("x", "h0", "c0")[: 1 + len(parts(rnn, None))]:
        same(np.delete(got[name], 6, 1), np.delete(clean[name], 6, 1))
        assert np.isnan(got[name][:, 6]).all()
    assert np.isnan(got["weight_hh_l1"]).all()


@each_cell
@each_norm
@pytest.mark.parametrize("steps, batch", [(0, 3), (4, 0), (0, 0), (4, 3)])
def test_backward_without_steps_sequences_or_lengths(rng, cell, norm, steps, batch):
    """The gradient of the initial state is that of the final state; gradients of parameters are 0."""
    rnn = network(3, 17, cell=cell, norm=norm, bidirectional=True)
    *given, gh = drawn_run(0, rnn, steps, np.zeros(batch, int))
    out = {name: normal(rng, *p.shape) for name, p in rnn.parameters().items()}
    before = {name: g.copy() for name, g in out.items()}
    trained(rnn, *given, gh, add_to=out)
    equal_arrays(out, before)
    got = trained(rnn, *given, gh)
    for name, g in zip(("h0", "c0"), parts(rnn, gh), strict=False):
        same(got.pop(name), g)
    assert not any(g.any() for g in got.values())


def test_backward_with_another_instruction_set(rng):
    """A tape's layout depends on the instruction set, so `backward` with another set refuses it."""
    first, *_, last = available_isas() * 2
    rnn, x = network(3, 17), normal(rng, T, 2, 3)
    with using_isa(first):
        y, _, tape = rnn.forward_train(x)
        want = rnn.backward(tape, y)[0]
    with using_isa(last):
        if first != last:
            with pytest.raises(RuntimeError, match=f"tape is of instruction set {first}, backward .* {last}"):
                rnn.backward(tape, y)
    with using_isa(first):
        same(rnn.backward(tape, y)[0], want)
