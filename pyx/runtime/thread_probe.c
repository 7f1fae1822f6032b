/* Tests whether threads can be started, before OpenMP starts them, because libgomp ends the process if a
 * start fails. A start can fail by limits on processes (RLIMIT_NPROC, pids.max of a control group) or on
 * memory (RLIMIT_AS). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/threads.h"

static size_t stack_bytes; /* the stack size of OpenMP's threads; 0: the system's default */

int lnrnn_probe_threads(int n) { return lnrnn_threads_try(n, stack_bytes); }

/* Reads a size in the notation of OMP_STACKSIZE: a number, with B, K, M or G, by default K. Returns bytes, or
 * 0 if the text is no size. */
static size_t size_in(const char *text)
{
    if (!text)
        return 0;
    text += strspn(text, " \t");
    /* GCOVR_EXCL_BR_START: processes with a wrong OMP_STACKSIZE */
    if (*text < '0' || *text > '9')
        return 0;
    char *end;
    const unsigned long long n = strtoull(text, &end, 10);
    end += strspn(end, " \t");
    static const char units[] = "bBkKmMgG";
    const char *unit = *end ? strchr(units, *end++) : units + 2;
    const int shift = unit ? (int)(unit - units) / 2 * 10 : 0;
    return unit && !end[strspn(end, " \t")] && n <= SIZE_MAX >> 1 >> shift ? (size_t)n << shift : 0;
    /* GCOVR_EXCL_BR_STOP */
}

__attribute__((constructor)) static void read_stack_size(void)
{
    stack_bytes = size_in(getenv("OMP_STACKSIZE"));
    if (!stack_bytes)
        stack_bytes = size_in(getenv("GOMP_STACKSIZE")); /* libgomp's older name of the variable */
}
