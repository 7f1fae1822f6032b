#define _FILE_OFFSET_BITS 64 /* else off_t has 32 bits on Windows */
#include "file/model_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "runtime/os.h"

_Static_assert(sizeof(off_t) >= sizeof(size_t), "fseeko takes the place of every byte");

/* --- the header ----------------------------------------------------------------------------------------- */

typedef struct {
    lnrnn_array array;
    const char *dtype;
    size_t places, place[2]; /* begin and end of the data, counted from the end of the header */
    unsigned seen;           /* a bit for each entry that was read */
    int blocked;             /* 1: the blocks of a weight; the next tensor is their mask */
} tensor;

/* Indices of reader.metadata. */
enum { FORMAT, SCHEMA, CONFIG, METADATA };

typedef struct {
    FILE *stream;
    const char *bytes;        /* the file in memory, if stream is NULL */
    tensor *tensors;          /* (count), with memory for `most` tensors */
    size_t count, most, data; /* data: where the data begin in the file */
    char *metadata[METADATA]; /* NULL: the file lacks this entry */
    const lnrnn_array **used;
} reader;

#define REFUSE(...)                    \
    lnrnn_fail(message, LNRNN_INVALID, \
               "it is not a complete safetensors file, which save writes: " __VA_ARGS__)

/* Reads `bytes` bytes of the file, from position `at` on. Fails if the disk fails, or if the file has become
 * shorter. */
static lnrnn_status take(const reader *r, size_t at, void *to, size_t bytes, char *message)
{
    if (!r->stream) /* GCOVR_EXCL_BR_LINE: the fuzzer reads memory */
        memcpy(to, r->bytes + at, bytes);
    /* GCOVR_EXCL_BR_LINE: the fuzzer reads memory; a disk may fail */
    if (!r->stream || (!fseeko(r->stream, (off_t)at, SEEK_SET) && fread(to, 1, bytes, r->stream) == bytes))
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
        /* GCOVR_EXCL_BR_LINE: a shorter entry is invalid and ends the file before */
        if (!is_metadata && r->count == r->most)
            return "exceeds the largest number of tensors";
        if (!is_metadata)
            r->tensors[r->count++].array.name = json->name[1];
    } else if (is_metadata) {
        const int k = lnrnn_place(json->name[2], "'format', 'schema', 'config'");
        if (v->kind != '"')
            return "has a value that is not a string";
        if (k >= 0 && r->metadata[k])
            return "has an entry twice";
        if (k >= 0)
            r->metadata[k] = (char *)v->text;
    } else {
        tensor *const t = &r->tensors[r->count - 1];
        const int k = lnrnn_place(json->name[2], "'dtype', 'shape', 'data_offsets'");
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

static int by_name(const void *a, const void *b)
{
    return strcmp(((const tensor *)a)->array.name, ((const tensor *)b)->array.name);
}

/* *end: the end of the previous tensor's data, where the data of t must begin. Sets *end to the end of t's
 * data. Returns NULL, or a text that says why the tensor is invalid. */
static const char *check_tensor(tensor *t, size_t *end)
{
    if (t->seen != 7 || t->places != 2 || t->place[0] > t->place[1])
        return INVALID;
    const int dtype = lnrnn_place(t->dtype, "'F32', 'F64', 'I64', 'BOOL'");
    size_t bytes = dtype == LNRNN_ARRAY_F32 ? 4 : dtype == LNRNN_ARRAY_OTHER ? 1 : 8;
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

/* Reads the header, and checks that the data fill the `bytes` bytes after the header. Sorts the tensors by
 * name. */
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
        return REFUSE("its header is not valid JSON at byte %td", json->wrong - start);
    size_t end = 0;
    if (!wrong)
        qsort(r->tensors, r->count, sizeof *r->tensors, by_place);
    for (size_t k = 0; k < r->count && !wrong; k++)
        if ((wrong = check_tensor(&r->tensors[k], &end)))
            name = r->tensors[k].array.name;
    if (!wrong && end != bytes)
        wrong = "has data that do not end with the file";
    qsort(r->tensors, r->count, sizeof *r->tensors, by_name);
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
    lnrnn_status status = take(r, 0, prefix, sizeof prefix, message);
    if (status)
        return status; /* GCOVR_EXCL_LINE: if a disk fails */
    for (int k = 8; k--;)
        length = length << 8 | prefix[k];
    size -= sizeof prefix;
    if (length > MOST_BYTES || length > size || length == 0)
        return REFUSE("the length of its header is %llu, and %llu bytes follow", (unsigned long long)length,
                      (unsigned long long)size);
    /* GCOVR_EXCL_BR_LINE: only a header of more than 3 MB */
    r->most = length / LEAST_TENSOR < MOST_TENSORS ? length / LEAST_TENSOR + 1 : MOST_TENSORS;
    r->tensors = calloc(r->most, sizeof *r->tensors);
    model->arrays = malloc(r->most * sizeof *model->arrays);
    model->header = malloc((size_t)length + 1);
    if (!r->tensors || !model->arrays || !model->header)
        return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory"); /* GCOVR_EXCL_LINE: no memory */
    if ((status = take(r, sizeof prefix, model->header, (size_t)length, message)))
        return status; /* GCOVR_EXCL_LINE: if a disk fails */
    model->header[length] = '\0';
    r->data = sizeof prefix + (size_t)length;
    lnrnn_json json = {.at = model->header, .end = model->header + length};
    return read_header(&json, r, (size_t)(size - length), message);
}

/* --- the data ------------------------------------------------------------------------------------------- */

static size_t bytes_of(const tensor *t) { return t->place[1] - t->place[0]; }

static lnrnn_status take_tensor(const reader *r, const tensor *t, void *to, char *message)
{
    return take(r, r->data + t->place[0], to, bytes_of(t), message);
}

/* In schema 2, two tensors may stand for a weight W (n, k). W.blocks (count, 8, 4) has the blocks that are
 * not 0. W.mask (n / 8, k / 4) is 1 at the positions of these blocks. Both are in C order. */
enum { BLOCK = LNRNN_BLOCK_OUTPUTS * LNRNN_BLOCK_INPUTS * sizeof(float) };

/* If t is a tensor W.blocks, sets *weight to the name, dtype and shape of W. */
static lnrnn_status join(const reader *r, tensor *t, lnrnn_array *weight, char *message)
{
    const tensor *const mask = t + 1;
    const size_t length = strcspn(t->array.name, "."), *const blocks = t->array.shape,
                 *const grid = mask->array.shape;
    char *const name = (char *)t->array.name, *const end = name + length;
    LNRNN_CHECK(strcmp(end, ".mask"), "%.60s must come with a tensor .blocks", name);
    t->blocked = !strcmp(end, ".blocks");
    if (!t->blocked)
        return LNRNN_OK;
    LNRNN_CHECK(!strncmp(name, "weight_ih_", 10) || !strncmp(name, "weight_hh_", 10),
                "%.60s is not allowed: only weight_ih and weight_hh have blocks", name);
    LNRNN_CHECK(t->array.dtype == LNRNN_ARRAY_F32 && t->array.ndim == 3 && blocks[1] == LNRNN_BLOCK_OUTPUTS
                    && blocks[2] == LNRNN_BLOCK_INPUTS,
                "%.60s must be float32 (count, 8, 4)", name);
    LNRNN_CHECK(mask < r->tensors + r->count && !strncmp(mask->array.name, name, length)
                    && !strcmp(mask->array.name + length, ".mask"),
                "%.60s must come with a tensor .mask", name);
    LNRNN_CHECK(!strcmp(mask->dtype, "BOOL") && mask->array.ndim == 2 && grid[0] <= INT32_MAX / 8
                    && grid[1] <= INT32_MAX / 4,
                "%.60s must be bool (outputs / 8, inputs / 4)", mask->array.name);
    *end = '\0';
    weight->ndim = 2;
    weight->shape[0] = grid[0] * LNRNN_BLOCK_OUTPUTS;
    weight->shape[1] = grid[1] * LNRNN_BLOCK_INPUTS;
    return LNRNN_OK;
}

/* t: the tensor W.blocks, which W.mask follows. Reads both, and writes the dense weight to w. */
static lnrnn_status take_blocks(const reader *r, const tensor *t, float *w, char *message)
{
    const tensor *const mask = t + 1;
    const size_t cells = bytes_of(mask), columns = mask->array.shape[1], row = BLOCK / LNRNN_BLOCK_OUTPUTS;
    unsigned char *const is = calloc(1, cells + bytes_of(t)), *block = is + cells;
    if (!is)
        return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory"); /* GCOVR_EXCL_LINE: no memory */
    lnrnn_status status = take_tensor(r, mask, is, message);
    status = status ? status : take_tensor(r, t, block, message); /* GCOVR_EXCL_BR_LINE: a disk may fail */
    size_t count = 0, others = 0;
    for (size_t b = 0; b < cells; b++)
        count += is[b] == 1, others += is[b] > 1;
    if (!status && (others || count != t->array.shape[0])) /* GCOVR_EXCL_BR_LINE: a disk may fail */
        status = lnrnn_fail(message, LNRNN_INVALID,
                            "%.60s must have %zu bytes of 1, all others 0, got %zu of 1 and %zu above 1",
                            mask->array.name, t->array.shape[0], count, others);
    memset(w, 0, cells * BLOCK);
    for (size_t b = 0; b < cells && !status; b++)
        for (size_t o = 0; is[b] && o < LNRNN_BLOCK_OUTPUTS; o++, block += row)
            memcpy((char *)w + ((b / columns * LNRNN_BLOCK_OUTPUTS + o) * columns + b % columns) * row, block,
                   row);
    free(is);
    return status;
}

/* Returns the bytes of memory for a tensor as a dense array, in whole cache lines. */
static size_t memory_of(const tensor *t)
{
    return ((t->blocked ? bytes_of(t + 1) * BLOCK : bytes_of(t)) + 63) / 64 * 64;
}

/* Checks names, dtypes and shapes before it allocates, because a few bytes of a bad file can ask for any
 * amount of memory. */
static lnrnn_status read_arrays(reader *r, int may_have_blocks, lnrnn_model_file *model, char *message)
{
    tensor *const first = r->tensors, *const end = first + r->count;
    size_t bytes = 64; /* so that arrays without elements have an address too */
    lnrnn_status status = LNRNN_OK;
    for (tensor *t = first; t < end && !status; t += 1 + t->blocked, model->count++) {
        model->arrays[model->count] = t->array;
        if (may_have_blocks)
            status = join(r, t, &model->arrays[model->count], message);
    }
    status = status ? status
                    : lnrnn_match_arrays(&model->description, model->arrays, model->count, &r->used, message);
    if (status)
        return status;
    int fits = 1;
    for (const tensor *t = first; t < end; t += 1 + t->blocked)
        fits &= !__builtin_add_overflow(bytes, memory_of(t), &bytes);
    /* GCOVR_EXCL_BR_LINE: tensors lie in the file, whose size fits */
    char *at = model->data = fits ? lnrnn_alloc_aligned(64, bytes) : NULL;
    if (!at)
        return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory"); /* GCOVR_EXCL_LINE: no memory */
    lnrnn_array *array = model->arrays;
    /* GCOVR_EXCL_BR_LINE: a disk may fail */
    for (const tensor *t = first; t < end && !status; t += 1 + t->blocked, array++) {
        array->data = at;
        status = t->blocked ? take_blocks(r, t, (float *)at, message) : take_tensor(r, t, at, message);
        at += memory_of(t);
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
    const int schema = meta[SCHEMA] ? lnrnn_place(meta[SCHEMA], "'1', '2'") : -1;
    if (schema < 0)
        return lnrnn_fail(message, LNRNN_OTHER_VERSION, "its schema is '%.54s', this version reads 1 and 2",
                          meta[SCHEMA] ? meta[SCHEMA] : "");
    model->configuration = meta[CONFIG] ? meta[CONFIG] : "";
    status = lnrnn_description_read(model->configuration, strlen(model->configuration), &model->description,
                                    message);
    return status ? status : read_arrays(r, schema, model, message);
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
    /* GCOVR_EXCL_BR_LINE: root may read every file */
    const int none = errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG || errno == ELOOP;
    /* GCOVR_EXCL_BR_LINE: root may read every file */
    return lnrnn_fail(message, none ? LNRNN_NO_FILE : LNRNN_CANNOT_READ, "%s", strerror(errno));
}

void lnrnn_model_file_close(lnrnn_model_file *model)
{
    free(model->arrays);
    free(model->header);
    lnrnn_free_aligned(model->data);
    *model = (lnrnn_model_file){0};
}
