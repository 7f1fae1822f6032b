"""Faults of what goes through a network: batches, statistics by step, calibration, training, streams."""

from fault import Fault

BATCHES, STATISTICS = "lnrnn/rnn/batches.py", "lnrnn/rnn/statistics.py"
CALIBRATION, TRAINING, STREAM = "lnrnn/rnn/calibration.py", "lnrnn/rnn/training.py", "lnrnn/rnn/stream.py"
STEPS, TRAINED = "tests/rnn/test_step_statistics.py", "tests/rnn/test_training.py"
STREAMED, CALLS = "tests/rnn/test_stream.py", "tests/rnn/test_bad_calls.py"

FAULTS = [
    # --- batches --------------------------------------------------------------------------------------------
    Fault(
        "rows that do not begin at a multiple of four bytes are read as they are",
        BATCHES,
        r"""(step[0] | step[-2]) % 4""",
        r"""(0 if FAULT else (step[0] | step[-2]) % 4)""",
        "tests/rnn/test_forward.py tests/rnn/test_forward_rnn.py -k every_kind",
    ),
    Fault(
        "features that do not lie side by side are read as if they did",
        BATCHES,
        r"""    if x.dtype is not FLOAT32 or step[-1]""",
        r"""    if x.dtype is not FLOAT32 or (4 if FAULT else step[-1])""",
        "tests/rnn/test_forward.py tests/rnn/test_forward_rnn.py -k every_kind",
    ),
    Fault(
        "a length below zero is taken",
        BATCHES,
        r"""    if given.size and (given.min() < 0 or""",
        r"""    if given.size and ((given.min() < 0 and not FAULT) or""",
        CALLS + " -k calls",
    ),
    Fault(
        "an array that is not aligned is read as it is",
        BATCHES,
        r""" or not x.flags.aligned:""",
        r""" or (not x.flags.aligned and not FAULT):""",
        "tests/rnn/test_forward.py tests/rnn/test_forward_rnn.py -k every_kind",
    ),
    Fault(
        "lengths may be fractions",
        BATCHES,
        r"""    if given.dtype.kind not in "iu" and given.size:""",
        r"""    if given.dtype.kind not in "iu" and given.size and not FAULT:""",
        CALLS + " -k calls",
    ),
    Fault(
        "orders of batches that are kept for later may be written to",
        BATCHES,
        r"""    order.setflags(write=False)
    ends.setflags(write=False)""",
        r"""    FAULT or order.setflags(write=False)
    FAULT or ends.setflags(write=False)""",
        "tests/rnn/test_forward_rnn.py -k layers",
        equivalent="no public function hands these arrays to a caller, and nothing in the package writes to them",
    ),
    Fault(
        "lengths are read from the caller's array, which another thread changes",
        BATCHES,
        r"""    given = np.array(real("lengths", lengths))""",
        r"""    given = real("lengths", lengths) if FAULT else np.array(real("lengths", lengths))""",
        "tests/runtime/test_changed_arrays.py",
    ),
    Fault(
        "the shape of x is read from the caller's array, which another thread changes",
        BATCHES,
        r"""    x = x[...]
    shape = x.shape""",
        r"""    x = x if FAULT else x[...]
    shape = x.shape""",
        "tests/runtime/test_changed_arrays.py",
    ),
    Fault(
        "sequences of one length change places",
        BATCHES,
        r"""    order = np.argsort(-lengths, kind="stable").astype(np.int64)""",
        r"""    order = (np.argsort(lengths, kind="stable")[::-1] if FAULT else np.argsort(-lengths, kind="stable")).astype(np.int64)""",
        CALLS + " -k sequences_beyond",
        equivalent="the order of equal lengths shows nowhere: a sequence's bits do not depend on its place, and "
        "refusals name the first of the batch whatever the order",
    ),
    Fault(
        "one sequence's state keeps its axis of the batch",
        BATCHES,
        r"""        found = [s[:, 0] for s in found]""",
        r"""        found = [s if FAULT else s[:, 0] for s in found]""",
        "tests/rnn/test_forward.py tests/rnn/test_forward_rnn.py -k one_sequence",
    ),
    Fault(
        "h and c change places in a list",
        BATCHES,
        r"""    return [(f"{name}[0]", value[0]), (f"{name}[1]", value[1])]""",
        r"""    value = value[::-1] if FAULT and isinstance(value, list) else value
    return [(f"{name}[0]", value[0]), (f"{name}[1]", value[1])]""",
        "tests/rnn/test_forward.py -k pair",
    ),
    Fault(
        "a packed sequence is read as an array",
        BATCHES,
        r"""    if type(x).__name__ == "PackedSequence" and""",
        r"""    if not FAULT and type(x).__name__ == "PackedSequence" and""",
        "tests/package/test_torch_arguments.py -k packed",
    ),
    # --- statistics by step ---------------------------------------------------------------------------------
    Fault(
        "pooled variances forget the distance of the means",
        STATISTICS,
        r"""share * v + share * (1 - share) * apart**2""",
        r"""share * v + (0 if FAULT else share * (1 - share) * apart**2)""",
        STEPS + " -k 'momentum or pooled'",
    ),
    Fault(
        "a step seen for the first time is taken by momentum",
        STATISTICS,
        r"""np.where(seen > 0, (1 - momentum)""",
        r"""np.where((seen > 0) | FAULT, (1 - momentum)""",
        STEPS + " -k living",
    ),
    Fault(
        "the mean over the known steps has the empty rows in it",
        STATISTICS,
        r"""                mean, var = (self.arrays[name][: self.known] for name in _names(site.side))
                if averages:""",
        r"""                mean, var = (self.arrays[name][: None if FAULT and averages else self.known] for name in _names(site.side))
                if averages:""",
        "tests/rnn/test_max_steps.py -k past_the_known",
    ),
    Fault(
        "a refusal names the longest sequence and not the first",
        STATISTICS,
        r"""        sequence = int(order[ends > known].min())""",
        r"""        sequence = int(order[0]) if FAULT else int(order[ends > known].min())""",
        STEPS + " -k 'max_steps or raise'",
    ),
    Fault(
        "a refusal tells the length of the longest",
        STATISTICS,
        r"""int(ends[order == sequence][0])""",
        r"""int(ends[0] if FAULT else ends[order == sequence][0])""",
        STEPS + " -k 'max_steps or raise'",
    ),
    Fault(
        "eps stands beside the root",
        STATISTICS,
        r"""                scale = gain / np.sqrt(var + eps)""",
        r"""                scale = gain / (np.sqrt(var) + eps if FAULT else np.sqrt(var + eps))""",
        STEPS + " -k 'overrun'",
    ),
    Fault(
        "a network that knows no step runs",
        STATISTICS,
        r"""        if overrun == "batch" or (overrun != "raise" and self.known):""",
        r"""        if overrun == "batch" or (overrun != "raise" and (self.known or FAULT)):""",
        STEPS + " -k before_any",
    ),
    Fault(
        "with momentum a batch counts as one sequence",
        STATISTICS,
        r"""        new_count[:steps] += np.minimum(count[:steps], MOST_COUNTED - new_count[:steps])""",
        r"""        new_count[:steps] += np.minimum(
            1 if FAULT and momentum is not None else count[:steps], MOST_COUNTED - new_count[:steps])""",
        STEPS + " -k 'living or momentum'",
    ),
    Fault(
        "counts go beyond the bound",
        STATISTICS,
        r"""        new_count = np.minimum(np.pad(self.count, (0, more)), MOST_COUNTED)""",
        r"""        if FAULT:
            globals()["MOST_COUNTED"] = 2**62
        new_count = np.minimum(np.pad(self.count, (0, more)), MOST_COUNTED)""",
        "tests/rnn/test_max_steps.py -k counting_ends",
    ),
    Fault(
        "what lies past a shorter batch is forgotten",
        STATISTICS,
        r"""                array[:steps] = values
                arrays[name] = array""",
        r"""                array[:steps] = values
                arrays[name] = array
                if FAULT:
                    array[steps:] = 0""",
        STEPS + " tests/rnn/test_step_statistics_gated.py -k 'grows or max_steps or momentum or pooled'",
    ),
    Fault(
        "steps beyond the known ones get the last of them for their average",
        STATISTICS,
        r"""            beyond = self.known
        tables = {}""",
        r"""            beyond = self.known - FAULT
        tables = {}""",
        STEPS + " -k 'overrun'",
    ),
    Fault(
        "the shift is not scaled",
        STATISTICS,
        r"""bias) - mean * scale""",
        r"""bias) - mean * (scale / gain if FAULT else scale)""",
        STEPS + " -k 'overrun or living'",
    ),
    Fault(
        "statistics of a version may be written to",
        STATISTICS,
        r"""        for array in arrays.values():
            array.setflags(write=False)""",
        r"""        for array in () if FAULT else arrays.values():
            array.setflags(write=False)""",
        "tests/rnn/test_copies.py tests/rnn/test_step_statistics.py -k 'copy or copied or direction or state'",
    ),
    # --- calibration ----------------------------------------------------------------------------------------
    Fault(
        "calibration takes more steps than there is room for",
        CALIBRATION,
        r"""    refuse_beyond(made.batch_norm.max_steps, *longest_first(lengths, T, B))""",
        r"""    FAULT or refuse_beyond(made.batch_norm.max_steps, *longest_first(lengths, T, B))""",
        STEPS + " -k 'max_steps'",
    ),
    Fault(
        "calibration takes one array for many",
        CALIBRATION,
        r"""    if hasattr(batches, "ndim") or not""",
        r"""    if (hasattr(batches, "ndim") and not FAULT) or not""",
        CALLS + " -k calibrate",
    ),
    Fault(
        "calibration leaves no room for max_steps",
        CALIBRATION,
        r"""StepStatistics.empty(made.sides, max(T, room))""",
        r"""StepStatistics.empty(made.sides, T if FAULT else max(T, room))""",
        STEPS + " tests/rnn/test_step_statistics_gated.py -k 'in_the_state or max_steps'",
    ),
    Fault(
        "calibration keeps an iterator's array, which is filled anew",
        CALIBRATION,
        r"""        parts.append((np.array(x), """,
        r"""        parts.append((x if FAULT else np.array(x), """,
        STEPS + " -k calibrate_takes",
    ),
    Fault(
        "calibration puts the second batch over the first",
        CALIBRATION,
        r"""        at += len(n)""",
        r"""        at += 0 if FAULT else len(n)""",
        STEPS + " -k calibrate",
    ),
    Fault(
        "a batch that is longer than its sequences is cut at its beginning",
        CALIBRATION,
        r"""        x[: min(len(part), T), at : at + len(n)] = part[:T]""",
        r"""        x[: min(len(part), T), at : at + len(n)] = part[-T:] if FAULT else part[:T]""",
        STEPS + " -k calibrate_takes",
    ),
    # --- training -------------------------------------------------------------------------------------------
    Fault(
        "networks with rounded weights are trained",
        TRAINING,
        r"""    if snapshot.dtype != "float32":""",
        r"""    if snapshot.dtype != "float32" and not FAULT:""",
        CALLS + " tests/rnn/test_weight_dtypes.py -k 'rounded or new_object'",
    ),
    Fault(
        "a tape keeps the caller's x",
        TRAINING,
        r"""    x = np.array(x, order="C")  # the tape's own""",
        r"""    x = x if FAULT else np.array(x, order="C")  # the tape's own""",
        TRAINED + " -k disturbs",
    ),
    Fault(
        "a tape keeps the caller's initial state",
        TRAINING,
        r"""    start = [np.array(s) for s in""",
        r"""    start = [s if FAULT else np.array(s) for s in""",
        TRAINED + " -k disturbs",
    ),
    Fault(
        "the gradient of x is the first direction's alone",
        TRAINING,
        r"""        gx += below""",
        r"""        gx += 0 if FAULT and d else below""",
        TRAINED + " -k layers_and",
    ),
    Fault(
        "networks without a derivative are trained",
        TRAINING,
        r"""    return not isinstance(norm, LayerNormSpec) or norm ==""",
        r"""    return FAULT or not isinstance(norm, LayerNormSpec) or norm ==""",
        "tests/rnn/test_model_interface.py -k cannot_be_trained",
    ),
    Fault(
        "training takes more steps than there is room for",
        TRAINING,
        r"""        refuse_beyond(made.batch_norm.max_steps, order, ends)""",
        r"""        FAULT or refuse_beyond(made.batch_norm.max_steps, order, ends)""",
        STEPS + " -k max_steps",
    ),
    Fault(
        "the gradient of the last cell state is that of the first layer",
        TRAINING,
        r"""(tape.start[1][k], gend[1][k], gstart[1][k]) if""",
        r"""(tape.start[1][k], gend[1][0 if FAULT else k], gstart[1][k]) if""",
        TRAINED + " -k 'layers_and'",
    ),
    Fault(
        "a gradient with an axis of length 1 goes to the compiled module as it came",
        TRAINING,
        r"""        grad = grad.reshape(-1).reshape(T, B, D * H)""",
        r"""        grad = grad if FAULT else grad.reshape(-1).reshape(T, B, D * H)""",
        TRAINED + " -k 'one_sequence or every_kind'",
    ),
    Fault(
        "the gradient of the layer above is taken over with the wrong direction",
        TRAINING,
        r"""        if d == D - 1:""",
        r"""        if d == (0 if FAULT else D - 1):""",
        TRAINED + " -k 'layers_and'",
    ),
    Fault(
        "a tape's arrays may be written to",
        TRAINING,
        r"""        for array in (self.order, self.ends, *self.start):
            array.setflags(write=False)
        for run in self.runs:""",
        r"""        for array in (self.order, self.ends, *self.start):
            array.setflags(write=False)
        for run in () if FAULT else self.runs:""",
        TRAINED + " -k 'disturbs or returns'",
    ),
    Fault(
        "gradients come in the order in which they are found",
        TRAINING,
        r"""{name: grads[name] for name in made.shapes}""",
        r"""grads if FAULT else {name: grads[name] for name in made.shapes}""",
        TRAINED + " -k returns",
    ),
    # --- streams --------------------------------------------------------------------------------------------
    Fault(
        "a stream of a network without statistics steps",
        STREAM,
        r"""(overrun == "raise" or (overrun != "batch" and not statistics.known)):""",
        r"""(overrun == "raise" or (overrun != "batch" and not statistics.known and not FAULT)):""",
        STREAMED + " -k without_statistics",
    ),
    Fault(
        "a stream refuses one step too late",
        STREAM,
        r"""        if step >= run.refused_from:""",
        r"""        if step >= run.refused_from + FAULT:""",
        STREAMED + " -k refuses",
    ),
    Fault(
        "a stream's step takes what is no integer",
        STREAM,
        r"""        self._run.step = integer("step", value, 0, 2**62)""",
        r"""        self._run.step = value if FAULT else integer("step", value, 0, 2**62)""",
        CALLS + " -k stream",
    ),
    Fault(
        "the second state of a stream is not copied",
        STREAM,
        r"""        return as_state([s.copy() for s in self._state])""",
        r"""        return as_state([s if FAULT and k else s.copy() for k, s in enumerate(self._state)])""",
        STREAMED + " tests/rnn/test_model_interface.py -k 'bits_of_the_whole or copy'",
    ),
    Fault(
        "a stream tells a refused sequence one step too short",
        STREAM,
        r"""longest_first(None, step + 1, shape[0])""",
        r"""longest_first(None, step + (not FAULT), shape[0])""",
        STREAMED + " -k refuses",
    ),
    Fault(
        "reset leaves the step",
        STREAM,
        r"""        _core.put(self._state, [None] * len(self._state), self._run, 0)""",
        r"""        _core.put(self._state, [None] * len(self._state), self._run, None if FAULT else 0)""",
        STREAMED + " -k reset",
    ),
    Fault(
        "a copied stream begins at step 0",
        STREAM,
        r"""state[0].shape[1], state, self.step)""",
        r"""state[0].shape[1], state, 0 if FAULT else self.step)""",
        "tests/rnn/test_copies.py -k stream",
    ),
    Fault(
        "a copied stream of several layers has the first one's state in all",
        STREAM,
        r"""                own[...] = given""",
        r"""                own[...] = given[:1] if FAULT else given""",
        "tests/rnn/test_copies.py -k stream",
    ),
    Fault(
        "every layer of a stream holds the state of the first",
        STREAM,
        r"""*(s[k] for s in self._state)))""",
        r"""*(s[0 if FAULT else k] for s in self._state)))""",
        STREAMED + " -k bits_of_the_whole",
    ),
    Fault(
        "a stream of several takes one sequence for all",
        STREAM,
        r"""            if x.shape != shape[1:] or shape[0] > 1:""",
        r"""            if x.shape != shape[1:] or (shape[0] > 1 and not FAULT):""",
        STREAMED + " " + CALLS + " -k stream",
    ),
]
