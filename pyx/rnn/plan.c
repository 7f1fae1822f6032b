/* Makes the plan for all calls of one shape: threads, groups of sequences, steps per chunk, and the layout of
 * scratch memory. forward.c explains groups and chunks.
 *
 * Groups are independent. One thread computes a group, or several threads divide its hidden units (split.c);
 * runtime/thread_policy.h decides. With the statistics of the batch, batch norm needs all rows of a step, so
 * there is one group. */
#include "rnn/layer.h"
#include "lnrnn/kernels/table.h"
#include "lnrnn/tuning.h"
#include "rnn/cost_model.h"
#include "rnn/forward.h"
#include "rnn/rows.h"
#include "rnn/step.h"
#include "runtime/floats.h"
#include "runtime/thread_policy.h"

/* Returns the number of the first step, counted from the start of a sequence, that uses the statistics of the
 * batch. */
static size_t first_from_batch(const lnrnn_rnn_call *r)
{
    const lnrnn_rnn_config *c = r->config;
    if (c->norm != LNRNN_NORM_BATCH)
        return SIZE_MAX;
    if (r->count)
        return 0;
    return c->overrun_row >= 0 || r->last_step_end <= c->known ? SIZE_MAX : c->known;
}

/* A record of the tape holds W x (only with separate products), W h or the sum of both, and the gates. Then
 * come c, with a projection the cell's output, and h if y is the norm of h. */
static void layout_tape(const lnrnn_rnn_config *c, lnrnn_rnn_plan *p)
{
    p->wide = p->kernels->product->width(c->outputs);
    p->narrow = p->kernels->product->width(c->H);
    /* The product for the gate n writes whole vectors after r and z, so make room for them. */
    if (c->reset_before && p->wide < c->first_gates * c->H + p->narrow)
        p->wide = lnrnn_whole_floats(c->first_gates * c->H + p->narrow);
    p->h_stride = p->kernels->product->width(c->P);
    p->c_stride = p->kernels->product->width(c->C);
    p->tape.h = c->separate_products ? p->wide : 0;
    p->tape.gates = p->tape.h + p->wide;
    p->tape.c = p->tape.gates + (c->saved_gates ? p->wide : 0);
    p->tape.output = p->tape.c + p->c_stride;
    p->tape.state = p->tape.output + (c->projection ? p->narrow : 0);
    p->tape.width = p->tape.state + (c->output_norm ? p->h_stride : 0);
}

size_t lnrnn_tape_width(const lnrnn_rnn_config *config)
{
    lnrnn_rnn_plan p = {.kernels = lnrnn_active()};
    layout_tape(config, &p);
    return p.tape.width;
}

static void choose_threads(const lnrnn_rnn_call *r, int threads, lnrnn_rnn_plan *p)
{
    const double multiply_adds = call_multiply_adds(r);
    p->threads = lnrnn_useful_threads(multiply_adds, threads);
    p->brief = lnrnn_is_brief(multiply_adds);
    /* Threads cannot divide units if a step needs all rows at once, or the call has a tape or masks. */
    /* GCOVR_EXCL_BR_LINE: masks come with a tape */
    if (p->threads < 2 || p->synchronous || r->tape || r->masks.state)
        return;
    const lnrnn_step_work work = lnrnn_work_of(r->config, p->caches, r->B);
    const lnrnn_partition best =
        lnrnn_choose_partition(p->threads, r->B, work.panels, &work, lnrnn_step_time);
    if (best.team < 2)
        return;
    p->threads = best.groups * best.team;
    p->divide_units = best.team, p->divide_rows = best.divide_rows;
    p->group = (r->B + (size_t)best.groups - 1) / (size_t)best.groups;
}

/* A stream keeps its plan for all steps, so every call asks how many threads are free now. */
int lnrnn_threads_now(const lnrnn_rnn_plan *p)
{
    /* GCOVR_EXCL_BR_LINE: brief calls of several threads need more cores */
    return lnrnn_free_threads(p->threads, p->brief || p->divide_units);
}

/* Returns the number of rows of a chunk: steps times sequences. */
static size_t chunk_rows(const lnrnn_rnn_config *c, const lnrnn_rnn_plan *p)
{
    const size_t of_cache = lnrnn_chunk_bytes(p->caches) / (p->wide * sizeof(float)),
                 of_weights = (c->D + c->head_units) / LNRNN_WEIGHTS_TO_CHUNK;
    size_t rows = p->input_rows;
    rows = rows > 2 * of_weights ? 2 * of_weights : rows < of_weights ? of_weights : rows;
    return rows > of_cache ? rows : of_cache;
}

static void choose_groups(const lnrnn_rnn_call *r, lnrnn_rnn_plan *p)
{
    if (!p->divide_units)
        p->group = p->synchronous ? r->B : TILE;
    /* Make groups smaller if every thread then gets a group. With a tape, a group consists of whole blocks of
     * sum_rows rows. */
    if (!p->synchronous && !p->divide_units && (size_t)p->threads * TILE > r->B)
        p->group = (r->B + (size_t)p->threads - 1) / (size_t)p->threads;
    if (!p->synchronous && r->tape)
        p->group = (p->group + sum_rows(r->B) - 1) / sum_rows(r->B) * sum_rows(r->B);
    if (p->group < 1)
        p->group = 1;
    p->groups = r->B ? (r->B + p->group - 1) / p->group : 0;
    p->chunk = chunk_rows(r->config, p) / p->group;
    if (p->chunk > r->T)
        p->chunk = r->T;
    if (p->chunk < 1)
        p->chunk = 1;
}

/* Returns plan->rows_ahead. With more than two panels, the first panel has full width (pack.h). The buffer
 * of W_ih x must hold two chunks. */
static size_t rows_ahead(const lnrnn_rnn_config *c, const lnrnn_rnn_plan *p)
{
    const size_t rows = p->product->rows_ahead, team = p->divide_units ? (size_t)p->divide_units : 1,
                 bytes = p->wide * c->P * sizeof(float) / team;
    const int able = rows && p->panels > 2 && c->dtype == LNRNN_WEIGHT_F32 && p->group == 1
                     && p->chunk >= 3 * rows && c->D == c->P && c->P % rows == 0 && c->num_heads == 1
                     && !c->reset_before && !p->window; /* GCOVR_EXCL_BR_LINE: only sets with rows_ahead */
    return able && lnrnn_computes_ahead(p->caches, 2 * bytes) ? rows : 0;
}

static void layout_scratch(const lnrnn_rnn_call *r, lnrnn_rnn_plan *p)
{
    lnrnn_step s;
    p->scratch.worker = lnrnn_step_memory(&s, r, p, NULL, NULL, &p->scratch.shared);
    p->scratch.positions = p->groups * p->scratch.shared + (size_t)p->threads * p->scratch.worker;
    p->scratch.floats = p->scratch.positions + 2 * p->groups + 2;
}

void lnrnn_rnn_make_plan(const lnrnn_rnn_call *r, int threads, lnrnn_rnn_plan *p)
{
    LNRNN_DEFAULT_FLOATS;
    const lnrnn_rnn_config *c = r->config;
    *p = (lnrnn_rnn_plan){.kernels = lnrnn_active(), .caches = lnrnn_get_caches()};
    p->product = lnrnn_product_of(p->kernels, c->dtype);
    p->blocks = lnrnn_blocks_of(p->kernels, c->dtype);
    p->window = c->blocks_ih || c->blocks_hh ? lnrnn_block_window(c->dtype) : 0;
    p->input_rows = c->dtype == LNRNN_WEIGHT_F32 ? lnrnn_input_rows(p->caches, c->D * sizeof(float)) : TILE;
    p->panels = p->product->panels(c->outputs);
    p->first_words = c->reset_before ? lnrnn_packed_heads_size(c, c->first_gates) : 0;
    p->batch_from = first_from_batch(r);
    p->synchronous = p->batch_from < SIZE_MAX;
    layout_tape(c, p);
    choose_threads(r, threads, p);
    choose_groups(r, p);
    p->rows_ahead = rows_ahead(c, p);
    p->both_products = r->T == 1 && c->separate_products && c->num_heads == 1 && !c->reset_before && !r->tape
                       && !p->divide_units;
    layout_scratch(r, p);
    lnrnn_resolve_step(r, p);
}
