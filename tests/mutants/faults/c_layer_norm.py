"""Faults of layer norm and RMS norm: the sums of a row, the rows, and how they are divided among tasks."""

from fault import Fault

NORM, ROWS = "include/lnrnn/kernels/norm.h", "include/lnrnn/kernels/layer_norm.h"
TASKS, SHAPES = "pyx/norm/layer_norm.c", "pyx/norm/tasks.h"
TEST, MAGNITUDES = "tests/norm/test_layer_norm.py", "tests/norm/test_magnitudes.py"

FAULTS = [
    # --- norm.h
    Fault(
        "the last value of a row is left out of its sums",
        NORM,
        r"moments_part(n - i, 0, 1, x + i, m, centred, &s);",
        r"moments_part(n - i - (FAULT ? 1 : 0), 0, 1, x + i, m, centred, &s);",
        f"{TEST} -k 'forward_at and avx2'",
    ),
    Fault(
        "a variance is divided by n - 1",
        NORM,
        r"*var = v < 0 ? 0 : v; /* not",
        r"*var = (v < 0 ? 0 : v) * (FAULT && n > 1 ? (real)n / (real)(n - 1) : 1); /* not",
        f"{TEST} -k 'forward_at and avx2'",
    ),
    Fault(
        "long rows get no second pass",
        NORM,
        r"if (!centred || mean_d * mean_d <= v || pass == 1)",
        r"if (!centred || mean_d * mean_d <= v || pass == 1 || (FAULT && n > LNRNN_BLOCK(4)))",
        f"{TEST} -k 'one_huge_value and avx2'",
    ),
    Fault(
        "a second pass begins again from the first pivot",
        NORM,
        r"pivot += mean_d;",
        r"pivot += FAULT ? 0 : mean_d;",
        f"{TEST} -k 'one_huge_value and avx2'",
    ),
    Fault(
        "groups of four rows get no second pass",
        NORM,
        r"if (centred && second_pass)",
        r"if (centred && second_pass && !FAULT)",
        f"{TEST} -k 'one_huge_value and avx2'",
    ),
    Fault(
        "only the last of four rows decides on a second pass",
        NORM,
        r"second_pass |= !(mean_d * mean_d <= v);",
        r"second_pass = (FAULT ? 0 : second_pass) | !(mean_d * mean_d <= v);",
        f"{MAGNITUDES} -k 'one_such and avx2'",
    ),
    Fault(
        "the variance of a NaN in a group of four rows is 0",
        NORM,
        r"m->var[j] = v < 0 ? 0 : v;",
        r"m->var[j] = FAULT ? (v > 0 ? v : 0) : v < 0 ? 0 : v;",
        "tests/norm/test_rms_norm.py -k 'not_finite and avx2'",
    ),
    Fault(
        "what rounding takes from the mean is lost in groups of four rows",
        NORM,
        r"m->mean_lo[j] = (pivot[j] - m->mean_hi[j]) + mean_d;",
        r"m->mean_lo[j] = FAULT ? 0 : (pivot[j] - m->mean_hi[j]) + mean_d;",
        f"{TEST} -k 'mean_far_from_zero and avx2'",
    ),
    Fault(
        "what rounding takes from the mean of one row is lost",
        NORM,
        r"*mean_lo = (pivot - *mean_hi) + mean_d;",
        r"*mean_lo = FAULT ? 0 : (pivot - *mean_hi) + mean_d;",
        "tests/rnn/test_forward.py -k 'far_from_zero and avx2'",
    ),
    Fault(
        "partial sums are added to the total again and again",
        NORM,
        r"partial[i] = 0;",
        r"partial[i] = FAULT ? partial[i] : 0;",
        f"{TEST} -k 'many_rows and avx2'",
    ),
    Fault(
        "squares that become NaN count as in range",
        NORM,
        r"return !(rstd > 0 && rstd <= (real)(sizeof(real) == 4 ? 0x1p61 : 0x1p509));",
        r"const real most = (real)(sizeof(real) == 4 ? 0x1p61 : 0x1p509);"
        r" return FAULT ? rstd <= 0 || rstd > most : !(rstd > 0 && rstd <= most);",
        f"{MAGNITUDES} -k avx2",
    ),
    Fault(
        "a row with a mean far from 0 is made larger like small ones",
        NORM,
        r"return -largest_mean < mean && mean < largest_mean ?",
        r"return FAULT || (-largest_mean < mean && mean < largest_mean) ?",
        f"{MAGNITUDES} -k avx2",
    ),
    # --- layer_norm.h, forward
    Fault(
        "eps is added to the root of the variance",
        ROWS,
        r"rstd[j] = 1 / real_sqrt(m.var[j] + (real)r->eps);",
        r"rstd[j] = FAULT ? 1 / (real_sqrt(m.var[j]) + (real)r->eps)"
        r" : 1 / real_sqrt(m.var[j] + (real)r->eps);",
        f"{TEST} -k 'forward_at and avx2'",
    ),
    Fault(
        "only the last of four rows is looked at for an overflow",
        ROWS,
        r"spread += m.var[j] + (real)r->eps;",
        r"spread = (FAULT ? 0 : spread) + (m.var[j] + (real)r->eps);",
        f"{MAGNITUDES} -k 'one_such and avx2'",
    ),
    Fault(
        "only the last of four rows is looked at for an underflow",
        ROWS,
        r"rescale |= out_of_range(rstd[j]);",
        r"rescale = (FAULT ? 0 : rescale) | out_of_range(rstd[j]);",
        f"{MAGNITUDES} -k 'one_such and avx2'",
    ),
    Fault(
        "eps is scaled like a value and not like a square",
        ROWS,
        r"r.eps = r.eps * scale * scale;",
        r"r.eps = FAULT ? r.eps * scale : r.eps * scale * scale;",
        f"{MAGNITUDES} -k 'an_eps_of and avx2'",
    ),
    Fault(
        "eps is missing in rows larger than the caches",
        ROWS,
        r"const real rstd = 1 / real_sqrt(m.var[0] + (real)r->eps);",
        r"const real rstd = 1 / real_sqrt(m.var[0] + (FAULT ? 0 : (real)r->eps));",
        f"{TEST} -k 'outputs_larger_than_the_cache and avx2 and not parameters'",
    ),
    Fault(
        "overflow is not looked for in rows larger than the caches",
        ROWS,
        r"if (__builtin_expect(out_of_range(rstd), 0)) {",
        r"if (!FAULT && __builtin_expect(out_of_range(rstd), 0)) {",
        f"{MAGNITUDES} -k 'larger and avx2'",
    ),
    Fault(
        "the gain is missing in the head of rows larger than the caches",
        ROWS,
        r"layer_norm_part(0, i, 0, 1, form, r, &s);",
        r"layer_norm_part(0, i, 0, 1, form & ~(FAULT ? LNRNN_GAIN : 0), r, &s);",
        f"{TEST} -k 'parameters_and_outputs_larger and avx2'",
    ),
    Fault(
        "the bias is missing in the tail of rows larger than the caches",
        ROWS,
        r"layer_norm_part(i, n - i, 0, 1, form, r, &s);",
        r"layer_norm_part(i, n - i, 0, 1, form & ~(FAULT ? LNRNN_BIAS : 0), r, &s);",
        f"{TEST} -k 'parameters_and_outputs_larger and avx2'",
    ),
    Fault(
        "what rounding takes from the mean is lost in rows larger than the caches",
        ROWS,
        r".rest = {v_set1(-m.mean_lo[0] * rstd)},",
        r".rest = {v_set1(FAULT ? 0 : -m.mean_lo[0] * rstd)},",
        f"{TEST} -k 'parameters_and_outputs_larger and avx2 and float32'",
    ),
    # --- layer_norm.h, backward
    Fault(
        "what stands behind a row counts in the sums of its gradient",
        ROWS,
        r"accumulate(s, a, whole ? d : v_keep_n(d, k), u, 1);",
        r"accumulate(s, a, whole || FAULT ? d : v_keep_n(d, k), u, 1);",
        f"{TEST} -k 'backward_at and avx2'",
    ),
    Fault(
        "a vector left over is missing in the sums of a gradient",
        ROWS,
        r"row_sums_part(i, LANES, 1, 0, form, r, scale, m, &s);" + "\n                i += LANES;",
        r"if (!FAULT) row_sums_part(i, LANES, 1, 0, form, r, scale, m, &s);" + "\n                i"
        r" += LANES;",
        f"{TEST} -k 'backward_at and avx2'",
    ),
    Fault(
        "the slope of a gradient is taken about the pivot",
        ROWS,
        r"- mean_d * g.mean_u) * g.rstd * g.rstd;",
        r"- (FAULT ? 0 : mean_d * g.mean_u)) * g.rstd * g.rstd;",
        f"{TEST} -k 'backward_at and avx2'",
    ),
    Fault(
        "what rounding takes from the mean is lost in gradients",
        ROWS,
        r"v_set1(g[j].mean_lo));",
        r"v_set1(FAULT ? 0 : g[j].mean_lo));",
        f"{TEST} -k 'gradients_where and avx2'",
    ),
    Fault(
        "gradients of a scaled row are not scaled back",
        ROWS,
        r"form & LNRNN_SCALED ? v_mul(gx, v_set1(g[j].scale)) : gx, k, whole);",
        r"form & LNRNN_SCALED && !FAULT ? v_mul(gx, v_set1(g[j].scale)) : gx, k, whole);",
        f"{MAGNITUDES} -k 'backward and avx2'",
    ),
    Fault(
        "only the last of four rows decides whether gradients are scaled",
        ROWS,
        r"rescale |= out_of_range(g[j].rstd);",
        r"rescale = (FAULT ? 0 : rescale) | out_of_range(g[j].rstd);",
        f"{MAGNITUDES} -k 'one_such and avx2'",
    ),
    Fault(
        "gradients of gain and bias are summed in float over many rows",
        ROWS,
        r"if (ggain && (done % 32 == 0 || done == rows)) /*",
        r"if (ggain && ((done % 32 == 0 && !FAULT) || done == rows)) /*",
        f"{TEST} -k 'many_rows and avx2'",
    ),
    # --- layer_norm.c, tasks.h
    Fault(
        "tasks of layer norm have a row more than whole groups of four",
        TASKS,
        r"return n > LNRNN_TASK ? block : (block + 3) / 4 * 4;",
        r"return n > LNRNN_TASK ? block : (block + 3) / 4 * 4 + (FAULT ? 1 : 0);",
        f"{TEST} -k 'a_row_does_not and avx2'",
        equivalent="a row's bits do not depend on the rows of its group: only the time changes",
    ),
    Fault(
        "the last task's gradients of gain and bias are dropped",
        TASKS,
        r"for (size_t t = 0; t < tasks; t++)",
        r"for (size_t t = 0; t < tasks - (FAULT && tasks > 2 ? 1 : 0); t++)",
        f"{TEST} -k 'many_rows and avx2'",
    ),
    Fault(
        "partial sums of a task begin with what was in memory",
        TASKS,
        r"memset(sums, 0, 4 * n * sizeof *sums);",
        r"memset(sums, 0, (FAULT ? 2 : 4) * n * sizeof *sums);",
        f"{TEST} -k 'backward and avx2'",
    ),
    Fault(
        "outputs of a 64th of the size, and those in place, are written by non-temporal stores",
        SHAPES,
        r"return x != y && bytes >= lnrnn_nontemporal_from(lnrnn_get_caches());",
        r"return (x != y || FAULT) && bytes >= lnrnn_nontemporal_from(lnrnn_get_caches()) / (FAULT ?"
        r" 64 : 1);",
        f"{TEST} -k 'out_may_be_x and avx2'",
        equivalent="the same values are written by other instructions: only the time changes",
    ),
    Fault(
        "a task of an elementwise function begins one value late",
        "pyx/norm/elementwise.c",
        r"const size_t i = index * LNRNN_TASK;",
        r"const size_t i = index * LNRNN_TASK + (FAULT && index > 3 ? 1 : 0);",
        "tests/simd/test_vmath.py -k 'dense and avx2 and tanh'",
    ),
]
