/* Statistics and gradients, which are computed in doubles, to and from the caller's arrays. */
#ifndef LNRNN_STATISTICS_H
#define LNRNN_STATISTICS_H

#include <stddef.h>

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* The array has n floats or, with is_double, n doubles. */
void lnrnn_read_doubles(size_t n, const void *array, int is_double, double *values);
/* add: values are rounded, and then added to those of the array. */
void lnrnn_write_doubles(size_t n, const double *values, void *array, int is_double, int add);
/* array = (1 - momentum) array + momentum * batch. unbiased: batch (n) has biased variances of so many
 * values, which are made unbiased; 0: it has means. */
void lnrnn_update_statistic(size_t n, void *array, int is_double, double momentum, const double *batch,
                            size_t unbiased);

#pragma GCC visibility pop

#endif
