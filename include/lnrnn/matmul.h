/* Packed weights times rows.
 *
 * W (n, k) is packed into panels of MM_VECS vectors of outputs: panel p holds, for every input j in turn, the weights of
 * its outputs side by side, so that a product streams it with full-width loads from end to end. The last panel may be
 * narrower, and its last vector is filled up with zero weights: mm_width(n) * k floats in all.
 *
 * Every output is one chain of multiply-adds over j = 0 .. k-1 that starts from what c holds (or from 0). Tiles differ
 * only in how many chains run side by side: so the result for a row does not depend on the rows around it, nor on who
 * computes which panel. The library's promise of equal bits rests on this.
 */
#ifndef LNRNN_MATMUL_H
#define LNRNN_MATMUL_H

#include "simd.h"

enum { MM_PANEL = MM_VECS * V32_LANES };

static size_t mm_width(size_t n) { return (n + V32_LANES - 1) / V32_LANES * V32_LANES; }

/* w (n, k), rs values from row to row, cs from column to column -> packed, mm_width(n) * k floats. */
static void mm_pack(size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs, float *packed)
{
    const size_t width = mm_width(n);
    for (size_t p = 0; p < width; p += MM_PANEL) {
        const size_t m = width - p < MM_PANEL ? width - p : MM_PANEL;
        for (size_t j = 0; j < k; j++)
            for (size_t i = 0; i < m; i++)
                *packed++ = p + i < n ? w[(ptrdiff_t)(p + i) * rs + (ptrdiff_t)j * cs] : 0.0f;
    }
}

/* The same for the transpose of x, given as k pointers to rows of n floats: w[i][j] = x[j][i]. */
static void mm_pack_rows(size_t n, size_t k, const float *const *x, float *packed)
{
    const size_t width = mm_width(n);
    for (size_t p = 0; p < width; p += MM_PANEL) {
        const size_t m = width - p < MM_PANEL ? width - p : MM_PANEL, real = n - p < m ? n - p : m;
        for (size_t j = 0; j < k; j++, packed += m) {
            memcpy(packed, x[j] + p, real * sizeof *packed);
            memset(packed + real, 0, (m - real) * sizeof *packed);
        }
    }
}

/* a: rows pointers to k floats; w: wide panels of MM_PANEL, ws floats apart, then one of tail vectors -> c (rows, all of
 * their outputs), cs floats from row to row. rows, wide, tail and add are constants where this is called: the loops
 * unroll and acc lives in registers. */
LNRNN_INLINE void mm_tile(int rows, int wide, int tail, int add, size_t k, const float *const *a, const float *w,
                          size_t ws, float *c, ptrdiff_t cs)
{
    const int vecs = wide * MM_VECS + tail;
    v32 acc[MM_ROWS][4 * MM_VECS];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++)
            acc[i][v] = add ? v32_load(c + i * cs + v * V32_LANES) : v32_zero();
    for (size_t j = 0; j < k; j++) {
        v32 b[4 * MM_VECS];
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++) {
            const int p = v / MM_VECS;
            b[v] = v32_load(w + (size_t)p * ws + j * (p < wide ? MM_PANEL : (size_t)tail * V32_LANES)
                            + (size_t)(v % MM_VECS) * V32_LANES);
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

/* One row takes several panels at a time: one panel has too few chains to hide the latency of a multiply-add. */
static void mm_row(size_t wide, int tail, int add, size_t k, const float *a, const float *w, float *c)
{
    const size_t ws = k * MM_PANEL;
    for (; wide > 3 || (wide == 3 && tail == 0); wide -= 3, w += 3 * ws, c += 3 * MM_PANEL)
        mm_tile(1, 3, 0, add, k, &a, w, ws, c, 0);
#define LNRNN_ROW(n, t)                                                \
    case 4 * n + t:                                                    \
        mm_tile(1, n, t, add, k, &a, w, ws, c, 0);                     \
        return;
    switch ((int)wide * 4 + tail) {
        LNRNN_ROW(1, 0) LNRNN_ROW(2, 0)
        LNRNN_ROW(0, 1) LNRNN_ROW(1, 1) LNRNN_ROW(2, 1) LNRNN_ROW(3, 1)
#if MM_VECS > 2
        LNRNN_ROW(0, 2) LNRNN_ROW(1, 2) LNRNN_ROW(2, 2) LNRNN_ROW(3, 2)
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
            mm_tile(m, 1, 0, add, k, a, w, 0, c, cs);                  \
        else if (vecs == 1)                                            \
            mm_tile(m, 0, 1, add, k, a, w, 0, c, cs);                  \
        else                                                           \
            mm_tile(m, 0, MM_VECS - 1, add, k, a, w, 0, c, cs);        \
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
    const size_t width = mm_width(n), end = p1 * MM_PANEL < width ? p1 * MM_PANEL : width;
    if (rows == 1 && p0 < p1) {
        const size_t cols = end - p0 * MM_PANEL;
        mm_row(cols / MM_PANEL, (int)(cols % MM_PANEL / V32_LANES), add, k, a[0], packed + p0 * MM_PANEL * k,
               c + p0 * MM_PANEL);
        return;
    }
    /* As few tiles as will do, of even heights: 9 rows are 5 and 4, not 8 and 1. */
    const size_t tiles = (rows + MM_ROWS - 1) / MM_ROWS;
    for (size_t o = p0 * MM_PANEL; o < end; o += MM_PANEL) {
        const int vecs = (int)((end - o < MM_PANEL ? end - o : MM_PANEL) / V32_LANES);
        for (size_t t = 0, r = 0; t < tiles; t++) {
            const size_t m = (rows - r) / (tiles - t);
            mm_rows((int)m, vecs, add, k, a + r, packed + o * k, c + (ptrdiff_t)r * cs + o, cs);
            r += m;
        }
    }
}

#endif
