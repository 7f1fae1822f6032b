/* Every threshold that makes things faster and changes no result, in one place. Each names the benchmark of
 * tests/benchmarks that it was set by; a run of that one tells whether it is right for another machine.
 *
 * What depends on the sizes of caches is computed from those of this machine (lnrnn_caches). What follows
 * from the order of sums does not: how rows are blocked where gradients and statistics are summed is part of
 * the result, and stands beside these sums. */
#ifndef LNRNN_TUNING_H
#define LNRNN_TUNING_H

#include "lnrnn.h"

/* --- the product with packed weights: kernels/panel_loop.h ----------------------------------------------- */

/* Packed weights of more bytes than this do not stay in L2, beside the rows and what else is in use: then it
 * helps to prefetch them; where they do stay, a prefetch only takes the place of a load. Narrow weights,
 * bfloat16 and int8, take more instructions to a load, which hide a prefetch sooner (rnn and lstm B1, H from
 * 256 to 1024). */
static inline size_t lnrnn_l2_holds(lnrnn_caches c, int narrow) { return c.l2 / 8 * (narrow ? 3 : 5); }

/* From so many bytes on weights are prefetched. A core that reads ahead by itself needs none for float32 of some MiB in L3
 * (on a Zen 4, without them: lstm and gru B8 and B32, H 384 and 512, 3 to 5 % faster, B17 up to 2 % slower). */
static inline size_t lnrnn_prefetch_from(lnrnn_caches c, int narrow)
{
    const size_t held = lnrnn_l2_holds(c, narrow), ahead = c.reads_ahead && !narrow ? c.l3 / 8 : 0;
    return ahead > held ? ahead : held;
}

/* Whether so many rows prefetch weights: one or two, of which reading decides, not where the core reads ahead by itself, as
 * each prefetch takes the place of a load there (on a Zen 4, H from 512 to 2048: rnn and gru B1 2 to 16 %, B2 3 to 17 %). */
static inline int lnrnn_prefetch_rows(lnrnn_caches c, size_t rows) { return !c.reads_ahead || rows > 2; }

/* Words by which a prefetch runs ahead of a load, for one row and for several, which do more between two
 * loads of a weight (rnn B1-H1024, lstm B8-H1024). */
enum { LNRNN_PREFETCH_ROW = 512, LNRNN_PREFETCH_TILE = 2048 };

/* A panel of so many bytes may be prefetched while the one before it is in use, by several tiles in turn, into L2: the
 * two fill no more than half of that (lstm B17-H1024 and B32-H1024: 5 to 10 %; threads, B17). */
static inline int lnrnn_prefetch_panels(lnrnn_caches c, size_t bytes) { return 2 * bytes <= c.l2 / 2; }

/* Into how many parts a panel is divided, so that those of a part may (threads, B17-H2048: 20 %). */
static inline size_t lnrnn_panel_parts(lnrnn_caches c, size_t bytes)
{
    return bytes > c.l2 / 4 ? (bytes + c.l2 / 4 - 1) / (c.l2 / 4) : 1;
}

/* Weights of one row's product that are larger than L1, up to a third, go through it by halves, one step
 * forwards and the next backwards: the half that ended a step is still in L1 when the next begins. Each half
 * has half the chains of multiply-adds, which for float still keep up with L2 (rnn B1-H128). */
static inline int lnrnn_by_halves(lnrnn_caches c, size_t bytes)
{
    return bytes > c.l1 && bytes <= c.l1 / 3 * 4;
}

/* Weights whose rows have at most so many bytes are read as they stand where the product with their transpose is wanted.
 * Longer rows share too few sets of the caches, and each has a page of its own: such weights are packed (lstm training,
 * B8 to B128, H from 128 to 1024, on a Zen 4). */
enum { LNRNN_LINE_BYTES = 2048 };

/* --- the recurrent layer: plan.c ----------------------------------------------------------------------- */

/* Bytes of projected rows that a group of sequences keeps: some of L2, beside the weights (lstm B64-H128);
 * or, where the weights do not stay there, one float to so many weights, so that W_ih is not read again after
 * a few steps (lstm B8-H1024), and up to two where one product takes so many rows (rnn B17-H1024). */
static inline size_t lnrnn_chunk_bytes(lnrnn_caches c) { return c.l2 / 8; }
enum { LNRNN_WEIGHTS_TO_CHUNK = 16 };

/* The most rows of x, each of so many bytes, in one product of float32: as L2 keeps beside two panels of W_ih, each of
 * which goes through all of them; more save little (rnn B48-H640). */
enum { LNRNN_MOST_INPUT_ROWS = 256 };
static inline size_t lnrnn_input_rows(lnrnn_caches c, size_t bytes)
{
    const size_t rows = c.l2 / 4 / (bytes ? bytes : 1);
    return rows < 64 ? 64 : rows > LNRNN_MOST_INPUT_ROWS ? LNRNN_MOST_INPUT_ROWS : rows;
}

/* Multiply-adds that are worth waking another thread for, some 50 us of one core; and those, some 10 ms, from
 * which on a lost time slice no longer decides (rnn, lstm and gru with two threads). What threads divide follows from
 * what a step takes: rnn/cost_model.c. */
enum { LNRNN_THREAD_WORK = 4 << 20, LNRNN_LARGE_WORK = 1 << 30 };

/* The most groups of sequences, each of several threads that divide the units: they have barriers of their own. */
enum { LNRNN_MOST_SHARED = 64 };

/* --- several layers at once: network_plan.c ------------------------------------------------------------------
 *
 * ns between two chunks of a layer: to tell other threads, and to look for what is to be done next. */
enum { LNRNN_HAND_OVER = 800 };
/* Of the time of one layer after the other, how much it may take to compute them at once: where both are nearly equal
 * threads that never meet are better, for a core that somebody else uses for a moment holds up one of them only. */
#define LNRNN_SIDE_BY_SIDE_BELOW 1.05

/* --- the norms: norm/tasks.h --------------------------------------------------------------------------- */

/* Below SERIAL elements a second thread costs more than it brings; below LARGE it is not worth it where cores
 * are oversubscribed (layer_norm and batch_norm with two threads). */
enum { LNRNN_SERIAL = 1 << 17, LNRNN_LARGE = 1 << 25 };

/* An output of this many bytes is written by non-temporal stores, which do not read it into the caches first.
 * Below, the caller finds it in L3; above, it would only displace what is there. More than a few MiB are not
 * worth keeping there even where L3 holds them: on a Sapphire Rapids with 260 MiB non-temporal stores take
 * half of the time at 8 MiB, and less with the reader that follows; on a Zen 5 with 32 MiB the two are equal
 * at 8 MiB (layer_norm and batch_norm 2048x1024 to 16384x1024). */
static inline size_t lnrnn_nontemporal_from(lnrnn_caches c)
{
    const size_t of_cache = c.l3 / 8 * 3, most = 8 << 20;
    return of_cache < most ? of_cache : most;
}

/* A second pass over an input of less than this many bytes goes backwards, so that it begins with what the
 * first left in the caches (batch_norm training, 2048x1024 to 16384x1024). */
static inline size_t lnrnn_reverse_below(lnrnn_caches c) { return c.l3 / 8 * 3; }

/* Rows of so many bytes are written from the first aligned vector on: NumPy's large arrays begin 16 bytes
 * into a cache line, and a vector of 64 bytes would else lie in two lines. Shorter rows do not repay the
 * partial vector (layer_norm 512x4096 and 64x512). */
enum { LNRNN_WIDE_ROW = 2048 };

/* Bytes by which prefetches run ahead of what is read beside non-temporal stores: a page (batch_norm and
 * layer_norm 16384x1024). */
enum { LNRNN_PREFETCH_ROWS = 4096 };

/* --- threads: runtime/ ---------------------------------------------------------------------------------- */

/* A wait, or a call's excess over what one thread would have taken, that is longer than this (ns) means that
 * a thread has lost its core: a time slice of the scheduler is 1 ms and more, a step of a sequence
 * microseconds. Then short calls run on one thread for FIRST_BACK_OFF, doubling to LONGEST_BACK_OFF
 * (neighbours.py beside a busy process). */
enum { LNRNN_PREEMPTED = 400000, LNRNN_FIRST_BACK_OFF = 2000000, LNRNN_LONGEST_BACK_OFF = 400000000 };

/* Spins of a barrier between two looks at the clock: some 50 us (rnn B1-H256 with two threads). */
enum { LNRNN_SPINS = 2000 };

/* The pool of threads (team_pthread.c): ns that a worker spins before it sleeps, and bytes of its stack, of
 * which the kernels need little and thread-local data of other libraries some. */
enum { LNRNN_POOL_SPIN = 500000, LNRNN_STACK = 1 << 20 };

/* The pool: ns for which a call whose threads divide units waits for those that slept; it then does without those
 * that have not come (compare_teams.py after a rest). */
enum { LNRNN_ARRIVAL = 50000 };

/* --- memory of large results: runtime/blocks.c ---------------------------------------------------------- */

/* Bytes from which on a result's memory is ours: smaller ones malloc keeps when they are freed, larger ones it often
 * gives back to the system, and clearing their pages anew takes a third of a short training step ("training" with B8-H256).
 * Blocks that stay mapped when they are given back, and their bytes in all. Larger
 * ones than AS_IS are marked as free for the kernel; smaller ones are not, for marking empties the
 * translation caches of all cores, which takes a quarter to a half of a layer norm of 512x4096 on two threads
 * ("vs out=" of layer_norm). */
enum {
    LNRNN_BLOCK_BYTES = 256 << 10,
    LNRNN_KEPT = 32,
    LNRNN_KEPT_BYTES = 1 << 30,
    LNRNN_KEPT_AS_IS = 16 << 20
};

#endif
