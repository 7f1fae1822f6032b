/* Runs a node or a call through its network. */
#include <stdio.h>
#include <string.h>

#include "onnxruntime/plugin.h"

/* Sizes of a run. swap_y, swap_states: with two directions, the runtime's y or states have another order of
 * axes than the network's. has_parts: the network joins the runtime's c, n and m in one array. */
typedef struct {
    size_t T, B, rows; /* rows: the number of rows of each state, lines * B */
    int swap_y, swap_states, has_parts;
} sizes;

/* Indices of the scratch buffers of a run: lengths, y, then h, c, and the last h and c. */
enum { OWN_LENGTHS, OWN_Y, OWN_STATES, PIECES = OWN_STATES + 4, PARTS = 3 };

static OrtStatus *check(const kernel *k, const char *name, const run_tensor *t, const int64_t *wanted,
                        size_t rank)
{
    char is[96], should[96];
    int right = t->rank == rank;
    for (size_t i = 0; i < rank && right; i++)
        right = wanted[i] < 0 || t->shape[i] == wanted[i];
    return right ? NULL
                 : kernel_error(k, ORT_INVALID_ARGUMENT, "input %s must have shape %s, got %s", name,
                                runtime_shape_text(wanted, rank, should),
                                runtime_shape_text(t->shape, t->rank, is));
}

static OrtStatus *check_lengths(const kernel *k, const char *name, const run_tensor *t, size_t T, size_t B)
{
    const int64_t wanted = (int64_t)B;
    const int32_t *const lengths = t->data;
    OrtStatus *status = check(k, name, t, &wanted, 1);
    for (size_t b = 0; b < B && !status; b++)
        if (lengths[b] < 0 || (uint64_t)lengths[b] > T)
            status = kernel_error(k, ORT_INVALID_ARGUMENT,
                                  "input %s must be between 0 and the %zu steps, got %d for sequence %zu",
                                  name, T, (int)lengths[b], b);
    return status;
}

static OrtStatus *check_sizes(const kernel *k, const char *name, size_t T, size_t B, size_t values)
{
    size_t floats; /* T * B fits, because x is in memory unless T or B is 0 */
    if (__builtin_mul_overflow((T ? T : 1) * B, values, &floats) || floats > SIZE_MAX / 64)
        return kernel_error(k, ORT_INVALID_ARGUMENT,
                            "input %s must fit into memory, got %zu steps and %zu sequences", name, T, B);
    return NULL;
}

/* Checks all inputs, and sets the sizes. */
static OrtStatus *check_inputs(const kernel *k, const run_tensor in[RUN_INPUTS], sizes *s)
{
    const run_form *const f = &k->form;
    const int64_t *const x_shape = in[RUN_X].shape, x[3] = {-1, -1, (int64_t)f->input_size};
    OrtStatus *status = check(k, f->names[RUN_X], &in[RUN_X], x + f->step, f->step ? 2 : 3);
    if (status)
        return status;
    s->T = f->step ? 1 : (size_t)x_shape[f->layout], s->B = (size_t)x_shape[!f->step && !f->layout];
    s->rows = f->lines * s->B;
    s->swap_y = f->is_node && f->lines == 2 && !f->layout, s->swap_states = f->lines == 2 && f->layout;
    s->has_parts = f->states == 1 + PARTS;
    for (int i = RUN_STATES; i < RUN_INPUTS && !status; i++) {
        const int64_t batch = (int64_t)s->B, lines = (int64_t)f->lines;
        if (!in[i].data && !in[i].rank)
            continue;
        if (i == RUN_LENGTHS) {
            status = check_lengths(k, f->names[i], &in[i], s->T, s->B);
            continue;
        }
        const int64_t state[3] = {f->layout ? batch : lines, f->layout ? lines : batch,
                                  (int64_t)f->widths[i - RUN_STATES]};
        status = check(k, f->names[i], &in[i], state, 3);
    }
    return status ? status
                  : check_sizes(k, f->names[RUN_X], s->T, s->B,
                                f->y_width + PARTS * f->lines * (f->widths[0] + f->widths[1]));
}

/* Allocates the outputs. y (T, B, width); of a step (B, width); of a node (T, D, B, H) or, with layout 1,
 * (B, T, D, H). The states (lines, B, width), or (B, D, H) with layout 1. */
static OrtStatus *outputs(const kernel *k, OrtKernelContext *context, const sizes *s, float *out[RUN_OUTPUTS])
{
    const run_form *const f = &k->form;
    const int64_t T = (int64_t)s->T, B = (int64_t)s->B, D = (int64_t)f->lines, H = (int64_t)f->widths[0];
    const int64_t node[4] = {f->layout ? B : T, f->layout ? T : D, f->layout ? D : B, H};
    const int64_t call[3] = {T, B, (int64_t)f->y_width};
    OrtStatus *status = kernel_output(k, context, RUN_Y, f->is_node ? node : call + f->step,
                                      f->is_node ? 4
                                      : f->step  ? 2
                                                 : 3,
                                      &out[RUN_Y]);
    for (int i = 0; i < (int)f->states && !status; i++) {
        const int64_t state[3] = {f->layout ? B : D, f->layout ? D : B, (int64_t)f->widths[i]};
        status = kernel_output(k, context, RUN_STATES + i, state, 3, &out[RUN_STATES + i]);
    }
    return status;
}

static void copy_rows(const float *from, size_t from_stride, float *to, size_t to_stride, size_t rows,
                      size_t width)
{
    for (size_t row = 0; row < rows; row++)
        memcpy(to + row * to_stride, from + row * from_stride, width * sizeof *to);
}

/* a (n, m, width) -> b (m, n, width) */
static void swap_axes(const float *a, size_t n, size_t m, size_t width, float *b)
{
    for (size_t i = 0; i < n; i++)
        copy_rows(a + i * m * width, width, b + i * width, n * width, m, width);
}

/* Sets the last states of sequence b to 0, as the runtime does for a sequence without steps. */
static void clear_states(const run_form *f, const sizes *s, size_t b, float *const out[RUN_OUTPUTS])
{
    for (size_t i = 0; i < f->states; i++)
        for (size_t d = 0; d < f->lines && out[RUN_STATES + i]; d++)
            memset(out[RUN_STATES + i] + (f->layout ? b * f->lines + d : d * s->B + b) * f->widths[i], 0,
                   f->widths[i] * sizeof(float));
}

/* Runs the network. Its y is (T, B, y_width) or (B, T, y_width), its states are (lines, B, width). */
static OrtStatus *run(const kernel *k, const sizes *s, const run_tensor in[RUN_INPUTS],
                      float *const out[RUN_OUTPUTS], lnrnn_workspace *workspace, void *const own[PIECES])
{
    const run_form *const f = &k->form;
    const size_t H = f->widths[1], step = s->B * f->y_width;
    char message[LNRNN_MESSAGE] = "";
    int64_t *const lengths = own[OWN_LENGTHS];
    const int32_t *const given = in[RUN_LENGTHS].data;
    float *const y = own[OWN_Y], *states[4];
    const float *first[2] = {in[RUN_STATES].data, in[RUN_STATES + 1].data};
    float *last[2] = {out[RUN_STATES], out[RUN_STATES + 1]};
    for (int i = 0; i < 4; i++)
        states[i] = own[OWN_STATES + i];
    for (size_t b = 0; given && b < s->B; b++)
        lengths[b] = given[b];
    for (int i = 0; i < 2 && s->swap_states; i++) {
        if (first[i]) {
            swap_axes(first[i], s->B, f->lines, f->widths[0], states[i]);
            first[i] = states[i];
        }
        last[i] = last[i] ? states[2 + i] : NULL;
    }
    if (s->has_parts) {
        for (size_t i = 0; i < PARTS; i++)
            copy_rows(in[RUN_STATES + 1 + i].data, H, states[1] + i * H, PARTS * H, s->rows, H);
        first[1] = states[1], last[1] = states[3];
    }
    const lnrnn_sequences call = {.steps = s->T,
                                  .sequences = s->B,
                                  .batch_first = f->layout,
                                  .threads = k->threads,
                                  .x = in[RUN_X].data,
                                  .lengths = given ? lengths : NULL,
                                  .h0 = first[0],
                                  .c0 = first[1],
                                  .y = s->swap_y || !out[RUN_Y] ? y : out[RUN_Y],
                                  .hn = last[0],
                                  .cn = last[1]};
    if (lnrnn_network_run(k->network, &call, workspace, message))
        return kernel_error(k, ORT_FAIL, "%s", message);
    for (size_t t = 0; t < s->T && s->swap_y && out[RUN_Y]; t++)
        swap_axes(y + t * step, s->B, f->lines, f->widths[0], out[RUN_Y] + t * step);
    for (int i = 0; i < 2 && s->swap_states; i++)
        if (last[i])
            swap_axes(last[i], f->lines, s->B, f->widths[0], out[RUN_STATES + i]);
    for (size_t i = 0; i < PARTS && s->has_parts; i++)
        if (out[RUN_STATES + 1 + i])
            copy_rows(states[3] + i * H, PARTS * H, out[RUN_STATES + 1 + i], H, s->rows, H);
    for (size_t b = 0; given && b < s->B && f->is_node; b++)
        if (!given[b])
            clear_states(f, s, b, out);
    return NULL;
}

OrtStatus *run_compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *context)
{
    const kernel *const k = (const kernel *)info;
    run_tensor in[RUN_INPUTS];
    float *out[RUN_OUTPUTS] = {NULL};
    void *own[PIECES];
    sizes s;
    OrtStatus *status = NULL;
    (void)state;
    for (int i = 0; i < RUN_INPUTS && !status; i++)
        status = kernel_tensor(k, context, i, &in[i]);
    if (!status)
        status = check_inputs(k, in, &s);
    if (!status)
        status = outputs(k, context, &s, out);
    if (status)
        return status;
    const size_t state_floats = s.swap_states ? s.rows * k->form.widths[0] : 0,
                 c_floats = s.has_parts ? PARTS * s.rows * k->form.widths[1] : state_floats;
    const size_t floats[PIECES] = {in[RUN_LENGTHS].data ? 2 * s.B : 0,
                                   s.swap_y || !out[RUN_Y] ? s.T * s.B * k->form.y_width : 0,
                                   state_floats,
                                   c_floats,
                                   state_floats,
                                   c_floats};
    run_memory *const m = kernel_memory(k->pool, floats, own, PIECES);
    if (!m)
        return kernel_error(k, ORT_FAIL, "no memory for %zu steps of %zu sequences", s.T, s.B);
    status = run(k, &s, in, out, m->workspace, own);
    kernel_memory_put_back(k->pool, m);
    return status;
}
