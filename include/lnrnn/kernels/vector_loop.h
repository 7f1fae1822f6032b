/* A macro for loops over a row, a vector at a time, and a macro that joins two names. */
#ifndef LNRNN_VECTOR_LOOP_H
#define LNRNN_VECTOR_LOOP_H

#define LNRNN_CAT_(a, b) a##b
#define LNRNN_CAT(a, b) LNRNN_CAT_(a, b)

/* The value of `whole` for a vector that a non-temporal store must write, around the caches. */
enum { LNRNN_STREAMED = -1 };

/* Calls part(i, k, whole, ...) for the values i .. i + k - 1 of a row until all n are done. The first call
 * has `head` values, the next calls have whole vectors (k = lanes, whole = the constant 1), and the last call
 * has the rest. This is a macro, because `part` must be inlined so that its arguments stay in registers. */
#define LNRNN_FOR_VECTORS(lanes, head, n, part, ...)   \
    do {                                               \
        const size_t n_ = (n);                         \
        size_t i_ = (head);                            \
        if (i_)                                        \
            part((size_t)0, i_, 0, __VA_ARGS__);       \
        for (; i_ + (lanes) <= n_; i_ += (lanes))      \
            part(i_, (size_t)(lanes), 1, __VA_ARGS__); \
        if (i_ < n_)                                   \
            part(i_, n_ - i_, 0, __VA_ARGS__);         \
    } while (0)

#endif
