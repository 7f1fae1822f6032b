/* Products with block-sparse weights (product_blocks.h) in wide vectors (simd/wide.h). A vector has the sums
 * of two rows for eight outputs. A row of int8 in two parts (int8_rows.h) counts as two rows here.
 *
 * A line is a pair of rows. A tile has 1, 2 or 4 lines; copies of its last row fill it up. The inputs of a
 * tile are stored as it reads them: word 0 of each row, then word 1 of each row, and so on. The sums of a
 * group begin and end in memory, so that all tiles share the code for this. */
#ifndef LNRNN_BLOCKS_WIDE_H
#define LNRNN_BLOCKS_WIDE_H

/* Returns how many lines a tile of `rows` rows has, or 0 for one row of int8. */
LNRNN_INLINE size_t tile_lines(size_t rows)
{
    return rows > 4 ? 4 : rows > 2 ? 2 : rows > 1 || BAND_STEP == 1 ? 1 : 0;
}

static size_t block_tile_rows(size_t each, size_t rows)
{
    (void)each; /* WIDE_ROWS is a multiple of 1 and of 2 */
    return rows < WIDE_ROWS ? rows : WIDE_ROWS;
}

/* Writes the inputs of the tiles of `rows` rows to job->lines. */
static void block_lines(size_t rows, const block_job *job)
{
    for (size_t r = 0; r < rows; r += WIDE_ROWS) {
        const size_t height = block_tile_rows(1, rows - r), stride = 2 * tile_lines(height);
        for (size_t i = 0; i < stride; i += 2) {
            uint32_t *to = job->lines + r * job->words + i;
            const uint32_t *const a = job->a[r + (i < height ? i : height - 1)],
                                  *const b = job->a[r + (i + 1 < height ? i + 1 : height - 1)];
            for (size_t j = 0; j < job->words; j++, to += stride)
                to[0] = a[j], to[1] = b[j];
        }
    }
}

#ifdef LNRNN_PART_INT8
/* Adds the products of two blocks w with the lines x, or with one row if lines is 0. One line has two sums,
 * because a sum of a block waits for the one before. */
LNRNN_INLINE void add_block(const int dtype, const int lines, const void *const *x, const uint16_t *column,
                            const uint32_t *w, tile_sums acc)
{
    const uint32_t *const inputs = *x;
    wi32 weights[BAND_STEP];
    (void)dtype;
    if (!lines) {
        *acc = wi32_halves_dot4(*acc, inputs + column[0], inputs + column[1], w);
        return;
    }
    weights[0] = wi32_twice(w, &weights[1]);
    LNRNN_FOR_EACH (each, BAND_STEP) {
        const uint32_t *const words = inputs + 2 * (size_t)lines * column[each];
        LNRNN_FOR_EACH (i, lines) {
            const int of = lines == 1 ? each : i;
            acc[of] = wi32_pairs_dot4(acc[of], words + 2 * i, weights[each]);
        }
    }
}

/* Writes a row's outputs of a group, as int8_outputs does (int8_rows.h). sum: with each = 2, the sums of both
 * parts as pairs of lanes; with each = 1, two halves, which are added. */
LNRNN_INLINE void end_row(const int each, const block_job *shared, size_t row, const block_group *g,
                          tile_sums *sum)
{
    const block_job copy = *shared, *const job = &copy; /* GCC would read *shared again after each store */
    const product_job of_sums = {.sums = job->b.sums};
    const float of_row = job->scale[row];
    const int32_t zero = job->zero[row];
    float *const c = job->c + (ptrdiff_t)row * job->cs;
    LNRNN_FOR_EACH (q, GROUP_BANDS) {
        const size_t o = g->output[q];
        if (q >= (int)g->bands)
            break;
        const wi32 s = each == 2 ? wi32_to_halves(sum[q][0]) : sum[q][0];
        const vi32 first = wi32_half(s, 0) + int8_start(each, &of_sums, o), second = wi32_half(s, 1),
                   n = each == 2 ? (first << 7) + second : int8_shifted(first + second, zero, &of_sums, o);
        v32_store(c + o, v32_fma(vi32_to_v32(n), v32_load(job->b.scale + o) * v32_set1(of_row),
                                 job->add ? v32_load(c + o) : v32_zero()));
    }
}

/* a, b: rows of one part each. sum: the sums of their line. Writes the outputs of both rows. */
LNRNN_INLINE void end_rows(const block_job *job, size_t a, size_t b, const block_group *g, tile_sums *sum)
{
    const w32 of_rows = w32_set(job->scale + a, job->scale + b);
    const wi32 zero = wi32_set(job->zero + a, job->zero + b);
    float *const c = job->c + (ptrdiff_t)a * job->cs, *const next = job->c + (ptrdiff_t)b * job->cs;
    const block_matrix m = job->b;
    const int add = job->add;
    LNRNN_FOR_EACH (q, GROUP_BANDS) {
        const size_t o = g->output[q];
        if (q >= (int)g->bands)
            break;
        const wi32 weights = wi32_load_both(m.sums + o);
        const w32 n = wi32_to_w32(wi32_to_halves(sum[q][0]) + (weights << 7) - weights * zero);
        w32_store(
            c + o, next + o,
            w32_fma(n, w32_load_both(m.scale + o) * of_rows, add ? w32_load(c + o, next + o) : (w32){0}));
    }
}

/* Writes the outputs of rows r .. r + last of a group. */
LNRNN_INLINE void end_group_of(const int lines, const block_job *job, size_t r, size_t last,
                               const block_group *g, tile_sums *sum)
{
    if (!lines)
        end_row(1, job, r, g, sum);
    for (size_t i = 0; lines && i <= (lines > 1 ? last / 2 : 0); i++) {
        const size_t row = r + 2 * i;
        tile_sums *const of = lines > 1 ? (tile_sums *)&sum[0][i] : sum;
        if (job->each == 2)
            end_row(2, job, row - r / 2 - i, g, of);
        else
            end_rows(job, row, row < r + last ? row + 1 : row, g, of);
    }
}
#else
/* Adds the products of a block w with the lines x, in the order of the inputs. */
LNRNN_INLINE void add_block(const int dtype, const int lines, const void *const *x, const uint16_t *column,
                            const uint32_t *w, tile_sums acc)
{
    const uint32_t *const inputs = (const uint32_t *)*x + 2 * (size_t)lines * LNRNN_BLOCK_INPUTS * *column;
    wi32 words[LNRNN_BLOCK_INPUTS];
    for (int j = 0; j < (int)words_of_block(dtype); j += 2)
        words[j] = wi32_twice(w + j * LNRNN_BLOCK_OUTPUTS, &words[j + 1]);
    LNRNN_FOR_EACH (j, LNRNN_BLOCK_INPUTS) {
        const wi32 word = words[dtype == LNRNN_WEIGHT_F32 ? j : j / 2];
        const w32 weights = w32_of_bits(dtype == LNRNN_WEIGHT_F32 ? word
                                        : j % 2                   ? word & (int32_t)0xffff0000
                                                                  : word << 16);
        LNRNN_FOR_EACH (i, lines)
            acc[i] = w32_fma(w32_pairs(inputs + 2 * (j * lines + i)), weights, acc[i]);
    }
}

LNRNN_INLINE void end_group_of(const int lines, const block_job *job, size_t r, size_t last,
                               const block_group *g, tile_sums *sum)
{
    (void)lines;
    for (size_t i = 0; 2 * i <= last; i++) {
        float *const c = job->c + (ptrdiff_t)(r + 2 * i) * job->cs, *const next =
                                                                        2 * i < last ? c + job->cs : c;
        for (size_t q = 0; q < g->bands; q++)
            w32_store(c + g->output[q], next + g->output[q], w32_to_halves(sum[q][i]));
    }
}

/* Sets the sums of a group to 0, or to the outputs that were computed before. */
LNRNN_OUTLINE void begin_group(const block_job *job, size_t r, size_t last, const block_group *g,
                               tile_sums *sum)
{
    memset(sum, 0, GROUP_BANDS * sizeof *sum);
    for (size_t i = 0; job->add && 2 * i <= last; i++) {
        const float *const c = job->c + (ptrdiff_t)(r + 2 * i) * job->cs, *const next =
                                                                              2 * i < last ? c + job->cs : c;
        for (size_t q = 0; q < g->bands; q++)
            sum[q][i] = w32_to_pairs(w32_load(c + g->output[q], next + g->output[q]));
    }
}
#endif

LNRNN_OUTLINE void end_group(const block_job *job, size_t r, size_t last, const block_group *g,
                             tile_sums *sum)
{
    end_group_of(2, job, r, last, g, sum);
}

/* Multiplies rows r .. r + last by a group. dtype and lines are constants. */
LNRNN_INLINE void wide_tile(const int dtype, const int lines, int prefetch, const block_job *job, size_t r,
                            size_t last, const block_group *g)
{
    const int int8 = lnrnn_is_int8(dtype),
              sums = lines > 1       ? lines
                     : int8 && lines ? 2
                                     : 1,
              together = lines < 4 || int8 ? GROUP_BANDS : 2;
    const void *x = lines ? job->lines + r * job->words : job->a[r];
    tile_sums memory[GROUP_BANDS], acc[GROUP_BANDS];
    LNRNN_ANEW(x); /* else GCC computes it again for each block */
#ifndef LNRNN_PART_INT8
    begin_group(job, r, last, g, memory);
#endif
    for (int first = 0; first < GROUP_BANDS && first < (int)g->bands; first += together) {
        const size_t at = g->first + (size_t)(BAND_STEP * first);
        const uint16_t *column = job->b.column + at;
        const uint32_t *w = job->b.w + at * words_of_block(dtype) * LNRNN_BLOCK_OUTPUTS;
        LNRNN_FOR_EACH (q, together)
            LNRNN_FOR_EACH (i, sums)
                acc[q][i] = int8 ? (block_sum){0} : memory[first + q][i];
        if (together == GROUP_BANDS) {
            LNRNN_FOR_EACH (ended, GROUP_BANDS)
                block_steps(dtype, prefetch, lines, GROUP_BANDS - ended, (size_t)(GROUP_BANDS - ended),
                            g->steps[ended], &x, &column, &w, acc);
        } else
            for (int bands = GROUP_BANDS; bands > first; bands--)
                LNRNN_FOR_EACH (q, 2)
                    if (q ? bands - first > 1 : bands - first == 1)
                        block_steps(dtype, prefetch, lines, q + 1, (size_t)bands,
                                    g->steps[GROUP_BANDS - bands], &x, &column, &w, acc);
        LNRNN_FOR_EACH (q, together) {
            if (sums > lines && lines)
                acc[q][0] += acc[q][1];
            LNRNN_FOR_EACH (i, lines)
                memory[first + q][i] = acc[q][i];
        }
    }
    if (lines < 2)
        end_group_of(lines, job, r, last, g, acc);
    else
        end_group(job, r, last, g, memory);
}

/* Several rows of int8 take longer than reading the weights, so they need no prefetch. */
LNRNN_INLINE void block_rows(const int dtype, int prefetch, size_t rows, const block_job *job, size_t r,
                             const block_group *g)
{
    switch (tile_lines(rows)) {
#ifdef LNRNN_PART_INT8
    case 0: wide_tile(dtype, 0, prefetch, job, r, 0, g); return;
#endif
    case 1: wide_tile(dtype, 1, prefetch, job, r, rows - 1, g); return;
    /* GCOVR_EXCL_BR_START: rows and the unit are known at compile time */
    case 2: wide_tile(dtype, 2, prefetch && BAND_STEP == 1, job, r, rows - 1, g); return;
    default:
        wide_tile(dtype, 4, prefetch && BAND_STEP == 1, job, r, rows - 1, g);
        return;
        /* GCOVR_EXCL_BR_STOP */
    }
}

#endif
