"""lnrnn.sparsify: block-sparse weights. GradualPruner uses the same choice of blocks."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..arguments import TAKES, Flag, Number, check
from ..errors import bad_type, bad_value, message
from .architecture import BLOCK, WEIGHTS
from .network import Network

Array = np.ndarray
N = TypeVar("N", bound=Network[Any])
OfGates = float | Sequence[float]
Density = OfGates | Mapping[str, OfGates]
TAKES["sparsify"] = {"keep_diagonal": Flag()}
OF_LAYERS = re.compile(r"(weight_[ih]h)(?:_l\d+(?:_reverse)?)?")


def sparsify(rnn: N, density: Density, block: tuple[int, int] = BLOCK, keep_diagonal: bool = True) -> N:
    """Return a copy in which only the largest blocks of the weights are left. All others are 0.

    A block is 8 outputs by 4 inputs. Its size is the sum of its squared weights.

    Parameters
    ----------
    rnn : Network
        The network. Train it again afterwards, or prune it during training, with `GradualPruner`.
    density : float, sequence or mapping
        The share of blocks to keep, above 0 and at most 1, of each ``weight_ih`` and ``weight_hh`` of each
        layer and direction; or a sequence with the share of each gate. A mapping such as {"weight_hh": 0.3}
        or {"weight_hh_l0": (0.3, 0.2, 0.5)} leaves the other weights alone.
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
    and bfloat16 a NaN or an infinity does not pass through an absent block. Files have the other blocks
    alone. A network whose weights have zero blocks for any other reason is treated in the same way. The
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
    state = rnn.state_dict()
    weights = ((name, rnn, w.shape) for name, w in state.items())
    for name, choice in choices(weights, density, block, keep_diagonal).items():
        state[name] = with_blocks(state[name], choice.largest(state[name]))
    other = copy.copy(rnn)
    other.load_state_dict(state)
    return other


class Choice(NamedTuple):
    """How to choose the blocks of one weight that are kept."""

    rows: int  # number of blocks
    columns: int
    densities: tuple[float, ...]  # for each gate, or one density for all gates
    keep_diagonal: bool  # of each square matrix

    def largest(self, w: Array, left: float = 0.0, among: Array | None = None) -> Array:
        """Returns bool (rows, columns), True for the largest blocks. left: the share of others kept too.

        among: permitted blocks, bool (rows, columns), or None for all. A kept diagonal is always permitted.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.square(w, dtype=np.float64)
            size = size.reshape(self.rows, BLOCK[0], self.columns, BLOCK[1]).sum((1, 3))
        size[np.isnan(size)] = np.inf
        if among is not None:
            size[~among] = -1
        if self.keep_diagonal:
            at = np.arange(len(w))
            size[at // BLOCK[0], at % w.shape[1] // BLOCK[1]] = np.inf
        keep, gates = np.zeros(size.shape, bool), len(self.densities)
        parts = zip(self.densities, np.split(size, gates), np.split(keep, gates), strict=True)
        for density, own, kept in parts:
            must = np.count_nonzero(own == np.inf) if self.keep_diagonal else 1
            count = max(must, round((density + (1 - density) * left) * own.size))
            kept.flat[np.argsort(-own, axis=None, kind="stable")[:count]] = True
        return keep


def with_blocks(w: Array, keep: Array) -> Array:
    """Returns w with zeros where `keep` (rows, columns), from Choice.largest, is False for the block."""
    rows, columns = keep.shape
    blocks = w.reshape(rows, BLOCK[0], columns, BLOCK[1])
    return np.where(keep[:, None, :, None], blocks, np.float32(0)).reshape(w.shape)


def choices(
    weights: Iterable[tuple[str, Any, tuple[int, ...]]], density: Any, block: Any, keep_diagonal: bool
) -> dict[str, Choice]:
    """Returns {name: Choice} for all weights with a density below 1. weights: (name, its layer, shape)."""
    if not isinstance(block, (tuple, list)) or tuple(block) != BLOCK:
        raise bad_value("block", f"{BLOCK}", block, "no other size has kernels")
    given = dict(density) if isinstance(density, Mapping) else dict.fromkeys(WEIGHTS, density)
    words = "density of {}" if isinstance(density, Mapping) else "density"
    checked = {key: _checked(words.format(key), value) for key, value in given.items()}
    result, used, names = {}, set(), []
    for name, layer, shape in weights:
        names += [name] * (len(shape) == 2)
        of_layer = OF_LAYERS.fullmatch(name.rpartition(".")[2])
        key = name if name in given else of_layer[1] if of_layer else ""
        if key in given:
            used.add(key)
            if min(checked[key]) < 1:
                result[name] = _choice(name, layer, shape, checked[key], keep_diagonal)
    if not used or (isinstance(density, Mapping) and used < given.keys()):
        keys = f"the keys {', '.join(WEIGHTS)}, or names of weights: {', '.join(names) or 'there are none'}"
        raise bad_value("density", f"a number, or a mapping with {keys}", density)
    return result


def _checked(words: str, value: Any) -> tuple[float, ...]:
    """Returns the densities, checked: one for each gate, or one for the whole weight. words: for messages."""
    several = isinstance(value, (tuple, list)) and len(value) > 0
    densities = tuple(Number(0, 1).check(words, each) for each in (value if several else [value]))
    if 0 in densities:
        raise bad_value(words, "above 0 and at most 1", value)
    return densities


def _choice(
    name: str, layer: Any, shape: tuple[int, ...], densities: tuple[float, ...], keep_diagonal: bool
) -> Choice:
    """Returns the Choice of a weight. Raises ValueError unless blocks fit its gates and kernels exist."""
    gates, shown = len(densities), densities[0] if len(densities) == 1 else densities
    last = name.rpartition(".")[2]
    recurrent = "hh" in (last if OF_LAYERS.fullmatch(last) else ".".join(name.split(".")[-2:]))
    if recurrent and (getattr(layer, "num_heads", 1) > 1 or not getattr(layer, "reset_after", True)):
        expected = "1 for weight_hh with num_heads or reset_after=False"
        raise bad_value("density", expected, shown, "give density={'weight_ih': 0.5}")
    units = getattr(layer, "hidden_size", None)
    if gates > 1 and units and shape[0] != gates * units:
        raise bad_value(f"density of {name}", f"one number, or {shape[0] // units} for the gates", shown)
    if len(shape) != 2 or shape[0] % (BLOCK[0] * gates) or shape[1] % BLOCK[1]:
        do = "pad it, or leave it dense by a density of 1"
        expected = f"of a shape that blocks of {BLOCK} divide" + f" in each of {gates} gates" * (gates > 1)
        raise ValueError(message(name, expected, str(tuple(shape)), do))
    square = recurrent and shape[0] % shape[1] == 0 and units in (None, shape[1])
    return Choice(shape[0] // BLOCK[0], shape[1] // BLOCK[1], densities, keep_diagonal and square)
