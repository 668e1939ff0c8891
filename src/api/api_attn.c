/* The attention of hstu.h, of HSTU, with softmax and on a graph: turns the public arguments into
 * those of ops.h and runs them on the caller's stream.  An object is a CUDA backend in guest mode,
 * which launches on a stream that it does not own, or a CPU backend with threads of its own; for
 * softmax also the mask, lowered for the lengths that were set last. */
#include "api/api_int.h"
#include "ops/graph.h"
#include "ops/mask_tiles.h"
#include "ops/ops.h"

_Static_assert((int)HSTU_FLOAT32 == (int)ACT_F32 && (int)HSTU_BFLOAT16 == (int)ACT_BF16 &&
                   (int)HSTU_FLOAT16 == (int)ACT_F16,
               "types of activations must agree");

typedef struct api_attn {
    backend *be;
    pool *workers; /* of the CPU; NULL: a GPU */
    /* Softmax alone: */
    mask *m;
    mask_batch *masks; /* NULL before the first lengths */
    int32_t *lengths;  /* (max_lengths): the last that were set */
    int32_t n_lengths, max_lengths;
    graph_edges g; /* of a graph alone */
} api_attn;

static void forget_lengths(api_attn *attn) {
    mask_batch_destroy(attn->masks);
    mem_free(attn->lengths);
    attn->masks = NULL;
    attn->lengths = NULL;
    attn->n_lengths = attn->max_lengths = 0;
}

static void destroy_attn(void *object) {
    api_attn *attn = object;
    forget_lengths(attn);
    mask_destroy(attn->m);
    if (attn->be != NULL) graph_fini(&attn->g, attn->be);
    backend_destroy(attn->be);
    pool_destroy(attn->workers);
    mem_free(attn);
}

static const handle_type attn_type = {"hstu_attn", destroy_attn, .survives_fork = false};
static const handle_type softmax_type = {"hstu_softmax_attn", destroy_attn, .survives_fork = false};
static const handle_type graph_type = {"hstu_graph_attn", destroy_attn, .survives_fork = false};

/* mask_text: NULL for HSTU's. */
static status open_attn(api_attn *attn, int32_t device, const char *mask_text) {
    cuda_options options = {.device = device, .is_guest = true};
    if (mask_text != NULL) TRY(mask_create(&attn->m, mask_text));
    if (device != HSTU_ATTN_CPU) return backend_create_cuda(&attn->be, &options);
    TRY(pool_create_default(&attn->workers));
    return backend_create_cpu(&attn->be, attn->workers);
}

hstu_status hstu_attn_create(hstu_attn **out, int32_t device) {
    api_attn *attn;
    API_TRY(api_need(out, "out"));
    *out = NULL;
    API_TRY(MEM_NEW(&attn, 1));
    return (hstu_status)handle_open(out, &attn_type, attn, open_attn(attn, device, NULL));
}

void hstu_attn_destroy(hstu_attn *attn) {
    handle_close(attn, &attn_type);
}

hstu_status hstu_softmax_attn_create(hstu_softmax_attn **out, int32_t device, const char *text) {
    api_attn *attn;
    API_TRY(api_need(out, "out"));
    *out = NULL;
    API_TRY(MEM_NEW(&attn, 1));
    status st = open_attn(attn, device, text != NULL ? text : "none");
    return (hstu_status)handle_open(out, &softmax_type, attn, st);
}

void hstu_softmax_attn_destroy(hstu_softmax_attn *attn) {
    handle_close(attn, &softmax_type);
}

/* Makes the next ops compute in this type, on the caller's stream. */
static status visit(api_attn *attn, hstu_dtype dtype, bool is_deterministic, void *stream) {
    cuda_visit there = {stream, (act_type)dtype, is_deterministic};
    if (attn->workers == NULL) return backend_visit_cuda(attn->be, &there);
    if (dtype == HSTU_FLOAT32) return OK;
    return fail(ERR_UNSUPPORTED, "attention: the CPU computes in HSTU_FLOAT32 only");
}

static status check_numbers(hstu_dtype dtype, float alpha) {
    if (dtype < HSTU_FLOAT32 || dtype > HSTU_FLOAT16)
        return fail(ERR_USAGE,
                    "attention: dtype is %d; it must be HSTU_FLOAT32, HSTU_BFLOAT16 or "
                    "HSTU_FLOAT16",
                    (int)dtype);
    if (isfinite(alpha)) return OK;
    return fail(ERR_USAGE, "attention: alpha is %g; it must be finite", (double)alpha);
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

/* ERR_USAGE unless offsets (n + 1) cut all `total` rows into sequences of at most `longest`.  For
 * memory of the host, where a wrong offset can be seen. */
static status check_offsets(const char *name, const int32_t *offsets, int32_t n, int64_t total,
                            int32_t longest) {
    int64_t first = n > 0 ? offsets[0] : 0, last = n > 0 ? offsets[n] : 0;
    for (int32_t i = 0; i < n; i++) {
        int64_t begin = offsets[i], end = offsets[i + 1];
        if (begin < 0 || end < begin || end > total || end - begin > longest)
            return fail(ERR_USAGE,
                        "attention: sequence %d of %s is not at %lld .. %lld of %lld rows, with at "
                        "most %d of its own",
                        i, name, (long long)begin, (long long)end, (long long)total, longest);
    }
    if (first == 0 && last == total) return OK;
    return fail(ERR_USAGE,
                "attention: the sequences of %s are rows %lld .. %lld; they must cover all %lld "
                "rows, from 0",
                name, (long long)first, (long long)last, (long long)total);
}

/* The longest sequence there can be: max_seqlen is the caller's promise, and may be far more than
 * all rows.  It decides how many tiles are visited and how much scratch memory is taken. */
static int32_t longest_of(int32_t max_seqlen, int64_t total) {
    int64_t most = total > 0 ? total : 1;
    return max_seqlen < most ? max_seqlen : (int32_t)most;
}

static int64_t stride_or(int64_t stride, int64_t width) {
    return stride != 0 ? stride : width;
}

void hstu_attn_varlen_defaults(hstu_attn_varlen_args *out) {
    if (out == NULL) return;
    *out = (hstu_attn_varlen_args){.dtype = HSTU_BFLOAT16,
                                   .alpha = 1,
                                   .scaling_seqlen = -1,
                                   .window_left = -1,
                                   .window_right = -1,
                                   .target_group_size = 1};
}

static status check_sizes(const hstu_attn_varlen_args *a) {
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

/* Sequences in memory of the host can be looked at. */
static status check_sequences(const hstu_attn_varlen_args *a) {
    int32_t n = a->batch_size;
    TRY(check_offsets("cu_seqlens_q", a->cu_seqlens_q, n, a->total_q, a->max_seqlen_q));
    TRY(check_offsets("cu_seqlens_k", a->cu_seqlens_k, n, a->total_k, a->max_seqlen_k));
    for (int32_t i = 0; i < n; i++) {
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

static attn_args lower(const hstu_attn_varlen_args *a) {
    int64_t qk = (int64_t)a->num_heads * a->dim_qk, dv = (int64_t)a->num_heads * a->dim_v;
    int32_t scaling = a->scaling_seqlen > 0 ? a->scaling_seqlen : a->max_seqlen_q;
    return (attn_args){.n_sequences = a->batch_size,
                       .n_heads = a->num_heads,
                       .dim_qk = a->dim_qk,
                       .dim_v = a->dim_v,
                       .max_len_q = longest_of(a->max_seqlen_q, a->total_q),
                       .max_len_k = longest_of(a->max_seqlen_k, a->total_k),
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

static status run(api_attn *attn, const hstu_attn_varlen_args *args, void *stream,
                  bool is_backward) {
    const ops *o = attn->be->ops;
    TRY(api_need(args, "args"));
    TRY(check_numbers(args->dtype, args->alpha));
    TRY(check_sizes(args));
    TRY(check_mask(args));
    attn_args a = lower(args);
    TRY(attn_args_check(&a));
    TRY(check_arrays(args, is_backward));
    TRY(visit(attn, args->dtype, args->is_deterministic != 0, stream));
    if (attn->workers != NULL) TRY(check_sequences(args));
    return is_backward ? o->attn_bwd(attn->be, &a) : o->attn_fwd(attn->be, &a);
}

hstu_status hstu_attn_varlen_fwd(hstu_attn *attn, const hstu_attn_varlen_args *args, void *stream) {
    RETURN_WITHIN(attn, &attn_type, run(object, args, stream, false));
}

hstu_status hstu_attn_varlen_bwd(hstu_attn *attn, const hstu_attn_varlen_args *args, void *stream) {
    RETURN_WITHIN(attn, &attn_type, run(object, args, stream, true));
}

static status wait_for(api_attn *attn, void *stream) {
    TRY(visit(attn, HSTU_FLOAT32, false, stream));
    return attn->workers != NULL ? OK : attn->be->ops->sync(attn->be);
}

hstu_status hstu_attn_wait(hstu_attn *attn, void *stream) {
    RETURN_WITHIN(attn, &attn_type, wait_for(object, stream));
}

void hstu_softmax_attn_varlen_defaults(hstu_softmax_attn_varlen_args *out) {
    if (out == NULL) return;
    *out = (hstu_softmax_attn_varlen_args){.dtype = HSTU_BFLOAT16};
}

static status check_lengths(const int32_t *lengths, int32_t n) {
    if (lengths == NULL || n < 0)
        return fail(ERR_USAGE, "attention: lengths is NULL or their number negative");
    for (int32_t i = 0; i < n; i++)
        if (lengths[i] < 0) return fail(ERR_USAGE, "attention: length %d is %d", i, lengths[i]);
    return OK;
}

static status make_room(api_attn *attn, int32_t n) {
    if (attn->masks != NULL && n <= attn->max_lengths) return OK;
    forget_lengths(attn);
    TRY(MEM_NEW(&attn->lengths, (size_t)n));
    TRY(mask_batch_create(&attn->masks, attn->be, attn->m, n));
    attn->max_lengths = n;
    return OK;
}

static status set_lengths(api_attn *attn, int64_t first, const int32_t *lengths, int32_t n,
                          void *stream) {
    TRY(check_lengths(lengths, n));
    TRY(visit(attn, HSTU_FLOAT32, false, stream));
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
    RETURN_WITHIN(attn, &softmax_type, set_lengths(object, first, lengths, n_lengths, stream));
}

static status check_softmax_arrays(const hstu_softmax_attn_varlen_args *a, bool is_backward) {
    size_t size = act_bytes((act_type)a->dtype);
    int64_t width = (int64_t)a->num_heads * a->dim;
    TRY(check_array("cu_seqlens", a->cu_seqlens, a->batch_size, sizeof(int32_t)));
    TRY(check_rows("q", a->q, a->total, a->stride_q, width, size));
    TRY(check_rows("k", a->k, a->total, a->stride_k, width, size));
    TRY(check_rows("v", a->v, a->total, a->stride_v, width, size));
    TRY(check_rows("out", a->out, a->total, a->stride_out, width, size));
    bool has_sums = is_backward && a->silu_scale == 0;
    TRY(check_array("log_sum", a->log_sum, has_sums ? a->total : 0, sizeof(float)));
    if (!is_backward) return OK;
    TRY(check_array("dout", a->dout, a->total, size));
    TRY(check_array("dq", a->dq, a->total, size));
    TRY(check_array("dk", a->dk, a->total, size));
    return check_array("dv", a->dv, a->total, size);
}

/* The masks were made for the lengths that were set: on the host others can be seen. */
static status check_softmax_sequences(const api_attn *attn, const hstu_softmax_attn_varlen_args *a,
                                      bool is_span) {
    TRY(check_offsets("cu_seqlens", a->cu_seqlens, a->batch_size, a->total, a->max_seqlen));
    for (int32_t i = 0; i < a->batch_size && !is_span; i++) {
        int32_t length = a->cu_seqlens[i + 1] - a->cu_seqlens[i];
        if (length != attn->lengths[i])
            return fail(ERR_USAGE,
                        "attention: sequence %d has %d rows, but its length was set to %d", i,
                        length, attn->lengths[i]);
    }
    return OK;
}

static status check_softmax(const api_attn *attn, const hstu_softmax_attn_varlen_args *a,
                            bool is_backward) {
    bool is_span = mask_rule_is_span(mask_rule_of(attn->m));
    TRY(api_need(a, "args"));
    TRY(check_numbers(a->dtype, a->alpha));
    if (a->batch_size < 0 || a->total < 0 || a->max_seqlen < 0)
        return fail(ERR_USAGE, "attention: batch_size, total and max_seqlen must not be "
                               "negative");
    if (!is_span && (attn->masks == NULL || a->batch_size > attn->n_lengths))
        return fail(ERR_USAGE, "attention: this mask needs the lengths of the sequences, "
                               "hstu_softmax_attn_set_lengths");
    TRY(check_softmax_arrays(a, is_backward));
    return attn->workers != NULL ? check_softmax_sequences(attn, a, is_span) : OK;
}

static softmax_attn_args lower_softmax(const api_attn *attn,
                                       const hstu_softmax_attn_varlen_args *a) {
    int64_t width = (int64_t)a->num_heads * a->dim;
    softmax_attn_args to = {.n_sequences = a->batch_size,
                            .n_heads = a->num_heads,
                            .dim = a->dim,
                            .max_len = longest_of(a->max_seqlen, a->total),
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

static status run_softmax(api_attn *attn, const hstu_softmax_attn_varlen_args *args, void *stream,
                          bool is_backward) {
    const ops *o = attn->be->ops;
    TRY(check_softmax(attn, args, is_backward));
    softmax_attn_args a = lower_softmax(attn, args);
    TRY(softmax_attn_args_check(&a));
    TRY(visit(attn, args->dtype, false, stream));
    return is_backward ? o->softmax_attn_bwd(attn->be, &a) : o->softmax_attn_fwd(attn->be, &a);
}

hstu_status hstu_softmax_attn_varlen_fwd(hstu_softmax_attn *attn,
                                         const hstu_softmax_attn_varlen_args *args, void *stream) {
    RETURN_WITHIN(attn, &softmax_type, run_softmax(object, args, stream, false));
}

hstu_status hstu_softmax_attn_varlen_bwd(hstu_softmax_attn *attn,
                                         const hstu_softmax_attn_varlen_args *args, void *stream) {
    RETURN_WITHIN(attn, &softmax_type, run_softmax(object, args, stream, true));
}

_Static_assert((int)HSTU_GRAPH_IDENTITY == (int)GRAPH_IDENTITY &&
                   (int)HSTU_GRAPH_MAX == (int)GRAPH_MAX,
               "weight functions and reductions must agree");

static status open_graph(api_attn *attn, int32_t device, int32_t n_rows, int32_t n_columns,
                         const int32_t *begin, const int32_t *columns) {
    TRY(open_attn(attn, device, NULL));
    TRY(visit(attn, HSTU_FLOAT32, false, NULL));
    return graph_init(&attn->g, attn->be, n_rows, n_columns, begin, columns);
}

hstu_status hstu_graph_attn_create(hstu_graph_attn **out, int32_t device, int32_t n_rows,
                                   int32_t n_columns, const int32_t *indptr,
                                   const int32_t *indices) {
    api_attn *attn;
    API_TRY(api_need(out, "out"));
    *out = NULL;
    API_TRY(MEM_NEW(&attn, 1));
    status st = open_graph(attn, device, n_rows, n_columns, indptr, indices);
    return (hstu_status)handle_open(out, &graph_type, attn, st);
}

void hstu_graph_attn_destroy(hstu_graph_attn *attn) {
    handle_close(attn, &graph_type);
}

void hstu_graph_attn_defaults(hstu_graph_attn_args *out) {
    if (out == NULL) return;
    *out = (hstu_graph_attn_args){.dtype = HSTU_BFLOAT16, .alpha = 1, .slope = 1, .bias_heads = 1};
}

static graph_attn_args lower_graph(const api_attn *attn, const hstu_graph_attn_args *a) {
    int64_t qk = (int64_t)a->num_heads * a->dim_qk, width = (int64_t)a->num_heads * a->dim_v;
    return (graph_attn_args){.g = attn->g,
                             .f = (graph_weight)a->weight,
                             .sum = (graph_sum)a->sum,
                             .n_heads = a->num_heads,
                             .dim_qk = a->dim_qk,
                             .dim_v = a->dim_v,
                             .q = a->q,
                             .k = a->k,
                             .v = a->v,
                             .stride_q = stride_or(a->stride_q, qk),
                             .stride_k = stride_or(a->stride_k, qk),
                             .stride_v = stride_or(a->stride_v, width),
                             .alpha = a->alpha,
                             .slope = a->slope,
                             .left = a->left,
                             .right = a->right,
                             .bias = a->bias,
                             .bias_heads = a->bias_heads,
                             .out = a->out,
                             .stride_out = stride_or(a->stride_out, width),
                             .row_sum = a->row_sum,
                             .weights = a->weights,
                             .best = a->best,
                             .dout = a->dout,
                             .dweights = a->dweights,
                             .dq = a->dq,
                             .dk = a->dk,
                             .dv = a->dv,
                             .dleft = a->dleft,
                             .dright = a->dright,
                             .dbias = a->dbias};
}

/* Which of them may be NULL graph_attn_args_check knows. */
static status check_graph_arrays(const api_attn *attn, const graph_attn_args *a, size_t size,
                                 bool is_backward) {
    int64_t qk = (int64_t)a->n_heads * a->dim_qk, width = (int64_t)a->n_heads * a->dim_v;
    int64_t n = attn->g.rows.n;
    const struct {
        const char *name;
        const void *p;
    } words[] = {{"left", a->left},         {"right", a->right},     {"bias", a->bias},
                 {"row_sum", a->row_sum},   {"weights", a->weights}, {"best", a->best},
                 {"dweights", a->dweights}, {"dleft", a->dleft},     {"dright", a->dright},
                 {"dbias", a->dbias}};
    TRY(check_rows("q", a->q, 0, a->stride_q, qk, size));
    TRY(check_rows("k", a->k, 0, a->stride_k, qk, size));
    TRY(check_rows("v", a->v, 0, a->stride_v, width, size));
    TRY(check_rows("out", a->out, a->v != NULL ? n : 0, a->stride_out, width, size));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        TRY(check_array(words[i].name, words[i].p, 0, sizeof(float)));
    if (!is_backward) return OK;
    TRY(check_array("dout", a->dout, 0, size));
    TRY(check_array("dq", a->dq, 0, size));
    TRY(check_array("dk", a->dk, 0, size));
    return check_array("dv", a->dv, 0, size);
}

static status run_graph(api_attn *attn, const hstu_graph_attn_args *args, void *stream,
                        bool is_backward) {
    const ops *o = attn->be->ops;
    TRY(api_need(args, "args"));
    TRY(check_numbers(args->dtype, args->alpha));
    graph_attn_args a = lower_graph(attn, args);
    TRY(graph_attn_args_check(&a, is_backward));
    TRY(check_graph_arrays(attn, &a, act_bytes((act_type)args->dtype), is_backward));
    TRY(visit(attn, args->dtype, false, stream));
    return is_backward ? o->graph_attn_bwd(attn->be, &a) : o->graph_attn_fwd(attn->be, &a);
}

hstu_status hstu_graph_attn_fwd(hstu_graph_attn *attn, const hstu_graph_attn_args *args,
                                void *stream) {
    RETURN_WITHIN(attn, &graph_type, run_graph(object, args, stream, false));
}

hstu_status hstu_graph_attn_bwd(hstu_graph_attn *attn, const hstu_graph_attn_args *args,
                                void *stream) {
    RETURN_WITHIN(attn, &graph_type, run_graph(object, args, stream, true));
}
