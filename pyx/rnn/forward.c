/* The time loop of one recurrent layer: which rows are active, what is projected when, who computes which
 * part.
 *
 * Sequences are sorted by length, longest first, so that the active ones are always the first rows. A
 * group of them goes through time together (plan.c). Inside a group rows are packed, step after step, only
 * the active ones: padding is neither projected nor normalised. The rows of a chunk of steps are projected
 * by one product, W_ih x, and normalised there if W_ih x has a norm of its own; each step then adds W_hh h
 * to its rows, or keeps it beside them, and step.c turns them into states. */
#include <string.h>

#include "lnrnn.h"
#include "lnrnn/kernels/table.h"
#include "rnn/rows.h"
#include "runtime/threads.h"

size_t lnrnn_packed_size(int dtype, size_t n, size_t k)
{
    return lnrnn_product_of(lnrnn_active(), dtype)->size(dtype, n, k);
}

void lnrnn_pack(int dtype, size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs, uint32_t *packed)
{
    lnrnn_product_of(lnrnn_active(), dtype)->pack(dtype, n, k, w, rs, cs, packed);
}

/* The memory of a worker that has a group. */
typedef struct {
    /* W x of a chunk (chunk, group, G*H); of a step (group, G*H): W h, where it is separate, and W x
     * behind its norm, where that is deferred */
    float *chunk, *hidden, *input;
    float *statistics, *cell;
    uint32_t *product;
} scratch;

static scratch scratch_of(const lnrnn_rnn_call *r, int worker)
{
    const lnrnn_rnn_plan *p = r->plan;
    float *const base = r->scratch + (size_t)worker * p->scratch.worker;
    return (scratch){base,
                     base + p->scratch.hidden,
                     base + p->scratch.input,
                     base + p->scratch.statistics,
                     base + p->scratch.cell,
                     (uint32_t *)(base + p->scratch.product)};
}

/* The steps that each group has taken. */
static size_t *positions(const lnrnn_rnn_call *r)
{
    return sizes_at(r->scratch + r->plan->scratch.positions);
}

/* Of steps t0 .. t1 - 1 of so many rows those for which enough remains, one at least: spends it. -> where
 * to stop. */
static size_t afford(const lnrnn_rnn_call *r, size_t rows, size_t t0, size_t t1, int64_t *left)
{
    const double one = step_cost(r, (double)rows, r->config->D + r->config->H), all = (double)remaining(left);
    if (all < one * (double)(t1 - t0))
        t1 = t0 + 1 + (size_t)((all > 0 ? all : 0) / one);
    spend(left, one * (double)(t1 - t0));
    return t1;
}

/* Panels p0 .. p1 - 1 of the units: one thread's part of a product, or all of it. */
typedef struct {
    size_t p0, p1;
} part;

static part whole(const lnrnn_rnn_call *r)
{
    return (part){0, r->plan->kernels->product->panels(r->config->outputs)};
}

/* rows: n pointers, at most TILE, to inputs (inputs) -> a (n, G*H), as apart: the product with w, added to
 * what a holds (add), to the inner biases (if not NULL), or alone. back: through the weights from their
 * end. */
static void product(const lnrnn_rnn_call *r, size_t n, size_t inputs, const float *const *rows,
                    const uint32_t *w, part p, const float *inner, int add, int back, float *a, ptrdiff_t as,
                    uint32_t *work)
{
    const size_t N = r->config->outputs;
    if (inner) {
        const lnrnn_product *k = r->plan->kernels->product;
        const size_t from = k->start(N, p.p0), end = k->start(N, p.p1), to = end < N ? end : N;
        for (size_t i = 0; i < n && from < to; i++)
            memcpy(a + (ptrdiff_t)i * as + from, inner + from, (to - from) * sizeof *a);
    }
    const lnrnn_matmul m = {.dtype = r->config->dtype,
                            .n = N,
                            .k = inputs,
                            .w = w,
                            .p0 = p.p0,
                            .p1 = p.p1,
                            .add = add || inner,
                            .backwards = back,
                            .caches = r->plan->caches,
                            .scratch = work};
    r->plan->product->matmul(&m, n, rows, a, as);
}

/* Rows r0 .., steps t0 .. t1 - 1 -> a: W_ih x of the active rows, packed, as apart. */
static void project(const lnrnn_rnn_call *r, size_t r0, size_t active, size_t t0, size_t t1, part p, float *a,
                    ptrdiff_t as, uint32_t *work)
{
    const lnrnn_rnn_config *c = r->config;
    const float *rows[TILE];
    size_t n = 0;
    for (size_t t = t0; t < t1; t++) {
        active = active_rows(r, r0, active, t);
        for (size_t i = 0; i < active; i++) {
            rows[n++] = x_row(r, r0 + i, t);
            if (n == TILE) {
                product(r, n, c->D, rows, r->w_ih, p, c->inner_ih, 0, 0, a, as, work);
                a += (ptrdiff_t)n * as;
                n = 0;
            }
        }
    }
    if (n)
        product(r, n, c->D, rows, r->w_ih, p, c->inner_ih, 0, 0, a, as, work);
}

/* The input sides in a, of steps t0 .. t1 - 1, every `stride`th of them from `first`: where they are not
 * deferred. */
static void input_sides(const lnrnn_rnn_call *r, size_t r0, size_t active, size_t t0, size_t t1, size_t first,
                        size_t stride, float *a, ptrdiff_t as)
{
    for (size_t t = t0; t < t1; t++) {
        active = active_rows(r, r0, active, t);
        if ((t - t0) % stride == first)
            lnrnn_step_input(r, (lnrnn_fold){0}, active, t, a, as, a, as);
        a += (ptrdiff_t)active * as;
    }
}

/* a (n, G*H) = or += W_hh h, h: n pointers, at most TILE. Every other step goes through the weights
 * backwards: of weights that do not all stay in the cache, those that do are then the first to be used
 * again. */
static void recur(const lnrnn_rnn_call *r, size_t n, size_t t, const float *const *h, part p, float *a,
                  ptrdiff_t as, uint32_t *work)
{
    const lnrnn_rnn_config *c = r->config;
    product(r, n, c->H, h, r->w_hh, p, c->inner_hh, !c->separate_products, (int)((r->start + t) % 2), a, as,
            work);
}

/* The state pointers of rows first .. first + n - 1 at step t. */
static void point(const lnrnn_rnn_call *r, size_t first, size_t n, size_t t, const float **h_prev, float **c,
                  float **h)
{
    for (size_t j = 0; j < n; j++) {
        h_prev[j] = h_row(r, first + j, t);
        c[j] = c_row(r, first + j);
        h[j] = y_row(r, first + j, t);
    }
}

/* Cell states, all_c (active, H), cs apart, that need the batch's statistics: h is to be made of them when
 * those of all rows are known. */
static void deferred_output(const lnrnn_rnn_call *r, size_t r0, size_t active, size_t t, const float *all_c,
                            ptrdiff_t cs, const scratch *m)
{
    const float *h_prev[TILE];
    float *c[TILE], *h[TILE];
    const lnrnn_fold f = lnrnn_step_statistics(r, LNRNN_SITE_CELL, active, t, all_c, cs, m->statistics);
    for (size_t i = 0; i < active; i += TILE) {
        const size_t n = active - i < TILE ? active - i : TILE;
        point(r, r0 + i, n, t, h_prev, c, h);
        lnrnn_step_output(r, f, &(lnrnn_step_rows){.n = n, .t = t, .c = c, .h = h});
    }
}

/* a (active, as apart): W x, or the tape's records. The product, the norm of the input side where that is
 * deferred, then the norm of the hidden side and the cell in one kernel. */
static void step(const lnrnn_rnn_call *r, size_t r0, size_t active, size_t t, float *a, ptrdiff_t as,
                 const scratch *m)
{
    const lnrnn_rnn_config *config = r->config;
    const lnrnn_rnn_plan *p = r->plan;
    const ptrdiff_t width = (ptrdiff_t)p->wide, bs = r->tape ? as : width;
    float *const b = !config->separate_products ? a : r->tape ? a + p->tape.h : m->hidden, *x = a;
    ptrdiff_t xs = as;
    const float *h_prev[TILE];
    float *c[TILE], *h[TILE];
    const int batch = from_batch(r, t);
    lnrnn_fold f = {0};
    for (size_t i = 0; i < active; i += TILE) {
        const size_t n = active - i < TILE ? active - i : TILE;
        for (size_t j = 0; j < n; j++)
            h_prev[j] = h_row(r, r0 + i + j, t);
        recur(r, n, t, h_prev, whole(r), b + (ptrdiff_t)i * bs, bs, m->product);
    }
    if (p->deferred_input) {
        if (batch)
            f = lnrnn_step_statistics(r, LNRNN_SITE_INPUT, active, t, a, as, m->statistics);
        lnrnn_step_input(r, f, active, t, a, as, m->input, width);
        x = m->input, xs = width;
    }
    if (batch)
        f = lnrnn_step_statistics(r, LNRNN_SITE_HIDDEN, active, t, b, bs, m->statistics);
    const int deferred = batch && config->cell_norm != LNRNN_CELL_NONE;
    /* W h has been used up when c takes its place. */
    float *const all_c = r->tape ? a + p->tape.c : m->hidden;
    for (size_t i = 0; i < active; i += TILE) {
        const size_t n = active - i < TILE ? active - i : TILE;
        point(r, r0 + i, n, t, h_prev, c, h);
        const lnrnn_step_rows rows = {
            .n = n,
            .t = t,
            .x = config->separate_products ? x + (ptrdiff_t)i * xs : NULL,
            .xs = xs,
            .a = b + (ptrdiff_t)i * bs,
            .as = bs,
            .h_prev = h_prev,
            .c = c,
            .h = h,
            .scratch = m->cell,
            .saved_gates = r->tape && config->saved_gates ? a + p->tape.gates + (ptrdiff_t)i * as : NULL};
        lnrnn_step_cell(r, f, &rows, deferred);
        if (config->cell_state && (r->tape || deferred))
            for (size_t j = 0; j < n; j++)
                memcpy(all_c + (ptrdiff_t)(i + j) * bs, c[j], config->H * sizeof(float));
    }
    if (deferred)
        deferred_output(r, r0, active, t, all_c, bs, m);
}

/* Before step 0: the cell states from which rows r0 .. start. */
static void begin(const lnrnn_rnn_call *r, size_t r0, size_t rows)
{
    const size_t H = r->config->H;
    for (size_t i = r0; r->cn && r->cn != r->c0 && i < r0 + rows; i++)
        memmove(c_row(r, i), r->c0 + (size_t)r->order[i] * H, H * sizeof(float));
}

/* The state of rows r0 .. at their ends, and zeros past these. */
static void finish(const lnrnn_rnn_call *r, size_t r0, size_t rows)
{
    const size_t H = r->config->H;
    for (size_t i = r0; i < r0 + rows; i++) {
        const size_t n = (size_t)r->length[i];
        memmove(r->hn + (size_t)r->order[i] * H, h_row(r, i, n), H * sizeof(float));
        for (size_t t = n; t < r->T; t++)
            memset(r->y + (ptrdiff_t)t * r->yt + r->order[i] * r->yb, 0, H * sizeof(float));
    }
}

static void forward_group(void *ctx, size_t g, int worker, int64_t *left)
{
    const lnrnn_rnn_call *r = ctx;
    const lnrnn_rnn_plan *p = r->plan;
    const size_t r0 = g * p->group, rows = r->B - r0 < p->group ? r->B - r0 : p->group,
                 steps = (size_t)r->length[r0];
    const size_t as = r->tape ? p->tape.width : p->wide;
    size_t *const at = positions(r) + g, t0 = *at, active = rows;
    float *tape = r->tape ? r->tape + (rows_before(r, r0) + rows_until(r, r0, rows, t0)) * as : NULL;
    const scratch m = scratch_of(r, worker);
    if (t0 == 0)
        begin(r, r0, rows);
    for (size_t t1; t0 < steps && remaining(left) > 0; t0 = t1) {
        active = active_rows(r, r0, active, t0);
        t1 = afford(r, active, t0, steps - t0 < p->chunk ? steps : t0 + p->chunk, left);
        float *a = tape ? tape : m.chunk;
        project(r, r0, active, t0, t1, whole(r), a, (ptrdiff_t)as, m.product);
        if (r->config->input_side && !p->deferred_input)
            input_sides(r, r0, active, t0, t1, 0, 1, a, (ptrdiff_t)as);
        for (size_t t = t0; t < t1; t++) {
            active = active_rows(r, r0, active, t);
            step(r, r0, active, t, a, (ptrdiff_t)as, &m);
            a += active * as;
        }
        if (tape)
            tape = a;
    }
    *at = t0;
    if (t0 >= steps) {
        finish(r, r0, rows);
        *at = LNRNN_DONE;
    }
}

/* --- few sequences: threads divide the units ------------------------------------------------------------ */

typedef struct {
    const lnrnn_rnn_call *r;
    int alone;
    lnrnn_barrier barrier;
} split_job;

/* Each thread keeps its panels of W_ih and W_hh in its own L2 and computes their part of every step's
 * products. Then all meet, once a step. After that each has all of the products, and makes of them all of
 * the state, for itself: normalising twice what another has normalised too costs less than meeting twice.
 * Worker 0's h is y, its c is cn; the others' are rows of their own. A separate W h is double-buffered, so
 * that a fast thread cannot overwrite rows that another is still reading. Every number is computed in the
 * order in which one thread would compute it. A part of a call ends for all of them at the same step, for
 * all count what it costs in the same way. */
static void split_units(void *ctx, int worker, int team)
{
    split_job *j = ctx;
    const lnrnn_rnn_call *r = j->r;
    const lnrnn_rnn_config *config = r->config;
    const lnrnn_rnn_plan *plan = r->plan;
    const size_t B = r->B, H = config->H, width = plan->wide, narrow = plan->narrow, all = whole(r).p1;
    const int separate = config->separate_products;
    const ptrdiff_t as = (ptrdiff_t)width;
    part p = {all * (size_t)worker / (size_t)team, all * ((size_t)worker + 1) / (size_t)team};
    float *const chunk = r->scratch, *const hidden = chunk + plan->scratch.hidden;
    float *const own = chunk + plan->scratch.shared + (size_t)worker * plan->scratch.worker;
    float *const own_c = own + plan->scratch.own_c, *const cell = own + plan->scratch.cell;
    uint32_t *const work = (uint32_t *)(own + plan->scratch.product);
    size_t *const at = positions(r), from = *at; /* worker 0 moves it on when all have met */
    const size_t steps = (size_t)r->length[0];
    const float *h_prev[TILE];
    float *c[TILE], *h[TILE];
    size_t t0 = from, active = active_rows(r, 0, B, from);
    int64_t left = r->part > 0 ? whole_number(r->part * team) : INT64_MAX;
    for (size_t i = 0; worker && r->cn && i < active; i++)
        memcpy(own_c + i * narrow, (from ? r->cn : r->c0) + (size_t)r->order[i] * H, H * sizeof(float));
    if (team > 1 && r->cn) /* before worker 0 changes them */
        lnrnn_barrier_wait(&j->barrier, team);
    if (!worker && from == 0)
        begin(r, 0, B);
    for (size_t t1; t0 < steps && left > 0; t0 = t1) {
        active = active_rows(r, 0, active, t0);
        t1 = afford(r, active, t0, steps - t0 < plan->chunk ? steps : t0 + plan->chunk, &left);
        float *a = chunk;
        project(r, 0, active, t0, t1, p, a, as, work);
        if (config->input_side) {
            if (team > 1)
                lnrnn_barrier_wait(&j->barrier, team);
            /* The next barrier is that of the first step. */
            input_sides(r, 0, active, t0, t1, (size_t)worker, (size_t)team, a, as);
        }
        for (size_t t = t0; t < t1; t++) {
            active = active_rows(r, 0, active, t);
            point(r, 0, active, t, h_prev, c, h);
            for (size_t i = 0; worker && i < active; i++) {
                h_prev[i] = t > from ? own + i * narrow : h_prev[i];
                c[i] = own_c + i * narrow;
                h[i] = own + i * narrow;
            }
            float *const b = separate ? hidden + t % 2 * B * width : a;
            recur(r, active, t, h_prev, p, b, as, work);
            if (team > 1)
                lnrnn_barrier_wait(&j->barrier, team);
            const lnrnn_step_rows rows = {.n = active,
                                          .t = t,
                                          .x = separate ? a : NULL,
                                          .xs = as,
                                          .a = b,
                                          .as = as,
                                          .h_prev = h_prev,
                                          .c = c,
                                          .h = h,
                                          .scratch = cell};
            lnrnn_step_cell(r, (lnrnn_fold){0}, &rows, 0);
            a += active * width;
        }
        /* The next chunk is written over this one, whose last step another may still be reading. And if a
         * partner has been seen to lose its core, worker 0 goes on alone. */
        if (team > 1) {
            if (!worker)
                j->alone = __atomic_load_n(&j->barrier.oversubscribed, __ATOMIC_RELAXED);
            lnrnn_barrier_wait(&j->barrier, team);
            if (j->alone && worker)
                return;
            if (j->alone)
                team = 1, p = whole(r);
        }
    }
    if (worker)
        return;
    *at = t0;
    if (t0 >= steps) {
        finish(r, 0, B);
        *at = LNRNN_DONE;
    }
}

int lnrnn_rnn_forward(const lnrnn_rnn_call *r)
{
    const lnrnn_rnn_plan *p = r->plan;
    size_t *const at = positions(r);
    if (!r->resumed)
        memset(at, 0, p->groups * sizeof *at);
    if (p->split) {
        split_job j = {.r = r};
        lnrnn_team(p->threads, split_units, &j);
        return *at == LNRNN_DONE;
    }
    return lnrnn_limited_tasks(p->groups, p->threads, at, all_steps_cost(r, r->config->D + r->config->H),
                               r->part, forward_group, (void *)r);
}
