#include "file/safetensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *const lnrnn_dtype_names[LNRNN_ARRAY_OTHER] = {"F32", "F64", "I64"};
static const size_t BYTES[LNRNN_ARRAY_OTHER] = {4, 8, 8};
static const char *const METADATA[LNRNN_METADATA] = {"format", "schema", "config"};
enum { ALIGNMENT = 64 };

#define REFUSE(...)                    \
    lnrnn_fail(message, LNRNN_INVALID, \
               "it is no whole file of safetensors, which is what save writes: " __VA_ARGS__)

static lnrnn_status take(FILE *stream, void *to, size_t bytes, char *message)
{
    if (fread(to, 1, bytes, stream) == bytes)
        return LNRNN_OK;
    /* GCOVR_EXCL_START: a disk that fails, and a file that changes while it is read */
    return ferror(stream) ? lnrnn_fail(message, LNRNN_CANNOT_READ, "%s", strerror(errno))
                          : REFUSE("it became shorter while it was read");
    /* GCOVR_EXCL_STOP */
}

/* --- entries of the header ------------------------------------------------------------------------------ */

/* A list of at most `most` integers from 0 on -> how many, or SIZE_MAX. */
static size_t integers(lnrnn_json *json, uint64_t *out, size_t most)
{
    size_t n = 0;
    if (lnrnn_json_next(json).kind != LNRNN_JSON_LIST)
        return SIZE_MAX;
    for (; lnrnn_json_item(json, n == 0); n++) {
        lnrnn_json_value value = lnrnn_json_next(json);
        if (n == most || value.kind != LNRNN_JSON_INTEGER || value.integer < 0)
            return SIZE_MAX;
        out[n] = (uint64_t)value.integer;
    }
    return n;
}

/* {"dtype": .., "shape": [..], "data_offsets": [begin, end]} -> NULL, or why it is none. */
static const char *read_tensor(lnrnn_json *json, lnrnn_tensor *tensor)
{
    lnrnn_array *array = &tensor->array;
    uint64_t offsets[2], shape[LNRNN_ARRAY_DIMS], size = 1;
    size_t dims = SIZE_MAX, bounds = 0, n = 0;
    lnrnn_text entry;
    if (lnrnn_json_next(json).kind != LNRNN_JSON_OBJECT)
        return "is not an object";
    for (; lnrnn_json_entry(json, n == 0, &entry); n++) {
        if (lnrnn_text_is(entry, "shape")) {
            dims = integers(json, shape, LNRNN_ARRAY_DIMS);
        } else if (lnrnn_text_is(entry, "data_offsets")) {
            bounds = integers(json, offsets, 2);
        } else { /* the entries of an object here are too many */
            lnrnn_json_value value = lnrnn_json_next(json);
            if (lnrnn_text_is(entry, "dtype") && value.kind == LNRNN_JSON_STRING)
                tensor->dtype = value.text.bytes;
        }
    }
    if (n != 3 || dims == SIZE_MAX || bounds != 2 || offsets[0] > offsets[1] || !tensor->dtype)
        return "must have a valid dtype, shape and data_offsets, and nothing else";
    while (array->dtype < LNRNN_ARRAY_OTHER && strcmp(tensor->dtype, lnrnn_dtype_names[array->dtype]))
        array->dtype++;
    for (size_t k = 0; k < dims; k++) {
        if (shape[k] && size > SIZE_MAX / 8 / shape[k])
            return "has a shape that overflows";
        size *= array->shape[k] = (size_t)shape[k];
    }
    array->ndim = dims;
    tensor->begin = offsets[0];
    tensor->end = offsets[1];
    if (array->dtype < LNRNN_ARRAY_OTHER && offsets[1] - offsets[0] != size * BYTES[array->dtype])
        return "has a shape of another size than its data_offsets";
    return NULL;
}

static const char *read_metadata(lnrnn_json *json, lnrnn_text metadata[LNRNN_METADATA])
{
    lnrnn_text entry;
    if (lnrnn_json_next(json).kind != LNRNN_JSON_OBJECT)
        return "is not an object";
    for (int first = 1; lnrnn_json_entry(json, first, &entry); first = 0) {
        lnrnn_json_value value = lnrnn_json_next(json);
        if (value.kind != LNRNN_JSON_STRING)
            return "has a value that is not a string";
        for (int k = 0; k < LNRNN_METADATA; k++)
            if (lnrnn_text_is(entry, METADATA[k])) {
                if (metadata[k].bytes)
                    return "has an entry twice";
                metadata[k] = value.text;
            }
    }
    return NULL;
}

/* --- the whole header ----------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const lnrnn_tensor *x = a, *y = b;
    uint64_t p = x->begin == y->begin ? x->end : x->begin, q = x->begin == y->begin ? y->end : y->begin;
    return (p > q) - (p < q);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const lnrnn_tensor *)a)->array.name, ((const lnrnn_tensor *)b)->array.name);
}

/* The data of the tensors, end to end, are all that follows the header; names differ. Sorts the tensors by
 * name. */
static const char *check_tensors(lnrnn_safetensors *file, uint64_t bytes, const char **name)
{
    lnrnn_tensor *t = file->tensors;
    uint64_t end = 0;
    size_t n = file->count;
    const char *wrong = NULL;
    if (n)
        qsort(t, n, sizeof *t, by_place);
    for (size_t k = 0; k < n && !wrong; end = t[k++].end)
        if (t[k].begin != end) {
            wrong = "has data that overlap or leave a gap";
            *name = t[k].array.name;
        }
    if (!wrong && end != bytes)
        wrong = "has data that do not end with the file";
    if (n)
        qsort(t, n, sizeof *t, by_name);
    for (size_t k = 1; k < n; k++)
        if (!by_name(&t[k - 1], &t[k])) {
            wrong = "stands there twice";
            *name = t[k].array.name;
        }
    return wrong;
}

static lnrnn_status read_header(lnrnn_json *json, uint64_t bytes, lnrnn_safetensors *file, char *message)
{
    char shown[LNRNN_SHOWN];
    const char *wrong = lnrnn_json_next(json).kind == LNRNN_JSON_OBJECT ? NULL : "is not an object";
    size_t room = 0;
    lnrnn_text name = {"", 0};
    for (int first = 1; !wrong && lnrnn_json_entry(json, first, &name); first = 0) {
        if (lnrnn_text_is(name, "__metadata__")) {
            wrong = read_metadata(json, file->metadata);
            continue;
        }
        if (file->count == room) {
            room = 2 * room + 16;
            lnrnn_tensor *more = realloc(file->tensors, room * sizeof *more);
            if (!more)
                return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory"); /* GCOVR_EXCL_LINE: no memory */
            file->tensors = more;
        }
        file->tensors[file->count] = (lnrnn_tensor){.array.name = name.bytes};
        wrong = read_tensor(json, &file->tensors[file->count++]);
        if (file->count > LNRNN_FILE_ARRAYS || strlen(name.bytes) != name.length)
            wrong = "is one of too many, or has a NUL in its name";
    }
    if (!wrong && !lnrnn_json_end(json))
        wrong = check_tensors(file, bytes, &name.bytes);
    if (wrong && *name.bytes)
        return REFUSE("entry %s of its header %s", lnrnn_text_shown(name.bytes, shown), wrong);
    return json->wrong ? REFUSE("its header is no JSON at byte %td", json->wrong - file->header)
           : wrong     ? REFUSE("its header %s", wrong)
                       : LNRNN_OK;
}

lnrnn_status lnrnn_safetensors_open(FILE *stream, uint64_t size, lnrnn_safetensors *file, char *message)
{
    unsigned char prefix[8];
    uint64_t length = 0;
    lnrnn_status status;
    *file = (lnrnn_safetensors){0};
    if (size < sizeof prefix)
        return REFUSE("it has %d bytes", (int)size);
    if ((status = take(stream, prefix, sizeof prefix, message)))
        return status; /* GCOVR_EXCL_LINE: see take */
    for (int k = 8; k--;)
        length = length << 8 | prefix[k];
    size -= sizeof prefix;
    if (length > LNRNN_HEADER_BYTES || length > size || length == 0)
        return REFUSE("the length of its header is %llu, and %llu bytes follow", (unsigned long long)length,
                      (unsigned long long)size);
    if (!(file->header = malloc((size_t)length)))
        return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory"); /* GCOVR_EXCL_LINE: no memory */
    if ((status = take(stream, file->header, (size_t)length, message)))
        return status; /* GCOVR_EXCL_LINE: see take */
    lnrnn_json json = {file->header, file->header + length, NULL};
    return read_header(&json, size - length, file, message);
}

/* --- the data ------------------------------------------------------------------------------------------- */

lnrnn_status lnrnn_safetensors_read(FILE *stream, lnrnn_safetensors *file, char *message)
{
    size_t bytes = ALIGNMENT; /* arrays without elements have an address too */
    lnrnn_status status = LNRNN_OK;
    for (size_t k = 0; k < file->count; k++)
        bytes += (size_t)(file->tensors[k].end - file->tensors[k].begin) + ALIGNMENT;
    bytes -= bytes % ALIGNMENT;
    char *at = file->data = aligned_alloc(ALIGNMENT, bytes);
    if (!at)
        return lnrnn_fail(message, LNRNN_NO_MEMORY, "no memory"); /* GCOVR_EXCL_LINE: no memory */
    if (file->count)
        qsort(file->tensors, file->count, sizeof *file->tensors, by_place);
    for (size_t k = 0; k < file->count && !status; k++) {
        size_t size = (size_t)(file->tensors[k].end - file->tensors[k].begin);
        file->tensors[k].array.data = at;
        status = take(stream, at, size, message);
        at += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    if (file->count)
        qsort(file->tensors, file->count, sizeof *file->tensors, by_name);
    return status;
}

void lnrnn_safetensors_close(lnrnn_safetensors *file)
{
    free(file->tensors);
    free(file->header);
    free(file->data);
    *file = (lnrnn_safetensors){0};
}

lnrnn_tensor *lnrnn_safetensors_find(const lnrnn_safetensors *file, const char *name)
{
    lnrnn_tensor key = {.array.name = name};
    return file->count ? bsearch(&key, file->tensors, file->count, sizeof key, by_name) : NULL;
}
