/* liblnrnn: layer norm, batch norm and recurrent networks that contain them, for programs in C and C++.
 * Link with -llnrnn. Extension modules of Python include lnrnn_api.h instead, and link with nothing.
 *
 * Functions with a parameter `message` check their arguments and allocate their results. All other
 * functions expect valid arguments, cannot fail, and write into memory of the caller. Functions named
 * lnrnn_..._work return the size of working memory. No function checks a pointer or the size of an array.
 *
 * "x (n) -> y (n)" means that a function reads the array x of shape (n) and writes the array y of shape (n).
 * Sizes and strides count elements, and strides may be negative. An output may not overlap an input or
 * another output, unless its comment says "may be". Arrays need the alignment of their type; working memory
 * is faster if aligned to 64 bytes. `threads` is the largest number of threads that a call may use. With 1,
 * the call runs in the calling thread, without a lock or a system call.
 *
 * All functions compute in the default floating-point state: round to nearest even, keep denormals, no
 * traps. They restore the state of the calling thread. */
#ifndef LNRNN_H
#define LNRNN_H

#include <stddef.h>
#include <stdint.h>

/* A 32-bit build is refused for two reasons: size_t must hold products of shapes, and 32-bit x86 code does
 * not round each result to float. WebAssembly rounds each result, and has a lower limit for shapes. */
#if SIZE_MAX < UINT64_MAX && !defined(__wasm__)
#error "lnrnn needs a 64-bit build: this compiler has pointers and sizes of 32 bits"
#endif
/* Files, packed weights and bfloat16 rely on the order of bytes. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "lnrnn needs a little-endian machine: on this one the first byte of a number is its highest"
#endif

/* The largest number of threads that a call may use. */
enum { LNRNN_MOST_THREADS = 1024 };

/* The version of these declarations. Within a major version, declarations are only added. */
#define LNRNN_API_MAJOR 4
#define LNRNN_API_MINOR 1
#define LNRNN_VERSION "0.2.0"

/* LNRNN_REALTIME marks functions that, on one thread, neither allocate, nor lock, nor call the system. With
 * clang 20 and later it is the attribute `nonblocking`, which -Wfunction-effects and RealtimeSanitizer
 * check. */
#define LNRNN_REALTIME
#if defined(__clang__) && defined(__has_attribute)
#if __has_attribute(nonblocking)
#undef LNRNN_REALTIME
#ifdef __cplusplus
#define LNRNN_REALTIME noexcept __attribute__((nonblocking))
#else
#define LNRNN_REALTIME __attribute__((nonblocking))
#endif
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The library is compiled with -fvisibility=hidden. It exports the functions from here on. */
#pragma GCC visibility push(default)

/* Returns the LNRNN_VERSION with which the library was compiled. */
const char *lnrnn_version(void);

/* --- dispatch.c: instruction sets ----------------------------------------------------------------------- */

/* The largest number of names in a list of instruction sets. */
enum { LNRNN_ISAS = 16 };
/* Writes the names of the instruction sets that this build has and this machine can run, best first. Returns
 * their number. */
size_t lnrnn_isa_list(const char *names[LNRNN_ISAS]);
/* Writes the names of the instruction sets that this machine lacks and this build emulates slowly in plain C.
 * Returns their number. */
size_t lnrnn_isa_emulated(const char *names[LNRNN_ISAS]);
/* Returns the name of the instruction set in use. By default it is the first of lnrnn_isa_list, unless this
 * model of CPU runs the next set of the list faster. */
const char *lnrnn_isa_name(void);
/* Selects an instruction set. Returns 0, or -1 if neither lnrnn_isa_list nor lnrnn_isa_emulated lists `name`.
 * No other thread may compute during the call. */
int lnrnn_isa_use(const char *name);
/* weights: LNRNN_WEIGHT_F32 to LNRNN_WEIGHT_I8A8. Returns the unit of the CPU that multiplies by weights of
 * this format, for example "AMX", or NULL if vector instructions multiply. A bfloat16 unit rounds x and h to
 * bfloat16. */
const char *lnrnn_isa_unit(int weights);
/* Returns the state of Intel's matrix unit AMX. The states are "usable, tested in an emulator only", "not on
 * this CPU", "not enabled by the operating system" and "refused by the kernel". */
const char *lnrnn_isa_amx(void);

/* --- cores.c, team.c: how many threads ----------------------------------------------------------------- */

/* Writes the thread pools of this build ("openmp", "pthread", on Windows "windows"), the default first.
 * Returns their number. */
size_t lnrnn_team_list(const char *names[2]);
/* Returns the name of the pool in use, or "none" in a build without threads. */
const char *lnrnn_team_name(void);
/* Selects a thread pool for later calls. Returns 0, or -1 if this build has no pool of this name. */
int lnrnn_team_use(const char *name);
/* Returns the number of cores that this process may use, at least 1: the smaller of its affinity mask and its
 * control group's quota. With OMP_PROC_BIND, OpenMP's places replace the mask. */
int lnrnn_cores(void);
/* Returns the limit of threads for calls that pass no limit. The default is OMP_NUM_THREADS, else
 * lnrnn_cores() at the first call. omp_set_num_threads in the calling thread, and threadpoolctl, can lower
 * this number. No other thread may change the environment during the call. */
int lnrnn_get_num_threads(void);
/* Sets the largest number of threads for the whole process, n >= 1. */
void lnrnn_set_num_threads(int n);
/* If limits on processes or memory keep a call from starting all its threads, it uses fewer. Later calls of
 * the same thread use fewer too, until lnrnn_set_num_threads. `report`, if not NULL, is called in the calling
 * thread at the end of each call with too few threads. If another process takes the last threads while a call
 * starts threads, OpenMP ends this process. */
void lnrnn_on_shortage(void (*report)(int wanted, int given));

/* --- vmath.h: elementwise functions, x (n) -> y (n); y may be x ---------------------------------------- */

enum { LNRNN_MAP_EXP, LNRNN_MAP_TANH, LNRNN_MAP_SIGMOID };
void lnrnn_map(int function, size_t n, const float *x, float *y, int threads) LNRNN_REALTIME;

/* --- layer_norm.c, batch_norm.c: the norms ---
 *
 * x, y and their gradients gx, gy have the type `dtype`. gain and bias are float, or double if dtype is
 * LNRNN_FLOAT64. 16-bit types are computed in float and rounded to nearest even at the end.
 */

enum { LNRNN_FLOAT32, LNRNN_FLOAT64, LNRNN_BFLOAT16, LNRNN_FLOAT16, LNRNN_DTYPES };

/* x (rows, n), stride xs; gain, bias (n) or NULL -> y (rows, n), stride ys. y may be x. centred = 0: RMS
 * norm, which has no bias. n >= 1. */
void lnrnn_layer_norm(int dtype, size_t rows, size_t n, const void *x, ptrdiff_t xs, const void *gain,
                      const void *bias, double eps, void *y, ptrdiff_t ys, int centred,
                      int threads) LNRNN_REALTIME;
/* gy, x (rows, n) contiguous, gain (n) or NULL -> gx (rows, n), ggain, gbias (n). gx may be gy or x. work has
 * lnrnn_layer_norm_work(rows, n) doubles. centred = 0: RMS norm, where gbias gets the sums of gy. */
void lnrnn_layer_norm_backward(int dtype, size_t rows, size_t n, const void *gy, const void *x,
                               const void *gain, double eps, void *gx, double *ggain, double *gbias,
                               double *work, int centred, int threads) LNRNN_REALTIME;
size_t lnrnn_layer_norm_work(size_t rows, size_t n) LNRNN_REALTIME;

/* The arguments of batch norm. x (N, C, L), contiguous: N samples, C channels, L positions, each at least 1;
 * gain, bias (C) or NULL. mean, biased var (C): in training lnrnn_batch_norm writes the statistics of the
 * batch here, otherwise it reads them. work has lnrnn_batch_work(b, sums) doubles, a number that depends on
 * dtype, N, C and L. The argument sums is 1 in training and for the gradient, else 0. */
typedef struct {
    int dtype;
    size_t N, C, L;
    const void *x, *gain, *bias;
    double eps, *mean, *var, *work;
    int threads;
} lnrnn_batch;

size_t lnrnn_batch_work(const lnrnn_batch *b, int sums) LNRNN_REALTIME;
/* Writes y (N, C, L), the norm of x. y may be x. */
void lnrnn_batch_norm(const lnrnn_batch *given, void *y, int training) LNRNN_REALTIME;
/* gy (N, C, L) -> gx (N, C, L), which may be x; ggain, gbias (C). */
void lnrnn_batch_norm_backward(const lnrnn_batch *given, const void *gy, void *gx, double *ggain,
                               double *gbias, int training) LNRNN_REALTIME;

/* --- status and message -------------------------------------------------------------------------------- */

/* A step or a reset of a stream that returns a negative code has changed no lane and no output. */
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
    LNRNN_STREAM_OVERRUN = -3,  /* a lane's next step is above 2^62, or has no statistics (overrun "raise") */
    LNRNN_STREAM_TOGETHER = -4, /* overrun "batch": a call must step all lanes, in order, at equal steps */
    LNRNN_STREAM_BUSY = -5      /* another thread is in a call of this handle */
} lnrnn_status;

/* After an error, functions with a parameter `message` write a text into it. The text names the argument or
 * array, its value and the expected value. `message` has LNRNN_MESSAGE bytes, or is NULL. */
enum { LNRNN_MESSAGE = 256 };

/* --- networks ------------------------------------------------------------------------------------------ */

enum { LNRNN_RNN, LNRNN_LSTM, LNRNN_GRU, LNRNN_LIGRU, LNRNN_SLSTM, LNRNN_CELLS };
/* The activation of an RNN, and of the candidate n of a GRU and a LiGRU. */
enum { LNRNN_ACT_TANH, LNRNN_ACT_RELU, LNRNN_ACT_SIGMOID, LNRNN_ACT_IDENTITY };
/* The activation of the gates i, f, o of an LSTM, and r, z of a GRU. The hard sigmoid is min(max(x / 6 + 1/2,
 * 0), 1). */
enum { LNRNN_GATES_SIGMOID, LNRNN_GATES_HARD_SIGMOID };
enum { LNRNN_NORM_NONE, LNRNN_NORM_LAYER, LNRNN_NORM_BATCH, LNRNN_NORM_RMS, LNRNN_NORMS };
/* The input of layer norm. JOINT: the sum W x + W h. SPLIT: W x and W h separately. GATE: each gate of the
 * sum. INPUT: W x alone (LiGRU). OUTPUT: each head of h, for y only (SLSTM). */
enum { LNRNN_JOINT, LNRNN_SPLIT, LNRNN_GATE, LNRNN_INPUT, LNRNN_OUTPUT, LNRNN_PLACEMENTS };
/* The groups of gates that LNRNN_SPLIT normalises together in a GRU. PAPER: one norm over r and z, and one
 * over n (Ba et al. 2016). ALL: one norm over all gates. */
enum { LNRNN_SPAN_PAPER, LNRNN_SPAN_ALL };
/* Layer or RMS norm of an LSTM's c. OUT: h = o tanh(LN(c)), and the next step gets c. CARRY: the next step
 * gets LN(c). */
enum { LNRNN_CELL_NONE, LNRNN_CELL_OUT, LNRNN_CELL_CARRY };
/* Batch norm at a step without statistics. RAISE: an error. LAST: the statistics of the last known step.
 * MEAN: the mean over time. BATCH: the statistics of the batch itself. */
enum { LNRNN_OVERRUN_RAISE, LNRNN_OVERRUN_LAST, LNRNN_OVERRUN_MEAN, LNRNN_OVERRUN_BATCH, LNRNN_OVERRUNS };
/* The form of packed weights: float, bfloat16, or int8 with a scale for each output. Norms and activations
 * are computed in float. Products with int8 weights round x and h to 14 bits relative to the largest element
 * of the row, or to 8 bits (LNRNN_WEIGHT_I8A8). */
enum { LNRNN_WEIGHT_F32, LNRNN_WEIGHT_BF16, LNRNN_WEIGHT_I8, LNRNN_WEIGHT_I8A8 };

/* The configuration of a network: the arguments of Python's constructors. */
typedef struct {
    int cell, act, weights;                     /* LNRNN_RNN .., LNRNN_ACT_TANH .., LNRNN_WEIGHT_F32 .. */
    size_t input_size, hidden_size, num_layers; /* D, H */
    int bias, batch_first, bidirectional, reverse;
    int reset_after; /* GRU; 0: the reset gate multiplies h before the product */
    int norm;        /* LNRNN_NORM_NONE .. */
    /* Only for layer and RMS norm. The placement LNRNN_PLACEMENTS means the cell's default. */
    int placement, span, cell_norm, inner_bias;
    double eps;
    /* Only for batch norm. max_steps: the number of steps with statistics; 0: as many as in training. steps:
     * the number of rows in the arrays of statistics, such as count_l0. momentum -1: batches are averaged,
     * weighted by their counts. */
    size_t max_steps, steps;
    int overrun;
    double momentum;
    double zoneout[2], dropout; /* zoneout of h and of c; dropout between layers */
    /* LSTM, GRU, SLSTM: W_hh is block-diagonal: the H / num_heads units of a head read h of that head
     * alone. */
    size_t num_heads;
    size_t proj_size;                /* LSTM: P, the number of values of h, below hidden_size; 0: P is H */
    int gate_activation;             /* LNRNN_GATES_HARD_SIGMOID only without a norm */
    int exp_forget, bfloat16_states; /* SLSTM: an exponential forget gate; states rounded after each step */
    int peepholes;                   /* LSTM: i and f also read the old c, o reads the new c */
} lnrnn_description;

/* Returns a description with Python's defaults: layer norm, one layer, one direction, with biases. */
lnrnn_description lnrnn_describe(int cell, size_t input_size, size_t hidden_size);
/* Replaces values that stand for a default, such as LNRNN_PLACEMENTS, by the cell's defaults. Fails if a
 * value is invalid. */
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

/* Return the number of arrays of a network with this resolved description, and the k-th array without its
 * data. The second function writes the name of the array to the buffer `name`. */
size_t lnrnn_description_arrays(const lnrnn_description *d);
lnrnn_array lnrnn_description_array(const lnrnn_description *d, size_t k, char name[LNRNN_ARRAY_NAME]);

/* A network: immutable, with its weights packed for the instruction set in use when it is created. Any
 * number of threads, calls and streams may share it. */
typedef struct lnrnn_network lnrnn_network;

/* arrays (count): exactly the arrays of lnrnn_description_array, in any order. They are copied. Sets *network
 * to the network, with one reference, or to NULL after an error. */
lnrnn_status lnrnn_network_create(const lnrnn_description *d, const lnrnn_array *arrays, size_t count,
                                  lnrnn_network **network, char message[LNRNN_MESSAGE]);
/* Sets *network as lnrnn_network_create does, from a file that Python's lnrnn.save wrote. */
lnrnn_status lnrnn_network_open(const char *path, lnrnn_network **network, char message[LNRNN_MESSAGE]);
/* Sets *network likewise, from `size` bytes of such a file in memory, at any alignment. After the call the
 * bytes may be freed. */
lnrnn_status lnrnn_network_read(const void *bytes, size_t size, lnrnn_network **network,
                                char message[LNRNN_MESSAGE]);
/* The first function adds a reference. The second drops a reference, and frees the network with the last one.
 * A stream has a reference of its own. n may be NULL. */
lnrnn_network *lnrnn_network_retain(lnrnn_network *n);
void lnrnn_network_release(lnrnn_network *n);
/* Return the input size D, the hidden size H, the number of layers, and the number of directions (1 or 2). */
size_t lnrnn_network_inputs(const lnrnn_network *n);
size_t lnrnn_network_units(const lnrnn_network *n);
size_t lnrnn_network_layers(const lnrnn_network *n);
size_t lnrnn_network_directions(const lnrnn_network *n);
/* Returns the number of values of h for one sequence: P with proj_size, else H. With cell = 1 returns the
 * number of values of c, or 0 without c. The c of an SLSTM holds 3 H values: its c, n and m. */
size_t lnrnn_network_state_size(const lnrnn_network *n, int cell);

/* B sequences of up to T steps, in contiguous arrays. With batch_first the axes (T, B) are (B, T). P is
 * lnrnn_network_state_size(n, 0). */
typedef struct {
    size_t steps, sequences; /* T, B */
    int batch_first;
    int threads;                 /* the most threads; 0: lnrnn_get_num_threads() */
    const float *x;              /* (T, B, D) */
    const int64_t *lengths;      /* (B): 0 .. T; NULL: all T */
    const unsigned char *resets; /* (T, B), not 0: set h and c to zero before this step; NULL: never */
    const float *h0;             /* (layers * directions, B, P); NULL: zeros */
    const float *c0; /* (layers * directions, B, H), only LSTM, and SLSTM with 3 H values; NULL: zeros */
    float *y;        /* (T, B, directions * P), 0 past a length; no other array overlaps it */
    float *hn, *cn;  /* (shapes of h0, c0), may be h0 and c0; NULL: not written */
} lnrnn_sequences;

/* Working memory of calls on sequences. It grows in calls that need more. On one thread, a call that needs no
 * more than earlier calls does not allocate. Only one call at a time may use a workspace. Calls of different
 * networks may share it. */
typedef struct lnrnn_workspace lnrnn_workspace;
/* Returns an empty workspace, or NULL without memory. */
lnrnn_workspace *lnrnn_workspace_create(void);
/* w may be NULL. */
void lnrnn_workspace_free(lnrnn_workspace *w);
/* Runs all layers and directions. The results equal the results of a stream, bit for bit. w may be NULL: then
 * the call allocates and frees its working memory. */
lnrnn_status lnrnn_network_run(const lnrnn_network *n, const lnrnn_sequences *s, lnrnn_workspace *w,
                               char message[LNRNN_MESSAGE]);

/* --- streams ---
 *
 * A stream has lanes. Each lane holds the states of one sequence between calls. A handle is the working
 * memory of one thread that computes steps of some lanes. Several threads may use one stream at the same time
 * without a lock, each with its own handle. No lane may be in two calls at a time.
 */

typedef struct lnrnn_stream lnrnn_stream;
typedef struct lnrnn_handle lnrnn_handle;

/* Sets *stream to a stream whose lanes have zero states, at step 0, or to NULL after an error. The network
 * must have one direction, and not be reversed. */
lnrnn_status lnrnn_stream_create(lnrnn_network *network, size_t lanes, lnrnn_stream **stream,
                                 char message[LNRNN_MESSAGE]);
/* Frees the stream when its last handle is freed, or now if it has no handle. s may be NULL. */
void lnrnn_stream_release(lnrnn_stream *s);
const lnrnn_network *lnrnn_stream_network(const lnrnn_stream *s);
size_t lnrnn_stream_lanes(const lnrnn_stream *s);
/* Returns the array of states h (lanes, P) of a layer. With cell = 1 returns its c (lanes, H), or the c, n
 * and m of an SLSTM, (lanes, 3 H). NULL: the network lacks this layer or has no c. The states of a lane may
 * be read and written while no call steps the lane. */
float *lnrnn_stream_state(const lnrnn_stream *s, size_t layer, int cell);
/* Returns an array (lanes): the number of steps of each lane since its reset, which selects batch norm's
 * statistics. It may be written while no call steps its lanes. */
int64_t *lnrnn_stream_steps(const lnrnn_stream *s);

/* Sets *handle to a handle that steps `rows` lanes per call on at most `threads` threads (1 ..
 * LNRNN_MOST_THREADS), or to NULL after an error. With overrun "batch", rows must be the number of lanes. */
lnrnn_status lnrnn_handle_create(lnrnn_stream *s, size_t rows, int threads, lnrnn_handle **handle,
                                 char message[LNRNN_MESSAGE]);
/* Frees h, which no thread may be using. h may be NULL. */
void lnrnn_handle_free(lnrnn_handle *h);
lnrnn_stream *lnrnn_handle_stream(const lnrnn_handle *h);
size_t lnrnn_handle_rows(const lnrnn_handle *h);
/* x (rows, D) -> y (rows, P), contiguous: computes one step. lanes (rows): the lane of each row, all
 * different; NULL: lanes 0 .. rows - 1. y may overlap x. With overrun "batch", lanes must be NULL. On one
 * thread there is no allocation, lock or system call. */
lnrnn_status lnrnn_handle_step(lnrnn_handle *h, const int64_t *lanes, const float *x,
                               float *y) LNRNN_REALTIME;
/* lanes (n): the numbers of the lanes that get zero states and step 0, all different; NULL: lanes 0 .. n - 1.
 * With overrun "batch", n must be the number of lanes. */
lnrnn_status lnrnn_handle_reset(lnrnn_handle *h, const int64_t *lanes, size_t n) LNRNN_REALTIME;

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
