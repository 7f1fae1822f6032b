r"""
States and gradients over many steps
====================================

In a standard RNN the summed inputs "grow or shrink at every time-step, leading to exploding or vanishing
gradients". With layer norm (LN) the hidden-to-hidden dynamics are "much more stable" (Ba, Kiros and Hinton
2016, arXiv 1607.06450, section 3.1):

.. math::

   h_t = f\!\left( \frac{g}{\sigma_t} (a_t - \mu_t) \right), \qquad a_t = W_{hh} h_{t-1} + W_{ih} x_t

Cooijmans et al. (2016, arXiv 1603.09025, section 4) start the gains g of batch norm at 0.1, so that gradients
do not vanish.
"""

from itertools import product

import numpy as np
from common import Check, Clause, Study, interval, plus_minus, show, side_by_side, table
from plots import HEADLINE, SHADE, STYLES, tidy
from recurrent import LARGEST, SMALLEST, bare_rnn, recurrent_weights, run

# Constants to change.
UNITS, INPUTS, SEQUENCES = 64, 16, 4
STEPS, PIECE = 10_000, 10
RADII = (0.9, 0.99, 1.0, 1.01, 1.1)
GAINS = {"no norm": None, "LN": 1.0, "LN, gain 0.1": 0.1}
SETTINGS = ("identity, no input", "identity, noise", "tanh, no input", "tanh, noise")
STABLE = 1.0  # decades; a smaller drift counts as stable
QUANTITIES = ("state", "gradient")
CASES = [f"{setting}, {radius:g}" for setting, radius in product(SETTINGS, RADII) if radius != 1]
SIZE = (10.0, 6.0)


def draw(results, figure):
    """Draws states above and gradients below, with a column for each setting and a curve for each radius."""
    panels = figure.subplots(2, len(SETTINGS), sharex=True, sharey=True)
    for (quantity, setting), axes in zip(product(QUANTITIES, SETTINGS), panels.flat, strict=True):
        axes.set(xscale="log", xlim=(PIECE, STEPS), ylim=(-60, 60))
        axes.set_xticks((10, 100, 1000, 10_000), ("10", "100", "1000", ""))
        axes.minorticks_off()
        for ends in ((-60, SMALLEST), (LARGEST, 60)):
            axes.axhspan(*ends, color=SHADE, lw=0)
        for name, radius in product(GAINS, RADII):
            curves = results["curves"].get(f"{setting}, {radius:g}, {name}")
            if curves is not None:
                colour, dashes = STYLES[name.split(",")[0]][0], "--" if "," in name else "-"
                style = {"ls": dashes, "color": colour, "lw": 1.6}
                label = name if radius == 1 else None
                curve = curves[QUANTITIES.index(quantity)]
                axes.plot(results["steps"], curve, label=label, **style)
                left = np.flatnonzero(np.abs(curve) > 30)
                if name == "no norm" and left.size and (quantity == "state" or "identity" in setting):
                    at = results["steps"][left[0]], np.sign(curve[left[0]]) * 30
                    axes.annotate(f"{radius:g}  ", at, color=style["color"], ha="right", va="center")
        tidy(axes, setting.replace(",", " units,\n", 1).replace("\n ", "\n") if quantity == "state" else "")
        axes.set_xlabel("steps" if quantity == "state" else "steps back")
        axes.tick_params(labelbottom=True)
    panels[0, 0].set_ylabel("size of the state, decades")
    panels[1, 0].set_ylabel("size of the gradient, decades")
    panels[0, 3].legend(loc="lower left", frameon=False)  # here the legend hides no curve
    figure.suptitle("LN keeps every state in range (above), but not the gradients (below)", **HEADLINE)


show("dynamics", draw, SIZE)

# %%
# Result
# ------
# A case is a setting (one column) at a spectral radius of W_hh other than 1, so there are 16 cases. The
# *drift* of a state or gradient is the change of its size over 10,000 steps, in decades (factors of ten). LN
# is *far more stable* if it drifts at most half as far as the network without a norm, or at most one decade.
#
# - **States stay in range with LN: this follows from the formula.** LN with a gain of 1 fixes the size of
#   every summed input. In 8 of the 16 cases states stay in range without a norm too.
# - **Gradients are far more stable with LN: refuted.** This is true in 2 of the 16 cases, and false in 11.
#   With noise, LN's gradients vanish in all eight cases. LN divides by the deviation of the sum W_hh h + W_ih
#   x, so the input shrinks the recurrent part.
# - Without input, LN's gradients depend on the seed and not on the radius.
# - **A gain of 0.1 keeps gradients longer than 1.0: refuted for LN.** With tanh units and noise, gradients
#   lose 74 decades more in 100 steps.
#
# Advice
# ------
# Use LN to keep states in range over many steps, but not to carry gradients through hundreds of steps.
# Initialise its gains with 1.0 if W_hh h and W_ih x are normalised together, as here. Try ``GAINS["LN"] =
# 3.0``.
#
# How it was measured
# -------------------
# The RNNs have 64 units, initial weights and no biases. W_hh is Gaussian, scaled to a spectral radius. Noise
# is white, and gives W_ih x variance 1. We propagate the gradient of a random direction at the last step.
# After every 10 steps it is scaled to length 1 and its logarithm recorded, so float32's range limits only
# states. No setting is tuned. Each verdict is that of the case which supports the claim least, and the
# intervals hold jointly for all 16 cases. Cooijmans et al. normalise W_hh h and W_ih x separately, so their
# small gain does not weaken the recurrent part against the input.


def measure_seed(seed, steps):
    """Returns {case and norm: the results of `run`}. All cases share weights, inputs, h0 and gradient."""
    rng, found = np.random.default_rng(seed), {}
    weights, inputs = recurrent_weights(rng, UNITS), rng.standard_normal((UNITS, INPUTS)) / INPUTS**0.5
    h0, gradient = (rng.standard_normal((1, SEQUENCES, UNITS), dtype=np.float32) for _ in range(2))
    noise = rng.standard_normal((steps, SEQUENCES, INPUTS), dtype=np.float32)
    for setting, radius, (name, gain) in product(SETTINGS, RADII, GAINS.items()):
        if name != "LN, gain 0.1" or radius == 1:
            nonlinearity, source = setting.split(", ")
            rnn = bare_rnn(nonlinearity, radius, gain, weights, inputs)
            x = noise if source == "noise" else np.zeros_like(noise)
            found[f"{setting}, {radius:g}, {name}"] = run(rnn, x, h0, gradient, PIECE)
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


def drift(results, case, name, quantity):  # in decades, from the first recorded step to the last, (S,)
    return results["drift"][f"{case}, {name}"][:, QUANTITIES.index(quantity)]


def to_spare(results, case, quantity):
    """Returns the largest permitted drift of LN minus its drift, in decades, (S,). Permitted is one decade,
    or half of the drift without a norm if this is more."""
    plain, layer = (np.abs(drift(results, case, name, quantity)) for name in ("no norm", "LN"))
    return np.maximum(plain / 2, STABLE) - layer


def unstable(results, case, quantity):  # the drift without a norm, in decades, minus one
    return np.abs(drift(results, case, "no norm", quantity)) - STABLE


def clauses(results):
    stay = max(np.abs(drift(results, case, "LN", "state")).max() for case in CASES) < STABLE
    found = [Check("with LN and gain 1 states stay within a decade", bool(stay))]
    for text, of, quantity in (
        ("no norm: states grow or vanish", unstable, "state"),
        ("no norm: gradients grow or vanish", unstable, "gradient"),
        ("LN keeps gradients far more stable", to_spare, "gradient"),
    ):
        weakest = min((of(results, case, quantity) for case in CASES), key=np.mean)
        found.append(Clause(f"{text}, in all {len(CASES)} cases", weakest, 0.0, "decades", len(CASES)))
    one, tenth = (drift(results, "tanh, noise, 1", name, "gradient") for name in ("LN", "LN, gain 0.1"))
    text, gained = "a gain of 0.1 keeps gradients longer than 1.0", (tenth - one) * 100 / (STEPS - PIECE)
    return [*found, Clause(text, gained, 0.0, "decades in 100 steps")]


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
    for quantity in QUANTITIES:
        verdicts, rows = steadier(results, quantity), []
        for case in (f"{setting}, {radius:g}" for setting, radius in product(SETTINGS, RADII)):
            drifts = [plus_minus(drift(results, case, name, quantity), 1, "+") for name in ("no norm", "LN")]
            rows.append([case, *drifts, verdicts.get(case, "-")])
        yield table([f"{quantity}s, decades", "no norm", "LN", "LN as claimed"], rows)
    shares = ", ".join(f"{name} {100 * np.mean(share):.1f} %" for name, share in results["saturated"].items())
    yield f"Saturated tanh units, with noise, at radius 1: {shares}"


STUDY = Study("dynamics", measure, clauses, tables, draw, None, SIZE)

if __name__ == "__main__":
    STUDY.main()
