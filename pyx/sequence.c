/* The time loop of one recurrent layer: which rows are alive, what is projected when, who computes which part.
 *
 * Sequences are sorted by length, longest first, so that the living ones are always the first `alive` rows. A group of
 * them goes through time together; groups never meet, and threads take groups. Inside a group rows are packed, step
 * after step, only the living: padding is neither projected nor normalised. The rows of a chunk of steps are projected by
 * one product, W_ih x, and normalised there if W_ih x has a norm of its own; each step then adds W_hh h to its rows, or keeps
 * it beside them, and step.c turns them into states.
 *
 * With few sequences threads divide the units instead: see split_units.
 *
 * Batch norm that takes its statistics from the batch needs all rows of a step at once: then there is one group.
 */
#include <string.h>

#include "lnrnn.h"
#include "lnrnn/kernels.h"
#include "lnrnn/rows.h"

/* Floats of projected rows that a group keeps: a size that stays in L2 beside the weights, or, where these do not, one
 * weight in so many, so that W_ih is not read again after a few steps (tests/benchmarks, lstm B8-H1024). */
enum { CHUNK = 32 * 1024, WEIGHTS = 16 };

/* Multiply-adds that are worth waking another thread for: some 50 us of one core. */
enum { SHARE = 4 << 20 };

/* From here on, some 10 ms, a lost slice is no longer what the time is made of. */
enum { LARGE = 1 << 30 };

/* Multiply-adds of a step that are worth a meeting of threads. */
enum { STEP = 1 << 15 };

size_t lnrnn_packed_size(int dtype, size_t n, size_t k)
{
    return lnrnn_product_of(lnrnn_active(), dtype)->size(dtype, n, k);
}

void lnrnn_pack(int dtype, size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs, uint32_t *packed)
{
    lnrnn_product_of(lnrnn_active(), dtype)->pack(dtype, n, k, w, rs, cs, packed);
}

size_t lnrnn_tape_width(const lnrnn_rnn *r)
{
    const lnrnn_kernels *k = lnrnn_active();
    return tape_record(r, k->product->width(outputs(r)), k->product->width(r->H)).width;
}

/* What the product wants for rows of either size. */
static size_t product_work(const lnrnn_kernels *k, const lnrnn_rnn *r)
{
    return lnrnn_product_of(k, r->dtype)->scratch(r->dtype, r->D > r->H ? r->D : r->H);
}

/* Is the side of W x made step by step? With a tape W x itself must stay; statistics of the batch are those of a step. */
static int late_side(const lnrnn_rnn *r) { return has_side(r) && (r->tape || synchronous(r)); }

/* A group's memory. */
typedef struct {
    float *a, *b, *side; /* W x of a chunk (chunk, group, G*H); W h, if apart, and late sides, of a step (group, G*H) */
    float *statistics, *cell;
    uint32_t *product;
} room;

/* The parts of a worker's memory, from base, if that is not NULL. -> how many floats. */
static size_t divide(const lnrnn_kernels *k, const lnrnn_rnn *r, float *base, room *m)
{
    const size_t rows = r->group * k->product->width(outputs(r));
    const size_t b = r->tape ? 0 : r->chunk * rows, side = b + (two(r) && !r->tape ? rows : 0);
    const size_t statistics = side + (late_side(r) ? rows : 0), cell = statistics + statistics_work(r);
    const size_t scratch = cell + cell_work(r);
    if (base)
        *m = (room){base, base + b, base + side, base + statistics, base + cell, (uint32_t *)(base + scratch)};
    return scratch + product_work(k, r);
}

static size_t worker_work(const lnrnn_kernels *k, const lnrnn_rnn *r) { return divide(k, r, NULL, NULL); }

/* Where threads divide the units: what a thread has for itself. */
static size_t split_work(const lnrnn_kernels *k, const lnrnn_rnn *r)
{
    return r->B * k->product->width(r->H) * (r->cell == LNRNN_LSTM ? 2 : 1) + cell_work(r) + product_work(k, r);
}

static size_t threads_work(const lnrnn_kernels *k, const lnrnn_rnn *r)
{
    if (r->split)
        return (r->chunk + (two(r) ? 2 : 0)) * r->B * k->product->width(outputs(r)) + (size_t)r->threads * split_work(k, r);
    return (size_t)r->threads * worker_work(k, r);
}

size_t lnrnn_rnn_plan(lnrnn_rnn *r)
{
    const lnrnn_kernels *k = lnrnn_active();
    const size_t n = outputs(r), width = k->product->width(n);
    const double products = (double)all_rows(r) * (double)n * (double)(r->D + r->H);
    if (r->threads > 1 + products / SHARE)
        r->threads = 1 + (int)(products / SHARE);
    if (r->threads > 1 && products < LARGE && lnrnn_crowded())
        r->threads = 1;
    /* Few sequences to a thread are bound by reading the weights: dividing these is worth a meeting a step, if the step is
     * long enough (tests/benchmarks, rnn with two threads). */
    r->split = r->threads > 1 && !synchronous(r) && !r->tape && r->B < (size_t)r->threads * 4 && r->B <= TILE
        && r->B * n * r->H >= STEP && k->product->panels(n) >= (size_t)r->threads;
    r->group = synchronous(r) || r->split ? r->B : TILE;
    /* Fewer sequences to a group where that gives every thread one. With a tape the groups are the tape's order, and
     * backward, which may have another number of threads, must find the same. */
    if (!synchronous(r) && r->tape)
        r->group = TILE / 2;
    else if (!synchronous(r) && !r->split && (size_t)r->threads * TILE > r->B)
        r->group = (r->B + (size_t)r->threads - 1) / (size_t)r->threads;
    if (r->group < 1)
        r->group = 1;
    const size_t most = width * (r->D + r->H) / WEIGHTS;
    r->chunk = (most > CHUNK ? most : CHUNK) / (r->group * width);
    if (r->chunk > r->T)
        r->chunk = r->T;
    if (r->chunk < 1)
        r->chunk = 1;
    return threads_work(k, r) + 2 * groups(r) + 2;
}

/* The steps that each group has taken, behind what the threads work with. */
static size_t *positions(const lnrnn_kernels *k, const lnrnn_rnn *r) { return sizes_at(r->work + threads_work(k, r)); }

/* Of steps t0 .. t1 - 1 of so many rows those for which enough remains, one at least: spends it. -> where to stop. */
static size_t afford(const lnrnn_rnn *r, size_t rows, size_t t0, size_t t1, int64_t *left)
{
    const double one = step_cost(r, (double)rows, r->D + r->H), all = (double)remaining(left);
    if (all < one * (double)(t1 - t0))
        t1 = t0 + 1 + (size_t)((all > 0 ? all : 0) / one);
    spend(left, one * (double)(t1 - t0));
    return t1;
}

/* Panels p0 .. p1 - 1 of the units: one thread's part of a product, or all of it. */
typedef struct {
    size_t p0, p1;
} part;

static part whole(const lnrnn_kernels *k, const lnrnn_rnn *r) { return (part){0, k->product->panels(outputs(r))}; }

/* rows: n pointers, at most TILE, to inputs (inputs) -> a (n, G*H), as apart: the product with w, added to what a holds
 * (add), to the inner biases (if not NULL), or alone. back: through the weights from their end. */
static void product(const lnrnn_kernels *k, const lnrnn_rnn *r, size_t n, size_t inputs, const float *const *rows,
                    const uint32_t *w, part p, const float *inner, int add, int back, float *a, ptrdiff_t as,
                    uint32_t *scratch)
{
    const size_t N = outputs(r);
    if (inner) {
        const size_t from = k->product->start(N, p.p0), end = k->product->start(N, p.p1), to = end < N ? end : N;
        for (size_t i = 0; i < n && from < to; i++)
            memcpy(a + (ptrdiff_t)i * as + from, inner + from, (to - from) * sizeof *a);
    }
    lnrnn_product_of(k, r->dtype)->matmul(r->dtype, n, N, inputs, rows, w, p.p0, p.p1, add || inner, back, a, as, scratch);
}

/* Rows r0 .., steps t0 .. t1 - 1 -> a: W_ih x of the living rows, packed, as apart. */
static void project(const lnrnn_kernels *k, const lnrnn_rnn *r, size_t r0, size_t alive, size_t t0, size_t t1, part p,
                    float *a, ptrdiff_t as, uint32_t *scratch)
{
    const float *rows[TILE];
    size_t n = 0;
    for (size_t t = t0; t < t1; t++) {
        alive = living(r, r0, alive, t);
        for (size_t i = 0; i < alive; i++) {
            rows[n++] = x_row(r, r0 + i, t);
            if (n == TILE) {
                product(k, r, n, r->D, rows, r->w_ih, p, r->inner_x, 0, 0, a, as, scratch);
                a += (ptrdiff_t)n * as;
                n = 0;
            }
        }
    }
    if (n)
        product(k, r, n, r->D, rows, r->w_ih, p, r->inner_x, 0, 0, a, as, scratch);
}

/* The sides of W x in a, of steps t0 .. t1 - 1, every `stride`th of them from `first`: where they do not wait for their step. */
static void sides(const lnrnn_rnn *r, size_t r0, size_t alive, size_t t0, size_t t1, size_t first, size_t stride, float *a,
                  ptrdiff_t as)
{
    for (size_t t = t0; t < t1; t++) {
        alive = living(r, r0, alive, t);
        if ((t - t0) % stride == first)
            lnrnn_step_side(r, (lnrnn_fold){0}, alive, t, a, as, a, as);
        a += (ptrdiff_t)alive * as;
    }
}

/* a (n, G*H) = or += W_hh h, h: n pointers, at most TILE. Every other step goes through the weights backwards: of weights
 * that do not all stay in the cache, those that do are then the first to be used again. */
static void recur(const lnrnn_kernels *k, const lnrnn_rnn *r, size_t n, size_t t, const float *const *h, part p, float *a,
                  ptrdiff_t as, uint32_t *scratch)
{
    product(k, r, n, r->H, h, r->w_hh, p, r->inner_h, !two(r), (int)((r->start + t) % 2), a, as, scratch);
}

/* The state pointers of rows first .. first + n - 1 at step t. */
static void point(const lnrnn_rnn *r, size_t first, size_t n, size_t t, const float **before, float **c, float **h)
{
    for (size_t j = 0; j < n; j++) {
        before[j] = h_row(r, first + j, t);
        c[j] = c_row(r, first + j);
        h[j] = y_row(r, first + j, t);
    }
}

/* Cell states, all_c (alive, H), cs apart, that need the batch's statistics: h is to be made of them when those of all
 * rows are known. */
static void late_out(const lnrnn_rnn *r, size_t r0, size_t alive, size_t t, const float *all_c, ptrdiff_t cs, room *m)
{
    const float *before[TILE];
    float *c[TILE], *h[TILE];
    const lnrnn_fold f = lnrnn_step_statistics(r, &r->at_c, r->H, alive, t, all_c, cs, m->statistics);
    for (size_t i = 0; i < alive; i += TILE) {
        const size_t n = alive - i < TILE ? alive - i : TILE;
        point(r, r0 + i, n, t, before, c, h);
        lnrnn_step_out(r, f, &(lnrnn_rows){.n = n, .t = t, .c = c, .h = h});
    }
}

/* a (alive, as apart): W x, or the tape's records. */
static void step(const lnrnn_kernels *k, const lnrnn_rnn *r, size_t r0, size_t alive, size_t t, float *a, ptrdiff_t as,
                 room *m)
{
    const ptrdiff_t width = (ptrdiff_t)k->product->width(outputs(r)), bs = r->tape ? as : width;
    const record e = tape_record(r, (size_t)width, k->product->width(r->H));
    float *const b = !two(r) ? a : r->tape ? a + e.h : m->b, *x = a;
    ptrdiff_t xs = as;
    const float *before[TILE];
    float *c[TILE], *h[TILE];
    const int batch = from_batch(r, t);
    lnrnn_fold f = {0};
    for (size_t i = 0; i < alive; i += TILE) {
        const size_t n = alive - i < TILE ? alive - i : TILE;
        for (size_t j = 0; j < n; j++)
            before[j] = h_row(r, r0 + i + j, t);
        recur(k, r, n, t, before, whole(k, r), b + (ptrdiff_t)i * bs, bs, m->product);
    }
    if (late_side(r)) {
        if (batch)
            f = lnrnn_step_statistics(r, &r->at_x, outputs(r), alive, t, a, as, m->statistics);
        lnrnn_step_side(r, f, alive, t, a, as, m->side, width);
        x = m->side, xs = width;
    }
    if (batch)
        f = lnrnn_step_statistics(r, &r->at_h, outputs(r), alive, t, b, bs, m->statistics);
    const int late = batch && r->cell_norm != LNRNN_CELL_NONE;
    float *const all_c = r->tape ? a + e.c : m->b; /* W h has been used up when c takes its place */
    for (size_t i = 0; i < alive; i += TILE) {
        const size_t n = alive - i < TILE ? alive - i : TILE;
        point(r, r0 + i, n, t, before, c, h);
        const lnrnn_rows rows = {
            .n = n, .t = t, .x = two(r) ? x + (ptrdiff_t)i * xs : NULL, .xs = xs, .a = b + (ptrdiff_t)i * bs, .as = bs,
            .before = before, .c = c, .h = h, .scratch = m->cell,
            .keep = r->tape && r->cell != LNRNN_RNN ? a + e.gates + (ptrdiff_t)i * as : NULL};
        lnrnn_step_cell(r, f, &rows, late);
        if (r->cell == LNRNN_LSTM && (r->tape || late))
            for (size_t j = 0; j < n; j++)
                memcpy(all_c + (ptrdiff_t)(i + j) * bs, c[j], r->H * sizeof(float));
    }
    if (late)
        late_out(r, r0, alive, t, all_c, bs, m);
}

/* Before step 0: the cell states from which rows r0 .. start. */
static void begin(const lnrnn_rnn *r, size_t r0, size_t rows)
{
    for (size_t i = r0; r->cn && r->cn != r->c0 && i < r0 + rows; i++)
        memmove(c_row(r, i), r->c0 + (size_t)r->order[i] * r->H, r->H * sizeof(float));
}

/* The state of rows r0 .. at their ends, and zeros past these. */
static void finish(const lnrnn_rnn *r, size_t r0, size_t rows)
{
    for (size_t i = r0; i < r0 + rows; i++) {
        const size_t n = (size_t)r->length[i];
        memmove(r->hn + (size_t)r->order[i] * r->H, h_row(r, i, n), r->H * sizeof(float));
        for (size_t t = n; t < r->T; t++)
            memset(r->y + (ptrdiff_t)t * r->yt + r->order[i] * r->yb, 0, r->H * sizeof(float));
    }
}

static void forward_group(void *ctx, size_t g, int worker, int64_t *left)
{
    const lnrnn_rnn *r = ctx;
    const lnrnn_kernels *k = lnrnn_active();
    const size_t r0 = g * r->group, rows = r->B - r0 < r->group ? r->B - r0 : r->group, steps = (size_t)r->length[r0];
    const size_t as = r->tape ? lnrnn_tape_width(r) : k->product->width(outputs(r));
    size_t *const at = positions(k, r) + g, t0 = *at, alive = rows;
    float *tape = r->tape ? r->tape + (rows_before(r, r0) + rows_until(r, r0, rows, t0)) * as : NULL;
    room m;
    divide(k, r, r->work + (size_t)worker * worker_work(k, r), &m);
    if (t0 == 0)
        begin(r, r0, rows);
    for (size_t t1; t0 < steps && remaining(left) > 0; t0 = t1) {
        alive = living(r, r0, alive, t0);
        t1 = afford(r, alive, t0, steps - t0 < r->chunk ? steps : t0 + r->chunk, left);
        float *a = tape ? tape : m.a;
        project(k, r, r0, alive, t0, t1, whole(k, r), a, (ptrdiff_t)as, m.product);
        if (has_side(r) && !late_side(r))
            sides(r, r0, alive, t0, t1, 0, 1, a, (ptrdiff_t)as);
        for (size_t t = t0; t < t1; t++) {
            alive = living(r, r0, alive, t);
            step(k, r, r0, alive, t, a, (ptrdiff_t)as, &m);
            a += alive * as;
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

/* --- few sequences: threads divide the units ------------------------------------------------------------------ */

typedef struct {
    const lnrnn_rnn *r;
    int alone;
    lnrnn_barrier barrier;
} split_job;

/* Each thread keeps its panels of W_ih and W_hh in its own L2 and computes their part of every step's products. Then all
 * meet, once a step. After that each has all of the products, and makes of them all of the state, for itself: normalising
 * twice what another has normalised too costs less than meeting twice. Worker 0's h is y, its c is cn; the others' are
 * rows of their own. W h that stays apart from W x has two places, for one step and the next: who is early writes to the
 * other. Every number is computed in the order in which one thread would compute it. A part of a call ends for all of them
 * at the same step, for all count what it costs in the same way. */
static void split_units(void *ctx, int worker, int team)
{
    split_job *j = ctx;
    const lnrnn_rnn *r = j->r;
    const lnrnn_kernels *k = lnrnn_active();
    const size_t B = r->B, H = r->H, width = k->product->width(outputs(r)), narrow = k->product->width(H), all = whole(k, r).p1;
    const ptrdiff_t as = (ptrdiff_t)width;
    part p = {all * (size_t)worker / (size_t)team, all * ((size_t)worker + 1) / (size_t)team};
    float *const chunk = r->work, *const apart = chunk + r->chunk * B * width;
    float *const own = apart + (two(r) ? 2 * B * width : 0) + (size_t)worker * split_work(k, r), *const own_c = own + B * narrow;
    float *const cell = own_c + (r->cell == LNRNN_LSTM ? B * narrow : 0);
    uint32_t *const scratch = (uint32_t *)(cell + cell_work(r));
    size_t *const at = positions(k, r), from = *at; /* worker 0 moves it on when all have met */
    const size_t steps = (size_t)r->length[0];
    const float *before[TILE];
    float *c[TILE], *h[TILE];
    size_t t0 = from, alive = living(r, 0, B, from);
    int64_t left = r->part > 0 ? whole_number(r->part * team) : INT64_MAX;
    for (size_t i = 0; worker && r->cn && i < alive; i++)
        memcpy(own_c + i * narrow, (from ? r->cn : r->c0) + (size_t)r->order[i] * H, H * sizeof(float));
    if (team > 1 && r->cn) /* before worker 0 changes them */
        lnrnn_meet(&j->barrier, team);
    if (!worker && from == 0)
        begin(r, 0, B);
    for (size_t t1; t0 < steps && left > 0; t0 = t1) {
        alive = living(r, 0, alive, t0);
        t1 = afford(r, alive, t0, steps - t0 < r->chunk ? steps : t0 + r->chunk, &left);
        float *a = chunk;
        project(k, r, 0, alive, t0, t1, p, a, as, scratch);
        if (has_side(r)) {
            if (team > 1)
                lnrnn_meet(&j->barrier, team);
            sides(r, 0, alive, t0, t1, (size_t)worker, (size_t)team, a, as); /* the next meeting is that of the first step */
        }
        for (size_t t = t0; t < t1; t++) {
            alive = living(r, 0, alive, t);
            point(r, 0, alive, t, before, c, h);
            for (size_t i = 0; worker && i < alive; i++) {
                before[i] = t > from ? own + i * narrow : before[i];
                c[i] = own_c + i * narrow;
                h[i] = own + i * narrow;
            }
            float *const b = two(r) ? apart + t % 2 * B * width : a;
            recur(k, r, alive, t, before, p, b, as, scratch);
            if (team > 1)
                lnrnn_meet(&j->barrier, team);
            const lnrnn_rows rows = {.n = alive, .t = t, .x = two(r) ? a : NULL, .xs = as, .a = b, .as = as,
                                     .before = before, .c = c, .h = h, .scratch = cell};
            lnrnn_step_cell(r, (lnrnn_fold){0}, &rows, 0);
            a += alive * width;
        }
        /* The next chunk is written over this one, whose last step another may still be reading. And if a partner has
         * been seen to lose its core, worker 0 goes on alone. */
        if (team > 1) {
            if (!worker)
                j->alone = __atomic_load_n(&j->barrier.late, __ATOMIC_RELAXED);
            lnrnn_meet(&j->barrier, team);
            if (j->alone && worker)
                return;
            if (j->alone)
                team = 1, p = whole(k, r);
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

int lnrnn_rnn_forward(const lnrnn_rnn *r)
{
    size_t *const at = positions(lnrnn_active(), r);
    if (!r->resumed)
        memset(at, 0, groups(r) * sizeof *at);
    if (r->split) {
        split_job j = {.r = r};
        lnrnn_team(r->threads, split_units, &j);
        return *at == LNRNN_DONE;
    }
    return lnrnn_limited_tasks(groups(r), r->threads, at, all_steps_cost(r, r->D + r->H), r->part, forward_group, (void *)r);
}
