"""The compiled module. Private: its callers have checked every argument."""

from os import PathLike
from typing import Any, TypeGuard

from numpy import ndarray

def isa_list() -> list[str]: ...
def isa() -> str: ...
def use_isa(name: str) -> None: ...
def has_openmp() -> bool: ...
def cores() -> int: ...
def get_num_threads() -> int: ...
def set_num_threads(n: int) -> None: ...
def cores_of(cpus: int, groups: str | PathLike[str], root: str | PathLike[str]) -> int: ...
def teams_had() -> tuple[int, int]: ...
def back_off(mode: str) -> None: ...
def aligned(n: int) -> ndarray: ...
def empty_like(x: ndarray) -> ndarray: ...
def map_f32(function: int, x: ndarray, y: ndarray) -> None: ...
def layer_norm(
    x: Any, shape: Any, gain: Any, bias: Any, eps: Any, out: Any, centred: bool = True
) -> ndarray | None: ...
def layer_norm_backward(
    gy: Any, x: Any, shape: Any, gain: Any, bias: Any, eps: Any
) -> tuple[ndarray, ndarray | None, ndarray | None] | None: ...
def batch_norm(
    x: Any, mean: Any, var: Any, gain: Any, bias: Any, training: Any, momentum: Any, eps: Any, out: Any
) -> ndarray | None: ...
def batch_norm_backward(
    gy: Any, x: Any, mean: Any, var: Any, gain: Any, training: Any, eps: Any
) -> tuple[ndarray, ndarray | None, ndarray] | None: ...
def set_part(part: float) -> None: ...

Statistics = dict[str, Any]  # side -> (mean, var), each (T, width) float64; "count" -> (T,) int64

class Layer:
    def __init__(
        self,
        cell: int,
        weight_ih: ndarray,
        weight_hh: ndarray,
        parameters: dict[str, ndarray],
        *,
        act: int = 0,
        norm: int,
        placement: int = 0,
        span: int = 0,
        cell_norm: int = 0,
        eps: float,
        reverse: bool,
        dtype: int = 0,
    ) -> None: ...
    def set_steps(self, tables: dict[str, tuple[ndarray, ndarray]], known: int, beyond: int) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def forward(
        self,
        x: ndarray,
        y: ndarray,
        h0: ndarray,
        hn: ndarray,
        order: ndarray,
        length: ndarray,
        start: int = 0,
        statistics: Statistics | None = None,
        tape: ndarray | None = None,
        c0: ndarray | None = None,
        cn: ndarray | None = None,
    ) -> None: ...
    def tape(self, rows: int) -> ndarray: ...
    def backward(
        self,
        x: ndarray,
        y: ndarray,
        h0: ndarray,
        order: ndarray,
        length: ndarray,
        statistics: Statistics | None,
        tape: ndarray,
        gy: ndarray,
        ghn: ndarray | None,
        gx: ndarray,
        gh0: ndarray,
        gw_ih: ndarray,
        gw_hh: ndarray,
        grads: dict[str, ndarray],
        c0: ndarray | None = None,
        gcn: ndarray | None = None,
        gc0: ndarray | None = None,
    ) -> None: ...

class Parts: ...  # the compiled module's own

class Step:
    def __init__(
        self, layer: Layer, x: ndarray, y: ndarray, h: ndarray, c: ndarray | None = None
    ) -> None: ...
    def inside(self, step: int) -> None: ...
    def into(self, step: int, y: ndarray) -> None: ...

def takes_floats(y: Any, like: ndarray) -> TypeGuard[ndarray]: ...
def packed(w: ndarray, transpose: bool, dtype: int) -> ndarray: ...
