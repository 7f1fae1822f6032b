/* What stands between the products of a step and the states: norms and gates, for every cell and placement.
 *
 * A site reads a product in one of three ways (gates.h): a bias; the scale and shift of this step, which is batch norm;
 * or the statistics of the row, which is layer norm. Here the description of a layer becomes that of its kernel.
 */
#include <string.h>

#include "lnrnn.h"
#include "lnrnn/kernels.h"
#include "lnrnn/rows.h"

lnrnn_fold lnrnn_step_statistics(const lnrnn_rnn *r, const lnrnn_site *site, size_t n, size_t alive, size_t t,
                                 const float *a, ptrdiff_t as, float *work)
{
    const lnrnn_kernels *k = lnrnn_active();
    double *mean = (double *)(((uintptr_t)work + 7) & ~(uintptr_t)7), *m2 = mean + n;
    float *fold = (float *)(m2 + n);
    k->norm[LNRNN_FLOAT32].moments_columns(alive, n, a, as, mean, m2);
    if (r->count) {
        memcpy(site->mean + t * n, mean, n * sizeof *mean);
        for (size_t i = 0; i < n; i++)
            site->var[t * n + i] = m2[i] / (double)alive;
        r->count[t] = (int64_t)alive;
    }
    k->norm[LNRNN_FLOAT32].fold(n, mean, m2, (double)alive, site->gain, site->bias, r->eps, NULL, fold, fold + n, fold + 2 * n);
    return (lnrnn_fold){fold, fold + n, fold + 2 * n};
}

/* Scale and shift of a batch norm's site at step t, as known. */
static lnrnn_fold known(const lnrnn_rnn *r, const lnrnn_site *site, size_t n, size_t t)
{
    const size_t step = r->start + t, row = step < r->known ? step : (size_t)r->beyond;
    return (lnrnn_fold){NULL, site->scale + row * n, site->shift + row * n};
}

static lnrnn_fold fold_of(const lnrnn_rnn *r, const lnrnn_site *site, size_t n, size_t t, lnrnn_fold f)
{
    return f.scale ? f : known(r, site, n, t);
}

/* How a product is read at a site. */
static lnrnn_gates reading(const lnrnn_rnn *r, const lnrnn_site *site, size_t t, lnrnn_fold f)
{
    lnrnn_gates g = {.H = r->H, .eps = r->eps, .gain = site->gain, .bias = site->bias};
    if (r->norm == LNRNN_NORM_NONE)
        g.how = LNRNN_PLAIN;
    else if (r->norm == LNRNN_NORM_LAYER) {
        g.how = LNRNN_NORMED;
        g.spans = r->placement == LNRNN_GATE ? LNRNN_SPANS_EACH
                : r->cell == LNRNN_GRU && r->placement == LNRNN_SPLIT && r->span == LNRNN_SPAN_PAPER ? LNRNN_SPANS_LAST
                                                                                                     : LNRNN_SPANS_ALL;
    } else {
        f = fold_of(r, site, outputs(r), t, f);
        g.how = LNRNN_AFFINE;
        g.mean = f.mean, g.gain = f.scale, g.bias = f.shift;
    }
    return g;
}

/* The LSTM's norm of c. */
static void reading_of_c(const lnrnn_rnn *r, size_t t, lnrnn_fold f, lnrnn_gates *g)
{
    g->cell_norm = r->cell_norm;
    g->cell_how = r->norm == LNRNN_NORM_BATCH ? LNRNN_AFFINE : LNRNN_NORMED;
    g->gain_c = r->at_c.gain, g->bias_c = r->at_c.bias;
    if (g->cell_how == LNRNN_AFFINE) {
        f = fold_of(r, &r->at_c, r->H, t, f);
        g->mean_c = f.mean, g->gain_c = f.scale, g->bias_c = f.shift;
    }
}

void lnrnn_step_side(const lnrnn_rnn *r, lnrnn_fold f, size_t n, size_t t, const float *x, ptrdiff_t xs, float *y,
                     ptrdiff_t ys)
{
    const lnrnn_gates g = reading(r, &r->at_x, t, f);
    lnrnn_active()->cells->side((int)gates(r), &g, n, x, xs, y, ys);
}

static void rnn_cell(const lnrnn_rnn *r, lnrnn_fold f, const lnrnn_rows *s)
{
    const lnrnn_kernels *k = lnrnn_active();
    if (s->x) {
        const lnrnn_gates g = reading(r, &r->at_h, s->t, f);
        k->cells->rnn_two(r->act, &g, s->n, s->x, s->xs, s->a, s->as, s->h);
    } else if (r->norm == LNRNN_NORM_LAYER)
        k->cells->rnn_layer(r->act, s->n, r->H, s->a, s->as, r->at_h.gain, r->at_h.bias, r->eps, s->h);
    else if (r->norm == LNRNN_NORM_NONE)
        k->cells->rnn_affine(r->act, s->n, r->H, s->a, s->as, NULL, NULL, r->at_h.bias, s->h);
    else {
        f = fold_of(r, &r->at_h, r->H, s->t, f);
        k->cells->rnn_affine(r->act, s->n, r->H, s->a, s->as, f.mean, f.scale, f.shift, s->h);
    }
}

void lnrnn_step_cell(const lnrnn_rnn *r, lnrnn_fold f, const lnrnn_rows *s, int late)
{
    const lnrnn_kernels *k = lnrnn_active();
    if (r->cell == LNRNN_RNN) {
        rnn_cell(r, f, s);
        return;
    }
    lnrnn_gates g = reading(r, &r->at_h, s->t, f);
    if (r->cell == LNRNN_LSTM) {
        g.late = late;
        if (r->cell_norm && !late)
            reading_of_c(r, s->t, (lnrnn_fold){0}, &g);
        else
            g.cell_norm = r->cell_norm;
        k->cells->lstm(&g, s->n, s->x, s->xs, s->a, s->as, s->c, s->h, s->keep, s->as);
    } else if (g.spans == LNRNN_SPANS_EACH)
        k->cells->gru_gate(&g, s->n, s->x, s->xs, s->a, s->as, s->before, s->h, s->scratch);
    else
        k->cells->gru(&g, s->n, s->x, s->xs, s->a, s->as, s->before, s->h, s->keep, s->as);
}

void lnrnn_step_out(const lnrnn_rnn *r, lnrnn_fold f, const lnrnn_rows *s)
{
    lnrnn_gates g = {.H = r->H, .eps = r->eps};
    reading_of_c(r, s->t, f, &g);
    lnrnn_active()->cells->lstm_out(&g, s->n, s->c, s->h);
}
