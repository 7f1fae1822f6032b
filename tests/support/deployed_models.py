"""Recurrent ONNX models with the sizes and the structure of deployed files, and streams of steps."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnx_cells import exported
from onnx_files import FLOAT, GATES, INT32, model
from onnx_packages import path_of


@dataclass
class Deployed:
    """A model, and a stream of its inputs.

    steps: the inputs of each step, without states. states: maps inputs to the outputs with their next values.
    first: the states before the first step. nodes: how many nodes of the converted model the plug-in takes.
    limit: of differences between runtimes.
    """

    model: Any
    steps: list[dict[str, np.ndarray]]
    states: dict[str, str] = field(default_factory=dict)
    first: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: int = 1
    limit: float = 1e-5

    def run(self, session):
        """Returns the outputs of all steps, states included, as a list of arrays."""
        names = [each.name for each in session.get_outputs() if "float" in each.type]
        states, result = self.first, []
        for step in self.steps:
            outputs = session.run(names, {**step, **states})
            states = {name: outputs[names.index(output)] for name, output in self.states.items()}
            result += outputs
        return result


class Graph:
    """Nodes and weights of a model."""

    def __init__(self, rng):
        self.rng, self.nodes, self.weights = rng, [], {}

    def add(self, operator, *inputs, count=1, **attributes):
        """Adds a node. Returns the name of its output, or a list of `count` names."""
        names = [f"{operator}_{len(self.nodes)}_{k}" for k in range(count)]
        self.nodes.append(helper.make_node(operator, inputs, names, f"node_{len(self.nodes)}", **attributes))
        return names[0] if count == 1 else names

    def constant(self, values):
        name = f"constant_{len(self.weights)}"
        self.weights[name] = np.asarray(values)
        return name

    def weight(self, *shape):
        """Adds random weights, which are small enough for the number of inputs, the last axis."""
        limit = shape[-1] ** -0.5
        return self.constant(self.rng.uniform(-limit, limit, shape).astype(np.float32))

    def linear(self, x, inputs, outputs):
        return self.add("MatMul", x, self.add("Transpose", self.weight(outputs, inputs)))

    def recurrent(self, kind, x, inputs, units, *states, lengths="", **attributes):
        """Adds a node RNN, LSTM or GRU. Returns the names of its outputs."""
        D, G = 2 if attributes.get("direction") == "bidirectional" else 1, GATES[kind]
        arrays = [self.weight(D, G * units, inputs), self.weight(D, G * units, units)]
        arrays.append(self.weight(D, 2 * G * units))
        count = 2 + (kind == "LSTM")
        return self.add(kind, x, *arrays, lengths, *states, count=count, hidden_size=units, **attributes)

    def model(self, inputs, **outputs):
        """Returns the model. inputs: {name: shape}. outputs: names, and the values of the graph."""
        given = {name: (INT32 if name == "lengths" else FLOAT, shape) for name, shape in inputs.items()}
        nodes = [helper.make_node("Identity", [value], [name]) for name, value in outputs.items()]
        return model([*self.nodes, *nodes], given, outputs, self.weights)


def normal(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


def deployed(rng, proto, steps, **more):
    """Returns a Deployed. Its states begin with h or c, are 0 first, and have outputs such as h_out."""
    shapes = {
        each.name: [size.dim_value or 1 for size in each.type.tensor_type.shape.dim]
        for each in proto.graph.input
    }
    first = {name: np.zeros(shape, np.float32) for name, shape in shapes.items() if name[0] in "hc"}
    return Deployed(proto, steps, {name: f"{name}_out" for name in first}, first, **more)


def denoiser(rng):
    """Returns a model like GTCRN: 14 GRUs of 4 to 16 units, on 33 frequencies with 16 channels.

    Six GRUs weight the channels. Four run along the frequencies, in both directions, and start at 0. Four
    run along time, with a state for each frequency.
    """
    graph, states = Graph(rng), {}
    seconds, rows = graph.constant(np.array([1])), graph.constant(np.array([1, 33, 16]))

    def along_time(x, sequences, units):
        name = f"h{len(states)}"
        states[name] = (1, sequences, units)
        y, h = graph.recurrent("GRU", x, units, units, name, linear_before_reset=1)
        states[name + "_out"] = h
        return graph.add("Squeeze", y, seconds)

    x = "x"
    for _ in range(6):
        energy = graph.add("ReduceMean", x, axes=[1])
        x = graph.add("Mul", x, graph.add("Sigmoid", along_time(energy, 1, 16)))
    for _ in range(2):
        halves = graph.add("Split", graph.add("Transpose", x, perm=[1, 0, 2]), count=2, axis=2)
        options = {"linear_before_reset": 1, "direction": "bidirectional"}
        both = [graph.recurrent("GRU", half, 8, 4, **options)[0] for half in halves]
        both = graph.add("Transpose", graph.add("Concat", *both, axis=3), perm=[2, 0, 1, 3])
        x = graph.add("Add", x, graph.add("Reshape", both, rows))
        halves = [along_time(half, 33, 8) for half in graph.add("Split", x, count=2, axis=2)]
        x = graph.add("Add", x, graph.add("Concat", *halves, axis=2))
    inputs = {name: shape for name, shape in states.items() if not name.endswith("_out")}
    outputs = {name: value for name, value in states.items() if name.endswith("_out")}
    proto = graph.model({"x": (1, 33, 16), **inputs}, y=x, **outputs)
    return deployed(rng, proto, [{"x": normal(rng, 1, 33, 16)} for _ in range(20)], nodes=14)


def predictor(rng, units=640):
    """Returns a transducer's predictor: an embedding of tokens, and two LSTMs with slices of two states."""
    graph, kept = Graph(rng), []
    axis, bounds = graph.constant(np.array([0])), [graph.constant(np.array([k])) for k in range(3)]
    x = graph.add("Gather", graph.constant(normal(rng, 30, units)), "lengths")  # int32 tokens (1, B)
    for k in range(2):
        h, c = (graph.add("Slice", name, bounds[k], bounds[k + 1], axis) for name in ("h", "c"))
        y, *states = graph.recurrent("LSTM", x, units, units, h, c)
        kept.append(states)
        x = graph.add("Squeeze", y, bounds[1])
    h, c = (graph.add("Concat", *states, axis=0) for states in zip(*kept, strict=True))
    shapes = {"lengths": (1, "B"), "h": (2, "B", units), "c": (2, "B", units)}
    proto = graph.model(shapes, y=graph.linear(x, units, 40), h_out=h, c_out=c)
    steps = [{"lengths": rng.integers(0, 30, (1, 1)).astype(np.int32)} for _ in range(30)]
    return deployed(rng, proto, steps, nodes=2)


def text_encoder(rng):
    """Returns a bidirectional LSTM on padded texts, with lengths. It has no state between calls."""
    graph = Graph(rng)
    x = graph.add("Transpose", "x", perm=[1, 0, 2])
    y, h, _ = graph.recurrent("LSTM", x, 64, 128, lengths="lengths", direction="bidirectional")
    y = graph.add("Transpose", y, perm=[2, 0, 1, 3])
    y = graph.add("Reshape", y, graph.constant(np.array([0, 0, 256])))
    proto = graph.model({"x": ("B", "T", 64), "lengths": ("B",)}, y=graph.linear(y, 256, 20), last=h)
    steps = []
    for T, B in ((12, 4), (1, 1), (40, 3), (7, 8)):
        lengths = rng.integers(0, T + 1, B).astype(np.int32)
        lengths[0] = T
        steps.append({"x": normal(rng, B, T, 64), "lengths": lengths})
    return Deployed(proto, steps)


def policy(rng):
    """Returns a robot's policy: an LSTM of 256 units with T = 1 and B = 1, and three layers with ELU."""
    graph = Graph(rng)
    x = graph.add("Unsqueeze", "x", graph.constant(np.array([0])))
    y, h, c = graph.recurrent("LSTM", x, 48, 256, "h", "c")
    y = graph.add("Squeeze", y, graph.constant(np.array([0, 1])))
    for inputs, outputs in ((256, 256), (256, 128)):
        y = graph.add("Elu", graph.linear(y, inputs, outputs))
    states = {name: (1, 1, 256) for name in ("h", "c")}
    proto = graph.model({"x": (1, 48), **states}, y=graph.linear(y, 128, 12), h_out=h, c_out=c)
    return deployed(rng, proto, [{"x": normal(rng, 1, 48)} for _ in range(50)])


@cache
def layer_norm_lstm_file(scripted):
    """Returns torch's export of an LSTM with layer norm. scripted: a Loop, else six steps in turn."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from torch_cells import LayerNormLSTMCell, Sequence, shaken

    module = shaken(Sequence(LayerNormLSTMCell(10, 32)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.script(module) if scripted else module
    given = torch.randn(6, 2, 10), torch.randn(2, 32), torch.randn(2, 32)
    axes = {"x": {0: "T", 1: "B"}, "h": {0: "B"}, "c": {0: "B"}} if scripted else None
    names = {"input_names": ["x", "h", "c"], "output_names": ["y", "h_out", "c_out"]}
    return exported(module, given, False, **names, dynamic_axes=axes).SerializeToString()


def layer_norm_lstm(scripted):
    """Returns a function for this model, in pieces of a sequence."""

    def load(rng):
        sizes = [(6, 1), (1, 1), (20, 1)] if scripted else [(6, 2)] * 3
        steps = [{"x": normal(rng, *size, 10)} for size in sizes]
        proto = onnx.load_from_string(layer_norm_lstm_file(scripted))
        return deployed(rng, proto, steps)

    return load


def silero(name, rate=16000):
    """Returns a function for a file of silero-vad. Its audio is noise of changing loudness."""

    def load(rng):
        path = str(path_of(f"silero_vad/data/{name}.onnx"))
        loud = np.float32(10) ** rng.uniform(-3, 0, (25, 1)).astype(np.float32)
        audio = normal(rng, 25, 576 * rate // 16000) * loud
        if name.endswith("sequence"):
            zeros = {each: np.zeros((1, 1, 128), np.float32) for each in ("h", "c")}
            return Deployed(path, [{"input": x} for x in np.split(audio, 5)], {"h": "hn", "c": "cn"}, zeros)
        has_rate = name in ("silero_vad", "silero_vad_16k_op15", "silero_vad_op18_ifless")
        own = {"sr": np.array(rate)} if has_rate else {}
        return Deployed(
            path, [{"input": x[None], **own} for x in audio], {"state": "stateN"},
            {"state": np.zeros((2, 1, 128), np.float32)},
        )  # fmt: skip

    return load


def tashkeel(rng):
    """Returns piper-tts's model for Arabic: nine GRUs in both directions, with lengths."""
    steps = []
    for lengths in ([9], [20, 11, 3]):
        letters, hints = (rng.integers(1, most, (len(lengths), lengths[0])) for most in (40, 10))
        padded = np.arange(lengths[0]) >= np.array(lengths)[:, None]
        letters[padded] = hints[padded] = 0
        steps.append({"char_inputs": letters, "diac_inputs": hints, "input_lengths": np.array(lengths)})
    return Deployed(str(path_of("piper/tashkeel/model.onnx")), steps, nodes=9)


def nakdimon(rng):
    """Returns piper-tts's model for Hebrew: four Loops, whose masks may have gaps, so that they stay."""
    letters = rng.integers(1, 30, (2, 14)).astype(np.float32)
    return Deployed(str(path_of("piper/hebrew/nakdimon.onnx")), [{"input_1": letters}], nodes=2)


def ddddocr(rng, name="common", limit=1e-5):
    """Returns ddddocr's reader of captchas: convolutions, and an LSTM of 512 units in both directions."""
    steps = [{"input1": rng.uniform(0, 1, (1, 1, 64, w)).astype(np.float32)} for w in (64, 160)]
    return Deployed(str(path_of(f"ddddocr/{name}.onnx")), steps, limit=limit)


def ddddocr_8_bits(rng):
    """Returns a reader with DynamicQuantizeLSTM, whose inputs lnrnn and the runtime round differently."""
    return ddddocr(rng, "common_old", 2e-2)


BUILT = {"denoiser": denoiser, "predictor": predictor, "text_encoder": text_encoder, "policy": policy}
FILES = {
    "silero_vad": silero("silero_vad"), "silero_vad_8k": silero("silero_vad", 8000),
    **{
        f"silero_vad_{name}": silero(f"silero_vad_{name}")
        for name in ("16k_op15", "half", "openvino_16k", "16k_sequence", "op18_ifless")
    },
    "tashkeel": tashkeel, "nakdimon": nakdimon, "ddddocr": ddddocr, "ddddocr_8_bits": ddddocr_8_bits,
}  # fmt: skip
EXPORTED = {"scripted_lstm": layer_norm_lstm(True), "unrolled_lstm": layer_norm_lstm(False)}
MODELS = BUILT | EXPORTED | FILES
