/* A program for an emulator with exp, tanh and sigmoid of include/lnrnn/simd/vmath.h. A macro chooses the instruction set, such
 * as -DLNRNN_ISA_NEON. A request on stdin is two uint32, the function and n, and n floats. The answer on stdout is n floats. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "lnrnn/simd/vmath.h"

int main(void)
{
    uint32_t request[2];
    while (fread(request, sizeof *request, 2, stdin) == 2) {
        const size_t n = request[1];
        float *x = malloc((n + 1) * sizeof *x);
        if (!x || fread(x, sizeof *x, n, stdin) != n)
            return 1;
        (request[0] == LNRNN_MAP_EXP    ? exp_f32
         : request[0] == LNRNN_MAP_TANH ? tanh_f32
                                        : sigmoid_f32)(n, x, x);
        if (fwrite(x, sizeof *x, n, stdout) != n || fflush(stdout))
            return 1;
        free(x);
    }
    return 0;
}
