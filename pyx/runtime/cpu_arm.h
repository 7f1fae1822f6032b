/* Each function tests whether this aarch64 CPU has some instructions. */
#ifndef LNRNN_CPU_ARM_H
#define LNRNN_CPU_ARM_H

/* Tests for SDOT, the dot product of bytes (FEAT_DotProd). */
int lnrnn_has_neondot(void);
/* Tests for SDOT, BFDOT and BFMMLA (FEAT_BF16). */
int lnrnn_has_neonbf16(void);
/* Tests for SDOT, BFDOT, BFMMLA and SMMLA (FEAT_I8MM). */
int lnrnn_has_neoni8mm(void);

#endif
