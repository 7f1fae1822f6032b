/* Decides whether the lines of a network run one after another or several at the same time. A line is a layer
 * in one direction. The predicted time (cost_model.c) decides.
 *
 * One after another: all threads compute one line at a time. They divide its sequences or its hidden units.
 *
 * At once: each line has one thread, or, with two directions, half of the threads. Two directions of a layer
 * then take as long as one direction. Layers in one direction form a wavefront: a layer begins when the layer
 * before it has computed its first chunk of steps. With n threads the time is an n-th of the sum of all
 * times, plus one chunk for each thread after the first. Each chunk reads W_ih again. */
#include <math.h>

#include "lnrnn/tuning.h"
#include "rnn/cost_model.h"
#include "rnn/wavefront.h"
#include "rnn/rows.h"
#include "runtime/floats.h"
#include "runtime/thread_policy.h"

static double least(double a, double b) { return a < b ? a : b; }
static double most(double a, double b) { return a > b ? a : b; }

/* Makes the lines' plans for `threads` threads. Returns the predicted time in ns of all lines, one after
 * another. */
static double time_in_turn(lnrnn_wavefront *n, int threads)
{
    double time = 0;
    for (size_t k = 0; k < n->layers * n->directions; k++) {
        lnrnn_line *l = &n->line[k];
        lnrnn_rnn_make_plan(&l->call, threads, &l->plan);
        time += lnrnn_call_time(&l->call, &l->plan, 1, l->plan.threads);
    }
    return time;
}

/* Only for one direction and n->threads > 1. Sets n->chunk. Returns the predicted time in ns of all layers as
 * a wavefront. */
static double time_of_wavefront(lnrnn_wavefront *n)
{
    const double threads = n->threads, at_once = least(threads, (double)n->layers),
                 T = (double)n->line[0].call.T, turns = (double)n->groups * T;
    double time = 0, begin = 0, step = 0; /* ns of all lines, of starting a chunk, of the longest step */
    for (size_t k = 0; k < n->layers; k++) {
        const lnrnn_line *l = &n->line[k];
        const double of_step = lnrnn_group_step_time(&l->call, &l->plan, at_once);
        time += turns * of_step;
        step = most(step, of_step);
        begin = most(begin, lnrnn_input_weights_time(&l->call, &l->plan, at_once) + LNRNN_HAND_OVER);
    }
    if (at_once < 2) /* GCOVR_EXCL_BR_LINE: callers have two layers */
        return time / threads;
    /* With short chunks the next layer begins sooner; with long chunks W_ih is read less often. This chunk
     * minimises time / threads * begin / (step * chunk) + (at_once - 1) * chunk * step: */
    const double chunk = sqrt(time * begin / (threads * (at_once - 1) * step * step));
    n->chunk = chunk < 1 ? 1 : (size_t)least(chunk, (double)n->line[0].plan.chunk);
    time += (double)n->layers * turns / (double)n->chunk * begin;
    n->flexible = n->layers - n->layers % (size_t)at_once;
    return time / threads + (at_once - 1) * (double)n->chunk * step;
}

/* Returns the predicted time in ns if both directions of a layer, but not layers, run at the same time. */
static double time_of_pairs(lnrnn_wavefront *n)
{
    double time = 0;
    for (size_t k = 0; k < 2 * n->layers; k += 2)
        time += lnrnn_call_time(&n->line[k].call, &n->line[k].plan, 2, n->threads);
    return time;
}

/* Makes the lines' plans, each for `share` threads. Returns 1 if the lines can run at the same time with
 * these plans. */
static int plan_lines(lnrnn_wavefront *n, int share)
{
    n->worker = n->floats = 0;
    for (size_t k = 0; k < n->layers * n->directions; k++) {
        lnrnn_line *l = &n->line[k];
        lnrnn_rnn_make_plan(&l->call, share, &l->plan);
        const lnrnn_rnn_plan *p = &l->plan, *first = &n->line[0].plan;
        /* GCOVR_EXCL_BR_START: plans of lines with equal sizes are equal */
        if (p->synchronous || p->group != first->group || p->threads != first->threads
            || p->divide_units != first->divide_units || (p->divide_units && p->groups > 1))
            /* GCOVR_EXCL_BR_STOP */
            return 0;
        l->call.plan = p;
        n->worker = p->scratch.worker > n->worker ? p->scratch.worker : n->worker;
        n->floats += p->scratch.floats;
    }
    return 1;
}

/* Returns the predicted time in ns if several lines run at the same time, or INFINITY if they cannot. */
static double time_at_once(lnrnn_wavefront *n, int threads)
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
    return n->directions == 2 ? time_of_pairs(n) : time_of_wavefront(n);
}

static int way = LNRNN_NETWORK_FASTEST;

void lnrnn_set_network_way(int new_way) { __atomic_store_n(&way, new_way, __ATOMIC_RELAXED); }

int lnrnn_wavefront_plan(lnrnn_wavefront *n, int threads)
{
    LNRNN_DEFAULT_FLOATS;
    const int wanted = __atomic_load_n(&way, __ATOMIC_RELAXED);
    const lnrnn_rnn_call *r = &n->line[0].call;
    const size_t lines = n->layers * n->directions;
    const int one_step = r->T == 1 && n->directions == 1; /* each layer waits for the layer before */
    if (lines < 2 || !r->B || !r->T || wanted == LNRNN_NETWORK_IN_TURN
        || (one_step && wanted == LNRNN_NETWORK_FASTEST))
        return 0;
    double work = 0;
    for (size_t k = 0; k < lines; k++)
        work += call_multiply_adds(&n->line[k].call);
    n->brief = lnrnn_is_brief(work);
    if (wanted == LNRNN_NETWORK_FASTEST)
        threads = lnrnn_useful_threads(work, threads);
    if (threads < 2)
        return 0;
    const double in_turn = time_in_turn(n, threads), at_once = time_at_once(n, threads);
    return wanted == LNRNN_NETWORK_FASTEST ? at_once < in_turn * LNRNN_SIDE_BY_SIDE_BELOW
                                           : at_once < INFINITY;
}
