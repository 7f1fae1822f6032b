"""Lists the possible assignments of a module's gains and biases to parameters of lnrnn.

A piece is the part of a parameter that belongs to one gate. blocks.py lists the pieces without an effect
while a gain is zero. That shows to which gates the gain belongs, so few assignments are possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, permutations, product

from ...rnn.cells import Cell
from ...rnn.specs import PLACEMENTS, CellNorm, LayerNormSpec, Placement, Span
from .blocks import Parts, Piece, Vector

Option = tuple[str, tuple[int, ...]]  # lnrnn's name for a Vector, and the gates of its pieces
MOST = 600  # limit on the assignments that are tried for one placement of the norms


def placements(cell: Cell, parts: Parts) -> Iterator[LayerNormSpec | None]:
    """Yields the placements of norms that fit the gains, or all placements if there are no gains."""
    gains = [v for v in parts.vectors if is_gain(cell, v)]
    if not gains:
        yield None
    alone = any(bool(v.x) != bool(v.h) for v in gains)
    which: tuple[Placement, ...] = ("split",) if alone else ("joint", "gate") if gains else PLACEMENTS
    for placement in which:
        if (cell.gates == 1 and placement == "gate") or (placement == "input" != cell.placement):
            continue
        cells: tuple[CellNorm | None, ...] = ("out", "carry", None) if cell.states == 2 else (None,)
        if any(is_cell_gain(cell, v) for v in parts.vectors):
            cells = ("out", "carry")
        for of_cell in cells:
            spans: tuple[Span | None, ...] = (None, "all")
            for span in spans if cell.name == "GRU" and placement == "split" else (None,):
                yield LayerNormSpec(placement, of_cell, span=span).resolved(cell)


def is_cell_gain(cell: Cell, v: Vector) -> bool:
    """Returns whether v is the gain of the norm of c: while it is 0, the gates i, f and g have no effect.

    If one norm is over all gates, the matrices of i, f and g still have an effect, because they change the
    statistics for o. The gains and biases of i, f and g have no effect.
    """
    return cell.states == 2 and len(v.pieces) == 1 and (
        len(v.x) == 3 or (not v.x and not v.h and bool(v.vectors))
    )  # fmt: skip


def is_gain(cell: Cell, v: Vector) -> bool:
    return not is_cell_gain(cell, v) and bool(v.x or v.h)


def ways(cell: Cell, parts: Parts, norm: LayerNormSpec | None) -> Iterator[dict[str, dict[int, list[Piece]]]]:
    """Yields each assignment of gains and biases to lnrnn's parameters under this norm, likely ones first."""
    G = cell.gates
    numbers = tuple(range(G))
    whole = len({p.name for p in parts.x}) == 1
    fused = any(len(v.pieces) == G > 1 for v in parts.vectors)
    orders = [numbers] if whole or not fused or G == 1 else list(permutations(numbers))
    for order in orders:
        options = [_options(cell, parts, norm, v, order) for v in parts.vectors]
        if not all(options):
            continue
        for chosen in islice(product(*options), MOST if len(orders) == 1 else 8):
            roles: dict[str, dict[int, list[Piece]]] = {}
            for v, (name, gates) in zip(parts.vectors, chosen, strict=True):
                for gate, piece in zip(gates, v.pieces, strict=True):
                    roles.setdefault(name, {}).setdefault(gate, []).append(piece)
            if _sensible(roles, norm):
                yield roles


def without_role(cell: Cell, parts: Parts, specs: Sequence[LayerNormSpec | None]) -> list[str]:
    """Returns the names of the gains and biases that are no parameter of lnrnn under any of these norms."""
    order = tuple(range(cell.gates))
    return [v.pieces[0].name for v in parts.vectors
            if not any(_options(cell, parts, spec, v, order) for spec in specs)]  # fmt: skip


def _sensible(roles: Mapping[str, Mapping[int, Sequence[Piece]]], norm: LayerNormSpec | None) -> bool:
    """Returns whether gains have one piece per gate, and all gates have equally many biases after a norm."""
    for name, gates in roles.items():
        counts = {len(pieces) for pieces in gates.values()}
        if name.startswith("gain") and counts != {1}:
            return False
    after = [len(roles.get("bias", {}).get(k, ())) for k in roles.get("gain", {})]
    return len(set(after)) < 2 or norm is None


def _options(
    cell: Cell, parts: Parts, norm: LayerNormSpec | None, v: Vector, order: tuple[int, ...]
) -> list[Option]:
    G, n = cell.gates, len(v.pieces)
    if norm is None:
        return _without_norm(cell, parts, v, order)
    side = {"split": ("_ih", "_hh")}.get(norm.placement or "", ("", ""))
    if is_cell_gain(cell, v):
        return [("gain_c", (0,))] if norm.cell else []
    if is_gain(cell, v):
        return _gain(cell, parts, v, order, side)
    gains = [u for u in parts.vectors if is_gain(cell, u)]
    required = _required_gains(gains, v)
    if n == G:
        gates = [order]
    elif n == 1:
        gates = [(k,) for k in range(G)]
    elif n == 2 and G == 3:
        gates = [*permutations(range(3), 2)]
    else:
        return []
    result: list[Option] = []
    inside = [k for k, at in enumerate(parts.at) if at & set(v.pieces)]
    if required or not gains:
        sides = ("ih", "hh") if norm.placement == "split" or G == 3 else ("ih",)
        for of in sides:
            if (
                required
                and norm.placement == "split"
                and not any(u.x if of == "ih" else u.h for u in required)
            ):
                continue
            at = [g for g in gates if not required or n != 1 or any(g[0] in u.x | u.h for u in required)]
            at = [g for g in at if n != 1 or not inside or g[0] in inside]
            result += [(f"inner_bias_{of}", g) for g in at]
    if not inside and (not required or (G == 3 and n == 1)):
        named = ("bias_ih", "bias_hh") if norm.placement == "split" and G == 3 else (f"bias{side[0]}",)
        after = [(name, g) for name in named for g in gates]
        if n == 1 and G > 1:
            after = _nearest_first(cell, parts, v, after)
            if norm.cell:
                after.append(("bias_c", (0,)))
                if not any(is_cell_gain(cell, u) for u in parts.vectors):
                    after.append(("gain_c", (0,)))
                each = any(len(u.pieces) == 1 for u in gains)
                if norm.placement != "gate" or not each:
                    after = after[-2:] if after[-1][0] == "gain_c" else after[-1:]
        result = after + result
    return result


def _required_gains(gains: Sequence[Vector], v: Vector) -> list[Vector]:
    """Returns the gains that must not be 0 for v to have an effect; empty if a piece of v needs none.

    A bias before the norms of all gates needs a gain for each piece. If a piece needs several gains, only
    those with an effect on the fewest gates count, because a GRU's r also needs the candidate's gain.
    """
    result: list[Vector] = []
    for piece in v.pieces:
        of_piece = [u for u in gains if piece in u.vectors]
        if not of_piece:
            return []
        least = min(len(u.x | u.h) for u in of_piece)
        result += [u for u in of_piece if len(u.x | u.h) == least]
    return result


def _nearest_first(cell: Cell, parts: Parts, v: Vector, options: list[Option]) -> list[Option]:
    """Sorts the options by the distance of v from the gate's gain in the order of the parameters."""
    at = {u: k for k, u in enumerate(parts.vectors)}
    where = {min(u.x | u.h): at[u] for u in parts.vectors if is_gain(cell, u) and len(u.pieces) == 1}
    return sorted(options, key=lambda o: abs(at[v] - where.get(o[1][0], 99) - 0.5))


def _gain(cell: Cell, parts: Parts, v: Vector, order: tuple[int, ...], side: tuple[str, str]) -> list[Option]:
    reached = sorted(v.x or v.h)
    name = "gain" + (side[0] if v.x else side[1])
    if len(v.pieces) == cell.gates:
        return [(name, order)] if len(reached) == cell.gates else []
    if len(v.pieces) == len(reached):
        return [(name, gates) for gates in permutations(reached)]
    # Omit gates with a gain of their own: without the candidate n, a GRU's r has no effect either.
    others = {k for u in parts.vectors if u != v and len(u.x) == 1 for k in u.x}
    return [(name, (k,)) for k in reached if k not in others] if len(v.pieces) == 1 else []


def _without_norm(cell: Cell, parts: Parts, v: Vector, order: tuple[int, ...]) -> list[Option]:
    """Returns the options for a bias of a cell without norms. In a GRU it may be bias_ih or bias_hh, because
    r multiplies n's bias_hh only."""
    G = cell.gates
    if len(v.pieces) == G:
        sides = ("bias_ih", "bias_hh") if G == 3 else ("bias_ih",)
        return [(name, order) for name in sides]
    each: list[list[int]] = []
    for piece in v.pieces:
        known = [k for k, at in enumerate(parts.at) if piece in at]
        each.append(known or sorted(parts.first) or list(range(G)))
    result = [("bias_ih", gates) for gates in product(*each)]
    if G == 3:
        result += [("bias_hh", gates) for gates in product(*[range(G)] * len(v.pieces))]
    return result
