/* From tiles to a product: one text for one type of weights, included by matmul.h with F(name), ROWS (the tallest tile), A
 * (a row of activations) and F(tile).
 */

/* The last outputs of a row, o .. end - 1: at most four panels. */
LNRNN_OUTLINE void F(row_end)(int fetch, const mm_job *job, A const *a, size_t o, size_t end, float *c)
{
#define LNRNN_ROW(n, wide, tails, tail) \
    case n: F(tile)(1, wide, tails, tail, fetch, job, a, o, c + o, 0); return;
    switch ((end - o) / V32_LANES) {
#if NR_VECS == 3
        LNRNN_ROW(1, 0, 1, 1)
        LNRNN_ROW(2, 0, 1, 2) LNRNN_ROW(3, 1, 0, 1) LNRNN_ROW(4, 0, 2, 2) LNRNN_ROW(5, 1, 1, 2)
            LNRNN_ROW(6, 2, 0, 1) LNRNN_ROW(7, 1, 2, 2) LNRNN_ROW(8, 2, 1, 2) LNRNN_ROW(9, 3, 0, 1)
                LNRNN_ROW(10, 2, 2, 2) LNRNN_ROW(11, 3, 1, 2) LNRNN_ROW(12, 4, 0, 1)
#else
        LNRNN_ROW(1, 0, 1, 1)
        LNRNN_ROW(2, 1, 0, 1) LNRNN_ROW(3, 1, 1, 1) LNRNN_ROW(4, 2, 0, 1) LNRNN_ROW(5, 2, 1, 1)
            LNRNN_ROW(6, 3, 0, 1) LNRNN_ROW(7, 3, 1, 1) LNRNN_ROW(8, 4, 0, 1)
#endif
    }
#undef LNRNN_ROW
}

/* One row takes several panels at a time: one panel has too few chains to hide the latency of a multiply-add. */
LNRNN_INLINE void F(row)(int fetch, const mm_job *job, A const *a, size_t start, size_t end, float *c)
{
    const size_t step = 3 * NR, half = (end - start) / 2 / NR * NR;
    const size_t words = (end - start) * job->words;
    size_t last = start;
    if (!fetch && job->halves && half && end - start <= 4 * NR && words > MM_NEAR && words <= MM_HALVES) {
        for (int i = 0; i < 2; i++)
            if (i == job->back)
                F(row_end)(0, job, a, start, start + half, c);
            else
                F(row_end)(0, job, a, start + half, end, c);
        return;
    }
    while (end - last > 4 * NR)
        last += step;
    if (job->back)
        F(row_end)(fetch, job, a, last, end, c);
    for (size_t done = 0; done < last - start; done += step) {
        const size_t o = job->back ? last - step - done : start + done;
        F(tile)(1, 3, 0, 1, fetch, job, a, o, c + o, 0);
    }
    if (!job->back)
        F(row_end)(fetch, job, a, last, end, c);
}

/* 1 to ROWS rows, one panel of vecs vectors. MM_FETCH_ROWS: a whole tile of rows follows. */
static void F(rows)(int fetch, const mm_job *job, int rows, int vecs, A const *a, size_t o, float *c,
                    ptrdiff_t cs)
{
#define LNRNN_ROWS(m)                                                                       \
    case m:                                                                                 \
        if (m > ROWS)                                                                       \
            return;                                                                         \
        if (vecs == NR_VECS && fetch == MM_FETCH_WEIGHTS)                                   \
            F(tile)(m <= ROWS ? m : 1, 1, 0, 1, MM_FETCH_WEIGHTS, job, a, o, c, cs);        \
        else if (vecs == NR_VECS && fetch == MM_FETCH_ROWS)                                 \
            F(tile)(m <= ROWS ? m : 1, 1, 0, 1, MM_FETCH_ROWS, job, a, o, c, cs);           \
        else if (vecs == NR_VECS)                                                           \
            F(tile)(m <= ROWS ? m : 1, 1, 0, 1, MM_FETCH_NONE, job, a, o, c, cs);           \
        else if (vecs == 1)                                                                 \
            F(tile)(m <= ROWS ? m : 1, 0, 1, 1, MM_FETCH_NONE, job, a, o, c, cs);           \
        else                                                                                \
            F(tile)(m <= ROWS ? m : 1, 0, 1, NR_VECS - 1, MM_FETCH_NONE, job, a, o, c, cs); \
        return;
    switch (rows) {
        LNRNN_ROWS(1)
        LNRNN_ROWS(2)
#if MR > 2
            LNRNN_ROWS(3) LNRNN_ROWS(4)
#endif
#if MR > 4
                LNRNN_ROWS(5) LNRNN_ROWS(6)
#endif
#if MR > 6
                    LNRNN_ROWS(7) LNRNN_ROWS(8)
#endif
    }
#undef LNRNN_ROWS
}

/* Panels p0 .. p1 - 1 of the n outputs of (rows, k). */
static void F(walk)(const mm_job *job, size_t rows, A const *a, size_t n, size_t p0, size_t p1, float *c,
                    ptrdiff_t cs)
{
    if (rows == 1) {
        if (job->far)
            F(row)(MM_FETCH_WEIGHTS, job, a, mm_start(n, p0), mm_start(n, p1), c);
        else
            F(row)(MM_FETCH_NONE, job, a, mm_start(n, p0), mm_start(n, p1), c);
        return;
    }
    /* As few tiles as will do, of even heights: 9 rows are 4 and 5, not 8 and 1. Of weights that do not stay in L2 the first
     * of a panel's tiles asks for what it needs next. In the first panel each asks for the rows of the next tile, which may
     * still be out of the cache: inputs that nobody has touched yet (rnn B64-H256: 5 %). */
    const size_t tiles = (rows + ROWS - 1) / ROWS;
    for (size_t i = p0; i < p1; i++) {
        const size_t p = job->back ? p1 - 1 - (i - p0) : i, o = mm_start(n, p), m = mm_start(n, p + 1) - o;
        for (size_t t = 0, r = 0; t < tiles; t++) {
            const size_t height = (rows - r) / (tiles - t);
            const int fetch = job->far && t == 0         ? MM_FETCH_WEIGHTS
                              : i == p0 && t + 1 < tiles ? MM_FETCH_ROWS
                                                         : MM_FETCH_NONE;
            F(rows)(fetch, job, (int)height, (int)(m / V32_LANES), a + r, o,
                    c + (ptrdiff_t)r * cs + (ptrdiff_t)o, cs);
            r += height;
        }
    }
}
