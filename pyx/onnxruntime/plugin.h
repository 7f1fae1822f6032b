/* The plug-in's own types, for its files: reading nodes, their networks, running them, and the provider. */
#ifndef LNRNN_ONNXRUNTIME_PLUGIN_H
#define LNRNN_ONNXRUNTIME_PLUGIN_H

#include "lnrnn.h"
#include "onnxruntime/interface.h"

enum { REASON = 512 }; /* bytes of a text */

/* The inputs of the operators RNN, LSTM and GRU, and their outputs. DynamicQuantizeLSTM has more inputs. */
enum { X, W, R, B, LENGTHS, H0, C0, PEEPHOLES, INPUTS };
enum { Y, Y_H, Y_C, OUTPUTS };

/* W or R of a DynamicQuantizeLSTM: (D, n, 4 * H). A weight is an integer minus its zero point, times its scale. */
typedef struct {
    int type; /* ORT_INT8 or ORT_UINT8, of data and zero */
    const void *data, *zero;
    const float *scale;
    size_t scale_columns, zero_columns; /* 4 * H: each column has its own; 1: a direction has one */
} quantized_weight;

/* A node RNN, LSTM or GRU that a network can replace, with D directions. Its pointers belong to the runtime. */
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

/* node.c */
/* Returns 1 if a node is an RNN, LSTM or GRU of ONNX, or a DynamicQuantizeLSTM. */
int node_is_recurrent(const ort_functions *ort, const OrtNode *node);
/* Reads a recurrent node. weights: LNRNN_WEIGHT_F32 .., of the network. Returns 1; or 0 with the reason why no network
 * can replace the node; or -1 with the reason why the node is contradictory. */
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
/* Does the same as lnrnn_network_create, but returns a network of the list if one has an equal description and equal weights.
 * weights (floats): memory with all arrays in the order of lnrnn_description_array, which this function takes over. */
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

/* run.c */
/* Working memory of runs that no run uses now. */
typedef struct memory_pool memory_pool;
memory_pool *pool_create(void);
void pool_free(memory_pool *pool);
/* Returns a kernel that replaces the node `read` by `fused`, or NULL with a status. Takes over the network. The session
 * has all its networks when it calls the kernel's create_state, which closes `list`. */
OrtNodeComputeInfo *kernel_create(const ort_functions *ort, const recurrent_node *read, const OrtNode *fused,
                                  lnrnn_network *network, network_list *list, memory_pool *pool, int threads,
                                  OrtStatus **status);
void kernel_free(OrtNodeComputeInfo *kernel);

#endif
