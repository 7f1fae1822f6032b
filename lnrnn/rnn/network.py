"""The base class of networks: inference, training, calibration. settings.py has parameters and options.

lnrnn.reference implements the equations readably in NumPy; include/lnrnn/kernels/ is the fast C.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Never, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike

from .._core import call_network
from ..arguments import TAKES, Integer, check
from ..errors import bad_type, bad_value, unexpected
from ..runtime import thread_limit
from . import calibration, engine, training
from .architecture import LIMIT
from .batches import State, as_state, checked_ragged
from .rows import by_state, ragged
from .settings import Settings
from .specs import DropoutSpec
from .stream import Stream
from .training import CHECKPOINT, Tape

Array = np.ndarray
Function = TypeVar("Function", bound=Callable[..., Any])
TAKES["Network.tape_bytes"] = {"T": Integer(0, LIMIT), "B": Integer(0, LIMIT), "checkpoint": CHECKPOINT}


def _if_refused(function: Function) -> Function:
    """Returns a compiled method, which calls the Python `function` for arguments that it does not support."""
    found: Any = functools.update_wrapper(call_network, function, ("__doc__", "__name__", "__qualname__"))
    return cast(Function, found)


class Network(Settings, Generic[State]):
    """The base class of RNN, LSTM, GRU, LiGRU and SLSTM.

    In Network[State], State is the type of a state: an array h, or for an LSTM a pair of arrays (h, c). An
    SLSTM has (h, c, n, m). Shapes use T steps, B sequences, D inputs and H hidden units. h has P values:
    an LSTM's proj_size, or H.

    Notes
    -----
    To read or set an unknown attribute raises AttributeError. A subclass may have more attributes. If the
    name of one ends like a parameter's (_l0, _l1_reverse), the class has to define it.

    Threads: a call uses the parameters and statistics that the network has when the call begins. Other
    threads may assign parameters, or call `load_state_dict` and `calibrate`, during the call. To replace
    several parameters at once, use `load_state_dict`. `forward_train` updates the statistics when it ends.

    Examples
    --------
    >>> import lnrnn
    >>> isinstance(lnrnn.GRU(3, 4), lnrnn.Network)
    True
    """

    __slots__ = ()

    @_if_refused
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
        """Run the network on whole sequences, at inference.

        Parameters
        ----------
        x : array_like of shape (T, B, D)
            Inputs, converted to float32; (B, T, D) with batch_first, or (T, D) for one sequence.
        h0 : array_like of shape (num_layers * directions, B, P), optional
            Initial state, zeros by default. There is no axis B if x is (T, D). For an LSTM a pair (h0, c0),
            c0 with H values, for an SLSTM (h0, c0, n0, m0); each may be None.
        lengths : array_like of int of shape (B,), optional
            The number of steps of each sequence, 0 to T. Later steps of x are not read.
        resets : array_like of bool of shape (T, B), optional
            True where the state is set to 0 before a step, as if a new sequence began with this step. Batch
            norm also counts steps from 0 again. The shape is (B, T) with batch_first, or (T,) if x is (T, D).
        threads : int, optional
            Maximum number of threads in this call, 1 to 1024; by default `get_num_threads()`.

        Returns
        -------
        y : array of float32 of shape (T, B, directions * P)
            Outputs, with the axes of x; 0 after the end of a sequence.
        h : array of float32, or a pair (h, c), or (h, c, n, m)
            The state at each sequence's end, shaped like h0. It is h0 for a sequence of length 0.

        Raises
        ------
        ValueError, TypeError
            For a wrong argument.
        SequenceTooLongError
            If batch norm has no statistics for a step, and `overrun` is "raise".

        Notes
        -----
        Resets divide a sequence into parts. The first part starts from h0, unless step 0 is reset, and h is
        the state after the last part. A reverse direction starts the last part from h0 and ends in the first.
        """
        if unknown:
            raise unexpected("__call__", unknown, {"hx": "h0"})
        most = 0 if threads is None else thread_limit(threads)
        found: tuple[Array, State] = engine.call(self._snapshot, x, h0, lengths, resets, most)
        return found

    def ragged(
        self, values: ArrayLike, offsets: ArrayLike, h0: Any = None, *, threads: int | None = None
    ) -> tuple[Array, State]:
        """Run the network on sequences that are stored one after another, without padding.

        The results equal, bit for bit, a call on padded sequences. Errors are as in `lnrnn.Network.__call__`.

        Parameters
        ----------
        values : array_like of shape (N, D)
            The steps of all sequences, one sequence after the other, as in Arrow's lists.
        offsets : array_like of int of shape (B + 1,)
            Ascending integers from 0 to N. Sequence i is ``values[offsets[i] : offsets[i + 1]]``.
        h0, threads
            As in a call.

        Returns
        -------
        y : array of float32 of shape (N, directions * P)
            Outputs, a row for each row of values; 0 for rows that are in no sequence.
        h : array of float32, or a pair (h, c)
            As from a call.

        Examples
        --------
        >>> import numpy as np
        >>> import lnrnn
        >>> rnn = lnrnn.GRU(3, 4, seed=0)
        >>> y, h = rnn.ragged(np.ones((5, 3)), [0, 2, 5])
        >>> y.shape, h.shape
        ((5, 4), (1, 2, 4))
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
        return y, as_state(end, made.cell)

    def stream(self, lanes: int = 1) -> Stream[State]:
        """Return a Stream, which runs independent sequences step by step.

        Parameters
        ----------
        lanes : int
            The number of sequences, at least 1.

        Returns
        -------
        Stream
            With states of 0, and with the parameters and statistics that the network has now.

        Raises
        ------
        ValueError, TypeError
            For a wrong number, and for a network that reads sequences from their ends.

        Examples
        --------
        >>> import numpy as np
        >>> import lnrnn
        >>> stream = lnrnn.RNN(3, 4, seed=0).stream()
        >>> stream(np.ones(3)).shape
        (4,)
        """
        if self.bidirectional:
            raise bad_value("bidirectional", "False for a stream", True)
        if self.reverse:
            raise bad_value("reverse", "False for a stream", True)
        return Stream(self._snapshot, lanes)

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
        """Run the network on whole sequences in training, with a record for `backward`.

        Parameters
        ----------
        x, h0, lengths, resets
            As in a call.
        dropout : float or DropoutSpec, optional
            Rate in [0, 1) between layers, or a spec with more rates. The default is the attribute `dropout`.
        seed : int or sequence of int, optional
            Seed of dropout and zoneout, at least 0; random by default.
        checkpoint : int, optional
            K: the record has the states of every K-th step only. `backward` computes the other steps again,
            which takes a third more time. Gradients of parameters are then summed in another order.

        Returns
        -------
        y, h
            As from a call.
        tape : Tape
            The record for `backward`. ``tape.nbytes`` is its size, which `tape_bytes` predicts.

        Raises
        ------
        ValueError, TypeError
            For a wrong argument, or if the weights are rounded (`to_dtype`).

        Notes
        -----
        Batch norm normalises step t over all sequences that have a step t, and updates the running
        statistics. With resets, t is counted from the last reset.

        A seed drops the same values on every machine, with any number of threads. The dropped values depend
        on the number of sequences, but not on lengths, resets or later steps.

        Examples
        --------
        >>> import numpy as np
        >>> import lnrnn
        >>> rnn = lnrnn.RNN(3, 4, seed=0)
        >>> y, h, tape = rnn.forward_train(np.ones((5, 2, 3)))
        >>> gx, gh0, gradients = rnn.backward(tape, np.ones_like(y))
        >>> gx.shape, gradients["weight_ih_l0"].shape
        ((5, 2, 3), (4, 3))
        """
        if unknown:
            raise unexpected("forward_train", unknown, {"hx": "h0"})
        state: State
        y, state, tape, seen = training.forward(
            self, self._snapshot, x, h0, lengths, resets, dropout, seed, checkpoint
        )
        if seen:  # last: an interrupted call leaves the statistics unchanged
            # Updates the newest statistics, because another thread may have set them meanwhile.
            self._change(lambda old: engine.with_batch(old, seen))
        return y, state, tape

    def tape_bytes(self, T: int, B: int, *, checkpoint: int | None = None) -> int:
        """Return the size of a tape without dropout and resets.

        Parameters
        ----------
        T, B : int
            The numbers of steps and sequences, at least 0.
        checkpoint : int, optional
            As in `forward_train`.

        Returns
        -------
        int
            Bytes. They depend on the instruction set, because rows of the tape are padded to whole vectors.
        """
        return training.tape_bytes(self._snapshot, *check("Network.tape_bytes", locals()))

    def backward(
        self,
        tape: Tape,
        gy: ArrayLike | None = None,
        gh: Any = None,
        grad_x: bool = True,
        *,
        add_to: dict[str, Array] | None = None,
        **others: Any,
    ) -> tuple[Any, State, dict[str, Array]]:
        """Back-propagate through time.

        Parameters
        ----------
        tape : Tape
            The record from `forward_train` of this network.
        gy : array_like of y's shape, optional
            Gradient of y, zeros by default. Values after the end of a sequence are not read.
        gh : array_like of h's shape, optional
            Gradient of h, zeros by default. For an LSTM a pair (gh, gc); either may be None.
        grad_x : bool
            Whether to compute gx, which is a sixth of the work.
        add_to : dict of str to array of float32, optional
            C-contiguous arrays by parameter name, to which the parameters' gradients are added.

        Returns
        -------
        gx : array of float32 of x's shape, or None
            Gradient of x.
        gh0 : array of float32, or a pair (gh0, gc0)
            Gradient of h0.
        gradients : dict of str to array of float32
            Gradients by parameter name. The dict is `add_to` if that is given.

        Raises
        ------
        ValueError, TypeError
            For a wrong argument, before anything is written.

        Notes
        -----
        The results do not depend on the number of threads, to the last bit. After a KeyboardInterrupt,
        `add_to` has some of the gradients.
        """
        if not isinstance(tape, Tape) or tape.owner is not self:
            raise bad_type("tape", "a Tape of this network", tape, "forward_train returns one")
        if others:
            hint = "; add_to= takes arrays to which gradients are added" if "out" in others else ""
            raise TypeError(f"backward() got an unexpected keyword argument {min(others)!r}{hint}")
        (grad_x,) = check("Network.backward", {"grad_x": grad_x})
        return training.backward(tape, gy, gh, grad_x, add_to)

    def calibrate(self, batches: Iterable[Any]) -> None:
        """Replace batch norm's running statistics by the exact statistics of the given sequences.

        Parameters
        ----------
        batches : iterable
            Yields x, (x, lengths) or (x, lengths, resets), as in a call. All batches are copied to memory.

        Raises
        ------
        ValueError, TypeError
            For a wrong batch, or a network without batch norm.
        SequenceTooLongError
            For a sequence longer than max_steps.

        Notes
        -----
        All sequences are computed as one batch. Step t is normalised by the mean and biased variance over the
        sequences that have a step t. Both are stored, with the number of these sequences. With resets, each
        part of a sequence counts as a sequence.

        Examples
        --------
        >>> import numpy as np
        >>> import lnrnn
        >>> rnn = lnrnn.RNN(3, 4, norm="batch", seed=0)
        >>> rnn.calibrate([np.ones((5, 2, 3)), (np.zeros((8, 2, 3)), [8, 6])])
        >>> rnn.known_steps
        8
        """
        together = calibration.joined(self._snapshot.architecture, batches)
        found = calibration.statistics(self._snapshot, *together)
        self._change(lambda old: old.changed(statistics=found))
