/* A step between its products and its states, for every cell, norm and placement: step.c. */
#ifndef LNRNN_STEP_H
#define LNRNN_STEP_H

#include "rnn/layer.h"
#include "lnrnn/kernels/table.h"

/* A site's mean, scale and shift (width), where its statistics are those of the batch at this step: it reads
 * v as (v - mean) * scale + shift. All NULL where they are not. */
typedef struct {
    const float *mean, *scale, *shift;
} lnrnn_fold;

/* Floats of `work` for lnrnn_step_statistics: mean, m2 (2, n) doubles, and mean, scale, shift (3, n) floats,
 * for the widest site. */
static inline size_t lnrnn_statistics_work(const lnrnn_rnn_config *config) { return 7 * config->outputs + 2; }

/* a (active, width), row stride as: what the site reads at step t -> its fold, in work, and the batch's
 * statistics in the caller's arrays. */
lnrnn_fold lnrnn_step_statistics(const lnrnn_rnn_call *r, int site, size_t active, size_t t, const float *a,
                                 ptrdiff_t as, float *work);

/* Those of the two sides of a step. */
typedef struct {
    lnrnn_fold input, hidden;
} lnrnn_folds;

/* Of each, r0 is the first of the n rows. Both sides and the cell: the states of these rows at step t. deferred_output:
 * an LSTM's h are not finished, as the norm of c needs the statistics of all rows: lnrnn_step_output is to follow. */
void lnrnn_step_cell(const lnrnn_rnn_call *r, const lnrnn_folds *folds, size_t r0, size_t t,
                     const lnrnn_step_rows *rows, int deferred_output);

/* The deferred h: of rows n, c and h are used. fold: that of the norm of c. */
void lnrnn_step_output(const lnrnn_rnn_call *r, lnrnn_fold fold, size_t r0, size_t t,
                       const lnrnn_step_rows *rows);

#endif
