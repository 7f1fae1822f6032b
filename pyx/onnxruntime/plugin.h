/* The plug-in's own types, and the functions of its files, whose names begin with the name of the file. A
 * provider claims the nodes that it will compute. The runtime replaces each claimed node by a fused node. */
#ifndef LNRNN_ONNXRUNTIME_PLUGIN_H
#define LNRNN_ONNXRUNTIME_PLUGIN_H

#include "lnrnn.h"
#include "onnxruntime/interface.h"

enum { REASON = 512 }; /* the bytes of a buffer for a reason */
#define NO_MEMORY "there is too little memory"

/* runtime.c: reads values and attributes of the runtime. */
/* Returns 1 if the status is an error, and releases it. Otherwise returns 0. */
int runtime_failed(const ort_functions *ort, OrtStatus *status);
/* Writes why a node is left to the runtime, as printf does. Returns 0. */
int runtime_refuse(char reason[REASON], const char *text, ...) __attribute__((format(printf, 2, 3)));
/* Writes a shape such as "(3, any)", with any for -1, and returns `text`. */
const char *runtime_shape_text(const int64_t *shape, size_t rank, char text[96]);
/* Returns the name of a type of elements, such as "float64". */
const char *runtime_type_name(int type);
/* Returns the name of a value, or "" if the value is NULL or has no name. */
const char *runtime_name(const ort_functions *ort, const OrtValueInfo *value);
/* Reads the inputs and outputs of a node, at most *in and *out, and sets *in and *out to their counts. A
 * value that is left out becomes NULL. Returns 0 with a reason if the node has more, or if they cannot be
 * read. */
int runtime_values(const ort_functions *ort, const OrtNode *node, const OrtValueInfo **inputs, size_t *in,
                   const OrtValueInfo **outputs, size_t *out, char reason[REASON]);
/* Reads an attribute of at most `bytes` bytes. Returns 1 if it was read, 0 if it is left out, and -1 with a
 * reason if it has another type or more bytes. *used, if not NULL, is the number of bytes. */
int runtime_attribute(const ort_functions *ort, const OrtNode *node, const char *name, int type, void *data,
                      size_t bytes, size_t *used, char reason[REASON]);
/* Returns the type of the elements of a value, or 0 if it is NULL or no tensor. *rank is 0 if the rank is
 * unknown. shape (rank): the sizes, -1 if unknown; not written if rank is above `most`. */
int runtime_type(const ort_functions *ort, const OrtValueInfo *value, int64_t *shape, size_t most,
                 size_t *rank);
/* Sets *data to the numbers of a constant of this type, in memory of the runtime. shape (rank): the expected
 * sizes; 0 accepts any size of at least 1. Writes the actual sizes to shape. Returns 1 for success. Writes a
 * reason and returns -1 for another shape, 0 for other faults. */
int runtime_constant(const ort_functions *ort, const OrtValueInfo *value, const char *name, int type,
                     size_t *shape, size_t rank, const void **data, char reason[REASON]);

/* networks.c */
/* The networks of a session. */
typedef struct network_list network_list;
network_list *networks_create(void);
void networks_free(network_list *list);
/* Does the same as lnrnn_network_create, but returns a network of the list if its description and weights are
 * equal. arrays (count): float32, in the order of lnrnn_description_array. */
lnrnn_status networks_add(network_list *list, const lnrnn_description *d, const lnrnn_array *arrays,
                          size_t count, lnrnn_network **network, char message[LNRNN_MESSAGE]);
/* Frees the list's copies of weights, when a session has all its networks. */
void networks_close(network_list *list);
/* Returns 1 if two descriptions are equal, whatever their batch_first. */
int networks_equal(const lnrnn_description *a, const lnrnn_description *b);

/* run.c */
/* The inputs and outputs of a run, without weights. The states are h; h, c (LSTM); or h, c, n, m (SLSTM). */
enum { RUN_X, RUN_STATES, RUN_LENGTHS = RUN_STATES + 4, RUN_INPUTS };
enum { RUN_Y, RUN_OUTPUTS = RUN_STATES + 4, VALUES = RUN_INPUTS + RUN_OUTPUTS };
/* The layout of the inputs and outputs of a node, or of a call of a function. */
typedef struct {
    const char *const *names; /* names of the inputs, for errors */
    int is_node;              /* y has an axis of directions, and a sequence without steps has states 0 */
    int step, layout;         /* step: x is (B, I). layout: 0: x is (T, B, I), 1: (B, T, I) */
    size_t input_size, y_width, states, widths[4], lines; /* lines: layers * directions */
    const OrtValueInfo *values[VALUES];                   /* inputs, then outputs; NULL: left out */
} run_form;
OrtStatus *run_compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *context);

/* kernel.c */
/* An input of a run: a tensor of the runtime, or a constant of the model. */
typedef struct {
    int type;
    const int64_t *shape;
    size_t rank;
    const void *data; /* NULL, with rank 0: left out */
} run_tensor;
/* Where a run finds a value: at index `place` of the fused node's inputs or outputs. If place is -1, the
 * value is `constant`, or left out. */
typedef struct {
    int place;
    char *name;    /* the name by which `place` is found */
    int64_t *kept; /* shape and data of the constant */
    run_tensor constant;
} kernel_value;

/* Blocks of working memory of earlier runs, for later runs. */
typedef struct memory_pool memory_pool;
memory_pool *kernel_pool_create(void);
void kernel_pool_free(memory_pool *pool);
typedef struct {
    lnrnn_workspace *workspace;
    char *block; /* (bytes) */
    size_t bytes;
} run_memory;
/* floats (count). Returns the memory of a run, or NULL without memory. Sets pieces[i] to a part of its block
 * with room for floats[i] floats. */
run_memory *kernel_memory(memory_pool *pool, const size_t *floats, void **pieces, int count);
void kernel_memory_put_back(memory_pool *pool, run_memory *m);
typedef struct kernel {
    OrtNodeComputeInfo info; /* first: the runtime has a pointer to it */
    const ort_functions *ort;
    lnrnn_network *network;
    network_list *list;
    memory_pool *pool;
    int threads;
    char label[256]; /* for errors, such as "node 'decoder' (LSTM)" */
    run_form form;   /* its values are valid only when the kernel is created */
    kernel_value values[VALUES];
    /* Until the runtime compiles the node: its id, the numbers of its inputs and outputs, memory to list
     * these, and the next claimed kernel. */
    size_t id, in, out;
    const OrtValueInfo **listed;
    struct kernel *next;
} kernel;
/* The execution provider of a session. */
typedef struct {
    OrtEp interface;          /* first: the runtime has a pointer to it */
    const ort_functions *ort; /* of the runtime, version 1.minor */
    const OrtLogger *logger;
    int minor, weights, threads, severity; /* weights: LNRNN_WEIGHT_F32 .. */
    int is_converted, is_advised; /* 1: the file has a call of the domain lnrnn; 1: the advice is logged */
    size_t recurrences;           /* in the subgraphs so far; the main graph comes last (advise) */
    network_list *networks;
    memory_pool *pool;
    kernel *claims; /* claimed nodes whose kernels the runtime has not taken yet */
    uint64_t *said; /* (said_count) hashes of logged texts */
    size_t said_count;
    char *float32_nodes; /* names of nodes with float32 weights, each followed by a newline; or NULL */
} provider;
/* Returns a kernel of a node or a call, or NULL without memory. Takes over the reference to `network`. The
 * kernel's create_state calls networks_close. */
kernel *kernel_new(const provider *p, const OrtNode *node, lnrnn_network *network, const run_form *form);
/* Claims a node for a kernel, which this function takes over. */
OrtStatus *kernel_claim(provider *p, kernel *k, const OrtNode *node, OrtEpGraphSupportInfo *claims);
/* Returns the kernel of a claimed node, and sets the places of its values in `fused`. Returns NULL if the
 * node was not claimed, or with *status after an error. Allocates nothing. */
OrtNodeComputeInfo *kernel_claimed(provider *p, const OrtNode *node, const OrtNode *fused,
                                   OrtStatus **status);
void kernel_claims_free(provider *p);
/* Returns an error that names the kernel. */
OrtStatus *kernel_error(const kernel *k, int code, const char *text, ...)
    __attribute__((format(printf, 3, 4)));
/* Reads input i of a run. If the input is left out, t->data is NULL. */
OrtStatus *kernel_tensor(const kernel *k, const OrtKernelContext *context, int i, run_tensor *t);
/* Allocates output i of a run, float32. Sets *data to NULL if the output is left out. */
OrtStatus *kernel_output(const kernel *k, OrtKernelContext *context, int i, const int64_t *shape, size_t rank,
                         float **data);
/* kernel may be NULL. */
void kernel_free(OrtNodeComputeInfo *kernel);

/* node.c */
/* Returns 1 if a node is an RNN, LSTM or GRU of ONNX, or a DynamicQuantizeLSTM. */
int node_is_recurrent(const ort_functions *ort, const OrtNode *node);
/* Returns a kernel that replaces a node; or NULL, with the reason why no network replaces it. */
kernel *node_kernel(const provider *p, const OrtNode *node, char reason[REASON]);
/* Returns 1 with a reason if a node's shapes of weights contradict each other or an attribute. */
int node_is_contradictory(const provider *p, const OrtNode *node, char reason[REASON]);

/* call.c */
/* Returns 1 if a node is of the domain lnrnn. */
int call_is(const ort_functions *ort, const OrtNode *node);
/* Returns a kernel that replaces a call; or NULL with the reason why the call is left. */
kernel *call_kernel(const provider *p, const OrtNode *node, char reason[REASON]);

/* provider.c */
/* Logs why a node is left to the runtime. node NULL: logs why all nodes of a graph are left. */
void provider_leave(provider *p, const OrtNode *node, const char *reason);
/* Returns the type of a node's weights, LNRNN_WEIGHT_F32 .., by the options of the session. is_quantized: a
 * DynamicQuantizeLSTM, whose weights are int8. By default its inputs and states have 8 bits, as in the
 * runtime. With dtype int8, and in float32_nodes, they have 14 bits. */
int provider_weights(const provider *p, const OrtNode *node, int is_quantized);

#endif
