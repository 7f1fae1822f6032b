/* A step between its products and its states.
 *
 * A site reads its values in one of three ways (kernels/gate_norm.h): with a bias; with a scale and shift of
 * this step, which is batch norm; or with the statistics of each row, which is layer norm. config.c has
 * chosen the way and the cell's kernel, once; here the scale and shift of a step are found, and the kernel is
 * called. */
#include <string.h>

#include "rnn/step.h"

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
    const lnrnn_channels channels = {.n = n,
                                     .mean = mean,
                                     .m2 = m2,
                                     .count = (double)active,
                                     .gain = at->gain,
                                     .bias = at->bias,
                                     .eps = (double)r->config->eps};
    const lnrnn_coefficients out = {.mean = fold, .scale = fold + n, .shift = fold + 2 * n};
    norm->fold(&channels, &out);
    return (lnrnn_fold){.mean = fold, .scale = fold + n, .shift = fold + 2 * n};
}

/* How a site reads its values at step t: batch norm with the batch's statistics, if there is a fold, or with
 * the row that its tables have for the step. -> the site's norm, or of_step, written. */
static const lnrnn_gate_norm *norm_of_step(const lnrnn_rnn_call *r, int site, size_t t, lnrnn_fold fold,
                                           lnrnn_gate_norm *of_step)
{
    const lnrnn_rnn_config *c = r->config;
    const lnrnn_site *at = &c->site[site];
    if (at->norm.how != LNRNN_AFFINE)
        return &at->norm;
    *of_step = at->norm;
    if (fold.scale) {
        of_step->mean = fold.mean, of_step->gain = fold.scale, of_step->bias = fold.shift;
    } else {
        const size_t step = r->start + t, row = step < c->known ? step : (size_t)c->overrun_row;
        of_step->gain = at->scale + row * at->width, of_step->bias = at->shift + row * at->width;
    }
    return of_step;
}

void lnrnn_step_input(const lnrnn_rnn_call *r, lnrnn_fold fold, size_t n, size_t t, const float *x,
                      ptrdiff_t xs, float *y, ptrdiff_t ys)
{
    lnrnn_gate_norm of_step;
    const lnrnn_gate_norm *norm = norm_of_step(r, LNRNN_SITE_INPUT, t, fold, &of_step);
    r->plan->kernels->cells->normalise_rows((int)r->config->num_gates, norm, n, x, xs, y, ys);
}

void lnrnn_step_cell(const lnrnn_rnn_call *r, lnrnn_fold fold, size_t t, const lnrnn_step_rows *rows,
                     int deferred_output)
{
    const lnrnn_rnn_config *c = r->config;
    lnrnn_gate_norm hidden, cell;
    lnrnn_step_config step = {.hidden = norm_of_step(r, LNRNN_SITE_HIDDEN, t, fold, &hidden),
                              .act = c->act,
                              .cell_norm = c->cell_norm,
                              .deferred_output = deferred_output};
    if (c->cell_norm != LNRNN_CELL_NONE && !deferred_output)
        step.cell = norm_of_step(r, LNRNN_SITE_CELL, t, (lnrnn_fold){0}, &cell);
    r->plan->kernels->cells->step[c->step_kernel](&step, rows);
}

void lnrnn_step_output(const lnrnn_rnn_call *r, lnrnn_fold fold, size_t t, const lnrnn_step_rows *rows)
{
    lnrnn_gate_norm cell;
    const lnrnn_step_config step = {.cell = norm_of_step(r, LNRNN_SITE_CELL, t, fold, &cell),
                                    .cell_norm = r->config->cell_norm};
    r->plan->kernels->cells->lstm_output(&step, rows);
}
