/* Finds the data of a row at some step in each array. A row is an lnrnn_row of layer.h.
 *
 * Rows are sorted by length, longest first, so at every step the active rows (which have not ended) come
 * first. The tape holds the active rows of step 0, then the active rows of step 1, and so on, whatever the
 * groups are. */
#ifndef LNRNN_ROWS_H
#define LNRNN_ROWS_H

#include "rnn/layer.h"
#include "lnrnn/tuning.h"

/* The largest number of rows of h in one product, and of a group without a tape. Chosen by benchmark rnn
 * B64-H128. */
enum { TILE = 64 };

_Static_assert(sizeof(lnrnn_row) == 6 * sizeof(int64_t), "lnrnn/rnn/rows.py makes tables of these columns");
_Static_assert((int)TILE <= (int)LNRNN_MOST_INPUT_ROWS, "rows of x are gathered in an array of so many");

/* Returns the number of rows of a block. Each block has its own sums in the backward pass. The order of sums
 * depends on this number, so it must depend only on the number of rows. A group with a tape consists of whole
 * blocks. */
static inline size_t sum_rows(size_t rows)
{
    size_t n = 4;
    while (rows > 64 * n)
        n *= 2;
    return n;
}

static inline size_t row_length(const lnrnn_rnn_call *r, size_t i) { return (size_t)r->rows[i].length; }

/* Returns the number of active rows of all steps before t, which is where step t begins in the tape. */
static inline size_t rows_until(const lnrnn_rnn_call *r, size_t t)
{
    size_t n = 0;
    for (size_t i = 0; i < r->B; i++)
        n += row_length(r, i) < t ? row_length(r, i) : t;
    return n;
}

static inline size_t all_rows(const lnrnn_rnn_call *r) { return rows_until(r, r->T); }

/* Returns how many of the rows r0 .. r0 + active - 1 are still active at step t. */
static inline size_t active_rows(const lnrnn_rnn_call *r, size_t r0, size_t active, size_t t)
{
    while (active && row_length(r, r0 + active - 1) <= t)
        active--;
    return active;
}

/* Returns how many of the rows r0 .. r0 + rows - 1 are active at step t, given that at least `active` rows
 * are. */
static inline size_t more_active_rows(const lnrnn_rnn_call *r, size_t r0, size_t rows, size_t active,
                                      size_t t)
{
    while (active < rows && row_length(r, r0 + active) > t)
        active++;
    return active;
}

/* Returns the index of step t of row i in the caller's arrays. A reversed row begins at its last step. */
static inline ptrdiff_t at_step(const lnrnn_rnn_call *r, size_t i, size_t t)
{
    const lnrnn_row *row = &r->rows[i];
    return (ptrdiff_t)(row->first + (r->config->reverse ? row->length - 1 - (int64_t)t : (int64_t)t));
}

/* Returns the offset of the state of row i in h0 and hn. */
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

/* Returns h of row i before step t. If y is the norm of h, hn holds h between steps. */
static inline const float *h_row(const lnrnn_rnn_call *r, size_t i, size_t t)
{
    return !t ? r->h0 + h_at(r, i) : r->config->output_norm ? r->hn + h_at(r, i) : y_row(r, i, t - 1);
}

static inline float *c_row(const lnrnn_rnn_call *r, size_t i) { return r->cn ? r->cn + c_at(r, i) : NULL; }

/* masks: r->masks.h or r->masks.c. Returns the mask (width) of row i at step t, or NULL without masks. */
static inline const unsigned char *mask_row(const lnrnn_rnn_call *r, const unsigned char *masks, size_t width,
                                            size_t i, size_t t)
{
    const ptrdiff_t n = (ptrdiff_t)width, column = (ptrdiff_t)r->masks.sequences * n;
    return masks ? masks + at_step(r, i, t) * column + r->rows[i].sequence * n : NULL;
}

/* Returns r->masks.state of row i's sequence, the factors (P) of h in W_hh h. */
static inline const float *state_mask(const lnrnn_rnn_call *r, size_t i)
{
    return r->masks.state + (size_t)r->rows[i].sequence * r->config->P;
}

/* Returns the mean number of inputs that an output of a product reads. blocks: the number of blocks of its
 * weights, or 0: dense. */
static inline size_t read_inputs(const lnrnn_rnn_config *c, size_t blocks, size_t inputs)
{
    const size_t weights = blocks * LNRNN_BLOCK_OUTPUTS * LNRNN_BLOCK_INPUTS;
    return blocks ? (weights + c->outputs - 1) / c->outputs : inputs;
}

/* Returns the number of multiply-adds of a call: each active row of each step is multiplied by all
 * weights. */
static inline double call_multiply_adds(const lnrnn_rnn_call *r)
{
    const lnrnn_rnn_config *c = r->config;
    const size_t inputs = read_inputs(c, c->blocks_ih, c->D) + read_inputs(c, c->blocks_hh, c->head_units);
    return (double)all_rows(r) * ((double)c->outputs * (double)inputs + (double)c->projection);
}

/* Returns the cost of a step of `rows` rows in multiply-adds: G*H outputs with k inputs each, and the
 * projection. Norms and activations count as 32 more inputs, and a step without rows takes some time too.
 * Calls are divided into parts by this cost (runtime/resumable.h). */
static inline double step_cost(const lnrnn_rnn_call *r, double rows, size_t k)
{
    return 1024 + rows * (double)r->config->outputs * (double)(k + 32) + rows * (double)r->config->projection;
}

static inline double all_steps_cost(const lnrnn_rnn_call *r, size_t k)
{
    return step_cost(r, (double)all_rows(r), k) + 1024 * (double)r->plan->groups * (double)r->T;
}

#endif
