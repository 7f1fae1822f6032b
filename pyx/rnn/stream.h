/* Streams: lanes with states, and the handles with which threads step them. */
#ifndef LNRNN_STREAM_H
#define LNRNN_STREAM_H

#include "rnn/network.h"

struct lnrnn_stream {
    lnrnn_network *network; /* Python may replace it, by one for another instruction set */
    size_t lanes;
    float *h, *c;   /* (layers, lanes, P), (layers, lanes, C); c: NULL without a c */
    int64_t *steps; /* (lanes): the steps that each lane has taken since its reset */
    /* One for each handle, and one for the creator. Python frees its streams itself, whatever the number. */
    int references;
    /* Set by lnrnn_stream_of; equal for all its networks. */
    size_t inputs, layers, h_width, c_width;
    int together;
    double step_work;
};

struct lnrnn_handle {
    lnrnn_stream *stream;
    lnrnn_network *network; /* the stream's, when the handle was created */
    size_t rows;
    void *owner; /* Python's object, or NULL; release is called when the handle has been freed */
    void (*release)(void *owner);
    lnrnn_handle *next; /* of Python's handles that no call uses */
    lnrnn_network_call call;
    lnrnn_row *table;     /* (rows), the call's */
    float *x;             /* (rows, D), the call's */
    int64_t *seen, stamp; /* (lanes): the stamp of the last call that named the lane */
    int busy;             /* a call of lnrnn_handle_step or lnrnn_handle_reset is under way */
};

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* Sets the network and lanes of s, and the fields that follow from them. */
void lnrnn_stream_of(lnrnn_stream *s, lnrnn_network *n, size_t lanes);
/* lanes (n). states: h and, if there is one, c, shaped (layers, n, *); each of them NULL for zeros; NULL: they stay. steps
 * (n), or NULL: they stay. -> 0 for a wrong lane or step: then nothing has changed. */
int lnrnn_stream_put(lnrnn_stream *s, const int64_t *lanes, size_t n, const float *const *states,
                     const int64_t *steps);
/* lanes, resets (rows), or NULL: puts the lanes of the next step into the table. Where resets is not 0, it
 * sets the states of a lane to 0. -> 0, or a code of lnrnn_status, and no lane has changed. */
int lnrnn_handle_choose(lnrnn_handle *h, const int64_t *lanes, const unsigned char *resets);
/* The step of the lanes chosen, all layers: h->x (rows, D) -> y (rows, P). */
void lnrnn_handle_run(lnrnn_handle *h, float *y);

#pragma GCC visibility pop

#endif
