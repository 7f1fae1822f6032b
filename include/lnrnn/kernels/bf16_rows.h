/* Rounds activations to bfloat16, for instructions that multiply two bfloat16. */
#ifndef LNRNN_BF16_ROWS_H
#define LNRNN_BF16_ROWS_H

#include "lnrnn/kernels/tile.h"

/* The most rows of activations that are rounded before the weights are read. This limit bounds the scratch
 * memory. */
enum { BF16_ROWS = 64 };

/* Returns the number of 32-bit words of scratch that a product of `rows` rows of k activations needs. */
static size_t bf16_scratch(int dtype, size_t rows, size_t k)
{
    return (rows < BF16_ROWS ? rows : BF16_ROWS) * packed_words(dtype, k);
}

/* x: `rows` pointers to (k) floats -> words (rows, job->words) of two bfloat16, rounded to nearest even. Word
 * j has inputs 2j and 2j + 1; inputs from k on are 0. */
LNRNN_INLINE void bf16_round_rows(const product_job *job, size_t rows, const float *const *x, uint32_t *words)
{
    const size_t k = job->k;
    for (size_t r = 0; r < rows; r++, words += job->words) {
        uint16_t *const y = (uint16_t *)words;
        size_t i = 0;
        for (; i + V32_LANES <= k; i += V32_LANES)
            v32_store_bf16(y + i, v32_load(x[r] + i));
        if (i < k)
            v32_store_n_bf16(y + i, v32_load_n(x[r] + i, k - i), k - i);
        memset(y + k, 0, (2 * job->words - k) * sizeof *y);
    }
}

#endif
