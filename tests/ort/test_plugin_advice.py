"""The plug-in advises once to convert a file that has loops or cells in plain operators."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("onnx_ir")

import onnx  # noqa: E402
from onnx import helper  # noqa: E402

import lnrnn  # noqa: E402
import onnx_loops  # noqa: E402
from graph_cases import FOLDER, read  # noqa: E402
from onnx_cells import BLENDS, Writer, draw, step, step_model  # noqa: E402
from onnx_files import FLOAT, model, recurrent  # noqa: E402
from onnx_runtimes import written  # noqa: E402
from plugin_runs import called, data_of, onnxruntime, plugged  # noqa: E402

D, LOOPS = 4, FOLDER / "loops.txt"


def advice(proto, capfd, **more):
    """Returns the numbers in the lines of advice, in a session without conversion. more: options."""
    plugged(recurrent(np.random.default_rng(0), "RNN"))  # registers the plug-in
    chosen = onnxruntime.SessionOptions()
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "LnrnnExecutionProvider"]
    chosen.add_provider_for_devices(devices, more)
    capfd.readouterr()
    onnxruntime.InferenceSession(data_of(proto), chosen)
    line = r"W:onnxruntime.* this file has (\d+) loops or cells that a conversion speeds up: lnrnn onnx FILE"
    return re.findall(line, capfd.readouterr().err)


def of_step(rng, kind, **how):
    w = Writer(rng)
    return step_model(w, step(w, kind, draw(rng, kind, D, D), "x", ("h0", "c0"), **how), D, D)


def cell_in_if(rng):
    proto = of_step(rng, "LSTM")
    ends = [value.name for value in proto.graph.output]
    infos = [helper.make_tensor_value_info(name, FLOAT, None) for name in ends]
    arrays = {a.name: a for a in proto.graph.initializer}
    branches = [helper.make_graph(proto.graph.node, name, [], infos, list(arrays.values())) for name in "ab"]
    node = helper.make_node("If", ["flag"], ["h", "c"], then_branch=branches[0], else_branch=branches[1])
    given = {"x": (FLOAT, ("B", D)), "h0": (FLOAT, ("B", D)), "c0": (FLOAT, ("B", D)), "flag": (9, ())}
    return model([node], given, ["h", "c"])


ADVISED = {
    **{f"step of {kind}": (lambda rng, kind=kind: of_step(rng, kind), 1) for kind in ("LSTM", "GRU")},
    **{f"GRU, {how}": (lambda rng, how=how: of_step(rng, "GRU", blended=how), 1) for how in BLENDS},
    "products of MatMul, cut by Slice": (lambda rng: of_step(rng, "LSTM", product="MatMul", how="Slice"), 1),
    "four steps": (lambda rng: onnx_loops.unrolled(rng, "LSTM", range(4)), 4),
    "If": (cell_in_if, 2),
    "Scan of an RNN": (lambda rng: onnx_loops.scan(rng, "RNN"), 1),
    "Scan of two LSTMs": (lambda rng: onnx_loops.scan(rng, "LSTM", layers=2), 1),
    "Loop": (lambda rng: onnx_loops.loop(rng, "GRU"), 1),
    "Loop of Keras": (lambda rng: next(c.model() for c in read(LOOPS) if c.name == "Loop of Keras"), 1),
}


@pytest.mark.parametrize("make, count", ADVISED.values(), ids=ADVISED)
def test_files_that_a_conversion_speeds_up(rng, capfd, make, count):
    proto = make(rng)
    assert advice(proto, capfd) == [str(count)] and advice(proto, capfd, advice="0") == []


def test_a_file_of_to_onnx_until_it_is_converted(tmp_path, capfd):
    rnn = lnrnn.LSTM(3, 4, num_layers=2, seed=0)
    assert advice(written(rnn, tmp_path / "m.onnx"), capfd) == ["2"]
    proto = called(rnn)
    assert advice(proto, capfd) == []
    proto.opset_import[-1].version = 2  # the call is left, and its body has Scans
    assert advice(proto, capfd) == []


def test_no_advice_where_a_conversion_changes_nothing(tmp_path, capfd):
    lnrnn.to_onnx(lnrnn.LSTM(3, 4, seed=0), tmp_path / "m.onnx", resets=True)
    assert advice(onnx.load(tmp_path / "m.onnx"), capfd, advice="1") == ["1"]
    lnrnn.onnxruntime.session(tmp_path / "m.onnx")
    assert "conversion" not in capfd.readouterr().err


def of_nodes(build, conv=False):
    """Returns a model of the nodes that `build` adds to a Writer, from x to its result."""

    def make(rng):
        w = Writer()

        def product(v):
            a = rng.standard_normal((D, D, 1) if conv else (D, D))
            return w.node("Conv" if conv else "MatMul", v, w.array(a))

        y, shape = build(w, product, "x"), ("B", D, 8) if conv else ("B", 8, D)
        return model(w.nodes, {"x": (FLOAT, shape)}, [y], w.arrays)

    return make


def layers(w, product, x):
    """A feed-forward network with a residual connection, as actors of reinforcement learning have."""
    for f in ("Tanh", "Sigmoid", "Tanh"):
        x = w.node("Add", x, w.node(f, w.node("Add", product(x), w.array(np.ones(D)))))
    return w.node("Sigmoid", product(x))


def attention(w, product, x):
    """Attention, with a feed-forward part of SiLU and GELU by tanh."""
    scores = w.node("MatMul", product(x), w.node("Transpose", product(x), perm=[0, 2, 1]))
    x = w.node("Add", x, product(w.node("MatMul", w.node("Softmax", scores), product(x))))
    a = product(x)
    gated = w.node("Mul", w.node("Mul", a, w.node("Sigmoid", a)), product(x))
    x = w.node("Add", x, product(gated))
    b = product(x)
    half = w.node("Mul", b, w.array(0.5))
    gelu = w.node("Mul", half, w.node("Add", w.node("Tanh", b), w.array(1.0)))
    return w.node("Add", x, product(gelu))


def pooling(w, product, x):
    """Gated attention as in multiple-instance learning."""
    gated = w.node("Mul", w.node("Tanh", product(x)), w.node("Sigmoid", product(x)))
    return w.node("Add", product(gated), x)


def convolutions(w, product, x):
    """Layers of SiLU with residual connections, and a gated layer as in WaveNet."""
    for _ in range(2):
        a, b = product(x), product(x)
        a, b = (w.node("Mul", v, w.node("Sigmoid", v)) for v in (a, b))
        x = w.node("Add", a, b)
    gated = w.node("Mul", w.node("Tanh", product(x)), w.node("Sigmoid", product(x)))
    return w.node("Add", product(gated), x)


def bare_scan(rng):
    """The step is a product without an activation."""

    def add(w, rng, kind, D, H, x, old):
        return [w.node("Add", w.node("MatMul", x, w.array(rng.standard_normal((D, H)))), *old)]

    return onnx_loops.scan(rng, "RNN", add=add)


def node_and_layer(rng):
    """A Loop of a GRU, with a layer after it."""
    proto = onnx_loops.loop(rng, "GRU", rnn_node=True, join="scan output")
    (body,) = (a.g for a in proto.graph.node[-1].attribute)
    square = helper.make_tensor("square", FLOAT, (4, 4), np.eye(4).ravel())
    body.initializer.append(square)
    body.node.append(helper.make_node("MatMul", [body.output[1].name, "square"], ["product"]))
    body.node.append(helper.make_node("Sigmoid", ["product"], ["gated"]))
    body.output[1].name = "gated"
    return proto


SILENT = {
    "node": lambda rng: recurrent(rng, "LSTM"),
    "Loop of a node": lambda rng: onnx_loops.loop(rng, "LSTM", rnn_node=True),
    **{build.__name__: of_nodes(build) for build in (layers, attention, pooling)},
    **{build.__name__: build for build in (bare_scan, node_and_layer)},
    "convolutions": of_nodes(convolutions, conv=True),
}


@pytest.mark.parametrize("make", SILENT.values(), ids=SILENT)
def test_files_without_such_loops_and_cells(rng, capfd, make):
    assert advice(make(rng), capfd) == []
