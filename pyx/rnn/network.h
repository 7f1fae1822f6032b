/* A network, and a call of it: all layers and directions (network.c). */
#ifndef LNRNN_NETWORK_H
#define LNRNN_NETWORK_H

#include "rnn/layer.h"
#include "rnn/wavefront.h"

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* The packed weights of a layer in one direction: (G*H, D) and (G*H, P). */
typedef struct {
    const uint32_t *ih, *hh;
} lnrnn_packed_weights;

/* The weights of a layer in one direction as back-propagation reads them: fields of lnrnn_rnn_gradients. */
typedef struct {
    const uint32_t *w_ih_t, *w_hh_t;
    const float *w_ih, *w_hh;
} lnrnn_backward_weights;

/* A network is a value: nothing in it changes, so any number of threads, calls and streams may share it.
 * Line k is layer k / directions in direction k % directions; direction 1 reads its sequences from their
 * ends. The first layer has `inputs` inputs, each later one directions * h_width. */
struct lnrnn_network {
    lnrnn_description description; /* resolved, with the steps of the statistics */
    size_t layers, directions;
    const lnrnn_rnn_config *config;      /* (lines), configured */
    const lnrnn_packed_weights *weights; /* (lines) */
    const char *isa;                     /* the instruction set for which the weights are packed */
    int64_t refused_from;                /* the step that no sequence may take */
    int together;                        /* all sequences take their steps together: overrun="batch" */
    size_t weight_bytes;                 /* of the packed weights, and of those for back-propagation */
    int references;
    lnrnn_backward_weights *backward[2]; /* lnrnn_network_backward_weights, by `inputs`; NULL: not yet */
    /* Set by lnrnn_network_complete. */
    size_t inputs, units, h_width, c_width; /* D, H, P, C */
    int states;                             /* 1: h; 2: h and c */
    int by_step;                            /* results depend on the step: batch norm */
    double step_work;                       /* multiply-adds of one step of one sequence */
};

/* Steps that a stream can take, so that sums of two counts of steps never overflow. */
#define LNRNN_LAST_STEP ((int64_t)1 << 62)

/* Sets the fields that follow from the configurations. */
void lnrnn_network_complete(lnrnn_network *n);
/* A network of that line alone, valid as long as n is. It is not to be released. */
lnrnn_network lnrnn_network_line(const lnrnn_network *n, size_t line);
/* Floats of a step of a row in the tape of each line. */
size_t lnrnn_description_tape_width(const lnrnn_description *d);
/* arrays: as the network was created of, in the order of its description. inputs: for the gradient of x too.
 * -> (lines), which n keeps; NULL without memory. */
const lnrnn_backward_weights *lnrnn_network_backward_weights(lnrnn_network *n, const lnrnn_array *arrays,
                                                             int inputs);

/* A call: whole sequences, or the next step of some lanes of a stream. */
typedef struct {
    /* Set by the caller. */
    const lnrnn_network *network;
    lnrnn_line *line;        /* (lines): memory of the driver, and the arrays of training */
    size_t steps, sequences; /* the axes of x and y */
    const float *x;          /* (steps, sequences, inputs), the last axis contiguous */
    ptrdiff_t xt, xb;        /* its strides */
    float *y;                /* (steps, sequences, directions * P), the last axis contiguous */
    ptrdiff_t yt, yb;
    const lnrnn_row *rows; /* (B), as lnrnn_rnn_call has them */
    size_t B;
    int kept;             /* the plan is kept for calls that differ in y and in the starts of rows */
    size_t states;        /* rows of the states */
    const float *h0, *c0; /* (lines, states, P), (lines, states, C), or NULL: zeros */
    float *hn, *cn;       /* as h0, c0; may be them; cn: with a c */
    int training;         /* `training` of each line is set; 0: inference */
    size_t line_arrays;   /* set by lnrnn_training_begin */
    int threads;          /* the most that may be used */
    double part;          /* these two as lnrnn_rnn_call has them */
    int resumed;
    /* As many floats as lnrnn_network_plan says, which keep their values until a call returns 1. */
    float *scratch;
    /* Set by the driver. */
    lnrnn_wavefront wave;
    int side_by_side;     /* the wavefront computes all lines; else one after the other is computed */
    int deal;             /* rows are distributed over the groups of a plan: all groups cost about the same */
    int pointed;          /* kept: the lines have their pointers, but for y */
    size_t at;            /* the line that is computed next; backward: how many are left */
    size_t buffer_floats; /* of the outputs of a layer before the last */
    size_t buffers, zeros, dealt; /* offsets into scratch: outputs, initial states, rows */
} lnrnn_network_call;

/* lengths (B), or NULL: all `steps`. -> rows (B), longest first; 0: a length is not within 0 .. steps. For
 * few sequences. */
int lnrnn_rows_of_lengths(lnrnn_row *rows, size_t B, size_t steps, const int64_t *lengths);
/* Sets the strides of contiguous x and y: (steps, sequences, *), or with batch_first (sequences, steps, *). */
void lnrnn_network_lay_out(lnrnn_network_call *n, int batch_first);
/* The arrays of a call in training. Of each line: tape; masks: state, h, c; statistics of batch norm, in the
 * description's order. Then of each layer: the fields of lnrnn_layer_training, in their order. */
typedef struct {
    void **to; /* where its pointer goes */
    int dtype; /* LNRNN_ARRAY_F32 ..; LNRNN_ARRAY_OTHER: bytes, 0 or 1 */
    int written, needed;
    size_t size;
} lnrnn_training_array;
/* -> how many there are; none is set yet. */
size_t lnrnn_training_begin(lnrnn_network_call *n);
/* To be asked in turn: whether an array is needed depends on the ones before it. */
lnrnn_training_array lnrnn_training_array_of(const lnrnn_network_call *n, size_t k, int backward);
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
    /* Set by the caller. */
    const lnrnn_backward_weights *weights; /* (lines) */
    float *const
        *parameters; /* the gradients of each line's parameters, in the description's order, written */
    int add;         /* to their values */
    const float *gy; /* (steps, sequences, directions * P), the last axis contiguous */
    ptrdiff_t gyt, gyb;
    const float *ghn, *gcn; /* as hn, cn, or NULL: zeros */
    float *gx;              /* (steps, sequences, inputs), written; NULL: not wanted */
    ptrdiff_t gxt, gxb;
    float *gh0, *gc0; /* as h0, c0, written */
    /* Set by the driver. The others are offsets into scratch. outputs: the gradients of the outputs of two
     * layers. second: the gradient of a layer's inputs from its first direction, which is computed last. sums:
     * `line`, and the sums that it points to. */
    lnrnn_rnn_gradients *line; /* (lines) */
    size_t outputs[2], second, sums;
} lnrnn_network_gradients;

/* n: with the tapes, statistics and outputs that the forward call has written, with h0 and c0, and with a
 * plan made anew. -> floats of n->scratch, aligned for doubles. */
size_t lnrnn_network_backward_plan(const lnrnn_network_call *n, lnrnn_network_gradients *g);
/* -> as lnrnn_rnn_backward. */
int lnrnn_network_backward(lnrnn_network_call *n, lnrnn_network_gradients *g);

/* A call in parts, between which its caller may serve an interrupt.
 * Sets `part` and `resumed` for the first of them. */
void lnrnn_network_begin(lnrnn_network_call *n);
/* Forward, or back with g. -> as lnrnn_rnn_forward, and the next part has another size. */
int lnrnn_network_go_on(lnrnn_network_call *n, lnrnn_network_gradients *g);
/* For tests: the multiply-adds of a thread in each part; 0: as tuning.h says. */
void lnrnn_set_part(double part);

#pragma GCC visibility pop

/* The gradients of parameters (network_gradients.c): floats of `sums`; points each line to its sums; writes
 * these to the parameters' gradients. */
size_t lnrnn_gradient_floats(const lnrnn_network *n);
void lnrnn_point_parameters(const lnrnn_network *n, lnrnn_network_gradients *g);
void lnrnn_write_parameters(const lnrnn_network *n, const lnrnn_network_gradients *g);

/* -> LNRNN_OK if the weights are packed for the instruction set in use. name: of the argument, for the
 * message. */
lnrnn_status lnrnn_check_isa(const lnrnn_network *n, const char *name, char *message);

#endif
