"""lnrnn.GradualPruner: trains block-sparse weights, for networks of lnrnn and modules of torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arguments import BOOLEANS, TAKES, Array, Flag, Integer, check
from ..errors import bad_type, bad_value, message
from .architecture import BLOCK
from .network import Network
from .sparse import OF_LAYERS, Density, choices, with_blocks

TAKES["GradualPruner"] = {
    "begin_step": Integer(0), "end_step": Integer(1), "every": Integer(1), "keep_diagonal": Flag(),
}  # fmt: skip
_DONE = "steps_done"
_MASK = Array("rows columns", of=BOOLEANS)


class GradualPruner:
    """Prune the weights of a network to blocks during its training, more and more (gradual pruning).

    After step t, of ``begin_step`` to ``end_step``, the density is
    ``density + (1 - density) * (1 - (t - begin_step) / (end_step - begin_step)) ** 3``. The blocks with the
    largest sums of squared weights stay, as in `sparsify`. All others are set to 0 after each step, also
    after ``end_step``, so that momentum and weight decay do not bring them back.

    Parameters
    ----------
    model : Network or torch.nn.Module
        A network of lnrnn, or a module of torch with layers of torch.nn, lnrnn.torch or of your own.
    density : float, sequence or mapping
        The density at ``end_step``, as in `sparsify`. A module has a ``weight_ih`` and ``weight_hh`` in each
        recurrent layer. A mapping may have the names of other weights, such as {"cell.w_hh": 0.3}.
    end_step : int
        The number of the step with the last choice of blocks, from 1.
    begin_step : int
        The number of the step after which the density begins to fall, at least 0.
    every : int
        The number of steps from one choice of blocks to the next.
    block : (8, 4), optional
        The outputs and inputs of a block. No other size has kernels.
    keep_diagonal : bool
        Keep the diagonal of each square of a weight with hh in its name, even beyond the density.

    Attributes
    ----------
    steps_done : int
        The number of calls of `step`.

    Raises
    ------
    ValueError, TypeError
        For a wrong argument, or a weight (n, k) that is not divided by (8, 4).

    References
    ----------
    Zhu and Gupta, To prune, or not to prune, 2017, https://arxiv.org/abs/1710.01878: the cubic schedule.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> rnn = lnrnn.GRU(16, 64, seed=0)
    >>> pruner = lnrnn.GradualPruner(rnn, 0.3, end_step=100, every=10)
    >>> for _ in range(100):
    ...     rnn.weight_hh_l0 = 0.99 * rnn.weight_hh_l0  # in place of an update by gradients
    ...     pruner.step()
    >>> print(f"{np.mean(rnn.weight_hh_l0 != 0):.2f}")
    0.30
    """

    def __init__(
        self, model: Any, density: Density, *, end_step: int, begin_step: int = 0, every: int = 100,
        block: tuple[int, int] = BLOCK, keep_diagonal: bool = True,
    ) -> None:  # fmt: skip
        self._begin, self._end, self._every, keep_diagonal = check("GradualPruner", locals())
        if self._end < self._begin:
            raise bad_value("end_step", f"at least begin_step, {self._begin}", end_step)
        torch = sys.modules.get("torch")
        self._of_torch = torch is not None and isinstance(model, torch.nn.Module)
        if not self._of_torch and not isinstance(model, Network):
            raise bad_type("model", "a network of lnrnn or a torch.nn.Module", model)
        self._model = model
        found = self._weights()
        weights = (
            (name, model.get_submodule(name.rpartition(".")[0]) if self._of_torch else model, tuple(w.shape))
            for name, w in found.items()
        )
        self._choices = choices(weights, density, block, keep_diagonal)
        if self._of_torch:
            self._check_parameters(found)
        self._masks: dict[str, np.ndarray] = {}  # by weight: bool (rows, columns), True for kept blocks
        self.steps_done = 0

    def step(self, *_: object) -> None:
        """Prune the weights. Call it after each update, or register it as a hook of torch.

        In torch: ``optimizer.register_step_post_hook(pruner.step)``. The arguments of a hook are ignored.
        """
        done, total = self.steps_done + 1 - self._begin, self._end - self._begin
        due = 0 <= done <= total and (done % self._every == 0 or done == total)
        if due or self._masks:
            self._prune(due, (1 - done / total) ** 3 if done < total else 0.0)
        self.steps_done += 1

    def _prune(self, due: bool, left: float) -> None:
        """Zeroes removed blocks. due: choose them again. left: as for Choice.largest."""
        weights = self._weights()
        for name, choice in self._choices.items():
            w = weights.get(name)
            shape = choice.rows * BLOCK[0], choice.columns * BLOCK[1]
            if w is None or w.shape != shape:
                shown = "no such parameter" if w is None else str(tuple(w.shape))
                raise ValueError(message("model", f"with {name} of the shape {shape}, as before", shown))
            if due:  # an update makes removed blocks nonzero
                array = w.detach().double().cpu().numpy() if self._of_torch else w
                self._masks[name] = choice.largest(array, left, self._masks.get(name))
            keep = self._masks[name]
            if self._of_torch:
                gone = w.new_tensor(~keep[:, None, :, None]) != 0
                w.detach().view(choice.rows, BLOCK[0], choice.columns, BLOCK[1]).masked_fill_(gone, 0)
            else:
                weights[name] = with_blocks(w, keep)
        if not self._of_torch:
            self._model.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for resumed training: `steps_done`, and the mask of each pruned weight."""
        return {_DONE: self.steps_done, **{name: mask.tolist() for name, mask in self._masks.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict` of a pruner with the same arguments.

        Parameters
        ----------
        state : mapping
            The state. Load the parameters of the model and the optimiser's state, too.

        Raises
        ------
        ValueError, TypeError
            If the state is not of a pruner, or belongs to another model.
        """
        names = {*state} - {_DONE} if isinstance(state, Mapping) else None
        if names is None or _DONE not in state or names not in (set(), {*self._choices}):
            keys = ", ".join([_DONE, *self._choices])
            raise bad_value("state", f"a mapping of state_dict() with the keys {keys}", state)
        steps = Integer(0).check(_DONE, state[_DONE])
        first = self._begin or min(self._every, self._end)
        if self._choices and bool(names) != (steps >= first):
            expected = f"at least {first} in a state with masks, and less in one without them"
            raise bad_value(_DONE, expected, steps, "give the pruner the arguments that it had before")
        sizes = {n: {"rows": choice.rows, "columns": choice.columns} for n, choice in self._choices.items()}
        self._masks = {n: _MASK.check(n, state[n], sizes[n]) for n in names}
        self.steps_done = steps

    def _weights(self) -> dict[str, Any]:
        if self._of_torch:
            return dict(self._model.named_parameters(remove_duplicate=False))
        return dict(self._model.state_dict())

    def _check_parameters(self, weights: Mapping[str, Any]) -> None:
        """Refuses weights that hooks compute, and different densities for one parameter under two names."""
        if _DONE in self._choices:
            raise ValueError(message("density", f"for parameters with other names than {_DONE}", _DONE))
        for path, layer in self._model.named_modules():
            for name in (*getattr(layer, "parametrizations", ()), *vars(layer)):
                if OF_LAYERS.fullmatch(name):
                    where = f"{path}.{name}".lstrip(".")
                    raise ValueError(message("model", "free of hooks on weights", f"one on {where}"))
        first: dict[int, str] = {}
        for name, choice in self._choices.items():
            other = first.setdefault(id(weights[name]), name)
            if self._choices[other] != choice:
                got = "different densities"
                raise ValueError(message("density", f"equal for {other} and {name}, one parameter", got))
