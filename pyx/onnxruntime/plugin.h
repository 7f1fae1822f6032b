/* The plug-in's own types, for its three files: reading nodes, running them, and the provider. */
#ifndef LNRNN_ONNXRUNTIME_PLUGIN_H
#define LNRNN_ONNXRUNTIME_PLUGIN_H

#include "lnrnn.h"
#include "onnxruntime/interface.h"

enum { REASON = 512 }; /* bytes of a text */

/* The inputs of the operators RNN, LSTM and GRU, and their outputs. */
enum { X, W, R, B, LENGTHS, H0, C0, PEEPHOLES, INPUTS };
enum { Y, Y_H, Y_C, OUTPUTS };

/* A node RNN, LSTM or GRU that a network can replace, with D directions. Its pointers belong to the runtime. */
typedef struct {
    const char *name, *kind;
    const OrtValueInfo *input[INPUTS], *output[OUTPUTS]; /* NULL: left out */
    lnrnn_description description;
    int layout;                 /* 0: X (T, B, I); 1: X (B, T, I) */
    size_t directions;          /* D */
    double gate_factor;         /* multiplies the sums of the gates, because hard sigmoids differ in slope */
    const float *weight[B + 1]; /* at W (D, G * H, I), at R (D, G * H, H), at B (D, 2 * G * H) or NULL */
} recurrent_node;

/* node.c */
/* Returns 1 if a node is an RNN, LSTM or GRU of ONNX. */
int node_is_recurrent(const ort_functions *ort, const OrtNode *node);
/* Reads a recurrent node. Returns 1, or 0 with the reason why no network can replace the node. */
int node_read(const ort_functions *ort, const OrtNode *node, recurrent_node *read, char reason[REASON]);
/* Creates the network of a node. weights: LNRNN_WEIGHT_F32 .. */
lnrnn_status node_network(const recurrent_node *read, int weights, lnrnn_network **network,
                          char message[LNRNN_MESSAGE]);
/* Returns a status that is not NULL as 1, and releases it. */
int failed(const ort_functions *ort, OrtStatus *status);
/* Returns the name of a value, or "" for none. */
const char *name_of(const ort_functions *ort, const OrtValueInfo *value);

/* run.c */
/* Working memory of runs that no run uses now. */
typedef struct memory_pool memory_pool;
memory_pool *pool_create(void);
void pool_free(memory_pool *pool);
/* Returns a kernel that replaces the node `read` by `fused`, or NULL with a status. Takes over the network. */
OrtNodeComputeInfo *kernel_create(const ort_functions *ort, const recurrent_node *read, const OrtNode *fused,
                                  lnrnn_network *network, memory_pool *pool, int threads, OrtStatus **status);
void kernel_free(OrtNodeComputeInfo *kernel);

#endif
