/* How far the runs of a network have come (network.c), in the scratch memory of the call. */
#ifndef LNRNN_NETWORK_RUNS_H
#define LNRNN_NETWORK_RUNS_H

#include <stddef.h>
#include <stdint.h>

/* position: as resumable.h has it. Threads look at both again and again: no two runs in a cache line. */
typedef struct {
    size_t position;
    int taken; /* a thread is at it */
    char padding[64 - sizeof(size_t) - sizeof(int)];
} network_run;

/* Floats for n runs, wherever they begin. */
static inline size_t runs_floats(size_t n) { return (n + 1) * (sizeof(network_run) / sizeof(float)); }

/* The first place for them at or after p. */
static inline network_run *runs_at(float *p)
{
    return (network_run *)(((uintptr_t)p + sizeof(network_run) - 1) & ~(sizeof(network_run) - 1));
}

#endif
