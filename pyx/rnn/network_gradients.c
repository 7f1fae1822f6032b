/* Training of a network: weights for back-propagation, gradients of parameters, and the arrays of a call. A
 * line is one layer in one direction. */
#include <stdlib.h>
#include <string.h>

#include "file/description.h"
#include "norm/statistics.h"
#include "rnn/network.h"
#include "runtime/result_memory.h"

static size_t line_count(const lnrnn_network *n) { return n->layers * n->directions; }

/* Returns the number of weights of a line, which come first: weight_ih, weight_hh and, with a projection,
 * weight_hr. */
static size_t weight_count(const lnrnn_network *n) { return n->config->projection ? 3 : 2; }

/* w (parts, n, k). Packs the transpose of each part at memory + *bytes, and adds the size to *bytes. Returns
 * the address. If memory is NULL, only counts the bytes. */
static const uint32_t *transposed(const float *w, size_t parts, size_t n, size_t k, char *memory,
                                  size_t *bytes)
{
    uint32_t *const words = memory ? (uint32_t *)(void *)(memory + *bytes) : NULL;
    const size_t size = lnrnn_packed_size(LNRNN_WEIGHT_F32, k, n);
    *bytes += lnrnn_whole_lines(parts * size * sizeof(uint32_t));
    for (size_t part = 0; words && part < parts; part++)
        lnrnn_pack(LNRNN_WEIGHT_F32, k, n, w + part * n * k, 1, (ptrdiff_t)k, words + part * size);
    return words;
}

/* Packs the transposed weights of all lines into memory, unless memory is NULL. Returns their number of
 * bytes. */
static size_t write_weights(const lnrnn_network *n, const lnrnn_array *arrays, int inputs, char *memory)
{
    int roles[LNRNN_ROLES];
    const size_t count = lnrnn_description_roles(&n->description, roles);
    lnrnn_backward_weights *const weights = (lnrnn_backward_weights *)(void *)memory;
    size_t bytes = lnrnn_whole_lines(line_count(n) * sizeof *weights);
    for (size_t k = 0; k < line_count(n); k++) {
        const lnrnn_rnn_config *const c = &n->config[k];
        const lnrnn_array *const own = arrays + k * count;
        lnrnn_backward_weights w = {0};
        const size_t parts = c->num_heads > 1 || c->reset_before ? c->num_gates * c->num_heads : 1;
        w.w_hh_t = transposed(own[1].data, parts, c->outputs / parts, c->head_units, memory, &bytes);
        if (c->projection)
            w.w_hr_t = transposed(own[2].data, 1, c->P, c->H, memory, &bytes);
        if (inputs || k >= n->directions)
            w.w_ih_t = transposed(own[0].data, 1, c->outputs, c->D, memory, &bytes);
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
    const size_t bytes = write_weights(n, arrays, inputs, NULL);
    char *const memory = lnrnn_aligned_malloc(bytes);
    if (!memory) /* GCOVR_EXCL_BR_LINE: no memory */
        return NULL;
    write_weights(n, arrays, inputs, memory);
    /* GCOVR_EXCL_BR_LINE: only if two threads are equally fast */
    if (__atomic_compare_exchange_n(&n->backward[inputs], &there, (lnrnn_backward_weights *)(void *)memory, 0,
                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        __atomic_add_fetch(&n->weight_bytes, bytes, __ATOMIC_RELAXED);
        return (lnrnn_backward_weights *)(void *)memory;
    }
    lnrnn_free_aligned(memory); /* another thread was faster: use its weights */
    return there;
}

/* --- gradients ------------------------------------------------------------------------------------------ */

/* Returns the array for the sums of the gradient of a gain, bias or peephole with this role, and sets *width
 * to its length. Two biases that are added to the same sum share one array. */
static double **sum_of(lnrnn_rnn_gradients *g, const lnrnn_rnn_config *c, int role, size_t *width)
{
    *width = c->outputs;
    if (role == LNRNN_PEEPHOLE) {
        *width = 3 * c->H;
        return &g->peephole;
    }
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
        size_t values = 2 * n->config[k].outputs + 3 * n->config[k].H;
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
        *line = (lnrnn_rnn_gradients){.w_ih_t = w->w_ih_t, .w_hh_t = w->w_hh_t, .w_hr_t = w->w_hr_t};
        line->gw_ih = g->parameters[k * count], line->gw_hh = g->parameters[k * count + 1];
        line->gw_hr = n->config[k].projection ? g->parameters[k * count + 2] : NULL;
        line->add = g->add;
        for (size_t i = weight_count(n); i < count; i++) {
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
        for (size_t i = weight_count(n); i < count; i++) {
            size_t width;
            double **const sum = sum_of(&g->line[k], &n->config[k], roles[i], &width);
            lnrnn_write_doubles(width, *sum, g->parameters[k * count + i], 0, g->add);
        }
}

/* --- arrays of training --------------------------------------------------------------------------------- */

/* Indices of the arrays of a line, up to its statistics, and of the arrays of a layer. */
enum { TAPE, MASK_STATE, MASK_H, MASK_C, BEFORE_STATISTICS };
enum { Y, DROPPED, KEPT, SCALE, FACTORS, OF_LAYER };

size_t lnrnn_training_begin(lnrnn_network_call *n)
{
    int roles[LNRNN_ROLES];
    const size_t lines = line_count(n->network);
    memset(n->line, 0, lines * sizeof *n->line);
    n->training = 1;
    n->line_arrays = BEFORE_STATISTICS + lnrnn_description_roles(&n->network->description, roles)
                     - lnrnn_description_parameters(&n->network->description);
    return lines * n->line_arrays + n->network->layers * OF_LAYER;
}

/* Returns the k-th array of batch norm's statistics of a line. */
static lnrnn_training_array statistic(const lnrnn_network_call *n, size_t line, size_t k)
{
    const lnrnn_description *const d = &n->network->description;
    lnrnn_line_training *const training = &n->line[line].training;
    const size_t T = n->B ? (size_t)n->rows->length : 0;
    int roles[LNRNN_ROLES];
    lnrnn_description_roles(d, roles);
    const int role = roles[lnrnn_description_parameters(d) + k], site = (role - LNRNN_AT_SITES) / 4;
    if (role == LNRNN_COUNT)
        return (lnrnn_training_array){(void **)&training->count, LNRNN_ARRAY_I64, 1, 1, T};
    lnrnn_site_statistics *const own = &training->statistics[site];
    void **const to = (void **)((role - LNRNN_AT_SITES) % 4 == LNRNN_MEAN ? &own->mean : &own->var);
    return (lnrnn_training_array){to, LNRNN_ARRAY_F64, 1, 1, T * n->network->config[line].site[site].width};
}

lnrnn_training_array lnrnn_training_array_of(const lnrnn_network_call *n, size_t k, int backward)
{
    const lnrnn_network *const net = n->network;
    const size_t of_line = n->line_arrays, at_layers = of_line * line_count(net),
                 row = net->directions * net->h_width, all = n->steps * n->sequences;
    if (k < at_layers && k % of_line >= BEFORE_STATISTICS)
        return statistic(n, k / of_line, k % of_line - BEFORE_STATISTICS);
    if (k < at_layers) {
        const lnrnn_rnn_config *const c = &net->config[k / of_line];
        lnrnn_line_training *const line = &n->line[k / of_line].training;
        lnrnn_rnn_masks *const masks = &line->masks;
        const int taped = line->tape != NULL;
        masks->sequences = n->sequences;
        return (const lnrnn_training_array[]){
            [TAPE] = {(void **)&line->tape, LNRNN_ARRAY_F32, 1, backward,
                      lnrnn_tape_width(c) * lnrnn_active_steps(n)},
            [MASK_STATE] = {(void **)&masks->state, LNRNN_ARRAY_F32, 0, 0, n->sequences * c->P},
            [MASK_H] = {(void **)&masks->h, LNRNN_ARRAY_OTHER, 0, taped && c->zoneout_h != 0, all * c->P},
            [MASK_C] = {(void **)&masks->c, LNRNN_ARRAY_OTHER, 0, taped && c->zoneout_c != 0, all * c->C},
        }[k % of_line];
    }
    const size_t index = (k - at_layers) / OF_LAYER;
    lnrnn_layer_training *const layer = &n->line[index * net->directions].layer;
    const int last = index + 1 == net->layers, wanted = n->line->layer.y || backward;
    return (const lnrnn_training_array[]){
        [Y] = {(void **)&layer->y, LNRNN_ARRAY_F32, 1, wanted && !last, all * row},
        [DROPPED] = {(void **)&layer->dropped, LNRNN_ARRAY_F32, 1, 0, all * row},
        [KEPT] = {(void **)&layer->kept, LNRNN_ARRAY_OTHER, 0, 0, all * row},
        [SCALE] = {(void **)&layer->scale, LNRNN_ARRAY_F32, 0, layer->kept != NULL, 1},
        [FACTORS] = {(void **)&layer->factors, LNRNN_ARRAY_F32, 0, 0, n->sequences * row},
    }[(k - at_layers) % OF_LAYER];
}
