"""Modules whose parameters are a known system's and whose forward is another, in ways that ordinary input
does not show: from_torch refuses them, and accelerate changes nothing of what they compute."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import lnrnn

torch = pytest.importorskip("torch")

from deceivers import (  # noqa: E402
    CHANGED,
    GRADIENTS,
    OUTPUTS,
    ABufferInPlace,
    AnArray,
    Deceiver,
    Given,
    Rate,
    StopsAtStart,
    Truncates,
)
from lnrnn.torch import accelerate  # noqa: E402
from torch_cells import fresh, shaken  # noqa: E402

torch.set_num_threads(1)  # operations this small take longer on several, and much longer on a busy machine

T, B, I, H = 40, 3, 5, 8  # noqa: E741 - the letters of the shapes in the documentation


@pytest.fixture(autouse=True)
def the_same_numbers_every_time():
    torch.manual_seed(0)


def inputs(cls):
    """x that shows what the module does, and its states."""
    x = 20 * torch.randn(T, B, I)
    x[3] = 0
    x[5] *= 1e-5
    states = tuple(3 * torch.randn(B, H) for _ in range(2))
    return x, *([states] if cls in (Given, StopsAtStart) else [])


def computed(module, x, *state):
    """What it gives, and the gradients of x, the states and the parameters; None as zero."""
    torch.manual_seed(1)
    x, states = x.clone().requires_grad_(), [s.clone().requires_grad_() for s in (state[0] if state else ())]
    found = module(x, *([tuple(states)] if state else []))
    outputs = [found] if isinstance(found, torch.Tensor) else [found[0], *found[1]]
    given = [x, *states, *module.parameters()]
    grads = [None] * len(given)
    if outputs[0].requires_grad:
        loss = sum((1000 * t).square().sum() for t in outputs)
        grads = torch.autograd.grad(loss, given, allow_unused=True)
    return [t.detach() for t in outputs], [
        torch.zeros_like(t) if g is None else g for t, g in zip(given, grads, strict=True)
    ]


def assert_same(got, want):
    for a, b, tolerance in ((got[0], want[0], 1e-5), (got[1], want[1], 1e-4)):
        for mine, other in zip(a, b, strict=True):
            assert mine.shape == other.shape
            assert (mine - other).abs().max() <= tolerance * max(other.abs().max(), 1e-3)


@pytest.mark.parametrize("drawn", [shaken, fresh])
@pytest.mark.parametrize("cls", OUTPUTS)
def test_other_outputs_are_refused_and_the_probe_is_named(cls, drawn):
    module = drawn(cls(I, H))
    with pytest.raises(ValueError, match="its forward is another") as error:
        lnrnn.from_torch(module)
    assert f"on {OUTPUTS[cls]} of shape" in str(error.value) and "check=False" in str(error.value)
    lnrnn.from_torch(module, check=False)
    report = accelerate(module)
    assert not report.replaced and f"but not on {OUTPUTS[cls]}" in report.left[0][1]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("cls", GRADIENTS)
def test_other_gradients_stay_what_they_are(cls, training):
    module = shaken(cls(I, H)).train(training)
    plain = copy.deepcopy(module)
    lnrnn.from_torch(module)  # it is for inference
    report = accelerate(module)
    ((_, what),) = report.replaced
    assert ", without gradients; where they are wanted its own forward" in what
    given = inputs(cls)
    assert_same(computed(module, *given), computed(plain, *given))
    with torch.no_grad():  # where the kernels compute
        got, want = module(*given), plain(*given)
        got, want = (v if isinstance(v, torch.Tensor) else v[0] for v in (got, want))
        assert not torch.equal(got, want) and (got - want).abs().max() < 1e-5


def test_a_loop_that_keeps_states_goes_on():
    module = shaken(StopsAtStart(I, H))
    accelerate(module)
    state = (torch.zeros(B, H), torch.zeros(B, H))
    for _ in range(3):
        y, state = module(torch.randn(T, B, I), state)
        y.sum().backward()


@pytest.mark.parametrize("way", ["as it is", "deepcopy", "pickle"])
@pytest.mark.parametrize("cls", CHANGED)
def test_what_is_changed_later_is_heeded(cls, way):
    module = shaken(cls(I, H)).train()
    plain = copy.deepcopy(module)
    ((_, what),) = accelerate(module).replaced
    assert "gradients" not in what and "training" not in what
    if way == "deepcopy":
        module = copy.deepcopy(module)
    elif way == "pickle" and cls.__name__ != "AHook":
        module = pickle.loads(pickle.dumps(module))
    x = torch.randn(T, B, I)
    first = computed(module, x)
    assert_same(first, computed(plain, x))
    assert not torch.equal(first[0][0], computed(plain, x)[0][0])  # the kernels computed it
    module.change(), plain.change()
    now = computed(module, x)
    assert all(map(torch.equal, now[0], computed(plain, x)[0]))
    assert (now[0][0] - first[0][0]).abs().max() > 0.01


def test_the_same_numbers_again_change_nothing():
    module = shaken(ABufferInPlace(I, H))
    accelerate(module)
    x = torch.randn(T, B, I)
    before = module(x)
    module.mask.add_(0)
    assert torch.equal(module(x), before)
    assert not torch.equal(before, type(module).forward(module, x))  # the kernels computed it


def test_large_arrays_are_refused():
    module = shaken(AnArray(I, H))
    module.table = np.zeros(10_000)
    ((_, why),) = accelerate(module).left
    assert why.startswith("it has arrays of more than 4096 bytes in table")


def test_parts_in_training_count_where_training_is_another():
    module = shaken(Rate(I, H))
    module.change()
    plain = copy.deepcopy(module)
    ((_, what),) = accelerate(module).replaced
    assert what.endswith("in evaluation; in training its own forward, which then does something else")
    x = torch.randn(T, B, I)
    for each in (module, plain):
        each.eval()
        each.cell.train()
    assert torch.equal(module(x), plain(x))


def test_the_honest_one_is_taken_in_little_time():
    module = shaken(Deceiver(I, H))
    lnrnn.from_torch(module, check=True)
    ((_, what),) = accelerate(module).replaced
    assert what.endswith("inner_bias=False))")
    assert "gradients" in str(accelerate(shaken(Truncates(I, H))))
