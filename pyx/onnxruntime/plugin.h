/* The plug-in's own types, and the functions of its files. A function has the name of its file, or of the
 * first word of it, before its own name. */
#ifndef LNRNN_ONNXRUNTIME_PLUGIN_H
#define LNRNN_ONNXRUNTIME_PLUGIN_H

#include "onnxruntime/runtime.h"

/* The inputs of the operators RNN, LSTM and GRU, and their outputs. DynamicQuantizeLSTM has more inputs. */
enum { X, W, R, B, LENGTHS, H0, C0, PEEPHOLES, INPUTS };
enum { Y, Y_H, Y_C, OUTPUTS };

/* W or R of a DynamicQuantizeLSTM: (D, n, 4 * H). A weight is an integer minus its zero point, times its
 * scale. */
typedef struct {
    int type; /* ORT_INT8 or ORT_UINT8, of data and zero */
    const void *data, *zero;
    const float *scale;
    size_t scale_columns, zero_columns; /* 4 * H: each column has its own; 1: a direction has one */
} quantized_weight;

/* A node RNN, LSTM or GRU that a network can replace, with D directions. Its pointers belong to the
 * runtime. */
typedef struct {
    const char *name, *kind;
    const OrtValueInfo *input[INPUTS], *output[OUTPUTS]; /* NULL: left out */
    lnrnn_description description;
    int layout;                 /* 0: X (T, B, I); 1: X (B, T, I) */
    size_t directions;          /* D */
    int contradictory;          /* the shapes of weights contradict each other or an attribute */
    double gate_factor;         /* multiplies the sums of the gates, because hard sigmoids differ in slope */
    const float *weight[B + 1]; /* at W (D, G * H, I), at R (D, G * H, H), at B (D, 2 * G * H) or NULL */
    quantized_weight
        quantized[2]; /* W and R of a DynamicQuantizeLSTM, in place of weight; else data is NULL */
} recurrent_node;

/* node.c, node_inputs.c */
/* Returns 1 if a node is an RNN, LSTM or GRU of ONNX, or a DynamicQuantizeLSTM. */
int node_is_recurrent(const ort_functions *ort, const OrtNode *node);
/* Reads a recurrent node. weights: LNRNN_WEIGHT_F32 .., of the network. Returns 1; or 0 with the reason why
 * no network can replace the node; or -1 with the reason why the node is contradictory. */
int node_read(const ort_functions *ort, const OrtNode *node, int weights, recurrent_node *read,
              char reason[REASON]);
/* networks.c */
/* The networks of a session. */
typedef struct network_list network_list;
network_list *networks_create(void);
void networks_free(network_list *list);
/* Does the same as lnrnn_network_create, but returns a network of the list if one has an equal description
 * and equal weights. weights (floats): memory with all arrays in the order of lnrnn_description_array, which
 * this function takes over. */
lnrnn_status networks_add(network_list *list, const lnrnn_description *d, const lnrnn_array *arrays,
                          size_t count, float *weights, size_t floats, lnrnn_network **network,
                          char message[LNRNN_MESSAGE]);
/* Frees the list's copies of weights, when a session has all its networks. */
void networks_close(network_list *list);
/* Returns 1 if two descriptions are equal, whatever their batch_first. */
int networks_equal(const lnrnn_description *a, const lnrnn_description *b);
/* Sets *network to the network of a node. */
lnrnn_status networks_of_node(network_list *list, const recurrent_node *read, lnrnn_network **network,
                              char message[LNRNN_MESSAGE]);
/* shape: (D, 4 * H, n) of q. Returns the integer of input i of output o, minus its zero point. */
int networks_integer(const quantized_weight *q, const size_t shape[3], size_t d, size_t o, size_t i);

/* kernel.c */
/* A tensor at a run, or a constant. */
typedef struct {
    int type;
    const int64_t *shape;
    size_t rank;
    const void *data; /* NULL, with rank 0: left out */
} tensor;

/* Working memory of runs that no run uses now. */
typedef struct memory_pool memory_pool;
memory_pool *kernel_pool_create(void);
void kernel_pool_free(memory_pool *pool);
typedef struct {
    lnrnn_workspace *workspace;
    char *block; /* (bytes) */
    size_t bytes;
} run_memory;
/* Returns the memory of a run, or NULL without memory. Sets pieces (count) of its block, each with room for
 * so many floats. */
run_memory *kernel_memory(memory_pool *pool, const size_t *floats, void **pieces, int count);
void kernel_memory_put_back(memory_pool *pool, run_memory *m);
/* Where a run finds an input: at `place` of the fused node, or, if place is -1, in a constant or nowhere. */
typedef struct {
    int place;
    int64_t shape[3];
    tensor constant;
} source;
typedef OrtStatus *kernel_compute(OrtNodeComputeInfo *, void *state, OrtKernelContext *);
/* The first members of each kernel. */
typedef struct kernel_base {
    OrtNodeComputeInfo info; /* first: the runtime has a pointer to it */
    const ort_functions *ort;
    lnrnn_network *network;
    network_list *list;
    memory_pool *pool;
    int threads;
    char label[256];     /* for errors, such as "node 'decoder' (LSTM)" */
    struct named *names; /* of inputs and outputs, whose places in the fused node the runtime says later */
    struct kept *constants;
    /* Of a claim: the id of its node, memory for a list of inputs or outputs (most), and the next claim. */
    size_t id, most;
    const void **listed;
    struct kernel_base *next;
} kernel_base;
/* The execution provider of a session. */
typedef struct {
    OrtEp interface;          /* first: the runtime has a pointer to it */
    const ort_functions *ort; /* the runtime is version 1.minor */
    const OrtLogger *logger;
    int minor, weights, threads, severity; /* weights: LNRNN_WEIGHT_F32 .. */
    int is_converted, is_advised; /* the file has a call of the domain lnrnn; the log has the advice */
    size_t recurrences;           /* in the subgraphs that the runtime has shown of a graph */
    network_list *networks;
    memory_pool *pool;
    kernel_base *claims; /* kernels that the runtime has not asked for yet */
    uint64_t *said;      /* (said_count) hashes of logged texts */
    size_t said_count;
} provider;
/* Returns a kernel of so many bytes for a node, or NULL without memory. Takes over the network. create_state
 * closes the list. */
void *kernel_new(const provider *p, size_t bytes, const OrtNode *node, lnrnn_network *network,
                 kernel_compute *compute);
/* Sets *s to the source of a value, or to none for NULL. Copies a constant. Returns 0 without memory, or for
 * a constant that cannot be read. */
int kernel_source(kernel_base *k, const OrtValueInfo *info, source *s);
/* Sets *place to that of an output when the runtime compiles the kernel, or to -1 for NULL. Returns 0 without
 * memory. */
int kernel_output(kernel_base *k, const OrtValueInfo *info, int *place);
/* Claims a node for a kernel, which this function takes over. */
OrtStatus *kernel_claim(provider *p, kernel_base *k, const OrtNode *node, OrtEpGraphSupportInfo *claims);
/* Returns the kernel of a claimed node, which has places in `fused` now; or NULL with or without a status.
 * Allocates nothing. */
OrtNodeComputeInfo *kernel_claimed(provider *p, const OrtNode *node, const OrtNode *fused,
                                   OrtStatus **status);
void kernel_claims_free(provider *p);
/* Returns an error that names the kernel. */
OrtStatus *kernel_error(const kernel_base *k, int code, const char *text, ...)
    __attribute__((format(printf, 3, 4)));
/* Check the shape of an input of a run, where -1 is any size; that lengths (B,) are 0 .. T; and that so many
 * values of each step fit into memory. */
OrtStatus *kernel_check(const kernel_base *k, const char *name, const tensor *t, const int64_t *wanted,
                        size_t rank);
OrtStatus *kernel_check_lengths(const kernel_base *k, const char *name, const tensor *t, size_t T, size_t B);
OrtStatus *kernel_check_sizes(const kernel_base *k, const char *name, size_t T, size_t B, size_t values);
/* Reads an input of a run. Without one, t->data is NULL. */
OrtStatus *kernel_tensor(const kernel_base *k, const OrtKernelContext *context, const source *s, tensor *t);
/* kernel may be NULL. */
void kernel_free(OrtNodeComputeInfo *kernel);
/* Allocates an output of `context` at this place of the fused node, float32. place -1: sets *data to NULL. */
OrtStatus *kernel_output_data(const ort_functions *ort, OrtKernelContext *context, int place,
                              const int64_t *shape, size_t rank, float **data);

/* node_run.c */
/* Returns a kernel that replaces a node, or NULL. Takes over the network. */
kernel_base *node_kernel(const provider *p, const recurrent_node *read, const OrtNode *node,
                         lnrnn_network *network);

/* call.c, call_run.c */
/* The inputs before the weights, and the outputs, of a call of a function of the domain lnrnn. The states
 * are h; h, c (LSTM); or h, c, n, m (SLSTM). */
enum { CALL_X, CALL_STATES, CALL_LENGTHS = CALL_STATES + 4, CALL_INPUTS };
enum { CALL_Y, CALL_OUTPUTS = CALL_STATES + 4 };
/* Its pointers belong to the runtime. */
typedef struct {
    lnrnn_description description;
    int step, lengths;    /* step: x is (B, D), not (T, B, D). lengths: the call has this input */
    size_t states, lines; /* lines: layers * directions */
    size_t widths[4], y_width;
    const OrtValueInfo *input[CALL_INPUTS], *output[CALL_OUTPUTS]; /* NULL: left out */
} network_call;
extern const char *const call_names[CALL_INPUTS];
/* Returns 1 if a node is of the domain lnrnn. */
int call_is(const ort_functions *ort, const OrtNode *node);
/* Returns a kernel that replaces a call; or NULL with the reason why the call is left. */
kernel_base *call_kernel(const provider *p, const OrtNode *node, char reason[REASON]);
/* Returns a kernel that runs a call, or NULL. Takes over the network. */
kernel_base *call_run(const provider *p, const network_call *c, const OrtNode *node, lnrnn_network *network);

/* advice.c */
/* Counts loops and cells in plain operators, and logs once how to convert them. within: the node with this
 * graph, or NULL. */
void advice_give(provider *p, const OrtNode *const *nodes, size_t count, const OrtNode *within);

/* provider.c */
/* Logs why a node, or for NULL those of a graph, are left to the runtime. */
void provider_leave(provider *p, const OrtNode *node, const char *reason);

#endif
