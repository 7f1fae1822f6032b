/* Functions of node.c, for attributes, and node_inputs.c. */
#ifndef LNRNN_ONNXRUNTIME_NODE_H
#define LNRNN_ONNXRUNTIME_NODE_H

#include "onnxruntime/plugin.h"

/* DynamicQuantizeLSTM has the inputs W_scale, W_zero_point, R_scale and R_zero_point too. */
enum { MOST_INPUTS = INPUTS + 4 };

/* Reads an integer, which has a default. Returns 0 with a reason if it has another type. */
int node_integer(const ort_functions *ort, const OrtNode *node, const char *name, int64_t *value,
                 char reason[REASON]);
/* Reads the weights, and checks the types of the other inputs. all (MOST_INPUTS): the inputs. G: the
 * gates. */
int node_inputs(const ort_functions *ort, const OrtNode *node, const OrtValueInfo *const *all, size_t G,
                int is_quantized, recurrent_node *read, char reason[REASON]);

#endif
