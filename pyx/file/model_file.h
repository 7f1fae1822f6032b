/* Files of networks, as Python's `save` writes them, in the format safetensors: 8 bytes, the length of the
 * header; the header, JSON; the data of named arrays. All numbers are little-endian.
 *
 * The header is read and checked first, and nothing is allocated that is larger than the file. The data are
 * read when names, dtypes and shapes are those of the network. */
#ifndef LNRNN_FILE_MODEL_FILE_H
#define LNRNN_FILE_MODEL_FILE_H

#include <stdio.h>

#include "file/description.h"

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

typedef struct {
    lnrnn_description description; /* resolved */
    lnrnn_array *arrays; /* (count): those of the description, in any order; data: aligned by 64 bytes */
    size_t count;
    char *header; /* has the names */
    void *data;
} lnrnn_model_file;

/* Reads a whole file. After LNRNN_OK it is to be closed when its arrays are no longer needed. */
lnrnn_status lnrnn_model_file_open(const char *path, lnrnn_model_file *model, char *message);
/* The same of a stream of `size` bytes. */
lnrnn_status lnrnn_model_file_read(FILE *stream, uint64_t size, lnrnn_model_file *model, char *message);
void lnrnn_model_file_close(lnrnn_model_file *model);

#pragma GCC visibility pop

#endif
