/* Compiles one part of the kernels of one instruction set. Parts are compiled separately, so that a changed
 * header recompiles few of them. build_flags.py defines LNRNN_ISA_<NAME> (the instruction set),
 * LNRNN_ISA_SUFFIX and LNRNN_PART_<PART>. The part NORM defines the table lnrnn_norm_<suffix>. The parts
 * CELLS, PRODUCT, INT8 and BF16 define tables with their names. BLOCKS and INT8_BLOCKS define only
 * block-sparse products. LNRNN_UNIT is the name of a matrix unit of the CPU, such as "AMX". LNRNN_TILES
 * means AMX instructions, and LNRNN_BLOCKS Arm's instructions for 2 x 2 blocks. dispatch.c collects the
 * tables. With LNRNN_INFERENCE, the tables lack kernels for training, and have norms of float32 only. */
#ifndef LNRNN_ALL_H
#define LNRNN_ALL_H

#ifdef LNRNN_PART_INT8_BLOCKS
#define LNRNN_PART_INT8
#endif
#ifdef LNRNN_INFERENCE
#define LNRNN_TRAINS(function) NULL
#else
#define LNRNN_TRAINS(function) function
#endif

#include "lnrnn/kernels/table.h"
#include "lnrnn/kernels/vector_loop.h"
#include "lnrnn/simd/simd.h"
#include "lnrnn/tuning.h"

#if defined(LNRNN_PART_NORM) || defined(LNRNN_PART_CELLS)
#define LNRNN_TYPE f32
#define elem float
#define LNRNN_ELEM(op) v32_##op
#include "lnrnn/kernels/norm.h"
#endif

#if defined(LNRNN_PART_NORM) && !defined(LNRNN_INFERENCE)
#define LNRNN_TYPE f64
#define LNRNN_DOUBLE
#define elem double
#define LNRNN_ELEM(op) v64_##op
#include "lnrnn/kernels/norm.h"

#define LNRNN_TYPE bf16
#define LNRNN_NARROW
#define elem uint16_t
#define LNRNN_ELEM(op) v32_##op##_bf16
#include "lnrnn/kernels/norm.h"

#define LNRNN_TYPE f16
#define LNRNN_NARROW
#define elem uint16_t
#define LNRNN_ELEM(op) v32_##op##_f16
#include "lnrnn/kernels/norm.h"
#endif

#ifdef LNRNN_PART_NORM
/* The kernels for elements of type t, which compute in type r. Kernels that read no array of elements are
 * shared by all types with the same r. */
#define LNRNN_NORM_TABLE(t, r)                                               \
    {                                                                        \
        .layer_norm = layer_norm_kernel_##t,                                 \
        .layer_norm_backward = LNRNN_TRAINS(layer_norm_backward_kernel_##t), \
        .batch_probe = LNRNN_TRAINS(batch_probe_kernel_##t),                 \
        .batch_sums = LNRNN_TRAINS(batch_sums_kernel_##t),                   \
        .batch_moments = LNRNN_TRAINS(batch_moments_kernel_##r),             \
        .batch_scales = batch_scales_kernel_##r,                             \
        .batch_slopes = LNRNN_TRAINS(batch_slopes_kernel_##r),               \
        .batch_affine = batch_affine_kernel_##t,                             \
        .fold = fold_kernel_##r,                                             \
        .gx_columns = LNRNN_TRAINS(gx_columns_kernel_##t),                   \
        .gx_planes = LNRNN_TRAINS(gx_planes_kernel_##t),                     \
    }

const lnrnn_norm LNRNN_CAT(lnrnn_norm_, LNRNN_ISA_SUFFIX)[] = {
    [LNRNN_FLOAT32] = LNRNN_NORM_TABLE(f32, f32),
#ifndef LNRNN_INFERENCE
    [LNRNN_FLOAT64] = LNRNN_NORM_TABLE(f64, f64),
    [LNRNN_BFLOAT16] = LNRNN_NORM_TABLE(bf16, f32),
    [LNRNN_FLOAT16] = LNRNN_NORM_TABLE(f16, f32),
#endif
};
#ifndef LNRNN_INFERENCE
_Static_assert(sizeof LNRNN_CAT(lnrnn_norm_, LNRNN_ISA_SUFFIX) == LNRNN_DTYPES * sizeof(lnrnn_norm),
               "a row of kernels for each type");
#endif
#endif

#ifdef LNRNN_PART_CELLS
#include "lnrnn/kernels/gru_cell.h"
#include "lnrnn/kernels/ligru_cell.h"
#include "lnrnn/kernels/lstm_cell.h"
#include "lnrnn/kernels/rnn_cell.h"
#include "lnrnn/kernels/slstm_cell.h"
#include "lnrnn/kernels/step_norm.h"
#include "lnrnn/simd/vmath.h"

const lnrnn_cells LNRNN_CAT(lnrnn_cells_, LNRNN_ISA_SUFFIX) = {
    .step =
        {
            [LNRNN_STEP_RNN] = rnn_step,
            [LNRNN_STEP_LSTM] = lstm_step,
            [LNRNN_STEP_LSTM_PEEPHOLE] = lstm_peephole_step,
            [LNRNN_STEP_GRU] = gru_step,
            [LNRNN_STEP_GRU_GATE] = gru_gate_step,
            [LNRNN_STEP_LIGRU] = ligru_step,
            [LNRNN_STEP_GRU_RESET] = gru_reset_step,
            [LNRNN_STEP_SLSTM] = slstm_step,
        },
    .lstm_output = lstm_output,
    .reset_gates = gru_reset_gates,
    .rnn_backward = LNRNN_TRAINS(rnn_backward),
    .lstm_cell_sum = LNRNN_TRAINS(lstm_cell_sum),
    .lstm_output_backward = LNRNN_TRAINS(lstm_output_backward),
    .lstm_backward = LNRNN_TRAINS(lstm_backward),
    .gru_backward = LNRNN_TRAINS(gru_backward),
    .ligru_backward = LNRNN_TRAINS(ligru_backward),
    .gru_gate_sum = LNRNN_TRAINS(gru_gate_sum),
    .gru_gate_output_backward = LNRNN_TRAINS(gru_gate_output_backward),
    .gru_gate_reset_backward = LNRNN_TRAINS(gru_gate_reset_backward),
    .gru_reset_input = LNRNN_TRAINS(gru_reset_input),
    .gru_reset_output_backward = LNRNN_TRAINS(gru_reset_output_backward),
    .gru_reset_backward = LNRNN_TRAINS(gru_reset_backward),
    .slstm_backward = LNRNN_TRAINS(slstm_backward),
    .normalise_heads = normalise_heads,
    .normalise_rows = LNRNN_TRAINS(normalise_rows),
    .moments_columns = moments_columns,
    .sums_columns = LNRNN_TRAINS(sums_columns),
    .add_columns = LNRNN_TRAINS(add_columns),
    .exp = exp_f32,
    .tanh = tanh_f32,
    .sigmoid = sigmoid_f32,
};
#endif

/* An initializer of a lnrnn_product. Products differ in a few functions; packing and panels are the same. */
#define LNRNN_PRODUCT_TABLE(of_unit, function, of_scratch, of_int8, of_rows, of_columns) \
    {                                                                                    \
        .unit = of_unit,                                                                 \
        .rows_ahead = ROWS_AHEAD,                                                        \
        .panels = panel_count,                                                           \
        .start = panel_start,                                                            \
        .width = packed_width,                                                           \
        .size = packed_size,                                                             \
        .scratch = of_scratch,                                                           \
        .pack = pack_weights,                                                            \
        .matmul = function,                                                              \
        .quantize = of_int8,                                                             \
        .pack_rows = of_rows,                                                            \
        .matmul_columns = of_columns,                                                    \
    }

#ifndef LNRNN_UNIT
#define LNRNN_UNIT NULL
#endif

#ifdef LNRNN_PART_PRODUCT
#include "lnrnn/kernels/product_f32.h"

const lnrnn_product LNRNN_CAT(lnrnn_product_,
                              LNRNN_ISA_SUFFIX) = LNRNN_PRODUCT_TABLE(NULL, matmul_f32, matmul_f32_scratch,
                                                                      NULL, LNRNN_TRAINS(pack_rows),
                                                                      LNRNN_TRAINS(matmul_columns));
#endif

/* AVX-512's products with blocks are compiled separately, because vectors of 16 floats are larger than a
 * block (simd/wide.h). */
#if V32_LANES <= 8 && (defined(LNRNN_PART_PRODUCT) || defined(LNRNN_PART_INT8) || defined(LNRNN_PART_BLOCKS))
#include "lnrnn/kernels/product_blocks.h"

#ifdef LNRNN_PART_INT8
#define LNRNN_BLOCKS_OF lnrnn_int8_blocks_
#else
#define LNRNN_BLOCKS_OF lnrnn_blocks_
#endif
const lnrnn_blocks LNRNN_CAT(LNRNN_BLOCKS_OF, LNRNN_ISA_SUFFIX) = {blocks_size, blocks_scratch, pack_blocks,
                                                                   matmul_blocks};
#endif

#ifdef LNRNN_TILES
#include "lnrnn/kernels/product_amx.h"
#else
#ifdef LNRNN_PART_BF16
#include "lnrnn/kernels/product_bf16.h"
#endif
#if defined(LNRNN_PART_INT8) && !defined(LNRNN_PART_INT8_BLOCKS)
#include "lnrnn/kernels/product_int8.h"
#endif
#endif

/* Products by the CPU's bfloat16 instructions. Instruction sets without them multiply bfloat16 weights by
 * lnrnn_product_<suffix>, which converts them to float32. */
#ifdef LNRNN_PART_BF16
const lnrnn_product LNRNN_CAT(lnrnn_bf16_, LNRNN_ISA_SUFFIX) = LNRNN_PRODUCT_TABLE(LNRNN_UNIT, matmul_bf16,
                                                                                   bf16_scratch, NULL, NULL,
                                                                                   NULL);
#endif

#if defined(LNRNN_PART_INT8) && !defined(LNRNN_PART_INT8_BLOCKS)
const lnrnn_product LNRNN_CAT(lnrnn_int8_,
                              LNRNN_ISA_SUFFIX) = LNRNN_PRODUCT_TABLE(LNRNN_UNIT, matmul_int8, int8_scratch,
                                                                      int8_quantize_rows, NULL, NULL);
#endif

#endif
