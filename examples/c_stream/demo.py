"""Steps a stream in C, and compares the result with the same steps in Python.

Compile c_stream.c first, as its comment shows. Saving and loading the model needs safetensors.
"""

import tempfile
from pathlib import Path

import c_stream
import numpy as np

import lnrnn

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.safetensors"
    lnrnn.LSTM(40, 128, num_layers=2, seed=0).save(path)
    rnn = lnrnn.load(path)

x = np.random.default_rng(0).standard_normal((100, 40), dtype=np.float32)
y = np.zeros((100, 128), np.float32)
stream, other = rnn.stream(8), rnn.stream(8)
c_stream.run(stream, x, y, 3)  # 100 steps of lane 3, in C
want = [other(x_t, 3) for x_t in x]
print("equal bits:", np.array_equal(y, want))
print("steps of each lane:", stream.steps_done)
