# The C as Cython sees it: what everybody may call is in lnrnn/__init__.pxd, the rest here. What a function does
# stands in the headers.
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int64_t, uint32_t

from lnrnn cimport *

cdef extern from "lnrnn/tuning.h" nogil:
    ctypedef struct lnrnn_caches:
        size_t l1, l2, l3
        bint reads_ahead

    lnrnn_caches lnrnn_get_caches()
    void lnrnn_set_caches(lnrnn_caches caches)

    enum:
        LNRNN_RELEASE_LOCK_WORK
        LNRNN_RELEASE_LOCK_ELEMENTS
        LNRNN_FIRST_PART_WORK
    double LNRNN_PART_SECONDS

cdef extern from "rnn/layer.h" nogil:
    enum: LNRNN_INT8_INPUTS
    size_t lnrnn_packed_size(int dtype, size_t n, size_t k)
    void lnrnn_pack(int dtype, size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs, uint32_t *packed)

    enum:
        LNRNN_SITE_INPUT
        LNRNN_SITE_HIDDEN
        LNRNN_SITE_CELL
        LNRNN_SITES

    ctypedef struct lnrnn_site:
        const float *gain
        const float *bias
        const float *scale
        const float *shift
        size_t width

    ctypedef struct lnrnn_rnn_config:
        size_t D, H
        int cell, act, norm, placement, span, cell_norm
        float eps
        int reverse, dtype
        const float *inner_ih
        const float *inner_hh
        float zoneout_h, zoneout_c
        lnrnn_site site[3]
        size_t known
        ptrdiff_t overrun_row
        size_t num_gates, outputs
        int separate_products, input_side, cell_state

    void lnrnn_rnn_configure(lnrnn_rnn_config *config)

    ctypedef struct lnrnn_site_statistics:
        double *mean
        double *var

    ctypedef struct lnrnn_row:
        int64_t sequence, first, length, end, state, start

    ctypedef struct lnrnn_rnn_masks:
        const float *state
        const unsigned char *h
        const unsigned char *c
        size_t sequences

    size_t lnrnn_tape_width(const lnrnn_rnn_config *)

    ctypedef struct lnrnn_site_gradients:
        double *gain
        double *bias

    ctypedef struct lnrnn_rnn_gradients:
        const uint32_t *w_ih_t
        const uint32_t *w_hh_t
        const float *w_ih
        const float *w_hh
        float *gw_ih
        float *gw_hh
        int add
        lnrnn_site_gradients site[3]
        double *inner[2]

    int lnrnn_reads_lines(const float *w, size_t k)

cdef extern from "rnn/fold.h" nogil:
    ctypedef struct lnrnn_fold_job:
        size_t known, width
        int averages
        const double *mean
        const double *var
        const float *gain
        const float *bias
        double eps

    void lnrnn_fold(const lnrnn_fold_job *f, float *scale, float *shift)

cdef extern from "rnn/network.h" nogil:
    int64_t LNRNN_LAST_STEP

    enum:
        LNRNN_NETWORK_FASTEST
        LNRNN_NETWORK_IN_TURN
        LNRNN_NETWORK_SIDE_BY_SIDE

    void lnrnn_set_network_way(int way)

    ctypedef struct lnrnn_packed_weights:
        const uint32_t *ih
        const uint32_t *hh

    ctypedef struct lnrnn_network_fields "lnrnn_network": # as this module sees it
        size_t layers, directions
        const lnrnn_rnn_config *config
        const lnrnn_packed_weights *weights
        const char *isa
        int64_t refused_from
        int together
        size_t inputs, units
        int states
        double step_work

    size_t lnrnn_network_complete(lnrnn_network_fields *n)

    ctypedef struct lnrnn_line:
        pass

    ctypedef struct lnrnn_line_training:
        lnrnn_site_statistics statistics[3]
        int64_t *count
        float *tape
        lnrnn_rnn_masks masks

    ctypedef struct lnrnn_layer_training:
        float *y
        float *dropped
        const unsigned char *kept
        float scale
        const float *factors

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
        const lnrnn_line_training *line_training
        const lnrnn_layer_training *layer_training
        int threads
        double part
        int resumed
        float *scratch

    int lnrnn_rows_fit(const lnrnn_network_call *n, char *seen)
    size_t lnrnn_active_steps(const lnrnn_network_call *n)
    size_t lnrnn_network_plan(lnrnn_network_call *n)
    int lnrnn_network_forward(lnrnn_network_call *n)

    ctypedef struct lnrnn_network_gradients:
        lnrnn_rnn_gradients *line
        const float *gy
        ptrdiff_t gyt, gyb
        const float *ghn
        const float *gcn
        float *gx
        ptrdiff_t gxt, gxb
        float *gh0
        float *gc0

    size_t lnrnn_network_backward_plan(const lnrnn_network_call *n, lnrnn_network_gradients *g)
    int lnrnn_network_backward(lnrnn_network_call *n, lnrnn_network_gradients *g)

cdef extern from "rnn/stream.h" nogil:
    ctypedef struct lnrnn_stream_fields "lnrnn_stream":
        lnrnn_network_fields *network
        size_t lanes
        float *h
        float *c
        int64_t *steps
        int references

    ctypedef struct lnrnn_handle_fields "lnrnn_handle":
        lnrnn_stream_fields *stream
        size_t rows
        void *owner
        void (*release)(void *owner) noexcept
        lnrnn_network_call call
        float *x

    size_t lnrnn_handle_memory(const lnrnn_network_fields *network, size_t lanes, size_t rows)
    size_t lnrnn_handle_prepare(lnrnn_handle_fields *h, const lnrnn_network_fields *network, int threads, void *memory)
    int lnrnn_handle_choose(lnrnn_handle_fields *h, const int64_t *lanes, const unsigned char *resets)
    void lnrnn_handle_run(lnrnn_handle_fields *h, float *y)

cdef extern from "file/model_file.h" nogil:
    ctypedef struct lnrnn_model_file:
        lnrnn_description description
        lnrnn_array *arrays
        size_t count

    lnrnn_status lnrnn_model_file_open(const char *path, lnrnn_model_file *model, char *message)
    void lnrnn_model_file_close(lnrnn_model_file *model)

cdef extern from "norm/statistics.h" nogil:
    void lnrnn_read_doubles(size_t n, const void *array, int is_double, double *values)
    void lnrnn_write_doubles(size_t n, const double *values, void *array, int is_double, int add)
    void lnrnn_update_statistic(size_t n, void *array, int is_double, double momentum, const double *batch, size_t unbiased)

cdef extern from "runtime/floats.h" nogil:
    ctypedef struct lnrnn_floats:
        pass

    lnrnn_floats lnrnn_enter_floats()
    void lnrnn_leave_floats(const lnrnn_floats *own)

cdef extern from "runtime/cpu_model.h" nogil:
    ctypedef struct lnrnn_cpu_model:
        double multiply_adds, l2, l3, memory, all_memory, barrier, barrier_thread

    lnrnn_cpu_model lnrnn_get_cpu_model()
    void lnrnn_set_cpu_model(lnrnn_cpu_model model)

cdef extern from "rnn/cost_model.h" nogil:
    ctypedef struct lnrnn_step_work:
        size_t rows, inputs, units, outputs, panels
        int dtype, sides, at_once
        lnrnn_caches caches

cdef extern from "runtime/thread_policy.h" nogil:
    int lnrnn_allowed_threads(int own)
    bint lnrnn_repays_threads(double multiply_adds)

    ctypedef struct lnrnn_partition:
        int groups, team, divide_rows

    ctypedef double (*lnrnn_partition_time)(const lnrnn_step_work *work, lnrnn_partition partition)

    lnrnn_partition lnrnn_choose_partition(int threads, size_t rows, size_t panels, const lnrnn_step_work *work,
                                           lnrnn_partition_time time)
    void lnrnn_set_partition(lnrnn_partition partition)

cdef extern from "rnn/cost_model.h" nogil:
    size_t lnrnn_panels_of(int dtype, size_t outputs)
    double lnrnn_step_time(const lnrnn_step_work *work, lnrnn_partition partition)

cdef extern from "runtime/threads.h" nogil:
    int lnrnn_cores_of(int cpus, const char *groups, const char *root)

    ctypedef struct lnrnn_teams:
        int tasks, units

    lnrnn_teams lnrnn_teams_had()

    enum:
        LNRNN_BARRIER_NORMAL
        LNRNN_BARRIER_TOGETHER
        LNRNN_BARRIER_STAGGERED
        LNRNN_BARRIER_SLOW

    void lnrnn_set_barrier_mode(int mode)
    void lnrnn_set_back_off(int64_t nanoseconds)
