"""Networks are created and called as in torch.nn.

Tests the order of arguments, dropout, initial values, and the errors for arguments of torch that have another
name here or do not exist.
"""

from __future__ import annotations

import importlib
import pickle

import numpy as np
import pytest

import lnrnn
from lnrnn.rnn.cells import CELLS
from networks import each_cell, same

x = np.random.default_rng(0).standard_normal((6, 2, 3), dtype=np.float32)


torchs_cells = pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU"])


@pytest.fixture(params=["lnrnn", "lnrnn.torch"])
def module(request):
    if request.param == "lnrnn.torch":
        pytest.importorskip("torch")
    return importlib.import_module(request.param)


def positional(cell):
    """Returns every positional argument of torch.nn by name, with a value that is not the default."""
    first = {"input_size": 3, "hidden_size": 4, "num_layers": 2}
    own = {"nonlinearity": "relu"} if cell in ("RNN", "LiGRU") else {}
    return first | own | {"bias": False, "batch_first": True, "dropout": 0.25, "bidirectional": True}


@torchs_cells
def test_positional_arguments_are_those_of_torch(cell):
    torch = pytest.importorskip("torch")
    arguments = positional(cell)
    theirs = getattr(torch.nn, cell)(*arguments.values())
    for ours in (getattr(lnrnn, cell), getattr(lnrnn.torch, cell)):
        network = ours(*arguments.values(), norm=None)
        for name in arguments:
            assert getattr(network, name) == getattr(theirs, name), name


@each_cell
def test_rng_draws_the_numbers_of_its_seed_and_continues(cell):
    make = getattr(lnrnn, cell)
    rng = np.random.default_rng(7)
    by_seed, first, second = make(3, 4, seed=7), make(3, 4, rng=rng), make(3, 4, rng=rng)
    same(first.weight_hh_l0, by_seed.weight_hh_l0)
    assert not np.array_equal(second.weight_hh_l0, first.weight_hh_l0)
    pytest.importorskip("torch")
    twin = getattr(lnrnn.torch, cell)(3, 4, rng=np.random.default_rng(7))
    same(twin.weight_hh_l0.detach().numpy(), by_seed.weight_hh_l0)


@each_cell
def test_dropout_only_acts_in_training_and_equals_the_argument_of_forward_train(cell):
    make = getattr(lnrnn, cell)
    plain, rnn = make(3, 4, 3, seed=0), make(3, 4, 3, dropout=0.5, seed=0)
    kept, _ = plain(x)
    same(rnn(x)[0], kept)
    stream = rnn.stream(2)
    same(np.stack([stream(x_t) for x_t in x]), kept)
    dropped = rnn.forward_train(x, seed=1)[0]
    same(dropped, plain.forward_train(x, dropout=0.5, seed=1)[0])
    assert not np.array_equal(dropped, kept)
    same(rnn.forward_train(x, dropout=0)[0], kept)
    state = rnn.stream().get_state()
    rnn.dropout = 0
    same(rnn.forward_train(x)[0], kept)
    rnn.stream().set_state(None, state)  # streams ignore dropout
    assert "dropout" not in repr(rnn)


def test_dropout_of_one_layer_warns_once_and_drops_nothing():
    with pytest.warns(UserWarning, match="dropout=0.5 has no effect with num_layers=1"):
        rnn = lnrnn.GRU(3, 4, dropout=0.5, seed=0)
    same(rnn.forward_train(x)[0], rnn(x)[0])


@torchs_cells
def test_from_torch_keeps_the_dropout_of_a_module(cell):
    torch = pytest.importorskip("torch")
    for make in (getattr(lnrnn.torch, cell), getattr(torch.nn, cell)):
        assert lnrnn.from_torch(make(3, 4, 2, dropout=0.25)).dropout == 0.25
        assert lnrnn.from_torch(make(3, 4, 2)).dropout == 0
        with pytest.warns(UserWarning, match="dropout"):
            one = make(3, 4, dropout=0.25)
        assert lnrnn.from_torch(one).dropout == 0


@each_cell
def test_repr_shows_the_overrun_policy(cell, module):
    rnn = getattr(module, cell)(3, 4, norm=lnrnn.BatchNormSpec(5, eps=0.25))
    rnn.overrun = "last"
    assert rnn.norm == lnrnn.BatchNormSpec(5, "last", eps=0.25)
    assert "overrun='last'" in repr(rnn)
    assert pickle.loads(pickle.dumps(rnn)).norm.overrun == "last"
    if module is lnrnn:
        with pytest.raises(AttributeError):
            rnn.norm = None


@pytest.mark.parametrize(
    "call",
    [
        "LSTM(3, 4, norm='layer')",
        "GRU(3, 4, num_layers=2, bidirectional=True, norm=None)",
        "RNN(3, 4, nonlinearity='relu', bias=False, batch_first=True, norm='rms')",
        "SLSTM(3, 4, norm='layer', num_heads=2)",
        "LSTM(3, 4, bias=False, norm=LayerNormSpec(placement='joint', eps=0.5), proj_size=2)",
        "LiGRU(3, 4, nonlinearity='relu', norm=RMSNormSpec(placement='input', cell=None, bias=True))",
        "GRU(3, 4, num_layers=2, norm=BatchNormSpec(max_steps=5, overrun='last'), dropout=0.5)",
    ],
)
def test_the_repr_of_a_network_is_the_call_that_creates_it(call, module):
    cells = {name: getattr(module, name) for name in CELLS}
    rnn = eval(call, {**vars(lnrnn), **cells})
    assert repr(rnn) == call and eval(repr(rnn), {**vars(lnrnn), **cells}).norm == rnn.norm
    if module is lnrnn:
        assert rnn.bidirectional or f"Stream({call}, lanes=2" in repr(rnn.stream(2))
        assert repr(rnn.to_dtype("bfloat16")).replace("dtype='bfloat16', ", "").startswith(call[:-1])


@pytest.mark.parametrize("norm", ["layer", lnrnn.BatchNormSpec(5), "rms", None])
@each_cell
def test_num_parameters_counts_weights_biases_and_gains_but_no_statistics(cell, norm):
    if cell != "SLSTM" or norm in ("layer", None):
        rnn = getattr(lnrnn, cell)(3, 4, 2, norm=norm)
        assert rnn.num_parameters == sum(value.size for value in rnn.parameters().values())


BATCH = "BatchNormSpec(max_steps=2, overrun='last')"


@pytest.mark.parametrize(("norm", "kind"), [("layer", "'layer'"), (None, None), ("batch", BATCH)])
def test_streams_and_states_are_shown_on_one_line(norm, kind):
    norm = lnrnn.BatchNormSpec(2, "last") if norm == "batch" else norm
    stream = lnrnn.LSTM(3, 4, 2, norm=norm).stream(1000)
    stream.steps_done = np.arange(1000) % 7
    network = f"LSTM(3, 4, num_layers=2, norm={kind})"
    assert repr(stream) == f"Stream({network}, lanes=1000, steps_done=0..6)"
    state = stream.get_state([3, 10])
    assert repr(state) == f"StreamState(lanes=2, steps_done=3, fingerprint={state.fingerprint[:8]!r}...)"
    assert repr(stream.get_state([])).startswith("StreamState(lanes=0, steps_done=(), ")
    rnn = lnrnn.LSTM(3, 4, 2, norm=norm)
    for x in (np.ones((2, 5, 3)), np.ones((2, 3))):
        tape = rnn.forward_train(x)[2]
        wanted = (
            f"Tape({network}, steps=2, batch_size={x.shape[1] if x.ndim == 3 else 1}, nbytes={tape.nbytes})"
        )
        assert repr(tape) == wanted
