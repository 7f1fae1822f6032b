/* Batch norm's statistics of every step, folded into a scale and a shift. */
#include "rnn/fold.h"

#include <math.h>

#include "runtime/floats.h"

size_t lnrnn_known_steps(const int64_t *count, size_t steps)
{
    size_t known = 0;
    while (known < steps && count[known])
        known++;
    return known;
}

/* values (n), n <= 128: the sum in the order in which NumPy adds up the values of one row. */
static double row_sum(const double *values, size_t n)
{
    double sum = 0, part[8];
    size_t i = 0;
    if (n >= 8) {
        for (; i < 8; i++)
            part[i] = values[i];
        for (; i < n - n % 8; i++)
            part[i % 8] += values[i];
        sum = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
    }
    for (; i < n; i++)
        sum += values[i];
    return sum;
}

static double long_row_sum(const double *values, size_t n)
{
    const size_t half = n / 2 - n / 2 % 8;
    return n <= 128 ? row_sum(values, n) : long_row_sum(values, half) + long_row_sum(values + half, n - half);
}

/* values (steps, width) -> the mean of column k over the steps, with the bits of NumPy's mean(0). */
static double mean_over_steps(const double *values, size_t steps, size_t width, size_t k)
{
    double sum = values[k];
    if (width == 1)
        sum = long_row_sum(values, steps);
    else
        for (size_t t = 1; t < steps; t++)
            sum += values[t * width + k];
    return sum / (double)steps;
}

void lnrnn_fold(const lnrnn_fold_job *f, float *scale, float *shift)
{
    LNRNN_DEFAULT_FLOATS;
    for (size_t t = 0; t < f->known + (f->averages != 0); t++)
        for (size_t k = 0; k < f->width; k++) {
            const size_t at = t * f->width + k;
            const double mean = t < f->known ? f->mean[at] : mean_over_steps(f->mean, f->known, f->width, k);
            const double var = t < f->known ? f->var[at] : mean_over_steps(f->var, f->known, f->width, k);
            const double exact = f->gain[k] / sqrt(var + f->eps);
            scale[at] = (float)exact;
            shift[at] = (float)((f->bias ? (double)f->bias[k] : 0.0) - mean * exact);
        }
}
