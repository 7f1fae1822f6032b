/* The time loop of a layer, over groups of sequences: forward.c, and split.c for threads that divide the
 * units. */
#ifndef LNRNN_FORWARD_H
#define LNRNN_FORWARD_H

#include "rnn/layer.h"
#include "runtime/resumable.h"

/* The steps that each group has taken. */
static inline size_t *group_positions(const lnrnn_rnn_call *r)
{
    return positions_at(r->scratch + r->plan->scratch.positions);
}

/* Takes the steps of a group from *position up to `until`, as far as *left pays for them. Advances *position, to
 * LNRNN_DONE after the last step (resumable.h). memory: plan->scratch.worker floats; they need not stay as they are until the next call. */
void lnrnn_forward_group(const lnrnn_rnn_call *r, size_t group, float *memory, size_t *position, size_t until,
                         int64_t *left);

/* split.c: lnrnn_rnn_forward by threads that divide the units of groups. */
int lnrnn_forward_split(const lnrnn_rnn_call *r);
/* Two calls at once, which share nothing, by at most as many threads as their plans have together. */
void lnrnn_forward_split_pair(const lnrnn_rnn_call *const r[2], int threads);

/* plan.c: how many threads a call may use now. */
int lnrnn_threads_now(const lnrnn_rnn_plan *p);

#endif
