/* Back-propagates through the norms and biases of a step, and sums the gradients of gains and biases. A site
 * is the place of a norm in the cell.
 *
 * These gradients are sums over all rows. Each block of sum_rows rows (rows.h) has sums of its own, which are
 * added up in order at the end. So the result does not depend on how threads divide the rows. Within a block,
 * float sums of a few rows (`partial`) are added to sums in double. */
#include <math.h>
#include <string.h>

#include "rnn/backward.h"
#include "rnn/rows.h"

size_t lnrnn_sums_at(const lnrnn_rnn_config *c, int site)
{
    size_t n = 0;
    for (int i = 0; i < LNRNN_SITES && i < site; i++)
        n += 2 * c->site[i].width;
    return site > LNRNN_SITES ? n + c->outputs : n;
}

size_t lnrnn_sums(const lnrnn_rnn_config *c)
{
    const int inner = c->inner_hh ? 2 : c->inner_ih ? 1 : 0;
    return lnrnn_sums_at(c, LNRNN_SITES) + (size_t)inner * c->outputs + (c->peephole ? 3 * c->H : 0);
}

/* Returns the end of the span (the values that share statistics) that begins at value `from` of a row. */
static size_t span_end(const lnrnn_gate_norm *norm, size_t from, size_t width)
{
    if (norm->how != LNRNN_NORMED || norm->spans == LNRNN_SPANS_ALL)
        return width;
    if (norm->spans == LNRNN_SPANS_LAST)
        return from ? width : width - norm->H;
    return from + norm->H;
}

/* Back-propagates through batch norm of the values from .. end - 1, with the statistics of step t from the
 * forward call. All rows are in one group, and use the sums of the first block. */
static void batch_backward(const backward_step *s, int site, size_t from, size_t end, const site_rows *rows)
{
    const backward_job *j = s->j;
    const lnrnn_site_statistics *batch = &j->r->statistics[site];
    const float *const gain = j->c->site[site].gain + from, *const g = rows->g + from,
                       *const a = rows->a + from;
    const size_t N = end - from, width = j->c->site[site].width, at = s->t * width + from;
    const double *mean = batch->mean + at, *var = batch->var + at;
    const double n = (double)s->active;
    double *const ggain = j->sums + lnrnn_sums_at(j->c, site) + from, *const gbias = ggain + width;
    double *s0 = (double *)(((uintptr_t)s->batch + 7) & ~(uintptr_t)7), *s1 = s0 + N;
    float *mean_f = (float *)(s1 + N), *c1 = mean_f + N, *c2 = c1 + N, *scale = c2 + N, *zeros = scale + N;
    for (size_t o = 0; o < N; o++)
        mean_f[o] = (float)mean[o];
    memset(s0, 0, 2 * N * sizeof *s0);
    memset(zeros, 0, 2 * N * sizeof *zeros);
    j->k->cells->sums_columns(s->active, N, g, rows->gs, a, rows->as, mean_f, s0, s1, zeros);
    for (size_t o = 0; o < N; o++) {
        const double low = mean[o] - mean_f[o], rvar = 1 / (var[o] + j->c->eps);
        const double rstd = sqrt(rvar), sgx = s1[o] - low * s0[o], slope = sgx / n * rvar;
        ggain[o] += sgx * rstd;
        gbias[o] += s0[o];
        scale[o] = (float)(gain[o] * rstd);
        c1[o] = (float)(s0[o] / n - low * slope);
        c2[o] = (float)slope;
    }
    const lnrnn_coefficients coefficients = {.mean = mean_f, .scale = scale, .shift = c1, .slope = c2};
    /* Call gx_columns for one row at a time: g and a have different strides, and gx_columns takes only one
     * stride. */
    for (ptrdiff_t i = 0; i < (ptrdiff_t)s->active; i++)
        j->k->norm[LNRNN_FLOAT32].gx_columns(1, N, g + i * rows->gs, a + i * rows->as, 0, &coefficients,
                                             rows->ga + from + i * rows->gs);
}

/* Returns the float sums, from offset `at` on, of the block of rows that has row i of the step. Sets *n to
 * the number of rows from i on in this block. */
static float *partial_sums(const backward_step *s, size_t i, size_t at, size_t *n)
{
    const backward_job *j = s->j;
    const size_t block = (s->first + i) / j->sum_rows, end = (block + 1) * j->sum_rows - s->first;
    *n = (end < s->active ? end : s->active) - i;
    return j->partial + block * lnrnn_sums(j->c) + at;
}

/* g (active, width), row stride gs. Adds the sum of each column of g to the partial sums at offset `at`. */
static void add_columns(const backward_step *s, size_t at, size_t width, const float *g, ptrdiff_t gs)
{
    for (size_t i = 0, n; i < s->active; i += n) {
        float *sums = partial_sums(s, i, at, &n);
        s->j->k->cells->add_columns(n, width, g + (ptrdiff_t)i * gs, gs, sums);
    }
}

void lnrnn_inner_backward(const backward_step *s, int inner, const float *g)
{
    const lnrnn_rnn_config *c = s->j->c;
    add_columns(s, lnrnn_sums_at(c, LNRNN_SITES + inner), c->outputs, g, (ptrdiff_t)s->j->wide);
}

void lnrnn_peephole_backward(const backward_step *s, size_t k, size_t gate)
{
    const backward_job *j = s->j;
    const size_t H = j->c->H;
    const float *const p = j->c->peephole + k * H;
    for (size_t i = 0; i < s->active; i++) {
        const float *const c = k == 2 ? s->c + (ptrdiff_t)i * s->cs : s->state_prev[i], *const ga =
                                                                                            s->ga
                                                                                            + i * j->wide
                                                                                            + gate * H;
        float *const gp = s->u + i * j->narrow, *const gc = s->b.gc + i * j->c_stride;
        for (size_t u = 0; u < H; u++)
            gp[u] = ga[u] * c[u], gc[u] += ga[u] * p[u];
    }
    add_columns(s, lnrnn_sums(j->c) - (3 - k) * H, H, s->u, (ptrdiff_t)j->narrow);
}

/* Back-propagates through layer or RMS norm of one span, the values from .. to - 1. */
static void span_backward(const backward_step *s, int site, size_t from, size_t to, const site_rows *rows)
{
    const lnrnn_gate_norm *norm = &s->j->c->site[site].norm;
    for (size_t i = 0, n; i < s->active; i += n) {
        float *sums = partial_sums(s, i, lnrnn_sums_at(s->j->c, site) + 2 * from, &n);
        const ptrdiff_t g = (ptrdiff_t)i * rows->gs + (ptrdiff_t)from;
        const lnrnn_layer_norm_gradients span = {.rows = n,
                                                 .n = to - from,
                                                 .gy = rows->g + g,
                                                 .x = rows->a + (ptrdiff_t)i * rows->as + from,
                                                 .gx = rows->ga + g,
                                                 .gys = rows->gs,
                                                 .xs = rows->as,
                                                 .gxs = rows->gs,
                                                 .gain = norm->gain + from,
                                                 .eps = (double)norm->eps,
                                                 .centred = norm->centred,
                                                 .partial = sums};
        s->j->k->norm[LNRNN_FLOAT32].layer_norm_backward(&span);
    }
}

void lnrnn_site_backward(const backward_step *s, int site, size_t from, size_t end, const site_rows *rows)
{
    const lnrnn_gate_norm *norm = &s->j->c->site[site].norm;
    const size_t width = s->j->c->site[site].width;
    if (norm->how == LNRNN_AFFINE)
        batch_backward(s, site, from, end, rows);
    else if (norm->how == LNRNN_PLAIN || norm->how == LNRNN_HARD)
        add_columns(s, lnrnn_sums_at(s->j->c, site) + width + from, end - from, rows->g + from, rows->gs);
    else
        for (size_t to; from < end; from = to) {
            to = span_end(norm, from, width);
            span_backward(s, site, from, to, rows);
        }
}

/* --- sums ------------------------------------------------------------------------------------------- */

static void flush(size_t n, float *partial, double *sums)
{
    for (size_t i = 0; i < n; i++) {
        sums[i] += (double)partial[i];
        partial[i] = 0;
    }
}

/* Adds the float sums `partial` of a block to its double `sums`. In `partial` gain and bias of a span are
 * adjacent; in `sums` all gains of a norm come first. */
static void flush_block(const backward_job *j, size_t block)
{
    const lnrnn_rnn_config *c = j->c;
    const size_t all = lnrnn_sums(c), inner = lnrnn_sums_at(c, LNRNN_SITES);
    float *const partial = j->partial + block * all;
    double *const sums = j->sums + block * all;
    for (int site = 0; site < LNRNN_SITES; site++) {
        const size_t width = c->site[site].width, at = lnrnn_sums_at(c, site);
        for (size_t from = 0, to; from < width; from = to) {
            to = span_end(&c->site[site].norm, from, width);
            flush(to - from, partial + at + 2 * from, sums + at + from);
            flush(to - from, partial + at + from + to, sums + at + width + from);
        }
    }
    flush(all - inner, partial + inner, sums + inner);
}

void lnrnn_flush_sums(const backward_job *j, size_t first, size_t rows, size_t t)
{
    /* Add the sums after about every 32 rows of a block, and after the last step. */
    /* GCOVR_EXCL_BR_LINE: blocks of fewer rows on this machine */
    if (j->sum_rows >= 32 || t % (32 / j->sum_rows) == 0)
        for (size_t block = first / j->sum_rows; block * j->sum_rows < first + rows; block++)
            flush_block(j, block);
}

void lnrnn_total_sums(const backward_job *j)
{
    const size_t n = lnrnn_sums(j->c);
    double *const total = j->sums;
    for (size_t i = 1; i < j->blocks; i++)
        for (size_t o = 0; o < n; o++)
            total[o] += j->sums[i * n + o];
    for (int site = 0; site < LNRNN_SITES; site++) {
        const double *sum = total + lnrnn_sums_at(j->c, site);
        const lnrnn_site_gradients *out = &j->g->site[site];
        const size_t width = j->c->site[site].width;
        if (out->gain)
            memcpy(out->gain, sum, width * sizeof *sum);
        if (out->bias)
            memcpy(out->bias, sum + width, width * sizeof *sum);
    }
    for (int i = 0; i < 2; i++)
        if (j->g->inner[i])
            memcpy(j->g->inner[i], total + lnrnn_sums_at(j->c, LNRNN_SITES + i),
                   j->c->outputs * sizeof *total);
    if (j->g->peephole)
        memcpy(j->g->peephole, total + n - 3 * j->c->H, 3 * j->c->H * sizeof *total);
}

/* --- the output of a norm ---------------------------------------------------------------------------- */

void lnrnn_last_gate(backward_step *s, int site, const float *a, ptrdiff_t as)
{
    const backward_job *j = s->j;
    const lnrnn_site *at = &j->c->site[site];
    const size_t H = j->c->H, from = at->width - H;
    lnrnn_gate_norm g = at->norm;
    if (g.how == LNRNN_NORMED && g.spans == LNRNN_SPANS_ALL && from) {
        s->b.u = s->sum + from, s->b.us = (ptrdiff_t)j->wide;
        j->k->cells->normalise_rows((int)j->c->num_gates, &g, s->active, a, as, s->sum, s->b.us);
        return;
    }
    g.spans = LNRNN_SPANS_ALL;
    if (g.how == LNRNN_AFFINE) {
        const lnrnn_site_statistics *batch = &j->r->statistics[site];
        const size_t row = s->t * at->width + from;
        float *mean = s->batch, *scale = mean + H, *shift = scale + H;
        const lnrnn_channels channels = {.n = H,
                                         .mean = batch->mean + row,
                                         .m2 = batch->var + row,
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
    s->b.u = s->u, s->b.us = (ptrdiff_t)j->narrow;
    j->k->cells->normalise_rows(1, &g, s->active, a + from, as, s->u, s->b.us);
}
