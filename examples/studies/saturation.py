r"""
Saturation, drift and depth
===========================

Posts explain norms as follows. A sigmoid is flat, or saturated, if its input is large, and
its gradient vanishes. While the layers below learn, a layer's inputs drift into saturation,
more in deep networks ("网络层数越深, 漂移现象越明显"). A norm prevents this drift, so training is
faster. Layer norm (LN) is said to help most with ReLU ("尤其对于ReLU"). This study compares LN,
batch norm (BN) and no norm. A sigmoid is saturated if its slope is below a tenth of 1/4:

.. math::

   h_l = \mathrm{sigmoid}\left(g \, \frac{W h_{l-1} - \mu}{\sigma} + b\right) \qquad
   \mathrm{sigmoid}'(a) \le \frac{1}{4}
"""

import depth
import numpy as np
from common import Check, Clause, Study, best, by_seed, percent, plus_minus, show, table
from depth import DEPTH, NETS, NORMS, QUESTIONS, REACHED, STEPS, TIMES, USUAL, less, natural, passes_to
from plots import STYLES, lines, tidy
from study_data import load_digits

# Constants to change. The networks are in depth.py.
# The initial gains to try; without a norm, factors of the usual weights of the hidden layers.
FACTORS = {"deep": (1, 2, 4, 8, 16), "RNN": (1, 2, 4, 8, 16), "ReLU": (1,)}
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
PASSES = 20
SIZE = (10.0, 10.0)
START = ("start gradient", "start spread", "start saturated", "accuracy")  # the results kept for factor 1


def draw(results, figure):
    """Draws gradients, speed, and drift by layer."""
    rows, nets = figure.subplots(3, 2), ("deep", "RNN")
    titles = "Deep, untuned: only BN keeps gradients", "Recurrent, untuned: only BN keeps them"
    places = {"deep": "hidden layer (8: next to the loss)", "RNN": "time step (16: next to the loss)"}
    for axes, net, title in zip(rows[0], nets, titles, strict=True):
        steps = range(1, (DEPTH if net == "deep" else STEPS) + 1)
        axes.set_ylim(-13.5, 1.5)
        lines(axes, steps, {name: results[f"{net}, {name}"]["gradient"] for name in NORMS})
        for name in NORMS:
            start = results[f"{net}, {name}, usual"]["start gradient"].mean(axis=0)
            axes.plot(steps, start, ":", color=STYLES[name][0], marker=STYLES[name][1], ms=4)
        axes.plot([], [], "-", color="#333333", label="tuned, in training")
        axes.plot([], [], ":", color="#333333", label="usual scale, before training")
        axes.legend(frameon=False, loc="lower right")
        tidy(axes, title, xlabel=places[net], ylabel="gradient over that at the end, log10")
    titles = "Deep: BN learns 4 times as fast", "Recurrent: LN learns more slowly"
    for axes, net, title in zip(rows[1], nets, titles, strict=True):
        axes.set_ylim(0, 100)
        axes.axhline(100 * REACHED, color="#999999", lw=1)
        right = {name: 100 * results[f"{net}, {name}"]["accuracy"] for name in NORMS}
        lines(axes, range(1, right["LN"].shape[1] + 1), right)
        labels = {"xlabel": "passes over the images", "ylabel": f"{net}: right on the test images, %"}
        tidy(axes, title, xticks=range(0, right["LN"].shape[1] + 1, 5), **labels)
    titles = {"deep": "With LN sigmoid layers drift no less", "ReLU": "With ReLU LN changes little"}
    for axes, (net, title) in zip(rows[2], titles.items(), strict=True):
        axes.set_ylim(-2, 0.5)
        lines(axes, range(1, DEPTH + 1), {name: results[f"{net}, {name}"]["drift"] for name in NORMS})
        tidy(axes, title, xlabel="hidden layer", ylabel=f"{net}: drift a pass, log10")


show("saturation", draw, SIZE)

# %%
# Result
# ------
# Factors compare with networks without a norm, at the best of five scales of initial weights.
#
# - **BN learns faster than no norm, LN does not.** At the usual scale of weights both are faster, and the
#   deep network without a norm does not reach 80 % within 20 epochs with any seed.
# - **Norms reduce saturation, except LN in the deep network**, where 43 % of the units are saturated, against
#   35 % without a norm.
# - **Norms keep gradients from vanishing: refuted.** At the usual scale gradients vanish without saturation.
#   Over eight layers they shrink to 1/1600 without a norm, and to 1/560 with LN, but not with BN. With tuned
#   scales they vanish in no network.
# - **Inputs drift less with BN**, almost by definition, and more with LN. Upper layers drift more.
# - **LN helps most with ReLU: unclear in drift, refuted in speed.**
# - **With LN a unit distinguishes images less in each layer** at initial weights. Its spread over the images
#   falls to 1/791 over eight layers, and BN keeps it.
#
# Advice
# ------
# In deep sigmoid networks use BN. If you cannot, use larger initial weights or, with LN, larger initial
# gains. LN is then not clearly faster than no norm. Try ``DEPTH = 3`` in depth.py: do norms still matter?
#
# How it was measured
# -------------------
# Deep networks have 8 layers of 32 units. The recurrent network has 32 units, and reads a digit in 16 steps
# of four pixels. They train for 20 epochs at the best scale and rate. Speed is the number of epochs to 80 %
# of the test images. Drift is the movement of a layer's distribution within an epoch, over its spread. We
# chose the margins: 1.25 times, 5 points of saturation, half a decade of gradient, half a point at the end.
# The intervals of each question hold jointly at 95 % (Bonferroni).


def grid_of(net, quick):
    factors = FACTORS[net][:3:2] if quick else FACTORS[net]
    return [(factor, rate) for factor in factors for rate in (RATES[2:3] if quick else RATES)]


def tune(seeds, quick):
    """Returns the factor and rate with the best mean held-out accuracy, and the best rate for factor 1."""
    data, settings, cases = load_digits(), {}, [(net, name) for net in NETS for name in NORMS]

    def job(case, seed):
        attempt = depth.try_recurrent if case[0] == "RNN" else depth.try_deep
        return attempt(data, *case, seed, grid_of(case[0], quick), 2 if quick else PASSES)

    for (net, name), scores in by_seed(job, cases, seeds, "settings").items():
        grid, means = grid_of(net, quick), scores.mean(axis=0)
        settings[f"{net}, {name}"], usual = best(grid, means), sum(factor == 1 for factor, _ in grid)
        if usual < len(grid):
            settings[f"{net}, {name}{USUAL}"] = best(grid[:usual], means[:usual])
    return settings


def measure(seeds, settings, quick):
    data, passes = load_digits(), 2 if quick else PASSES

    def job(case, seed):
        follow = depth.follow_recurrent if case.startswith("RNN") else depth.follow_deep
        own = follow(data, *case.split(", ")[:2], seed, settings[case], passes)
        return {of: own[of] for of in own if of in START or not case.endswith(USUAL)}

    found = by_seed(job, settings, seeds)
    return {case: {of: np.round(values, 4) for of, values in own.items()} for case, own in found.items()}


def clauses(results):
    usual, first, last = "trains faster at usual scale", list(QUESTIONS)[:4], list(QUESTIONS)[4:]
    asked = [(question, net) for question in (usual, *first) for net in ("deep", "RNN")]
    cases, found = [*asked, *((question, "deep") for question in last)], []
    for question, net, name in ((*case, name) for case in cases for name in ("LN", "BN")):
        never = results[f"{net}, no norm{USUAL}"]["accuracy"].max(axis=1) < REACHED
        least = " (at least)" if question == usual and never.any() else ""
        values, how = less(results, question, name, net), QUESTIONS[question.split(" at ")[0]][1:]
        found.append(Clause(f"{net}, {name}: {question}{least}", values, *how, 4))
    for net in ("deep", "ReLU"):
        lower, upper = np.split(results[f"{net}, no norm"]["drift"], 2, axis=1)
        values = natural(upper.mean(axis=1) - lower.mean(axis=1))
        found.append(Clause(f"{net}, no norm: deeper drifts more", values, *TIMES, 2))
    for question, helps in (("inputs drift less", "drift"), ("trains faster", "speed")):
        relu, deep = (less(results, question, "LN", net) for net in ("ReLU", "deep"))
        found.append(Clause(f"ReLU, LN: {question}", relu, *TIMES, 5))
        found.append(Clause(f"LN helps {helps} more with ReLU", relu - deep, *TIMES, 5))
    alike = results["ReLU, no norm"]["alike"] - results["deep, no norm"]["alike"]
    found.append(Clause("changes more alike with ReLU", alike, 0.05, "points", 5))
    for net in NETS:
        values = results[f"{net}, BN"]["accuracy"][:, -1] - results[f"{net}, LN"]["accuracy"][:, -1]
        found.append(Clause(f"{net}: BN ends better than LN", values, 0.005, "points", 4))
    spread = {name: results[f"deep, {name}, usual"]["start spread"] for name in ("LN", "BN")}
    lost = natural(spread["LN"][:, 0] - spread["LN"][:, -1])
    found.append(Clause("deep, LN: spread over images lost", lost, natural(0.5), "times", 4))
    return [*found, Check("deep, BN: spread over images kept", bool(np.abs(spread["BN"]).max() < 0.01))]


def tables(results):
    cells = {
        "saturated sigmoids, %": lambda own: percent(own["saturated"]),
        "gradient, first to last, decades": lambda own: plus_minus(own["decades"]),
        "  at the usual scale, before training": lambda own: plus_minus(own["start gradient"][:, 0]),
        f"passes to {100 * REACHED:.0f} %": lambda own: plus_minus(passes_to(own["accuracy"]), 1),
        "right at the end, %": lambda own: percent(own["accuracy"][:, -1]),
        "  at the usual scale": lambda own: percent(own["accuracy"][:, -1]),
        "drift of f's inputs, log10": lambda own: plus_minus(own["drift"].mean(axis=1)),
        "drift of W h, log10": lambda own: plus_minus(own["drift before"]),
        "shift of gradients, log10": lambda own: plus_minus(own["shift"]) if "shift" in own else "-",
        "alike, %": lambda own: percent(own["alike"]) if "alike" in own else "-",
    }
    usual = lambda row, net: USUAL if "usual" in row and net != "ReLU" else ""  # noqa: E731
    for net in NETS:
        shown = list(cells)[net == "ReLU" :]
        yield table(
            [net, *NORMS],
            [[r, *(cells[r](results[f"{net}, {n}{usual(r, net)}"]) for n in NORMS)] for r in shown],
        )


STUDY = Study("saturation", measure, clauses, tables, draw, tune, SIZE)

if __name__ == "__main__":
    STUDY.main()
