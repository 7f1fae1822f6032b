/* The backward pass. backward.c has the call and its chunks of steps; backward_steps.c has a step, and
 * backward_sites.c its norms. weight_gradients.c has the products over all rows of a chunk. */
#ifndef LNRNN_BACKWARD_H
#define LNRNN_BACKWARD_H

#include "rnn/step.h"

/* Some steps of all rows, packed as in the tape: step after step, only the active rows. */
typedef struct {
    size_t t0, t1; /* steps t0 .. t1 - 1 */
    size_t rows;   /* active rows of these steps */
    size_t before; /* active rows of all earlier steps: where the chunk begins in the tape */
    size_t block;  /* rows of a product; the last block may be shorter */
    int products;  /* all groups have taken the steps: the products are next */
    int first;     /* the first chunk of the call, with the last steps */
} backward_chunk;

typedef struct backward_step backward_step;
typedef void backward_phase(backward_step *s);
enum { BACKWARD_PHASES = 24 };

typedef struct {
    const lnrnn_rnn_call *r;
    const lnrnn_rnn_config *c;
    const lnrnn_rnn_plan *p;
    const lnrnn_kernels *k;
    const lnrnn_rnn_gradients *g;
    backward_phase *phases[BACKWARD_PHASES + 1]; /* of a step, up to NULL */
    backward_chunk *chunk;
    size_t wide, narrow;       /* row strides of G*H values, of H values */
    size_t h_stride, c_stride; /* row strides of h, of c */
    size_t sum_rows;           /* rows of a block that has sums of its own */
    size_t blocks;             /* the number of such blocks */
    double *sums;              /* (blocks, lnrnn_sums): gradients of the sites' parameters */
    float *partial;            /* (blocks, lnrnn_sums): those of a few rows, which are then added to sums */
    float *gh, *gc;            /* (B, h_stride), (B, c_stride): the gradient of the state */
    /* Of a chunk. gx, ga (rows, wide): gradients of W x and W h, one array if the cell takes their sum. packed_x,
     * packed_h: x and h_prev, packed block by block for the weights' gradients. gx_rows (rows): pointers to the
     * gradients of x, in the caller's array. */
    float *gx, *ga, *packed_x, *packed_h;
    float **gx_rows;
    size_t *done;  /* (groups): steps of the chunk that each has taken */
    size_t *tasks; /* (lnrnn_gradient_tasks): the position of each product */
    float *work;   /* (threads, worker) */
    size_t worker; /* floats of a worker's scratch */
} backward_job;

/* The view of a group's active rows at step t, which a worker moves back through the chunk. */
struct backward_step {
    const backward_job *j;
    size_t t, first, active; /* rows first .. first + active - 1 of the call */
    size_t row;              /* where they begin in the chunk */
    const float *tape;       /* their records */
    const float *previous;   /* records of the same rows at step t - 1 */
    float *gx, *ga;          /* (active, G*H), row stride j->wide */
    float *gh;               /* (active, h_stride), of j->gh */
    lnrnn_gate_gradients b;  /* for the cell's kernels */
    const float *c;          /* (active, C), row stride cs: of an LSTM f c_prev + i g */
    ptrdiff_t cs;
    /* The worker's memory. u, gu: (group, narrow). skip_h, masked: (group, h_stride). skip_c: (group, c_stride). */
    float *u, *gu;          /* as lnrnn_gate_gradients; gu: LSTM */
    float *sum;             /* (group, wide or narrow): the input of a norm that the tape does not have */
    float *skip_h, *skip_c; /* the gradient that zoneout passes to the old state */
    float *masked;          /* masks.state: h as W_hh took it, then the gradient of that */
    float *head;            /* (TILE, head_units), the row stride whole vectors: with several heads */
    float *batch;           /* batch norm: two doubles and six floats for each value of the widest site */
    const float **x, **h, **state_prev; /* (group) pointers: x, h_prev as W_hh took it, c_prev or h_prev */
};

/* --- backward_sites.c ----------------------------------------------------------------------------------- */

/* Doubles of a block's sums: gain and bias of each site, then the inner biases, that of W x and that of W
 * h. */
size_t lnrnn_sums(const lnrnn_rnn_config *c);
/* The first of a site: LNRNN_SITE_INPUT .., or LNRNN_SITES and LNRNN_SITES + 1 for the inner biases. */
size_t lnrnn_sums_at(const lnrnn_rnn_config *c, int site);

/* The values of a site at a step. */
typedef struct {
    const float *a; /* (active, width), row stride as: its input */
    const float *g; /* (active, width), row stride gs: the gradient of its output */
    float *ga;      /* (active, width), row stride gs, may be g: gets the gradient of its input */
    ptrdiff_t as, gs;
} site_rows;

/* The gradient of a site's output -> that of its input, for values from .. end - 1 of its rows; spans lie inside or
 * outside. Adds the gradients of gain and bias to the blocks' sums. Without a norm rows->ga is rows->g. */
void lnrnn_site_backward(const backward_step *s, int site, size_t from, size_t end, const site_rows *rows);
/* Adds the columns of g (active, G*H), row stride j->wide, to the sums of an inner bias. */
void lnrnn_inner_backward(const backward_step *s, int inner, const float *g);
/* After step t of rows first .. first + rows - 1: adds the partial sums to the blocks' sums if there are
 * enough. */
void lnrnn_flush_sums(const backward_job *j, size_t first, size_t rows, size_t t);
/* All blocks' sums -> g->site, g->inner. */
void lnrnn_total_sums(const backward_job *j);
/* a (active, G*H or H), row stride as: the input of a site. -> s->b.u, s->b.us: the last H values of its
 * output. */
void lnrnn_last_gate(backward_step *s, int site, const float *a, ptrdiff_t as);

/* --- backward_steps.c ----------------------------------------------------------------------------------- */

/* The phases of the job's steps. */
void lnrnn_resolve_backward(backward_job *j);
/* Floats of a worker's scratch -> its parts in s, if base is not NULL. */
size_t lnrnn_backward_scratch(const backward_job *j, float *base, backward_step *s);
/* A task of lnrnn_limited_tasks, ctx the job: back-propagates one group through the steps of the chunk. */
void lnrnn_backward_group(void *ctx, size_t group, int worker, int64_t *left);

/* --- weight_gradients.c --------------------------------------------------------------------------------- */

/* rows: m pointers to (k) -> c (m, n), row stride cs: the product with w (k, n), or, if not NULL, with the
 * packed transpose. add: to the values of c. */
void lnrnn_gradient_product(const backward_job *j, size_t m, size_t n, size_t k, const float *const *rows,
                            const float *w, const uint32_t *packed, int add, float *c, size_t cs);
/* v: `rows` pointers to (heads, n), inputs of the product whose gradients begin at `row` of ga or gx -> packed.
 * Each block has its heads one after another. */
void lnrnn_pack_inputs(const backward_job *j, size_t heads, size_t n, size_t row, size_t rows,
                       const float *const *v, float *packed);
/* The products over a chunk as tasks: the most of them, those of this chunk, and the floats of scratch of
 * one. lnrnn_gradient_task is a task of lnrnn_limited_tasks, ctx the job, index < lnrnn_gradient_tasks. */
size_t lnrnn_most_gradient_tasks(const backward_job *j, size_t rows);
size_t lnrnn_gradient_tasks(const backward_job *j);
size_t lnrnn_gradient_work(const backward_job *j);
void lnrnn_gradient_task(void *ctx, size_t index, int worker, int64_t *left);

#endif
