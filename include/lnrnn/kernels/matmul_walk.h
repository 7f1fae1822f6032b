/* From tiles to a product: one text for one type of weights, included once for each of f32, f32_columns,
 * f32_lines, bf16, dot2, i8 and i8a8 with
 *     LNRNN_WEIGHTS      its name: mm_walk is compiled as f32_walk
 *     TILE_ROWS          rows of the tallest tile
 *     activations        a row of them
 * and, which are 0 unless they are defined,
 *     FEW_ROWS           so many rows, or two, go through two panels at a time; 0: none do
 *     MAY_PREFETCH_ROWS  whether the tile knows MM_PREFETCH_ROWS
 *     MAY_PART_INPUTS    whether it knows job->first and end
 * and with the tile <name>_tile defined. None of these is defined after it.
 */
#ifndef LNRNN_MATMUL_WALK_NAMES
#define LNRNN_MATMUL_WALK_NAMES
#define mm_tile LNRNN_CAT(LNRNN_WEIGHTS, _tile)
#define mm_row_end LNRNN_CAT(LNRNN_WEIGHTS, _row_end)
#define mm_row LNRNN_CAT(LNRNN_WEIGHTS, _row)
#define mm_tile_of LNRNN_CAT(LNRNN_WEIGHTS, _tile_of)
#define mm_rows LNRNN_CAT(LNRNN_WEIGHTS, _rows)
#define mm_pair_of LNRNN_CAT(LNRNN_WEIGHTS, _pair_of)
#define mm_pair LNRNN_CAT(LNRNN_WEIGHTS, _pair)
#define mm_few_rows LNRNN_CAT(LNRNN_WEIGHTS, _few_rows)
#define mm_prefetch_panel LNRNN_CAT(LNRNN_WEIGHTS, _prefetch_panel)
#define mm_walk LNRNN_CAT(LNRNN_WEIGHTS, _walk)
#endif
#ifndef FEW_ROWS
#define FEW_ROWS 0
#endif
#ifndef MAY_PREFETCH_ROWS
#define MAY_PREFETCH_ROWS 0
#endif
#ifndef MAY_PART_INPUTS
#define MAY_PART_INPUTS 0
#endif

/* One row: its last outputs, o .. end - 1, at most four panels. */
LNRNN_OUTLINE void mm_row_end(int prefetch, const mm_job *job, activations const *a, size_t o, size_t end,
                              float *c)
{
    switch ((end - o) / V32_LANES) {
#if NR_VECS == 3
    case 1: mm_tile(1, 0, 1, 1, prefetch, job, a, o, c + o, 0); return;
    case 2: mm_tile(1, 0, 1, 2, prefetch, job, a, o, c + o, 0); return;
    case 3: mm_tile(1, 1, 0, 1, prefetch, job, a, o, c + o, 0); return;
    case 4: mm_tile(1, 0, 2, 2, prefetch, job, a, o, c + o, 0); return;
    case 5: mm_tile(1, 1, 1, 2, prefetch, job, a, o, c + o, 0); return;
    case 6: mm_tile(1, 2, 0, 1, prefetch, job, a, o, c + o, 0); return;
    case 7: mm_tile(1, 1, 2, 2, prefetch, job, a, o, c + o, 0); return;
    case 8: mm_tile(1, 2, 1, 2, prefetch, job, a, o, c + o, 0); return;
    case 9: mm_tile(1, 3, 0, 1, prefetch, job, a, o, c + o, 0); return;
    case 10: mm_tile(1, 2, 2, 2, prefetch, job, a, o, c + o, 0); return;
    case 11: mm_tile(1, 3, 1, 2, prefetch, job, a, o, c + o, 0); return;
    case 12: mm_tile(1, 4, 0, 1, prefetch, job, a, o, c + o, 0); return;
#else
    case 1: mm_tile(1, 0, 1, 1, prefetch, job, a, o, c + o, 0); return;
    case 2: mm_tile(1, 1, 0, 1, prefetch, job, a, o, c + o, 0); return;
    case 3: mm_tile(1, 1, 1, 1, prefetch, job, a, o, c + o, 0); return;
    case 4: mm_tile(1, 2, 0, 1, prefetch, job, a, o, c + o, 0); return;
    case 5: mm_tile(1, 2, 1, 1, prefetch, job, a, o, c + o, 0); return;
    case 6: mm_tile(1, 3, 0, 1, prefetch, job, a, o, c + o, 0); return;
    case 7: mm_tile(1, 3, 1, 1, prefetch, job, a, o, c + o, 0); return;
    case 8: mm_tile(1, 4, 0, 1, prefetch, job, a, o, c + o, 0); return;
#endif
    }
}

/* One row: the outputs start .. end - 1, several panels at a time, for one has too few chains to hide the
 * latency of a multiply-add. */
LNRNN_INLINE void mm_row(int prefetch, const mm_job *job, activations const *a, size_t start, size_t end,
                         float *c)
{
    const size_t step = 3 * NR, half = (end - start) / 2 / NR * NR;
    const size_t bytes = (end - start) * job->words * sizeof(uint32_t);
    size_t last = start;
    if (!prefetch && job->may_halve && half && end - start <= 4 * NR && lnrnn_by_halves(job->caches, bytes)) {
        for (int i = 0; i < 2; i++)
            if (i == job->from_end)
                mm_row_end(0, job, a, start, start + half, c);
            else
                mm_row_end(0, job, a, start + half, end, c);
        return;
    }
    while (end - last > 4 * NR)
        last += step;
    if (job->from_end)
        mm_row_end(prefetch, job, a, last, end, c);
    for (size_t done = 0; done < last - start; done += step) {
        const size_t o = job->from_end ? last - step - done : start + done;
        mm_tile(1, 3, 0, 1, prefetch, job, a, o, c + o, 0);
    }
    if (!job->from_end)
        mm_row_end(prefetch, job, a, last, end, c);
}

/* m rows, a constant, of one panel of vecs vectors. */
LNRNN_INLINE void mm_tile_of(const int m, int prefetch, const mm_job *job, int vecs, activations const *a,
                             size_t o, float *c, ptrdiff_t cs)
{
    const int rows =
        m <= TILE_ROWS ? m : 1; /* so that no tile is too tall where the compiler cannot see what follows */
    if (m > TILE_ROWS)
        return;
    if (vecs == NR_VECS && prefetch == MM_PREFETCH_WEIGHTS)
        mm_tile(rows, 1, 0, 1, MM_PREFETCH_WEIGHTS, job, a, o, c, cs);
    else if (MAY_PREFETCH_ROWS && vecs == NR_VECS && prefetch == MM_PREFETCH_ROWS)
        mm_tile(rows, 1, 0, 1, MM_PREFETCH_ROWS, job, a, o, c, cs);
    else if (vecs == NR_VECS)
        mm_tile(rows, 1, 0, 1, MM_PREFETCH_NONE, job, a, o, c, cs);
    else if (vecs == 1)
        mm_tile(rows, 0, 1, 1, MM_PREFETCH_NONE, job, a, o, c, cs);
    else
        mm_tile(rows, 0, 1, NR_VECS - 1, MM_PREFETCH_NONE, job, a, o, c, cs);
}

/* 1 to TILE_ROWS rows, one panel of vecs vectors. MM_PREFETCH_ROWS: a whole tile of rows follows. */
static void mm_rows(int prefetch, const mm_job *job, int rows, int vecs, activations const *a, size_t o,
                    float *c, ptrdiff_t cs)
{
    switch (rows) {
    case 1: mm_tile_of(1, prefetch, job, vecs, a, o, c, cs); return;
    case 2: mm_tile_of(2, prefetch, job, vecs, a, o, c, cs); return;
#if MR > 2
    case 3: mm_tile_of(3, prefetch, job, vecs, a, o, c, cs); return;
    case 4: mm_tile_of(4, prefetch, job, vecs, a, o, c, cs); return;
#endif
#if MR > 4
    case 5: mm_tile_of(5, prefetch, job, vecs, a, o, c, cs); return;
    case 6: mm_tile_of(6, prefetch, job, vecs, a, o, c, cs); return;
#endif
#if MR > 6
    case 7: mm_tile_of(7, prefetch, job, vecs, a, o, c, cs); return;
    case 8: mm_tile_of(8, prefetch, job, vecs, a, o, c, cs); return;
#endif
    }
}

/* What tile t of `tiles` prefetches of weights that do not stay in L2, in the words first .. end - 1 of the panel at output
 * o -> whether it does. next: words from there to those that come after them, of which each of the first tiles takes a
 * stretch, so that its bytes come over the time of several tiles. Line after line: where memory is as slow as the
 * prefetches the CPU drops many, unless it sees a stream that it can follow (gru B17-H2048: 9 %). next 0: the first tile
 * takes these words themselves, as it goes. */
LNRNN_INLINE int mm_prefetch_panel(mm_job *job, size_t o, size_t t, size_t tiles, ptrdiff_t next)
{
    const size_t turns = !next ? 1 : tiles < NR_VECS ? tiles : NR_VECS;
    const ptrdiff_t here = (ptrdiff_t)(o * job->words);
    if (t >= turns)
        return 0;
    job->pace = NR / turns;
    const size_t stretch = t * (job->end - job->first) * job->pace, first = job->first * (NR - job->pace);
    job->ahead = here + (next ? next + (ptrdiff_t)(first + stretch) : LNRNN_PREFETCH_TILE);
    return 1;
}

#if FEW_ROWS && !defined(LNRNN_FEW_COPIES)
/* m rows, a constant, of two panels of `first` and `second` vectors. */
LNRNN_INLINE void mm_pair_of(const int m, int prefetch, const mm_job *job, int first, int second,
                             activations const *a, size_t o, float *c, ptrdiff_t cs)
{
    const int rows = m <= FEW_ROWS ? m : 1;
    if (m > FEW_ROWS)
        return;
    if (second == NR_VECS && prefetch)
        mm_tile(rows, 2, 0, 1, MM_PREFETCH_WEIGHTS, job, a, o, c, cs);
    else if (second == NR_VECS)
        mm_tile(rows, 2, 0, 1, MM_PREFETCH_NONE, job, a, o, c, cs);
    else if (first == NR_VECS)
        mm_tile(rows, 1, 1, NR_VECS - 1, MM_PREFETCH_NONE, job, a, o, c, cs);
    else if (NR_VECS == 3)
        mm_tile(rows, 0, 2, NR_VECS - 1, MM_PREFETCH_NONE, job, a, o, c, cs);
}

static void mm_pair(const mm_job *job, int rows, int first, int second, activations const *a, size_t o,
                    float *c, ptrdiff_t cs)
{
    switch (rows) {
    case 2: mm_pair_of(2, job->prefetch, job, first, second, a, o, c, cs); return;
    case 3: mm_pair_of(3, job->prefetch, job, first, second, a, o, c, cs); return;
    case 4: mm_pair_of(4, job->prefetch, job, first, second, a, o, c, cs); return;
    }
}

/* 2 to FEW_ROWS rows: two panels at a time, for one has too few chains to hide the latency of a step (lstm B2 to
 * B4). */
static void mm_few_rows(mm_job *job, int rows, activations const *a, size_t n, size_t p0, size_t p1, float *c,
                        ptrdiff_t cs)
{
    const size_t pairs = (p1 - p0 + 1) / 2;
    for (size_t i = 0; i < pairs; i++) {
        const size_t p = p0 + 2 * (job->from_end ? pairs - 1 - i : i), o = mm_start(n, p),
                     next = mm_start(n, p + 1), end = p + 1 < p1 ? mm_start(n, p + 2) : next;
        const int first = (int)((next - o) / V32_LANES), second = (int)((end - next) / V32_LANES);
        if (second)
            mm_pair(job, rows, first, second, a, o, c + o, cs);
        else {
            mm_prefetch_panel(job, o, 0, 1, 0);
            mm_rows(job->prefetch ? MM_PREFETCH_WEIGHTS : MM_PREFETCH_NONE, job, rows, first, a, o, c + o,
                    cs);
        }
    }
}
#endif

/* Panels p0 .. p1 - 1 of the n outputs of (rows, k). */
static void mm_walk(const mm_job *job, size_t rows, activations const *a, size_t n, size_t p0, size_t p1,
                    float *c, ptrdiff_t cs)
{
    const int prefetches = job->prefetch && lnrnn_prefetch_rows(job->caches, rows);
    if (rows == 1) {
        if (prefetches)
            mm_row(MM_PREFETCH_WEIGHTS, job, a, mm_start(n, p0), mm_start(n, p1), c);
        else
            mm_row(MM_PREFETCH_NONE, job, a, mm_start(n, p0), mm_start(n, p1), c);
        return;
    }
    mm_job own = *job; /* with what a tile prefetches */
    own.prefetch = prefetches;
#if FEW_ROWS && !defined(LNRNN_FEW_COPIES)
    if (rows <= FEW_ROWS) {
        mm_few_rows(&own, (int)rows, a, n, p0, p1, c, cs);
        return;
    }
#endif
    /* As few tiles as will do, of even heights: 9 rows are 4 and 5, not 8 and 1. In the first panel each tile
     * prefetches the rows of the next, inputs that may not have been read before (rnn B64-H256: 5 %). */
    const size_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, panel = NR * job->words;
    /* Of a panel too large for that, all tiles go through some of the inputs, then through the next: every sum goes
     * on where it was. */
    const size_t bytes = panel * sizeof(uint32_t),
                 most =
                     MAY_PART_INPUTS && own.prefetch && tiles > 1 ? lnrnn_panel_parts(job->caches, bytes) : 1,
                 part = (job->words + most - 1) / most, parts = part ? (job->words + part - 1) / part : 1;
    const int spread = MAY_PREFETCH_ROWS && tiles > 1 && lnrnn_prefetch_panels(job->caches, bytes / most);
    for (size_t i = p0; i < p1; i++)
        for (size_t j = 0; j < parts; j++) {
            const size_t p = job->from_end ? p1 - 1 - (i - p0) : i, o = mm_start(n, p),
                         m = mm_start(n, p + 1) - o;
            /* In the second panel, of which the first one has prefetched nothing, the first tile does it. */
            const size_t late = i == p0 + 1 && j == 0, last = i + 1 == p1 && j + 1 == parts;
            const ptrdiff_t on = j + 1 < parts   ? (ptrdiff_t)(NR * part)
                                 : job->from_end ? -(ptrdiff_t)(panel + j * NR * part)
                                                 : (ptrdiff_t)(panel - j * NR * part);
            if (MAY_PART_INPUTS) {
                own.first = j * part, own.end = j + 1 < parts ? own.first + part : job->words;
                own.add = j ? LNRNN_ADD_ON : job->add;
            }
            for (size_t t = 0, r = 0; t < tiles; t++) {
                size_t height = (rows - r) / (tiles - t);
#ifdef LNRNN_BLOCKS /* which take rows by twos */
                height += TILE_ROWS % 2 == 0 && height % 2 && t + 1 < tiles;
#endif
                int prefetch = MM_PREFETCH_NONE;
                const ptrdiff_t next = !spread || i == p0 || t < late || last ? 0 : on;
                if (own.prefetch
                    && (mm_prefetch_panel(&own, o, next ? t - late : t, tiles - late, next)
                        || job->each_tile))
                    prefetch = MM_PREFETCH_WEIGHTS;
                else if (i == p0 && t + 1 < tiles)
                    prefetch = MM_PREFETCH_ROWS;
                mm_rows(prefetch, &own, (int)height, (int)(m / V32_LANES), a + r, o,
                        c + (ptrdiff_t)r * cs + (ptrdiff_t)o, cs);
                r += height;
            }
        }
}

#undef LNRNN_WEIGHTS
#undef TILE_ROWS
#undef activations
#undef FEW_ROWS
#undef MAY_PREFETCH_ROWS
#undef MAY_PART_INPUTS
