/* Computes the layers and directions of a network. A line is one layer in one direction. The lines run at the
 * same time, as a wavefront, if that is faster, else one after the other. A step of a stream is a call with
 * one step, whose plan is kept for the next step. */
#include "rnn/network.h"

#include <string.h>

#include "lnrnn/tuning.h"
#include "rnn/rows.h"
#include "runtime/floats.h"
#include "runtime/threads.h"

void lnrnn_network_complete(lnrnn_network *n)
{
    LNRNN_DEFAULT_FLOATS;
    const lnrnn_rnn_config *const first = n->config;
    n->inputs = first->D, n->units = first->H, n->h_width = first->P, n->c_width = first->C;
    n->states = first->C ? 2 : 1;
    n->by_step = first->norm == LNRNN_NORM_BATCH;
    n->step_work = 0;
    for (size_t k = 0; k < n->layers * n->directions; k++) {
        const lnrnn_rnn_config *c = &n->config[k];
        n->step_work += (double)c->outputs * (double)(c->D + c->head_units) + (double)c->projection;
    }
}

lnrnn_network lnrnn_network_line(const lnrnn_network *n, size_t line)
{
    lnrnn_network one = *n;
    one.layers = one.directions = 1;
    one.config += line, one.weights += line;
    lnrnn_network_complete(&one);
    return one;
}

static size_t line_count(const lnrnn_network_call *n) { return n->network->layers * n->network->directions; }

/* Returns 1 if the caller keeps the outputs of all layers, as training does. */
static int keeps_outputs(const lnrnn_network_call *n) { return n->training && n->line->layer.y; }

/* Returns the number of outputs of a layer at one step of one sequence. */
static size_t output_width(const lnrnn_network_call *n)
{
    return n->network->directions * n->network->h_width;
}

int lnrnn_rows_fit(const lnrnn_network_call *n, char *seen)
{
    const int64_t steps = (int64_t)n->steps;
    for (size_t i = 0; i < n->B; i++) {
        const lnrnn_row *const row = &n->rows[i];
        /* GCOVR_EXCL_BR_START: each condition is tested by one wrong row */
        if (row->sequence < 0 || (uint64_t)row->sequence >= n->sequences || row->first < 0 || row->length < 0
            || row->first > steps || row->length > steps - row->first || row->end < row->first + row->length
            || row->end > steps || row->state < 0 || (uint64_t)row->state >= n->states || seen[row->state]
            || row->start < 0 || row->start > INT64_MAX - row->length || (i && row->length > row[-1].length))
            /* GCOVR_EXCL_BR_STOP */
            return 0;
        seen[row->state] = 1;
    }
    return 1;
}

static int is_before(const lnrnn_row *a, const lnrnn_row *b)
{
    if (a->length != b->length)
        return a->length > b->length;
    return a->start != b->start ? a->start < b->start : a->state < b->state;
}

void lnrnn_sort_rows(lnrnn_row *rows, size_t n)
{
    size_t gap = 1;
    while (gap < n / 3)
        gap = 3 * gap + 1;
    for (; gap; gap /= 3)
        for (size_t i = gap; i < n; i++) {
            const lnrnn_row row = rows[i];
            size_t j = i;
            for (; j >= gap && is_before(&row, &rows[j - gap]); j -= gap)
                rows[j] = rows[j - gap];
            rows[j] = row;
        }
}

int lnrnn_rows_of_lengths(lnrnn_row *rows, size_t B, size_t steps, const int64_t *lengths)
{
    const int64_t T = (int64_t)steps;
    for (size_t i = 0; i < B; i++) {
        rows[i] = (lnrnn_row){
            .sequence = (int64_t)i, .state = (int64_t)i, .length = lengths ? lengths[i] : T, .end = T};
        if (rows[i].length < 0 || rows[i].length > T) /* GCOVR_EXCL_BR_LINE: lengths are checked before */
            return 0;
    }
    if (lengths)
        lnrnn_sort_rows(rows, B);
    return 1;
}

size_t lnrnn_active_steps(const lnrnn_network_call *n)
{
    size_t steps = 0;
    for (size_t i = 0; i < n->B; i++)
        steps += (size_t)n->rows[i].length;
    return steps;
}

/* --- the plan ------------------------------------------------------------------------------------------- */

static int of_one_length(const lnrnn_network_call *n)
{
    return !n->B || n->rows[0].length == n->rows[n->B - 1].length;
}

/* Sets the fields of each line's call on which its plan depends. A line is a layer in one direction. */
static void describe_lines(lnrnn_network_call *n)
{
    size_t last_step_end = n->kept ? SIZE_MAX : 0;
    for (size_t i = 0; i < n->B; i++) {
        const size_t end = (size_t)(n->rows[i].start + n->rows[i].length);
        last_step_end = end > last_step_end ? end : last_step_end;
    }
    for (size_t k = 0; k < line_count(n); k++) {
        lnrnn_rnn_call *r = &n->line[k].call;
        *r = (lnrnn_rnn_call){.config = &n->network->config[k],
                              .plan = &n->line[k].plan,
                              .T = n->B ? (size_t)n->rows[0].length : 0,
                              .B = n->B,
                              .w_ih = n->network->weights[k].ih,
                              .w_hh = n->network->weights[k].hh,
                              .w_hr = n->network->weights[k].hr,
                              .rows = n->rows,
                              .last_step_end = last_step_end};
        if (n->training) {
            const lnrnn_line_training *const training = &n->line[k].training;
            memcpy(r->statistics, training->statistics, sizeof r->statistics);
            r->count = training->count, r->tape = training->tape, r->masks = training->masks;
        }
    }
}

size_t lnrnn_network_plan(lnrnn_network_call *n)
{
    const lnrnn_network *const net = n->network;
    const size_t lines = line_count(n);
    size_t floats = 0;
    describe_lines(n);
    n->wave = (lnrnn_wavefront){.line = n->line, .layers = net->layers, .directions = net->directions};
    n->side_by_side = !n->training && lnrnn_wavefront_plan(&n->wave, n->threads);
    n->pointed = 0;
    n->deal = !n->training && !of_one_length(n);
    for (size_t k = 0; !n->side_by_side && k < lines; k++) {
        lnrnn_rnn_plan *const plan = &n->line[k].plan;
        lnrnn_rnn_make_plan(&n->line[k].call, n->threads, plan);
        floats = plan->scratch.floats > floats ? plan->scratch.floats : floats;
    }
    if (n->side_by_side)
        floats = n->wave.floats;
    /* In a wavefront, the outputs of all layers are in use until the end. Otherwise two buffers suffice, for
     * the input and the output of a layer. */
    const size_t between = net->layers - 1, most = n->side_by_side ? between : 2,
                 widest = net->h_width > net->c_width ? net->h_width : net->c_width;
    n->buffer_floats = lnrnn_whole_floats(n->steps * n->sequences * output_width(n));
    n->buffers = lnrnn_whole_floats(floats);
    n->zeros = n->buffers + (keeps_outputs(n) ? 0 : between < most ? between : most) * n->buffer_floats;
    /* GCOVR_EXCL_BR_LINE: c0 comes with h0 */
    n->dealt = n->zeros + (n->h0 && (n->c0 || net->states == 1) ? 0 : lnrnn_whole_floats(n->states * widest));
    return n->dealt + (n->deal ? lnrnn_whole_floats(n->B * sizeof(lnrnn_row) / sizeof(float)) : 0) + 16;
}

/* --- a call --------------------------------------------------------------------------------------------- */

/* Distributes the rows, longest first, over groups of `group` rows, and returns them in the order of the
 * groups. Each group gets one row; then, in the opposite order of the groups, each group gets a second row,
 * and so on. So groups cost about the same, and each group begins with its longest row. */
static const lnrnn_row *dealt_rows(const lnrnn_network_call *n, size_t group)
{
    if (!n->deal || group >= n->B)
        return n->rows;
    const size_t groups = (n->B + group - 1) / group;
    /* Align the rows, which hold 64-bit numbers: scratch is only aligned for floats. */
    lnrnn_row *const dealt = (lnrnn_row *)(((uintptr_t)(n->scratch + n->dealt) + 63) & ~(uintptr_t)63);
    const lnrnn_row *row = n->rows;
    for (size_t turn = 0; turn < group; turn++)
        for (size_t i = 0; i < groups; i++) {
            const size_t place = (turn % 2 ? groups - 1 - i : i) * group + turn;
            if (place < n->B)
                dealt[place] = *row++;
        }
    return dealt;
}

static void strides_of(const lnrnn_network_call *n, size_t width, int batch_first, ptrdiff_t *steps,
                       ptrdiff_t *sequences)
{
    *steps = (ptrdiff_t)(batch_first ? width : n->sequences * width);
    *sequences = (ptrdiff_t)(batch_first ? n->steps * width : width);
}

/* Sets the strides of a layer's outputs, whose axes are in the order of y. */
static void set_strides(const lnrnn_network_call *n, ptrdiff_t *steps, ptrdiff_t *sequences)
{
    strides_of(n, output_width(n), n->yb > n->yt, steps, sequences);
}

void lnrnn_network_lay_out(lnrnn_network_call *n, int batch_first)
{
    strides_of(n, n->network->inputs, batch_first, &n->xt, &n->xb);
    strides_of(n, output_width(n), batch_first, &n->yt, &n->yb);
}

static lnrnn_layer_training *training_of(const lnrnn_network_call *n, size_t layer)
{
    return &n->line[layer * n->network->directions].layer;
}

static float *outputs_of(const lnrnn_network_call *n, size_t layer)
{
    if (layer + 1 == n->network->layers)
        return n->y;
    if (keeps_outputs(n))
        return training_of(n, layer)->y;
    return n->scratch + n->buffers + (n->side_by_side ? layer : layer % 2) * n->buffer_floats;
}

static int drops_input(const lnrnn_network_call *n, size_t layer)
{
    return layer && n->training && training_of(n, layer)->dropped;
}

static void point_lines(lnrnn_network_call *n)
{
    const lnrnn_network *const net = n->network;
    const size_t h = n->states * net->h_width, c = n->states * net->c_width;
    const float *x = n->x, *const zeros = n->scratch + n->zeros;
    ptrdiff_t xt = n->xt, xb = n->xb, yt, yb;
    set_strides(n, &yt, &yb);
    if (n->zeros < n->dealt)
        memset(n->scratch + n->zeros, 0, (n->dealt - n->zeros) * sizeof(float));
    for (size_t k = 0; k < line_count(n); k++) {
        lnrnn_rnn_call *const r = &n->line[k].call;
        const size_t layer = k / net->directions;
        const int last = layer + 1 == net->layers;
        r->x = drops_input(n, layer) ? training_of(n, layer)->dropped : x;
        r->xt = xt, r->xb = xb;
        r->y = outputs_of(n, layer) + k % net->directions * net->h_width;
        r->yt = last ? n->yt : yt, r->yb = last ? n->yb : yb;
        r->h0 = n->h0 ? n->h0 + k * h : zeros;
        r->hn = n->hn + k * h;
        if (net->states == 2) {
            r->c0 = n->c0 ? n->c0 + k * c : zeros;
            r->cn = n->cn + k * c;
        }
        r->scratch = n->scratch;
        r->resumed = 0;
        if ((k + 1) % net->directions == 0)
            x = outputs_of(n, layer), xt = yt, xb = yb;
    }
}

/* x -> out, which may be x: multiplies a layer's inputs, or their gradients, by its dropout mask. */
static void drop(const lnrnn_network_call *n, size_t layer, const float *x, float *out)
{
    LNRNN_DEFAULT_FLOATS;
    const lnrnn_layer_training *const training = training_of(n, layer);
    const size_t width = output_width(n);
    ptrdiff_t xt, xb;
    set_strides(n, &xt, &xb);
    for (size_t t = 0; t < n->steps; t++)
        for (size_t b = 0; b < n->sequences; b++) {
            const ptrdiff_t at = (ptrdiff_t)t * xt + (ptrdiff_t)b * xb;
            const unsigned char *const kept =
                training->kept ? training->kept + (t * n->sequences + b) * width : NULL;
            const float *const factors = training->factors ? training->factors + b * width : NULL;
            for (size_t i = 0; i < width; i++) {
                const float all = x[at + (ptrdiff_t)i],
                            some = kept ? all * (float)kept[i] * *training->scale : all;
                out[at + (ptrdiff_t)i] = factors ? some * factors[i] : some;
            }
        }
}

/* left: the multiply-adds left in this part of the call. Returns how many are left after a line with
 * `products` products per step. */
static double after_line(const lnrnn_rnn_call *r, size_t products, double left)
{
    LNRNN_DEFAULT_FLOATS;
    return left - all_steps_cost(r, products * (r->config->D + r->config->head_units)) / r->plan->threads;
}

static void begin(lnrnn_network_call *n)
{
    const size_t directions = n->network->directions, last = line_count(n) - directions;
    n->at = 0;
    if (!n->pointed)
        point_lines(n);
    for (size_t d = 0; n->pointed && d < directions; d++)
        n->line[last + d].call.y = n->y + d * n->network->h_width;
    n->pointed = n->kept;
}

static int forward_in_turn(lnrnn_network_call *n)
{
    double left = n->part;
    while (n->at < line_count(n)) {
        lnrnn_rnn_call *const r = &n->line[n->at].call;
        const size_t layer = n->at / n->network->directions;
        if (!r->resumed && n->at % n->network->directions == 0 && drops_input(n, layer))
            drop(n, layer, outputs_of(n, layer - 1), training_of(n, layer)->dropped);
        if (!r->resumed)
            r->rows = dealt_rows(n, r->plan->group);
        r->part = left;
        r->resumed = !lnrnn_rnn_forward(r);
        if (r->resumed)
            return 0;
        n->at++;
        if (n->part > 0)
            left = after_line(r, 1, left);
        if (n->part > 0 && left <= 0)
            return n->at == line_count(n);
    }
    return 1;
}

int lnrnn_network_forward(lnrnn_network_call *n)
{
    if (!n->resumed)
        begin(n);
    if (!n->side_by_side)
        return forward_in_turn(n);
    if (!n->resumed) {
        const lnrnn_row *const rows = dealt_rows(n, n->line->plan.group);
        for (size_t k = 0; k < line_count(n); k++)
            n->line[k].call.rows = rows;
    }
    n->wave.scratch = n->scratch, n->wave.part = n->part, n->wave.resumed = n->resumed;
    return lnrnn_wavefront_forward(&n->wave);
}

/* --- back through time ---------------------------------------------------------------------------------- */

size_t lnrnn_network_backward_plan(const lnrnn_network_call *n, lnrnn_network_gradients *g)
{
    const lnrnn_network *const net = n->network;
    const size_t widest = output_width(n) > net->inputs ? output_width(n) : net->inputs;
    size_t floats = 0;
    for (size_t k = 0; k < line_count(n); k++) {
        const size_t work = lnrnn_rnn_backward_work(&n->line[k].call);
        floats = work > floats ? work : floats;
    }
    g->outputs[0] = lnrnn_whole_floats(floats);
    g->outputs[1] = g->outputs[0] + (net->layers > 1 ? n->buffer_floats : 0);
    g->second = g->outputs[1] + (net->layers > 2 ? n->buffer_floats : 0);
    g->sums = g->second + (net->directions > 1 ? lnrnn_whole_floats(n->steps * n->sequences * widest) : 0);
    return g->sums + lnrnn_gradient_floats(net);
}

static void point_gradients(const lnrnn_network_call *n, lnrnn_network_gradients *g)
{
    const lnrnn_network *const net = n->network;
    const size_t h = n->states * net->h_width, c = n->states * net->c_width;
    ptrdiff_t yt, yb;
    set_strides(n, &yt, &yb);
    g->line = (lnrnn_rnn_gradients *)(void *)(n->scratch + g->sums);
    lnrnn_point_parameters(net, g);
    for (size_t k = 0; k < line_count(n); k++) {
        lnrnn_rnn_gradients *const line = &g->line[k];
        const size_t layer = k / net->directions, d = k % net->directions;
        const int last = layer + 1 == net->layers;
        line->gy = (last ? g->gy : n->scratch + g->outputs[layer % 2]) + d * net->h_width;
        line->gyt = last ? g->gyt : yt, line->gyb = last ? g->gyb : yb;
        line->gx = layer ? n->scratch + g->outputs[(layer - 1) % 2] : g->gx;
        line->gxt = layer ? yt : g->gxt, line->gxb = layer ? yb : g->gxb;
        if (line->gx && net->directions == 2 && d == 0) {
            const ptrdiff_t width = (ptrdiff_t)net->config[k].D;
            line->gx = n->scratch + g->second;
            line->gxt = (ptrdiff_t)n->sequences * width, line->gxb = width;
        }
        line->ghn = g->ghn ? g->ghn + k * h : NULL;
        line->gcn = g->gcn ? g->gcn + k * c : NULL;
        line->gh0 = g->gh0 + k * h;
        line->gc0 = g->gc0 ? g->gc0 + k * c : NULL;
        line->work = n->scratch;
    }
}

/* Sets the gradient of the inputs to 0, because a line writes gx only at steps that belong to a row. */
static void clear_inputs(const lnrnn_network_call *n, const lnrnn_rnn_gradients *line, size_t width)
{
    if (n->B == n->sequences && n->B && (size_t)n->rows[n->B - 1].length == n->steps)
        return;
    for (size_t t = 0; line->gx && t < n->steps; t++)
        for (size_t b = 0; b < n->sequences; b++)
            memset(line->gx + (ptrdiff_t)t * line->gxt + (ptrdiff_t)b * line->gxb, 0, width * sizeof(float));
}

/* Adds the gradient of the inputs from direction 0 to the gradient from direction 1. */
static void add_directions(const lnrnn_network_call *n, const lnrnn_rnn_gradients *first, size_t width)
{
    LNRNN_DEFAULT_FLOATS;
    const lnrnn_rnn_gradients *const other = first + 1;
    for (size_t t = 0; first->gx && t < n->steps; t++)
        for (size_t b = 0; b < n->sequences; b++) {
            float *const sum = other->gx + (ptrdiff_t)t * other->gxt + (ptrdiff_t)b * other->gxb;
            const float *const part = first->gx + (ptrdiff_t)t * first->gxt + (ptrdiff_t)b * first->gxb;
            for (size_t i = 0; i < width; i++)
                sum[i] += part[i];
        }
}

static int backward_in_turn(lnrnn_network_call *n, lnrnn_network_gradients *g)
{
    double left = n->part;
    while (n->at) {
        const size_t k = n->at - 1, layer = k / n->network->directions, d = k % n->network->directions;
        lnrnn_rnn_call *const r = &n->line[k].call;
        lnrnn_rnn_gradients *const line = &g->line[k];
        if (!r->resumed)
            clear_inputs(n, line, r->config->D);
        r->part = left;
        r->resumed = !lnrnn_rnn_backward(r, line);
        if (r->resumed)
            return 0;
        n->at--;
        if (n->network->directions == 2 && d == 0)
            add_directions(n, line, r->config->D);
        if (d == 0 && drops_input(n, layer)) {
            float *const gradients = n->scratch + g->outputs[(layer - 1) % 2];
            drop(n, layer, gradients, gradients);
        }
        if (n->part > 0)
            left = after_line(r, 2, left);
        if (n->part > 0 && left <= 0)
            return !n->at;
    }
    return 1;
}

int lnrnn_network_backward(lnrnn_network_call *n, lnrnn_network_gradients *g)
{
    if (!n->resumed) {
        n->at = line_count(n);
        point_lines(n);
        point_gradients(n, g);
    }
    const int finished = backward_in_turn(n, g);
    if (finished)
        lnrnn_write_parameters(n->network, g);
    return finished;
}

/* --- calls in parts ------------------------------------------------------------------------------------- */

static double fixed_part;

void lnrnn_set_part(double part) { fixed_part = part; }

void lnrnn_network_begin(lnrnn_network_call *n)
{
    LNRNN_DEFAULT_FLOATS;
    const double work = n->network->step_work * (double)n->steps * (double)n->sequences;
    n->part = work < LNRNN_FIRST_PART_WORK ? 0 : LNRNN_FIRST_PART_WORK;
    if (fixed_part > 0)
        n->part = fixed_part;
    n->resumed = 0;
}

int lnrnn_network_go_on(lnrnn_network_call *n, lnrnn_network_gradients *g)
{
    const int64_t since = n->part > 0 ? lnrnn_nanoseconds() : 0;
    n->resumed = g ? !lnrnn_network_backward(n, g) : !lnrnn_network_forward(n);
    if (n->resumed && fixed_part <= 0) {
        LNRNN_DEFAULT_FLOATS;
        const double nanoseconds = 1 + (double)(lnrnn_nanoseconds() - since),
                     times = 1e9 * LNRNN_PART_SECONDS / nanoseconds;
        n->part *= times < 0.25 ? 0.25 : times > 4 ? 4 : times;
    }
    return !n->resumed;
}
