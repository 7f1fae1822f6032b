#include "file/model_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "runtime/os.h"

/* --- the configuration ---------------------------------------------------------------------------------- */

/* A description, and facts about the file that a description lacks. */
typedef struct {
    lnrnn_description d;
    size_t bits;    /* activation_bits, or 0 if the file has none */
    int norm, pair; /* 1 if the norm is an object; 1 if zoneout is a list */
} configuration;

enum { SIZE, NUMBER, FLAG, CHOICE, RATES, NORM };
/* Bits of an entry of ENTRIES. OPTIONAL: it may be missing. NULLABLE: it may be null. Other bits: the
 * networks that may have it, and GRU: it may be missing in a GRU. */
enum {
    ALL = 1,
    ACTIVATED = 2,
    ANY_NORM = 4,
    LAYER = 8,
    BATCH = 16,
    PAIR = 32,
    OPTIONAL = 64,
    NULLABLE = 128,
    SLSTM = 1024,
    GRU = 2048,
    OF_SLSTM = SLSTM | OPTIONAL
};
enum { OF_ALL = ALL | OPTIONAL, OF_LAYER = LAYER | OPTIONAL, OF_BATCH = BATCH | OPTIONAL };

#define AT(member) offsetof(configuration, member)

/* The entries of a configuration. choices: the names of the values first, first + 1, ... null: the value for
 * JSON's null. */
static const struct {
    const char *name;
    int type, of;
    size_t offset;
    const char *choices;
    int first, null;
} ENTRIES[] = {
    {"cell", CHOICE, ALL, AT(d.cell), lnrnn_cell_names, 0, 0},
    {"nonlinearity", CHOICE, ACTIVATED | GRU, AT(d.act), lnrnn_act_names, 0, 0},
    {"dtype", CHOICE, ALL, AT(d.weights), "one of 'float32', 'bfloat16', 'int8'", 0, 0},
    {"activation_bits", SIZE, OF_ALL | NULLABLE, AT(bits), NULL, 0, 0},
    {"input_size", SIZE, ALL, AT(d.input_size), NULL, 0, 0},
    {"hidden_size", SIZE, ALL, AT(d.hidden_size), NULL, 0, 0},
    {"num_layers", SIZE, ALL, AT(d.num_layers), NULL, 0, 0},
    {"proj_size", SIZE, OF_ALL, AT(d.proj_size), NULL, 0, 0},
    {"bias", FLAG, ALL, AT(d.bias), NULL, 0, 0},
    {"batch_first", FLAG, ALL, AT(d.batch_first), NULL, 0, 0},
    {"bidirectional", FLAG, ALL, AT(d.bidirectional), NULL, 0, 0},
    {"reverse", FLAG, OF_ALL, AT(d.reverse), NULL, 0, 0},
    {"reset_after", FLAG, OF_ALL, AT(d.reset_after), NULL, 0, 0},
    {"num_heads", SIZE, OF_ALL, AT(d.num_heads), NULL, 0, 0},
    {"gate_activation", CHOICE, OF_ALL, AT(d.gate_activation), "one of 'sigmoid', 'hard_sigmoid'", 0, 0},
    {"peepholes", FLAG, OF_ALL, AT(d.peepholes), NULL, 0, 0},
    {"exp_forget", FLAG, OF_SLSTM, AT(d.exp_forget), NULL, 0, 0},
    {"state_dtype", CHOICE, OF_SLSTM, AT(d.bfloat16_states), "one of 'float32', 'bfloat16'", 0, 0},
    {"dropout", NUMBER, OF_ALL, AT(d.dropout), NULL, 0, 0},
    {"zoneout", RATES, OF_ALL, AT(pair), NULL, 0, 0},
    {"zoneout.0", NUMBER, PAIR, AT(d.zoneout[0]), NULL, 0, 0},
    {"zoneout.1", NUMBER, PAIR, AT(d.zoneout[1]), NULL, 0, 0},
    {"norm", NORM, ALL | NULLABLE, AT(norm), NULL, 0, 0},
    {"norm.kind", CHOICE, ANY_NORM, AT(d.norm), "one of 'layer', 'batch', 'rms'", LNRNN_NORM_LAYER, 0},
    {"norm.eps", NUMBER, ANY_NORM | OPTIONAL, AT(d.eps), NULL, 0, 0},
    {"norm.placement", CHOICE, OF_LAYER | NULLABLE, AT(d.placement), lnrnn_placement_names, 0,
     LNRNN_PLACEMENTS},
    {"norm.cell", CHOICE, OF_LAYER | NULLABLE, AT(d.cell_norm), "one of 'out', 'carry'", LNRNN_CELL_OUT, 0},
    {"norm.span", CHOICE, OF_LAYER | NULLABLE, AT(d.span), "'all'", LNRNN_SPAN_ALL, 0},
    {"norm.inner_bias", FLAG, OF_LAYER, AT(d.inner_bias), NULL, 0, 0},
    {"norm.max_steps", SIZE, OF_BATCH | NULLABLE, AT(d.max_steps), NULL, 0, 0},
    {"norm.overrun", CHOICE, OF_BATCH, AT(d.overrun), "one of 'raise', 'last', 'mean', 'batch'", 0, 0},
    {"norm.momentum", NUMBER, OF_BATCH | NULLABLE, AT(d.momentum), NULL, 0, -1},
};
enum { NUM_ENTRIES = sizeof ENTRIES / sizeof *ENTRIES };
_Static_assert(NUM_ENTRIES <= 32, "`seen` has a bit for each entry");

/* names: texts in single quotes. Returns the index of `text` among them, or -1. */
static int place(const char *text, const char *names)
{
    const size_t length = strlen(text);
    for (int k = 0; (names = strchr(names, '\'')); k++) {
        const size_t n = strcspn(++names, "'");
        if (n == length && !memcmp(names, text, n))
            return k;
        names += n + 1;
    }
    return -1;
}

/* Reads the value of entry k. Returns NULL, or a description of valid values if the value is invalid. */
static const char *read_value(int k, const lnrnn_json_value *v, configuration *c)
{
    void *const to = (char *)c + ENTRIES[k].offset;
    const int null = v->kind == 'n' && ENTRIES[k].of & NULLABLE, number = v->kind == 'i' || v->kind == 'd';
    switch (ENTRIES[k].type) {
    case SIZE:
        *(size_t *)to = (size_t)(null ? 0 : v->integer);
        return null || (v->kind == 'i' && v->integer >= 1) ? NULL : "an integer of at least 1";
    case NUMBER:
        *(double *)to = null ? ENTRIES[k].null : v->number;
        return null || (number && v->number >= 0) ? NULL : "a number of at least 0";
    case FLAG: *(int *)to = v->kind == 't'; return v->kind == 't' || v->kind == 'f' ? NULL : "true or false";
    case CHOICE: {
        const int choice = v->kind == '"' ? place(v->text, ENTRIES[k].choices) : -1;
        *(int *)to = null ? ENTRIES[k].null : ENTRIES[k].first + choice;
        return null || choice >= 0 ? NULL : ENTRIES[k].choices;
    }
    case RATES:
        c->pair = v->kind == '[';
        c->d.zoneout[0] = c->d.zoneout[1] = v->number;
        return c->pair || (number && v->number >= 0) ? NULL
                                                     : "a number of at least 0, or of an LSTM a list of two";
    default: c->norm = v->kind == '{'; return c->norm || null ? NULL : "null or an object";
    }
}

/* Reads the configuration into *d. Changes the text, because strings are decoded in place. */
static lnrnn_status read_configuration(char *text, size_t length, lnrnn_description *d, char *message)
{
    lnrnn_json json = {.at = text, .end = text + length};
    configuration c = {.d = lnrnn_describe(0, 0, 0)};
    unsigned seen = 0;
    lnrnn_json_value v = lnrnn_json_next(&json);
    c.d.norm = LNRNN_NORM_NONE;
    LNRNN_CHECK(v.kind == '{', "its configuration must be a JSON object");
    while ((v = lnrnn_json_next(&json)).kind) {
        const char *const outer = json.name[1], *const inner = json.name[2];
        char name[80];
        int k = 0;
        snprintf(name, sizeof name, "%.32s%s%.32s", outer, *inner ? "." : "", inner);
        while (k < NUM_ENTRIES && strcmp(name, ENTRIES[k].name))
            k++;
        LNRNN_CHECK(k < NUM_ENTRIES && !strchr(outer, '.'),
                    "its configuration has the entry '%s' that is unknown", name);
        LNRNN_CHECK(!(seen >> k & 1), "its configuration has the entry '%s' twice", name);
        seen |= 1u << k;
        const char *const expected = read_value(k, &v, &c), *const quote = v.kind == '"' ? "'" : "";
        const size_t shown = *quote ? strlen(v.text) : (size_t)(json.at - v.text);
        LNRNN_CHECK(!expected, "%s must be %s, got %s%.*s%s", name, expected, quote,
                    shown < 54 ? (int)shown : 54, v.text, quote);
    }
    LNRNN_CHECK(!json.wrong, "its configuration is no JSON at byte %td", json.wrong - text);
    const int is = ALL | (lnrnn_cell_table[c.d.cell].activated ? ACTIVATED : 0)
                   | (c.d.cell == LNRNN_GRU ? GRU : 0) | (c.d.cell == LNRNN_SLSTM ? SLSTM : 0)
                   | (c.norm ? ANY_NORM : 0) | (c.pair ? PAIR : 0)
                   | (!c.norm                        ? 0
                      : c.d.norm == LNRNN_NORM_BATCH ? BATCH
                                                     : LAYER);
    for (int k = 0; k < NUM_ENTRIES; k++) {
        const int has = seen >> k & 1, of = ENTRIES[k].of;
        LNRNN_CHECK(!has || of & is, "its configuration has the entry '%s' of another kind", ENTRIES[k].name);
        LNRNN_CHECK(has || of & OPTIONAL || !(of & is & ~GRU), "its configuration has no entry '%s'",
                    ENTRIES[k].name);
    }
    LNRNN_CHECK(!c.pair || c.d.cell == LNRNN_LSTM, "zoneout must be a number, only of an LSTM a list of two");
    LNRNN_CHECK(!c.bits || (c.d.weights == LNRNN_WEIGHT_I8 && (c.bits == 8 || c.bits == 14)),
                "activation_bits must be 14 or 8 and only of int8, got %zu", c.bits);
    if (c.bits == 8)
        c.d.weights = LNRNN_WEIGHT_I8A8;
    *d = c.d;
    return lnrnn_description_resolve(d, message);
}

lnrnn_status lnrnn_description_read(const char *text, size_t length, lnrnn_description *d, char *message)
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

/* --- the header ----------------------------------------------------------------------------------------- */

typedef struct {
    lnrnn_array array;
    const char *dtype;
    size_t places, place[2]; /* begin and end of the data, counted from the end of the header */
    unsigned seen;           /* a bit for each entry that was read */
} tensor;

/* Indices of the metadata. */
enum { FORMAT, SCHEMA, CONFIG, METADATA };

typedef struct {
    FILE *stream;      /* or NULL: */
    const char *bytes; /* the next byte */
    tensor *tensors;   /* (count), with memory for `most` */
    size_t count, most;
    char *metadata[METADATA]; /* NULL: the file has none */
    const lnrnn_array **used;
} reader;

#define REFUSE(...)                    \
    lnrnn_fail(message, LNRNN_INVALID, \
               "it is no whole file of safetensors, which is what save writes: " __VA_ARGS__)

/* Reads `bytes` bytes. Fails if the disk fails, or if the file has become shorter. */
static lnrnn_status take(reader *r, void *to, size_t bytes, char *message)
{
    if (!r->stream) {
        memcpy(to, r->bytes, bytes);
        r->bytes += bytes;
        return LNRNN_OK;
    }
    if (fread(to, 1, bytes, r->stream) == bytes)
        return LNRNN_OK;
    return lnrnn_fail(message, LNRNN_CANNOT_READ, "it ends too early"); /* GCOVR_EXCL_LINE: if a disk fails */
}

static const char INVALID[] = "must have a valid dtype, shape and data_offsets, and nothing else";

/* Processes the next value of the header. Returns NULL, or a text that says why the entry is invalid. */
static const char *read_entry(const lnrnn_json *json, const lnrnn_json_value *v, reader *r)
{
    const int is_metadata = !strcmp(json->name[1], "__metadata__");
    if (v->depth == 1) {
        if (v->kind != '{')
            return "is not an object";
        if (!is_metadata && r->count == r->most)
            return "is one of too many";
        if (!is_metadata)
            r->tensors[r->count++].array.name = json->name[1];
    } else if (is_metadata) {
        const int k = place(json->name[2], "'format', 'schema', 'config'");
        if (v->kind != '"')
            return "has a value that is not a string";
        if (k >= 0 && r->metadata[k])
            return "has an entry twice";
        if (k >= 0)
            r->metadata[k] = (char *)v->text;
    } else {
        tensor *const t = &r->tensors[r->count - 1];
        const int k = place(json->name[2], "'dtype', 'shape', 'data_offsets'");
        if (v->depth == 2) {
            if (k < 0 || t->seen >> k & 1 || v->kind != (k ? '[' : '"'))
                return INVALID;
            t->seen |= 1u << k;
            t->dtype = k ? t->dtype : v->text;
        } else {
            const size_t n = json->index[3];
            if (n > (k == 1 ? LNRNN_ARRAY_DIMS : 2) || v->kind != 'i' || v->integer < 0)
                return INVALID;
            if (k == 1)
                t->array.shape[n - 1] = (size_t)v->integer, t->array.ndim = n;
            else
                t->place[n - 1] = (size_t)v->integer, t->places = n;
        }
    }
    return NULL;
}

static int by_place(const void *a, const void *b)
{
    const size_t *const x = ((const tensor *)a)->place, *const y = ((const tensor *)b)->place;
    const int end = x[0] == y[0];
    return (x[end] > y[end]) - (x[end] < y[end]);
}

/* *end: where the data must begin. Sets *end to the end of the data. Returns NULL, or a text that says why
 * the tensor is invalid. */
static const char *check_tensor(tensor *t, size_t *end)
{
    if (t->seen != 7 || t->places != 2 || t->place[0] > t->place[1])
        return INVALID;
    const int dtype = place(t->dtype, "'F32', 'F64', 'I64'");
    size_t bytes = dtype == LNRNN_ARRAY_F32 ? 4 : 8;
    t->array.dtype = dtype < 0 ? LNRNN_ARRAY_OTHER : dtype;
    for (size_t k = 0; k < t->array.ndim; k++)
        if (__builtin_mul_overflow(bytes, t->array.shape[k], &bytes))
            return "has a shape that overflows";
    if (dtype >= 0 && t->place[1] - t->place[0] != bytes)
        return "has a shape of another size than its data_offsets";
    if (t->place[0] != *end)
        return "has data that overlap or leave a gap";
    *end = t->place[1];
    return NULL;
}

/* Reads the header, sorts the tensors by place, and checks that the data fill the `bytes` bytes after the
 * header. */
static lnrnn_status read_header(lnrnn_json *json, reader *r, size_t bytes, char *message)
{
    const char *const start = json->at, *wrong = NULL, *name = NULL;
    lnrnn_json_value v = lnrnn_json_next(json);
    if (v.kind && v.kind != '{')
        wrong = "is not an object";
    while (!wrong && (v = lnrnn_json_next(json)).kind)
        if ((wrong = read_entry(json, &v, r)))
            name = json->name[1];
    if (json->wrong)
        return REFUSE("its header is no JSON at byte %td", json->wrong - start);
    size_t end = 0;
    if (!wrong)
        qsort(r->tensors, r->count, sizeof *r->tensors, by_place);
    for (size_t k = 0; k < r->count && !wrong; k++)
        if ((wrong = check_tensor(&r->tensors[k], &end)))
            name = r->tensors[k].array.name;
    if (!wrong && end != bytes)
        wrong = "has data that do not end with the file";
    return name    ? REFUSE("entry '%.54s' of its header %s", name, wrong)
           : wrong ? REFUSE("its header %s", wrong)
                   : LNRNN_OK;
}

static lnrnn_status open_header(reader *r, uint64_t size, lnrnn_model_file *model, char *message)
{
    enum { MOST_BYTES = 100000000, MOST_TENSORS = 1 << 16, LEAST_TENSOR = 48 };
    unsigned char prefix[8];
    uint64_t length = 0;
    if (size < sizeof prefix)
        return REFUSE("it has %d bytes", (int)size);
    lnrnn_status status = take(r, prefix, sizeof prefix, message);
    if (status)
        return status; /* GCOVR_EXCL_LINE: if a disk fails */
    for (int k = 8; k--;)
        length = length << 8 | prefix[k];
    size -= sizeof prefix;
    if (length > MOST_BYTES || length > size || length == 0)
        return REFUSE("the length of its header is %llu, and %llu bytes follow", (unsigned long long)length,
                      (unsigned long long)size);
    r->most = length / LEAST_TENSOR < MOST_TENSORS ? length / LEAST_TENSOR + 1 : MOST_TENSORS;
    r->tensors = calloc(r->most, sizeof *r->tensors);
    model->arrays = malloc(r->most * sizeof *model->arrays);
    model->header = malloc((size_t)length + 1);
    if (!r->tensors || !model->arrays || !model->header)
        return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory"); /* GCOVR_EXCL_LINE: no memory */
    if ((status = take(r, model->header, (size_t)length, message)))
        return status; /* GCOVR_EXCL_LINE: if a disk fails */
    model->header[length] = '\0';
    lnrnn_json json = {.at = model->header, .end = model->header + length};
    return read_header(&json, r, (size_t)(size - length), message);
}

/* --- the data ------------------------------------------------------------------------------------------- */

static size_t bytes_of(const tensor *t) { return t->place[1] - t->place[0]; }
static size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* Checks names, dtypes and shapes before it allocates, because a few bytes of a bad file can ask for any
 * amount of memory. */
static lnrnn_status read_arrays(reader *r, lnrnn_model_file *model, char *message)
{
    size_t bytes = 64; /* so that arrays without elements have an address too */
    model->count = r->count;
    for (size_t k = 0; k < r->count; k++) {
        model->arrays[k] = r->tensors[k].array;
        bytes += aligned(bytes_of(&r->tensors[k]));
    }
    lnrnn_status status = lnrnn_match_arrays(&model->description, model->arrays, r->count, &r->used, message);
    if (status)
        return status;
    char *at = model->data = lnrnn_alloc_aligned(64, bytes);
    if (!at)
        return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory"); /* GCOVR_EXCL_LINE: no memory */
    for (size_t k = 0; k < r->count && !status; k++) {
        model->arrays[k].data = at;
        status = take(r, at, bytes_of(&r->tensors[k]), message);
        at += aligned(bytes_of(&r->tensors[k]));
    }
    return status ? status : lnrnn_check_values(&model->description, r->used, message);
}

static lnrnn_status read_all(reader *r, uint64_t size, lnrnn_model_file *model, char *message)
{
    char *const *const meta = r->metadata;
    lnrnn_status status = open_header(r, size, model, message);
    if (status)
        return status;
    LNRNN_CHECK(meta[FORMAT] && !strcmp(meta[FORMAT], "lnrnn"),
                "it is a safetensors file, but not of an lnrnn model");
    if (!meta[SCHEMA] || strcmp(meta[SCHEMA], "1"))
        return lnrnn_fail(message, LNRNN_OTHER_VERSION, "its schema is '%.54s', this version reads 1",
                          meta[SCHEMA] ? meta[SCHEMA] : "");
    model->configuration = meta[CONFIG] ? meta[CONFIG] : "";
    status = lnrnn_description_read(model->configuration, strlen(model->configuration), &model->description,
                                    message);
    return status ? status : read_arrays(r, model, message);
}

/* --- files ---------------------------------------------------------------------------------------------- */

lnrnn_status lnrnn_model_file_read(FILE *stream, const void *bytes, uint64_t size, lnrnn_model_file *model,
                                   char *message)
{
    reader r = {.stream = stream, .bytes = bytes};
    *model = (lnrnn_model_file){0};
    const lnrnn_status status = read_all(&r, size, model, message);
    free(r.tensors);
    free(r.used);
    if (status)
        lnrnn_model_file_close(model);
    return status;
}

lnrnn_status lnrnn_model_file_open(const char *path, lnrnn_model_file *model, char *message)
{
    uint64_t bytes;
    FILE *const stream = lnrnn_file_open(path, &bytes);
    if (stream) {
        const lnrnn_status status = lnrnn_model_file_read(stream, NULL, bytes, model, message);
        fclose(stream);
        return status;
    }
    if (!errno)
        return lnrnn_fail(message, LNRNN_INVALID, "it is not a regular file");
    if (errno == ENOMEM)
        return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory"); /* GCOVR_EXCL_LINE: no memory */
    const int none = errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == ELOOP;
    return lnrnn_fail(message, none ? LNRNN_NO_FILE : LNRNN_CANNOT_READ, "%s", strerror(errno));
}

void lnrnn_model_file_close(lnrnn_model_file *model)
{
    free(model->arrays);
    free(model->header);
    lnrnn_free_aligned(model->data);
    *model = (lnrnn_model_file){0};
}
