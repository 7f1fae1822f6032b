/* The floating-point state in which this library computes.
 *
 * A thread can have its CPU flush denormals to zero, round another way than to nearest, or trap. A library
 * that was built with -ffast-math does the first to every thread that loads it, and a new thread has the
 * state of the one that started it. No bit may depend on that. So everything computes in the state in
 * which a process begins: LNRNN_DEFAULT_FLOATS stands first in each function of lnrnn.h that computes, and
 * team.c has it for each thread of a team. At the end of the block the thread has its own state back,
 * sticky flags included.
 *
 * This takes two instructions and no system call; the state is written only where that changes it. */
#ifndef LNRNN_FLOATS_H
#define LNRNN_FLOATS_H

#if defined(__x86_64__)

typedef struct {
    unsigned mxcsr;
} lnrnn_floats;

/* Nearest even, denormals kept, all traps masked; and the sticky flags. */
enum { LNRNN_MXCSR_DEFAULT = 0x1f80, LNRNN_MXCSR_FLAGS = 0x3f };

/* "memory" keeps what is computed on its side of these: no load or store goes past them. */
static inline unsigned lnrnn_get_mxcsr(void)
{
    unsigned found;
    __asm__ volatile("stmxcsr %0" : "=m"(found) : : "memory");
    return found;
}

static inline void lnrnn_set_mxcsr(unsigned value)
{
    __asm__ volatile("ldmxcsr %0" : : "m"(value) : "memory");
}

static inline lnrnn_floats lnrnn_enter_floats(void)
{
    const lnrnn_floats own = {lnrnn_get_mxcsr()};
    if ((own.mxcsr & ~(unsigned)LNRNN_MXCSR_FLAGS) != LNRNN_MXCSR_DEFAULT)
        lnrnn_set_mxcsr(LNRNN_MXCSR_DEFAULT);
    return own;
}

static inline void lnrnn_leave_floats(const lnrnn_floats *own)
{
    if (lnrnn_get_mxcsr() != own->mxcsr)
        lnrnn_set_mxcsr(own->mxcsr);
}

#elif defined(__aarch64__)
#include <stdint.h>

typedef struct {
    uint64_t fpcr, fpsr; /* rounding, denormals and traps, by default all bits 0; the sticky flags */
} lnrnn_floats;

static inline lnrnn_floats lnrnn_enter_floats(void)
{
    lnrnn_floats own;
    __asm__ volatile("mrs %0, fpcr" : "=r"(own.fpcr) : : "memory");
    __asm__ volatile("mrs %0, fpsr" : "=r"(own.fpsr) : : "memory");
    if (own.fpcr)
        __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
    return own;
}

static inline void lnrnn_leave_floats(const lnrnn_floats *own)
{
    uint64_t fpsr;
    __asm__ volatile("mrs %0, fpsr" : "=r"(fpsr) : : "memory");
    if (fpsr != own->fpsr)
        __asm__ volatile("msr fpsr, %0" : : "r"(own->fpsr) : "memory");
    if (own->fpcr)
        __asm__ volatile("msr fpcr, %0" : : "r"(own->fpcr) : "memory");
}

#else /* machines with the scalar kernels alone: what C offers */
#include <fenv.h>

typedef struct {
    fenv_t env;
} lnrnn_floats;

static inline lnrnn_floats lnrnn_enter_floats(void)
{
    lnrnn_floats own;
    fegetenv(&own.env);
    fesetenv(FE_DFL_ENV);
    return own;
}

static inline void lnrnn_leave_floats(const lnrnn_floats *own) { fesetenv(&own->env); }

#endif

/* A declaration: from here to the end of the block, however that is left. clang does not count the cleanup as a
 * use of the variable. */
#define LNRNN_DEFAULT_FLOATS                                                                   \
    __attribute__((cleanup(lnrnn_leave_floats), unused)) const lnrnn_floats lnrnn_own_floats = \
        lnrnn_enter_floats()

#endif
