"""Lists operations that run while requests for memory or files fail. They are small: each runs often."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import lnrnn
from importing import FOREIGN, drawn
from lnrnn.cli import write_array
from networks import CELLS, VARIANTS, drawn_state, network, normal

T, B, D, H = 5, 3, 4, 6


@dataclass(frozen=True)
class Operation:
    call: Callable[[], Any]  # returns arrays, or objects with arrays
    seen: Callable[[], bytes] = bytes  # returns the state that `call` may change
    reset: Callable[[], Any] = bytes  # restores this state
    lost: float = 0  # mean number of blocks of memory that NumPy leaks if a request fails


def bits(result: Any) -> bytes:
    """Returns the bytes of all arrays in a result, with their types and shapes."""
    if isinstance(result, np.ndarray):
        return f"{result.dtype}{result.shape}".encode() + result.tobytes()
    if isinstance(result, dict):
        return b"".join(name.encode() + bits(value) for name, value in result.items())
    if isinstance(result, (tuple, list)):
        return b"(" + b",".join(map(bits, result)) + b")"
    if isinstance(result, lnrnn.Network):
        return f"{type(result)} {result.dtype} {result.overrun}".encode() + bits(result.state_dict())
    if hasattr(result, "get_state") or hasattr(result, "reset"):  # a stream
        return bits([result.steps_done, parts_of(result.state)])
    if hasattr(result, "state_dict"):
        return bits(result.state_dict())
    if type(result).__name__ == "Tape":  # some elements of its arrays are never written
        return bits(result.owner.backward(result, np.ones(result.layout[1], np.float32)))
    return repr(result).encode()


def parts_of(state):
    return list(state) if isinstance(state, tuple) else [state]


Operations = dict[str, Operation]


def norms(rng) -> Operations:
    every: Operations = {}
    for name, shape in {"small": (3, 7), "wide": (4, 600), "large": (300, 2048)}.items():
        n = shape[1]
        x, gy, w, b = normal(rng, *shape), normal(rng, *shape), normal(rng, n), normal(rng, n)
        for dtype in ("float32", "float16"):
            calls = {
                "layer_norm": partial(lnrnn.layer_norm, normalized_shape=n, weight=w),
                "batch_norm": partial(
                    lnrnn.batch_norm, running_mean=b, running_var=np.abs(w), weight=w, bias=b
                ),
                "layer_norm_backward": partial(
                    lnrnn.layer_norm_backward, gy.astype(dtype), normalized_shape=n, weight=w, bias=b
                ),
                "batch_norm_backward": partial(
                    lnrnn.batch_norm_backward, gy.astype(dtype), running_mean=None, running_var=None, weight=w
                ),
            }
            for kind, call in calls.items():
                every[f"{kind} {name} {dtype}"] = Operation(partial(call, x=x.astype(dtype)))
            every[f"batch_norm training {name} {dtype}"] = trained_norm(x.astype(dtype))
        every[f"layer {name}"] = norm_layer(x)
    few, out = normal(rng, 3, 7), np.zeros((3, 14), np.float32)[:, ::2]
    rows = few.tolist()
    every["layer_norm of a list"] = Operation(lambda: lnrnn.layer_norm(rows, 7))
    every["rms_norm of float64, transposed"] = Operation(lambda: lnrnn.rms_norm(np.asarray(rows).T, 3))
    every["layer_norm, strided out"] = Operation(
        lambda: lnrnn.layer_norm(few, 7, out=out), lambda: out.tobytes(), lambda: out.fill(0)
    )
    return every


def trained_norm(x) -> Operation:
    mean, var = np.zeros(x.shape[1], np.float32), np.ones(x.shape[1], np.float32)

    def reset():
        mean[...], var[...] = 0, 1

    return Operation(lambda: lnrnn.batch_norm(x, mean, var, training=True), lambda: bits([mean, var]), reset)


def norm_layer(x) -> Operation:
    """Returns the operation that calls a layer in training mode."""
    layer = lnrnn.BatchNorm(x.shape[1], momentum=None)
    start = layer.state_dict()
    return Operation(lambda: layer(x), lambda: bits(layer), lambda: layer.load_state_dict(start))


def model(variant: str, **options) -> Any:
    return network(D, H, **VARIANTS[variant], trained=T, **options)


def networks(rng) -> Iterator[tuple[str, Operation]]:
    x, ends = normal(rng, T, B, D), np.array([T, 0, 2])
    for variant in VARIANTS:
        two, one = model(variant, num_layers=2, bidirectional=True), model(variant, num_layers=2)
        h0, state, seen = drawn_state(rng, two, B), two.state_dict(), partial(bits, two)
        yield f"call {variant}", Operation(partial(two, x, h0, ends), seen)
        # Before each call, load_state_dict discards the packed weights.
        yield f"first call {variant}", Operation(partial(two, x), seen, partial(two.load_state_dict, state))
        yield f"stream {variant}", stepping(one, x[0])
        yield f"new stream {variant}", Operation(partial(streamed, one, x[:2]))
        yield f"constructor {variant}", Operation(partial(constructed, VARIANTS[variant]))
        yield f"copies {variant}", Operation(partial(copies, two), lost=0.2)
        if "batch" in variant:  # shows how much memory NumPy leaks by itself
            yield f"NumPy's copies {variant}", Operation(partial(pickled, state), lost=0.2)
        for dtype in ("bfloat16", "int8"):
            yield f"to_dtype {dtype} {variant}", Operation(partial(converted, one, dtype, x))
    for cell in CELLS:
        for norm in ("layer", "batch", None):
            yield from training(rng, cell, norm, x, ends)


def streamed(rnn, x):
    stream = rnn.stream(B)
    return [*map(stream, x), stream]


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))


def constructed(options):
    options = dict(options)
    if options.pop("projected", False):
        options["proj_size"] = H // 2
    return getattr(lnrnn, options.pop("cell"))(D, H, seed=3, num_layers=2, bidirectional=True, **options)


def copies(rnn):
    return [copy.copy(rnn), copy.deepcopy(rnn), pickled(rnn)]


def converted(rnn, dtype, x):
    other = rnn.to_dtype(dtype)
    return [other, other(x)]


def stepping(rnn, x) -> Operation:
    stream = rnn.stream(len(x))
    out = stream(x)
    stream.reset()

    def call():
        stream(x, out=out)
        return out.copy()

    def reset():
        stream.reset()
        if rnn.overrun is None:
            stream.steps_done = 5000  # too large for Python's cached ints

    return Operation(call, lambda: bits(stream), reset)


def training(rng, cell, norm, x, ends) -> Iterator[tuple[str, Operation]]:
    name, rnn = f"{cell} {norm}", model_of(cell, norm)
    start, other = rnn.state_dict(), model_of(cell, norm, seed=7).state_dict()
    changing = partial(Operation, seen=partial(bits, rnn), reset=partial(rnn.load_state_dict, start))
    y, h, tape = rnn.forward_train(x, lengths=ends)
    gy = normal(rng, *y.shape)
    rnn.load_state_dict(start)
    weight = np.ones((len(rnn.weight_hh_l0), H))
    yield f"forward_train {name}", changing(partial(rnn.forward_train, x, lengths=ends))
    yield f"backward {name}", changing(partial(rnn.backward, tape, gy, h))
    yield f"load_state_dict {name}", changing(partial(rnn.load_state_dict, other))
    yield f"set {name}", changing(partial(setattr, rnn, "weight_hh_l0", weight))
    yield f"state_dict {name}", changing(rnn.state_dict)
    if norm == "batch":
        batches = [normal(rng, T, 2, D), (normal(rng, T, 3, D), np.array([1, 4, 5]))]
        yield f"calibrate {name}", changing(partial(rnn.calibrate, batches))
        back = partial(setattr, rnn, "overrun", "last")
        yield f"overrun {name}", Operation(partial(setattr, rnn, "overrun", "mean"), partial(bits, rnn), back)
    stream, state = rnn.stream(B), drawn_state(rng, rnn, B)
    call = partial(setattr, stream, "state", state)
    yield f"state of a stream {name}", Operation(call, partial(bits, stream), stream.reset)


def model_of(cell, norm, seed=0):
    return network(D, H, cell=cell, norm=norm, num_layers=2, trained=T, seed=seed)


def importers(rng) -> Iterator[tuple[str, Operation]]:
    more = {"torch RNN": {"nonlinearity": "tanh"}, "haste LSTM": {"zoneout": 0}, "haste GRU": {"zoneout": 0}}
    for name, foreign in FOREIGN.items():
        leaves = drawn(rng, foreign.shapes(D, H))
        state = {foreign.key(leaf, 0, 0, 1): value for leaf, value in leaves.items()}
        yield f"from_torch {name}", Operation(partial(lnrnn.from_torch, state, **more.get(name, {})))
    for gates, cell, bias in ((4, "LSTM", (4 * H,)), (3, "GRU", (2, 3 * H))):
        weights = [normal(rng, D, gates * H), normal(rng, H, gates * H), normal(rng, *bias)]
        yield f"from_keras {cell}", Operation(partial(lnrnn.from_keras, weights))


def files(folder: Path) -> Iterator[tuple[str, Operation]]:
    """Yields operations that write and read files. Their `seen` returns the content of all files in the
    folder, so that an additional file is noticed."""
    folder.mkdir(exist_ok=True)
    old, new = model("LSTM split out"), model("RNN batch")
    path, link, array = (folder / name for name in ("m.safetensors", "link", "a.npy"))
    old.save(path)
    first = path.read_bytes()
    link.unlink(missing_ok=True)
    link.symlink_to(path)

    def seen():
        return repr([(p.name, p.is_symlink(), content(p)) for p in sorted(folder.iterdir())]).encode()

    def reset():
        for p in (path, array):
            if p.exists():
                p.unlink()
        path.write_bytes(first)

    yield "save over a file", Operation(partial(new.save, path), seen, reset)
    yield "save over a link", Operation(lambda: new.save(link), seen, reset)
    yield "save a new file", Operation(lambda: new.save(array), seen, reset)
    yield "write_array", Operation(lambda: write_array(array, np.arange(3000.0)), seen, reset)
    yield "load", Operation(lambda: lnrnn.load(path), seen, reset)


def content(path: Path) -> bytes:
    """Returns the arrays of a network's file, or the bytes of another file."""
    data = path.read_bytes()
    return bits(lnrnn.load(path)) if b"lnrnn" in data else data


def operations(folder: Path, only_files: bool) -> Iterator[tuple[str, Operation]]:
    if only_files:
        yield from files(folder)
        return
    rng = np.random.default_rng(13)
    yield from norms(rng).items()
    yield from networks(rng)
    yield from importers(rng)
    yield from files(folder)
