/* The only file that knows OpenMP: how many threads there may be, and how tasks reach them. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
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

void lnrnn_parallel(size_t n, int threads, void (*task)(void *ctx, size_t index, int worker), void *ctx)
{
#ifdef _OPENMP
    if ((size_t)threads > n)
        threads = (int)n;
    if (threads > 1 && !alone && !omp_in_parallel()) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
        for (size_t i = 0; i < n; i++)
            task(ctx, i, omp_get_thread_num());
        return;
    }
#else
    (void)threads;
#endif
    for (size_t i = 0; i < n; i++)
        task(ctx, i, 0);
}
