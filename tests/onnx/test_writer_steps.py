"""Files of one step, repeated, have the results of whole sequences."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")

import numpy as np  # noqa: E402

import lnrnn  # noqa: E402
from networks import WITH_INNER_BIASES, calm, drawn_state, normal, parts, zone_out  # noqa: E402
from onnx_runtimes import NEAR, close, opened, states_of, unsupported, written  # noqa: E402


# ONNX Runtime runs all variants, and the others one half each. An inner bias is only an input of Gemm.
@pytest.mark.parametrize(("variant", "runtime"), [
    (variant, runtime) for k, variant in enumerate(WITH_INNER_BIASES)
    for runtime in ("onnxruntime", ("reference", "openvino")[k % 2])
    if runtime == "onnxruntime" or " inner" not in variant
])  # fmt: skip
def test_repeated_steps_are_the_whole_sequence(tmp_path, rng, variant, runtime):
    rnn, path = calm(5, 8, trained=12, num_layers=2, **WITH_INNER_BIASES[variant]), tmp_path / "m.onnx"
    zone_out(rnn, 0.1 if "split" in variant else 0)
    model = written(rnn, path, step=True, resets=True)
    if unsupported(runtime, path):
        return
    names, run = [output.name for output in model.graph.output], opened(runtime, path)
    for B in (3, 1):
        x, h0, resets = normal(rng, 6, B, 5), drawn_state(rng, rnn, B), rng.random((6, B)) < 0.25
        y, h = rnn(x, h0, resets=resets)
        now = states_of(rnn, h0) | ({"step0": np.zeros(B, np.int64)} if "step" in names else {})
        for t in range(6):
            found = dict(zip(names, run({"x": x[t], "resets": resets[t], **now}), strict=True))
            close([found.pop("y")], [y[t]], NEAR)
            now = {f"{name}0": state for name, state in found.items()}
        steps = now.pop("step0", None)
        close(list(now.values()), parts(rnn, h), NEAR)
        if steps is not None:
            last = [np.flatnonzero(column)[-1] if column.any() else 0 for column in resets.T]
            assert steps.tolist() == [6 - first for first in last]


@pytest.mark.parametrize("variant", ["LSTM none", "LSTM split out", "GRU batch"])
def test_lanes_of_a_step_may_be_at_different_steps(tmp_path, rng, variant):
    rnn, path = calm(5, 8, trained=12, **WITH_INNER_BIASES[variant]), tmp_path / "m.onnx"
    written(rnn, path, step=True)
    run, stream = opened("reference", path), rnn.stream(2)
    x = normal(rng, 5, 2, 5)
    for t in range(3):
        stream(x[t, :1], lanes=[0])
    state, steps = stream.state, np.array([3, 0])
    given = states_of(rnn, state) | ({"step0": steps} if rnn.known_steps else {})
    close(run({"x": x[3], **given})[:1], [stream(x[3])], NEAR)


@pytest.mark.parametrize("variant", ["LSTM none", "LSTM split out", "GRU none", "LSTM none projected"])
def test_a_model_of_a_one_step_file_keeps_the_states(tmp_path, rng, variant):
    pytest.importorskip("onnxruntime")
    rnn = calm(5, 8, num_layers=2, **WITH_INNER_BIASES[variant])
    written(rnn, tmp_path / "m.onnx", step=True)
    stream, own = lnrnn.onnx.Model(tmp_path / "m.onnx").stream(3), rnn.stream(3)
    for x in normal(rng, 6, 3, 5):
        close([stream(x)], [own(x)], NEAR)
