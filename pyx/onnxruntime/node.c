/* Reads nodes RNN, LSTM and GRU of ONNX, opsets 7 to 22, and DynamicQuantizeLSTM of ONNX Runtime. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "onnxruntime/plugin.h"

/* MOST_INPUTS: DynamicQuantizeLSTM has the inputs W_scale, W_zero_point, R_scale and R_zero_point too. */
enum { MOST_FUNCTIONS = 6, MOST_NAMES = 256, MOST_INPUTS = INPUTS + 4, QUANTIZED = 3 };

/* Of each operator: the domain, the cell, and the numbers of gates G and of activations of a direction. */
static const struct {
    const char *operator, *domain;
    int cell, functions;
    size_t gates;
} OPERATORS[] = {{"RNN", "ai.onnx", LNRNN_RNN, 1, 1},
                 {"LSTM", "ai.onnx", LNRNN_LSTM, 3, 4},
                 {"GRU", "ai.onnx", LNRNN_GRU, 2, 3},
                 {"DynamicQuantizeLSTM", "com.microsoft", LNRNN_LSTM, 3, 4}};

int failed(const ort_functions *ort, OrtStatus *status)
{
    if (status)
        ort->release_status(status);
    return status != NULL;
}

/* Writes a reason. Returns 0. */
static int refuse(char reason[REASON], const char *text, ...) __attribute__((format(printf, 2, 3)));
static int refuse(char reason[REASON], const char *text, ...)
{
    va_list arguments;
    va_start(arguments, text);
    vsnprintf(reason, REASON, text, arguments);
    va_end(arguments);
    return 0;
}

const char *name_of(const ort_functions *ort, const OrtValueInfo *value)
{
    const char *name = NULL;
    return !value || failed(ort, ort->value_name(value, &name)) || !name ? "" : name;
}

/* Returns the row of OPERATORS of a node, or -1. */
static int row_of(const ort_functions *ort, const OrtNode *node)
{
    const char *operator = NULL, *domain = NULL;
    if (failed(ort, ort->node_operator(node, &operator)) || failed(ort, ort->node_domain(node, &domain))
        || !operator)
        return -1;
    if (!domain || !*domain)
        domain = "ai.onnx";
    for (int k = 0; k < (int)(sizeof OPERATORS / sizeof *OPERATORS); k++)
        if (!strcmp(operator, OPERATORS[k].operator) && !strcmp(domain, OPERATORS[k].domain))
            return k;
    return -1;
}

int node_is_recurrent(const ort_functions *ort, const OrtNode *node) { return row_of(ort, node) >= 0; }

/* --- attributes ----------------------------------------------------------------------------------------- */

/* Reads an attribute of at most `bytes` bytes. Returns 1 if it was read, 0 if it is left out, and -1 with a reason if
 * it has another type or more bytes. *used, if not NULL, is the number of bytes. */
static int attribute(const ort_functions *ort, const OrtNode *node, const char *name, int type, void *data,
                     size_t bytes, size_t *used, char reason[REASON])
{
    const OrtOpAttr *found = NULL;
    int is = 0;
    size_t needed = 0;
    if (failed(ort, ort->node_attribute(node, name, &found)) || !found)
        return 0;
    if (failed(ort, ort->attribute_type(found, &is)) || is != type
        || failed(ort, ort->read_attribute(found, type, data, bytes, &needed)) || needed > bytes) {
        refuse(reason, "attribute %s cannot be read as its type", name);
        return -1;
    }
    if (used)
        *used = needed;
    return 1;
}

/* Reads an integer, which has a default. Returns 0 with a reason if it has another type. */
static int integer(const ort_functions *ort, const OrtNode *node, const char *name, int64_t *value,
                   char reason[REASON])
{
    return attribute(ort, node, name, ORT_INT, value, sizeof *value, NULL, reason) >= 0;
}

/* An activation with its parameters, which are 0 if it has none. */
typedef struct {
    char name[16];
    float alpha, beta;
} function;

static int has_alpha(const char *name)
{
    static const char *const names[] = {"affine",          "hardsigmoid", "leakyrelu",
                                        "thresholdedrelu", "elu",         "scaledtanh"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        if (!strcasecmp(name, names[k]))
            return 1;
    return 0;
}

static int has_beta(const char *name)
{
    return !strcasecmp(name, "affine") || !strcasecmp(name, "hardsigmoid") || !strcasecmp(name, "scaledtanh");
}

/* Sets alpha (which = 0) or beta (1) of n functions. The attribute has a number for each function that uses one. Some
 * exporters write a number for each function. */
static int parameters(const ort_functions *ort, const OrtNode *node, function *f, size_t n, int which,
                      char reason[REASON])
{
    float given[MOST_FUNCTIONS];
    const char *const name = which ? "activation_beta" : "activation_alpha";
    size_t bytes = 0, users = 0, next = 0;
    if (attribute(ort, node, name, ORT_FLOATS, given, sizeof given, &bytes, reason) < 0)
        return 0;
    const size_t count = bytes / sizeof *given;
    for (size_t i = 0; i < n; i++)
        users += (size_t)(which ? has_beta(f[i].name) : has_alpha(f[i].name));
    for (size_t i = 0; i < n; i++) {
        float *const value = which ? &f[i].beta : &f[i].alpha;
        if (!(which ? has_beta(f[i].name) : has_alpha(f[i].name)))
            continue;
        if (count && count == users)
            *value = given[next++];
        else if (count == n)
            *value = given[i];
        else if (!count && !strcasecmp(f[i].name, "hardsigmoid"))
            *value = which ? 0.5f : 0.2f;
        else
            return refuse(reason, "attribute %s must have %zu numbers, got %zu", name, users, count);
    }
    return 1;
}

/* Reads activations, activation_alpha and activation_beta into the description. */
static int activations(const ort_functions *ort, const OrtNode *node, int row, recurrent_node *read,
                       char reason[REASON])
{
    char names[MOST_NAMES] = {0};
    function f[MOST_FUNCTIONS] = {{{0}, 0, 0}};
    size_t bytes = 0, n = 0;
    const size_t each = (size_t)OPERATORS[row].functions;
    const int given =
        attribute(ort, node, "activations", ORT_STRINGS, names, sizeof names - 1, &bytes, reason);
    if (given <= 0)
        return !given;
    for (const char *at = names; at < names + bytes && *at; at += strlen(at) + 1, n++) {
        if (n == MOST_FUNCTIONS || strlen(at) >= sizeof f->name)
            return refuse(reason, "attribute activations must have %zu known names", each * read->directions);
        strcpy(f[n].name, at);
    }
    if (!n)
        return 1;
    if (n == 2 && each == 1 && read->directions == 1 && !strcasecmp(f[0].name, "tanh")
        && !strcasecmp(f[1].name, "tanh"))
        n = 1; /* the runtime writes an RNN's default, which has a name for each of two directions */
    if (n != each * read->directions)
        return refuse(reason, "attribute activations must have %zu names, got %zu", each * read->directions,
                      n);
    if (!parameters(ort, node, f, n, 0, reason) || !parameters(ort, node, f, n, 1, reason))
        return 0;
    for (size_t i = each; i < n; i++)
        if (strcasecmp(f[i].name, f[i - each].name) || f[i].alpha != f[i - each].alpha
            || f[i].beta != f[i - each].beta)
            return refuse(reason, "attribute activations must be the same in both directions");
    if (OPERATORS[row].cell == LNRNN_RNN) {
        static const char *const known[] = {"tanh", "relu", "sigmoid", "affine"};
        for (int act = 0; act < 4; act++)
            if (!strcasecmp(f->name, known[act]) && (act < 3 || (f->alpha == 1 && f->beta == 0))) {
                read->description.act = act; /* LNRNN_ACT_TANH .. */
                return 1;
            }
        return refuse(reason, "activation %s is not Tanh, Relu, Sigmoid, or Affine with alpha 1 and beta 0",
                      f->name);
    }
    for (size_t i = 1; i < each; i++)
        if (strcasecmp(f[i].name, "tanh"))
            return refuse(reason, "activation %s of the candidate or the output is not Tanh", f[i].name);
    if (!strcasecmp(f->name, "sigmoid"))
        return 1;
    if (strcasecmp(f->name, "hardsigmoid") || !(f->alpha > 0) || f->beta != 0.5f)
        return refuse(reason, "activation %s of the gates is not Sigmoid, or HardSigmoid with beta 0.5",
                      f->name);
    read->description.gate_activation = LNRNN_GATES_HARD_SIGMOID;
    read->gate_factor = 6 * (double)f->alpha; /* clip(alpha a + 1/2) is clip(6 alpha a / 6 + 1/2) */
    return 1;
}

/* Reads all attributes but hidden_size. */
static int attributes(const ort_functions *ort, const OrtNode *node, int row, recurrent_node *read,
                      char reason[REASON])
{
    char direction[16] = {0}; /* the runtime writes no 0 after a string */
    float clip = 0;
    int64_t layout = 0, input_forget = 0, before = 0;
    const int directed =
        attribute(ort, node, "direction", ORT_STRING, direction, sizeof direction - 1, NULL, reason);
    if (directed < 0)
        return 0;
    if (!directed)
        strcpy(direction, "forward");
    read->description.bidirectional = !strcmp(direction, "bidirectional");
    read->description.reverse = !strcmp(direction, "reverse");
    read->directions = read->description.bidirectional ? 2 : 1;
    if (!read->description.bidirectional && !read->description.reverse && strcmp(direction, "forward"))
        return refuse(reason, "attribute direction is unknown");
    const int clipped = attribute(ort, node, "clip", ORT_FLOAT_, &clip, sizeof clip, NULL, reason);
    if (clipped)
        return clipped < 0 ? 0 : refuse(reason, "attribute clip is set, and no network has a clip");
    if (!integer(ort, node, "layout", &layout, reason)
        || !integer(ort, node, "input_forget", &input_forget, reason)
        || !integer(ort, node, "linear_before_reset", &before, reason))
        return 0;
    if (layout != 0 && layout != 1)
        return refuse(reason, "attribute layout must be 0 or 1, got %lld", (long long)layout);
    if (input_forget)
        return refuse(reason, "attribute input_forget is set, and no network couples these gates");
    read->layout = (int)layout;
    read->description.batch_first = (int)layout;
    read->description.reset_after = OPERATORS[row].cell != LNRNN_GRU || before != 0;
    return activations(ort, node, row, read, reason);
}

/* --- inputs --------------------------------------------------------------------------------------------- */

/* Returns the type of the elements of a value, or 0 if it is no tensor. */
static int element_type(const ort_functions *ort, const OrtValueInfo *value)
{
    const OrtTypeInfo *type = NULL;
    const OrtTensorTypeAndShapeInfo *tensor = NULL;
    int element = 0;
    if (failed(ort, ort->value_type(value, &type)) || !type
        || failed(ort, ort->tensor_info_of_type(type, &tensor)) || !tensor
        || failed(ort, ort->element_type(tensor, &element)))
        return 0;
    return element;
}

/* Sets *found to the numbers of a constant of this type. shape (rank): expected; 0 is any size of at least 1, which is
 * written. */
static int constant(const ort_functions *ort, recurrent_node *read, const OrtValueInfo *info,
                    const char *name, int type, size_t *shape, size_t rank, const void **found,
                    char reason[REASON])
{
    bool is_constant = false;
    const OrtValue *value = NULL;
    const int64_t *is = NULL;
    int is_type = 0;
    size_t dimensions = 0;
    if (!info || failed(ort, ort->is_constant(info, &is_constant)) || !is_constant
        || failed(ort, ort->initializer_value(info, &value)) || !value)
        return refuse(reason, "input %s is no constant", name);
    if (failed(ort, ort->tensor_shape(value, &is_type, &is, &dimensions)) || is_type != type)
        return refuse(reason, "input %s is not %s", name,
                      type == ORT_FLOAT   ? "float32"
                      : type == ORT_UINT8 ? "uint8"
                                          : "int8");
    if (failed(ort, ort->get_tensor_data(value, found)))
        return refuse(reason, "input %s cannot be read", name);
    int fits = dimensions == rank;
    for (size_t k = 0; k < rank && fits; k++) {
        fits = is[k] > 0 && (!shape[k] || shape[k] == (size_t)is[k]);
        shape[k] = (size_t)is[k];
    }
    read->contradictory = !fits;
    return fits || refuse(reason, "the shape of input %s does not fit the node", name);
}

static int floats(const ort_functions *ort, recurrent_node *read, const OrtValueInfo *info, const char *name,
                  size_t *shape, size_t rank, const float **found, char reason[REASON])
{
    const void *data = NULL;
    const int right = constant(ort, read, info, name, ORT_FLOAT, shape, rank, &data, reason);
    *found = data;
    return right;
}

/* Returns 1 if the peepholes are left out, or are zero. */
static int no_peepholes(const ort_functions *ort, recurrent_node *read, const OrtValueInfo *info,
                        size_t directions, size_t H, char reason[REASON])
{
    size_t shape[2] = {directions, 3 * H};
    const float *peepholes = NULL;
    if (!info)
        return 1;
    if (!floats(ort, read, info, "P", shape, 2, &peepholes, reason))
        return 0;
    for (size_t k = 0; k < shape[0] * shape[1]; k++)
        if (peepholes[k] != 0)
            return refuse(reason, "input P has peepholes, and no network has any");
    return 1;
}

/* Reads a scale or zero point of shape (D,) or (D, columns). Sets *read_columns to 1 or to columns. */
static int per_column(const ort_functions *ort, recurrent_node *read, const OrtValueInfo *info,
                      const char *name, int type, size_t columns, const void **found, size_t *read_columns,
                      char reason[REASON])
{
    size_t shape[2] = {read->directions, columns};
    *read_columns = 1;
    if (constant(ort, read, info, name, type, shape, 1, found, reason))
        return 1;
    shape[0] = read->directions;
    *read_columns = columns;
    return constant(ort, read, info, name, type, shape, 2, found, reason);
}

static int scales(const ort_functions *ort, recurrent_node *read, const OrtValueInfo *const *inputs,
                  int which, size_t columns, quantized_weight *q, char reason[REASON])
{
    static const char *const names[2][2] = {{"W_scale", "W_zero_point"}, {"R_scale", "R_zero_point"}};
    const OrtValueInfo *const *const own = &inputs[INPUTS + 2 * which];
    const void *found = NULL;
    if (!per_column(ort, read, own[0], names[which][0], ORT_FLOAT, columns, &found, &q->scale_columns, reason)
        || !per_column(ort, read, own[1], names[which][1], q->type, columns, &q->zero, &q->zero_columns,
                       reason))
        return 0;
    q->scale = found;
    /* Larger scales could make infinite weights, and smaller ones weights that int8 takes for 0. */
    for (size_t k = 0; k < read->directions * q->scale_columns; k++)
        if (q->scale[k] != 0 && !(q->scale[k] >= 0x1p-100f && q->scale[k] <= 0x1p119f))
            return refuse(reason, "input %s has a number that is not 0, or within 2^-100 .. 2^119",
                          names[which][0]);
    return 1;
}

/* Reads W (D, I, 4 H) or R (D, H, 4 H) of a DynamicQuantizeLSTM. Sets shape to (D, 4 H, I) or (D, 4 H, H). */
static int quantized(const ort_functions *ort, recurrent_node *read, const OrtValueInfo *const *inputs,
                     int which, size_t shape[3], quantized_weight *q, char reason[REASON])
{
    static const char *const names[] = {"W", "R"};
    /* A sum of 32 bits holds fewer products by -128. */
    enum { LOW_INPUTS = INT32_MAX / (127 * 128) };
    size_t is[3] = {shape[0], shape[2], shape[1]};
    q->type = element_type(ort, inputs[W + which]) == ORT_UINT8 ? ORT_UINT8 : ORT_INT8;
    if (!constant(ort, read, inputs[W + which], names[which], q->type, is, 3, &q->data, reason)
        || !scales(ort, read, inputs, which, is[2], q, reason))
        return 0;
    shape[1] = is[2], shape[2] = is[1];
    const int lowest = shape[2] <= LOW_INPUTS ? -128 : -127;
    for (size_t d = 0; d < shape[0]; d++)
        for (size_t i = 0; i < shape[2]; i++)
            for (size_t o = 0; o < shape[1]; o++) {
                const int n = quantized_integer(q, shape, d, o, i);
                if (n < lowest || n > 127)
                    return refuse(reason,
                                  "input %s has integers that differ by more than %d .. 127 from "
                                  "their zero point, which int8 weights do not hold",
                                  names[which], lowest);
            }
    return 1;
}

/* Reads W and R. Sets w to (D, G * H, I) and r to (D, G * H, H). */
static int weights(const ort_functions *ort, const OrtValueInfo *const *inputs, int row, size_t w[3],
                   size_t r[3], recurrent_node *read, char reason[REASON])
{
    const size_t G = OPERATORS[row].gates;
    const int is_quantized = row == QUANTIZED;
    if (is_quantized ? !quantized(ort, read, inputs, 1, r, &read->quantized[1], reason)
                     : !floats(ort, read, inputs[R], "R", r, 3, &read->weight[R], reason))
        return 0;
    const size_t H = r[2];
    read->contradictory = H > SIZE_MAX / G || r[1] != G * H;
    if (read->contradictory)
        return refuse(reason, "the shape of input R does not fit the node");
    w[1] = G * H;
    return is_quantized ? quantized(ort, read, inputs, 0, w, &read->quantized[0], reason)
                        : floats(ort, read, inputs[W], "W", w, 3, &read->weight[W], reason);
}

/* Reads the weights, and checks the types of the other inputs. all (MOST_INPUTS): the inputs. */
static int inputs(const ort_functions *ort, const OrtNode *node, const OrtValueInfo *const *all, int row,
                  recurrent_node *read, char reason[REASON])
{
    const size_t G = OPERATORS[row].gates, D = read->directions;
    size_t r[3] = {D, 0, 0}, w[3] = {D, 0, 0};
    if (!weights(ort, all, row, w, r, read, reason))
        return 0;
    const size_t H = r[2];
    int64_t hidden_size = (int64_t)H;
    size_t b[2] = {D, 2 * G * H};
    if (read->input[B] && !floats(ort, read, read->input[B], "B", b, 2, &read->weight[B], reason))
        return 0;
    if (!integer(ort, node, "hidden_size", &hidden_size, reason))
        return 0;
    read->contradictory = hidden_size < 0 || (uint64_t)hidden_size != H;
    if (read->contradictory)
        return refuse(reason, "attribute hidden_size is %lld, but R has %zu units", (long long)hidden_size,
                      H);
    if (OPERATORS[row].cell != LNRNN_LSTM && (read->input[C0] || read->input[PEEPHOLES]))
        return refuse(reason, "the node has more inputs than its operator");
    if (!no_peepholes(ort, read, read->input[PEEPHOLES], D, H, reason))
        return 0;
    static const struct {
        int input, type;
        const char *name, *wanted;
    } others[] = {{X, ORT_FLOAT, "X", "float32"},
                  {LENGTHS, ORT_INT32, "sequence_lens", "int32"},
                  {H0, ORT_FLOAT, "initial_h", "float32"},
                  {C0, ORT_FLOAT, "initial_c", "float32"}};
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
        const OrtValueInfo *const value = read->input[others[k].input];
        if (!value ? others[k].input == X : element_type(ort, value) != others[k].type)
            return refuse(reason, "input %s must be a tensor of %s", others[k].name, others[k].wanted);
    }
    read->description.input_size = w[2], read->description.hidden_size = H;
    return 1;
}

int node_read(const ort_functions *ort, const OrtNode *node, int weights, recurrent_node *read,
              char reason[REASON])
{
    const int row = row_of(ort, node);
    int version = 0;
    size_t in = 0, out = 0;
    const char *name = NULL;
    const OrtValueInfo *all[MOST_INPUTS] = {NULL};
    *reason = 0;
    if (row < 0)
        return refuse(reason, "the node is not recurrent");
    *read = (recurrent_node){.kind = OPERATORS[row].operator,
                             .gate_factor = 1,
                             .description = lnrnn_describe(OPERATORS[row].cell, 1, 1)};
    read->name = failed(ort, ort->node_name(node, &name)) || !name ? "" : name;
    read->description.norm = LNRNN_NORM_NONE;
    /* DynamicQuantizeLSTM rounds x and h to 8 bits too. */
    read->description.weights = row == QUANTIZED ? LNRNN_WEIGHT_I8A8 : weights;
    if (failed(ort, ort->node_version(node, &version)) || (version < 7 && row != QUANTIZED))
        return refuse(reason, "the operator must be of opset 7 or later");
    if (failed(ort, ort->node_input_count(node, &in)) || in > (row == QUANTIZED ? MOST_INPUTS : INPUTS)
        || failed(ort, ort->node_inputs(node, all, in)) || failed(ort, ort->node_output_count(node, &out))
        || out > OUTPUTS || failed(ort, ort->node_outputs(node, read->output, out)))
        return refuse(reason, "the node has more inputs or outputs than its operator");
    for (int k = 0; k < INPUTS; k++)
        read->input[k] = *name_of(ort, all[k]) ? all[k] : NULL;
    for (int k = 0; k < OUTPUTS; k++)
        if (!*name_of(ort, read->output[k]))
            read->output[k] = NULL;
    if (!attributes(ort, node, row, read, reason) || !inputs(ort, node, all, row, read, reason))
        return read->contradictory ? -1 : 0;
    read->description.bias = read->weight[B] != NULL;
    char message[LNRNN_MESSAGE] = "";
    if (lnrnn_description_resolve(&read->description, message))
        return refuse(reason, "%s", message);
    return 1;
}
