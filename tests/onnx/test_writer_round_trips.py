"""from_onnx gives back the networks that to_onnx wrote."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

import lnrnn  # noqa: E402
from networks import WITH_INNER_BIASES, cell_of, equal_arrays, network, normal, parts, same  # noqa: E402

pytestmark = pytest.mark.skipif(not hasattr(lnrnn, "from_onnx"), reason="lnrnn has no from_onnx")

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
# Cells and placements that from_onnx knows in plain operators.
STEPS = [
    name for name, v in WITH_INNER_BIASES.items()
    if v["norm" if "norm" in v else "cell"] is not None
    and not {"batch", "projected", "heads", "reset", "SLSTM", "none"} & set(name.split())
    and not (v["cell"] == "LiGRU" and ("inner" in name or "input" not in name))
]  # fmt: skip


def equal_networks(found, rnn, rng):
    """Asserts that two networks have the same arguments, parameters and results."""
    assert cell_of(found) == cell_of(rnn) and found.norm == rnn.norm
    for name in ("input_size", "hidden_size", "num_layers", "bidirectional", "reverse", "nonlinearity",
                 "reset_after", "gate_activation"):  # fmt: skip
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


@each_form
@pytest.mark.parametrize("variant", STEPS)
def test_a_step_in_plain_operators_has_the_same_bits(tmp_path, rng, variant, form):
    pytest.importorskip("lnrnn.onnx.patterns")
    rnn = network(5, 8, **WITH_INNER_BIASES[variant])
    lnrnn.to_onnx(rnn, tmp_path / "m.onnx", **FORMS[form])
    equal_networks(lnrnn.from_onnx(tmp_path / "m.onnx"), rnn, rng)
