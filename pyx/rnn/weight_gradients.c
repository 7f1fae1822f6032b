/* The products over all rows of a chunk: each row's gradient of x, and the chunk's part of the weights'
 * gradients. These are sums over the rows in their order, whatever the number of threads. All cells share
 * this code; its tasks need no order. */
#include <string.h>

#include "rnn/backward.h"
#include "rnn/rows.h"
#include "runtime/resumable.h"

/* Rows of a weight's gradient in one task: as many as leave every thread a task, within limits. */
static size_t rows_of_task(const backward_job *j)
{
    const size_t of_thread = j->c->outputs / (size_t)j->p->threads;
    return of_thread < LNRNN_GRADIENT_ROWS_LEAST  ? LNRNN_GRADIENT_ROWS_LEAST
           : of_thread > LNRNN_GRADIENT_ROWS_MOST ? LNRNN_GRADIENT_ROWS_MOST
                                                  : of_thread;
}

void lnrnn_gradient_product(const backward_job *j, size_t m, size_t n, size_t k, const float *const *rows,
                            const float *w, const uint32_t *packed, int add, float *c, size_t cs)
{
    const lnrnn_product *product = j->k->product;
    const lnrnn_matmul all_panels = {.dtype = LNRNN_WEIGHT_F32,
                                     .n = n,
                                     .k = k,
                                     .w = packed ? packed : (const uint32_t *)w,
                                     .lines = packed ? 0 : n,
                                     .p1 = product->panels(n),
                                     .add = add ? LNRNN_ADD_ON : LNRNN_ADD_NOT,
                                     .caches = j->p->caches};
    product->matmul(&all_panels, m, rows, c, (ptrdiff_t)cs);
}

/* Rows of the block that begins at row `first` of the chunk. */
static size_t block_rows(const backward_chunk *chunk, size_t first)
{
    return chunk->rows - first < chunk->block ? chunk->rows - first : chunk->block;
}

void lnrnn_pack_inputs(const backward_job *j, size_t heads, size_t n, size_t pos, size_t rows,
                       const float *const *v, float *packed)
{
    const lnrnn_product *product = j->k->product;
    const size_t wide = product->width(n);
    for (size_t some; rows; rows -= some, pos += some, v += some) {
        const size_t at = pos % j->chunk->block, first = pos - at, all = block_rows(j->chunk, first);
        some = rows < all - at ? rows : all - at;
        float *const block = packed + first * heads * wide;
        if (heads == 1)
            product->pack_rows(n, all, at, some, v, (uint32_t *)block);
        else
            for (size_t i = 0; i < some * heads; i++) {
                const float *const row = v[i / heads] + i % heads * n;
                product->pack_rows(n, all, at + i / heads, 1, &row,
                                   (uint32_t *)(block + i % heads * wide * all));
            }
    }
}

/* -> the distance between n pointers to rows, 0 if it is not the same for all. */
static ptrdiff_t distance(size_t n, float *const *rows)
{
    const ptrdiff_t one = n > 1 ? rows[1] - rows[0] : 0;
    for (size_t i = 1; i < n; i++)
        if (rows[i] - rows[i - 1] != one)
            return 0;
    return one;
}

/* The gradient of W x (n, G*H), of n <= TILE rows from index * TILE on -> gx of these rows, in the
 * caller's array. tile (TILE, D): scratch. */
static void input_gradient(const backward_job *j, size_t index, float *tile)
{
    const size_t D = j->c->D, wide = j->k->product->width(D), first = index * TILE;
    const size_t n = j->chunk->rows - first < TILE ? j->chunk->rows - first : TILE;
    float *const *const out = j->gx_rows + first;
    /* A product writes whole vectors. It writes to the caller's array if rows are whole vectors. */
    const ptrdiff_t apart = wide == D ? distance(n, out) : 0;
    const float *rows[TILE];
    for (size_t i = 0; i < n; i++)
        rows[i] = j->gx + (first + i) * j->wide;
    lnrnn_gradient_product(j, n, D, j->c->outputs, rows, j->g->w_ih, j->g->w_ih_t, 0,
                           apart > 0 ? out[0] : tile, apart > 0 ? (size_t)apart : wide);
    for (size_t i = 0; apart <= 0 && i < n; i++)
        memcpy(out[i], tile + i * wide, D * sizeof *tile);
}

static size_t parts_of_weight(const backward_job *j)
{
    const size_t rows = rows_of_task(j);
    return (j->c->outputs + rows - 1) / rows;
}

/* Rows o0 .. o0 + count - 1 of gw_ih (G*H, D) or, if `hidden`, of gw_hh (G*H, head_units), all of one head. Over
 * the chunk's rows, gw[o][i] += g[row][o] * v[row][i], where g is the gradient of the product, v its input. tile
 * (count, n): scratch. */
static void weight_gradient(const backward_job *j, size_t o0, size_t count, int hidden, float *tile)
{
    const lnrnn_product *product = j->k->product;
    const backward_chunk *chunk = j->chunk;
    const size_t n = hidden ? j->c->head_units : j->c->D, wide = product->width(n);
    const size_t heads = hidden ? j->c->num_heads : 1, head = o0 / n % heads;
    const float *g = (hidden ? j->ga : j->gx) + o0, *packed = hidden ? j->packed_h : j->packed_x;
    const int add = !chunk->first || j->g->add;
    float *const out = (hidden ? j->g->gw_hh : j->g->gw_ih) + o0 * n;
    /* (count, n), row stride wide: the result itself, if its rows are whole vectors. */
    float *const sum = wide == n ? out : tile;
    lnrnn_matmul m = {.dtype = LNRNN_WEIGHT_F32, .n = n, .p1 = product->panels(n), .caches = j->p->caches};
    if (chunk->rows == 0) {
        if (!add)
            memset(out, 0, count * n * sizeof *out);
        return;
    }
    for (size_t o = 0; sum != out && add && o < count; o++)
        memcpy(sum + o * wide, out + o * n, n * sizeof *sum);
    for (size_t row = 0; row < chunk->rows; row += m.k) {
        m.k = block_rows(chunk, row), m.add = add || row > 0 ? LNRNN_ADD_AFTER : LNRNN_ADD_NOT;
        m.w = (const uint32_t *)(packed + (row * heads + m.k * head) * wide);
        product->matmul_columns(&m, count, g + row * j->wide, (ptrdiff_t)j->wide, sum, (ptrdiff_t)wide);
    }
    for (size_t o = 0; sum != out && o < count; o++)
        memcpy(out + o * n, sum + o * wide, n * sizeof *sum);
}

/* Rows part * rows_of_task .., head by head. */
static void weight_gradients(const backward_job *j, size_t part, int hidden, float *tile)
{
    const size_t N = j->c->outputs, of_task = rows_of_task(j), first = part * of_task,
                 end = N - first < of_task ? N : first + of_task;
    const size_t each = hidden && j->c->num_heads > 1 ? j->c->head_units : N;
    for (size_t o = first, left; o < end; o += left) {
        left = each - o % each < end - o ? each - o % each : end - o;
        weight_gradient(j, o, left, hidden, tile);
    }
}

size_t lnrnn_most_gradient_tasks(const backward_job *j, size_t rows)
{
    return 2 * parts_of_weight(j) + (rows + TILE - 1) / TILE;
}

size_t lnrnn_gradient_tasks(const backward_job *j)
{
    return lnrnn_most_gradient_tasks(j, j->g->gx ? j->chunk->rows : 0);
}

void lnrnn_gradient_task(void *ctx, size_t index, int worker, int64_t *left)
{
    const backward_job *j = ctx;
    const size_t n = parts_of_weight(j), D = j->c->D, N = j->c->outputs;
    float *tile = j->work + (size_t)worker * j->worker;
    if (index < 2 * n) {
        weight_gradients(j, index % n, index >= n, tile);
        spend(left,
              (double)j->chunk->rows * (double)rows_of_task(j) * (double)(index >= n ? j->c->head_units : D));
    } else {
        input_gradient(j, index - 2 * n, tile);
        spend(left, (double)TILE * (double)N * (double)D);
    }
    j->tasks[index] = LNRNN_DONE;
}

size_t lnrnn_gradient_work(const backward_job *j)
{
    const lnrnn_product *product = j->k->product;
    const size_t D = j->c->D, P = j->c->P, widest = product->width(D > P ? D : P);
    const size_t weights = rows_of_task(j) * widest, tile = TILE * product->width(D);
    return tile > weights ? tile : weights;
}
