/* The speed of this machine's cores, from a table of CPU models: nothing is timed. The cost model of threads
 * (rnn/cost_model.c) computes from it. */
#ifndef LNRNN_CPU_MODEL_H
#define LNRNN_CPU_MODEL_H

/* The Cython module calls these from outside the library. */
#pragma GCC visibility push(default)

typedef struct {
    double multiply_adds;  /* multiply-adds of float32 per ns in one core, with the widest vectors */
    double l2, l3, memory; /* bytes per ns that one core reads from there */
    double all_memory;     /* bytes per ns that all cores together read from memory */
    double barrier;        /* ns of a barrier of two threads */
    double barrier_thread; /* ns that each further thread adds to a barrier */
} lnrnn_cpu_model;

lnrnn_cpu_model lnrnn_get_cpu_model(void);
/* The value of lnrnn_caches.reads_ahead for this machine. */
int lnrnn_model_reads_ahead(void);
/* For tests: the model of another machine. */
void lnrnn_set_cpu_model(lnrnn_cpu_model model);

#pragma GCC visibility pop

#endif
