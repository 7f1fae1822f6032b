/* Back through time: the gradients of one recurrent layer, from the tape that the forward call kept.
 *
 * A group goes back through its steps. Each step turns the gradient of the state into those of W x and W h, kept for all
 * rows, and hands W_hh's share of the latter to the step before. What these rows then give is the same for every cell and
 * needs no order in time: each row its gradient of x, all of them together those of the weights, summed over the packed
 * rows in their order, whatever the threads.
 */
#include <math.h>
#include <string.h>

#include "lnrnn.h"
#include "lnrnn/kernels.h"
#include "lnrnn/rows.h"

/* Rows of the weights' gradients in a task, and packed rows that a task transposes at once. */
enum { GRADIENT_ROWS = 64, GRADIENT_DEPTH = 256 };

typedef struct {
    const lnrnn_rnn *r;
    const lnrnn_rnn_gradients *g;
    const lnrnn_kernels *k;
    size_t rows, wide, narrow; /* of all sequences; floats from row to row of what has G*H values, of what has H */
    record tape;
    double *sums;   /* (groups + 1, group_sums): each group's, and their total */
    float *gx, *ga; /* (rows, wide): the gradients of W x and W h; one array where the cell takes their sum */
    float *gh, *gc; /* (B, narrow): the gradient of the state, sequences in order; gc: LSTM */
    size_t *back;   /* (groups) steps that each has gone back */
    size_t *tasks;  /* (tasks_after) how far each of the products over all rows is */
    float *work;    /* (threads, worker) */
    size_t worker;
} backward_job;

/* What a worker has for a group: its rows of the state's gradient, and memory for a step. */
typedef struct {
    float *gh, *gc;    /* (group, narrow) */
    float *u, *gu;     /* (group, narrow): see lnrnn_gates_backward; gu: LSTM */
    float *zeros;      /* (2, G*H), as the kernels want them and leave them */
    float *batch;      /* batch_work(r) */
} room;

/* --- the norms ------------------------------------------------------------------------------------------------- */

enum { AT_H, AT_X, AT_C, SITES };

static const lnrnn_site *site_of(const lnrnn_rnn *r, int s) { return s == AT_H ? &r->at_h : s == AT_X ? &r->at_x : &r->at_c; }

/* Values that stand at a site, 0 if the layer does not have it. */
static size_t values(const lnrnn_rnn *r, int s)
{
    return s == AT_C ? (r->cell_norm ? r->H : 0) : s == AT_H || two(r) ? outputs(r) : 0;
}

/* A group's share of ggain and gbias, site after site. */
static lnrnn_site_gradients share(const lnrnn_rnn *r, double *sums, int s)
{
    for (int before = 0; before < s; before++)
        sums += 2 * values(r, before);
    return (lnrnn_site_gradients){sums, sums + values(r, s)};
}

static size_t group_sums(const lnrnn_rnn *r) { return 2 * (values(r, AT_H) + values(r, AT_X) + values(r, AT_C)); }

/* For the widest site two doubles and four floats a value. */
static size_t batch_work(const lnrnn_rnn *r) { return synchronous(r) ? 8 * outputs(r) + 2 : 0; }

/* Batch norm's site_backward: step t was normalised with the statistics that the forward call has written. */
static void batch_backward(const backward_job *j, int s, size_t alive, size_t t, const float *a, ptrdiff_t as, const float *g,
                           float *to, ptrdiff_t gs, lnrnn_site_gradients sum, room *m)
{
    const lnrnn_rnn *r = j->r;
    const lnrnn_site *site = site_of(r, s);
    const size_t N = values(r, s);
    const double *mean = site->mean + t * N, *var = site->var + t * N, n = (double)alive;
    double *s0 = (double *)(((uintptr_t)m->batch + 7) & ~(uintptr_t)7), *s1 = s0 + N;
    float *at = (float *)(s1 + N), *c1 = at + N, *c2 = c1 + N, *scale = c2 + N;
    for (size_t o = 0; o < N; o++)
        at[o] = (float)mean[o];
    memset(s0, 0, 2 * N * sizeof *s0);
    j->k->norm[LNRNN_FLOAT32].sums_columns(alive, N, g, gs, a, as, at, s0, s1, m->zeros);
    for (size_t o = 0; o < N; o++) {
        const double low = mean[o] - at[o], rvar = 1 / (var[o] + r->eps);
        const double rstd = sqrt(rvar), sgx = s1[o] - low * s0[o], slope = sgx / n * rvar;
        sum.gain[o] += sgx * rstd;
        sum.bias[o] += s0[o];
        scale[o] = (float)(site->gain[o] * rstd);
        c1[o] = (float)(s0[o] / n - low * slope);
        c2[o] = (float)slope;
    }
    for (size_t i = 0; i < alive; i++, g += gs, a += as, to += gs) /* g and a are not equally far apart */
        j->k->norm[LNRNN_FLOAT32].gx_columns(1, N, g, a, 0, at, scale, c1, c2, to);
}

/* g (alive, values), gs apart: the gradient of a site's output at step t, a its input -> to (as g), which may be g: that of
 * the input; adds to the site's sums. */
static void site_backward(const backward_job *j, int s, size_t alive, size_t t, const float *a, ptrdiff_t as, const float *g,
                          float *to, ptrdiff_t gs, double *sums, room *m)
{
    const lnrnn_rnn *r = j->r;
    const size_t n = values(r, s);
    const lnrnn_site_gradients sum = share(r, sums, s);
    if (r->norm == LNRNN_NORM_NONE) {
        for (size_t i = 0; i < alive; i++)
            for (size_t o = 0; o < n; o++)
                sum.bias[o] += g[(ptrdiff_t)i * gs + (ptrdiff_t)o];
    } else if (r->norm == LNRNN_NORM_BATCH) {
        batch_backward(j, s, alive, t, a, as, g, to, gs, sum, m);
    } else
        /* A GRU has one norm over r and z, and one over n. */
        for (size_t from = 0, end = r->cell == LNRNN_GRU ? 2 * r->H : n; from < n; from = end, end = n)
            j->k->norm[LNRNN_FLOAT32].layer_norm_backward(alive, end - from, g + from, gs, a + from, as, site_of(r, s)->gain + from, r->eps,
                                          to + from, gs, sum.gain + from, sum.bias + from, m->zeros);
}

/* --- through time ------------------------------------------------------------------------------------------------ */

/* The parts of a worker's memory for the group that starts at row r0, from base, if that is not NULL. -> how many floats. */
static size_t divide(const backward_job *j, size_t r0, float *base, room *m)
{
    const lnrnn_rnn *r = j->r;
    const size_t state = r->group * j->narrow, gated = r->cell != LNRNN_RNN, lstm = r->cell == LNRNN_LSTM;
    const size_t gu = gated * state, zeros = gu + lstm * state, batch = zeros + 2 * outputs(r);
    if (base)
        *m = (room){j->gh + r0 * j->narrow, j->gc + r0 * j->narrow, base, base + gu, base + zeros, base + batch};
    return batch + batch_work(r);
}

/* What a site's norm, or bias, made of a (n, H), as apart, at step t, from value `from` of the site on -> m->u. */
static void again(const backward_job *j, int s, size_t from, size_t n, size_t t, const float *a, ptrdiff_t as, room *m)
{
    const lnrnn_rnn *r = j->r;
    const lnrnn_site *site = site_of(r, s);
    lnrnn_gates g = {.H = r->H, .how = LNRNN_PLAIN, .spans = LNRNN_SPANS_ALL, .eps = r->eps, .bias = site->bias + from};
    if (r->norm == LNRNN_NORM_LAYER)
        g.how = LNRNN_NORMED, g.gain = site->gain + from;
    if (r->norm == LNRNN_NORM_BATCH) {
        const size_t at = t * values(r, s) + from, H = r->H;
        float *mean = m->batch, *scale = mean + H, *shift = scale + H;
        j->k->norm[LNRNN_FLOAT32].fold(H, site->mean + at, site->var + at, 1, site->gain + from, site->bias + from, r->eps,
                                       NULL, mean, scale, shift);
        g.how = LNRNN_AFFINE, g.mean = mean, g.gain = scale, g.bias = shift;
    }
    j->k->cells->side(1, &g, n, a, as, m->u, (ptrdiff_t)j->narrow);
}

/* lstm_backward, a tile of rows at a time: the c before rows r0 .. at step t are named by pointers. */
static void carry_backward(const backward_job *j, size_t r0, size_t t, size_t earlier, lnrnn_gates_backward b)
{
    const lnrnn_rnn *r = j->r;
    const float *before[TILE];
    const size_t alive = b.rows;
    b.before = before;
    for (size_t i = 0; i < alive; i += TILE) {
        b.rows = alive - i < TILE ? alive - i : TILE;
        for (size_t q = i; q < i + b.rows; q++)
            before[q - i] = t ? r->tape + (earlier + q) * j->tape.width + j->tape.c : r->c0 + (size_t)r->order[r0 + q] * r->H;
        j->k->cells->lstm_backward(&b);
        b.gates += TILE * b.ks, b.ga += TILE * b.as, b.gc += TILE * b.hs, b.gu += TILE * b.hs;
    }
}

/* Rows r0 .. at step t, packed from row pos on, those of the step before from `earlier` on: m's gradient of the state ->
 * the gradients of the sides' outputs, and of the state before, what does not come by way of W h. */
static void cell_backward(const backward_job *j, size_t r0, size_t alive, size_t t, size_t pos, size_t earlier, double *sums,
                          room *m)
{
    const lnrnn_rnn *r = j->r;
    const lnrnn_kernels *k = j->k;
    const size_t H = r->H, width = j->tape.width;
    const ptrdiff_t as = (ptrdiff_t)width, hs = (ptrdiff_t)j->narrow;
    const float *tape = r->tape + pos * width;
    lnrnn_gates_backward b = {.H = H, .rows = alive, .gates = tape + j->tape.gates, .ks = as, .u = m->u, .us = hs,
                              .gh = m->gh, .gc = m->gc, .gu = m->gu, .hs = hs,
                              .gx = j->gx + pos * j->wide, .ga = j->ga + pos * j->wide, .as = (ptrdiff_t)j->wide};
    if (r->cell == LNRNN_RNN) {
        for (size_t i = 0; i < alive; i++)
            k->cells->rnn_act_backward(r->act, H, m->gh + i * j->narrow, y_row(r, r0 + i, t), b.ga + i * j->wide);
    } else if (r->cell == LNRNN_LSTM) {
        if (r->cell_norm)
            again(j, AT_C, 0, alive, t, tape + j->tape.c, as, m);
        else
            b.u = tape + j->tape.c, b.us = as;
        k->cells->lstm_out_backward(&b);
        if (r->cell_norm)
            site_backward(j, AT_C, alive, t, tape + j->tape.c, as, m->gu, m->gu, hs, sums, m);
        carry_backward(j, r0, t, earlier, b);
    } else {
        b.before = j->g->rows + j->rows + pos;
        again(j, AT_H, 2 * H, alive, t, tape + j->tape.h + 2 * H, as, m);
        k->cells->gru_backward(&b);
    }
}

static void backward_group(void *ctx, size_t index, int worker, int64_t *left)
{
    const backward_job *j = ctx;
    const lnrnn_rnn *r = j->r;
    const lnrnn_rnn_gradients *g = j->g;
    const lnrnn_kernels *k = j->k;
    const size_t H = r->H, narrow = j->narrow, wide = j->wide, width = j->tape.width, r0 = index * r->group;
    const size_t count = r->B - r0 < r->group ? r->B - r0 : r->group;
    double *sums = j->sums + index * group_sums(r);
    float *const work = j->work + (size_t)worker * j->worker;
    room m;
    memset(work, 0, divide(j, r0, work, &m) * sizeof *work);
    if (j->back[index] == 0) {
        memset(sums, 0, group_sums(r) * sizeof *sums);
        memset(m.gh, 0, count * narrow * sizeof *m.gh);
        if (r->cell == LNRNN_LSTM)
            memset(m.gc, 0, count * narrow * sizeof *m.gc);
    }
    for (size_t i = 0; j->back[index] == 0 && i < count; i++) {
        const size_t row = (size_t)r->order[r0 + i] * H;
        if (g->ghn)
            memcpy(m.gh + i * narrow, g->ghn + row, H * sizeof *m.gh);
        if (g->gcn && r->cell == LNRNN_LSTM)
            memcpy(m.gc + i * narrow, g->gcn + row, H * sizeof *m.gc);
    }
    size_t t = (size_t)r->length[r0] - j->back[index], alive = 0;
    size_t pos = rows_before(r, r0) + rows_until(r, r0, count, t);
    while (t > 0 && remaining(left) > 0) {
        t--;
        while (alive < count && (size_t)r->length[r0 + alive] > t)
            alive++;
        pos -= alive;
        size_t more = alive; /* who lived a step before */
        while (t && more < count && (size_t)r->length[r0 + more] >= t)
            more++;
        for (size_t i = 0; i < alive; i++) {
            const size_t q = r0 + i;
            const ptrdiff_t own = at_step(r, q, t);
            const float *gy = g->gy + own * g->gyt + r->order[q] * g->gyb;
            for (size_t o = 0; o < H; o++)
                m.gh[i * narrow + o] += gy[o];
            g->rows[pos + i] = x_row(r, q, t);
            g->rows[j->rows + pos + i] = h_row(r, q, t);
            g->gx_rows[pos + i] = g->gx + ((size_t)own * r->B + (size_t)r->order[q]) * r->D;
        }
        cell_backward(j, r0, alive, t, pos, pos - more, sums, &m);
        float *gx = j->gx + pos * wide, *ga = j->ga + pos * wide;
        const float *tape = r->tape + pos * width;
        if (two(r)) /* an LSTM's two sides start from the same */
            site_backward(j, AT_X, alive, t, tape, (ptrdiff_t)width, r->cell == LNRNN_LSTM ? ga : gx, gx, (ptrdiff_t)wide, sums,
                          &m);
        site_backward(j, AT_H, alive, t, tape + j->tape.h, (ptrdiff_t)width, ga, ga, (ptrdiff_t)wide, sums, &m);
        for (size_t i = 0; i < alive; i += TILE) {
            const size_t n = alive - i < TILE ? alive - i : TILE;
            const float *rows[TILE];
            for (size_t q = 0; q < n; q++)
                rows[q] = ga + (i + q) * wide;
            k->product->matmul(LNRNN_WEIGHT_F32, n, H, outputs(r), rows, g->w_hh_t, 0, k->product->panels(H), r->cell == LNRNN_GRU, 0,
                      m.gh + i * narrow, (ptrdiff_t)narrow, NULL);
        }
        spend(left, step_cost(r, (double)alive, H));
    }
    j->back[index] = t ? (size_t)r->length[r0] - t : LNRNN_DONE;
    for (size_t i = 0; t == 0 && i < count; i++) {
        const size_t row = (size_t)r->order[r0 + i] * H;
        memcpy(g->gh0 + row, m.gh + i * narrow, H * sizeof *m.gh);
        if (r->cell == LNRNN_LSTM)
            memcpy(g->gc0 + row, m.gc + i * narrow, H * sizeof *m.gc);
    }
}

/* --- the products over all rows ---------------------------------------------------------------------------------- */

/* A tile of packed rows: their gx, which goes to the caller's array. */
static void input_gradient(const backward_job *j, size_t index, float *tile)
{
    const lnrnn_kernels *k = j->k;
    const size_t D = j->r->D, wide = k->product->width(D), first = index * TILE;
    const size_t n = j->rows - first < TILE ? j->rows - first : TILE;
    const float *rows[TILE];
    for (size_t i = 0; i < n; i++)
        rows[i] = j->gx + (first + i) * j->wide;
    k->product->matmul(LNRNN_WEIGHT_F32, n, D, outputs(j->r), rows, j->g->w_ih_t, 0, k->product->panels(D), 0, 0, tile, (ptrdiff_t)wide, NULL);
    for (size_t i = 0; i < n; i++)
        memcpy(j->g->gx_rows[first + i], tile + i * wide, D * sizeof *tile);
}

static size_t blocks(const lnrnn_rnn *r) { return (outputs(r) + GRADIENT_ROWS - 1) / GRADIENT_ROWS; }

/* A block of rows of gw_ih or gw_hh: sum over the packed rows of g[row][o] * v[row][i], the packed rows in order, g the
 * gradient of the product and v its input. Begins at row p of these, stops when *left is used up. -> where. */
static size_t weight_gradient(const backward_job *j, size_t block, int hidden, size_t p, float *work, int64_t *left)
{
    const lnrnn_rnn *r = j->r;
    const lnrnn_kernels *k = j->k;
    const size_t N = outputs(r), o0 = block * GRADIENT_ROWS, m = N - o0 < GRADIENT_ROWS ? N - o0 : GRADIENT_ROWS;
    const size_t n = hidden ? r->H : r->D, wide = k->product->width(n);
    float *turned = work, *packed = turned + GRADIENT_ROWS * GRADIENT_DEPTH, *sum = packed + GRADIENT_DEPTH * wide;
    const float *const *rows = j->g->rows + (hidden ? j->rows : 0), *g = hidden ? j->ga : j->gx;
    float *const out = (hidden ? j->g->gw_hh : j->g->gw_ih) + o0 * n;
    const float *columns[GRADIENT_ROWS];
    for (size_t o = 0; o < m; o++)
        columns[o] = turned + o * GRADIENT_DEPTH;
    memset(sum, 0, m * wide * sizeof *sum);
    for (size_t o = 0; p && o < m; o++)
        memcpy(sum + o * wide, out + o * n, n * sizeof *sum);
    for (size_t depth; p < j->rows && remaining(left) > 0; p += depth) {
        depth = j->rows - p < GRADIENT_DEPTH ? j->rows - p : GRADIENT_DEPTH;
        for (size_t d = 0; d < depth; d++)
            for (size_t o = 0; o < m; o++)
                turned[o * GRADIENT_DEPTH + d] = g[(p + d) * j->wide + o0 + o];
        k->product->pack_rows(n, depth, rows + p, (uint32_t *)packed);
        k->product->matmul(LNRNN_WEIGHT_F32, m, n, depth, columns, (const uint32_t *)packed, 0, k->product->panels(n), 1, 0, sum,
                  (ptrdiff_t)wide, NULL);
        spend(left, (double)depth * (double)m * (double)n);
    }
    for (size_t o = 0; o < m; o++)
        memcpy(out + o * n, sum + o * wide, n * sizeof *sum);
    return p;
}

static size_t tasks_after(const lnrnn_rnn *r, size_t rows) { return 2 * blocks(r) + (rows + TILE - 1) / TILE; }

static void products(void *ctx, size_t index, int worker, int64_t *left)
{
    const backward_job *j = ctx;
    const size_t n = blocks(j->r);
    float *work = j->work + (size_t)worker * j->worker;
    size_t row = j->rows;
    if (index < 2 * n)
        row = weight_gradient(j, index % n, index >= n, j->tasks[index], work, left);
    else {
        input_gradient(j, index - 2 * n, work);
        spend(left, (double)TILE * (double)outputs(j->r) * (double)j->r->D);
    }
    j->tasks[index] = row < j->rows ? row : LNRNN_DONE;
}

/* What `products` wants. */
static size_t products_work(const lnrnn_kernels *k, const lnrnn_rnn *r)
{
    const size_t widest = k->product->width(r->D > r->H ? r->D : r->H), tile = TILE * k->product->width(r->D);
    const size_t weights = GRADIENT_DEPTH * GRADIENT_ROWS + GRADIENT_DEPTH * widest + GRADIENT_ROWS * widest;
    return tile > weights ? tile : weights;
}

/* -> the job, its memory from `work` if that is not NULL, and how many floats that is. */
static backward_job prepare(const lnrnn_rnn *r, const lnrnn_rnn_gradients *g, float *work, size_t *floats)
{
    const lnrnn_kernels *k = lnrnn_active();
    backward_job j = {.r = r, .g = g, .k = k, .rows = all_rows(r)};
    j.wide = k->product->width(outputs(r)), j.narrow = k->product->width(r->H);
    j.tape = tape_record(r, j.wide, j.narrow);
    const size_t through = divide(&j, 0, NULL, NULL), after = products_work(k, r);
    const size_t sums = 2 + 2 * (groups(r) + 1) * group_sums(r), rows = j.rows * j.wide;
    const size_t state = r->B * j.narrow, lstm = r->cell == LNRNN_LSTM, at = groups(r) + tasks_after(r, j.rows);
    j.worker = through > after ? through : after;
    *floats = sums + (two(r) ? 2 : 1) * rows + (1 + lstm) * state + 2 * at + 2 + (size_t)r->threads * j.worker;
    if (work) {
        j.sums = (double *)(((uintptr_t)work + 7) & ~(uintptr_t)7);
        j.ga = work + sums;
        j.gx = two(r) ? j.ga + rows : j.ga;
        j.gh = j.gx + rows;
        j.gc = j.gh + lstm * state;
        j.back = sizes_at(j.gc + state);
        j.tasks = j.back + groups(r);
        j.work = j.gc + state + 2 * at + 2;
    }
    return j;
}

size_t lnrnn_rnn_backward_work(const lnrnn_rnn *r)
{
    size_t floats;
    prepare(r, NULL, NULL, &floats);
    return floats;
}

/* The sites' gradients: the sums of all groups. */
static void sum_groups(const backward_job *j)
{
    const lnrnn_rnn *r = j->r;
    const lnrnn_rnn_gradients *g = j->g;
    const size_t n = group_sums(r);
    double *total = j->sums + groups(r) * n;
    memset(total, 0, n * sizeof *total);
    for (size_t i = 0; i < groups(r); i++)
        for (size_t o = 0; o < n; o++)
            total[o] += j->sums[i * n + o];
    const lnrnn_site_gradients all[SITES] = {[AT_H] = g->at_h, [AT_X] = g->at_x, [AT_C] = g->at_c};
    for (int s = 0; s < SITES; s++) {
        const lnrnn_site_gradients sum = share(r, total, s);
        if (all[s].gain)
            memcpy(all[s].gain, sum.gain, values(r, s) * sizeof *total);
        if (all[s].bias)
            memcpy(all[s].bias, sum.bias, values(r, s) * sizeof *total);
    }
}

int lnrnn_rnn_backward(const lnrnn_rnn *r, const lnrnn_rnn_gradients *g)
{
    size_t floats;
    backward_job j = prepare(r, g, g->work, &floats);
    const size_t after = tasks_after(r, j.rows);
    const double products_cost = (double)j.rows * (double)outputs(r) * (double)(2 * r->D + r->H);
    if (!r->resumed)
        memset(j.back, 0, (groups(r) + after) * sizeof *j.back);
    if (!lnrnn_limited_tasks(groups(r), r->threads, j.back, all_steps_cost(r, r->H), r->part, backward_group, &j)
        || !lnrnn_limited_tasks(after, r->threads, j.tasks, products_cost, r->part, products, &j))
        return 0;
    sum_groups(&j);
    return 1;
}
