/* One step back through time. From the gradient of the state it computes the gradients of W x and W h, which
 * are kept for a chunk of steps. The gradient of W h times W_hh is the gradient of the state before the
 * step. */
#include <string.h>

#include "rnn/backward.h"
#include "rnn/rows.h"
#include "runtime/resumable.h"

/* --- the rows ------------------------------------------------------------------------------------------- */

/* Collects pointers to x, to the old state and to the gradient of x of the active rows. */
static void gather(backward_step *s)
{
    const backward_job *j = s->j;
    const lnrnn_rnn_call *r = j->r;
    const lnrnn_rnn_gradients *g = j->g;
    for (size_t i = 0; i < s->active; i++) {
        const size_t q = s->first + i;
        const ptrdiff_t t = at_step(r, q, s->t), sequence = r->rows[q].sequence;
        if (g->gx)
            j->gx_rows[s->row + i] = g->gx + t * g->gxt + sequence * g->gxb;
        s->x[i] = x_row(r, q, s->t);
        s->h[i] = s->state_prev[i] = s->t && j->c->output_norm
                                         ? s->previous + i * j->p->tape.width + j->p->tape.state
                                         : h_row(r, q, s->t);
    }
}

static const float *gy_row(const backward_step *s, size_t i)
{
    const lnrnn_rnn_call *r = s->j->r;
    const lnrnn_rnn_gradients *g = s->j->g;
    const size_t q = s->first + i;
    return g->gy + at_step(r, q, s->t) * g->gyt + r->rows[q].sequence * g->gyb;
}

/* Adds the caller's gradient gy of this step to the gradient of h, because y of a step is its h. */
static void outputs(backward_step *s)
{
    const backward_job *j = s->j;
    for (size_t i = 0; i < s->active; i++)
        j->k->cells->add_columns(1, j->c->P, gy_row(s, i), 0, s->gh + i * j->h_stride);
}

/* As `outputs`, for a y that is the norm of h: back-propagates gy through this norm first. */
static void normed_outputs(backward_step *s)
{
    const backward_job *j = s->j;
    const site_rows rows = {.a = s->tape + j->p->tape.state,
                            .as = (ptrdiff_t)j->p->tape.width,
                            .g = s->gu,
                            .ga = s->gu,
                            .gs = (ptrdiff_t)j->narrow};
    for (size_t i = 0; i < s->active; i++)
        memcpy(s->gu + i * j->narrow, gy_row(s, i), j->c->H * sizeof *s->gu);
    lnrnn_site_backward(s, LNRNN_SITE_CELL, 0, j->c->H, &rows);
    for (size_t i = 0; i < s->active; i++)
        j->k->cells->add_columns(1, j->c->P, s->gu + i * j->narrow, 0, s->gh + i * j->h_stride);
}

static void mask(backward_step *s) { lnrnn_mask_rows(s->j->r, s->first, s->active, s->h, s->masked); }

static void pack(backward_step *s)
{
    const backward_job *j = s->j;
    lnrnn_pack_inputs(j, 1, j->c->D, s->row, s->active, s->x, j->packed_x);
    lnrnn_pack_inputs(j, j->c->num_heads, j->c->head_units, s->row, s->active, s->h, j->packed_h);
}

/* Packs r h, which W_hh multiplies for the gate n, as an operand of the weights' gradient. */
static void pack_reset(backward_step *s)
{
    const backward_job *j = s->j;
    const float *rows[TILE];
    s->b.state_prev = s->h;
    j->k->cells->gru_reset_input(&s->b);
    s->b.state_prev = s->state_prev;
    for (size_t i = 0, n; i < s->active; i += n) {
        for (n = 0; n < TILE && i + n < s->active; n++)
            rows[n] = s->gu + (i + n) * j->narrow;
        lnrnn_pack_inputs(j, j->c->num_heads, j->c->head_units, s->row + i, n, rows, j->packed_reset);
    }
}

/* g (active, k), row stride gs, w: packed (n, k) -> to (active, n), row stride ts: the product. */
static void product(const backward_step *s, const float *g, size_t gs, size_t k, size_t n, const uint32_t *w,
                    float *to, size_t ts)
{
    const float *rows[TILE];
    for (size_t i = 0; i < s->active; i += TILE) {
        const size_t m = s->active - i < TILE ? s->active - i : TILE;
        for (size_t q = 0; q < m; q++)
            rows[q] = g + (i + q) * gs;
        lnrnn_gradient_product(s->j, m, n, k, rows, w, 0, to + i * ts, ts);
    }
}

/* --- zoneout -------------------------------------------------------------------------------------------- */

/* g, skip (active, width), row stride `stride`; masks: r->masks.h or r->masks.c. Zoneout has mixed the cell's
 * states with the old states. Divides g, the gradient of the mixed states: g becomes the gradient of the
 * cell's states, and skip the gradient of the old states. */
static void split_gradient(const backward_step *s, const unsigned char *masks, size_t width, size_t stride,
                           float *g, float *skip)
{
    for (size_t i = 0; i < s->active; i++, g += stride, skip += stride) {
        const unsigned char *mask = mask_row(s->j->r, masks, width, s->first + i, s->t);
        for (size_t u = 0; u < width; u++) {
            skip[u] = mask[u] ? g[u] : 0;
            g[u] = mask[u] ? 0 : g[u];
        }
    }
}

static void split_h(backward_step *s)
{
    split_gradient(s, s->j->r->masks.h, s->j->c->P, s->j->h_stride, s->gh, s->skip_h);
}

static void split_c(backward_step *s)
{
    split_gradient(s, s->j->r->masks.c, s->j->c->C, s->j->c_stride, s->b.gc, s->skip_c);
}

/* Adds skip to g, which is now the gradient of the states before the step. */
static void add_skip(const backward_step *s, size_t width, size_t stride, const float *skip, float *g)
{
    for (size_t i = 0; i < s->active; i++, g += stride, skip += stride)
        for (size_t u = 0; u < width; u++)
            g[u] += skip[u];
}

static void add_skip_h(backward_step *s) { add_skip(s, s->j->c->P, s->j->h_stride, s->skip_h, s->gh); }
static void add_skip_c(backward_step *s) { add_skip(s, s->j->c->C, s->j->c_stride, s->skip_c, s->b.gc); }

/* --- the projection ------------------------------------------------------------------------------------- */

/* h is W_hr times the cell's output. Computes the gradient of the cell's output, and keeps the gradient of h,
 * from which the gradient of W_hr is computed later. */
static void unproject(backward_step *s)
{
    const backward_job *j = s->j;
    const size_t P = j->c->P, H = j->c->H;
    float *const kept = j->gh_rows + s->row * j->gh_stride;
    for (size_t i = 0; i < s->active; i++) {
        memcpy(kept + i * j->gh_stride, s->gh + i * j->h_stride, P * sizeof *kept);
        s->outputs[i] = s->tape + i * j->p->tape.width + j->p->tape.output;
    }
    lnrnn_pack_inputs(j, 1, H, s->row, s->active, s->outputs, j->packed_output);
    product(s, kept, j->gh_stride, P, H, j->g->w_hr_t, s->unprojected, j->narrow);
    s->b.gh = s->unprojected;
}

/* --- cells ---------------------------------------------------------------------------------------------- */

/* In each cell's function below, b.gh and b.gc are the gradient of the state. The function replaces them by
 * the gradient of the previous state, without the path through W h. It writes the gradients of the norms'
 * outputs to b.gx and b.ga. */

static void rnn_cell(backward_step *s)
{
    const backward_job *j = s->j;
    for (size_t i = 0; i < s->active; i++)
        j->k->cells->rnn_backward(j->c->act, j->c->H, s->b.gh + i * j->narrow,
                                  y_row(j->r, s->first + i, s->t), s->ga + i * j->wide);
}

/* Sets s->c to the tape's c, as the next step gets it: after zoneout. */
static void lstm_c(backward_step *s)
{
    const backward_job *j = s->j;
    for (size_t i = 0; i < s->active; i++)
        s->state_prev[i] =
            s->t ? s->previous + i * j->p->tape.width + j->p->tape.c : j->r->c0 + c_at(j->r, s->first + i);
    s->c = s->tape + j->p->tape.c, s->cs = (ptrdiff_t)j->p->tape.width;
}

/* Computes c = f c_prev + i g again, because the tape has c after its norm or zoneout. */
static void lstm_sum(backward_step *s)
{
    s->c = s->sum, s->cs = s->b.ss = (ptrdiff_t)s->j->narrow;
    s->j->k->cells->lstm_cell_sum(&s->b);
}

/* Set u of h = o tanh(u), which is c or LN(c). The tape has LN(c) only if the next step reads LN(c). */
static void u_is_c(backward_step *s) { s->b.u = s->c, s->b.us = s->cs; }
static void u_is_carried(backward_step *s)
{
    s->b.u = s->tape + s->j->p->tape.c, s->b.us = (ptrdiff_t)s->j->p->tape.width;
}
static void u_is_norm(backward_step *s) { lnrnn_last_gate(s, LNRNN_SITE_CELL, s->c, s->cs); }

static void lstm_output(backward_step *s) { s->j->k->cells->lstm_output_backward(&s->b); }

static void norm_of_c(backward_step *s)
{
    const site_rows rows = {.a = s->c, .as = s->cs, .g = s->gu, .ga = s->gu, .gs = s->b.hs};
    lnrnn_site_backward(s, LNRNN_SITE_CELL, 0, s->j->c->H, &rows);
}

static void peephole_o(backward_step *s) { lnrnn_peephole_backward(s, 2, 3); }
static void peepholes_if(backward_step *s)
{
    lnrnn_peephole_backward(s, 0, 0), lnrnn_peephole_backward(s, 1, 1);
}
static void lstm_gates(backward_step *s) { s->j->k->cells->lstm_backward(&s->b); }

static void slstm_cell(backward_step *s)
{
    s->b.gcs = (ptrdiff_t)s->j->c_stride, s->b.exp_forget = s->j->c->exp_forget;
    s->j->k->cells->slstm_backward(&s->b);
}

static void gru_cell(backward_step *s)
{
    const lnrnn_rnn_plan *p = s->j->p;
    lnrnn_last_gate(s, LNRNN_SITE_HIDDEN, s->tape + p->tape.h, (ptrdiff_t)p->tape.width);
    s->j->k->cells->gru_backward(&s->b);
}

static void ligru_cell(backward_step *s) { s->j->k->cells->ligru_backward(s->j->c->act, &s->b); }

static void joint_gru_cell(backward_step *s)
{
    s->b.gx = NULL;
    gru_cell(s);
}

/* For a GRU with a norm for each gate. The input of n's norm depends on r, so back-propagate n before r and
 * z. */
static void gru_gate_cell(backward_step *s)
{
    const backward_job *j = s->j;
    const lnrnn_cells *k = j->k->cells;
    const size_t H = j->c->H;
    const site_rows rows = {
        .a = s->sum, .as = (ptrdiff_t)j->wide, .g = s->ga, .ga = s->ga, .gs = (ptrdiff_t)j->wide};
    s->b.ss = rows.as;
    k->gru_gate_sum(&s->b);
    k->gru_gate_output_backward(&s->b);
    lnrnn_site_backward(s, LNRNN_SITE_HIDDEN, 2 * H, 3 * H, &rows);
    k->gru_gate_reset_backward(&s->b);
    lnrnn_site_backward(s, LNRNN_SITE_HIDDEN, 0, 2 * H, &rows);
    for (size_t i = 0; i < s->active; i++)
        memcpy(s->gx + i * j->wide, s->ga + i * j->wide, 2 * H * sizeof *s->gx);
}

/* --- the norms and the product ------------------------------------------------------------------------- */

/* a: the input of a site, in the tape; g: the gradient of its output. Writes ga, the gradient of a. */
static void side(const backward_step *s, int site, const float *a, const float *g, float *ga)
{
    const site_rows rows = {
        .a = a, .as = (ptrdiff_t)s->j->p->tape.width, .g = g, .ga = ga, .gs = (ptrdiff_t)s->j->wide};
    lnrnn_site_backward(s, site, 0, s->j->c->outputs, &rows);
}

static void input_side(backward_step *s) { side(s, LNRNN_SITE_INPUT, s->tape, s->ga, s->gx); }
/* Back-propagate through the norms of W x and of W h, if the two have different gradients. */
static void own_input_side(backward_step *s) { side(s, LNRNN_SITE_INPUT, s->tape, s->gx, s->gx); }
static void hidden_side(backward_step *s)
{
    side(s, LNRNN_SITE_HIDDEN, s->tape + s->j->p->tape.h, s->ga, s->ga);
}

static void inner_hh(backward_step *s) { lnrnn_inner_backward(s, 1, s->ga); }
static void inner_ih(backward_step *s) { lnrnn_inner_backward(s, 0, s->gx); }

/* ga: n pointers to rows (G*H) of the gradient of W h. Writes to `to` (n, h_stride) the gradient of h through
 * the gates first .. end - 1. It computes each of several heads in scratch memory, because a product writes
 * whole vectors, which would overwrite other heads. */
static void head_product(const backward_step *s, size_t first, size_t end, size_t n, const float *const *ga,
                         int add, float *to)
{
    const backward_job *j = s->j;
    const lnrnn_rnn_gradients *g = j->g;
    const lnrnn_product *product = j->k->product;
    const size_t units = j->c->head_units, heads = j->c->num_heads, direct = heads == 1,
                 wide = direct ? j->h_stride : product->width(units),
                 words = product->size(LNRNN_WEIGHT_F32, units, units);
    for (size_t head = 0; head < heads; head++) {
        const size_t at = head * units;
        float *const sum = direct ? to : s->head;
        for (size_t i = 0; add && !direct && i < n; i++)
            memcpy(s->head + i * wide, to + i * j->h_stride + at, units * sizeof *to);
        for (size_t gate = first; gate < end; gate++) {
            const size_t part = gate * heads + head;
            const float *rows[TILE];
            for (size_t i = 0; i < n; i++)
                rows[i] = ga[i] + part * units;
            lnrnn_gradient_product(j, n, units, units, rows, g->w_hh_t + part * words, add || gate > first,
                                   sum, wide);
        }
        for (size_t i = 0; !direct && i < n; i++)
            memcpy(to + i * j->h_stride + at, s->head + i * wide, units * sizeof *to);
    }
}

/* Writes to `to` (active, h_stride) the gradient of h through the gates first .. end - 1 of W h. add: adds to
 * the values of `to`. */
static void gates_product(const backward_step *s, size_t first, size_t end, int add, float *to)
{
    const backward_job *j = s->j;
    const float *rows[TILE];
    for (size_t i = 0; i < s->active; i += TILE) {
        const size_t n = s->active - i < TILE ? s->active - i : TILE;
        for (size_t q = 0; q < n; q++)
            rows[q] = s->ga + (i + q) * j->wide;
        head_product(s, first, end, n, rows, add, to + i * j->h_stride);
    }
}

/* Writes to `to` (active, h_stride) the gradient of h, which is the gradient of W h times W_hh. */
static void back_product(const backward_step *s, float *to)
{
    const backward_job *j = s->j;
    /* GCOVR_EXCL_BR_LINE: such a GRU has a function of its own */
    if (j->c->num_heads > 1 || j->c->reset_before)
        gates_product(s, 0, j->c->num_gates, 0, to);
    else
        product(s, s->ga, j->wide, j->c->outputs, j->c->P, j->g->w_hh_t, to, j->h_stride);
}

static void hidden_product(backward_step *s) { back_product(s, s->gh); }

/* gh has the cell's direct gradient of h_prev. Adds the gradient through W_hh, which is summed separately:
 * sums that start from gh, which is larger, would be rounded more. */
static void direct_product(backward_step *s)
{
    const backward_job *j = s->j;
    back_product(s, s->masked);
    for (size_t i = 0; i < s->active; i++)
        j->k->cells->add_columns(1, j->c->P, s->masked + i * j->h_stride, 0, s->gh + i * j->h_stride);
}

static void masked_product(backward_step *s)
{
    const size_t P = s->j->c->P, stride = s->j->h_stride;
    const int add = s->j->c->direct_h;
    back_product(s, s->masked);
    for (size_t i = 0; i < s->active; i++) {
        const float *factors = state_mask(s->j->r, s->first + i), *g = s->masked + i * stride;
        float *gh = s->gh + i * stride;
        for (size_t u = 0; u < P; u++)
            gh[u] = factors[u] * g[u] + (add ? gh[u] : 0);
    }
}

/* --- a GRU whose reset gate comes before the product ---------------------------------------------------- */

/* The gradient of r needs the gradient of r h, so back-propagate through the product of the gate n first. */
static void gru_reset_cell(backward_step *s)
{
    const backward_job *j = s->j;
    const lnrnn_cells *k = j->k->cells;
    const size_t first = j->c->first_gates, N = j->c->outputs, n = first * j->c->H;
    const site_rows rows = {.a = s->tape + j->p->tape.h,
                            .as = (ptrdiff_t)j->p->tape.width,
                            .g = s->ga,
                            .ga = s->ga,
                            .gs = (ptrdiff_t)j->wide};
    k->gru_reset_output_backward(&s->b);
    lnrnn_site_backward(s, LNRNN_SITE_HIDDEN, n, N, &rows);
    gates_product(s, first, j->c->num_gates, 0, s->gu);
    s->b.state_prev = s->h;
    k->gru_reset_backward(&s->b);
    lnrnn_site_backward(s, LNRNN_SITE_HIDDEN, 0, n, &rows);
}

/* gu: the gradient of h through r h. Adds to gu the gradient through the product for r and z. Adds gu, times
 * the dropout of h, to gh. */
static void reset_product(backward_step *s)
{
    const size_t H = s->j->c->H, narrow = s->j->narrow;
    const int masks = s->j->r->masks.state != NULL;
    gates_product(s, 0, s->j->c->first_gates, 1, s->gu);
    for (size_t i = 0; i < s->active; i++) {
        const float *const factors = masks ? state_mask(s->j->r, s->first + i) : NULL, *const g =
                                                                                           s->gu + i * narrow;
        float *const gh = s->b.gh + i * narrow;
        for (size_t u = 0; u < H; u++)
            gh[u] += factors ? factors[u] * g[u] : g[u];
    }
}

/* --- the phases of a step ------------------------------------------------------------------------------- */

void lnrnn_resolve_backward(backward_job *j)
{
    const lnrnn_rnn_config *c = j->c;
    const int masks = j->r->masks.state != NULL, kernel = c->step_kernel, lstm = c->cell == LNRNN_LSTM,
              slstm = kernel == LNRNN_STEP_SLSTM, reset = kernel == LNRNN_STEP_GRU_RESET,
              normed = lstm && c->cell_norm != LNRNN_CELL_NONE, carry = c->cell_norm == LNRNN_CELL_CARRY,
              zoned = c->zoneout_c > 0;
    const struct {
        int used;
        backward_phase *phase;
    } diagram[] = {
        {1, gather},
        {1, c->output_norm ? normed_outputs : outputs},
        {masks, mask},
        {1, pack},
        {reset, pack_reset},
        {c->zoneout_h > 0, split_h},
        {zoned, split_c},
        {c->projection > 0, unproject},
        {kernel == LNRNN_STEP_RNN, rnn_cell},
        {lstm || slstm, lstm_c},
        {lstm && (carry || zoned), lstm_sum},
        {lstm, !normed           ? u_is_c
               : carry && !zoned ? u_is_carried
                                 : u_is_norm},
        {lstm, lstm_output},
        {normed, norm_of_c},
        {c->peephole != NULL, peephole_o},
        {lstm, lstm_gates},
        {c->peephole != NULL, peepholes_if},
        {slstm, slstm_cell},
        {kernel == LNRNN_STEP_GRU, c->own_input_gradient ? gru_cell : joint_gru_cell},
        {kernel == LNRNN_STEP_GRU_GATE, gru_gate_cell},
        {reset, gru_reset_cell},
        {kernel == LNRNN_STEP_LIGRU, ligru_cell},
        {c->input_side, c->own_input_gradient ? own_input_side : input_side},
        {kernel != LNRNN_STEP_GRU_GATE && !reset, hidden_side}, /* two cells do it themselves */
        {c->inner_hh != NULL, inner_hh},
        {c->inner_ih != NULL, inner_ih},
        {1, reset         ? reset_product
            : masks       ? masked_product
            : c->direct_h ? direct_product
                          : hidden_product},
        {c->zoneout_h > 0, add_skip_h},
        {zoned, add_skip_c},
    };
    backward_phase **phase = j->phases;
    for (size_t i = 0; i < sizeof diagram / sizeof *diagram; i++)
        if (diagram[i].used)
            *phase++ = diagram[i].phase;
    *phase = NULL;
}

/* Back-propagates through step t. record: the index in the tape of the group's first row at step t; before:
 * the number of active rows at step t - 1. */
static void take_step(backward_step *s, size_t record, size_t before)
{
    const backward_job *j = s->j;
    const lnrnn_rnn_plan *p = j->p;
    s->row = record - j->chunk->before;
    s->tape = j->r->tape + record * p->tape.width;
    s->previous = s->tape - before * p->tape.width;
    s->gx = j->gx + s->row * j->wide;
    s->ga = j->ga + s->row * j->wide;
    s->gh = j->gh + s->first * j->h_stride;
    s->b = (lnrnn_gate_gradients){.H = j->c->H,
                                  .rows = s->active,
                                  .saved_gates = s->tape + p->tape.gates,
                                  .x = s->tape,
                                  .a = s->tape + p->tape.h,
                                  .ks = (ptrdiff_t)p->tape.width,
                                  .state_prev = s->state_prev,
                                  .gh = s->gh,
                                  .gc = j->gc + s->first * j->c_stride,
                                  .gu = s->gu,
                                  .hs = (ptrdiff_t)j->narrow,
                                  .gx = s->gx,
                                  .ga = s->ga,
                                  .as = (ptrdiff_t)j->wide,
                                  .sum = s->sum,
                                  .carry = j->c->cell_norm == LNRNN_CELL_CARRY,
                                  .hard = j->c->gate_activation == LNRNN_GATES_HARD_SIGMOID,
                                  .act = j->c->act};
    for (backward_phase *const *phase = j->phases; *phase; phase++)
        (*phase)(s);
}

void lnrnn_backward_group(void *ctx, size_t group, int worker, int64_t *left)
{
    const backward_job *j = ctx;
    const lnrnn_rnn_call *r = j->r;
    const backward_chunk *chunk = j->chunk;
    const size_t first = group * j->p->group, rest = r->B - first,
                 count = rest < j->p->group ? rest : j->p->group;
    size_t t = chunk->t1 - j->done[group], record = first + rows_until(r, t), before = 0;
    backward_step s = {.j = j, .first = first};
    lnrnn_backward_scratch(j, j->work + (size_t)worker * j->worker, &s);
    if (t)
        before = more_active_rows(r, 0, r->B, 0, t - 1);
    while (t > chunk->t0 && remaining(left) > 0) {
        s.t = --t;
        record -= before;
        before = t ? more_active_rows(r, 0, r->B, before, t - 1) : 0;
        s.active = more_active_rows(r, first, count, s.active, t);
        if (s.active)
            take_step(&s, record, before);
        lnrnn_flush_sums(j, first, count, t);
        spend(left, step_cost(r, (double)s.active, j->c->head_units));
    }
    j->done[group] = t > chunk->t0 ? chunk->t1 - t : LNRNN_DONE;
}
