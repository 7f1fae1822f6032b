/* What the tiles of a product have in common, whatever the weights are.
 *
 * A tile is some rows times some vectors of outputs whose sums stay in registers. Every output is one chain
 * of multiply-adds over the inputs j = 0 .. k-1 that starts from what c holds, or from 0 (and may be added to what c
 * holds at the end). Tiles differ only
 * in how many chains run side by side: so the result for a row does not depend on the rows around it, nor on
 * which thread computes which panel. The guarantee of equal bits rests on this.
 */
#ifndef LNRNN_MATMUL_TILE_H
#define LNRNN_MATMUL_TILE_H

#include "lnrnn/kernels/vector_loop.h"
#include "lnrnn/kernels/packed.h"
#include "lnrnn/kernels/table.h"
#include "lnrnn/tuning.h"

/* What a tile prefetches: nothing, the weights that come, or the rows that follow its own. */
enum { MM_PREFETCH_NONE, MM_PREFETCH_WEIGHTS, MM_PREFETCH_ROWS };

/* Floats in a cache line. */
enum { MM_LINE = 16 };

/* Vectors of accumulators that one row may have: three panels and two of two vectors, or four panels. */
enum { MM_MOST_VECS = 3 * NR_VECS + 4 };

/* One product, as its tiles see it. */
typedef struct {
    size_t k, words; /* inputs, and words to an output */
    size_t first,
        end; /* words that a tile goes through: all; of float32 perhaps some of them, and then the next */
    const uint32_t *w; /* packed (n, k) */
    size_t lines;      /* MM_LINES: floats from the weights of one input to those of the next */
    int add;           /* to what c holds: LNRNN_ADD_NOT .. */
    int prefetch;      /* the weights do not stay in L2 */
    int each_tile;     /* and a panel not in L1: each tile prefetches it */
    int from_end;      /* from the last panel to the first */
    int may_halve;     /* one row's weights may go by halves: lnrnn_by_halves */
    /* MM_PREFETCH_WEIGHTS of several rows: with word j of the outputs w + ahead + j * pace is prefetched */
    ptrdiff_t ahead;
    size_t pace;
    ptrdiff_t columns; /* MM_COLUMNS: from the values of one input to those of the next */
    lnrnn_caches caches;
    const float *scale;  /* int8: of the outputs */
    const int32_t *sums; /* int8: of the outputs' weights */
} mm_job;

LNRNN_INLINE mm_job mm_job_of(const lnrnn_matmul *m)
{
    const size_t words = mm_words(m->dtype, m->k), bytes = mm_width(m->n) * words * sizeof(uint32_t);
    return (mm_job){
        .k = m->k,
        .words = words,
        .end = words,
        .w = m->w,
        .lines = m->lines,
        .add = m->add,
        .prefetch = !m->lines && bytes > lnrnn_prefetch_from(m->caches, m->dtype != LNRNN_WEIGHT_F32),
        .from_end = m->from_end,
        .may_halve = m->dtype == LNRNN_WEIGHT_F32,
        .caches = m->caches,
    };
}

/* The words j of vector v of a tile that starts at output o: `wide` whole panels, then panels of `tail`
 * vectors. */
LNRNN_INLINE const uint32_t *mm_at(const mm_job *job, size_t o, int wide, int tail, int v, size_t j)
{
    const int size = v < wide * NR_VECS ? NR_VECS : tail, in = v < wide * NR_VECS ? v : v - wide * NR_VECS;
    const size_t first = o + (size_t)(v - in % size) * V32_LANES; /* output of this vector's panel */
    return job->w + first * job->words + (j * (size_t)size + (size_t)(in % size)) * V32_LANES;
}

/* A vector of words for dot products, which take it from memory: mm_words_of(w) is where. GCC would load it again
 * for each row (bf16 rnn B2-H512: a third more time). */
#ifdef LNRNN_KEEPS_WORDS
typedef vi32 vector_of_words;
#define mm_words_of(w) ((const uint32_t *)&(w))
#else
typedef const uint32_t *vector_of_words;
#define mm_words_of(w) (w)
#endif

/* mm_load of dot2 and int8. keep: it is for more than one step. */
LNRNN_INLINE vector_of_words mm_words_at(int keep, const mm_job *job, size_t o, int wide, int tail, int v,
                                         size_t j, const uint32_t **p)
{
    *p = mm_at(job, o, wide, tail, v, j);
#ifdef LNRNN_KEEPS_WORDS
    vi32 w = vi32_load((const int32_t *)*p);
    if (keep)
        LNRNN_LOADED(w);
    return w;
#else
    (void)keep;
    return *p;
#endif
}

#endif
