/* The extensions of an x86-64 CPU that the operating system lets a process use. */
#ifndef LNRNN_CPU_X86_H
#define LNRNN_CPU_X86_H

int lnrnn_has_avx2(void);
/* AVX2 and AVX-VNNI, on vectors of 256 bits. */
int lnrnn_has_avxvnni(void);
int lnrnn_has_avx512(void);
int lnrnn_has_avx512vnni(void);
/* AVX-512 with BF16 and VNNI. */
int lnrnn_has_avx512bf16(void);
/* AMX with tiles of bfloat16 and int8. The first call asks the kernel for permission. */
int lnrnn_has_amx(void);

/* Does a dot product of two bfloat16 take no longer than a multiply-add of float32 on this model of CPU? Then
 * it is twice as fast. The answer comes from a table of models and never from a timing, since results depend
 * on it. */
int lnrnn_fast_bf16(void);

/* The family of a CPU of this vendor (12 letters), or 0. */
unsigned lnrnn_cpu_family(const char *vendor);

/* "usable", "not on this CPU", "not enabled by the operating system" or "refused by the kernel". */
const char *lnrnn_amx(void);

#endif
