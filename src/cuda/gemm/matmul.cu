/* Products of matrices by cuBLASLt (contract: cuda_product in cuda.h).
 *
 * cuBLASLt is column-major, so the product is computed as d^T = b^T a^T: a row-major matrix is
 * its own transpose in column-major order, and nothing is moved.  The heuristic that chooses a
 * kernel for a shape is asked once (tens of microseconds), and its answer is cached in a small
 * table.  The number of tokens changes from batch to batch, so a dimension on which no row
 * length depends is rounded up for the query: the answer depends on the rounded shape alone,
 * not on earlier queries, and hence is the same in a run that was interrupted.  Inference may ask
 * for the fastest of the recommended kernels instead (LINEAR_FASTEST, LINEAR_SINGLE). */
#include <cublasLt.h>
#include <dlfcn.h>

#include "base/autotune.h"
#include "base/machine.h"
#include "cuda/core/cuda.h"

/* cuBLASLt is opened with the first GPU: linked, it would cost a tenth of a second at every start
 * of the program, even of one that needs no GPU. */
#define LT_TEXT_OF(x) #x
#define LT_TEXT(x)    LT_TEXT_OF(x)
#define LT_FILE       "libcublasLt.so." LT_TEXT(CUBLAS_VER_MAJOR)

#define CUBLAS_LT_CALLS(CALL)                                                                      \
    CALL(Create)                                                                                   \
    CALL(Destroy)                                                                                  \
    CALL(GetStatusString)                                                                          \
    CALL(Matmul)                                                                                   \
    CALL(MatmulAlgoCheck)                                                                          \
    CALL(MatmulAlgoGetHeuristic)                                                                   \
    CALL(MatmulDescInit_internal)                                                                  \
    CALL(MatmulDescSetAttribute)                                                                   \
    CALL(MatmulPreferenceInit_internal)                                                            \
    CALL(MatmulPreferenceSetAttribute)                                                             \
    CALL(MatrixLayoutInit_internal)

/* lt.Matmul is cublasLtMatmul, and so on; valid after cublas_lt_open. */
static struct cublas_lt {
#define CALL(name) decltype(&cublasLt##name) name;
    CUBLAS_LT_CALLS(CALL)
#undef CALL
} lt;

static status look_up_lt(void *library) {
#define CALL(name)                                                                                 \
    *(void **)&lt.name = dlsym(library, "cublasLt" #name);                                         \
    if (lt.name == NULL)                                                                           \
        return fail(ERR_UNSUPPORTED, LT_FILE " has no cublasLt" #name ": install that of CUDA %d", \
                    CUBLAS_VER_MAJOR);
    CUBLAS_LT_CALLS(CALL)
#undef CALL
    return OK;
}

static status find_lt(void) {
    void *library = library_find(LT_FILE, "nvidia/*/lib/" LT_FILE);
    if (library == NULL)
        return fail(ERR_UNSUPPORTED,
                    "products on a GPU need cuBLASLt, and %s was not found: install NVIDIA's CUDA "
                    "toolkit or 'pip install nvidia-cublas', or add its folder to LD_LIBRARY_PATH",
                    LT_FILE);
    status st = look_up_lt(library);
    if (st != OK) dlclose(library);
    return st;
}

/* May be called by several threads.  The library stays open to the end. */
static status cublas_lt_open(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool is_open;
    pthread_mutex_lock(&lock);
    status st = is_open ? OK : find_lt();
    is_open = st == OK;
    pthread_mutex_unlock(&lock);
    return st;
}

/* Hopper's kernels want at least 32 MiB to split long sums. */
enum { WORKSPACE_BYTES = 64 << 20 };

/* The table: sets of a few entries, of which the oldest is evicted. */
enum { N_SETS = 128, N_WAYS = 4, MAX_ANSWERS = 16 };

/* Timing kernels: recorded steps of N_RUNS runs, in turns (base/autotune.h). */
enum { N_ROUNDS = 5, N_RUNS = 5 };

/* Rounding: at most one part in 32 from here on. */
enum { MIN_ROUNDED = 1024, ROUNDING_BITS = 5, MAX_ALIGNMENT = 16 };

/* All that the choice of a kernel depends on; no padding, so that it can be compared as bytes. */
typedef struct shape_key {
    int64_t m, n, k;
    int64_t row_a, row_b, row_d;
    int32_t type, type_d;
    uint8_t is_a_transposed, is_b_transposed, is_tf32, is_deterministic;
    uint8_t align_a, align_b, align_c, align_d, align_bias; /* of the pointers; 0: there is none */
    uint8_t is_in_place, f, kernel, zero[4];
} shape_key;
static_assert(sizeof(shape_key) == 72, "a key with holes");

/* A kernel, and the bytes of the workspace that it is given. */
typedef struct product_kernel {
    cublasLtMatmulAlgo_t algo;
    size_t bytes;
} product_kernel;

typedef struct entry {
    shape_key key;
    product_kernel kernel;
    int64_t checked_m, checked_k; /* the shape it was last found fit for */
    uint64_t age;                 /* when it was made; 0: empty */
} entry;

struct cuda_matmuls {
    cublasLtHandle_t handle;
    void *workspace;
    uint64_t n_made;
    entry table[N_SETS][N_WAYS];
};

/* One product in cuBLASLt's terms, whose first matrix is our b. */
typedef struct description {
    cublasLtMatmulDescOpaque_t what;
    cublasLtMatrixLayoutOpaque_t b, a, d;
} description;

static status blas_failed(cublasStatus_t error, const char *what) {
    return fail(error == CUBLAS_STATUS_ALLOC_FAILED ? ERR_NOMEM : ERR_DEVICE, "%s failed: %s", what,
                lt.GetStatusString(error));
}

#define BLAS_TRY(call)                                                                             \
    do {                                                                                           \
        cublasStatus_t error_ = (call);                                                            \
        if (error_ != CUBLAS_STATUS_SUCCESS) return blas_failed(error_, #call);                    \
    } while (0)

status cuda_matmuls_create(cuda_matmuls **out) {
    cuda_matmuls *m = NULL;
    *out = NULL;
    TRY(cublas_lt_open());
    TRY(MEM_NEW(&m, 1));
    cublasStatus_t error = lt.Create(&m->handle);
    status st = error == CUBLAS_STATUS_SUCCESS ? OK : blas_failed(error, "cublasLtCreate");
    if (st == OK) {
        cudaError_t no_memory = cudaMalloc(&m->workspace, WORKSPACE_BYTES);
        if (no_memory != cudaSuccess)
            st = cuda_failed(no_memory, "cudaMalloc of the products' workspace");
    }
    if (st == OK)
        *out = m;
    else
        cuda_matmuls_destroy(m);
    return st;
}

void cuda_matmuls_destroy(cuda_matmuls *m) {
    if (m == NULL) return;
    if (m->workspace != NULL) cudaFree(m->workspace);
    if (m->handle != NULL) lt.Destroy(m->handle);
    mem_free(m);
}

/* The largest power of two, up to 16 bytes, that divides an address; 0 for none. */
static uint8_t alignment(const void *p) {
    uintptr_t lowest = (uintptr_t)p & (0 - (uintptr_t)p);
    return lowest > MAX_ALIGNMENT ? (uint8_t)MAX_ALIGNMENT : (uint8_t)lowest;
}

static int64_t round_up(int64_t n) {
    int64_t unit = 1;
    if (n < MIN_ROUNDED) return n;
    while (unit << (ROUNDING_BITS + 1) <= n)
        unit *= 2;
    return (n + unit - 1) / unit * unit;
}

/* The rounded shape for the query of algorithms.  Only a dimension that counts stored rows may be
 * rounded, since row lengths must stay: m if a is not transposed, k if it counts the rows of both a
 * and b. */
static cuda_product rounded(const cuda_product *p) {
    cuda_product r = *p;
    if (!p->is_a_transposed) r.m = round_up(p->m);
    if (p->is_a_transposed && !p->is_b_transposed) r.k = round_up(p->k);
    return r;
}

static shape_key key_of(const cuda_state *cuda, const cuda_product *p) {
    shape_key key;
    memset(&key, 0, sizeof key);
    key.m = p->m, key.n = p->n, key.k = p->k;
    key.row_a = p->row_a, key.row_b = p->row_b, key.row_d = p->row_d;
    key.type = p->type, key.type_d = p->type_d;
    key.is_a_transposed = p->is_a_transposed;
    key.is_b_transposed = p->is_b_transposed;
    key.is_tf32 = cuda->is_tf32 || p->is_rounded;
    key.is_deterministic = cuda->is_deterministic;
    key.align_a = alignment(p->a), key.align_b = alignment(p->b);
    key.align_c = alignment(p->c), key.align_d = alignment(p->d);
    key.align_bias = alignment(p->bias);
    key.is_in_place = p->c == p->d;
    key.f = (uint8_t)p->f;
    key.kernel = (uint8_t)p->kernel;
    return key;
}

static cublasLtEpilogue_t epilogue_of(const cuda_product *p) {
    bool has_bias = p->bias != NULL;
    if (p->f == EPILOGUE_RELU)
        return has_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    if (p->f == EPILOGUE_GELU_TANH)
        return has_bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    return has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static status describe_epilogue(const cuda_product *p, cublasLtMatmulDesc_t what) {
    cublasLtEpilogue_t epilogue = epilogue_of(p);
    int32_t type = p->type_d;
    BLAS_TRY(
        lt.MatmulDescSetAttribute(what, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    if (p->bias == NULL) return OK;
    BLAS_TRY(lt.MatmulDescSetAttribute(what, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias,
                                       sizeof p->bias));
    BLAS_TRY(
        lt.MatmulDescSetAttribute(what, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type));
    return OK;
}

/* A matrix stored in rows is one stored in columns with the two counts exchanged. */
static status describe_stored(cublasLtMatrixLayout_t to, cudaDataType_t type, int64_t n_rows,
                              int64_t n_columns, int64_t row) {
    BLAS_TRY(lt.MatrixLayoutInit_internal(to, sizeof *to, type, (uint64_t)n_columns,
                                          (uint64_t)n_rows, row));
    return OK;
}

static status describe(const cuda_state *cuda, const cuda_product *p, description *to) {
    bool is_tf32 = (cuda->is_tf32 || p->is_rounded) && p->type == CUDA_R_32F;
    int32_t op_a = p->is_a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t op_b = p->is_b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    BLAS_TRY(lt.MatmulDescInit_internal(&to->what, sizeof to->what,
                                        is_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                        CUDA_R_32F));
    BLAS_TRY(lt.MatmulDescSetAttribute(&to->what, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof op_b));
    BLAS_TRY(lt.MatmulDescSetAttribute(&to->what, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof op_a));
    if (p->bias != NULL || p->f != EPILOGUE_NONE) TRY(describe_epilogue(p, &to->what));
    TRY(describe_stored(&to->a, p->type, p->is_a_transposed ? p->k : p->m,
                        p->is_a_transposed ? p->m : p->k, p->row_a));
    TRY(describe_stored(&to->b, p->type, p->is_b_transposed ? p->n : p->k,
                        p->is_b_transposed ? p->k : p->n, p->row_b));
    return describe_stored(&to->d, p->type_d, p->m, p->n, p->row_d);
}

/* Split-K keeps its partial sums in float32, and in deterministic mode adds none of them to d by
 * atomic additions. */
static uint32_t allowed_reductions(const cuda_state *cuda, const cuda_product *p) {
    uint32_t mask = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (p->type_d == CUDA_R_32F) mask |= CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    if (p->type_d == CUDA_R_32F && !cuda->is_deterministic)
        mask |= CUBLASLT_REDUCTION_SCHEME_INPLACE;
    return mask;
}

static status prefer(cublasLtMatmulPreference_t to, cublasLtMatmulPreferenceAttributes_t name,
                     uint32_t value) {
    BLAS_TRY(lt.MatmulPreferenceSetAttribute(to, name, &value, sizeof value));
    return OK;
}

static status describe_preference(const cuda_state *cuda, const cuda_product *p, size_t bytes,
                                  cublasLtMatmulPreference_t to) {
    BLAS_TRY(lt.MatmulPreferenceInit_internal(to, sizeof *to));
    BLAS_TRY(lt.MatmulPreferenceSetAttribute(to, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                             sizeof bytes));
    TRY(prefer(to, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, allowed_reductions(cuda, p)));
    TRY(prefer(to, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p->b)));
    TRY(prefer(to, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p->a)));
    TRY(prefer(to, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
               alignment(p->c != NULL ? p->c : p->d)));
    return prefer(to, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p->d));
}

static const char *type_name(cudaDataType_t type) {
    return type == CUDA_R_16BF ? "bfloat16" : type == CUDA_R_16F ? "float16" : "float32";
}

static status no_kernel(const cuda_product *p, cublasStatus_t error) {
    return fail(
        ERR_DEVICE,
        "cuBLASLt has no kernel for a product (%lld, %lld) x (%lld, %lld) of %s into %s%s: "
        "%s",
        (long long)p->m, (long long)p->k, (long long)p->k, (long long)p->n, type_name(p->type),
        type_name(p->type_d), p->bias != NULL ? " with a bias" : "",
        lt.GetStatusString(error != CUBLAS_STATUS_SUCCESS ? error : CUBLAS_STATUS_NOT_SUPPORTED));
}

/* The kernels that may be chosen. */
typedef struct kernel_list {
    product_kernel kernel[2 * MAX_ANSWERS];
    int n;
} kernel_list;

/* Adds the kernels that cuBLASLt recommends where it has a workspace of so many bytes, in its
 * order. */
static status add_kernels(const cuda_state *cuda, const cuda_product *p, size_t bytes,
                          kernel_list *list, cublasStatus_t *error) {
    description text;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t answer[MAX_ANSWERS];
    int n = 0;
    TRY(describe(cuda, p, &text));
    TRY(describe_preference(cuda, p, bytes, &preference));
    *error = lt.MatmulAlgoGetHeuristic(cuda->matmuls->handle, &text.what, &text.b, &text.a, &text.d,
                                       &text.d, &preference, MAX_ANSWERS, answer, &n);
    for (int i = 0; *error == CUBLAS_STATUS_SUCCESS && i < n; i++)
        if (answer[i].state == CUBLAS_STATUS_SUCCESS)
            list->kernel[list->n++] = {answer[i].algo, bytes};
    return OK;
}

/* There is at least one.  Where the fastest is wanted, they are also tried without a workspace:
 * with one most kernels of many tiles count them in it, and clear that word first, which takes 3 us
 * in a recorded step. */
static status list_kernels(const cuda_state *cuda, const cuda_product *p, kernel_list *list) {
    cublasStatus_t error, ignored;
    list->n = 0;
    TRY(add_kernels(cuda, p, WORKSPACE_BYTES, list, &error));
    if (p->kernel == LINEAR_FASTEST) TRY(add_kernels(cuda, p, 0, list, &ignored));
    return list->n > 0 ? OK : no_kernel(p, error);
}

static cublasStatus_t run_kernel(const cuda_state *cuda, const cuda_product *p, description *text,
                                 const product_kernel *kernel) {
    const float one = 1, beta = p->c != NULL ? 1 : 0;
    return lt.Matmul(cuda->matmuls->handle, &text->what, &one, p->b, &text->b, p->a, &text->a,
                     &beta, p->c != NULL ? p->c : p->d, &text->d, p->d, &text->d, &kernel->algo,
                     kernel->bytes > 0 ? cuda->matmuls->workspace : NULL, kernel->bytes,
                     cuda->stream);
}

/* N_RUNS runs as a recorded step, since that is how kernels of inference run: one that needs a
 * memset beforehand costs more there than its own time.  NULL: the kernel cannot compute this
 * shape. */
static status record_kernel(const cuda_state *cuda, const cuda_product *p, description *text,
                            const product_kernel *kernel, cudaGraphExec_t *out) {
    cudaGraph_t graph = NULL;
    cublasStatus_t error = run_kernel(cuda, p, text, kernel);
    *out = NULL;
    if (error != CUBLAS_STATUS_SUCCESS) return OK;
    CUDA_TRY(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < N_RUNS && error == CUBLAS_STATUS_SUCCESS; i++)
        error = run_kernel(cuda, p, text, kernel);
    CUDA_TRY(cudaStreamEndCapture(cuda->stream, &graph));
    cudaError_t made = cudaGraphInstantiate(out, graph, 0);
    cudaGraphDestroy(graph);
    if (made != cudaSuccess) return cuda_failed(made, "recording a product");
    BLAS_TRY(error);
    return OK;
}

/* The recorded steps of all kernels; NULL where one cannot compute this shape. */
typedef struct timing {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    cudaGraphExec_t step[2 * MAX_ANSWERS];
} timing;
static_assert(2 * MAX_ANSWERS <= AUTOTUNE_MAX, "more kernels than autotune_find takes");

static status time_step(void *ctx, int i, double *seconds) {
    const timing *t = (const timing *)ctx;
    float ms;
    *seconds = INFINITY;
    if (t->step[i] == NULL) return OK;
    CUDA_TRY(cudaEventRecord(t->begin, t->stream));
    CUDA_TRY(cudaGraphLaunch(t->step[i], t->stream));
    CUDA_TRY(cudaEventRecord(t->end, t->stream));
    CUDA_TRY(cudaEventSynchronize(t->end));
    CUDA_TRY(cudaEventElapsedTime(&ms, t->begin, t->end));
    *seconds = ms * 1e-3;
    return OK;
}

/* *best: the fastest of the list, on the operands of p. */
static status time_kernels(const cuda_state *cuda, const cuda_product *p, const kernel_list *list,
                           timing *t, int *best) {
    description text;
    double seconds;
    CUDA_TRY(cudaEventCreate(&t->begin));
    CUDA_TRY(cudaEventCreate(&t->end));
    TRY(describe(cuda, p, &text));
    for (int i = 0; i < list->n; i++)
        TRY(record_kernel(cuda, p, &text, &list->kernel[i], &t->step[i]));
    return autotune_find(list->n, N_ROUNDS, time_step, t, best, &seconds);
}

static status find_fastest(const cuda_state *cuda, const cuda_product *p, const kernel_list *list,
                           int *best) {
    timing t = {};
    t.stream = cuda->stream;
    status st = time_kernels(cuda, p, list, &t, best);
    for (int i = 0; i < list->n; i++)
        if (t.step[i] != NULL) cudaGraphExecDestroy(t.step[i]);
    if (t.begin != NULL) cudaEventDestroy(t.begin);
    if (t.end != NULL) cudaEventDestroy(t.end);
    return st;
}

/* Whether a run of the kernel is one launch and nothing else. */
static status is_single(const cuda_state *cuda, const cuda_product *p, description *text,
                        const product_kernel *kernel, bool *out) {
    cudaGraph_t graph = NULL;
    size_t n_nodes = 0;
    *out = false;
    if (run_kernel(cuda, p, text, kernel) != CUBLAS_STATUS_SUCCESS) return OK; /* loads it, too */
    CUDA_TRY(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal));
    cublasStatus_t error = run_kernel(cuda, p, text, kernel);
    CUDA_TRY(cudaStreamEndCapture(cuda->stream, &graph));
    cudaError_t counted = cudaGraphGetNodes(graph, NULL, &n_nodes);
    cudaGraphDestroy(graph);
    if (counted != cudaSuccess) return cuda_failed(counted, "counting the parts of a product");
    *out = error == CUBLAS_STATUS_SUCCESS && n_nodes == 1;
    return OK;
}

static status find_single(const cuda_state *cuda, const cuda_product *p, const kernel_list *list,
                          int *best) {
    description text;
    bool is = false;
    TRY(describe(cuda, p, &text));
    for (int i = 0; i < list->n && !is; i++) {
        TRY(is_single(cuda, p, &text, &list->kernel[i], &is));
        *best = is ? i : 0;
    }
    return OK;
}

/* Whether kernels may be timed now: the product can be repeated, and nothing is recorded. */
static bool can_time(const cuda_state *cuda, const cuda_product *p) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    return !cuda->is_deterministic && p->c != p->d &&
           cudaStreamIsCapturing(cuda->stream, &capture) == cudaSuccess &&
           capture == cudaStreamCaptureStatusNone;
}

/* The kernel for p by its place in the list for r, whose shape is that of p or rounded. */
static status choose(const cuda_state *cuda, const cuda_product *p, const cuda_product *r,
                     product_kernel *out) {
    kernel_list list;
    int at = 0;
    TRY(list_kernels(cuda, r, &list));
    if (p->kernel >= 0)
        at = p->kernel < list.n ? p->kernel : list.n - 1;
    else if (list.n > 1 && can_time(cuda, p))
        TRY((p->kernel == LINEAR_SINGLE ? find_single : find_fastest)(cuda, p, &list, &at));
    *out = list.kernel[at];
    return OK;
}

/* FNV-1a over the key. */
static uint64_t hash_of(const shape_key *key) {
    const uint8_t *bytes = (const uint8_t *)key;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof *key; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

/* The entry of the rounded shape r of p, made if it is not there. */
static status find(const cuda_state *cuda, const cuda_product *p, const cuda_product *r,
                   entry **out) {
    shape_key key = key_of(cuda, r);
    entry *set = cuda->matmuls->table[hash_of(&key) % N_SETS], *oldest = set;
    for (int i = 0; i < N_WAYS; i++) {
        if (set[i].age > 0 && memcmp(&set[i].key, &key, sizeof key) == 0) {
            *out = &set[i];
            return OK;
        }
        if (set[i].age < oldest->age) oldest = &set[i];
    }
    oldest->age = 0;
    TRY(choose(cuda, p, r, &oldest->kernel));
    oldest->key = key;
    oldest->checked_m = r->m, oldest->checked_k = r->k;
    oldest->age = ++cuda->matmuls->n_made;
    *out = oldest;
    return OK;
}

/* Whether the kernel chosen for the rounded shape can compute this shape. */
static bool is_fit(const cuda_state *cuda, const cuda_product *p, description *text, entry *e) {
    cublasLtMatmulHeuristicResult_t result;
    if (e->checked_m == p->m && e->checked_k == p->k) return true;
    if (lt.MatmulAlgoCheck(cuda->matmuls->handle, &text->what, &text->b, &text->a, &text->d,
                           &text->d, &e->kernel.algo, &result) != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > WORKSPACE_BYTES)
        return false;
    e->checked_m = p->m, e->checked_k = p->k;
    return true;
}

status cuda_matmul(backend *be, const cuda_product *p) {
    const cuda_state *cuda = cuda_of(be);
    cuda_product r = rounded(p);
    description text;
    product_kernel kernel;
    entry *e = NULL;
    if (p->m == 0 || p->n == 0) return OK;
    TRY(describe(cuda, p, &text));
    TRY(find(cuda, p, &r, &e));
    if (is_fit(cuda, p, &text, e))
        kernel = e->kernel;
    else
        TRY(choose(cuda, p, p, &kernel));
    if (kernel.bytes == 0 && run_kernel(cuda, p, &text, &kernel) == CUBLAS_STATUS_SUCCESS)
        return OK;
    kernel.bytes = WORKSPACE_BYTES; /* which a shape other than the rounded one may need */
    BLAS_TRY(run_kernel(cuda, p, &text, &kernel));
    return OK;
}
