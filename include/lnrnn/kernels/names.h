/* The names of norm.h and of the headers that it includes: one text for four types in memory. A function or
 * type there has a name that ends in _T, and is compiled with the suffix of its type: moments_T is
 * moments_f32, moments_f64, moments_bf16 and moments_f16. A new one is added to both lists here.
 *
 * norm.h includes this file twice: the first time defines the names, the second time undefines them, so that
 * no other header sees them. Defined by all.h before norm.h:
 *     LNRNN_TYPE    the suffix
 *     LNRNN_DOUBLE  if the arithmetic is in double, else it is in float
 *     elem          the type in memory
 *     LNRNN_E(op)   a load or store of elem, converted from or to real
 */
#ifndef LNRNN_TYPED_NAMES
#define LNRNN_TYPED_NAMES

/* real: the type of the arithmetic; vreal: a vector of it, of LANES values; v_op: an operation on it
 * (simd.h). */
#ifdef LNRNN_DOUBLE
#define real double
#define real_sqrt sqrt
#define vreal v64
#define LANES V64_LANES
#define LNRNN_V(op) v64_##op
#else
#define real float
#define real_sqrt sqrtf
#define vreal v32
#define LANES V32_LANES
#define LNRNN_V(op) v32_##op
#endif

/* LNRNN_FOR_VECTORS (vector_loop.h) over a row of values of the type. */
#define LNRNN_FOR_ROW(head, n, part, ...) LNRNN_FOR_VECTORS(LANES, head, n, part, __VA_ARGS__)

/* The number of values whose sum is kept in real, in `ways` accumulators. Longer sums are continued in
 * double, since their last terms would be rounded to the size of the sum. */
#define LNRNN_BLOCK(ways) (32 * (ways) * LANES)

#define LNRNN_T(name) LNRNN_CAT(name##_, LNRNN_TYPE)
#define accumulate_T LNRNN_T(accumulate)
#define accumulators_T LNRNN_T(accumulators)
#define accumulators_zero_T LNRNN_T(accumulators_zero)
#define add_real_T LNRNN_T(add_real)
#define affine_T LNRNN_T(affine)
#define batch_affine_columns_T LNRNN_T(batch_affine_columns)
#define batch_affine_kernel_T LNRNN_T(batch_affine_kernel)
#define batch_affine_nontemporal_T LNRNN_T(batch_affine_nontemporal)
#define batch_affine_part_T LNRNN_T(batch_affine_part)
#define batch_columns_group_T LNRNN_T(batch_columns_group)
#define batch_columns_part_T LNRNN_T(batch_columns_part)
#define batch_columns_sums_T LNRNN_T(batch_columns_sums)
#define batch_moments_kernel_T LNRNN_T(batch_moments_kernel)
#define batch_planes_flush_T LNRNN_T(batch_planes_flush)
#define batch_planes_part_T LNRNN_T(batch_planes_part)
#define batch_planes_sums_T LNRNN_T(batch_planes_sums)
#define batch_probe_kernel_T LNRNN_T(batch_probe_kernel)
#define batch_scales_kernel_T LNRNN_T(batch_scales_kernel)
#define batch_slopes_kernel_T LNRNN_T(batch_slopes_kernel)
#define batch_sums_any_T LNRNN_T(batch_sums_any)
#define batch_sums_kernel_T LNRNN_T(batch_sums_kernel)
#define coefficient_row_T LNRNN_T(coefficient_row)
#define coefficients_T LNRNN_T(coefficients)
#define coefficients_at_T LNRNN_T(coefficients_at)
#define coefficients_from_T LNRNN_T(coefficients_from)
#define column_block_T LNRNN_T(column_block)
#define flush_T LNRNN_T(flush)
#define fold_kernel_T LNRNN_T(fold_kernel)
#define four_moments_T LNRNN_T(four_moments)
#define get_T LNRNN_T(get)
#define get_real_T LNRNN_T(get_real)
#define get_scaled_T LNRNN_T(get_scaled)
#define gradient_row_T LNRNN_T(gradient_row)
#define gradient_rows_T LNRNN_T(gradient_rows)
#define gx_columns_kernel_T LNRNN_T(gx_columns_kernel)
#define gx_part_T LNRNN_T(gx_part)
#define gx_planes_kernel_T LNRNN_T(gx_planes_kernel)
#define gx_rows_T LNRNN_T(gx_rows)
#define in_one_block_T LNRNN_T(in_one_block)
#define lanes_about_T LNRNN_T(lanes_about)
#define lanes_of_4_T LNRNN_T(lanes_of_4)
#define layer_norm_any_T LNRNN_T(layer_norm_any)
#define layer_norm_backward_group_T LNRNN_T(layer_norm_backward_group)
#define layer_norm_backward_kernel_T LNRNN_T(layer_norm_backward_kernel)
#define layer_norm_backward_rows_T LNRNN_T(layer_norm_backward_rows)
#define layer_norm_backward_scaled_T LNRNN_T(layer_norm_backward_scaled)
#define layer_norm_group_T LNRNN_T(layer_norm_group)
#define layer_norm_gx_T LNRNN_T(layer_norm_gx)
#define layer_norm_gx_part_T LNRNN_T(layer_norm_gx_part)
#define layer_norm_kernel_T LNRNN_T(layer_norm_kernel)
#define layer_norm_nontemporal_T LNRNN_T(layer_norm_nontemporal)
#define layer_norm_part_T LNRNN_T(layer_norm_part)
#define layer_norm_rows_T LNRNN_T(layer_norm_rows)
#define layer_norm_scaled_T LNRNN_T(layer_norm_scaled)
#define layer_norm_value_T LNRNN_T(layer_norm_value)
#define least_spread_T LNRNN_T(least_spread)
#define moments_T LNRNN_T(moments)
#define moments_about_T LNRNN_T(moments_about)
#define moments_of_4_T LNRNN_T(moments_of_4)
#define moments_part_T LNRNN_T(moments_part)
#define norm_row_T LNRNN_T(norm_row)
#define norm_rows_T LNRNN_T(norm_rows)
#define normalised_T LNRNN_T(normalised)
#define out_of_range_T LNRNN_T(out_of_range)
#define pass_rows_T LNRNN_T(pass_rows)
#define pivot_of_T LNRNN_T(pivot_of)
#define pivot_lanes_T LNRNN_T(pivot_lanes)
#define plane_coefficients_T LNRNN_T(plane_coefficients)
#define put_T LNRNN_T(put)
#define put_real_T LNRNN_T(put_real)
#define row_gradient_T LNRNN_T(row_gradient)
#define row_scale_T LNRNN_T(row_scale)
#define row_statistics_T LNRNN_T(row_statistics)
#define row_sums_T LNRNN_T(row_sums)
#define row_sums_part_T LNRNN_T(row_sums_part)
#define scale_part_T LNRNN_T(scale_part)
#define sums_about_T LNRNN_T(sums_about)
#define to_aligned_T LNRNN_T(to_aligned)
#define to_whole_lines_T LNRNN_T(to_whole_lines)
#define total_of_2_T LNRNN_T(total_of_2)
#define total_of_4_T LNRNN_T(total_of_4)

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

#else
#undef LNRNN_TYPED_NAMES
#undef LNRNN_TYPE
#undef LNRNN_DOUBLE
#undef elem
#undef LNRNN_E
#undef real
#undef real_sqrt
#undef vreal
#undef LANES
#undef LNRNN_V
#undef LNRNN_FOR_ROW
#undef LNRNN_BLOCK
#undef LNRNN_T
#undef accumulate_T
#undef accumulators_T
#undef accumulators_zero_T
#undef add_real_T
#undef affine_T
#undef batch_affine_columns_T
#undef batch_affine_kernel_T
#undef batch_affine_nontemporal_T
#undef batch_affine_part_T
#undef batch_columns_group_T
#undef batch_columns_part_T
#undef batch_columns_sums_T
#undef batch_moments_kernel_T
#undef batch_planes_flush_T
#undef batch_planes_part_T
#undef batch_planes_sums_T
#undef batch_probe_kernel_T
#undef batch_scales_kernel_T
#undef batch_slopes_kernel_T
#undef batch_sums_any_T
#undef batch_sums_kernel_T
#undef coefficient_row_T
#undef coefficients_T
#undef coefficients_at_T
#undef coefficients_from_T
#undef column_block_T
#undef flush_T
#undef fold_kernel_T
#undef four_moments_T
#undef get_T
#undef get_real_T
#undef get_scaled_T
#undef gradient_row_T
#undef gradient_rows_T
#undef gx_columns_kernel_T
#undef gx_part_T
#undef gx_planes_kernel_T
#undef gx_rows_T
#undef in_one_block_T
#undef lanes_about_T
#undef lanes_of_4_T
#undef layer_norm_any_T
#undef layer_norm_backward_group_T
#undef layer_norm_backward_kernel_T
#undef layer_norm_backward_rows_T
#undef layer_norm_backward_scaled_T
#undef layer_norm_group_T
#undef layer_norm_gx_T
#undef layer_norm_gx_part_T
#undef layer_norm_kernel_T
#undef layer_norm_nontemporal_T
#undef layer_norm_part_T
#undef layer_norm_rows_T
#undef layer_norm_scaled_T
#undef layer_norm_value_T
#undef least_spread_T
#undef moments_T
#undef moments_about_T
#undef moments_of_4_T
#undef moments_part_T
#undef norm_row_T
#undef norm_rows_T
#undef normalised_T
#undef out_of_range_T
#undef pass_rows_T
#undef pivot_of_T
#undef pivot_lanes_T
#undef plane_coefficients_T
#undef put_T
#undef put_real_T
#undef row_gradient_T
#undef row_scale_T
#undef row_statistics_T
#undef row_sums_T
#undef row_sums_part_T
#undef scale_part_T
#undef sums_about_T
#undef to_aligned_T
#undef to_whole_lines_T
#undef total_of_2_T
#undef total_of_4_T
#undef v_zero
#undef v_set1
#undef v_load
#undef v_load_n
#undef v_store
#undef v_store_n
#undef v_stream
#undef v_keep_n
#undef v_add
#undef v_sub
#undef v_mul
#undef v_div
#undef v_fma
#undef v_sqrt
#undef v_min
#undef v_max
#undef v_sum
#undef v_load_elem
#undef v_load_n_elem
#undef v_store_elem
#undef v_store_n_elem
#undef v_stream_elem
#endif
