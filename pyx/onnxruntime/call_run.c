/* Runs a call of a function of the domain lnrnn through its network: x (T, B, D), or (B, D) for one step. */
#include <string.h>

#include "onnxruntime/plugin.h"

typedef struct {
    kernel_base base; /* first: the runtime has a pointer to it */
    network_call c;   /* without its pointers */
    source source[CALL_INPUTS];
    int output[CALL_OUTPUTS]; /* the place in the fused node, or -1 */
} kernel;

/* The steps and sequences of a run. */
typedef struct {
    size_t T, B;
} sizes;

/* Pieces of working memory. An SLSTM's c, n and m are one array (lines, B, 3 H) of a network. */
enum { OWN_LENGTHS, OWN_Y, OWN_C0, OWN_CN, PIECES };

/* Checks all inputs, and sets the sizes. */
static OrtStatus *check(const kernel *k, const tensor in[CALL_INPUTS], sizes *s)
{
    const network_call *const c = &k->c;
    const int64_t x[3] = {-1, -1, (int64_t)c->description.input_size};
    OrtStatus *status = kernel_check(&k->base, call_names[CALL_X], &in[CALL_X], x + c->step, c->step ? 2 : 3);
    if (status)
        return status;
    *s = (sizes){c->step ? 1 : (size_t)in[CALL_X].shape[0], (size_t)in[CALL_X].shape[!c->step]};
    for (size_t i = 0; i < c->states && !status; i++) {
        const int64_t state[3] = {(int64_t)c->lines, (int64_t)s->B, (int64_t)c->widths[i]};
        status = kernel_check(&k->base, call_names[CALL_STATES + i], &in[CALL_STATES + i], state, 3);
    }
    if (c->lengths && !status)
        status = kernel_check_lengths(&k->base, call_names[CALL_LENGTHS], &in[CALL_LENGTHS], s->T, s->B);
    return status ? status
                  : kernel_check_sizes(&k->base, call_names[CALL_X], s->T, s->B,
                                       c->y_width + 3 * c->lines * c->description.hidden_size);
}

/* Copies arrays of `width` columns from or to columns of one array with `count * width` columns. */
static void join(float *const parts[], size_t count, size_t rows, size_t width, float *whole, int is_back)
{
    for (size_t i = 0; i < count; i++)
        for (size_t row = 0; row < rows && parts[i]; row++) {
            float *const part = parts[i] + row * width, *const own = whole + (row * count + i) * width;
            memcpy(is_back ? part : own, is_back ? own : part, width * sizeof *own);
        }
}

static OrtStatus *run(const kernel *k, const sizes *s, const tensor in[CALL_INPUTS],
                      float *const out[CALL_OUTPUTS], lnrnn_workspace *workspace, void *const own[PIECES])
{
    const network_call *const c = &k->c;
    const size_t rows = c->lines * s->B, H = c->description.hidden_size;
    const int has_parts = c->states == 4;
    char message[LNRNN_MESSAGE] = "";
    int64_t *const lengths = own[OWN_LENGTHS];
    const int32_t *const given = in[CALL_LENGTHS].data;
    float *const starts[3] = {(float *)in[CALL_STATES + 1].data, (float *)in[CALL_STATES + 2].data,
                              (float *)in[CALL_STATES + 3].data};
    if (has_parts)
        join(starts, 3, rows, H, own[OWN_C0], 0);
    for (size_t b = 0; given && b < s->B; b++)
        lengths[b] = given[b];
    const lnrnn_sequences call = {.steps = s->T,
                                  .sequences = s->B,
                                  .threads = k->base.threads,
                                  .x = in[CALL_X].data,
                                  .lengths = given ? lengths : NULL,
                                  .h0 = in[CALL_STATES].data,
                                  .c0 = has_parts ? own[OWN_C0] : in[CALL_STATES + 1].data,
                                  .y = out[CALL_Y] ? out[CALL_Y] : own[OWN_Y],
                                  .hn = out[CALL_STATES],
                                  .cn = has_parts ? own[OWN_CN] : out[CALL_STATES + 1]};
    if (lnrnn_network_run_in(k->base.network, &call, workspace, message))
        return kernel_error(&k->base, ORT_FAIL, "%s", message);
    if (has_parts)
        join(out + CALL_STATES + 1, 3, rows, H, own[OWN_CN], 1);
    return NULL;
}

static OrtStatus *compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *context)
{
    const kernel *const k = (const kernel *)info;
    const network_call *const c = &k->c;
    tensor in[CALL_INPUTS];
    float *out[CALL_OUTPUTS] = {NULL};
    sizes s = {0};
    (void)state;
    OrtStatus *status = NULL;
    for (int i = 0; i < CALL_INPUTS && !status; i++)
        status = kernel_tensor(&k->base, context, &k->source[i], &in[i]);
    if (!status)
        status = check(k, in, &s);
    for (size_t i = 0; i <= c->states && !status; i++) {
        const int is_y = i == CALL_Y;
        const int64_t shape[3] = {(int64_t)(is_y ? s.T : c->lines), (int64_t)s.B,
                                  (int64_t)(is_y ? c->y_width : c->widths[i - CALL_STATES])};
        const int from = is_y && c->step;
        status = kernel_output_data(k->base.ort, context, k->output[i], shape + from, from ? 2 : 3, &out[i]);
    }
    if (status)
        return status;
    const size_t parts = c->states == 4 ? 3 * c->lines * s.B * c->description.hidden_size : 0;
    const size_t floats[PIECES] = {c->lengths ? 2 * s.B : 0, out[CALL_Y] ? 0 : s.T * s.B * c->y_width, parts,
                                   parts};
    void *own[PIECES];
    run_memory *const m = kernel_memory(k->base.pool, floats, own, PIECES);
    if (!m)
        return kernel_error(&k->base, ORT_FAIL, "no memory for %zu steps of %zu sequences", s.T, s.B);
    status = run(k, &s, in, out, m->workspace, own);
    kernel_memory_put_back(k->base.pool, m);
    return status;
}

kernel_base *call_run(const provider *p, const network_call *c, const OrtNode *node, lnrnn_network *network)
{
    kernel *const k = kernel_new(p, sizeof *k, node, network, compute);
    int right = k != NULL;
    if (k)
        k->c = *c;
    for (int i = 0; i < CALL_INPUTS && right; i++)
        right = kernel_source(&k->base, c->input[i], &k->source[i]);
    for (int i = 0; i < CALL_OUTPUTS && right; i++)
        right = kernel_output(&k->base, c->output[i], &k->output[i]);
    if (right)
        return &k->base;
    kernel_free((OrtNodeComputeInfo *)k);
    return NULL;
}
