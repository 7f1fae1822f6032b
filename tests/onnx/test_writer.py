"""Files of to_onnx have the results of the networks in ONNX Runtime, OpenVINO and onnx.reference."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")

import numpy as np  # noqa: E402

import lnrnn  # noqa: E402
from networks import NONLINEARITIES, WITH_INNER_BIASES, calm, zone_out  # noqa: E402
from onnx_runtimes import (  # noqa: E402
    NEAR,
    RUNTIMES,
    Case,
    close,
    each_runtime,
    has_results,
    opened,
    unsupported,
    written,
)

FORMS = {
    "": {},
    "stateless": dict(states=False),
    "lengths": dict(lengths=True),
    "resets": dict(resets=True),
    "lengths resets": dict(lengths=True, resets=True, states=False),
}
DIRECTIONS = dict(batch_first=True), dict(reverse=True), dict(bidirectional=True)
# Each variant with three of the forms, and with all directions. An inner bias is only an input of Gemm.
CASES = {
    f"{variant}-{form}": (variant, form, DIRECTIONS[(i + j) % len(DIRECTIONS)])
    for i, variant in enumerate(WITH_INNER_BIASES)
    for j, form in enumerate(FORMS)
    if (j - i) % len(FORMS) in ((0, 1, 3) if " inner" not in variant else (1,))
}


# ONNX Runtime runs all cases. The others are slow, so they run each variant in one form, and each form of
# several variants.
BY_ALL = [f"{v}-{list(FORMS)[i % len(FORMS)]}" for i, v in enumerate(WITH_INNER_BIASES) if " inner" not in v]
RUNS = [(case, r) for case in CASES for r in RUNTIMES if r == "onnxruntime" or case in BY_ALL]


@pytest.mark.parametrize(("case", "runtime"), RUNS)
def test_a_file_has_the_networks_results_at_any_t_and_b(tmp_path, rng, case, runtime):
    variant, form, directions = CASES[case]
    rnn = calm(5, 8, trained=12, num_layers=2, **directions, **WITH_INNER_BIASES[variant])
    has_results(rnn, tmp_path / "m.onnx", rng, runtime, **FORMS[form])


OPTIONS = {
    **{f"RNN {f}": dict(cell="RNN", norm=None, nonlinearity=f) for f in NONLINEARITIES},
    **{f"RNN layer {f}": dict(cell="RNN", nonlinearity=f) for f in ("relu", "sigmoid", "identity")},
    **{f"LiGRU {f}": dict(cell="LiGRU", nonlinearity=f) for f in NONLINEARITIES},
    **{f"{cell} no bias": dict(cell=cell, bias=False) for cell in ("RNN", "LSTM", "GRU", "LiGRU", "SLSTM")},
    **{f"{cell} none no bias": dict(cell=cell, bias=False, norm=None) for cell in ("RNN", "LSTM", "GRU")},
    "LSTM batch no bias": dict(cell="LSTM", bias=False, norm=lnrnn.BatchNormSpec(eps=0.1)),
    "LSTM joint eps": dict(cell="LSTM", norm=lnrnn.LayerNormSpec("joint", eps=0.3)),
}


@each_runtime
@pytest.mark.parametrize("options", OPTIONS)
def test_a_file_has_each_function_and_no_bias(tmp_path, rng, options, runtime):
    rnn = calm(5, 8, trained=12, bidirectional=True, **OPTIONS[options])
    has_results(rnn, tmp_path / "m.onnx", rng, runtime)


@pytest.mark.parametrize("runtime", ["reference", "onnxruntime"])  # OpenVINO does not round
def test_a_file_rounds_states_to_bfloat16(tmp_path, rng, runtime):
    """A sum that is near the middle of two bfloat16 numbers may be rounded to the other one, 2**-8 away."""
    rnn = calm(5, 8, cell="SLSTM", num_heads=2, state_dtype="bfloat16")
    written(rnn, tmp_path / "m.onnx")
    case = Case.drawn(rng, rnn, 6, 3)
    found = opened(runtime, tmp_path / "m.onnx")(case.feeds)
    close(found, case.want, 2.0**-7)
    assert all(not (state.view(np.uint32) & 0xFFFF).any() for state in found[1:])


@each_runtime
@pytest.mark.parametrize("variant", ["RNN none", "LSTM split carry", "LSTM none projected", "GRU batch"])
def test_a_file_has_zoneout(tmp_path, rng, variant, runtime):
    rnn = calm(5, 8, trained=12, **WITH_INNER_BIASES[variant])
    zone_out(rnn, (0.1, 0.3) if variant.startswith("LSTM") else 0.2)
    has_results(rnn, tmp_path / "m.onnx", rng, runtime, lengths=True)


@each_runtime
@pytest.mark.parametrize(
    "variant", ["LSTM none", "LSTM split out", "GRU none", "GRU batch", "RNN none", "SLSTM"]
)
def test_nan_in_one_sequence_stays_in_it(tmp_path, rng, variant, runtime):
    rnn = calm(5, 8, trained=12, **WITH_INNER_BIASES[variant])
    written(rnn, tmp_path / "m.onnx")
    case = Case.drawn(rng, rnn, 6, 3)
    for where in ("x", "h0"):
        feeds = dict(case.feeds)
        feeds[where] = feeds[where].copy()
        feeds[where][0, 1, 2] = np.nan
        found = opened(runtime, tmp_path / "m.onnx")(feeds)
        close([a[:, [0, 2]] for a in found], [a[:, [0, 2]] for a in case.want], NEAR)
        if runtime != "onnxruntime" or variant not in ("LSTM none", "GRU none"):  # it gives numbers for NaN
            assert np.isnan(found[0][-1, 1]).all()


@each_runtime
@pytest.mark.parametrize("variant", ["LSTM none", "LSTM split out", "GRU batch", "GRU none", "SLSTM"])
def test_steps_after_the_end_of_a_sequence_are_not_read(tmp_path, rng, variant, runtime):
    rnn = calm(5, 8, trained=12, bidirectional=runtime != "reference", **WITH_INNER_BIASES[variant])
    written(rnn, tmp_path / "m.onnx", lengths=True)
    if unsupported(runtime, tmp_path / "m.onnx"):
        return
    case = Case.drawn(rng, rnn, 6, 3, lengths=True)
    x = case.feeds["x"].copy()
    for b, length in enumerate(case.feeds["lengths"]):
        x[length:, b] = np.nan
    fixed = (
        {name: a.shape for name, a in case.feeds.items()} if variant in ("LSTM none", "GRU none") else None
    )
    close(opened(runtime, tmp_path / "m.onnx", fixed)(case.feeds | {"x": x}), case.want, NEAR)
