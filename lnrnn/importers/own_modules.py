"""Finds the equation of a torch module of an unknown class by tracing calls."""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..recognise.graph import constant
from ..recognise.interface import Value
from ..recognise.matching import Step, steps
from ..recognise.misfits import misfit, repeated
from ..recognise.operators import new_terms
from ..recognise.recurrences import chains
from ..rnn.architecture import Architecture
from .blocks import COLUMNS, ROWS, Block, Unsuitable, filled
from .running import Way, arguments, cells, tensors
from .traces import Reader, Trace, traced
from .weights import Converted, Weights, network

NAME = "the cell of its graph"
OTHER = "its equation is none of lnrnn's, which have no clipped states or std + eps"
STEPS = 3, 2  # steps of a layer in the two traces
SEQUENCES = 5, 131  # least batch size of the first and the second trace
TRIED = 3, 4  # steps and batch size of trial calls
MOST_CALLS = 4000
_STATE = re.compile(r"h|s(_|\d|$)|.*(state|prev|last|memory|carry)", re.IGNORECASE)  # names of state inputs


class FirstState(Unsuitable):
    """Raised for a module whose initial states are not 0, unlike those of lnrnn's networks."""


# --- ways of calling ----------------------------------------------------------------------------------------

# Cells come first, because many cells also accept a whole sequence by broadcasting.
_CELLS = *cells(2), *cells(1)
_LAYERS = *arguments(2, 1, 1), *[*arguments(1, 1, 1)][2:]
WAYS = (
    *_CELLS, *(Way(axes, states) for states in _LAYERS for axes in ("TBI", "BTI")),
    *(replace(way, x_first=False) for way in _CELLS),
)  # fmt: skip


class Sizes(NamedTuple):
    """Sizes of a trial call: x (.., D), states (places, B, width), y (.., wide). wide: None for any size."""

    D: int
    widths: tuple[int, ...]
    wide: int | None
    places: int = 1

    def inputs(self, way: Way, T: int, B: int) -> list[Any]:
        """Returns zero tensors for x and the states of a call with T steps and B sequences."""
        zeros, sizes = sys.modules["torch"].zeros, {"T": T, "B": B, "I": self.D}
        x = zeros([sizes[axis] for axis in way.axes])
        return [x, *(zeros(self.places, B, width) for width in self.widths[: way.kinds])]


def _fits(way: Way, module: Any, sizes: Sizes) -> bool:
    """Returns whether a trial call works: step 1 of x must change later outputs of its sequence alone."""
    torch: Any = sys.modules["torch"]
    T, B = TRIED
    drawn = torch.Generator().manual_seed(0)
    x, *states = [torch.randn(t.shape, generator=drawn) for t in sizes.inputs(way, T, B)]
    results = list(tensors(way.call(module, x, states)))
    if way.axes == "BI":
        return len(results) >= way.kinds and all(tuple(t.shape) == (B, sizes.wide) for t in results)
    y = next((t for t in results if t.shape[:-1] == x.shape[:-1] and sizes.wide in (None, t.shape[-1])), None)
    if y is None:
        return False
    other, axis = x.clone(), way.axes.index("B")
    other.select(1 - axis, 1).select(0, 0).add_(1)  # step 1 of sequence 0
    z = next(t for t in tensors(way.call(module, other, states)) if t.shape == y.shape)
    moved = ((z - y).abs().amax(-1) > 1e-5).movedim(axis, 0)
    return bool(moved[0, ::2].any()) and not moved[1:].any()


def _calls(module: Any, ways: Sequence[Way], arch: Architecture | None) -> Iterator[tuple[Way, Sizes]]:
    """Yields (Way, Sizes) of trial calls that work. arch: an architecture with these sizes, or None."""
    shapes = {n for p in module.parameters() for n in p.shape}
    units = sorted({n // gates for n in shapes for gates in (4, 3, 2, 1) if n % gates == 0}, reverse=True)

    def every(way: Way) -> Iterator[Sizes]:
        if arch is not None:
            wide = arch.directions * arch.h_width
            yield Sizes(arch.input_size, arch.state_widths, wide, len(arch.suffixes))
            return
        for H in units if way.kinds else [None]:
            widths = {n - m for n in shapes for m in (units if H is None else [H]) if n > m}
            for D in sorted(shapes) + sorted(widths - shapes):
                yield Sizes(D, (H or 1,) * way.kinds, H)

    calls = 0
    for way in ways:
        for sizes in every(way):
            calls += 1
            if calls > MOST_CALLS:
                return
            with suppress(Exception):  # a module may raise any exception
                if _fits(way, module, sizes):
                    yield way, sizes


def _not_called(module: Any) -> Unsuitable:
    """Returns the exception for a module that no usual call fits."""
    given = inspect.signature(module.forward).parameters
    needed = [name for name, p in given.items() if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
    needs = f" it needs {', '.join(needed[3:])} too;" if len(needed) > 3 else ""
    return Unsuitable(
        f"no call of its forward({', '.join(given)}) as (x), (x, h), (x, (h, c)), (x, h, c) or (h, x) gives "
        f"a y for each step, or next states of a cell;{needs} give a module whose forward takes these alone"
    )


# --- graphs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One call of a module with its trace: a graph of torch operators.

    network: the Converted network, once it is known. start: how results differ if no state is given,
    or "" if they do not.
    """

    way: Way
    sizes: Sizes
    trace: Trace
    steps: int
    sequences: int
    network: Any = None
    start: str = ""

    @classmethod
    def of(cls, module: Any, way: Way, sizes: Sizes, T: int, least: int) -> Call:
        """Traces a call with T steps. The batch size is at least `least`, and no other axis has this size."""
        own = {sizes.D, *sizes.widths, *(sizes.D + width for width in sizes.widths), *STEPS}
        taken = {m for t in (*module.parameters(), *module.buffers()) for n in t.shape for m in
                 (n, n // 2, n // 3, n // 4)} | own  # fmt: skip
        B = next(n for n in range(least, 10**9)
                 if n not in taken and all(n % k for k in (2, 3, 5, 7)[: n // 5]))  # fmt: skip
        return cls(way, sizes, traced(module, way.call, sizes.inputs(way, T, B)), T, B)

    def converted(self, module: Any, opaque: bool = False, eps: float | None = None) -> Converted:
        """Reads the trace as a network with the parameters of `module`, a module like the traced one.

        opaque, eps: as for Reader.
        """
        T, widths, places = self.steps, self.sizes.widths, self.sizes.places
        reader = Reader(self.sequences, widths[-1] if self.way.kinds else None, opaque, eps)

        def parameter(name: str) -> Any:
            path, _, name = name.rpartition(".")
            return getattr(module.get_submodule(path), name).detach().cpu().float()

        factors = {"T": (T,), "B": (ROWS,), "I": (COLUMNS,)}
        shape = (T,) if "T" in self.way.axes else ()
        axes = tuple(factors[axis] for axis in self.way.axes)
        x = Block(filled(shape, lambda at: reader.graph.input("x", self.sizes.D)), axes)
        place = (places,) if places > 1 else ()

        def state(width: int) -> Block:
            values = filled(place, lambda at: reader.graph.input("state", width))
            return Block(values, (place, (ROWS,), (COLUMNS,)))

        states = [state(width) for width in widths[: self.way.kinds]]
        outputs = [v for v in reader.run(self.trace, parameter, [x, *states]) if isinstance(v, Block)]
        reader.graph.end(v for block in outputs for v in block.values.flat)
        every = [*zip(*(s.values.flat for s in states), strict=True)]
        layers, reverse = _layers(reader, x, every, outputs, module)
        return network(layers, self.way.axes == "BTI", NAME, reverse)


def _layers(
    reader: Reader, x: Block, states: Sequence[tuple[Value, ...]], outputs: Sequence[Block], module: Any
) -> tuple[list[list[Weights]], bool]:
    """Returns (weights by layer and direction, whether a single direction is reversed) of a traced graph.

    states: the graph's inputs, by layer and direction. Raises Unsuitable unless x, the states and all
    outputs belong to these layers.
    """
    terms = new_terms(states=True)
    groups = list(steps(reader.graph, terms, new_terms(joined=True, states=True)))
    found = [chain for chain in chains(groups, terms) if _is_started(chain[0], states)]
    whole = [chain for chain in found if not any(step.outside for step in chain)]
    current, layers, known = [*x.values.flat], list[list[Weights]](), set[int]()
    reverse, starts = False, iter(states)
    while True:
        both = ((sign, _reading(whole, current[::sign])) for sign in (1, -1)[: len(current)])
        used = [(sign, chain) for sign, chain in both if chain is not None]
        if not used:
            break
        for _, chain in used:
            _check_start(chain[0], next(starts, ()), module)
            known |= {id(v) for step in chain for v in step.new}
        layers.append([chain[-1].weights() for _, chain in used])
        reverse |= used[0][0] < 0
        ys = ([step.new[0] for step in chain][::sign] for sign, chain in used)
        current = [reader.graph.concat(parts) for parts in zip(*ys, strict=True)]
    if not layers:
        inner = next((step.outside[0] for chain in found for step in chain if step.outside), "")
        if inner:
            raise Unsuitable(
                f"{inner} reads a value between a cell's x and its new states, which lnrnn's networks do not "
                "return: let forward use y and the last states alone"
            )
        ends = [block.values.flat[0] for block in outputs[len(outputs) - len(states[0]) :]] if states else []
        pairs = [*zip(states[0], ends, strict=False)] if states else repeated(reader.graph, set())
        text = misfit(pairs, not states)
        raise Unsuitable(OTHER + f": {text}" * bool(text))
    if any(id(v) not in known and not _is_zero(v) for block in outputs for v in block.values.flat):
        raise Unsuitable("it changes what its last layer returns, or has further outputs")
    y = next((b for b in outputs if len(b.axes) == len(x.axes)), None)
    if y is None or y.axes[:-1] != x.axes[:-1] or [*reader.flat(y).values.flat] != current:
        raise Unsuitable("its first output is not the output of its last layer, for each step and in order")
    return layers, reverse


def _reading(found: Sequence[list[Step]], xs: list[Value]) -> list[Step] | None:
    """Returns the chain of steps whose x are these values in order, or None. Prefers the largest steps."""
    every = [chain for chain in found if [step.x for step in chain] == xs]
    largest = max(every, key=lambda chain: len(chain[0].nodes), default=None)
    if largest is not None and any({*chain[0].nodes} - {*largest[0].nodes} for chain in every):
        raise Unsuitable("several of its layers read the same values, and a network is a chain of layers")
    return largest


def _is_zero(value: Value) -> bool:
    array = constant(value)
    return array is not None and not array.any()


def _is_started(step: Step, states: Sequence[tuple[Value, ...]]) -> bool:
    """Returns whether a step comes first: its old states are arguments of the module, or constants."""
    return step.old in states or all(v.const_value is not None for v in step.old)


def _check_start(step: Step, start: tuple[Value, ...], module: Any) -> None:
    """Raises FirstState if the first step starts from constants other than 0."""
    if all(map(_is_zero, step.old)) and not start or step.old == start:
        return
    if all(v in start or _is_zero(v) for v in step.old):
        raise Unsuitable("its forward must start from the states given as arguments")
    buffers = dict(module.named_buffers())
    names = dict.fromkeys(name for v in step.old if not _is_zero(v) for name in (v.name or "").split(" and "))
    read = " and ".join(
        f"the {'buffer' if n in buffers else 'parameter'} {n}" if n else "constants" for n in names
    )
    do = "let forward start from zeros, and give this state to the model's calls, model(x, h0)"
    raise FirstState(f"its first step reads {read} as a state, where lnrnn's networks have zeros: {do}")


# --- modules ------------------------------------------------------------------------------------------------


def copied(module: Any) -> Any:
    """Returns a float32 copy of the module on the CPU, in evaluation mode."""
    try:
        return copy.deepcopy(module).cpu().float().eval()
    except Exception as error:  # a module that cannot be copied may raise any exception
        raise Unsuitable(f"it cannot be copied ({type(error).__name__}: {str(error)[:120]})") from None


def find(module: Any, ways: Sequence[Way] = WAYS, arch: Architecture | None = None) -> Call:
    """Returns a Call whose trace is a network of lnrnn. Raises Unsuitable, which says why there is none.

    arch: the network's architecture, if parameter names show it, else None.
    """
    torch: Any = sys.modules["torch"]
    reasons: list[tuple[Way, Unsuitable]] = []
    # Tracing needs version counters, which tensors of torch.inference_mode lack.
    with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=[]):
        own, tried = copied(module), list[Any]()
        for way, sizes in _calls(own, ways, arch):
            if way.states == (None,) and (way.axes, (), sizes.D) in tried:  # this graph failed before
                continue
            tried.append((way.axes, way.states, sizes.D))
            try:
                call = _agreed(own, way, sizes)
            except Unsuitable as reason:
                reasons.append((way, reason))
                continue
            starts = [str(r) for w, r in reasons if way.kinds and not w.kinds and w.axes == way.axes]
            return replace(call, start=starts[0]) if starts else call
    every = [reason for _, reason in reasons]
    first = [reason for reason in every if isinstance(reason, FirstState)]
    raise (*first, *every)[0] if every else _not_called(module)


def _agreed(module: Any, way: Way, sizes: Sizes) -> Call:
    """Returns a Call if traces of different lengths give the same network. Raises Unsuitable otherwise."""
    call, second = Call.of(module, way, sizes, STEPS[0], SEQUENCES[0]), None
    try:
        network = call.converted(module)
    except Unsuitable as reason:
        raise _better(call, module, reason) from None
    other = Call.of(module, way, sizes, STEPS[1], SEQUENCES[1])
    with suppress(Unsuitable):
        second = other.converted(module)
    if second is None or (network.arguments, network.digest()) != (second.arguments, second.digest()):
        raise Unsuitable("its equation depends on the number of steps or of sequences")
    if way.axes == "BI" and network.cell == "RNN" and sizes.wide == sizes.D:
        _check_order(module, way)
    return replace(call, network=network)


def _better(call: Call, module: Any, reason: Unsuitable) -> Unsuitable:
    """Returns a clearer exception if an initial state is not 0, or if norms differ in eps; else `reason`."""
    try:
        call.converted(module, opaque=True)
    except FirstState as first:
        return first
    except Unsuitable:
        pass
    every = sorted({float(v) for m in module.modules() if isinstance(v := getattr(m, "eps", None), float)})
    for eps in every if len(every) > 1 else ():
        with suppress(Unsuitable):
            like = call.converted(module, eps=eps)
            spec = like.arguments["norm"]
            return Unsuitable(
                f"its norms have the eps {every}, and all norms of a cell of lnrnn have one; with one eps it "
                f"is lnrnn.{like.cell} with norm={spec}"
            )
    return reason


def _check_order(module: Any, way: Way) -> None:
    """Raises Unsuitable if a cell's arguments x and h may be exchanged.

    The graph of an RNN cell with as many inputs as units is symmetric, so argument names must decide.
    """
    names = [*inspect.signature(module.forward).parameters][:2]
    first, second = (bool(_STATE.match(name)) for name in (*names, "", "")[:2])
    if first == second:
        raise Unsuitable(
            f"it has as many inputs as units, and forward({', '.join(names)}) does not show which argument "
            "is the state; name it h"
        )
    if first == way.x_first:
        raise Unsuitable("its first argument must be x, got the state")
