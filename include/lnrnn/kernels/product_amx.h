/* Products with packed weights of bfloat16 or int8 in AMX tiles. Rows are rounded to bfloat16, or converted
 * to integers.
 *
 * A tile of weights has sixteen words of each output of a vector, in the order of the panel. The words of an
 * output are padded with 0 to whole tiles (packed_words). One row takes as long as sixteen rows, because
 * loading the weights takes most of the time. Single rows use tiles too, so the results are the same bits. An
 * output of bfloat16 is c + s0 + s1 + .., where each s is the sum of 32 inputs in the CPU's own order. */
#ifndef LNRNN_PRODUCT_AMX_H
#define LNRNN_PRODUCT_AMX_H

#include "lnrnn/kernels/tile.h"
#include "lnrnn/simd/units.h"
#ifdef LNRNN_PART_BF16
#include "lnrnn/kernels/bf16_rows.h"
#endif
#ifdef LNRNN_PART_INT8
#include "lnrnn/kernels/int8_rows.h"
#endif

/* The operands of amx_tiles: some vectors of outputs of one panel, and one or two matrices of rows. */
typedef struct {
    const uint32_t *w;    /* (words, panel): the first 32-bit word of these outputs' weights */
    ptrdiff_t panel;      /* the number of bytes between consecutive words of an output */
    const uint32_t *a[2]; /* (height, words), row stride `as` bytes */
    ptrdiff_t as;
    void *c[2]; /* (height, vecs * 16) of 32 bits, row stride cs bytes */
    ptrdiff_t cs;
    size_t words;
    int add;      /* add to the values of c */
    int prefetch; /* prefetch the weights that follow */
} amx_job;

/* Multiplies 1 or 2 matrices of rows by vecs vectors of outputs, matrices * vecs <= 4. int8, matrices and
 * vecs are compile-time constants. Tiles 0 to 3 hold sums, 4 and 5 rows, 6 and 7 weights. */
LNRNN_INLINE void amx_tiles(const int int8, const int matrices, const int vecs, lnrnn_tiles *t,
                            const amx_job *b)
{
    LNRNN_FOR_EACH (i, matrices)
        LNRNN_FOR_EACH (v, vecs)
            if (b->add)
                tile_load(t, i * vecs + v, (char *)b->c[i] + v * TILE_BYTES, b->cs);
            else
                tile_zero(t, i * vecs + v);
    const char *w = (const char *)b->w;
    for (size_t j = 0; j < b->words; j += TILE_WORDS, w += TILE_HEIGHT * b->panel) {
        if (b->prefetch)                          /* GCOVR_EXCL_BR_LINE: an emulated set does not prefetch */
            for (int r = 0; r < TILE_HEIGHT; r++) /* GCOVR_EXCL_BR_LINE: an emulated set does not prefetch */
                LNRNN_FOR_EACH (v, vecs)
                    v32_prefetch((const float *)(w + r * b->panel) + v * TILE_WORDS + LNRNN_PREFETCH_TILE);
        LNRNN_FOR_EACH (i, matrices)
            tile_load(t, 4 + i, b->a[i] + j, b->as);
        LNRNN_FOR_EACH (v, vecs) {
            tile_load(t, 6 + v % 2, w + v * TILE_BYTES, b->panel);
            LNRNN_FOR_EACH (i, matrices)
                if (int8)
                    tile_dot_u8(t, i * vecs + v, 4 + i, 6 + v % 2);
                else
                    tile_dot_bf16(t, i * vecs + v, 4 + i, 6 + v % 2);
        }
    }
    LNRNN_FOR_EACH (i, matrices)
        LNRNN_FOR_EACH (v, vecs)
            tile_store(t, i * vecs + v, (char *)b->c[i] + v * TILE_BYTES, b->cs);
}

/* Multiplies by all vectors of a panel, 1 to 3. Two matrices are multiplied by two vectors at a time, because
 * their rows and weights leave four tiles for sums. */
LNRNN_INLINE void amx_panel(const int int8, int matrices, int vecs, lnrnn_tiles *t, amx_job b)
{
    if (matrices == 1) {
        switch (vecs) {
        case 1: amx_tiles(int8, 1, 1, t, &b); return;
        case 2: amx_tiles(int8, 1, 2, t, &b); return;
        default: amx_tiles(int8, 1, 3, t, &b); return;
        }
    }
    if (vecs > 1) {
        amx_tiles(int8, 2, 2, t, &b);
        b.w += 2 * TILE_WORDS;
        b.c[0] = (char *)b.c[0] + 2 * TILE_BYTES, b.c[1] = (char *)b.c[1] + 2 * TILE_BYTES;
    }
    if (vecs % 2)
        amx_tiles(int8, 2, 1, t, &b);
}

/* Returns the job of the i-th panel, counted from the last panel if job->from_end. Sets *vecs, and *o to the
 * first output of the panel. */
LNRNN_INLINE amx_job amx_panel_job(const product_job *job, size_t i, size_t *o, int *vecs)
{
    const size_t p = job->from_end ? job->p1 - 1 - i : job->p0 + i,
                 m = panel_start(job->n, p + 1) - panel_start(job->n, p);
    *o = panel_start(job->n, p), *vecs = (int)(m / V32_LANES);
    return (amx_job){.w = job->w + *o * job->words + job->first * m,
                     .panel = (ptrdiff_t)(m * sizeof(uint32_t)),
                     .words = job->end - job->first};
}

#ifdef LNRNN_PART_BF16
LNRNN_OUTLINE void bf16_panel(int matrices, int vecs, lnrnn_tiles *t, amx_job b)
{
    amx_panel(0, matrices, vecs, t, b);
}

/* a (rows, words), rounded, rows <= BF16_ROWS -> job->c. Blocks of rows have equal heights, so the last block
 * may overlap the block before it. The two blocks are computed as a pair, which loads c before it stores, so
 * rows in both blocks get the same sum twice. */
static void bf16_amx_loop(const product_job *job, size_t rows, const uint32_t *a)
{
    const size_t blocks = (rows + TILE_HEIGHT - 1) / TILE_HEIGHT, height = (rows + blocks - 1) / blocks;
    lnrnn_tiles t;
    tiles_begin(&t, (int)height);
    for (size_t i = 0; i < job->p1 - job->p0; i++)
        for (size_t k = 0, pair; k < blocks; k += pair) {
            size_t o;
            int vecs;
            amx_job b = amx_panel_job(job, i, &o, &vecs);
            b.as = (ptrdiff_t)(job->words * sizeof(uint32_t)), b.cs = job->cs * (ptrdiff_t)sizeof(float);
            /* GCOVR_EXCL_BR_LINE: an emulated set does not prefetch */
            b.add = job->add, b.prefetch = job->prefetch && k == 0;
            pair = k == 0 && blocks % 2 ? 1 : 2;
            for (size_t x = 0; x < pair; x++) {
                const size_t r = (k + x + 1) * height > rows ? rows - height : (k + x) * height;
                b.a[x] = a + r * job->words;
                b.c[x] = tile_outputs(job, r, o);
            }
            bf16_panel((int)pair, vecs, &t, b);
        }
    tiles_end(&t);
}

/* a: `rows` pointers to (k) floats -> c (rows, packed_width(n)), row stride cs: the product with bfloat16
 * weights, as matmul_f32 computes it. m->scratch: bf16_scratch(dtype, rows, k) words. */
static void matmul_bf16(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c, ptrdiff_t cs)
{
    product_job job = product_job_of(m, m->scratch, c, cs);
    for (size_t r = 0; r < rows; r += BF16_ROWS, job.c += BF16_ROWS * cs) {
        const size_t some = rows - r < BF16_ROWS ? rows - r : BF16_ROWS;
        bf16_round_rows(&job, some, a + r, m->scratch);
        bf16_amx_loop(&job, some, m->scratch);
    }
}
#endif

#ifdef LNRNN_PART_INT8
LNRNN_OUTLINE void int8_panel(int matrices, int vecs, lnrnn_tiles *t, amx_job b)
{
    amx_panel(1, matrices, vecs, t, b);
}

/* q: `rows` quantized rows, at most INT8_ROWS -> job->c. Blocks of rows have equal heights, so the last block
 * may overlap the block before it. The outputs of rows in both blocks are written once. */
static void int8_amx_loop(const product_job *job, size_t rows, const quantized_rows *q)
{
    const int parts = q->parts;
    const size_t blocks = (rows + TILE_HEIGHT - 1) / TILE_HEIGHT, height = (rows + blocks - 1) / blocks;
    int32_t sums[TILE_HEIGHT * 2 * NR] __attribute__((aligned(64)));
    lnrnn_tiles t;
    tiles_begin(&t, (int)height);
    for (size_t i = 0; i < job->p1 - job->p0; i++)
        for (size_t k = 0; k < blocks; k++) {
            const size_t r = (k + 1) * height > rows ? rows - height : k * height, had = k * height - r;
            size_t o;
            int vecs;
            amx_job b = amx_panel_job(job, i, &o, &vecs);
            const size_t row = (size_t)parts * (size_t)vecs * V32_LANES; /* the number of sums of a row */
            for (int part = 0; part < parts; part++)
                b.a[part] = q->part[r * (size_t)parts + (size_t)part] + job->first;
            b.as = (ptrdiff_t)((size_t)parts * int8_part_bytes(job->k));
            b.c[0] = sums, b.c[1] = sums + vecs * V32_LANES, b.cs = (ptrdiff_t)(row * sizeof *sums);
            b.prefetch = job->prefetch && k == 0; /* GCOVR_EXCL_BR_LINE: an emulated set does not prefetch */
            int8_panel(parts, vecs, &t, b);
            int8_stored_outputs(parts, (int)(height - had), vecs, job, r + had, o, sums + had * row);
        }
    tiles_end(&t);
}

/* a: `rows` pointers to (k) floats -> c (rows, packed_width(n)), row stride cs: the product with int8
 * weights, as matmul_f32 computes it. m->scratch: int8_scratch(dtype, rows, k) words. */
static void matmul_int8(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c, ptrdiff_t cs)
{
    quantized_rows quantized;
    product_job job = product_job_of(m, &quantized, c, cs);
    for (size_t r = 0; r < rows; r += INT8_ROWS, job.c += INT8_ROWS * cs) {
        const size_t some = rows - r < INT8_ROWS ? rows - r : INT8_ROWS;
        int8_quantize_rows(m, some, a + r, &quantized);
        for (size_t b = 0; int8_block(m, &job, b); b++)
            int8_amx_loop(&job, some, &quantized);
    }
}
#endif

#endif
