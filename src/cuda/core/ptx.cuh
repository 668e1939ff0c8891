/* PTX instructions that C++ cannot express, one function each, named as in the PTX manual.  All
 * of them exist from SM 8.0 on.
 *
 * Fragments of a 16 x 8 product over a warp, lane l, g = l / 4, t = l % 4 (16-bit kinds; two
 * numbers a register, the lower index in the lower half):
 *     A (16 x 16): a[0] row g, columns 2t, 2t+1; a[1] row g + 8; a[2], a[3] the same, columns + 8
 *     B (16 x 8):  b[0] rows 2t, 2t+1 of column g; b[1] rows + 8
 *     C (16 x 8):  c[0], c[1] row g, columns 2t, 2t+1; c[2], c[3] row g + 8
 * tf32 kind, one number a register:
 *     A (16 x 8):  a[0] row g, column t; a[1] row g + 8; a[2], a[3] the same, column t + 4
 *     B (8 x 8):   b[0] row t of column g; b[1] row t + 4;      C as above */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

/* A shared-memory address as the instructions below take it. */
__device__ static inline uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* threadIdx.x, read again at each call, so that the compiler does not keep what it computes from it
 * in registers across a loop. */
__device__ static inline uint32_t thread_index() {
    uint32_t x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

/* The same of blockIdx.x. */
__device__ static inline uint32_t block_index() {
    uint32_t x;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
    return x;
}

/* Loads the 128 bytes around an address into the L2 cache. */
__device__ static inline void prefetch_l2(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

template <typename T>
__device__ static inline void mma_m16n8k16(float c[4], const uint32_t a[4], uint32_t b0,
                                           uint32_t b1);

template <>
__device__ inline void mma_m16n8k16<__nv_bfloat16>(float c[4], const uint32_t a[4], uint32_t b0,
                                                   uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ inline void mma_m16n8k16<__half>(float c[4], const uint32_t a[4], uint32_t b0,
                                            uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Operands must come from cvt_rna_tf32; the low bits of other float32 numbers are truncated, not
 * rounded. */
__device__ static inline void mma_m16n8k8_tf32(float c[4], const uint32_t a[4], uint32_t b0,
                                               uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Loads four 8 x 8 matrices of 16-bit elements: lanes 8m .. 8m + 7 give the addresses of the rows
 * (16 bytes each) of matrix m, which goes to r[m]: row l / 4, columns 2 (l % 4) and the next; with
 * trans, of the matrix transposed. */
__device__ static inline void ldmatrix_x4(uint32_t r[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ static inline void ldmatrix_x4_trans(uint32_t r[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* Transposes an 8 x 8 matrix of 16-bit elements; before and after, lane l has row l / 4, columns
 * 2 (l % 4) and 2 (l % 4) + 1. */
__device__ static inline uint32_t movmatrix_trans(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* Copies SIZE bytes (16, 8 or 4) at `from`, of which only the first n_bytes are read; the rest
 * become zeros.  With n_bytes 0 nothing is read, and `from` may be anything.  Both addresses are
 * multiples of SIZE.  Copies of 16 bytes bypass the L1 cache: shared memory takes its place. */
template <int SIZE>
__device__ static inline void cp_async(uint32_t to, const void *from, int n_bytes) {
    static_assert(SIZE == 16 || SIZE == 8 || SIZE == 4, "the sizes there are");
    if (SIZE == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(n_bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from),
                     "n"(SIZE), "r"(n_bytes)
                     : "memory");
}

/* Closes the group of the thread's copies so far. */
__device__ static inline void cp_async_commit_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most the latest N of the thread's groups are pending.  Other threads see the
 * copied bytes after a barrier. */
template <int N> __device__ static inline void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ static inline float tanh_approx(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ static inline float ex2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ static inline float rcp_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ static inline uint32_t cvt_rna_tf32(float x) {
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

/* mma_m16n8k8 of float32 operands, each as two TF32 numbers: three products. */
__device__ static inline void mma_m16n8k8_split(float (&c)[4], const float (&a)[4], float b0,
                                                float b1) {
    uint32_t high[6], low[6];
    const float x[6] = {a[0], a[1], a[2], a[3], b0, b1};
#pragma unroll
    for (int k = 0; k < 6; k++) {
        high[k] = cvt_rna_tf32(x[k]);
        low[k] = cvt_rna_tf32(x[k] - __uint_as_float(high[k]));
    }
    mma_m16n8k8_tf32(c, low, high[4], high[5]);
    mma_m16n8k8_tf32(c, high, low[4], low[5]);
    mma_m16n8k8_tf32(c, high, high[4], high[5]);
}

/* Two numbers, rounded to nearest, as one register of a fragment. */
template <typename T> __device__ static inline uint32_t cvt_pack(float low, float high);

template <> __device__ inline uint32_t cvt_pack<__nv_bfloat16>(float low, float high) {
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

template <> __device__ inline uint32_t cvt_pack<__half>(float low, float high) {
    uint32_t y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

/* Stores a number, element `at` of a row, where that is below its `limit`.  Predicated in PTX: a
 * branch for each, hundreds in a kernel's epilogue, made up a quarter of the compiler's work ... */
template <typename T> __device__ static inline void store_below(T *to, T x, int at, int limit) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 2, "a float or a 16-bit number");
    if constexpr (sizeof(T) == 4)
        asm volatile(
            "{\n.reg .pred p;\nsetp.lt.s32 p, %2, %3;\n@p st.global.b32 [%0], %1;\n}" ::"l"(to),
            "r"(*(const uint32_t *)&x), "r"(at), "r"(limit)
            : "memory");
    else
        asm volatile(
            "{\n.reg .pred p;\nsetp.lt.s32 p, %2, %3;\n@p st.global.b16 [%0], %1;\n}" ::"l"(to),
            "h"(*(const uint16_t *)&x), "r"(at), "r"(limit)
            : "memory");
}

/* ... two 16-bit numbers, elements `at` and at + 1 ... */
__device__ static inline void store_two_below(void *to, uint32_t pair, int at, int limit) {
    asm volatile("{\n.reg .pred p, q;\n.reg .b16 x, y;\nmov.b32 {x, y}, %1;\n"
                 "setp.lt.s32 p, %2, %4;\nsetp.lt.s32 q, %3, %4;\n"
                 "@p st.global.b16 [%0], x;\n@q st.global.b16 [%0 + 2], y;\n}" ::"l"(to),
                 "r"(pair), "r"(at), "r"(at + 1), "r"(limit)
                 : "memory");
}

/* ... and 16 bytes that begin at `at`. */
__device__ static inline void store_wide_below(void *to, const uint32_t (&v)[4], int at,
                                               int limit) {
    asm volatile("{\n.reg .pred p;\nsetp.lt.s32 p, %5, %6;\n"
                 "@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::"l"(to),
                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(at), "r"(limit)
                 : "memory");
}
