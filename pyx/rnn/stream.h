/* A handle of a stream: what a call on `rows` of its lanes works with. */
#ifndef LNRNN_STREAM_H
#define LNRNN_STREAM_H

#include "rnn/layer.h"

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

struct lnrnn_stream {
    size_t inputs, units, layers, lanes, rows;
    int by_step;           /* results depend on the step: batch norm */
    int together;          /* all lanes have to go together: overrun="batch" */
    int64_t refused_from;  /* the step that no lane may take */
    int64_t *steps;        /* (lanes), the stream's */
    lnrnn_rnn_call *calls; /* (layers): hn and cn are the stream's states, x of the first is `x` below */
    lnrnn_row *table;      /* (rows), that of all calls */
    float *x;              /* (rows, D) */
    int64_t *seen, stamp;  /* (lanes): the stamp of the last call that named the lane */
    void *owner;           /* of all this memory, for lnrnn_stream_close */
};

/* lanes, and lanes of which resets is not 0, both (rows) or NULL: puts those of the next step into the table,
 * and sets the states of those that are reset to 0. -> 0, or a code of lnrnn.h, and no lane has changed. */
int lnrnn_stream_choose(lnrnn_stream *s, const int64_t *lanes, const unsigned char *resets);
/* The step of the lanes chosen, all layers: s->x (rows, D) -> y (rows, H). */
void lnrnn_stream_run(lnrnn_stream *s, float *y);

#pragma GCC visibility pop

#endif
