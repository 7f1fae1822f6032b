"""Faults of the cells' kernels: activations, norms of gates, steps of all cells, batch norm of a step."""

from fault import Fault

KERNELS = "include/lnrnn/kernels"
FORWARD, FORWARD_RNN = "tests/rnn/test_forward.py", "tests/rnn/test_forward.py"
TRAINING, CANCELLATION = "tests/rnn/test_training.py", "tests/rnn/test_cancellation.py"
PLACEMENTS = "tests/rnn/test_training_placements.py"
EQUAL_BITS = "tests/rnn/test_equal_bits.py"
STEPS, MAGNITUDES = "tests/rnn/test_step_statistics.py", "tests/norm/test_magnitudes.py"

FAULTS = [
    # --- activations.h
    Fault(
        "the slope of tanh is a difference of squares",
        f"{KERNELS}/activations.h",
        r"return v32_mul(v32_sub(one, y), v32_add(one, y));",
        r"return FAULT ? v32_sub(one, v32_mul(y, y)) : v32_mul(v32_sub(one, y), v32_add(one, y));",
        f"{CANCELLATION} -k 'saturated and avx2'",
    ),
    Fault(
        "relu lets gradients through where it is 0",
        f"{KERNELS}/activations.h",
        r"case LNRNN_ACT_RELU: return v32_select_lt(zero, y, one, zero);",
        r"case LNRNN_ACT_RELU: return FAULT ? v32_select_lt(y, zero, zero, one)"
        r" : v32_select_lt(zero, y, one, zero);",
        f"{TRAINING} -k 'every_size and relu'",
    ),
    # --- gate_norm.h
    Fault(
        "a row of gates whose squares overflow is normalised without eps",
        f"{KERNELS}/span_moments.h",
        r"squares / (double)n + (double)eps));",
        r"squares / (double)n + (FAULT ? 0 : (double)eps)));",
        f"{MAGNITUDES} -k 'inside_a_cell'",
    ),
    Fault(
        "what rounding takes from the mean of a row of gates in double precision is lost",
        f"{KERNELS}/span_moments.h",
        r"*mean_lo = (float)(mean - (double)*mean_hi);",
        r"*mean_lo = FAULT ? 0 : (float)(mean - (double)*mean_hi);",
        f"{CANCELLATION} -k 'inside_a_cell and avx2'",
    ),
    Fault(
        "what rounding takes from the mean of a span is lost",
        f"{KERNELS}/span_moments.h",
        r"m->rest[at] = -mean_lo * rstd;",
        r"m->rest[at] = FAULT ? 0 : -mean_lo * rstd;",
        f"{EQUAL_BITS} -k 'beside_others and avx2'",
    ),
    Fault(
        "what rounding takes from the means of several spans is lost",
        f"{KERNELS}/span_moments.h",
        r"v32_mul(v32_mul(mean_lo, v32_set1(-1.0f)), rstd));",
        r"v32_mul(v32_mul(mean_lo, v32_set1(FAULT ? 0.0f : -1.0f)), rstd));",
        f"{CANCELLATION} -k 'inside_a_cell and avx2'",
    ),
    Fault(
        "of several spans one whose pivot is far from its mean is left as it is",
        f"{KERNELS}/span_moments.h",
        r"const v32 exact = v32_select_lt(v, mean_d2, zero, in_range);",
        r"const v32 exact = FAULT ? in_range : v32_select_lt(v, mean_d2, zero, in_range);",
        f"{EQUAL_BITS} -k 'beside_others and avx2'",
    ),
    Fault(
        "of several spans one whose squares are subnormal is left as it is",
        f"{KERNELS}/span_moments.h",
        r"v32_select_lt(v32_set1(0x1p61f), rstd, zero, one), zero);",
        r"v32_select_lt(v32_set1(FAULT ? 0x1p100f : 0x1p61f), rstd, zero, one), zero);",
        f"{EQUAL_BITS} -k 'beside_others and avx2'",
    ),
    Fault(
        "of several spans those past the last exact one are left as they are",
        f"{KERNELS}/span_moments.h",
        r"if (is_exact[j] == 0)",
        r"if (is_exact[j] == 0 && !(FAULT && j % 5 == 2))",
        f"{EQUAL_BITS} -k 'beside_others and avx2'",
    ),
    Fault(
        "the moments of x are those of the row of W h that stands as many rows further up as there are rows",
        f"{KERNELS}/gate_norm.h",
        r".at = rows->n + r};",
        r".at = FAULT ? r : rows->n + r};",
        f"{FORWARD} -k 'fifty and split and GRU'",
    ),
    Fault(
        "r and z of a split GRU are normalised each by itself",
        f"{KERNELS}/gate_norm.h",
        r"norm->spans == LNRNN_SPANS_EACH || from ? from + 1",
        r"norm->spans == LNRNN_SPANS_EACH || from || FAULT ? from + 1",
        f"{FORWARD} -k 'fifty and split and GRU'",
    ),
    Fault(
        "the last unit of a row has no bias after its norm",
        f"{KERNELS}/gate_norm.h",
        r"return v32_fma(v, get_f32(norm->gain + at, k, whole), get_f32(norm->bias + at, k, whole));",
        r"return v32_fma(v, get_f32(norm->gain + at, k, whole),"
        r" get_f32(norm->bias + at, FAULT && !whole ? k - 1 : k, whole));",
        f"{FORWARD_RNN} -k 'each_step and avx2 and layer'",
    ),
    Fault(
        "the input side of the last unit is left out",
        f"{KERNELS}/gate_norm.h",
        r"v32_add(gate_read(how, &row->input, gate, i, k, whole), z) : z;",
        r"v32_add(gate_read(how, &row->input, gate, i, FAULT && !whole ? k - 1 : k, whole), z) : z;",
        f"{FORWARD} -k 'every_size and LSTM and split'",
    ),
    # --- rnn_cell.h
    Fault(
        "the last row of an RNN's step has the statistics of the row before",
        f"{KERNELS}/rnn_cell.h",
        r"gate_row_of(1, how, separate, step, &some, r, &m);",
        r"gate_row_of(1, how, separate, step, &some, r, &m);"
        r" if (FAULT && r && r + 1 == some.n) ((gate_row *)&row)->hidden.at--;",
        f"{FORWARD_RNN} -k 'each_step and avx2 and layer and tanh'",
    ),
    Fault(
        "the rows of a step have the usual eps",
        f"{KERNELS}/gate_norm.h",
        r"x ? 2 * rows : rows, starts, norm->eps,",
        r"x ? 2 * rows : rows, starts, FAULT ? 1e-5f : norm->eps,",
        f"{FORWARD} -k 'every_size and RNN'",
    ),
    Fault(
        "the hidden side of an RNN counts twice where it has a norm of its own",
        f"{KERNELS}/gate_norm.h",
        r".a = rows->x + (ptrdiff_t)r * rows->xs,",
        r".a = (FAULT && num_gates == 1 ? rows->a : rows->x) + (ptrdiff_t)r * rows->xs,",
        f"{FORWARD} -k 'every_size and RNN'",
    ),
    # --- lstm_cell.h
    Fault(
        "the last units of c are not carried on normalised",
        f"{KERNELS}/lstm_cell.h",
        "        if (carry)\n            put_f32(c + i, u[v], k, vecs);",
        "        if (carry && !(FAULT && !vecs))\n            put_f32(c + i, u[v], k, vecs);",
        f"{FORWARD} -k 'fifty and carry and split'",
    ),
    Fault(
        "the norm of c has the usual eps",
        f"{KERNELS}/lstm_cell.h",
        r"n, (const float *const *)c, norm->eps, &m);",
        r"n, (const float *const *)c, FAULT ? 1e-5f : norm->eps, &m);",
        f"{FORWARD} -k 'every_size and out'",
    ),
    Fault(
        "the last unit's gradient of c by way of h is left out",
        f"{KERNELS}/lstm_cell.h",
        r"put_f32(gu + i, carry ? v32_add(g_u, get_f32(gc + i, k, whole)) : g_u, k, whole);",
        r"put_f32(gu + i, carry ? v32_add(g_u, get_f32(gc + i, k, whole)) : g_u,"
        r" FAULT && !whole ? k - 1 : k, whole);",
        f"{TRAINING} -k 'every_size and LSTM and layer'",
    ),
    Fault(
        "what is carried has its gradient twice, in the norm and beside it",
        f"{KERNELS}/lstm_cell.h",
        r"put_f32(gc + i, v32_zero(), k, whole);",
        r"if (!FAULT) put_f32(gc + i, v32_zero(), k, whole);",
        f"{PLACEMENTS} -k 'every_size and carry'",
    ),
    Fault(
        "the sum that a norm of what is carried has read lacks the gate of g",
        f"{KERNELS}/lstm_cell.h",
        r"get_f32(c_prev + i, k, whole), v32_mul(i_gate, g_gate)),",
        r"get_f32(c_prev + i, k, whole), FAULT ? i_gate : v32_mul(i_gate, g_gate)),",
        f"{PLACEMENTS} -k 'every_size and carry'",
    ),
    Fault(
        "x of a GRU with a norm for each gate has the gradient of r a",
        f"{KERNELS}/gru_cell.h",
        r"put_f32(row->gx + 2 * H + i, gs, k, whole);",
        r"put_f32(row->gx + 2 * H + i, FAULT ? v32_mul(gs, r) : gs, k, whole);",
        f"{PLACEMENTS} -k 'every_size and GRU and gate'",
    ),
    Fault(
        "r of a GRU with a norm for each gate has the gradient that x would give it",
        f"{KERNELS}/gru_cell.h",
        r"v32_mul(v32_mul(gs, get_f32(row->a + 2 * H + i, k, whole)), sigmoid_slope(r))",
        r"v32_mul(v32_mul(gs, get_f32((FAULT ? row->x : row->a) + 2 * H + i, k, whole)), sigmoid_slope(r))",
        f"{PLACEMENTS} -k 'every_size and GRU and gate'",
    ),
    Fault(
        "the norms of a GRU's r and z are taken to have read W x twice",
        f"{KERNELS}/gru_cell.h",
        r"LNRNN_FOR_UNITS(2 * H, gru_gate_sum_units, row.x, row.a, row.sum);",
        r"LNRNN_FOR_UNITS(2 * H, gru_gate_sum_units, row.x, FAULT ? row.x : row.a, row.sum);",
        f"{PLACEMENTS} -k 'every_size and GRU and gate'",
    ),
    Fault(
        "the forget gate's gradient takes the new c",
        f"{KERNELS}/lstm_cell.h",
        r"const v32 g_f = v32_mul(g_c, get_f32(c_prev + i, k, whole));",
        r"const v32 c_old = get_f32(c_prev + i, k, whole);"
        r" const v32 g_f = v32_mul(g_c, FAULT ? v32_fma(f_gate, c_old, v32_mul(i_gate, g_gate)) : c_old);",
        f"{TRAINING} -k 'every_size and LSTM and None'",
    ),
    # --- gru_cell.h
    Fault(
        "the gate n of a GRU with a norm for each gate takes z for r",
        f"{KERNELS}/gru_cell.h",
        r"const v32 r = v32_sigmoid(gate_read(LNRNN_NORMED, side, 0, i, k, whole));",
        r"const v32 r = v32_sigmoid(gate_read(LNRNN_NORMED, side, FAULT ? 1 : 0, i, k, whole));",
        f"{FORWARD} -k 'fifty and gate and GRU'",
    ),
    Fault(
        "the gate n of a GRU with a norm for each gate has the low part of z's mean",
        f"{KERNELS}/gru_cell.h",
        r"row_moments(H, sum + 2 * H, norm->eps, &m.spans[2], 0);",
        r"row_moments(H, sum + 2 * H, norm->eps, &m.spans[2], 0);"
        r" if (FAULT) m.spans[2].rest[0] = m.spans[1].rest[0];",
        f"{CANCELLATION} -k 'inside_a_cell and avx2 and GRU'",
    ),
    Fault(
        "the gradient of z forgets n",
        f"{KERNELS}/gru_cell.h",
        r"v32_mul(g, v32_sub(h_prev, n))",
        r"v32_mul(g, FAULT ? h_prev : v32_sub(h_prev, n))",
        f"{TRAINING} -k 'every_size and GRU and layer'",
    ),
    Fault(
        "the hidden side of n has the gradient of its input side",
        f"{KERNELS}/gru_cell.h",
        r"put_f32(row->ga + 2 * H + i, v32_mul(gn, r), k, whole);",
        r"put_f32(row->ga + 2 * H + i, FAULT ? gn : v32_mul(gn, r), k, whole);",
        f"{TRAINING} -k 'every_size and GRU and None'",
    ),
    # --- step_norm.h
    Fault(
        "joined statistics count one row too few",
        f"{KERNELS}/step_norm.h",
        r"tile_moments(&t, 4, (double)r, mean + i, m2 + i);",
        r"tile_moments(&t, 4, FAULT && r ? (double)r - 1 : (double)r, mean + i, m2 + i);",
        f"{STEPS} -k 'living and avx2 and None'",
    ),
    Fault(
        "joined variances forget the distance of their means",
        f"{KERNELS}/step_norm.h",
        r"*m2 += m2_b + d * d * (na * nb / n);",
        r"*m2 += m2_b + (FAULT ? 0 : d * d * (na * nb / n));",
        f"{STEPS} -k 'living and avx2 and None'",
    ),
    Fault(
        "what a second pass finds of the mean of a step's column is lost",
        f"{KERNELS}/step_norm.h",
        r"n, (double)pivots[i] + mean_d, tile_m2 < 0 ? 0 : tile_m2);",
        r"n, (double)pivots[i] + (FAULT ? 0 : mean_d), tile_m2 < 0 ? 0 : tile_m2);",
        f"{CANCELLATION} -k 'batch_norm_goes_back and avx2'",
    ),
    Fault(
        "columns of a step whose squares overflow keep an infinite variance",
        f"{KERNELS}/step_norm.h",
        r"if (!(m2[i] < INFINITY))",
        r"if (!FAULT && !(m2[i] < INFINITY))",
        f"{MAGNITUDES} -k 'of_a_step'",
    ),
    Fault(
        "the last partial sums of gy (x - mean) of a step are dropped",
        f"{KERNELS}/step_norm.h",
        "    }\n    flush_f32(n, partial_gy, sum_gy), flush_f32(n, partial_gyd, sum_gyd);",
        "    }\n    flush_f32(n, partial_gy, sum_gy);\n    if (FAULT)\n"
        "        memset(partial_gyd, 0, n * sizeof *partial_gyd);\n"
        "    flush_f32(n, partial_gyd, sum_gyd);",
        f"{TRAINING} -k 'every_size and batch and tanh'",
    ),
]
