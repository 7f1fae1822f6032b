"""On the C engine, lnrnn.torch has the gradients of the engine "torch". tests/conformance tests outputs."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn

torch = pytest.importorskip("torch")

import lnrnn.torch  # noqa: E402
from torch_twins import (  # noqa: E402
    CELLS,
    HEADED,
    LENGTHS,
    NETWORKS,
    B,
    H,
    I,
    T,
    called,
    inputs,
    states_of,
    tensors,
    twin,
)  # fmt: skip


def gradients(module, x, state, lengths):
    return called(module, x, state, lengths, module.parameters())[1]


OPTIONS = [
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"num_layers": 3, "bias": False},
    {"num_layers": 2, "reverse": True},
]


RUNS = [(*network, OPTIONS[k % len(OPTIONS)]) for k, network in enumerate(NETWORKS)]
RUNS += [(*network, OPTIONS[1] | {"num_heads": 4}) for network in HEADED]


@pytest.mark.parametrize(("cell", "norm", "options"), RUNS, ids=str)
def test_gradients_equal_torch_s(rng, cell, norm, options):
    """Compares both engines with float64, to 2e-5 of the largest number of each tensor.

    If a network amplifies rounding (norms of small rows, batch norm of similar values), the tolerance is
    twice the error of torch's float32.
    """
    batch = 128 if norm == "batch" else B
    module, plain = twin(cell, norm, **options), twin(cell, norm, engine="torch", **options)
    exact = twin(cell, norm, dtype=torch.float64, engine="torch", **options)
    for each in (plain, exact):
        each.load_state_dict(module.state_dict())
    x, state = inputs(rng, module, batch)
    x = x.swapaxes(0, 1) if module.batch_first else x
    for lengths in (None, rng.integers(T - 1, T + 1, batch) if norm == "batch" else LENGTHS):
        want = gradients(exact.train(), *tensors(x, state, torch.float64), lengths)
        errors = []
        for each in (module.train(), plain.train()):
            got = gradients(each, *tensors(x, state, torch.float32), lengths)
            assert all(g.dtype == torch.float32 and (each is plain or g.is_contiguous()) for g in got)
            of_each = ((a - b).abs().max() / b.abs().max().clamp(1) for a, b in zip(got, want, strict=True))
            errors.append(max(map(float, of_each)))
        assert errors[0] < max(2e-5, 2 * errors[1]) and errors[0] < 1e-3
    assert module.engine == "lnrnn" and exact.engine == plain.engine == "torch"


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_of_some_arguments_only(rng, cell):
    """Tests frozen parameters, x without a gradient, and losses of only the state or only y."""
    module = twin(cell, num_layers=2)
    x = torch.randn(T, B, I)
    frozen = [name for name, _ in module.named_parameters() if name.startswith("weight_ih") or "l1" in name]
    y, end = module(x)
    y.square().sum().backward()
    want = {name: p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad()
    for name in frozen:
        getattr(module, name).requires_grad_(False)
    y, end = module(x)
    y.square().sum().backward()
    for name, p in module.named_parameters():
        assert p.grad is None if name in frozen else torch.equal(p.grad, want[name])
    module.requires_grad_(False)
    y, end = module(x)
    assert not y.requires_grad
    x.requires_grad_()
    y, end = module(x)
    (by_y,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (by_end,) = torch.autograd.grad(states_of(end)[-1].sum(), x, retain_graph=True)
    (both,) = torch.autograd.grad([y.sum(), states_of(end)[-1].sum()], x, retain_graph=True)
    # A gradient is a sum of one term for each output, which may cancel. An inner product of n numbers has an
    # error of at most n 2^-24 of the sum of their sizes. The longest one has the rows of a weight.
    outputs = [*y.sum(1).flatten(), *states_of(end)[-1].sum(1).flatten()]
    size = sum(torch.autograd.grad(each, x, retain_graph=True)[0].abs() for each in outputs)
    assert ((by_y + by_end - both).abs() <= len(module.weight_hh_l0) * 2**-24 * size).all()
    assert float(by_end.abs().max()) > 0


def test_backward_twice_over_one_graph():
    module = twin("GRU", bidirectional=True)
    y, _ = module(torch.randn(T, B, I))
    y.sum().backward(retain_graph=True)
    once = module.weight_hh_l0.grad.clone()
    y.sum().backward()
    assert torch.equal(module.weight_hh_l0.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_changes_in_place_before_backward_are_refused():
    """As in torch, tensors that backward reads must not change."""
    module = twin("LSTM")
    x = torch.randn(T, B, I)
    for change in (lambda y: x.add_(1), lambda y: module.weight_hh_l0.add_(1), lambda y: y.relu_()):
        y, _ = module(x.requires_grad_(False))
        loss = y.sum()
        with torch.no_grad():
            change(y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_the_next_call_uses_a_changed_vector_or_statistic():
    module = twin("GRU", "batch", steps=T)
    x = torch.randn(T, B, I)
    with torch.no_grad():
        for name in ("gain_ih_l0", "bias_l0", "running_mean_hh_l0", "running_var_ih_l0"):
            before = module(x)[0]
            getattr(module, name).data.mul_(1.5)
            after = module(x)[0]
            assert not torch.equal(before, after), name
            np.testing.assert_array_equal(after, lnrnn.from_torch(module)(x)[0])
        module.count_l0[3:] = 0
        result = []
        for module.overrun in ("last", "mean", "batch", "last"):
            result.append(module(x)[0])
            np.testing.assert_array_equal(result[-1], lnrnn.from_torch(module)(x)[0])
        assert torch.equal(result[0], result[3]) and not torch.equal(result[0], result[1])


@pytest.mark.parametrize("batch_first", [False, True])
def test_memory_layouts_change_no_bit(batch_first):
    """Tests strides, an expanded batch and an unaligned storage offset."""
    module = twin("LSTM", num_layers=2, batch_first=batch_first)
    base = torch.randn(2 * T, 2 * B, 2 * I + 1)
    cases = [
        base[::2, ::2, :I], base[::2, ::2, ::2][..., :I], base.permute(2, 1, 0)[:I].permute(2, 1, 0)[:T, :B],
        base[:T, :1, :I].expand(T, B, I), base[:1, :B, :I].expand(T, B, I),
        torch.randn(T * B * I + 1)[1:].view(T, B, I),
    ]  # fmt: skip
    for x in cases:
        h0 = (base[0, 0, 0].expand(2, x.shape[int(not batch_first)], H),) * 2
        results = []
        for given, state in ((x, h0), (x.contiguous(), tuple(s.contiguous() for s in h0))):
            given = given.detach().requires_grad_()
            module.zero_grad()
            y, (h, c) = module(given, state)
            (y.square().sum() + h.sum()).backward()
            results.append([y, h, c, given.grad, *(p.grad.clone() for p in module.parameters())])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("batch", [1, 11])
def test_bits_do_not_depend_on_the_alignment_of_weights(batch):
    """The backward pass reads weights in place if they are aligned to 64 bytes, and packs others."""
    module = lnrnn.torch.LSTM(128, 64, seed=3)
    x, result = torch.randn(3, batch, 128, generator=torch.Generator().manual_seed(5)), []
    for skip in (0, 1):
        for p in (module.weight_ih_l0, module.weight_hh_l0):
            memory = torch.empty(p.numel() + 17)
            start = -memory.data_ptr() % 64 // 4 + skip
            p.data = memory[start : start + p.numel()].view(p.shape).copy_(p.data)
            assert (p.data_ptr() % 64 == 0) == (skip == 0)
        given = x.clone().requires_grad_()
        result.append(torch.autograd.grad(module(given)[0].square().sum(), [given, *module.parameters()]))
    for one, other in zip(*result, strict=True):
        np.testing.assert_array_equal(one, other)


def test_nan_and_infinity_stay_in_their_sequence():
    module = twin("GRU", bidirectional=True)
    x = torch.randn(T, B, I)
    want = torch.autograd.grad(module(x.requires_grad_())[0].sum(), x)[0]
    bad = x.detach().clone()
    bad[2, 1] = torch.nan
    y = module(bad.requires_grad_())[0]
    (gx,) = torch.autograd.grad(y.sum(), bad)
    others = [0, 2, 3]
    assert y[:, 1].isnan().any() and torch.equal(gx[:, others], want[:, others])


@pytest.mark.parametrize("threads", [1, 2])
def test_calls_use_at_most_the_threads_of_torch(threads):
    """Results do not show the number of threads, so the test counts them during a call."""
    from lnrnn.torch import operator

    before = torch.get_num_threads(), lnrnn.get_num_threads()
    try:
        torch.set_num_threads(threads)
        lnrnn.set_num_threads(2)
        with operator._threads():
            assert lnrnn.get_num_threads() == threads
        assert lnrnn.get_num_threads() == 2
    finally:
        torch.set_num_threads(before[0])
        lnrnn.set_num_threads(before[1])
