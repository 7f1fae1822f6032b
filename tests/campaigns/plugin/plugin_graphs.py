"""Random ONNX models of recurrent nodes: several in turn, and within If, Loop and Scan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_files import FLOAT, INT32, model, weights
from plugin_runs import KINDS

Array = np.ndarray
ACTIVATIONS: dict[str, list[dict[str, Any]]] = {
    "RNN": [{"activations": [name]} for name in ("Tanh", "Relu", "Sigmoid", "Softsign")],
    "LSTM": [
        {"activations": ["HardSigmoid", "Tanh", "Tanh"], "activation_alpha": [0.3], "activation_beta": [0.5]},
        {"clip": 2.0},
        {"input_forget": 1},
    ],
    "GRU": [
        {"activations": ["HardSigmoid", "Tanh"], "activation_alpha": [0.15], "activation_beta": [0.5]},
        {"activations": ["Sigmoid", "Softsign"]},
    ],
}  # several of these are left to the runtime


@dataclass
class Graph:
    """A model while it is drawn. own: weights and constants. inputs: {name: (type, shape with T and B)}."""

    rng: np.random.Generator
    zero_lengths: bool
    own: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, tuple[int, tuple]] = field(default_factory=lambda: {"flag": (TensorProto.BOOL, ())})
    sets: dict[tuple, str] = field(default_factory=dict)
    count: int = 0

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}_{self.count}"

    def some(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def weights(self, kind: str, width: int, H: int, D: int, bias: bool) -> list[str]:
        """Returns the names of W, R and B, new ones or those of an earlier node."""
        key = kind, width, H, D, bias
        if key not in self.sets or self.rng.random() < 0.6:
            prefix = self.sets[key] = self.name("weights") + "_"
            made = weights(self.rng, kind, width, H, D, bias, prefix)
            self.own |= {name: np.float32(a * 1.5 / np.sqrt(H)) for name, a in made.items()}
        return [self.sets[key] + name for name in ("W", "R", "B")[: 2 + bias]]

    def state(self, D: int, H: int) -> str:
        name = self.name("state")
        self.inputs[name] = FLOAT, (D, "B", H)
        return name

    def lengths(self) -> str:
        self.inputs["lens"] = INT32, ("B",)
        return "lens"

    def node(self, x: str, width: int, h: str = "", D: int = 0, kind: str = "", H: int = 0) -> tuple:
        """Returns a node that reads x, the names of its outputs, its number of directions and of units."""
        rng, kind, D, H = self.rng, kind or self.some(*KINDS), D or self.some(1, 1, 2), H or self.size()
        more: dict[str, Any] = {"hidden_size": H}
        if D == 2 or rng.random() < 0.3:
            more["direction"] = "bidirectional" if D == 2 else self.some("forward", "reverse")
        if rng.random() < 0.3:
            for name, value in self.some(*ACTIVATIONS[kind]).items():
                more[name] = value * D if isinstance(value, list) else value
        if kind == "GRU" and rng.random() < 0.5:
            more["linear_before_reset"] = 1
        bias, states = bool(rng.random() < 0.8), ["", ""]
        if kind == "RNN" and not self.zero_lengths:
            lengths = ""
        else:
            lengths = self.lengths() if rng.random() < 0.4 else ""
        if h or rng.random() < 0.5:
            states[0] = h or self.state(D, H)
        if kind == "LSTM" and rng.random() < 0.5:
            states[1] = self.state(D, H)
        names = self.weights(kind, width, H, D, bias)
        given = [x, *names, *[""] * (not bias), lengths, *states[: 1 + (kind == "LSTM")]]
        while given[-1] == "":
            given.pop()
        outputs = [self.name(end) for end in ("Y", "Y_h", "Y_c")[: 2 + (kind == "LSTM")]]
        return helper.make_node(kind, given, outputs, self.name("node"), **more), outputs, D, H

    def size(self) -> int:
        return int(self.some(1, 2, 3, 5, 8, 16, 17, 33))

    def chain(self, x: str, width: int) -> tuple[list, list[str]]:
        """Returns the nodes of one to three layers that read x (T, B, width), and their outputs."""
        nodes, every = [], []
        for _ in range(self.some(1, 1, 2, 3)):
            node, outputs, D, H = self.node(x, width)
            every += outputs
            swapped, x, width = self.name("swapped"), self.name("x"), D * H
            shape = self.name("shape")
            self.own[shape] = np.array([0, 0, width])
            nodes += [
                node,
                helper.make_node("Transpose", [outputs[0]], [swapped], perm=[0, 2, 1, 3]),
                helper.make_node("Reshape", [swapped, shape], [x]),
            ]
        return nodes, [*every, x]

    def branch(self, x: str, width: int) -> onnx.GraphProto:
        """Returns a branch of an If, whose outputs are the last two of a chain."""
        nodes, outputs = self.chain(x, width)
        infos = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs[-2:]]
        return helper.make_graph(nodes, self.name("branch"), [], infos)

    def conditional(self, x: str, width: int) -> tuple[list, list[str]]:
        outputs = [self.name("y"), self.name("y")]
        branches = {"then_branch": self.branch(x, width), "else_branch": self.branch(x, width)}
        return [helper.make_node("If", ["flag"], outputs, **branches)], outputs

    def loop(self, x: str, width: int) -> tuple[list, list[str]]:
        """A Loop of up to three iterations. Each begins with the h of the one before."""
        kind, H = self.some(*KINDS), self.size()
        node, outputs, D, H = self.node(x, width, "h_in", self.some(1, 2), kind, H)
        infos = [helper.make_tensor_value_info(*info) for info in (
            ("i", TensorProto.INT64, ()), ("on_in", TensorProto.BOOL, ()), ("h_in", FLOAT, (D, None, H)),
        )]  # fmt: skip
        results = [("on", TensorProto.BOOL, ()), (outputs[1], FLOAT, None), (outputs[0], FLOAT, None)]
        body = helper.make_graph(
            [helper.make_node("Identity", ["on_in"], ["on"]), node], self.name("body"), infos,
            [helper.make_tensor_value_info(*info) for info in results],
        )  # fmt: skip
        trips, yes, ends = self.name("trips"), self.name("yes"), [self.name("h"), self.name("ys")]
        self.own |= {trips: np.array(self.rng.integers(1, 4)), yes: np.array(True)}
        return [helper.make_node("Loop", [trips, yes, self.state(D, H)], ends, body=body)], ends

    def scan(self, x: str, width: int) -> tuple[list, list[str]]:
        """A Scan over the time axis of x, whose body computes one step."""
        kind, H, axes, row = self.some(*KINDS), self.size(), self.name("axes"), self.name("row")
        node, outputs, _, H = self.node(row, width, "h_in", 1, kind, H)
        if "lens" in node.input:
            node.input[4] = ""
        self.own[axes] = np.array([0])
        body = helper.make_graph(
            [helper.make_node("Unsqueeze", ["x_t", axes], [row]), node], self.name("body"),
            [helper.make_tensor_value_info("h_in", FLOAT, (1, None, H)),
             helper.make_tensor_value_info("x_t", FLOAT, (None, width))],
            [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs[1::-1]],
        )  # fmt: skip
        ends = [self.name("h"), self.name("ys")]
        return [helper.make_node("Scan", [self.state(1, H), x], ends, body=body, num_scan_inputs=1)], ends


def drawn(seed: int, zero_lengths: bool) -> tuple[onnx.ModelProto, list[dict[str, Array]]]:
    """Returns a model, and the inputs of two calls. zero_lengths: an RNN may have sequences without steps."""
    rng = np.random.default_rng(seed)
    graph, width = Graph(rng, zero_lengths), int(rng.integers(1, 12))
    nodes, outputs = [], []
    for _ in range(graph.some(1, 1, 2)):
        draw = graph.some(graph.chain, graph.chain, graph.conditional, graph.loop, graph.scan)
        more, ends = draw("X", width)
        nodes += more
        outputs += ends
    inputs = {"X": (FLOAT, ("T", "B", width))} | graph.inputs
    calls = []
    for _ in range(2):
        sizes = {"T": int(rng.integers(1, 10)), "B": int(rng.integers(1, 6))}
        given = {}
        for name, (dtype, shape) in inputs.items():
            shape = tuple(sizes.get(n, n) for n in shape)
            if dtype == FLOAT:
                given[name] = rng.standard_normal(shape).astype(np.float32)
            elif dtype == INT32:
                given[name] = rng.integers(0, sizes["T"] + 1, shape).astype(np.int32)
            else:
                given[name] = np.array(rng.random() < 0.5)
        calls.append(given)
    return model(nodes, inputs, outputs, graph.own), calls
