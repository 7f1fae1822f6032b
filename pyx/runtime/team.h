/* The kinds of teams, and functions that they share with team.c. */
#ifndef LNRNN_TEAM_H
#define LNRNN_TEAM_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *name;
    /* May the calling thread have a team now? */
    int (*available)(void);
    /* Calls body(ctx, worker, team) in each thread of a team of at most `threads` >= 2; the caller is worker
     * 0. -> the size of the team. arrival 0: workers join whenever they come; one that comes too late has
     * nothing to do and does not count. Otherwise all `team` threads run at the same time, and the call waits
     * so many ns for workers to arrive. A kind may always wait for all of them. *short_of: set to 1 if the
     * system, and no limit of the kind itself, gave fewer threads. */
    int (*run)(int threads, int64_t arrival, void (*body)(void *ctx, int worker, int team), void *ctx,
               int *short_of);
} lnrnn_team_kind;

/* NULL if this build does not have it. */
const lnrnn_team_kind *lnrnn_openmp_team(void);
const lnrnn_team_kind *lnrnn_pthread_team(void);
/* A counter that lnrnn_try_threads_again raises: a kind tries again to start threads that it could not
 * start. */
unsigned lnrnn_team_generation(void);
#if defined(__linux__)
#include <sched.h>
/* With OMP_PROC_BIND or OMP_PLACES, libgomp pins the initial thread at load time, and threads that this one
 * starts inherit its mask. -> 1, and set = the CPUs of all places; 0 without such a binding. */
int lnrnn_bound_cpus(size_t size, cpu_set_t *set);
#endif

#endif
