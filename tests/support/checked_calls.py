"""Calls of public functions with valid arguments, for tests of lnrnn.arguments.TAKES."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import lnrnn
import lnrnn.sessions
from bad_values import snapshot
from importing import rnnoise_file
from networks import CELLS, NORMS, network

T, B, D, H = 4, 3, 2, 5
X = (np.arange(T * B * D) % 7 - 3).astype(np.float32).reshape(T, B, D)  # exact in all dtypes
STATE = np.full((1, B, H), 2, np.float32)
LENGTHS, RESETS = np.array([4, 2, 3]), np.arange(T * B).reshape(T, B) % 5 == 2


class Call(NamedTuple):
    """A call that returns a result.

    tables: names in TAKES. valid: arguments. known: as in lnrnn.arguments. state: returns contents that a
    refused call may not change. free: for an argument, names that its constraint does not know. edges:
    whether values at the edges of a constraint are valid. names: those of arguments in messages, where they
    differ. dtype_of: the argument whose dtype the result has.
    """

    tables: str
    call: Callable[..., Any]
    valid: dict[str, Any]
    known: dict[str, Any] = {}
    state: Callable[[], Any] = lambda: None
    free: dict[str, str] = {}
    edges: bool = True
    names: dict[str, str] = {}
    dtype_of: str = ""


def setter(owner, result):
    """Returns a function that sets attributes, and returns result(owner)."""

    def set_all(**values):
        for name, value in values.items():
            setattr(owner, name, value)
        return result(owner)

    return set_all


def taken(function, valid):
    """Returns those of the arguments that a function takes."""
    own = inspect.signature(function).parameters
    return {name: value for name, value in valid.items() if name in own}


# --- norms and layers ---------------------------------------------------------------------------------------

ROWS = X.reshape(-1)[:12].reshape(3, 4)
V, M = np.arange(1, 5, dtype=np.float32), np.arange(4, dtype=np.float32) - 1
OF_ROWS = {"normalized_shape": (4,), "x": (3, 4)}


def channels(name, training):
    known = {"C": 4, "x": (3, 4), "training": training}
    valid = dict(x=ROWS, running_mean=M.copy(), running_var=V.copy(), weight=V, training=training, eps=1e-3)
    if name == "batch_norm":
        valid |= dict(bias=M, momentum=0.25, out=np.full((3, 4), 7, np.float32))
    else:
        valid = {"gy": ROWS + 1} | valid
        for unread in ("running_mean", "running_var") if training else ():
            del valid[unread]
    edges = not training or "gy" not in valid  # without training, the gradients need running statistics
    return Call(name, getattr(lnrnn, name), valid, known, free={"x": "C"}, dtype_of="x", edges=edges)


def rows(name, **more):
    valid = dict(x=ROWS, normalized_shape=4, weight=V, bias=M, eps=1e-3) | more
    valid |= {} if name.endswith("backward") else dict(out=np.full((3, 4), 7, np.float32))
    return Call(name, getattr(lnrnn, name), taken(getattr(lnrnn, name), valid), OF_ROWS, dtype_of="x")


def set_layer(kind, **options):
    made = getattr(lnrnn, kind)(4)
    valid = dict(weight=V, eps=1e-3, training=False, **options)
    state = lambda: {name: value.tobytes() for name, value in made.state_dict().items()}  # noqa: E731
    call, tables = setter(made, lambda own: own(ROWS)), f"{kind}.options {kind}.tensors"
    return Call(tables, call, valid, {"shape": (4,)}, state, edges=False)


def elementwise(name):
    valid = dict(x=ROWS, out=np.full((3, 4), 7, np.float32))
    return Call(name, getattr(lnrnn, name), valid, {"x": (3, 4)})


def simple(tables, make, **valid):
    return lambda: Call(tables, make(), valid)


NORM_CALLS = {
    "layer_norm": partial(rows, "layer_norm"),
    "rms_norm": partial(rows, "rms_norm"),
    "layer_norm_backward": partial(rows, "layer_norm_backward", gy=ROWS + 1),
    "rms_norm_backward": partial(rows, "rms_norm_backward", gy=ROWS + 1),
    "batch_norm": partial(channels, "batch_norm", False),
    "batch_norm in training": partial(channels, "batch_norm", True),
    "batch_norm_backward": partial(channels, "batch_norm_backward", False),
    "batch_norm_backward in training": partial(channels, "batch_norm_backward", True),
    **{name: partial(elementwise, name) for name in ("exp", "tanh", "sigmoid")},
    "LayerNorm": simple("LayerNorm LayerNorm.options", lambda: lnrnn.LayerNorm, normalized_shape=4,
                        elementwise_affine=True, bias=True, eps=1e-3),
    "RMSNorm": simple("RMSNorm RMSNorm.options", lambda: lnrnn.RMSNorm, normalized_shape=4,
                      elementwise_affine=True, eps=1e-3),
    "BatchNorm": simple("BatchNorm BatchNorm.options", lambda: lnrnn.BatchNorm, num_features=4, affine=True,
                        track_running_stats=True, eps=1e-3, momentum=0.25),
    "attributes of LayerNorm": partial(set_layer, "LayerNorm", bias=M),
    "attributes of RMSNorm": partial(set_layer, "RMSNorm"),
    "attributes of BatchNorm": partial(set_layer, "BatchNorm", bias=M, momentum=0.25, running_mean=M,
                                       running_var=V, num_batches_tracked=3),
}  # fmt: skip

# --- networks -----------------------------------------------------------------------------------------------


def constructor(cell, library=lnrnn):
    valid = dict(
        input_size=2, hidden_size=4, num_layers=2, nonlinearity="relu", bias=True, batch_first=True,
        dropout=0.0, bidirectional=False, reverse=False, seed=2, proj_size=0, num_heads=1,
        gate_activation="sigmoid", reset_after=True, exp_forget=False, state_dtype="float32", peepholes=True,
    )  # fmt: skip
    tables = "Network Network.rates"
    if library is not lnrnn:
        valid, tables = valid | dict(engine="torch"), tables + " torch.modules"
    make = getattr(library, cell)
    return Call(tables, partial(make, norm=None), taken(make, valid))


def attributes(norm):
    rnn = network(D, H, norm=norm, num_layers=2, trained=T)
    valid = dict(dropout=0.25, zoneout=0.25) | (dict(overrun="last") if norm == "batch" else {})
    state = lambda: (snapshot(rnn), rnn.dropout, rnn.zoneout)  # noqa: E731
    return Call("Network.rates BatchNormSpec", setter(rnn, lambda own: own(X)), valid, state=state)


def sequences(method, batch_first=False, one=False, steps=T, count=B, **options):
    """A call of whole sequences. method: the name of a method."""
    rnn = network(D, H, batch_first=batch_first, trained=T, **options)
    order = (lambda a: a[:, 0]) if one else (lambda a: a.swapaxes(0, 1)) if batch_first else (lambda a: a)
    x, resets = order(X[:steps, :count]), order(RESETS[:steps, :count])
    start = STATE[:, 0] if one else STATE[:, :count]
    lengths = np.minimum(LENGTHS[: 1 if one else count], steps)
    known = dict(outer="T", inner="B", D=D, T=steps, B=len(lengths), alone=() if one else None)
    known |= dict(state=start.shape, steps=resets.shape)
    h0 = (start, start / 2) if options.get("cell") == "LSTM" else start
    valid = dict(x=x, h0=h0, lengths=lengths, resets=resets)
    call = getattr(rnn, method)
    tables = "Network.__call__"
    if method == "__call__":
        valid["threads"] = 1
    elif method == "calibrate":
        del valid["h0"]
        call = lambda x, lengths, resets: rnn.calibrate([(x, lengths, resets)])  # noqa: E731
    else:
        valid["checkpoint"], tables = None, "Network.__call__ Network.tape_bytes"
    return Call(tables, call, valid, known, partial(snapshot, rnn), free={"x": "T"})


def ragged():
    rnn = network(D, H)
    known = {"D": D, "N": 12, "state": (1, B, H)}
    valid = dict(values=X.reshape(-1, D), offsets=np.array([0, 4, 4, 11]), h0=STATE, threads=1)
    return Call("Network.ragged", rnn.ragged, valid, known, free={"values": "N"})


def backward():
    rnn = network(D, H)
    y, h, tape = rnn.forward_train(X)
    valid, known = dict(gy=np.ones_like(y), gh=np.ones_like(h), grad_x=True), {"y": y.shape, "state": h.shape}
    return Call("Network.backward", partial(rnn.backward, tape), valid, known, partial(snapshot, rnn))


def moved(stream):
    """Returns the states and steps of a stream, as bytes."""
    state = stream.state if isinstance(stream.state, tuple) else (stream.state,)
    return [array.tobytes() for array in (*state, stream.steps_done)]


def stream_call(size, lanes, chunk=False, batch_first=False):
    """A call of a stream: one step, or a chunk of several."""
    rnn = network(D, H, norm="batch", trained=2 * T, batch_first=batch_first)
    stream = rnn.stream(size)
    stream(np.zeros((size, D), np.float32))
    count, rows = len(lanes or range(size)), np.array(lanes or range(size))
    x = X[:, :count] if chunk else X[0, :count]
    x = x.swapaxes(0, 1) if chunk and batch_first else x
    outer, inner = (count, "T") if batch_first else ("T", count)
    known = dict(R=count, D=D, one=(D,) if count == 1 else None, outer=outer, inner=inner, T=T, B=count)
    known |= {"alone": None, "y": (*x.shape[:-1], H), "steps": x.shape[:-1], "last lane": size - 1}
    valid = dict(x=x, lanes=rows, out=np.full((*x.shape[:-1], H), 7, np.float32), threads=1)
    valid |= dict(lengths=LENGTHS[:count]) if chunk else dict(resets=np.arange(count) % 2 == 0)

    def call(**given):
        before = stream.get_state()
        y = np.array(stream(**given))
        stream.set_state(None, before)
        return y

    return Call("Stream.__call__", call, valid, known, partial(moved, stream), {"lanes": "R"}, not lanes)


def lanes(method):
    stream = network(D, H).stream(4)
    stream(np.ones((4, D)))
    call, known = getattr(stream, method), {"last lane": 3}
    return Call("Stream.state", call, dict(lanes=np.array([3, 1])), known, partial(moved, stream))


def state_setter(cell):
    stream = network(D, H, cell=cell).stream(B)
    state = STATE if cell == "GRU" else (STATE, STATE / 2)
    set_state = setter(stream, lambda own: own(X[0]))
    return Call("Stream.state", set_state, dict(state=state), {"state": (1, B, H)}, partial(moved, stream))


def one_of_several():
    right, stream = network(D, H).stream(B), network(D, H).stream(B)

    def call(x):
        right.reset(), stream.reset()
        return lnrnn.step_all([(right, X[0]), (stream, x)])

    known = {"R": B, "D": D, "one": None, "outer": None}
    return Call("Stream.__call__", call, dict(x=X[1]), known, names={"x": "steps[1][1]"})


def number_of_threads():
    before = lnrnn.get_num_threads()

    def call(n):
        lnrnn.set_num_threads(n)
        lnrnn.set_num_threads(before)

    return Call("set_num_threads", call, dict(n=2), state=lnrnn.get_num_threads)


def number_inside(n):
    with lnrnn.num_threads(n):
        return lnrnn.get_num_threads()


NETWORK_CALLS = {
    **{cell: partial(constructor, cell) for cell in (*CELLS, "SLSTM")},
    **{f"attributes with norm {norm}": partial(attributes, norm) for norm in NORMS},
    **{f"{method} with norm {norm}": partial(sequences, method, norm=norm)
       for method in ("__call__", "forward_train") for norm in NORMS},
    "__call__ of an LSTM": partial(sequences, "__call__", cell="LSTM"),
    "__call__ of one step": partial(sequences, "__call__", steps=1),
    "forward_train of a batch of one": partial(sequences, "forward_train", count=1, batch_first=True),
    "__call__ with batch_first": partial(sequences, "__call__", batch_first=True),
    "__call__ of one sequence": partial(sequences, "__call__", one=True),
    "__call__ of one sequence with batch_first": partial(sequences, "__call__", batch_first=True, one=True),
    "calibrate": partial(sequences, "calibrate", norm="batch"),
    "ragged": ragged, "backward": backward,
    "tape_bytes": simple("Network.tape_bytes", lambda: network(D, H).tape_bytes, T=2, B=3, checkpoint=2),
    "to_dtype": simple("Network.to_dtype", lambda: network(D, H).to_dtype, dtype="int8"),
    "to_dtype with check": lambda: Call(
        "Network.to_dtype check", partial(network(D, H).to_dtype, check=X), dict(dtype="int8", tolerance=9),
        edges=False,
    ),
    "stream": simple("Network.stream", lambda: network(D, H).stream, lanes=2),
    "step": partial(stream_call, 3, None), "step of lanes": partial(stream_call, 4, [2, 0]),
    "step of one lane": partial(stream_call, 1, None), "chunk": partial(stream_call, 3, None, chunk=True),
    "chunk of lanes with batch_first": partial(stream_call, 4, [2, 0], chunk=True, batch_first=True),
    "reset of lanes": partial(lanes, "reset"), "get_state of lanes": partial(lanes, "get_state"),
    "state of a GRU": partial(state_setter, "GRU"), "state of an LSTM": partial(state_setter, "LSTM"),
    "step_all": one_of_several, "set_num_threads": number_of_threads,
    "num_threads": simple("num_threads", lambda: number_inside, n=2),
    "LayerNormSpec": simple("LayerNormSpec", lambda: lnrnn.LayerNormSpec, placement="joint", cell="carry",
                            eps=1e-3, span=None, inner_bias=True),
    "RMSNormSpec": simple("RMSNormSpec", lambda: lnrnn.RMSNormSpec, placement="joint", cell="carry",
                          eps=1e-3, span=None, inner_bias=True, bias=True),
    "BatchNormSpec": simple("BatchNormSpec", lambda: lnrnn.BatchNormSpec, max_steps=3, overrun="mean",
                            momentum=0.25, eps=1e-3),
    "DropoutSpec": simple("DropoutSpec", lambda: lnrnn.DropoutSpec, between=0.25, inputs=0.5, states=0.125),
}  # fmt: skip

# --- files and other libraries ------------------------------------------------------------------------------


def pool(tmp_path):
    valid = dict(rnn=network(D, H), max_sessions=3, bad="reset", park_after=2.0, drop_after=3.0, prefix="a",
                 checkpoint_every=2, on_call=print, clock=float)  # fmt: skip
    return Call("SessionPool", partial(lnrnn.SessionPool, store={}), valid, edges=False)


def pool_method(method, tmp_path):
    rnn = network(D, H)

    def call(**given):
        pool = lnrnn.SessionPool(rnn)
        for name in "abc":
            pool.join(name)
        return pool.maintain(**given) if method == "maintain" else pool.step(list("abc"), X[0], **given)

    if method == "maintain":
        return Call("SessionPool.maintain", call, dict(limit=2))
    return Call("Stream.__call__", call, dict(out=np.full((B, H), 7, np.float32)), {"y": (B, H)})


def scorer(tmp_path):
    pytest.importorskip("safetensors")
    network(D, H).save(tmp_path / "m.safetensors")
    valid = dict(column="x", into="mean", output="y", bad="null", id_column="i", isa="any", on_call=print,
                 threads=2)  # fmt: skip
    return Call("Scorer", partial(lnrnn.Scorer, tmp_path / "m.safetensors"), valid, edges=False)


def onnx_model(method, tmp_path):
    pytest.importorskip("onnx_ir")
    pytest.importorskip("onnxruntime", minversion="1.25" if method == "session" else None)
    import state_models

    path = state_models.silero(tmp_path / "m.onnx")
    if method == "session":
        valid = dict(path=path, dtype="int8", threads=1)
        return Call("onnxruntime.session", lnrnn.onnxruntime.session, valid, edges=False)
    if method == "from_onnx":
        valid = dict(name=None, check=False, reset_after=None)
        return Call("from_onnx", partial(lnrnn.from_onnx, path), valid)
    if method == "convert":
        convert = partial(lnrnn.onnx.convert, out=tmp_path / "out.onnx")
        return Call("onnx.convert", convert, dict(path=path, functions=True), edges=False)
    make = partial(lnrnn.onnx.Model, constants={"sr": 16000})
    if method == "Model":
        return Call("onnx.Model", make, dict(path=path, threads=1, plugin=False), edges=False)
    return Call("onnx.Model.stream", make(path).stream, dict(lanes=2))


def to_onnx(tmp_path):
    pytest.importorskip("onnx")
    path = tmp_path / "m.onnx"
    path.write_bytes(b"old")
    valid = dict(rnn=network(D, H, norm=None), opset=17, step=False, states=True, lengths=False, resets=False)
    return Call("to_onnx", partial(lnrnn.to_onnx, path=path), valid, state=path.read_bytes)


def from_torch(tmp_path):
    rnn = network(D, H, cell="GRU", norm=None)
    valid = dict(kind="torch", eps=None, zoneout=None, batch_first=True)
    return Call("from_torch", partial(lnrnn.from_torch, rnn.state_dict()), valid, edges=False)


def from_keras(tmp_path):
    arrays = [np.ones((D, 4 * H)), np.ones((H, 4 * H)), np.ones(4 * H)]
    valid = dict(kind="LSTM", bidirectional=False, reset_after=None, eps=None, batch_first=True)
    valid |= dict(recurrent_activation="sigmoid", layer=None)
    return Call("from_keras", partial(lnrnn.from_keras, arrays), valid, edges=False)


def from_rnnoise(tmp_path):
    bias, weights = np.ones(3 * H, np.float32), np.ones(3 * H * H, np.float32)
    arrays = {f"a_{side}_{name}": array for side in ("input", "recurrent")
              for name, array in (("bias", bias), ("weights_float", weights))}  # fmt: skip
    make = partial(lnrnn.from_rnnoise, rnnoise_file(arrays))
    return Call("from_rnnoise", make, dict(name="a", input_size=H), edges=False)


def accelerated(tmp_path):
    torch = pytest.importorskip("torch")
    import lnrnn.torch

    def call(**given):
        lnrnn.torch.accelerate(torch.nn.GRU(D, H), **given)

    return Call("torch.accelerate", call, dict(dtype="int8", frozen=True))


def torch_module(cell, tmp_path):
    pytest.importorskip("torch")
    return constructor(cell, lnrnn.torch)


OTHER_CALLS = {
    "SessionPool": pool, "SessionPool.maintain": partial(pool_method, "maintain"),
    "SessionPool.step": partial(pool_method, "step"),
    "data.pad_sequence": lambda tmp_path: Call(
        "data.pad_sequence", partial(lnrnn.data.pad_sequence, [X[:, 0]]), dict(max_steps=2)
    ),
    "sessions.RedisStore": lambda tmp_path: Call(
        "sessions.RedisStore",
        partial(lnrnn.sessions.RedisStore, SimpleNamespace(register_script=len)), dict(seconds=9),
    ),
    "sparsify": lambda tmp_path: Call(
        "sparsify", partial(lnrnn.sparsify, network(4, 8), 0.5), dict(keep_diagonal=True)
    ),
    "GradualPruner": lambda tmp_path: Call(
        "GradualPruner", partial(lnrnn.GradualPruner, network(4, 8), 0.5),
        dict(begin_step=1, end_step=9, every=2, keep_diagonal=True), edges=False,
    ),
    "Scorer": scorer, "to_onnx": to_onnx, "from_torch": from_torch, "from_keras": from_keras,
    "from_rnnoise": from_rnnoise,
    "accelerate": accelerated, **{f"torch.{cell}": partial(torch_module, cell) for cell in (*CELLS, "SLSTM")},
    **{f: partial(onnx_model, f) for f in ("session", "from_onnx", "convert", "Model", "Model.stream")},
}  # fmt: skip
