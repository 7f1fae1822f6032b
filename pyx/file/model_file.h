/* Reads files that Python's `save` writes, in the format safetensors: 8 bytes, the length of the header; the
 * header, in JSON; the data of named arrays. Numbers are little-endian.
 *
 * The header is read and checked first. No allocation for it is larger than 10 MB and three times the file.
 * The data are read only if names, dtypes and shapes are those of the network. */
#ifndef LNRNN_FILE_MODEL_FILE_H
#define LNRNN_FILE_MODEL_FILE_H

#include <stdio.h>

#include "file/description.h"

/* The Cython module, outside the library, calls these. */
#pragma GCC visibility push(default)

typedef struct {
    lnrnn_description description; /* resolved */
    lnrnn_array *arrays; /* (count): all of the description, in any order; data at multiples of 64 bytes */
    size_t count;
    const char *configuration; /* the JSON */
    char *header;              /* has the names and the configuration */
    void *data;
} lnrnn_model_file;

/* text (length): a configuration, the JSON in the metadata of a file. -> d, resolved. */
lnrnn_status lnrnn_description_read(const char *text, size_t length, lnrnn_description *d, char *message);
/* Reads a whole file. After LNRNN_OK the caller has to close it, when it no longer needs the arrays. */
lnrnn_status lnrnn_model_file_open(const char *path, lnrnn_model_file *model, char *message);
/* The same of a stream of `size` bytes. */
lnrnn_status lnrnn_model_file_read(FILE *stream, uint64_t size, lnrnn_model_file *model, char *message);
void lnrnn_model_file_close(lnrnn_model_file *model);

#pragma GCC visibility pop

#endif
