/* Streams and handles. A stream has lanes, each with the states of one sequence. A thread steps lanes with a
 * handle, which has its working memory. */
#ifndef LNRNN_STREAM_H
#define LNRNN_STREAM_H

#include "rnn/network.h"

struct lnrnn_stream {
    lnrnn_network *network; /* Python may replace it by a network for another instruction set */
    size_t lanes;
    float *h, *c;   /* (layers, lanes, P), (layers, lanes, C); c: NULL if the cell has no c */
    int64_t *steps; /* (lanes): the number of steps of each lane since its reset */
    /* One reference for each handle, and one reference for the creator. Python frees its streams without this
     * count. */
    int references;
    /* Set by lnrnn_stream_of; a network that replaces another has equal values. */
    size_t inputs, layers, h_width, c_width;
    int together;
    double step_work;
};

struct lnrnn_handle {
    lnrnn_stream *stream;
    lnrnn_network *network; /* the stream's network when the handle was created */
    size_t rows, capacity;  /* capacity: the largest number of rows, for which there is memory */
    void *owner;            /* Python's stream, or NULL; release(owner) is called after the handle is freed */
    void (*release)(void *owner);
    lnrnn_handle *next; /* next in the list of Python's unused handles */
    lnrnn_network_call call;
    size_t floats;        /* the number of floats of call.scratch */
    lnrnn_row *table;     /* (capacity), the rows of the call */
    float *x;             /* (capacity, D), the input of the call */
    int64_t *seen, stamp; /* (lanes): the stamp of the last call that named the lane */
    int busy;             /* 1: a thread is in lnrnn_handle_step or lnrnn_handle_reset */
};

/* Exported for the Cython module. */
#pragma GCC visibility push(default)

/* Sets the network and lanes of s, and the fields that follow from them. */
void lnrnn_stream_of(lnrnn_stream *s, lnrnn_network *n, size_t lanes);
/* lanes (n). Sets the states and steps of these lanes. states: h (layers, n, P) and, if the cell has c, c
 * (layers, n, C), each NULL for zeros; or NULL: the states stay. steps (n), or NULL: the steps stay. Returns
 * 1, or 0 without a change if a lane or step is invalid. */
int lnrnn_stream_put(lnrnn_stream *s, const int64_t *lanes, size_t n, const float *const *states,
                     const int64_t *steps);
/* Changes the number of rows and threads of the next calls, without new memory. Returns 1, or 0 if the memory
 * is too small; then only lnrnn_handle_fit and lnrnn_handle_free may be called. */
int lnrnn_handle_fit(lnrnn_handle *h, size_t rows, int threads);
/* lanes, resets (rows), or NULL. Selects the lanes of the next step, and sets the states of lanes with resets
 * != 0 to zeros. Returns 0, or an error code of lnrnn_status; after an error nothing has changed. */
int lnrnn_handle_choose(lnrnn_handle *h, const int64_t *lanes, const unsigned char *resets);
/* h->x (rows, D) -> y (rows, P). Computes the step of the selected lanes through all layers. */
void lnrnn_handle_run(lnrnn_handle *h, float *y);

#pragma GCC visibility pop

#endif
