/* Runs a node RNN, LSTM or GRU through its network. */
#include <string.h>

#include "onnxruntime/plugin.h"

/* The inputs of a run, without the weights. */
enum { IN_X, IN_LENGTHS, IN_H0, IN_C0, RUN_INPUTS };
static const int NODE_INPUT[RUN_INPUTS] = {X, LENGTHS, H0, C0};
static const char *const INPUT_NAMES[RUN_INPUTS] = {"X", "sequence_lens", "initial_h", "initial_c"};

typedef struct {
    kernel_base base; /* first: the runtime has a pointer to it */
    int layout;
    size_t inputs, units, directions; /* I, H, D */
    source source[RUN_INPUTS];
    int output[OUTPUTS]; /* the place in the fused node, or -1 */
} kernel;

/* The sizes of a run. */
typedef struct {
    size_t T, B, D, H;
} sizes;

/* Pieces of working memory. */
enum { OWN_LENGTHS, OWN_Y, OWN_STATES, PIECES = OWN_STATES + 4 };

/* Checks all inputs of a run, and sets the sizes. */
static OrtStatus *check(const kernel *k, const tensor in[RUN_INPUTS], sizes *s)
{
    const int first = k->layout;
    const int64_t x[3] = {-1, -1, (int64_t)k->inputs};
    OrtStatus *status = kernel_check(&k->base, INPUT_NAMES[IN_X], &in[IN_X], x, 3);
    if (status)
        return status;
    *s = (sizes){(size_t)in[IN_X].shape[first], (size_t)in[IN_X].shape[!first], k->directions, k->units};
    const int64_t batch = (int64_t)s->B, D = (int64_t)s->D;
    const int64_t state[3] = {first ? batch : D, first ? D : batch, (int64_t)s->H};
    for (int i = IN_LENGTHS; i < RUN_INPUTS && !status; i++)
        if (in[i].data || in[i].rank)
            status = i == IN_LENGTHS ? kernel_check_lengths(&k->base, INPUT_NAMES[i], &in[i], s->T, s->B)
                                     : kernel_check(&k->base, INPUT_NAMES[i], &in[i], state, 3);
    return status ? status : kernel_check_sizes(&k->base, INPUT_NAMES[IN_X], s->T, s->B, s->D * s->H);
}

/* a (n, m, width) -> b (m, n, width) */
static void swap_axes(const float *a, size_t n, size_t m, size_t width, float *b)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++)
            memcpy(b + (j * n + i) * width, a + (i * m + j) * width, width * sizeof *a);
}

/* Allocates the outputs. y (T, D, B, H) or, with layout 1, (B, T, D, H); h and c (D, B, H) or (B, D, H). */
static OrtStatus *outputs(const kernel *k, OrtKernelContext *context, const sizes *s, float *out[OUTPUTS])
{
    const int64_t T = (int64_t)s->T, batch = (int64_t)s->B, D = (int64_t)s->D, H = (int64_t)s->H;
    const int64_t y[4] = {k->layout ? batch : T, k->layout ? T : D, k->layout ? D : batch, H};
    const int64_t state[3] = {k->layout ? batch : D, k->layout ? D : batch, H};
    OrtStatus *status = kernel_output_data(k->base.ort, context, k->output[Y], y, 4, &out[Y]);
    for (int i = Y_H; i < OUTPUTS && !status; i++)
        status = kernel_output_data(k->base.ort, context, k->output[i], state, 3, &out[i]);
    return status;
}

/* Sets the last states of sequence b to 0, as the runtime does for a sequence without steps. */
static void clear_states(const kernel *k, const sizes *s, size_t b, float *const out[OUTPUTS])
{
    for (int i = Y_H; i < OUTPUTS; i++)
        for (size_t d = 0; d < s->D && out[i]; d++)
            memset(out[i] + (k->layout ? b * s->D + d : d * s->B + b) * s->H, 0, s->H * sizeof(float));
}

/* Runs the network. Its y is (T, B, D * H) or (B, T, D * H), its states are (D, B, H). */
static OrtStatus *run(const kernel *k, const sizes *s, const tensor in[RUN_INPUTS], float *const out[OUTPUTS],
                      lnrnn_workspace *workspace, void *const own[PIECES])
{
    const int two = s->D == 2, swap_y = two && !k->layout, swap_states = two && k->layout;
    char message[LNRNN_MESSAGE] = "";
    int64_t *const lengths = own[OWN_LENGTHS];
    float *const y = own[OWN_Y];
    void *const *const states = own + OWN_STATES;
    lnrnn_sequences call = {.steps = s->T,
                            .sequences = s->B,
                            .batch_first = k->layout,
                            .threads = k->base.threads,
                            .x = in[IN_X].data,
                            .h0 = in[IN_H0].data,
                            .c0 = in[IN_C0].data,
                            .y = swap_y || !out[Y] ? y : out[Y],
                            .hn = out[Y_H],
                            .cn = out[Y_C]};
    const int32_t *const given = in[IN_LENGTHS].data;
    for (size_t b = 0; given && b < s->B; b++)
        lengths[b] = given[b];
    call.lengths = given ? lengths : NULL;
    if (swap_states) {
        const float **const initial[2] = {&call.h0, &call.c0};
        float **const last[2] = {&call.hn, &call.cn};
        for (int i = 0; i < 2; i++) {
            if (*initial[i]) {
                swap_axes(*initial[i], s->B, s->D, s->H, states[i]);
                *initial[i] = states[i];
            }
            *last[i] = *last[i] ? states[2 + i] : NULL;
        }
    }
    if (lnrnn_network_run_in(k->base.network, &call, workspace, message))
        return kernel_error(&k->base, ORT_FAIL, "%s", message);
    for (size_t t = 0; t < s->T && swap_y && out[Y]; t++)
        swap_axes(y + t * s->B * s->D * s->H, s->B, s->D, s->H, out[Y] + t * s->B * s->D * s->H);
    for (int i = 0; i < 2 && swap_states; i++)
        if (out[Y_H + i])
            swap_axes(states[2 + i], s->D, s->B, s->H, out[Y_H + i]);
    for (size_t b = 0; given && b < s->B; b++)
        if (!given[b])
            clear_states(k, s, b, out);
    return NULL;
}

static OrtStatus *compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *context)
{
    const kernel *const k = (const kernel *)info;
    tensor in[RUN_INPUTS];
    float *out[OUTPUTS] = {NULL};
    sizes s = {0};
    (void)state;
    OrtStatus *status = NULL;
    for (int i = 0; i < RUN_INPUTS && !status; i++)
        status = kernel_tensor(&k->base, context, &k->source[i], &in[i]);
    if (!status)
        status = check(k, in, &s);
    if (!status)
        status = outputs(k, context, &s, out);
    if (status)
        return status;
    const size_t y = s.T * s.B * s.D * s.H, state_floats = s.D == 2 && k->layout ? s.B * s.D * s.H : 0;
    const size_t floats[PIECES] = {in[IN_LENGTHS].data ? 2 * s.B : 0,
                                   out[Y] && !(s.D == 2 && !k->layout) ? 0 : y,
                                   state_floats,
                                   state_floats,
                                   state_floats,
                                   state_floats};
    void *own[PIECES];
    run_memory *const m = kernel_memory(k->base.pool, floats, own, PIECES);
    if (!m)
        return kernel_error(&k->base, ORT_FAIL, "no memory for %zu steps of %zu sequences", s.T, s.B);
    status = run(k, &s, in, out, m->workspace, own);
    kernel_memory_put_back(k->base.pool, m);
    return status;
}

kernel_base *node_kernel(const provider *p, const recurrent_node *read, const OrtNode *node,
                         lnrnn_network *network)
{
    kernel *const k = kernel_new(p, sizeof *k, node, network, compute);
    if (!k)
        return NULL;
    k->layout = read->layout;
    k->inputs = read->description.input_size, k->units = read->description.hidden_size;
    k->directions = read->directions;
    int right = 1;
    for (int i = 0; i < RUN_INPUTS && right; i++)
        right = kernel_source(&k->base, read->input[NODE_INPUT[i]], &k->source[i]);
    for (int i = 0; i < OUTPUTS && right; i++)
        right = kernel_output(&k->base, read->output[i], &k->output[i]);
    if (right)
        return &k->base;
    kernel_free(&k->base.info);
    return NULL;
}
