/* x (T, B, D), h0 (B, P), c0 (B, H) -> y (T, B, P), h (B, P), c (B, H).
 * Runs all steps of a Loop or Scan through a network. An input with one sequence serves all sequences. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/cells.h"

typedef struct {
    kernel_base base;
    int T, y, out[2];      /* places in the fused node; -1: none */
    size_t widths[VALUES]; /* D, P, H */
    int64_t steps;         /* a constant number of steps, or -1 */
    source source[VALUES]; /* also states that are constants */
} kernel;

static OrtStatus *refuse(const kernel *k, const char *text)
{
    return k->base.ort->create_status(ORT_INVALID_ARGUMENT, text);
}

/* Reads the inputs, and sets T and B. */
static OrtStatus *measure(const kernel *k, const OrtKernelContext *context, tensor in[VALUES], size_t *T,
                          size_t *B)
{
    tensor steps;
    OrtStatus *status = input_at(k->base.ort, context, k->T, &steps);
    int64_t batch = 1;
    for (int i = 0; i < VALUES && !status; i++) {
        status = input_at(k->base.ort, context, k->source[i].place, &in[i]);
        if (k->source[i].owned)
            in[i] = k->source[i].constant;
        if (status || !in[i].data)
            continue;
        const size_t rank = i == VALUE_X ? 3 : 2;
        if (in[i].type != ORT_FLOAT || in[i].rank != rank || in[i].shape[rank - 1] != (int64_t)k->widths[i])
            return refuse(k, "lnrnn: an input or state of a loop has a shape or type that does not fit");
        const int64_t own = in[i].shape[rank - 2];
        if (own != batch && own != 1 && batch != 1)
            return refuse(k,
                          "lnrnn: the input and the states of a loop differ in their numbers of sequences");
        batch = batch == 1 ? own : batch;
    }
    if (status)
        return status;
    *T = (size_t)in[VALUE_X].shape[0], *B = (size_t)batch;
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
    if (status || !B)
        return status;
    for (int i = 0; i < VALUES; i++)
        if (in[i].data && in[i].shape[i == VALUE_X] != sequences)
            total += bytes[i] = whole_lines((i == VALUE_X ? T : 1) * B * k->widths[i]);
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
        if (bytes[i])
            broadcast(&in[i], &s, k->widths[i], given[i]);
    }
    const lnrnn_sequences call = {.steps = T,
                                  .sequences = B,
                                  .threads = k->base.threads,
                                  .x = given[VALUE_X],
                                  .h0 = given[VALUE_H0],
                                  .c0 = given[VALUE_C0],
                                  .y = y_bytes ? (float *)at : y,
                                  .hn = out[0],
                                  .cn = out[1]};
    if (lnrnn_network_run_in(k->base.network, &call, m->workspace, message))
        status = k->base.ort->create_status(ORT_FAIL, message);
    memory_put_back(k->base.pool, m);
    return status;
}

static void release(OrtNodeComputeInfo *info)
{
    kernel *const k = (kernel *)info;
    for (int i = 0; i < VALUES; i++)
        free(k->source[i].owned);
    lnrnn_network_release(k->base.network);
    free(info);
}

OrtNodeComputeInfo *loop_kernel(const ort_functions *ort, const loop *l, const OrtNode *fused,
                                lnrnn_network *network, network_list *list, memory_pool *pool, int threads,
                                OrtStatus **status)
{
    enum { MOST_IN = 8, MOST_OUT = 3 }; /* a fused Loop also has the condition as an input */
    const OrtValueInfo *in[MOST_IN], *out[MOST_OUT];
    size_t inputs = 0, outputs = 0, found = 0;
    kernel *const k = calloc(1, sizeof *k);
    if (!k) {
        lnrnn_network_release(network);
        *status = ort->create_status(ORT_FAIL, "lnrnn: no memory for a loop");
        return NULL;
    }
    k->base = kernel_base_of(ort, network, list, pool, threads, compute, release);
    k->steps = l->steps, k->widths[VALUE_X] = l->step->input_size, k->widths[VALUE_H0] = l->step->state_size;
    k->widths[VALUE_C0] = l->step->units;
    int right = !failed(ort, ort->node_input_count(fused, &inputs)) && inputs <= MOST_IN
                && !failed(ort, ort->node_inputs(fused, in, inputs))
                && !failed(ort, ort->node_output_count(fused, &outputs)) && outputs <= MOST_OUT
                && !failed(ort, ort->node_outputs(fused, out, outputs));
    k->T = right && l->T ? place_of(ort, l->T, in, inputs) : -1;
    right &= !l->T || k->T >= 0;
    for (int i = 0; i < VALUES && right; i++) {
        k->source[i].place = l->in[i] ? place_of(ort, l->in[i], in, inputs) : -1;
        if (l->in[i] && k->source[i].place < 0)
            right = keep_constant(ort, l->in[i], &k->source[i]) && k->source[i].constant.rank == 2
                    && k->source[i].constant.type == ORT_FLOAT;
    }
    if (right) {
        k->y = l->y ? place_of(ort, l->y, out, outputs) : -1;
        found += k->y >= 0;
        for (int i = 0; i < 2; i++) {
            k->out[i] = l->out[i] ? place_of(ort, l->out[i], out, outputs) : -1;
            found += k->out[i] >= 0;
        }
    }
    if (right && found == outputs)
        return &k->base.info;
    *status = ort->create_status(ORT_FAIL, "lnrnn: the fused node has other inputs or outputs than the loop");
    release(&k->base.info);
    return NULL;
}
