/* All thresholds that change the speed but no result. Parentheses name the benchmark of tests/benchmarks that
 * decided a value: B rows (sequences), H units. Run it to see if the value suits another machine.
 *
 * Thresholds that depend on caches are computed from the sizes of this machine's caches (lnrnn_caches).
 * Numbers that determine the order of a sum change results, so they are not here but next to their sums. */
#ifndef LNRNN_TUNING_H
#define LNRNN_TUNING_H

#include <stddef.h>

/* --- caches.c ------------------------------------------------------------------------------------------- */

/* Bytes of the data caches of a core: its L1, its L2, and the L3 that cores share. reads_ahead: the core's
 * own prefetcher reads as fast as L3 permits. caches.c asks the machine. */
typedef struct {
    size_t l1, l2, l3;
    int reads_ahead;
} lnrnn_caches;

/* Exported, because the Cython module calls these functions. */
#pragma GCC visibility push(default)
/* Returns the caches of this machine, or those of lnrnn_set_caches. */
lnrnn_caches lnrnn_get_caches(void);
/* For tests, because no result may depend on caches. No other thread may compute meanwhile. */
void lnrnn_set_caches(lnrnn_caches caches);
#pragma GCC visibility pop

/* --- the product with packed weights: kernels/panel_loop.h --------------------------------------------- */

/* The bytes of packed weights that stay in L2, next to other data in use. Larger weights are prefetched; for smaller
 * ones a prefetch would only delay loads. narrow: bfloat16 or int8. Their limit is lower, because more instructions
 * per load hide a prefetch (rnn and lstm B1, H from 256 to 1024). */
static inline size_t lnrnn_l2_holds(lnrnn_caches c, int narrow) { return c.l2 / 8 * (narrow ? 3 : 5); }

/* The bytes from which weights are prefetched. A core with reads_ahead needs no prefetch for some MiB of
 * float32 in L3. On a Zen 4 without prefetches, lstm and gru B8 and B32 with H 384 and 512 were 3 to 5 %
 * faster, B17 up to 2 % slower. */
static inline size_t lnrnn_prefetch_from(lnrnn_caches c, int narrow)
{
    const size_t held = lnrnn_l2_holds(c, narrow), ahead = c.reads_ahead && !narrow ? c.l3 / 8 : 0;
    return ahead > held ? ahead : held;
}

/* Returns 1 if a product of `rows` rows should prefetch weights. One or two rows take as long as reading the
 * weights, and with reads_ahead a prefetch only delays a load. On a Zen 4, rnn and gru with H from 512 to
 * 2048 gained 2 to 17 % without prefetches. */
static inline int lnrnn_prefetch_rows(lnrnn_caches c, size_t rows) { return !c.reads_ahead || rows > 2; }

/* Distance, in words, from a load to its prefetch, for one row and for several rows (rnn B1-H1024, lstm
 * B8-H1024). */
enum { LNRNN_PREFETCH_ROW = 512, LNRNN_PREFETCH_TILE = 2048 };

/* Returns 1 if a panel may be prefetched into L2 while tiles use the panel before it. The two must fill at most half
 * of L2 (lstm B17-H1024 and B32-H1024: 5 to 10 %; threads, B17). */
static inline int lnrnn_prefetch_panels(lnrnn_caches c, size_t bytes) { return 2 * bytes <= c.l2 / 2; }

/* Returns the number of parts into which a panel is divided so that each fits for this prefetch (threads,
 * B17-H2048: 20 %). */
static inline size_t lnrnn_panel_parts(lnrnn_caches c, size_t bytes)
{
    return bytes > c.l2 / 4 ? (bytes + c.l2 / 4 - 1) / (c.l2 / 4) : 1;
}

/* Returns 1 if a row should be multiplied by one half of the weights after the other, in alternating order. It helps
 * if weights exceed L1 by up to a third: the next step begins with the half that is still in L1. Each half has half
 * as many chains of multiply-adds, which suffice for float (rnn B1-H128). */
static inline int lnrnn_by_halves(lnrnn_caches c, size_t bytes)
{
    return bytes > c.l1 && bytes <= c.l1 / 3 * 4;
}

/* The largest rows, in bytes, of weights whose transpose is multiplied without packing. Longer rows share few sets
 * of the caches, and each is in another page (lstm training on a Zen 4, B8 to B128, H from 128 to 1024). */
enum { LNRNN_LINE_BYTES = 2048 };

/* --- the recurrent layer: plan.c ----------------------------------------------------------------------- */

/* The size of the buffer for W_ih x of a group of sequences: an eighth of L2, if the weights fit into L2 (lstm
 * B64-H128). Otherwise it has at least (D + H) / 16 rows, so that W_ih is not read again every few steps (lstm
 * B8-H1024). It has up to twice as many if one product computes them (rnn B17-H1024). */
static inline size_t lnrnn_chunk_bytes(lnrnn_caches c) { return c.l2 / 8; }
enum { LNRNN_WEIGHTS_TO_CHUNK = 16 };

/* Returns the most rows of x, of `bytes` bytes each, in one product with float32 weights. Every panel of W_ih
 * is multiplied by all of them, so L2 must hold them and two panels. More rows save little (rnn B48-H640). */
enum { LNRNN_MOST_INPUT_ROWS = 256 };
static inline size_t lnrnn_input_rows(lnrnn_caches c, size_t bytes)
{
    const size_t rows = c.l2 / 4 / (bytes ? bytes : 1);
    return rows < 64 ? 64 : rows > LNRNN_MOST_INPUT_ROWS ? LNRNN_MOST_INPUT_ROWS : rows;
}

/* Rows of a weight's gradient per task (lstm training). */
enum { LNRNN_GRADIENT_ROWS_LEAST = 64, LNRNN_GRADIENT_ROWS_MOST = 256 };

/* --- how many threads: runtime/thread_policy.c --------------------------------------------------------- */

/* The multiply-adds that repay the start of one more thread: some 50 us of one core (rnn, lstm and gru, two
 * threads). */
enum { LNRNN_THREAD_WORK = 4 << 20 };
/* A call of fewer multiply-adds is brief, up to some 10 ms. If a thread loses its core for a time slice, that decides
 * its time (the same benchmarks). */
enum { LNRNN_LARGE_WORK = 1 << 30 };
/* The same two thresholds in elements, for norms and elementwise functions (layer_norm and batch_norm, two
 * threads). */
enum { LNRNN_SERIAL = 1 << 17, LNRNN_LARGE = 1 << 25 };

/* The most groups at a time if several threads compute each group, because every group has its own barrier. */
enum { LNRNN_MOST_SHARED = 64 };

/* --- the time of a step: cost_model.c ------------------------------------------------------------------ */

/* The rows of the tallest tile of a product. */
enum { LNRNN_TALLEST_TILE = 8 };
/* The time in which a tile loads weights and sums, in units of the time of one of its rows. */
#define LNRNN_TILE_OVERHEAD 0.5
/* The fraction of the shorter operation's time that two overlapping operations take in addition. */
#define LNRNN_NOT_HIDDEN 0.3
/* The ns of norm and activations per output. On a Zen 4 it was 0.35 for an RNN, 0.5 for a GRU and 0.6 for an
 * LSTM, with eight rows or more. Other values change little (docs/thread_model.md). */
#define LNRNN_OUTPUT_TIME 0.5
/* The fraction of L3 that weights may fill without being read from memory. */
#define LNRNN_L3_HOLDS 0.75
/* The rate at which a core reads data that another core has written, as a fraction of the rate of L3. */
#define LNRNN_EXCHANGE_RATE 0.5

/* --- several layers at once: network_plan.c ------------------------------------------------------------ */

/* The ns between two chunks, in which a thread publishes its progress and chooses its next chunk. */
enum { LNRNN_HAND_OVER = 800 };
/* Layers run at the same time if that takes less than this factor times one layer after the other. It is
 * above 1 because these threads meet less often, so a lost core delays fewer of them. */
#define LNRNN_SIDE_BY_SIDE_BELOW 1.05

/* --- the norms: norm/tasks.h --------------------------------------------------------------------------- */

/* The bytes from which an output is written by non-temporal stores, which bypass the caches. A smaller output stays
 * in L3 for its reader; a larger one would only displace other data. The limit is a few MiB even for a large L3. On
 * a Sapphire Rapids with 260 MiB, non-temporal stores of 8 MiB take half of the time, and the reader that follows
 * less. On a Zen 5 with 32 MiB the two are equal at 8 MiB (layer_norm and batch_norm 2048x1024 to 16384x1024). */
static inline size_t lnrnn_nontemporal_from(lnrnn_caches c)
{
    const size_t of_cache = c.l3 / 8 * 3, most = 8 << 20;
    return of_cache < most ? of_cache : most;
}

/* A second pass over fewer bytes runs backwards, to begin with values that are in the caches (batch_norm training,
 * 2048x1024 to 16384x1024). */
static inline size_t lnrnn_reverse_below(lnrnn_caches c) { return c.l3 / 8 * 3; }

/* The bytes from which a row begins with a partial vector, so that the others are aligned. NumPy's large
 * arrays begin 16 bytes into a cache line, so unaligned vectors of 64 bytes would be in two lines. For
 * shorter rows the partial vector costs more (layer_norm 512x4096 and 64x512). */
enum { LNRNN_WIDE_ROW = 2048 };

/* The distance of prefetches in bytes, during non-temporal stores: a page (batch_norm and layer_norm 16384x1024). */
enum { LNRNN_PREFETCH_ROWS = 4096 };

/* --- calls from Python: pyx/ --------------------------------------------------------------------------- */

/* The multiply-adds from which a call or a stream's step releases the interpreter's lock. For less work this
 * costs the caller more than other threads gain (lanes.py lock). */
enum { LNRNN_RELEASE_LOCK_WORK = 1 << 20 };
/* The same for a norm or an elementwise function, in elements. */
enum { LNRNN_RELEASE_LOCK_ELEMENTS = 1 << 14 };
/* A long call returns to Python from time to time, to handle an interrupt (Ctrl-C). The first part has so many
 * multiply-adds per thread, a third of a second on the slowest instruction set. Later parts take so many seconds. */
enum { LNRNN_FIRST_PART_WORK = 1 << 28 };
#define LNRNN_PART_SECONDS 0.1

/* --- threads: runtime/ ---------------------------------------------------------------------------------- */

/* In ns. A wait of PREEMPTED means that a thread has lost its core: a time slice is 1 ms or more, and a step takes
 * microseconds. So does a call so much longer than on one thread. Then brief calls run on one thread for
 * FIRST_BACK_OFF, doubling up to LONGEST_BACK_OFF (neighbours.py, with a busy process). */
enum { LNRNN_PREEMPTED = 400000, LNRNN_FIRST_BACK_OFF = 2000000, LNRNN_LONGEST_BACK_OFF = 400000000 };

/* Iterations of a spin loop between two readings of the clock: some 50 us (rnn B1-H256 with two threads). */
enum { LNRNN_SPINS = 2000 };

/* The thread pool (team_pthread.c): the ns that a worker spins before it sleeps, and the bytes of its stack. The
 * stack also holds thread-local data of other libraries. */
enum { LNRNN_POOL_SPIN = 500000, LNRNN_STACK = 1 << 20 };

/* The ns for which a call waits for sleeping workers if threads divide units. Then it continues without the
 * missing ones (compare_teams.py after a rest). */
enum { LNRNN_ARRIVAL = 50000 };

/* --- memory of large results: runtime/result_memory.c --------------------------------------------------- */

enum {
    /* Results of at least so many bytes are in blocks of result_memory.c. malloc often returns such blocks to the
     * system. Clearing new pages takes a third of a short training step ("training" with B8-H256). */
    LNRNN_RESULT_FROM = 256 << 10,
    /* The most freed blocks that stay mapped, and their bytes. */
    LNRNN_CACHED_BLOCKS = 32,
    LNRNN_CACHED_BYTES = 1 << 30,
    /* Freed blocks from this size on are marked with MADV_FREE. For smaller ones that costs too much, because it
     * empties the TLBs of all cores. That took a quarter to a half of the time of a layer norm of 512x4096 on two
     * threads ("vs out=" of layer_norm). */
    LNRNN_MARKED_FREE_FROM = 16 << 20
};

#endif
