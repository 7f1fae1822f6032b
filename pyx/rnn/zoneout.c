/* Dropout of the states and zoneout, between the kernels of a step. Masks are arrays that Python has drawn: the
 * same bits whoever computes. */
#include "rnn/zoneout.h"
#include "rnn/rows.h"

/* mask, old, now (H) -> now = mask old + (1 - mask) now; without a mask rate stands in its place. */
static void keep(size_t H, float rate, const unsigned char *mask, const float *old, float *now)
{
    const float rest = 1 - rate;
    if (mask)
        for (size_t i = 0; i < H; i++) {
            const float was = old[i], is = now[i]; /* both are read: a choice, and no branch */
            now[i] = mask[i] ? was : is;
        }
    else
        for (size_t i = 0; i < H; i++)
            now[i] = rate * old[i] + rest * now[i];
}

void lnrnn_zoneout_row(const lnrnn_rnn_call *r, size_t i, size_t t, const float *old_h, const float *old_c,
                       float *h, float *c)
{
    const lnrnn_rnn_config *config = r->config;
    if (config->zoneout_h > 0)
        keep(config->H, config->zoneout_h, mask_row(r, r->masks.h, i, t), old_h, h);
    if (config->zoneout_c > 0)
        keep(config->H, config->zoneout_c, mask_row(r, r->masks.c, i, t), old_c, c);
}

void lnrnn_mask_rows(const lnrnn_rnn_call *r, size_t r0, size_t n, const float **rows, float *to)
{
    const size_t H = r->config->H;
    for (size_t i = 0; i < n; i++, to += r->plan->narrow) {
        const float *mask = state_mask(r, r0 + i), *h = rows[i];
        for (size_t u = 0; u < H; u++)
            to[u] = mask[u] * h[u];
        rows[i] = to;
    }
}

void lnrnn_hold_gradient(const lnrnn_rnn_call *r, const unsigned char *masks, size_t r0, size_t n, size_t t,
                         float *g, float *held)
{
    const size_t H = r->config->H;
    for (size_t i = 0; i < n; i++, g += r->plan->narrow, held += r->plan->narrow) {
        const unsigned char *mask = mask_row(r, masks, r0 + i, t);
        for (size_t u = 0; u < H; u++) {
            held[u] = mask[u] ? g[u] : 0;
            g[u] = mask[u] ? 0 : g[u];
        }
    }
}

void lnrnn_release_gradient(const lnrnn_rnn_call *r, size_t n, const float *held, float *g)
{
    const size_t H = r->config->H;
    for (size_t i = 0; i < n; i++, g += r->plan->narrow, held += r->plan->narrow)
        for (size_t u = 0; u < H; u++)
            g[u] += held[u];
}

void lnrnn_unmask_gradient(const lnrnn_rnn_call *r, size_t r0, size_t n, const float *g, int add, float *gh)
{
    const size_t H = r->config->H;
    for (size_t i = 0; i < n; i++, g += r->plan->narrow, gh += r->plan->narrow) {
        const float *mask = state_mask(r, r0 + i);
        for (size_t u = 0; u < H; u++)
            gh[u] = mask[u] * g[u] + (add ? gh[u] : 0);
    }
}
