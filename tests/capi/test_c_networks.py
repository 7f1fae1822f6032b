"""Networks of liblnrnn, from arrays or files, give whole sequences the bits of Python's calls."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from c_library import Array, Network, Refused, arrays_of, described, library
from networks import network, normal

LAYER, BATCH = lnrnn.LayerNormSpec, lnrnn.BatchNormSpec

# Networks of every cell, placement, policy of statistics, number of directions and type of weights.
NETWORKS = {
    "rnn": dict(cell="RNN"),
    "rnn relu, no norm": dict(cell="RNN", norm=None, nonlinearity="relu"),
    "rnn split": dict(cell="RNN", norm=LAYER(placement="split"), num_layers=2),
    "lstm": dict(cell="LSTM", num_layers=2, bidirectional=True),
    "lstm, no norm": dict(cell="LSTM", norm=None, bidirectional=True),
    "lstm reverse": dict(cell="LSTM", num_layers=2, reverse=True),
    "lstm, no bias": dict(cell="LSTM", bias=False),
    "lstm joint carry": dict(cell="LSTM", norm=LAYER(placement="joint", cell="carry", inner_bias=True)),
    "lstm gate": dict(cell="LSTM", norm=LAYER(placement="gate", cell=None)),
    "lstm projected": dict(cell="LSTM", num_layers=2, bidirectional=True, proj_size=9),
    "lstm projected, no norm": dict(cell="LSTM", norm=None, proj_size=20),
    "lstm projected last": dict(cell="LSTM", norm=BATCH(overrun="last"), num_layers=2, proj_size=4),
    "lstm inner": dict(cell="LSTM", norm=LAYER(inner_bias=True, eps=0.01)),
    "gru": dict(cell="GRU", num_layers=3),
    "gru, no norm": dict(cell="GRU", norm=None),
    "gru all": dict(cell="GRU", norm=LAYER(span="all")),
    "gru gate": dict(cell="GRU", norm=LAYER(placement="gate", inner_bias=True)),
    "gru reset": dict(cell="GRU", norm=LAYER(inner_bias=True), reset_after=False, num_layers=2),
    "gru reset, no norm": dict(cell="GRU", norm=None, reset_after=False),
    "gru reset last": dict(cell="GRU", norm=BATCH(overrun="last"), reset_after=False),
    "slstm": dict(cell="SLSTM", num_layers=2, bidirectional=True),
    "slstm, no norm": dict(cell="SLSTM", norm=None, exp_forget=True),
    "slstm bfloat16": dict(cell="SLSTM", state_dtype="bfloat16", bias=False),
    "rnn raise": dict(cell="RNN", norm=BATCH()),
    "lstm last": dict(cell="LSTM", norm=BATCH(overrun="last"), num_layers=2),
    "lstm heads": dict(cell="LSTM", num_heads=3, bidirectional=True),
    "gru heads": dict(cell="GRU", num_heads=7, norm=LAYER(placement="joint"), num_layers=2),
    "gru mean": dict(cell="GRU", norm=BATCH(overrun="mean", eps=0.1), bidirectional=True),
    "lstm batch": dict(cell="LSTM", norm=BATCH(overrun="batch", max_steps=12), bias=False),
}
LONG = {name: 14 if "raise" not in name else 9 for name in NETWORKS}


@pytest.fixture(scope="module")
def c():
    return library()


def both(rnn, x, *arguments, **options):
    """Returns y and the list of states of a call in Python."""
    y, state = rnn(x, *arguments, **options)
    return y, list(state) if isinstance(state, tuple) else [state]


def same(c, found, wanted):
    (y, state), (other, end) = found, wanted
    assert y.tobytes() == np.ascontiguousarray(other).tobytes()
    assert [s.tobytes() for s in state] == [s.tobytes() for s in end]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", NETWORKS)
def test_calls_have_the_bits_of_python(c, name, dtype, rng, tmp_path):
    rnn = network(3, 21, trained=9, **NETWORKS[name]).to_dtype(dtype)
    T, B = LONG[name], 5
    x, lengths = normal(rng, T, B, 3), rng.integers(0, T + 1, B)
    lengths[0] = T
    rnn.save(tmp_path / "model.safetensors")
    cells = 3 if name.startswith("slstm") else 1
    ours = (
        Network(c, described(rnn), rnn.state_dict(), cells),
        Network(c, tmp_path / "model.safetensors", cells=cells),
    )
    wanted = both(rnn, x, lengths=lengths)
    for net in ours:
        assert [net.size(n) for n in ("inputs", "units", "layers")] == [3, 21, rnn.num_layers]
        same(c, net(x, lengths=lengths), wanted)
    resets = rng.random((T, B)) < 0.2
    start = [normal(rng, *s.shape) for s in wanted[1]]
    h0 = start[0] if len(start) == 1 else tuple(start)
    for net in ours:
        same(c, net(x, start, lengths, resets), both(rnn, x, h0, lengths, resets))
        same(c, net(x, start, threads=1), both(rnn, x, h0))
        net.close()


@pytest.mark.parametrize("steps", [1, 7, 8, 9, 40, 129, 400])
def test_means_over_time_of_one_unit_have_numpys_bits(c, steps, rng):
    """NumPy adds a single column in another order than several columns."""
    rnn = network(2, 1, cell="RNN", norm=BATCH(overrun="mean"), trained=steps)
    x = normal(rng, steps + 3, 2, 2)
    net = Network(c, described(rnn), rnn.state_dict())
    same(c, net(x), both(rnn, x))
    net.close()


def test_batch_first_and_empty_calls(c, rng):
    rnn = network(3, 8, cell="LSTM", batch_first=True, bidirectional=True, num_layers=2)
    net = Network(c, described(rnn), rnn.state_dict())
    for shape in ((4, 6, 3), (1, 1, 3), (3, 0, 3), (0, 2, 3)):
        x = normal(rng, *shape)
        same(c, net(x, batch_first=True), both(rnn, x))
    net.close()


# --- wrong arguments ----------------------------------------------------------------------------------------


def refused(c, rnn, state, **changes):
    made = described(rnn)
    for name, value in changes.items():
        setattr(made, name, value)
    with pytest.raises(Refused) as error:
        Network(c, made, state)
    assert error.value.status == 4
    return str(error.value)


def test_wrong_arrays_are_named(c):
    rnn = network(3, 4, cell="LSTM", norm=BATCH(), trained=5)
    state = rnn.state_dict()

    def other(name, value):
        return state | {name: value}

    missing = {name: value for name, value in state.items() if name != "gain_c_l0"}
    assert refused(c, rnn, missing) == "gain_c_l0 must be float32 (4,), and is missing"
    wrong = other("weight_hh_l0", np.zeros((16, 5), np.float32))
    assert refused(c, rnn, wrong) == "weight_hh_l0 must be float32 (16, 4), got float32 (16, 5)"
    wrong = other("bias_l0", np.zeros(16))
    assert refused(c, rnn, wrong) == "bias_l0 must be float32 (16,), got float64 (16,)"
    wrong = other("bias_l0", np.zeros((16, 1, 1), np.float32))
    assert refused(c, rnn, wrong) == "bias_l0 must be float32 (16,), got float32 with 3 axes"
    wrong = other("bias_l0", np.zeros(16, np.int8))
    assert refused(c, rnn, wrong) == "bias_l0 must be float32 (16,), got another dtype (16,)"
    assert refused(c, rnn, other("bias_l1", np.zeros(3))) == "bias_l1 is no array of this network"
    wrong = other("count_l0", np.array([5, 5, 6, 0, 0]))
    assert "count_l0 must not rise" in refused(c, rnn, wrong)
    wrong = other("running_var_hh_l0", np.full((5, 16), -1.0))
    assert refused(c, rnn, wrong) == "running_var_hh_l0 must not be negative"
    wrong = other("running_mean_c_l0", np.zeros((4, 4)))
    assert refused(c, rnn, wrong) == "running_mean_c_l0 must be float64 (5, 4), got float64 (4, 4)"


def test_arrays_with_no_name_or_the_same_name_are_refused(c):
    rnn = network(3, 4)
    arrays = arrays_of(rnn.state_dict())
    doubled = (Array * (len(arrays) + 1))(*arrays, arrays[0])
    import ctypes

    from c_library import SIZE, P, checked

    for given, said in ((doubled, "weight_ih_l0 twice"), (doubled, "arrays[4] must have a name")):
        with pytest.raises(Refused, match=said.replace("[", r"\[")) as error:
            pointer = P()
            checked(
                c.lnrnn_network_create,
                ctypes.byref(described(rnn)),
                given,
                SIZE(len(given)),
                ctypes.byref(pointer),
            )
        assert error.value.status == 4
        given[4].name = None


@pytest.mark.parametrize("changes, said", [
    (dict(cell=3), "choice"), (dict(weights=-1), "choice"), (dict(overrun=9), "choice"),
    (dict(input_size=0), "input_size must be an integer of at least 1"),
    (dict(hidden_size=2**30), "hidden_size must be such that"),
    (dict(num_layers=2000), "num_layers must be an integer of at least 1 and at most 1024, got 2000"),
    (dict(eps=-1.0), "eps must be a finite number of at least 0, got -1"),
    (dict(eps=float("nan")), "eps must be a finite number"),
    (dict(cell=2, cell_norm=2), "cell must be"), (dict(span=1), "span must be"),
    (dict(proj_size=1), "proj_size must be 0 but in an LSTM, got 1"),
    (dict(cell=1, proj_size=4), "proj_size must be smaller than hidden_size 4, got 4"),
    (dict(cell=1, proj_size=2), "weight_ih_l0 must be float32 .16, 3.|weight_hh_l0 must be float32 .16, 2."),
    (dict(num_layers=2), "weight_ih_l1 must be float32 .4, 4., and is missing"),
    (dict(input_size=2), "weight_ih_l0 must be float32 .4, 2., got float32 .4, 3."),
    (dict(norm=0), "bias_ih_l0 must be"),
    (dict(num_heads=2), "num_heads must be 1 but in an LSTM, GRU or SLSTM, got 2"),
    (dict(num_heads=0), "num_heads must be an integer of at least 1"),
    (dict(cell=1, num_heads=3), "num_heads must be a divisor of hidden_size 4, got 3"),
    (dict(cell=1, num_heads=2), "weight_ih_l0 must be float32 .16, 3., got float32 .4, 3."),
])  # fmt: skip
def test_wrong_descriptions_are_refused(c, changes, said):
    import re

    rnn = network(3, 4)
    assert re.match(said, refused(c, rnn, rnn.state_dict(), **changes)) or said == "choice"


def test_wrong_files_are_refused(c, tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(Refused, match="No such file") as error:
        Network(c, path)
    assert error.value.status == 2
    path.write_bytes(b"abc")
    with pytest.raises(Refused) as error:
        Network(c, path)
    assert error.value.status == 4 and str(error.value)


def test_wrong_calls_are_refused(c, rng):
    rnn = network(3, 4, cell="GRU", norm=BATCH(), trained=5)
    net, x = Network(c, described(rnn), rnn.state_dict()), normal(rng, 6, 2, 3)
    with pytest.raises(Refused, match="sequence 0 has 6 steps, but statistics are known for 5 only") as error:
        net(x)
    assert error.value.status == 6
    for length in (-1, 7):
        with pytest.raises(
            Refused, match=rf"lengths\[1\] must be between 0 and the 6 steps of x, got {length}"
        ):
            net(x, lengths=np.array([2, length]))
    with pytest.raises(Refused, match="c0 must be NULL"):
        net(x[:5], [np.zeros((1, 2, 4), np.float32)] * 2)
    for threads in (-1, 1025):
        with pytest.raises(Refused, match=f"threads must be between 0 and 1024, got {threads}"):
            net(x[:5], threads=threads)
    same(c, net(x[:5]), both(rnn, x[:5]))
    net.close()


def test_a_network_of_another_instruction_set_is_refused(c, rng):
    names = lnrnn.cpu_info()["available"]
    if len(names) < 2:
        pytest.skip("this machine has one instruction set")
    rnn, x = network(3, 4), normal(rng, 2, 1, 3)
    net = Network(c, described(rnn), rnn.state_dict())
    own = lnrnn.cpu_info()["isa"]
    other = next(name for name in names if name != own)
    try:
        c.lnrnn_isa_use(other.encode())
        with pytest.raises(Refused, match=f"instruction set in use, {other}, got one of {own}"):
            net(x)
    finally:
        c.lnrnn_isa_use(own.encode())
    same(c, net(x), both(rnn, x))
    net.close()
