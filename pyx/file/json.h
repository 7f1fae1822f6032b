/* Reads JSON (RFC 8259) value by value, without allocation or recursion.
 *
 * The text must end with a NUL. Strings are decoded in place, so the text changes, and must live as long as
 * its strings are used. Strings are UTF-8 and end with a NUL; U+0000 within a string becomes the bytes C0
 * 80. */
#ifndef LNRNN_FILE_JSON_H
#define LNRNN_FILE_JSON_H

#include <stddef.h>
#include <stdint.h>

enum { LNRNN_JSON_DEPTH = 4 }; /* the most lists and objects that may be nested */

/* The position in a text. The caller sets `at` and `end`. */
typedef struct {
    char *at, *end;    /* the next byte; the NUL at the end */
    const char *wrong; /* NULL, or the position of the first error */
    int open;          /* the number of lists and objects that have not ended */
    /* The path of the last value, from depth 1 on. An entry of an object has its name. An item of a list has
     * its number, "0" to "8", or "9" for all later items. "" ends the path. */
    const char *name[LNRNN_JSON_DEPTH + 2];
    size_t index[LNRNN_JSON_DEPTH + 2]; /* the path as numbers of entries or items, counted from 1 */
    char close[LNRNN_JSON_DEPTH + 2];
} lnrnn_json;

typedef struct {
    /* The first byte of a string, list, object, null, true or false: " [ { n t f. Numbers: i for an integer
     * of int64, else d. 0: no value. */
    char kind;
    int depth; /* 0: the outermost value */
    int64_t integer;
    double number;    /* kinds i and d, rounded to double */
    const char *text; /* kind ": the decoded string; other kinds: the first byte of the value in the JSON */
} lnrnn_json_value;

/* Returns the next value. A list or object comes before its items. At the end, and after an error, the kind
 * is 0. */
lnrnn_json_value lnrnn_json_next(lnrnn_json *json);

#endif
