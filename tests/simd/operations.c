/* A program that runs operations of lnrnn/simd/simd.h, requested by name, for one instruction set, which is defined
 * at compilation (-DLNRNN_ISA_AVX2). tests/support/simd_units.py builds it and sends requests.
 *
 * First the program writes the numbers of lanes of its vectors, then a line for each operation, then an empty line. The line of an
 * operation has the name, the size of the result in bytes, and the size of each operand ("n4": n times 4). A request is a line
 *
 *     NAME COUNT N PLACE
 *
 * and the bytes of COUNT first operands, then the bytes of COUNT second operands, and so on. The answer is the line "ok"
 * and the bytes of COUNT results, or a line with an error. N is the n of load_n, store_n and keep_n. Each operand, and the
 * result, has a page of its own between two pages that may be neither read nor written. An operand is PLACE bytes from the
 * start of its page, or for PLACE -1 at the end of the page. The bytes around the result must keep their values.
 *
 * memcpy copies vectors from and to bytes, so that the test of one operation needs no other one. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#include <windows.h>
#elif !defined(__wasm__)
#include <sys/mman.h>
#endif

#include "lnrnn/simd/simd.h"

/* PAGE: a multiple of the page size of every system */
enum { FILLER = 0xa5, AROUND = 128, MOST_OPERANDS = 4, PAGE = 64 << 10 };
#define PER_N ((size_t)1 << 16) /* a size with this bit must be multiplied by n */

#define VECTOR_OF(T)               \
    static T T##_of(const char *p) \
    {                              \
        T v;                       \
        memcpy(&v, p, sizeof v);   \
        return v;                  \
    }
VECTOR_OF(v32)
VECTOR_OF(v64)
VECTOR_OF(v16)
VECTOR_OF(vi32)

static void prefetch_anywhere(const char *p)
{
    v32_prefetch((const float *)p);
    v32_prefetch((const float *)(p + PAGE)); /* an address that may not be read */
    v32_prefetch(NULL);
    v32_prefetch_l2((const float *)p);
    v32_prefetch_l2((const float *)(p + PAGE));
    v32_prefetch_l2(NULL);
}

static void loaded(const char *p, char *out)
{
    v32 v = v32_of(p);
    LNRNN_LOADED(v);
    memcpy(out, &v, sizeof v);
}

static void bf16_pair(const char *p, char *out)
{
    v32 odd, even = v32_bf16_pair((const uint32_t *)p, &odd);
    memcpy(out, &even, sizeof even);
    memcpy(out + sizeof even, &odd, sizeof odd);
}

static void set4(const char *p, char *out)
{
    v32 v[4];
    v32_set4((const float *)p, v);
    memcpy(out, v, sizeof v);
}

#define V32 (V32_LANES * sizeof(float))
#define V64 (V64_LANES * sizeof(double))
#define V16 (V32_LANES * sizeof(uint16_t))

#define RESULT(value)                   \
    do {                                \
        __typeof__(value) r_ = (value); \
        memcpy(out, &r_, sizeof r_);    \
    } while (0)

/* OPERATION(name, bytes of the result, code that uses in[0], in[1], out and n, bytes of each operand). */
#define MEMORY(T, S, SIZE)                                                                   \
    OPERATION(T##_load, SIZE, RESULT(T##_load((const S *)in[0])), SIZE)                      \
    OPERATION(T##_load_n, SIZE, RESULT(T##_load_n((const S *)in[0], n)), PER_N | sizeof(S))  \
    OPERATION(T##_store, SIZE, T##_store((S *)out, T##_of(in[0])), SIZE)                     \
    OPERATION(T##_store_n, PER_N | sizeof(S), T##_store_n((S *)out, T##_of(in[0]), n), SIZE) \
    OPERATION(T##_stream, SIZE, T##_stream((S *)out, T##_of(in[0])), SIZE)

#define BINARY(T, op, SIZE) \
    OPERATION(T##_##op, SIZE, RESULT(T##_##op(T##_of(in[0]), T##_of(in[1]))), SIZE, SIZE)

#define OPERATOR(T, name, op, SIZE) \
    OPERATION(T##_##name, SIZE, RESULT(T##_of(in[0]) op T##_of(in[1])), SIZE, SIZE)

#define BOTH(T, S, SIZE)                                                                                     \
    MEMORY(T, S, SIZE)                                                                                       \
    OPERATION(T##_zero, SIZE, RESULT(T##_zero()))                                                            \
    OPERATION(T##_set1, SIZE, RESULT(T##_set1(*(const S *)in[0])), sizeof(S))                                \
    OPERATION(T##_keep_n, SIZE, RESULT(T##_keep_n(T##_of(in[0]), n)), SIZE)                                  \
    OPERATOR(T, add, +, SIZE)                                                                                \
    OPERATOR(T, sub, -, SIZE)                                                                                \
    OPERATOR(T, mul, *, SIZE)                                                                                \
    OPERATOR(T, div, /, SIZE)                                                                                \
    OPERATION(T##_fma, SIZE, RESULT(T##_fma(T##_of(in[0]), T##_of(in[1]), T##_of(in[2]))), SIZE, SIZE, SIZE) \
    OPERATION(T##_sum, sizeof(S), RESULT(T##_sum(T##_of(in[0]))), SIZE)

#define SHORT_FLOATS(t)                                                                            \
    OPERATION(v32_from_##t, V32, RESULT(v32_from_##t(v16_of(in[0]))), V16)                         \
    OPERATION(v32_to_##t, V16, RESULT(v32_to_##t(v32_of(in[0]))), V32)                             \
    OPERATION(v32_load_##t, V32, RESULT(v32_load_##t((const uint16_t *)in[0])), V16)               \
    OPERATION(v32_load_n_##t, V32, RESULT(v32_load_n_##t((const uint16_t *)in[0], n)), PER_N | 2)  \
    OPERATION(v32_store_##t, V16, v32_store_##t((uint16_t *)out, v32_of(in[0])), V32)              \
    OPERATION(v32_store_n_##t, PER_N | 2, v32_store_n_##t((uint16_t *)out, v32_of(in[0]), n), V32) \
    OPERATION(v32_stream_##t, V16, v32_stream_##t((uint16_t *)out, v32_of(in[0])), V32)            \
    OPERATION(t##_to_float, 4, RESULT(t##_to_float(*(const uint16_t *)in[0])), 2)                  \
    OPERATION(float_to_##t, 2, RESULT(float_to_##t(*(const float *)in[0])), 4)

#define OPERATIONS                                                                                          \
    BOTH(v32, float, V32)                                                                                   \
    BOTH(v64, double, V64)                                                                                  \
    MEMORY(v16, uint16_t, V16)                                                                              \
    OPERATION(stream_end, 0, stream_end())                                                                  \
    OPERATION(v32_prefetch, 0, prefetch_anywhere(in[0]), V32)                                               \
    OPERATION(v32_prefetch_l2, 0, prefetch_anywhere(in[0]), V32)                                            \
    OPERATION(LNRNN_LOADED, V32, loaded(in[0], out), V32)                                                   \
    OPERATION(v32_sums, V32, RESULT(v32_sums((const v32 *)in[0])), (V32_LANES) * (V32))                     \
    OPERATION(v32_sqrt, V32, RESULT(v32_sqrt(v32_of(in[0]))), V32)                                          \
    BINARY(v32, min, V32)                                                                                   \
    BINARY(v32, max, V32)                                                                                   \
    OPERATION(v32_to_vi32, V32, RESULT(v32_to_vi32(v32_of(in[0]))), V32)                                    \
    OPERATION(v32_of_bits, V32, RESULT(v32_of_bits(vi32_of(in[0]))), V32)                                   \
    OPERATION(v32_round, V32, RESULT(v32_round(v32_of(in[0]))), V32)                                        \
    BINARY(v32, scale, V32)                                                                                 \
    OPERATION(v32_lookup16, V32, RESULT(v32_lookup16((const float *)in[1], v32_of(in[0]))), V32, 64)        \
    OPERATION(v32_abs, V32, RESULT(v32_abs(v32_of(in[0]))), V32)                                            \
    BINARY(v32, copysign, V32)                                                                              \
    OPERATION(v32_select_lt, V32,                                                                           \
              RESULT(v32_select_lt(v32_of(in[0]), v32_of(in[1]), v32_of(in[2]), v32_of(in[3]))), V32, V32,  \
              V32, V32)                                                                                     \
    SHORT_FLOATS(bf16)                                                                                      \
    SHORT_FLOATS(f16)                                                                                       \
    OPERATION(float_bits, 4, RESULT(float_bits(*(const float *)in[0])), 4)                                  \
    OPERATION(bits_float, 4, RESULT(bits_float(*(const uint32_t *)in[0])), 4)                               \
    OPERATION(v32_bf16_pair, 2 * V32, bf16_pair(in[0], out), V32)                                           \
    OPERATION(v32_set4, 4 * V32, set4(in[0], out), 4 * sizeof(float))                                       \
    BINARY(v32, larger, V32)                                                                                \
    OPERATION(v32_largest, 4, RESULT(v32_largest(v32_of(in[0]))), V32)                                      \
    OPERATION(v32_store_s14, 2 * V32_LANES,                                                                 \
              v32_store_s14((uint8_t *)out, (uint8_t *)out + V32_LANES, v32_of(in[0])), V32)                \
    OPERATION(v32_store_s8, V32_LANES, v32_store_s8((uint8_t *)out, v32_of(in[0])), V32)                    \
    OPERATION(v32_store4_s14, 8 * V32_LANES,                                                                \
              v32_store4_s14((uint8_t *)out, (uint8_t *)out + 4 * V32_LANES, (const v32 *)in[0]),           \
              (4) * (V32))                                                                                  \
    OPERATION(v32_store4_s8, 4 * V32_LANES, v32_store4_s8((uint8_t *)out, (const v32 *)in[0]), (4) * (V32)) \
    OPERATION(S8_OFFSET, 4, RESULT(S8_OFFSET))                                                              \
    OPERATION(vi32_load, V32, RESULT(vi32_load((const int32_t *)in[0])), V32)                               \
    OPERATION(vi32_store, V32, vi32_store((int32_t *)out, vi32_of(in[0])), V32)                             \
    OPERATION(vi32_zero, V32, RESULT(vi32_zero()))                                                          \
    OPERATION(vi32_dot4, V32,                                                                               \
              RESULT(vi32_dot4(vi32_of(in[0]), *(const uint32_t *)in[1], (const uint32_t *)in[2])), V32, 4, \
              V32)                                                                                          \
    OPERATION(vi32_dot4_s8, V32,                                                                            \
              RESULT(vi32_dot4_s8(vi32_of(in[0]), *(const uint32_t *)in[1], (const uint32_t *)in[2])), V32, \
              4, V32)                                                                                       \
    OPERATION(vi32_to_v32, V32, RESULT(vi32_to_v32(vi32_of(in[0]))), V32)

#define OPERATION(name, result, action, ...)                           \
    static void run_##name(const char *const *in, char *out, size_t n) \
    {                                                                  \
        (void)in, (void)out, (void)n;                                  \
        action;                                                        \
    }
OPERATIONS
#undef OPERATION

typedef struct {
    const char *name;
    void (*run)(const char *const *in, char *out, size_t n);
    size_t result, operands[MOST_OPERANDS];
} operation;

#define OPERATION(name_, result_, action, ...) \
    {.name = #name_, .run = run_##name_, .result = result_, .operands = {__VA_ARGS__}},
static const operation operations[] = {OPERATIONS};
#undef OPERATION

enum { HOW_MANY = sizeof operations / sizeof *operations };

static void print_size(size_t size) { printf(" %s%zu", size & PER_N ? "n" : "", size & ~PER_N); }

static size_t bytes_of(size_t size, size_t n) { return size & PER_N ? (size & ~PER_N) * n : size; }

/* Returns a page that may be read and written, between two that may not. WebAssembly cannot protect pages. */
static char *page_between_others(void)
{
#if defined(__wasm__)
    return (char *)calloc(3, PAGE) + PAGE;
#else
#if defined(_WIN32)
    char *const p = VirtualAlloc(NULL, 3 * PAGE, MEM_RESERVE, PAGE_NOACCESS);
    const int failed = !p || !VirtualAlloc(p + PAGE, PAGE, MEM_COMMIT, PAGE_READWRITE);
#else
    char *const p = mmap(NULL, 3 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const int failed = p == MAP_FAILED || mprotect(p + PAGE, PAGE, PROT_READ | PROT_WRITE);
#endif
    if (failed) {
        perror("pages");
        exit(1);
    }
    return p + PAGE;
#endif
}

/* Runs an operation `count` times. Returns NULL, or an error. */
static const char *run(const operation *op, size_t count, size_t n, long place, const char *data,
                       char *results)
{
    static char *pages[1 + MOST_OPERANDS];
    const size_t size = bytes_of(op->result, n);
    for (int k = 0; !pages[MOST_OPERANDS] && k <= MOST_OPERANDS; k++)
        pages[k] = page_between_others();
    char *const out = pages[0] + (place < 0 ? PAGE - size : (size_t)place), *const last = pages[0] + PAGE;
    char *const from = out - pages[0] > AROUND ? out - AROUND : pages[0];
    char *const to = last - (out + size) > AROUND ? out + size + AROUND : last;
    for (size_t i = 0; i < count; i++) {
        const char *in[MOST_OPERANDS], *operand = data;
        for (int k = 0; k < MOST_OPERANDS; k++) {
            const size_t bytes = bytes_of(op->operands[k], n);
            char *const p = pages[1 + k] + (place < 0 ? PAGE - bytes : (size_t)place);
            memcpy(p, operand + i * bytes, bytes);
            operand += count * bytes;
            in[k] = p;
        }
        memset(from, FILLER, (size_t)(to - from));
        op->run(in, out, n);
        stream_end();
        for (const char *p = from; p < to; p++)
            if (*(const unsigned char *)p != FILLER && (p < out || p >= out + size))
                return p < out ? "wrote before the result" : "wrote past the result";
        memcpy(results + i * size, out, size);
    }
    return NULL;
}

int main(void)
{
#if defined(_WIN32)
    _setmode(_fileno(stdin), _O_BINARY), _setmode(_fileno(stdout), _O_BINARY);
#endif
    printf("%d %d\n", V32_LANES, V64_LANES);
    for (const operation *op = operations; op < operations + HOW_MANY; op++) {
        printf("%s", op->name);
        print_size(op->result);
        for (int k = 0; k < MOST_OPERANDS && op->operands[k]; k++)
            print_size(op->operands[k]);
        printf("\n");
    }
    printf("\n");
    fflush(stdout);
    char name[32];
    size_t count, n;
    long place;
    while (scanf("%31s %zu %zu %ld", name, &count, &n, &place) == 4 && getchar() == '\n') {
        const operation *op = operations;
        while (op < operations + HOW_MANY && strcmp(op->name, name))
            op++;
        if (op == operations + HOW_MANY)
            return 1;
        size_t bytes = 0;
        for (int k = 0; k < MOST_OPERANDS; k++)
            bytes += count * bytes_of(op->operands[k], n);
        const size_t size = count * bytes_of(op->result, n);
        char *data = malloc(bytes + 1), *results = malloc(size + 1);
        if (!data || !results || fread(data, 1, bytes, stdin) != bytes)
            return 1;
        const char *wrong = run(op, count, n, place, data, results);
        puts(wrong ? wrong : "ok");
        if (!wrong)
            fwrite(results, 1, size, stdout);
        fflush(stdout);
        free(data);
        free(results);
    }
    return 0;
}
