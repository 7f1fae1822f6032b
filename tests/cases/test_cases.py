"""The importer takes the expected parts of each graph in this folder, and no others."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx_ir")
pytest.importorskip("onnxruntime")

from graph_cases import FOLDER, read  # noqa: E402
from lnrnn import RMSNormSpec  # noqa: E402
from lnrnn.onnx import reading  # noqa: E402
from lnrnn.onnx.parts import parts_of  # noqa: E402
from lnrnn.onnx.proof import prove  # noqa: E402
from lnrnn.onnx.running.states import unknown_recurrences  # noqa: E402
from lnrnn.recognise.part import OneStep  # noqa: E402

CASES = [case for path in sorted(FOLDER.glob("*.txt")) if path.name != "cells.txt" for case in read(path)]


def words(part, model):
    """Returns the kind of a part, and its differences from a plain network that starts from inputs.

    "wrong": the proof by running both notices other outputs, so that from_onnx refuses the part.
    """
    network = part.network
    if network is None:
        return f"{part.kind} without a network"
    norm, candidate = network.norm, getattr(network, "nonlinearity", "tanh")
    try:
        proof = "unproved" if prove(part, model) else ""
    except ValueError:
        proof = "wrong"
    more = {
        f"{network.num_layers} layers": network.num_layers > 1, "bidirectional": network.bidirectional,
        "hard sigmoids": getattr(network, "gate_activation", "sigmoid") != "sigmoid",
        "peepholes": getattr(network, "peepholes", False),
        f"candidate {candidate}": type(network).__name__ == "GRU" and candidate != "tanh",
        "projection": getattr(network, "proj_size", 0) > 0,
        "reverse": network.reverse, "y flipped": part.flipped,
        " and ".join(axes := sorted({"BTI", "BTH"} & set(part.axes.values()))): axes,
        "one step": any(isinstance(text, OneStep) for text in part.warnings),
        "no y": part.kind.startswith(("Loop", "Scan")) and part.y is None,
        "mask": part.mask is not None, "lengths": part.lengths is not None,
        f"{len(part.paths)} times": len(part.paths) > 1,
        f"T={part.baked.get('T')}": "Loop" in part.kind and "T" in part.baked,
        f"B={part.baked.get('B')}": "B" in part.baked,
        f"{'RMS ' * isinstance(norm, RMSNormSpec)}norm {norm and norm.placement}": norm is not None,
        proof: proof,
    }  # fmt: skip
    more = ", ".join(text for text, holds in more.items() if holds)
    return f"{part.kind} ({more})" if more else part.kind


def importer(case):
    """Returns the parts of a file, and their reasons and warnings."""
    try:
        model = reading.read(case.model())
        found = parts_of(model)
    except ValueError as error:
        return "error", str(error)
    text = " ".join(text for part in found for text in (part.reason, *part.warnings))
    text += " ".join(unknown_recurrences(model, found))
    return " + ".join(words(part, model) for part in found) or "nothing", text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_importer_takes_of_a_graph_what_is_expected(case):
    taken, text = importer(case)
    expected, _, reason = case.expected.partition(": ")
    assert taken == expected, text
    assert reason in text


ORDERED = [c for c in CASES if "steps of" in c.expected and not {":", "+"} & {*c.expected}]


@pytest.mark.parametrize("case", ORDERED, ids=lambda case: case.name)
def test_the_order_of_the_nodes_in_a_file_means_nothing(case, rng):
    model = case.model()
    left, known = list(model.graph.node), {v.name for v in (*model.graph.input, *model.graph.initializer)}
    del model.graph.node[:]
    while left:
        ready = [node for node in left if known.issuperset(filter(None, node.input))]
        node = ready[rng.integers(len(ready))]
        model.graph.node.append(node)
        known.update(node.output)
        left.remove(node)
    found = reading.read(model)
    assert [words(part, found) for part in parts_of(found)] == [case.expected]
