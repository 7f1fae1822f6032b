/* Back through time: the gradients of one recurrent layer, from the tape that the forward call kept.
 *
 * A group goes back through its steps. Each step turns the gradient of the state into those of W x and W h,
 * which are kept for all rows, and adds to the gradient of the state before it what comes by way of W_hh.
 * From the rows kept weight_gradients.c then makes the gradients of x and of the weights. Those of gains and
 * biases are summed for each group by itself and then in the order of the groups, however many threads there
 * are. */
#include <math.h>
#include <string.h>

#include "rnn/backward.h"
#include "rnn/cost.h"
#include "rnn/forward.h"
#include "rnn/rows.h"
#include "runtime/parts.h"

/* The memory of a worker that has a group: its rows of the state's gradient, and what a step needs. */
typedef struct {
    float *gh, *gc; /* (group, narrow) */
    float *u, *gu;  /* (group, narrow): see lnrnn_gate_gradients; gu: LSTM */
    float *zeros;   /* (2, G*H): zeros before and after each kernel that takes them */
    float *batch;   /* batch_work(j) */
} scratch;

/* --- the norms -------------------------------------------------------------------------------------- */

/* Where a site's ggain and gbias stand in a group's sums, or in their total. */
static lnrnn_site_gradients site_sums(const lnrnn_rnn_config *c, double *sums, int site)
{
    for (int i = 0; i < site; i++)
        sums += 2 * c->site[i].width;
    return (lnrnn_site_gradients){sums, sums + c->site[site].width};
}

static size_t group_sums(const lnrnn_rnn_config *c)
{
    size_t n = 0;
    for (int i = 0; i < LNRNN_SITES; i++)
        n += 2 * c->site[i].width;
    return n;
}

/* Floats of scratch.batch: for each value of the widest site two doubles and four floats. */
static size_t batch_work(const backward_job *j) { return j->p->synchronous ? 8 * j->c->outputs + 2 : 0; }

/* What a site of width values read and made at step t. */
typedef struct {
    size_t active, t;
    const float *a; /* (active, width), row stride as: its input */
    const float *g; /* (active, width), row stride gs: the gradient of its output */
    float *ga;      /* (active, width), row stride gs, may be g: gets the gradient of its input */
    ptrdiff_t as, gs;
} site_rows;

/* site_backward of batch norm: step t was normalised with the statistics that the forward call has
 * written. */
static void batch_backward(const backward_job *j, int site, const site_rows *rows, lnrnn_site_gradients sum,
                           const scratch *m)
{
    const lnrnn_site_statistics *found = &j->r->statistics[site];
    const float *const gain = j->c->site[site].gain;
    const size_t N = j->c->site[site].width;
    const double *mean = found->mean + rows->t * N, *var = found->var + rows->t * N;
    const double n = (double)rows->active;
    double *s0 = (double *)(((uintptr_t)m->batch + 7) & ~(uintptr_t)7), *s1 = s0 + N;
    float *mean_f = (float *)(s1 + N), *c1 = mean_f + N, *c2 = c1 + N, *scale = c2 + N;
    for (size_t o = 0; o < N; o++)
        mean_f[o] = (float)mean[o];
    memset(s0, 0, 2 * N * sizeof *s0);
    j->k->cells->sums_columns(rows->active, N, rows->g, rows->gs, rows->a, rows->as, mean_f, s0, s1,
                              m->zeros);
    for (size_t o = 0; o < N; o++) {
        const double low = mean[o] - mean_f[o], rvar = 1 / (var[o] + j->c->eps);
        const double rstd = sqrt(rvar), sgx = s1[o] - low * s0[o], slope = sgx / n * rvar;
        sum.gain[o] += sgx * rstd;
        sum.bias[o] += s0[o];
        scale[o] = (float)(gain[o] * rstd);
        c1[o] = (float)(s0[o] / n - low * slope);
        c2[o] = (float)slope;
    }
    const lnrnn_coefficients coefficients = {.mean = mean_f, .scale = scale, .shift = c1, .slope = c2};
    /* Row by row: gx_columns has one stride for g and a. */
    for (ptrdiff_t i = 0; i < (ptrdiff_t)rows->active; i++)
        j->k->norm[LNRNN_FLOAT32].gx_columns(1, N, rows->g + i * rows->gs, rows->a + i * rows->as, 0,
                                             &coefficients, rows->ga + i * rows->gs);
}

/* Values from .. end - 1 of a row of n have their mean and variance in common. -> end. No cell that is trained has
 * LNRNN_SPANS_EACH. */
static size_t span_end(const lnrnn_gate_norm *norm, size_t from, size_t n)
{
    return norm->spans == LNRNN_SPANS_LAST && from == 0 ? n - norm->H : n;
}

/* The gradient of a site's output -> that of its input, in rows; adds ggain and gbias to the group's sums.
 * Without a norm rows->ga is rows->g. */
static void site_backward(const backward_job *j, int site, const site_rows *rows, double *sums,
                          const scratch *m)
{
    const lnrnn_gate_norm *norm = &j->c->site[site].norm;
    const size_t n = j->c->site[site].width;
    const lnrnn_site_gradients sum = site_sums(j->c, sums, site);
    if (norm->how == LNRNN_PLAIN) {
        const float *g = rows->g;
        for (size_t i = 0; i < rows->active; i++, g += rows->gs)
            for (size_t o = 0; o < n; o++)
                sum.bias[o] += g[o];
    } else if (norm->how == LNRNN_AFFINE) {
        batch_backward(j, site, rows, sum, m);
    } else
        for (size_t from = 0, end; from < n; from = end) {
            end = span_end(norm, from, n);
            const lnrnn_layer_norm_gradients of_span = {.rows = rows->active,
                                                        .n = end - from,
                                                        .gy = rows->g + from,
                                                        .x = rows->a + from,
                                                        .gx = rows->ga + from,
                                                        .gys = rows->gs,
                                                        .xs = rows->as,
                                                        .gxs = rows->gs,
                                                        .gain = norm->gain + from,
                                                        .eps = (double)norm->eps,
                                                        .ggain = sum.gain + from,
                                                        .gbias = sum.bias + from,
                                                        .partial = m->zeros};
            j->k->norm[LNRNN_FLOAT32].layer_norm_backward(&of_span);
        }
}

/* --- through time ----------------------------------------------------------------------------------- */

/* Divides a worker's memory, which begins at base, for the group that starts at row r0; base NULL: only
 * counts. -> how many floats. */
static size_t layout_scratch(const backward_job *j, size_t r0, float *base, scratch *m)
{
    const size_t state = j->p->group * j->narrow, gu = j->c->saved_gates ? state : 0;
    const size_t zeros = gu + (j->c->cell_state ? state : 0), batch = zeros + 2 * j->c->outputs;
    if (base)
        *m = (scratch){.gh = j->gh + r0 * j->narrow,
                       .gc = j->gc + r0 * j->narrow,
                       .u = base,
                       .gu = base + gu,
                       .zeros = base + zeros,
                       .batch = base + batch};
    return batch + batch_work(j);
}

/* a (n, H), row stride as: what a site read at step t as its values from .. from + H - 1 -> m->u (n, H): what
 * its norm, or bias, made of them. */
static void recompute_norm(const backward_job *j, int site, size_t from, size_t n, size_t t, const float *a,
                           ptrdiff_t as, const scratch *m)
{
    const lnrnn_site *at = &j->c->site[site];
    const lnrnn_site_statistics *found = &j->r->statistics[site];
    lnrnn_gate_norm g = at->norm;
    g.spans = LNRNN_SPANS_ALL;
    if (g.how == LNRNN_AFFINE) {
        const size_t row = t * at->width + from, H = j->c->H;
        float *mean = m->batch, *scale = mean + H, *shift = scale + H;
        const lnrnn_channels channels = {.n = H,
                                         .mean = found->mean + row,
                                         .m2 = found->var + row,
                                         .count = 1,
                                         .gain = at->gain + from,
                                         .bias = at->bias + from,
                                         .eps = (double)g.eps};
        const lnrnn_coefficients out = {.mean = mean, .scale = scale, .shift = shift};
        j->k->norm[LNRNN_FLOAT32].fold(&channels, &out);
        g.mean = mean, g.gain = scale, g.bias = shift;
    } else {
        g.bias += from;
        if (g.how == LNRNN_NORMED)
            g.gain += from;
    }
    j->k->cells->normalise_rows(1, &g, n, a, as, m->u, (ptrdiff_t)j->narrow);
}

/* The active rows r0 .. r0 + active - 1 of a group at step t: they stand at packed row pos, and those of the
 * step before it from packed row `earlier` on. */
typedef struct {
    size_t r0, active, t, pos, earlier;
} back_step;

/* lstm_backward of all rows, a tile at a time: it takes c before the step by pointers. */
static void lstm_carry_backward(const backward_job *j, const back_step *s, lnrnn_gate_gradients b)
{
    const lnrnn_rnn_call *r = j->r;
    const lnrnn_rnn_plan *p = j->p;
    const float *c_prev[TILE];
    b.state_prev = c_prev;
    for (size_t i = 0; i < s->active; i += TILE) {
        b.rows = s->active - i < TILE ? s->active - i : TILE;
        for (size_t q = i; q < i + b.rows; q++)
            c_prev[q - i] = s->t ? r->tape + (s->earlier + q) * p->tape.width + p->tape.c
                                 : r->c0 + state_at(r, s->r0 + q);
        j->k->cells->lstm_backward(&b);
        b.saved_gates += TILE * b.ks, b.ga += TILE * b.as, b.gc += TILE * b.hs, b.gu += TILE * b.hs;
    }
}

/* From the gradient of the state in m -> the gradients of the norms' outputs, in b.gx and b.ga, and in m the
 * gradient of the state before, without what comes by way of W h. tape: the records of these rows. */
typedef void cell_backward(const backward_job *j, const back_step *s, const float *tape,
                           lnrnn_gate_gradients b, double *sums, const scratch *m);

static void rnn_cell_backward(const backward_job *j, const back_step *s, const float *tape,
                              lnrnn_gate_gradients b, double *sums, const scratch *m)
{
    (void)tape, (void)sums;
    for (size_t i = 0; i < s->active; i++)
        j->k->cells->rnn_backward(j->c->act, j->c->H, m->gh + i * j->narrow, y_row(j->r, s->r0 + i, s->t),
                                  b.ga + i * j->wide);
}

static void lstm_cell_backward(const backward_job *j, const back_step *s, const float *tape,
                               lnrnn_gate_gradients b, double *sums, const scratch *m)
{
    const float *c = tape + j->p->tape.c;
    const ptrdiff_t as = (ptrdiff_t)j->p->tape.width;
    if (j->c->cell_norm)
        recompute_norm(j, LNRNN_SITE_CELL, 0, s->active, s->t, c, as, m);
    else
        b.u = c, b.us = as;
    j->k->cells->lstm_output_backward(&b);
    if (j->c->cell_norm)
        site_backward(
            j, LNRNN_SITE_CELL,
            &(site_rows){
                .active = s->active, .t = s->t, .a = c, .as = as, .g = m->gu, .ga = m->gu, .gs = b.hs},
            sums, m);
    lstm_carry_backward(j, s, b);
}

static void gru_cell_backward(const backward_job *j, const back_step *s, const float *tape,
                              lnrnn_gate_gradients b, double *sums, const scratch *m)
{
    const size_t n = 2 * j->c->H; /* the values of the gate n follow those of r and z */
    (void)sums;
    b.state_prev = j->g->rows + j->rows + s->pos;
    recompute_norm(j, LNRNN_SITE_HIDDEN, n, s->active, s->t, tape + j->p->tape.h + n,
                   (ptrdiff_t)j->p->tape.width, m);
    j->k->cells->gru_backward(&b);
}

static cell_backward *const CELL_BACKWARD[LNRNN_CELLS] = {
    [LNRNN_RNN] = rnn_cell_backward,
    [LNRNN_LSTM] = lstm_cell_backward,
    [LNRNN_GRU] = gru_cell_backward,
};

/* From the gradient of the state in m -> gx and ga of these rows, the gradients of W x and W h; and in m the
 * gradient of the state before. */
static void step_backward(const backward_job *j, const back_step *s, double *sums, const scratch *m)
{
    const lnrnn_rnn_config *c = j->c;
    const lnrnn_rnn_plan *p = j->p;
    const float *tape = j->r->tape + s->pos * p->tape.width;
    const ptrdiff_t as = (ptrdiff_t)p->tape.width, gs = (ptrdiff_t)j->wide, hs = (ptrdiff_t)j->narrow;
    float *gx = j->gx + s->pos * j->wide, *ga = j->ga + s->pos * j->wide;
    const lnrnn_gate_gradients b = {.H = c->H,
                                    .rows = s->active,
                                    .saved_gates = tape + p->tape.gates,
                                    .ks = as,
                                    .u = m->u,
                                    .us = hs,
                                    .gh = m->gh,
                                    .gc = m->gc,
                                    .gu = m->gu,
                                    .hs = hs,
                                    .gx = gx,
                                    .ga = ga,
                                    .as = gs};
    CELL_BACKWARD[c->cell](j, s, tape, b, sums, m);
    site_rows rows = {.active = s->active, .t = s->t, .as = as, .gs = gs};
    if (c->input_side) {
        rows.a = tape, rows.g = c->own_input_gradient ? gx : ga, rows.ga = gx;
        site_backward(j, LNRNN_SITE_INPUT, &rows, sums, m);
    }
    rows.a = tape + p->tape.h, rows.g = ga, rows.ga = ga;
    site_backward(j, LNRNN_SITE_HIDDEN, &rows, sums, m);
    for (size_t i = 0; i < s->active; i += TILE) {
        const size_t n = s->active - i < TILE ? s->active - i : TILE;
        const float *ga_rows[TILE];
        for (size_t q = 0; q < n; q++)
            ga_rows[q] = ga + (i + q) * j->wide;
        lnrnn_gradient_product(j, n, c->H, c->outputs, ga_rows, j->g->w_hh_t, c->direct_h,
                               m->gh + i * j->narrow, j->narrow);
    }
}

/* Before a group's last step: no sums yet; the gradient of the state is that of hn, cn, or 0. */
static void begin_group(const backward_job *j, size_t r0, size_t count, double *sums, const scratch *m)
{
    const size_t H = j->c->H, narrow = j->narrow, bytes = H * sizeof(float);
    memset(sums, 0, group_sums(j->c) * sizeof *sums);
    memset(m->gh, 0, count * narrow * sizeof *m->gh);
    if (j->c->cell_state)
        memset(m->gc, 0, count * narrow * sizeof *m->gc);
    for (size_t i = 0; i < count; i++) {
        const size_t row = state_at(j->r, r0 + i);
        if (j->g->ghn)
            memcpy(m->gh + i * narrow, j->g->ghn + row, bytes);
        if (j->g->gcn && j->c->cell_state)
            memcpy(m->gc + i * narrow, j->g->gcn + row, bytes);
    }
}

/* After a group's first step: gh0, gc0. */
static void finish_group(const backward_job *j, size_t r0, size_t count, const scratch *m)
{
    const size_t H = j->c->H, bytes = H * sizeof(float);
    for (size_t i = 0; i < count; i++) {
        const size_t row = state_at(j->r, r0 + i);
        memcpy(j->g->gh0 + row, m->gh + i * j->narrow, bytes);
        if (j->c->cell_state)
            memcpy(j->g->gc0 + row, m->gc + i * j->narrow, bytes);
    }
}

/* Adds gy of a step to the gradient of the state, and notes where x, h_prev and gx of its rows are, for the
 * products over all rows. */
static void gather_rows(const backward_job *j, const back_step *s, const scratch *m)
{
    const lnrnn_rnn_call *r = j->r;
    const lnrnn_rnn_gradients *g = j->g;
    const size_t H = j->c->H;
    for (size_t i = 0; i < s->active; i++) {
        const size_t q = s->r0 + i, row = s->pos + i;
        const ptrdiff_t t = at_step(r, q, s->t);
        const float *gy = g->gy + t * g->gyt + r->rows[q].sequence * g->gyb;
        float *gh = m->gh + i * j->narrow;
        for (size_t o = 0; o < H; o++)
            gh[o] += gy[o];
        g->rows[row] = x_row(r, q, s->t);
        g->rows[j->rows + row] = h_row(r, q, s->t);
        g->gx_rows[row] = g->gx + t * g->gxt + r->rows[q].sequence * g->gxb;
    }
}

static void backward_group(void *ctx, size_t group, int worker, int64_t *left)
{
    const backward_job *j = ctx;
    const lnrnn_rnn_call *r = j->r;
    const size_t r0 = group * j->p->group;
    const size_t count = r->B - r0 < j->p->group ? r->B - r0 : j->p->group;
    double *sums = j->sums + group * group_sums(j->c);
    float *const work = j->work + (size_t)worker * j->worker;
    scratch m;
    memset(work, 0, layout_scratch(j, r0, work, &m) * sizeof *work);
    if (j->back[group] == 0)
        begin_group(j, r0, count, sums, &m);
    back_step s = {.r0 = r0, .t = row_length(r, r0) - j->back[group]};
    s.pos = rows_before(r, r0) + rows_until(r, r0, count, s.t);
    while (s.t > 0 && remaining(left) > 0) {
        s.t--;
        while (s.active < count && row_length(r, r0 + s.active) > s.t)
            s.active++;
        s.pos -= s.active;
        size_t active_before = s.active; /* at step t - 1 */
        while (s.t && active_before < count && row_length(r, r0 + active_before) >= s.t)
            active_before++;
        s.earlier = s.pos - active_before;
        gather_rows(j, &s, &m);
        step_backward(j, &s, sums, &m);
        spend(left, step_cost(r, (double)s.active, j->c->H));
    }
    j->back[group] = s.t ? row_length(r, r0) - s.t : LNRNN_DONE;
    if (s.t == 0)
        finish_group(j, r0, count, &m);
}

/* --- the call --------------------------------------------------------------------------------------- */

/* Floats in a cache line. Rows of gradients are an odd number of lines apart: the products of weight_gradients.c
 * go down columns, and rows a power of two apart share few sets of L1. */
enum { LINE = 16 };

/* -> the job, its memory from `work` if that is not NULL, and how many floats that is. */
static backward_job prepare(const lnrnn_rnn_call *r, const lnrnn_rnn_gradients *g, float *work,
                            size_t *floats)
{
    const lnrnn_rnn_config *c = r->config;
    const lnrnn_rnn_plan *p = r->plan;
    backward_job j = {.r = r,
                      .c = c,
                      .p = p,
                      .k = p->kernels,
                      .g = g,
                      .rows = all_rows(r),
                      .wide = p->wide | LINE,
                      .narrow = p->narrow};
    const size_t through = layout_scratch(&j, 0, NULL, NULL), after = lnrnn_gradient_work(&j);
    const size_t sums = 2 + 2 * (p->groups + 1) * group_sums(c), rows = j.rows * j.wide;
    const size_t state = r->B * j.narrow, cell_state = c->cell_state ? state : 0,
                 at = p->groups + lnrnn_gradient_tasks(&j);
    j.worker = through > after ? through : after;
    *floats = sums + (c->separate_products ? 2 : 1) * rows + state + cell_state + 2 * at + 2
              + (size_t)p->threads * j.worker;
    if (work) {
        j.sums = (double *)(((uintptr_t)work + 7) & ~(uintptr_t)7);
        j.ga = work + sums;
        j.gx = c->separate_products ? j.ga + rows : j.ga;
        j.gh = j.gx + rows;
        j.gc = j.gh + cell_state;
        j.back = positions_at(j.gc + state);
        j.tasks = j.back + p->groups;
        j.work = j.gc + state + 2 * at + 2;
    }
    return j;
}

size_t lnrnn_rnn_backward_work(const lnrnn_rnn_call *r)
{
    size_t floats;
    prepare(r, NULL, NULL, &floats);
    return floats;
}

/* The sites' gradients: the sums of all groups. */
static void sum_groups(const backward_job *j)
{
    const size_t n = group_sums(j->c), groups = j->p->groups;
    double *total = j->sums + groups * n;
    memset(total, 0, n * sizeof *total);
    for (size_t i = 0; i < groups; i++)
        for (size_t o = 0; o < n; o++)
            total[o] += j->sums[i * n + o];
    for (int site = 0; site < LNRNN_SITES; site++) {
        const lnrnn_site_gradients sum = site_sums(j->c, total, site), *out = &j->g->site[site];
        const size_t bytes = j->c->site[site].width * sizeof *total;
        if (out->gain)
            memcpy(out->gain, sum.gain, bytes);
        if (out->bias)
            memcpy(out->bias, sum.bias, bytes);
    }
}

int lnrnn_rnn_backward(const lnrnn_rnn_call *r, const lnrnn_rnn_gradients *g)
{
    size_t floats;
    backward_job j = prepare(r, g, g->work, &floats);
    const lnrnn_rnn_config *c = r->config;
    const lnrnn_rnn_plan *p = r->plan;
    const size_t after = lnrnn_gradient_tasks(&j);
    const double products_cost = (double)j.rows * (double)c->outputs * (double)(2 * c->D + c->H);
    if (!r->resumed)
        memset(j.back, 0, (p->groups + after) * sizeof *j.back);
    const double steps_cost = all_steps_cost(r, c->H);
    const int threads = lnrnn_threads_now(p);
    if (!lnrnn_limited_tasks(p->groups, threads, j.back, steps_cost, r->part, backward_group, &j)
        || !lnrnn_limited_tasks(after, threads, j.tasks, products_cost, r->part, lnrnn_gradient_task, &j))
        return 0;
    sum_groups(&j);
    return 1;
}
