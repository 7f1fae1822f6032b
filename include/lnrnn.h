/* lnrnn in C: what the Cython module calls, and what a C program may. lnrnn_api.h says how one gets at these
 * functions; all but some are in its table.
 *
 * Nothing here allocates results, fails or knows Python: the caller has checked the shapes and brings the
 * memory, also the working memory, whose size a function named ..._work or a plan tells. Sizes count
 * elements, strides count elements too and may be any value unless a function says more. Inputs are only
 * read. Outputs may not overlap inputs or each other except where "may be" says so. Memory has to be aligned
 * as C wants it for its type; 64 bytes are faster for what is packed and for working memory. `threads` is the
 * most a call may use; 1 makes it run in the caller, without allocation, lock or system call. All compute in the
 * default floating-point state (nearest even, denormals kept, no traps), whatever that of the calling thread is,
 * which they leave as it was.
 */
#ifndef LNRNN_H
#define LNRNN_H

#include <stddef.h>
#include <stdint.h>

/* Sizes of working memory are products of shapes, which size_t has to hold; and x86's 32-bit compilers use
 * the x87, which does not round as float does. */
#if SIZE_MAX < UINT64_MAX
#error "lnrnn needs a 64-bit build: this compiler has pointers and sizes of 32 bits"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --- dispatch.c: which kernels ------------------------------------------------------------------------- */

/* No list of instruction sets is longer. */
enum { LNRNN_ISAS = 16 };
/* The instruction sets that this build has and this machine can run, best first. -> how many; names[0 ..
 * n-1]. */
size_t lnrnn_isa_list(const char *names[LNRNN_ISAS]);
/* Sets of which this machine lacks a unit, emulated in plain C: the same bits, slowly. */
size_t lnrnn_isa_emulated(const char *names[LNRNN_ISAS]);
/* The one in use. Until lnrnn_isa_use has been called: the best, unless a set's unit is slower on this model of CPU
 * than what the next set does. */
const char *lnrnn_isa_name(void);
/* 0, or -1 if the name is in neither list (then nothing changes). Not while another thread computes. */
int lnrnn_isa_use(const char *name);
/* The unit of the CPU that products with these weights, LNRNN_WEIGHT_F32 .., are done on; NULL: vector instructions
 * for all kinds of things. A unit for bfloat16 takes rows that are rounded to bfloat16 too. */
const char *lnrnn_isa_unit(int weights);
/* AMX: "usable", "not on this CPU", "not enabled by the operating system" or "refused by the kernel". */
const char *lnrnn_isa_amx(void);

/* --- caches.c: what the tuning goes by ----------------------------------------------------------------- */

/* Bytes of the data caches that a core reads through: its L1, its L2, and the L3 that it shares. caches.c
 * asks the machine. reads_ahead: whether the core reads what a loop goes through ahead of it, as fast as L3 gives it. */
typedef struct {
    size_t l1, l2, l3;
    int reads_ahead;
} lnrnn_caches;

/* Those of this machine, or what lnrnn_set_caches has set. */
lnrnn_caches lnrnn_get_caches(void);
/* For tests: no result may depend on them. Not while another thread computes. */
void lnrnn_set_caches(lnrnn_caches caches);

/* --- cores.c, team.c: how many threads ----------------------------------------------------------------- */

int lnrnn_has_openmp(void);
/* The kinds of teams of threads that this build has, the default first: "openmp", "pthread". -> how many. */
size_t lnrnn_team_list(const char *names[2]);
/* The one in use, "none" where there is none. */
const char *lnrnn_team_name(void);
/* 0, or -1 if the name is not in the list (then nothing changes). Calls that run keep the kind they have. */
int lnrnn_team_use(const char *name);
/* Cores that this process may use: the smaller of the affinity mask (under OMP_PROC_BIND: of OpenMP's places)
 * and the control group's quota, at least 1. */
int lnrnn_cores(void);
/* -> how many threads a call may use where nobody has told this library: what OMP_NUM_THREADS says now, else `cores`,
 * and no more than omp_set_num_threads has set for the calling thread, or threadpoolctl for all. Reads the environment, which no other thread may
 * change meanwhile. */
int lnrnn_default_threads(int cores);
/* Where not all threads of a call can be started (limits on processes or memory), it goes on with fewer, and
 * so do the later ones of the thread that called, until lnrnn_try_threads_again. `tell`, if not NULL, is
 * called after each such call by the thread that made it. Best effort: team.c says what OpenMP leaves open.
 */
void lnrnn_on_shortage(void (*tell)(int wanted, int given));
void lnrnn_try_threads_again(void);

/* --- vmath.h, over threads: x (n) -> y (n); y may be x ------------------------------------------------- */

enum { LNRNN_MAP_EXP, LNRNN_MAP_TANH, LNRNN_MAP_SIGMOID };
void lnrnn_map(int function, size_t n, const float *x, float *y, int threads);

/* --- layer_norm.c, batch_norm.c: the norms over threads ---
 *
 * x, y, gy, gx are arrays of one type, `dtype`; gain and bias are float, for LNRNN_FLOAT64 double. What has
 * 16 bits is computed in float and rounded to nearest even at the end.
 */

enum { LNRNN_FLOAT32, LNRNN_FLOAT64, LNRNN_BFLOAT16, LNRNN_FLOAT16, LNRNN_DTYPES };

/* x (rows, n), stride xs; gain, bias (n) or NULL -> y (rows, n), stride ys. y may be x. centred 0: RMS norm,
 * without bias. n >= 1. */
void lnrnn_layer_norm(int dtype, size_t rows, size_t n, const void *x, ptrdiff_t xs, const void *gain,
                      const void *bias, double eps, void *y, ptrdiff_t ys, int centred, int threads);
/* gy, x (rows, n) contiguous, gain (n) or NULL -> gx (rows, n), which may be gy or x, ggain, gbias (n);
 * work: lnrnn_layer_norm_work(rows, n) doubles. */
void lnrnn_layer_norm_backward(int dtype, size_t rows, size_t n, const void *gy, const void *x,
                               const void *gain, double eps, void *gx, double *ggain, double *gbias,
                               double *work, int threads);
size_t lnrnn_layer_norm_work(size_t rows, size_t n);

/* x (N, C, L), contiguous: N samples, C channels, L positions, none of them 0; gain, bias (C) or NULL; mean
 * and biased var (C): those of the batch, and written, if `training`; else given, and read. work:
 * lnrnn_batch_work doubles, for which dtype, N, C, L must be set; sums: in training, and backward. */
typedef struct {
    int dtype;
    size_t N, C, L;
    const void *x, *gain, *bias;
    double eps, *mean, *var, *work;
    int threads;
} lnrnn_batch;

size_t lnrnn_batch_work(const lnrnn_batch *b, int sums);
/* -> y (N, C, L), which may be x. */
void lnrnn_batch_norm(const lnrnn_batch *given, void *y, int training);
/* gy (N, C, L) -> gx (N, C, L), which may be x; ggain, gbias (C). */
void lnrnn_batch_norm_backward(const lnrnn_batch *given, const void *gy, void *gx, double *ggain,
                               double *gbias, int training);

/* --- config.c, plan.c, forward.c, backward.c: the recurrent layer -----------------------------------------
 *
 * Three structs: lnrnn_rnn_config says what a layer is, and is made once; lnrnn_rnn_plan how calls of one
 * shape are done, and is made once for that shape; lnrnn_rnn_call what one call reads and writes.
 */

enum { LNRNN_RNN, LNRNN_LSTM, LNRNN_GRU, LNRNN_CELLS };
/* The activation of an RNN. */
enum { LNRNN_ACT_TANH, LNRNN_ACT_RELU, LNRNN_ACT_SIGMOID, LNRNN_ACT_IDENTITY };
enum { LNRNN_NORM_NONE, LNRNN_NORM_LAYER, LNRNN_NORM_BATCH };
/* What a norm is taken of: the sum W x + W h; each of the two products; the sum, gate by gate. */
enum { LNRNN_JOINT, LNRNN_SPLIT, LNRNN_GATE, LNRNN_PLACEMENTS };
/* The GRU's split norms: one over r and z and one over n, as Ba et al. 2016; or one over all three. */
enum { LNRNN_SPAN_PAPER, LNRNN_SPAN_ALL };
/* The norm of an LSTM's c: none; on its way to h, while c itself is carried; before it is carried. */
enum { LNRNN_CELL_NONE, LNRNN_CELL_OUT, LNRNN_CELL_CARRY };
/* Where norms, and the biases added after them, stand: at W x, where it has its own; at W h, or the sum W x +
 * W h; at an LSTM's c. Without a norm a GRU has bias_ih at the input side, and all other biases are at the
 * hidden side. */
enum { LNRNN_SITE_INPUT, LNRNN_SITE_HIDDEN, LNRNN_SITE_CELL, LNRNN_SITES };

/* What weights are packed as: float, bfloat16, or int8 with a scale for each output. Activations and the
 * norm are float; what int8 multiplies is rounded to 14 bits of each row's largest, or to 8 (LNRNN_WEIGHT_I8A8). */
enum { LNRNN_WEIGHT_F32, LNRNN_WEIGHT_BF16, LNRNN_WEIGHT_I8, LNRNN_WEIGHT_I8A8 };
/* The most inputs of an output of int8: sums of 32 bits hold so many products of 127 and 127. */
enum { LNRNN_INT8_INPUTS = INT32_MAX / (127 * 127) };

/* w (n, k), row stride rs, column stride cs -> packed, lnrnn_packed_size(dtype, n, k) words of 32 bits: the
 * form in which the product reads weights. It belongs to the instruction set in use. */
size_t lnrnn_packed_size(int dtype, size_t n, size_t k);
void lnrnn_pack(int dtype, size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs, uint32_t *packed);

/* How a kernel reads the values of a row, gate after gate: with a bias, as batch norm, or as layer norm.
 * kernels/gate_norm.h has the equations. */
enum { LNRNN_PLAIN, LNRNN_AFFINE, LNRNN_NORMED };
/* The spans of a row, each with a mean and a variance: all gates; each gate; the last gate, and the
 * others. */
enum { LNRNN_SPANS_ALL, LNRNN_SPANS_EACH, LNRNN_SPANS_LAST };
/* How one site reads its rows (G*H), G gates of H values; the norm of c has one. */
typedef struct {
    size_t H;
    int how, spans;
    float eps;
    const float *mean, *gain, *bias; /* (G*H), those that `how` uses */
} lnrnn_gate_norm;

/* LNRNN_SITE_INPUT .. of a layer. */
typedef struct {
    const float *gain, *bias; /* (width); without a norm only bias */
    /* Batch norm at inference: (rows, width); a step takes its own row, or, if it is not among the `known`
     * steps, row overrun_row. */
    const float *scale, *shift;
    /* Set by lnrnn_rnn_configure. */
    size_t width;         /* values of a row: G*H, of c H; 0: the layer has no such site */
    lnrnn_gate_norm norm; /* what its kernel gets; batch norm: a step adds scale and shift */
} lnrnn_site;

struct lnrnn_kernels;
struct lnrnn_product;

/* One layer, one direction. G gates: RNN 1, LSTM 4 (i, f, g, o), GRU 3 (r, z, n). lnrnn/reference/ has
 * the equations. */
typedef struct {
    /* Set by the caller. */
    size_t D, H;                                     /* inputs, units */
    int cell, act, norm, placement, span, cell_norm; /* batch norm: joint in an RNN, split in the others */
    float eps;
    int reverse;                      /* read every sequence from its own end to its start */
    int dtype;                        /* of the packed weights */
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
    int separate_products;     /* W h is not added to W x by the product, but by the cell */
    int input_side;            /* W x has a norm, or a bias, of its own */
    int cell_state;            /* there is a c */
    int saved_gates;           /* the tape keeps the gates */
    int own_input_gradient;    /* GRU but joint: r multiplies W h alone, whose gradient is not that of W x */
    int direct_h;              /* the cell takes h_prev itself too, not only W h */
    int step_kernel;           /* LNRNN_STEP_RNN .. of kernels/table.h: makes the states of a step */
    size_t cell_scratch;       /* floats that this kernel needs */
} lnrnn_rnn_config;

/* To be called once the caller has set its fields; and again after a change of gain, bias, scale, shift,
 * known, overrun_row, inner_ih or inner_hh, which alone may change later. */
void lnrnn_rnn_configure(lnrnn_rnn_config *config);
/* Floats of a record of the tape. */
size_t lnrnn_tape_width(const lnrnn_rnn_config *config);

/* Offsets into the scratch memory of a call, in floats: what the workers of each group share, then each worker's
 * memory, then positions. forward.c and split.c say what the parts hold. */
typedef struct {
    /* Within the memory of a worker. divide_units: `hidden` is within the shared memory, W x of a chunk at 0
     * there. */
    size_t hidden, statistics, cell, product;
    size_t own_c;        /* divide_units: a worker's c; its h is at 0 */
    size_t old_h, old_c; /* zoneout: the states before a step, where the step overwrites them */
    size_t masked;       /* masks.state: h as W_hh takes it */
    size_t worker;       /* the size of a worker's memory */
    size_t shared;       /* the size of what the workers of a group share; 0 without divide_units */
    size_t positions;    /* the steps that each group has taken */
    size_t floats;       /* the size of all */
} lnrnn_rnn_scratch;

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
    size_t wide, narrow;  /* row strides of what has G*H values, of what has H */
    /* Steps from here on, counted with those before the call, take their statistics from the batch; SIZE_MAX:
     * none. */
    size_t batch_from;
    lnrnn_caches caches;
    int synchronous; /* there are such steps: then one group has all sequences */
    struct {
        /* A record of the tape: the offsets of W h (or the sum), the gates and c; W x is at 0. */
        size_t h, gates, c, width;
    } tape;
    lnrnn_rnn_scratch scratch;
} lnrnn_rnn_plan;

typedef struct {
    double *mean, *var; /* (T, width) of the active rows, written */
} lnrnn_site_statistics;

/* A sequence, or a part of one, that goes through time by itself: steps first .. first + length - 1 of x and y
 * at place `sequence` of their second axis, from the state in row `state` of h0 and c0. */
typedef struct {
    int64_t sequence, first, length;
    int64_t end;   /* y is set to 0 from its last step up to this one */
    int64_t state; /* its row of h0, c0, hn, cn */
    int64_t start; /* steps that it has taken before; changes results under batch norm only */
} lnrnn_row;

/* What a call in training drops; each is NULL where it drops nothing. */
typedef struct {
    const float *state; /* (sequences, H): factors of h on its way to W h */
    /* (steps, sequences, H), 0 or 1: of which units zoneout keeps the old h, the old c; only where
     * zoneout_h, zoneout_c is not 0, and there in every call with a tape. */
    const unsigned char *h, *c;
    size_t sequences;
} lnrnn_rnn_masks;

typedef struct {
    const lnrnn_rnn_config *config;
    const lnrnn_rnn_plan *plan;
    size_t T, B;                 /* the most steps of a row, rows */
    const uint32_t *w_ih, *w_hh; /* packed (G*H, D), (G*H, H), for the ISA of the plan */
    const float *x;              /* (steps, sequences, D), the last axis contiguous */
    ptrdiff_t xt, xb;            /* its strides */
    float *y;                    /* (steps, sequences, H), the last axis contiguous */
    ptrdiff_t yt, yb;
    const float *h0, *c0;  /* (states, H); c0, cn: LSTM, NULL in the others */
    float *hn, *cn;        /* (states, H): the state at each row's own end; may be h0, c0 */
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
    float *scratch; /* plan->scratch.floats floats, which keep their values until a call returns 1 */
} lnrnn_rnn_call;

/* r: set, without plan and scratch. The plan holds for calls that differ in the values of pointers, in what
 * `rows` has beside the lengths, in part and resumed alone; which pointers are NULL may not change. threads: the most that
 * may be used; the plan takes fewer for little work. */
void lnrnn_rnn_make_plan(const lnrnn_rnn_call *r, int threads, lnrnn_rnn_plan *plan);
/* -> 1; or 0 if r->part was too little: then it is to be called again, with resumed = 1, any part, and all
 * else as it was. The parts change no bit of the result. hn, and the zeros past the end of a row, are
 * complete only when it returns 1. */
int lnrnn_rnn_forward(const lnrnn_rnn_call *r);

/* --- stream.c: a network that goes on from call to call -----------------------------------------------------
 *
 * A stream has `lanes`, each with the states of one sequence; a handle steps `rows` of them a call. Streams
 * and handles are made from Python: lnrnn_stream_open of lnrnn_api.h. Handles of one stream share its lanes,
 * and share them with Python. Several threads may use them at once, without a lock, if no lane is in two calls
 * at a time; one handle serves one call at a time.
 */

typedef struct lnrnn_stream lnrnn_stream;

/* What a function says that has changed nothing: a lane that is none; a lane twice; a lane that has taken all
 * steps for which batch norm has statistics (overrun="raise"), or 2^62 steps; some lanes, an order
 * of them, or lanes at different steps, where all go together (overrun="batch"). */
enum {
    LNRNN_STREAM_NO_LANE = -1,
    LNRNN_STREAM_TWICE = -2,
    LNRNN_STREAM_OVERRUN = -3,
    LNRNN_STREAM_TOGETHER = -4
};

/* x (rows, D) -> y (rows, H), contiguous: one step of lanes (rows), each at most once, in any order; NULL:
 * lanes 0 .. rows - 1. y may be x, and may overlap it. With overrun="batch" lanes has to be NULL. Bit for bit
 * what Python's stream gives. -> 0, or a code above, and nothing has changed. */
int lnrnn_stream_step(lnrnn_stream *s, const int64_t *lanes, const float *x, float *y);
/* lanes (n), each at most once, n any number; NULL: lanes 0 .. n - 1. They go back to a zero state and step 0.
 * With overrun="batch" n has to be that of all lanes. -> as lnrnn_stream_step. */
int lnrnn_stream_reset(lnrnn_stream *s, const int64_t *lanes, size_t n);
/* D; H; the network's layers; the stream's lanes; those that a step of this handle takes. */
size_t lnrnn_stream_inputs(const lnrnn_stream *s);
size_t lnrnn_stream_units(const lnrnn_stream *s);
size_t lnrnn_stream_layers(const lnrnn_stream *s);
size_t lnrnn_stream_lanes(const lnrnn_stream *s);
size_t lnrnn_stream_rows(const lnrnn_stream *s);
/* -> the states h (lanes, H) of a layer, or c with cell = 1; NULL for a c of another cell than an LSTM, and for
 * a layer that is none. They may be read and written while no step of the lane runs, and live as long as the
 * handle. */
float *lnrnn_stream_state(const lnrnn_stream *s, size_t layer, int cell);
/* -> (lanes): the steps that each lane has taken since its reset, to be read. */
const int64_t *lnrnn_stream_steps(const lnrnn_stream *s);
/* -> a layer of the network, ready for lnrnn_rnn_forward on other sequences: config and the packed weights w_ih
 * and w_hh of a copy are to be kept, all else is the caller's to set, and to plan. They live as long as the
 * handle. NULL for a layer that is none. */
const lnrnn_rnn_call *lnrnn_stream_layer(const lnrnn_stream *s, size_t layer);

/* --- backward.c: back through time ---------------------------------------------------------------------- */

typedef struct {
    double *gain, *bias; /* as the site's; NULL where it has none */
} lnrnn_site_gradients;

typedef struct {
    const float *gy; /* as y; read only where rows have steps */
    ptrdiff_t gyt, gyb;
    const float *ghn, *gcn; /* (states, H) gradients of hn, cn, or NULL */
    /* The transposes, float, packed (D, G*H), (H, G*H); without gx no w_ih_t. Where one is NULL, the weights themselves
     * are read: (G*H, D), (G*H, H), as lnrnn_reads_lines says. */
    const uint32_t *w_ih_t, *w_hh_t;
    const float *w_ih, *w_hh;
    float *gx; /* as x; written only where rows have steps; NULL: not wanted */
    ptrdiff_t gxt, gxb;
    float *gh0, *gc0;                       /* (states, H) */
    float *gw_ih, *gw_hh;                   /* (G*H, D), (G*H, H) */
    int add;                                /* these are added to what gw_ih and gw_hh hold */
    lnrnn_site_gradients site[LNRNN_SITES]; /* written */
    double *inner[2]; /* (G*H) of inner_ih, inner_hh, written; NULL where the layer has none */
    float *work;      /* lnrnn_rnn_backward_work(r) floats, aligned for doubles and pointers */
} lnrnn_rnn_gradients;

/* Does lnrnn_rnn_backward take a weight w (n, k) as it stands? Rows that are short and whole vectors, at a multiple of 64:
 * else it is to be transposed and packed. */
int lnrnn_reads_lines(const float *w, size_t k);
size_t lnrnn_rnn_backward_work(const lnrnn_rnn_call *r);
/* r: that of the forward call, with a plan made anew, and with y, tape and, of batch norm, count and
 * statistics as that call has written them; only read. -> as lnrnn_rnn_forward; g too stays as it is
 * from part to part. */
int lnrnn_rnn_backward(const lnrnn_rnn_call *r, const lnrnn_rnn_gradients *g);

#ifdef __cplusplus
}
#endif

#endif
