/* What an aarch64 CPU has beside what all have. */
#ifndef LNRNN_CPU_ARM_H
#define LNRNN_CPU_ARM_H

/* Dot products of bytes: SDOT (FEAT_DotProd). */
int lnrnn_has_neondot(void);
/* These, and BFDOT and BFMMLA (FEAT_BF16). */
int lnrnn_has_neonbf16(void);
/* These, and SMMLA (FEAT_I8MM). */
int lnrnn_has_neoni8mm(void);

#endif
