/* The cost model predicts the time of a step on some number of threads. docs/thread_model.md has the sources
 * of rates, and measurements.
 *
 * n threads form a grid of groups x team. The B rows are divided into groups. The threads of a group's team
 * divide the panels of W_hh and W_ih. The time of a step is the sum of:
 *     product     Each thread multiplies the rows of its group, tile by tile, by its share of the weights.
 *                 The first tile reads the weights from L2, L3 or memory, the other tiles from L2. If the
 *                 weights exceed L3, a step reads from L3 the part that the previous step read last.
 *     projection  All of W_hr multiplies the rows whose cell outputs the thread computes.
 *     cell        Norms and activations of all rows of the group, or of some if the team divides the rows.
 *                 Narrow weights need conversions.
 *     barriers    One after the products of a step, and one after the states if the team divides the rows.
 *     exchange    Moving values from the thread of the team that computes them to the threads that read them.
 * The model only ranks the partitions. */
#include "rnn/cost_model.h"

#include <math.h>

#include "lnrnn/kernels/table.h"
#include "lnrnn/tuning.h"
#include "rnn/rows.h"
#include "runtime/cpu_model.h"

static double overlapped(double a, double b)
{
    return a > b ? a + LNRNN_NOT_HIDDEN * b : b + LNRNN_NOT_HIDDEN * a;
}

static size_t ceil_div(size_t n, size_t d) { return (n + d - 1) / d; }

static double bytes_of_weight(int dtype)
{
    return dtype == LNRNN_WEIGHT_F32 ? 4 : dtype == LNRNN_WEIGHT_BF16 ? 2 : 1;
}

/* Returns the rate of multiply-adds with weights of this type, relative to float32. */
static double rate_of_weight(int dtype)
{
    if (!lnrnn_product_of(lnrnn_active(), dtype)->unit)
        return 1;
    return dtype == LNRNN_WEIGHT_I8A8 ? 2 * LNRNN_UNIT_RATE : LNRNN_UNIT_RATE;
}

/* The rates of one thread. */
typedef struct {
    double multiply_adds;  /* per ns */
    double l2, of_weights; /* bytes per ns: from L2, and from the cache or memory with the weights */
} thread_rates;

/* Returns the rates if each of n threads reads `own` of the `all` bytes of W_hh in every step. */
static thread_rates rates_of(double own, double all, lnrnn_caches caches, int dtype, int n)
{
    const lnrnn_cpu_model cpu = lnrnn_get_cpu_model();
    const double memory = cpu.all_memory / n < cpu.memory ? cpu.all_memory / n : cpu.memory;
    thread_rates rates = {.multiply_adds = cpu.multiply_adds * rate_of_weight(dtype), .l2 = cpu.l2};
    if (own <= (double)lnrnn_l2_holds(caches, dtype != LNRNN_WEIGHT_F32))
        rates.of_weights = cpu.l2;
    else {
        const double held = (double)caches.l3 * LNRNN_L3_HOLDS / all, of_l3 = held < 1 ? held : 1;
        rates.of_weights = 1 / (of_l3 / cpu.l3 + (1 - of_l3) / memory);
    }
    return rates;
}

/* Returns the time in ns of a product of `rows` rows and `bytes` bytes of weights, with `each` multiply-adds
 * per row. */
static double product_time(size_t rows, double each, double bytes, const thread_rates *rates)
{
    double time = 0;
    for (size_t r = 0; r < rows; r += TILE) {
        const size_t n = rows - r < TILE ? rows - r : TILE, tiles = ceil_div(n, LNRNN_TALLEST_TILE);
        const double tile = (double)n / (double)tiles * each / rates->multiply_adds;
        /* The first tile reads the weights from L2, L3 or memory. Further tiles read the weights from L2
         * without waiting. */
        time += overlapped(tile, bytes / rates->of_weights) + (double)(tiles - 1) * tile;
    }
    return time;
}

/* Returns the time in ns of a step of one group of `rows` rows, if p.team of the n threads compute it. */
static double group_time(const lnrnn_step_work *w, size_t rows, lnrnn_partition p, int n)
{
    const size_t team = (size_t)p.team, own = p.divide_rows ? ceil_div(rows, team) : rows;
    const double
        panels = (double)ceil_div(w->panels, team) / (double)w->panels,
        /* With several rows, two threads can divide the rows of a panel (product.c), so all shares are
         * equal. */
        share = w->dtype == LNRNN_WEIGHT_F32 && rows > 1 ? 1 / (double)team : panels,
        outputs = (double)lnrnn_product_of(lnrnn_active(), w->dtype)->width(w->outputs);
    const double size = bytes_of_weight(w->dtype), hidden = size * outputs * (double)w->units,
                 input = size * outputs * (double)w->inputs;
    const thread_rates rates =
        rates_of(panels * hidden, hidden * w->at_once, w->caches, w->dtype, n * w->at_once);
    double time =
        product_time(rows, share * outputs * (double)w->units, panels * hidden, &rates)
        /* One product computes W_ih x for many steps, so a row takes 1 / TILE of the time of TILE rows. */
        + product_time(TILE, share * outputs * (double)w->inputs, panels * input, &rates) * (double)rows
              / TILE;
    time += (double)own * outputs * (LNRNN_OUTPUT_TIME + w->layer_norm * LNRNN_OUTPUT_PASS);
    if (w->dtype != LNRNN_WEIGHT_F32)
        time += (double)rows * share * outputs * LNRNN_OUTPUT_PASS / (lnrnn_is_int8(w->dtype) ? 1 : 2);
    if (w->projection)
        time += product_time(own, (double)w->projection, size * (double)w->projection, &rates);
    if (team > 1) {
        const lnrnn_cpu_model cpu = lnrnn_get_cpu_model();
        const double foreign = 1 - 1 / (double)team;
        const double read =
            (double)own * outputs * w->sides + (p.divide_rows ? (double)(rows * w->units) : 0);
        time += foreign * read * sizeof(float) / (cpu.l3 * LNRNN_EXCHANGE_RATE);
        time += (p.divide_rows ? 2 : 1) * (1 + w->reset_before)
                * (cpu.barrier + cpu.barrier_thread * (p.team - 2));
    }
    return time;
}

double lnrnn_step_time(const lnrnn_step_work *work, lnrnn_partition p)
{
    const int n = p.groups * p.team;
    const size_t rows = ceil_div(work->rows, (size_t)p.groups);
    if (p.team > 1 || rows <= TILE)
        return group_time(work, rows, p, n);
    /* The threads take groups of TILE rows one after the other. The last group may have fewer rows. */
    const size_t whole = work->rows / TILE, threads = (size_t)p.groups, rest = work->rows % TILE;
    const double of_tile = group_time(work, TILE, p, n);
    const double last = whole % threads ? of_tile : rest ? group_time(work, rest, p, n) : 0;
    return (double)(whole / threads) * of_tile + last;
}

size_t lnrnn_panels_of(int dtype, size_t outputs)
{
    return lnrnn_product_of(lnrnn_active(), dtype)->panels(outputs);
}

lnrnn_step_work lnrnn_work_of(const lnrnn_rnn_config *c, lnrnn_caches caches, size_t rows)
{
    return (lnrnn_step_work){.rows = rows,
                             .inputs = read_inputs(c, c->blocks_ih, c->D),
                             .units = read_inputs(c, c->blocks_hh, c->head_units),
                             .outputs = c->outputs,
                             .projection = c->projection,
                             .panels = lnrnn_panels_of(c->dtype, c->outputs),
                             .dtype = c->dtype,
                             .reset_before = c->reset_before,
                             .layer_norm = c->norm != LNRNN_NORM_NONE && c->norm != LNRNN_NORM_BATCH,
                             .sides = 1 + c->separate_products,
                             .at_once = 1,
                             .caches = caches};
}

/* --- a call with its plan ------------------------------------------------------------------------------- */

/* Returns the work of one group at a step, with the mean number of active rows. */
static lnrnn_step_work group_work(const lnrnn_rnn_call *r, const lnrnn_rnn_plan *p, double at_once)
{
    const double mean_rows = (double)all_rows(r) / (double)r->T;
    lnrnn_step_work work = lnrnn_work_of(r->config, p->caches, (size_t)ceil(mean_rows / (double)p->groups));
    work.at_once = (int)at_once;
    return work;
}

double lnrnn_group_step_time(const lnrnn_rnn_call *r, const lnrnn_rnn_plan *p, double at_once)
{
    const lnrnn_partition of_group = {
        .groups = 1, .team = p->divide_units ? p->divide_units : 1, .divide_rows = p->divide_rows};
    const lnrnn_step_work work = group_work(r, p, at_once);
    return lnrnn_step_time(&work, of_group);
}

double lnrnn_call_time(const lnrnn_rnn_call *r, const lnrnn_rnn_plan *p, double at_once, double threads)
{
    const double teams = p->divide_units ? threads / p->divide_units : threads;
    const double passes = ceil(at_once * (double)p->groups / teams);
    return passes * (double)r->T * lnrnn_group_step_time(r, p, at_once);
}

double lnrnn_input_weights_time(const lnrnn_rnn_call *r, const lnrnn_rnn_plan *p, double at_once)
{
    const lnrnn_step_work w = group_work(r, p, at_once);
    const double bytes = bytes_of_weight(w.dtype) * (double)w.outputs * (double)w.inputs;
    return bytes / rates_of(bytes, bytes * w.at_once, w.caches, w.dtype, w.at_once).of_weights;
}
