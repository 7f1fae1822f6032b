/* A library of providers that passes lnrnn's plug-in on to ONNX Runtime. It gives the plug-in the runtime's
 * functions. One call of them may fail. */
#include <dlfcn.h>
#include <string.h>

#include "onnxruntime/interface.h"

enum { GENERAL = 415, PROVIDER = 3, PROVIDER_TABLE = 317 }; /* sizes of tables, and a position */
static const void *general[GENERAL], *own[PROVIDER];
static ort_functions real;
static OrtApiBase base;
static void *plugin;
static char version[16]; /* of the runtime, for the plug-in; "": the real one */
static long failing;     /* the number of calls until one fails; it goes on below 0 */

/* All functions have at most six integers or pointers as parameters, which are passed on as they are. */
#define MAY_FAIL(name, position, result, parameters)                                   \
    static void *may_fail_##name(void *a, void *b, void *c, void *d, void *e, void *f) \
    {                                                                                  \
        void *(*call)(void *, void *, void *, void *, void *, void *);                 \
        memcpy(&call, &real.name, sizeof call);                                        \
        if (!__atomic_sub_fetch(&failing, 1, __ATOMIC_RELAXED))                        \
            return real.create_status(ORT_FAIL, #name " fails");                       \
        return call(a, b, c, d, e, f);                                                 \
    }
FUNCTIONS(MAY_FAIL)
PROVIDER_FUNCTIONS(MAY_FAIL)

/* Takes a function from the runtime's table. Its place gets the function that may fail. value_name only
 * returns a pointer. An error of node_attribute says that an attribute is left out. */
#define TAKE(name, position, result, parameters)                      \
    memcpy(&real.name, &table[position], sizeof table[position]);     \
    if (__builtin_types_compatible_p(result, OrtStatus *)             \
        && !strstr("create_status value_name node_attribute", #name)) \
        table[position] = (const void *)may_fail_##name;

static const void *provider_table(void) { return own; }

static const void *table_of(uint32_t version)
{
    (void)version;
    return general;
}

static const char *other_version(void) { return version; }

/* Passes the plug-in of this path on. Returns 1 for success. */
int pass_on(const char *path, const char *of_runtime)
{
    strncpy(version, of_runtime, sizeof version - 1);
    return (plugin = dlopen(path, RTLD_NOW)) != NULL;
}

/* Makes call n from now on fail. Returns how many were left until the last one that should. */
long fail_after(long n) { return __atomic_exchange_n(&failing, n, __ATOMIC_RELAXED); }

OrtStatus *CreateEpFactories(const char *name, const OrtApiBase *of_runtime, const OrtLogger *logger,
                             OrtEpFactory **factories, size_t most, size_t *count)
{
    OrtStatus *(*create)(const char *, const OrtApiBase *, const OrtLogger *, OrtEpFactory **, size_t,
                         size_t *);
    const void **table = general;
    memcpy(general, of_runtime->table(ORT_VERSION), sizeof general);
    FUNCTIONS(TAKE)
    memcpy(own, real.provider_table(), sizeof own);
    general[PROVIDER_TABLE] = (const void *)provider_table;
    table = own;
    PROVIDER_FUNCTIONS(TAKE)
    base = (OrtApiBase){table_of, *version ? other_version : of_runtime->version};
    *(void **)&create = dlsym(plugin, "CreateEpFactories");
    return create(name, &base, logger, factories, most, count);
}

OrtStatus *ReleaseEpFactory(OrtEpFactory *factory)
{
    OrtStatus *(*release)(OrtEpFactory *);
    *(void **)&release = dlsym(plugin, "ReleaseEpFactory");
    return release(factory);
}
