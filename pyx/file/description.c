#include "file/description.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/floats.h"

lnrnn_status lnrnn_fail(char *message, lnrnn_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (message)
        vsnprintf(message, LNRNN_MESSAGE, format, arguments);
    va_end(arguments);
    for (char *at = message; message && *at; at++)
        *at = *at >= ' ' && *at <= '~' ? *at : '?';
    return status;
}

int lnrnn_place(const char *text, const char *names)
{
    const size_t length = strlen(text);
    for (int k = 0; (names = strchr(names, '\'')); k++) {
        const size_t n = strcspn(++names, "'");
        if (n == length && !memcmp(names, text, n))
            return k;
        names += n + 1;
    }
    return -1;
}

/* --- values --------------------------------------------------------------------------------------------- */

lnrnn_description lnrnn_describe(int cell, size_t input_size, size_t hidden_size)
{
    return (lnrnn_description){
        .cell = cell,
        .input_size = input_size,
        .hidden_size = hidden_size,
        .num_layers = 1,
        .bias = 1,
        .reset_after = 1,
        .num_heads = cell == LNRNN_SLSTM ? 4 : 1,
        .norm = LNRNN_NORM_LAYER,
        .placement = LNRNN_PLACEMENTS,
        .cell_norm = LNRNN_CELL_OUT,
        .eps = 1e-5,
        .momentum = 0.1,
    };
}

#define CHECK LNRNN_CHECK
#define CHECK_SIZE(d, name, most)                \
    CHECK((d)->name >= 1 && (d)->name <= (most), \
          #name " must be an integer of at least 1 and at most %d, got %zu", most, (d)->name)
#define CHECK_RATE(x, name) \
    CHECK((x) >= 0 && (x) < 1, name " must be a finite number of at least 0 and below 1, got %g", x)

/* The names of nonlinearities and placements in files, in the order of lnrnn.h. */
const char lnrnn_act_names[] = "one of 'tanh', 'relu', 'sigmoid', 'identity'";
const char lnrnn_placement_names[] = "one of 'joint', 'split', 'gate', 'input', 'output'";

/* The base 2 logarithm of the most elements of a weight matrix. WebAssembly's memory has 2 GiB, and packed
 * weights with padding take up to 32 bytes an element. */
enum { MOST_WEIGHTS = SIZE_MAX > UINT32_MAX ? 40 : 24 };

static int among(int value, int n) { return value >= 0 && value < n; }

lnrnn_status lnrnn_description_resolve(lnrnn_description *d, char message[LNRNN_MESSAGE])
{
    LNRNN_DEFAULT_FLOATS;
    CHECK(among(d->cell, LNRNN_CELLS) && among(d->act, LNRNN_ACT_IDENTITY + 1)
              && among(d->weights, LNRNN_WEIGHT_I8A8 + 1) && among(d->norm, LNRNN_NORMS)
              && among(d->placement, LNRNN_PLACEMENTS + 1) && among(d->span, LNRNN_SPAN_ALL + 1)
              && among(d->cell_norm, LNRNN_CELL_CARRY + 1) && among(d->overrun, LNRNN_OVERRUNS)
              && among(d->gate_activation, LNRNN_GATES_HARD_SIGMOID + 1),
          "cell, act, weights, norm, placement and other choices must be in lnrnn.h's enumerations, got %d, "
          "%d, %d, %d, %d, ..",
          d->cell, d->act, d->weights, d->norm, d->placement);
    CHECK_SIZE(d, input_size, INT32_MAX);
    CHECK_SIZE(d, hidden_size, INT32_MAX);
    CHECK_SIZE(d, num_layers, 1024);
    CHECK(!d->reverse || !d->bidirectional, "reverse must be False with bidirectional=True, got True");
    size_t H = d->hidden_size, widest = d->input_size > H ? d->input_size : H;
    CHECK((uint64_t)lnrnn_cell_table[d->cell].num_gates * H <= ((uint64_t)1 << MOST_WEIGHTS) / widest,
          "hidden_size must be such that a weight matrix has at most 2**%d elements, got %zu", MOST_WEIGHTS,
          H);
    CHECK_SIZE(d, num_heads, INT32_MAX);
    CHECK(H % d->num_heads == 0, "num_heads must be a divisor of hidden_size %zu, got %zu", H, d->num_heads);
    CHECK(d->num_heads == 1 || d->cell == LNRNN_LSTM || d->cell == LNRNN_GRU || d->cell == LNRNN_SLSTM,
          "num_heads must be 1 except in an LSTM, GRU or SLSTM, got %zu", d->num_heads);
    int lstm = d->cell == LNRNN_LSTM, slstm = d->cell == LNRNN_SLSTM;
    CHECK(lstm || !d->proj_size, "proj_size must be 0 except in an LSTM, got %zu", d->proj_size);
    CHECK(d->proj_size < H, "proj_size must be smaller than hidden_size %zu, got %zu", H, d->proj_size);
    CHECK(!d->proj_size || d->num_heads == 1, "proj_size must be 0 with several heads, got %zu",
          d->proj_size);
    int batch = d->norm == LNRNN_NORM_BATCH, rms = d->norm == LNRNN_NORM_RMS;
    int layer = d->norm == LNRNN_NORM_LAYER || rms;
    CHECK(!slstm || (!batch && !rms), "norm must be 'layer' or None in an SLSTM, got '%s'",
          rms ? "rms" : "batch");
    if (!layer || d->placement == LNRNN_PLACEMENTS)
        d->placement = lnrnn_cell_table[d->cell].placement;
    if (d->placement == LNRNN_GATE && d->cell == LNRNN_RNN)
        d->placement = LNRNN_JOINT;
    CHECK(d->placement != LNRNN_INPUT || d->cell == LNRNN_LIGRU,
          "placement must be 'split', 'joint' or 'gate' except in a LiGRU, got 'input'");
    CHECK(slstm == (d->placement == LNRNN_OUTPUT),
          slstm ? "placement must be 'output' in an SLSTM, got another"
                : "placement must be 'split', 'joint' or 'gate' except in an SLSTM, got 'output'");
    CHECK(!slstm || !d->inner_bias, "inner_bias must be False in an SLSTM, got True");
    CHECK(!layer || lstm || d->cell_norm != LNRNN_CELL_CARRY,
          "cell must be 'out' or None where there is no cell state, got 'carry'");
    CHECK(!layer || !d->span || (d->cell == LNRNN_GRU && d->placement == LNRNN_SPLIT),
          "span must be None except in a GRU with placement 'split', got 'all'");
    CHECK(!d->gate_activation || ((lstm || d->cell == LNRNN_GRU) && !layer && !batch),
          "gate_activation must be 'sigmoid' except in an LSTM or GRU without a norm, got 'hard_sigmoid'");
    CHECK(lstm || !d->peepholes, "peepholes must be False except in an LSTM, got True");
    CHECK(d->reset_after || d->cell == LNRNN_GRU, "reset_after must be True except in a GRU, got False");
    CHECK(d->reset_after || (d->placement == LNRNN_SPLIT && !(layer && d->span)),
          "reset_after must be True unless placement is 'split' and span is None, got False");
    d->cell_norm = !lstm || (!layer && !batch) ? LNRNN_CELL_NONE : batch ? LNRNN_CELL_OUT : d->cell_norm;
    d->inner_bias = layer && d->inner_bias;
    CHECK(isfinite(d->eps) && d->eps >= 0, "eps must be a finite number of at least 0, got %g", d->eps);
    CHECK((d->momentum >= 0 && d->momentum <= 1) || d->momentum == -1,
          "momentum must be a finite number of at least 0 and at most 1, got %g", d->momentum);
    if (d->max_steps)
        CHECK_SIZE(d, max_steps, INT32_MAX);
    d->steps = !batch ? 0 : d->max_steps ? d->max_steps : d->steps;
    CHECK(!slstm || (d->zoneout[0] == 0 && d->zoneout[1] == 0), "zoneout must be 0 in an SLSTM, got %g",
          d->zoneout[0]);
    if (!lstm)
        d->zoneout[1] = 0;
    CHECK(slstm || (!d->exp_forget && !d->bfloat16_states),
          "exp_forget and bfloat16_states must be 0 except in an SLSTM, got %d and %d", d->exp_forget,
          d->bfloat16_states);
    CHECK_RATE(d->zoneout[0], "zoneout");
    CHECK_RATE(d->zoneout[1], "zoneout");
    CHECK_RATE(d->dropout, "dropout");
    return LNRNN_OK;
}

/* --- arrays --------------------------------------------------------------------------------------------- */

/* Bits that say which networks have an array. */
enum { EVERY = 1, NO_NORM = 2, JOINT = 4, LAYER_SPLIT = 8, BATCH_SPLIT = 16, CELL = 32, INNER = 64 };
enum {
    BATCH = 128,
    BATCH_JOINT = 256,
    BATCH_CELL = 512,
    INPUT = 1024,
    BATCH_INPUT = 2048,
    PROJECTED = 4096,
    OUTPUT = 8192,
    PEEPHOLES = 16384
};
enum { SPLIT = LAYER_SPLIT | BATCH_SPLIT, TWO_BIASES = NO_NORM | LAYER_SPLIT };
/* The shapes, in this order: (G*H, D), (G*H, K), (P, H), (G*H), (H), (3*H), (steps), (steps, G*H),
 * (steps, H). There are D inputs and G gates of H units. h has P values, K = P / num_heads for each head. */
enum { BY_INPUTS, BY_HEAD, PROJECTION, GATES, UNITS, PEEPHOLE, COUNTS, STEP_GATES, STEP_UNITS };

/* The role of an array of the norm at a site of the cell (description.h). */
#define AT(site, use) (LNRNN_AT_SITES + 4 * LNRNN_SITE_##site + LNRNN_##use)

/* The arrays of one layer in one direction. All names, shapes and sites come from this table. */
static const struct {
    const char *name;
    int of, shape, role;
} ARRAYS[] = {
    {"weight_ih", EVERY, BY_INPUTS, LNRNN_WEIGHT_IH},
    {"weight_hh", EVERY, BY_HEAD, LNRNN_WEIGHT_HH},
    {"weight_hr", PROJECTED, PROJECTION, LNRNN_WEIGHT_HR},
    {"peephole", PEEPHOLES, PEEPHOLE, LNRNN_PEEPHOLE},
    {"gain", JOINT, GATES, AT(HIDDEN, GAIN)},
    {"gain_ih", SPLIT | INPUT, GATES, AT(INPUT, GAIN)},
    {"gain_hh", SPLIT, GATES, AT(HIDDEN, GAIN)},
    {"bias", JOINT, GATES, AT(HIDDEN, BIAS)},
    {"bias", BATCH_SPLIT, GATES, AT(INPUT, BIAS)},
    {"bias_ih", TWO_BIASES | INPUT, GATES, AT(INPUT, BIAS)},
    {"bias_hh", TWO_BIASES, GATES, AT(HIDDEN, BIAS)},
    {"gain_c", CELL, UNITS, AT(CELL, GAIN)},
    {"bias_c", CELL, UNITS, AT(CELL, BIAS)},
    {"gain_y", OUTPUT, UNITS, AT(CELL, GAIN)},
    {"bias_y", OUTPUT, UNITS, AT(CELL, BIAS)},
    {"inner_bias_ih", INNER, GATES, LNRNN_INNER_IH},
    {"inner_bias_hh", INNER, GATES, LNRNN_INNER_HH},
    {"running_mean", BATCH_JOINT, STEP_GATES, AT(HIDDEN, MEAN)},
    {"running_var", BATCH_JOINT, STEP_GATES, AT(HIDDEN, VARIANCE)},
    {"running_mean_ih", BATCH_SPLIT | BATCH_INPUT, STEP_GATES, AT(INPUT, MEAN)},
    {"running_var_ih", BATCH_SPLIT | BATCH_INPUT, STEP_GATES, AT(INPUT, VARIANCE)},
    {"running_mean_hh", BATCH_SPLIT, STEP_GATES, AT(HIDDEN, MEAN)},
    {"running_var_hh", BATCH_SPLIT, STEP_GATES, AT(HIDDEN, VARIANCE)},
    {"running_mean_c", BATCH_CELL, STEP_UNITS, AT(CELL, MEAN)},
    {"running_var_c", BATCH_CELL, STEP_UNITS, AT(CELL, VARIANCE)},
    {"count", BATCH, COUNTS, LNRNN_COUNT},
};
enum { ROWS = sizeof ARRAYS / sizeof *ARRAYS };

/* Writes to `rows` the indices in ARRAYS of the arrays of a layer in one direction. Returns their number. */
static size_t rows_of(const lnrnn_description *d, int rows[ROWS])
{
    const int batch = d->norm == LNRNN_NORM_BATCH, split = d->placement == LNRNN_SPLIT,
              input = d->placement == LNRNN_INPUT, output = d->placement == LNRNN_OUTPUT;
    const int sums = d->norm == LNRNN_NORM_NONE || output ? NO_NORM
                     : input                              ? INPUT
                     : !split                             ? JOINT
                     : batch                              ? BATCH_SPLIT
                                                          : LAYER_SPLIT;
    const int is = EVERY | sums | (d->cell_norm ? CELL : 0) | (d->inner_bias ? INNER : 0)
                   | (d->proj_size ? PROJECTED : 0) | (d->peepholes ? PEEPHOLES : 0)
                   | (output && d->norm == LNRNN_NORM_LAYER ? OUTPUT : 0)
                   | (batch ? BATCH
                                  | (split   ? 0
                                     : input ? BATCH_INPUT
                                             : BATCH_JOINT)
                                  | (d->cell_norm ? BATCH_CELL : 0)
                            : 0);
    size_t n = 0;
    for (int k = 0; k < ROWS; k++)
        if (ARRAYS[k].of & is && (d->bias || strncmp(ARRAYS[k].name, "bias", 4)))
            rows[n++] = k;
    return n;
}

size_t lnrnn_description_arrays(const lnrnn_description *d)
{
    int rows[ROWS];
    return rows_of(d, rows) * d->num_layers * (d->bidirectional ? 2 : 1);
}

lnrnn_array lnrnn_description_array(const lnrnn_description *d, size_t k, char name[LNRNN_ARRAY_NAME])
{
    int rows[ROWS];
    const size_t n = rows_of(d, rows), directions = d->bidirectional ? 2 : 1, place = k / n;
    const size_t H = d->hidden_size, GH = lnrnn_cell_table[d->cell].num_gates * H,
                 P = d->proj_size ? d->proj_size : H, D = place < directions ? d->input_size : directions * P;
    const int row = rows[k % n], shape = ARRAYS[row].shape;
    snprintf(name, LNRNN_ARRAY_NAME, "%s_l%zu%s", ARRAYS[row].name, place / directions,
             place % directions ? "_reverse" : "");
    return (lnrnn_array){
        .name = name,
        .dtype = shape == COUNTS  ? LNRNN_ARRAY_I64
                 : shape > COUNTS ? LNRNN_ARRAY_F64
                                  : LNRNN_ARRAY_F32,
        .ndim = shape >= GATES && shape <= COUNTS ? 1 : 2,
        .shape = {shape >= COUNTS       ? d->steps
                  : shape == PROJECTION ? P
                  : shape == UNITS      ? H
                  : shape == PEEPHOLE   ? 3 * H
                                        : GH,
                  shape == BY_INPUTS    ? D
                  : shape == BY_HEAD    ? P / d->num_heads
                  : shape == STEP_GATES ? GH
                                        : H},
    };
}

size_t lnrnn_description_roles(const lnrnn_description *d, int roles[LNRNN_ROLES])
{
    int rows[ROWS];
    const size_t n = rows_of(d, rows);
    for (size_t k = 0; k < n; k++)
        roles[k] = ARRAYS[rows[k]].role;
    return n;
}

size_t lnrnn_description_parameters(const lnrnn_description *d)
{
    int rows[ROWS];
    size_t n = rows_of(d, rows);
    while (ARRAYS[rows[n - 1]].shape >= COUNTS)
        n--;
    return n;
}

/* Writes dtype and shape of an array to `buffer`, such as "float32 (4, 3)". Returns `buffer`. */
static const char *shown(const lnrnn_array *array, char buffer[LNRNN_ARRAY_NAME])
{
    static const char *const dtypes[] = {"float32", "float64", "int64"};
    /* GCOVR_EXCL_BR_LINE: other dtypes are positive numbers */
    const int known = array->dtype >= 0 && array->dtype < LNRNN_ARRAY_OTHER;
    const char *const dtype = known ? dtypes[array->dtype] : "another dtype";
    if (array->ndim == 1)
        snprintf(buffer, LNRNN_ARRAY_NAME, "%s (%zu,)", dtype, array->shape[0]);
    else if (array->ndim == 2)
        snprintf(buffer, LNRNN_ARRAY_NAME, "%s (%zu, %zu)", dtype, array->shape[0], array->shape[1]);
    else
        snprintf(buffer, LNRNN_ARRAY_NAME, "%s with %zu axes", dtype, array->ndim);
    return buffer;
}

/* Returns the index of the array with this name, or the number of arrays if no array has this name. */
static size_t find(const lnrnn_description *d, const char *name)
{
    char other[LNRNN_ARRAY_NAME];
    const size_t arrays = lnrnn_description_arrays(d), each = arrays / d->num_layers;
    const char *const suffix = strstr(name, "_l");
    const size_t layer = suffix ? strtoul(suffix + 2, NULL, 10) : d->num_layers;
    for (size_t k = 0; k < each && layer < d->num_layers; k++)
        if (!strcmp(lnrnn_description_array(d, layer * each + k, other).name, name))
            return layer * each + k;
    return arrays;
}

lnrnn_status lnrnn_match_arrays(lnrnn_description *d, const lnrnn_array *arrays, size_t count,
                                const lnrnn_array ***used, char *message)
{
    char name[LNRNN_ARRAY_NAME], is[LNRNN_ARRAY_NAME], should[LNRNN_ARRAY_NAME];
    const size_t wanted = lnrnn_description_arrays(d), counts = find(d, "count_l0");
    const lnrnn_array **const at = *used = calloc(wanted, sizeof *at);
    const char *unknown = NULL;
    if (!at) /* GCOVR_EXCL_BR_LINE: no memory */
        return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory for the names of %zu arrays", wanted);
    for (size_t i = 0; i < count; i++) {
        CHECK(arrays[i].name, "arrays[%zu] must have a name", i);
        const size_t k = find(d, arrays[i].name);
        CHECK(k == wanted || !at[k], "arrays must have each name once, got %.60s twice", arrays[i].name);
        if (k < wanted)
            at[k] = &arrays[i];
        else
            unknown = arrays[i].name;
    }
    /* GCOVR_EXCL_BR_LINE: max_steps is at least 1 in a file without count */
    if (counts < wanted && at[counts] && at[counts]->ndim == 1 && !d->max_steps)
        d->steps = at[counts]->shape[0];
    CHECK(d->steps <= INT32_MAX, "count_l0 must have at most %d steps, got %zu", INT32_MAX, d->steps);
    for (size_t k = 0; k < wanted; k++) {
        const lnrnn_array like = lnrnn_description_array(d, k, name);
        CHECK(at[k], "%s must be %s, and is missing", name, shown(&like, should));
        CHECK(at[k]->dtype == like.dtype && at[k]->ndim == like.ndim
                  && !memcmp(at[k]->shape, like.shape, like.ndim * sizeof *like.shape),
              "%s must be %s, got %s", name, shown(&like, should), shown(at[k], is));
    }
    CHECK(!unknown, "%.60s is not an array of this network", unknown);
    return LNRNN_OK;
}

lnrnn_status lnrnn_check_values(const lnrnn_description *d, const lnrnn_array *const *used, char *message)
{
    int roles[LNRNN_ROLES];
    const size_t arrays = lnrnn_description_arrays(d), counts = find(d, "count_l0"),
                 each = lnrnn_description_roles(d, roles);
    for (size_t k = 0; k < arrays; k++) {
        const lnrnn_array *const array = used[k];
        const int role = roles[k % each];
        CHECK(array->data || !array->shape[0], "%s must have data, got NULL", array->name);
        const int variances = role >= LNRNN_AT_SITES && (role - LNRNN_AT_SITES) % 4 == LNRNN_VARIANCE;
        for (size_t i = 0; variances && i < d->steps * array->shape[1]; i++)
            CHECK(!(((const double *)array->data)[i] < 0), "%s must be at least 0, got %g", array->name,
                  ((const double *)array->data)[i]);
        const int64_t *const own = array->data, *const first = used[counts < arrays ? counts : k]->data;
        for (size_t t = 0; role == LNRNN_COUNT && t < d->steps; t++) {
            CHECK(own[t] >= 0 && own[t] <= (int64_t)1 << 53,
                  "%s must be at least 0 and at most 2**53, got %lld", array->name, (long long)own[t]);
            CHECK(!t || own[t] <= own[t - 1], "%s must not rise from step to step, got %lld at step %zu",
                  array->name, (long long)own[t], t);
            CHECK(own[t] == first[t], "%s must equal count_l0, got %lld at step %zu", array->name,
                  (long long)own[t], t);
        }
    }
    return LNRNN_OK;
}
