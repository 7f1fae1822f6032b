/* The execution provider. ONNX Runtime calls it to find nodes for lnrnn, and to create their kernels. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxruntime/plugin.h"

#define PROVIDER "LnrnnExecutionProvider"
/* The runtime stores an option under its name with this prefix. */
#define OPTION "ep.lnrnnexecutionprovider."

typedef struct {
    OrtEpFactory interface; /* must be first, because the runtime has a pointer to it */
    ort_functions ort;
    int minor; /* the runtime is version 1.minor */
    int users; /* references: of the runtime, and of sessions, which may live longer */
} factory;

static void factory_release(factory *f)
{
    if (!__atomic_sub_fetch(&f->users, 1, __ATOMIC_ACQ_REL))
        free(f);
}

/* --- advice --------------------------------------------------------------------------------------------- */

/* Counts recurrences in plain operators, for advice to convert the file. Only the types of operators count,
 * because the runtime computes these operators whether or not lnrnn can convert them. */

/* Bits for the kinds of operators. kinds_of does not follow the inputs of a product. */
enum { PRODUCT = 1, SIGMOID = 2, TANH = 4, SUM = 8, GATED = 16, LOOP = 32, NODE = 64, CONVOLUTION = 128 };
enum { CELL = PRODUCT | SIGMOID | TANH, NEAR = 4, FAR = 8, MOST_INPUTS_READ = 8 };
static const struct {
    const char *operator;
    int kind;
} KINDS[] = {{"MatMul", PRODUCT}, {"Gemm", PRODUCT},    {"Sigmoid", SIGMOID}, {"HardSigmoid", SIGMOID},
             {"Tanh", TANH},      {"Add", SUM},         {"Sub", SUM},         {"Mul", GATED},
             {"Loop", LOOP},      {"Scan", LOOP},       {"RNN", NODE},        {"LSTM", NODE},
             {"GRU", NODE},       {"Conv", CONVOLUTION}};

static int kind_of(const ort_functions *ort, const OrtNode *node)
{
    const char *operator = NULL;
    const int is_known = node && !runtime_failed(ort, ort->node_operator(node, &operator));
    for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS && is_known; k++)
        if (!strcmp(operator, KINDS[k].operator))
            return KINDS[k].kind;
    return 0;
}

/* Returns the kinds of a node and of the nodes that compute its inputs, at most `depth` nodes away. */
static int kinds_of(const ort_functions *ort, const OrtNode *node, int depth)
{
    const OrtValueInfo *in[MOST_INPUTS_READ] = {NULL};
    int kinds = kind_of(ort, node);
    size_t n = 0, output;
    if (!node || !depth || kinds & (PRODUCT | CONVOLUTION)
        || runtime_failed(ort, ort->node_input_count(node, &n)) || n > MOST_INPUTS_READ
        || runtime_failed(ort, ort->node_inputs(node, in, n)))
        return kinds;
    for (size_t k = 0; k < n; k++) {
        const OrtNode *of = NULL;
        if (*runtime_name(ort, in[k]) && !runtime_failed(ort, ort->value_producer(in[k], &of, &output)))
            kinds |= kinds_of(ort, of, depth - 1);
    }
    return kinds;
}

/* Returns 1 if a node adds a product with a sigmoid, as the new state of an LSTM or GRU does. */
static int is_state(const ort_functions *ort, const OrtNode *node)
{
    return kind_of(ort, node) & SUM && kinds_of(ort, node, 1) & GATED && kinds_of(ort, node, NEAR) & SIGMOID
           && (kinds_of(ort, node, FAR) & CELL) == CELL;
}

/* Counts loops and cells in plain operators, and logs once how to convert them. within: the node (Loop, Scan,
 * If) that contains the graph, or NULL for the main graph. */
static void advise(provider *p, const OrtNode *const *nodes, size_t count, const OrtNode *within)
{
    int kinds = 0;
    size_t states = 0;
    char text[REASON];
    for (size_t k = 0; k < count; k++) {
        p->is_converted |= call_is(p->ort, nodes[k]);
        kinds |= kind_of(p->ort, nodes[k]);
        states += (size_t)is_state(p->ort, nodes[k]);
    }
    if (kind_of(p->ort, within) & LOOP)
        states = kinds & PRODUCT && kinds & (SIGMOID | TANH) && !(kinds & NODE);
    p->recurrences += states;
    if (within)
        return;
    snprintf(text, sizeof text,
             "this file has %zu loops or cells that a conversion speeds up: lnrnn onnx FILE -o OUT",
             p->recurrences);
    if (p->recurrences && !p->is_converted && !p->is_advised)
        p->is_advised = !runtime_failed(
            p->ort, p->ort->log_message(p->logger, ORT_LOG_WARNING, text, "lnrnn", 0, "advice"));
    p->recurrences = 0;
}

/* --- claims --------------------------------------------------------------------------------------------- */

static uint64_t hash_of(const char *text)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}

/* Logs a text, but only once in a session: the runtime asks for claims more than once. */
static void say_once(provider *p, const char *text)
{
    const uint64_t hash = hash_of(text);
    for (size_t i = 0; i < p->said_count; i++)
        if (p->said[i] == hash)
            return;
    uint64_t *const more = realloc(p->said, (p->said_count + 1) * sizeof *more);
    if (!more)
        return;
    p->said = more, p->said[p->said_count++] = hash;
    runtime_failed(p->ort, p->ort->log_message(p->logger, p->severity, text, "lnrnn", 0, "claims"));
}

void provider_leave(provider *p, const OrtNode *node, const char *reason)
{
    const char *name = NULL, *operator = NULL;
    char text[REASON + 256];
    if (node
        && (runtime_failed(p->ort, p->ort->node_name(node, &name))
            || runtime_failed(p->ort, p->ort->node_operator(node, &operator))))
        return;
    snprintf(text, sizeof text, "lnrnn leaves node '%.200s' (%.40s) to the runtime: %s", name ? name : "",
             operator ? operator : "of any", reason);
    say_once(p, text);
}

/* Claims a node, or logs why it is left to the runtime. within: the node (Loop, Scan, If) that contains the
 * node's graph, or NULL. */
static OrtStatus *claim(provider *p, const OrtNode *node, const OrtNode *within,
                        OrtEpGraphSupportInfo *claims)
{
    static const OrtNodeFusionOptions options = {.version = ORT_VERSION, .drop_constants = true};
    kernel *k = NULL;
    char reason[REASON];
    const int may_claim = !within || p->minor >= ORT_VERSION_SUBGRAPHS;
    if (!may_claim)
        runtime_refuse(reason, "nodes within If, Loop and Scan need ONNX Runtime 1.%d or later",
                       ORT_VERSION_SUBGRAPHS);
    else
        k = call_is(p->ort, node) ? call_kernel(p, node, reason) : node_kernel(p, node, reason);
    /* Claim contradictory nodes too, so that `compile` refuses them: some versions of the runtime would read
     * beyond their weights. */
    if (k)
        return kernel_claim(p, k, node, claims);
    if (may_claim && node_is_contradictory(p, node, reason))
        return p->ort->claim(claims, &node, 1, &options);
    provider_leave(p, node, reason);
    return NULL;
}

static OrtStatus *get_capability(OrtEp *ep, const OrtGraph *graph, OrtEpGraphSupportInfo *claims)
{
    provider *const p = (provider *)ep;
    const ort_functions *const ort = p->ort;
    size_t n = 0;
    const OrtNode *within = NULL;
    kernel_claims_free(p); /* drop claims of an earlier call, which the runtime never compiled */
    OrtStatus *status = ort->graph_node_count(graph, &n);
    if (!status)
        status = ort->graph_parent(graph, &within);
    if (status || !n) /* GCOVR_EXCL_BR_LINE: the runtime passes graphs with nodes */
        return status;
    const OrtNode **const nodes = calloc(n, sizeof *nodes);
    if (!nodes) {
        provider_leave(p, NULL, NO_MEMORY);
        return NULL;
    }
    status = ort->graph_nodes(graph, nodes, n);
    for (size_t i = 0; i < n && !status; i++)
        if (node_is_recurrent(ort, nodes[i]) || call_is(ort, nodes[i]))
            status = claim(p, nodes[i], within, claims);
    if (!status)
        advise(p, nodes, n, within);
    free(nodes);
    return status;
}

/* --- kernels -------------------------------------------------------------------------------------------- */

/* Sets *made to the kernel of one claimed node. A contradictory node has no kernel: then returns an error. */
static OrtStatus *compile_one(provider *p, const OrtGraph *graph, const OrtNode *fused,
                              OrtNodeComputeInfo **made)
{
    const OrtNode *node = NULL;
    const char *name = "";
    char reason[REASON] = "lnrnn did not accept it", text[REASON + 256];
    *made = NULL;
    OrtStatus *status = p->ort->graph_nodes(graph, &node, 1);
    if (!status)
        *made = kernel_claimed(p, node, fused, &status);
    if (*made || status)
        return status;
    node_is_contradictory(p, node, reason);
    runtime_failed(p->ort, p->ort->node_name(node, &name));
    snprintf(text, sizeof text, "lnrnn: node '%.200s': %s", name, reason);
    return p->ort->create_status(ORT_FAIL, text);
}

static void release_kernels(OrtEp *ep, OrtNodeComputeInfo **kernels, size_t count)
{
    (void)ep;
    for (size_t i = 0; i < count; i++)
        kernel_free(kernels[i]);
}

/* Gives the runtime the kernels of all claimed nodes. All that can fail was done when the nodes were claimed,
 * because the runtime cannot open a session without these kernels. */
static OrtStatus *compile(OrtEp *ep, const OrtGraph **graphs, const OrtNode **fused, size_t count,
                          OrtNodeComputeInfo **kernels, OrtNode **saved)
{
    OrtStatus *status = NULL;
    size_t made = 0;
    (void)saved; /* for files with compiled kernels, which lnrnn does not write */
    for (; made < count && !status; made++)
        status = compile_one((provider *)ep, graphs[made], fused[made], &kernels[made]);
    for (size_t i = 0; i < made && status; i++) {
        kernel_free(kernels[i]);
        kernels[i] = NULL;
    }
    return status;
}

/* --- the provider of a session -------------------------------------------------------------------------- */

static const char *provider_name(const OrtEp *ep)
{
    (void)ep;
    return PROVIDER;
}

/* Sets an option of a session, or writes to `text` why its value is refused. */
static void set_option(provider *p, const char *name, const char *value, char text[REASON])
{
    static const char *const names[] = {
        [LNRNN_WEIGHT_F32] = "float32", [LNRNN_WEIGHT_BF16] = "bfloat16", [LNRNN_WEIGHT_I8] = "int8"};
    if (!strcmp(name, "dtype")) {
        for (p->weights = 0; p->weights <= LNRNN_WEIGHT_I8; p->weights++)
            if (!strcmp(value, names[p->weights]))
                return;
        snprintf(text, REASON, "lnrnn: option dtype must be float32, bfloat16 or int8, got %.60s", value);
    } else if (!strcmp(name, "threads")) {
        char *end = NULL;
        const long n = strtol(value, &end, 10);
        p->threads = (int)n;
        if (!*end && n >= 1 && n <= LNRNN_MOST_THREADS)
            return;
        snprintf(text, REASON, "lnrnn: option threads must be between 1 and %d, got %.60s",
                 LNRNN_MOST_THREADS, value);
    } else if (!strcmp(name, "float32_nodes")) {
        free(p->float32_nodes);
        if (!(p->float32_nodes = strdup(value))) /* GCOVR_EXCL_BR_LINE: no memory */
            snprintf(text, REASON, "lnrnn: no memory for option float32_nodes");
    } else if (!strcmp(name, "log_severity_level")) {
        /* The logger of a provider that is chosen by name has the default level, warning, not the session's
         * level. So if the session logs infos (levels 0 and 1), log them as warnings. */
        p->severity = strcmp(value, "0") && strcmp(value, "1") ? ORT_LOG_INFO : ORT_LOG_WARNING;
    } else if (!strcmp(name, "advice")) { /* 0: the file is already converted as far as possible */
        p->is_advised = !strcmp(value, "0");
        if (!p->is_advised && strcmp(value, "1"))
            snprintf(text, REASON, "lnrnn: option advice must be 0 or 1, got %.60s", value);
    } else
        snprintf(
            text, REASON,
            "lnrnn: the options are dtype, float32_nodes, threads, advice and log_severity_level, got %.60s",
            name);
}

int provider_weights(const provider *p, const OrtNode *node, int is_quantized)
{
    const char *name = "";
    int is_exact = 0;
    runtime_failed(p->ort, p->ort->node_name(node, &name));
    if (p->float32_nodes)
        for (const char *at = p->float32_nodes, *end; (end = strchr(at, '\n')) && !is_exact; at = end + 1)
            is_exact = !strncmp(name, at, (size_t)(end - at)) && !name[end - at];
    if (is_quantized)
        return is_exact || p->weights == LNRNN_WEIGHT_I8 ? LNRNN_WEIGHT_I8 : LNRNN_WEIGHT_I8A8;
    return is_exact ? LNRNN_WEIGHT_F32 : p->weights;
}

static OrtStatus *read_options(provider *p, const OrtSessionOptions *session)
{
    const ort_functions *const ort = p->ort;
    OrtKeyValuePairs *pairs = NULL;
    ort_texts keys = NULL, values = NULL;
    const size_t prefix = sizeof OPTION - 1;
    size_t n = 0;
    char text[REASON] = "";
    OrtStatus *const status = ort->session_entries(session, &pairs);
    if (status)
        return status;
    ort->get_pairs(pairs, &keys, &values, &n);
    p->weights = LNRNN_WEIGHT_F32, p->threads = 1, p->severity = ORT_LOG_INFO;
    for (size_t k = 0; k < n && !*text; k++)
        if (!strncmp(keys[k], OPTION, prefix))
            set_option(p, keys[k] + prefix, values[k], text);
    ort->release_pairs(pairs);
    return *text ? ort->create_status(ORT_INVALID_ARGUMENT, text) : NULL;
}

static void provider_free(provider *p)
{
    if (p) {
        kernel_claims_free(p);
        networks_free(p->networks);
        kernel_pool_free(p->pool);
        free(p->said);
        free(p->float32_nodes);
    }
    free(p);
}

static OrtStatus *create(OrtEpFactory *self, const OrtHardwareDevice *const *devices,
                         const OrtKeyValuePairs *const *data, size_t count, const OrtSessionOptions *session,
                         const OrtLogger *logger, OrtEp **ep)
{
    factory *const f = (factory *)self;
    (void)devices, (void)data, (void)count;
    *ep = NULL;
    provider *const p = calloc(1, sizeof *p);
    if (!p || !(p->pool = kernel_pool_create()) || !(p->networks = networks_create())) {
        provider_free(p);
        return f->ort.create_status(ORT_FAIL, "lnrnn: no memory for a session");
    }
    p->interface = (OrtEp){.version = ORT_VERSION,
                           .name = provider_name,
                           .get_capability = get_capability,
                           .compile = compile,
                           .release_kernels = release_kernels};
    p->ort = &f->ort, p->minor = f->minor, p->logger = logger;
    OrtStatus *const status = read_options(p, session);
    if (status)
        provider_free(p);
    else {
        *ep = &p->interface;
        __atomic_add_fetch(&f->users, 1, __ATOMIC_RELAXED);
    }
    return status;
}

static void release(OrtEpFactory *self, OrtEp *ep)
{
    provider_free((provider *)ep);
    factory_release((factory *)self);
}

/* --- the factory ---------------------------------------------------------------------------------------- */

static const char *factory_name(const OrtEpFactory *self)
{
    (void)self;
    return PROVIDER;
}

static const char *vendor(const OrtEpFactory *self)
{
    (void)self;
    return "lnrnn";
}

static uint32_t vendor_id(const OrtEpFactory *self)
{
    (void)self;
    return 0;
}

static const char *provider_version(const OrtEpFactory *self)
{
    (void)self;
    return lnrnn_version();
}

/* Offers the provider for the first CPU device. */
static OrtStatus *offer(OrtEpFactory *self, const OrtHardwareDevice *const *devices, size_t n,
                        OrtEpDevice **offered, size_t most, size_t *count)
{
    const ort_functions *const ort = &((const factory *)self)->ort;
    OrtStatus *status = NULL;
    *count = 0;
    for (size_t i = 0; i < n && i < most && !*count && !status; i++)
        if (ort->device_type(devices[i]) == ORT_CPU) { /* GCOVR_EXCL_BR_LINE: the CPU is the first device */
            status = ort->create_device(self, devices[i], NULL, NULL, offered);
            *count = !status;
        }
    return status;
}

static OrtStatus *create_data_transfer(OrtEpFactory *self, void **transfer)
{
    (void)self;
    *transfer = NULL;
    return NULL;
}

static bool is_stream_aware(const OrtEpFactory *self)
{
    (void)self;
    return false;
}

/* text: the version of the runtime, such as "1.32.0". Returns 32; INT_MAX for a later major version, -1 for
 * an earlier major version. */
static int minor_of(const char *text)
{
    char *end = NULL;
    const long major = strtol(text, &end, 10);
    return major > 1 ? INT_MAX : major == 1 && *end == '.' ? (int)strtol(end + 1, NULL, 10) : -1;
}

#pragma GCC visibility push(default)
OrtStatus *CreateEpFactories(const char *registered_name, const OrtApiBase *base, const OrtLogger *logger,
                             OrtEpFactory **factories, size_t most, size_t *count);
OrtStatus *ReleaseEpFactory(OrtEpFactory *self);
#pragma GCC visibility pop

/* Called when a program registers the library. */
OrtStatus *CreateEpFactories(const char *registered_name, const OrtApiBase *base, const OrtLogger *logger,
                             OrtEpFactory **factories, size_t most, size_t *count)
{
    typedef const void *const *table;
    char text[REASON];
    (void)registered_name, (void)logger;
    *count = 0;
    const char *const version = base->version();
    const table functions = base->table(minor_of(version) >= ORT_VERSION ? ORT_VERSION : 1);
    ort_functions ort = {.create_status = NULL};
#define TAKE(name, position, ...) memcpy(&ort.name, &at[position], sizeof at[position]);
    if (minor_of(version) < ORT_VERSION) {
        OrtStatus *(*create_status)(int, const char *);
        memcpy(&create_status, &functions[0], sizeof create_status);
        snprintf(text, sizeof text, "lnrnn needs ONNX Runtime 1.%d or later, got %.40s", ORT_VERSION,
                 version);
        return create_status(ORT_NOT_IMPLEMENTED, text);
    }
    table at = functions;
    FUNCTIONS(TAKE)
    at = ort.provider_table();
    PROVIDER_FUNCTIONS(TAKE)
#undef TAKE
    factory *const f = most ? calloc(1, sizeof *f) : NULL;
    if (!f) /* GCOVR_EXCL_BR_LINE: the runtime has room for a factory; no memory */
        return ort.create_status(ORT_FAIL, "lnrnn: no memory for the provider");
    f->ort = ort;
    f->minor = minor_of(version), f->users = 1;
    f->interface = (OrtEpFactory){.version = ORT_VERSION,
                                  .name = factory_name,
                                  .vendor = vendor,
                                  .devices = offer,
                                  .create = create,
                                  .release = release,
                                  .vendor_id = vendor_id,
                                  .provider_version = provider_version,
                                  .create_data_transfer = create_data_transfer,
                                  .is_stream_aware = is_stream_aware};
    factories[0] = &f->interface;
    *count = 1;
    return NULL;
}

OrtStatus *ReleaseEpFactory(OrtEpFactory *self)
{
    factory_release((factory *)self);
    return NULL;
}
