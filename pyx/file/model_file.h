/* Files of networks, as Python's `save` writes them: a description, and the arrays that it asks for. */
#ifndef LNRNN_FILE_MODEL_FILE_H
#define LNRNN_FILE_MODEL_FILE_H

#include "file/safetensors.h"

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

typedef struct {
    lnrnn_description description; /* resolved */
    lnrnn_safetensors file;        /* its arrays are those of the description, with their dtypes and shapes */
} lnrnn_model_file;

/* text: a configuration, JSON as the metadata of a file have it. -> d, resolved. */
lnrnn_status lnrnn_description_read(const char *text, size_t length, lnrnn_description *d,
                                    char message[LNRNN_MESSAGE]);
/* Reads a whole file. After LNRNN_OK it is to be closed when its arrays are no longer needed. */
lnrnn_status lnrnn_model_file_open(const char *path, lnrnn_model_file *model, char message[LNRNN_MESSAGE]);
/* The same of a stream of `size` bytes. */
lnrnn_status lnrnn_model_file_read(FILE *stream, uint64_t size, lnrnn_model_file *model,
                                   char message[LNRNN_MESSAGE]);
void lnrnn_model_file_close(lnrnn_model_file *model);

#pragma GCC visibility pop

#endif
