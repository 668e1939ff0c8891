/* One more size of wgmma_ss (ptx_sm90.cuh): 64 rows by 96 columns. */
#ifndef HSTU_CUDA_OPS_WGMMA_SIZES_CUH
#define HSTU_CUDA_OPS_WGMMA_SIZES_CUH

#include "cuda/attn/sm90/ptx_sm90.cuh"

#define WG_LIST_48                                                                                 \
    WG_LIST_32 ", "                                                                                \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, "                 \
               "%45, %46, %47"
#define WG_REGISTERS_48                                                                            \
    WG_REGISTERS_32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), \
        "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), \
        "+f"(d[45]), "+f"(d[46]), "+f"(d[47])

WGMMA_SHARED(wgmma_ss, "0, 0", __nv_bfloat16, "bf16", 96, 48, "48", "49", "50")

#endif
