/* A network as plain values, those of the arguments of Python's constructors; and the arrays that it asks
 * for. */
#ifndef LNRNN_FILE_DESCRIPTION_H
#define LNRNN_FILE_DESCRIPTION_H

#include <stddef.h>
#include <stdint.h>

#include "file/message.h"

enum { LNRNN_OVERRUN_RAISE, LNRNN_OVERRUN_LAST, LNRNN_OVERRUN_MEAN, LNRNN_OVERRUN_BATCH, LNRNN_OVERRUNS };

/* The enumerations are those of lnrnn.h: LNRNN_RNN .., LNRNN_ACT_TANH .., LNRNN_WEIGHT_F32 .. */
typedef struct {
    int cell, act, weights;
    size_t input_size, hidden_size, num_layers;
    int bias, batch_first, bidirectional;
    int norm;
    /* Of layer norm. LNRNN_PLACEMENTS: the cell's own placement. */
    int placement, span, cell_norm, inner_bias;
    /* Of both norms. */
    double eps;
    /* Of batch norm. max_steps 0: as many as in training. steps: rows of the statistics. momentum -1:
     * statistics are pooled by their counts. */
    size_t max_steps, steps;
    int overrun;
    double momentum;
    double zoneout[2], dropout; /* of h and c; between layers */
} lnrnn_description;

/* Fills in all that the cell decides, and refuses values that no network has. */
lnrnn_status lnrnn_description_resolve(lnrnn_description *d, char message[LNRNN_MESSAGE]);

enum { LNRNN_ARRAY_F32, LNRNN_ARRAY_F64, LNRNN_ARRAY_I64, LNRNN_ARRAY_OTHER }; /* dtypes of arrays */
enum { LNRNN_ARRAY_DIMS = 6, LNRNN_ARRAY_NAME = 64 };

typedef struct {
    const char *name;
    int dtype;
    size_t ndim, shape[LNRNN_ARRAY_DIMS];
    const void *data; /* in C order */
} lnrnn_array;

/* The number of arrays of a resolved network; and the k-th, without data, with its name in the buffer. */
size_t lnrnn_description_arrays(const lnrnn_description *d);
lnrnn_array lnrnn_description_array(const lnrnn_description *d, size_t k, char name[LNRNN_ARRAY_NAME]);
/* Refuses statistics that no training gives: counts that rise or differ from those of layer 0, negative
 * variances. Other arrays may have any values. count: the array count_l0, or NULL without batch norm. */
lnrnn_status lnrnn_check_values(const lnrnn_array *array, const lnrnn_array *count, char *message);

#endif
