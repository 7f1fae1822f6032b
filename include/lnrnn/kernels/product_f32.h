/* Products with float32 weights, or with bfloat16 weights that are converted to float32. */
#ifndef LNRNN_PRODUCT_F32_H
#define LNRNN_PRODUCT_F32_H

#include "lnrnn/kernels/panel_loop.h"
#ifdef LNRNN_AHEAD
#include "lnrnn/kernels/ahead.h"
#endif

/* Returns input j of row i in all lanes of a vector. */
LNRNN_INLINE v32 f32_input(const int product, const product_job *job, const void *a, int i, size_t j)
{
    return v32_set1(product == PRODUCT_F32_COLUMNS ? ((const float *)a)[(ptrdiff_t)j * job->columns + i]
                                                   : ((const float *const *)a)[i][j]);
}

/* Adds to acc (rows, vecs) the products of the words j of the rows a with the weights at output o. A 32-bit
 * word of bfloat16 has the weights of two inputs. */
LNRNN_INLINE void f32_word(const int product, const tile_shape s, const product_job *job, const void *a,
                           size_t o, size_t j, v32 (*acc)[TILE_MOST_VECS])
{
    const int vecs = tile_vecs(s), pairs = product == PRODUCT_BF16;
    if (s.prefetch == PREFETCH_ROWS && j % LINE_WORDS == 0)
        LNRNN_FOR_EACH (i, s.rows) {
            const float *const next = ((const float *const *)a)[s.rows + i];
            v32_prefetch(next + (pairs ? 2 * j : j));
            if (pairs)
                v32_prefetch(next + 2 * j + LINE_WORDS);
        }
    if (product == PRODUCT_F32_COLUMNS) /* prefetch the next tile's inputs */
        v32_prefetch((const float *)a + (ptrdiff_t)j * job->columns + s.rows);
    v32 w[TILE_MOST_VECS], odd[TILE_MOST_VECS];
    LNRNN_FOR_EACH (v, vecs) {
        const uint32_t *const p = tile_weights(s, job, o, v, j);
        w[v] = pairs ? v32_bf16_pair(p, &odd[v]) : v32_load((const float *)p);
#ifdef LNRNN_KEEPS_WORDS /* a Zen 4 loads one vector in the time of one multiply-add */
        if (s.rows > 1 && !pairs)
            LNRNN_LOADED(w[v]);
#endif
        tile_prefetch(s, job, p, v, j, 1);
    }
    LNRNN_FOR_EACH (i, s.rows)
        LNRNN_FOR_EACH (v, vecs)
            acc[i][v] = v32_fma(f32_input(product, job, a, i, pairs ? 2 * j : j), w[v], acc[i][v]);
    if (pairs)
        LNRNN_FOR_EACH (i, s.rows)
            LNRNN_FOR_EACH (v, vecs)
                acc[i][v] = v32_fma(f32_input(product, job, a, i, 2 * j + 1), odd[v], acc[i][v]);
}

LNRNN_INLINE void f32_sums(const int product, const tile_shape s, const product_job *job, const void *a,
                           size_t o, size_t first, size_t end, v32 (*acc)[TILE_MOST_VECS])
{
#ifdef LNRNN_ISA_WASM128
    /* Four words at a time. No other loop may stand before the stores of the sums: V8 in Node 20 would load
     * all weights first, and move them to memory. LNRNN_ANEW makes offsets constants of the loads. */
    if (s.rows == 1 && product == PRODUCT_F32) {
        for (; (end - first) % 4; first++)
            f32_word(product, s, job, a, o, first, acc);
        const float *x = *(const float *const *)a + first, *w[4];
        LNRNN_FOR_EACH (p, s.whole + s.narrow)
            w[p] = (const float *)tile_weights(s, job, o, p * NR_VECS, first);
        for (; first < end; first += 4, x += 4) {
            LNRNN_ANEW(x);
            LNRNN_FOR_EACH (p, s.whole + s.narrow) {
                const int size = p < s.whole ? NR_VECS : s.vecs;
                LNRNN_ANEW(w[p]);
                LNRNN_FOR_EACH (i, 4 * size) {
                    v32 *const sum = &acc[0][p * NR_VECS + i % size];
                    *sum = v32_fma(v32_set1(x[i / size]), v32_load(w[p] + i * V32_LANES), *sum);
                }
                w[p] += 4 * size * V32_LANES;
            }
        }
        return;
    }
#endif
    for (size_t j = first; j < end; j++)
        f32_word(product, s, job, a, o, j, acc);
}

LNRNN_INLINE void f32_tile(const int product, const tile_shape s, const product_job *job, size_t r, size_t o)
{
    const int vecs = tile_vecs(s), pairs = product == PRODUCT_BF16;
    const size_t whole = pairs ? job->k / 2 : job->end;
    const void *const a = product == PRODUCT_F32_COLUMNS ? (const void *)((const float *)job->a + r)
                                                         : (const float *const *)job->a + r;
    float *const c = tile_outputs(job, r, o);
    ptrdiff_t cs = job->cs;
    v32 acc[MR][TILE_MOST_VECS];
    LNRNN_FOR_EACH (i, s.rows)
        LNRNN_FOR_EACH (v, vecs)
            acc[i][v] = job->add == LNRNN_ADD_ON ? v32_load(c + i * cs + v * V32_LANES) : v32_zero();
    /* The old sums in c, a weight gradient, may be in L3. Prefetch them now, because the loop below hides the
     * latency. */
    if (product == PRODUCT_F32_COLUMNS && s.rows >= MR - 1 && s.whole && job->add == LNRNN_ADD_AFTER)
        LNRNN_FOR_EACH (i, s.rows)
            LNRNN_FOR_EACH (v, vecs)
                v32_prefetch(c + i * cs + v * V32_LANES);
    f32_sums(product, s, job, a, o, pairs ? 0 : job->first, whole, acc);
    LNRNN_ANEW(cs);
    if (pairs && job->k % 2) /* the last input, which is alone in its 32-bit word */
        LNRNN_FOR_EACH (v, vecs) {
            v32 odd;
            const v32 w = v32_bf16_pair(tile_weights(s, job, o, v, whole), &odd);
            LNRNN_FOR_EACH (i, s.rows)
                acc[i][v] = v32_fma(f32_input(product, job, a, i, job->k - 1), w, acc[i][v]);
        }
    if (product == PRODUCT_F32_COLUMNS && job->add == LNRNN_ADD_AFTER)
        LNRNN_FOR_EACH (i, s.rows)
            LNRNN_FOR_EACH (v, vecs)
                acc[i][v] += v32_load(c + i * cs + v * V32_LANES);
    LNRNN_FOR_EACH (i, s.rows)
        LNRNN_FOR_EACH (v, vecs)
            v32_store(c + i * cs + v * V32_LANES, acc[i][v]);
}

LNRNN_PRODUCT(f32, PRODUCT_F32, MR, FEW_ROWS)
LNRNN_PRODUCT(bf16, PRODUCT_BF16, MR, 0)

/* a: `rows` pointers to (k) floats -> c (rows, packed_width(n)), row stride cs. For the outputs o of the
 * panels p0 .. p1 - 1, writes to c[i][o], or adds to it,
 *     sum_j a[i][j] w[o][j]
 * Outputs past n keep their value (LNRNN_ADD_ON) or become 0. */
static void matmul_f32(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c, ptrdiff_t cs)
{
    product_job job = product_job_of(m, a, c, cs);
#ifdef LNRNN_AHEAD
    if (m->ahead && (job.p0 = matmul_ahead(m, a[0], c)) == job.p1)
        return;
#endif
    panel_loop(m->dtype == LNRNN_WEIGHT_F32 ? &f32_product : &bf16_product, rows, &job);
}

static size_t matmul_f32_scratch(int dtype, size_t rows, size_t k)
{
    (void)dtype, (void)rows, (void)k;
    return 0;
}

#ifndef LNRNN_INFERENCE
LNRNN_PRODUCT(f32_columns, PRODUCT_F32_COLUMNS, MR, 0)

/* a (k, rows), row stride `as`: the activations, transposed. Computes the same as matmul_f32, with float32
 * weights only. Only this product permits LNRNN_ADD_AFTER. */
static void matmul_columns(const lnrnn_matmul *m, size_t rows, const float *a, ptrdiff_t as, float *c,
                           ptrdiff_t cs)
{
    product_job job = product_job_of(m, a, c, cs);
    job.columns = as;
    panel_loop(&f32_columns_product, rows, &job);
}
#endif

/* x: `rows` pointers to (n). Writes the transpose to inputs at .. at + rows - 1 of packed (n, k): w[i][at +
 * j] = x[j][i]. */
static void pack_rows(size_t n, size_t k, size_t at, size_t rows, const float *const *x, uint32_t *packed)
{
    for (size_t j = 0; j < rows; j++)
        pack_column(n, k, at + j, x[j], (float *)packed);
}

#endif
