/* Back through time: the gradients of one recurrent layer, from the tape that the forward call kept.
 *
 * A group goes back through its steps; each step turns the gradient of h into that of a = W x + W h, kept for all rows. From
 * these the weights' gradients are one product each, summed over the packed rows in their order, whatever the threads.
 */
#include <math.h>
#include <string.h>

#include "lnrnn.h"
#include "lnrnn/kernels.h"
#include "lnrnn/rows.h"

/* Rows of the weights' gradients in a task, and packed rows that a task transposes at once. */
enum { GRADIENT_ROWS = 64, GRADIENT_DEPTH = 256 };

/* A group's ggain, gbias, and the kernels' sums and zeros. */
static size_t group_doubles(const lnrnn_rnn *r) { return 6 * r->H; }

/* A worker's gradient of h (rows, H), and gx of a tile before it goes to the caller's array. */
static size_t backward_worker(const lnrnn_kernels *k, const lnrnn_rnn *r)
{
    return r->group * k->mm_width(r->H) + TILE * k->mm_width(r->D) + statistics_work(r);
}

static size_t gradient_worker(const lnrnn_kernels *k, const lnrnn_rnn *r)
{
    const size_t widest = k->mm_width(r->D > r->H ? r->D : r->H);
    return GRADIENT_DEPTH * GRADIENT_ROWS + GRADIENT_DEPTH * widest + GRADIENT_ROWS * widest;
}

size_t lnrnn_rnn_backward_work(const lnrnn_rnn *r)
{
    const lnrnn_kernels *k = lnrnn_active();
    const size_t one = backward_worker(k, r), two = gradient_worker(k, r);
    return 2 + 2 * groups(r) * group_doubles(r) + all_rows(r) * k->mm_width(r->H)
        + (size_t)r->threads * (one > two ? one : two);
}

typedef struct {
    const lnrnn_rnn *r;
    const lnrnn_rnn_gradients *g;
    const lnrnn_kernels *k;
    double *sums;  /* (groups, group_doubles) */
    float *ga;     /* (all rows, width): gradient of W x + W h */
    float *work;   /* (threads, the larger of the two workers) */
    size_t rows;
} backward_job;

/* ga (alive, H) holds the gradient of the norm's output at step t, a its input -> ga: the gradient of that input. */
static void norm_backward(const backward_job *j, size_t alive, const float *a, float *ga, double *sums, float *scratch)
{
    const lnrnn_rnn *r = j->r;
    const size_t H = r->H;
    const ptrdiff_t width = (ptrdiff_t)j->k->mm_width(H);
    double *ggain = sums, *gbias = sums + H, *s0 = sums + 2 * H, *s1 = sums + 3 * H;
    float *zeros = (float *)(sums + 4 * H); /* (2, H), as the kernels want them and leave them */
    if (r->norm == LNRNN_NORM_LAYER) {
        j->k->f32.layer_norm_backward(alive, H, ga, width, a, width, r->at_h.gain, r->eps, ga, width, ggain, gbias, zeros);
    } else if (r->norm == LNRNN_NORM_NONE) {
        for (size_t i = 0; i < alive; i++)
            for (size_t o = 0; o < H; o++)
                gbias[o] += ga[(ptrdiff_t)i * width + (ptrdiff_t)o];
    } else {
        double *mean = (double *)(((uintptr_t)scratch + 7) & ~(uintptr_t)7), *m2 = mean + H;
        float *at = (float *)(m2 + H), *c1 = at + H, *c2 = at + 2 * H;
        float *scale = zeros; /* borrowed between two calls that need zeros */
        j->k->f32.moments_columns(alive, H, a, width, mean, m2);
        for (size_t o = 0; o < H; o++)
            at[o] = (float)mean[o];
        memset(s0, 0, 2 * H * sizeof *s0);
        j->k->f32.sums_columns(alive, H, ga, a, width, at, s0, s1, zeros);
        for (size_t o = 0; o < H; o++) {
            const double n = (double)alive, low = mean[o] - at[o], rvar = 1 / (m2[o] / n + r->eps);
            const double rstd = sqrt(rvar), sgx = s1[o] - low * s0[o], slope = sgx / n * rvar;
            ggain[o] += sgx * rstd;
            gbias[o] += s0[o];
            scale[o] = (float)(r->at_h.gain[o] * rstd);
            c1[o] = (float)(s0[o] / n - low * slope);
            c2[o] = (float)slope;
        }
        j->k->f32.gx_columns(alive, H, ga, a, width, at, scale, c1, c2, ga);
        memset(zeros, 0, 2 * H * sizeof *zeros);
    }
}

static void input_gradient(const backward_job *j, size_t first, size_t n, const size_t *where, float *tile)
{
    const lnrnn_rnn *r = j->r;
    const size_t H = r->H, D = r->D, width = j->k->mm_width(H), wide = j->k->mm_width(D);
    const float *rows[TILE];
    for (size_t i = 0; i < n; i++)
        rows[i] = j->ga + (first + i) * width;
    j->k->matmul(LNRNN_WEIGHT_F32, n, D, H, rows, j->g->w_ih_t, 0, j->k->mm_panels(D), 0, 0, tile, (ptrdiff_t)wide, NULL);
    for (size_t i = 0; i < n; i++)
        memcpy(j->g->gx + where[i] * D, tile + i * wide, D * sizeof(float));
}

static void backward_group(void *ctx, size_t index, int worker)
{
    const backward_job *j = ctx;
    const lnrnn_rnn *r = j->r;
    const lnrnn_rnn_gradients *g = j->g;
    const lnrnn_kernels *k = j->k;
    const size_t H = r->H, width = k->mm_width(H), r0 = index * r->group;
    const size_t count = r->B - r0 < r->group ? r->B - r0 : r->group, steps = (size_t)r->length[r0];
    const size_t one = backward_worker(k, r), two = gradient_worker(k, r), first = rows_before(r, r0);
    float *gh = j->work + (size_t)worker * (one > two ? one : two);
    float *tile = gh + r->group * width, *scratch = tile + TILE * k->mm_width(r->D);
    double *sums = j->sums + index * group_doubles(r);
    size_t pos = first;
    memset(sums, 0, group_doubles(r) * sizeof *sums);
    memset(gh, 0, r->group * width * sizeof *gh);
    for (size_t i = 0; i < count; i++) {
        if (g->ghn)
            memcpy(gh + i * width, g->ghn + (size_t)r->order[r0 + i] * H, H * sizeof *gh);
        pos += (size_t)r->length[r0 + i];
    }
    size_t where[TILE], alive = 0;
    for (size_t t = steps; t-- > 0;) {
        while (alive < count && (size_t)r->length[r0 + alive] > t)
            alive++;
        pos -= alive;
        float *ga = j->ga + pos * width;
        for (size_t i = 0; i < alive; i++) {
            const size_t q = r0 + i;
            const ptrdiff_t own = at_step(r, q, t);
            const float *gy = g->gy + own * g->gyt + r->order[q] * g->gyb;
            for (size_t o = 0; o < H; o++)
                gh[i * width + o] += gy[o];
            k->rnn_act_backward(r->act, H, gh + i * width, y_row(r, q, t), ga + i * width);
            memset(ga + i * width + H, 0, (width - H) * sizeof *ga);
            g->rows[pos + i] = x_row(r, q, t);
            g->rows[j->rows + pos + i] = h_row(r, q, t);
        }
        norm_backward(j, alive, r->tape + pos * width, ga, sums, scratch);
        for (size_t i = 0; i < alive; i += TILE) {
            const size_t m = alive - i < TILE ? alive - i : TILE;
            const float *rows[TILE];
            for (size_t n = 0; n < m; n++) {
                const size_t q = r0 + i + n;
                rows[n] = ga + (i + n) * width;
                where[n] = (size_t)at_step(r, q, t) * r->B + (size_t)r->order[q];
            }
            k->matmul(LNRNN_WEIGHT_F32, m, H, H, rows, g->w_hh_t, 0, k->mm_panels(H), 0, 0, gh + i * width, (ptrdiff_t)width,
                      NULL);
            input_gradient(j, pos + i, m, where, tile);
        }
    }
    for (size_t i = 0; i < count; i++)
        memcpy(g->gh0 + (size_t)r->order[r0 + i] * H, gh + i * width, H * sizeof *gh);
}

/* A block of rows of gw_ih or gw_hh: sum over the packed rows of ga[row][o] * x[row][i], the packed rows in order. */
static void weight_gradient(void *ctx, size_t index, int worker)
{
    const backward_job *j = ctx;
    const lnrnn_rnn *r = j->r;
    const lnrnn_kernels *k = j->k;
    const size_t H = r->H, blocks = (H + GRADIENT_ROWS - 1) / GRADIENT_ROWS, hidden = index >= blocks;
    const size_t o0 = index % blocks * GRADIENT_ROWS, m = H - o0 < GRADIENT_ROWS ? H - o0 : GRADIENT_ROWS;
    const size_t n = hidden ? H : r->D, width = k->mm_width(H), wide = k->mm_width(n);
    const size_t one = backward_worker(k, r), two = gradient_worker(k, r);
    float *turned = j->work + (size_t)worker * (one > two ? one : two);
    float *packed = turned + GRADIENT_ROWS * GRADIENT_DEPTH, *sum = packed + GRADIENT_DEPTH * wide;
    const float *const *rows = j->g->rows + (hidden ? j->rows : 0);
    const float *left[GRADIENT_ROWS];
    for (size_t o = 0; o < m; o++)
        left[o] = turned + o * GRADIENT_DEPTH;
    memset(sum, 0, m * wide * sizeof *sum);
    for (size_t p = 0; p < j->rows; p += GRADIENT_DEPTH) {
        const size_t depth = j->rows - p < GRADIENT_DEPTH ? j->rows - p : GRADIENT_DEPTH;
        for (size_t d = 0; d < depth; d++)
            for (size_t o = 0; o < m; o++)
                turned[o * GRADIENT_DEPTH + d] = j->ga[(p + d) * width + o0 + o];
        k->mm_pack_rows(n, depth, rows + p, (uint32_t *)packed);
        k->matmul(LNRNN_WEIGHT_F32, m, n, depth, left, (const uint32_t *)packed, 0, k->mm_panels(n), 1, 0, sum,
                  (ptrdiff_t)wide, NULL);
    }
    for (size_t o = 0; o < m; o++)
        memcpy((hidden ? j->g->gw_hh : j->g->gw_ih) + (o0 + o) * n, sum + o * wide, n * sizeof *sum);
}

void lnrnn_rnn_backward(const lnrnn_rnn *r, const lnrnn_rnn_gradients *g)
{
    const lnrnn_kernels *k = lnrnn_active();
    const size_t H = r->H, n = groups(r);
    backward_job j = {.r = r, .g = g, .k = k, .rows = all_rows(r)};
    j.sums = (double *)(((uintptr_t)g->work + 7) & ~(uintptr_t)7);
    j.ga = (float *)(j.sums + n * group_doubles(r));
    j.work = j.ga + j.rows * k->mm_width(H);
    lnrnn_parallel(n, r->threads, backward_group, &j);
    memset(g->at_h.gain, 0, H * sizeof *g->at_h.gain);
    memset(g->at_h.bias, 0, H * sizeof *g->at_h.bias);
    for (size_t s = 0; s < n; s++)
        for (size_t o = 0; o < H; o++) {
            g->at_h.gain[o] += j.sums[s * group_doubles(r) + o];
            g->at_h.bias[o] += j.sums[s * group_doubles(r) + H + o];
        }
    lnrnn_parallel(2 * ((H + GRADIENT_ROWS - 1) / GRADIENT_ROWS), r->threads, weight_gradient, &j);
}
