/* A fuzzer for the reader of files: mutates inputs, and keeps inputs that run new branches.
 *
 * LLVMFuzzerTestOneInput is the test. With -DWITH_LIBFUZZER, libFuzzer calls it. Otherwise the driver below does, which
 * counts branches by gcc's -fsanitize-coverage=trace-pc.
 *
 *     fuzz_reader EXECUTIONS SEED FAILED SEED_FILE ...
 *
 * FAILED: a file that gets the input if the process crashes. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "file/model_file.h"

static uint64_t accepted;

static void need(int right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "WRONG: %s\n", what);
    abort();
}

/* Reads an input. A model must have exactly the arrays of its description, with all bytes. An error must have a message. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static volatile unsigned char sum;
    static const size_t width[] = {4, 8, 8};
    char message[LNRNN_MESSAGE], name[LNRNN_ARRAY_NAME];
    lnrnn_model_file model;
    FILE *stream = fmemopen((void *)(size ? bytes : (const uint8_t *)""), size ? size : 1, "rb");
    need(stream != NULL, "no stream");
    memset(message, 'x', sizeof message);
    lnrnn_status status = lnrnn_model_file_read(stream, size, &model, message);
    fclose(stream);
    if (status) {
        need(status == LNRNN_INVALID || status == LNRNN_OTHER_VERSION, "another status");
        need(strnlen(message, sizeof message) < sizeof message && *message, "no message");
        for (const char *at = message; *at; at++)
            need(*at >= ' ' && *at <= '~', "a message that cannot be printed");
        return 0;
    }
    accepted++;
    size_t n = lnrnn_description_arrays(&model.description);
    need(n == model.count, "another number of arrays");
    for (size_t k = 0; k < n; k++) {
        lnrnn_array wanted = lnrnn_description_array(&model.description, k, name);
        const lnrnn_array *array = model.arrays;
        while (array < model.arrays + n && strcmp(array->name, name))
            array++;
        need(array < model.arrays + n && array->dtype == wanted.dtype, "an array is missing");
        size_t length = width[wanted.dtype];
        for (size_t d = 0; d < wanted.ndim; d++) {
            need(array->shape[d] == wanted.shape[d], "another shape");
            length *= wanted.shape[d];
        }
        need((uintptr_t)array->data % 64 == 0, "alignment");
        for (size_t at = 0; at < length; at++)
            sum ^= ((const unsigned char *)array->data)[at];
    }
    lnrnn_model_file_close(&model);
    return 0;
}

#ifndef WITH_LIBFUZZER

/* --- which branches ran -------------------------------------------------------------------------------- */

enum { MAP = 1 << 13 };
static unsigned char hits[MAP], seen[MAP];
static uintptr_t previous;

#define FAST __attribute__((no_sanitize("address", "undefined")))

FAST void __sanitizer_cov_trace_pc(void)
{
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    unsigned char *hit = &hits[((here ^ previous) * 0x9E3779B97F4A7C15u) >> 51];
    *hit += *hit < 255;
    previous = here >> 1;
}

/* Returns whether a pair of branches ran for the first time, or a new number of times: 1, 2, 3, 4-7, 8-15, ... */
FAST static int news(void)
{
    int found = 0;
    for (size_t word = 0; word < MAP; word += 8) {
        uint64_t any;
        memcpy(&any, hits + word, 8);
        for (size_t k = word; any && k < word + 8; k++) {
            int n = hits[k];
            unsigned char bucket = (unsigned char)(n == 0   ? 0
                                                   : n < 4  ? 1 << (n - 1)
                                                   : n < 8  ? 8
                                                   : n < 16 ? 16
                                                   : n < 64 ? 32
                                                            : 64);
            found |= bucket & ~seen[k];
            seen[k] |= bucket;
        }
    }
    return found != 0;
}

/* --- mutations ----------------------------------------------------------------------------------------- */

enum { MOST = 1 << 13, KEPT = 1 << 14 };
typedef struct {
    uint8_t *bytes;
    size_t size;
} input;

static input corpus[KEPT], now;
static size_t kept;
static uint64_t state;

static uint64_t draw(uint64_t n)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state * 0x2545F4914F6CDD1Du >> 11) % (n ? n : 1);
}

static const char *const WORDS[] = {
    "null",
    "true",
    "false",
    "{",
    "}",
    "[",
    "]",
    "\"",
    ",",
    ":",
    "\\\"",
    "\\u0000",
    "\\ud83d\\ude00",
    "\xc3\xa9",
    "\xf0\x9f\x98\x80",
    "\xff",
    "-1",
    "0",
    "1",
    "3",
    "8",
    "14",
    "64",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "1e308",
    "1e-5",
    "-0.0",
    "0.5",
    "1e999",
    "RNN",
    "LSTM",
    "GRU",
    "layer",
    "batch",
    "split",
    "joint",
    "gate",
    "out",
    "carry",
    "all",
    "raise",
    "last",
    "mean",
    "tanh",
    "relu",
    "sigmoid",
    "identity",
    "float32",
    "bfloat16",
    "int8",
    "F32",
    "F64",
    "I64",
    "BF16",
    "dtype",
    "shape",
    "data_offsets",
    "__metadata__",
    "format",
    "schema",
    "config",
    "lnrnn",
    "kind",
    "placement",
    "cell",
    "span",
    "inner_bias",
    "eps",
    "max_steps",
    "overrun",
    "momentum",
    "zoneout",
    "dropout",
    "activation_bits",
    "nonlinearity",
    "input_size",
    "hidden_size",
    "num_layers",
    "bias",
    "batch_first",
    "bidirectional",
    "num_heads",
    "reverse",
    "reset_after",
    "norm",
    "weight_ih_l0",
    "weight_hh_l0",
    "count_l0",
    "running_var_l0",
    "_reverse",
    "_l1",
};

/* Replaces `old` bytes at `at` by the given bytes. */
static void splice(size_t at, size_t old, const void *bytes, size_t size)
{
    uint8_t copy[MOST];
    if (at + old > now.size || size > sizeof copy || now.size - old + size > MOST)
        return;
    memcpy(copy, bytes, size); /* because `bytes` may be part of the input */
    memmove(now.bytes + at + size, now.bytes + at + old, now.size - at - old);
    memcpy(now.bytes + at, copy, size);
    now.size += size - old;
}

/* Finds the value after the next colon, bracket or comma from `at` on, up to the next such character. Returns its length. */
static size_t value(size_t *at)
{
    const char *ends = ":[]{},";
    while (*at < now.size && !(now.bytes[*at] && strchr(ends, now.bytes[*at])))
        ++*at;
    size_t from = *at += *at < now.size, end = from;
    while (end < now.size && !(now.bytes[end] && strchr(ends, now.bytes[end])))
        end++;
    return end - from;
}

static void mutate(void)
{
    const char *word = WORDS[draw(sizeof WORDS / sizeof *WORDS)];
    const input *other = &corpus[draw(kept)];
    size_t head = now.size > 8 ? (size_t)now.bytes[0] + 256 * (size_t)now.bytes[1] : 0;
    size_t place = draw(5) && head < now.size ? 8 + draw(head) : draw(now.size + 1);
    size_t at = place < now.size ? place : now.size, left = now.size - at,
           n = draw(left < 64 ? left + 1 : 64);
    uint8_t byte = (uint8_t)draw(256);
    char number[24];
    switch (draw(11)) {
    case 0:
        if (left)
            now.bytes[at] ^= (uint8_t)(1 << draw(8));
        break;
    case 1: splice(at, left > 0, &byte, 1); break;
    case 2: splice(at, 0, &byte, 1); break;
    case 3: splice(at, n, "", 0); break;
    case 4: splice(at, 0, now.bytes + at, n); break;
    case 5: splice(at, 0, word, strlen(word)); break;
    case 6: {
        size_t old = value(&at);
        splice(at, old, word, strlen(word));
        break;
    }
    case 7: {
        size_t old = value(&at);
        snprintf(number, sizeof number, "%" PRIu64, draw(draw(2) ? 8 : 300));
        splice(at, old, number, strlen(number));
        break;
    }
    case 8: {
        size_t from = draw(other->size + 1), size = draw(other->size - from + 1);
        splice(at, n, other->bytes + from, size < 400 ? size : 400);
        break;
    }
    case 9:
        if (draw(4) == 0)
            now.size = at;
        break;
    default: {
        size_t old = value(&at);
        splice(at, old, number, (size_t)snprintf(number, sizeof number, "%" PRIu64, (uint64_t)1 << draw(64)));
    }
    }
}

static void write_length(uint64_t length)
{
    for (int b = 0; b < 8 && now.size >= 8; b++)
        now.bytes[b] = (uint8_t)(length >> 8 * b);
}

/* Sets the length of the header to the end of its object and adds spaces, so that the reader reads a mutated header. */
static void repair(void)
{
    int depth = 0, text = 0;
    for (size_t k = 8; k < now.size; k++) {
        if (text && now.bytes[k] == '\\')
            k++;
        else if (now.bytes[k] == '"')
            text = !text;
        else if (!text)
            depth += (now.bytes[k] == '{') - (now.bytes[k] == '}');
        if (depth == 0 && !text) {
            while (k + 1 < now.size && now.bytes[k + 1] == ' ')
                k++;
            write_length(k + 1 - 8);
            return;
        }
    }
}

/* --- the run ------------------------------------------------------------------------------------------- */

static const char *failed;

static void save(void)
{
    FILE *file = fopen(failed, "wb");
    if (file) {
        fwrite(now.bytes, 1, now.size, file);
        fclose(file);
    }
}

static void stop(int number)
{
    fprintf(stderr, "WRONG: signal %d%s\n", number, number == SIGVTALRM ? ", it takes too long" : "");
    save();
    _exit(1);
}

void __sanitizer_set_death_callback(void (*callback)(void));

static void run(int keep)
{
    memset(hits, 0, sizeof hits);
    previous = 0;
    uint8_t *exact =
        malloc(now.size ? now.size : 1); /* exact, so that the sanitizer notices an access to the next byte */
    need(exact != NULL, "no memory");
    memcpy(exact, now.bytes, now.size);
    LLVMFuzzerTestOneInput(exact, now.size);
    free(exact);
    if ((news() || keep) && kept < KEPT) {
        corpus[kept] = (input){malloc(now.size + 1), now.size};
        need(corpus[kept].bytes != NULL, "no memory");
        memcpy(corpus[kept++].bytes, now.bytes, now.size);
    }
}

int main(int argc, char **argv)
{
    static uint8_t buffer[MOST];
    if (argc < 5)
        return 2;
    uint64_t executions = strtoull(argv[1], NULL, 10), branches = 0;
    state = strtoull(argv[2], NULL, 10) * 2 + 1;
    failed = argv[3];
    now.bytes = buffer;
    __sanitizer_set_death_callback(save);
    signal(SIGVTALRM, stop);
    signal(SIGABRT, stop);
    for (int k = 4; k < argc; k++) {
        FILE *file = fopen(argv[k], "rb");
        need(file != NULL, argv[k]);
        now.size = fread(buffer, 1, MOST, file);
        fclose(file);
        run(1);
    }
    uint64_t seeds = kept;
    need(accepted == seeds, "a file that save wrote is refused");
    for (uint64_t k = 0; k < executions; k++) {
        if (k % 4096 == 0)
            setitimer(ITIMER_VIRTUAL, &(struct itimerval){.it_value.tv_sec = 60}, NULL);
        const input *from = &corpus[draw(2) && kept > 64 ? kept - 1 - draw(64) : draw(kept)];
        memcpy(buffer, from->bytes, now.size = from->size);
        for (uint64_t n = 1 + draw(draw(4) ? 2 : 8); n--;)
            mutate();
        if (draw(8))
            repair();
        else if (draw(2))
            write_length(draw(4) ? draw(now.size) : UINT64_MAX - draw(16));
        run(0);
    }
    for (size_t k = 0; k < MAP; k++)
        branches += seen[k] != 0;
    printf("{\"executions\": %" PRIu64 ", \"accepted\": %" PRIu64 ", \"files at first\": %" PRIu64
           ", \"inputs kept\": %zu, \"pairs of branches\": %" PRIu64 "}\n",
           executions, accepted - seeds, seeds, kept, branches);
    while (kept)
        free(corpus[--kept].bytes);
    return 0;
}

#endif
