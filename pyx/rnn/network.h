/* The layers and directions of a network in one call, where they can be computed side by side: network_plan.c
 * says when that is faster than one layer after the other, network.c does it. */
#ifndef LNRNN_NETWORK_H
#define LNRNN_NETWORK_H

#include "rnn/layer.h"

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* The packed weights of a layer in one direction: (G*H, D) and (G*H, H). */
typedef struct {
    const uint32_t *ih, *hh;
} lnrnn_packed_weights;

/* A network is a value: nothing in it changes, so any number of threads, calls and streams may share it. Line k is
 * layer k / directions in direction k % directions; direction 1 reads its sequences from their ends. The
 * first layer has `inputs` inputs, each later one directions * units. */
typedef struct lnrnn_network lnrnn_network;
struct lnrnn_network {
    /* Set by its creator. */
    size_t layers, directions;
    const lnrnn_rnn_config *config;      /* (lines), configured */
    const lnrnn_packed_weights *weights; /* (lines) */
    const char *isa;                     /* the instruction set for which the weights are packed */
    int64_t refused_from;                /* the step that no sequence may take */
    int together;                        /* all sequences take their steps together: overrun="batch" */
    void *owner;                         /* of all this memory, and of the struct itself */
    void (*release)(void *owner);        /* called when nobody refers to the network any more; NULL: never */
    /* Set by lnrnn_network_complete. */
    int references;
    size_t inputs, units;
    int states;       /* 1: h; 2: h and c */
    int by_step;      /* results depend on the step: batch norm */
    double step_work; /* multiply-adds of one step of one sequence */
};

/* Sets the fields that follow from the configurations, and one reference. -> 0; -1 if the layers do not fit together. */
int lnrnn_network_complete(lnrnn_network *n);
/* One more reference. -> n. Threads need no lock for these two. */
lnrnn_network *lnrnn_network_retain(lnrnn_network *n);
void lnrnn_network_release(lnrnn_network *n);

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
} lnrnn_network_call;

/* The lines' config, T, B, rows and last_step_end are set; there are no tapes, masks and counts. -> 1 if the network
 * is to be computed by lnrnn_network_forward with at most so many threads; 0 if layer after layer by
 * lnrnn_rnn_forward is at least as fast, or the only way. */
int lnrnn_network_plan(lnrnn_network_call *n, int threads);
/* All layers. -> as lnrnn_rnn_forward. The bits are those of layer after layer. */
int lnrnn_network_forward(lnrnn_network_call *n);

/* For tests. FASTEST: as above. IN_TURN: layer after layer. SIDE_BY_SIDE: side by side wherever that can be, with all
 * threads, however little there is to compute. */
enum { LNRNN_NETWORK_FASTEST, LNRNN_NETWORK_IN_TURN, LNRNN_NETWORK_SIDE_BY_SIDE };
void lnrnn_set_network_way(int way);

#pragma GCC visibility pop

#endif
