"""Multiplies two large float32 matrices by every installed library, to find the machine's rate of products.

The fastest library depends on the CPU.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from case import Case
from peers_rnn import torch_on
from race import Call

SIDE = 1024


def _numpy(a, b, threads) -> Call:
    """Multiplies by NumPy. OpenBLAS chooses its number of threads when it is loaded."""
    return Call(partial(np.matmul, a, b, out=np.empty_like(a)))


def _torch(a, b, threads) -> Call:
    torch = torch_on(threads)
    a, b = torch.from_numpy(a), torch.from_numpy(b)
    return Call(partial(torch.mm, a, b, out=torch.empty_like(a)))


def _onednn(a, b, threads) -> Call:
    """Multiplies by oneDNN: calls the operator with packed weights that replaces a linear layer under
    torch.compile."""
    torch = torch_on(threads)
    a, transposed = torch.from_numpy(a), torch.from_numpy(np.ascontiguousarray(b.T))
    weight = torch.ops.mkldnn._reorder_linear_weight(transposed, len(a))
    return Call(partial(torch.ops.mkldnn._linear_pointwise, a, weight, None, "none", [], ""))


def _jax(a, b, threads) -> Call:
    import jax

    a, b, product = jax.numpy.asarray(a), jax.numpy.asarray(b), jax.jit(jax.numpy.matmul)
    return Call(lambda: product(a, b).block_until_ready())


WAYS = {"numpy": _numpy, "torch": _torch, "oneDNN": _onednn, "jax": _jax}


def products(threads: int) -> tuple[dict[str, Call], dict[str, str]]:
    """Returns {library: product of two matrices SIDE x SIDE}, and {library: why it does not race}."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((SIDE, SIDE), np.float32) for _ in range(2))
    case = Case({}, {name: partial(build, a, b, threads) for name, build in WAYS.items()}, (a @ b,), (1e-2,))
    return case.assemble(), case.left_out
