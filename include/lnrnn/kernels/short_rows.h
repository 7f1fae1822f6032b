/* Rows rounded to bfloat16, for products on units that take nothing longer. */
#ifndef LNRNN_SHORT_ROWS_H
#define LNRNN_SHORT_ROWS_H

#include "lnrnn/kernels/matmul_tile.h"

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
