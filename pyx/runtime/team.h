/* What team.c and the kinds of teams share. */
#ifndef LNRNN_TEAM_H
#define LNRNN_TEAM_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *name;
    /* May the calling thread have a team now? */
    int (*can)(void);
    /* body(ctx, worker, team) in each of a team of at most `threads` >= 2, worker 0 in the caller. -> how many it
     * was. arrival 0: threads may come while others are at work, or find nothing left to do, and then not come;
     * else `team` of them, which come within so many ns, run at the same time. A kind may have all come always.
     * *short_of: set to 1 if the system, not the kind's own limit, kept it from having `threads`. */
    int (*run)(int threads, int64_t arrival, void (*body)(void *ctx, int worker, int team), void *ctx,
               int *short_of);
} lnrnn_team_kind;

/* NULL: not in this build. */
const lnrnn_team_kind *lnrnn_openmp_team(void);
const lnrnn_team_kind *lnrnn_pthread_team(void);
/* Raised by lnrnn_try_threads_again, so that what failed before is tried again. */
unsigned lnrnn_team_generation(void);
#if defined(__linux__)
#include <sched.h>
/* Where OpenMP binds its threads (OMP_PROC_BIND, OMP_PLACES), it has bound the initial thread to one place as it
 * was loaded, and all that this one starts inherit that. -> set: the CPUs of all places; 1. Else 0. */
int lnrnn_bound_cpus(size_t size, cpu_set_t *set);
#endif

#endif
