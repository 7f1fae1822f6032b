/* The products over all rows of a chunk: the gradient of x, and the chunk's part of the gradients of the
 * weights. The gradients of the weights are sums over the rows, in an order that does not depend on the
 * number of threads. The products are independent tasks. */
#include <string.h>

#include "rnn/backward.h"
#include "rnn/rows.h"
#include "runtime/resumable.h"

/* Returns the number of rows of a weight's gradient per task: few enough that every thread gets a task,
 * within limits. */
static size_t rows_of_task(const backward_job *j)
{
    const size_t of_thread = j->c->outputs / (size_t)j->p->threads;
    return of_thread < LNRNN_GRADIENT_ROWS_LEAST  ? LNRNN_GRADIENT_ROWS_LEAST
           : of_thread > LNRNN_GRADIENT_ROWS_MOST ? LNRNN_GRADIENT_ROWS_MOST
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
                                     .add = add ? LNRNN_ADD_ON : LNRNN_ADD_NOT,
                                     .caches = &j->p->caches};
    product->matmul(&all_panels, m, rows, c, (ptrdiff_t)cs);
}

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

/* Returns the stride of n rows if their pointers are equally spaced, else 0. */
static ptrdiff_t distance(size_t n, float *const *rows)
{
    const ptrdiff_t one = n > 1 ? rows[1] - rows[0] : 0;
    for (size_t i = 1; i < n; i++)
        if (rows[i] - rows[i - 1] != one)
            return 0;
    return one;
}

/* Reads the gradient of W x (n, G*H), n <= TILE rows from row index * TILE on. Writes the gradient of x (n,
 * D) to the caller's array. tile (TILE, D): scratch. */
static void input_gradient(const backward_job *j, size_t index, float *tile)
{
    const size_t D = j->c->D, wide = j->k->product->width(D), first = index * TILE;
    const size_t n = j->chunk->rows - first < TILE ? j->chunk->rows - first : TILE;
    float *const *const out = j->gx_rows + first;
    /* A product writes whole vectors. So it writes to the caller's array only if rows are whole vectors. */
    const ptrdiff_t apart = wide == D ? distance(n, out) : 0;
    const float *rows[TILE];
    for (size_t i = 0; i < n; i++)
        rows[i] = j->gx + (first + i) * j->wide;
    lnrnn_gradient_product(j, n, D, j->c->outputs, rows, j->g->w_ih_t, 0, apart > 0 ? out[0] : tile,
                           apart > 0 ? (size_t)apart : wide);
    for (size_t i = 0; apart <= 0 && i < n; i++)
        memcpy(out[i], tile + i * wide, D * sizeof *tile);
}

/* A weight whose gradient is summed over the chunk's rows. With several heads, `inputs` is the number of
 * inputs of a head. */
typedef struct {
    size_t outputs, inputs, heads;
    const float *g, *packed; /* the gradient of the product, row stride gs; the product's inputs, packed */
    size_t gs;
    float *gw; /* (outputs, inputs) */
} weight;

enum { WEIGHT_IH, WEIGHT_HH, WEIGHT_HR, WEIGHTS };

static weight weight_of(const backward_job *j, int k)
{
    const lnrnn_rnn_config *c = j->c;
    return (const weight[]){
        [WEIGHT_IH] = {c->outputs, c->D, 1, j->gx, j->packed_x, j->wide, j->g->gw_ih},
        [WEIGHT_HH] = {c->outputs, c->head_units, c->num_heads, j->ga, j->packed_h, j->wide, j->g->gw_hh},
        [WEIGHT_HR] = {c->P, c->H, 1, j->gh_rows, j->packed_output, j->gh_stride, j->g->gw_hr},
    }[k];
}

static int weights(const backward_job *j) { return j->c->projection ? WEIGHTS : WEIGHT_HR; }

static size_t parts_of_weight(const backward_job *j, int k)
{
    const size_t rows = rows_of_task(j), outputs = k == WEIGHT_HR ? j->c->P : j->c->outputs;
    return (outputs + rows - 1) / rows;
}

/* Computes rows o0 .. o0 + count - 1 of the gradient of a weight, all of one head. Over the rows of the
 * chunk, gw[o][i] += g[row][o] * v[row][i]. g is the gradient of the product, v its input. tile (count,
 * inputs): scratch. */
static void weight_gradient(const backward_job *j, const weight *w, size_t o0, size_t count, float *tile)
{
    const lnrnn_product *product = j->k->product;
    const backward_chunk *chunk = j->chunk;
    const size_t n = w->inputs, wide = product->width(n), head = o0 / n % w->heads;
    const int add = !chunk->first || j->g->add;
    float *const out = w->gw + o0 * n;
    /* sum (count, n), row stride `wide`: the result itself if rows are whole vectors, else scratch. */
    float *const sum = wide == n ? out : tile;
    lnrnn_matmul m = {.dtype = LNRNN_WEIGHT_F32, .n = n, .p1 = product->panels(n), .caches = &j->p->caches};
    if (chunk->rows == 0) {
        if (!add)
            memset(out, 0, count * n * sizeof *out);
        return;
    }
    for (size_t o = 0; sum != out && add && o < count; o++)
        memcpy(sum + o * wide, out + o * n, n * sizeof *sum);
    for (size_t row = 0; row < chunk->rows; row += m.k) {
        m.k = block_rows(chunk, row), m.add = add || row > 0 ? LNRNN_ADD_AFTER : LNRNN_ADD_NOT;
        m.w = (const uint32_t *)(w->packed + (row * w->heads + m.k * head) * wide);
        product->matmul_columns(&m, count, w->g + row * w->gs + o0, (ptrdiff_t)w->gs, sum, (ptrdiff_t)wide);
    }
    for (size_t o = 0; sum != out && o < count; o++)
        memcpy(out + o * n, sum + o * wide, n * sizeof *sum);
}

/* Computes a part of the gradient of weight k, from row part * rows_of_task on, head by head. With
 * reset_before, the input of W_hh is h for r and z, and r h for n. */
static void weight_gradients(const backward_job *j, size_t part, int k, float *tile)
{
    const lnrnn_rnn_config *c = j->c;
    weight w = weight_of(j, k);
    const size_t of_task = rows_of_task(j), first = part * of_task,
                 end = w.outputs - first < of_task ? w.outputs : first + of_task;
    const size_t each = k != WEIGHT_HH ? w.outputs : w.heads > 1 ? w.inputs : c->first_gates * c->H;
    for (size_t o = first, left; o < end; o += left) {
        left = each - o % each < end - o ? each - o % each : end - o;
        if (k == WEIGHT_HH && o >= c->first_gates * c->H)
            w.packed = j->packed_reset;
        weight_gradient(j, &w, o, left, tile);
    }
}

size_t lnrnn_most_gradient_tasks(const backward_job *j, size_t rows)
{
    size_t tasks = (rows + TILE - 1) / TILE;
    for (int k = 0; k < weights(j); k++)
        tasks += parts_of_weight(j, k);
    return tasks;
}

size_t lnrnn_gradient_tasks(const backward_job *j)
{
    return lnrnn_most_gradient_tasks(j, j->g->gx ? j->chunk->rows : 0);
}

void lnrnn_gradient_task(void *ctx, size_t index, int worker, int64_t *left)
{
    const backward_job *j = ctx;
    float *tile = j->work + (size_t)worker * j->worker;
    size_t part = index;
    int k = 0;
    while (k < weights(j) && part >= parts_of_weight(j, k))
        part -= parts_of_weight(j, k++);
    if (k < weights(j)) {
        weight_gradients(j, part, k, tile);
        spend(left, (double)j->chunk->rows * (double)rows_of_task(j) * (double)weight_of(j, k).inputs);
    } else {
        input_gradient(j, part, tile);
        spend(left, (double)TILE * (double)j->c->outputs * (double)j->c->D);
    }
    j->tasks[index] = LNRNN_DONE;
}

size_t lnrnn_gradient_work(const backward_job *j)
{
    const lnrnn_product *product = j->k->product;
    const size_t D = j->c->D, H = j->c->H, widest = product->width(D > H ? D : H);
    const size_t weights = rows_of_task(j) * widest, tile = TILE * product->width(D);
    return tile > weights ? tile : weights; /* GCOVR_EXCL_BR_LINE: depends on the tile of the set */
}
