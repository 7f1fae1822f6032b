/* A reader of JSON (RFC 8259), value after value, without allocation or recursion.
 *
 * The text ends with a NUL. Strings are decoded in place, so the text changes and has to outlive them. They
 * are UTF-8 with a NUL behind them; U+0000 in them has two bytes, C0 80. */
#ifndef LNRNN_FILE_JSON_H
#define LNRNN_FILE_JSON_H

#include <stddef.h>
#include <stdint.h>

enum { LNRNN_JSON_DEPTH = 4 }; /* no list and no object may have this depth */

/* The caller sets at and end. */
typedef struct {
    char *at, *end;    /* *end is the NUL */
    const char *wrong; /* NULL, or the place of the first error */
    int open;          /* lists and objects whose end is still to come */
    /* The path of the last value, from depth 1 to its own: in an object the name of the entry, in a list "0"
     * to "8", then "9". One deeper is "". */
    const char *name[LNRNN_JSON_DEPTH + 2];
    size_t index[LNRNN_JSON_DEPTH + 2]; /* likewise, the number of the item, from 1 on */
    char close[LNRNN_JSON_DEPTH + 2];
} lnrnn_json;

typedef struct {
    /* The first byte of a string, list, object, null, true or false: " [ { n t f. A number has d, or i if it
     * is an integer of int64. 0: there is no value. */
    char kind;
    int depth; /* 0: the outermost */
    int64_t integer;
    double number;    /* kinds i and d: the nearest double */
    const char *text; /* a string; of other values their bytes, without a NUL */
} lnrnn_json_value;

/* The next value. A list or object comes before its items. Kind 0 at the end, and after an error. */
lnrnn_json_value lnrnn_json_next(lnrnn_json *json);

#endif
