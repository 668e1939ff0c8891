/* The attention of hstu.h: what it refuses, anywhere; what it computes, against the CPU's op, where
 * there is a GPU. */
#include "base/half.h"
#include "base/rng.h"
#include "cpu/attn_naive.h"
#include "dense_test.h"
#include "hstu.h"
#include "ops/mask_tiles.h"
#include "test.h"

#ifdef HSTU_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

/* Good arguments whose memory nobody looks at. */
static hstu_attn_varlen_args good_args(void) {
    static int32_t memory[64];
    hstu_attn_varlen_args a;
    hstu_attn_varlen_defaults(&a);
    a.batch_size = 2;
    a.num_heads = 4;
    a.dim_qk = a.dim_v = 32;
    a.total_q = a.total_k = 20;
    a.max_seqlen_q = a.max_seqlen_k = 12;
    a.cu_seqlens_q = a.cu_seqlens_k = memory;
    a.q = a.k = a.v = a.dout = memory;
    a.out = a.dq = a.dk = a.dv = memory;
    return a;
}

/* The CPU refuses the type of good_args, after all else has been checked. */
static void check_pass(const hstu_attn_varlen_args *a, bool is_backward, const char *reason) {
    hstu_attn *attn;
    CHECK_EQ(hstu_attn_create(&attn, HSTU_ATTN_CPU), HSTU_OK);
    hstu_status st =
        is_backward ? hstu_attn_varlen_bwd(attn, a, NULL) : hstu_attn_varlen_fwd(attn, a, NULL);
    CHECK_CONTAINS(hstu_error(), reason);
    bool is_good = strstr(reason, "in HSTU_FLOAT32") != NULL;
    CHECK_EQ(st, is_good ? HSTU_ERR_UNSUPPORTED : HSTU_ERR_USAGE);
    hstu_attn_destroy(attn);
}

static void check_refused(const hstu_attn_varlen_args *a, const char *reason) {
    check_pass(a, false, reason);
    check_pass(a, true, reason);
}

#define REFUSED(change, reason)                                                                    \
    do {                                                                                           \
        hstu_attn_varlen_args a = good_args();                                                     \
        change;                                                                                    \
        check_refused(&a, reason);                                                                 \
    } while (0)

TEST(api_attn_refuses_sizes) {
    REFUSED((void)a, "in HSTU_FLOAT32"); /* nothing else is wrong */
    REFUSED(a.alpha = NAN, "alpha is nan");
    REFUSED(a.alpha = INFINITY, "alpha is inf");
    REFUSED(a.dtype = (hstu_dtype)3, "dtype is 3");
    REFUSED(a.batch_size = -1, "must not be negative");
    REFUSED(a.max_seqlen_q = 13, "max_seqlen_q is 13, more than max_seqlen_k, 12");
    REFUSED(a.num_heads = 0, "0 heads");
    REFUSED(a.dim_v = 0, "dimension 32 and 0");
    REFUSED(a.scaling_seqlen = 0, "scaling_seqlen is 0");
}

TEST(api_attn_refuses_masks) {
    REFUSED(a.num_targets = a.cu_seqlens_k,
            "need window_left -1 and window_right 0, not -1 and -1");
    REFUSED((a.num_contexts = a.cu_seqlens_k, a.window_right = 0, a.window_left = 5),
            "not 5 and 0");
    REFUSED((a.num_targets = a.cu_seqlens_k, a.window_right = 0, a.target_group_size = 0),
            "target_group is 0");
    REFUSED((a.func = a.cu_seqlens_k, a.n_func = 2), "must be odd");
    REFUSED((a.func = a.cu_seqlens_k, a.n_func = 3, a.func_stride = 19), "func_stride is 19");
    REFUSED((a.rab = a.q, a.rab_heads = 2), "bias table of 2 heads");
    REFUSED(a.drab = (float *)a.out, "drab without rab");
}

TEST(api_attn_refuses_arrays) {
    REFUSED(a.q = NULL, "q is NULL");
    REFUSED(a.cu_seqlens_k = NULL, "cu_seqlens_k is NULL");
    REFUSED(a.stride_v = 127, "rows of v are 127 elements apart, but have 128");
    REFUSED(a.k = (const char *)a.k + 1, "k is not aligned");
    hstu_attn_varlen_args a = good_args();
    a.out = NULL; /* the forward pass alone needs it */
    check_pass(&a, false, "out is NULL");
    check_pass(&a, true, "in HSTU_FLOAT32");
    a.dk = NULL;
    check_pass(&a, true, "dk is NULL");
}

TEST(api_attn_of_a_gpu_that_is_not_there) {
    hstu_attn *attn = (hstu_attn *)&attn;
    hstu_status st = hstu_attn_create(&attn, 99);
    CHECK(attn == NULL);
#ifdef HSTU_HAS_CUDA
    CHECK_EQ(st, HSTU_ERR_DEVICE);
#else
    CHECK_EQ(st, HSTU_ERR_UNSUPPORTED);
    CHECK_CONTAINS(hstu_error(), "without CUDA");
#endif
    hstu_attn_destroy(NULL);
}

#ifdef HSTU_HAS_CUDA

enum { USERS = 4, HEADS = 2, TOKENS = 300, LONGEST = 129 };

static const int32_t gpu_offsets[USERS + 1] = {0, 129, 129, 193, TOKENS};
static const int32_t targets[USERS] = {5, 0, 9, 40}, contexts[USERS] = {3, 0, 0, 7};

/* The numbers of one case, in float32 on the host, and the CPU's results. */
typedef struct problem {
    attn_args a;
    int64_t n, n_table;
    precision p;
    float *input[4], *table; /* q, k, v, dout; exact in the precision */
    float *result[4], *dtable;
} problem;

static precision precision_of(hstu_dtype dtype) {
    return dtype == HSTU_BFLOAT16  ? PRECISION_BF16
           : dtype == HSTU_FLOAT16 ? PRECISION_F16
                                   : PRECISION_F32;
}

static float *numbers(int64_t n, uint64_t seed, precision p) {
    float *x = floats(n, seed);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)precision_round_factor(p, x[i]);
    return x;
}

static void problem_open(problem *t, hstu_dtype dtype, int32_t dim, bool has_targets,
                         bool has_table) {
    backend *cpu;
    *t = (problem){.n = (int64_t)TOKENS * HEADS * dim, .p = precision_of(dtype)};
    attn_args *a = &t->a;
    *a = (attn_args){.n_sequences = USERS,
                     .n_heads = HEADS,
                     .dim_qk = dim,
                     .dim_v = dim,
                     .max_len_q = LONGEST,
                     .max_len_k = LONGEST,
                     .offsets_q = gpu_offsets,
                     .offsets_k = gpu_offsets,
                     .alpha = 0.25f,
                     .scale = 1.0f / LONGEST,
                     .window_left = -1,
                     .target_group = 2};
    if (has_targets) a->n_targets = targets, a->n_contexts = contexts;
    a->stride_q = a->stride_k = a->stride_v = a->stride_out = (int64_t)HEADS * dim;
    for (int i = 0; i < 4; i++) {
        t->input[i] = numbers(t->n, (uint64_t)i, t->p);
        t->result[i] = floats(t->n, 9);
    }
    if (has_table) {
        a->bias = BIAS_TABLE;
        a->table_heads = HEADS;
        a->table_len = LONGEST;
        t->n_table = (int64_t)USERS * HEADS * LONGEST * LONGEST;
        a->table = t->table = numbers(t->n_table, 5, t->p);
        a->dtable = t->dtable = floats(t->n_table, 9);
        memset(t->dtable, 0, (size_t)t->n_table * sizeof(float));
    }
    a->q = t->input[0], a->k = t->input[1], a->v = t->input[2], a->dout = t->input[3];
    a->out = t->result[0], a->dq = t->result[1], a->dk = t->result[2], a->dv = t->result[3];
    CHECK_OK(backend_create_cpu(&cpu, NULL));
    CHECK_OK(cpu->ops->attn_fwd(cpu, a));
    CHECK_OK(cpu->ops->attn_bwd(cpu, a));
    backend_destroy(cpu);
}

static void problem_close(problem *t) {
    for (int i = 0; i < 4; i++) {
        mem_free(t->input[i]);
        mem_free(t->result[i]);
    }
    mem_free(t->table);
    mem_free(t->dtable);
}

#define CHECK_CUDA(call)                                                                           \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess) FAIL_TEST("%s: %s", #call, cudaGetErrorString(error_));         \
    } while (0)

/* Memory of the GPU with these values in a type, or with undefined bytes. */
static void *send(const float *x, int64_t n, precision p) {
    size_t size = act_bytes(precision_act(p));
    void *there, *here = malloc((size_t)n * size);
    CHECK(here != NULL);
    for (int64_t i = 0; x != NULL && i < n; i++) {
        if (size == 4)
            ((float *)here)[i] = x[i];
        else
            ((uint16_t *)here)[i] =
                p == PRECISION_BF16 ? bf16_from_float(x[i]) : f16_from_float(x[i]);
    }
    CHECK_CUDA(cudaMalloc(&there, (size_t)n * size));
    CHECK_CUDA(cudaMemset(there, 0xff, (size_t)n * size));
    if (x != NULL) CHECK_CUDA(cudaMemcpy(there, here, (size_t)n * size, cudaMemcpyHostToDevice));
    free(here);
    return there;
}

static int32_t *send_ints(const int32_t *x, int n) {
    void *there;
    CHECK_CUDA(cudaMalloc(&there, (size_t)n * sizeof *x));
    CHECK_CUDA(cudaMemcpy(there, x, (size_t)n * sizeof *x, cudaMemcpyHostToDevice));
    return there;
}

static void check_near(const char *what, const void *there, const float *want, int64_t n,
                       precision p) {
    static const double limits[] = {1e-5, 0, 3e-2, 4e-3};
    size_t size = act_bytes(precision_act(p));
    char *here = malloc((size_t)n * size);
    double largest = 0, error = 0;
    CHECK(here != NULL);
    CHECK_CUDA(cudaMemcpy(here, there, (size_t)n * size, cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < n; i++) {
        float got = size == 4             ? ((float *)here)[i]
                    : p == PRECISION_BF16 ? half_bf16_to_float(((uint16_t *)here)[i])
                                          : half_f16_to_float(((uint16_t *)here)[i]);
        double off = fabs((double)got - (double)want[i]);
        largest = fmax(largest, fabs((double)want[i]));
        error = worse_error(error, off);
    }
    free(here);
    if (!(error <= limits[p] * largest))
        FAIL_TEST("%s in %s: error %g of %g", what, precision_name(p), error, largest);
}

/* The public arguments of a problem, in memory of the GPU that ends with the process. */
static hstu_attn_varlen_args gpu_args(const problem *t, hstu_dtype dtype) {
    hstu_attn_varlen_args a;
    hstu_attn_varlen_defaults(&a);
    a.dtype = dtype;
    a.batch_size = USERS;
    a.num_heads = HEADS;
    a.dim_qk = a.dim_v = t->a.dim_qk;
    a.total_q = a.total_k = TOKENS;
    a.max_seqlen_q = a.max_seqlen_k = LONGEST;
    a.cu_seqlens_q = a.cu_seqlens_k = send_ints(gpu_offsets, USERS + 1);
    a.window_right = 0;
    a.alpha = t->a.alpha;
    a.target_group_size = t->a.target_group;
    if (t->a.n_targets != NULL) {
        a.num_targets = send_ints(targets, USERS);
        a.num_contexts = send_ints(contexts, USERS);
    }
    a.q = send(t->input[0], t->n, t->p);
    a.k = send(t->input[1], t->n, t->p);
    a.v = send(t->input[2], t->n, t->p);
    a.dout = send(t->input[3], t->n, t->p);
    a.out = send(NULL, t->n, t->p);
    a.dq = send(NULL, t->n, t->p);
    a.dk = send(NULL, t->n, t->p);
    a.dv = send(NULL, t->n, t->p);
    if (t->table != NULL) {
        a.rab = send(t->table, t->n_table, t->p);
        a.rab_heads = HEADS;
        a.drab = send(t->table, t->n_table, PRECISION_F32);
        CHECK_CUDA(cudaMemset(a.drab, 0, (size_t)t->n_table * sizeof(float)));
    }
    CHECK_CUDA(cudaDeviceSynchronize());
    return a;
}

static void check_results(const problem *t, const hstu_attn_varlen_args *a) {
    check_near("out", a->out, t->result[0], t->n, t->p);
    check_near("dq", a->dq, t->result[1], t->n, t->p);
    check_near("dk", a->dk, t->result[2], t->n, t->p);
    check_near("dv", a->dv, t->result[3], t->n, t->p);
    if (a->drab == NULL) return;
    float *got = copy_floats(t->dtable, t->n_table);
    double error = 0, largest = 0;
    CHECK_CUDA(cudaMemcpy(got, a->drab, (size_t)t->n_table * sizeof *got, cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < t->n_table; i++) {
        double off = fabs((double)got[i] - (double)t->dtable[i]);
        largest = fmax(largest, fabs((double)t->dtable[i]));
        error = worse_error(error, off);
    }
    CHECK(error <= 3e-2 * largest);
    mem_free(got);
}

static hstu_attn *open_attn(void) {
    hstu_attn *attn;
    if (test_on.p != PRECISION_F32 || !test_on.is_deterministic)
        SKIP_TEST("runs once, without --dtype and --fast");
    hstu_status st = hstu_attn_create(&attn, test_on.number);
    if (st == HSTU_ERR_DEVICE) SKIP_TEST("%s", hstu_error());
    CHECK_EQ(st, HSTU_OK);
    return attn;
}

static void run_both(hstu_attn *attn, const hstu_attn_varlen_args *a, cudaStream_t stream) {
    CHECK_OK((status)hstu_attn_varlen_fwd(attn, a, stream));
    CHECK_OK((status)hstu_attn_varlen_bwd(attn, a, stream));
}

/* Every type, by one handle, on a stream of the caller's. */
TEST(api_attn_computes_what_the_cpu_does) {
    static const int32_t dims[] = {32, 50, 128};
    hstu_attn *attn = open_attn();
    cudaStream_t stream;
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int dtype = HSTU_FLOAT32; dtype <= HSTU_FLOAT16; dtype++)
        for (int i = 0; i < 3; i++) {
            problem t;
            problem_open(&t, (hstu_dtype)dtype, dims[i], i != 1, i == 1);
            hstu_attn_varlen_args a = gpu_args(&t, (hstu_dtype)dtype);
            a.is_deterministic = i == 1;
            run_both(attn, &a, stream);
            CHECK_CUDA(cudaStreamSynchronize(stream));
            check_results(&t, &a);
            problem_close(&t);
        }
    hstu_attn_destroy(attn);
}

/* Replaying a captured call gives the same result, also after scratch memory has grown. */
TEST(api_attn_can_be_captured) {
    hstu_attn *attn = open_attn();
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    problem t, other;
    problem_open(&t, HSTU_BFLOAT16, 64, true, false);
    problem_open(&other, HSTU_FLOAT32, 128, false, true);
    hstu_attn_varlen_args a = gpu_args(&t, HSTU_BFLOAT16), b = gpu_args(&other, HSTU_FLOAT32);
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    run_both(attn, &a, stream);
    CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    run_both(attn, &a, stream);
    CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    run_both(attn, &b, stream);
    CHECK_CUDA(cudaMemsetAsync(a.out, 0xff, (size_t)t.n * 2, stream));
    CHECK_CUDA(cudaMemsetAsync(a.dk, 0xff, (size_t)t.n * 2, stream));
    CHECK_CUDA(cudaGraphLaunch(exec, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    check_results(&t, &a);
    check_results(&other, &b);
    problem_close(&t);
    problem_close(&other);
    hstu_attn_destroy(attn);
}

/* q, k and v as parts of one array, gradients at odd addresses, and no tokens at all. */
TEST(api_attn_of_rows_in_one_array) {
    enum { DIM = 128, WIDTH = HEADS * DIM, STRIDE = 3 * WIDTH };
    hstu_attn *attn = open_attn();
    problem t;
    problem_open(&t, HSTU_BFLOAT16, DIM, false, false);
    hstu_attn_varlen_args a = gpu_args(&t, HSTU_BFLOAT16);
    float *rows = floats((int64_t)TOKENS * STRIDE, 1);
    for (int64_t r = 0; r < TOKENS; r++)
        for (int i = 0; i < 3; i++)
            memcpy(rows + r * STRIDE + i * WIDTH, t.input[i] + r * WIDTH, WIDTH * sizeof *rows);
    const uint16_t *all = send(rows, (int64_t)TOKENS * STRIDE, t.p);
    uint16_t *grads = send(NULL, (int64_t)TOKENS * STRIDE + 1, t.p);
    a.q = all, a.k = all + WIDTH, a.v = all + 2 * (int64_t)WIDTH;
    a.dq = grads + 1, a.dk = grads + 1 + WIDTH, a.dv = grads + 1 + 2 * (int64_t)WIDTH;
    a.stride_q = a.stride_k = a.stride_v = STRIDE;
    run_both(attn, &a, NULL);
    CHECK_CUDA(cudaDeviceSynchronize());
    check_near("out", a.out, t.result[0], t.n, t.p);
    float *want = floats((int64_t)TOKENS * STRIDE, 2);
    for (int64_t r = 0; r < TOKENS; r++)
        for (int i = 0; i < 3; i++)
            memcpy(want + r * STRIDE + i * WIDTH, t.result[i + 1] + r * WIDTH,
                   WIDTH * sizeof *want);
    check_near("dq, dk, dv", grads + 1, want, (int64_t)TOKENS * STRIDE, t.p);
    a.batch_size = 0;
    a.total_q = a.total_k = 0;
    run_both(attn, &a, NULL);
    CHECK_CUDA(cudaDeviceSynchronize());
    mem_free(rows);
    mem_free(want);
    problem_close(&t);
    hstu_attn_destroy(attn);
}

#endif

/* max_seqlen is a bound: any larger one gives the same results. */
static void check_far_too_long(hstu_attn *attn, hstu_attn_varlen_args *a) {
    hstu_attn_varlen_args large = *a;
    size_t n = (size_t)(a->total_q * a->num_heads * a->dim_v);
    float *got[4], *want[] = {a->out, a->dq, a->dk, a->dv};
    for (int i = 0; i < 4; i++) {
        CHECK((got[i] = malloc(n * sizeof(float))) != NULL);
        memset(got[i], 0xff, n * sizeof(float));
    }
    large.max_seqlen_q = large.max_seqlen_k = INT32_MAX;
    large.scaling_seqlen = a->max_seqlen_q;
    large.out = got[0], large.dq = got[1], large.dk = got[2], large.dv = got[3];
    CHECK_EQ(hstu_attn_varlen_fwd(attn, &large, NULL), HSTU_OK);
    CHECK_EQ(hstu_attn_varlen_bwd(attn, &large, NULL), HSTU_OK);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(memcmp(got[i], want[i], n * sizeof(float)), 0);
        free(got[i]);
    }
}

/* The results are divided by scaling_seqlen, or by max_seqlen_q. */
static void check_scaling(hstu_attn *attn, const hstu_attn_varlen_args *a) {
    static const int32_t by[] = {1, 2, 3, 1000};
    float got[64], *want = a->out;
    int n = (int)(a->total_q * a->num_heads * a->dim_v);
    CHECK(n <= 64);
    for (int i = 0; i < 4; i++) {
        hstu_attn_varlen_args scaled = *a;
        double factor = (double)a->max_seqlen_q / by[i];
        scaled.out = got;
        scaled.scaling_seqlen = by[i];
        CHECK_EQ(hstu_attn_varlen_fwd(attn, &scaled, NULL), HSTU_OK);
        for (int j = 0; j < n; j++)
            CHECK(fabs((double)got[j] - factor * (double)want[j]) <= 1e-6 * factor);
    }
}

/* Rows may be far apart, each array's by its own stride: the results are the same, and nothing
 * between the rows is read or written. */
static void check_strides(hstu_attn *attn, const hstu_attn_varlen_args *a) {
    enum { ROOM = 100 };
    hstu_attn_varlen_args far = *a;
    int width = a->num_heads * a->dim_v, n = (int)a->total_q;
    const float *from[] = {a->q, a->k, a->v, a->dout}, *want[] = {a->dq, a->dk, a->dv, a->out};
    float in[4][ROOM], out[4][ROOM];
    CHECK(n * (width + 4) <= ROOM);
    memset(in, 0xff, sizeof in); /* NaN */
    memset(out, 0xff, sizeof out);
    for (int i = 0; i < 4; i++)
        for (int row = 0; row < n; row++)
            memcpy(in[i] + row * (width + 1 + i), from[i] + row * width,
                   (size_t)width * sizeof(float));
    far.q = in[0], far.k = in[1], far.v = in[2], far.dout = in[3];
    far.dq = out[0], far.dk = out[1], far.dv = out[2], far.out = out[3];
    far.stride_q = width + 1, far.stride_k = width + 2, far.stride_v = width + 3;
    far.stride_out = width + 4;
    CHECK_EQ(hstu_attn_varlen_fwd(attn, &far, NULL), HSTU_OK);
    CHECK_EQ(hstu_attn_varlen_bwd(attn, &far, NULL), HSTU_OK);
    for (int i = 0; i < 4 * ROOM; i++) {
        int which = i / ROOM, row = i % ROOM / (width + 1 + which),
            at = i % ROOM % (width + 1 + which);
        float got = out[which][i % ROOM];
        CHECK(row < n && at < width ? got == want[which][row * width + at] : isnan(got));
    }
}

/* On the CPU: two sequences, causal, by the formula; and what would be a crash. */
TEST(api_attn_on_the_cpu) {
    enum { T = 5, H = 2, D = 3 };
    static const int32_t starts[] = {0, 2, T}, bad[] = {0, 2, T + 1}, many[] = {0, 4},
                         short_of_end[] = {0, 2, T - 1}, not_from_0[] = {1, 2, T},
                         wild[3 * T] = {INT32_MAX, -9,        1000,    2, 0, INT32_MIN, -1, 5, 0, 7,
                                        INT32_MAX, INT32_MIN, 1 << 30, 3, -5};
    float q[T * H * D], k[T * H * D], v[T * H * D], out[T * H * D], dq[T * H * D], dk[T * H * D],
        dv[T * H * D];
    hstu_attn *attn;
    hstu_attn_varlen_args a;
    for (int i = 0; i < T * H * D; i++) {
        q[i] = (float)(i % 7) * 0.3f - 0.8f;
        k[i] = (float)(i % 5) * 0.4f - 0.7f;
        v[i] = (float)(i % 11) * 0.2f - 1;
    }
    CHECK_EQ(hstu_attn_create(&attn, HSTU_ATTN_CPU), HSTU_OK);
    hstu_attn_varlen_defaults(&a);
    a.dtype = HSTU_FLOAT32;
    a.batch_size = 2;
    a.num_heads = H;
    a.dim_qk = a.dim_v = D;
    a.total_q = a.total_k = T;
    a.max_seqlen_q = a.max_seqlen_k = 3;
    a.cu_seqlens_q = a.cu_seqlens_k = starts;
    a.q = q, a.k = k, a.v = v, a.out = out, a.dout = v, a.dq = dq, a.dk = dk, a.dv = dv;
    a.window_right = 0;
    a.alpha = 0.5f;
    CHECK_EQ(hstu_attn_varlen_fwd(attn, &a, NULL), HSTU_OK);
    CHECK_EQ(hstu_attn_varlen_bwd(attn, &a, NULL), HSTU_OK);
    for (int i = 0; i < T; i++) {
        for (int h = 0; h < H; h++) {
            double sum[D] = {0};
            for (int j = i < 2 ? 0 : 2; j <= i; j++) {
                double s = 0;
                for (int d = 0; d < D; d++)
                    s += 0.5 * (double)q[(i * H + h) * D + d] * (double)k[(j * H + h) * D + d];
                for (int d = 0; d < D; d++)
                    sum[d] += s / (1 + exp(-s)) / 3 * (double)v[(j * H + h) * D + d];
            }
            for (int d = 0; d < D; d++)
                CHECK(fabs((double)out[(i * H + h) * D + d] - sum[d]) < 1e-6);
        }
    }
    check_far_too_long(attn, &a);
    check_scaling(attn, &a);
    check_strides(attn, &a);
    a.cu_seqlens_q = bad;
    CHECK_EQ(hstu_attn_varlen_fwd(attn, &a, NULL), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "sequence 1 of cu_seqlens_q is not at 2 .. 6 of 5 rows");
    a.cu_seqlens_q = a.cu_seqlens_k = short_of_end;
    CHECK_EQ(hstu_attn_varlen_fwd(attn, &a, NULL), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "cu_seqlens_q are rows 0 .. 4; they must cover all 5 rows");
    a.cu_seqlens_q = starts;
    a.cu_seqlens_k = not_from_0;
    CHECK_EQ(hstu_attn_varlen_bwd(attn, &a, NULL), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "cu_seqlens_k are rows 1 .. 5; they must cover all 5 rows");
    a.cu_seqlens_k = starts;
    a.batch_size = 0;
    CHECK_EQ(hstu_attn_varlen_fwd(attn, &a, NULL), HSTU_ERR_USAGE);
    a.batch_size = 2;
    /* Spans of func beyond the keys see what there is, and no more. */
    a.func = wild;
    a.n_func = 3;
    CHECK_EQ(hstu_attn_varlen_fwd(attn, &a, NULL), HSTU_OK);
    CHECK_EQ(hstu_attn_varlen_bwd(attn, &a, NULL), HSTU_OK);
    a.func = NULL;
    /* All keys of a sequence may be targets, or contexts. */
    static const int32_t all[] = {2, 3};
    a.num_targets = all;
    CHECK_EQ(hstu_attn_varlen_fwd(attn, &a, NULL), HSTU_OK);
    a.num_targets = NULL;
    a.num_contexts = all;
    CHECK_EQ(hstu_attn_varlen_fwd(attn, &a, NULL), HSTU_OK);
    a.num_contexts = NULL;
    a.num_targets = many;
    CHECK_EQ(hstu_attn_varlen_fwd(attn, &a, NULL), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "sequence 1 has 3 queries, 0 contexts and 4 targets, but 3 keys");
    a.dtype = HSTU_BFLOAT16;
    CHECK_EQ(hstu_attn_varlen_bwd(attn, &a, NULL), HSTU_ERR_UNSUPPORTED);
    hstu_attn_destroy(attn);
    hstu_attn_destroy(NULL);
}

/* On the CPU, by the formula: fewer queries than keys, which are the last ones, and a bias for each
 * pair of places, shared by the heads or not. */
TEST(api_attn_adds_a_bias) {
    enum { TQ = 3, TK = 7, H = 2, D = 3, L = 4 };
    static const int32_t starts_q[] = {0, 1, TQ}, starts_k[] = {0, 3, TK};
    float q[TQ * H * D], k[TK * H * D], v[TK * H * D], out[TQ * H * D], rab[2 * H * L * L];
    hstu_attn *attn;
    hstu_attn_varlen_args a;
    for (int i = 0; i < TK * H * D; i++) {
        if (i < TQ * H * D) q[i] = (float)(i % 7) * 0.3f - 0.8f;
        k[i] = (float)(i % 5) * 0.4f - 0.7f;
        v[i] = (float)(i % 11) * 0.2f - 1;
    }
    for (int i = 0; i < 2 * H * L * L; i++)
        rab[i] = (float)(i * 37 % 29) * 0.1f - 1.4f;
    CHECK_EQ(hstu_attn_create(&attn, HSTU_ATTN_CPU), HSTU_OK);
    for (int heads = 1; heads <= H; heads++) {
        hstu_attn_varlen_defaults(&a);
        a.dtype = HSTU_FLOAT32;
        a.batch_size = 2;
        a.num_heads = H;
        a.dim_qk = a.dim_v = D;
        a.total_q = TQ, a.total_k = TK;
        a.max_seqlen_q = 2, a.max_seqlen_k = L;
        a.cu_seqlens_q = starts_q, a.cu_seqlens_k = starts_k;
        a.q = q, a.k = k, a.v = v, a.out = out;
        a.window_right = 0;
        a.rab = rab;
        a.rab_heads = heads;
        CHECK_EQ(hstu_attn_varlen_fwd(attn, &a, NULL), HSTU_OK);
        for (int i = 0; i < TQ * H; i++) {
            int row = i / H, h = i % H, b = row >= starts_q[1], first = starts_k[b];
            int place = row - starts_q[b + 1] + starts_k[b + 1] - first; /* among its keys */
            const float *bias = rab + ((b * heads + (heads == 1 ? 0 : h)) * L + place) * L;
            double sum[D] = {0};
            for (int j = 0; j <= place; j++) {
                double s = (double)bias[j];
                for (int d = 0; d < D; d++)
                    s += (double)q[i * D + d] * (double)k[((first + j) * H + h) * D + d];
                for (int d = 0; d < D; d++)
                    sum[d] += s / (1 + exp(-s)) / 2 * (double)v[((first + j) * H + h) * D + d];
            }
            for (int d = 0; d < D; d++)
                CHECK(fabs((double)out[i * D + d] - sum[d]) < 1e-6);
        }
    }
    hstu_attn_destroy(attn);
}

/* The softmax attention of hstu.h: what it computes on the CPU, against the naive version, and what
 * it refuses. */

enum { H = 2, D = 6, B = 3, T = 90, WIDTH = H * D };

static const int32_t lengths[B] = {70, 0, 20}, offsets[B + 1] = {0, 70, 70, 90};

typedef struct arrays {
    float in[4][T * WIDTH], result[4][T * WIDTH], log_sum[T * H];
    double want[4][T * WIDTH];
} arrays;

static hstu_softmax_attn_varlen_args args_of(arrays *x) {
    hstu_softmax_attn_varlen_args a;
    hstu_softmax_attn_varlen_defaults(&a);
    a.dtype = HSTU_FLOAT32;
    a.batch_size = B;
    a.num_heads = H;
    a.dim = D;
    a.total = T;
    a.max_seqlen = 70;
    a.cu_seqlens = offsets;
    a.q = x->in[0];
    a.k = x->in[1];
    a.v = x->in[2];
    a.dout = x->in[3];
    a.out = x->result[0];
    a.dq = x->result[1];
    a.dk = x->result[2];
    a.dv = x->result[3];
    a.log_sum = x->log_sum;
    return a;
}

static void check_mask(const char *text, float silu_scale, int32_t max_seqlen) {
    static arrays x;
    hstu_softmax_attn *attn;
    hstu_softmax_attn_varlen_args a = args_of(&x);
    memset(&x, 0, sizeof x);
    a.silu_scale = silu_scale;
    a.max_seqlen = max_seqlen;
    if (silu_scale != 0) a.log_sum = NULL;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < T * WIDTH; j++)
            x.in[i][j] =
                2 * rng_uniform(
                        rng_draw64(rng_make_key(1, RNG_TEST), (uint64_t)j, (uint64_t)i).word[0]) -
                1;
    CHECK_EQ(hstu_softmax_attn_create(&attn, -1, text), HSTU_OK);
    CHECK_EQ(hstu_softmax_attn_set_lengths(attn, 0, lengths, B, NULL), HSTU_OK);
    CHECK_EQ(hstu_softmax_attn_varlen_fwd(attn, &a, NULL), HSTU_OK);
    CHECK_EQ(hstu_softmax_attn_varlen_bwd(attn, &a, NULL), HSTU_OK);
    hstu_softmax_attn_destroy(attn);

    backend *be;
    mask *m;
    mask_batch *masks;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(mask_create(&m, text));
    CHECK_OK(mask_batch_create(&masks, be, m, B));
    CHECK_OK(mask_batch_set(masks, 0, B, lengths));
    softmax_attn_args naive = {.n_sequences = B, .n_heads = H, .dim = D, .max_len = 70};
    naive.offsets = offsets;
    naive.mask = *mask_batch_view(masks);
    naive.q = a.q;
    naive.k = a.k;
    naive.v = a.v;
    naive.dout = a.dout;
    naive.stride_q = naive.stride_k = naive.stride_v = naive.stride_out = WIDTH;
    naive.alpha = 1 / sqrtf(D);
    naive.silu_scale = silu_scale;
    attn_naive_results to = {x.want[0], x.want[1], x.want[2], x.want[3], NULL, NULL, NULL, NULL};
    for (int32_t b = 0; b < B; b++)
        softmax_attn_naive_sequence(&naive, b, NULL, &to);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < T * WIDTH; j++)
            CHECK(fabs((double)x.result[i][j] - x.want[i][j]) < 3e-6);
    mask_batch_destroy(masks);
    mask_destroy(m);
    backend_destroy(be);
}

TEST(api_softmax_computes) {
    check_mask("none", 0, 70);
    check_mask("none", 0, INT32_MAX); /* a bound, not a length */
    check_mask("sliding,window=5,causal", 0, 70);
    check_mask("longformer,window=3,global=1", 0, 70);
    check_mask("strided", 0, 70);
    check_mask("strided", 0, INT32_MAX);
}

TEST(api_softmax_silu) {
    check_mask("causal", .1f, 70);
    check_mask("longformer,window=3,global=1", .1f, 70);
}

static void check_softmax_refused(hstu_softmax_attn *attn, const hstu_softmax_attn_varlen_args *a,
                                  const char *reason) {
    for (int pass = 0; pass < 2; pass++) {
        hstu_status st = pass == 0 ? hstu_softmax_attn_varlen_fwd(attn, a, NULL)
                                   : hstu_softmax_attn_varlen_bwd(attn, a, NULL);
        CHECK(st != HSTU_OK);
        CHECK_CONTAINS(hstu_error(), reason);
    }
}

#define SOFTMAX_REFUSED(change, reason)                                                            \
    do {                                                                                           \
        hstu_softmax_attn_varlen_args a = args_of(&x);                                             \
        change;                                                                                    \
        check_softmax_refused(attn, &a, reason);                                                   \
    } while (0)

TEST(api_softmax_refuses) {
    static arrays x;
    hstu_softmax_attn *attn, *listed;
    CHECK_EQ(hstu_softmax_attn_create(&attn, -1, "slding"), HSTU_ERR_USAGE);
    CHECK(attn == NULL);
    CHECK_CONTAINS(hstu_error(), "did you mean 'sliding'?");
    CHECK_EQ(hstu_softmax_attn_create(&attn, -1, NULL), HSTU_OK);
    CHECK_EQ(hstu_softmax_attn_create(&listed, -1, "fixed"), HSTU_OK);
    SOFTMAX_REFUSED(a.dtype = HSTU_BFLOAT16, "the CPU computes in HSTU_FLOAT32");
    SOFTMAX_REFUSED(a.dtype = (hstu_dtype)7, "dtype is 7");
    SOFTMAX_REFUSED(a.batch_size = -1, "must not be negative");
    SOFTMAX_REFUSED(a.dim = 257, "dimension 257");
    SOFTMAX_REFUSED(a.num_heads = 0, "0 heads");
    SOFTMAX_REFUSED(a.q = NULL, "q is NULL");
    SOFTMAX_REFUSED(a.out = NULL, "out is NULL");
    SOFTMAX_REFUSED(a.cu_seqlens = NULL, "cu_seqlens is NULL");
    SOFTMAX_REFUSED(a.k = (const char *)a.k + 1, "k is not aligned");
    SOFTMAX_REFUSED(a.stride_v = 3, "rows of v are 3 elements apart, but have 12");
    SOFTMAX_REFUSED(a.max_seqlen = 69, "cu_seqlens is not at 0 .. 70 of 90 rows, with at most 69");
    static const int32_t early[B + 1] = {0, 70, 70, 89}, late[B + 1] = {1, 70, 70, 90};
    SOFTMAX_REFUSED(a.cu_seqlens = early,
                    "cu_seqlens are rows 0 .. 89; they must cover all 90 rows");
    SOFTMAX_REFUSED(a.cu_seqlens = late,
                    "cu_seqlens are rows 1 .. 90; they must cover all 90 rows");
    SOFTMAX_REFUSED(a.alpha = NAN, "alpha is nan");
    hstu_softmax_attn_varlen_args good = args_of(&x);
    check_softmax_refused(listed, &good, "hstu_softmax_attn_set_lengths");
    check_softmax_refused(NULL, &good, "the hstu_softmax_attn is NULL");
    CHECK_EQ(hstu_softmax_attn_set_lengths(listed, 0, NULL, 3, NULL), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_softmax_attn_set_lengths(NULL, 0, lengths, 3, NULL), HSTU_ERR_USAGE);
    static const int32_t others[B] = {69, 0, 20}, negative[B] = {70, -1, 20};
    CHECK_EQ(hstu_softmax_attn_set_lengths(listed, 0, others, B, NULL), HSTU_OK);
    check_softmax_refused(listed, &good, "sequence 0 has 70 rows, but its length was set to 69");
    CHECK_EQ(hstu_softmax_attn_set_lengths(listed, 0, lengths, B - 1, NULL), HSTU_OK);
    check_softmax_refused(listed, &good, "hstu_softmax_attn_set_lengths");
    CHECK_EQ(hstu_softmax_attn_set_lengths(listed, 0, negative, B, NULL), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "length 1 is -1");
    CHECK_EQ(hstu_softmax_attn_set_lengths(listed, -1, lengths, B, NULL), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "the first sequence is -1");
    CHECK_EQ(hstu_softmax_attn_set_lengths(listed, INT64_MAX - 1, lengths, B, NULL),
             HSTU_ERR_USAGE);
    CHECK_EQ(hstu_softmax_attn_set_lengths(listed, INT64_MAX - B, lengths, B, NULL), HSTU_OK);
    good.dv = NULL;
    CHECK_EQ(hstu_softmax_attn_varlen_bwd(attn, &good, NULL), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "dv is NULL");
    hstu_softmax_attn_destroy(attn);
    hstu_softmax_attn_destroy(listed);
    hstu_softmax_attn_destroy(NULL);
}

/* A GAT of three vertices by hand, and the gradients that reach its features. */
TEST(api_graph_attn) {
    const int32_t indptr[] = {0, 2, 3, 3}, indices[] = {0, 2, 1}, twice[] = {0, 0, 1};
    const float left[] = {1, -3, 0}, right[] = {0, 1, 0.5f}, v[] = {1, 2, 3, 4, 5, 6};
    const float dout[] = {1, 0, 1, 1, 1, 1};
    float out[6], dv[6], dleft[3], row_sum[3], weights[3];
    hstu_graph_attn *attn;
    hstu_graph_attn_args a;
    hstu_graph_attn_defaults(&a);
    a.dtype = HSTU_FLOAT32;
    a.num_heads = 1, a.dim_v = 2, a.slope = .2f;
    a.left = left, a.right = right, a.v = v, a.out = out, a.dout = dout;
    a.row_sum = row_sum, a.weights = weights, a.dv = dv, a.dleft = dleft;
    CHECK_EQ(hstu_graph_attn_create(&attn, -1, 3, 3, indptr, twice), HSTU_ERR_USAGE);
    CHECK(attn == NULL);
    CHECK_CONTAINS(hstu_error(), "row 0 has column 0 twice");
    CHECK_EQ(hstu_graph_attn_create(&attn, -1, 3, 3, indptr, indices), HSTU_OK);
    CHECK_EQ(hstu_graph_attn_fwd(attn, &a, NULL), HSTU_OK);
    CHECK_EQ(hstu_graph_attn_bwd(attn, &a, NULL), HSTU_OK);
    double w = 1 / (1 + exp(.5)); /* scores 1 and 1.5 */
    CHECK(fabs((double)weights[0] - w) < 1e-6 && fabs((double)weights[1] - (1 - w)) < 1e-6);
    CHECK(fabs((double)out[0] - (w + 5 * (1 - w))) < 1e-6 && fabsf(out[2] - 3) < 1e-6f);
    CHECK(weights[2] == 1 && fabsf(row_sum[1] + .4f) < 1e-6f && out[4] == 0 && out[5] == 0);
    CHECK(fabs((double)dv[0] - w) < 1e-6 && dv[1] == 0 && fabsf(dv[2] - 1) < 1e-6f);
    CHECK(fabsf(dleft[0]) < 1e-6f && dleft[2] == 0); /* a softmax does not see what all share */
    static const struct {
        size_t at;
        const char *name;
    } odd[] = {{offsetof(hstu_graph_attn_args, v), "v"},
               {offsetof(hstu_graph_attn_args, dleft), "dleft"},
               {offsetof(hstu_graph_attn_args, right), "right"}};
    for (size_t i = 0; i < 3; i++) {
        hstu_graph_attn_args b = a;
        char reason[64];
        *(const char **)((char *)&b + odd[i].at) += 1;
        snprintf(reason, sizeof reason, "attention: %s is not aligned", odd[i].name);
        CHECK_EQ(hstu_graph_attn_fwd(attn, &b, NULL), HSTU_ERR_USAGE);
        CHECK_CONTAINS(hstu_error(), reason);
    }
    a.stride_v = 1;
    CHECK_EQ(hstu_graph_attn_fwd(attn, &a, NULL), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "rows of v are 1 elements apart, but have 2");
    a.stride_v = 0, a.out = NULL;
    CHECK_EQ(hstu_graph_attn_bwd(attn, &a, NULL), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "out is NULL");
    a.out = out, a.dtype = HSTU_FLOAT16;
    CHECK_EQ(hstu_graph_attn_fwd(attn, &a, NULL), HSTU_ERR_UNSUPPORTED);
    a.dtype = HSTU_FLOAT32, a.weight = (hstu_graph_weight)9;
    CHECK_EQ(hstu_graph_attn_fwd(attn, &a, NULL), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "weight function 9");
    hstu_graph_attn_destroy(attn);
}
