/* A recurrent layer in one direction: config.c, plan.c, forward.c, split.c, backward.c.
 *
 * lnrnn_rnn_config describes a layer, and is set once. lnrnn_rnn_plan is made once for all calls of one
 * shape. lnrnn_rnn_call has the arrays of one call. The rules of lnrnn.h for memory and strides hold here
 * too. */
#ifndef LNRNN_LAYER_H
#define LNRNN_LAYER_H

#include "lnrnn.h"
#include "lnrnn/kernels/table.h"

/* Round a number of bytes, or of floats, up to whole cache lines. */
static inline size_t lnrnn_whole_lines(size_t bytes) { return (bytes + 63) & ~(size_t)63; }
static inline size_t lnrnn_whole_floats(size_t floats) { return (floats + 15) & ~(size_t)15; }

/* The properties of a cell that do not depend on its norms: config.c. */
typedef struct {
    size_t num_gates;
    size_t cell_states; /* arrays of H values in a row of c */
    int placement;      /* the default of layer norm, and the only one of batch norm */
    int activated;      /* the user chooses its nonlinearity */
    int saved_gates, direct_h;
} lnrnn_cell;
extern const lnrnn_cell lnrnn_cell_table[]; /* (LNRNN_CELLS) */
extern const char lnrnn_cell_names[];       /* "one of 'RNN', .." */

/* Exported for the Cython module. */
#pragma GCC visibility push(default)

/* A site is a place in the cell for a norm and the bias that is added after it. INPUT: W x, if it has a norm
 * of its own. HIDDEN: W h, or W x + W h. CELL: an LSTM's c, or an SLSTM's h on its way to y. Without norms,
 * all biases are at HIDDEN, but a GRU has bias_ih at INPUT. */
enum { LNRNN_SITE_INPUT, LNRNN_SITE_HIDDEN, LNRNN_SITE_CELL, LNRNN_SITES };

/* w (n, k), row stride rs, column stride cs -> packed, lnrnn_packed_size(dtype, n, k) words of 32 bits: the
 * layout in which the product reads weights. The layout depends on the instruction set in use. */
size_t lnrnn_packed_size(int dtype, size_t n, size_t k);
void lnrnn_pack(int dtype, size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs, uint32_t *packed);

/* w (n, k), contiguous. Returns the number of blocks (8 x 4 weights) that are not all 0. Returns 0 if w
 * should be multiplied as a dense matrix: it has too many such blocks, or is no grid of whole blocks. */
size_t lnrnn_block_count(int dtype, size_t n, size_t k, const float *w);
/* For tests: sets the largest share of nonzero blocks for a sparse product. -1: the value of tuning.h. */
void lnrnn_set_share_of_blocks(double share);
/* w (n, k), contiguous, with `count` blocks -> packed, lnrnn_blocks_size words. */
size_t lnrnn_blocks_size(int dtype, size_t n, size_t count);
void lnrnn_pack_blocks(int dtype, size_t n, size_t k, size_t count, const float *w, uint32_t *packed);
/* Returns the number of outputs of a window, a multiple of a panel. Threads divide block-sparse products only
 * between windows. */
size_t lnrnn_block_window(int dtype);

typedef struct lnrnn_rnn_config lnrnn_rnn_config;
/* w (gates * H, head_units), the rows of `gates` gates of W_hh -> packed, lnrnn_packed_heads_size words: head
 * after head, (gates * H / num_heads, head_units) each. work: lnrnn_pack_heads_work floats. */
size_t lnrnn_packed_heads_size(const lnrnn_rnn_config *c, size_t gates);
size_t lnrnn_pack_heads_work(const lnrnn_rnn_config *c);
void lnrnn_pack_heads(const lnrnn_rnn_config *c, size_t gates, const float *w, float *work, uint32_t *packed);

/* The norm and bias at a site. */
typedef struct {
    const float *gain, *bias; /* (width); without a norm, gain is NULL */
    /* Batch norm at inference: (rows, width). Step t reads row t, or row overrun_row if there is no row t. */
    const float *scale, *shift;
    /* Set by lnrnn_rnn_configure. */
    size_t width;         /* the number of values per row: G*H, or H for c; 0: the layer lacks this site */
    lnrnn_gate_norm norm; /* the kernel's argument; with batch norm each step sets its gain and bias */
} lnrnn_site;

/* One layer in one direction. G gates: RNN 1, LSTM 4 (i, f, g, o), GRU 3 (r, z, n), LiGRU 2 (z, n), SLSTM 4
 * (i, f, z, o). lnrnn/reference/ has the equations. */
struct lnrnn_rnn_config {
    /* Set by the caller. */
    size_t D, H, P;   /* the numbers of inputs, of units, of values of h */
    size_t num_heads; /* the blocks of W_hh: a head reads only its own H / num_heads units; 0 counts as 1 */
    /* placement with batch norm: JOINT in an RNN, INPUT in a LiGRU, SPLIT in an LSTM and a GRU. */
    int cell, act, norm, placement, span, cell_norm;
    float eps;
    int gate_activation; /* LSTM, GRU; LNRNN_GATES_HARD_SIGMOID only without a norm */
    int reset_before;    /* GRU: r multiplies h before the product; not with layer norm JOINT or GATE */
    int reverse;         /* read each sequence from its last step to its first */
    int dtype;           /* type of the packed weights */
    size_t blocks_ih, blocks_hh;  /* the numbers of blocks of W_ih, W_hh, or 0: dense (lnrnn_block_count) */
    int exp_forget, round_states; /* SLSTM: f is the argument of an exp; states are rounded to bfloat16 */
    const float *inner_ih, *inner_hh; /* (G*H) or NULL: biases of W x and W h, before any norm; without
                                       * separate_products inner_ih is their sum and inner_hh NULL */
    const float *peephole;            /* LSTM: (3*H), the factors of c in i, f and o, or NULL */
    float zoneout_h, zoneout_c; /* in [0, 1): the part of the old h and c that a step keeps if a call has no
                                 * masks; zoneout_c only in an LSTM */
    lnrnn_site site[LNRNN_SITES];
    /* Batch norm at inference: scale and shift have rows for `known` steps. Later steps use row overrun_row,
     * or the statistics of the batch if overrun_row is -1. */
    size_t known;
    ptrdiff_t overrun_row;
    /* Set by lnrnn_rnn_configure. */
    size_t num_gates, outputs; /* G, and G*H: the number of outputs of a product */
    size_t first_gates;     /* the gates of the first product with W_hh: G, or 2 (r, z) with reset_before */
    size_t head_units;      /* P / num_heads: how many values of h an output of W_hh reads */
    int separate_products;  /* the kernel of the cell adds W h to W x; 0: the product adds them */
    int input_side;         /* W x has a norm or a bias of its own */
    size_t C;               /* the number of values of c per sequence; 0: the cell has no c */
    size_t projection;      /* P * H if h is W_hr times the cell's output (H); 0: h is the cell's output */
    int saved_gates;        /* the tape has the gates */
    int own_input_gradient; /* W x and W h have different gradients: a GRU's, unless JOINT, as r scales W h */
    int direct_h;           /* the cell reads h_prev too, not only W h */
    int step_kernel;        /* LNRNN_STEP_RNN .. of kernels/table.h: the kernel that computes new states */
    size_t cell_scratch;    /* the number of floats of scratch for this kernel */
    int output_norm;        /* y is the norm of each head of h (site CELL), so h is stored apart from y */
};

/* Sets the fields that the caller does not set. Call it when the caller's fields are set, and again after a
 * change. Only gain, bias, scale, shift, known, overrun_row, inner_ih, inner_hh and peephole may change. */
void lnrnn_rnn_configure(lnrnn_rnn_config *config);
/* Returns how many floats the tape keeps for one step of one row. */
size_t lnrnn_tape_width(const lnrnn_rnn_config *config);

/* The layout of a call's scratch memory, in floats. First comes, for each group, the memory that its threads
 * share. Then comes the memory of each worker, from groups * shared on. Last come the `positions`. */
typedef struct {
    size_t shared, worker; /* floats that a group shares, 0 without divide_units; floats of a worker */
    size_t positions;      /* the offset of the numbers of steps that each group has computed */
    size_t floats;         /* the total size */
} lnrnn_rnn_scratch;

/* A phase is a function that computes one part of a step. Its argument describes the step: step.h. */
typedef struct lnrnn_step lnrnn_step;
typedef void lnrnn_phase(lnrnn_step *s);
enum { LNRNN_PHASES = 25 };

/* How all calls of one shape are computed; lnrnn_rnn_make_plan sets it. */
typedef struct {
    const struct lnrnn_kernels *kernels;
    const struct lnrnn_product *product; /* the product with the layer's weights */
    const struct lnrnn_blocks *blocks;   /* the product with block-sparse weights */
    int threads;
    int brief;        /* little work: use one thread if other processes use the cores */
    int divide_units; /* the number of threads that divide a group's units; 0: one thread computes a group */
    int divide_rows;  /* with divide_units: each thread computes the states of some rows; 0: of all rows */
    size_t group, groups; /* the number of rows that are computed together, a group; the number of groups */
    size_t chunk;         /* the number of steps for which one product computes W x */
    size_t rows_ahead;    /* the number of later rows whose W_ih x a product with W_hh also computes, or 0 */
    int both_products;    /* the step's phase for W h also computes W x */
    size_t input_rows;    /* the largest number of rows of x in one product */
    size_t panels;        /* the number of panels of the packed weights */
    size_t window;        /* threads divide block-sparse products at multiples of it; 0: dense */
    size_t wide, narrow;  /* row strides of arrays of G*H values, of H values per row */
    size_t h_stride, c_stride; /* row strides of h, of c */
    size_t first_words;        /* reset_before: the number of words of w_hh before the weights of n */
    /* Steps from number batch_from on use the statistics of the batch; SIZE_MAX: none. Steps before the call
     * count too. */
    size_t batch_from;
    lnrnn_phase *phases[2][LNRNN_PHASES + 1]; /* phases of a step, then NULL; [1]: from step batch_from on */
    lnrnn_caches caches;
    int synchronous; /* one group has all sequences, because the call has steps from batch_from on */
    struct {
        /* Offsets in a record of the tape: W h (or W x + W h), the gates, c and, with a projection, the
         * cell's output. W x is at 0. state: the offset of h, if y is the norm of h. */
        size_t h, gates, c, output, state, width;
    } tape;
    lnrnn_rnn_scratch scratch;
} lnrnn_rnn_plan;

typedef struct {
    double *mean, *var; /* (T, width): statistics over each step's active rows, written */
} lnrnn_site_statistics;

/* A row is the steps first .. first + length - 1 of sequence `sequence` of x and y. A reset of the state
 * divides a sequence into several rows. The row begins with state number `state` of h0 and c0. */
typedef struct {
    int64_t sequence, first, length;
    int64_t end;   /* y is set to 0 after the row's last step, up to step `end` */
    int64_t state; /* the index in h0, c0, hn, cn */
    int64_t start; /* the number of steps before this call; only batch norm depends on it */
} lnrnn_row;

/* Masks of dropout in training; NULL: no dropout. */
typedef struct {
    const float *state; /* (sequences, P): factors of h in W_hh h */
    /* (steps, sequences, P or C): 1 where zoneout keeps the old value of h, of c, else 0. A call with a tape
     * has the mask of h if zoneout_h is not 0, and the mask of c if zoneout_c is not 0. */
    const unsigned char *h, *c;
    size_t sequences;
} lnrnn_rnn_masks;

typedef struct {
    const lnrnn_rnn_config *config;
    const lnrnn_rnn_plan *plan;
    size_t T, B; /* the largest number of steps of a row; the number of rows */
    /* Packed for the plan's instruction set: w_ih (G*H, D), w_hh by lnrnn_pack_heads, with a projection w_hr
     * (P, H). */
    const uint32_t *w_ih, *w_hh, *w_hr;
    const float *x;   /* (steps, sequences, D), the last axis contiguous */
    ptrdiff_t xt, xb; /* the strides of x */
    float *y;         /* (steps, sequences, P), the last axis contiguous */
    ptrdiff_t yt, yb;
    const float *h0, *c0; /* (states, P), (states, C); c0, cn: NULL if the cell has no c */
    float *hn, *cn;       /* (shapes of h0, c0): the state at each row's own end; may be h0, c0 */
    /* (B), longest first; no two rows write the same state or the same steps of y. With statistics of the
     * batch all rows have the same start. */
    const lnrnn_row *rows;
    size_t last_step_end; /* the largest start + length of a row in calls with this plan; SIZE_MAX: unknown */
    lnrnn_site_statistics statistics[LNRNN_SITES]; /* batch norm in training */
    int64_t *count; /* (T): the number of active rows, written; NULL: no batch norm in training */
    /* NULL, or memory for the tape that lnrnn_rnn_backward reads: lnrnn_tape_width floats for every step of
     * every row. */
    float *tape;
    lnrnn_rnn_masks masks;
    /* A call returns with unfinished work when each thread has done about `part` multiply-adds; 0: the call
     * finishes. A step of a group is always finished. */
    double part;
    int resumed;    /* 1: this call continues a call that has returned 0 */
    float *scratch; /* plan->scratch.floats floats, aligned for doubles; kept until a call returns 1 */
} lnrnn_rnn_call;

/* Makes the plan for r, whose fields are set except plan and scratch. The plan may be used for calls that
 * differ in part, resumed, and fields of `rows` other than length. Pointers may differ too, if the same
 * pointers are NULL. threads: the largest number of threads; the plan uses fewer for little work. */
void lnrnn_rnn_make_plan(const lnrnn_rnn_call *r, int threads, lnrnn_rnn_plan *plan);
/* Returns 1 when all work is finished, or 0 after r->part multiply-adds. After 0, call it again with resumed
 * = 1, any part, and all other fields unchanged. Parts change no bit of the result. hn, and the zeros past
 * the end of a row, are complete only after a return of 1. */
int lnrnn_rnn_forward(const lnrnn_rnn_call *r);

/* --- backward.c: back through time ---------------------------------------------------------------------- */

typedef struct {
    double *gain, *bias; /* (shape of the site's gain and bias); NULL if the site has no gain or bias */
} lnrnn_site_gradients;

typedef struct {
    const float *gy; /* (shape of y), not read past the end of a row */
    ptrdiff_t gyt, gyb;
    const float *ghn, *gcn; /* (shapes of hn, cn): the gradients of hn and cn; NULL: zeros */
    /* The transposed weights in float, packed (D, G*H), (P, G*H), (H, P). Without gx, w_ih_t is not read.
     * With several heads, and with reset_before, w_hh_t has the transpose of each gate of each head,
     * (head_units, head_units). */
    const uint32_t *w_ih_t, *w_hh_t, *w_hr_t;
    float *gx; /* (shape of x), not written past the end of a row; NULL: not computed */
    ptrdiff_t gxt, gxb;
    float *gh0, *gc0;                       /* (shapes of h0, c0) */
    float *gw_ih, *gw_hh, *gw_hr;           /* (G*H, D), (G*H, head_units), (P, H) */
    int add;                                /* add to the values of gw_ih, gw_hh and gw_hr */
    lnrnn_site_gradients site[LNRNN_SITES]; /* written */
    double *inner[2]; /* (G*H): gradients of inner_ih, inner_hh, written; NULL if the layer lacks them */
    double *peephole; /* (3*H): gradient of config->peephole, written; or NULL */
    float *work;      /* lnrnn_rnn_backward_work(r) floats, aligned for doubles and pointers */
} lnrnn_rnn_gradients;

size_t lnrnn_rnn_backward_work(const lnrnn_rnn_call *r);
/* Back-propagates through r, the forward call with a new plan. Reads y, tape, count and statistics of r.
 * Returns 1 if all work is finished, else 0, as lnrnn_rnn_forward. g must not change between parts. */
int lnrnn_rnn_backward(const lnrnn_rnn_call *r, const lnrnn_rnn_gradients *g);

#pragma GCC visibility pop

#endif
