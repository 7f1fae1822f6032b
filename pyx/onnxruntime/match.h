/* The search for a step: match.c searches, accept.c makes a step of the result. */
#ifndef LNRNN_ONNXRUNTIME_MATCH_H
#define LNRNN_ONNXRUNTIME_MATCH_H

#include "onnxruntime/cells.h"

/* All that a match has bound so far. Each member is a pointer, so that `bindings` can restore it. */
typedef struct {
    void *values[VALUES];                   /* x, h0, c0 */
    void *results[EQUATIONS];               /* the value that an equation computes */
    void *constants[CONSTANTS][EQUATIONS];  /* part */
    void *arguments[FUNCTIONS_][EQUATIONS]; /* the atom of a function */
    void *functions[FUNCTIONS_];            /* an atom of this kind */
    void *norms[NORMS];                     /* the sum of a norm over several gates */
    void *places[NORMS][4];                 /* the equation of each part of such a norm */
    void *operands[EQUATIONS];              /* the value that weight_hh multiplies */
    void *eps;                              /* a norm with this eps */
} bound;

enum { MOST_BINDINGS = 512 };
typedef struct {
    graph *g;
    const pattern *p;
    size_t units, state_size;
    bound b;
    struct {
        void **slot, *before;
    } bindings[MOST_BINDINGS];
    int count, goals;
    step *found;
} matcher;

/* Returns 1 and sets m->found if the bindings are a whole step. */
int match_accept(matcher *m);

#endif
