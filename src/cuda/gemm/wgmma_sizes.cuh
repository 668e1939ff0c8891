/* More sizes of wgmma_ss (ptx_sm90.cuh): 64 rows by 96, 160 and 192 columns. */
#ifndef HSTU_CUDA_GEMM_WGMMA_SIZES_CUH
#define HSTU_CUDA_GEMM_WGMMA_SIZES_CUH

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

#define WG_LIST_80                                                                                 \
    WG_LIST_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define WG_REGISTERS_80                                                                            \
    WG_REGISTERS_64, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), \
        "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), \
        "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define WG_LIST_96                                                                                 \
    WG_LIST_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WG_REGISTERS_96                                                                            \
    WG_REGISTERS_80, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), \
        "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), \
        "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
WGMMA_SHARED(wgmma_ss, "0, 0", __nv_bfloat16, "bf16", 160, 80, "80", "81", "82")
WGMMA_SHARED(wgmma_ss, "0, 0", __nv_bfloat16, "bf16", 192, 96, "96", "97", "98")

#endif
