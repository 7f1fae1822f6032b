/* What an aarch64 CPU has beside what all have. */
#ifndef LNRNN_CPU_ARM_H
#define LNRNN_CPU_ARM_H

/* BFDOT (FEAT_BF16). */
int lnrnn_has_neonbf16(void);

#endif
