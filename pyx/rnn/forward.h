/* What the two time loops share, that of a group of sequences (forward.c) and that of threads which divide
 * the units (split.c): the products, and the ends of sequences. `work` is plan->product's scratch. */
#ifndef LNRNN_FORWARD_H
#define LNRNN_FORWARD_H

#include "lnrnn.h"
#include "runtime/parts.h"

/* Panels first .. end - 1 of the weights: those of one thread, or all. */
typedef struct {
    size_t first, end;
} lnrnn_panels;

lnrnn_panels lnrnn_all_panels(const lnrnn_rnn_call *r);

/* The steps that each group has taken. */
static inline size_t *group_positions(const lnrnn_rnn_call *r)
{
    return positions_at(r->scratch + r->plan->scratch.positions);
}

/* Of steps t0 .. t1 - 1 of so many rows those for which enough remains, one at least: spends it. -> the step
 * at which to stop. */
size_t lnrnn_affordable_steps(const lnrnn_rnn_call *r, size_t rows, size_t t0, size_t t1, int64_t *left);

/* Rows r0 .. r0 + active - 1, steps t0 .. t1 - 1 -> x, row stride xs: W_ih x of the active rows, packed. */
void lnrnn_input_product(const lnrnn_rnn_call *r, size_t r0, size_t active, size_t t0, size_t t1,
                         lnrnn_panels panels, float *x, ptrdiff_t xs, uint32_t *work);

/* Normalises what lnrnn_input_product has written, of the steps t0 + first, t0 + first + every, ... */
void lnrnn_normalise_inputs(const lnrnn_rnn_call *r, size_t r0, size_t active, size_t t0, size_t t1,
                            size_t first, size_t every, float *x, ptrdiff_t xs);

/* h_prev: n pointers to (H), n <= TILE -> a (n, G*H), row stride as: W_hh h, or, if the products are not
 * separate, added to the W_ih x in a. */
void lnrnn_hidden_product(const lnrnn_rnn_call *r, size_t n, size_t t, const float *const *h_prev,
                          lnrnn_panels panels, float *a, ptrdiff_t as, uint32_t *work);

/* Before step 0: the cell states of rows r0 .. r0 + rows - 1 become those of c0. */
void lnrnn_begin_rows(const lnrnn_rnn_call *r, size_t r0, size_t rows);
/* After the last step: hn of these rows, each at its own end, and zeros in y past that end. */
void lnrnn_finish_rows(const lnrnn_rnn_call *r, size_t r0, size_t rows);

/* Steps of a group from *position on, which it advances, as parts.h says, to LNRNN_DONE after the last: up to step
 * `until`, and no more than *left allows. memory: plan->scratch.worker floats, which need not keep their values
 * between two calls. */
void lnrnn_forward_group(const lnrnn_rnn_call *r, size_t group, float *memory, size_t *position, size_t until,
                         int64_t *left);

/* split.c: lnrnn_rnn_forward by threads that divide the units of groups. */
int lnrnn_forward_split(const lnrnn_rnn_call *r);
/* The same of two calls at once, which share nothing. threads: no more than the plans of both have together. */
void lnrnn_forward_split_pair(const lnrnn_rnn_call *const r[2], int threads);

/* plan.c: how many threads a call may use now. */
int lnrnn_threads_now(const lnrnn_rnn_plan *p);

#endif
