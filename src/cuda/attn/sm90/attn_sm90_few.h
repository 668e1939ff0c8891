/* What other files see of the attention of few rows on Hopper (attn_sm90_few.cu). */
#ifndef HSTU_CUDA_ATTN_SM90_ATTN_SM90_FEW_H
#define HSTU_CUDA_ATTN_SM90_ATTN_SM90_FEW_H

#include <cuda.h>

#include "cuda/core/cuda.h"

/* Calls with a gate for which the kernel was measured to be the faster one. */
bool cuda_attn_sm90_can_few(const backend *be, const attn_args *a);
status cuda_attn_sm90_few(backend *be, const attn_args *a);

/* Like sm90a_map_pages with boxes of half a page's rows (attn_sm90.cu). */
status sm90a_map_half_pages(CUtensorMap *map, act_type act, const void *rows, int64_t n_columns,
                            int64_t page_rows, int64_t n_pages, int64_t stride, int dim);

#endif
