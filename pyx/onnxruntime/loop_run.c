/* x (T, B, D) or (B, T, D), h0 (B, P), c0 (B, H) -> y (T, B, P) or (B, T, P). The mask is (T, B, 1).
 * It also writes the last states h (B, P) and c (B, H). Runs all steps of a Loop or Scan through a network.
 * An input with one sequence serves all sequences. Where the mask is false, the states stay, so that the
 * network gets the other steps without gaps. */
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/cells.h"

typedef struct {
    kernel_base base;
    int y, out[2]; /* places in the fused node; -1: none */
    loop l;        /* without its pointers */
    size_t D, P, H;
    source source[LOOP_INPUTS];
} kernel;

/* The inputs and sizes of a run. Step t reads x[first + direction * t]. X: the steps of x. */
typedef struct {
    tensor in[LOOP_INPUTS];
    size_t T, B, X;
    int64_t first;
} run;

/* Returns the number of steps in an input: M, or n of `while (t < n)`. */
static OrtStatus *read_steps(const kernel *k, run *r)
{
    const tensor *const steps = &r->in[LOOP_STEPS], *const go = &r->in[LOOP_GO];
    int64_t n = k->l.steps;
    int is_one = (steps->type == ORT_INT64 || steps->type == ORT_INT32) && steps->data;
    for (size_t a = 0; a < steps->rank; a++)
        is_one &= steps->shape[a] == 1;
    if (!is_one && n < 0)
        return kernel_refuse(&k->base, &k->source[LOOP_STEPS], "must be one integer");
    if (n < 0)
        n = steps->type == ORT_INT64 ? *(const int64_t *)steps->data : *(const int32_t *)steps->data;
    if (go->data) {
        if (go->type != ORT_BOOL)
            return kernel_refuse(&k->base, &k->source[LOOP_GO], "must be bool");
        n = !*(const char *)go->data ? 0 : n < 1 ? 1 : n;
    }
    r->T = n < 0 ? 0 : (size_t)n;
    return NULL;
}

/* Checks an input of B sequences, or of one, and sets B if it was 1. axis: that of sequences. */
static OrtStatus *read_input(const kernel *k, run *r, int i, size_t rank, size_t axis, size_t width)
{
    const tensor *const t = &r->in[i];
    if (!t->data && !t->rank)
        return NULL;
    if (t->type != (i == LOOP_MASK ? ORT_BOOL : ORT_FLOAT) || t->rank != rank
        || t->shape[rank - 1] != (int64_t)width)
        return kernel_refuse(&k->base, &k->source[i], "has a shape or type that does not fit");
    const size_t own = (size_t)t->shape[axis];
    if (own != r->B && own != 1 && r->B != 1)
        return kernel_refuse(&k->base, &k->source[i],
                             "has another number of sequences than the inputs before");
    r->B = r->B == 1 ? own : r->B;
    return NULL;
}

/* Reads the inputs, and sets the sizes. */
static OrtStatus *measure(const kernel *k, const OrtKernelContext *context, run *r)
{
    OrtStatus *status = NULL;
    const loop *const l = &k->l;
    *r = (run){.B = 1};
    for (int i = 0; i < LOOP_INPUTS && !status; i++)
        status = source_tensor(&k->base, context, &k->source[i], &r->in[i]);
    if (!status)
        status = read_input(k, r, VALUE_X, 3, (size_t)!l->x_axis, k->D);
    if (!status)
        status = read_input(k, r, VALUE_H0, 2, 0, k->P);
    if (!status)
        status = read_input(k, r, VALUE_C0, 2, 0, k->H);
    if (!status)
        status = read_input(k, r, LOOP_KEPT, 2, 0, k->P);
    if (!status)
        status = read_input(k, r, LOOP_MASK, 3, 1, 1);
    if (status)
        return status;
    r->X = r->T = (size_t)r->in[VALUE_X].shape[l->x_axis];
    if ((r->in[LOOP_STEPS].data || l->steps >= 0) && (status = read_steps(k, r)))
        return status;
    const int64_t X = (int64_t)r->X, T = (int64_t)r->T;
    r->first = l->index.constant + l->index.steps * T + l->index.size * X;
    const int64_t last = r->first + l->index.step * (T - 1);
    if (T && (r->first < -X || last < -X || r->first >= X || last >= X))
        return kernel_refuse(&k->base, &k->source[VALUE_X], "has fewer steps than the loop");
    if (r->in[LOOP_MASK].data && r->in[LOOP_MASK].shape[0] < T)
        return kernel_refuse(&k->base, &k->source[LOOP_MASK], "has fewer steps than the loop");
    return NULL;
}

/* Returns 1 if the mask, if there is one, is true for a sequence at a step. */
static int is_active(const run *r, size_t t, size_t b)
{
    const tensor *const mask = &r->in[LOOP_MASK];
    return !mask->data || ((const char *)mask->data)[mask->shape[1] == 1 ? t : t * r->B + b];
}

/* Writes the steps of each sequence whose mask is true, and sets lengths (B) to their numbers. */
static void gather(const kernel *k, const run *r, float *x, int64_t *lengths)
{
    const tensor *const t = &r->in[VALUE_X];
    const size_t own = (size_t)t->shape[!k->l.x_axis], D = k->D;
    memset(lengths, 0, r->B * sizeof *lengths);
    for (size_t step = 0; step < r->T; step++) {
        const int64_t index = r->first + k->l.index.step * (int64_t)step;
        const size_t at = (size_t)(index < 0 ? index + (int64_t)r->X : index); /* as Gather counts */
        for (size_t b = 0; b < r->B; b++) {
            const size_t from = own == 1 ? 0 : b, row = k->l.x_axis ? from * r->X + at : at * own + from;
            if (is_active(r, step, b))
                memcpy(x + ((size_t)lengths[b]++ * r->B + b) * D, (const float *)t->data + row * D,
                       D * sizeof *x);
        }
    }
}

/* Returns where y has a step of a sequence. */
static float *row_of(const kernel *k, const run *r, float *y, size_t t, size_t b)
{
    const size_t at = k->l.y_is_back ? r->T - 1 - t : t;
    return y + (k->l.y_axis ? b * r->T + at : at * r->B + b) * k->P;
}

/* Writes y from the rows of the network, which lack the steps whose mask is false. counts (B): memory. */
static void scatter(const kernel *k, const run *r, const float *rows, int64_t *counts, float *y)
{
    const tensor *const kept = &r->in[LOOP_KEPT];
    memset(counts, 0, r->B * sizeof *counts);
    for (size_t t = 0; t < r->T; t++)
        for (size_t b = 0; b < r->B; b++) {
            const float *from;
            if (is_active(r, t, b))
                from = rows + ((size_t)counts[b]++ * r->B + b) * k->P;
            else if (k->l.repeats && t)
                from = row_of(k, r, y, t - 1, b);
            else
                from = (const float *)kept->data + (kept->shape[0] == 1 ? 0 : b * k->P);
            memcpy(row_of(k, r, y, t, b), from, k->P * sizeof *y);
        }
}

static OrtStatus *compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *context)
{
    const kernel *const k = (const kernel *)info;
    const loop *const l = &k->l;
    run r;
    enum { OWN_LENGTHS, OWN_X, OWN_Y, OWN_H, OWN_C, PIECES };
    void *own[PIECES];
    float *y = NULL, *out[2] = {NULL}, *states[2] = {NULL};
    char message[LNRNN_MESSAGE] = "";
    (void)state;
    OrtStatus *status = measure(k, context, &r);
    const int64_t T = (int64_t)r.T, B = (int64_t)r.B,
                  y_shape[3] = {l->y_axis ? B : T, l->y_axis ? T : B, (int64_t)k->P};
    if (!status)
        status = kernel_output_at(k->base.ort, context, k->y, y_shape, 3, &y);
    for (int i = 0; i < 2 && !status; i++) {
        const int64_t shape[2] = {B, (int64_t)(i ? k->H : k->P)};
        status = kernel_output_at(k->base.ort, context, k->out[i], shape, 2, &out[i]);
    }
    if (status || !B)
        return status;
    const tensor *const x = &r.in[VALUE_X];
    const int is_plain = l->index.step == 1 && !r.first && x->shape[!l->x_axis] == B && !r.in[LOOP_MASK].data;
    const int both = is_plain && l->x_axis && (l->y_axis || !y) && !l->y_is_back && r.T == r.X;
    const int x_is_whole = both || (is_plain && !l->x_axis),
              y_is_whole = y && (both || (!l->y_axis && !l->y_is_back && !r.in[LOOP_MASK].data));
    const size_t floats[PIECES] = {2 * r.B, x_is_whole ? 0 : r.T * r.B * k->D,
                                   y_is_whole ? 0 : r.T * r.B * k->P, r.B * k->P, r.B * k->H};
    run_memory *const m = memory_take(k->base.pool, floats, own, PIECES);
    if (!m)
        return kernel_error(&k->base, ORT_FAIL, "no memory for %zu steps", r.T);
    if (!x_is_whole)
        gather(k, &r, own[OWN_X], own[OWN_LENGTHS]);
    for (int i = 0; i < 2; i++) {
        const tensor *const t = &r.in[VALUE_H0 + i];
        states[i] = (float *)(t->data && t->shape[0] != B ? own[OWN_H + i] : t->data);
        if (states[i] != t->data)
            broadcast_rows(t, r.B, i ? k->H : k->P, states[i]);
    }
    const lnrnn_sequences call = {.steps = r.T,
                                  .sequences = r.B,
                                  .batch_first = both,
                                  .threads = k->base.threads,
                                  .lengths = r.in[LOOP_MASK].data ? own[OWN_LENGTHS] : NULL,
                                  .x = x_is_whole ? x->data : own[OWN_X],
                                  .h0 = states[0],
                                  .c0 = states[1],
                                  .y = y_is_whole ? y : own[OWN_Y],
                                  .hn = out[0],
                                  .cn = out[1]};
    if (lnrnn_network_run_in(k->base.network, &call, m->workspace, message))
        status = kernel_error(&k->base, ORT_FAIL, "%s", message);
    else if (y && !y_is_whole)
        scatter(k, &r, own[OWN_Y], own[OWN_LENGTHS], y);
    memory_put_back(k->base.pool, m);
    return status;
}

static void release(OrtNodeComputeInfo *info)
{
    for (int i = 0; i < LOOP_INPUTS; i++)
        free(((kernel *)info)->source[i].owned);
}

kernel_base *loop_kernel(const provider *p, const loop *l, lnrnn_network *network)
{
    static const char *const roles[] = {
        "x", "h0", "c0", "y of masked steps", "mask", "number of steps", "condition"};
    kernel *const k = kernel_new(p, sizeof *k, network, compute, release);
    if (!k)
        return NULL;
    kernel_label(&k->base, "node", l->nodes[0]->info);
    k->l = *l;
    k->D = l->step->input_size, k->P = l->step->state_size, k->H = l->step->units;
    int right = output_of(&k->base, l->y, &k->y);
    for (int i = 0; i < LOOP_INPUTS && right; i++)
        right = source_of(&k->base, roles[i], l->in[i], &k->source[i]);
    for (int i = 0; i < 2 && right; i++)
        right = output_of(&k->base, l->out[i], &k->out[i]);
    if (right)
        return &k->base;
    kernel_free(&k->base.info);
    return NULL;
}
