#include "file/model_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lnrnn.h"

/* --- the configuration ---------------------------------------------------------------------------------- */

/* The parts of a description that a file has in another form. */
typedef struct {
    lnrnn_description d;
    size_t bits; /* of activations; 0: none are said */
    int pair;    /* zoneout is a list of two rates */
} configuration;

enum { SIZE, NUMBER, FLAG, CHOICE, RATES, NORM };
enum { IN_ALL, IN_RNN, OPTIONAL, IN_LAYER_NORM, IN_BATCH_NORM };

/* An entry of an object: who has it, and where its value goes. null: the value that null stands for, -2:
 * none. names: those of an enumeration, by number, "" for a number without one. */
typedef struct {
    const char *name;
    int type, has;
    size_t offset;
    int null;
    const char *names[5];
} entry;

#define AT(member) offsetof(configuration, member)

static const entry ENTRIES[] = {
    {"cell", CHOICE, IN_ALL, AT(d.cell), -2, {"RNN", "LSTM", "GRU"}},
    {"nonlinearity", CHOICE, IN_RNN, AT(d.act), -2, {"tanh", "relu", "sigmoid", "identity"}},
    {"dtype", CHOICE, IN_ALL, AT(d.weights), -2, {"float32", "bfloat16", "int8"}},
    {"activation_bits", SIZE, OPTIONAL, AT(bits), 0, {NULL}},
    {"input_size", SIZE, IN_ALL, AT(d.input_size), -2, {NULL}},
    {"hidden_size", SIZE, IN_ALL, AT(d.hidden_size), -2, {NULL}},
    {"num_layers", SIZE, IN_ALL, AT(d.num_layers), -2, {NULL}},
    {"bias", FLAG, IN_ALL, AT(d.bias), -2, {NULL}},
    {"batch_first", FLAG, IN_ALL, AT(d.batch_first), -2, {NULL}},
    {"bidirectional", FLAG, IN_ALL, AT(d.bidirectional), -2, {NULL}},
    {"norm", NORM, IN_ALL, AT(d.norm), LNRNN_NORM_NONE, {NULL}},
    {"zoneout", RATES, OPTIONAL, AT(d.zoneout), -2, {NULL}},
    {"dropout", NUMBER, OPTIONAL, AT(d.dropout), -2, {NULL}},
    {NULL, 0, 0, 0, 0, {NULL}},
};
static const entry NORM_ENTRIES[] = {
    {"kind", CHOICE, IN_ALL, AT(d.norm), -2, {"", "layer", "batch"}},
    {"placement", CHOICE, IN_LAYER_NORM, AT(d.placement), LNRNN_PLACEMENTS, {"joint", "split", "gate"}},
    {"cell", CHOICE, IN_LAYER_NORM, AT(d.cell_norm), LNRNN_CELL_NONE, {"", "out", "carry"}},
    {"span", CHOICE, IN_LAYER_NORM, AT(d.span), LNRNN_SPAN_PAPER, {"", "all"}},
    {"inner_bias", FLAG, IN_LAYER_NORM, AT(d.inner_bias), -2, {NULL}},
    {"eps", NUMBER, OPTIONAL, AT(d.eps), -2, {NULL}},
    {"max_steps", SIZE, IN_BATCH_NORM, AT(d.max_steps), 0, {NULL}},
    {"overrun", CHOICE, IN_BATCH_NORM, AT(d.overrun), -2, {"raise", "last", "mean", "batch"}},
    {"momentum", NUMBER, IN_BATCH_NORM, AT(d.momentum), -1, {NULL}},
    {NULL, 0, 0, 0, 0, {NULL}},
};

/* The place of a text in a list that ends with NULL, "" for none; or -1. */
static int place(lnrnn_text text, const char *const *names)
{
    for (int k = 0; names[k]; k++)
        if (text.length && lnrnn_text_is(text, names[k]))
            return k;
    return -1;
}

/* "one of 'out', 'carry'" -> buffer. */
static const char *listed(const entry *e, char buffer[LNRNN_MESSAGE])
{
    int n = snprintf(buffer, LNRNN_MESSAGE, "one of");
    for (int k = 0; e->names[k]; k++)
        if (*e->names[k])
            n += snprintf(buffer + n, LNRNN_MESSAGE - (size_t)n, " '%s',", e->names[k]);
    buffer[n - 1] = '\0';
    return buffer;
}

static int is_number(const lnrnn_json_value *value)
{
    return (value->kind == LNRNN_JSON_INTEGER || value->kind == LNRNN_JSON_NUMBER) && value->number >= 0;
}

/* A rate for all states, or a list of two. -> 1 if it is one. */
static int read_rates(lnrnn_json *json, const lnrnn_json_value *value, configuration *c)
{
    int n = 0;
    c->d.zoneout[0] = c->d.zoneout[1] = value->number;
    if (value->kind != LNRNN_JSON_LIST)
        return is_number(value);
    for (; lnrnn_json_item(json, n == 0); n++) {
        lnrnn_json_value rate = lnrnn_json_next(json);
        if (n == 2 || !is_number(&rate))
            return 0;
        c->d.zoneout[n] = rate.number;
    }
    c->pair = 1;
    return n == 2;
}

static lnrnn_status read_object(lnrnn_json *json, const entry *entries, const char *object, configuration *c,
                                char *message);

static lnrnn_status read_entry(lnrnn_json *json, const entry *e, configuration *c, char *message)
{
    static const char *const expected[] = {
        [SIZE] = "an integer of at least 1",
        [NUMBER] = "a number of at least 0",
        [FLAG] = "true or false",
        [RATES] = "a number of at least 0, or of an LSTM a list of two",
        [NORM] = "null or an object",
    };
    char shown[LNRNN_SHOWN], names[LNRNN_MESSAGE];
    lnrnn_json_value value = lnrnn_json_next(json);
    void *to = (char *)c + e->offset;
    int null = e->null > -2 && value.kind == LNRNN_JSON_NULL, right = 1;
    int k = value.kind == LNRNN_JSON_STRING ? place(value.text, e->names) : -1;
    if (e->type == NORM && value.kind == LNRNN_JSON_OBJECT)
        return read_object(json, NORM_ENTRIES, "norm", c, message);
    if (e->type == SIZE && (null || (value.kind == LNRNN_JSON_INTEGER && value.integer >= 1)))
        *(size_t *)to = null ? 0 : (size_t)value.integer;
    else if (e->type == NUMBER && (null || is_number(&value)))
        *(double *)to = null ? e->null : value.number;
    else if (e->type == FLAG && (value.kind == LNRNN_JSON_TRUE || value.kind == LNRNN_JSON_FALSE))
        *(int *)to = value.kind == LNRNN_JSON_TRUE;
    else if (e->type == CHOICE && (null || k >= 0))
        *(int *)to = null ? e->null : k;
    else
        right = null || (e->type == RATES && read_rates(json, &value, c));
    if (right || json->wrong)
        return LNRNN_OK;
    return lnrnn_fail(message, LNRNN_INVALID, "%s must be %s, got %s", e->name,
                      e->type == CHOICE ? listed(e, names) : expected[e->type],
                      lnrnn_json_shown(&value, shown));
}

/* Behind the bracket: reads every entry, each known and once, and none missing. */
static lnrnn_status read_object(lnrnn_json *json, const entry *entries, const char *object, configuration *c,
                                char *message)
{
    char shown[LNRNN_SHOWN];
    unsigned seen = 0;
    lnrnn_text name;
    while (lnrnn_json_entry(json, !seen, &name)) {
        int k = 0;
        while (entries[k].name && !lnrnn_text_is(name, entries[k].name))
            k++;
        if (!entries[k].name || seen >> k & 1)
            return lnrnn_fail(message, LNRNN_INVALID, "its %s has the entry %s %s", object,
                              lnrnn_text_shown(name.bytes, shown),
                              entries[k].name ? "twice" : "that is unknown");
        seen |= 1u << k;
        lnrnn_status status = read_entry(json, &entries[k], c, message);
        if (status)
            return status;
    }
    for (int k = 0; entries[k].name && !json->wrong; k++) {
        int has = entries[k].has, there = seen >> k & 1;
        if (!there && (has == IN_ALL || (has == IN_RNN && c->d.cell == LNRNN_RNN)))
            return lnrnn_fail(message, LNRNN_INVALID, "its %s has no entry '%s'", object, entries[k].name);
        if (there
            && ((has == IN_RNN && c->d.cell != LNRNN_RNN)
                || (has == IN_LAYER_NORM && c->d.norm != LNRNN_NORM_LAYER)
                || (has == IN_BATCH_NORM && c->d.norm != LNRNN_NORM_BATCH)))
            return lnrnn_fail(message, LNRNN_INVALID, "its %s has the entry '%s' of another kind", object,
                              entries[k].name);
    }
    return LNRNN_OK;
}

/* start: changed, since strings are decoded in place. */
static lnrnn_status read_configuration(char *start, size_t length, lnrnn_description *d, char *message)
{
    lnrnn_json json = {start, start + length, NULL};
    configuration c = {
        {.placement = LNRNN_PLACEMENTS, .cell_norm = LNRNN_CELL_OUT, .eps = 1e-5, .momentum = 0.1}, 0, 0};
    if (lnrnn_json_next(&json).kind != LNRNN_JSON_OBJECT)
        return lnrnn_fail(message, LNRNN_INVALID, "its configuration is no object of JSON");
    lnrnn_status status = read_object(&json, ENTRIES, "configuration", &c, message);
    if (!status && lnrnn_json_end(&json))
        status = lnrnn_fail(message, LNRNN_INVALID, "its configuration is no JSON at byte %td",
                            json.wrong - start);
    if (status)
        return status;
    if (c.pair && c.d.cell != LNRNN_LSTM)
        return lnrnn_fail(message, LNRNN_INVALID, "zoneout must be a number, only of an LSTM a list of two");
    if (c.bits && (c.d.weights != LNRNN_WEIGHT_I8 || (c.bits != 8 && c.bits != 14)))
        return lnrnn_fail(message, LNRNN_INVALID, "activation_bits must be 14 or 8 and only of int8, got %zu",
                          c.bits);
    if (c.bits == 8)
        c.d.weights = LNRNN_WEIGHT_I8A8;
    *d = c.d;
    return lnrnn_description_resolve(d, message);
}

lnrnn_status lnrnn_description_read(const char *text, size_t length, lnrnn_description *d,
                                    char message[LNRNN_MESSAGE])
{
    char *const copy = malloc(length + 1);
    if (!copy)
        return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory for a configuration of %zu bytes", length);
    memcpy(copy, text, length);
    copy[length] = '\0';
    const lnrnn_status status = read_configuration(copy, length, d, message);
    free(copy);
    return status;
}

/* --- arrays against the description --------------------------------------------------------------------- */

/* "(4, 3) F32" -> buffer. */
static const char *described(const lnrnn_array *array, const char *dtype, char buffer[LNRNN_MESSAGE])
{
    int n = snprintf(buffer, LNRNN_MESSAGE, "(");
    for (size_t k = 0; k < array->ndim; k++)
        n += snprintf(buffer + n, LNRNN_MESSAGE - (size_t)n, "%s%zu", k ? ", " : "", array->shape[k]);
    snprintf(buffer + n, LNRNN_MESSAGE - (size_t)n, "%s %.8s", array->ndim == 1 ? ",)" : ")", dtype);
    return buffer;
}

static lnrnn_status misfit(const char *name, const lnrnn_tensor *there, const lnrnn_array *wanted,
                           char *message)
{
    char is[LNRNN_MESSAGE], says[LNRNN_MESSAGE], shown[LNRNN_SHOWN];
    return lnrnn_fail(message, LNRNN_INVALID, "tensor %s is %s, its configuration says %s",
                      lnrnn_text_shown(name, shown),
                      there ? described(&there->array, there->dtype, is) : "nothing",
                      wanted ? described(wanted, lnrnn_dtype_names[wanted->dtype], says) : "nothing");
}

/* Before data are read: a few bytes of metadata can ask for any amount of memory. */
static lnrnn_status check_arrays(const lnrnn_safetensors *file, lnrnn_description *d, char *message)
{
    char name[LNRNN_ARRAY_NAME];
    if (d->num_layers > file->count)
        return lnrnn_fail(message, LNRNN_INVALID, "its configuration says %zu layers, it has %zu tensors",
                          d->num_layers, file->count);
    const lnrnn_tensor *count = lnrnn_safetensors_find(file, "count_l0");
    d->steps = d->max_steps ? d->max_steps : count && count->array.ndim ? count->array.shape[0] : 0;
    size_t wanted = lnrnn_description_arrays(d);
    for (size_t k = 0; k < wanted; k++) {
        lnrnn_array like = lnrnn_description_array(d, k, name);
        lnrnn_tensor *there = lnrnn_safetensors_find(file, name);
        if (!there || there->array.dtype != like.dtype || there->array.ndim != like.ndim
            || memcmp(there->array.shape, like.shape, like.ndim * sizeof *like.shape))
            return misfit(name, there, &like, message);
        there->wanted = 1;
    }
    for (size_t k = 0; k < file->count; k++)
        if (!file->tensors[k].wanted)
            return misfit(file->tensors[k].array.name, &file->tensors[k], NULL, message);
    return LNRNN_OK;
}

/* --- files ---------------------------------------------------------------------------------------------- */

static lnrnn_status read_model(FILE *stream, uint64_t size, lnrnn_model_file *model, char *message)
{
    char shown[LNRNN_SHOWN];
    lnrnn_safetensors *file = &model->file;
    lnrnn_status status = lnrnn_safetensors_open(stream, size, file, message);
    if (status)
        return status;
    lnrnn_text *meta = file->metadata, none = {"", 0};
    for (int k = 0; k < LNRNN_METADATA; k++)
        meta[k] = meta[k].bytes ? meta[k] : none;
    if (!lnrnn_text_is(meta[LNRNN_META_FORMAT], "lnrnn"))
        return lnrnn_fail(message, LNRNN_INVALID, "it is a safetensors file, but not of an lnrnn model");
    if (!lnrnn_text_is(meta[LNRNN_META_SCHEMA], "1"))
        return lnrnn_fail(message, LNRNN_OTHER_VERSION, "its schema is %s, this version reads 1",
                          lnrnn_text_shown(meta[LNRNN_META_SCHEMA].bytes, shown));
    if (!(status = lnrnn_description_read(meta[LNRNN_META_CONFIG].bytes, meta[LNRNN_META_CONFIG].length,
                                          &model->description, message))
        && !(status = check_arrays(file, &model->description, message)))
        status = lnrnn_safetensors_read(stream, file, message);
    const lnrnn_tensor *count = lnrnn_safetensors_find(file, "count_l0");
    for (size_t k = 0; k < file->count && !status; k++)
        status = lnrnn_check_values(&file->tensors[k].array, count ? &count->array : NULL, message);
    return status;
}

lnrnn_status lnrnn_model_file_read(FILE *stream, uint64_t size, lnrnn_model_file *model,
                                   char message[LNRNN_MESSAGE])
{
    lnrnn_status status = read_model(stream, size, model, message);
    if (status)
        lnrnn_model_file_close(model);
    return status;
}

static lnrnn_status cannot(char *message)
{
    int missing = errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == ELOOP;
    return lnrnn_fail(message, missing ? LNRNN_NO_FILE : LNRNN_CANNOT_READ, "%s", strerror(errno));
}

lnrnn_status lnrnn_model_file_open(const char *path, lnrnn_model_file *model, char message[LNRNN_MESSAGE])
{
    struct stat about;
    FILE *stream = NULL;
    lnrnn_status status;
    int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a pipe is not waited for */
    if (descriptor < 0)
        return cannot(message);
    if (fstat(descriptor, &about))
        status = cannot(message); /* GCOVR_EXCL_LINE: a disk that fails */
    else if (!S_ISREG(about.st_mode))
        status = lnrnn_fail(message, LNRNN_INVALID, "it is not a regular file");
    else if (!(stream = fdopen(descriptor, "rb")))
        status = lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory"); /* GCOVR_EXCL_LINE: no memory */
    if (!stream) {
        close(descriptor);
        return status;
    }
    setvbuf(stream, NULL, _IONBF, 0); /* the reads are large, and a buffer takes memory */
    status = lnrnn_model_file_read(stream, (uint64_t)about.st_size, model, message);
    fclose(stream);
    return status;
}

void lnrnn_model_file_close(lnrnn_model_file *model) { lnrnn_safetensors_close(&model->file); }
