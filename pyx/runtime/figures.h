/* What a core of this machine computes and reads in a ns, by a table of CPU models: nothing is timed. */
#ifndef LNRNN_FIGURES_H
#define LNRNN_FIGURES_H

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

/* Of one core: multiply-adds of float32 a ns with the widest vectors; bytes a ns that it reads from L2, from L3 and
 * from memory. Of all cores together: bytes a ns from memory. Of a barrier: ns of two threads, and ns more for each
 * further one. */
typedef struct {
    double multiply_adds, l2, l3, memory, all_memory, barrier, barrier_thread;
} lnrnn_figures;

lnrnn_figures lnrnn_get_figures(void);
/* Whether lnrnn_caches.reads_ahead holds. */
int lnrnn_model_reads_ahead(void);
/* For tests: the figures of another machine. */
void lnrnn_set_figures(lnrnn_figures figures);

#pragma GCC visibility pop

#endif
