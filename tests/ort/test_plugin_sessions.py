"""Sessions with the plug-in: subgraphs, options, the end of a process. test_plugin_real.py has threads."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import lnrnn.onnxruntime  # noqa: E402
from onnx_files import FLOAT, constant, model, recurrent, weights  # noqa: E402
from plugin_runs import NEAR, agree, alone, computed, feed, onnxruntime, options, plugged, ran  # noqa: E402


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
        computed(proto, values, tmp_path)


def test_threads_do_not_change_a_bit(rng):
    for kind, D in (("LSTM", 1), ("GRU", 2), ("RNN", 1)):
        proto = recurrent(rng, kind, width=64, H=320, D=D)
        for T, B in ((40, 1), (10, 24)):
            given = feed(rng, kind, T, B, 64, 320, D)
            agree(plugged(proto, threads=2).run(None, given), plugged(proto, threads=1).run(None, given), 0)


def test_an_output_of_another_shape_is_refused(rng):
    proto = recurrent(rng, "GRU")
    session, given = plugged(proto), feed(rng, "GRU")
    binding = session.io_binding()
    binding.bind_cpu_input("X", given["X"])
    binding.bind_ortvalue_output(
        "Y", onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((7, 1, 3, 5), np.float32))
    )
    binding.bind_output("Y_h")
    with pytest.raises(Exception, match="invalid dimensions for output: Y"):
        session.run_with_iobinding(binding)
    agree(session.run(None, given), alone(proto).run(None, given))


ENDS = {
    "open sessions": "kept = [o.session(path) for _ in range(3)]\nkept[1].run(None, given)",
    "sessions in a circle that ran in another thread": (
        "a, b = [o.session(path, threads=2)], []\na += [b]\nb += [a]\n"
        "thread = threading.Thread(target=a[0].run, args=(None, given))\nthread.start()\nthread.join()"
    ),
    "a second library": (
        "o.session(path).run(None, given)\n"
        "onnxruntime.unregister_execution_provider_library('lnrnn')\n"
        "o.register()\no.register()\no.session(path).run(None, given)"
    ),
    "no library": (
        "kept = [o.session(path) for _ in range(2)]\n"
        "onnxruntime.unregister_execution_provider_library('lnrnn')\n"
        "y = kept[0].run(None, given)[0]\no.register()\n"
        "assert (o.session(path).run(None, given)[0] == y).all()\n"
        "del kept[0]\nkept[0].run(None, given)"
    ),
    "threads": (
        "session = o.session(path, threads=2)\n"
        "threads = [threading.Thread(target=session.run, args=(None, given)) for _ in range(4)]\n"
        "[t.start() for t in threads]\ndel session"
    ),
}


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_a_process_ends(rng, tmp_path, code):
    path = tmp_path / "model.onnx"
    path.write_bytes(recurrent(rng, "LSTM", H=200).SerializeToString())
    before = (
        "import threading\nimport numpy as np\nimport onnxruntime\nimport lnrnn.onnxruntime as o\n"
        f"path, given = {str(path)!r}, {{'X': np.ones((50, 3, 3), np.float32)}}\n"
    )
    done = subprocess.run([sys.executable, "-c", before + code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_arguments_of_session(rng):
    proto = recurrent(rng, "GRU").SerializeToString()
    chosen = options()
    chosen.add_provider_for_devices(onnxruntime.get_ep_devices()[:1], {})
    with pytest.raises(ValueError, match="sess_options must be options without providers"):
        lnrnn.onnxruntime.session(proto, sess_options=chosen)
    names = [lnrnn.onnxruntime.ep_name(), "CPUExecutionProvider"]
    session = lnrnn.onnxruntime.session(proto, providers=names[1:])
    assert session.get_providers() == names and names[0] == "LnrnnExecutionProvider"
    chosen = options()
    chosen.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    lnrnn.onnxruntime.session(proto, sess_options=chosen)  # all nodes are the plug-in's
    assert isinstance(session, onnxruntime.InferenceSession)


def settings_of(chosen):
    return {name: getattr(chosen, name) for name in dir(chosen) if not callable(getattr(chosen, name))}


def test_options_of_a_session_do_not_change(rng, tmp_path):
    """Plain sessions with them, before and after, have no plug-in. Sessions with it have all settings."""
    proto, given, chosen = recurrent(rng, "LSTM", states=True), feed(rng, "LSTM", states=True), options()
    external = proto.graph.initializer[0]
    value = onnxruntime.OrtValue.ortvalue_from_numpy(numpy_helper.to_array(external))
    chosen.add_external_initializers([external.name], [value])
    onnx.external_data_helper.set_external_data(external, "none")
    external.ClearField("raw_data")
    chosen.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    chosen.intra_op_num_threads, chosen.logid, chosen.enable_profiling = 2, "mine", True
    chosen.profile_file_prefix = str(tmp_path / "profile")
    chosen.add_session_config_entry("session.intra_op.allow_spinning", "0")
    chosen.add_free_dimension_override_by_name("B", 3)
    before, proto = settings_of(chosen), proto.SerializeToString()
    plain = onnxruntime.InferenceSession(proto, chosen).run(None, given)
    for dtype in ("float32", "float32", "int8", "float32"):
        session = plugged(proto, sess_options=chosen, dtype=dtype)
        agree(session.run(None, given), plain, 0.05 if dtype == "int8" else NEAR)
        assert ran(session)[1] == set() and session.get_inputs()[0].shape == ["T", 3, 3]
        own = session.get_session_options()
        assert own.get_session_config_entry("session.intra_op.allow_spinning") == "0"
        assert settings_of(own) == before == settings_of(chosen) and not chosen.has_providers()
        after = onnxruntime.InferenceSession(proto, chosen)
        assert lnrnn.onnxruntime.ep_name() not in after.get_providers()


def test_a_session_with_other_nodes_logs_no_warning(rng, capfd):
    proto = recurrent(rng, "GRU")
    proto.graph.node.append(helper.make_node("Relu", ["X"], ["relu"]))
    proto.graph.output.append(helper.make_tensor_value_info("relu", FLOAT, None))
    for chosen in (None, onnxruntime.SessionOptions()):
        lnrnn.onnxruntime.session(proto.SerializeToString(), sess_options=chosen)
    assert capfd.readouterr() == ("", "")


def test_a_path_with_spaces_and_other_letters(rng, tmp_path):
    path = tmp_path / "my model \u00fc \u65e5.onnx"
    path.write_bytes(recurrent(rng, "GRU").SerializeToString())
    given = feed(rng, "GRU")
    for each in (path, str(path)):
        agree(lnrnn.onnxruntime.session(each).run(None, given), alone(path.read_bytes()).run(None, given))
