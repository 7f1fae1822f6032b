/* x_t (B, D) or x (.., B, D); h0 (B, P), c0 (B, H) -> y (T, B, P), h_t (B, P), c (B, H).
 * Runs a chain of steps through a network. An input with one sequence serves all sequences. */
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/cells.h"

typedef struct {
    kernel_base base;
    size_t steps, rows, widths[VALUES]; /* T; B, or 1 if the inputs have B; D, P, H */
    int64_t first, direction;           /* of the steps in x */
    source x, h0, c0, *x_t;             /* x_t (T), if there is no x; h0 and c0 may be left out: 0 */
    int y, c, *h_t;                     /* places in the fused node; -1: none. h_t (T) */
} kernel;

/* Reads an input (.., B, width), and sets *B if it was 1. */
static OrtStatus *read(const kernel *k, const OrtKernelContext *context, const source *s, int i, size_t rank,
                       tensor *t, int64_t *B)
{
    OrtStatus *const status = source_tensor(&k->base, context, s, t);
    if (status || s->place < 0)
        return status;
    if (t->type != ORT_FLOAT || t->rank != rank || t->shape[rank - 1] != (int64_t)k->widths[i])
        return kernel_refuse(&k->base, s, "has a shape or type that does not fit");
    const int64_t own = t->shape[rank - 2];
    if (own != *B && own != 1 && *B != 1)
        return kernel_refuse(&k->base, s, "has another number of sequences than the inputs before");
    *B = *B == 1 ? own : *B;
    return NULL;
}

static OrtStatus *compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *context)
{
    const kernel *const k = (const kernel *)info;
    const size_t T = k->steps, D = k->widths[VALUE_X], P = k->widths[VALUE_H0], H = k->widths[VALUE_C0];
    enum { OWN_X, OWN_Y, OWN_H, OWN_C, PIECES };
    void *own[PIECES];
    tensor x = {0}, h0 = {0}, c0 = {0}, x_t;
    int64_t B = (int64_t)k->rows, first = k->first;
    float *y = NULL, *c = NULL, *h = NULL;
    char message[LNRNN_MESSAGE] = "";
    (void)state;
    OrtStatus *status = read(k, context, &k->h0, VALUE_H0, 2, &h0, &B);
    if (!status)
        status = read(k, context, &k->c0, VALUE_C0, 2, &c0, &B);
    if (!status)
        status = read(k, context, &k->x, VALUE_X, 3, &x, &B);
    for (size_t t = 0; t < T && k->x.place < 0 && !status; t++) {
        const int64_t before = B;
        status = read(k, context, &k->x_t[t], VALUE_X, 2, &x_t, &B);
        if (!status && t && B != before)
            status = kernel_refuse(&k->base, &k->x_t[t], "has more sequences than the steps before");
    }
    if (!status && k->x.place >= 0) {
        first += first < 0 ? x.shape[0] : 0;
        const int64_t last = first + ((int64_t)T - 1) * k->direction;
        if (first < 0 || last < 0 || first >= x.shape[0] || last >= x.shape[0])
            status = kernel_refuse(&k->base, &k->x, "has fewer steps than are unrolled");
    }
    const int64_t y_shape[3] = {(int64_t)T, B, (int64_t)P}, c_shape[2] = {B, (int64_t)H};
    if (!status)
        status = kernel_output_at(k->base.ort, context, k->y, y_shape, 3, &y);
    if (!status)
        status = kernel_output_at(k->base.ort, context, k->c, c_shape, 2, &c);
    if (status)
        return status;
    const size_t rows = (size_t)B, is_whole = k->x.place >= 0 && k->direction > 0 && x.shape[1] == B;
    const size_t floats[PIECES] = {is_whole ? 0 : T * rows * D, y ? 0 : T * rows * P,
                                   k->h0.place >= 0 ? rows * P : 0, k->c0.place >= 0 ? rows * H : 0};
    run_memory *const m = memory_take(k->base.pool, floats, own, PIECES);
    if (!m)
        return kernel_error(&k->base, ORT_FAIL, "no memory for %zu sequences", rows);
    const float *const all = k->x.place >= 0 ? x.data : NULL;
    for (size_t t = 0; t < T && floats[OWN_X] && !status; t++) {
        const int64_t at = first + (int64_t)t * k->direction;
        if (all)
            x_t = (tensor){ORT_FLOAT, x.shape + 1, 2, all + (size_t)(at * x.shape[1]) * D};
        else
            status = source_tensor(&k->base, context, &k->x_t[t], &x_t);
        if (!status)
            broadcast_rows(&x_t, rows, D, (float *)own[OWN_X] + t * rows * D);
    }
    if (floats[OWN_H])
        broadcast_rows(&h0, rows, P, own[OWN_H]);
    if (floats[OWN_C])
        broadcast_rows(&c0, rows, H, own[OWN_C]);
    y = y ? y : own[OWN_Y];
    const lnrnn_sequences call = {.steps = T,
                                  .sequences = rows,
                                  .threads = k->base.threads,
                                  .x = is_whole ? all + (size_t)(first * B) * D : own[OWN_X],
                                  .h0 = floats[OWN_H] ? own[OWN_H] : NULL,
                                  .c0 = floats[OWN_C] ? own[OWN_C] : NULL,
                                  .y = y,
                                  .cn = c};
    if (!status && rows && lnrnn_network_run_in(k->base.network, &call, m->workspace, message))
        status = kernel_error(&k->base, ORT_FAIL, "%s", message);
    for (size_t t = 0; t < T && !status; t++) {
        status = kernel_output_at(k->base.ort, context, k->h_t[t], y_shape + 1, 2, &h);
        if (!status && h)
            memcpy(h, y + t * rows * P, rows * P * sizeof *h);
    }
    memory_put_back(k->base.pool, m);
    return status;
}

static void release(OrtNodeComputeInfo *info)
{
    free(((kernel *)info)->x_t);
    free(((kernel *)info)->h_t);
}

kernel_base *chain_kernel(const provider *p, const chain *c, lnrnn_network *network)
{
    const step *const s = c->steps[0], *const last = c->steps[c->count - 1];
    kernel *const k = kernel_new(p, sizeof *k, network, compute, release);
    if (!k)
        return NULL;
    kernel_label(&k->base, "unrolled steps, of which the last one computes h in node",
                 last->out[0]->producer->info);
    k->steps = c->count, k->rows = c->rows, k->first = c->first, k->direction = c->direction;
    k->widths[VALUE_X] = s->input_size, k->widths[VALUE_H0] = s->state_size, k->widths[VALUE_C0] = s->units;
    k->x_t = calloc(c->count, sizeof *k->x_t), k->h_t = malloc(c->count * sizeof *k->h_t);
    int right = k->x_t && k->h_t && source_of(&k->base, "x", info_of(c->x), &k->x)
                && source_of(&k->base, "h0", info_of(s->in[VALUE_H0]), &k->h0)
                && source_of(&k->base, "c0", info_of(s->in[VALUE_C0]), &k->c0)
                && output_of(&k->base, info_of(c->y), &k->y)
                && output_of(&k->base, info_of(last->out[1]), &k->c);
    for (size_t t = 0; t < c->count && right; t++)
        right = source_of(&k->base, "x", c->x ? NULL : info_of(c->steps[t]->in[VALUE_X]), &k->x_t[t])
                && output_of(&k->base, info_of(c->steps[t]->out[0]), &k->h_t[t]);
    if (right)
        return &k->base;
    kernel_free(&k->base.info);
    return NULL;
}
