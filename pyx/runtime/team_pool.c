/* Teams of threads: a pool of the system's threads.
 *
 * Idle workers are in one list. A call takes the workers that it needs, starts new workers if the list has
 * too few, and puts all workers back at its end. So calls never wait for each other. An idle worker spins for
 * LNRNN_POOL_SPIN ns, since the next call often comes at once, and then sleeps. Waking a worker takes
 * microseconds, and milliseconds on a virtual machine whose host has given the core away. A call continues
 * without workers that are late, which then spin for the next call. A forked child has no threads of its
 * parent, so it begins with an empty list. */
#include <stdlib.h>

#include "lnrnn/tuning.h"
#include "runtime/team.h"
#include "runtime/threads.h"

/* IDLE: spins until a job comes. ASLEEP: waits for `wake`. JOB: a caller has given the worker a job. BEGUN:
 * the worker runs the job. AWAITED: the worker runs the job, and the caller sleeps until `done`. The caller
 * changes IDLE and ASLEEP to JOB, JOB back to IDLE, and BEGUN to AWAITED; the worker makes all other
 * changes. */
enum { IDLE, ASLEEP, JOB, BEGUN, AWAITED };

typedef struct worker {
    int state;
    int index;
    int team; /* 0 until the caller knows which workers have arrived */
    int cpu;  /* the caller's CPU when it gave the job; -1: unknown */
    void (*body)(void *ctx, int worker, int team);
    void *ctx;
    struct worker *next; /* the next worker in the list of idle workers, or in the team of a call */
    lnrnn_thread thread;
    lnrnn_lock lock;
    lnrnn_signal wake, done;
    char padding[64]; /* threads spin on `state`, so each worker has its own cache line */
} worker;

static lnrnn_lock lock = LNRNN_LOCK; /* protects `idle` */
static worker *idle;
static unsigned failed; /* the lnrnn_team_generation in which no more threads could start */

static int state_of(const worker *w) { return __atomic_load_n(&w->state, __ATOMIC_ACQUIRE); }

/* Waits up to `ns` nanoseconds. Returns 1 if the worker's state is no longer `state`. */
static int changes(const worker *w, int state, int64_t ns)
{
    int64_t since = 0;
    for (int spins = 1;; spins++) {
        if (state_of(w) != state)
            return 1;
        lnrnn_pause_core();
        if (spins % LNRNN_SPINS)
            continue;
        const int64_t now = lnrnn_nanoseconds();
        since = since ? since : now;
        if (now - since > ns)
            return 0;
        if (now - since > LNRNN_PREEMPTED)
            lnrnn_yield();
    }
}

/* Changes the state from `from` to `to`. Returns 0 if the state was not `from`. */
static int change(worker *w, int from, int to)
{
    return __atomic_compare_exchange_n(&w->state, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static void sleep_until_woken(worker *w)
{
    lnrnn_lock_take(&w->lock);
    change(w, IDLE, ASLEEP);
    while (state_of(w) == ASLEEP)
        lnrnn_signal_wait(&w->wake, &w->lock);
    lnrnn_lock_release(&w->lock);
}

/* Do not use thread-local variables here: at the first use in a new thread glibc allocates, which reserves 64
 * MiB of address space. */
static void work(void *ctx)
{
    worker *w = ctx;
    for (;;) {
        /* If other processes use the cores, do not spin. */
        if (!changes(w, IDLE, lnrnn_oversubscribed() ? 0 : LNRNN_POOL_SPIN)) {
            sleep_until_woken(w);
            lnrnn_leave_cpu(__atomic_load_n(&w->cpu, __ATOMIC_RELAXED));
        }
        if (!change(w, JOB, BEGUN))
            continue; /* the caller has withdrawn the job */
        int team;
        while (!(team = __atomic_load_n(&w->team, __ATOMIC_ACQUIRE)))
            lnrnn_pause_core();
        w->body(w->ctx, w->index, team);
        if (__atomic_exchange_n(&w->state, IDLE, __ATOMIC_ACQ_REL) == AWAITED) {
            lnrnn_lock_take(&w->lock);
            lnrnn_signal_send(&w->done);
            lnrnn_lock_release(&w->lock);
        }
    }
}

static void give(worker *w)
{
    if (__atomic_exchange_n(&w->state, JOB, __ATOMIC_ACQ_REL) == ASLEEP) {
        lnrnn_lock_take(&w->lock);
        lnrnn_signal_send(&w->wake);
        lnrnn_lock_release(&w->lock);
    }
}

static void await(worker *w)
{
    if (changes(w, BEGUN, LNRNN_PREEMPTED))
        return;
    lnrnn_lock_take(&w->lock);
    change(w, BEGUN, AWAITED);
    while (state_of(w) == AWAITED)
        lnrnn_signal_wait(&w->done, &w->lock);
    lnrnn_lock_release(&w->lock);
}

/* --- the list ------------------------------------------------------------------------------------------- */

/* Returns a worker with a new thread, or NULL. */
static worker *start(void)
{
    lnrnn_cpus cpus;
    worker *w = malloc(sizeof *w);
    if (!w)
        return NULL; /* GCOVR_EXCL_LINE: no memory */
    *w = (worker){
        .state = IDLE, .thread = {work, w}, .lock = LNRNN_LOCK, .wake = LNRNN_SIGNAL, .done = LNRNN_SIGNAL};
    /* GCOVR_EXCL_BR_LINE: clang's OpenMP has no places here */
    if (lnrnn_thread_start(&w->thread, LNRNN_STACK, lnrnn_bound_cpus(&cpus) ? &cpus : NULL))
        return w;
    /* GCOVR_EXCL_START: tests start threads under limits that leave no room for coverage */
    free(w);
    return NULL;
    /* GCOVR_EXCL_STOP */
}

/* Takes at most n workers out of the list. Returns the first worker; `next` links the other workers. Sets
 * *taken to their number. */
static worker *take(int n, int *taken)
{
    worker *first = NULL;
    lnrnn_lock_take(&lock);
    for (*taken = 0; *taken < n && idle; ++*taken) {
        worker *w = idle;
        idle = w->next;
        w->next = first;
        first = w;
    }
    lnrnn_lock_release(&lock);
    return first;
}

static void give_back(worker *first)
{
    lnrnn_lock_take(&lock);
    while (first) {
        worker *w = first;
        first = w->next;
        w->next = idle;
        idle = w;
    }
    lnrnn_lock_release(&lock);
}

/* Starts n new workers, or as many as possible, and links them in front of `first`. Returns the new first
 * worker. It does not hold the lock, because a start takes some 20 us. */
static worker *start_more(worker *first, int n, int *started, int *short_of)
{
    const unsigned now = lnrnn_team_generation();
    const int fit = n ? lnrnn_stacks_that_fit(LNRNN_STACK) : 0;
    for (*started = 0; *started < n; ++*started) {
        worker *w = NULL;
        if (*started < fit && __atomic_load_n(&failed, __ATOMIC_RELAXED) != now)
            w = start();
        if (!w) {
            __atomic_store_n(&failed, now, __ATOMIC_RELAXED);
            *short_of = 1;
            break;
        }
        w->next = first;
        first = w;
    }
    return first;
}

/* Returns 1 always: a thread of a team can have a team too, of other workers. */
static int available(void) { return 1; }

/* Numbers the workers that arrive within `arrival` ns, and withdraws the job from the other workers. Returns
 * the size of the team. */
static int gather(worker *first, int64_t arrival)
{
    int team = 1;
    for (worker *w = first; w; w = w->next)
        /* GCOVR_EXCL_BR_LINE: a thread that arrives at the last moment */
        if (changes(w, JOB, arrival) || !change(w, JOB, IDLE))
            w->index = team++;
    return team;
}

static int run(int threads, int64_t arrival, void (*body)(void *ctx, int worker, int team), void *ctx,
               int *short_of)
{
    int taken, started, team = 1;
    worker *first = take(threads - 1, &taken);
    first = start_more(first, threads - 1 - taken, &started, short_of);
    const int cpu = lnrnn_current_cpu();
    for (worker *w = first; w; w = w->next) {
        __atomic_store_n(&w->cpu, cpu, __ATOMIC_RELAXED);
        w->body = body, w->ctx = ctx, w->index = arrival ? 0 : team++;
        __atomic_store_n(&w->team, arrival ? 0 : 1 + taken + started, __ATOMIC_RELAXED);
        give(w);
    }
    if (arrival) {
        team = gather(first, arrival);
        for (worker *w = first; w; w = w->next)
            __atomic_store_n(&w->team, team, __ATOMIC_RELEASE);
    }
    body(ctx, 0, team);
    for (worker *w = first; w; w = w->next) {
        if (change(w, JOB, IDLE)) /* GCOVR_EXCL_BR_LINE: a thread that has not begun when the caller ends */
            team--;
        await(w);
    }
    give_back(first);
    return team;
}

/* --- fork ----------------------------------------------------------------------------------------------- */

static void before_fork(void) { lnrnn_lock_take(&lock); }
static void after_fork_in_parent(void) { lnrnn_lock_release(&lock); }

/* GCOVR_EXCL_START: the child of a fork ends by _exit and writes no counts */
static void after_fork_in_child(void)
{
    lock = (lnrnn_lock)LNRNN_LOCK;
    /* Do not free the workers: another thread may have held malloc's locks at the fork. */
    idle = NULL;
}
/* GCOVR_EXCL_STOP */

__attribute__((constructor)) static void watch_forks(void)
{
    lnrnn_on_fork(before_fork, after_fork_in_parent, after_fork_in_child);
}

const lnrnn_team_kind *lnrnn_pool_team(void)
{
    static const lnrnn_team_kind kind = {LNRNN_POOL, available, run};
    return kind.name ? &kind : NULL; /* GCOVR_EXCL_BR_LINE: LNRNN_POOL is NULL where no pool exists */
}
