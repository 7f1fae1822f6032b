/* Runs work in a team of threads: lnrnn_parallel distributes tasks, lnrnn_team runs one function in each
 * thread. */
#include <stddef.h>
#include <stdint.h>

#include "lnrnn/tuning.h"
#include "runtime/threads.h"

/* Queue q of Q holds the tasks q, q + Q, q + 2 Q, .. Worker w begins with queue w, because its core's cache
 * may still hold the data of these tasks from an earlier call. Then the worker takes tasks from the other
 * queues. */
enum { QUEUES = 64 };
typedef struct {
    size_t next;
    char padding[64 - sizeof(size_t)];
} task_queue;
_Static_assert(sizeof(task_queue) == 64, "a queue has a cache line of its own");

typedef struct {
    size_t n, queues;
    task_queue *queue;
    void (*task)(void *ctx, size_t index, int worker);
    void *ctx;
    int start_together;
    lnrnn_barrier start;
    /* Of worker 0: the number of its tasks, their time in ns, and the ns of the longest task. */
    size_t tasks;
    int64_t time, longest;
} task_job;

static void take_tasks(void *ctx, int worker, int team)
{
    task_job *j = ctx;
    if (j->start_together && team > 1)
        lnrnn_barrier_wait(&j->start, team);
    int64_t now = worker ? 0 : lnrnn_nanoseconds();
    for (size_t s = 0; s < j->queues; s++) {
        const size_t q = ((size_t)worker + s) % j->queues;
        size_t index;
        while ((index = q + j->queues * __atomic_fetch_add(&j->queue[q].next, 1, __ATOMIC_RELAXED)) < j->n) {
            j->task(j->ctx, index, worker);
            if (!worker) {
                const int64_t start = now, took = (now = lnrnn_nanoseconds()) - start;
                j->tasks++, j->time += took;
                j->longest = took > j->longest ? took : j->longest;
            }
        }
    }
}

/* Estimates the ns that one thread would need for all tasks, from the tasks of worker 0. It ignores the
 * longest task, in which the thread may have lost its core. */
static int64_t serial_time(const task_job *j)
{
    if (j->tasks > 1)
        return (j->time - j->longest) / (int64_t)(j->tasks - 1) * (int64_t)j->n;
    return j->time * (int64_t)j->n;
}

void lnrnn_parallel(size_t n, int threads, void (*task)(void *ctx, size_t index, int worker), void *ctx)
{
    if ((size_t)threads > n)
        threads = (int)n;
    if (!lnrnn_can_have_team(threads)) {
        for (size_t i = 0; i < n; i++)
            task(ctx, i, 0);
        return;
    }
    task_queue queue[QUEUES];
    task_job j = {.n = n,
                  .queues = threads < QUEUES ? (size_t)threads : QUEUES,
                  .queue = queue,
                  .task = task,
                  .ctx = ctx,
                  .start_together = lnrnn_barrier_mode() != LNRNN_BARRIER_NORMAL};
    for (size_t q = 0; q < j.queues; q++)
        queue[q].next = 0;
    const int64_t start = lnrnn_nanoseconds();
    const int team = lnrnn_run_team(threads, j.start_together ? INT64_MAX : 0, take_tasks, &j);
    lnrnn_teams *largest = lnrnn_teams_of_thread();
    largest->tasks = team > largest->tasks ? team : largest->tasks;
    const int64_t longer = lnrnn_nanoseconds() - start - serial_time(&j);
    if (longer > LNRNN_PREEMPTED)
        lnrnn_back_off(longer);
}

void lnrnn_team(int threads, void (*body)(void *ctx, int worker, int team), void *ctx)
{
    if (!lnrnn_can_have_team(threads)) {
        body(ctx, 0, 1);
        return;
    }
    const int64_t arrival = lnrnn_barrier_mode() == LNRNN_BARRIER_NORMAL ? LNRNN_ARRIVAL : INT64_MAX;
    const int team = lnrnn_run_team(threads, arrival, body, ctx);
    lnrnn_teams *largest = lnrnn_teams_of_thread();
    largest->units = team > largest->units ? team : largest->units;
}

lnrnn_teams lnrnn_teams_had(void)
{
    lnrnn_teams *of_thread = lnrnn_teams_of_thread(), had = *of_thread;
    *of_thread = (lnrnn_teams){0, 0};
    return had;
}
