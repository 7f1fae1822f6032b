/* Tests of liblnrnn without Python. Usage: library [--isa NAME] [FILE of a saved network ...]. At its end it prints
 * "passed", and with --isa a hash of the outputs of networks. */
#include <lnrnn.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <windows.h>
#endif

#define CHECK(right)                                                                 \
    do {                                                                             \
        if (!(right)) {                                                              \
            printf("%s:%d: %s; message: %s\n", __FILE__, __LINE__, #right, message); \
            exit(1);                                                                 \
        }                                                                            \
    } while (0)

static char message[LNRNN_MESSAGE];

/* --- networks of random numbers ------------------------------------------------------------------------- */

static uint32_t state = 1;

/* Returns a random number in [low, low + 1). */
static double draw(double low)
{
    state = state * 1664525u + 1013904223u;
    return low + (state >> 8) / 16777216.0;
}

/* Returns valid random values for an array: floats in [-0.5, 0.5), variances in [0.5, 1.5), and counts that are 4. */
static void *values_of(const lnrnn_array *array)
{
    size_t n = 1;
    for (size_t k = 0; k < array->ndim; k++)
        n *= array->shape[k];
    void *const data = malloc(n * 8);
    for (size_t k = 0; k < n; k++)
        if (array->dtype == LNRNN_ARRAY_F32)
            ((float *)data)[k] = (float)draw(-0.5);
        else if (array->dtype == LNRNN_ARRAY_F64)
            ((double *)data)[k] = draw(0.5);
        else
            ((int64_t *)data)[k] = 4;
    return data;
}

typedef struct {
    lnrnn_description description;
    lnrnn_array *arrays;
    char (*names)[LNRNN_ARRAY_NAME];
    size_t count;
} parameters;

static parameters draw_parameters(const lnrnn_description *d)
{
    parameters p = {.description = *d};
    CHECK(!lnrnn_description_resolve(&p.description, message));
    p.count = lnrnn_description_arrays(&p.description);
    p.arrays = calloc(p.count, sizeof *p.arrays);
    p.names = calloc(p.count, sizeof *p.names);
    for (size_t k = 0; k < p.count; k++) {
        p.arrays[k] = lnrnn_description_array(&p.description, k, p.names[k]);
        p.arrays[k].data = values_of(&p.arrays[k]);
    }
    return p;
}

static void free_parameters(parameters *p)
{
    for (size_t k = 0; k < p->count; k++)
        free((void *)p->arrays[k].data);
    free(p->arrays);
    free(p->names);
}

static lnrnn_network *network_of(const lnrnn_description *d)
{
    lnrnn_network *network;
    parameters p = draw_parameters(d);
    CHECK(!lnrnn_network_create(&p.description, p.arrays, p.count, &network, message));
    free_parameters(&p); /* the network has copies of the arrays */
    return network;
}

static float *floats(size_t n)
{
    float *const x = malloc((n + 1) * sizeof *x);
    for (size_t k = 0; k < n; k++)
        x[k] = (float)draw(-0.5);
    return x;
}

static uint64_t bits = 14695981039346656037u; /* FNV-1a */

static void hash(const float *x, size_t n)
{
    for (size_t k = 0; k < n * sizeof *x; k++)
        bits = (bits ^ ((const unsigned char *)x)[k]) * 1099511628211u;
}

/* --- calls ---------------------------------------------------------------------------------------------- */

enum { T = 4, B = 5 };

/* Asserts that steps of a stream, one lane after the other or all together, have the bits of whole sequences. */
static void compare_stream(lnrnn_network *n)
{
    const size_t D = lnrnn_network_inputs(n), layers = lnrnn_network_layers(n),
                 states = lnrnn_network_state_size(n, 1) ? 2 : 1;
    const size_t P = lnrnn_network_state_size(n, 0), C = lnrnn_network_state_size(n, 1);
    float *const x = floats(T * B * D), *const y = floats(T * B * P), *const one = floats(B * P);
    float *const h = floats(layers * B * P), *const c = floats(layers * B * C);
    const int64_t order[B] = {3, 1, 4, 0, 2};
    lnrnn_stream *stream;
    lnrnn_handle *single, *all;
    lnrnn_sequences call = {
        .steps = T, .sequences = B, .x = x, .y = y, .hn = h, .cn = states == 2 ? c : NULL};
    CHECK(!lnrnn_network_run(n, &call, NULL, message));
    hash(y, T * B * P);
    CHECK(!lnrnn_stream_create(n, B, &stream, message));
    CHECK(!lnrnn_handle_create(stream, B, 2, &all, message));
    for (size_t t = 0; t < T; t++) {
        CHECK(!lnrnn_handle_step(all, NULL, x + t * B * D, one));
        CHECK(!memcmp(one, y + t * B * P, B * P * sizeof *one));
    }
    for (size_t k = 0; k < layers; k++) {
        CHECK(!memcmp(lnrnn_stream_state(stream, k, 0), h + k * B * P, B * P * sizeof *h));
        CHECK(states == 1 || !memcmp(lnrnn_stream_state(stream, k, 1), c + k * B * C, B * C * sizeof *c));
    }
    if (!lnrnn_handle_create(stream, 1, 1, &single, message)) { /* this fails with overrun "batch" */
        CHECK(!lnrnn_handle_reset(single, order, B));
        for (size_t t = 0; t < T; t++)
            for (size_t i = 0; i < B; i++) {
                CHECK(!lnrnn_handle_step(single, &order[i], x + (t * B + (size_t)order[i]) * D, one));
                CHECK(!memcmp(one, y + (t * B + (size_t)order[i]) * P, P * sizeof *one));
            }
        lnrnn_handle_free(single);
    }
    lnrnn_stream_release(stream); /* its handles keep the stream */
    CHECK(!lnrnn_handle_reset(all, NULL, B) && !lnrnn_handle_step(all, NULL, x, one));
    CHECK(!memcmp(one, y, B * P * sizeof *one));
    lnrnn_handle_free(all);
    free(x), free(y), free(one), free(h), free(c);
}

/* Asserts that a reset begins a new sequence, and that outputs past a sequence's length are 0. */
static void compare_resets(lnrnn_network *n)
{
    const size_t D = lnrnn_network_inputs(n),
                 H = lnrnn_network_state_size(n, 0) * lnrnn_network_directions(n);
    float *const x = floats(T * D), *const y = floats(T * H), *const other = floats(T * H);
    const unsigned char resets[T] = {0, 0, 1, 1};
    const int64_t whole = 3, parts[2] = {2, 1};
    lnrnn_sequences call = {.steps = T, .sequences = 1, .x = x, .y = y, .lengths = &whole, .resets = resets};
    CHECK(!lnrnn_network_run(n, &call, NULL, message));
    call =
        (lnrnn_sequences){.steps = 2, .sequences = 2, .batch_first = 1, .x = x, .y = other, .lengths = parts};
    CHECK(!lnrnn_network_run(n, &call, NULL, message));
    CHECK(!memcmp(y, other, 3 * H * sizeof *y));
    for (size_t k = 0; k < H; k++)
        CHECK(y[3 * H + k] == 0);
    hash(y, T * H);
    free(x), free(y), free(other);
}

static void test_networks_of(int cell, size_t proj_size, size_t num_heads)
{
    const int slstm = cell == LNRNN_SLSTM;
    for (int norm = LNRNN_NORM_NONE; norm <= (slstm ? LNRNN_NORM_LAYER : LNRNN_NORM_BATCH); norm++)
        for (int weights = LNRNN_WEIGHT_F32; weights <= LNRNN_WEIGHT_I8A8; weights++)
            for (int overrun = 0; overrun < (norm == LNRNN_NORM_BATCH ? LNRNN_OVERRUNS : 1); overrun++) {
                lnrnn_description d = lnrnn_describe(cell, 3, 21);
                d.norm = norm, d.weights = weights, d.overrun = overrun, d.num_layers = 2, d.max_steps = 4;
                d.steps = 4, d.proj_size = proj_size, d.num_heads = num_heads;
                d.peepholes = cell == LNRNN_LSTM && weights == LNRNN_WEIGHT_I8;
                if (slstm)
                    d.bfloat16_states = weights == LNRNN_WEIGHT_BF16;
                else
                    d.inner_bias = 1, d.zoneout[0] = 0.25;
                lnrnn_network *n = network_of(&d);
                compare_stream(n);
                if (overrun != LNRNN_OVERRUN_BATCH)
                    compare_resets(n);
                lnrnn_network_release(n);
                d.bidirectional = 1;
                n = network_of(&d);
                if (overrun != LNRNN_OVERRUN_BATCH)
                    compare_resets(n);
                lnrnn_network_release(n);
            }
}

static void test_networks(void)
{
    for (int cell = 0; cell < LNRNN_CELLS; cell++)
        test_networks_of(cell, 0, 1);
    test_networks_of(LNRNN_LSTM, 7, 1);
    test_networks_of(LNRNN_GRU, 0, 3);
    test_networks_of(LNRNN_LSTM, 0, 7);
    test_networks_of(LNRNN_SLSTM, 0, 7);
}

/* --- wrong arguments ------------------------------------------------------------------------------------ */

static void test_wrong_arguments(void)
{
    const lnrnn_description d = lnrnn_describe(LNRNN_LSTM, 3, 4);
    parameters p = draw_parameters(&d);
    lnrnn_network *n = (lnrnn_network *)&p;
    CHECK(lnrnn_network_create(&d, p.arrays, p.count - 1, &n, message) == LNRNN_INVALID && !n);
    CHECK(lnrnn_network_create(&d, p.arrays, p.count - 1, &n, NULL) == LNRNN_INVALID);
    CHECK(lnrnn_network_create(&d, NULL, 0, &n, message) == LNRNN_INVALID);
    for (size_t k = 0; k < p.count; k++) {
        const lnrnn_array right = p.arrays[k];
        p.arrays[k].shape[0]++;
        CHECK(lnrnn_network_create(&d, p.arrays, p.count, &n, message) == LNRNN_INVALID);
        CHECK(strstr(message, right.name));
        p.arrays[k] = right, p.arrays[k].dtype = 99;
        CHECK(lnrnn_network_create(&d, p.arrays, p.count, &n, message) == LNRNN_INVALID);
        p.arrays[k] = right, p.arrays[k].ndim = (size_t)-1;
        CHECK(lnrnn_network_create(&d, p.arrays, p.count, &n, message) == LNRNN_INVALID);
        p.arrays[k] = right, p.arrays[k].data = NULL;
        CHECK(lnrnn_network_create(&d, p.arrays, p.count, &n, message) == LNRNN_INVALID);
        p.arrays[k] = right, p.arrays[k].name = NULL;
        CHECK(lnrnn_network_create(&d, p.arrays, p.count, &n, message) == LNRNN_INVALID);
        p.arrays[k].name = p.arrays[k ? 0 : 1].name;
        CHECK(lnrnn_network_create(&d, p.arrays, p.count, &n, message) == LNRNN_INVALID);
        p.arrays[k] = right;
    }
    free_parameters(&p);
    CHECK(lnrnn_network_open("/no/such/file", &n, message) == LNRNN_NO_FILE && !n);
    CHECK(!lnrnn_network_retain(NULL));
    lnrnn_network_release(NULL);
    lnrnn_stream_release(NULL);
    lnrnn_handle_free(NULL);
}

/* Shapes too large for memory are refused, even if no step is computed. */
static void test_shapes_beyond_memory(void)
{
    static const size_t shapes[][2] = {{SIZE_MAX, 1},
                                       {1, SIZE_MAX},
                                       {0, SIZE_MAX},
                                       {SIZE_MAX / 2 + 1, 1},
                                       {(size_t)1 << 4 * sizeof(size_t), (size_t)1 << 4 * sizeof(size_t)},
                                       {SIZE_MAX / 4 + 1, 1},
                                       {SIZE_MAX / 256 + 1, 1}};
    lnrnn_description d = lnrnn_describe(LNRNN_LSTM, 3, 7);
    const int64_t lengths[1] = {0};
    float x[3] = {0}, y[7] = {0};
    d.num_layers = 2;
    lnrnn_network *const n = network_of(&d);
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const lnrnn_sequences call = {
            .steps = shapes[k][0], .sequences = shapes[k][1], .x = x, .y = y, .lengths = lengths};
        CHECK(lnrnn_network_run(n, &call, NULL, message) == LNRNN_INVALID
              && strstr(message, "must fit into memory"));
    }
    const lnrnn_sequences none = {.steps = SIZE_MAX}; /* allowed, because there are no sequences */
    CHECK(!lnrnn_network_run(n, &none, NULL, message));
    lnrnn_network_release(n);
}

static void test_streams(void)
{
    lnrnn_description d = lnrnn_describe(LNRNN_GRU, 3, 4);
    lnrnn_stream *s;
    lnrnn_handle *h;
    float x[2 * 3] = {0.5f}, y[2 * 4] = {0};
    d.norm = LNRNN_NORM_BATCH, d.max_steps = 2;
    lnrnn_network *n = network_of(&d);
    CHECK(lnrnn_stream_create(n, 0, &s, message) == LNRNN_INVALID && !s);
    CHECK(lnrnn_stream_create(n, (size_t)-1, &s, message) == LNRNN_INVALID);
    CHECK(!lnrnn_stream_create(n, 3, &s, message));
    lnrnn_network_release(n); /* the stream keeps the network */
    CHECK(lnrnn_stream_network(s) == n && lnrnn_stream_lanes(s) == 3);
    CHECK(lnrnn_handle_create(s, 0, 1, &h, message) == LNRNN_INVALID && !h);
    CHECK(lnrnn_handle_create(s, 4, 1, &h, message) == LNRNN_INVALID);
    CHECK(lnrnn_handle_create(s, 2, 0, &h, message) == LNRNN_INVALID);
    CHECK(lnrnn_handle_create(s, 2, 1025, &h, message) == LNRNN_INVALID);
    CHECK(!lnrnn_handle_create(s, 2, 1, &h, message));
    CHECK(lnrnn_handle_stream(h) == s && lnrnn_handle_rows(h) == 2);
    const int64_t twice[] = {1, 1}, none[] = {0, 3}, negative[] = {-1, 0}, right[] = {2, 0};
    CHECK(lnrnn_handle_step(h, twice, x, y) == LNRNN_STREAM_TWICE);
    CHECK(lnrnn_handle_step(h, none, x, y) == LNRNN_STREAM_NO_LANE);
    CHECK(lnrnn_handle_step(h, negative, x, y) == LNRNN_STREAM_NO_LANE);
    CHECK(lnrnn_handle_reset(h, twice, 2) == LNRNN_STREAM_TWICE);
    CHECK(lnrnn_handle_reset(h, NULL, 4) == LNRNN_STREAM_NO_LANE);
    CHECK(!y[0] && !lnrnn_stream_steps(s)[0]);
    CHECK(!lnrnn_handle_step(h, right, x, y) && !lnrnn_handle_step(h, right, x, y));
    CHECK(lnrnn_handle_step(h, right, x, y) == LNRNN_STREAM_OVERRUN && lnrnn_stream_steps(s)[2] == 2);
    lnrnn_stream_steps(s)[2] = -1;
    CHECK(lnrnn_handle_step(h, right, x, y) == LNRNN_STREAM_OVERRUN);
    CHECK(!lnrnn_handle_reset(h, right, 2) && !lnrnn_handle_step(h, right, x, y));
    CHECK(!lnrnn_stream_state(s, 1, 0) && !lnrnn_stream_state(s, 0, 1));
    lnrnn_handle_free(h);
    lnrnn_stream_release(s);

    d.overrun = LNRNN_OVERRUN_BATCH;
    n = network_of(&d);
    CHECK(!lnrnn_stream_create(n, 2, &s, message));
    CHECK(lnrnn_handle_create(s, 1, 1, &h, message) == LNRNN_INVALID);
    CHECK(!lnrnn_handle_create(s, 2, 1, &h, message));
    CHECK(lnrnn_handle_step(h, right, x, y) == LNRNN_STREAM_TOGETHER);
    CHECK(lnrnn_handle_reset(h, NULL, 1) == LNRNN_STREAM_TOGETHER);
    CHECK(!lnrnn_handle_step(h, NULL, x, y));
    lnrnn_stream_steps(s)[0] = 7;
    CHECK(lnrnn_handle_step(h, NULL, x, y) == LNRNN_STREAM_TOGETHER);
    lnrnn_handle_free(h);
    lnrnn_stream_release(s);
    for (int reverse = 0; reverse < 2; reverse++) {
        d.bidirectional = !reverse, d.reverse = reverse;
        lnrnn_network *const back = network_of(&d);
        CHECK(lnrnn_stream_create(back, 1, &s, message) == LNRNN_INVALID);
        lnrnn_network_release(back);
    }
    d.bidirectional = 1;
    CHECK(lnrnn_description_resolve(&d, message) == LNRNN_INVALID);
    d = lnrnn_describe(LNRNN_LSTM, 3, 4), d.reset_after = 0;
    CHECK(lnrnn_description_resolve(&d, message) == LNRNN_INVALID);
    for (int placement = LNRNN_JOINT; placement < LNRNN_PLACEMENTS; placement++)
        for (int span = LNRNN_SPAN_PAPER; span <= (placement == LNRNN_SPLIT); span++) {
            d = lnrnn_describe(LNRNN_GRU, 3, 4), d.placement = placement, d.span = span, d.reset_after = 0;
            CHECK(!lnrnn_description_resolve(&d, message) == (placement == LNRNN_SPLIT && !span));
        }
    lnrnn_network_release(n);
}

/* --- threads -------------------------------------------------------------------------------------------- */

enum { STEPS = 200, THREADS = 4 };

typedef struct {
    lnrnn_handle *handle;
    int64_t lane;
    float y[STEPS * 40];
    int busy;
} stepping;

static void *step_lane(void *argument)
{
    stepping *const s = argument;
    const float x[3] = {0.5f, -1, 2};
    for (size_t t = 0; t < STEPS; t++) {
        const lnrnn_status status = lnrnn_handle_step(s->handle, &s->lane, x, s->y + 40 * t);
        s->busy += status == LNRNN_STREAM_BUSY;
        if (status && status != LNRNN_STREAM_BUSY)
            exit(1);
    }
    return NULL;
}

/* Threads with their own handles step lanes of one stream. Threads that share a handle get LNRNN_STREAM_BUSY. */
static void test_threads(void)
{
    const lnrnn_description d = lnrnn_describe(LNRNN_LSTM, 3, 40);
    lnrnn_network *const n = network_of(&d);
    static stepping job[THREADS];
    pthread_t thread[THREADS];
    for (int shared = 0; shared < 2; shared++) {
        lnrnn_stream *s;
        CHECK(!lnrnn_stream_create(n, THREADS, &s, message));
        for (int k = 0; k < THREADS; k++) {
            job[k].lane = k, job[k].busy = 0;
            if (shared && k)
                job[k].handle = job[0].handle;
            else
                CHECK(!lnrnn_handle_create(s, 1, 1, &job[k].handle, message));
        }
        int started = 0;
        while (started < THREADS && !pthread_create(&thread[started], NULL, step_lane, &job[started]))
            started++;
        for (int k = started; k < THREADS; k++) /* WebAssembly has no threads */
            step_lane(&job[k]);
        for (int k = 0; k < started; k++)
            pthread_join(thread[k], NULL);
        for (int k = 0; k < THREADS; k++) {
            CHECK(lnrnn_stream_steps(s)[k] == STEPS - job[k].busy);
            CHECK(shared || (!job[k].busy && !memcmp(job[k].y, job[0].y, sizeof job[k].y)));
            if (!shared || !k)
                lnrnn_handle_free(job[k].handle);
        }
        lnrnn_stream_release(s);
    }
    lnrnn_network_release(n);
}

/* --- files ---------------------------------------------------------------------------------------------- */

static void test_file(const char *path)
{
    lnrnn_network *n;
    CHECK(!lnrnn_network_open(path, &n, message));
    if (lnrnn_network_directions(n) == 1)
        compare_stream(n);
    lnrnn_network_release(n);
}

/* A copy of the file has a name with a space and an umlaut, which is UTF-8 on every system. */
static void test_names(const char *path)
{
    static const char NAME[] = "mein B\xc3\xbcro.safetensors";
    static char text[1 << 20];
    lnrnn_network *n;
    FILE *from = fopen(path, "rb");
    CHECK(from);
    const size_t length = fread(text, 1, sizeof text, from);
    fclose(from);
#ifdef _WIN32
    FILE *to = _wfopen(L"mein B\u00fcro.safetensors", L"wb");
#else
    FILE *to = fopen(NAME, "wb");
#endif
    CHECK(to && fwrite(text, 1, length, to) == length);
    fclose(to);
    CHECK(!lnrnn_network_open(NAME, &n, message));
    lnrnn_network_release(n);
    CHECK(lnrnn_network_open(".", &n, message) == LNRNN_INVALID && strstr(message, "not a regular file"));
    CHECK(lnrnn_network_open("\xff\xfe", &n, message) == LNRNN_NO_FILE);
#ifdef _WIN32
    HANDLE held = CreateFileW(L"mein B\u00fcro.safetensors", GENERIC_READ, 0, NULL, OPEN_EXISTING, 0, NULL);
    CHECK(held != INVALID_HANDLE_VALUE);
    CHECK(lnrnn_network_open(NAME, &n, message) == LNRNN_CANNOT_READ && *message);
    CloseHandle(held);
    CHECK(DeleteFileW(L"mein B\u00fcro.safetensors")); /* the library has closed the file */
#else
    CHECK(!remove(NAME));
#endif
}

int main(int count, char **arguments)
{
    const char *names[LNRNN_ISAS];
    const int chosen = count > 2 && !strcmp(arguments[1], "--isa");
    CHECK(lnrnn_isa_list(names) && !strcmp(names[0], lnrnn_isa_name()) && lnrnn_isa_use("none") == -1);
    CHECK(lnrnn_cores() >= 1);
    if (chosen)
        CHECK(!lnrnn_isa_use(arguments[2]));
    lnrnn_set_num_threads(3);
    CHECK(lnrnn_get_num_threads() == 3);
    test_networks();
    test_wrong_arguments();
    test_shapes_beyond_memory();
    test_streams();
    test_threads();
    for (int k = chosen ? 3 : 1; k < count; k++)
        test_file(arguments[k]);
    if (count > (chosen ? 3 : 1))
        test_names(arguments[count - 1]);
    if (chosen)
        printf("%s %016llx ", arguments[2], (unsigned long long)bits);
    puts("passed");
    return 0;
}
