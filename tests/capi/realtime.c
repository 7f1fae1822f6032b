/* Counts allocations and system calls of a stream's steps in C. tests/capi/test_c_realtime.py preloads this library,
 * so that its malloc replaces the malloc of the process. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

typedef int (*step_function)(void *stream, const int64_t *lanes, const float *x, float *y);
typedef int (*reset_function)(void *stream, const int64_t *lanes, size_t n);
typedef void (*norm_function)(int dtype, size_t rows, size_t n, const void *x, ptrdiff_t xs, const void *gain,
                              const void *bias, double eps, void *y, ptrdiff_t ys, int centred, int threads);
typedef void (*map_function)(int function, size_t n, const float *x, float *y, int threads);

/* Arguments of steps: x (steps, rows, D) -> y (steps, rows, H), for the lanes `lanes` (NULL: the first lanes). */
typedef struct {
    step_function step;
    reset_function reset; /* called before the first step, unless NULL */
    norm_function norm;   /* unless NULL, norm and then map change the output of each step in place */
    map_function map;
    void *stream;
    const int64_t *lanes;
    const float *x;
    float *y;
    size_t steps, rows, of_x, of_y; /* of_x: rows * D; of_y: rows * H */
    int wrong;                      /* an error code, or 0 */
    int ended;
} run;

/* --- allocations ------------------------------------------------------------------------------------ */

static __thread long counted __attribute__((tls_model("initial-exec")));
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *block);

void *malloc(size_t size)
{
    counted++;
    return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    counted++;
    return __libc_calloc(n, size);
}

void *realloc(void *block, size_t size)
{
    counted++;
    return __libc_realloc(block, size);
}

void *memalign(size_t alignment, size_t size)
{
    counted++;
    return __libc_memalign(alignment, size);
}

/* C11 demands a multiple of the alignment, and sanitizers check it. */
void *aligned_alloc(size_t alignment, size_t size)
{
    return size % alignment ? NULL : memalign(alignment, size);
}

int posix_memalign(void **block, size_t alignment, size_t size)
{
    *block = memalign(alignment, size);
    return *block ? 0 : 12;
}

void free(void *block)
{
    counted++;
    __libc_free(block);
}

/* --- steps ------------------------------------------------------------------------------------------ */

void take_steps(run *r)
{
    if (r->reset)
        r->wrong = r->reset(r->stream, r->lanes, r->rows);
    for (size_t t = 0; t < r->steps && !r->wrong; t++) {
        float *const y = r->y + t * r->of_y;
        const size_t n = r->of_y / r->rows;
        r->wrong = r->step(r->stream, r->lanes, r->x + t * r->of_x, y);
        if (r->norm) {
            r->norm(0, r->rows, n, y, (ptrdiff_t)n, NULL, NULL, 1e-5, y, (ptrdiff_t)n, 1, 1);
            r->map(1, r->of_y, y, y, 1);
        }
    }
}

/* Returns how often the steps allocated or freed memory. */
long allocations(run *r)
{
    const long before = counted;
    take_steps(r);
    return counted - before;
}

static int sorting(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* Tests the counter: returns its number for one malloc, one free, and qsort of a large array. */
long control_allocations(void)
{
    static int large[1 << 12];
    const long before = counted;
    void *volatile block = malloc(10);
    free(block);
    qsort(large, 1 << 12, sizeof *large, sorting);
    return counted - before;
}

/* Runs steps in a thread that Linux ends at any system call except read, write and exit. */
static void *confined(void *argument)
{
    run *r = argument;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0) {
        if (r->step)
            take_steps(r);
        else
            syscall(SYS_getppid); /* tests that Linux ends the thread */
        r->ended = 1;
    } else
        r->ended = -1;
    syscall(SYS_exit, 0); /* ends the thread; pthread_exit would make other system calls */
    return NULL;
}

/* Returns 1 if the steps are done, 0 if Linux has ended the thread, -1 if this system cannot confine threads. */
int confined_steps(run *r)
{
    pthread_t thread;
    r->ended = 0;
    if (pthread_create(&thread, NULL, confined, r))
        return -1;
    pthread_join(thread, NULL);
    return r->ended;
}
