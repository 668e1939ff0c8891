/* FLOP and bytes of ops, by counting. */
#include "profile/work.h"

#include "test.h"

static backend cpu = {.name = "cpu", .act = ACT_F32}, gpu = {.name = "cuda:0", .act = ACT_BF16};

TEST(work_of_products) {
    char shape[WORK_SHAPE_BYTES];
    float dx, dw;
    linear_args a = {.n = 10, .n_in = 3, .n_out = 5};
    op_work w = work_of(WORK_linear_fwd, shape, &cpu, &a);
    CHECK_EQ(w.flop, 2 * 10 * 3 * 5);
    CHECK_EQ(w.bytes, 4 * (10 * 3 + 3 * 5 + 10 * 5));
    CHECK_STR(shape, "[10, 3] x [3, 5]");
    a.dx = &dx, a.dw = &dw;
    CHECK_EQ(work_of(WORK_linear_bwd, NULL, &cpu, &a).flop, 2 * 2 * 10 * 3 * 5);
    a.dx = NULL;
    CHECK_EQ(work_of(WORK_linear_bwd, NULL, &cpu, &a).flop, 2 * 10 * 3 * 5);
}

/* The pairs of a causal mask with a window, one by one. */
static double count_pairs(int len_q, int len_k, int left, int right) {
    double n = 0;
    for (int q = 0; q < len_q; q++)
        for (int k = 0; k < len_k; k++) {
            int i = q + len_k - len_q;
            n += (left < 0 || k >= i - left) && (right < 0 || k <= i + right);
        }
    return n;
}

TEST(work_of_attention_counts_pairs) {
    static const int lens[][3] = {{7, 7, -1}, {7, 7, 2}, {7, 7, 20},
                                  {2, 9, -1}, {3, 9, 4}, {1, 1, 0}};
    int32_t offsets[] = {0, 0}, keys[] = {0, 0};
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        offsets[1] = lens[i][0], keys[1] = lens[i][1];
        attn_args a = {.n_sequences = 1,
                       .n_heads = 2,
                       .dim_qk = 4,
                       .dim_v = 8,
                       .max_len_q = 100,
                       .max_len_k = 100,
                       .n_rows_q = lens[i][0],
                       .n_rows_k = lens[i][1],
                       .offsets_q = offsets,
                       .offsets_k = keys,
                       .window_left = lens[i][2]};
        double pairs = count_pairs(lens[i][0], lens[i][1], lens[i][2], 0);
        CHECK_EQ(work_of(WORK_attn_fwd, NULL, &cpu, &a).flop, pairs * 2 * 2 * (4 + 8));
        CHECK_EQ(work_of(WORK_attn_bwd, NULL, &cpu, &a).flop, pairs * 2 * 2 * (3 * 4 + 2 * 8));
        /* On a GPU the offsets are not read; lengths are known where all are the longest. */
        CHECK_EQ(work_of(WORK_attn_fwd, NULL, &gpu, &a).flop, 0);
        a.max_len_q = lens[i][0], a.max_len_k = lens[i][1];
        a.offsets_q = a.offsets_k = NULL;
        CHECK_EQ(work_of(WORK_attn_fwd, NULL, &gpu, &a).flop, pairs * 2 * 2 * (4 + 8));
    }
}

/* The arrays of a recorded step have more rows than there are tokens; a jagged batch has fewer. */
TEST(work_of_attention_with_padding) {
    attn_args a = {.n_sequences = 32,
                   .n_heads = 1,
                   .dim_qk = 1,
                   .dim_v = 1,
                   .max_len_q = 4099,
                   .max_len_k = 4099,
                   .n_rows_q = 131584,
                   .n_rows_k = 131584,
                   .window_left = -1};
    CHECK_EQ(work_of(WORK_attn_fwd, NULL, &gpu, &a).flop, 32.0 * (4099.0 * 4100 / 2) * 4);
    a.n_rows_q = a.n_rows_k = 131167;
    op_work w = work_of(WORK_attn_fwd, NULL, &gpu, &a);
    CHECK(w.flop == 0 && w.bytes == 0);
    a.n_rows_q = a.n_rows_k = 131168 + 512;
    CHECK_EQ(work_of(WORK_attn_fwd, NULL, &gpu, &a).flop, 0);
}

TEST(work_of_memory_ops) {
    char shape[WORK_SHAPE_BYTES];
    float x[4];
    norm_args n = {.n = 100, .dim = 8};
    CHECK_EQ(work_of(WORK_norm_fwd, NULL, &gpu, &n).bytes, 100 * 8 * 2 * 2);
    CHECK_EQ(work_of(WORK_zero, NULL, &cpu, x, sizeof x).bytes, 16);
    CHECK_EQ(work_of(WORK_copy_in, shape, &cpu, x, x, sizeof x).bytes, 16);
    CHECK_STR(shape, "[16 bytes]");
    CHECK_EQ(work_of(WORK_copy, NULL, &cpu, x, x, sizeof x).bytes, 32);
    update_args u[2] = {{.n = 10, .m = x, .v = x}, {.n = 5}};
    CHECK_EQ(work_of(WORK_update, NULL, &cpu, u, 2).bytes, 4 * (70 + 15));
    op_work none = work_of(WORK_mark, shape, &cpu, (int64_t)4, NULL, 0, NULL);
    CHECK(none.flop == 0 && none.bytes == 0 && shape[0] == '\0');
}
