/* How many threads a call uses. Four questions decide it, in this order:
 *
 *  1. limit       How many threads may the call use? Its own number, else the number of the process, else the
 *                 default. Cython asks when a call begins: lnrnn_allowed_threads.
 *  2. worth it    How many threads does the work repay? A call of little work keeps to one. plan.c and
 *                 network_plan.c ask once for a shape: lnrnn_useful_threads. For a short call Cython asks
 *                 before the first question, whose answer then does not matter: lnrnn_repays_threads.
 *  3. partition   What do the threads divide: sequences, or the hidden units of a step, or both? The cost
 *                 model (rnn/cost_model.c) gives the time of each partition. plan.c asks once for a shape:
 *                 lnrnn_choose_partition.
 *  4. free now    Are the cores free at this moment? If not, a brief call runs on one thread. Every call asks
 *                 anew, since a plan may serve many calls: lnrnn_free_threads.
 *
 * Norms and elementwise functions divide rows, so they have no third question: lnrnn_threads_for_elements
 * asks the second and the fourth. At the end team.c may get fewer threads from the system. No result depends
 * on any answer. */
#ifndef LNRNN_THREAD_POLICY_H
#define LNRNN_THREAD_POLICY_H

#include <stddef.h>

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* --- 1. limit ------------------------------------------------------------------------------------------ */

/* own: the number that the call or its context sets, or 0. Without one, that of lnrnn_set_num_threads; else
 * OMP_NUM_THREADS, or the cores that the process could use at the first call of this function. The last two
 * obey the limits of lnrnn_set_thread_limit and of omp_set_num_threads in the calling thread. Reads the
 * environment, which no other thread may change meanwhile. */
int lnrnn_allowed_threads(int own);

/* threadpoolctl finds these two by their names (lnrnn/threadpools.py).
 * The limit holds for calls without a number of their own until lnrnn_set_num_threads is called. A limit of
 * at least the default ends it. */
int lnrnn_get_thread_limit(void);
void lnrnn_set_thread_limit(int threads);

/* --- 2. worth it --------------------------------------------------------------------------------------- */

/* Can the work repay a second thread? It only compares, so the caller's floating-point flags stay as they
 * are. */
int lnrnn_repays_threads(double multiply_adds);
/* -> at most `threads`: one for each LNRNN_THREAD_WORK multiply-adds, and one more. In the default state of
 * floats.h. */
int lnrnn_useful_threads(double multiply_adds, int threads);
/* Is the work so little that a lost time slice would decide its time? */
int lnrnn_is_brief(double multiply_adds);

/* --- 3. partition -------------------------------------------------------------------------------------- */

/* `groups` of sequences at a time, each computed by a team of `team` threads. A team of two or more divides
 * the hidden units of a step. With divide_rows it divides the rows of the new states too, which takes a
 * second barrier; otherwise every thread computes the states of all rows. */
typedef struct {
    int groups, team, divide_rows;
} lnrnn_partition;

/* A step of a layer, for the cost model: rnn/cost_model.h. */
typedef struct lnrnn_step_work lnrnn_step_work;
typedef double (*lnrnn_partition_time)(const lnrnn_step_work *work, lnrnn_partition partition);

/* The partition of `rows` sequences, and of weights in so many panels, among at most `threads` threads for
 * which time(work, partition) is the least. Of equal ones it is the one with the smaller team. */
lnrnn_partition lnrnn_choose_partition(int threads, size_t rows, size_t panels, const lnrnn_step_work *work,
                                       lnrnn_partition_time time);
/* For tests: choose this partition wherever the arguments allow it; groups 0: the fastest again. */
void lnrnn_set_partition(lnrnn_partition partition);

/* --- 4. free now --------------------------------------------------------------------------------------- */

/* -> threads; or 1 if the work is brief and other processes use the cores (backoff.c). */
int lnrnn_free_threads(int threads, int brief);

/* Questions 2 and 4 for a norm or an elementwise function of so many elements. */
int lnrnn_threads_for_elements(size_t elements, int threads);

#pragma GCC visibility pop

#endif
