#include "device.h"
#include "ops/ops.h"
#include "test.h"

enum { ROWS = 700, NEGATIVES = 37 };

static const uint32_t step = 9, next_step = 10;
static uint32_t user[ROWS], position[ROWS];
static int32_t drawn[ROWS * NEGATIVES];

static negatives_args make_args(int32_t n_pool) {
    for (uint32_t i = 0; i < ROWS; i++)
        user[i] = i / 20 * 3, position[i] = i % 20;
    return (negatives_args){.n = ROWS,
                            .n_negatives = NEGATIVES,
                            .n_pool = n_pool,
                            .key = rng_make_key(5, RNG_NEGATIVES),
                            .step = &step,
                            .user = user,
                            .position = position,
                            .index = drawn};
}

static void draw(const negatives_args *a, int n_threads) {
    pool *p;
    backend *be;
    CHECK_OK(pool_create(&p, n_threads));
    CHECK_OK(test_backend(&be, p));
    CHECK_OK(be->ops->negatives(be, a));
    backend_destroy(be);
    pool_destroy(p);
}

/* The rule of ops.h, word by word. */
TEST(negatives_are_what_the_contract_says) {
    static int32_t items[50];
    for (int i = 0; i < 50; i++)
        items[i] = 1000 - 7 * i;
    for (int has_pool = 0; has_pool < 2; has_pool++) {
        negatives_args a = make_args(50);
        a.pool = has_pool ? items : NULL;
        draw(&a, 2);
        for (int m = 0; m < ROWS; m++) {
            for (int r = 0; r < NEGATIVES; r++) {
                rng_block b = rng_draw(a.key, position[m], user[m], step, (uint32_t)r / 4);
                int32_t i = (int32_t)rng_below(b.word[r % 4], 50);
                CHECK_EQ(drawn[m * NEGATIVES + r], has_pool ? items[i] : i);
            }
        }
    }
}

TEST(negatives_do_not_depend_on_the_place_in_the_batch) {
    static int32_t whole[ROWS * NEGATIVES];
    negatives_args a = make_args(3883);
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        draw(&a, n_threads);
        if (n_threads > 1) CHECK(memcmp(whole, drawn, sizeof whole) == 0);
        memcpy(whole, drawn, sizeof whole);
    }
    /* The last 100 rows alone, and fewer negatives of them: the same draws. */
    int first = ROWS - 100;
    a.n = 100, a.user += first, a.position += first, a.n_negatives = 10;
    draw(&a, 2);
    for (int m = 0; m < 100; m++)
        CHECK(memcmp(drawn + m * 10, whole + (first + m) * NEGATIVES, 10 * sizeof *drawn) == 0);
    /* Another step is another draw. */
    a = make_args(3883);
    a.step = &next_step;
    draw(&a, 1);
    int n_same = 0;
    for (int i = 0; i < ROWS * NEGATIVES; i++)
        n_same += drawn[i] == whole[i];
    CHECK(n_same < 40);
}

/* Chi-square over 100 bins: 99 degrees of freedom, so beyond 160 once in 10^4 seeds; this seed is
 * fixed. */
TEST(negatives_are_uniform) {
    negatives_args a = make_args(100);
    int count[100] = {0};
    draw(&a, 2);
    for (int i = 0; i < ROWS * NEGATIVES; i++) {
        CHECK(drawn[i] >= 0 && drawn[i] < 100);
        count[drawn[i]]++;
    }
    double expected = ROWS * NEGATIVES / 100.0, chi = 0;
    for (int i = 0; i < 100; i++)
        chi += (count[i] - expected) * (count[i] - expected) / expected;
    CHECK(chi > 50 && chi < 160);
}

TEST(negatives_of_nothing) {
    negatives_args a = make_args(0);
    backend *be;
    CHECK_OK(test_backend(&be, NULL));
    CHECK_FAILS(be->ops->negatives(be, &a), ERR_CONFIG, "nothing to draw negatives from");
    a.n_negatives = 0;
    CHECK_OK(be->ops->negatives(be, &a));
    a = make_args(0);
    a.n = 0;
    CHECK_OK(be->ops->negatives(be, &a));
    backend_destroy(be);
}
