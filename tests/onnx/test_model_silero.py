"""lnrnn.onnx.Model keeps the states of all files of silero-vad. Skipped if the package is not installed."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx_ir")
pytest.importorskip("onnxruntime")

from lnrnn.onnx import Model  # noqa: E402
from onnx_packages import path_of  # noqa: E402

STEP_FILES = ["silero_vad", "silero_vad_16k_op15", "silero_vad_half", "silero_vad_op18_ifless",
              "silero_vad_openvino_16k"]  # fmt: skip


def frames(rng, steps, lanes):
    """Returns audio (steps, lanes, 576): frames of 512 samples, after the last 64 of the frame before."""
    audio = rng.standard_normal((lanes, steps * 512)).astype(np.float32) * 0.1
    padded = np.pad(audio, ((0, 0), (64, 0)))
    return np.stack([padded[:, t * 512 : t * 512 + 576] for t in range(steps)])


def load(name):
    path = path_of(f"silero_vad/data/{name}.onnx")
    model = Model(path)
    return Model(path, constants={"sr": 16000}) if "sr" in model.inputs else model


@pytest.mark.parametrize("name", STEP_FILES)
def test_a_stream_has_the_bits_of_silero_s_own_loop(rng, name):
    model = load(name)
    assert model.states == {"state": "stateN"} and model.inputs == ("input",)
    lanes = 1 if "openvino" in name else 3
    x = frames(rng, 6, lanes)
    rate = {"sr": np.array(16000)} if len(model.session.get_inputs()) == 3 else {}
    state, want = np.zeros((2, lanes, 128), np.float32), []
    for frame in x:
        y, state = model.session.run(["output", "stateN"], {"input": frame, "state": state, **rate})
        want.append(y)
    stream = model.stream(lanes)
    assert np.stack([stream(frame) for frame in x]).tobytes() == np.stack(want).tobytes()
    assert stream.state["state"].tobytes() == state.tobytes()
    y, last = model(x, lanes=lanes)
    assert y.tobytes() == np.stack(want).tobytes() and last["state"].tobytes() == state.tobytes()


def test_the_sequence_file_and_the_step_files_agree(rng):
    x = frames(rng, 20, 1)
    sequence = load("silero_vad_16k_sequence")
    assert sequence.states == {"h": "hn", "c": "cn"}
    y, state = sequence(x[:, 0])
    stream = sequence.stream()
    parts = [stream(x[:7, 0]), stream(x[7:, 0])]
    assert np.concatenate(parts) == pytest.approx(y, abs=1e-6)
    for name in STEP_FILES:
        if "half" in name:  # its weights are rounded to 16 bits
            continue
        other, last = load(name)(x)
        assert other[:, 0, 0] == pytest.approx(y, abs=1e-4), name
        assert last["state"][0] == pytest.approx(state["h"][0], abs=1e-3), name
