"""Where the norms and biases of a recurrent cell stand: the one table of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .cells import Cell
from .specs import BatchNormSpec, LayerNormSpec

Norm = LayerNormSpec | BatchNormSpec | None

# "ih" and "hh": the products W_ih x and W_hh h; "": their sum; "c": a cell state c.
SIDES = ("", "ih", "hh", "c")


@dataclass(frozen=True)
class NormSite:
    """side: what is normalised, one of SIDES. gain, bias: the parameters that follow there, by their names
    without suffix, or None. spans: how many gates, each of H units, have a mean and variance in common, in a
    row's order."""

    side: str
    gain: str | None
    bias: str | None
    spans: tuple[int, ...]

    @property
    def parameters(self) -> tuple[str | None, str | None]:
        return self.gain, self.bias

    def width(self, hidden_size: int) -> int:
        """How many values stand there."""
        return sum(self.spans) * hidden_size


@lru_cache(maxsize=64)
def norm_sites(cell: Cell, norm: Norm) -> tuple[NormSite, ...]:
    """The sites of one layer in one direction. norm: resolved for the cell; None: the biases alone."""
    together = (cell.gates,)
    if norm is None:
        return NormSite("ih", None, "bias_ih", together), NormSite("hh", None, "bias_hh", together)
    batch = isinstance(norm, BatchNormSpec)
    placement = cell.placement if isinstance(norm, BatchNormSpec) else norm.placement
    found: tuple[NormSite, ...]
    if batch and placement == "split":  # one bias for both
        found = NormSite("ih", "gain_ih", "bias", together), NormSite("hh", "gain_hh", None, together)
    elif placement == "split":
        spans = cell.spans if norm.span is None else together
        found = NormSite("ih", "gain_ih", "bias_ih", spans), NormSite("hh", "gain_hh", "bias_hh", spans)
    else:
        found = (NormSite("", "gain", "bias", (1,) * cell.gates if placement == "gate" else together),)
    if cell.states == 2 and (batch or norm.cell is not None):
        found += (NormSite("c", "gain_c", "bias_c", (1,)),)
    return found


def statistics_sides(cell: Cell, norm: Norm, hidden_size: int) -> dict[str, int]:
    """What batch norm keeps statistics of, and how wide; nothing for another norm."""
    if not isinstance(norm, BatchNormSpec):
        return {}
    return {site.side: site.width(hidden_size) for site in norm_sites(cell, norm)}
