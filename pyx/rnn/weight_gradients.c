/* What backward.c leaves to be done once the gradients of W x and W h are known for all rows: each row's
 * gradient of x, and those of the weights, which are sums over the packed rows in their order, however many
 * threads there are. It is the same for every cell, and its tasks need no order. */
#include <string.h>

#include "rnn/backward.h"
#include "rnn/rows.h"
#include "runtime/parts.h"

/* Rows of a weight's gradient that a task has, at least and at most, and the most packed rows that it takes at once
 * (compare_builds.py, LSTM training). */
enum { GRADIENT_ROWS_LEAST = 64, GRADIENT_ROWS_MOST = 256, GRADIENT_DEPTH = 128 };

static size_t depth_of(size_t rows) { return rows < GRADIENT_DEPTH ? rows : GRADIENT_DEPTH; }

/* Of each weight's gradient, as many as leave every thread a task: each task packs the other factor anew. */
static size_t rows_of_task(const backward_job *j)
{
    const size_t of_thread = j->c->outputs / (size_t)j->p->threads;
    return of_thread < GRADIENT_ROWS_LEAST  ? GRADIENT_ROWS_LEAST
           : of_thread > GRADIENT_ROWS_MOST ? GRADIENT_ROWS_MOST
                                            : of_thread;
}

void lnrnn_gradient_product(const backward_job *j, size_t m, size_t n, size_t k, const float *const *rows,
                            const uint32_t *w, int add, float *c, size_t cs)
{
    const lnrnn_product *product = j->k->product;
    const lnrnn_matmul all_panels = {.dtype = LNRNN_WEIGHT_F32,
                                     .n = n,
                                     .k = k,
                                     .w = w,
                                     .p1 = product->panels(n),
                                     .add = add,
                                     .caches = j->p->caches};
    product->matmul(&all_panels, m, rows, c, (ptrdiff_t)cs);
}

/* The gradient of W x (n, G*H), of n <= TILE packed rows from index * TILE on -> gx of these rows, in the
 * caller's array. tile (TILE, D): scratch. */
static void input_gradient(const backward_job *j, size_t index, float *tile)
{
    const lnrnn_kernels *k = j->k;
    const size_t D = j->c->D, wide = k->product->width(D), first = index * TILE;
    const size_t n = j->rows - first < TILE ? j->rows - first : TILE;
    const float *rows[TILE];
    for (size_t i = 0; i < n; i++)
        rows[i] = j->gx + (first + i) * j->wide;
    lnrnn_gradient_product(j, n, D, j->c->outputs, rows, j->g->w_ih_t, 0, tile, wide);
    for (size_t i = 0; i < n; i++)
        memcpy(j->g->gx_rows[first + i], tile + i * wide, D * sizeof *tile);
}

static size_t blocks(const backward_job *j)
{
    const size_t rows = rows_of_task(j);
    return (j->c->outputs + rows - 1) / rows;
}

/* Rows block * rows_of_task .. of gw_ih (G*H, D) or, if `hidden`, gw_hh (G*H, H): the sum over the packed
 * rows of g[row][o] * v[row][i], g the gradient of the product and v its input. Begins at packed row `row`,
 * stops when *left is used up. -> the packed row at which it stopped. */
static size_t weight_gradient(const backward_job *j, size_t block, int hidden, size_t row, float *work,
                              int64_t *left)
{
    const lnrnn_product *product = j->k->product;
    const size_t N = j->c->outputs, of_task = rows_of_task(j), o0 = block * of_task;
    const size_t count = N - o0 < of_task ? N - o0 : of_task; /* rows of this block */
    const size_t n = hidden ? j->c->H : j->c->D, wide = product->width(n);
    const size_t most = depth_of(j->rows);
    const float *const *rows = j->g->rows + (hidden ? j->rows : 0), *g = (hidden ? j->ga : j->gx) + o0;
    float *const packed = work; /* (n, most): of v */
    float *const out = (hidden ? j->g->gw_hh : j->g->gw_ih) + o0 * n;
    /* (count, n), row stride wide: the result itself, where the product writes nothing behind a row. */
    float *const sum = wide == n ? out : packed + most * wide;
    lnrnn_matmul m = {.dtype = LNRNN_WEIGHT_F32,
                      .n = n,
                      .w = (const uint32_t *)packed,
                      .p1 = product->panels(n),
                      .caches = j->p->caches};
    if (j->rows == 0)
        memset(out, 0, count * n * sizeof *out);
    for (size_t o = 0; sum != out && row && o < count; o++)
        memcpy(sum + o * wide, out + o * n, n * sizeof *sum);
    for (size_t depth; row < j->rows && remaining(left) > 0; row += depth) {
        depth = j->rows - row < most ? j->rows - row : most;
        product->pack_rows(n, depth, rows + row, (uint32_t *)packed);
        m.k = depth, m.add = row > 0;
        product->matmul_columns(&m, count, g + row * j->wide, (ptrdiff_t)j->wide, sum, (ptrdiff_t)wide);
        spend(left, (double)depth * (double)count * (double)n);
    }
    for (size_t o = 0; sum != out && j->rows && o < count; o++)
        memcpy(out + o * n, sum + o * wide, n * sizeof *sum);
    return row;
}

size_t lnrnn_gradient_tasks(const backward_job *j) { return 2 * blocks(j) + (j->rows + TILE - 1) / TILE; }

void lnrnn_gradient_task(void *ctx, size_t index, int worker, int64_t *left)
{
    const backward_job *j = ctx;
    const size_t n = blocks(j);
    float *work = j->work + (size_t)worker * j->worker;
    size_t row = j->rows;
    if (index < 2 * n)
        row = weight_gradient(j, index % n, index >= n, j->tasks[index], work, left);
    else {
        input_gradient(j, index - 2 * n, work);
        spend(left, (double)TILE * (double)j->c->outputs * (double)j->c->D);
    }
    j->tasks[index] = row < j->rows ? row : LNRNN_DONE;
}

size_t lnrnn_gradient_work(const backward_job *j)
{
    const lnrnn_product *product = j->k->product;
    const size_t D = j->c->D, H = j->c->H, widest = product->width(D > H ? D : H);
    const size_t weights = (depth_of(j->rows) + rows_of_task(j)) * widest, tile = TILE * product->width(D);
    return tile > weights ? tile : weights;
}
