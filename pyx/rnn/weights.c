/* Weights in the form that the product reads. */
#include "lnrnn.h"
#include "lnrnn/kernels/table.h"

size_t lnrnn_packed_size(int dtype, size_t n, size_t k)
{
    return lnrnn_product_of(lnrnn_active(), dtype)->size(dtype, n, k);
}

void lnrnn_pack(int dtype, size_t n, size_t k, const float *w, ptrdiff_t rs, ptrdiff_t cs, uint32_t *packed)
{
    lnrnn_product_of(lnrnn_active(), dtype)->pack(dtype, n, k, w, rs, cs, packed);
}
