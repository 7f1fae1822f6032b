"""Faults of batch norm: the sums of channels, coefficients, the pass over x, and how it is divided."""

from fault import Fault

KERNEL, TASKS = "include/lnrnn/kernels/batch_norm.h", "pyx/norm/batch_norm.c"
TEST, MAGNITUDES = "tests/norm/test_batch_norm.py", "tests/norm/test_magnitudes.py"

FAULTS = [
    # --- sums
    Fault(
        "the last place that is probed in a plane lies behind its end",
        KERNEL,
        r"(L - k) * p / (LNRNN_PROBES - 1), k), scale, mean);",
        r"(L - k) * p / (size_t)(LNRNN_PROBES - 1 - (FAULT ? 1 : 0)), k), scale, mean);",
        "tests/campaigns/guard/test_guard_pages.py -k 'no_kernel and avx2'",
    ),
    Fault(
        "a pivot is the mean of the first sample alone",
        KERNEL,
        r"const elem *row = x + p * N / LNRNN_PROBES * C + i;",
        r"const elem *row = x + (FAULT ? 0 : p * N / LNRNN_PROBES) * C + i;",
        f"{TEST} -k 'first_values and avx2'",
        equivalent="a pivot that is too far from the mean is replaced: the moments are as good",
    ),
    Fault(
        "a vector left over is missing in the sums of a plane",
        KERNEL,
        r"batch_planes_part(i, LANES, 1, 2, has_gy, x, gy, pivot, &s);",
        r"if (!FAULT) batch_planes_part(i, LANES, 1, 2, has_gy, x, gy, pivot, &s);",
        f"{TEST} -k 'forward_at and avx2 and training'",
    ),
    Fault(
        "what stands behind a plane counts in its sums",
        KERNEL,
        r"accumulate(s, a, whole ? d : v_keep_n(d, k), g, has_gy);",
        r"accumulate(s, a, whole || FAULT ? d : v_keep_n(d, k), g, has_gy);",
        f"{TEST} -k 'forward_at and avx2 and training'",
    ),
    Fault(
        "sums of columns are kept in float over many rows",
        KERNEL,
        r"if (r % 64 == 0 || r == rows)",
        r"if ((r % 64 == 0 && !FAULT) || r == rows)",
        f"{TEST} -k 'avx2 and (exact or many_values)'",
    ),
    Fault(
        "sums of a plane are not cleared when they go to double precision",
        KERNEL,
        r"*s = accumulators_zero();",
        r"if (!FAULT) *s = accumulators_zero();",
        f"{TEST} -k 'many_values and avx2'",
    ),
    # --- coefficients
    Fault(
        "sums about a pivot that was far off are not taken again",
        KERNEL,
        r"return (size_t)replaced;",
        r"return FAULT ? 0 : (size_t)replaced;",
        f"{TEST} -k 'first_values and avx2'",
    ),
    Fault(
        "the variance of a channel with a NaN is 0",
        KERNEL,
        r"var[i] = v < 0 ? 0 : v;",
        r"var[i] = FAULT ? (v > 0 ? v : 0) : v < 0 ? 0 : v;",
        f"{TEST} -k 'nan_stays and avx2'",
    ),
    Fault(
        "the shift forgets what rounding takes from the mean",
        KERNEL,
        r"to_shift[i] = (real)((bias ? (double)bias[i] : 0.0) - (mean[i] - (double)to_mean[i]) * scale);",
        r"to_shift[i] = (real)((bias ? (double)bias[i] : 0.0)"
        r" - (FAULT ? 0 : (mean[i] - (double)to_mean[i]) * scale));",
        f"{TEST} -k 'mean_far and avx2'",
    ),
    Fault(
        "a constant channel that was scaled down has no eps left",
        KERNEL,
        r"if (scales && scales[i] < 1 && eps > 0 && e < least_spread())",
        r"if (scales && scales[i] < 1 && eps > 0 && e < least_spread() && !FAULT)",
        f"{MAGNITUDES} -k 'tiny_eps and avx2'",
    ),
    Fault(
        "the gradient of the gain is taken about the pivot",
        KERNEL,
        r"(sums[3 * n + i] - (mean[i] - (double)pivot[i]) * sum_gy) * rstd;",
        r"(sums[3 * n + i] - (FAULT ? 0 : (mean[i] - (double)pivot[i]) * sum_gy)) * rstd;",
        f"{TEST} -k 'backward_at and avx2 and training'",
    ),
    Fault(
        "the shift of a gradient forgets what rounding takes from the mean",
        KERNEL,
        r"to_shift[i] = (real)(sum_gy * dmean - (mean[i] - (double)to_mean[i]) * slope);",
        r"to_shift[i] = (real)(sum_gy * dmean - (FAULT ? 0 : (mean[i] - (double)to_mean[i]) * slope));",
        f"{TEST} -k 'mean_far and avx2'",
    ),
    Fault(
        "gradients of a scaled channel are not scaled back",
        KERNEL,
        r"to_scale[i] = (real)((gain ? (double)gain[i] : 1) * rstd * s);",
        r"to_scale[i] = (real)((gain ? (double)gain[i] : 1) * rstd * (FAULT ? 1 : s));",
        f"{MAGNITUDES} -k 'batch_norm and avx2'",
    ),
    # --- the pass
    Fault(
        "the tail of rows larger than the caches is not written",
        KERNEL,
        "    if (i < n)\n        batch_affine_part(i, n - i, 0, 1, r, plane, columns);",
        "    if (i < n && !FAULT)\n        batch_affine_part(i, n - i, 0, 1, r, plane, columns);",
        f"{TEST} -k 'larger_than and avx2'",
    ),
    Fault(
        "the last of an odd number of rows is not written",
        KERNEL,
        "        if (done < rows)\n            batch_affine_columns(n, 1, &r, &columns);",
        "        if (done < rows && !FAULT)\n            batch_affine_columns(n, 1, &r, &columns);",
        f"{TEST} -k 'forward_at and avx2'",
    ),
    Fault(
        "the last value of a row's gradient is not written",
        KERNEL,
        r"put(r->out + at + i, v_mul(c.scale, v_sub(get(r->gy + at + i, k, whole), mean_gy)), k, whole);",
        r"put(r->out + at + i, v_mul(c.scale, v_sub(get(r->gy + at + i, k, whole), mean_gy)),"
        r" k - (FAULT && !whole && k > 1 ? 1 : 0), whole);",
        f"{TEST} -k 'backward_at and avx2'",
    ),
    # --- batch_norm.c
    Fault(
        "sums of a block begin with those of the pass before",
        TASKS,
        r"memset(part.sums + k * C, 0, channels * sizeof *part.sums);",
        r"if (!FAULT) memset(part.sums + k * C, 0, channels * sizeof *part.sums);",
        f"{TEST} -k 'avx2 and (first_values or backward_at)'",
    ),
    Fault(
        "the sums of the last block are dropped",
        TASKS,
        r"for (size_t k = 1; k < j->blocks; k++)",
        r"for (size_t k = 1; k < j->blocks - (FAULT && j->blocks > 2 ? 1 : 0); k++)",
        f"{TEST} -k 'exact and avx2'",
    ),
    Fault(
        "the moments after a second pass are not taken",
        TASKS,
        "        sums_of_all(j);\n        j->kernels->batch_moments",
        "        sums_of_all(j);\n        if (!FAULT)\n            j->kernels->batch_moments",
        f"{TEST} -k 'first_values and avx2'",
    ),
    Fault(
        "only the first task of a pass begins at the end",
        TASKS,
        r"size_t row = (j->reversed ? lnrnn_parts",
        r"size_t row = (j->reversed && !(FAULT && index) ? lnrnn_parts",
        f"{TEST} -k 'threads_change and avx2'",
    ),
    Fault(
        "a task goes on past the last channel of a sample",
        TASKS,
        r"rows = by_row ? lnrnn_min(C - c, end - row) : end - row;",
        r"rows = by_row && !FAULT ? lnrnn_min(C - c, end - row) : end - row;",
        f"{TEST} -k 'forward_at and avx2'",
    ),
    Fault(
        "statistics of scaled channels are those of x as it was",
        TASKS,
        r"j->gy = gy, b->x = j->out;",
        r"j->gy = gy, b->x = FAULT ? b->x : j->out;",
        f"{MAGNITUDES} -k 'batch_norm and avx2'",
    ),
    Fault(
        "the variance of a scaled channel is divided by its scale once",
        TASKS,
        r"b.var[c] = b.var[c] / scales[c] / scales[c];",
        r"b.var[c] = FAULT ? b.var[c] / scales[c] : b.var[c] / scales[c] / scales[c];",
        f"{MAGNITUDES} -k 'batch_norm and avx2'",
    ),
    Fault(
        "gradients at inference are those of training",
        TASKS,
        r"training ? 1 / ((double)b.N * (double)b.L) : 0",
        r"training || FAULT ? 1 / ((double)b.N * (double)b.L) : 0",
        f"{TEST} -k 'backward_at and avx2 and inference'",
    ),
]
