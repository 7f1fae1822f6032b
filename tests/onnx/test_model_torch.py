"""lnrnn.onnx.Model finds and keeps the states of policies that torch's two exporters write, without names."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx_ir")
pytest.importorskip("onnxruntime")

from lnrnn.onnx import Model  # noqa: E402


class Policy(torch.nn.Module):
    """One step of a recurrent network, and a linear layer."""

    def __init__(self, kind, layers):
        super().__init__()
        self.rnn = getattr(torch.nn, kind)(3, 4, layers)
        self.out = torch.nn.Linear(4, 2)

    def forward(self, obs, first, second=None):
        if second is None:
            y, last = self.rnn(obs[None], first)
            return self.out(y[0]), last
        y, (h, c) = self.rnn(obs[None], (first, second))
        return self.out(y[0]), h, c


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("kind, layers", [("LSTM", 1), ("LSTM", 2), ("GRU", 1)])
def test_a_policy_has_torch_s_outputs(tmp_path, rng, kind, layers, dynamo):
    if dynamo:
        pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    policy, path = Policy(kind, layers).eval(), tmp_path / "policy.onnx"
    states = [torch.zeros(layers, 2, 4) for _ in range(2 if kind == "LSTM" else 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(policy, (torch.zeros(2, 3), *states), str(path), dynamo=dynamo, verbose=False)
    x = rng.standard_normal((6, 2, 3), np.float32)
    want = []
    with torch.no_grad():
        for obs in torch.from_numpy(x):
            action, *states = policy(obs, *states)
            want.append(action.numpy())
    model = Model(path)
    assert len(model.states) == len(states) and len(model.inputs) == len(model.outputs) == 1
    y, last = model(x)
    assert y == pytest.approx(np.stack(want), abs=1e-5)
    for found, state in zip(last.values(), states, strict=True):
        assert found == pytest.approx(state.numpy(), abs=1e-5)
