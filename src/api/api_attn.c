/* The attention of hstu.h: turns the public arguments into an attn_args of ops.h and runs it on the
 * caller's stream.  An hstu_attn is a CUDA backend in guest mode, which launches on a stream that
 * it does not own, or a CPU backend with threads of its own. */
#include <math.h>
#include <string.h>

#include "api/api_int.h"
#include "ops/ops.h"

_Static_assert((int)HSTU_FLOAT32 == (int)ACT_F32 && (int)HSTU_BFLOAT16 == (int)ACT_BF16 &&
                   (int)HSTU_FLOAT16 == (int)ACT_F16,
               "types of activations must agree");

void hstu_attn_varlen_defaults(hstu_attn_varlen_args *out) {
    if (out == NULL) return;
    *out = (hstu_attn_varlen_args){.dtype = HSTU_BFLOAT16,
                                   .alpha = 1,
                                   .scaling_seqlen = -1,
                                   .window_left = -1,
                                   .window_right = -1,
                                   .target_group_size = 1};
}

static bool is_cpu(const backend *be) {
    return be->is_host;
}

static void destroy_backend(void *object) {
    backend *be = object;
    pool *workers = is_cpu(be) ? be->workers : NULL;
    backend_destroy(be);
    pool_destroy(workers);
}

static const handle_type attn_type = {"hstu_attn", destroy_backend, .survives_fork = false};

static status create_cpu(backend **out) {
    pool *workers;
    TRY(api_pool(&workers));
    status st = backend_create_cpu(out, workers);
    if (st != OK) pool_destroy(workers);
    return st;
}

hstu_status hstu_attn_create(hstu_attn **out, int32_t device) {
    cuda_options options = {.device = device, .is_guest = true};
    backend *be;
    void *value = NULL;
    status st = api_need(out, "out");
    if (st != OK) return (hstu_status)st;
    st = device == HSTU_ATTN_CPU ? create_cpu(&be) : backend_create_cuda(&be, &options);
    if (st == OK) st = handle_open(&value, &attn_type, be);
    *out = value;
    return (hstu_status)st;
}

void hstu_attn_destroy(hstu_attn *attn) {
    handle_close(attn, &attn_type);
}

/* Checks of the arguments. */

static status check_sizes(const hstu_attn_varlen_args *a) {
    if (a->dtype < HSTU_FLOAT32 || a->dtype > HSTU_FLOAT16)
        return fail(ERR_USAGE,
                    "attention: dtype is %d; it must be HSTU_FLOAT32, HSTU_BFLOAT16 or "
                    "HSTU_FLOAT16",
                    (int)a->dtype);
    if (a->batch_size < 0 || a->total_q < 0 || a->total_k < 0 || a->max_seqlen_q < 0)
        return fail(ERR_USAGE, "attention: batch_size, total_q, total_k and max_seqlen_q must not "
                               "be negative");
    if (a->max_seqlen_q > a->max_seqlen_k)
        return fail(ERR_USAGE,
                    "attention: max_seqlen_q is %d, more than max_seqlen_k, %d; every query has "
                    "its place among the keys",
                    a->max_seqlen_q, a->max_seqlen_k);
    if (a->scaling_seqlen != -1 && a->scaling_seqlen < 1)
        return fail(ERR_USAGE, "attention: scaling_seqlen is %d; it must be -1 or at least 1",
                    a->scaling_seqlen);
    if (!isfinite(a->alpha))
        return fail(ERR_USAGE, "attention: alpha is %g; it must be finite", (double)a->alpha);
    return OK;
}

static status check_mask(const hstu_attn_varlen_args *a) {
    bool has_groups = a->num_contexts != NULL || a->num_targets != NULL;
    if (has_groups && a->func == NULL && (a->window_left >= 0 || a->window_right != 0))
        return fail(ERR_USAGE,
                    "attention: num_contexts and num_targets need window_left -1 and "
                    "window_right 0, not %d and %d",
                    a->window_left, a->window_right);
    if (a->func != NULL && a->func_stride != 0 && a->func_stride < a->total_q)
        return fail(ERR_USAGE, "attention: func_stride is %lld; rows of func have total_q, %lld",
                    (long long)a->func_stride, (long long)a->total_q);
    if (a->drab != NULL && a->rab == NULL) return fail(ERR_USAGE, "attention: drab without rab");
    return OK;
}

/* An array of n rows; none needs no memory. */
static status check_array(const char *name, const void *p, int64_t n, size_t element) {
    if (p == NULL && n > 0) return fail(ERR_USAGE, "attention: %s is NULL", name);
    if ((uintptr_t)p % element != 0)
        return fail(ERR_USAGE, "attention: %s is not aligned to its elements of %d bytes", name,
                    (int)element);
    return OK;
}

/* Rows of one array may not overlap. */
static status check_rows(const char *name, const void *p, int64_t n, int64_t stride, int64_t width,
                         size_t element) {
    if (stride != 0 && stride < width)
        return fail(ERR_USAGE, "attention: rows of %s are %lld elements apart, but have %lld", name,
                    (long long)stride, (long long)width);
    return check_array(name, p, n, element);
}

static status check_arrays(const hstu_attn_varlen_args *a, bool is_backward) {
    size_t size = act_bytes((act_type)a->dtype);
    int64_t qk = (int64_t)a->num_heads * a->dim_qk, dv = (int64_t)a->num_heads * a->dim_v;
    TRY(check_array("cu_seqlens_q", a->cu_seqlens_q, a->batch_size, sizeof(int32_t)));
    TRY(check_array("cu_seqlens_k", a->cu_seqlens_k, a->batch_size, sizeof(int32_t)));
    TRY(check_array("num_contexts", a->num_contexts, 0, sizeof(int32_t)));
    TRY(check_array("num_targets", a->num_targets, 0, sizeof(int32_t)));
    TRY(check_array("func", a->func, 0, sizeof(int32_t)));
    TRY(check_array("rab", a->rab, 0, size));
    TRY(check_rows("q", a->q, a->total_q, a->stride_q, qk, size));
    TRY(check_rows("k", a->k, a->total_k, a->stride_k, qk, size));
    TRY(check_rows("v", a->v, a->total_k, a->stride_v, dv, size));
    if (!is_backward) return check_rows("out", a->out, a->total_q, a->stride_out, dv, size);
    TRY(check_rows("dout", a->dout, a->total_q, a->stride_out, dv, size));
    TRY(check_array("dq", a->dq, a->total_q, size));
    TRY(check_array("dk", a->dk, a->total_k, size));
    TRY(check_array("dv", a->dv, a->total_k, size));
    return check_array("drab", a->drab, 0, sizeof(float));
}

static status check_counts(const hstu_attn_varlen_args *a) {
    for (int32_t i = 0; i < a->batch_size; i++) {
        int32_t n_k = a->cu_seqlens_k[i + 1] - a->cu_seqlens_k[i];
        int32_t n_q = a->cu_seqlens_q[i + 1] - a->cu_seqlens_q[i];
        int32_t n_targets = a->num_targets != NULL ? a->num_targets[i] : 0;
        int32_t n_contexts = a->num_contexts != NULL ? a->num_contexts[i] : 0;
        if (n_q > n_k || n_targets < 0 || n_contexts < 0 || n_targets > n_k || n_contexts > n_k)
            return fail(ERR_USAGE,
                        "attention: sequence %d has %d queries, %d contexts and %d targets, but %d "
                        "keys",
                        i, n_q, n_contexts, n_targets, n_k);
    }
    return OK;
}

static status check_cpu(const hstu_attn_varlen_args *a) {
    if (a->dtype != HSTU_FLOAT32)
        return fail(ERR_UNSUPPORTED, "attention: the CPU computes in HSTU_FLOAT32");
    int32_t n = a->batch_size;
    TRY(api_check_offsets("cu_seqlens_q", a->cu_seqlens_q, n, a->total_q, a->max_seqlen_q));
    TRY(api_check_offsets("cu_seqlens_k", a->cu_seqlens_k, n, a->total_k, a->max_seqlen_k));
    return check_counts(a);
}

/* The calls. */

static int64_t stride_or(int64_t stride, int64_t width) {
    return stride != 0 ? stride : width;
}

static attn_args lower(const hstu_attn_varlen_args *a) {
    int64_t qk = (int64_t)a->num_heads * a->dim_qk, dv = (int64_t)a->num_heads * a->dim_v;
    int32_t scaling = a->scaling_seqlen > 0 ? a->scaling_seqlen : a->max_seqlen_q;
    return (attn_args){.n_sequences = a->batch_size,
                       .n_heads = a->num_heads,
                       .dim_qk = a->dim_qk,
                       .dim_v = a->dim_v,
                       .max_len_q = api_longest(a->max_seqlen_q, a->total_q),
                       .max_len_k = api_longest(a->max_seqlen_k, a->total_k),
                       .n_rows_q = a->total_q,
                       .n_rows_k = a->total_k,
                       .offsets_q = a->cu_seqlens_q,
                       .offsets_k = a->cu_seqlens_k,
                       .q = a->q,
                       .k = a->k,
                       .v = a->v,
                       .stride_q = stride_or(a->stride_q, qk),
                       .stride_k = stride_or(a->stride_k, qk),
                       .stride_v = stride_or(a->stride_v, dv),
                       .out = a->out,
                       .stride_out = stride_or(a->stride_out, dv),
                       .alpha = a->alpha,
                       .scale = scaling > 0 ? 1 / (float)scaling : 1,
                       .window_left = a->window_left,
                       .window_right = a->window_right,
                       .n_contexts = a->num_contexts,
                       .n_targets = a->num_targets,
                       .target_group = a->target_group_size,
                       .func = a->func,
                       .n_func = a->n_func,
                       .func_stride = stride_or(a->func_stride, a->total_q),
                       .bias = a->rab != NULL ? BIAS_TABLE : BIAS_NONE,
                       .table = a->rab,
                       .table_heads = a->rab_heads,
                       .table_len = a->max_seqlen_k,
                       .dout = a->dout,
                       .dq = a->dq,
                       .dk = a->dk,
                       .dv = a->dv,
                       .dtable = a->drab};
}

static status run(backend *be, const hstu_attn_varlen_args *args, void *stream, bool is_backward) {
    TRY(api_need(args, "args"));
    TRY(check_sizes(args));
    TRY(check_mask(args));
    attn_args a = lower(args);
    TRY(attn_args_check(&a));
    TRY(check_arrays(args, is_backward));
    cuda_visit visit = {stream, (act_type)args->dtype, args->is_deterministic != 0};
    TRY(is_cpu(be) ? check_cpu(args) : backend_visit_cuda(be, &visit));
    return is_backward ? be->ops->attn_bwd(be, &a) : be->ops->attn_fwd(be, &a);
}

hstu_status hstu_attn_varlen_fwd(hstu_attn *attn, const hstu_attn_varlen_args *args, void *stream) {
    handle *h;
    status st = handle_enter(&h, attn, &attn_type);
    if (st == OK) st = run(handle_object(h), args, stream, false);
    return handle_leave(h, st);
}

hstu_status hstu_attn_varlen_bwd(hstu_attn *attn, const hstu_attn_varlen_args *args, void *stream) {
    handle *h;
    status st = handle_enter(&h, attn, &attn_type);
    if (st == OK) st = run(handle_object(h), args, stream, true);
    return handle_leave(h, st);
}

static status wait_for(backend *be, void *stream) {
    cuda_visit visit = {stream, ACT_F32, false};
    if (is_cpu(be)) return OK;
    TRY(backend_visit_cuda(be, &visit));
    return be->ops->sync(be);
}

hstu_status hstu_attn_wait(hstu_attn *attn, void *stream) {
    handle *h;
    status st = handle_enter(&h, attn, &attn_type);
    if (st == OK) st = wait_for(handle_object(h), stream);
    return handle_leave(h, st);
}
