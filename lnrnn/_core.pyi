"""The compiled module. It is private, because its functions rely on their callers' checks of arguments."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from enum import IntEnum
from typing import Any

from numpy import ndarray
from numpy.typing import ArrayLike

class Function(IntEnum):
    EXP = ...
    TANH = ...
    SIGMOID = ...

def isa_list() -> list[str]: ...
def isa_emulated() -> list[str]: ...
def isa() -> str: ...
def use_isa(name: str) -> None: ...
def team_list() -> list[str]: ...
def team() -> str: ...
def use_team(name: str) -> None: ...
def cpu_info() -> dict[str, Any]: ...

own_num_threads: ContextVar[int]

def get_num_threads() -> int: ...
def set_num_threads(n: int) -> None: ...
def aligned(n: int) -> ndarray: ...
def empty(shape: tuple[int, ...]) -> ndarray: ...
def empty_like(x: ndarray) -> ndarray: ...
def copied(x: ndarray) -> ndarray: ...
def map_f32(function: int, x: Any, out: Any) -> ndarray | None: ...
def layer_norm(
    x: Any, shape: Any, gain: Any, bias: Any, eps: Any, out: Any, centred: bool = True
) -> ndarray | None: ...
def layer_norm_backward(
    gy: Any, x: Any, shape: Any, gain: Any, bias: Any, eps: Any, centred: bool = True
) -> tuple[ndarray, ndarray | None, ndarray | None] | None: ...
def batch_norm(
    x: Any,
    mean: Any,
    var: Any,
    gain: Any,
    bias: Any,
    training: Any,
    momentum: Any,
    eps: Any,
    out: Any,
) -> ndarray | None: ...
def batch_norm_backward(
    gy: Any, x: Any, mean: Any, var: Any, gain: Any, training: Any, eps: Any
) -> tuple[ndarray, ndarray | None, ndarray] | None: ...

class Description:
    def __init__(self, configuration: str) -> None: ...
    def arrays(self) -> list[tuple[str, tuple[int, ...], str, int]]: ...
    @property
    def tape_width(self) -> int: ...

class Call: ...  # only the compiled module uses it

class Network:
    def __init__(self, description: Description, state: dict[str, ndarray]) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def call(
        self, x: Any, h0: Any, lengths: Any, threads: int
    ) -> tuple[ndarray, ndarray | tuple[ndarray, ...]] | None: ...
    def train(
        self, x: Any, h0: Any, lengths: Any
    ) -> tuple[ndarray, Any, tuple[ndarray, ...], ndarray, ndarray, list[ndarray], list[ndarray]] | None: ...
    def forward(
        self,
        *,
        x: ndarray,
        y: ndarray,
        h0: ndarray,
        hn: ndarray,
        c0: ndarray | None = None,
        cn: ndarray | None = None,
        rows: ndarray,
        training: Any = None,
        threads: int = 0,
        line: int = -1,
    ) -> None: ...
    def backward(
        self,
        *,
        x: ndarray,
        y: ndarray,
        h0: ndarray,
        c0: ndarray | None = None,
        rows: ndarray,
        training: Any,
        gy: ndarray,
        ghn: ndarray | None,
        gcn: ndarray | None = None,
        gx: ndarray | None,
        gh0: ndarray,
        gc0: ndarray | None = None,
        grads: list[ndarray],
        add: bool = False,
        threads: int = 0,
        line: int = -1,
    ) -> None: ...

def packed_rows(sizes: ndarray, order: ndarray | None, back: ndarray | None, rows: int) -> ndarray | None: ...
def by_sequence(array: ndarray, table: ndarray) -> ndarray: ...
def by_step(array: ndarray, table: ndarray) -> ndarray: ...
def call_network(*arguments: Any, **named: Any) -> Any: ...

LAST_STEP: int  # the largest step number of a stream

class Lanes:
    states: list[ndarray]
    steps: ndarray
    def __init__(
        self, network: Network, lanes: int, rows: int, zeros: Callable[..., ndarray] = ...
    ) -> None: ...
    def step(self, x: Any, rows: Any, out: Any, resets: Any, threads: int) -> ndarray | None: ...
    def put(self, rows: ndarray, states: Sequence[ndarray | None], steps: ndarray | None) -> None: ...

class StreamBase:
    _lanes: Lanes
    def __call__(
        self,
        x: ArrayLike,
        lanes: ArrayLike | None = None,
        *,
        out: Any = None,
        lengths: ArrayLike | None = None,
        resets: ArrayLike | None = None,
        threads: int | None = None,
    ) -> ndarray: ...

def step_all(steps: list[Any], threads: int) -> list[ndarray] | None: ...
def lanes_of(tables: list[dict[Any, int]], ids: list[Any] | tuple[Any, ...]) -> ndarray | None: ...
def all_finite(x: Any, n0: int, n1: int) -> bool: ...

class Seen:
    def __init__(
        self, tensors: list[Any], arrays: list[ndarray | None] | None, same_objects: bool
    ) -> None: ...
    def holds(self, tensors: list[Any]) -> bool: ...

def array_of(t: Any) -> ndarray: ...
def same_memory(arrays: list[ndarray], others: list[ndarray]) -> bool: ...
def use_torch(
    tensor: Any,
    types: dict[Any, tuple[int, int]],
    to_tensor: Any,
    threads: Any,
    active: tuple[Any, ...],
    forward_ad: dict[str, Any],
    exchange_api: Any,
) -> None: ...

class Kept:
    network: str
    overrun: Any
    record: Seen | None
    served: Any
    def __init__(
        self,
        network: str,
        overrun: Any,
        record: Seen | None,
        served: Any,
        packed: Network | None,
        pair: bool,
        cell: bool,
    ) -> None: ...
    def call(self, network: str, tensors: list[Any], x: Any, state: Any, axes: int) -> Any: ...

def same_objects(contents: list[Any], tensors: list[Any], constants: list[Any]) -> bool: ...

class FileMemory: ...  # the compiled module's own

def read_model(path: str | bytes) -> tuple[str, tuple[float, ...], dict[str, ndarray]]: ...
