/* Reads the weights of nodes RNN, LSTM, GRU and DynamicQuantizeLSTM, and checks their other inputs. */
#include "onnxruntime/node.h"

/* Returns the type of the elements of a value, or 0 if it is no tensor. */
static int element_type(const ort_functions *ort, const OrtValueInfo *value)
{
    size_t rank;
    return runtime_type(ort, value, NULL, 0, &rank);
}

/* Sets *found to the numbers of a constant of this type. shape (rank): expected; 0 is any size of at least 1,
 * which is written. */
static int constant(const ort_functions *ort, recurrent_node *read, const OrtValueInfo *info,
                    const char *name, int type, size_t *shape, size_t rank, const void **found,
                    char reason[REASON])
{
    const int64_t *is = NULL;
    size_t dimensions = 0;
    if (!runtime_constant(ort, info, name, type, &is, &dimensions, found, reason))
        return 0;
    int fits = dimensions == rank;
    for (size_t k = 0; k < rank && fits; k++) {
        fits = is[k] > 0 && (!shape[k] || shape[k] == (size_t)is[k]);
        shape[k] = (size_t)is[k];
    }
    read->contradictory = !fits;
    return fits || runtime_refuse(reason, "the shape of input %s does not fit the node", name);
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
            return runtime_refuse(reason, "input P has peepholes, and no network has any");
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
            return runtime_refuse(reason, "input %s has a number that is not 0, or within 2^-100 .. 2^119",
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
                const int n = networks_integer(q, shape, d, o, i);
                if (n < lowest || n > 127)
                    return runtime_refuse(reason,
                                          "input %s has integers that differ by more than %d .. 127 from "
                                          "their zero point, which int8 weights do not hold",
                                          names[which], lowest);
            }
    return 1;
}

/* Reads W and R. Sets w to (D, G * H, I) and r to (D, G * H, H). */
static int weights(const ort_functions *ort, const OrtValueInfo *const *inputs, size_t G, int is_quantized,
                   size_t w[3], size_t r[3], recurrent_node *read, char reason[REASON])
{
    if (is_quantized ? !quantized(ort, read, inputs, 1, r, &read->quantized[1], reason)
                     : !floats(ort, read, inputs[R], "R", r, 3, &read->weight[R], reason))
        return 0;
    const size_t H = r[2];
    read->contradictory = H > SIZE_MAX / G || r[1] != G * H;
    if (read->contradictory)
        return runtime_refuse(reason, "the shape of input R does not fit the node");
    w[1] = G * H;
    return is_quantized ? quantized(ort, read, inputs, 0, w, &read->quantized[0], reason)
                        : floats(ort, read, inputs[W], "W", w, 3, &read->weight[W], reason);
}

int node_inputs(const ort_functions *ort, const OrtNode *node, const OrtValueInfo *const *all, size_t G,
                int is_quantized, recurrent_node *read, char reason[REASON])
{
    const size_t D = read->directions;
    size_t r[3] = {D, 0, 0}, w[3] = {D, 0, 0};
    if (!weights(ort, all, G, is_quantized, w, r, read, reason))
        return 0;
    const size_t H = r[2];
    int64_t hidden_size = (int64_t)H;
    size_t b[2] = {D, 2 * G * H};
    if (read->input[B] && !floats(ort, read, read->input[B], "B", b, 2, &read->weight[B], reason))
        return 0;
    if (!node_integer(ort, node, "hidden_size", &hidden_size, reason))
        return 0;
    read->contradictory = hidden_size < 0 || (uint64_t)hidden_size != H;
    if (read->contradictory)
        return runtime_refuse(reason, "attribute hidden_size is %lld, but R has %zu units",
                              (long long)hidden_size, H);
    if (read->description.cell != LNRNN_LSTM && (read->input[C0] || read->input[PEEPHOLES]))
        return runtime_refuse(reason, "the node has more inputs than its operator");
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
            return runtime_refuse(reason, "input %s must be a tensor of %s", others[k].name,
                                  others[k].wanted);
    }
    read->description.input_size = w[2], read->description.hidden_size = H;
    return 1;
}
