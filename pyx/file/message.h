/* How a call that can fail says why: a status, and a message in the caller's buffer. */
#ifndef LNRNN_FILE_MESSAGE_H
#define LNRNN_FILE_MESSAGE_H

enum { LNRNN_MESSAGE = 256 }; /* bytes of the buffer, the final NUL among them */

typedef enum {
    LNRNN_OK,
    LNRNN_NO_MEMORY,
    LNRNN_NO_FILE,       /* nothing is at this path */
    LNRNN_CANNOT_READ,   /* the system refuses to open or to read the file */
    LNRNN_INVALID,       /* a damaged, hostile or foreign file, or a description that no network has */
    LNRNN_OTHER_VERSION, /* a file of a schema that this version does not read */
} lnrnn_status;

/* Writes the message, cut to its buffer. -> status. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
lnrnn_status lnrnn_fail(char message[LNRNN_MESSAGE], lnrnn_status status, const char *format, ...);

#endif
