/* Where generated kernels run: the CPU through the system's C compiler, or a GPU through NVRTC.
 *
 * A target compiles kernels (through the cache of kernel_cache.h), owns memory and runs kernels in
 * order.  compile may be called from several threads; everything else from one. */
#pragma once

#include "ops/ops.h"
#include "tune/emit.h"
#include "tune/kernel_cache.h"

/* What is known of a compiled kernel; figures of the GPU are 0 on the CPU. */
typedef struct kernel_facts {
    int32_t threads, registers;
    int64_t shared_bytes, static_shared_bytes, local_bytes;
    int32_t blocks_per_sm, max_warps_per_sm; /* theoretical occupancy */
    const char *limited_by;                  /* "registers" */
} kernel_facts;

typedef struct target target;
typedef struct target_kernel target_kernel; /* a compiled kernel; the target's own */

struct target {
    const char *name; /* "cpu", or the name of the GPU */
    char arch[16];    /* "cpu", "sm_90": what plans are kept for */
    bool is_cuda;
    act_type act;
    int32_t shared_limit; /* bytes of shared memory a block can have; 0: no limit */
    backend *be;          /* runs its own ops, in order with the kernels; NULL: it cannot here */

    status (*compile)(target *t, const kernel_spec *s, target_kernel **out);
    void (*release)(target *t, target_kernel *k); /* NULL is fine */
    status (*facts)(target *t, const target_kernel *k, kernel_facts *out);
    status (*launch)(target *t, const target_kernel *k, const kernel_args *args, int64_t n_blocks);
    status (*alloc)(target *t, void **out, size_t bytes);
    void (*release_memory)(target *t, void *memory);
    status (*write)(target *t, void *to, const void *from_host, size_t bytes);
    status (*read)(target *t, void *to_host, const void *from, size_t bytes);
    status (*fill)(target *t, void *to, int byte, size_t bytes);
    /* Waits for all that was launched. */
    status (*wait)(target *t);
    /* Times run(ctx), which launches only, after a warm-up: seconds of a call, the mean of enough
     * calls to be above the clock's grain, in each of `rounds` rounds. */
    status (*time)(target *t, status (*run)(void *ctx), void *ctx, int rounds, double *seconds);
    void (*destroy)(target *t);
};

/* The CPU.  `workers` must outlive it.  ERR_UNSUPPORTED without a compiler: set CC, or install
 * one. */
status target_create_cpu(target **out, pool *workers, const kernel_cache *cache);

/* GPU `device`, in float32, bfloat16 or float16.  NVRTC and the driver are looked for when this is
 * called; ERR_UNSUPPORTED says what is missing, ERR_DEVICE what is wrong with the GPU. */
status target_create_cuda(target **out, int device, act_type act, const kernel_cache *cache);

/* Compiles CUDA source for compute capability `sm` (80, 90, ...); needs no GPU. */
status target_compile_cuda(const buf *source, int sm, buf *cubin);

/* The target of a backend that exists, in its precision: kernels run in order with its ops.  The
 * backend must outlive it. */
status target_create_on(target **out, backend *be, pool *workers, const kernel_cache *cache);

status target_create_cuda_on(target **out, backend *be, const kernel_cache *cache);

void target_destroy(target *t); /* NULL is fine */

/* Seconds of one round of calls. */
#define TARGET_ROUND 2e-3

/* The version of the C compiler, and of NVRTC, for `hstu doctor`; false where there is none. */
bool target_compiler_version(char *text, size_t n);
bool target_nvrtc_version(char *text, size_t n);

/* The measured peaks of a target's backend (profile/peak.h), with which the rates of kernels are
 * compared; 0: it has none. */
typedef struct target_peak {
    double bytes_per_s; /* of a large copy, read plus written */
    double flop_per_s;  /* of a large product */
} target_peak;

/* Needs about 1.4 GB of device memory on a GPU. */
status target_peak_measure(target *t, target_peak *out);
