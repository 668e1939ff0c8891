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
        CHECK(round_to(ACT_F16, x) == x && half_bits(ACT_F16, x) == i);
        CHECK(half_bits(ACT_F16, -x) == (i | 0x8000));
        if (i + 1 == 0x7c00) break;
        CHECK(round_to(ACT_F16, x + (next - x) * 0.49f) == x);
        CHECK(round_to(ACT_F16, x + (next - x) * 0.51f) == next);
        CHECK(round_to(ACT_F16, x + (next - x) * 0.5f) == (i % 2 == 0 ? x : next));
    }
    CHECK(isinf(round_to(ACT_F16, 70000)) && round_to(ACT_F16, 65504) == 65504);
    CHECK(half_bits(ACT_F16, INFINITY) == 0x7c00);
    CHECK(round_to(ACT_BF16, 1.00390625f) == 1 && round_to(ACT_BF16, 1.01171875f) == 1.015625f);
    CHECK_EQ(half_bits(ACT_BF16, 1.5f), 0x3fc0);
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
