/* Threads: tasks and teams for the norms and the recurrent layers, and what the files of the thread code
 * share. OpenMP is known to team_openmp.c and cores.c alone. */
#ifndef LNRNN_THREADS_H
#define LNRNN_THREADS_H

#include <stddef.h>
#include <stdint.h>

#include "lnrnn.h"

/* A thread-local variable whose place is reserved as the library is loaded. Else glibc allocates it at a thread's
 * first use, and ends the process where there is no memory. */
#if defined(__linux__)
#define LNRNN_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define LNRNN_THREAD_LOCAL _Thread_local
#endif

/* --- tasks.c ------------------------------------------------------------------------------------------- */

/* task(ctx, index, worker) for index 0 .. n-1, each once, in any order; worker < threads, and no two tasks
 * that run at the same time have the same worker. */
void lnrnn_parallel(size_t n, int threads, void (*task)(void *ctx, size_t index, int worker), void *ctx);
/* body(ctx, worker, team) once in each thread of a team, all at the same time: team <= threads of them,
 * worker < team. */
void lnrnn_team(int threads, void (*body)(void *ctx, int worker, int team), void *ctx);

/* --- barrier.c ----------------------------------------------------------------------------------------- */

/* Spin barrier of a team; zero-initialise. Each counter has a cache line of its own. */
typedef struct {
    int arrived;
    char padding[60];
    unsigned round;
    int oversubscribed; /* set when a wait was so long that a thread of the team must have lost its core */
    char more_padding[56];
} lnrnn_barrier;
void lnrnn_barrier_wait(lnrnn_barrier *b, int team);
/* A wait for what another thread is to change, which the caller looks at after each call of lnrnn_long_wait;
 * zero-initialise. -> 0; or, from LNRNN_PREEMPTED on, how long it has been, in ns: then others have been offered the
 * core. */
typedef struct {
    int64_t since;
    unsigned spins;
} lnrnn_patience;
int64_t lnrnn_long_wait(lnrnn_patience *p);
/* For LNRNN_BARRIER_STAGGERED: longer than the other threads need to reach their next barrier. */
void lnrnn_stagger(void);

/* Between two looks at what another thread is to change. */
static inline void lnrnn_pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* --- backoff.c ----------------------------------------------------------------------------------------- */

/* True while backing off from oversubscribed cores: short work is better done by one thread. */
int lnrnn_oversubscribed(void);
/* Starts a time for which lnrnn_oversubscribed is true, unless one runs; soon after another it is twice as
 * long. */
void lnrnn_back_off(void);
/* A monotonic clock, in ns; always 0 on systems without one. */
int64_t lnrnn_nanoseconds(void);

/* --- team.c -------------------------------------------------------------------------------------------- */

/* May this call have a team? Not with one thread, inside another parallel region, or after a fork. */
int lnrnn_can_have_team(int threads);
/* body(ctx, worker, team) in each thread of a team of at most `threads`, which may have one. -> how many it
 * was. patience: as team.h has it. */
int lnrnn_run_team(int threads, int64_t patience, void (*body)(void *ctx, int worker, int team), void *ctx);

/* --- trial.c ------------------------------------------------------------------------------------------- */

/* How many of n threads can be alive at the same time, in addition to those that there are? They have ended
 * when it returns. */
int lnrnn_try_threads(int n);
/* How many stacks of so many bytes fit into half of the address space that a limit leaves? INT_MAX without
 * a limit. The other half is for what is allocated besides. */
int lnrnn_stacks_that_fit(size_t bytes);

/* --- cores.c ------------------------------------------------------------------------------------------- */

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* How many threads a call may use where nobody has said it here; and no more than so many from now on, which
 * ends when as many are set as there would be without. threadpoolctl finds these two by their names
 * (lnrnn/threadpools.py). */
int lnrnn_get_thread_limit(void);
void lnrnn_set_thread_limit(int threads);

/* --- what the tests read and set ----------------------------------------------------------------------- */

/* cpus, but no more than the quotas of the control groups in a file like /proc/self/cgroup allow, whose
 * directories are below root. */
int lnrnn_cores_of(int cpus, const char *groups, const char *root);
/* The largest teams of the calling thread's calls, where tasks were divided (lnrnn_parallel) and where units
 * were (lnrnn_team); 0: all ran on one thread. lnrnn_teams_had returns them and begins anew. */
typedef struct {
    int tasks, units;
} lnrnn_teams;
lnrnn_teams *lnrnn_teams_of_thread(void);
lnrnn_teams lnrnn_teams_had(void);
/* How threads wait for each other. NORMAL: as fast as they can; a call that waited for long starts a
 * back-off. In all other modes none does, and threads that divide tasks begin together. STAGGERED: after a
 * barrier they go on one later than the other. SLOW: every wait counts as a long one. */
enum { LNRNN_BARRIER_NORMAL, LNRNN_BARRIER_TOGETHER, LNRNN_BARRIER_STAGGERED, LNRNN_BARRIER_SLOW };
void lnrnn_set_barrier_mode(int mode);
/* Backs off for so many nanoseconds, in every mode; 0: no longer. */
void lnrnn_set_back_off(int64_t nanoseconds);
int lnrnn_barrier_mode(void);

#pragma GCC visibility pop

#endif
