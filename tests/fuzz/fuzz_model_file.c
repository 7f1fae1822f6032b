/* The test and the mutations with which libFuzzer runs the reader of files. At the end it prints the number of accepted inputs. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/model_file.h"
#include "runtime/os.h"

/* The inputs are in memory, and no file is opened. */
FILE *lnrnn_file_open(const char *path, uint64_t *bytes)
{
    (void)path, (void)bytes;
    return NULL;
}

static uint64_t accepted;

static void say(void) { fprintf(stderr, "accepted: %" PRIu64 "\n", accepted); }

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    return atexit(say);
}

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
    memset(message, 'x', sizeof message);
    lnrnn_status status = lnrnn_model_file_read(NULL, bytes, size, &model, message);
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

/* Writes the length of a header into its first 8 bytes. */
static void write_length(uint8_t *bytes, uint64_t length)
{
    for (int b = 0; b < 8; b++)
        bytes[b] = (uint8_t)(length >> 8 * b);
}

/* Returns the length of the header: its object, and the spaces that follow. */
static uint64_t header(const uint8_t *bytes, size_t size)
{
    int depth = 0, text = 0;
    for (size_t k = 8; k < size; k++) {
        if (text && bytes[k] == '\\')
            k++;
        else if (bytes[k] == '"')
            text = !text;
        else if (!text)
            depth += (bytes[k] == '{') - (bytes[k] == '}');
        if (depth == 0 && !text) {
            while (k + 1 < size && bytes[k + 1] == ' ')
                k++;
            return k + 1 - 8;
        }
    }
    return size;
}

size_t LLVMFuzzerMutate(uint8_t *bytes, size_t size, size_t most);

/* Mutates an input. Mostly it then corrects the length of the header, so that the reader reads a mutated header. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned int seed)
{
    size = LLVMFuzzerMutate(bytes, size, most);
    if (size >= 8 && seed % 8)
        write_length(bytes, header(bytes, size));
    return size;
}
