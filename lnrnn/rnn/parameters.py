"""Names of a recurrent network's parameters: torch's, and those of the norms inside."""

from __future__ import annotations

from .cells import Cell
from .sites import Norm, norm_sites
from .specs import LayerNormSpec


def suffixes(num_layers: int, bidirectional: bool) -> tuple[str, ...]:
    """The endings of names for each layer and direction, in the order of the state's first axis.

    They are _l0, _l0_reverse, ...
    """
    ends = ("", "_reverse") if bidirectional else ("",)
    return tuple(f"_l{k}{end}" for k in range(num_layers) for end in ends)


def vectors(cell: Cell, hidden_size: int, norm: Norm, bias: bool) -> dict[str, int]:
    """Length of each gain and bias of one layer and direction, by name without suffix.

    norm: resolved for the cell.
    """
    found: dict[str, int] = {}
    for of_cell_state in (False, True):
        sites = [site for site in norm_sites(cell, norm) if (site.side == "c") is of_cell_state]
        found |= {site.gain: site.width(hidden_size) for site in sites if site.gain}
        found |= {site.bias: site.width(hidden_size) for site in sites if site.bias}
    if not bias:
        found = {name: length for name, length in found.items() if not name.startswith("bias")}
    if isinstance(norm, LayerNormSpec) and norm.inner_bias:
        found |= dict.fromkeys(("inner_bias_ih", "inner_bias_hh"), cell.gates * hidden_size)
    return found
