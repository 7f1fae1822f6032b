/* The time of a step of a recurrent layer, and of a call, for each way to divide it among threads:
 * cost_model.c. */
#ifndef LNRNN_COST_MODEL_H
#define LNRNN_COST_MODEL_H

#include <stddef.h>

#include "rnn/layer.h"
#include "runtime/thread_policy.h"

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* The work of a step (runtime/thread_policy.h declares the type). */
struct lnrnn_step_work {
    size_t rows, inputs, units; /* B, D, and H, or the units of a head */
    size_t outputs;             /* G*H */
    size_t panels;              /* of the weights; threads divide the units by panels */
    int dtype;                  /* of the weights */
    int sides;                  /* rows of G*H that a cell reads: 2 with separate products, else 1 */
    int at_once;                /* layers and directions of this size that are computed at a time */
    lnrnn_caches caches;
};

/* Panels of weights with so many outputs, for the instruction set in use. */
size_t lnrnn_panels_of(int dtype, size_t outputs);
/* A step of a layer in one direction, with so many rows. */
lnrnn_step_work lnrnn_work_of(const lnrnn_rnn_config *config, lnrnn_caches caches, size_t rows);
/* ns of a step: an lnrnn_partition_time. */
double lnrnn_step_time(const lnrnn_step_work *work, lnrnn_partition partition);

/* The next three are of a call with its plan, while at_once layers and directions of its size are computed.
 *
 * ns of one step of one group of sequences. */
double lnrnn_group_step_time(const lnrnn_rnn_call *r, const lnrnn_rnn_plan *p, double at_once);
/* ns of all steps of all groups, of at_once such calls on `threads` threads. */
double lnrnn_call_time(const lnrnn_rnn_call *r, const lnrnn_rnn_plan *p, double at_once, double threads);
/* ns in which one thread reads W_ih. */
double lnrnn_input_weights_time(const lnrnn_rnn_call *r, const lnrnn_rnn_plan *p, double at_once);

#pragma GCC visibility pop

#endif
