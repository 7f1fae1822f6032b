/* Opens a model that Python has saved, and streams it without Python. Reads a line of numbers for each step, and prints a line.
 *
 *     make lib install PREFIX=$HOME/.local                  # in lnrnn's folder
 *     cc c_program.c -o c_program $(pkg-config --cflags --libs lnrnn)
 *     ./c_program model.safetensors < inputs.txt
 *
 * Each line has the D inputs of one step. "reset" begins a new sequence. */
#include <lnrnn.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads n numbers of a line into x (n). Returns 1, or 0 if the line has fewer. */
static int read_numbers(char *line, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char *end;
        x[i] = strtof(line, &end);
        if (end == line)
            return 0;
        line = end;
    }
    return 1;
}

int main(int count, char **arguments)
{
    char message[LNRNN_MESSAGE], line[1 << 16];
    lnrnn_network *network;
    lnrnn_stream *stream;
    lnrnn_handle *handle;
    if (count != 2) {
        fprintf(stderr, "usage: %s MODEL < INPUTS\n", arguments[0]);
        return 2;
    }
    /* The stream has one lane (one sequence). The handle steps it on one thread. */
    if (lnrnn_network_open(arguments[1], &network, message)) {
        fprintf(stderr, "%s: %s\n", arguments[1], message);
        return 1;
    }
    if (lnrnn_stream_create(network, 1, &stream, message)
        || lnrnn_handle_create(stream, 1, 1, &handle, message)) {
        fprintf(stderr, "%s\n", message);
        return 1;
    }
    const size_t D = lnrnn_network_inputs(network), P = lnrnn_network_state_size(network, 0);
    float *const x = malloc(D * sizeof *x), *const y = malloc(P * sizeof *y);
    while (x && y && fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "reset\n"))
            lnrnn_handle_reset(handle, NULL, 1);
        else if (!read_numbers(line, x, D) || lnrnn_handle_step(handle, NULL, x, y))
            fprintf(stderr, "not a step of %zu inputs: %s", D, line);
        else
            for (size_t i = 0; i < P; i++)
                printf("%.9g%c", (double)y[i], i + 1 < P ? ' ' : '\n');
    }
    free(x), free(y);
    lnrnn_handle_free(handle);
    lnrnn_stream_release(stream);
    lnrnn_network_release(network);
    return 0;
}
