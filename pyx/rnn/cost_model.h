/* How many threads divide what in a step of a recurrent layer, by what it takes: cost_model.c. */
#ifndef LNRNN_COST_MODEL_H
#define LNRNN_COST_MODEL_H

#include <stddef.h>

#include "rnn/layer.h"

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* The work of a step. */
typedef struct {
    size_t rows, inputs, units; /* B, D, H */
    size_t outputs;             /* G*H */
    size_t panels;              /* of the weights: what threads divide the units by */
    int dtype;                  /* of the weights */
    int sides;                  /* rows of G*H that a cell reads: 2 with separate products, else 1 */
    int at_once; /* layers and directions of such a size whose weights are read at the same time, this one too */
} lnrnn_step_work;

/* `groups` of sequences at a time, each by `units` threads. units > 1: they divide the units of a step, and meet. rows:
 * then each makes the states of some of the group's rows, which takes a second barrier; else each makes all. */
typedef struct {
    int groups, units, rows;
} lnrnn_partition;

/* Panels of weights with so many outputs, for the instruction set in use. */
size_t lnrnn_panels_of(int dtype, size_t outputs);
/* A step of a layer in one direction, with so many rows. */
lnrnn_step_work lnrnn_work_of(const lnrnn_rnn_config *config, size_t rows);
/* The ns in which one thread reads W_ih. */
double lnrnn_input_reading(const lnrnn_step_work *work, lnrnn_caches caches);
/* The ns of a step. */
double lnrnn_step_time(const lnrnn_step_work *work, lnrnn_caches caches, lnrnn_partition partition);
/* The partition for up to so many threads that takes the least; the simpler one of nearly equals. */
lnrnn_partition lnrnn_choose_partition(const lnrnn_step_work *work, lnrnn_caches caches, int threads);

/* For tests: what lnrnn_choose_partition returns from now on, where the threads allow it; groups 0: what is best. */
void lnrnn_set_partition(lnrnn_partition partition);

#pragma GCC visibility pop

#endif
