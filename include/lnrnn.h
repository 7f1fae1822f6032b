/* liblnrnn: recurrent networks with norms inside, and the norms alone, for programs in C and C++. Link with
 * -llnrnn; lnrnn_api.h says how extension modules of Python get at these functions.
 *
 * Functions with a parameter `message` check their arguments and allocate their results. All others expect
 * right arguments, neither fail nor allocate results, and use memory of the caller; lnrnn_..._work gives the
 * size of working memory. Pointers are never checked, nor how much memory is behind them.
 *
 * Shapes stand in parentheses. Sizes and strides count elements, and a stride may have any value unless a
 * function says more. Inputs are only read. An output may not overlap an input or another output, except
 * where "may be" says so. Memory must be aligned as C wants it for its type; 64 bytes are faster for working
 * memory. `threads` is the most that a call may use. With 1 it runs in the calling thread, without a lock or
 * a system call.
 *
 * All results are those of the default floating-point state (nearest even, denormals kept, no traps). The
 * state of the calling thread is the same after a call as before. */
#ifndef LNRNN_H
#define LNRNN_H

#include <stddef.h>
#include <stdint.h>

/* Sizes of working memory are products of shapes, which size_t must hold. On x86, compilers for 32 bits use the
 * x87, which does not round as float does. */
#if SIZE_MAX < UINT64_MAX
#error "lnrnn needs a 64-bit build: this compiler has pointers and sizes of 32 bits"
#endif

/* No call uses more threads. */
enum { LNRNN_MOST_THREADS = 1024 };

/* The version of these declarations. Within a major version they only grow. */
#define LNRNN_API_MAJOR 3
#define LNRNN_API_MINOR 0
#define LNRNN_VERSION "0.2.0"

#ifdef __cplusplus
extern "C" {
#endif

/* The library is compiled with hidden names; those from here on are seen outside. */
#pragma GCC visibility push(default)

/* -> the LNRNN_VERSION with which the library was compiled. */
const char *lnrnn_version(void);

/* --- dispatch.c: which kernels ------------------------------------------------------------------------- */

/* No list of instruction sets is longer. */
enum { LNRNN_ISAS = 16 };
/* The instruction sets that this build has and this machine can run, best first. -> how many; names[0 ..
 * n-1]. */
size_t lnrnn_isa_list(const char *names[LNRNN_ISAS]);
/* Sets whose unit this machine lacks, emulated in plain C: the same bits, slowly. */
size_t lnrnn_isa_emulated(const char *names[LNRNN_ISAS]);
/* The one in use. Until lnrnn_isa_use has been called: the best, unless a set's unit is slower on this model
 * of CPU than the next set. */
const char *lnrnn_isa_name(void);
/* 0, or -1 if the name is in neither list (then nothing changes). Not while another thread computes. */
int lnrnn_isa_use(const char *name);
/* The unit of the CPU that products with these weights, LNRNN_WEIGHT_F32 .., are done on; NULL: vector
 * instructions for all kinds of things. A unit for bfloat16 takes rows that are rounded to bfloat16 too. */
const char *lnrnn_isa_unit(int weights);
/* AMX: "usable", "not on this CPU", "not enabled by the operating system" or "refused by the kernel". */
const char *lnrnn_isa_amx(void);

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
/* The most threads of a call that sets no number itself. The default is the current value of OMP_NUM_THREADS,
 * else the number of cores at the first call of this function. Limits of omp_set_num_threads in the calling
 * thread and of threadpoolctl hold too. No other thread may change the environment meanwhile. */
int lnrnn_get_num_threads(void);
/* n >= 1, for the whole process. Then lnrnn_try_threads_again. */
void lnrnn_set_num_threads(int n);
/* If limits on processes or memory keep a call from starting all its threads, it uses fewer. So do later
 * calls of the same thread, until lnrnn_try_threads_again. `report`, if not NULL, is called at the end of
 * each such call, in its thread. Best effort: team_openmp.c names the gap that OpenMP leaves. */
void lnrnn_on_shortage(void (*report)(int wanted, int given));
void lnrnn_try_threads_again(void);

/* --- vmath.h, over threads: x (n) -> y (n); y may be x ------------------------------------------------- */

enum { LNRNN_MAP_EXP, LNRNN_MAP_TANH, LNRNN_MAP_SIGMOID };
void lnrnn_map(int function, size_t n, const float *x, float *y, int threads);

/* --- layer_norm.c, batch_norm.c: the norms over threads ---
 *
 * x, y, gy, gx are arrays of one type, `dtype`; gain and bias are float, for LNRNN_FLOAT64 double. Types of
 * 16 bits are computed in float and rounded to nearest even at the end.
 */

enum { LNRNN_FLOAT32, LNRNN_FLOAT64, LNRNN_BFLOAT16, LNRNN_FLOAT16, LNRNN_DTYPES };

/* x (rows, n), stride xs; gain, bias (n) or NULL -> y (rows, n), stride ys. y may be x. centred 0: RMS norm,
 * without bias. n >= 1. */
void lnrnn_layer_norm(int dtype, size_t rows, size_t n, const void *x, ptrdiff_t xs, const void *gain,
                      const void *bias, double eps, void *y, ptrdiff_t ys, int centred, int threads);
/* gy, x (rows, n) contiguous, gain (n) or NULL -> gx (rows, n), ggain, gbias (n). gx may be gy or x. work has
 * lnrnn_layer_norm_work(rows, n) doubles. */
void lnrnn_layer_norm_backward(int dtype, size_t rows, size_t n, const void *gy, const void *x,
                               const void *gain, double eps, void *gx, double *ggain, double *gbias,
                               double *work, int threads);
size_t lnrnn_layer_norm_work(size_t rows, size_t n);

/* x (N, C, L), contiguous: N samples, C channels, L positions, none of them 0; gain, bias (C) or NULL. mean,
 * biased var (C): with `training` written, those of the batch; else read. work: lnrnn_batch_work doubles,
 * for which dtype, N, C, L must be set; sums: in training, and backward. */
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

/* --- status and message -------------------------------------------------------------------------------- */

/* Codes below 0 are those of a step or a reset of a stream: no lane and no output has changed. */
typedef enum {
    LNRNN_OK = 0,
    LNRNN_NO_MEMORY = 1,
    LNRNN_NO_FILE = 2,          /* nothing is at this path */
    LNRNN_CANNOT_READ = 3,      /* the system refuses to open or to read the file */
    LNRNN_INVALID = 4,          /* an argument, a description, an array or a file is wrong */
    LNRNN_OTHER_VERSION = 5,    /* a file of a schema that this version does not read */
    LNRNN_TOO_LONG = 6,         /* a sequence has steps without statistics of batch norm (overrun "raise") */
    LNRNN_STREAM_NO_LANE = -1,  /* the stream has no lane of this number */
    LNRNN_STREAM_TWICE = -2,    /* a lane is named twice */
    LNRNN_STREAM_OVERRUN = -3,  /* a lane has no statistics for its step (overrun "raise"), or 2^62 steps */
    LNRNN_STREAM_TOGETHER = -4, /* overrun "batch": not all lanes, in their order, at one step */
    LNRNN_STREAM_BUSY = -5      /* another thread is in a call of this handle */
} lnrnn_status;

/* After an error, functions with a parameter `message` write a text into it. The text names the argument or
 * array, its value and the expected one. `message` has LNRNN_MESSAGE bytes, or is NULL. */
enum { LNRNN_MESSAGE = 256 };

/* --- networks ------------------------------------------------------------------------------------------ */

enum { LNRNN_RNN, LNRNN_LSTM, LNRNN_GRU, LNRNN_SLSTM, LNRNN_CELLS };
/* The activation of an RNN. */
enum { LNRNN_ACT_TANH, LNRNN_ACT_RELU, LNRNN_ACT_SIGMOID, LNRNN_ACT_IDENTITY };
enum { LNRNN_NORM_NONE, LNRNN_NORM_LAYER, LNRNN_NORM_BATCH };
/* The rows that a norm is taken of: the sum W x + W h; each of the two products; the sum, gate by gate. An SLSTM has
 * a norm of each head of h on its way to y. */
enum { LNRNN_JOINT, LNRNN_SPLIT, LNRNN_GATE, LNRNN_OUTPUT, LNRNN_PLACEMENTS };
/* The GRU's split norms: one over r and z and one over n, as Ba et al. 2016; or one over all three. */
enum { LNRNN_SPAN_PAPER, LNRNN_SPAN_ALL };
/* The norm of an LSTM's c: none; on its way to h, while c itself is carried; before it is carried. */
enum { LNRNN_CELL_NONE, LNRNN_CELL_OUT, LNRNN_CELL_CARRY };
/* The steps for which batch norm has no statistics: an error; those of the last step; their mean over time;
 * those of the batch itself. */
enum { LNRNN_OVERRUN_RAISE, LNRNN_OVERRUN_LAST, LNRNN_OVERRUN_MEAN, LNRNN_OVERRUN_BATCH, LNRNN_OVERRUNS };
/* The form of packed weights: float, bfloat16, or int8 with a scale for each output. Activations and the
 * norm are float; rows that int8 multiplies are rounded to 14 bits of each row's largest, or to 8
 * (LNRNN_WEIGHT_I8A8). */
enum { LNRNN_WEIGHT_F32, LNRNN_WEIGHT_BF16, LNRNN_WEIGHT_I8, LNRNN_WEIGHT_I8A8 };

/* The arguments of Python's constructors. */
typedef struct {
    int cell, act, weights;                     /* LNRNN_RNN .., LNRNN_ACT_TANH .., LNRNN_WEIGHT_F32 .. */
    size_t input_size, hidden_size, num_layers; /* D, H */
    int bias, batch_first, bidirectional;
    int norm;
    /* Of layer norm. LNRNN_PLACEMENTS: the cell's own placement. */
    int placement, span, cell_norm, inner_bias;
    /* Of both norms. */
    double eps;
    /* Of batch norm. max_steps 0: as many as in training. steps: rows of the statistics, those of count_l0.
     * momentum -1: statistics are pooled by their counts. */
    size_t max_steps, steps;
    int overrun;
    double momentum;
    double zoneout[2], dropout; /* of h and c; between layers */
    size_t
        num_heads; /* LSTM, GRU, SLSTM: W_hh multiplies the H / num_heads units of each head by themselves; or 1 */
    int exp_forget, bfloat16_states; /* SLSTM: an exponential forget gate; states rounded after each step */
} lnrnn_description;

/* A description with Python's defaults: layer norm, one layer, one direction, with biases. */
lnrnn_description lnrnn_describe(int cell, size_t input_size, size_t hidden_size);
/* Fills in all that the cell decides, and refuses values that no network has. */
lnrnn_status lnrnn_description_resolve(lnrnn_description *d, char message[LNRNN_MESSAGE]);

enum { LNRNN_ARRAY_F32, LNRNN_ARRAY_F64, LNRNN_ARRAY_I64, LNRNN_ARRAY_OTHER }; /* dtypes of arrays */
enum { LNRNN_ARRAY_DIMS = 6, LNRNN_ARRAY_NAME = 64 };

/* An array of a network, named as in Python's state_dict. */
typedef struct {
    const char *name;
    int dtype;
    size_t ndim, shape[LNRNN_ARRAY_DIMS];
    const void *data; /* in C order, aligned for its type */
} lnrnn_array;

/* How many arrays a network of a resolved description has, and the k-th without its data; its name is
 * written to the buffer. */
size_t lnrnn_description_arrays(const lnrnn_description *d);
lnrnn_array lnrnn_description_array(const lnrnn_description *d, size_t k, char name[LNRNN_ARRAY_NAME]);

/* A network: an immutable value with its weights packed for the instruction set in use now. Any number of
 * threads, calls and streams may share it. */
typedef struct lnrnn_network lnrnn_network;

/* arrays (count), in any order: those that the description asks for, and no others; they are copied. ->
 * *network, with one reference; NULL after an error. */
lnrnn_status lnrnn_network_create(const lnrnn_description *d, const lnrnn_array *arrays, size_t count,
                                  lnrnn_network **network, char message[LNRNN_MESSAGE]);
/* The network in a file that Python's `save` wrote. */
lnrnn_status lnrnn_network_open(const char *path, lnrnn_network **network, char message[LNRNN_MESSAGE]);
/* One more reference, and one less: with the last one the network is freed. Streams have a reference of
 * their own. n may be NULL. */
lnrnn_network *lnrnn_network_retain(lnrnn_network *n);
void lnrnn_network_release(lnrnn_network *n);
/* D; H; layers; 1 direction or 2; 1 state, h, or 2, h and c. A row of an SLSTM's c holds c, n and m, 3 H values. */
size_t lnrnn_network_inputs(const lnrnn_network *n);
size_t lnrnn_network_units(const lnrnn_network *n);
size_t lnrnn_network_layers(const lnrnn_network *n);
size_t lnrnn_network_directions(const lnrnn_network *n);
size_t lnrnn_network_states(const lnrnn_network *n);

/* B sequences of up to T steps, in contiguous arrays. With batch_first the axes (T, B) are (B, T). */
typedef struct {
    size_t steps, sequences; /* T, B */
    int batch_first;
    int threads;                 /* the most that are used; 0: lnrnn_get_num_threads() */
    const float *x;              /* (T, B, D) */
    const int64_t *lengths;      /* (B): 0 .. T; NULL: all T */
    const unsigned char *resets; /* (T, B): not 0: the state starts anew before this step; NULL: never */
    /* (layers * directions, B, H); NULL: zeros. c0, cn: LSTM; SLSTM, with 3 H values in a row; else NULL */
    const float *h0, *c0;
    float *y;       /* (T, B, directions * H), 0 past a length; no other array overlaps it */
    float *hn, *cn; /* as h0; may be h0, c0; NULL: not wanted */
} lnrnn_sequences;

/* All layers and directions; a step is the same, bit for bit, as in a stream. */
lnrnn_status lnrnn_network_run(const lnrnn_network *n, const lnrnn_sequences *s, char message[LNRNN_MESSAGE]);

/* --- streams ---
 *
 * A stream has lanes. Each lane holds the states of one sequence, which continues from call to call. A handle
 * is the memory with which one thread steps some of the lanes. Several threads may step lanes of one stream
 * at the same time without a lock, each with its own handle. No lane may be in two calls at a time.
 */

typedef struct lnrnn_stream lnrnn_stream;
typedef struct lnrnn_handle lnrnn_handle;

/* A stream of a network with one direction: lanes with zero states, at step 0. -> *stream, NULL after an
 * error. */
lnrnn_status lnrnn_stream_create(lnrnn_network *network, size_t lanes, lnrnn_stream **stream,
                                 char message[LNRNN_MESSAGE]);
/* Frees the stream, or lets its last handle do it. s may be NULL. */
void lnrnn_stream_release(lnrnn_stream *s);
const lnrnn_network *lnrnn_stream_network(const lnrnn_stream *s);
size_t lnrnn_stream_lanes(const lnrnn_stream *s);
/* -> the states h (lanes, H) of a layer, or with cell = 1 its c, (lanes, H) or of an SLSTM (lanes, 3 H). NULL: there is
 * no c, or the layer is beyond the last. They may be read and written while no call has the lane. */
float *lnrnn_stream_state(const lnrnn_stream *s, size_t layer, int cell);
/* -> (lanes): the number of steps of each lane since its reset. They may be written likewise. Batch norm's
 * statistics depend on them. */
int64_t *lnrnn_stream_steps(const lnrnn_stream *s);

/* A handle that steps `rows` (1 .. lanes) of the lanes a call, on up to `threads` (1 .. LNRNN_MOST_THREADS)
 * threads. With overrun "batch", rows must be all lanes. -> *handle, NULL after an error. */
lnrnn_status lnrnn_handle_create(lnrnn_stream *s, size_t rows, int threads, lnrnn_handle **handle,
                                 char message[LNRNN_MESSAGE]);
/* h: no thread uses it; may be NULL. */
void lnrnn_handle_free(lnrnn_handle *h);
lnrnn_stream *lnrnn_handle_stream(const lnrnn_handle *h);
size_t lnrnn_handle_rows(const lnrnn_handle *h);
/* x (rows, D) -> y (rows, H), contiguous: one step of lanes (rows), each at most once, in any order; NULL:
 * lanes 0 .. rows - 1. y may overlap x. With overrun "batch" lanes has to be NULL. With one thread: no
 * allocation, lock or system call. */
lnrnn_status lnrnn_handle_step(lnrnn_handle *h, const int64_t *lanes, const float *x, float *y);
/* lanes (n), each at most once, n any number; NULL: lanes 0 .. n - 1. They return to a zero state and step
 * 0. With overrun "batch" n has to be that of all lanes. */
lnrnn_status lnrnn_handle_reset(lnrnn_handle *h, const int64_t *lanes, size_t n);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
