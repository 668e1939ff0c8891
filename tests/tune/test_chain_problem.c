#include "tune/chain_problem.h"

#include "base/half.h"
#include "oom.h"
#include "test.h"

static const problem_options tiny = {.n_sequences = 3,
                                     .max_len = 9,
                                     .avg_len = 5,
                                     .n_heads = 2,
                                     .dim_head = 4,
                                     .act = ACT_BF16,
                                     .seed = 3};

TEST(rounding_is_to_the_nearest_half) {
    for (uint32_t i = 0; i < 0x7c00;
         i += 7) { /* every finite float16, and the middles between them */
        float x = half_f16_to_float((uint16_t)i), next = half_f16_to_float((uint16_t)(i + 1));
        CHECK(round_to(ACT_F16, x) == x && half_f16_from_float(x) == i);
        CHECK(half_f16_from_float(-x) == (i | 0x8000));
        if (i + 1 == 0x7c00) break;
        CHECK(round_to(ACT_F16, x + (next - x) * 0.49f) == x);
        CHECK(round_to(ACT_F16, x + (next - x) * 0.51f) == next);
        CHECK(round_to(ACT_F16, x + (next - x) * 0.5f) == (i % 2 == 0 ? x : next));
    }
    CHECK(isinf(round_to(ACT_F16, 70000)) && round_to(ACT_F16, 65504) == 65504);
    CHECK(half_f16_from_float(INFINITY) == 0x7c00);
    CHECK(round_to(ACT_BF16, 1.00390625f) == 1 && round_to(ACT_BF16, 1.01171875f) == 1.015625f);
    CHECK_EQ(half_bf16_from_float(1.5f), 0x3fc0);
    CHECK(round_to(ACT_F32, 1.2345678f) == 1.2345678f);
}

TEST(a_jagged_batch) {
    chain_problem *p;
    CHECK_OK(chain_problem_create(&p, chain_of(CHAIN_HSTU), &tiny));
    CHECK_EQ(p->offsets[1], 9); /* the first is as long as any may be */
    int64_t squares = 0;
    for (int b = 0; b < 3; b++) {
        int64_t len = p->offsets[b + 1] - p->offsets[b];
        CHECK(len >= 1 && len <= 9);
        squares += len * len;
    }
    CHECK_EQ(p->score_offsets[3], squares);
    CHECK_EQ(p->shape.n_tokens, p->offsets[3]);
    for (int64_t i = 0; i < chain_tensor_size(p, 0); i++)
        CHECK(round_to(ACT_BF16, p->value[0][i]) == p->value[0][i]);
    chain_problem_destroy(p);
}

TEST(sizes_that_do_not_fit) {
    chain_problem *p;
    problem_options o = tiny;
    o.avg_len = 10;
    CHECK_FAILS(chain_problem_create(&p, chain_of(CHAIN_BERT), &o), ERR_USAGE, "--avg-len 10");
    CHECK(p == NULL);
    o = tiny;
    o.n_heads = 0;
    CHECK_FAILS(chain_problem_create(&p, chain_of(CHAIN_BERT), &o), ERR_USAGE, "at least 1");
    o = tiny;
    o.n_sequences = 1 << 20;
    o.avg_len = 0;
    o.max_len = 1 << 20;
    CHECK_FAILS(chain_problem_create(&p, chain_of(CHAIN_BERT), &o), ERR_USAGE, "tokens");
    o.n_sequences = 1;
    CHECK_FAILS(chain_problem_create(&p, chain_of(CHAIN_BERT), &o), ERR_USAGE, "elements");
}

static status make(void *ctx) {
    chain_problem *p;
    (void)ctx;
    status st = chain_problem_create(&p, chain_of(CHAIN_BERT), &tiny);
    chain_problem_destroy(p);
    return st;
}

TEST(a_problem_without_memory) {
    CHECK(oom_at_each_allocation(make, NULL) > 0);
}

static chain_problem *problem(chain_layer layer, attend_kind attend) {
    chain_problem *p;
    problem_options o = {
        .n_sequences = 2, .max_len = 5, .n_heads = 2, .dim_head = 3, .attend = attend, .seed = 5};
    CHECK_OK(chain_problem_create(&p, chain_of(layer), &o));
    return p;
}

/* SASRec's formula written at once, without a chain: x -> q, k, v -> causal softmax -> FFN. */
static void norm(const double *x, double *y) {
    double mean = 0, square = 0;
    for (int c = 0; c < 6; c++)
        mean += x[c] / 6;
    for (int c = 0; c < 6; c++)
        square += (x[c] - mean) * (x[c] - mean) / 6;
    for (int c = 0; c < 6; c++)
        y[c] = (x[c] - mean) / sqrt(square + 1e-5);
}

static void linear(const double *x, const float *w, const float *b, double *y) {
    for (int n = 0; n < 6; n++) {
        y[n] = b[n];
        for (int k = 0; k < 6; k++)
            y[n] += x[k] * w[n * 6 + k];
    }
}

static const float *weights(const chain_problem *p, const char *name) {
    for (int t = 0; t < p->c->n_tensors; t++)
        if (strcmp(p->c->tensor[t].name, name) == 0) return p->value[t];
    FAIL_TEST("no tensor %s", name);
}

TEST(sasrec_by_its_formula) {
    chain_problem *p = problem(CHAIN_SASREC, ATTEND_CAUSAL);
    const float *w = weights(p, "Wqkv"), *b = weights(p, "bqkv"), *x = p->value[0] + 5 * 6;
    double in[5][6], normed[5][6], q[5][6], k[5][6], v[5][6], got[30];
    int32_t rows[] = {0, 1, 2, 3, 4};
    CHECK_OK(chain_reference64(p, 1, rows, 5, NULL, got));
    for (int i = 0; i < 5; i++) {
        for (int c = 0; c < 6; c++)
            in[i][c] = x[i * 6 + c];
        norm(in[i], normed[i]);
        linear(normed[i], w, b, q[i]);
        linear(in[i], w + 36, b + 6, k[i]);
        linear(in[i], w + 72, b + 12, v[i]);
    }
    for (int i = 0; i < 5; i++) {
        double sum[6], z[6], f[6], out[6];
        for (int h = 0; h < 2; h++) {
            double weight[5], total = 0;
            for (int j = 0; j <= i; j++) {
                double dot = 0;
                for (int d = 0; d < 3; d++)
                    dot += q[i][3 * h + d] * k[j][3 * h + d];
                total += weight[j] = exp(dot / sqrt(3));
            }
            for (int d = 0; d < 3; d++) {
                sum[3 * h + d] = normed[i][3 * h + d];
                for (int j = 0; j <= i; j++)
                    sum[3 * h + d] += weight[j] / total * v[j][3 * h + d];
            }
        }
        norm(sum, z);
        linear(z, weights(p, "W1"), weights(p, "b1"), f);
        for (int c = 0; c < 6; c++)
            f[c] = f[c] > 0 ? f[c] : 0;
        linear(f, weights(p, "W2"), weights(p, "b2"), out);
        for (int c = 0; c < 6; c++)
            CHECK(fabs(out[c] + z[c] - got[i * 6 + c]) < 1e-12);
    }
    chain_problem_destroy(p);
}

/* Some rows equal the same rows of all; float32 is near; halves are further away. */
TEST(some_rows_and_other_precisions) {
    for (int layer = 0; layer < N_CHAINS; layer++) {
        chain_problem *p = problem((chain_layer)layer, ATTEND_ALL);
        int32_t all[] = {0, 1, 2, 3, 4}, some[] = {1, 4};
        double whole[30], part[12], off = 0, off_half = 0;
        float single[30], half[30];
        CHECK_OK(chain_reference64(p, 0, all, 5, NULL, whole));
        CHECK_OK(chain_reference64(p, 0, some, 2, NULL, part));
        CHECK(memcmp(part, whole + 6, 6 * sizeof *part) == 0);
        CHECK(memcmp(part + 6, whole + 24, 6 * sizeof *part) == 0);
        CHECK_OK(chain_reference32(p, 0, all, 5, NULL, single));
        p->act = ACT_BF16;
        CHECK_OK(chain_reference32(p, 0, all, 5, NULL, half));
        for (int i = 0; i < 30; i++) {
            double a = fabs(single[i] - whole[i]), b = fabs(half[i] - whole[i]);
            if (a > off) off = a;
            if (b > off_half) off_half = b;
        }
        CHECK(off > 0 && off < 1e-5);
        CHECK(off_half > 1e-3 && off_half < 0.3);
        chain_problem_destroy(p);
    }
}

/* A row that attends to nothing: 0 of the attention, not NaN. */
TEST(rows_without_keys) {
    chain_problem *p = problem(CHAIN_BERT, ATTEND_ALL);
    int32_t rows[] = {0};
    double out[6];
    static uint8_t nothing[50];
    p->attend = ATTEND_BYTES;
    p->mask = nothing;
    CHECK_OK(chain_reference64(p, 0, rows, 1, NULL, out));
    for (int c = 0; c < 6; c++)
        CHECK(isfinite(out[c]));
    p->mask = NULL;
    chain_problem_destroy(p);
}
