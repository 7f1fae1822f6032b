/* Computes norms, products and layers by the C code of pyx/, without Python, from the same numbers on every machine:
 *
 *     digest ISA THREADS [FILE]
 *
 * Prints a line for each array of results: its name, the type and number of its values, and a hash of their bytes. The last
 * line has the largest numbers of threads. FILE gets the bytes of all arrays. Machines with the same arithmetic print the
 * same lines. For other machines, the files are compared. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver_layer.h"
#include "lnrnn.h"
#include "lnrnn/kernels/table.h"
#include "runtime/threads.h"

static const char *const TYPES[LNRNN_DTYPES] = {"float32", "float64", "bfloat16", "float16"};
static const size_t SIZES[LNRNN_DTYPES] = {4, 8, 2, 2};

static FILE *values;
static int threads;
static float scale = 1; /* numbers of drawn_floats are in -scale .. scale */

/* --- numbers and hashes --------------------------------------------------------------------------------- */

/* Marsaglia's xorshift64. */
static uint64_t drawn_bits(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state >> 20;
}

/* Returns a number in -1 .. 1, a multiple of 2^-16, so that every machine has the same float. */
static double drawn(void) { return (double)(int64_t)(drawn_bits() & 0x1ffff) / 65536 - 1; }

static float *drawn_floats(size_t n)
{
    float *p = zeros(n, sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = scale * (float)drawn();
    return p;
}

/* Draws n values of a type. Values of 16 bits have random digits, and exponents of 1/8 to 2. */
static void *drawn_values(int dtype, size_t n)
{
    void *p = zeros(n, SIZES[dtype]);
    for (size_t i = 0; i < n; i++) {
        const unsigned bits = (unsigned)drawn_bits();
        if (dtype == LNRNN_FLOAT64)
            ((double *)p)[i] = drawn();
        else if (dtype == LNRNN_FLOAT32)
            ((float *)p)[i] = (float)drawn();
        else if (dtype == LNRNN_BFLOAT16)
            ((uint16_t *)p)[i] = (uint16_t)((bits & 0x807f) | (124 + (bits >> 16 & 3)) << 7);
        else
            ((uint16_t *)p)[i] = (uint16_t)((bits & 0x83ff) | (12 + (bits >> 16 & 3)) << 10);
    }
    return p;
}

/* FNV-1a of 64 bits. */
static void report(const char *name, const char *result, int dtype, const void *p, size_t n)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < n * SIZES[dtype]; i++)
        hash = (hash ^ ((const unsigned char *)p)[i]) * 1099511628211u;
    printf("%s.%s %s %zu %08lx%08lx\n", name, result, TYPES[dtype], n, (unsigned long)(hash >> 32),
           (unsigned long)(hash & 0xffffffffu));
    if (values && fwrite(p, SIZES[dtype], n, values) != n)
        exit(4);
}

/* --- norms, products, layers ---------------------------------------------------------------------------- */

static void activations(void)
{
    static const char *const names[] = {"exp", "tanh", "sigmoid"};
    enum { N = 132001 }; /* enough for several tasks */
    float *x = drawn_floats(N), *y = zeros(N, sizeof *y);
    for (size_t i = 0; i < N; i++)
        x[i] *= 20;
    for (int f = LNRNN_MAP_EXP; f <= LNRNN_MAP_SIGMOID; f++) {
        lnrnn_map(f, N, x, y, threads);
        report("map", names[f], LNRNN_FLOAT32, y, N);
    }
}

static void norms(int dtype, size_t rows, size_t n)
{
    char name[64];
    const int wide = dtype == LNRNN_FLOAT64 ? LNRNN_FLOAT64 : LNRNN_FLOAT32;
    const void *x = drawn_values(dtype, rows * n), *gy = drawn_values(dtype, rows * n),
               *gain = drawn_values(wide, n), *bias = drawn_values(wide, n);
    void *y = zeros(rows * n, SIZES[dtype]);
    double *sums = zeros(2 * n, sizeof *sums), *work = zeros(lnrnn_layer_norm_work(rows, n), sizeof *work);
    snprintf(name, sizeof name, "norm.%s.%zux%zu", TYPES[dtype], rows, n);
    lnrnn_layer_norm(dtype, rows, n, x, (ptrdiff_t)n, gain, bias, 1e-5, y, (ptrdiff_t)n, 1, threads);
    report(name, "layer", dtype, y, rows * n);
    lnrnn_layer_norm(dtype, rows, n, x, (ptrdiff_t)n, gain, NULL, 1e-5, y, (ptrdiff_t)n, 0, threads);
    report(name, "rms", dtype, y, rows * n);
    lnrnn_layer_norm_backward(dtype, rows, n, gy, x, gain, 1e-5, y, sums, sums + n, work, threads);
    report(name, "layer_gx", dtype, y, rows * n);
    report(name, "layer_sums", LNRNN_FLOAT64, sums, 2 * n);

    /* Batch norm reads the same values as rows / 5 samples, n channels and 5 positions. */
    if (rows < 10)
        return;
    double *mean = zeros(n, sizeof *mean), *var = zeros(n, sizeof *var);
    lnrnn_batch b = {.dtype = dtype, .N = rows / 5, .C = n, .L = 5};
    b.x = x, b.gain = gain, b.bias = bias, b.eps = 1e-5, b.mean = mean, b.var = var, b.threads = threads;
    b.work = zeros(lnrnn_batch_work(&b, 1), sizeof *b.work);
    memset(y, 0, rows * n * SIZES[dtype]);
    lnrnn_batch_norm(&b, y, 1);
    report(name, "batch", dtype, y, rows * n);
    report(name, "batch_mean", LNRNN_FLOAT64, mean, n);
    report(name, "batch_var", LNRNN_FLOAT64, var, n);
    lnrnn_batch_norm_backward(&b, gy, y, sums, sums + n, 1);
    report(name, "batch_gx", dtype, y, rows * n);
    report(name, "batch_sums", LNRNN_FLOAT64, sums, 2 * n);
    lnrnn_batch_norm(&b, y, 0);
    report(name, "batch_given", dtype, y, rows * n);
}

static void products(int dtype, const char *type, size_t rows, size_t n, size_t k)
{
    char name[64];
    const lnrnn_product *product = lnrnn_product_of(lnrnn_active(), dtype);
    const size_t wide = product->width(n);
    const float *x = drawn_floats(rows * k), *w = drawn_floats(n * k), **row = zeros(rows, sizeof *row);
    float *c = zeros(rows * wide, sizeof *c), *y = zeros(rows * n, sizeof *y);
    for (size_t i = 0; i < rows; i++)
        row[i] = x + i * k;
    const lnrnn_caches caches = lnrnn_get_caches();
    const lnrnn_matmul m = {.dtype = dtype,
                            .n = n,
                            .k = k,
                            .w = packed(dtype, n, k, w, (ptrdiff_t)k, 1),
                            .p1 = product->panels(n),
                            .caches = &caches,
                            .scratch = zeros(product->scratch(dtype, rows, k), sizeof(uint32_t))};
    product->matmul(&m, rows, row, c, (ptrdiff_t)wide);
    for (size_t i = 0; i < rows; i++)
        memcpy(y + i * n, c + i * wide, n * sizeof *y);
    snprintf(name, sizeof name, "product.%s.%zux%zux%zu", type, rows, n, k);
    report(name, "y", LNRNN_FLOAT32, y, rows * n);
}

/* Computes the gradients of a layer. Its forward call has written the tape. */
static void gradients(const char *name, driver_layer *l)
{
    const lnrnn_rnn_config *c = &l->config;
    const size_t T = l->call.T, B = l->call.B, D = c->D, H = c->H, n = c->outputs;
    lnrnn_rnn_gradients g = {.gy = drawn_floats(T * B * H), .gyt = (ptrdiff_t)(B * H), .gyb = (ptrdiff_t)H};
    g.ghn = drawn_floats(B * H), g.gcn = c->cell_state ? drawn_floats(B * H) : NULL;
    g.w_ih_t = packed(LNRNN_WEIGHT_F32, D, n, l->w_ih, 1, (ptrdiff_t)D);
    g.w_hh_t = packed(LNRNN_WEIGHT_F32, H, n, l->w_hh, 1, (ptrdiff_t)H);
    g.gx = zeros(T * B * D, sizeof(float)), g.gxt = (ptrdiff_t)(B * D), g.gxb = (ptrdiff_t)D;
    g.gh0 = zeros(B * H, sizeof(float));
    g.gc0 = c->cell_state ? zeros(B * H, sizeof(float)) : NULL;
    g.gw_ih = zeros(n * D, sizeof(float)), g.gw_hh = zeros(n * H, sizeof(float));
    for (int i = 0; i < LNRNN_SITES; i++) {
        g.site[i].gain = zeros(c->site[i].width, sizeof(double));
        g.site[i].bias = zeros(c->site[i].width, sizeof(double));
    }
    plan_layer(l, threads);
    g.work = zeros(lnrnn_rnn_backward_work(&l->call), sizeof(float));
    lnrnn_rnn_backward(&l->call, &g);
    report(name, "gx", LNRNN_FLOAT32, g.gx, T * B * D);
    report(name, "gh0", LNRNN_FLOAT32, g.gh0, B * H);
    if (g.gc0)
        report(name, "gc0", LNRNN_FLOAT32, g.gc0, B * H);
    report(name, "gw_ih", LNRNN_FLOAT32, g.gw_ih, n * D);
    report(name, "gw_hh", LNRNN_FLOAT32, g.gw_hh, n * H);
    for (int i = 0; i < LNRNN_SITES; i++) {
        report(name, "ggain", LNRNN_FLOAT64, g.site[i].gain, c->site[i].width);
        report(name, "gbias", LNRNN_FLOAT64, g.site[i].bias, c->site[i].width);
    }
}

/* Runs a layer with this configuration and initial states. Lengths of sequences go from T to about T / 2. */
static void layer(const char *name, lnrnn_rnn_config config, size_t T, size_t B, int trained)
{
    driver_layer l = {.config = config};
    lnrnn_rnn_config *c = &l.config;
    lnrnn_rnn_call *r = &l.call;
    make_layer(&l, T, B, drawn_floats);
    for (size_t b = 0; b < B; b++)
        l.rows[b].length = (int64_t)(T - b * T / (2 * B));
    r->h0 = drawn_floats(B * c->H);
    if (c->cell_state)
        r->c0 = drawn_floats(B * c->H);
    for (int i = 0; i < LNRNN_SITES && c->norm == LNRNN_NORM_BATCH; i++) {
        r->statistics[i].mean = zeros(T * c->site[i].width, sizeof(double));
        r->statistics[i].var = zeros(T * c->site[i].width, sizeof(double));
        r->count = zeros(T, sizeof *r->count);
    }
    if (trained)
        r->tape = zeros(T * B * lnrnn_tape_width(c), sizeof(float));
    plan_layer(&l, threads);
    lnrnn_rnn_forward(r);
    report(name, "y", LNRNN_FLOAT32, r->y, T * B * c->H);
    report(name, "hn", LNRNN_FLOAT32, r->hn, B * c->H);
    if (r->cn)
        report(name, "cn", LNRNN_FLOAT32, r->cn, B * c->H);
    if (trained)
        gradients(name, &l);
}

static void layers(int cell, const char *cell_name)
{
    static const struct {
        size_t T, B, D, H;
    } sizes[] = {{1, 1, 1, 1}, {6, 9, 13, 50}, {6, 25, 33, 72}, {24, 2, 33, 160}};
    enum {
        LARGE = 3
    }; /* threads divide the units of LARGE, which has fewer variants, because an emulator is slow */
    static const char *const placements[] = {"joint", "split", "gate"}, *const types[] = {"float32",
                                                                                          "bfloat16", "int8"};
    const int papers = cell == LNRNN_RNN ? LNRNN_JOINT : LNRNN_SPLIT;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const size_t T = sizes[s].T, B = sizes[s].B;
        char name[64];
        lnrnn_rnn_config c = {.D = sizes[s].D, .H = sizes[s].H, .cell = cell, .eps = 1e-5f};
        scale = c.H < 100 ? 0.25f : 0.125f; /* larger weights would amplify differences of rounding */
        snprintf(name, sizeof name, "%s.none.%zux%zu", cell_name, B, c.H);
        if (s != LARGE)
            layer(name, c, T, B, 1);
        c.norm = LNRNN_NORM_LAYER;
        for (c.placement = s == LARGE ? LNRNN_GATE : LNRNN_JOINT; c.placement < LNRNN_PLACEMENTS;
             c.placement++) {
            snprintf(name, sizeof name, "%s.%s.%zux%zu", cell_name, placements[c.placement], B, c.H);
            layer(name, c, T, B, 1);
        }
        c.placement = papers, c.cell_norm = cell == LNRNN_LSTM ? LNRNN_CELL_OUT : LNRNN_CELL_NONE;
        snprintf(name, sizeof name, "%s.paper.%zux%zu", cell_name, B, c.H);
        layer(name, c, T, B, 1);
        for (c.dtype = LNRNN_WEIGHT_BF16; c.dtype <= LNRNN_WEIGHT_I8; c.dtype++) {
            snprintf(name, sizeof name, "%s.%s.%zux%zu", cell_name, types[c.dtype], B, c.H);
            layer(name, c, T, B, 0);
        }
        c.dtype = LNRNN_WEIGHT_F32, c.norm = LNRNN_NORM_BATCH, c.overrun_row = -1;
        snprintf(name, sizeof name, "%s.batch.%zux%zu", cell_name, B, c.H);
        if (B > 2)
            layer(name, c, T, B, 1);
    }
}

int main(int argc, char **argv)
{
    if (argc < 3 || argc > 4 || lnrnn_isa_use(argv[1]) || (threads = atoi(argv[2])) < 1)
        return 2;
    if (argc > 3 && !(values = fopen(argv[3], "wb")))
        return 4;
    lnrnn_set_barrier_mode(LNRNN_BARRIER_TOGETHER); /* calls use all threads even if the machine is busy */
    lnrnn_teams_had();
    activations();
    for (int dtype = 0; dtype < LNRNN_DTYPES; dtype++) {
        norms(dtype, 3, 5);
        norms(dtype, 70, 33);
    }
    norms(LNRNN_FLOAT32, 260, 600);
    products(LNRNN_WEIGHT_F32, "float32", 1, 130, 65);
    products(LNRNN_WEIGHT_F32, "float32", 11, 33, 200);
    products(LNRNN_WEIGHT_BF16, "bfloat16", 11, 33, 200);
    products(LNRNN_WEIGHT_I8, "int8", 1, 130, 65);
    products(LNRNN_WEIGHT_I8, "int8", 11, 33, 200);
    layers(LNRNN_RNN, "rnn");
    layers(LNRNN_LSTM, "lstm");
    layers(LNRNN_GRU, "gru");
    const lnrnn_teams had = lnrnn_teams_had();
    printf("teams %d %d\n", had.tasks, had.units);
    return values && fclose(values) ? 4 : 0;
}
