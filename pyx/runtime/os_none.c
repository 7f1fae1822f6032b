/* A machine without threads: ISO C alone. */
#include "runtime/os.h"

#if !defined(LNRNN_POSIX) && !defined(LNRNN_WINDOWS)
#include <errno.h>
#include <limits.h>

void lnrnn_lock_take(lnrnn_lock *lock) { (void)lock; }
void lnrnn_lock_release(lnrnn_lock *lock) { (void)lock; }
void lnrnn_signal_wait(lnrnn_signal *signal, lnrnn_lock *lock) { (void)signal, (void)lock; }
void lnrnn_signal_send(lnrnn_signal *signal) { (void)signal; }

int lnrnn_thread_start(lnrnn_thread *thread, size_t stack_bytes, const lnrnn_cpus *cpus)
{
    (void)thread, (void)stack_bytes, (void)cpus;
    return 0;
}

int lnrnn_threads_try(int n, size_t stack_bytes) { return (void)n, (void)stack_bytes, 0; }
int lnrnn_stacks_that_fit(size_t bytes) { return (void)bytes, 0; }
void lnrnn_yield(void) {}

void lnrnn_on_fork(void (*before)(void), void (*parent)(void), void (*child)(void))
{
    (void)before, (void)parent, (void)child;
}

int lnrnn_processors(void) { return 1; }
int lnrnn_within_quota(int cpus) { return cpus; }
int lnrnn_current_cpu(void) { return -1; }
void lnrnn_leave_cpu(int cpu) { (void)cpu; }
void lnrnn_cache_sizes(size_t sizes[3]) { sizes[0] = sizes[1] = sizes[2] = 0; }
int lnrnn_has_extension(int extension) { return (void)extension, 0; }
int lnrnn_permits_tiles(void) { return 0; }
int64_t lnrnn_nanoseconds(void) { return 0; }

void *lnrnn_pages_map(size_t bytes) { return malloc(bytes); }
void lnrnn_pages_unmap(void *pages, size_t bytes) { (void)bytes, free(pages); }
int lnrnn_pages_discard(void *pages, size_t bytes) { return (void)pages, (void)bytes, 0; }
void lnrnn_pages_huge(void *pages, size_t bytes) { (void)pages, (void)bytes; }

FILE *lnrnn_file_open(const char *path, uint64_t *bytes)
{
    FILE *stream = fopen(path, "rb");
    if (!stream)
        return NULL;
    setvbuf(stream, NULL, _IONBF, 0);
    const long size = fseek(stream, 0, SEEK_END) ? -1 : ftell(stream);
    if (size >= 0 && !fseek(stream, 0, SEEK_SET)) {
        *bytes = (uint64_t)size;
        return stream;
    }
    fclose(stream);
    errno = 0;
    return NULL;
}
#else
typedef int lnrnn_has_threads; /* C requires a declaration in every file */
#endif
