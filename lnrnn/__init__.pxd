# `cimport lnrnn` gives Cython the C API. lnrnn.h and lnrnn_api.h describe the functions. Compile with their
# folder, lnrnn.get_include(), as include path. Call lnrnn_import() before all other functions.
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int64_t

cdef extern from "lnrnn_api.h":
    int LNRNN_API_MAJOR
    int LNRNN_API_MINOR
    const char *LNRNN_VERSION

    # Only these two functions need the interpreter's lock.
    int lnrnn_import() except -1

    ctypedef struct lnrnn_handle:
        pass

    lnrnn_handle *lnrnn_handle_open(object stream, size_t rows, int threads) except NULL

cdef extern from "lnrnn_api.h" nogil:
    enum:
        LNRNN_MOST_THREADS
        LNRNN_ISAS
        LNRNN_MAP_EXP
        LNRNN_MAP_TANH
        LNRNN_MAP_SIGMOID
        LNRNN_FLOAT32
        LNRNN_FLOAT64
        LNRNN_BFLOAT16
        LNRNN_FLOAT16
        LNRNN_DTYPES
        LNRNN_MESSAGE
        LNRNN_RNN
        LNRNN_LSTM
        LNRNN_GRU
        LNRNN_LIGRU
        LNRNN_SLSTM
        LNRNN_CELLS
        LNRNN_ACT_TANH
        LNRNN_ACT_RELU
        LNRNN_ACT_SIGMOID
        LNRNN_ACT_IDENTITY
        LNRNN_NORM_NONE
        LNRNN_NORM_LAYER
        LNRNN_NORM_BATCH
        LNRNN_NORM_RMS
        LNRNN_NORMS
        LNRNN_JOINT
        LNRNN_SPLIT
        LNRNN_GATE
        LNRNN_INPUT
        LNRNN_OUTPUT
        LNRNN_PLACEMENTS
        LNRNN_SPAN_PAPER
        LNRNN_SPAN_ALL
        LNRNN_CELL_NONE
        LNRNN_CELL_OUT
        LNRNN_CELL_CARRY
        LNRNN_OVERRUN_RAISE
        LNRNN_OVERRUN_LAST
        LNRNN_OVERRUN_MEAN
        LNRNN_OVERRUN_BATCH
        LNRNN_OVERRUNS
        LNRNN_WEIGHT_F32
        LNRNN_WEIGHT_BF16
        LNRNN_WEIGHT_I8
        LNRNN_WEIGHT_I8A8
        LNRNN_ARRAY_F32
        LNRNN_ARRAY_F64
        LNRNN_ARRAY_I64
        LNRNN_ARRAY_OTHER
        LNRNN_ARRAY_DIMS
        LNRNN_ARRAY_NAME

    ctypedef enum lnrnn_status:
        LNRNN_OK
        LNRNN_NO_MEMORY
        LNRNN_NO_FILE
        LNRNN_CANNOT_READ
        LNRNN_INVALID
        LNRNN_OTHER_VERSION
        LNRNN_TOO_LONG
        LNRNN_STREAM_NO_LANE
        LNRNN_STREAM_TWICE
        LNRNN_STREAM_OVERRUN
        LNRNN_STREAM_TOGETHER
        LNRNN_STREAM_BUSY

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

    ctypedef struct lnrnn_description:
        int cell, act, weights
        size_t input_size, hidden_size, num_layers
        int bias, batch_first, bidirectional, reverse
        int reset_after
        int norm
        int placement, span, cell_norm, inner_bias
        double eps
        size_t max_steps, steps
        int overrun
        double momentum
        double[2] zoneout
        double dropout
        size_t num_heads
        size_t proj_size
        int gate_activation
        int exp_forget, bfloat16_states
        int peepholes

    ctypedef struct lnrnn_array:
        const char *name
        int dtype
        size_t ndim
        size_t[6] shape
        const void *data

    ctypedef struct lnrnn_sequences:
        size_t steps, sequences
        int batch_first
        int threads
        const float *x
        const int64_t *lengths
        const unsigned char *resets
        const float *h0
        const float *c0
        float *y
        float *hn
        float *cn

    ctypedef struct lnrnn_network:
        pass

    ctypedef struct lnrnn_workspace:
        pass
    ctypedef struct lnrnn_stream:
        pass

    const char *lnrnn_version()
    size_t lnrnn_isa_list(const char **names)
    size_t lnrnn_isa_emulated(const char **names)
    const char *lnrnn_isa_name()
    int lnrnn_isa_use(const char *name)
    const char *lnrnn_isa_unit(int weights)
    const char *lnrnn_isa_amx()
    size_t lnrnn_team_list(const char **names)
    const char *lnrnn_team_name()
    int lnrnn_team_use(const char *name)
    int lnrnn_cores()
    int lnrnn_get_num_threads()
    void lnrnn_set_num_threads(int n)
    void lnrnn_on_shortage(void (*report)(int wanted, int given) noexcept)
    void lnrnn_map(int function, size_t n, const float *x, float *y, int threads)
    void lnrnn_layer_norm(int dtype, size_t rows, size_t n, const void *x, ptrdiff_t xs, const void *gain,
                          const void *bias, double eps, void *y, ptrdiff_t ys, int centred, int threads)
    void lnrnn_layer_norm_backward(int dtype, size_t rows, size_t n, const void *gy, const void *x, const
                                   void *gain, double eps, void *gx, double *ggain, double *gbias, double
                                   *work, int centred, int threads)
    size_t lnrnn_layer_norm_work(size_t rows, size_t n)
    size_t lnrnn_batch_work(const lnrnn_batch *b, int sums)
    void lnrnn_batch_norm(const lnrnn_batch *given, void *y, int training)
    void lnrnn_batch_norm_backward(const lnrnn_batch *given, const void *gy, void *gx, double *ggain,
                                   double *gbias, int training)
    lnrnn_description lnrnn_describe(int cell, size_t input_size, size_t hidden_size)
    lnrnn_status lnrnn_description_resolve(lnrnn_description *d, char *message)
    size_t lnrnn_description_arrays(const lnrnn_description *d)
    lnrnn_array lnrnn_description_array(const lnrnn_description *d, size_t k, char *name)
    lnrnn_status lnrnn_network_create(const lnrnn_description *d, const lnrnn_array *arrays, size_t count,
                                      lnrnn_network **network, char *message)
    lnrnn_status lnrnn_network_open(const char *path, lnrnn_network **network, char *message)
    lnrnn_status lnrnn_network_read(const void *bytes, size_t size, lnrnn_network **network, char *message)
    lnrnn_network *lnrnn_network_retain(lnrnn_network *n)
    void lnrnn_network_release(lnrnn_network *n)
    size_t lnrnn_network_inputs(const lnrnn_network *n)
    size_t lnrnn_network_units(const lnrnn_network *n)
    size_t lnrnn_network_layers(const lnrnn_network *n)
    size_t lnrnn_network_directions(const lnrnn_network *n)
    size_t lnrnn_network_state_size(const lnrnn_network *n, int cell)
    lnrnn_workspace *lnrnn_workspace_create()
    void lnrnn_workspace_free(lnrnn_workspace *w)
    lnrnn_status lnrnn_network_run(const lnrnn_network *n, const lnrnn_sequences *s, lnrnn_workspace *w,
                                   char *message)
    lnrnn_status lnrnn_stream_create(lnrnn_network *network, size_t lanes, lnrnn_stream **stream, char
                                     *message)
    void lnrnn_stream_release(lnrnn_stream *s)
    const lnrnn_network *lnrnn_stream_network(const lnrnn_stream *s)
    size_t lnrnn_stream_lanes(const lnrnn_stream *s)
    float *lnrnn_stream_state(const lnrnn_stream *s, size_t layer, int cell)
    int64_t *lnrnn_stream_steps(const lnrnn_stream *s)
    lnrnn_status lnrnn_handle_create(lnrnn_stream *s, size_t rows, int threads, lnrnn_handle **handle,
                                     char *message)
    void lnrnn_handle_free(lnrnn_handle *h)
    lnrnn_stream *lnrnn_handle_stream(const lnrnn_handle *h)
    size_t lnrnn_handle_rows(const lnrnn_handle *h)
    lnrnn_status lnrnn_handle_step(lnrnn_handle *h, const int64_t *lanes, const float *x, float *y)
    lnrnn_status lnrnn_handle_reset(lnrnn_handle *h, const int64_t *lanes, size_t n)
