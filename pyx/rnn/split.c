/* The time loop if several threads divide the hidden units of a group of sequences.
 *
 * A step of few sequences takes as long as reading the weights. So each thread of a group computes the
 * columns of some panels of W_ih and W_hh, which may stay in its own L2 cache. If panels cannot be divided
 * evenly, two threads share a panel, and each computes some of its rows.
 *
 * The threads meet at a barrier at the beginning of each part of a call, and after W_hh h of each step. They
 * also meet before W_hh h if it is added to W_ih x. cost_model.c decides if the threads also divide the rows
 * of the states (plan->divide_rows). Then a second barrier is before the next product, which reads the states
 * of all rows. If rows are few, this barrier would take longer than computing the states of all rows in each
 * thread. So each thread computes all states: thread 0 writes h to y and c to cn, and the other threads write
 * to their own memory. Separate products W_hh h are double-buffered, so that a fast thread does not overwrite
 * rows that other threads read.
 *
 * If another process takes the core of a thread, all others wait at each barrier. So at the first long wait
 * the team ends, and thread 0 computes all columns of its groups (lnrnn_step_meet).
 *
 * Groups do not wait for each other. If fewer threads start than planned, they are divided among the groups
 * again; one thread may compute several groups. If a call runs in parts, all threads of a group stop at the
 * same step, because each counts the cost of all columns. */
#include <string.h>

#include "lnrnn/tuning.h"
#include "rnn/forward.h"
#include "rnn/rows.h"
#include "rnn/step.h"

typedef struct {
    const lnrnn_rnn_call *r;
    lnrnn_barrier barriers[LNRNN_MOST_SHARED]; /* one for each group */
} split_job;

/* If each thread computes all rows: makes a thread other than 0 write the states to its own memory. */
static void keep_own_states(lnrnn_step *s)
{
    const lnrnn_rnn_call *r = s->r;
    const lnrnn_rnn_plan *p = r->plan;
    for (size_t i = 0; i < s->active; i++) {
        s->h[i] = s->own_h + i * p->h_stride;
        if (r->cn)
            s->c[i] = memcpy(s->own_c + i * p->c_stride, (s->t ? r->cn : r->c0) + c_at(r, s->first + i),
                             r->config->C * sizeof(float));
    }
    s->next_h = 0;
}

/* Returns 1 if this thread continues. If the team has ended, only thread 0 continues. */
static int in_team(const lnrnn_step *s) { return !s->index || s->team > 1; }

/* Computes steps t .. end - 1. */
static void split_chunk(lnrnn_step *s, size_t end)
{
    const lnrnn_rnn_plan *p = s->r->plan;
    if (!s->r->config->separate_products) /* the next product may divide a panel differently */
        lnrnn_step_meet(s);
    while (s->t < end && in_team(s)) {
        s->hidden = s->products + s->t % 2 * p->group * p->wide;
        lnrnn_step_take(s);
        if (p->divide_rows && s->t < end) /* at the end of a chunk there is a barrier anyway */
            lnrnn_step_meet(s);
    }
}

/* Computes some steps of a group, until *left is used up or the team ends, in one of the group's threads. */
static void split_steps(lnrnn_step *s, size_t *position, int64_t *left)
{
    const lnrnn_rnn_call *r = s->r;
    if (s->index && !r->plan->divide_rows)
        keep_own_states(s);
    if (r->cn) /* other threads may still read cn, which thread 0 overwrites */
        lnrnn_step_meet(s);
    if (!s->index && s->t == 0)
        lnrnn_step_load(s);
    while (s->t < s->length && *left > 0 && in_team(s)) {
        split_chunk(s, lnrnn_step_chunk(s, s->length, left));
        lnrnn_step_meet(s); /* the next chunk overwrites this one, which other threads may still read */
    }
    if (!s->index)
        *position = lnrnn_step_end(s); /* now all threads have read *position */
}

static void split_units(void *ctx, int worker, int team)
{
    split_job *const job = ctx;
    const lnrnn_rnn_call *r = job->r;
    const lnrnn_rnn_plan *p = r->plan;
    const int groups = (int)p->groups, most = team / groups < 1 ? 1 : team / groups,
              each = most < p->divide_units ? most : p->divide_units,
              at_a_time = team < groups ? team : groups, index = worker % each;
    int members = each;
    float *const memory = r->scratch + p->groups * p->scratch.shared + (size_t)worker * p->scratch.worker;
    int64_t left = r->part > 0 ? whole_number(r->part * each) : INT64_MAX;
    /* GCOVR_EXCL_BR_LINE: more threads than a machine of two cores starts */
    if (worker / each >= at_a_time) /* the team has more threads than are needed */
        return;
    /* GCOVR_EXCL_BR_START: only if a call pauses, or has more threads than this machine */
    for (int g = worker / each; g < groups && left > 0; g += at_a_time) {
        size_t *const position = group_positions(r) + g;
        const int alone = !row_length(r, (size_t)g * p->group); /* a group without steps has no barrier */
        if ((alone && index) || *position == LNRNN_DONE)
            continue;
        lnrnn_step s;
        lnrnn_step_begin(&s, r, (size_t)g, *position, r->scratch + (size_t)g * p->scratch.shared, memory);
        s.index = index, s.team = alone ? 1 : members, s.barrier = &job->barriers[g];
        s.share = lnrnn_share_of(r, (size_t)index, (size_t)s.team);
        if (!index)
            lnrnn_barrier_begin(s.barrier);
        split_steps(&s, position, &left);
        if (!in_team(&s))
            return;
        members = alone ? members : s.team;
        /* GCOVR_EXCL_BR_STOP */
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

/* Computes the two directions of a layer, each with half of the threads. A single thread computes one
 * direction after the other. */
static void split_both(void *ctx, int worker, int team)
{
    split_job *const job = ctx;
    const int first = team / 2, second = worker >= first;
    if (!first) /* GCOVR_EXCL_BR_LINE: a team of one thread after a fork */
        split_units(&job[0], 0, 1);
    split_units(&job[second], second ? worker - first : worker, second ? team - first : first);
}

void lnrnn_forward_split_pair(const lnrnn_rnn_call *const r[2], int threads)
{
    split_job job[2] = {{.r = r[0]}, {.r = r[1]}};
    lnrnn_team(threads, split_both, job);
}
