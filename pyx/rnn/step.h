/* A step as a value: the view of a group's active rows, which step.c moves from step to step, and the phases that the
 * plan has resolved. forward.c gives a thread all columns of its rows; split.c lets threads divide the columns. */
#ifndef LNRNN_STEP_H
#define LNRNN_STEP_H

#include "rnn/layer.h"
#include "runtime/threads.h"

/* Where threads divide a product: before `panel`, or within it. Within it, the first n * part / of of n rows, rounded,
 * lie before the cut. */
typedef struct {
    size_t panel, part, of;
} lnrnn_cut;

/* The columns between two cuts: those of one thread, or all. */
typedef struct {
    lnrnn_cut from, to;
} lnrnn_share;

/* Rows first .. first + count - 1 of the call form the group. Of these, the first `active` have not ended at step t. */
struct lnrnn_step {
    const lnrnn_rnn_call *r;
    size_t first, count, length; /* length: steps of the longest row */
    size_t t, active;
    /* Pointers to rows: (D) of x, the active rows of a chunk's steps in turn; (H) of the active rows before and after
     * step t. The product with W_hh takes those of `recurrent`: h_prev, or its masked copies. */
    const float **x, **h_prev, **recurrent;
    float **c, **h;
    ptrdiff_t next_h; /* from a row of h to that of the next step */
    float *shared;    /* the chunk's W_ih x, and W_hh h; the threads of a group have them in common */
    float *memory;    /* of this thread: plan->scratch.worker floats */
    float *wx;        /* (active, G*H), row stride plan->wide: W_ih x of step t */
    float *a;         /* (active, G*H), row stride cell.as: W_hh h, or the sum W_ih x + W_hh h */
    float *hidden;    /* (active, G*H), row stride cell.as: where W_hh h of separate products goes */
    float *all_c; /* (active, H), row stride cell.as: all c of the step, for the tape or their statistics */
    size_t recorded, live; /* with a tape: rows of all groups before step t, and at the step before */
    lnrnn_share share;     /* of the columns */
    lnrnn_barrier *barrier;
    int index, team; /* this thread is number `index` of `team` in the group */
    /* What the cell's kernel takes. cell: the rows whose states this thread makes, from row `row` of the call on. */
    void (*kernel)(const lnrnn_step_config *config, const lnrnn_step_rows *rows);
    lnrnn_step_config config;
    lnrnn_gate_norm norm[LNRNN_SITES];
    lnrnn_step_rows cell;
    size_t row;
};

/* --- step.c --------------------------------------------------------------------------------------------- */

/* The phases of the plan's steps. */
void lnrnn_resolve_step(const lnrnn_rnn_call *r, lnrnn_rnn_plan *plan);
/* Floats that the statistics of a site take: two doubles and three floats for each of its values. */
static inline size_t lnrnn_statistics_work(const lnrnn_rnn_config *config) { return 7 * config->outputs + 2; }
/* Floats that the view's pointers take. */
size_t lnrnn_step_pointers(const lnrnn_rnn_call *r, const lnrnn_rnn_plan *plan);

/* The view of a group before step t, for a thread that has all columns. */
void lnrnn_step_begin(lnrnn_step *s, const lnrnn_rnn_call *r, size_t group, size_t t, float *shared,
                      float *memory);
/* Before step 0: c0 -> cn of the group's rows. */
void lnrnn_step_load(const lnrnn_step *s);
/* Computes W_ih x of the next steps. *left pays for them: as many as it allows up to step `stop`, at least one, at most
 * plan->chunk. -> the step that ends the chunk. */
size_t lnrnn_step_chunk(lnrnn_step *s, size_t stop, int64_t *left);
/* Takes step t; the view moves to the next one. */
void lnrnn_step_take(lnrnn_step *s);
/* Waits for the other threads of the group. */
void lnrnn_step_meet(lnrnn_step *s);
/* -> the next step; or, after the last one, LNRNN_DONE: then hn is written, and zeros in y past the end of each row. */
size_t lnrnn_step_end(const lnrnn_step *s);

/* rows: n pointers to h (H) of the rows from r0 on -> to (n, H), row stride plan->narrow: h times the dropout factors
 * of their sequences. The pointers then point there. */
void lnrnn_mask_rows(const lnrnn_rnn_call *r, size_t r0, size_t n, const float **rows, float *to);

/* --- product.c ------------------------------------------------------------------------------------------ */

/* The columns of thread `index` of `team`. Float32 weights are divided evenly, others at whole panels: the product
 * packs the rows for each thread that has part of a panel (kernels/int8_rows.h). */
lnrnn_share lnrnn_share_of(const lnrnn_rnn_call *r, size_t index, size_t team);
/* W_ih x of the first n rows of s->x -> s->wx. */
void lnrnn_input_product(const lnrnn_step *s, size_t n);
/* W_hh h of the active rows -> s->a; if add, it is added to what s->a holds. */
void lnrnn_hidden_product(const lnrnn_step *s, int add);

#endif
