"""Fuzzes forward_train, backward and calibrate, against back-propagation through time in the reference.

Each face of tests/conformance/test_training_faces.py gives the bits of the first call.
"""

from __future__ import annotations

import numpy as np
from test_training_faces import FACES, learned, slopes

import lnrnn
from fuzz_draw import chance, described, drawn_case, pick
from fuzz_judge import alike
from fuzz_truth import compare, forward
from networks import (
    kink,
    named_gradients,
    normal,
    parts,
    reference_backward,
    reference_forward,
    suffixes,
    whole,
)

EVERY = {name: face for name, face in FACES.items() if name != "torch"}


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
    drawn = drawn_case(rng, learns=True)
    label = f"{described(drawn.rnn)}, {drawn.x.shape}, lengths {drawn.lengths}"
    faces = [name for name, (_, takes) in EVERY.items() if takes(drawn)]
    want = learned(drawn)
    for name in dict.fromkeys(pick(rng, faces) for _ in range(3)):
        judge.counts[f"training, {name}"] += 1
        for key, value in EVERY[name][0](drawn).items():
            alike(np.ascontiguousarray(value), np.ascontiguousarray(want[key]), f"{label}, {name}, {key}")
    rnn = drawn.make()
    ends, drops = drawn.lengths, dropping(rng, rnn)
    (gy, gh), past = slopes(drawn), np.arange(len(drawn.x))[:, None] >= drawn.lengths
    x = drawn.x.copy()
    x[past] = gy[past] = 0
    label = f"{label}, zoneout {rnn.zoneout}, {drops}"
    y, h, tape = rnn.forward_train(x, drawn.h0, ends, **drops)
    masks, start = tape.masks, whole(rnn, drawn.states)
    true_y, true_h, tapes = reference_forward(rnn, x, start, ends, training=True, masks=masks)
    results, true, compute = [y, *parts(rnn, h)], [true_y, *parts(rnn, true_h)], forward(ends, True, masks)
    compare(judge, "forward_train", compute, results, rnn, (x, *drawn.states), label, want=true)
    got = named_gradients(rnn, rnn.backward(tape, gy, gh))
    # Omit cases with an argument of relu near 0, where its derivative jumps.
    if getattr(rnn, "nonlinearity", "") != "relu" or kink(rnn, tapes) > 1e-3:
        true = named_gradients(rnn, reference_backward(rnn, tapes, gy, gh, masks))
        compare(
            judge, "backward", gradients(ends, list(got), masks), list(got.values()), rnn,
            (x, gy, *drawn.states, *parts(rnn, gh)), label, factor=3,
            cancels=cancelling(tapes, x, gy, *parts(rnn, gh)), want=[true[name] for name in got],
        )  # fmt: skip
    added(rng, judge, rnn, tape, gy, gh, got, label)
    if isinstance(rnn.norm, lnrnn.BatchNormSpec):
        calibrated(rng, judge, rnn, x, ends, label)


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
    """Checks backward with out=: sums may have a few rounding errors."""
    before = {
        name: normal(rng, *p.shape) * np.float32(4.0 ** rng.integers(-4, 5))
        for name, p in rnn.parameters().items()
    }
    total = {name: value.copy() for name, value in before.items()}
    rnn.backward(tape, gy, gh, add_to=total)
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


def calibrated(rng, judge, rnn, x, ends, label) -> None:
    """Checks that calibrate gives the reference's statistics for any division of sequences into batches."""
    if not ends.max(initial=0):
        return
    cut = int(rng.integers(0, x.shape[1] + 1))
    rnn.calibrate([(x[:, p], ends[p]) for p in (slice(cut), slice(cut, None))])
    names = [name for name in rnn.state_dict() if name.startswith("running")]

    def compute(rnn, x):
        _, _, tapes = reference_forward(rnn, x, None, ends, training=True)
        running = {}
        for suffix in [s for layer in suffixes(rnn) for s in layer]:
            for side, (mean, var) in tapes[suffix].statistics.items():
                end = f"_{side}{suffix}" if side else suffix
                running |= {f"running_mean{end}": mean, f"running_var{end}": var}
        return [running[name] for name in names]

    got = [getattr(rnn, name)[: rnn.known_steps] for name in names]
    compare(judge, "calibrate", compute, got, rnn, (x,), label)
