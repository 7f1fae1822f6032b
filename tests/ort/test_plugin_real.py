"""The plug-in computes streams of real models as ONNX Runtime alone does, however its sessions are used."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("onnx")

from deployed_models import BUILT, EXPORTED, MODELS  # noqa: E402
from plugin_runs import agree, alone, data_of, onnxruntime, options, plugged, ran  # noqa: E402

# One of each kind: nodes in the graph and within If, a state for T = 1, lengths, cells in other operators.
VARIED = [*BUILT, *EXPORTED, "silero_vad", "tashkeel"]


@pytest.mark.parametrize("name", MODELS)
def test_a_stream_equals_that_of_the_runtime_alone(rng, tmp_path, name):
    """Profiling is on, and says which nodes the plug-in has computed."""
    deployed, chosen = MODELS[name](rng), options()
    chosen.enable_profiling, chosen.profile_file_prefix = True, str(tmp_path / "profile")
    chosen.intra_op_num_threads = 2
    session = plugged(deployed.model, sess_options=chosen, threads=2)
    agree(deployed.run(session), deployed.run(alone(deployed.model)), deployed.limit)
    assert len(ran(session)[0]) == deployed.nodes


@pytest.mark.parametrize("name", VARIED)
def test_streams_at_the_same_time_equal_streams_in_turn(rng, name):
    made = [MODELS[name](rng) for _ in range(6)]
    session = plugged(MODELS[name](rng).model, threads=2)
    wanted = [each.run(session) for each in made]
    with ThreadPoolExecutor(6) as pool:
        for ours, theirs in zip(pool.map(lambda each: each.run(session), made), wanted, strict=True):
            agree(ours, theirs, 0)


@pytest.mark.parametrize("models", [BUILT, BUILT | EXPORTED], ids=["built", "exported too"])
def test_sessions_of_all_models_are_independent_and_close_in_any_order(rng, models):
    made = [make(rng) for make in models.values()]
    made = made + made
    wanted = [each.run(alone(each.model)) for each in made]
    for _ in range(3):
        sessions = [plugged(each.model, threads=1 + k % 2) for k, each in enumerate(made)]
        for k in rng.permutation(len(made)):
            agree(made[k].run(sessions[k]), wanted[k])
            sessions[k] = None


def test_closing_sessions_while_others_run(rng):
    """Four threads open, run and close sessions of different models."""
    made = [make(rng) for make in BUILT.values()]
    wanted = [each.run(alone(each.model)) for each in made]

    def several(k):
        for _ in range(4):
            agree(made[k].run(plugged(made[k].model)), wanted[k])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(several, range(4)))


@pytest.mark.parametrize("name", ["policy", "predictor", "scripted_lstm", "unrolled_lstm", "silero_vad"])
def test_states_stay_in_the_runtime_with_io_binding(rng, name):
    """The state after a step is bound as the state of the next one, without a copy in Python."""
    deployed = MODELS[name](rng)
    session, wanted = plugged(deployed.model), deployed.run(alone(deployed.model))
    names = [each.name for each in session.get_outputs()]
    states = {key: onnxruntime.OrtValue.ortvalue_from_numpy(value) for key, value in deployed.first.items()}
    for step in deployed.steps:
        binding = session.io_binding()
        for key, value in step.items():
            binding.bind_cpu_input(key, np.ascontiguousarray(value))
        for key, value in states.items():
            binding.bind_ortvalue_input(key, value)
        for output in names:
            binding.bind_output(output)
        session.run_with_iobinding(binding)
        values = dict(zip(names, binding.get_outputs(), strict=True))
        states = {key: values[output] for key, output in deployed.states.items()}
        agree([values[output].numpy() for output in names], wanted[: len(names)])
        del wanted[: len(names)]


@pytest.mark.parametrize("name", ["policy", "unrolled_lstm", "silero_vad"])
def test_outputs_in_memory_of_the_caller(rng, name):
    """Every step writes into the same arrays, which the caller has bound."""
    deployed = MODELS[name](rng)
    session, wanted = plugged(deployed.model), deployed.run(alone(deployed.model))
    names = [each.name for each in session.get_outputs()]
    kept = {key: np.zeros_like(value) for key, value in zip(names, wanted, strict=False)}
    states = dict(deployed.first)
    for step in deployed.steps:
        binding = session.io_binding()
        for key, value in {**step, **states}.items():
            binding.bind_cpu_input(key, np.ascontiguousarray(value))
        for key, value in kept.items():
            binding.bind_output(key, "cpu", 0, value.dtype, value.shape, value.ctypes.data)
        session.run_with_iobinding(binding)
        agree(list(kept.values()), wanted[: len(names)])
        del wanted[: len(names)]
        states = {key: kept[output].copy() for key, output in deployed.states.items()}


def test_a_model_that_the_runtime_has_optimised_and_saved(rng, tmp_path):
    """A session with the plug-in runs it as well."""
    deployed, chosen = BUILT["predictor"](rng), options()
    chosen.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    wanted = deployed.run(
        onnxruntime.InferenceSession(data_of(deployed.model), chosen, providers=["CPUExecutionProvider"])
    )
    agree(deployed.run(plugged(chosen.optimized_model_filepath)), wanted)
