"""Finds the parameters and buffers that a module reads as its first state, to name them in errors."""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np

from ..running import tensors
from .runs import BATCH, Limit, double_precision, in_doubles

# With small parameters, the effect of a first state decays to less than SMALL of itself in 40 steps. The
# effect of weights and biases does not decay. A first state may be of either end, or of both.
STEPS, SMALL = (0, 40, 80), 1e-3


def first_states(module: Any) -> str:
    """Returns a text with the parameters and buffers that a layer reads as its first state; "" for none."""
    torch: Any = sys.modules["torch"]
    limit, drawn = Limit(1.0), torch.Generator().manual_seed(0)
    with suppress(Exception), torch.inference_mode(False):  # a module may have no copy, or exceed the limit
        double = in_doubles(module)
        for p in double.parameters():
            if p.numel() > 1:
                p.data = 0.3 * p.shape[-1] ** -0.5 * torch.randn(p.shape, dtype=p.dtype, generator=drawn)
        buffers = {name: b.requires_grad_() for name, b in double.named_buffers() if b.is_floating_point()}
        sizes = {n for p in (*double.parameters(), *double.buffers()) for n in p.shape}
        every = sorted(sizes | {n - H for n, H in product(sizes, sizes) if n > H})  # of x, or of x and h
        for D, batch_first, rest in product(every, (True, False), ((), (None,))):
            limit.look()
            read: list[str] = []
            with suppress(Exception):  # modules raise anything for input that they do not support
                read = _read_at_the_ends(double, buffers, D, batch_first, rest)
            if read:
                names = " and ".join(f"the {'buffer' if n in buffers else 'parameter'} {n}" for n in read)
                do = "let forward start from zeros, and give this state to the model's calls, model(x, h0)"
                return f"its first step reads {names} as a state, where lnrnn's networks have zeros: {do}"
    return ""


def _read_at_the_ends(module: Any, buffers: Any, D: int, batch_first: bool, rest: Any) -> list[str]:
    """Returns the names of the parameters and buffers with an effect on the first or last outputs only."""
    torch: Any = sys.modules["torch"]
    named = dict(module.named_parameters()) | buffers
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.standard_normal((STEPS[-1] + 1, BATCH, D)))
    effects = []
    with double_precision():
        y = next(tensors(module(x.transpose(0, 1) if batch_first else x, *rest)))
        y = y.transpose(0, 1) if batch_first else y
        loss = (y * torch.as_tensor(rng.standard_normal(y.shape[1:]))).sum((1, 2))
        for t in STEPS:
            grads = torch.autograd.grad(loss[t], [*named.values()], retain_graph=True, allow_unused=True)
            effects.append([0 if g is None else float(g.norm()) for g in grads])
    of_each = zip(named, *effects, strict=True)
    return [name for name, first, middle, last in of_each if SMALL * max(first, last) > middle]
