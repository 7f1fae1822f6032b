/* How a call that can fail says why: a status, and a message in the caller's buffer. */
#ifndef LNRNN_FILE_MESSAGE_H
#define LNRNN_FILE_MESSAGE_H

#include "lnrnn.h"

/* Writes the message, printable ASCII and cut to its buffer, which may be NULL. -> status. */
lnrnn_status lnrnn_fail(char *message, lnrnn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Returns LNRNN_INVALID, with this message, from a function that has a `message`, unless `right`. */
#define LNRNN_CHECK(right, ...)                                     \
    do {                                                            \
        if (!(right))                                               \
            return lnrnn_fail(message, LNRNN_INVALID, __VA_ARGS__); \
    } while (0)

#endif
