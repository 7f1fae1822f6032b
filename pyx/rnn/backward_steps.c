/* A group of rows goes back through the steps of a round.
 *
 * Each step turns the gradient of the state into those of W x and W h, which are kept for all rows of the round, and
 * makes of these and W_hh the gradient of the state before it. */
#include <string.h>

#include "rnn/backward.h"
#include "rnn/cost.h"
#include "rnn/forward.h"
#include "rnn/rows.h"
#include "rnn/zoneout.h"
#include "runtime/resumable.h"

size_t lnrnn_backward_scratch(const backward_job *j, float *base, backward_scratch *m)
{
    const lnrnn_rnn_config *c = j->c;
    const size_t group = j->p->group, state = group * j->narrow;
    size_t at = 0;
    m->u = lnrnn_part_of(base, &at, c->saved_gates ? state : 0);
    m->gu = lnrnn_part_of(base, &at, c->cell_state ? state : 0);
    m->sum = lnrnn_part_of(base, &at, c->saved_gates ? group * j->wide : 0);
    m->held_h = lnrnn_part_of(base, &at, c->zoneout_h > 0 ? state : 0);
    m->held_c = lnrnn_part_of(base, &at, c->zoneout_c > 0 ? state : 0);
    m->masked = lnrnn_part_of(base, &at, j->r->masks.state ? TILE * j->narrow : 0);
    m->batch = lnrnn_part_of(base, &at, j->p->synchronous ? 10 * c->outputs + 2 : 0);
    return at;
}

/* --- cells ------------------------------------------------------------------------------------------ */

/* The active rows first .. first + active - 1 of a group at step t: they stand at row pos of the round, and those of
 * the step before it from row `earlier` of the tape on. */
typedef struct {
    size_t first, active, t, pos, earlier;
} back_step;

/* What a kernel of a cell does to all rows, a tile at a time: it takes the states before the step, c of an LSTM, h of a
 * GRU, by pointers. */
static void by_tiles(const backward_job *j, const back_step *s, lnrnn_gate_gradients b,
                     void (*kernel)(const lnrnn_gate_gradients *b))
{
    const lnrnn_rnn_call *r = j->r;
    const lnrnn_rnn_plan *p = j->p;
    const float *before[TILE];
    b.state_prev = before;
    for (size_t i = 0; i < s->active; i += TILE) {
        b.rows = s->active - i < TILE ? s->active - i : TILE;
        for (size_t q = i; q < i + b.rows; q++)
            before[q - i] = !j->c->cell_state ? h_row(r, s->first + q, s->t)
                            : s->t            ? r->tape + (s->earlier + q) * p->tape.width + p->tape.c
                                              : r->c0 + state_at(r, s->first + q);
        kernel(&b);
        b.saved_gates += TILE * b.ks, b.x += TILE * b.ks, b.a += TILE * b.ks, b.u += TILE * b.us;
        b.gh += TILE * b.hs, b.ga += TILE * b.as, b.sum += TILE * b.ss;
        b.gx += b.gx ? TILE * b.as : 0;
        b.gc += b.gc ? TILE * b.hs : 0, b.gu += TILE * b.hs;
    }
}

/* From the gradient of the state in b.gh, b.gc -> the gradients of the norms' outputs, in b.gx and b.ga, and in b.gh,
 * b.gc the gradient of the state before, without what comes by way of W h. tape: the records of these rows. */
typedef void cell_backward(const backward_job *j, const back_step *s, const float *tape,
                           lnrnn_gate_gradients b, const backward_scratch *m);

static void rnn_cell_backward(const backward_job *j, const back_step *s, const float *tape,
                              lnrnn_gate_gradients b, const backward_scratch *m)
{
    (void)tape, (void)m;
    for (size_t i = 0; i < s->active; i++)
        j->k->cells->rnn_backward(j->c->act, j->c->H, b.gh + i * j->narrow, y_row(j->r, s->first + i, s->t),
                                  b.ga + i * j->wide);
}

static void lstm_cell_backward(const backward_job *j, const back_step *s, const float *tape,
                               lnrnn_gate_gradients b, const backward_scratch *m)
{
    /* Of c = f c + i g before its norm and before zoneout: where the tape has something else, it is made again. */
    const int carry = j->c->cell_norm == LNRNN_CELL_CARRY, zoned = j->c->zoneout_c > 0;
    site_rows rows = {.first = s->first,
                      .active = s->active,
                      .t = s->t,
                      .a = tape + j->p->tape.c,
                      .as = (ptrdiff_t)j->p->tape.width,
                      .g = m->gu,
                      .ga = m->gu,
                      .gs = b.hs};
    b.u = rows.a, b.us = rows.as, b.carry = carry;
    if (carry || zoned) {
        rows.a = m->sum, rows.as = b.ss = (ptrdiff_t)j->narrow;
        by_tiles(j, s, b, j->k->cells->lstm_cell_sum);
    }
    if (j->c->cell_norm == LNRNN_CELL_NONE)
        b.u = rows.a, b.us = rows.as;
    else if (!carry || zoned) /* else it is what the tape has */
        b.u = lnrnn_last_gate(j, LNRNN_SITE_CELL, s->active, s->t, rows.a, rows.as, m, &b.us);
    j->k->cells->lstm_output_backward(&b);
    if (j->c->cell_norm != LNRNN_CELL_NONE)
        lnrnn_site_backward(j, LNRNN_SITE_CELL, 0, j->c->H, &rows, m);
    by_tiles(j, s, b, j->k->cells->lstm_backward);
}

static void gru_cell_backward(const backward_job *j, const back_step *s, const float *tape,
                              lnrnn_gate_gradients b, const backward_scratch *m)
{
    b.u = lnrnn_last_gate(j, LNRNN_SITE_HIDDEN, s->active, s->t, tape + j->p->tape.h,
                          (ptrdiff_t)j->p->tape.width, m, &b.us);
    if (!j->c->own_input_gradient)
        b.gx = NULL;
    by_tiles(j, s, b, j->k->cells->gru_backward);
}

/* A GRU with a norm for each gate: that of n reads x + r a, and those of r and z come after it. */
static void gru_gate_cell_backward(const backward_job *j, const back_step *s, const float *tape,
                                   lnrnn_gate_gradients b, const backward_scratch *m)
{
    const size_t H = j->c->H;
    const site_rows rows = {.first = s->first,
                            .active = s->active,
                            .t = s->t,
                            .a = m->sum,
                            .as = (ptrdiff_t)j->wide,
                            .g = b.ga,
                            .ga = b.ga,
                            .gs = b.as};
    (void)tape;
    b.ss = rows.as;
    by_tiles(j, s, b, j->k->cells->gru_gate_sum);
    by_tiles(j, s, b, j->k->cells->gru_gate_output_backward);
    lnrnn_site_backward(j, LNRNN_SITE_HIDDEN, 2 * H, 3 * H, &rows, m);
    by_tiles(j, s, b, j->k->cells->gru_gate_reset_backward);
    lnrnn_site_backward(j, LNRNN_SITE_HIDDEN, 0, 2 * H, &rows, m);
    for (size_t i = 0; i < s->active; i++)
        memcpy(b.gx + i * j->wide, b.ga + i * j->wide, 2 * H * sizeof *b.gx);
}

static cell_backward *const CELL_BACKWARD[] = {
    [LNRNN_STEP_RNN] = rnn_cell_backward,
    [LNRNN_STEP_LSTM] = lstm_cell_backward,
    [LNRNN_STEP_GRU] = gru_cell_backward,
    [LNRNN_STEP_GRU_GATE] = gru_gate_cell_backward,
};
_Static_assert(sizeof CELL_BACKWARD / sizeof *CELL_BACKWARD == LNRNN_STEPS, "a row for each step kernel");

/* --- a step ----------------------------------------------------------------------------------------- */

/* Adds gy of a step to the gradient of the state; packs x and the h before the step of its rows for the products over
 * the round, and notes where gx of the rows is to go. */
static void gather_rows(const backward_job *j, const back_step *s, const backward_scratch *m)
{
    const lnrnn_rnn_call *r = j->r;
    const lnrnn_rnn_gradients *g = j->g;
    const size_t H = j->c->H;
    const float *x[TILE], *h[TILE];
    for (size_t i = 0, n = 0; i < s->active; i++) {
        const size_t q = s->first + i, row = s->pos + i;
        const ptrdiff_t t = at_step(r, q, s->t);
        const float *gy = g->gy + t * g->gyt + r->rows[q].sequence * g->gyb;
        float *gh = j->gh + q * j->narrow;
        j->k->cells->add_columns(1, H, gy, 0, gh);
        if (g->gx)
            j->gx_rows[row] = g->gx + t * g->gxt + r->rows[q].sequence * g->gxb;
        x[n] = x_row(r, q, s->t), h[n++] = h_row(r, q, s->t);
        if (n == TILE || i + 1 == s->active) {
            lnrnn_pack_inputs(j, j->c->D, row + 1 - n, n, x, j->packed_x);
            if (r->masks.state)
                lnrnn_mask_rows(r, q + 1 - n, n, h, m->masked);
            lnrnn_pack_inputs(j, H, row + 1 - n, n, h, j->packed_h);
            n = 0;
        }
    }
}

/* From the gradient of the state in j -> gx and ga of these rows, the gradients of W x and W h; and in j the
 * gradient of the state before. */
static void step_backward(const backward_job *j, const back_step *s, const backward_scratch *m)
{
    const lnrnn_rnn_config *c = j->c;
    const lnrnn_rnn_plan *p = j->p;
    const float *tape = j->r->tape + (j->round->before + s->pos) * p->tape.width;
    const ptrdiff_t as = (ptrdiff_t)p->tape.width, gs = (ptrdiff_t)j->wide, hs = (ptrdiff_t)j->narrow;
    float *gx = j->gx + s->pos * j->wide, *ga = j->ga + s->pos * j->wide;
    const lnrnn_gate_gradients b = {.H = c->H,
                                    .rows = s->active,
                                    .saved_gates = tape + p->tape.gates,
                                    .x = tape,
                                    .a = tape + p->tape.h,
                                    .ks = as,
                                    .u = m->u,
                                    .gh = j->gh + s->first * j->narrow,
                                    .gc = c->cell_state ? j->gc + s->first * j->narrow : NULL,
                                    .gu = m->gu,
                                    .hs = hs,
                                    .gx = gx,
                                    .ga = ga,
                                    .as = gs,
                                    .sum = m->sum};
    if (c->zoneout_h > 0)
        lnrnn_hold_gradient(j->r, j->r->masks.h, s->first, s->active, s->t, b.gh, m->held_h);
    if (c->zoneout_c > 0)
        lnrnn_hold_gradient(j->r, j->r->masks.c, s->first, s->active, s->t, b.gc, m->held_c);
    CELL_BACKWARD[c->step_kernel](j, s, tape, b, m);
    site_rows rows = {.first = s->first, .active = s->active, .t = s->t, .as = as, .gs = gs};
    if (c->input_side) {
        rows.a = tape, rows.g = c->own_input_gradient ? gx : ga, rows.ga = gx;
        lnrnn_site_backward(j, LNRNN_SITE_INPUT, 0, c->outputs, &rows, m);
    }
    rows.a = tape + p->tape.h, rows.g = ga, rows.ga = ga;
    if (c->step_kernel != LNRNN_STEP_GRU_GATE) /* whose cell has done it */
        lnrnn_site_backward(j, LNRNN_SITE_HIDDEN, 0, c->outputs, &rows, m);
    if (c->inner_hh)
        lnrnn_inner_backward(j, 1, &rows);
    rows.g = gx;
    if (c->inner_ih)
        lnrnn_inner_backward(j, 0, &rows);
    for (size_t i = 0; i < s->active; i += TILE) {
        const size_t n = s->active - i < TILE ? s->active - i : TILE;
        const float *ga_rows[TILE];
        for (size_t q = 0; q < n; q++)
            ga_rows[q] = ga + (i + q) * j->wide;
        float *const gh = b.gh + i * j->narrow;
        if (j->r->masks.state) {
            lnrnn_gradient_product(j, n, c->H, c->outputs, ga_rows, j->g->w_hh, j->g->w_hh_t, 0, m->masked,
                                   j->narrow);
            lnrnn_unmask_gradient(j->r, s->first + i, n, m->masked, c->direct_h, gh);
        } else
            lnrnn_gradient_product(j, n, c->H, c->outputs, ga_rows, j->g->w_hh, j->g->w_hh_t, c->direct_h, gh,
                                   j->narrow);
    }
    if (c->zoneout_h > 0)
        lnrnn_release_gradient(j->r, s->active, m->held_h, b.gh);
    if (c->zoneout_c > 0)
        lnrnn_release_gradient(j->r, s->active, m->held_c, b.gc);
}

void lnrnn_backward_group(void *ctx, size_t group, int worker, int64_t *left)
{
    const backward_job *j = ctx;
    const lnrnn_rnn_call *r = j->r;
    const backward_round *round = j->round;
    const size_t first = group * j->p->group;
    const size_t count = r->B - first < j->p->group ? r->B - first : j->p->group;
    size_t t = round->t1 - j->back[group], all = more_active_rows(r, 0, r->B, 0, t);
    size_t pos = rows_until(r, t) - round->before, active = more_active_rows(r, first, count, 0, t);
    backward_scratch m;
    lnrnn_backward_scratch(j, j->work + (size_t)worker * j->worker, &m);
    while (t > round->t0 && remaining(left) > 0) {
        t--;
        active = more_active_rows(r, first, count, active, t);
        all = more_active_rows(r, 0, r->B, all, t);
        pos -= all;
        const size_t all_before = t ? more_active_rows(r, 0, r->B, all, t - 1) : 0;
        const back_step s = {.first = first,
                             .active = active,
                             .t = t,
                             .pos = pos + first,
                             .earlier = round->before + pos - all_before + first};
        if (active) {
            gather_rows(j, &s, &m);
            step_backward(j, &s, &m);
        }
        lnrnn_flush_sums(j, first, count, t);
        spend(left, step_cost(r, (double)active, j->c->H));
    }
    j->back[group] = t > round->t0 ? round->t1 - t : LNRNN_DONE;
}
