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
        LNRNN_SHORT_CALL_WORK
        LNRNN_RELEASE_LOCK_WORK
        LNRNN_RELEASE_LOCK_ELEMENTS
        LNRNN_FIRST_PART_WORK
    double LNRNN_PART_SECONDS

cdef extern from "lnrnn.h" nogil:
    enum: LNRNN_ISAS
    size_t lnrnn_isa_list(const char **names)
    size_t lnrnn_isa_emulated(const char **names)
    const char *lnrnn_isa_unit(int weights)
    const char *lnrnn_isa_amx()
    int lnrnn_isa_use(const char *name)
    int lnrnn_has_openmp()
    size_t lnrnn_team_list(const char **names)
    const char *lnrnn_team_name()
    int lnrnn_team_use(const char *name)
    int lnrnn_get_num_threads()
    void lnrnn_set_num_threads(int n)
    void lnrnn_on_shortage(void (*report)(int wanted, int given) noexcept)
    void lnrnn_try_threads_again()

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

    ctypedef struct lnrnn_rnn_scratch:
        size_t floats

    ctypedef struct lnrnn_rnn_plan:
        size_t group
        lnrnn_rnn_scratch scratch

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

    ctypedef struct lnrnn_rnn_call:
        const lnrnn_rnn_config *config
        const lnrnn_rnn_plan *plan
        size_t T, B
        const uint32_t *w_ih
        const uint32_t *w_hh
        const float *x
        ptrdiff_t xt, xb
        float *y
        ptrdiff_t yt, yb
        const float *h0
        const float *c0
        float *hn
        float *cn
        const lnrnn_row *rows
        size_t last_step_end
        lnrnn_site_statistics statistics[3]
        int64_t *count
        float *tape
        lnrnn_rnn_masks masks
        double part
        int resumed
        float *scratch

    void lnrnn_rnn_make_plan(const lnrnn_rnn_call *r, int threads, lnrnn_rnn_plan *plan)
    int lnrnn_rnn_forward(const lnrnn_rnn_call *r)

    size_t lnrnn_tape_width(const lnrnn_rnn_config *)

    ctypedef struct lnrnn_site_gradients:
        double *gain
        double *bias

    ctypedef struct lnrnn_rnn_gradients:
        const float *gy
        ptrdiff_t gyt, gyb
        const float *ghn
        const float *gcn
        const uint32_t *w_ih_t
        const uint32_t *w_hh_t
        const float *w_ih
        const float *w_hh
        float *gx
        ptrdiff_t gxt, gxb
        float *gh0
        float *gc0
        float *gw_ih
        float *gw_hh
        int add
        lnrnn_site_gradients site[3]
        double *inner[2]
        float *work

    int lnrnn_reads_lines(const float *w, size_t k)
    size_t lnrnn_rnn_backward_work(const lnrnn_rnn_call *)
    int lnrnn_rnn_backward(const lnrnn_rnn_call *, const lnrnn_rnn_gradients *)

cdef extern from "rnn/network.h" nogil:
    ctypedef struct lnrnn_line:
        lnrnn_rnn_call call
        lnrnn_rnn_plan plan

    ctypedef struct lnrnn_network_call:
        lnrnn_line *line
        size_t layers, directions
        float *scratch
        double part
        int resumed
        size_t groups, floats

    int lnrnn_network_plan(lnrnn_network_call *, int threads)
    int lnrnn_network_forward(lnrnn_network_call *)

    enum:
        LNRNN_NETWORK_FASTEST
        LNRNN_NETWORK_IN_TURN
        LNRNN_NETWORK_SIDE_BY_SIDE

    void lnrnn_set_network_way(int way)

cdef extern from "rnn/stream.h" nogil:
    ctypedef struct lnrnn_handle "lnrnn_stream": # as this module sees it
        size_t inputs, units, layers, lanes, rows
        int by_step, together
        int64_t refused_from
        int64_t *steps
        lnrnn_rnn_call *calls
        lnrnn_row *table
        float *x
        int64_t *seen
        void *owner

    int lnrnn_stream_choose(lnrnn_handle *s, const int64_t *lanes, const unsigned char *resets)
    void lnrnn_stream_run(lnrnn_handle *s, float *y)

cdef extern from "file/model_file.h" nogil:
    enum: LNRNN_MESSAGE
    ctypedef enum lnrnn_status:
        LNRNN_OK
        LNRNN_NO_MEMORY
        LNRNN_NO_FILE

    ctypedef struct lnrnn_description:
        int cell, act, weights
        size_t input_size, hidden_size, num_layers
        int bias, batch_first, bidirectional
        int norm, placement, span, cell_norm, inner_bias
        double eps
        size_t max_steps
        int overrun
        double momentum
        double *zoneout
        double dropout

    enum:
        LNRNN_OVERRUN_RAISE
        LNRNN_OVERRUN_LAST
        LNRNN_OVERRUN_MEAN
        LNRNN_OVERRUN_BATCH

    enum: LNRNN_ARRAY_DIMS
    ctypedef struct lnrnn_array:
        const char *name
        int dtype
        size_t ndim
        size_t *shape
        const void *data

    ctypedef struct lnrnn_tensor:
        lnrnn_array array

    ctypedef struct lnrnn_safetensors:
        lnrnn_tensor *tensors
        size_t count

    ctypedef struct lnrnn_model_file:
        lnrnn_description description
        lnrnn_safetensors file

    lnrnn_status lnrnn_model_file_open(const char *path, lnrnn_model_file *model, char *message)
    void lnrnn_model_file_close(lnrnn_model_file *model)

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
    int lnrnn_useful_threads(double multiply_adds, int threads)

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
