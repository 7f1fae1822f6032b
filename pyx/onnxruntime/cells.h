/* Types for steps of cells in plain operators: graphs, values as sums of products, patterns, and matches. */
#ifndef LNRNN_ONNXRUNTIME_CELLS_H
#define LNRNN_ONNXRUNTIME_CELLS_H

#include <setjmp.h>

#include "onnxruntime/plugin.h"

/* --- graph.c: a graph of the runtime -------------------------------------------------------------------- */

typedef struct node node;
typedef struct value value;
typedef struct sum sum;
typedef struct atom atom;

/* A node reads a value as input `at`, or within its subgraphs if `at` is -1. */
typedef struct use {
    node *user;
    int at;
    struct use *next;
} use;

struct value {
    const OrtValueInfo *info;
    node *producer; /* NULL: an input, a constant, or a value of an outer graph */
    use *uses;
    int is_output, is_constant;
    size_t rank, width; /* width: the size of the last axis; 0: unknown */
    tensor constant;
    const sum *sum;     /* NULL: not computed yet */
    const char *left;   /* why the plug-in leaves the step with this new h, or NULL */
    const value *state; /* the matrix weight_hh of the claimed step that computes this state, or NULL */
    struct value *next; /* in a list of the table */
};

struct node {
    const OrtNode *info;
    const char *operator;
    int version, place, is_taken;
    size_t inputs, outputs;
    value **in, **out;       /* an element is NULL if left out */
    int mark;                /* the number of the search that has seen the node */
    const struct step *step; /* the claimed step that has the node, or NULL */
    int chain;               /* the number of its chain, or 0 */
};

/* Memory that is freed together. allocate() jumps to `full` without memory. */
typedef struct {
    struct block *blocks;
    size_t bytes, most;
    jmp_buf full;
} arena;

enum { LISTS = 4096 }; /* of values and of atoms, by hash */

typedef struct graph {
    const ort_functions *ort;
    arena memory;
    node *nodes; /* (count), in an order in which each node follows those that it reads */
    size_t count;
    value *values[LISTS];
    atom *atoms[LISTS];
    size_t atom_count;
    int with_rows; /* a constant with equal rows is a vector */
    int joined;    /* a product with a Concat is a sum of products with its parts: one matrix for x and h */
    int searches, is_alone; /* is_alone: the graph is one node, whose neighbours are unknown */
    value **in, **out;      /* inputs and outputs */
    size_t inputs, outputs;
    struct graph *body; /* that of a node, which is freed with this graph, or NULL */
} graph;

void *allocate(arena *memory, size_t bytes); /* zeros */
void arena_free(arena *memory);
/* Reads a graph. Returns a status without success. */
OrtStatus *graph_read(const ort_functions *ort, const OrtGraph *info, graph *g);
/* Reads one node as a graph. */
OrtStatus *graph_read_node(const ort_functions *ort, const OrtNode *info, graph *g);
/* Forgets all sums and atoms. */
void graph_forget(graph *g);
/* Returns 1 if a node is this operator of ONNX. */
int is_operator(const node *n, const char *name);
node *producer(const value *v, const char *operator);
/* Returns an attribute, or the default `value` if it is left out or has another type. */
int64_t integer_attribute(const graph *g, const node *n, const char *name, int64_t value);
float float_attribute(const graph *g, const node *n, const char *name, float value);
/* Reads at most `most` integers. Returns their number, or -1. */
int integers_attribute(const graph *g, const node *n, const char *name, int64_t *numbers, int most);
/* Returns the description of a value, or NULL for NULL. */
const OrtValueInfo *info_of(const value *v);
/* Returns an input, or NULL if it is left out. */
value *input(const node *n, size_t at);
/* Reads an input that is a constant of at most `most` integers. Returns their number, or -1. */
int constant_integers(const node *n, size_t at, int64_t *numbers, int most);
/* Returns 1 if both values are constants with the same numbers. */
int constants_equal(const value *a, const value *b);
/* Returns 1 if an axis is known to be the last one of a value. */
int is_last_axis(int64_t axis, const value *v);

/* --- sums.c: values as sums of products, as in lnrnn/recognise/terms.py -------------------------------- */

enum { ATOM_VALUE, ATOM_PRODUCT, ATOM_NORM, ATOM_ONE, ATOM_SIGMOID, ATOM_TANH, ATOM_RELU, ATOM_HARD_SIGMOID };
enum { MOST_TERMS = 16, MOST_FACTORS = 4, MOST_NESTED = 16, MOST_DEPTH = 40, MOST_NUMBERS = 65536 };

/* A constant factor: n numbers, or one for all places of a row. */
typedef struct {
    const double *a; /* (n) */
    size_t n;
} vector;

/* Rows and columns of a constant matrix, float32. is_transposed: rows are columns of the constant. */
typedef struct {
    const value *of;
    int is_transposed;
    size_t row, rows, column, columns;
} matrix;

/* Equal atoms are one object. ATOM_ONE is the number 1 as a factor of a bias that a Gemm or
 * LayerNormalization of `value` adds. */
struct atom {
    int kind;
    size_t number;       /* the order of atoms in products */
    size_t width;        /* of the last axis; 0: unknown */
    size_t start;        /* where the part of a value or norm begins */
    value *value, *part; /* the value itself, or the argument; the value that is this part */
    const sum *of;       /* the argument of a norm or function */
    matrix matrix;
    double eps;
    int nested; /* the number of functions and norms inside of each other */
    uint64_t hash;
    atom *next;
};

typedef struct {
    vector factor;
    int count;
    atom *atom[MOST_FACTORS]; /* (count), by number */
} summand;

struct sum {
    int count;
    summand s[];
};

/* They return NULL for a sum that is too large. */
const sum *sum_of(graph *g, value *v, int depth);
/* The same, but arguments of products, norms and functions stay whole. */
const sum *operand(graph *g, value *v, int depth);
const sum *plus(graph *g, const sum *a, const sum *b, double sign);
const sum *times(graph *g, const sum *a, const sum *b);
const sum *cut(graph *g, const sum *a, size_t start, size_t stop);
const sum *single(graph *g, atom *a);
const sum *summand_sum(graph *g, const summand *s);
const sum *number_sum(graph *g, double number);
/* `other` has the rank of the result. */
const sum *constant_sum(graph *g, const value *v, size_t rank);
size_t sum_width(const sum *a);
int sums_equal(const sum *a, const sum *b);
atom *value_atom(graph *g, value *v, size_t start, size_t width);
atom *product_atom(graph *g, value *v, matrix m);
atom *one_atom(graph *g, value *v);
atom *norm_atom(graph *g, value *v, const sum *of, double eps, size_t start, size_t width);
atom *function_atom(graph *g, int kind, value *v, const sum *of);
/* Returns the value of an ATOM_VALUE, or NULL for a part that is no value of its own. */
value *outer_value(const atom *a);

/* operators.c */
/* Returns the result v of a node as a sum, or NULL for a node that is no sum. */
const sum *operator_sum(graph *g, node *n, value *v, int depth);

/* --- patterns, written by pyx/cell_patterns.py ---------------------------------------------------------- */

typedef struct factor factor;
typedef struct term term;
typedef struct {
    int count;
    const term *terms;
} equation;

/* name: 0 .. 2 for the values x, h0, c0; FUNCTION_..; the matrix, CONSTANT_..; or the number of a norm. of:
 * the equation of the argument, or -1. gates: the number of gates that a norm spans, 0 for one. */
enum { FACTOR_VALUE, FACTOR_FUNCTION, FACTOR_PRODUCT, FACTOR_NORM };
enum { VALUE_X, VALUE_H0, VALUE_C0, VALUES };
struct factor {
    int kind, name, of, gates, count;
    const factor *factors; /* (count): the operand of a product */
    equation argument;     /* of a norm */
};

/* sign times a constant vector, or 1 if vector is -1, times factors. */
struct term {
    int sign, vector, count;
    const factor *factors; /* (count) */
};

#include "cell_patterns.h"

typedef struct pattern {
    int cell, placement, span, cell_norm, reset_after;
    int gate_count, gates[4]; /* EQUATION_.. */
    int negated;              /* a gate whose pre-activation has the other sign in lnrnn, or -1 */
    int states;
    int bias_of_h;
    unsigned has[EQUATIONS]; /* bits: the constants of an equation */
    equation equations[EQUATIONS];
} pattern;

/* --- match.c: one step of a cell ------------------------------------------------------------------------ */

/* The part of a constant that belongs to a gate: a matrix with a factor for each row, or a list of
 * vectors. */
typedef struct part {
    matrix matrix;
    vector vector;
    const value *owner; /* the operand of the Gemm that adds this bias, or NULL */
    struct part *next;
} part;

typedef struct step {
    const pattern *pattern;
    size_t units, state_size, input_size; /* H, P, D */
    part *constants[CONSTANTS][EQUATIONS];
    int functions[FUNCTIONS_]; /* ATOM_.., or 0 */
    double eps;
    value *in[VALUES]; /* x, h0 and c0 or NULL */
    value *out[2];     /* h, and c or NULL */
    node **nodes;      /* (count), in the order of the graph */
    size_t count;
} step;

/* Returns the step whose new h is this value, or NULL. No node outside of it reads other values of the step
 * than `out`. */
step *step_match(graph *g, value *v, int with_rnn);
const char *constant_name(int k);

/* --- accept.c: the nodes of steps ----------------------------------------------------------------------- */

enum { MOST_STEP_NODES = 400 };
/* Adds the nodes that compute v from the inputs of the step and constants, since the last change of
 * g->searches. Returns 0 if they read another value. */
int step_collect(graph *g, step *s, value *v);
/* Returns 1 if nodes outside of the step, or the graph, read values of the step other than its results. Also
 * returns 1 if the step computes its own x, h0 or c0. */
int step_is_read_outside(const graph *g, const step *s);

/* --- loops.c: a Loop or Scan whose body is one step ----------------------------------------------------- */

enum { LOOP_KEPT = VALUES, LOOP_MASK, LOOP_STEPS, LOOP_GO, LOOP_INPUTS };

/* The nodes: the Loop or Scan, and those of a Loop that collect its outputs in a sequence. Values are those
 * of the outer graph, or NULL. Step t reads x[step t + steps T + size X + constant] of the X steps of x, by
 * the members of `index`. Where the mask is false, the states stay, and y is LOOP_KEPT, or, if `repeats`, the
 * y before, and first LOOP_KEPT. The number of steps T is LOOP_STEPS, or `steps` if it is constant, or that
 * of x. With LOOP_GO, it is 0 if that is false, else at least 1. x (T, B, D) or, with x_axis 1, (B, T, D); y
 * the same; the states (B, ..). */
typedef struct {
    const step *step;
    const char *left; /* why a node with a step is no loop */
    int x_axis, y_axis, y_is_back, repeats;
    struct {
        int64_t step, steps, size, constant;
    } index;
    int64_t steps; /* -1: not constant */
    node *nodes[3];
    size_t count;
    const OrtValueInfo *in[LOOP_INPUTS], *y, *out[2];
} loop;

/* Reads a node of `g`. body: an empty graph, for the node's body. Returns 1, or 0 if no network replaces the
 * node. */
int loop_match(graph *g, node *n, graph *body, loop *l);
/* Empty graphs. The result is NULL without memory. */
graph *graph_create(void);
void graph_free(graph *g);

/* Exchanges x and h0 of an RNN or LSTM whose D is P: its equation does not tell them apart. Returns 0 for
 * another step. */
int step_exchange(step *s);

/* --- first_step.c, chains.c: unrolled loops ------------------------------------------------------------- */

/* Returns the step before s, which has states of 0, or NULL. Its inputs h0 and c0 are NULL. *rows: the number
 * of sequences, or 1 if it depends on x alone. Takes the step's nodes. */
step *step_from_zeros(graph *g, const step *s, size_t *rows);

/* Step t reads x[first + t * direction] of x (.., B, D), or, if x is NULL, a value of its own. y (T, B, P) or
 * NULL.
 * rows: B must be this number, if it is not 1. */
typedef struct {
    step **steps; /* (count); the states of the first one are 0 if its h0 is NULL */
    node **nodes; /* (node_count) */
    size_t count, node_count, rows;
    int64_t first, direction;
    value *x, *y;
} chain;

/* Sets chains, which has room for `count`, and marks their nodes. Returns their number. */
size_t chains_find(graph *g, step *const *steps, size_t count, chain *chains);

/* --- step_network.c: the networks of steps -------------------------------------------------------------- */

/* Sets the description of a step's network. Returns 0 if no network computes the step. */
int step_describe(const step *s, int weights, lnrnn_description *d);
lnrnn_status step_network(const step *s, const lnrnn_description *d, network_list *list,
                          lnrnn_network **network, char message[LNRNN_MESSAGE]);

/* --- step_run.c, loop_run.c, chain_run.c ---------------------------------------------------------------- */

/* Do the same as node_kernel, for a step, a chain, and all steps of a loop. */
kernel_base *step_kernel(const provider *p, const step *s, lnrnn_network *network);
kernel_base *chain_kernel(const provider *p, const chain *c, lnrnn_network *network);
kernel_base *loop_kernel(const provider *p, const loop *l, lnrnn_network *network);
/* The sizes of a run. rows: the product of the leading axes of the outputs. */
typedef struct {
    int64_t shape[8];
    size_t rank, rows;
} sizes;
/* t (.., width) or (.., 1) -> to (rows, width) */
void broadcast(const tensor *t, const sizes *s, size_t width, float *to);
/* t (B, width) or (1, width) -> to (B, width) */
void broadcast_rows(const tensor *t, size_t B, size_t width, float *to);

#endif
