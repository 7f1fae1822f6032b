/* The plug-in's own types. cells.h has those for steps of cells in plain operators. */
#ifndef LNRNN_ONNXRUNTIME_PLUGIN_H
#define LNRNN_ONNXRUNTIME_PLUGIN_H

#include "lnrnn.h"
#include "onnxruntime/interface.h"

enum { REASON = 512 }; /* bytes of a text */
#define NO_MEMORY "there is too little memory"

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
/* Returns a status that is not NULL as 1, and releases it. */
int failed(const ort_functions *ort, OrtStatus *status);
/* Returns the name of a value, or "" for none. */
const char *name_of(const ort_functions *ort, const OrtValueInfo *value);

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
/* Sets *network to the network of a node. */
lnrnn_status node_network(network_list *list, const recurrent_node *read, lnrnn_network **network,
                          char message[LNRNN_MESSAGE]);
/* shape: (D, 4 * H, n) of q. Returns the integer of input i of output o, minus its zero point. */
int quantized_integer(const quantized_weight *q, const size_t shape[3], size_t d, size_t o, size_t i);

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
memory_pool *pool_create(void);
void pool_free(memory_pool *pool);
typedef struct {
    lnrnn_workspace *workspace;
    char *block; /* (bytes) */
    size_t bytes;
} run_memory;
/* Returns the memory of a run, or NULL without memory. Sets pieces (count) of its block, each with room for
 * so many floats. */
run_memory *memory_take(memory_pool *pool, const size_t *floats, void **pieces, int count);
void memory_put_back(memory_pool *pool, run_memory *m);
/* Where a run finds an input: at `place` of the fused node, or, if place is -1, in a constant or nowhere.
 * text: for errors, such as "x ('audio')". */
typedef struct {
    char text[96];
    int place;
    int64_t shape[3];
    void *owned;
    tensor constant;
} source;
typedef OrtStatus *kernel_compute(OrtNodeComputeInfo *, void *state, OrtKernelContext *);
typedef void kernel_release(OrtNodeComputeInfo *);
/* The name of an input or output, whose place in the fused node the runtime says later. */
typedef struct named {
    struct named *next;
    int is_output, *place;
    char name[];
} named;
/* The first members of each kernel. */
typedef struct kernel_base {
    OrtNodeComputeInfo info; /* first: the runtime has a pointer to it */
    kernel_release *release; /* frees the other members, or NULL */
    const ort_functions *ort;
    lnrnn_network *network;
    network_list *list;
    memory_pool *pool;
    int threads;
    char label[256]; /* for errors, such as "node 'decoder' (LSTM)" */
    named *names;
    /* Of a claim: the least id of its nodes, memory for a list of its nodes or values (most), and the next
     * claim. */
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
    network_list *networks;
    memory_pool *pool;
    kernel_base *claims; /* kernels that the runtime has not asked for yet */
    uint64_t *said;      /* (said_count) hashes of logged texts */
    size_t said_count;
} provider;
/* Returns a kernel of so many bytes, or NULL without memory. Takes over the network. create_state closes the
 * list. */
void *kernel_new(const provider *p, size_t bytes, lnrnn_network *network, kernel_compute *compute,
                 kernel_release *release);
/* Sets *s to the source of a value, or to none for NULL. Copies a constant. Returns 0 without memory, or for
 * a constant that cannot be read. */
int source_of(kernel_base *k, const char *role, const OrtValueInfo *info, source *s);
/* Sets *place to that of an output when the runtime compiles the kernel, or to -1 for NULL. Returns 0 without
 * memory. */
int output_of(kernel_base *k, const OrtValueInfo *info, int *place);
/* Claims nodes for a kernel, which this function takes over. */
OrtStatus *kernel_claim(provider *p, kernel_base *k, const OrtNode *const *nodes, size_t count,
                        OrtEpGraphSupportInfo *claims);
/* Returns the kernel of a claim, which has places in `fused` now; or NULL with or without a status. Allocates
 * nothing. */
OrtNodeComputeInfo *kernel_claimed(provider *p, const OrtGraph *graph, const OrtNode *fused,
                                   OrtStatus **status);
void claims_free(provider *p);
/* Names the kernel after a node of the model. kind: "node", or words before its name. */
void kernel_label(kernel_base *k, const char *kind, const OrtNode *node);
/* Return an error that names the kernel, and the input. */
OrtStatus *kernel_error(const kernel_base *k, int code, const char *text, ...)
    __attribute__((format(printf, 3, 4)));
OrtStatus *kernel_refuse(const kernel_base *k, const source *input, const char *text);
/* Reads an input of a run. Without one, t->data is NULL. */
OrtStatus *source_tensor(const kernel_base *k, const OrtKernelContext *context, const source *s, tensor *t);
/* kernel may be NULL. */
void kernel_free(OrtNodeComputeInfo *kernel);
/* Allocates an output of `context` at this place of the fused node, float32. place -1: sets *data to NULL. */
OrtStatus *kernel_output_at(const ort_functions *ort, OrtKernelContext *context, int place,
                            const int64_t *shape, size_t rank, float **data);

/* run.c */
/* Returns a kernel that replaces a node, or NULL. Takes over the network. */
kernel_base *node_kernel(const provider *p, const recurrent_node *read, lnrnn_network *network);

/* provider.c */
/* Logs why a node, or for NULL those of a graph, are left to the runtime. */
void leave(provider *p, const OrtNode *node, const char *reason);

/* claims.c */
/* Claims all steps of cells in a graph, and Loops and Scans of steps. within: the node with this graph, or
 * NULL. */
OrtStatus *steps_claim(provider *p, const OrtGraph *graph, const OrtNode *within,
                       OrtEpGraphSupportInfo *claims);

#endif
