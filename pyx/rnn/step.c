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

/* The row of the tables of batch norm that row i takes at step t. */
static size_t table_row(const lnrnn_rnn_call *r, size_t i, size_t t)
{
    const size_t step = (size_t)r->rows[i].start + t;
    return step < r->config->known ? step : (size_t)r->config->overrun_row;
}

/* How many of the n rows from r0 on take the scale and shift that r0 takes at step t: all of them, but for the
 * batch norm of a stream, in which each row has taken steps of its own. */
static size_t rows_alike(const lnrnn_rnn_call *r, lnrnn_fold fold, size_t r0, size_t n, size_t t)
{
    if (r->config->norm != LNRNN_NORM_BATCH || fold.scale)
        return n;
    size_t alike = 1;
    while (alike < n && table_row(r, r0 + alike, t) == table_row(r, r0, t))
        alike++;
    return alike;
}

/* How a site reads the values of row r0 at step t: batch norm with the batch's statistics, if there is a fold,
 * or with the row that its tables have for the step. -> the site's norm, or of_step, written. */
static const lnrnn_gate_norm *norm_of_step(const lnrnn_rnn_call *r, int site, size_t r0, size_t t,
                                           lnrnn_fold fold, lnrnn_gate_norm *of_step)
{
    const lnrnn_rnn_config *c = r->config;
    const lnrnn_site *at = &c->site[site];
    if (at->norm.how != LNRNN_AFFINE)
        return &at->norm;
    *of_step = at->norm;
    if (fold.scale) {
        of_step->mean = fold.mean, of_step->gain = fold.scale, of_step->bias = fold.shift;
    } else {
        const size_t row = table_row(r, r0, t);
        of_step->gain = at->scale + row * at->width, of_step->bias = at->shift + row * at->width;
    }
    return of_step;
}

/* Rows first .. first + n - 1 of `all`. */
static lnrnn_step_rows part_of(const lnrnn_step_rows *all, size_t first, size_t n)
{
    lnrnn_step_rows part = *all;
    part.n = n;
    part.x += part.x ? (ptrdiff_t)first * all->xs : 0;
    part.a += (ptrdiff_t)first * all->as;
    part.h_prev += first, part.c += first, part.h += first;
    part.saved_gates += part.saved_gates ? (ptrdiff_t)first * all->as : 0;
    return part;
}

void lnrnn_step_cell(const lnrnn_rnn_call *r, const lnrnn_folds *folds, size_t r0, size_t t,
                     const lnrnn_step_rows *rows, int deferred_output)
{
    const lnrnn_rnn_config *c = r->config;
    for (size_t i = 0, alike; i < rows->n; i += alike) {
        lnrnn_gate_norm hidden, input, cell;
        lnrnn_step_config step = {.hidden =
                                      norm_of_step(r, LNRNN_SITE_HIDDEN, r0 + i, t, folds->hidden, &hidden),
                                  .act = c->act,
                                  .cell_norm = c->cell_norm,
                                  .deferred_output = deferred_output};
        if (c->input_side)
            step.input = norm_of_step(r, LNRNN_SITE_INPUT, r0 + i, t, folds->input, &input);
        if (c->cell_norm != LNRNN_CELL_NONE && !deferred_output)
            step.cell = norm_of_step(r, LNRNN_SITE_CELL, r0 + i, t, (lnrnn_fold){0}, &cell);
        alike = rows_alike(r, folds->hidden, r0 + i, rows->n - i, t);
        const lnrnn_step_rows part = part_of(rows, i, alike);
        r->plan->kernels->cells->step[c->step_kernel](&step, &part);
    }
}

void lnrnn_step_output(const lnrnn_rnn_call *r, lnrnn_fold fold, size_t r0, size_t t,
                       const lnrnn_step_rows *rows)
{
    lnrnn_gate_norm cell;
    const lnrnn_step_config step = {.cell = norm_of_step(r, LNRNN_SITE_CELL, r0, t, fold, &cell),
                                    .cell_norm = r->config->cell_norm};
    r->plan->kernels->cells->lstm_output(&step, rows);
}
