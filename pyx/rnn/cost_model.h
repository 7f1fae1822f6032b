/* Predicts the time of a step of a recurrent layer, and of a call, for a division among threads
 * (cost_model.c). */
#ifndef LNRNN_COST_MODEL_H
#define LNRNN_COST_MODEL_H

#include <stddef.h>

#include "rnn/layer.h"
#include "runtime/thread_policy.h"

/* Exported for the Cython module. */
#pragma GCC visibility push(default)

/* The work of a step of a layer, from which the cost model predicts its time. */
struct lnrnn_step_work {
    size_t rows, inputs, units; /* B, D, and P (P / num_heads with several heads) */
    size_t outputs;             /* G*H */
    size_t projection;          /* P * H, or 0 */
    size_t panels;              /* the number of panels of the weights; a thread has whole panels */
    int dtype;
    int sides;        /* the number of products that the cell reads, 1 or 2 (separate) */
    int at_once;      /* how many layers and directions of this size run at a time */
    int reset_before; /* a step has two products, and so twice as many barriers */
    int layer_norm;
    lnrnn_caches caches;
};

/* Returns the number of panels of weights with `outputs` outputs, for the instruction set in use. */
size_t lnrnn_panels_of(int dtype, size_t outputs);
/* Returns the work of a step of a layer in one direction, with `rows` rows. */
lnrnn_step_work lnrnn_work_of(const lnrnn_rnn_config *config, lnrnn_caches caches, size_t rows);
/* Returns the time in ns of a step that threads divide as `partition` says. The function has the type
 * lnrnn_partition_time. */
double lnrnn_step_time(const lnrnn_step_work *work, lnrnn_partition partition);

/* The next three functions predict a call with its plan, while at_once such calls (layers, directions) run at
 * the same time.
 *
 * Returns the time in ns of one step of one group of sequences. */
double lnrnn_group_step_time(const lnrnn_rnn_call *r, const lnrnn_rnn_plan *p, double at_once);
/* Returns the time in ns in which `threads` threads compute at_once calls like r at the same time. */
double lnrnn_call_time(const lnrnn_rnn_call *r, const lnrnn_rnn_plan *p, double at_once, double threads);
/* Returns the time in ns in which one thread reads W_ih. */
double lnrnn_input_weights_time(const lnrnn_rnn_call *r, const lnrnn_rnn_plan *p, double at_once);

#pragma GCC visibility pop

#endif
