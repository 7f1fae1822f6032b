/* Which row of which array a step of a sequence is: what sequence.c and backward.c share.
 *
 * Sequences are sorted by length, longest first, so that the living ones are always the first `alive` rows. Rows are packed,
 * step after step, only the living: so are the tape's.
 */
#ifndef LNRNN_ROWS_H
#define LNRNN_ROWS_H

#include "lnrnn.h"

/* Rows whose pointers are gathered for one call of the product. */
enum { TILE = 64 };

/* May a step take its statistics from the batch? */
static inline int synchronous(const lnrnn_rnn *r) { return r->norm == LNRNN_NORM_BATCH && (r->mean || r->beyond < 0); }

static inline size_t groups(const lnrnn_rnn *r) { return r->B ? (r->B + r->group - 1) / r->group : 0; }

/* Scratch of a synchronous group: mean, m2 (2, H) doubles, and at, scale, shift (3, H) floats. */
static inline size_t statistics_work(const lnrnn_rnn *r) { return synchronous(r) ? 7 * r->H + 2 : 0; }

/* Living rows before row r0, all steps: where its part of the tape starts. */
static inline size_t rows_before(const lnrnn_rnn *r, size_t r0)
{
    size_t n = 0;
    for (size_t i = 0; i < r0; i++)
        n += (size_t)r->length[i];
    return n;
}

static inline size_t all_rows(const lnrnn_rnn *r) { return rows_before(r, r->B); }

/* The row of sequence i (in order) at its step t: the caller's step, counted from the end if reversed. */
static inline ptrdiff_t at_step(const lnrnn_rnn *r, size_t i, size_t t)
{
    return (ptrdiff_t)(r->reverse ? (size_t)r->length[i] - 1 - t : t);
}

static inline const float *x_row(const lnrnn_rnn *r, size_t i, size_t t)
{
    return r->x + at_step(r, i, t) * r->xt + r->order[i] * r->xb;
}

static inline float *y_row(const lnrnn_rnn *r, size_t i, size_t t)
{
    return r->y + at_step(r, i, t) * r->yt + r->order[i] * r->yb;
}

/* What step t starts from. */
static inline const float *h_row(const lnrnn_rnn *r, size_t i, size_t t)
{
    return t ? y_row(r, i, t - 1) : r->h0 + (size_t)r->order[i] * r->H;
}

/* Of the rows r0 .. r0 + alive - 1, how many still live at step t? */
static inline size_t living(const lnrnn_rnn *r, size_t r0, size_t alive, size_t t)
{
    while (alive && (size_t)r->length[r0 + alive - 1] <= t)
        alive--;
    return alive;
}

#endif
