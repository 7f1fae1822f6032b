/* Computes tiles by Arm instructions (BFMMLA, SMMLA: units.h) that multiply two rows by two outputs. A tile
 * needs half as many of them as dot product instructions. In addition, two 32-bit words of each output are
 * moved next to each other, once for all rows. vsum is the type of the sums. */
#ifndef LNRNN_ROW_PAIRS_H
#define LNRNN_ROW_PAIRS_H

#include "lnrnn/kernels/tile.h"
#include "lnrnn/simd/units.h"

/* row: s.rows pointers to the words of a row, s.rows >= 4. Adds the products of the rows with the panel at
 * output o to acc (rows, vecs). Returns the first word that is not multiplied yet: job->end, or job->end - 1
 * if the number of words is odd. An odd last row is multiplied by dot products, whose sums have the same
 * bits. */
LNRNN_INLINE size_t pair_sums(const tile_shape s, const product_job *job, const uint32_t *const *row,
                              size_t o, vsum (*acc)[TILE_MOST_VECS])
{
    const int vecs = tile_vecs(s), last = s.rows - 1;
    const ptrdiff_t word = (ptrdiff_t)vecs * V32_LANES;
    const uint32_t *w = job->w + o * job->words + job->first * (size_t)word;
    const uint32_t *a[MR]; /* a copy stays in registers, though LNRNN_LOADS_STAY reloads memory */
    LNRNN_FOR_EACH (i, s.rows)
        a[i] = row[i];
    vsum c[MR / 2][NR_VECS][2];
    LNRNN_FOR_EACH (i, s.rows / 2)
        LNRNN_FOR_EACH (v, vecs)
            LNRNN_FOR_EACH (h, 2)
                c[i][v][h] = vsum_half(acc[2 * i][v], acc[2 * i + 1][v], h);
    size_t j = job->first;
    for (; j + 2 <= job->end; j += 2, w += 2 * word) {
        vblock pairs[MR / 2];
        LNRNN_FOR_EACH (i, s.rows / 2)
            pairs[i] = block_of_rows(a[2 * i] + j, a[2 * i + 1] + j);
        if (s.prefetch == PREFETCH_WEIGHTS)
            LNRNN_FOR_EACH (l, (2 * vecs * V32_LANES + LINE_WORDS - 1) / LINE_WORDS)
                v32_prefetch((const float *)w + l * LINE_WORDS + LNRNN_PREFETCH_TILE);
        LNRNN_FOR_EACH (v, vecs) {
            LNRNN_LOADS_STAY();
            const uint32_t *const even = w + v * V32_LANES, *const odd = even + word;
            LNRNN_FOR_EACH (h, 2) {
                const vblock outputs = block_of_outputs(even, odd, h);
                LNRNN_FOR_EACH (i, s.rows / 2)
                    c[i][v][h] = vsum_block_dot(c[i][v][h], pairs[i], outputs);
            }
            if (s.rows % 2)
                acc[last][v] = vsum_dot(vsum_dot(acc[last][v], a[last][j], even), a[last][j + 1], odd);
        }
    }
    LNRNN_FOR_EACH (i, s.rows / 2)
        LNRNN_FOR_EACH (v, vecs)
            LNRNN_FOR_EACH (h, 2)
                acc[2 * i + h][v] = vsum_half(c[i][v][0], c[i][v][1], h);
    return j;
}

#endif
