"""What RNN, LSTM and GRU have in common: parameters, whole sequences, streams, copies. What one layer does is in
reference.py, readable, and in sequence.c, fast."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _core, calibration, training
from ._errors import bad_type, bad_value, choice, flag, integer, real, shaped
from ._state import checked
from .cells import Cell
from .io import save
from .norms import OVERRUNS, PLACEMENTS, BatchNormSpec, LayerNormSpec, norm_spec
from .parameters import shapes, sides, suffixes
from .sequences import FLOAT32, longest_first, sequences, states
from .statistics import StepStatistics, named_shapes
from .stream import Stream
from .training import Tape

Array = np.ndarray
State = Array | tuple[Array, Array]
DTYPES = ("float32", "bfloat16", "int8")


def _frozen(array: Array) -> Array:
    array.setflags(write=False)
    return array


class Network:
    """The base of RNN, LSTM and GRU, which say what they compute and how they are made."""

    _cell: Cell
    _arguments: tuple[str, ...] = (
        "input_size", "hidden_size", "num_layers", "norm", "bias", "batch_first", "bidirectional",
    )  # fmt: skip
    _act = 0

    def _make(
        self, input_size: int, hidden_size: int, num_layers: int, norm: Any, bias: bool, batch_first: bool,
        bidirectional: bool, seed: int | None,
    ) -> None:  # fmt: skip
        limit = 2**31 - 1  # so that no product of two sizes overflows
        self.input_size = integer("input_size", input_size, 1, limit)
        self.hidden_size = integer("hidden_size", hidden_size, 1, limit)
        self.num_layers = integer("num_layers", num_layers, 1, 1024)
        if self._cell.gates * self.hidden_size * max(self.hidden_size, self.input_size) > 2**40:
            raise bad_value("hidden_size", "such that a weight matrix has at most 2**40 elements", self.hidden_size)
        self.norm = norm_spec(norm, self._cell)
        self.bias = flag("bias", bias)
        self.batch_first = flag("batch_first", batch_first)
        self.bidirectional = flag("bidirectional", bidirectional)
        if seed is not None:
            seed = integer("seed", seed, 0)
        self.num_directions = 2 if self.bidirectional else 1
        self._suffixes = suffixes(self.num_layers, self.bidirectional)
        self._sides = sides(self._cell, self.hidden_size) if isinstance(self.norm, BatchNormSpec) else {}
        self._generation = object()
        self._compiled: tuple[object, tuple[Any, ...]] = (None, ())
        self._parameters: dict[str, Array] = {}
        self._statistics: dict[str, StepStatistics] = {}
        self._dtype = "float32"
        self._overrun = self.norm.overrun if self._sides else None
        rng = np.random.default_rng(seed)
        bound = self.hidden_size**-0.5
        for name, shape in shapes(
            self._cell, self.input_size, self.hidden_size, self.num_layers, self.bidirectional, self.norm, self.bias
        ).items():
            if name.startswith("gain"):
                value = np.ones(shape, np.float32)
            elif name.startswith("bias") and self.norm is not None:
                value = np.zeros(shape, np.float32)
            else:
                value = rng.uniform(-bound, bound, shape).astype(np.float32)
            self._parameters[name] = _frozen(value)
        if self._sides:
            for suffix in self._suffixes:
                self._statistics[suffix] = StepStatistics.empty(self._sides, self.norm.max_steps or 0)

    # --- parameters and state ---------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if name in own.get("_parameters", ()):
            return own["_parameters"][name]
        for suffix, statistics in own.get("_statistics", {}).items():
            short = name.removesuffix(suffix)
            if short != name and short in statistics.arrays:
                return statistics.arrays[short]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        parameters = self.__dict__.get("_parameters", {})
        if name in parameters:
            parameters[name] = _frozen(np.array(shaped(name, value, parameters[name].shape, np.float32)))
            self._changed()
        elif name in self.__dict__ and (name in self._arguments or name == "num_directions"):
            raise AttributeError(f"{name} is fixed when the network is made")
        elif name.startswith(("running_mean_", "running_var_", "count_l")):
            raise AttributeError(f"{name} is set by training, calibrate or load_state_dict")
        else:
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.state_dict()]

    def parameters(self) -> dict[str, Array]:
        """What training changes, by name: read-only arrays, not copies."""
        return dict(self._parameters)

    def state_dict(self) -> dict[str, Array]:
        """Copies of parameters and statistics, by name."""
        state = dict(self._parameters)
        for suffix, statistics in self._statistics.items():
            state |= {name + suffix: value for name, value in statistics.arrays.items()}
        return {name: np.array(value) for name, value in state.items()}

    def load_state_dict(self, state: dict[str, ArrayLike]) -> None:
        """Sets parameters and statistics. Every name must be there, with its shape; statistics may have any number of
        steps that max_steps allows. On an error nothing changes."""
        expected: dict[str, Array] = dict(self._parameters)
        for suffix in self._statistics:
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
        for suffix in self._statistics:
            self._check_statistics(suffix, arrays)
        for name in self._parameters:
            self._parameters[name] = _frozen(arrays[name])
        for suffix in self._statistics:
            own = {name: arrays[name + suffix] for name in named_shapes(self._sides, 0)}
            self._statistics[suffix] = StepStatistics(own)
        self._changed()

    def _check_statistics(self, suffix: str, arrays: Mapping[str, Array]) -> None:
        most, count = self.norm.max_steps, arrays[f"count{suffix}"]
        if most is not None and len(count) != most:
            raise bad_value(f"count{suffix}", f"of shape ({most},)", count)
        if not np.array_equal(count, arrays["count_l0"]):
            raise ValueError(f"count{suffix} must equal count_l0: all layers see the same sequences")
        if np.any(count < 0) or np.any(np.diff(count) > 0):
            raise ValueError(f"count{suffix} must not be negative and must not rise from step to step")
        for name in named_shapes(self._sides, 0):
            if name.startswith("running_var") and np.any(arrays[name + suffix] < 0):
                raise ValueError(f"{name}{suffix} must not be negative")

    @property
    def known_steps(self) -> int | None:
        """Batch norm: for how many time steps there are statistics. None without batch norm."""
        return min(s.known for s in self._statistics.values()) if self._statistics else None

    @property
    def overrun(self) -> str | None:
        """Batch norm: what happens past the known steps; may be set. None without batch norm."""
        return self._overrun

    @overrun.setter
    def overrun(self, value: str) -> None:
        if not self._statistics:
            raise ValueError("overrun belongs to batch norm, and this network has none")
        self._overrun = choice("overrun", value, OVERRUNS)
        self._changed()

    def _changed(self) -> None:
        """Called after a parameter or statistic was set. A thread that was packing the old ones meanwhile keeps what it
        packed under the old generation, where nobody will find it."""
        self._generation = object()

    def _layers(self) -> tuple[Any, ...]:
        """The compiled form of every layer and direction, made when it is first needed after a change."""
        generation = self._generation  # before any parameter is read: see _changed
        kept, layers = self._compiled
        if kept is not generation:
            layers = tuple(map(self._layer, self._suffixes))
            self._compiled = generation, layers
        return layers

    def _layer(self, suffix: str) -> Any:
        cut = len(suffix)
        own = {name[:-cut]: value for name, value in self._parameters.items() if name.endswith(suffix)}
        norm, w_ih, w_hh = self.norm, own.pop("weight_ih"), own.pop("weight_hh")
        options: dict[str, Any] = {"norm": 0, "eps": 0.0}
        if isinstance(norm, LayerNormSpec):
            options = {
                "norm": 1, "eps": norm.eps, "placement": PLACEMENTS.index(norm.placement),
                "span": int(norm.span == "all"), "cell_norm": (None, "out", "carry").index(norm.cell),
            }  # fmt: skip
        elif self._sides:
            split = int("ih" in self._sides)
            options = {"norm": 2, "eps": norm.eps, "placement": split, "cell_norm": int("c" in self._sides)}
        layer = _core.Layer(
            self._cell.number, w_ih, w_hh, own, act=self._act, reverse=suffix.endswith("_reverse"),
            dtype=DTYPES.index(self._dtype), **options,
        )  # fmt: skip
        if self._sides:
            layer.set_steps(*self._statistics[suffix].folded(own, norm.eps, self._overrun))
        return layer

    # --- computing --------------------------------------------------------------------------------------------

    def _states(self, name: str, value: Any, batch: int, unbatched: bool) -> list[Array]:
        """What an argument says of h, or of h and c: arrays (num_layers * directions, B, H), zeros for None."""
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
        return found[0] if len(found) == 1 else (found[0], found[1])

    def _as_caller(self, y: Array, unbatched: bool) -> Array:
        """(T, B, *) -> the caller's order of axes."""
        return y[:, 0] if unbatched else y.swapaxes(0, 1) if self.batch_first else y

    def _run(
        self, x: Array, order: Array, ends: Array, start: list[Array], note: Callable[..., Any] | None = None
    ) -> tuple[Array, list[Array]]:
        """All layers and directions. x (T, B, D) -> y (T, B, directions * H), and the states at the sequences' ends.

        note: called with each layer, its input and its output before it runs; gives the statistics and the tape that the
        layer writes, each an array or None.
        """
        T, B, _ = x.shape
        directions, H = self.num_directions, self.hidden_size
        end = [np.empty_like(s) for s in start]
        c0 = cn = statistics = tape = None
        y = x
        for k, layer in enumerate(self._layers()):
            d = k % directions
            if d == 0:
                x = y
                wide = directions * H
                y = np.empty((B, T, wide), FLOAT32).swapaxes(0, 1) if self.batch_first else np.empty((T, B, wide), FLOAT32)
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
        (num_layers * directions, B, H) or (num_layers * directions, H), zeros if None; for an LSTM a pair (h0, c0) of such,
        either of which may be None. lengths (B,): integers 0 .. T; what lies past a length is not read.
        -> y (T, B, directions * H), 0 past a length; h, or (h, c), like h0: the state at each sequence's own end, which for
        a sequence of length 0 is its h0.

        Raises ValueError or TypeError for a wrong argument, SequenceTooLongError as BatchNormSpec says.
        """
        x, lengths, unbatched = sequences(x, lengths, self.input_size, self.batch_first)
        T, B, _ = x.shape
        order, ends = longest_first(lengths, T, B)
        start = self._states("h0", h0, B, unbatched)
        for statistics in self._statistics.values():
            statistics.refuse_overrun(order, ends, self._overrun)
        y, end = self._run(x, order, ends, start)
        return self._as_caller(y, unbatched), self._as_state(end, unbatched)

    def stream(self, batch_size: int = 1) -> Stream:
        """The network one step a call, for ever, in constant memory: see Stream."""
        if self.bidirectional:
            raise ValueError("a bidirectional network cannot stream: its second direction starts at the sequence's end")
        batch_size = integer("batch_size", batch_size, 1, 2**31 - 1)
        return Stream(self._layers(), self._cell, batch_size, self.input_size, self.hidden_size,
                      self._statistics.get("_l0"), self._overrun)  # fmt: skip

    def forward_train(
        self, x: ArrayLike, h0: Any = None, lengths: ArrayLike | None = None
    ) -> tuple[Array, State, Tape]:
        """As a call, and keeps what `backward` needs. -> y, h or (h, c), tape.

        For norm None, for layer norm as in the paper (the placement, cell and span that norm="layer" has, no inner bias), and
        for batch norm, which normalises step t with the statistics of the sequences that live at t and updates the running
        ones. Other networks are trained with lnrnn.torch; here they raise ValueError.
        """
        return training.forward(self, x, h0, lengths)

    def backward(self, tape: Tape, gy: ArrayLike | None, gh: Any = None) -> tuple[Array, State, dict[str, Array]]:
        """Back-propagation through time.

        tape: from `forward_train`. gy: gradient of y, of y's shape, or None for zeros (what lies past a length is not
        read). gh: gradient of h, of h's shape, or None; for an LSTM a pair (gh, gc), either of which may be None.
        -> gx like x, gh0 like h0, and gradients by parameter name.
        """
        return training.backward(self, tape, gy, gh)

    def calibrate(self, batches: Iterable[Any]) -> None:
        """Batch norm: recomputes the statistics of every step, exactly, over the sequences given.

        batches yields x, or (x, lengths). All sequences go through time together; each step is normalised by the mean
        and biased variance over all that live at it, and these are stored, with their number. How the sequences were
        divided into batches does not matter. All are held in memory at once. Old statistics are replaced.
        """
        calibration.calibrate(self, batches)

    @property
    def dtype(self) -> str:
        """What the weight matrices are computed with: "float32", "bfloat16" or "int8"."""
        return self._dtype

    def to_dtype(self, dtype: str) -> Any:
        """A network like this one that computes with weight matrices of another type: a new object.

        dtype: "bfloat16" (rounded to nearest even), "int8" (whole numbers times one scale for each output, max |w| / 127;
        what they multiply is rounded to 14 bits of each row's largest, and sums are exact), or "float32" (as they were). Half and a
        quarter of the bytes to read. Gains, biases, norms and states stay float32, and so do the parameters that one
        reads, sets and saves: rounding is part of packing. For inference; `forward_train` wants float32.
        """
        other = copy.copy(self)
        other._dtype = choice("dtype", dtype, DTYPES)
        return other

    def __copy__(self) -> Any:
        """A network of its own. The arrays are shared, for none of them is ever written to."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__getstate__())
        return other

    def __getstate__(self) -> dict[str, Any]:
        # What is packed is packed for this machine, and made again where it is needed.
        own = {"_compiled": (None, ()), "_parameters": dict(self._parameters), "_statistics": dict(self._statistics)}
        return self.__dict__ | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name, value in self._parameters.items():
            self._parameters[name] = _frozen(value)
        for suffix, s in self._statistics.items():
            self._statistics[suffix] = StepStatistics(s.arrays)

    def save(self, path: Any) -> None:
        """Writes parameters, statistics and configuration to a .safetensors file, whole or not at all.

        Raises OSError; ImportError without the safetensors package."""
        save(self, path)

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights in the form in which they are computed with, which the first call makes; 0 before it."""
        return sum(layer.nbytes for layer in self._compiled[1])

    def __repr__(self) -> str:
        named = [f"{name}={getattr(self, name)!r}" for name in (*self._arguments[2:], "dtype", "packed_bytes")]
        return f"{type(self).__name__}({', '.join([str(self.input_size), str(self.hidden_size), *named])})"
