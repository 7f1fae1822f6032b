/* Computes W_hh h of one row, together with a part of W_ih x of later steps.
 *
 * W_hh h waits for weights from L2 or L3. W_ih x of several rows waits for multiply-adds, because all rows
 * use a weight that is in a register. One loop with both products keeps memory and multipliers busy. Two
 * loops in sequence do not, because a CPU executes only a few hundred instructions ahead. */
#ifndef LNRNN_AHEAD_H
#define LNRNN_AHEAD_H

#include "lnrnn/kernels/pack.h"

/* h (m->k) -> y: multiplies h by `count` panels of W_hh, NR outputs each, from the weights w on. next: 1 or
 * -1, the direction from panel to panel. Each of these products also multiplies a part of the inputs of
 * m->ahead, from input j on, by a panel of W_ih. u: the weights of input j in this panel; c: its sums. One
 * iteration has one input of W_ih for ROWS_AHEAD inputs of W_hh, so both have equally many multiply-adds. The
 * function is noinline, because GCC would otherwise keep sums in memory. */
static __attribute__((noinline)) void ahead_panels(const lnrnn_matmul *m, size_t count, const float *h,
                                                   size_t j, const float *u, float *c, const float *w,
                                                   float *y, ptrdiff_t next)
{
    const lnrnn_ahead *const a = m->ahead;
    const size_t groups = m->k / ROWS_AHEAD;
    const int add = m->add == LNRNN_ADD_ON;
    const ptrdiff_t cs = a->cs, skip = (next - 1) * NR * (ptrdiff_t)m->k;
    const float *rows[ROWS_AHEAD];
    v32 sums[ROWS_AHEAD][NR_VECS];
    LNRNN_FOR_EACH (q, ROWS_AHEAD) {
        rows[q] = a->rows[q];
        LNRNN_FOR_EACH (v, NR_VECS)
            sums[q][v] = v32_load(c + q * cs + v * V32_LANES);
    }
    do {
        v32 sum[NR_VECS];
        LNRNN_FOR_EACH (v, NR_VECS)
            sum[v] = v32_zero();
        if (add)
            LNRNN_FOR_EACH (v, NR_VECS)
                sum[v] = v32_load(y + v * V32_LANES);
        const float *p = h;
        const size_t end = j + groups;
        do {
            v32 weights[NR_VECS];
            LNRNN_FOR_EACH (v, NR_VECS) {
                weights[v] = v32_load(u + v * V32_LANES);
                LNRNN_LOADED(weights[v]);
            }
            LNRNN_FOR_EACH (q, ROWS_AHEAD) {
                const v32 x = v32_set1(rows[q][j]), input = v32_set1(p[q]);
                LNRNN_FOR_EACH (v, NR_VECS)
                    sums[q][v] = v32_fma(x, weights[v], sums[q][v]);
                LNRNN_FOR_EACH (v, NR_VECS)
                    sum[v] = v32_fma(input, v32_load(w + (q * NR_VECS + v) * V32_LANES), sum[v]);
            }
            u += NR, p += ROWS_AHEAD, w += ROWS_AHEAD * NR;
        } while (++j < end);
        LNRNN_FOR_EACH (v, NR_VECS)
            v32_store(y + v * V32_LANES, sum[v]);
        w += skip, y += next * NR;
    } while (--count);
    LNRNN_FOR_EACH (q, ROWS_AHEAD)
        LNRNN_FOR_EACH (v, NR_VECS)
            v32_store(c + q * cs + v * V32_LANES, sums[q][v]);
}

/* h (m->k) -> c (packed_width(m->n)): multiplies h by the full-width panels of m. Each product computes
 * also one part of m->ahead (lnrnn_ahead). Returns the number of the first panel left: a narrower panel, or
 * m->p1 if no panel is left. */
static size_t matmul_ahead(const lnrnn_matmul *m, const float *h, float *c)
{
    lnrnn_ahead *const a = m->ahead;
    const size_t k = m->k;
    size_t p1 = m->p1;
    while (p1 > m->p0 && panel_start(m->n, p1) < p1 * NR)
        p1--;
    for (size_t i = m->p0, count; i < p1; i += count, a->done += count) {
        const size_t part = a->done % ROWS_AHEAD, j = part * (k / ROWS_AHEAD),
                     o = (m->p0 + a->done / ROWS_AHEAD) * NR,
                     at = (m->from_end ? m->p0 + p1 - 1 - i : i) * NR;
        count = ROWS_AHEAD - part < p1 - i ? ROWS_AHEAD - part : p1 - i;
        ahead_panels(m, count, h, j, (const float *)a->w + o * k + j * NR, a->c + o,
                     (const float *)m->w + at * k, c + at, m->from_end ? -1 : 1);
    }
    return p1;
}

#endif
