/* The place of a row's step in each array. Rows are lnrnn_row of layer.h.
 *
 * Rows are sorted by length, longest first, so the active ones, those that have not ended, come first. In the
 * tape the active rows of each step follow those of the step before: the place of a row does not depend on
 * groups. */
#ifndef LNRNN_ROWS_H
#define LNRNN_ROWS_H

#include "rnn/layer.h"
#include "lnrnn/tuning.h"

/* The most rows of h in one product, and of a group without a tape (rnn B64-H128). */
enum { TILE = 64 };

_Static_assert(sizeof(lnrnn_row) == 6 * sizeof(int64_t), "lnrnn/rnn/rows.py makes tables of these columns");
_Static_assert((int)TILE <= (int)LNRNN_MOST_INPUT_ROWS, "rows of x are gathered in an array of so many");

/* Rows of a block that has sums of its own in the backward pass. It follows from the number of rows alone,
 * and the order of sums from it. A group with a tape has whole blocks. */
static inline size_t sum_rows(size_t rows)
{
    size_t n = 4;
    while (rows > 64 * n)
        n *= 2;
    return n;
}

static inline size_t row_length(const lnrnn_rnn_call *r, size_t i) { return (size_t)r->rows[i].length; }

/* Active rows of all steps before t: where step t begins in the tape. */
static inline size_t rows_until(const lnrnn_rnn_call *r, size_t t)
{
    size_t n = 0;
    for (size_t i = 0; i < r->B; i++)
        n += row_length(r, i) < t ? row_length(r, i) : t;
    return n;
}

static inline size_t all_rows(const lnrnn_rnn_call *r) { return rows_until(r, r->T); }

/* How many of the rows r0 .. r0 + active - 1 are still active at step t? */
static inline size_t active_rows(const lnrnn_rnn_call *r, size_t r0, size_t active, size_t t)
{
    while (active && row_length(r, r0 + active - 1) <= t)
        active--;
    return active;
}

/* How many of the rows r0 .. r0 + rows - 1 are active at step t? At least `active`. */
static inline size_t more_active_rows(const lnrnn_rnn_call *r, size_t r0, size_t rows, size_t active,
                                      size_t t)
{
    while (active < rows && row_length(r, r0 + active) > t)
        active++;
    return active;
}

/* Step t of row i as the caller's arrays count steps: from the row's own end if reversed. */
static inline ptrdiff_t at_step(const lnrnn_rnn_call *r, size_t i, size_t t)
{
    const lnrnn_row *row = &r->rows[i];
    return (ptrdiff_t)(row->first + (r->config->reverse ? row->length - 1 - (int64_t)t : (int64_t)t));
}

/* Where the state of row i stands in h0, hn and their like, and in c0, cn and theirs. */
static inline size_t h_at(const lnrnn_rnn_call *r, size_t i)
{
    return (size_t)r->rows[i].state * r->config->P;
}

static inline size_t c_at(const lnrnn_rnn_call *r, size_t i)
{
    return (size_t)r->rows[i].state * r->config->C;
}

static inline const float *x_row(const lnrnn_rnn_call *r, size_t i, size_t t)
{
    return r->x + at_step(r, i, t) * r->xt + r->rows[i].sequence * r->xb;
}

static inline float *y_row(const lnrnn_rnn_call *r, size_t i, size_t t)
{
    return r->y + at_step(r, i, t) * r->yt + r->rows[i].sequence * r->yb;
}

/* h before step t. If y is its norm, the rows of hn have it meanwhile. */
static inline const float *h_row(const lnrnn_rnn_call *r, size_t i, size_t t)
{
    return !t ? r->h0 + h_at(r, i) : r->config->output_norm ? r->hn + h_at(r, i) : y_row(r, i, t - 1);
}

static inline float *c_row(const lnrnn_rnn_call *r, size_t i) { return r->cn ? r->cn + c_at(r, i) : NULL; }

/* The mask of row i at step t in one of r->masks, (width); NULL where there is none. */
static inline const unsigned char *mask_row(const lnrnn_rnn_call *r, const unsigned char *masks, size_t width,
                                            size_t i, size_t t)
{
    const ptrdiff_t n = (ptrdiff_t)width, column = (ptrdiff_t)r->masks.sequences * n;
    return masks ? masks + at_step(r, i, t) * column + r->rows[i].sequence * n : NULL;
}

/* The factors of h on its way to W h, of row i: those of its sequence. */
static inline const float *state_mask(const lnrnn_rnn_call *r, size_t i)
{
    return r->masks.state + (size_t)r->rows[i].sequence * r->config->P;
}

/* The products of a call: each active row of each step is multiplied by W_ih and W_hh. */
static inline double call_multiply_adds(const lnrnn_rnn_call *r)
{
    return (double)all_rows(r) * (double)r->config->outputs * (double)(r->config->D + r->config->head_units);
}

/* The cost of a step of so many rows, in multiply-adds: products of G*H values with k numbers each. Norms and
 * activations count as 32 more; a step without rows is not free. A call is divided into parts by this cost
 * (runtime/resumable.h). */
static inline double step_cost(const lnrnn_rnn_call *r, double rows, size_t k)
{
    return 1024 + rows * (double)r->config->outputs * (double)(k + 32);
}

/* The cost of all steps of all groups. */
static inline double all_steps_cost(const lnrnn_rnn_call *r, size_t k)
{
    return step_cost(r, (double)all_rows(r), k) + 1024 * (double)r->plan->groups * (double)r->T;
}

#endif
