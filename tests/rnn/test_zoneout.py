"""Tests zoneout at inference: calls, streams and calibrate use its expectation; files and copies keep it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import lnrnn
from helpers import absolute_error
from networks import CELLS, VARIANTS, calm, each_cell, equal, network, normal, reference_forward, unchanged

# The tolerance is that of tests/rnn/test_forward.py. The largest measured error is 7.2e-7.
WHOLE = 3e-6


each_zoned = pytest.mark.parametrize("variant", [v for v in VARIANTS if not v.startswith("SLSTM")])


def rates(rnn, h=0.3, c=0.2):
    return (h, c) if type(rnn) is lnrnn.LSTM else h


def zoned(rnn, **which):
    rnn.zoneout = rates(rnn, **which)
    return rnn


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@each_cell
def test_zoneout_with_bfloat16_and_int8_weights(rng, cell, dtype):
    rnn = zoned(calm(5, 33, cell=cell)).to_dtype(dtype)
    assert rnn.zoneout == rates(rnn)
    x = normal(rng, 9, 3, 5)
    y, _ = rnn(x)
    assert 1e-6 < absolute_error(y, reference_forward(rnn, x)[0]) < 0.05


@each_zoned
def test_zoneout_of_zero_changes_nothing(rng, variant):
    rnn = network(5, 17, trained=9, **VARIANTS[variant])
    x = normal(rng, 9, 3, 5)
    want, print_before = rnn(x), rnn.stream().get_state().fingerprint
    with unchanged(rnn):
        zoned(rnn)
    assert rnn.known_steps in (None, 9)
    assert (rnn(x)[0] != want[0]).any()
    rnn.zoneout = 0
    equal(rnn, rnn(x), want)
    assert rnn.stream().get_state().fingerprint == print_before


@each_cell
def test_calibrate_uses_the_expectation_of_zoneout(rng, cell):
    """After calibration on x, a call for x gives the results of overrun "batch", because both use the
    statistics of x."""
    rnn = zoned(calm(5, 17, cell=cell, norm=lnrnn.BatchNormSpec(overrun="batch")))
    x = normal(rng, 9, 40, 5)
    before, _ = rnn(x)  # normalised with the batch's statistics
    rnn.calibrate([x])
    assert absolute_error(rnn(x)[0], before) < WHOLE
    assert absolute_error(rnn(x)[0], reference_forward(rnn, x)[0]) < WHOLE


def configuration(path):
    with safetensors.safe_open(path, "numpy") as file:
        return json.loads(file.metadata()["config"])


@pytest.mark.parametrize("value", [1.0, -0.1, "much", [0.1], [0.1, 0.2, 0.3], {}, None, [0.1, 2]])
def test_files_with_a_wrong_zoneout_are_refused(tmp_path, value):
    path, rnn = tmp_path / "m.safetensors", lnrnn.LSTM(3, 4)
    rnn.save(path)
    config = json.dumps(configuration(path) | {"zoneout": value})
    metadata = {"format": "lnrnn", "schema": "1", "config": config}
    path.write_bytes(safetensors.numpy.save(rnn.state_dict(), metadata))
    with pytest.raises(ValueError, match="cannot load .*zoneout"):
        lnrnn.load(path)


def test_zoneout_can_be_set_and_read():
    for cell in CELLS:
        rnn = getattr(lnrnn, cell)(3, 4)
        pair = cell == "LSTM"
        assert rnn.zoneout == ((0.0, 0.0) if pair else 0.0)
        for value in (0.25, np.float32(0.25), np.array(0.25)):
            rnn.zoneout = value
            assert rnn.zoneout == ((0.25, 0.25) if pair else 0.25)
            assert {type(r) for r in np.atleast_1d(rnn.zoneout).tolist()} == {float}
    rnn = lnrnn.LSTM(3, 4)
    for value in ((0, 0.5), [0, 0.5]):
        rnn.zoneout = value
        assert rnn.zoneout == (0.0, 0.5)
