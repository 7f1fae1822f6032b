/* Errors: a function that can fail returns a status, and writes a message to the caller's buffer. */
#ifndef LNRNN_FILE_MESSAGE_H
#define LNRNN_FILE_MESSAGE_H

#include "lnrnn.h"

/* Writes the formatted text to the buffer `message`, unless that is NULL: as printable ASCII, truncated to
 * fit. Returns status. */
lnrnn_status lnrnn_fail(char *message, lnrnn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* If `right` is 0, writes the formatted text to `message`, and returns LNRNN_INVALID from the function that
 * contains the macro. */
#define LNRNN_CHECK(right, ...)                                     \
    do {                                                            \
        if (!(right))                                               \
            return lnrnn_fail(message, LNRNN_INVALID, __VA_ARGS__); \
    } while (0)

#endif
