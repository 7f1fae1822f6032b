/* What a step drops: units of h on its way to W h, and, by zoneout, updates of h and c. */
#ifndef LNRNN_ZONEOUT_H
#define LNRNN_ZONEOUT_H

#include "rnn/layer.h"

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

/* Back through both. Rows r0 .. r0 + n - 1, row stride plan->narrow.
 * masks: r->masks.h or .c. g (n, H), the gradient of their states after step t -> g, that of the states which the
 * step made, and held (n, H), what goes past the step to the states before it. */
void lnrnn_hold_gradient(const lnrnn_rnn_call *r, const unsigned char *masks, size_t r0, size_t n, size_t t,
                         float *g, float *held);
/* Adds held (n, H) to g (n, H), by now the gradient of the states before the step. */
void lnrnn_release_gradient(const lnrnn_rnn_call *r, size_t n, const float *held, float *g);
/* g (n, H), the gradient of what W_hh took -> gh (n, H), that of h: added to what it holds (add), or alone. */
void lnrnn_unmask_gradient(const lnrnn_rnn_call *r, size_t r0, size_t n, const float *g, int add, float *gh);

#endif
