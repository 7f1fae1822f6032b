"""Every way to train a network gives the same bits: outputs, states, gradients and statistics of batch norm.

test_checkpoints.py tests checkpoints, which add the terms of gradients in another order.
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
from cases import is_long, is_reversible, is_short
from test_conformance import drawn, each_variant, some_settings

from helpers import in_parts_of, several_threads, using_threads
from lnrnn import DropoutSpec
from lnrnn.reference import reverse_sequences
from networks import STARTS, VARIANTS, drawn_state, normal, parts, same, whole


def slopes(case):
    """Returns gradients of y and of the last states. Those of y after the end of a sequence are infinite."""
    rng, y = np.random.default_rng(5), case.blank()
    gy, past = normal(rng, *y.shape), np.arange(len(y))[:, None] >= case.lengths
    gy[past] = np.inf
    return gy, drawn_state(rng, case.rnn, y.shape[1])


def swapped(a, case):
    return a.swapaxes(0, 1)


def turned(a, case):
    return reverse_sequences(a, case.lengths)


# {way: (conversion of x, resets and gy, conversion of y and gx)}
WAYS = {
    "usual": (lambda a, case: a, lambda a, case: a),
    "batch_first": (swapped, swapped),
    "alone": (lambda a, case: a[:, 0], lambda a, case: a[:, None]),
    "reversed": (turned, turned),
}


def learned(case, form=np.asarray, way="usual", drops=True, **options):
    """Returns all results by name. form: converts each array. way: "alone" omits the axis for the batch, and
    "reversed" has a network that reads the sequences in the other direction. drops: with dropout and the
    case's zoneout."""
    made = {} if drops else dict(zoneout=(0, 0))
    made |= dict(batch_first=way == "batch_first", reverse=case.rnn.reverse != (way == "reversed"))
    rnn, (gy, gh), (to, back) = case.make(**made), slopes(case), WAYS[way]
    rnn.load_state_dict(case.rnn.state_dict())  # a reversed network has begun with other statistics
    # Masks between layers belong to steps, so they differ in a reversed sequence.
    between = 0.25 if rnn.bidirectional and rnn.num_layers > 1 else 0
    chosen = dict(dropout=DropoutSpec(between, inputs=0.1, states=0.25), seed=3) if drops else {}

    def laid(a):
        return None if a is None else form(to(a, case))

    def state(arrays):
        return whole(rnn, [laid(a) if way == "alone" else form(a) for a in arrays])

    def named(names, state):
        arrays = parts(rnn, state)
        return dict(zip(names, [back(a, case) for a in arrays] if way == "alone" else arrays, strict=False))

    y, end, tape = rnn.forward_train(
        laid(case.x), state(case.states), form(case.lengths), laid(case.resets), **chosen
    )
    gx, gh0, grads = rnn.backward(tape, laid(gy), state(parts(rnn, gh)), **options)
    result = {"y": back(y, case), "x": None if gx is None else back(gx, case)}
    result |= named(("end 0", "end 1", "end 2", "end 3"), end) | named(STARTS, gh0) | grads
    return result | {name: a for name, a in rnn.state_dict().items() if "running" in name or "count" in name}


def converted(case):
    return learned(case, lambda a: a.astype(np.float64) if a.dtype == np.float32 else a.tolist())


def in_parts(case):
    with in_parts_of(1), using_threads(2):
        return learned(case)


def threads(case):
    """Divides the sequences, and in parts of several steps the units."""
    with several_threads(4, "either"):
        result = learned(case)
    with several_threads(3, "either"), in_parts_of(2e6):
        other = learned(case)
    for name, a in other.items():
        same(a, result[name], err_msg=name)
    return result


def into_zeros(case):
    """Gradients are added to arrays that are adjacent, unaligned and in the reverse order."""
    shapes = {name: p.shape for name, p in reversed(case.rnn.parameters().items())}
    flat = np.zeros(1 + sum(map(np.prod, shapes.values())), np.float32)
    cuts = np.split(flat[1:], np.cumsum([np.prod(shape) for shape in shapes.values()])[:-1])
    out = {name: cut.reshape(shape) for cut, (name, shape) in zip(cuts, shapes.items(), strict=True)}
    result = learned(case, grad_x=False, add_to=out)
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
    "batch_first": (partial(learned, way="batch_first"), is_short),
    "alone": (partial(learned, way="alone"), lambda case: case.x.shape[1] == 1),
    "reversed": (partial(learned, way="reversed"), is_reversible),
    "converted": (converted, is_short),
    "parts": (in_parts, is_short),
    "threads": (threads, is_long),
    "into zeros": (into_zeros, is_short),
    "torch": (in_torch, lambda case: case.rnn.known_steps is None and is_short(case)),
}


@cache
def wanted(variant, setting, drops):
    case = drawn(variant, setting)
    with using_threads(1):
        result = learned(case, drops=drops)
    assert all(np.isfinite(a).all() for a in result.values())  # nothing past a length was read
    assert not result["x"][np.arange(len(case.x))[:, None] >= case.lengths].any()
    return result


@each_variant
@pytest.mark.parametrize("face", FACES)
def test_training_has_the_same_bits(face, variant):
    compute, takes = FACES[face]
    k = [*FACES].index(face) + list(VARIANTS).index(variant)
    for setting in some_settings(k, 4, variant, lambda case: case.rnn.dtype == "float32" and takes(case)):
        case = drawn(variant, setting)
        got, want = compute(case), wanted(variant, setting, face != "torch")
        assert {*got} <= {*want} and {*case.rnn.parameters()} <= {*got}
        for name, a in got.items():
            same(a, want[name], err_msg=f"{name}, {setting}")
