"""Tests from_rnnoise on files written here, and against outputs of RNNoise's own code."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import foreign_cells
import lnrnn
from helpers import absolute_error
from importing import SINGLE, rnnoise_file, rnnoise_record

T, B, I, H = 9, 2, 12, 16  # noqa: E741 - the letters of the shapes in the documentation
ONE = np.ones(1, np.float32)
FORMS = [(dtype, sparse) for dtype in ("float", "int8") for sparse in (False, True)]


def layer(rng, name, inputs, units, dtype, sparse):
    """Returns the arrays of a file, and the weights (inputs, 3 * units) that they mean, in float64."""
    outputs = 3 * units
    q = rng.integers(-63, 64, (outputs, inputs)).astype(np.int8)
    scale = rng.uniform(0.1, 1, outputs).astype(np.float32) / 127**2
    keep = np.ones((outputs // 8, inputs // 4), bool)
    arrays = {f"{name}_bias": rng.uniform(-0.5, 0.5, outputs).astype(np.float32)}
    if sparse:
        keep = rng.random(keep.shape) < 0.4
        keep[:, -1] |= ~keep.any(1)
        keep[1] = False
        q[~keep.repeat(8, 0).repeat(4, 1)] = 0
        index = [[row.sum(), *4 * np.flatnonzero(row)] for row in keep]
        arrays[f"{name}_weights_idx"] = np.concatenate(index).astype(np.int32)
    w = 127 * scale.astype(np.float64)[:, None] * q
    stored = q if dtype == "int8" else w.astype(np.float32)
    blocks = stored.reshape(outputs // 8, 8, inputs // 4, 4).swapaxes(1, 2)[keep]  # (blocks, 8, 4)
    if dtype == "int8":
        arrays |= {f"{name}_weights_int8": blocks, f"{name}_scale": scale}
    else:
        arrays[f"{name}_weights_float"] = blocks.swapaxes(1, 2) if sparse else stored.T
    if sparse and name.endswith("recurrent"):
        diagonal = arrays[f"{name}_weights_diag"] = rng.uniform(-0.5, 0.5, outputs).astype(np.float32)
        w[np.arange(outputs), np.arange(outputs) % units] += diagonal
    return {key: value.ravel() for key, value in arrays.items()}, w.T


def gru(rng, name="gru1", inputs=I, units=H, dtype="int8", sparse=True):
    """Returns the arrays of a GRU, and its parameters under Keras' names, which has RNNoise's equation."""
    of_x, kernel = layer(rng, f"{name}_input", inputs, units, dtype, sparse)
    of_h, recurrent = layer(rng, f"{name}_recurrent", units, units, dtype, sparse)
    biases = np.stack([of_x[f"{name}_input_bias"], of_h[f"{name}_recurrent_bias"]])
    return of_x | of_h, {"kernel": kernel, "recurrent_kernel": recurrent, "bias": biases}


def agrees(rng, network, p):
    x, h0 = rng.uniform(-1, 1, (T, B, len(p["kernel"]))), rng.uniform(-0.9, 0.9, (1, B, H))
    want, _ = foreign_cells.run(foreign_cells.keras_gru, x, [[p]], [[(h0[0],)]])
    assert absolute_error(network(x, h0)[0], want) < SINGLE


@pytest.mark.parametrize("dtype, sparse", FORMS)
def test_a_file_is_its_equation(rng, tmp_path, dtype, sparse):
    arrays, p = gru(rng, dtype=dtype, sparse=sparse)
    path = tmp_path / "weights_blob.bin"
    path.write_bytes(rnnoise_record("conv1_bias", np.ones(3, np.uint16), 7) + rnnoise_file(arrays))
    for network in (lnrnn.from_rnnoise(path), lnrnn.from_rnnoise(path.read_bytes(), "gru1")):
        assert type(network) is lnrnn.GRU and network.norm is None and not network.batch_first
        agrees(rng, network, p)


# A step of RNNoise 70f1d256, compiled with its macro HIGH_ACCURACY, for x and h of the test below. The file
# is gru(default_rng(k), units=8), in each of FORMS.
OUTPUTS = [
    [-0.35292634, -0.48992252, -0.16243628, 0.03980761, 0.06756353, 0.1153914, 0.00248892, 0.30782849],
    [-0.56857705, -0.4314163, 0.08683361, -0.40868947, 0.22482909, -0.0415726, 0.30755615, 0.10588697],
    [-0.43704855, 0.1224943, 0.00103535, -0.21692128, 0.18474308, 0.43454629, 0.37024724, 0.13207489],
    [-0.26184252, -0.30574793, -0.36124405, 0.10567927, 0.44352025, 0.142726, 0.18537679, 0.00475611],
]


def test_the_outputs_are_those_of_rnnoise():
    x, h = np.arange(I) * 10 / 127, (np.arange(8) - 4) * 20 / 127  # numbers that it does not round
    for k, (dtype, sparse) in enumerate(FORMS):
        arrays, _ = gru(np.random.default_rng(k), units=8, dtype=dtype, sparse=sparse)
        y, _ = lnrnn.from_rnnoise(rnnoise_file(arrays))(x[None, None], h[None, None])
        assert absolute_error(y[0, 0], np.array(OUTPUTS[k])) < SINGLE


def test_several_grus_are_named_and_weights_in_float_are_preferred(rng):
    first, p = gru(rng)
    floats, q = gru(rng, "dec_gru2", dtype="float", sparse=False)
    other = gru(rng, "dec_gru2", sparse=False)[0]
    data = rnnoise_file(first | other | floats)
    networks = lnrnn.from_rnnoise(data)
    assert list(networks) == ["gru1", "dec_gru2"]
    agrees(rng, networks["gru1"], p)
    agrees(rng, networks["dec_gru2"], q)
    for given, words in (
        (dict(name="gru3"), "name must be of a GRU of the file: gru1, dec_gru2, got 'gru3'"),
        (dict(input_size=I), "input_size must be None unless name is one of gru1, dec_gru2"),
    ):
        with pytest.raises(ValueError, match=words):
            lnrnn.from_rnnoise(data, **given)


def test_inputs_without_a_block_need_input_size(rng):
    arrays, p = gru(rng)
    network = lnrnn.from_rnnoise(rnnoise_file(arrays), input_size=I + 8)
    agrees(rng, network, p | {"kernel": np.pad(p["kernel"], ((0, 8), (0, 0)))})


def put(at, value):
    return lambda array: np.concatenate([array[:at], np.asarray([value], array.dtype), array[at + 1 :]])


ORDER = "gru1_recurrent_weights_idx must be multiples of 4 in ascending order, from 0 to 12, in group 0"


@pytest.mark.parametrize("name, change, words", [
    ("recurrent_bias", lambda v: v[:-1], "gru1_recurrent_bias must be of 3 .*, got 47"),
    ("input_bias", put(3, np.nan), "gru1_input_bias must be finite numbers, got nan"),
    ("input_bias", lambda v: v.view(np.int32), "gru1_input_bias must be of type 0, float32, got type 1"),
    ("recurrent_weights_diag", lambda v: v[:-1], "gru1_recurrent_weights_diag must be of 48 numbers, got 47"),
    ("input_scale", put(0, 1e38), "gru1_input_scale must be at most"),
    ("input_weights_int8", lambda v: v[:-32], "gru1_input_weights_int8 must be .* numbers"),
    ("input_weights_idx", put(1, 2**31 - 4), "from 0 to 4092"),
    ("recurrent_weights_idx", put(0, -1), "for each of 6 groups, got -1 blocks in group 0"),
    ("recurrent_weights_idx", put(0, 2**31 - 1), "got 2147483647 blocks in group 0"),
    ("recurrent_weights_idx", lambda v: np.append(v, v[:1]), "for 48 outputs, got"),
    ("recurrent_weights_idx", put(1, -4), ORDER),
    ("recurrent_weights_idx", put(1, 2), ORDER),
    ("recurrent_weights_idx", put(1, 12), ORDER),
    ("recurrent_weights_idx", lambda v: np.append(v[:-1], v.dtype.type(16)), "from 0 to 12, in group 5"),
])  # fmt: skip
def test_a_wrong_array_is_refused(name, change, words):
    arrays, _ = gru(np.random.default_rng(3))
    assert arrays["gru1_recurrent_weights_idx"][0] > 1
    arrays[f"gru1_{name}"] = change(arrays[f"gru1_{name}"])
    with pytest.raises(ValueError, match=words):
        lnrnn.from_rnnoise(rnnoise_file(arrays))


@pytest.mark.parametrize("more, words", [
    (b"DNNw", "must be the head of an array, of 64 bytes, got 4 bytes"),
    (rnnoise_record("a", ONE)[:-1], "byte .* must be an array of 1 to 63 bytes, got 4 bytes, 64 with"),
    (rnnoise_record("a", ONE[:0]), "must be an array of 1 to 0 bytes"),
    (rnnoise_record("a", ONE, magic=b"DNNx"), "got b'DNNx'"),
    (rnnoise_record("a", ONE, version=1), "got b'DNNw', version 1"),
    (rnnoise_record("a" * 44, ONE), "a name that ends with a zero byte"),
    (rnnoise_record("gru1_input_bias", ONE), "different names, got 'gru1_input_bias' twice"),
])  # fmt: skip
def test_a_wrong_record_is_refused(more, words):
    with pytest.raises(ValueError, match=words):
        lnrnn.from_rnnoise(rnnoise_file(gru(np.random.default_rng(3))[0]) + more)


def test_any_damage_is_a_value_error(rng):
    arrays = gru(rng, inputs=8, units=8)[0]
    data = rnnoise_file(arrays)
    with pytest.raises(ValueError, match="must be a file with arrays such as .*, got a"):
        lnrnn.from_rnnoise(rnnoise_record("a", ONE))
    with pytest.raises(ValueError, match=r"got \\n\\x1bbold$"):
        lnrnn.from_rnnoise(rnnoise_record("\n\x1bbold", ONE))
    for name in [name for name in arrays if not name.endswith("idx")]:
        with pytest.raises(ValueError, match=f"must be a file with the array {name}, got"):
            lnrnn.from_rnnoise(rnnoise_file({key: value for key, value in arrays.items() if key != name}))
    for cut in range(0, len(data), 7):
        with pytest.raises(ValueError, match=r"gru1|path_or_bytes"):
            lnrnn.from_rnnoise(data[:cut])
    for at in rng.integers(len(data), size=300):
        with contextlib.suppress(ValueError):
            lnrnn.from_rnnoise(data[:at] + rng.bytes(1) + data[at + 1 :])
