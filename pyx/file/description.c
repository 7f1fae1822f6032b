#include "file/description.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lnrnn.h"
#include "runtime/floats.h"

static const size_t NUM_GATES[] = {[LNRNN_RNN] = 1, [LNRNN_LSTM] = 4, [LNRNN_GRU] = 3};

lnrnn_description lnrnn_describe(int cell, size_t input_size, size_t hidden_size)
{
    return (lnrnn_description){.cell = cell,
                               .input_size = input_size,
                               .hidden_size = hidden_size,
                               .num_layers = 1,
                               .bias = 1,
                               .norm = LNRNN_NORM_LAYER,
                               .placement = LNRNN_PLACEMENTS,
                               .cell_norm = LNRNN_CELL_OUT,
                               .eps = 1e-5,
                               .momentum = 0.1};
}

/* --- values --------------------------------------------------------------------------------------------- */

#define CHECK(right, ...)                                           \
    do {                                                            \
        if (!(right))                                               \
            return lnrnn_fail(message, LNRNN_INVALID, __VA_ARGS__); \
    } while (0)
#define CHECK_SIZE(d, name, most)                \
    CHECK((d)->name >= 1 && (d)->name <= (most), \
          #name " must be an integer of at least 1 and at most %d, got %zu", most, (d)->name)
#define CHECK_RATE(x, name) \
    CHECK((x) >= 0 && (x) < 1, name " must be a finite number of at least 0 and below 1, got %g", x)

static int among(int value, int n) { return value >= 0 && value < n; }

lnrnn_status lnrnn_description_resolve(lnrnn_description *d, char message[LNRNN_MESSAGE])
{
    LNRNN_DEFAULT_FLOATS;
    CHECK(among(d->cell, LNRNN_CELLS) && among(d->act, LNRNN_ACT_IDENTITY + 1)
              && among(d->weights, LNRNN_WEIGHT_I8A8 + 1) && among(d->norm, LNRNN_NORM_BATCH + 1)
              && among(d->placement, LNRNN_PLACEMENTS + 1) && among(d->span, LNRNN_SPAN_ALL + 1)
              && among(d->cell_norm, LNRNN_CELL_CARRY + 1) && among(d->overrun, LNRNN_OVERRUNS),
          "a choice has a value beyond its enumeration");
    CHECK_SIZE(d, input_size, INT32_MAX);
    CHECK_SIZE(d, hidden_size, INT32_MAX);
    CHECK_SIZE(d, num_layers, 1024);
    size_t H = d->hidden_size, widest = d->input_size > H ? d->input_size : H;
    CHECK(NUM_GATES[d->cell] * H <= ((size_t)1 << 40) / widest,
          "hidden_size must be such that a weight matrix has at most 2**40 elements, got %zu", H);
    int lstm = d->cell == LNRNN_LSTM, layer = d->norm == LNRNN_NORM_LAYER,
        batch = d->norm == LNRNN_NORM_BATCH;
    if (!layer || d->placement == LNRNN_PLACEMENTS)
        d->placement = d->cell == LNRNN_RNN ? LNRNN_JOINT : LNRNN_SPLIT;
    if (d->placement == LNRNN_GATE && d->cell == LNRNN_RNN)
        d->placement = LNRNN_JOINT;
    CHECK(!layer || lstm || d->cell_norm != LNRNN_CELL_CARRY,
          "cell must be 'out' or None where there is no cell state, got 'carry'");
    CHECK(!layer || !d->span || (d->cell == LNRNN_GRU && d->placement == LNRNN_SPLIT),
          "span must be None but in a GRU with placement 'split', got 'all'");
    d->cell_norm = !lstm || (!layer && !batch) ? LNRNN_CELL_NONE : batch ? LNRNN_CELL_OUT : d->cell_norm;
    d->inner_bias = layer && d->inner_bias;
    CHECK(isfinite(d->eps) && d->eps >= 0, "eps must be a finite number of at least 0, got %g", d->eps);
    CHECK((d->momentum >= 0 && d->momentum <= 1) || d->momentum == -1,
          "momentum must be a finite number of at least 0 and at most 1, got %g", d->momentum);
    if (d->max_steps)
        CHECK_SIZE(d, max_steps, INT32_MAX);
    d->steps = !batch ? 0 : d->max_steps ? d->max_steps : d->steps;
    if (!lstm)
        d->zoneout[1] = 0;
    CHECK_RATE(d->zoneout[0], "zoneout");
    CHECK_RATE(d->zoneout[1], "zoneout");
    CHECK_RATE(d->dropout, "dropout");
    size_t above = d->num_layers > 1 && d->bidirectional ? 2 * H : H,
           inputs = above > widest ? above : widest;
    CHECK(d->weights < LNRNN_WEIGHT_I8 || inputs <= LNRNN_INT8_INPUTS,
          "dtype must not be 'int8' for weights of %zu inputs: its sums hold %d", inputs, LNRNN_INT8_INPUTS);
    return LNRNN_OK;
}

/* --- arrays --------------------------------------------------------------------------------------------- */

/* Which networks have an array. */
enum {
    EVERY = 1,
    NO_NORM = 2,
    JOINT = 4,
    LAYER_SPLIT = 8,
    BATCH_SPLIT = 16,
    CELL = 32,
    INNER = 64,
    BATCH = 128
};
enum { SPLIT = LAYER_SPLIT | BATCH_SPLIT };
/* Shapes, with D inputs and G gates of H units: (G*H, D), (G*H, H), (G*H), (H), (steps), (steps, G*H),
 * (steps, H). */
enum { BY_INPUTS, BY_UNITS, GATES, UNITS, COUNTS, STEP_GATES, STEP_UNITS };

/* A use at a site. */
#define AT(site, use) (LNRNN_AT_SITES + 4 * LNRNN_SITE_##site + LNRNN_##use)

/* The arrays of one layer in one direction: the one table of names, shapes and sites. Networks have those
 * for which they are one of `any` and all of `all`. */
static const struct {
    const char *name;
    int any, all, shape, role;
} ARRAYS[] = {
    {"weight_ih", EVERY, 0, BY_INPUTS, LNRNN_WEIGHT_IH},
    {"weight_hh", EVERY, 0, BY_UNITS, LNRNN_WEIGHT_HH},
    {"gain", JOINT, 0, GATES, AT(HIDDEN, GAIN)},
    {"gain_ih", SPLIT, 0, GATES, AT(INPUT, GAIN)},
    {"gain_hh", SPLIT, 0, GATES, AT(HIDDEN, GAIN)},
    {"bias", JOINT, 0, GATES, AT(HIDDEN, BIAS)},
    {"bias", BATCH_SPLIT, 0, GATES, AT(INPUT, BIAS)},
    {"bias_ih", NO_NORM | LAYER_SPLIT, 0, GATES, AT(INPUT, BIAS)},
    {"bias_hh", NO_NORM | LAYER_SPLIT, 0, GATES, AT(HIDDEN, BIAS)},
    {"gain_c", CELL, 0, UNITS, AT(CELL, GAIN)},
    {"bias_c", CELL, 0, UNITS, AT(CELL, BIAS)},
    {"inner_bias_ih", INNER, 0, GATES, LNRNN_INNER_IH},
    {"inner_bias_hh", INNER, 0, GATES, LNRNN_INNER_HH},
    {"running_mean", JOINT, BATCH, STEP_GATES, AT(HIDDEN, MEAN)},
    {"running_var", JOINT, BATCH, STEP_GATES, AT(HIDDEN, VARIANCE)},
    {"running_mean_ih", BATCH_SPLIT, 0, STEP_GATES, AT(INPUT, MEAN)},
    {"running_var_ih", BATCH_SPLIT, 0, STEP_GATES, AT(INPUT, VARIANCE)},
    {"running_mean_hh", BATCH_SPLIT, 0, STEP_GATES, AT(HIDDEN, MEAN)},
    {"running_var_hh", BATCH_SPLIT, 0, STEP_GATES, AT(HIDDEN, VARIANCE)},
    {"running_mean_c", CELL, BATCH, STEP_UNITS, AT(CELL, MEAN)},
    {"running_var_c", CELL, BATCH, STEP_UNITS, AT(CELL, VARIANCE)},
    {"count", BATCH, 0, COUNTS, LNRNN_COUNT},
};
enum { ROWS = sizeof ARRAYS / sizeof *ARRAYS };

/* Rows of the table for one layer in one direction -> how many. */
static size_t rows_of(const lnrnn_description *d, int rows[ROWS])
{
    int batch = d->norm == LNRNN_NORM_BATCH, split = d->placement == LNRNN_SPLIT;
    int is = EVERY | (batch ? BATCH : 0) | (d->inner_bias ? INNER : 0) | (d->cell_norm ? CELL : 0);
    is |= d->norm == LNRNN_NORM_NONE ? NO_NORM : !split ? JOINT : batch ? BATCH_SPLIT : LAYER_SPLIT;
    size_t n = 0;
    for (int k = 0; k < ROWS; k++)
        if (ARRAYS[k].any & is && !(ARRAYS[k].all & ~is) && (d->bias || strncmp(ARRAYS[k].name, "bias", 4)))
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
    size_t n = rows_of(d, rows), directions = d->bidirectional ? 2 : 1, place = k / n;
    size_t H = d->hidden_size, GH = NUM_GATES[d->cell] * H,
           D = place < directions ? d->input_size : directions * H;
    int row = rows[k % n], shape = ARRAYS[row].shape;
    lnrnn_array array = {.name = name, .ndim = shape == GATES || shape == UNITS || shape == COUNTS ? 1 : 2};
    array.shape[0] = shape >= COUNTS ? d->steps : shape == UNITS ? H : GH;
    array.shape[1] = shape == BY_INPUTS ? D : shape == STEP_GATES ? GH : H;
    array.dtype = shape == COUNTS ? LNRNN_ARRAY_I64 : shape > COUNTS ? LNRNN_ARRAY_F64 : LNRNN_ARRAY_F32;
    snprintf(name, LNRNN_ARRAY_NAME, "%s_l%zu%s", ARRAYS[row].name, place / directions,
             place % directions ? "_reverse" : "");
    return array;
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

lnrnn_status lnrnn_check_values(const lnrnn_array *array, const lnrnn_array *count, char *message)
{
    size_t steps = count ? count->shape[0] : 0;
    if (array->dtype == LNRNN_ARRAY_I64) {
        const int64_t *own = array->data, *first = count->data;
        for (size_t t = 0; t < steps; t++) {
            CHECK(own[t] >= 0 && own[t] <= (int64_t)1 << 53,
                  "%s must be at least 0 and at most 2**53, got %lld", array->name, (long long)own[t]);
            CHECK(!t || own[t] <= own[t - 1], "%s must not rise from step to step", array->name);
            CHECK(own[t] == first[t], "%s must equal count_l0: all layers see the same sequences",
                  array->name);
        }
    } else if (!strncmp(array->name, "running_var", strlen("running_var"))) {
        const double *variances = array->data;
        for (size_t k = 0; k < steps * array->shape[1]; k++)
            CHECK(!(variances[k] < 0), "%s must not be negative", array->name);
    }
    return LNRNN_OK;
}
