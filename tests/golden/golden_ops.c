/* Single ops: attention, time buckets, AdamW, ranking of a corpus. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden.h"

static status read_attn(golden *g, attn_args *a) {
    double alpha;
    int32_t scaling, n_offsets, head_dim;
    const st_tensor *t;
    int32_t *offsets_q, *offsets_k;
    TRY(golden_int(g, "head_dim", &head_dim));
    TRY(golden_int(g, "heads", &a->n_heads));
    TRY(golden_int(g, "max_seqlen_q", &a->max_len_q));
    TRY(golden_int(g, "max_seqlen_k", &a->max_len_k));
    TRY(golden_int(g, "scaling_seqlen", &scaling));
    TRY(golden_int(g, "window_left", &a->window_left));
    TRY(golden_int(g, "window_right", &a->window_right));
    TRY(golden_int(g, "target_group_size", &a->target_group));
    TRY(golden_int(g, "n_func", &a->n_func));
    TRY(golden_number(g, "alpha", &alpha));
    TRY(golden_get(g, "cu_seqlens_q", &t));
    n_offsets = (int32_t)t->n;
    TRY(golden_send_i32(g, "cu_seqlens_q", &offsets_q));
    TRY(golden_send_i32(g, "cu_seqlens_k", &offsets_k));
    a->n_sequences = n_offsets - 1;
    a->dim_qk = a->dim_v = head_dim;
    a->offsets_q = offsets_q;
    a->offsets_k = offsets_k;
    a->alpha = (float)alpha;
    a->scale = 1 / (float)scaling;
    a->stride_q = a->stride_k = a->stride_v = a->stride_out = (int64_t)a->n_heads * head_dim;
    return OK;
}

/* The masks' and the bias' tensors, where a file has them. */
static status read_attn_options(golden *g, attn_args *a, float **d_table) {
    int32_t *ints;
    float *table;
    const st_tensor *t = golden_find(g, "rab");
    if (golden_find(g, "num_contexts") != NULL) {
        TRY(golden_send_i32(g, "num_contexts", &ints));
        a->n_contexts = ints;
    }
    if (golden_find(g, "num_targets") != NULL) {
        TRY(golden_send_i32(g, "num_targets", &ints));
        a->n_targets = ints;
    }
    if (a->n_func > 0) {
        TRY(golden_send_i32(g, "func", &ints));
        a->func = ints;
        a->func_stride = golden_find(g, "func")->shape[1];
    }
    if (t == NULL) return OK;
    TRY(golden_send(g, "rab", &table));
    TRY(golden_new(g, d_table, t->n));
    a->bias = BIAS_TABLE;
    a->table = table;
    a->table_heads = (int32_t)t->shape[1];
    a->table_len = (int32_t)t->shape[2];
    a->dtable = *d_table;
    return OK;
}

status golden_nv_attn(golden *g) {
    attn_args a = {0};
    float *q, *k, *v, *d_out, *out, *dq, *dk, *dv, *d_table = NULL;
    TRY(read_attn(g, &a));
    TRY(read_attn_options(g, &a, &d_table));
    TRY(golden_send(g, "q", &q));
    TRY(golden_send(g, "k", &k));
    TRY(golden_send(g, "v", &v));
    TRY(golden_send(g, "G", &d_out));
    TRY(golden_new(g, &out, golden_find(g, "q")->n));
    TRY(golden_new(g, &dq, golden_find(g, "q")->n));
    TRY(golden_new(g, &dk, golden_find(g, "k")->n));
    TRY(golden_new(g, &dv, golden_find(g, "k")->n));
    a.q = q;
    a.k = k;
    a.v = v;
    a.out = out;
    a.dout = d_out;
    a.dq = dq;
    a.dk = dk;
    a.dv = dv;
    TRY(g->be->ops->attn_fwd(g->be, &a));
    TRY(golden_check(g, "out", out, TOL_OUT));
    TRY(g->be->ops->attn_bwd(g->be, &a));
    TRY(golden_check(g, "grad.q", dq, TOL_OUT));
    TRY(golden_check(g, "grad.k", dk, TOL_OUT));
    TRY(golden_check(g, "grad.v", dv, TOL_OUT));
    return d_table != NULL ? golden_check(g, "grad.rab", d_table, TOL_OUT) : OK;
}

/* Buckets are inside the attention: n sequences of one token with q = k = 0 and v = 1 give
 * silu(time_w[bucket]), and time_w[b] = b tells which. */
static status attend_times(golden *g, const int64_t *dt, int64_t n, float *got) {
    float *q, *v, *out, *position_w, *time_w, ramp[ATTN_TIME_BUCKETS + 1], *ones;
    int64_t *zero, *query;
    int32_t *offsets, *host;
    backend *be = g->be;
    TRY(golden_new(g, &q, n));
    TRY(golden_new(g, &v, n));
    TRY(golden_new(g, &out, n));
    TRY(golden_new(g, &position_w, 1));
    TRY(golden_new(g, &time_w, ATTN_TIME_BUCKETS + 1));
    TRY(NN_NEW(&g->memory, &zero, n));
    TRY(NN_NEW(&g->memory, &query, n));
    TRY(NN_NEW(&g->memory, &offsets, n + 1));
    TRY(NN_NEW_HOST(&g->memory, &host, n + 1));
    TRY(NN_NEW_HOST(&g->memory, &ones, n));
    for (int64_t i = 0; i <= n; i++)
        host[i] = (int32_t)i;
    for (int64_t i = 0; i < n; i++)
        ones[i] = 1;
    for (int i = 0; i <= ATTN_TIME_BUCKETS; i++)
        ramp[i] = (float)i;
    TRY(be->ops->copy_in(be, offsets, host, (size_t)(n + 1) * sizeof *host));
    TRY(be->ops->copy_in(be, v, ones, (size_t)n * sizeof *ones));
    TRY(be->ops->copy_in(be, time_w, ramp, sizeof ramp));
    TRY(be->ops->copy_in(be, query, dt, (size_t)n * sizeof *dt));
    attn_args a = {.n_sequences = (int32_t)n,
                   .n_heads = 1,
                   .dim_qk = 1,
                   .dim_v = 1,
                   .max_len_q = 1,
                   .max_len_k = 1,
                   .offsets_q = offsets,
                   .offsets_k = offsets,
                   .q = q,
                   .k = q,
                   .v = v,
                   .stride_q = 1,
                   .stride_k = 1,
                   .stride_v = 1,
                   .out = out,
                   .stride_out = 1,
                   .alpha = 1,
                   .scale = 1,
                   .window_left = -1,
                   .target_group = 1,
                   .bias = BIAS_TIME,
                   .position_w = position_w,
                   .time_w = time_w,
                   .bias_len = 1,
                   .query_time = query,
                   .key_time = zero};
    TRY(be->ops->attn_fwd(be, &a));
    return be->ops->copy_out(be, got, out, (size_t)n * sizeof *got);
}

/* The b with silu(b) nearest to a value; silu grows from 0 on. */
static int nearest_bucket(float value) {
    int best = 0;
    for (int b = 1; b <= ATTN_TIME_BUCKETS; b++) {
        double now = b / (1 + exp(-b)), before = best / (1 + exp(-best));
        if (fabs(now - (double)value) < fabs(before - (double)value)) best = b;
    }
    return best;
}

status golden_meta_buckets(golden *g) {
    int64_t *dt, *bucket, *ambiguous, n;
    float *got;
    TRY(golden_ints(g, "dt", &dt, &n));
    TRY(golden_ints(g, "bucket", &bucket, NULL));
    TRY(golden_ints(g, "ambiguous", &ambiguous, NULL));
    TRY(NN_NEW_HOST(&g->memory, &got, n));
    TRY(attend_times(g, dt, n, got));
    for (int64_t i = 0; i < n; i++)
        if (!ambiguous[i]) golden_check_equal(g, "bucket", nearest_bucket(got[i]), bucket[i]);
    return OK;
}

static status check_row(golden *g, const char *name, const float *got, const st_tensor *t,
                        int64_t first, int64_t n) {
    double worst = 0, largest = 0;
    float *host;
    TRY(NN_NEW_HOST(&g->memory, &host, n));
    TRY(g->be->ops->copy_out(g->be, host, got, (size_t)n * sizeof *host));
    for (int64_t i = 0; i < n; i++) {
        double want = golden_at(t, first + i), error = fabs((double)host[i] - want);
        worst = worse_error(worst, error);
        if (fabs(want) > largest) largest = fabs(want);
    }
    golden_check_value(g, name, largest + worst, largest, 1e-6);
    return OK;
}

status golden_meta_adamw(golden *g) {
    float *w, *m, *v, *grad;
    const st_tensor *given, *after;
    double lr, beta1, beta2, eps, decay;
    TRY(golden_number(g, "lr", &lr));
    TRY(golden_number(g, "beta1", &beta1));
    TRY(golden_number(g, "beta2", &beta2));
    TRY(golden_number(g, "eps", &eps));
    TRY(golden_number(g, "weight_decay", &decay));
    TRY(golden_send(g, "w", &w));
    TRY(golden_get(g, "g", &given));
    TRY(golden_get(g, "w_after", &after));
    int64_t n_steps = given->shape[0], n = given->shape[1];
    TRY(golden_new(g, &m, n));
    TRY(golden_new(g, &v, n));
    TRY(golden_new(g, &grad, n));
    update_args a = {.kind = OPT_ADAMW,
                     .n = n,
                     .dim = (int32_t)n,
                     .w = w,
                     .grad = grad,
                     .m = m,
                     .v = v,
                     .lr = (float)lr,
                     .beta1 = (float)beta1,
                     .beta2 = (float)beta2,
                     .eps = (float)eps,
                     .weight_decay = (float)decay};
    for (a.step = 1; a.step <= n_steps; a.step++) {
        const float *step = (const float *)given->data + (a.step - 1) * n;
        TRY(g->be->ops->copy_in(g->be, grad, step, (size_t)n * sizeof *step));
        TRY(g->be->ops->update(g->be, &a, 1));
        TRY(check_row(g, "w_after", w, after, (a.step - 1) * n, n));
    }
    TRY(golden_check(g, "m", m, TOL_OUT));
    return golden_check(g, "v", v, TOL_OUT);
}

static const int HR_AT[] = {1, 10, 50, 100, 200, 500, 1000}, NDCG_AT[] = {1, 10, 50, 100, 200};

static int64_t row_of(const int64_t *ids, int64_t n, int64_t id) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] == id) return i;
    return -1;
}

static int compare_rows(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* A user's seen items as rows of the corpus, ascending and distinct; returns how many. */
static int32_t seen_rows(const int64_t *seen, int64_t n, const int64_t *ids, int64_t n_ids,
                         int32_t *out) {
    int32_t count = 0, kept = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = seen[i] != 0 ? row_of(ids, n_ids, seen[i]) : -1;
        if (row >= 0) out[count++] = (int32_t)row;
    }
    qsort(out, (size_t)count, sizeof *out, compare_rows);
    for (int32_t i = 0; i < count; i++)
        if (kept == 0 || out[kept - 1] != out[i]) out[kept++] = out[i];
    return kept;
}

static double ndcg(int64_t rank, int k) {
    return rank <= k ? 1 / log2((double)rank + 1) : 0;
}

static status check_hits(golden *g, const int32_t *rank, int64_t n) {
    char name[32], mean_name[40];
    const st_tensor *each, *mean;
    for (size_t i = 0; i < sizeof HR_AT / sizeof *HR_AT; i++) {
        double sum = 0;
        snprintf(name, sizeof name, "hr@%d", HR_AT[i]);
        snprintf(mean_name, sizeof mean_name, "mean_%s", name);
        TRY(golden_get(g, name, &each));
        TRY(golden_get(g, mean_name, &mean));
        for (int64_t u = 0; u < n; u++) {
            golden_check_equal(g, name, rank[u] <= HR_AT[i], (int64_t)golden_at(each, u));
            sum += rank[u] <= HR_AT[i];
        }
        golden_check_value(g, mean_name, sum / (double)n, golden_at(mean, 0), 1e-12);
    }
    return OK;
}

static status check_gains(golden *g, const int32_t *rank, int64_t n) {
    char name[32], mean_name[40];
    const st_tensor *each, *mean;
    double reciprocal = 0;
    for (size_t i = 0; i < sizeof NDCG_AT / sizeof *NDCG_AT; i++) {
        double sum = 0;
        snprintf(name, sizeof name, "ndcg@%d", NDCG_AT[i]);
        snprintf(mean_name, sizeof mean_name, "mean_%s", name);
        TRY(golden_get(g, name, &each));
        TRY(golden_get(g, mean_name, &mean));
        for (int64_t u = 0; u < n; u++) {
            golden_check_value(g, name, ndcg(rank[u], NDCG_AT[i]), golden_at(each, u), 1e-6);
            sum += ndcg(rank[u], NDCG_AT[i]);
        }
        golden_check_value(g, mean_name, sum / (double)n, golden_at(mean, 0), 1e-12);
    }
    for (int64_t u = 0; u < n; u++)
        reciprocal += 1 / (double)rank[u];
    TRY(golden_get(g, "mean_mrr", &mean));
    golden_check_value(g, "mean_mrr", reciprocal / (double)n, golden_at(mean, 0), 1e-12);
    return OK;
}

static status check_rated(golden *g, const int32_t *rank, int64_t n) {
    int64_t *rating, n_rated = 0, n_hits = 0;
    const st_tensor *mean;
    TRY(golden_ints(g, "target_ratings", &rating, NULL));
    TRY(golden_get(g, "mean_hr@10_rated4", &mean));
    for (int64_t u = 0; u < n; u++)
        if (rating[u] >= 4) n_rated++, n_hits += rank[u] <= 10;
    golden_check_value(g, "mean_hr@10_rated4", (double)n_hits / (double)n_rated, golden_at(mean, 0),
                       1e-12);
    return OK;
}

/* The normalised corpus and its rank arguments, then ranks cut as the reference cuts them. */
static status rank_users(golden *g, rank_args *a, int32_t max_k) {
    float *raw, *corpus, *scale;
    backend *be = g->be;
    TRY(golden_send(g, "item_emb", &raw));
    TRY(golden_new(g, &corpus, (int64_t)a->n_corpus * a->dim));
    TRY(golden_new(g, &scale, a->n_corpus));
    l2_args l2 = {.n = a->n_corpus,
                  .dim = a->dim,
                  .is_f32 = true,
                  .eps = 1e-6f,
                  .x = raw,
                  .y = corpus,
                  .scale = scale};
    TRY(be->ops->l2_fwd(be, &l2));
    a->corpus = corpus;
    TRY(be->ops->rank(be, a));
    for (int32_t u = 0; u < a->n_queries; u++)
        if (a->rank[u] > max_k) a->rank[u] = max_k + 1;
    return OK;
}

static double score_of(const rank_args *a, const float *query, int32_t row) {
    double sum = 0;
    for (int32_t c = 0; c < a->dim; c++)
        sum += (double)query[c] * a->corpus[(int64_t)row * a->dim + c];
    return sum;
}

static status send_rows(golden *g, const int32_t *host, int64_t n, const int32_t **out) {
    int32_t *device;
    TRY(NN_NEW(&g->memory, &device, n));
    *out = device;
    return g->be->ops->copy_in(g->be, device, host, (size_t)n * sizeof *host);
}

/* Rounding may swap a target with rows of nearly the same score: its rank must be between the ranks
 * that its score plus and minus 4 u |query| would have.  Values derived from the ranks are not
 * checked. */
static status check_near_ranks(golden *g, const rank_args *a, const int64_t *want, int32_t max_k) {
    const float *query = a->query; /* all memory of this program is host memory */
    for (int32_t u = 0; u < a->n_queries; u++, query += a->dim) {
        double squares = 0, own = score_of(a, query, a->target[u]);
        int32_t n_above = 0, n_near = 0;
        const int32_t *seen = a->seen + a->seen_offsets[u], *end = a->seen + a->seen_offsets[u + 1];
        for (int32_t c = 0; c < a->dim; c++)
            squares += (double)query[c] * query[c];
        double margin = 4 * precision_unit(test_on.p) * sqrt(squares);
        for (int32_t row = 0; row < a->n_corpus; row++) {
            while (seen < end && *seen < row)
                seen++;
            double d = score_of(a, query, row) - own;
            bool is_seen = seen < end && *seen == row;
            n_above += !is_seen && d > margin;
            n_near += !is_seen && fabs(d) <= margin;
        }
        int32_t first = n_above + 1 < max_k + 1 ? n_above + 1 : max_k + 1;
        bool is_fine = a->rank[u] >= first && a->rank[u] <= n_above + n_near + 1;
        golden_check_equal(g, "rank", is_fine || a->rank[u] == want[u], true);
    }
    for (size_t i = 0; i < g->part[0]->n_tensors; i++)
        g->is_used[0][i] = true;
    return OK;
}

status golden_meta_eval(golden *g) {
    int64_t *ids, *seen, *target, *want, n_ids, n_seen, n;
    int32_t *seen_row, *offsets, *target_row, max_k;
    float *query;
    rank_args a = {0};
    TRY(golden_ints(g, "item_ids", &ids, &n_ids));
    TRY(golden_ints(g, "seen_ids", &seen, &n_seen));
    TRY(golden_ints(g, "target_ids", &target, &n));
    TRY(golden_ints(g, "rank", &want, NULL));
    TRY(golden_int(g, "D", &a.dim));
    TRY(golden_int(g, "max_k", &max_k));
    TRY(golden_send(g, "user_emb", &query));
    TRY(NN_NEW_HOST(&g->memory, &seen_row, n_seen));
    TRY(NN_NEW_HOST(&g->memory, &offsets, n + 1));
    TRY(NN_NEW_HOST(&g->memory, &target_row, n));
    TRY(NN_NEW_HOST(&g->memory, &a.rank, n));
    for (int64_t u = 0; u < n; u++) {
        int64_t width = n_seen / n;
        offsets[u + 1] =
            offsets[u] + seen_rows(seen + u * width, width, ids, n_ids, seen_row + offsets[u]);
        target_row[u] = (int32_t)row_of(ids, n_ids, target[u]);
    }
    TRY(send_rows(g, seen_row, n_seen, &a.seen));
    TRY(send_rows(g, offsets, n + 1, &a.seen_offsets));
    TRY(send_rows(g, target_row, n, &a.target));
    a.n_queries = (int32_t)n;
    a.n_corpus = (int32_t)n_ids;
    a.query = query;
    TRY(rank_users(g, &a, max_k));
    if (test_on.p != PRECISION_F32) return check_near_ranks(g, &a, want, max_k);
    for (int64_t u = 0; u < n; u++)
        golden_check_equal(g, "rank", a.rank[u], want[u]);
    TRY(check_hits(g, a.rank, n));
    TRY(check_gains(g, a.rank, n));
    return check_rated(g, a.rank, n);
}
