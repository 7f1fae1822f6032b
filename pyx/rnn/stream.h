/* Streams: lanes with states, and the handles with which threads step them. */
#ifndef LNRNN_STREAM_H
#define LNRNN_STREAM_H

#include "rnn/network.h"

struct lnrnn_stream {
    lnrnn_network *network;
    size_t lanes;
    float *h, *c;   /* (layers, lanes, H); c: LSTM, else NULL */
    int64_t *steps; /* (lanes): the steps that each lane has taken since its reset */
    /* One for each handle, and one for the creator. Python frees its streams itself, whatever the number. */
    int references;
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

/* Bytes of memory for lnrnn_handle_prepare. */
size_t lnrnn_handle_memory(const lnrnn_network *network, size_t lanes, size_t rows);
/* stream, network and rows are set. memory: zeros, at a multiple of 64. -> floats of call.scratch. */
size_t lnrnn_handle_prepare(lnrnn_handle *h, int threads, void *memory);

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* lanes, resets (rows), or NULL: puts the lanes of the next step into the table. Where resets is not 0, it
 * sets the states of a lane to 0. -> 0, or a code of lnrnn_status, and no lane has changed. */
int lnrnn_handle_choose(lnrnn_handle *h, const int64_t *lanes, const unsigned char *resets);
/* The step of the lanes chosen, all layers: h->x (rows, D) -> y (rows, H). */
void lnrnn_handle_run(lnrnn_handle *h, float *y);

#pragma GCC visibility pop

#endif
