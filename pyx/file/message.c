#include "file/message.h"

#include <stdarg.h>
#include <stdio.h>

lnrnn_status lnrnn_fail(char message[LNRNN_MESSAGE], lnrnn_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (message)
        vsnprintf(message, LNRNN_MESSAGE, format, arguments);
    va_end(arguments);
    for (char *at = message; message && *at; at++)
        *at = *at >= ' ' && *at <= '~' ? *at : '?';
    return status;
}
