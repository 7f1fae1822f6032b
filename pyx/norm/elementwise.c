/* The elementwise functions, on several threads. */
#include "lnrnn/kernels/table.h"
#include "norm/tasks.h"
#include "runtime/floats.h"

typedef struct {
    void (*f)(size_t, const float *, float *);
    size_t n;
    const float *x;
    float *y;
} map_job;

static void map_task(void *ctx, size_t index, int worker)
{
    const map_job *j = ctx;
    const size_t i = index * LNRNN_TASK;
    (void)worker;
    j->f(lnrnn_min(LNRNN_TASK, j->n - i), j->x + i, j->y + i);
}

void lnrnn_map(int function, size_t n, const float *x, float *y, int threads)
{
    LNRNN_DEFAULT_FLOATS;
    const lnrnn_cells *k = lnrnn_active()->cells;
    map_job j = {function == LNRNN_MAP_EXP    ? k->exp
                 : function == LNRNN_MAP_TANH ? k->tanh
                                              : k->sigmoid,
                 n, x, y};
    lnrnn_parallel(lnrnn_ceil_div(n, LNRNN_TASK), lnrnn_threads_for_elements(n, threads), map_task, &j);
}
