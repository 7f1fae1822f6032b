/* Linux and macOS. */
#define _GNU_SOURCE
#include "runtime/os.h"

#if defined(LNRNN_POSIX)
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "runtime/threads.h"

/* --- threads ------------------------------------------------------------------------------------------- */

void lnrnn_lock_take(lnrnn_lock *lock) { pthread_mutex_lock(lock); }
void lnrnn_lock_release(lnrnn_lock *lock) { pthread_mutex_unlock(lock); }
void lnrnn_signal_wait(lnrnn_signal *signal, lnrnn_lock *lock) { pthread_cond_wait(signal, lock); }
void lnrnn_signal_send(lnrnn_signal *signal) { pthread_cond_signal(signal); }

/* Starts a thread that takes no signals of the program: it inherits a mask of all signals. Returns 0 or an
 * error. */
static int start(pthread_t *thread, pthread_attr_t *attributes, void *(*body)(void *), void *ctx)
{
    sigset_t all, usual;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &usual);
    const int error = pthread_create(thread, attributes, body, ctx);
    pthread_sigmask(SIG_SETMASK, &usual, NULL);
    return error;
}

/* Do not free here: at its first use in a new thread glibc's heap reserves 64 MiB of address space. */
static void *run(void *ctx)
{
    const lnrnn_thread *thread = ctx;
    thread->body(thread->ctx);
    return NULL;
}

/* Sets the CPUs of a new thread, if the C library can: musl and macOS cannot. */
static void bind(pthread_attr_t *attributes, const lnrnn_cpus *cpus)
{
#if defined(__GLIBC__)
    cpu_set_t set;
    CPU_ZERO(&set);
    /* GCOVR_EXCL_BR_START: clang's OpenMP has no places here */
    for (size_t cpu = 0; cpu < sizeof cpus->bits * CHAR_BIT; cpu++)
        if (cpus->bits[cpu / 64] >> cpu % 64 & 1)
            CPU_SET(cpu, &set);
    /* GCOVR_EXCL_BR_STOP */
    pthread_attr_setaffinity_np(attributes, sizeof set, &set);
#else
    (void)attributes, (void)cpus;
#endif
}

int lnrnn_thread_start(lnrnn_thread *thread, size_t stack_bytes, const lnrnn_cpus *cpus)
{
    pthread_t handle;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes))
        return 0; /* GCOVR_EXCL_LINE: no memory */
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, stack_bytes);
    if (cpus) /* GCOVR_EXCL_BR_LINE: clang's OpenMP has no places here */
        bind(&attributes, cpus);
    const int error = start(&handle, &attributes, run, thread);
    pthread_attr_destroy(&attributes);
    return !error;
}

typedef struct {
    pthread_t thread;
    long id;
    pthread_mutex_t *end;
} candidate;

static void *wait_for_end(void *ctx)
{
    candidate *c = ctx;
#if defined(__linux__)
    c->id = syscall(SYS_gettid);
#endif
    pthread_mutex_lock(c->end);
    pthread_mutex_unlock(c->end);
    return NULL;
}

/* Waits until the system has removed a joined thread: until then the thread counts against the limits. */
static void wait_until_gone(long id)
{
#if defined(__linux__)
    const struct timespec moment = {0, 50000};
    for (int looks = 0; looks < 20000 && syscall(SYS_tgkill, getpid(), id, 0) == 0; looks++)
        nanosleep(&moment, NULL); /* GCOVR_EXCL_LINE: only if the system is slow */
#else
    (void)id;
#endif
}

int lnrnn_stacks_that_fit(size_t bytes)
{
#if defined(__linux__)
    struct rlimit limit;
    unsigned long pages;
    /* GCOVR_EXCL_BR_START: a limited address space has no room for counts */
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        FILE *f = fopen("/proc/self/statm", "r");
        const int known = f && fscanf(f, "%lu", &pages) == 1;
        if (f)
            fclose(f);
        const rlim_t used = known ? (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) : 0;
        const rlim_t fit = used < limit.rlim_cur ? (limit.rlim_cur - used) / 2 / bytes : 0;
        return fit < INT_MAX ? (int)fit : INT_MAX;
        /* GCOVR_EXCL_BR_STOP */
    }
#endif
    (void)bytes;
    return INT_MAX;
}

int lnrnn_threads_try(int n, size_t stack_bytes)
{
    /* The number of bytes that stay free, because OpenMP allocates some 100 bytes per thread in addition to
     * its stack. */
    enum { RESERVE = 1 << 20 };
    candidate *c = calloc((size_t)n, sizeof *c);
    void *reserve = malloc(RESERVE);
    pthread_mutex_t end = PTHREAD_MUTEX_INITIALIZER;
    pthread_attr_t attributes;
    int started = 0;
    if (c && reserve && pthread_attr_init(&attributes) == 0) { /* GCOVR_EXCL_BR_LINE: no memory */
        if (stack_bytes)
            pthread_attr_setstacksize(&attributes, stack_bytes); /* fails for sizes that OpenMP ignores */
        size_t bytes = 1 << 20;
        pthread_attr_getstacksize(&attributes, &bytes);
        const int fit = lnrnn_stacks_that_fit(bytes);
        pthread_mutex_lock(&end);
        for (; started < n && started < fit; started++) {
            c[started].end = &end;
            if (start(&c[started].thread, &attributes, wait_for_end, &c[started]))
                break;
        }
        pthread_mutex_unlock(&end);
        for (int i = 0; i < started; i++)
            pthread_join(c[i].thread, NULL);
        for (int i = 0; i < started; i++)
            wait_until_gone(c[i].id);
        pthread_attr_destroy(&attributes);
    }
    free(reserve);
    free(c);
    return started;
}

void lnrnn_yield(void) { sched_yield(); }

void lnrnn_on_fork(void (*before)(void), void (*parent)(void), void (*child)(void))
{
    pthread_atfork(before, parent, child);
}

/* --- the machine --------------------------------------------------------------------------------------- */

int lnrnn_processors(void)
{
#if defined(__linux__)
    /* sched_getaffinity fails if the set is smaller than the kernel's, so try larger ones. */
    /* GCOVR_EXCL_BR_LINE: only if the kernel is built for more CPUs */
    for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        if (!set) /* GCOVR_EXCL_BR_LINE: no memory */
            break;
        const size_t size = CPU_ALLOC_SIZE((size_t)cpus);
        /* GCOVR_EXCL_BR_LINE: only if the kernel is built for more CPUs */
        const int n = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
        CPU_FREE(set);
        if (n > 0) /* GCOVR_EXCL_BR_LINE: only if the kernel is built for more CPUs */
            return n;
    }
#endif
    /* GCOVR_EXCL_START: systems without CPU affinity */
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
    /* GCOVR_EXCL_STOP */
}

int lnrnn_within_quota(int cpus)
{
#if defined(__linux__)
    return lnrnn_cores_of(cpus, "/proc/self/cgroup", "/sys/fs/cgroup");
#else
    return cpus;
#endif
}

int lnrnn_current_cpu(void)
{
#if defined(__linux__)
    return sched_getcpu();
#else
    return -1;
#endif
}

void lnrnn_leave_cpu(int cpu)
{
#if defined(__linux__)
    cpu_set_t all, others;
    /* GCOVR_EXCL_BR_LINE: the system moved the thread, or has no affinity */
    if (cpu < 0 || sched_getcpu() != cpu || sched_getaffinity(0, sizeof all, &all))
        return;
    others = all;
    CPU_CLR((size_t)cpu, &others);
    /* GCOVR_EXCL_BR_LINE: a quota took a CPU away meanwhile */
    if (CPU_COUNT(&others) && !sched_setaffinity(0, sizeof others, &others))
        sched_setaffinity(0, sizeof all, &all);
#else
    (void)cpu;
#endif
}

#if defined(__APPLE__)
static int64_t answer_of(const char *name)
{
    int64_t n = 0; /* some answers have 32 bits; the machine is little-endian */
    size_t bytes = sizeof n;
    return sysctlbyname(name, &n, &bytes, NULL, 0) == 0 && n > 0 ? n : 0;
}
#endif

void lnrnn_cache_sizes(size_t sizes[3])
{
    /* GCOVR_EXCL_BR_START: not on x86-64 */
    for (int level = 0; level < 3; level++) {
#if defined(__APPLE__)
        static const char *const names[] = {"hw.perflevel0.l1dcachesize", "hw.perflevel0.l2cachesize"};
        sizes[level] = level < 2 ? (size_t)answer_of(names[level]) : 0;
#elif defined(_SC_LEVEL1_DCACHE_SIZE)
        static const int names[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE};
        const long n = sysconf(names[level]);
        sizes[level] = n > 0 ? (size_t)n : 0;
        /* GCOVR_EXCL_BR_STOP */
#else
        sizes[level] = 0;
#endif
    }
}

int lnrnn_has_extension(int extension)
{
#if defined(__APPLE__)
    static const char *const names[] = {"hw.optional.arm.FEAT_DotProd", "hw.optional.arm.FEAT_BF16",
                                        "hw.optional.arm.FEAT_I8MM"};
    return answer_of(names[extension]) != 0;
#elif defined(__linux__)
    /* Tests bits by number, since older headers lack the names of these features. */
    static const struct {
        unsigned long type;
        int bit;
    } bits[] = {{AT_HWCAP, 20}, {AT_HWCAP2, 14}, {AT_HWCAP2, 13}};
    return (getauxval(bits[extension].type) >> bits[extension].bit & 1) != 0;
#else
    return (void)extension, 0;
#endif
}

int lnrnn_permits_tiles(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    /* GCOVR_EXCL_BR_START: asked only on a CPU with AMX */
    const long GET_PERMITTED = 0x1022, REQUEST = 0x1023, TILE_DATA = 18;
    unsigned long bits = 0;
    if (syscall(SYS_arch_prctl, REQUEST, TILE_DATA))
        return 0;
    return syscall(SYS_arch_prctl, GET_PERMITTED, &bits) == 0 && (bits >> TILE_DATA & 1);
    /* GCOVR_EXCL_BR_STOP */
#else
    return 0;
#endif
}

int64_t lnrnn_nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* --- memory -------------------------------------------------------------------------------------------- */

void *lnrnn_pages_map(size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages; /* GCOVR_EXCL_BR_LINE: no memory */
}

void lnrnn_pages_unmap(void *pages, size_t bytes) { munmap(pages, bytes); }

int lnrnn_pages_discard(void *pages, size_t bytes)
{
#if defined(MADV_FREE)
    return madvise(pages, bytes, MADV_FREE) == 0;
#else
    return (void)pages, (void)bytes, 0;
#endif
}

void lnrnn_pages_huge(void *pages, size_t bytes)
{
#if defined(MADV_HUGEPAGE)
    madvise(pages, bytes / LNRNN_HUGE_PAGE * LNRNN_HUGE_PAGE, MADV_HUGEPAGE);
#else
    (void)pages, (void)bytes;
#endif
}

/* --- files --------------------------------------------------------------------------------------------- */

FILE *lnrnn_file_open(const char *path, uint64_t *bytes)
{
    struct stat about;
    /* Does not wait for a pipe, and does not make a terminal that of the process. */
    const int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    FILE *stream = NULL;
    if (descriptor >= 0 && !fstat(descriptor, &about)) { /* GCOVR_EXCL_BR_LINE: fstat of an open file */
        errno = 0;
        stream = S_ISREG(about.st_mode) ? fdopen(descriptor, "rb") : NULL;
        *bytes = (uint64_t)about.st_size;
    }
    const int error = errno;
    if (stream)
        setvbuf(stream, NULL, _IONBF, 0); /* no buffer: the reads are large */
    else if (descriptor >= 0)
        close(descriptor);
    errno = error;
    return stream;
}
#else
typedef int lnrnn_not_posix; /* C requires a declaration in every file */
#endif
