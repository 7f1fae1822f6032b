"""Tests resets= of the torch modules: results and gradients of a loop that sets states to zero."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn

torch = pytest.importorskip("torch")

import lnrnn.torch  # noqa: E402
import pages  # noqa: E402

torch.set_num_threads(1)

T, B, D, H = 9, 6, 3, 8
MODULES = {
    "RNN": dict(norm="layer"),
    "LSTM": dict(num_layers=2),
    "GRU": dict(norm=None, num_layers=2, batch_first=True),
    "LiGRU": dict(batch_first=True),
    "SLSTM": dict(num_layers=2),
}
each_engine = pytest.mark.parametrize("engine", ["lnrnn", "torch"])


def made(name, engine=None, **changed):
    return getattr(lnrnn.torch, name)(D, H, seed=0, engine=engine, **MODULES[name] | changed)


def drawn(rng, module):
    """Returns x, h0, lengths and resets, with the module's order of axes. Lengths are equal."""
    x, resets = rng.standard_normal((T, B, D), dtype=np.float32), rng.random((T, B)) < 0.3
    resets[0] = np.arange(B) % 2
    lines = module.num_layers * module.num_directions
    start = tuple(
        torch.tensor(rng.uniform(0.1, 0.5, (lines, B, width)).astype(np.float32), requires_grad=True)
        for width in module.architecture.state_widths
    )
    x, resets = torch.tensor(x), torch.tensor(resets)
    if module.batch_first:
        x, resets = x.transpose(0, 1).contiguous(), resets.T
    return x.requires_grad_(), start, resets


def whole(start):
    return start if len(start) > 1 else start[0]


def loop(module, x, start, resets):
    """Runs one step a call, and sets states to zero before a step with a reset."""
    axis, outputs = int(module.batch_first), []
    for x_t, r_t in zip(x.unbind(axis), resets.unbind(axis), strict=True):
        start = [torch.where(r_t[:, None], 0.0, s) for s in start]
        y, end = module(x_t.unsqueeze(axis), whole(tuple(start)))
        start = end if isinstance(end, tuple) else (end,)
        outputs.append(y)
    return torch.cat(outputs, axis), *start


def results(module, call, x, start):
    y, *end = call()
    loss = (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum() + sum(e.square().sum() for e in end)
    return y, *end, *torch.autograd.grad(loss, [x, *start, *module.parameters()])


def flat(result):
    y, end = result
    return y, *(end if isinstance(end, tuple) else (end,))


def assert_close(got, want, limit):
    for a, b in zip(got, want, strict=True):
        assert (a - b).abs().max() <= limit * max(1, b.abs().max())


@each_engine
@pytest.mark.parametrize("name", MODULES)
def test_resets_are_a_loop_that_zeroes_states(rng, name, engine):
    module = made(name, engine)
    x, start, resets = drawn(rng, module)
    got = results(module, lambda: flat(module(x, whole(start), resets=resets)), x, start)
    assert_close(got, results(module, lambda: loop(module, x, start, resets), x, start), 1e-5)


@each_engine
@pytest.mark.parametrize("lengths", [None, [9, 0, 1, 5, 9, 7]])
def test_resets_are_those_of_the_network(rng, engine, lengths):
    """Both directions, lengths, dropout in training and batch norm, with the numpy network's results."""
    for name, norm in (("LSTM", "layer"), ("GRU", lnrnn.BatchNormSpec(12, eps=0.1))):
        module = made(name, engine, norm=norm, bidirectional=True, batch_first=True)
        x, start, resets = drawn(rng, module)
        network = lnrnn.from_torch(module)
        y, end, tape = network.forward_train(
            x.detach(), tuple(s.detach() for s in start) if len(start) > 1 else start[0].detach(), lengths,
            resets,
        )  # fmt: skip
        gx, gh0, grads = network.backward(tape, np.ones_like(y), end)
        got = flat(module(x, whole(start), lengths, resets))
        loss = got[0].sum() + sum(e.square().sum() / 2 for e in got[1:])
        parameters = dict(module.named_parameters())
        own = torch.autograd.grad(loss, [x, *start, *parameters.values()])
        want = [y, *(end if isinstance(end, tuple) else (end,))]
        want += [gx, *(gh0 if isinstance(gh0, tuple) else (gh0,)), *(grads[n] for n in parameters)]
        assert_close((*got, *own), map(torch.tensor, want), 0 if engine == "lnrnn" else 2e-5)
        for n, statistics in network.state_dict().items():
            np.testing.assert_allclose(module.state_dict()[n], statistics, rtol=1e-4, atol=1e-6)
        if module.sides:
            module.overrun = "last"
        network = lnrnn.from_torch(module.eval())  # its statistics are float32 now, as the module's
        with torch.no_grad():
            y = module(x, None, lengths, resets)[0].numpy()
        np.testing.assert_allclose(y, network(x.detach(), None, lengths, resets)[0], atol=5e-6)


@each_engine
def test_no_gradient_passes_a_reset(rng, engine):
    module = made("LSTM", engine)
    x, start, _ = drawn(rng, module)
    resets = torch.zeros(T, B, dtype=torch.bool)
    resets[4, 2] = True
    y, _ = module(x, start, resets=resets)
    gx, gh = torch.autograd.grad(y[4:].sum(), [x, start[0]])
    assert not gx[:4, 2].any() and not gh[:, 2].any() and gx[4:, 2].all() and gx[:4, :2].all()
    resets[4, 2] = False
    for a, b in zip(flat(module(x, start, resets=resets)), flat(module(x, start)), strict=True):
        assert torch.equal(a, b)


@each_engine
def test_one_sequence_no_step_and_one_step(rng, engine):
    module = made("GRU", engine)
    x, (h,), resets = drawn(rng, module)
    alone = module(x[1], h[:, 1], resets=resets[1])[0]
    assert_close([alone], [module(x, h, resets=resets)[0][1]], 1e-6)
    module = made("GRU", engine, batch_first=False)
    x, (h,), resets = drawn(rng, module)
    y, end = module(x, h, resets=resets)
    alone, own = module(x[:, 1], h[:, 1], resets=resets[:, 1])
    assert_close((alone, own), (y[:, 1], end[:, 1]), 1e-6)
    y, end = module(x[:0], h, resets=resets[:0])
    assert y.shape == (0, B, H) and torch.equal(end, h)
    y, end = module(x[:1], h, resets=np.ones((1, B), bool).tolist())
    assert_close((y, end), module(x[:1]), 0)


def test_dropout_has_the_same_masks_in_both_engines(rng):
    modules = [made("LSTM", engine, norm=None, dropout=0.4) for engine in ("lnrnn", "torch")]
    x, start, resets = drawn(rng, modules[0])
    found = []
    for module in modules:
        torch.manual_seed(0)
        found.append(results(module, lambda m=module: flat(m(x, start, resets=resets)), x, start))
    assert_close(*found, 1e-5)


def loop_of_sb3(features, lstm_states, episode_starts, lstm):
    """Returns the results of _process_sequence of sb3-contrib's recurrent policies."""
    n = lstm_states[0].shape[1]
    x = features.reshape(n, -1, lstm.input_size).swapaxes(0, 1)
    outputs = []
    for x_t, starts in zip(x, episode_starts.reshape(n, -1).swapaxes(0, 1), strict=True):
        kept = (1.0 - starts).view(1, n, 1)
        y, lstm_states = lstm(x_t[None], tuple(kept * s for s in lstm_states))
        outputs.append(y)
    return torch.cat(outputs).transpose(0, 1).flatten(0, 1), lstm_states


def test_the_function_for_sb3_on_the_page():
    page = pages.ROOT / "docs" / "sessions.md"
    (block,) = [b for b in pages.blocks(page) if "def _process_sequence" in b.text]
    space: dict = {}
    exec(block.text, space)
    theirs, own = torch.nn.LSTM(D, H, 2), lnrnn.torch.LSTM(D, H, 2, norm=None)
    for name, parameter in theirs.named_parameters():
        setattr(own, name, parameter)
    features, starts = torch.randn(B * T, D, requires_grad=True), (torch.rand(B * T) < 0.2).float()
    states = tuple(torch.randn(2, B, H, requires_grad=True) for _ in range(2))
    found = []
    for call, lstm in ((loop_of_sb3, theirs), (space["_process_sequence"], own)):
        results_ = flat(call(features, states, starts, lstm))
        loss = sum(r.sin().sum() for r in results_)
        found.append([*results_, *torch.autograd.grad(loss, [features, *states, *theirs.parameters()])])
    assert_close(*found, 2e-6)
