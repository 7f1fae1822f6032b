/* Statistics and gradients, which are computed in doubles, to and from the caller's arrays. */
#ifndef LNRNN_STATISTICS_H
#define LNRNN_STATISTICS_H

#include <stddef.h>

#include "lnrnn.h"

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* values (n) -> array (n) of floats or, with is_double, of doubles; NULL: nothing happens. add: values are
 * rounded, and then added to those of the array. */
void lnrnn_write_doubles(size_t n, const double *values, void *array, int is_double, int add);

/* Running statistics (C): arrays of floats or doubles. In training they may be NULL. */
typedef struct {
    void *mean, *var;
    int mean_is_double, var_is_double;
} lnrnn_running;

/* -> b->mean, b->var. */
void lnrnn_read_running(const lnrnn_batch *b, const lnrnn_running *r);
/* running = (1 - momentum) running + momentum * batch. The variance of the batch becomes unbiased. */
void lnrnn_update_running(const lnrnn_batch *b, const lnrnn_running *r, double momentum);

#pragma GCC visibility pop

#endif
