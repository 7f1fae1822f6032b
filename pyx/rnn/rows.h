/* What the files of the recurrent layer share: which row of which array a step of a sequence is, the tasks
 * of a call that is done in parts, and the steps between the products and the states.
 *
 * Sequences are sorted by length, longest first, so that the active ones, those that have not ended, are
 * always the first rows. Rows are packed, step after step, only the active ones: so are the tape's. */
#ifndef LNRNN_ROWS_H
#define LNRNN_ROWS_H

#include "lnrnn.h"
#include "lnrnn/kernels/table.h"

/* Rows whose pointers are gathered for one call of the product. */
enum { TILE = 64 };

/* Does step t take its statistics from the batch? */
static inline int from_batch(const lnrnn_rnn_call *r, size_t t)
{
    return r->start + t >= r->plan->batch_from;
}

/* Active rows before row r0, all steps: where its part of the tape starts. */
static inline size_t rows_before(const lnrnn_rnn_call *r, size_t r0)
{
    size_t n = 0;
    for (size_t i = 0; i < r0; i++)
        n += (size_t)r->length[i];
    return n;
}

static inline size_t all_rows(const lnrnn_rnn_call *r) { return rows_before(r, r->B); }

/* Active rows of the `rows` sequences from r0 on before their step t: where step t stands in their part of
 * the tape. */
static inline size_t rows_until(const lnrnn_rnn_call *r, size_t r0, size_t rows, size_t t)
{
    size_t n = 0;
    for (size_t i = r0; i < r0 + rows; i++)
        n += (size_t)r->length[i] < t ? (size_t)r->length[i] : t;
    return n;
}

/* The row of sequence i (in order) at its step t: the caller's step, counted from the end if reversed. */
static inline ptrdiff_t at_step(const lnrnn_rnn_call *r, size_t i, size_t t)
{
    return (ptrdiff_t)(r->config->reverse ? (size_t)r->length[i] - 1 - t : t);
}

static inline const float *x_row(const lnrnn_rnn_call *r, size_t i, size_t t)
{
    return r->x + at_step(r, i, t) * r->xt + r->order[i] * r->xb;
}

static inline float *y_row(const lnrnn_rnn_call *r, size_t i, size_t t)
{
    return r->y + at_step(r, i, t) * r->yt + r->order[i] * r->yb;
}

/* What step t starts from. */
static inline const float *h_row(const lnrnn_rnn_call *r, size_t i, size_t t)
{
    return t ? y_row(r, i, t - 1) : r->h0 + (size_t)r->order[i] * r->config->H;
}

static inline float *c_row(const lnrnn_rnn_call *r, size_t i)
{
    return r->cn ? r->cn + (size_t)r->order[i] * r->config->H : NULL;
}

/* Of the rows r0 .. r0 + active - 1, how many are still active at step t? */
static inline size_t active_rows(const lnrnn_rnn_call *r, size_t r0, size_t active, size_t t)
{
    while (active && (size_t)r->length[r0 + active - 1] <= t)
        active--;
    return active;
}

/* --- parts.c: tasks with a limit ------------------------------------------------------------------------ */

/* The position of a task that is finished. */
#define LNRNN_DONE SIZE_MAX

/* Runs those of n tasks that are not finished, until each thread has done about `part` multiply-adds, or,
 * if part is 0 or all n cost no more than that, to their end. A task goes on from at[index], moves it on,
 * spends what that cost, and stops when nothing remains, because it or the others have spent it. ->
 * whether all are finished. */
int lnrnn_limited_tasks(size_t n, int threads, const size_t *at, double cost, double part,
                        void (*task)(void *ctx, size_t index, int worker, int64_t *left), void *ctx);

static inline int64_t remaining(const int64_t *left) { return __atomic_load_n(left, __ATOMIC_RELAXED); }

static inline int64_t whole_number(double cost) { return cost < 9e18 ? (int64_t)cost : INT64_MAX; }

static inline void spend(int64_t *left, double cost)
{
    __atomic_sub_fetch(left, (int64_t)cost, __ATOMIC_RELAXED);
}

/* What a step of so many rows costs: products of G*H values with k numbers each. Norm and gates count as
 * some more of them, and a step without rows is not free. */
static inline double step_cost(const lnrnn_rnn_call *r, double rows, size_t k)
{
    return 1024 + rows * (double)r->config->outputs * (double)(k + 32);
}

/* Those of all steps. */
static inline double all_steps_cost(const lnrnn_rnn_call *r, size_t k)
{
    return step_cost(r, (double)all_rows(r), k) + 1024 * (double)r->plan->groups * (double)r->T;
}

/* Memory for sizes at or behind p. */
static inline size_t *sizes_at(float *p)
{
    return (size_t *)(((uintptr_t)p + sizeof(size_t) - 1) & ~(sizeof(size_t) - 1));
}

/* --- step.c --------------------------------------------------------------------------------------------- */

/* Some rows of one step, between their products and their states. */
typedef struct lnrnn_step_rows {
    size_t n, t;
    const float *x; /* (n, G*H): W x as the input side has made it, or NULL */
    ptrdiff_t xs;
    const float *a; /* (n, G*H): W h, or the sum */
    ptrdiff_t as;
    const float *const *h_prev; /* n pointers to (H): GRU */
    float *const *c;            /* n pointers to (H): LSTM */
    float *const *h;            /* n pointers to (H) */
    float *saved_gates;         /* (n, G*H), as apart, or NULL: gets the gates */
    float *scratch;             /* config->cell_scratch floats */
} lnrnn_step_rows;

/* Mean, scale and shift of a site at a step whose statistics are the batch's; NULL where they are not. */
typedef struct {
    const float *mean, *scale, *shift;
} lnrnn_fold;

/* Floats of `work` for lnrnn_step_statistics: mean, m2 (2, n) doubles, and at, scale, shift (3, n) floats,
 * for the widest site. */
static inline size_t lnrnn_statistics_work(const lnrnn_rnn_config *config) { return 7 * config->outputs + 2; }
/* Statistics of step t over a (active, width), as apart -> the fold, in work, and the caller's arrays. */
lnrnn_fold lnrnn_step_statistics(const lnrnn_rnn_call *r, int site, size_t active, size_t t, const float *a,
                                 ptrdiff_t as, float *work);
/* x (n, G*H), xs apart: W x of step t -> y (n, G*H), ys apart, what the cell adds to W h. y may be x. */
void lnrnn_step_input(const lnrnn_rnn_call *r, lnrnn_fold f, size_t n, size_t t, const float *x, ptrdiff_t xs,
                      float *y, ptrdiff_t ys);
/* The states of these rows. deferred_output: but for lnrnn_step_output, which follows. */
void lnrnn_step_cell(const lnrnn_rnn_call *r, lnrnn_fold f, const lnrnn_step_rows *s, int deferred_output);
void lnrnn_step_output(const lnrnn_rnn_call *r, lnrnn_fold f, const lnrnn_step_rows *s);

/* What a configuration's cell_step may be. */
typedef void lnrnn_cell_step(const lnrnn_kernels *k, const lnrnn_rnn_config *config,
                             const lnrnn_gate_norm *norm, const lnrnn_step_rows *s);
lnrnn_cell_step lnrnn_rnn_step, lnrnn_rnn_separate_step, lnrnn_lstm_step, lnrnn_gru_step, lnrnn_gru_gate_step;

#endif
