/* The cost model of threads: what a step takes under each way of dividing it, and which way takes the least.
 *
 * n threads are groups x units: B rows in `groups` groups, each computed by `units` threads, which divide the panels of
 * W_hh and W_ih. docs/thread_model.md has the equations, where the figures come from, and what was measured against them.
 *     product     each thread multiplies the rows of its group by its share of the weights. Rows go through a panel in
 *                 tiles; its bytes come from wherever they lie while the first tile computes, and from L2 for the others
 *     cell        norms and activations: of all rows of the group, or, divided, of some
 *     barriers    one after the products of a step; another after the states, where these are divided
 *     exchange    what another thread of the group has written is read from its cache, at half of the rate of L3
 * The model has to tell which way is faster, not how fast it is. Whatever it says, bits are the same. */
#include "rnn/cost_model.h"

#include "lnrnn/kernels/table.h"
#include "lnrnn/tuning.h"
#include "rnn/rows.h"
#include "runtime/figures.h"

/* Rows of the tallest tile of a product: kernels/panel_loop.h divides rows evenly among as few tiles as will do. */
enum { TALLEST = 8 };

/* Rows that a tile could have done in the time in which it loads its weights and the sums that it adds to. */
static const double rows_lost = 0.5;

/* Of two things that overlap, how much of the shorter one adds to the longer. */
static const double unhidden = 0.3;

/* ns of norm and activations, by output: on a Zen 4 0.35 for an RNN, 0.5 for a GRU and 0.6 for an LSTM, of eight rows or
 * more. docs/thread_model.md says how little another figure changes. */
static const double of_an_output = 0.5;

static double overlapped(double a, double b) { return a > b ? a + unhidden * b : b + unhidden * a; }

static size_t parts_of(size_t n, size_t each) { return (n + each - 1) / each; }

static double bytes_of_weight(int dtype)
{
    return dtype == LNRNN_WEIGHT_F32 ? 4 : dtype == LNRNN_WEIGHT_BF16 ? 2 : 1;
}

/* What one thread reads, and how fast. */
typedef struct {
    double multiply_adds; /* a ns */
    double l2, level;     /* bytes a ns from L2, and from where the weights lie */
} thread_rates;

/* How fast a thread reads its share of W_hh, `own` bytes of `all`, in each step; n threads do. */
static thread_rates rates_of(double own, double all, lnrnn_caches caches, int dtype, int n)
{
    const lnrnn_figures f = lnrnn_get_figures();
    const double memory = f.all_memory / n < f.memory ? f.all_memory / n : f.memory;
    thread_rates rates = {.multiply_adds = f.multiply_adds, .l2 = f.l2, .level = memory};
    if (own <= (double)lnrnn_l2_holds(caches, dtype != LNRNN_WEIGHT_F32))
        rates.level = f.l2;
    else if (all <= (double)caches.l3 * 3 / 4)
        rates.level = f.l3;
    return rates;
}

/* Rows times a share of weights of so many bytes, `each` multiply-adds a row: ns. */
static double product_time(size_t rows, double each, double bytes, const thread_rates *rates)
{
    double time = 0;
    for (size_t r = 0; r < rows; r += TILE) {
        const size_t n = rows - r < TILE ? rows - r : TILE, tiles = parts_of(n, TALLEST);
        const double tile = ((double)n / (double)tiles + rows_lost) * each / rates->multiply_adds;
        /* With one row every load of a weight is waited for; with more, from L2 none is. */
        time += overlapped(tile, bytes / rates->level) + (double)(tiles - 1) * tile;
    }
    return time;
}

/* A step of a group of so many rows by p.units of n threads in all. */
static double group_time(const lnrnn_step_work *w, lnrnn_caches caches, size_t rows, lnrnn_partition p, int n)
{
    const size_t units = (size_t)p.units, own = p.rows ? parts_of(rows, units) : rows;
    const double panels = (double)parts_of(w->panels, units) / (double)w->panels,
                 /* The rows of a panel between two threads can be divided, if there are some (forward.h). */
        share = w->dtype == LNRNN_WEIGHT_F32 && rows > 1 ? 1 / (double)units : panels,
                 outputs = (double)w->outputs;
    const double size = bytes_of_weight(w->dtype), hidden = size * outputs * (double)w->units,
                 input = size * outputs * (double)w->inputs;
    const thread_rates rates =
        rates_of(panels * hidden, hidden * w->at_once, caches, w->dtype, n * w->at_once);
    double time = product_time(rows, share * outputs * (double)w->units, panels * hidden, &rates)
                  /* W_ih x is computed for the rows of many steps at once, of a tile or more. */
                  + product_time(TILE, share * outputs * (double)w->inputs, panels * input, &rates)
                        * (double)rows / TILE;
    time += (double)own * outputs * of_an_output;
    if (units > 1) {
        const lnrnn_figures f = lnrnn_get_figures();
        const double foreign = 1 - 1 / (double)units;
        const double read = (double)own * outputs * w->sides + (p.rows ? (double)(rows * w->units) : 0);
        time += foreign * read * sizeof(float) / (f.l3 / 2);
        time += (p.rows ? 2 : 1) * (f.barrier + f.barrier_thread * (p.units - 2));
    }
    return time;
}

double lnrnn_step_time(const lnrnn_step_work *work, lnrnn_caches caches, lnrnn_partition p)
{
    const int n = p.groups * p.units;
    const size_t rows = parts_of(work->rows, (size_t)p.groups);
    if (p.units > 1 || rows <= TILE)
        return group_time(work, caches, rows, p, n);
    /* Each thread takes one group of a whole tile after the other, and some a last one, which may have fewer rows. */
    const size_t whole = work->rows / TILE, threads = (size_t)p.groups, rest = work->rows % TILE;
    const size_t rounds = whole / threads;
    const double of_tile = group_time(work, caches, TILE, p, n);
    const double last = whole % threads ? of_tile : rest ? group_time(work, caches, rest, p, n) : 0;
    return (double)rounds * of_tile + last;
}

double lnrnn_input_reading(const lnrnn_step_work *w, lnrnn_caches caches)
{
    const double bytes = bytes_of_weight(w->dtype) * (double)w->outputs * (double)w->inputs;
    return bytes / rates_of(bytes, bytes * w->at_once, caches, w->dtype, w->at_once).level;
}

lnrnn_step_work lnrnn_work_of(const lnrnn_rnn_config *c, size_t rows)
{
    return (lnrnn_step_work){.rows = rows,
                             .inputs = c->D,
                             .units = c->H,
                             .outputs = c->outputs,
                             .panels = lnrnn_panels_of(c->dtype, c->outputs),
                             .dtype = c->dtype,
                             .sides = 1 + c->separate_products,
                             .at_once = 1};
}

size_t lnrnn_panels_of(int dtype, size_t outputs)
{
    return lnrnn_product_of(lnrnn_active(), dtype)->panels(outputs);
}

static lnrnn_partition forced;

void lnrnn_set_partition(lnrnn_partition partition) { forced = partition; }

lnrnn_partition lnrnn_choose_partition(const lnrnn_step_work *work, lnrnn_caches caches, int threads)
{
    const size_t rows = work->rows ? work->rows : 1;
    if (forced.groups && forced.groups * forced.units <= threads && (size_t)forced.groups <= rows
        && (size_t)forced.units <= work->panels)
        return forced;
    lnrnn_partition best = {.groups = rows < (size_t)threads ? (int)rows : threads, .units = 1};
    double least = lnrnn_step_time(work, caches, best);
    for (int units = 2; units <= threads && (size_t)units <= work->panels; units++) {
        const int groups = (size_t)(threads / units) < rows ? threads / units : (int)rows;
        for (int divided = 0; divided < 2; divided++) {
            const lnrnn_partition p = {.groups = groups, .units = units, .rows = divided};
            if (groups > LNRNN_MOST_SHARED)
                continue;
            const double time = lnrnn_step_time(work, caches, p);
            if (time < least)
                least = time, best = p;
        }
    }
    return best;
}
