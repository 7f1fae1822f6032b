/* What an x86-64 CPU has, and what the operating system lets a process use of it. */
#ifndef LNRNN_CPU_X86_H
#define LNRNN_CPU_X86_H

int lnrnn_has_avx2(void);
/* AVX-VNNI, which has vectors of 256 bits, beside AVX2. */
int lnrnn_has_avxvnni(void);
int lnrnn_has_avx512(void);
int lnrnn_has_avx512vnni(void);
/* And AVX-512 VNNI. */
int lnrnn_has_avx512bf16(void);
/* AMX with tiles of bfloat16 and int8, permission from the kernel included, which the first call asks for. */
int lnrnn_has_amx(void);

/* Whether a dot product of two bfloat16 takes no longer than a multiply-add of floats on this model of CPU, and so is
 * twice as fast: a table of models, never a timing, for results follow from it. */
int lnrnn_fast_bf16(void);

/* "usable", "not on this CPU", "not enabled by the operating system" or "refused by the kernel". */
const char *lnrnn_amx(void);

#endif
