/* Measures the peak rates of a machine: arithmetic and memory traffic.
 *
 * machine.py compiles this file with -O3 -march=native and calls it through ctypes. GCC's and Clang's vector extensions serve
 * AVX-512, AVX2 and NEON with one source. Only products of short types use intrinsics; without them their rate is 0. The last
 * function measures a stream of lnrnn (latency.py). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { FMA_F32, DOT_BF16, DOT_INT8, COPY, READ, READ_AHEAD };

/* Bytes of the widest vector of this target. */
#define WIDTH __BIGGEST_ALIGNMENT__
typedef float floats __attribute__((vector_size(WIDTH)));
typedef uint32_t words __attribute__((vector_size(WIDTH)));

/* Loops have independent chains of operations: an FMA takes 4 to 5 cycles, and two start in each cycle, so at least ten are needed. Twelve
 * leave enough of 16 registers for the operands. */
enum { CHAINS = 12, INNER = 2000, MAX_THREADS = 64, LINE = 64, AHEAD = 2048 };

typedef struct {
    int kind;
    char *to;
    const char *from;
    size_t bytes;
    long times;
    double seconds, work;
    pthread_barrier_t *start;
} job;

static volatile uint32_t sink; /* stores results, so that the compiler does not remove their computation */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* Hides the value of `a`, which stays in a register, so that the compiler does not change the loop. */
#if defined(__x86_64__)
#define OPAQUE(a) __asm__ volatile("" : "+v"(a))
#elif defined(__aarch64__)
#define OPAQUE(a) __asm__ volatile("" : "+w"(a))
#else
#define OPAQUE(a) __asm__ volatile("" : "+m"(a))
#endif

/* The chains are twelve variables, because an array would be on the stack. */
#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define BEGIN(c) chain chain##c = begin;
#define SAME(c)                \
    chain##c = STEP(chain##c); \
    OPAQUE(chain##c);
#define FOLD(c) total += chain##c;

/* Defines a function that runs STEP on all chains. It returns the number of operations; a multiply-add is two. */
#define PEAK(name, vector, scalars, first, left, right)  \
    static double name(long times)                       \
    {                                                    \
        typedef vector chain;                            \
        vector begin = first, total = begin;             \
        __typeof__(left) a = left;                       \
        __typeof__(right) b = right;                     \
        EACH(BEGIN)                                      \
        for (long n = 0; n < times * INNER; n++) {       \
            EACH(SAME)                                   \
        }                                                \
        EACH(FOLD)                                       \
        memcpy((void *)&sink, &total, sizeof sink);      \
        return 2.0 * CHAINS * (scalars) * INNER * times; \
    }

/* Defines the function for an instruction that this target lacks. */
#define ABSENT(name)               \
    static double name(long times) \
    {                              \
        (void)times;               \
        return 0;                  \
    }

/* chain = chain * a + b tends to 1, so chain is never subnormal or infinite. */
#define STEP(c) (c * a + b)
PEAK(fma_f32, floats, WIDTH / sizeof(float), (floats){0} + 2.0f, (floats){0} + 0.999f, (floats){0} + 0.001f)
#undef STEP

#if defined(__AVX512BF16__)
#define STEP(c) _mm512_dpbf16_ps(c, a, b)
PEAK(dot_bf16, __m512, 32, _mm512_set1_ps(2), (__m512bh)_mm512_set1_epi32(0x3c003c00),
     (__m512bh)_mm512_set1_epi32(0x10001000))
#undef STEP
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define STEP(c) vbfdotq_f32(c, a, b)
PEAK(dot_bf16, float32x4_t, 8, vdupq_n_f32(2), vreinterpretq_bf16_u32(vdupq_n_u32(0x3c003c00)),
     vreinterpretq_bf16_u32(vdupq_n_u32(0x10001000)))
#undef STEP
#else
ABSENT(dot_bf16)
#endif

#if defined(__AVX512VNNI__)
#define STEP(c) _mm512_dpbusd_epi32(c, a, b)
PEAK(dot_int8, __m512i, 64, _mm512_set1_epi32(2), _mm512_set1_epi32(0x01010101),
     _mm512_set1_epi32(0x01010101))
#undef STEP
#elif defined(__AVXVNNI__)
#define STEP(c) _mm256_dpbusd_avx_epi32(c, a, b)
PEAK(dot_int8, __m256i, 32, _mm256_set1_epi32(2), _mm256_set1_epi32(0x01010101),
     _mm256_set1_epi32(0x01010101))
#undef STEP
#elif defined( \
    __AVX2__) /* three instructions; `c` is a factor too, because a constant product would leave the loop */
#define STEP(c) _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_maddubs_epi16(c, b), a))
PEAK(dot_int8, __m256i, 32, _mm256_set1_epi32(2), _mm256_set1_epi16(1), _mm256_set1_epi32(0x01010101))
#undef STEP
#elif defined(__ARM_FEATURE_DOTPROD)
#define STEP(c) vdotq_s32(c, a, b)
PEAK(dot_int8, int32x4_t, 16, vdupq_n_s32(2), vdupq_n_s8(1), vdupq_n_s8(1))
#undef STEP
#else
ABSENT(dot_int8)
#endif

/* Reads every whole vector once. Prefetches `ahead` bytes ahead if that is not 0: faster from outside of L2, slower in L1. */
static inline __attribute__((always_inline)) void read_once(const char *from, size_t bytes, size_t ahead,
                                                            words sum[8])
{
    size_t i = 0;
    for (; i + 8 * WIDTH <= bytes; i += 8 * WIDTH) {
        if (ahead)
            for (size_t line = 0; line < 8 * WIDTH; line += LINE)
                __builtin_prefetch(from + i + ahead + line, 0, 3);
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++)
            sum[k] ^= *(const words *)(from + i + k * WIDTH);
    }
    for (; i + WIDTH <= bytes; i += WIDTH)
        sum[0] ^= *(const words *)(from + i);
}

static double read_all(const char *from, size_t bytes, long times, size_t ahead)
{
    words sum[8] = {{0}}, total = {0};
    for (long n = 0; n < times; n++) {
        if (ahead)
            read_once(from, bytes, AHEAD, sum);
        else
            read_once(from, bytes, 0, sum);
        __asm__ volatile("" ::: "memory");
    }
    for (int k = 0; k < 8; k++)
        total ^= sum[k];
    sink = total[0];
    return (double)bytes * times;
}

static double copy_all(char *to, const char *from, size_t bytes, long times)
{
    for (long n = 0; n < times; n++) {
        memcpy(to, from, bytes);
        __asm__ volatile("" ::: "memory");
    }
    return (double)bytes * times;
}

static void *work(void *argument)
{
    job *j = argument;
    pthread_barrier_wait(j->start);
    double start = now();
    switch (j->kind) {
    case FMA_F32: j->work = fma_f32(j->times); break;
    case DOT_BF16: j->work = dot_bf16(j->times); break;
    case DOT_INT8: j->work = dot_int8(j->times); break;
    case COPY: j->work = copy_all(j->to, j->from, j->bytes, j->times); break;
    case READ: j->work = read_all(j->from, j->bytes, j->times, 0); break;
    case READ_AHEAD: j->work = read_all(j->from, j->bytes, j->times, AHEAD); break;
    }
    j->seconds = now() - start;
    return NULL;
}

/* Runs the loop `kind` `times` times on each thread. A thread always has the same slice of the `bytes` at `from` (and `to`), so the
 * slice stays in its core's cache. *done: operations, or bytes read or copied, by all threads. Returns the seconds of the slowest
 * thread, or -1 if a thread cannot start. */
double machine_time(int kind, char *to, const char *from, size_t bytes, long times, int threads, double *done)
{
    pthread_t handle[MAX_THREADS];
    job jobs[MAX_THREADS];
    pthread_barrier_t start;
    if (threads < 1 || threads > MAX_THREADS)
        return -1;
    size_t slice = (bytes / threads + LINE - 1) / LINE * LINE;
    pthread_barrier_init(&start, NULL, threads);
    for (int t = 0; t < threads; t++) {
        size_t first = t * slice < bytes ? t * slice : bytes;
        size_t last = first + slice < bytes ? first + slice : bytes;
        jobs[t] = (job){kind,  to ? to + first : NULL, from ? from + first : NULL, last - first, times, 0, 0,
                        &start};
    }
    for (int t = 1; t < threads; t++)
        if (pthread_create(&handle[t], NULL, work, &jobs[t]))
            return -1; /* threads that have started wait at the barrier for ever */
    work(&jobs[0]);
    double seconds = jobs[0].seconds;
    *done = jobs[0].work;
    for (int t = 1; t < threads; t++) {
        pthread_join(handle[t], NULL);
        seconds = jobs[t].seconds > seconds ? jobs[t].seconds : seconds;
        *done += jobs[t].work;
    }
    pthread_barrier_destroy(&start);
    return seconds;
}

/* lnrnn_handle_step of lnrnn.h. */
typedef int handle_step(void *handle, const int64_t *lanes, const float *x, float *y);

static int64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Takes `steps` steps of one lane, with the rows of x (rows, inputs) in turn, and writes the ns of each to took (steps). Each time
 * includes one reading of the clock. step NULL: in place of a step, the loop counts to `turns`, without memory. Returns 0, or the
 * status of the first step that failed. */
int machine_steps(handle_step *step, void *handle, const float *x, size_t rows, size_t inputs, float *y,
                  long turns, size_t steps, int64_t *took)
{
    int64_t before = nanoseconds();
    for (size_t k = 0; k < steps; k++) {
        if (step) {
            const int wrong = step(handle, NULL, x + k % rows * inputs, y);
            if (wrong)
                return wrong;
        } else
            for (long n = 0; n < turns; n++)
                __asm__ volatile("" : "+r"(n));
        const int64_t after = nanoseconds();
        took[k] = after - before;
        before = after;
    }
    return 0;
}
