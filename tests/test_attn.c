/* HSTU attention: against a naive float64 version for every mask and bias, around every size of a
 * block, and with any number of threads. */
#include "base/pool.h"
#include "cpu/attn_mask.h"
#include "dense_test.h"
#include "ops/attn_check.h"

/* What an attention computes, in float64. */
typedef struct expected {
    double *out, *dq, *dk, *dv, *dtable, *dposition, *dtime;
} expected;

/* Everything one attention reads and writes; results of the naive version, exact and as naive code
 * of the precision under test has them. */
typedef struct sample {
    attn_args a;
    int64_t n_q, n_k, n_table; /* rows, rows, numbers */
    float *out, *dq, *dk, *dv, *dtable, *dposition, *dtime;
    expected want[2];
} sample;

static uint32_t n_drawn;

static uint32_t draw(void) {
    return rng_draw64(rng_make_key(7, RNG_TEST), n_drawn++, 0).word[0];
}

static float draw_float(void) {
    return exact(2.0f * rng_uniform(draw()) - 1.0f);
}

static void *zeros(int64_t n, size_t size) {
    void *memory;
    CHECK_OK(mem_alloc(&memory, (size_t)n, size));
    return memory;
}

static float *random_floats(int64_t n) {
    float *x = zeros(n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = draw_float();
    return x;
}

/* Results start as rubbish where the op replaces, as 0.5 where it adds. */
static float *filled(int64_t n, float value) {
    float *x = zeros(n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = value;
    return x;
}

/* The mask straight from the words of ops.h. */
static bool sees(const attn_args *a, int32_t b, int32_t row, int32_t i, int32_t j, int32_t len) {
    if (a->func != NULL) {
        const int32_t *f = a->func + a->offsets_q[b] + row;
        if (j < f[0]) return true;
        for (int32_t m = 1; 2 * m < a->n_func; m++)
            if (f[(2 * m - 1) * a->func_stride] <= j && j < f[2 * m * a->func_stride]) return true;
        return false;
    }
    int32_t c = a->n_contexts != NULL ? a->n_contexts[b] : 0;
    int32_t h = len - (a->n_targets != NULL ? a->n_targets[b] : 0);
    if (i < c && j < h) return true;
    if (i >= h && j >= h && j < h + (i - h) / a->target_group * a->target_group) return false;
    return (a->window_left < 0 || j >= i - a->window_left) &&
           (a->window_right < 0 || j <= i + a->window_right);
}

static int32_t naive_bucket(int64_t d) {
    float f = (float)(d < 0 ? -d : d);
    float bucket = logf(f < 1.0f ? 1.0f : f) / 0.301f;
    return bucket > 128.0f ? 128 : (int32_t)bucket;
}

/* One pair (row, j) of a sequence and head, in float64.  With f, as a chain of tensors: scores,
 * weights and their gradients are stored, and are factors of the next product; sums are not rounded
 * before they are whole. */
static void naive_pair(const sample *s, int32_t b, int32_t head, int32_t row, int32_t j, bool f) {
    const attn_args *a = &s->a;
    const expected *e = &s->want[f];
    int32_t len = a->offsets_k[b + 1] - a->offsets_k[b];
    int32_t i = row + len - (a->offsets_q[b + 1] - a->offsets_q[b]);
    int64_t iq = a->offsets_q[b] + row, jk = a->offsets_k[b] + j;
    int64_t q = iq * a->stride_q + head * a->dim_qk, k = jk * a->stride_k + head * a->dim_qk;
    int64_t v = jk * a->stride_v + head * a->dim_v, o = iq * a->stride_out + head * a->dim_v;
    const float *Q = a->q, *K = a->k, *V = a->v, *G = a->dout, *R = a->table;
    int64_t table = 0;
    int32_t bucket = 0;
    double score = 0.0, p = 0.0;
    if (!sees(a, b, row, i, j, len)) return;
    for (int d = 0; d < a->dim_qk; d++)
        score += (double)Q[q + d] * (double)K[k + d];
    for (int d = 0; d < a->dim_v; d++)
        p += (double)G[o + d] * (double)V[v + d];
    score = ract(score, f);
    p = ract(p, f);
    if (a->bias == BIAS_TABLE) {
        int32_t table_head = a->table_heads == 1 ? 0 : head;
        table = (((int64_t)b * a->table_heads + table_head) * a->table_len + i) * a->table_len + j;
        score += (double)R[table];
    } else if (a->bias == BIAS_TIME) {
        bucket = naive_bucket(a->query_time[iq] - a->key_time[jk]);
        score += (double)a->position_w[a->bias_len - 1 + j - i] + (double)a->time_w[bucket];
    }
    double x = ract((double)a->alpha * ract(score, f), f), sigmoid = 1.0 / (1.0 + exp(-x));
    double weight = ract(ract(x * sigmoid, f) * (double)a->scale, f);
    double slope = ract(sigmoid * (1.0 + x * (1.0 - sigmoid)), f);
    double ds = ract(p * (double)a->scale * (double)a->alpha * slope, f);
    for (int d = 0; d < a->dim_v; d++) {
        e->out[o + d] += rfactor(weight, f) * (double)V[v + d];
        e->dv[v + d] += rfactor(weight, f) * (double)G[o + d];
    }
    for (int d = 0; d < a->dim_qk; d++) {
        e->dq[q + d] += rfactor(ds, f) * (double)K[k + d];
        e->dk[k + d] += rfactor(ds, f) * (double)Q[q + d];
    }
    if (a->bias == BIAS_TABLE) e->dtable[table] += ds;
    if (a->bias == BIAS_TIME) {
        e->dposition[a->bias_len - 1 + j - i] += ds;
        e->dtime[bucket] += ds;
    }
}

static void naive(const sample *s) {
    const attn_args *a = &s->a;
    for (int f = 0; f < (test_on.p == PRECISION_F32 ? 1 : 2); f++)
        for (int32_t b = 0; b < a->n_sequences; b++)
            for (int32_t head = 0; head < a->n_heads; head++)
                for (int32_t row = 0; row < a->offsets_q[b + 1] - a->offsets_q[b]; row++)
                    for (int32_t j = 0; j < a->offsets_k[b + 1] - a->offsets_k[b]; j++)
                        naive_pair(s, b, head, row, j, f);
}

/* Memory for the results of s->a, whose shapes are set. */
static void make_results(sample *s) {
    attn_args *a = &s->a;
    int64_t n_q = s->n_q * a->stride_q, n_k = s->n_k * a->stride_k, n_v = s->n_k * a->stride_v;
    int64_t n_out = s->n_q * a->stride_out, n_position = 2 * (int64_t)a->bias_len;
    for (int f = 0; f < 2; f++)
        s->want[f] = (expected){.out = doubles(n_out),
                                .dq = doubles(n_q),
                                .dk = doubles(n_k),
                                .dv = doubles(n_v),
                                .dtable = doubles(s->n_table),
                                .dposition = doubles(n_position),
                                .dtime = doubles(ATTN_TIME_BUCKETS + 1)};
    a->out = s->out = filled(n_out, 9.0f);
    a->dq = s->dq = filled(n_q, 9.0f);
    a->dk = s->dk = filled(n_k, 9.0f);
    a->dv = s->dv = filled(n_v, 9.0f);
    if (a->bias == BIAS_TABLE) a->dtable = s->dtable = filled(s->n_table, 0.5f);
    a->dposition_w = s->dposition = filled(n_position, 0.5f);
    a->dtime_w = s->dtime = filled(ATTN_TIME_BUCKETS + 1, 0.5f);
}

static void free_sample(sample *s) {
    float *owned[] = {s->out, s->dq, s->dk, s->dv, s->dtable, s->dposition, s->dtime};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        mem_free(owned[i]);
    for (int f = 0; f < 2; f++) {
        expected *e = &s->want[f];
        double *all[] = {e->out, e->dq, e->dk, e->dv, e->dtable, e->dposition, e->dtime};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            mem_free(all[i]);
    }
}

static void run_attn(const attn_args *a, int n_threads) {
    pool *workers = NULL;
    backend *be;
    if (n_threads > 0) CHECK_OK(pool_create(&workers, n_threads));
    CHECK_OK(test_backend(&be, workers));
    CHECK_OK(be->ops->attn_fwd(be, a));
    CHECK_OK(be->ops->attn_bwd(be, a));

    backend_destroy(be);
    pool_destroy(workers);
}

/* Rows of n_heads * dim numbers, `stride` apart: the error relative to the largest number (3e-6 in
 * float32; else twice the naive error and one rounding), and what lies between rows left alone. */
static void check_rows(const char *what, const float *got, const double *want, const double *plain,
                       int64_t n_rows, int64_t stride, int64_t used) {
    double largest = 1e-30, error = 0.0, naive_error = 0.0;
    for (int64_t i = 0; i < n_rows * stride; i++) {
        if (i % stride >= used) {
            if (got[i] != 9.0f) FAIL_TEST("%s: element %lld was written", what, (long long)i);
            continue;
        }
        double d = fabs((double)got[i] - want[i]);
        largest = fabs(want[i]) > largest ? fabs(want[i]) : largest;
        error = !(d <= error) ? d : error;
        naive_error = fmax(naive_error, fabs(ract(plain[i], true) - want[i]));
    }
    double limit = test_on.p == PRECISION_F32
                       ? 3e-6 * largest
                       : 2 * naive_error + precision_unit(test_on.p) * largest;
    if (!(error <= limit)) FAIL_TEST("%s: error %g of %g, limit %g", what, error, largest, limit);
}

/* Added to 0.5, which costs half an ulp of the sum. */
static void check_added(const char *what, const float *got, const double *want, const double *plain,
                        int64_t n) {
    double largest = 0.5, error = 0.0, naive_error = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - 0.5 - want[i]);
        largest = fabs(want[i]) > largest ? fabs(want[i]) : largest;
        error = !(d <= error) ? d : error;
        naive_error = fmax(naive_error, fabs(plain[i] - want[i]));
    }
    double limit = 1e-5 * largest + (test_on.p == PRECISION_F32 ? 0 : 2 * naive_error);
    if (!(error <= limit)) FAIL_TEST("%s: error %g of %g, limit %g", what, error, largest, limit);
}

static void check_sample(const sample *s) {
    const attn_args *a = &s->a;
    const expected *e = &s->want[0], *p = &s->want[1];
    int64_t used_qk = (int64_t)a->n_heads * a->dim_qk, used_v = (int64_t)a->n_heads * a->dim_v;
    check_rows("out", s->out, e->out, p->out, s->n_q, a->stride_out, used_v);
    check_rows("dq", s->dq, e->dq, p->dq, s->n_q, a->stride_q, used_qk);
    check_rows("dk", s->dk, e->dk, p->dk, s->n_k, a->stride_k, used_qk);
    check_rows("dv", s->dv, e->dv, p->dv, s->n_k, a->stride_v, used_v);
    if (a->dtable != NULL) check_added("dtable", s->dtable, e->dtable, p->dtable, s->n_table);
    if (a->bias != BIAS_TIME) return;
    check_added("dposition_w", s->dposition, e->dposition, p->dposition, 2 * a->bias_len - 1);
    check_added("dtime_w", s->dtime, e->dtime, p->dtime, ATTN_TIME_BUCKETS + 1);
}

typedef enum { MASK_CAUSAL, MASK_FULL, MASK_WINDOW, MASK_TARGETS, MASK_FUNC, N_MASKS } mask_kind;

enum { MAX_SEQUENCES = 8 };

/* What a random sample points to. */
typedef struct inputs {
    int32_t offsets_q[MAX_SEQUENCES + 1], offsets_k[MAX_SEQUENCES + 1];
    int32_t n_contexts[MAX_SEQUENCES], n_targets[MAX_SEQUENCES];
    float *q, *k, *v, *dout, *table, *position, *time_w;
    int32_t *func;
    int64_t *query_time, *key_time;
} inputs;

static void make_mask(attn_args *a, inputs *in, mask_kind mask) {
    a->window_left = mask == MASK_WINDOW ? 5 : -1;
    a->window_right = mask == MASK_FULL ? -1 : mask == MASK_WINDOW ? 3 : 0;
    a->target_group = 3;
    if (mask == MASK_TARGETS) {
        a->n_contexts = in->n_contexts;
        a->n_targets = in->n_targets;
        for (int32_t b = 0; b < a->n_sequences; b++) {
            int32_t len = in->offsets_k[b + 1] - in->offsets_k[b];
            in->n_targets[b] = (int32_t)rng_below(draw(), (uint32_t)len / 2 + 1);
            in->n_contexts[b] = (int32_t)rng_below(draw(), (uint32_t)(len - in->n_targets[b]) + 1);
        }
    }
    if (mask != MASK_FUNC) return;
    int64_t n_q = in->offsets_q[a->n_sequences];
    a->n_func = 5;
    a->func_stride = n_q + 2;
    a->func = in->func = zeros(a->n_func * a->func_stride, sizeof *in->func);
    for (int64_t i = 0; i < a->n_func * a->func_stride; i++)
        in->func[i] = (int32_t)rng_below(draw(), (uint32_t)a->max_len_k + 10) - 5;
}

static void make_bias(sample *s, inputs *in, attn_bias bias, int32_t table_heads, int64_t span) {
    attn_args *a = &s->a;
    a->bias = bias;
    a->bias_len = a->max_len_k + 3;
    if (bias == BIAS_TABLE) {
        a->table_heads = table_heads;
        a->table_len = a->max_len_k + 1;
        s->n_table = (int64_t)a->n_sequences * table_heads * a->table_len * a->table_len;
        a->table = in->table = random_floats(s->n_table);
    }
    a->position_w = in->position = random_floats(2 * a->bias_len);
    a->time_w = in->time_w = random_floats(ATTN_TIME_BUCKETS + 1);
    a->query_time = in->query_time = zeros(s->n_q, sizeof(int64_t));
    a->key_time = in->key_time = zeros(s->n_k, sizeof(int64_t));
    for (int64_t i = 0; i < s->n_q; i++)
        in->query_time[i] = (int64_t)(rng_uniform(draw()) * (float)span);
    for (int64_t i = 0; i < s->n_k; i++)
        in->key_time[i] = (int64_t)(rng_uniform(draw()) * (float)span);
}

/* How rows lie: next to each other as good as anywhere, or as the copy engine of a GPU wants them,
 * their number known or not. */
typedef enum { ROWS_ODD, ROWS_ALIGNED, ROWS_KNOWN } row_kind;
static row_kind rows_are = ROWS_ODD;

/* A random sample: sequences of these numbers of keys; with delta, fewer queries than keys. */
static void make_sample(sample *s, inputs *in, const int32_t *lengths, int n_sequences,
                        bool has_delta, int32_t n_heads, int32_t dim_qk, int32_t dim_v) {
    attn_args *a = &s->a;
    *s = (sample){0};
    *in = (inputs){0};
    a->n_sequences = n_sequences;
    for (int b = 0; b < n_sequences; b++) {
        int32_t len = lengths[b],
                len_q = has_delta ? (int32_t)rng_below(draw(), (uint32_t)len + 1) : len;
        in->offsets_k[b + 1] = in->offsets_k[b] + len;
        in->offsets_q[b + 1] = in->offsets_q[b] + len_q;
        a->max_len_k = len > a->max_len_k ? len : a->max_len_k;
    }
    a->max_len_k += 2;
    a->max_len_q = a->max_len_k;
    a->offsets_q = in->offsets_q;
    a->offsets_k = in->offsets_k;
    s->n_q = in->offsets_q[n_sequences];
    s->n_k = in->offsets_k[n_sequences];
    a->n_heads = n_heads;
    a->dim_qk = dim_qk;
    a->dim_v = dim_v;
    a->stride_q = n_heads * dim_qk + 1;
    a->stride_k = n_heads * dim_qk + 2;
    a->stride_v = n_heads * dim_v + 3;
    a->stride_out = n_heads * dim_v + 4;
    if (rows_are != ROWS_ODD) {
        a->stride_q = a->stride_k = n_heads * dim_qk + 8;
        a->stride_v = a->stride_out = n_heads * dim_v + 16;
    }
    if (rows_are == ROWS_KNOWN) {
        a->n_rows_q = s->n_q;
        a->n_rows_k = s->n_k;
    }
    a->alpha = 0.7f;
    a->scale = 1.0f / 50.0f;
    a->q = in->q = random_floats(s->n_q * a->stride_q);
    a->k = in->k = random_floats(s->n_k * a->stride_k);
    a->v = in->v = random_floats(s->n_k * a->stride_v);
    a->dout = in->dout = random_floats(s->n_q * a->stride_out);
}

static void free_inputs(inputs *in) {
    void *owned[] = {in->q,        in->k,      in->v,    in->dout,       in->table,
                     in->position, in->time_w, in->func, in->query_time, in->key_time};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        mem_free(owned[i]);
}

static void check_case(const int32_t *lengths, int n_sequences, bool has_delta, int32_t n_heads,
                       int32_t dim_qk, int32_t dim_v, mask_kind mask, attn_bias bias,
                       int32_t table_heads, int64_t span) {
    sample s;
    inputs in;
    make_sample(&s, &in, lengths, n_sequences, has_delta, n_heads, dim_qk, dim_v);
    make_mask(&s.a, &in, mask);
    make_bias(&s, &in, bias, table_heads, span);
    make_results(&s);
    naive(&s);
    run_attn(&s.a, 2);
    check_sample(&s);
    free_sample(&s);
    free_inputs(&in);
}

/* Every mask with every bias, with as many queries as keys and with fewer. */
static void check_masks(bool has_delta) {
    const int32_t lengths[] = {0, 1, 7, 8, 33, 0, 65};
    for (int mask = 0; mask < N_MASKS; mask++) {
        check_case(lengths, 7, has_delta, 2, 9, 6, (mask_kind)mask, BIAS_NONE, 1, 1);
        check_case(lengths, 7, has_delta, 2, 9, 6, (mask_kind)mask, BIAS_TABLE, 1, 1);
        check_case(lengths, 7, has_delta, 2, 9, 6, (mask_kind)mask, BIAS_TABLE, 2, 1);
        check_case(lengths, 7, has_delta, 2, 9, 6, (mask_kind)mask, BIAS_TIME, 1, 100000000);
    }
}

TEST(attn_every_mask_and_bias) {
    check_masks(false);
}

TEST(attn_fewer_queries_than_keys) {
    check_masks(true);
}

/* Lengths around a strip, a block of queries and a block of keys, where the backward pass changes
 * from one pass to two. */
TEST(attn_lengths_around_blocks) {
    const int32_t small[] = {127, 128, 129, 255};
    const int32_t large[] = {256, 257, 513};
    for (int bias = BIAS_NONE; bias <= BIAS_TIME; bias++) {
        check_case(small, 4, false, 1, 4, 4, MASK_CAUSAL, (attn_bias)bias, 1, 1000000);
        check_case(large, 3, false, 1, 4, 4, MASK_CAUSAL, (attn_bias)bias, 1, 1000000);
    }
    check_case(large, 3, true, 2, 3, 5, MASK_TARGETS, BIAS_TABLE, 1, 1);
    check_case(large, 3, true, 1, 3, 5, MASK_FUNC, BIAS_TIME, 1, 1000000);
    check_case(large, 3, false, 1, 3, 5, MASK_WINDOW, BIAS_NONE, 1, 1);
    check_case(large, 3, false, 1, 3, 5, MASK_FULL, BIAS_NONE, 1, 1);
}

TEST(attn_head_dims) {
    const int32_t lengths[] = {3, 40};
    const int32_t dims[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 25, 50, 64, 127, 256};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        check_case(lengths, 2, false, 1, dims[i], dims[(i * 7 + 3) % 15], MASK_CAUSAL, BIAS_TIME, 1,
                   5000);
}

/* Wide heads have kernels of their own on some GPUs, if rows lie well and their number is known. */
TEST(attn_wide_heads) {
    const int32_t lengths[] = {64, 0, 1, 150, 65};
    for (int rows = ROWS_ALIGNED; rows <= ROWS_KNOWN; rows++) {
        rows_are = (row_kind)rows;
        for (int mask = 0; mask < N_MASKS; mask++) {
            check_case(lengths, 5, mask % 2, 1, 128, 128, (mask_kind)mask, BIAS_NONE, 1, 1);
            check_case(lengths, 5, mask % 2 == 0, 2, 256, 256, (mask_kind)mask, BIAS_NONE, 1, 1);
        }
        check_case(lengths, 5, false, 2, 64, 64, MASK_CAUSAL, BIAS_NONE, 1, 1);
        check_case(lengths, 5, false, 1, 256, 128, MASK_CAUSAL, BIAS_NONE, 1, 1);
    }
    rows_are = ROWS_ODD;
}

/* Times too far apart for 32 bits take another way. */
TEST(attn_far_times) {
    const int32_t lengths[] = {20, 300};
    check_case(lengths, 2, false, 1, 4, 4, MASK_CAUSAL, BIAS_TIME, 1, INT64_C(1) << 40);
    check_case(lengths, 2, false, 1, 4, 4, MASK_CAUSAL, BIAS_TIME, 1, INT64_C(1) << 61);
}

TEST(attn_nothing_to_do) {
    const int32_t lengths[] = {0, 0};
    check_case(lengths, 0, false, 1, 4, 4, MASK_CAUSAL, BIAS_TIME, 1, 1);
    check_case(lengths, 2, false, 1, 4, 4, MASK_CAUSAL, BIAS_NONE, 1, 1);
}

/* Scores far out: silu tends to 0 and to x, with no infinity on the way. */
TEST(attn_large_scores) {
    const int32_t lengths[] = {50};
    sample s;
    inputs in;
    make_sample(&s, &in, lengths, 1, false, 1, 4, 4);
    make_mask(&s.a, &in, MASK_CAUSAL);
    make_bias(&s, &in, BIAS_NONE, 1, 1);
    s.a.alpha = 300.0f;
    make_results(&s);
    naive(&s);
    run_attn(&s.a, 1);
    check_sample(&s);
    free_sample(&s);
    free_inputs(&in);
}

/* The same bits without a pool and with 1, 2, 3 threads; on a GPU, every time. */
TEST(attn_same_bits_with_any_threads) {
    if (!test_on.is_deterministic) SKIP_TEST("not asked to be deterministic");
    const int32_t lengths[] = {300, 17, 0, 211, 130, 64, 257, 1};
    sample s;
    inputs in;
    make_sample(&s, &in, lengths, 8, false, 2, 25, 25);
    make_mask(&s.a, &in, MASK_CAUSAL);
    make_bias(&s, &in, BIAS_TIME, 1, 1000000);
    make_results(&s);
    run_attn(&s.a, 0);
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        sample again = {.a = s.a, .n_q = s.n_q, .n_k = s.n_k};
        make_results(&again);
        run_attn(&again.a, n_threads);
        size_t row = sizeof(float) * (size_t)s.n_q;
        CHECK(memcmp(s.out, again.out, row * (size_t)s.a.stride_out) == 0);
        CHECK(memcmp(s.dq, again.dq, row * (size_t)s.a.stride_q) == 0);
        CHECK(memcmp(s.dk, again.dk, row * (size_t)s.a.stride_k) == 0);
        CHECK(memcmp(s.dv, again.dv, row * (size_t)s.a.stride_v) == 0);
        CHECK(memcmp(s.dtime, again.dtime, sizeof(float) * 129) == 0);
        CHECK(memcmp(s.dposition, again.dposition, sizeof(float) * 2 * (size_t)s.a.bias_len) == 0);
        free_sample(&again);
    }
    free_sample(&s);
    free_inputs(&in);
}

TEST(attn_refuses_wrong_arguments) {
    const int32_t lengths[] = {9};
    sample s;
    inputs in;
    make_sample(&s, &in, lengths, 1, false, 1, 4, 4);
    make_mask(&s.a, &in, MASK_TARGETS);
    make_bias(&s, &in, BIAS_TABLE, 1, 1);
    CHECK_OK(attn_args_check(&s.a));
    CHECK_OK(attn_lengths_check(&s.a));
    attn_args a = s.a;
    a.max_len_k = 8;
    CHECK_FAILS(attn_lengths_check(&a), ERR_USAGE, "raise max_len_q / max_len_k");
    a = s.a;
    a.table_heads = 2;
    CHECK_FAILS(attn_args_check(&a), ERR_USAGE, "bias table of 2 heads");
    a = s.a;
    a.target_group = 0;
    CHECK_FAILS(attn_args_check(&a), ERR_USAGE, "target_group is 0");
    a = s.a;
    a.bias = BIAS_TIME;
    a.bias_len = 10;
    CHECK_FAILS(attn_args_check(&a), ERR_USAGE, "raise bias_len");
    a.func = a.offsets_q;
    a.n_func = 2;
    CHECK_FAILS(attn_args_check(&a), ERR_USAGE, "must be odd");
    free_inputs(&in);
}

TEST(attn_mask_spans_are_tidy) {
    const int32_t offsets[] = {0, 1}, keys[] = {0, 100};
    const int32_t func[] = {10, 40, 50, 5, 20, 50, 60, 90, 80};
    attn_args a = {.offsets_q = offsets, .offsets_k = keys, .func = func, .n_func = 9};
    a.func_stride = 1;
    attn_span spans[5];
    CHECK_EQ(attn_mask_max_spans(&a), 5);
    CHECK_EQ(attn_mask_row(&a, 0, 0, spans), 2);
    CHECK_EQ(spans[0].begin, 0);
    CHECK_EQ(spans[0].end, 20);
    CHECK_EQ(spans[1].begin, 40);
    CHECK_EQ(spans[1].end, 60);
}
