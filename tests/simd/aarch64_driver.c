/* Runs the C of pyx/ without Python, so that NEON can be tested in an emulator. Usage: driver ISA OP SIZES... < in >
 * out. ISA "best" is the best instruction set of the machine. Memory is not freed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lnrnn.h"
#include "rnn/layer.h"

static float *read_floats(size_t n)
{
    float *p = malloc((n + 1) * sizeof *p);
    if (!p || fread(p, sizeof *p, n, stdin) != n)
        exit(3);
    return p;
}

static void write_floats(const float *p, size_t n)
{
    if (fwrite(p, sizeof *p, n, stdout) != n)
        exit(4);
}

static void *read_bytes(size_t n)
{
    char *p = malloc(n + 1);
    if (!p || fread(p, 1, n, stdin) != n)
        exit(3);
    return p;
}

static size_t size_of(int dtype) { return dtype == LNRNN_FLOAT64 ? 8 : dtype == LNRNN_FLOAT32 ? 4 : 2; }

/* Reads x, gain, bias; writes y. */
static void layer_norm(int dtype, size_t rows, size_t n)
{
    const size_t wide = dtype == LNRNN_FLOAT64 ? 8 : 4;
    void *x = read_bytes(rows * n * size_of(dtype)), *gain = read_bytes(n * wide),
         *bias = read_bytes(n * wide);
    lnrnn_layer_norm(dtype, rows, n, x, (ptrdiff_t)n, gain, bias, 1e-5, x, (ptrdiff_t)n, 1, 1);
    if (fwrite(x, size_of(dtype), rows * n, stdout) != rows * n)
        exit(4);
}

/* Reads gy, x, gain; writes gx in the dtype of x, then ggain and gbias in double. */
static void layer_norm_backward(int dtype, size_t rows, size_t n)
{
    void *gy = read_bytes(rows * n * size_of(dtype)), *x = read_bytes(rows * n * size_of(dtype));
    void *gain = read_bytes(n * (dtype == LNRNN_FLOAT64 ? 8 : 4));
    double *sums = calloc(2 * n, sizeof *sums), *work = calloc(lnrnn_layer_norm_work(rows, n), sizeof *work);
    lnrnn_layer_norm_backward(dtype, rows, n, gy, x, gain, 1e-5, x, sums, sums + n, work, 1, 1);
    if (fwrite(x, size_of(dtype), rows * n, stdout) != rows * n || fwrite(sums, 8, 2 * n, stdout) != 2 * n)
        exit(4);
}

static void *zeros(size_t n, size_t size)
{
    void *p = calloc(n + 1, size);
    if (!p)
        exit(3);
    return p;
}

static uint32_t *packed(int dtype, size_t n, size_t k, const float *w)
{
    uint32_t *p = zeros(lnrnn_packed_size(dtype, n, k), sizeof *p);
    lnrnn_pack(dtype, n, k, w, (ptrdiff_t)k, 1, p);
    return p;
}

/* Runs one layer with layer norm. Reads x, w_ih, w_hh, then gain and bias of each norm. An RNN has one norm, of the sum. LSTM and GRU
 * have norms of W x and W h, and an LSTM of c. */
static void layer(int cell, size_t T, size_t B, size_t D, size_t H, int dtype)
{
    lnrnn_rnn_config c = {.D = D,
                          .H = H,
                          .P = H,
                          .cell = cell,
                          .norm = LNRNN_NORM_LAYER,
                          .eps = 1e-5f,
                          .dtype = dtype,
                          .placement = cell == LNRNN_RNN ? LNRNN_JOINT : LNRNN_SPLIT,
                          .cell_norm = cell == LNRNN_LSTM ? LNRNN_CELL_OUT : LNRNN_CELL_NONE};
    lnrnn_rnn_configure(&c);
    const size_t n = c.outputs;
    const float *x = read_floats(T * B * D), *w_ih = read_floats(n * D), *w_hh = read_floats(n * H);
    lnrnn_row *rows = zeros(B, sizeof *rows);
    for (size_t b = 0; b < B; b++)
        rows[b] =
            (lnrnn_row){.sequence = (int64_t)b, .length = (int64_t)T, .end = (int64_t)T, .state = (int64_t)b};
    for (int i = 0; i < LNRNN_SITES; i++) {
        c.site[i].gain = read_floats(c.site[i].width);
        c.site[i].bias = read_floats(c.site[i].width);
    }
    lnrnn_rnn_configure(&c);
    lnrnn_rnn_call call = {.config = &c,
                           .T = T,
                           .B = B,
                           .x = x,
                           .xt = (ptrdiff_t)(B * D),
                           .xb = (ptrdiff_t)D,
                           .y = zeros(T * B * H, sizeof(float)),
                           .yt = (ptrdiff_t)(B * H),
                           .yb = (ptrdiff_t)H,
                           .h0 = zeros(B * H, sizeof(float)),
                           .hn = zeros(B * H, sizeof(float)),
                           .c0 = c.C ? zeros(B * c.C, sizeof(float)) : NULL,
                           .cn = c.C ? zeros(B * c.C, sizeof(float)) : NULL,
                           .rows = rows,
                           .last_step_end = T,
                           .w_ih = packed(c.dtype, n, D, w_ih),
                           .w_hh = packed(c.dtype, n, H, w_hh)};
    lnrnn_rnn_plan plan;
    lnrnn_rnn_make_plan(&call, 1, &plan);
    call.plan = &plan;
    call.scratch = zeros(plan.scratch.floats, sizeof(float));
    lnrnn_rnn_forward(&call);
    write_floats(call.y, T * B * H);
}

int main(int argc, char **argv)
{
    size_t n[6] = {0};
    for (int i = 3; i < argc && i < 9; i++)
        n[i - 3] = strtoul(argv[i], NULL, 10);
    if (argc < 3 || (strcmp(argv[1], "best") && lnrnn_isa_use(argv[1])))
        return 2;
    const char *op = argv[2];
    if (!strcmp(op, "isa"))
        puts(lnrnn_isa_name());
    else if (!strcmp(op, "map")) {
        float *x = read_floats(n[1]);
        lnrnn_map((int)n[0], n[1], x, x, 1);
        write_floats(x, n[1]);
    } else if (!strcmp(op, "layer_norm"))
        layer_norm((int)n[0], n[1], n[2]);
    else if (!strcmp(op, "layer_norm_backward"))
        layer_norm_backward((int)n[0], n[1], n[2]);
    else if (!strcmp(op, "layer"))
        layer((int)n[0], n[1], n[2], n[3], n[4], (int)n[5]);
    else
        return 2;
    return 0;
}
