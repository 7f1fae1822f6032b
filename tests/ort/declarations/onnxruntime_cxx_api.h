/* The few classes of ONNX Runtime's C++ header that the example uses, for machines without that header.
 *
 * pip's package has the library alone. interface.h, of the plug-in, explains tables and positions. */
#ifndef LNRNN_TESTS_ONNXRUNTIME_CXX_API_H
#define LNRNN_TESTS_ONNXRUNTIME_CXX_API_H

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

struct OrtStatus;
struct OrtApiBase {
    void *const *(*table)(uint32_t version);
    const char *(*version)();
};
extern "C" const OrtApiBase *OrtGetApiBase();

enum { ORT_LOGGING_LEVEL_ERROR = 3, OrtArenaAllocator = 1, OrtMemTypeDefault = 0 };

namespace Ort
{

struct Exception : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/* Calls the function at a position. */
template <typename Result = void, typename... Arguments> Result plain(int position, Arguments... arguments)
{
    static void *const *const table = OrtGetApiBase()->table(24);
    return reinterpret_cast<Result (*)(Arguments...)>(table[position])(arguments...);
}

/* Calls a function that returns a status. */
template <typename... Arguments> void call(int position, Arguments... arguments)
{
    if (OrtStatus *const status = plain<OrtStatus *>(position, arguments...)) {
        const std::string text = plain<const char *>(2, status);
        plain(93, status);
        throw Exception(text);
    }
}

/* An object of the runtime, which the function at the position `release` frees. */
template <int release> struct Object {
    void *p = nullptr;
    Object() = default;
    Object(Object &&other) noexcept : p(std::exchange(other.p, nullptr)) {}
    ~Object()
    {
        if (p)
            plain(release, p);
    }
};

struct ConstEpDevice {
    const void *p;
    const char *EpName() const { return plain<const char *>(312, p); }
};

struct Env : Object<92> {
    Env(int level, const char *name) { call(3, level, name, &p); }
    void RegisterExecutionProviderLibrary(const char *name, const std::string &path)
    {
        call(301, p, name, path.c_str());
    }
    std::vector<ConstEpDevice> GetEpDevices() const
    {
        const void *const *devices;
        size_t count;
        call(303, p, &devices, &count);
        std::vector<ConstEpDevice> result;
        for (size_t i = 0; i < count; i++)
            result.push_back({devices[i]});
        return result;
    }
};

struct KeyValuePairs {
    std::vector<std::pair<std::string, std::string>> pairs;
    void Add(const char *key, const char *value) { pairs.emplace_back(key, value); }
};

struct SessionOptions : Object<100> {
    SessionOptions() { call(10, &p); }
    void SetIntraOpNumThreads(int threads) { call(24, p, threads); }
    void AppendExecutionProvider_V2(Env &env, const std::vector<ConstEpDevice> &devices,
                                    const KeyValuePairs &given)
    {
        std::vector<const char *> keys, values;
        std::vector<const void *> pointers;
        for (const auto &[key, value] : given.pairs)
            keys.push_back(key.c_str()), values.push_back(value.c_str());
        for (const auto &device : devices)
            pointers.push_back(device.p);
        call(304, p, env.p, pointers.data(), pointers.size(), keys.data(), values.data(), keys.size());
    }
};

struct MemoryInfo : Object<94> {
    static MemoryInfo CreateCpu(int allocator, int kind)
    {
        MemoryInfo result;
        call(69, allocator, kind, &result.p);
        return result;
    }
};

struct Value : Object<96> {
    template <typename T>
    static Value CreateTensor(const MemoryInfo &memory, T *data, size_t count, const int64_t *shape,
                              size_t rank)
    {
        Value result;
        call(49, memory.p, data, count * sizeof *data, shape, rank, 1, &result.p); /* 1: float */
        return result;
    }
    template <typename T> const T *GetTensorData() const
    {
        void *data;
        call(51, p, &data);
        return static_cast<const T *>(data);
    }
};

struct RunOptions {
    explicit RunOptions(std::nullptr_t) {}
};

struct Session : Object<95> {
    Session(const Env &env, const char *path, const SessionOptions &options)
    {
        call(7, env.p, path, options.p, &p);
    }
    std::vector<Value> Run(const RunOptions &, const char *const *names, const Value *values, size_t inputs,
                           const char *const *output_names, size_t outputs)
    {
        std::vector<void *> given, results(outputs);
        for (size_t i = 0; i < inputs; i++)
            given.push_back(values[i].p);
        call(9, p, nullptr, names, given.data(), inputs, output_names, outputs, results.data());
        std::vector<Value> result(outputs);
        for (size_t i = 0; i < outputs; i++)
            result[i].p = results[i];
        return result;
    }
};

} // namespace Ort

#endif
