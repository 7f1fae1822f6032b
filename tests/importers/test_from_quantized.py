"""Tests from_torch on modules that torch.ao has quantised."""

from __future__ import annotations

import io
import warnings
from contextlib import contextmanager

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic  # noqa: E402

I, H = 5, 12  # noqa: E741 - the letters of the shapes in the documentation
MODULES = {
    "LSTM": lambda: nn.LSTM(I, H, 2, bidirectional=True, batch_first=True),
    "GRU": lambda: nn.GRU(I, H, 3),
    "LSTMCell": lambda: nn.LSTMCell(I, H),
    "GRUCell": lambda: nn.GRUCell(I, H),
    "RNNCell": lambda: nn.RNNCell(I, H, nonlinearity="relu"),
}
DEPRECATED = [
    (DeprecationWarning, "torch.ao.quantization is deprecated"),
    (UserWarning, "torch.quantize_per_tensor, torch.quantize_per_channel .* are deprecated"),
    (UserWarning, "TypedStorage is deprecated"),
    (UserWarning, "Please use quant_min and quant_max"),
    (UserWarning, "All inputs of this cat operator must share"),
]


@contextmanager
def deprecated():
    with warnings.catch_warnings():
        for category, message in DEPRECATED:
            warnings.filterwarnings("ignore", message, category)
        yield


def quantized(module, dtype=torch.qint8, engine=None):
    """Returns the module after quantize_dynamic. dtype "rows": int8 with a scale for each output."""
    torch.manual_seed(0)
    module = module()
    own, before = type(module), torch.backends.quantized.engine
    rows = {own: per_channel_dynamic_qconfig}
    with deprecated():
        try:
            torch.backends.quantized.engine = engine or before
            if dtype == "rows":
                return quantize_dynamic(nn.ModuleList([module]), rows)[0]
            return quantize_dynamic(nn.ModuleList([module]), {own}, dtype)[0]
        finally:
            torch.backends.quantized.engine = before


def weights(module):
    """Returns the quantised tensors of a module by lnrnn's names."""
    return {name if "_l" in name else f"{name}_l0": w for name, w in module.get_weight().items()}


def integers(rnn, name):
    """Returns the integers of packed int8 weights, by outputs for one-hot inputs of a linear network."""
    w = getattr(rnn, name)
    linear = lnrnn.RNN(w.shape[1], len(w), norm=None, nonlinearity="identity", bias=False).to_dtype("int8")
    linear.weight_ih_l0 = w
    return linear(np.eye(w.shape[1])[None])[0][0].T


@pytest.mark.parametrize("dtype", [torch.qint8, "rows", torch.float16])
@pytest.mark.parametrize("name", MODULES)
def test_quantized_modules_keep_their_weights(rng, name, dtype):
    module = quantized(MODULES[name], dtype)
    assert type(module).__module__.startswith("torch.ao.nn.quantized.dynamic")
    rnn = lnrnn.from_torch(module)
    floats = MODULES[name]()
    assert rnn.input_size == I and rnn.bidirectional == (name == "LSTM") == rnn.batch_first
    floats.load_state_dict(
        {k: torch.tensor(rnn.state_dict()[k if "_l" in k else f"{k}_l0"]) for k in floats.state_dict()}
    )
    x = torch.tensor(rng.standard_normal((3, 4, I), dtype=np.float32))
    small = rnn.to_dtype("int8")
    with torch.no_grad():
        if "Cell" in name:
            got, want, theirs = (
                np.asarray(part) for part in (rnn(x[:1])[0][0], *map(first, (floats(x[0]), module(x[0]))))
            )
            kept = small(x[:1])[0][0]
        else:
            got, want, theirs = rnn(x)[0], floats(x)[0].numpy(), module(x)[0].numpy()
            kept = small(x)[0]
    assert absolute_error(got, want) < 1e-6
    assert absolute_error(got, theirs) < (5e-7 if dtype is torch.float16 else 0.03)
    if dtype is torch.float16:
        assert all(np.array_equal(w.numpy(), getattr(rnn, key)) for key, w in weights(module).items())
        return
    assert absolute_error(kept, got) < 1e-4  # only x and h are rounded
    for key, w in weights(module).items():
        scale = w.q_scale() if dtype is torch.qint8 else w.q_per_channel_scales().numpy()[:, None]
        assert np.array_equal(np.rint(integers(rnn, key) / scale), w.int_repr().numpy())
        np.testing.assert_allclose(integers(rnn, key), w.int_repr().numpy() * scale, rtol=2**-21)


def first(result):
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("engine", torch.backends.quantized.supported_engines)
def test_a_state_dict_of_every_engine_is_read(engine):
    if engine == "none":
        pytest.skip("no engine")
    for name, nonlinearity in (("LSTM", None), ("GRU", None), ("GRUCell", None), ("RNNCell", "relu")):
        module = quantized(MODULES[name], engine=engine)
        file = io.BytesIO()
        torch.save(nn.ModuleDict({"rnn": module}).state_dict(), file)
        file.seek(0)
        with deprecated():
            state = torch.load(file, weights_only=False)
        first_of_file = lnrnn.from_torch(
            state, prefix="rnn.", nonlinearity=nonlinearity, batch_first=name == "LSTM"
        )
        want = lnrnn.from_torch(module)
        assert repr(first_of_file) == repr(want)
        for key, value in want.state_dict().items():
            assert np.array_equal(first_of_file.state_dict()[key], value)


def test_static_quantisation_is_refused():
    with deprecated():
        module = torch.ao.nn.quantizable.LSTM(I, H)
    with pytest.raises(ValueError, match="no known cell has the parameter names layer_fw.cell.hgates"):
        lnrnn.from_torch(module.state_dict())


def test_directions_that_a_state_dict_does_not_show():
    for layers, both in ((1, True), (2, False), (2, True), (3, False)):
        module = quantized(lambda layers=layers, both=both: nn.LSTM(H, H, layers, bidirectional=both))
        if layers + both == 2:
            with pytest.raises(ValueError, match="must be the module, because .* 12 inputs and 12 units"):
                lnrnn.from_torch(module.state_dict())
        else:
            read = lnrnn.from_torch(module.state_dict())
            assert (read.num_layers, read.bidirectional) == (layers, both)
        read = lnrnn.from_torch(module)
        assert (read.num_layers, read.bidirectional) == (layers, both)


def test_a_model_with_a_quantized_part_is_refused_with_its_name():
    model = nn.ModuleDict({"rnn": quantized(MODULES["LSTM"]), "out": nn.Linear(H, 2)})
    with pytest.raises(ValueError, match=r"from_torch can convert a part of it: give model.rnn"):
        lnrnn.from_torch(model)
    square = nn.ModuleDict({"rnn": quantized(lambda: nn.LSTM(H, H, 2)), "out": nn.Linear(H, 2)})
    for each in (model, square):
        with pytest.raises(ValueError, match=r"give prefix='rnn.'"):
            lnrnn.from_torch(each.state_dict())


def test_other_values_under_the_names_of_packed_weights():
    with pytest.raises(ValueError, match="no known cell has the parameter names .*packed_weight_ih"):
        lnrnn.from_torch({"_packed_weight_ih": np.zeros((4, 3)), "_packed_weight_hh": np.zeros((4, 4))})


def test_check_runs_only_modules_that_do_not_round_their_inputs():
    x = np.ones((4, 3, I), np.float32)
    lnrnn.from_torch(quantized(MODULES["GRU"], torch.float16), check=x)
    for name in ("GRU", "LSTMCell"):
        with pytest.raises(ValueError, match="check must be None or False with a module that rounds x and h"):
            lnrnn.from_torch(quantized(MODULES[name]), check=True)


def test_a_cell_without_biases():
    with deprecated():
        module = torch.ao.nn.quantized.dynamic.GRUCell(I, H, bias=False)
    rnn = lnrnn.from_torch(module)
    assert not rnn.bias and np.array_equal(rnn.weight_hh_l0, module.get_weight()["weight_hh"].dequantize())


def test_other_quantized_tensors_and_triples(rng):
    """A zero point keeps the grid exact, which dequantize() of torch may not."""
    q, scale, zero = rng.integers(-128, 90, (4 * H, I)).astype(np.int8), 0.0123, -17
    with deprecated():
        tensor = torch._make_per_tensor_quantized_tensor(torch.from_numpy(q), scale, zero)
        columns = torch.quantize_per_channel(
            torch.ones(4 * H, I), torch.ones(I), torch.zeros(I), 1, torch.qint8
        )
    rest = {"weight_hh_l0": rng.standard_normal((4 * H, H))}
    want = (q.astype(np.float32) + np.float32(17)) * np.float32(scale)
    for value in (tensor, (q, scale, zero)):
        assert np.array_equal(lnrnn.from_torch({"weight_ih_l0": value} | rest).weight_ih_l0, want)
    with pytest.raises(ValueError, match="quantisation of weight_ih_l0 must be along axis 0, got axis 1"):
        lnrnn.from_torch({"weight_ih_l0": columns} | rest)
    with pytest.raises(ValueError, match="scale of weight_ih_l0 must be from"):
        lnrnn.from_torch({"weight_ih_l0": (q, 0.0, zero)} | rest)
