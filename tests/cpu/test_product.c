/* Products on the CPU: every element has the bits that the order of product.h gives, whatever else
 * is computed with it; so do the ops that use products. */
#include "cpu/product.h"

#include "dense_test.h"

/* What stands around C, and must stay. */
static const float UNTOUCHED = 12345.0f;

typedef struct shape {
    int64_t m, k, n;
    bool is_a_transposed, is_b_transposed, adds;
} shape;

static float chained(bool has_fma, float a, float b, float sum) {
    if (has_fma) return fmaf(a, b, sum);
    float product = a * b;
    return product + sum;
}

/* Element (i, j) as product.h states it. */
static float in_order(bool has_fma, matrix a, matrix b, int64_t k, int64_t i, int64_t j, bool adds,
                      float before) {
    float c = adds ? before : 0;
    for (int64_t at = 0; at < k; at += PRODUCT_DEPTH) {
        float sum = 0;
        for (int64_t t = at; t < k && t < at + PRODUCT_DEPTH; t++)
            sum = chained(has_fma, a.data[i * a.row + t * a.column],
                          b.data[t * b.row + j * b.column], sum);
        c = adds || at > 0 ? c + sum : sum;
    }
    return c;
}

/* A product by one of the kernels, packed at once or block by block, in a C with a margin. */
static void check_product(const product_isa *isa, shape s, const float *a_data, const float *b_data,
                          pool *workers, bool is_once) {
    int64_t margin = 5, c_row = s.n + margin, n_c = (s.m + 2) * c_row;
    float *before = floats(n_c, 3);
    matrix a =
        s.is_a_transposed ? matrix_transposed(matrix_rows(a_data, s.m)) : matrix_rows(a_data, s.k);
    matrix b =
        s.is_b_transposed ? matrix_transposed(matrix_rows(b_data, s.k)) : matrix_rows(b_data, s.n);
    float *packed, *c;
    CHECK_OK(MEM_NEW(&packed, (size_t)product_packed_size(isa, s.k, s.n) + PRODUCT_ROOM));
    for (int64_t i = 0; i < n_c; i++)
        if (i / c_row == 0 || i / c_row > s.m || i % c_row >= s.n) before[i] = UNTOUCHED;
    c = copy_floats(before, n_c);
    if (is_once) {
        product_run_once(isa, a, b, s.m, s.k, s.n, s.adds, c + c_row, c_row, packed);
    } else {
        product_panels panels = {isa, s.k, s.n, packed};
        CHECK_OK(product_pack(&panels, b, workers));
        product_run(a, s.m, &panels, 0, s.n, s.adds, c + c_row, c_row);
    }
    for (int64_t i = 0; i < n_c; i++) {
        float want = before[i];
        if (want != UNTOUCHED)
            want = in_order(isa->has_fma, a, b, s.k, i / c_row - 1, i % c_row, s.adds, before[i]);
        if (memcmp(&want, &c[i], sizeof want) != 0)
            FAIL_TEST("%s: (%d x %d x %d)%s%s: element %d of %d is %.9g, not %.9g", isa->name,
                      (int)s.m, (int)s.k, (int)s.n, s.is_a_transposed ? " A^T" : "",
                      s.is_b_transposed ? " B^T" : "", (int)i, (int)n_c, (double)c[i],
                      (double)want);
    }
    mem_free(before);
    mem_free(packed);
    mem_free(c);
}

static void check_layouts(const product_isa *isa, pool *workers, int64_t m, int64_t k, int64_t n) {
    float *a = floats(m * k, 1), *b = floats(k * n, 2);
    /* Every third has each choice beside each other one. */
    for (int layout = 0; layout < 16; layout += test_is_brief() ? 3 : 1) {
        shape s = {m, k, n, layout & 1, layout & 2, layout & 4};
        check_product(isa, s, a, b, workers, layout & 8);
    }
    mem_free(a);
    mem_free(b);
}

static int64_t draw(int i, int what, int64_t end) {
    rng_key key = rng_make_key(17, RNG_TEST);
    return (int64_t)(rng_draw64(key, (uint64_t)i, (uint64_t)what).word[0] % (uint64_t)end);
}

/* Around the height and width of every tile, and the edge of a block of k. */
TEST(product_has_the_bits_of_its_order) {
    pool *workers;
    CHECK_OK(pool_create(&workers, 3));
    for (int i = 0; product_choice(i) != NULL; i++) {
        const product_isa *isa = product_choice(i);
        for (int64_t m = 1; m <= 25; m++)
            check_layouts(isa, workers, m, 5, 2 * m + 1);
        for (int64_t n = 1; n <= 130; n++)
            check_layouts(isa, workers, 3, 4, n);
        for (int64_t m = 95; m <= 97; m++) /* rows of A that are packed together */
            check_layouts(isa, workers, m, 3, 2 * m);
        for (int64_t k = 0; k <= 9; k++)
            check_layouts(isa, workers, 13, k, 35);
        for (int64_t k = PRODUCT_DEPTH - 1; k <= PRODUCT_DEPTH + 1; k++)
            check_layouts(isa, workers, 14, k, 50);
        for (int r = 0; r < 6; r++)
            check_layouts(isa, workers, 1 + draw(r, 1, 60), draw(r, 2, 700), 1 + draw(r, 3, 150));
        /* Columns of more than one block, and rows of A that compete for the same cache lines. */
        check_layouts(isa, workers, 5, 1024, PRODUCT_COLUMNS + 1);
        check_layouts(isa, workers, 7, 20, 3300);
    }
    pool_destroy(workers);
}

/* Rows first .. first + n - 1 of a layer as a layer of their own. */
static linear_args rows_of(const linear_args *a, int64_t first, int64_t n) {
    linear_args part = *a;
    part.n = n;
    part.x = (const float *)a->x + first * a->n_in;
    if (a->residual != NULL) part.residual = (const float *)a->residual + first * a->n_out;
    part.z = floats(n * a->n_out, 20);
    part.y = floats(n * a->n_out, 21);
    part.dy = copy_floats((const float *)a->dy + first * a->n_out, n * a->n_out);
    part.dx = copy_floats((const float *)a->dx + first * a->n_in, n * a->n_in);
    part.dw = floats((int64_t)a->n_in * a->n_out, 22);
    part.dbias = floats(a->n_out, 23);
    return part;
}

static void free_rows(const linear_args *part) {
    void *all[] = {part->z, part->y, part->dy, part->dx, part->dw, part->dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
}

static void run_layer(backend *be, const linear_args *a) {
    CHECK_OK(be->ops->linear_fwd(be, a));
    CHECK_OK(be->ops->linear_bwd(be, a));
}

/* A layer over all rows, then over parts of them with other threads. */
static void check_parts(test_backends *t, int64_t n, int32_t n_in, int32_t n_out, epilogue f,
                        int options) {
    linear_args given = {.n = n,
                         .n_in = n_in,
                         .n_out = n_out,
                         .is_transposed = options & 1,
                         .f = f,
                         .x = floats(n * n_in, 1),
                         .w = floats((int64_t)n_in * n_out, 2),
                         .bias = options & 2 ? floats(n_out, 3) : NULL,
                         .residual = options & 4 ? floats(n * n_out, 4) : NULL,
                         .dy = floats(n * n_out, 5),
                         .dx = floats(n * n_in, 6),
                         .adds_dx = options & 8};
    linear_args all = rows_of(&given, 0, n);
    run_layer(t->be[0], &all);
    for (int i = 0; i < 12; i++) {
        int64_t m = 1 + draw(i, options, i % 2 == 0 ? 40 : n), first = draw(i, 9, n - m + 1);
        linear_args part = rows_of(&given, first, m);
        run_layer(t->be[i % N_TEST_BACKENDS], &part);
        const float *y = part.y, *z = part.z, *dz = part.dy, *dx = part.dx;
        CHECK_SAME(y, (float *)all.y + first * n_out, m * n_out);
        if (f != EPILOGUE_NONE) CHECK_SAME(z, (float *)all.z + first * n_out, m * n_out);
        CHECK_SAME(dz, (float *)all.dy + first * n_out, m * n_out);
        CHECK_SAME(dx, (float *)all.dx + first * n_in, m * n_in);
        free_rows(&part);
    }
    free_rows(&all);
    void *rest[] = {(void *)given.x,        (void *)given.w, (void *)given.bias,
                    (void *)given.residual, given.dy,        given.dx};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        mem_free(rest[i]);
}

/* Other rows, the row's place and the threads do not change a bit of a row. */
TEST(product_rows_of_a_layer_do_not_see_each_other) {
    static const epilogue all[] = {EPILOGUE_NONE, EPILOGUE_SILU, EPILOGUE_RELU, EPILOGUE_GELU,
                                   EPILOGUE_GELU_TANH};
    test_backends t;
    if (test_on.kind != ON_CPU) SKIP_TEST("a promise of the CPU alone");
    open_backends(&t);
    for (int options = 0; options < 16; options += test_is_brief() ? 3 : 1)
        check_parts(&t, 333, 50, 53, all[options % 5], options);
    check_parts(&t, 1200, 50, 200, EPILOGUE_SILU, 3);
    check_parts(&t, 40, 260, 1100, EPILOGUE_GELU_TANH, 1);
    check_parts(&t, 150, 513, 31, EPILOGUE_GELU, 14);
    check_parts(&t, 150, 31, 2049, EPILOGUE_SILU, 6);
    check_parts(&t, 70, 300, 700, EPILOGUE_RELU, 9);
    close_backends(&t);
}

/* The gradient of W is a sum over all rows: in groups for a small W, in tiles that depend on the
 * threads for a large one. */
TEST(product_gradients_of_weights_do_not_see_the_threads) {
    static const int32_t sizes[][2] = {{50, 200}, {130, 1100}, {1100, 130}};
    test_backends t;
    if (test_on.kind != ON_CPU) SKIP_TEST("a promise of the CPU alone");
    open_backends(&t);
    int64_t n = test_is_brief() ? 300 : 600; /* of one block of PRODUCT_DEPTH rows or more */
    for (int i = 0; i < 6; i++) {
        int32_t n_in = sizes[i / 2][0], n_out = sizes[i / 2][1];
        linear_args given = {.n = n,
                             .n_in = n_in,
                             .n_out = n_out,
                             .is_transposed = i % 2,
                             .x = floats(n * n_in, 1),
                             .w = floats((int64_t)n_in * n_out, 2),
                             .dy = floats(n * n_out, 3),
                             .dx = floats(n * n_in, 4)};
        linear_args first = rows_of(&given, 0, given.n), without_dx = first;
        without_dx.dx = NULL;
        CHECK_OK(t.be[0]->ops->linear_bwd(t.be[0], &without_dx));
        for (int b = 1; b < N_TEST_BACKENDS; b++) {
            linear_args other = rows_of(&given, 0, given.n);
            CHECK_OK(t.be[b]->ops->linear_bwd(t.be[b], &other));
            CHECK_SAME(other.dw, first.dw, (int64_t)n_in * n_out);
            free_rows(&other);
        }
        free_rows(&first);
        void *rest[] = {(void *)given.x, (void *)given.w, given.dy, given.dx};
        for (size_t r = 0; r < sizeof rest / sizeof *rest; r++)
            mem_free(rest[r]);
    }
    close_backends(&t);
}

/* A query gets the same scores alone and in any batch. */
TEST(product_queries_do_not_see_each_other) {
    enum { N = 150, DIM = 50, CORPUS = 4100, K = 20 };
    static int32_t best[N * K], one[N * K];
    static float score[N * K], own[N * K];
    test_backends t;
    if (test_on.kind != ON_CPU) SKIP_TEST("a promise of the CPU alone");
    open_backends(&t);
    float *query = floats(N * DIM, 1), *corpus = floats(CORPUS * DIM, 2);
    rank_args a = {.n_queries = N,
                   .n_corpus = CORPUS,
                   .dim = DIM,
                   .k = K,
                   .query = query,
                   .corpus = corpus,
                   .best = best,
                   .best_score = score};
    CHECK_OK(t.be[0]->ops->rank(t.be[0], &a));
    for (int i = 0; i < 20; i++) {
        int64_t m = i < 10 ? 1 + i : 1 + draw(i, 1, N), first = draw(i, 2, N - m + 1);
        rank_args part = a;
        part.n_queries = (int32_t)m;
        part.query = query + first * DIM;
        part.best = one, part.best_score = own;
        CHECK_OK(t.be[i % N_TEST_BACKENDS]->ops->rank(t.be[i % N_TEST_BACKENDS], &part));
        CHECK_SAME(own, score + first * K, m * K);
        CHECK(memcmp(one, best + first * K, (size_t)(m * K) * sizeof *one) == 0);
    }
    mem_free(query);
    mem_free(corpus);
    close_backends(&t);
}

/* Too little address space is an error, not an endless loop in an allocator. */
TEST(product_without_memory_ends) {
#if defined(HSTU_HAS_CUDA) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP_TEST("this build needs more address space than the limit");
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    SKIP_TEST("this build needs more address space than the limit");
#endif
#endif
    char *text;
    int code = test_command(
        &text, "ulimit -v 120000; exec timeout 60 %s bench train --steps 1 --device cpu",
        test_program());
    CHECK_EQ(code, 1);
    CHECK_CONTAINS(text, "hstu bench: ");
    free(text);
}
