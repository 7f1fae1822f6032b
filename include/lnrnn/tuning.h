/* All thresholds that change the speed but no result. Parentheses name the benchmark of tests/benchmarks that
 * decided a value; B64-H128 means 64 sequences and 128 units. Run the benchmark to see if the value suits
 * another machine.
 *
 * Thresholds that depend on caches are computed from the sizes of this machine's caches (lnrnn_caches).
 * Numbers that determine the order of a sum change results, so they are not here but next to their sums. */
#ifndef LNRNN_TUNING_H
#define LNRNN_TUNING_H

#include <stddef.h>

/* --- caches.c ------------------------------------------------------------------------------------------- */

/* The sizes in bytes of a core's data caches: its L1, its L2, and the L3 that cores share. reads_ahead: 1 if
 * the core's own prefetcher reads as fast as L3 permits. */
typedef struct {
    size_t l1, l2, l3;
    int reads_ahead;
} lnrnn_caches;

/* Exported for the Cython module. */
#pragma GCC visibility push(default)
/* Returns the caches of this machine, or the caches that lnrnn_set_caches has set. */
lnrnn_caches lnrnn_get_caches(void);
/* Sets the result of lnrnn_get_caches, so that tests can show that no result depends on it. No other thread
 * may compute meanwhile. */
void lnrnn_set_caches(lnrnn_caches caches);
#pragma GCC visibility pop

/* --- the product with packed weights: kernels/panel_loop.h --------------------------------------------- */

/* Returns the size in bytes up to which packed weights stay in L2, next to other data in use. Larger weights
 * are prefetched; for smaller ones a prefetch would only delay loads. narrow: bfloat16 or int8. Their limit
 * is lower, because their products have more instructions per load, which hide a prefetch (benchmarks rnn and
 * lstm, B1). */
static inline size_t lnrnn_l2_holds(lnrnn_caches c, int narrow) { return c.l2 / 8 * (narrow ? 3 : 5); }

/* Returns the size in bytes from which weights are prefetched. A core with reads_ahead needs no prefetch for
 * some MiB of float32 weights in L3 (benchmarks lstm and gru on a Zen 4). */
static inline size_t lnrnn_prefetch_from(lnrnn_caches c, int narrow)
{
    const size_t held = lnrnn_l2_holds(c, narrow), ahead = c.reads_ahead && !narrow ? c.l3 / 8 : 0;
    return ahead > held ? ahead : held;
}

/* Returns 1 if a product of `rows` rows should prefetch weights. Up to three rows take little longer than
 * reading the weights, and with reads_ahead a prefetch only delays a load. On a Zen 4, one and two rows
 * gained 2 to 17 % without prefetches (benchmarks rnn and gru, H from 512 to 2048), three rows up to 15 %
 * (lstm B3-H1100). */
static inline int lnrnn_prefetch_rows(lnrnn_caches c, size_t rows) { return !c.reads_ahead || rows > 3; }

/* How many 32-bit words ahead a product prefetches weights, for one row of x and for several rows (benchmarks
 * rnn B1-H1024, lstm B8-H1024). */
enum { LNRNN_PREFETCH_ROW = 512, LNRNN_PREFETCH_TILE = 2048 };

/* Returns 1 if a panel of `bytes` bytes may be prefetched into L2 while tiles use the panel before it. The
 * two panels must fill at most half of L2 (benchmark lstm B17-H1024: 5 to 10 % faster). */
static inline int lnrnn_prefetch_panels(lnrnn_caches c, size_t bytes) { return 2 * bytes <= c.l2 / 2; }

/* Returns the number of parts into which a panel is divided, so that each is small enough for
 * lnrnn_prefetch_panels (benchmark threads B17-H2048: 20 % faster). */
static inline size_t lnrnn_panel_parts(lnrnn_caches c, size_t bytes)
{
    return bytes > c.l2 / 4 ? (bytes + c.l2 / 4 - 1) / (c.l2 / 4) : 1;
}

/* Returns the most panels, of `bytes` bytes each, by which one row is multiplied at a time; the product has
 * `panels`. If they exceed L1, alternate steps begin with the panels with which the step before ended, so L1
 * should hold these panels. For vectors of 64 bytes, one panel has enough sums, because L2 is slower than the
 * multiply-adds (benchmark rnn B1-H128). */
static inline size_t lnrnn_row_panels(lnrnn_caches c, size_t bytes, size_t panels)
{
    const size_t most = 4, held = c.l1 / (bytes ? bytes : 1);
    return held >= panels || !held || held > most ? most : held;
}

/* Returns the share of blocks up to which `weights` weights are packed as blocks (product_blocks.h). wide,
 * unit: dense products have vectors of 16 floats, or an instruction for int8, which makes them faster. Dense
 * int8 weights in L1 are faster still. On a Zen 3 and an Emerald Rapids, fewer blocks were at most 5 % slower
 * than dense weights (streams, and calls with 8 sequences, H from 64 to 512). */
static inline double lnrnn_share_of_blocks(lnrnn_caches c, int wide, int unit, size_t weights)
{
    if (wide && unit && weights <= c.l1 / 8 * 5)
        return 0.1;
    return wide ? unit ? 0.35 : 0.4 : unit ? 0.4 : 0.6;
}

/* --- the recurrent layer: plan.c ----------------------------------------------------------------------- */

/* The size of the buffer for W_ih x of a group of sequences. If the weights fit into L2, it is an eighth of
 * L2 (benchmark lstm B64-H128). Otherwise the buffer has at least (D + H) / 16 rows, so that W_ih is not read
 * again every few steps (lstm B8-H1024). It has up to twice as many rows if one product computes them all
 * (rnn B17-H1024). */
static inline size_t lnrnn_chunk_bytes(lnrnn_caches c) { return c.l2 / 8; }
enum { LNRNN_WEIGHTS_TO_CHUNK = 16 };

/* Returns the largest number of rows of x, of `bytes` bytes each, for one product with float32 weights. Every
 * panel of W_ih is multiplied by all these rows, so L2 must hold the rows and two panels. More rows save
 * little (benchmark rnn B48-H640). */
enum { LNRNN_MOST_INPUT_ROWS = 256 };
static inline size_t lnrnn_input_rows(lnrnn_caches c, size_t bytes)
{
    const size_t rows = c.l2 / 4 / (bytes ? bytes : 1); /* GCOVR_EXCL_BR_LINE: a row has inputs */
    return rows < 64 ? 64 : rows > LNRNN_MOST_INPUT_ROWS ? LNRNN_MOST_INPUT_ROWS : rows;
}

/* Returns 1 if W_hh h of one row also computes W_ih x of later steps, so that multiply-adds fill the time in
 * which weights arrive. bytes: the size of the weights of both that one thread reads. W_ih is read every
 * eight steps, which takes too long if it exceeds L3. Weights in L1 arrive at once. (Benchmarks rnn, gru and
 * lstm, B1, on a Zen 4.) */
static inline int lnrnn_computes_ahead(lnrnn_caches c, size_t bytes)
{
    /* GCOVR_EXCL_BR_LINE: decided by the CPU's caches */
    return c.reads_ahead && bytes > 2 * c.l1 && bytes <= c.l3 / 8 * 3;
}

/* The fewest and the most rows of a weight's gradient that one task of a thread computes (benchmark lstm
 * training). */
enum { LNRNN_GRADIENT_ROWS_LEAST = 64, LNRNN_GRADIENT_ROWS_MOST = 256 };

/* --- how many threads: runtime/thread_policy.c --------------------------------------------------------- */

/* The number of multiply-adds that repays the start of one more thread: some 50 us of one core (benchmarks
 * rnn, lstm and gru, two threads). */
enum { LNRNN_THREAD_WORK = 4 << 20 };
/* A call of fewer multiply-adds is brief, up to some 10 ms. If one of its threads loses its core for a time
 * slice, the call takes several times as long (benchmarks rnn, lstm and gru). */
enum { LNRNN_LARGE_WORK = 1 << 30 };
/* The most threads of a call for each core. More threads only wait for each other. */
enum { LNRNN_CORE_THREADS = 8 };
/* Norms and elementwise functions: the elements that repay one more thread, and from which a call is not
 * brief (benchmarks layer_norm and batch_norm). */
enum { LNRNN_SERIAL = 1 << 17, LNRNN_LARGE = 1 << 25 };

/* The most groups of sequences at a time if several threads compute each group. An array of this size has
 * their barriers. */
enum { LNRNN_MOST_SHARED = 64 };

/* --- the time of a step: cost_model.c ------------------------------------------------------------------ */

/* The number of rows of the tallest tile of a product. */
enum { LNRNN_TALLEST_TILE = 8 };
/* Two operations that overlap take the time of the longer one, and this fraction of the time of the shorter
 * one. */
#define LNRNN_NOT_HIDDEN 0.1
/* The ns per output of an activation, and of another pass over the outputs. Layer norm takes a pass, a
 * conversion for int8 weights too, and a conversion for bfloat16 half a pass (cost_model.py). */
#define LNRNN_OUTPUT_TIME 0.45
#define LNRNN_OUTPUT_PASS 0.33
/* The fraction of L3 that weights use at most. */
#define LNRNN_L3_HOLDS 0.45
/* The rate of multiply-adds of a unit for bfloat16, or for int8 with 14 bits of x and h, divided by the rate
 * for float32 weights. Measured for AVX512-BF16 and AVX512-VNNI (cost_model.py). */
#define LNRNN_UNIT_RATE 2.0
/* The rate at which one core writes data and another reads it, as a fraction of the rate of L3. The writer
 * first takes the cache lines from the reader. */
#define LNRNN_EXCHANGE_RATE 0.15

/* --- several layers at once: network_plan.c ------------------------------------------------------------ */

/* The ns that a thread needs between two chunks, to publish its progress and to choose its next chunk. */
enum { LNRNN_HAND_OVER = 800 };
/* Layers run at the same time if the predicted time is less than this factor times the time of one after the
 * other. The factor is above 1, because threads of different layers wait for each other less often. So a
 * thread that loses its core delays fewer threads. */
#define LNRNN_SIDE_BY_SIDE_BELOW 1.05

/* --- the norms: norm/tasks.h --------------------------------------------------------------------------- */

/* Returns the size in bytes from which an output is written by non-temporal stores, which bypass the caches.
 * A smaller output stays in L3 for its reader; a larger one would only displace other data. The limit is a
 * few MiB even for a large L3. On a Sapphire Rapids with 260 MiB, non-temporal stores of 8 MiB take half of
 * the time of other stores (benchmark layer_norm). */
static inline size_t lnrnn_nontemporal_from(lnrnn_caches c)
{
    const size_t of_cache = c.l3 / 8 * 3, most = 8 << 20;
    return of_cache < most ? of_cache : most;
}

/* Returns a size in bytes. A second pass over a smaller array runs backwards, to begin with values that are
 * in the caches (benchmark batch_norm training). */
static inline size_t lnrnn_reverse_below(lnrnn_caches c) { return c.l3 / 8 * 3; }

/* The size in bytes from which the loop over a row begins with a partial vector, so that the other vectors
 * are aligned. NumPy's large arrays begin 16 bytes into a cache line, so each unaligned vector of 64 bytes
 * would be in two cache lines. For shorter rows the partial vector costs more (benchmark layer_norm
 * 512x4096). */
enum { LNRNN_WIDE_ROW = 2048 };

/* The distance of prefetches in bytes, during non-temporal stores: a page (benchmark layer_norm
 * 16384x1024). */
enum { LNRNN_PREFETCH_ROWS = 4096 };

/* --- calls from Python: pyx/ --------------------------------------------------------------------------- */

/* The number of multiply-adds from which a call or a stream's step releases the interpreter's lock. For less
 * work the release costs the caller more than other threads gain. */
enum { LNRNN_RELEASE_LOCK_WORK = 1 << 20 };
/* The number of elements from which a norm or an elementwise function releases the interpreter's lock. */
enum { LNRNN_RELEASE_LOCK_ELEMENTS = 1 << 14 };
/* A long call returns to Python from time to time, to handle an interrupt (Ctrl-C). The first constant is the
 * number of multiply-adds per thread in the first part, a third of a second on the slowest instruction set.
 * The second is the time of later parts. */
enum { LNRNN_FIRST_PART_WORK = 1 << 28 };
#define LNRNN_PART_SECONDS 0.1

/* --- threads: runtime/ ---------------------------------------------------------------------------------- */

/* Times in ns. If a thread waits for LNRNN_PREEMPTED, another thread has lost its core, because a time slice
 * is 1 ms or more, and a step takes microseconds. The same is assumed if a call takes this much longer than
 * on one thread. Then a back-off begins: brief calls run on one thread for LNRNN_FIRST_BACK_OFF. A back-off
 * that begins within LNRNN_RECENT after another is twice as long, up to LNRNN_LONGEST_BACK_OFF. */
enum {
    LNRNN_PREEMPTED = 400000,
    LNRNN_FIRST_BACK_OFF = 2000000,
    LNRNN_LONGEST_BACK_OFF = 800000000,
    LNRNN_RECENT = 500000000
};

/* Iterations of a spin loop between two readings of the clock: some 50 us (benchmark rnn B1-H256). */
enum { LNRNN_SPINS = 2000 };

/* The thread pool (team_pthread.c): the ns that a worker spins before it sleeps, and the bytes of its stack.
 * The stack also holds thread-local data of other libraries. */
enum { LNRNN_POOL_SPIN = 500000, LNRNN_STACK = 1 << 20 };

/* If threads divide units, a call waits for sleeping workers for this number of ns. Then it continues without
 * the missing workers. */
enum { LNRNN_ARRIVAL = 50000 };

/* --- memory of large results: runtime/result_memory.c --------------------------------------------------- */

enum {
    /* Results of at least this number of bytes are in blocks of result_memory.c. malloc often returns blocks
     * of this size to the system, and clearing new pages takes a third of a short training step (benchmark
     * training B8-H256). */
    LNRNN_RESULT_FROM = 256 << 10,
    /* The largest number of freed blocks that stay mapped, and of their bytes. */
    LNRNN_CACHED_BLOCKS = 32,
    LNRNN_CACHED_BYTES = 1 << 30,
    /* Freed blocks from this size on are marked with MADV_FREE. For smaller blocks the mark costs too much,
     * because it empties the TLBs of all cores (benchmark layer_norm 512x4096). */
    LNRNN_MARKED_FREE_FROM = 16 << 20
};

#endif
