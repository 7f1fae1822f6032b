r"""
States and gradients over many steps
====================================

Ba, Kiros and Hinton (2016, arXiv 1607.06450, section 3.1) write about a standard RNN:

    there is a tendency for the average magnitude of the summed inputs to the recurrent units to either grow
    or shrink at every time-step, leading to exploding or vanishing gradients

With layer norm (LN) the hidden-to-hidden dynamics are "much more stable":

.. math::

   h_t = f\!\left( \frac{g}{\sigma_t} (a_t - \mu_t) \right), \qquad a_t = W_{hh} h_{t-1} + W_{ih} x_t

Cooijmans et al. (2016, arXiv 1603.09025, section 4) start the gains g of batch norm at 0.1, so that
gradients do not vanish.
"""

from itertools import product

import numpy as np
from common import Check, Clause, Study, interval, plus_minus, show, side_by_side, table
from plots import SHADE, STYLES, tidy

import lnrnn

# Constants to change.
UNITS, INPUTS, SEQUENCES = 64, 16, 4
STEPS, PIECE = 10_000, 10
RADII = (0.9, 0.99, 1.0, 1.01, 1.1)
GAINS = {"no norm": None, "LN": 1.0, "LN, gain 0.1": 0.1}
SETTINGS = ("identity, no input", "identity, noise", "tanh, no input", "tanh, noise")
STABLE = 1.0  # decades; a smaller drift counts as stable
SLOPE = 0.1  # a tanh unit with a smaller derivative is saturated
SMALLEST, LARGEST = -45.0, 38.5  # log10 of float32's range
QUANTITIES = ("state", "gradient")
CASES = [f"{setting}, {radius:g}" for setting, radius in product(SETTINGS, RADII) if radius != 1]
SIZE = (10.0, 6.0)


def draw(results, figure):
    """Draws states above and gradients below, with a column for each setting."""
    panels = figure.subplots(2, len(SETTINGS), sharex=True, sharey=True)
    for (quantity, setting), axes in zip(product(QUANTITIES, SETTINGS), panels.flat, strict=True):
        draw_setting(axes, results, quantity, setting)
        nonlinearity, source = setting.split(", ")
        tidy(axes, f"{nonlinearity} units,\n{source}" if quantity == "state" else "")
        axes.set_xlabel("steps" if quantity == "state" else "steps back")
        axes.tick_params(labelbottom=True)
    panels[0, 0].set_ylabel("size of the state, decades")
    panels[1, 0].set_ylabel("size of the gradient, decades")
    panels[0, 3].legend(loc="lower left", frameon=False)  # here the legend hides no curve
    figure.suptitle(
        "LN keeps every state in range (above), but not the gradients (below)",
        x=0.01, ha="left", fontsize=10.5, fontweight="bold",
    )  # fmt: skip


def draw_setting(axes, results, quantity, setting):
    """Draws a curve for each spectral radius, and writes the radius at some curves of "no norm"."""
    axes.set(xscale="log", xlim=(PIECE, STEPS), ylim=(-60, 60))
    axes.set_xticks((10, 100, 1000, 10_000), ("10", "100", "1000", ""))
    axes.minorticks_off()
    for ends in ((-60, SMALLEST), (LARGEST, 60)):
        axes.axhspan(*ends, color=SHADE, lw=0)
    for name, radius in product(GAINS, RADII):
        if f"{setting}, {radius:g}, {name}" not in results["curves"]:
            continue
        colour, _, _ = STYLES[name.split(",")[0]]
        curve = results["curves"][f"{setting}, {radius:g}, {name}"][QUANTITIES.index(quantity)]
        label = name if radius == 1 else None
        axes.plot(results["steps"], curve, "--" if "," in name else "-", color=colour, lw=1.6, label=label)
    for radius, where in LABELS.get(f"{quantity}, {setting}", {}).items():
        if float(radius) in RADII:
            axes.annotate(radius, where, color=STYLES["no norm"][0], ha="right", va="center")


SHRINK, GROW = {"0.9": (500, -30), "0.99": (5000, -30)}, {"1.1": (500, 30), "1.01": (5000, 30)}
LABELS = {  # {panel: {radius: position of the radius's label, as (steps, decades)}}
    "state, identity, no input": SHRINK | GROW,
    "state, identity, noise": GROW,
    "state, tanh, no input": SHRINK,
    "gradient, identity, no input": GROW | {"0.9": (500, -30), "1": (5000, 5)},
    "gradient, identity, noise": GROW | {"1": (5000, 5), "0.99": (5000, -30)},
    "gradient, tanh, no input": {"0.9": (500, -30)},
}


show("dynamics", draw, SIZE)

# %%
# Result
# ------
# A case is a setting (one column) at a spectral radius of W_hh other than 1, so there are 16 cases. The
# *drift* of a state or gradient is the change of its size over 10,000 steps, in decades (factors of ten). LN
# is *far more stable* if it drifts at most half as far as the network without a norm, or at most one decade.
#
# - **States stay in range with LN: this follows from the formula, and holds.** LN with a gain of 1 fixes the
#   size of every summed input. States drift by 0.02 decades at most. In 8 of the 16 cases this improves on
#   the network without a norm. In the other 8 states stay in range without a norm too.
# - **Without a norm states grow or shrink: refuted as a rule.** Identity units without input leave the range
#   of float32 (grey) after about 1,000 steps at radius 0.9 and 1.1. But tanh units with noise as input keep
#   the size of their states.
# - **Gradients are far more stable with LN: refuted.** This is true in 2 of the 16 cases, and false in 11.
#   With noise, LN's gradients vanish in all eight cases, and change by more decades than without a norm.
# - Without input, LN's gradients depend on the seed and not on the radius. With identity units they drift by
#   0 to -472 decades.
# - **A gain of 0.1 keeps gradients longer than 1.0: refuted for LN.** With tanh units and noise, gradients
#   lose 74 decades more in 100 steps.
#
# LN's gradients vanish because LN divides by the deviation of the sum W_hh h + W_ih x. The input increases
# this deviation, so LN shrinks the recurrent part at every step.
#
# Advice
# ------
# Use LN to keep states in range over many steps, but not to carry gradients through hundreds of steps.
# Initialise its gains with 1.0 if W_hh h and W_ih x are normalised together, as here.
#
# Try it yourself
# ---------------
# Set ``GAINS["LN"] = 3.0``: gradients of identity units with noise lose fewer decades. Set ``RADII = (0.5,
# 1.0, 2.0)``: the states of LN do not change.
#
# How it was measured
# -------------------
# The RNNs have 64 units, initial weights and no biases. W_hh is Gaussian, scaled to a spectral radius. Noise
# is white, and gives W_ih x variance 1. We propagate the gradient of a random direction at the last step.
# After every 10 steps it is scaled to length 1 and its logarithm recorded, so float32's range does not limit
# gradients. Only states are limited. Seeds are 5 to 24, and no setting is tuned. Each verdict is that of the
# case which supports the claim least, and the intervals hold jointly for all 16 cases.
#
# The LN paper measures no dynamics in that section. Cooijmans et al. normalise W_hh h and W_ih x separately,
# so their small gain does not weaken the recurrent part against the input.


def recurrent_weights(rng, units=UNITS):
    """Returns a Gaussian matrix of spectral radius 1, float64 (units, units)."""
    weights = rng.standard_normal((units, units)) / units**0.5
    # Round the radius, because LAPACK's last bits depend on its order of summation.
    return weights / round(float(np.abs(np.linalg.eigvals(weights)).max()), 6)


def network(nonlinearity, radius, gain, weights, inputs):
    """Returns an RNN without biases. weights: W_hh of spectral radius 1. inputs: W_ih. gain: LN's, or None
    for no norm."""
    norm = None if gain is None else "layer"
    rnn = lnrnn.RNN(inputs.shape[1], len(weights), norm=norm, bias=False, nonlinearity=nonlinearity, seed=0)
    rnn.weight_hh_l0 = (radius * weights).astype(np.float32)
    rnn.weight_ih_l0 = inputs.astype(np.float32)
    if gain is not None:
        rnn.gain_l0 = np.full(len(weights), gain, np.float32)
    return rnn


def log_size(values):
    """Returns log10 of the root mean square over the last axis, clipped to float32's range, then averaged."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        found = np.log10(np.sqrt((values.astype(np.float64) ** 2).mean(axis=-1)))
    found = np.where(np.isfinite(values).all(axis=-1), found, LARGEST)
    return float(found.clip(SMALLEST, LARGEST).mean())


def length(vectors):
    """Returns Euclidean lengths over the last axis, which is kept with length 1."""
    return np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=-1, keepdims=True))


def run(rnn, x, h0, gradient):
    """x (T, B, I), h0 (1, B, H), gradient (1, B, H) of the last state; T is a multiple of PIECE.

    Returns log10 of the states' size after PIECE, 2 PIECE, ... steps, (T / PIECE,), log10 of the gradient's
    size the same numbers of steps before the end, and the share of saturated units after step 100. After each
    PIECE steps back the gradient is scaled to length 1 and its logarithm recorded, so it stays in range."""
    tapes, states, saturated, h = [], [], [0.0], h0
    for start in range(0, len(x), PIECE):
        y, h, tape = rnn.forward_train(x[start : start + PIECE], h)
        tapes.append(tape)
        states.append(log_size(h))
        if start >= 100:
            saturated.append(float((1 - y.astype(np.float64) ** 2 < SLOPE).mean()))
    gradients, lost = [], np.zeros(h0.shape[:2])
    gradient = gradient / length(gradient)
    for tape in reversed(tapes):
        _, gradient, _ = rnn.backward(tape, None, gradient.astype(np.float32))
        size = length(gradient)
        lost += np.log10(size[..., 0])
        gradient = gradient / size
        gradients.append(float(lost.mean()))
    return np.array([states, gradients]), np.mean(saturated[1:] or saturated)


def measure_seed(seed, steps):
    """Returns {case and norm: the results of `run`}. All cases share weights, inputs, h0 and gradient."""
    rng = np.random.default_rng(seed)
    weights = recurrent_weights(rng)
    inputs = rng.standard_normal((UNITS, INPUTS)) / INPUTS**0.5
    h0, gradient = (rng.standard_normal((1, SEQUENCES, UNITS), dtype=np.float32) for _ in range(2))
    noise = rng.standard_normal((steps, SEQUENCES, INPUTS), dtype=np.float32)
    found = {}
    for setting, radius, (name, gain) in product(SETTINGS, RADII, GAINS.items()):
        if name == "LN, gain 0.1" and radius != 1:
            continue
        nonlinearity, source = setting.split(", ")
        rnn = network(nonlinearity, radius, gain, weights, inputs)
        x = noise if source == "noise" else np.zeros_like(noise)
        found[f"{setting}, {radius:g}, {name}"] = run(rnn, x, h0, gradient)
    return found


def measure(seeds, settings, quick):
    """Returns results by name. drift: decades of states and gradients from the first 10 steps to the last,
    (S, 2). curves: means over the seeds for the figure, (2, steps drawn)."""
    found = side_by_side(lambda seed: measure_seed(seed, 300 if quick else STEPS), seeds, "seeds")
    paths = {key: np.stack([of[key][0] for of in found]) for key in found[0]}
    count = next(iter(paths.values())).shape[2]
    drawn = np.unique(np.geomspace(1, count, 60).round().astype(int)) - 1
    return {
        "steps": PIECE * (drawn + 1),
        "drift": {key: path[:, :, -1] - path[:, :, 0] for key, path in paths.items()},
        "curves": {key: path.mean(axis=0)[:, drawn] for key, path in paths.items()},
        "saturated": {name: np.array([of[f"tanh, noise, 1, {name}"][1] for of in found]) for name in GAINS},
    }


def drift(results, case, name, quantity):
    """Returns by how many decades the size changes from the first recorded step to the last, for each
    seed."""
    return results["drift"][f"{case}, {name}"][:, QUANTITIES.index(quantity)]


def to_spare(results, case, quantity):
    """Returns the largest permitted drift of LN minus its drift, in decades, for each seed.

    Permitted is one decade, or half of the drift without a norm if this is more.
    """
    plain, layer = (np.abs(drift(results, case, name, quantity)) for name in ("no norm", "LN"))
    return np.maximum(plain / 2, STABLE) - layer


def unstable(results, case, quantity):
    """Returns the drift of the network without a norm, in decades, minus one."""
    return np.abs(drift(results, case, "no norm", quantity)) - STABLE


def weakest(of, results, quantity):
    """Returns the values (S,) of the case that supports the claim least."""
    return min((of(results, case, quantity) for case in CASES), key=np.mean)


def gained(results):
    """Returns log10(gradient with gain 0.1 / with gain 1.0) after 100 steps, for tanh, noise and radius 1."""
    one, tenth = (drift(results, "tanh, noise, 1", name, "gradient") for name in ("LN", "LN, gain 0.1"))
    return (tenth - one) * 100 / (STEPS - PIECE)


def clauses(results):
    stay = max(np.abs(drift(results, case, "LN", "state")).max() for case in CASES) < STABLE
    found = [Check("with LN and gain 1 states stay within a decade", bool(stay))]
    claims = [
        ("no norm: states grow or vanish", unstable, "state"),
        ("no norm: gradients grow or vanish", unstable, "gradient"),
        ("LN keeps gradients far more stable", to_spare, "gradient"),
    ]
    for text, of, quantity in claims:
        values = weakest(of, results, quantity)
        found.append(Clause(f"{text}, in all {len(CASES)} cases", values, 0.0, "decades", len(CASES)))
    text = "a gain of 0.1 keeps gradients longer than 1.0"
    return [*found, Clause(text, gained(results), 0.0, "decades in 100 steps")]


def steadier(results, quantity):
    """Returns for each case whether LN is as stable as claimed: "yes", "no", or "-" if it is unclear. "both
    stay": the network without a norm clearly drifts by less than a decade too. All intervals hold jointly."""
    found = {}
    for case in CASES:
        low, high = interval(to_spare(results, case, quantity), len(CASES))
        without = interval(unstable(results, case, quantity), len(CASES))[1] < 0
        found[case] = "no" if high < 0 else "-" if low <= 0 else "both stay" if without else "yes"
    return found


def tables(results):
    found = []
    for quantity in QUANTITIES:
        verdicts, rows = steadier(results, quantity), []
        for setting, radius in product(SETTINGS, RADII):
            case = f"{setting}, {radius:g}"
            drifts = [drift(results, case, name, quantity) for name in ("no norm", "LN")]
            rows.append([case, *(plus_minus(d, 1, "+") for d in drifts), verdicts.get(case, "-")])
        found.append(table([f"{quantity}s, decades", "no norm", "LN", "LN as claimed"], rows))
    shares = ", ".join(f"{name} {100 * np.mean(share):.1f} %" for name, share in results["saturated"].items())
    return "\n\n".join([*found, f"Saturated tanh units, with noise, at radius 1: {shares}"])


STUDY = Study("dynamics", measure, clauses, tables, draw, None, SIZE)

if __name__ == "__main__":
    STUDY.main()
