/* Types and functions of loops.c and loop_index.c, which read a Loop. */
#ifndef LNRNN_ONNXRUNTIME_LOOPS_H
#define LNRNN_ONNXRUNTIME_LOOPS_H

#include "onnxruntime/cells.h"

/* A node and its body. */
typedef struct {
    graph *g, *body;
    node *n;
    loop *l;
    const value *mask, *y, *kept; /* of the body: the mask of a step, y, and y where the mask is false */
    int states, masked;           /* how many states the body has, and how many of them have a mask */
} reader;

/* Returns the value before nodes of this operator. */
value *loop_before(value *v, const char *operator);
value *loop_before_identity(value *v);
/* Returns a value of the outer graph behind Slice nodes that keep all of it, or NULL. */
value *loop_outer_input(const graph *body, value *v);
/* Returns 1 if v is the number of the step: that of the Loop, or a value that begins at 0 and grows by 1. */
int loop_is_step_number(const reader *r, const value *v);
/* Returns 1 if v is the number of the next step. */
int loop_is_next_number(const reader *r, const value *v);
/* Sets x and its index at each step. */
int loop_read_x(reader *r);

#endif
