/* A tile multiplies some rows by some vectors of outputs, with the sums in registers. This file has the code
 * that does not depend on the type of the weights.
 *
 * Every output is one sum, to which the products of inputs j = 0 .. k-1 are added in this order. The sum
 * starts from c or from 0; LNRNN_ADD_AFTER adds c at the end. Tiles differ only in the number of sums that
 * they compute together. So the result of a row depends neither on other rows, nor on the thread that
 * computes a panel.
 */
#ifndef LNRNN_TILE_H
#define LNRNN_TILE_H

#include "lnrnn/kernels/pack.h"
#include "lnrnn/kernels/table.h"
#include "lnrnn/tuning.h"

/* The kinds of products. Rows are pointers to (k) floats, unless noted. Only products before
 * PRODUCT_F32_COLUMNS can prefetch rows (PREFETCH_ROWS). */
enum {
    PRODUCT_F32,
    PRODUCT_BF16,        /* bfloat16 weights are converted to float32 */
    PRODUCT_F32_COLUMNS, /* the rows are transposed: (k, rows), row stride job->columns */
    PRODUCT_DOT2,        /* rows are pointers to bfloat16: bf16_rows.h */
    PRODUCT_I8,          /* rows are quantized_rows with two parts: int8_rows.h */
    PRODUCT_I8A8         /* rows are quantized_rows with one part */
};

/* The memory that a tile prefetches: none, the weights that follow, or the activations of the next tile. */
enum { PREFETCH_NONE, PREFETCH_WEIGHTS, PREFETCH_ROWS };
#ifndef LNRNN_PREFETCHES /* 0: the prefetches of simd.h do nothing */
#define LNRNN_PREFETCHES 1
#endif

/* The number of 32-bit words in a cache line. */
enum { LINE_WORDS = 16 };

/* The most vectors of sums that one row of a tile has: four panels. */
enum { TILE_MOST_VECS = 4 * NR_VECS };

/* The shape of a tile. It is a compile-time constant, so that loops are unrolled, and sums stay in
 * registers. */
typedef struct {
    int rows;
    int whole;    /* the number of panels of full width, NR_VECS vectors */
    int narrow;   /* the number of panels with fewer vectors, which come last */
    int vecs;     /* the number of vectors of a narrow panel */
    int prefetch; /* PREFETCH_NONE .. */
} tile_shape;

LNRNN_INLINE int tile_vecs(tile_shape s) { return s.whole * NR_VECS + s.narrow * s.vecs; }

/* The description of a product that its tile functions read. */
typedef struct {
    size_t k, words;   /* the numbers of inputs, and of 32-bit words per output */
    size_t n, p0, p1;  /* the number of outputs; panels p0 .. p1 - 1 are computed */
    size_t first, end; /* the words of this pass; with float32 or int8 a product may have several passes */
    const void *a;     /* the rows, in the form of this kind of product (PRODUCT_F32 ..) */
    const uint32_t *w; /* packed (n, k) */
    float *c;          /* (rows, packed_width(n)), row stride cs */
    ptrdiff_t cs;
    ptrdiff_t columns; /* PRODUCT_F32_COLUMNS: row stride of the rows */
    int add;           /* LNRNN_ADD_NOT .. */
    int prefetch;      /* prefetch weights, because they do not stay in L2 */
    int from_end;      /* compute the last panel first */
    int few_panels;    /* with one row, multiply at most lnrnn_row_panels panels at a time */
    /* PREFETCH_WEIGHTS with several rows: a tile that reads word j prefetches w + ahead + j * pace. */
    ptrdiff_t ahead;
    size_t pace;
    const lnrnn_caches *caches;
    const float *scale;  /* int8: (n), scales of the outputs */
    const int32_t *sums; /* int8: (n), minus the sums of the outputs' weights in this pass */
} product_job;

LNRNN_INLINE product_job product_job_of(const lnrnn_matmul *m, const void *a, float *c, ptrdiff_t cs)
{
    const size_t words = packed_words(m->dtype, m->k), width = packed_width(m->n);
    const size_t bytes = width * words * sizeof(uint32_t);
    return (product_job){
        .k = m->k,
        .words = words,
        .n = m->n,
        .p0 = m->p0,
        .p1 = m->p1,
        .end = words,
        .a = a,
        .w = m->w,
        .c = c,
        .cs = cs,
        .add = m->add,
        .prefetch = bytes > lnrnn_prefetch_from(*m->caches, m->dtype != LNRNN_WEIGHT_F32),
        .from_end = m->from_end,
        .few_panels = m->dtype == LNRNN_WEIGHT_F32 && V32_LANES == 16,
        .caches = m->caches,
        .scale = (const float *)(m->w + width * words),
        .sums = (const int32_t *)(m->w + width * (words + 1)),
    };
}

LNRNN_INLINE float *tile_outputs(const product_job *job, size_t r, size_t o)
{
    return job->c + (ptrdiff_t)r * job->cs + (ptrdiff_t)o;
}

/* Returns the address of the weights that tile s at output o multiplies by input word j, in vector v of the
 * tile. */
LNRNN_INLINE const uint32_t *tile_weights(const tile_shape s, const product_job *job, size_t o, int v,
                                          size_t j)
{
    const int whole = s.whole * NR_VECS, size = v < whole ? NR_VECS : s.vecs;
    const int in = (v < whole ? v : v - whole) % size;     /* the index of the vector in its panel */
    const size_t panel = o + (size_t)(v - in) * V32_LANES; /* the first output of its panel */
    return job->w + panel * job->words + (j * (size_t)size + (size_t)in) * V32_LANES;
}

/* p: the address that tile_weights returns for v and j. Prefetches weights that are needed later: into L2 if
 * s has several rows and l2 is not 0, else into L1. */
LNRNN_INLINE void tile_prefetch(const tile_shape s, const product_job *job, const uint32_t *p, int v,
                                size_t j, int l2)
{
    if (s.prefetch != PREFETCH_WEIGHTS)
        return;
    const uint32_t *const later = s.rows == 1 ? p + LNRNN_PREFETCH_ROW
                                  : tile_vecs(s) > NR_VECS
                                      ? p + LNRNN_PREFETCH_TILE
                                      : job->w + job->ahead + j * job->pace + v * V32_LANES;
    if (l2 && s.rows > 1)
        v32_prefetch_l2((const float *)later);
    else
        v32_prefetch((const float *)later);
}

/* A vector of weights that several rows multiply, read through address_of_words. With LNRNN_KEEPS_WORDS it
 * stays in a register, because GCC would otherwise load the weights again for each row. */
#ifdef LNRNN_KEEPS_WORDS
typedef vi32 kept_words;
LNRNN_INLINE const uint32_t *address_of_words(const kept_words *w) { return (const uint32_t *)w; }
#else
typedef const uint32_t *kept_words;
LNRNN_INLINE const uint32_t *address_of_words(const kept_words *w) { return *w; }
#endif

/* Loads the vector of weights at p. again: several rows are multiplied by the vector, so it stays in a
 * register. */
LNRNN_INLINE kept_words keep_words(const uint32_t *p, int again)
{
#ifdef LNRNN_KEEPS_WORDS
    vi32 w = vi32_load((const int32_t *)p);
    if (again)
        LNRNN_LOADED(w);
    return w;
#else
    (void)again;
    return p;
#endif
}

#endif
