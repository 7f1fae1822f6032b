/* The time loop of one recurrent layer: which rows are alive, what is projected when, who computes which part.
 *
 * Sequences are sorted by length, longest first, so that the living ones are always the first `alive` rows. A group of
 * them goes through time together; groups never meet, and threads take groups. Inside a group rows are packed, step
 * after step, only the living: padding is neither projected nor normalised. The rows of a chunk of steps are projected by
 * one product, W_ih x; each step then adds W_hh h to its rows and turns them into h.
 *
 * With few sequences threads divide the units instead: see split_units.
 *
 * Batch norm that takes its statistics from the batch needs all rows of a step at once: then there is one group.
 */
#include <string.h>

#include "lnrnn.h"
#include "lnrnn/kernels.h"
#include "lnrnn/rows.h"

/* Floats of projected rows that a group keeps, a size that stays in L2 beside the weights. */
enum { CHUNK = 32 * 1024 };

/* Multiply-adds that are worth waking another thread for: some 50 us of one core. */
enum { SHARE = 4 << 20 };

/* From here on, some 10 ms, a lost slice is no longer what the time is made of. */
enum { LARGE = 1 << 30 };

/* Multiply-adds of a step that are worth a meeting of threads. */
enum { STEP = 1 << 15 };

size_t lnrnn_packed_size(int dtype, size_t n, size_t k) { return lnrnn_active()->mm_size(dtype, n, k); }

void lnrnn_pack(int dtype, size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs, uint32_t *packed)
{
    lnrnn_active()->mm_pack(dtype, n, k, w, rs, cs, packed);
}

size_t lnrnn_tape_width(size_t H) { return lnrnn_active()->mm_width(H); }

/* What the product wants for rows of either size. */
static size_t product_work(const lnrnn_kernels *k, const lnrnn_rnn *r)
{
    return k->mm_scratch(r->dtype, r->D > r->H ? r->D : r->H);
}

static size_t worker_work(const lnrnn_kernels *k, const lnrnn_rnn *r)
{
    return (r->tape ? 0 : r->group * r->chunk * k->mm_width(r->H)) + statistics_work(r) + product_work(k, r);
}

size_t lnrnn_rnn_plan(lnrnn_rnn *r)
{
    const lnrnn_kernels *k = lnrnn_active();
    const size_t width = k->mm_width(r->H);
    const double products = (double)all_rows(r) * (double)r->H * (double)(r->D + r->H);
    if (r->threads > 1 + products / SHARE)
        r->threads = 1 + (int)(products / SHARE);
    if (r->threads > 1 && products < LARGE && lnrnn_crowded())
        r->threads = 1;
    /* Few sequences to a thread are bound by reading the weights: dividing these is worth a meeting a step, if the step is
     * long enough (tests/benchmarks, rnn with two threads). */
    r->split = r->threads > 1 && !synchronous(r) && !r->tape && r->B < (size_t)r->threads * 4 && r->B <= TILE
        && r->B * r->H * r->H >= STEP && k->mm_panels(r->H) >= (size_t)r->threads;
    r->group = synchronous(r) || r->split ? r->B : TILE;
    /* Fewer sequences to a group where that gives every thread one. With a tape the groups are the tape's order, and
     * backward, which may have another number of threads, must find the same. */
    if (!synchronous(r) && r->tape)
        r->group = TILE / 2;
    else if (!synchronous(r) && !r->split && (size_t)r->threads * TILE > r->B)
        r->group = (r->B + (size_t)r->threads - 1) / (size_t)r->threads;
    if (r->group < 1)
        r->group = 1;
    r->chunk = CHUNK / (r->group * width);
    if (r->chunk > r->T)
        r->chunk = r->T;
    if (r->chunk < 1)
        r->chunk = 1;
    return r->split ? r->chunk * r->B * width + (size_t)r->threads * (r->B * width + product_work(k, r)) : (size_t)r->threads * worker_work(k, r);
}

/* Where the group that starts at row r0 stops. */
static size_t last_step(const lnrnn_rnn *r, size_t r0)
{
    const size_t n = (size_t)r->length[r0];
    return n < r->end ? n : r->end;
}

/* Panels p0 .. p1 - 1 of the units: one thread's part of a product, or all of it. */
typedef struct {
    size_t p0, p1;
} part;

static part whole(const lnrnn_kernels *k, const lnrnn_rnn *r) { return (part){0, k->mm_panels(r->H)}; }

/* Rows r0 .., steps t0 .. t1 - 1 -> a: W_ih x of the living rows, packed. */
static void project(const lnrnn_kernels *k, const lnrnn_rnn *r, size_t r0, size_t alive, size_t t0, size_t t1, part p,
                    float *a, uint32_t *scratch)
{
    const size_t width = k->mm_width(r->H);
    const float *rows[TILE];
    size_t n = 0;
    for (size_t t = t0; t < t1; t++) {
        alive = living(r, r0, alive, t);
        for (size_t i = 0; i < alive; i++) {
            rows[n++] = x_row(r, r0 + i, t);
            if (n == TILE) {
                k->matmul(r->dtype, n, r->H, r->D, rows, r->w_ih, p.p0, p.p1, 0, 0, a, (ptrdiff_t)width, scratch);
                a += n * width;
                n = 0;
            }
        }
    }
    if (n)
        k->matmul(r->dtype, n, r->H, r->D, rows, r->w_ih, p.p0, p.p1, 0, 0, a, (ptrdiff_t)width, scratch);
}

/* Batch statistics of step t over a (alive, H) -> at, scale, shift (3, H), behind moments (2, H), and the caller's arrays. */
static const float *batch_statistics(const lnrnn_kernels *k, const lnrnn_rnn *r, size_t alive, size_t t, const float *a,
                                     double *moments)
{
    const size_t H = r->H;
    double *mean = moments, *m2 = moments + H;
    float *fold = (float *)(moments + 2 * H);
    k->f32.moments_columns(alive, H, a, (ptrdiff_t)k->mm_width(H), mean, m2);
    if (r->mean) {
        memcpy(r->mean + t * H, mean, H * sizeof *mean);
        for (size_t i = 0; i < H; i++)
            r->var[t * H + i] = m2[i] / (double)alive;
        r->count[t] = (int64_t)alive;
    }
    k->f32.fold(H, mean, m2, (double)alive, r->gain, r->bias, r->eps, fold, fold + H, fold + 2 * H);
    return fold;
}

/* a (alive, H): W_ih x + W_hh h of step t -> h: alive pointers to H floats. */
static void normalise(const lnrnn_kernels *k, const lnrnn_rnn *r, size_t alive, size_t t, const float *a, const float *fold,
                      float *const *h)
{
    const size_t H = r->H;
    const ptrdiff_t width = (ptrdiff_t)k->mm_width(H);
    if (r->norm == LNRNN_NORM_LAYER)
        k->rnn_layer(r->act, alive, H, a, width, r->gain, r->bias, r->eps, h);
    else if (r->norm == LNRNN_NORM_NONE)
        k->rnn_affine(r->act, alive, H, a, width, NULL, NULL, r->bias, h);
    else if (fold)
        k->rnn_affine(r->act, alive, H, a, width, fold, fold + H, fold + 2 * H, h);
    else {
        const size_t step = r->start + t, row = step < r->known ? step : (size_t)r->beyond;
        k->rnn_affine(r->act, alive, H, a, width, NULL, r->scale + row * H, r->shift + row * H, h);
    }
}

/* Does step t take its statistics from the batch? */
static int from_batch(const lnrnn_rnn *r, size_t t)
{
    return r->norm == LNRNN_NORM_BATCH && (r->mean || (r->beyond < 0 && r->start + t >= r->known));
}

/* a (alive, H) += W_hh h, h: alive pointers, at most TILE. Every other step goes through the weights backwards: of weights
 * that do not all stay in the cache, those that do are then the first to be used again. */
static void recur(const lnrnn_kernels *k, const lnrnn_rnn *r, size_t alive, size_t t, const float *const *h, part p, float *a,
                  uint32_t *scratch)
{
    k->matmul(r->dtype, alive, r->H, r->H, h, r->w_hh, p.p0, p.p1, 1, (int)((r->start + t) % 2), a,
              (ptrdiff_t)k->mm_width(r->H), scratch);
}

static void step(const lnrnn_kernels *k, const lnrnn_rnn *r, size_t r0, size_t alive, size_t t, float *a, float *scratch)
{
    uint32_t *const room = (uint32_t *)(scratch + statistics_work(r));
    const size_t width = k->mm_width(r->H);
    const float *h[TILE], *fold = NULL;
    float *y[TILE];
    for (size_t i = 0; i < alive; i += TILE) {
        const size_t m = alive - i < TILE ? alive - i : TILE;
        for (size_t j = 0; j < m; j++)
            h[j] = h_row(r, r0 + i + j, t);
        recur(k, r, m, t, h, whole(k, r), a + i * width, room);
    }
    if (from_batch(r, t)) {
        double *moments = (double *)(((uintptr_t)scratch + 7) & ~(uintptr_t)7);
        fold = batch_statistics(k, r, alive, t, a, moments);
    }
    for (size_t i = 0; i < alive; i += TILE) {
        const size_t m = alive - i < TILE ? alive - i : TILE;
        for (size_t j = 0; j < m; j++)
            y[j] = y_row(r, r0 + i + j, t);
        normalise(k, r, m, t, a + i * width, fold, y);
    }
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

static void forward_group(void *ctx, size_t g, int worker)
{
    const lnrnn_rnn *r = ctx;
    const lnrnn_kernels *k = lnrnn_active();
    const size_t H = r->H, width = k->mm_width(H), r0 = g * r->group;
    const size_t rows = r->B - r0 < r->group ? r->B - r0 : r->group, steps = last_step(r, r0);
    float *own = r->work + (size_t)worker * worker_work(k, r);
    float *scratch = own + (r->tape ? 0 : r->group * r->chunk * width);
    float *tape = r->tape ? r->tape + rows_before(r, r0) * width : NULL;
    size_t alive = living(r, r0, rows, r->begin);
    for (size_t t0 = r->begin; t0 < steps; t0 += r->chunk) {
        const size_t t1 = steps - t0 < r->chunk ? steps : t0 + r->chunk;
        float *a = tape ? tape : own;
        project(k, r, r0, alive, t0, t1, whole(k, r), a, (uint32_t *)(scratch + statistics_work(r)));
        for (size_t t = t0; t < t1; t++) {
            alive = living(r, r0, alive, t);
            step(k, r, r0, alive, t, a, scratch);
            a += alive * width;
        }
        if (tape)
            tape = a;
    }
    if (r->end >= r->T)
        finish(r, r0, rows);
}

/* --- few sequences: threads divide the units ------------------------------------------------------------------ */

typedef struct {
    const lnrnn_rnn *r;
    int alone;
    lnrnn_barrier barrier;
} split_job;

/* Each thread keeps its panels of W_ih and W_hh in its own L2 and computes their part of every step's a. Then all meet, once
 * a step. After that each has the whole of a, and makes of it the whole of h, for itself: normalising twice what another
 * has normalised too costs less than meeting twice. Worker 0's h is y; the others' is a row of their own. Every
 * number is computed in the order in which one thread would compute it. */
static void split_units(void *ctx, int worker, int team)
{
    split_job *j = ctx;
    const lnrnn_rnn *r = j->r;
    const lnrnn_kernels *k = lnrnn_active();
    const size_t B = r->B, H = r->H, width = k->mm_width(H), all = k->mm_panels(H);
    part p = {all * (size_t)worker / (size_t)team, all * ((size_t)worker + 1) / (size_t)team};
    float *own = r->work + r->chunk * B * width + (size_t)worker * (B * width + product_work(k, r));
    uint32_t *scratch = (uint32_t *)(own + B * width);
    const size_t steps = B ? last_step(r, 0) : 0;
    const float *h[TILE];
    float *out[TILE];
    size_t alive = living(r, 0, B, r->begin);
    for (size_t t0 = r->begin; t0 < steps; t0 += r->chunk) {
        const size_t t1 = steps - t0 < r->chunk ? steps : t0 + r->chunk;
        float *a = r->work;
        project(k, r, 0, alive, t0, t1, p, a, scratch);
        for (size_t t = t0; t < t1; t++) {
            alive = living(r, 0, alive, t);
            for (size_t i = 0; i < alive; i++) {
                h[i] = worker && t > r->begin ? own + i * width : h_row(r, i, t);
                out[i] = worker ? own + i * width : y_row(r, i, t);
            }
            recur(k, r, alive, t, h, p, a, scratch);
            if (team > 1)
                lnrnn_meet(&j->barrier, team);
            normalise(k, r, alive, t, a, NULL, out);
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
    if (!worker && r->end >= r->T)
        finish(r, 0, B);
}

void lnrnn_rnn_forward(const lnrnn_rnn *r)
{
    if (r->split) {
        split_job j = {.r = r};
        lnrnn_team(r->threads, split_units, &j);
    } else
        lnrnn_parallel(groups(r), r->threads, forward_group, (void *)r);
}
