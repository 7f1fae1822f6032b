/* The only file that knows OpenMP: how many threads there may be, and how tasks reach them. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <sched.h>
#include <unistd.h>
#define LNRNN_POSIX 1
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

static int affinity(void)
{
#if defined(__linux__)
    for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) { /* the call fails while the set is smaller than the kernel's */
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        if (!set)
            break;
        const size_t size = CPU_ALLOC_SIZE((size_t)cpus);
        const int n = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
        CPU_FREE(set);
        if (n > 0)
            return n;
    }
#endif
#if defined(LNRNN_POSIX)
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    if (n > 0)
        return (int)n;
#endif
    return 1;
}

#if defined(__linux__)
/* quota / period of a control group's directory, rounded up; 0 if there is none. */
static int quota_of(const char *dir)
{
    char path[4096 + 64], text[64] = "";
    double quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", dir); /* version 2: "max 100000" or "150000 100000" */
    FILE *f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%63s %lf", text, &period) == 2)
            quota = strcmp(text, "max") ? atof(text) : 0;
        fclose(f);
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir); /* version 1: -1 or microseconds */
        if ((f = fopen(path, "r"))) {
            if (fscanf(f, "%lf", &quota) != 1)
                quota = 0;
            fclose(f);
        }
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
        if ((f = fopen(path, "r"))) {
            if (fscanf(f, "%lf", &period) != 1)
                period = 0;
            fclose(f);
        }
    }
    if (quota <= 0 || period <= 0)
        return 0;
    const int n = (int)((quota + period - 1) / period);
    return n < 1 ? 1 : n;
}

/* The smallest quota from the process's own control group up to the root; 0 if there is none. */
static int quota(void)
{
    char line[4096], dir[4096 + 32];
    int least = 0;
    FILE *f = fopen("/proc/self/cgroup", "r");
    while (f && fgets(line, sizeof line, f)) { /* "0::/path" or "4:cpu,cpuacct:/path" */
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        controllers++;
        group[strcspn(group, "\n")] = 0;
        if (*controllers && !strstr(controllers, "cpu"))
            continue;
        for (;;) {
            snprintf(dir, sizeof dir, "/sys/fs/cgroup%s%s", *controllers ? "/cpu" : "", strcmp(group, "/") ? group : "");
            const int n = quota_of(dir);
            if (n && (!least || n < least))
                least = n;
            char *slash = strrchr(group, '/');
            if (!slash || !*group)
                break;
            *slash = 0;
        }
    }
    if (f)
        fclose(f);
    return least;
}
#else
static int quota(void) { return 0; }
#endif

int lnrnn_cores(void)
{
    const int a = affinity(), q = quota();
    return q && q < a ? q : a;
}

#if defined(_OPENMP) && defined(LNRNN_POSIX)
static int alone;

/* libgomp's threads do not survive a fork, and a child that asks for them waits for ever. Whether the parent had any,
 * this library cannot know: another one in the process may have used the same libgomp. */
static void after_fork(void) { alone = 1; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }
#else
enum { alone = 0 };
#endif

/* On a machine whose cores are shared, a partner that loses its core is away for a slice of the scheduler, milliseconds,
 * and a short call that waits for it takes a hundred times what one thread would. So a call that one thread would have
 * done sooner is remembered: for a while after it short calls run alone, and longer if it happens again as soon as they no
 * longer do. A neighbour who stays costs one such call in LONGEST_REST, one who passes by costs REST. The result is the
 * same, to the last bit. */
enum { LONG_WAIT = 400000, REST = 2000000, LONGEST_REST = 400000000 }; /* nanoseconds */

static int64_t rest_until, rest_length;

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

static void rest(void)
{
    const int64_t now = nanoseconds(), until = __atomic_load_n(&rest_until, __ATOMIC_RELAXED);
    int64_t length = __atomic_load_n(&rest_length, __ATOMIC_RELAXED);
    if (now < until)
        return;
    length = !length || now - until > 4 * length ? REST : 2 * length > LONGEST_REST ? LONGEST_REST : 2 * length;
    __atomic_store_n(&rest_length, length, __ATOMIC_RELAXED);
    __atomic_store_n(&rest_until, now + length, __ATOMIC_RELAXED);
}

int lnrnn_crowded(void)
{
    const int64_t until = __atomic_load_n(&rest_until, __ATOMIC_RELAXED);
    return until && nanoseconds() < until;
}

#ifdef _OPENMP
/* Worker w of T takes the tasks w, w + T, w + 2 T .. first, so that the next call on the same data finds them in its own
 * cache, and then what the others have left. */
enum { SHARES = 64 };
typedef struct {
    size_t next;
    char apart[64 - sizeof(size_t)];
} share;

/* The time of one worker's tasks. */
typedef struct {
    size_t tasks;
    int64_t all, longest;
} tally;

static void work_off(size_t n, size_t shares, share *left, void (*task)(void *ctx, size_t index, int worker), void *ctx,
                     int worker, tally *time)
{
    int64_t now = time ? nanoseconds() : 0;
    for (size_t s = 0; s < shares; s++) {
        const size_t own = ((size_t)worker + s) % shares;
        for (size_t i; (i = own + shares * __atomic_fetch_add(&left[own].next, 1, __ATOMIC_RELAXED)) < n;) {
            task(ctx, i, worker);
            if (time) {
                const int64_t before = now, took = (now = nanoseconds()) - before;
                time->tasks++, time->all += took;
                time->longest = took > time->longest ? took : time->longest;
            }
        }
    }
}
#endif

void lnrnn_parallel(size_t n, int threads, void (*task)(void *ctx, size_t index, int worker), void *ctx)
{
#ifdef _OPENMP
    if ((size_t)threads > n)
        threads = (int)n;
    if (threads > 1 && !alone && !omp_in_parallel()) {
        const size_t shares = threads < SHARES ? (size_t)threads : SHARES;
        share left[SHARES];
        for (size_t s = 0; s < shares; s++)
            left[s].next = 0;
        const int64_t start = nanoseconds();
        tally time = {0, 0, 0};
#pragma omp parallel num_threads(threads)
        {
            const int worker = omp_get_thread_num();
            work_off(n, shares, left, task, ctx, worker, worker ? NULL : &time);
        }
        /* What one thread would have taken: the longest task may be one in which the core was lost. */
        const int64_t serial = time.tasks > 1 ? (time.all - time.longest) / (int64_t)(time.tasks - 1) * (int64_t)n
                                              : time.all * (int64_t)n;
        if (nanoseconds() - start > LONG_WAIT + serial)
            rest();
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
    if (threads > 1 && !alone && !omp_in_parallel()) {
#pragma omp parallel num_threads(threads)
        body(ctx, omp_get_thread_num(), omp_get_num_threads());
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

void lnrnn_meet(lnrnn_barrier *b, int team)
{
    /* Spins between two looks at the clock. Giving the core away at once would lose it for a slice each time. */
    enum { SPINS = 2000 };
    int64_t since = 0;
    const unsigned round = __atomic_load_n(&b->round, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&b->arrived, 1, __ATOMIC_ACQ_REL) == team) {
        __atomic_store_n(&b->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&b->round, round + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int spins = 1; __atomic_load_n(&b->round, __ATOMIC_ACQUIRE) == round; spins++) {
        pause_core();
        if (spins % SPINS)
            continue;
        const int64_t now = nanoseconds();
        since = since ? since : now;
        if (now - since > LONG_WAIT) {
            __atomic_store_n(&b->late, 1, __ATOMIC_RELAXED);
            rest();
            yield_core();
        }
    }
}
