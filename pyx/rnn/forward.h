/* What the two time loops share, that of a group of sequences (forward.c) and that of threads which divide
 * the units (split.c): the products, and the ends of sequences. `work` is plan->product's scratch. */
#ifndef LNRNN_FORWARD_H
#define LNRNN_FORWARD_H

#include "rnn/layer.h"
#include "runtime/resumable.h"

/* Where a product is divided: between panels, before `panel`; or within that one, where of n rows the first n * part / of
 * lie before the cut, rounded to a whole number. */
typedef struct {
    size_t panel, part, of;
} lnrnn_cut;

/* What lies between two cuts: the share of one thread, or all. */
typedef struct {
    lnrnn_cut from, to;
} lnrnn_share;

/* The share of thread `index` of `team`: float32 weights are divided evenly, others to the next whole panel, for their
 * rows are packed for the product by each thread that has one of it (kernels/int8_rows.h). */
lnrnn_share lnrnn_share_of(const lnrnn_rnn_call *r, size_t index, size_t team);

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
                         lnrnn_share share, float *x, ptrdiff_t xs, uint32_t *work);

/* h_prev: n pointers to (H), n <= TILE -> a (n, G*H), row stride as: W_hh h, or, if the products are not
 * separate, added to the W_ih x in a. */
void lnrnn_hidden_product(const lnrnn_rnn_call *r, size_t n, size_t t, const float *const *h_prev,
                          lnrnn_share share, float *a, ptrdiff_t as, uint32_t *work);

/* Before step 0: the cell states of rows r0 .. r0 + rows - 1 become those of c0. */
void lnrnn_begin_rows(const lnrnn_rnn_call *r, size_t r0, size_t rows);
/* After the last step: hn of these rows, each at its own end, and zeros in y past that end. */
void lnrnn_finish_rows(const lnrnn_rnn_call *r, size_t r0, size_t rows);

/* Steps of a group from *position on, which it advances, as resumable.h says, to LNRNN_DONE after the last: up to step
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
