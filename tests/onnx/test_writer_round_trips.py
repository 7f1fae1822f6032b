"""from_onnx gives back the networks that to_onnx wrote."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

import lnrnn  # noqa: E402
from lnrnn import reference  # noqa: E402
from networks import WITH_INNER_BIASES, cell_of, equal_arrays, network, normal, parts, same  # noqa: E402

NODES = {
    **{f"{cell} {d}": dict(cell=cell) | options
       for cell in ("RNN", "LSTM", "GRU")
       for d, options in dict(forward={}, both=dict(bidirectional=True), reverse=dict(reverse=True)).items()},
    "RNN relu": dict(cell="RNN", nonlinearity="relu"),
    "GRU before": dict(cell="GRU", reset_after=False, bidirectional=True),
    "LSTM hard": dict(cell="LSTM", gate_activation="hard_sigmoid"),
    "GRU no bias": dict(cell="GRU", bias=False),
}  # fmt: skip
FORMS = {
    "": {}, "stateless": dict(states=False), "lengths": dict(lengths=True), "step": dict(step=True),
}  # fmt: skip
each_form = pytest.mark.parametrize("form", FORMS)
# Cells and placements that from_onnx does not know in plain operators. Those of heads come back as whole
# matrices.
UNKNOWN = re.compile("batch|heads|SLSTM|LiGRU (joint|split|gate)")
STEPS = [name for name in WITH_INNER_BIASES if not UNKNOWN.search(name)]


def equal_networks(found, rnn, rng):
    """Asserts that two networks have the same arguments, parameters and results."""
    assert cell_of(found) == cell_of(rnn) and found.norm == rnn.norm
    for name in ("input_size", "hidden_size", "num_layers", "bidirectional", "reverse", "batch_first",
                 "nonlinearity", "reset_after", "gate_activation", "proj_size"):  # fmt: skip
        assert getattr(found, name, None) == getattr(rnn, name, None), name
    equal_arrays(found.parameters(), rnn.parameters())
    x = normal(rng, 6, 3, rnn.input_size)
    (y, h), (right, right_h) = found(x), rnn(x)
    same(y, right)
    for got, want in zip(parts(found, h), parts(rnn, right_h), strict=True):
        same(got, want)


@each_form
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("options", NODES)
def test_a_plain_network_has_the_same_bits(tmp_path, rng, options, num_layers, form):
    rnn = network(5, 8, norm=None, num_layers=num_layers, **NODES[options])
    if form == "step" and (rnn.bidirectional or rnn.reverse):
        return
    lnrnn.to_onnx(rnn, tmp_path / "m.onnx", **FORMS[form])
    found = lnrnn.from_onnx(tmp_path / "m.onnx")
    equal_networks(found, rnn, rng)


# Each variant has two of the forms, and each form half of the variants.
@pytest.mark.parametrize(
    "variant, form", [(v, form) for i, v in enumerate(STEPS) for k, form in enumerate(FORMS) if (i + k) % 2]
)
def test_steps_in_plain_operators_have_the_same_bits(tmp_path, rng, variant, form):
    for layers in (dict(num_layers=1), dict(num_layers=2, bidirectional=form != "step")):
        rnn = network(5, 8, **layers, **WITH_INNER_BIASES[variant])
        lnrnn.to_onnx(rnn, tmp_path / "m.onnx", **FORMS[form])
        equal_networks(lnrnn.from_onnx(tmp_path / "m.onnx"), rnn, rng)


@pytest.mark.parametrize("num_heads", [2, 4])
def test_heads_come_back_as_whole_matrices_with_the_same_bits(tmp_path, rng, num_heads):
    rnn = network(5, 8, cell="LSTM", num_heads=num_heads)
    lnrnn.to_onnx(rnn, tmp_path / "m.onnx")
    found, x = lnrnn.from_onnx(tmp_path / "m.onnx"), normal(rng, 6, 3, 5)
    same(found(x)[0], rnn(x)[0])
    same(found.weight_hh_l0, reference.block_diagonal(rnn.weight_hh_l0, num_heads))


@pytest.mark.parametrize("norm", [None, "layer"])
def test_a_file_without_states_says_that_they_begin_at_0(tmp_path, norm):
    for states in (True, False):
        lnrnn.to_onnx(network(5, 8, cell="LSTM", norm=norm), tmp_path / "m.onnx", states=states)
        (part,) = lnrnn.onnx.parts(tmp_path / "m.onnx")
        assert any("begins at 0 in each call" in text for text in part.warnings) != states


@pytest.mark.parametrize("form", ["", "stateless", "lengths"])
@pytest.mark.parametrize("options", [{}, {"norm": None}, {"bidirectional": True}], ids=str)
def test_batch_first_comes_back(tmp_path, rng, options, form):
    rnn = network(5, 8, cell="GRU", batch_first=True, **options)
    lnrnn.to_onnx(rnn, tmp_path / "m.onnx", **FORMS[form])
    equal_networks(lnrnn.from_onnx(tmp_path / "m.onnx"), rnn, rng)
