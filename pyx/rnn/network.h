/* A network, and a call of it: all layers and directions (network.c). */
#ifndef LNRNN_NETWORK_H
#define LNRNN_NETWORK_H

#include "rnn/layer.h"
#include "rnn/wavefront.h"

/* Exported for the Cython module. */
#pragma GCC visibility push(default)

/* The packed weights of a layer in one direction: (G*H, D), (G*H, P) and, with a projection, (P, H). */
typedef struct {
    const uint32_t *ih, *hh, *hr;
} lnrnn_packed_weights;

/* The transposed weights of a layer in one direction, packed in float32, for back-propagation. */
typedef struct {
    const uint32_t *w_ih_t, *w_hh_t, *w_hr_t;
} lnrnn_backward_weights;

/* A network is immutable, so any number of threads, calls and streams may share it. A line is a layer in one
 * direction: line k is layer k / directions in direction k % directions. Direction 1, and each line of a
 * reverse network, reads sequences from their ends. The first layer has `inputs` inputs, each later layer has
 * directions * h_width. */
struct lnrnn_network {
    lnrnn_description description; /* resolved; `steps` is the number of rows of the statistics */
    size_t layers, directions;
    const lnrnn_rnn_config *config;      /* (lines), configured */
    const lnrnn_packed_weights *weights; /* (lines) */
    const char *isa;                     /* the instruction set for which the weights are packed */
    int64_t refused_from;                /* steps from this number on are refused (overrun="raise") */
    int together;                        /* all sequences take their steps together: overrun="batch" */
    size_t weight_bytes;                 /* the number of bytes of the packed weights and of `backward` */
    int references;
    lnrnn_backward_weights *backward[2]; /* for training without [0], with [1] gradients of x; or NULL */
    /* Set by lnrnn_network_complete. */
    size_t inputs, units, h_width, c_width; /* D, H, P, C */
    int states;                             /* 1: h; 2: h and c */
    int by_step;                            /* results depend on the step: batch norm */
    double step_work;                       /* multiply-adds in one step of one sequence */
};

/* The largest number of steps of a stream. Sums of two such numbers do not overflow. */
#define LNRNN_LAST_STEP ((int64_t)1 << 62)

/* Sets the fields of n that depend on n->config. */
void lnrnn_network_complete(lnrnn_network *n);
/* Returns a network that consists of line `line` of n. The result is valid as long as n. Do not release the
 * result. */
lnrnn_network lnrnn_network_line(const lnrnn_network *n, size_t line);
/* Returns the number of floats in the tape of a line for one step of one row. */
size_t lnrnn_description_tape_width(const lnrnn_description *d);
/* arrays: the arrays of lnrnn_network_create, in the order of the description. inputs: 1 to compute the
 * gradient of x. Returns the weights for back-propagation, an array (lines) that n owns, or NULL without
 * memory. */
const lnrnn_backward_weights *lnrnn_network_backward_weights(lnrnn_network *n, const lnrnn_array *arrays,
                                                             int inputs);

/* A call of a network: whole sequences, or the next step of some lanes of a stream. */
typedef struct {
    /* Set by the caller. */
    const lnrnn_network *network;
    lnrnn_line *line;        /* (lines): memory of network.c, and the arrays of training */
    size_t steps, sequences; /* the axes of x and y */
    const float *x;          /* (steps, sequences, inputs), the last axis contiguous */
    ptrdiff_t xt, xb;        /* the strides of x */
    float *y;                /* (steps, sequences, directions * P), the last axis contiguous */
    ptrdiff_t yt, yb;
    const lnrnn_row *rows; /* (B), longest first */
    size_t B;
    int kept;      /* 1: a stream keeps the plan, for calls that differ in y and in the starts of rows */
    size_t states; /* the number of states in h0, c0, hn, cn */
    const float *h0, *c0; /* (lines, states, P), (lines, states, C), or NULL: zeros */
    float *hn, *cn;       /* (shapes of h0, c0); may be h0, c0; cn: only if the cell has c */
    int training;         /* nonzero: fill `training` of every line; 0: inference */
    size_t line_arrays;   /* the number of training arrays of a line, set by lnrnn_training_begin */
    int threads;
    double part; /* return after about this many multiply-adds per thread; 0: only at the end */
    int resumed; /* 1: continue a call that has returned 0 */
    /* (the number of floats that lnrnn_network_plan returns). Keep the values until a call returns 1. */
    float *scratch;
    /* Set by network.c. */
    lnrnn_wavefront wave;
    int side_by_side;     /* 1: a wavefront computes all lines; 0: one line after the other */
    int deal;             /* 1: sort rows into the groups of a plan so that all groups cost about the same */
    int pointed;          /* with `kept`: all pointers of the lines but y are set */
    size_t at;            /* forward: the next line; backward: the number of lines that remain */
    size_t buffer_floats; /* the number of floats of a layer's outputs, except the last layer's */
    size_t buffers, zeros, dealt; /* offsets into scratch: outputs, zero states, sorted rows */
} lnrnn_network_call;

/* lengths (B), or NULL: all lengths are `steps`. Writes rows (B), longest first. Returns 0 if a length is not
 * within 0 .. steps. */
int lnrnn_rows_of_lengths(lnrnn_row *rows, size_t B, size_t steps, const int64_t *lengths);
/* Sorts rows (n): longest first, rows of one length by `start`, and rows of one start by `state`. It is
 * Shell's sort, because qsort may allocate. */
void lnrnn_sort_rows(lnrnn_row *rows, size_t n);
/* Sets the strides of contiguous x and y: (steps, sequences, *), or with batch_first (sequences, steps,
 * *). */
void lnrnn_network_lay_out(lnrnn_network_call *n, int batch_first);
/* An array of a call in training. The arrays are in this order. For each line: tape; masks state, h, c; batch
 * norm's statistics in the order of the description. Then for each layer: the fields of
 * lnrnn_layer_training. */
typedef struct {
    void **to; /* the pointer to set to the array */
    int dtype; /* LNRNN_ARRAY_F32 ..; LNRNN_ARRAY_OTHER: bytes, 0 or 1 */
    int written, needed;
    size_t size;
} lnrnn_training_array;
/* Returns the number of training arrays, and clears their pointers. */
size_t lnrnn_training_begin(lnrnn_network_call *n);
/* Returns the k-th training array. Call it for k = 0, 1, .. in order, because whether an array is needed
 * depends on the arrays before it. */
lnrnn_training_array lnrnn_training_array_of(const lnrnn_network_call *n, size_t k, int backward);
/* seen (states): zeros, overwritten. Returns 1 if the rows of n are within steps, sequences and states, are
 * sorted longest first, and have different states. */
int lnrnn_rows_fit(const lnrnn_network_call *n, char *seen);
/* Returns the sum of the lengths of all rows. */
size_t lnrnn_active_steps(const lnrnn_network_call *n);
/* Makes the plan, for calls that differ as lnrnn_rnn_make_plan permits. Returns the number of floats of
 * scratch. */
size_t lnrnn_network_plan(lnrnn_network_call *n);
/* Runs the call. Returns 1 if all work is finished, else 0 (lnrnn_rnn_forward). */
int lnrnn_network_forward(lnrnn_network_call *n);

/* The arrays of back-propagation through a call. */
typedef struct {
    /* Set by the caller. */
    const lnrnn_backward_weights *weights; /* (lines) */
    float *const
        *parameters; /* the gradients of each line's parameters, in the description's order, written */
    int add;         /* add to the values of the parameters' gradients */
    const float *gy; /* (steps, sequences, directions * P), the last axis contiguous */
    ptrdiff_t gyt, gyb;
    const float *ghn, *gcn; /* (shapes of hn, cn), or NULL: zeros */
    float *gx;              /* (steps, sequences, inputs), written; NULL: not computed */
    ptrdiff_t gxt, gxb;
    float *gh0, *gc0; /* (shapes of h0, c0), written */
    /* Set by network.c. All but `line` are offsets into scratch. outputs: the gradients of two layers'
     * outputs. second: the gradient of a layer's inputs from direction 0, which is computed last. sums: the
     * array `line` and its sums. */
    lnrnn_rnn_gradients *line; /* (lines) */
    size_t outputs[2], second, sums;
} lnrnn_network_gradients;

/* Plans back-propagation through n, the forward call with its tapes, statistics, outputs, h0 and c0, and a
 * new plan. Returns the number of floats of n->scratch, aligned for doubles. */
size_t lnrnn_network_backward_plan(const lnrnn_network_call *n, lnrnn_network_gradients *g);
/* Back-propagates through the call n. Returns 1 if all work is finished, else 0. */
int lnrnn_network_backward(lnrnn_network_call *n, lnrnn_network_gradients *g);

/* A call can run in parts, between which the caller can handle an interrupt (Ctrl-C). Sets `part` and
 * `resumed` for the first part. */
void lnrnn_network_begin(lnrnn_network_call *n);
/* Runs the next part, forward, or backward if g is not NULL, and adapts the size of later parts. Returns 1
 * after the last part, else 0. */
int lnrnn_network_go_on(lnrnn_network_call *n, lnrnn_network_gradients *g);
/* For tests: sets the number of multiply-adds per thread of each part; 0: the value of tuning.h. */
void lnrnn_set_part(double part);

#pragma GCC visibility pop

/* The gradients of parameters (network_gradients.c). The first function returns the number of floats of
 * `sums`. The second sets each line's pointers into `sums`. The third writes the sums to the parameters'
 * gradients. */
size_t lnrnn_gradient_floats(const lnrnn_network *n);
void lnrnn_point_parameters(const lnrnn_network *n, lnrnn_network_gradients *g);
void lnrnn_write_parameters(const lnrnn_network *n, const lnrnn_network_gradients *g);

/* Returns LNRNN_OK if the weights are packed for the instruction set in use. name: the argument's name in the
 * message. */
lnrnn_status lnrnn_check_isa(const lnrnn_network *n, const char *name, char *message);

#endif
