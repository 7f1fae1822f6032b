/* A reader of JSON (RFC 8259) over a range of bytes, value after value, without allocation or recursion.
 *
 * Strings are decoded in place, so the bytes change and have to outlive all texts. The first error stays:
 * later calls find the end of every list and object, so loops end, and `wrong` is asked once.
 */
#ifndef LNRNN_FILE_JSON_H
#define LNRNN_FILE_JSON_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *at, *end;
    const char *wrong; /* NULL, or where the bytes are no JSON */
} lnrnn_json;

/* UTF-8 with a NUL behind it; a NUL may also be inside. */
typedef struct {
    const char *bytes;
    size_t length;
} lnrnn_text;

typedef enum {
    LNRNN_JSON_NONE, /* after an error */
    LNRNN_JSON_NULL,
    LNRNN_JSON_FALSE,
    LNRNN_JSON_TRUE,
    LNRNN_JSON_INTEGER, /* `integer`, exact; and `number` */
    LNRNN_JSON_NUMBER,  /* `number`, the nearest double: with a fraction or exponent, or beyond int64 */
    LNRNN_JSON_STRING,
    LNRNN_JSON_LIST,
    LNRNN_JSON_OBJECT,
} lnrnn_json_kind;

typedef struct {
    lnrnn_json_kind kind;
    int64_t integer;
    double number;
    lnrnn_text text; /* of a string; of other values their bytes, without a NUL */
} lnrnn_json_value;

/* The next value. A list or object is only begun: its items or entries are the next to be read. */
lnrnn_json_value lnrnn_json_next(lnrnn_json *json);
/* Inside a list: 1 if an item follows, 0 at its end. first: no item was read yet. */
int lnrnn_json_item(lnrnn_json *json, int first);
/* Inside an object: likewise, and reads the name of the entry. */
int lnrnn_json_entry(lnrnn_json *json, int first, lnrnn_text *name);
/* NULL if only spaces are left and nothing was wrong, else the place. */
const char *lnrnn_json_end(lnrnn_json *json);

int lnrnn_text_is(lnrnn_text text, const char *name);
enum { LNRNN_SHOWN = 64 };
/* A value as messages show it, cut to the buffer. -> buffer. */
const char *lnrnn_json_shown(const lnrnn_json_value *value, char buffer[LNRNN_SHOWN]);
const char *lnrnn_text_shown(const char *text, char buffer[LNRNN_SHOWN]);

#endif
