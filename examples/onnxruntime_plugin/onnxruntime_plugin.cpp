// Steps a model of one LSTM in ONNX Runtime, with the LSTM computed by lnrnn. Needs ONNX Runtime 1.24 or later.
//
//     c++ -std=c++17 -I ORT/include onnxruntime_plugin.cpp -L ORT/lib -lonnxruntime -o onnxruntime_plugin
//     ./onnxruntime_plugin "$(python3 -c 'import lnrnn.onnxruntime as o; print(o.library_path())')" step.onnx
//
// ORT is the folder of ONNX Runtime's C++ package. In Python,
// lnrnn.to_onnx(lnrnn.LSTM(4, 8, norm=None, seed=0), "step.onnx", step=True) writes the model. For a file with
// Loops, Scans or cells in plain operators, run `lnrnn onnx FILE -o OUT` once before.
#include <onnxruntime_cxx_api.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <vector>

enum { INPUTS = 4, UNITS = 8 };

static Ort::Value tensor(std::vector<float> &numbers, std::vector<int64_t> shape)
{
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    return Ort::Value::CreateTensor<float>(memory, numbers.data(), numbers.size(), shape.data(),
                                           shape.size());
}

int main(int count, char **arguments)
try {
    if (count != 3)
        return std::fprintf(stderr, "usage: onnxruntime_plugin LIBRARY MODEL\n"), 2;
    Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "example");
    env.RegisterExecutionProviderLibrary("lnrnn", arguments[1]);
    std::vector<Ort::ConstEpDevice> devices;
    for (const Ort::ConstEpDevice device : env.GetEpDevices())
        if (!std::strcmp(device.EpName(), "LnrnnExecutionProvider"))
            devices = {device};
    Ort::KeyValuePairs choices;
    choices.Add("dtype", "float32"); // or bfloat16, int8
    choices.Add("threads", "1");
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);
    options.AppendExecutionProvider_V2(env, devices, choices);
    Ort::Session session(env, arguments[2], options);

    const char *const inputs[] = {"x", "h0", "c0"}, *const outputs[] = {"y", "h", "c"};
    std::vector<float> x(INPUTS), h(UNITS), c(UNITS);
    for (int t = 0; t < 3; t++) {
        x.assign(INPUTS, static_cast<float>(t));
        const std::array<Ort::Value, 3> given = {tensor(x, {1, INPUTS}), tensor(h, {1, 1, UNITS}),
                                                 tensor(c, {1, 1, UNITS})};
        const auto results = session.Run(Ort::RunOptions{nullptr}, inputs, given.data(), 3, outputs, 3);
        const float *const y = results[0].GetTensorData<float>();
        for (int i = 0; i < UNITS; i++)
            std::printf("%.6f%c", y[i], i < UNITS - 1 ? ' ' : '\n');
        h.assign(results[1].GetTensorData<float>(), results[1].GetTensorData<float>() + UNITS);
        c.assign(results[2].GetTensorData<float>(), results[2].GetTensorData<float>() + UNITS);
    }
} catch (const Ort::Exception &error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
}
