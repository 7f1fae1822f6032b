"""Finds the equation of a torch module of an unknown class, from torch.export's graph of the module."""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..recognise.constants import constant
from ..recognise.graph import Value, number_nodes
from ..recognise.matching import Step, steps
from ..recognise.operators import new_terms
from ..recognise.reference_network import Leaf
from ..recognise.unrolled import chains
from .blocks import COLUMNS, ROWS, Block, Unsuitable, filled
from .exported import INNER, Reader, export
from .running import arguments, tensors
from .running import filled as with_states
from .weights import Converted, Weights, network

NAME = "the cell of its graph"
OTHER = "its equation is none of lnrnn's, which have no peepholes, clipped states, std + eps or RMS norm"
STEPS = 3, 2  # of the two exports of a layer
SEQUENCES = 5, 131  # the least numbers of sequences of the two exports
TRIED = 3, 4  # steps and sequences of the calls that show how a module is called
MOST_CALLS = 4000
STATE = (), (ROWS,), (COLUMNS,)  # the axes of a state (1, B, H)
_STATE = re.compile(r"h|s(_|\d|$)|.*(state|prev|last|memory|carry)", re.IGNORECASE)  # a state's argument


class FirstState(Unsuitable):
    """A module whose states do not begin at 0."""


# --- ways of calling ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """A way to call a module. axes: of x, "BI" for a cell. states: the other arguments, with a Leaf for each
    state. usual: whether x is the first argument."""

    axes: str
    states: tuple[Any, ...]
    usual: bool = True

    @property
    def kinds(self) -> int:
        return len({leaf.kind for leaf in _leaves(self.states)})

    def call(self, module: Any, x: Any, states: Sequence[Any]) -> Any:
        given = with_states(self.states, states)
        return module(x, *given) if self.usual else module(*given, x)

    def inputs(self, T: int, B: int, D: int, H: int | None) -> list[Any]:
        """Returns zeros for x, and for states (1, B, H)."""
        torch: Any = sys.modules["torch"]
        sizes = {"T": T, "B": B, "I": D}
        x = torch.zeros([sizes[axis] for axis in self.axes])
        return [x, *(torch.zeros(1, B, H or 1) for _ in range(self.kinds))]

    def fits(self, module: Any, D: int, H: int | None) -> bool:
        """Returns whether the module runs, and a layer passes a state from step to step of each sequence."""
        torch: Any = sys.modules["torch"]
        T, B = TRIED
        drawn = torch.Generator().manual_seed(0)
        x, *states = [torch.randn(t.shape, generator=drawn) for t in self.inputs(T, B, D, H)]
        results = list(tensors(self.call(module, x, states)))
        if self.axes == "BI":
            return len(results) >= self.kinds and all(tuple(t.shape) == (B, H) for t in results)
        y = next((t for t in results if t.shape[:-1] == x.shape[:-1] and H in (None, t.shape[-1])), None)
        if y is None:
            return False
        other, axis = x.clone(), self.axes.index("B")
        other.select(1 - axis, 1).select(0, 0).add_(1)  # step 1 of sequence 0
        z = next(t for t in tensors(self.call(module, other, states)) if t.shape == y.shape)
        moved = ((z - y).abs().amax(-1) > 1e-5).movedim(axis, 0)
        return bool(moved[0, ::2].any()) and not moved[1:].any()


def _leaves(template: Any) -> Iterator[Leaf]:
    if isinstance(template, Leaf):
        yield template
    elif isinstance(template, (tuple, list)):
        for part in template:
            yield from _leaves(part)


# Cells are tried first, because many cells also accept a whole sequence, by broadcasting.
_CELL = ((Leaf(0, 0), Leaf(1, 0)),), (Leaf(0, 0), Leaf(1, 0)), (Leaf(0, 0),)
_LAYER = (*arguments(2, 1, 1), *[*arguments(1, 1, 1)][2:])
WAYS = (
    *(Way("BI", states) for states in _CELL),
    *(Way(axes, states) for states in _LAYER for axes in ("TBI", "BTI")),
    *(Way("BI", states, usual=False) for states in _CELL),
)


def _calls(module: Any, ways: Sequence[Way]) -> Iterator[tuple[Way, int, int | None]]:
    """Yields the ways in which a module can be called, with the sizes of x and of its states."""
    shapes = {n for p in module.parameters() for n in p.shape}
    units = sorted({n // gates for n in shapes for gates in (4, 3, 2, 1) if n % gates == 0}, reverse=True)
    calls = 0
    for way in ways:
        for H in units if way.kinds else [None]:
            widths = {n - m for n in shapes for m in (units if H is None else [H]) if n > m}
            for D in sorted(shapes) + sorted(widths - shapes):
                calls += 1
                if calls > MOST_CALLS:
                    return
                with suppress(Exception):  # modules raise anything for arguments that they do not support
                    if way.fits(module, D, H):
                        yield way, D, H


# --- graphs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A module that is called in a way, and its programs for two numbers of steps and of sequences."""

    way: Way
    D: int
    H: int | None
    programs: tuple[tuple[Any, int, int], ...]  # with the numbers of steps and of sequences

    @classmethod
    def of(cls, module: Any, way: Way, D: int, H: int | None) -> Call:
        taken = {m for t in (*module.parameters(), *module.buffers()) for n in t.shape for m in
                 (n, n // 2, n // 3, n // 4)} | {D, H, D + (H or 0), *STEPS}  # fmt: skip
        programs = []
        for T, least in zip(STEPS, SEQUENCES, strict=True):
            B = next(
                n
                for n in range(least, 10**9)
                if n not in taken and all(n % k for k in (2, 3, 5, 7)[: n // 5])
            )
            programs.append((export(wrapped(module, way.call), way.inputs(T, B, D, H)), T, B))
        return cls(way, D, H, tuple(programs))

    def converted(self, module: Any, **options: Any) -> Converted:
        """Returns the network with the parameters of a module like that of the programs."""
        if options:
            raise ValueError("norm must be None, because the module's graph has decided it")
        return self.read(module, 0)

    def read(self, module: Any, at: int, opaque: bool = False, eps: float | None = None) -> Converted:
        program, T, B = self.programs[at]
        reader = Reader(B, self.H, opaque, eps)

        def parameter(name: str) -> Any:
            path, _, name = name.removeprefix(INNER).rpartition(".")
            return getattr(module.get_submodule(path), name).detach().cpu().float()

        factors = {"T": (T,), "B": (ROWS,), "I": (COLUMNS,)}
        shape = (T,) if "T" in self.way.axes else ()
        axes = tuple(factors[axis] for axis in self.way.axes)
        x = Block(filled(shape, lambda at: reader.graph.input("x", self.D)), axes)
        states = [Block(filled((), lambda at: reader.graph.input("state", self.H or 1)), STATE)
                  for _ in range(self.way.kinds)]  # fmt: skip
        outputs = [v for v in reader.run(program, parameter, [x, *states]) if isinstance(v, Block)]
        reader.graph.end(v for block in outputs for v in block.values.flat)
        number_nodes(reader.graph)
        layers, reverse = _layers(reader, x, [s.values.item() for s in states], outputs, module)
        return network(layers, self.way.axes == "BTI", NAME, reverse)


def wrapped(module: Any, call: Callable[[Any, Any, Sequence[Any]], Any]) -> Any:
    """Returns a module whose forward(x, *states) is call(module, x, states)."""
    nn: Any = sys.modules["torch"].nn

    class Wrapper(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Any, *states: Any) -> Any:
            return call(self.inner, x, states)

    return Wrapper()


def _layers(
    reader: Reader, x: Block, states: Sequence[Value], outputs: Sequence[Block], module: Any
) -> tuple[list[list[Weights]], bool]:
    """Returns the weights of the layers and directions of a graph, and whether one direction is reversed.

    Raises Unsuitable unless the layers are the whole module: its x and its states are theirs, and its outputs
    are values of theirs.
    """
    terms = new_terms(states=True)
    groups = list(steps(reader.graph, terms, new_terms(joined=True, states=True)))
    found = [chain for chain in chains(groups, terms) if _is_started(chain[0], states)]
    whole = [chain for chain in found if not any(step.outside for step in chain)]
    current, layers, known = [*x.values.flat], list[list[Weights]](), set[int]()
    reverse = False
    while True:
        both = ((sign, _reading(whole, current[::sign])) for sign in (1, -1)[: len(current)])
        used = [(sign, chain) for sign, chain in both if chain is not None]
        if not used:
            break
        for _, chain in used:
            _check_start(chain[0], states, module)
            known |= {id(v) for step in chain for v in step.new}
        layers.append([chain[-1].weights() for _, chain in used])
        reverse |= used[0][0] < 0
        ys = ([step.new[0] for step in chain][::sign] for sign, chain in used)
        current = [reader.graph.concat(parts) for parts in zip(*ys, strict=True)]
    if not layers:
        raise Unsuitable(_reason(found))
    if any(id(v) not in known and not _is_zero(v) for block in outputs for v in block.values.flat):
        raise Unsuitable("it changes what its last layer returns, or has further outputs")
    y = next((b for b in outputs if len(b.axes) == len(x.axes)), None)
    if y is None or y.axes[:-1] != x.axes[:-1] or [*reader.flat(y).values.flat] != current:
        raise Unsuitable("its first output is not that of its last layer, for each step and in order")
    return layers, reverse


def _reading(found: Sequence[list[Step]], xs: list[Value]) -> list[Step] | None:
    """Returns the steps that read these values in order."""
    every = [chain for chain in found if [step.x for step in chain] == xs]
    largest = max(every, key=lambda chain: len(chain[0].nodes), default=None)
    if largest is not None and any({*chain[0].nodes} - {*largest[0].nodes} for chain in every):
        raise Unsuitable("several layers read the same values")
    return largest


def _is_zero(value: Value) -> bool:
    array = constant(value)
    return array is not None and not array.any()


def _is_started(step: Step, states: Sequence[Value]) -> bool:
    """Returns whether a first step reads the module's states, or constants."""
    return [*step.old] == [*states] or all(v.const_value is not None for v in step.old)


def _check_start(step: Step, states: Sequence[Value], module: Any) -> None:
    """Raises FirstState if a first step reads constants other than zeros."""
    if [*step.old] == [*states] or all(map(_is_zero, step.old)):
        return
    buffers = dict(module.named_buffers())
    names = dict.fromkeys(name for v in step.old if not _is_zero(v) for name in (v.name or "").split(" and "))
    read = " and ".join(
        f"the {'buffer' if n in buffers else 'parameter'} {n}" if n else "constants" for n in names
    )
    do = "let forward start from zeros, and give this state to the model's calls, model(x, h0)"
    raise FirstState(f"its first step reads {read} as a state, where lnrnn's networks have zeros: {do}")


def _reason(found: Sequence[list[Step]]) -> str:
    """Returns why a graph with these steps is no network."""
    inner = next((step.outside[0] for chain in found for step in chain if step.outside), "")
    return f"{inner} reads a value inside of a cell" if inner else OTHER


# --- modules ------------------------------------------------------------------------------------------------


def copied(module: Any) -> Any:
    """Returns a copy of the module in float32, on the CPU, in evaluation mode."""
    try:
        return copy.deepcopy(module).cpu().float().eval()
    except Exception as error:  # modules raise anything if they cannot be copied
        raise Unsuitable(f"it cannot be copied ({type(error).__name__}: {str(error)[:120]})") from None


def find(module: Any, ways: Sequence[Way] = WAYS) -> Call:
    """Returns a call of the module whose graph is a network of lnrnn. Raises Unsuitable with the reason."""
    torch: Any = sys.modules["torch"]
    own = copied(module)
    reasons: list[Unsuitable] = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        tried: list[Any] = []
        for way, D, H in _calls(own, ways):
            if way.states == (None,) and (way.axes, (), D) in tried:  # the same graph again
                continue
            tried.append((way.axes, way.states, D))
            try:
                call = Call.of(own, way, D, H)
                return _agreed(call, own)
            except Unsuitable as reason:
                reasons.append(reason)
    first = [reason for reason in reasons if isinstance(reason, FirstState)]
    raise (*first, *reasons, Unsuitable("it runs in none of the usual ways"))[0]


def _agreed(call: Call, module: Any) -> Call:
    """Returns the call. Raises Unsuitable unless both of its graphs are one network of lnrnn."""
    try:
        first = call.read(module, 0)
    except Unsuitable as reason:
        raise _better(call, module, reason) from None
    second = None
    with suppress(Unsuitable):
        second = call.read(module, 1)
    if second is None or (first.arguments, first.digest()) != (second.arguments, second.digest()):
        raise Unsuitable("its equation depends on the number of steps or of sequences")
    if call.way.axes == "BI" and first.cell == "RNN" and call.D == call.H:
        _check_order(module, call.way)
    return call


def _better(call: Call, module: Any, reason: Unsuitable) -> Unsuitable:
    """Returns a reason that names a first state that is no zero, or norms with different eps."""
    try:
        call.read(module, 0, opaque=True)
    except FirstState as first:
        return first
    except Unsuitable:
        pass
    every = sorted({float(v) for m in module.modules() if isinstance(v := getattr(m, "eps", None), float)})
    for eps in every if len(every) > 1 else ():
        with suppress(Unsuitable):
            like = call.read(module, 0, eps=eps)
            spec = like.arguments["norm"]
            return Unsuitable(
                f"its norms have the eps {every}, and all norms of a cell of lnrnn have one; with one eps it "
                f"is lnrnn.{like.cell} with norm={spec}"
            )
    return reason


def _check_order(module: Any, way: Way) -> None:
    """Raises Unsuitable if x and h may be exchanged.

    An RNN's cell with as many inputs as units has the same graph then. The names of arguments decide.
    """
    names = [*inspect.signature(module.forward).parameters][:2]
    first, second = (bool(_STATE.match(name)) for name in (*names, "", "")[:2])
    if first == second:
        raise Unsuitable(
            f"it has as many inputs as units, and forward({', '.join(names)}) does not show which argument "
            "is the state; name it h"
        )
    if first == way.usual:
        raise Unsuitable("its first argument is the state")


def first_states(module: Any) -> str:
    """Returns a text with the parameters and buffers that a layer reads as its first state; "" for none."""
    try:
        find(module, [way for way in WAYS if not way.kinds])
    except FirstState as reason:
        return str(reason)
    except Unsuitable:
        pass
    return ""
