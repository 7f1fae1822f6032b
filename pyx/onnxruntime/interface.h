/* The part of ONNX Runtime's C interface that the plug-in uses, in declarations of our own.
 *
 * A runtime gives its functions as tables of pointers. The position of a function in its table never changes,
 * and new functions are added at the end. FUNCTIONS and PROVIDER_FUNCTIONS list each function used here with
 * its position. tests/ort/test_interface.py checks positions against the installed runtime. Structures that
 * the runtime reads from the plug-in have unused members at their end, all NULL, because a newer runtime may
 * read further. */
#ifndef LNRNN_ONNXRUNTIME_INTERFACE_H
#define LNRNN_ONNXRUNTIME_INTERFACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of the interface that the plug-in requests: ONNX Runtime 1.24 has it. */
enum { ORT_VERSION = 24 };
/* Earlier runtimes give two compiled nodes in different subgraphs the same name, and then refuse the
 * model. */
enum { ORT_VERSION_SUBGRAPHS = 25 };
/* Objects of the runtime. */
typedef struct OrtStatus OrtStatus; /* NULL: success */
typedef struct OrtLogger OrtLogger;
typedef struct OrtValue OrtValue;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtHardwareDevice OrtHardwareDevice;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtGraph OrtGraph;
typedef struct OrtNode OrtNode;
typedef struct OrtValueInfo OrtValueInfo;
typedef struct OrtOpAttr OrtOpAttr;
typedef struct OrtEpGraphSupportInfo OrtEpGraphSupportInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef const char *const *ort_texts;

enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_NOT_IMPLEMENTED = 9 };              /* codes of a status */
enum { ORT_FLOAT = 1, ORT_UINT8 = 2, ORT_INT8 = 3, ORT_INT32 = 6 };                    /* element types */
enum { ORT_INT = 1, ORT_FLOAT_ = 3, ORT_FLOATS = 4, ORT_STRING = 5, ORT_STRINGS = 6 }; /* attribute types */
enum { ORT_CPU = 0 };                                                                  /* kinds of devices */
enum { ORT_LOG_INFO = 1, ORT_LOG_WARNING = 2 };

/* F(name, position, type of the result, parameters) for each function. A function that returns OrtStatus *
 * writes its result through the last pointer. */
#define FUNCTIONS(F)                                                                                         \
    F(create_status, 0, OrtStatus *, (int code, const char *message))                                        \
    F(get_tensor_mutable_data, 51, OrtStatus *, (OrtValue *, void **))                                       \
    F(tensor_info_of_type, 55, OrtStatus *, (const OrtTypeInfo *, const OrtTensorTypeAndShapeInfo **))       \
    F(element_type, 60, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, int *))                             \
    F(axis_count, 61, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, size_t *))                            \
    F(axis_sizes, 62, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, int64_t *, size_t))                   \
    F(kernel_input, 90, OrtStatus *, (const OrtKernelContext *, size_t, const OrtValue **))                  \
    F(kernel_output, 91, OrtStatus *, (OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **))    \
    F(release_status, 93, void, (OrtStatus *))                                                               \
    F(log_message, 247, OrtStatus *,                                                                         \
      (const OrtLogger *, int severity, const char *, const char *file, int line, const char *function))     \
    F(read_attribute, 272, OrtStatus *, (const OrtOpAttr *, int type, void *, size_t bytes, size_t *needed)) \
    F(value_name, 289, OrtStatus *, (const OrtValueInfo *, const char **))                                   \
    F(value_type, 290, OrtStatus *, (const OrtValueInfo *, const OrtTypeInfo **))                            \
    F(get_pairs, 298, void, (const OrtKeyValuePairs *, ort_texts *keys, ort_texts *values, size_t *))        \
    F(release_pairs, 300, void, (OrtKeyValuePairs *))                                                        \
    F(device_type, 307, int, (const OrtHardwareDevice *))                                                    \
    F(provider_table, 317, const void *, (void))                                                             \
    F(value_producer, 323, OrtStatus *, (const OrtValueInfo *, const OrtNode **, size_t *output))            \
    F(initializer_value, 326, OrtStatus *, (const OrtValueInfo *, const OrtValue **))                        \
    F(is_constant, 331, OrtStatus *, (const OrtValueInfo *, bool *))                                         \
    F(graph_node_count, 344, OrtStatus *, (const OrtGraph *, size_t *))                                      \
    F(graph_nodes, 345, OrtStatus *, (const OrtGraph *, const OrtNode **, size_t))                           \
    F(graph_parent, 346, OrtStatus *, (const OrtGraph *, const OrtNode **))                                  \
    F(node_id, 348, OrtStatus *, (const OrtNode *, size_t *))                                                \
    F(node_name, 349, OrtStatus *, (const OrtNode *, const char **))                                         \
    F(node_operator, 350, OrtStatus *, (const OrtNode *, const char **))                                     \
    F(node_domain, 351, OrtStatus *, (const OrtNode *, const char **))                                       \
    F(node_version, 352, OrtStatus *, (const OrtNode *, int *))                                              \
    F(node_input_count, 353, OrtStatus *, (const OrtNode *, size_t *))                                       \
    F(node_inputs, 354, OrtStatus *, (const OrtNode *, const OrtValueInfo **, size_t))                       \
    F(node_output_count, 355, OrtStatus *, (const OrtNode *, size_t *))                                      \
    F(node_outputs, 356, OrtStatus *, (const OrtNode *, const OrtValueInfo **, size_t))                      \
    F(node_attribute_count, 359, OrtStatus *, (const OrtNode *, size_t *))                                   \
    F(node_attribute, 361, OrtStatus *, (const OrtNode *, const char *name, const OrtOpAttr **))             \
    F(attribute_type, 363, OrtStatus *, (const OrtOpAttr *, int *))                                          \
    F(get_tensor_data, 378, OrtStatus *, (const OrtValue *, const void **))                                  \
    F(session_entries, 379, OrtStatus *, (const OrtSessionOptions *, OrtKeyValuePairs **))                   \
    F(tensor_shape, 414, OrtStatus *, (const OrtValue *, int *type, const int64_t **shape, size_t *rank))

/* The functions in the table that provider_table returns. */
typedef struct OrtEpFactory OrtEpFactory;
typedef struct OrtEp OrtEp;
typedef struct OrtNodeFusionOptions OrtNodeFusionOptions;
typedef struct OrtNodeComputeInfo OrtNodeComputeInfo;
#define PROVIDER_FUNCTIONS(F)                                                                         \
    F(create_device, 0, OrtStatus *,                                                                  \
      (OrtEpFactory *, const OrtHardwareDevice *, const OrtKeyValuePairs *, const OrtKeyValuePairs *, \
       OrtEpDevice **))                                                                               \
    F(claim, 2, OrtStatus *,                                                                          \
      (OrtEpGraphSupportInfo *, const OrtNode *const *, size_t, const OrtNodeFusionOptions *))

/* The functions of a runtime, from its tables. */
typedef struct {
#define MEMBER(name, position, result, parameters) result(*name) parameters;
    FUNCTIONS(MEMBER)
    PROVIDER_FUNCTIONS(MEMBER)
#undef MEMBER
} ort_functions;

/* The structure that the runtime passes to the plug-in. For a version that the runtime lacks, `table` prints
 * a line and returns NULL. */
typedef struct {
    const void *(*table)(uint32_t version);
    const char *(*version)(void); /* "1.32.0" */
} OrtApiBase;

/* A provider for one session. */
struct OrtEp {
    uint32_t version; /* ORT_VERSION */
    const char *(*name)(const OrtEp *);
    /* Called for the main graph and for each graph within a node If, Loop or Scan. */
    OrtStatus *(*get_capability)(OrtEp *, const OrtGraph *, OrtEpGraphSupportInfo *);
    /* Each claimed node is given as a graph, and is replaced by a fused node. */
    OrtStatus *(*compile)(OrtEp *, const OrtGraph **graphs, const OrtNode **fused, size_t count,
                          OrtNodeComputeInfo **kernels, OrtNode **saved);
    void (*release_kernels)(OrtEp *, OrtNodeComputeInfo **kernels, size_t count);
    void *unused[60];
};

/* A compiled node. Calls of `compute` may run at the same time with the same state. */
struct OrtNodeComputeInfo {
    uint32_t version;
    OrtStatus *(*create_state)(OrtNodeComputeInfo *, void *context, void **state);
    OrtStatus *(*compute)(OrtNodeComputeInfo *, void *state, OrtKernelContext *);
    void (*release_state)(OrtNodeComputeInfo *, void *state);
    void *unused[4];
};

/* The form in which claimed nodes are fused. */
struct OrtNodeFusionOptions {
    uint32_t version;
    bool drop_constants; /* constants are not inputs of the fused node, so that the runtime can free them */
    void *unused[4];
};

/* Creates providers. A runtime has one factory for each plug-in library. */
struct OrtEpFactory {
    uint32_t version;
    const char *(*name)(const OrtEpFactory *);
    const char *(*vendor)(const OrtEpFactory *);
    OrtStatus *(*devices)(OrtEpFactory *, const OrtHardwareDevice *const *, size_t, OrtEpDevice **,
                          size_t most, size_t *count);
    OrtStatus *(*create)(OrtEpFactory *, const OrtHardwareDevice *const *, const OrtKeyValuePairs *const *,
                         size_t, const OrtSessionOptions *, const OrtLogger *, OrtEp **);
    void (*release)(OrtEpFactory *, OrtEp *);
    uint32_t (*vendor_id)(const OrtEpFactory *);
    const char *(*provider_version)(const OrtEpFactory *);
    void *unused_1[3];
    OrtStatus *(*create_data_transfer)(OrtEpFactory *, void **transfer); /* NULL: the data is on the CPU */
    bool (*is_stream_aware)(const OrtEpFactory *);
    void *unused_2[60];
};

#endif
