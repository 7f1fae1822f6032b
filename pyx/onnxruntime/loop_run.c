/* x (T, B, D), h0 (B, P), c0 (B, H) -> y (T, B, P), h (B, P), c (B, H).
 * Runs all steps of a Loop, a Scan or a chain through a network. An input with one sequence serves all sequences. A chain has
 * T inputs x_t (B, D) in place of x, and T outputs y_t (B, P) in place of y and h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/cells.h"

typedef struct {
    kernel_base base;
    int T, y, out[2];      /* places in the fused node; -1: none */
    int *x_t, *y_t;        /* (steps) places of a chain, or NULL */
    size_t widths[VALUES]; /* D, P, H */
    int64_t steps;         /* a constant number of steps, or -1 */
    source source[VALUES]; /* also states that are constants */
} kernel;

static OrtStatus *refuse(const kernel *k, const char *text)
{
    return k->base.ort->create_status(ORT_INVALID_ARGUMENT, text);
}

/* Checks an input of `rank` axes, the last two (B or 1, width), and sets B. */
static OrtStatus *check(const kernel *k, const tensor *t, size_t rank, size_t width, int64_t *B)
{
    if (t->type != ORT_FLOAT || t->rank != rank || t->shape[rank - 1] != (int64_t)width)
        return refuse(k, "lnrnn: an input or state of a loop has a shape or type that does not fit");
    const int64_t own = t->shape[rank - 2];
    if (own != *B && own != 1 && *B != 1)
        return refuse(k, "lnrnn: the input and the states of a loop differ in their numbers of sequences");
    *B = *B == 1 ? own : *B;
    return NULL;
}

/* Reads the inputs, and sets T and B. */
static OrtStatus *measure(const kernel *k, const OrtKernelContext *context, tensor in[VALUES], size_t *T,
                          size_t *B)
{
    tensor steps;
    OrtStatus *status = input_at(k->base.ort, context, k->T, &steps);
    int64_t batch = 1, first = 1; /* first: after the first step */
    for (int i = 0; i < VALUES && !status; i++) {
        status = input_at(k->base.ort, context, k->source[i].place, &in[i]);
        if (k->source[i].owned)
            in[i] = k->source[i].constant;
        if (!status && in[i].data)
            status = check(k, &in[i], i == VALUE_X ? 3 : 2, k->widths[i], &batch);
    }
    for (int64_t t = 0; k->x_t && t < k->steps && !status; t++) {
        tensor x;
        status = input_at(k->base.ort, context, k->x_t[t], &x);
        if (!status)
            status = check(k, &x, 2, k->widths[VALUE_X], &batch);
        first = t ? first : batch;
    }
    if (status)
        return status;
    *B = (size_t)batch;
    if (k->x_t) {
        *T = (size_t)k->steps;
        return first == batch ? NULL : refuse(k, "lnrnn: a later step has more sequences than the first one");
    }
    *T = (size_t)in[VALUE_X].shape[0];
    if (k->T >= 0 || k->steps >= 0) {
        int is_one = steps.type == ORT_INT64 && steps.data;
        for (size_t a = 0; a < steps.rank; a++)
            is_one &= steps.shape[a] == 1;
        if (k->T >= 0 && !is_one)
            return refuse(k, "lnrnn: the number of steps of a loop, input M, must be one int64");
        const int64_t n = k->T < 0 ? k->steps : *(const int64_t *)steps.data;
        if (n > in[VALUE_X].shape[0])
            return refuse(k, "lnrnn: a loop has more steps than its input");
        *T = n < 0 ? 0 : (size_t)n;
    }
    return NULL;
}

static size_t whole_lines(size_t floats) { return (floats * sizeof(float) + 63) & ~(size_t)63; }

/* The inputs x_t of a chain (B or 1, D) -> x (T, B, D) */
static OrtStatus *copy_inputs(const kernel *k, const OrtKernelContext *context, size_t T, size_t B, float *x)
{
    const size_t D = k->widths[VALUE_X];
    const sizes s = {.shape = {(int64_t)B}, .rank = 2, .rows = B};
    OrtStatus *status = NULL;
    for (size_t t = 0; t < T && !status; t++) {
        tensor x_t;
        status = input_at(k->base.ort, context, k->x_t[t], &x_t);
        if (!status)
            broadcast(&x_t, &s, D, x + t * B * D);
    }
    return status;
}

/* y (T, B, P) -> the outputs y_t of a chain (B, P) */
static OrtStatus *copy_outputs(const kernel *k, OrtKernelContext *context, size_t T, size_t B, const float *y)
{
    const size_t P = k->widths[VALUE_H0];
    const int64_t shape[2] = {(int64_t)B, (int64_t)P};
    OrtStatus *status = NULL;
    for (size_t t = 0; t < T && !status; t++) {
        float *y_t = NULL;
        status = kernel_output_at(k->base.ort, context, k->y_t[t], shape, 2, &y_t);
        if (!status && y_t)
            memcpy(y_t, y + t * B * P, B * P * sizeof *y_t);
    }
    return status;
}

static OrtStatus *compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *context)
{
    const kernel *const k = (const kernel *)info;
    tensor in[VALUES];
    size_t T = 0, B = 0, bytes[VALUES] = {0}, y_bytes = 0, total = 64;
    float *y = NULL, *out[2] = {NULL}, *given[VALUES];
    char message[LNRNN_MESSAGE] = "";
    (void)state;
    OrtStatus *status = measure(k, context, in, &T, &B);
    const int64_t sequences = (int64_t)B, P = (int64_t)k->widths[VALUE_H0],
                  y_shape[3] = {(int64_t)T, sequences, P};
    if (!status)
        status = kernel_output_at(k->base.ort, context, k->y, y_shape, 3, &y);
    for (int i = 0; i < 2 && !status; i++) {
        const int64_t shape[2] = {sequences, (int64_t)k->widths[VALUE_H0 + i]};
        status = kernel_output_at(k->base.ort, context, k->out[i], shape, 2, &out[i]);
    }
    if (!status && !B && k->x_t)
        status = copy_outputs(k, context, T, B, NULL);
    if (status || !B)
        return status;
    for (int i = 0; i < VALUES; i++)
        if (in[i].data && in[i].shape[i == VALUE_X] != sequences)
            total += bytes[i] = whole_lines((i == VALUE_X ? T : 1) * B * k->widths[i]);
    if (k->x_t)
        total += bytes[VALUE_X] = whole_lines(T * B * k->widths[VALUE_X]);
    if (!y)
        total += y_bytes = whole_lines(T * B * k->widths[VALUE_H0]);
    run_memory *const m = memory_take(k->base.pool, total);
    if (!m)
        return k->base.ort->create_status(ORT_FAIL, "lnrnn: no memory for a loop");
    char *at = m->block;
    for (int i = 0; i < VALUES; at += bytes[i++]) {
        const sizes s = {.shape = {i == VALUE_X ? (int64_t)T : sequences, sequences},
                         .rank = i == VALUE_X ? 3 : 2,
                         .rows = i == VALUE_X ? T * B : B};
        given[i] = (float *)(bytes[i] ? at : (char *)in[i].data);
        if (bytes[i] && in[i].data)
            broadcast(&in[i], &s, k->widths[i], given[i]);
    }
    if (k->x_t)
        status = copy_inputs(k, context, T, B, given[VALUE_X]);
    const lnrnn_sequences call = {.steps = T,
                                  .sequences = B,
                                  .threads = k->base.threads,
                                  .x = given[VALUE_X],
                                  .h0 = given[VALUE_H0],
                                  .c0 = given[VALUE_C0],
                                  .y = y_bytes ? (float *)at : y,
                                  .hn = out[0],
                                  .cn = out[1]};
    if (!status && lnrnn_network_run_in(k->base.network, &call, m->workspace, message))
        status = k->base.ort->create_status(ORT_FAIL, message);
    if (!status && k->x_t)
        status = copy_outputs(k, context, T, B, call.y);
    memory_put_back(k->base.pool, m);
    return status;
}

static void release(OrtNodeComputeInfo *info)
{
    kernel *const k = (kernel *)info;
    for (int i = 0; i < VALUES; i++)
        free(k->source[i].owned);
    free(k->x_t);
    lnrnn_network_release(k->base.network);
    free(info);
}

/* The inputs and outputs of a fused node. */
typedef struct {
    const OrtValueInfo **in, **out;
    size_t inputs, outputs;
} places;

static int read_places(const ort_functions *ort, const OrtNode *fused, places *p)
{
    return !failed(ort, ort->node_input_count(fused, &p->inputs))
           && !failed(ort, ort->node_output_count(fused, &p->outputs))
           && (p->in = calloc(p->inputs + p->outputs + 1, sizeof *p->in))
           && !failed(ort, ort->node_inputs(fused, p->in, p->inputs))
           && !failed(ort, ort->node_outputs(fused, p->out = p->in + p->inputs, p->outputs));
}

/* Sets the places of a chain. Returns 0 without memory, or if an input is missing. */
static int find_chain(const ort_functions *ort, kernel *k, const step *first, const places *p, size_t *found)
{
    int *x_t = k->x_t = malloc(2 * (size_t)k->steps * sizeof *x_t);
    if (!x_t)
        return 0;
    int *y_t = k->y_t = x_t + k->steps;
    for (const step *s = first; s; s = s->after, x_t++, y_t++) {
        *x_t = place_of(ort, s->in[VALUE_X]->info, p->in, p->inputs);
        *y_t = place_of(ort, s->out[0]->info, p->out, p->outputs);
        *found += *y_t >= 0;
        if (*x_t < 0)
            return 0;
    }
    return 1;
}

OrtNodeComputeInfo *loop_kernel(const ort_functions *ort, const loop *l, const OrtNode *fused,
                                lnrnn_network *network, network_list *list, memory_pool *pool, int threads,
                                OrtStatus **status)
{
    places p = {.in = NULL};
    size_t found = 0;
    kernel *const k = calloc(1, sizeof *k);
    if (!k) {
        lnrnn_network_release(network);
        *status = ort->create_status(ORT_FAIL, "lnrnn: no memory for a loop");
        return NULL;
    }
    k->base = kernel_base_of(ort, network, list, pool, threads, compute, release);
    k->steps = l->steps, k->widths[VALUE_X] = l->step->input_size, k->widths[VALUE_H0] = l->step->state_size;
    k->widths[VALUE_C0] = l->step->units;
    int right = read_places(ort, fused, &p);
    k->T = right && l->T ? place_of(ort, l->T, p.in, p.inputs) : -1;
    right &= !l->T || k->T >= 0;
    for (int i = 0; i < VALUES && right; i++) {
        k->source[i].place = l->in[i] ? place_of(ort, l->in[i], p.in, p.inputs) : -1;
        if (l->in[i] && k->source[i].place < 0)
            right = keep_constant(ort, l->in[i], &k->source[i]) && k->source[i].constant.rank == 2
                    && k->source[i].constant.type == ORT_FLOAT;
    }
    if (right) {
        k->y = l->y ? place_of(ort, l->y, p.out, p.outputs) : -1;
        found += k->y >= 0;
        for (int i = 0; i < 2; i++) {
            k->out[i] = l->out[i] ? place_of(ort, l->out[i], p.out, p.outputs) : -1;
            found += k->out[i] >= 0;
        }
        right = !l->chain || find_chain(ort, k, l->chain, &p, &found);
    }
    right &= found == p.outputs;
    free(p.in);
    if (right)
        return &k->base.info;
    *status = ort->create_status(ORT_FAIL, "lnrnn: the fused node has other inputs or outputs than the loop");
    release(&k->base.info);
    return NULL;
}
