/* One recurrent layer for the programs that run the C of pyx/ without Python: its arrays, its parameters and its
 * plan. Memory is not freed, because the programs end soon. */
#include <stdlib.h>

#include "rnn/layer.h"

/* A function that returns the next n numbers of the program's input. */
typedef float *number_source(size_t n);

typedef struct {
    lnrnn_rnn_config config;
    lnrnn_rnn_plan plan;
    lnrnn_rnn_call call;
    lnrnn_row *rows;          /* of the call */
    const float *w_ih, *w_hh; /* (G*H, D), (G*H, H) */
} driver_layer;

static void *zeros(size_t n, size_t size)
{
    void *p = calloc(n + 1, size);
    if (!p)
        exit(3);
    return p;
}

static uint32_t *packed(int dtype, size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs)
{
    uint32_t *p = zeros(lnrnn_packed_size(dtype, n, k), sizeof *p);
    lnrnn_pack(dtype, n, k, w, rs, cs, p);
    return p;
}

/* l->config has the caller's fields, but no parameters. Gets x (T, B, D), w_ih, w_hh, and gain and bias of each site
 * from `numbers`, in this order. States begin at 0; sequences have T steps. Call plan_layer next. */
static void make_layer(driver_layer *l, size_t T, size_t B, number_source *numbers)
{
    lnrnn_rnn_config *c = &l->config;
    c->P = c->H;
    lnrnn_rnn_configure(c);
    const size_t n = c->outputs, D = c->D, H = c->H;
    const float *x = numbers(T * B * D);
    l->rows = zeros(B, sizeof *l->rows);
    for (size_t b = 0; b < B; b++)
        l->rows[b] =
            (lnrnn_row){.sequence = (int64_t)b, .length = (int64_t)T, .end = (int64_t)T, .state = (int64_t)b};
    l->w_ih = numbers(n * D), l->w_hh = numbers(n * H);
    for (int i = 0; i < LNRNN_SITES; i++) {
        c->site[i].gain = numbers(c->site[i].width);
        c->site[i].bias = numbers(c->site[i].width);
    }
    lnrnn_rnn_configure(c);
    l->call = (lnrnn_rnn_call){.config = c,
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
                               .c0 = c->C ? zeros(B * c->C, sizeof(float)) : NULL,
                               .cn = c->C ? zeros(B * c->C, sizeof(float)) : NULL,
                               .rows = l->rows,
                               .last_step_end = T,
                               .w_ih = packed(c->dtype, n, D, l->w_ih, (ptrdiff_t)D, 1),
                               .w_hh = packed(c->dtype, n, H, l->w_hh, (ptrdiff_t)H, 1)};
}

/* Makes the plan. Call it when l->call points to all arrays that the call reads and writes. */
static void plan_layer(driver_layer *l, int threads)
{
    lnrnn_rnn_make_plan(&l->call, threads, &l->plan);
    l->call.plan = &l->plan;
    l->call.scratch = zeros(l->plan.scratch.floats, sizeof(float));
}
