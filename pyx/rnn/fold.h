/* Batch norm at inference: a scale and a shift for every step. */
#ifndef LNRNN_FOLD_H
#define LNRNN_FOLD_H

#include <stddef.h>
#include <stdint.h>

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* count (steps): the sequences that training has seen alive at each step. -> how many of the first steps
 * have statistics. */
size_t lnrnn_known_steps(const int64_t *count, size_t steps);

/* A site of batch norm. */
typedef struct {
    size_t known, width;
    int averages;             /* one more row: the means over the known steps, at least one */
    const double *mean, *var; /* (known, width) */
    const float *gain, *bias; /* (width); bias may be NULL: zeros */
    double eps;
} lnrnn_fold_job;
/* -> scale, shift (known, or known + 1, width): scale * a + shift is the normalised a. */
void lnrnn_fold(const lnrnn_fold_job *f, float *scale, float *shift);

#pragma GCC visibility pop

#endif
