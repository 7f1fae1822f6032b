/* Back-propagation through time for one recurrent layer, from the tape of the forward call.
 *
 * The pass goes through chunks of time steps, the last chunk first. First backward_steps.c computes the
 * gradients of W x and W h for all rows and steps of a chunk. Then weight_gradients.c multiplies these
 * gradients: by the inputs, for the gradients of the weights, and by W_ih, for the gradient of x. So a
 * product has many rows, which are still in the caches. The number of threads does not change the order of a
 * sum, because chunks depend only on the lengths of the rows. */
#include <string.h>

#include "rnn/backward.h"
#include "rnn/forward.h"
#include "rnn/rows.h"
#include "runtime/floats.h"
#include "runtime/resumable.h"

/* CHUNK_ROWS: the number of active rows of a chunk, unless a single step has more. With 256, products are
 * efficient, and the gradients of W x and W h stay in the caches (benchmark lstm training). PRODUCT_ROWS: the
 * largest number of rows of one product. */
enum { CHUNK_ROWS = 256, PRODUCT_ROWS = 128 };

/* The number of floats in a cache line. Rows of gradients are an odd number of cache lines apart, because
 * weight_gradients.c reads columns. Rows a power of two apart would share few sets of L1. */
enum { LINE = 16 };

size_t lnrnn_backward_scratch(const backward_job *j, float *base, backward_step *s)
{
    const lnrnn_rnn_config *c = j->c;
    const size_t group = j->p->group, units = group * j->narrow, h = group * j->h_stride,
                 pointers = group * sizeof(float *) / sizeof(float);
    size_t at = 0;
    s->u = lnrnn_carve(base, &at, c->saved_gates ? units : 0);
    s->gu = lnrnn_carve(base, &at, c->C || c->reset_before ? units : 0);
    s->sum = lnrnn_carve(base, &at, c->saved_gates ? group * j->wide : 0);
    s->skip_h = lnrnn_carve(base, &at, c->zoneout_h > 0 ? h : 0);
    s->skip_c = lnrnn_carve(base, &at, c->zoneout_c > 0 ? group * j->c_stride : 0);
    s->masked = lnrnn_carve(base, &at, j->r->masks.state || c->direct_h ? h : 0);
    s->batch = lnrnn_carve(base, &at, j->p->synchronous ? 10 * c->outputs + 2 : 0);
    s->unprojected = lnrnn_carve(base, &at, c->projection ? units : 0);
    s->outputs = lnrnn_carve(base, &at, c->projection ? pointers : 0);
    s->x = lnrnn_carve(base, &at, pointers);
    s->h = lnrnn_carve(base, &at, pointers);
    s->state_prev = lnrnn_carve(base, &at, pointers);
    /* This array comes last: the memory after it is in use, so tests notice a write past its end. */
    s->head = lnrnn_carve(base, &at, c->num_heads > 1 ? TILE * j->k->product->width(c->head_units) : 0);
    return at;
}

/* Returns the job with its arrays in `work`, and sets *floats to the size of `work`. With work = NULL it only
 * computes *floats. */
static backward_job prepare(const lnrnn_rnn_call *r, const lnrnn_rnn_gradients *g, float *work,
                            size_t *floats)
{
    const lnrnn_rnn_config *c = r->config;
    const lnrnn_rnn_plan *p = r->plan;
    backward_job j = {.r = r,
                      .c = c,
                      .p = p,
                      .k = p->kernels,
                      .g = g,
                      .wide = p->wide | LINE,
                      .narrow = p->narrow,
                      .h_stride = p->h_stride,
                      .c_stride = p->c_stride,
                      .gh_stride = p->h_stride | LINE,
                      .sum_rows = sum_rows(r->B)};
    const size_t all = all_rows(r), most = CHUNK_ROWS > r->B ? CHUNK_ROWS : r->B,
                 rows = all < most ? all : most;
    backward_step unused;
    const size_t through = lnrnn_backward_scratch(&j, NULL, &unused), after = lnrnn_gradient_work(&j);
    const size_t words = sizeof(size_t) / sizeof(float);
    size_t at = 0;
    j.blocks = r->B ? (r->B + j.sum_rows - 1) / j.sum_rows : 1;
    j.worker = ((through > after ? through : after) + LINE - 1) / LINE * LINE | LINE;
    j.chunk = lnrnn_carve(work, &at, sizeof(backward_chunk) / sizeof(float));
    j.sums = lnrnn_carve(work, &at, 2 * j.blocks * lnrnn_sums(c));
    j.partial = lnrnn_carve(work, &at, j.blocks * lnrnn_sums(c));
    j.gh = lnrnn_carve(work, &at, r->B * j.h_stride);
    j.gc = lnrnn_carve(work, &at, r->B * j.c_stride);
    j.ga = lnrnn_carve(work, &at, rows * j.wide);
    j.gx = c->separate_products ? lnrnn_carve(work, &at, rows * j.wide) : j.ga;
    j.packed_x = lnrnn_carve(work, &at, rows * p->kernels->product->width(c->D));
    j.packed_h = lnrnn_carve(work, &at, rows * c->num_heads * p->kernels->product->width(c->head_units));
    j.packed_reset = lnrnn_carve(
        work, &at, c->reset_before ? rows * c->num_heads * p->kernels->product->width(c->head_units) : 0);
    j.gh_rows = lnrnn_carve(work, &at, c->projection ? rows * j.gh_stride : 0);
    j.packed_output = lnrnn_carve(work, &at, c->projection ? rows * j.narrow : 0);
    j.gx_rows = lnrnn_carve(work, &at, words * rows);
    j.done = lnrnn_carve(work, &at, words * p->groups);
    j.tasks = lnrnn_carve(work, &at, words * lnrnn_most_gradient_tasks(&j, rows));
    j.work = lnrnn_carve(work, &at, (size_t)p->threads * j.worker);
    *floats = at + LINE;
    lnrnn_resolve_backward(&j);
    return j;
}

size_t lnrnn_rnn_backward_work(const lnrnn_rnn_call *r)
{
    size_t floats;
    prepare(r, NULL, NULL, &floats);
    return floats;
}

/* Sets the chunk that ends at step t1 - 1. Adds steps backwards until they have CHUNK_ROWS active rows. A
 * chunk has at least one step. */
static void begin_chunk(const backward_job *j, size_t t1, int first)
{
    const lnrnn_rnn_call *r = j->r;
    backward_chunk *chunk = j->chunk;
    size_t t = t1, rows = 0, active = 0;
    while (t) {
        active = more_active_rows(r, 0, r->B, active, t - 1);
        if (rows && rows + active > CHUNK_ROWS)
            break;
        rows += active;
        t--;
    }
    const size_t blocks = (rows + PRODUCT_ROWS - 1) / PRODUCT_ROWS;
    *chunk = (backward_chunk){.t0 = t,
                              .t1 = t1,
                              .rows = rows,
                              .before = rows_until(r, t),
                              .block = blocks ? (rows + blocks - 1) / blocks : 0,
                              .first = first};
    memset(j->done, 0, j->p->groups * sizeof *j->done);
}

/* Clears the sums, and sets the gradient of the state to the gradients of hn and cn, or to 0. */
static void begin(const backward_job *j)
{
    const lnrnn_rnn_call *r = j->r;
    const size_t sums = j->blocks * lnrnn_sums(j->c);
    memset(j->sums, 0, sums * sizeof *j->sums);
    memset(j->partial, 0, sums * sizeof *j->partial);
    memset(j->gh, 0, r->B * j->h_stride * sizeof *j->gh);
    if (j->c->C)
        memset(j->gc, 0, r->B * j->c_stride * sizeof *j->gc);
    for (size_t i = 0; i < r->B; i++) {
        if (j->g->ghn)
            memcpy(j->gh + i * j->h_stride, j->g->ghn + h_at(r, i), j->c->P * sizeof(float));
        if (j->g->gcn && j->c->C) /* GCOVR_EXCL_BR_LINE: callers with gcn have a cell state */
            memcpy(j->gc + i * j->c_stride, j->g->gcn + c_at(r, i), j->c->C * sizeof(float));
    }
    begin_chunk(j, r->T, 1);
}

/* After step 0: writes gh0 and gc0, and adds up the gradients of gains and biases of all blocks. */
static void finish(const backward_job *j)
{
    const lnrnn_rnn_call *r = j->r;
    for (size_t i = 0; i < r->B; i++) {
        memcpy(j->g->gh0 + h_at(r, i), j->gh + i * j->h_stride, j->c->P * sizeof(float));
        if (j->c->C)
            memcpy(j->g->gc0 + c_at(r, i), j->gc + i * j->c_stride, j->c->C * sizeof(float));
    }
    lnrnn_total_sums(j);
}

int lnrnn_rnn_backward(const lnrnn_rnn_call *r, const lnrnn_rnn_gradients *g)
{
    LNRNN_DEFAULT_FLOATS;
    size_t floats;
    backward_job job = prepare(r, g, g->work, &floats);
    const backward_job *const j = &job;
    const lnrnn_rnn_config *c = r->config;
    const int threads = lnrnn_threads_now(r->plan);
    double left = r->part;
    if (!r->resumed)
        begin(j);
    for (;;) {
        backward_chunk *chunk = j->chunk;
        const double rows = (double)chunk->rows;
        const double steps = step_cost(r, rows, c->head_units) + 1024 * (double)(chunk->t1 - chunk->t0),
                     products = rows * (double)c->outputs * (double)((g->gx ? 2 : 1) * c->D + c->head_units)
                                + rows * (double)c->projection;
        if (!chunk->products) {
            if (!lnrnn_limited_tasks(r->plan->groups, threads, j->done, steps, left, lnrnn_backward_group,
                                     &job))
                return 0;
            memset(j->tasks, 0, lnrnn_gradient_tasks(j) * sizeof *j->tasks);
            chunk->products = 1;
            left -= steps / threads;
            if (r->part > 0 && left <= 0)
                return 0;
        }
        if (!lnrnn_limited_tasks(lnrnn_gradient_tasks(j), threads, j->tasks, products, left,
                                 lnrnn_gradient_task, &job))
            return 0;
        if (chunk->t0 == 0)
            break;
        begin_chunk(j, chunk->t0, 0);
        left -= products / threads;
        if (r->part > 0 && left <= 0)
            return 0;
    }
    finish(j);
    return 1;
}
