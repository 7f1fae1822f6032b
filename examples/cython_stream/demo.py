"""Runs the loop of cython_stream.pyx, which setup.py compiles, and compares its result with Python's."""

import cython_stream
import numpy as np

import lnrnn

rng = np.random.default_rng(0)
rnn = lnrnn.GRU(40, 128, seed=0)
x = rng.standard_normal((100, 8, 40), dtype=np.float32)
gain, bias = rng.standard_normal((2, 128), dtype=np.float32)
y = np.zeros((100, 8, 128), np.float32)
stream = rnn.stream(20)
cython_stream.run(stream, x, gain, bias, y)  # 100 steps of lanes 0 to 7
want = lnrnn.layer_norm(rnn(x)[0], 128, gain, bias)
print("equal bits:", np.array_equal(y, want))
print("steps of each lane:", stream.steps_done)
