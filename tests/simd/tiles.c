/* Compares the tiles of include/lnrnn/kernels/, in each shape of each product, with the definition of an output. The
 * program is for one part of one instruction set, with the macros of all.h: LNRNN_PART_PRODUCT, _BF16 or _INT8. It
 * prints a line for each output with other bits, and for each float that was written by mistake. */
#include <stdio.h>
#include <stdlib.h>

#include "lnrnn/kernels/all.h"

enum { BLOCK_N = 200, MOST_N = 9 * NR > BLOCK_N ? 9 * NR : BLOCK_N };
enum { MOST_ROWS = 37, MOST_K = 70, SPARE = 5, STRIDE = MOST_N + SPARE };

static float a[MOST_ROWS][MOST_K], w[MOST_N][MOST_K], c[MOST_ROWS][STRIDE], before[MOST_ROWS][STRIDE];
static float definition[MOST_ROWS][MOST_N];
static float columns[MOST_K][MOST_ROWS];
static const float *row[MOST_ROWS]; /* pointers to the rows of a */
static uint32_t packed[MOST_N * (MOST_K + 2)], scratch[1 << 16];
static int wrong;

static float number(void)
{
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (float)(1 << 24) - 0.5f;
}

/* A product: its number, and the type of its weights. Each part of a set defines
 *     rows_of   the rows as its tiles read them
 *     defined   the definition of a vector of outputs of row i, from output o on
 *     product   the whole product */
typedef struct {
    const char *name;
    int number, dtype;
    size_t lines; /* the number of lines of a tile that a row is; 0: one line */
} kind;

#ifdef LNRNN_PART_PRODUCT
static const kind KINDS[] = {{"f32", PRODUCT_F32, LNRNN_WEIGHT_F32},
                             {"bf16", PRODUCT_BF16, LNRNN_WEIGHT_BF16},
                             {"f32_columns", PRODUCT_F32_COLUMNS, LNRNN_WEIGHT_F32}};

static const product_loop *const LOOPS[] = {&f32_product, &bf16_product, &f32_columns_product};

static const void *rows_of(const kind *of, const product_job *job)
{
    (void)job;
    return of->number == PRODUCT_F32_COLUMNS ? (const void *)columns : row;
}

static v32 weights(size_t o, size_t j, int rounded)
{
    float lane[V32_LANES];
    for (size_t i = 0; i < V32_LANES; i++)
        lane[i] = rounded ? bits_float((uint32_t)float_to_bf16(w[o + i][j]) << 16) : w[o + i][j];
    return v32_load(lane);
}

static v32 defined(const kind *of, const product_job *job, const void *rows, size_t i, size_t o)
{
    const v32 was = v32_load(&before[i][o]);
    (void)rows;
    v32 sum = job->add == LNRNN_ADD_ON ? was : v32_zero();
    for (size_t j = 0; j < job->k; j++)
        sum = v32_fma(v32_set1(a[i][j]), weights(o, j, of->number == PRODUCT_BF16), sum);
    return job->add == LNRNN_ADD_AFTER ? sum + was : sum;
}

static void product(const kind *of, const lnrnn_matmul *m, size_t rows)
{
    if (of->number == PRODUCT_F32_COLUMNS)
        matmul_columns(m, rows, columns[0], MOST_ROWS, c[0], STRIDE);
    else
        matmul_f32(m, rows, row, c[0], STRIDE);
}
#endif

#ifdef LNRNN_PART_BF16
static const kind KINDS[] = {{"dot2", PRODUCT_DOT2, LNRNN_WEIGHT_BF16}};
static const product_loop *const LOOPS[] = {&dot2_product};

static const void *rows_of(const kind *of, const product_job *job)
{
    static const uint32_t *rounded[MOST_ROWS];
    (void)of;
    for (int i = 0; i < MOST_ROWS; i++)
        rounded[i] = scratch + (size_t)i * job->words;
    bf16_round_rows(job, MOST_ROWS, row, scratch);
    return rounded;
}

static v32 defined(const kind *of, const product_job *job, const void *rows, size_t i, size_t o)
{
    v32 sum = job->add == LNRNN_ADD_ON ? v32_load(&before[i][o]) : v32_zero();
    (void)of;
    for (size_t j = 0; j < job->words; j++) {
        uint32_t words[V32_LANES];
        for (size_t l = 0; l < V32_LANES; l++) {
            const uint32_t even = float_to_bf16(w[o + l][2 * j]);
            const uint32_t odd = 2 * j + 1 < job->k ? float_to_bf16(w[o + l][2 * j + 1]) : 0;
            words[l] = even | odd << 16;
        }
        sum = v32_dot2(sum, ((const uint32_t *const *)rows)[i][j], words);
    }
    return sum;
}

static void product(const kind *of, const lnrnn_matmul *m, size_t rows)
{
    (void)of;
    matmul_bf16(m, rows, row, c[0], STRIDE);
}
#endif

#ifdef LNRNN_PART_INT8
static const kind KINDS[] = {{"i8", PRODUCT_I8, LNRNN_WEIGHT_I8},
                             {"i8_together", PRODUCT_I8, LNRNN_WEIGHT_I8, .lines = 1 + INT8_TILES_OF_LINES},
                             {"i8a8", PRODUCT_I8A8, LNRNN_WEIGHT_I8A8}};
static const product_loop *const LOOPS[] = {&i8_product, &i8_product, &i8a8_product};

static const void *rows_of(const kind *of, const product_job *job)
{
    static quantized_rows quantized;
    const lnrnn_matmul m = {.dtype = of->dtype, .k = job->k, .scratch = scratch};
    int8_quantize_rows(&m, MOST_ROWS, row, &quantized);
    if (INT8_TILES_OF_LINES && !of->lines)
        quantized.passes = quantized.parts;
    return &quantized;
}

static v32 defined(const kind *of, const product_job *job, const void *rows, size_t i, size_t o)
{
    const quantized_rows *const q = rows;
    const uint32_t *const *const part = q->part + i * (size_t)q->parts;
    int32_t sum[V32_LANES] = {0};
    for (size_t l = 0; l < V32_LANES; l++)
        for (size_t j = 0; j < job->k; j++) {
            const float inverse = job->scale[o + l] > 0 ? 1 / job->scale[o + l] : 0;
            const uint8_t first = ((const uint8_t *)part[0])[j],
                          second = ((const uint8_t *)part[q->parts - 1])[j];
            const int input = q->parts == 2 ? 128 * first + second - 8192
                              : S8_OFFSET   ? first - S8_OFFSET
                                            : (int8_t)first;
            sum[l] += (input + q->zero[i]) * (int)lrintf(w[o + l][j] * inverse);
        }
    const v32 scale = v32_load(job->scale + o) * v32_set1(q->scale[i]), was = v32_load(&before[i][o]);
    return v32_fma(vi32_to_v32(vi32_load(sum)), scale, job->add ? was : v32_zero());
}

static void product(const kind *of, const lnrnn_matmul *m, size_t rows)
{
    (void)of;
    matmul_int8(m, rows, row, c[0], STRIDE);
}
#endif

/* Computes the definition of outputs 0 .. job->n - 1 of the first rows. */
static void define(const kind *of, const product_job *job, const void *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t o = 0; o < job->n; o += V32_LANES)
            v32_store(&definition[i][o], defined(of, job, rows, i, o));
}

/* Compares c with the definition for outputs from .. end - 1 of the rows. Elsewhere c must have its old values. */
static void compare(const char *shape, const kind *of, const product_job *job, size_t count, size_t from,
                    size_t end)
{
    for (size_t i = 0; i < MOST_ROWS; i++) {
        float wanted[STRIDE];
        memcpy(wanted, before[i], sizeof wanted);
        if (i < count && from < end)
            memcpy(wanted + from, definition[i] + from, (end - from) * sizeof *wanted);
        for (size_t o = 0; o < STRIDE; o++)
            if (memcmp(&wanted[o], &c[i][o], sizeof *wanted) && wrong++ < 20)
                printf("%s %s, %zu rows, k %zu, n %zu, add %d, prefetch %d: output %zu of row %zu is %a, not "
                       "%a\n",
                       of->name, shape, count, job->k, job->n, job->add, job->prefetch, o, i, (double)c[i][o],
                       (double)wanted[o]);
    }
    memcpy(c, before, sizeof c);
}

static const lnrnn_caches CACHES[] = {{.l1 = 256, .l2 = 1 << 12, .l3 = 1 << 13},
                                      {.l1 = 1 << 14, .l2 = 1 << 14, .l3 = 1 << 16},
                                      {.l1 = 1 << 15, .l2 = 1 << 20, .l3 = 1 << 24}};

static lnrnn_matmul packed_weights(const kind *of, size_t n, size_t k)
{
    pack_weights(of->dtype, n, k, w[0], MOST_K, 1, packed);
    return (lnrnn_matmul){.dtype = of->dtype,
                          .n = n,
                          .k = k,
                          .w = packed,
                          .p1 = panel_count(n),
                          .caches = CACHES,
                          .scratch = scratch};
}

/* Tests the tiles of a product in every shape. */
static void tiles(const kind *of, const product_loop *loop, size_t k, int add)
{
    for (int vecs = 1; vecs <= 4 * NR_VECS; vecs++) {
        lnrnn_matmul m = packed_weights(of, (size_t)vecs * V32_LANES, k);
        m.add = add;
        product_job job = product_job_of(&m, NULL, c[0], STRIDE);
        const void *const rows = rows_of(of, &job);
        job.a = rows, job.columns = MOST_ROWS, job.pace = NR;
        define(of, &job, rows, loop->tile_rows > loop->few_rows ? loop->tile_rows : loop->few_rows);
        const int first = (int)(panel_start(m.n, 1) / V32_LANES);
        for (int prefetch = PREFETCH_NONE; prefetch <= PREFETCH_ROWS; prefetch++) {
            job.prefetch = prefetch == PREFETCH_WEIGHTS;
            if (prefetch != PREFETCH_ROWS
                && (of->number != PRODUCT_I8 || panel_count(m.n) <= INT8_ROW_PANELS)) {
                loop->row(prefetch, vecs, &job, 0);
                compare("row", of, &job, 1, 0, m.n);
            }
            const size_t each = of->lines ? of->lines : 1;
            for (size_t height = each; vecs <= NR_VECS && height <= loop->tile_rows; height += each) {
                loop->panel(prefetch, (int)height, vecs, &job, 0, 0);
                compare("panel", of, &job, height / each, 0, m.n);
            }
            for (size_t height = 2; panel_count(m.n) == 2 && height <= loop->few_rows; height += each) {
                loop->pair((int)height, first, vecs - first, &job, 0);
                compare("pair", of, &job, height / each, 0, m.n);
            }
        }
    }
}

/* Tests whole products of some panels, for small and for large caches. */
static void loops(const kind *of, size_t n, size_t k, int add)
{
    lnrnn_matmul whole = packed_weights(of, n, k);
    whole.add = add;
    const product_job job = product_job_of(&whole, NULL, c[0], STRIDE);
    define(of, &job, rows_of(of, &job), MOST_ROWS);
    for (size_t rows = 1; rows <= MOST_ROWS; rows += rows < 10 ? 1 : 9)
        for (int way = 0; way < 6; way++) {
            lnrnn_matmul m = whole;
            m.caches = &CACHES[way % 3], m.from_end = way / 3;
            m.p0 = way == 1 && m.p1 > 2, m.p1 -= way == 4 && m.p1 > 2;
            product(of, &m, rows);
            compare("product", of, &job, rows, panel_start(n, m.p0), panel_start(n, m.p1));
        }
}

#ifdef LNRNN_PRODUCT_BLOCKS_H
/* Tests products with blocks. Absent blocks are zeros in w, and the definition multiplies by them. Some bands
 * have no block. */
static void blocks(const kind *of, size_t n, size_t k, size_t window, int add)
{
    static float together[BLOCK_N * MOST_K];
    size_t count = 0;
    for (size_t o = 0; o < n; o++)
        for (size_t j = 0; j < k; j++) {
            const size_t band = o / LNRNN_BLOCK_OUTPUTS, column = j / LNRNN_BLOCK_INPUTS;
            const int kept = band % 5 != 3 && (band * band + 3 * column + band * column) % 7 < band % 4 + 1;
            w[o][j] = together[o * k + j] = kept ? number() : 0;
            count += kept && o % LNRNN_BLOCK_OUTPUTS == 0 && j % LNRNN_BLOCK_INPUTS == 0;
        }
    pack_blocks(of->dtype, n, k, count, window, together, packed);
    const block_matrix b = block_matrix_of(of->dtype, n, count, packed);
    const product_job job = {.k = k, .words = k, .n = n, .add = add, .scale = b.scale};
    define(of, &job, rows_of(of, &job), MOST_ROWS);
    for (size_t rows = 1; rows <= MOST_ROWS; rows += rows < 10 ? 1 : 9)
        for (int way = 0; way < 6; way++) {
            lnrnn_matmul m = {.dtype = of->dtype, .n = n, .k = k, .w = packed, .blocks = count, .add = add};
            m.caches = &CACHES[way % 3], m.from_end = way / 3, m.scratch = scratch;
            m.p0 = way == 1 ? window / LNRNN_GROUP_OUTPUTS : 0;
            m.p1 = way == 4 ? window / LNRNN_GROUP_OUTPUTS : block_groups(n);
            matmul_blocks(&m, rows, row, c[0], STRIDE);
            compare("blocks", of, &job, rows, way == 1 ? window : 0, way == 4 ? window : n);
        }
}
#endif

int main(void)
{
    for (int i = 0; i < MOST_ROWS; i++) {
        row[i] = a[i];
        for (int j = 0; j < MOST_K; j++)
            columns[j][i] = a[i][j] = number();
    }
    for (int o = 0; o < MOST_N; o++)
        for (int j = 0; j < MOST_K; j++)
            w[o][j] = number();
    for (int i = 0; i < MOST_ROWS; i++)
        for (int o = 0; o < STRIDE; o++)
            before[i][o] = c[i][o] = number();
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        for (int add = LNRNN_ADD_NOT;
             add <= (KINDS[i].number == PRODUCT_F32_COLUMNS ? LNRNN_ADD_AFTER : LNRNN_ADD_ON); add++) {
            for (size_t k = 1; k <= MOST_K; k += k < 7 ? 3 : 63) /* each remainder of 4 inputs to a word */
                tiles(&KINDS[i], LOOPS[i], k, add);
            for (size_t vecs = 1; vecs <= 9 * NR_VECS; vecs += 5)
                loops(&KINDS[i], vecs * V32_LANES, MOST_K - 1, add);
        }
#ifdef LNRNN_PRODUCT_BLOCKS_H
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        for (int add = LNRNN_ADD_NOT; add <= LNRNN_ADD_ON && KINDS[i].number != PRODUCT_F32_COLUMNS; add++) {
            blocks(&KINDS[i], BLOCK_N, 68, 64, add);
            blocks(&KINDS[i], BLOCK_N, 36, LNRNN_MOST_WINDOW, add);
        }
#endif
    if (wrong > 20)
        printf("and %d more\n", wrong - 20);
    puts("done");
    return wrong != 0;
}
