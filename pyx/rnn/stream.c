/* Computes one step of some lanes of a stream through all layers. It allocates nothing, and with one thread
 * it takes no lock and makes no system call, so real-time threads may call it. */
#include <string.h>

#include "rnn/stream.h"

/* Returns 0, or an error code if the stream has no lane of this number, or if this call (h->stamp) has named
 * the lane before. */
static int named_once(lnrnn_handle *h, int64_t lane)
{
    if (lane < 0 || (uint64_t)lane >= h->stream->lanes)
        return LNRNN_STREAM_NO_LANE;
    if (h->seen[lane] == h->stamp)
        return LNRNN_STREAM_TWICE;
    h->seen[lane] = h->stamp;
    return 0;
}

int lnrnn_stream_put(lnrnn_stream *s, const int64_t *lanes, size_t n, const float *const *states,
                     const int64_t *steps)
{
    const size_t layers = s->layers, kinds = s->c ? 2 : 1;
    for (size_t i = 0; i < n; i++)
        if ((uint64_t)lanes[i] >= s->lanes
            || (steps && ((uint64_t)steps[i] > LNRNN_LAST_STEP || (s->together && steps[i] != *steps))))
            return 0;
    for (size_t k = 0; states && k < kinds * layers * n; k++) {
        const size_t state = k / n / layers, layer = k / n % layers, i = k % n,
                     width = state ? s->c_width : s->h_width;
        float *const to = lnrnn_stream_state(s, layer, (int)state) + (size_t)lanes[i] * width;
        if (states[state])
            memcpy(to, states[state] + k % (layers * n) * width, width * sizeof(float));
        else
            memset(to, 0, width * sizeof(float));
    }
    for (size_t i = 0; steps && i < n; i++)
        s->steps[lanes[i]] = steps[i];
    return 1;
}

static void clear(const lnrnn_handle *h, int64_t lane)
{
    static const float *const zeros[2];
    lnrnn_stream_put(h->stream, &lane, 1, zeros, NULL);
}

int lnrnn_handle_choose(lnrnn_handle *h, const int64_t *lanes, const unsigned char *resets)
{
    int64_t most = -1, least = INT64_MAX;
    h->stamp++;
    for (size_t i = 0; i < h->rows; i++) {
        const int64_t lane = lanes ? lanes[i] : (int64_t)i;
        const int wrong = named_once(h, lane);
        if (wrong)
            return wrong;
        const int64_t step = resets && resets[i] ? 0 : h->stream->steps[lane];
        if ((uint64_t)step >= (uint64_t)h->call.network->refused_from) /* also refuses a negative step */
            return LNRNN_STREAM_OVERRUN;
        h->table[i].sequence = (int64_t)i, h->table[i].state = lane, h->table[i].start = step;
        most = step > most ? step : most, least = step < least ? step : least;
    }
    if (h->call.network->together && most != least) /* overrun="batch" needs all lanes at one step */
        return LNRNN_STREAM_TOGETHER;
    for (size_t i = 0; resets && i < h->rows; i++)
        if (resets[i])
            clear(h, h->table[i].state);
    if (h->call.network->by_step && most != least) /* kernels take adjacent rows at the same step together */
        lnrnn_sort_rows(h->table, h->rows);
    return 0;
}

void lnrnn_handle_run(lnrnn_handle *h, float *y)
{
    h->call.y = y;
    lnrnn_network_forward(&h->call);
    for (size_t i = 0; i < h->rows; i++)
        h->stream->steps[h->table[i].state] = h->table[i].start + 1;
}

/* Returns 1 if another thread is in a call of the handle. Otherwise marks the handle as busy. */
static int is_busy(lnrnn_handle *h) { return __atomic_exchange_n(&h->busy, 1, __ATOMIC_ACQUIRE); }

static lnrnn_status leave(lnrnn_handle *h, int status)
{
    __atomic_store_n(&h->busy, 0, __ATOMIC_RELEASE);
    return status;
}

lnrnn_status lnrnn_handle_step(lnrnn_handle *h, const int64_t *lanes, const float *x, float *y)
{
    if (is_busy(h))
        return LNRNN_STREAM_BUSY;
    const int wrong =
        h->call.network->together && lanes ? LNRNN_STREAM_TOGETHER : lnrnn_handle_choose(h, lanes, NULL);
    if (wrong)
        return leave(h, wrong);
    memcpy(h->x, x, h->rows * h->call.network->inputs * sizeof(float));
    lnrnn_handle_run(h, y);
    return leave(h, LNRNN_OK);
}

/* lanes (n). Returns 0 if these are numbers of different lanes of the stream, else an error code. */
static int check_lanes(lnrnn_handle *h, const int64_t *lanes, size_t n)
{
    if (h->call.network->together && n != h->stream->lanes)
        return LNRNN_STREAM_TOGETHER;
    h->stamp++;
    for (size_t i = 0; i < n; i++) {
        const int wrong = named_once(h, lanes ? lanes[i] : (int64_t)i);
        if (wrong)
            return wrong;
    }
    return 0;
}

lnrnn_status lnrnn_handle_reset(lnrnn_handle *h, const int64_t *lanes, size_t n)
{
    if (is_busy(h)) /* GCOVR_EXCL_BR_LINE: only if two threads share a handle */
        return LNRNN_STREAM_BUSY;
    const int wrong = check_lanes(h, lanes, n);
    for (size_t i = 0; i < n && !wrong; i++) {
        const int64_t lane = lanes ? lanes[i] : (int64_t)i;
        clear(h, lane);
        h->stream->steps[lane] = 0;
    }
    return leave(h, wrong);
}
