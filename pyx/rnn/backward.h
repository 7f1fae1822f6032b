/* The backward pass: backward.c divides a call into chunks of steps, backward_steps.c computes a step, and
 * backward_sites.c its norms. weight_gradients.c has the products over all rows of a chunk. */
#ifndef LNRNN_BACKWARD_H
#define LNRNN_BACKWARD_H

#include "rnn/step.h"

/* A chunk: some consecutive steps of all rows. Its arrays have the order of the tape: step after step, with
 * only the active rows of each step. */
typedef struct {
    size_t t0, t1; /* steps t0 .. t1 - 1 */
    size_t rows;   /* the number of active rows of all steps of the chunk */
    size_t before; /* the number of active rows of all earlier steps: the chunk's offset in the tape */
    size_t block;  /* the number of rows of one product; the last block may be shorter */
    int products;  /* 1: all groups have computed their steps, so the products are next */
    int first;     /* 1: the first chunk of the pass, which has the last steps */
} backward_chunk;

typedef struct backward_step backward_step;
typedef void backward_phase(backward_step *s);
enum { BACKWARD_PHASES = 28 };

typedef struct {
    const lnrnn_rnn_call *r;
    const lnrnn_rnn_config *c;
    const lnrnn_rnn_plan *p;
    const lnrnn_kernels *k;
    const lnrnn_rnn_gradients *g;
    backward_phase *phases[BACKWARD_PHASES + 1]; /* the phases of a step, ending with NULL */
    backward_chunk *chunk;
    size_t wide, narrow;       /* row strides of arrays of G*H values, of H values per row */
    size_t h_stride, c_stride; /* row strides of h, of c */
    size_t sum_rows;           /* the number of rows of a block; each block has its own sums */
    size_t blocks;
    double *sums;   /* (blocks, lnrnn_sums): gradients of the norms' gains and biases */
    float *partial; /* (blocks, lnrnn_sums): sums over a few rows, later added to `sums` */
    float *gh, *gc; /* (B, h_stride), (B, c_stride): the gradient of the state */
    /* One chunk. gx, ga (rows, wide): gradients of W x and W h; the same array if the cell reads only their
     * sum. packed_x, packed_h, packed_reset: x, h_prev and (reset_before) r h, packed block by block for the
     * gradients of the weights. gx_rows (rows): pointers into the caller's array for the gradient of x. */
    float *gx, *ga, *packed_x, *packed_h, *packed_reset;
    /* With a projection, gh_rows (rows, gh_stride): gradients of h; packed_output: the cell's outputs,
     * packed. */
    float *gh_rows, *packed_output;
    size_t gh_stride;
    float **gx_rows;
    size_t *done;  /* (groups): the number of steps of the chunk that each group has computed */
    size_t *tasks; /* (lnrnn_gradient_tasks): the position of each product; LNRNN_DONE after its end */
    float *work;   /* (threads, worker) */
    size_t worker; /* the number of floats of scratch per worker */
} backward_job;

/* A view of the active rows of a group at step t. A worker moves the view back through the chunk. */
struct backward_step {
    const backward_job *j;
    size_t t, first, active; /* rows first .. first + active - 1 of the call */
    size_t row;              /* the index of row `first` in the chunk */
    const float *tape;       /* the tape's records of the active rows at step t */
    const float *previous;   /* the tape's records of these rows at step t - 1 */
    float *gx, *ga;          /* (active, G*H), row stride j->wide */
    float *gh;               /* (active, h_stride): these rows of j->gh */
    lnrnn_gate_gradients b;  /* the arguments of the cell's kernels */
    const float *c;          /* (active, C), row stride cs: f c_prev + i g of an LSTM */
    ptrdiff_t cs;
    /* Scratch of the worker. u, gu: (group, narrow). skip_h, masked: (group, h_stride). skip_c: (group,
     * c_stride). */
    float *u, *gu;          /* arrays for b.u and b.gu. gu with reset_before: r h, then the gradient of r h */
    float *sum;             /* (group, wide or narrow): the input of a norm, if the tape lacks it */
    float *skip_h, *skip_c; /* the gradient that zoneout passes to the old state */
    float *masked; /* with masks.state: the masked h that W_hh multiplied; later the gradient through W_hh */
    float *head;   /* with several heads: (TILE, head_units), row stride rounded up to whole vectors */
    float *batch;  /* batch norm: two doubles and six floats per value of the widest norm */
    float *unprojected;    /* (group, narrow), with a projection: the gradient of the cell's output */
    const float **outputs; /* (group) pointers to the cell's output */
    const float **x, **h, **state_prev; /* (group) pointers: x; h_prev or masked copies; c_prev or h_prev */
};

/* --- backward_sites.c ----------------------------------------------------------------------------------- */

/* Returns the number of sums per block: gain and bias of each site, the inner biases of W x and W h, and
 * peepholes. */
size_t lnrnn_sums(const lnrnn_rnn_config *c);
/* Returns the offset of the sums of a site. site: LNRNN_SITE_INPUT .., or LNRNN_SITES + 0 and + 1 for the
 * inner biases. */
size_t lnrnn_sums_at(const lnrnn_rnn_config *c, int site);

/* For a site (a norm, layer.h) at one step: its input, and the gradients of its output and input. */
typedef struct {
    const float *a; /* (active, width), row stride `as`: the site's input */
    const float *g; /* (active, width), row stride gs: the gradient of the site's output */
    float *ga;      /* (active, width), row stride gs, may be g: receives the gradient of the site's input */
    ptrdiff_t as, gs;
} site_rows;

/* Writes rows->ga from rows->g, for values from .. end - 1 of each row, which must be whole spans
 * (backward_sites.c). Adds the gradients of gain and bias to the sums of the blocks. Without a norm rows->ga
 * must be rows->g. */
void lnrnn_site_backward(const backward_step *s, int site, size_t from, size_t end, const site_rows *rows);
/* g (active, G*H), row stride j->wide: the gradient of W x (inner 0) or of W h (inner 1). Adds the sums of
 * its columns to the sums for this inner bias. */
void lnrnn_inner_backward(const backward_step *s, int inner, const float *g);
/* Back-propagates through peephole p, number k: 0 with GATE_I, 1 with GATE_F, or 2 with GATE_O. ga is the
 * gradient of the gate's argument. Adds ga p to gc, and ga c to the sums for p. Overwrites s->u. */
void lnrnn_peephole_backward(const backward_step *s, size_t k, size_t gate);
/* Must be called after each step t of rows first .. first + rows - 1. After about every 32 rows, adds the
 * float sums of the rows' blocks to the double sums. */
void lnrnn_flush_sums(const backward_job *j, size_t first, size_t rows, size_t t);
/* Adds up the sums of all blocks into g->site, g->inner and g->peephole. */
void lnrnn_total_sums(const backward_job *j);
/* a (active, G*H or H), row stride `as`: the input of a site. Sets s->b.u to the last H values of the site's
 * output, and s->b.us to their row stride. */
void lnrnn_last_gate(backward_step *s, int site, const float *a, ptrdiff_t as);

/* --- backward.c ----------------------------------------------------------------------------------------- */

/* Returns the number of floats of scratch that a worker needs. If base is not NULL, also sets the pointers of
 * s into this scratch. */
size_t lnrnn_backward_scratch(const backward_job *j, float *base, backward_step *s);

/* --- backward_steps.c ----------------------------------------------------------------------------------- */

/* Sets j->phases, the functions that compute a step. */
void lnrnn_resolve_backward(backward_job *j);
/* A task of lnrnn_limited_tasks, where ctx is the job: back-propagates one group through the steps of the
 * chunk. */
void lnrnn_backward_group(void *ctx, size_t group, int worker, int64_t *left);

/* --- weight_gradients.c --------------------------------------------------------------------------------- */

/* rows: m pointers to (k), w: packed (n, k) -> c (m, n), row stride cs: the product. add: adds to the values
 * of c. */
void lnrnn_gradient_product(const backward_job *j, size_t m, size_t n, size_t k, const float *const *rows,
                            const uint32_t *w, int add, float *c, size_t cs);
/* v: `rows` pointers to (heads, n), the inputs x or h of the products whose gradients are gx or ga from row
 * `row` on. Packs them into `packed`. In each block of rows the heads are one after another. */
void lnrnn_pack_inputs(const backward_job *j, size_t heads, size_t n, size_t row, size_t rows,
                       const float *const *v, float *packed);
/* The products over a chunk are tasks. most_gradient_tasks returns the largest number of tasks for a chunk of
 * `rows` rows. gradient_tasks returns the number of tasks of this chunk, and gradient_work the number of
 * floats of scratch per task. lnrnn_gradient_task is a task of lnrnn_limited_tasks, where ctx is the job. */
size_t lnrnn_most_gradient_tasks(const backward_job *j, size_t rows);
size_t lnrnn_gradient_tasks(const backward_job *j);
size_t lnrnn_gradient_work(const backward_job *j);
void lnrnn_gradient_task(void *ctx, size_t index, int worker, int64_t *left);

#endif
