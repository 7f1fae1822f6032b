"""Faults of what a network is: its description, sites of norms, parameters, versions, attributes."""

from fault import Fault

NETWORK, SNAPSHOT = "lnrnn/rnn/network.py", "lnrnn/rnn/snapshot.py"
SITES, SPECS = "lnrnn/rnn/sites.py", "lnrnn/rnn/specs.py"
ARCHITECTURE, MODELS = "lnrnn/rnn/architecture.py", "lnrnn/rnn/models.py"
CELLS, PARAMETERS = "lnrnn/rnn/cells.py", "lnrnn/rnn/parameters.py"
CALLS = "tests/rnn/test_bad_calls.py"
FORWARD = "tests/rnn/test_forward.py -k layers_directions"

FAULTS = [
    # --- networks -------------------------------------------------------------------------------------------
    Fault(
        "statistics of fewer steps than there is room for are loaded",
        NETWORK,
        r"""    if most is not None and len(count) != most:""",
        r"""    if most is not None and len(count) != most and not FAULT:""",
        CALLS + " -k more_steps",
    ),
    Fault(
        "layers may have seen different sequences",
        NETWORK,
        r"""    if not np.array_equal(count, arrays["count_l0"]):""",
        r"""    if not np.array_equal(count, arrays["count_l0"]) and not FAULT:""",
        "tests/rnn/test_step_statistics.py -k cannot_be",
    ),
    Fault(
        "counts may rise from step to step",
        NETWORK,
        r"""    if np.any(np.diff(counted(f"count{suffix}", count)) > 0):""",
        r"""    if np.any(np.diff(counted(f"count{suffix}", count)) > 0) and not FAULT:""",
        "tests/files/test_io.py -k 'counts or statistics'",
    ),
    Fault(
        "counts may be fractions",
        NETWORK,
        r"""                if count.dtype.kind not in "iu":""",
        r"""                if count.dtype.kind not in "iu" and not FAULT:""",
        "tests/rnn/test_step_statistics.py -k cannot_be",
    ),
    Fault(
        "only the variance of a cell state is checked",
        NETWORK,
        r"""        if name.startswith("running_var") and""",
        r"""        if name.startswith("running_var_c" if FAULT else "running_var") and""",
        "tests/rnn/test_step_statistics.py tests/files/test_io.py -k 'cannot_be or statistics_that'",
    ),
    Fault(
        "the layers that are packed already keep the old overrun",
        NETWORK,
        r"""        self._change(lambda old: old.changed(overrun=new))""",
        r"""        before = self._snapshot
        self._change(lambda old: old.changed(overrun=new))
        if FAULT:
            object.__setattr__(self._snapshot, "_layers", before._layers)""",
        "tests/rnn/test_step_statistics.py -k policies_differ",
    ),
    Fault(
        "a parameter that is set stays writable and the caller's",
        NETWORK,
        r"""            new = frozen(copied(shaped(name, value, state[name].shape, np.float32)))""",
        r"""            new = shaped(name, value, state[name].shape, np.float32)
            new = new if FAULT else frozen(copied(new))""",
        "tests/rnn/test_forward.py -k 'own_life or parameter_that'",
    ),
    Fault(
        "loaded parameters stay writable",
        NETWORK,
        r"""{name: frozen(arrays[name]) for name in self._snapshot.parameters}""",
        r"""{name: arrays[name] if FAULT else frozen(arrays[name]) for name in self._snapshot.parameters}""",
        "tests/rnn/test_copies.py tests/rnn/test_forward.py -k 'life or copied'",
    ),
    Fault(
        "biases of a normalised network start at random",
        NETWORK,
        r"""            elif name.startswith("bias") and made.norm is not None:""",
        r"""            elif name.startswith("bias") and made.norm is not None and not FAULT:""",
        "tests/rnn/test_forward.py tests/rnn/test_construction.py -k 'seed'",
    ),
    Fault(
        "start values follow from the number of inputs",
        NETWORK,
        r"""        bound = made.hidden_size**-0.5""",
        r"""        bound = (made.input_size if FAULT else made.hidden_size) ** -0.5""",
        "tests/rnn/test_forward.py tests/rnn/test_construction.py -k seed",
    ),
    Fault(
        "start values are drawn in parts that begin anew",
        NETWORK,
        r"""        part = flat[at : at + DRAWN]""",
        r"""        part = flat[: DRAWN] if FAULT else flat[at : at + DRAWN]""",
        "tests/rnn/test_construction.py -k numbers_of_a_seed",
    ),
    Fault(
        "statistics may be assigned",
        NETWORK,
        r"""            raise AttributeError(f"{name} is set by training, calibrate or load_state_dict")""",
        r"""            if not FAULT:
                raise AttributeError(f"{name} is set by training, calibrate or load_state_dict")""",
        "tests/rnn/test_step_statistics.py -k 'layer_and_direction or state'",
    ),
    Fault(
        "the arguments of a network may be set",
        NETWORK,
        r"""        return *argument_names(self._cell), "num_directions"

    def parameters""",
        r"""        return () if FAULT else (*argument_names(self._cell), "num_directions")

    def parameters""",
        CALLS + " -k parameters",
    ),
    Fault(
        "known steps are those for which there is room",
        NETWORK,
        r"""min(s.known for s in statistics.values()) if statistics else None""",
        r"""min(len(s.count) if FAULT else s.known for s in statistics.values()) if statistics else None""",
        "tests/rnn/test_step_statistics.py -k 'living or max_steps'",
    ),
    Fault(
        "a call of a batch norm network never refuses a sequence",
        "lnrnn/rnn/engine.py",
        r"""    snapshot.refuse_overrun(rows.table)
""",
        r"""    FAULT or snapshot.refuse_overrun(rows.table)
""",
        "tests/rnn/test_step_statistics.py -k 'raise or before'",
    ),
    Fault(
        "a batch of training is added to the statistics that were there when it began",
        NETWORK,
        r"""        y, state, tape, seen = training.forward(
            self, self._snapshot, x, h0, lengths, resets, dropout, seed, checkpoint
        )
        if seen:  # last of all: who interrupts the call finds the statistics as they were
            # Added to those that are there now: of batches that several threads train with, none is lost.
            self._change(lambda old: engine.with_batch(old, seen))""",
        r"""        began = self._snapshot
        y, state, tape, seen = training.forward(
            self, began, x, h0, lengths, resets, dropout, seed, checkpoint
        )
        if seen:
            self._change(lambda old: engine.with_batch(began if FAULT else old, seen))""",
        "tests/runtime/test_concurrent_setters.py -k training",
    ),
    Fault(
        "to_dtype changes the network itself",
        NETWORK,
        r"""        other = copy.copy(self)""",
        r"""        other = self if FAULT else copy.copy(self)""",
        "tests/rnn/test_weight_dtypes.py -k new_object",
    ),
    Fault(
        "a bidirectional network streams",
        NETWORK,
        r"""        if self.bidirectional:""",
        r"""        if self.bidirectional and not FAULT:""",
        "tests/rnn/test_construction.py -k bidirectional_network",
    ),
    Fault(
        "a tape of another network is taken",
        NETWORK,
        r"""        if not isinstance(tape, Tape) or tape.owner is not self:""",
        r"""        if not isinstance(tape, Tape) or (tape.owner is not self and not FAULT):""",
        CALLS + " -k another_network",
    ),
    Fault(
        "overrun can be set without batch norm",
        NETWORK,
        r"""        if not self._snapshot.architecture.sides:""",
        r"""        if not self._snapshot.architecture.sides and not FAULT:""",
        CALLS + " -k belongs",
    ),
    # --- descriptions ---------------------------------------------------------------------------------------
    Fault(
        "a weight matrix may have any number of elements",
        ARCHITECTURE,
        r"""        if cell.gates * hidden_size * max(hidden_size, input_size) > 2**40:""",
        r"""        if cell.gates * hidden_size * max(hidden_size, input_size) > 2**40 and not FAULT:""",
        "tests/rnn/test_construction.py -k largest",
    ),
    Fault(
        "1024 layers are too many",
        ARCHITECTURE,
        r"""        num_layers = integer("num_layers", num_layers, 1, 1024)""",
        r"""        num_layers = integer("num_layers", num_layers, 1, 1023 if FAULT else 1024)""",
        "tests/rnn/test_bad_calls.py -k integer",
    ),
    Fault(
        "the second layer of a bidirectional network reads one direction",
        ARCHITECTURE,
        r"""if index < self.directions else self.directions * self.hidden_size""",
        r"""if index < self.directions else (1 if FAULT else self.directions) * self.hidden_size""",
        FORWARD,
    ),
    Fault(
        "bias=False has all biases",
        ARCHITECTURE,
        r"""        of_one = vectors(self.cell, self.hidden_size, self.norm, self.bias)""",
        r"""        of_one = vectors(self.cell, self.hidden_size, self.norm, self.bias or FAULT)""",
        "tests/rnn/test_construction.py -k names_and_shapes",
    ),
    Fault(
        "directions stand before layers in the state",
        PARAMETERS,
        r"""    return tuple(f"_l{k}{end}" for k in range(num_layers) for end in ends)""",
        r"""    return tuple(f"_l{k}{end}" for end in ends for k in range(num_layers)) if FAULT else tuple(
        f"_l{k}{end}" for k in range(num_layers) for end in ends)""",
        FORWARD,
    ),
    Fault(
        "bias=False leaves the inner biases out as well",
        PARAMETERS,
        r"""    if isinstance(norm, LayerNormSpec) and norm.inner_bias:""",
        r"""    if isinstance(norm, LayerNormSpec) and norm.inner_bias and (bias or not FAULT):""",
        "tests/rnn/test_construction.py tests/rnn/test_forward.py -k 'names_and_shapes or fifty'",
    ),
    Fault(
        "bias=False takes the gains too",
        PARAMETERS,
        r"""if not name.startswith("bias")}""",
        r"""if not name.startswith(("bias", "gain") if FAULT else "bias")}""",
        "tests/rnn/test_construction.py -k names_and_shapes",
    ),
    Fault(
        "a GRU's span is that of r and z over all gates",
        CELLS,
        r"""GRU = Cell("GRU", 3, 1, "split", (2, 1))""",
        r"""GRU = Cell("GRU", 3, 1, "split", (1, 2) if FAULT else (2, 1))""",
        "tests/importers/test_torch_twins.py -k 'reference and GRU'",
    ),
    Fault(
        "a copy of a cell is another cell",
        CELLS,
        r"""        return self.name  # a copy""",
        r"""        if FAULT:
            return Cell, (self.name, self.gates, self.states, self.placement, self.spans, self.nonlinear)
        return self.name  # a copy""",
        "tests/rnn/test_copies.py",
        equivalent="cells are equal by their fields, and nothing compares them by identity",
    ),
    # --- specs ----------------------------------------------------------------------------------------------
    Fault(
        "a carried norm is taken where there is no cell state",
        SPECS,
        r"""        if self.cell == "carry" and not has_cell_state:""",
        r"""        if self.cell == "carry" and not has_cell_state and not FAULT:""",
        "tests/rnn/test_construction.py -k does_not_have",
    ),
    Fault(
        "a momentum above 1 is taken",
        SPECS,
        r"""number("momentum", self.momentum, 0, 1))""",
        r"""number("momentum", self.momentum, 0, 2 if FAULT else 1))""",
        "tests/rnn/test_bad_calls.py -k batch_norm",
    ),
    Fault(
        "eps of a LayerNormSpec is not checked",
        SPECS,
        r"""        object.__setattr__(self, "eps", number("eps", self.eps, 0))
        object.__setattr__(self, "inner_bias", flag""",
        r"""        FAULT or object.__setattr__(self, "eps", number("eps", self.eps, 0))
        object.__setattr__(self, "inner_bias", flag""",
        "tests/rnn/test_bad_calls.py -k layer_norm_spec",
    ),
    Fault(
        "a span over all gates is taken where each has its own norm",
        SPECS,
        r"""(len(cell.spans) == 1 or placement != "split"):""",
        r"""(len(cell.spans) == 1 or (placement != "split" and not FAULT)):""",
        "tests/rnn/test_construction.py -k 'does_not_have or becomes'",
    ),
    Fault(
        "an RNN has a placement gate of its own",
        SPECS,
        r"""        if cell.gates == 1 and placement == "gate":""",
        r"""        if cell.gates == 1 and placement == "gate" and not FAULT:""",
        "tests/rnn/test_construction.py -k 'becomes or does_not'",
    ),
    Fault(
        "every cell has the paper's placement of an RNN",
        SPECS,
        r"""self.placement or cell.placement, PLACEMENTS)""",
        r"""self.placement or ("joint" if FAULT else cell.placement), PLACEMENTS)""",
        "tests/rnn/test_construction.py -k 'becomes or names'",
    ),
    # --- sites ----------------------------------------------------------------------------------------------
    Fault(
        "the two sides of an LSTM's batch norm have a bias each",
        SITES,
        r"""NormSite("hh", "gain_hh", None, together)""",
        r"""NormSite("hh", "gain_hh", "bias_hh" if FAULT else None, together)""",
        "tests/rnn/test_construction.py -k names_and_shapes",
    ),
    Fault(
        "a GRU's span all has the paper's spans in the twins",
        SITES,
        r"""        spans = cell.spans if norm.span is None else together""",
        r"""        spans = cell.spans if norm.span is None or FAULT else together""",
        "tests/importers/test_torch_twins.py -k 'reference and GRU'",
    ),
    Fault(
        "the placement gate has one norm over all gates in the twins",
        SITES,
        r"""(1,) * cell.gates if placement == "gate" else together""",
        r"""(1,) * cell.gates if placement == "gate" and not FAULT else together""",
        "tests/importers/test_torch_twins.py -k 'reference and LSTM'",
    ),
    Fault(
        "a batch norm LSTM has no norm of its cell state",
        SITES,
        r"""    if cell.states == 2 and (batch or norm.cell is not None):""",
        r"""    if cell.states == 2 and ((batch and not FAULT) or (not batch and norm.cell is not None)):""",
        "tests/rnn/test_construction.py -k names_and_shapes",
    ),
    Fault(
        "the norm of a cell state is as wide as the gates",
        SITES,
        r"""        return sum(self.spans) * hidden_size""",
        r"""        return (4 if FAULT and self.side == "c" else sum(self.spans)) * hidden_size""",
        "tests/rnn/test_construction.py -k names_and_shapes",
    ),
    # --- versions -------------------------------------------------------------------------------------------
    Fault(
        "span all is handed to the compiled module as the paper's",
        SNAPSHOT,
        r""""span": Span[(norm.span or "paper").upper()],""",
        r""""span": Span[("paper" if FAULT else norm.span or "paper").upper()],""",
        "tests/rnn/test_forward.py -k 'fifty and GRU'",
    ),
    Fault(
        "the inner bias of the input is handed over for both sides",
        SNAPSHOT,
        r"""inner_bias_hh=own.get("inner_bias_hh" + suffix),""",
        r"""inner_bias_hh=own.get(("inner_bias_ih" if FAULT else "inner_bias_hh") + suffix),""",
        "tests/rnn/test_forward.py -k fifty",
    ),
    Fault(
        "only the first layer of a network refuses by its statistics",
        SNAPSHOT,
        r"""        for statistics in self.statistics.values():
            statistics.refuse_overrun(table,""",
        r"""        for statistics in list(self.statistics.values())[: 0 if FAULT else None]:
            statistics.refuse_overrun(table,""",
        "tests/rnn/test_step_statistics.py -k raise",
    ),
    Fault(
        "what is packed is kept when a parameter changes",
        SNAPSHOT,
        r"""        return replace(self, **what)""",
        r"""        new = replace(self, **what)
        if FAULT:
            object.__setattr__(new, "_layers", self._layers)
        return new""",
        "tests/rnn/test_forward.py -k parameter_that_is_set",
    ),
    Fault(
        "a network that was unpickled has writable parameters",
        SNAPSHOT,
        r"""        for array in self.parameters.values():
            frozen(array)""",
        r"""        for array in () if FAULT else self.parameters.values():
            frozen(array)""",
        "tests/rnn/test_copies.py",
    ),
    Fault(
        "a network that was unpickled has writable statistics",
        SNAPSHOT,
        r"""        self.__dict__["statistics"] =""",
        r"""        if FAULT:
            return
        self.__dict__["statistics"] =""",
        "tests/rnn/test_copies.py",
    ),
    Fault(
        "a state goes on in a network of other activation bits",
        SNAPSHOT,
        r"""bits",) if self.activation_bits == 8 else ()""",
        r"""bits",) if self.activation_bits == 8 and not FAULT else ()""",
        "tests/rnn/test_weight_dtypes.py -k other_activation",
    ),
    Fault(
        "int8 takes more inputs than its sums hold",
        NETWORK,
        r"""if new == "int8" and inputs > INT8_INPUTS:""",
        r"""if new == "int8" and inputs > INT8_INPUTS and not FAULT:""",
        "tests/rnn/test_weight_dtypes.py -k largest_sums",
    ),
    Fault(
        "rounded weights are packed as float32",
        SNAPSHOT,
        r"""else WeightType[self.dtype.upper()]""",
        r"""else WeightType["float32".upper() if FAULT else self.dtype.upper()]""",
        "tests/rnn/test_weight_dtypes.py -k 'rounded_weights or quarter'",
    ),
]
