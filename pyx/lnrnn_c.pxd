# lnrnn.h as Cython sees it. What a function does stands there.
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int64_t, uint32_t

cdef extern from "lnrnn/tuning.h" nogil:
    enum:
        LNRNN_THREAD_WORK

cdef extern from "lnrnn.h" nogil:
    size_t lnrnn_isa_list(const char **names)
    const char *lnrnn_isa_name()
    int lnrnn_isa_use(const char *name)
    int lnrnn_has_openmp()
    size_t lnrnn_team_list(const char **names)
    const char *lnrnn_team_name()
    int lnrnn_team_use(const char *name)
    int lnrnn_cores()
    int lnrnn_default_threads(int cores)
    void lnrnn_on_shortage(void (*tell)(int wanted, int given) noexcept)
    void lnrnn_try_threads_again()

    ctypedef struct lnrnn_caches:
        size_t l1, l2, l3

    lnrnn_caches lnrnn_get_caches()
    void lnrnn_set_caches(lnrnn_caches caches)

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

    void lnrnn_layer_norm(int, size_t, size_t, const void *, ptrdiff_t, const void *, const void *, double, void *,
                          ptrdiff_t, int, int)
    void lnrnn_layer_norm_backward(int, size_t, size_t, const void *, const void *, const void *, double, void *,
                                   double *, double *, double *, int)
    size_t lnrnn_layer_norm_work(size_t, size_t)

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

    size_t lnrnn_batch_work(const lnrnn_batch *, int)
    void lnrnn_batch_norm(const lnrnn_batch *, void *, int)
    void lnrnn_batch_norm_backward(const lnrnn_batch *, const void *, void *, double *, double *, int)

    size_t lnrnn_packed_size(int, size_t, size_t)
    void lnrnn_pack(int, size_t, size_t, const float *, ptrdiff_t, ptrdiff_t, uint32_t *)

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
        lnrnn_site site[3]
        size_t known
        ptrdiff_t overrun_row
        size_t num_gates, outputs
        int separate_products, input_side, cell_state

    void lnrnn_rnn_configure(lnrnn_rnn_config *)
    size_t lnrnn_tape_width(const lnrnn_rnn_config *)

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
        double part
        int resumed
        float *scratch

    void lnrnn_rnn_make_plan(const lnrnn_rnn_call *, int, lnrnn_rnn_plan *)
    int lnrnn_rnn_forward(const lnrnn_rnn_call *)

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
        float *gx
        ptrdiff_t gxt, gxb
        float *gh0
        float *gc0
        float *gw_ih
        float *gw_hh
        lnrnn_site_gradients site[3]
        const float **rows
        float **gx_rows
        float *work

    size_t lnrnn_rnn_backward_work(const lnrnn_rnn_call *)
    int lnrnn_rnn_backward(const lnrnn_rnn_call *, const lnrnn_rnn_gradients *)

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
