/* The layers and directions of a network in one call, where they can be computed side by side: network_plan.c
 * says when that is faster than one layer after the other, network.c does it. */
#ifndef LNRNN_NETWORK_H
#define LNRNN_NETWORK_H

#include "rnn/layer.h"

/* A layer in one direction. call: as for lnrnn_rnn_forward, all but plan, scratch, part and resumed. */
typedef struct {
    lnrnn_rnn_call call;
    lnrnn_rnn_plan plan;
} lnrnn_line;

typedef struct {
    /* Set by the caller. */
    lnrnn_line
        *line; /* (layers * directions): the directions of a layer side by side. All have the same rows, of a
                       * layer after the first x is what those before it write as y, and no two write the same */
    size_t layers, directions;
    float *scratch; /* `floats` floats, which keep their values until a call returns 1 */
    double part;    /* these two as lnrnn_rnn_call has them */
    int resumed;
    /* Set by lnrnn_network_plan. */
    int threads;
    int brief;       /* as lnrnn_rnn_plan */
    int halves;      /* the threads divide the units of a step: one half of them of the forward direction, the
                        * other half of the reverse one */
    size_t chunk;    /* steps of a line between two looks at what is to be done next */
    size_t groups;   /* of sequences, in each line */
    size_t flexible; /* lines from here on are done by threads that have lines of their own too */
    size_t worker;   /* floats of a thread's memory */
    size_t floats;   /* of scratch */
} lnrnn_network;

/* The lines' config, T, B, rows and last_step_end are set; there are no tapes, masks and counts. -> 1 if the network
 * is to be computed by lnrnn_network_forward with at most so many threads; 0 if layer after layer by
 * lnrnn_rnn_forward is at least as fast, or the only way. */
int lnrnn_network_plan(lnrnn_network *n, int threads);
/* All layers. -> as lnrnn_rnn_forward. The bits are those of layer after layer. */
int lnrnn_network_forward(lnrnn_network *n);

/* For tests. FASTEST: as above. IN_TURN: layer after layer. SIDE_BY_SIDE: side by side wherever that can be, with all
 * threads, however little there is to compute. */
enum { LNRNN_NETWORK_FASTEST, LNRNN_NETWORK_IN_TURN, LNRNN_NETWORK_SIDE_BY_SIDE };
void lnrnn_set_network_way(int way);

/* The progress of a run (network.c), in the scratch memory of the call; position: as in parts.h. Threads poll
 * both fields, so each run has a cache line of its own. */
typedef struct {
    size_t position;
    int taken; /* by a thread */
    char padding[64 - sizeof(size_t) - sizeof(int)];
} network_run;

/* Floats for n runs, wherever they begin. */
static inline size_t runs_floats(size_t n) { return (n + 1) * (sizeof(network_run) / sizeof(float)); }

/* The first place for them at or after p. */
static inline network_run *runs_at(float *p)
{
    return (network_run *)(((uintptr_t)p + sizeof(network_run) - 1) & ~(sizeof(network_run) - 1));
}

#endif
