/* HSTU attention against the naive version (cpu/attn_naive.h): every mask and bias, lengths around
 * every block size, at shapes drawn at random, and with any number of threads. */
#include "attn_sample.h"
#include "cpu/attn.h"
#include "ops/ops.h"

static void check_case(const int32_t *lengths, int n_sequences, bool has_delta, int32_t n_heads,
                       int32_t dim_qk, int32_t dim_v, sample_mask_kind mask, attn_bias bias,
                       int32_t table_heads, int64_t span) {
    sample s;
    inputs in;
    sample_make(&s, &in, lengths, n_sequences, has_delta, n_heads, dim_qk, dim_v);
    sample_mask(&s.a, &in, mask);
    sample_bias(&s, &in, bias, table_heads, span);
    sample_results(&s);
    sample_naive(&s);
    sample_run(&s.a, 2);
    sample_check(&s);
    sample_free(&s);
    sample_free_inputs(&in);
}

/* Every mask with every bias, with as many queries as keys and with fewer. */
static void check_masks(bool has_delta) {
    const int32_t lengths[] = {0, 1, 7, 8, 33, 0, 65};
    for (int mask = 0; mask < N_SAMPLE_MASKS; mask++) {
        check_case(lengths, 7, has_delta, 2, 9, 6, (sample_mask_kind)mask, BIAS_NONE, 1, 1);
        check_case(lengths, 7, has_delta, 2, 9, 6, (sample_mask_kind)mask, BIAS_TABLE, 1, 1);
        check_case(lengths, 7, has_delta, 2, 9, 6, (sample_mask_kind)mask, BIAS_TABLE, 2, 1);
        check_case(lengths, 7, has_delta, 2, 9, 6, (sample_mask_kind)mask, BIAS_TIME, 1, 100000000);
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
        check_case(small, 4, false, 1, 4, 4, SAMPLE_CAUSAL, (attn_bias)bias, 1, 1000000);
        check_case(large, 3, false, 1, 4, 4, SAMPLE_CAUSAL, (attn_bias)bias, 1, 1000000);
    }
    check_case(large, 3, true, 2, 3, 5, SAMPLE_TARGETS, BIAS_TABLE, 1, 1);
    check_case(large, 3, true, 1, 3, 5, SAMPLE_FUNC, BIAS_TIME, 1, 1000000);
    check_case(large, 3, false, 1, 3, 5, SAMPLE_WINDOW, BIAS_NONE, 1, 1);
    check_case(large, 3, false, 1, 3, 5, SAMPLE_FULL, BIAS_NONE, 1, 1);
}

TEST(attn_head_dims) {
    const int32_t lengths[] = {3, 40};
    const int32_t dims[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 25, 50, 64, 100, 127, 130, 256};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        check_case(lengths, 2, false, 1, dims[i], dims[(i * 7 + 3) % 17], SAMPLE_CAUSAL, BIAS_TIME,
                   1, 5000);
}

/* On some GPUs head dimensions 128 and 256 have their own kernels, which need aligned rows and a
 * known number of them; rows of others may be aligned to 4 bytes alone. */
TEST(attn_wide_heads) {
    const int32_t lengths[] = {64, 0, 1, test_is_brief() ? 70 : 150, 65};
    for (int rows = ROWS_ALIGNED; rows <= ROWS_KNOWN; rows++) {
        rows_are = (row_kind)rows;
        for (int mask = 0; mask < N_SAMPLE_MASKS; mask++) {
            check_case(lengths, 5, mask % 2, 1, 128, 128, (sample_mask_kind)mask, BIAS_NONE, 1, 1);
            check_case(lengths, 5, mask % 2 == 0, 2, 256, 256, (sample_mask_kind)mask, BIAS_NONE, 1,
                       1);
        }
        check_case(lengths, 5, false, 2, 64, 64, SAMPLE_CAUSAL, BIAS_NONE, 1, 1);
        check_case(lengths, 5, false, 1, 256, 128, SAMPLE_CAUSAL, BIAS_NONE, 1, 1);
        check_case(lengths, 5, false, 2, 100, 100, SAMPLE_CAUSAL, BIAS_NONE, 1, 1);
        check_case(lengths, 5, false, 1, 130, 130, SAMPLE_CAUSAL, BIAS_TIME, 1, 5000);
    }
    rows_are = ROWS_ODD;
}

/* More pairs of sequence and head than a GPU has multiprocessors, so that each block of a
 * persistent kernel works on several; few elsewhere. */
TEST(attn_many_heads) {
    const int32_t lengths[] = {70, 3, 64, 20, 66, 1, 40, 5}, one_tile[] = {33, 0, 64, 7, 1, 20, 2};
    rows_are = ROWS_KNOWN;
    bool is_gpu = test_on.kind == ON_CUDA;
    check_case(lengths, 8, false, is_gpu ? 18 : 5, 256, 256, SAMPLE_CAUSAL, BIAS_NONE, 1, 1);
    check_case(one_tile, 7, true, is_gpu ? 20 : 7, 256, 256, SAMPLE_FULL, BIAS_NONE, 1, 1);
    rows_are = ROWS_ODD;
}

typedef struct random_shape {
    int32_t lengths[MAX_SEQUENCES], n_sequences, n_heads, dim_qk, dim_v, table_heads;
    int32_t queries; /* QUERIES_ALL, ... */
    attn_bias bias;
    row_kind rows;
} random_shape;

static int32_t below(int32_t n) {
    return (int32_t)rng_below(sample_draw(), (uint32_t)n);
}

/* Two in three have a head dimension of 32, 64, 128 or 256, most of these with aligned rows. */
static void draw_dims(random_shape *s) {
    bool is_common = below(3) > 0;
    s->dim_qk = s->dim_v = is_common ? 32 << below(4) : 1 + below(256);
    if (!is_common && below(2) == 0) s->dim_v = 1 + below(256);
    s->rows = is_common && below(4) > 0 ? ROWS_KNOWN : (row_kind)below(3);
}

/* None, one token, around a multiple of 64, or anything up to `longest`. */
static int32_t draw_length(int32_t longest) {
    int32_t kind = below(8), length = 1 + below(longest);
    if (kind < 2) return kind;
    if (kind < 5) length = 64 * (1 + below(longest / 64 + 1)) - 1 + below(3);
    return length < longest ? length : longest;
}

/* The naive version's work, pairs times head dimension, is at most 200 thousand to 6 million or
 * so. */
static random_shape draw_shape(void) {
    random_shape s = {.n_sequences = 1 + below(5), .n_heads = 1 + below(3)};
    draw_dims(&s);
    double work = 2e5 * pow(32, rng_uniform(sample_draw()));
    double pairs = work / (s.dim_qk + s.dim_v) / s.n_heads / s.n_sequences;
    int32_t longest = (int32_t)fmin(2 * sqrt(pairs), 600);
    for (int b = 0; b < s.n_sequences; b++)
        s.lengths[b] = draw_length(longest);
    s.queries = below(3) == 0 ? QUERIES_ANY : QUERIES_ALL;
    s.bias = below(2) == 0 ? BIAS_NONE : below(2) == 0 ? BIAS_TABLE : BIAS_TIME;
    s.table_heads = below(2) == 0 ? 1 : s.n_heads;
    return s;
}

static sample_error check_shape(const random_shape *r, sample_mask_kind mask) {
    sample s;
    inputs in;
    rows_are = r->rows;
    sample_make(&s, &in, r->lengths, r->n_sequences, r->queries, r->n_heads, r->dim_qk, r->dim_v);
    sample_mask(&s.a, &in, mask);
    if (mask == SAMPLE_WINDOW) s.a.window_left = below(100), s.a.window_right = below(100);
    sample_bias(&s, &in, r->bias, r->table_heads, 1 << below(30));
    s.a.alpha = 0.05f + rng_uniform(sample_draw());
    sample_results(&s);
    sample_naive(&s);
    sample_run(&s.a, 2);
    sample_error worst = sample_check(&s);
    sample_free(&s);
    sample_free_inputs(&in);
    return worst;
}

/* The shape at which a test failed: a failed check ends the process at once. */
static char at_shape[200];

static void tell_shape(void) {
    if (at_shape[0] != '\0')
        printf("    it was %s; again: HSTU_TEST_SEED=%" PRIu64 "\n", at_shape, sample_seed());
}

/* The error limit of sample_check at random shapes. */
TEST(attn_random_shapes) {
    sample_error worst = {0, "nothing"};
    int n = test_on.kind == ON_CUDA ? 200 : 40;
    atexit(tell_shape);
    for (int i = 0; i < n; i++) {
        random_shape s = draw_shape();
        sample_mask_kind mask = (sample_mask_kind)(i % N_SAMPLE_MASKS);
        snprintf(at_shape, sizeof at_shape,
                 "shape %d: %d sequences (%d keys ...)%s, %d heads of %d and %d, mask %d, bias %d "
                 "(%d heads), rows %d",
                 i, s.n_sequences, s.lengths[0], s.queries != QUERIES_ALL ? ", fewer queries" : "",
                 s.n_heads, s.dim_qk, s.dim_v, mask, s.bias, s.table_heads, s.rows);
        sample_error e = check_shape(&s, mask);
        if (e.ratio > worst.ratio) worst = e;
    }
    at_shape[0] = '\0';
    if (precision_is_half(test_on.p))
        printf("    %d shapes: at most %.2f times the error of naive code (%s)\n", n, worst.ratio,
               worst.what);
}

enum { SWITCH_NUMBERS = 2200000 };

/* A shape at which a GPU's scheduler may change its mind: the longest sequence next to a limit, and
 * next to a full wave of blocks (132 multiprocessors), half a one or two of them.  Large head
 * dimensions come with few tiles; a CPU gets an eighth of the sequences. */
static random_shape draw_switch_shape(void) {
    static const int32_t limits[] = {16, 64, 128, 192, 256, 512, 1024, 1536, 2304},
                         waves[] = {66, 132, 264};
    bool is_gpu = test_on.kind == ON_CUDA;
    random_shape s = {.n_heads = 1 + below(4), .rows = below(4) == 0 ? ROWS_ALIGNED : ROWS_KNOWN};
    int32_t longest = limits[below(is_gpu ? 9 : 6)] - 1 + below(3), tile = 64 << below(2);
    int32_t n_tiles = (longest + tile - 1) / tile * s.n_heads;
    int32_t n_units = (waves[below(3)] - 1 + below(3)) / (is_gpu ? 1 : 8);
    s.n_sequences = (n_units + n_tiles - 1) / n_tiles;
    for (s.dim_qk = 32 << below(4); s.n_sequences * n_tiles * tile > SWITCH_NUMBERS / s.dim_qk;)
        s.dim_qk /= 2;
    s.dim_v = s.dim_qk;
    bool is_jagged = below(2) == 0;
    for (int32_t b = 0; b < s.n_sequences; b++)
        s.lengths[b] = b > 0 && is_jagged ? draw_length(longest) : longest;
    s.queries = below(3) > 0 ? QUERIES_ALL : below(2) == 0 ? QUERIES_ANY : 2 + below(130);
    return s;
}

/* As serving and training call it: the longest sequence is known, a target sees no other target. */
static sample_error check_switch_shape(const random_shape *r, sample_mask_kind mask) {
    sample s;
    inputs in;
    rows_are = r->rows;
    sample_make(&s, &in, r->lengths, r->n_sequences, r->queries, r->n_heads, r->dim_qk, r->dim_v);
    s.a.max_len_k = s.a.max_len_q = 0;
    for (int32_t b = 0; b < r->n_sequences; b++) {
        int32_t len_q = in.offsets_q[b + 1] - in.offsets_q[b];
        s.a.max_len_k = r->lengths[b] > s.a.max_len_k ? r->lengths[b] : s.a.max_len_k;
        s.a.max_len_q = len_q > s.a.max_len_q ? len_q : s.a.max_len_q;
    }
    sample_mask(&s.a, &in, mask);
    int32_t kind = below(3);
    if (kind == 0) s.a.n_contexts = NULL;
    if (kind == 1) s.a.n_targets = NULL;
    if (below(2) == 0) s.a.target_group = 1;
    sample_bias(&s, &in, BIAS_NONE, 1, 1);
    s.a.alpha = 1 / sqrtf((float)r->dim_qk);
    s.a.scale = 1 / (float)s.a.max_len_k;
    sample_results(&s);
    sample_run(&s.a, 2);
    sample_error worst = sample_check_some(&s, 6);
    sample_free(&s);
    sample_free_inputs(&in);
    return worst;
}

TEST(attn_around_switch_points) {
    sample_error worst = {0, "nothing"};
    int n = test_on.kind == ON_CUDA ? 32 : test_is_brief() ? 8 : 30;
    atexit(tell_shape);
    for (int i = 0; i < n; i++) {
        random_shape s = draw_switch_shape();
        sample_mask_kind mask = i % 2 == 0 ? SAMPLE_CAUSAL : SAMPLE_TARGETS;
        snprintf(at_shape, sizeof at_shape,
                 "shape %d: %d sequences (%d keys ...), queries %d, %d heads of %d, mask %d, rows "
                 "%d",
                 i, s.n_sequences, s.lengths[0], s.queries, s.n_heads, s.dim_qk, mask, s.rows);
        sample_error e = check_switch_shape(&s, mask);
        if (e.ratio > worst.ratio) worst = e;
    }
    at_shape[0] = '\0';
    rows_are = ROWS_ODD;
    if (precision_is_half(test_on.p))
        printf("    %d shapes: at most %.2f times the error of naive code (%s)\n", n, worst.ratio,
               worst.what);
}

/* Few long sequences: a GPU cuts their queries into parts.  The last 64 keys of a tile are beyond
 * the end of the last sequence, and contexts make all queries see the tile. */
TEST(attn_queries_in_parts) {
    static const int32_t lengths[] = {2304, 1729, 384, 1153};
    if (test_on.kind != ON_CUDA) SKIP_TEST("a CPU does not cut them");
    for (int i = 0; i < 12; i++) {
        random_shape s = {.n_sequences = 4, .n_heads = 1 + i % 4, .queries = QUERIES_ALL};
        s.rows = ROWS_KNOWN;
        s.dim_qk = s.dim_v = 32 << i % 3;
        memcpy(s.lengths, lengths, sizeof lengths);
        check_switch_shape(&s, SAMPLE_TARGETS);
    }
    rows_are = ROWS_ODD;
}

/* Time differences that do not fit 32 bits take another code path. */
TEST(attn_far_times) {
    const int32_t lengths[] = {20, 300};
    check_case(lengths, 2, false, 1, 4, 4, SAMPLE_CAUSAL, BIAS_TIME, 1, INT64_C(1) << 40);
    check_case(lengths, 2, false, 1, 4, 4, SAMPLE_CAUSAL, BIAS_TIME, 1, INT64_C(1) << 61);
}

TEST(attn_nothing_to_do) {
    const int32_t lengths[] = {0, 0};
    check_case(lengths, 0, false, 1, 4, 4, SAMPLE_CAUSAL, BIAS_TIME, 1, 1);
    check_case(lengths, 2, false, 1, 4, 4, SAMPLE_CAUSAL, BIAS_NONE, 1, 1);
}

/* Extreme scores: silu tends to 0 and to x, without an infinity. */
TEST(attn_large_scores) {
    const int32_t lengths[] = {50};
    sample s;
    inputs in;
    sample_make(&s, &in, lengths, 1, false, 1, 4, 4);
    sample_mask(&s.a, &in, SAMPLE_CAUSAL);
    sample_bias(&s, &in, BIAS_NONE, 1, 1);
    s.a.alpha = 300.0f;
    sample_results(&s);
    sample_naive(&s);
    sample_run(&s.a, 1);
    sample_check(&s);
    sample_free(&s);
    sample_free_inputs(&in);
}

/* The same bits without a pool and with 1, 2, 3 threads; on a GPU, every time. */
TEST(attn_same_bits_with_any_threads) {
    if (!test_on.is_deterministic) SKIP_TEST("not asked to be deterministic");
    const int32_t lengths[] = {300, 17, 0, 211, 130, 64, 257, 1};
    sample s;
    inputs in;
    sample_make(&s, &in, lengths, 8, false, 2, 25, 25);
    sample_mask(&s.a, &in, SAMPLE_CAUSAL);
    sample_bias(&s, &in, BIAS_TIME, 1, 1000000);
    sample_results(&s);
    sample_run(&s.a, 0);
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        sample again = {.a = s.a, .n_q = s.n_q, .n_k = s.n_k};
        sample_results(&again);
        sample_run(&again.a, n_threads);
        size_t row = sizeof(float) * (size_t)s.n_q;
        CHECK(memcmp(s.out, again.out, row * (size_t)s.a.stride_out) == 0);
        CHECK(memcmp(s.dq, again.dq, row * (size_t)s.a.stride_q) == 0);
        CHECK(memcmp(s.dk, again.dk, row * (size_t)s.a.stride_k) == 0);
        CHECK(memcmp(s.dv, again.dv, row * (size_t)s.a.stride_v) == 0);
        CHECK(memcmp(s.dtime, again.dtime, sizeof(float) * 129) == 0);
        CHECK(memcmp(s.dposition, again.dposition, sizeof(float) * 2 * (size_t)s.a.bias_len) == 0);
        sample_free(&again);
    }
    sample_free(&s);
    sample_free_inputs(&in);
}

TEST(attn_refuses_wrong_arguments) {
    const int32_t lengths[] = {9};
    sample s;
    inputs in;
    sample_make(&s, &in, lengths, 1, false, 1, 4, 4);
    sample_mask(&s.a, &in, SAMPLE_TARGETS);
    sample_bias(&s, &in, BIAS_TABLE, 1, 1);
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
    sample_free_inputs(&in);
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
