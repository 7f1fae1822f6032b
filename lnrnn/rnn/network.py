"""The base of the recurrent models: parameters, whole sequences, streams, copies. What one layer does is in
lnrnn.reference, readable, and in pyx/rnn/forward.c, fast."""

from __future__ import annotations

import copy
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike

from .._core import INT8_INPUTS
from ..errors import bad_type, bad_value, choice, flag, integer, number, real, shaped, unexpected
from ..runtime import thread_limit
from ..state import CHANGES, Closed, checked, copied, counted, no_attribute
from . import calibration, engine, file_format, training
from .architecture import LIMIT, Architecture, argument_names
from .batches import FLOAT32, State, as_state, checked_ragged
from .cells import Cell
from .rows import by_state, ragged
from .snapshot import ACTIVATION_BITS, DTYPES, ActivationBits, Dtype, Snapshot, frozen
from .specs import OVERRUNS, BatchNormSpec, DropoutSpec, LayerNormSpec, Overrun, zoneout_rates
from .statistics import StepStatistics, named_shapes
from .stream import Stream
from .training import Tape

if TYPE_CHECKING:
    from typing_extensions import Never, Self

Array = np.ndarray
Made = TypeVar("Made", bound="Network[Any]")
_OF_A_LAYER = re.compile(r"_l\d+(_reverse)?$")  # how the names of parameters and statistics end
DRAWN = 2**16  # values that are drawn at a time, in double precision
DROPS_NOTHING = "has no effect with num_layers=1: it drops outputs of all layers but the last"


def _uniform(rng: np.random.Generator, bound: float, shape: tuple[int, ...]) -> Array:
    """rng.uniform(-bound, bound, shape) in float32, without a whole array in float64 beside it."""
    values = np.empty(shape, FLOAT32)
    flat = values.reshape(-1)
    for at in range(0, flat.size, DRAWN):
        part = flat[at : at + DRAWN]
        part[...] = rng.uniform(-bound, bound, part.size)
    return values


class Network(Closed, Generic[State]):
    """The base of the models, which say what they compute and how they are made.

    Its type parameter is that of a state: an array, or a pair of arrays (h, c) where the cell has both.

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
        "input_size", "hidden_size", "num_layers", "bias", "batch_first", "bidirectional", "num_directions",
        "_snapshot",
    )  # fmt: skip
    _cell: Cell
    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    bidirectional: bool
    num_directions: int

    def _make(self, dropout: Any, seed: Any, rng: Any, **arguments: Any) -> None:
        """arguments: the others of the constructor."""
        made = Architecture.checked(self._cell, **arguments)
        rate = number("dropout", dropout, 0, below=1)
        if rate and made.num_layers == 1:
            # The caller of the constructor, which calls this.
            warnings.warn(f"dropout={rate} {DROPS_NOTHING}", UserWarning, stacklevel=3)
        rng = _generator(seed, rng)
        bound = made.hidden_size**-0.5
        parameters: dict[str, Array] = {}
        for name, shape in made.shapes.items():
            if name.startswith("gain"):
                value = np.ones(shape, np.float32)
            elif name.startswith("bias") and made.norm is not None:
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
        """Sets all attributes of a network without any."""
        for name, value in snapshot.architecture.arguments.items():
            if name != "norm":
                setattr(self, name, value)
        self.num_directions = snapshot.architecture.directions
        self._snapshot = snapshot

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
            new = frozen(copied(shaped(name, value, state[name].shape, np.float32)))
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

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Pickles of earlier versions have the norm twice.
        super().__setstate__({name: value for name, value in state.items() if name != "norm"})

    @property
    def _fixed(self) -> tuple[str, ...]:
        return *argument_names(self._cell), "num_directions"

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
        """The norm inside the cell, with all that the cell decides filled in; of batch norm with the
        `overrun` that is set now. None without a norm."""
        now = self._snapshot
        norm = now.architecture.norm
        return replace(norm, overrun=now.overrun) if now.overrun and isinstance(norm, BatchNormSpec) else norm

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
        if not self._snapshot.architecture.sides:
            raise ValueError("overrun belongs to batch norm, and this network has none")
        new = choice("overrun", value, OVERRUNS)
        self._change(lambda old: old.changed(overrun=new))

    @property
    def zoneout(self) -> Any:
        """How much of the old state a step keeps (Krueger et al. 2017, arXiv 1606.01305): a rate in [0, 1), 0
        at first; of an LSTM a pair, of h and of c. May be set, of an LSTM also to one number for both.

        With h' and c' for what the cell's equations make of a step, h' of c': in training each unit keeps
        h_{t-1} at a step with this probability, and else becomes h'; c likewise. Calls, streams and
        `calibrate` take the expectation, h_t = zoneout h_{t-1} + (1 - zoneout) h'. What is kept of c is what
        is carried: with cell "carry" the normalised c. Batch norm's statistics of c are those of c'. Zoneout
        is saved with the network.
        """
        states = self._cell.states
        rates = self._snapshot.zoneout or (0.0,) * states
        return rates if states == 2 else rates[0]

    @zoneout.setter
    def zoneout(self, value: float | tuple[float, ...]) -> None:
        new = zoneout_rates(value, self._cell)
        self._change(lambda old: old.changed(zoneout=new))

    @property
    def dropout(self) -> float:
        """The rate in [0, 1) at which `forward_train` drops outputs of all layers but the last, as dropout=
        of torch.nn.LSTM; may be set. Calls and streams drop nothing. It is saved with the network."""
        return self._snapshot.dropout

    @dropout.setter
    def dropout(self, value: float) -> None:
        new = number("dropout", value, 0, below=1)
        self._change(lambda old: old.changed(dropout=new))

    # --- computing ------------------------------------------------------------------------------------------

    def __call__(
        self,
        x: ArrayLike,
        h0: Any = None,
        lengths: ArrayLike | None = None,
        resets: ArrayLike | None = None,
        *,
        threads: int | None = None,
        **unknown: Never,
    ) -> tuple[Array, State]:
        """Whole sequences at inference.

        x (T, B, D), or (B, T, D) with batch_first, or (T, D) for one sequence. h0, the state to begin with:
        (num_layers * directions, B, H) or (num_layers * directions, H), zeros if None; with a cell state a
        pair (h0, c0) of such, either of which may be None. lengths (B,): integers 0 .. T; what lies past a
        length is not read. resets (T, B), or (B, T) with batch_first, or (T,): booleans; where one is True
        the state starts anew, at 0, before that step, as if another sequence began there, in every layer and
        direction; so do batch norm's steps. Past a length they are ignored. threads: how many this call may
        use; None: as set (set_num_threads).
        -> y (T, B, directions * H), 0 past a length; h, or (h, c), like h0: the state at each sequence's own
        end, which for a sequence of length 0 is its h0. With resets h0 enters the first part of a sequence
        (unless it is reset at step 0), and the last in a reverse direction; h comes from the last part, and
        in a reverse direction from the first.

        Raises ValueError or TypeError for a wrong argument, SequenceTooLongError as BatchNormSpec says.
        """
        if unknown:
            raise unexpected("__call__", unknown, {"hx": "h0"})
        found: tuple[Array, State] = engine.call(
            self._snapshot, x, h0, lengths, resets, thread_limit(threads)
        )
        return found

    def ragged(
        self, values: ArrayLike, offsets: ArrayLike, h0: Any = None, *, threads: int | None = None
    ) -> tuple[Array, State]:
        """Sequences of any lengths at inference, one after the other in one array without padding: the
        layout of Arrow's lists.

        values (N, D); offsets (B + 1,): integers that do not fall, within 0 .. N: sequence i is values[
        offsets[i] : offsets[i + 1]]. h0, threads: as in a call.
        -> y (N, directions * H), laid out as values, 0 where no sequence is; h, or (h, c), as of a call.

        The same bits as in a call, and no time is spent on padding. Raises what a call does.
        """
        snapshot = self._snapshot
        made = snapshot.architecture
        x, offsets = checked_ragged(values, offsets, made.input_size)
        rows = ragged(offsets)
        start = engine.state_arrays(made, "h0", h0, len(offsets) - 1, False)
        snapshot.refuse_overrun(by_state(rows.table))
        y, end = engine.run(snapshot, x, rows, start, threads=thread_limit(threads))
        y = y[:, 0]
        y[: offsets[0]] = 0
        y[offsets[-1] :] = 0
        return y, as_state(end)

    def stream(self, batch_size: int = 1) -> Stream[State]:
        """The network one step a call, for ever, in constant memory: s = rnn.stream(B); y_t = s(x_t), a new
        array, or s(x_t, out=y_t), which allocates nothing. Each of the batch_size sequences may go its own
        way: s(x_t, rows=[3, 17]). See Stream."""
        if self.bidirectional:
            raise ValueError(
                "a bidirectional network cannot stream: its second direction starts at the sequence's end"
            )
        return Stream(self._snapshot, batch_size)

    def forward_train(
        self,
        x: ArrayLike,
        h0: Any = None,
        lengths: ArrayLike | None = None,
        resets: ArrayLike | None = None,
        *,
        dropout: float | DropoutSpec | None = None,
        seed: int | Sequence[int] | None = None,
        checkpoint: int | None = None,
        **unknown: Never,
    ) -> tuple[Array, State, Tape]:
        """As a call, and keeps what `backward` needs. -> y, h or (h, c), tape.

        Batch norm normalises step t with the statistics of the sequences that live at t and updates the
        running ones (with resets: of the parts that live at t after their beginning). A network with rounded
        weights (to_dtype) raises ValueError.

        dropout: a rate in [0, 1), of what goes from layer to layer, or a DropoutSpec, which says more; None:
        the network's own `dropout`. With `zoneout` set, units keep their old state at random. seed, of what
        is drawn: an integer of at least 0, a sequence of such, or None for another one each time. The same
        seed drops the same with any number of threads, on every machine; what is dropped of step t of a
        sequence depends on how many sequences there are, and not on lengths, resets or how many steps follow.

        checkpoint: K, to keep of each layer the states every K steps alone; `backward` computes what is
        between them again, which takes a third more time, and sums the parameters' gradients in another
        order; all else has the same bits. `tape_bytes` says how much memory that is, and tape.nbytes.
        """
        if unknown:
            raise unexpected("forward_train", unknown, {"hx": "h0"})
        state: State
        y, state, tape, seen = training.forward(
            self, self._snapshot, x, h0, lengths, resets, dropout, seed, checkpoint
        )
        if seen:  # last of all: who interrupts the call finds the statistics as they were
            # Added to those that are there now: of batches that several threads train with, none is lost.
            self._change(lambda old: engine.with_batch(old, seen))
        return y, state, tape

    def tape_bytes(self, T: int, B: int, *, checkpoint: int | None = None) -> int:
        """Bytes of the tape of `forward_train` for B sequences of T steps, without dropout and resets: what
        the steps keep, and what goes in and out of each layer. It depends on the instruction set, whose
        vectors the rows are filled up to."""
        T, B = integer("T", T, 0, LIMIT), integer("B", B, 0, LIMIT)
        return training.tape_bytes(self._snapshot, T, B, training.checked_checkpoint(checkpoint))

    @overload
    def backward(
        self,
        tape: Tape,
        gy: ArrayLike | None = None,
        gh: Any = None,
        grad_x: Literal[True] = True,
        *,
        out: dict[str, Array] | None = None,
    ) -> tuple[Array, State, dict[str, Array]]: ...

    @overload
    def backward(
        self,
        tape: Tape,
        gy: ArrayLike | None,
        gh: Any,
        grad_x: bool,
        *,
        out: dict[str, Array] | None = None,
    ) -> tuple[Array | None, State, dict[str, Array]]: ...

    @overload
    def backward(
        self,
        tape: Tape,
        gy: ArrayLike | None = None,
        gh: Any = None,
        *,
        grad_x: bool,
        out: dict[str, Array] | None = None,
    ) -> tuple[Array | None, State, dict[str, Array]]: ...

    def backward(
        self,
        tape: Tape,
        gy: ArrayLike | None = None,
        gh: Any = None,
        grad_x: bool = True,
        *,
        out: dict[str, Array] | None = None,
    ) -> tuple[Array | None, State, dict[str, Array]]:
        """Back-propagation through time.

        tape: from `forward_train`. gy: gradient of y, of y's shape, or None for zeros (what lies past a
        length is not read); a classifier of the last state gives gh alone. gh: gradient of h, of h's shape,
        or None; with a cell state a pair (gh, gc), either of which may be None. grad_x: False if nobody wants
        gx, which is then None: a sixth of the work less. out: float32 arrays by parameter name, C-contiguous,
        that the gradients are added to: those of several batches without new memory.
        -> gx like x, gh0 like h0, and gradients by parameter name (`out`, if it is given).

        The same bits for any number of threads. Raises ValueError or TypeError for a wrong argument, before
        anything is written. An exception in the middle, as KeyboardInterrupt, leaves some gradients in `out`.
        """
        if not isinstance(tape, Tape) or tape.owner is not self:
            raise bad_type("tape", "what this network's forward_train returned", tape)
        return training.backward(tape, gy, gh, flag("grad_x", grad_x), out)

    def calibrate(self, batches: Iterable[Any]) -> None:
        """Batch norm: recomputes the statistics of every step, exactly, over the sequences given.

        batches yields x, (x, lengths) or (x, lengths, resets), each as a call has it. All sequences go
        through time together; each step is normalised by the mean and biased variance over all that live at
        it, and these are stored, with their number. With resets each part of a sequence counts as one. How
        the sequences were divided into batches does not matter. All are held in memory at once. Old
        statistics are replaced. The parameters are those that the network had when it began to compute.
        """
        together = calibration.joined(self._snapshot.architecture, batches)
        found = calibration.statistics(self._snapshot, *together)
        self._change(lambda old: engine.with_statistics(old, found))

    @property
    def dtype(self) -> Dtype:
        """What the weight matrices are computed with: "float32", "bfloat16" or "int8"."""
        return self._snapshot.dtype

    @property
    def activation_bits(self) -> ActivationBits | None:
        """With dtype "int8" the bits that what the weights multiply is rounded to, 14 or 8; else None."""
        return self._snapshot.activation_bits

    def to_dtype(self, dtype: Dtype, activation_bits: ActivationBits | None = None) -> Self:
        """A network like this one that computes with weight matrices of another type: a new object.

        dtype: "bfloat16" (rounded to nearest even), "int8" (whole numbers times one scale for each output,
        max |w| / 127; what they multiply is rounded as well, and sums are exact, of 133144 inputs at most),
        or "float32" (as they were). Half and a quarter of the bytes to read. Gains, biases, norms and states
        stay float32, and so do the parameters that one reads, sets and saves: rounding is part of packing.
        For inference; `forward_train` wants float32. Where the CPU has a unit for bfloat16
        (`lnrnn.cpu_info()["units"]`), x and h are rounded to bfloat16 in its products too.

        activation_bits: of "int8" alone, which rounds each row of inputs and of states to whole numbers times
        its largest |a| / 8191 (14, the default) or |a| / 127 (8): half of the products, and an error of the
        size of the weights' own (docs/precision.md).

        Raises ValueError or TypeError.
        """
        other = copy.copy(self)
        new = choice("dtype", dtype, DTYPES)
        bits = checked_activation_bits(new, activation_bits)
        shapes = self._snapshot.architecture.shapes.values()
        inputs = max(shape[1] for shape in shapes if len(shape) == 2)
        if new == "int8" and inputs > INT8_INPUTS:
            raise ValueError(
                f"dtype must not be 'int8' for weights of {inputs} inputs: its sums hold {INT8_INPUTS}"
            )
        other._change(lambda old: old.changed(dtype=new, activation_bits=bits))
        return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes parameters, statistics and configuration to a .safetensors file, whole or not at all.

        Raises OSError; ImportError without the safetensors package."""
        file_format.write(self._snapshot, path)

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights in the form in which they are computed with, which the first call makes; 0
        before it."""
        return self._snapshot.packed_bytes

    def __repr__(self) -> str:
        names = (*argument_names(self._cell)[2:], "dtype")
        names += ("activation_bits",) if self.activation_bits else ()
        names += ("packed_bytes",)
        names += tuple(name for name in ("dropout", "zoneout") if getattr(self._snapshot, name))
        named = [f"{name}={getattr(self, name)!r}" for name in names]
        return f"{type(self).__name__}({', '.join([str(self.input_size), str(self.hidden_size), *named])})"


def _generator(seed: Any, rng: Any) -> np.random.Generator:
    """The constructor's arguments seed and rng as a generator."""
    if rng is None:
        return np.random.default_rng(None if seed is None else integer("seed", seed, 0))
    if not isinstance(rng, np.random.Generator):
        raise bad_type("rng", "None or a numpy.random.Generator", rng)
    if seed is not None:
        raise ValueError("seed and rng must not both be given: each alone draws the start values")
    return rng


def no_projection(proj_size: Any) -> None:
    """Raises ValueError unless the argument of an LSTM's constructor is 0."""
    if integer("proj_size", proj_size, 0):
        raise ValueError(f"proj_size must be 0: a projection is not supported yet, got {proj_size}")


def checked_activation_bits(dtype: Dtype, given: Any) -> ActivationBits | None:
    """What `to_dtype` takes as activation_bits, the default in the place of None."""
    if dtype != "int8":
        if given is not None:
            raise bad_value("activation_bits", f'None with dtype "{dtype}": "int8" has them', given)
        return None
    bits = ACTIVATION_BITS[0] if given is None else integer("activation_bits", given, 8, 14)
    for known in ACTIVATION_BITS:
        if bits == known:
            return known
    raise bad_value("activation_bits", "14 or 8", given)


def _check_statistics(made: Architecture, suffix: str, arrays: Mapping[str, Array]) -> None:
    """Raises ValueError for statistics, in a state dict of the right names, that no training gives."""
    count, most = arrays[f"count{suffix}"], made.batch_norm.max_steps if made.batch_norm else None
    if most is not None and len(count) != most:
        raise bad_value(f"count{suffix}", f"of shape ({most},)", count)
    if not np.array_equal(count, arrays["count_l0"]):
        raise ValueError(f"count{suffix} must equal count_l0: all layers see the same sequences")
    if np.any(np.diff(counted(f"count{suffix}", count)) > 0):
        raise ValueError(f"count{suffix} must not rise from step to step")
    for name in named_shapes(made.sides, 0):
        if name.startswith("running_var") and np.any(arrays[name + suffix] < 0):
            raise ValueError(f"{name}{suffix} must not be negative")


def architecture(network: Network[Any]) -> Architecture:
    """The network's description: for modules that tell, store or rebuild networks."""
    return network._snapshot.architecture


def made_of(model: type[Made], snapshot: Snapshot) -> Made:
    """A new network of that class, whose cell is the snapshot's."""
    network = model.__new__(model)
    network._hold(snapshot)
    return network


def snapshot(network: Network[Any]) -> Snapshot:
    """A network as it is now: the version that a call would compute with."""
    return network._snapshot
