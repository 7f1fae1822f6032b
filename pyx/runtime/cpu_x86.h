/* Each function tests whether this x86-64 CPU has some instructions and the operating system permits them. */
#ifndef LNRNN_CPU_X86_H
#define LNRNN_CPU_X86_H

int lnrnn_has_avx2(void);
/* Tests for AVX2 and AVX-VNNI, on vectors of 256 bits. */
int lnrnn_has_avxvnni(void);
int lnrnn_has_avx512(void);
int lnrnn_has_avx512vnni(void);
/* Tests for AVX-512 with BF16 and VNNI. */
int lnrnn_has_avx512bf16(void);
/* Tests for AMX with tiles of bfloat16 and int8. The first call asks the kernel for permission. */
int lnrnn_has_amx(void);

/* Returns 1 if this model of CPU runs a bfloat16 dot product of two in the time of one float32 multiply-add.
 * Then products in bfloat16 are twice as fast. The answer must not come from a timing, because results depend
 * on it. */
int lnrnn_fast_bf16(void);

/* Returns the family of this CPU if it is of this vendor (12 letters, for example "GenuineIntel"), else 0. */
unsigned lnrnn_cpu_family(const char *vendor);

/* Returns the state of AMX, as lnrnn_isa_amx in lnrnn.h. */
const char *lnrnn_amx(void);

#endif
