/* Counts the cores that this process may use: its CPUs, or fewer if a control group's quota is smaller. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_OPENMP)
#include <omp.h>
#endif
#if defined(_OPENMP) && _OPENMP >= 201511
#define HAS_PLACES 1
#endif

#include "lnrnn.h"
#include "runtime/team.h"
#include "runtime/threads.h"

/* Sizes of buffers for names. Linux limits paths to 4096 bytes. */
enum { GROUP = 4096, DIRECTORY = 2 * GROUP, FILENAME = DIRECTORY + 32 };

/* Returns the number of CPUs on which threads of this process may run. With OMP_PROC_BIND or OMP_PLACES,
 * libgomp pins the initial thread to the first place, so the affinity mask lacks the other CPUs. Then count
 * the CPUs of all places. */
static int processors(void)
{
#if HAS_PLACES
    /* GCOVR_EXCL_BR_LINE: clang's OpenMP has no places here */
    if (omp_get_proc_bind() != omp_proc_bind_false && omp_get_num_places() > 0)
        return omp_get_num_procs();
#endif
    return lnrnn_processors();
}

int lnrnn_bound_cpus(lnrnn_cpus *set)
{
#if HAS_PLACES
    /* GCOVR_EXCL_BR_START: clang's OpenMP has no places here */
    if (omp_get_proc_bind() == omp_proc_bind_false)
        return 0;
    const int most = (int)sizeof set->bits * CHAR_BIT;
    int count = 0;
    *set = (lnrnn_cpus){{0}};
    for (int place = 0; place < omp_get_num_places(); place++) {
        int ids[1024];
        const int n = omp_get_place_num_procs(place);
        if (n > (int)(sizeof ids / sizeof *ids))
            return 0; /* GCOVR_EXCL_LINE: an OpenMP place of more than 1024 processors */
        omp_get_place_proc_ids(place, ids);
        for (int i = 0; i < n; i++)
            if (ids[i] < most)
                count++, set->bits[ids[i] / 64] |= (uint64_t)1 << ids[i] % 64;
        /* GCOVR_EXCL_BR_STOP */
    }
    return count > 0;
#else
    (void)set;
    return 0;
#endif
}

/* Returns the number with which the file dir/name begins, or 0 if it begins with no number. */
static double number_in(const char *dir, const char *name)
{
    char path[FILENAME];
    double x = 0;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%lf", &x) != 1)
            x = 0;
        fclose(f);
    }
    return x;
}

/* Returns the number of cores that a control group's directory allows: quota / period, rounded up, at most
 * cpus. */
static int quota_of(const char *dir, int cpus)
{
    char path[FILENAME];
    double quota = 0, period = 0;
    /* Control groups version 2: "150000 100000" (quota, period), or "max 100000" without a quota. */
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    FILE *f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%lf %lf", &quota, &period) != 2)
            quota = 0;
        fclose(f);
    } else { /* version 1: microseconds; -1 without a quota */
        quota = number_in(dir, "cpu.cfs_quota_us");
        period = number_in(dir, "cpu.cfs_period_us");
    }
    if (!(quota > 0 && period > 0 && quota / period < cpus))
        return cpus;
    const int whole = (int)(quota / period);
    return whole < quota / period ? whole + 1 : whole;
}

/* Returns 1 if the comma-separated list contains `name`. */
static int listed(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *item = list; item; item = strchr(item, ',') ? strchr(item, ',') + 1 : NULL)
        if (!strncmp(item, name, n) && (!item[n] || item[n] == ','))
            return 1;
    return 0;
}

int lnrnn_cores_of(int cpus, const char *groups, const char *root)
{
    char line[GROUP], dir[DIRECTORY];
    FILE *f = fopen(groups, "r");
    while (f && fgets(line, sizeof line, f)) { /* "0::/path" or "4:cpu,cpuacct:/path" */
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        controllers++;
        group[strcspn(group, "\n")] = 0;
        if (*controllers && !listed(controllers, "cpu"))
            continue;
        for (;;) { /* the group itself and its parents */
            snprintf(dir, sizeof dir, "%s%s%s", root, *controllers ? "/cpu" : "",
                     strcmp(group, "/") ? group : "");
            cpus = quota_of(dir, cpus);
            char *slash = strrchr(group, '/');
            if (!slash)
                break;
            *slash = 0;
        }
    }
    if (f)
        fclose(f);
    return cpus;
}

int lnrnn_cores(void) { return lnrnn_within_quota(processors()); }

int lnrnn_openmp_max_threads(void)
{
#if defined(_OPENMP)
    return omp_get_max_threads();
#else
    return INT_MAX;
#endif
}
