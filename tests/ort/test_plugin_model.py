"""lnrnn.onnx.Model runs files with the plug-in, unless `plugin` is False or onnxruntime is too old."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx_ir")

import state_models  # noqa: E402
from deployed_models import MODELS  # noqa: E402
from lnrnn.onnx import Model  # noqa: E402
from lnrnn.onnxruntime import ep_name  # noqa: E402
from plugin_runs import data_of, onnxruntime  # noqa: E402


def has_plugin(model):
    return ep_name() in model.session.get_providers()


@pytest.mark.parametrize("name", MODELS)
def test_streams_with_and_without_the_plug_in_agree(rng, tmp_path, name):
    deployed = MODELS[name](rng)
    path = tmp_path / "m.onnx"
    path.write_bytes(
        onnx.load(deployed.model).SerializeToString()
        if isinstance(deployed.model, str)
        else data_of(deployed.model)
    )
    states = {} if name == "text_encoder" else None  # x and y have the same shape
    models = [Model(path, states=states), Model(path, states=states, plugin=False)]
    assert [has_plugin(each) for each in models] == [True, False]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # files whose state starts at 0
        streams = [each.stream() for each in models]
    for step in deployed.steps:
        for ours, theirs in zip(*(outputs(stream, step) for stream in streams), strict=True):
            if ours.dtype.kind == "f":
                assert np.abs(ours - theirs).max(initial=0) <= deployed.limit * max(
                    np.abs(theirs).max(initial=0), 1
                )
    for key, state in streams[0].state.items():
        assert np.abs(state - streams[1].state[key]).max() <= deployed.limit * max(np.abs(state).max(), 1)


def outputs(stream, step):
    y = stream(step)
    return list(y.values()) if isinstance(y, dict) else [y]


def test_copies_keep_the_choice(tmp_path):
    path = state_models.policy(tmp_path / "m.onnx")
    for plugin in (True, False):
        assert has_plugin(pickle.loads(pickle.dumps(Model(path, plugin=plugin)))) == plugin
    with pytest.raises(TypeError, match="plugin must be"):
        Model(path, plugin="yes")


def test_an_older_runtime_computes_all_nodes(tmp_path, monkeypatch):
    monkeypatch.setattr(onnxruntime, "__version__", "1.23.2")
    assert not has_plugin(Model(state_models.policy(tmp_path / "m.onnx")))
