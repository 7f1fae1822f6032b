"""The base class of Network: parameters, statistics and options, all in one snapshot."""

from __future__ import annotations

import copy
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from .._core import copied
from ..arguments import TAKES, Choice, Integer, by_name, check
from ..arguments import Array as Takes
from ..errors import bad_type, bad_value, real
from ..rounding import INPUT, Rounding, compared, options_of_check, timed
from ..state import CHANGES, Closed, checked, counted, no_attribute
from . import file_format
from .architecture import Architecture, argument_names
from .batches import FLOAT32
from .cells import Cell
from .quantized import Quantized, dequantized
from .snapshot import ACTIVATION_BITS, DTYPES, ActivationBits, Dtype, Snapshot, frozen
from .specs import BatchNormSpec, LayerNormSpec, Overrun, zoneout_rates
from .statistics import StepStatistics, named_shapes

Array = np.ndarray
Made = TypeVar("Made", bound="Settings")
# Argument types of numpy.random.default_rng.
RNG = int | Sequence[int] | np.random.SeedSequence | np.random.BitGenerator | np.random.Generator | None
_OF_A_LAYER = re.compile(r"_l\d+(_reverse)?$")  # endings of names of parameters and statistics
DRAWN = 2**16  # random float64 values to draw at a time
TAKES["Network.to_dtype"] = {"dtype": Choice(DTYPES)}
DROPS_NOTHING = "has no effect with num_layers=1: it drops outputs of all layers but the last"


def _uniform(rng: np.random.Generator, bound: float, shape: tuple[int, ...]) -> Array:
    """Returns rng.uniform(-bound, bound, shape) as float32, without a float64 array of the same size."""
    values = np.empty(shape, FLOAT32)
    flat = values.reshape(-1)
    for at in range(0, flat.size, DRAWN):
        part = flat[at : at + DRAWN]
        part[...] = rng.uniform(-bound, bound, part.size)
    return values


class Settings(Closed):
    """The parameters, statistics and options of a network. Network adds the computations."""

    __slots__ = (
        "input_size", "hidden_size", "num_layers", "bias", "batch_first", "bidirectional", "num_directions",
        "reverse", "_snapshot",
    )  # fmt: skip
    _cell: Cell
    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    bidirectional: bool
    num_directions: int
    reverse: bool

    def _make(self, arguments: dict[str, Any]) -> None:
        """Initialises the network. arguments: the constructor's locals()."""
        dropout, seed, rng = (arguments.pop(name) for name in ("dropout", "seed", "rng"))
        del arguments["self"]
        made = Architecture.checked(self._cell, **arguments)
        (rate,) = check("Network.rates", {"dropout": dropout})
        if rate and made.num_layers == 1:
            # stacklevel=3 points at the line that calls the constructor.
            warnings.warn(f"dropout={rate} {DROPS_NOTHING}", UserWarning, stacklevel=3)
        rng = _generator(seed, rng)
        bound = made.hidden_size**-0.5
        of_norm = "bias_y" if made.cell.placement == "output" else "bias"
        parameters: dict[str, Array] = {}
        for name, shape in made.shapes.items():
            if name.startswith("gain"):
                value = np.ones(shape, np.float32)
            elif name.startswith(of_norm) and made.norm is not None:
                value = np.zeros(shape, np.float32)
            else:
                value = _uniform(rng, bound, shape)
            parameters[name] = frozen(value)
        batch_norm = made.batch_norm
        room = batch_norm.max_steps or 0 if batch_norm else 0
        statistics = {end: StepStatistics.empty(made.sides, room) for end in made.suffixes if made.sides}
        overrun = batch_norm.overrun if batch_norm else None
        self._hold(Snapshot(made, parameters, statistics, overrun, "float32", dropout=rate))

    def _hold(self, snapshot: Snapshot) -> None:
        """Sets all attributes of a new network from a snapshot."""
        for name, value in snapshot.architecture.arguments.items():
            if name != "norm":
                setattr(self, name, value)
        self.num_directions = snapshot.architecture.directions
        self._snapshot = snapshot

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            found = self._state().get(name)
            if found is not None:
                return found
        raise no_attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        state = self._state() if _OF_A_LAYER.search(name) and not hasattr(type(self), name) else {}
        if not state:
            super().__setattr__(name, value)
        elif name in self._snapshot.parameters:
            value = dequantized(name, value, self.dtype)
            known = {"shape": state[name].shape, "dtype": FLOAT32}
            new = frozen(copied(Takes("shape").check(name, value, known)))
            self._change(lambda old: old.changed(parameters={**old.parameters, name: new}))
        elif name in state:
            raise AttributeError(f"{name} cannot be assigned; train, or use calibrate or load_state_dict")
        else:
            raise no_attribute(self, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._state()]

    def _state(self) -> dict[str, Array]:
        """Returns {name: array} of parameters and statistics, not copied; {} before `_hold`."""
        snapshot = getattr(self, "_snapshot", None)
        return {} if snapshot is None else snapshot.state()

    def _change(self, change: Callable[[Snapshot], Snapshot]) -> None:
        """Replaces the network's snapshot by change(snapshot), under the lock CHANGES."""
        with CHANGES:
            self._snapshot = change(self._snapshot)

    @property
    def _fixed(self) -> tuple[str, ...]:
        return *argument_names(self._cell), "num_directions"

    def parameters(self) -> dict[str, Array]:
        """Return the trainable arrays by name: read-only, not copied."""
        return dict(self._snapshot.parameters)

    def state_dict(self) -> dict[str, Array]:
        """Return copies of parameters and statistics, by name."""
        return {name: np.array(value) for name, value in self._state().items()}

    def load_state_dict(self, state: Mapping[str, ArrayLike | Quantized]) -> None:
        """Set all parameters and statistics in one step.

        Parameters
        ----------
        state : mapping of str to array_like
            The names and shapes of `state_dict`. If max_steps is None, statistics may have any number of
            steps. Counts are at most 2**53. Quantised weights may be a tuple (q, scale, zero_point): q an
            array of int8 or uint8, scale and zero_point a number, or an array with one for each row of q.
            The weights are (q - zero_point) * scale. A network of dtype "int8" computes with the integers
            q - zero_point, which are not rounded.

        Raises
        ------
        ValueError, TypeError
            If a name is missing or unknown, or an array is wrong. The network is then unchanged. With dtype
            "int8", also if q - zero_point is beyond -128 to 127.

        Examples
        --------
        >>> import numpy as np
        >>> import lnrnn
        >>> gru = lnrnn.GRU(3, 4, norm=None, seed=0).to_dtype("int8")
        >>> q = np.arange(36, dtype=np.int8).reshape(12, 3)
        >>> gru.load_state_dict(gru.state_dict() | {"weight_ih_l0": (q, 0.5, 10)})
        >>> gru.weight_ih_l0[0]
        array([-5. , -4.5, -4. ], dtype=float32)
        """
        made = self._snapshot.architecture
        expected: dict[str, Array] = dict(self._snapshot.parameters)
        endings = made.suffixes if made.sides else ()
        for suffix in endings:
            steps = 0
            if isinstance(state, Mapping) and f"count{suffix}" in state:
                count = real(f"count{suffix}", state[f"count{suffix}"])
                if count.dtype.kind not in "iu":
                    raise bad_type(f"count{suffix}", "an array of integers", count)
                if count.ndim != 1:
                    raise bad_value(f"count{suffix}", "of shape (steps,)", count)
                steps = len(count)
            for name, like in StepStatistics.empty(made.sides, steps).arrays.items():
                expected[name + suffix] = like
        if isinstance(state, Mapping):
            state = {name: dequantized(name, value, self.dtype) for name, value in state.items()}
        arrays = checked(state, expected)
        if made.batch_norm:
            for suffix in endings:
                _check_statistics(made, suffix, arrays)
        parameters = {name: frozen(arrays[name]) for name in self._snapshot.parameters}
        names = named_shapes(made.sides, 0)
        statistics = {end: StepStatistics({name: arrays[name + end] for name in names}) for end in endings}
        self._change(lambda old: old.changed(parameters=parameters, statistics=statistics))

    @property
    def norm(self) -> LayerNormSpec | BatchNormSpec | None:
        """The spec of the norm inside the cell, with all defaults and the current `overrun`, or None."""
        return self._snapshot.norm

    @property
    def known_steps(self) -> int | None:
        """The number of time steps with statistics; None without batch norm."""
        statistics = self._snapshot.statistics
        return min(s.known for s in statistics.values()) if statistics else None

    @property
    def overrun(self) -> Overrun | None:
        """The policy for steps without statistics (BatchNormSpec); None without batch norm. Assignable."""
        return self._snapshot.overrun

    @overrun.setter
    def overrun(self, value: Overrun) -> None:
        if not self._snapshot.architecture.sides:
            raise bad_value("norm", "batch norm to set overrun", self.norm)
        (new,) = check("BatchNormSpec", {"overrun": value})
        self._change(lambda old: old.changed(overrun=new))

    @property
    def zoneout(self) -> Any:
        """The probability in [0, 1) that a unit keeps its old state; for an LSTM a pair, for h and c.

        It can be assigned: for an LSTM, one number is for both h and c. `save` writes it to the file.

        Notes
        -----
        Krueger et al. 2017, arXiv 1606.01305. h' is the new state by the cell's equations. In training, a
        unit keeps h_{t-1} with this probability at each step, and else takes h'. Calls, streams and
        `calibrate` use the expectation, h_t = zoneout h_{t-1} + (1 - zoneout) h'. The same holds for c. With
        cell "carry", c is the normalised cell state. Batch norm takes its statistics of c before zoneout.
        With proj_size, h is projected before zoneout.
        """
        pair = len(self._cell.state_names) == 2
        rates = self._snapshot.zoneout or (0.0, 0.0)
        return rates if pair else rates[0]

    @zoneout.setter
    def zoneout(self, value: float | tuple[float, ...]) -> None:
        new = zoneout_rates(value, self._cell)
        self._change(lambda old: old.changed(zoneout=new))

    @property
    def dropout(self) -> float:
        """The rate in [0, 1) at which `forward_train` drops outputs of all layers but the last.

        It can be assigned, and `save` writes it to the file. Calls and streams drop nothing.
        """
        return self._snapshot.dropout

    @dropout.setter
    def dropout(self, value: float) -> None:
        (new,) = check("Network.rates", {"dropout": value})
        self._change(lambda old: old.changed(dropout=new))

    @property
    def dtype(self) -> Dtype:
        """The type of the packed weights: "float32", "bfloat16" or "int8"."""
        return self._snapshot.dtype

    @property
    def activation_bits(self) -> ActivationBits | None:
        """The bits of inputs and states with dtype "int8", 14 or 8; else None."""
        return self._snapshot.activation_bits

    @property
    def rounding(self) -> Rounding | None:
        """The report of `to_dtype` with `check`; None without `check`, or if the network has changed."""
        return self._snapshot.rounding

    def to_dtype(
        self, dtype: Dtype, activation_bits: ActivationBits | None = None, *, check: Any = None,
        tolerance: float | None = None, threshold: float = 0.0,
    ) -> Self:  # fmt: skip
        """Return a copy that computes with weights of another type, for inference.

        Parameters
        ----------
        dtype : {"float32", "bfloat16", "int8"}
            bfloat16 rounds weights to nearest even, and halves their memory. int8 rounds the weights w of an
            output to multiples of max abs(w) / 127, and takes a quarter of the memory. Weights that are
            integers from -128 to 127 times a scale, as in a quantised model, keep their values:
            `load_state_dict` takes them as (q, scale, zero_point).
        activation_bits : {14, 8}, optional
            For int8: inputs and states are rounded too. The vector a of one step becomes multiples of
            max abs(a) / 8191 (14 bits, the default), or of (max a - min a) / 254, where the range has 0 (8
            bits). With 8 bits there are half as many products; docs/precision.md has the error.
        check : array_like, or dict of arguments of a call, optional
            An input x like the network's own. The result's `rounding` is then a report of the time, and of
            the differences of y and the state from a call with float32 weights.
        tolerance : float, optional
            With `check`: the largest difference that is permitted. If it is larger, the result has float32
            weights, with a UserWarning.
        threshold : float
            With `check`: the report counts how many numbers change from one side of it to the other.

        Returns
        -------
        Network
            A network of the same class.

        Raises
        ------
        ValueError, TypeError
            For a wrong argument. For outputs on `check` that are NaN, or are not finite in another dtype, and
            for a tolerance that a change of the float32 weights by a rounding exceeds.

        Notes
        -----
        Only the packed copies of the weights are rounded. Parameters are read, set and saved as float32.
        Gains, biases, norms and states are float32. Some CPUs have instructions for bfloat16
        (``lnrnn.cpu_info()["units"]``), which round x and h to bfloat16 too, in products.

        Examples
        --------
        >>> import lnrnn
        >>> lnrnn.GRU(3, 4).to_dtype("int8").dtype
        'int8'
        """
        taken = by_name("Network.to_dtype", locals()) | options_of_check(check, tolerance, threshold)
        bits = checked_activation_bits(taken["dtype"], activation_bits)
        exact = self._with(dtype="float32", activation_bits=None)
        other = self._with(dtype=taken["dtype"], activation_bits=bits)
        if check is None:
            return other
        report = _compared(exact, other, check, taken["tolerance"], taken["threshold"])
        return (exact if report.kept else other)._with(rounding=report)

    def _with(self, **fields: Any) -> Self:
        """Returns a copy of the network whose snapshot has other values in these fields."""
        other = copy.copy(self)
        other._change(lambda old: old.changed(**fields))
        return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the network to a .safetensors file. `path` and errors are as in `lnrnn.save`."""
        file_format.write(self._snapshot, path)

    @property
    def num_parameters(self) -> int:
        """The number of values in all parameters: weights, biases and gains, without running statistics."""
        return sum(value.size for value in self._snapshot.parameters.values())

    @property
    def packed_bytes(self) -> int:
        """The size in bytes of the packed weights. It is 0 before the first call, which packs them."""
        return self._snapshot.packed_bytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._snapshot.shown()})"


def _generator(seed: Any, rng: Any) -> np.random.Generator:
    """Returns the random generator for initial parameters. seed, rng: arguments of the constructor."""
    if rng is None:
        return np.random.default_rng(*check("Network", {"seed": seed}))
    if seed is not None:
        raise bad_value("seed", "None with rng", seed, "give one of the two")
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        kind = bad_type if isinstance(error, TypeError) else bad_value
        raise kind("rng", "an argument of numpy.random.default_rng", rng) from None


def checked_activation_bits(dtype: Dtype, given: Any) -> ActivationBits | None:
    """Returns the argument activation_bits of `to_dtype`, checked, or its default; None unless int8."""
    if dtype != "int8":
        if given is not None:
            raise bad_value("activation_bits", f"None with dtype {dtype!r}", given, "choose dtype 'int8'")
        return None
    bits = ACTIVATION_BITS[0] if given is None else Integer(8, 14).check("activation_bits", given)
    for known in ACTIVATION_BITS:
        if bits == known:
            return known
    raise bad_value("activation_bits", "14 or 8", given)


def _check_statistics(made: Architecture, suffix: str, arrays: Mapping[str, Array]) -> None:
    """Raises ValueError for impossible statistics, such as a negative variance."""
    count, most = arrays[f"count{suffix}"], made.batch_norm.max_steps if made.batch_norm else None
    if most is not None and len(count) != most:
        raise bad_value(f"count{suffix}", f"of shape ({most},)", count)
    if not np.array_equal(count, arrays["count_l0"]):
        raise bad_value(f"count{suffix}", "equal to count_l0", count, "all layers count the same sequences")
    if np.any(np.diff(counted(f"count{suffix}", count)) > 0):
        raise bad_value(f"count{suffix}", "numbers that do not rise from step to step", count)
    for name in named_shapes(made.sides, 0):
        if name.startswith("running_var") and np.any(arrays[name + suffix] < 0):
            raise bad_value(f"{name}{suffix}", "at least 0", arrays[name + suffix].min())


def _compared(
    exact: Settings, other: Settings, given: Any, tolerance: float | None, threshold: float
) -> Rounding:
    """Returns the Rounding report of `to_dtype`. exact: the float32 network. given: the argument `check`."""
    if isinstance(given, str) or not any(hasattr(given, f"__{n}__") for n in ("len", "array", "dlpack")):
        raise bad_type("check", "an array x, or a dict of arguments of a call", given, INPUT)
    with np.errstate(over="ignore"):
        next_up = {name: np.nextafter(v, np.float32(np.inf)) for name, v in exact.parameters().items()}
    near = {name: frozen(np.where(np.isinf(v), getattr(exact, name), v)) for name, v in next_up.items()}

    def outputs(network: Any) -> list[Array]:
        y, state = network(**given) if isinstance(given, dict) else network(given)
        return [y, *(state if isinstance(state, tuple) else (state,))]

    def run(short: Sequence[str]) -> tuple[list[Array], float]:
        return timed(partial(outputs, other if short else exact))

    original = outputs(exact._with(parameters=near))
    return compared(run, [type(exact).__name__], other.dtype, original, tolerance, threshold)


def architecture(network: Settings) -> Architecture:
    """Returns a network's architecture, for other modules of lnrnn."""
    return network._snapshot.architecture


def made_of(model: type[Made], snapshot: Snapshot) -> Made:
    """Returns a new network of class `model` with this snapshot."""
    network = model.__new__(model)
    network._hold(snapshot)
    return network


def snapshot(network: Settings) -> Snapshot:
    """Returns a network's current snapshot, which the next call uses."""
    return network._snapshot
