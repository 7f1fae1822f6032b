"""Other people's modules, called in a way that was learned, held to lnrnn.reference: what they return on
every probe, and the gradients of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch

from ..importers.checking import MARGIN
from ..importers.probes import SINGLE, Probe, Subject, apart, like, probes
from ..importers.running import numbers, unchanged
from ..importers.torch_weights import convert_torch
from ..importers.truth import Run, Truth
from ..rnn.architecture import Architecture
from .forms import Form, Leaf, filled
from .recipes import Recipe

Tensor = torch.Tensor
Array = np.ndarray
# Of what gradients are taken, a random sum of all outputs, times these: the second one shows gradients that
# are cut off where they are large.
TIMES = 1.0, 1e6


class Differs(Exception):
    """What a module returns is not what the network gives. The text names the probe."""


def tried(
    module: Any, forms: Sequence[Form], made: Architecture, recipes: Sequence[Recipe]
) -> tuple[bool, str | None]:
    """Calls a module in all these ways on all probes. -> whether it returns in training what it returns in
    evaluation; None, or the name of the first probe on which gradients are not the network's. Raises Differs
    where, in evaluation, what it returns is not the network's, or it does not run."""
    subject, trains, wrong = Subject(module), True, None
    for started in (False, True):
        group = [form for form in forms if (form.state is not None) == started]
        for n, probe in enumerate(probes(made, None, started) if group else ()):
            kept: dict[Any, Any] = {}  # of the reference: it is the same for all of them
            for form, training in product(group, (False, True)):
                if training and not trains:
                    continue
                try:
                    found = _on(subject, form, made, recipes, training, probe, n == 0, wrong is None, kept)
                    wrong = wrong or found
                except Differs:
                    if not training:
                        raise
                    trains = False
    return trains, wrong


def _on(
    subject: Subject, form: Form, made: Architecture, recipes: Sequence[Recipe], training: bool, probe: Probe,
    first: bool, derive: bool, kept: dict[Any, Any],
) -> str | None:  # fmt: skip
    """The same on one probe. first: whether it is the first one. derive: whether gradients are of
    interest."""
    for version, eps, context in subject.versions(probe):
        trial = _Trial(subject, version, form, made, probe, eps, kept)
        derive = derive and probe.derived
        with context, unchanged(version, torch), torch.set_grad_enabled(derive):
            version.train(training)
            try:
                outputs = trial.run()
            except Exception:  # whatever a module raises that does not take this, or no float64
                continue
            found = trial.outputs_apart(outputs, eps)
            if found and first and version is subject.double and not trial.outputs_apart(outputs, SINGLE):
                subject.double = None  # it computes in narrower numbers inside
                continue
            if found:
                raise Differs(probe.name)
            if derive and trial.gradients_apart(outputs, recipes, TIMES if first else TIMES[:1]):
                return probe.name
            return None
    raise Differs(f"{probe.name}, where it fails")


class _Trial:
    """A module, or its copy in float64, called on a probe."""

    def __init__(
        self, subject: Subject, version: Any, form: Form, made: Architecture, probe: Probe, eps: float,
        kept: dict[Any, Any],
    ) -> None:  # fmt: skip
        self.truths = subject.truths
        self.version, self.form, self.made, self.probe = version, form, made, probe
        self.eps, self.kept = eps, kept
        dtype = like(version).dtype
        self.x = torch.tensor(self._turned(probe.x), dtype=dtype, requires_grad=True)
        shape = len(made.suffixes), probe.x.shape[1], made.hidden_size
        zeros = [np.zeros(shape)] * made.cell.states
        given = () if form.state is None else zeros if probe.states is None else probe.states
        self.states = [torch.tensor(s, dtype=dtype, requires_grad=True) for s in given]

    def _truth(self) -> tuple[Truth, Run]:
        if self.eps not in self.kept:
            of = self.eps, self.probe.factor
            if of not in self.truths:
                self.truths[of] = Truth.of(convert_torch(self.version))
            self.kept[self.eps] = self.truths[of], self._forward(self.truths[of])
        found: tuple[Truth, Run] = self.kept[self.eps]
        return found

    def _forward(self, truth: Truth) -> Run:
        x, states = self._turned(numbers(self.x)), [numbers(s) for s in self.states]
        return truth.forward(x, states or None)

    def _turned(self, x: Array) -> Array:
        """From time first to the module's order of axes, or back."""
        return x.swapaxes(0, 1) if self.made.batch_first else x

    def run(self) -> list[tuple[Leaf, Tensor]]:
        """The module's outputs. Copies of the inputs go in, which a module may change in place."""
        state: tuple[Any, ...] = ()
        if self.form.given:
            copies = [s.clone() for s in self.states]
            state = (None if self.form.state is None else filled(self.form.state, copies),)
        return list(_read(self.form.result, self.version(self.x.clone(), *state)))

    def outputs_apart(self, outputs: Sequence[tuple[Leaf, Tensor]], eps: float) -> tuple[float, float] | None:
        (truth, run), rng = self._truth(), np.random.default_rng(1)

        def parts(run: Run) -> list[Array]:
            return [_part(leaf, run.y, run.ends) for leaf, _ in outputs]

        theirs = [self._turned(numbers(t)) if leaf.kind is None else numbers(t) for leaf, t in outputs]
        return apart(theirs, parts(run), lambda: parts(self._forward(truth.disturbed(eps, rng))), eps, MARGIN)

    def gradients_apart(
        self, outputs: Sequence[tuple[Leaf, Tensor]], recipes: Sequence[Recipe], factors: Sequence[float]
    ) -> bool:
        """Whether the gradients of x, the states and the parameters are not the network's; None counts as
        zero."""
        (truth, run), rng = self._truth(), np.random.default_rng(1)
        leaves = tuple(leaf for leaf, _ in outputs)
        parameters = [p for p in self.version.parameters() if p.requires_grad]
        made = [recipe.made(self.version) for recipe in recipes]

        def arrays(truth: Truth, run: Run) -> list[Array]:
            gy, gends = np.zeros_like(run.y), [np.zeros_like(end) for end in run.ends]
            for leaf, weight in zip(leaves, _weights(leaves, run), strict=True):
                part = _part(leaf, gy, gends)
                part += weight
            gx, gstates, grads = truth.backward(run, gy, gends)
            pairs = [(t, grads[name]) for t, name in zip(made, self.made.shapes, strict=True)]
            return _rows([self._turned(gx), *gstates[: len(self.states)], *_gradients(pairs, parameters)])

        def disturbed() -> list[Array]:
            other = truth.disturbed(self.eps, rng)
            return arrays(other, self._forward(other))

        if (self.eps, leaves) not in self.kept:
            self.kept[self.eps, leaves] = arrays(truth, run)
        want = self.kept[self.eps, leaves]
        weights = [
            self._turned(weight) if leaf.kind is None else weight
            for leaf, weight in zip(leaves, _weights(leaves, run), strict=True)
        ]
        for times in factors:
            pairs = [(t, weight * times) for (_, t), weight in zip(outputs, weights, strict=True)]
            try:
                found = _gradients(pairs, [self.x, *self.states, *parameters])
            except Exception:  # a graph that was already freed by another backward, or a hook that raises
                return True
            if apart(_rows([g / times for g in found]), want, disturbed, self.eps, MARGIN):
                return True
        return False


def _weights(leaves: Sequence[Leaf], run: Run) -> list[Array]:
    """Of each output, by which it counts in what gradients are taken of."""
    rng = np.random.default_rng(2)
    return [rng.standard_normal(_part(leaf, run.y, run.ends).shape) for leaf in leaves]


def _read(template: Any, value: Any) -> Iterator[tuple[Leaf, Tensor]]:
    """The tensors in what was returned. Raises ValueError if they do not lie as the template has them."""
    if isinstance(template, Leaf):
        if not isinstance(value, Tensor):
            raise ValueError
        yield template, value
    elif isinstance(template, dict) and type(value) is dict and template.keys() == value.keys():
        for key, part in template.items():
            yield from _read(part, value[key])
    elif isinstance(template, (tuple, list)) and type(value) is type(template):
        for part, own in zip(template, value, strict=True):
            yield from _read(part, own)
    elif template is not None or value is not None:
        raise ValueError


def _part(leaf: Leaf, y: Array, ends: Sequence[Array]) -> Array:
    if leaf.kind is None:
        return y
    return ends[leaf.kind] if leaf.place is None else ends[leaf.kind][leaf.place]


def _gradients(pairs: Sequence[tuple[Tensor, Array]], inputs: Sequence[Tensor]) -> list[Array]:
    """Of the sum of the products of each pair; zeros where there are none."""
    sums = [(t * torch.tensor(weight).to(t)).sum() for t, weight in pairs if t.requires_grad]
    found: Any = [None] * len(inputs)
    if sums:
        found = torch.autograd.grad(torch.stack(sums).sum(), inputs, retain_graph=True, allow_unused=True)
    return [numbers(torch.zeros_like(t) if g is None else g) for t, g in zip(inputs, found, strict=True)]


def _rows(arrays: Sequence[Array]) -> list[Array]:
    """Each array as one row: a gradient's small entries are sums of large numbers."""
    return [a.reshape(1, -1) for a in arrays]
