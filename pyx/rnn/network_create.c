/* Creates networks from a description and named arrays, or from a file. A line is one layer in one direction.
 * A site is a place in a cell for a norm and its bias. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "file/model_file.h"
#include "rnn/network.h"
#include "runtime/floats.h"
#include "runtime/result_memory.h"

/* --- batch norm: a scale and a shift for every step ---------------------------------------------------- */

/* count (steps): the number of training sequences that reached each step. Returns the number of steps with
 * statistics. Steps without statistics come after them. */
static size_t known_steps(const int64_t *count, size_t steps)
{
    size_t known = 0;
    while (known < steps && count[known])
        known++;
    return known;
}

/* values (n), n <= 128. Returns the sum in NumPy's order of addition for one row. */
static double row_sum(const double *values, size_t n)
{
    double sum = 0, part[8];
    size_t i = 0;
    if (n >= 8) {
        for (; i < 8; i++)
            part[i] = values[i];
        for (; i < n - n % 8; i++)
            part[i % 8] += values[i];
        sum = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
    }
    for (; i < n; i++)
        sum += values[i];
    return sum;
}

static double long_row_sum(const double *values, size_t n)
{
    const size_t half = n / 2 - n / 2 % 8;
    return n <= 128 ? row_sum(values, n) : long_row_sum(values, half) + long_row_sum(values + half, n - half);
}

/* values (steps, width). Returns the mean of column k over the steps, bit for bit as NumPy's mean(0). */
static double mean_over_steps(const double *values, size_t steps, size_t width, size_t k)
{
    double sum = values[k];
    if (width == 1)
        sum = long_row_sum(values, steps);
    else
        for (size_t t = 1; t < steps; t++)
            sum += values[t * width + k];
    return sum / (double)steps;
}

/* Statistics and parameters of a batch norm, which `fold` joins to one scale and shift for inference. */
typedef struct {
    size_t known, width;
    int averages;             /* 1: write one more row, for the means over all known steps */
    const double *mean, *var; /* (known, width) */
    const float *gain, *bias; /* (width); bias may be NULL: zeros */
    double eps;
} step_norm;

/* Writes scale, shift (known or known + 1, width), so that scale * a + shift is batch norm with gain and
 * bias. */
static void fold(const step_norm *f, float *scale, float *shift)
{
    for (size_t t = 0; t < f->known + (f->averages != 0); t++)
        for (size_t k = 0; k < f->width; k++) {
            const size_t at = t * f->width + k;
            const double mean = t < f->known ? f->mean[at] : mean_over_steps(f->mean, f->known, f->width, k);
            const double var = t < f->known ? f->var[at] : mean_over_steps(f->var, f->known, f->width, k);
            const double exact = f->gain[k] / sqrt(var + f->eps);
            scale[at] = (float)exact;
            shift[at] = (float)((f->bias ? (double)f->bias[k] : 0.0) - mean * exact);
        }
}

/* --- the network ---------------------------------------------------------------------------------------- */

/* Memory of a new network. lay_out runs twice: with memory = NULL it only counts the bytes. */
typedef struct {
    const lnrnn_description *d;
    const lnrnn_array *const *used;
    char *memory; /* NULL: only count bytes */
    float *work;  /* for lnrnn_pack_heads */
    size_t bytes, weight_bytes;
} construction;

static void *part_of(construction *b, size_t bytes)
{
    char *const part = b->memory ? b->memory + b->bytes : NULL;
    b->bytes += lnrnn_whole_lines(bytes);
    return part;
}

/* x, y (n) or NULL. Returns the sum (n) of the arrays that are not NULL. If both are NULL, returns n values
 * `otherwise`, or NULL if `otherwise` is negative. */
static const float *sum_of(construction *b, const float *x, const float *y, size_t n, float otherwise)
{
    if (!x && !y && otherwise < 0)
        return NULL;
    float *const sum = part_of(b, n * sizeof(float));
    for (size_t k = 0; sum && k < n; k++)
        sum[k] = x && y ? x[k] + y[k] : x ? x[k] : y ? y[k] : otherwise;
    return sum;
}

/* w (n, k) -> packed. blocks: the number of nonzero blocks, or 0 for dense weights. */
static const uint32_t *packed(construction *b, int dtype, const float *w, size_t n, size_t k, size_t blocks)
{
    const size_t size = blocks ? lnrnn_blocks_size(dtype, n, blocks) : lnrnn_packed_size(dtype, n, k);
    uint32_t *const words = part_of(b, size * sizeof(uint32_t));
    if (words && blocks)
        lnrnn_pack_blocks(dtype, n, k, blocks, w, words);
    else if (words)
        lnrnn_pack(dtype, n, k, w, (ptrdiff_t)k, 1, words);
    b->weight_bytes += size * sizeof(uint32_t);
    return words;
}

static const uint32_t *packed_heads(construction *b, const lnrnn_rnn_config *c, const float *w)
{
    if (c->blocks_hh)
        return packed(b, c->dtype, w, c->outputs, c->P, c->blocks_hh);
    const size_t first = c->first_gates, rest = c->num_gates - first;
    const size_t before = lnrnn_packed_heads_size(c, first),
                 words = before + (rest ? lnrnn_packed_heads_size(c, rest) : 0);
    uint32_t *const to = part_of(b, words * sizeof(uint32_t));
    if (to)
        lnrnn_pack_heads(c, first, w, b->work, to);
    if (to && rest)
        lnrnn_pack_heads(c, rest, w + first * c->H * c->head_units, b->work, to + before);
    b->weight_bytes += words * sizeof(uint32_t);
    return to;
}

/* Sets gain and bias of a site, and with batch norm its scales and shifts. */
static void fill_site(construction *b, lnrnn_rnn_config *c, int index, const void *const *roles)
{
    lnrnn_site *const site = &c->site[index];
    const void *const *const at = &roles[LNRNN_AT_SITES + 4 * index];
    const float *const gain = at[LNRNN_GAIN], *const bias = at[LNRNN_BIAS];
    /* bias_ih and bias_hh are added to the same sum, so store their sum. */
    const float *const other =
        index == LNRNN_SITE_HIDDEN && !c->input_side ? roles[LNRNN_AT_SITES + LNRNN_BIAS] : NULL;
    if (!site->width)
        return;
    site->gain = sum_of(b, gain, NULL, site->width, 1);
    site->bias = sum_of(b, other, bias, site->width, 0);
    if (site->norm.how != LNRNN_AFFINE)
        return;
    const int averages = b->d->overrun == LNRNN_OVERRUN_MEAN && c->known;
    const size_t values = (c->known + (size_t)averages) * site->width;
    float *const scale = part_of(b, values * sizeof(float)), *const shift =
                                                                 part_of(b, values * sizeof(float));
    const step_norm job = {c->known,           site->width, averages, at[LNRNN_MEAN],
                           at[LNRNN_VARIANCE], gain,        bias,     b->d->eps};
    if (scale)
        fold(&job, scale, shift);
    site->scale = scale, site->shift = shift;
}

/* Configures a line (a layer in one direction), without its arrays. */
static void configure(const lnrnn_description *d, size_t line, lnrnn_rnn_config *c)
{
    const size_t directions = d->bidirectional ? 2 : 1, P = d->proj_size ? d->proj_size : d->hidden_size;
    *c = (lnrnn_rnn_config){
        .D = line < directions ? d->input_size : directions * P,
        .H = d->hidden_size,
        .num_heads = d->num_heads,
        .P = P,
        .cell = d->cell,
        .act = d->act,
        .norm = d->norm,
        .placement = d->placement,
        .span = d->span,
        .cell_norm = d->cell_norm,
        .eps = (float)(d->norm == LNRNN_NORM_NONE ? 0 : d->eps),
        .gate_activation = d->gate_activation,
        .reset_before = !d->reset_after,
        .reverse = d->reverse || line % directions == 1,
        .dtype = d->weights,
        .exp_forget = d->exp_forget,
        .round_states = d->bfloat16_states,
        .zoneout_h = (float)d->zoneout[0],
        .zoneout_c = (float)d->zoneout[1],
    };
    lnrnn_rnn_configure(c);
}

size_t lnrnn_description_tape_width(const lnrnn_description *d)
{
    lnrnn_rnn_config c;
    configure(d, 0, &c);
    return lnrnn_tape_width(&c);
}

static void fill_line(construction *b, size_t line, lnrnn_rnn_config *c, lnrnn_packed_weights *weights)
{
    const lnrnn_description *const d = b->d;
    int order[LNRNN_ROLES];
    const size_t arrays = lnrnn_description_roles(d, order);
    const void *roles[LNRNN_ROLES] = {NULL};
    for (size_t k = 0; k < arrays; k++)
        roles[order[k]] = b->used[line * arrays + k]->data;
    configure(d, line, c);
    const int apart = c->separate_products;
    c->inner_ih = sum_of(b, roles[LNRNN_INNER_IH], apart ? NULL : roles[LNRNN_INNER_HH], c->outputs, -1);
    c->inner_hh = apart ? sum_of(b, roles[LNRNN_INNER_HH], NULL, c->outputs, -1) : NULL;
    c->peephole = sum_of(b, roles[LNRNN_PEEPHOLE], NULL, 3 * c->H, -1);
    if (d->norm == LNRNN_NORM_BATCH) {
        c->known = known_steps(roles[LNRNN_COUNT], d->steps);
        c->overrun_row = d->overrun == LNRNN_OVERRUN_BATCH ? -1 : (ptrdiff_t)c->known - 1;
        if (d->overrun == LNRNN_OVERRUN_MEAN && c->known)
            c->overrun_row = (ptrdiff_t)c->known;
    }
    for (int k = 0; k < LNRNN_SITES; k++)
        fill_site(b, c, k, roles);
    lnrnn_rnn_configure(c);
    c->blocks_ih = lnrnn_block_count(c->dtype, c->outputs, c->D, roles[LNRNN_WEIGHT_IH]);
    if (c->num_heads == 1 && !c->reset_before)
        c->blocks_hh = lnrnn_block_count(c->dtype, c->outputs, c->P, roles[LNRNN_WEIGHT_HH]);
    weights->ih = packed(b, c->dtype, roles[LNRNN_WEIGHT_IH], c->outputs, c->D, c->blocks_ih);
    weights->hh = packed_heads(b, c, roles[LNRNN_WEIGHT_HH]);
    weights->hr = c->projection ? packed(b, c->dtype, roles[LNRNN_WEIGHT_HR], c->P, c->H, 0) : NULL;
}

/* Builds the network in b->memory. If b->memory is NULL, only counts the bytes. */
static lnrnn_network *lay_out(construction *b)
{
    const lnrnn_description *const d = b->d;
    const size_t directions = d->bidirectional ? 2 : 1, lines = d->num_layers * directions;
    b->bytes = b->weight_bytes = 0;
    lnrnn_network *const n = part_of(b, sizeof *n);
    lnrnn_rnn_config *const config = part_of(b, lines * sizeof *config);
    lnrnn_packed_weights *const weights = part_of(b, lines * sizeof *weights);
    int64_t known = LNRNN_LAST_STEP;
    for (size_t k = 0; k < lines; k++) {
        lnrnn_rnn_config unused;
        lnrnn_packed_weights none;
        lnrnn_rnn_config *const c = n ? &config[k] : &unused;
        fill_line(b, k, c, n ? &weights[k] : &none);
        if (d->norm == LNRNN_NORM_BATCH && (int64_t)c->known < known)
            known = (int64_t)c->known;
    }
    if (d->overrun == LNRNN_OVERRUN_BATCH || (d->overrun != LNRNN_OVERRUN_RAISE && known))
        known = LNRNN_LAST_STEP;
    if (n)
        *n = (lnrnn_network){.description = *d,
                             .layers = d->num_layers,
                             .directions = directions,
                             .config = config,
                             .weights = weights,
                             .isa = lnrnn_isa_name(),
                             .weight_bytes = b->weight_bytes,
                             .refused_from = known,
                             .together = d->norm == LNRNN_NORM_BATCH && d->overrun == LNRNN_OVERRUN_BATCH,
                             .references = 1};
    return n;
}

static lnrnn_status create(const lnrnn_description *d, const lnrnn_array *const *used,
                           lnrnn_network **network, char *message)
{
    const lnrnn_status status = lnrnn_check_values(d, used, message);
    if (status)
        return status;
    construction b = {.d = d, .used = used};
    lay_out(&b);
    lnrnn_rnn_config line;
    configure(d, 0, &line);
    b.work = malloc(lnrnn_pack_heads_work(&line) * sizeof *b.work);
    b.memory = b.work ? lnrnn_aligned_malloc(b.bytes) : NULL; /* GCOVR_EXCL_BR_LINE: no memory */
    if (b.memory)                                             /* GCOVR_EXCL_BR_LINE: no memory */
        *network = lay_out(&b);
    free(b.work);
    if (!b.memory) /* GCOVR_EXCL_BR_LINE: no memory */
        return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory for a network of %zu bytes", b.bytes);
    lnrnn_network_complete(*network);
    return LNRNN_OK;
}

lnrnn_status lnrnn_network_create(const lnrnn_description *given, const lnrnn_array *arrays, size_t count,
                                  lnrnn_network **network, char message[LNRNN_MESSAGE])
{
    LNRNN_DEFAULT_FLOATS;
    lnrnn_description d = *given;
    const lnrnn_array **used = NULL;
    *network = NULL;
    lnrnn_status status = lnrnn_description_resolve(&d, message);
    if (!status && !(status = lnrnn_match_arrays(&d, arrays, count, &used, message)))
        status = create(&d, used, network, message);
    free(used);
    return status;
}

static lnrnn_status create_and_close(lnrnn_model_file *model, lnrnn_status status, lnrnn_network **network,
                                     char *message)
{
    *network = NULL;
    if (status)
        return status;
    status = lnrnn_network_create(&model->description, model->arrays, model->count, network, message);
    lnrnn_model_file_close(model);
    return status;
}

lnrnn_status lnrnn_network_open(const char *path, lnrnn_network **network, char message[LNRNN_MESSAGE])
{
    lnrnn_model_file model;
    return create_and_close(&model, lnrnn_model_file_open(path, &model, message), network, message);
}

lnrnn_status lnrnn_network_read(const void *bytes, size_t size, lnrnn_network **network,
                                char message[LNRNN_MESSAGE])
{
    lnrnn_model_file model;
    return create_and_close(&model, lnrnn_model_file_read(NULL, bytes, size, &model, message), network,
                            message);
}

lnrnn_network *lnrnn_network_retain(lnrnn_network *n)
{
    if (n)
        __atomic_fetch_add(&n->references, 1, __ATOMIC_RELAXED);
    return n;
}

void lnrnn_network_release(lnrnn_network *n)
{
    if (!n || __atomic_sub_fetch(&n->references, 1, __ATOMIC_ACQ_REL))
        return;
    lnrnn_free_aligned(n->backward[0]), lnrnn_free_aligned(n->backward[1]);
    lnrnn_free_aligned(n);
}

lnrnn_status lnrnn_check_isa(const lnrnn_network *n, const char *name, char *message)
{
    const char *const isa = lnrnn_isa_name();
    return strcmp(n->isa, isa)
               ? lnrnn_fail(message, LNRNN_INVALID,
                            "%s must be packed for the instruction set in use, %s, got one for %s", name, isa,
                            n->isa)
               : LNRNN_OK;
}

size_t lnrnn_network_inputs(const lnrnn_network *n) { return n->inputs; }
size_t lnrnn_network_units(const lnrnn_network *n) { return n->units; }
size_t lnrnn_network_layers(const lnrnn_network *n) { return n->layers; }
size_t lnrnn_network_directions(const lnrnn_network *n) { return n->directions; }
size_t lnrnn_network_state_size(const lnrnn_network *n, int cell) { return cell ? n->c_width : n->h_width; }
