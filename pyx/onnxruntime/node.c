/* Reads nodes RNN, LSTM and GRU of ONNX, opsets 7 to 22, and DynamicQuantizeLSTM of ONNX Runtime. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "onnxruntime/plugin.h"

/* Indices of the inputs and outputs of RNN, LSTM and GRU. DynamicQuantizeLSTM also has the inputs W_scale,
 * W_zero_point, R_scale and R_zero_point. */
enum { X, W, R, B, LENGTHS, H0, C0, PEEPHOLES, INPUTS, MOST_INPUTS = INPUTS + 4 };
enum { Y, Y_H, Y_C, OUTPUTS };

/* W or R of a DynamicQuantizeLSTM: (D, n, 4 * H). A weight is an integer minus its zero point, times its
 * scale. */
typedef struct {
    int type; /* ORT_INT8 or ORT_UINT8, of data and zero */
    const void *data, *zero;
    const float *scale;
    size_t scale_columns, zero_columns; /* 4 * H: a number for each column; 1: for each direction */
} quantized_weight;

/* A node RNN, LSTM or GRU with D directions that a network can replace. The runtime owns the pointers. */
typedef struct {
    const ort_functions *ort;
    const OrtNode *node;
    char *reason; /* (REASON) why no network can replace the node */
    int row;      /* index in OPERATORS */
    const OrtValueInfo *input[MOST_INPUTS], *output[OUTPUTS]; /* NULL: left out */
    lnrnn_description description;
    size_t directions;  /* D */
    int contradictory;  /* the shapes of weights contradict each other or an attribute */
    double gate_factor; /* multiplies the sums of the gates, because hard sigmoids differ in slope */
    /* W (D, G * H, I), R (D, G * H, H), or NULL; B (D, 2 * G * H), PEEPHOLES (D, 3 * H) or NULL. */
    const float *weight[INPUTS];
    quantized_weight quantized[2]; /* used in place of W and R of `weight`, unless data is NULL */
} recurrent_node;

/* --- attributes ----------------------------------------------------------------------------------------- */

enum { MOST_FUNCTIONS = 6, MOST_NAMES = 256, QUANTIZED = 3 };

/* For each operator: its domain, its cell, the numbers of activations per direction and of gates (G).
 * onnx_gate: the index in ONNX's order for each gate in lnrnn's order. An LSTM has i, o, f, c in ONNX, and
 * i, f, g, o in lnrnn. A GRU has z, r, h in ONNX, and r, z, n in lnrnn. */
static const struct {
    const char *operator, *domain;
    int cell;
    size_t functions, gates, onnx_gate[4];
} OPERATORS[] = {{"RNN", "ai.onnx", LNRNN_RNN, 1, 1, {0}},
                 {"LSTM", "ai.onnx", LNRNN_LSTM, 3, 4, {0, 2, 3, 1}},
                 {"GRU", "ai.onnx", LNRNN_GRU, 2, 3, {1, 0, 2}},
                 {"DynamicQuantizeLSTM", "com.microsoft", LNRNN_LSTM, 3, 4, {0, 2, 3, 1}}};

/* Returns the index in OPERATORS of a node's operator, or -1. */
static int row_of(const ort_functions *ort, const OrtNode *node)
{
    const char *operator = NULL, *domain = NULL;
    if (runtime_failed(ort, ort->node_operator(node, &operator))
        || runtime_failed(ort, ort->node_domain(node, &domain)))
        return -1;
    if (!*domain)
        domain = "ai.onnx";
    for (int k = 0; k < (int)(sizeof OPERATORS / sizeof *OPERATORS); k++)
        if (!strcmp(operator, OPERATORS[k].operator) && !strcmp(domain, OPERATORS[k].domain))
            return k;
    return -1;
}

int node_is_recurrent(const ort_functions *ort, const OrtNode *node) { return row_of(ort, node) >= 0; }

#define REFUSE(...) runtime_refuse(read->reason, __VA_ARGS__)

static int attribute(const recurrent_node *read, const char *name, int type, void *data, size_t bytes,
                     size_t *used)
{
    return runtime_attribute(read->ort, read->node, name, type, data, bytes, used, read->reason);
}

/* Reads an integer; without the attribute *value stays. Returns 0 with a reason for another type. */
static int integer(const recurrent_node *read, const char *name, int64_t *value)
{
    return attribute(read, name, ORT_INT, value, sizeof *value, NULL) >= 0;
}

/* An activation, and its parameters (0 if it has none). SHOWN(f): arguments for SHOW. */
typedef struct {
    char name[16];
    float alpha, beta;
} function;
#define SHOW "%s (alpha %g, beta %g)"
#define SHOWN(f) (f).name, (double)(f).alpha, (double)(f).beta

/* Returns 1 if an activation has alpha (which = 0) or beta (1). */
static int has(const char *name, int which)
{
    static const char *const names[] = {"affine",    "hardsigmoid",     "scaledtanh", /* both */
                                        "leakyrelu", "thresholdedrelu", "elu"};
    for (size_t k = 0; k < (which ? 3 : sizeof names / sizeof *names); k++)
        if (!strcasecmp(name, names[k]))
            return 1;
    return 0;
}

/* Sets alpha (which = 0) or beta (1) of n functions. The attribute has a number for each function with this
 * parameter. As in the runtime, more numbers at the end mean nothing. */
static int parameters(const recurrent_node *read, function *f, size_t n, int which)
{
    float given[MOST_FUNCTIONS];
    const char *const name = which ? "activation_beta" : "activation_alpha";
    size_t bytes = 0, users = 0, next = 0;
    if (attribute(read, name, ORT_FLOATS, given, sizeof given, &bytes) < 0)
        return 0;
    const size_t count = bytes / sizeof *given;
    for (size_t i = 0; i < n; i++)
        users += (size_t)has(f[i].name, which);
    for (size_t i = 0; i < n; i++) {
        float *const value = which ? &f[i].beta : &f[i].alpha;
        if (!has(f[i].name, which))
            continue;
        if (count >= users)
            *value = given[next++];
        else if (!count && !strcasecmp(f[i].name, "hardsigmoid"))
            *value = which ? 0.5f : 0.2f;
        else
            return REFUSE("attribute %s must have %zu numbers, got %zu", name, users, count);
    }
    return 1;
}

/* Returns the activation, LNRNN_ACT_TANH .., or -1. */
static int act_of(const function *f)
{
    static const char *const known[] = {"tanh", "relu", "sigmoid", "affine"};
    int act = 0;
    while (act < 4 && strcasecmp(f->name, known[act]))
        act++;
    return act < 3 || (act == 3 && f->alpha == 1 && f->beta == 0) ? act : -1;
}

/* Reads activations, activation_alpha and activation_beta into the description. */
static int activations(recurrent_node *read)
{
    char names[MOST_NAMES] = {0};
    function f[MOST_FUNCTIONS] = {{{0}, 0, 0}};
    size_t bytes = 0, n = 0;
    const size_t each = OPERATORS[read->row].functions;
    const int given = attribute(read, "activations", ORT_STRINGS, names, sizeof names - 1, &bytes);
    if (given <= 0)
        return !given;
    for (const char *at = names; at < names + bytes; at += strlen(at) + 1, n++) {
        if (n == MOST_FUNCTIONS || strlen(at) >= sizeof f->name)
            return REFUSE("attribute activations must have %zu names that ONNX knows, got %.40s as name %zu",
                          each * read->directions, at, n + 1);
        strcpy(f[n].name, at);
    }
    if (!n)
        return 1;
    if (n == 2 && each == 1 && read->directions == 1 && !strcasecmp(f[0].name, "tanh")
        && !strcasecmp(f[1].name, "tanh"))
        n = 1; /* the runtime writes an RNN's default, which has a name for each of two directions */
    if (n != each * read->directions)
        return REFUSE("attribute activations must have %zu names, got %zu", each * read->directions, n);
    if (!parameters(read, f, n, 0) || !parameters(read, f, n, 1))
        return 0;
    for (size_t i = each; i < n; i++)
        if (strcasecmp(f[i].name, f[i - each].name) || f[i].alpha != f[i - each].alpha
            || f[i].beta != f[i - each].beta)
            return REFUSE("both directions must have the same activations, got " SHOW, SHOWN(f[i]));
    for (size_t i = each > 1; i < each; i++)
        if ((read->description.act = act_of(&f[i])) < 0 || (each == 3 && read->description.act))
            return REFUSE("attribute activations must have Tanh%s, got " SHOW,
                          each == 3 ? "" : ", Relu, Sigmoid or Affine (1, 0)", SHOWN(f[i]));
    if (each == 1 || !strcasecmp(f->name, "sigmoid"))
        return 1;
    if (strcasecmp(f->name, "hardsigmoid") || !(f->alpha > 0) || f->beta != 0.5f)
        return REFUSE("gates must have Sigmoid, or HardSigmoid with beta 0.5, got " SHOW, SHOWN(*f));
    read->description.gate_activation = LNRNN_GATES_HARD_SIGMOID;
    read->gate_factor = 6 * (double)f->alpha; /* clip(alpha a + 1/2) is clip(6 alpha a / 6 + 1/2) */
    return 1;
}

/* Reads all attributes but hidden_size. */
static int attributes(recurrent_node *read)
{
    char direction[16] = {0}; /* the runtime writes no NUL after a string */
    float clip = 0;
    int64_t layout = 0, input_forget = 0, before = 0;
    const int directed = attribute(read, "direction", ORT_STRING, direction, sizeof direction - 1, NULL);
    if (directed < 0)
        return 0;
    if (!directed) /* GCOVR_EXCL_BR_LINE: the runtime writes the default */
        strcpy(direction, "forward");
    read->description.bidirectional = !strcmp(direction, "bidirectional");
    read->description.reverse = !strcmp(direction, "reverse");
    read->directions = read->description.bidirectional ? 2 : 1;
    if (!read->description.bidirectional && !read->description.reverse && strcmp(direction, "forward"))
        return REFUSE("attribute direction must be forward, reverse or bidirectional, got %s", direction);
    const int clipped = attribute(read, "clip", ORT_FLOAT_, &clip, sizeof clip, NULL);
    if (clipped)
        return clipped < 0 ? 0 : REFUSE("attribute clip must be left out, got %g", (double)clip);
    if (!integer(read, "layout", &layout) || !integer(read, "input_forget", &input_forget)
        || !integer(read, "linear_before_reset", &before))
        return 0;
    if (layout != 0 && layout != 1)
        return REFUSE("attribute layout must be 0 or 1, got %lld", (long long)layout);
    if (input_forget)
        return REFUSE("attribute input_forget must be 0, got %lld", (long long)input_forget);
    read->description.batch_first = (int)layout;
    read->description.reset_after = OPERATORS[read->row].cell != LNRNN_GRU || before != 0;
    return activations(read);
}

/* --- weights and other inputs --------------------------------------------------------------------------- */

/* A scale or zero point has a number for each direction or output. Returns the index for output o. */
static size_t of_column(size_t columns, size_t d, size_t o) { return columns == 1 ? d : d * columns + o; }

static inline int zero_of(const quantized_weight *q, size_t d, size_t o)
{
    const size_t at = of_column(q->zero_columns, d, o);
    return q->type == ORT_UINT8 ? ((const uint8_t *)q->zero)[at] : ((const int8_t *)q->zero)[at];
}

static inline __attribute__((always_inline)) int integer_of(const quantized_weight *q, const size_t shape[3],
                                                            size_t d, size_t o, size_t i)
{
    const size_t at = (d * shape[2] + i) * shape[1] + o;
    const int n = q->type == ORT_UINT8 ? ((const uint8_t *)q->data)[at] : ((const int8_t *)q->data)[at];
    return n - zero_of(q, d, o);
}

/* Reads a constant as runtime_constant does. Returns 1, or 0 with a reason. */
static int constant(recurrent_node *read, const OrtValueInfo *info, const char *name, int type, size_t *shape,
                    size_t rank, const void **found)
{
    const int right = runtime_constant(read->ort, info, name, type, shape, rank, found, read->reason);
    read->contradictory = right < 0;
    return right > 0;
}

static int floats(recurrent_node *read, const OrtValueInfo *info, const char *name, size_t *shape,
                  size_t rank, const float **found)
{
    const void *data = NULL;
    const int right = constant(read, info, name, ORT_FLOAT, shape, rank, &data);
    *found = data;
    return right;
}

/* Reads the peepholes. If all are 0, the cell has none. */
static int peepholes(recurrent_node *read, size_t H)
{
    size_t shape[2] = {read->directions, 3 * H};
    const float *found = NULL;
    if (read->input[PEEPHOLES] && !floats(read, read->input[PEEPHOLES], "P", shape, 2, &found))
        return 0;
    for (size_t k = 0; found && k < shape[0] * shape[1]; k++)
        if (found[k] != 0)
            read->weight[PEEPHOLES] = found, read->description.peepholes = 1;
    return 1;
}

/* Reads a scale or zero point of shape (D,) or (D, columns). Sets *read_columns to 1 or to columns. */
static int per_column(recurrent_node *read, const OrtValueInfo *info, const char *name, int type,
                      size_t columns, const void **found, size_t *read_columns)
{
    size_t shape[2] = {read->directions, columns};
    *read_columns = 1;
    if (constant(read, info, name, type, shape, 1, found))
        return 1;
    shape[0] = read->directions;
    *read_columns = columns;
    return constant(read, info, name, type, shape, 2, found);
}

static int scales(recurrent_node *read, int which, size_t columns, quantized_weight *q)
{
    static const char *const names[2][2] = {{"W_scale", "W_zero_point"}, {"R_scale", "R_zero_point"}};
    const OrtValueInfo *const *const own = &read->input[INPUTS + 2 * which];
    const void *found = NULL;
    if (!per_column(read, own[0], names[which][0], ORT_FLOAT, columns, &found, &q->scale_columns)
        || !per_column(read, own[1], names[which][1], q->type, columns, &q->zero, &q->zero_columns))
        return 0;
    q->scale = found;
    /* Larger scales could make infinite weights, and smaller scales weights that int8 rounds to 0. */
    for (size_t k = 0; k < read->directions * q->scale_columns; k++)
        if (q->scale[k] != 0 && !(q->scale[k] >= 0x1p-100f && q->scale[k] <= 0x1p119f))
            return REFUSE("input %s must be 0 or 2^-100 .. 2^119, got %g", names[which][0],
                          (double)q->scale[k]);
    return 1;
}

/* Reads W (D, I, 4 H) or R (D, H, 4 H) of a DynamicQuantizeLSTM. Sets shape to (D, 4 H, I) or (D, 4 H, H). */
static int quantized(recurrent_node *read, int which, size_t shape[3], quantized_weight *q)
{
    size_t is[3] = {shape[0], shape[2], shape[1]}, rank;
    q->type =
        runtime_type(read->ort, read->input[W + which], NULL, 0, &rank) == ORT_UINT8 ? ORT_UINT8 : ORT_INT8;
    if (!constant(read, read->input[W + which], which ? "R" : "W", q->type, is, 3, &q->data)
        || !scales(read, which, is[2], q))
        return 0;
    shape[1] = is[2], shape[2] = is[1];
    /* With more inputs, sums of products by -128 could exceed 32 bits. */
    const int lowest = shape[2] <= INT32_MAX / (127 * 128) ? -128 : -127;
    for (size_t d = 0; d < shape[0]; d++)
        for (size_t o = 0; o < shape[1]; o++) {
            const int least = (q->type == ORT_UINT8 ? 0 : -128) - zero_of(q, d, o);
            /* With the usual zero points all integers fit, so the test reads none of them. */
            for (size_t i = 0; i < shape[2] && (least < lowest || least + 255 > 127); i++) {
                const int n = integer_of(q, shape, d, o, i);
                if (n < lowest || n > 127)
                    return REFUSE("input %c minus its zero point must be %d .. 127, as in int8, got %d",
                                  "WR"[which], lowest, n);
            }
        }
    return 1;
}

/* Reads W and R. Sets w to (D, G * H, I) and r to (D, G * H, H). */
static int weights(recurrent_node *read, size_t w[3], size_t r[3])
{
    const int is_quantized = read->row == QUANTIZED;
    const size_t G = OPERATORS[read->row].gates;
    if (is_quantized ? !quantized(read, 1, r, &read->quantized[1])
                     : !floats(read, read->input[R], "R", r, 3, &read->weight[R]))
        return 0;
    const size_t H = r[2];
    read->contradictory = r[1] != G * H;
    if (read->contradictory)
        return REFUSE("axis %d of input R must have size %zu, got %zu", is_quantized ? 2 : 1, G * H, r[1]);
    w[1] = G * H;
    return is_quantized ? quantized(read, 0, w, &read->quantized[0])
                        : floats(read, read->input[W], "W", w, 3, &read->weight[W]);
}

/* Reads the weights, and checks the types of the other inputs. */
static int inputs(recurrent_node *read)
{
    const size_t D = read->directions;
    size_t r[3] = {D, 0, 0}, w[3] = {D, 0, 0};
    if (!weights(read, w, r))
        return 0;
    const size_t H = r[2];
    int64_t hidden_size = (int64_t)H;
    size_t b[2] = {D, 2 * w[1]};
    if ((read->input[B] && !floats(read, read->input[B], "B", b, 2, &read->weight[B]))
        || !integer(read, "hidden_size", &hidden_size))
        return 0;
    read->contradictory = hidden_size < 0 || (uint64_t)hidden_size != H;
    if (read->contradictory)
        return REFUSE("attribute hidden_size must be %zu, as R has, got %lld", H, (long long)hidden_size);
    if (!peepholes(read, H))
        return 0;
    static const char *const names[INPUTS] = {
        [X] = "X", [LENGTHS] = "sequence_lens", [H0] = "initial_h", [C0] = "initial_c"};
    for (int k = X; k <= C0; k++) {
        size_t rank;
        const OrtValueInfo *const value = read->input[k];
        const int type = k == LENGTHS ? ORT_INT32 : ORT_FLOAT,
                  is = runtime_type(read->ort, value, NULL, 0, &rank);
        if (names[k] && value && is != type)
            return REFUSE("input %s must be %s, got %s", names[k], runtime_type_name(type),
                          runtime_type_name(is));
    }
    read->description.input_size = w[2], read->description.hidden_size = H;
    return 1;
}

/* --- the network of a node ------------------------------------------------------------------------------ */

/* Writes the weights of outputs from .. from + H - 1 of direction d to target (H, n), n = shape[2]. In q, the
 * weights of an input are contiguous, so a few outputs are written at a time. */
static void dequantize(const quantized_weight *q, const size_t shape[3], size_t d, size_t from, size_t H,
                       double factor, float *target)
{
    enum { FEW = 16 };
    for (size_t first = 0, n = shape[2]; first < H; first += FEW)
        for (size_t j = 0; j < n; j++)
            for (size_t o = first; o < H && o < first + FEW; o++)
                target[o * n + j] =
                    (float)(integer_of(q, shape, d, from + o, j)
                            * (double)q->scale[of_column(q->scale_columns, d, from + o)] * factor);
}

enum { P_ARRAY = 4 }; /* arrays of a direction: W 0, R 1, their biases 2 and 3, P 4 */

/* Writes array k of direction d to target (G * H, n), with gates in lnrnn's order, and P's as i, f, o. */
static void reorder(const recurrent_node *read, size_t d, int k, size_t n, float *target)
{
    const size_t G = k == P_ARRAY ? 3 : OPERATORS[read->row].gates, H = read->description.hidden_size,
                 shape[3] = {read->directions, G * H, n};
    const quantized_weight *const q = k < 2 && read->quantized[k].data ? &read->quantized[k] : NULL;
    const float *const source = q              ? NULL
                                : k < 2        ? read->weight[W + k] + d * G * H * n
                                : k == P_ARRAY ? read->weight[PEEPHOLES] + d * G * H
                                               : read->weight[B] + (2 * d + (size_t)k - 2) * G * H;
    for (size_t g = 0; g < G; g++, target += H * n) {
        const size_t from = (k == P_ARRAY ? (G - g) % G : OPERATORS[read->row].onnx_gate[g]) * H;
        const double factor = g == 2 && k != P_ARRAY ? 1 : read->gate_factor; /* 2: the candidate gate */
        for (size_t i = 0; i < H * n && !q; i++)
            target[i] = (float)(source[from * n + i] * factor);
        if (q)
            dequantize(q, shape, d, from, H, factor, target);
    }
}

static lnrnn_status network_of(network_list *list, const recurrent_node *read, lnrnn_network **network,
                               char message[LNRNN_MESSAGE])
{
    static const char *const names[2][P_ARRAY + 1] = {
        {"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "peephole_l0"},
        {"weight_ih_l0_reverse", "weight_hh_l0_reverse", "bias_ih_l0_reverse", "bias_hh_l0_reverse",
         "peephole_l0_reverse"}};
    const size_t H = read->description.hidden_size, GH = OPERATORS[read->row].gates * H,
                 widths[] = {read->description.input_size, H, 1, 1, 1};
    float *const memory = malloc(read->directions * GH * (widths[0] + H + 3) * sizeof *memory),
                 *next = memory;
    lnrnn_array arrays[2 * (P_ARRAY + 1)];
    size_t n = 0;
    if (!memory)
        return LNRNN_NO_MEMORY;
    for (size_t d = 0; d < read->directions; d++)
        for (int k = 0; k <= P_ARRAY; k++) {
            const size_t rows = k == P_ARRAY ? 3 * H : GH;
            if (k > 1 && !read->weight[k == P_ARRAY ? PEEPHOLES : B])
                continue;
            reorder(read, d, k, widths[k], next);
            arrays[n++] = (lnrnn_array){names[d][k], LNRNN_ARRAY_F32, k < 2 ? 2 : 1, {rows, widths[k]}, next};
            next += rows * widths[k];
        }
    const lnrnn_status status = networks_add(list, &read->description, arrays, n, network, message);
    free(memory);
    return status;
}

/* --- the kernel of a node ------------------------------------------------------------------------------- */

/* Reads a recurrent node. Returns 0 with the reason if no network can replace it. */
static int read_node(const provider *p, const OrtNode *node, recurrent_node *read, char reason[REASON])
{
    const ort_functions *const ort = p->ort;
    const int row = row_of(ort, node), is_quantized = row == QUANTIZED;
    int version = 0;
    size_t in = is_quantized ? MOST_INPUTS : INPUTS, out = OUTPUTS;
    *reason = 0, *read = (recurrent_node){ort, node, reason, row, .gate_factor = 1};
    if (row < 0)
        return runtime_refuse(reason, "the node is not recurrent");
    read->description = lnrnn_describe(OPERATORS[row].cell, 1, 1);
    read->description.norm = LNRNN_NORM_NONE;
    read->description.weights = provider_weights(p, node, is_quantized);
    if (runtime_failed(ort, ort->node_version(node, &version)) || (version < 7 && !is_quantized))
        return runtime_refuse(reason, "the operator must be of opset 7 or later, got %d", version);
    if (!runtime_values(ort, node, read->input, &in, read->output, &out, reason) || !attributes(read)
        || !inputs(read))
        return 0;
    read->description.bias = read->weight[B] != NULL;
    return !lnrnn_description_resolve(&read->description, reason); /* REASON is larger than LNRNN_MESSAGE */
}

int node_is_contradictory(const provider *p, const OrtNode *node, char reason[REASON])
{
    recurrent_node read;
    return node_is_recurrent(p->ort, node) && !read_node(p, node, &read, reason) && read.contradictory;
}

kernel *node_kernel(const provider *p, const OrtNode *node, char reason[REASON])
{
    static const char *const names[RUN_INPUTS] = {
        [RUN_X] = "X", [RUN_STATES] = "initial_h", "initial_c", [RUN_LENGTHS] = "sequence_lens"};
    recurrent_node read;
    lnrnn_network *network = NULL;
    char message[LNRNN_MESSAGE] = NO_MEMORY;
    kernel *k = NULL;
    if (!read_node(p, node, &read, reason))
        return NULL;
    const size_t H = read.description.hidden_size, D = read.directions;
    const run_form form = {.names = names,
                           .is_node = 1,
                           .layout = read.description.batch_first,
                           .input_size = read.description.input_size,
                           .y_width = D * H,
                           .states = read.description.cell == LNRNN_LSTM ? 2 : 1,
                           .widths = {H, H},
                           .lines = D,
                           .values = {[RUN_X] = read.input[X],
                                      [RUN_STATES] = read.input[H0],
                                      read.input[C0],
                                      [RUN_LENGTHS] = read.input[LENGTHS],
                                      [RUN_INPUTS + RUN_Y] = read.output[Y],
                                      [RUN_INPUTS + RUN_STATES] = read.output[Y_H],
                                      read.output[Y_C]}};
    if (!network_of(p->networks, &read, &network, message))
        k = kernel_new(p, node, network, &form);
    runtime_refuse(reason, "%s", message);
    return k;
}
