"""Networks of liblnrnn: errors of descriptions, arrays, files and calls. tests/conformance tests results."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from c_library import Network, Refused, described, library
from networks import equal, network, normal, sparse, whole

BATCH = lnrnn.BatchNormSpec


@pytest.fixture(scope="module")
def c():
    return library()


def same(rnn, net, x):
    y, ends = net(x)
    equal(rnn, (y, whole(rnn, ends)), rnn(x))


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("steps", [1, 7, 8, 9, 40, 129, 400])
def test_means_over_time_have_numpys_bits(c, steps, units, rng):
    """NumPy adds a single column in another order than several columns."""
    rnn = network(2, units, cell="RNN", norm=BATCH(overrun="mean"), trained=steps)
    x = normal(rng, steps + 3, 2, 2)
    net = Network(c, described(rnn), rnn.state_dict())
    same(rnn, net, x)
    net.close()
    means = {
        name: np.concatenate([v[:steps], np.tile(v[:steps].mean(0), (3, *[1] * (v.ndim - 1)))]) if "_mean" in
        name or "_var" in name else v[:1].repeat(steps + 3) if "count" in name else v
        for name, v in rnn.state_dict().items()
    }  # fmt: skip
    whole = network(2, units, cell="RNN", norm=BATCH(max_steps=steps + 3))
    whole.load_state_dict(means)
    equal(rnn, rnn(x), whole(x))


def test_statistics_of_the_batch_after_the_known_steps(c, rng):
    rnn = network(3, 8, cell="LSTM", norm=BATCH(overrun="batch", max_steps=12), bias=False, trained=9)
    net = Network(c, described(rnn), rnn.state_dict())
    same(rnn, net, normal(rng, 14, 5, 3))
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
    assert refused(c, rnn, other("bias_l1", np.zeros(3))) == "bias_l1 is not an array of this network"
    wrong = other("count_l0", np.array([5, 5, 6, 0, 0]))
    assert "count_l0 must not rise" in refused(c, rnn, wrong)
    wrong = other("running_var_hh_l0", np.full((5, 16), -1.0))
    assert refused(c, rnn, wrong) == "running_var_hh_l0 must be at least 0, got -1"
    wrong = other("running_mean_c_l0", np.zeros((4, 4)))
    assert refused(c, rnn, wrong) == "running_mean_c_l0 must be float64 (5, 4), got float64 (4, 4)"


@pytest.mark.parametrize("changes, said", [
    (dict(cell=3), "choice"), (dict(weights=-1), "choice"), (dict(overrun=9), "choice"),
    (dict(input_size=0), "input_size must be an integer of at least 1"),
    (dict(hidden_size=2**30), "hidden_size must be such that"),
    (dict(num_layers=2000), "num_layers must be an integer of at least 1 and at most 1024, got 2000"),
    (dict(eps=-1.0), "eps must be a finite number of at least 0, got -1"),
    (dict(eps=float("nan")), "eps must be a finite number"),
    (dict(cell=2, cell_norm=2), "cell must be"), (dict(span=1), "span must be"),
    (dict(proj_size=1), "proj_size must be 0 except in an LSTM, got 1"),
    (dict(peepholes=1), "peepholes must be False except in an LSTM, got True"),
    (dict(cell=1, proj_size=4), "proj_size must be smaller than hidden_size 4, got 4"),
    (dict(cell=1, proj_size=2), "weight_ih_l0 must be float32 .16, 3.|weight_hh_l0 must be float32 .16, 2."),
    (dict(num_layers=2), "weight_ih_l1 must be float32 .4, 4., and is missing"),
    (dict(input_size=2), "weight_ih_l0 must be float32 .4, 2., got float32 .4, 3."),
    (dict(norm=0), "bias_ih_l0 must be"),
    (dict(num_heads=2), "num_heads must be 1 except in an LSTM, GRU or SLSTM, got 2"),
    (dict(num_heads=0), "num_heads must be an integer of at least 1"),
    (dict(cell=1, num_heads=3), "num_heads must be a divisor of hidden_size 4, got 3"),
    (dict(cell=1, num_heads=2), "weight_ih_l0 must be float32 .16, 3., got float32 .4, 3."),
])  # fmt: skip
def test_wrong_descriptions_are_refused(c, changes, said):
    import re

    rnn = network(3, 4)
    assert re.match(said, refused(c, rnn, rnn.state_dict(), **changes)) or said == "choice"


def test_a_file_with_blocks_is_the_network_with_zeros(c, tmp_path, rng):
    rnn = sparse(network(8, 16, cell="LSTM", num_layers=2), 0.3).to_dtype("int8")
    rnn.save(tmp_path / "m")
    net = Network(c, tmp_path / "m")
    same(rnn, net, normal(rng, 6, 3, 8))
    net.close()


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
    same(rnn, net, x[:5])
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
        with pytest.raises(Refused, match=f"instruction set in use, {other}, got one for {own}"):
            net(x)
    finally:
        c.lnrnn_isa_use(own.encode())
    same(rnn, net, x)
    net.close()
