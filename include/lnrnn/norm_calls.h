/* The norms over threads: one text for one real type, included by norms.c with R, F(name) (the public name with the type's
 * suffix) and K (the type's kernels in the active table).
 *
 * Work is cut into tasks whose bounds depend on the shape alone, never on the number of threads: so do the sums.
 */

typedef struct {
    size_t rows, n, block;
    const R *x, *gain, *bias;
    ptrdiff_t xs, ys;
    R eps, *y;
    int past;
} F(layer_norm_job);

static void F(layer_norm_task)(void *ctx, size_t index, int worker)
{
    const F(layer_norm_job) *j = ctx;
    const size_t r = index * j->block, m = j->rows - r < j->block ? j->rows - r : j->block;
    (void)worker;
    K->layer_norm(m, j->n, j->x + (ptrdiff_t)r * j->xs, j->xs, j->gain, j->bias, j->eps, j->y + (ptrdiff_t)r * j->ys,
                  j->ys, j->past);
}

void F(lnrnn_layer_norm)(size_t rows, size_t n, const R *x, ptrdiff_t xs, const R *gain, const R *bias, R eps, R *y,
                         ptrdiff_t ys, int threads)
{
    F(layer_norm_job) j = {rows, n, tasks_of(rows, n), x, gain, bias, xs, ys, eps, y,
                            writes_past(x == y, rows * n * sizeof(R))};
    lnrnn_parallel((rows + j.block - 1) / j.block, team(rows * n, threads), F(layer_norm_task), &j);
}

typedef struct {
    size_t rows, n, block;
    const R *gy, *x, *gain;
    R eps, *gx;
    double *part, *work;
} F(layer_norm_backward_job);

static void F(layer_norm_backward_task)(void *ctx, size_t index, int worker)
{
    const F(layer_norm_backward_job) *j = ctx;
    const size_t n = j->n, r = index * j->block, m = j->rows - r < j->block ? j->rows - r : j->block;
    double *part = j->part + index * 4 * n; /* ggain, gbias, and the kernel's own 2n */
    (void)worker;
    memset(part, 0, 4 * n * sizeof *part);
    K->layer_norm_backward(m, n, j->gy + r * n, (ptrdiff_t)n, j->x + r * n, (ptrdiff_t)n, j->gain, j->eps,
                           j->gx + r * n, (ptrdiff_t)n, part, part + n, (R *)(part + 2 * n));
}

void F(lnrnn_layer_norm_backward)(size_t rows, size_t n, const R *gy, const R *x, const R *gain, R eps, R *gx,
                                  double *ggain, double *gbias, double *work, int threads)
{
    F(layer_norm_backward_job) j = {rows, n, backward_block(rows, n), gy, x, gain, eps, gx, work, NULL};
    const size_t tasks = (rows + j.block - 1) / j.block;
    lnrnn_parallel(tasks, team(rows * n, threads), F(layer_norm_backward_task), &j);
    memset(ggain, 0, n * sizeof *ggain);
    memset(gbias, 0, n * sizeof *gbias);
    for (size_t t = 0; t < tasks; t++)
        for (size_t i = 0; i < n; i++) {
            ggain[i] += work[t * 4 * n + i];
            gbias[i] += work[t * 4 * n + n + i];
        }
}

/* Batch norm: all four passes share one description of x (N, C, L) and differ in the function of a block. */
typedef struct {
    size_t N, C, L, block;
    const R *gy, *x, *at, *scale, *shift, *c1, *c2;
    R *out;
    double *s0, *s1;
    int past;
} F(batch_job);

/* A block of channels, over all samples: what sums over samples. */
static void F(batch_moments_task)(void *ctx, size_t index, int worker)
{
    const F(batch_job) *j = ctx;
    const size_t c0 = index * j->block, m = j->C - c0 < j->block ? j->C - c0 : j->block;
    (void)worker;
    if (j->L == 1)
        K->moments_columns(j->N, m, j->x + c0, (ptrdiff_t)j->C, j->s0 + c0, j->s1 + c0);
    else
        for (size_t c = c0; c < c0 + m; c++)
            K->moments_planes(j->N, j->L, j->x + c * j->L, (ptrdiff_t)(j->C * j->L), j->s0 + c, j->s1 + c);
}

static void F(batch_sums_task)(void *ctx, size_t index, int worker)
{
    const F(batch_job) *j = ctx;
    const size_t c0 = index * j->block, m = j->C - c0 < j->block ? j->C - c0 : j->block;
    R work[2 * CHANNELS];
    (void)worker;
    memset(j->s0 + c0, 0, m * sizeof *j->s0);
    memset(j->s1 + c0, 0, m * sizeof *j->s1);
    if (j->L == 1) {
        memset(work, 0, sizeof work);
        K->sums_columns(j->N, m, j->gy + c0, j->x + c0, (ptrdiff_t)j->C, j->at + c0, j->s0 + c0, j->s1 + c0, work);
    } else
        for (size_t c = c0; c < c0 + m; c++)
            K->sums_planes(j->N, j->L, j->gy + c * j->L, j->x + c * j->L, (ptrdiff_t)(j->C * j->L), j->at[c],
                           j->s0 + c, j->s1 + c);
}

/* A block of rows (L == 1) or of planes: what goes through x once. */
static void F(batch_rows_task)(void *ctx, size_t index, int worker)
{
    const F(batch_job) *j = ctx;
    const size_t C = j->C, L = j->L, all = L == 1 ? j->N : j->N * C;
    size_t p = index * j->block;
    const size_t end = all - p < j->block ? all : p + j->block;
    (void)worker;
    if (L == 1) {
        if (j->gy)
            K->gx_columns(end - p, C, j->gy + p * C, j->x + p * C, (ptrdiff_t)C, j->at, j->scale, j->c1, j->c2,
                          j->out + p * C);
        else
            K->affine_columns(end - p, C, j->x + p * C, (ptrdiff_t)C, j->at, j->scale, j->shift, j->out + p * C,
                              (ptrdiff_t)C, j->past);
        return;
    }
    while (p < end) { /* planes up to the end of a sample */
        const size_t c = p % C, m = C - c < end - p ? C - c : end - p;
        if (j->gy)
            K->gx_planes(m, L, j->gy + p * L, j->x + p * L, (ptrdiff_t)L, j->at + c, j->scale + c, j->c1 + c,
                         j->c2 + c, j->out + p * L);
        else
            K->affine_planes(m, L, j->x + p * L, (ptrdiff_t)L, j->at + c, j->scale + c, j->shift + c,
                             j->out + p * L, (ptrdiff_t)L, j->past);
        p += m;
    }
}

void F(lnrnn_batch_moments)(size_t N, size_t C, size_t L, const R *x, double *mean, double *m2, int threads)
{
    F(batch_job) j = {.N = N, .C = C, .L = L, .block = L == 1 ? CHANNELS : 1, .x = x, .s0 = mean, .s1 = m2};
    lnrnn_parallel((C + j.block - 1) / j.block, team(N * C * L, threads), F(batch_moments_task), &j);
}

void F(lnrnn_batch_fold)(size_t C, const double *mean, const double *m2, double count, const R *gain, const R *bias,
                         double eps, R *at, R *scale, R *shift)
{
    K->fold(C, mean, m2, count, gain, bias, eps, at, scale, shift);
}

static void F(batch_rows)(F(batch_job) *j, int threads)
{
    const size_t rows = j->L == 1 ? j->N : j->N * j->C;
    j->block = tasks_of(rows, j->L == 1 ? j->C : j->L);
    lnrnn_parallel((rows + j->block - 1) / j->block, team(j->N * j->C * j->L, threads), F(batch_rows_task), j);
}

void F(lnrnn_batch_affine)(size_t N, size_t C, size_t L, const R *x, const R *at, const R *scale, const R *shift, R *y,
                           int threads)
{
    F(batch_job) j = {.N = N, .C = C, .L = L, .x = x, .at = at, .scale = scale, .shift = shift, .out = y,
                      .past = writes_past(x == y, N * C * L * sizeof(R))};
    F(batch_rows)(&j, threads);
}

void F(lnrnn_batch_sums)(size_t N, size_t C, size_t L, const R *gy, const R *x, const R *at, double *sg, double *sgx,
                         int threads)
{
    F(batch_job) j = {.N = N, .C = C, .L = L, .block = L == 1 ? CHANNELS : 1, .gy = gy, .x = x, .at = at, .s0 = sg,
                      .s1 = sgx};
    lnrnn_parallel((C + j.block - 1) / j.block, team(N * C * L, threads), F(batch_sums_task), &j);
}

void F(lnrnn_batch_gx)(size_t N, size_t C, size_t L, const R *gy, const R *x, const R *at, const R *scale, const R *c1,
                       const R *c2, R *gx, int threads)
{
    F(batch_job) j = {.N = N, .C = C, .L = L, .gy = gy, .x = x, .at = at, .scale = scale, .c1 = c1, .c2 = c2, .out = gx};
    F(batch_rows)(&j, threads);
}
