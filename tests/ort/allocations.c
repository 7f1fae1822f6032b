/* Counts the requests for memory that liblnrnn and liblnrnn_ort make. One request may fail. tests/ort/test_plugin_memory.py preloads this
 * library, so that its malloc replaces the malloc of the process. */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <stddef.h>
#include <string.h>

enum { MOST = 4 };
static struct {
    char *first, *end;
} watched[MOST];
static int count;
static long requests, held, failing; /* failing: the number of requests until one fails; it goes on below 0 */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *block);

static int is_watched(const void *caller)
{
    for (int k = 0; k < count; k++)
        if ((const char *)caller >= watched[k].first && (const char *)caller < watched[k].end)
            return 1;
    return 0;
}

/* The blocks that the libraries have requested and that are not free. A place with bytes 0 was used before. */
enum { PLACES = 1 << 18 };
static struct {
    void *block;
    long bytes;
} blocks[PLACES];
static char lock;

/* Adds the block, if bytes is not 0; else removes it. Returns its bytes, or 0 if there is no such block. */
static long change(void *block, long bytes)
{
    size_t at = (size_t)block / 16 % PLACES;
    long before = 0;
    while (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE))
        ;
    while (blocks[at].block
           && (bytes ? blocks[at].bytes != 0 : blocks[at].block != block || !blocks[at].bytes))
        at = (at + 1) % PLACES;
    if (bytes)
        blocks[at].block = block;
    before = blocks[at].bytes;
    blocks[at].bytes = bytes;
    __atomic_clear(&lock, __ATOMIC_RELEASE);
    return bytes ? bytes : before;
}

/* Counts a request of `caller`, which adds the bytes of `block`. Returns `block`. */
static void *request(void *caller, void *block)
{
    if (block && is_watched(caller) && !__atomic_sub_fetch(&failing, 1, __ATOMIC_RELAXED)) {
        __libc_free(block);
        return NULL;
    }
    if (block && is_watched(caller)) {
        __atomic_add_fetch(&requests, 1, __ATOMIC_RELAXED);
        __atomic_add_fetch(&held, change(block, (long)malloc_usable_size(block)), __ATOMIC_RELAXED);
    }
    return block;
}

static void forget(void *block)
{
    if (count && block)
        __atomic_sub_fetch(&held, change(block, 0), __ATOMIC_RELAXED);
}

#define CALLER __builtin_return_address(0)

void *malloc(size_t size) { return request(CALLER, __libc_malloc(size)); }

void *calloc(size_t n, size_t size) { return request(CALLER, __libc_calloc(n, size)); }

void *realloc(void *block, size_t size)
{
    if (block && is_watched(CALLER) && failing == 1)
        return failing = 0, NULL;
    forget(block);
    return request(CALLER, __libc_realloc(block, size));
}

void *memalign(size_t alignment, size_t size) { return request(CALLER, __libc_memalign(alignment, size)); }

void *aligned_alloc(size_t alignment, size_t size)
{
    return request(CALLER, __libc_memalign(alignment, size));
}

int posix_memalign(void **block, size_t alignment, size_t size)
{
    *block = request(CALLER, __libc_memalign(alignment, size));
    return *block ? 0 : ENOMEM;
}

void free(void *block)
{
    forget(block);
    if (is_watched(CALLER))
        __atomic_add_fetch(&requests, 1, __ATOMIC_RELAXED);
    __libc_free(block);
}

static int watch_library(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size, (void)data;
    if (!strstr(info->dlpi_name, "liblnrnn"))
        return 0;
    for (int k = 0; k < info->dlpi_phnum && count < MOST; k++)
        if (info->dlpi_phdr[k].p_type == PT_LOAD && info->dlpi_phdr[k].p_flags & PF_X) {
            watched[count].first = (char *)info->dlpi_addr + info->dlpi_phdr[k].p_vaddr;
            watched[count].end = watched[count].first + info->dlpi_phdr[k].p_memsz;
            count++;
        }
    return 0;
}

/* Counts requests of the libraries that are loaded now. Returns the number of libraries. */
int watch(void)
{
    count = 0;
    dl_iterate_phdr(watch_library, NULL);
    return count;
}

/* Makes request number n from now on fail. Returns how many were left until the last one that should. */
long fail_after(long n) { return __atomic_exchange_n(&failing, n, __ATOMIC_RELAXED); }

long requests_until_now(void) { return requests; }

/* Returns the bytes of the blocks that the libraries have requested and not freed. */
long bytes_now(void) { return held; }
