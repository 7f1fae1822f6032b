/* How a call that can fail says why: a status, and a message in the caller's buffer. */
#ifndef LNRNN_FILE_MESSAGE_H
#define LNRNN_FILE_MESSAGE_H

#include "lnrnn.h"

/* Writes the message, printable ASCII and cut to its buffer, which may be NULL. -> status. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
lnrnn_status lnrnn_fail(char message[LNRNN_MESSAGE], lnrnn_status status, const char *format, ...);

#endif
