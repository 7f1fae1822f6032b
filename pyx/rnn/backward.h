/* What the two halves of a backward call share: back through time (backward.c), and the products over all
 * rows that follow (weight_gradients.c). */
#ifndef LNRNN_BACKWARD_H
#define LNRNN_BACKWARD_H

#include "lnrnn.h"
#include "lnrnn/kernels/table.h"

typedef struct {
    const lnrnn_rnn_call *r;
    const lnrnn_rnn_config *c;
    const lnrnn_rnn_plan *p;
    const lnrnn_kernels *k;
    const lnrnn_rnn_gradients *g;
    size_t rows;         /* packed rows: those of all steps of all sequences */
    size_t wide, narrow; /* row strides of what has G*H values, of what has H */
    double *sums;        /* (groups + 1, group_sums): the sites' gradients of each group, and their total */
    float *gx, *ga; /* (rows, wide): the gradients of W x and W h; one array where the cell takes their sum */
    float *gh, *gc; /* (B, narrow): the gradient of the state, sequences in order; gc: LSTM */
    size_t *back;   /* (groups): steps that each has gone back */
    size_t *tasks;  /* (lnrnn_gradient_tasks): the position of each of the products over all rows */
    float *work;    /* (threads, worker) */
    size_t worker;  /* floats of a worker's scratch */
} backward_job;

/* --- weight_gradients.c --------------------------------------------------------------------------------- */

/* rows: m pointers to (k) -> c (m, n), row stride cs: the product with w, packed (n, k) of float, added to
 * what c holds (add), or alone. */
void lnrnn_gradient_product(const backward_job *j, size_t m, size_t n, size_t k, const float *const *rows,
                            const uint32_t *w, int add, float *c, size_t cs);
/* The products over all rows as tasks, how many there are, and the floats of scratch
 * that one needs. lnrnn_gradient_task is a task of lnrnn_limited_tasks, ctx the job, index <
 * lnrnn_gradient_tasks. */
size_t lnrnn_gradient_tasks(const backward_job *j);
size_t lnrnn_gradient_work(const backward_job *j);
void lnrnn_gradient_task(void *ctx, size_t index, int worker, int64_t *left);

#endif
