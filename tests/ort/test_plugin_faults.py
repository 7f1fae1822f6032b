"""A function of ONNX Runtime that fails once: a node is left to the runtime, or an error has its message."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import lnrnn  # noqa: E402
import lnrnn.onnxruntime  # noqa: E402
import quantized_lstm  # noqa: E402
from compilers import ROOT, native_compiler  # noqa: E402
from onnx_files import FLOAT, recurrent  # noqa: E402
from plugin_runs import agree, alone, called, computed, draw_inputs, onnxruntime, plugged  # noqa: E402

SOURCE = Path(__file__).with_name("failing_runtime.c")


def models(rng):
    names = {"activations": ["HardSigmoid", "Tanh"], "activation_alpha": [0.3], "activation_beta": [0.5]}
    node = recurrent(rng, "GRU", states=True, lengths=True, linear_before_reset=0, **names)
    node.graph.node[0].attribute.append(helper.make_attribute("layout", 0))
    for own, a in {"h0": np.ones((1, 3, 4)), "most": np.array(9)}.items():
        node.graph.initializer.append(numpy_helper.from_array(a.astype(np.float32), own))
    del node.graph.input[-1]
    for op, *inputs in (
        ("Max", *"X" * 9), ("Clip", "Max", "", "most"), ("Sigmoid", "X"), ("Mul", "Sigmoid", "X"),
        ("Add", "Mul", "Clip"),
    ):  # fmt: skip
        node.graph.node.append(helper.make_node(op, inputs, [op]))  # as in a cell
    node.graph.output.append(helper.make_tensor_value_info("Add", FLOAT, None))
    clipped = recurrent(rng, "LSTM", peepholes=0.5, clip=9.0)  # is left
    smaller = recurrent(rng, "RNN")
    next(a for a in smaller.graph.node[-1].attribute if a.name == "hidden_size").i = 1  # contradicts R
    smaller.graph.node.insert(0, helper.make_node("RNN", ["X", "W", "R"], ["more"], hidden_size=4))
    smaller.graph.output.append(helper.make_tensor_value_info("more", FLOAT, None))
    own = quantized_lstm.quantized(rng)
    call = called(lnrnn.LSTM(3, 4, seed=0), lengths=True)
    eight = quantized_lstm.proto(own)
    eight.graph.node[0].attribute.append(helper.make_attribute("input_forget", 0))
    return {"node": node, "left": clipped, "contradictory": smaller, "8 bits": eight, "call": call}


def runs_with_faults(path):
    """Returns the numbers of calls of a model's sessions, and the errors other than those of a function."""
    runtime, rng, result = ctypes.CDLL(path), np.random.default_rng(0), {}
    runtime.fail_after.argtypes, runtime.fail_after.restype = [ctypes.c_long], ctypes.c_long
    assert runtime.pass_on(lnrnn.onnxruntime.library_path().encode(), b"")
    runtime.fail_after(1)
    with pytest.raises(Exception, match="create_device fails"):
        onnxruntime.register_execution_provider_library("failing", path)
    onnxruntime.register_execution_provider_library("failing", path)
    for name, proto in models(rng).items():
        session, wrong, limit = None, [], 0.05 if name == "8 bits" else 1e-5
        if name != "contradictory":
            session = alone(proto)
            given = draw_inputs(session, rng, B=3)
            wanted = session.run(None, given)
        for at in itertools.count(1):
            runtime.fail_after(at)
            try:
                ours = plugged(proto).run(None, given)
                agree(ours, wanted, limit)
            except Exception as error:
                known = session is None or any(
                    text in str(error) for text in (" fails", "internal error: the node ")
                )
                wrong += [] if known else [f"{at}: {error}"]
            if runtime.fail_after(0) > 0:
                break
        result[name] = [at, wrong]
    return result


def run_of_an_older_version(path):
    runtime, proto = ctypes.CDLL(path), recurrent(np.random.default_rng(0), "GRU", outputs=["Y"])
    assert runtime.pass_on(lnrnn.onnxruntime.library_path().encode(), b"1.24.0")
    onnxruntime.register_execution_provider_library("older", path)
    branch = helper.make_graph(proto.graph.node, "branch", [], proto.graph.output)
    node = helper.make_node("If", ["flag"], ["out"], then_branch=branch, else_branch=branch)
    del proto.graph.node[:]
    proto.graph.node.append(node)
    proto.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, ()))
    proto.graph.output[0].name = "out"
    computed(proto, draw_inputs(alone(proto), np.random.default_rng(1)), Path(path).parent, 0)


@pytest.fixture(scope="module")
def passed_on(tmp_path_factory):
    """Returns a function that calls a function of this file in a process that may register the library."""
    if platform.system() != "Linux":
        pytest.skip("the library between plug-in and runtime is for Linux")
    library = tmp_path_factory.mktemp("failing") / "failing.so"
    command = [*native_compiler(), "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*command, f"-I{ROOT / 'pyx'}", str(SOURCE), "-o", str(library)], check=True)
    paths = os.pathsep.join(filter(None, [*sys.path, str(Path(__file__).parent)]))

    def call(function):
        code = f"t.{function.__name__}({str(library)!r})"
        code = f"import json, test_plugin_faults as t\nprint(json.dumps({code}))"
        own = os.environ | {"PYTHONPATH": paths}
        done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return call


def test_a_function_of_the_runtime_that_fails_once(passed_on):
    for name, (calls, wrong) in passed_on(runs_with_faults).items():
        assert calls > 30 and not wrong, name


def test_nodes_within_an_if_are_left_to_an_older_runtime(passed_on):
    passed_on(run_of_an_older_version)
