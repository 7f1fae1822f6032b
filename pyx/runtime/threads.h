/* Threads for the norms and the recurrent layers: teams, barriers, and functions that the files of
 * pyx/runtime share. thread_policy.h decides how many threads a call uses. Only team_openmp.c and cores.c use
 * OpenMP. */
#ifndef LNRNN_THREADS_H
#define LNRNN_THREADS_H

#include <stddef.h>
#include <stdint.h>

#include "lnrnn.h"
#include "runtime/os.h"

/* --- parallel.c ---------------------------------------------------------------------------------------- */

/* Calls task(ctx, index, worker) once for each index 0 .. n-1, in any order. worker < threads is the number
 * of the thread, so tasks that run at the same time have different workers. */
void lnrnn_parallel(size_t n, int threads, void (*task)(void *ctx, size_t index, int worker), void *ctx);
/* Calls body(ctx, worker, team) once in each thread of a team, in all threads at the same time. worker < team
 * <= threads. */
void lnrnn_team(int threads, void (*body)(void *ctx, int worker, int team), void *ctx);

/* --- barrier.c ----------------------------------------------------------------------------------------- */

/* A spin barrier of a team; zero-initialise. Each counter has a cache line of its own. */
typedef struct {
    int arrived;
    char padding[60];
    unsigned phase;     /* the number of barriers passed */
    int oversubscribed; /* set after a long wait: a thread of the team must have lost its core */
    int ended;          /* the result of lnrnn_barrier_wait */
    int64_t begun;      /* the time of lnrnn_barrier_begin, in ns */
    char more_padding[40];
} lnrnn_barrier;
_Static_assert(offsetof(lnrnn_barrier, phase) == 64,
               "threads spin on another cache line than they arrive at");
/* Waits until all threads of the team have called this function. Returns the same value in all threads. 1: a
 * thread has waited too long, so one thread should go on alone; else 0. */
int lnrnn_barrier_wait(lnrnn_barrier *b, int team);
/* One thread of the team calls this function before its first lnrnn_barrier_wait. */
void lnrnn_barrier_begin(lnrnn_barrier *b);

/* A loop that waits for another thread calls this function in each iteration. Zero-initialise the struct
 * before the loop. Returns 0, or after more than LNRNN_PREEMPTED ns yields the core and returns the ns since
 * the first call. */
typedef struct {
    int64_t since;
    unsigned spins;
} lnrnn_wait;
int64_t lnrnn_long_wait(lnrnn_wait *w);
/* For the test mode LNRNN_BARRIER_STAGGERED: waits longer than the other threads need to reach their next
 * barrier. */
void lnrnn_stagger(void);

/* The CPU's hint for a spin loop. */
static inline void lnrnn_pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* --- backoff.c ----------------------------------------------------------------------------------------- */

/* Returns 1 during a back-off. Then brief calls use one thread. */
int lnrnn_oversubscribed(void);
/* Starts a back-off after a wait of `waited` ns, unless a back-off is running. */
void lnrnn_back_off(int64_t waited);

/* --- team.c -------------------------------------------------------------------------------------------- */

/* Returns 1 if this call may have a team: not with one thread, inside another parallel region, or after a
 * fork. */
int lnrnn_can_have_team(int threads);
/* Calls body(ctx, worker, team) in each thread of a team of at most `threads`. Call it only if
 * lnrnn_can_have_team(threads). Returns the size of the team. team.h explains `arrival`. */
int lnrnn_run_team(int threads, int64_t arrival, void (*body)(void *ctx, int worker, int team), void *ctx);
/* After a shortage of threads: lets calls try again to start all their threads. */
void lnrnn_try_threads_again(void);

/* --- thread_probe.c ------------------------------------------------------------------------------------ */

/* Starts n threads with the stacks of OpenMP's, and ends them. Returns how many of them could be alive at the
 * same time. */
int lnrnn_probe_threads(int n);

/* Exported for the Cython module. */
#pragma GCC visibility push(default)

/* --- cores.c ------------------------------------------------------------------------------------------- */

/* Returns the limit of omp_set_num_threads in the calling thread; INT_MAX without OpenMP. */
int lnrnn_openmp_max_threads(void);

/* --- for tests ----------------------------------------------------------------------------------------- */

/* Returns the smallest of `cpus` and the quotas of all control groups in the file `groups`, which has the
 * format of /proc/self/cgroup. The groups' directories are below root. */
int lnrnn_cores_of(int cpus, const char *groups, const char *root);
/* The sizes of the largest teams of this thread's calls since the last lnrnn_teams_had: in lnrnn_parallel
 * (tasks) and in lnrnn_team (hidden units). 0: all calls ran on one thread. */
typedef struct {
    int tasks, units;
} lnrnn_teams;
lnrnn_teams *lnrnn_teams_of_thread(void);
lnrnn_teams lnrnn_teams_had(void);
/* How threads wait for each other. NORMAL: a long wait starts a back-off. In the other modes no wait starts a
 * back-off, and lnrnn_parallel waits for all its threads before the first task. STAGGERED: one thread leaves
 * each barrier later than the others. SLOW: every wait counts as long, from barrier number `phase` of
 * lnrnn_set_slow_from on. */
enum { LNRNN_BARRIER_NORMAL, LNRNN_BARRIER_TOGETHER, LNRNN_BARRIER_STAGGERED, LNRNN_BARRIER_SLOW };
void lnrnn_set_barrier_mode(int mode);
int lnrnn_barrier_mode(void);
void lnrnn_set_slow_from(unsigned phase);
/* Returns whether a wait of `waited` ns is too long: longer than LNRNN_PREEMPTED, and than the mean work
 * between two of the barriers. Even on idle cores threads with steps of milliseconds do not arrive at the
 * same time. since: the ns since the team began. barriers: the number of barriers that the team has met,
 * including this barrier. */
int lnrnn_waits_too_long(int64_t waited, int64_t since, unsigned barriers);
/* Returns the length in ns of a back-off after a wait of `waited` ns. The last back-off had the length `last`
 * (0: there was none) and ended `since` ns before. */
int64_t lnrnn_next_back_off(int64_t last, int64_t since, int64_t waited);
/* Starts a back-off of this length, in every mode; 0 ends it. */
void lnrnn_set_back_off(int64_t nanoseconds);

#pragma GCC visibility pop

#endif
