/* The work of a recurrent layer in multiply-adds. The number of threads follows from it
 * (runtime/thread_policy.h), and how far a call goes before it returns to serve an interrupt
 * (runtime/resumable.h). */
#ifndef LNRNN_COST_H
#define LNRNN_COST_H

#include "rnn/layer.h"
#include "rnn/rows.h"

/* The products of a call: each active row of each step is multiplied by W_ih and W_hh. */
static inline double call_multiply_adds(const lnrnn_rnn_call *r)
{
    return (double)all_rows(r) * (double)r->config->outputs * (double)(r->config->D + r->config->H);
}

/* A step of so many rows: products of G*H values with k numbers each. Norms and activations count as 32 more.
 * A step without rows is not free. */
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
