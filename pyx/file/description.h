/* A network as plain values: lnrnn_description of lnrnn.h, and the arrays that it asks for. */
#ifndef LNRNN_FILE_DESCRIPTION_H
#define LNRNN_FILE_DESCRIPTION_H

#include "file/message.h"
#include "rnn/layer.h"

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* The use of an array in its layer. A gain, a bias, a mean and a variance stand at a site. */
enum {
    LNRNN_WEIGHT_IH,
    LNRNN_WEIGHT_HH,
    LNRNN_INNER_IH,
    LNRNN_INNER_HH,
    LNRNN_COUNT,
    LNRNN_AT_SITES, /* from here on by site: LNRNN_AT_SITES + 4 * site + LNRNN_GAIN .. */
    LNRNN_GAIN = 0,
    LNRNN_BIAS,
    LNRNN_MEAN,
    LNRNN_VARIANCE,
    LNRNN_ROLES = LNRNN_AT_SITES + 4 * LNRNN_SITES
};
/* The uses of the arrays of each layer and direction, in their order -> how many there are. weight_ih and
 * weight_hh come first, statistics of batch norm last. */
size_t lnrnn_description_roles(const lnrnn_description *d, int roles[LNRNN_ROLES]);
/* How many of them are parameters. */
size_t lnrnn_description_parameters(const lnrnn_description *d);

#pragma GCC visibility pop

/* Refuses statistics that no training gives: counts that rise or differ from those of layer 0, negative
 * variances. Other arrays may have any values. count: the array count_l0, or NULL without batch norm. */
lnrnn_status lnrnn_check_values(const lnrnn_array *array, const lnrnn_array *count, char *message);

#endif
