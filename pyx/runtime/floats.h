/* The floating-point state in which this library computes.
 *
 * A thread can set its CPU to flush denormals to zero, to round differently, or to trap. A library built with
 * -ffast-math sets flushing in the thread that loads it, and new threads inherit the state of their creator.
 * No result may depend on this state, so all functions compute in the default state. LNRNN_DEFAULT_FLOATS
 * stands first in each function of lnrnn.h that computes, and team.c uses it in each thread of a team. At the
 * end of the block the thread gets its own state back, including the sticky flags.
 *
 * This takes two instructions and no system call, because the state is only written if it differs. */
#ifndef LNRNN_FLOATS_H
#define LNRNN_FLOATS_H

#if defined(__x86_64__)

typedef struct {
    unsigned mxcsr;
} lnrnn_floats;

/* Rounding to nearest even, denormals kept, all traps masked; and the bits of the sticky flags. */
enum { LNRNN_MXCSR_DEFAULT = 0x1f80, LNRNN_MXCSR_FLAGS = 0x3f };

/* "memory" keeps the compiler from moving loads and stores across these instructions. */
static inline unsigned lnrnn_get_mxcsr(void)
{
    unsigned value;
    __asm__ volatile("stmxcsr %0" : "=m"(value) : : "memory");
    return value;
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
    uint64_t fpcr, fpsr; /* control (0 by default) and the sticky flags */
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

#else /* other machines, which have only the scalar kernels: standard C */
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

/* Declares a variable that restores the state at the end of the block, however control leaves the block.
 * Without `unused` clang warns, because it does not count the cleanup as a use of the variable. */
#define LNRNN_DEFAULT_FLOATS                                                                   \
    __attribute__((cleanup(lnrnn_leave_floats), unused)) const lnrnn_floats lnrnn_own_floats = \
        lnrnn_enter_floats()

#endif
