"""Every way to train a network gives the same bits: outputs, states, gradients and statistics of batch norm.

test_checkpoints.py tests checkpoints, which add the terms of gradients in another order.
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
from cases import is_float32, is_long
from test_conformance import drawn, each_variant, some_settings

from helpers import in_parts_of, several_threads, using_threads
from networks import STARTS, VARIANTS, drawn_state, normal, parts, same, whole


def slopes(case):
    """Returns gradients of y and of the last states. Those of y after the end of a sequence are infinite."""
    rng, y = np.random.default_rng(5), case.blank()
    gy, past = normal(rng, *y.shape), np.arange(len(y))[:, None] >= case.lengths
    gy[past] = np.inf
    return gy, drawn_state(rng, case.rnn, y.shape[1])


def learned(case, form=np.asarray, batch_first=False, **options):
    """Returns all results by name. form: converts each array."""
    rnn, (gy, gh) = case.make(zoneout=(0, 0), batch_first=batch_first), slopes(case)

    def laid(a):
        return None if a is None else form(a.swapaxes(0, 1) if batch_first else a)

    def state(arrays):
        return whole(rnn, [form(a) for a in arrays])

    given = laid(case.x), state(case.states), form(case.lengths), laid(case.resets)
    y, end, tape = rnn.forward_train(*given)
    gx, gh0, grads = rnn.backward(tape, laid(gy), state(parts(rnn, gh)), **options)
    y, gx = (None if a is None else a.swapaxes(0, 1) if batch_first else a for a in (y, gx))
    named = {"y": y, "x": gx, **{f"end {k}": e for k, e in enumerate(parts(rnn, end))}}
    named |= dict(zip(STARTS, parts(rnn, gh0), strict=False)) | grads
    return named | {name: a for name, a in rnn.state_dict().items() if "running" in name or "count" in name}


def converted(case):
    return learned(case, lambda a: a.astype(np.float64) if a.dtype == np.float32 else a.tolist())


def in_parts(case):
    with in_parts_of(1), using_threads(2):
        return learned(case)


def threads(case):
    with several_threads(4, "either"):
        return learned(case)


def into_zeros(case):
    """Gradients are added to arrays that are adjacent, unaligned and in the reverse order."""
    shapes = {name: p.shape for name, p in reversed(case.rnn.parameters().items())}
    flat = np.zeros(1 + sum(map(np.prod, shapes.values())), np.float32)
    cuts = np.split(flat[1:], np.cumsum([np.prod(shape) for shape in shapes.values()])[:-1])
    out = {name: cut.reshape(shape) for cut, (name, shape) in zip(cuts, shapes.items(), strict=True)}
    result = learned(case, grad_x=False, out=out)
    assert all(result[name] is out[name] for name in out) and result.pop("x") is None
    return result


def in_torch(case):
    torch = pytest.importorskip("torch")
    import lnrnn.torch

    module, (gy, gh) = lnrnn.torch.from_network(case.make(zoneout=(0, 0))), slopes(case)
    x, *start = (torch.tensor(a, requires_grad=True) for a in (case.x, *case.states))
    y, end = module(x, tuple(start) if len(start) > 1 else start[0], case.lengths, case.resets)
    ends = end if isinstance(end, tuple) else (end,)
    given, slope = dict(module.named_parameters()), map(torch.from_numpy, (gy, *parts(case.rnn, gh)))
    found = torch.autograd.grad((y, *ends), (x, *start, *given.values()), [*slope])
    named = {"y": y, **{f"end {k}": e for k, e in enumerate(ends)}}
    named |= dict(zip(("x", *STARTS[: len(start)], *given), found, strict=True))
    return {name: a.detach().numpy() for name, a in named.items()}


FACES = {
    "batch_first": (partial(learned, batch_first=True), lambda case: True),
    "converted": (converted, lambda case: True),
    "parts": (in_parts, lambda case: True),
    "threads": (threads, is_long),
    "into zeros": (into_zeros, lambda case: True),
    "torch": (in_torch, lambda case: case.rnn.known_steps is None),
}


@cache
def wanted(variant, setting):
    case = drawn(variant, setting)
    with using_threads(1):
        result = learned(case)
    assert all(np.isfinite(a).all() for a in result.values())  # nothing past a length was read
    assert not result["x"][np.arange(len(case.x))[:, None] >= case.lengths].any()
    return result


@each_variant
@pytest.mark.parametrize("face", FACES)
def test_training_has_the_same_bits(face, variant):
    compute, takes = FACES[face]
    for setting in some_settings([*FACES].index(face) + list(VARIANTS).index(variant), 2):
        case = drawn(variant, setting)
        if is_float32(case) and takes(case):
            got, want = compute(case), wanted(variant, setting)
            assert {*got} <= {*want} and {*case.rnn.parameters()} <= {*got}
            for name, a in got.items():
                same(a, want[name], err_msg=f"{name}, {setting}")
