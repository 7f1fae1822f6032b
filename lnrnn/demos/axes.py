"""``lnrnn demo axes``: which values share a mean under layer norm and batch norm, found out by calls.

Claims. Ba, Kiros, Hinton, Layer Normalization (arXiv 1607.06450), section 3: layer norm takes mean and
variance over the units of one case, at each time step by itself, and does the same in training and at
inference. Ioffe, Szegedy, Batch Normalization (arXiv 1502.03167), section 3: batch norm takes them per
feature over the batch, in a convolution per channel over batch and places, and stores averages of them
for inference; and with the gain equal to sigma and the bias equal to mu it gives its input back.
Cooijmans et al. (arXiv 1603.09025), section 3: in a recurrent network batch norm takes them for each time
step by itself.

What is computed. Arrays of four layouts, NC (4, 3), NCL (3, 3, 4), NCHW (2, 3, 2, 2) and TBH (4, 3, 5),
values normal by the seed, go through lnrnn.BatchNorm and lnrnn.LayerNorm in float64; TBH goes through
lnrnn.RNN with the norm inside, W_ih = 1, W_hh = 0 and no nonlinearity, so that its output is the norm of
its input. A further case is batch norm over batch and steps together, BatchNorm on TBH turned to (B, H,
T), as Deep Speech 2 (arXiv 1512.02595) has it. No group may have two values: normalised they are -1 and 1
whatever they were.

Measure. One value of the input is changed at a time, by 1, and the outputs that differ in any bit are
noted. Grouping: which values move together; they share mean and variance. The groups must not overlap,
and each group's own mean and deviation must give the output (to 1e-5). Stored: the numbers of
state_dict() that are not trained. Inference: the same change after one call in training. Given back: with
gain and bias set to sigma and mu, the groups whose values come back (to 1e-5 of the root mean square). A
gain has the shape the layer gives it; where more groups than one share it, sigma and mu are those of the
first of them.

Verdict rule, over three parts, each of which must come out alike under every seed. Grouping: as claimed
in all nine cases (CLAIMED). Storage: layer norm stores nothing and groups alike at inference; batch norm
stores a mean and a variance for each of its groups, and at inference a changed value moves itself alone.
Given back: under batch norm in NC, NCL and NCHW every group comes back at once. Confirmed: all three
hold. Not confirmed: none. Else it depends on the part. How many groups layer norm and batch norm per step
give back is reported; the paper claims nothing there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import lnrnn
from lnrnn.demos.study import Progress, Report, Study
from lnrnn.demos.tables import bullets, format_table, lay_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray
CLOSE = 1e-5
TRAINED = ("weight", "bias")  # of LayerNorm and BatchNorm; an RNN's are its parameters()


@dataclass
class Normed:
    """A norm over arrays of one shape, as a user calls it.

    train, infer: x -> y, in training and at inference. state: what it keeps, by name, with what is trained.
    trained: the names of what is trained. gain_shape: of gain and bias, as they broadcast against x.
    set_gain: takes a gain and a bias, flat.
    eps: of the norm.
    """

    train: Callable[[Array], Array]
    infer: Callable[[Array], Array]
    state: Callable[[], dict[str, Array]]
    trained: tuple[str, ...]
    gain_shape: tuple[int, ...]
    set_gain: Callable[[Array, Array], None]
    eps: float


def batch(shape: tuple[int, ...], to: tuple[int, ...] = ()) -> Normed:
    """BatchNorm; ``to``: the order of axes that makes (N, C, *) of x."""
    order = to or tuple(range(len(shape)))
    back = tuple(int(axis) for axis in np.argsort(order))
    layer = lnrnn.BatchNorm(shape[order[1]])

    def call(training: bool) -> Callable[[Array], Array]:
        return lambda x: layer.train(training)(x.transpose(order)).transpose(back)

    def set_gain(gain: Array, bias: Array) -> None:
        layer.weight, layer.bias = gain, bias

    gain_shape = tuple(size if axis == order[1] else 1 for axis, size in enumerate(shape))
    return Normed(call(True), call(False), layer.state_dict, TRAINED, gain_shape, set_gain, layer.eps)


def layer_over_all_but_the_first(shape: tuple[int, ...]) -> Normed:
    """LayerNorm over all axes but the first."""
    layer = lnrnn.LayerNorm(shape[1:])

    def set_gain(gain: Array, bias: Array) -> None:
        layer.weight, layer.bias = gain.reshape(shape[1:]), bias.reshape(shape[1:])

    return Normed(
        lambda x: layer.train()(x), lambda x: layer.eval()(x), layer.state_dict, TRAINED, (1, *shape[1:]),
        set_gain, layer.eps,
    )  # fmt: skip


def recurrent(shape: tuple[int, ...], norm: lnrnn.LayerNormSpec | lnrnn.BatchNormSpec) -> Normed:
    """The norm inside an RNN that does nothing else: y is the norm of x, both (T, B, H)."""
    units = shape[2]
    rnn = lnrnn.RNN(units, units, nonlinearity="identity", norm=norm)
    rnn.weight_ih_l0, rnn.weight_hh_l0 = np.eye(units), np.zeros((units, units))

    def set_gain(gain: Array, bias: Array) -> None:
        rnn.gain_l0, rnn.bias_l0 = gain, bias

    return Normed(
        lambda x: rnn.forward_train(x)[0], lambda x: rnn(x)[0], rnn.state_dict, tuple(rnn.parameters()),
        (1, 1, units), set_gain, norm.eps,
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One of CLAIMED. layout: a letter per axis. over: the axes that share a mean, as claimed. make: the
    norm, new. given_back: whether gain = sigma and bias = mu are claimed to give all of the input back."""

    norm: str
    layout: str
    shape: tuple[int, ...]
    over: str
    make: Callable[[], Normed]
    given_back: bool = False
    dtype: type = np.float64

    @property
    def stores(self) -> bool:
        return self.norm != "LN"


SHAPES = {"NC": (4, 3), "NCL": (3, 3, 4), "NCHW": (2, 3, 2, 2), "TBH": (4, 3, 5)}
STEPS = SHAPES["TBH"]
CLAIMED = (
    Case("BN", "NC", SHAPES["NC"], "N", lambda: batch(SHAPES["NC"]), True),
    Case("BN", "NCL", SHAPES["NCL"], "NL", lambda: batch(SHAPES["NCL"]), True),
    Case("BN", "NCHW", SHAPES["NCHW"], "NHW", lambda: batch(SHAPES["NCHW"]), True),
    Case("BN per step", "TBH", STEPS, "B", lambda: recurrent(STEPS, lnrnn.BatchNormSpec()), dtype=np.float32),
    Case("BN, all steps", "TBH", STEPS, "TB", lambda: batch(STEPS, (1, 2, 0))),
    Case("LN", "NC", SHAPES["NC"], "C", lambda: layer_over_all_but_the_first(SHAPES["NC"])),
    Case("LN", "NCL", SHAPES["NCL"], "CL", lambda: layer_over_all_but_the_first(SHAPES["NCL"])),
    Case("LN", "NCHW", SHAPES["NCHW"], "CHW", lambda: layer_over_all_but_the_first(SHAPES["NCHW"])),
    Case("LN", "TBH", STEPS, "H", lambda: recurrent(STEPS, lnrnn.LayerNormSpec()), dtype=np.float32),
)


# --- measuring ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What the calls of one case told.

    groups: of x's shape, the number of the group that each value is of. disjoint: whether groups are groups:
    whatever one of its values moves, all do, and nothing else does. exact: whether each group's own mean and
    deviation give the output. over: the axes along which a group extends. infer: those along which a change
    spreads at inference; "" if it moves itself alone.
    gains: numbers trained, gains and biases together. stored: how many others are kept, by name.
    back: how many groups come back where gain and bias are sigma and mu.
    """

    groups: Array
    disjoint: bool
    exact: bool
    over: str
    infer: str
    gains: int
    stored: dict[str, int]
    back: int

    @property
    def statistics(self) -> int:
        """How many means there are; as many variances."""
        return int(self.groups.max()) + 1

    @property
    def summary(self) -> tuple[Any, ...]:
        """Everything, to be compared with that of another seed."""
        return (
            self.groups.tolist(), self.disjoint, self.exact, self.over, self.infer, self.gains, self.stored,
            self.back,
        )  # fmt: skip


def moved(call: Callable[[Array], Array], x: Array) -> Array:
    """Which outputs differ in any bit when one value of x is changed by 1: bool (x.size, x.size), a row for
    each value that is changed."""
    before = call(x).ravel().copy()
    rows = []
    for place in range(x.size):
        changed = x.copy()
        changed.flat[place] += 1
        rows.append(call(changed).ravel() != before)
    return np.array(rows)


def group(moves: Array) -> tuple[Array, bool]:
    """moves, as ``moved`` gives it -> the group of each value (size,), numbered in order of appearance; and
    whether they are disjoint: the rows of a group's members are alike, and name just its members."""
    first = moves.argmax(axis=1)  # the first value that moves
    _, numbers = np.unique(first, return_inverse=True)
    disjoint = bool(np.array_equal(moves, numbers[:, None] == numbers[None]))
    return numbers, disjoint


def axes_of(groups: Array, layout: str) -> str:
    """groups: of x's shape -> the letters of the axes along which the first value's group extends."""
    members = np.argwhere(groups == groups.flat[0])
    return "".join(letter for letter, places in zip(layout, members.T, strict=True) if np.ptp(places) > 0)


def standardise(x: Array, groups: Array, eps: float) -> tuple[Array, Array, Array]:
    """x with each group's own mean taken off, and divided by its sqrt(var + eps); these two by group."""
    numbers, counts = groups.ravel(), np.bincount(groups.ravel())
    values = x.ravel().astype(np.float64)
    mean = np.bincount(numbers, values) / counts
    sigma = np.sqrt(np.bincount(numbers, (values - mean[numbers]) ** 2) / counts + eps)
    return ((values - mean[numbers]) / sigma[numbers]).reshape(x.shape), mean, sigma


def probe(case: Case, seed: int) -> Found:
    """All that is asked of one case, under one seed."""
    x: Array = np.random.default_rng(seed).standard_normal(case.shape).astype(case.dtype)
    normed = case.make()
    numbers, disjoint = group(moved(normed.train, x))
    groups = numbers.reshape(case.shape)
    expected, mean, sigma = standardise(x, groups, normed.eps)
    exact = bool(np.abs(normed.train(x) - expected).max() <= CLOSE)
    at_inference, _ = group(moved(normed.infer, x))
    state = normed.state()
    stored = {name: value.size for name, value in state.items() if name not in normed.trained}
    trained = [name for name in normed.trained if not name.startswith("weight_")]
    gains = sum(state[name].size for name in trained)
    # The first group that each gain is applied to is the one whose sigma it becomes.
    at = np.broadcast_to(np.arange(np.prod(normed.gain_shape)).reshape(normed.gain_shape), case.shape)
    _, firsts = np.unique(at, return_index=True)
    of_gain = numbers[firsts]
    normed.set_gain(sigma[of_gain].astype(case.dtype), mean[of_gain].astype(case.dtype))
    off = np.abs(normed.train(x) - x).ravel() > CLOSE * np.sqrt(np.square(x).mean())
    back = int((np.bincount(numbers, off) == 0).sum())
    return Found(
        groups, disjoint, exact, axes_of(groups, case.layout),
        axes_of(at_inference.reshape(case.shape), case.layout), gains, stored, back,
    )  # fmt: skip


Results = list[list[Found]]  # by case, as in CLAIMED, and seed


def measure(seeds: int, quick: bool, progress: Progress) -> Results:
    results: Results = []
    for place, case in enumerate(CLAIMED):
        progress(place / len(CLAIMED), f"{case.norm}, {case.layout}")
        results.append([probe(case, seed) for seed in range(seeds)])
    return results


# --- what follows from it -----------------------------------------------------------------------------------


def is_grouped(case: Case, found: Found) -> bool:
    return found.disjoint and found.exact and found.over == case.over


def is_stored(case: Case, found: Found) -> bool:
    if not case.stores:
        return not found.stored and found.infer == found.over
    kept = {kind: sum(size for name, size in found.stored.items() if name.startswith(f"running_{kind}"))
            for kind in ("mean", "var")}  # fmt: skip
    return not found.infer and kept == dict.fromkeys(kept, found.statistics)


def is_given_back(case: Case, found: Found) -> bool | None:
    return found.back == found.statistics if case.given_back else None


# By part of the claim, whether it holds of a case; None where nothing is claimed.
PARTS: dict[str, Callable[[Case, Found], bool | None]] = {
    "grouping": is_grouped,
    "storage": is_stored,
    "giving back": is_given_back,
}


def holds(part: str, results: Results) -> list[bool]:
    """Of each case that the part is claimed of, whether it holds under every seed, and alike."""
    found = []
    for case, seeds in zip(CLAIMED, results, strict=True):
        answers = [PARTS[part](case, one) for one in seeds]
        if None not in answers:
            found.append(all(answers) and all(one.summary == seeds[0].summary for one in seeds))
    return found


def verdict(results: Results) -> Report:
    """The verdict and its number; the text is empty."""
    cases = {part: holds(part, results) for part in PARTS}
    told = (f"{part} in {sum(answers)} of {len(answers)} cases" for part, answers in cases.items())
    number = f"As claimed: {', '.join(told)}."
    failing = [part for part, answers in cases.items() if not all(answers)]
    if not failing:
        return Report("confirmed", number, "")
    if len(failing) == len(PARTS):
        return Report("not confirmed", number, "")
    return Report("depends", number, "", depends_on=f"the part: {' and '.join(failing)} not as claimed")


def table(results: Results) -> str:
    rows = []
    for case, (found, *_) in zip(CLAIMED, results, strict=True):
        back = "all" if found.back == found.statistics else str(found.back)
        rows.append([
            f"{case.norm}, {case.layout}", "x".join(map(str, case.shape)), found.over or "-",
            str(found.statistics), str(found.statistics), str(found.gains // 2), str(found.gains // 2),
            str(sum(found.stored.values())), back,
        ])  # fmt: skip
    header = ["", "shape", "over", "means", "vars", "gains", "biases", "stored", "back"]
    return format_table(header, rows)


def report(results: Results) -> Report:
    found = verdict(results)
    by_norm = [(case, seeds[0]) for case, seeds in zip(CLAIMED, results, strict=True)]
    per_step = next(one for case, one in by_norm if case.norm == "BN per step")
    layer = [one for case, one in by_norm if not case.stores]
    alone = sum(not one.infer for case, one in by_norm if case.stores)
    shared = {case.layout: (one.statistics, one.back) for case, one in by_norm if not case.stores}
    told = [
        f"At inference a changed value moves itself alone in {alone} of {len(by_norm) - len(layer)} cases of "
        "batch norm, which reads what it stored; under layer norm inference and training group alike in "
        f"{sum(one.infer == one.over for one in layer)} of {len(layer)}.",
        "Inside a recurrent network batch norm per step keeps "
        f"{per_step.stored['running_mean_l0']} means, one for each of {STEPS[0]} steps and {STEPS[2]} units, "
        f"and has {per_step.gains // 2} gains for all steps together.",
        "In NC, NCL and NCHW batch norm's gains and biases are as many as its means, so they can undo all of "
        "them. Layer norm's belong to the features and its means to the samples: sigma and mu of one sample "
        "give back "
        + ", ".join(f"{back} of {count} ({layout})" for layout, (count, back) in shared.items())
        + f"; batch norm per step, whose steps share a gain, {per_step.back} of {per_step.statistics}.",
    ]
    caption = (
        "over: the axes along which values move when one of them is changed in training. stored: numbers "
        "kept besides gains and biases (running means and variances, counts). back: how many of the means' "
        "groups come back at once with gain = sigma and bias = mu."
    )
    text = lay_out(bullets(told), [(caption, table(results))])
    return Report(found.verdict, found.number, text, found.depends_on)


# --- the figure ---------------------------------------------------------------------------------------------

COLOURS = {True: "#ef8a17", False: "#1565c0"}  # batch norm, layer norm
TINTS = ("#e9edf0", "#cdd5db")  # of the other groups
SLANT = (0.5, 0.38)  # by how much of a cell the next layer behind is drawn further right and higher
TITLES = {"NC": "N cases, C features", "NCL": "N sequences, C channels, L places",
          "NCHW": "N images, C channels, H x W places", "TBH": "T steps, B sequences, H units"}  # fmt: skip
# layout -> the axes drawn to the right, upwards, and (together) into the depth
PLACES = {"NC": ("N", "C", ""), "NCL": ("N", "C", "L"), "NCHW": ("N", "C", "HW"), "TBH": ("B", "H", "T")}


def draw(results: Results, figure: Figure) -> None:
    drawn = [(case, seeds[0]) for case, seeds in zip(CLAIMED, results, strict=True)
             if case.norm != "BN, all steps"]  # fmt: skip
    panels = figure.subplots(2, len(drawn) // 2)
    for axes, (case, found) in zip(panels.flat, drawn, strict=True):
        _draw_block(axes, case, found)
    for row, name in zip(panels, ("Batch norm", "Layer norm"), strict=True):
        row[0].text(-0.06, 0.5, name, transform=row[0].transAxes, rotation=90, va="center", ha="right",
                    fontsize=14, fontweight="bold", color=COLOURS[name == "Batch norm"])  # fmt: skip
    figure.suptitle(
        "One value is changed (dot). The coloured outputs move with it: they share a mean and a variance.",
        fontsize=13, fontweight="bold",
    )  # fmt: skip


def _draw_block(axes: Axes, case: Case, found: Found) -> None:
    """A block of cells: its front, its right side and its top, each cell in the colour of its group."""
    letters = PLACES[case.layout]
    order = [case.layout.index(letter) for letter in "".join(letters)]
    groups = found.groups.transpose(order)
    groups = groups.reshape(*groups.shape[:2], -1)
    width, height, depth = groups.shape
    chosen = groups[-1, -1, 0]
    colour = COLOURS[case.stores]

    def fill(number: int) -> str:
        return colour if number == chosen else TINTS[number % 2]

    def point(right: float, up: float, back: float) -> tuple[float, float]:
        return right + SLANT[0] * back, up + SLANT[1] * back

    def cell(number: int, corners: list[tuple[float, float, float]]) -> None:
        from matplotlib.patches import Polygon

        outline = [point(*corner) for corner in corners]
        axes.add_patch(Polygon(outline, facecolor=fill(number), edgecolor="white", lw=1.2))

    for i in range(width):
        for j in range(height):
            cell(groups[i, j, 0], [(i, j, 0), (i + 1, j, 0), (i + 1, j + 1, 0), (i, j + 1, 0)])
    for k in range(depth if depth > 1 else 0):
        for j in range(height):
            cell(
                groups[-1, j, k], [(width, j, k), (width, j, k + 1), (width, j + 1, k + 1), (width, j + 1, k)]
            )
        for i in range(width):
            cell(
                groups[i, -1, k],
                [(i, height, k), (i + 1, height, k), (i + 1, height, k + 1), (i, height, k + 1)],
            )
    axes.plot(width - 0.5, height - 0.5, "o", color="black", ms=6)
    small: dict[str, Any] = {"fontsize": 10.5, "color": "#555555"}
    axes.text(width / 2, -0.12, f"{letters[0]} = {width}", ha="center", va="top", **small)
    axes.text(-0.15, height / 2, f"{letters[1]} = {height}", ha="right", va="center", rotation=90, **small)
    if depth > 1:
        x, y = point(width, 0, depth / 2)
        name = " x ".join(letters[2])
        axes.text(x + 0.2, y - 0.15, f"{name} = {depth}", ha="left", va="top", **small)
    _caption(axes, case, found)
    right, highest = point(width, height, depth if depth > 1 else 0)
    axes.set_xlim(-0.8, right + 0.8)
    axes.set_ylim(-0.8, highest + 0.2)
    axes.set_aspect("equal", anchor="S")  # captions of a row at one height
    axes.set_axis_off()


def _caption(axes: Axes, case: Case, found: Found) -> None:
    *others, last = list(found.over)
    over = f"{', '.join(others)} and {last}" if others else last
    per_step = ", per step" if case.norm == "BN per step" else ""
    axes.set_title(f"{TITLES[case.layout]}\nmean over {over}{per_step}", fontsize=11)
    stored = sum(found.stored.values())
    axes.text(
        0.5, -0.04,
        f"{found.statistics} means, {found.statistics} variances\n"
        f"{found.gains // 2} gains, {found.gains // 2} biases\n"
        f"stored for inference: {f'{stored} numbers' if stored else 'nothing'}\n"
        f"gain = σ, bias = μ: {found.back} of {found.statistics} come back",
        transform=axes.transAxes, ha="center", va="top", fontsize=10,
    )  # fmt: skip


def how(seeds: int, quick: bool) -> str:
    return (
        f"{len(CLAIMED)} cases of a norm and a layout, arrays of 12 to 60 normal values, {seeds} "
        f"seed{'' if seeds == 1 else 's'}. One value is changed at a time; the outputs that differ in any "
        "bit share its mean and variance."
    )


STUDY = Study(
    name="axes",
    claim="Layer norm takes its statistics per sample, batch norm per channel; only batch norm stores any, "
    "and with gain = sigma and bias = mu it gives its input back.",
    source="Ba, Kiros, Hinton 2016, arXiv 1607.06450; Ioffe, Szegedy 2015, arXiv 1502.03167; Cooijmans et "
    "al. 2016, arXiv 1603.09025",
    how=how,
    measure=measure,
    report=report,
    draw=draw,
    size=(14.0, 8.0),
)
