"""Cells and loops that torch's exporters write become networks of lnrnn."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx_ir")
torch = pytest.importorskip("torch")

import lnrnn  # noqa: E402
from onnx_cells import exported, only_part, taken  # noqa: E402
from onnx_runs import run  # noqa: E402
from torch_cells import LayerNormLSTMCell, Sequence, shaken  # noqa: E402

nn, Spec = torch.nn, lnrnn.LayerNormSpec
T, B, D, H = 5, 2, 3, 4
KINDS = "LSTMCell", "GRUCell", "RNNCell"
BOTH = pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])


def arrays(*shapes):
    return tuple(torch.randn(shape) for shape in shapes)


def states(cell):
    return arrays(*[(B, H)] * (2 if "LSTM" in type(cell).__name__ else 1))


# --- one step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, bias, width, dynamo", [
    *((kind, bias, width, False) for kind in KINDS for bias, width in ((True, D), (False, H))),
    *((kind, True, H, True) for kind in KINDS),
])  # fmt: skip
def test_a_cell_is_a_step_with_its_weights(kind, bias, width, dynamo):
    """An RNN without biases has relu."""
    relu = {"nonlinearity": "relu"} if kind == "RNNCell" and not bias else {}
    module = getattr(nn, kind)(width, H, bias=bias, **relu)
    (x,), state = arrays((B, width)), states(module)
    proto = exported(module, (x, state if len(state) > 1 else state[0]), dynamo)
    part = taken(proto)
    assert part.kind == kind.replace("Cell", " step")
    assert part.x.name == proto.graph.input[0].name
    assert part.network.norm is None and part.network.bias is bias
    assert getattr(part.network, "nonlinearity", "tanh") == ("relu" if relu else "tanh")
    for name, value in module.state_dict().items():
        assert np.array_equal(getattr(part.network, f"{name}_l0"), value.numpy())


# --- norms, loops of one length, and scripts ----------------------------------------------------------------


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
    def __init__(self):
        super().__init__()
        self.x_, self.h_ = nn.Linear(D, H, bias=False), nn.Linear(H, H, bias=False)
        self.norm = nn.LayerNorm(H)

    def forward(self, x, h):
        return torch.tanh(self.norm(self.x_(x) + self.h_(h)))


# {name: (a cell, the norm of its network)}
LAYER_NORMS = {
    "LSTM": (lambda: LayerNormLSTMCell(D, H), Spec("split", cell="carry")),
    "GRU joint": (lambda: LayerNormGRUCell(True), Spec("joint", cell=None, inner_bias=True)),
    "GRU split": (lambda: LayerNormGRUCell(False), Spec("split", span="all", cell=None, inner_bias=True)),
    "RNN": (LayerNormRNNCell, Spec("joint", cell=None)),
}


class Loop(nn.Module):
    """Calls a cell for each step of x. How it reads x and joins the outputs are arguments."""

    def __init__(self, cell, axis=0, unbind=False, backwards=False, flip=False, start=True):
        super().__init__()
        self.cell, self.axis, self.unbind = cell, axis, unbind
        self.backwards, self.flip, self.start = backwards, flip, start

    def forward(self, x, *state):
        steps = x.unbind(self.axis) if self.unbind else [x.select(self.axis, t) for t in range(T)]
        state = state if self.start else [torch.zeros(B, H)] * len(state)
        ys = []
        for x_t in steps[::-1] if self.backwards else steps:
            if isinstance(self.cell, nn.RNNCellBase):
                state = self.cell(x_t, tuple(state) if len(state) > 1 else state[0])
            else:
                state = self.cell(x_t, *state)
            state = state if isinstance(state, tuple) else (state,)
            ys.append(state[0])
        y = torch.stack(ys, self.axis)
        return y.flip(self.axis) if self.flip else y, *state


def loop_model(cell, dynamo, opset=17, **options):
    x = torch.randn((B, T, D) if options.get("axis") else (T, B, D))
    return exported(Loop(cell, **options), (x, *states(cell)), dynamo, opset)


@pytest.mark.parametrize("name, opset, dynamo, loop", [
    *(("LSTM", 16, False, loop) for loop in (False, True)),
    *((name, 17, False, False) for name in LAYER_NORMS), *((name, 18, True, True) for name in LAYER_NORMS),
])  # fmt: skip
def test_cells_with_layer_norm_and_their_loops(name, opset, dynamo, loop):
    make, norm = LAYER_NORMS[name]
    cell, kind = shaken(make()), name.split()[0]
    if loop:
        proto = loop_model(cell, dynamo, opset)
    else:
        proto = exported(cell, (*arrays((B, D)), *states(cell)), dynamo, opset)
        assert ("LayerNormalization" in {node.op_type for node in proto.graph.node}) == (opset > 16)
    part = (only_part if opset < 17 else taken)(proto)
    assert part.kind == (f"{T} steps of {kind}" if loop else f"{kind} step") and part.network.norm == norm


WAYS = (
    {}, dict(axis=1), dict(unbind=True), dict(axis=1, unbind=True), dict(backwards=True), dict(start=False),
    dict(backwards=True, flip=True),
)  # fmt: skip


# The other exporter takes longer, so each way and each kind occur with it, but not all pairs.
@pytest.mark.parametrize("kind, options, dynamo", [
    *((kind, way, False) for kind in KINDS for way in WAYS),
    *((KINDS[i % 3], way, True) for i, way in enumerate(WAYS)),
], ids=str)  # fmt: skip
def test_a_python_loop_is_one_network(kind, options, dynamo):
    """From the end, y has the steps in the reverse order of x. A flip after it is no part of the network."""
    part = taken(loop_model(getattr(nn, kind)(D, H), dynamo, **options))
    assert part.kind == f"{T} steps of {kind.removesuffix('Cell')}"
    assert part.baked["T"] == T and f"a length of {T} steps is baked in" in part.warnings[0]
    assert part.baked.get("B", B) == B
    assert ("begins at 0" in " ".join(part.warnings)) == ("start" in options)
    assert part.network.reverse == part.flipped == ("backwards" in options)
    first = "BT" if options.get("axis") else "TB"
    assert (part.axes["x"], part.axes["y"]) == (f"{first}I", f"{first}H")
    assert part.network.batch_first == bool(options.get("axis"))


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


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(D, H)

    def forward(self, x, h, lengths):
        ys = []
        for t in range(T):
            h = torch.where((t < lengths)[:, None], self.cell(x[t], h), h)
            ys.append(h)
        return torch.stack(ys), h


@BOTH
def test_a_python_loop_with_a_mask_of_lengths(dynamo):
    given = *arrays((T, B, D), (B, H)), torch.tensor([0, 4])
    proto = exported(Masked(), given, dynamo)
    part = only_part(proto)
    assert part.kind == f"{T} steps of GRU" and part.lengths.dtype.name == "INT64"
    feed = {each.name: array.numpy() for each, array in zip(proto.graph.input, given, strict=True)}
    theirs, (x, h, lengths) = run(proto, feed), feed.values()
    y, last = part.network(x, h[None], lengths=lengths)
    assert np.abs(theirs[part.h[0].name] - last[0]).max() < 1e-6
    assert np.abs(theirs[part.y.name] - y)[:4, 1].max() < 1e-6


class FromTheEnd(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(D, H)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor):
        ys: list[torch.Tensor] = []
        for t in range(x.size(0)):
            h, c = self.cell(x[x.size(0) - 1 - t], (h, c))
            ys.append(h)
        return torch.stack(ys), h, c


class OneState(nn.Module):
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
@pytest.mark.parametrize("name", ["LSTM from the end", *LAYER_NORMS])
def test_a_scripted_loop_is_a_network_for_any_length(name):
    """torch's exporter refuses a scripted GRUCell."""
    make, norm = LAYER_NORMS.get(name, (FromTheEnd, None))
    module, kind = make(), name.split()[0]
    if norm is not None:
        module = (Sequence if kind == "LSTM" else OneState)(shaken(module))
    names = ["x", "h", "c"][: 3 if kind == "LSTM" else 2]
    given = arrays((T, B, D), *[(B, H)] * (len(names) - 1))
    axes = {"x": {0: "T", 1: "B"}}
    proto = exported(torch.jit.script(module.eval()), given, False, input_names=names, dynamic_axes=axes)
    part = taken(proto)
    assert part.kind == f"Loop of {kind}" and not part.baked and part.network.norm == norm
    assert part.network.reverse == part.flipped == (norm is None)
    x, *state = (v.numpy() for v in arrays((T + 3, B, D), *[(B, H)] * (len(names) - 1)))
    theirs = run(proto, dict(zip(names, (x, *state), strict=True)))[part.y.name]
    state = [s[None] for s in state]
    ours, _ = part.network(x, tuple(state) if len(state) > 1 else state[0])
    assert np.abs(theirs - (ours[::-1] if part.flipped else ours)).max() < 3e-6


def test_a_folded_first_step_is_named():
    """The exporter computes the layer norm of the product with a first state of 0."""
    proto = loop_model(shaken(LayerNormLSTMCell(D, H)), True, start=False)
    text = " ".join(text for part in lnrnn.onnx.parts(proto) for text in part.warnings)
    assert "step 0 is not one of them" in text and "in another order" not in text
