/* Layer norm and RMS norm, on several threads, which divide the rows. */
#include <string.h>

#include "lnrnn/kernels/table.h"
#include "norm/tasks.h"
#include "runtime/floats.h"

typedef struct {
    const lnrnn_norm *kernels;
    lnrnn_layer_norm_rows all;
    size_t block, size; /* the numbers of rows per task, and of bytes per value in memory */
} forward_job;

static void forward_task(void *ctx, size_t index, int worker)
{
    const forward_job *j = ctx;
    const size_t first = index * j->block;
    const ptrdiff_t bytes = (ptrdiff_t)(first * j->size); /* times a row stride: the offset of row `first` */
    lnrnn_layer_norm_rows rows = j->all;
    (void)worker;
    rows.rows = lnrnn_min(j->block, rows.rows - first);
    rows.x = (const char *)rows.x + bytes * rows.xs;
    rows.y = (char *)rows.y + bytes * rows.ys;
    j->kernels->layer_norm(&rows);
}

/* Returns the number of rows per task: a multiple of four, because the kernel computes four rows at a time,
 * unless rows are very wide. */
static size_t forward_block(size_t rows, size_t n)
{
    const size_t block = lnrnn_rows_to_task(rows, n);
    return n > LNRNN_TASK ? block : (block + 3) / 4 * 4;
}

void lnrnn_layer_norm(int dtype, size_t rows, size_t n, const void *x, ptrdiff_t xs, const void *gain,
                      const void *bias, double eps, void *y, ptrdiff_t ys, int centred, int threads)
{
    LNRNN_DEFAULT_FLOATS;
    const size_t size = lnrnn_size(dtype);
    forward_job j = {
        .kernels = &lnrnn_active()->norm[dtype],
        .all =
            {
                .rows = rows,
                .n = n,
                .x = x,
                .y = y,
                .xs = xs,
                .ys = ys,
                .gain = gain,
                .bias = bias,
                .eps = eps,
                .centred = centred,
                .nontemporal = lnrnn_nontemporal(x, y, rows * n * size),
            },
        .block = forward_block(rows, n),
        .size = size,
    };
    lnrnn_parallel(lnrnn_ceil_div(rows, j.block), lnrnn_threads_for_elements(rows * n, threads), forward_task,
                   &j);
}

/* --- backward ------------------------------------------------------------------------------------------- */

typedef struct {
    const lnrnn_norm *kernels;
    lnrnn_layer_norm_gradients all;
    size_t block, size;
    double *work; /* (tasks, 4, n): ggain and gbias of a task, and partial sums of the kernel */
} backward_job;

/* Returns the number of rows per task. Each task has its own sums. To keep the sums few, a task has at least
 * 32 rows, and there are at most about 64 tasks. */
static size_t backward_block(size_t rows, size_t n)
{
    const size_t block = lnrnn_rows_to_task(rows, n), for_number = lnrnn_ceil_div(rows, 64);
    const size_t for_values = lnrnn_clamp(rows / 8 / 4 * 4, 32, 64);
    const size_t larger = block < for_number ? for_number : block;
    return larger < for_values ? for_values : larger;
}

size_t lnrnn_layer_norm_work(size_t rows, size_t n)
{
    return lnrnn_ceil_div(rows, backward_block(rows, n)) * 4 * n;
}

static void backward_task(void *ctx, size_t index, int worker)
{
    const backward_job *j = ctx;
    lnrnn_layer_norm_gradients rows = j->all;
    const size_t n = rows.n, first = index * j->block, offset = first * n * j->size;
    double *sums = j->work + index * 4 * n;
    (void)worker;
    memset(sums, 0, 4 * n * sizeof *sums);
    rows.rows = lnrnn_min(j->block, rows.rows - first);
    rows.gy = (const char *)rows.gy + offset;
    rows.x = (const char *)rows.x + offset;
    rows.gx = (char *)rows.gx + offset;
    rows.ggain = sums, rows.gbias = sums + n, rows.partial = sums + 2 * n;
    j->kernels->layer_norm_backward(&rows);
}

void lnrnn_layer_norm_backward(int dtype, size_t rows, size_t n, const void *gy, const void *x,
                               const void *gain, double eps, void *gx, double *ggain, double *gbias,
                               double *work, int centred, int threads)
{
    LNRNN_DEFAULT_FLOATS;
    const ptrdiff_t stride = (ptrdiff_t)n;
    backward_job j = {
        .kernels = &lnrnn_active()->norm[dtype],
        .all =
            {
                .rows = rows,
                .n = n,
                .gy = gy,
                .x = x,
                .gx = gx,
                .gys = stride,
                .xs = stride,
                .gxs = stride,
                .gain = gain,
                .eps = eps,
                .centred = centred,
            },
        .block = backward_block(rows, n),
        .size = lnrnn_size(dtype),
        .work = work,
    };
    const size_t tasks = lnrnn_ceil_div(rows, j.block);
    lnrnn_parallel(tasks, lnrnn_threads_for_elements(2 * rows * n, threads), backward_task, &j);
    memset(ggain, 0, n * sizeof *ggain);
    memset(gbias, 0, n * sizeof *gbias);
    for (size_t t = 0; t < tasks; t++)
        for (size_t i = 0; i < n; i++) {
            ggain[i] += work[t * 4 * n + i];
            gbias[i] += work[t * 4 * n + n + i];
        }
}
