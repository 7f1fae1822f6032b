/* The names of norm.h and of what it includes, which are one text for four types in memory. A function or
 * type there is written by its plain name, and compiled under that name with a suffix: moments is
 * moments_f32, moments_f64, moments_bf16 and moments_f16. A new one is added to the list here.
 *
 * Defined for each type, before norm.h is included for it:
 *     LNRNN_TYPE    the suffix
 *     elem          the type in memory
 *     real          the type of the arithmetic, float or double
 *     real_sqrt     its square root
 *     vreal         a vector of real
 *     LANES         values in a vector
 *     LNRNN_V(op)   the vector operation of real
 *     LNRNN_E(op)   a load or store of elem, converted from or to real
 */
#ifndef LNRNN_NAMES_H
#define LNRNN_NAMES_H

#define LNRNN_CAT_(a, b) a##b
#define LNRNN_CAT(a, b) LNRNN_CAT_(a, b)
#define LNRNN_T(name) LNRNN_CAT(name##_, LNRNN_TYPE)

/* part(i, k, whole, ...) for all n values of a row, k of them from i on: first `head` values, then whole
 * vectors, for which k is `lanes` and whole the constant 1, then what is left. part is always inlined: what
 * it is given stays in registers. */
#define LNRNN_FOR_VECTORS(lanes, head, n, part, ...)   \
    do {                                               \
        const size_t n_ = (n);                         \
        size_t i_ = (head);                            \
        if (i_)                                        \
            part((size_t)0, i_, 0, __VA_ARGS__);       \
        for (; i_ + (lanes) <= n_; i_ += (lanes))      \
            part(i_, (size_t)(lanes), 1, __VA_ARGS__); \
        if (i_ < n_)                                   \
            part(i_, n_ - i_, 0, __VA_ARGS__);         \
    } while (0)
#define LNRNN_FOR_ROW(head, n, part, ...) LNRNN_FOR_VECTORS(LANES, head, n, part, __VA_ARGS__)

/* The number of values whose sum is kept in real, in `ways` accumulators. Longer sums are continued in
 * double: in real their last terms would be rounded to the size of the sum. */
#define LNRNN_BLOCK(ways) (32 * (ways) * LANES)

/* Which layer norm: bits of a `form`. */
enum {
    LNRNN_CENTRED = 1, /* layer norm; without it RMS norm */
    LNRNN_GAIN = 2,
    LNRNN_BIAS = 4,
    LNRNN_SCALED = 8, /* backward: the row is multiplied by a power of two */
};

/* Samples, or places in planes, whose mean is the pivot of a channel. */
enum { LNRNN_PROBES = 16 };

#define accumulate LNRNN_T(accumulate)
#define accumulators LNRNN_T(accumulators)
#define accumulators_zero LNRNN_T(accumulators_zero)
#define add_real LNRNN_T(add_real)
#define affine LNRNN_T(affine)
#define batch_affine_columns LNRNN_T(batch_affine_columns)
#define batch_affine_kernel LNRNN_T(batch_affine_kernel)
#define batch_affine_nontemporal LNRNN_T(batch_affine_nontemporal)
#define batch_affine_part LNRNN_T(batch_affine_part)
#define batch_columns_group LNRNN_T(batch_columns_group)
#define batch_columns_part LNRNN_T(batch_columns_part)
#define batch_columns_sums LNRNN_T(batch_columns_sums)
#define batch_moments_kernel LNRNN_T(batch_moments_kernel)
#define batch_planes_flush LNRNN_T(batch_planes_flush)
#define batch_planes_part LNRNN_T(batch_planes_part)
#define batch_planes_sums LNRNN_T(batch_planes_sums)
#define batch_probe_kernel LNRNN_T(batch_probe_kernel)
#define batch_scales_kernel LNRNN_T(batch_scales_kernel)
#define batch_slopes_kernel LNRNN_T(batch_slopes_kernel)
#define batch_sums_any LNRNN_T(batch_sums_any)
#define batch_sums_kernel LNRNN_T(batch_sums_kernel)
#define coefficient_row LNRNN_T(coefficient_row)
#define coefficients LNRNN_T(coefficients)
#define coefficients_at LNRNN_T(coefficients_at)
#define coefficients_from LNRNN_T(coefficients_from)
#define column_block LNRNN_T(column_block)
#define flush LNRNN_T(flush)
#define fold_kernel LNRNN_T(fold_kernel)
#define four_moments LNRNN_T(four_moments)
#define get LNRNN_T(get)
#define get_real LNRNN_T(get_real)
#define get_scaled LNRNN_T(get_scaled)
#define gradient_row LNRNN_T(gradient_row)
#define gradient_rows LNRNN_T(gradient_rows)
#define gx_columns_kernel LNRNN_T(gx_columns_kernel)
#define gx_part LNRNN_T(gx_part)
#define gx_planes_kernel LNRNN_T(gx_planes_kernel)
#define gx_rows LNRNN_T(gx_rows)
#define in_one_block LNRNN_T(in_one_block)
#define lanes_about LNRNN_T(lanes_about)
#define lanes_of_4 LNRNN_T(lanes_of_4)
#define layer_norm_any LNRNN_T(layer_norm_any)
#define layer_norm_backward_group LNRNN_T(layer_norm_backward_group)
#define layer_norm_backward_kernel LNRNN_T(layer_norm_backward_kernel)
#define layer_norm_backward_rows LNRNN_T(layer_norm_backward_rows)
#define layer_norm_backward_scaled LNRNN_T(layer_norm_backward_scaled)
#define layer_norm_group LNRNN_T(layer_norm_group)
#define layer_norm_gx LNRNN_T(layer_norm_gx)
#define layer_norm_gx_part LNRNN_T(layer_norm_gx_part)
#define layer_norm_kernel LNRNN_T(layer_norm_kernel)
#define layer_norm_nontemporal LNRNN_T(layer_norm_nontemporal)
#define layer_norm_part LNRNN_T(layer_norm_part)
#define layer_norm_rows LNRNN_T(layer_norm_rows)
#define layer_norm_scaled LNRNN_T(layer_norm_scaled)
#define layer_norm_value LNRNN_T(layer_norm_value)
#define least_spread LNRNN_T(least_spread)
#define moments LNRNN_T(moments)
#define moments_about LNRNN_T(moments_about)
#define moments_of_4 LNRNN_T(moments_of_4)
#define moments_part LNRNN_T(moments_part)
#define norm_row LNRNN_T(norm_row)
#define norm_rows LNRNN_T(norm_rows)
#define normalised LNRNN_T(normalised)
#define out_of_range LNRNN_T(out_of_range)
#define pass_rows LNRNN_T(pass_rows)
#define pivot_of LNRNN_T(pivot_of)
#define pivot_lanes LNRNN_T(pivot_lanes)
#define plane_coefficients LNRNN_T(plane_coefficients)
#define put LNRNN_T(put)
#define put_real LNRNN_T(put_real)
#define row_gradient LNRNN_T(row_gradient)
#define row_scale LNRNN_T(row_scale)
#define row_statistics LNRNN_T(row_statistics)
#define row_sums LNRNN_T(row_sums)
#define row_sums_part LNRNN_T(row_sums_part)
#define scale_part LNRNN_T(scale_part)
#define sums_about LNRNN_T(sums_about)
#define to_aligned LNRNN_T(to_aligned)
#define to_whole_lines LNRNN_T(to_whole_lines)
#define total_of_2 LNRNN_T(total_of_2)
#define total_of_4 LNRNN_T(total_of_4)

/* The operations on vectors: simd.h says what each does. */
#define v_zero LNRNN_V(zero)
#define v_set1 LNRNN_V(set1)
#define v_load LNRNN_V(load)
#define v_load_n LNRNN_V(load_n)
#define v_store LNRNN_V(store)
#define v_store_n LNRNN_V(store_n)
#define v_stream LNRNN_V(stream)
#define v_keep_n LNRNN_V(keep_n)
#define v_add LNRNN_V(add)
#define v_sub LNRNN_V(sub)
#define v_mul LNRNN_V(mul)
#define v_div LNRNN_V(div)
#define v_fma LNRNN_V(fma)
#define v_sqrt LNRNN_V(sqrt)
#define v_min LNRNN_V(min)
#define v_max LNRNN_V(max)
#define v_sum LNRNN_V(sum)
#define v_load_elem LNRNN_E(load)
#define v_load_n_elem LNRNN_E(load_n)
#define v_store_elem LNRNN_E(store)
#define v_store_n_elem LNRNN_E(store_n)
#define v_stream_elem LNRNN_E(stream)

#endif
