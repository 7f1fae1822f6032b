/* A step of a group. The view of its active rows moves from step to step (step.c); the plan has resolved its phases.
 * In forward.c a thread has all columns of its rows; in split.c threads divide the columns. */
#ifndef LNRNN_STEP_H
#define LNRNN_STEP_H

#include "rnn/layer.h"
#include "runtime/threads.h"

/* Where threads divide a product: before `panel`, or within it. Within it, the first n * part / of of n rows,
 * rounded, lie before the cut. */
typedef struct {
    size_t panel, part, of;
} lnrnn_cut;

/* The columns between two cuts: those of one thread, or all. */
typedef struct {
    lnrnn_cut from, to;
} lnrnn_share;

/* Rows first .. first + count - 1 of the call form the group. Of these, the first `active` have not ended at
 * step t. */
struct lnrnn_step {
    const lnrnn_rnn_call *r;
    size_t first, count, length; /* length: steps of the longest row */
    size_t t, active;
    /* Pointers to rows. x: (D), the active rows of a chunk's steps in turn. h_prev, h (P) and c (C): the active
     * rows before and after step t. The product with W_hh takes those of `recurrent`: h_prev, or its masked
     * copies. */
    const float **x, **h_prev, **recurrent;
    float **c, **h;
    ptrdiff_t next_h; /* from a row of h to that of the next step */
    float **y;        /* with output_norm: pointers to the active rows (H) of y, next_y from step to step */
    ptrdiff_t next_y;
    /* (active, G*H). wx, row stride plan->wide: W_ih x of step t. Row stride cell.as: a: W_hh h, or W_ih x +
     * W_hh h; hidden: where W_hh h of separate products goes. all_c (active, C) and all_h (active, P), row
     * stride cell.as: c and h of all rows. */
    float *wx, *a, *hidden, *all_c, *all_h;
    size_t recorded, live; /* with a tape: rows of all groups before step t, and at the step before */
    /* Arguments of the cell's kernel. cell: the rows whose states this thread computes, from row `row` of the
     * call on. */
    void (*kernel)(const lnrnn_step_config *config, const lnrnn_step_rows *rows);
    lnrnn_step_config config;
    lnrnn_gate_norm norm[LNRNN_SITES];
    lnrnn_step_rows cell;
    size_t row;
    /* This thread is number `index` of `team` in the group, and has a share of the columns. */
    int index, team;
    lnrnn_share share;
    lnrnn_barrier *barrier;
    /* Memory of the group, row stride plan->wide. chunk: (plan->chunk, group, G*H), W_ih x. products: W_hh h of
     * separate products without a tape, (group, G*H), or, with divide_units, (2, group, G*H). */
    float *chunk, *products;
    /* Memory of the thread, (group, P or C), row stride plan->h_stride or c_stride. own: the states of threads other than 0,
     * with divide_units but not divide_rows. old: the states before the step, with zoneout. masked: h as W_hh
     * takes it, with masks.state. */
    float *own_h, *own_c, *old_h, *old_c, *masked;
    float *statistics; /* (LNRNN_SITES, statistics_floats), with statistics of the batch */
    uint32_t *packed;  /* of the product */
    float *block;      /* (TILE, outputs of a head), the row stride whole vectors */
};

/* Takes n floats, in whole cache lines, from base + *at; *at moves on. base NULL: only counts. */
static inline void *lnrnn_carve(float *base, size_t *at, size_t n)
{
    float *place = base ? base + *at : NULL;
    *at += lnrnn_whole_floats(n);
    return place;
}

/* --- step.c --------------------------------------------------------------------------------------------- */

/* The phases of the plan's steps. */
void lnrnn_resolve_step(const lnrnn_rnn_call *r, lnrnn_rnn_plan *plan);
/* shared: the memory that the threads of a group share; own: this thread's. Without divide_units they are the
 * same, and so are the sizes. -> the pointers of s, if these are not NULL; the floats of `own`, and in
 * *floats those of `shared`. */
size_t lnrnn_step_memory(lnrnn_step *s, const lnrnn_rnn_call *r, const lnrnn_rnn_plan *plan, float *shared,
                         float *own, size_t *floats);

/* The view of a group before step t, for a thread that has all columns. */
void lnrnn_step_begin(lnrnn_step *s, const lnrnn_rnn_call *r, size_t group, size_t t, float *shared,
                      float *own);
/* Before step 0: c0 -> cn of the group's rows. */
void lnrnn_step_load(const lnrnn_step *s);
/* Computes W_ih x of the next steps. *left pays for them: as many as it allows up to step `stop`, at least
 * one, at most plan->chunk. -> the step that ends the chunk. */
size_t lnrnn_step_chunk(lnrnn_step *s, size_t stop, int64_t *left);
/* Takes step t; the view moves to the next one. */
void lnrnn_step_take(lnrnn_step *s);
/* Waits for the other threads of the group. */
void lnrnn_step_meet(lnrnn_step *s);
/* -> the next step; or, after the last one, LNRNN_DONE: then hn is written, and zeros in y past the end of
 * each row. */
size_t lnrnn_step_end(const lnrnn_step *s);

/* rows: n pointers to h (P), of the rows from r0 on. to (n, P), row stride plan->h_stride: gets h times the dropout
 * factors of their sequences, and then the pointers point to its rows. */
void lnrnn_mask_rows(const lnrnn_rnn_call *r, size_t r0, size_t n, const float **rows, float *to);

/* --- product.c ------------------------------------------------------------------------------------------ */

/* The columns of thread `index` of `team`. Float32 weights are divided evenly, others at whole panels: the
 * product packs the rows for each thread that has part of a panel (kernels/int8_rows.h). */
lnrnn_share lnrnn_share_of(const lnrnn_rnn_call *r, size_t index, size_t team);
/* W_ih x of the first n rows of s->x -> s->wx. */
void lnrnn_input_product(const lnrnn_step *s, size_t n);
/* W_hh h of the active rows -> s->a; add: to the values of s->a. */
void lnrnn_hidden_product(const lnrnn_step *s, int add);
/* The same for the outputs of gates `gate` .. gate + gates - 1, head after head. w: the weights of these gates,
 * as lnrnn_pack_heads does. rows: pointers to (H), of the active rows. */
void lnrnn_head_products(const lnrnn_step *s, size_t gate, size_t gates, const uint32_t *w,
                         const float *const *rows, int add);

#endif
