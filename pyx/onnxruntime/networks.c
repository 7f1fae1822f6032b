/* The networks of a session. Nodes with equal weights share a network, so that its packed weights are in
 * memory only once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/plugin.h"

typedef struct {
    lnrnn_description description;
    float *weights; /* all arrays, one after another; NULL after networks_close */
    lnrnn_network *network;
} entry;

struct network_list {
    entry *entries; /* (count) */
    size_t count;
};

network_list *networks_create(void) { return calloc(1, sizeof(network_list)); }

void networks_close(network_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free(list->entries[i].weights);
        list->entries[i].weights = NULL;
    }
}

void networks_free(network_list *list)
{
    if (!list)
        return;
    networks_close(list);
    for (size_t i = 0; i < list->count; i++)
        lnrnn_network_release(list->entries[i].network);
    free(list->entries);
    free(list);
}

int networks_equal(const lnrnn_description *a, const lnrnn_description *b)
{
#define SAME(field) (a->field == b->field)
    return SAME(cell) && SAME(act) && SAME(weights) && SAME(input_size) && SAME(hidden_size)
           && SAME(num_layers) && SAME(bias) && SAME(bidirectional) && SAME(reverse) && SAME(reset_after)
           && SAME(norm) && SAME(placement) && SAME(span) && SAME(cell_norm) && SAME(inner_bias) && SAME(eps)
           && SAME(max_steps) && SAME(steps) && SAME(overrun) && SAME(momentum) && SAME(zoneout[0])
           && SAME(zoneout[1]) && SAME(dropout) && SAME(num_heads) && SAME(proj_size) && SAME(gate_activation)
           && SAME(exp_forget) && SAME(bfloat16_states) && SAME(peepholes);
#undef SAME
}

static size_t floats_of(const lnrnn_array *a) { return a->shape[0] * (a->ndim == 2 ? a->shape[1] : 1); }

/* Returns 1 if `weights` are the values of the arrays (count), one after another. */
static int have_values(const lnrnn_array *arrays, size_t count, const float *weights)
{
    for (size_t k = 0; k < count; weights += floats_of(&arrays[k++]))
        if (memcmp(weights, arrays[k].data, floats_of(&arrays[k]) * sizeof *weights))
            return 0;
    return 1;
}

/* Returns memory with the values of the arrays (count), one after another, or NULL. */
static float *values_of(const lnrnn_array *arrays, size_t count)
{
    size_t floats = 0;
    for (size_t k = 0; k < count; k++)
        floats += floats_of(&arrays[k]);
    float *const memory = malloc(floats * sizeof *memory), *next = memory;
    for (size_t k = 0; k < count && memory; next += floats_of(&arrays[k++]))
        memcpy(next, arrays[k].data, floats_of(&arrays[k]) * sizeof *next);
    return memory;
}

lnrnn_status networks_add(network_list *list, const lnrnn_description *d, const lnrnn_array *arrays,
                          size_t count, lnrnn_network **network, char message[LNRNN_MESSAGE])
{
    for (size_t i = 0; i < list->count; i++) {
        const entry *const e = &list->entries[i];
        if (e->weights && networks_equal(&e->description, d) && have_values(arrays, count, e->weights)) {
            *network = lnrnn_network_retain(e->network);
            return LNRNN_OK;
        }
    }
    const lnrnn_status status = lnrnn_network_create(d, arrays, count, network, message);
    entry *const more = status ? NULL : realloc(list->entries, (list->count + 1) * sizeof *list->entries);
    if (more) {
        list->entries = more;
        more[list->count++] = (entry){*d, values_of(arrays, count), lnrnn_network_retain(*network)};
    }
    return status;
}
