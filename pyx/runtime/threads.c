/* How tasks reach threads, by way of OpenMP. Kernels know nothing of it. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>
#define LNRNN_POSIX 1
#endif
#if defined(__linux__)
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#include "lnrnn.h"

int lnrnn_has_openmp(void)
{
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

#if defined(_OPENMP) && defined(LNRNN_POSIX)
static int forked;

/* libgomp's threads do not survive a fork, and a child that asks for them waits for ever. Whether the
 * parent had any, this library cannot know: another one in the process may have used the same libgomp. */
static void after_fork(void) { forked = 1; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }
#else
enum { forked = 0 };
#endif

/* On a machine whose cores are shared, a partner that loses its core is away for a slice of the scheduler,
 * milliseconds, and a short call that waits for it takes a hundred times what one thread would. So a call
 * that one thread would have done sooner is remembered: for a while after it short calls run alone, and
 * longer if it happens again as soon as they no longer do. A neighbour who stays costs one such call in
 * LONGEST_BACK_OFF, one who passes by costs FIRST_BACK_OFF. The result is the same, to the last bit. */
enum { LONG_WAIT = 400000, FIRST_BACK_OFF = 2000000, LONGEST_BACK_OFF = 400000000 }; /* nanoseconds */

static int64_t back_off_until, back_off_length;
static int barrier_mode = LNRNN_BARRIER_NORMAL;

void lnrnn_set_barrier_mode(int mode)
{
    __atomic_store_n(&barrier_mode, mode, __ATOMIC_RELAXED);
    __atomic_store_n(&back_off_length, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&back_off_until, 0, __ATOMIC_RELAXED);
}

static int64_t nanoseconds(void)
{
#if defined(LNRNN_POSIX)
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
#else
    return 0;
#endif
}

static void back_off(void)
{
    const int64_t now = nanoseconds(), until = __atomic_load_n(&back_off_until, __ATOMIC_RELAXED);
    int64_t length = __atomic_load_n(&back_off_length, __ATOMIC_RELAXED);
    if (now < until || __atomic_load_n(&barrier_mode, __ATOMIC_RELAXED) != LNRNN_BARRIER_NORMAL)
        return;
    length = !length || now - until > 4 * length ? FIRST_BACK_OFF
             : 2 * length > LONGEST_BACK_OFF     ? LONGEST_BACK_OFF
                                                 : 2 * length;
    __atomic_store_n(&back_off_length, length, __ATOMIC_RELAXED);
    __atomic_store_n(&back_off_until, now + length, __ATOMIC_RELAXED);
}

int lnrnn_oversubscribed(void)
{
    const int64_t until = __atomic_load_n(&back_off_until, __ATOMIC_RELAXED);
    return until && nanoseconds() < until;
}

/* --- starting a team ------------------------------------------------------------------------------------------
 *
 * OpenMP has no error for a thread that cannot be started, because of a limit on processes or on memory:
 * libgomp ends the process. So before a team grows, plain threads are started here instead and, once all
 * have been alive at the same time, ended; where some could not be started, the team is smaller. They are
 * twice as many as the team will have: OpenMP ends threads when a smaller team follows, and starts others
 * for the next large one before those are gone; and who takes the last of a limit makes the next fork or
 * allocation fail.
 *
 * OpenMP keeps a team's threads waiting for the thread that called, so every calling thread tries for
 * itself: once for every size that is larger than any before, and if ever a thread could not be started,
 * for every team that grows. It is not certain: another process or library can take what was free, and
 * while threads are tried it is taken from them. */

static void (*shortage)(int wanted, int given);
static unsigned trial = 1; /* counts what lnrnn_try_threads_again was called for */

void lnrnn_on_shortage(void (*tell)(int wanted, int given))
{
    __atomic_store_n(&shortage, tell, __ATOMIC_RELEASE);
}

void lnrnn_try_threads_again(void) { __atomic_add_fetch(&trial, 1, __ATOMIC_RELAXED); }

#ifdef _OPENMP
/* What the calling thread has: threads that wait for its next call, and the most that could be started for
 * it; the trial that could not start more; and the largest teams of its calls, for lnrnn_teams_had. */
static _Thread_local struct {
    int waiting, proven;
    unsigned failed;
    lnrnn_teams teams;
} own;

#if defined(LNRNN_POSIX)
static pthread_mutex_t starting =
    PTHREAD_MUTEX_INITIALIZER; /* held until a team has its threads: trials do not overlap */
static int scarce;             /* has any not been started, ever? */
static size_t stack_bytes;     /* of OpenMP's threads; 0: the system's default */

typedef struct {
    pthread_t thread;
    long id;
    pthread_mutex_t *end;
} candidate;

static void *live(void *ctx)
{
    candidate *c = ctx;
#if defined(__linux__)
    c->id = syscall(SYS_gettid);
#endif
    pthread_mutex_lock(c->end);
    pthread_mutex_unlock(c->end);
    return NULL;
}

/* A thread that has been joined still counts against the limits until the system has taken it off its
 * lists. */
static void wait_until_gone(long id)
{
#if defined(__linux__)
    const struct timespec moment = {0, 50000};
    for (int looks = 0; looks < 20000 && syscall(SYS_tgkill, getpid(), id, 0) == 0; looks++)
        nanosleep(&moment, NULL);
#else
    (void)id;
#endif
}

/* How many stacks fit into half of the address space that `ulimit -v` leaves? The other half is for what
 * other threads allocate while these are there. */
static int stacks_that_fit(size_t bytes)
{
#if defined(__linux__)
    struct rlimit limit;
    unsigned long pages;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        FILE *f = fopen("/proc/self/statm", "r");
        const int known = f && fscanf(f, "%lu", &pages) == 1;
        if (f)
            fclose(f);
        const rlim_t used = known ? (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) : 0;
        const rlim_t fit = used < limit.rlim_cur ? (limit.rlim_cur - used) / 2 / bytes : 0;
        return fit < INT_MAX ? (int)fit : INT_MAX;
    }
#endif
    (void)bytes;
    return INT_MAX;
}

/* How many of n threads can be alive at the same time, in addition to those that there are? */
static int try_threads(int n)
{
    enum {
        RESERVE = 1 << 20
    }; /* OpenMP allocates some 100 bytes for a thread of a team, besides its stack */
    candidate *c = calloc((size_t)n, sizeof *c);
    void *reserve = malloc(RESERVE);
    pthread_mutex_t end = PTHREAD_MUTEX_INITIALIZER;
    pthread_attr_t attributes;
    sigset_t all, before;
    int started = 0;
    if (c && reserve && pthread_attr_init(&attributes) == 0) {
        if (stack_bytes)
            pthread_attr_setstacksize(&attributes,
                                      stack_bytes); /* one that is refused, OpenMP does not use either */
        size_t bytes = 1 << 20;
        pthread_attr_getstacksize(&attributes, &bytes);
        const int fit = stacks_that_fit(bytes);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all,
                        &before); /* which the new threads inherit: signals are for the others */
        pthread_mutex_lock(&end);
        for (; started < n && started < fit; started++) {
            c[started].end = &end;
            if (pthread_create(&c[started].thread, &attributes, live, &c[started]))
                break;
        }
        pthread_mutex_unlock(&end);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        for (int i = 0; i < started; i++)
            pthread_join(c[i].thread, NULL);
        for (int i = 0; i < started; i++)
            wait_until_gone(c[i].id);
        pthread_attr_destroy(&attributes);
    }
    free(reserve);
    free(c);
    return started;
}

/* A size as OMP_STACKSIZE has it: kilobytes, or what a letter B, K, M or G says. 0 if there is none. */
static size_t size_in(const char *text)
{
    if (!text)
        return 0;
    text += strspn(text, " \t");
    if (*text < '0' || *text > '9')
        return 0;
    char *end;
    const unsigned long long n = strtoull(text, &end, 10);
    end += strspn(end, " \t");
    static const char units[] = "bBkKmMgG";
    const char *unit = *end ? strchr(units, *end++) : units + 2;
    const int shift = unit ? (int)(unit - units) / 2 * 10 : 0;
    return unit && !end[strspn(end, " \t")] && n <= SIZE_MAX >> 1 >> shift ? (size_t)n << shift : 0;
}

__attribute__((constructor)) static void read_stack_size(void)
{
    stack_bytes = size_in(getenv("OMP_STACKSIZE"));
    if (!stack_bytes)
        stack_bytes = size_in(getenv("GOMP_STACKSIZE")); /* libgomp's older name for it */
}

/* The most of `threads` that a team may have. From here on until started(), no other thread gets past. */
static int startable(int threads)
{
    const int limit = omp_get_thread_limit();
    int helpers = (threads < limit ? threads : limit) - 1;
    pthread_mutex_lock(&starting);
    const unsigned now = __atomic_load_n(&trial, __ATOMIC_RELAXED);
    if (helpers > own.proven && own.failed == now)
        helpers = own.proven;
    const int larger = helpers > own.proven, more = (larger ? 2 * helpers : helpers) - own.waiting;
    if (more > 0 && (larger || scarce)) {
        const int found = try_threads(more);
        if (found < more) {
            scarce = 1;
            own.failed = now;
            helpers = (own.waiting + found) / 2;
        }
        if (larger || found < more)
            own.proven = helpers;
    }
    return 1 + helpers;
}

static void started(void) { pthread_mutex_unlock(&starting); }
#else
static int startable(int threads) { return threads; }
static void started(void) {}
#endif

/* body(ctx, worker, team) in each thread of a team of at most `threads`. -> how many it was. */
static int together(int threads, void (*body)(void *ctx, int worker, int team), void *ctx)
{
    const int grows = threads - 1 > own.waiting, given = grows ? startable(threads) : threads;
    int size = 1;
#pragma omp parallel num_threads(given)
    {
        const int worker = omp_get_thread_num(), team = omp_get_num_threads();
        if (!worker) { /* now all others have been started */
            size = team;
            if (grows)
                started();
        }
        body(ctx, worker, team);
    }
    own.waiting = size - 1;
    void (*const tell)(int, int) = __atomic_load_n(&shortage, __ATOMIC_ACQUIRE);
    if (given < threads && own.failed && tell)
        tell(threads, given);
    return size;
}

/* --- tasks ---------------------------------------------------------------------------------------------------- */

/* Worker w of T takes the tasks w, w + T, w + 2 T .. first, so that the next call on the same data finds
 * them in its own cache, and then what the others have left. */
enum { QUEUES = 64 };
typedef struct {
    size_t next;
    char padding[64 - sizeof(size_t)];
} task_queue;

typedef struct {
    size_t n, queues;
    task_queue *queue;
    void (*task)(void *ctx, size_t index, int worker);
    void *ctx;
    int together; /* do all begin at the same time? */
    lnrnn_barrier start;
    /* The time of worker 0's tasks. */
    size_t tasks;
    int64_t all, longest;
} work;

static void take_tasks(void *ctx, int worker, int team)
{
    work *w = ctx;
    if (w->together && team > 1)
        lnrnn_barrier_wait(&w->start, team);
    int64_t now = worker ? 0 : nanoseconds();
    for (size_t s = 0; s < w->queues; s++) {
        const size_t of = ((size_t)worker + s) % w->queues;
        for (size_t i;
             (i = of + w->queues * __atomic_fetch_add(&w->queue[of].next, 1, __ATOMIC_RELAXED)) < w->n;) {
            w->task(w->ctx, i, worker);
            if (!worker) {
                const int64_t before = now, took = (now = nanoseconds()) - before;
                w->tasks++, w->all += took;
                w->longest = took > w->longest ? took : w->longest;
            }
        }
    }
}
#endif

lnrnn_teams lnrnn_teams_had(void)
{
    lnrnn_teams had = {0, 0};
#ifdef _OPENMP
    had = own.teams;
    own.teams = (lnrnn_teams){0, 0};
#endif
    return had;
}

void lnrnn_parallel(size_t n, int threads, void (*task)(void *ctx, size_t index, int worker), void *ctx)
{
#ifdef _OPENMP
    if ((size_t)threads > n)
        threads = (int)n;
    if (threads > 1 && !forked && !omp_in_parallel()) {
        task_queue queue[QUEUES];
        work w = {.n = n,
                  .queues = threads < QUEUES ? (size_t)threads : QUEUES,
                  .queue = queue,
                  .task = task,
                  .ctx = ctx,
                  .together = __atomic_load_n(&barrier_mode, __ATOMIC_RELAXED) != LNRNN_BARRIER_NORMAL};
        for (size_t s = 0; s < w.queues; s++)
            queue[s].next = 0;
        const int64_t start = nanoseconds();
        const int team = together(threads, take_tasks, &w);
        own.teams.tasks = team > own.teams.tasks ? team : own.teams.tasks;
        /* What one thread would have taken: the longest task may be one in which the core was lost. */
        const int64_t serial =
            w.tasks > 1 ? (w.all - w.longest) / (int64_t)(w.tasks - 1) * (int64_t)n : w.all * (int64_t)n;
        if (nanoseconds() - start > LONG_WAIT + serial)
            back_off();
        return;
    }
#else
    (void)threads;
#endif
    for (size_t i = 0; i < n; i++)
        task(ctx, i, 0);
}

void lnrnn_team(int threads, void (*body)(void *ctx, int worker, int team), void *ctx)
{
#ifdef _OPENMP
    if (threads > 1 && !forked && !omp_in_parallel()) {
        const int team = together(threads, body, ctx);
        own.teams.units = team > own.teams.units ? team : own.teams.units;
        return;
    }
#endif
    (void)threads;
    body(ctx, 0, 1);
}

static void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void yield_core(void)
{
#if defined(LNRNN_POSIX)
    sched_yield();
#endif
}

/* For longer than others need up to where they should wait. */
static void stagger(void)
{
    for (const int64_t now = nanoseconds(); nanoseconds() - now < 200000;)
        pause_core();
}

void lnrnn_barrier_wait(lnrnn_barrier *b, int team)
{
    /* Spins between two looks at the clock. Giving the core away at once would lose it for a slice each
     * time. */
    enum { SPINS = 2000 };
    int64_t since = 0;
    const int mode = __atomic_load_n(&barrier_mode, __ATOMIC_RELAXED);
    const unsigned round = __atomic_load_n(&b->round, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&b->arrived, 1, __ATOMIC_ACQ_REL) == team) {
        __atomic_store_n(&b->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&b->round, round + 1, __ATOMIC_RELEASE);
        if (mode == LNRNN_BARRIER_STAGGERED && round % 2)
            stagger();
        return;
    }
    if (mode == LNRNN_BARRIER_SLOW)
        __atomic_store_n(&b->oversubscribed, 1, __ATOMIC_RELAXED);
    for (int spins = 1; __atomic_load_n(&b->round, __ATOMIC_ACQUIRE) == round; spins++) {
        pause_core();
        if (spins % SPINS)
            continue;
        const int64_t now = nanoseconds();
        since = since ? since : now;
        if (now - since > LONG_WAIT) {
            __atomic_store_n(&b->oversubscribed, 1, __ATOMIC_RELAXED);
            back_off();
            yield_core();
        }
    }
    if (mode == LNRNN_BARRIER_STAGGERED && round % 2 == 0)
        stagger();
}
