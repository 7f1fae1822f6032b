/* A tile's loop over the words of its weights: one text, included once for each of float, dot2 and int8 with
 *     LNRNN_LOOP    its name: mm_sums is compiled as float_sums
 *     accumulator   v32 or vi32
 *     SUMS          accumulators of an output
 *     activations   the rows
 *     LINE_DOT      the dot product of a single row, where there are blocks: includes matmul_blocks.h
 * of which none is defined after it, and with these defined; `kind`, a constant, is what a tile tells all of them:
 *     <name>_weights                            words of a vector of outputs, as a step takes them
 *     <name>_load(kind, job, o, wide, tail, v, j, &p) -> those of word j, and where they are: p
 *     <name>_turns(kind)                        steps that a word takes
 *     <name>_step(kind, job, turn, sum, a, i, j, w) -> sum + word j of row i times w
 *     <name>_ahead(kind, rows, a, j)            prefetches word j of the rows that follow these
 *     <name>_prefetch(p)                        weights of several rows: into L1 or L2
 */
#ifndef LNRNN_MATMUL_LOOP_NAMES
#define LNRNN_MATMUL_LOOP_NAMES
#define mm_sums LNRNN_CAT(LNRNN_LOOP, _sums)
#define mm_weights LNRNN_CAT(LNRNN_LOOP, _weights)
#define mm_load LNRNN_CAT(LNRNN_LOOP, _load)
#define mm_turns LNRNN_CAT(LNRNN_LOOP, _turns)
#define mm_step LNRNN_CAT(LNRNN_LOOP, _step)
#define mm_ahead LNRNN_CAT(LNRNN_LOOP, _ahead)
#define mm_prefetch LNRNN_CAT(LNRNN_LOOP, _prefetch)
#endif

/* acc (rows, SUMS, vecs) += the products of the rows a with words first .. end - 1 of the tile's outputs. All counts and
 * prefetch are constants where this is called: the loops unroll and acc stays in registers. */
LNRNN_INLINE void mm_sums(int kind, int rows, int wide, int tails, int tail, int prefetch, const mm_job *job,
                          size_t first, size_t end, activations a, size_t o,
                          accumulator (*acc)[SUMS][MM_MOST_VECS])
{
    const int vecs = wide * NR_VECS + tails * tail;
    for (size_t j = first; j < end; j++) {
        if (prefetch == MM_PREFETCH_ROWS && j % MM_LINE == 0)
            mm_ahead(kind, rows, a, j);
        mm_weights w[MM_MOST_VECS];
        LNRNN_FOR_EACH (v, vecs) {
            const uint32_t *p;
            w[v] = mm_load(kind, job, o, wide, tail, v, j, &p);
            if (prefetch == MM_PREFETCH_WEIGHTS && rows == 1)
                v32_prefetch((const float *)p + LNRNN_PREFETCH_ROW);
            else if (prefetch == MM_PREFETCH_WEIGHTS && vecs > NR_VECS)
                mm_prefetch((const float *)p + LNRNN_PREFETCH_TILE);
            else if (prefetch == MM_PREFETCH_WEIGHTS)
                mm_prefetch((const float *)job->w + job->ahead + (ptrdiff_t)(j * job->pace) + v * V32_LANES);
        }
        LNRNN_FOR_EACH (turn, mm_turns(kind))
            LNRNN_FOR_EACH (i, rows)
                LNRNN_FOR_EACH (v, vecs)
                    acc[i][turn % SUMS][v] = mm_step(kind, job, turn, acc[i][turn % SUMS][v], a, i, j, w[v]);
    }
}

#if defined(LNRNN_BLOCKS) && defined(LINE_DOT)
#include "lnrnn/kernels/matmul_blocks.h"
#endif
#undef LNRNN_LOOP
#undef accumulator
#undef SUMS
#undef activations
#undef LINE_DOT
