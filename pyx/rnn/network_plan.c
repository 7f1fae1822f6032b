/* Are the layers and directions of a network computed side by side, or one after the other? By what both take
 * according to a model, in ns.
 *
 * A step of a line, that is of a layer in one direction, reads W_hh once, multiplies it by the rows, and makes
 * their states. Of W_ih the same for each step, but it is read once for a chunk of them. Where threads divide
 * the units, each reads its part and multiplies by it, makes all states, and waits at a barrier. Weights are
 * read from the first cache that holds them; all that threads read at the same time shares L3.
 *
 * One after the other: each line with all threads, which divide its sequences or its units, as its plan says.
 *
 * Side by side: each line with one thread, or, of two directions, with its share of the threads. Two directions of
 * a layer take the time of one. Of layers in one direction the next one begins when the first chunk is done:
 * with n threads they take an nth of the time of all, and a chunk more for each thread after the first. */
#include <math.h>

#include "lnrnn/kernels/table.h"
#include "lnrnn/tuning.h"
#include "rnn/network.h"
#include "rnn/network_runs.h"
#include "rnn/rows.h"
#include "runtime/figures.h"

/* What a step of a line does. */
typedef struct {
    double rows;    /* active ones, in the mean */
    double threads; /* that divide the units */
    int divided;    /* and the rows of the states */
    double chunk;   /* steps for which W_ih is read once */
    double at_once; /* lines whose weights are read at the same time */
} step_shape;

static double least(double a, double b) { return a < b ? a : b; }
static double most(double a, double b) { return a > b ? a : b; }

static double bytes_of(const lnrnn_rnn_config *c, size_t inputs)
{
    return 4 * (double)lnrnn_packed_size(c->dtype, c->outputs, inputs);
}

/* How much of what a line reads and L2 does not hold is not in L3 either. */
static double far_part(const lnrnn_line *l, double at_once)
{
    const lnrnn_rnn_config *c = l->call.config;
    const double bytes = bytes_of(c, c->H) + bytes_of(c, c->D),
                 kept = (double)l->plan.caches.l3 * LNRNN_KEPT_IN_L3 / at_once;
    return bytes > kept ? 1 - kept / bytes : 0;
}

/* The time to read weights of a line, so many bytes, again and again. */
static double reading(const lnrnn_line *l, double bytes, double at_once)
{
    const double near = least(bytes, (double)l->plan.caches.l2 * LNRNN_KEPT_IN_L2),
                 far = far_part(l, at_once);
    const lnrnn_figures f = lnrnn_get_figures();
    return near / f.l2 + (bytes - near) * ((1 - far) / f.l3 + far / f.memory);
}

/* A step's product with so many inputs, whose weights are read once for `steps` steps: reading and computing overlap,
 * but not wholly. */
static double product_time(const lnrnn_line *l, size_t inputs, double steps, const step_shape *s)
{
    const lnrnn_rnn_config *c = l->call.config;
    const double read = reading(l, bytes_of(c, inputs) / s->threads, s->at_once) / steps,
                 compute = s->rows * (double)c->outputs * (double)inputs / s->threads
                           / (lnrnn_get_figures().multiply_adds * LNRNN_FEW_ROWS);
    return most(read, compute) + least(read, compute) * LNRNN_NOT_HIDDEN;
}

static double step_time(const lnrnn_line *l, const step_shape *s)
{
    const lnrnn_rnn_config *c = l->call.config;
    const double meetings = s->threads > 1 ? 1 + s->divided : 0;
    return product_time(l, c->H, 1, s) + product_time(l, c->D, s->chunk, s)
           + s->rows * (double)c->outputs / (s->divided ? s->threads : 1) / LNRNN_CELL_RATE
           + meetings * LNRNN_MEETING;
}

static double mean_rows(const lnrnn_line *l) { return (double)all_rows(&l->call) / (double)l->call.T; }

/* Of a step of one of the groups into which a plan divides the rows. */
static step_shape shape_of(const lnrnn_line *l, double at_once)
{
    const lnrnn_rnn_plan *p = &l->plan;
    return (step_shape){.rows = mean_rows(l) / (double)p->groups,
                        .threads = p->divide_units ? p->divide_units : 1,
                        .divided = p->divide_rows,
                        .chunk = (double)p->chunk,
                        .at_once = at_once};
}

/* How often threads go through time until all groups of a plan have, `lines` times as many at once. */
static double rounds(const lnrnn_rnn_plan *p, double lines, double threads)
{
    return ceil(lines * (double)p->groups / (p->divide_units ? threads / p->divide_units : threads));
}

/* Makes the lines' plans for so many threads. -> the time of all layers, one after the other. */
static double one_after_the_other(lnrnn_network *n, int threads)
{
    double time = 0;
    for (size_t k = 0; k < n->layers * n->directions; k++) {
        lnrnn_line *l = &n->line[k];
        lnrnn_rnn_make_plan(&l->call, threads, &l->plan);
        const step_shape s = shape_of(l, 1);
        time += rounds(&l->plan, 1, l->plan.threads) * (double)l->call.T * step_time(l, &s);
    }
    return time;
}

/* Layers in one direction, n->threads > 1 of them at once: sets the chunk. -> the time of all. */
static double as_a_wave(lnrnn_network *n)
{
    const double threads = n->threads, at_once = least(threads, (double)n->layers),
                 T = (double)n->line[0].call.T;
    double time = 0, read = 0, step = 0;
    for (size_t k = 0; k < n->layers; k++) {
        const lnrnn_line *l = &n->line[k];
        const step_shape s = shape_of(l, at_once);
        const double of_step = step_time(l, &s);
        time += (double)n->groups * T * of_step;
        step = most(step, of_step);
        read = most(read, reading(l, bytes_of(l->call.config, l->call.config->D), at_once));
    }
    if (at_once < 2)
        return time / threads;
    /* Short chunks let the next layer begin sooner, long ones read W_ih and look at other threads less often: the
     * least of time / threads * (read + meeting) / (step * chunk) + (at_once - 1) * chunk * step. */
    const double chunk = sqrt(time * (read + LNRNN_MEETING) / (threads * (at_once - 1) * step * step));
    n->chunk = chunk < 1 ? 1 : (size_t)least(chunk, (double)n->line[0].plan.chunk);
    time = 0;
    for (size_t k = 0; k < n->layers; k++) {
        const lnrnn_line *l = &n->line[k];
        step_shape s = shape_of(l, at_once);
        s.chunk = (double)n->chunk;
        time += (double)n->groups * T * (step_time(l, &s) + LNRNN_MEETING / s.chunk);
    }
    time = time / threads + (at_once - 1) * (double)n->chunk * step;
    n->flexible = n->layers - n->layers % (size_t)at_once;
    return time;
}

/* Two directions of each layer at once. */
static double as_pairs(lnrnn_network *n)
{
    double time = 0;
    for (size_t k = 0; k < 2 * n->layers; k += 2) {
        const lnrnn_line *l = &n->line[k];
        const step_shape s = shape_of(l, 2);
        time += rounds(&l->plan, 2, n->threads) * (double)l->call.T * step_time(l, &s);
    }
    return time;
}

/* Makes the lines' plans, each for `share` threads. -> can the lines be computed with them side by side? */
static int plan_lines(lnrnn_network *n, int share)
{
    n->worker = n->floats = 0;
    for (size_t k = 0; k < n->layers * n->directions; k++) {
        lnrnn_line *l = &n->line[k];
        lnrnn_rnn_make_plan(&l->call, share, &l->plan);
        const lnrnn_rnn_plan *p = &l->plan, *first = &n->line[0].plan;
        if (p->synchronous || p->group != first->group || p->threads != first->threads
            || p->divide_units != first->divide_units || (p->divide_units && p->groups > 1))
            return 0;
        l->call.plan = p;
        n->worker = p->scratch.worker > n->worker ? p->scratch.worker : n->worker;
        n->floats += p->scratch.floats;
    }
    return 1;
}

/* -> the time of all layers; INFINITY where they cannot be computed side by side. */
static double side_by_side(lnrnn_network *n, int threads)
{
    const size_t lines = n->layers * n->directions, wide = n->directions == 2 ? 2 : n->layers;
    if (!(n->directions == 2 && threads >= 4 && plan_lines(n, (threads + 1) / 2)) && !plan_lines(n, 1))
        return INFINITY;
    const lnrnn_rnn_plan *const p = &n->line[0].plan;
    n->groups = p->groups;
    n->halves = p->divide_units > 0;
    n->chunk = SIZE_MAX;
    n->flexible = lines;
    const size_t useful = n->halves ? 2 * (size_t)p->threads : wide * n->groups;
    n->threads = useful < (size_t)threads ? (int)useful : threads;
    if (!n->halves)
        n->floats = (size_t)n->threads * n->worker + runs_floats(lines * n->groups);
    return n->directions == 2 ? as_pairs(n) : as_a_wave(n);
}

static int way = LNRNN_NETWORK_FASTEST;

void lnrnn_set_network_way(int new_way) { __atomic_store_n(&way, new_way, __ATOMIC_RELAXED); }

int lnrnn_network_plan(lnrnn_network *n, int threads)
{
    const int wanted = __atomic_load_n(&way, __ATOMIC_RELAXED);
    const lnrnn_rnn_call *r = &n->line[0].call;
    const size_t lines = n->layers * n->directions;
    if (lines < 2 || !r->B || !r->T || wanted == LNRNN_NETWORK_IN_TURN)
        return 0;
    double work = 0;
    for (size_t k = 0; k < lines; k++) {
        const lnrnn_rnn_config *c = n->line[k].call.config;
        work += (double)all_rows(r) * (double)c->outputs * (double)(c->D + c->H);
    }
    n->brief = work < LNRNN_LARGE_WORK;
    if (threads > 1 + work / LNRNN_THREAD_WORK && wanted == LNRNN_NETWORK_FASTEST)
        threads = 1 + (int)(work / LNRNN_THREAD_WORK);
    if (threads < 2)
        return 0;
    const double before = one_after_the_other(n, threads);
    const double time = side_by_side(n, threads);
    return wanted == LNRNN_NETWORK_FASTEST ? time < before * LNRNN_SIDE_BY_SIDE_BELOW : time < INFINITY;
}
