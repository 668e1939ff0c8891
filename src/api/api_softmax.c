/* The softmax attention of hstu.h: the public arguments become a softmax_attn_args of ops.h, which
 * runs on the CPU, or on a GPU as a guest on the caller's stream (api_attn.c). */
#include <math.h>
#include <string.h>

#include "api/api_int.h"
#include "base/mem.h"
#include "ops/mask_tiles.h"
#include "ops/ops.h"

typedef struct api_softmax {
    backend *be;
    pool *workers; /* of the CPU; NULL on a GPU */
    mask *m;
    mask_batch *masks; /* NULL before the first lengths */
    int32_t *lengths;  /* (max_lengths): the last that were set */
    int32_t n_lengths, max_lengths;
    bool is_cpu;
} api_softmax;

void hstu_softmax_attn_varlen_defaults(hstu_softmax_attn_varlen_args *out) {
    if (out == NULL) return;
    *out = (hstu_softmax_attn_varlen_args){.dtype = HSTU_BFLOAT16};
}

static status open_backend(api_softmax *attn, int32_t device) {
    attn->is_cpu = device == -1;
    if (!attn->is_cpu) {
        cuda_options options = {.device = device, .is_guest = true};
        return backend_create_cuda(&attn->be, &options);
    }
    TRY(api_pool(&attn->workers));
    return backend_create_cpu(&attn->be, attn->workers);
}

static void destroy_attn(void *object) {
    api_softmax *attn = object;
    mask_batch_destroy(attn->masks);
    mem_free(attn->lengths);
    mask_destroy(attn->m);
    backend_destroy(attn->be);
    pool_destroy(attn->workers);
    mem_free(attn);
}

static const handle_type softmax_type = {"hstu_softmax_attn", destroy_attn, .survives_fork = false};

hstu_status hstu_softmax_attn_create(hstu_softmax_attn **out, int32_t device, const char *text) {
    api_softmax *attn;
    void *value = NULL;
    status st = api_need(out, "out");
    if (st != OK) return (hstu_status)st;
    *out = NULL;
    st = MEM_NEW(&attn, 1);
    if (st != OK) return (hstu_status)st;
    st = mask_create(&attn->m, text != NULL ? text : "none");
    if (st == OK) st = open_backend(attn, device);
    if (st == OK)
        st = handle_open(&value, &softmax_type, attn);
    else
        destroy_attn(attn);
    *out = value;
    return (hstu_status)st;
}

void hstu_softmax_attn_destroy(hstu_softmax_attn *attn) {
    handle_close(attn, &softmax_type);
}

/* Makes the next ops run on the caller's stream. */
static status visit(api_softmax *attn, hstu_dtype dtype, void *stream) {
    cuda_visit there = {stream, (act_type)dtype, false};
    return attn->is_cpu ? OK : backend_visit_cuda(attn->be, &there);
}

static status check_lengths(const int32_t *lengths, int32_t n) {
    if (lengths == NULL || n < 0)
        return fail(ERR_USAGE, "softmax attention: lengths is NULL or their number negative");
    for (int32_t i = 0; i < n; i++)
        if (lengths[i] < 0)
            return fail(ERR_USAGE, "softmax attention: length %d is %d", i, lengths[i]);
    return OK;
}

static void forget_lengths(api_softmax *attn) {
    mask_batch_destroy(attn->masks);
    mem_free(attn->lengths);
    attn->masks = NULL;
    attn->lengths = NULL;
    attn->n_lengths = attn->max_lengths = 0;
}

static status make_room(api_softmax *attn, int32_t n) {
    if (attn->masks != NULL && n <= attn->max_lengths) return OK;
    forget_lengths(attn);
    TRY(MEM_NEW(&attn->lengths, (size_t)n));
    TRY(mask_batch_create(&attn->masks, attn->be, attn->m, n));
    attn->max_lengths = n;
    return OK;
}

static status set_lengths(api_softmax *attn, int64_t first, const int32_t *lengths, int32_t n,
                          void *stream) {
    TRY(check_lengths(lengths, n));
    TRY(visit(attn, HSTU_FLOAT32, stream));
    status st = make_room(attn, n);
    if (st == OK) st = mask_batch_set(attn->masks, first, n, lengths);
    if (st != OK) { /* half a batch of masks may be there */
        forget_lengths(attn);
        return st;
    }
    if (n > 0) memcpy(attn->lengths, lengths, (size_t)n * sizeof *lengths);
    attn->n_lengths = n;
    return OK;
}

hstu_status hstu_softmax_attn_set_lengths(hstu_softmax_attn *attn, int64_t first,
                                          const int32_t *lengths, int32_t n_lengths, void *stream) {
    handle *h;
    status st = handle_enter(&h, attn, &softmax_type);
    if (st == OK) st = set_lengths(handle_object(h), first, lengths, n_lengths, stream);
    return handle_leave(h, st);
}

static status check_array(const char *name, const void *p, int64_t n, size_t element) {
    if (p == NULL && n > 0) return fail(ERR_USAGE, "softmax attention: %s is NULL", name);
    if ((uintptr_t)p % element != 0)
        return fail(ERR_USAGE, "softmax attention: %s is not aligned to its elements of %d bytes",
                    name, (int)element);
    return OK;
}

static status check_arrays(const hstu_softmax_attn_varlen_args *a, bool is_backward) {
    size_t size = act_bytes((act_type)a->dtype);
    int64_t width = (int64_t)a->num_heads * a->dim;
    const int64_t strides[] = {a->stride_q, a->stride_k, a->stride_v, a->stride_out};
    for (int i = 0; i < 4; i++)
        if (strides[i] != 0 && strides[i] < width)
            return fail(ERR_USAGE, "softmax attention: rows are %lld elements apart, but have %lld",
                        (long long)strides[i], (long long)width);
    TRY(check_array("cu_seqlens", a->cu_seqlens, a->batch_size, sizeof(int32_t)));
    TRY(check_array("q", a->q, a->total, size));
    TRY(check_array("k", a->k, a->total, size));
    TRY(check_array("v", a->v, a->total, size));
    TRY(check_array("out", a->out, a->total, size));
    bool has_sums = is_backward && a->silu_scale == 0;
    TRY(check_array("log_sum", a->log_sum, has_sums ? a->total : 0, sizeof(float)));
    if (!is_backward) return OK;
    TRY(check_array("dout", a->dout, a->total, size));
    TRY(check_array("dq", a->dq, a->total, size));
    TRY(check_array("dk", a->dk, a->total, size));
    return check_array("dv", a->dv, a->total, size);
}

/* The masks were made for the lengths that were set: on the host others can be seen. */
static status check_sequences(const api_softmax *attn, const hstu_softmax_attn_varlen_args *a,
                              bool is_span) {
    TRY(api_check_offsets("cu_seqlens", a->cu_seqlens, a->batch_size, a->total, a->max_seqlen));
    for (int32_t i = 0; i < a->batch_size && !is_span; i++) {
        int32_t length = a->cu_seqlens[i + 1] - a->cu_seqlens[i];
        if (length != attn->lengths[i])
            return fail(ERR_USAGE,
                        "softmax attention: sequence %d has %d rows, but its length was set to %d",
                        i, length, attn->lengths[i]);
    }
    return OK;
}

static status check(const api_softmax *attn, const hstu_softmax_attn_varlen_args *a,
                    bool is_backward) {
    bool is_span = mask_rule_is_span(mask_rule_of(attn->m));
    TRY(api_need(a, "args"));
    if (a->dtype < HSTU_FLOAT32 || a->dtype > HSTU_FLOAT16)
        return fail(ERR_USAGE, "softmax attention: dtype is %d", (int)a->dtype);
    if (attn->is_cpu && a->dtype != HSTU_FLOAT32)
        return fail(ERR_UNSUPPORTED, "softmax attention: the CPU computes in HSTU_FLOAT32 only");
    if (a->batch_size < 0 || a->total < 0 || a->max_seqlen < 0)
        return fail(ERR_USAGE, "softmax attention: batch_size, total and max_seqlen must not be "
                               "negative");
    if (!isfinite(a->alpha))
        return fail(ERR_USAGE, "softmax attention: alpha is %g; it must be finite",
                    (double)a->alpha);
    if (!is_span && (attn->masks == NULL || a->batch_size > attn->n_lengths))
        return fail(ERR_USAGE, "softmax attention: this mask needs the lengths of the sequences, "
                               "hstu_softmax_attn_set_lengths");
    TRY(check_arrays(a, is_backward));
    return attn->is_cpu ? check_sequences(attn, a, is_span) : OK;
}

static int64_t stride_or(int64_t stride, int64_t width) {
    return stride != 0 ? stride : width;
}

static softmax_attn_args lower(const api_softmax *attn, const hstu_softmax_attn_varlen_args *a) {
    int64_t width = (int64_t)a->num_heads * a->dim;
    softmax_attn_args to = {.n_sequences = a->batch_size,
                            .n_heads = a->num_heads,
                            .dim = a->dim,
                            .max_len = api_longest(a->max_seqlen, a->total),
                            .n_rows = a->total,
                            .offsets = a->cu_seqlens,
                            .q = a->q,
                            .k = a->k,
                            .v = a->v,
                            .stride_q = stride_or(a->stride_q, width),
                            .stride_k = stride_or(a->stride_k, width),
                            .stride_v = stride_or(a->stride_v, width),
                            .out = a->out,
                            .stride_out = stride_or(a->stride_out, width),
                            .alpha = a->alpha != 0 ? a->alpha : 1 / sqrtf((float)a->dim),
                            .log_sum = a->log_sum,
                            .dout = a->dout,
                            .dq = a->dq,
                            .dk = a->dk,
                            .dv = a->dv,
                            .silu_scale = a->silu_scale};
    to.mask.rule = *mask_rule_of(attn->m);
    if (attn->masks != NULL) to.mask = *mask_batch_view(attn->masks);
    return to;
}

static status run(api_softmax *attn, const hstu_softmax_attn_varlen_args *args, void *stream,
                  bool is_backward) {
    TRY(check(attn, args, is_backward));
    softmax_attn_args a = lower(attn, args);
    TRY(softmax_attn_args_check(&a));
    TRY(visit(attn, args->dtype, stream));
    const ops *o = attn->be->ops;
    return is_backward ? o->softmax_attn_bwd(attn->be, &a) : o->softmax_attn_fwd(attn->be, &a);
}

hstu_status hstu_softmax_attn_varlen_fwd(hstu_softmax_attn *attn,
                                         const hstu_softmax_attn_varlen_args *args, void *stream) {
    handle *h;
    status st = handle_enter(&h, attn, &softmax_type);
    if (st == OK) st = run(handle_object(h), args, stream, false);
    return handle_leave(h, st);
}

hstu_status hstu_softmax_attn_varlen_bwd(hstu_softmax_attn *attn,
                                         const hstu_softmax_attn_varlen_args *args, void *stream) {
    handle *h;
    status st = handle_enter(&h, attn, &softmax_type);
    if (st == OK) st = run(handle_object(h), args, stream, true);
    return handle_leave(h, st);
}
