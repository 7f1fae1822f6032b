/* Layer norm and RMS norm over threads. */
#include <string.h>

#include "lnrnn/kernels/table.h"
#include "norm/tasks.h"

typedef struct {
    const lnrnn_norm *kernels;
    size_t rows, n, block, size;
    const char *x, *gy;
    const void *gain, *bias;
    ptrdiff_t xs, ys;
    double eps;
    char *y;
    int centred, past;
    double *work;
} layer_norm_job;

static void layer_norm_task(void *ctx, size_t index, int worker)
{
    const layer_norm_job *j = ctx;
    const size_t r = index * j->block, m = lnrnn_min(j->block, j->rows - r);
    const ptrdiff_t at = (ptrdiff_t)(r * j->size);
    (void)worker;
    j->kernels->layer_norm(m, j->n, j->x + at * j->xs, j->xs, j->gain, j->bias, j->eps, j->y + at * j->ys,
                           j->ys, j->centred, j->past);
}

/* Rows to a task: whole groups of four, as the kernel takes them, unless few rows are very wide. */
static size_t forward_block(size_t rows, size_t n)
{
    const size_t some = lnrnn_rows_to_task(rows, n);
    return n > LNRNN_TASK ? some : (some + 3) / 4 * 4;
}

void lnrnn_layer_norm(int dtype, size_t rows, size_t n, const void *x, ptrdiff_t xs, const void *gain,
                      const void *bias, double eps, void *y, ptrdiff_t ys, int centred, int threads)
{
    const size_t size = lnrnn_size(dtype);
    layer_norm_job j = {
        .kernels = &lnrnn_active()->norm[dtype],
        .rows = rows,
        .n = n,
        .block = forward_block(rows, n),
        .size = size,
        .x = x,
        .gain = gain,
        .bias = bias,
        .xs = xs,
        .ys = ys,
        .eps = eps,
        .y = y,
        .centred = centred,
        .past = lnrnn_nontemporal(x, y, rows * n * size),
    };
    lnrnn_parallel(lnrnn_parts(rows, j.block), lnrnn_threads_for(rows * n, threads), layer_norm_task, &j);
}

/* Rows to a task of the backward pass: each has sums of its own, which should be few beside the values, and in number. */
static size_t backward_block(size_t rows, size_t n)
{
    const size_t block = lnrnn_rows_to_task(rows, n), least = lnrnn_parts(rows, 64);
    const size_t some = block < least ? least : block, few = lnrnn_clamp(rows / 8 / 4 * 4, 32, 64);
    return some < few ? few : some;
}

size_t lnrnn_layer_norm_work(size_t rows, size_t n)
{
    return lnrnn_parts(rows, backward_block(rows, n)) * 4 * n;
}

static void layer_norm_backward_task(void *ctx, size_t index, int worker)
{
    const layer_norm_job *j = ctx;
    const size_t n = j->n, r = index * j->block, m = lnrnn_min(j->block, j->rows - r), at = r * n * j->size;
    double *part = j->work + index * 4 * n; /* ggain, gbias, and the kernel's own 2n */
    (void)worker;
    memset(part, 0, 4 * n * sizeof *part);
    j->kernels->layer_norm_backward(m, n, j->gy + at, (ptrdiff_t)n, j->x + at, (ptrdiff_t)n, j->gain, j->eps,
                                    j->y + at, (ptrdiff_t)n, part, part + n, part + 2 * n);
}

void lnrnn_layer_norm_backward(int dtype, size_t rows, size_t n, const void *gy, const void *x,
                               const void *gain, double eps, void *gx, double *ggain, double *gbias,
                               double *work, int threads)
{
    layer_norm_job j = {
        .kernels = &lnrnn_active()->norm[dtype],
        .rows = rows,
        .n = n,
        .block = backward_block(rows, n),
        .size = lnrnn_size(dtype),
        .x = x,
        .gy = gy,
        .gain = gain,
        .eps = eps,
        .y = gx,
        .work = work,
    };
    const size_t tasks = lnrnn_parts(rows, j.block);
    lnrnn_parallel(tasks, lnrnn_threads_for(2 * rows * n, threads), layer_norm_backward_task, &j);
    memset(ggain, 0, n * sizeof *ggain);
    memset(gbias, 0, n * sizeof *gbias);
    for (size_t t = 0; t < tasks; t++)
        for (size_t i = 0; i < n; i++) {
            ggain[i] += work[t * 4 * n + i];
            gbias[i] += work[t * 4 * n + n + i];
        }
}
