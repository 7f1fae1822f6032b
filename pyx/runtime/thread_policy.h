/* Decides how many threads a call uses, by four questions in this order:
 *
 *  1. limit       How many threads may the call use? Its own number, else the number of the process, else the
 *                 default. Cython asks when a call begins: lnrnn_allowed_threads.
 *  2. worth it    How many threads does the work repay? A call of little work uses one, and no call uses more
 *                 than LNRNN_CORE_THREADS for each core (except in test modes of threads.h). plan.c and
 *                 network_plan.c ask once for a shape: lnrnn_useful_threads. For a short call Cython asks
 *                 this first (lnrnn_repays_threads): if the answer is one, the limit does not matter.
 *  3. partition   What do the threads divide: sequences, or the hidden units of a step, or both? The cost
 *                 model (rnn/cost_model.c) predicts the time of each partition. plan.c asks once for a shape:
 *                 lnrnn_choose_partition.
 *  4. free now    Are the cores free at this moment? If not, a brief call runs on one thread. Every call asks
 *                 again, because a plan may serve many calls: lnrnn_free_threads.
 *
 * Norms and elementwise functions always divide rows, so they skip question 3: lnrnn_threads_for_elements
 * answers 2 and 4. Finally, the system may give team.c fewer threads. No result depends on any answer. */
#ifndef LNRNN_THREAD_POLICY_H
#define LNRNN_THREAD_POLICY_H

#include <stddef.h>

/* Exported for the Cython module. */
#pragma GCC visibility push(default)

/* --- 1. limit ------------------------------------------------------------------------------------------ */

/* Returns `own`, the number that the call or its context sets. If own is 0, returns the number of
 * lnrnn_set_num_threads, else OMP_NUM_THREADS, else the number of cores at the first call of this function.
 * The limits of lnrnn_set_thread_limit and omp_set_num_threads (in the calling thread) hold for
 * OMP_NUM_THREADS and the number of cores. */
int lnrnn_allowed_threads(int own);

/* threadpoolctl calls the next two functions by name (lnrnn/threadpools.py). The limit holds for calls that
 * set no number, until lnrnn_set_num_threads is called. A limit that is not below the default removes the
 * limit. */
int lnrnn_get_thread_limit(void);
void lnrnn_set_thread_limit(int threads);

/* --- 2. worth it --------------------------------------------------------------------------------------- */

/* Returns 1 if the work repays a second thread. The function only compares, so the caller's floating-point
 * flags stay unchanged. */
int lnrnn_repays_threads(double multiply_adds);
/* Returns a number of threads: one for each LNRNN_THREAD_WORK multiply-adds, and one more, but at most
 * `threads` and LNRNN_CORE_THREADS for each core.
 * Call it in the default state of floats.h. */
int lnrnn_useful_threads(double multiply_adds, int threads);
/* Returns 1 if the work takes less time than a time slice of the scheduler, which a thread may lose. */
int lnrnn_is_brief(double multiply_adds);

/* --- 3. partition -------------------------------------------------------------------------------------- */

/* `groups` teams of `team` threads each; a team computes one group of sequences at a time. A team of two or
 * more threads divides the hidden units of a step. With divide_rows the threads also divide the rows of the
 * new states, which needs a second barrier. Otherwise every thread computes the states of all rows. */
typedef struct {
    int groups, team, divide_rows;
} lnrnn_partition;

/* Describes a step of a layer for the cost model: rnn/cost_model.h. */
typedef struct lnrnn_step_work lnrnn_step_work;
typedef double (*lnrnn_partition_time)(const lnrnn_step_work *work, lnrnn_partition partition);

/* Divides `rows` sequences and `panels` panels of weights among at most `threads` threads. Returns the
 * partition with the least time(work, partition), and with equal times the smaller team. */
lnrnn_partition lnrnn_choose_partition(int threads, size_t rows, size_t panels, const lnrnn_step_work *work,
                                       lnrnn_partition_time time);
/* For tests: lnrnn_choose_partition returns this partition if the arguments allow it; groups 0: the fastest
 * partition again. */
void lnrnn_set_partition(lnrnn_partition partition);

/* --- 4. free now --------------------------------------------------------------------------------------- */

/* Returns `threads`, or 1 if the work is brief and other processes use the cores (backoff.c). */
int lnrnn_free_threads(int threads, int brief);

/* Returns the number of threads for a norm or an elementwise function of `elements` elements (questions 2 and
 * 4 above). */
int lnrnn_threads_for_elements(size_t elements, int threads);

#pragma GCC visibility pop

#endif
