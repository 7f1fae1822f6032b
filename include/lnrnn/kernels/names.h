/* The names of norm.h and of what it includes, which are one text for four types in memory. A function there
 * is written and called by its plain name, and compiled under that name with the suffix of the type: moments
 * is moments_f32, moments_f64, moments_bf16 and moments_f16. A new function of these files is added to the
 * list here.
 *
 * Defined for each type, before norm.h is included for it:
 *     LNRNN_TYPE    the suffix
 *     LANES         values in a vector
 *     elem          the type in memory
 *     real          the type of the arithmetic, float or double
 *     vreal         a vector of real
 *     real_sqrt     the square root of real
 *     LNRNN_V(op)   the vector operation of real
 *     LNRNN_E(op)   a load or store of elem, converted to or from real
 */
#ifndef LNRNN_NAMES_H
#define LNRNN_NAMES_H

#define LNRNN_CAT_(a, b) a##b
#define LNRNN_CAT(a, b) LNRNN_CAT_(a, b)
#define LNRNN_T(name) LNRNN_CAT(name##_, LNRNN_TYPE)

#define PROBES LNRNN_T(PROBES)
#define batch_affine_columns LNRNN_T(batch_affine_columns)
#define batch_affine_kernel LNRNN_T(batch_affine_kernel)
#define batch_affine_part LNRNN_T(batch_affine_part)
#define batch_affine_row LNRNN_T(batch_affine_row)
#define batch_chains LNRNN_T(batch_chains)
#define batch_chains_add LNRNN_T(batch_chains_add)
#define batch_chains_clear LNRNN_T(batch_chains_clear)
#define batch_chains_end LNRNN_T(batch_chains_end)
#define batch_columns_part LNRNN_T(batch_columns_part)
#define batch_columns_sums LNRNN_T(batch_columns_sums)
#define batch_moments_kernel LNRNN_T(batch_moments_kernel)
#define batch_planes_sums LNRNN_T(batch_planes_sums)
#define batch_probe_kernel LNRNN_T(batch_probe_kernel)
#define batch_scales_kernel LNRNN_T(batch_scales_kernel)
#define batch_slopes_kernel LNRNN_T(batch_slopes_kernel)
#define batch_sums_any LNRNN_T(batch_sums_any)
#define batch_sums_kernel LNRNN_T(batch_sums_kernel)
#define flush LNRNN_T(flush)
#define fold_kernel LNRNN_T(fold_kernel)
#define four_moments LNRNN_T(four_moments)
#define get LNRNN_T(get)
#define get_real LNRNN_T(get_real)
#define get_scaled LNRNN_T(get_scaled)
#define gx_columns_kernel LNRNN_T(gx_columns_kernel)
#define gx_part LNRNN_T(gx_part)
#define gx_planes_kernel LNRNN_T(gx_planes_kernel)
#define gx_rows LNRNN_T(gx_rows)
#define layer_norm_backward_group LNRNN_T(layer_norm_backward_group)
#define layer_norm_backward_kernel LNRNN_T(layer_norm_backward_kernel)
#define layer_norm_backward_scaled LNRNN_T(layer_norm_backward_scaled)
#define layer_norm_group LNRNN_T(layer_norm_group)
#define layer_norm_gx LNRNN_T(layer_norm_gx)
#define layer_norm_gx_part LNRNN_T(layer_norm_gx_part)
#define layer_norm_kernel LNRNN_T(layer_norm_kernel)
#define layer_norm_nontemporal LNRNN_T(layer_norm_nontemporal)
#define layer_norm_part LNRNN_T(layer_norm_part)
#define layer_norm_rows LNRNN_T(layer_norm_rows)
#define layer_norm_scaled LNRNN_T(layer_norm_scaled)
#define least_spread LNRNN_T(least_spread)
#define moments LNRNN_T(moments)
#define moments_about LNRNN_T(moments_about)
#define normalised LNRNN_T(normalised)
#define out_of_range LNRNN_T(out_of_range)
#define pivot_of LNRNN_T(pivot_of)
#define put LNRNN_T(put)
#define put_real LNRNN_T(put_real)
#define row_gradient LNRNN_T(row_gradient)
#define row_scale LNRNN_T(row_scale)
#define row_sums LNRNN_T(row_sums)
#define sums_about LNRNN_T(sums_about)
#define to_aligned LNRNN_T(to_aligned)
#define to_whole_lines LNRNN_T(to_whole_lines)

/* The vocabulary: simd.h says what each does. */
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
