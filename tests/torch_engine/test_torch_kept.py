"""Tests data that the engine keeps between calls: packed networks for inference, and tapes for backward."""

from __future__ import annotations

import copy
import ctypes
import importlib.util
import itertools

import numpy as np
import pytest

import lnrnn

torch = pytest.importorskip("torch")

import lnrnn.torch  # noqa: E402
from helpers import available_isas, using_isa  # noqa: E402
from lnrnn.rnn import functional  # noqa: E402
from lnrnn.rnn.snapshot import tape_width  # noqa: E402
from lnrnn.torch import kept, operator  # noqa: E402
from mixed_models import flat  # noqa: E402
from torch_twins import CELLS, LENGTHS, B, Batch, H, I, Layer, T, twin  # noqa: E402


def served(module, x):
    """Returns y of the module in evaluation mode, and y of a new network with its parameters."""
    with torch.no_grad():
        return module.eval()(x)[0].numpy(), lnrnn.from_torch(module)(x)[0]


def test_the_next_call_uses_statistics_of_another_number_of_steps():
    """Only the shape of the statistics changes. The kept network must not be used for the next call."""
    module, fewer = twin("LSTM", Batch(), steps=3), twin("LSTM", Batch(), steps=2)
    x, result = torch.randn(2, B, I), []
    for change in (
        lambda: None,
        lambda: module.train()(torch.randn(T, B, I)),
        lambda: module.load_state_dict(fewer.state_dict()),
    ):
        change()
        got, want = served(module, x)
        np.testing.assert_array_equal(got, want)
        result.append(got)
    assert not any(np.array_equal(a, b) for a, b in itertools.pairwise(result))


def test_modules_with_the_same_parameters_and_other_equations():
    one, other = twin("GRU"), twin("GRU", Layer(eps=0.5))
    for name, p in one.named_parameters():
        setattr(other, name, p)
    x, result = torch.randn(T, B, I), []
    for module in (one, other, one):
        got, want = served(module, x)
        np.testing.assert_array_equal(got, want)
        result.append(got)
    assert not np.array_equal(*result[:2])


def slopes(module, y):
    return [g.numpy() for g in torch.autograd.grad(y.square().sum(), list(module.parameters()))]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_gradients_of_graphs_that_live_at_the_same_time(cell, norm):
    """The graphs come from two modules, two inputs and different lengths.

    All their tapes have the same shape.
    """
    one, other = (twin(cell, norm, seed=seed, num_layers=2).train() for seed in (0, 1))
    a, b = torch.randn(2, T, B, I)
    calls = [(one, a, None), (other, a, None), (one, b, LENGTHS)]
    want = [slopes(module, module(x, None, lengths)[0]) for module, x, lengths in calls]
    for order in itertools.permutations(range(3)):
        graphs = [module(x, None, lengths)[0] for module, x, lengths in calls]
        for k in order:
            for got, alone in zip(slopes(calls[k][0], graphs[k]), want[k], strict=True):
                np.testing.assert_array_equal(got, alone)
    assert not np.array_equal(want[0][0], want[1][0])


def test_tapes_of_deleted_graphs_are_freed():
    before, module = len(functional._kept), twin("LSTM")
    graphs = [module(torch.randn(T, B, I))[0] for _ in range(3)]
    assert len(functional._kept) == before + 3
    del graphs
    assert len(functional._kept) == before


def test_tapes_have_the_width_of_the_instruction_set():
    """Changes the instruction set between calls of one network."""
    rnn, result = lnrnn.LSTM(I, 5, norm="layer", num_layers=2, seed=0), set()
    arch = rnn.stream()._snapshot.architecture
    for name in available_isas():
        with using_isa(name):
            width = tape_width(arch)
            x = np.zeros((T, B, I), np.float32)
            *_, saved = functional.forward(arch, list(rnn.parameters().values()), x, [], None)
            assert [tape.size for tape in saved[1:]] == [width * T * B] * 2
            result.add(width)
    assert len(result) > 1 or len(available_isas()) == 1


LAYOUTS = {
    "contiguous": lambda t: t,
    "other strides": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
    "parts of rows": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    "the same for all": lambda t: t[..., :1].expand(t.shape),
    "negative": lambda t: torch.complex(t, t).conj().imag,
    "negative, contiguous": lambda t: torch._neg_view(t),
    "a parameter": torch.nn.Parameter,
    "inference": lambda t: t,
}


@pytest.mark.parametrize("read", [kept.read, kept.by_attributes], ids=["DLPack", "attributes"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_read_tensors_of_every_layout(layout, read, monkeypatch):
    """Kept weights serve them, without another function, if the tensors are in memory as they are."""
    monkeypatch.setattr(kept, "read", read)
    other = []
    monkeypatch.setattr(operator, "_run_cpu", lambda *a, run=operator._run_cpu: other.append(0) or run(*a))
    changed = LAYOUTS[layout]
    for kind, width in (("LSTM", I), ("GRU", 1), ("LSTMCell", 1), ("GRUCell", I), ("RNNCell", 1)):
        model = getattr(torch.nn, kind)(width, 1 if width == 1 else H)
        plain = copy.deepcopy(model)
        lnrnn.torch.accelerate(model)
        first = () if kind.endswith("Cell") else (1,)
        for batch in ((1,), (3,), ()):
            with torch.inference_mode() if layout == "inference" else torch.no_grad():
                sizes = width, model.hidden_size, model.hidden_size
                x, h, c = (changed(torch.randn(*first, *batch, n)) for n in sizes)
                state = (h, c) if kind.startswith("LSTM") else h
                model(x, state)  # packs the weights
                other.clear()
                for got, want in zip(flat(model(x, state)), flat(plain(x, state)), strict=True):
                    assert got.shape == want.shape and not got.requires_grad
                    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=0, atol=2e-6)
                assert not other or layout.startswith("negative") or layout == "a parameter"


def test_steps_refuse_what_torch_refuses():
    model, cell = torch.nn.LSTM(I, H), torch.nn.LSTMCell(I, H)
    lnrnn.torch.accelerate(torch.nn.ModuleList([model, cell]))
    x, h = torch.randn(1, 2, I), torch.randn(1, 2, H)
    with torch.no_grad():
        for _ in range(2):
            model(x, (h, h))
            cell(x[0], (h[0], h[0]))
        for bad in (h[..., :1], h[:, :1], h[0], h[None], h.double(), None, 1.0, h.to("meta")):
            for state in ((h, bad), (bad, h), [h, bad, h], bad, (), []):
                if bad is not None or state is not None:
                    with pytest.raises((RuntimeError, TypeError, ValueError, AttributeError, IndexError)):
                        model(x, state)
                        raise AssertionError(state)
        for bad in (x[..., :1], x.double(), x.to("meta"), x[0, 0], x[None]):
            with pytest.raises((RuntimeError, ValueError)):
                model(bad, (h, h))
        for state in ((h, h), ()):
            with pytest.raises((RuntimeError, ValueError, IndexError)):
                cell(x if state else x[0], state)


def test_another_version_of_dlpack_is_not_used(monkeypatch):
    """A capsule of version 2 of DLPack's exchange API."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    table = (ctypes.c_uint32 * 32)(2)
    capsule = new(ctypes.addressof(table), b"dlpack_exchange_api", None)
    for api in (None, capsule):  # torch before 2.10 has none
        monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__", raising=False)
        if api:
            monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", api, raising=False)
        spec = importlib.util.spec_from_file_location("lnrnn.torch.kept_again", kept.__file__)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert module.read is module.by_attributes
    assert kept.read is not kept.by_attributes or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
