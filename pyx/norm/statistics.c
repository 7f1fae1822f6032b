/* Copies and updates statistics and gradients (statistics.h). */
#include "norm/statistics.h"

#include <string.h>

#include "runtime/floats.h"

void lnrnn_write_doubles(size_t n, const double *values, void *array, int is_double, int add)
{
    LNRNN_DEFAULT_FLOATS;
    double *const doubles = array;
    float *const floats = array;
    if (!array)
        return;
    if (!is_double && !add) /* a separate loop, so that compilers vectorise it */
        for (size_t i = 0; i < n; i++)
            floats[i] = (float)values[i];
    else
        for (size_t i = 0; i < n; i++)
            if (is_double)
                /* GCOVR_EXCL_BR_LINE: gradients of float64 are not added to others */
                doubles[i] = add ? doubles[i] + values[i] : values[i];
            else
                floats[i] += (float)values[i];
}

static void read(size_t n, const void *array, int is_double, double *values)
{
    const float *const floats = array;
    if (is_double)
        memcpy(values, array, n * sizeof *values);
    else
        for (size_t i = 0; i < n; i++)
            values[i] = floats[i];
}

void lnrnn_read_running(const lnrnn_batch *b, const lnrnn_running *r)
{
    LNRNN_DEFAULT_FLOATS;
    read(b->C, r->mean, r->mean_is_double, b->mean);
    read(b->C, r->var, r->var_is_double, b->var);
}

/* Computes array = old * array + new * batch. */
static void update(size_t n, void *array, int is_double, double old, double new, const double *batch)
{
    double *const doubles = array;
    float *const floats = array;
    if (!array)
        return;
    for (size_t i = 0; i < n; i++)
        if (is_double)
            doubles[i] = old * doubles[i] + new * batch[i];
        else
            floats[i] = (float)(old * floats[i] + new * batch[i]);
}

void lnrnn_update_running(const lnrnn_batch *b, const lnrnn_running *r, double momentum)
{
    LNRNN_DEFAULT_FLOATS;
    const double n = (double)(b->N * b->L), old = 1 - momentum;
    update(b->C, r->mean, r->mean_is_double, old, momentum, b->mean);
    update(b->C, r->var, r->var_is_double, old, momentum * (n / (n - 1)), b->var);
}
