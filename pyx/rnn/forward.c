/* The time loop of one recurrent layer.
 *
 * The plan (plan.c) divides the rows into groups. One thread computes all steps of a group; rows.h says how
 * rows are sorted. Steps past the length of a row are not computed. If that is faster, several threads divide
 * the hidden units of a group (split.c).
 *
 * A group computes its steps in chunks. W_ih x does not depend on the states, so one product computes it for
 * all steps of a chunk. Then each step runs through its phases (step.c). */
#include "rnn/forward.h"

#include <string.h>

#include "rnn/rows.h"
#include "rnn/step.h"
#include "runtime/floats.h"

void lnrnn_forward_group(const lnrnn_rnn_call *r, size_t group, float *memory, size_t *position, size_t until,
                         int64_t *left)
{
    lnrnn_step s;
    lnrnn_step_begin(&s, r, group, *position, memory, memory);
    if (s.t == 0)
        lnrnn_step_load(&s);
    const size_t stop = s.length < until ? s.length : until;
    while (s.t < stop && remaining(left) > 0)
        for (const size_t end = lnrnn_step_chunk(&s, stop, left); s.t < end;)
            lnrnn_step_take(&s);
    *position = lnrnn_step_end(&s);
}

static void forward_group(void *ctx, size_t group, int worker, int64_t *left)
{
    const lnrnn_rnn_call *r = ctx;
    lnrnn_forward_group(r, group, r->scratch + (size_t)worker * r->plan->scratch.worker,
                        group_positions(r) + group, SIZE_MAX, left);
}

int lnrnn_rnn_forward(const lnrnn_rnn_call *r)
{
    LNRNN_DEFAULT_FLOATS;
    const lnrnn_rnn_plan *p = r->plan;
    size_t *const positions = group_positions(r);
    if (!r->resumed)
        memset(positions, 0, p->groups * sizeof *positions);
    if (p->divide_units)
        return lnrnn_forward_split(r);
    const double cost = all_steps_cost(r, r->config->D + r->config->head_units);
    if (p->groups == 1 && !r->resumed && (r->part <= 0 || cost <= r->part)) { /* a call shorter than a part */
        int64_t left = INT64_MAX;
        forward_group((void *)r, 0, 0, &left);
        return 1;
    }
    return lnrnn_limited_tasks(p->groups, lnrnn_threads_now(p), positions, cost, r->part, forward_group,
                               (void *)r);
}
