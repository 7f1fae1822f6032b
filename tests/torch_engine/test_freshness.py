"""Tests that calls without gradients notice changed weights, and the attribute `frozen`.

Some writes are not noticed: `check` finds them, and the next calls use the present weights.
"""

from __future__ import annotations

import copy
import itertools
import pickle
import threading
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import lnrnn.torch  # noqa: E402
from lnrnn.torch import accelerate  # noqa: E402
from mixed_models import SINGLE, H, I, T, assert_same, flat  # noqa: E402
from torch_cells import HasteGRU, Layer, LayerNormLSTMCell, shaken  # noqa: E402

B = 3
KINDS = ["LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"]


def pair(name):
    if name == "lnrnn.torch":
        module, plain = lnrnn.torch.LSTM(I, H, norm=None), nn.LSTM(I, H)
        plain.load_state_dict(module.state_dict())
        return module, plain
    plain = getattr(nn, name)(I, H)
    module = copy.deepcopy(plain)
    assert accelerate(module).replaced
    return module, plain


def given(name):
    return torch.randn(B, I) if name.endswith("Cell") else torch.randn(T, B, I)


def in_place(m):
    with torch.no_grad():
        for p in m.parameters():
            p.mul_(0.5)


def inference(m):
    with torch.inference_mode():
        next(m.parameters()).add_(0.1)


def one_element(m):
    with torch.no_grad():
        next(m.parameters())[2, 3] += 1


def through_data(m):
    for p in m.parameters():
        p.data.mul_(0.5)


def numpy_view(m):
    for p in m.parameters():
        p.detach().numpy()[...] *= 0.5


def new_data(m):
    for p in m.parameters():
        p.data = p.data * 0.5


def other_memory(m):
    with torch.no_grad():
        for p in m.parameters():
            p.set_(p * 0.5)


def twice_new_data(m):
    """The allocator may give the second array the address of the first."""
    p = next(m.parameters())
    p.data, values = torch.zeros_like(p), p.data * 0.5
    p.data = values.clone()


def transposed(m):
    p = [p for p in m.parameters() if p.dim() == 2 and p.shape[0] == p.shape[1]]
    for each in p or [next(m.parameters())]:
        each.data = each.data.t() if p else each.data * 2


def new_parameters(m):
    for name, p in list(m.named_parameters()):
        setattr(m, name, nn.Parameter(p.detach() * 0.5))


def loaded(m):
    m.load_state_dict({name: p * 0.5 for name, p in m.state_dict().items()})


def assigned(m):
    m.load_state_dict({name: p * 0.5 for name, p in m.state_dict().items()}, assign=True)


def to_and_back(m):
    m.to(torch.float64)
    in_place(m)
    m.to(torch.float32)


def shared(m):
    m.share_memory()
    through_data(m)


def optimiser(cls, **options):
    def change(m):
        for p in m.parameters():
            p.grad = torch.ones_like(p)
        cls(m.parameters(), lr=0.1, **options).step()

    return change


CHANGES = {
    f.__name__: f
    for f in (
        in_place, inference, one_element, through_data, numpy_view, new_data, other_memory, twice_new_data,
        transposed, new_parameters, loaded, assigned, to_and_back, shared,
    )
} | {
    "sgd": optimiser(torch.optim.SGD, foreach=False),
    "foreach": optimiser(torch.optim.Adam, foreach=True),
    "fused": optimiser(torch.optim.SGD, fused=True),
    "fused adam": optimiser(torch.optim.Adam, fused=True),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", [*KINDS, "lnrnn.torch"])
def test_changed_weights_are_used(name, change):
    module, plain = pair(name)
    x = (given(name),)
    if name.endswith("Cell"):  # with zero states weight_hh has no effect
        h = torch.randn(B, H)
        x = *x, (h, h) if name == "LSTMCell" else h
    with torch.no_grad():
        for _ in range(2):
            before = flat(module(*x))
    for m in (module, plain):
        CHANGES[change](m)
    with torch.no_grad():
        for _ in range(2):
            got = flat(module(*x))
            assert_same(got, plain(*x))
    assert not torch.equal(got[0], before[0])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("engine", [None, "lnrnn"])
def test_inference_tensors_are_left_to_torch_or_packed_in_each_call(name, engine):
    with torch.inference_mode():
        module, plain = pair(name)
        module.engine = engine
        x = given(name)
        for _ in range(2):
            assert_same(module(x), plain(x))
            for m in (module, plain):
                next(m.parameters())[1, 1] += 1
        before = module(x)
        module.frozen = True
        assert_same(module(x), before)
        next(module.parameters())[1, 1] += 1
        assert_same(module(x), before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python warns of a fork with threads
@pytest.mark.parametrize("name", ["LSTM", "RNN", "GRUCell", "custom"])
def test_training_averages_and_processes_are_never_stale(name):
    if name == "custom":
        plain = shaken(Layer(LayerNormLSTMCell(I, H), False))
        module = copy.deepcopy(plain)
        assert accelerate(module).replaced
    else:
        module, plain = pair(name)
    average, x, results = copy.deepcopy(module), given(name), []

    def compare(m):
        with torch.no_grad():
            plain.load_state_dict(m.state_dict())
            results.append(flat(m(x))[0])
            assert_same([results[-1]], [flat(plain(x))[0]])

    def write():
        with torch.no_grad():
            module.get_parameter(next(n for n, p in module.named_parameters() if p.dim() > 1))[1, 1] += 1

    optimiser = torch.optim.Adam(module.parameters(), 0.01, fused=True)
    for _ in range(3):
        optimiser.zero_grad()
        flat(module(x))[0].square().sum().backward()
        optimiser.step()
        for a, p in zip(average.parameters(), module.parameters(), strict=True):
            a.data.lerp_(p.data, 0.1)
        compare(module), compare(average)
    module.share_memory()
    for _ in range(2):
        compare(module)
        process = torch.multiprocessing.get_context("fork").Process(target=write)
        process.start()
        process.join()
    compare(module)
    pairs = [*zip(results, results[2:6], strict=False), *itertools.pairwise(results[6:])]
    assert not any(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", KINDS)
def test_frozen_weights(name):
    module, plain = pair(name)
    module.frozen = True
    x = given(name)
    with torch.no_grad():
        want = plain(x)
        assert_same(module(x), want)
        in_place(module)
        assert_same(module(x), want)
        module.frozen = True
        in_place(plain)
        assert_same(module(x), plain(x))
        for change in (loaded, new_parameters, to_and_back):
            change(module), change(plain)
            assert_same(module(x), plain(x))
    with pytest.raises(TypeError, match="frozen must be True or False"):
        module.frozen = 1
    with pytest.raises(TypeError, match="frozen must be True or False"):
        accelerate(plain, frozen=None)
    assert accelerate(plain, frozen=True).replaced and plain.frozen


def test_lnrnn_modules_may_be_frozen():
    module = lnrnn.torch.GRU(I, H, seed=0)
    x = given("GRU")
    with torch.no_grad():
        module.frozen = True
        before = module(x)
        in_place(module)
        assert_same(module(x), before)
        module.frozen = False
        assert not torch.equal(module(x)[0], before[0])


@pytest.mark.parametrize("name", KINDS)
def test_copies_and_functional_calls_use_their_own_weights(name):
    module, plain = pair(name)
    x = given(name)
    with torch.no_grad():
        module(x)
        others = {key: p * 0.5 for key, p in plain.named_parameters()}
        got = torch.func.functional_call(module, others, (x,))
        assert_same(got, torch.func.functional_call(plain, others, (x,)))
        assert_same(module(x), plain(x))
        for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            in_place(twin)
            assert_same(module(x), plain(x))
            assert not torch.equal(flat(twin(x))[0], flat(module(x))[0])


@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "RNNCell"])
@pytest.mark.parametrize("options", [{}, {"bias": False}], ids=str)
@pytest.mark.parametrize("shape", [(I,), (1, I), (5, I), (70, I)], ids=str)
def test_cells_have_the_results_and_gradients_of_torch(name, options, shape):
    plain = getattr(nn, name)(I, H, **options)
    module = copy.deepcopy(plain)
    accelerate(module)
    exact = copy.deepcopy(plain).double()
    x = torch.randn(4, *shape)
    state = tuple(torch.randn(*shape[:-1], H) for _ in range(1 + (name == "LSTMCell")))
    state = state if len(state) == 2 else state[0]
    with torch.no_grad():
        for hx in (None, state):
            for _ in range(2):
                assert_same(module(x[0], hx), plain(x[0], hx))
        assert module._kept is not None
    module.engine = "lnrnn"
    errors, want = [], None
    for m in (exact, plain, module):
        kind = next(m.parameters()).dtype
        hx = [s.to(kind).requires_grad_() for s in flat(state)]
        given_x, h = x.to(kind).requires_grad_(), tuple(hx) if len(hx) == 2 else hx[0]
        for x_t in given_x:
            h = m(x_t, h)
        gradients = torch.autograd.grad(sum(s.sin().sum() for s in flat(h)), [given_x, *hx, *m.parameters()])
        want = gradients if want is None else want
        errors.append(
            [float((g - w).abs().max() / w.abs().max()) for g, w in zip(gradients, want, strict=True)]
        )
    assert all(e < 2 * max(own, 2e-7) + 1e-6 for e, own in zip(errors[2], errors[1], strict=True))


def test_cells_leave_to_torch_what_they_cannot_compute():
    module, plain = pair("RNNCell")
    assert isinstance(module, nn.RNNCell)
    with torch.no_grad():
        module(torch.randn(B, I))
        module.nonlinearity = plain.nonlinearity = "relu"
        x = torch.randn(B, I)
        assert_same(module(x), plain(x))
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(module(x), plain(x))
        for wrong in ((torch.randn(B, I + 1),), (x, torch.randn(B + 1, H)), (torch.randn(2, B, I),)):
            with pytest.raises((ValueError, RuntimeError)) as want:
                plain(*wrong)
            with pytest.raises(want.type, match="."):
                module(*wrong)


@pytest.mark.parametrize("learns", [False, True])
def test_states_with_an_axis_more_than_x_do_not_end_the_process(learns):
    """Torch's own LSTMCell and GRUCell end it."""
    more, x = torch.zeros(1, 1), torch.randn(I)
    for hx in ((more, more), [more, more[0]], (more,) * 3, torch.zeros(2, 1, 1), more):
        module = (nn.GRUCell if hx is more else nn.LSTMCell)(I, 1)
        accelerate(module)
        for module.engine in (None, "torch"):
            with torch.set_grad_enabled(learns):
                module(x), module(x)
                with pytest.raises(ValueError, match="Cell: Expected hidden to be 1D, as the input, got 2D"):
                    module(x, hx)


def test_threads_use_changed_weights():
    module, plain = pair("LSTMCell")
    x, wrong = given("LSTMCell"), []
    with torch.no_grad():
        want = flat(plain(x))

    def run():
        with torch.no_grad():
            for _ in range(50):
                got = flat(module(x))
                if float((got[0] - want[0]).abs().max()) > SINGLE:
                    wrong.append(got)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- writes that calls do not notice ------------------------------------------------------------------------


def batch_normed():
    module = lnrnn.torch.GRU(I, H, norm=lnrnn.BatchNormSpec(T), seed=0)
    module(torch.randn(T, 8, I))
    return module.eval()


MODELS = {
    "layers": lambda: nn.LSTM(I, H, 2, bidirectional=True),
    "cell": lambda: nn.GRUCell(I, H),
    "custom": lambda: shaken(HasteGRU(I, H)),
    "lnrnn.torch": lambda: lnrnn.torch.LSTM(I, H, seed=0),
    "batch norm": batch_normed,
}


class Model(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.part = MODELS[what]()

    def forward(self, x):
        return self.part(x)


def made(what):
    model = Model(what).eval()
    accelerate(model)
    return model, torch.randn(B, I) if what == "cell" else torch.randn(T, B, I)


def write_unseen(m):
    """Changes an element of each larger tensor that is not among the 8 that calls compare."""
    for t in (*m.parameters(), *m.buffers()):
        if t.is_floating_point() and t.numel() > 14:
            t.data.view(-1)[1] += 1


@pytest.mark.parametrize("mode", [None, FlopCounterMode], ids=str)
@pytest.mark.parametrize("what", MODELS)
def test_check_finds_weights_that_were_written_without_notice(what, mode):
    """In a mode of torch calls pass through its dispatcher, which keeps weights by the first parameter."""
    model, x = made(what)

    def call():
        with torch.no_grad(), mode(display=False) if mode else nullcontext():
            return flat(model(x))[0]

    assert not accelerate(model, check=x).replaced
    before = call(), call()
    write_unseen(model)
    kept = torch.equal(call(), before[0])
    assert kept or (what == "custom" and mode)  # else this test does not show anything
    with mode(display=False) if mode else nullcontext():
        match = "written without notice, as through p.data or NumPy, in part. Calls"
        with pytest.raises(ValueError, match=match) if kept else nullcontext():
            accelerate(model, check=x)
    assert not torch.equal(call(), before[0])
    accelerate(model, check=x)
    assert_same(call(), flat(copy.deepcopy(model)(x))[0])  # copies keep no packed weights


@pytest.mark.parametrize("dtype", [None, "int8"])
def test_check_lets_short_calls_with_gradients_read_all_weights(dtype):
    """Calls of few steps use packed weights too, of float32 alone."""
    model, x = made("layers")
    accelerate(model, dtype=dtype)
    short = x[:2]
    before = model(short)[0]
    write_unseen(model)
    kept = dtype is None
    assert torch.equal(model(short)[0], before) == kept
    with pytest.raises(ValueError, match="without notice") if kept else nullcontext():
        accelerate(model, check=x)
    after = model(short)[0]
    assert not torch.equal(after, before)
    assert_same(after, copy.deepcopy(model)(short)[0])


def test_outputs_that_differ_in_each_call_are_no_error():
    model, x = made("layers")
    counts = iter(range(99))
    model.part.register_forward_hook(lambda *given: (given[2][0] + next(counts), given[2][1]))
    assert not accelerate(model, check=x).replaced


@pytest.mark.parametrize("what", ["layers", "cell", "lnrnn.torch", "batch norm"])
def test_frozen_weights_are_no_error_and_setting_frozen_reads_all_weights(what):
    model, x = made(what)
    model.part.frozen = True
    with torch.no_grad():
        before = flat(model(x))[0]
        write_unseen(model)
        accelerate(model, check=x)
        assert torch.equal(flat(model(x))[0], before)
        model.part.frozen = False
        assert not torch.equal(flat(model(x))[0], before)
        accelerate(model, check=x)


@pytest.mark.parametrize("what", ["cell", "custom"])
def test_weights_that_were_written_between_restore_and_accelerate(what):
    model, x = Model(what).eval(), made(what)[1]
    with torch.no_grad():
        report = accelerate(model)
        model(x), model(x)
        report.restore()
        write_unseen(model)
        want = model(x)
        accelerate(model)
        assert_same(model(x), want)
