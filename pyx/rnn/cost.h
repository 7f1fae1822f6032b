/* What the work on a recurrent layer costs, in multiply-adds: by this a call is done in parts
 * (runtime/resumable.h). */
#ifndef LNRNN_COST_H
#define LNRNN_COST_H

#include "rnn/layer.h"
#include "rnn/rows.h"

/* A step of so many rows: products of G*H values with k numbers each. Norms and activations count as some
 * more of them, and a step without rows is not free. */
static inline double step_cost(const lnrnn_rnn_call *r, double rows, size_t k)
{
    return 1024 + rows * (double)r->config->outputs * (double)(k + 32);
}

/* All steps of all groups. */
static inline double all_steps_cost(const lnrnn_rnn_call *r, size_t k)
{
    return step_cost(r, (double)all_rows(r), k) + 1024 * (double)r->plan->groups * (double)r->T;
}

#endif
