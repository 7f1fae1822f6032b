/* Files of safetensors: 8 bytes, the length of the header; the header, JSON; the data of named arrays. All
 * numbers are little-endian.
 *
 * The header is read and checked first, and nothing is allocated that is larger than the file. The data are
 * read when the caller has agreed to names, dtypes and shapes.
 */
#ifndef LNRNN_FILE_SAFETENSORS_H
#define LNRNN_FILE_SAFETENSORS_H

#include <stdio.h>

#include "file/description.h"
#include "file/json.h"

enum { LNRNN_HEADER_BYTES = 100000000, LNRNN_FILE_ARRAYS = 1 << 16 }; /* more are refused */

typedef struct {
    lnrnn_array array;   /* data: at a multiple of 64; NULL until it is read */
    const char *dtype;   /* as the file has it; of LNRNN_ARRAY_OTHER the size is not checked */
    uint64_t begin, end; /* the place of the data in the file */
    int wanted;          /* for the caller */
} lnrnn_tensor;

/* Entries of the metadata that are kept. */
enum { LNRNN_META_FORMAT, LNRNN_META_SCHEMA, LNRNN_META_CONFIG, LNRNN_METADATA };

typedef struct {
    lnrnn_tensor *tensors; /* (count), sorted by name */
    size_t count;
    lnrnn_text metadata[LNRNN_METADATA]; /* `bytes` is NULL where the file has none */
    char *header;                        /* holds names and texts */
    void *data;
} lnrnn_safetensors;

/* Reads the header of a file of `size` bytes. To be closed, also after an error. */
lnrnn_status lnrnn_safetensors_open(FILE *stream, uint64_t size, lnrnn_safetensors *file, char *message);
/* Reads the data of all tensors, from where open stopped. */
lnrnn_status lnrnn_safetensors_read(FILE *stream, lnrnn_safetensors *file, char *message);
/* Frees names, texts and data. */
void lnrnn_safetensors_close(lnrnn_safetensors *file);

/* The tensor of that name, or NULL. */
lnrnn_tensor *lnrnn_safetensors_find(const lnrnn_safetensors *file, const char *name);
extern const char *const lnrnn_dtype_names[LNRNN_ARRAY_OTHER];

#endif
