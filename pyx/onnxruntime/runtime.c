#include "onnxruntime/plugin.h"

#include <stdarg.h>
#include <stdio.h>

int runtime_failed(const ort_functions *ort, OrtStatus *status)
{
    if (status)
        ort->release_status(status);
    return status != NULL;
}

int runtime_refuse(char reason[REASON], const char *text, ...)
{
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(reason, REASON, text, arguments);
    va_end(arguments);
    return 0;
}

const char *runtime_shape_text(const int64_t *shape, size_t rank, char text[96])
{
    size_t used = (size_t)snprintf(text, 96, "(");
    for (size_t i = 0; i < rank && used < 64; i++) {
        used += (size_t)snprintf(text + used, 96 - used, i ? ", " : "");
        used += (size_t)(shape[i] < 0 ? snprintf(text + used, 96 - used, "any")
                                      : snprintf(text + used, 96 - used, "%lld", (long long)shape[i]));
    }
    snprintf(text + used, 96 - used, "%s)", rank == 1 ? "," : "");
    return text;
}

const char *runtime_type_name(int type)
{
    static const char *const names[] = {"no tensor", "float32", "uint8",  "int8", "uint16",  "int16",
                                        "int32",     "int64",   "string", "bool", "float16", "float64"};
    return (size_t)type < sizeof names / sizeof *names ? names[type] : "another type";
}

const char *runtime_name(const ort_functions *ort, const OrtValueInfo *value)
{
    const char *name = "";
    if (value)
        runtime_failed(ort, ort->value_name(value, &name));
    return name;
}

int runtime_values(const ort_functions *ort, const OrtNode *node, const OrtValueInfo **inputs, size_t *in,
                   const OrtValueInfo **outputs, size_t *out, char reason[REASON])
{
    const size_t most_in = *in, most_out = *out;
    if (runtime_failed(ort, ort->node_input_count(node, in))
        || runtime_failed(ort, ort->node_output_count(node, out)) || *in > most_in || *out > most_out
        || runtime_failed(ort, ort->node_inputs(node, inputs, *in))
        || runtime_failed(ort, ort->node_outputs(node, outputs, *out)))
        return runtime_refuse(reason,
                              "the node must have at most %zu inputs and %zu outputs, got %zu and %zu",
                              most_in, most_out, *in, *out);
    for (size_t k = 0; k < *in + *out; k++) {
        const OrtValueInfo **const value = k < *in ? &inputs[k] : &outputs[k - *in];
        *value = *runtime_name(ort, *value) ? *value : NULL;
    }
    return 1;
}

int runtime_attribute(const ort_functions *ort, const OrtNode *node, const char *name, int type, void *data,
                      size_t bytes, size_t *used, char reason[REASON])
{
    const OrtOpAttr *found = NULL;
    int is = 0;
    size_t needed = 0;
    if (runtime_failed(ort, ort->node_attribute(node, name, &found)) || !found)
        return 0;
    if (runtime_failed(ort, ort->attribute_type(found, &is)) || is != type
        || runtime_failed(ort, ort->read_attribute(found, type, data, bytes, &needed))) {
        runtime_refuse(reason,
                       "attribute %s must have ONNX's attribute type %d and at most %zu bytes, got type %d",
                       name, type, bytes, is);
        return -1;
    }
    if (used)
        *used = needed;
    return 1;
}

int runtime_type(const ort_functions *ort, const OrtValueInfo *value, int64_t *shape, size_t most,
                 size_t *rank)
{
    const OrtTypeInfo *type = NULL;
    const OrtTensorTypeAndShapeInfo *tensor = NULL;
    int element = 0;
    *rank = 0;
    if (!value || runtime_failed(ort, ort->value_type(value, &type))
        || !type /* GCOVR_EXCL_BR_LINE: each value of a graph has a type */
        || runtime_failed(ort, ort->tensor_info_of_type(type, &tensor)) || !tensor
        || runtime_failed(ort, ort->element_type(tensor, &element)))
        return 0;
    if (runtime_failed(ort, ort->axis_count(tensor, rank))
        || (*rank && *rank <= most && runtime_failed(ort, ort->axis_sizes(tensor, shape, *rank))))
        *rank = 0;
    return element;
}

int runtime_constant(const ort_functions *ort, const OrtValueInfo *value, const char *name, int type,
                     size_t *shape, size_t rank, const void **data, char reason[REASON])
{
    bool is_constant = false;
    const OrtValue *given = NULL;
    const int64_t *sizes = NULL;
    size_t dimensions = 0;
    int is = 0;
    if (!value || runtime_failed(ort, ort->is_constant(value, &is_constant)) || !is_constant
        || runtime_failed(ort, ort->initializer_value(value, &given)))
        return runtime_refuse(reason, "input %s must be a constant, got %s", name,
                              value ? "an input of the graph or a computed value" : "none");
    if (runtime_failed(ort, ort->tensor_shape(given, &is, &sizes, &dimensions)) || is != type)
        return runtime_refuse(reason, "input %s must be of %s, got %s", name, runtime_type_name(type),
                              runtime_type_name(is));
    if (runtime_failed(ort, ort->get_tensor_data(given, data)))
        return runtime_refuse(reason, "input %s cannot be read", name);
    int fits = dimensions == rank;
    int64_t wanted[3];
    char should[96], seen[96];
    for (size_t k = 0; k < rank; k++)
        wanted[k] = shape[k] ? (int64_t)shape[k] : -1;
    for (size_t k = 0; k < rank && fits; k++) {
        fits = sizes[k] > 0 && (!shape[k] || shape[k] == (size_t)sizes[k]);
        shape[k] = (size_t)sizes[k];
    }
    if (!fits)
        runtime_refuse(reason, "input %s must have shape %s, got %s", name,
                       runtime_shape_text(wanted, rank, should), runtime_shape_text(sizes, dimensions, seen));
    return fits ? 1 : -1;
}
