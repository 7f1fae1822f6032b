"""Builds the ONNX graph of a whole network: layers, directions, states, lengths and resets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...recognise.patterns import OPERATORS
from ...rnn.snapshot import Snapshot
from . import OPSETS, scan_bodies
from .builder import Graph, Shape, Value
from .stored_arrays import layer_arrays, node_arrays


@dataclass(frozen=True)
class Form:
    """Arguments of to_onnx that decide the inputs of a file. Each tells whether the file has this input."""

    step: bool
    states: bool
    lengths: bool
    resets: bool


def is_plain(snapshot: Snapshot, form: Form) -> bool:
    """Returns whether RNN, LSTM or GRU nodes of ONNX can compute all layers of a network."""
    made = snapshot.architecture
    special = made.norm is not None or made.proj_size or snapshot.zoneout or (form.resets and not form.step)
    return bool(scan_bodies.EQUATIONS[made.cell.name].node) and not special


def network_graph(snapshot: Snapshot, form: Form, opset: int = OPSETS[0]) -> Graph:
    """Returns the graph of a network. opset: the file's opset version."""
    return _Network(snapshot, form, opset).graph


class _Network:
    """Builds a graph. x: (T, B, *), or (B, *) for a file of one step. States: (layers * directions, B, *)."""

    def __init__(self, snapshot: Snapshot, form: Form, opset: int) -> None:
        self.snapshot, self.made, self.form = snapshot, snapshot.architecture, form
        self.graph = g = Graph(self.made.cell.name, opset=opset)
        plain, made = is_plain(snapshot, form), self.made
        self.lines = made.num_layers * made.directions
        given = self._sequences("x", "float", made.input_size)
        starts: list[Value] = []
        if form.states:
            pairs = zip(made.cell.state_names, made.state_widths, strict=True)
            starts = [g.input(f"{name}0", "float", [self.lines, "B", width]) for name, width in pairs]
        self.step = g.input("step0", "int64", ["B"]) if form.step and made.sides else None
        lengths = g.input("lengths", "int32", ["B"]) if form.lengths else None
        resets = self._sequences("resets", "bool") if form.resets else None

        if resets is not None and form.step:
            starts = self._reset(resets, starts)
        x = self._time_first(given, 3)
        self.ends: list[list[Value]] = [[] for _ in made.state_widths]
        if plain:
            x = self._nodes(x, lengths, starts)
        else:
            self._split_starts(x, starts)
            x = self._steps(x) if form.step else self._scans(x, lengths, resets)
        self._outputs(self._time_first(x, 3), plain)

    # --- inputs and outputs -------------------------------------------------------------------------------

    def _axes(self, *more: int) -> Shape:
        if self.form.step:
            return ["B", *more]
        return ["B", "T", *more] if self.made.batch_first else ["T", "B", *more]

    def _sequences(self, name: str, dtype: str, *more: int) -> Value:
        return self.graph.input(name, dtype, self._axes(*more))

    def _time_first(self, a: Value, axes: int) -> Value:
        """Swaps the axes T and B of a value if the network is batch_first. axes: the number of its axes."""
        if self.form.step or not self.made.batch_first:
            return a
        return self.graph.node("Transpose", a, perm=[1, 0, 2][:axes])

    def _outputs(self, y: Value, plain: bool) -> None:
        g, made = self.graph, self.made
        g.output(y, "float", self._axes(made.directions * made.h_width), "y")
        for name, width, parts in zip(made.cell.state_names, made.state_widths, self.ends, strict=True):
            end = g.concat(parts if plain else [g.unsqueeze(part, 0) for part in parts], 0)
            g.output(end, "float", [self.lines, "B", width], name)
        if self.step is not None:
            g.output(self.step + g.index(1), "int64", ["B"], "step")

    def _reset(self, resets: Value, starts: list[Value]) -> list[Value]:
        """Sets states to 0 where resets (B,) is true, in a file of one step. Returns the states."""
        g, row = self.graph, self.graph.unsqueeze(resets, 1)
        if self.step is not None:
            self.step = g.where(resets, g.index(0), self.step)
        return [g.where(row, g.number(0), start) for start in starts]

    def _split_starts(self, x: Value, starts: list[Value]) -> None:
        """Sets self.starts: initial states (B, *) by layer and direction, zeros without inputs for them."""
        g, lines, widths = self.graph, self.lines, self.made.state_widths
        if starts:
            parts = [[g.squeeze(part, 0) for part in g.split(start, [1] * lines, 0)] for start in starts]
            self.starts = [list(states) for states in zip(*parts, strict=True)]
            return
        batch = self._size(x, 1)
        zeros = {w: g.node("Expand", g.number(0), g.concat([batch, g.integers(w)], 0)) for w in widths}
        self.starts = [[zeros[width] for width in widths]] * lines

    # --- nodes RNN, LSTM, GRU -----------------------------------------------------------------------------

    def _nodes(self, x: Value, lengths: Value | None, starts: list[Value]) -> Value:
        """Adds an RNN, LSTM or GRU node for each layer. Returns y (T, B, *), or (B, *) for one step."""
        g, made = self.graph, self.made
        x = g.unsqueeze(x, 0) if self.form.step else x
        parts = [g.split(start, [made.directions] * made.num_layers, axis=0) for start in starts]
        empty = None
        if lengths is not None and starts:  # ONNX Runtime returns zeros as last states if a length is 0
            zero = g.array("zero_int32", np.array(0, np.int32))
            empty = g.node("Equal", g.unsqueeze(lengths, 1), zero)
        for layer in range(made.num_layers):
            own = [part[layer] for part in parts]
            x, ends = self._node(x, lengths, own, layer)
            if empty is not None:
                ends = [g.where(empty, start, end) for start, end in zip(own, ends, strict=True)]
            self._add_ends(ends)
        return g.squeeze(x, 0) if self.form.step else x

    def _node(
        self, x: Value, lengths: Value | None, starts: list[Value], layer: int
    ) -> tuple[Value, list[Value]]:
        """Adds the node of one layer. Returns y (T, B, directions * H) and last states (directions, B, H)."""
        g, made, directions = self.graph, self.made, self.made.directions
        suffixes = made.suffixes[layer * directions : (layer + 1) * directions]
        arrays = node_arrays(made, [layer_arrays(self.snapshot, suffix) for suffix in suffixes])
        *stored, P = [
            None if array is None else g.array(f"{name}_l{layer}", array) for name, array in arrays.items()
        ]
        direction = "bidirectional" if made.bidirectional else "reverse" if made.reverse else "forward"
        attributes = dict(hidden_size=made.hidden_size, direction=direction, **self._activations())
        if "reset_after" in made.cell.options:
            attributes["linear_before_reset"] = int(made.reset_after)
        more = [] if P is None else [*[None] * (2 - len(starts)), P]
        y, *ends = g.nodes_of(
            made.cell.name, x, *stored, lengths, *starts, *more, outputs=1 + made.cell.states,
            name=f"{made.cell.name}_l{layer}", **attributes,
        )  # fmt: skip
        if directions == 1:
            return g.squeeze(y, 1), ends
        y = g.node("Transpose", y, perm=[0, 2, 1, 3])
        return g.node("Reshape", y, g.integers(0, 0, 2 * made.hidden_size)), ends

    def _add_ends(self, ends: list[Value]) -> None:
        """Appends last states to self.ends: one array for each kind of state."""
        for parts, end in zip(self.ends, ends, strict=True):
            parts.append(end)

    def _activations(self) -> dict[str, list[Any]]:
        """Returns the activation attributes of a recurrent node, or {} for ONNX's defaults."""
        made, hard = self.made, self.made.gate_activation == "hard_sigmoid"
        candidate = OPERATORS.get(made.nonlinearity, "Affine")
        if not hard and candidate == "Tanh":
            return {}
        gates = ["HardSigmoid" if hard else "Sigmoid"] * (made.cell.gates > 1)
        found: dict[str, list[Any]] = {
            "activations": [*gates, candidate, "Tanh"][: len(gates) + made.cell.states]
        }
        more = [(1 / 6, 0.5)] * hard + [(1.0, 0.0)] * (candidate == "Affine")
        if more:
            found["activation_alpha"], found["activation_beta"] = map(list, zip(*more, strict=True))
        return {name: values * made.directions for name, values in found.items()}

    # --- one step, alone or in a Scan ---------------------------------------------------------------------

    def _cell(
        self, g: Graph, k: int, x: Value, states: list[Value], step: Value | None, mask: Value | None
    ) -> tuple[Value, list[Value]]:
        """Adds one step of layer and direction number k to g. Returns y and the new states, (B, *) each.

        step (B,): each sequence's step number for batch norm, or None. mask (B,): true before the end.
        """
        suffix = self.made.suffixes[k]
        arrays = layer_arrays(self.snapshot, suffix)
        if step is None:
            cell = scan_bodies.Step(g, self.made, suffix, arrays)
            return scan_bodies.step(cell, x, states, self.snapshot.zoneout)
        rows = len(next(a for name, a in arrays.items() if name.startswith("scale")))
        zero, last = g.index(0), g.index(rows - 1)
        if self.snapshot.overrun != "raise":
            row = g.node("Min", step, last)
        else:  # unlimited, so that Gather fails past the tables
            row = step if mask is None else g.where(mask, step, zero)
        cell = scan_bodies.Step(g, self.made, suffix, arrays, row)
        y, new = scan_bodies.step(cell, x, states, self.snapshot.zoneout)
        if self.snapshot.overrun == "raise":  # OpenVINO's Gather returns 0 there, without an error
            beyond, nan = g.unsqueeze(g.node("Greater", row, last), 1), g.number(np.nan)
            new = [g.where(beyond, nan, state) for state in new]
            y = new[0]
        return y, new

    def _steps(self, x: Value) -> Value:
        """Adds all layers, for a file of one step. Returns y (B, P)."""
        for k, states in enumerate(self.starts):
            self.graph.prefix = f"l{k}/"
            x, ends = self._cell(self.graph, k, x, states, self.step, None)
            self._add_ends(ends)
        self.graph.prefix = ""
        return x

    # --- Scan ---------------------------------------------------------------------------------------------

    def _scans(self, x: Value, lengths: Value | None, resets: Value | None) -> Value:
        """Adds a Scan for each layer and direction. Returns y (T, B, directions * P)."""
        g, made = self.graph, self.made
        mask = None if lengths is None else self._mask(x, lengths)
        first = [g.node("Expand", g.index(0), self._size(x, 1))] if made.sides else []
        by_direction = self._resets(resets, mask)
        for layer in range(made.num_layers):
            found = []
            for k in range(layer * made.directions, (layer + 1) * made.directions):
                sequences = dict(x=x, mask=mask, reset=by_direction[made.reversed[k]])
                y, ends = self._scan(k, self.starts[k] + first, {n: s for n, s in sequences.items() if s})
                self._add_ends(ends)
                found.append(y)
            x = g.concat(found, -1)
        return x

    def _size(self, x: Value, axis: int) -> Value:
        """Returns the size of an axis of x as an int64 Value (1,)."""
        g = self.graph
        return g.node("Gather", g.node("Shape", x), g.integers(axis), axis=0)

    def _mask(self, x: Value, lengths: Value) -> Value:
        """Returns a mask (T, B), true before each sequence's end. lengths: (B,)."""
        g = self.graph
        steps = g.node("Range", g.index(0), g.squeeze(self._size(x, 0), 0), g.index(1))
        return g.node("Less", g.unsqueeze(steps, 1), g.cast(lengths, "int64"))

    def _resets(self, resets: Value | None, mask: Value | None) -> tuple[Value | None, Value | None]:
        """Returns resets (T, B) for forward and for reverse directions.

        A reset at step t takes effect before step t. Reverse directions run step t before step t - 1, so the
        reset comes before step t - 1, unless step t is past the sequence's end.
        """
        if resets is None:
            return None, None
        g, resets = self.graph, self._time_first(resets, 2)
        if not any(self.made.reversed):
            return resets, None
        own = resets if mask is None else g.node("And", resets, mask)
        later, last = (
            g.node("Slice", own, g.integers(first), g.integers(2**31 - 1), g.integers(0)) for first in (1, -1)
        )
        return resets, g.concat([later, g.node("And", last, g.node("Not", last))], 0)

    def _scan(self, k: int, starts: list[Value], sequences: dict[str, Value]) -> tuple[Value, list[Value]]:
        """Adds the Scan of layer and direction number k. Returns y (T, B, P) and the last states (B, *)."""
        g, made, back = self.graph, self.made, int(self.made.reversed[k])
        name = made.cell.name + made.suffixes[k]
        body = Graph(f"{name}_step", g)
        body.prefix = f"{made.suffixes[k][1:]}/"
        self._body(body, k, sequences)
        *ends, y = g.nodes_of(
            "Scan", *starts, *sequences.values(), outputs=len(starts) + 1, name=name, body=body.proto(),
            num_scan_inputs=len(sequences), scan_input_directions=[back] * len(sequences),
            scan_output_directions=[back],
        )  # fmt: skip
        return y, ends[: len(made.state_widths)]

    def _body(self, g: Graph, k: int, sequences: dict[str, Value]) -> None:
        """Fills the body of a Scan. Past its end, a sequence keeps its states, and its y is 0."""
        made = self.made
        pairs = list(zip(made.cell.state_names, made.state_widths, strict=True))
        old = states = [g.input(f"{name}_old", "float", ["B", width]) for name, width in pairs]
        step = g.input("step_old", "int64", ["B"]) if made.sides else None
        width = made.input_size if k < made.directions else made.directions * made.h_width
        x = g.input("x", "float", ["B", width])
        flags = {name: g.input(name, "bool", ["B"]) for name in sequences if name != "x"}
        mask, reset = flags.get("mask"), flags.get("reset")
        if reset is not None:
            row = g.unsqueeze(reset, 1)
            states = [g.where(row, g.number(0), state) for state in states]
            step = step and g.where(reset, g.index(0), step)
        y, new = self._cell(g, k, x, states, step, mask)
        after = step and step + g.index(1)
        if mask is not None:
            row = g.unsqueeze(mask, 1)
            new = [g.where(row, n, o) for n, o in zip(new, old, strict=True)]
            y = g.where(row, y, g.number(0))
            after = after and step and g.where(mask, after, step)
        for state, (_, width) in zip(new, pairs, strict=True):
            g.output(state, "float", ["B", width])
        if after is not None:
            g.output(after, "int64", ["B"])
        g.output(y, "float", ["B", made.h_width])
