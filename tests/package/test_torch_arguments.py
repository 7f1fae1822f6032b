"""Tests torch tensors as arguments: `out` is written and returned; packed sequences are refused."""

from __future__ import annotations

import numpy as np
import pytest

import lnrnn
from helpers import named

torch = pytest.importorskip("torch")

C = 4
MEAN, VAR = np.linspace(-1, 1, C), np.linspace(0.5, 2, C)
FUNCTIONS = {
    "layer_norm": lambda x, **o: lnrnn.layer_norm(x, C, MEAN, VAR, **o),
    "rms_norm": lambda x, **o: lnrnn.rms_norm(x, C, VAR, **o),
    "batch_norm": lambda x, **o: lnrnn.batch_norm(x, MEAN, VAR, **o),
    "batch_norm, training": lambda x, **o: lnrnn.batch_norm(x, None, None, VAR, training=True, **o),
    "exp": lnrnn.exp,
    "tanh": lnrnn.tanh,
    "sigmoid": lnrnn.sigmoid,
    "LayerNorm": lambda x, **o: lnrnn.LayerNorm(C)(x, **o),
}
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
CASES = [(name, dtype) for name in FUNCTIONS for dtype in DTYPES[: 4 if "norm" in name.lower() else 1]]
each = pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)


def tensor(dtype, *shape):
    return torch.randn(*(shape or (6, C)), generator=torch.Generator().manual_seed(0)).to(dtype)


def bits(t):
    """Returns the bits of a tensor or array as integers."""
    if not isinstance(t, torch.Tensor):
        t = torch.from_numpy(t.view(np.int16) if t.dtype.name == "bfloat16" else t)
    return t.contiguous().view(torch.uint8).tolist()


@each
def test_out_may_be_a_tensor_which_is_returned(name, dtype):
    """`out` may be x itself, a tensor that is not contiguous, or one that overlaps all rows of x but one."""
    x, function = tensor(dtype), FUNCTIONS[name]
    want = bits(function(x))
    same, larger = x.clone(), torch.zeros(7, C, dtype=dtype)
    larger[:-1] = x
    array = x.clone() if dtype == torch.bfloat16 else x.numpy().copy()
    for given, out in (
        (x, torch.full_like(x, 7)), (array, torch.full_like(x, 7)), (same, same),
        (x, torch.zeros(C, 6, dtype=dtype).t()), (larger[:-1], larger[1:]),
    ):  # fmt: skip
        assert function(given, out=out) is out
        assert bits(out) == want


@pytest.mark.parametrize(("error", "out", "message"), [
    (TypeError, torch.zeros(6, C, dtype=torch.float64), "of dtype float32"),
    (ValueError, torch.zeros(C, 6), "of shape"),
    (TypeError, torch.zeros(6, C, requires_grad=True), "grad"),
    (TypeError, torch.zeros(6, C, device="meta"), "meta"),
    (TypeError, torch.zeros(6, C).to_sparse(), "[sS]parse"),
    (TypeError, torch.zeros(6, C, dtype=torch.complex64), "float32"),
    (TypeError, "a", "a numpy array or a torch tensor on the CPU"),
], ids=["dtype", "shape", "grad", "meta", "sparse", "complex", "text"])  # fmt: skip
def test_a_tensor_that_cannot_be_written_to_is_refused(error, out, message):
    for name in FUNCTIONS:
        with pytest.raises(error, match=rf"{named('out')}.*{message}"):
            FUNCTIONS[name](tensor(torch.float32), out=out)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_a_packed_sequence_is_refused_with_advice(name, batch_first):
    padded = tensor(torch.float32, 3, 5, C) if batch_first else tensor(torch.float32, 5, 3, C)
    packed = torch.nn.utils.rnn.pack_padded_sequence(padded, [5, 4, 2], batch_first)
    network = getattr(lnrnn, name)(C, 3, batch_first=batch_first, seed=0)
    wanted = rf"{named('x')}.*PackedSequence.*pad_packed_sequence\(.*batch_first={batch_first}\).*lengths="
    for call in (network, network.forward_train):
        with pytest.raises(TypeError, match=wanted):
            call(packed)
    x, lengths = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=batch_first)  # as advised
    np.testing.assert_array_equal(network(x, lengths=lengths)[0], network(padded, lengths=[5, 4, 2])[0])
