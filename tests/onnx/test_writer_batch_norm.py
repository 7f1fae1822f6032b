"""Files with batch norm past the steps that have statistics, for each policy `overrun`."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")

import numpy as np  # noqa: E402

import lnrnn  # noqa: E402
from networks import MILD, calm, drawn_state, normal, parts, same  # noqa: E402
from onnx_runtimes import (  # noqa: E402
    NEAR,
    RUNTIMES,
    Case,
    close,
    each_runtime,
    has_results,
    opened,
    written,
)

CELLS = {
    "RNN": {}, "LSTM": {}, "GRU": {}, "LiGRU": {}, "GRU before": dict(cell="GRU", reset_after=False),
    "LSTM projected": dict(cell="LSTM", projected=True),
}  # fmt: skip
each_cell = pytest.mark.parametrize("cell", CELLS)


def trained(cell, overrun, **options):
    rnn = calm(5, 8, trained=4, norm=MILD, **{"cell": cell, **CELLS[cell], **options})
    rnn.overrun = overrun
    return rnn


@pytest.mark.parametrize("cell, overrun, runtime", [
    (cell, ("last", "mean")[(i + k) % 2], runtime)
    for i, cell in enumerate(CELLS) for k, runtime in enumerate(RUNTIMES)
])  # fmt: skip
def test_the_policy_for_later_steps_is_in_the_file(tmp_path, rng, cell, overrun, runtime):
    rnn = trained(
        cell, overrun, num_layers=2, reverse=runtime != "reference"
    )  # which has no Scan from the end
    has_results(rnn, tmp_path / "m.onnx", rng, runtime, lengths=True)


@each_runtime
@each_cell
@pytest.mark.parametrize("step", [False, True])
def test_a_runtime_fails_past_the_tables(tmp_path, rng, cell, step, runtime):
    """OpenVINO's Gather does not fail, and the file gives NaN there."""
    rnn = trained(cell, "raise")
    written(rnn, tmp_path / "m.onnx", step=step)
    run, case = opened(runtime, tmp_path / "m.onnx"), Case.drawn(rng, rnn, 4, 2)
    feeds, beyond = dict(case.feeds), case.feeds | {"x": normal(rng, 5, 2, 5)}
    if step:
        feeds |= {"x": feeds["x"][0], "step0": np.array([0, 3])}
        beyond = feeds | {"step0": np.array([0, 4])}
    assert all(np.isfinite(a).all() for a in run(feeds))
    if runtime != "openvino":
        with pytest.raises(Exception, match="out of (data )?bounds"):
            run(beyond)
        return
    y, *states = run(beyond)
    states = [state[0] for state in states[: 1 + (cell[:4] == "LSTM")]]
    if step:
        assert all(np.isfinite(a[0]).all() and np.isnan(a[1]).all() for a in (y, *states))
    else:
        assert np.isfinite(y[:4]).all() and all(np.isnan(a).all() for a in (y[4], *states))


@each_runtime
@pytest.mark.parametrize("reverse", [False, True])
def test_only_steps_of_a_sequence_need_statistics(tmp_path, rng, reverse, runtime):
    """x may have more steps than the tables, if no part of a sequence has."""
    rnn = trained("LSTM", "raise", reverse=reverse)
    written(rnn, tmp_path / "m.onnx", lengths=True, resets=True)
    if reverse and runtime == "reference":
        return
    lengths, resets = np.array([7, 4, 0], np.int32), np.zeros((9, 3), bool)
    resets[4, 0] = resets[6, 1] = True
    x, h0 = normal(rng, 9, 3, 5), drawn_state(rng, rnn, 3)
    y, h = rnn(x, h0, lengths, resets)
    feeds = dict(x=x, h0=h0[0], c0=h0[1], lengths=lengths, resets=resets)
    close(opened(runtime, tmp_path / "m.onnx")(feeds), [y, *parts(rnn, h)], NEAR)


def test_tables_have_only_steps_with_statistics(tmp_path):
    import onnx.numpy_helper

    rnn = lnrnn.RNN(5, 8, norm=lnrnn.BatchNormSpec(max_steps=9), seed=0)
    rnn.forward_train(np.zeros((4, 2, 5)))
    for overrun, rows in (("raise", 4), ("last", 4), ("mean", 5)):
        rnn.overrun = overrun
        stored = written(rnn, tmp_path / "m.onnx").graph.initializer
        arrays = {each.name: onnx.numpy_helper.to_array(each) for each in stored}
        assert arrays["scale_l0"].shape == arrays["shift_l0"].shape == (rows, 8)
        same(arrays["weight_ih_l0"], rnn.weight_ih_l0)


def test_statistics_must_be_known(tmp_path):
    with pytest.raises(ValueError, match="known_steps must be at least 1, got 0"):
        lnrnn.to_onnx(lnrnn.RNN(3, 4, norm="batch"), tmp_path / "rnn.onnx")
    assert not [*tmp_path.iterdir()]
