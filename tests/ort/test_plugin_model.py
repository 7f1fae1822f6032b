"""lnrnn.onnx.Model has the bits of a loop by hand, or computes with the plug-in, unless `plugin` is False."""

from __future__ import annotations

import pickle
import warnings

import onnx
import pytest

pytest.importorskip("onnx_ir")

import state_models  # noqa: E402
from deployed_models import MODELS  # noqa: E402
from lnrnn.onnx import Model  # noqa: E402
from lnrnn.onnxruntime import ep_name  # noqa: E402
from plugin_runs import agree, alone, data_of, onnxruntime  # noqa: E402


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
    assert [has_plugin(each) for each in models] == [True, False] and models[0].states == deployed.states
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # files whose state starts at 0
        streams = [each.stream() for each in models]
    wanted = iter(deployed.run(alone(deployed.model)))
    for step in deployed.steps:
        ours, theirs = (outputs(*each, step) for each in zip(models, streams, strict=True))
        for name in (each.name for each in models[1].session.get_outputs() if "float" in each.type):
            assert theirs[name].tobytes() == next(wanted).tobytes()
            agree([ours[name]], [theirs[name]], deployed.limit)


def outputs(model, stream, step):
    """Returns all outputs of a step by name, states included."""
    y = stream(step)
    y = y if isinstance(y, dict) else {model.outputs[0]: y}
    return y | {model.states[name]: state for name, state in stream.state.items()}


def test_an_old_runtime_runs_without_the_plug_in(tmp_path, monkeypatch):
    def old():
        raise ImportError("onnxruntime 1.25 or later")

    monkeypatch.setattr("lnrnn.onnx.running.file_session.register", old)
    assert not has_plugin(Model(state_models.policy(tmp_path / "m.onnx")))


def test_copies_keep_the_choice(tmp_path):
    path = state_models.policy(tmp_path / "m.onnx")
    for plugin in (True, False):
        assert has_plugin(pickle.loads(pickle.dumps(Model(path, plugin=plugin)))) == plugin
    with pytest.raises(TypeError, match="plugin must be"):
        Model(path, plugin="yes")


def test_an_older_runtime_computes_all_nodes(tmp_path, monkeypatch):
    monkeypatch.setattr(onnxruntime, "__version__", "1.23.2")
    assert not has_plugin(Model(state_models.policy(tmp_path / "m.onnx")))
