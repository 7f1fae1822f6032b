/* Threads for the norms and the recurrent layers: how a call uses a team, barriers, and functions that the
 * files of the thread code share. thread_policy.h decides how many threads. OpenMP is known to team_openmp.c
 * and cores.c alone. */
#ifndef LNRNN_THREADS_H
#define LNRNN_THREADS_H

#include <stddef.h>
#include <stdint.h>

#include "lnrnn.h"

/* A thread-local variable whose memory is reserved when the library is loaded. Otherwise glibc allocates it
 * at a thread's first use, and ends the process if there is no memory. */
#if defined(__linux__)
#define LNRNN_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define LNRNN_THREAD_LOCAL _Thread_local
#endif

/* --- parallel.c ---------------------------------------------------------------------------------------- */

/* Calls task(ctx, index, worker) once for each index 0 .. n-1, in any order. worker < threads; two tasks that
 * run at the same time have different workers. */
void lnrnn_parallel(size_t n, int threads, void (*task)(void *ctx, size_t index, int worker), void *ctx);
/* Calls body(ctx, worker, team) once in each thread of a team, in all at the same time. worker < team <=
 * threads. */
void lnrnn_team(int threads, void (*body)(void *ctx, int worker, int team), void *ctx);

/* --- barrier.c ----------------------------------------------------------------------------------------- */

/* A spin barrier of a team; zero-initialise. Each counter has a cache line of its own. */
typedef struct {
    int arrived;
    char padding[60];
    unsigned phase;     /* the number of barriers passed */
    int oversubscribed; /* set after a wait so long that a thread of the team must have lost its core */
    char more_padding[56];
} lnrnn_barrier;
_Static_assert(offsetof(lnrnn_barrier, phase) == 64,
               "threads spin on another cache line than they arrive at");
void lnrnn_barrier_wait(lnrnn_barrier *b, int team);

/* A loop that waits for another thread calls this between two looks at the awaited value. Zero-initialise the
 * struct before the loop. -> 0, or, after more than LNRNN_PREEMPTED ns, the length of the wait in ns. Such a
 * call also yields the core. */
typedef struct {
    int64_t since;
    unsigned spins;
} lnrnn_wait;
int64_t lnrnn_long_wait(lnrnn_wait *w);
/* For LNRNN_BARRIER_STAGGERED: waits longer than the other threads need to reach their next barrier. */
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

/* Is a back-off running? Then brief calls use one thread. */
int lnrnn_oversubscribed(void);
/* Starts a back-off, unless one is running. Soon after another it takes twice as long. */
void lnrnn_back_off(void);
/* A monotonic clock, in ns; always 0 on systems without one. */
int64_t lnrnn_nanoseconds(void);

/* --- team.c -------------------------------------------------------------------------------------------- */

/* May this call have a team? Not with one thread, inside another parallel region, or after a fork. */
int lnrnn_can_have_team(int threads);
/* Calls body(ctx, worker, team) in each thread of a team of at most `threads`. lnrnn_can_have_team must hold.
 * -> the size of the team. arrival: see team.h. */
int lnrnn_run_team(int threads, int64_t arrival, void (*body)(void *ctx, int worker, int team), void *ctx);

/* --- thread_probe.c ------------------------------------------------------------------------------------ */

/* -> how many of n threads can be alive at the same time, in addition to those that exist. They have ended
 * when it returns. */
int lnrnn_probe_threads(int n);
/* -> how many stacks of so many bytes fit into half of the remaining address space; INT_MAX without a limit.
 * The other half is for other allocations. */
int lnrnn_stacks_that_fit(size_t bytes);

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* --- cores.c ------------------------------------------------------------------------------------------- */

/* The limit of omp_set_num_threads in the calling thread; INT_MAX without OpenMP. */
int lnrnn_openmp_max_threads(void);

/* --- for tests ----------------------------------------------------------------------------------------- */

/* -> cpus, reduced to the quotas of the control groups that the file `groups` names, as /proc/self/cgroup
 * does. Their directories are below root. */
int lnrnn_cores_of(int cpus, const char *groups, const char *root);
/* The largest teams of the calling thread's calls, for tasks (lnrnn_parallel) and for hidden units
 * (lnrnn_team); 0 if all ran on one thread. lnrnn_teams_had returns them and sets them to 0. */
typedef struct {
    int tasks, units;
} lnrnn_teams;
lnrnn_teams *lnrnn_teams_of_thread(void);
lnrnn_teams lnrnn_teams_had(void);
/* How threads wait for each other. NORMAL: a call that waited for long starts a back-off. In the other modes
 * no call does, and threads that divide tasks begin together. STAGGERED: after a barrier one thread continues
 * later than the others. SLOW: every wait counts as a long one. */
enum { LNRNN_BARRIER_NORMAL, LNRNN_BARRIER_TOGETHER, LNRNN_BARRIER_STAGGERED, LNRNN_BARRIER_SLOW };
void lnrnn_set_barrier_mode(int mode);
int lnrnn_barrier_mode(void);
/* Backs off for so many nanoseconds, in every mode; 0 ends it. */
void lnrnn_set_back_off(int64_t nanoseconds);

#pragma GCC visibility pop

#endif
