/* One step of some lanes of a stream, through all layers. Nothing is allocated, and with one thread nothing
 * asks the system: a thread with a deadline may do it. */
#include <string.h>

#include "rnn/stream.h"

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
    const size_t H = s->units;
    for (size_t k = 0; k < s->layers; k++) {
        memset(s->calls[k].hn + (size_t)lane * H, 0, H * sizeof(float));
        if (s->calls[k].cn)
            memset(s->calls[k].cn + (size_t)lane * H, 0, H * sizeof(float));
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
        if ((uint64_t)step >= (uint64_t)s->refused_from) /* a negative one too */
            return LNRNN_STREAM_OVERRUN;
        s->table[i].sequence = (int64_t)i, s->table[i].state = lane, s->table[i].start = step;
        most = step > most ? step : most, least = step < least ? step : least;
    }
    if (s->together && most != least) /* the batch's statistics are of one step */
        return LNRNN_STREAM_TOGETHER;
    for (size_t i = 0; resets && i < s->rows; i++)
        if (resets[i])
            clear(s, s->table[i].state);
    if (s->by_step && most != least) /* so that those of one step stand together */
        sort_by_start(s->table, s->rows);
    return 0;
}

void lnrnn_stream_run(lnrnn_stream *s, float *y)
{
    s->calls[s->layers - 1].y = y;
    for (size_t k = 0; k < s->layers; k++)
        lnrnn_rnn_forward(&s->calls[k]);
    for (size_t i = 0; i < s->rows; i++)
        s->steps[s->table[i].state] = s->table[i].start + 1;
}

int lnrnn_stream_step(lnrnn_stream *s, const int64_t *lanes, const float *x, float *y)
{
    if (s->together && lanes)
        return LNRNN_STREAM_TOGETHER;
    const int wrong = lnrnn_stream_choose(s, lanes, NULL);
    if (wrong)
        return wrong;
    memcpy(s->x, x, s->rows * s->inputs * sizeof(float));
    lnrnn_stream_run(s, y);
    return 0;
}

int lnrnn_stream_reset(lnrnn_stream *s, const int64_t *lanes, size_t n)
{
    if (s->together && n != s->lanes)
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

size_t lnrnn_stream_inputs(const lnrnn_stream *s) { return s->inputs; }
size_t lnrnn_stream_units(const lnrnn_stream *s) { return s->units; }
size_t lnrnn_stream_layers(const lnrnn_stream *s) { return s->layers; }
size_t lnrnn_stream_lanes(const lnrnn_stream *s) { return s->lanes; }
size_t lnrnn_stream_rows(const lnrnn_stream *s) { return s->rows; }

float *lnrnn_stream_state(const lnrnn_stream *s, size_t layer, int cell)
{
    return layer >= s->layers ? NULL : cell ? s->calls[layer].cn : s->calls[layer].hn;
}

const int64_t *lnrnn_stream_steps(const lnrnn_stream *s) { return s->steps; }

