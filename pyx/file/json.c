#include "file/json.h"

#include <errno.h>
#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(lnrnn_json *json)
{
    if (!json->wrong)
        json->wrong = json->at;
    json->at = json->end;
}

/* Whether the next byte is one of these. */
static int next_is(const lnrnn_json *json, const char *bytes)
{
    return json->at < json->end && *json->at && strchr(bytes, *json->at);
}

static void spaces(lnrnn_json *json)
{
    while (next_is(json, " \t\n\r"))
        json->at++;
}

/* Passes over spaces, and over the byte if it comes next. */
static int take(lnrnn_json *json, char byte)
{
    spaces(json);
    int there = json->at < json->end && *json->at == byte;
    json->at += there;
    return there;
}

/* --- strings -------------------------------------------------------------------------------------------- */

/* uXXXX -> the number, or -1. */
static long hexadecimal(lnrnn_json *json)
{
    char digits[5] = "";
    if (json->end - json->at < 5 || *json->at != 'u')
        return -1;
    memcpy(digits, json->at + 1, 4);
    json->at += 5;
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? strtol(digits, NULL, 16) : -1;
}

/* Behind a backslash -> the code point, or -1. One beyond 16 bits is a pair of surrogates. */
static long escape(lnrnn_json *json)
{
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    if (next_is(json, letters))
        return meant[strchr(letters, *json->at++) - letters];
    long c = hexadecimal(json), low = 0xDC00;
    if (c >= 0xD800 && c <= 0xDBFF)
        low = next_is(json, "\\") ? (json->at++, hexadecimal(json)) : -1;
    if (low < 0xDC00 || low > 0xDFFF || (c >= 0xDC00 && c <= 0xDFFF))
        return -1;
    return c >= 0xD800 && c <= 0xDBFF ? 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00) : c;
}

/* Writes a code point as UTF-8. -> the byte behind it. */
static char *put(char *out, long c)
{
    int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3; /* bytes that follow the first */
    *out++ = (char)(more ? (0xF00 >> more & 0xF0) | c >> 6 * more : c);
    while (more--)
        *out++ = (char)(0x80 | (c >> 6 * more & 0x3F));
    return out;
}

/* The next character of UTF-8, or -1 for a control character and for bytes that UTF-8 forbids. */
static long character(lnrnn_json *json)
{
    static const long shortest[] = {0x20, 0x80, 0x800, 0x10000};
    long c = (unsigned char)*json->at++;
    int more = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : c >= 0x80 ? 1 : 0;
    if (c >= 0xF8 || (more && c < 0xC0))
        return -1;
    c &= more ? 0x3F >> more : 0x7F;
    for (int k = 0; k < more; k++) {
        if (json->at == json->end || (*json->at & 0xC0) != 0x80)
            return -1;
        c = c << 6 | (*json->at++ & 0x3F);
    }
    return c < shortest[more] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF) ? -1 : c;
}

/* Behind the opening quote. No character is longer than its escape, so the text fits where it stands. */
static lnrnn_text string(lnrnn_json *json)
{
    char *start = json->at, *out = start;
    while (json->at < json->end && *json->at != '"') {
        int escaped = *json->at == '\\';
        json->at += escaped;
        long c = escaped ? escape(json) : character(json);
        if (c < 0)
            fail(json);
        else
            out = put(out, c);
    }
    if (json->at == json->end) {
        fail(json);
        return (lnrnn_text){"", 0};
    }
    json->at++;
    *out = '\0';
    return (lnrnn_text){start, (size_t)(out - start)};
}

/* --- numbers -------------------------------------------------------------------------------------------- */

/* Copies digits to text, as far as there is room. -> how many. */
static size_t digits(lnrnn_json *json, char *text, size_t room)
{
    size_t n = 0;
    while (n < room && next_is(json, "0123456789"))
        text[n++] = *json->at++;
    return n;
}

/* The nearest double. strtod goes by the state of the thread: by its rounding mode, and where it traps. */
static double nearest(const char *text)
{
    fenv_t own;
    fegetenv(&own);
    fesetenv(FE_DFL_ENV);
    const double value = strtod(text, NULL);
    fesetenv(&own);
    return value;
}

/* The number is written anew without its point, for which strtod would ask the locale: 1.25e3 is 125e1. */
static void number(lnrnn_json *json, lnrnn_json_value *value)
{
    enum { MOST = 376 };
    char text[MOST + 24], power[7] = "";
    size_t n = 0, before, behind = 0;
    int negative = 0, whole = 1;
    if (next_is(json, "-"))
        text[n++] = *json->at++;
    int zero = next_is(json, "0");
    n += before = digits(json, text + n, MOST - n);
    int right = zero ? before == 1 : before > 0;
    if (next_is(json, ".")) {
        whole = 0;
        json->at++;
        n += behind = digits(json, text + n, MOST - n);
        right &= behind > 0;
    }
    if (next_is(json, "eE")) {
        whole = 0;
        json->at++;
        negative = next_is(json, "-");
        json->at += next_is(json, "+-");
        right &= digits(json, power, sizeof power - 1) > 0;
    }
    if (!right || next_is(json, "0123456789")) {
        fail(json);
        return;
    }
    text[n] = '\0';
    errno = 0;
    value->integer = whole ? strtoll(text, NULL, 10) : 0;
    value->kind = whole && !errno ? LNRNN_JSON_INTEGER : LNRNN_JSON_NUMBER;
    snprintf(text + n, sizeof text - n, "e%ld", (negative ? -atol(power) : atol(power)) - (long)behind);
    value->number = nearest(text);
}

/* --- values --------------------------------------------------------------------------------------------- */

lnrnn_json_value lnrnn_json_next(lnrnn_json *json)
{
    static const char *const words[] = {
        [LNRNN_JSON_NULL] = "null", [LNRNN_JSON_FALSE] = "false", [LNRNN_JSON_TRUE] = "true"};
    lnrnn_json_value value = {LNRNN_JSON_NONE, 0, 0, {"", 0}};
    spaces(json);
    const char *start = json->at;
    if (take(json, '"')) {
        value.text = string(json);
        value.kind = LNRNN_JSON_STRING;
    } else if (take(json, '[')) {
        value.kind = LNRNN_JSON_LIST;
    } else if (take(json, '{')) {
        value.kind = LNRNN_JSON_OBJECT;
    } else if (next_is(json, "-0123456789")) {
        number(json, &value);
    } else {
        for (int k = LNRNN_JSON_NULL; k <= LNRNN_JSON_TRUE; k++)
            if ((size_t)(json->end - start) >= strlen(words[k])
                && !memcmp(start, words[k], strlen(words[k]))) {
                value.kind = (lnrnn_json_kind)k;
                json->at += strlen(words[k]);
            }
        if (!value.kind)
            fail(json);
    }
    if (value.kind != LNRNN_JSON_STRING)
        value.text = (lnrnn_text){start, (size_t)(json->at - start)};
    if (json->wrong)
        value.kind = LNRNN_JSON_NONE;
    return value;
}

/* 1 if another item or entry follows; 0 at the end of the list or object, and after an error. */
static int more(lnrnn_json *json, int first, char close)
{
    if (take(json, close))
        return 0;
    if (!first && !take(json, ','))
        fail(json);
    return !json->wrong;
}

int lnrnn_json_item(lnrnn_json *json, int first) { return more(json, first, ']'); }

int lnrnn_json_entry(lnrnn_json *json, int first, lnrnn_text *name)
{
    if (!more(json, first, '}'))
        return 0;
    if (take(json, '"'))
        *name = string(json);
    else
        fail(json);
    if (!take(json, ':'))
        fail(json);
    return !json->wrong;
}

const char *lnrnn_json_end(lnrnn_json *json)
{
    spaces(json);
    if (json->at < json->end)
        fail(json);
    return json->wrong;
}

/* --- messages ------------------------------------------------------------------------------------------- */

int lnrnn_text_is(lnrnn_text text, const char *name)
{
    return text.length == strlen(name) && !memcmp(text.bytes, name, text.length);
}

const char *lnrnn_text_shown(const char *text, char buffer[LNRNN_SHOWN])
{
    snprintf(buffer, LNRNN_SHOWN, "'%.54s%s", text, strlen(text) > 54 ? "...'" : "'");
    return buffer;
}

const char *lnrnn_json_shown(const lnrnn_json_value *value, char buffer[LNRNN_SHOWN])
{
    if (value->kind == LNRNN_JSON_STRING)
        return lnrnn_text_shown(value->text.bytes, buffer);
    snprintf(buffer, LNRNN_SHOWN, "%.*s", (int)(value->text.length < 40 ? value->text.length : 40),
             value->text.bytes);
    return buffer;
}
