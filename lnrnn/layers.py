"""LayerNorm and BatchNorm as objects with parameters, as in torch.nn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import functional as F
from ._errors import flag, integer, number, shaped
from ._state import load_into


class _Norm:
    """What the two layers share: a mode, and a state dict."""

    training = True
    _state: tuple[str, ...] = ()

    def train(self, mode: bool = True) -> Any:
        """Switches to training (the default mode of a new layer), as in torch.nn. -> self."""
        self.training = flag("mode", mode)
        return self

    def eval(self) -> Any:
        """Switches to inference. -> self."""
        return self.train(False)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of parameters and statistics, by torch's names."""
        named = ((name, getattr(self, name)) for name in self._state)
        return {name: np.array(value) for name, value in named if value is not None}

    def load_state_dict(self, state: dict[str, ArrayLike]) -> None:
        """Sets parameters and statistics; every name must be there, with its shape. On an error nothing changes."""
        load_into(self, state, self.state_dict())


class LayerNorm(_Norm):
    """lnrnn.layer_norm with parameters. As torch.nn.LayerNorm.

    normalized_shape: an int or a tuple, the last axes of the input. eps >= 0. elementwise_affine: weight (ones) and
    bias (zeros) of normalized_shape, float32, else None; bias=False: no bias. Call with x (*, *normalized_shape).
    """

    _state = ("weight", "bias")

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        self.normalized_shape = F._normalized(normalized_shape)
        self.eps = number("eps", eps, 0)
        self.elementwise_affine = flag("elementwise_affine", elementwise_affine)
        with_bias = flag("bias", bias) and self.elementwise_affine
        self.weight = np.ones(self.normalized_shape, np.float32) if self.elementwise_affine else None
        self.bias = np.zeros(self.normalized_shape, np.float32) if with_bias else None

    def __call__(self, x: ArrayLike, *, out: np.ndarray | None = None) -> np.ndarray:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps, out=out)

    def __repr__(self) -> str:
        return f"LayerNorm({self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine})"


class BatchNorm(_Norm):
    """lnrnn.batch_norm with parameters and running statistics. As torch.nn.BatchNorm1d, 2d, 3d: any rank >= 2.

    num_features: C, the size of axis 1. momentum: weight of a new batch in the running statistics, in [0, 1], or None
    for the mean over all batches so far. affine: weight (ones) and bias (zeros), (C,). track_running_stats=False: no
    running statistics, the batch's own are used in inference too. Call with x (N, C, *).
    """

    _state = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        self.num_features = integer("num_features", num_features, 0, F.LARGEST)
        self.eps = number("eps", eps, 0)
        self.momentum = None if momentum is None else number("momentum", momentum, 0, 1)
        self.affine = flag("affine", affine)
        self.track_running_stats = flag("track_running_stats", track_running_stats)
        C, tracks = self.num_features, self.track_running_stats
        self.weight = np.ones(C, np.float32) if self.affine else None
        self.bias = np.zeros(C, np.float32) if self.affine else None
        self.running_mean = np.zeros(C, np.float32) if tracks else None
        self.running_var = np.ones(C, np.float32) if tracks else None
        self.num_batches_tracked = np.array(0, np.int64) if tracks else None

    def __call__(self, x: ArrayLike, *, out: np.ndarray | None = None) -> np.ndarray:
        x = F._stored("x", x)
        if x.ndim >= 2 and x.shape[1] != self.num_features:
            shaped("x", x, (x.shape[0], self.num_features, *x.shape[2:]), x.dtype)
        updates = self.training and self.track_running_stats
        seen = int(self.num_batches_tracked) + 1 if updates else 1
        momentum = 1 / seen if self.momentum is None else self.momentum
        y = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias,
            self.training or not self.track_running_stats, momentum, self.eps, out=out,
        )  # fmt: skip
        if updates:
            self.num_batches_tracked = np.array(seen, np.int64)
        return y

    def __repr__(self) -> str:
        return (
            f"BatchNorm({self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats})"
        )
