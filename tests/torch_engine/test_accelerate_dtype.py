"""Tests accelerate(model, dtype=): bfloat16 and int8 weights in calls without gradients."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest

import lnrnn

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import lnrnn.torch  # noqa: E402
from lnrnn.torch import accelerate  # noqa: E402
from torch_cells import CustomLSTM  # noqa: E402

torch.set_num_threads(1)

T, B, I, H = 12, 3, 5, 16  # noqa: E741 - the letters of the shapes in the documentation


class Loop(nn.Module):
    """A loop over the steps of a cell."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        ys, h = [], None
        for x_t in x:
            h = self.cell(x_t, h)
            ys.append(h)
        return torch.stack(ys), h


MODULES = {
    "cell": lambda: Loop(nn.GRUCell(I, H)),
    "torch.nn": lambda: nn.LSTM(I, H, 2, bidirectional=True, batch_first=True),
    "subject to dropout": lambda: nn.GRU(I, H, 2, dropout=0.3),
    "custom": lambda: CustomLSTM(I, H, True),
    "lnrnn.torch": lambda: lnrnn.torch.GRU(I, H, 2, batch_first=True, seed=0),
    "batch norm": lambda: lnrnn.torch.RNN(I, H, norm="batch", seed=0),
}
each_module = pytest.mark.parametrize("name", MODULES)
each_dtype = pytest.mark.parametrize("dtype", ["bfloat16", "int8"])


class Model(nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x):
        y = self.rnn(x)
        y = y[0] if isinstance(y, tuple) else y
        return y, y.mean()


def made(name):
    torch.manual_seed(0)
    model = Model(MODULES[name]())
    if name == "batch norm":
        model(torch.randn(T, 8, I))
    return model.eval(), torch.randn(T, T, I)


def without_gradients(model, x):
    with torch.no_grad():
        return model(x)[0].numpy()


def expected(model, x, dtype):
    return lnrnn.from_torch(getattr(model.rnn, "cell", model.rnn), check=False).to_dtype(dtype)(x)[0]


@each_dtype
@each_module
def test_calls_without_gradients_use_short_weights(name, dtype):
    model, x = made(name)
    want, network = expected(model, x, dtype), expected(model, x, "float32")
    y = without_gradients(model, x)
    report = accelerate(model, dtype=dtype)
    assert len(report.replaced) + len(report.left) == 1 and report.rounding is None and report.dtype == dtype
    assert f"{dtype} weights without gradients" in repr(report)
    got = without_gradients(model, x)
    assert np.array_equal(got, want) and not np.array_equal(got, network)
    for each in (copy.deepcopy(model), torch.load(saved(model), weights_only=False)):
        assert np.array_equal(without_gradients(each, x), want)
    exact, mean = model(x)
    assert (exact - torch.tensor(network)).abs().max() < 2e-6  # gradients: float32
    mean.backward()
    assert all(p.grad is not None for p in model.parameters())
    report.restore()
    assert np.array_equal(without_gradients(model, x), y)


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return file


@each_dtype
@pytest.mark.parametrize("name", ["torch.nn", "lnrnn.torch"])
def test_changed_weights_are_packed_again(name, dtype):
    model, x = made(name)
    accelerate(model, dtype=dtype)
    before = without_gradients(model, x)
    model(x)[0].square().sum().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= p.grad
    got = without_gradients(model, x)
    assert not np.array_equal(got, before) and np.array_equal(got, expected(model, x, dtype))
    model.load_state_dict(made(name)[0].state_dict())
    assert np.array_equal(without_gradients(model, x), before)


@each_dtype
@each_module
def test_check_reports_the_differences_of_the_models_outputs(name, dtype):
    model, x = made(name)
    report = accelerate(model, check=x, dtype=dtype)
    (y, mean), want = model(x), without_gradients(model, x)
    difference = np.append(want - y.detach().numpy(), want.mean() - mean.item())
    rms = np.sqrt(np.square(difference).mean())
    size = np.sqrt(np.square(np.append(y.detach().numpy(), mean.item())).mean())
    np.testing.assert_allclose(report.rounding, (np.abs(difference).max(), rms, size), rtol=1e-2)
    assert 1e-5 < report.rounding.rms < report.rounding.largest < 0.2
    assert f"up to {report.rounding.largest:.2g}, {report.rounding.rms:.2g} rms of" in repr(report)


def test_dtypes_are_set_and_restored_in_turn():
    model, x = made("torch.nn")
    outputs = {dtype: expected(model, x, dtype) for dtype in ("float32", "bfloat16", "int8")}
    first = accelerate(model, dtype="int8")
    second = accelerate(model, check=x, dtype="bfloat16")
    assert second.left == [("rnn", "lnrnn computes it already")]
    assert second.rounding.largest == pytest.approx(abs(outputs["bfloat16"] - outputs["float32"]).max(), 1e-4)
    assert np.array_equal(without_gradients(model, x), outputs["bfloat16"])
    third = accelerate(model)  # changes no dtype
    assert third.dtype is None and np.array_equal(without_gradients(model, x), outputs["bfloat16"])
    fourth = accelerate(model, check=x, dtype="float32")
    assert fourth.rounding.largest == 0 and np.array_equal(without_gradients(model, x), outputs["float32"])
    fourth.restore()
    assert np.array_equal(without_gradients(model, x), outputs["bfloat16"])
    first.restore()
    second.restore()
    assert type(model.rnn) is nn.LSTM and "_networks" not in vars(model.rnn)


@pytest.mark.parametrize(
    ("dtype", "error"), [("int4", ValueError), ("float64", ValueError), (torch.bfloat16, TypeError)]
)
def test_other_dtypes_are_refused(dtype, error):
    model, _ = made("torch.nn")
    with pytest.raises(error, match="dtype must be one of 'float32', 'bfloat16', 'int8', got"):
        accelerate(model, dtype=dtype)
    assert type(model.rnn) is nn.LSTM


class Equal(Model):
    """A model whose outputs react to any difference."""

    def forward(self, x):
        y = self.rnn(x)[0]
        if not hasattr(self, "exact"):
            self.exact = y.detach()
        near = (y - self.exact).abs() < 1e-5
        return y[near] if self.drops else y / near


@pytest.mark.parametrize("drops", [False, True])
def test_outputs_that_are_not_finite_or_of_other_shapes_restore_the_model(drops):
    model, x = Equal(made("torch.nn")[0].rnn).eval(), made("torch.nn")[1]
    model.drops = drops
    model(x)
    match = (
        r"dtype must keep the shapes .*\(4608,\)" if drops else "dtype must keep .* finite, .* with 'int8'"
    )
    with pytest.raises(ValueError, match=match):
        accelerate(model, check=x, dtype="int8")
    assert type(model.rnn) is nn.LSTM


class Partial(Model):
    """A model with NaN in its outputs."""

    def forward(self, x):
        y = self.rnn(x)[0].clone()
        y[0] = np.nan
        return y


def test_rounding_ignores_nan_that_was_there_before():
    model, x = made("torch.nn")
    want = accelerate(copy.deepcopy(model.rnn), check=x, dtype="int8").rounding
    rounding = accelerate(Partial(model.rnn).eval(), check=x, dtype="int8").rounding
    assert 0 < rounding.rms < rounding.largest <= want.largest and rounding.size > 0


def test_dropout_in_training_without_gradients():
    for name in ("subject to dropout", "lnrnn.torch"):
        model, x = made(name)
        model.rnn.dropout = 0.3
        model.train()
        outputs = []
        for dtype in ("float32", "int8"):
            accelerate(model, dtype=dtype)
            torch.manual_seed(0)
            outputs.append(without_gradients(model, x))
        difference = np.abs(outputs[0] - outputs[1])
        assert 0 < difference.max() < 0.1 and difference.mean() < 0.01
