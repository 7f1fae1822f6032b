"""What the library is asked to do while memory or a disk fails: each operation with what it gives and what it
may change. Kept small: an operation is done once for every request for memory that it makes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import lnrnn
from importing import FOREIGN, drawn
from lnrnn.cli import write_array
from networks import CELLS, VARIANTS, drawn_state, network, normal, parts

T, B, D, H = 5, 3, 4, 6


@dataclass(frozen=True)
class Operation:
    """call: gives arrays, or objects that hold some. seen: what it may change, as bytes. reset: makes that as
    it was. lost: blocks of memory that NumPy loses when a request fails, on average."""

    call: Callable[[], Any]
    seen: Callable[[], bytes] = bytes
    reset: Callable[[], Any] = bytes
    lost: float = 0


def bits(found: Any) -> bytes:
    """All arrays in a result, and the shape of it."""
    if isinstance(found, np.ndarray):
        return f"{found.dtype}{found.shape}".encode() + found.tobytes()
    if isinstance(found, dict):
        return b"".join(name.encode() + bits(value) for name, value in found.items())
    if isinstance(found, (tuple, list)):
        return b"(" + b",".join(map(bits, found)) + b")"
    if isinstance(found, lnrnn.Network):
        return f"{type(found)} {found.dtype} {found.overrun}".encode() + bits(found.state_dict())
    if hasattr(found, "get_state") or hasattr(found, "reset"):  # a stream
        return bits([found.step, parts_of(found.state)])
    if hasattr(found, "state_dict"):
        return bits(found.state_dict())
    if type(found).__name__ == "Tape":
        # Not its arrays, parts of which nobody writes or reads.
        return bits(found.owner.backward(found, np.ones(found.layout[1], np.float32)))
    return repr(found).encode()


def parts_of(state):
    return list(state) if isinstance(state, tuple) else [state]


def norms(rng) -> Iterator[tuple[str, Operation]]:
    for name, shape in {"small": (3, 7), "wide": (4, 600), "large": (300, 2048)}.items():
        x, gy, w, b = normal(rng, *shape), normal(rng, *shape), normal(rng, shape[1]), normal(rng, shape[1])
        for dtype in ("float32", "float16"):
            y, g = x.astype(dtype), gy.astype(dtype)
            n = shape[1]
            yield f"layer_norm {name} {dtype}", Operation(lambda y=y, n=n, w=w: lnrnn.layer_norm(y, n, w))
            yield (
                f"layer_norm_backward {name} {dtype}",
                Operation(lambda y=y, g=g, n=n, w=w, b=b: lnrnn.layer_norm_backward(g, y, n, w, b)),
            )
            yield (
                f"batch_norm {name} {dtype}",
                Operation(lambda y=y, w=w, b=b: lnrnn.batch_norm(y, b, np.abs(w), w, b)),
            )
            yield (
                f"batch_norm_backward {name} {dtype}",
                Operation(lambda y=y, g=g, w=w: lnrnn.batch_norm_backward(g, y, None, None, w)),
            )
            yield f"batch_norm training {name} {dtype}", trained_norm(y)
        yield f"layer {name}", norm_layer(x)
    few = normal(rng, 3, 7)
    rows = few.tolist()
    yield "layer_norm of a list", Operation(lambda: lnrnn.layer_norm(rows, 7))
    yield "rms_norm of float64, transposed", Operation(lambda: lnrnn.rms_norm(np.asarray(rows).T, 3))
    out = np.zeros((3, 14), np.float32)[:, ::2]
    yield (
        "layer_norm, out with steps",
        Operation(
            lambda: lnrnn.layer_norm(few, 7, out=out), lambda: out.tobytes(), lambda: out.fill(0)
        ),
    )  # fmt: skip


def trained_norm(x) -> Operation:
    mean, var = np.zeros(x.shape[1], np.float32), np.ones(x.shape[1], np.float32)

    def reset():
        mean[...], var[...] = 0, 1

    return Operation(
        lambda: lnrnn.batch_norm(x, mean, var, training=True), lambda: bits([mean, var]), reset
    )  # fmt: skip


def norm_layer(x) -> Operation:
    """A call of a layer that learns statistics, its state dict, a copy and a pickle."""
    layer = lnrnn.BatchNorm(x.shape[1], momentum=None)
    start = layer.state_dict()
    return Operation(lambda: layer(x), lambda: bits(layer), lambda: layer.load_state_dict(start))


def model(variant: str, **options) -> Any:
    return network(D, H, **VARIANTS[variant], trained=T, **options)


def networks(rng) -> Iterator[tuple[str, Operation]]:
    x, ends = normal(rng, T, B, D), np.array([T, 0, 2])
    for variant in VARIANTS:
        two = model(variant, num_layers=2, bidirectional=True)
        h0, state = drawn_state(rng, two, B), two.state_dict()
        yield f"call {variant}", Operation(lambda two=two, h0=h0: two(x, h0, ends), lambda two=two: bits(two))
        # After a change the weights are packed anew.
        yield (
            f"first call {variant}",
            Operation(
                lambda two=two: two(x), lambda two=two: bits(two), lambda m=two, s=state: m.load_state_dict(s)
            ),
        )  # fmt: skip
        one = model(variant, num_layers=2)
        yield f"stream {variant}", stepping(one, x[0])
        yield (
            f"new stream {variant}",
            Operation(lambda one=one: [y for s in [one.stream(B)] for y in (s(x[0]), s(x[1]), s)]),
        )
        yield f"constructor {variant}", Operation(lambda v=variant: constructed(VARIANTS[v]))
        yield f"copies {variant}", Operation(lambda two=two: copies(two), lost=0.2)
        if "batch" in variant:  # whether what is lost is lost by NumPy
            yield (
                f"NumPy's copies {variant}",
                Operation(lambda s=state: pickle.loads(pickle.dumps(s)), lost=0.2),
            )
        for dtype in ("bfloat16", "int8"):
            yield f"to_dtype {dtype} {variant}", Operation(lambda o=one, d=dtype: converted(o, d, x))
    for cell in CELLS:
        for norm in ("layer", "batch", None):
            yield from training(rng, cell, norm, x, ends)


def constructed(options):
    options = dict(options)
    return getattr(lnrnn, options.pop("cell"))(D, H, seed=3, num_layers=2, bidirectional=True, **options)


def copies(rnn):
    return [copy.copy(rnn), copy.deepcopy(rnn), pickle.loads(pickle.dumps(rnn))]


def converted(rnn, dtype, x):
    other = rnn.to_dtype(dtype)
    return [other, other(x)]


def stepping(rnn, x) -> Operation:
    stream = rnn.stream(len(x))
    out = np.zeros((len(x), H), np.float32)

    def call():
        stream(x, out=out)
        return out.copy()

    def reset():
        stream.reset()
        if rnn.overrun is None:
            stream.step = 5000  # an int that Python has to make

    return Operation(call, lambda: bits(stream), reset)


def training(rng, cell, norm, x, ends) -> Iterator[tuple[str, Operation]]:
    name = f"{cell} {norm}"
    rnn = model_of(cell, norm)
    start, other = rnn.state_dict(), model_of(cell, norm, seed=7).state_dict()

    def seen():
        return bits(rnn)

    def reset():
        rnn.load_state_dict(start)

    y, h, tape = rnn.forward_train(x, lengths=ends)
    gy, gh = normal(rng, *y.shape), h
    reset()
    yield f"forward_train {name}", Operation(lambda: rnn.forward_train(x, lengths=ends), seen, reset)
    yield f"backward {name}", Operation(lambda: rnn.backward(tape, gy, gh), seen, reset)
    yield f"load_state_dict {name}", Operation(lambda: rnn.load_state_dict(other), seen, reset)
    weight = np.ones((len(rnn.weight_hh_l0), H))
    yield f"set {name}", Operation(lambda: setattr(rnn, "weight_hh_l0", weight), seen, reset)
    yield f"state_dict {name}", Operation(rnn.state_dict, seen)
    if norm == "batch":
        batches = [normal(rng, T, 2, D), (normal(rng, T, 3, D), np.array([1, 4, 5]))]
        yield f"calibrate {name}", Operation(lambda: rnn.calibrate(batches), seen, reset)
        yield (
            f"overrun {name}",
            Operation(lambda: setattr(rnn, "overrun", "mean"), seen, lambda: setattr(rnn, "overrun", "last")),
        )
    stream = rnn.stream(B)
    state = drawn_state(rng, rnn, B)
    yield (
        f"state of a stream {name}",
        Operation(lambda: setattr(stream, "state", state), lambda: bits(stream), stream.reset),
    )


def model_of(cell, norm, seed=0):
    return network(D, H, cell=cell, norm=norm, num_layers=2, trained=T, seed=seed)


def importers(rng) -> Iterator[tuple[str, Operation]]:
    keys = {
        "torch RNN": dict(nonlinearity="tanh"),
        "haste LSTM": dict(zoneout=0),
        "haste GRU": dict(zoneout=0),
    }
    for name, foreign in FOREIGN.items():
        state = {
            foreign.key(leaf, 0, 0, 1): value for leaf, value in drawn(rng, foreign.shapes(D, H)).items()
        }
        options = keys.get(name, {})
        yield f"from_torch {name}", Operation(lambda s=state, o=options: lnrnn.from_torch(s, **o))
    lstm = [normal(rng, D, 4 * H), normal(rng, H, 4 * H), normal(rng, 4 * H)]
    gru = [normal(rng, D, 3 * H), normal(rng, H, 3 * H), normal(rng, 2, 3 * H)]
    yield "from_keras LSTM", Operation(lambda: lnrnn.from_keras(lstm))
    yield "from_keras GRU", Operation(lambda: lnrnn.from_keras(gru))


def files(folder: Path) -> Iterator[tuple[str, Operation]]:
    """What writes and reads files. Seen is the whole folder: a file that was left behind shows."""
    folder.mkdir(exist_ok=True)
    old, new = model("LSTM split out"), model("RNN batch")
    path, link, array = (folder / name for name in ("m.safetensors", "link", "a.npy"))
    old.save(path)
    first = path.read_bytes()
    link.symlink_to(path)

    def seen():
        return repr([(p.name, p.is_symlink(), content(p)) for p in sorted(folder.iterdir())]).encode()

    def reset():
        for p in (path, array):
            if p.exists():
                p.unlink()
        path.write_bytes(first)

    yield "save over a file", Operation(lambda: new.save(path), seen, reset)
    yield "save over a link", Operation(lambda: new.save(link), seen, reset)
    yield "save a new file", Operation(lambda: new.save(array), seen, reset)
    yield "write_array", Operation(lambda: write_array(array, np.arange(3000.0)), seen, reset)
    yield "load", Operation(lambda: lnrnn.load(path), seen, reset)


def content(path: Path) -> bytes:
    """Of a model what it is: safetensors writes a header's entries in any order."""
    found = path.read_bytes()
    return bits(lnrnn.load(path)) if b"lnrnn" in found else found


def operations(folder: Path, only_files: bool) -> Iterator[tuple[str, Operation]]:
    if only_files:
        yield from files(folder)
        return
    rng = np.random.default_rng(13)
    yield from norms(rng)
    yield from networks(rng)
    yield from importers(rng)
    yield from files(folder)


__all__ = ["Operation", "bits", "operations", "parts"]
