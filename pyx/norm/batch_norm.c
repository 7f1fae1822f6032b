/* Batch norm over threads. x is (N, C, L); what sums over samples goes in blocks of samples and strips of channels, what
 * goes through x once in rows (L is 1) or planes. */
#include <string.h>

#include "lnrnn/kernels/table.h"
#include "norm/tasks.h"

typedef struct {
    const lnrnn_batch *b;
    const lnrnn_norm *kernels;
    size_t size, real; /* bytes of a value in memory, and in the arithmetic */
    size_t samples, blocks, channels, strips, rows;
    const char *gy;
    char *out, *near, *at, *scale, *shift, *slope;
    double *sums;    /* (blocks, 8, C): four sums, and the kernel's own */
    int past, again; /* past the caches; the second pass over what the caches may hold of x */
} batch_job;

/* How samples are blocked where they are summed: at most 16 blocks, for each has sums of its own, and these should be few
 * beside the values. */
static size_t samples_to_block(const lnrnn_batch *b)
{
    size_t some = lnrnn_parts(b->N, 16);
    const size_t for_values = b->L > 1 ? lnrnn_parts(512, b->L) : lnrnn_clamp(b->N / 4, 64, 128);
    const size_t for_task = lnrnn_parts(LNRNN_TASK, b->C * b->L);
    some = some < for_values ? for_values : some;
    some = some < for_task ? for_task : some;
    return lnrnn_min(some, b->N);
}

enum {
    ROWS = 8
}; /* of C doubles: near, at, scale, shift, slope, two that nobody asked for, and the channels' scales */

size_t lnrnn_batch_work(const lnrnn_batch *b, int sums)
{
    return b->C * (ROWS + (sums ? 8 * lnrnn_parts(b->N, samples_to_block(b)) : 0));
}

static batch_job job_of(const lnrnn_batch *b)
{
    batch_job j = {.b = b,
                   .kernels = &lnrnn_active()->norm[b->dtype],
                   .size = lnrnn_size(b->dtype),
                   .real = lnrnn_real_size(b->dtype)};
    char *work = (char *)b->work;
    const size_t row = b->C * sizeof(double);
    j.near = work, j.at = work + row, j.scale = work + 2 * row, j.shift = work + 3 * row,
    j.slope = work + 4 * row;
    j.sums = b->work + ROWS * b->C;
    return j;
}

static void sums_task(void *ctx, size_t index, int worker)
{
    const batch_job *j = ctx;
    const lnrnn_batch *b = j->b;
    const size_t C = b->C, block = index / j->strips, s = block * j->samples,
                 m = lnrnn_min(j->samples, b->N - s);
    const size_t c = index % j->strips * j->channels, channels = lnrnn_min(j->channels, C - c);
    const size_t at = (s * C + c) * b->L * j->size;
    double *sums = j->sums + block * 8 * C + c;
    char *part = (char *)(j->sums + block * 8 * C + 4 * C) + 4 * c * j->real;
    (void)worker;
    for (int k = 0; k < (j->gy ? 4 : 2); k++)
        memset(sums + (size_t)k * C, 0, channels * sizeof *sums);
    memset(part, 0, 4 * channels * j->real);
    j->kernels->batch_sums(m, C, channels, b->L, (const char *)b->x + at, j->gy ? j->gy + at : NULL,
                           j->near + c * j->real, sums, part);
}

/* Values that a pass reads. */
static size_t values(const batch_job *j) { return j->b->N * j->b->C * j->b->L * (j->gy ? 2 : 1); }

/* Sums over all of x, into the first block's. */
static void sums_of_all(batch_job *j)
{
    const size_t C = j->b->C, n = (j->gy ? 4 : 2) * C;
    lnrnn_parallel(j->blocks * j->strips, lnrnn_threads_for(values(j), j->b->threads), sums_task, j);
    for (size_t k = 1; k < j->blocks; k++)
        for (size_t i = 0; i < n; i++)
            j->sums[i] += j->sums[k * 8 * C + i];
}

/* -> mean, biased var (C) of the batch; the sums stay in the first block of j->sums. */
static void batch_sums(batch_job *j, double *mean, double *var)
{
    const lnrnn_batch *b = j->b;
    const double count = (double)b->N * (double)b->L;
    j->samples = samples_to_block(b);
    j->blocks = lnrnn_parts(b->N, j->samples);
    /* Strips are wide enough for a run of memory, and of planes no wider than makes a task. */
    j->channels = b->L == 1 ? 2048 : LNRNN_TASK / (j->samples * b->L);
    const size_t least = lnrnn_parts(1024, b->L);
    j->channels = j->channels < least ? least : j->channels;
    j->strips = lnrnn_parts(b->C, j->channels);
    j->again = b->N * b->C * b->L * j->size < lnrnn_nontemporal_from(lnrnn_get_caches());
    j->kernels->batch_probe(b->N, b->C, b->L, b->x, j->near);
    sums_of_all(j);
    if (j->kernels->batch_moments(b->C, count, j->sums, j->near, mean, var)) {
        sums_of_all(j);
        j->kernels->batch_moments(b->C, count, j->sums, j->near, mean, var);
    }
}

/* A block of rows (L is 1) or of planes. After a pass over the same, the last first: the caches still have some of what was
 * read last. Not out of cache, where memory is faster forwards. */
static void rows_task(void *ctx, size_t index, int worker)
{
    const batch_job *j = ctx;
    const lnrnn_batch *b = j->b;
    const int by_row = b->L > 1;
    const size_t C = b->C, n = by_row ? b->L : C, all = by_row ? b->N * C : b->N;
    size_t p = (j->again ? lnrnn_parts(all, j->rows) - 1 - index : index) * j->rows;
    const size_t end = lnrnn_min(all, p + j->rows);
    (void)worker;
    while (p < end) { /* by planes: up to the end of a sample */
        const size_t c = by_row ? p % C : 0, m = by_row ? lnrnn_min(C - c, end - p) : end - p;
        const size_t at = p * n * j->size, par = c * j->real;
        const char *x = (const char *)b->x + at;
        if (j->gy)
            (by_row ? j->kernels->gx_planes
                    : j->kernels->gx_columns)(m, n, j->gy + at, x, (ptrdiff_t)n, j->at + par, j->scale + par,
                                              j->shift + par, j->slope + par, j->out + at);
        else
            j->kernels->batch_affine(m, n, x, j->at + par, j->scale + par, j->shift + par, j->out + at,
                                     by_row, j->past);
        p += m;
    }
}

static void batch_rows(batch_job *j)
{
    const lnrnn_batch *b = j->b;
    const size_t rows = b->L > 1 ? b->N * b->C : b->N;
    j->rows = lnrnn_rows_to_task(rows, b->L > 1 ? b->L : b->C);
    lnrnn_parallel(lnrnn_parts(rows, j->rows), lnrnn_threads_for(values(j), b->threads), rows_task, j);
}

/* Mean and var of the batch. If squares of a channel left the range of the arithmetic (norm.h), j->out gets x with such
 * channels multiplied by powers of two, b->x becomes j->out, whose mean and var these are, and the powers (C) are returned;
 * else NULL. float16 cannot hold every scaled channel, but has no values whose squares leave the range of float. */
static double *training_sums(batch_job *j, lnrnn_batch *b)
{
    double *scales = b->work + 7 * b->C;
    const char *gy = j->gy;
    batch_sums(j, b->mean, b->var);
    if (!j->kernels->batch_scales(b->C, b->mean, b->var, b->eps, scales, j->at, j->scale, j->shift))
        return NULL;
    j->gy = NULL;
    batch_rows(j);
    j->gy = gy, b->x = j->out;
    batch_sums(j, b->mean, b->var);
    return scales;
}

void lnrnn_batch_norm(const lnrnn_batch *given, void *y, int training)
{
    lnrnn_batch b = *given;
    batch_job j = job_of(&b);
    j.out = y;
    j.past = lnrnn_nontemporal(b.x, y, b.N * b.C * b.L * j.size);
    const double *scales = training ? training_sums(&j, &b) : NULL;
    j.kernels->fold(b.C, b.mean, b.var, 1, b.gain, b.bias, b.eps, scales, j.at, j.scale, j.shift);
    j.past = j.past && b.x != y;
    batch_rows(&j);
    for (size_t c = 0; scales && c < b.C; c++) /* the square of a scale may be beyond double precision */
        b.mean[c] /= scales[c], b.var[c] = b.var[c] / scales[c] / scales[c];
}

void lnrnn_batch_norm_backward(const lnrnn_batch *given, const void *gy, void *gx, double *ggain,
                               double *gbias, int training)
{
    lnrnn_batch b = *given;
    batch_job j = job_of(&b);
    const double *scales = NULL;
    j.gy = gy, j.out = gx;
    if (training)
        scales = training_sums(&j, &b);
    else /* the batch's own statistics are not asked for */
        batch_sums(&j, b.work + 5 * b.C, b.work + 6 * b.C);
    j.kernels->batch_slopes(b.C, (double)b.N * (double)b.L, j.sums, j.near, b.mean, b.var, b.gain, b.eps,
                            scales, training, j.at, j.scale, j.shift, j.slope, ggain, gbias);
    batch_rows(&j);
}
