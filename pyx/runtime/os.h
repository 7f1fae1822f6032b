/* All that lnrnn asks of the operating system. os_posix.c implements it for Linux and macOS, os_windows.c for
 * Windows, and os_none.c for a machine without threads, such as WebAssembly. No other file names a system or
 * includes a system's header. tests/package/test_systems.py checks this. */
#ifndef LNRNN_OS_H
#define LNRNN_OS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* LNRNN_POOL: the name of the pool of threads, or NULL without threads. LNRNN_LOCK and LNRNN_SIGNAL
 * initialise a lock and a signal. LNRNN_HUGE_PAGE: blocks of at least this size begin at a multiple of it, so
 * that the system can use huge pages. */
#if defined(_WIN32)
#define LNRNN_WINDOWS 1
#include <malloc.h>
#define LNRNN_POOL "windows"
typedef struct {
    void *address;
} lnrnn_lock, lnrnn_signal; /* SRWLOCK and CONDITION_VARIABLE */
#define LNRNN_LOCK {NULL}
#define LNRNN_SIGNAL {NULL}
#elif (defined(__unix__) || defined(__APPLE__)) && !defined(__wasm__)
#define LNRNN_POSIX 1
#include <pthread.h>
#include <stdlib.h>
#define LNRNN_POOL "pthread"
typedef pthread_mutex_t lnrnn_lock;
typedef pthread_cond_t lnrnn_signal;
#define LNRNN_LOCK PTHREAD_MUTEX_INITIALIZER
#define LNRNN_SIGNAL PTHREAD_COND_INITIALIZER
#else
#include <stdlib.h>
#define LNRNN_POOL ((const char *)NULL)
typedef char lnrnn_lock, lnrnn_signal;
#define LNRNN_LOCK 0
#define LNRNN_SIGNAL 0
#endif

/* Declares a thread-local variable whose memory is reserved when the library is loaded. Otherwise glibc
 * allocates it at a thread's first use, and ends the process if memory is short. */
#if defined(__linux__)
#define LNRNN_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))
enum { LNRNN_HUGE_PAGE = 2 << 20 };
#else
#define LNRNN_THREAD_LOCAL _Thread_local
enum { LNRNN_HUGE_PAGE = 64 << 10 };
#endif

/* --- threads ------------------------------------------------------------------------------------------- */

void lnrnn_lock_take(lnrnn_lock *lock);
void lnrnn_lock_release(lnrnn_lock *lock);
/* Releases the lock, sleeps until lnrnn_signal_send or without a reason, and takes the lock again. */
void lnrnn_signal_wait(lnrnn_signal *signal, lnrnn_lock *lock);
/* Wakes one thread that waits for the signal. */
void lnrnn_signal_send(lnrnn_signal *signal);

/* A set of CPUs, as bits. */
typedef struct {
    uint64_t bits[16];
} lnrnn_cpus;
/* The work of a new thread. Its memory must exist until `body` begins. */
typedef struct {
    void (*body)(void *ctx);
    void *ctx;
} lnrnn_thread;
/* Starts a thread that takes no signals of the program. cpus: its CPUs, or NULL for those of the caller; only
 * Linux with glibc obeys it. Returns 0 if the system refuses. */
int lnrnn_thread_start(lnrnn_thread *thread, size_t stack_bytes, const lnrnn_cpus *cpus);
/* Starts n threads and ends them. stack_bytes = 0: the system's default. Returns how many of them could be
 * alive at the same time. */
int lnrnn_threads_try(int n, size_t stack_bytes);
/* Returns how many stacks of this size fit into half of the remaining address space, or INT_MAX without a
 * limit. The other half stays free for other allocations. */
int lnrnn_stacks_that_fit(size_t bytes);
void lnrnn_yield(void);
/* Each fork of the process calls these functions: one before it, and one after it in the parent and in the
 * child. They may be NULL. */
void lnrnn_on_fork(void (*before)(void), void (*parent)(void), void (*child)(void));

/* --- the machine --------------------------------------------------------------------------------------- */

/* Returns the number of CPUs on which threads of this process may run, at least 1. */
int lnrnn_processors(void);
/* Returns the smaller of `cpus` and the number of cores that a quota of the process allows, rounded up. */
int lnrnn_within_quota(int cpus);
/* Returns the CPU that runs the calling thread, or -1 if lnrnn_leave_cpu would do nothing. */
int lnrnn_current_cpu(void);
/* Moves the calling thread to a CPU other than `cpu`, if it may use another. On virtual machines Linux may
 * wake a worker on its caller's CPU, because it believes that the host uses the idle CPUs
 * (vcpu_is_preempted). Caller and worker would share one CPU from then on. */
void lnrnn_leave_cpu(int cpu);
/* Writes the sizes in bytes of the data caches of levels 1 to 3, or 0 for an unknown size. */
void lnrnn_cache_sizes(size_t sizes[3]);
/* Returns 1 if an aarch64 CPU has the extension and the system permits it. */
enum { LNRNN_ARM_DOTPROD, LNRNN_ARM_BF16, LNRNN_ARM_I8MM };
int lnrnn_has_extension(int extension);
/* Asks for AMX tiles. Linux refuses if their 8 KiB do not fit on an alternative signal stack of the process.
 * Returns 1 if this process may use them. */
int lnrnn_permits_tiles(void);
/* Returns the time of a monotonic clock in ns; always 0 on systems that have no such clock. */
int64_t lnrnn_nanoseconds(void);

/* --- memory -------------------------------------------------------------------------------------------- */

/* Returns memory that begins at a multiple of `alignment`, a power of 2, or NULL. bytes is a multiple of 64.
 * lnrnn_free_aligned frees the memory. */
static inline void *lnrnn_alloc_aligned(size_t alignment, size_t bytes)
{
#if defined(LNRNN_WINDOWS)
    return _aligned_malloc(bytes, alignment);
#elif defined(LNRNN_POSIX)
    /* aligned_alloc demands a size that is a multiple of the alignment. */
    void *block = NULL;
    return posix_memalign(&block, alignment, bytes) ? NULL : block; /* GCOVR_EXCL_BR_LINE: no memory */
#else
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
#endif
}

static inline void lnrnn_free_aligned(void *block)
{
#if defined(LNRNN_WINDOWS)
    _aligned_free(block);
#else
    free(block);
#endif
}

/* Returns whole pages, or NULL. */
void *lnrnn_pages_map(size_t bytes);
void lnrnn_pages_unmap(void *pages, size_t bytes);
/* The system may take the pages' memory, and with it their contents, until the next write. Returns 0 if it
 * cannot. */
int lnrnn_pages_discard(void *pages, size_t bytes);
/* Asks for huge pages. Bytes beyond the last whole huge page stay in small pages. */
void lnrnn_pages_huge(void *pages, size_t bytes);

/* --- files --------------------------------------------------------------------------------------------- */

/* Opens a regular file for reading, without a buffer, and writes its size. On Windows the path is UTF-8.
 * Returns NULL and sets errno, to 0 if the file is not a regular one. */
FILE *lnrnn_file_open(const char *path, uint64_t *bytes);

#endif
