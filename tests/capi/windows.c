/* Tests liblnrnn with a Windows that refuses: one without threads, cores or quotas of a usual kind, and with paths of
 * more than 260 characters. Usage: windows FILE. FILE: a saved network. At its end it prints "passed". */
#include <lnrnn.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

#define CHECK(right)                                                                 \
    do {                                                                             \
        if (!(right)) {                                                              \
            printf("%s:%d: %s; message: %s\n", __FILE__, __LINE__, #right, message); \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)

static char message[LNRNN_MESSAGE];

/* Lets the library call `own` instead of the system's function `name`. */
static void replace(const char *name, void *own)
{
    char *const base = (char *)(void *)GetModuleHandleA("liblnrnn.4.dll");
    CHECK(base);
    const IMAGE_NT_HEADERS *const headers = (void *)(base + ((IMAGE_DOS_HEADER *)(void *)base)->e_lfanew);
    const DWORD place = headers->OptionalHeader.DataDirectory[IMAGE_DIRECTORY_ENTRY_IMPORT].VirtualAddress;
    for (const IMAGE_IMPORT_DESCRIPTOR *d = (void *)(base + place); d->Name; d++) {
        const IMAGE_THUNK_DATA *names = (void *)(base + d->OriginalFirstThunk);
        for (void **function = (void *)(base + d->FirstThunk); names->u1.AddressOfData; names++, function++)
            if (!IMAGE_SNAP_BY_ORDINAL(names->u1.Ordinal)
                && !strcmp((char *)base + names->u1.AddressOfData + sizeof(WORD), name)) {
                DWORD protection;
                CHECK(VirtualProtect(function, sizeof *function, PAGE_READWRITE, &protection));
                *function = own;
                return;
            }
    }
    printf("the library does not call %s\n", name);
    exit(1);
}

/* --- cores ---------------------------------------------------------------------------------------------- */

static DWORD_PTR mask;    /* of the process */
static DWORD active;      /* the processors of all groups */
static DWORD flags, rate; /* of the job */

static BOOL WINAPI affinity(HANDLE process, DWORD_PTR *own, DWORD_PTR *all)
{
    (void)process;
    *own = *all = mask;
    return TRUE;
}

/* groups: of the process. Wine has no such function. */
static USHORT groups = 1;
static BOOL WINAPI of_groups(HANDLE process, USHORT *count, USHORT *ids)
{
    (void)process, (void)ids;
    CHECK(*count == 1);
    *count = groups;
    SetLastError(groups ? ERROR_INSUFFICIENT_BUFFER : ERROR_CALL_NOT_IMPLEMENTED);
    return groups == 1;
}

static DWORD WINAPI processors(WORD group) { return (void)group, active; }

static BOOL WINAPI of_job(HANDLE job, JOBOBJECTINFOCLASS kind, void *to, DWORD bytes, DWORD *written)
{
    JOBOBJECT_CPU_RATE_CONTROL_INFORMATION *const said = to;
    (void)job, (void)written;
    CHECK(kind == JobObjectCpuRateControlInformation && bytes == sizeof *said);
    said->ControlFlags = flags, said->CpuRate = rate;
    return TRUE;
}

static int cores(DWORD_PTR own, DWORD all, DWORD control, DWORD of_control)
{
    mask = own, active = all, flags = control, rate = of_control;
    return lnrnn_cores();
}

/* The mask of a process in several groups is 0. A rate is in units of 0.01 % of all processors. */
static void test_cores(void)
{
    enum { ON = 1, WEIGHT = 2, CAP = 4, RANGE = 16 };
    CHECK(lnrnn_cores() >= 1);
    replace("GetProcessAffinityMask", (void *)affinity);
    replace("GetProcessGroupAffinity", (void *)of_groups);
    replace("GetActiveProcessorCount", (void *)processors);
    replace("QueryInformationJobObject", (void *)of_job);
    for (groups = 0; groups < 3; groups++)
        CHECK(cores(5, 96, 0, 0) == (groups < 2 ? 2 : 96));
    groups = 1;
    CHECK(cores(0, 96, 0, 0) == 96);
    CHECK(cores(0, 0, 0, 0) == 1);
    CHECK(cores(255, 8, ON | CAP, 2500) == 2);
    CHECK(cores(255, 8, ON | CAP, 2501) == 3);
    CHECK(cores(255, 8, ON | CAP, 1) == 1);
    CHECK(cores(3, 8, ON | CAP, 9000) == 2);
    CHECK(cores(255, 8, CAP, 2500) == 8);
    CHECK(cores(255, 8, ON, 2500) == 8);
    CHECK(cores(255, 8, ON | WEIGHT | CAP, 5) == 8);
    CHECK(cores(255, 8, ON | RANGE, 5000u << 16 | 1000) == 4);
    CHECK(cores(255, 8, ON | RANGE, 0) == 8);
}

/* --- threads -------------------------------------------------------------------------------------------- */

enum { STEPS = 20, SEQUENCES = 32, MOST = 64 };

static int refusals;

static HANDLE WINAPI no_thread(SECURITY_ATTRIBUTES *security, SIZE_T stack, LPTHREAD_START_ROUTINE body,
                               void *ctx, DWORD options, DWORD *id)
{
    (void)security, (void)stack, (void)body, (void)ctx, (void)options, (void)id;
    refusals++;
    SetLastError(ERROR_NOT_ENOUGH_MEMORY);
    return NULL;
}

static void run(const char *path, int threads, float *y)
{
    static float x[STEPS * SEQUENCES * MOST];
    lnrnn_network *n;
    CHECK(!lnrnn_network_open(path, &n, message));
    CHECK(lnrnn_network_inputs(n) <= MOST && lnrnn_network_state_size(n, 0) <= MOST);
    for (size_t k = 0; k < sizeof x / sizeof *x; k++)
        x[k] = (float)(k % 7) - 3;
    lnrnn_set_num_threads(threads);
    lnrnn_sequences call = {.steps = STEPS, .sequences = SEQUENCES, .x = x, .y = y};
    CHECK(!lnrnn_network_run(n, &call, NULL, message));
    lnrnn_network_release(n);
}

/* The outputs are those of one thread if the system refuses threads, and if it starts them later. */
static void test_threads(const char *path)
{
    static float wanted[STEPS * SEQUENCES * MOST], found[STEPS * SEQUENCES * MOST];
    run(path, 1, wanted);
    replace("CreateThread", (void *)no_thread);
    run(path, 4, found);
    CHECK(refusals && !memcmp(found, wanted, sizeof found));
    memset(found, 0, sizeof found);
    replace("CreateThread", (void *)CreateThread);
    run(path, 4, found);
    CHECK(!memcmp(found, wanted, sizeof found));
}

/* --- files ---------------------------------------------------------------------------------------------- */

static lnrnn_status open_and_release(const char *path)
{
    lnrnn_network *n;
    const lnrnn_status status = lnrnn_network_open(path, &n, message);
    if (!status)
        lnrnn_network_release(n);
    return status;
}

/* Windows permits MAX_PATH characters, but 32767 in full paths with the prefix \\?\. Wine has no such limit. */
static HANDLE WINAPI open_short_path(const wchar_t *path, DWORD access, DWORD share,
                                     SECURITY_ATTRIBUTES *security, DWORD how, DWORD options, HANDLE template)
{
    if (wcslen(path) >= MAX_PATH && wcsncmp(path, L"\\\\?\\", 4)) {
        SetLastError(ERROR_PATH_NOT_FOUND);
        return INVALID_HANDLE_VALUE;
    }
    return CreateFileW(path, access, share, security, how, options, template);
}

static void test_long_paths(const char *file)
{
    enum { LEVELS = 5, LONG = 90, ALL = LEVELS * (LONG + 1) };
    static wchar_t wide[1024], level[LEVELS + 1][1024];
    static char relative[ALL + 32], full[2048];
    const DWORD here = GetCurrentDirectoryW(500, wide + 4);
    memcpy(wide, L"\\\\?\\", 4 * sizeof *wide);
    size_t at = here + 4;
    for (size_t k = 0; k < LEVELS; k++) {
        wide[at++] = L'\\';
        memset(relative + k * (LONG + 1), 'a' + (int)k, LONG);
        relative[k * (LONG + 1) + LONG] = '/';
        for (size_t i = 0; i < LONG; i++)
            wide[at++] = (wchar_t)('a' + k);
        wide[at] = 0;
        memcpy(level[k], wide, sizeof wide);
        CHECK(CreateDirectoryW(wide, NULL));
    }
    strcat(relative, "m\xc3\xa4.safetensors");
    wcscpy(wide + at, L"\\m\u00e4.safetensors");
    wchar_t from[1024];
    CHECK(MultiByteToWideChar(CP_UTF8, 0, file, -1, from, 1024) && CopyFileW(from, wide, TRUE));
    replace("CreateFileW", (void *)open_short_path);
    CHECK(!open_and_release(relative));
    CHECK(WideCharToMultiByte(CP_UTF8, 0, wide, -1, full, sizeof full, NULL, NULL));
    CHECK(!open_and_release(full));     /* with the prefix */
    CHECK(!open_and_release(full + 4)); /* without it */
    CHECK(DeleteFileW(wide));
    CHECK(open_and_release(relative) == LNRNN_NO_FILE);
    relative[ALL - 1] = 0; /* a folder */
    CHECK(open_and_release(relative) == LNRNN_INVALID && strstr(message, "not a regular file"));
    for (size_t k = LEVELS; k--;)
        CHECK(RemoveDirectoryW(level[k]));
}

/* Programs that rename or delete a file hold it with the right DELETE. */
static void test_held_files(const char *file)
{
    wchar_t wide[1024];
    CHECK(MultiByteToWideChar(CP_UTF8, 0, file, -1, wide, 1024));
    const DWORD all = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    HANDLE held = CreateFileW(wide, GENERIC_READ | DELETE, all, NULL, OPEN_EXISTING, 0, NULL);
    CHECK(held != INVALID_HANDLE_VALUE && !open_and_release(file));
    CloseHandle(held);
    held = CreateFileW(wide, GENERIC_READ, 0, NULL, OPEN_EXISTING, 0, NULL);
    CHECK(held != INVALID_HANDLE_VALUE && open_and_release(file) == LNRNN_CANNOT_READ && *message);
    CloseHandle(held);
    CHECK(!open_and_release(file));
}

static void test_names(void)
{
    static const char *const none[] = {"", "missing", "a<b>", "Q:\\none", "\xff\xfe", "missing\\m"};
    for (size_t k = 0; k < sizeof none / sizeof *none; k++)
        CHECK(open_and_release(none[k]) == LNRNN_NO_FILE && *message);
    static const char *const others[] = {".", "NUL", "C:\\"};
    for (size_t k = 0; k < sizeof others / sizeof *others; k++)
        CHECK(open_and_release(others[k]) == LNRNN_INVALID && strstr(message, "not a regular file"));
    char *const endless = calloc(1 << 17, 1);
    CHECK(endless);
    memset(endless, 'a', (1 << 17) - 1);
    CHECK(open_and_release(endless) == LNRNN_NO_FILE);
    free(endless);
}

int main(int count, char **arguments)
{
    CHECK(count == 2);
    test_threads(arguments[1]);
    test_names();
    test_held_files(arguments[1]);
    test_long_paths(arguments[1]);
    test_cores();
    puts("passed");
    return 0;
}
