/* Reads files that Python's lnrnn.save writes. Their format is safetensors: the length of the header in 8
 * bytes, little-endian; the header, in JSON; the data of named arrays, little-endian.
 *
 * The header is read and checked first. This takes at most 10 MB and three times the size of the file as
 * memory. The data are read only if names, dtypes and shapes fit the network. A weight stored as blocks takes
 * at most 128 times the bytes of its mask as memory. */
#ifndef LNRNN_FILE_MODEL_FILE_H
#define LNRNN_FILE_MODEL_FILE_H

#include <stdio.h>

#include "file/description.h"

/* Exported for the Cython module. */
#pragma GCC visibility push(default)

typedef struct {
    lnrnn_description description; /* resolved */
    lnrnn_array *arrays; /* (count): the arrays of the description, in any order; data aligned to 64 bytes */
    size_t count;
    const char *configuration; /* the configuration's JSON text */
    char *header;              /* the memory of the names and the configuration */
    void *data;
} lnrnn_model_file;

/* text (length): a configuration, which is the JSON in the metadata of a file. Sets *d to the resolved
 * description. */
lnrnn_status lnrnn_description_read(const char *text, size_t length, lnrnn_description *d, char *message);
/* Reads a whole file. After LNRNN_OK, call lnrnn_model_file_close when the arrays are no longer needed. */
lnrnn_status lnrnn_model_file_open(const char *path, lnrnn_model_file *model, char *message);
/* Reads a whole file of `size` bytes, from an open stream or, if this is NULL, from memory. */
lnrnn_status lnrnn_model_file_read(FILE *stream, const void *bytes, uint64_t size, lnrnn_model_file *model,
                                   char *message);
void lnrnn_model_file_close(lnrnn_model_file *model);

#pragma GCC visibility pop

#endif
