"""The importer and the plug-in take the expected parts of each graph in this folder, and no others."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

pytest.importorskip("onnx_ir")
pytest.importorskip("onnxruntime")

from graph_cases import FOLDER, read  # noqa: E402
from lnrnn.onnx import reading  # noqa: E402
from lnrnn.onnx.parts import parts_of  # noqa: E402
from lnrnn.onnx.proof import prove  # noqa: E402
from lnrnn.onnx.running.states import unknown_recurrences  # noqa: E402
from lnrnn.recognise.part import OneStep  # noqa: E402

CASES = [case for path in sorted(FOLDER.glob("*.txt")) if path.name != "cells.txt" for case in read(path)]
SIZES = {"T": 5, "B": 3, "H": 4}, {"T": 7, "B": 1, "H": 4}


def words(part, model):
    """Returns the kind of a part, and its differences from a plain network that starts from inputs.

    "wrong": the proof by running both notices other outputs, so that from_onnx refuses the part.
    """
    network = part.network
    if network is None:
        return f"{part.kind} without a network"
    norm = network.norm
    try:
        proof = "unproved" if prove(part, model) else ""
    except ValueError:
        proof = "wrong"
    more = {
        f"{network.num_layers} layers": network.num_layers > 1, "bidirectional": network.bidirectional,
        "hard sigmoids": getattr(network, "gate_activation", "sigmoid") != "sigmoid",
        "projection": getattr(network, "proj_size", 0) > 0,
        "reverse": network.reverse, "y flipped": part.flipped,
        " and ".join(axes := sorted({"BTI", "BTH"} & set(part.axes.values()))): axes,
        "one step": any(isinstance(text, OneStep) for text in part.warnings),
        "no y": part.kind.startswith(("Loop", "Scan")) and part.y is None,
        "mask": part.mask is not None, "lengths": part.lengths is not None,
        f"{len(part.paths)} times": len(part.paths) > 1,
        f"T={part.baked.get('T')}": "Loop" in part.kind and "T" in part.baked,
        f"B={part.baked.get('B')}": "B" in part.baked,
        f"norm {norm and norm.placement}": norm is not None, proof: proof,
    }  # fmt: skip
    more = ", ".join(text for text, holds in more.items() if holds)
    return f"{part.kind} ({more})" if more else part.kind


def importer(case, *_):
    """Returns the parts of a file, and their reasons and warnings."""
    try:
        model = reading.read(case.model())
        found = parts_of(model)
    except ValueError as error:
        return "error", str(error)
    text = " ".join(text for part in found for text in (part.reason, *part.warnings))
    text += " ".join(unknown_recurrences(model, found))
    return " + ".join(words(part, model) for part in found) or "nothing", text


def outcome(session, given):
    """Returns the outputs, or None for an error."""
    names = [each.name for each in session.get_outputs() if "seq" not in each.type]
    try:
        return session.run(names, given)
    except Exception:
        return None


def plugin(case, tmp_path, capfd):
    """Returns the number of nodes that the plug-in runs, some operators that the runtime runs, and the log.

    The outputs must be the runtime's.
    """
    from plugin_runs import agree, alone, draw_inputs, options, plugged, ran, version

    model, chosen = case.model(), options(severity=1)
    rng = np.random.default_rng(zlib.crc32(case.name.encode()))
    chosen.enable_profiling = True
    chosen.profile_file_prefix = str(tmp_path / "profile")
    capfd.readouterr()
    try:
        session = plugged(model, sess_options=chosen)
    except Exception as error:
        with pytest.raises(type(error)):
            alone(model)
        return "error", str(error)
    log, runtime = capfd.readouterr().err, alone(model)
    has_loop, has_run = "body = " in case.text, False
    for run in range(len(SIZES)):
        given = draw_inputs(runtime, rng, **SIZES[run])
        given |= {k: np.array(run == 0) for k, a in given.items() if a.dtype == bool and not a.ndim}
        ours, theirs = outcome(session, given), outcome(runtime, given)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            agree(ours, theirs)
            has_run = True
    ours, theirs = ran(session)
    if has_loop and version() < (1, 32):
        pytest.skip("earlier runtimes do not show a Loop and its body")
    if not has_run:
        return "error", ""
    taken = f"{len(ours)} node{'s' * (len(ours) > 1)}" if ours else "nothing"
    left = [line.partition("lnrnn leaves ")[2] for line in log.splitlines() if "lnrnn leaves " in line]
    more = {"Loop", "Scan"} if has_loop or not ours else {"Concat", "Gather", "Sigmoid"}
    return ", ".join([taken, *sorted(more & theirs)]), " ".join(left)


READERS = (importer, plugin)  # in the order of the columns


@pytest.mark.parametrize("reader, expected, case", [
    pytest.param(reader, expected, case, id=f"{reader.__name__}: {case.name}") for case in CASES
    for reader, expected in zip(READERS, case.expected * (3 - len(case.expected)), strict=True)
    if expected != "-"  # the runtime alone refuses the file, or computes something else each time
])  # fmt: skip
def test_a_reader_takes_of_a_graph_what_is_expected(reader, expected, case, tmp_path, capfd):
    taken, text = reader(case, tmp_path, capfd)
    expected, _, reason = expected.partition(": ")
    assert taken == expected, text
    assert reason in text
