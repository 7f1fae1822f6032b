/* Creates the network of a step of a cell from the constants of its nodes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/cells.h"

/* Returns 1 if a constant of this name is not 0. */
static int has_numbers(const step *s, const char *start)
{
    for (int k = 0; k < CONSTANTS; k++)
        for (int i = 0; i < EQUATIONS && !strncmp(constant_name(k), start, strlen(start)); i++)
            for (const part *p = s->constants[k][i]; p; p = p->next)
                for (size_t j = 0; j < p->vector.n; j++)
                    if (p->vector.a[j] != 0)
                        return 1;
    return 0;
}

/* Returns the shortest decimal number that is eps as float32: 1e-05, not the nearest float32. */
static double shortest(double eps)
{
    for (int digits = 1; digits < 9; digits++) {
        char text[32];
        snprintf(text, sizeof text, "%.*g", digits, eps);
        const double read = strtod(text, NULL);
        if ((float)read == (float)eps)
            return read;
    }
    return eps;
}

int step_describe(const step *s, int weights, lnrnn_description *d)
{
    static const int activations[] = {
        [ATOM_TANH] = LNRNN_ACT_TANH, [ATOM_RELU] = LNRNN_ACT_RELU, [ATOM_SIGMOID] = LNRNN_ACT_SIGMOID};
    const pattern *const p = s->pattern;
    char message[LNRNN_MESSAGE];
    *d = lnrnn_describe(p->cell, s->input_size, s->units);
    d->weights = weights;
    d->bias = has_numbers(s, "bias");
    d->reset_after = p->reset_after;
    d->proj_size = s->state_size == s->units ? 0 : s->state_size;
    d->norm = p->placement < 0 ? LNRNN_NORM_NONE : LNRNN_NORM_LAYER;
    if (p->placement >= 0) {
        d->placement = p->placement, d->span = p->span, d->cell_norm = p->cell_norm;
        d->inner_bias = has_numbers(s, "inner"), d->eps = shortest(s->eps);
    }
    if (s->functions[FUNCTION_F])
        d->act = activations[s->functions[FUNCTION_F]];
    if (s->functions[FUNCTION_SIGMA] == ATOM_HARD_SIGMOID)
        d->gate_activation = LNRNN_GATES_HARD_SIGMOID;
    const int projects = s->constants[CONSTANT_WEIGHT_HR][EQUATION_H] != NULL;
    return projects == (d->proj_size != 0) && s->eps >= 0 && !lnrnn_description_resolve(d, message);
}

/* Writes rows of a matrix (n, columns). */
static void rows_of(const part *p, size_t n, int sign, float *to)
{
    const matrix *const m = &p->matrix;
    const float *const data = m->of->constant.data;
    const size_t stride = (size_t)m->of->constant.shape[1];
    for (size_t i = 0; i < n; i++) {
        const double scale = sign * p->vector.a[p->vector.n == 1 ? 0 : i];
        for (size_t j = 0; j < m->columns; j++) {
            const size_t row = m->row + i, column = m->column + j;
            *to++ = (float)(data[m->is_transposed ? column * stride + row : row * stride + column] * scale);
        }
    }
}

/* Writes a gain, which is 1 if left out, or the sum of biases (n). */
static void vector_of(const part *p, size_t n, int is_gain, int sign, float *to)
{
    for (size_t i = 0; i < n; i++) {
        double total = is_gain && !p ? 1 : 0;
        for (const part *each = p; each; each = each->next)
            total += each->vector.a[each->vector.n == 1 ? 0 : i];
        to[i] = (float)(sign * total);
    }
}

/* Writes constant k, of n numbers, with lnrnn's order of gates. */
static void write_constant(const step *s, int k, size_t n, float *to)
{
    const pattern *const p = s->pattern;
    const char *const name = constant_name(k);
    const int is_gain = !strncmp(name, "gain", 4);
    if (k == CONSTANT_WEIGHT_HR) {
        rows_of(s->constants[k][EQUATION_H], s->state_size, 1, to);
        return;
    }
    if (k == CONSTANT_GAIN_C || k == CONSTANT_BIAS_C) {
        const part *found = NULL;
        for (int i = 0; i < EQUATIONS && !found; i++)
            found = s->constants[k][i];
        vector_of(found, n, is_gain, 1, to);
        return;
    }
    for (int i = 0; i < p->gate_count; i++, to += n / (size_t)p->gate_count) {
        const int gate = p->gates[i], of_x = k == CONSTANT_WEIGHT_IH;
        const part *const given = s->constants[k][gate];
        int sign = gate == p->negated ? -1 : 1;
        if (of_x || k == CONSTANT_WEIGHT_HH) {
            const int gain = of_x ? CONSTANT_GAIN_IH : CONSTANT_GAIN_HH;
            if (s->constants[CONSTANT_GAIN][gate] || s->constants[gain][gate])
                sign = 1;
            rows_of(given, s->units, sign, to);
        } else
            vector_of(given, s->units, is_gain, strncmp(name, "inner", 5) ? sign : 1, to);
    }
}

lnrnn_status step_network(const step *s, const lnrnn_description *d, network_list *list,
                          lnrnn_network **network, char message[LNRNN_MESSAGE])
{
    enum { MOST = 24 };
    char names[MOST][LNRNN_ARRAY_NAME];
    lnrnn_array arrays[MOST];
    size_t sizes[MOST], total = 0;
    const size_t count = lnrnn_description_arrays(d);
    for (size_t k = 0; k < count && k < MOST; k++) {
        arrays[k] = lnrnn_description_array(d, k, names[k]);
        arrays[k].name = names[k];
        sizes[k] = 1;
        for (size_t i = 0; i < arrays[k].ndim; i++)
            sizes[k] *= arrays[k].shape[i];
        total += sizes[k];
    }
    float *const memory = count > MOST ? NULL : malloc(total * sizeof *memory), *next = memory;
    if (!memory) {
        snprintf(message, LNRNN_MESSAGE, "no memory for the weights");
        return LNRNN_NO_MEMORY;
    }
    for (size_t k = 0; k < count; k++, next += sizes[k - 1]) {
        int constant = 0;
        const size_t length = strcspn(names[k], "0") - 2; /* without _l0 */
        while (constant < CONSTANTS
               && (strlen(constant_name(constant)) != length
                   || strncmp(constant_name(constant), names[k], length)))
            constant++;
        if (constant == CONSTANTS) {
            free(memory);
            snprintf(message, LNRNN_MESSAGE, "no pattern has %.60s", names[k]);
            return LNRNN_INVALID;
        }
        write_constant(s, constant, sizes[k], next);
        arrays[k].data = next, arrays[k].dtype = LNRNN_ARRAY_F32;
    }
    return networks_add(list, d, arrays, count, memory, total, network, message);
}
