/* The two kinds of teams of threads (team_openmp.c, team_pool.c), and functions that they share with
 * team.c. */
#ifndef LNRNN_TEAM_H
#define LNRNN_TEAM_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/os.h"

typedef struct {
    const char *name;
    /* Returns 1 if the calling thread may have a team now. */
    int (*available)(void);
    /* Calls body(ctx, worker, team) in each thread of a team of at most `threads` >= 2; the caller is worker
     * 0. arrival = 0: workers may join at any time, and late workers that have nothing to do are not counted.
     * Otherwise all `team` threads run at the same time, and the call waits `arrival` ns for workers. OpenMP
     * always waits for all threads. Sets *short_of to 1 if the system could not start all threads. Returns
     * the size of the team. */
    int (*run)(int threads, int64_t arrival, void (*body)(void *ctx, int worker, int team), void *ctx,
               int *short_of);
} lnrnn_team_kind;

/* Each function returns NULL if this build lacks its kind of team. */
const lnrnn_team_kind *lnrnn_openmp_team(void);
const lnrnn_team_kind *lnrnn_pool_team(void);
/* Returns a counter that lnrnn_try_threads_again raises. When the counter has changed, a kind of team that
 * failed to start threads tries again. */
unsigned lnrnn_team_generation(void);
/* With OMP_PROC_BIND or OMP_PLACES, libgomp pins the initial thread at load time, and new threads inherit its
 * mask. Returns 1 and fills `set` with the CPUs of all places, or returns 0 without such a binding. */
int lnrnn_bound_cpus(lnrnn_cpus *set);

#endif
