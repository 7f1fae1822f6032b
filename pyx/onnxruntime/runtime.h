/* Reads values and attributes of the runtime. */
#ifndef LNRNN_ONNXRUNTIME_RUNTIME_H
#define LNRNN_ONNXRUNTIME_RUNTIME_H

#include "lnrnn.h"
#include "onnxruntime/interface.h"

enum { REASON = 512 }; /* bytes of a text */
#define NO_MEMORY "there is too little memory"

/* Returns a status that is not NULL as 1, and releases it. */
int runtime_failed(const ort_functions *ort, OrtStatus *status);
/* Writes a reason. Returns 0. */
int runtime_refuse(char reason[REASON], const char *text, ...) __attribute__((format(printf, 2, 3)));
/* Returns the name of a value, or "" for none. */
const char *runtime_name(const ort_functions *ort, const OrtValueInfo *value);
/* Reads an attribute of at most `bytes` bytes. Returns 1 if it was read, 0 if it is left out, and -1 with a
 * reason if it has another type or more bytes. *used, if not NULL, is the number of bytes. */
int runtime_attribute(const ort_functions *ort, const OrtNode *node, const char *name, int type, void *data,
                      size_t bytes, size_t *used, char reason[REASON]);
/* Returns the type of the elements of a value, or 0 if it is no tensor. *rank is 0 if it is
 * unknown. shape (rank): the sizes, -1 if unknown. They are not read if rank is above `most`. */
int runtime_type(const ort_functions *ort, const OrtValueInfo *value, int64_t *shape, size_t most,
                 size_t *rank);
/* Sets shape, rank and data to those of a constant of this type. Returns 0 with a reason for another value.
 * The memory belongs to the runtime. */
int runtime_constant(const ort_functions *ort, const OrtValueInfo *value, const char *name, int type,
                     const int64_t **shape, size_t *rank, const void **data, char reason[REASON]);

#endif
