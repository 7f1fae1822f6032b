/* Tests whether threads can be started, before OpenMP starts them, because libgomp ends the process if a
 * start fails. A start can fail by limits on processes (RLIMIT_NPROC, pids.max of a control group) or on
 * memory (RLIMIT_AS). */
#define _GNU_SOURCE
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#define LNRNN_POSIX 1
#endif
#if defined(__linux__)
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#endif

#include "runtime/threads.h"

#if defined(LNRNN_POSIX)
static size_t stack_bytes; /* the stack size of OpenMP's threads; 0: the system's default */

typedef struct {
    pthread_t thread;
    long id;
    pthread_mutex_t *end;
} candidate;

static void *wait_for_end(void *ctx)
{
    candidate *c = ctx;
#if defined(__linux__)
    c->id = syscall(SYS_gettid);
#endif
    pthread_mutex_lock(c->end);
    pthread_mutex_unlock(c->end);
    return NULL;
}

/* Waits until the system has removed a joined thread: until then the thread counts against the limits. */
static void wait_until_gone(long id)
{
#if defined(__linux__)
    const struct timespec moment = {0, 50000};
    for (int looks = 0; looks < 20000 && syscall(SYS_tgkill, getpid(), id, 0) == 0; looks++)
        nanosleep(&moment, NULL); /* GCOVR_EXCL_LINE: only if the system is slow */
#else
    (void)id;
#endif
}

int lnrnn_stacks_that_fit(size_t bytes)
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

int lnrnn_probe_threads(int n)
{
    /* The number of bytes that stay free, because OpenMP allocates some 100 bytes per thread in addition to
     * its stack. */
    enum { RESERVE = 1 << 20 };
    candidate *c = calloc((size_t)n, sizeof *c);
    void *reserve = malloc(RESERVE);
    pthread_mutex_t end = PTHREAD_MUTEX_INITIALIZER;
    pthread_attr_t attributes;
    sigset_t all, usual;
    int started = 0;
    if (c && reserve && pthread_attr_init(&attributes) == 0) {
        if (stack_bytes)
            pthread_attr_setstacksize(&attributes, stack_bytes); /* fails for sizes that OpenMP ignores */
        size_t bytes = 1 << 20;
        pthread_attr_getstacksize(&attributes, &bytes);
        const int fit = lnrnn_stacks_that_fit(bytes);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &usual); /* the new threads inherit the mask and take no signals */
        pthread_mutex_lock(&end);
        for (; started < n && started < fit; started++) {
            c[started].end = &end;
            if (pthread_create(&c[started].thread, &attributes, wait_for_end, &c[started]))
                break;
        }
        pthread_mutex_unlock(&end);
        pthread_sigmask(SIG_SETMASK, &usual, NULL);
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

/* Reads a size in the notation of OMP_STACKSIZE: a number, with B, K, M or G, by default K. Returns bytes, or
 * 0 if the text is no size. */
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
        stack_bytes = size_in(getenv("GOMP_STACKSIZE")); /* libgomp's older name of the variable */
}
#else
int lnrnn_probe_threads(int n) { return n; }
#endif
