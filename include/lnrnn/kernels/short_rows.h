/* Rows rounded to bfloat16, for products on units that take nothing longer. */
#ifndef LNRNN_SHORT_ROWS_H
#define LNRNN_SHORT_ROWS_H

#include "lnrnn/kernels/matmul_tile.h"

/* Rows that are rounded before their products: as many as one call has, as a rule. */
enum { MM_SHORT_ROWS = 64 };

/* Words of scratch that a product needs for rows of k activations. */
static size_t short_rows_scratch(int dtype, size_t rows, size_t k)
{
    return (rows < MM_SHORT_ROWS ? rows : MM_SHORT_ROWS) * mm_words(dtype, k);
}

/* x (k) -> words (words) of two bfloat16, to nearest even: inputs 2j and 2j + 1 in word j, and 0 from k on. */
LNRNN_INLINE void round_row(size_t k, size_t words, const float *x, uint32_t *to)
{
    uint16_t *const y = (uint16_t *)to;
    size_t i = 0;
    for (; i + V32_LANES <= k; i += V32_LANES)
        v32_store_bf16(y + i, v32_load(x + i));
    if (i < k)
        v32_store_n_bf16(y + i, v32_load_n(x + i, k - i), k - i);
    memset(y + k, 0, (2 * words - k) * sizeof *y);
}

#endif
