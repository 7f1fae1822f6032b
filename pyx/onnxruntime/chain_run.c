/* x_t (B, D) or x (.., B, D); h0 (B, P), c0 (B, H) -> y (T, B, P), h_t (B, P), c (B, H).
 * Runs a chain of steps through a network. An input with one sequence serves all sequences. */
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/cells.h"

typedef struct {
    kernel_base base;
    size_t steps, rows, widths[VALUES]; /* T; B, or 1 if the inputs have B; D, P, H */
    int64_t first, direction;           /* of the steps in x */
    int x, h0, c0, y, c, *x_t, *h_t;    /* places in the fused node; -1: none. x_t (T), h_t (T) */
} kernel;

static OrtStatus *refuse(const kernel *k, const char *text)
{
    return k->base.ort->create_status(ORT_INVALID_ARGUMENT, text);
}

/* Reads an input (.., B, width), and sets *B if it was 1. */
static OrtStatus *read(const kernel *k, const OrtKernelContext *context, int place, int i, size_t rank,
                       tensor *t, int64_t *B)
{
    OrtStatus *const status = input_at(k->base.ort, context, place, t);
    if (status || place < 0)
        return status;
    if (t->type != ORT_FLOAT || t->rank != rank || t->shape[rank - 1] != (int64_t)k->widths[i])
        return refuse(k, "lnrnn: an input or state of unrolled steps has a shape or type that does not fit");
    const int64_t own = t->shape[rank - 2];
    if (own != *B && own != 1 && *B != 1)
        return refuse(k,
                      "lnrnn: the inputs and states of unrolled steps differ in their numbers of sequences");
    *B = *B == 1 ? own : *B;
    return NULL;
}

/* Writes rows of t (B or 1, width), from a step's data, to (B, width). */
static void copy_rows(const float *data, int64_t own, int64_t B, size_t width, float *to)
{
    for (int64_t b = 0; b < B; b++)
        memcpy(to + (size_t)b * width, data + (own == 1 ? 0 : (size_t)b * width), width * sizeof *to);
}

static OrtStatus *compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *context)
{
    const kernel *const k = (const kernel *)info;
    const size_t T = k->steps, D = k->widths[VALUE_X], P = k->widths[VALUE_H0], H = k->widths[VALUE_C0];
    tensor x = {0}, h0 = {0}, c0 = {0}, x_t;
    int64_t B = (int64_t)k->rows, first = k->first;
    float *y = NULL, *c = NULL, *h = NULL;
    char message[LNRNN_MESSAGE] = "";
    (void)state;
    OrtStatus *status = read(k, context, k->h0, VALUE_H0, 2, &h0, &B); /* h0 and c0 may be left out: 0 */
    if (!status)
        status = read(k, context, k->c0, VALUE_C0, 2, &c0, &B);
    if (!status && k->x >= 0)
        status = read(k, context, k->x, VALUE_X, 3, &x, &B);
    for (size_t t = 0; t < T && k->x < 0 && !status; t++) {
        const int64_t before = B;
        status = read(k, context, k->x_t[t], VALUE_X, 2, &x_t, &B);
        if (!status && t && B != before)
            status = refuse(k, "lnrnn: a later unrolled step has more sequences than the first one");
    }
    if (!status && k->x >= 0) {
        first += first < 0 ? x.shape[0] : 0;
        const int64_t last = first + ((int64_t)T - 1) * k->direction;
        if (first < 0 || last < 0 || first >= x.shape[0] || last >= x.shape[0])
            status = refuse(k, "lnrnn: unrolled steps read beyond their input");
    }
    const int64_t y_shape[3] = {(int64_t)T, B, (int64_t)P}, c_shape[2] = {B, (int64_t)H};
    if (!status)
        status = kernel_output_at(k->base.ort, context, k->y, y_shape, 3, &y);
    if (!status)
        status = kernel_output_at(k->base.ort, context, k->c, c_shape, 2, &c);
    if (status)
        return status;
    const size_t rows = (size_t)B, is_whole = k->x >= 0 && k->direction > 0 && x.shape[1] == B;
    const size_t x_bytes = is_whole ? 0 : whole_lines(T * rows * D),
                 y_bytes = y ? 0 : whole_lines(T * rows * P),
                 h_bytes = k->h0 >= 0 ? whole_lines(rows * P) : 0,
                 c_bytes = k->c0 >= 0 ? whole_lines(rows * H) : 0;
    run_memory *const m = memory_take(k->base.pool, x_bytes + y_bytes + h_bytes + c_bytes + 64);
    if (!m)
        return k->base.ort->create_status(ORT_FAIL, "lnrnn: no memory for unrolled steps");
    float *const own_x = (float *)m->block, *const own_y = (float *)(m->block + x_bytes),
                 *const own_h = (float *)(m->block + x_bytes + y_bytes),
                 *const own_c = (float *)(m->block + x_bytes + y_bytes + h_bytes);
    const float *const all = k->x >= 0 ? x.data : NULL;
    for (size_t t = 0; t < T && x_bytes && !status; t++) {
        const int64_t at = first + (int64_t)t * k->direction;
        if (all)
            copy_rows(all + (size_t)(at * x.shape[1]) * D, x.shape[1], B, D, own_x + t * rows * D);
        else if (!(status = input_at(k->base.ort, context, k->x_t[t], &x_t)))
            copy_rows(x_t.data, x_t.shape[0], B, D, own_x + t * rows * D);
    }
    if (h_bytes)
        copy_rows(h0.data, h0.shape[0], B, P, own_h);
    if (c_bytes)
        copy_rows(c0.data, c0.shape[0], B, H, own_c);
    y = y ? y : own_y;
    const lnrnn_sequences call = {.steps = T,
                                  .sequences = rows,
                                  .threads = k->base.threads,
                                  .x = is_whole ? all + (size_t)(first * B) * D : own_x,
                                  .h0 = h_bytes ? own_h : NULL,
                                  .c0 = c_bytes ? own_c : NULL,
                                  .y = y,
                                  .cn = c};
    if (!status && rows && lnrnn_network_run_in(k->base.network, &call, m->workspace, message))
        status = k->base.ort->create_status(ORT_FAIL, message);
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
    kernel *const k = (kernel *)info;
    lnrnn_network_release(k->base.network);
    free(k->x_t);
    free(k->h_t);
    free(info);
}

OrtNodeComputeInfo *chain_kernel(const ort_functions *ort, const chain *c, const OrtNode *fused,
                                 lnrnn_network *network, network_list *list, memory_pool *pool, int threads,
                                 OrtStatus **status)
{
    size_t inputs = 0, outputs = 0, found = 0;
    const step *const s = c->steps[0], *const last = c->steps[c->count - 1];
    kernel *const k = calloc(1, sizeof *k);
    if (!k) {
        lnrnn_network_release(network);
        *status = ort->create_status(ORT_FAIL, "lnrnn: no memory for unrolled steps");
        return NULL;
    }
    k->base = kernel_base_of(ort, network, list, pool, threads, compute, release);
    k->steps = c->count, k->rows = c->rows, k->first = c->first, k->direction = c->direction;
    k->widths[VALUE_X] = s->input_size, k->widths[VALUE_H0] = s->state_size, k->widths[VALUE_C0] = s->units;
    k->x_t = malloc(c->count * sizeof *k->x_t), k->h_t = malloc(c->count * sizeof *k->h_t);
    int right = k->x_t && k->h_t && !failed(ort, ort->node_input_count(fused, &inputs))
                && !failed(ort, ort->node_output_count(fused, &outputs));
    const OrtValueInfo **const in = calloc(inputs + 1, sizeof *in),
                               **const out = calloc(outputs + 1, sizeof *out);
    right = right && in && out && !failed(ort, ort->node_inputs(fused, in, inputs))
            && !failed(ort, ort->node_outputs(fused, out, outputs));
    if (right) {
        k->x = c->x ? place_of(ort, c->x->info, in, inputs) : -1;
        k->h0 = s->in[VALUE_H0] ? place_of(ort, s->in[VALUE_H0]->info, in, inputs) : -1;
        k->c0 = s->in[VALUE_C0] ? place_of(ort, s->in[VALUE_C0]->info, in, inputs) : -1;
        k->y = c->y ? place_of(ort, c->y->info, out, outputs) : -1;
        k->c = last->out[1] ? place_of(ort, last->out[1]->info, out, outputs) : -1;
        right = (!s->in[VALUE_H0] || k->h0 >= 0) && (!c->x || k->x >= 0) && (!s->in[VALUE_C0] || k->c0 >= 0);
        found = (size_t)(k->y >= 0) + (size_t)(k->c >= 0);
    }
    for (size_t t = 0; t < c->count && right; t++) {
        k->x_t[t] = c->x ? -1 : place_of(ort, c->steps[t]->in[VALUE_X]->info, in, inputs);
        k->h_t[t] = place_of(ort, c->steps[t]->out[0]->info, out, outputs);
        found += k->h_t[t] >= 0;
        right = c->x || k->x_t[t] >= 0;
    }
    free(in);
    free(out);
    if (right && found == outputs)
        return &k->base.info;
    *status =
        ort->create_status(ORT_FAIL, "lnrnn: the fused node has other inputs or outputs than the steps");
    release(&k->base.info);
    return NULL;
}
