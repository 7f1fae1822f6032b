"""Compares results and gradients of custom modules with lnrnn.reference, on the inputs of probes.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch

from ..importers.checking import MARGIN
from ..importers.probes import SINGLE, Probe, TestedModule, disagreement, like, probes
from ..importers.reference_network import ReferenceNetwork, Run
from ..importers.running import Leaf, filled, numbers, unchanged
from ..importers.torch_weights import convert_torch
from ..rnn.architecture import Architecture
from .custom_mapping import Form, Recipe

Tensor = torch.Tensor
Array = np.ndarray
# Gradients of a random sum of all outputs, times each of these numbers, are compared. The second number shows
# whether a module limits large gradients.
TIMES = 1.0, 1e6


class Differs(Exception):
    """A module and its network have different results. The text names the probe."""


def compare(
    module: Any, forms: Sequence[Form], arch: Architecture, recipes: Sequence[Recipe]
) -> tuple[bool, str | None]:
    """Calls a module in all forms on all probes, and compares it with its network.

    Returns whether results in training agree too, and the name of the first probe on which gradients differ,
    or None. Raises Differs if results in evaluation differ, or if the module cannot be run.
    """
    tested, trains, wrong = TestedModule(module), True, None
    for started in (False, True):
        group = [form for form in forms if form.started == started]
        for n, probe in enumerate(probes(arch, None, started) if group else ()):
            cache: dict[Any, Any] = {}  # results of the reference, which are the same for all forms
            for form, training in product(group, (False, True)):
                if training and not trains:
                    continue
                try:
                    result = _on(tested, form, arch, recipes, training, probe, n == 0, wrong is None, cache)
                    wrong = wrong or result
                except Differs:
                    if not training:
                        raise
                    trains = False
    return trains, wrong


def _on(
    tested: TestedModule, form: Form, arch: Architecture, recipes: Sequence[Recipe], training: bool,
    probe: Probe, first: bool, derive: bool, cache: dict[Any, Any],
) -> str | None:  # fmt: skip
    """Compares calls in one form on one probe. Returns the probe's name if gradients differ, else None.

    first: whether this is the first probe. derive: whether to compare gradients.
    """
    for version, eps, context in tested.versions(probe):
        call = _Call(tested, version, form, arch, probe, eps, cache)
        derive = derive and probe.derived and not form.step  # a step with gradients is not lnrnn's
        with context, unchanged(version, torch), torch.set_grad_enabled(derive):
            version.train(training)
            try:
                outputs = call.run()
            except Exception:  # modules raise anything for such an input, or in float64
                continue
            difference = call.outputs_disagree(outputs, eps)
            if (
                difference
                and first
                and version is tested.double
                and not call.outputs_disagree(outputs, SINGLE)
            ):
                tested.double = None  # forward converts to a narrower type inside
                continue
            if difference:
                raise Differs(probe.name)
            if derive and call.gradients_disagree(outputs, recipes, TIMES if first else TIMES[:1]):
                return probe.name
            return None
    raise Differs(f"{probe.name}, where it fails")


class _Call:
    """A module, or its copy in float64, called in one form on a probe."""

    def __init__(
        self, tested: TestedModule, version: Any, form: Form, arch: Architecture, probe: Probe, eps: float,
        cache: dict[Any, Any],
    ) -> None:  # fmt: skip
        self.references = tested.references
        self.version, self.form, self.arch, self.probe = version, form, arch, probe
        self.eps, self.cache = eps, cache
        dtype = like(version).dtype
        x = probe.x[:1] if form.step and not form.started else probe.x  # it begins at zero in each step
        self.x = torch.tensor(self._own_axes(x), dtype=dtype, requires_grad=True)
        zeros = [np.zeros((len(arch.suffixes), probe.x.shape[1], width)) for width in arch.state_widths]
        given = () if not form.started else zeros if probe.states is None else probe.states
        self.states = [torch.tensor(s, dtype=dtype, requires_grad=True) for s in given]

    def _reference(self) -> tuple[ReferenceNetwork, Run]:
        if self.eps not in self.cache:
            key = self.eps, self.probe.factor
            if key not in self.references:
                self.references[key] = ReferenceNetwork.of(convert_torch(self.version))
            self.cache[self.eps] = self.references[key], self._forward(self.references[key])
        result: tuple[ReferenceNetwork, Run] = self.cache[self.eps]
        return result

    def _forward(self, network: ReferenceNetwork) -> Run:
        x, states = self._own_axes(numbers(self.x)), [numbers(s) for s in self.states]
        return network.forward(x, states or None)

    def _own_axes(self, x: Array) -> Array:
        """Changes x from time first to the module's order of axes, or back."""
        return x.swapaxes(0, 1) if self.arch.batch_first else x

    def run(self) -> list[tuple[Leaf, Tensor]]:
        """Returns the module's outputs. It gets copies of the inputs, because it may change them."""
        copies = [s.clone() for s in self.states]
        if self.form.step:
            return self._steps(copies)
        return list(_read(self.form.result, self.version(self.x.clone(), *filled(self.form.states, copies))))

    def _steps(self, states: list[Tensor]) -> list[tuple[Leaf, Tensor]]:
        """Calls the module for each step, with the states of the step before."""
        outputs, ends = [], states
        for x in torch.split(self.x.clone(), 1):
            result = self.version(x[0] if self.form.step == 2 else x, *filled(self.form.states, ends))
            parts = dict(_read(self.form.result, result))
            ends = [parts[leaf] for leaf in sorted(parts, key=lambda leaf: leaf.kind or 0)]
            ends = [end if end.dim() == 3 else end[None] for end in ends]
            outputs.append(ends[0])
        return [(Leaf(), torch.cat(outputs)), *((Leaf(k), end) for k, end in enumerate(ends))]

    def outputs_disagree(
        self, outputs: Sequence[tuple[Leaf, Tensor]], eps: float
    ) -> tuple[float, float] | None:
        (network, run), rng = self._reference(), np.random.default_rng(1)

        def parts(run: Run) -> list[Array]:
            return [_part(leaf, run.y, run.ends) for leaf, _ in outputs]

        theirs = [self._own_axes(numbers(t)) if leaf.kind is None else numbers(t) for leaf, t in outputs]
        return disagreement(
            theirs, parts(run), lambda: parts(self._forward(network.disturbed(eps, rng))), eps, MARGIN
        )

    def gradients_disagree(
        self, outputs: Sequence[tuple[Leaf, Tensor]], recipes: Sequence[Recipe], factors: Sequence[float]
    ) -> bool:
        """Returns whether the module's gradients of x, states or parameters differ from the network's."""
        (network, run), rng = self._reference(), np.random.default_rng(1)
        leaves = tuple(leaf for leaf, _ in outputs)
        parameters = [p for p in self.version.parameters() if p.requires_grad]
        converted = [recipe.parameter(self.version) for recipe in recipes]

        def arrays(network: ReferenceNetwork, run: Run) -> list[Array]:
            gy, gends = np.zeros_like(run.y), [np.zeros_like(end) for end in run.ends]
            for leaf, weight in zip(leaves, _weights(leaves, run), strict=True):
                part = _part(leaf, gy, gends)
                part += weight
            gx, gstates, grads = network.backward(run, gy, gends)
            pairs = [(t, grads[name]) for t, name in zip(converted, self.arch.shapes, strict=True)]
            return _rows([self._own_axes(gx), *gstates[: len(self.states)], *_gradients(pairs, parameters)])

        def disturbed() -> list[Array]:
            other = network.disturbed(self.eps, rng)
            return arrays(other, self._forward(other))

        if (self.eps, leaves) not in self.cache:
            self.cache[self.eps, leaves] = arrays(network, run)
        want = self.cache[self.eps, leaves]
        weights = [
            self._own_axes(weight) if leaf.kind is None else weight
            for leaf, weight in zip(leaves, _weights(leaves, run), strict=True)
        ]
        for times in factors:
            pairs = [(t, weight * times) for (_, t), weight in zip(outputs, weights, strict=True)]
            try:
                result = _gradients(pairs, [self.x, *self.states, *parameters])
            except Exception:  # forward has called backward, which frees the graph, or a hook raises
                return True
            if disagreement(_rows([g / times for g in result]), want, disturbed, self.eps, MARGIN):
                return True
        return False


def _weights(leaves: Sequence[Leaf], run: Run) -> list[Array]:
    """Returns the random weight of each output in the sum whose gradients are compared."""
    rng = np.random.default_rng(2)
    return [rng.standard_normal(_part(leaf, run.y, run.ends).shape) for leaf in leaves]


def _read(template: Any, value: Any) -> Iterator[tuple[Leaf, Tensor]]:
    """Yields the tensors of a result. Raises ValueError if it has another structure than the template."""
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
    """Returns gradients of the sum of t * weight over all pairs (t, weight); zeros if there is none."""
    sums = [(t * torch.tensor(weight).to(t)).sum() for t, weight in pairs if t.requires_grad]
    result: Any = [None] * len(inputs)
    if sums:
        result = torch.autograd.grad(torch.stack(sums).sum(), inputs, retain_graph=True, allow_unused=True)
    return [numbers(torch.zeros_like(t) if g is None else g) for t, g in zip(inputs, result, strict=True)]


def _rows(arrays: Sequence[Array]) -> list[Array]:
    """Returns each array as one row, with one limit, because large summands affect all its gradients."""
    return [a.reshape(1, -1) for a in arrays]
