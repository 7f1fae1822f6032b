/* The layers and directions of a network side by side (wavefront.c). network_plan.c decides when that is
 * faster than one layer after the other. */
#ifndef LNRNN_WAVEFRONT_H
#define LNRNN_WAVEFRONT_H

#include <stddef.h>
#include <stdint.h>

#include "rnn/layer.h"

/* Training: the arrays of a layer in one direction, as lnrnn_rnn_call has them. */
typedef struct {
    lnrnn_site_statistics statistics[LNRNN_SITES];
    int64_t *count;
    float *tape;
    lnrnn_rnn_masks masks;
} lnrnn_line_training;

/* Training: the arrays of a layer, contiguous, with axes in the order of the call's y. */
typedef struct {
    float *y; /* (steps, sequences, directions * P): the outputs, written; unused of the last layer */
    /* Dropout of the inputs of layers after the first: dropped = x * kept * scale[0] * factors, in this
     * order. */
    float *dropped;            /* as y, written; NULL: nothing is dropped */
    const unsigned char *kept; /* (steps, sequences, directions * P), 0 or 1, or NULL */
    const float *scale;        /* (1); NULL: without kept */
    const float *factors;      /* (sequences, directions * P), or NULL */
} lnrnn_layer_training;

/* A layer in one direction. call: as for lnrnn_rnn_forward, all but plan, scratch, part and resumed. */
typedef struct {
    lnrnn_rnn_call call;
    lnrnn_rnn_plan plan;
    lnrnn_line_training training;
    lnrnn_layer_training layer; /* of the line of its first direction */
} lnrnn_line;

typedef struct {
    /* Set by the caller. */
    /* (layers * directions): the directions of a layer stand side by side. All have the same rows. x of a
     * layer after the first is y of the one before; outputs are disjoint. */
    lnrnn_line *line;
    size_t layers, directions;
    float *scratch; /* `floats` floats, which keep their values until a call returns 1 */
    double part;    /* these two as lnrnn_rnn_call has them */
    int resumed;
    /* Set by lnrnn_wavefront_plan. */
    int threads;
    int brief;       /* as lnrnn_rnn_plan */
    int halves;      /* the threads divide the units of a step: one half of them of the forward direction, the
                        * other half of the reverse one */
    size_t chunk;    /* steps of a line, after which a thread chooses its next line */
    size_t groups;   /* of sequences, in each line */
    size_t flexible; /* lines from here on are done by threads that have lines of their own too */
    size_t worker;   /* floats of a thread's memory */
    size_t floats;   /* of scratch */
} lnrnn_wavefront;

/* The progress of a group of sequences in a line, in the scratch memory of the call. position: see resumable.h.
 * Threads read both fields often, so each run has a cache line of its own. */
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

/* The lines' config, T, B, rows and last_step_end are set; there are no tapes, masks and counts. -> 1 if
 * lnrnn_wavefront_forward is faster, with at most so many threads. 0 if layer after layer by
 * lnrnn_rnn_forward is at least as fast, or the only way. */
int lnrnn_wavefront_plan(lnrnn_wavefront *n, int threads);
/* All layers. -> as lnrnn_rnn_forward. The bits are those of layer after layer. */
int lnrnn_wavefront_forward(lnrnn_wavefront *n);

/* For tests. FASTEST: as above. IN_TURN: layer after layer. SIDE_BY_SIDE: side by side wherever that can
 * be, with all threads, however little there is to compute. */
enum { LNRNN_NETWORK_FASTEST, LNRNN_NETWORK_IN_TURN, LNRNN_NETWORK_SIDE_BY_SIDE };
/* Tests call it from outside the library. */
#pragma GCC visibility push(default)
void lnrnn_set_network_way(int way);
#pragma GCC visibility pop

#endif
