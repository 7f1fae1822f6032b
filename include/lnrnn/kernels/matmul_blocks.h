/* Rows of a tile by twos, on units that multiply two rows by two outputs (units.h): half as many instructions
 * as dot products, beside those that put two words of each output side by side, once for all rows. One text for
 * both types of weights: matmul_loop.h includes it for each, with what it has defined itself. LINE_DOT is the dot product of a
 * single row, whose sums are the same. */
#ifndef LNRNN_MATMUL_BLOCKS_NAMES
#define LNRNN_MATMUL_BLOCKS_NAMES
#define mm_blocks LNRNN_CAT(LNRNN_LOOP, _blocks)
#define sum_half LNRNN_CAT(accumulator, _half)
#define sum_block_dot LNRNN_CAT(accumulator, _block_dot)
#define line_sum(line, v) acc[(line) / parts][(line) % parts][v]
#endif

/* acc (rows, SUMS, vecs), of each row its `parts` first, += those of a, pointers to the words of rows * parts lines, times
 * one panel of vecs vectors of outputs -> how many words are done: all, or all but the last. rows * parts, at least 4, vecs
 * and prefetch are constants. */
LNRNN_INLINE size_t mm_blocks(const int parts, const int rows, const int vecs, const int prefetch,
                              const mm_job *job, const uint32_t *const *a, size_t o,
                              accumulator (*acc)[SUMS][MM_MOST_VECS])
{
    const int lines = rows * parts, last = lines - 1;
    const ptrdiff_t word = (ptrdiff_t)vecs * V32_LANES;
    const uint32_t *w = job->w + o * job->words;
    const uint32_t *line[MR]; /* in registers: a is memory, which LNRNN_LOADS_STAY has read anew */
    LNRNN_FOR_EACH (i, lines)
        line[i] = a[i];
    accumulator c[MR / 2][NR_VECS][2];
    LNRNN_FOR_EACH (i, lines / 2)
        LNRNN_FOR_EACH (v, vecs)
            LNRNN_FOR_EACH (h, 2)
                c[i][v][h] = sum_half(line_sum(2 * i, v), line_sum(2 * i + 1, v), h);
    const size_t words = job->words / 2 * 2;
    size_t j = 0;
    for (; j < words; j += 2, w += 2 * word) {
        vblock pairs[MR / 2];
        LNRNN_FOR_EACH (i, lines / 2)
            pairs[i] = block_of_rows(line[2 * i] + j, line[2 * i + 1] + j);
        if (prefetch == MM_PREFETCH_WEIGHTS)
            LNRNN_FOR_EACH (l, (2 * vecs * V32_LANES + MM_LINE - 1) / MM_LINE)
                v32_prefetch((const float *)w + l * MM_LINE + LNRNN_PREFETCH_TILE);
        LNRNN_FOR_EACH (v, vecs) {
            LNRNN_LOADS_STAY();
            const uint32_t *const even = w + v * V32_LANES, *const odd = even + word;
            LNRNN_FOR_EACH (h, 2) {
                const vblock outputs = block_of_outputs(even, odd, h);
                LNRNN_FOR_EACH (i, lines / 2)
                    c[i][v][h] = sum_block_dot(c[i][v][h], pairs[i], outputs);
            }
            if (lines % 2)
                line_sum(last, v) =
                    LINE_DOT(LINE_DOT(line_sum(last, v), line[last][j], even), line[last][j + 1], odd);
        }
    }
    LNRNN_FOR_EACH (i, lines / 2)
        LNRNN_FOR_EACH (v, vecs)
            LNRNN_FOR_EACH (h, 2)
                line_sum(2 * i + h, v) = sum_half(c[i][v][0], c[i][v][1], h);
    return j;
}
