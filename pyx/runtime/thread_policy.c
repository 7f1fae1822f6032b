/* The answers to the four questions of thread_policy.h, in their order. */
#include "runtime/thread_policy.h"

#include <stdlib.h>

#include "lnrnn.h"
#include "lnrnn/tuning.h"
#include "runtime/threads.h"

/* --- 1. limit ------------------------------------------------------------------------------------------ */

static int number_set; /* the value of lnrnn_set_num_threads; 0: not set */
static int limit_set;  /* the value of lnrnn_set_thread_limit; 0: not set */
static int known_cores;

/* Returns the first number of OMP_NUM_THREADS if it is from 1 to 1024, else 0. */
static int number_of_environment(void)
{
    const char *text = getenv("OMP_NUM_THREADS");
    char *end = NULL;
    const long n = text ? strtol(text, &end, 10) : 0;
    while (end && *end == ' ')
        end++;
    return n >= 1 && n <= 1024 && (*end == 0 || *end == ',') ? (int)n : 0;
}

static int least(int a, int b) { return a < b ? a : b; }

/* OpenMP reads OMP_NUM_THREADS when it is loaded. This function reads the variable at each call, because it
 * may change. */
static int default_threads(int cores)
{
    const int environment = number_of_environment(), limit = __atomic_load_n(&limit_set, __ATOMIC_RELAXED);
    const int threads = environment ? environment : cores;
    return least(limit ? least(threads, limit) : threads, lnrnn_openmp_max_threads());
}

/* Counting cores reads files, so it is done once. */
static int cores_once(void)
{
    int cores = __atomic_load_n(&known_cores, __ATOMIC_RELAXED);
    if (!cores)
        __atomic_store_n(&known_cores, cores = lnrnn_cores(), __ATOMIC_RELAXED);
    return cores;
}

int lnrnn_allowed_threads(int own)
{
    const int number = own ? own : __atomic_load_n(&number_set, __ATOMIC_RELAXED);
    return number ? number : default_threads(cores_once());
}

int lnrnn_get_num_threads(void) { return lnrnn_allowed_threads(0); }

void lnrnn_set_num_threads(int n)
{
    __atomic_store_n(&number_set, n, __ATOMIC_RELAXED);
    lnrnn_try_threads_again();
}

int lnrnn_get_thread_limit(void) { return default_threads(lnrnn_cores()); }

void lnrnn_set_thread_limit(int threads)
{
    __atomic_store_n(&limit_set, 0, __ATOMIC_RELAXED);
    if (threads < lnrnn_get_thread_limit())
        __atomic_store_n(&limit_set, threads < 1 ? 1 : threads, __ATOMIC_RELAXED);
}

/* --- 2. worth it --------------------------------------------------------------------------------------- */

int lnrnn_repays_threads(double multiply_adds) { return multiply_adds >= LNRNN_THREAD_WORK; }

/* In the modes for tests, calls use as many threads as tests set. */
static int limit_by_cores(int threads)
{
    const int few = threads <= LNRNN_CORE_THREADS || lnrnn_barrier_mode() != LNRNN_BARRIER_NORMAL;
    return few ? threads : least(threads, cores_once() * LNRNN_CORE_THREADS);
}

int lnrnn_useful_threads(double multiply_adds, int threads)
{
    threads = limit_by_cores(threads);
    const double useful = 1 + multiply_adds / LNRNN_THREAD_WORK;
    return threads > useful ? (int)useful : threads;
}

int lnrnn_is_brief(double multiply_adds) { return multiply_adds < LNRNN_LARGE_WORK; }

/* --- 3. partition -------------------------------------------------------------------------------------- */

static lnrnn_partition forced;

void lnrnn_set_partition(lnrnn_partition partition) { forced = partition; }

lnrnn_partition lnrnn_choose_partition(int threads, size_t rows, size_t panels, const lnrnn_step_work *work,
                                       lnrnn_partition_time time)
{
    rows = rows ? rows : 1; /* GCOVR_EXCL_BR_LINE: callers have rows */
    /* GCOVR_EXCL_BR_LINE: tests force partitions that fit */
    if (forced.groups && forced.groups * forced.team <= threads && (size_t)forced.groups <= rows
        && (size_t)forced.team <= panels) /* GCOVR_EXCL_BR_LINE: tests force partitions that fit */
        return forced;
    lnrnn_partition best = {.groups = rows < (size_t)threads ? (int)rows : threads, .team = 1};
    double least_time = time(work, best);
    for (int team = 2; team <= threads && (size_t)team <= panels; team++) {
        const int groups = (size_t)(threads / team) < rows ? threads / team : (int)rows;
        if (groups > LNRNN_MOST_SHARED) /* GCOVR_EXCL_BR_LINE: more threads than this machine */
            continue;
        for (int divide_rows = 0; divide_rows < 2; divide_rows++) {
            const lnrnn_partition p = {.groups = groups, .team = team, .divide_rows = divide_rows};
            const double time_of_p = time(work, p);
            if (time_of_p < least_time)
                least_time = time_of_p, best = p;
        }
    }
    return best;
}

/* --- 4. free now --------------------------------------------------------------------------------------- */

int lnrnn_free_threads(int threads, int brief)
{
    return brief && threads > 1 && lnrnn_oversubscribed() ? 1 : threads;
}

int lnrnn_threads_for_elements(size_t elements, int threads)
{
    return elements < LNRNN_SERIAL ? 1 : lnrnn_free_threads(limit_by_cores(threads), elements < LNRNN_LARGE);
}
