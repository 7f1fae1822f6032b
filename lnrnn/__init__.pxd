# cimport lnrnn: the C API for Cython. What a function does is said in lnrnn.h and lnrnn_api.h, in the folder
# lnrnn.get_include(), which the compiler has to be told. lnrnn_import() comes before everything else.
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int64_t

cdef extern from "lnrnn_api.h":
    int LNRNN_API_MAJOR
    int LNRNN_API_MINOR

    # These need the interpreter's lock; nothing else does.
    int lnrnn_import() except -1

    ctypedef struct lnrnn_stream:
        pass

    lnrnn_stream *lnrnn_stream_open(object stream, size_t rows, int threads) except NULL
    void lnrnn_stream_close(lnrnn_stream *s)

cdef extern from "lnrnn_api.h" nogil:
    enum:
        LNRNN_STREAM_NO_LANE
        LNRNN_STREAM_TWICE
        LNRNN_STREAM_OVERRUN
        LNRNN_STREAM_TOGETHER

    int lnrnn_stream_step(lnrnn_stream *s, const int64_t *lanes, const float *x, float *y)
    int lnrnn_stream_reset(lnrnn_stream *s, const int64_t *lanes, size_t n)
    size_t lnrnn_stream_inputs(const lnrnn_stream *s)
    size_t lnrnn_stream_units(const lnrnn_stream *s)
    size_t lnrnn_stream_layers(const lnrnn_stream *s)
    size_t lnrnn_stream_lanes(const lnrnn_stream *s)
    size_t lnrnn_stream_rows(const lnrnn_stream *s)
    float *lnrnn_stream_state(const lnrnn_stream *s, size_t layer, int cell)
    const int64_t *lnrnn_stream_steps(const lnrnn_stream *s)

    const char *lnrnn_isa_name()
    int lnrnn_cores()

    enum:
        LNRNN_MAP_EXP
        LNRNN_MAP_TANH
        LNRNN_MAP_SIGMOID

    void lnrnn_map(int function, size_t n, const float *x, float *y, int threads)

    enum:
        LNRNN_FLOAT32
        LNRNN_FLOAT64
        LNRNN_BFLOAT16
        LNRNN_FLOAT16

    void lnrnn_layer_norm(int dtype, size_t rows, size_t n, const void *x, ptrdiff_t xs, const void *gain,
                          const void *bias, double eps, void *y, ptrdiff_t ys, int centred, int threads)
    void lnrnn_layer_norm_backward(int dtype, size_t rows, size_t n, const void *gy, const void *x, const void *gain,
                                   double eps, void *gx, double *ggain, double *gbias, double *work, int threads)
    size_t lnrnn_layer_norm_work(size_t rows, size_t n)

    ctypedef struct lnrnn_batch:
        int dtype
        size_t N, C, L
        const void *x
        const void *gain
        const void *bias
        double eps
        double *mean
        double *var
        double *work
        int threads

    size_t lnrnn_batch_work(const lnrnn_batch *b, int sums)
    void lnrnn_batch_norm(const lnrnn_batch *given, void *y, int training)
    void lnrnn_batch_norm_backward(const lnrnn_batch *given, const void *gy, void *gx, double *ggain, double *gbias,
                                   int training)

    enum:
        LNRNN_RNN
        LNRNN_LSTM
        LNRNN_GRU
        LNRNN_ACT_TANH
        LNRNN_ACT_RELU
        LNRNN_ACT_SIGMOID
        LNRNN_ACT_IDENTITY
        LNRNN_NORM_NONE
        LNRNN_NORM_LAYER
        LNRNN_NORM_BATCH
        LNRNN_JOINT
        LNRNN_SPLIT
        LNRNN_GATE
        LNRNN_SPAN_PAPER
        LNRNN_SPAN_ALL
        LNRNN_CELL_NONE
        LNRNN_CELL_OUT
        LNRNN_CELL_CARRY
        LNRNN_WEIGHT_F32
        LNRNN_WEIGHT_BF16
        LNRNN_WEIGHT_I8
        LNRNN_WEIGHT_I8A8
