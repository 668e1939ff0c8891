#include "dense_test.h"

static int32_t *indices(int64_t n, int32_t n_rows, uint64_t seed) {
    int32_t *x;
    rng_key key = rng_make_key(seed, RNG_TEST);
    CHECK_OK(MEM_NEW(&x, (size_t)n));
    for (int64_t i = 0; i < n; i++) {
        rng_block b = rng_draw64(key, (uint64_t)i, 1);
        /* One in eight reads no row, and the smaller half of the rows is read more often. */
        uint32_t below = b.word[2] & 1 ? (uint32_t)n_rows : (uint32_t)(n_rows + 1) / 2;
        x[i] = b.word[0] % 8 == 0 ? -1 : (int32_t)rng_below(b.word[1], below);
    }
    return x;
}

/* The groups hold every row with an index once, in order, under its index. */
static void check_groups(const row_groups *g, const int32_t *index) {
    int64_t n_indexed = 0;
    for (int64_t i = 0; i < g->n; i++)
        n_indexed += index[i] >= 0;
    CHECK_EQ(g->begin[0], 0);
    CHECK_EQ(g->begin[g->n_rows], n_indexed);
    for (int32_t r = 0; r < g->n_rows; r++)
        for (int32_t k = g->begin[r]; k < g->begin[r + 1]; k++) {
            CHECK_EQ(index[g->order[k]], r);
            CHECK(k == g->begin[r] || g->order[k] > g->order[k - 1]);
        }
}

static void check_gather(const gather_args *a, const float *y) {
    for (int64_t i = 0; i < a->n; i++)
        for (int32_t c = 0; c < a->dim; c++) {
            double want = 0;
            if (a->index[i] >= 0) want += (double)a->scale * a->table[a->index[i] * a->dim + c];
            if (a->other != NULL && a->other_index[i] >= 0)
                want += a->other[a->other_index[i] * a->dim + c];
            if (a->more != NULL && a->more_index[i] >= 0)
                want += a->more[a->more_index[i] * a->dim + c];
            want *= naive_factor(&a->drop, i, c);
            if (!(fabs(y[i * a->dim + c] - want) <= with_rounding(2e-6, want)))
                FAIL_TEST("y[%lld][%d] is %g, not %g", (long long)i, c, (double)y[i * a->dim + c],
                          want);
        }
}

/* grad, which was 1 everywhere, against the sums in double and in float32. */
static void check_scatter(const scatter_args *a, const int32_t *index) {
    int64_t n = (int64_t)a->groups.n_rows * a->dim;
    double *sum[2] = {doubles(n), doubles(n)};
    for (int f = 0; f < 2; f++) {
        for (int64_t i = 0; i < a->groups.n; i++)
            for (int32_t c = 0; index[i] >= 0 && c < a->dim; c++) {
                double *s = &sum[f][(int64_t)index[i] * a->dim + c];
                double dy = ((const float *)a->dy)[i * a->dim + c];
                *s = r32(*s + r32(dy * naive_factor(&a->drop, i, c), f), f);
            }
        for (int64_t i = 0; i < n; i++)
            sum[f][i] = r32(1 + r32(a->scale * sum[f][i], f), f);
    }
    CHECK_RULE(a->grad, sum[0], sum[1], n);
    mem_free(sum[0]);
    mem_free(sum[1]);
}

static void check_shape(test_backends *t, int64_t n, int32_t n_rows, int32_t dim, float rate) {
    float *table = floats((int64_t)n_rows * dim, 1), *other = floats(5 * dim, 2);
    float *more = floats(3 * dim, 6);
    float *dy = floats(n * dim, 3), *first_y = NULL, *first_grad = NULL;
    int32_t *index = indices(n, n_rows, 4), *other_index = indices(n, 5, 5);
    int32_t *more_index = indices(n, 3, 7);
    dropout drop = test_dropout(rate, n, 0);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        backend *be = t->be[b];
        float *y = floats(n * dim, 9), *grad = floats((int64_t)n_rows * dim, 9);
        gather_args gather = {.n = n,
                              .dim = dim,
                              .table = table,
                              .index = index,
                              .scale = 7.07f,
                              .other = other,
                              .other_index = other_index,
                              .more = dim % 2 == 0 ? more : NULL,
                              .more_index = more_index,
                              .drop = drop,
                              .y = y};
        scatter_args scatter = {.groups = {.n = n, .n_rows = n_rows},
                                .dim = dim,
                                .scale = 7.07f,
                                .dy = dy,
                                .drop = drop,
                                .grad = grad};
        CHECK_OK(MEM_NEW(&scatter.groups.order, (size_t)n));
        CHECK_OK(MEM_NEW(&scatter.groups.begin, (size_t)n_rows + 1));
        for (int64_t i = 0; i < (int64_t)n_rows * dim; i++)
            grad[i] = 1;
        CHECK_OK(be->ops->gather(be, &gather));
        CHECK_OK(be->ops->group(be, index, &scatter.groups));
        CHECK_OK(be->ops->scatter(be, &scatter));
        if (b == 0) {
            check_groups(&scatter.groups, index);
            check_gather(&gather, y);
            check_scatter(&scatter, index);
            first_y = copy_floats(y, n * dim);
            first_grad = copy_floats(grad, (int64_t)n_rows * dim);
        }
        CHECK_SAME(y, first_y, n * dim);
        CHECK_SAME(grad, first_grad, (int64_t)n_rows * dim);
        void *all[] = {y, grad, scatter.groups.order, scatter.groups.begin};
        for (int i = 0; i < 4; i++)
            mem_free(all[i]);
    }
    void *all[] = {table, other, dy, index, other_index, first_y, first_grad, more, more_index};
    for (int i = 0; i < 9; i++)
        mem_free(all[i]);
    free_dropout(&drop);
}

TEST(rows_gather_group_scatter) {
    test_backends t;
    open_backends(&t);
    check_shape(&t, 0, 10, 8, 0);
    check_shape(&t, 1, 1, 1, 0);
    check_shape(&t, 2000, 1, 50, 0);
    check_shape(&t, 2000, 300, 50, 0.25f);
    check_shape(&t, 2000, 5000, 17, 0);
    check_shape(&t, 100, 1, 300, 0.5f);
    close_backends(&t);
}

/* Sizes around a tile of the GPU's sort and its multiples, tables that need one to three passes of
 * it, and batches of one row alone. */
TEST(rows_group_many) {
    static const int64_t sizes[] = {1, 600, 4095, 4096, 4097, 12289, 70001};
    static const int32_t rows[] = {1, 255, 256, 70000, 1 << 20};
    test_backends t;
    open_backends(&t);
    for (int s = 0; s < 7; s++)
        for (int r = 0; r < 5; r++)
            for (int is_one = 0; is_one < 2; is_one++) {
                row_groups g = {.n = sizes[s], .n_rows = rows[r]};
                int32_t *index = indices(g.n, g.n_rows, 4);
                for (int64_t i = 0; is_one && i < g.n; i++)
                    index[i] = g.n_rows - 1;
                CHECK_OK(MEM_NEW(&g.order, (size_t)g.n));
                CHECK_OK(MEM_NEW(&g.begin, (size_t)g.n_rows + 1));
                CHECK_OK(t.be[0]->ops->group(t.be[0], index, &g));
                check_groups(&g, index);
                mem_free(index);
                mem_free(g.order);
                mem_free(g.begin);
            }
    close_backends(&t);
}

TEST(rows_without_other_copy_the_table) {
    test_backends t;
    float table[] = {1, 2, 3, 4, 5, 6}, y[8];
    int32_t index[] = {2, -1, 0, 2};
    gather_args a = {.n = 4, .dim = 2, .table = table, .index = index, .scale = 2, .y = y};
    open_backends(&t);
    CHECK_OK(t.be[0]->ops->gather(t.be[0], &a));
    static const float want[] = {10, 12, 0, 0, 2, 4, 10, 12};
    CHECK(memcmp(y, want, sizeof want) == 0);
    close_backends(&t);
}

/* Two arrays of other strides after the table's two rows: indices from 2 and from 4 on. */
static void check_far(int32_t dim, int64_t stride) {
    test_backends t;
    enum { ROWS = 6, READS = 8 };
    static const int32_t index[READS] = {5, 0, 3, -1, 2, 4, 1, 5};
    float *table = floats(2 * dim, 1), *one = floats(2 * stride, 2), *two = floats(2 * dim, 3);
    float *y = floats(READS * dim, 4);
    const float *row[ROWS] = {table, table + dim, one, one + stride, two, two + dim};
    gather_args a = {.n = READS,
                     .dim = dim,
                     .table = table,
                     .far = {{one, stride, 2}, {two, dim, 4}},
                     .n_far = 2,
                     .index = index,
                     .scale = 2,
                     .y = y};
    open_backends(&t);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        memset(y, 0xff, (size_t)(READS * dim) * sizeof *y);
        CHECK_OK(t.be[b]->ops->gather(t.be[b], &a));
        for (int32_t i = 0; i < READS; i++)
            for (int32_t c = 0; c < dim; c++) {
                double want = index[i] < 0 ? 0 : 2 * (double)row[index[i]][c];
                CHECK(fabs((double)y[i * dim + c] - want) <= with_rounding(0, want));
            }
    }
    close_backends(&t);
    void *all[] = {table, one, two, y};
    for (int i = 0; i < 4; i++)
        mem_free(all[i]);
}

TEST(rows_of_several_arrays) {
    check_far(64, 192);
    check_far(64, 66);
    check_far(7, 9);
}

/* The moments of rows against those of the rows in double; width 0: the backend has none. */
static void check_moments(const row_moments *m, const float *y, int64_t n, int32_t dim) {
    if (m->width == 0) return;
    CHECK(m->of == y);
    int32_t n_parts = (dim + m->width - 1) / m->width;
    for (int64_t i = 0; i < n * n_parts; i++) {
        const float *row = y + i / n_parts * dim;
        int32_t first = (int32_t)(i % n_parts) * m->width;
        int32_t end = first + m->width < dim ? first + m->width : dim;
        double sum = 0, squares = 0, size = 0;
        for (int32_t c = first; c < end; c++) {
            sum += row[c];
            size += fabs((double)row[c]);
        }
        for (int32_t c = first; c < end; c++)
            squares += pow(row[c] - sum / (end - first), 2);
        CHECK(fabs(m->parts[2 * i] - sum) <= 1e-5 * size);
        CHECK(fabs(m->parts[2 * i + 1] - squares) <= 1e-4 * squares);
    }
}

/* Rows with their moments, and two arrays whose rows of padding are cleared. */
static void check_served(int64_t n, int32_t dim, int32_t blank_dim, bool is_act, bool has_other) {
    test_backends t;
    float *table = floats(40 * dim, 1), *far = floats(10 * (dim + 8), 2),
          *other = floats(5 * dim, 3);
    float *y = floats(n * dim, 4), *blank[2] = {floats(n * blank_dim, 5), floats(n * blank_dim, 6)};
    int32_t *index = indices(n, is_act ? 40 : 50, 7), *other_index = indices(n, 5, 8);
    row_moments moments = {.parts = floats(2 * n * ((dim + 63) / MOMENTS_WIDTH), 9), .width = 3};
    gather_args a = {.n = n,
                     .dim = dim,
                     .is_act = is_act,
                     .table = table,
                     .far = {{far, dim + 8, 40}},
                     .n_far = is_act ? 0 : 1,
                     .index = index,
                     .scale = 2,
                     .other = has_other ? other : NULL,
                     .other_index = other_index,
                     .y = y,
                     .moments = &moments,
                     .blank = {has_other ? 2 : 0, blank_dim, {blank[0], blank[1]}}};
    open_backends(&t);
    for (int b = 0; b < N_TEST_BACKENDS; b++) {
        for (int64_t i = 0; i < n * blank_dim; i++)
            blank[0][i] = blank[1][i] = 9;
        CHECK_OK(t.be[b]->ops->gather(t.be[b], &a));
        check_moments(&moments, y, n, dim);
        for (int64_t i = 0; i < n * dim; i++) {
            int32_t row = index[i / dim], more = has_other ? other_index[i / dim] : -1;
            const float *from = row < 40 ? table + row * dim : far + (row - 40) * (dim + 8);
            double want = row < 0 ? 0 : 2 * (double)from[i % dim];
            if (more >= 0) want += other[more * dim + i % dim];
            CHECK(fabs(y[i] - want) <= with_rounding(2e-6, want) + 4 * precision_unit(test_on.p));
        }
        for (int64_t i = 0; i < n * blank_dim; i++) {
            bool is_blank = has_other && other_index[i / blank_dim] < 0;
            CHECK(blank[0][i] == (is_blank ? 0 : 9) && blank[1][i] == blank[0][i]);
        }
    }
    close_backends(&t);
    void *all[] = {table, far, other, y, blank[0], blank[1], index, other_index, moments.parts};
    for (int i = 0; i < 9; i++)
        mem_free(all[i]);
}

TEST(rows_of_a_served_pass) {
    check_served(37, 1024, 1024, false, true);
    check_served(5, 200, 64, false, true);
    check_served(9, 7, 3, false, true);
    check_served(33, 1024, 8, true, false);
    check_served(4, 2048, 16, false, true);
    check_served(3, 264, 40, true, true);
    check_served(0, 64, 64, false, true);
}

/* Rows of activations: a choice of tokens, and what comes back to them; token 1 is not chosen. */
TEST(rows_of_activations) {
    test_backends t;
    float tokens[] = {1, 2, 3, 4, 5, 6}, y[6], dy[] = {1, 2, 4, 8, 16, 32};
    float grad[] = {1, 1, 1, 1, 1, 1};
    int32_t index[] = {2, 0, 2}, order[3], begin[4];
    gather_args gather = {
        .n = 3, .dim = 2, .is_act = true, .table = tokens, .index = index, .scale = 1, .y = y};
    scatter_args scatter = {.groups = {.n = 3, .n_rows = 3, .order = order, .begin = begin},
                            .dim = 2,
                            .scale = 1,
                            .dy = dy,
                            .is_act = true,
                            .grad = grad};
    static const float want_y[] = {5, 6, 1, 2, 5, 6}, want_grad[] = {5, 9, 1, 1, 18, 35};
    open_backends(&t);
    CHECK_OK(t.be[1]->ops->gather(t.be[1], &gather));
    CHECK_OK(t.be[1]->ops->group(t.be[1], index, &scatter.groups));
    CHECK_OK(t.be[1]->ops->scatter(t.be[1], &scatter));
    CHECK(memcmp(y, want_y, sizeof y) == 0);
    CHECK(memcmp(grad, want_grad, sizeof grad) == 0);
    close_backends(&t);
}

/* A GPU does not check its arguments: the host does, where batches are made. */
TEST(rows_refuse_an_index_beyond_the_table) {
    test_backends t;
    if (test_on.kind == ON_CUDA) SKIP_TEST("the CPU's own check");
    int32_t index[] = {0, 3}, order[2], begin[4];
    row_groups g = {.n = 2, .n_rows = 3, .order = order, .begin = begin};
    open_backends(&t);
    CHECK_FAILS(t.be[0]->ops->group(t.be[0], index, &g), ERR_FORMAT,
                "row 1 asks for row 3 of a table of 3 rows");
    close_backends(&t);
}
