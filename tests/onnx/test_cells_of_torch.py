"""Cells and loops that torch's exporters write become networks of lnrnn."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx_ir")
pytest.importorskip("onnxscript")
torch = pytest.importorskip("torch")

import lnrnn  # noqa: E402
from onnx_cells import exported, only_part, taken  # noqa: E402
from onnx_runs import run  # noqa: E402
from torch_cells import Sequence  # noqa: E402

nn = torch.nn
T, B, D, H = 5, 2, 3, 4
KINDS = "LSTMCell", "GRUCell", "RNNCell"
BOTH = pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])


def disturb(module):
    """Gives gains and biases random numbers."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    return module


def arrays(*shapes):
    return tuple(torch.randn(shape) for shape in shapes)


# --- one step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, bias, width, dynamo", [
    *((kind, bias, width, False) for kind in KINDS for bias in (True, False) for width in (D, H)),
    *((kind, bias, width, True) for kind in KINDS for bias, width in ((True, H), (False, D))),
])  # fmt: skip
def test_a_cell_is_a_step_with_its_weights(kind, bias, width, dynamo):
    module = getattr(nn, kind)(width, H, bias=bias)
    x, h, c = arrays((B, width), (B, H), (B, H))
    proto = exported(module, (x, (h, c)) if kind == "LSTMCell" else (x, h), dynamo)
    part = taken(proto)
    assert part.kind == kind.replace("Cell", " step")
    assert part.x.name == proto.graph.input[0].name
    assert part.network.norm is None and part.network.bias is bias
    for name, value in module.state_dict().items():
        assert np.array_equal(getattr(part.network, f"{name}_l0"), value.numpy())


@BOTH
def test_an_rnn_cell_with_relu(dynamo):
    x, h = arrays((B, D), (B, H))
    part = taken(exported(nn.RNNCell(D, H, nonlinearity="relu"), (x, h), dynamo))
    assert part.network.nonlinearity == "relu"


# --- norms --------------------------------------------------------------------------------------------------


class LayerNormLSTMCell(nn.Module):
    """The cell of pytorch's benchmarks/fastrnns."""

    def __init__(self, decompose=False):
        super().__init__()
        self.weight_ih = nn.Parameter(torch.randn(4 * H, D))
        self.weight_hh = nn.Parameter(torch.randn(4 * H, H))
        self.layernorm_i, self.layernorm_h = nn.LayerNorm(4 * H), nn.LayerNorm(4 * H)
        self.layernorm_c = nn.LayerNorm(H)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor):
        a = self.layernorm_i(torch.mm(x, self.weight_ih.t()))
        gates = a + self.layernorm_h(torch.mm(h, self.weight_hh.t()))
        i, f, g, o = gates.chunk(4, 1)
        c = self.layernorm_c(torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g))
        return torch.sigmoid(o) * torch.tanh(c), c


class LayerNormGRUCell(nn.Module):
    __constants__ = ("joint",)

    def __init__(self, joint):
        super().__init__()
        self.x_, self.h_ = nn.Linear(D, 3 * H), nn.Linear(H, 3 * H)
        self.norm_x, self.norm_h, self.joint = nn.LayerNorm(3 * H), nn.LayerNorm(3 * H), joint

    def forward(self, x, h):
        if self.joint:
            r, z, n = self.norm_x(self.x_(x) + self.h_(h)).chunk(3, -1)
            n = torch.tanh(torch.sigmoid(r) * n)
        else:
            xr, z, xn = self.norm_x(self.x_(x)).chunk(3, -1)
            hr, hz, hn = self.norm_h(self.h_(h)).chunk(3, -1)
            n = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
            z = z + hz
        z = torch.sigmoid(z)
        return (1 - z) * n + z * h


class LayerNormRNNCell(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.x_, self.h_ = nn.Linear(D, H, bias=False), nn.Linear(H, H, bias=False)
        self.norm, self.f = nn.LayerNorm(H), f

    def forward(self, x, h):
        return self.f(self.norm(self.x_(x) + self.h_(h)))


@pytest.mark.parametrize("how", [(False, 16), (False, 17), (True, 18)], ids=["16", "17", "dynamo"])
def test_a_layer_norm_lstm_cell(how):
    dynamo, opset = how
    proto = exported(disturb(LayerNormLSTMCell()), arrays((B, D), (B, H), (B, H)), dynamo, opset)
    ops = {node.op_type for node in proto.graph.node}
    assert ("LayerNormalization" in ops) == (opset > 16)
    part = (only_part if opset < 17 else taken)(proto)
    assert part.network.norm == lnrnn.LayerNormSpec("split", cell="carry")


@BOTH
@pytest.mark.parametrize("joint", [False, True])
def test_a_layer_norm_gru_cell(joint, dynamo):
    part = taken(exported(disturb(LayerNormGRUCell(joint)), arrays((B, D), (B, H)), dynamo))
    options = dict(placement="joint") if joint else dict(placement="split", span="all")
    assert part.network.norm == lnrnn.LayerNormSpec(**options, cell=None, inner_bias=True)


@BOTH
@pytest.mark.parametrize("f", ["tanh", "relu"])
def test_a_layer_norm_rnn_cell(f, dynamo):
    part = taken(exported(disturb(LayerNormRNNCell(getattr(torch, f))), arrays((B, D), (B, H)), dynamo))
    assert part.network.nonlinearity == f
    assert part.network.norm == lnrnn.LayerNormSpec("joint", cell=None)


# --- loops --------------------------------------------------------------------------------------------------


class Loop(nn.Module):
    """Calls a cell for each step of x. How it reads x and joins the outputs are arguments."""

    def __init__(self, cell, axis=0, unbind=False, backwards=False, flip=False, start=True):
        super().__init__()
        self.cell, self.axis, self.unbind = cell, axis, unbind
        self.backwards, self.flip, self.start = backwards, flip, start

    def forward(self, x, h, c):
        steps = list(x.unbind(self.axis)) if self.unbind else [x.select(self.axis, t) for t in range(T)]
        ys = []
        state = (h, c) if "LSTM" in type(self.cell).__name__ else h
        if not self.start:
            state = None
        for x_t in reversed(steps) if self.backwards else steps:
            if isinstance(self.cell, LayerNormLSTMCell):
                state = self.cell(x_t, *state)
            else:
                state = self.cell(x_t, state)
            ys.append(state[0] if isinstance(state, tuple) else state)
        y = torch.stack(ys, self.axis)
        y = y.flip(self.axis) if self.flip else y
        return (y, *state) if isinstance(state, tuple) else (y, state)


def loop_model(cell, dynamo, opset=17, **options):
    x = torch.randn((B, T, D) if options.get("axis") else (T, B, D))
    return exported(Loop(cell, **options), (x, *arrays((B, H), (B, H))), dynamo, opset)


WAYS = (
    {}, dict(axis=1), dict(unbind=True), dict(axis=1, unbind=True), dict(backwards=True), dict(start=False),
)  # fmt: skip


# The other exporter takes longer, so each way and each kind occur with it, but not all pairs.
@pytest.mark.parametrize("kind, options, dynamo", [
    *((kind, way, False) for kind in KINDS for way in WAYS),
    *((KINDS[i % 3], way, True) for i, way in enumerate(WAYS)),
    *((KINDS[(i + 1) % 3], way, True) for i, way in enumerate(WAYS)),
], ids=str)  # fmt: skip
def test_a_python_loop_is_one_network(kind, options, dynamo):
    proto = loop_model(getattr(nn, kind)(D, H), dynamo, **options)
    part = taken(proto)
    assert part.kind == f"{T} steps of {kind.removesuffix('Cell')}"
    assert part.baked["T"] == T and f"a length of {T} steps is baked in" in part.warnings[0]
    assert part.baked.get("B", B) == B
    assert ("begins at 0" in " ".join(part.warnings)) == ("start" in options)
    assert "reverse" not in options or part.flipped
    first = "BT" if options.get("axis") else "TB"
    assert (part.axes["x"], part.axes["y"]) == (f"{first}I", f"{first}H")
    assert part.network.batch_first == bool(options.get("axis"))


@BOTH
def test_a_loop_from_the_end(dynamo):
    """y has the steps in the reverse order of x; a flip after it is no part of the network."""
    for flip in (False, True):
        part = taken(loop_model(nn.GRUCell(D, H), dynamo, backwards=True, flip=flip))
        assert part.network.reverse and part.flipped


@pytest.mark.parametrize("how", [(False, 16), (False, 17), (True, 18)], ids=["16", "17", "dynamo"])
def test_a_python_loop_of_a_layer_norm_lstm(how):
    dynamo, opset = how
    part = (only_part if opset < 17 else taken)(loop_model(disturb(LayerNormLSTMCell()), dynamo, opset))
    assert part.kind == f"{T} steps of LSTM"
    assert part.network.norm == lnrnn.LayerNormSpec("split", cell="carry")


LAYER_NORMS = {
    "GRU joint": lambda: LayerNormGRUCell(True), "GRU split": lambda: LayerNormGRUCell(False),
    "RNN joint": lambda: LayerNormRNNCell(torch.tanh),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("name", LAYER_NORMS)
def test_a_python_loop_of_a_layer_norm_gru_or_rnn(name, dynamo):
    part = taken(loop_model(disturb(LAYER_NORMS[name]()), dynamo))
    kind, placement = name.split()
    assert part.kind == f"{T} steps of {kind}" and part.network.norm.placement == placement


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.lower, self.upper = nn.LSTMCell(D, H), nn.LSTMCell(H, H)

    def forward(self, x, h, c, k, d):
        ys = []
        for t in range(T):
            h, c = self.lower(x[t], (h, c))
            k, d = self.upper(h, (k, d))
            ys.append(k)
        return torch.stack(ys), h, c, k, d


@BOTH
def test_two_cells_in_a_python_loop_are_two_layers(dynamo):
    part = taken(exported(TwoLayers(), arrays((T, B, D), *[(B, H)] * 4), dynamo), nodes=2)
    assert part.network.num_layers == 2 and len(part.h0) == 2


class ScriptedLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(D, H)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor):
        ys: list[torch.Tensor] = []
        for t in range(x.size(0)):
            h, c = self.cell(x[x.size(0) - 1 - t], (h, c))
            ys.append(h)
        return torch.stack(ys), h, c


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("kind", ["LN-LSTM", "LSTM"])
def test_a_scripted_loop_is_a_network_for_any_length(kind):
    """torch's exporter refuses a scripted GRUCell."""
    module = Sequence(disturb(LayerNormLSTMCell())) if kind == "LN-LSTM" else ScriptedLSTM()
    names, given = ["x", "h", "c"], arrays((T, B, D), (B, H), (B, H))
    script = torch.jit.script(module.eval())
    proto = exported(script, given, False, input_names=names, dynamic_axes={"x": {0: "T", 1: "B"}})
    part = taken(proto)
    assert part.kind == "Loop of LSTM" and not part.baked
    assert part.network.reverse == part.flipped == (kind == "LSTM")
    x, h, c = (v.numpy() for v in arrays((T + 3, B, D), (B, H), (B, H)))
    theirs = run(proto, dict(zip(names, (x, h, c), strict=True)))[part.y.name]
    ours, _ = part.network(x, (h[None], c[None]))
    assert np.abs(theirs - (ours[::-1] if part.flipped else ours)).max() < 3e-6


class ScriptedOneState(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor, h: torch.Tensor):
        ys: list[torch.Tensor] = []
        for t in range(x.size(0)):
            h = self.cell(x[t], h)
            ys.append(h)
        return torch.stack(ys), h


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("name", LAYER_NORMS)
def test_a_scripted_loop_of_a_layer_norm_gru_or_rnn(name):
    given = arrays((T, B, D), (B, H))
    script = torch.jit.script(ScriptedOneState(disturb(LAYER_NORMS[name]())).eval())
    axes = {"x": {0: "T", 1: "B"}}
    proto = exported(script, given, False, input_names=["x", "h"], dynamic_axes=axes)
    part = taken(proto)
    kind, placement = name.split()
    assert part.kind == f"Loop of {kind}" and not part.baked and part.network.norm.placement == placement
    x, h = (v.numpy() for v in arrays((T + 3, B, D), (B, H)))
    theirs = run(proto, {"x": x, "h": h})[part.y.name]
    assert np.abs(theirs - part.network(x, h[None])[0]).max() < 3e-6


def test_a_folded_first_step_is_named():
    """The exporter computes the layer norm of the product with a first state of 0."""

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.i, self.h = nn.Linear(D, 4 * H, bias=False), nn.Linear(H, 4 * H, bias=False)
            self.a, self.b, self.c = nn.LayerNorm(4 * H), nn.LayerNorm(4 * H), nn.LayerNorm(H)

        def forward(self, x):
            h, c, ys = torch.zeros(B, H), torch.zeros(B, H), []
            for x_t in x.unbind(0):
                i, f, g, o = (self.a(self.i(x_t)) + self.b(self.h(h))).chunk(4, 1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * self.c(c).tanh()
                ys.append(h)
            return torch.stack(ys)

    proto = exported(Steps().eval(), (torch.randn(T, B, D),), True)
    text = " ".join(text for part in lnrnn.onnx.parts(proto) for text in part.warnings)
    assert "step 0 is not one of them" in text and "in another order" not in text
