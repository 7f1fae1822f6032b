/* The phases of a step, from W_ih x to the states. step_view.c fills lnrnn_step, which the phases read.
 *
 * A site (layer.h) has one of three forms (kernels/gate_norm.h). Without a norm it adds a bias. Batch norm
 * has a scale and a shift for each step. Layer norm uses the statistics of each row. */
#include <string.h>

#include "rnn/rows.h"
#include "rnn/step.h"

/* --- the phases ----------------------------------------------------------------------------------------- */

/* A step with a tape computes in the tape's memory: copies W_ih x to the tape, and points the other arrays
 * into it. */
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

/* Every other step computes the two products in the opposite order, each from its end. So it begins with the
 * weights that the step before read last, which are still in L1. */
static void both_products(lnrnn_step *s)
{
    const int back = (int)((size_t)s->r->rows[0].start % 2);
    if (!back)
        lnrnn_input_product(s, s->active, 0, 0);
    separate_product(s);
    if (back)
        lnrnn_input_product(s, s->active, 1, 0);
}

/* For a reset gate before the product: computes W_hh h of the gates r and z. Later phases compute r h and
 * W_hh (r h) for the gate n. */
static void first_product(lnrnn_step *s)
{
    s->cell.x = s->a;
    s->cell.a = s->a = s->hidden;
    s->cell.reset = s->reset;
    lnrnn_head_products(s, 0, s->r->config->first_gates, s->r->w_hh, s->recurrent, 0);
}

static void last_product(lnrnn_step *s)
{
    const size_t first = s->r->config->first_gates;
    lnrnn_head_products(s, first, 1, s->r->w_hh + s->r->plan->first_words, s->reset_rows, 0);
}

/* Selects the rows whose new states this thread computes, if threads of a group share the work. */
static void take_rows(lnrnn_step *s)
{
    const size_t team = (size_t)s->team, from = s->active * (size_t)s->index / team;
    s->cell = lnrnn_rows_from(&s->cell, from, s->active * ((size_t)s->index + 1) / team - from);
    s->row += from;
}

/* a (active, width), row stride cell.as: the input of a site. Computes the batch's statistics of the values
 * from .. to - 1, sets their scale and shift, and in training writes the statistics to the call's arrays. */
static void site_statistics(lnrnn_step *s, int site, size_t from, size_t to, const float *a)
{
    const lnrnn_rnn_call *r = s->r;
    const lnrnn_site *at = &r->config->site[site];
    const size_t width = at->width, n = to - from, active = s->active, step = s->t * width + from;
    double *all = (double *)(s->statistics + (size_t)site * lnrnn_statistics_floats(r->config)),
           *mean = all + from, *m2 = mean + width;
    float *coefficients = (float *)(all + 2 * width);
    r->plan->kernels->cells->moments_columns(active, n, a + from, s->cell.as, mean, m2);
    if (r->count) {
        const lnrnn_site_statistics *out = &r->statistics[site];
        memcpy(out->mean + step, mean, n * sizeof *mean);
        for (size_t i = 0; i < n; i++)
            out->var[step + i] = m2[i] / (double)active;
        r->count[s->t] = (int64_t)active;
    }
    const lnrnn_channels channels = {.n = n,
                                     .mean = mean,
                                     .m2 = m2,
                                     .count = (double)active,
                                     .gain = at->gain + from,
                                     .bias = at->bias + from,
                                     .eps = (double)r->config->eps};
    const lnrnn_coefficients out = {.mean = coefficients + from,
                                    .scale = coefficients + width + from,
                                    .shift = coefficients + 2 * width + from};
    r->plan->kernels->norm[LNRNN_FLOAT32].fold(&channels, &out);
    s->norm[site].mean = coefficients;
    s->norm[site].gain = coefficients + width, s->norm[site].bias = coefficients + 2 * width;
}

static void input_statistics(lnrnn_step *s)
{
    site_statistics(s, LNRNN_SITE_INPUT, 0, s->r->config->outputs, s->cell.x);
}

/* Computes batch norm's statistics of the gates. With the reset gate before the product it runs twice: for r
 * and z, then for n. */
static void hidden_statistics(lnrnn_step *s)
{
    site_statistics(s, LNRNN_SITE_HIDDEN, 0, s->r->config->first_gates * s->r->config->H, s->a);
}

static void last_statistics(lnrnn_step *s)
{
    const lnrnn_rnn_config *c = s->r->config;
    site_statistics(s, LNRNN_SITE_HIDDEN, c->first_gates * c->H, c->outputs, s->a);
}

/* Zoneout mixes old and new states. Saves the old states, which the cell may overwrite. */
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

/* For a projection: points s->outputs to the tape, to which the kernel writes. `project` then computes h. */
static void record_outputs(lnrnn_step *s)
{
    const lnrnn_rnn_plan *p = s->r->plan;
    for (size_t i = 0; i < s->active; i++)
        s->outputs[i] = s->cell.saved_gates - p->tape.gates + i * p->tape.width + p->tape.output;
}

static void unproject(lnrnn_step *s) { s->cell.h = s->outputs; }

static void project(lnrnn_step *s)
{
    s->cell.h = s->h + (s->row - s->first);
    lnrnn_projection(s);
}

static void cell(lnrnn_step *s) { s->kernel(&s->config, &s->cell); }

/* r multiplies the h that W_hh would read, which is masked if there are masks. Threads do not divide rows
 * that have masks. */
static void reset_gates(lnrnn_step *s)
{
    const float *const *const h_prev = s->cell.h_prev;
    if (s->r->masks.state)
        s->cell.h_prev = s->recurrent;
    s->r->plan->kernels->cells->reset_gates(&s->config, &s->cell);
    s->cell.h_prev = h_prev;
}

/* For batch norm at inference: returns the index of the row of scale and shift that row i of s->cell
 * reads. */
static size_t table_row(const lnrnn_step *s, size_t i)
{
    const size_t step = (size_t)s->r->rows[s->row + i].start + s->t;
    return step < s->r->config->known ? step : (size_t)s->r->config->overrun_row;
}

/* Calls the kernel once for adjacent rows at the same step, because the lanes of a stream may be at different
 * steps. */
static void from_tables(lnrnn_step *s, lnrnn_phase *kernel)
{
    const lnrnn_step_rows all = s->cell;
    for (size_t i = 0, n; i < all.n; i += n) {
        const size_t row = table_row(s, i);
        for (n = 1; i + n < all.n && table_row(s, i + n) == row;)
            n++;
        for (int k = 0; k < LNRNN_SITES; k++) {
            const lnrnn_site *site = &s->r->config->site[k];
            if (site->norm.how == LNRNN_AFFINE && site->width)
                s->norm[k].gain = site->scale + row * site->width,
                s->norm[k].bias = site->shift + row * site->width;
        }
        s->cell = lnrnn_rows_from(&all, i, n);
        kernel(s);
    }
    s->cell = all;
}

static void cell_from_tables(lnrnn_step *s) { from_tables(s, cell); }
static void reset_gates_from_tables(lnrnn_step *s) { from_tables(s, reset_gates); }

/* Batch norm of c needs c of all rows first: the kernel writes the output gate to h, and `output` completes
 * h. */
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
    site_statistics(s, LNRNN_SITE_CELL, 0, s->r->config->H, s->all_c);
    s->r->plan->kernels->cells->lstm_output(&s->config, &s->cell);
}

/* Mixes old (n, width), row stride `stride`, into states, n pointers to (width). masks: r->masks.h or
 * r->masks.c. If masks is NULL, every unit keeps the fraction `rate` of its old state. */
static void zoneout(const lnrnn_step *s, size_t width, float rate, const unsigned char *masks,
                    const float *old, size_t stride, float *const *states)
{
    const float rest = 1 - rate;
    for (size_t i = 0; i < s->cell.n; i++, old += stride) {
        const unsigned char *mask = mask_row(s->r, masks, width, s->row + i, s->t);
        float *now = states[i];
        if (mask)
            for (size_t u = 0; u < width; u++) {
                const float a = old[u], b = now[u]; /* read both values, so that the choice needs no branch */
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

/* --- the phases in order -------------------------------------------------------------------------------- */

/* Sets p->phases. With zoneout of c, the tape gets the c that zoneout leaves. The backward pass computes the
 * earlier c again. */
void lnrnn_resolve_step(const lnrnn_rnn_call *r, lnrnn_rnn_plan *p)
{
    const lnrnn_rnn_config *c = r->config;
    const int tape = r->tape != NULL, tables = c->norm == LNRNN_NORM_BATCH, reset = c->reset_before,
              shared = p->divide_units && p->divide_rows;
    for (int batch = 0; batch < 1 + p->synchronous; batch++) {
        const int deferred = batch && c->cell_norm != LNRNN_CELL_NONE;
        const struct {
            int used;
            lnrnn_phase *phase;
        } diagram[] = {
            {tape, record},
            {r->masks.state != NULL, mask},
            {1, reset                  ? first_product
                : p->both_products     ? both_products
                : c->separate_products ? separate_product
                                       : joint_product},
            {p->divide_units, lnrnn_step_meet},
            {shared, take_rows},
            {batch && c->input_side, input_statistics},
            {batch && c->site[LNRNN_SITE_HIDDEN].norm.how == LNRNN_AFFINE, hidden_statistics},
            {reset, tables && !batch ? reset_gates_from_tables : reset_gates},
            {reset && shared, lnrnn_step_meet},
            {reset, last_product},
            {reset && p->divide_units, lnrnn_step_meet},
            {reset && batch, last_statistics},
            {c->zoneout_h > 0, save_h},
            {c->zoneout_c > 0, save_c},
            {tape && c->projection, record_outputs},
            {c->projection > 0, unproject},
            {1, deferred           ? cell_without_output
                : tables && !batch ? cell_from_tables
                                   : cell},
            {deferred || (tape && c->C && !(c->zoneout_c > 0)), gather_c},
            {deferred, output},
            {c->projection > 0, project},
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
    if (s->team < 2 || !lnrnn_barrier_wait(s->barrier, s->team))
        return;
    s->team = 1;
    s->ahead.w = NULL; /* to compute W_ih x ahead would need the other threads */
    if (s->index) {
        s->active = s->cell.n = 0;
        return;
    }
    s->cell.n = s->active; /* thread 0 had the first rows, so only their number changes */
    s->share = lnrnn_share_of(s->r, 0, 1);
}
