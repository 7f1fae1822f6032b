"""Tests modules with the parameters of a known system, whose forward differs only for unusual inputs.

from_torch refuses them, and accelerate does not change their results.
"""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import lnrnn

torch = pytest.importorskip("torch")

from deceivers import CHANGES, DECEITS, GRADIENTS, OUTPUTS, deceiver  # noqa: E402
from lnrnn.torch import accelerate  # noqa: E402
from torch_cells import fresh, shaken  # noqa: E402

torch.set_num_threads(1)  # small operations take longer on several threads

T, B, I, H = 40, 3, 5, 8  # noqa: E741 - the letters of the shapes in the documentation


def inputs(deceit):
    """Returns an x for which the deceit changes the result, and states."""
    x = 20 * torch.randn(T, B, I)
    x[3] = 0
    x[5] *= 1e-5
    states = tuple(3 * torch.randn(B, H) for _ in range(2))
    return x, *([states] if DECEITS[deceit].start else [])


def computed(module, x, *state):
    """Returns the results, and the gradients of x, the states and the parameters, with zeros for None."""
    torch.manual_seed(1)
    x, states = x.clone().requires_grad_(), [s.clone().requires_grad_() for s in (state[0] if state else ())]
    result = module(x, *([tuple(states)] if state else []))
    outputs = [result] if isinstance(result, torch.Tensor) else [result[0], *result[1]]
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


@pytest.mark.parametrize("deceit", OUTPUTS)
def test_other_outputs_are_refused_and_the_input_is_named(deceit):
    drawn = fresh if deceit.startswith("cl") else shaken
    module, probe = drawn(deceiver(deceit, I, H)), OUTPUTS[deceit].probe
    with pytest.raises(
        ValueError, match=f"its forward is another.*(on {probe} of shape|has its operator aten).*check=False"
    ):
        lnrnn.from_torch(module)
    lnrnn.from_torch(module, check=False)
    report = accelerate(module)
    assert [name for name, _ in report.replaced] == ["cell"] and f"but not on {probe}" in report.left[0][1]


@pytest.mark.parametrize("deceit", GRADIENTS)
def test_accelerate_keeps_other_gradients(deceit):
    module = shaken(deceiver(deceit, I, H))
    plain = copy.deepcopy(module)
    lnrnn.from_torch(module)  # which is only for inference
    ((_, what),) = accelerate(module).replaced
    assert what.endswith("; calls that need gradients run its own forward")
    given = inputs(deceit)
    assert_same(computed(module, *given), computed(plain, *given))
    with torch.no_grad():  # so that the kernels compute the call
        got, want = module(*given), plain(*given)
        got, want = (v if isinstance(v, torch.Tensor) else v[0] for v in (got, want))
        assert not torch.equal(got, want) and (got - want).abs().max() < 1e-5


def test_a_loop_that_keeps_states_works():
    module = shaken(deceiver("stops at start", I, H))
    accelerate(module)
    state = (torch.zeros(B, H), torch.zeros(B, H))
    for _ in range(3):
        y, state = module(torch.randn(T, B, I), state)
        y.sum().backward()


@pytest.fixture(scope="module")
def everything():
    """An accelerated module whose attributes do nothing until they change, and an ordinary copy."""
    module = shaken(deceiver("everything", I, H)).train()
    plain = copy.deepcopy(module)
    ((name, what),) = accelerate(module).replaced
    assert name == "" and "training" not in what
    return module, plain


@pytest.mark.parametrize("change", CHANGES)
def test_later_changes_of_a_module_are_noticed(everything, change):
    """Each change is one of a copy. A copy by pickle has the module's forward too."""
    module, plain = copy.deepcopy(everything)
    if "in a" in change:
        module = pickle.loads(pickle.dumps(module))
    x = torch.randn(T, B, I)
    with torch.no_grad():
        first, other = module(x), plain(x)
        assert not torch.equal(first, other) and (first - other).abs().max() < 1e-5  # the kernels computed it
        module.other.add_(0)  # in-place writes of the same numbers change nothing
        assert torch.equal(module(x), first)
        CHANGES[change](module), CHANGES[change](plain)
        torch.manual_seed(1)
        got = module(x)
        torch.manual_seed(1)
        assert torch.equal(got, plain(x)) and (got - first).abs().max() > 0.01


class Slots:
    __slots__ = ("shift",)


def test_attributes_that_calls_do_not_compare_are_refused():
    module = shaken(deceiver("everything", I, H))
    module.options["table"], module.names[0], module.p = np.zeros(3), {"x"}, Slots()
    ((_, why),) = accelerate(module).left
    assert why.startswith("lnrnn cannot notice changes inside of p, options, names; make arrays buffers")


def test_submodules_in_training_mode_count_as_training():
    module = shaken(deceiver("everything", I, H))
    module.p = 0.5
    plain = copy.deepcopy(module)
    ((_, what),) = accelerate(module).replaced
    assert what.endswith("and so do calls in training, which differ")
    x = torch.randn(T, B, I)
    for each in (module, plain):
        each.eval()
        each.cell.train()
    with torch.no_grad():
        assert torch.equal(module(x), plain(x))
