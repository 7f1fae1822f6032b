"""lnrnn.sparsify: block-sparse weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from ..arguments import TAKES, Flag, Number, check
from ..errors import bad_type, bad_value, message
from .architecture import BLOCK, WEIGHTS
from .network import Network

Array = np.ndarray
N = TypeVar("N", bound=Network[Any])
TAKES["sparsify"] = {"keep_diagonal": Flag()}


def sparsify(
    rnn: N,
    density: float | Mapping[str, float],
    block: tuple[int, int] = BLOCK,
    keep_diagonal: bool = True,
) -> N:
    """Return a copy in which only the largest blocks of the weights are left. All others are 0.

    A block is 8 outputs by 4 inputs. Its size is the sum of its squared weights.

    Parameters
    ----------
    rnn : Network
        The network. Train it further after each call, with smaller densities from call to call.
    density : float or mapping
        The share of blocks to keep, above 0 and at most 1, of each ``weight_ih`` and ``weight_hh`` of each
        layer and direction; or a mapping such as {"weight_hh": 0.3}, which leaves the other weights alone.
    block : (8, 4), optional
        The outputs and inputs of a block. No other size has kernels.
    keep_diagonal : bool
        Keep the blocks with the diagonal of each gate's square of ``weight_hh``, even beyond the density.

    Returns
    -------
    Network
        A network of the same class, with the same dtype.

    Raises
    ------
    ValueError, TypeError
        For a wrong argument, or weights (n, k) that are not divided by (8, 4).

    Notes
    -----
    Calls and streams multiply only by blocks that are not 0, if at most 60 % are left (40 % with AVX-512).
    They have the numbers of dense products for finite inputs; at most the sign of a zero differs. In float32
    and bfloat16 a NaN or an infinity does not pass through an absent block. Files have these blocks alone.
    A network whose weights have zero blocks for any other reason is treated in the same way. The
    backward pass is dense. So are products of ``weight_hh`` with ``num_heads`` or ``reset_after=False``, and
    of ``weight_hr``. Also dense: bfloat16 on a special unit, and int8 with AMX.

    References
    ----------
    Kalchbrenner et al., Efficient Neural Audio Synthesis, 2018 (WaveRNN), https://arxiv.org/abs/1802.08435.
    RNNoise (https://github.com/xiph/rnnoise) has blocks of this size, and keeps the diagonal.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> rnn = lnrnn.sparsify(lnrnn.GRU(16, 64, seed=0), 0.3)
    >>> print(f"{np.mean(rnn.weight_hh_l0 != 0):.2f}")
    0.30
    """
    if not isinstance(rnn, Network):
        raise bad_type("rnn", "a network of lnrnn", rnn)
    (keep_diagonal,) = check("sparsify", {"keep_diagonal": keep_diagonal})
    if not isinstance(block, (tuple, list)) or tuple(block) != BLOCK:
        raise bad_value("block", f"{BLOCK}", block, "no other size has kernels")
    densities = _checked(rnn, density)
    state = rnn.state_dict()
    for name, w in state.items():
        share = densities.get(name.rpartition("_l")[0] if "_l" in name else "", 1.0)
        if share == 1:
            continue
        if w.shape[0] % BLOCK[0] or w.shape[1] % BLOCK[1]:
            do = "pad it, or leave it dense by a density of 1"
            raise ValueError(message(name, f"of a shape that blocks of {BLOCK} divide", str(w.shape), do))
        units = rnn.hidden_size if keep_diagonal and name.startswith("weight_hh") else 0
        state[name] = np.where(_mask(w, share, units), w, np.float32(0))
    other = copy.copy(rnn)
    other.load_state_dict(state)
    return other


def _checked(rnn: Network[Any], density: Any) -> dict[str, float]:
    """Returns the density of each name of WEIGHTS."""
    given = dict(density) if isinstance(density, Mapping) else dict.fromkeys(WEIGHTS, density)
    densities = dict.fromkeys(WEIGHTS, 1.0)
    for name, value in given.items():
        if name not in WEIGHTS:
            keys = f"a number, or a mapping with the keys {', '.join(WEIGHTS)}"
            raise bad_value("density", keys, density)
        words = f"density of {name}" if isinstance(density, Mapping) else "density"
        densities[name] = Number(0, 1).check(words, value)
        if not densities[name]:
            raise bad_value(words, "above 0 and at most 1", value)
    dense = getattr(rnn, "num_heads", 1) > 1 or not getattr(rnn, "reset_after", True)
    if dense and densities["weight_hh"] < 1:
        do = "give density={'weight_ih': 0.5}"
        expected = "1 for weight_hh with num_heads or reset_after=False"
        raise bad_value("density", expected, density, do)
    return densities


def _mask(w: Array, density: float, units: int) -> Array:
    """Returns which weights of w stay. units: of a gate whose diagonal stays, or 0."""
    n, k = w.shape
    rows, columns = n // BLOCK[0], k // BLOCK[1]
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.square(w, dtype=np.float64).reshape(rows, BLOCK[0], columns, BLOCK[1]).sum((1, 3))
    size[np.isnan(size)] = np.inf
    count = max(1, round(density * size.size))
    if units == k:
        at = np.arange(n)
        size[at // BLOCK[0], at % units // BLOCK[1]] = np.inf
        count = max(count, np.count_nonzero(size == np.inf))
    keep = np.zeros(size.size, bool)
    keep[np.argsort(-size, axis=None, kind="stable")[:count]] = True
    return keep.reshape(size.shape).repeat(BLOCK[0], 0).repeat(BLOCK[1], 1)
