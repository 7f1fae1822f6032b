/* Weights in the form that the product reads. */
#include "rnn/layer.h"
#include "lnrnn/kernels/table.h"
#include "lnrnn/tuning.h"
#include "runtime/floats.h"

size_t lnrnn_packed_size(int dtype, size_t n, size_t k)
{
    return lnrnn_product_of(lnrnn_active(), dtype)->size(dtype, n, k);
}

void lnrnn_pack(int dtype, size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs, uint32_t *packed)
{
    LNRNN_DEFAULT_FLOATS;
    lnrnn_product_of(lnrnn_active(), dtype)->pack(dtype, n, k, w, rs, cs, packed);
}

int lnrnn_reads_lines(const float *w, size_t k)
{
    return k * sizeof(float) <= LNRNN_LINE_BYTES && lnrnn_active()->product->width(k) == k
           && (uintptr_t)w % 64 == 0;
}
