/* What stands between the products of a step and the states: norms and gates, for every cell and
 * placement.
 *
 * A site reads a product in one of three ways (gates.h): a bias; the scale and shift of this step, which
 * is batch norm; or the statistics of the row, which is layer norm. config.c has chosen the way and the
 * cell's function; what is left to do here is to find the scale and shift of a step. */
#include <string.h>

#include "lnrnn.h"
#include "lnrnn/kernels/table.h"
#include "rnn/rows.h"

lnrnn_fold lnrnn_step_statistics(const lnrnn_rnn_call *r, int site, size_t active, size_t t, const float *a,
                                 ptrdiff_t as, float *work)
{
    const lnrnn_norm *norm = &r->plan->kernels->norm[LNRNN_FLOAT32];
    const lnrnn_site *at = &r->config->site[site];
    const size_t n = at->width;
    double *mean = (double *)(((uintptr_t)work + 7) & ~(uintptr_t)7), *m2 = mean + n;
    float *fold = (float *)(m2 + n);
    r->plan->kernels->cells->moments_columns(active, n, a, as, mean, m2);
    if (r->count) {
        const lnrnn_site_statistics *out = &r->statistics[site];
        memcpy(out->mean + t * n, mean, n * sizeof *mean);
        for (size_t i = 0; i < n; i++)
            out->var[t * n + i] = m2[i] / (double)active;
        r->count[t] = (int64_t)active;
    }
    norm->fold(n, mean, m2, (double)active, at->gain, at->bias, r->config->eps, NULL, fold, fold + n,
               fold + 2 * n);
    return (lnrnn_fold){fold, fold + n, fold + 2 * n};
}

/* Mean, scale and shift of a batch norm's site at step t: those of the batch, f, or else the known ones. */
static lnrnn_fold fold_of(const lnrnn_rnn_call *r, int site, size_t t, lnrnn_fold f)
{
    const lnrnn_rnn_config *c = r->config;
    const lnrnn_site *at = &c->site[site];
    const size_t step = r->start + t, row = step < c->known ? step : (size_t)c->overrun_row;
    return f.scale ? f : (lnrnn_fold){NULL, at->scale + row * at->width, at->shift + row * at->width};
}

/* What the kernel of a site of batch norm gets at step t. */
static lnrnn_gate_norm folded(const lnrnn_rnn_call *r, int site, size_t t, lnrnn_fold f)
{
    lnrnn_gate_norm norm = r->config->site[site].norm;
    f = fold_of(r, site, t, f);
    norm.mean = f.mean, norm.gain = f.scale, norm.bias = f.shift;
    return norm;
}

/* The same for the norm of c that follows in the same kernel. */
static void fold_cell(const lnrnn_rnn_call *r, size_t t, lnrnn_fold f, lnrnn_gate_norm *norm)
{
    f = fold_of(r, LNRNN_SITE_CELL, t, f);
    norm->mean_c = f.mean, norm->gain_c = f.scale, norm->bias_c = f.shift;
}

void lnrnn_step_input(const lnrnn_rnn_call *r, lnrnn_fold f, size_t n, size_t t, const float *x, ptrdiff_t xs,
                      float *y, ptrdiff_t ys)
{
    const lnrnn_rnn_config *c = r->config;
    const lnrnn_gate_norm *norm = &c->site[LNRNN_SITE_INPUT].norm;
    lnrnn_gate_norm of_step;
    if (norm->how == LNRNN_AFFINE)
        of_step = folded(r, LNRNN_SITE_INPUT, t, f), norm = &of_step;
    r->plan->kernels->cells->input_side((int)c->num_gates, norm, n, x, xs, y, ys);
}

void lnrnn_step_cell(const lnrnn_rnn_call *r, lnrnn_fold f, const lnrnn_step_rows *s, int deferred_output)
{
    const lnrnn_rnn_config *c = r->config;
    const lnrnn_gate_norm *norm = &c->site[LNRNN_SITE_HIDDEN].norm;
    lnrnn_gate_norm of_step;
    if (norm->how == LNRNN_AFFINE) {
        of_step = folded(r, LNRNN_SITE_HIDDEN, s->t, f), norm = &of_step;
        of_step.deferred_output = deferred_output;
        if (c->cell_norm && !deferred_output)
            fold_cell(r, s->t, (lnrnn_fold){0}, &of_step);
    }
    c->cell_step(r->plan->kernels, c, norm, s);
}

void lnrnn_step_output(const lnrnn_rnn_call *r, lnrnn_fold f, const lnrnn_step_rows *s)
{
    lnrnn_gate_norm norm = r->config->site[LNRNN_SITE_HIDDEN].norm;
    fold_cell(r, s->t, f, &norm);
    r->plan->kernels->cells->lstm_out(&norm, s->n, s->c, s->h);
}

/* --- the cells ------------------------------------------------------------------------------------------ */

void lnrnn_rnn_step(const lnrnn_kernels *k, const lnrnn_rnn_config *c, const lnrnn_gate_norm *g,
                    const lnrnn_step_rows *s)
{
    if (g->how == LNRNN_NORMED)
        k->cells->rnn_layer(c->act, s->n, g->H, s->a, s->as, g->gain, g->bias, g->eps, s->h);
    else
        k->cells->rnn_affine(c->act, s->n, g->H, s->a, s->as, g->mean, g->gain, g->bias, s->h);
}

void lnrnn_rnn_separate_step(const lnrnn_kernels *k, const lnrnn_rnn_config *c, const lnrnn_gate_norm *g,
                             const lnrnn_step_rows *s)
{
    k->cells->rnn_separate(c->act, g, s->n, s->x, s->xs, s->a, s->as, s->h);
}

void lnrnn_lstm_step(const lnrnn_kernels *k, const lnrnn_rnn_config *c, const lnrnn_gate_norm *g,
                     const lnrnn_step_rows *s)
{
    (void)c;
    k->cells->lstm(g, s->n, s->x, s->xs, s->a, s->as, s->c, s->h, s->saved_gates, s->as);
}

void lnrnn_gru_step(const lnrnn_kernels *k, const lnrnn_rnn_config *c, const lnrnn_gate_norm *g,
                    const lnrnn_step_rows *s)
{
    (void)c;
    k->cells->gru(g, s->n, s->x, s->xs, s->a, s->as, s->h_prev, s->h, s->saved_gates, s->as);
}

void lnrnn_gru_gate_step(const lnrnn_kernels *k, const lnrnn_rnn_config *c, const lnrnn_gate_norm *g,
                         const lnrnn_step_rows *s)
{
    (void)c;
    k->cells->gru_gate(g, s->n, s->x, s->xs, s->a, s->as, s->h_prev, s->h, s->scratch);
}
