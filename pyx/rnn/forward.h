/* The time loop of a layer: forward.c, and split.c for threads that divide the hidden units. */
#ifndef LNRNN_FORWARD_H
#define LNRNN_FORWARD_H

#include "rnn/layer.h"
#include "runtime/resumable.h"

/* Returns an array (groups): the number of steps that each group has computed. */
static inline size_t *group_positions(const lnrnn_rnn_call *r)
{
    return positions_at(r->scratch + r->plan->scratch.positions);
}

/* Computes the steps of a group from *position up to `until`, and stops earlier when the multiply-adds in
 * *left are used up. Advances *position, to LNRNN_DONE after the last step (resumable.h). memory:
 * plan->scratch.worker floats, which may change between calls. */
void lnrnn_forward_group(const lnrnn_rnn_call *r, size_t group, float *memory, size_t *position, size_t until,
                         int64_t *left);

/* Runs a call as lnrnn_rnn_forward does, but threads divide the units of groups (split.c). */
int lnrnn_forward_split(const lnrnn_rnn_call *r);
/* Runs two independent calls at the same time as lnrnn_forward_split does, on at most `threads` threads in
 * all. */
void lnrnn_forward_split_pair(const lnrnn_rnn_call *const r[2], int threads);

/* Returns how many threads a call may use now (plan.c). */
int lnrnn_threads_now(const lnrnn_rnn_plan *p);

#endif
