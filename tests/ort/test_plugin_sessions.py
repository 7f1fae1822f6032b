"""Sessions with the plug-in: subgraphs, several sessions, and runs at the same time."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402

import lnrnn.onnxruntime  # noqa: E402
from onnx_files import FLOAT, constant, model, recurrent, weights  # noqa: E402
from plugin_runs import agree, alone, claimed, feed, onnxruntime, options, plugged, version  # noqa: E402


def test_nodes_in_both_branches_of_an_if_are_taken(rng, tmp_path):
    """The weights are constants of the outer graph, behind operators that the runtime folds."""
    own = weights(rng, "LSTM")
    for name in ("W", "R", "B"):
        own[f"{name}_2"] = own.pop(name)[0]
    unsqueezed = [helper.make_node("Unsqueeze", [f"{name}_2", "axes"], [name]) for name in ("W", "R", "B")]
    branches = [
        helper.make_graph(
            [helper.make_node("LSTM", ["X", "W", "R", "B"], [f"Y_{k}"], f"branch_{k}", hidden_size=4,
                              direction=direction)],
            f"branch_{k}", [], [helper.make_tensor_value_info(f"Y_{k}", FLOAT, None)],
        )
        for k, direction in enumerate(("forward", "reverse"))
    ]  # fmt: skip
    node = helper.make_node("If", ["flag"], ["Y"], then_branch=branches[0], else_branch=branches[1])
    given = {"X": (FLOAT, ("T", "B", 3)), "flag": (TensorProto.BOOL, ())}
    nodes = [constant("axes", np.array([0])), *unsqueezed, node]
    proto = model(nodes, given, ["Y"], own)
    for flag in (True, False):
        values = feed(rng, "LSTM") | {"flag": np.array(flag)}
        ours, ran = claimed(proto, values, tmp_path)
        assert ran == (version() >= (1, 25))
        agree(ours, alone(proto).run(None, values))


def test_sessions_are_independent_and_close_in_any_order(rng):
    models = [recurrent(rng, kind, H=H) for kind, H in (("LSTM", 4), ("GRU", 9), ("RNN", 5))]
    sessions = [plugged(each) for each in models]
    given = feed(rng, "LSTM")
    wanted = [alone(each).run(None, given) for each in models]
    for order in ([1, 0, 2], [0, 2], [2]):
        for k in order:
            agree(sessions[k].run(None, given), wanted[k])
        sessions[order[0]] = None


@pytest.mark.parametrize("threads", [1, 2])
def test_runs_at_the_same_time_equal_runs_in_turn(rng, threads):
    proto = recurrent(rng, "LSTM", width=8, H=40, D=2, lengths=True, states=True)
    session = plugged(proto, threads=threads)
    sizes = [(T, B) for T in (1, 3, 20) for B in (1, 2, 5)] * 12
    feeds = [feed(rng, "LSTM", T, B, 8, 40, 2, rng.integers(0, T + 1, B), states=True) for T, B in sizes]
    wanted = [session.run(None, given) for given in feeds]
    with ThreadPoolExecutor(6) as pool:
        for ours, theirs in zip(pool.map(lambda given: session.run(None, given), feeds), wanted, strict=True):
            agree(ours, theirs, 0)


def test_io_binding_and_a_process_that_ends_with_open_sessions(rng, tmp_path):
    proto = recurrent(rng, "GRU")
    given = feed(rng, "GRU")
    session = plugged(proto)
    binding = session.io_binding()
    binding.bind_cpu_input("X", given["X"])
    for name in ("Y", "Y_h"):
        binding.bind_output(name)
    for _ in range(3):
        session.run_with_iobinding(binding)
    agree(binding.copy_outputs_to_cpu(), alone(proto).run(None, given))
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    code = f"import lnrnn.onnxruntime as o; kept = [o.session({str(path)!r}) for _ in range(3)]; o.register()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_arguments_of_session(rng):
    proto = recurrent(rng, "GRU").SerializeToString()
    with pytest.raises(ValueError, match="dtype must be"):
        lnrnn.onnxruntime.session(proto, dtype="float16")
    with pytest.raises(ValueError, match="threads must be"):
        lnrnn.onnxruntime.session(proto, threads=0)
    with pytest.raises(ValueError, match="providers must be left out"):
        lnrnn.onnxruntime.session(proto, providers=["CPUExecutionProvider"])
    session = lnrnn.onnxruntime.session(proto, sess_options=options())
    assert session.get_providers()[0] == lnrnn.onnxruntime.ep_name() == "LnrnnExecutionProvider"
    assert isinstance(session, onnxruntime.InferenceSession)
