"""Compares the modules of lnrnn.torch with the reference in float64, and with lnrnn's classes in float32."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest

import lnrnn
from helpers import absolute_error
from importing import through_reference
from lnrnn.importers.torch_weights import convert_torch

torch = pytest.importorskip("torch")

from torch_twins import (  # noqa: E402
    CELLS,
    HEADED,
    LENGTHS,
    NETWORKS,
    B,
    Batch,
    H,
    I,
    Layer,
    T,
    class_of,
    compare,
    inputs,
    tensors,
    twin,
)  # fmt: skip

torch.set_num_threads(1)  # small operations take longer on several threads


@pytest.mark.parametrize("options", [{"num_layers": 2, "bidirectional": True}, {"bias": False}], ids=str)
@pytest.mark.parametrize(("cell", "norm"), NETWORKS, ids=str)
def test_modules_equal_the_reference_in_float64(rng, cell, norm, options):
    module = twin(cell, norm, steps=T, dtype=torch.float64, **options)
    x, states = inputs(rng, module)
    given = tensors(x, states, torch.float64)
    for lengths in (None, LENGTHS):
        y, end = module(*given, lengths)
        want = through_reference(convert_torch(module), x, states, lengths)
        compare((y, end), (want[0], want[1] if len(want[1]) > 1 else want[1][0]), 1e-12)


@pytest.mark.parametrize(("cell", "norm"), HEADED, ids=str)
def test_heads_equal_the_reference(rng, cell, norm):
    options = {"num_layers": 2, "bidirectional": True, "num_heads": 3}
    test_modules_equal_the_reference_in_float64(rng, cell, norm, options)


@pytest.mark.parametrize("cell", CELLS)
def test_one_sequence_without_a_batch(rng, cell):
    module = twin(cell, num_layers=2, bidirectional=True)
    x, states = tensors(*inputs(rng, module, 1), torch.float32)
    alone = tuple(s[:, 0] for s in states) if cell == "LSTM" else states[:, 0]
    y, end = module(x, states)
    end = tuple(e[:, 0] for e in end) if cell == "LSTM" else end[:, 0]
    compare(module(x[:, 0], alone), (y[:, 0], end), 1e-6)
    compare(module(x[:, 0], alone, 3), lnrnn.from_torch(module)(x[:, 0], alone, 3), 1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_seeds_give_the_initial_values_of_lnrnn(cell):
    for norm in ("layer", "batch", None):
        served = getattr(lnrnn, cell)(I, H, 2, norm=norm, seed=3)
        module = getattr(lnrnn.torch, cell)(I, H, 2, norm=norm, seed=3)
        assert [*dict(module.named_parameters())] == [*served.parameters()]
        for name, value in served.state_dict().items():
            np.testing.assert_array_equal(module.state_dict()[name].numpy(), value)
    torch.manual_seed(1)
    one, two = (getattr(lnrnn.torch, cell)(I, H).weight_hh_l0 for _ in range(2))
    assert not torch.equal(one, two)
    torch.manual_seed(1)
    assert torch.equal(one, getattr(lnrnn.torch, cell)(I, H).weight_hh_l0)


@pytest.mark.parametrize("cell", CELLS)
def test_padding_is_not_read(rng, cell):
    for norm in ("layer", "batch"):
        module = twin(cell, norm, steps=T, num_layers=2, bidirectional=True)
        x = torch.randn(T, B, I)
        y, _ = module(x, lengths=LENGTHS)
        for b, n in enumerate(LENGTHS):
            x[n:, b] = torch.nan
        again, _ = module.train()(x, lengths=LENGTHS) if norm == "layer" else module(x, lengths=LENGTHS)
        assert torch.equal(y, again) and torch.equal(y[4:, 0], torch.zeros(3, 2 * H))
        again.sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in module.parameters())


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("cell", CELLS)
def test_training_uses_the_batch_and_learns_from_it(rng, cell, momentum):
    options = {"dtype": torch.float64, "num_layers": 2, "bidirectional": True}
    module = twin(cell, Batch(momentum=momentum), **options).train()
    x, states = inputs(rng, module)
    want = through_reference(convert_torch(module), x, states, LENGTHS, training=True)
    y, end = module(*tensors(x, states, torch.float64), LENGTHS)
    compare((y, end), (want[0], want[1] if "LSTM" in cell else want[1][0]), 1e-10)
    assert module.known_steps == T and module.count_l1_reverse.tolist() == [3, 2, 2, 2, 1, 1, 1]


@pytest.mark.parametrize("momentum", [0.1, 0.0, 1.0, None])
def test_running_statistics_are_those_of_forward_train(rng, momentum):
    options = {"num_layers": 2, "norm": Batch(momentum=momentum), "bidirectional": True, "seed": 2}
    served, module = lnrnn.RNN(I, H, **options), lnrnn.torch.RNN(I, H, dtype=torch.float64, **options)
    for steps in (3, T, 2):
        x = rng.standard_normal((steps, 32, I)).astype(np.float32)
        lengths = rng.integers(0, steps + 1, 32)
        lengths[:16] = steps  # with few sequences a variance may be tiny, which amplifies errors
        served.forward_train(x, lengths=lengths)
        module(torch.from_numpy(x).double(), lengths=lengths)
    state = module.state_dict()
    for name, value in served.state_dict().items():
        assert absolute_error(state[name].numpy(), value) < 1e-5, name


@pytest.mark.parametrize("overrun", ["raise", "last", "mean", "batch"])
@pytest.mark.parametrize("cell", CELLS)
def test_overrun_policies_equal_those_of_lnrnn(rng, cell, overrun):
    module = twin(cell, Batch(), steps=T - 3)
    module.overrun = overrun
    served = lnrnn.from_torch(module)
    assert served.overrun == overrun and served.known_steps == module.known_steps == T - 3
    x = torch.randn(T, 8, I)
    if overrun == "raise":
        for network in (module, served):
            with pytest.raises(lnrnn.SequenceTooLongError, match="sequence 0 has 7 steps") as error:
                network(x)
            assert (error.value.sequence, error.value.length, error.value.known_steps) == (0, T, T - 3)
        compare(module(x[:4]), served(x[:4]), 1e-5)
    else:
        compare(module(x), served(x), 1e-5)


def test_max_steps_limits_the_steps():
    module = lnrnn.torch.GRU(I, H, norm=Batch(4))
    assert module.running_mean_ih_l0.shape == (4, 3 * H)
    with pytest.raises(lnrnn.SequenceTooLongError, match="max_steps"):
        module(torch.randn(5, B, I))
    module(torch.randn(3, B, I))
    assert module.running_mean_ih_l0.shape == (4, 3 * H) and module.known_steps == 3


def test_evaluation_learns_nothing():
    module = twin("LSTM", "batch", steps=T)
    before = copy.deepcopy(module.state_dict())
    module(torch.randn(3, B, I))
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize(
    ("cell", "norm"),
    [*((c, n) for c in CELLS for n in (None, "layer", "batch")),
     ("LSTM", Layer("gate", "carry", inner_bias=True)),
     ("GRU", Layer("gate")), ("GRU", Layer("joint")), ("LSTM", Layer("joint", None))],
)  # fmt: skip
def test_gradients_pass_gradcheck(cell, norm):
    module = getattr(lnrnn.torch, cell)(2, 3, norm=norm, bidirectional=True, seed=1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    h0 = tuple(torch.randn(2, 4, 3, dtype=torch.float64, generator=generator, requires_grad=True)
               for _ in range(2 if cell == "LSTM" else 1))  # fmt: skip
    names, values = zip(*module.named_parameters(), strict=True)

    def outputs(x, *rest):
        state, parameters = rest[: len(h0)], dict(zip(names, rest[len(h0) :], strict=True))
        state = state if len(state) == 2 else state[0]
        y, end = torch.func.functional_call(module, parameters, (x, state, [3, 1, 2, 3]))
        return y, *(end if isinstance(end, tuple) else (end,))

    # fast_mode=True checks random directions only.
    assert torch.autograd.gradcheck(outputs, (x, *h0, *values), eps=1e-6, atol=1e-5, fast_mode=True)


@pytest.mark.parametrize(("cell", "norm"), NETWORKS, ids=str)
def test_a_state_dict_loads_in_torch_and_in_lnrnn(cell, norm):
    module = twin(cell, norm, steps=T, num_layers=2, bidirectional=True)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    name, options = class_of(cell)
    other = getattr(lnrnn.torch, name)(I, H, 2, norm=norm, bidirectional=True, seed=9, **options).eval()
    other.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randn(T, B, I)
    assert torch.equal(module(x)[0], other(x)[0])
    served = getattr(lnrnn, name)(I, H, 2, norm=norm, bidirectional=True, **options)
    served.load_state_dict(module.state_dict())
    compare(served(x), other(x), 1e-5)
    other = getattr(lnrnn.torch, name)(I, H, 2, norm=norm, bidirectional=True, seed=8, **options).eval()
    assert other.load_state_dict(served.state_dict()) == ([], [])  # arrays
    assert torch.equal(module(x)[0], other(x)[0])
    if cell == "SLSTM" or {"gate_activation", "reset_after"} & {*options} or cell == "GRU relu":
        return  # from_torch knows the module; a state dict does not have its heads, or these options
    extra = {"norm": module.norm} if norm is not None else {}
    if cell in ("RNN", "LiGRU"):
        extra["nonlinearity"] = module.nonlinearity
    again = lnrnn.from_torch(module.state_dict(), **extra)
    compare(again(x), served(x), 1e-9)


def test_a_network_becomes_a_module_of_its_own():
    """tests/conformance compares the results of all networks."""
    network = lnrnn.RNN(I, H, 2, "relu", dropout=0.25, seed=4)
    before, weight = torch.random.get_rng_state(), network.weight_hh_l0.copy()
    module = lnrnn.torch.from_network(network)
    assert torch.equal(before, torch.random.get_rng_state()) and module.training and module.dropout == 0.25
    with torch.no_grad():
        module.weight_hh_l0.zero_()
    assert np.array_equal(network.weight_hh_l0, weight)


def test_copies_dtypes_and_repr():
    module = twin("LSTM", "batch", steps=T)
    x = torch.randn(T, B, I)
    assert torch.equal(copy.deepcopy(module)(x)[0], module(x)[0])
    double = copy.deepcopy(module).double()
    assert double.running_mean_c_l0.dtype == torch.float64 and double.count_l0.dtype == torch.int64
    compare(double(x.double()), module(x), 1e-5)
    half = twin("GRU").bfloat16()
    assert half(x.bfloat16())[0].dtype == torch.bfloat16
    np.testing.assert_array_equal(
        lnrnn.from_torch(half).weight_hh_l0, half.weight_hh_l0.detach().float().numpy()
    )
    assert repr(twin("GRU", bias=False)) == "GRU(3, 12, bias=False, norm='layer')"


def test_modules_accept_a_device_and_load_as_parts_of_a_model():
    assert lnrnn.torch.LSTM(I, H, device="meta").weight_hh_l0.is_meta
    model, other = (torch.nn.ModuleDict({"rnn": lnrnn.torch.LSTM(I, H, norm="batch")}) for _ in range(2))
    model["rnn"](torch.randn(T, B, I))
    other.load_state_dict(model.state_dict())
    assert other["rnn"].known_steps == T
    state = lnrnn.from_torch(model["rnn"]).state_dict()
    arrays = {f"rnn.{n}": v[::-1].astype(v.dtype.newbyteorder(">"))[::-1] for n, v in state.items()}
    arrays["rnn.weight_ih_l0"] = state["weight_ih_l0"].copy()
    other = torch.nn.ModuleDict({"rnn": lnrnn.torch.LSTM(I, H, norm="batch", device="meta")})
    other.load_state_dict(arrays | {"out.bias": 1}, strict=False, assign=True)
    arrays.pop("rnn.weight_ih_l0")[:] = 0  # modules have copies
    for name, value in other["rnn"].state_dict().items():
        np.testing.assert_array_equal(value.numpy(), state[name], strict=not name.startswith("running"))
    with pytest.raises(TypeError, match="rnn.weight_ih_l0 must be an array of real numbers"):
        other.load_state_dict(arrays | {"rnn.weight_ih_l0": np.array(["a"])})
    unknown = arrays | {"rnn.meta": np.array(["a"])}
    assert other.load_state_dict(unknown, strict=False)[1] == ["rnn.meta"]
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "rnn.meta"'):
        other.load_state_dict(unknown)
