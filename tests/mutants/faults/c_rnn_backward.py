"""Faults of the recurrent layer, backward: through time, and the gradients of the weights."""

from fault import Fault

TIME, WEIGHTS = "pyx/rnn/backward.c", "pyx/rnn/weight_gradients.c"
TRAINING, CANCELLATION = "tests/rnn/test_training.py", "tests/rnn/test_cancellation.py"
PARTS = "tests/runtime/test_interrupts.py"

FAULTS = [
    Fault(
        "the gradient of a step's gain forgets what rounding takes from the mean",
        TIME,
        r"sgx = s1[o] - low * s0[o],",
        r"sgx = s1[o] - (FAULT ? 0 : low * s0[o]),",
        f"{CANCELLATION} -k 'goes_back and avx2'",
    ),
    Fault(
        "the shift of a step's gradient forgets what rounding takes from the mean",
        TIME,
        r"c1[o] = (float)(s0[o] / n - low * slope);",
        r"c1[o] = (float)(s0[o] / n - (FAULT ? 0 : low * slope));",
        f"{TRAINING} {CANCELLATION} -k '(goes_back and avx2) or (amplify and batch)'",
    ),
    Fault(
        "gradients of r and z of a split GRU go through a norm over all gates",
        TIME,
        r"return norm->spans == LNRNN_SPANS_LAST && from == 0 ? n - norm->H : n;",
        r"return norm->spans == LNRNN_SPANS_LAST && from == 0 && !FAULT ? n - norm->H : n;",
        f"{TRAINING} -k 'every_size and GRU and layer'",
    ),
    Fault(
        "a site that stands for part of a row reads the bias of its beginning",
        TIME,
        r"g.bias += from;",
        r"if (!FAULT) g.bias += from;",
        f"{TRAINING} -k 'every_size and GRU and layer'",
    ),
    Fault(
        "a site that stands for part of a row reads the gain of its beginning",
        TIME,
        r"g.gain += from;",
        r"g.gain += FAULT ? 0 : from;",
        f"{TRAINING} -k 'every_size and GRU and layer'",
    ),
    Fault(
        "c before the step of the second 64 sequences comes with the gradients of the first",
        TIME,
        r"b.gc += TILE * b.hs, b.gu += TILE * b.hs;",
        r"b.gc += TILE * b.hs, b.gu += FAULT ? 0 : TILE * b.hs;",
        f"{TRAINING} -k 'every_size and LSTM and batch'",
    ),
    Fault(
        "the gradient of h goes to the first 64 sequences",
        TIME,
        r"m->gh + i * j->narrow, j->narrow);",
        r"m->gh + (FAULT ? 0 : i) * j->narrow, j->narrow);",
        f"{TRAINING} -k 'every_size and batch and tanh'",
    ),
    Fault(
        "the gradient of cn is not taken",
        TIME,
        r"memcpy(m->gc + i * narrow, j->g->gcn + row, bytes);",
        r"if (!FAULT) memcpy(m->gc + i * narrow, j->g->gcn + row, bytes);",
        f"{TRAINING} -k 'every_size and LSTM and None'",
    ),
    Fault(
        "all sequences get the first one's gradient of c0",
        TIME,
        r"memcpy(j->g->gc0 + row, m->gc + i * j->narrow, bytes);",
        r"memcpy(j->g->gc0 + row, m->gc + (FAULT ? 0 : i) * j->narrow, bytes);",
        f"{TRAINING} -k 'every_size and LSTM and None'",
    ),
    Fault(
        "the rows before a step are counted with those that are not yet active",
        TIME,
        r"s.earlier = s.pos - active_before;",
        r"s.earlier = s.pos - (FAULT ? s.active : active_before);",
        f"{TRAINING} -k 'every_size and LSTM and None'",
    ),
    Fault(
        "gradients of gains begin again with every part of a call",
        TIME,
        r"if (j->back[group] == 0)",
        r"if (j->back[group] == 0 || FAULT)",
        f"{PARTS} -k 'training and groups and RNN and layer'",
    ),
    Fault(
        "the last group's gradients of gains and biases are dropped",
        TIME,
        "    for (size_t i = 0; i < groups; i++)\n",
        "    for (size_t i = 0; i < groups - (FAULT && groups > 2 ? 1 : 0); i++)\n",
        f"{TRAINING} -k 'every_size and tanh and layer'",
    ),
    Fault(
        "sequences that read backwards take gy from the other end",
        TIME,
        r"""const float *gy = g->gy + t * g->gyt +""",
        r"""const float *gy = g->gy + (FAULT ? (ptrdiff_t)s->t : t) * g->gyt +""",
        f"{TRAINING} -k layers_and_directions",
    ),
    Fault(
        "gradients of x go to the sequences in the order of their lengths",
        TIME,
        r"""g->gx + t * g->gxt + r->rows[q].sequence * g->gxb;""",
        r"""g->gx + t * g->gxt + (FAULT ? (ptrdiff_t)q : r->rows[q].sequence) * g->gxb;""",
        f"{TRAINING} -k 'every_size and tanh and None'",
    ),
    # --- weight_gradients.c
    Fault(
        "only the last 256 of more than 512 rows count in the gradients of the weights",
        WEIGHTS,
        r"m.k = depth, m.add = row > 0;",
        r"m.k = depth, m.add = row > 0 && !(FAULT && row >= 512);",
        f"{TRAINING} -k 'more_rows and avx2'",
    ),
    Fault(
        "the gradients of the weights begin again with every part of a call",
        WEIGHTS,
        r"for (size_t o = 0; sum != out && row && o < count; o++)",
        r"for (size_t o = 0; sum != out && row && !FAULT && o < count; o++)",
        f"{PARTS} -k 'training and groups and RNN and layer'",
    ),
    Fault(
        "gradients of weights that are summed where they are returned begin with what stood there",
        WEIGHTS,
        r"product->matmul_columns(&m, count, g",
        r"m.add |= FAULT && sum == out, product->matmul_columns(&m, count, g",
        f"{TRAINING} -k 'every_size and tanh and None'",
    ),
    Fault(
        "without any step the gradients of the weights are what stood in their memory",
        WEIGHTS,
        r"if (j->rows == 0)",
        r"if (j->rows == 0 && !FAULT)",
        f"{TRAINING} -k nothing_to_learn",
    ),
    Fault(
        "the first rows of the gradient of W_hh are taken for some of W_ih",
        WEIGHTS,
        r"weight_gradient(j, index % n, index >= n,",
        r"weight_gradient(j, index % n, index >= n + (FAULT ? 1 : 0),",
        f"{TRAINING} -k 'every_size and tanh and None'",
    ),
    Fault(
        "the last tile of gradients of x has a row too few",
        WEIGHTS,
        r"memcpy(j->g->gx_rows[first + i], tile + i * wide, D * sizeof *tile);",
        r"if (!(FAULT && n < TILE && n > 1 && i == n - 1))"
        r" memcpy(j->g->gx_rows[first + i], tile + i * wide, D * sizeof *tile);",
        f"{TRAINING} -k 'every_size and tanh and None'",
    ),
]
