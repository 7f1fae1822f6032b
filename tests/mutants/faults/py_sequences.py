"""Faults of what goes through a network: batches, statistics by step, calibration."""

from fault import Fault

BATCHES, STATISTICS = "lnrnn/rnn/batches.py", "lnrnn/rnn/statistics.py"
CALIBRATION = "lnrnn/rnn/calibration.py"
STEPS, CALLS = "tests/rnn/test_step_statistics.py", "tests/rnn/test_bad_calls.py"

FAULTS = [
    # --- batches --------------------------------------------------------------------------------------------
    Fault(
        "rows that do not begin at a multiple of four bytes are read as they are",
        BATCHES,
        r"""(step[0] | step[-2]) % 4""",
        r"""(0 if FAULT else (step[0] | step[-2]) % 4)""",
        "tests/rnn/test_resets.py -k every_layout",
    ),
    Fault(
        "features that do not lie side by side are read as if they did",
        BATCHES,
        r"""    return step[-1] == 4""",
        r"""    return (4 if FAULT else step[-1]) == 4""",
        "tests/rnn/test_forward.py tests/rnn/test_forward.py -k every_kind",
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
        r""" and x.flags.aligned""",
        r""" and (x.flags.aligned or FAULT)""",
        "tests/rnn/test_forward.py tests/rnn/test_forward.py -k every_kind",
    ),
    Fault(
        "lengths may be fractions",
        BATCHES,
        r"""    if given.dtype.kind not in "iu" and given.size:
        raise bad_type("lengths", """,
        r"""    if given.dtype.kind not in "iu" and given.size and not FAULT:
        raise bad_type("lengths", """,
        CALLS + " -k calls",
    ),
    Fault(
        "orders of batches that are kept for later may be written to",
        "lnrnn/rnn/rows.py",
        r"""    table.setflags(write=False)
""",
        r"""    FAULT or table.setflags(write=False)
""",
        "tests/rnn/test_forward.py -k layers",
        equivalent="no public function hands these arrays out, and nothing in the package writes to them",
    ),
    Fault(
        "lengths are read from the caller's array, which another thread changes",
        BATCHES,
        r"""    given = np.array(integers("lengths", lengths))""",
        r"""    given = integers("lengths", lengths) if FAULT else np.array(integers("lengths", lengths))""",
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
        "lnrnn/rnn/rows.py",
        r"""    return table[np.argsort(-table[:, LENGTH], kind="stable")]
""",
        r"""    if FAULT:
        return table[np.argsort(table[:, LENGTH], kind="stable")[::-1]]
    return table[np.argsort(-table[:, LENGTH], kind="stable")]
""",
        CALLS + " -k sequences_beyond",
        equivalent="a sequence's bits do not depend on its place, and a refusal names the first of the batch",
    ),
    Fault(
        "one sequence's state keeps its axis of the batch",
        BATCHES,
        r"""        found = [s[:, 0] for s in found]""",
        r"""        found = [s if FAULT else s[:, 0] for s in found]""",
        "tests/rnn/test_forward.py tests/rnn/test_forward.py -k one_sequence",
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
        r"""                mean, var = (
                    self.arrays[name][: None if FAULT and averages else self.known]
                    for name in _names(site.side)
                )
                if averages:""",
        "tests/rnn/test_step_statistics.py -k past_the_known",
    ),
    Fault(
        "a refusal names the longest sequence and not the first",
        STATISTICS,
        r"""sequence = int(table[over, SEQUENCE].min())""",
        r"""sequence = int(table[0, SEQUENCE]) if FAULT else int(table[over, SEQUENCE].min())""",
        STEPS + " -k 'max_steps or raise'",
    ),
    Fault(
        "a refusal tells the length of the longest",
        STATISTICS,
        r"""int(ends[table[:, SEQUENCE] == sequence].max())""",
        r"""int(ends[0] if FAULT else ends[table[:, SEQUENCE] == sequence].max())""",
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
        "tests/rnn/test_step_statistics.py -k counting_ends",
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
        STEPS + " tests/rnn/test_step_statistics.py -k 'grows or max_steps or momentum or pooled'",
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
        STEPS + " tests/rnn/test_copies.py -k 'copied or direction or state'",
    ),
    # --- calibration ----------------------------------------------------------------------------------------
    Fault(
        "calibration takes more steps than there is room for",
        CALIBRATION,
        r"""    refuse_beyond(made.batch_norm.max_steps, rows.table)""",
        r"""    FAULT or refuse_beyond(made.batch_norm.max_steps, rows.table)""",
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
        STEPS + " tests/rnn/test_step_statistics.py -k 'in_the_state or max_steps'",
    ),
    Fault(
        "calibration keeps an iterator's array, which is filled anew",
        CALIBRATION,
        r"""        parts.append((np.array(x), """,
        r"""        parts.append((x if FAULT else np.array(x), """,
        STEPS + " -k again_and_again",
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
        STEPS + " -k past_the_longest",
    ),
]
