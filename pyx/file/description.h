/* The arrays of a network with a given description. */
#ifndef LNRNN_FILE_DESCRIPTION_H
#define LNRNN_FILE_DESCRIPTION_H

#include "file/message.h"
#include "rnn/layer.h"

extern const char lnrnn_act_names[];       /* for errors: "one of 'tanh', .." */
extern const char lnrnn_placement_names[]; /* for errors: "one of 'joint', .." */
/* Returns the index of `text` among `names`, which are texts in single quotes, or -1. */
int lnrnn_place(const char *text, const char *names);

/* Exported for the Cython module. */
#pragma GCC visibility push(default)

/* The role of an array in its layer. Gains, biases, means and variances belong to a site: one of the norms in
 * a cell (layer.h). */
enum {
    LNRNN_WEIGHT_IH,
    LNRNN_WEIGHT_HH,
    LNRNN_WEIGHT_HR,
    LNRNN_INNER_IH,
    LNRNN_INNER_HH,
    LNRNN_PEEPHOLE,
    LNRNN_COUNT,
    LNRNN_AT_SITES
};
/* The role of an array of a site is LNRNN_AT_SITES + 4 * site + LNRNN_GAIN .. */
enum { LNRNN_GAIN, LNRNN_BIAS, LNRNN_MEAN, LNRNN_VARIANCE };
enum { LNRNN_ROLES = LNRNN_AT_SITES + 4 * LNRNN_SITES };
/* Writes the roles of the arrays of a layer in one direction, in the order of ARRAYS. Returns their number.
 * weight_ih, weight_hh and weight_hr come first, statistics of batch norm last. */
size_t lnrnn_description_roles(const lnrnn_description *d, int roles[LNRNN_ROLES]);
/* Returns the number of arrays of a layer in one direction that are parameters. */
size_t lnrnn_description_parameters(const lnrnn_description *d);

#pragma GCC visibility pop

/* arrays (count), in any order. Sets *used, which the caller frees, to an array of pointers to the arrays, in
 * the description's order. Sets d->steps to the number of steps of the statistics. Fails if an array is
 * missing, unknown or given twice, or has another dtype or shape. Reads no data. */
lnrnn_status lnrnn_match_arrays(lnrnn_description *d, const lnrnn_array *arrays, size_t count,
                                const lnrnn_array ***used, char *message);
/* Fails for statistics that training cannot give: counts that increase over time or differ between
 * layers, and negative variances. Other arrays may have any values. */
lnrnn_status lnrnn_check_values(const lnrnn_description *d, const lnrnn_array *const *used, char *message);

#endif
