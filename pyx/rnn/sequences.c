/* lnrnn_network_run: a call of a network on whole sequences, with lengths and resets. A line is one layer in
 * one direction. */
#include <stdlib.h>
#include <string.h>

#include "file/message.h"
#include "rnn/network.h"
#include "runtime/result_memory.h"
#include "runtime/threads.h"

/* The memory blocks of a workspace: rows, calls of lines, states that the caller does not pass, and
 * scratch. */
enum { ROWS, LINES, STATES, SCRATCH, BLOCKS };

struct lnrnn_workspace {
    struct {
        void *at;
        size_t bytes;
    } block[BLOCKS];
};

/* Resets divide a sequence into parts. Each part is a row with its own state. The parts of a sequence have
 * consecutive states. */
typedef struct {
    const lnrnn_network *n;
    const lnrnn_sequences *s;
    lnrnn_workspace *workspace;
    lnrnn_row *rows;
    size_t parts;      /* the number of rows, and of states of each line */
    lnrnn_line *lines; /* (lines) */
    float *states[4];  /* (lines, parts, P or C): h0, c0, hn, cn for network.c */
} call_memory;

/* Returns a memory block of at least `bytes` bytes, not initialised, or NULL without memory. */
static void *reserve(lnrnn_workspace *w, int block, size_t bytes)
{
    if (w->block[block].bytes < bytes) {
        lnrnn_free_aligned(w->block[block].at);
        w->block[block].at = lnrnn_aligned_malloc(bytes);
        w->block[block].bytes = w->block[block].at ? bytes : 0; /* GCOVR_EXCL_BR_LINE: no memory */
    }
    return w->block[block].at;
}

static void empty(lnrnn_workspace *w)
{
    for (int k = 0; k < BLOCKS; k++)
        lnrnn_free_aligned(w->block[k].at);
}

lnrnn_workspace *lnrnn_workspace_create(void) { return calloc(1, sizeof(lnrnn_workspace)); }

void lnrnn_workspace_free(lnrnn_workspace *w)
{
    if (w) /* GCOVR_EXCL_BR_LINE: an empty workspace is tested by the plug-in */
        empty(w);
    free(w);
}

static size_t length_of(const lnrnn_sequences *s, size_t b)
{
    return s->lengths ? (size_t)s->lengths[b] : s->steps;
}

static int is_reset(const lnrnn_sequences *s, size_t t, size_t b)
{
    return s->resets && t < length_of(s, b) /* GCOVR_EXCL_BR_LINE: a step past the end is not asked for */
           && s->resets[s->batch_first ? b * s->steps + t : t * s->sequences + b];
}

/* Returns the number of rows of sequence b, and writes them if `rows` is not NULL. */
static size_t split(const lnrnn_sequences *s, size_t b, size_t state, lnrnn_row *rows)
{
    const size_t length = length_of(s, b);
    size_t n = 0, first = 0;
    for (size_t t = s->resets ? 1 : length; t <= length || !n; t++) {
        if (t < length && !is_reset(s, t, b))
            continue;
        const size_t end = t < length ? t : length;
        if (rows)
            rows[n] = (lnrnn_row){.sequence = (int64_t)b,
                                  .first = (int64_t)first,
                                  .length = (int64_t)(end - first),
                                  .end = (int64_t)(end == length ? s->steps : end),
                                  .state = (int64_t)(state + n)};
        n++, first = end;
    }
    return n;
}

static size_t width_of(const lnrnn_network *n, int cell) { return cell ? n->c_width : n->h_width; }

/* Returns 1 if size_t can hold the sizes of all arrays of the call. */
static int fits(const lnrnn_network *n, const lnrnn_sequences *s)
{
    const size_t state = n->h_width > n->c_width ? n->h_width : n->c_width,
                 states = n->layers * n->directions * state, widest = states > n->inputs ? states : n->inputs;
    size_t rows;
    return !__builtin_mul_overflow(s->steps ? s->steps : 1, s->sequences, &rows)
           && rows <= (SIZE_MAX >> 10) / widest;
}

static lnrnn_status check(const lnrnn_network *n, const lnrnn_sequences *s, char *message)
{
    const lnrnn_status status = lnrnn_check_isa(n, "network", message);
    if (status)
        return status;
    LNRNN_CHECK(s->threads >= 0 && s->threads <= LNRNN_MOST_THREADS,
                "threads must be between 0 and %d, got %d", LNRNN_MOST_THREADS, s->threads);
    LNRNN_CHECK(fits(n, s), "x must fit into memory, got %zu steps of %zu sequences", s->steps, s->sequences);
    LNRNN_CHECK(!s->steps || !s->sequences || (s->x && s->y), "%s must not be NULL", s->x ? "y" : "x");
    LNRNN_CHECK(n->states == 2 || (!s->c0 && !s->cn), "%s must be NULL in a cell without a cell state",
                s->c0 ? "c0" : "cn");
    for (size_t b = 0; s->lengths && b < s->sequences; b++)
        LNRNN_CHECK(s->lengths[b] >= 0 && (uint64_t)s->lengths[b] <= s->steps,
                    "lengths[%zu] must be between 0 and the %zu steps of x, got %lld", b, s->steps,
                    (long long)s->lengths[b]);
    return LNRNN_OK;
}

/* in = 1: copies states of sequences (lines, B, width) to states of rows; in = 0: copies back. In a forward
 * line, the first part of a sequence gets its initial state, and the last part has its final state. In a
 * reverse line, the last part gets the initial state, and the first has the final state. Other parts begin
 * with zeros. */
static void copy_states(const call_memory *m, size_t width, float *of_rows, float *of_sequences, int in)
{
    const size_t lines = m->n->layers * m->n->directions, B = m->s->sequences;
    for (size_t line = 0; line < lines; line++)
        for (size_t b = 0, state = 0; b < B; b++) {
            const size_t count = split(m->s, b, 0, NULL);
            const int from_end = m->n->config[line].reverse == in;
            float *const row = of_rows + (line * m->parts + state + (from_end ? count - 1 : 0)) * width;
            float *const sequence = of_sequences + (line * B + b) * width;
            const int skipped = in && !from_end && is_reset(m->s, 0, b);
            state += count;
            if (!skipped)
                memcpy(in ? row : sequence, in ? sequence : row, width * sizeof(float));
        }
}

/* Sets m->states: the caller's arrays, or memory of the call if the caller passes NULL or resets divide
 * sequences. */
static int take_states(call_memory *m)
{
    const lnrnn_sequences *const s = m->s;
    float *const given[4] = {(float *)s->h0, (float *)s->c0, s->hn, s->cn};
    const size_t lines = m->n->layers * m->n->directions,
                 widest = width_of(m->n, m->n->c_width > m->n->h_width);
    size_t floats, bytes;
    /* GCOVR_EXCL_BR_LINE: such states need exabytes */
    if (__builtin_mul_overflow(lines * widest, m->parts, &floats)
        /* GCOVR_EXCL_BR_LINE: such states need exabytes */
        || __builtin_mul_overflow(floats, 4 * sizeof(float), &bytes))
        return 0;
    float *owned = NULL;
    for (int k = 0; k < 4 && !owned; k++)
        if ((s->resets || !given[k]) && !(k % 2 && m->n->states == 1)) {
            owned = reserve(m->workspace, STATES, bytes ? bytes : 1);
            if (!owned) /* GCOVR_EXCL_BR_LINE: no memory */
                return 0;
            memset(owned, 0, bytes);
        }
    for (int k = 0; k < 4; k++) {
        const int in = k < 2, cell = k % 2, own = s->resets || !given[k];
        if (cell && m->n->states == 1)
            continue;
        m->states[k] = own ? owned + (size_t)k * floats : given[k];
        if (in && s->resets && given[k])
            copy_states(m, width_of(m->n, cell), m->states[k], given[k], 1);
    }
    return 1;
}

static lnrnn_status run(call_memory *m, char *message)
{
    const lnrnn_network *const n = m->n;
    const lnrnn_sequences *const s = m->s;
    const size_t B = s->sequences;
    for (size_t b = 0; b < B; b++)
        m->parts += split(s, b, 0, NULL);
    const size_t line_bytes = n->layers * n->directions * sizeof *m->lines;
    m->rows = reserve(m->workspace, ROWS, (m->parts + 1) * sizeof *m->rows);
    m->lines = reserve(m->workspace, LINES, line_bytes);
    if (!m->rows || !m->lines || !take_states(m)) /* GCOVR_EXCL_BR_LINE: no memory */
        return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory for %zu sequences", B);
    memset(m->lines, 0, line_bytes);
    for (size_t b = 0, state = 0; b < B; b++)
        state += split(s, b, state, m->rows + state);
    lnrnn_sort_rows(m->rows, m->parts);
    if (m->parts && m->rows->length > n->refused_from) /* GCOVR_EXCL_BR_LINE: there is a sequence */
        return lnrnn_fail(
            message, LNRNN_TOO_LONG, "sequence %lld has %lld steps, but statistics are known for %lld only",
            (long long)m->rows->sequence, (long long)m->rows->length, (long long)n->refused_from);
    lnrnn_network_call call = {
        .network = n, .line = m->lines, .steps = s->steps, .sequences = B, .x = s->x, .y = s->y};
    lnrnn_network_lay_out(&call, s->batch_first);
    call.rows = m->rows, call.B = call.states = m->parts;
    call.h0 = m->states[0], call.c0 = m->states[1], call.hn = m->states[2], call.cn = m->states[3];
    call.threads = s->threads ? s->threads : lnrnn_get_num_threads();
    const size_t floats = lnrnn_network_plan(&call);
    call.scratch = reserve(m->workspace, SCRATCH, floats * sizeof(float));
    if (!call.scratch) /* GCOVR_EXCL_BR_LINE: no memory */
        return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory for a call on %zu sequences", B);
    lnrnn_network_forward(&call);
    for (int k = 2; k < 2 + n->states && s->resets; k++)
        if (k == 2 ? s->hn : s->cn)
            copy_states(m, width_of(n, k == 3), m->states[k], k == 2 ? s->hn : s->cn, 0);
    return LNRNN_OK;
}

lnrnn_status lnrnn_network_run(const lnrnn_network *n, const lnrnn_sequences *s, lnrnn_workspace *w,
                               char message[LNRNN_MESSAGE])
{
    lnrnn_workspace own = {0};
    call_memory m = {.n = n, .s = s, .workspace = w ? w : &own};
    lnrnn_status status = check(n, s, message);
    if (!status && s->sequences)
        status = run(&m, message);
    if (!w)
        empty(&own);
    return status;
}
