"""Faults of Scorer and `lnrnn score`."""

from fault import Fault

ARROW, COLUMNS, SEQUENCES = "lnrnn/scoring/arrow.py", "lnrnn/scoring/columns.py", "lnrnn/scoring/sequences.py"
JOURNAL, MODELS, PARQUET = "lnrnn/scoring/journal.py", "lnrnn/scoring/models.py", "lnrnn/scoring/parquet.py"
PARTS, OUTPUT, PROCESSES = "lnrnn/scoring/parts.py", "lnrnn/scoring/output.py", "lnrnn/scoring/processes.py"
GROUPS = "lnrnn/scoring/row_groups.py"
SCORER, BAD, SCORE, RESUME, DYING = (
    f"tests/scoring/test_{name}.py"
    for name in ("scorer", "scorer_bad_input", "score", "score_resume", "processes")
)

FAULTS = [
    # --- sequences ------------------------------------------------------------------------------------------
    Fault(
        "values before the first row are the first row's",
        SEQUENCES,
        r"values, offsets = values[offsets[0] : offsets[-1]], offsets - offsets[0]",
        r"values, offsets = values[0 if FAULT else offsets[0] : offsets[-1]], offsets - offsets[0]",
        SCORER,
    ),
    Fault(
        "a row as long as the known steps is refused",
        SEQUENCES,
        r"np.flatnonzero(lengths > known)",
        r"np.flatnonzero(lengths >= known if FAULT else lengths > known)",
        BAD,
    ),
    Fault(
        "a mean is over the longest row's steps",
        SEQUENCES,
        r".sum(0, dtype=np.float64) / (end - first)",
        r".sum(0, dtype=np.float64) / (np.diff(offsets).max() if FAULT else end - first)",
        SCORER,
    ),
    Fault(
        "the last of a network of several layers is the first layer's",
        SEQUENCES,
        r"last = h[-model.num_directions :]",
        r"last = h[: model.num_directions] if FAULT else h[-model.num_directions :]",
        SCORER,
    ),
    Fault(
        "results of a piece stand in the order of their lengths",
        SEQUENCES,
        r"""        found[steps if into == "all" else part] = result""",
        r"""        where = steps if into == "all" else part
        found[np.sort(where) if FAULT else where] = result""",
        SCORER,
    ),
    Fault(
        "rows without steps are no part of a piece, which grows without bound",
        SEQUENCES,
        r"ends = np.cumsum(np.maximum(lengths[order], 1))",
        r"ends = np.cumsum(np.maximum(lengths[order], 0 if FAULT else 1))",
        SCORER,
    ),
    # --- columns, arrow -------------------------------------------------------------------------------------
    Fault(
        "a column of the result's name is written over",
        COLUMNS,
        r"    if output in names:",
        r"    if output in names and not FAULT:",
        BAD,
    ),
    Fault(
        "offsets may fall",
        COLUMNS,
        r"fall = np.flatnonzero(np.diff(at) < 0)",
        r"fall = np.flatnonzero(np.diff(at) < 0)[: 0 if FAULT else None]",
        BAD,
    ),
    Fault(
        "offsets may point past the values",
        COLUMNS,
        r"if at[0] < 0 or at[-1] > len(flat):",
        r"if at[0] < 0 or (at[-1] > len(flat) and not FAULT):",
        BAD,
    ),
    Fault(
        "a slice of Arrow begins where its array does",
        ARROW,
        r"return np.frombuffer(buffer, dtype, first + count)[first:]",
        r"return np.frombuffer(buffer, dtype, first + count)[0 if FAULT else first :][:count]",
        SCORER,
    ),
    Fault(
        "nulls of a slice are those of the rows before it",
        ARROW,
        r"""bitorder="little")[first % 8 :]""",
        r"""bitorder="little")[0 if FAULT else first % 8 :]""",
        SCORER,
    ),
    Fault(
        "a null inside a step is a number",
        ARROW,
        r"    holes = _nulls(numbers) if numbers.null_count else None",
        r"    holes = _nulls(numbers) if numbers.null_count and not FAULT else None",
        BAD,
    ),
    Fault(
        "the step that is bad is counted from the column's beginning",
        ARROW,
        r"step {place - offsets[row]} {wrong",
        r"step {place - (0 if FAULT else offsets[row])} {wrong",
        BAD,
    ),
    # --- models ---------------------------------------------------------------------------------------------
    Fault(
        "a model that was written over is the old one",
        MODELS,
        r"    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns",
        r"    return () if FAULT else (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)",
        SCORER,
    ),
    Fault(
        "a model whose results depend on the batch is taken",
        MODELS,
        r"""    if model.overrun == "batch":""",
        r"""    if model.overrun == "batch" and not FAULT:""",
        BAD,
    ),
    Fault(
        "a worker takes whatever model is there",
        MODELS,
        r"found = kept[0] if kept else digest(path)",
        r"found = sha256 if FAULT else kept[0] if kept else digest(path)",
        RESUME,
    ),
    # --- lnrnn score ----------------------------------------------------------------------------------------
    Fault(
        "an input that was written to is gone on with",
        PARQUET,
        r"    if [found.st_size, found.st_mtime_ns] != [was[BYTES], was[TIME]]:",
        r"    if [found.st_size, found.st_mtime_ns] != [was[BYTES], was[TIME]] and not FAULT:",
        RESUME,
    ),
    Fault(
        "another option is gone on with",
        JOURNAL,
        r"            if old != new and (name, old, new) not in harmless:",
        r"            if old != new and (name, old, new) not in harmless and not FAULT:",
        RESUME,
    ),
    Fault(
        "a second writer is let in",
        JOURNAL,
        r"fcntl.LOCK_EX | fcntl.LOCK_NB",
        r"(fcntl.LOCK_SH if FAULT else fcntl.LOCK_EX) | fcntl.LOCK_NB",
        RESUME,
    ),
    Fault(
        "results are published before the bad rows beside them",
        JOURNAL,
        "        if bad is not None:\n            os.replace(bad, self.part(index, bad=True))\n"
        "        os.replace(results, self.part(index))",
        "        if FAULT:\n            os.replace(results, self.part(index))\n"
        "        if bad is not None:\n            os.replace(bad, self.part(index, bad=True))\n"
        "        if not FAULT:\n            os.replace(results, self.part(index))",
        RESUME,
        equivalent="results say how many bad rows there are: without the list of these, they are no part",
    ),
    Fault(
        "a part that is cut off counts as done",
        PARTS,
        "TypeError, ValueError):\n        return False\n",
        "TypeError, ValueError):\n        return FAULT\n",
        RESUME,
    ),
    Fault(
        "the number of a bad row is counted in its row group",
        GROUPS,
        r"for k in range(index))",
        r"for k in range(0 if FAULT else index))",
        SCORE,
    ),
    Fault(
        "a worker with other kernels computes",
        "lnrnn/scoring/scorer.py",
        r"""if isa != scorer.isa != "any":""",
        r"""if isa != scorer.isa != "any" and not FAULT:""",
        RESUME,
    ),
    Fault(
        "bad rows are listed and not counted",
        OUTPUT,
        r"self.scored[name] += facts[name]",
        r"self.scored[name] += 0 if FAULT and name == 'bad rows' else facts[name]",
        SCORE,
    ),
    # --- processes ------------------------------------------------------------------------------------------
    Fault(
        "what a process that died had is forgotten",
        PROCESSES,
        r"left.extendleft(worker.given[::-1])",
        r"left.extendleft([] if FAULT else worker.given[::-1])",
        f"{DYING} {RESUME} -k 'die or dies or kill'",
    ),
    Fault(
        "a row group that waited in a process that died is blamed too",
        PROCESSES,
        r"at_work = worker.given[:1]",
        r"at_work = worker.given[-1:] if FAULT else worker.given[:1]",
        f"{DYING} {RESUME}",
    ),
    Fault(
        "a row group that kills every process is computed for ever",
        PROCESSES,
        r"if at_work and died[at_work[0]] == TRIES:",
        r"if at_work and died[at_work[0]] == TRIES and not FAULT:",
        f"{RESUME} -k ends_every",
    ),
    Fault(
        "the first process gets two of the last row groups",
        PROCESSES,
        r"(2 if len(left) > workers else 1)",
        r"(2 if FAULT or len(left) > workers else 1)",
        DYING,
    ),
]
