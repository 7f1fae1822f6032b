/* Statistics and gradients, which are computed in doubles, to and from the caller's arrays. */
#include "norm/statistics.h"

#include <string.h>

#include "runtime/floats.h"

void lnrnn_read_doubles(size_t n, const void *array, int is_double, double *values)
{
    LNRNN_DEFAULT_FLOATS;
    const float *const floats = array;
    if (is_double)
        memcpy(values, array, n * sizeof *values);
    else
        for (size_t i = 0; i < n; i++)
            values[i] = floats[i];
}

void lnrnn_write_doubles(size_t n, const double *values, void *array, int is_double, int add)
{
    LNRNN_DEFAULT_FLOATS;
    double *const doubles = array;
    float *const floats = array;
    for (size_t i = 0; i < n; i++)
        if (is_double)
            doubles[i] = add ? doubles[i] + values[i] : values[i];
        else
            floats[i] = add ? floats[i] + (float)values[i] : (float)values[i];
}

void lnrnn_update_statistic(size_t n, void *array, int is_double, double momentum, const double *batch,
                            size_t unbiased)
{
    LNRNN_DEFAULT_FLOATS;
    double *const doubles = array;
    float *const floats = array;
    const double old = 1 - momentum,
                 new = unbiased ? momentum * ((double)unbiased / (double)(unbiased - 1)) : momentum;
    for (size_t i = 0; i < n; i++)
        if (is_double)
            doubles[i] = old * doubles[i] + new * batch[i];
        else
            floats[i] = (float)(old * floats[i] + new * batch[i]);
}
