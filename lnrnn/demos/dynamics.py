"""``lnrnn demo dynamics``: does layer norm keep an RNN's states and gradients from exploding and vanishing?

Claim: in a standard RNN the summed inputs tend to grow or shrink at every step, so that gradients explode or
vanish; a layer-normalised one has much more stable hidden-to-hidden dynamics (Ba et al. 2016, arXiv
1607.06450, section 3.1). And on gains: Cooijmans et al. 2016 (arXiv 1603.09025, section 4) start those of
batch norm at 0.1 because at 1 the units saturate and gradients vanish; Ba et al. (figure 2) find 1.0 better
than 0.1 for layer norm. The gains are reported, the verdict is on the first claim.

Measured, for each seed: an RNN of 64 units at its start, without norm and with layer norm (the paper's, of
W_ih x_t + W_hh h_{t-1} together) of gain 1.0 and 0.1, no biases, runs 10,000 steps. W_hh is Gaussian, scaled
to spectral radius 0.9, 0.99, 1, 1.01 or 1.1. Four settings: f is the identity, where a plain RNN grows by its
spectral radius and nothing else, or tanh, the standard RNN (relu would be critical at a radius near sqrt(2),
and vanish at all of these); the input is zero, hidden-to-hidden dynamics alone, or white noise that gives
W_ih x_t variance 1.

- State: log10 of the root mean square of h_t over the units, mean over 4 sequences. What underflows counts as
  1e-45, what overflows as 10^38.5: the ends of float32.
- Gradient: log10 of the length of dL/dh_{T-k}, for a random unit vector dL/dh_T, by `backward` in pieces of
  10 steps. Between pieces it is scaled to length 1 and its logarithm kept, so it has no range to leave.
- Drift of either: what it changes between step (or lag) 10 and 10,000, in decades.
- Saturated: the share of tanh units whose slope 1 - h^2 is below 0.1, over steps 100 to 10,000.

Rule, fixed before the full run. In each setting, at the radii 0.9, 0.99, 1.01 and 1.1, for state and
gradient: the plain RNN is unstable if its drift is more than 1 decade in size, on average over the seeds.
There layer norm (gain 1.0) is much more stable if the 95 % interval of the paired difference of sizes of
drift, plain minus LN, is above 0 and LN's mean size is at most half the plain RNN's. Confirmed: it is much
more stable wherever the plain RNN is unstable, and within 1 decade wherever that is not. Not confirmed: it is
much more stable nowhere. Else it depends, and the verdict says how often for states and for gradients. One
seed has no interval and confirms nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import lnrnn
from lnrnn.demos.figures import STYLES
from lnrnn.demos.length_experiment import LAYER_NORM, NO_NORM
from lnrnn.demos.outcomes import interval, mean_and_deviation
from lnrnn.demos.study import Progress, Report, Study
from lnrnn.demos.tables import bullets, format_table, lay_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UNITS, INPUTS, SEQUENCES, PIECE = 64, 16, 4, 10
RADII = (0.9, 0.99, 1.0, 1.01, 1.1)
SMALLEST, LARGEST = -45.0, 38.5  # log10 of float32's range
STABLE = 1.0  # decades
SLOPE = 0.1  # of a saturated unit, less than that
Quantity = Literal["state", "gradient"]
QUANTITIES: tuple[Quantity, ...] = ("state", "gradient")


@dataclass(frozen=True)
class Kind:
    """A norm and where its gains start; None: no norm."""

    name: str
    gain: float | None = None


PLAIN, LAYER, LAYER_SMALL = Kind("no norm"), Kind("LN 1.0", 1.0), Kind("LN 0.1", 0.1)
KINDS = (PLAIN, LAYER, LAYER_SMALL)


@dataclass(frozen=True)
class Setting:
    """nonlinearity: f. driven: whether there is an input."""

    nonlinearity: Literal["identity", "tanh"]
    driven: bool

    def __str__(self) -> str:
        return f"{self.nonlinearity}, {'noise' if self.driven else 'no input'}"


SETTINGS = tuple(Setting(f, driven) for f in ("identity", "tanh") for driven in (False, True))
Case = tuple[Setting, float, Kind]


@dataclass(frozen=True)
class Path:
    """One run. state, gradient: log10, one value per piece, (T / PIECE,): state after 10, 20, ... steps,
    gradient that many steps before the end. saturated: share, 0 to 1."""

    state: np.ndarray
    gradient: np.ndarray
    saturated: float

    def drift(self, quantity: Quantity) -> float:
        """Decades from the first 10 steps to all."""
        values: np.ndarray = getattr(self, quantity)
        return float(values[-1] - values[0])


@dataclass
class Results:
    """steps: of each run. paths: by case, one per seed."""

    steps: int
    seeds: int
    paths: dict[Case, list[Path]] = field(default_factory=dict)

    def drifts(self, case: Case, quantity: Quantity) -> np.ndarray:
        """Decades, one per seed: float64 (S,)."""
        return np.array([path.drift(quantity) for path in self.paths[case]])

    def saturated(self, case: Case) -> float:
        """Share of saturated units, 0 to 1, mean over the seeds."""
        return float(np.mean([path.saturated for path in self.paths[case]]))


def recurrent_weights(rng: np.random.Generator, units: int = UNITS) -> np.ndarray:
    """A Gaussian matrix of spectral radius 1: float64 (units, units)."""
    weights = rng.standard_normal((units, units)) / units**0.5
    # Rounded, so that its bits do not hang on the order in which LAPACK adds.
    return np.asarray(weights / round(float(np.abs(np.linalg.eigvals(weights)).max()), 6))


def make_network(case: Case, weights: np.ndarray, inputs: np.ndarray) -> lnrnn.RNN:
    """weights: of radius 1; inputs: (units, I)."""
    setting, radius, kind = case
    norm: Literal["layer"] | None = None if kind.gain is None else "layer"
    rnn = lnrnn.RNN(
        inputs.shape[1], len(weights), norm=norm, bias=False, nonlinearity=setting.nonlinearity, seed=0
    )
    rnn.weight_hh_l0 = (radius * weights).astype(np.float32)
    rnn.weight_ih_l0 = inputs.astype(np.float32)
    if kind.gain is not None:
        rnn.gain_l0 = np.full(len(weights), kind.gain, np.float32)
    return rnn


def log_size(values: np.ndarray) -> float:
    """log10 of the root mean square over the last axis, within float32's range; the mean over the others."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        found = np.log10(np.sqrt((values.astype(np.float64) ** 2).mean(axis=-1)))
    found = np.where(np.isfinite(values).all(axis=-1), found, LARGEST)
    return float(found.clip(SMALLEST, LARGEST).mean())


def run_network(rnn: lnrnn.RNN, x: np.ndarray, h0: np.ndarray, gradient: np.ndarray) -> Path:
    """x (T, B, I), h0 (1, B, H), gradient (1, B, H) of the last state; T a multiple of PIECE."""
    tapes, state, saturated = [], [], []
    h = h0
    for start in range(0, len(x), PIECE):
        y, h, tape = rnn.forward_train(x[start : start + PIECE], h)
        tapes.append(tape)
        state.append(log_size(h))
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
    return Path(np.array(state), np.array(gradients), float(np.mean(saturated or [0.0])))


def length(vectors: np.ndarray) -> np.ndarray:
    """Euclidean, over the last axis, which stays: float64."""
    return np.asarray(np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=-1, keepdims=True)))


def measure(seeds: int, quick: bool, progress: Progress) -> Results:
    """Every case under every seed; all cases of a seed share weights, input, start and gradient."""
    results = Results(300 if quick else 10_000, min(seeds, 2) if quick else seeds)
    cases = [(setting, radius, kind) for setting in SETTINGS for radius in RADII for kind in KINDS]
    for seed in range(results.seeds):
        rng = np.random.default_rng(seed)
        weights = recurrent_weights(rng)
        inputs = rng.standard_normal((UNITS, INPUTS)) / INPUTS**0.5
        h0, gradient = (
            rng.standard_normal((1, SEQUENCES, UNITS), dtype=np.float32) for _ in ("h0", "gradient")
        )
        x = rng.standard_normal((results.steps, SEQUENCES, INPUTS), dtype=np.float32)
        for place, case in enumerate(cases):
            progress((seed + place / len(cases)) / results.seeds, f"{case[0]}, seed {seed}")
            rnn = make_network(case, weights, inputs)
            path = run_network(rnn, x if case[0].driven else np.zeros_like(x), h0, gradient)
            results.paths.setdefault(case, []).append(path)
    return results


# --- the verdict --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """Plain against LN in one setting, at one radius, of one quantity. unstable: the plain RNN is; much:
    layer norm is much more stable; within: layer norm stays within STABLE."""

    quantity: Quantity
    unstable: bool
    much: bool
    within: bool


def compare_sizes(quantity: Quantity, plain: np.ndarray, layer: np.ndarray) -> Comparison:
    """plain, layer: drifts in decades (S,), under the same seeds."""
    plain, layer = np.abs(plain), np.abs(layer)
    apart = interval(plain - layer)
    much = apart is not None and apart[0] > 0 and layer.mean() <= plain.mean() / 2
    return Comparison(quantity, bool(plain.mean() > STABLE), bool(much), bool(layer.mean() <= STABLE))


def comparisons(results: Results) -> list[Comparison]:
    """All that the verdict rests on."""
    return [
        compare_sizes(
            quantity,
            results.drifts((setting, radius, PLAIN), quantity),
            results.drifts((setting, radius, LAYER), quantity),
        )
        for quantity in QUANTITIES
        for setting in SETTINGS
        for radius in RADII
        if radius != 1
    ]


def verdict(found: Sequence[Comparison], text: str) -> Report:
    """By the rule above."""
    parts, shares = [], []
    for quantity in QUANTITIES:
        of = [one for one in found if one.quantity == quantity]
        unstable = [one.much for one in of if one.unstable]
        stable = [one.within for one in of if not one.unstable]
        parts.append(
            f"{quantity}s: LN much more stable in {sum(unstable)} of the {len(unstable)} cases where the "
            "plain RNN is unstable"
            + (f", stable in {sum(stable)} of the other {len(stable)}" if stable else "")
        )
        shares.append(f"{quantity}s in {sum(unstable) + sum(stable)} of {len(of)} cases")
    number = f"{'; '.join(parts)}."
    number = number[0].upper() + number[1:]
    if not any(one.unstable and one.much for one in found):
        return Report("not confirmed", number, text)
    if all(one.much if one.unstable else one.within for one in found):
        return Report("confirmed", number, text)
    return Report("depends", number, text, f"what is asked: {', '.join(shares)}")


# --- what is shown ------------------------------------------------------------------------------------------


def decades(mean: float, deviation: float | None = None) -> str:
    """-456.7, 0.2 -> "-457±0.2": with few digits, and the deviation where there is one."""
    short = f"{mean:+.0f}" if abs(mean) >= 99.5 else f"{mean:+.1f}"
    return short + (
        "" if deviation is None else f"±{deviation:.0f}" if deviation >= 9.95 else f"±{deviation:.1f}"
    )


def drift_table(results: Results, quantity: Quantity) -> str:
    """Drifts in decades: a row per setting and radius, a column per kind."""
    rows = [
        [f"{setting}, {radius:g}"]
        + [decades(*mean_and_deviation(results.drifts((setting, radius, kind), quantity))) for kind in KINDS]
        for setting in SETTINGS
        for radius in RADII
    ]
    return format_table(["", *(kind.name for kind in KINDS)], rows)


def gradient_rates(results: Results, case: Case) -> np.ndarray:
    """Decades per 100 steps, one per seed."""
    return results.drifts(case, "gradient") * 100 / (results.steps - PIECE)


def gain_table(results: Results, radius: float = 1.0) -> str:
    """Gain 0.1 against 1.0: the gradient's decades per 100 steps, and saturated units."""
    rows = []
    for setting in SETTINGS:
        one, tenth = (gradient_rates(results, (setting, radius, kind)) for kind in (LAYER, LAYER_SMALL))
        ends = interval(tenth - one)
        saturated = [f"{100 * results.saturated((setting, radius, kind)):.1f}" for kind in KINDS]
        rows.append(
            [str(setting), f"{one.mean():+.2f}", f"{tenth.mean():+.2f}"]
            + ["-" if ends is None else f"{ends[0]:+.2f} to {ends[1]:+.2f}"]
            + (saturated if setting.nonlinearity == "tanh" else ["-"] * len(KINDS))
        )
    return format_table(["", "LN 1.0", "LN 0.1", "difference", "none %", "1.0 %", "0.1 %"], rows)


def sentences(results: Results) -> list[str]:
    """The extremes of the states, and the gradients of the standard RNN with an input."""

    def extremes(kind: Kind) -> str:
        found = [results.drifts((setting, radius, kind), "state") for setting in SETTINGS for radius in RADII]
        return f"{decades(float(np.min(found)))} to {decades(float(np.max(found)))} decades"

    rates = ", ".join(
        f"{kind.name} {decades(*mean_and_deviation(gradient_rates(results, (SETTINGS[-1], 1.0, kind))))}"
        for kind in KINDS
    )
    return [
        f"Over all settings and radii, states change by {extremes(PLAIN)} without norm, by {extremes(LAYER)} "
        "under LN.",
        f"Gradients of tanh units with noise as input, at radius 1, in decades per 100 steps: {rates}.",
    ]


def report(results: Results) -> Report:
    """Sentences, tables and verdict."""
    steps = f"{results.steps:,}"
    tables = [
        (
            f"States: decades by which the size of h_t changes from step {PIECE} to step {steps} "
            f"(setting, spectral radius). Float32 ends at 10^{LARGEST:g} and 10^{SMALLEST:g}.",
            drift_table(results, "state"),
        ),
        (
            f"Gradients: decades by which the size of dL/dh changes from {PIECE} to {steps} steps before "
            "the end. Beyond about 40 none can be computed in float32 without scaling on the way.",
            drift_table(results, "gradient"),
        ),
        (
            "Gains, at radius 1: decades per 100 steps that the gradient gains or loses, with the 95 % "
            "interval of gain 0.1 minus 1.0, and the percentage of saturated tanh units (slope below "
            f"{SLOPE:g}).",
            gain_table(results),
        ),
    ]
    text = lay_out(bullets(sentences(results)), tables)
    return verdict(comparisons(results), text)


COLOURS = {PLAIN: STYLES[NO_NORM][1], LAYER: STYLES[LAYER_NORM][1], LAYER_SMALL: "#5fb0e8"}
NAMES = {PLAIN: "no norm", LAYER: "layer norm, gain 1.0", LAYER_SMALL: "layer norm, gain 0.1"}
DASHES: dict[Kind, Any] = {PLAIN: "-", LAYER: "-", LAYER_SMALL: (0, (4, 2))}
SHOWN = 60  # decades either way
NOTE = "#55524a"
DRAWN = (Setting("identity", False), Setting("tanh", False), Setting("tanh", True))


def draw(results: Results, figure: Figure) -> None:
    """States above and gradients below, for three of the settings."""
    panels: Any = figure.subplots(2, len(DRAWN), sharex=True, sharey="row")
    for row, quantity in zip(panels, QUANTITIES, strict=True):
        for axes, setting in zip(row, DRAWN, strict=True):
            _draw_paths(axes, results, setting, quantity)
        row[0].set_ylabel(
            "size of the state h\n(log10 of its rms)"
            if quantity == "state"
            else "size of the gradient dL/dh\n(log10, relative to the last step)"
        )
    for axes, setting in zip(panels[0], DRAWN, strict=True):
        axes.set_title(
            f"{setting.nonlinearity} units, {'noise as input' if setting.driven else 'no input'}",
            fontsize=11.5, loc="left", fontweight="bold",
        )  # fmt: skip
        axes.set_xlabel("steps from the start")
        axes.tick_params(labelbottom=True)
    for axes in panels[1]:
        axes.set_xlabel("steps back from the end")
    handles = [
        panels[0][0].plot([], [], color=COLOURS[kind], ls=DASHES[kind], lw=2.2, label=NAMES[kind])[0]
        for kind in KINDS
    ]
    radii = ", ".join(f"{radius:g}" for radius in RADII)
    figure.legend(
        handles=handles, loc="outside upper center", ncols=len(KINDS), frameon=False, fontsize=10.5,
        title=f"A line for each spectral radius of W_hh ({radii}), mean over {results.seeds} seeds",
    )  # fmt: skip


def _draw_paths(axes: Axes, results: Results, setting: Setting, quantity: Quantity) -> None:
    steps = np.arange(PIECE, results.steps + 1, PIECE)
    for low, high in ((-SHOWN, SMALLEST), (LARGEST, SHOWN)):
        axes.axhspan(low, high, color="#f1efe9", lw=0, zorder=0)
    if setting == DRAWN[0]:
        axes.text(PIECE * 1.2, LARGEST + 2, "too large for float32", fontsize=8.5, color=NOTE, va="bottom")
        axes.text(PIECE * 1.2, SMALLEST - 2, "too small for float32", fontsize=8.5, color=NOTE, va="top")
    means = {}
    for kind in KINDS:
        for radius in RADII:
            paths = results.paths[setting, radius, kind]
            means[kind, radius] = np.mean([getattr(path, quantity) for path in paths], axis=0)
            axes.plot(
                steps, means[kind, radius], color=COLOURS[kind], ls=DASHES[kind],
                lw=1.5 if kind == PLAIN else 2.0, zorder=2 if kind == PLAIN else 3,
            )  # fmt: skip
    _name_radii(axes, steps, {radius: means[PLAIN, radius] for radius in RADII})
    if quantity == "state" and setting.nonlinearity == "tanh" and setting.driven:
        shares = [f"{NAMES[kind]}: {100 * results.saturated((setting, 1.0, kind)):.0f} %" for kind in KINDS]
        axes.text(
            PIECE * 1.3, 34, "\n".join(["saturated units at radius 1", *shares]), fontsize=9, va="top",
            color=NOTE, linespacing=1.4,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(PIECE, results.steps)
    axes.set_ylim(-SHOWN, SHOWN)
    axes.grid(axis="y", color="#d9d9d9", lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _name_radii(axes: Axes, steps: np.ndarray, lines: dict[float, np.ndarray]) -> None:
    """At each line that goes beyond 25 decades, where it does; not at lines that lie side by side there."""
    places = {}
    for radius, values in lines.items():
        far = np.flatnonzero(np.abs(values) > 25)
        if len(far):
            places[radius] = steps[far[0]], values[far[0]]
    for radius, (step, value) in places.items():
        others = [place for other, place in places.items() if other != radius and place[1] * value > 0]
        if all(abs(np.log10(step / other)) > 0.3 for other, _ in others):
            axes.annotate(
                f"{radius:g}", (step, value), textcoords="offset points", xytext=(-4, 0), ha="right",
                va="center", fontsize=9, color=NOTE,
            )  # fmt: skip


def how(seeds: int, quick: bool) -> str:
    """For the terminal."""
    steps, seeds = ("300", min(seeds, 2)) if quick else ("10,000", seeds)
    return (
        f"For each of {seeds} seeds RNNs of {UNITS} units at their start, without norm and with layer norm "
        f"(LN) of gain 1.0 and 0.1, run {steps} steps, with the spectral radius of W_hh between "
        f"{min(RADII):g} and {max(RADII):g}, identity or tanh, without input and with white noise. Gradients "
        "go back all the way."
    )


STUDY = Study(
    name="dynamics",
    claim="Without a norm an RNN's states and gradients explode or vanish over many steps; layer norm keeps "
    "both stable",
    source="Ba et al. 2016, arXiv 1607.06450, section 3.1",
    how=how,
    measure=measure,
    report=report,
    draw=draw,
    size=(12.5, 7.6),
)
