/* Creates the networks of a session's nodes. Nodes with equal weights have one network. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/plugin.h"

/* --- one network for equal weights ---------------------------------------------------------------------- */

typedef struct {
    lnrnn_description description;
    float *weights; /* (floats), NULL after networks_close */
    size_t floats;
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
           && SAME(exp_forget) && SAME(bfloat16_states);
#undef SAME
}

lnrnn_status networks_add(network_list *list, const lnrnn_description *d, const lnrnn_array *arrays,
                          size_t count, float *weights, size_t floats, lnrnn_network **network,
                          char message[LNRNN_MESSAGE])
{
    *network = NULL;
    for (size_t i = 0; i < list->count; i++) {
        const entry *const e = &list->entries[i];
        if (e->weights && e->floats == floats && networks_equal(&e->description, d)
            && !memcmp(e->weights, weights, floats * sizeof *weights)) {
            free(weights);
            *network = lnrnn_network_retain(e->network);
            return LNRNN_OK;
        }
    }
    const lnrnn_status status = lnrnn_network_create(d, arrays, count, network, message);
    entry *const more = status ? NULL : realloc(list->entries, (list->count + 1) * sizeof *list->entries);
    if (more) {
        list->entries = more;
        more[list->count++] = (entry){*d, weights, floats, lnrnn_network_retain(*network)};
    } else
        free(weights);
    return status;
}

/* --- the network of a node ------------------------------------------------------------------------------ */

/* Of each cell: at each place of lnrnn's order of gates, the gate of ONNX. The gates of an LSTM are i, o, f,
 * c in ONNX, and i, f, g, o in lnrnn. Those of a GRU are z, r, h in ONNX, and r, z, n in lnrnn. */
static const struct {
    size_t gates, onnx_gate[4];
} ORDERS[] = {[LNRNN_RNN] = {1, {0}}, [LNRNN_LSTM] = {4, {0, 2, 3, 1}}, [LNRNN_GRU] = {3, {1, 0, 2}}};

/* Returns the place of the number of output o of direction d in a scale or zero point. */
static size_t of_column(size_t columns, size_t d, size_t o) { return columns == 1 ? d : d * columns + o; }

int networks_integer(const quantized_weight *q, const size_t shape[3], size_t d, size_t o, size_t i)
{
    const size_t at = (d * shape[2] + i) * shape[1] + o, zero = of_column(q->zero_columns, d, o);
    if (q->type == ORT_UINT8)
        return ((const uint8_t *)q->data)[at] - ((const uint8_t *)q->zero)[zero];
    return ((const int8_t *)q->data)[at] - ((const int8_t *)q->zero)[zero];
}

/* Writes W (k = 0), R (1), or the biases of W (2) and R (3) of direction d to target (G * H, n), with lnrnn's
 * order of gates. */
static void reorder(const recurrent_node *read, size_t d, int k, size_t n, float *target)
{
    const size_t G = ORDERS[read->description.cell].gates, H = read->description.hidden_size,
                 shape[3] = {read->directions, G * H, n};
    const quantized_weight *const q = k < 2 && read->quantized[k].data ? &read->quantized[k] : NULL;
    const float *const source = q       ? NULL
                                : k < 2 ? read->weight[W + k] + d * G * H * n
                                        : read->weight[B] + (2 * d + (size_t)k - 2) * G * H;
    for (size_t g = 0; g < G; g++) {
        const size_t from = ORDERS[read->description.cell].onnx_gate[g] * H;
        const double factor = g == 2 ? 1 : read->gate_factor; /* the candidate of LSTM and GRU */
        if (source && factor == 1) {
            memcpy(target, source + from * n, H * n * sizeof *target);
            target += H * n;
            continue;
        }
        for (size_t i = 0; i < H; i++)
            for (size_t j = 0; j < n; j++) {
                const size_t o = from + i;
                const double w = q ? networks_integer(q, shape, d, o, j)
                                         * (double)q->scale[of_column(q->scale_columns, d, o)]
                                   : (double)source[o * n + j];
                *target++ = (float)(w * factor);
            }
    }
}

lnrnn_status networks_of_node(network_list *list, const recurrent_node *read, lnrnn_network **network,
                              char message[LNRNN_MESSAGE])
{
    static const char *const names[2][4] = {
        {"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"},
        {"weight_ih_l0_reverse", "weight_hh_l0_reverse", "bias_ih_l0_reverse", "bias_hh_l0_reverse"}};
    const size_t H = read->description.hidden_size, GH = ORDERS[read->description.cell].gates * H,
                 widths[4] = {read->description.input_size, H, 1, 1};
    const int each = read->weight[B] ? 4 : 2;
    const size_t floats = read->directions * GH * (widths[0] + H + (each == 4 ? 2 : 0));
    float *const memory = malloc(floats * sizeof *memory), *next = memory;
    lnrnn_array arrays[8];
    size_t n = 0;
    *network = NULL;
    if (!memory) {
        snprintf(message, LNRNN_MESSAGE, "no memory for the weights");
        return LNRNN_NO_MEMORY;
    }
    for (size_t d = 0; d < read->directions; d++)
        for (int k = 0; k < each; k++) {
            reorder(read, d, k, widths[k], next);
            arrays[n++] = (lnrnn_array){.name = names[d][k],
                                        .dtype = LNRNN_ARRAY_F32,
                                        .ndim = k < 2 ? 2 : 1,
                                        .shape = {GH, widths[k]},
                                        .data = next};
            next += GH * widths[k];
        }
    return networks_add(list, &read->description, arrays, n, memory, floats, network, message);
}
