"""Memory of the plug-in's nodes: runs after the first do not allocate, and equal weights are packed once."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import platform
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402

import lnrnn  # noqa: E402
import lnrnn.onnxruntime  # noqa: E402
import quantized_lstm  # noqa: E402
from compilers import native_compiler, preloading  # noqa: E402
from onnx_files import FLOAT, model, recurrent, weights  # noqa: E402
from plugin_runs import KINDS, agree, alone, called, draw_inputs, plugged  # noqa: E402

SOURCE = Path(__file__).with_name("allocations.c")
SIZES = [(9, 40), (1, 1), (20, 2), (9, 40), (3, 33), (1, 40)]  # (T, B)
DTYPES = "float32", "bfloat16", "int8"


def watching(path: str) -> ctypes.CDLL:
    counter = ctypes.CDLL(path)
    counter.requests_until_now.restype = counter.bytes_now.restype = ctypes.c_long
    lnrnn.onnxruntime.register()
    assert counter.watch() == 2
    return counter


def requests(path: str) -> dict[str, list[int]]:
    """Returns the requests for memory of each run, by network. Each network runs all sizes twice."""
    counter, rng, result = watching(path), np.random.default_rng(0), {}
    calls = others(rng)
    for (name, proto), dtype, threads in itertools.product((nodes(rng) | calls).items(), DTYPES, (1, 2)):
        if threads == 2 and name not in calls:
            continue
        session, counts = plugged(proto, dtype=dtype, threads=threads), []
        for T, B in SIZES * 2:
            given = draw_inputs(session, rng, T=T, B=B)
            given |= {key: rng.integers(0, T + 1, B, np.int32) for key in {"lens", "lengths"} & given.keys()}
            before = counter.requests_until_now()
            session.run(None, given)
            counts.append(counter.requests_until_now() - before)
        result[f"{name}, {dtype}, {threads} threads"] = counts
    return result


def nodes(rng: np.random.Generator) -> dict[str, onnx.ModelProto]:
    result = {}
    for kind, D, lengths, layout in itertools.product(KINDS, (1, 2), (False, True), (0, 1)):
        options = dict(D=D, lengths=lengths, states=True, layout=layout)
        proto = recurrent(rng, kind, opset=14, outputs=["Y", "Y_h"], **options)
        for value in proto.graph.input:
            if value.name in ("h0", "c0"):
                shape = ("B", D, 4) if layout else (D, "B", 4)
                value.CopyFrom(helper.make_tensor_value_info(value.name, FLOAT, shape))
        result[f"{kind}, {options}"] = proto
    return result


def bytes_after(path: str) -> dict[str, int]:
    """Returns the bytes that a session of each of these models leaves behind."""
    counter, rng, result = watching(path), np.random.default_rng(0), {}
    for name, proto in others(rng).items():
        before = counter.bytes_now()
        session = plugged(proto)
        session.run(None, draw_inputs(session, rng))
        del session
        result[name] = counter.bytes_now() - before
    return result


def lost_sessions(path: str) -> dict[str, list[object]]:
    """Returns the number of requests while a session opens, and the errors and leaks if one fails."""
    counter, rng, result = watching(path), np.random.default_rng(0), {}
    models = {"node": recurrent(rng, "GRU"), "constant state": constant_state()} | others(rng)
    models["left"] = recurrent(rng, "GRU", clip=9.0)
    del models["8 bits"]  # the runtime rounds it differently
    for name, proto in models.items():
        session, left, wrong = alone(proto), 0, []
        given = draw_inputs(session, rng, T=3, B=1)
        wanted, before = session.run(None, given), counter.bytes_now()
        for at in itertools.takewhile(lambda _: left <= 0, itertools.count(1)):  # noqa: B023
            counter.fail_after(at)
            try:
                session = plugged(proto)
            except Exception as error:
                wrong += [] if "no memory for a " in str(error) else [str(error)]
            else:
                left = counter.fail_after(0)
                agree(session.run(None, given), wanted)
            session = None
            wrong += [counter.bytes_now() - before] if counter.bytes_now() != before else []
        result[name] = [at, wrong]
    return result


def lost_runs(path: str) -> dict[str, list[object]]:
    """Returns the number of requests of a session's first run, and the errors and leaks if one fails."""
    counter, rng, result = watching(path), np.random.default_rng(0), {}
    for name, proto in others(rng).items():
        given = draw_inputs(alone(proto), rng)
        wanted = plugged(proto).run(None, given)
        left, wrong, before = 0, [], counter.bytes_now()
        for at in itertools.takewhile(lambda _: left <= 0, itertools.count(1)):  # noqa: B023
            session = plugged(proto)
            counter.fail_after(at)
            try:
                session.run(None, given)
            except Exception as error:
                wrong += [] if "memory" in str(error) else [str(error)]
            left = counter.fail_after(0)
            agree(session.run(None, given), wanted, 0)
            del session
            wrong += [counter.bytes_now() - before] if counter.bytes_now() != before else []
        result[name] = [at, wrong]
    return result


def others(rng: np.random.Generator) -> dict[str, onnx.ModelProto]:
    made = {"8 bits": quantized_lstm.proto(quantized_lstm.quantized(rng))}
    for state in made["8 bits"].graph.input[1:]:
        state.type.tensor_type.shape.dim[1].dim_param = "B"
    for name, rnn, form in (
        ("LSTM", lnrnn.LSTM(8, 40, seed=0, num_layers=2, bidirectional=True), {"lengths": True}),
        ("GRU", lnrnn.GRU(8, 40, seed=0), {}), ("step", lnrnn.LiGRU(8, 40, seed=0), {"step": True}),
        ("SLSTM", lnrnn.SLSTM(8, 40, seed=0), {}),
    ):  # fmt: skip
        made[name] = called(rnn, **form)
    return made


def constant_state() -> onnx.ModelProto:
    proto = called(lnrnn.GRU(8, 40, seed=0))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((1, 1, 40), np.float32), "h0"))
    proto.graph.input.remove(proto.graph.input[1])
    return proto


def two_calls(equal: bool, **more: int) -> bytes:
    """Two calls with the weights of an LSTM of 128 units, under names of their own."""
    proto = called(lnrnn.LSTM(128, 128, norm="layer", seed=0))
    graph, first = proto.graph, next(node for node in proto.graph.node if node.domain == "lnrnn")
    second = onnx.NodeProto()
    second.CopyFrom(first)
    second.name, second.output[:] = "second", ["y2", "h2", "c2"]
    for k, name in enumerate(second.input[3:], 3):
        array = numpy_helper.to_array(next(a for a in graph.initializer if a.name == name))
        second.input[k] = f"{name}_2"
        graph.initializer.append(numpy_helper.from_array(array if equal else array * 2, second.input[k]))
    for attribute in second.attribute:
        if attribute.name in more:
            attribute.i = more[attribute.name]
    graph.node.append(second)
    graph.output.append(helper.make_tensor_value_info("y2", FLOAT, None))
    return bytes(proto.SerializeToString())


def two_nodes(rng: np.random.Generator, equal: bool, within_if: bool, **more: str) -> bytes:
    """Two LSTMs of 128 units whose weights, 0.5 MB, have names of their own."""
    first = weights(rng, "LSTM", 128, 128)
    second = first if equal else weights(rng, "LSTM", 128, 128)
    own = {f"{name}{k}": a for k, each in enumerate((first, second)) for name, a in each.items()}
    nodes = [
        helper.make_node("LSTM", ["X", f"W{k}", f"R{k}", f"B{k}"], [f"Y{k}"], f"n{k}", hidden_size=128, **now)
        for k, now in enumerate((more, {}))
    ]
    given, outputs = {"X": (FLOAT, ("T", "B", 128))}, ["Y0", "Y1"]
    if within_if:
        branches = [
            helper.make_graph([node], node.name, [], [helper.make_tensor_value_info(y, FLOAT, None)])
            for node, y in zip(nodes, outputs, strict=True)
        ]
        nodes = [helper.make_node("If", ["flag"], ["Y"], then_branch=branches[0], else_branch=branches[1])]
        given, outputs = given | {"flag": (9, ())}, ["Y"]
    return bytes(model(nodes, given, outputs, own).SerializeToString())


def megabytes(path: str) -> list[list[float]]:
    """Returns the memory of the plug-in for pairs of nodes: with one network, with two, and afterwards."""
    counter, rng, result = watching(path), np.random.default_rng(0), []
    nodes, kinds = partial(two_nodes, rng), ({}, {}, {"direction": "reverse"})
    for make, changes in (
        (partial(nodes, within_if=False), kinds), (partial(nodes, within_if=True), kinds),
        (two_calls, ({}, {}, {"reverse": 1})),
    ):  # fmt: skip
        bytes_held = []
        for equal, more in zip((True, False, True), changes, strict=True):
            proto = make(equal=equal, **more)
            before = counter.bytes_now()
            session = plugged(proto)
            bytes_held.append((counter.bytes_now() - before) / 2**20)
            del session
            bytes_held.append((counter.bytes_now() - before) / 2**20)
        result.append(bytes_held)
    return result


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """Returns a function that calls a function of this file in a process that counts requests for memory."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("counts the requests to the C library of GNU/Linux")
    library = tmp_path_factory.mktemp("counter") / "allocations.so"
    command = [*native_compiler(), "-O1", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-shared", "-fPIC"]
    subprocess.run([*command, str(SOURCE), "-o", str(library)], check=True)
    paths = os.pathsep.join([str(Path(__file__).parents[1] / "support"), str(Path(__file__).parent)])
    environment = os.environ | preloading(library) | {"PYTHONPATH": paths}

    def call(function):
        name = function.__name__
        # The plan of a shape depends on caches. On this machine the first run needs the most memory.
        code = "import json, helpers, test_plugin_memory as t\nwith helpers.on_machine('fast L3'): "
        code += f"print(json.dumps(t.{name}({str(library)!r})))"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return call


def test_runs_after_the_first_do_not_allocate(counted):
    """The first run is the largest. A later run of a new shape must not allocate either."""
    for name, (first, *later) in counted(requests).items():
        assert first > 0 and not any(later), (name, first, later)


def test_sessions_free_everything(counted):
    assert set(counted(bytes_after).values()) == {0}


def test_nodes_without_memory_are_left_to_the_runtime(counted):
    """Each request while a session opens fails once. Only the provider itself needs its memory."""
    for name, (requests, wrong) in counted(lost_sessions).items():
        assert requests > 4 and not wrong, name


def test_runs_without_memory_are_errors(counted):
    for name, (requests, wrong) in counted(lost_runs).items():
        assert requests > 3 and not wrong, name


def test_equal_weights_are_packed_once(counted):
    """A network of 128 units takes 0.5 MB. No copies of weights remain, and the session frees everything."""
    for one, after_one, two, after_two, reverse, after_reverse in counted(megabytes):
        assert 0.5 < one < 0.6 and 1 < two < 1.2 and 1 < reverse < 1.2
        assert not any((after_one, after_two, after_reverse))
