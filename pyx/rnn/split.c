/* The time loop for few sequences: the threads divide the units.
 *
 * With few sequences the time of a step is that of reading the weights. So each thread has some of the panels
 * of W_ih and W_hh, which stay in its own L2 cache, and computes their columns of every product. Barriers
 * stand after W_hh h of each step, after W_ih x of a chunk if that is normalised, and where a part of a call
 * begins. Each thread then has all columns and computes the state of all units for itself: normalising and
 * activating what another thread computes too costs less than a second barrier.
 *
 * Worker 0 writes h to y and c to cn, the others to rows of their own. With separate products W_hh h is
 * double-buffered, so that a fast worker cannot overwrite rows still being read. Every number is computed in
 * the order in which one thread would compute it. A call that is done in parts stops at the same step in all
 * workers, as each counts the cost of all columns. */
#include <string.h>

#include "lnrnn.h"
#include "lnrnn/kernels/table.h"
#include "rnn/forward.h"
#include "rnn/rows.h"
#include "rnn/step.h"
#include "rnn/zoneout.h"
#include "runtime/threads.h"

typedef struct {
    const lnrnn_rnn_call *r;
    int alone; /* worker 0 goes on by itself */
    lnrnn_barrier barrier;
} split_job;

/* What a worker computes in and with; all workers have the same chunk and hidden. Rows of G*H values have
 * stride plan->wide, rows of H plan->narrow. */
typedef struct {
    float *chunk;  /* (chunk, B, G*H): W_ih x of a chunk */
    float *hidden; /* (2, B, G*H): W_hh h of an even and of an odd step, if the products are separate */
    float *h, *c;  /* (B, H): the states of workers other than 0 */
    float *old_h, *old_c; /* (B, H): with zoneout the states before a step */
    float *cell;          /* config->cell_scratch floats */
    uint32_t *product;
} split_memory;

static split_memory memory_of(const lnrnn_rnn_call *r, int worker)
{
    const lnrnn_rnn_scratch *s = &r->plan->scratch;
    float *const own = r->scratch + s->shared + (size_t)worker * s->worker;
    return (split_memory){.chunk = r->scratch,
                          .hidden = r->scratch + s->hidden,
                          .h = own,
                          .c = own + s->own_c,
                          .old_h = own + s->old_h,
                          .old_c = own + s->old_c,
                          .cell = own + s->cell,
                          .product = (uint32_t *)(own + s->product)};
}

static void wait_for_all(split_job *job, int team)
{
    if (team > 1)
        lnrnn_barrier_wait(&job->barrier, team);
}

/* state_rows of this worker. first_step: the first of this part of the call, which starts from the caller's
 * h. */
static void own_state_rows(const lnrnn_rnn_call *r, int worker, const split_memory *m, size_t active,
                           size_t t, size_t first_step, const float **h_prev, float **c, float **h)
{
    const size_t narrow = r->plan->narrow;
    state_rows(r, 0, active, t, h_prev, c, h);
    for (size_t i = 0; worker && i < active; i++) {
        if (t > first_step)
            h_prev[i] = m->h + i * narrow;
        c[i] = m->c + i * narrow;
        h[i] = m->h + i * narrow;
    }
}

/* Before step t0, the first of this part of the call: the cell states of this worker. */
static void begin(split_job *job, int worker, int team, const split_memory *m, size_t active, size_t t0)
{
    const lnrnn_rnn_call *r = job->r;
    const size_t H = r->config->H;
    for (size_t i = 0; worker && r->cn && i < active; i++)
        memcpy(m->c + i * r->plan->narrow, (t0 ? r->cn : r->c0) + state_at(r, i), H * sizeof(float));
    if (r->cn) /* before worker 0 changes them */
        wait_for_all(job, team);
    if (!worker && t0 == 0)
        lnrnn_begin_rows(r, 0, r->B);
}

/* Before a step: what zoneout may keep. A worker's own states are overwritten by the step. */
static void remember_states(const lnrnn_rnn_call *r, const split_memory *m, const lnrnn_step_rows *rows)
{
    const lnrnn_rnn_config *c = r->config;
    const size_t narrow = r->plan->narrow, bytes = c->H * sizeof(float);
    for (size_t i = 0; c->zoneout_h > 0 && i < rows->n; i++)
        memcpy(m->old_h + i * narrow, rows->h_prev[i], bytes);
    for (size_t i = 0; c->zoneout_c > 0 && i < rows->n; i++)
        memcpy(m->old_c + i * narrow, rows->c[i], bytes);
}

/* Steps t0 .. t1 - 1, t1 - t0 <= plan->chunk. panels: those of this worker. */
static void split_chunk(split_job *job, int worker, int team, lnrnn_panels panels, const split_memory *m,
                        size_t active, size_t t0, size_t t1, size_t first_step)
{
    const lnrnn_rnn_call *r = job->r;
    const int separate = r->config->separate_products;
    const size_t wide = r->plan->wide;
    const ptrdiff_t stride = (ptrdiff_t)wide;
    const float *h_prev[TILE];
    float *c[TILE], *h[TILE], *x = m->chunk;
    lnrnn_input_product(r, 0, active, t0, t1, panels, x, stride, m->product);
    if (r->config->input_side) {
        wait_for_all(job, team);
        /* What the others normalise is first read after the barrier of step t0. */
        lnrnn_normalise_inputs(r, 0, active, t0, t1, (size_t)worker, (size_t)team, x, stride);
    }
    for (size_t t = t0; t < t1; t++, x += active * wide) {
        active = active_rows(r, 0, active, t);
        own_state_rows(r, worker, m, active, t, first_step, h_prev, c, h);
        float *const hidden = separate ? m->hidden + t % 2 * r->B * wide : x;
        lnrnn_hidden_product(r, active, t, h_prev, panels, hidden, stride, m->product);
        wait_for_all(job, team);
        const lnrnn_step_rows rows = {.n = active,
                                      .x = separate ? x : NULL,
                                      .xs = stride,
                                      .a = hidden,
                                      .as = stride,
                                      .h_prev = h_prev,
                                      .c = c,
                                      .h = h,
                                      .scratch = m->cell};
        const int keeps = lnrnn_has_zoneout(r->config);
        if (keeps)
            remember_states(r, m, &rows);
        lnrnn_step_cell(r, (lnrnn_fold){0}, 0, t, &rows, 0);
        for (size_t i = 0; keeps && i < active; i++)
            lnrnn_zoneout_row(r, i, t, m->old_h + i * r->plan->narrow, m->old_c + i * r->plan->narrow, h[i],
                              c[i]);
    }
}

static void split_units(void *ctx, int worker, int team)
{
    split_job *const job = ctx;
    const lnrnn_rnn_call *r = job->r;
    const lnrnn_rnn_plan *plan = r->plan;
    const size_t count = lnrnn_all_panels(r).end, steps = row_length(r, 0);
    lnrnn_panels panels = {count * (size_t)worker / (size_t)team,
                           count * ((size_t)worker + 1) / (size_t)team};
    const split_memory m = memory_of(r, worker);
    size_t *const position = group_positions(r); /* worker 0 advances it, once all have read it */
    const size_t first_step = *position;
    size_t t0 = first_step, active = active_rows(r, 0, r->B, t0);
    int64_t left = r->part > 0 ? whole_number(r->part * team) : INT64_MAX;
    begin(job, worker, team, &m, active, t0);
    for (size_t t1; t0 < steps && left > 0; t0 = t1) {
        active = active_rows(r, 0, active, t0);
        t1 =
            lnrnn_affordable_steps(r, active, t0, steps - t0 < plan->chunk ? steps : t0 + plan->chunk, &left);
        split_chunk(job, worker, team, panels, &m, active, t0, t1, first_step);
        /* The next chunk overwrites this one, whose last step another worker may still be reading. And if a
         * worker has been seen to lose its core, worker 0 goes on alone. */
        if (team > 1) {
            if (!worker)
                job->alone = __atomic_load_n(&job->barrier.oversubscribed, __ATOMIC_RELAXED);
            wait_for_all(job, team);
            if (job->alone && worker)
                return;
            if (job->alone)
                team = 1, panels = lnrnn_all_panels(r);
        }
    }
    if (worker)
        return;
    *position = t0;
    if (t0 >= steps) {
        lnrnn_finish_rows(r, 0, r->B);
        *position = LNRNN_DONE;
    }
}

void lnrnn_forward_split(const lnrnn_rnn_call *r)
{
    split_job job = {.r = r};
    lnrnn_team(lnrnn_threads_now(r->plan), split_units, &job);
}
