/* Creates and frees streams and handles for C programs: checks and memory. */
#include <stdlib.h>
#include <string.h>

#include "file/message.h"
#include "rnn/stream.h"
#include "runtime/result_memory.h"

/* Returns `bytes` bytes of 0, aligned to 64 bytes, or NULL without memory. All pages are touched, so that a
 * step causes no page fault. */
static void *zeros(size_t bytes)
{
    void *const memory = lnrnn_aligned_malloc(bytes);
    if (memory) /* GCOVR_EXCL_BR_LINE: no memory */
        memset(memory, 0, bytes);
    return memory;
}

void lnrnn_stream_of(lnrnn_stream *s, lnrnn_network *n, size_t lanes)
{
    s->network = n, s->lanes = lanes;
    s->inputs = n->inputs, s->layers = n->layers, s->h_width = n->h_width, s->c_width = n->c_width;
    s->together = n->together, s->step_work = n->step_work;
}

lnrnn_status lnrnn_stream_create(lnrnn_network *n, size_t lanes, lnrnn_stream **stream,
                                 char message[LNRNN_MESSAGE])
{
    *stream = NULL;
    LNRNN_CHECK(n->directions == 1, "network must have one direction: the second one starts at the end");
    LNRNN_CHECK(!n->config->reverse, "network must not be reversed: a reversed network starts at the end");
    LNRNN_CHECK(lanes >= 1 && lanes <= INT32_MAX, "lanes must be between 1 and %d, got %zu", INT32_MAX,
                lanes);
    const size_t steps = lnrnn_whole_lines(lanes * sizeof(int64_t)),
                 head = lnrnn_whole_lines(sizeof(lnrnn_stream));
    const size_t h = n->layers * n->h_width, c = n->layers * n->c_width;
    size_t bytes;
    lnrnn_stream *s = NULL;
    /* GCOVR_EXCL_BR_LINE: sizes beyond the address space */
    if (!__builtin_mul_overflow((h + c) * sizeof(float), lanes, &bytes)
        /* GCOVR_EXCL_BR_LINE: sizes beyond the address space */
        && !__builtin_add_overflow(bytes, head + steps, &bytes))
        s = zeros(bytes);
    if (!s) /* GCOVR_EXCL_BR_LINE: no memory */
        return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory for a stream of %zu lanes", lanes);
    lnrnn_stream_of(s, lnrnn_network_retain(n), lanes);
    s->references = 1;
    s->steps = (int64_t *)((char *)s + head);
    s->h = (float *)((char *)s->steps + steps);
    s->c = c ? s->h + h * lanes : NULL;
    *stream = s;
    return LNRNN_OK;
}

void lnrnn_stream_release(lnrnn_stream *s)
{
    if (!s || __atomic_sub_fetch(&s->references, 1, __ATOMIC_ACQ_REL))
        return;
    lnrnn_network_release(s->network);
    lnrnn_free_aligned(s);
}

/* Returns the number of bytes of a handle with its arrays. Unless h is NULL, sets the pointers to these
 * arrays, which follow h in memory. */
static size_t carve_handle(lnrnn_handle *h, const lnrnn_network *network, size_t lanes, size_t rows)
{
    const size_t table = lnrnn_whole_lines(sizeof *h),
                 x = table + lnrnn_whole_lines(rows * sizeof(lnrnn_row)),
                 seen = x + lnrnn_whole_lines(rows * network->inputs * sizeof(float)),
                 lines = seen + lnrnn_whole_lines(lanes * sizeof(int64_t));
    char *const memory = (char *)h;
    if (h) { /* GCOVR_EXCL_BR_LINE: no memory */ /* GCOVR_EXCL_BR_LINE: no memory */
        h->table = (lnrnn_row *)(memory + table), h->x = (float *)(memory + x);
        h->seen = (int64_t *)(memory + seen), h->call.line = (lnrnn_line *)(memory + lines);
    }
    return lines + lnrnn_whole_lines(network->layers * sizeof(lnrnn_line));
}

/* Plans the call of h for `rows` rows, at most h->capacity. Returns the number of floats of
 * h->call.scratch. */
static size_t plan_handle(lnrnn_handle *h, size_t rows, int threads)
{
    const lnrnn_network *const network = h->network;
    lnrnn_network_call *const call = &h->call;
    h->rows = rows;
    for (size_t i = 0; i < h->rows; i++)
        h->table[i] = (lnrnn_row){.sequence = (int64_t)i, .length = 1, .end = 1, .state = (int64_t)i};
    *call = (lnrnn_network_call){
        .network = network, .line = call->line, .scratch = call->scratch, .threads = threads};
    call->rows = h->table, call->B = h->rows, call->kept = 1;
    call->steps = 1, call->sequences = h->rows;
    call->x = h->x, call->xb = (ptrdiff_t)network->inputs;
    call->yb = (ptrdiff_t)network->h_width;
    call->states = h->stream->lanes;
    call->hn = h->stream->h, call->cn = h->stream->c;
    call->h0 = call->hn, call->c0 = call->cn;
    return lnrnn_network_plan(call);
}

int lnrnn_handle_fit(lnrnn_handle *h, size_t rows, int threads)
{
    return rows <= h->capacity && plan_handle(h, rows, threads) <= h->floats;
}

lnrnn_status lnrnn_handle_create(lnrnn_stream *s, size_t rows, int threads, lnrnn_handle **handle,
                                 char message[LNRNN_MESSAGE])
{
    lnrnn_network *const n = s->network;
    *handle = NULL;
    const lnrnn_status status = lnrnn_check_isa(n, "the stream's network", message);
    if (status) /* GCOVR_EXCL_BR_LINE: the handle checks a network that the stream has checked */
        return status;
    if (rows < 1 || rows > s->lanes || (n->together && rows != s->lanes))
        return lnrnn_fail(message, LNRNN_INVALID,
                          n->together ? "rows must be %zu, all lanes (overrun \"batch\"), got %zu"
                                      : "rows must be between 1 and the %zu lanes, got %zu",
                          s->lanes, rows);
    LNRNN_CHECK(threads >= 1 && threads <= LNRNN_MOST_THREADS, "threads must be between 1 and %d, got %d",
                LNRNN_MOST_THREADS, threads);
    /* Check first that the sizes of x, of the tables and of scratch do not overflow. */
    const size_t state = n->h_width > n->c_width ? n->h_width : n->c_width;
    const int countable = rows <= (SIZE_MAX >> 10) / (n->inputs > state ? n->inputs : state);
    /* GCOVR_EXCL_BR_LINE: sizes beyond the address space */
    lnrnn_handle *const h = countable ? zeros(carve_handle(NULL, n, s->lanes, rows)) : NULL;
    if (h) { /* GCOVR_EXCL_BR_LINE: no memory */
        h->stream = s, h->network = n, h->capacity = rows;
        carve_handle(h, n, s->lanes, rows);
        h->floats = plan_handle(h, rows, threads);
        h->call.scratch = zeros(h->floats * sizeof(float));
    }
    if (!h || !h->call.scratch) { /* GCOVR_EXCL_BR_LINE: no memory */
        lnrnn_free_aligned(h);
        return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory for a handle of %zu rows", rows);
    }
    lnrnn_network_retain(n);
    __atomic_add_fetch(&s->references, 1, __ATOMIC_RELAXED);
    *handle = h;
    return LNRNN_OK;
}

void lnrnn_handle_free(lnrnn_handle *h)
{
    if (!h)
        return;
    void *const owner = h->owner;
    void (*const release)(void *) = h->release;
    lnrnn_network_release(h->network);
    lnrnn_stream_release(h->stream);
    lnrnn_free_aligned(h->call.scratch);
    lnrnn_free_aligned(h);
    if (release)
        release(owner);
}

lnrnn_stream *lnrnn_handle_stream(const lnrnn_handle *h) { return h->stream; }
size_t lnrnn_handle_rows(const lnrnn_handle *h) { return h->rows; }
const lnrnn_network *lnrnn_stream_network(const lnrnn_stream *s) { return s->network; }
size_t lnrnn_stream_lanes(const lnrnn_stream *s) { return s->lanes; }
int64_t *lnrnn_stream_steps(const lnrnn_stream *s) { return s->steps; }

float *lnrnn_stream_state(const lnrnn_stream *s, size_t layer, int cell)
{
    float *const state = cell ? s->c : s->h;
    return state && layer < s->layers ? state + layer * s->lanes * (cell ? s->c_width : s->h_width) : NULL;
}
