/* Instructions of SM 9.0a by name: products of a warpgroup (wgmma), bulk copies of tiles (TMA), the
 * mbarriers they complete on, and the registers of a warpgroup (setmaxnreg).  Files that include
 * this are compiled for sm_90a alone. */
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

#include "cuda/core/ptx.cuh"

__device__ static inline void barrier_init(uint64_t *barrier, int n_arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(n_arrivals));
}

/* Makes initialised barriers known to TMA. */
__device__ static inline void barrier_init_done() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ static inline void barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

/* One arrival, and the number of bytes that copies will deliver. */
__device__ static inline void barrier_expect(uint64_t *barrier, uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}

/* Waits until the phase of this parity is over. */
__device__ static inline void barrier_wait(uint64_t *barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra over;\n"
                 "bra again;\n"
                 "over:\n"
                 "}\n" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* A counter in shared memory: a thread that reads it (acquire) sees all writes made before the
 * addition (release). */
__device__ static inline void add_release(int *count, int x) {
    asm volatile("red.release.cta.shared::cta.add.s32 [%0], %1;" ::"r"(shared_address(count)),
                 "r"(x)
                 : "memory");
}
__device__ static inline int load_acquire(const int *count) {
    int x;
    asm volatile("ld.acquire.cta.shared::cta.s32 %0, [%1];"
                 : "=r"(x)
                 : "r"(shared_address(count))
                 : "memory");
    return x;
}

/* Adds to a word in shared memory without returning the old value. */
__device__ static inline void add_shared(uint32_t address, int x) {
    asm volatile("red.relaxed.cta.shared::cta.add.s32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

/* The barrier of a cluster's threads: all of them arrive, then wait; what they wrote to the shared
 * memory of any of its blocks is visible after it. */
__device__ static inline void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ static inline void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Where block `rank` of the cluster has what this block has at p in its shared memory. */
template <typename T> __device__ static inline T *cluster_map(T *p, int rank) {
    uint64_t to;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(to) : "l"((uint64_t)p), "r"(rank));
    return (T *)to;
}

/* For kernels launched by cuda_launch_early: grid_wait waits until the previous kernel is complete
 * and its writes are visible; grid_launch_next allows the next kernel, if launched the same way, to
 * start where there is room. */
__device__ static inline void grid_wait() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ static inline void grid_launch_next() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* True for one lane of a warp, in a form that tells the compiler that it is exactly one. */
__device__ static inline bool elect_one() {
    uint32_t is_it;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(is_it));
    return is_it != 0;
}

__device__ static inline void tile_prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"((uint64_t)map) : "memory");
}

/* Loads the box of `map` at column x, row y to shared memory; completes on the barrier. */
__device__ static inline void tile_load(void *to, const CUtensorMap *map, uint64_t *barrier, int x,
                                        int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
                 "l"((uint64_t)map), "r"(shared_address(barrier)), "r"(x), "r"(y)
                 : "memory");
}

/* Stores a box from shared memory at column x, row y; what is outside of the array is left out. */
__device__ static inline void tile_store(const CUtensorMap *map, uint32_t from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\n"
                 "cp.async.bulk.commit_group;" ::"l"((uint64_t)map),
                 "r"(from), "r"(x), "r"(y)
                 : "memory");
}

/* Waits until all but the thread's last N stores have read their shared memory. */
template <int N> __device__ static inline void tile_stores_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/* Like tile_load for a map of three dimensions. */
__device__ static inline void tile_load_3d(void *to, const CUtensorMap *map, uint64_t *barrier,
                                           int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)),
                 "l"((uint64_t)map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

/* And of four. */
__device__ static inline void tile_load_4d(void *to, const CUtensorMap *map, uint64_t *barrier,
                                           int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
                 "l"((uint64_t)map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

/* Copies contiguous bytes, a multiple of 16: bulk_load from memory to shared memory, completing on
 * the barrier; bulk_store back, in groups that the issuing thread can wait for. */
__device__ static inline void bulk_load(void *to, const void *from, uint32_t bytes,
                                        uint64_t *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"((uint64_t)from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}
__device__ static inline void bulk_store(void *to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"((uint64_t)to),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
}
/* Waits until the thread's stores have read their shared memory, or until they are in memory. */
__device__ static inline void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ static inline void bulk_wait_stored() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* A tile in shared memory whose rows of 128 bytes are swizzled by 128 bytes, 8 rows in 1024 bytes.
 * `next` is the distance in bytes between blocks of 64 columns, used where the instruction runs
 * along the rows (B stored by rows) and ignored otherwise. */
__device__ static inline uint64_t tile_describe(const void *tile, uint32_t next) {
    uint32_t at = (shared_address(tile) & 0x3ffffu) >> 4;
    /* Opaque, so that the compiler does not keep the descriptors of a resident tile, one for
     * each step of a product, in registers that the sums need. */
    asm volatile("" : "+r"(at));
    return at | (uint64_t)(next >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* The descriptor `bytes` further on.  The address is in the low half and does not carry out of it;
 * the assembly shows this to the compiler, which would otherwise keep a high half for every
 * step. */
__device__ static inline uint64_t tile_move(uint64_t description, uint32_t bytes) {
    uint32_t low = (uint32_t)description + (bytes >> 4);
    return (description & 0xffffffff00000000ull) | low;
}

/* Makes registers written before visible to the products that follow. */
__device__ static inline void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ static inline void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until at most N groups are under way. */
template <int N> __device__ static inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Makes this thread's writes to shared memory visible to products and copies after the next
 * barrier. */
__device__ static inline void shared_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Increases or decreases the registers of each thread of a warpgroup. */
template <int N> __device__ static inline void registers_raise() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ static inline void registers_lower() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* Stores four 8 x 8 matrices of 16-bit elements from fragments of a left operand to shared memory:
 * lane l has the address of row l % 8 of matrix l / 8. */
__device__ static inline void stmatrix_x4(uint32_t address, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* Stores 16 bytes at once, where the compiler would make four stores; streaming, so that the L2
 * cache keeps what is read again. */
__device__ static inline void store_four(void *to, const uint32_t (&v)[4]) {
    asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v[0]), "r"(v[1]),
                 "r"(v[2]), "r"(v[3])
                 : "memory");
}

/* Adds four floats to memory without returning the old values. */
__device__ static inline void add_four(float *to, float a, float b, float c, float d) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a),
                 "f"(b), "f"(c), "f"(d)
                 : "memory");
}

/* Adds two floats to memory without returning the old values. */
__device__ static inline void add_two(float *to, float a, float b) {
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(a), "f"(b)
                 : "memory");
}

/* Waits at a numbered barrier of n threads (0 is __syncthreads). */
__device__ static inline void named_barrier(int number, int n) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(n) : "memory");
}

/* Arrives there without waiting. */
__device__ static inline void named_barrier_arrive(int number, int n) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(n) : "memory");
}

/* d (64, N) (+)= A B, over 16 values of k at a time.  wgmma_ss: A and B are tiles in shared memory,
 * both K-major; wgmma_tt: both MN-major. wgmma_rs: A is in registers, B is MN-major.  A thread's d
 * has the layout of mma m16n8k16, N / 8 times. */
template <typename T, int N>
__device__ void wgmma_ss(float (&d)[N / 2], uint64_t a, uint64_t b, int adds);
template <typename T, int N>
__device__ void wgmma_tt(float (&d)[N / 2], uint64_t a, uint64_t b, int adds);
template <typename T, int N>
__device__ void wgmma_rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int adds);

/* A thread's d as the instructions list it: 8 operands, and their numbers. */
#define WG_D8(I)                                                                                   \
    "+f"(d[I]), "+f"(d[I + 1]), "+f"(d[I + 2]), "+f"(d[I + 3]), "+f"(d[I + 4]), "+f"(d[I + 5]),    \
        "+f"(d[I + 6]), "+f"(d[I + 7])
#define WG_REGISTERS_16  WG_D8(0), WG_D8(8)
#define WG_REGISTERS_32  WG_REGISTERS_16, WG_D8(16), WG_D8(24)
#define WG_REGISTERS_48  WG_REGISTERS_32, WG_D8(32), WG_D8(40)
#define WG_REGISTERS_64  WG_REGISTERS_48, WG_D8(48), WG_D8(56)
#define WG_REGISTERS_80  WG_REGISTERS_64, WG_D8(64), WG_D8(72)
#define WG_REGISTERS_96  WG_REGISTERS_80, WG_D8(80), WG_D8(88)
#define WG_REGISTERS_112 WG_REGISTERS_96, WG_D8(96), WG_D8(104)
#define WG_REGISTERS_128 WG_REGISTERS_112, WG_D8(112), WG_D8(120)
#define WG_LIST_16       "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WG_LIST_32                                                                                 \
    WG_LIST_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WG_LIST_48                                                                                 \
    WG_LIST_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WG_LIST_64                                                                                 \
    WG_LIST_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WG_LIST_80                                                                                 \
    WG_LIST_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define WG_LIST_96                                                                                 \
    WG_LIST_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WG_LIST_112                                                                                \
    WG_LIST_96 ", %96, %97, %98, %99, %100, %101, %102, %103"                                      \
               ", %104, %105, %106, %107, %108, %109, %110, %111"
#define WG_LIST_128                                                                                \
    WG_LIST_112 ", %112, %113, %114, %115, %116, %117, %118, %119"                                 \
                ", %120, %121, %122, %123, %124, %125, %126, %127"

#define WGMMA_SHARED(NAME, BY_ROWS, T, TYPE, N, HALF, A, B, P)                                     \
    template <>                                                                                    \
    __device__ inline void NAME<T, N>(float(&d)[HALF], uint64_t a, uint64_t b, int adds) {         \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\n"                               \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE               \
                     " {" WG_LIST_##HALF "}, %" A ", %" B ", p, 1, 1, " BY_ROWS ";\n}\n"           \
                     : WG_REGISTERS_##HALF                                                         \
                     : "l"(a), "l"(b), "r"(adds));                                                 \
    }
#define WGMMA_RS(T, TYPE, N, HALF, A0, A1, A2, A3, B, P)                                           \
    template <>                                                                                    \
    __device__ inline void wgmma_rs<T, N>(float(&d)[HALF], const uint32_t(&a)[4], uint64_t b,      \
                                          int adds) {                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\n"                               \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE               \
                     " {" WG_LIST_##HALF "}, {%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" B            \
                                         ", p, 1, 1, 1;\n}\n"                                      \
                     : WG_REGISTERS_##HALF                                                         \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));             \
    }
#define WGMMA_ALL(T, TYPE)                                                                         \
    WGMMA_SHARED(wgmma_ss, "0, 0", T, TYPE, 64, 32, "32", "33", "34")                              \
    WGMMA_SHARED(wgmma_ss, "0, 0", T, TYPE, 128, 64, "64", "65", "66")                             \
    WGMMA_SHARED(wgmma_tt, "1, 1", T, TYPE, 32, 16, "16", "17", "18")                              \
    WGMMA_SHARED(wgmma_tt, "1, 1", T, TYPE, 64, 32, "32", "33", "34")                              \
    WGMMA_SHARED(wgmma_tt, "1, 1", T, TYPE, 128, 64, "64", "65", "66")                             \
    WGMMA_SHARED(wgmma_tt, "1, 1", T, TYPE, 256, 128, "128", "129", "130")                         \
    WGMMA_RS(T, TYPE, 32, 16, "16", "17", "18", "19", "20", "21")                                  \
    WGMMA_RS(T, TYPE, 64, 32, "32", "33", "34", "35", "36", "37")                                  \
    WGMMA_RS(T, TYPE, 128, 64, "64", "65", "66", "67", "68", "69")                                 \
    WGMMA_RS(T, TYPE, 256, 128, "128", "129", "130", "131", "132", "133")

WGMMA_ALL(__nv_bfloat16, "bf16")
WGMMA_ALL(__half, "f16")
WGMMA_SHARED(wgmma_ss, "0, 0", __nv_bfloat16, "bf16", 96, 48, "48", "49", "50")
WGMMA_SHARED(wgmma_ss, "0, 0", __nv_bfloat16, "bf16", 160, 80, "80", "81", "82")
WGMMA_SHARED(wgmma_ss, "0, 0", __nv_bfloat16, "bf16", 192, 96, "96", "97", "98")

/* wgmma_ss of 8-bit floats, over 32 values of k.  The tensor cores keep about 14 bits of a sum. */
#define WGMMA_FP8(N, HALF, A, B, P)                                                                \
    template <>                                                                                    \
    __device__ inline void wgmma_ss<__nv_fp8_e4m3, N>(float(&d)[HALF], uint64_t a, uint64_t b,     \
                                                      int adds) {                                  \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\n"                               \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3"                    \
                     " {" WG_LIST_##HALF "}, %" A ", %" B ", p, 1, 1;\n}\n"                        \
                     : WG_REGISTERS_##HALF                                                         \
                     : "l"(a), "l"(b), "r"(adds));                                                 \
    }
WGMMA_FP8(128, 64, "64", "65", "66")

/* After wgmma_wait: the compiler may read the sums of products from here on, and not before. */
template <int N> __device__ static inline void wgmma_sums(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* d (64, 32) (+)= A B^T over 16 values of k: A in registers, B a tile in shared memory, K-major. */
__device__ static inline void wgmma_rk(float (&d)[16], const uint32_t (&a)[4], uint64_t b,
                                       int adds) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" WG_LIST_16
                 "}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}\n"
                 : WG_REGISTERS_16
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));
}

/* Like tile_describe, for rows of 64 bytes swizzled by 64 bytes: 8 rows in 512 bytes. */
__device__ static inline uint64_t tile_describe_64(const void *tile) {
    uint32_t at = (shared_address(tile) & 0x3ffffu) >> 4;
    asm volatile("" : "+r"(at));
    return at | (uint64_t)1 << 16 | (uint64_t)(512 >> 4) << 32 | (uint64_t)2 << 62;
}
