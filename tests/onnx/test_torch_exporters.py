"""Networks of torch that either exporter of torch.onnx writes have torch's outputs, at other sizes too."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx_ir")

import lnrnn  # noqa: E402
from onnx_cells import exported, graph_parts, only_part, taken  # noqa: E402

T, B, WIDTH, H = 6, 5, 3, 4


class Packed(torch.nn.Module):
    """A network that is called with lengths."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x, lengths):
        first = self.rnn.batch_first
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, first, enforce_sorted=False)
        y, state = self.rnn(packed)
        return torch.nn.utils.rnn.pad_packed_sequence(y, first)[0], state


def torch_network(kind, **options):
    torch.manual_seed(len(kind))
    return getattr(torch.nn, kind)(WIDTH, H, **options).eval()


def check(raw, module, lengths=None):
    """Compares a network with torch's module, which has the same axes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rnn = lnrnn.from_onnx(raw)
    (part,) = graph_parts(raw)
    torch_s = module.rnn if lengths is not None else module
    for name in ("num_layers", "bidirectional", "bias"):
        assert getattr(rnn, name) == getattr(torch_s, name)
    first = torch_s.batch_first
    assert rnn.batch_first == first and part.axes["x"] == ("BTI" if first else "TBI")
    assert part.axes["y"] in (("BTH",) if first else ("TBH", "TDBH"))
    for steps, batch in ((T, B), (2 * T, 1)) if lengths is None else ((T, B),):
        x = torch.randn(*((batch, steps) if first else (steps, batch)), WIDTH)
        with torch.no_grad():
            y, state = module(x) if lengths is None else module(x, torch.tensor(lengths))
        got, ours = rnn(x.numpy(), lengths=lengths)
        np.testing.assert_allclose(got, y.numpy(), atol=1e-6)
        pairs = zip(ours, state, strict=True) if isinstance(ours, tuple) else [(ours, state)]
        for a, b in pairs:
            np.testing.assert_allclose(a, b.numpy(), atol=1e-6)
    return part


NETWORKS = [
    ("LSTM", {}), ("GRU", {}), ("RNN", {}), ("RNN", {"nonlinearity": "relu"}), ("LSTM", {"bias": False}),
    ("GRU", {"num_layers": 3, "bidirectional": True, "batch_first": True}),
    ("LSTM", {"num_layers": 2, "bidirectional": True}), ("RNN", {"num_layers": 2, "bias": False}),
    ("LSTM", {"num_layers": 3, "batch_first": True, "dropout": 0.5}), ("GRU", {"bidirectional": True}),
]  # fmt: skip


@pytest.mark.parametrize("kind, options", NETWORKS, ids=str)
@pytest.mark.parametrize("opset", [9, 13, 20])
def test_a_network_of_the_torchscript_exporter(kind, options, opset):
    module = torch_network(kind, **options)
    x = torch.randn(4, 2, WIDTH)
    part = check(exported(module, (x,), False, opset, free=True), module)
    assert all(value is None for value in (*part.h0, *part.c0))


@pytest.mark.parametrize("kind, options", [NETWORKS[0], NETWORKS[5], NETWORKS[6]], ids=str)
def test_a_packed_network_of_the_torchscript_exporter_has_lengths(kind, options):
    module = Packed(torch_network(kind, **options))
    x = torch.randn(4, 2, WIDTH) if not options.get("batch_first") else torch.randn(2, 4, WIDTH)
    proto = exported(module, (x, torch.tensor([3, 4])), False, free=True)
    part = check(proto, module, lengths=[6, 1, 3, 4, 2])
    assert part.lengths is not None


def test_initial_states_that_are_inputs_are_values_of_the_part():
    module = torch_network("LSTM", num_layers=2)
    states = torch.zeros(2, 2, H), torch.zeros(2, 2, H)
    part = check(exported(module, (torch.randn(4, 2, WIDTH), states), False, free=True), module)
    assert len({value.name for value in (*part.h0, *part.c0)}) == 4


@pytest.mark.parametrize("kind, options", [
    ("LSTM", {}), ("GRU", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    ("LSTM", {"num_layers": 2, "bias": False}),
], ids=str)  # fmt: skip
def test_a_network_of_the_dynamo_exporter(kind, options):
    """torch 2.13 sets the number of steps of one layer by a Reshape. The network takes any number."""
    module = torch_network(kind, **options)
    part = check(exported(module, (torch.randn(4, 2, WIDTH),), True, free=True), module)
    assert all(value is None for value in (*part.h0, *part.c0))


@pytest.mark.parametrize("options, states, free", [
    ({}, 0, True), ({}, 0, False), ({"nonlinearity": "relu", "bias": False}, 1, False),
    ({"num_layers": 2, "bidirectional": True}, 1, False), ({"num_layers": 2, "bidirectional": True}, 0, True),
], ids=str)  # fmt: skip
def test_an_rnn_of_the_dynamo_exporter_is_one_network(options, states, free):
    """torch 2.13 unrolls it, with one product of all x, and states of three axes that may be folded."""
    module = torch_network("RNN", **options)
    places = module.num_layers * (1 + module.bidirectional)
    given = torch.randn(T, B, WIDTH), *[torch.randn(places, B, H)] * states
    proto = exported(module, given, True, free=free)
    part = only_part(proto) if free else taken(proto, module.num_layers)
    assert part.kind == f"{T} steps of RNN" and part.axes["h"] == "DBH" and len(part.h0) == places
    x = torch.randn(T, B, WIDTH)
    y, h = module(x, *given[1:])
    got, ours = part.network(x.numpy(), *(state.numpy() for state in given[1:]))
    np.testing.assert_allclose(got, y.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(ours, h.detach().numpy(), atol=1e-6)
