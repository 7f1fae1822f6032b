/* Windows. */
#include "runtime/os.h"

#if defined(LNRNN_WINDOWS)
#define WIN32_LEAN_AND_MEAN
#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include <windows.h>

/* --- threads ------------------------------------------------------------------------------------------- */

/* os.h declares the same structs, so that it need not include windows.h. */
_Static_assert(sizeof(lnrnn_lock) == sizeof(SRWLOCK) && sizeof(lnrnn_signal) == sizeof(CONDITION_VARIABLE),
               "a lock and a signal are one pointer");
static SRWLOCK *own(lnrnn_lock *lock) { return (SRWLOCK *)(void *)lock; }

void lnrnn_lock_take(lnrnn_lock *lock) { AcquireSRWLockExclusive(own(lock)); }
void lnrnn_lock_release(lnrnn_lock *lock) { ReleaseSRWLockExclusive(own(lock)); }

void lnrnn_signal_wait(lnrnn_signal *signal, lnrnn_lock *lock)
{
    SleepConditionVariableSRW((CONDITION_VARIABLE *)(void *)signal, own(lock), INFINITE, 0);
}

void lnrnn_signal_send(lnrnn_signal *signal) { WakeConditionVariable((CONDITION_VARIABLE *)(void *)signal); }

static DWORD WINAPI run(void *ctx)
{
    const lnrnn_thread *thread = ctx;
    thread->body(thread->ctx);
    return 0;
}

int lnrnn_thread_start(lnrnn_thread *thread, size_t stack_bytes, const lnrnn_cpus *cpus)
{
    (void)cpus;
    HMODULE library;
    /* The threads of the pool never end, so this library must stay loaded. */
    if (!GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS,
                            (LPCWSTR)(void *)run, &library))
        return 0;
    const HANDLE handle =
        CreateThread(NULL, stack_bytes, run, thread, STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
    return handle && CloseHandle(handle);
}

/* Only OpenMP asks, whose library for Windows reports a shortage itself. */
int lnrnn_threads_try(int n, size_t stack_bytes) { return (void)stack_bytes, n; }
int lnrnn_stacks_that_fit(size_t bytes) { return (void)bytes, INT_MAX; }
void lnrnn_yield(void) { SwitchToThread(); }

void lnrnn_on_fork(void (*before)(void), void (*parent)(void), void (*child)(void))
{
    (void)before, (void)parent, (void)child;
}

/* --- the machine --------------------------------------------------------------------------------------- */

/* A process of one processor group has an affinity mask. With several groups it may use all processors. Wine
 * does not know groups. */
int lnrnn_processors(void)
{
    USHORT ids[1], groups = 1;
    DWORD_PTR mask = 0, all;
    if ((GetProcessGroupAffinity(GetCurrentProcess(), &groups, ids)
         || GetLastError() != ERROR_INSUFFICIENT_BUFFER)
        && GetProcessAffinityMask(GetCurrentProcess(), &mask, &all) && mask)
        return __builtin_popcountll(mask);
    const DWORD n = GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    return n ? (int)n : 1;
}

/* A job, such as a container, can limit its share of all processors, in units of 0.01 %. The limit is a cap,
 * or the upper end of a range; a weight is none. */
int lnrnn_within_quota(int cpus)
{
    enum { ENABLE = 1, WEIGHT = 2, CAP = 4, RANGE = 16 };
    JOBOBJECT_CPU_RATE_CONTROL_INFORMATION rate = {0};
    if (!QueryInformationJobObject(NULL, JobObjectCpuRateControlInformation, &rate, sizeof rate, NULL)
        || !(rate.ControlFlags & ENABLE) || !(rate.ControlFlags & (CAP | RANGE))
        || rate.ControlFlags & WEIGHT)
        return cpus;
    const DWORD share = rate.ControlFlags & RANGE ? rate.CpuRate >> 16 : rate.CpuRate,
                all = GetActiveProcessorCount(ALL_PROCESSOR_GROUPS), allowed = (share * all + 9999) / 10000;
    return allowed && allowed < (DWORD)cpus ? (int)allowed : cpus;
}

int lnrnn_current_cpu(void) { return -1; }
void lnrnn_leave_cpu(int cpu) { (void)cpu; }

void lnrnn_cache_sizes(size_t sizes[3])
{
    DWORD bytes = 0;
    sizes[0] = sizes[1] = sizes[2] = 0;
    GetLogicalProcessorInformation(NULL, &bytes);
    SYSTEM_LOGICAL_PROCESSOR_INFORMATION *const all = malloc(bytes);
    if (all && GetLogicalProcessorInformation(all, &bytes))
        for (size_t k = 0; k < bytes / sizeof *all; k++) {
            const CACHE_DESCRIPTOR *c = &all[k].Cache;
            if (all[k].Relationship == RelationCache && c->Type != CacheInstruction && c->Level - 1u < 3)
                sizes[c->Level - 1] = c->Size;
        }
    free(all);
}

/* Asks by number, since older headers lack the names of these features. */
int lnrnn_has_extension(int extension)
{
    static const DWORD features[] = {[LNRNN_ARM_DOTPROD] = 43, [LNRNN_ARM_BF16] = 68, [LNRNN_ARM_I8MM] = 66};
    return IsProcessorFeaturePresent(features[extension]);
}

int lnrnn_permits_tiles(void) { return 0; }

int64_t lnrnn_nanoseconds(void)
{
    LARGE_INTEGER ticks, frequency;
    QueryPerformanceFrequency(&frequency);
    QueryPerformanceCounter(&ticks);
    const int64_t second = 1000000000, per = frequency.QuadPart, n = ticks.QuadPart;
    return n / per * second + n % per * second / per;
}

/* --- memory -------------------------------------------------------------------------------------------- */

void *lnrnn_pages_map(size_t bytes)
{
    return VirtualAlloc(NULL, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

void lnrnn_pages_unmap(void *pages, size_t bytes)
{
    (void)bytes;
    VirtualFree(pages, 0, MEM_RELEASE);
}

int lnrnn_pages_discard(void *pages, size_t bytes)
{
    return VirtualAlloc(pages, bytes, MEM_RESET, PAGE_READWRITE) != NULL;
}

/* Huge pages of Windows need a privilege that users seldom have. */
void lnrnn_pages_huge(void *pages, size_t bytes) { (void)pages, (void)bytes; }

/* --- files --------------------------------------------------------------------------------------------- */

/* Writes the path in full to `full`, which has room for MOST characters, after room for a prefix. Windows
 * permits MAX_PATH characters, and MOST with the prefix \\?\. Returns the beginning, or NULL for a text that
 * names no file. */
enum { MOST = 32768, PREFIX = 8 };
static wchar_t *in_full(const char *path, wchar_t *given, wchar_t *full)
{
    if (!MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, given, MOST))
        return NULL;
    const DWORD length = GetFullPathNameW(given, MOST, full, NULL);
    if (!length || length >= MOST)
        return NULL;
    if (length < MAX_PATH || !wcsncmp(full, L"\\\\?\\", 4) || !wcsncmp(full, L"\\\\.\\", 4))
        return full;
    if (full[0] == L'\\') /* \\server\share */
        return memcpy(full - 6, L"\\\\?\\UNC", 7 * sizeof *full);
    return memcpy(full - 4, L"\\\\?\\", 4 * sizeof *full);
}

static int is_missing(DWORD error)
{
    return error == ERROR_FILE_NOT_FOUND || error == ERROR_PATH_NOT_FOUND || error == ERROR_INVALID_NAME
           || error == ERROR_INVALID_DRIVE || error == ERROR_BAD_NETPATH || error == ERROR_BAD_NET_NAME;
}

FILE *lnrnn_file_open(const char *path, uint64_t *bytes)
{
    FILE *stream = NULL;
    HANDLE file = INVALID_HANDLE_VALUE;
    BY_HANDLE_FILE_INFORMATION about;
    wchar_t *const given = malloc((2 * MOST + PREFIX) * sizeof *given);
    const wchar_t *const name = given ? in_full(path, given, given + MOST + PREFIX) : NULL;
    errno = given ? ENOENT : ENOMEM;
    if (name) { /* other programs may rename or delete the file meanwhile; the flag is for folders */
        const DWORD share = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
        file = CreateFileW(name, GENERIC_READ, share, NULL, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, NULL);
        errno = file != INVALID_HANDLE_VALUE ? 0 : is_missing(GetLastError()) ? ENOENT : EACCES;
    }
    free(given);
    if (file == INVALID_HANDLE_VALUE)
        return NULL;
    if (GetFileType(file) == FILE_TYPE_DISK && GetFileInformationByHandle(file, &about)
        && !(about.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY)) {
        const int descriptor = _open_osfhandle((intptr_t)file, _O_RDONLY | _O_BINARY);
        *bytes = (uint64_t)about.nFileSizeHigh << 32 | about.nFileSizeLow;
        if (descriptor >= 0 && (stream = _fdopen(descriptor, "rb")))
            setvbuf(stream, NULL, _IONBF, 0);
        else if (descriptor >= 0) /* closes the file too */
            _close(descriptor), file = INVALID_HANDLE_VALUE;
    }
    if (!stream && file != INVALID_HANDLE_VALUE)
        CloseHandle(file);
    return stream;
}
#else
typedef int lnrnn_not_windows; /* C requires a declaration in every file */
#endif
