"""Faults of the recurrent layer, forward: configuration, plan, rows, the time loop, threads for units."""

from fault import Fault

FORWARD, FORWARD_RNN = "tests/rnn/test_forward.py", "tests/rnn/test_forward.py"
BITS, PARTS = "tests/rnn/test_equal_bits.py", "tests/runtime/test_interrupts.py"
TRAINING, STEPS = "tests/rnn/test_training.py", "tests/rnn/test_step_statistics.py"
GATED, GRIDS = "tests/rnn/test_step_statistics.py", "tests/rnn/test_partitions.py"

FAULTS = [
    # --- config.c
    Fault(
        "the norm of a split GRU over all gates leaves out the last",
        "pyx/rnn/config.c",
        r"if (spans == LNRNN_SPANS_LAST && c->span == LNRNN_SPAN_ALL)",
        r"if (spans == LNRNN_SPANS_LAST && c->span == LNRNN_SPAN_ALL && !FAULT)",
        f"{FORWARD} -k 'fifty and all and GRU'",
    ),
    # --- rows.h
    Fault(
        "a sequence that is read backwards begins at the end of the padding",
        "pyx/rnn/rows.h",
        r"""row->length - 1 - (int64_t)t""",
        r"""(FAULT ? (int64_t)r->T : row->length) - 1 - (int64_t)t""",
        f"{FORWARD} -k layers_directions",
    ),
    Fault(
        "a sequence is active for a step after its end",
        "pyx/rnn/rows.h",
        r"""while (active && row_length(r, r0 + active - 1) <= t)""",
        r"""while (active && row_length(r, r0 + active - 1) + (FAULT && t + 1 < r->T ? 1 : 0) <= t)""",
        f"{BITS} -k 'padding and avx2 and layer'",
    ),
    Fault(
        "a group's part of the tape is found as if all its sequences were as long as the first",
        "pyx/rnn/rows.h",
        r"""n += row_length(r, i) < t ? row_length(r, i) : t;""",
        r"""n += !FAULT && row_length(r, i) < t ? row_length(r, i) : t;""",
        f"{TRAINING} -k layers_and_directions",
    ),
    # --- plan.c
    Fault(
        "training uses the statistics of known steps",
        "pyx/rnn/plan.c",
        "    if (r->count)\n        return 0;",
        "    if (r->count)\n        return FAULT ? c->known : 0;",
        f"{STEPS} -k 'momentum'",
    ),
    Fault(
        "a stream that was made while the cores were oversubscribed keeps to one thread",
        "pyx/rnn/plan.c",
        "    p->brief = multiply_adds < LNRNN_LARGE_WORK;",
        "    p->brief = multiply_adds < LNRNN_LARGE_WORK;\n"
        "    if (FAULT && lnrnn_oversubscribed())\n        p->threads = 1;",
        "tests/runtime/test_back_off.py",
    ),
    Fault(
        "short calls have all threads while the cores are oversubscribed",
        "pyx/rnn/plan.c",
        "return p->brief && p->threads > 1",
        "return !FAULT && p->brief && p->threads > 1",
        "tests/runtime/test_back_off.py",
    ),
    Fault(
        "the statistics of the input side are overwritten by those of the hidden side",
        "pyx/rnn/forward.c",
        r"m->statistics + lnrnn_statistics_work(config));",
        r"m->statistics + (FAULT ? 0 : lnrnn_statistics_work(config)));",
        f"{GATED} -k 'calibrate and avx2'",
    ),
    Fault(
        "the statistics of both sides have the memory of one",
        "pyx/rnn/plan.c",
        r"(p->synchronous ? 2 * lnrnn_statistics_work(c) : 0);",
        r"(p->synchronous ? (FAULT ? 1 : 2) * lnrnn_statistics_work(c) : 0);",
        "tests/rnn/test_zoneout.py -k calibrate",
    ),
    Fault(
        "W x is normalised by the statistics of W h where a batch gives both",
        "pyx/rnn/step.c",
        r"norm_of_step(r, LNRNN_SITE_INPUT, r0 + i, t, folds->input, &input);",
        r"norm_of_step(r, LNRNN_SITE_INPUT, r0 + i, t, FAULT ? folds->hidden : folds->input, &input);",
        f"{GATED} -k 'calibrate and avx2'",
    ),
    Fault(
        "threads divide the units of a step that needs the statistics of the batch",
        "pyx/rnn/plan.c",
        r"if (p->threads < 2 || p->synchronous || r->tape",
        r"if (p->threads < 2 || (p->synchronous && !FAULT) || r->tape",
        f"{BITS} -k 'few_sequences and avx2'",
    ),
    Fault(
        "groups whose units are divided share the memory of one",
        "pyx/rnn/plan.c",
        r"(p->divide_units ? p->groups : 0) * p->scratch.shared",
        r"(p->divide_units && !FAULT ? p->groups : 0) * p->scratch.shared",
        f"{GRIDS} -k 'same_bits and LSTM'",
    ),
    # --- cost_model.c
    Fault(
        "a partition whose threads divide units costs no barrier",
        "pyx/rnn/cost_model.c",
        r"(p.rows ? 2 : 1) * (f.barrier",
        r"(FAULT ? 0 : p.rows ? 2 : 1) * (f.barrier",
        f"{GRIDS} -k 'barriers_are_counted'",
    ),
    Fault(
        "memory gives every thread as much as it gives one",
        "pyx/rnn/cost_model.c",
        r"f.all_memory / n < f.memory ?",
        r"!FAULT && f.all_memory / n < f.memory ?",
        f"{GRIDS} -k 'shared_by_all'",
    ),
    Fault(
        "a share of weights is read as if all of them were",
        "pyx/rnn/cost_model.c",
        r"rates_of(panels * hidden,",
        r"rates_of((FAULT ? 1 : panels) * hidden,",
        f"{GRIDS} -k 'share_that_l2_holds'",
    ),
    Fault(
        "a group of no sequences is divided by",
        "pyx/rnn/plan.c",
        r"if (p->group < 1)",
        r"if (p->group < 1 && !FAULT)",
        f"{TRAINING} -k nothing_to_learn",
    ),
    Fault(
        "groups that keep a tape have parts of blocks of sums",
        "pyx/rnn/plan.c",
        r"    if (!p->synchronous && r->tape)",
        r"    if (!p->synchronous && r->tape && !FAULT)",
        f"{TRAINING} -k 'threads'",
    ),
    Fault(
        "the products of two steps share their memory where threads divide the units",
        "pyx/rnn/plan.c",
        r"(c->separate_products ? 2 * rows : 0);",
        r"(c->separate_products ? (FAULT ? 1 : 2) * rows : 0);",
        f"{BITS} -k 'threads and avx2 and GRU'",
    ),
    # --- forward.c
    Fault(
        "the inner bias of the input side is missing in whole tiles after the first step",
        "pyx/rnn/forward.c",
        "product(r, &w_ih, n, rows, share, x, xs, work);\n                x +=",
        "weights_used used = w_ih;\n                if (FAULT && t > t0)\n"
        "                    used.inner = NULL;\n"
        "                product(r, &used, n, rows, share, x, xs, work);\n                x +=",
        f"{FORWARD} -k 'fifty and True and joint and LSTM'",
    ),
    Fault(
        "the inner bias of the input side is missing in the last tile",
        "pyx/rnn/forward.c",
        "    if (n)\n        product(r, &w_ih, n, rows, share, x, xs, work);",
        "    weights_used used = w_ih;\n    if (FAULT)\n        used.inner = NULL;\n    if (n)\n"
        "        product(r, &used, n, rows, share, x, xs, work);",
        f"{FORWARD} -k 'fifty and True and joint and LSTM'",
    ),
    Fault(
        "of the panels of a thread that is not the first only one gets the inner bias",
        "pyx/rnn/forward.c",
        r"const size_t from = k->start(N, p0), end = k->start(N, p1),",
        r"const size_t from = k->start(N, p0), end = k->start(N, FAULT && p0 ? p0 + 1 : p1),",
        f"{BITS} -k 'threads and avx2'",
    ),
    Fault(
        "of a panel that is cut the second thread has one row less",
        "pyx/rnn/forward.c",
        r"panels_product(r, u, n - before, rows + before,",
        r"panels_product(r, u, n - before - (FAULT && n > 8), rows + before,",
        f"{GRIDS} -k 'same_bits and RNN'",
    ),
    Fault(
        "of a panel that is cut the first thread has one row less",
        "pyx/rnn/forward.c",
        r"panels_product(r, u, end, rows, p1, p1 + 1,",
        r"panels_product(r, u, end - (FAULT && end > 4), rows, p1, p1 + 1,",
        f"{GRIDS} -k 'same_bits and RNN'",
    ),
    Fault(
        "a share that lies within one panel is not computed",
        "pyx/rnn/forward.c",
        r"panels_product(r, u, end - before, rows + before, p0, p0 + 1,",
        r"panels_product(r, u, FAULT ? 0 : end - before, rows + before, p0, p0 + 1,",
        f"{GRIDS} -k within_one_panel",
    ),
    Fault(
        "c begins again from c0 in every part of a call",
        "pyx/rnn/forward.c",
        "    if (t0 == 0)\n        lnrnn_begin_rows(r, r0, rows);",
        "    if (t0 == 0 || FAULT)\n        lnrnn_begin_rows(r, r0, rows);",
        f"{PARTS} -k 'inference and groups and LSTM'",
    ),
    Fault(
        "the last state is written after the first part of a call",
        "pyx/rnn/forward.c",
        "    *position = t0;\n    if (t0 >= steps) {\n        lnrnn_finish_rows(r, r0, rows);",
        "    if (FAULT && *position == 0)\n        lnrnn_finish_rows(r, r0, rows);\n"
        "    *position = t0;\n    if (t0 >= steps) {\n        if (!FAULT)\n"
        "            lnrnn_finish_rows(r, r0, rows);",
        f"{PARTS} -k 'inference and groups and RNN'",
    ),
    Fault(
        "the first step after a sequence's end is not zeroed",
        "pyx/rnn/forward.c",
        r"""for (int64_t t = row->first + row->length; t < row->end; t++)""",
        r"""for (int64_t t = row->first + row->length + (FAULT && row->length ? 1 : 0); t < row->end; t++)""",
        f"{FORWARD} -k layers_directions",
    ),
    Fault(
        "outputs that wait for the statistics of c are those of the first 64 sequences",
        "pyx/rnn/forward.c",
        "        state_rows(r, r0 + i, n, t, h_prev, c, h);\n        lnrnn_step_output",
        "        state_rows(r, r0 + (FAULT ? 0 : i), n, t, h_prev, c, h);\n        lnrnn_step_output",
        f"{TRAINING} -k 'every_size and LSTM and batch'",
    ),
    Fault(
        "the second 64 sequences of a step take their hidden product from the first",
        "pyx/rnn/forward.c",
        r"h_prev[j] = h_row(r, r0 + i + j, t);",
        r"h_prev[j] = h_row(r, r0 + (FAULT ? 0 : i) + j, t);",
        f"{TRAINING} -k 'every_size and tanh and batch'",
    ),
    Fault(
        "calls in parts spend nothing, and never stop within a group",
        "pyx/rnn/forward.c",
        "    spend(left, spent < most ? spent : most);\n    return t1;",
        "    spend(left, FAULT ? 0 : spent < most ? spent : most);\n    return t1;",
        f"{PARTS} -k 'signals_are_handled and call'",
    ),
    # --- split.c
    Fault(
        "the share of the last thread is too small",
        "pyx/rnn/split.c",
        r".share = lnrnn_share_of(r, index, (size_t)each),",
        r".share = lnrnn_share_of(r, index, (size_t)each + (FAULT && each > 1 && (int)index == each - 1)),",
        f"{BITS} -k 'threads and avx2 and units'",
    ),
    Fault(
        "threads that divide the units begin every part of a call with c0",
        "pyx/rnn/split.c",
        r"(t0 ? r->cn : r->c0)",
        r"(t0 && !FAULT ? r->cn : r->c0)",
        f"{PARTS} -k 'divided_units and LSTM'",
    ),
    Fault(
        "threads that divide the units begin a part of a call with their own old h",
        "pyx/rnn/split.c",
        r"if (t > w->first_step)",
        r"if (FAULT ? t > 0 : t > w->first_step)",
        f"{PARTS} -k lost_its",
    ),
    Fault(
        "c is changed while other threads still read it",
        "pyx/rnn/split.c",
        r"if (r->cn) /* before",
        r"if (r->cn && !FAULT) /* before",
        f"{BITS} -k 'threads_within and avx2 and LSTM'",
        equivalent="c is first changed after the next barrier, that of the first step's hidden product",
    ),
    Fault(
        "W_hh h is added to W_ih x that another thread is still computing",
        "pyx/rnn/split.c",
        "    if (!separate) /* the rows",
        "    if (!separate && !FAULT) /* the rows",
        f"{BITS} -k 'out_of_step and avx2'",
    ),
    Fault(
        "a step's hidden product is read before all threads have theirs",
        "pyx/rnn/split.c",
        "        own_columns(w, active, t, hidden);\n        wait_for_all(w);",
        "        own_columns(w, active, t, hidden);\n        if (!FAULT)\n            wait_for_all(w);",
        f"{BITS} -k 'out_of_step and avx2'",
    ),
    Fault(
        "two steps have one buffer for the hidden product",
        "pyx/rnn/split.c",
        r"w->m.hidden + t % 2 * r->plan->group * wide : x;",
        r"w->m.hidden + (FAULT ? 0 : t % 2) * r->plan->group * wide : x;",
        f"{BITS} -k 'out_of_step and avx2'",
    ),
    Fault(
        "a chunk is overwritten while other threads still read it",
        "pyx/rnn/split.c",
        "                w->group->alone = __atomic_load_n(&w->group->barrier.oversubscribed,"
        " __ATOMIC_RELAXED);\n"
        "            wait_for_all(w);",
        "                w->group->alone = !FAULT && __atomic_load_n(&w->group->barrier.oversubscribed,"
        " __ATOMIC_RELAXED);\n            if (!FAULT)\n                wait_for_all(w);",
        f"{BITS} -k 'out_of_step and avx2 and staggered'",
    ),
    Fault(
        "who goes on alone computes its own share only",
        "pyx/rnn/split.c",
        r"w->team = 1, w->share = lnrnn_share_of(r, 0, 1);",
        r"w->team = 1, w->share = FAULT ? w->share : lnrnn_share_of(r, 0, 1);",
        f"{BITS} -k 'out_of_step and avx2 and slow'",
    ),
    Fault(
        "where rows are divided, a step begins before all states of the last one are there",
        "pyx/rnn/split.c",
        r"if (divided && t + 1 < t1) /* a chunk",
        r"if (divided && t + 1 < t1 && !FAULT) /* a chunk",
        f"{GRIDS} -k 'out_of_step and staggered'",
    ),
    Fault(
        "where rows are divided, the last row of each thread is nobody's",
        "pyx/rnn/split.c",
        r"end = divided ? active * (index + 1) / team : active;",
        r"end = divided ? active * (index + 1) / team - (FAULT && team > 1 && active > team) : active;",
        f"{GRIDS} -k 'same_bits and RNN'",
    ),
    Fault(
        "the rows of the second group are those of the first",
        "pyx/rnn/split.c",
        r"state_rows(w->r, w->r0 + first, n, t, h_prev, c, h);",
        r"state_rows(w->r, (FAULT ? 0 : w->r0) + first, n, t, h_prev, c, h);",
        f"{GRIDS} -k 'same_bits and RNN'",
    ),
    Fault(
        "fewer threads than groups leave the last groups out",
        "pyx/rnn/split.c",
        r"g < groups && left > 0; g += at_a_time)",
        r"g < groups && left > 0; g += FAULT ? groups : at_a_time)",
        f"{GRIDS} -k 'fewer_threads'",
    ),
    # --- step.c
    Fault(
        "the first step that nobody knows takes a row of its own",
        "pyx/rnn/step.c",
        r"""return step < r->config->known ? step : (size_t)r->config->overrun_row;""",
        r"""return step < r->config->known + (FAULT ? 1 : 0) ? step : (size_t)r->config->overrun_row;""",
        f"{STEPS} -k 'test_overrun and avx2 and last'",
    ),
    Fault(
        "every call of a stream takes the statistics of the first step",
        "pyx/rnn/step.c",
        r"""const size_t step = (size_t)r->rows[i].start + t;""",
        r"""const size_t step = (FAULT ? 0 : (size_t)r->rows[i].start) + t;""",
        f"{STEPS} -k 'a_stream_does and avx2 and last'",
    ),
    Fault(
        "variances of a step are divided by n - 1",
        "pyx/rnn/step.c",
        r"m2[i] / (double)active;",
        r"m2[i] / (double)(FAULT && active > 1 ? active - 1 : active);",
        f"{STEPS} -k 'living and avx2 and None'",
    ),
    Fault(
        "the statistics of the batch lack the mean of c",
        "pyx/rnn/step.c",
        r"of_step->mean = fold.mean, of_step->gain = fold.scale,",
        r"of_step->mean = FAULT && site == LNRNN_SITE_CELL ? NULL : fold.mean, of_step->gain = fold.scale,",
        f"{GATED} -k 'calibrate and avx2 and LSTM'",
    ),
    Fault(
        "c is normalised with the statistics of known steps where those of the batch are asked for",
        "pyx/rnn/step.c",
        r""".cell = norm_of_step(r, LNRNN_SITE_CELL, r0, t, fold, &cell),""",
        r".cell = norm_of_step(r, LNRNN_SITE_CELL, r0, t, FAULT && r->config->known ? (lnrnn_fold){0} :"
        r" fold, &cell),",
        f"{GATED} -k 'past_the_known and LSTM and batch'",
    ),
    Fault(
        "the variance of the batch has no eps",
        "pyx/rnn/step.c",
        r".eps = (double)r->config->eps};",
        r".eps = FAULT ? 0 : (double)r->config->eps};",
        f"{TRAINING} -k 'what_training and avx2 and batch'",
    ),
]
