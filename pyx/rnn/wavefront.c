/* Computes layers and directions of a network at the same time.
 *
 * A run is a group of sequences in one line (a layer in one direction). It is computed one chunk of steps at
 * a time. A chunk reads outputs of the layer before. So in the layer before, the run of the same sequences
 * must have passed the last step of the chunk. With two directions, both runs of the layer before must have
 * ended, because the reverse run computes the first step last.
 *
 * Each thread repeatedly takes a free run whose next chunk can be computed, computes that chunk and gives the
 * run back. It prefers its previous run, whose weights are in its caches, and then the lowest layer, on which
 * the other layers wait. So n threads compute n layers, each one chunk behind the layer before it. If the
 * layers cannot be divided evenly among the threads, threads prefer the last layers (`flexible`) to their
 * previous run. Otherwise one thread would compute the last layers alone at the end.
 *
 * A thread waits only for a chunk that another thread computes. No bit of a result depends on the threads:
 * one thread at a time computes a run, and chunks change no order of sums. */
#include "rnn/wavefront.h"

#include <string.h>

#include "lnrnn/tuning.h"
#include "rnn/forward.h"
#include "rnn/rows.h"
#include "runtime/floats.h"
#include "runtime/thread_policy.h"
#include "runtime/threads.h"

typedef struct {
    const lnrnn_wavefront *n;
    network_run *run; /* (lines, groups) */
    int64_t left;     /* the number of multiply-adds left in this part of the call */
} wave_job;

static size_t run_count(const lnrnn_wavefront *n) { return n->layers * n->directions * n->groups; }

static size_t position_of(const network_run *run)
{
    return __atomic_load_n(&run->position, __ATOMIC_ACQUIRE);
}

/* Returns the end of the next chunk of a run (a group in one line) that has computed `position` steps. */
static size_t next_stop(const lnrnn_wavefront *n, size_t run, size_t position)
{
    const lnrnn_line *l = &n->line[run / n->groups];
    const size_t steps = row_length(&l->call, run % n->groups * l->plan.group);
    return position < steps && steps - position > n->chunk ? position + n->chunk : steps;
}

/* Returns 1 if the layer before has computed the inputs of the run up to step `stop`. */
static int has_input(const wave_job *j, size_t run, size_t stop)
{
    const lnrnn_wavefront *n = j->n;
    const size_t layer = n->directions * n->groups, first = run / layer * layer + run % n->groups;
    if (run < layer)
        return 1;
    if (n->directions == 1)
        return position_of(&j->run[run - layer]) >= stop;
    for (size_t d = 0; d < n->directions; d++)
        if (position_of(&j->run[first - layer + d * n->groups]) != LNRNN_DONE)
            return 0;
    return 1;
}

static int can_go_on(const wave_job *j, size_t run)
{
    const size_t position = position_of(&j->run[run]);
    return position != LNRNN_DONE && has_input(j, run, next_stop(j->n, run, position));
}

/* Reserves a run for this thread until it calls `advance`. Returns 0 if another thread has the run, or its
 * next chunk cannot be computed yet. */
static int take(const wave_job *j, size_t run)
{
    network_run *const it = &j->run[run];
    int nobody = 0;
    if (__atomic_load_n(&it->taken, __ATOMIC_RELAXED) || !can_go_on(j, run)
        || !__atomic_compare_exchange_n(&it->taken, &nobody, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return 0;
    if (can_go_on(j, run)) /* test again after the reservation: another thread may have computed this chunk */
        return 1;
    __atomic_store_n(&it->taken, 0, __ATOMIC_RELEASE);
    return 0;
}

/* Takes a run and returns its number, or SIZE_MAX if no run can be taken now. own: the thread's previous run,
 * or SIZE_MAX. */
static size_t take_some(const wave_job *j, size_t own)
{
    const size_t runs = run_count(j->n), flexible = j->n->flexible * j->n->groups;
    for (size_t k = runs; k-- > flexible;)
        if (take(j, k))
            return k;
    if (own < runs && take(j, own))
        return own;
    for (size_t k = 0; k < flexible; k++)
        if (take(j, k))
            return k;
    return SIZE_MAX;
}

static void advance(wave_job *j, size_t run, float *memory)
{
    const lnrnn_wavefront *n = j->n;
    network_run *const it = &j->run[run];
    size_t position = position_of(it);
    lnrnn_forward_group(&n->line[run / n->groups].call, run % n->groups, memory, &position,
                        next_stop(n, run, position), &j->left);
    __atomic_store_n(&it->position, position, __ATOMIC_RELEASE);
    __atomic_store_n(&it->taken, 0, __ATOMIC_RELEASE);
    if (lnrnn_barrier_mode() == LNRNN_BARRIER_STAGGERED && (run + position) % 2)
        lnrnn_stagger();
}

static int all_done(const wave_job *j)
{
    for (size_t k = run_count(j->n); k-- > 0;)
        if (position_of(&j->run[k]) != LNRNN_DONE)
            return 0;
    return 1;
}

/* Computes chunks until all are done or this part of the call is used up. A thread waits for another thread
 * at most twice the time of its own last chunk: a thread that needs longer has lost its core. */
static void work(void *ctx, size_t index, int worker)
{
    wave_job *const j = ctx;
    float *const memory = j->n->scratch + (size_t)worker * j->n->worker;
    size_t own = SIZE_MAX;
    int64_t of_chunk = INT64_MAX / 4; /* the time of the last chunk in ns */
    lnrnn_wait wait = {0};
    (void)index;
    while (remaining(&j->left) > 0 && !all_done(j)) {
        const size_t run = take_some(j, own);
        if (run != SIZE_MAX) {
            const int64_t start = lnrnn_nanoseconds();
            advance(j, run, memory);
            of_chunk = lnrnn_nanoseconds() - start;
            own = run;
            wait = (lnrnn_wait){0};
        } else {
            const int64_t waited = lnrnn_long_wait(&wait);
            if (waited > LNRNN_PREEMPTED + 2 * of_chunk && j->n->brief) /* GCOVR_EXCL_BR_LINE: lost a core */
                lnrnn_back_off(waited);
        }
    }
}

/* Computes two directions at the same time: half of the threads divide the units of each direction. */
static int by_halves(lnrnn_wavefront *n, int threads)
{
    float *scratch = n->scratch;
    for (size_t k = 0; k < 2 * n->layers; k++) {
        lnrnn_rnn_call *r = &n->line[k].call;
        r->scratch = scratch;
        scratch += r->plan->scratch.floats;
        r->part = n->part;
        if (!n->resumed)
            *group_positions(r) = 0;
    }
    for (size_t k = 0; k < 2 * n->layers; k += 2) {
        const lnrnn_rnn_call *const both[2] = {&n->line[k].call, &n->line[k + 1].call};
        /* GCOVR_EXCL_BR_LINE: only if a call pauses between the two */
        if (*group_positions(both[0]) == LNRNN_DONE && *group_positions(both[1]) == LNRNN_DONE)
            continue;
        lnrnn_forward_split_pair(both, threads);
        /* GCOVR_EXCL_BR_LINE: only if a call pauses between the two */
        if (*group_positions(both[0]) != LNRNN_DONE || *group_positions(both[1]) != LNRNN_DONE)
            return 0;
    }
    return 1;
}

int lnrnn_wavefront_forward(lnrnn_wavefront *n)
{
    LNRNN_DEFAULT_FLOATS;
    const int threads = lnrnn_free_threads(n->threads, n->brief);
    if (n->halves)
        return by_halves(n, threads);
    wave_job j = {.n = n, .run = runs_at(n->scratch + (size_t)n->threads * n->worker)};
    j.left = n->part > 0 ? whole_number(n->part * threads) : INT64_MAX;
    if (!n->resumed)
        memset(j.run, 0, run_count(n) * sizeof *j.run);
    lnrnn_parallel((size_t)threads, threads, work, &j);
    return all_done(&j);
}
