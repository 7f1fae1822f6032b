/* The norms and the elementwise functions over threads. The text for the norms is norm_calls.h, once for each type. */
#include <string.h>

#include "lnrnn.h"
#include "lnrnn/kernels.h"

/* Below this many elements a second thread costs more than it brings. */
enum { ALONE = 1 << 16, TASK = 1 << 14 };

/* Channels to a task where a task sums over samples by columns: a multiple of every ISA's tile of columns. */
enum { CHANNELS = 64 };

/* And below this many it is not worth it where cores are shared. */
enum { LARGE = 1 << 23 };

static int team(size_t elements, int threads)
{
    return elements < ALONE || (threads > 1 && elements < LARGE && lnrnn_crowded()) ? 1 : threads;
}

/* An output of this many bytes is written past the caches: below, the caller finds it there; above, it would only push
 * out what is there, and reading it in before writing it costs a third of the time (tests/benchmarks, layer_norm and
 * batch_norm out of cache). In place, the lines are in the cache already. */
enum { PAST = 24 << 20 };

static int writes_past(int in_place, size_t bytes) { return !in_place && bytes >= PAST; }

/* Rows of n elements to a task. */
static size_t tasks_of(size_t rows, size_t n)
{
    const size_t block = TASK / (n ? n : 1);
    return block < 1 ? 1 : block > rows && rows ? rows : block;
}

/* Rows to a task of layer norm's backward, each of which has a sum of its own: at most 64 of them. */
static size_t backward_block(size_t rows, size_t n)
{
    const size_t block = tasks_of(rows, n), least = (rows + 63) / 64;
    return block < least ? least : block;
}

size_t lnrnn_layer_norm_work(size_t rows, size_t n)
{
    const size_t block = backward_block(rows, n);
    return (rows + block - 1) / block * 4 * n;
}

#define R float
#define F(name) name##_f32
#define K (&lnrnn_active()->f32)
#include "lnrnn/norm_calls.h"
#undef R
#undef F
#undef K

#define R double
#define F(name) name##_f64
#define K (&lnrnn_active()->f64)
#include "lnrnn/norm_calls.h"
#undef R
#undef F
#undef K

typedef struct {
    void (*f)(size_t, const float *, float *);
    size_t n;
    const float *x;
    float *y;
} map_job;

static void map_task(void *ctx, size_t index, int worker)
{
    const map_job *j = ctx;
    const size_t i = index * TASK, m = j->n - i < TASK ? j->n - i : TASK;
    (void)worker;
    j->f(m, j->x + i, j->y + i);
}

void lnrnn_map(int function, size_t n, const float *x, float *y, int threads)
{
    const lnrnn_kernels *k = lnrnn_active();
    map_job j = {function == LNRNN_MAP_EXP ? k->exp : function == LNRNN_MAP_TANH ? k->tanh : k->sigmoid, n, x, y};
    lnrnn_parallel((n + TASK - 1) / TASK, team(n, threads), map_task, &j);
}
