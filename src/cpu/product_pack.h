/* Packing for products: panels in which the elements that a register tile needs for one k are
 * contiguous.  Every panel has `width` columns; missing ones are zeros. */
#ifndef HSTU_CPU_PRODUCT_PACK_H
#define HSTU_CPU_PRODUCT_PACK_H

#include <stddef.h>

/* to[k * width + j] = from[k * stride + j], j < n <= width. */
void product_pack_copy(float *to, int width, const float *from, ptrdiff_t stride, int n,
                       ptrdiff_t kk);

/* to[k * width + j] = from[j * stride + k], j < n <= width. */
void product_pack_transpose(float *to, int width, const float *from, ptrdiff_t stride, int n,
                            ptrdiff_t kk);

#endif
