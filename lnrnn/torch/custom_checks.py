"""Compares results and gradients of custom modules with lnrnn.reference, on the inputs of probes.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from ..importers.running import Tested, filled, like, numbers, time_first
from ..importers.torch_weights import convert_torch
from ..recognise.probes import Probe, probes
from ..recognise.proof import Gradients, Outputs, Unchecked, prove, weights
from ..recognise.reference_network import Leaf
from ..rnn.architecture import Architecture
from .custom_mapping import Form, Recipe

Tensor = torch.Tensor
Array = np.ndarray


class Differs(Exception):
    """A module and its network have different results. The text names the probe."""


def compare(
    module: Any, forms: Sequence[Form], arch: Architecture, recipes: Sequence[Recipe]
) -> tuple[bool, str | None]:
    """Calls a module in all forms on all probes, and compares it with its network.

    Returns whether results in training agree too, and the name of the first probe on which gradients differ,
    or None. Raises Differs if results in evaluation differ, or if the module cannot be run.
    """
    tested, trains, wrong = Tested(module, convert_torch), True, None
    for form, training in product(forms, (False, True)):
        for n, probe in enumerate(probes(arch, None, form.started)):
            factors = () if form.step or wrong else probe.derived  # a step with gradients is not lnrnn's
            run = partial(_run, form, arch, recipes, training, probe, factors)
            try:
                proof = prove(tested.versions(probe, run), n == 0) if trains or not training else None
            except Unchecked:
                raise Differs(probe.name) from None
            if proof is not None and not proof.difference:
                wrong = wrong or (None if proof.derives else probe.name)
            elif not training:
                raise Differs(f"{probe.name}, where it fails" if proof is None else probe.name)
            else:
                trains = False
                break
    return trains, wrong


def _run(
    form: Form, arch: Architecture, recipes: Sequence[Recipe], training: bool, probe: Probe,
    factors: Sequence[float], module: Any,
) -> Outputs:  # fmt: skip
    """Calls a module in one form on a probe. factors: as `derived` of a Probe; () compares no gradients."""
    dtype = like(module).dtype
    given = probe.x[:1] if form.step and not form.started else probe.x  # it begins at zero in each step
    x = torch.tensor(time_first(given, arch.batch_first), dtype=dtype, requires_grad=True)
    zeros = [np.zeros((len(arch.suffixes), probe.x.shape[1], width)) for width in arch.state_widths]
    start = () if not form.started else zeros if probe.states is None else probe.states
    states = [torch.tensor(s, dtype=dtype, requires_grad=True) for s in start]
    parameters = [p for p in module.parameters() if p.requires_grad]

    def own(leaf: Leaf, array: Array) -> Array:  # from time first to the module's order of axes, or back
        return time_first(array, arch.batch_first and leaf.kind is None)  # type: ignore[no-any-return]

    module.train(training)
    with torch.set_grad_enabled(bool(factors)):
        results = _results(form, module, x.clone(), [s.clone() for s in states])  # a module may change them
        parts = [(leaf, own(leaf, numbers(t))) for leaf, t in results]
        gradients = None
        if factors:
            converted = [recipe.parameter(module) for recipe in recipes]

            def ours(gx: Array, gstates: Sequence[Array], grads: dict[str, Array]) -> list[Array]:
                pairs = [(t, grads[name]) for t, name in zip(converted, arch.shapes, strict=True)]
                return [own(Leaf(), gx), *gstates[: len(states)], *_gradients(pairs, parameters)]

            drawn = zip(results, weights(part for _, part in parts), strict=True)
            sums = [(t, own(leaf, weight)) for (leaf, t), weight in drawn]
            theirs: list[list[Array]] | None = None
            try:
                every = [x, *states, *parameters]
                theirs = [[g / times for g in _gradients([(t, times * w) for t, w in sums], every)]
                          for times in factors]  # fmt: skip
            except Exception:  # forward has called backward, which frees the graph, or a hook raises
                pass
            gradients = Gradients(theirs, ours)
    inputs = own(Leaf(), numbers(x)), tuple(map(numbers, states)) or None
    return Outputs(*inputs, parts, gradients=gradients)


def _results(form: Form, module: Any, x: Tensor, ends: list[Tensor]) -> list[tuple[Leaf, Tensor]]:
    """Calls a module. A cell is called for each step, with the states of the step before."""
    if not form.step:
        return list(_read(form.result, module(x, *filled(form.states, ends))))
    outputs = []
    for step in torch.split(x, 1):
        result = module(step[0] if form.step == 2 else step, *filled(form.states, ends))
        parts = dict(_read(form.result, result))
        ends = [parts[leaf] for leaf in sorted(parts, key=lambda leaf: leaf.kind or 0)]
        ends = [end if end.dim() == 3 else end[None] for end in ends]
        outputs.append(ends[0])
    return [(Leaf(), torch.cat(outputs)), *((Leaf(k), end) for k, end in enumerate(ends))]


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


def _gradients(pairs: Sequence[tuple[Tensor, Array]], inputs: Sequence[Tensor]) -> list[Array]:
    """Returns gradients of the sum of t * weight over all pairs (t, weight); zeros if there is none."""
    with torch.enable_grad():
        sums = [(t * torch.tensor(weight).to(t)).sum() for t, weight in pairs if t.requires_grad]
        result: Any = [None] * len(inputs)
        if sums:
            total = torch.stack(sums).sum()
            result = torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
    return [numbers(torch.zeros_like(t) if g is None else g) for t, g in zip(inputs, result, strict=True)]
