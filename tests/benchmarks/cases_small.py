"""Races many small networks without a norm, which step together, as in a denoiser or a robot's policy.

A call is `steps` steps of NETWORKS networks with parameters and inputs of their own, from states of zeros.
RTNeural has no Python package, so it does not race. It publishes 0.42 us for a step of an LSTM 16 -> 16 on an
Apple M2 (issue 108).
"""

from __future__ import annotations

import numpy as np

import lnrnn
from case import Case, on_one_thread_too
from cells import CELLS
from peers_norm import onnx_session
from peers_plain import onnx_model, torch_layer
from peers_rnn import builders, torch_on
from race import Call

NETWORKS = 14  # the GRUs of a frame of GTCRN
TOLERANCE = 2e-5  # as in cases_rnn.py


def _torch_layers(cell, ps, xs, threads) -> Call:
    torch = torch_on(threads)
    layers = [torch_layer(torch, cell, p) for p in ps]
    frames = [[torch.from_numpy(x[t : t + 1]) for x in xs] for t in range(len(xs[0]))]

    def call():
        states, y = [None] * len(layers), []
        for frame in frames:
            results = [layer(x, s) for layer, x, s in zip(layers, frame, states, strict=True)]
            states = [state for _, state in results]
            y.append([out for out, _ in results])
        return y

    return Call(call, answer=lambda: np.array([[out[0].numpy() for out in frame] for frame in call()]))


def _onnx_graph(cell, ps, xs) -> bytes:
    """Returns one graph with all networks.

    Its inputs are x0, h0, c0, x1 ..., its outputs hn0, cn0, hn1 ...
    """
    import onnx
    from onnx import compose

    whole = None
    for k, (p, x) in enumerate(zip(ps, xs, strict=True)):
        one = onnx.load_from_string(onnx_model(cell, p, x[:1], states=True))
        one = compose.add_prefix(one, f"{k}_")
        whole = one if whole is None else compose.merge_models(whole, one, io_map=[])
    return whole.SerializeToString()


def _onnxruntime(cell, ps, xs, threads) -> Call:
    session = onnx_session(_onnx_graph(cell, ps, xs), threads)
    names = [value.name for value in session.get_outputs()]
    following = {n: n.replace("_hn", "_h").replace("_cn", "_c") for n in names}
    zeros = {following[n]: np.zeros((1, *xs[0].shape[1:]), np.float32) for n in names}
    frames = [{f"{k}_x": x[t : t + 1] for k, x in enumerate(xs)} for t in range(len(xs[0]))]

    def call():
        feed, y = dict(zeros), []
        for frame in frames:
            results = dict(zip(names, session.run(names, feed | frame), strict=True))
            feed = {following[n]: value for n, value in results.items()}
            y.append([results[f"{k}_hn"][0] for k in range(len(xs))])
        return y

    return Call(call, answer=lambda: np.array(call()))


def small(threads, cell, batch, hidden, steps):
    """Races step_all against calls of each stream, and against libraries without streams."""
    cell = CELLS[cell]
    ps = [cell.plain_parameters(hidden, seed) for seed in range(NETWORKS)]
    xs = list(np.random.default_rng(7).standard_normal((NETWORKS, steps, batch, hidden), np.float32))
    streams = []
    for p in ps:
        rnn = getattr(lnrnn, cell.NAME)(hidden, hidden, norm=None)
        rnn.load_state_dict({f"{name}_l0": value for name, value in p.items()})
        streams.append(rnn.stream(batch))
    frames = [list(zip(streams, frame, strict=True)) for frame in zip(*xs, strict=True)]

    def restart():
        for stream in streams:
            stream.reset()

    def together():
        restart()
        return [lnrnn.step_all(frame) for frame in frames]

    def apart():
        restart()
        return [[stream(x) for stream, x in frame] for frame in frames]

    ours = on_one_thread_too(Call(together, answer=lambda: np.array(together())), threads)
    ours = {"lnrnn": ours.pop("lnrnn"), "lnrnn each": Call(apart, answer=lambda: np.array(apart())), **ours}
    peers = builders({"torch": _torch_layers, "onnxruntime": _onnxruntime}, cell, ps, xs, threads)
    want = np.stack([cell.answer(p, x, norm=None) for p, x in zip(ps, xs, strict=True)], 1)
    return Case(ours, peers, (want,), (TOLERANCE,), None, steps)
