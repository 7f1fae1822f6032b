"""LayerNorm, RMSNorm and BatchNorm: layers with parameters, as in torch.nn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from .. import _core
from ..arguments import LARGEST, TAKES, Flag, Integer, Number, Optional, Sizes, check
from ..arguments import Array as Takes
from ..errors import bad_value
from ..state import CHANGES, MOST_COUNTED, Closed, checked, counted
from . import functional as F
from .arguments import input_array

Array = np.ndarray
_TENSOR = Optional(Takes("shape"))
TAKES["LayerNorm"] = {"normalized_shape": Sizes(), "elementwise_affine": Flag(), "bias": Flag()}
TAKES["RMSNorm"] = {"normalized_shape": Sizes(), "elementwise_affine": Flag()}
TAKES["BatchNorm"] = {
    "num_features": Integer(0, LARGEST), "affine": Flag(), "track_running_stats": Flag(),
}  # fmt: skip
TAKES["LayerNorm.options"] = {"training": Flag(), "eps": Number(0)}
TAKES["BatchNorm.options"] = TAKES["LayerNorm.options"] | {"momentum": Optional(Number(0, 1))}
TAKES["RMSNorm.options"] = TAKES["LayerNorm.options"] | {"eps": Optional(Number(0))}
TAKES["RMSNorm.tensors"] = {"weight": _TENSOR}
TAKES["LayerNorm.tensors"] = {"weight": _TENSOR, "bias": _TENSOR}
TAKES["BatchNorm.tensors"] = TAKES["LayerNorm.tensors"] | {
    "running_mean": _TENSOR, "running_var": _TENSOR,
    "num_batches_tracked": Optional(Integer(0, MOST_COUNTED)),
}  # fmt: skip


def _tensor(name: str) -> Any:
    """Returns a property for a tensor. Assigned values are checked."""
    return property(
        lambda self: self._tensors[name], lambda self, value: self._replace({name: self._kept(name, value)}),
        doc=f"The array {name}, or None without one. It can be assigned.",
    )  # fmt: skip


class _Norm(Closed):
    """Base class of the layers: training mode, tensors, and state dict.

    Threads: a call uses the tensors that the layer has when the call begins. `load_state_dict` replaces all
    tensors at once. (In-place changes such as weight[...] = w are not protected.)
    """

    __slots__ = ("training", "eps", "_tensors")
    training: bool
    eps: Any  # float; also None in RMSNorm
    _kind: str  # float; in RMSNorm also None
    _tensors: dict[str, Array | None]  # in torch's order; changes replace the dict

    def __setattr__(self, name: str, value: Any) -> None:
        if name in TAKES[f"{self._kind}.options"]:
            (value,) = check(f"{self._kind}.options", {name: value})
        super().__setattr__(name, value)

    def _shape(self) -> tuple[int, ...]:
        """Returns the shape of weight, bias and running statistics."""
        raise NotImplementedError  # pragma: no cover - each kind of layer defines it

    def _kept(self, name: str, value: Any) -> Array | None:
        """Returns the tensor to store for `value`: None, a float array unchanged, or float32 otherwise."""
        (array,) = check(f"{self._kind}.tensors", {name: value}, {"shape": self._shape()})
        if value is None:
            return None
        floats = hasattr(value, "dtype") and array.dtype.kind not in "biu"
        return array if floats else np.array(array, np.float32)

    def _replace(self, new: Mapping[str, Array | None]) -> None:
        with CHANGES:
            object.__setattr__(self, "_tensors", {**self._tensors, **new})

    def train(self, mode: bool = True) -> Self:
        """Set the mode to training or inference. Returns self. Errors are as in `LayerNorm`.

        Parameters
        ----------
        mode : bool
            True for training, the mode of a new layer. False for inference.
        """
        self.training = Flag().check("mode", mode)
        return self

    def eval(self) -> Self:
        """Set the mode to inference. Returns self."""
        return self.train(False)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of parameters and statistics, with torch's names."""
        return {name: np.array(value) for name, value in self._tensors.items() if value is not None}

    @property
    def num_parameters(self) -> int:
        """The number of values in weight and bias, without running statistics."""
        tensors = (self._tensors.get(name) for name in ("weight", "bias"))
        return sum(tensor.size for tensor in tensors if tensor is not None)

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """Set all parameters and statistics in one step.

        Parameters
        ----------
        state : mapping of str to array_like
            The names and shapes of `state_dict`.

        Raises
        ------
        ValueError, TypeError
            If a name is missing or unknown, or an array is wrong. The layer is then unchanged.
        """
        new = checked(state, self.state_dict())
        if "num_batches_tracked" in new:
            counted("num_batches_tracked", new["num_batches_tracked"])
        self._replace(new)


class _RowNorm(_Norm):
    """Base class of LayerNorm and RMSNorm, which normalise the last axes."""

    __slots__ = ("normalized_shape", "elementwise_affine")
    _fixed = __slots__
    normalized_shape: tuple[int, ...]
    elementwise_affine: bool
    weight = _tensor("weight")

    def _shape(self) -> tuple[int, ...]:
        return self.normalized_shape

    def __repr__(self) -> str:
        affine = self.elementwise_affine
        return f"{self._kind}({self.normalized_shape}, eps={self.eps}, elementwise_affine={affine})"


class LayerNorm(_RowNorm):
    """`lnrnn.layer_norm` with parameters, as torch.nn.LayerNorm.

    Parameters
    ----------
    normalized_shape : int or tuple of int
        Sizes of the last axes of x.
    eps : float
        Added to the variance; at least 0.
    elementwise_affine : bool
        Whether the layer has a weight (ones at first) and a bias (zeros), float32 of normalized_shape.
    bias : bool
        Whether the layer has a bias.

    Raises
    ------
    ValueError, TypeError
        For a wrong argument or attribute.

    Notes
    -----
    `lnrnn.layer_norm` takes other axes, with ``axis=``. weight, bias, eps and training may be assigned. To
    read or set an unknown attribute raises AttributeError.

    Examples
    --------
    >>> import lnrnn
    >>> layer = lnrnn.LayerNorm(3)
    >>> layer([[1.0, 2.0, 3.0]]).shape
    (1, 3)
    """

    __slots__ = ()
    _kind = "LayerNorm"
    bias = _tensor("bias")

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        self.normalized_shape, self.elementwise_affine, bias = check("LayerNorm", locals())
        self.eps, self.training = eps, True
        with_bias = bias and self.elementwise_affine
        self._tensors = {
            "weight": np.ones(self.normalized_shape, np.float32) if self.elementwise_affine else None,
            "bias": np.zeros(self.normalized_shape, np.float32) if with_bias else None,
        }

    def __call__(self, x: ArrayLike, *, out: np.ndarray | None = None) -> np.ndarray:
        """Return layer norm of x. Arguments, result and errors are as in `lnrnn.layer_norm`."""
        tensors, shape, eps = self._tensors, self.normalized_shape, self.eps
        y = _core.layer_norm(x, shape, tensors["weight"], tensors["bias"], eps, out)
        return F.layer_norm(x, shape, tensors["weight"], tensors["bias"], eps, out=out) if y is None else y


class RMSNorm(_RowNorm):
    """`lnrnn.rms_norm` with a parameter, as torch.nn.RMSNorm.

    Parameters
    ----------
    normalized_shape, elementwise_affine
        As in `LayerNorm`; there is no bias.
    eps : float or None
        Added to the mean square; at least 0. None is the machine epsilon of the computed dtype.

    Notes
    -----
    `lnrnn.rms_norm` takes other axes, with ``axis=``. weight, eps and training may be assigned. To read or
    set an unknown attribute raises AttributeError.

    Examples
    --------
    >>> import lnrnn
    >>> layer = lnrnn.RMSNorm(2)
    >>> layer([[3.0, 4.0]]).round(3)
    array([[0.849, 1.131]])
    """

    __slots__ = ()
    _kind = "RMSNorm"

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float | None = None,
        elementwise_affine: bool = True,
    ) -> None:
        self.normalized_shape, self.elementwise_affine = check("RMSNorm", locals())
        self.eps, self.training = eps, True
        ones = np.ones(self.normalized_shape, np.float32) if self.elementwise_affine else None
        self._tensors = {"weight": ones}

    def __call__(self, x: ArrayLike, *, out: np.ndarray | None = None) -> np.ndarray:
        """Return RMS norm of x. Arguments, result and errors are as in `lnrnn.rms_norm`."""
        weight, shape, eps = self._tensors["weight"], self.normalized_shape, self.eps
        y = _core.layer_norm(x, shape, weight, None, eps, out, False)
        return F.rms_norm(x, shape, weight, eps, out=out) if y is None else y


class BatchNorm(_Norm):
    """`lnrnn.batch_norm` with parameters and running statistics, as torch.nn.BatchNorm1d, 2d and 3d.

    Parameters
    ----------
    num_features : int
        C, the size of axis 1; at least 0.
    eps : float
        Added to the variance; at least 0.
    momentum : float or None
        Weight of a new batch in the running statistics, in [0, 1]. None takes the mean over all batches.
    affine : bool
        Whether the layer has a weight (ones at first) and a bias (zeros), float32 of shape (C,).
    track_running_stats : bool
        Whether the layer has running statistics. Without these, inference uses the statistics of the batch.

    Notes
    -----
    weight, bias, running_mean, running_var, eps, momentum, training and num_batches_tracked (0 to 2**53) may
    be assigned. To read or set an unknown attribute raises AttributeError, and other errors are
    as in `LayerNorm`. Training replaces the arrays of running statistics. Threads may train one layer.

    Examples
    --------
    >>> import numpy as np
    >>> import lnrnn
    >>> layer = lnrnn.BatchNorm(3)
    >>> y = layer(np.ones((8, 3, 5)))
    >>> layer.running_mean
    array([0.1, 0.1, 0.1], dtype=float32)
    >>> layer.eval()(np.ones((8, 3, 5))).shape
    (8, 3, 5)
    """

    __slots__ = ("num_features", "momentum", "affine", "track_running_stats")
    momentum: float | None
    _fixed = ("num_features", "affine", "track_running_stats")
    _kind = "BatchNorm"
    weight = _tensor("weight")
    bias = _tensor("bias")
    running_mean = _tensor("running_mean")
    running_var = _tensor("running_var")
    num_batches_tracked = _tensor("num_batches_tracked")

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        self.num_features, self.affine, self.track_running_stats = check("BatchNorm", locals())
        self.eps, self.momentum, self.training = eps, momentum, True
        C, tracks = self.num_features, self.track_running_stats
        self._tensors = {
            "weight": np.ones(C, np.float32) if self.affine else None,
            "bias": np.zeros(C, np.float32) if self.affine else None,
            "running_mean": np.zeros(C, np.float32) if tracks else None,
            "running_var": np.ones(C, np.float32) if tracks else None,
            "num_batches_tracked": np.array(0, np.int64) if tracks else None,
        }

    def _shape(self) -> tuple[int, ...]:
        return (self.num_features,)

    def _kept(self, name: str, value: Any) -> Array | None:
        if name in ("weight", "bias"):
            return super()._kept(name, value)
        if (value is not None) != self.track_running_stats:
            wanted = "None with track_running_stats=False" if value is not None else "an array"
            raise bad_value(name, wanted, value)
        if value is None or name != "num_batches_tracked":
            return super()._kept(name, value)
        return np.array(check("BatchNorm.tensors", {name: value})[0], np.int64)

    def __call__(self, x: ArrayLike, *, out: np.ndarray | None = None) -> np.ndarray:
        """Return batch norm of x. Arguments, result and errors are as in `lnrnn.batch_norm`."""
        tensors, eps, momentum = self._tensors, self.eps, self.momentum
        training, tracks = self.training, self.track_running_stats
        mean, var = tensors["running_mean"], tensors["running_var"]
        weight, bias = tensors["weight"], tensors["bias"]
        by_batch, updates = training or not tracks, training and tracks
        if updates:
            # batch_norm adds momentum * batch statistics to these zeros. It must not write to the
            # running statistics, which other threads may be reading.
            mean, var = seen = np.zeros((2, self.num_features))
        part = 1.0 if momentum is None else momentum
        y = None
        if tracks or getattr(x, "shape", ())[1:2] == (self.num_features,):  # other x raise below
            y = _core.batch_norm(x, mean, var, weight, bias, by_batch, part, eps, out)
        if y is None:
            x = input_array("x", x)
            check("batch_norm", {"x": x}, {"C": self.num_features})
            y = F.batch_norm(x, mean, var, weight, bias, by_batch, part, eps, out=out)
        if updates:
            self._learn(seen, momentum)
        return y

    def _learn(self, seen: Array, momentum: float | None) -> None:
        """Updates the running statistics. seen (2, C): mean and unbiased variance of the batch, already times
        momentum unless this is None."""
        with CHANGES:
            old = self._tensors
            mean, var, count = (old[name] for name in ("running_mean", "running_var", "num_batches_tracked"))
            if mean is None or var is None or count is None:  # pragma: no cover - keeps the types right
                raise RuntimeError("this layer has no running statistics")
            tracked = min(int(count) + 1, MOST_COUNTED)
            if momentum is None:
                momentum = 1 / tracked
                seen *= momentum
            # (1 - momentum) * running + momentum * batch, in double precision as in batch_norm
            seen += (1 - momentum) * np.array((mean, var), np.float64)
            self._replace({
                "running_mean": seen[0].astype(mean.dtype), "running_var": seen[1].astype(var.dtype),
                "num_batches_tracked": np.array(tracked, np.int64),
            })  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"BatchNorm({self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats})"
        )
