/* A library for LD_PRELOAD that makes the n-th request of a call fail. Requests are calls for memory (malloc and its family,
 * mmap), or calls to the file system (open, write, fsync, rename, ...). Only requests of the thread that runs faults_call
 * count, until faults_call returns. Needs glibc, whose allocator has the name __libc_malloc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

/* This function is weak, because other programs than Python load this library too. They do not call faults_call. */
extern void *PyObject_CallNoArgs(void *callable) __attribute__((weak));

enum { MEMORY = 1, FILES = 2 };

/* Thread-local variables are initial-exec, because in other TLS models the first access allocates memory. */
#define OWN static __thread __attribute__((tls_model("initial-exec")))
OWN int counted; /* the kind of requests that count: MEMORY, FILES, or 0 */
OWN long requests, failing_at;
OWN long failing_to; /* the last request that fails */
OWN int with_error;  /* for FILES: the errno to set; 0: only half of the bytes are read or written */
OWN long failed;

static long blocks, mapped; /* allocated blocks, and bytes of mappings, of the whole process */
static uintptr_t spared_from, spared_to;

/* Requests by code between these addresses neither count nor fail. */
void faults_spare(uintptr_t from, uintptr_t to) { spared_from = from, spared_to = to; }

long faults_blocks(void) { return __atomic_load_n(&blocks, __ATOMIC_RELAXED); }
long faults_mapped(void) { return __atomic_load_n(&mapped, __ATOMIC_RELAXED); }
/* Return the numbers of requests, and of failed requests, in the last call. */
long faults_requests(void) { return requests; }
long faults_failed(void) { return failed; }

/* Calls callable(), and makes `count` requests fail from number `at` on. The first request is 1; at = 0: none fails. Returns
 * the result, or NULL with an exception set. */
void *faults_call(void *callable, int kind, long at, long count, int error)
{
    requests = failed = 0, failing_at = at, failing_to = at + count - 1, with_error = error;
    counted = kind;
    void *result = PyObject_CallNoArgs(callable);
    counted = 0;
    return result;
}

static int fails(int kind, void *caller)
{
    if (counted != kind || ((uintptr_t)caller >= spared_from && (uintptr_t)caller < spared_to))
        return 0;
    requests++;
    if (!failing_at || requests < failing_at || requests > failing_to)
        return 0;
    failed++;
    errno = kind == MEMORY ? ENOMEM : with_error;
    return 1;
}

#define CALLER __builtin_return_address(0)

/* --- memory -------------------------------------------------------------------------------------------- */

static void *counted_block(void *block)
{
    if (block)
        __atomic_add_fetch(&blocks, 1, __ATOMIC_RELAXED);
    return block;
}

void *malloc(size_t size) { return fails(MEMORY, CALLER) ? NULL : counted_block(__libc_malloc(size)); }

void *calloc(size_t n, size_t size)
{
    return fails(MEMORY, CALLER) ? NULL : counted_block(__libc_calloc(n, size));
}

void *realloc(void *block, size_t size)
{
    if (fails(MEMORY, CALLER))
        return NULL;
    void *other = __libc_realloc(block, size);
    if (!block)
        counted_block(other);
    else if (!other && !size)
        __atomic_sub_fetch(&blocks, 1, __ATOMIC_RELAXED);
    return other;
}

void free(void *block)
{
    if (block)
        __atomic_sub_fetch(&blocks, 1, __ATOMIC_RELAXED);
    __libc_free(block);
}

#define ALIGNED(name)                                                                          \
    void *name(size_t alignment, size_t size)                                                  \
    {                                                                                          \
        return fails(MEMORY, CALLER) ? NULL : counted_block(__libc_memalign(alignment, size)); \
    }
ALIGNED(memalign)
ALIGNED(aligned_alloc)

int posix_memalign(void **block, size_t alignment, size_t size)
{
    void *allocated = fails(MEMORY, CALLER) ? NULL : counted_block(__libc_memalign(alignment, size));
    if (!allocated)
        return ENOMEM;
    *block = allocated;
    return 0;
}

/* Finds the function of this name in the next library. Requests by dlsym do not count. */
static void *next(const char *name)
{
    const int before = counted;
    counted = 0;
    void *function = dlsym(RTLD_NEXT, name);
    counted = before;
    return function;
}

#define NEXT(type, name, ...)         \
    static type (*real)(__VA_ARGS__); \
    if (!real)                        \
    real = (type (*)(__VA_ARGS__))next(#name)

#define MMAP(name)                                                                            \
    void *name(void *address, size_t size, int protection, int flags, int file, off_t offset) \
    {                                                                                         \
        NEXT(void *, name, void *, size_t, int, int, int, off_t);                             \
        if (fails(MEMORY, CALLER))                                                            \
            return MAP_FAILED;                                                                \
        void *mapping = real(address, size, protection, flags, file, offset);                 \
        if (mapping != MAP_FAILED)                                                            \
            __atomic_add_fetch(&mapped, (long)size, __ATOMIC_RELAXED);                        \
        return mapping;                                                                       \
    }
MMAP(mmap)
MMAP(mmap64)

int munmap(void *address, size_t size)
{
    NEXT(int, munmap, void *, size_t);
    const int result = real(address, size);
    if (!result)
        __atomic_sub_fetch(&mapped, (long)size, __ATOMIC_RELAXED);
    return result;
}

/* --- files --------------------------------------------------------------------------------------------- */

#define REFUSE                              \
    if (fails(FILES, CALLER) && with_error) \
    return -1

#define OPEN(name)                                                              \
    int name(const char *path, int flags, ...)                                  \
    {                                                                           \
        NEXT(int, name, const char *, int, ...);                                \
        REFUSE;                                                                 \
        va_list rest;                                                           \
        va_start(rest, flags);                                                  \
        const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; \
        va_end(rest);                                                           \
        return real(path, flags, mode);                                         \
    }
OPEN(open)
OPEN(open64)

#define TRANSFER(name, type)                                                    \
    ssize_t name(int file, type bytes, size_t size)                             \
    {                                                                           \
        NEXT(ssize_t, name, int, type, size_t);                                 \
        if (!fails(FILES, CALLER))                                              \
            return real(file, bytes, size);                                     \
        return with_error ? -1 : real(file, bytes, size > 1 ? size / 2 : size); \
    }
TRANSFER(write, const void *)
TRANSFER(read, void *)

#define CALL(type, name, parameters, arguments, ...) \
    type name parameters                             \
    {                                                \
        NEXT(type, name, __VA_ARGS__);               \
        REFUSE;                                      \
        return real arguments;                       \
    }
CALL(int, fsync, (int file), (file), int)
CALL(int, rename, (const char *from, const char *to), (from, to), const char *, const char *)
CALL(int, fchmod, (int file, mode_t mode), (file, mode), int, mode_t)
CALL(int, fstat, (int file, struct stat *found), (file, found), int, struct stat *)
CALL(int, fstat64, (int file, struct stat64 *found), (file, found), int, struct stat64 *)
CALL(off_t, lseek, (int file, off_t offset, int whence), (file, offset, whence), int, off_t, int)
CALL(off64_t, lseek64, (int file, off64_t offset, int whence), (file, offset, whence), int, off64_t, int)

/* As on Linux, the descriptor is closed even if close fails. */
int close(int file)
{
    NEXT(int, close, int);
    const int result = real(file);
    REFUSE;
    return result;
}
