/* The phases of a step, from W_ih x to the states, and the view that moves from step to step.
 *
 * A site reads its values in one of three ways (kernels/gate_norm.h). Without a norm it adds a bias. Batch
 * norm is a scale and shift of the step. Layer norm uses the statistics of each row. */
#include <string.h>

#include "rnn/rows.h"
#include "rnn/step.h"
#include "runtime/resumable.h"

/* --- the phases ----------------------------------------------------------------------------------------- */

/* W_ih x goes into the tape; the rest of the record follows there. */
static void record(lnrnn_step *s)
{
    const lnrnn_rnn_call *r = s->r;
    const lnrnn_rnn_plan *p = r->plan;
    s->a = r->tape + (s->recorded + s->first) * p->tape.width;
    for (size_t i = 0; i < s->active; i++)
        memcpy(s->a + i * p->tape.width, s->wx + i * p->wide, r->config->outputs * sizeof(float));
    s->hidden = s->a + p->tape.h;
    s->cell.saved_gates = s->a + p->tape.gates;
    s->all_c = s->a + p->tape.c;
    s->all_h = s->a + p->tape.state;
    s->live = active_rows(r, 0, s->live, s->t);
    s->recorded += s->live;
}

void lnrnn_mask_rows(const lnrnn_rnn_call *r, size_t r0, size_t n, const float **rows, float *to)
{
    const size_t P = r->config->P;
    for (size_t i = 0; i < n; i++, to += r->plan->h_stride) {
        const float *mask = state_mask(r, r0 + i), *h = rows[i];
        for (size_t u = 0; u < P; u++)
            to[u] = mask[u] * h[u];
        rows[i] = to;
    }
}

static void mask(lnrnn_step *s)
{
    memcpy(s->recurrent, s->h_prev, s->active * sizeof *s->h_prev);
    lnrnn_mask_rows(s->r, s->first, s->active, s->recurrent, s->masked);
}

static void joint_product(lnrnn_step *s)
{
    lnrnn_hidden_product(s, 1);
    s->cell.a = s->a;
}

static void separate_product(lnrnn_step *s)
{
    s->cell.x = s->a;
    s->cell.a = s->a = s->hidden;
    lnrnn_hidden_product(s, 0);
}

/* The threads of a group divide the rows. Each computes the states of its own. */
static void take_rows(lnrnn_step *s)
{
    const size_t team = (size_t)s->team, from = s->active * (size_t)s->index / team;
    s->cell = lnrnn_rows_from(&s->cell, from, s->active * ((size_t)s->index + 1) / team - from);
    s->row += from;
}

/* Two doubles and three floats for each value of a site, in whole doubles. */
static size_t statistics_floats(const lnrnn_rnn_config *c) { return 7 * c->outputs + c->outputs % 2; }

/* a (active, width), row stride cell.as: the values that a site reads -> the site's norm for this step. The
 * call gets the statistics too if it asks for them. */
static void site_statistics(lnrnn_step *s, int site, const float *a)
{
    const lnrnn_rnn_call *r = s->r;
    const lnrnn_site *at = &r->config->site[site];
    const size_t n = at->width, active = s->active;
    double *mean = (double *)(s->statistics + (size_t)site * statistics_floats(r->config)), *m2 = mean + n;
    float *coefficients = (float *)(m2 + n);
    r->plan->kernels->cells->moments_columns(active, n, a, s->cell.as, mean, m2);
    if (r->count) {
        const lnrnn_site_statistics *out = &r->statistics[site];
        memcpy(out->mean + s->t * n, mean, n * sizeof *mean);
        for (size_t i = 0; i < n; i++)
            out->var[s->t * n + i] = m2[i] / (double)active;
        r->count[s->t] = (int64_t)active;
    }
    const lnrnn_channels channels = {.n = n,
                                     .mean = mean,
                                     .m2 = m2,
                                     .count = (double)active,
                                     .gain = at->gain,
                                     .bias = at->bias,
                                     .eps = (double)r->config->eps};
    const lnrnn_coefficients out = {
        .mean = coefficients, .scale = coefficients + n, .shift = coefficients + 2 * n};
    r->plan->kernels->norm[LNRNN_FLOAT32].fold(&channels, &out);
    s->norm[site].mean = out.mean, s->norm[site].gain = out.scale, s->norm[site].bias = out.shift;
}

static void input_statistics(lnrnn_step *s) { site_statistics(s, LNRNN_SITE_INPUT, s->cell.x); }
static void hidden_statistics(lnrnn_step *s) { site_statistics(s, LNRNN_SITE_HIDDEN, s->a); }

/* The cell overwrites c, and h of a thread that has states of its own. */
static void save_h(lnrnn_step *s)
{
    for (size_t i = 0; i < s->cell.n; i++)
        memcpy(s->old_h + i * s->r->plan->h_stride, s->cell.h_prev[i], s->r->config->P * sizeof(float));
}

static void save_c(lnrnn_step *s)
{
    for (size_t i = 0; i < s->cell.n; i++)
        memcpy(s->old_c + i * s->r->plan->c_stride, s->cell.c[i], s->r->config->C * sizeof(float));
}

static void cell(lnrnn_step *s) { s->kernel(&s->config, &s->cell); }

/* Batch norm at inference: the row of the tables that row i of s->cell takes. */
static size_t table_row(const lnrnn_step *s, size_t i)
{
    const size_t step = (size_t)s->r->rows[s->row + i].start + s->t;
    return step < s->r->config->known ? step : (size_t)s->r->config->overrun_row;
}

/* Rows of a stream may have taken different numbers of steps: those at the same step go together. */
static void cell_from_tables(lnrnn_step *s)
{
    const lnrnn_step_rows all = s->cell;
    for (size_t i = 0, n; i < all.n; i += n) {
        const size_t row = table_row(s, i);
        for (n = 1; i + n < all.n && table_row(s, i + n) == row;)
            n++;
        for (int k = 0; k < LNRNN_SITES; k++) {
            const lnrnn_site *site = &s->r->config->site[k];
            if (site->width)
                s->norm[k].gain = site->scale + row * site->width,
                s->norm[k].bias = site->shift + row * site->width;
        }
        s->cell = lnrnn_rows_from(&all, i, n);
        cell(s);
    }
    s->cell = all;
}

/* The norm of c takes the statistics of all rows: h becomes the output gate, and `output` follows. */
static void cell_without_output(lnrnn_step *s)
{
    s->config.deferred_output = 1;
    cell(s);
}

static void gather_c(lnrnn_step *s)
{
    for (size_t i = 0; i < s->active; i++)
        memcpy(s->all_c + (ptrdiff_t)i * s->cell.as, s->c[i], s->r->config->C * sizeof(float));
}

static void gather_h(lnrnn_step *s)
{
    for (size_t i = 0; i < s->active; i++)
        memcpy(s->all_h + (ptrdiff_t)i * s->cell.as, s->h[i], s->r->config->P * sizeof(float));
}

/* y becomes the norm of each head of h. Where each thread has all states, thread 0 alone writes y. */
static void output_norm(lnrnn_step *s)
{
    const lnrnn_rnn_plan *p = s->r->plan;
    const lnrnn_gate_norm *norm = &s->norm[LNRNN_SITE_CELL];
    if (!s->index || p->divide_rows)
        p->kernels->cells->normalise_heads(norm, s->r->config->H / norm->H, s->cell.n,
                                           (const float *const *)s->cell.h, s->y + (s->row - s->first));
    for (size_t i = 0; i < s->active; i++)
        s->y[i] += s->next_y;
}

static void output(lnrnn_step *s)
{
    site_statistics(s, LNRNN_SITE_CELL, s->all_c);
    s->r->plan->kernels->cells->lstm_output(&s->config, &s->cell);
}

/* old (n, width), row stride `stride`; states: n pointers to (width). masks: one of r->masks, or NULL: then a
 * unit keeps `rate` of its old state. */
static void zoneout(const lnrnn_step *s, size_t width, float rate, const unsigned char *masks,
                    const float *old, size_t stride, float *const *states)
{
    const float rest = 1 - rate;
    for (size_t i = 0; i < s->cell.n; i++, old += stride) {
        const unsigned char *mask = mask_row(s->r, masks, width, s->row + i, s->t);
        float *now = states[i];
        if (mask)
            for (size_t u = 0; u < width; u++) {
                const float a = old[u], b = now[u]; /* both are read, so that the choice needs no branch */
                now[u] = mask[u] ? a : b;
            }
        else
            for (size_t u = 0; u < width; u++)
                now[u] = rate * old[u] + rest * now[u];
    }
}

static void zoneout_h(lnrnn_step *s)
{
    const lnrnn_rnn_config *c = s->r->config;
    zoneout(s, c->P, c->zoneout_h, s->r->masks.h, s->old_h, s->r->plan->h_stride, s->cell.h);
}

static void zoneout_c(lnrnn_step *s)
{
    const lnrnn_rnn_config *c = s->r->config;
    zoneout(s, c->C, c->zoneout_c, s->r->masks.c, s->old_c, s->r->plan->c_stride, s->cell.c);
}

/* --- the diagram ---------------------------------------------------------------------------------------- */

/* The tape records c as it is carried on; the backward pass computes c before zoneout again. */
void lnrnn_resolve_step(const lnrnn_rnn_call *r, lnrnn_rnn_plan *p)
{
    const lnrnn_rnn_config *c = r->config;
    const int tape = r->tape != NULL, tables = c->norm == LNRNN_NORM_BATCH;
    for (int batch = 0; batch < 2; batch++) {
        const int deferred = batch && c->cell_norm != LNRNN_CELL_NONE;
        const struct {
            int used;
            lnrnn_phase *phase;
        } diagram[] = {
            {tape, record},
            {r->masks.state != NULL, mask},
            {1, c->separate_products ? separate_product : joint_product},
            {p->divide_units, lnrnn_step_meet},
            {p->divide_units && p->divide_rows, take_rows},
            {batch && c->input_side, input_statistics},
            {batch, hidden_statistics},
            {c->zoneout_h > 0, save_h},
            {c->zoneout_c > 0, save_c},
            {1, deferred           ? cell_without_output
                : tables && !batch ? cell_from_tables
                                   : cell},
            {deferred || (tape && c->C && !(c->zoneout_c > 0)), gather_c},
            {deferred, output},
            {c->zoneout_h > 0, zoneout_h},
            {c->zoneout_c > 0, zoneout_c},
            {tape && c->zoneout_c > 0, gather_c},
            {tape && c->output_norm, gather_h},
            {c->output_norm, output_norm},
        };
        lnrnn_phase **phase = p->phases[batch];
        for (size_t i = 0; i < sizeof diagram / sizeof *diagram; i++)
            if (diagram[i].used)
                *phase++ = diagram[i].phase;
        *phase = NULL;
    }
}

void lnrnn_step_take(lnrnn_step *s)
{
    const lnrnn_rnn_plan *p = s->r->plan;
    s->a = s->wx, s->row = s->first;
    s->cell.n = s->active, s->cell.h_prev = s->h_prev, s->cell.c = s->c, s->cell.h = s->h;
    for (lnrnn_phase *const *phase = p->phases[(size_t)s->r->rows[0].start + s->t >= p->batch_from]; *phase;
         phase++)
        (*phase)(s);
    for (size_t i = 0; i < s->active; i++)
        s->h_prev[i] = s->h[i], s->h[i] += s->next_h;
    s->wx += s->active * p->wide;
    s->active = active_rows(s->r, s->first, s->active, ++s->t);
}

void lnrnn_step_meet(lnrnn_step *s)
{
    if (s->team > 1)
        lnrnn_barrier_wait(s->barrier, s->team);
}

/* --- the view ------------------------------------------------------------------------------------------- */

size_t lnrnn_step_memory(lnrnn_step *s, const lnrnn_rnn_call *r, const lnrnn_rnn_plan *p, float *shared,
                         float *own, size_t *floats)
{
    const lnrnn_rnn_config *c = r->config;
    const size_t rows = p->group * p->wide, chunk = p->group * p->chunk, h = p->group * p->h_stride,
                 all_c = p->group * p->c_stride, copies = p->divide_units && !p->divide_rows,
                 pointers = sizeof(size_t) / sizeof(float);
    size_t at = 0;
    s->chunk = lnrnn_carve(shared, &at, p->chunk * rows);
    s->products =
        lnrnn_carve(shared, &at, c->separate_products && !r->tape ? (p->divide_units ? 2 : 1) * rows : 0);
    *floats = p->divide_units ? at : 0;
    at -= *floats;
    s->own_h = lnrnn_carve(own, &at, copies * h);
    s->own_c = lnrnn_carve(own, &at, copies * all_c);
    s->old_h = lnrnn_carve(own, &at, c->zoneout_h > 0 ? h : 0);
    s->old_c = lnrnn_carve(own, &at, c->zoneout_c > 0 ? all_c : 0);
    s->masked = lnrnn_carve(own, &at, r->masks.state ? h : 0);
    s->statistics = lnrnn_carve(own, &at, p->synchronous ? LNRNN_SITES * statistics_floats(c) : 0);
    s->cell.scratch = lnrnn_carve(own, &at, c->cell_scratch);
    s->packed = lnrnn_carve(
        own, &at, p->product->scratch(c->dtype, chunk < TILE ? chunk : TILE, c->D > c->P ? c->D : c->P));
    s->block =
        lnrnn_carve(own, &at, c->num_heads > 1 ? TILE * p->product->width(c->num_gates * c->head_units) : 0);
    s->x = lnrnn_carve(own, &at, pointers * chunk);
    s->h_prev = lnrnn_carve(own, &at, pointers * p->group);
    s->c = lnrnn_carve(own, &at, pointers * p->group);
    s->h = lnrnn_carve(own, &at, pointers * p->group);
    s->y = lnrnn_carve(own, &at, c->output_norm ? pointers * p->group : 0);
    s->recurrent = r->masks.state ? lnrnn_carve(own, &at, pointers * p->group) : s->h_prev;
    return at;
}

void lnrnn_step_begin(lnrnn_step *s, const lnrnn_rnn_call *r, size_t group, size_t t, float *shared,
                      float *own)
{
    const lnrnn_rnn_config *c = r->config;
    const lnrnn_rnn_plan *p = r->plan;
    const size_t first = group * p->group, rest = r->B - first, count = rest < p->group ? rest : p->group;
    const ptrdiff_t stride = (ptrdiff_t)(r->tape ? p->tape.width : p->wide),
                    next_y = c->reverse ? -r->yt : r->yt;
    size_t floats;
    *s = (lnrnn_step){.r = r,
                      .first = first,
                      .count = count,
                      .length = row_length(r, first),
                      .t = t,
                      .active = active_rows(r, first, count, t),
                      .next_h = c->output_norm ? 0 : next_y,
                      .next_y = next_y,
                      .recorded = r->tape ? rows_until(r, t) : 0,
                      .live = r->B,
                      .share = {.from = {.of = 1}, .to = {.panel = p->panels, .of = 1}},
                      .team = 1,
                      .kernel = p->kernels->cells->step[c->step_kernel],
                      .config = {.hidden = &s->norm[LNRNN_SITE_HIDDEN],
                                 .input = c->input_side ? &s->norm[LNRNN_SITE_INPUT] : NULL,
                                 .cell = &s->norm[LNRNN_SITE_CELL],
                                 .act = c->act,
                                 .cell_norm = c->cell_norm,
                                 .exp_forget = c->exp_forget,
                                 .round_states = c->round_states},
                      .norm = {c->site[0].norm, c->site[1].norm, c->site[2].norm},
                      .cell = {.xs = stride, .as = stride}};
    lnrnn_step_memory(s, r, p, shared, own, &floats);
    s->hidden = s->all_c = s->products; /* without a tape: the cell has read W_hh h when c takes its place */
    for (size_t i = 0; i < s->active; i++) {
        s->h_prev[i] = h_row(r, first + i, t);
        s->c[i] = c_row(r, first + i);
        s->h[i] = c->output_norm ? r->hn + h_at(r, first + i) : y_row(r, first + i, t);
        if (c->output_norm)
            s->y[i] = y_row(r, first + i, t);
    }
}

void lnrnn_step_load(const lnrnn_step *s)
{
    const lnrnn_rnn_call *r = s->r;
    for (size_t i = s->first; r->cn && r->cn != r->c0 && i < s->first + s->count; i++)
        memmove(c_row(r, i), r->c0 + c_at(r, i), r->config->C * sizeof(float));
}

/* At most a thread's part at a time: else a thread with expensive steps would use up the others' budget, and
 * they would wait. And at most its share of the budget: else the others would wait for its last chunk. (rnn
 * and lstm B32-H2048, and rnn B64-H640 with 24 steps, each with two threads.) */
static size_t affordable(const lnrnn_step *s, size_t stop, int64_t *left)
{
    const lnrnn_rnn_call *r = s->r;
    const double cost = step_cost(r, (double)s->active, r->config->D + r->config->head_units),
                 all = (double)remaining(left) > 0 ? (double)remaining(left) : 0,
                 most = r->part > 0 && all > r->part ? r->part : all,
                 share = r->plan->divide_units ? most : all / r->plan->threads,
                 budget = share < most ? share : most;
    size_t end = stop - s->t < r->plan->chunk ? stop : s->t + r->plan->chunk;
    if (budget < cost * (double)(end - s->t))
        end = s->t + 1 + (size_t)(budget / cost);
    const double spent = cost * (double)(end - s->t);
    spend(left, spent < most ? spent : most);
    return end;
}

size_t lnrnn_step_chunk(lnrnn_step *s, size_t stop, int64_t *left)
{
    const size_t end = affordable(s, stop, left);
    size_t n = 0;
    for (size_t t = s->t, active = s->active; t < end; t++) {
        active = active_rows(s->r, s->first, active, t);
        for (size_t i = 0; i < active; i++)
            s->x[n++] = x_row(s->r, s->first + i, t);
    }
    s->wx = s->chunk;
    lnrnn_input_product(s, n);
    return end;
}

size_t lnrnn_step_end(const lnrnn_step *s)
{
    const lnrnn_rnn_call *r = s->r;
    const size_t bytes = r->config->P * sizeof(float);
    if (s->t < s->length)
        return s->t;
    for (size_t i = s->first; i < s->first + s->count; i++) {
        const lnrnn_row *row = &r->rows[i];
        memmove(r->hn + h_at(r, i), h_row(r, i, row_length(r, i)), bytes);
        for (int64_t t = row->first + row->length; t < row->end; t++)
            memset(r->y + t * r->yt + row->sequence * r->yb, 0, bytes);
    }
    return LNRNN_DONE;
}
