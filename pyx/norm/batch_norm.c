/* Batch norm of x (N, C, L), on several threads. A task sums the statistics of one block of samples and one
 * strip of channels. A task that writes results has rows of C values if L is 1, else planes of L values. */
#include <string.h>

#include "lnrnn/kernels/table.h"
#include "norm/tasks.h"
#include "runtime/floats.h"

/* Arrays of C values at the beginning of the work memory. Coefficients have the type of the arithmetic. */
enum {
    PIVOT,
    MEAN,
    SCALE,
    SHIFT,
    SLOPE,
    UNUSED_MEAN, /* gradient in inference: the batch's statistics, computed but not used */
    UNUSED_VAR,
    SCALES, /* powers of two (training_sums) */
    WORK_ROWS
};

typedef struct {
    const lnrnn_batch *b;
    const lnrnn_norm *kernels;
    size_t size, real;                        /* sizes in bytes of a value in memory, and in the arithmetic */
    size_t samples, blocks, channels, strips; /* samples per block, blocks; channels per strip, strips */
    size_t rows;                              /* the number of rows or planes per task */
    const char *gy;
    char *out, *pivot;
    lnrnn_coefficients c;
    double *sums; /* (blocks, 8, C): four sums, and four partial sums of the kernel */
    int nontemporal;
    int reversed; /* begin with the values read last, which may be in the caches */
} batch_job;

/* Returns the number of samples per block. Each block has its own sums. To keep the sums few, there are at
 * most 16 blocks, all large. */
static size_t samples_to_block(const lnrnn_batch *b)
{
    size_t samples = lnrnn_ceil_div(b->N, 16);
    const size_t for_values = b->L > 1 ? lnrnn_ceil_div(512, b->L) : lnrnn_clamp(b->N / 4, 64, 128);
    const size_t for_task = lnrnn_ceil_div(LNRNN_TASK, b->C * b->L);
    samples = samples < for_values ? for_values : samples;
    samples = samples < for_task ? for_task : samples;
    return lnrnn_min(samples, b->N);
}

size_t lnrnn_batch_work(const lnrnn_batch *b, int sums)
{
    return b->C * (WORK_ROWS + (sums ? 8 * lnrnn_ceil_div(b->N, samples_to_block(b)) : 0));
}

static double *work_row(const lnrnn_batch *b, int row) { return b->work + (size_t)row * b->C; }

static batch_job job_of(const lnrnn_batch *b)
{
    return (batch_job){
        .b = b,
        .kernels = &lnrnn_active()->norm[b->dtype],
        .size = lnrnn_size(b->dtype),
        .real = lnrnn_real_size(b->dtype),
        .pivot = (char *)work_row(b, PIVOT),
        .c = {work_row(b, MEAN), work_row(b, SCALE), work_row(b, SHIFT), work_row(b, SLOPE)},
        .sums = work_row(b, WORK_ROWS),
    };
}

static lnrnn_channels channels_of(const lnrnn_batch *b, const double *scales)
{
    return (lnrnn_channels){
        .n = b->C,
        .mean = b->mean,
        .m2 = b->var,
        .count = 1,
        .gain = b->gain,
        .bias = b->bias,
        .eps = b->eps,
        .scales = scales,
    };
}

/* Computes the sums of a block of samples and a strip of channels. */
static void sums_task(void *ctx, size_t index, int worker)
{
    const batch_job *j = ctx;
    const lnrnn_batch *b = j->b;
    const size_t C = b->C, block = index / j->strips, sample = block * j->samples;
    const size_t c = index % j->strips * j->channels, channels = lnrnn_min(j->channels, C - c);
    const size_t offset = (sample * C + c) * b->L * j->size;
    double *const sums = j->sums + block * 8 * C;
    const lnrnn_batch_block sums_of = {
        .samples = lnrnn_min(j->samples, b->N - sample),
        .C = C,
        .channels = channels,
        .L = b->L,
        .x = (const char *)b->x + offset,
        .gy = j->gy ? j->gy + offset : NULL,
        .pivot = j->pivot + c * j->real,
        .sums = sums + c,
        .partial = (char *)(sums + 4 * C) + 4 * c * j->real,
    };
    (void)worker;
    for (size_t k = 0; k < (j->gy ? 4 : 2); k++)
        memset(sums_of.sums + k * C, 0, channels * sizeof *sums_of.sums);
    memset(sums_of.partial, 0, 4 * channels * j->real);
    j->kernels->batch_sums(&sums_of);
}

static size_t values(const batch_job *j) { return j->b->N * j->b->C * j->b->L * (j->gy ? 2 : 1); }

/* Computes the sums over all of x, and leaves them in the first block of j->sums. */
static void sums_of_all(batch_job *j)
{
    const size_t C = j->b->C, n = (j->gy ? 4 : 2) * C;
    lnrnn_parallel(j->blocks * j->strips, lnrnn_threads_for_elements(values(j), j->b->threads), sums_task, j);
    for (size_t k = 1; k < j->blocks; k++)
        for (size_t i = 0; i < n; i++)
            j->sums[i] += j->sums[k * 8 * C + i];
}

/* Writes mean, biased var (C) of the batch. The sums stay in the first block of j->sums. */
static void batch_sums(batch_job *j, double *mean, double *var)
{
    const lnrnn_batch *b = j->b;
    const double count = (double)b->N * (double)b->L;
    j->samples = samples_to_block(b);
    j->blocks = lnrnn_ceil_div(b->N, j->samples);
    /* If L is 1, strips are wide, so that reads are contiguous. Otherwise a strip and a block have at most
     * LNRNN_TASK values. */
    j->channels = b->L == 1 ? 2048 : LNRNN_TASK / (j->samples * b->L);
    const size_t least = lnrnn_ceil_div(1024, b->L);
    j->channels = j->channels < least ? least : j->channels;
    j->strips = lnrnn_ceil_div(b->C, j->channels);
    j->reversed = b->N * b->C * b->L * j->size < lnrnn_reverse_below(lnrnn_get_caches());
    j->kernels->batch_probe(b->N, b->C, b->L, b->x, j->pivot);
    sums_of_all(j);
    if (j->kernels->batch_moments(b->C, count, j->sums, j->pivot, mean, var)) {
        sums_of_all(j);
        j->kernels->batch_moments(b->C, count, j->sums, j->pivot, mean, var);
    }
}

static lnrnn_coefficients coefficients_from(const batch_job *j, size_t c)
{
    const size_t offset = c * j->real;
    return (lnrnn_coefficients){(char *)j->c.mean + offset, (char *)j->c.scale + offset,
                                (char *)j->c.shift + offset, (char *)j->c.slope + offset};
}

/* Computes a block of rows (L is 1) or of planes. If `reversed`, the last block comes first, because the
 * caches still hold the values that the previous pass read last. */
static void rows_task(void *ctx, size_t index, int worker)
{
    const batch_job *j = ctx;
    const lnrnn_batch *b = j->b;
    const int by_row = b->L > 1;
    const size_t C = b->C, n = by_row ? b->L : C, all = by_row ? b->N * C : b->N;
    size_t row = (j->reversed ? lnrnn_ceil_div(all, j->rows) - 1 - index : index) * j->rows;
    const size_t end = lnrnn_min(all, row + j->rows);
    (void)worker;
    while (row < end) { /* planes: an iteration stays within one sample */
        const size_t c = by_row ? row % C : 0, rows = by_row ? lnrnn_min(C - c, end - row) : end - row;
        const size_t offset = row * n * j->size;
        const char *x = (const char *)b->x + offset;
        const lnrnn_coefficients from = coefficients_from(j, c);
        if (!j->gy)
            j->kernels->batch_affine(rows, n, x, &from, j->out + offset, by_row, j->nontemporal);
        else if (by_row)
            j->kernels->gx_planes(rows, n, j->gy + offset, x, (ptrdiff_t)n, &from, j->out + offset);
        else
            j->kernels->gx_columns(rows, n, j->gy + offset, x, (ptrdiff_t)n, &from, j->out + offset);
        row += rows;
    }
}

static void batch_rows(batch_job *j)
{
    const lnrnn_batch *b = j->b;
    const size_t rows = b->L > 1 ? b->N * b->C : b->N;
    j->rows = lnrnn_rows_to_task(rows, b->L > 1 ? b->L : b->C);
    lnrnn_parallel(lnrnn_ceil_div(rows, j->rows), lnrnn_threads_for_elements(values(j), b->threads),
                   rows_task, j);
}

/* Computes mean and var of the batch. Usually returns NULL. If squares of a channel exceed the range of the
 * arithmetic (norm.h), multiplies these channels by powers of two. Then writes the products to j->out, sets
 * b->x to j->out, and returns the powers (C). In this case mean and var are the statistics of j->out. This
 * does not happen with float16, whose squares are within the range of float. */
static double *training_sums(batch_job *j, lnrnn_batch *b)
{
    double *scales = work_row(b, SCALES);
    const char *gy = j->gy;
    batch_sums(j, b->mean, b->var);
    const lnrnn_channels channels = channels_of(b, NULL);
    if (!j->kernels->batch_scales(&channels, scales, &j->c))
        return NULL;
    j->gy = NULL;
    batch_rows(j);
    j->gy = gy, b->x = j->out;
    batch_sums(j, b->mean, b->var);
    return scales;
}

void lnrnn_batch_norm(const lnrnn_batch *given, void *y, int training)
{
    LNRNN_DEFAULT_FLOATS;
    lnrnn_batch b = *given;
    batch_job j = job_of(&b);
    j.out = y;
    j.nontemporal = lnrnn_nontemporal(b.x, y, b.N * b.C * b.L * j.size);
    const double *scales = training ? training_sums(&j, &b) : NULL;
    const lnrnn_channels channels = channels_of(&b, scales);
    j.kernels->fold(&channels, &j.c);
    j.nontemporal = j.nontemporal && b.x != y; /* GCOVR_EXCL_BR_LINE: stores in place are not non-temporal */
    batch_rows(&j);
    for (size_t c = 0; scales && c < b.C; c++) /* divide twice, because the square of a scale may overflow */
        b.mean[c] /= scales[c], b.var[c] = b.var[c] / scales[c] / scales[c];
}

void lnrnn_batch_norm_backward(const lnrnn_batch *given, const void *gy, void *gx, double *ggain,
                               double *gbias, int training)
{
    LNRNN_DEFAULT_FLOATS;
    lnrnn_batch b = *given;
    batch_job j = job_of(&b);
    const double *scales = NULL;
    j.gy = gy, j.out = gx;
    if (training)
        scales = training_sums(&j, &b);
    else
        batch_sums(&j, work_row(&b, UNUSED_MEAN), work_row(&b, UNUSED_VAR));
    const lnrnn_channels channels = channels_of(&b, scales);
    j.kernels->batch_slopes(&channels, training ? 1 / ((double)b.N * (double)b.L) : 0, j.sums, j.pivot, &j.c,
                            ggain, gbias);
    batch_rows(&j);
}
