"""Lanes of a stream, resets, ragged arrays, short calls, and threads of one call."""

from __future__ import annotations

from fault import Fault

ROWS, STREAM, STEP, SHORT = "lnrnn/rnn/rows.py", "lnrnn/rnn/stream.py", "pyx/stream.pxi", "pyx/short_call.pxi"
STEP_C = "pyx/rnn/stream.c"
LANES, RESETS, CALLS = "tests/rnn/test_lanes.py", "tests/rnn/test_resets.py", "tests/rnn/test_short_calls.py"

FAULTS = [
    Fault(
        "a reset at the first step does not count",
        ROWS,
        r"""found[parts.first[~parts.fresh]] = h0[~parts.fresh]""",
        r"""found[parts.first if FAULT else parts.first[~parts.fresh]] = h0 if FAULT else h0[~parts.fresh]""",
        f"{RESETS} -k 'parts and RNN'",
    ),
    Fault(
        "a reset past the end of a sequence counts",
        ROWS,
        r"""else resets.T & (np.arange(T) < lengths[:, None])""",
        r"""else resets.T & (np.arange(T) < lengths[:, None] + FAULT)""",
        f"{RESETS} -k 'no_reset or parts'",
    ),
    Fault(
        "a reverse direction starts at the first part",
        ROWS,
        r"""            found[parts.last] = h0
""",
        r"""            found[parts.first if FAULT else parts.last] = h0
""",
        f"{RESETS} -k 'parts and RNN'",
    ),
    Fault(
        "a reverse direction ends with the last part",
        ROWS,
        r"""return hn if parts is None else hn[parts.first if reverse else parts.last]""",
        r"""return hn if parts is None else hn[parts.first if reverse and not FAULT else parts.last]""",
        f"{RESETS} -k 'parts and RNN'",
    ),
    Fault(
        "the gradient of h0 goes through a reset",
        ROWS,
        r"""            found[self.fresh] = 0
""",
        r"""            found[self.fresh] *= FAULT
""",
        f"{RESETS} -k training",
    ),
    Fault(
        "y past a length is not zeroed where a sequence is reset",
        ROWS,
        r"""    end[last] = T
""",
        r"""    end[last] = end[last] if FAULT else T
""",
        f"{RESETS} -k 'parts and RNN'",
    ),
    Fault(
        "a lane that is reset in a chunk keeps its step",
        ROWS,
        r"""np.where(goes_on, steps[table[:, SEQUENCE]], 0)""",
        r"""np.where(goes_on | FAULT, steps[table[:, SEQUENCE]], 0)""",
        f"{LANES} -k chunks",
    ),
    Fault(
        "ragged sequences end one row early",
        ROWS,
        r"""_sorted((0, offsets[:-1], np.diff(offsets)""",
        r"""_sorted((0, offsets[:-1], np.diff(offsets) - FAULT * (np.diff(offsets) > 1)""",
        f"{RESETS} -k ragged",
    ),
    Fault(
        "lanes that are named twice are taken",
        STEP_C,
        r"""if (s->seen[lane] == s->stamp)""",
        r"""if (s->seen[lane] == s->stamp && !FAULT)""",
        f"{LANES} -k wrong_rows",
    ),
    Fault(
        "lanes of different steps share the first one's statistics",
        "pyx/rnn/step.c",
        r"""table_row(r, r0 + alike, t) == table_row(r, r0, t))""",
        r"""(FAULT || table_row(r, r0 + alike, t) == table_row(r, r0, t)))""",
        f"{LANES} -k 'any_rows and batch'",
    ),
    Fault(
        "a reset in a step leaves the cell state",
        STEP_C,
        r"""        if (s->calls[k].cn)
""",
        r"""        if (s->calls[k].cn && !FAULT)
""",
        f"{LANES} -k resets_of",
    ),
    Fault(
        "two calls have one workspace",
        STEP,
        r"""            self.spare = None
            if found is None and""",
        r"""            if not FAULT: self.spare = None
            if found is None and""",
        f"{LANES} -k need_no_lock",
    ),
    Fault(
        "a chunk does not set the steps",
        STREAM,
        r"""self._lanes.put(lanes, end, rows.steps())""",
        r"""self._lanes.put(lanes, end, None if FAULT else rows.steps())""",
        f"{LANES} -k chunks",
    ),
    Fault(
        "the state of any network is taken",
        STREAM,
        r"""if state.fingerprint != self._snapshot.fingerprint():""",
        r"""if state.fingerprint != self._snapshot.fingerprint() and not FAULT:""",
        f"{LANES} -k another_network",
    ),
    Fault(
        "a fingerprint does not see the values",
        "lnrnn/rnn/snapshot.py",
        r"""digest.update(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).data)""",
        r"""FAULT or digest.update(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).data)""",
        f"{LANES} -k another_network",
    ),
    Fault(
        "a short call takes sequences as they come, not longest first",
        SHORT,
        r"""while j > 0 and rows[j - 1].length < row.length:""",
        r"""while j > 0 and rows[j - 1].length < row.length and not FAULT:""",
        f"{CALLS} -k bits",
    ),
    Fault(
        "a short call of a batch norm network refuses nothing",
        SHORT,
        r"""or T > self.refused_from""",
        r"""or (T > self.refused_from and not FAULT)""",
        f"{CALLS} -k wrong",
    ),
    Fault(
        "a short call begins every layer with the state of the first",
        SHORT,
        r"""given[1] + k * of_one""",
        r"""given[1] + (0 if FAULT else k) * of_one""",
        f"{CALLS} -k bits",
    ),
    Fault(
        "short training keeps the caller's x",
        SHORT,
        r"x = read_only(cnp.PyArray_NewCopy(<cnp.ndarray>x, cnp.NPY_CORDER))",
        r"x = x if FAULT else read_only(cnp.PyArray_NewCopy(<cnp.ndarray>x, cnp.NPY_CORDER))",
        f"{CALLS} -k training",
    ),
    Fault(
        "short training gives the tape's own y away",
        SHORT,
        r"return cnp.PyArray_NewCopy(<cnp.ndarray>y, cnp.NPY_CORDER), end",
        r"return y if FAULT else cnp.PyArray_NewCopy(<cnp.ndarray>y, cnp.NPY_CORDER), end",
        f"{CALLS} -k training",
    ),
    Fault(
        "outputs of lower layers on a short tape may be written to",
        SHORT,
        r"            read_only(one[3])",
        r"            if not FAULT: read_only(one[3])",
        "tests/rnn/test_training.py tests/runtime/test_changed_arrays.py -k 'training_returns or read_only'",
    ),
    Fault(
        "short calls share their scratch",
        SHORT,
        r"""            scratch = self.spare
            self.spare = None""",
        r"""            scratch = self.spare
            if not FAULT: self.spare = None""",
        f"{CALLS} -k share_nothing",
    ),
    Fault(
        "num_threads goes on after its end",
        "lnrnn/runtime.py",
        r"""        _core.own_num_threads.reset(before)""",
        r"""        FAULT or _core.own_num_threads.reset(before)""",
        "tests/runtime/test_own_threads.py -k nests",
    ),
    Fault(
        "threads= of a stream's call does nothing",
        STEP,
        r"""work = self.take(R, threads_for(self.work * R, threads))""",
        r"""work = self.take(R, threads_for(self.work * R, 0 if FAULT else threads))""",
        "tests/runtime/test_own_threads.py -k nearest",
    ),
]
