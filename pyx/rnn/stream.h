/* A handle of a stream: the memory with which a thread steps `rows` of its lanes. */
#ifndef LNRNN_STREAM_H
#define LNRNN_STREAM_H

#include "rnn/network.h"

struct lnrnn_stream {
    /* Set by its creator. */
    size_t lanes, rows;
    int64_t *steps; /* (lanes), the stream's */
    /* The creator sets network, hn, cn, which are the stream's states (layers, lanes, H), and threads;
     * and, after lnrnn_stream_prepare, scratch. */
    lnrnn_network_call call;
    void *owner; /* of all this memory, for lnrnn_stream_close */
    /* Set by lnrnn_stream_prepare. */
    lnrnn_row *table;     /* (rows), the call's */
    float *x;             /* (rows, D), the call's */
    int64_t *seen, stamp; /* (lanes): the stamp of the last call that named the lane */
};

/* Bytes of memory for lnrnn_stream_prepare. */
size_t lnrnn_stream_memory(const lnrnn_network *network, size_t lanes, size_t rows);
/* memory: zeros, aligned for pointers, and at a multiple of 64 for speed. -> floats of call.scratch. */
size_t lnrnn_stream_prepare(lnrnn_stream *s, void *memory);
/* lanes, resets: (rows) or NULL. Puts the lanes of the next step into the table, and sets the states of
 * those with resets to 0. -> 0, or a code of lnrnn.h, and no lane has changed. */
int lnrnn_stream_choose(lnrnn_stream *s, const int64_t *lanes, const unsigned char *resets);
/* The step of the lanes chosen, all layers: s->x (rows, D) -> y (rows, H). */
void lnrnn_stream_run(lnrnn_stream *s, float *y);

#endif
