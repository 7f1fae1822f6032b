/* Runs tasks that stop and continue later (resumable.h). */
#include "lnrnn.h"
#include "runtime/resumable.h"
#include "runtime/threads.h"

typedef struct {
    size_t n, next;
    const size_t *position;
    int64_t left; /* multiply-adds left in this part; shared, because a thread may lose its core */
    void (*task)(void *ctx, size_t index, int worker, int64_t *left);
    void *ctx;
} parts_job;

/* Finishes a task. Without a limit, lnrnn_parallel calls this function for each task, because it prefers
 * threads whose caches may have the data. */
static void finish_task(void *ctx, size_t index, int worker)
{
    const parts_job *j = ctx;
    int64_t left = INT64_MAX;
    if (j->position[index] != LNRNN_DONE)
        j->task(j->ctx, index, worker, &left);
}

/* Runs unfinished tasks in their order in one thread, until no multiply-adds of the part are left. */
static void run_to_limit(void *ctx, size_t index, int worker)
{
    parts_job *j = ctx;
    (void)index;
    for (size_t i; remaining(&j->left) > 0 && (i = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED)) < j->n;)
        if (j->position[i] != LNRNN_DONE)
            j->task(j->ctx, i, worker, &j->left);
}

static size_t unfinished(size_t n, const size_t *position)
{
    size_t some = 0;
    for (size_t i = 0; i < n; i++)
        some += position[i] != LNRNN_DONE;
    return some;
}

int lnrnn_limited_tasks(size_t n, int threads, const size_t *position, double cost, double part,
                        void (*task)(void *ctx, size_t index, int worker, int64_t *left), void *ctx)
{
    parts_job j = {.n = n, .position = position, .task = task, .ctx = ctx};
    const size_t some = unfinished(n, position);
    if (!some)
        return 1;
    if (part > 0 && cost > part) {
        if ((size_t)threads > some)
            threads = (int)some;
        j.left = whole_number(part * threads);
        lnrnn_parallel((size_t)threads, threads, run_to_limit, &j);
    } else
        lnrnn_parallel(n, threads, finish_task, &j);
    return !unfinished(n, position);
}
