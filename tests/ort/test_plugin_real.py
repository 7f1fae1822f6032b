"""The plug-in computes streams of real models as ONNX Runtime alone does, however its sessions are used."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("onnx")

from deployed_models import BUILT, EXPORTED, MODELS  # noqa: E402
from plugin_runs import agree, alone, data_of, onnxruntime, options, plugged, ran  # noqa: E402

# One of each kind: nodes in the graph and within If, a state for T = 1, lengths, cells in other operators.
VARIED = [*BUILT, *EXPORTED, "silero_vad", "tashkeel"]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_a_stream_equals_that_of_the_runtime_alone(rng, tmp_path, name, threads):
    """Profiling is on, and says which nodes the plug-in has computed."""
    deployed, chosen = MODELS[name](rng), options()
    chosen.enable_profiling, chosen.profile_file_prefix = True, str(tmp_path / "profile")
    chosen.intra_op_num_threads = threads
    session = plugged(deployed.model, sess_options=chosen, threads=threads)
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


@pytest.mark.parametrize("dtype, limit", [("bfloat16", 3e-2), ("int8", 3e-2)])
@pytest.mark.parametrize("name", VARIED)
def test_rounded_weights_stay_near(rng, name, dtype, limit):
    deployed = MODELS[name](rng)
    agree(deployed.run(plugged(deployed.model, dtype=dtype)), deployed.run(alone(deployed.model)), limit)


ENDING = """
import sys, threading
import numpy as np
import lnrnn.onnxruntime as o
sessions = [o.session(path, threads=2) for path in sys.argv[1:] for _ in range(2)]
def run(session):
    zeros = {x.name: np.zeros([d if isinstance(d, int) else 1 for d in x.shape],
             np.int32 if "int32" in x.type else np.float32) for x in session.get_inputs()}
    session.run(None, zeros)
for session in sessions:
    thread = threading.Thread(target=run, args=(session,))
    thread.start()
    thread.join()
sessions[0].itself = sessions[0]  # a cycle: the session is not freed before the process ends
del sessions[1::2]
print("done")
"""


def test_a_process_ends_with_sessions_that_have_run_in_other_threads(rng, tmp_path):
    paths = []
    for name, make in BUILT.items():
        paths.append(tmp_path / f"{name}.onnx")
        paths[-1].write_bytes(data_of(make(rng).model))
    done = subprocess.run([sys.executable, "-c", ENDING, *map(str, paths)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "not assigned" not in done.stderr  # nodes of the runtime itself are no reason for a warning


def test_a_model_that_the_runtime_has_optimised_and_saved(rng, tmp_path):
    """A session with the plug-in runs it as well."""
    deployed, chosen = BUILT["predictor"](rng), options()
    chosen.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    wanted = deployed.run(
        onnxruntime.InferenceSession(data_of(deployed.model), chosen, providers=["CPUExecutionProvider"])
    )
    agree(deployed.run(plugged(chosen.optimized_model_filepath)), wanted)
