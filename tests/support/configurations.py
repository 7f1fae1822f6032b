"""Some hundred configurations of norms and networks, with functions that compute their results.

The campaign digest compares two builds by them, and tests/runtime/test_caches.py compares two settings.
"""

from __future__ import annotations

import hashlib
import itertools

import numpy as np

import lnrnn
from networks import VARIANTS, drawn_state, network, normal, parts, zone_out

SIZES = ((1, 1), (7, 17), (33, 48), (12, 97), (65, 193))
BATCHES = (1, 3, 17, 70)
SHAPES = ((1, 1), (1, 5), (3, 17), (4, 64), (7, 130), (33, 257), (66, 1000), (5, 4099))
DTYPES = (np.float32, np.float64, np.float16)
# Sizes at the edges of vectors, tiles and panels. TALL: of rows, also at the edges of a group.
EDGES = (15, 16, 17, 47, 48, 49)
TALL = (*EDGES, 63, 64, 65)


def rng_of(*key) -> np.random.Generator:
    return np.random.default_rng(int(hashlib.sha256(repr(key).encode()).hexdigest()[:12], 16))


def digest(arrays) -> str:
    result = hashlib.sha256()
    for array in arrays:
        result.update(np.ascontiguousarray(array).tobytes())
    return result.hexdigest()[:16]


def of_norm(shape, dtype, gain, bias):
    """Yields the results of layer, RMS and batch norm in both modes, and gradients, for one array."""
    rng = rng_of(shape, np.dtype(dtype).name, gain, bias)
    x, gy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    w, b = (rng.standard_normal(shape[1:]).astype(np.float32) if use else None for use in (gain, bias))
    yield lnrnn.layer_norm(x, shape[1:], w, b)
    yield lnrnn.rms_norm(x, shape[1:], w)
    yield from (g for g in lnrnn.layer_norm_backward(gy, x, shape[1:], w, b) if g is not None)
    mean, var = rng.standard_normal(shape[1]), rng.uniform(0.5, 2, shape[1])
    yield lnrnn.batch_norm(x, mean, var, w, b)
    if shape[0] > 1:
        yield lnrnn.batch_norm(x, None, None, w, b, training=True)
        yield from (g for g in lnrnn.batch_norm_backward(gy, x, None, None, w) if g is not None)
    planes = np.repeat(x[..., None], 6, -1) + rng.standard_normal((*shape, 6)).astype(dtype)
    yield lnrnn.batch_norm(planes, None, None, w, b, training=True)


def of_network(variant, sizes, batch, dtype, layers):
    """Yields the results of calls with and without lengths, a stream, and training, also with dropout."""
    rng = rng_of(variant, sizes, batch, dtype, layers)
    T = 9
    rnn = network(*sizes, **VARIANTS[variant], trained=T, num_layers=layers, bidirectional=layers == 2)
    rnn = rnn.to_dtype(dtype)
    x, h0, ends = normal(rng, T, batch, sizes[0]), drawn_state(rng, rnn, batch), rng.integers(0, T + 1, batch)
    for lengths in (None, ends):
        y, state = rnn(x, h0, lengths)
        yield y
        yield from parts(rnn, state)
    if layers == 1:
        stream = rnn.stream(batch)
        yield from (stream(row).copy() for row in x)
    if dtype == "float32":
        y, state, tape = rnn.forward_train(x, h0, ends)
        gx, gh0, grads = rnn.backward(tape, normal(rng, *y.shape), state)
        yield from (y, gx, *parts(rnn, gh0), *(grads[name] for name in sorted(grads)))
        yield from of_dropout(rnn, x, h0, ends)


def of_dropout(rnn, x, h0, ends):
    """Yields the results of a call with zoneout, a stream, and training with all kinds of dropout."""
    zone_out(rnn, 0.25)
    y, state = rnn(x, h0, ends)
    yield from (y, *parts(rnn, state))
    if rnn.num_layers == 1:
        yield rnn.stream(x.shape[1])(x[0]) if not rnn.bidirectional else y
    spec = lnrnn.DropoutSpec(0.2 if rnn.num_layers > 1 else 0, inputs=0.2, states=0.3)
    y, state, tape = rnn.forward_train(x, h0, ends, dropout=spec, seed=1)
    gx, gh0, grads = rnn.backward(tape, y, state)
    yield from (y, gx, *parts(rnn, gh0), *(grads[name] for name in sorted(grads)))


def configurations():
    for shape, dtype, gain, bias in itertools.product(SHAPES, DTYPES, (False, True), (False, True)):
        yield of_norm, (shape, dtype, gain, bias)
    dense = [variant for variant in VARIANTS if "heads" not in variant]
    for k, (variant, sizes, batch) in enumerate(itertools.product(dense, SIZES, BATCHES)):
        yield (
            of_network,
            (variant, sizes, batch, ("float32", "bfloat16", "float32", "int8")[k % 4], 1 + k % 3 // 2),
        )
    yield of_network, ("RNN", (65, 800), 2, "float32", 1)
    yield of_network, ("LSTM split out", (65, 400), 2, "float32", 1)
    heads = [variant for variant in VARIANTS if "heads" in variant]
    for k, (variant, sizes, batch) in enumerate(itertools.product(heads, SIZES, BATCHES)):
        yield of_network, (variant, sizes, batch, ("float32", "bfloat16", "int8")[k % 3], 1 + k % 2)
