/* Products with block-sparse weights: blocks of 8 outputs by 4 inputs are stored, and all other weights are
 * 0.
 *
 * Every output is the sum of the dense product (tile.h) without the terms of absent blocks. Such a term is an
 * exact 0, so for finite inputs at most the sign of a zero differs. Sums of int8 are exact.
 *
 * The blocks of eight outputs are a band. Bands are sorted by their numbers of blocks, within windows of
 * outputs. Four bands are a group, which is multiplied together, because the sums of one band wait for each
 * other. Packed weights have a table of groups, the columns of all blocks, and the blocks. A group has the
 * first block of each band, then the second ones, and so on, so one row reads them in order. */
#ifndef LNRNN_PRODUCT_BLOCKS_H
#define LNRNN_PRODUCT_BLOCKS_H

#include "lnrnn/kernels/tile.h"
#ifdef LNRNN_PART_INT8
#include "lnrnn/kernels/int8_rows.h"
#endif

/* BLOCK_VECS: the number of vectors of a band. GROUP_BANDS: the number of bands of a group. */
enum {
    BLOCK_VECS = LNRNN_BLOCK_OUTPUTS / V32_LANES,
    GROUP_BANDS = LNRNN_GROUP_OUTPUTS / LNRNN_BLOCK_OUTPUTS
};

/* The most sums of bands that fit into registers: rows times bands that are multiplied together. */
#if V32_LANES == 8 || defined(__aarch64__)
enum { BLOCK_SUMS = 8 };
#else
enum { BLOCK_SUMS = 4 };
#endif

/* block_sum: a vector of sums. tile_sums: the sums of a tile for one band. WIDE_ROWS: the most rows of a tile
 * of blocks_wide.h, or 0 without this file. A step multiplies BAND_STEP blocks of a band. With two, a block
 * of zeros may complete the last step. */
#if defined(LNRNN_WIDE) && defined(LNRNN_PART_INT8)
enum { WIDE_ROWS = 8, BAND_STEP = 2 };
typedef wi32 block_sum, tile_sums[WIDE_ROWS / 2];
#elif defined(LNRNN_WIDE)
enum { WIDE_ROWS = 8, BAND_STEP = 1 };
typedef w32 block_sum, tile_sums[WIDE_ROWS / 2];
#else
enum { WIDE_ROWS = 0, BAND_STEP = 1 };
#ifdef LNRNN_PART_INT8
typedef vi32 block_sum, tile_sums[BLOCK_SUMS][BLOCK_VECS];
#else
typedef v32 block_sum, tile_sums[BLOCK_SUMS][BLOCK_VECS];
#endif
#endif

/* A group of 1 to 4 bands, longest first. A last group has only `first`, the number of all blocks. */
typedef struct {
    uint32_t first, bands;        /* the number of blocks of earlier groups; the number of bands */
    uint32_t output[GROUP_BANDS]; /* the first output of each band */
    uint32_t steps[GROUP_BANDS];  /* the number of steps with four blocks, with three, .. */
} block_group;

/* Packed weights. With int8 the scales of the outputs, and minus the sums of their weights, follow. */
typedef struct {
    block_group *group;
    uint16_t *column; /* the first input of each block, divided by 4 */
    uint32_t *w;      /* a block has the words of its outputs in the order of a panel (pack.h) */
    float *scale;     /* (n) */
    int32_t *sums;    /* (n) */
    size_t words;     /* all words */
} block_matrix;

/* Returns how many 32-bit words hold the four weights of one output in a block. */
LNRNN_INLINE size_t words_of_block(int dtype)
{
    return lnrnn_is_int8(dtype) ? 1 : dtype == LNRNN_WEIGHT_BF16 ? 2 : 4;
}

static size_t block_groups(size_t n) { return (n + LNRNN_GROUP_OUTPUTS - 1) / LNRNN_GROUP_OUTPUTS; }

/* Returns packed weights (n, k) with `count` blocks. Each part begins with a cache line. */
LNRNN_INLINE block_matrix block_matrix_of(int dtype, size_t n, size_t count, const uint32_t *packed)
{
    const size_t cl = LINE_WORDS, of_groups = (block_groups(n) + 1) * sizeof(block_group) / sizeof *packed,
                 most = count + (BAND_STEP - 1) * (n / LNRNN_BLOCK_OUTPUTS),
                 columns = (of_groups + cl - 1) / cl * cl,
                 blocks = columns + ((most + 1) / 2 + cl - 1) / cl * cl,
                 end = blocks + most * words_of_block(dtype) * LNRNN_BLOCK_OUTPUTS;
    uint32_t *const words = (uint32_t *)packed;
    return (block_matrix){.group = (block_group *)words,
                          .column = (uint16_t *)(words + columns),
                          .w = words + blocks,
                          .scale = (float *)(words + end),
                          .sums = (int32_t *)(words + end + n),
                          .words = end + (lnrnn_is_int8(dtype) ? 2 * n : 0)};
}

static size_t blocks_size(int dtype, size_t n, size_t count)
{
    return block_matrix_of(dtype, n, count, NULL).words;
}

/* --- packing -------------------------------------------------------------------------------------------- */

#if defined(LNRNN_WIDE) && defined(LNRNN_PART_INT8)
extern const lnrnn_product lnrnn_int8_avx512vnni;
#endif

#if defined(LNRNN_WIDE) && !defined(LNRNN_PART_INT8)
/* AVX2's kernels pack the weights, and multiply one row by them. */
extern const lnrnn_blocks lnrnn_blocks_avx2;

static void pack_blocks(int dtype, size_t n, size_t k, size_t count, size_t window, const float *w,
                        uint32_t *packed)
{
    lnrnn_blocks_avx2.pack(dtype, n, k, count, window, w, packed);
}
#else
/* The bands (eight outputs each) of a window, sorted by their numbers of steps, longest first. */
typedef struct {
    size_t output, steps;
} block_band;

enum { MOST_WINDOW_BANDS = LNRNN_MOST_WINDOW / LNRNN_BLOCK_OUTPUTS };

/* w: the weights of a band, row stride k. Returns the first column from `from` on that has a block, or the
 * number of columns. */
static size_t next_block(size_t k, const float *w, size_t from)
{
    while (from < k / LNRNN_BLOCK_INPUTS && !lnrnn_has_block(k, w + from * LNRNN_BLOCK_INPUTS))
        from++;
    return from;
}

/* Writes the bands of outputs from .. end - 1. Returns their number. */
static size_t sort_bands(size_t k, const float *w, size_t from, size_t end, block_band *bands)
{
    size_t count = 0;
    for (size_t o = from; o < end; o += LNRNN_BLOCK_OUTPUTS, count++) {
        block_band band = {.output = o};
        for (size_t c = 0; (c = next_block(k, w + o * k, c)) < k / LNRNN_BLOCK_INPUTS; c++)
            band.steps++;
        band.steps = (band.steps + BAND_STEP - 1) / BAND_STEP;
        size_t at = count;
        for (; at && bands[at - 1].steps < band.steps; at--)
            bands[at] = bands[at - 1];
        bands[at] = band;
    }
    return count;
}

/* w (n, k) float -> packed, blocks_size words. Threads divide the outputs only between windows. */
static void pack_blocks(int dtype, size_t n, size_t k, size_t count, size_t window, const float *w,
                        uint32_t *packed)
{
    const block_matrix b = block_matrix_of(dtype, n, count, packed);
    const size_t words = words_of_block(dtype);
    const int int8 = LNRNN_PACKS_INT8(dtype);
    uint32_t *to = b.w, at = 0;
    block_group *group = b.group;
    memset(group, 0, (block_groups(n) + 1) * sizeof *group);
    if (int8) {
        int8_scales(n, k, w, (ptrdiff_t)k, 1, b.scale);
        memset(b.sums, 0, n * sizeof *b.sums);
    }
    for (size_t from = 0; from < n; from += window) {
        block_band bands[MOST_WINDOW_BANDS];
        const size_t all = sort_bands(k, w, from, n - from < window ? n : from + window, bands);
        for (size_t first = 0; first < all; first += GROUP_BANDS, group++) {
            size_t column[GROUP_BANDS] = {0};
            group->first = at;
            group->bands = (uint32_t)(all - first < GROUP_BANDS ? all - first : GROUP_BANDS);
            for (size_t q = 0; q < group->bands; q++) {
                group->output[q] = (uint32_t)bands[first + q].output;
                const size_t shorter = q + 1 < group->bands ? bands[first + q + 1].steps : 0;
                group->steps[GROUP_BANDS - 1 - q] = (uint32_t)(bands[first + q].steps - shorter);
            }
            for (size_t step = 0; step < bands[first].steps; step++)
                for (size_t q = 0; q < group->bands && step < bands[first + q].steps; q++)
                    for (size_t each = 0; each < BAND_STEP; each++, at++) {
                        const size_t o = bands[first + q].output, c = next_block(k, w + o * k, column[q]);
                        const int found = c < k / LNRNN_BLOCK_INPUTS; /* else the weights are 0 */
                        column[q] = c + (size_t)found;
                        b.column[at] = (uint16_t)(found ? c : 0);
                        for (size_t j = c * words; j < (c + 1) * words; j++)
                            for (size_t i = o; i < o + LNRNN_BLOCK_OUTPUTS; i++, to++) {
                                /* GCOVR_EXCL_BR_LINE: a block that is stored has a value */
                                const float inverse = int8 && b.scale[i] > 0 ? 1 / b.scale[i] : 0;
                                *to = pack_word(dtype, k, w + i * k, 1, j, inverse);
                                for (int byte = 0; int8 && byte < 4; byte++)
                                    b.sums[i] -= (int8_t)(*to >> 8 * byte);
                            }
                    }
        }
    }
    group->first = at;
}
#endif

/* --- tiles of constant shapes --------------------------------------------------------------------------- */

/* The most rows whose inputs are in scratch: quantized, or in the order of wide tiles. */
enum { BLOCK_ROWS = 64 };

/* The arguments of a product that its tiles read. */
typedef struct {
    block_matrix b;
    const void *const *a; /* inputs of add_block: rows, or parts of quantized_rows */
#ifdef LNRNN_WIDE
    uint32_t *lines; /* the inputs in the order of tiles, `words` words of a row */
    size_t words;
#endif
#ifdef LNRNN_PART_INT8
    const float *scale; /* of each row */
    const int32_t *zero;
#endif
    int each; /* the number of parts of a row */
    float *c; /* the outputs, row stride cs; add: whether to add the product to them */
    ptrdiff_t cs;
    int add;
} block_job;

/* Adds the products of the next blocks of a band with rows (or lines) x to the sums of its outputs. */
LNRNN_INLINE void add_block(const int dtype, const int rows, const void *const *x, const uint16_t *column,
                            const uint32_t *w, tile_sums acc);

/* Multiplies rows (or lines) x by the next `steps` steps of each of `together` bands. In memory, the blocks
 * of all `bands` bands that have not ended alternate. dtype, rows and together are constants. */
LNRNN_INLINE void block_steps(const int dtype, int prefetch, const int rows, const int together, size_t bands,
                              uint32_t steps, const void *const *x, const uint16_t **columns,
                              const uint32_t **weights, tile_sums *acc)
{
    const int words = BAND_STEP * (int)words_of_block(dtype) * LNRNN_BLOCK_OUTPUTS;
    const uint16_t *column = *columns;
    const uint32_t *w = *weights;
    for (; steps; steps--, column += BAND_STEP * bands, w += bands * (size_t)words) {
        if (prefetch)
            LNRNN_FOR_EACH (l, together * words / LINE_WORDS)
                v32_prefetch((const float *)w + l * LINE_WORDS + LNRNN_PREFETCH_ROW);
        LNRNN_FOR_EACH (q, together)
            add_block(dtype, rows, x, column + BAND_STEP * q, w + q * words, acc[q]);
    }
    *columns = column, *weights = w;
}

#ifdef LNRNN_WIDE
#include "lnrnn/kernels/blocks_wide.h"
#else
#ifdef LNRNN_PART_INT8

/* Adds the products of a block w with the parts x of rows to the sums of its outputs. */
LNRNN_INLINE void add_block(const int dtype, const int parts, const void *const *x, const uint16_t *column,
                            const uint32_t *w, tile_sums acc)
{
    LNRNN_FOR_EACH (i, parts)
        LNRNN_FOR_EACH (v, BLOCK_VECS) {
            const uint32_t four = ((const uint32_t *)x[i])[*column], *const p = w + v * V32_LANES;
            acc[i][v] =
                dtype == LNRNN_WEIGHT_I8 ? vi32_dot4(acc[i][v], four, p) : vi32_dot4_s8(acc[i][v], four, p);
        }
}

LNRNN_INLINE void begin_band(const int parts, const float *c, ptrdiff_t cs, block_sum (*acc)[BLOCK_VECS])
{
    (void)c, (void)cs;
    LNRNN_FOR_EACH (i, parts)
        LNRNN_FOR_EACH (v, BLOCK_VECS)
            acc[i][v] = vi32_zero();
}

/* Writes the outputs from o on of a band, for rows or parts from r on, as int8_outputs does (int8_rows.h). */
LNRNN_INLINE void end_band(const int dtype, const int parts, const block_job *job, size_t r, size_t o,
                           block_sum (*acc)[BLOCK_VECS])
{
    const int each = dtype == LNRNN_WEIGHT_I8 ? 2 : 1;
    const product_job of_sums = {.sums = job->b.sums};
    LNRNN_FOR_EACH (v, BLOCK_VECS) {
        const size_t at = o + (size_t)v * V32_LANES;
        const v32 scales = v32_load(job->b.scale + at);
        const vi32 start = int8_start(each, &of_sums, at);
        for (int i = 0; i < parts; i += each) {
            const size_t row = (r + (size_t)i) / (size_t)each;
            float *const c = job->c + (ptrdiff_t)row * job->cs + (ptrdiff_t)at;
            vi32 sum = acc[i][v] + start;
            sum = each == 2 ? (sum << 7) + acc[i + 1][v] : int8_shifted(sum, job->zero[row], &of_sums, at);
            v32_store(c, v32_fma(vi32_to_v32(sum), scales * v32_set1(job->scale[row]),
                                 job->add ? v32_load(c) : v32_zero()));
        }
    }
}
#else
/* Adds the products of a block w with rows x to the sums of its outputs, in the order of the inputs. */
LNRNN_INLINE void add_block(const int dtype, const int rows, const void *const *x, const uint16_t *column,
                            const uint32_t *w, tile_sums acc)
{
    v32 only[LNRNN_BLOCK_INPUTS]; /* the inputs of one row */
    if (rows == 1)
        v32_set4((const float *)x[0] + LNRNN_BLOCK_INPUTS * *column, only);
    LNRNN_FOR_EACH (j, LNRNN_BLOCK_INPUTS) {
        v32 weights[BLOCK_VECS];
        LNRNN_FOR_EACH (v, BLOCK_VECS) {
            v32 odd;
            if (dtype == LNRNN_WEIGHT_F32)
                weights[v] = v32_load((const float *)w + j * LNRNN_BLOCK_OUTPUTS + v * V32_LANES);
            else
                weights[v] = v32_bf16_pair(w + j / 2 * LNRNN_BLOCK_OUTPUTS + v * V32_LANES, &odd);
            if (dtype != LNRNN_WEIGHT_F32 && j % 2)
                weights[v] = odd;
        }
        LNRNN_FOR_EACH (i, rows) {
            const float *const of_row = (const float *)x[i] + LNRNN_BLOCK_INPUTS * *column;
            const v32 input = rows == 1 ? only[j] : v32_set1(of_row[j]);
            LNRNN_FOR_EACH (v, BLOCK_VECS)
                acc[i][v] = v32_fma(input, weights[v], acc[i][v]);
        }
    }
}

/* Starts the sums of a band with c, the outputs computed before, or with 0 if c is NULL. */
LNRNN_INLINE void begin_band(const int rows, const float *c, ptrdiff_t cs, block_sum (*acc)[BLOCK_VECS])
{
    LNRNN_FOR_EACH (i, rows)
        LNRNN_FOR_EACH (v, BLOCK_VECS)
            acc[i][v] = c ? v32_load(c + i * cs + v * V32_LANES) : v32_zero();
}

LNRNN_INLINE void end_band(const int dtype, const int rows, const block_job *job, size_t r, size_t o,
                           block_sum (*acc)[BLOCK_VECS])
{
    float *const c = job->c + (ptrdiff_t)r * job->cs + (ptrdiff_t)o;
    const ptrdiff_t cs = job->cs;
    (void)dtype;
    LNRNN_FOR_EACH (i, rows)
        LNRNN_FOR_EACH (v, BLOCK_VECS)
            v32_store(c + i * cs + v * V32_LANES, acc[i][v]);
}
#endif

/* Multiplies rows (or parts) r .. r + rows - 1 by a group. dtype, prefetch and rows are constants. */
LNRNN_INLINE void block_tile(const int dtype, const int prefetch, const int rows, const block_job *job,
                             size_t r, const block_group *g)
{
    const int together = rows * GROUP_BANDS <= BLOCK_SUMS ? GROUP_BANDS : rows * 2 <= BLOCK_SUMS ? 2 : 1;
    const int given = (int)g->bands;
    const void *x[BLOCK_SUMS];
    /* GCOVR_EXCL_BR_LINE: leaves out unused tiles when it is compiled */
    if (rows > BLOCK_SUMS || (dtype == LNRNN_WEIGHT_I8 && rows % 2))
        return;
    LNRNN_FOR_EACH (i, rows)
        x[i] = job->a[r + (size_t)i];
    for (int first = 0; first < given; first += together) {
        const uint16_t *column = job->b.column + g->first + first;
        const uint32_t *w =
            job->b.w + (g->first + (size_t)first) * words_of_block(dtype) * LNRNN_BLOCK_OUTPUTS;
        tile_sums acc[GROUP_BANDS];
        LNRNN_FOR_EACH (q, together) {
            const float *const c = job->c + (ptrdiff_t)r * job->cs + g->output[first + q];
            begin_band(rows, job->add && first + q < given ? c : NULL, job->cs, acc[q]);
        }
        for (int bands = GROUP_BANDS; bands > first; bands--)
            LNRNN_FOR_EACH (q, together)
                if (q + 1 == together ? bands - first > q : bands - first == q + 1)
                    block_steps(dtype, prefetch, rows, q + 1, (size_t)bands, g->steps[GROUP_BANDS - bands], x,
                                &column, &w, acc);
        LNRNN_FOR_EACH (q, together)
            if (first + q < given)
                end_band(dtype, rows, job, r, g->output[first + q], acc[q]);
    }
}

/* Calls block_tile with constants. rows: 1 to 4, 6 or 8. */
LNRNN_INLINE void block_rows(const int dtype, int prefetch, size_t rows, const block_job *job, size_t r,
                             const block_group *g)
{
    switch (rows) {
    case 1:
        if (LNRNN_PREFETCHES && prefetch)
            block_tile(dtype, 1, 1, job, r, g);
        else
            block_tile(dtype, 0, 1, job, r, g);
        return;
    case 2:
        if (LNRNN_PREFETCHES && prefetch)
            block_tile(dtype, 1, 2, job, r, g);
        else
            block_tile(dtype, 0, 2, job, r, g);
        return;
    case 3: block_tile(dtype, 0, 3, job, r, g); return;
    case 4: block_tile(dtype, 0, 4, job, r, g); return;
    case 6: block_tile(dtype, 0, 6, job, r, g); return;
    case 8: block_tile(dtype, 0, 8, job, r, g); return;
    }
}

/* Returns how many of `rows` rows (or parts) the next tile has. each: 2 if a row has two parts. */
static size_t block_tile_rows(size_t each, size_t rows)
{
    const size_t most = BLOCK_SUMS, equal = rows / ((rows + most - 1) / most),
                 height = equal + (each == 2 && equal % 2);
    return height - (height == 5 || height == 7);
}
#endif

/* Multiplies `rows` rows (or parts) by groups p0 .. p1 - 1 of m. each: 2 if a row has two parts. Several
 * tiles of rows read as many groups, one after the other, as L2 holds. */
LNRNN_INLINE void block_loop(const int dtype, const lnrnn_matmul *m, size_t each, size_t rows,
                             const block_job *job)
{
    const size_t most = BLOCK_SUMS, groups = m->p1 - m->p0,
                 bytes = job->b.words * sizeof(uint32_t) / block_groups(m->n),
                 held = m->caches->l2 / 4 / bytes,
                 part = rows <= most ? groups
                        : held       ? held
                                     : 1;
    const int prefetch =
        job->b.words * sizeof(uint32_t) > lnrnn_prefetch_from(*m->caches, dtype != LNRNN_WEIGHT_F32)
        /* GCOVR_EXCL_BR_LINE: clang counts one variant of this function only */
        && lnrnn_prefetch_rows(*m->caches, rows);
#ifdef LNRNN_WIDE
    if (rows > 1 || BAND_STEP == 1)
        block_lines(rows, job);
#endif
    for (size_t i = 0; i < groups; i += part)
        for (size_t r = 0, height; r < rows; r += height) {
            height = block_tile_rows(each, rows - r);
            for (size_t q = i; q < groups && q < i + part; q++)
                block_rows(dtype, prefetch, height, job, r,
                           &job->b.group[m->from_end ? m->p1 - 1 - q : m->p0 + q]);
        }
}

/* --- the products --------------------------------------------------------------------------------------- */

/* Returns the number of words of scratch for a product of `rows` rows of k activations. */
static size_t blocks_scratch(int dtype, size_t rows, size_t k)
{
    const size_t parts = (rows < BLOCK_ROWS ? rows : BLOCK_ROWS) * (dtype == LNRNN_WEIGHT_I8 ? 2 : 1),
                 lines = (parts + 7) / 8 * WIDE_ROWS;
#ifdef LNRNN_PART_INT8
    return int8_scratch(dtype, rows, k) + lines * (k / 4);
#else
    return lines * k;
#endif
}

#ifdef LNRNN_PART_INT8
static void matmul_blocks(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c, ptrdiff_t cs)
{
    quantized_rows q;
    block_job job = {.b = block_matrix_of(m->dtype, m->n, m->blocks, m->w),
                     .a = (const void *const *)q.part,
#ifdef LNRNN_WIDE
                     .lines = m->scratch + int8_scratch(m->dtype, rows, m->k),
                     .words = m->k / LNRNN_BLOCK_INPUTS,
#endif
                     .scale = q.scale,
                     .zero = q.zero,
                     .each = m->dtype == LNRNN_WEIGHT_I8 ? 2 : 1,
                     .cs = cs,
                     .add = m->add};
    for (size_t r = 0; r < rows; r += INT8_ROWS) {
        const size_t some = rows - r < INT8_ROWS ? rows - r : INT8_ROWS;
        job.c = c + (ptrdiff_t)r * cs;
#ifdef LNRNN_WIDE
        lnrnn_int8_avx512vnni.quantize(m, some, a + r, &q); /* by vectors of 64 bytes */
        block_loop(LNRNN_WEIGHT_I8, m, (size_t)job.each, (size_t)job.each * some, &job);
#else
        int8_quantize_rows(m, some, a + r, &q);
        if (m->dtype == LNRNN_WEIGHT_I8)
            block_loop(LNRNN_WEIGHT_I8, m, 2, 2 * some, &job);
        else
            block_loop(LNRNN_WEIGHT_I8A8, m, 1, some, &job);
#endif
    }
}
#else
static void matmul_blocks(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c, ptrdiff_t cs)
{
    block_job job = {.b = block_matrix_of(m->dtype, m->n, m->blocks, m->w), .cs = cs, .add = m->add};
    const size_t most = WIDE_ROWS ? BLOCK_ROWS : rows;
#ifdef LNRNN_WIDE
    job.lines = m->scratch, job.words = m->k;
    if (rows == 1) {
        lnrnn_blocks_avx2.matmul(m, rows, a, c, cs);
        return;
    }
#endif
    for (size_t r = 0; r < rows; r += most) {
        const size_t some = rows - r < most ? rows - r : most;
        job.a = (const void *const *)a + r, job.c = c + (ptrdiff_t)r * cs;
        if (m->dtype == LNRNN_WEIGHT_F32)
            block_loop(LNRNN_WEIGHT_F32, m, 1, some, &job);
        else
            block_loop(LNRNN_WEIGHT_BF16, m, 1, some, &job);
    }
}
#endif

#endif
