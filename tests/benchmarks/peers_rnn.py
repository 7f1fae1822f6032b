"""Builds recurrent cells with layer norm in other libraries, for whole sequences or step by step.

No library has such a cell, so each runs the loop that its users write. These are ONNX's Scan for ONNX Runtime
and OpenVINO, jax.lax.scan, and a loop in torch, eager and traced by torch.jit. cells.py has the equations,
peers_plain.py has cells without a norm. Every builder takes (cell, p, x, threads): p from `cell.for_peers`,
and NumPy's x (T, B, I). It returns a contender whose answer is y (T, B, H)."""

from __future__ import annotations

from functools import partial

import numpy as np

from case import Unavailable
from peers_norm import onnx_session
from race import Call


def torch_on(threads):
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return torch


_numpy_zeros = partial(np.zeros, dtype=np.float32)


def _zeros(cell, p, x, zeros=_numpy_zeros):
    """Returns the states before the first step, created by the library's function `zeros`."""
    hidden = next(v.shape[1] for name, v in p.items() if name.startswith("weight_hh"))
    return tuple(zeros((x.shape[1], hidden)) for _ in range(cell.STATES))


def torch_loop(cell, p, x, threads, dtype="float32", traced=True) -> Call:
    """Returns torch's loop over the steps, with all arrays in one type: traced and frozen, or eager."""
    torch = torch_on(threads)
    dtype = getattr(torch, dtype)
    p = {name: torch.from_numpy(value).to(dtype) for name, value in p.items()}
    steps, zero = len(x), _zeros(cell, p, x, partial(torch.zeros, dtype=dtype))

    class Loop(torch.nn.Module):
        def forward(self, x):
            state, ys = zero, []
            projected = cell.torch_project(torch, p, x)
            for t in range(steps):
                state = cell.torch_step(torch, p, tuple(part[t] for part in projected), state)
                ys.append(state[0])
            return torch.stack(ys)

    x = torch.from_numpy(x).to(dtype)
    if not traced:
        return Call(partial(Loop().eval(), x))
    return Call(partial(torch.jit.freeze(torch.jit.trace(Loop().eval(), x, check_trace=False)), x))


def torch_steps(cell, p, x, threads) -> Call:
    """Returns a contender that calls one traced step of torch for each time step."""
    torch = torch_on(threads)
    p = {name: torch.from_numpy(value) for name, value in p.items()}

    class Step(torch.nn.Module):
        def forward(self, x, *state):
            return cell.torch_step(torch, p, cell.torch_project(torch, p, x), state)

    xs = list(torch.from_numpy(x))
    zero = _zeros(cell, p, x, torch.zeros)
    step = torch.jit.freeze(torch.jit.trace(Step().eval(), (xs[0], *zero), check_trace=False))

    def call(keep=lambda y: None):
        state = zero
        for x in xs:
            state = step(x, *state)
            keep(state[0])

    return Call(call, answer=partial(_collect, call))


def jax_scan(cell, p, x, threads) -> Call:
    """Returns jax.lax.scan in a jitted function. The parameters are arguments of this function."""
    import jax

    zeros = _zeros(cell, p, x, jax.numpy.zeros)
    p = {name: jax.numpy.asarray(np.ascontiguousarray(value.T)) for name, value in p.items()}

    @jax.jit
    def run(x, p):
        def step(state, projected):
            state = cell.jax_step(jax, p, projected, state)
            return state, state[0]

        return jax.lax.scan(step, zeros, cell.jax_project(jax, p, x))[1]

    x = jax.numpy.asarray(x)
    return Call(lambda: run(x, p).block_until_ready())


def onnx_model(cell, p, x, whole: bool) -> bytes:
    """Returns an ONNX model.

    If `whole`, it is a Scan from x (T, B, I) to y (T, B, H). Otherwise it is one step from x (B, I) and the
    states.
    """
    from onnx import TensorProto, helper, numpy_helper

    zeros = _zeros(cell, p, x)[0]
    hidden, (steps, batch, inputs) = zeros.shape[1], x.shape

    def value(name, *shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def node(operator, ins, outs, attributes):
        return helper.make_node(operator, ins, outs, **attributes)

    projection, widths = cell.onnx_project(hidden)
    projection, step = [node(*n) for n in projection], [node(*n) for n in cell.onnx_step(hidden)]
    constants = {name: np.ascontiguousarray(v.T) for name, v in p.items()}

    def used(nodes):
        taken = {name for node in nodes for name in node.input}
        return [numpy_helper.from_array(v, name) for name, v in constants.items() if name in taken]

    states = [value(f"s{k}", batch, hidden) for k in range(cell.STATES)]
    news = [value(f"n{k}", batch, hidden) for k in range(cell.STATES)]
    if whole:
        parts = [value(f"p{k}", batch, w * hidden) for k, w in enumerate(widths)]
        inner, outs = [*step, node("Identity", ["n0"], ["out"], {})], [*news, value("out", batch, hidden)]
        body = helper.make_graph(inner, "step", [*states, *parts], outs, used(step))
        scanned = ["zeros"] * cell.STATES + [part.name for part in parts]
        results = [*(f"last{k}" for k in range(cell.STATES)), "y"]
        scan = node("Scan", scanned, results, {"num_scan_inputs": len(parts), "body": body})
        ins, outs = [value("x", steps, batch, inputs)], [value("y", steps, batch, hidden)]
        initializers = [*used(projection), numpy_helper.from_array(zeros, "zeros")]
        graph = helper.make_graph([*projection, scan], "sequence", ins, outs, initializers)
    else:
        nodes = [*projection, *step]
        graph = helper.make_graph(nodes, "step", [value("x", batch, inputs), *states], news, used(nodes))
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


def onnxruntime_scan(cell, p, x, threads) -> Call:
    session = onnx_session(onnx_model(cell, p, x, whole=True), threads)
    return Call(partial(session.run, ["y"], {"x": x}))


def onnxruntime_steps(cell, p, x, threads) -> Call:
    """Returns a contender that calls ONNX Runtime's session.run for each time step."""
    session = onnx_session(onnx_model(cell, p, x, whole=False), threads)
    zeros = {f"s{k}": zero for k, zero in enumerate(_zeros(cell, p, x))}
    names, xs = [f"n{k}" for k in range(cell.STATES)], list(x)

    def call(keep=lambda y: None):
        feed = dict(zeros)
        for x in xs:
            feed["x"] = x
            news = session.run(names, feed)
            for k, state in enumerate(news):
                feed[f"s{k}"] = state
            keep(news[0])

    return Call(call, answer=partial(_collect, call))


def _collect(call) -> np.ndarray:
    """Returns the outputs of all steps of `call`, which calls its argument with each output."""
    ys = []
    call(lambda y: ys.append(np.array(y)))
    return np.stack(ys)


def openvino_infer(model: bytes, x, threads, precision="f32", more=None):
    """Returns a function that runs an ONNX model on x. With precision "bf16", OpenVINO chooses where to
    round. more: other options."""
    import openvino

    core = openvino.Core()
    if precision == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise Unavailable("computes in float32: it uses no bfloat16 on this CPU")
    options = {
        "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision, **(more or {}),
    }  # fmt: skip
    compiled = core.compile_model(core.read_model(model), "CPU", options)
    return partial(compiled.create_infer_request().infer, {0: x})


def openvino_scan(cell, p, x, threads, precision="f32") -> Call:
    """Returns a contender that runs the ONNX model of onnxruntime_scan in OpenVINO."""
    infer = openvino_infer(onnx_model(cell, p, x, whole=True), x, threads, precision)
    return Call(infer, answer=lambda: infer()[0].copy())


WHOLE = {
    "onnxruntime": onnxruntime_scan, "openvino": openvino_scan, "jax": jax_scan, "torch.jit": torch_loop,
    "torch": partial(torch_loop, traced=False),
}  # fmt: skip
STREAMED = {"onnxruntime": onnxruntime_steps, "torch.jit": torch_steps}


def builders(peers: dict, *arguments) -> dict:
    return {name: partial(build, *arguments) for name, build in peers.items()}
