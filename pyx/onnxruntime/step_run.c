/* Runs a step of a cell through its network: x (.., D), h0 (.., P), c0 (.., H) -> h (.., P), c (.., H). The
 * leading axes of the inputs are broadcast as NumPy does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/cells.h"

enum { MOST_RANK = 8 };

static const char *const INPUT_ROLES[VALUES] = {"x", "h0", "c0"};

typedef struct {
    kernel_base base;
    source in[VALUES];
    int out[2];            /* places in the fused node; -1: none */
    size_t widths[VALUES]; /* D, P, H */
} kernel;

/* Sets the sizes of a run. */
static OrtStatus *measure(const kernel *k, const tensor in[VALUES], sizes *s)
{
    *s = (sizes){.rank = 1, .rows = 1};
    for (int i = 0; i < VALUES; i++) {
        if (in[i].rank > MOST_RANK)
            return kernel_refuse(&k->base, &k->in[i], "has too many axes");
        s->rank = in[i].rank > s->rank ? in[i].rank : s->rank;
    }
    for (size_t a = 0; a < MOST_RANK; a++)
        s->shape[a] = 1;
    for (int i = 0; i < VALUES; i++) {
        const tensor *const t = &in[i];
        if (k->in[i].place < 0)
            continue;
        const int64_t last = t->rank ? t->shape[t->rank - 1] : 1, width = (int64_t)k->widths[i];
        if (t->type != ORT_FLOAT || !(last == width || (i == VALUE_C0 && last == 1))
            || (i != VALUE_C0 && !t->rank))
            return kernel_refuse(&k->base, &k->in[i], "has a shape or type that does not fit");
        for (size_t a = 0; a + 1 < t->rank; a++) {
            int64_t *const size = &s->shape[s->rank - t->rank + a];
            if (*size != t->shape[a] && *size != 1 && t->shape[a] != 1)
                return kernel_refuse(&k->base, &k->in[i], "has a shape that does not fit those before");
            *size = *size == 1 ? t->shape[a] : *size;
        }
    }
    for (size_t a = 0; a + 1 < s->rank; a++)
        s->rows *= (size_t)s->shape[a];
    return NULL;
}

/* Returns 1 if an input has the shape of the outputs, but for the last axis. */
static int is_whole(const tensor *t, const sizes *s, size_t width)
{
    size_t rows = 1;
    for (size_t a = 0; a + 1 < t->rank; a++)
        rows *= (size_t)t->shape[a];
    return rows == s->rows && t->rank && (size_t)t->shape[t->rank - 1] == width;
}

void broadcast(const tensor *t, const sizes *s, size_t width, float *to)
{
    const size_t own = t->rank ? (size_t)t->shape[t->rank - 1] : 1;
    for (size_t row = 0; row < s->rows; row++, to += width) {
        size_t rest = row, from = 0, stride = own;
        for (size_t a = s->rank - 1; a-- > 0;) {
            const size_t at = rest % (size_t)s->shape[a], missing = s->rank - t->rank;
            const size_t size = a < missing ? 1 : (size_t)t->shape[a - missing];
            rest /= (size_t)s->shape[a];
            from += size > 1 ? at * stride : 0;
            stride *= size;
        }
        for (size_t j = 0; j < width; j++)
            to[j] = ((const float *)t->data)[from + (own > 1 ? j : 0)];
    }
}

void broadcast_rows(const tensor *t, size_t B, size_t width, float *to)
{
    const sizes s = {.shape = {(int64_t)B}, .rank = 2, .rows = B};
    broadcast(t, &s, width, to);
}

static OrtStatus *compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *context)
{
    const kernel *const k = (const kernel *)info;
    tensor in[VALUES];
    sizes s;
    enum { OWN_Y = VALUES, PIECES };
    void *own[PIECES];
    float *h = NULL, *c = NULL;
    const float *given[VALUES];
    size_t floats[PIECES] = {0};
    char message[LNRNN_MESSAGE] = "";
    (void)state;
    OrtStatus *status = NULL;
    for (int i = 0; i < VALUES && !status; i++)
        status = source_tensor(&k->base, context, &k->in[i], &in[i]);
    if (!status)
        status = measure(k, in, &s);
    for (int i = 0; i < 2 && !status; i++) {
        s.shape[s.rank - 1] = (int64_t)k->widths[i ? VALUE_C0 : VALUE_H0];
        status = kernel_output_at(k->base.ort, context, k->out[i], s.shape, s.rank, i ? &c : &h);
    }
    if (status || !s.rows)
        return status;
    for (int i = 0; i < VALUES; i++)
        if (k->in[i].place >= 0 && !is_whole(&in[i], &s, k->widths[i]))
            floats[i] = s.rows * k->widths[i];
    floats[OWN_Y] = h ? 0 : s.rows * k->widths[VALUE_H0];
    run_memory *const m = memory_take(k->base.pool, floats, own, PIECES);
    if (!m)
        return kernel_error(&k->base, ORT_FAIL, "no memory for %zu rows", s.rows);
    for (int i = 0; i < VALUES; i++) {
        given[i] = floats[i] ? own[i] : in[i].data;
        if (floats[i])
            broadcast(&in[i], &s, k->widths[i], own[i]);
    }
    const lnrnn_sequences call = {.steps = 1,
                                  .sequences = s.rows,
                                  .threads = k->base.threads,
                                  .x = given[VALUE_X],
                                  .h0 = given[VALUE_H0],
                                  .c0 = given[VALUE_C0],
                                  .y = h ? h : own[OWN_Y],
                                  .cn = c};
    if (lnrnn_network_run_in(k->base.network, &call, m->workspace, message))
        status = kernel_error(&k->base, ORT_FAIL, "%s", message);
    memory_put_back(k->base.pool, m);
    return status;
}

kernel_base *step_kernel(const provider *p, const step *s, lnrnn_network *network)
{
    kernel *const k = kernel_new(p, sizeof *k, network, compute, NULL);
    if (!k)
        return NULL;
    kernel_label(&k->base, "the step that computes h in node", s->out[0]->producer->info);
    k->widths[VALUE_X] = s->input_size, k->widths[VALUE_H0] = s->state_size, k->widths[VALUE_C0] = s->units;
    int right = 1;
    for (int i = 0; i < VALUES && right; i++)
        right = source_of(&k->base, INPUT_ROLES[i], info_of(s->in[i]), &k->in[i]);
    for (int i = 0; i < 2 && right; i++)
        right = output_of(&k->base, info_of(s->out[i]), &k->out[i]);
    if (right)
        return &k->base;
    kernel_free(&k->base.info);
    return NULL;
}
