/* What a recurrent layer is, worked out once: which products it has, how each site reads its values, which
 * function makes the states. A new cell is a row of CELLS, a new placement a row of FORMS. */
#include "lnrnn.h"
#include "lnrnn/kernels/table.h"
#include "rnn/rows.h"

/* h_prev enters an LSTM and an RNN by W h alone, and the products by their sum. */
static const struct {
    size_t num_gates;
    int cell_state, saved_gates, own_input_gradient, direct_h;
} CELLS[LNRNN_CELLS] = {
    [LNRNN_RNN] = {.num_gates = 1},
    [LNRNN_LSTM] = {.num_gates = 4, .cell_state = 1, .saved_gates = 1},
    [LNRNN_GRU] = {.num_gates = 3, .saved_gates = 1, .own_input_gradient = 1, .direct_h = 1},
};

/* The form of a cell without any norm, beside those with one, which are named by its placement. */
enum { BARE = LNRNN_PLACEMENTS, FORMS_OF_A_CELL };

/* spans: the paper's. scratch: units of the cell for which cell_step needs memory. */
static const struct {
    lnrnn_cell_step *cell_step;
    int separate_products, input_side, spans;
    size_t scratch;
} FORMS[LNRNN_CELLS][FORMS_OF_A_CELL] = {
    [LNRNN_RNN] =
        {
            [BARE] = {lnrnn_rnn_step},
            [LNRNN_JOINT] = {lnrnn_rnn_step, .spans = LNRNN_SPANS_ALL},
            [LNRNN_SPLIT] = {lnrnn_rnn_separate_step, .separate_products = 1, .input_side = 1,
                             .spans = LNRNN_SPANS_ALL},
            [LNRNN_GATE] = {lnrnn_rnn_step, .spans = LNRNN_SPANS_ALL},
        },
    [LNRNN_LSTM] =
        {
            [BARE] = {lnrnn_lstm_step},
            [LNRNN_JOINT] = {lnrnn_lstm_step, .spans = LNRNN_SPANS_ALL},
            [LNRNN_SPLIT] = {lnrnn_lstm_step, .separate_products = 1, .input_side = 1,
                             .spans = LNRNN_SPANS_ALL},
            [LNRNN_GATE] = {lnrnn_lstm_step, .spans = LNRNN_SPANS_EACH},
        },
    /* r multiplies W h alone, so that a GRU keeps the products apart unless their sum is normalised as a
     * whole. */
    [LNRNN_GRU] =
        {
            [BARE] = {lnrnn_gru_step, .separate_products = 1, .input_side = 1},
            [LNRNN_JOINT] = {lnrnn_gru_step, .spans = LNRNN_SPANS_ALL},
            [LNRNN_SPLIT] = {lnrnn_gru_step, .separate_products = 1, .input_side = 1,
                             .spans = LNRNN_SPANS_LAST},
            [LNRNN_GATE] = {lnrnn_gru_gate_step, .separate_products = 1, .spans = LNRNN_SPANS_EACH,
                            .scratch = 3},
        },
};

/* Scale and shift of batch norm belong to a step: step.c adds them. */
static lnrnn_gate_norm gate_norm_of(const lnrnn_rnn_config *c, const lnrnn_site *site, int spans)
{
    lnrnn_gate_norm norm = {.H = c->H, .eps = c->eps};
    norm.how = c->norm == LNRNN_NORM_NONE ? LNRNN_PLAIN : LNRNN_NORMED;
    if (c->norm == LNRNN_NORM_BATCH)
        norm.how = LNRNN_AFFINE;
    if (norm.how == LNRNN_NORMED)
        norm.spans = spans, norm.gain = site->gain;
    if (norm.how != LNRNN_AFFINE)
        norm.bias = site->bias;
    return norm;
}

void lnrnn_rnn_configure(lnrnn_rnn_config *c)
{
    const int form = c->norm == LNRNN_NORM_NONE ? BARE : c->placement;
    lnrnn_site *const input = &c->site[LNRNN_SITE_INPUT], *const hidden = &c->site[LNRNN_SITE_HIDDEN];
    lnrnn_site *const cell = &c->site[LNRNN_SITE_CELL];
    c->num_gates = CELLS[c->cell].num_gates;
    c->outputs = c->num_gates * c->H;
    c->cell_state = CELLS[c->cell].cell_state;
    c->saved_gates = CELLS[c->cell].saved_gates;
    c->own_input_gradient = CELLS[c->cell].own_input_gradient;
    c->direct_h = CELLS[c->cell].direct_h;
    c->cell_step = FORMS[c->cell][form].cell_step;
    c->separate_products = FORMS[c->cell][form].separate_products;
    c->input_side = FORMS[c->cell][form].input_side;
    c->cell_scratch = FORMS[c->cell][form].scratch * c->H;
    int spans = FORMS[c->cell][form].spans;
    if (spans == LNRNN_SPANS_LAST && c->span == LNRNN_SPAN_ALL)
        spans = LNRNN_SPANS_ALL;
    input->width = c->input_side ? c->outputs : 0;
    hidden->width = c->outputs;
    cell->width = c->cell_norm != LNRNN_CELL_NONE ? c->H : 0;
    input->norm = gate_norm_of(c, input, spans);
    hidden->norm = gate_norm_of(c, hidden, spans);
    cell->norm = gate_norm_of(c, cell, LNRNN_SPANS_ALL);
    hidden->norm.cell_norm = c->cell_norm;
    hidden->norm.cell_how = cell->norm.how;
    hidden->norm.gain_c = cell->norm.gain;
    hidden->norm.bias_c = cell->norm.bias;
}
