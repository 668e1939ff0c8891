/* FuXi's three channels against their formulas in double: masks, fewer queries than keys, lengths
 * around every block size, any number of threads, keys in pages. */
#include "attn_sample.h"
#include "ops/ops.h"

static double stored(double x) {
    return ract(x, true);
}

static double factor(double x) {
    return rfactor(x, true);
}

static const attn_rounding rounding = {stored, factor};

/* Results: rows of out and dout are (H, 3, dim_v), those of the third channel (H, dim_v). */
typedef struct channels {
    sample s;
    inputs in;
    attn_channels_args a;
    int64_t n_out, n_q, n_k, n_v, n_third;
    float *dout, *third_dout, *out, *third;
    double *want_out[2], *want_dv[2], *want_dq[2], *want_position[2], *want_time[2];
} channels;

static int bucket(int64_t seconds) {
    float distance = fabsf((float)seconds), number = logf(distance < 1 ? 1 : distance) / 0.301f;
    return number > ATTN_TIME_BUCKETS ? ATTN_TIME_BUCKETS : (int)number;
}

/* What a pair adds to channels 0 and 1 of a head. */
static void add_pair(channels *c, int32_t b, int32_t head, int32_t row, int32_t j, int f) {
    const attn_args *a = &c->a.of;
    if (!attn_naive_sees(a, b, row, j)) return;
    int64_t query = a->offsets_q[b] + row, key = a->offsets_k[b] + j;
    int32_t shift = a->offsets_k[b + 1] - a->offsets_k[b] - a->offsets_q[b + 1] + a->offsets_q[b];
    int64_t at_v = key * a->stride_v + (int64_t)head * a->dim_v;
    int64_t at_out = query * a->stride_out + 3 * (int64_t)head * a->dim_v;
    int cell[2] = {a->bias_len - 1 + j - (row + shift),
                   bucket(a->query_time[query] - a->key_time[key])};
    double *grad[2] = {c->want_position[f], c->want_time[f]};
    for (int m = 0; m < 2; m++, at_out += a->dim_v) {
        double w = (m == 0 ? a->position_w : a->time_w)[cell[m]];
        w = rfactor(w, f);
        for (int32_t d = 0; d < a->dim_v; d++) {
            double v = ((const float *)a->v)[at_v + d], g = ((const float *)a->dout)[at_out + d];
            c->want_out[f][at_out + d] += w * v;
            c->want_dv[f][at_v + d] += w * g;
            grad[m][cell[m]] += g * v;
        }
    }
}

/* The third channel is the attention without a bias. */
static void add_third(channels *c, int f) {
    attn_args third = c->a.of;
    double *out = doubles(c->n_third);
    attn_naive_results to = {.out = out, .dv = c->want_dv[f], .dq = c->want_dq[f]};
    int64_t row = (int64_t)third.n_heads * third.dim_v;
    third.bias = BIAS_NONE;
    third.stride_out = row;
    third.dout = c->third_dout;
    for (int32_t b = 0; b < third.n_sequences; b++)
        attn_naive_sequence(&third, b, f == 1 && test_on.p != PRECISION_F32 ? &rounding : NULL,
                            &to);
    for (int64_t i = 0; i < c->n_third; i++) {
        int64_t head = i % row / third.dim_v;
        c->want_out[f][i / row * c->a.of.stride_out + (3 * head + 2) * third.dim_v +
                       i % third.dim_v] = out[i];
    }
    mem_free(out);
}

static void naive(channels *c, int f) {
    const attn_args *a = &c->a.of;
    for (int32_t b = 0; b < a->n_sequences; b++)
        for (int32_t head = 0; head < a->n_heads; head++)
            for (int32_t row = 0; row < a->offsets_q[b + 1] - a->offsets_q[b]; row++)
                for (int32_t j = 0; j < a->offsets_k[b + 1] - a->offsets_k[b]; j++)
                    add_pair(c, b, head, row, j, f);
    add_third(c, f);
    for (int64_t i = 0; f == 1 && i < c->n_out; i++)
        c->want_out[f][i] = ract(c->want_out[f][i], true);
    for (int64_t i = 0; f == 1 && i < c->n_v; i++)
        c->want_dv[f][i] = ract(c->want_dv[f][i], true);
}

static void make(channels *c, const int32_t *lengths, int n, int32_t queries, int32_t n_heads,
                 int32_t dim_qk, int32_t dim_v, sample_mask_kind mask) {
    *c = (channels){0};
    sample_make(&c->s, &c->in, lengths, n, queries, n_heads, dim_qk, dim_v);
    sample_mask(&c->s.a, &c->in, mask);
    sample_bias(&c->s, &c->in, BIAS_TIME, 1, 1000000);
    sample_results(&c->s);
    attn_args *a = &c->a.of;
    *a = c->s.a;
    int64_t row = (int64_t)n_heads * dim_v;
    a->n_rows_q = c->s.n_q;
    a->n_rows_k = c->s.n_k;
    a->stride_out = 3 * row;
    c->n_third = c->s.n_q * row;
    c->n_out = c->s.n_q * a->stride_out;
    c->n_v = c->s.n_k * a->stride_v;
    c->n_q = c->s.n_q * a->stride_q;
    c->third_dout = floats(c->n_third, 8);
    c->dout = floats(c->n_out, 7);
    for (int64_t i = 0; i < c->n_third; i++)
        c->dout[i / dim_v * 3 * dim_v + 2 * dim_v + i % dim_v] = c->third_dout[i];
    a->dout = c->dout;
    a->out = c->out = floats(c->n_out, 9);
    c->a.third = c->third = floats(c->n_third, 9);
    for (int f = 0; f < 2; f++) {
        c->want_out[f] = doubles(c->n_out);
        c->want_dv[f] = doubles(c->n_v);
        c->want_dq[f] = doubles(c->n_q);
        c->want_position[f] = doubles(2 * (int64_t)a->bias_len);
        c->want_time[f] = doubles(ATTN_TIME_BUCKETS + 1);
        naive(c, f);
    }
}

static void fini(channels *c) {
    for (int f = 0; f < 2; f++) {
        double *all[] = {c->want_out[f], c->want_dv[f], c->want_dq[f], c->want_position[f],
                         c->want_time[f]};
        for (int i = 0; i < 5; i++)
            mem_free(all[i]);
    }
    void *all[] = {c->dout, c->third_dout, c->out, c->third};
    for (int i = 0; i < 4; i++)
        mem_free(all[i]);
    sample_free(&c->s);
    sample_free_inputs(&c->in);
}

/* Columns of rows that are `stride` apart. */
static void check_rows(int line, const float *got, double *const want[2], int64_t n_rows,
                       int64_t stride, int64_t used) {
    double largest = 0, error = 0, naive_error = 0;
    for (int64_t i = 0; i < n_rows * stride; i++) {
        if (i % stride >= used) continue;
        largest = fmax(largest, fabs(want[0][i]));
        error = fmax(error, isnan(got[i]) ? INFINITY : fabs(got[i] - want[0][i]));
        naive_error = fmax(naive_error, fabs(want[1][i] - want[0][i]));
    }
    double limit = test_on.p == PRECISION_F32
                       ? 4e-6 * largest
                       : 2 * naive_error + 2 * precision_unit(test_on.p) * largest;
    if (!(error <= limit))
        FAIL_TEST("line %d: error %g of %g, limit %g", line, error, largest, limit);
}

static void run(const attn_channels_args *a, int n_threads) {
    pool *workers;
    backend *be;
    CHECK_OK(pool_create(&workers, n_threads));
    CHECK_OK(test_backend(&be, workers));
    CHECK_OK(be->ops->attn_channels_fwd(be, a));
    CHECK_OK(be->ops->attn_channels_bwd(be, a));
    backend_destroy(be);
    pool_destroy(workers);
}

static void check_case(const int32_t *lengths, int n, int32_t queries, int32_t n_heads,
                       int32_t dim_qk, int32_t dim_v, sample_mask_kind mask) {
    channels c;
    make(&c, lengths, n, queries, n_heads, dim_qk, dim_v, mask);
    const attn_args *a = &c.a.of;
    int n_position = 2 * a->bias_len - 1, n_time = ATTN_TIME_BUCKETS + 1;
    run(&c.a, 2);
    check_rows(__LINE__, c.out, c.want_out, c.s.n_q, a->stride_out, a->stride_out);
    check_rows(__LINE__, c.s.dv, c.want_dv, c.s.n_k, a->stride_v, (int64_t)n_heads * dim_v);
    check_rows(__LINE__, c.s.dq, c.want_dq, c.s.n_q, a->stride_q, (int64_t)n_heads * dim_qk);
    for (int i = 0; i < n_position; i++)
        c.s.dposition[i] -= 0.5f;
    for (int i = 0; i < n_time; i++)
        c.s.dtime[i] -= 0.5f;
    for (int64_t i = 0; i < n_position + n_time; i++) {
        bool is_time = i >= n_position;
        double want = is_time ? c.want_time[0][i - n_position] : c.want_position[0][i];
        double got = is_time ? c.s.dtime[i - n_position] : c.s.dposition[i];
        double largest =
            max_of(is_time ? c.want_time[0] : c.want_position[0], is_time ? n_time : n_position);
        double limit = precision_is_half(test_on.p) ? 1e-4 : 1e-5; /* sums of rounded factors */
        if (!(fabs(got - want) <= limit * (largest + 1)))
            FAIL_TEST("gradient of bias cell %lld: %g, not %g", (long long)i, got, want);
    }
    fini(&c);
}

TEST(attn_channels_masks) {
    const int32_t lengths[] = {0, 1, 7, 8, 33, 0, 65};
    for (int mask = 0; mask < SAMPLE_FUNC; mask++) {
        check_case(lengths, 7, QUERIES_ALL, 2, 9, 6, (sample_mask_kind)mask);
        check_case(lengths, 7, QUERIES_ANY, 3, 4, 25, (sample_mask_kind)mask);
    }
}

TEST(attn_channels_lengths_and_widths) {
    const int32_t around[] = {127, 128, 129, 255}, large[] = {256, 257, 300}, one[] = {40};
    check_case(around, 4, QUERIES_ALL, 1, 4, 4, SAMPLE_CAUSAL);
    check_case(large, 3, QUERIES_ALL, 2, 3, 5, SAMPLE_CAUSAL);
    check_case(large, 3, QUERIES_ANY, 1, 3, 5, SAMPLE_TARGETS);
    check_case(one, 1, QUERIES_ALL, 8, 32, 32, SAMPLE_CAUSAL);
    check_case(one, 1, QUERIES_ALL, 1, 50, 50, SAMPLE_CAUSAL);
    check_case(one, 0, QUERIES_ALL, 1, 5, 5, SAMPLE_CAUSAL);
}

/* More sequences than slots of sums; the same bits with one thread and with three. */
TEST(attn_channels_any_threads) {
    int32_t lengths[70];
    channels c;
    for (int i = 0; i < 70; i++)
        lengths[i] = i % 9;
    lengths[3] = 260;
    make(&c, lengths, 70, QUERIES_ALL, 2, 6, 7, SAMPLE_CAUSAL);
    int64_t n_position = 2 * c.a.of.bias_len - 1;
    run(&c.a, 1);
    float *out = copy_floats(c.out, c.n_out), *dv = copy_floats(c.s.dv, c.n_v);
    float *position = copy_floats(c.s.dposition, n_position);
    for (int64_t i = 0; i < n_position; i++)
        c.s.dposition[i] = 0.5f;
    run(&c.a, 3);
    CHECK_SAME(c.out, out, c.n_out);
    CHECK_SAME(c.s.dv, dv, c.n_v);
    CHECK_SAME(c.s.dposition, position, n_position);
    void *all[] = {out, dv, position};
    for (int i = 0; i < 3; i++)
        mem_free(all[i]);
    fini(&c);
}

TEST(attn_channels_refused) {
    attn_channels_args a = {.of = {.n_heads = 1, .dim_qk = 1, .dim_v = 1}};
    CHECK_FAILS(attn_channels_args_check(&a), ERR_USAGE, "channels need a time bias");
    a.of.bias = BIAS_TIME;
    CHECK_OK(attn_channels_args_check(&a));
    a.of.dim_v = 0;
    CHECK_FAILS(attn_channels_args_check(&a), ERR_USAGE, "each must be at least 1");
}
