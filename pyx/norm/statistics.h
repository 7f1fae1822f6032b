/* Copies statistics and gradients between doubles, in which they are computed, and the caller's arrays. */
#ifndef LNRNN_STATISTICS_H
#define LNRNN_STATISTICS_H

#include <stddef.h>

#include "lnrnn.h"

/* Exported for the Cython module. */
#pragma GCC visibility push(default)

/* values (n) -> array (n), of floats, or doubles with is_double. If array is NULL, does nothing. add: rounds
 * the values to the array's type and adds them to the array. */
void lnrnn_write_doubles(size_t n, const double *values, void *array, int is_double, int add);

/* Running statistics (C): arrays of floats or doubles, NULL only in training. */
typedef struct {
    void *mean, *var;
    int mean_is_double, var_is_double;
} lnrnn_running;

/* Copies the running statistics to b->mean and b->var. */
void lnrnn_read_running(const lnrnn_batch *b, const lnrnn_running *r);
/* Computes running = (1 - momentum) running + momentum * batch, with the unbiased variance of the batch. */
void lnrnn_update_running(const lnrnn_batch *b, const lnrnn_running *r, double momentum);

#pragma GCC visibility pop

#endif
