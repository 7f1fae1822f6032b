// Creates a network from arrays in C++, and runs it on whole sequences of different lengths.
//
//     c++ -std=c++17 cpp_program.cpp -o cpp_program $(pkg-config --cflags --libs lnrnn)
//     ./cpp_program
#include <lnrnn.h>

#include <cstdio>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct Release {
    void operator()(lnrnn_network *n) const { lnrnn_network_release(n); }
};
using Network = std::unique_ptr<lnrnn_network, Release>;

static void check(lnrnn_status status, const char *message)
{
    if (status != LNRNN_OK)
        throw std::runtime_error(message);
}

// values: all arrays of the description, by their names in Python.
static Network create(lnrnn_description d, const std::map<std::string, std::vector<float>> &values)
{
    char message[LNRNN_MESSAGE], name[LNRNN_ARRAY_NAME];
    std::vector<lnrnn_array> arrays;
    lnrnn_network *network;
    check(lnrnn_description_resolve(&d, message), message);
    for (size_t k = 0; k < lnrnn_description_arrays(&d); k++) {
        arrays.push_back(lnrnn_description_array(&d, k, name));
        const auto value = values.find(name);
        if (value == values.end())
            throw std::runtime_error(std::string("no values of ") + name);
        arrays.back().name = value->first.c_str();
        arrays.back().data = value->second.data();
    }
    check(lnrnn_network_create(&d, arrays.data(), arrays.size(), &network, message), message);
    return Network(network);
}

int main()
{
    char message[LNRNN_MESSAGE];
    const lnrnn_description d = lnrnn_describe(LNRNN_RNN, 1, 2); // layer norm, as Python's lnrnn.RNN(1, 2)
    const Network network = create(d, {{"weight_ih_l0", {1, -1}},
                                       {"weight_hh_l0", {0.5f, 0, 0, 0.5f}},
                                       {"gain_l0", {1, 1}},
                                       {"bias_l0", {0, 0.25f}}});
    const std::vector<float> x = {1, 2, 3, 4, 5, 6}; // (T, B, D) = (3, 2, 1)
    const std::vector<int64_t> lengths = {3, 1};
    std::vector<float> y(3 * 2 * 2);
    lnrnn_sequences call = {};
    call.steps = 3, call.sequences = 2, call.x = x.data(), call.lengths = lengths.data(), call.y = y.data();
    check(lnrnn_network_run(network.get(), &call, nullptr, message), message);
    for (size_t t = 0; t < 3; t++)
        std::printf("%.6f %.6f | %.6f %.6f\n", y[4 * t], y[4 * t + 1], y[4 * t + 2], y[4 * t + 3]);
}
