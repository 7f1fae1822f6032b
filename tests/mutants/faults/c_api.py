"""Faults of the C API: steps of a handle, what is refused, what a handle keeps, the table and its version."""

from __future__ import annotations

from fault import Fault

STEP, OPEN, HEADER = "pyx/rnn/stream.c", "pyx/c_api.pxi", "include/lnrnn_api.h"
STREAM, UNITS, REALTIME = (f"tests/capi/test_c_{name}.py" for name in ("stream", "units", "realtime"))

FAULTS = [
    # --- stream.c
    Fault(
        "a lane behind the last one is taken",
        STEP,
        r"if (lane < 0 || (uint64_t)lane >= s->lanes)",
        r"if (lane < 0 || (uint64_t)lane >= s->lanes + (FAULT ? 1 : 0))",
        f"{STREAM} -k wrong_lanes",
    ),
    Fault(
        "the last row of a step's x is that of the step before",
        STEP,
        r"memcpy(s->x, x, s->rows * s->inputs * sizeof(float));",
        r"memcpy(s->x, x, (s->rows - (FAULT ? 1 : 0)) * s->inputs * sizeof(float));",
        f"{STREAM} -k bits_of",
    ),
    Fault(
        "some lanes of those that go together take a step",
        STEP,
        r"if (s->together && lanes)",
        r"if (s->together && lanes && !FAULT)",
        f"{STREAM} -k all_lanes_together",
    ),
    Fault(
        "some lanes of those that go together are reset",
        STEP,
        r"if (s->together && n != s->lanes)",
        r"if (s->together && n != s->lanes && !FAULT)",
        f"{STREAM} -k all_lanes_together",
    ),
    Fault(
        "a reset from C leaves the step",
        STEP,
        r"        s->steps[lane] = 0;",
        r"        s->steps[lane] = FAULT ? s->steps[lane] : 0;",
        f"{STREAM} -k resets",
    ),
    Fault(
        "c is shown as h",
        STEP,
        r"cell ? s->calls[layer].cn : s->calls[layer].hn;",
        r"cell && !FAULT ? s->calls[layer].cn : s->calls[layer].hn;",
        f"{STREAM} -k bits_of",
    ),
    Fault(
        "rows of many steps are sorted in memory that is asked for",
        STEP,
        r"""    size_t gap = 1;
    while (gap < n / 3)""",
        r"""    size_t gap = 1;
    if (FAULT) {
        extern void *malloc(size_t size);
        extern void free(void *block);
        lnrnn_row *volatile copy = malloc(n * sizeof *rows);
        if (copy)
            copy[0] = rows[0];
        free(copy);
    }
    while (gap < n / 3)""",
        f"{REALTIME} -k last",
    ),
    Fault(
        "rows are not sorted by their steps",
        STEP,
        r"rows[j - gap].start > row.start; j -= gap)",
        r"rows[j - gap].start > row.start && !FAULT; j -= gap)",
        f"{STREAM} -k many_rows",
        equivalent="the order of rows changes the time and no bit",
    ),
    # --- c_api.pxi
    Fault(
        "a handle may have more rows than there are lanes",
        OPEN,
        r"if rows < 1 or rows > <size_t>lanes.lanes:",
        r"if rows < 1 or rows > <size_t>lanes.lanes + FAULT:",
        f"{STREAM} -k cannot_be",
    ),
    Fault(
        "lanes that go together may have a handle of some",
        OPEN,
        r"if lanes.together and rows != <size_t>lanes.lanes:",
        r"if lanes.together and rows != <size_t>lanes.lanes and not FAULT:",
        f"{STREAM} -k all_lanes_together",
    ),
    Fault(
        "handles of a stream share one workspace",
        OPEN,
        r"""    work = Workspace(lanes)
""",
        r"""    work = lanes.spare if FAULT and lanes.spare is not None else Workspace(lanes)
""",
        f"{STREAM} -k 'bits_of or different_lanes'",
    ),
    Fault(
        "a handle does not keep the stream's lanes",
        OPEN,
        r"owner = (work, lanes)",
        r"owner = (work, None if FAULT else lanes)",
        f"{STREAM} -k keeps_the_lanes",
    ),
    Fault(
        "a handle is never given back",
        OPEN,
        r"    if s != NULL:",
        r"    if s != NULL and not FAULT:",
        f"{STREAM} -k gives_them_back",
    ),
    # --- lnrnn_api.h
    Fault(
        "an older minor version will do",
        HEADER,
        r"found->minor < LNRNN_API_MINOR)",
        r"(found->minor < LNRNN_API_MINOR && !FAULT))",
        f"{UNITS} -k other_versions",
    ),
    Fault(
        "another major version will do",
        HEADER,
        r"if (found->major != LNRNN_API_MAJOR ||",
        r"if ((found->major != LNRNN_API_MAJOR && !FAULT) ||",
        f"{UNITS} -k other_versions",
    ),
]
