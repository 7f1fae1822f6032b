/* A network as plain values: lnrnn_description of lnrnn.h, and the arrays that it asks for. */
#ifndef LNRNN_FILE_DESCRIPTION_H
#define LNRNN_FILE_DESCRIPTION_H

#include "file/message.h"
#include "rnn/layer.h"

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
/* The use of the k-th array. */
int lnrnn_description_role(const lnrnn_description *d, size_t k);

/* Refuses statistics that no training gives: counts that rise or differ from those of layer 0, negative
 * variances. Other arrays may have any values. count: the array count_l0, or NULL without batch norm. */
lnrnn_status lnrnn_check_values(const lnrnn_array *array, const lnrnn_array *count, char *message);

#endif
