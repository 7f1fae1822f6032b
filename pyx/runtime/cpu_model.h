/* The speed of this machine's cores, from a table of CPU models and not from a timing. The cost model
 * (rnn/cost_model.c) predicts from it how long a step takes on some number of threads. */
#ifndef LNRNN_CPU_MODEL_H
#define LNRNN_CPU_MODEL_H

/* Exported for the Cython module. */
#pragma GCC visibility push(default)

typedef struct {
    double multiply_adds;  /* how many float32 multiply-adds one core computes per ns */
    double l2, l3, memory; /* bytes per ns that one core reads from L2, from L3, from memory */
    double all_memory;     /* bytes per ns that all cores together read from memory */
    double barrier;        /* ns of a barrier of two threads */
    double barrier_thread; /* ns that each further thread adds to a barrier */
} lnrnn_cpu_model;

lnrnn_cpu_model lnrnn_get_cpu_model(void);
/* Returns the value of lnrnn_caches.reads_ahead for this machine. */
int lnrnn_model_reads_ahead(void);
/* For tests: replaces the model of this machine. */
void lnrnn_set_cpu_model(lnrnn_cpu_model model);

#pragma GCC visibility pop

#endif
