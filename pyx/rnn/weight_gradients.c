/* What backward.c leaves to be done once the gradients of W x and W h are known for all rows: each row's
 * gradient of x, and those of the weights, which are sums over the packed rows in their order, however many
 * threads there are. It is the same for every cell, and its tasks need no order. */
#include <string.h>

#include "rnn/backward.h"
#include "rnn/rows.h"
#include "runtime/parts.h"

/* Rows of a weight's gradient that a task has, packed rows that it transposes at once (compare_builds.py, LSTM
 * training), and floats in a cache line. */
enum { GRADIENT_ROWS = 64, GRADIENT_DEPTH = 256, LINE = 16 };

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

static size_t blocks(const lnrnn_rnn_config *c) { return (c->outputs + GRADIENT_ROWS - 1) / GRADIENT_ROWS; }

/* Rows block * GRADIENT_ROWS .. of gw_ih (G*H, D) or, if `hidden`, gw_hh (G*H, H): the sum over the packed
 * rows of g[row][o] * v[row][i], g the gradient of the product and v its input. Begins at packed row `row`,
 * stops when *left is used up. -> the packed row at which it stopped. */
static size_t weight_gradient(const backward_job *j, size_t block, int hidden, size_t row, float *work,
                              int64_t *left)
{
    const lnrnn_product *product = j->k->product;
    const size_t N = j->c->outputs, o0 = block * GRADIENT_ROWS;
    const size_t count = N - o0 < GRADIENT_ROWS ? N - o0 : GRADIENT_ROWS; /* rows of this block */
    const size_t n = hidden ? j->c->H : j->c->D, wide = product->width(n);
    float *transposed = work;                                    /* (GRADIENT_ROWS, GRADIENT_DEPTH): of g */
    float *packed = transposed + GRADIENT_ROWS * GRADIENT_DEPTH; /* (n, GRADIENT_DEPTH): of v */
    float *sum = packed + GRADIENT_DEPTH * wide;                 /* (count, n), row stride wide */
    const float *const *rows = j->g->rows + (hidden ? j->rows : 0), *g = hidden ? j->ga : j->gx;
    float *const out = (hidden ? j->g->gw_hh : j->g->gw_ih) + o0 * n;
    const float *columns[GRADIENT_ROWS];
    for (size_t o = 0; o < count; o++)
        columns[o] = transposed + o * GRADIENT_DEPTH;
    memset(sum, 0, count * wide * sizeof *sum);
    for (size_t o = 0; row && o < count; o++)
        memcpy(sum + o * wide, out + o * n, n * sizeof *sum);
    for (size_t depth; row < j->rows && remaining(left) > 0; row += depth) {
        depth = j->rows - row < GRADIENT_DEPTH ? j->rows - row : GRADIENT_DEPTH;
        /* By cache lines of what is written: columns lie a multiple of 1 KiB apart, too many for the sets of L1. */
        for (size_t d0 = 0; d0 < depth; d0 += LINE)
            for (size_t o = 0; o < count; o++)
                for (size_t d = d0; d < depth && d < d0 + LINE; d++)
                    transposed[o * GRADIENT_DEPTH + d] = g[(row + d) * j->wide + o0 + o];
        product->pack_rows(n, depth, rows + row, (uint32_t *)packed);
        lnrnn_gradient_product(j, count, n, depth, columns, (const uint32_t *)packed, 1, sum, wide);
        spend(left, (double)depth * (double)count * (double)n);
    }
    for (size_t o = 0; o < count; o++)
        memcpy(out + o * n, sum + o * wide, n * sizeof *sum);
    return row;
}

size_t lnrnn_gradient_tasks(const lnrnn_rnn_config *c, size_t rows)
{
    return 2 * blocks(c) + (rows + TILE - 1) / TILE;
}

void lnrnn_gradient_task(void *ctx, size_t index, int worker, int64_t *left)
{
    const backward_job *j = ctx;
    const size_t n = blocks(j->c);
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

size_t lnrnn_gradient_work(const lnrnn_kernels *k, const lnrnn_rnn_config *c)
{
    const size_t widest = k->product->width(c->D > c->H ? c->D : c->H), tile = TILE * k->product->width(c->D);
    const size_t weights = GRADIENT_DEPTH * GRADIENT_ROWS + GRADIENT_DEPTH * widest + GRADIENT_ROWS * widest;
    return tile > weights ? tile : weights;
}
