"""A user's program for type checkers. `make lint` checks it, and it never runs. `assert_type` asserts a type.
Lines that are wrong on purpose end with the expected error. A `type: ignore` without an error is itself an
error (mypy: warn_unused_ignores)."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import numpy as np

import lnrnn

Array = np.ndarray
x = np.zeros((100, 8, 40), np.float32)

# Norms as functions and as layers.
assert_type(lnrnn.layer_norm(x, 40), Array)
assert_type(lnrnn.rms_norm(x, (40,), eps=None), Array)
assert_type(lnrnn.batch_norm(x, None, None, training=True), Array)
assert_type(lnrnn.layer_norm_backward(x, x, 40), tuple[Array, Array | None, Array | None])
assert_type(lnrnn.rms_norm_backward(x, x, 40), tuple[Array, Array | None])
assert_type(lnrnn.LayerNorm(40).eval(), lnrnn.LayerNorm)
assert_type(lnrnn.layer_norm(x, (8, 100), axis=(1, 0)), Array)
assert_type(lnrnn.get_include(), str)
assert_type(lnrnn.get_library(), str)
assert_type(lnrnn.BatchNorm(8).train(False)(x), Array)

# The state of an RNN and of a GRU is an array, that of an LSTM a pair.
rnn = lnrnn.RNN(40, 256, seed=0)
y, h = rnn(x, lengths=[100, 90, 80, 70, 60, 50, 40, 0])
assert_type(y, Array)
assert_type(h, Array)
assert_type(rnn.ragged(x[:, 0], [0, 40, 100]), tuple[Array, Array])
assert_type(rnn(x, resets=np.zeros((100, 8), bool), threads=1), tuple[Array, Array])
with lnrnn.num_threads(1):
    lanes = lnrnn.LSTM(40, 256).stream(1000)
assert_type(lanes(x[0], lanes=range(8), resets=[False] * 8), Array)
assert_type(lanes.steps_done, Array)
assert_type(lanes.get_state([3, 17]), lnrnn.StreamState[tuple[Array, Array]])
lanes.set_state(None, lanes.get_state())
gru = lnrnn.GRU(40, 256, 2, True, False, 0.1, norm=None, rng=np.random.default_rng(0))
assert_type(gru(x)[1], Array)
lstm = lnrnn.LSTM(40, 256, norm=lnrnn.LayerNormSpec(placement="gate", cell="carry"))
y, (h, c) = lstm(x, (h, None))
assert_type(c, Array)
assert_type(lstm(x)[1], tuple[Array, Array])

# One step for each call.
assert_type(rnn.stream().state, Array)
assert_type(lstm.stream(8).state, tuple[Array, Array])
assert_type(lstm.stream(8)(x[0]), Array)

# Training, parameters, copies.
y, h, tape = rnn.forward_train(x)
gx, gh0, grads = rnn.backward(tape, y)
gx, gh0, grads = rnn.backward(tape, gh=h)
assert_type(gh0, Array)
assert_type(grads, dict[str, Array])
assert_type(lstm.forward_train(x)[1], tuple[Array, Array])
rnn.weight_hh_l0 = np.eye(256)
rnn.load_state_dict(rnn.state_dict())
assert_type(rnn.to_dtype("bfloat16"), lnrnn.RNN)
assert_type(lstm.to_dtype("int8"), lnrnn.LSTM)

# Batch norm by time step.
batch = lnrnn.RNN(40, 256, norm=lnrnn.BatchNormSpec(max_steps=100, overrun="last"))
batch.calibrate([x, (x, None)])
batch.overrun = "mean"
assert_type(batch.known_steps, int | None)

# Imported models have one of five classes, which are all Networks.
model = lnrnn.from_torch({})
assert_type(model, lnrnn.RNN | lnrnn.LSTM | lnrnn.GRU | lnrnn.LiGRU | lnrnn.SLSTM)
imported = lnrnn.from_keras([], kind="LSTM")
assert_type(imported, lnrnn.RNN | lnrnn.LSTM | lnrnn.GRU | lnrnn.LiGRU | lnrnn.SLSTM)
model = lnrnn.load(Path("m.safetensors"))
model.save("m.safetensors")
lnrnn.save(model, Path("m.safetensors"))
lnrnn.to_onnx(model, Path("m.onnx"), step=True, resets=True)
if isinstance(model, lnrnn.LSTM):
    assert_type(model(x)[1], tuple[Array, Array])


def hidden_sizes(networks: list[lnrnn.Network[Array]]) -> list[int]:
    return [network.hidden_size for network in networks]


hidden_sizes([rnn, gru])
hidden_sizes([lstm])  # type: ignore[list-item]

# Misspelt names are errors, and hx, torch's name of h0, too.
rnn(x, hx=None)  # type: ignore[arg-type]
lnrnn.RNN(40, 256, norm="lyaer")  # type: ignore[arg-type]
lnrnn.RNN(40, 256, nonlinearity="tahn")  # type: ignore[arg-type]
lnrnn.LSTM(40, 256, nonlinearity="tanh")  # type: ignore[call-arg]
lnrnn.LayerNormSpec(placement="splt")  # type: ignore[arg-type]
lnrnn.LayerNormSpec(cell="carried")  # type: ignore[arg-type]
lnrnn.LayerNormSpec(span="al")  # type: ignore[arg-type]
lnrnn.BatchNormSpec(overrun="rise")  # type: ignore[arg-type]
batch.overrun = "lats"  # type: ignore[assignment]
rnn.to_dtype("int4")  # type: ignore[arg-type]
lnrnn.from_torch({}, kind="hast")  # type: ignore[arg-type]
lnrnn.from_keras([], kind="Lstm")  # type: ignore[arg-type]
lnrnn.to_onnx(model, "m.onnx", opset="17")  # type: ignore[arg-type]
lnrnn.LTSM(40, 256)  # type: ignore[attr-defined]
