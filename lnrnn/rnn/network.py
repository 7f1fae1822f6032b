"""What RNN, LSTM and GRU have in common: parameters, whole sequences, streams, copies. What one layer does is
in lnrnn.reference, readable, and in pyx/sequence.c, fast."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from numpy.typing import ArrayLike

from .._core import Activation
from ..errors import bad_type, bad_value, choice, flag, integer, real, shaped
from ..io import save
from ..state import CHANGES, Closed, checked, counted, no_attribute
from . import calibration, training
from .batches import FLOAT32, State, as_state, longest_first, sequences, states
from .cells import Cell
from .parameters import shapes, suffixes
from .sites import statistics_sides
from .snapshot import DTYPES, Architecture, Dtype, Snapshot, frozen
from .specs import OVERRUNS, BatchNormSpec, LayerNormSpec, Overrun, norm_spec
from .statistics import StepStatistics, named_shapes
from .stream import Stream
from .training import Tape

if TYPE_CHECKING:
    from typing_extensions import Self

Array = np.ndarray
_OF_A_LAYER = re.compile(r"_l\d+(_reverse)?$")  # how the names of parameters and statistics end
DRAWN = 2**16  # values that are drawn at a time, in double precision


def _uniform(rng: np.random.Generator, bound: float, shape: tuple[int, ...]) -> Array:
    """rng.uniform(-bound, bound, shape) in float32, without a whole array in float64 beside it."""
    values = np.empty(shape, FLOAT32)
    flat = values.reshape(-1)
    for at in range(0, flat.size, DRAWN):
        part = flat[at : at + DRAWN]
        part[...] = rng.uniform(-bound, bound, part.size)
    return values


class Network(Closed, Generic[State]):
    """The base of RNN, LSTM and GRU, which say what they compute and how they are made.

    Its type parameter is that of a state: an array of an RNN or a GRU, a pair of arrays of an LSTM.

    Attributes: a name that a network does not have raises AttributeError, whether it is read or set. A
    subclass may have attributes of its own, by any name that does not end as parameters' names do (_l0,
    _l1_reverse); to have one that does, it defines it in its class.

    Threads: all that is set is set in one step, and a call computes with one version of the network, the one
    that was there when it began. So `load_state_dict`, `calibrate`, `overrun` and each assignment to a
    parameter may run beside calls of other threads; parameters that belong together are set together by
    `load_state_dict` only. `forward_train` adds the statistics of its batch to those that are there when it
    is done.
    """

    __slots__ = (
        "input_size", "hidden_size", "num_layers", "norm", "bias", "batch_first", "bidirectional",
        "num_directions", "_suffixes", "_sides", "_snapshot",
    )  # fmt: skip
    _cell: Cell
    _arguments: tuple[str, ...] = (
        "input_size", "hidden_size", "num_layers", "norm", "bias", "batch_first", "bidirectional",
    )  # fmt: skip
    input_size: int
    hidden_size: int
    num_layers: int
    norm: LayerNormSpec | BatchNormSpec | None
    bias: bool
    batch_first: bool
    bidirectional: bool
    num_directions: int

    @property
    def _act(self) -> Activation:
        """An RNN's nonlinearity."""
        return Activation.TANH

    def _make(
        self, input_size: int, hidden_size: int, num_layers: int, norm: Any, bias: bool, batch_first: bool,
        bidirectional: bool, seed: int | None,
    ) -> None:  # fmt: skip
        limit = 2**31 - 1  # so that no product of two sizes overflows
        self.input_size = integer("input_size", input_size, 1, limit)
        self.hidden_size = integer("hidden_size", hidden_size, 1, limit)
        self.num_layers = integer("num_layers", num_layers, 1, 1024)
        if self._cell.gates * self.hidden_size * max(self.hidden_size, self.input_size) > 2**40:
            raise bad_value(
                "hidden_size", "such that a weight matrix has at most 2**40 elements", self.hidden_size
            )
        self.norm = norm_spec(norm, self._cell)
        self.bias = flag("bias", bias)
        self.batch_first = flag("batch_first", batch_first)
        self.bidirectional = flag("bidirectional", bidirectional)
        if seed is not None:
            seed = integer("seed", seed, 0)
        self.num_directions = 2 if self.bidirectional else 1
        self._suffixes = suffixes(self.num_layers, self.bidirectional)
        self._sides = statistics_sides(self._cell, self.norm, self.hidden_size)
        batch_norm = self._batch_norm
        rng = np.random.default_rng(seed)
        bound = self.hidden_size**-0.5
        parameters: dict[str, Array] = {}
        for name, shape in shapes(
            self._cell,
            self.input_size,
            self.hidden_size,
            self.num_layers,
            self.bidirectional,
            self.norm,
            self.bias,
        ).items():
            if name.startswith("gain"):
                value = np.ones(shape, np.float32)
            elif name.startswith("bias") and self.norm is not None:
                value = np.zeros(shape, np.float32)
            else:
                value = _uniform(rng, bound, shape)
            parameters[name] = frozen(value)
        room = batch_norm.max_steps or 0 if batch_norm else 0
        statistics = {end: StepStatistics.empty(self._sides, room) for end in self._suffixes if self._sides}
        made = Architecture(
            self._cell, self._act, self.norm, self.input_size, self.hidden_size, self._suffixes, self._sides
        )
        overrun = batch_norm.overrun if batch_norm else None
        self._snapshot = Snapshot(made, parameters, statistics, overrun, "float32")

    @property
    def _batch_norm(self) -> BatchNormSpec | None:
        return self.norm if isinstance(self.norm, BatchNormSpec) else None

    # --- parameters and state -------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            found = self._state().get(name)
            if found is not None:
                return found
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        state = self._state() if _OF_A_LAYER.search(name) and not hasattr(type(self), name) else {}
        if not state:
            super().__setattr__(name, value)
        elif name in self._snapshot.parameters:
            new = frozen(np.array(shaped(name, value, state[name].shape, np.float32)))
            self._change(lambda old: old.changed(parameters={**old.parameters, name: new}))
        elif name in state:
            raise AttributeError(f"{name} is set by training, calibrate or load_state_dict")
        else:
            raise no_attribute(self, name, self._public())

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._state()]

    def _state(self) -> dict[str, Array]:
        """Parameters and statistics by name, not copied; none while the network is being made."""
        snapshot = getattr(self, "_snapshot", None)
        return {} if snapshot is None else snapshot.state()

    def _change(self, change: Callable[[Snapshot], Snapshot]) -> None:
        """Puts another version of the network in the place of the current one."""
        with CHANGES:
            self._snapshot = change(self._snapshot)

    @property
    def _fixed(self) -> tuple[str, ...]:
        return *self._arguments, "num_directions"

    @property
    def _parameters(self) -> Mapping[str, Array]:
        return self._snapshot.parameters

    def parameters(self) -> dict[str, Array]:
        """What training changes, by name: read-only arrays, not copies."""
        return dict(self._snapshot.parameters)

    def state_dict(self) -> dict[str, Array]:
        """Copies of parameters and statistics, by name."""
        return {name: np.array(value) for name, value in self._state().items()}

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """Sets parameters and statistics, all in one step. Every name must be there, with its shape;
        statistics may have any number of steps that max_steps allows, and counts up to 2**53. On an error
        nothing changes."""
        expected: dict[str, Array] = dict(self._snapshot.parameters)
        endings = self._suffixes if self._sides else ()
        for suffix in endings:
            steps = 0
            if isinstance(state, Mapping) and f"count{suffix}" in state:
                count = real(f"count{suffix}", state[f"count{suffix}"])
                if count.dtype.kind not in "iu":
                    raise bad_type(f"count{suffix}", "an array of integers", count)
                if count.ndim != 1:
                    raise bad_value(f"count{suffix}", "of shape (steps,)", count)
                steps = len(count)
            for name, like in StepStatistics.empty(self._sides, steps).arrays.items():
                expected[name + suffix] = like
        arrays = checked(state, expected)
        if self._batch_norm:
            for suffix in endings:
                self._check_statistics(suffix, arrays, self._batch_norm.max_steps)
        parameters = {name: frozen(arrays[name]) for name in self._snapshot.parameters}
        names = named_shapes(self._sides, 0)
        statistics = {end: StepStatistics({name: arrays[name + end] for name in names}) for end in endings}
        self._change(lambda old: old.changed(parameters=parameters, statistics=statistics))

    def _check_statistics(self, suffix: str, arrays: Mapping[str, Array], most: int | None) -> None:
        count = arrays[f"count{suffix}"]
        if most is not None and len(count) != most:
            raise bad_value(f"count{suffix}", f"of shape ({most},)", count)
        if not np.array_equal(count, arrays["count_l0"]):
            raise ValueError(f"count{suffix} must equal count_l0: all layers see the same sequences")
        if np.any(np.diff(counted(f"count{suffix}", count)) > 0):
            raise ValueError(f"count{suffix} must not rise from step to step")
        for name in named_shapes(self._sides, 0):
            if name.startswith("running_var") and np.any(arrays[name + suffix] < 0):
                raise ValueError(f"{name}{suffix} must not be negative")

    @property
    def known_steps(self) -> int | None:
        """Batch norm: for how many time steps there are statistics. None without batch norm."""
        statistics = self._snapshot.statistics
        return min(s.known for s in statistics.values()) if statistics else None

    @property
    def overrun(self) -> Overrun | None:
        """Batch norm: what happens past the known steps; may be set. None without batch norm."""
        return self._snapshot.overrun

    @overrun.setter
    def overrun(self, value: Overrun) -> None:
        if not self._sides:
            raise ValueError("overrun belongs to batch norm, and this network has none")
        new = choice("overrun", value, OVERRUNS)
        self._change(lambda old: old.changed(overrun=new))

    def _learn(self, seen: list[dict[str, Any]]) -> None:
        """Adds the statistics of one training batch, by layer and direction as statistics.blank has them, to
        those that are there now: of batches that several threads train with at once, none is lost."""
        momentum = self._batch_norm.momentum if self._batch_norm else None
        batches = dict(zip(self._suffixes, seen, strict=True))
        self._change(lambda old: old.changed(
            statistics={end: old.statistics[end].updated(batch, momentum) for end, batch in batches.items()}
        ))  # fmt: skip

    # --- computing ------------------------------------------------------------------------------------------

    def _states(self, name: str, value: Any, batch: int, unbatched: bool) -> list[Array]:
        """What an argument says of h, or of h and c: arrays (num_layers * directions, B, H), zeros for
        None."""
        shape = (len(self._suffixes), batch, self.hidden_size)
        if value is None:
            return [np.zeros(shape, FLOAT32)] * self._cell.states  # one array twice: nobody writes to it
        outer = (shape[0], shape[2]) if unbatched else shape
        return [np.zeros(shape, FLOAT32) if v is None else shaped(n, v, outer, FLOAT32).reshape(shape)
                for n, v in states(name, value, self._cell)]  # fmt: skip

    def _as_state(self, found: list[Array], unbatched: bool) -> State:
        """h, or (h, c), as the caller has it."""
        if unbatched:
            found = [s[:, 0] for s in found]
        return as_state(found)

    def _as_caller(self, y: Array, unbatched: bool) -> Array:
        """(T, B, *) -> the caller's order of axes."""
        return y[:, 0] if unbatched else y.swapaxes(0, 1) if self.batch_first else y

    def _run(
        self, x: Array, order: Array, ends: Array, start: list[Array], note: Callable[..., Any] | None = None,
        snapshot: Snapshot | None = None,
    ) -> tuple[Array, list[Array]]:  # fmt: skip
        """All layers and directions. x (T, B, D) -> y (T, B, directions * H), and the states at the
        sequences' ends.

        note: called with each layer, its input and its output before it runs; gives the statistics and the
        tape that the layer writes, each an array or None. snapshot: what to compute with, if the caller has
        taken one already.
        """
        T, B, _ = x.shape
        directions, H = self.num_directions, self.hidden_size
        end = [np.empty_like(s) for s in start]
        c0 = cn = statistics = tape = None
        y = x
        for k, layer in enumerate((snapshot or self._snapshot).layers()):
            d = k % directions
            if d == 0:
                x = y
                wide = directions * H
                y = (
                    np.empty((B, T, wide), FLOAT32).swapaxes(0, 1)
                    if self.batch_first
                    else np.empty((T, B, wide), FLOAT32)
                )
            part = y if directions == 1 else y[:, :, d * H : (d + 1) * H]
            if len(start) > 1:
                c0, cn = start[1][k], end[1][k]
            if note is not None:
                statistics, tape = note(layer, x, part)
            layer.forward(x, part, start[0][k], end[0][k], order, ends, 0, statistics, tape, c0, cn)
        return y, end

    def __call__(self, x: ArrayLike, h0: Any = None, lengths: ArrayLike | None = None) -> tuple[Array, State]:
        """Whole sequences at inference.

        x (T, B, D), or (B, T, D) with batch_first, or (T, D) for one sequence. h0, the state to begin with:
        (num_layers * directions, B, H) or (num_layers * directions, H), zeros if None; for an LSTM a pair
        (h0, c0) of such, either of which may be None. lengths (B,): integers 0 .. T; what lies past a length
        is not read.
        -> y (T, B, directions * H), 0 past a length; h, or (h, c), like h0: the state at each sequence's own
        end, which for a sequence of length 0 is its h0.

        Raises ValueError or TypeError for a wrong argument, SequenceTooLongError as BatchNormSpec says.
        """
        x, lengths, unbatched = sequences(x, lengths, self.input_size, self.batch_first)
        T, B, _ = x.shape
        order, ends = longest_first(lengths, T, B)
        start = self._states("h0", h0, B, unbatched)
        snapshot = self._snapshot
        snapshot.refuse_overrun(order, ends)
        y, end = self._run(x, order, ends, start, None, snapshot)
        return self._as_caller(y, unbatched), self._as_state(end, unbatched)

    def stream(self, batch_size: int = 1) -> Stream[State]:
        """The network one step a call, for ever, in constant memory: s = rnn.stream(B); y_t = s(x_t), a new
        array, or s(x_t, out=y_t), which allocates nothing. See Stream."""
        if self.bidirectional:
            raise ValueError(
                "a bidirectional network cannot stream: its second direction starts at the sequence's end"
            )
        batch_size = integer("batch_size", batch_size, 1, 2**31 - 1)
        return Stream(self._snapshot, batch_size)

    def forward_train(
        self, x: ArrayLike, h0: Any = None, lengths: ArrayLike | None = None
    ) -> tuple[Array, State, Tape]:
        """As a call, and keeps what `backward` needs. -> y, h or (h, c), tape.

        For norm None, for layer norm as in the paper (the placement, cell and span that norm="layer" has, no
        inner bias), and for batch norm, which normalises step t with the statistics of the sequences that
        live at t and updates the running ones. Other networks are trained with lnrnn.torch; here they raise
        ValueError.
        """
        return training.forward(self, x, h0, lengths)

    def backward(
        self, tape: Tape, gy: ArrayLike | None, gh: Any = None
    ) -> tuple[Array, State, dict[str, Array]]:
        """Back-propagation through time.

        tape: from `forward_train`. gy: gradient of y, of y's shape, or None for zeros (what lies past a
        length is not read). gh: gradient of h, of h's shape, or None; for an LSTM a pair (gh, gc), either of
        which may be None.
        -> gx like x, gh0 like h0, and gradients by parameter name.
        """
        return training.backward(self, tape, gy, gh)

    def calibrate(self, batches: Iterable[Any]) -> None:
        """Batch norm: recomputes the statistics of every step, exactly, over the sequences given.

        batches yields x, or (x, lengths). All sequences go through time together; each step is normalised by
        the mean and biased variance over all that live at it, and these are stored, with their number. How
        the sequences were divided into batches does not matter. All are held in memory at once. Old
        statistics are replaced. The parameters are those that the network had when it began to compute.
        """
        calibration.calibrate(self, batches)

    @property
    def dtype(self) -> Dtype:
        """What the weight matrices are computed with: "float32", "bfloat16" or "int8"."""
        return self._snapshot.dtype

    def to_dtype(self, dtype: Dtype) -> Self:
        """A network like this one that computes with weight matrices of another type: a new object.

        dtype: "bfloat16" (rounded to nearest even), "int8" (whole numbers times one scale for each output,
        max |w| / 127; what they multiply is rounded to 14 bits of each row's largest, and sums are exact), or
        "float32" (as they were). Half and a quarter of the bytes to read. Gains, biases, norms and states
        stay float32, and so do the parameters that one reads, sets and saves: rounding is part of packing.
        For inference; `forward_train` wants float32.
        """
        other = copy.copy(self)
        new = choice("dtype", dtype, DTYPES)
        other._change(lambda old: old.changed(dtype=new))
        return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes parameters, statistics and configuration to a .safetensors file, whole or not at all.

        Raises OSError; ImportError without the safetensors package."""
        save(copy.copy(self), path)  # of one version, whoever sets something meanwhile

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights in the form in which they are computed with, which the first call makes; 0
        before it."""
        return self._snapshot.packed_bytes

    def __repr__(self) -> str:
        named = [
            f"{name}={getattr(self, name)!r}" for name in (*self._arguments[2:], "dtype", "packed_bytes")
        ]
        return f"{type(self).__name__}({', '.join([str(self.input_size), str(self.hidden_size), *named])})"
