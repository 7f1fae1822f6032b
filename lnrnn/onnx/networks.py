"""The graph of a whole network: its layers and directions, states, lengths and resets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..rnn.snapshot import Snapshot
from . import scan_bodies
from .builder import Graph, Shape, Value
from .stored_arrays import layer_arrays, node_arrays

ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid", "identity": "Affine"}


@dataclass(frozen=True)
class Form:
    """The arguments of to_onnx that decide the inputs of a file."""

    step: bool
    states: bool
    lengths: bool
    resets: bool


def is_plain(snapshot: Snapshot, form: Form) -> bool:
    """Whether a node RNN, LSTM or GRU of ONNX computes each layer."""
    made = snapshot.architecture
    special = made.norm is not None or made.proj_size or snapshot.zoneout or (form.resets and not form.step)
    return made.cell.name in ("RNN", "LSTM", "GRU") and not special


def network_graph(snapshot: Snapshot, form: Form) -> Graph:
    """Returns the graph of a network."""
    return _Network(snapshot, form).graph


class _Network:
    """Shapes: x (T, B, *), or (B, *) for one step; a state of all layers (layers * directions, B, *)."""

    def __init__(self, snapshot: Snapshot, form: Form) -> None:
        self.snapshot, self.made, self.form = snapshot, snapshot.architecture, form
        self.graph = g = Graph(self.made.cell.name)
        plain, made = is_plain(snapshot, form), self.made
        given = self._sequences("x", "float", made.input_size)
        lines = made.num_layers * made.directions
        self.starts: list[Value | None] = [None for _ in made.state_widths]
        if form.states:
            pairs = zip(made.cell.state_names, made.state_widths, strict=True)
            self.starts = [g.input(f"{name}0", "float", [lines, "B", width]) for name, width in pairs]
        self.step = g.input("step0", "int64", ["B"]) if form.step and made.sides else None
        lengths = g.input("lengths", "int32", ["B"]) if form.lengths else None
        resets = self._sequences("resets", "bool") if form.resets else None

        self.ends: list[list[Value]] = [[] for _ in made.state_widths]
        x = self._time_first(given, 3)
        if form.step:
            self._reset_starts(resets)
            resets = None
        if plain:
            x = g.unsqueeze(x, 0) if form.step else x
            for layer in range(made.num_layers):
                x = self._node(x, lengths, layer)
            x = g.squeeze(x, 0) if form.step else x
        elif form.step:
            for k in range(made.num_layers):
                x = self._step(x, k)
        else:
            self._masks(x, lengths, resets)
            for layer in range(made.num_layers):
                x = self._scans(x, layer)
        self._outputs(self._time_first(x, 3), plain)

    # --- inputs and outputs -------------------------------------------------------------------------------

    def _axes(self, *more: int) -> Shape:
        if self.form.step:
            return ["B", *more]
        return ["B", "T", *more] if self.made.batch_first else ["T", "B", *more]

    def _sequences(self, name: str, dtype: str, *more: int) -> Value:
        return self.graph.input(name, dtype, self._axes(*more))

    def _time_first(self, a: Value, axes: int) -> Value:
        """Exchanges the axes of time and batch between the caller's order and (T, B, *)."""
        if self.form.step or not self.made.batch_first:
            return a
        return self.graph.node("Transpose", a, perm=[1, 0, 2][:axes])

    def _outputs(self, y: Value, plain: bool) -> None:
        g, made = self.graph, self.made
        g.output(y, "float", self._axes(made.directions * made.h_width), "y")
        lines = made.num_layers * made.directions
        for name, width, parts in zip(made.cell.state_names, made.state_widths, self.ends, strict=True):
            end = g.concat(parts if plain else [g.unsqueeze(part, 0) for part in parts], 0)
            g.output(end, "float", [lines, "B", width], name)
        if self.step is not None:
            g.output(self.step + g.array("one", np.array(1)), "int64", ["B"], "step")

    def _reset_starts(self, resets: Value | None) -> None:
        """Sets states to 0 where resets (B,) is true, for a file of one step."""
        if resets is None:
            return
        g = self.graph
        row = g.unsqueeze(resets, 1)
        self.starts = [start and g.where(row, g.number(0), start) for start in self.starts]
        if self.step is not None:
            self.step = g.where(resets, g.array("zero", np.array(0)), self.step)

    # --- nodes RNN, LSTM, GRU -----------------------------------------------------------------------------

    def _node(self, x: Value, lengths: Value | None, layer: int) -> Value:
        """Adds a node for a layer. Returns its y (T, B, directions * H)."""
        g, made, directions = self.graph, self.made, self.made.directions
        name, gru = made.cell.name, made.cell.name == "GRU"
        suffixes = made.suffixes[layer * directions : (layer + 1) * directions]
        W, R, B = node_arrays(made, [layer_arrays(self.snapshot, suffix) for suffix in suffixes])
        starts = [
            start and g.split(start, [directions] * made.num_layers, axis=0)[layer] for start in self.starts
        ]
        stored = [g.array(f"{kind}_l{layer}", a) if a is not None else None
                  for kind, a in (("W", W), ("R", R), ("B", B))]  # fmt: skip
        direction = "bidirectional" if made.bidirectional else "reverse" if made.reverse else "forward"
        attributes = dict(hidden_size=made.hidden_size, direction=direction, **self._activations())
        attributes |= dict(linear_before_reset=int(made.reset_after)) if gru else {}
        y, *ends = g.nodes_of(
            name, x, *stored, lengths, *starts, outputs=1 + len(starts), name=f"{name}_l{layer}", **attributes
        )
        if lengths is not None and self.form.states:  # ONNX Runtime returns 0 for a sequence of length 0
            empty = g.node("Equal", g.unsqueeze(lengths, 1), g.array("zero_int32", np.array(0, np.int32)))
            ends = [g.where(empty, start, end) for start, end in zip(starts, ends, strict=True) if start]
        for parts, end in zip(self.ends, ends, strict=True):
            parts.append(end)
        if directions == 1:
            return g.squeeze(y, 1)
        return g.node(
            "Reshape", g.node("Transpose", y, perm=[0, 2, 1, 3]), g.integers(0, 0, 2 * made.hidden_size)
        )

    def _activations(self) -> dict[str, list[Any]]:
        """The attributes of a node for functions other than the default ones."""
        made = self.made
        found: dict[str, list[Any]] = {}
        if made.gate_activation == "hard_sigmoid":
            found["activations"] = ["HardSigmoid", "Tanh", "Tanh"][: 3 if made.cell.name == "LSTM" else 2]
            found |= dict(activation_alpha=[1 / 6], activation_beta=[0.5])
        elif made.nonlinearity != "tanh":
            found["activations"] = [ACTIVATIONS[made.nonlinearity]]
            found |= (
                dict(activation_alpha=[1.0], activation_beta=[0.0]) if made.nonlinearity == "identity" else {}
            )
        return {name: values * made.directions for name, values in found.items()}

    # --- one step, alone or in a Scan ---------------------------------------------------------------------

    def _cell(
        self, g: Graph, k: int, x: Value, states: list[Value], step: Value | None, mask: Value | None
    ) -> tuple[Value, list[Value]]:
        """Adds one step of the k-th layer and direction to g. Returns y and the new states.

        step (B,): the number of the step in each sequence, for batch norm.
        """
        suffix = self.made.suffixes[k]
        arrays = layer_arrays(self.snapshot, suffix)
        if step is None:
            cell = scan_bodies.Step(g, self.made, suffix, arrays)
            return scan_bodies.step(cell, x, states, self.snapshot.zoneout)
        rows = len(next(a for name, a in arrays.items() if name.startswith("scale")))
        zero, last = g.array("zero", np.array(0)), g.array(f"row_{rows - 1}", np.array(rows - 1))
        if self.snapshot.overrun != "raise":
            row = g.node("Min", step, last)
        else:  # without a limit, so that Gather fails beyond the tables
            row = step if mask is None else g.where(mask, step, zero)
        cell = scan_bodies.Step(g, self.made, suffix, arrays, row)
        y, new = scan_bodies.step(cell, x, states, self.snapshot.zoneout)
        if self.snapshot.overrun == "raise":  # OpenVINO's Gather returns 0 there
            beyond, nan = g.unsqueeze(g.node("Greater", row, last), 1), g.number(np.nan)
            new = [g.where(beyond, nan, state) for state in new]
            y = new[0]
        return y, new

    def _step(self, x: Value, k: int) -> Value:
        """Adds one step of layer k, in a file of one step. Returns its y (B, P)."""
        self.graph.prefix = f"l{k}/"
        y, new = self._cell(self.graph, k, x, self._start(k, x), self.step, None)
        self.graph.prefix = ""
        for parts, state in zip(self.ends, new, strict=True):
            parts.append(state)
        return y

    def _start(self, k: int, x: Value) -> list[Value]:
        """The initial states (B, *) of the k-th layer and direction; zeros if the file has no input."""
        g, lines = self.graph, self.made.num_layers * self.made.directions
        if self.form.states:
            return [g.squeeze(g.split(start, [1] * lines, 0)[k], 0) for start in self.starts if start]
        batch = g.node("Gather", g.node("Shape", x), g.integers(1), axis=0)
        shapes = [g.concat([batch, g.integers(width)], 0) for width in self.made.state_widths]
        return [g.node("Expand", g.number(0), shape) for shape in shapes]

    # --- Scan ---------------------------------------------------------------------------------------------

    def _masks(self, x: Value, lengths: Value | None, resets: Value | None) -> None:
        """Sets mask (T, B), true before a sequence's end, and resets (T, B) for both directions.

        A reset at step t is before step t. In the order of a reverse direction it is after step t, and so
        before step t - 1.
        """
        g, self.mask = self.graph, None
        if lengths is not None:
            T = g.squeeze(g.node("Gather", g.node("Shape", x), g.integers(0), axis=0), 0)
            steps = g.node("Range", g.array("zero", np.array(0)), T, g.array("one", np.array(1)))
            self.mask = g.node("Less", g.unsqueeze(steps, 1), g.cast(lengths, "int64"))
        self.resets: list[Value | None] = [None, None]
        if resets is None:
            return
        resets = self._time_first(resets, 2)
        if self.mask is not None:
            resets = g.node("And", resets, self.mask)
        self.resets[0] = resets
        if any(self.made.reversed):
            later = g.node("Slice", resets, g.integers(1), g.integers(2**62), g.integers(0))
            last = g.node("Slice", resets, g.integers(-1), g.integers(2**62), g.integers(0))
            self.resets[1] = g.concat([later, g.node("And", last, g.node("Not", last))], 0)

    def _scans(self, x: Value, layer: int) -> Value:
        """Adds a Scan for each direction of a layer. Returns y (T, B, directions * P)."""
        first = layer * self.made.directions
        return self.graph.concat([self._scan(x, first + k) for k in range(self.made.directions)], -1)

    def _scan(self, x: Value, k: int) -> Value:
        g, made, back = self.graph, self.made, self.made.reversed[k]
        starts, sequences = self._start(k, x), [x]
        name = f"{made.cell.name}{made.suffixes[k]}"
        body = Graph(f"{name}_step", g)
        body.prefix = f"{made.suffixes[k][1:]}/"
        pairs = zip(made.cell.state_names, made.state_widths, strict=True)
        states = [body.input(f"{name}_old", "float", ["B", width]) for name, width in pairs]
        step = None
        if made.sides:
            batch = g.node("Gather", g.node("Shape", x), g.integers(1), axis=0)
            starts.append(g.node("Expand", g.array("zero", np.array(0)), batch))
            step = body.input("step_old", "int64", ["B"])
        width = made.input_size if k < made.directions else made.directions * made.h_width
        x_t = body.input("x", "float", ["B", width])
        mask = reset = None
        if self.mask is not None:
            sequences.append(self.mask)
            mask = body.input("mask", "bool", ["B"])
        if (resets := self.resets[back]) is not None:
            sequences.append(resets)
            reset = body.input("reset", "bool", ["B"])
        self._body(body, k, x_t, states, step, mask, reset)
        *ends, y = g.nodes_of(
            "Scan", *starts, *sequences, outputs=len(starts) + 1, name=name, body=body.proto(),
            num_scan_inputs=len(sequences), scan_input_directions=[int(back)] * len(sequences),
            scan_output_directions=[int(back)],
        )  # fmt: skip
        for parts, end in zip(self.ends, ends, strict=False):
            parts.append(end)
        return y

    def _body(
        self, g: Graph, k: int, x: Value, old: list[Value], step: Value | None, mask: Value | None,
        reset: Value | None,
    ) -> None:  # fmt: skip
        """Fills the body of a Scan. A sequence that has ended keeps its old states, and its y is 0."""
        zero, states = g.number(0), old
        if reset is not None:
            row = g.unsqueeze(reset, 1)
            states = [g.where(row, zero, state) for state in old]
            step = step and g.where(reset, g.array("zero", np.array(0)), step)
        y, new = self._cell(g, k, x, states, step, mask)
        after = step and step + g.array("one", np.array(1))
        if mask is not None:
            row = g.unsqueeze(mask, 1)
            new = [g.where(row, n, o) for n, o in zip(new, old, strict=True)]
            y = g.where(row, y, zero)
            after = after and step and g.where(mask, after, step)
        for state, width in zip(new, self.made.state_widths, strict=True):
            g.output(state, "float", ["B", width])
        if after is not None:
            g.output(after, "int64", ["B"])
        g.output(y, "float", ["B", self.made.h_width])
