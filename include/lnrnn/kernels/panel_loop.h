/* The loops of a matrix product, over panels of packed weights (pack.h) and over tiles of rows (tile.h). */
#ifndef LNRNN_PANEL_LOOP_H
#define LNRNN_PANEL_LOOP_H

#include "lnrnn/kernels/tile.h"

/* The functions that compute the tiles of one kind of product, and the limits of their sizes. */
typedef struct {
    int number; /* PRODUCT_F32 .. */
    /* Multiplies row 0 by vecs vectors of outputs from o on, at most four panels, INT8_ROW_PANELS with
     * PRODUCT_I8. */
    void (*row)(int prefetch, int vecs, const product_job *job, size_t o);
    /* Multiplies 1 to tile_rows rows from r on by a panel of vecs vectors. PREFETCH_ROWS prefetches the rows
     * of the next tile, which must have as many rows. */
    void (*panel)(int prefetch, int rows, int vecs, const product_job *job, size_t r, size_t o);
    /* Multiplies rows 0 to rows - 1, at most few_rows, by two panels, of `first` and `second` vectors. */
    void (*pair)(int rows, int first, int second, const product_job *job, size_t o);
    size_t tile_rows; /* the number of rows of the tallest tile */
    size_t few_rows;  /* 2 to few_rows rows are multiplied by two panels at a time; 0: never */
} product_loop;

/* The most panels by which one row of PRODUCT_I8, which has two parts (int8_rows.h), is multiplied at a
 * time. */
enum { INT8_ROW_PANELS = 2 };

/* few_rows of a product_loop. Instruction sets with LNRNN_FEW_COPIES have no tiles of two panels. */
#if defined(LNRNN_FEW_COPIES) || defined(LNRNN_EMULATED)
enum { FEW_ROWS = 0 };
#else
enum { FEW_ROWS = MR / 2 };
#endif

/* --- tiles of constant shapes -------------------------------------------------------------------------- */

#ifdef LNRNN_PART_PRODUCT
LNRNN_INLINE void f32_tile(int product, tile_shape s, const product_job *job, size_t r, size_t o);
#endif
#ifdef LNRNN_PART_BF16
LNRNN_INLINE void dot2_tile(tile_shape s, const product_job *job, size_t r, size_t o);
#endif
#ifdef LNRNN_PART_INT8
LNRNN_INLINE void int8_tile(int product, tile_shape s, const product_job *job, size_t r, size_t o);
#endif

/* Computes a tile: s.rows rows from r on, and the outputs from o on. Writes the sums to job->c, or adds them
 * (job->add). product and s are compile-time constants. */
LNRNN_INLINE void tile(const int product, const tile_shape s, const product_job *job, size_t r, size_t o)
{
#ifdef LNRNN_PART_PRODUCT
    if (product <= PRODUCT_F32_COLUMNS)
        f32_tile(product, s, job, r, o);
#endif
#ifdef LNRNN_PART_BF16
    if (product == PRODUCT_DOT2) /* GCOVR_EXCL_BR_LINE: the compiler knows the product */
        dot2_tile(s, job, r, o);
#endif
#ifdef LNRNN_PART_INT8
    if (product >= PRODUCT_I8)
        int8_tile(product, s, job, r, o);
#endif
}

/* Multiplies row r by vecs vectors of outputs from o on. vecs is a constant. */
LNRNN_INLINE void row_tile(const int product, const int prefetch, const int vecs, const product_job *job,
                           size_t r, size_t o)
{
    /* GCOVR_EXCL_BR_LINE: leaves out unused tiles when it is compiled */
    if (product == PRODUCT_I8 && vecs > INT8_ROW_PANELS * NR_VECS)
        return;
    /* two: the last four vectors are in two panels of two vectors each, as panel_width makes them. */
    const int left = vecs % NR_VECS, two = NR_VECS == 3 && left == 1 && vecs > 1;
    const tile_shape s = {.rows = 1,
                          .whole = vecs / NR_VECS - two,
                          .narrow = two ? 2 : left != 0,
                          .vecs = two ? 2 : left,
                          .prefetch = prefetch};
    tile(product, s, job, r, o);
}

LNRNN_INLINE void product_row(const int product, const int prefetch, int vecs, const product_job *job,
                              size_t r, size_t o)
{
    switch (vecs) {
    case 1: row_tile(product, prefetch, 1, job, r, o); return;
    case 2: row_tile(product, prefetch, 2, job, r, o); return;
    case 3: row_tile(product, prefetch, 3, job, r, o); return;
    case 4: row_tile(product, prefetch, 4, job, r, o); return;
    case 5: row_tile(product, prefetch, 5, job, r, o); return;
    case 6: row_tile(product, prefetch, 6, job, r, o); return;
    case 7: row_tile(product, prefetch, 7, job, r, o); return;
    case 8: row_tile(product, prefetch, 8, job, r, o); return;
#if NR_VECS == 3
    case 9: row_tile(product, prefetch, 9, job, r, o); return;
    case 10: row_tile(product, prefetch, 10, job, r, o); return;
    case 11: row_tile(product, prefetch, 11, job, r, o); return;
    case 12: row_tile(product, prefetch, 12, job, r, o); return;
#endif
    }
}

/* Multiplies `rows` rows, a constant, by a panel of vecs vectors. most: the number of rows of the tallest
 * tile. Only tiles of full-width panels prefetch. */
LNRNN_INLINE void panel_tile(const int product, const int most, const int rows, int prefetch, int vecs,
                             const product_job *job, size_t r, size_t o)
{
    if (rows > most) /* GCOVR_EXCL_BR_LINE: leaves out unused tiles when it is compiled */
        return;
    prefetch = LNRNN_PREFETCHES ? prefetch : PREFETCH_NONE;
    if (vecs == NR_VECS && prefetch == PREFETCH_WEIGHTS)
        tile(product, (tile_shape){.rows = rows, .whole = 1, .prefetch = PREFETCH_WEIGHTS}, job, r, o);
    else if (product < PRODUCT_F32_COLUMNS && vecs == NR_VECS && prefetch == PREFETCH_ROWS)
        tile(product, (tile_shape){.rows = rows, .whole = 1, .prefetch = PREFETCH_ROWS}, job, r, o);
    else if (vecs == NR_VECS)
        tile(product, (tile_shape){.rows = rows, .whole = 1}, job, r, o);
    else if (vecs == 1)
        tile(product, (tile_shape){.rows = rows, .narrow = 1, .vecs = 1}, job, r, o);
    else
        tile(product, (tile_shape){.rows = rows, .narrow = 1, .vecs = NR_VECS - 1}, job, r, o);
}

LNRNN_INLINE void product_panel(const int product, const int most, int prefetch, int rows, int vecs,
                                const product_job *job, size_t r, size_t o)
{
    switch (rows) {
    /* GCOVR_EXCL_BR_LINE: clang counts one variant of this function only */
    case 1: panel_tile(product, most, 1, prefetch, vecs, job, r, o); return;
    case 2: panel_tile(product, most, 2, prefetch, vecs, job, r, o); return;
#if MR > 2
    case 3: panel_tile(product, most, 3, prefetch, vecs, job, r, o); return;
    case 4: panel_tile(product, most, 4, prefetch, vecs, job, r, o); return;
#endif
#if MR > 4
    case 5: panel_tile(product, most, 5, prefetch, vecs, job, r, o); return;
    case 6: panel_tile(product, most, 6, prefetch, vecs, job, r, o); return;
#endif
#if MR > 6
    case 7: panel_tile(product, most, 7, prefetch, vecs, job, r, o); return;
    case 8: panel_tile(product, most, 8, prefetch, vecs, job, r, o); return;
#endif
    }
}

/* Multiplies `rows` rows, a constant, by two panels of `first` and `second` vectors. most: the number of rows
 * of the tallest tile of two panels. */
LNRNN_INLINE void pair_tile(const int product, const int most, const int rows, int first, int second,
                            const product_job *job, size_t r, size_t o)
{
    if (rows > most) /* GCOVR_EXCL_BR_LINE: leaves out unused tiles when it is compiled */
        return;
    if (LNRNN_PREFETCHES && second == NR_VECS && job->prefetch)
        tile(product, (tile_shape){.rows = rows, .whole = 2, .prefetch = PREFETCH_WEIGHTS}, job, r, o);
    else if (second == NR_VECS)
        tile(product, (tile_shape){.rows = rows, .whole = 2}, job, r, o);
    else if (first == NR_VECS)
        tile(product, (tile_shape){.rows = rows, .whole = 1, .narrow = 1, .vecs = NR_VECS - 1}, job, r, o);
    else if (NR_VECS == 3)
        tile(product, (tile_shape){.rows = rows, .narrow = 2, .vecs = NR_VECS - 1}, job, r, o);
}

LNRNN_INLINE void product_pair(const int product, const int most, int rows, int first, int second,
                               const product_job *job, size_t r, size_t o)
{
    switch (rows) { /* GCOVR_EXCL_BR_LINE: callers have two rows or more */
    case 2: pair_tile(product, most, 2, first, second, job, r, o); return;
#if MR > 4
    case 3: pair_tile(product, most, 3, first, second, job, r, o); return;
    case 4: pair_tile(product, most, 4, first, second, job, r, o); return;
#endif
    }
}

/* Defines the tile functions of a product and the product_loop name_product. They are macros, so that
 * `number`, `most` and `few` are constants in these functions. */
#define LNRNN_PRODUCT_ROW(name, number)                                              \
    static void name##_row(int prefetch, int vecs, const product_job *job, size_t o) \
    {                                                                                \
        if (LNRNN_PREFETCHES && prefetch)                                            \
            product_row(number, PREFETCH_WEIGHTS, vecs, job, 0, o);                  \
        else                                                                         \
            product_row(number, PREFETCH_NONE, vecs, job, 0, o);                     \
    }
#define LNRNN_PRODUCT(name, number, most, few)                                                             \
    LNRNN_PRODUCT_ROW(name, number)                                                                        \
    static void name##_panel(int prefetch, int rows, int vecs, const product_job *job, size_t r, size_t o) \
    {                                                                                                      \
        product_panel(number, most, prefetch, rows, vecs, job, r, o);                                      \
    }                                                                                                      \
    static void name##_pair(int rows, int first, int second, const product_job *job, size_t o)             \
    {                                                                                                      \
        product_pair(number, few, rows, first, second, job, 0, o);                                         \
    }                                                                                                      \
    static const product_loop name##_product = {number, name##_row, name##_panel, name##_pair, most, few};

/* --- the loops ------------------------------------------------------------------------------------------ */

/* Computes one row, several panels at a time, because one panel has too few chains of multiply-adds to hide
 * their latency. */
static void row_loop(const product_loop *product, const product_job *job)
{
    const size_t count = job->p1 - job->p0, bytes = NR * job->words * sizeof(uint32_t),
                 most = product->number == PRODUCT_I8       ? INT8_ROW_PANELS
                        : job->prefetch || !job->few_panels ? 4
                                                            : lnrnn_row_panels(*job->caches, bytes, count),
                 parts = count > most ? (count + most - 1) / most : 1,
                 each = parts > 1 ? (count + parts - 1) / parts : count;
    for (size_t i = 0; i < parts; i++) {
        const size_t p = job->p0 + each * (job->from_end ? parts - 1 - i : i), o = panel_start(job->n, p),
                     end = panel_start(job->n, p + each < job->p1 ? p + each : job->p1);
        product->row(job->prefetch ? PREFETCH_WEIGHTS : PREFETCH_NONE, (int)((end - o) / V32_LANES), job, o);
    }
}

/* Sets job->ahead and job->pace, which select the weights that tile t of `tiles` prefetches. Meanwhile the
 * tile reads words first .. end - 1 of the panel at output o. Returns 0 if tile t prefetches no weights.
 * next: the distance in words to the weights that follow; 0: the first tile prefetches the words that it
 * reads itself. Each of the first tiles prefetches a part, to spread the prefetches over time. A part is
 * contiguous, because the CPU drops many prefetches from slow memory unless they form a stream. */
LNRNN_INLINE int prefetch_panel(product_job *job, size_t o, size_t t, size_t tiles, ptrdiff_t next)
{
    const size_t parts = !next ? 1 : tiles < NR_VECS ? tiles : NR_VECS;
    const ptrdiff_t here = (ptrdiff_t)(o * job->words);
    if (t >= parts)
        return 0;
    job->pace = NR / parts;
    const size_t part = t * (job->end - job->first) * job->pace, first = job->first * (NR - job->pace);
    job->ahead = here + (next ? next + (ptrdiff_t)(first + part) : LNRNN_PREFETCH_TILE);
    return 1;
}

/* Computes the rows of a single tile. Two panels are computed at a time for 2 to few_rows rows, because one
 * panel then has too few chains of multiply-adds to hide their latency. */
LNRNN_INLINE void few_rows_loop(const product_loop *product, product_job *job, int rows)
{
    const size_t n = job->n, p1 = job->p1, each = (size_t)rows <= product->few_rows ? 2 : 1,
                 turns = each == 2 ? (p1 - job->p0 + 1) / 2 : p1 - job->p0;
    for (size_t i = 0; i < turns; i++) {
        const size_t p = job->p0 + each * (job->from_end ? turns - 1 - i : i), o = panel_start(n, p),
                     next = panel_start(n, p + 1),
                     end = each == 2 && p + 1 < p1 ? panel_start(n, p + 2) : next;
        const int first = (int)((next - o) / V32_LANES), second = (int)((end - next) / V32_LANES);
        if (second)
            product->pair(rows, first, second, job, o);
        else {
            prefetch_panel(job, o, 0, 1, 0);
            product->panel(job->prefetch ? PREFETCH_WEIGHTS : PREFETCH_NONE, rows, first, job, 0, o);
        }
    }
}

/* Computes all panels of a job for `rows` rows. Changes the job in place, because copying it would take a
 * tenth of the time of a short product. */
static void panel_loop(const product_loop *product, size_t rows, product_job *job)
{
    const size_t n = job->n, p0 = job->p0, p1 = job->p1;
    const int add = job->add;
    const int ahead = product->number < PRODUCT_F32_COLUMNS; /* tiles of this product can prefetch rows */
    job->prefetch = job->prefetch && lnrnn_prefetch_rows(*job->caches, rows);
    if (rows == 1) {
        row_loop(product, job);
        return;
    }
    if (rows <= product->tile_rows) {
        few_rows_loop(product, job, (int)rows);
        return;
    }
    /* As few tiles as possible, of similar heights: 9 rows are 4 and 5, not 8 and 1. In the first panel each
     * tile prefetches the rows of the next tile, which may not be in the caches. */
    const size_t most = product->tile_rows, tiles = (rows + most - 1) / most, panel = NR * job->words;
    /* If a panel is too large to be prefetched, its inputs are divided into parts. All tiles read one part,
     * and then the next part, which continues every sum. */
    const size_t bytes = panel * sizeof(uint32_t);
    /* GCOVR_EXCL_BR_START: clang counts one variant of this function only */
    const size_t wanted = product->number == PRODUCT_F32 && job->prefetch && tiles > 1
                              ? lnrnn_panel_parts(*job->caches, bytes)
                              : 1;
    const size_t part = (job->words + wanted - 1) / wanted, parts = part ? (job->words + part - 1) / part : 1;
    const int spread = ahead && tiles > 1 && lnrnn_prefetch_panels(*job->caches, bytes / wanted);
    /* GCOVR_EXCL_BR_STOP */
    for (size_t i = p0; i < p1; i++)
        for (size_t j = 0; j < parts; j++) {
            const size_t p = job->from_end ? p1 - 1 - (i - p0) : i, o = panel_start(n, p);
            const int vecs = (int)((panel_start(n, p + 1) - o) / V32_LANES);
            /* Tiles of the first panel prefetch rows, so the first tile of the second panel prefetches that
             * panel itself. */
            const size_t late = i == p0 + 1 && j == 0, last = i + 1 == p1 && j + 1 == parts;
            const ptrdiff_t on = j + 1 < parts   ? (ptrdiff_t)(NR * part)
                                 : job->from_end ? -(ptrdiff_t)(panel + j * NR * part)
                                                 : (ptrdiff_t)(panel - j * NR * part);
            if (product->number == PRODUCT_F32) {
                job->first = j * part, job->end = j + 1 < parts ? job->first + part : job->words;
                job->add = j ? LNRNN_ADD_ON : add;
            }
            for (size_t t = 0, r = 0; t < tiles; t++) {
                size_t height = (rows - r) / (tiles - t);
#ifdef LNRNN_BLOCKS /* an instruction for blocks multiplies two rows, so make heights even */
                height += most % 2 == 0 && height % 2 && t + 1 < tiles;
#endif
                int prefetch = PREFETCH_NONE;
                const ptrdiff_t next = !spread || i == p0 || t < late || last ? 0 : on;
                if (job->prefetch && prefetch_panel(job, o, next ? t - late : t, tiles - late, next))
                    prefetch = PREFETCH_WEIGHTS;
                else if (ahead && i == p0 && t + 1 < tiles)
                    prefetch = PREFETCH_ROWS;
                product->panel(prefetch, (int)height, vecs, job, r, o);
                r += height;
            }
        }
}

#endif
