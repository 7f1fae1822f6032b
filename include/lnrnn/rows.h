/* What sequence.c, step.c, backward.c and parts.c share: which row of which array a step of a sequence is, what kind of cell it is,
 * and what stands in a record of the tape.
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
static inline int synchronous(const lnrnn_rnn *r) { return r->norm == LNRNN_NORM_BATCH && (r->count || r->beyond < 0); }

/* Does step t? */
static inline int from_batch(const lnrnn_rnn *r, size_t t)
{
    return r->norm == LNRNN_NORM_BATCH && (r->count || (r->beyond < 0 && r->start + t >= r->known));
}

static inline size_t gates(const lnrnn_rnn *r) { return r->cell == LNRNN_LSTM ? 4 : r->cell == LNRNN_GRU ? 3 : 1; }

/* Values of a product. */
static inline size_t outputs(const lnrnn_rnn *r) { return gates(r) * r->H; }

/* Is W h kept apart from W x until the cell adds them? */
static inline int two(const lnrnn_rnn *r)
{
    if (r->norm == LNRNN_NORM_NONE)
        return r->cell == LNRNN_GRU;
    return r->placement == LNRNN_SPLIT || (r->cell == LNRNN_GRU && r->placement == LNRNN_GATE);
}

/* Has W x a norm, or a bias, of its own? */
static inline int has_side(const lnrnn_rnn *r) { return two(r) && !(r->norm && r->placement == LNRNN_GATE); }

/* A record of the tape, where parts of it begin, in floats: W x, where it is kept apart; W h, or the sum; the gates; c. */
typedef struct {
    size_t x, h, gates, c, width;
} record;

static inline record tape_record(const lnrnn_rnn *r, size_t wide, size_t narrow)
{
    record e = {0};
    e.h = two(r) ? wide : 0;
    e.gates = e.h + wide;
    e.c = e.gates + (r->cell == LNRNN_RNN ? 0 : wide);
    e.width = e.c + (r->cell == LNRNN_LSTM ? narrow : 0);
    return e;
}

static inline size_t groups(const lnrnn_rnn *r) { return r->B ? (r->B + r->group - 1) / r->group : 0; }

/* Scratch of a synchronous group, for the widest site: mean, m2 (2, n) doubles, and at, scale, shift (3, n) floats. */
static inline size_t statistics_work(const lnrnn_rnn *r) { return synchronous(r) ? 7 * outputs(r) + 2 : 0; }

/* Living rows before row r0, all steps: where its part of the tape starts. */
static inline size_t rows_before(const lnrnn_rnn *r, size_t r0)
{
    size_t n = 0;
    for (size_t i = 0; i < r0; i++)
        n += (size_t)r->length[i];
    return n;
}

static inline size_t all_rows(const lnrnn_rnn *r) { return rows_before(r, r->B); }

/* Living rows of the `rows` sequences from r0 on before their step t: where step t stands in their part of the tape. */
static inline size_t rows_until(const lnrnn_rnn *r, size_t r0, size_t rows, size_t t)
{
    size_t n = 0;
    for (size_t i = r0; i < r0 + rows; i++)
        n += (size_t)r->length[i] < t ? (size_t)r->length[i] : t;
    return n;
}

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

static inline float *c_row(const lnrnn_rnn *r, size_t i) { return r->cn ? r->cn + (size_t)r->order[i] * r->H : NULL; }

/* Of the rows r0 .. r0 + alive - 1, how many still live at step t? */
static inline size_t living(const lnrnn_rnn *r, size_t r0, size_t alive, size_t t)
{
    while (alive && (size_t)r->length[r0 + alive - 1] <= t)
        alive--;
    return alive;
}

/* --- parts.c: tasks with a limit --------------------------------------------------------------------------------------------------- */

/* The position of a task that is finished. */
#define LNRNN_DONE SIZE_MAX

/* Runs those of n tasks that are not finished, until each thread has done about `part` multiply-adds, or, if part is 0 or
 * all n cost no more than that, to their end. A task goes on from at[index], moves it on, spends what that cost, and stops when
 * nothing remains, because it or the others have spent it. -> whether all are finished. */
int lnrnn_limited_tasks(size_t n, int threads, const size_t *at, double cost, double part,
                void (*task)(void *ctx, size_t index, int worker, int64_t *left), void *ctx);

static inline int64_t remaining(const int64_t *left) { return __atomic_load_n(left, __ATOMIC_RELAXED); }

static inline int64_t whole_number(double cost) { return cost < 9e18 ? (int64_t)cost : INT64_MAX; }

static inline void spend(int64_t *left, double cost) { __atomic_sub_fetch(left, (int64_t)cost, __ATOMIC_RELAXED); }

/* What a step of so many rows costs: products of G*H values with k numbers each. Norm and gates count as some more of them,
 * and a step without rows is not free. */
static inline double step_cost(const lnrnn_rnn *r, double rows, size_t k)
{
    return 1024 + rows * (double)outputs(r) * (double)(k + 32);
}

/* Those of all steps. */
static inline double all_steps_cost(const lnrnn_rnn *r, size_t k)
{
    return step_cost(r, (double)all_rows(r), k) + 1024 * (double)groups(r) * (double)r->T;
}

/* Memory for sizes at or behind p. */
static inline size_t *sizes_at(float *p) { return (size_t *)(((uintptr_t)p + sizeof(size_t) - 1) & ~(sizeof(size_t) - 1)); }

/* --- step.c ---------------------------------------------------------------------------------------------------- */

/* Some rows of one step, between their products and their states. */
typedef struct {
    size_t n, t;
    const float *x; /* (n, G*H): W x as its side has made it, or NULL */
    ptrdiff_t xs;
    const float *a; /* (n, G*H): W h, or the sum */
    ptrdiff_t as;
    const float *const *before; /* n pointers to (H): GRU */
    float *const *c;            /* n pointers to (H): LSTM */
    float *const *h;            /* n pointers to (H) */
    float *keep;                /* (n, G*H), as apart, or NULL: gets the gates */
    float *scratch;             /* cell_work(r) floats */
} lnrnn_rows;

/* Mean, scale and shift of a site at a step whose statistics are the batch's; NULL where they are not. */
typedef struct {
    const float *mean, *scale, *shift;
} lnrnn_fold;

/* Statistics of step t over a (alive, n), as apart -> the fold, in work (statistics_work), and the caller's arrays. */
lnrnn_fold lnrnn_step_statistics(const lnrnn_rnn *r, const lnrnn_site *site, size_t n, size_t alive, size_t t,
                                 const float *a, ptrdiff_t as, float *work);
/* x (n, G*H), xs apart: W x of step t -> y (n, G*H), ys apart, what the cell adds to W h. y may be x. */
void lnrnn_step_side(const lnrnn_rnn *r, lnrnn_fold f, size_t n, size_t t, const float *x, ptrdiff_t xs, float *y,
                     ptrdiff_t ys);
/* The states of these rows. late: but for lnrnn_step_out, which follows. */
void lnrnn_step_cell(const lnrnn_rnn *r, lnrnn_fold f, const lnrnn_rows *s, int late);
void lnrnn_step_out(const lnrnn_rnn *r, lnrnn_fold f, const lnrnn_rows *s);

static inline size_t cell_work(const lnrnn_rnn *r)
{
    return r->cell == LNRNN_GRU && r->norm && r->placement == LNRNN_GATE ? 3 * r->H : 0;
}

#endif
