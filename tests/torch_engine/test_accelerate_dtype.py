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
X = torch.ones(T, T, I)


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
    difference = np.abs(np.append(want - y.detach().numpy(), want.mean() - mean.item()))
    found, (part,) = report.rounding, report.rounding.parts
    np.testing.assert_allclose(
        (found.whole.largest, found.whole.mean), (difference.max(), difference.mean()), 1e-2
    )
    assert (
        found.result is found.whole is found.parts[part] and part.startswith("rnn") and found.dtype == dtype
    )
    assert found.float32.largest < 2e-6 < 1e-5 < found.whole.mean < found.whole.largest < 0.2
    assert found.decisions == want[..., 0].size and found.numbers == want.size + 1 and found.whole.seconds > 0
    assert f"\n    all {dtype} " in repr(report)


class Decisions(nn.Module):
    """Three recurrent layers, and booleans. The first layer rounds badly."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.GRU(size, H) for size in (I, H, H))
        with torch.no_grad():
            for p in self.layers[0].parameters():
                p *= 3

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)[0]
        return x, x > 0.25


class Spectrum(nn.Module):
    def forward(self, given):
        return torch.fft.rfft(given[0])


def test_complex_numbers_are_two_numbers():
    model, x = nn.Sequential(nn.GRU(I, H), Spectrum()), torch.randn(9, T, I)
    with torch.no_grad():
        exact = torch.view_as_real(model(x))
        found = accelerate(model, check=x, dtype="int8").rounding
        difference = (torch.view_as_real(model(x)) - exact).abs().max()
    assert (
        found.whole.largest == pytest.approx(difference.item(), abs=2e-6) and found.numbers == exact.numel()
    )


def test_a_tolerance_keeps_the_fewest_modules_in_float32():
    torch.manual_seed(0)
    model, x = Decisions().eval(), torch.randn(60, T, I)
    plain = copy.deepcopy(model)
    exact = plain(x)
    found = accelerate(model, check=x, dtype="int8", threshold=0.1).rounding
    with torch.no_grad():
        short = model(x)
    assert found.whole.sides == ((exact[0] > 0.1) != (short[0] > 0.1)).sum() > 0
    changed = (exact[0].argmax(-1) != short[0].argmax(-1)).sum() + (exact[1] != short[1]).sum()
    assert found.whole.decisions == changed > 0 and found.decisions == 60 * T * (1 + H)
    assert max(found.parts, key=lambda name: found.parts[name].largest) == "layers.0"
    tolerance = 0.9 * found.whole.largest
    report = accelerate(plain, check=x, dtype="int8", tolerance=tolerance)
    assert report.rounding.kept == ("layers.0",) and 0 < report.rounding.result.largest <= tolerance
    with torch.no_grad():
        assert (plain(x)[0] - exact[0]).abs().max() == pytest.approx(report.rounding.result.largest, abs=2e-6)
        report.restore()
        assert torch.equal(plain(x)[0], exact[0])
    with pytest.warns(UserWarning, match="every part exceeds tolerance=.* so all are in float32") as said:
        report = accelerate(plain, check=x, dtype="int8", tolerance=1.01 * found.float32.largest)
    assert said[0].filename == __file__ and len(report.rounding.kept) == 3


@pytest.mark.parametrize(
    "arguments, error, match",
    [({"check": True, "dtype": "int8"}, TypeError, "check must be .* give an input like the model's own"),
     ({"check": X, "dtype": "int8", "tolerance": 0.0}, ValueError, "tolerance must be at least"),
     ({"check": X, "tolerance": 1.0}, ValueError, "dtype must be given with tolerance"),
     ({"dtype": "int8", "tolerance": 1.0}, ValueError, "check must be given with tolerance or")],
)  # fmt: skip
def test_wrong_checks_are_named_and_change_nothing(arguments, error, match):
    model, _ = made("torch.nn")
    with pytest.raises(error, match=match):
        accelerate(model, **arguments)
    assert type(model.rnn) is nn.LSTM


def test_dtypes_are_set_and_restored_in_turn():
    model, x = made("torch.nn")
    outputs = {dtype: expected(model, x, dtype) for dtype in ("float32", "bfloat16", "int8")}
    first = accelerate(model, dtype="int8")
    second = accelerate(model, check=x, dtype="bfloat16")
    assert second.left == [("rnn", "lnrnn computes it already")]
    assert second.rounding.whole.largest == pytest.approx(
        abs(outputs["bfloat16"] - outputs["float32"]).max(), 1e-4
    )
    assert np.array_equal(without_gradients(model, x), outputs["bfloat16"])
    third = accelerate(model)  # changes no dtype
    assert third.dtype is None and np.array_equal(without_gradients(model, x), outputs["bfloat16"])
    fourth = accelerate(model, check=x, dtype="float32")
    assert fourth.rounding.whole.largest == 0 and np.array_equal(
        without_gradients(model, x), outputs["float32"]
    )
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
        r"dtype must be one that keeps the shapes .*\(4608,\)" if drops else "keeps .* finite, .* with 'int8'"
    )
    with pytest.raises(ValueError, match=match):
        accelerate(model, check=x, dtype="int8")
    assert type(model.rnn) is nn.LSTM


class Partial(Model):
    """A model with one other number in all places of the first step."""

    def forward(self, x):
        y = self.rnn(x)[0].clone()
        y[0] = self.number
        return y


def test_infinity_may_stay_and_nan_is_refused():
    model, x = made("torch.nn")
    want = accelerate(copy.deepcopy(model.rnn), check=x, dtype="int8").rounding.whole
    model = Partial(model.rnn).eval()
    model.number = -np.inf
    report = accelerate(model, check=x, dtype="int8")
    assert 0 < report.rounding.whole.mean < report.rounding.whole.largest <= want.largest
    report.restore()
    model.number = np.nan
    with pytest.raises(
        ValueError, match="no output is NaN, got NaN in output 0 of 1, .* like the model's own"
    ):
        accelerate(model, check=x, dtype="int8")
    assert type(model.rnn) is nn.LSTM


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
