/* Are the layers and directions of a network computed side by side, or one after the other? By what both take according
 * to the cost model (cost_model.c), in ns.
 *
 * One after the other: each line, that is a layer in one direction, with all threads, which divide its sequences or its
 * units, as its plan says.
 *
 * Side by side: each line with one thread, or, of two directions, with its share of the threads. Two directions of
 * a layer take the time of one. Of layers in one direction the next one begins when the first chunk is done:
 * with n threads they take an nth of the time of all, and a chunk more for each thread after the first; and each chunk
 * reads W_ih anew. All that threads read at the same time shares L3 and memory. */
#include <math.h>

#include "lnrnn/tuning.h"
#include "rnn/cost_model.h"
#include "rnn/network.h"
#include "rnn/rows.h"
#include "runtime/floats.h"

static double least(double a, double b) { return a < b ? a : b; }
static double most(double a, double b) { return a > b ? a : b; }

static double mean_rows(const lnrnn_line *l) { return (double)all_rows(&l->call) / (double)l->call.T; }

/* A step of one of the groups into which a plan divides the rows, beside which other lines are read, at_once in all. */
static lnrnn_step_work work_of(const lnrnn_line *l, double at_once)
{
    lnrnn_step_work w = lnrnn_work_of(l->call.config, (size_t)ceil(mean_rows(l) / (double)l->plan.groups));
    w.at_once = (int)at_once;
    return w;
}

static double step_time(const lnrnn_line *l, double at_once)
{
    const lnrnn_rnn_plan *p = &l->plan;
    const lnrnn_partition of_group = {
        .groups = 1, .units = p->divide_units ? p->divide_units : 1, .rows = p->divide_rows};
    const lnrnn_step_work w = work_of(l, at_once);
    return lnrnn_step_time(&w, p->caches, of_group);
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
        time += rounds(&l->plan, 1, l->plan.threads) * (double)l->call.T * step_time(l, 1);
    }
    return time;
}

/* Layers in one direction, n->threads > 1 of them at once: sets the chunk. -> the time of all. */
static double as_a_wave(lnrnn_network *n)
{
    const double threads = n->threads, at_once = least(threads, (double)n->layers),
                 T = (double)n->line[0].call.T, turns = (double)n->groups * T;
    double time = 0, begin = 0, step = 0; /* of all lines; to begin a chunk; the longest step */
    for (size_t k = 0; k < n->layers; k++) {
        const lnrnn_step_work w = work_of(&n->line[k], at_once);
        const double of_step = step_time(&n->line[k], at_once);
        time += turns * of_step;
        step = most(step, of_step);
        begin = most(begin, lnrnn_input_reading(&w, n->line[k].plan.caches) + LNRNN_HAND_OVER);
    }
    if (at_once < 2)
        return time / threads;
    /* Short chunks let the next layer begin sooner, long ones read W_ih and look at other threads less often: the
     * least of time / threads * begin / (step * chunk) + (at_once - 1) * chunk * step. */
    const double chunk = sqrt(time * begin / (threads * (at_once - 1) * step * step));
    n->chunk = chunk < 1 ? 1 : (size_t)least(chunk, (double)n->line[0].plan.chunk);
    time += (double)n->layers * turns / (double)n->chunk * begin;
    n->flexible = n->layers - n->layers % (size_t)at_once;
    return time / threads + (at_once - 1) * (double)n->chunk * step;
}

/* Two directions of each layer at once. */
static double as_pairs(lnrnn_network *n)
{
    double time = 0;
    for (size_t k = 0; k < 2 * n->layers; k += 2) {
        const lnrnn_line *l = &n->line[k];
        time += rounds(&l->plan, 2, n->threads) * (double)l->call.T * step_time(l, 2);
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
    LNRNN_DEFAULT_FLOATS;
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
