/* A network, and a call of it: all layers and directions (network.c). */
#ifndef LNRNN_NETWORK_H
#define LNRNN_NETWORK_H

#include "rnn/layer.h"
#include "rnn/wavefront.h"

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* The packed weights of a layer in one direction: (G*H, D) and (G*H, H). */
typedef struct {
    const uint32_t *ih, *hh;
} lnrnn_packed_weights;

/* A network is a value: nothing in it changes, so any number of threads, calls and streams may share it.
 * Line k is layer k / directions in direction k % directions; direction 1 reads its sequences from their
 * ends. The first layer has `inputs` inputs, each later one directions * units. */
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

/* Steps that a stream can take, so that sums of two counts of steps never overflow. */
#define LNRNN_LAST_STEP ((int64_t)1 << 62)

/* Sets the fields that follow from the configurations, and one reference. -> the first line whose inputs,
 * units or states do not fit the others; how many lines there are, if all do. */
size_t lnrnn_network_complete(lnrnn_network *n);

/* Training: the arrays of a layer in one direction, as lnrnn_rnn_call has them. */
typedef struct {
    lnrnn_site_statistics statistics[LNRNN_SITES];
    int64_t *count;
    float *tape;
    lnrnn_rnn_masks masks;
} lnrnn_line_training;

/* Training: the arrays of a layer, contiguous, with axes in the order of the call's y. */
typedef struct {
    float *y; /* (steps, sequences, directions * H): the outputs, written; unused of the last layer */
    /* Dropout of the inputs of layers after the first: dropped = x * kept * scale * factors, in this
     * order. */
    float *dropped;            /* as y, written; NULL: nothing is dropped */
    const unsigned char *kept; /* (steps, sequences, directions * H), 0 or 1, or NULL */
    float scale;
    const float *factors; /* (sequences, directions * H), or NULL */
} lnrnn_layer_training;

/* A call: whole sequences, or the next step of some lanes of a stream. */
typedef struct {
    /* Set by the caller. */
    const lnrnn_network *network;
    lnrnn_line *line;        /* (lines), of any contents: memory of the driver */
    size_t steps, sequences; /* the axes of x and y */
    const float *x;          /* (steps, sequences, inputs), the last axis contiguous */
    ptrdiff_t xt, xb;        /* its strides */
    float *y;                /* (steps, sequences, directions * H), the last axis contiguous */
    ptrdiff_t yt, yb;
    const lnrnn_row *rows; /* (B), as lnrnn_rnn_call has them */
    size_t B;
    int kept;             /* the plan is kept for calls that differ in y and in the starts of rows */
    size_t states;        /* rows of the states */
    const float *h0, *c0; /* (lines, states, H), or NULL: zeros */
    float *hn, *cn;       /* (lines, states, H); may be h0, c0; cn: LSTM */
    const lnrnn_line_training *line_training;   /* (lines); NULL: inference */
    const lnrnn_layer_training *layer_training; /* (layers); NULL: inference */
    int threads;                                /* the most that may be used */
    double part;                                /* these two as lnrnn_rnn_call has them */
    int resumed;
    /* As many floats as lnrnn_network_plan says, which keep their values until a call returns 1. */
    float *scratch;
    /* Set by the driver. */
    lnrnn_wavefront wave;
    int side_by_side;     /* the wavefront computes all lines; else one after the other is computed */
    int deal;             /* rows are dealt to the groups of a plan, so that all groups cost about the same */
    int pointed;          /* kept: the lines have their pointers, but for y */
    size_t at;            /* the line that is computed next; backward: how many are left */
    size_t buffer_floats; /* of the outputs of a layer before the last */
    size_t buffers, zeros, dealt; /* offsets into scratch: outputs, initial states, rows */
} lnrnn_network_call;

/* seen: (states) zeros, written. -> do the rows stand within steps, sequences and states, longest first,
 * and no two with one state? */
int lnrnn_rows_fit(const lnrnn_network_call *n, char *seen);
/* -> the steps of all rows. */
size_t lnrnn_active_steps(const lnrnn_network_call *n);
/* A plan holds as lnrnn_rnn_make_plan says. -> floats of scratch. */
size_t lnrnn_network_plan(lnrnn_network_call *n);
/* -> as lnrnn_rnn_forward. */
int lnrnn_network_forward(lnrnn_network_call *n);

/* Back through time. */
typedef struct {
    /* Set by the caller. In each line: all but gy, ghn, gcn, gx, gh0, gc0, their strides, and work. */
    lnrnn_rnn_gradients *line; /* (lines) */
    const float *gy;           /* (steps, sequences, directions * H), the last axis contiguous */
    ptrdiff_t gyt, gyb;
    const float *ghn, *gcn; /* (lines, states, H), or NULL: zeros */
    float *gx;              /* (steps, sequences, inputs), written; NULL: not wanted */
    ptrdiff_t gxt, gxb;
    float *gh0, *gc0; /* (lines, states, H), written */
    /* Set by the driver: offsets into scratch. outputs: gradients of the outputs of two layers. second:
     * that of a layer's inputs from its first direction, which is computed after the other one. */
    size_t outputs[2], second;
} lnrnn_network_gradients;

/* n: with the tapes, statistics and outputs that the forward call has written, with h0 and c0, and with a
 * plan made anew. -> floats of n->scratch, aligned for doubles. */
size_t lnrnn_network_backward_plan(const lnrnn_network_call *n, lnrnn_network_gradients *g);
/* -> as lnrnn_rnn_backward. */
int lnrnn_network_backward(lnrnn_network_call *n, lnrnn_network_gradients *g);

#pragma GCC visibility pop

/* -> LNRNN_OK if the weights are packed for the instruction set in use. name: of the argument, for the
 * message. */
lnrnn_status lnrnn_check_isa(const lnrnn_network *n, const char *name, char *message);

#endif
