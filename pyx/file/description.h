/* The arrays of a description, which is a network as plain values. */
#ifndef LNRNN_FILE_DESCRIPTION_H
#define LNRNN_FILE_DESCRIPTION_H

#include "file/message.h"
#include "rnn/layer.h"

/* The Cython module, outside the library, calls these. */
#pragma GCC visibility push(default)

/* The use of an array in its layer. A gain, a bias, a mean and a variance belong to a site. */
enum {
    LNRNN_WEIGHT_IH,
    LNRNN_WEIGHT_HH,
    LNRNN_WEIGHT_HR,
    LNRNN_INNER_IH,
    LNRNN_INNER_HH,
    LNRNN_COUNT,
    LNRNN_AT_SITES
};
/* From LNRNN_AT_SITES on by site: LNRNN_AT_SITES + 4 * site + LNRNN_GAIN .. */
enum { LNRNN_GAIN, LNRNN_BIAS, LNRNN_MEAN, LNRNN_VARIANCE };
enum { LNRNN_ROLES = LNRNN_AT_SITES + 4 * LNRNN_SITES };
/* The uses of the arrays of each layer and direction, in their order -> how many there are. weight_ih,
 * weight_hh and weight_hr come first, statistics of batch norm last. */
size_t lnrnn_description_roles(const lnrnn_description *d, int roles[LNRNN_ROLES]);
/* How many of them are parameters. */
size_t lnrnn_description_parameters(const lnrnn_description *d);

#pragma GCC visibility pop

/* arrays (count), in any order -> used, to be freed: pointers to them in the description's order. Refuses an
 * array that is missing, unknown or doubled, another dtype and another shape. Sets d->steps to those of the
 * statistics. Reads no data. */
lnrnn_status lnrnn_match_arrays(lnrnn_description *d, const lnrnn_array *arrays, size_t count,
                                const lnrnn_array ***used, char *message);
/* Refuses statistics that no training gives: counts that rise or differ from those of layer 0, and negative
 * variances. Other arrays may have any values. */
lnrnn_status lnrnn_check_values(const lnrnn_description *d, const lnrnn_array *const *used, char *message);

#endif
