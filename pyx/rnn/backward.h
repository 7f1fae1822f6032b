/* What the parts of a backward call share: the call and its rounds (backward.c), the steps of a group of rows
 * (backward_steps.c), the norms (backward_sites.c), and the products over all rows of a round
 * (weight_gradients.c). */
#ifndef LNRNN_BACKWARD_H
#define LNRNN_BACKWARD_H

#include "rnn/layer.h"
#include "lnrnn/kernels/table.h"

/* Active rows of a round, unless a single step has more; and the most rows of one product over them. More rows make
 * products faster, but the gradients of W x and W h have to stay in the caches until the products read them (lstm
 * training). The order of sums follows from both, so they are no thresholds of tuning.h. */
enum { ROUND_ROWS = 256, PRODUCT_ROWS = 128 };

/* Some steps, of all rows. They are packed as in the tape: step after step, only the active ones. */
typedef struct {
    size_t t0, t1; /* the steps t0 .. t1 - 1 */
    size_t rows;   /* active rows of these steps */
    size_t before; /* active rows of all steps before t0: where the round begins in the tape */
    size_t block;  /* rows that a product takes at once; the last block may be shorter */
    int products;  /* all groups have gone back: the products are to be done */
    int first;     /* it is the first one: of the last steps */
} backward_round;

typedef struct {
    const lnrnn_rnn_call *r;
    const lnrnn_rnn_config *c;
    const lnrnn_rnn_plan *p;
    const lnrnn_kernels *k;
    const lnrnn_rnn_gradients *g;
    backward_round *round;
    size_t wide, narrow; /* row strides of what has G*H values, of what has H */
    size_t sum_rows;     /* rows of a block that has sums of its own */
    size_t blocks;       /* how many there are */
    double *sums;        /* (blocks, lnrnn_sums): the sites' gradients */
    float *partial;      /* (blocks, lnrnn_sums): those of a few rows, not yet added to sums */
    float *gh, *gc;      /* (B, narrow): the gradient of the state, rows in their order; gc: LSTM */
    /* Of a round: the gradients of W x and W h, (rows, wide), one array where the cell takes their sum; x and the h
     * before each step, packed block by block as the second factors of the weights' gradients; and where each row's
     * gradient of x goes. */
    float *gx, *ga, *packed_x, *packed_h;
    float **gx_rows;
    size_t *back;  /* (groups): steps of the round that each has gone back */
    size_t *tasks; /* (lnrnn_gradient_tasks): the position of each of the products */
    float *work;   /* (threads, worker) */
    size_t worker; /* floats of a worker's scratch */
} backward_job;

/* The memory of a worker that has a group. */
typedef struct {
    float *u, *gu;          /* (group, narrow): see lnrnn_gate_gradients; gu: LSTM */
    float *sum;             /* (group, wide or narrow): what a norm has read and the tape does not have */
    float *held_h, *held_c; /* (group, narrow), with zoneout: the gradient that goes past the step */
    float *masked;          /* (TILE, narrow), with masks.state: h as W_hh took it, or the gradient of that */
    float *batch;           /* batch norm: for each value of the widest site two doubles and six floats */
} backward_scratch;

/* Takes n floats, in whole cache lines, of the memory at *at, which moves on. base NULL: only counts. */
static inline float *lnrnn_part_of(float *base, size_t *at, size_t n)
{
    float *found = base ? base + *at : NULL;
    *at += (n + 15) / 16 * 16;
    return found;
}

/* --- backward_sites.c ----------------------------------------------------------------------------------- */

/* Doubles of a block's sums: gain and bias of each site, then the inner biases, that of W x and that of W h. */
size_t lnrnn_sums(const lnrnn_rnn_config *c);
/* Where those of a site begin: LNRNN_SITE_INPUT .., or LNRNN_SITES and LNRNN_SITES + 1 for the inner biases. */
size_t lnrnn_sums_at(const lnrnn_rnn_config *c, int site);

/* What a site of width values read and made at step t. */
typedef struct {
    size_t first, active, t; /* rows first .. first + active - 1 of the call */
    const float *a;          /* (active, width), row stride as: its input */
    const float *g;          /* (active, width), row stride gs: the gradient of its output */
    float *ga;               /* (active, width), row stride gs, may be g: gets the gradient of its input */
    ptrdiff_t as, gs;
} site_rows;

/* The gradient of a site's output -> that of its input, in values from .. end - 1 of its rows; adds ggain and gbias to
 * the blocks' sums. No span may have values both within and without. Without a norm rows->ga is rows->g. */
void lnrnn_site_backward(const backward_job *j, int site, size_t from, size_t end, const site_rows *rows,
                         const backward_scratch *m);
/* Adds the columns of g (active, G*H), row stride rows->gs, to the sums of an inner bias. */
void lnrnn_inner_backward(const backward_job *j, int inner, const site_rows *rows);
/* After step t of rows first .. first + rows - 1: partial sums to the blocks' sums, if there are enough. */
void lnrnn_flush_sums(const backward_job *j, size_t first, size_t rows, size_t t);
/* All blocks' sums -> g->site, g->inner. */
void lnrnn_total_sums(const backward_job *j);
/* a (active, G*H or H), row stride as: what a site read at step t -> (active, H): what its norm, or bias, made of its
 * last H values. Row stride in *us. */
const float *lnrnn_last_gate(const backward_job *j, int site, size_t active, size_t t, const float *a,
                             ptrdiff_t as, const backward_scratch *m, ptrdiff_t *us);

/* --- backward_steps.c ----------------------------------------------------------------------------------- */

/* Floats of the scratch of a worker that has a group -> its parts in m, if base is not NULL. */
size_t lnrnn_backward_scratch(const backward_job *j, float *base, backward_scratch *m);
/* A task of lnrnn_limited_tasks, ctx the job: a group goes back through the steps of the round. */
void lnrnn_backward_group(void *ctx, size_t group, int worker, int64_t *left);

/* --- weight_gradients.c --------------------------------------------------------------------------------- */

/* rows: m pointers to (k) -> c (m, n), row stride cs: the product with w (k, n), or, if that is not NULL, with its
 * transpose packed, added to what c holds (add), or alone. */
void lnrnn_gradient_product(const backward_job *j, size_t m, size_t n, size_t k, const float *const *rows,
                            const float *w, const uint32_t *packed, int add, float *c, size_t cs);
/* v (n): an input of the product whose gradient stands in row pos of ga or gx; n floats -> its place in packed. */
void lnrnn_pack_inputs(const backward_job *j, size_t n, size_t pos, size_t rows, const float *const *v,
                       float *packed);
/* The products over a round as tasks: the most of them, those of this round, and the floats of scratch that one needs.
 * lnrnn_gradient_task is a task of lnrnn_limited_tasks, ctx the job, index < lnrnn_gradient_tasks. */
size_t lnrnn_most_gradient_tasks(const backward_job *j, size_t rows);
size_t lnrnn_gradient_tasks(const backward_job *j);
size_t lnrnn_gradient_work(const backward_job *j);
void lnrnn_gradient_task(void *ctx, size_t index, int worker, int64_t *left);

#endif
