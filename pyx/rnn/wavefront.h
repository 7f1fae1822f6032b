/* Computes layers and directions of a network at the same time (wavefront.c). network_plan.c decides if that
 * is faster than one after the other. */
#ifndef LNRNN_WAVEFRONT_H
#define LNRNN_WAVEFRONT_H

#include <stddef.h>
#include <stdint.h>

#include "rnn/layer.h"

/* The arrays that a layer in one direction writes or reads in training only. */
typedef struct {
    lnrnn_site_statistics statistics[LNRNN_SITES];
    int64_t *count;
    float *tape;
    lnrnn_rnn_masks masks;
} lnrnn_line_training;

/* The arrays of a layer in training, contiguous, with axes in the order of the call's y. */
typedef struct {
    float *y; /* (steps, sequences, directions * P): the outputs, written; unused in the last layer */
    /* Dropout of the inputs, not in the first layer: dropped = x * kept * scale[0] * factors, in this
     * order. */
    float *dropped;            /* (shape of y), written; NULL: no dropout */
    const unsigned char *kept; /* (steps, sequences, directions * P), 0 or 1, or NULL */
    const float *scale;        /* (1); NULL if kept is NULL */
    const float *factors;      /* (sequences, directions * P), or NULL */
} lnrnn_layer_training;

/* A layer in one direction. The caller sets `call` except for plan, scratch, part and resumed. */
typedef struct {
    lnrnn_rnn_call call;
    lnrnn_rnn_plan plan;
    lnrnn_line_training training;
    lnrnn_layer_training layer; /* only in the line of direction 0 */
} lnrnn_line;

typedef struct {
    /* Set by the caller. */
    /* (layers * directions), the directions of a layer adjacent. All lines have the same rows. x of a later
     * layer is y of the layer before. Outputs are disjoint. */
    lnrnn_line *line;
    size_t layers, directions;
    float *scratch; /* `floats` floats; keep their values until a call returns 1 */
    double part;    /* return after about this many multiply-adds per thread; 0: only at the end */
    int resumed;    /* 1: continue a call that has returned 0 */
    /* Set by lnrnn_wavefront_plan. */
    int threads;
    int brief;       /* little work: use one thread if other processes use the cores */
    int halves;      /* half of the threads divide the units of each direction */
    size_t chunk;    /* the number of steps of a line after which a thread chooses its next line */
    size_t groups;   /* the number of groups of sequences in each line */
    size_t flexible; /* threads prefer lines from this number on, because lines cannot be divided evenly */
    size_t worker;   /* the number of floats of memory per thread */
    size_t floats;   /* the number of floats of scratch */
} lnrnn_wavefront;

/* The progress of a run, a group of sequences in a line, in the scratch memory of the call. position: see
 * resumable.h. Threads read both fields often, so each run has a cache line of its own. */
typedef struct {
    size_t position;
    int taken; /* a thread computes this run now */
    char padding[64 - sizeof(size_t) - sizeof(int)];
} network_run;

/* Returns the number of floats to reserve for n runs, whatever the alignment of their start. */
static inline size_t runs_floats(size_t n) { return (n + 1) * (sizeof(network_run) / sizeof(float)); }

/* Returns the first address at or after p where runs may begin. */
static inline network_run *runs_at(float *p)
{
    return (network_run *)(((uintptr_t)p + sizeof(network_run) - 1) & ~(sizeof(network_run) - 1));
}

/* The calls of the lines must have config, T, B, rows and last_step_end, but no tape, mask or count. Returns
 * 1 if lnrnn_wavefront_forward is possible on at most `threads` threads, and faster than lnrnn_rnn_forward
 * for one line after the other. */
int lnrnn_wavefront_plan(lnrnn_wavefront *n, int threads);
/* Computes all layers, with the same bits as one layer after the other. Returns 1 if all work is finished,
 * else 0. */
int lnrnn_wavefront_forward(lnrnn_wavefront *n);

/* How layers run, for tests. FASTEST: the default. IN_TURN: layer after layer. SIDE_BY_SIDE: at the same time
 * if possible, with all threads, even for little work. */
enum { LNRNN_NETWORK_FASTEST, LNRNN_NETWORK_IN_TURN, LNRNN_NETWORK_SIDE_BY_SIDE };
/* Exported, because tests call it. */
#pragma GCC visibility push(default)
void lnrnn_set_network_way(int way);
#pragma GCC visibility pop

#endif
