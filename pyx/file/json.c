#include "file/json.h"

#include <errno.h>
#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Stores the current position as the error, and moves to the end, so that no values follow. */
static void fail(lnrnn_json *json)
{
    if (!json->wrong)
        json->wrong = json->at;
    json->at = json->end;
}

static void spaces(lnrnn_json *json) { json->at += strspn(json->at, " \t\n\r"); }

/* Skips spaces. If `byte` comes next, skips it and returns 1. */
static int take(lnrnn_json *json, char byte)
{
    spaces(json);
    const int there = *json->at == byte;
    json->at += there;
    return there;
}

/* --- strings -------------------------------------------------------------------------------------------- */

/* Reads four hexadecimal digits. Returns the number, or -1. */
static long hexadecimal(lnrnn_json *json)
{
    char digits[5] = "";
    if (strspn(json->at, "0123456789abcdefABCDEF") < 4)
        return -1;
    memcpy(digits, json->at, 4);
    json->at += 4;
    return strtol(digits, NULL, 16);
}

/* Reads an escape after its backslash. Returns the code point, or -1 for an error. A pair of surrogates is
 * one code point. */
static long escape(lnrnn_json *json)
{
    static const char letters[] = "\"\\/bfnrt", characters[] = "\"\\/\b\f\n\r\t";
    const size_t letter = strcspn(letters, (char[]){*json->at, '\0'});
    if (letters[letter])
        return json->at++, characters[letter];
    if (*json->at != 'u')
        return -1;
    json->at++;
    const long c = hexadecimal(json);
    if (c < 0xD800 || c > 0xDFFF)
        return c;
    if (c > 0xDBFF || json->at[0] != '\\' || json->at[1] != 'u')
        return -1;
    json->at += 2;
    const long low = hexadecimal(json);
    return low >= 0xDC00 && low <= 0xDFFF ? 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00) : -1;
}

/* Reads a character of UTF-8. Returns its code point, or -1 for a control character and for bytes that UTF-8
 * forbids. */
static long character(lnrnn_json *json)
{
    static const long least[] = {0x20, 0x80, 0x800, 0x10000};
    const long first = (unsigned char)*json->at++;
    const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : first >= 0xC0 ? 1 : 0;
    long c = more ? first & 0x7F >> more : first;
    for (int k = 0; k < more; k++) {
        if ((*json->at & 0xC0) != 0x80) /* also stops at the NUL */
            return -1;
        c = c << 6 | (*json->at++ & 0x3F);
    }
    return c < least[more] || c > (more ? 0x10FFFF : 0x7F) || (c >= 0xD800 && c <= 0xDFFF) ? -1 : c;
}

/* Writes a code point as UTF-8. Returns the position after it. */
static char *put(char *out, long c)
{
    const int more = c && c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3; /* number of further bytes */
    *out++ = (char)(more ? (0xF00 >> more & 0xF0) | c >> 6 * more : c);
    for (int k = more; k--;)
        *out++ = (char)(0x80 | (c >> 6 * k & 0x3F));
    return out;
}

/* Reads a string after its opening quote. Returns the text, or NULL for an error. The text is decoded in
 * place, because no character is longer than its escape. */
static const char *string(lnrnn_json *json)
{
    char *const text = json->at, *out = text;
    while (*json->at != '"') {
        const long c = *json->at == '\\' ? (json->at++, escape(json)) : character(json);
        if (c < 0) {
            fail(json);
            return NULL;
        }
        out = put(out, c);
    }
    json->at++;
    *out = '\0';
    return text;
}

/* --- values --------------------------------------------------------------------------------------------- */

/* If the next byte is one of `bytes`, skips it and returns 1. Otherwise returns 0. */
static int passes(const char **at, const char *bytes)
{
    const int there = **at && strchr(bytes, **at);
    *at += there;
    return there;
}

/* Skips digits. Returns their number. */
static int digits(const char **at)
{
    const size_t n = strspn(*at, "0123456789");
    *at += n;
    return (int)n;
}

/* Reads a number. The locale decides the decimal point of strtod, so strtod gets the number without its
 * point: 125e1 for 1.25e3. strtod runs in the default floating-point state, because the thread's own state
 * may round differently or trap. */
static lnrnn_json_value number(lnrnn_json *json)
{
    enum { MOST = 376 };
    char text[MOST + 24];
    lnrnn_json_value value = {.kind = 'i', .text = json->at};
    const char *at = json->at;
    const int sign = passes(&at, "-"), before = passes(&at, "0") ? 1 : digits(&at);
    const char *const fraction = at + 1, *power = "0";
    int behind = 0, right = before > 0;
    if (passes(&at, "."))
        value.kind = 'd', right &= (behind = digits(&at)) > 0;
    if (passes(&at, "eE")) {
        value.kind = 'd', power = at;
        passes(&at, "+-");
        const int figures = digits(&at);
        right &= figures > 0 && figures < 7;
    }
    if (!right || sign + before + behind > MOST) {
        fail(json);
        return value;
    }
    errno = 0;
    value.integer = strtoll(json->at, NULL, 10);
    /* GCOVR_EXCL_BR_LINE: 32-bit machines */
    if (errno || value.integer != (ptrdiff_t)value.integer) /* a ptrdiff_t of 32 bits cannot hold it */
        value.kind = 'd';
    snprintf(text, sizeof text, "%.*s%.*se%ld", sign + before, json->at, behind, fraction,
             strtol(power, NULL, 10) - behind);
    fenv_t own;
    fegetenv(&own);
    fesetenv(FE_DFL_ENV);
    value.number = strtod(text, NULL);
    fesetenv(&own);
    json->at = (char *)at;
    return value;
}

/* Reads a value, or the first byte of a list or object. */
static lnrnn_json_value value_of(lnrnn_json *json)
{
    spaces(json);
    lnrnn_json_value value = {.kind = *json->at, .text = json->at};
    const char *const word = value.kind == 'n'   ? "null"
                             : value.kind == 't' ? "true"
                             : value.kind == 'f' ? "false"
                                                 : NULL;
    if (word && !strncmp(json->at, word, strlen(word)))
        json->at += strlen(word);
    else if (take(json, '"'))
        value.text = string(json);
    else if (!take(json, '[') && !take(json, '{'))
        value = number(json);
    return value;
}

lnrnn_json_value lnrnn_json_next(lnrnn_json *json)
{
    static const char numbers[] = "0\0001\0002\0003\0004\0005\0006\0007\0008\0009";
    lnrnn_json_value value = {0};
    if (json->wrong)
        return value;
    while (json->open && take(json, json->close[json->open]))
        json->open--;
    const int depth = json->open;
    if (depth == 0 && json->index[0]) {
        spaces(json);
        if (json->at != json->end)
            fail(json); /* text after the last value, or a NUL within the text */
        return value;
    }
    if (json->index[depth]++ && !take(json, ','))
        fail(json);
    if (json->close[depth] == '}') {
        json->name[depth] = take(json, '"') ? string(json) : NULL;
        if (!json->name[depth] || !take(json, ':'))
            fail(json);
    } else if (json->close[depth] == ']') {
        /* GCOVR_EXCL_BR_LINE: a list of more than two elements is refused before */
        json->name[depth] = &numbers[2 * (json->index[depth] < 10 ? json->index[depth] - 1 : 9)];
    }
    value = value_of(json);
    value.depth = depth;
    json->name[depth + 1] = "";
    if (value.kind == '[' || value.kind == '{') {
        json->open++;
        json->index[depth + 1] = 0;
        json->close[depth + 1] = value.kind == '[' ? ']' : '}';
        /* GCOVR_EXCL_BR_LINE: the callers refuse a value at the depth before */
        if (depth == LNRNN_JSON_DEPTH)
            fail(json);
    }
    if (json->wrong)
        value.kind = '\0';
    return value;
}
