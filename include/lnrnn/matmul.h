/* Packed weights times rows.
 *
 * W (n, k) is packed into panels of MM_VECS vectors of outputs: panel p holds, for every input j in turn, the weights of
 * its outputs side by side, so that a product streams it with full-width loads from end to end. The last panels may be
 * narrower, and the last vector is filled up with zero weights: mm_width(n) * k floats in all.
 *
 * Every output is one chain of multiply-adds over j = 0 .. k-1 that starts from what c holds (or from 0). Tiles differ
 * only in how many chains run side by side: so the result for a row does not depend on the rows around it, nor on who
 * computes which panel. The library's promise of equal bits rests on this.
 */
#ifndef LNRNN_MATMUL_H
#define LNRNN_MATMUL_H

#include "simd.h"

enum { MM_PANEL = MM_VECS * V32_LANES };

/* Floats between the weights being read and those being fetched, for a single row, which is bound by that reading. */
enum { MM_AHEAD = 512 };

static size_t mm_width(size_t n) { return (n + V32_LANES - 1) / V32_LANES * V32_LANES; }

/* The width of the panel that starts where `left` floats are left. Four vectors become two and two where a panel has three:
 * one vector alone gives a tile more loads than multiply-adds. */
LNRNN_INLINE size_t mm_panel(size_t left)
{
    if (MM_VECS == 3 && left == 4 * V32_LANES)
        return 2 * V32_LANES;
    return left < MM_PANEL ? left : MM_PANEL;
}

/* How many panels; and the float, of width, that panel p starts at. */
static size_t mm_panels(size_t n)
{
    const size_t vecs = mm_width(n) / V32_LANES;
    return (vecs + MM_VECS - 1) / MM_VECS;
}

LNRNN_INLINE size_t mm_start(size_t n, size_t p)
{
    const size_t width = mm_width(n), at = p * MM_PANEL;
    if (at >= width)
        return width;
    return MM_VECS == 3 && p && width - at == V32_LANES ? at - V32_LANES : at;
}

/* w (n, k), rs values from row to row, cs from column to column -> packed, mm_width(n) * k floats. */
static void mm_pack(size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs, float *packed)
{
    const size_t width = mm_width(n);
    for (size_t p = 0, m; p < width; p += m) {
        m = mm_panel(width - p);
        for (size_t j = 0; j < k; j++)
            for (size_t i = 0; i < m; i++)
                *packed++ = p + i < n ? w[(ptrdiff_t)(p + i) * rs + (ptrdiff_t)j * cs] : 0.0f;
    }
}

/* The same for the transpose of x, given as k pointers to rows of n floats: w[i][j] = x[j][i]. */
static void mm_pack_rows(size_t n, size_t k, const float *const *x, float *packed)
{
    const size_t width = mm_width(n);
    for (size_t p = 0, m; p < width; p += m) {
        m = mm_panel(width - p);
        const size_t real = n - p < m ? n - p : m;
        for (size_t j = 0; j < k; j++, packed += m) {
            memcpy(packed, x[j] + p, real * sizeof *packed);
            memset(packed + real, 0, (m - real) * sizeof *packed);
        }
    }
}

/* a: rows pointers to k floats; w: wide panels of MM_PANEL, then `tails` panels of `tail` vectors -> c (rows, all of their
 * outputs), cs floats from row to row. The counts are constants where this is called: the loops unroll and acc lives in
 * registers. */
LNRNN_INLINE void mm_tile(int rows, int wide, int tails, int tail, int add, size_t k, const float *const *a,
                          const float *w, float *c, ptrdiff_t cs)
{
    enum { MOST = 3 * MM_VECS + 4 };
    const int vecs = wide * MM_VECS + tails * tail;
    v32 acc[MM_ROWS][MOST];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++)
            acc[i][v] = add ? v32_load(c + i * cs + v * V32_LANES) : v32_zero();
    for (size_t j = 0; j < k; j++) {
        v32 b[MOST];
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++) {
            const int size = v < wide * MM_VECS ? MM_VECS : tail, in = v < wide * MM_VECS ? v : v - wide * MM_VECS;
            const int before = v - in % size; /* vectors in the panels before this one */
            const float *p = w + ((size_t)before * k + j * (size_t)size + (size_t)(in % size)) * V32_LANES;
            b[v] = v32_load(p);
            if (rows == 1)
                v32_prefetch(p + MM_AHEAD);
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const v32 s = v32_set1(a[i][j]);
#pragma GCC unroll 16
            for (int v = 0; v < vecs; v++)
                acc[i][v] = v32_fma(s, b[v], acc[i][v]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++)
            v32_store(c + i * cs + v * V32_LANES, acc[i][v]);
}

/* One row takes several panels at a time: one panel has too few chains to hide the latency of a multiply-add. cols: the
 * floats that the panels have in all. */
static void mm_row(size_t cols, int add, size_t k, const float *a, const float *w, float *c)
{
    size_t vecs = cols / V32_LANES;
    for (; vecs > 4 * MM_VECS; vecs -= 3 * MM_VECS, w += 3 * k * MM_PANEL, c += 3 * MM_PANEL)
        mm_tile(1, 3, 0, 1, add, k, &a, w, c, 0);
#define LNRNN_ROW(n, wide, tails, tail)                            \
    case n:                                                        \
        mm_tile(1, wide, tails, tail, add, k, &a, w, c, 0);        \
        return;
    switch (vecs) {
#if MM_VECS == 3
        LNRNN_ROW(1, 0, 1, 1) LNRNN_ROW(2, 0, 1, 2) LNRNN_ROW(3, 1, 0, 1) LNRNN_ROW(4, 0, 2, 2)
        LNRNN_ROW(5, 1, 1, 2) LNRNN_ROW(6, 2, 0, 1) LNRNN_ROW(7, 1, 2, 2) LNRNN_ROW(8, 2, 1, 2)
        LNRNN_ROW(9, 3, 0, 1) LNRNN_ROW(10, 2, 2, 2) LNRNN_ROW(11, 3, 1, 2) LNRNN_ROW(12, 4, 0, 1)
#else
        LNRNN_ROW(1, 0, 1, 1) LNRNN_ROW(2, 1, 0, 1) LNRNN_ROW(3, 1, 1, 1) LNRNN_ROW(4, 2, 0, 1)
        LNRNN_ROW(5, 2, 1, 1) LNRNN_ROW(6, 3, 0, 1) LNRNN_ROW(7, 3, 1, 1) LNRNN_ROW(8, 4, 0, 1)
#endif
    }
#undef LNRNN_ROW
}

/* 1 to MM_ROWS rows, one panel of vecs vectors. */
static void mm_rows(int rows, int vecs, int add, size_t k, const float *const *a, const float *w, float *c,
                    ptrdiff_t cs)
{
#define LNRNN_ROWS(m)                                                  \
    case m:                                                            \
        if (vecs == MM_VECS)                                           \
            mm_tile(m, 1, 0, 1, add, k, a, w, c, cs);                  \
        else if (vecs == 1)                                            \
            mm_tile(m, 0, 1, 1, add, k, a, w, c, cs);                  \
        else                                                           \
            mm_tile(m, 0, 1, MM_VECS - 1, add, k, a, w, c, cs);        \
        return;
    switch (rows) {
        LNRNN_ROWS(1) LNRNN_ROWS(2)
#if MM_ROWS > 2
        LNRNN_ROWS(3) LNRNN_ROWS(4)
#endif
#if MM_ROWS > 4
        LNRNN_ROWS(5) LNRNN_ROWS(6)
#endif
#if MM_ROWS > 6
        LNRNN_ROWS(7) LNRNN_ROWS(8)
#endif
    }
#undef LNRNN_ROWS
}

/* a: rows pointers to k floats each; packed (n, k); c (rows, mm_width(n)), cs floats from row to row
 * -> c[i][o] (+)= sum_j a[i][j] w[o][j] for the outputs o of panels p0 <= p < p1; outputs past n become what they were
 * (add) or 0. */
static void matmul_f32(size_t rows, size_t n, size_t k, const float *const *a, const float *packed, size_t p0,
                       size_t p1, int add, float *c, ptrdiff_t cs)
{
    const size_t start = mm_start(n, p0), end = mm_start(n, p1), width = mm_width(n);
    if (rows == 1) {
        mm_row(end - start, add, k, a[0], packed + start * k, c + start);
        return;
    }
    /* As few tiles as will do, of even heights: 9 rows are 5 and 4, not 8 and 1. */
    const size_t tiles = (rows + MM_ROWS - 1) / MM_ROWS;
    for (size_t o = start, m; o < end; o += m) {
        m = mm_panel(width - o);
        for (size_t t = 0, r = 0; t < tiles; t++) {
            const size_t height = (rows - r) / (tiles - t);
            mm_rows((int)height, (int)(m / V32_LANES), add, k, a + r, packed + o * k, c + (ptrdiff_t)r * cs + o, cs);
            r += height;
        }
    }
}

#endif
