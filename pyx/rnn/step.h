/* A step of a group of rows. lnrnn_step is a view of the active rows, which moves from step to step. The plan
 * has the phases of a step. In forward.c a thread computes all columns of its rows; in split.c threads divide
 * the columns. A group is the rows that are computed together. A chunk is the steps for which one product
 * computes W_ih x. */
#ifndef LNRNN_STEP_H
#define LNRNN_STEP_H

#include "rnn/layer.h"
#include "runtime/threads.h"

/* The point at which threads divide a product: before `panel`, or within this panel. Within the panel,
 * round(n * part / of) of n rows are before the cut. */
typedef struct {
    size_t panel, part, of;
} lnrnn_cut;

/* The columns between two cuts, which one thread computes. */
typedef struct {
    lnrnn_cut from, to;
} lnrnn_share;

/* Rows first .. first + count - 1 of the call form the group. Of these, the first `active` have not ended at
 * step t. */
struct lnrnn_step {
    const lnrnn_rnn_call *r;
    size_t first, count, length; /* length: the number of steps of the longest row */
    size_t t, active;
    /* Pointers. x: to (D), the active rows of each step of the chunk. h_prev, h: to (P), and c: to (C), the
     * states of the active rows before and after step t. recurrent: the rows that W_hh multiplies, h_prev or
     * masked copies. */
    const float **x, **h_prev, **recurrent;
    float **c, **h;
    float **outputs;  /* with a projection: (H), rows of the cell's output, in the tape or in `unprojected` */
    ptrdiff_t next_h; /* offset from h of a row to its h at the next step */
    /* With output_norm. y: pointers to the active rows (H) of y; next_y: offset from a row to its next
     * step. */
    float **y;
    ptrdiff_t next_y;
    /* (active, G*H). wx, row stride plan->wide: W_ih x of step t. a, row stride cell.as: W_hh h, or W_ih x +
     * W_hh h. hidden, row stride cell.as: W_hh h, if it is normalised separately. all_c (active, C) and all_h
     * (active, P), row stride cell.as: c and h of all rows. */
    float *wx, *a, *hidden, *all_c, *all_h;
    size_t recorded, live; /* tape: the numbers of active rows of the call before step t; at step t - 1 */
    /* The cell's kernel and its arguments. cell: the rows whose states this thread computes, from row `row`
     * of the call on. */
    void (*kernel)(const lnrnn_step_config *config, const lnrnn_step_rows *rows);
    lnrnn_step_config config;
    lnrnn_gate_norm norm[LNRNN_SITES];
    lnrnn_step_rows cell;
    size_t row;
    /* This thread is number `index` of the `team` threads of the group, and computes `share` of the
     * columns. */
    int index, team;
    lnrnn_share share;
    /* With plan->rows_ahead, the steps before ahead_end also compute W_ih x of the next chunk. ahead.w is
     * NULL if there is no next chunk. */
    lnrnn_ahead ahead;
    size_t ahead_end;
    lnrnn_barrier *barrier;
    /* Memory of the group, row stride plan->wide. chunk (plan->chunk, group, G*H): W_ih x. products (group,
     * G*H), or with divide_units (2, group, G*H): W_hh h, if it has a norm of its own, without a tape. */
    float *chunk, *products;
    /* Memory of the thread, (group, P or C), row stride plan->h_stride or c_stride. own_h, own_c: the states
     * in threads other than 0, with divide_units but not divide_rows. old_h, old_c: the states before the
     * step, for zoneout. masked: h times masks.state. */
    float *own_h, *own_c, *old_h, *old_c, *masked;
    /* With a projection, memory of the thread. unprojected: (group, H), row stride plan->narrow. projected:
     * (TILE, P), row stride plan->h_stride. */
    float *unprojected, *projected;
    /* With reset_before. reset: (group, 2, H), row stride cell.rs: r h and z. With divide_rows the threads
     * share it. reset_rows: (group) pointers to r h. */
    float *reset;
    const float **reset_rows;
    float *statistics; /* (LNRNN_SITES, lnrnn_statistics_floats): the statistics of the batch */
    uint32_t *packed;  /* scratch of the product */
    float *block;      /* (TILE, outputs of a head), row stride rounded up to whole vectors */
};

/* Returns base + *at, and adds n floats, rounded up to whole cache lines, to *at. base NULL: returns NULL. */
static inline void *lnrnn_carve(float *base, size_t *at, size_t n)
{
    float *place = base ? base + *at : NULL;
    *at += lnrnn_whole_floats(n);
    return place;
}

/* Returns the number of floats that hold two doubles and three floats per value of a site, rounded up to
 * whole doubles. */
static inline size_t lnrnn_statistics_floats(const lnrnn_rnn_config *c)
{
    return 7 * c->outputs + c->outputs % 2;
}

/* --- step.c --------------------------------------------------------------------------------------------- */

/* Sets plan->phases, the functions that compute a step. */
void lnrnn_resolve_step(const lnrnn_rnn_call *r, lnrnn_rnn_plan *plan);
/* Computes step t, and moves the view to step t + 1. */
void lnrnn_step_take(lnrnn_step *s);
/* Waits at the barrier of the group's threads. If the team ends there (lnrnn_barrier_wait), thread 0 has all
 * columns and rows from then on. The other threads then have no rows, so their next phases compute
 * nothing. */
void lnrnn_step_meet(lnrnn_step *s);
/* rows: n pointers to h (P), from row r0 on. Writes h times masks.state to `to` (n, P), row stride
 * plan->h_stride, and sets the pointers to the rows of `to`. */
void lnrnn_mask_rows(const lnrnn_rnn_call *r, size_t r0, size_t n, const float **rows, float *to);

/* --- step_view.c ---------------------------------------------------------------------------------------- */

/* shared: the memory that the threads of a group share; own: this thread's memory. Without divide_units,
 * shared and own are the same pointer. Sets the pointers of s, if shared and own are not NULL. Returns the
 * number of floats of `own`, and sets *floats to the number of floats of `shared`. */
size_t lnrnn_step_memory(lnrnn_step *s, const lnrnn_rnn_call *r, const lnrnn_rnn_plan *plan, float *shared,
                         float *own, size_t *floats);

/* Sets s to step t of a group, for a thread that computes all columns. */
void lnrnn_step_begin(lnrnn_step *s, const lnrnn_rnn_call *r, size_t group, size_t t, float *shared,
                      float *own);
/* Copies c0 of the group's rows to cn, before step 0. */
void lnrnn_step_load(const lnrnn_step *s);
/* Computes W_ih x of the next steps, the chunk, and subtracts their cost from *left. The chunk has as many
 * steps as *left allows: at least one step, at most plan->chunk, and no step from `stop` on. Returns the end
 * of the chunk. */
size_t lnrnn_step_chunk(lnrnn_step *s, size_t stop, int64_t *left);
/* Returns the number of the next step. After the last step it writes hn, and zeros in y past the end of each
 * row, and returns LNRNN_DONE. */
size_t lnrnn_step_end(const lnrnn_step *s);

/* --- product.c ------------------------------------------------------------------------------------------ */

/* Returns the columns of thread `index` of `team`. Float32 weights are divided evenly. Other weights are
 * divided at whole panels, because each thread of a shared panel would pack the rows again
 * (kernels/int8_rows.h). */
lnrnn_share lnrnn_share_of(const lnrnn_rnn_call *r, size_t index, size_t team);
/* Writes W_ih x of the first n rows of s->x to s->wx. from_end: compute the last outputs first. rest: compute
 * only narrow panels, because s->ahead has computed the other panels. */
void lnrnn_input_product(const lnrnn_step *s, size_t n, int from_end, int rest);
/* Sets s->ahead, so that W_hh h of the next plan->rows_ahead steps also computes W_ih x of as many rows of
 * s->x. */
void lnrnn_ahead_begin(lnrnn_step *s);
/* Writes W_hh h of the active rows to s->a. add: adds to the values of s->a. */
void lnrnn_hidden_product(lnrnn_step *s, int add);
/* Computes as lnrnn_hidden_product, but only the outputs of gates `gate` .. gate + gates - 1, head after
 * head. w: the weights of these gates, as lnrnn_pack_heads packs them. rows: pointers to (P), for each active
 * row. */
void lnrnn_head_products(const lnrnn_step *s, size_t gate, size_t gates, const uint32_t *w,
                         const float *const *rows, int add);
/* Writes h of the rows of s->cell: W_hr times the outputs of the cell. */
void lnrnn_projection(const lnrnn_step *s);

#endif
