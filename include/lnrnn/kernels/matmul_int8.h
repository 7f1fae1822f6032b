/* Rows times packed weights of int8. */
#ifndef LNRNN_MATMUL_INT8_H
#define LNRNN_MATMUL_INT8_H

#include "lnrnn/kernels/matmul_tile.h"

/* A row of activations: a = scale * (128 high + low - 8192), high and low of 7 bits each and four to a word:
 * 14 bits in all, so that accuracy is lost to the 8 bits of the weights. Sums of integers are exact: any
 * order gives the same bits. */
typedef struct {
    const uint32_t *high, *low;
    float scale;
} quantized_row;

/* a (rows) -> c (rows, the tile's outputs), as float_tile. */
LNRNN_INLINE void i8_tile(int rows, int wide, int tails, int tail, int prefetch, const mm_job *job,
                          const quantized_row *a, size_t o, float *c, ptrdiff_t cs)
{
    const int vecs = wide * NR_VECS + tails * tail;
    vi32 high[MM_I8_ROWS][MM_MOST_VECS], low[MM_I8_ROWS][MM_MOST_VECS];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++)
            high[i][v] = low[i][v] = vi32_zero();
    for (size_t j = 0; j < job->words; j++) {
        const uint32_t *w[MM_MOST_VECS];
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++) {
            w[v] = mm_at(job, o, wide, tail, v, j);
            if (prefetch == MM_PREFETCH_WEIGHTS)
                v32_prefetch((const float *)w[v] + (rows == 1 ? LNRNN_PREFETCH_ROW : LNRNN_PREFETCH_TILE));
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
#pragma GCC unroll 16
            for (int v = 0; v < vecs; v++)
                high[i][v] = vi32_dot4(high[i][v], a[i].high[j], w[v]);
#pragma GCC unroll 16
            for (int v = 0; v < vecs; v++)
                low[i][v] = vi32_dot4(low[i][v], a[i].low[j], w[v]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++) {
            float *to = c + i * cs + v * V32_LANES;
            const size_t at = o + (size_t)v * V32_LANES;
            /* high - 64 * sums is what the signed high parts would have summed to: small, and exact as a
             * float */
            const v32 sum =
                v32_fma(vi32_less_64(high[i][v], job->sums + at), v32_set1(128.0f), vi32_to_v32(low[i][v]));
            const v32 scale = v32_mul(v32_load(job->scale + at), v32_set1(a[i].scale));
            v32_store(to, job->add ? v32_fma(sum, scale, v32_load(to)) : v32_mul(sum, scale));
        }
}

/* x (k) -> its two parts in scratch, k bytes each, filled up to whole vectors. A row with a NaN or an
 * infinity becomes NaN, for it has no scale. */
static quantized_row i8_quantize(size_t k, const float *x, uint32_t *scratch)
{
    const size_t words = (k + V32_LANES - 1) / V32_LANES * V32_LANES / 4 + 1;
    uint8_t *high = (uint8_t *)scratch, *low = (uint8_t *)(scratch + words);
    v32 most = v32_zero(), check = v32_zero();
    for (size_t i = 0; i < k; i += V32_LANES) {
        const v32 v = v32_load_n(x + i, k - i < V32_LANES ? k - i : V32_LANES);
        most = v32_max(v32_abs(v), most);
        check = v32_fma(v, v32_zero(), check);
    }
    float lanes[V32_LANES], top = 0;
    v32_store(lanes, most);
    for (int i = 0; i < V32_LANES; i++)
        top = lanes[i] > top ? lanes[i] : top;
    const float scale = top < 0x1p-100f ? 0 : top / 8191; /* 1 / scale must be finite */
    const v32 inverse = v32_set1(scale > 0 ? 1 / scale : 0);
    if (V32_LANES < 4) /* what fills the last word up is read, though its weights are 0 */
        scratch[k / 4] = scratch[words + k / 4] = 0;
    for (size_t i = 0; i < k; i += V32_LANES) {
        const v32 v = v32_load_n(x + i, k - i < V32_LANES ? k - i : V32_LANES);
        const v32 u = v32_add(v32_round(v32_mul(v, inverse)), v32_set1(8192.0f));
        /* floor(u / 128): u is whole, so nothing lies within 1/256 of a tie */
        const v32 h = v32_round(v32_mul(v32_sub(u, v32_set1(63.5f)), v32_set1(1.0f / 128)));
        v32_store_u8(high + i, h);
        v32_store_u8(low + i, v32_sub(u, v32_mul(h, v32_set1(128.0f))));
    }
    return (quantized_row){scratch, scratch + words, v32_sum(check) == 0 ? scale : NAN};
}

#define TILE_ROWS MM_I8_ROWS
#define MAY_PREFETCH_ROWS 1
#define activations quantized_row
#define LNRNN_WEIGHTS i8
#include "lnrnn/kernels/matmul_walk.h"
#undef LNRNN_WEIGHTS
#undef TILE_ROWS
#undef MAY_PREFETCH_ROWS
#undef activations

/* As matmul_float, of int8 weights. m->scratch: mm_scratch(dtype, k) words. */
static void matmul_int8(const lnrnn_matmul *m, size_t rows, const float *const *a, float *c, ptrdiff_t cs)
{
    mm_job job = mm_job_of(m);
    job.scale = (const float *)(m->w + mm_width(m->n) * job.words);
    job.sums = (const int32_t *)(job.scale + mm_width(m->n));
    for (size_t r = 0; r < rows; r += MM_I8_ROWS) { /* rows outside: each is quantized once */
        quantized_row quantized[MM_I8_ROWS];
        const size_t height = rows - r < MM_I8_ROWS ? rows - r : MM_I8_ROWS;
        for (size_t i = 0; i < height; i++)
            quantized[i] =
                i8_quantize(m->k, a[r + i], m->scratch + i * (mm_scratch(m->dtype, m->k) / MM_I8_ROWS));
        i8_walk(&job, height, quantized, m->n, m->p0, m->p1, c + (ptrdiff_t)r * cs, cs);
    }
}

#endif
