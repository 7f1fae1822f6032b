/* One step of some lanes of a stream, through all layers. Nothing is allocated, and with one thread nothing
 * asks the system: a thread with a deadline may do it. */
#include <string.h>

#include "rnn/stream.h"

static size_t whole_lines(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

size_t lnrnn_stream_memory(const lnrnn_network *network, size_t lanes, size_t rows)
{
    return whole_lines(network->layers * sizeof(lnrnn_line)) + whole_lines(rows * sizeof(lnrnn_row))
           + whole_lines(rows * network->inputs * sizeof(float)) + lanes * sizeof(int64_t);
}

size_t lnrnn_stream_prepare(lnrnn_stream *s, void *memory)
{
    lnrnn_network_call *const call = &s->call;
    const lnrnn_network *const net = call->network;
    char *next = memory;
    call->line = (lnrnn_line *)next, next += whole_lines(net->layers * sizeof(lnrnn_line));
    s->table = (lnrnn_row *)next, next += whole_lines(s->rows * sizeof(lnrnn_row));
    s->x = (float *)next, next += whole_lines(s->rows * net->inputs * sizeof(float));
    s->seen = (int64_t *)next;
    s->stamp = 0;
    for (size_t i = 0; i < s->rows; i++)
        s->table[i] = (lnrnn_row){.sequence = (int64_t)i, .length = 1, .end = 1, .state = (int64_t)i};
    call->rows = s->table, call->B = s->rows, call->kept = 1;
    call->steps = 1, call->sequences = s->rows;
    call->x = s->x, call->xb = (ptrdiff_t)net->inputs, call->xt = 0;
    call->yb = (ptrdiff_t)net->units, call->yt = 0;
    call->states = s->lanes, call->h0 = call->hn, call->c0 = call->cn;
    return lnrnn_network_plan(call);
}

/* Sorts rows (n) by their starts. Shell's sort: qsort may allocate. */
static void sort_by_start(lnrnn_row *rows, size_t n)
{
    size_t gap = 1;
    while (gap < n / 3)
        gap = 3 * gap + 1;
    for (; gap; gap /= 3)
        for (size_t i = gap; i < n; i++) {
            const lnrnn_row row = rows[i];
            size_t j = i;
            for (; j >= gap && rows[j - gap].start > row.start; j -= gap)
                rows[j] = rows[j - gap];
            rows[j] = row;
        }
}

/* Is it a lane, and the first time in this call (a new stamp) that it is named? -> 0 or a code. */
static int named_once(lnrnn_stream *s, int64_t lane)
{
    if (lane < 0 || (uint64_t)lane >= s->lanes)
        return LNRNN_STREAM_NO_LANE;
    if (s->seen[lane] == s->stamp)
        return LNRNN_STREAM_TWICE;
    s->seen[lane] = s->stamp;
    return 0;
}

static void clear(const lnrnn_stream *s, int64_t lane)
{
    const size_t H = s->call.network->units;
    for (size_t k = 0; k < s->call.network->layers; k++) {
        memset(lnrnn_stream_state(s, k, 0) + (size_t)lane * H, 0, H * sizeof(float));
        if (s->call.cn)
            memset(lnrnn_stream_state(s, k, 1) + (size_t)lane * H, 0, H * sizeof(float));
    }
}

int lnrnn_stream_choose(lnrnn_stream *s, const int64_t *lanes, const unsigned char *resets)
{
    int64_t most = -1, least = INT64_MAX;
    s->stamp++;
    for (size_t i = 0; i < s->rows; i++) {
        const int64_t lane = lanes ? lanes[i] : (int64_t)i;
        const int wrong = named_once(s, lane);
        if (wrong)
            return wrong;
        const int64_t step = resets && resets[i] ? 0 : s->steps[lane];
        if ((uint64_t)step >= (uint64_t)s->call.network->refused_from) /* a negative one too */
            return LNRNN_STREAM_OVERRUN;
        s->table[i].sequence = (int64_t)i, s->table[i].state = lane, s->table[i].start = step;
        most = step > most ? step : most, least = step < least ? step : least;
    }
    if (s->call.network->together && most != least) /* the batch's statistics are of one step */
        return LNRNN_STREAM_TOGETHER;
    for (size_t i = 0; resets && i < s->rows; i++)
        if (resets[i])
            clear(s, s->table[i].state);
    if (s->call.network->by_step && most != least) /* so that those of one step stand together */
        sort_by_start(s->table, s->rows);
    return 0;
}

void lnrnn_stream_run(lnrnn_stream *s, float *y)
{
    s->call.y = y;
    lnrnn_network_forward(&s->call);
    for (size_t i = 0; i < s->rows; i++)
        s->steps[s->table[i].state] = s->table[i].start + 1;
}

int lnrnn_stream_step(lnrnn_stream *s, const int64_t *lanes, const float *x, float *y)
{
    if (s->call.network->together && lanes)
        return LNRNN_STREAM_TOGETHER;
    const int wrong = lnrnn_stream_choose(s, lanes, NULL);
    if (wrong)
        return wrong;
    memcpy(s->x, x, s->rows * s->call.network->inputs * sizeof(float));
    lnrnn_stream_run(s, y);
    return 0;
}

int lnrnn_stream_reset(lnrnn_stream *s, const int64_t *lanes, size_t n)
{
    if (s->call.network->together && n != s->lanes)
        return LNRNN_STREAM_TOGETHER;
    s->stamp++;
    for (size_t i = 0; i < n; i++) {
        const int wrong = named_once(s, lanes ? lanes[i] : (int64_t)i);
        if (wrong)
            return wrong;
    }
    for (size_t i = 0; i < n; i++) {
        const int64_t lane = lanes ? lanes[i] : (int64_t)i;
        clear(s, lane);
        s->steps[lane] = 0;
    }
    return 0;
}

size_t lnrnn_stream_inputs(const lnrnn_stream *s) { return s->call.network->inputs; }
size_t lnrnn_stream_units(const lnrnn_stream *s) { return s->call.network->units; }
size_t lnrnn_stream_layers(const lnrnn_stream *s) { return s->call.network->layers; }
size_t lnrnn_stream_lanes(const lnrnn_stream *s) { return s->lanes; }
size_t lnrnn_stream_rows(const lnrnn_stream *s) { return s->rows; }

float *lnrnn_stream_state(const lnrnn_stream *s, size_t layer, int cell)
{
    float *const states = cell ? s->call.cn : s->call.hn;
    const lnrnn_network *const net = s->call.network;
    return layer >= net->layers || !states ? NULL : states + layer * s->lanes * net->units;
}

const int64_t *lnrnn_stream_steps(const lnrnn_stream *s) { return s->steps; }
