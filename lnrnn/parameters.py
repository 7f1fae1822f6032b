"""Names and shapes of a recurrent network's parameters: torch's, and those of the norms inside."""

from __future__ import annotations

from .cells import LSTM, Cell
from .norms import BatchNormSpec, LayerNormSpec

Norm = LayerNormSpec | BatchNormSpec | None


def suffixes(num_layers: int, bidirectional: bool) -> tuple[str, ...]:
    """What the names of each layer and direction end in, in the order of the state's first axis: _l0, _l0_reverse, ..."""
    ends = ("", "_reverse") if bidirectional else ("",)
    return tuple(f"_l{k}{end}" for k in range(num_layers) for end in ends)


def vectors(cell: Cell, hidden_size: int, norm: Norm, bias: bool) -> dict[str, int]:
    """Length of each gain and bias of one layer in one direction, by name without suffix. norm: resolved for the cell."""
    wide, H = cell.gates * hidden_size, hidden_size
    split = cell.gates > 1 if isinstance(norm, BatchNormSpec) else norm is not None and norm.placement == "split"
    if norm is None:
        found = {"bias_ih": wide, "bias_hh": wide}
    elif not split:
        found = {"gain": wide, "bias": wide}
    elif isinstance(norm, BatchNormSpec):
        found = {"gain_ih": wide, "gain_hh": wide, "bias": wide}
    else:
        found = {"gain_ih": wide, "gain_hh": wide, "bias_ih": wide, "bias_hh": wide}
    if cell is LSTM and (isinstance(norm, BatchNormSpec) or (norm is not None and norm.cell is not None)):
        found |= {"gain_c": H, "bias_c": H}
    if not bias:
        found = {name: length for name, length in found.items() if not name.startswith("bias")}
    if isinstance(norm, LayerNormSpec) and norm.inner_bias:
        found |= {"inner_bias_ih": wide, "inner_bias_hh": wide}
    return found


def shapes(
    cell: Cell, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool, norm: Norm, bias: bool
) -> dict[str, tuple[int, ...]]:
    """Trainable parameters of a network by name. norm: resolved for the cell."""
    found: dict[str, tuple[int, ...]] = {}
    directions, rows = 2 if bidirectional else 1, cell.gates * hidden_size
    of_one = vectors(cell, hidden_size, norm, bias)
    for index, suffix in enumerate(suffixes(num_layers, bidirectional)):
        wide = input_size if index < directions else directions * hidden_size
        found[f"weight_ih{suffix}"] = (rows, wide)
        found[f"weight_hh{suffix}"] = (rows, hidden_size)
        found |= {name + suffix: (length,) for name, length in of_one.items()}
    return found


def sides(cell: Cell, hidden_size: int) -> dict[str, int]:
    """What batch norm keeps statistics of, and how wide: the sum in an RNN (""), else "ih", "hh" and an LSTM's "c"."""
    if cell.gates == 1:
        return {"": hidden_size}
    wide = cell.gates * hidden_size
    return {"ih": wide, "hh": wide} | ({"c": hidden_size} if cell is LSTM else {})
