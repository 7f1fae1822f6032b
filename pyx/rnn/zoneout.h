/* What a step drops: units of h on its way to W h, and, by zoneout, updates of h and c. */
#ifndef LNRNN_ZONEOUT_H
#define LNRNN_ZONEOUT_H

#include "lnrnn.h"

static inline int lnrnn_has_zoneout(const lnrnn_rnn_config *c)
{
    return c->zoneout_h > 0 || c->zoneout_c > 0;
}

/* old_h, old_c, h, c (H) of row i, before step t and after it -> h and c, of which zoneout keeps some of the
 * old: the units that the call's masks name, or, without masks, of every unit as much as their expectation.
 * Pointers to a state that has no zoneout are not read. */
void lnrnn_zoneout_row(const lnrnn_rnn_call *r, size_t i, size_t t, const float *old_h, const float *old_c,
                       float *h, float *c);

/* rows: n pointers to (H), h of the rows from r0 on -> to (n, H), row stride plan->narrow: h times the factors
 * of their sequences. The pointers go there. */
void lnrnn_mask_rows(const lnrnn_rnn_call *r, size_t r0, size_t n, const float **rows, float *to);

#endif
