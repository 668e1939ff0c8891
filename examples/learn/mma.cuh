/* mma.cuh: the instructions of tensor cores on SM 8.0 and newer, one function each, named as in
 * NVIDIA's manual (PTX ISA). Which element of a tile is in which register of which thread is the
 * whole difficulty; docs/learn.md draws it. */
#ifndef LEARN_MMA_CUH
#define LEARN_MMA_CUH

#include <cuda_bf16.h>
#include <stdint.h>

/* c (16 x 8, float) += a (16 x 16, bfloat16) b (16 x 8, bfloat16).  Thread l of the warp has of c
 * the elements (l / 4, 2 (l % 4)) and its right neighbour in c[0], c[1], and those eight rows below
 * in c[2], c[3]. */
__device__ static inline void mma_m16n8k16(float c[4], const uint32_t a[4], uint32_t b0,
                                           uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, "
                 "%6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8 x 8 matrices of 16-bit numbers from shared memory into the registers that mma wants.
 * Thread l gives the address of row l % 8 of matrix l / 8. */
__device__ static inline void ldmatrix_x4(uint32_t r[4], const void *row) {
    uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/* The same, each matrix transposed. */
__device__ static inline void ldmatrix_x4_trans(uint32_t r[4], const void *row) {
    uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/* 16 bytes from memory to shared memory, without registers, while the thread goes on; zeros instead
 * if !is_there. */
__device__ static inline void cp_async_16(void *to, const void *from, bool is_there = true) {
    uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    int bytes = is_there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "r"(bytes)
                 : "memory");
}

__device__ static inline void cp_async_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most `left` of this thread's groups are under way. */
template <int left> __device__ static inline void cp_async_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/* Two floats as a pair of bfloat16, the first in the lower half. */
__device__ static inline uint32_t pack(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&pair;
}

/* bfloat16 on the host: the upper half of a float, rounded to nearest, ties to even. */
static inline uint16_t bf16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float bf16_value(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
