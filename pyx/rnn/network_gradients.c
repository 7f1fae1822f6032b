/* Training of a network: its weights as back-propagation reads them, where the gradients of its parameters go,
 * and statistics of batch norm. */
#include <stdlib.h>
#include <string.h>

#include "file/description.h"
#include "norm/statistics.h"
#include "rnn/network.h"

static size_t line_count(const lnrnn_network *n) { return n->layers * n->directions; }

/* w (n, k) -> its transpose, packed, at memory + *bytes, which it adds to; NULL if w is read as it stands.
 * Without memory it only counts. */
static const uint32_t *transposed(const float *w, size_t n, size_t k, char *memory, size_t *bytes)
{
    if (lnrnn_reads_lines(w, k))
        return NULL;
    uint32_t *const words = memory ? (uint32_t *)(void *)(memory + *bytes) : NULL;
    *bytes += lnrnn_whole_lines(lnrnn_packed_size(LNRNN_WEIGHT_F32, k, n) * sizeof(uint32_t));
    if (words)
        lnrnn_pack(LNRNN_WEIGHT_F32, k, n, w, 1, (ptrdiff_t)k, words);
    return words;
}

/* Writes the weights of all lines to memory, if it is not NULL. -> bytes. */
static size_t write_weights(const lnrnn_network *n, const lnrnn_array *arrays, int inputs, char *memory)
{
    int roles[LNRNN_ROLES];
    const size_t count = lnrnn_description_roles(&n->description, roles);
    lnrnn_backward_weights *const weights = (lnrnn_backward_weights *)(void *)memory;
    size_t bytes = lnrnn_whole_lines(line_count(n) * sizeof *weights);
    for (size_t k = 0; k < line_count(n); k++) {
        const lnrnn_rnn_config *const c = &n->config[k];
        lnrnn_backward_weights w = {.w_ih = arrays[k * count].data, .w_hh = arrays[k * count + 1].data};
        w.w_hh_t = transposed(w.w_hh, c->outputs, c->H, memory, &bytes);
        if (inputs || k >= n->directions)
            w.w_ih_t = transposed(w.w_ih, c->outputs, c->D, memory, &bytes);
        if (memory)
            weights[k] = w;
    }
    return bytes;
}

const lnrnn_backward_weights *lnrnn_network_backward_weights(lnrnn_network *n, const lnrnn_array *arrays,
                                                             int inputs)
{
    lnrnn_backward_weights *there = NULL;
    for (int k = inputs; k < 2 && !there; k++)
        there = __atomic_load_n(&n->backward[k], __ATOMIC_ACQUIRE);
    if (there)
        return there;
    char *const memory = aligned_alloc(64, write_weights(n, arrays, inputs, NULL));
    if (!memory)
        return NULL;
    write_weights(n, arrays, inputs, memory);
    if (__atomic_compare_exchange_n(&n->backward[inputs], &there, (lnrnn_backward_weights *)(void *)memory, 0,
                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return (lnrnn_backward_weights *)(void *)memory;
    free(memory); /* another thread was first */
    return there;
}

/* --- gradients ------------------------------------------------------------------------------------------ */

/* The sum of the gradient of a gain or a bias, by its use, and its width. Two biases of one sum have one. */
static double **sum_of(lnrnn_rnn_gradients *g, const lnrnn_rnn_config *c, int role, size_t *width)
{
    *width = c->outputs;
    if (role < LNRNN_AT_SITES)
        return &g->inner[role == LNRNN_INNER_HH && c->inner_hh];
    int site = (role - LNRNN_AT_SITES) / 4;
    if (site == LNRNN_SITE_INPUT && !c->input_side)
        site = LNRNN_SITE_HIDDEN;
    *width = c->site[site].width;
    return (role - LNRNN_AT_SITES) % 4 == LNRNN_GAIN ? &g->site[site].gain : &g->site[site].bias;
}

size_t lnrnn_gradient_floats(const lnrnn_network *n)
{
    size_t bytes = line_count(n) * sizeof(lnrnn_rnn_gradients);
    for (size_t k = 0; k < line_count(n); k++) {
        size_t values = 2 * n->config[k].outputs;
        for (int site = 0; site < LNRNN_SITES; site++)
            values += 2 * n->config[k].site[site].width;
        bytes += values * sizeof(double);
    }
    return lnrnn_whole_lines(bytes) / sizeof(float);
}

void lnrnn_point_parameters(const lnrnn_network *n, lnrnn_network_gradients *g)
{
    int roles[LNRNN_ROLES];
    lnrnn_description_roles(&n->description, roles);
    const size_t count = lnrnn_description_parameters(&n->description);
    double *next = (double *)(void *)(g->line + line_count(n));
    for (size_t k = 0; k < line_count(n); k++) {
        const lnrnn_backward_weights *const w = &g->weights[k];
        lnrnn_rnn_gradients *const line = &g->line[k];
        *line =
            (lnrnn_rnn_gradients){.w_ih_t = w->w_ih_t, .w_hh_t = w->w_hh_t, .w_ih = w->w_ih, .w_hh = w->w_hh};
        line->gw_ih = g->parameters[k * count], line->gw_hh = g->parameters[k * count + 1];
        line->add = g->add;
        for (size_t i = 2; i < count; i++) {
            size_t width;
            double **const sum = sum_of(line, &n->config[k], roles[i], &width);
            if (!*sum)
                *sum = next, next += width;
        }
    }
}

void lnrnn_write_parameters(const lnrnn_network *n, const lnrnn_network_gradients *g)
{
    int roles[LNRNN_ROLES];
    lnrnn_description_roles(&n->description, roles);
    const size_t count = lnrnn_description_parameters(&n->description);
    for (size_t k = 0; k < line_count(n); k++)
        for (size_t i = 2; i < count; i++) {
            size_t width;
            double **const sum = sum_of(&g->line[k], &n->config[k], roles[i], &width);
            lnrnn_write_doubles(width, *sum, g->parameters[k * count + i], 0, g->add);
        }
}

void **lnrnn_statistic_of(lnrnn_line_training *training, int role)
{
    if (role == LNRNN_COUNT)
        return (void **)&training->count;
    lnrnn_site_statistics *const site = &training->statistics[(role - LNRNN_AT_SITES) / 4];
    return (void **)((role - LNRNN_AT_SITES) % 4 == LNRNN_MEAN ? &site->mean : &site->var);
}
