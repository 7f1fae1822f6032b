"""lnrnn.torch's modules behave as torch.nn's: engine, autocast, packed sequences, copies, buffers."""

from __future__ import annotations

import copy
import pickle
import weakref

import pytest

import lnrnn

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import lnrnn.torch  # noqa: E402
from torch_twins import CELLS, OF_TORCH, B, Batch, H, I, T, compare, twin  # noqa: E402


def test_the_engine_is_chosen_by_call():
    module = twin("LSTM")
    assert module.engine == "lnrnn" and "engine=" not in repr(module)
    double, half = copy.deepcopy(module).double(), copy.deepcopy(module).bfloat16()
    for other in (double, half, twin("LSTM", device="meta")):
        assert other.engine == "torch"
    one = copy.deepcopy(module)
    one.bias_ih_l0.data = one.bias_ih_l0.data.double()
    assert one.engine == "torch"
    forced = twin("LSTM", engine="torch")
    assert forced.engine == "torch" and "engine='torch'" in repr(forced)
    forced.engine = None
    assert forced.engine == "lnrnn"


def test_a_required_engine_raises_if_it_cannot_serve():
    module = twin("GRU", engine="lnrnn").double()
    assert module.engine == "lnrnn"
    message = r"engine='lnrnn' cannot serve .*must be torch.float32 on cpu, got torch.float64"
    with pytest.raises(ValueError, match=message):
        module(torch.randn(T, B, I).double())
    module.float()
    module(torch.randn(T, B, I))
    for bad in ("c", 1, True):
        for use in (lambda: setattr(module, "engine", bad), lambda: lnrnn.torch.RNN(I, H, engine=bad)):  # noqa: B023
            with pytest.raises((ValueError, TypeError), match="engine must be one of 'lnrnn', 'torch', None"):
                use()


def test_batch_norm_in_evaluation_has_gradients_on_the_plain_engine():
    module = twin("LSTM", "batch", steps=T)
    x = torch.randn(T, B, I)
    assert module.engine == "torch" and copy.deepcopy(module).train().engine == "lnrnn"
    with torch.no_grad():
        assert module.engine == "lnrnn"
        want = module(x)
    y, end = module(x)
    compare((y, end), want, 1e-5)
    y.sum().backward()
    assert module.gain_c_l0.grad is not None
    module.engine = "lnrnn"
    with pytest.raises(ValueError, match=r"no derivative of batch norm in evaluation: .*no_grad"):
        module(x)
    module.requires_grad_(False)
    compare(module(x), want, 1e-9)
    with pytest.raises(ValueError, match="no derivative of batch norm in evaluation"):
        module(x.requires_grad_())


@pytest.mark.parametrize("cell", CELLS)
def test_both_engines_agree_in_training_with_batch_norm(cell):
    options = {"norm": Batch(T + 2, momentum=None), "num_layers": 2, "bidirectional": True}
    one, two = twin(cell, **options).train(), twin(cell, engine="torch", **options).train()
    for batch in (32, 48):
        x, lengths = torch.randn(T, batch, I), torch.randint(T - 1, T + 1, (batch,))
        compare(one(x, lengths=lengths), two(x, lengths=lengths), 1e-4)
        with torch.no_grad():  # training without a tape
            compare(one(x, lengths=lengths), two(x, lengths=lengths), 1e-4)
    for (name, a), b in zip(one.named_buffers(), two.buffers(), strict=True):
        assert a.dtype == b.dtype and float((a - b).abs().max()) < 1e-4 * max(1, float(b.abs().max())), name
    assert one.known_steps == two.known_steps == T and len(one.count_l1_reverse) == T + 2


def test_training_updates_buffers_in_place():
    """As in torch.nn.BatchNorm, other users of the buffers (DistributedDataParallel) see the change."""
    module = twin("GRU", Batch(T)).train()
    held = dict(module.named_buffers())
    versions = {name: b._version for name, b in held.items()}
    module(torch.randn(T, B, I))
    for name, buffer in module.named_buffers():
        assert buffer is held[name] and buffer._version > versions[name] and bool((buffer != 0).any())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_failed_call_changes_no_statistics_and_draws_no_numbers(dropout):
    module = twin("GRU", Batch(T), num_layers=2, dropout=dropout).train()
    before, random = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    for arguments in ((torch.zeros(T + 1, B, I),), (torch.zeros(T, B, I), None, [T + 1] * B)):
        with pytest.raises(ValueError):
            module(*arguments)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("cell", CELLS)
def test_autocast_computes_in_float32(cell):
    module = twin(cell, num_layers=2)
    x, head = torch.randn(T, B, I), torch.nn.Linear(I, I)
    want = module(x.bfloat16().float())
    with torch.autocast("cpu", torch.bfloat16):
        y, end = module(x.bfloat16())
        assert y.dtype == torch.float32 and module.engine == "lnrnn"
        compare((y, end), want, 1e-9)
        y, _ = module(head(x), tuple(s.bfloat16() for s in end) if cell == "LSTM" else end.bfloat16())
    y.sum().backward()
    assert head.weight.grad.dtype == torch.float32 and bool((head.weight.grad != 0).any())
    with pytest.raises(TypeError, match="x must be of the parameters' dtype and device, torch.float32 on"):
        module(x.bfloat16())
    with pytest.raises(TypeError, match="h0 must be of the parameters' dtype and device"):
        state = torch.zeros(2, B, H, dtype=torch.float64)
        module(x, (state, None) if cell == "LSTM" else state)


@pytest.mark.parametrize("engine", ["lnrnn", "torch"])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("cell", OF_TORCH)
def test_packed_sequences_are_accepted_and_returned(cell, batch_first, engine):
    """Packed sequences may be sorted or not. Results equal those of torch.nn."""
    module = twin(cell, None, num_layers=2, bidirectional=True, batch_first=batch_first, engine=engine)
    known = getattr(torch.nn, cell)(I, H, 2, bidirectional=True, batch_first=batch_first)
    known.load_state_dict(module.state_dict())
    parts = [torch.randn(n, I) for n in (3, T, 1, 5)]
    h0 = tuple(torch.randn(4, len(parts), H) for _ in range(1 + (cell == "LSTM")))
    h0 = h0 if len(h0) == 2 else h0[0]
    for packed in (
        pack_sequence(parts, enforce_sorted=False),
        pack_sequence(sorted(parts, key=len, reverse=True)),
        pack_padded_sequence(torch.randn(T, 4, I), [T] * 4),
    ):
        for state in (None, h0):
            got, want = module(packed, state), known(packed, state)
            compare([got[0].data, got[1]], [want[0].data, want[1]], 1e-5)
            for name in ("batch_sizes", "sorted_indices", "unsorted_indices"):
                a, b = getattr(got[0], name), getattr(want[0], name)
                assert (a is b is None) or torch.equal(a, b)
            compare(pad_packed_sequence(got[0]), pad_packed_sequence(want[0]), 1e-5)
    got[0].data.sum().backward()
    with pytest.raises(ValueError, match="lengths must be None with a PackedSequence"):
        module(packed, None, [1] * 4)


@pytest.mark.parametrize("norm", ["layer", "batch", None])
def test_copies_and_pickles_have_the_same_results(norm):
    """Before the copy, a call has packed the weights, and another one has kept a graph."""
    module = twin("LSTM", norm, steps=T, num_layers=2, engine="lnrnn")
    x = torch.randn(T, B, I)
    with torch.no_grad():
        want = module(x)
    module.train()(x)[0].sum().backward()
    module.eval()
    if norm == "batch":
        with torch.no_grad():
            want = module(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), copy.copy(module)):
        with torch.no_grad():
            compare(other(x), want, 1e-9)
        assert type(other).__module__ == "lnrnn.torch" and other._engine == "lnrnn"
    other = copy.deepcopy(module)
    other.weight_hh_l0.data.zero_()
    with torch.no_grad():
        compare(module(x), want, 1e-9)


def test_packed_weights_are_freed_with_their_module():
    from lnrnn.torch import kept

    module, x = twin("LSTM"), torch.randn(T, B, I)
    with torch.no_grad():
        module(x)
        served, before = weakref.ref(module._kept.served), len(kept._served)
        with FlopCounterMode(display=False):  # torch's dispatcher calls the operator, without the module
            module(x)
    assert len(kept._served) == before + 1
    del module
    assert len(kept._served) == before and served() is None
