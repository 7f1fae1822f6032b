/* The recurrent layer, of one direction: config.c, plan.c, forward.c, split.c, backward.c.
 *
 * lnrnn_rnn_config describes a layer, and is set once. lnrnn_rnn_plan is made once for all calls of one
 * shape. lnrnn_rnn_call has the arrays of one call. They belong to the engine: lnrnn.h shows programs
 * networks and streams instead. Rules of memory and strides are those of lnrnn.h. */
#ifndef LNRNN_LAYER_H
#define LNRNN_LAYER_H

#include "lnrnn.h"
#include "lnrnn/kernels/table.h"

/* Sizes in whole cache lines: of bytes, and of floats. */
static inline size_t lnrnn_whole_lines(size_t bytes) { return (bytes + 63) & ~(size_t)63; }
static inline size_t lnrnn_whole_floats(size_t floats) { return (floats + 15) & ~(size_t)15; }

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* The places of norms, and of the biases added after them. INPUT: W x, if it has its own. HIDDEN: W h, or
 * W x + W h. CELL: an LSTM's c, or an SLSTM's h on its way to y. Without a norm, a GRU has bias_ih at the input side. All other biases are
 * at the hidden side. */
enum { LNRNN_SITE_INPUT, LNRNN_SITE_HIDDEN, LNRNN_SITE_CELL, LNRNN_SITES };

/* The most inputs of an output of int8: sums of 32 bits hold so many products of 127 and 127. */
enum { LNRNN_INT8_INPUTS = INT32_MAX / (127 * 127) };

/* w (n, k), row stride rs, column stride cs -> packed, lnrnn_packed_size(dtype, n, k) words of 32 bits: the
 * form in which the product reads weights. It belongs to the instruction set in use. */
size_t lnrnn_packed_size(int dtype, size_t n, size_t k);
void lnrnn_pack(int dtype, size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs, uint32_t *packed);

typedef struct lnrnn_rnn_config lnrnn_rnn_config;
/* w: the rows of so many gates of W_hh, (gates * H, head_units) -> packed, lnrnn_packed_heads_size words: head
 * after head, as (gates * head_units, head_units). work: lnrnn_pack_heads_work floats. */
size_t lnrnn_packed_heads_size(const lnrnn_rnn_config *c, size_t gates);
size_t lnrnn_pack_heads_work(const lnrnn_rnn_config *c);
void lnrnn_pack_heads(const lnrnn_rnn_config *c, size_t gates, const float *w, float *work, uint32_t *packed);

/* LNRNN_SITE_INPUT .. of a layer. */
typedef struct {
    const float *gain, *bias; /* (width); without a norm only bias */
    /* Batch norm at inference: (rows, width); a step takes its own row, or, if it is not among the `known`
     * steps, row overrun_row. */
    const float *scale, *shift;
    /* Set by lnrnn_rnn_configure. */
    size_t width;         /* values of a row: G*H, of c H; 0: the layer has no such site */
    lnrnn_gate_norm norm; /* for its kernel; batch norm: a step adds scale and shift */
} lnrnn_site;

/* One layer, one direction. G gates: RNN 1, LSTM 4 (i, f, g, o), GRU 3 (r, z, n). lnrnn/reference/ has
 * the equations. */
struct lnrnn_rnn_config {
    /* Set by the caller. */
    size_t D, H, P;   /* inputs, units, values of h */
    size_t num_heads; /* W_hh is block-diagonal: each head reads its own H / num_heads units; 0 counts as 1 */
    int cell, act, norm, placement, span, cell_norm; /* batch norm: joint in an RNN, split in the others */
    float eps;
    int reverse;                      /* read every sequence from its own end to its start */
    int dtype;                        /* of the packed weights */
    int exp_forget, round_states;     /* SLSTM: as lnrnn_step_config has them */
    const float *inner_ih, *inner_hh; /* (G*H) or NULL: added to W x and W h, before any norm; inner_hh
                                       * only with separate_products, else the sum of both is inner_ih */
    float zoneout_h, zoneout_c; /* in [0, 1): how much of the old h and c a step keeps, where a call has no
                                 * masks; zoneout_c: LSTM */
    lnrnn_site site[LNRNN_SITES];
    /* Batch norm at inference: the tables have rows for `known` steps; `overrun_row` is the row for later
     * ones, or -1: these use the batch itself. */
    size_t known;
    ptrdiff_t overrun_row;
    /* Set by lnrnn_rnn_configure. */
    size_t num_gates, outputs; /* G, and G*H: values of a product */
    size_t head_units;         /* H / num_heads: the inputs of an output of W_hh */
    int separate_products;     /* W h is not added to W x by the product, but by the cell */
    int input_side;            /* W x has a norm, or a bias, of its own */
    size_t C;                  /* values of a row of c; 0: there is none */
    int saved_gates;           /* the tape keeps the gates */
    int own_input_gradient;    /* GRU but joint: r multiplies W h alone, whose gradient is not that of W x */
    int direct_h;              /* the cell takes h_prev itself too, not only W h */
    int step_kernel;           /* LNRNN_STEP_RNN .. of kernels/table.h: makes the states of a step */
    size_t cell_scratch;       /* floats that this kernel needs */
    int output_norm;           /* y is the norm of h, site CELL by heads: h has rows of its own */
};

/* To be called once the caller has set its fields. Later only gain, bias, scale, shift, known, overrun_row,
 * inner_ih and inner_hh may change; then it is to be called again. */
void lnrnn_rnn_configure(lnrnn_rnn_config *config);
/* Floats of a record of the tape. */
size_t lnrnn_tape_width(const lnrnn_rnn_config *config);

/* The scratch memory of a call, in floats. Each group has some, if its threads share it. Then comes that of
 * each worker, from groups * shared on, then the positions. */
typedef struct {
    size_t shared, worker; /* of a group, 0 without divide_units; of a worker: lnrnn_step_memory */
    size_t positions;      /* where the steps that each group has taken stand */
    size_t floats;         /* of all */
} lnrnn_rnn_scratch;

/* A phase of a step, and the view that it works on: step.h. */
typedef struct lnrnn_step lnrnn_step;
typedef void lnrnn_phase(lnrnn_step *s);
enum { LNRNN_PHASES = 17 };

/* How the calls of one shape are done: set by lnrnn_rnn_make_plan. */
typedef struct {
    const struct lnrnn_kernels *kernels;
    const struct lnrnn_product *product; /* the product with the layer's weights */
    int threads;
    int brief;            /* little work: one thread does it while the cores are oversubscribed */
    int divide_units;     /* so many threads divide the units of each group; 0: a group has one thread */
    int divide_rows;      /* of these each makes the states of some of the rows; 0: each makes all of them */
    size_t group, groups; /* sequences that go through time together; how many such groups there are */
    size_t chunk;         /* steps whose W x is computed by one product */
    size_t input_rows;    /* the most rows of x in one product */
    size_t panels;        /* of the packed weights */
    size_t wide, narrow;  /* row strides of G*H values, of H values */
    size_t h_stride, c_stride; /* row strides of h, of c */
    /* Steps from here on, counted with those before the call, take their statistics from the batch; SIZE_MAX:
     * none. */
    size_t batch_from;
    lnrnn_phase *phases[2][LNRNN_PHASES + 1]; /* of a step, up to NULL: [1] from batch_from on */
    lnrnn_caches caches;
    int synchronous; /* there are such steps: then one group has all sequences */
    struct {
        /* A record of the tape: the offsets of W h (or the sum), the gates and c; W x is at 0. state: that of h, if
         * y is its norm. */
        size_t h, gates, c, state, width;
    } tape;
    lnrnn_rnn_scratch scratch;
} lnrnn_rnn_plan;

typedef struct {
    double *mean, *var; /* (T, width) of the active rows, written */
} lnrnn_site_statistics;

/* A sequence, or a part of one, that goes through time by itself: steps first .. first + length - 1 of x and
 * y at place `sequence` of their second axis, from the state in row `state` of h0 and c0. */
typedef struct {
    int64_t sequence, first, length;
    int64_t end;   /* y is set to 0 from its last step up to this one */
    int64_t state; /* its row of h0, c0, hn, cn */
    int64_t start; /* steps that it has taken before; changes results under batch norm only */
} lnrnn_row;

/* Dropout of a call in training; each is NULL where it drops nothing. */
typedef struct {
    const float *state; /* (sequences, P): factors of h on its way to W h */
    /* (steps, sequences, P or C), 0 or 1: the units that keep the old h, the old c, by zoneout. Only where
     * zoneout_h, zoneout_c is not 0; there every call with a tape has them. */
    const unsigned char *h, *c;
    size_t sequences;
} lnrnn_rnn_masks;

typedef struct {
    const lnrnn_rnn_config *config;
    const lnrnn_rnn_plan *plan;
    size_t T, B;                 /* the most steps of a row, rows */
    const uint32_t *w_ih, *w_hh; /* packed for the ISA of the plan: (G*H, D), and as lnrnn_pack_heads does */
    const float *x;              /* (steps, sequences, D), the last axis contiguous */
    ptrdiff_t xt, xb;            /* its strides */
    float *y;                    /* (steps, sequences, P), the last axis contiguous */
    ptrdiff_t yt, yb;
    const float *h0, *c0;  /* (states, P), (states, C); c0, cn: NULL without a c */
    float *hn, *cn;        /* as h0, c0: the state at each row's own end; may be h0, c0 */
    const lnrnn_row *rows; /* (B), longest first; no two write the same state or the same steps of y. With
                            * statistics of the batch the same start in all */
    size_t last_step_end;  /* the last step that a call of the plan takes, start included; SIZE_MAX: not
                            * known */
    lnrnn_site_statistics statistics[LNRNN_SITES]; /* batch norm in training */
    int64_t *count; /* batch norm in training, else NULL: (T) active rows, written */
    /* For lnrnn_rnn_backward, if not NULL: a record of lnrnn_tape_width floats for every active step. */
    float *tape;
    lnrnn_rnn_masks masks;
    /* A call returns, its work unfinished, when each thread has done about so many multiply-adds; 0: it does
     * all of it. A step of a group of sequences is always finished. */
    double part;
    int resumed;    /* 0; 1 in a call that continues one that has returned 0 */
    float *scratch; /* plan->scratch.floats floats, aligned for doubles; kept until a call returns 1 */
} lnrnn_rnn_call;

/* r: set, without plan and scratch. The plan holds for other calls too. They may differ in the values of
 * pointers, in part and resumed, and in fields of `rows` other than length. The same pointers must be NULL.
 * threads: the most that may be used; the plan takes fewer for little work. */
void lnrnn_rnn_make_plan(const lnrnn_rnn_call *r, int threads, lnrnn_rnn_plan *plan);
/* -> 1; or 0 if r->part was too little: then it is to be called again, with resumed = 1, any part, and all
 * else as it was. The parts change no bit of the result. hn, and the zeros past the end of a row, are
 * complete only when it returns 1. */
int lnrnn_rnn_forward(const lnrnn_rnn_call *r);

/* --- backward.c: back through time ---------------------------------------------------------------------- */

typedef struct {
    double *gain, *bias; /* as the site's; NULL where it has none */
} lnrnn_site_gradients;

typedef struct {
    const float *gy; /* as y; read only where rows have steps */
    ptrdiff_t gyt, gyb;
    const float *ghn, *gcn; /* as hn, cn: their gradients, or NULL */
    /* The transposes, float, packed (D, G*H), (P, G*H); without gx no w_ih_t. Where one is NULL, the weights
     * themselves are read: (G*H, D), (G*H, head_units), as lnrnn_reads_lines says. With several heads w_hh_t has
     * the transpose of each gate of each head, (head_units, head_units). */
    const uint32_t *w_ih_t, *w_hh_t;
    const float *w_ih, *w_hh;
    float *gx; /* as x; written only where rows have steps; NULL: not wanted */
    ptrdiff_t gxt, gxb;
    float *gh0, *gc0;                       /* as h0, c0 */
    float *gw_ih, *gw_hh;                   /* (G*H, D), (G*H, head_units) */
    int add;                                /* to the values of gw_ih and gw_hh */
    lnrnn_site_gradients site[LNRNN_SITES]; /* written */
    double *inner[2]; /* (G*H) of inner_ih, inner_hh, written; NULL where the layer has none */
    float *work;      /* lnrnn_rnn_backward_work(r) floats, aligned for doubles and pointers */
} lnrnn_rnn_gradients;

/* Does lnrnn_rnn_backward take a weight w (n, k) as it stands? Rows that are short and whole vectors, at a
 * multiple of 64: else it is to be transposed and packed. */
int lnrnn_reads_lines(const float *w, size_t k);
size_t lnrnn_rnn_backward_work(const lnrnn_rnn_call *r);
/* r: that of the forward call, with a new plan; only read. y, tape and batch norm's count and statistics are
 * as that call has written them. -> as lnrnn_rnn_forward. g too stays as it is from part to part.
 */
int lnrnn_rnn_backward(const lnrnn_rnn_call *r, const lnrnn_rnn_gradients *g);

#pragma GCC visibility pop

#endif
