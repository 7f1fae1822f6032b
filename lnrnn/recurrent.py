"""The recurrent network: parameters, whole sequences, training. What one layer does is in reference.rnn, readable, and in
sequence.c, fast."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _core
from ._errors import SequenceTooLongError, bad_type, bad_value, choice, flag, integer, real, shaped
from ._state import checked
from .io import save
from .norms import OVERRUNS, BatchNormSpec, LayerNormSpec, StepStatistics, norm_spec
from .parameters import shapes, suffixes
from .sequences import longest_first, sequences
from .stream import Stream

Array = np.ndarray
_FIXED = ("input_size", "hidden_size", "num_layers", "nonlinearity", "norm", "bias", "batch_first", "bidirectional")
DTYPES = ("float32", "bfloat16", "int8")
NONLINEARITIES = ("tanh", "relu", "sigmoid", "identity")


@dataclass(frozen=True)
class Tape:
    """What `forward_train` keeps for `backward`."""

    owner: RNN
    order: Array
    ends: Array  # lengths in that order
    layout: tuple[bool, tuple[int, ...]]  # unbatched, shape of y as the caller has it
    inputs: list[Array]  # by layer, (T, B, inputs)
    outputs: list[Array]  # by layer, (T, B, D * H)
    h0: Array
    runs: list[tuple[Any, Any, Array]]  # by layer and direction: the packed layer, the statistics, the C tape


def _frozen(array: Array) -> Array:
    array.setflags(write=False)
    return array


class RNN:
    """A recurrent network with a norm inside the cell. As torch.nn.RNN, and more:

        h_t = f(norm(W_ih x_t + W_hh h_{t-1}))       f: nonlinearity, norm(a) = gain / sigma * (a - mu) + bias

    input_size D, hidden_size H, num_layers, nonlinearity "tanh", "relu", "sigmoid" or "identity".
    norm: "layer" (mu, sigma over the H units of one sample at one step; Ba et al. 2016, arXiv 1607.06450, equation 4),
    "batch" or BatchNormSpec (over the batch, one mu and sigma per time step and unit; Cooijmans et al. 2016, arXiv
    1603.09025), None (torch's own cell, with torch's two biases), or LayerNormSpec for another eps.
    bias: whether the cell has one. batch_first: x and y are (B, T, *) instead of (T, B, *). bidirectional: a second
    network reads from each sequence's own end. seed: for the weights, uniform in +-1/sqrt(H) as torch's; gain 1, bias 0.

    Parameters are attributes with torch's names: weight_ih_l0 (H, D), weight_hh_l0 (H, H), gain_l0 and bias_l0 (H), or
    bias_ih_l0 and bias_hh_l0 without a norm; _l1 .. for more layers, _reverse for the other direction. They read as
    read-only float32 arrays; assign to set one (it is copied, and packed again at the next call). Batch norm's
    statistics are attributes too: running_mean_l0, running_var_l0 (steps, H) and count_l0 (steps,).

    Everything is computed in float32. Under layer norm, no norm, and batch norm at inference (but overrun="batch") the
    result for a sequence does not depend on the rest of the batch, to the last bit.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        norm: str | LayerNormSpec | BatchNormSpec | None = "layer",
        bias: bool = True,
        batch_first: bool = False,
        bidirectional: bool = False,
        seed: int | None = None,
    ) -> None:
        limit = 2**31 - 1  # so that no product of two sizes overflows
        self.input_size = integer("input_size", input_size, 1, limit)
        self.hidden_size = integer("hidden_size", hidden_size, 1, limit)
        self.num_layers = integer("num_layers", num_layers, 1, 1024)
        if self.hidden_size * max(self.hidden_size, self.input_size) > 2**40:
            raise bad_value("hidden_size", "such that a weight matrix has at most 2**40 elements", self.hidden_size)
        self.nonlinearity = choice("nonlinearity", nonlinearity, NONLINEARITIES)
        self.norm = norm_spec(norm)
        self.bias = flag("bias", bias)
        self.batch_first = flag("batch_first", batch_first)
        self.bidirectional = flag("bidirectional", bidirectional)
        if seed is not None:
            seed = integer("seed", seed, 0)
        self._layers: dict[str, tuple[object, Any]] = {}
        self._generation = object()
        self._parameters: dict[str, Array] = {}
        self._statistics: dict[str, StepStatistics] = {}
        self._dtype = "float32"
        self._overrun = self.norm.overrun if isinstance(self.norm, BatchNormSpec) else None
        rng = np.random.default_rng(seed)
        bound = self.hidden_size**-0.5
        for name, shape in shapes(
            self.input_size, self.hidden_size, self.num_layers, self.bidirectional, self.norm is not None, self.bias
        ).items():
            if name.startswith("gain"):
                value = np.ones(shape, np.float32)
            elif name.startswith("bias") and self.norm is not None:
                value = np.zeros(shape, np.float32)
            else:
                value = rng.uniform(-bound, bound, shape).astype(np.float32)
            self._parameters[name] = _frozen(value)
        if isinstance(self.norm, BatchNormSpec):
            for suffix in self._suffixes():
                self._statistics[suffix] = StepStatistics.empty(self.norm.max_steps or 0, self.hidden_size)

    # --- parameters and state ---------------------------------------------------------------------------------

    @property
    def num_directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self) -> list[str]:
        return suffixes(self.num_layers, self.bidirectional)

    def __getattr__(self, name: str) -> Any:
        parameters = self.__dict__.get("_parameters", {})
        if name in parameters:
            return parameters[name]
        for field in ("running_mean", "running_var", "count"):
            statistics = self.__dict__.get("_statistics", {}).get(name.removeprefix(field))
            if statistics is not None and name.startswith(field):
                return getattr(statistics, field.removeprefix("running_"))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        parameters = self.__dict__.get("_parameters", {})
        if name in parameters:
            parameters[name] = _frozen(np.array(shaped(name, value, parameters[name].shape, np.float32)))
            self._changed()
        elif name in _FIXED and name in self.__dict__:
            raise AttributeError(f"{name} is fixed when the network is made")
        elif name.startswith(("running_mean_l", "running_var_l", "count_l")):
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
        for suffix, s in self._statistics.items():
            state |= {f"running_mean{suffix}": s.mean, f"running_var{suffix}": s.var, f"count{suffix}": s.count}
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
            expected[f"count{suffix}"] = np.empty(steps, np.int64)
            for field in ("running_mean", "running_var"):
                expected[f"{field}{suffix}"] = np.empty((steps, self.hidden_size))
        arrays = checked(state, expected)
        for suffix in self._statistics:
            self._check_statistics(suffix, arrays["count_l0"], *(arrays[f"{f}{suffix}"] for f in ("running_mean", "running_var", "count")))
        for name in self._parameters:
            self._parameters[name] = _frozen(arrays[name])
        for suffix in self._statistics:
            fields = (arrays[f"{f}{suffix}"] for f in ("running_mean", "running_var", "count"))
            self._statistics[suffix] = StepStatistics(*fields)
        self._changed()

    def _check_statistics(self, suffix: str, first: Array, mean: Array, var: Array, count: Array) -> None:
        most = self.norm.max_steps
        if most is not None and len(count) != most:
            raise bad_value(f"count{suffix}", f"of shape ({most},)", count)
        if not np.array_equal(count, first):
            raise ValueError(f"count{suffix} must equal count_l0: all layers see the same sequences")
        if np.any(count < 0) or np.any(np.diff(count) > 0):
            raise ValueError(f"count{suffix} must not be negative and must not rise from step to step")
        if np.any(var < 0):
            raise ValueError(f"running_var{suffix} must not be negative")

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

    def _layer(self, suffix: str) -> Any:
        """The packed form of a layer, made when it is first needed after a change."""
        generation = self._generation  # before any parameter is read: see _changed
        kept, layer = self._layers.get(suffix, (None, None))
        if kept is not generation:
            p = self._parameters
            names = ("gain", "bias", "bias_ih", "bias_hh")
            own = {name: p[name + suffix] for name in names if name + suffix in p}
            kind = 0 if self.norm is None else 1 if isinstance(self.norm, LayerNormSpec) else 2
            layer = _core.Layer(
                0, p[f"weight_ih{suffix}"], p[f"weight_hh{suffix}"], own, act=NONLINEARITIES.index(self.nonlinearity),
                norm=kind, eps=self.norm.eps if kind else 0.0, reverse=suffix.endswith("_reverse"),
                dtype=DTYPES.index(self._dtype),
            )  # fmt: skip
            if kind == 2:
                gain, bias = p[f"gain{suffix}"], own.get("bias", np.float32(0))
                scale, shift, known, beyond = self._statistics[suffix].folded(gain, bias, self.norm.eps, self._overrun)
                layer.set_steps({"": (scale, shift)}, known, beyond)
            self._layers[suffix] = (generation, layer)
        return layer

    # --- input ------------------------------------------------------------------------------------------------

    def _sequences(self, x: ArrayLike, lengths: ArrayLike | None) -> tuple[Array, Array, bool]:
        return sequences(x, lengths, self.input_size, self.batch_first)

    def _state(self, name: str, value: ArrayLike | None, batch: int, unbatched: bool) -> Array:
        """A state (num_layers * directions, B, H), zeros for None."""
        shape = (len(self._suffixes()), batch, self.hidden_size)
        if value is None:
            return np.zeros(shape, np.float32)
        if unbatched:
            return shaped(name, value, (shape[0], shape[2]), np.float32).reshape(shape)
        return shaped(name, value, shape, np.float32)

    def _output(self, T: int, B: int) -> Array:
        """An array for y that reads as (T, B, directions * H) whatever the caller's order of axes."""
        wide = self.num_directions * self.hidden_size
        return np.empty((B, T, wide), np.float32).swapaxes(0, 1) if self.batch_first else np.empty((T, B, wide), np.float32)

    def _as_caller(self, y: Array, unbatched: bool) -> Array:
        """(T, B, *) -> the caller's order of axes."""
        return y[:, 0] if unbatched else y.swapaxes(0, 1) if self.batch_first else y

    # --- computing --------------------------------------------------------------------------------------------

    def __call__(
        self, x: ArrayLike, h0: ArrayLike | None = None, lengths: ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """Whole sequences at inference.

        x (T, B, D), or (B, T, D) with batch_first, or (T, D) for one sequence. h0 (num_layers * directions, B, H) or
        (num_layers * directions, H), zeros if None. lengths (B,): integers 0 .. T; what lies past a length is not read.
        -> y (T, B, directions * H), 0 past a length; h like h0: the state at each sequence's own end.

        Raises ValueError or TypeError for a wrong argument, SequenceTooLongError as BatchNormSpec says.
        """
        x, lengths, unbatched = self._sequences(x, lengths)
        h0 = self._state("h0", h0, x.shape[1], unbatched)
        for statistics in self._statistics.values():
            statistics.refuse_overrun(lengths, 0, self._overrun)
        order, ends = longest_first(lengths)
        h, H = np.empty_like(h0), self.hidden_size
        for k, suffix in enumerate(self._suffixes()):
            direction = k % self.num_directions
            if direction == 0:
                y = self._output(*x.shape[:2])
            part = y[:, :, direction * H : (direction + 1) * H]
            self._layer(suffix).forward(x, part, h0[k], h[k], order, ends)
            if direction == self.num_directions - 1:
                x = y
        return self._as_caller(y, unbatched), h[:, 0] if unbatched else h

    def stream(self, batch_size: int = 1) -> Stream:
        """The network one step a call, for ever, in constant memory: see Stream."""
        if self.bidirectional:
            raise ValueError("a bidirectional network cannot stream: its second direction starts at the sequence's end")
        names = self._suffixes()
        first = self._statistics.get(names[0])
        return Stream([self._layer(s) for s in names], integer("batch_size", batch_size, 1, 2**31 - 1), self.input_size,
                      self.hidden_size, first, self._overrun)  # fmt: skip

    def forward_train(
        self, x: ArrayLike, h0: ArrayLike | None = None, lengths: ArrayLike | None = None
    ) -> tuple[Array, Array, Tape]:
        """As a call, and keeps what `backward` needs. -> y, h, tape.

        Batch norm normalises step t with the statistics of the sequences that live at t, and updates the running ones.
        """
        if self._dtype != "float32":
            raise ValueError(f"training wants float32 weights, these are {self._dtype}: use to_dtype('float32')")
        x, lengths, unbatched = self._sequences(x, lengths)
        x = np.array(x, order="C")  # the tape's own: the caller may go on with x
        T, B = x.shape[:2]
        h0 = np.array(self._state("h0", h0, B, unbatched))
        most = self.norm.max_steps if self._statistics else None
        if most is not None and lengths.max(initial=0) > most:
            sequence = int(np.flatnonzero(lengths > most)[0])
            raise SequenceTooLongError(sequence, int(lengths[sequence]), most, "raise max_steps of the BatchNormSpec")
        order, ends = longest_first(lengths)
        h, H, alive = np.empty_like(h0), self.hidden_size, int(lengths.sum())
        inputs, outputs, runs = [], [], []
        for k, suffix in enumerate(self._suffixes()):
            direction = k % self.num_directions
            if direction == 0:
                y = np.empty((T, B, self.num_directions * H), np.float32)
                inputs.append(x)
                outputs.append(y)
            layer = self._layer(suffix)
            statistics = _empty_statistics(T, H) if self._statistics else None
            record = layer.tape(alive)
            part = y[:, :, direction * H : (direction + 1) * H]
            layer.forward(x, part, h0[k], h[k], order, ends, 0, _sides(statistics), record)
            runs.append((layer, statistics, record))
            if direction == self.num_directions - 1:
                x = y
        for suffix, (_, statistics, _) in zip(self._suffixes(), runs, strict=True):
            if statistics is not None:
                self._statistics[suffix] = self._statistics[suffix].updated(*statistics, self.norm.momentum)
                self._changed()  # its table of steps is old now
        shown = self._as_caller(y, unbatched)
        tape = Tape(self, order, ends, (unbatched, shown.shape), inputs, outputs, h0, runs)
        return np.array(shown), h[:, 0] if unbatched else h, tape

    def backward(
        self, tape: Tape, gy: ArrayLike | None, gh: ArrayLike | None = None
    ) -> tuple[Array, Array, dict[str, Array]]:
        """Back-propagation through time.

        tape: from `forward_train`. gy: gradient of y, of y's shape, or None for zeros (what lies past a length is not
        read). gh: gradient of h, of h's shape, or None. -> gx like x, gh0 like h0, and gradients by parameter name.
        """
        if not isinstance(tape, Tape) or tape.owner is not self:
            raise bad_type("tape", "what this network's forward_train returned", tape)
        (unbatched, shape), H, D = tape.layout, self.hidden_size, self.num_directions
        T, B = tape.inputs[0].shape[:2]
        if gy is None:
            grad = np.zeros((T, B, D * H), np.float32)
        else:
            given = shaped("gy", gy, shape, np.float32)
            given = given[:, None] if unbatched else given.swapaxes(0, 1) if self.batch_first else given
            grad = np.ascontiguousarray(given)
        gh = self._state("gh", gh, B, unbatched)
        gh0 = np.empty_like(gh)
        grads: dict[str, Array] = {}
        names = self._suffixes()
        for k in reversed(range(self.num_layers)):
            x, y = tape.inputs[k], tape.outputs[k]
            below = np.zeros_like(x)
            for d in range(D):
                i = k * D + d
                layer, statistics, record = tape.runs[i]
                part = slice(d * H, (d + 1) * H)
                gx = np.zeros_like(x)
                gw_ih, gw_hh = np.empty((H, x.shape[2]), np.float32), np.empty((H, H), np.float32)
                ggain, gbias = np.empty(H), np.empty(H)
                layer.backward(x, y[:, :, part], tape.h0[i], tape.order, tape.ends, _sides(statistics), record,
                               grad[:, :, part], gh[i], gx, gh0[i], gw_ih, gw_hh, {"gain": ggain, "bias": gbias})  # fmt: skip
                below += gx
                found = {"weight_ih": gw_ih, "weight_hh": gw_hh, "gain": ggain, "bias": gbias,
                         "bias_ih": gbias, "bias_hh": gbias}  # fmt: skip
                grads |= {n + names[i]: np.array(g, np.float32) for n, g in found.items()
                          if n + names[i] in self._parameters}  # fmt: skip
            grad = below
        gx = np.ascontiguousarray(self._as_caller(grad, unbatched))
        return gx, gh0[:, 0] if unbatched else gh0, {name: grads[name] for name in self._parameters}

    def calibrate(self, batches: Iterable[Any]) -> None:
        """Batch norm: recomputes the statistics of every step, exactly, over the sequences given.

        batches yields x, or (x, lengths). All sequences go through time together; each step is normalised by the mean
        and biased variance over all that live at it, and these are stored, with their number. How the sequences were
        divided into batches does not matter. All are held in memory at once. Old statistics are replaced.
        """
        if not self._statistics:
            raise ValueError("calibrate belongs to batch norm, and this network has none")
        if hasattr(batches, "ndim") or not isinstance(batches, Iterable):
            raise bad_type("batches", "an iterable of x or (x, lengths), not one array", batches)
        parts = []
        for batch in batches:
            x, lengths = batch if isinstance(batch, tuple) and len(batch) == 2 else (batch, None)
            parts.append(self._sequences(x, lengths)[:2])
        lengths = np.concatenate([n for _, n in parts]) if parts else np.empty(0, np.int64)
        T, B, H = int(lengths.max(initial=0)), len(lengths), self.hidden_size
        if T == 0:
            raise ValueError("batches must hold at least one sequence of at least one step, got none")
        if self.norm.max_steps is not None and T > self.norm.max_steps:
            sequence = int(np.flatnonzero(lengths > self.norm.max_steps)[0])
            raise SequenceTooLongError(sequence, int(lengths[sequence]), self.norm.max_steps, "raise max_steps")
        x, at = np.zeros((T, B, self.input_size), np.float32), 0
        for part, n in parts:
            x[: min(len(part), T), at : at + len(n)] = part[:T]
            at += len(n)
        order, ends = longest_first(lengths)
        zeros = np.zeros((B, H), np.float32)
        for k, suffix in enumerate(self._suffixes()):
            direction = k % self.num_directions
            if direction == 0:
                y = np.empty((T, B, self.num_directions * H), np.float32)
            statistics = _empty_statistics(T, H)
            part = y[:, :, direction * H : (direction + 1) * H]
            self._layer(suffix).forward(x, part, zeros, np.empty_like(zeros), order, ends, 0, _sides(statistics))
            nothing = StepStatistics.empty(max(T, self.norm.max_steps or 0), H)
            self._statistics[suffix] = nothing.updated(*statistics, None)
            if direction == self.num_directions - 1:
                x = y
        self._changed()

    @property
    def dtype(self) -> str:
        """What the weight matrices are computed with: "float32", "bfloat16" or "int8"."""
        return self._dtype

    def to_dtype(self, dtype: str) -> RNN:
        """A network like this one that computes with weight matrices of another type: a new object.

        dtype: "bfloat16" (rounded to nearest even), "int8" (whole numbers times one scale for each output, max |w| / 127;
        what they multiply is rounded to 14 bits of each row's largest, and sums are exact), or "float32" (as they were). Half and a
        quarter of the bytes to read. Gains, biases, norms and states stay float32, and so do the parameters that one
        reads, sets and saves: rounding is part of packing. For inference; `forward_train` wants float32.
        """
        other = copy.copy(self)
        other._dtype = choice("dtype", dtype, DTYPES)
        return other

    def __copy__(self) -> RNN:
        """A network of its own. The arrays are shared, for none of them is ever written to."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__getstate__())
        return other

    def __getstate__(self) -> dict[str, Any]:
        # What is packed is packed for this machine, and made again where it is needed.
        own = {"_layers": {}, "_parameters": dict(self._parameters), "_statistics": dict(self._statistics)}
        return self.__dict__ | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name, value in self._parameters.items():
            self._parameters[name] = _frozen(value)
        for suffix, s in self._statistics.items():
            self._statistics[suffix] = StepStatistics(s.mean, s.var, s.count)

    def save(self, path: Any) -> None:
        """Writes parameters, statistics and configuration to a .safetensors file. Needs the safetensors package."""
        save(self, path)

    def __repr__(self) -> str:
        packed = sum(layer.nbytes for _, layer in self._layers.values())
        return (
            f"RNN({self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, "
            f"nonlinearity={self.nonlinearity!r}, norm={self.norm!r}, bias={self.bias}, batch_first={self.batch_first}, "
            f"bidirectional={self.bidirectional}, dtype={self._dtype!r}, packed_bytes={packed})"
        )


def _sides(statistics: tuple[Array, Array, Array] | None) -> dict[str, Any] | None:
    return None if statistics is None else {"": statistics[:2], "count": statistics[2]}


def _empty_statistics(steps: int, units: int) -> tuple[Array, Array, Array]:
    return np.zeros((steps, units)), np.zeros((steps, units)), np.zeros(steps, np.int64)
