/* The time loop for threads that divide the units of a group of sequences.
 *
 * A step of few sequences takes the time of reading the weights. So each thread of a group has some of the panels
 * of W_ih and W_hh, which may then stay in its own L2 cache, and computes their columns of every product. A panel
 * between two threads is computed by both, by each for some of the rows: 14 panels of 40 vectors in all are not two
 * times seven of 20. Barriers stand after W_hh h of each step, when W_ih x of its chunk is there too, before it if it is
 * added to W_ih x, and where a part of a call begins. Then there are two ways to the states, between which the plan
 * chooses (cost_model.c):
 *     Each thread makes those of all rows for itself: normalising and activating what another thread computes
 *     too costs less than a second barrier, if rows are few. Thread 0 of the group writes h to y and c to cn,
 *     the others to rows of their own. With separate products W_hh h is double-buffered, so that a fast thread
 *     cannot overwrite rows still being read.
 *     plan->divide_rows: each makes those of its share of the rows, in y and cn, and a second barrier stands
 *     before the next step's product, which reads all of them.
 *
 * Groups never meet. If there are fewer threads than planned for, they are divided anew among the groups, down to one
 * thread for several. Every number is computed in the order in which one thread would compute it. A call that is done
 * in parts stops at the same step in all threads of a group, as each counts the cost of all columns. */
#include <string.h>

#include "rnn/layer.h"
#include "lnrnn/kernels/table.h"
#include "lnrnn/tuning.h"
#include "rnn/forward.h"
#include "rnn/rows.h"
#include "rnn/step.h"
#include "rnn/zoneout.h"
#include "runtime/threads.h"

/* A group of sequences and its threads. */
typedef struct {
    int alone;        /* thread 0 goes on by itself */
    char padding[60]; /* what two groups write lies in different cache lines */
    lnrnn_barrier barrier;
} split_group;

typedef struct {
    const lnrnn_rnn_call *r;
    split_group groups[LNRNN_MOST_SHARED];
} split_job;

/* What a thread computes in and with; all threads of a group have the same chunk and hidden. Rows of G*H values have
 * stride plan->wide, rows of H plan->narrow. */
typedef struct {
    float *chunk;  /* (chunk, group, G*H): W_ih x of a chunk */
    float *hidden; /* (2, group, G*H): W_hh h of an even and of an odd step, if the products are separate */
    float *h, *c;  /* (group, H): the states of threads other than 0, where each makes those of all rows */
    float *old_h, *old_c; /* (group, H): with zoneout the states before a step */
    float *cell;          /* config->cell_scratch floats */
    uint32_t *product;
} split_memory;

/* A thread of a group: thread `index` of `team`, which has rows r0 .. r0 + rows - 1. */
typedef struct {
    const lnrnn_rnn_call *r;
    split_group *group;
    int index, team;
    size_t r0, rows,
        first_step; /* the first step of this part of the call, which starts from the caller's h */
    lnrnn_share share;
    split_memory m;
} split_thread;

static split_memory memory_of(const lnrnn_rnn_call *r, size_t group, int worker)
{
    const lnrnn_rnn_plan *p = r->plan;
    const lnrnn_rnn_scratch *s = &p->scratch;
    float *const shared = r->scratch + group * s->shared;
    float *const own = r->scratch + p->groups * s->shared + (size_t)worker * s->worker;
    return (split_memory){.chunk = shared,
                          .hidden = shared + s->hidden,
                          .h = own,
                          .c = own + s->own_c,
                          .old_h = own + s->old_h,
                          .old_c = own + s->old_c,
                          .cell = own + s->cell,
                          .product = (uint32_t *)(own + s->product)};
}

static void wait_for_all(const split_thread *w)
{
    if (w->team > 1)
        lnrnn_barrier_wait(&w->group->barrier, w->team);
}

/* Has this thread states of its own? */
static int keeps_own(const split_thread *w) { return w->index && !w->r->plan->divide_rows; }

/* state_rows of this thread: those of rows first .. first + n - 1 of the group, n <= TILE. */
static void own_state_rows(const split_thread *w, size_t first, size_t n, size_t t, const float **h_prev,
                           float **c, float **h)
{
    const size_t narrow = w->r->plan->narrow;
    state_rows(w->r, w->r0 + first, n, t, h_prev, c, h);
    for (size_t i = 0; keeps_own(w) && i < n; i++) {
        if (t > w->first_step)
            h_prev[i] = w->m.h + (first + i) * narrow;
        c[i] = w->m.c + (first + i) * narrow;
        h[i] = w->m.h + (first + i) * narrow;
    }
}

/* Before step t0, the first of this part of the call: the cell states of this thread. */
static void begin(const split_thread *w, size_t active, size_t t0)
{
    const lnrnn_rnn_call *r = w->r;
    const size_t H = r->config->H;
    for (size_t i = 0; keeps_own(w) && r->cn && i < active; i++)
        memcpy(w->m.c + i * r->plan->narrow, (t0 ? r->cn : r->c0) + state_at(r, w->r0 + i),
               H * sizeof(float));
    if (r->cn) /* before thread 0 changes them */
        wait_for_all(w);
    if (!w->index && t0 == 0)
        lnrnn_begin_rows(r, w->r0, w->rows);
}

/* W_hh h of step t, or the sum, in the columns of this thread -> a (active, G*H). */
static void own_columns(const split_thread *w, size_t active, size_t t, float *a)
{
    const size_t wide = w->r->plan->wide;
    const float *h_prev[TILE];
    float *c[TILE], *h[TILE];
    for (size_t i = 0; i < active; i += TILE) {
        const size_t n = active - i < TILE ? active - i : TILE;
        own_state_rows(w, i, n, t, h_prev, c, h);
        lnrnn_hidden_product(w->r, n, t, h_prev, w->share, a + i * wide, (ptrdiff_t)wide, w->m.product);
    }
}

/* Before a step of rows first .. first + rows->n - 1: what zoneout may keep. A thread's own states are overwritten by
 * the step. */
static void remember_states(const split_thread *w, size_t first, const lnrnn_step_rows *rows)
{
    const lnrnn_rnn_config *c = w->r->config;
    const size_t narrow = w->r->plan->narrow, bytes = c->H * sizeof(float);
    for (size_t i = 0; c->zoneout_h > 0 && i < rows->n; i++)
        memcpy(w->m.old_h + (first + i) * narrow, rows->h_prev[i], bytes);
    for (size_t i = 0; c->zoneout_c > 0 && i < rows->n; i++)
        memcpy(w->m.old_c + (first + i) * narrow, rows->c[i], bytes);
}

/* The states of rows first .. first + n - 1 of the group after step t, n <= TILE. x, hidden (n, G*H): of these
 * rows; x NULL: hidden is the sum of both products. */
static void make_states(const split_thread *w, size_t first, size_t n, size_t t, const float *x,
                        float *hidden)
{
    const lnrnn_rnn_call *r = w->r;
    const size_t narrow = r->plan->narrow;
    const ptrdiff_t stride = (ptrdiff_t)r->plan->wide;
    const int keeps = lnrnn_has_zoneout(r->config);
    const float *h_prev[TILE];
    float *c[TILE], *h[TILE];
    own_state_rows(w, first, n, t, h_prev, c, h);
    const lnrnn_step_rows rows = {.n = n,
                                  .x = x,
                                  .xs = stride,
                                  .a = hidden,
                                  .as = stride,
                                  .h_prev = h_prev,
                                  .c = c,
                                  .h = h,
                                  .scratch = w->m.cell};
    if (keeps)
        remember_states(w, first, &rows);
    lnrnn_step_cell(r, &(lnrnn_folds){0}, w->r0 + first, t, &rows, 0);
    for (size_t i = 0; keeps && i < n; i++)
        lnrnn_zoneout_row(r, w->r0 + first + i, t, w->m.old_h + (first + i) * narrow,
                          w->m.old_c + (first + i) * narrow, h[i], c[i]);
}

/* Steps t0 .. t1 - 1, t1 - t0 <= plan->chunk. */
static void split_chunk(const split_thread *w, size_t active, size_t t0, size_t t1)
{
    const lnrnn_rnn_call *r = w->r;
    const int separate = r->config->separate_products, divided = r->plan->divide_rows;
    const size_t wide = r->plan->wide, index = (size_t)w->index, team = (size_t)w->team;
    const ptrdiff_t stride = (ptrdiff_t)wide;
    float *x = w->m.chunk;
    lnrnn_input_product(r, w->r0, active, t0, t1, w->share, x, stride, w->m.product);
    if (!separate) /* the rows of a panel that is cut are divided anew in each product, by their number */
        wait_for_all(w);
    for (size_t t = t0; t < t1; t++, x += active * wide) {
        active = active_rows(r, w->r0, active, t);
        float *const hidden = separate ? w->m.hidden + t % 2 * r->plan->group * wide : x;
        own_columns(w, active, t, hidden);
        wait_for_all(w);
        const size_t first = divided ? active * index / team : 0,
                     end = divided ? active * (index + 1) / team : active;
        for (size_t i = first, n; i < end; i += n) {
            n = end - i < TILE ? end - i : TILE;
            make_states(w, i, n, t, separate ? x + i * wide : NULL, hidden + i * wide);
        }
        if (divided && t + 1 < t1) /* a chunk has a barrier at its end */
            wait_for_all(w);
    }
}

/* A part of a group, by one of its threads. */
static void split_steps(split_thread *w, size_t *position, int64_t *left)
{
    const lnrnn_rnn_call *r = w->r;
    const size_t steps = row_length(r, w->r0), chunk = r->plan->chunk;
    size_t t0 = *position, active = active_rows(r, w->r0, w->rows, t0);
    w->first_step = t0;
    begin(w, active, t0);
    for (size_t t1; t0 < steps && *left > 0; t0 = t1) {
        active = active_rows(r, w->r0, active, t0);
        t1 = lnrnn_affordable_steps(r, active, t0, steps - t0 < chunk ? steps : t0 + chunk, left);
        split_chunk(w, active, t0, t1);
        /* The next chunk overwrites this one, whose last step another thread may still be reading. And if a
         * thread has been seen to lose its core, thread 0 goes on alone. */
        if (w->team > 1) {
            if (!w->index)
                w->group->alone = __atomic_load_n(&w->group->barrier.oversubscribed, __ATOMIC_RELAXED);
            wait_for_all(w);
            if (w->group->alone && w->index)
                return;
            if (w->group->alone)
                w->team = 1, w->share = lnrnn_share_of(r, 0, 1);
        }
    }
    if (w->index)
        return;
    *position = t0; /* all have read it */
    if (t0 >= steps) {
        lnrnn_finish_rows(r, w->r0, w->rows);
        *position = LNRNN_DONE;
    }
}

static void split_units(void *ctx, int worker, int team)
{
    split_job *const job = ctx;
    const lnrnn_rnn_call *r = job->r;
    const lnrnn_rnn_plan *p = r->plan;
    const int groups = (int)p->groups, most = team / groups < 1 ? 1 : team / groups,
              each = most < p->divide_units ? most : p->divide_units,
              at_a_time = team < groups ? team : groups;
    const size_t index = (size_t)(worker % each);
    int64_t left = r->part > 0 ? whole_number(r->part * each) : INT64_MAX;
    if (worker / each >= at_a_time) /* more threads than can be divided evenly */
        return;
    for (int g = worker / each; g < groups && left > 0; g += at_a_time) {
        const size_t r0 = (size_t)g * p->group;
        const int alone = !row_length(r, r0); /* sequences without steps: nothing to meet for */
        split_thread w = {
            .r = r,
            .group = &job->groups[g],
            .index = (int)index,
            .team = alone ? 1 : each,
            .r0 = r0,
            .rows = r->B - r0 < p->group ? r->B - r0 : p->group,
            .share = lnrnn_share_of(r, index, (size_t)each),
            .m = memory_of(r, (size_t)g, worker),
        };
        if (!(alone && index) && group_positions(r)[g] != LNRNN_DONE)
            split_steps(&w, group_positions(r) + g, &left);
    }
}

int lnrnn_forward_split(const lnrnn_rnn_call *r)
{
    const lnrnn_rnn_plan *p = r->plan;
    split_job job = {.r = r};
    lnrnn_team(lnrnn_threads_now(p), split_units, &job);
    for (size_t g = 0; g < p->groups; g++)
        if (group_positions(r)[g] != LNRNN_DONE)
            return 0;
    return 1;
}

/* Two directions of a layer, each with half of the threads; one thread alone does one after the other. */
static void split_both(void *ctx, int worker, int team)
{
    split_job *const job = ctx;
    const int first = team / 2, second = worker >= first;
    if (!first)
        split_units(&job[0], 0, 1);
    split_units(&job[second], second ? worker - first : worker, second ? team - first : first);
}

void lnrnn_forward_split_pair(const lnrnn_rnn_call *const r[2], int threads)
{
    split_job job[2] = {{.r = r[0]}, {.r = r[1]}};
    lnrnn_team(threads, split_both, job);
}
