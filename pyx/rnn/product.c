/* The products of a step: W_ih x and W_hh h, for the columns that one thread computes, and the projection. */
#include <string.h>

#include "rnn/rows.h"
#include "rnn/step.h"

/* Threads divide outputs at cuts (step.h). Returns the cut before output `at` of N outputs. */
static lnrnn_cut cut_at(const lnrnn_rnn_call *r, size_t N, size_t at)
{
    const lnrnn_product *k = r->plan->product;
    const size_t count = k->panels(N);
    size_t p = count * at / k->width(N);
    while (p && k->start(N, p) > at)
        p--;
    /* GCOVR_EXCL_BR_LINE: corrects an estimate that is never too low here */
    while (p < count && k->start(N, p + 1) <= at)
        p++;
    const size_t part = at - k->start(N, p), of = p < count ? k->start(N, p + 1) - k->start(N, p) : 1;
    return (lnrnn_cut){.panel = p, .part = part, .of = of};
}

/* Rounds a cut to the nearest beginning of a panel, for products that cannot divide a panel. */
static size_t near_panel(lnrnn_cut cut) { return cut.panel + (2 * cut.part > cut.of); }

/* Returns a cut near output `at`, at a multiple of `window` outputs where a panel begins. The cut may be the
 * end of all outputs. */
static lnrnn_cut cut_between_windows(const lnrnn_rnn_call *r, size_t at, size_t window)
{
    const size_t N = r->config->outputs, width = r->plan->product->width(N);
    size_t windows = (at + window / 2) / window;
    /* GCOVR_EXCL_BR_LINE: more threads than panels */
    lnrnn_cut cut = cut_at(r, N, at < width && windows * window < width ? windows * window : width);
    while (cut.part) /* GCOVR_EXCL_BR_LINE: a window begins at a panel in these sets */
        cut = cut_at(r, N, --windows * window);
    return cut;
}

static lnrnn_cut cut_of(const lnrnn_rnn_call *r, size_t index, size_t team)
{
    const size_t N = r->config->outputs;
    if (r->plan->window)
        return cut_between_windows(r, r->plan->product->width(N) * index / team, r->plan->window);
    const lnrnn_cut cut = cut_at(r, N, r->plan->product->width(N) * index / team);
    return r->config->dtype == LNRNN_WEIGHT_F32 && !r->plan->rows_ahead
               ? cut
               : (lnrnn_cut){.panel = near_panel(cut), .of = 1};
}

lnrnn_share lnrnn_share_of(const lnrnn_rnn_call *r, size_t index, size_t team)
{
    return (lnrnn_share){cut_of(r, index, team), cut_of(r, index + 1, team)};
}

/* Returns the first narrow panel of panels p0 .. p1 - 1, or p1. N outputs have more than two panels, and only
 * the last panels may be narrow. */
static size_t end_of_whole(const lnrnn_step *s, size_t N, size_t p0, size_t p1)
{
    const lnrnn_product *k = s->r->plan->product;
    while (p1 > p0 && k->start(N, p1) < p1 * k->start(N, 1))
        p1--;
    return p1;
}

/* Two threads may share a panel, each with some rows. Returns how many of n rows belong to the first
 * thread. */
static size_t rows_before(lnrnn_cut cut, size_t n)
{
    return cut.part ? (n * cut.part + cut.of / 2) / cut.of : 0;
}

/* The weights of a product, packed (outputs, inputs). */
typedef struct {
    size_t outputs, inputs;
    const uint32_t *w;
    size_t blocks;      /* the number of blocks, or 0: dense weights */
    const float *inner; /* (outputs) or NULL: biases, added to the product */
    int add, from_end;  /* add: add the product to the output; from_end: compute the last panel first */
    int rest;           /* compute only narrow panels */
    lnrnn_ahead *ahead; /* or NULL */
} weights;

/* rows: n pointers to (inputs) -> a (n, outputs), row stride `as`: the columns of panels p0 .. p1 - 1. */
static void panels_product(const lnrnn_step *s, const weights *u, size_t n, const float *const *rows,
                           size_t p0, size_t p1, float *a, ptrdiff_t as)
{
    const lnrnn_rnn_plan *p = s->r->plan;
    const lnrnn_product *k = p->product;
    const size_t N = u->outputs;
    if (!n || p0 >= p1)
        return;
    const size_t from = k->start(N, p0), end = k->start(N, p1), to = end < N ? end : N;
    if (u->inner)
        for (size_t i = 0; i < n && from < to; i++) /* GCOVR_EXCL_BR_LINE: a panel has outputs */
            memcpy(a + (ptrdiff_t)i * as + from, u->inner + from, (to - from) * sizeof *a);
    lnrnn_matmul m = {.dtype = s->r->config->dtype,
                      .n = N,
                      .k = u->inputs,
                      .w = u->w,
                      .blocks = u->blocks,
                      .p0 = p0,
                      .p1 = p1,
                      .add = u->add || u->inner ? LNRNN_ADD_ON : LNRNN_ADD_NOT,
                      .from_end = u->from_end,
                      .caches = &p->caches,
                      .scratch = s->packed,
                      .ahead = u->ahead};
    if (u->blocks) {
        m.p0 = from / LNRNN_GROUP_OUTPUTS;
        m.p1 = (to + LNRNN_GROUP_OUTPUTS - 1) / LNRNN_GROUP_OUTPUTS;
        p->blocks->matmul(&m, n, rows, a, as);
    } else
        k->matmul(&m, n, rows, a, as);
}

/* Computes the outputs that belong to this thread: its whole panels, and some rows of a panel that it shares
 * with another thread. */
static void product(const lnrnn_step *s, const weights *u, size_t n, const float *const *rows, float *a,
                    ptrdiff_t as)
{
    const size_t p0 = s->share.from.panel, p1 = s->share.to.panel;
    const size_t before = rows_before(s->share.from, n), end = rows_before(s->share.to, n);
    const size_t cut = before > 0, one = p0 == p1;
    const struct {
        size_t row, end, p0, p1;
    } pieces[] = {{before, one ? end : n, p0, p0 + (cut || one)},
                  {0, n, u->rest ? end_of_whole(s, u->outputs, p0 + cut, p1) : p0 + cut, p1},
                  {0, end, p1, p1 + !one}};
    for (int i = 0; i < 3; i++) {
        const int k = u->from_end ? 2 - i : i;
        const size_t row = pieces[k].row;
        panels_product(s, u, pieces[k].end - row, rows + row, pieces[k].p0, pieces[k].p1,
                       a + (ptrdiff_t)row * as, as);
    }
}

/* With float32, all products have equally many rows, because a product of a few remaining rows would also
 * read all of W_ih. */
void lnrnn_input_product(const lnrnn_step *s, size_t n, int from_end, int rest)
{
    const lnrnn_rnn_config *c = s->r->config;
    const weights w_ih = {.outputs = c->outputs,
                          .inputs = c->D,
                          .w = s->r->w_ih,
                          .blocks = c->blocks_ih,
                          .inner = c->inner_ih,
                          .from_end = from_end,
                          .rest = rest};
    const size_t most = s->r->plan->input_rows, times = (n + most - 1) / most, wide = s->r->plan->wide,
                 each = c->dtype == LNRNN_WEIGHT_F32 ? (n + times - 1) / times : most;
    for (size_t i = 0; i < n; i += each)
        product(s, &w_ih, n - i < each ? n - i : each, s->x + i, s->wx + i * wide, (ptrdiff_t)wide);
}

void lnrnn_ahead_begin(lnrnn_step *s)
{
    const lnrnn_rnn_call *r = s->r;
    const lnrnn_rnn_plan *p = r->plan;
    const size_t wide = p->wide, rows = p->rows_ahead, N = r->config->outputs,
                 from = p->product->start(N, s->share.from.panel),
                 end = p->product->start(N, s->share.to.panel), to = end < N ? end : N;
    float *const c = s->chunk + (s->wx == s->chunk ? 2 * rows * wide : 0);
    for (size_t i = 0; i < rows; i++) {
        memset(c + i * wide + from, 0, (end - from) * sizeof *c);
        if (r->config->inner_ih)
            memcpy(c + i * wide + from, r->config->inner_ih + from, (to - from) * sizeof *c);
    }
    s->ahead_end = s->t + rows;
    s->ahead = (lnrnn_ahead){.w = r->w_ih, .rows = s->x, .c = c, .cs = (ptrdiff_t)wide};
}

/* Threads divide the outputs of all heads, N each, at whole panels. Returns the panel of head `head` at which
 * the part of thread `index` begins, and the part of the thread before it ends. */
static size_t panel_of_thread(const lnrnn_step *s, size_t N, size_t head, size_t index)
{
    const lnrnn_product *k = s->r->plan->product;
    const size_t wide = k->width(N), before = head * wide, team = (size_t)s->team;
    if (!index || index == team)
        return index ? k->panels(N) : 0;
    const size_t at = s->r->config->num_heads * wide * index / team;
    return near_panel(cut_at(s->r, N, at < before ? 0 : at - before < wide ? at - before : wide));
}

/* Copies outputs from .. to - 1, of gates that have `units` units each. In `places` the gates are H values
 * apart, in `block` they are adjacent. */
static void copy_gates(size_t units, size_t H, size_t from, size_t to, const float *places, float *block)
{
    for (size_t o = from, n; o < to; o += n) {
        n = units - o % units < to - o ? units - o % units : to - o;
        memcpy(block + o, places + o / units * H + o % units, n * sizeof *block);
    }
}

static void place_gates(size_t units, size_t H, size_t from, size_t to, const float *block, float *places)
{
    for (size_t o = from, n; o < to; o += n) {
        n = units - o % units < to - o ? units - o % units : to - o;
        memcpy(places + o / units * H + o % units, block + o, n * sizeof *block);
    }
}

/* A product writes whole vectors, which would overwrite outputs of other heads, so it writes to a block. A
 * single head needs no block, because only padding and gates of later products follow its outputs. */
void lnrnn_head_products(const lnrnn_step *s, size_t gate, size_t gates, const uint32_t *w,
                         const float *const *rows, int add)
{
    const lnrnn_rnn_call *r = s->r;
    const lnrnn_rnn_config *c = r->config;
    const lnrnn_product *product = r->plan->product;
    const size_t units = c->head_units, N = gates * units, words = product->size(c->dtype, N, units);
    const int direct = c->num_heads == 1;
    const ptrdiff_t as = s->cell.as, wide = direct ? as : (ptrdiff_t)product->width(N);
    const int from_end = (int)(((size_t)r->rows[0].start + s->t) % 2);
    for (size_t k = 0; k < c->num_heads; k++) {
        const size_t head = from_end ? c->num_heads - 1 - k : k, first = gate * c->H + head * units;
        const lnrnn_matmul m = {.dtype = c->dtype,
                                .n = N,
                                .k = units,
                                .w = w + head * words,
                                .p0 = panel_of_thread(s, N, head, (size_t)s->index),
                                .p1 = panel_of_thread(s, N, head, (size_t)s->index + 1),
                                .add = add || c->inner_hh ? LNRNN_ADD_ON : LNRNN_ADD_NOT,
                                .from_end = from_end,
                                .caches = &r->plan->caches,
                                .scratch = s->packed};
        const size_t from = product->start(N, m.p0), end = product->start(N, m.p1), to = end < N ? end : N;
        for (size_t i = 0, n; m.p0 < m.p1 && i < s->active; i += n) {
            const float *inputs[TILE];
            float *const a = s->a + (ptrdiff_t)i * as + first, *const block = direct ? a : s->block;
            for (n = 0; n < TILE && i + n < s->active; n++) {
                inputs[n] = rows[i + n] + head * units;
                if (m.add && (c->inner_hh || !direct)) /* GCOVR_EXCL_BR_LINE: m.add comes with one of them */
                    copy_gates(units, c->H, from, to,
                               c->inner_hh ? c->inner_hh + first : a + (ptrdiff_t)n * as,
                               block + (ptrdiff_t)n * wide);
            }
            product->matmul(&m, n, inputs, block, wide);
            for (size_t q = 0; q < n && !direct; q++)
                place_gates(units, c->H, from, to, block + (ptrdiff_t)q * wide, a + (ptrdiff_t)q * as);
        }
    }
}

/* Alternate steps traverse W_hh backwards. When W_hh exceeds the cache, the panels read last are still
 * cached, so they are read first next time. */
void lnrnn_hidden_product(lnrnn_step *s, int add)
{
    const lnrnn_rnn_call *r = s->r;
    if (r->config->num_heads > 1) {
        lnrnn_head_products(s, 0, r->config->num_gates, r->w_hh, s->recurrent, add);
        return;
    }
    const weights w_hh = {.outputs = r->config->outputs,
                          .inputs = r->config->P,
                          .w = r->w_hh,
                          .blocks = r->config->blocks_hh,
                          .inner = r->config->inner_hh,
                          .add = add,
                          .from_end = (int)(((size_t)r->rows[0].start + s->t) % 2),
                          .ahead = s->ahead.w && s->t < s->ahead_end ? &s->ahead : NULL};
    for (size_t i = 0; i < s->active; i += TILE)
        product(s, &w_hh, s->active - i < TILE ? s->active - i : TILE, s->recurrent + i,
                s->a + (ptrdiff_t)i * s->cell.as, s->cell.as);
}

/* Each thread of a group projects the rows whose states it computes. The function does not call
 * panels_product, because with a second caller compilers would no longer inline panels_product, and small
 * networks would be slower. */
void lnrnn_projection(const lnrnn_step *s)
{
    const lnrnn_rnn_call *r = s->r;
    const lnrnn_rnn_plan *p = r->plan;
    const size_t P = r->config->P, stride = p->h_stride;
    const lnrnn_matmul m = {.dtype = r->config->dtype,
                            .n = P,
                            .k = r->config->H,
                            .w = r->w_hr,
                            .p1 = p->product->panels(P),
                            .add = LNRNN_ADD_NOT,
                            .from_end = (int)(((size_t)r->rows[0].start + s->t) % 2),
                            .caches = &p->caches,
                            .scratch = s->packed};
    for (size_t i = 0; i < s->cell.n; i += TILE) {
        const size_t n = s->cell.n - i < TILE ? s->cell.n - i : TILE;
        p->product->matmul(&m, n, (const float *const *)s->outputs + i, s->projected, (ptrdiff_t)stride);
        for (size_t q = 0; q < n; q++)
            memcpy(s->cell.h[i + q], s->projected + q * stride, P * sizeof(float));
    }
}
