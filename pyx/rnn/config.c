/* Resolves the properties of a recurrent layer once: products, norms, the kernel of a step. Each cell is a
 * row of lnrnn_cell_table, and each placement of its norms a row of FORMS. A site is a place in the cell for
 * a norm and its bias. */
#include <string.h>

#include "rnn/layer.h"
#include "lnrnn/kernels/table.h"
#include "lnrnn/tuning.h"
#include "runtime/floats.h"

/* The names of the cells in files, in the order of lnrnn.h. */
const char lnrnn_cell_names[] = "one of 'RNN', 'LSTM', 'GRU', 'LiGRU', 'SLSTM'";
const lnrnn_cell lnrnn_cell_table[] = {
    [LNRNN_RNN] = {.num_gates = 1, .placement = LNRNN_JOINT, .activated = 1},
    [LNRNN_LSTM] = {.num_gates = 4, .placement = LNRNN_SPLIT, .cell_states = 1, .saved_gates = 1},
    [LNRNN_GRU] = {.num_gates = 3, .placement = LNRNN_SPLIT, .saved_gates = 1, .direct_h = 1},
    [LNRNN_LIGRU] =
        {.num_gates = 2, .placement = LNRNN_INPUT, .activated = 1, .saved_gates = 1, .direct_h = 1},
    [LNRNN_SLSTM] = {.num_gates = 4, .placement = LNRNN_OUTPUT, .cell_states = 3, .saved_gates = 1},
};
_Static_assert(sizeof lnrnn_cell_table / sizeof *lnrnn_cell_table == LNRNN_CELLS, "a row for each cell");

/* BARE: the cell without norms. RESET_BARE, RESET_SPLIT: a GRU whose reset gate comes before the product. */
enum { BARE = LNRNN_PLACEMENTS, RESET_BARE, RESET_SPLIT, FORMS_OF_A_CELL };

/* spans: which gates share statistics, with LNRNN_SPAN_PAPER. bare_hidden: W h has no norm. output_norm: the
 * only norm is after the cell. scratch_gates: the number of gates for whose values the kernel needs
 * scratch. */
static const struct {
    int step_kernel, separate_products, input_side, own_input_gradient, spans, bare_hidden, output_norm;
    size_t scratch_gates;
} FORMS[][FORMS_OF_A_CELL] = {
    [LNRNN_RNN] =
        {
            [BARE] = {.step_kernel = LNRNN_STEP_RNN},
            [LNRNN_JOINT] = {.step_kernel = LNRNN_STEP_RNN, .spans = LNRNN_SPANS_ALL},
            [LNRNN_SPLIT] = {.step_kernel = LNRNN_STEP_RNN,
                             .separate_products = 1,
                             .input_side = 1,
                             .spans = LNRNN_SPANS_ALL},
            [LNRNN_GATE] = {.step_kernel = LNRNN_STEP_RNN, .spans = LNRNN_SPANS_ALL},
        },
    [LNRNN_LSTM] =
        {
            [BARE] = {.step_kernel = LNRNN_STEP_LSTM},
            [LNRNN_JOINT] = {.step_kernel = LNRNN_STEP_LSTM, .spans = LNRNN_SPANS_ALL},
            [LNRNN_SPLIT] = {.step_kernel = LNRNN_STEP_LSTM,
                             .separate_products = 1,
                             .input_side = 1,
                             .spans = LNRNN_SPANS_ALL},
            [LNRNN_GATE] = {.step_kernel = LNRNN_STEP_LSTM, .spans = LNRNN_SPANS_EACH},
        },
    /* A GRU multiplies only W h by r, so W x and W h are separate products. With a norm of the sum, W x and W
     * h are one product. */
    [LNRNN_GRU] =
        {
            [BARE] = {.step_kernel = LNRNN_STEP_GRU,
                      .separate_products = 1,
                      .input_side = 1,
                      .own_input_gradient = 1},
            [LNRNN_JOINT] = {.step_kernel = LNRNN_STEP_GRU, .spans = LNRNN_SPANS_ALL},
            [LNRNN_SPLIT] = {.step_kernel = LNRNN_STEP_GRU,
                             .separate_products = 1,
                             .input_side = 1,
                             .own_input_gradient = 1,
                             .spans = LNRNN_SPANS_LAST},
            [LNRNN_GATE] = {.step_kernel = LNRNN_STEP_GRU_GATE,
                            .separate_products = 1,
                            .own_input_gradient = 1,
                            .spans = LNRNN_SPANS_EACH,
                            .scratch_gates = 3},
            [RESET_BARE] = {.step_kernel = LNRNN_STEP_GRU_RESET,
                            .separate_products = 1,
                            .input_side = 1,
                            .own_input_gradient = 1},
            [RESET_SPLIT] = {.step_kernel = LNRNN_STEP_GRU_RESET,
                             .separate_products = 1,
                             .input_side = 1,
                             .own_input_gradient = 1,
                             .spans = LNRNN_SPANS_LAST},
        },
    [LNRNN_LIGRU] =
        {
            [BARE] = {.step_kernel = LNRNN_STEP_LIGRU},
            [LNRNN_JOINT] = {.step_kernel = LNRNN_STEP_LIGRU, .spans = LNRNN_SPANS_ALL},
            [LNRNN_SPLIT] = {.step_kernel = LNRNN_STEP_LIGRU,
                             .separate_products = 1,
                             .input_side = 1,
                             .spans = LNRNN_SPANS_ALL,
                             .scratch_gates = 2},
            [LNRNN_GATE] = {.step_kernel = LNRNN_STEP_LIGRU, .spans = LNRNN_SPANS_EACH},
            [LNRNN_INPUT] = {.step_kernel = LNRNN_STEP_LIGRU,
                             .separate_products = 1,
                             .input_side = 1,
                             .spans = LNRNN_SPANS_ALL,
                             .bare_hidden = 1,
                             .scratch_gates = 2},
        },
    [LNRNN_SLSTM] =
        {
            [BARE] = {.step_kernel = LNRNN_STEP_SLSTM},
            [LNRNN_OUTPUT] = {.step_kernel = LNRNN_STEP_SLSTM, .output_norm = 1, .spans = LNRNN_SPANS_EACH},
        },
};
_Static_assert(sizeof FORMS / sizeof *FORMS == LNRNN_CELLS, "FORMS has a row for each cell");

/* Returns the norm that a kernel applies at a site of the cell, or with `bare` only a bias. Scale and shift
 * of batch norm depend on the step, so step.c sets them. */
static lnrnn_gate_norm gate_norm_of(const lnrnn_rnn_config *c, const lnrnn_site *site, int spans, int bare)
{
    lnrnn_gate_norm norm = {.H = c->H, .eps = c->eps, .centred = c->norm != LNRNN_NORM_RMS};
    norm.how = bare || c->norm == LNRNN_NORM_NONE ? LNRNN_PLAIN : LNRNN_NORMED;
    if (c->norm == LNRNN_NORM_BATCH && !bare)
        norm.how = LNRNN_AFFINE;
    if (c->gate_activation == LNRNN_GATES_HARD_SIGMOID)
        norm.how = LNRNN_HARD;
    if (norm.how == LNRNN_NORMED)
        norm.spans = spans, norm.gain = site->gain;
    if (norm.how != LNRNN_AFFINE)
        norm.bias = site->bias;
    return norm;
}

void lnrnn_rnn_configure(lnrnn_rnn_config *c)
{
    const int bare = c->norm == LNRNN_NORM_NONE;
    const int form = c->reset_before ? (bare ? RESET_BARE : RESET_SPLIT) : bare ? BARE : c->placement;
    lnrnn_site *const input = &c->site[LNRNN_SITE_INPUT], *const hidden = &c->site[LNRNN_SITE_HIDDEN];
    lnrnn_site *const cell = &c->site[LNRNN_SITE_CELL];
    const lnrnn_cell *const of = &lnrnn_cell_table[c->cell];
    c->num_gates = of->num_gates;
    c->outputs = c->num_gates * c->H;
    c->first_gates = c->num_gates - (c->reset_before != 0);
    c->num_heads += !c->num_heads;
    c->head_units = c->P / c->num_heads;
    c->C = of->cell_states * c->H;
    c->projection = c->P < c->H ? c->P * c->H : 0;
    c->saved_gates = of->saved_gates;
    c->own_input_gradient = FORMS[c->cell][form].own_input_gradient;
    c->direct_h = of->direct_h;
    c->step_kernel = c->peephole ? LNRNN_STEP_LSTM_PEEPHOLE : FORMS[c->cell][form].step_kernel;
    c->separate_products = FORMS[c->cell][form].separate_products;
    c->input_side = FORMS[c->cell][form].input_side;
    c->cell_scratch = FORMS[c->cell][form].scratch_gates * c->H;
    c->output_norm = FORMS[c->cell][form].output_norm;
    int spans = FORMS[c->cell][form].spans;
    if (spans == LNRNN_SPANS_LAST && c->span == LNRNN_SPAN_ALL)
        spans = LNRNN_SPANS_ALL;
    input->width = c->input_side ? c->outputs : 0;
    hidden->width = c->outputs;
    cell->width = c->output_norm || c->cell_norm != LNRNN_CELL_NONE ? c->H : 0;
    input->norm = gate_norm_of(c, input, spans, 0);
    hidden->norm = gate_norm_of(c, hidden, spans, FORMS[c->cell][form].bare_hidden || c->output_norm);
    cell->norm = gate_norm_of(c, cell, c->output_norm ? LNRNN_SPANS_EACH : LNRNN_SPANS_ALL, 0);
    if (c->output_norm)
        cell->norm.H = c->H / c->num_heads;
}

/* --- packed weights ------------------------------------------------------------------------------------- */

size_t lnrnn_packed_size(int dtype, size_t n, size_t k)
{
    return lnrnn_product_of(lnrnn_active(), dtype)->size(dtype, n, k);
}

void lnrnn_pack(int dtype, size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs, uint32_t *packed)
{
    LNRNN_DEFAULT_FLOATS;
    lnrnn_product_of(lnrnn_active(), dtype)->pack(dtype, n, k, w, rs, cs, packed);
}

static double share_of_blocks = -1;

void lnrnn_set_share_of_blocks(double share) { share_of_blocks = share; }

size_t lnrnn_block_count(int dtype, size_t n, size_t k, const float *w)
{
    const lnrnn_kernels *const kernels = lnrnn_active();
    const lnrnn_product *const dense = lnrnn_product_of(kernels, dtype);
    const size_t columns = k / LNRNN_BLOCK_INPUTS, blocks = n / LNRNN_BLOCK_OUTPUTS * columns;
    if (!lnrnn_blocks_of(kernels, dtype) || n % LNRNN_BLOCK_OUTPUTS || k % LNRNN_BLOCK_INPUTS
        || blocks > UINT32_MAX
        || columns > UINT16_MAX /* GCOVR_EXCL_BR_LINE: such weights need gigabytes */
        /* GCOVR_EXCL_BR_LINE: more than 33 thousand inputs */
        || (lnrnn_is_int8(dtype) && k > LNRNN_BLOCK_INT8_INPUTS))
        return 0;
    const double share =
        share_of_blocks < 0 ? lnrnn_share_of_blocks(lnrnn_get_caches(), dense->width(1) > LNRNN_BLOCK_OUTPUTS,
                                                    dense->unit != NULL, n * k)
                            : share_of_blocks;
    size_t count = 0, most = (size_t)(share * (double)blocks);
    int zero = share >= 1;
    /* Test 64 blocks first: if no block is zero, the weights are dense. A search of all blocks would take a
     * tenth of the time in which a training step packs the weights. */
    /* GCOVR_EXCL_BR_LINE: a weight without blocks has no inputs */
    for (size_t i = 0; i < 64 && blocks && !zero; i++) {
        const size_t b =
            (i * blocks + i * 2654435761u % blocks) / 64; /* one block of each 64th part, at random */
        zero =
            !lnrnn_has_block(k, w + b / columns * LNRNN_BLOCK_OUTPUTS * k + b % columns * LNRNN_BLOCK_INPUTS);
    }
    if (!zero)
        return 0;
    for (size_t o = 0; o < n; o += LNRNN_BLOCK_OUTPUTS)
        for (size_t j = 0; j < k; j += LNRNN_BLOCK_INPUTS)
            if (lnrnn_has_block(k, w + o * k + j) && ++count > most)
                return 0;
    return count;
}

size_t lnrnn_blocks_size(int dtype, size_t n, size_t count)
{
    return lnrnn_blocks_of(lnrnn_active(), dtype)->size(dtype, n, count);
}

void lnrnn_pack_blocks(int dtype, size_t n, size_t k, size_t count, const float *w, uint32_t *packed)
{
    LNRNN_DEFAULT_FLOATS;
    lnrnn_blocks_of(lnrnn_active(), dtype)->pack(dtype, n, k, count, lnrnn_block_window(dtype), w, packed);
}

/* A window must be a multiple of a panel. Panels of two vectors have at most 16 outputs, panels of three
 * vectors 12 or 48. */
size_t lnrnn_block_window(int dtype)
{
    const size_t panel = lnrnn_product_of(lnrnn_active(), dtype)->start(LNRNN_MOST_WINDOW, 1);
    return 64 % panel ? LNRNN_MOST_WINDOW : 64;
}

size_t lnrnn_packed_heads_size(const lnrnn_rnn_config *c, size_t gates)
{
    return c->num_heads * lnrnn_packed_size(c->dtype, gates * c->H / c->num_heads, c->head_units);
}

size_t lnrnn_pack_heads_work(const lnrnn_rnn_config *c)
{
    return c->num_heads > 1 ? c->num_gates * c->head_units * c->head_units : 1;
}

void lnrnn_pack_heads(const lnrnn_rnn_config *c, size_t gates, const float *w, float *work, uint32_t *packed)
{
    const size_t k = c->head_units, n = gates * c->H / c->num_heads,
                 words = lnrnn_packed_size(c->dtype, n, k);
    if (c->num_heads == 1) {
        lnrnn_pack(c->dtype, n, k, w, (ptrdiff_t)k, 1, packed);
        return;
    }
    for (size_t head = 0; head < c->num_heads; head++) {
        for (size_t gate = 0; gate < gates; gate++)
            memcpy(work + gate * k * k, w + (gate * c->H + head * k) * k, k * k * sizeof *work);
        lnrnn_pack(c->dtype, n, k, work, (ptrdiff_t)k, 1, packed + head * words);
    }
}
