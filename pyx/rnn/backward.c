/* Back through time: the gradients of one recurrent layer, from the tape that the forward call kept.
 *
 * The steps are gone back in rounds. In a round, first each group of rows goes back through its steps
 * (backward_steps.c), which leaves the gradients of W x and W h of all rows; then products over these rows add to the
 * gradients of the weights, and make that of x (weight_gradients.c). So a product has many rows, and what it reads is
 * still in the caches. What belongs to a round follows from the rows' lengths alone, and so the order of all sums,
 * however many threads there are. */
#include <string.h>

#include "rnn/backward.h"
#include "rnn/cost.h"
#include "rnn/forward.h"
#include "rnn/rows.h"
#include "runtime/floats.h"
#include "runtime/resumable.h"

/* Floats in a cache line. Rows of gradients are an odd number of lines apart: the products of weight_gradients.c
 * go down columns, and rows a power of two apart share few sets of L1. */
enum { LINE = 16 };

/* -> the job, its memory from `work` if that is not NULL, and how many floats that is. */
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
                      .sum_rows = sum_rows(r->B)};
    const size_t all = all_rows(r), most = ROUND_ROWS > r->B ? ROUND_ROWS : r->B,
                 rows = all < most ? all : most;
    backward_scratch unused;
    const size_t through = lnrnn_backward_scratch(&j, NULL, &unused), after = lnrnn_gradient_work(&j);
    const size_t words = sizeof(size_t) / sizeof(float), state = r->B * j.narrow;
    size_t at = 0;
    j.blocks = r->B ? (r->B + j.sum_rows - 1) / j.sum_rows : 1;
    j.worker = (through > after ? through : after) | LINE;
    j.round = (backward_round *)lnrnn_part_of(work, &at, sizeof(backward_round) / sizeof(float));
    j.sums = (double *)lnrnn_part_of(work, &at, 2 * j.blocks * lnrnn_sums(c));
    j.partial = lnrnn_part_of(work, &at, j.blocks * lnrnn_sums(c));
    j.gh = lnrnn_part_of(work, &at, state);
    j.gc = lnrnn_part_of(work, &at, c->cell_state ? state : 0);
    j.ga = lnrnn_part_of(work, &at, rows * j.wide);
    j.gx = c->separate_products ? lnrnn_part_of(work, &at, rows * j.wide) : j.ga;
    j.packed_x = lnrnn_part_of(work, &at, rows * p->kernels->product->width(c->D));
    j.packed_h = lnrnn_part_of(work, &at, rows * p->kernels->product->width(c->H));
    j.gx_rows = (float **)lnrnn_part_of(work, &at, words * rows);
    j.back = (size_t *)lnrnn_part_of(work, &at, words * p->groups);
    j.tasks = (size_t *)lnrnn_part_of(work, &at, words * lnrnn_most_gradient_tasks(&j, rows));
    j.work = lnrnn_part_of(work, &at, (size_t)p->threads * j.worker);
    *floats = at + LINE;
    return j;
}

size_t lnrnn_rnn_backward_work(const lnrnn_rnn_call *r)
{
    size_t floats;
    prepare(r, NULL, NULL, &floats);
    return floats;
}

/* The round whose last step is t1 - 1: as many steps as have ROUND_ROWS rows, at least one. */
static void begin_round(const backward_job *j, size_t t1, int first)
{
    const lnrnn_rnn_call *r = j->r;
    backward_round *round = j->round;
    size_t t = t1, rows = 0, active = 0;
    while (t) {
        active = more_active_rows(r, 0, r->B, active, t - 1);
        if (rows && rows + active > ROUND_ROWS)
            break;
        rows += active;
        t--;
    }
    const size_t blocks = (rows + PRODUCT_ROWS - 1) / PRODUCT_ROWS;
    *round = (backward_round){.t0 = t,
                              .t1 = t1,
                              .rows = rows,
                              .before = rows_until(r, t),
                              .block = blocks ? (rows + blocks - 1) / blocks : 0,
                              .first = first};
    memset(j->back, 0, j->p->groups * sizeof *j->back);
}

/* Before the last step: no sums yet; the gradient of the state is that of hn, cn, or 0. */
static void begin(const backward_job *j)
{
    const lnrnn_rnn_call *r = j->r;
    const size_t narrow = j->narrow, bytes = j->c->H * sizeof(float), sums = j->blocks * lnrnn_sums(j->c);
    memset(j->sums, 0, sums * sizeof *j->sums);
    memset(j->partial, 0, sums * sizeof *j->partial);
    memset(j->gh, 0, r->B * narrow * sizeof *j->gh);
    if (j->c->cell_state)
        memset(j->gc, 0, r->B * narrow * sizeof *j->gc);
    for (size_t i = 0; i < r->B; i++) {
        if (j->g->ghn)
            memcpy(j->gh + i * narrow, j->g->ghn + state_at(r, i), bytes);
        if (j->g->gcn && j->c->cell_state)
            memcpy(j->gc + i * narrow, j->g->gcn + state_at(r, i), bytes);
    }
    begin_round(j, r->T, 1);
}

/* After the first step: gh0, gc0, and the gradients of gains and biases. */
static void finish(const backward_job *j)
{
    const lnrnn_rnn_call *r = j->r;
    const size_t bytes = j->c->H * sizeof(float);
    for (size_t i = 0; i < r->B; i++) {
        memcpy(j->g->gh0 + state_at(r, i), j->gh + i * j->narrow, bytes);
        if (j->c->cell_state)
            memcpy(j->g->gc0 + state_at(r, i), j->gc + i * j->narrow, bytes);
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
        backward_round *round = j->round;
        const double rows = (double)round->rows;
        const double steps = step_cost(r, rows, c->H) + 1024 * (double)(round->t1 - round->t0),
                     products = rows * (double)c->outputs * (double)((g->gx ? 2 : 1) * c->D + c->H);
        if (!round->products) {
            if (!lnrnn_limited_tasks(r->plan->groups, threads, j->back, steps, left, lnrnn_backward_group,
                                     &job))
                return 0;
            memset(j->tasks, 0, lnrnn_gradient_tasks(j) * sizeof *j->tasks);
            round->products = 1;
            left -= steps / threads;
            if (r->part > 0 && left <= 0)
                return 0;
        }
        if (!lnrnn_limited_tasks(lnrnn_gradient_tasks(j), threads, j->tasks, products, left,
                                 lnrnn_gradient_task, &job))
            return 0;
        if (round->t0 == 0)
            break;
        begin_round(j, round->t0, 0);
        left -= products / threads;
        if (r->part > 0 && left <= 0)
            return 0;
    }
    finish(j);
    return 1;
}
