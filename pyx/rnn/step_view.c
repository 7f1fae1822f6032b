/* The view of a group's active rows (lnrnn_step): its memory, its inputs, its beginning and end. A chunk is
 * the steps for which one product computes W_ih x. */
#include <string.h>

#include "rnn/rows.h"
#include "rnn/step.h"
#include "runtime/resumable.h"

/* Returns 1 if a step needs memory that a step of the most frequent cells does not need. So the steps of
 * these cells make one test, not four (benchmark small). */
static int needs_more(const lnrnn_rnn_config *c)
{
    return c->reset_before || c->projection || c->output_norm || c->num_heads > 1;
}

static void more_memory(lnrnn_step *s, const lnrnn_rnn_call *r, const lnrnn_rnn_plan *p, float *own,
                        size_t *at)
{
    const lnrnn_rnn_config *c = r->config;
    const size_t pointers = sizeof(size_t) / sizeof(float) * p->group, narrow = p->group * p->narrow;
    if (c->reset_before && !p->divide_rows)
        s->reset = lnrnn_carve(own, at, 2 * narrow);
    s->reset_rows = lnrnn_carve(own, at, c->reset_before ? pointers : 0);
    s->unprojected = lnrnn_carve(own, at, c->projection && !r->tape ? narrow : 0);
    s->projected = lnrnn_carve(own, at, c->projection ? TILE * p->h_stride : 0);
    s->outputs = lnrnn_carve(own, at, c->projection ? pointers : 0);
    s->y = lnrnn_carve(own, at, c->output_norm ? pointers : 0);
    if (c->num_heads > 1)
        s->block = lnrnn_carve(own, at, TILE * p->product->width(c->num_gates * c->head_units));
}

/* Returns the number of words of scratch for the products of at most n rows. */
static size_t product_scratch(const lnrnn_rnn_plan *p, const lnrnn_rnn_config *c, size_t n)
{
    const size_t rows = n < TILE ? n : TILE, k = c->D > c->H ? c->D : c->H,
                 dense = p->product->scratch(c->dtype, rows, k),
                 blocks = p->window ? p->blocks->scratch(c->dtype, rows, k) : 0;
    return dense > blocks ? dense : blocks;
}

size_t lnrnn_step_memory(lnrnn_step *s, const lnrnn_rnn_call *r, const lnrnn_rnn_plan *p, float *shared,
                         float *own, size_t *floats)
{
    const lnrnn_rnn_config *c = r->config;
    const size_t rows = p->group * p->wide, chunk = p->group * p->chunk, h = p->group * p->h_stride,
                 all_c = p->group * p->c_stride, copies = p->divide_units && !p->divide_rows,
                 pointers = sizeof(size_t) / sizeof(float);
    size_t at = 0;
    s->chunk = lnrnn_carve(shared, &at, p->chunk * rows);
    s->products =
        lnrnn_carve(shared, &at, c->separate_products && !r->tape ? (p->divide_units ? 2 : 1) * rows : 0);
    if (c->reset_before && p->divide_rows)
        s->reset = lnrnn_carve(shared, &at, 2 * p->group * p->narrow);
    *floats = p->divide_units ? at : 0;
    at -= *floats;
    s->own_h = lnrnn_carve(own, &at, copies * h);
    s->own_c = lnrnn_carve(own, &at, copies * all_c);
    s->old_h = lnrnn_carve(own, &at, c->zoneout_h > 0 ? h : 0);
    s->old_c = lnrnn_carve(own, &at, c->zoneout_c > 0 ? all_c : 0);
    s->masked = lnrnn_carve(own, &at, r->masks.state ? h : 0);
    s->statistics = lnrnn_carve(own, &at, p->synchronous ? LNRNN_SITES * lnrnn_statistics_floats(c) : 0);
    s->cell.scratch = lnrnn_carve(own, &at, c->cell_scratch);
    s->packed = lnrnn_carve(own, &at, product_scratch(p, c, chunk));
    s->x = lnrnn_carve(own, &at, pointers * chunk);
    s->h_prev = lnrnn_carve(own, &at, pointers * p->group);
    s->c = lnrnn_carve(own, &at, pointers * p->group);
    s->h = lnrnn_carve(own, &at, pointers * p->group);
    s->recurrent = r->masks.state ? lnrnn_carve(own, &at, pointers * p->group) : s->h_prev;
    if (needs_more(c))
        more_memory(s, r, p, own, &at);
    return at;
}

/* memset through a volatile pointer is always a call. GCC's inline code takes a tenth of a small step
 * (benchmark latency). */
static void *(*const volatile clear)(void *, int, size_t) = memset;

void lnrnn_step_begin(lnrnn_step *s, const lnrnn_rnn_call *r, size_t group, size_t t, float *shared,
                      float *own)
{
    const lnrnn_rnn_config *c = r->config;
    const lnrnn_rnn_plan *p = r->plan;
    const size_t first = group * p->group, rest = r->B - first, count = rest < p->group ? rest : p->group;
    const ptrdiff_t stride = (ptrdiff_t)(r->tape ? p->tape.width : p->wide),
                    next_y = c->reverse ? -r->yt : r->yt;
    size_t floats;
    clear(s, 0, sizeof *s);
    s->r = r;
    s->first = first, s->count = count, s->length = row_length(r, first);
    s->t = t, s->active = active_rows(r, first, count, t);
    s->next_h = c->output_norm ? 0 : next_y, s->next_y = next_y;
    s->recorded = r->tape ? rows_until(r, t) : 0, s->live = r->B;
    s->share = (lnrnn_share){.from = {.of = 1}, .to = {.panel = p->panels, .of = 1}};
    s->team = 1;
    s->kernel = p->kernels->cells->step[c->step_kernel];
    s->config = (lnrnn_step_config){.hidden = &s->norm[LNRNN_SITE_HIDDEN],
                                    .input = c->input_side ? &s->norm[LNRNN_SITE_INPUT] : NULL,
                                    .cell = &s->norm[LNRNN_SITE_CELL],
                                    .act = c->act,
                                    .cell_norm = c->cell_norm,
                                    .peephole = c->peephole,
                                    .exp_forget = c->exp_forget,
                                    .round_states = c->round_states};
    for (int k = 0; k < LNRNN_SITES; k++)
        s->norm[k] = c->site[k].norm;
    s->cell.xs = s->cell.as = stride, s->cell.rs = 2 * (ptrdiff_t)p->narrow;
    lnrnn_step_memory(s, r, p, shared, own, &floats);
    s->hidden = s->all_c = s->products; /* without a tape, c overwrites W_hh h, which the cell has read */
    for (size_t i = 0; i < s->active; i++) {
        s->h_prev[i] = h_row(r, first + i, t);
        s->c[i] = c_row(r, first + i);
        s->h[i] = c->output_norm ? r->hn + h_at(r, first + i) : y_row(r, first + i, t);
    }
    if (!needs_more(c))
        return;
    for (size_t i = 0; i < s->active; i++) {
        if (c->output_norm)
            s->y[i] = y_row(r, first + i, t);
        if (c->reset_before)
            s->reset_rows[i] = s->reset + (ptrdiff_t)i * s->cell.rs;
        if (c->projection && !r->tape)
            s->outputs[i] = s->unprojected + i * p->narrow;
    }
}

void lnrnn_step_load(const lnrnn_step *s)
{
    const lnrnn_rnn_call *r = s->r;
    for (size_t i = s->first; r->cn && r->cn != r->c0 && i < s->first + s->count; i++)
        memmove(c_row(r, i), r->c0 + c_at(r, i), r->config->C * sizeof(float));
}

/* Returns the end of the steps that this thread may compute now. A thread with expensive steps must not use
 * up the budget of other threads, nor let them wait for its last chunk. (Benchmark rnn B32-H2048.) */
static size_t affordable(const lnrnn_step *s, size_t stop, size_t chunk, int64_t *left)
{
    const lnrnn_rnn_call *r = s->r;
    size_t end = stop - s->t < chunk ? stop : s->t + chunk;
    if (remaining(left) == INT64_MAX) /* no limit */
        return end;
    const double cost = step_cost(r, (double)s->active, r->config->D + r->config->head_units),
                 all = (double)remaining(left) > 0 ? (double)remaining(left) : 0,
                 most = r->part > 0 && all > r->part ? r->part : all,
                 share = r->plan->divide_units ? most : all / r->plan->threads,
                 budget = share < most ? share : most;
    if (budget < cost * (double)(end - s->t))
        end = s->t + 1 + (size_t)(budget / cost);
    const double spent = cost * (double)(end - s->t);
    spend(left, spent < most ? spent : most);
    return end;
}

/* Collects pointers to the rows of x of steps t .. end - 1, for one product. Returns their number. */
static size_t take_inputs(lnrnn_step *s, size_t t, size_t end)
{
    size_t n = 0;
    for (size_t active = s->active; t < end; t++) {
        active = active_rows(s->r, s->first, active, t);
        for (size_t i = 0; i < active; i++)
            s->x[n++] = x_row(s->r, s->first + i, t);
    }
    return n;
}

size_t lnrnn_step_chunk(lnrnn_step *s, size_t stop, int64_t *left)
{
    const lnrnn_rnn_plan *p = s->r->plan;
    const size_t rows = p->rows_ahead, steps = stop - s->t;
    const int ready = s->ahead.w && s->t >= s->ahead_end; /* GCOVR_EXCL_BR_LINE: chunks end there */
    /* The first chunk has up to 2 * rows - 1 steps, all other chunks have as many steps as lnrnn_ahead has
     * rows. */
    const size_t chunk = ready                       ? rows
                         : !rows || steps < 2 * rows ? p->chunk
                                                     : rows + steps % rows,
                 end = affordable(s, stop, chunk, left);
    size_t n = end - s->t; /* if ready, W_ih x of this chunk is computed already */
    s->wx = ready ? s->ahead.c : s->chunk;
    if (!ready)
        n = take_inputs(s, s->t, end);
    if (!p->both_products)
        lnrnn_input_product(s, n, 0, ready);
    s->ahead.w = NULL;
    if (rows && stop - end >= rows) {
        take_inputs(s, end, end + rows);
        lnrnn_ahead_begin(s);
    }
    return end;
}

size_t lnrnn_step_end(const lnrnn_step *s)
{
    const lnrnn_rnn_call *r = s->r;
    const size_t bytes = r->config->P * sizeof(float);
    if (s->t < s->length)
        return s->t;
    for (size_t i = s->first; i < s->first + s->count; i++) {
        const lnrnn_row *row = &r->rows[i];
        memmove(r->hn + h_at(r, i), h_row(r, i, row_length(r, i)), bytes);
        for (int64_t t = row->first + row->length; t < row->end; t++)
            memset(r->y + t * r->yt + row->sequence * r->yb, 0, bytes);
    }
    return LNRNN_DONE;
}
