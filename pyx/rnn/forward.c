/* The time loop of one recurrent layer.
 *
 * A plan (plan.c) says how calls of one shape are done. It divides the rows into groups, each of which
 * goes through time by itself, on one thread; rows.h says in which order rows stand. Padding is neither
 * multiplied nor normalised.
 *
 * A group takes its steps in chunks. The product W_ih x of all steps of a chunk comes first: it does not
 * depend on the states, and one product of many rows is faster than many of few. Then each step in turn
 *     1. multiplies: W_hh h, which is added to W_ih x or, with separate products, kept beside it;
 *     2. normalises the sum, or each of the two by itself, and applies the cell: one kernel, sixteen rows at a time, which
 *        are read a second time where they are still in L1 or L2;
 *     3. makes h of an LSTM whose norm of c takes the statistics of the batch, for which all c must be known;
 *     4. with zoneout, keeps some of the states before the step (zoneout.c).
 * Where the batch has to give statistics, they are taken before each of 2 and 3.
 *
 * Where a step takes less that way, some threads divide the units of a group: see split.c. */
#include <string.h>

#include "lnrnn.h"
#include "lnrnn/kernels/table.h"
#include "rnn/cost.h"
#include "rnn/forward.h"
#include "rnn/rows.h"
#include "rnn/step.h"
#include "rnn/zoneout.h"
#include "runtime/floats.h"

/* The way of a step from here: lnrnn_hidden_product, matmul_f32 (kernels/product_f32.h), lnrnn_step_cell
 * (step.c), lstm_step (kernels/lstm_cell.h). */

/* --- the products ----------------------------------------------------------------------------------- */

static lnrnn_cut cut_of(const lnrnn_rnn_call *r, size_t index, size_t team)
{
    const lnrnn_product *k = r->plan->product;
    const size_t N = r->config->outputs, count = k->panels(N), at = k->width(N) * index / team;
    size_t p = count * index / team;
    while (p && k->start(N, p) > at)
        p--;
    while (p < count && k->start(N, p + 1) <= at)
        p++;
    const size_t part = at - k->start(N, p), of = p < count ? k->start(N, p + 1) - k->start(N, p) : 1;
    if (r->config->dtype != LNRNN_WEIGHT_F32)
        return (lnrnn_cut){.panel = p + (2 * part > of), .part = 0, .of = 1};
    return (lnrnn_cut){.panel = p, .part = part, .of = of};
}

lnrnn_share lnrnn_share_of(const lnrnn_rnn_call *r, size_t index, size_t team)
{
    return (lnrnn_share){cut_of(r, index, team), cut_of(r, index + 1, team)};
}

/* Of n rows, how many lie before a cut in its panel. */
static size_t rows_before(lnrnn_cut cut, size_t n) { return (n * cut.part + cut.of / 2) / cut.of; }

/* A product of rows and weights, and where it begins in its outputs. */
typedef struct {
    size_t inputs;
    const uint32_t *w;  /* packed (G*H, inputs) */
    const float *inner; /* (G*H), or NULL */
    int add, from_end;  /* to what is there; through the weights from their end */
} weights_used;

/* rows: n pointers, n <= TILE, to (inputs) -> columns of panels p0 .. p1 - 1 of a (n, G*H), row stride as: rows times
 * w, added to what a holds (add), or to the inner biases. */
static void panels_product(const lnrnn_rnn_call *r, const weights_used *u, size_t n, const float *const *rows,
                           size_t p0, size_t p1, float *a, ptrdiff_t as, uint32_t *work)
{
    const size_t N = r->config->outputs;
    if (!n || p0 >= p1)
        return;
    if (u->inner) {
        const lnrnn_product *k = r->plan->product;
        const size_t from = k->start(N, p0), end = k->start(N, p1), to = end < N ? end : N;
        for (size_t i = 0; i < n && from < to; i++)
            memcpy(a + (ptrdiff_t)i * as + from, u->inner + from, (to - from) * sizeof *a);
    }
    const lnrnn_matmul m = {.dtype = r->config->dtype,
                            .n = N,
                            .k = u->inputs,
                            .w = u->w,
                            .p0 = p0,
                            .p1 = p1,
                            .add = u->add || u->inner ? LNRNN_ADD_ON : LNRNN_ADD_NOT,
                            .from_end = u->from_end,
                            .caches = r->plan->caches,
                            .scratch = work};
    r->plan->product->matmul(&m, n, rows, a, as);
}

/* As panels_product, of a share: all rows in the panels between its cuts, and some in those that are cut. */
static void product(const lnrnn_rnn_call *r, const weights_used *u, size_t n, const float *const *rows,
                    lnrnn_share share, float *a, ptrdiff_t as, uint32_t *work)
{
    size_t p0 = share.from.panel, p1 = share.to.panel;
    const size_t before = rows_before(share.from, n), end = rows_before(share.to, n);
    if (p0 == p1) {
        panels_product(r, u, end - before, rows + before, p0, p0 + 1, a + (ptrdiff_t)before * as, as, work);
        return;
    }
    const int first = !u->from_end; /* which end is computed first: with 1 that of share.from */
    for (int i = 0; i < 3; i++) {
        const int what = first ? i : 2 - i;
        if (what == 0 && before)
            panels_product(r, u, n - before, rows + before, p0, p0 + 1, a + (ptrdiff_t)before * as, as, work);
        if (what == 1)
            panels_product(r, u, n, rows, p0 + (before > 0), p1, a, as, work);
        if (what == 2)
            panels_product(r, u, end, rows, p1, p1 + 1, a, as, work);
    }
}

/* Of n rows of x, how many go through W_ih at a time: as even numbers as they can be, for a few rows that are left over
 * take nearly as long as W_ih takes to be read. */
static size_t rows_at_once(const lnrnn_rnn_call *r, size_t n)
{
    const size_t most = most_input_rows(r->config, r->plan->caches), times = n ? (n + most - 1) / most : 1;
    return r->config->dtype == LNRNN_WEIGHT_F32 ? (n + times - 1) / times : most;
}

void lnrnn_input_product(const lnrnn_rnn_call *r, size_t r0, size_t active, size_t t0, size_t t1,
                         lnrnn_share share, float *x, ptrdiff_t xs, uint32_t *work)
{
    const lnrnn_rnn_config *c = r->config;
    const weights_used w_ih = {.inputs = c->D, .w = r->w_ih, .inner = c->inner_ih};
    const float *rows[LNRNN_MOST_INPUT_ROWS];
    const size_t at_once = rows_at_once(r, (t1 - t0) * active);
    size_t n = 0;
    for (size_t t = t0; t < t1; t++) {
        active = active_rows(r, r0, active, t);
        for (size_t i = 0; i < active; i++) {
            rows[n++] = x_row(r, r0 + i, t);
            if (n == at_once) {
                product(r, &w_ih, n, rows, share, x, xs, work);
                x += (ptrdiff_t)n * xs;
                n = 0;
            }
        }
    }
    if (n)
        product(r, &w_ih, n, rows, share, x, xs, work);
}

/* Every other step goes through the weights from their end: of weights that do not all stay in the cache,
 * those that do are then the first to be used again. */
void lnrnn_hidden_product(const lnrnn_rnn_call *r, size_t n, size_t t, const float *const *h_prev,
                          lnrnn_share share, float *a, ptrdiff_t as, uint32_t *work)
{
    const lnrnn_rnn_config *c = r->config;
    const weights_used w_hh = {.inputs = c->H,
                               .w = r->w_hh,
                               .inner = c->inner_hh,
                               .add = !c->separate_products,
                               .from_end = (int)(((size_t)r->rows[0].start + t) % 2)};
    product(r, &w_hh, n, h_prev, share, a, as, work);
}

/* --- the ends of rows -------------------------------------------------------------------------- */

void lnrnn_begin_rows(const lnrnn_rnn_call *r, size_t r0, size_t rows)
{
    for (size_t i = r0; r->cn && r->cn != r->c0 && i < r0 + rows; i++)
        memmove(c_row(r, i), r->c0 + state_at(r, i), r->config->H * sizeof(float));
}

void lnrnn_finish_rows(const lnrnn_rnn_call *r, size_t r0, size_t rows)
{
    const size_t H = r->config->H;
    for (size_t i = r0; i < r0 + rows; i++) {
        const lnrnn_row *row = &r->rows[i];
        memmove(r->hn + state_at(r, i), h_row(r, i, row_length(r, i)), H * sizeof(float));
        for (int64_t t = row->first + row->length; t < row->end; t++)
            memset(r->y + t * r->yt + row->sequence * r->yb, 0, H * sizeof(float));
    }
}

/* --- a step of a group ------------------------------------------------------------------------------ */

/* The memory of a worker that has a group. */
typedef struct {
    float *chunk;      /* (chunk, group, G*H): W_ih x of a chunk */
    float *hidden;     /* (group, G*H): W_hh h of a step, with separate products and no tape */
    float *statistics; /* (2, lnrnn_statistics_work): of the input side, or of c; of the hidden side */
    float *old_c;      /* (group, narrow), with zoneout of c */
    float *masked;     /* (TILE, narrow), with masks.state */
    float *cell;       /* config->cell_scratch floats */
    uint32_t *product;
} scratch;

/* base: plan->scratch.worker floats. */
static scratch scratch_at(const lnrnn_rnn_plan *p, float *base)
{
    return (scratch){.chunk = base,
                     .hidden = base + p->scratch.hidden,
                     .statistics = base + p->scratch.statistics,
                     .old_c = base + p->scratch.old_c,
                     .masked = base + p->scratch.masked,
                     .cell = base + p->scratch.cell,
                     .product = (uint32_t *)(base + p->scratch.product)};
}

/* The rows from which a step makes the states. */
typedef struct {
    const float *input; /* (active, G*H): the input side; NULL: hidden is the sum of both products */
    ptrdiff_t input_stride;
    float *hidden; /* (active, G*H): the hidden side */
    ptrdiff_t hidden_stride;
    float *saved_gates; /* (active, G*H), row stride hidden_stride, or NULL */
    float *all_c;       /* (active, H), row stride hidden_stride, or NULL: gets the cell states */
} group_step;

/* The norms of both sides and the cell. deferred_output: as lnrnn_step_cell. */
static void cell_step(const lnrnn_rnn_call *r, const lnrnn_folds *folds, size_t r0, size_t active, size_t t,
                      const group_step *s, int deferred_output, const scratch *m)
{
    const float *h_prev[TILE];
    float *c[TILE], *h[TILE];
    for (size_t i = 0; i < active; i += TILE) {
        const size_t n = active - i < TILE ? active - i : TILE;
        const ptrdiff_t at = (ptrdiff_t)i * s->hidden_stride;
        state_rows(r, r0 + i, n, t, h_prev, c, h);
        const lnrnn_step_rows rows = {.n = n,
                                      .x = s->input ? s->input + (ptrdiff_t)i * s->input_stride : NULL,
                                      .xs = s->input_stride,
                                      .a = s->hidden + at,
                                      .as = s->hidden_stride,
                                      .h_prev = h_prev,
                                      .c = c,
                                      .h = h,
                                      .saved_gates = s->saved_gates ? s->saved_gates + at : NULL,
                                      .scratch = m->cell};
        lnrnn_step_cell(r, folds, r0 + i, t, &rows, deferred_output);
        for (size_t j = 0; s->all_c && j < n; j++)
            memcpy(s->all_c + at + (ptrdiff_t)j * s->hidden_stride, c[j], r->config->H * sizeof(float));
    }
}

/* The deferred h of a step: all_c (active, H), row stride cs, are the cell states of all rows. */
static void output_step(const lnrnn_rnn_call *r, size_t r0, size_t active, size_t t, const float *all_c,
                        ptrdiff_t cs, const scratch *m)
{
    const float *h_prev[TILE];
    float *c[TILE], *h[TILE];
    const lnrnn_fold fold = lnrnn_step_statistics(r, LNRNN_SITE_CELL, active, t, all_c, cs, m->statistics);
    for (size_t i = 0; i < active; i += TILE) {
        const size_t n = active - i < TILE ? active - i : TILE;
        state_rows(r, r0 + i, n, t, h_prev, c, h);
        lnrnn_step_output(r, fold, r0 + i, t, &(lnrnn_step_rows){.n = n, .c = c, .h = h});
    }
}

/* Zoneout after a step, whose rows had the c of m->old_c before it. record: see step; there the c that is carried takes
 * the place of the one before zoneout, which backward makes again. */
static void keep_states(const lnrnn_rnn_call *r, size_t r0, size_t active, size_t t, float *record,
                        const scratch *m)
{
    const lnrnn_rnn_config *c = r->config;
    const lnrnn_rnn_plan *p = r->plan;
    for (size_t i = 0; i < active; i++) {
        float *const state = c_row(r, r0 + i);
        lnrnn_zoneout_row(r, r0 + i, t, h_row(r, r0 + i, t), m->old_c + i * p->narrow, y_row(r, r0 + i, t),
                          state);
        if (record && c->zoneout_c > 0)
            memcpy(record + i * p->tape.width + p->tape.c, state, c->H * sizeof *state);
    }
}

/* Step t of rows r0 .. r0 + active - 1. x (active, G*H), row stride p->wide: their W_ih x. record: that of the first of
 * them in the tape, where the others follow, or NULL. */
static void step(const lnrnn_rnn_call *r, size_t r0, size_t active, size_t t, float *x, float *record,
                 const scratch *m)
{
    const lnrnn_rnn_config *config = r->config;
    const lnrnn_rnn_plan *p = r->plan;
    const ptrdiff_t xs = record ? (ptrdiff_t)p->tape.width : (ptrdiff_t)p->wide;
    for (size_t i = 0; record && i < active; i++)
        memcpy(record + i * p->tape.width, x + i * p->wide, config->outputs * sizeof *x);
    if (record)
        x = record;
    const int separate = config->separate_products,
              from_batch = (size_t)r->rows[0].start + t >= p->batch_from;
    const int deferred_output = from_batch && config->cell_norm != LNRNN_CELL_NONE;
    group_step rows = {.input = separate ? x : NULL,
                       .input_stride = xs,
                       .hidden = !separate ? x
                                 : record  ? x + p->tape.h
                                           : m->hidden,
                       .hidden_stride = xs,
                       .saved_gates = record && config->saved_gates ? x + p->tape.gates : NULL};
    /* Without a tape the cell states take the place of W h: the kernel has read these rows by then. */
    if (config->cell_state && (record || deferred_output))
        rows.all_c = record ? x + p->tape.c : m->hidden;
    lnrnn_folds folds = {0};
    const float *h_prev[TILE];
    for (size_t i = 0; i < active; i += TILE) {
        const size_t n = active - i < TILE ? active - i : TILE;
        for (size_t j = 0; j < n; j++)
            h_prev[j] = h_row(r, r0 + i + j, t);
        if (r->masks.state)
            lnrnn_mask_rows(r, r0 + i, n, h_prev, m->masked);
        lnrnn_hidden_product(r, n, t, h_prev, lnrnn_share_of(r, 0, 1), rows.hidden + (ptrdiff_t)i * xs, xs,
                             m->product);
    }
    if (from_batch && config->input_side)
        folds.input = lnrnn_step_statistics(r, LNRNN_SITE_INPUT, active, t, x, xs, m->statistics);
    if (from_batch)
        folds.hidden = lnrnn_step_statistics(r, LNRNN_SITE_HIDDEN, active, t, rows.hidden, xs,
                                             m->statistics + lnrnn_statistics_work(config));
    for (size_t i = 0; config->zoneout_c > 0 && i < active; i++)
        memcpy(m->old_c + i * p->narrow, c_row(r, r0 + i), config->H * sizeof(float));
    cell_step(r, &folds, r0, active, t, &rows, deferred_output, m);
    if (deferred_output)
        output_step(r, r0, active, t, rows.all_c, xs, m);
    if (lnrnn_has_zoneout(config))
        keep_states(r, r0, active, t, record, m);
}

/* --- groups ----------------------------------------------------------------------------------------- */

/* No more than a thread's part at a time: a thread whose steps cost more than that would else take what is left of the
 * others' parts, and they would wait for it (rnn and lstm B32-H2048 with two threads). And no more than its share of what
 * is left, or the others would wait for its last chunk (rnn B64-H640 with two threads, 24 steps). */
size_t lnrnn_affordable_steps(const lnrnn_rnn_call *r, size_t rows, size_t t0, size_t t1, int64_t *left)
{
    const double cost = step_cost(r, (double)rows, r->config->D + r->config->H),
                 all = (double)remaining(left) > 0 ? (double)remaining(left) : 0,
                 most = r->part > 0 && all > r->part ? r->part : all,
                 share = r->plan->divide_units ? most : all / r->plan->threads,
                 budget = share < most ? share : most;
    if (budget < cost * (double)(t1 - t0))
        t1 = t0 + 1 + (size_t)(budget / cost);
    const double spent = cost * (double)(t1 - t0);
    spend(left, spent < most ? spent : most);
    return t1;
}

void lnrnn_forward_group(const lnrnn_rnn_call *r, size_t group, float *memory, size_t *position, size_t until,
                         int64_t *left)
{
    const lnrnn_rnn_plan *p = r->plan;
    const size_t r0 = group * p->group, rows = r->B - r0 < p->group ? r->B - r0 : p->group;
    const size_t steps = row_length(r, r0), stop = steps < until ? steps : until;
    size_t t0 = *position, active = rows;
    size_t all = r->B,
           before = r->tape ? rows_until(r, t0) : 0; /* of all rows: where step t0 begins in the tape */
    const scratch m = scratch_at(p, memory);
    if (t0 == 0)
        lnrnn_begin_rows(r, r0, rows);
    for (size_t t1; t0 < stop && remaining(left) > 0; t0 = t1) {
        active = active_rows(r, r0, active, t0);
        t1 = lnrnn_affordable_steps(r, active, t0, stop - t0 < p->chunk ? stop : t0 + p->chunk, left);
        float *x = m.chunk;
        lnrnn_input_product(r, r0, active, t0, t1, lnrnn_share_of(r, 0, 1), x, (ptrdiff_t)p->wide, m.product);
        for (size_t t = t0; t < t1; t++) {
            active = active_rows(r, r0, active, t);
            step(r, r0, active, t, x, r->tape ? r->tape + (before + r0) * p->tape.width : NULL, &m);
            x += active * p->wide;
            if (r->tape)
                before += all = active_rows(r, 0, all, t);
        }
    }
    *position = t0;
    if (t0 >= steps) {
        lnrnn_finish_rows(r, r0, rows);
        *position = LNRNN_DONE;
    }
}

static void forward_group(void *ctx, size_t group, int worker, int64_t *left)
{
    const lnrnn_rnn_call *r = ctx;
    lnrnn_forward_group(r, group, r->scratch + (size_t)worker * r->plan->scratch.worker,
                        group_positions(r) + group, SIZE_MAX, left);
}

int lnrnn_rnn_forward(const lnrnn_rnn_call *r)
{
    LNRNN_DEFAULT_FLOATS;
    const lnrnn_rnn_plan *p = r->plan;
    size_t *const positions = group_positions(r);
    if (!r->resumed)
        memset(positions, 0, p->groups * sizeof *positions);
    if (p->divide_units)
        return lnrnn_forward_split(r);
    return lnrnn_limited_tasks(p->groups, lnrnn_threads_now(p), positions,
                               all_steps_cost(r, r->config->D + r->config->H), r->part, forward_group,
                               (void *)r);
}
