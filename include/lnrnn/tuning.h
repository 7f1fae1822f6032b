/* Every threshold that changes the speed and no result. In parentheses stands the benchmark of
 * tests/benchmarks that set it; run that one to see whether the value suits another machine.
 *
 * Thresholds that depend on caches are computed from the sizes of this machine's caches (lnrnn_caches).
 * Numbers that fix the order of a sum are part of the result. They stand next to their sums: rows of a block
 * of gradients, for example, or values of a block of statistics. */
#ifndef LNRNN_TUNING_H
#define LNRNN_TUNING_H

#include <stddef.h>

/* --- caches.c ------------------------------------------------------------------------------------------- */

/* Bytes of the data caches that a core reads through: its L1, its L2, and the L3 that it shares. caches.c
 * asks the machine. reads_ahead: the core itself reads ahead of a loop, as fast as L3 gives it. */
typedef struct {
    size_t l1, l2, l3;
    int reads_ahead;
} lnrnn_caches;

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)
/* Those of this machine, or of lnrnn_set_caches. */
lnrnn_caches lnrnn_get_caches(void);
/* For tests: no result may depend on them. Not while another thread computes. */
void lnrnn_set_caches(lnrnn_caches caches);
#pragma GCC visibility pop

/* --- the product with packed weights: kernels/panel_loop.h --------------------------------------------- */

/* Bytes of packed weights that stay in L2, next to the rows and other data in use. Larger weights are
 * prefetched; for smaller ones a prefetch only takes the place of a load. narrow: bfloat16 or int8, which
 * need more instructions for each load, so that a prefetch costs nothing sooner (rnn and lstm B1, H from 256
 * to 1024). */
static inline size_t lnrnn_l2_holds(lnrnn_caches c, int narrow) { return c.l2 / 8 * (narrow ? 3 : 5); }

/* Weights of at least so many bytes are prefetched. A core that reads ahead by itself needs no prefetch for
 * some MiB of float32 in L3. On a Zen 4 without prefetches, lstm and gru B8 and B32 with H 384 and 512 were 3
 * to 5 % faster, B17 up to 2 % slower. */
static inline size_t lnrnn_prefetch_from(lnrnn_caches c, int narrow)
{
    const size_t held = lnrnn_l2_holds(c, narrow), ahead = c.reads_ahead && !narrow ? c.l3 / 8 : 0;
    return ahead > held ? ahead : held;
}

/* Is a product of so many rows to prefetch weights? The time of one or two rows is the time to read the
 * weights. If the core reads ahead by itself, each prefetch takes the place of a load there. On a Zen 4, H
 * from 512 to 2048, rnn and gru without prefetches gained 2 to 16 % with B1, 3 to 17 % with B2. */
static inline int lnrnn_prefetch_rows(lnrnn_caches c, size_t rows) { return !c.reads_ahead || rows > 2; }

/* Distance, in words, from a load to its prefetch, for one row and for several. Several rows do more work
 * between two loads of a weight (rnn B1-H1024, lstm B8-H1024). */
enum { LNRNN_PREFETCH_ROW = 512, LNRNN_PREFETCH_TILE = 2048 };

/* May a panel of so many bytes be prefetched into L2 while the one before it is in use by several tiles in
 * turn? Only if the two fill at most half of L2 (lstm B17-H1024 and B32-H1024: 5 to 10 %; threads, B17). */
static inline int lnrnn_prefetch_panels(lnrnn_caches c, size_t bytes) { return 2 * bytes <= c.l2 / 2; }

/* The number of pieces into which a panel is divided, so that each may be prefetched so (threads, B17-H2048:
 * 20 %). */
static inline size_t lnrnn_panel_parts(lnrnn_caches c, size_t bytes)
{
    return bytes > c.l2 / 4 ? (bytes + c.l2 / 4 - 1) / (c.l2 / 4) : 1;
}

/* Is a row multiplied by one half of the weights after the other, with the order of the halves reversed at
 * each step? This pays if weights exceed L1 by up to a third. The half that ended a step is then still in L1
 * when the next step begins. Each half has half as many chains of multiply-adds, which for float still keep
 * up with L2 (rnn B1-H128). */
static inline int lnrnn_by_halves(lnrnn_caches c, size_t bytes)
{
    return bytes > c.l1 && bytes <= c.l1 / 3 * 4;
}

/* The product with the transpose of weights reads rows of at most so many bytes without packing. Longer rows
 * share too few sets of the caches, and each lies in another page. So such weights are packed (lstm training
 * on a Zen 4, B8 to B128, H from 128 to 1024). */
enum { LNRNN_LINE_BYTES = 2048 };

/* --- the recurrent layer: plan.c ----------------------------------------------------------------------- */

/* Size of the buffer for W_ih x of a group of sequences. If the weights fit into L2, it is an eighth of L2
 * (lstm B64-H128). Otherwise it has at least (D + H) / 16 rows, so that W_ih is not read again every few
 * steps (lstm B8-H1024). It has up to twice as many if one product takes them (rnn B17-H1024). */
static inline size_t lnrnn_chunk_bytes(lnrnn_caches c) { return c.l2 / 8; }
enum { LNRNN_WEIGHTS_TO_CHUNK = 16 };

/* The most rows of x, each of so many bytes, in one product with float32 weights. All of them pass through
 * one panel of W_ih after the other, so L2 has to hold them next to two panels. More rows save little (rnn
 * B48-H640). */
enum { LNRNN_MOST_INPUT_ROWS = 256 };
static inline size_t lnrnn_input_rows(lnrnn_caches c, size_t bytes)
{
    const size_t rows = c.l2 / 4 / (bytes ? bytes : 1);
    return rows < 64 ? 64 : rows > LNRNN_MOST_INPUT_ROWS ? LNRNN_MOST_INPUT_ROWS : rows;
}

/* Rows of a weight's gradient that one task computes (lstm training). */
enum { LNRNN_GRADIENT_ROWS_LEAST = 64, LNRNN_GRADIENT_ROWS_MOST = 256 };

/* --- how many threads: runtime/thread_policy.c --------------------------------------------------------- */

/* Multiply-adds that repay the start of one more thread: some 50 us of one core (rnn, lstm and gru with two
 * threads). */
enum { LNRNN_THREAD_WORK = 4 << 20 };
/* A call of fewer multiply-adds is brief: if one of its threads loses its core for a time slice, that decides
 * its time. It takes up to some 10 ms (the same benchmarks). */
enum { LNRNN_LARGE_WORK = 1 << 30 };
/* The same two thresholds for norms and elementwise functions, in elements (layer_norm and batch_norm, two
 * threads). */
enum { LNRNN_SERIAL = 1 << 17, LNRNN_LARGE = 1 << 25 };

/* The most groups of sequences at a time if several threads compute each of them: every group has its own
 * barrier. */
enum { LNRNN_MOST_SHARED = 64 };

/* --- the time of a step: cost_model.c ------------------------------------------------------------------ */

/* Rows of the tallest tile of a product. kernels/panel_loop.h divides rows evenly among the fewest tiles. */
enum { LNRNN_TALLEST_TILE = 8 };
/* The time a tile needs for its weights and sums before it computes, in rows of that tile. */
#define LNRNN_TILE_OVERHEAD 0.5
/* If two operations overlap, the fraction of the shorter one's time that remains visible. */
#define LNRNN_NOT_HIDDEN 0.3
/* ns of norm and activations per output. On a Zen 4 it was 0.35 for an RNN, 0.5 for a GRU and 0.6 for an
 * LSTM, with eight rows or more. docs/thread_model.md says how little another number changes. */
#define LNRNN_OUTPUT_TIME 0.5
/* The fraction of L3 that weights may fill and still be read from there. */
#define LNRNN_L3_HOLDS 0.75
/* The rate at which a core reads data that another core has written, as a fraction of the rate of L3. */
#define LNRNN_EXCHANGE_RATE 0.5

/* --- several layers at once: network_plan.c ------------------------------------------------------------ */

/* ns between two chunks of a layer, in which a thread publishes its progress and chooses its next chunk. */
enum { LNRNN_HAND_OVER = 800 };
/* Layers are computed at once if that takes less than the time of one layer after the other, multiplied by
 * this. At equal times threads that never meet are better: a core that another process uses for a moment
 * delays only one of them. */
#define LNRNN_SIDE_BY_SIDE_BELOW 1.05

/* --- the norms: norm/tasks.h --------------------------------------------------------------------------- */

/* An output of at least so many bytes is written by non-temporal stores, which do not read it into the caches
 * first. A smaller output is left in L3 for its reader; a larger one would only displace other data. A few
 * MiB are the limit even for a large L3. On a Sapphire Rapids with 260 MiB, non-temporal stores of 8 MiB take
 * half of the time, and the reader that follows less. On a Zen 5 with 32 MiB the two are equal at 8 MiB
 * (layer_norm and batch_norm 2048x1024 to 16384x1024). */
static inline size_t lnrnn_nontemporal_from(lnrnn_caches c)
{
    const size_t of_cache = c.l3 / 8 * 3, most = 8 << 20;
    return of_cache < most ? of_cache : most;
}

/* A second pass over an input of fewer bytes runs backwards. It begins with the values that the first pass left in
 * the caches (batch_norm training, 2048x1024 to 16384x1024). */
static inline size_t lnrnn_reverse_below(lnrnn_caches c) { return c.l3 / 8 * 3; }

/* Rows of at least so many bytes are written from the first aligned vector on. NumPy's large arrays begin 16
 * bytes into a cache line, so a vector of 64 bytes would lie in two lines. For shorter rows the partial
 * vector at the start costs more (layer_norm 512x4096 and 64x512). */
enum { LNRNN_WIDE_ROW = 2048 };

/* Distance, in bytes, of prefetches next to non-temporal stores: a page (batch_norm and layer_norm
 * 16384x1024). */
enum { LNRNN_PREFETCH_ROWS = 4096 };

/* --- calls from Python: pyx/ --------------------------------------------------------------------------- */

/* A call of a network, or a step of a stream, with at least so many multiply-adds lets other Python threads
 * run. For less work, releasing and taking the interpreter's lock costs the caller more than the others gain
 * (lanes.py lock). */
enum { LNRNN_RELEASE_LOCK_WORK = 1 << 20 };
/* The same for a norm or an elementwise function, in elements. */
enum { LNRNN_RELEASE_LOCK_ELEMENTS = 1 << 14 };
/* A long call returns to Python from time to time, to serve an interrupt. First each thread does so many
 * multiply-adds, a third of a second on the slowest instruction set; then as many as take the seconds. */
enum { LNRNN_FIRST_PART_WORK = 1 << 28 };
#define LNRNN_PART_SECONDS 0.1

/* --- threads: runtime/ ---------------------------------------------------------------------------------- */

/* ns. After a longer wait, some thread has lost its core. A time slice of the scheduler is 1 ms or more, a step of
 * a sequence takes microseconds. The same holds for a call that took so much longer than one
 * thread would have. Then brief calls run on one thread for FIRST_BACK_OFF, doubling to LONGEST_BACK_OFF
 * (neighbours.py, with a busy process). */
enum { LNRNN_PREEMPTED = 400000, LNRNN_FIRST_BACK_OFF = 2000000, LNRNN_LONGEST_BACK_OFF = 400000000 };

/* Iterations of a spin loop from one look at the clock to the next: some 50 us (rnn B1-H256 with two
 * threads). */
enum { LNRNN_SPINS = 2000 };

/* The thread pool (team_pthread.c): ns that a worker spins before it sleeps, and bytes of its stack. The
 * kernels need little of a stack, but thread-local data of other libraries lies there too. */
enum { LNRNN_POOL_SPIN = 500000, LNRNN_STACK = 1 << 20 };

/* ns for which a call whose threads divide units waits for workers of the pool that slept. It then goes on
 * without those that have not arrived (compare_teams.py after a rest). */
enum { LNRNN_ARRIVAL = 50000 };

/* --- memory of large results: runtime/result_memory.c --------------------------------------------------- */

enum {
    /* Results of at least so many bytes lie in blocks of result_memory.c. malloc keeps smaller ones when they
     * are freed. Larger ones it often returns to the system; clearing their pages anew takes a third of a
     * short training step ("training" with B8-H256). */
    LNRNN_RESULT_FROM = 256 << 10,
    /* The most freed blocks that stay mapped, and their bytes. */
    LNRNN_CACHED_BLOCKS = 32,
    LNRNN_CACHED_BYTES = 1 << 30,
    /* Larger blocks are marked as free for the kernel (MADV_FREE). For smaller ones that costs too much,
     * because it empties the translation caches of all cores. That took a quarter to a half of the time of a
     * layer norm of 512x4096 on two threads ("vs out=" of layer_norm). */
    LNRNN_MARKED_FREE_FROM = 16 << 20
};

#endif
