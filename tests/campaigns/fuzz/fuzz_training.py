"""Fuzzes forward_train, backward and calibrate, against back-propagation through time in the reference.

A second call, other threads, memory layouts and padding must give the same bits.
"""

from __future__ import annotations

from functools import partial

import numpy as np

import lnrnn
from fuzz_draw import EVERY_CELL, arranged, chance, inputs, lengths, network, pick, size
from fuzz_judge import alike
from fuzz_networks import described, equal, swapped
from fuzz_truth import compare
from networks import (
    drawn_state,
    kink,
    named_gradients,
    normal,
    only_forward,
    parts,
    reference_backward,
    reference_forward,
    suffixes,
    whole,
    widths,
)


def gradients(ends, names, masks):
    """Returns the argument `compute` of fuzz_truth.compare, which computes the gradients with these names."""

    def compute(rnn, x, gy, *states):
        half = len(states) // 2
        start, after = whole(rnn, list(states[:half])), whole(rnn, list(states[half:]))
        _, _, tapes = reference_forward(rnn, x, start, ends, training=True, masks=masks)
        named = named_gradients(rnn, reference_backward(rnn, tapes, gy, after, masks))
        return [named[name] for name in names]

    return compute


def case(rng, judge) -> None:
    cell = pick(rng, EVERY_CELL)
    sizes = min(size(rng), 100), min(size(rng), 100)  # small, because the reference is slow
    rnn = network(rng, cell=cell, sizes=sizes)
    per_step = isinstance(rnn.norm, lnrnn.BatchNormSpec)
    steps, batch = int(rng.integers(0, 7)), int(rng.integers(0, 9))
    x, ends = inputs(rng, rnn, steps, batch), lengths(rng, steps, batch)
    h0, gh = drawn_state(rng, rnn, batch), drawn_state(rng, rnn, batch)
    gy = normal(rng, steps, batch, widths(rnn)[0] * rnn.num_directions)
    label = f"{described(rnn)}, {steps} steps of {batch}, lengths {ends}"
    turn = partial(swapped, rnn)
    before, drops = rnn.state_dict(), dropping(rng, rnn)
    label = f"{label}, zoneout {rnn.zoneout}, {drops}"

    y, h, tape = rnn.forward_train(turn(x), h0, ends, **drops)
    masks = tape.masks
    true_y, true_h, tapes = reference_forward(rnn, x, h0, ends, training=True, masks=masks)
    if per_step or masks is not None:
        results, true = [turn(y), *parts(rnn, h)], [true_y, *parts(rnn, true_h)]
        arguments = x, *parts(rnn, h0)
        compare(judge, "forward_train", outcome(ends, masks), results, rnn, arguments, label, want=true)
    else:
        want = rnn(turn(x), h0, ends)
        equal(judge, "forward_train", rnn, (y, h), want, f"{label}, training and inference")
    got = named_gradients(rnn, rnn.backward(tape, turn(gy), gh))
    # Omit cases with an argument of relu near 0, where its derivative jumps.
    if getattr(rnn, "nonlinearity", "") != "relu" or kink(rnn, tapes) > 1e-3:
        true = named_gradients(rnn, reference_backward(rnn, tapes, gy, gh, masks))
        compare(
            judge, "backward", gradients(ends, list(got), masks),
            [turn(g) if name == "x" else g for name, g in got.items()], rnn,
            (x, gy, *parts(rnn, h0), *parts(rnn, gh)), label, factor=3,
            cancels=cancelling(tapes, x, gy, *parts(rnn, gh)), want=[true[name] for name in got],
        )  # fmt: skip
    agree(judge, got, named_gradients(rnn, rnn.backward(tape, turn(gy), gh)), f"{label}, backward again")
    without = named_gradients(rnn, rnn.backward(tape, turn(gy), gh, grad_x=False))
    judge.true("backward", without.pop("x") is None, f"{label}: gx in spite of grad_x=False")
    agree(judge, {name: got[name] for name in without}, without, f"{label}, without gx")
    added(rng, judge, rnn, tape, turn(gy), gh, got, label)
    for name, other in arranged(rng, np.ascontiguousarray(turn(gy)), 2):
        agree(judge, got, named_gradients(rnn, rnn.backward(tape, other, gh)), f"{label}, gy {name}")
    if per_step:
        rnn.load_state_dict(before)
    for threads in (2, 3):
        lnrnn.set_num_threads(threads)
        other = rnn.forward_train(turn(x), h0, ends, **drops)
        equal(judge, "forward_train", rnn, other[:2], (y, h), f"{label}, {threads} threads")
        again = named_gradients(rnn, rnn.backward(other[2], turn(gy), gh))
        agree(judge, got, again, f"{label}, {threads} threads")
    lnrnn.set_num_threads(1)
    if ends is not None:
        past = np.arange(steps)[:, None] >= ends
        x, gy = x.copy(), gy.copy()
        x[past], gy[past] = np.nan, np.nan
        other = rnn.forward_train(turn(x), h0, ends, **drops)
        equal(judge, "forward_train", rnn, other[:2], (y, h), f"{label}, NaN past the lengths")
        again = named_gradients(rnn, rnn.backward(other[2], turn(gy), gh))
        agree(judge, got, again, f"{label}, NaN past the lengths")
    if per_step:
        calibrated(rng, judge, rnn, x, ends, label)
    elif chance(rng, 0.5):
        unchanged = rnn.state_dict()
        right = all(before[name].tobytes() == value.tobytes() for name, value in unchanged.items())
        judge.true("forward_train", right, f"{label}: training changed a parameter")


def dropping(rng, rnn) -> dict[str, object]:
    """Returns random arguments dropout and seed. Sometimes sets the network's zoneout, which no SLSTM has."""
    if chance(rng, 0.3) and not isinstance(rnn, lnrnn.SLSTM):
        rates = [float(rng.uniform(0, 0.9)) for _ in parts(rnn, rnn.zoneout)]
        rnn.zoneout = whole(rnn, rates)
    if chance(rng, 0.7):
        return {"seed": int(rng.integers(2**40))}
    between, at_input, at_states = (
        float(rng.uniform(0, 0.9)) * chance(rng, 0.6) for _ in ("between", "inputs", "states")
    )
    spec = lnrnn.DropoutSpec(between if rnn.num_layers > 1 else 0, inputs=at_input, states=at_states)
    return {"dropout": spec, "seed": int(rng.integers(2**40))}


def added(rng, judge, rnn, tape, gy, gh, got, label) -> None:
    """Checks backward with out=.

    If `out` has zeros, the gradients have the bits of a call without out=. Other sums may have a few rounding
    errors.
    """
    exact, wanted = chance(rng, 0.5), chance(rng, 0.5)
    before = {
        name: np.zeros_like(p) if exact else normal(rng, *p.shape) * np.float32(4.0 ** rng.integers(-4, 5))
        for name, p in rnn.parameters().items()
    }
    total = {name: before[name].copy() for name in rng.permutation(list(before)).tolist()}
    grads = rnn.backward(tape, gy, gh, wanted, out=total)
    judge.true("backward", grads[2] is total, f"{label}: out came back as another dict")
    named = named_gradients(rnn, grads)
    states = [name for name in ("x", "h0", "c0") if name in got and (wanted or name != "x")]
    agree(judge, {n: got[n] for n in states}, {n: named[n] for n in states}, f"{label}, states with out")
    if exact:  # 0 + -0 is 0
        sums = {n: g + 0 for n, g in total.items()}
        agree(judge, {n: got[n] + 0 for n in total}, sums, f"{label}, on zeros")
        return
    roundings = (gy.shape[0] * gy.shape[1] + 2) * 2.0**-24
    for name, start in before.items():
        # The bound depends on the terms, because these may be larger than their sum.
        largest = np.abs(start).max(initial=0) + 8 * np.abs(got[name]).max(initial=0)
        want = start.astype(float) + got[name]
        judge.within(total[name], want, roundings * largest, f"{label}, {name}, added", "gradients, added")


def cancelling(tapes, x, *upstream) -> float:
    """Returns the allowed error of a gradient whose terms cancel: a few roundings of the largest term.

    This happens in norms of one or two values, where the exact gradient is 0."""
    rstd = 1.0
    for tape in tapes.values():
        for step in tape.steps:
            for normed in step.norms.at.values():
                if normed.var is not None:
                    rstd = max(rstd, float(1 / np.sqrt(np.min(normed.var, initial=1.0) + step.norms.eps)))
    largest = max(float(np.abs(g).max(initial=0)) for g in upstream)
    return 2e-6 * rstd * largest * float(np.abs(x).max(initial=1))


def outcome(ends, masks):
    def compute(rnn, x, *state):
        y, h, _ = reference_forward(rnn, x, whole(rnn, list(state)), ends, training=True, masks=masks)
        return [y, *parts(rnn, h)]

    return compute


def agree(judge, want, got, label) -> None:
    judge.counts["backward"] += 1
    assert list(want) == list(got), label
    for name, value in want.items():
        alike(np.ascontiguousarray(got[name]), np.ascontiguousarray(value), f"{label}, {name}")


def calibrated(rng, judge, rnn, x, ends, label) -> None:
    """Checks that calibrate gives the reference's statistics for any division of sequences into batches."""
    steps, batch = x.shape[:2]
    whole_ones = np.full(batch, steps) if ends is None else ends
    x = np.nan_to_num(x)
    if not whole_ones.max(initial=0):
        return
    cut = int(rng.integers(0, batch + 1))
    rnn.calibrate([(swapped(rnn, x[:, p]), whole_ones[p]) for p in (slice(cut), slice(cut, None))])
    names = [name for name in rnn.state_dict() if name.startswith("running")]
    rnn.stream(1) if only_forward(rnn) else None

    def compute(rnn, x):
        _, _, tapes = reference_forward(rnn, x, None, whole_ones, training=True)
        running = {}
        for suffix in [s for layer in suffixes(rnn) for s in layer]:
            for side, (mean, var) in tapes[suffix].statistics.items():
                end = f"_{side}{suffix}" if side else suffix
                running |= {f"running_mean{end}": mean, f"running_var{end}": var}
        return [running[name] for name in names]

    got = [getattr(rnn, name)[: rnn.known_steps] for name in names]
    compare(judge, "calibrate", compute, got, rnn, (x,), label)
