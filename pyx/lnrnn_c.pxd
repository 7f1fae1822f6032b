# Declares the functions of liblnrnn that only _core.pyx calls. lnrnn/__init__.pxd declares lnrnn.h.
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int64_t

from lnrnn cimport *

cdef extern from "lnrnn/tuning.h" nogil:
    ctypedef struct lnrnn_caches:
        size_t l1, l2, l3

    lnrnn_caches lnrnn_get_caches()

    enum:
        LNRNN_RELEASE_LOCK_WORK
        LNRNN_RELEASE_LOCK_ELEMENTS

cdef extern from "file/description.h" nogil:
    enum:
        LNRNN_AT_SITES
        LNRNN_ROLES

    size_t lnrnn_description_roles(const lnrnn_description *d, int *roles)
    size_t lnrnn_description_parameters(const lnrnn_description *d)

cdef extern from "file/model_file.h" nogil:
    ctypedef struct lnrnn_model_file:
        lnrnn_description description
        lnrnn_array *arrays
        size_t count
        const char *configuration

    lnrnn_status lnrnn_description_read(const char *text, size_t length, lnrnn_description *d, char *message)
    lnrnn_status lnrnn_model_file_open(const char *path, lnrnn_model_file *model, char *message)
    void lnrnn_model_file_close(lnrnn_model_file *model)

cdef extern from "rnn/network.h" nogil:
    int64_t LNRNN_LAST_STEP

    ctypedef struct lnrnn_network_fields "lnrnn_network": # with the fields that this module reads
        size_t layers, directions
        const char *isa
        int64_t refused_from
        int together
        size_t weight_bytes
        size_t inputs, units, h_width, c_width
        int states
        double step_work

    lnrnn_network_fields lnrnn_network_line(const lnrnn_network_fields *n, size_t line)
    size_t lnrnn_description_tape_width(const lnrnn_description *d)

    ctypedef struct lnrnn_backward_weights:
        pass

    const lnrnn_backward_weights *lnrnn_network_backward_weights(
        lnrnn_network_fields *n, const lnrnn_array *arrays, int inputs)

    ctypedef struct lnrnn_line:
        pass

    ctypedef struct lnrnn_row:
        int64_t sequence, first, length, end, state, start

    ctypedef struct lnrnn_network_call:
        const lnrnn_network_fields *network
        lnrnn_line *line
        size_t steps, sequences
        const float *x
        ptrdiff_t xt, xb
        float *y
        ptrdiff_t yt, yb
        const lnrnn_row *rows
        size_t B, states
        const float *h0
        const float *c0
        float *hn
        float *cn
        int threads
        float *scratch

    int lnrnn_rows_of_lengths(lnrnn_row *rows, size_t B, size_t steps, const int64_t *lengths)
    void lnrnn_network_lay_out(lnrnn_network_call *n, int batch_first)

    ctypedef struct lnrnn_training_array:
        void **to
        int dtype, written, needed
        size_t size

    size_t lnrnn_training_begin(lnrnn_network_call *n)
    lnrnn_training_array lnrnn_training_array_of(const lnrnn_network_call *n, size_t k, int backward)
    int lnrnn_rows_fit(const lnrnn_network_call *n, char *seen)

    ctypedef struct lnrnn_network_gradients:
        const lnrnn_backward_weights *weights
        float **parameters
        int add
        const float *gy
        ptrdiff_t gyt, gyb
        const float *ghn
        const float *gcn
        float *gx
        ptrdiff_t gxt, gxb
        float *gh0
        float *gc0

    size_t lnrnn_network_plan(lnrnn_network_call *n)
    size_t lnrnn_network_backward_plan(const lnrnn_network_call *n, lnrnn_network_gradients *g)
    void lnrnn_network_begin(lnrnn_network_call *n)
    int lnrnn_network_go_on(lnrnn_network_call *n, lnrnn_network_gradients *g)

cdef extern from "rnn/stream.h" nogil:
    ctypedef struct lnrnn_stream_fields "lnrnn_stream":
        lnrnn_network_fields *network
        size_t lanes
        float *h
        float *c
        int64_t *steps
        int references
        size_t inputs, h_width, c_width
        int together
        double step_work

    ctypedef struct lnrnn_handle_fields "lnrnn_handle":
        lnrnn_network_fields *network
        size_t rows
        void *owner
        void (*release)(void *owner) noexcept
        lnrnn_handle_fields *next
        lnrnn_network_call call
        float *x

    void lnrnn_stream_of(lnrnn_stream_fields *s, lnrnn_network_fields *n, size_t lanes)
    int lnrnn_stream_put(lnrnn_stream_fields *s, const int64_t *lanes, size_t n, const float **states,
                         const int64_t *steps)
    int lnrnn_handle_fit(lnrnn_handle_fields *h, size_t rows, int threads)
    int lnrnn_handle_choose(lnrnn_handle_fields *h, const int64_t *lanes, const unsigned char *resets)
    void lnrnn_handle_run(lnrnn_handle_fields *h, float *y)

cdef extern from "norm/statistics.h" nogil:
    void lnrnn_write_doubles(size_t n, const double *values, void *array, int is_double, int add)

    ctypedef struct lnrnn_running:
        void *mean
        void *var
        int mean_is_double, var_is_double

    void lnrnn_read_running(const lnrnn_batch *b, const lnrnn_running *r)
    void lnrnn_update_running(const lnrnn_batch *b, const lnrnn_running *r, double momentum)

cdef extern from "runtime/thread_policy.h" nogil:
    int lnrnn_allowed_threads(int own)
    bint lnrnn_repays_threads(double multiply_adds)
