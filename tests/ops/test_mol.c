/* The mixture of logits: its ops as nn/mol.c composes them, against the formulas in double and
 * their differences, with all dropouts.  (Golden vectors test both.) */
#include "../mol_reference.h"
#include "dense_test.h"
#include "nn/mol_search.h"

typedef struct rig {
    nn_memory memory;
    param_list l;
    mol m;
    mol_acts acts;
    mol_batch b;
    int32_t n_negatives, *positive, *negative;
    float *x, *items, *dx, *ditems, scale;
    uint32_t *user, *position, step;
    double loss;
} rig;

enum { SITES = 60000 }; /* of nn/mol.c: query, item, pair, gate, users */

static void open_rig(rig *r, backend *be, const mol_config *c, int64_t n, int64_t n_items,
                     int32_t n_negatives) {
    memset(r, 0, sizeof *r);
    nn_memory_init(&r->memory, be);
    CHECK_OK(param_list_init(&r->l, &r->memory, REF_PARAMS));
    CHECK_OK(mol_add_params(&r->m, c, &r->l));
    CHECK_OK(param_list_alloc_grads(&r->l));
    CHECK_OK(param_list_start(&r->l, 7));
    for (int i = 0; i < r->l.n; i++) /* biases, too; exact in every precision */
        for (int64_t k = 0; k < r->l.item[i].n; k++) {
            rng_block w = rng_draw64(rng_make_key(5, RNG_TEST), (uint64_t)k, (uint64_t)i);
            float *at = r->l.item[i].value + k;
            *at = exact(*at + 0.1f * (rng_uniform(w.word[0]) - 0.5f));
        }
    CHECK_OK(mol_alloc(&r->acts, &r->m, &r->memory, n, n_items, true));
    r->n_negatives = n_negatives;
    r->x = floats(n * c->dim, 1);
    r->items = floats(n_items * c->dim, 2);
    CHECK_OK(NN_NEW(&r->memory, &r->dx, n * c->dim));
    CHECK_OK(NN_NEW(&r->memory, &r->ditems, n_items * c->dim));
    CHECK_OK(NN_NEW(&r->memory, &r->positive, n));
    CHECK_OK(NN_NEW(&r->memory, &r->negative, n * n_negatives));
    CHECK_OK(NN_NEW(&r->memory, &r->user, n));
    CHECK_OK(NN_NEW(&r->memory, &r->position, n));
    for (int64_t i = 0; i < n; i++) {
        r->positive[i] = (int32_t)((i * 7 + 3) % n_items);
        r->user[i] = (uint32_t)(i * 5 / 2);
        r->position[i] = (uint32_t)(i % 3);
        for (int32_t j = 0; j < n_negatives; j++)
            r->negative[i * n_negatives + j] = (int32_t)((i * 3 + j * 5) % n_items);
    }
    r->step = 4;
    r->scale = 1 / (float)n;
    r->b = (mol_batch){.n = n,
                       .x = r->x,
                       .dx = r->dx,
                       .positive = r->positive,
                       .user = r->user,
                       .position = r->position,
                       .step = &r->step,
                       .grad_scale = &r->scale,
                       .loss = &r->loss,
                       .key = rng_make_key(3, RNG_DROPOUT),
                       .temperature = 0.7f,
                       .n_items = n_items,
                       .items = r->items,
                       .ditems = r->ditems};
}

static void close_rig(rig *r) {
    nn_memory_fini(&r->memory);
    MEM_FREE(r->x, r->items);
}

static void run(rig *r, backend *be) {
    int64_t half = r->b.n / 2;
    CHECK_OK(mol_begin(&r->m, &r->acts, be, &r->b));
    CHECK_OK(mol_piece(&r->m, &r->acts, be, &r->b, 0, half, r->n_negatives, r->negative));
    CHECK_OK(mol_piece(&r->m, &r->acts, be, &r->b, half, r->b.n - half, r->n_negatives,
                       r->negative + half * r->n_negatives));
    CHECK_OK(mol_end(&r->m, &r->acts, be, &r->b));
}

/* The factors of the very draws. */
static double own_factor(const void *ctx, int which, int64_t row, int32_t c) {
    const rig *r = ctx;
    const mol_config *m = &r->m.config;
    const float rate[] = {m->query.dropout, m->item.dropout, m->pair_dropout, m->gate_dropout,
                          m->user_dropout};
    uint32_t id = (uint32_t)row + 1, zero = 0;
    dropout d = {rate[which < REF_USER ? which : REF_USER],
                 r->b.key,
                 &r->step,
                 SITES + (uint32_t)which,
                 r->user,
                 r->position};
    if (which != REF_ITEM) return naive_factor(&d, row, c);
    d.user = &id;
    d.position = &zero;
    return naive_factor(&d, 0, c);
}

static double *widen(const float *x, int64_t n) {
    double *y = doubles(n);
    for (int64_t i = 0; i < n; i++)
        y[i] = (double)x[i];
    return y;
}

static double objective(mol_ref *r) {
    double main = ref_run(r, (double)0.7f);
    const mol_config *c = &r->m->config;
    return main + (double)c->balance * r->mi + (double)c->user_penalty * r->user_l2;
}

/* Some gradients of an array by differences, the largest one among them. */
static void check_slopes(mol_ref *r, const char *name, double *x, const float *grad, int64_t n) {
    bool is_half = precision_is_half(test_on.p);
    double largest = 0, limit = is_half ? 0.15 : test_on.p == PRECISION_TF32 ? 0.03 : 2e-4;
    int64_t top = 0;
    for (int64_t i = 0; i < n; i++)
        if (fabs((double)grad[i]) > largest) largest = fabs((double)grad[top = i]);
    for (int64_t k = 0; k < 6; k++) {
        int64_t at = k == 0 ? top : k * 7919 % n;
        double side[2], value = x[at];
        for (int s = 0; s < 2; s++) {
            x[at] = value + (s == 0 ? -1e-5 : 1e-5);
            side[s] = objective(r);
        }
        x[at] = value;
        double slope = (side[1] - side[0]) / 2e-5;
        if (!(fabs(slope - (double)grad[at]) <= limit * largest + 1e-7))
            FAIL_TEST("%s[%lld] has the gradient %.7g, not %.7g (largest %.3g)", name,
                      (long long)at, (double)grad[at], slope, largest);
    }
}

static void check_all(rig *r) {
    mol_ref ref = {.m = &r->m,
                   .l = &r->l,
                   .n = r->b.n,
                   .n_items = r->b.n_items,
                   .n_negatives = r->n_negatives,
                   .x = widen(r->x, r->b.n * r->m.config.dim),
                   .items = widen(r->items, r->b.n_items * r->m.config.dim),
                   .positive = r->positive,
                   .negative = r->negative,
                   .user = r->user,
                   .factor = own_factor,
                   .ctx = r};
    for (int i = 0; i < r->l.n; i++)
        ref.w[i] = widen(r->l.item[i].value, r->l.item[i].n);
    double want = objective(&ref), got = r->loss / (double)r->b.n;
    CHECK(fabs(got - want) < (precision_is_half(test_on.p)  ? 0.02
                              : test_on.p == PRECISION_TF32 ? 4e-3
                                                            : 2e-5) *
                                 (1 + fabs(want)));
    check_slopes(&ref, "x", ref.x, r->dx, r->b.n * r->m.config.dim);
    check_slopes(&ref, "items", ref.items, r->ditems, r->b.n_items * r->m.config.dim);
    for (int i = 0; i < r->l.n; i++)
        check_slopes(&ref, r->l.item[i].name, ref.w[i], r->l.item[i].grad, r->l.item[i].n);
    for (int i = 0; i < r->l.n; i++)
        mem_free(ref.w[i]);
    MEM_FREE(ref.x, ref.items);
}

static const mol_config SHAPES[] = {
    {.dim = 10,
     .n_query = 3,
     .n_item = 2,
     .dim_dot = 6,
     .query = {12, 8, EPILOGUE_SILU, 0.2f},
     .item = {0, 9, EPILOGUE_SILU, 0.1f},
     .pair_hidden = 7,
     .user_dropout = 0.3f,
     .pair_dropout = 0.2f,
     .gate_dropout = 0.2f,
     .n_user = 1,
     .hash = {5}},
    {.dim = 16,
     .n_query = 8,
     .n_item = 5,
     .dim_dot = 8,
     .query = {0, 8, EPILOGUE_GELU, 0},
     .item = {6, 8, EPILOGUE_GELU, 0},
     .pair_hidden = 16,
     .gate_dropout = 0.5f},
    {.dim = 8,
     .n_query = 5,
     .n_item = 7,
     .dim_dot = 12,
     .query = {8, 8, EPILOGUE_GELU, 0},
     .item = {0, 8, EPILOGUE_GELU, 0.3f},
     .pair_hidden = 24,
     .pair_dropout = 0.1f,
     .n_user = 2,
     .hash = {7, 3}},
    {.dim = 24,
     .n_query = 1,
     .n_item = 1,
     .dim_dot = 40,
     .query = {0, 8, EPILOGUE_GELU, 0},
     .item = {0, 8, EPILOGUE_GELU, 0},
     .pair_hidden = 8},
    {.dim = 8, /* as published, with vectors of more than 64 numbers */
     .n_query = 8,
     .n_item = 4,
     .dim_dot = 72,
     .query = {0, 8, EPILOGUE_GELU, 0},
     .item = {0, 8, EPILOGUE_GELU, 0},
     .pair_hidden = 128,
     .gate_dropout = 0.2f,
     .n_user = 1,
     .hash = {6}},
};

static mol_config complete(mol_config c) {
    c.temperature = 0.25f;
    c.eps = 1e-6f;
    c.balance = 0.3f;
    c.user_penalty = 0.2f;
    return c;
}

TEST(mol_gradients_are_differences_in_double) {
    test_backends t;
    open_backends(&t);
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
        mol_config c = complete(SHAPES[i]);
        rig r;
        open_rig(&r, t.be[1], &c, 9, 11, 6);
        run(&r, t.be[1]);
        check_all(&r);
        close_rig(&r);
    }
    close_backends(&t);
}

TEST(mol_bits_do_not_depend_on_threads) {
    test_backends t;
    rig r[N_TEST_BACKENDS];
    mol_config c = complete(SHAPES[0]);
    open_backends(&t);
    for (int i = 0; i < N_TEST_BACKENDS; i++) {
        open_rig(&r[i], t.be[i], &c, 300, 50, 40);
        run(&r[i], t.be[i]);
        CHECK(r[i].loss == r[0].loss || !test_on.is_deterministic);
        CHECK_SAME(r[0].dx, r[i].dx, 300 * c.dim);
        CHECK_SAME(r[0].ditems, r[i].ditems, 50 * c.dim);
        for (int k = 0; k < r[i].l.n; k++)
            CHECK_SAME(r[0].l.item[k].grad, r[i].l.item[k].grad, r[i].l.item[k].n);
    }
    for (int i = 0; i < N_TEST_BACKENDS; i++)
        close_rig(&r[i]);
    close_backends(&t);
}

/* Rows that only fill the batch up, and a batch of none. */
TEST(mol_leaves_empty_rows_out) {
    test_backends t;
    rig r, less;
    mol_config c = complete(SHAPES[0]);
    open_backends(&t);
    open_rig(&r, t.be[0], &c, 12, 11, 6);
    open_rig(&less, t.be[0], &c, 12, 11, 6);
    for (int64_t i = 9; i < 12; i++)
        r.positive[i] = -1;
    less.b.n = 9;
    run(&r, t.be[0]);
    run(&less, t.be[0]);
    CHECK(fabs(r.loss - less.loss) < 1e-5 * fabs(less.loss));
    for (int64_t k = 9 * c.dim; k < 12 * c.dim; k++)
        CHECK(r.dx[k] == 0);
    CHECK_SAME(r.dx, less.dx, 9 * c.dim);
    less.b.n = 0;
    run(&less, t.be[0]);
    close_rig(&r);
    close_rig(&less);
    close_backends(&t);
}

/* All items for several queries, in tiles, are what single pairs are. */
TEST(mol_scores_every_item) {
    test_backends t;
    rig r;
    mol_acts acts;
    mol_config c = complete(SHAPES[0]);
    enum { N = 5, ITEMS = 23 };
    open_backends(&t);
    open_rig(&r, t.be[1], &c, N, ITEMS, 6);
    CHECK_OK(mol_alloc(&acts, &r.m, &r.memory, N, 10, false));
    float *sim, *one;
    CHECK_OK(NN_NEW(&r.memory, &sim, N * ITEMS));
    CHECK_OK(NN_NEW(&r.memory, &one, N * ITEMS));
    r.user[3] = MOL_NOBODY;
    CHECK_OK(mol_score(&r.m, &acts, t.be[1], N, r.x, r.user, ITEMS, r.items, sim));
    for (int i = 0; i < N; i++)
        CHECK_OK(mol_score(&r.m, &acts, t.be[1], 1, r.x + i * c.dim, r.user + i, ITEMS, r.items,
                           one + i * ITEMS));
    for (int i = 0; i < N; i++)
        for (int k = 0; k < ITEMS; k++) {
            float a = sim[k * N + i], b = one[i * ITEMS + k];
            CHECK(test_on.kind == ON_CUDA ? fabsf(a - b) < 0.05f * (1 + fabsf(a)) : a == b);
        }
    close_rig(&r);
    close_backends(&t);
}

/* Two stages find a part of what the exact search finds, with its numbers; all of it where every
 * item is a candidate.  What is seen or not allowed is never found. */
TEST(mol_search_in_two_stages) {
    enum { N = 5, ITEMS = 203, K = 9 };
    static const mol_stages stages[] = {{203, 0}, {0, 203}, {40, 3},   {12, 0},
                                        {0, 2},   {0, 0},   {2000, 0}, {0, 1100}};
    static const uint64_t users[N] = {3, 0, UINT64_MAX, 7, 1};
    test_backends t;
    mol_config c = complete(SHAPES[0]);
    open_backends(&t);
    for (size_t v = 0; v < sizeof stages / sizeof *stages; v++) {
        rig r;
        mol_search s, exact;
        uint64_t odd[ITEMS / 64 + 1];
        const uint64_t *allowed[N] = {NULL, odd, NULL, odd, NULL};
        int32_t best[2][N * K], *lists;
        float score[2][N * K];
        open_rig(&r, t.be[1], &c, N, ITEMS, 6);
        CHECK_OK(mol_search_alloc(&s, &r.m, &r.memory, ITEMS, 3));
        s.acts.max_items = v % 2 ? 16 : s.acts.max_items; /* candidates in parts, too */
        CHECK_OK(mol_search_alloc(&exact, &r.m, &r.memory, ITEMS, N));
        CHECK_OK(mol_search_index(&s, &stages[v], &r.memory, ITEMS, r.items));
        CHECK_OK(NN_NEW(&r.memory, &lists, N + 1 + N * ITEMS));
        s.n_to_measure = N;
        memset(odd, 0xaa, sizeof odd);
        rank_args a = {.n_queries = N,
                       .dim = c.dim,
                       .n_corpus = ITEMS,
                       .query = r.x,
                       .corpus = r.items,
                       .allowed = allowed,
                       .seen_offsets = lists,
                       .seen = lists + N + 1,
                       .k = K};
        for (int i = 0; i < N; i++) { /* query i has seen every third item, or 195 of them */
            lists[i + 1] = lists[i];
            for (int j = 0; j < ITEMS; j++)
                if (i == 4 ? j < 197 : j % 3 == i % 3) lists[N + 1 + lists[i + 1]++] = j;
        }
        for (int e = 0; e < 2; e++) {
            a.best = best[e];
            a.best_score = score[e];
            CHECK_OK(mol_search_run(e ? &exact : &s, t.be[1], &a, users));
        }
        CHECK_OK(t.be[1]->ops->sync(t.be[1]));
        int n_hit = 0, n_wanted = 0;
        for (int i = 0; i < N * K; i++) {
            int q = i / K, row = best[0][i];
            n_wanted += best[1][i] >= 0;
            if (row < 0) {
                CHECK(isinf(score[0][i]));
                continue;
            }
            CHECK(q == 4 ? row >= 197 : row % 3 != q % 3);
            CHECK(allowed[q] == NULL || row % 2 == 1);
            for (int j = q * K; j < (q + 1) * K; j++)
                if (best[1][j] == row) {
                    n_hit++;
                    if (test_on.kind != ON_CUDA) CHECK(score[1][j] == score[0][i]);
                }
            CHECK(i % K == 0 || score[0][i] <= score[0][i - 1]);
        }
        if (v < 2 || v >= 5) CHECK_EQ(n_hit, n_wanted);
        if (v == 3 || v == 4) CHECK(n_hit < n_wanted && n_hit > n_wanted / 4);
        if (v != 5) {
            CHECK_EQ(s.n_measured, N);
            CHECK_EQ(s.n_wanted, n_wanted);
            CHECK_EQ(s.n_hit, n_hit);
        }
        if ((v == 0 || v > 5) && test_on.kind != ON_CUDA)
            CHECK(memcmp(best[0], best[1], sizeof *best) == 0);
        close_rig(&r);
    }
    close_backends(&t);
}

/* What several products find takes the room of one; and where every item is asked for, each part of
 * them gives all it has. */
TEST(mol_search_finds_more_with_more_candidates) {
    enum { N = 8, ITEMS = 1500, K = 20 };
    static const mol_stages stages[] = {{0, 40}, {0, 100}, {0, 400}, {0, 1000}, {ITEMS, 0}};
    static const uint64_t users[N] = {3, 0, UINT64_MAX, 7, 1, 2, 4, 5};
    enum { LAST = sizeof stages / sizeof *stages - 1 };
    test_backends t;
    mol_config c = complete(SHAPES[0]);
    int64_t n_hit = 0;
    open_backends(&t);
    for (size_t v = 0; v <= LAST; v++) {
        rig r;
        mol_search s;
        int32_t best[N * K];
        float score[N * K];
        open_rig(&r, t.be[1], &c, N, ITEMS, 6);
        CHECK_OK(mol_search_alloc(&s, &r.m, &r.memory, ITEMS, N));
        CHECK_OK(mol_search_index(&s, &stages[v], &r.memory, ITEMS, r.items));
        s.n_to_measure = N;
        rank_args a = {.n_queries = N,
                       .dim = c.dim,
                       .n_corpus = ITEMS,
                       .query = r.x,
                       .corpus = r.items,
                       .k = K,
                       .best = best,
                       .best_score = score};
        for (int twice = 0; twice < 2; twice++)
            CHECK_OK(mol_search_run(&s, t.be[1], &a, users));
        CHECK(s.n_hit >= n_hit && s.n_wanted == N * K);
        n_hit = s.n_hit;
        if (v == LAST) CHECK_EQ(n_hit, N * K);
        close_rig(&r);
    }
    close_backends(&t);
}

TEST(mol_stages_are_read) {
    static const struct {
        const char *text;
        mol_stages want;
    } good[] = {{"exact", {0, 0}},
                {"mean:500", {500, 0}},
                {"components:16", {0, 16}},
                {"mean:1024+components:1", {1024, 1}}};
    static const char *const bad[] = {"",
                                      "mean",
                                      "mean:",
                                      "mean:0",
                                      "mean:-1",
                                      "mean:65537",
                                      "mean:5+",
                                      "components:5+mean:5",
                                      "mean:5 ",
                                      "mean:5mean:5",
                                      "mean:5components:5",
                                      "mean:5+components:5x",
                                      "+components:5"};
    mol_stages s;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        CHECK_OK(mol_stages_read(&s, good[i].text));
        CHECK(s.mean == good[i].want.mean && s.pair == good[i].want.pair);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_EQ(mol_stages_read(&s, bad[i]), ERR_USAGE);
}

/* Gated layers by themselves, with sizes around a block of a GPU. */
TEST(mol_glu_is_its_formula) {
    const int32_t sizes[][2] = {{1, 1}, {3, 85}, {2, 128}, {257, 3}};
    test_backends t;
    open_backends(&t);
    for (int k = 0; k < 8; k++) {
        int64_t n = sizes[k / 2][0] * (int64_t)sizes[k / 2][1];
        int32_t dim = sizes[k / 2][1];
        mol_glu_args a = {.n = sizes[k / 2][0],
                          .dim = dim,
                          .f = k % 2 == 0 ? EPILOGUE_SILU : EPILOGUE_GELU,
                          .z = floats(2 * n, 1),
                          .y = floats(n, 2),
                          .dy = floats(n, 3),
                          .dz = floats(2 * n, 4)};
        double slack = precision_is_half(test_on.p) ? precision_unit(test_on.p) : 2e-6;
        CHECK_OK(t.be[1]->ops->mol_glu_fwd(t.be[1], &a));
        CHECK_OK(t.be[1]->ops->mol_glu_bwd(t.be[1], &a));
        for (int64_t i = 0; i < n; i++) {
            const float *z = (const float *)a.z + i / dim * 2 * dim + i % dim;
            double x = z[0], up = z[dim], g = ((const float *)a.dy)[i], s = 1 / (1 + exp(-x));
            double cdf = erfc(-x / sqrt(2)) / 2, pdf = exp(-x * x / 2) / sqrt(2 * acos(-1.0));
            double f = k % 2 == 0 ? x * s : x * cdf;
            double slope = k % 2 == 0 ? s * (1 + x * (1 - s)) : cdf + x * pdf;
            const float *dz = (const float *)a.dz + i / dim * 2 * dim + i % dim;
            CHECK(fabs(((const float *)a.y)[i] - f * up) < slack);
            CHECK(fabs(dz[0] - g * up * slope) < slack);
            CHECK(fabs(dz[dim] - g * f) < slack);
        }
        mem_free((void *)(uintptr_t)a.z);
        mem_free((void *)(uintptr_t)a.dy);
        MEM_FREE(a.y, a.dz);
    }
    close_backends(&t);
}

TEST(mol_index_names_items_and_users) {
    enum { N = 3, R = 2 };
    int32_t negative[N * R] = {1, 2, 3, 4, 5, 6}, positive[N] = {7, -1, 8}, item[N * (R + 1)];
    int32_t row[2 * N];
    uint32_t user[N] = {9, 10, MOL_NOBODY};
    const int32_t items[] = {1, 2, 7, -1, -1, -1, 5, 6, 8}, rows[] = {5, -1, -1, 3, -1, -1};
    mol_index_args a = {N, R, negative, positive, item, 2, {5, 7}, user, row, N};
    test_backends t;
    open_backends(&t);
    CHECK_OK(t.be[0]->ops->mol_index(t.be[0], &a));
    CHECK(memcmp(item, items, sizeof items) == 0);
    CHECK(memcmp(row, rows, sizeof rows) == 0);
    close_backends(&t);
}

/* A count of 0 does nothing; the sums of losses stay. */
TEST(mol_ops_of_nothing) {
    test_backends t;
    double loss = 3;
    float mean[4], scale = 1;
    int32_t begin[1] = {0};
    mol_args a = {.n_each = 2, .n_query = 2, .n_item = 2, .dim = 4, .temperature = 1};
    mol_balance_args balance = {.dim = 4, .mean = mean, .weight = 1, .loss = &loss};
    mol_penalty_args penalty = {.weight = 1, .grad_scale = &scale, .loss = &loss};
    mol_loss_args softmax = {.n_negatives = 1, .temperature = 1, .grad_scale = &scale};
    softmax.loss = &loss;
    a.groups.begin = begin;
    open_backends(&t);
    backend *be = t.be[0];
    CHECK_OK(be->ops->mol_pairs_fwd(be, &a));
    CHECK_OK(be->ops->mol_pairs_bwd(be, &a));
    CHECK_OK(be->ops->mol_balance(be, &balance));
    CHECK_OK(be->ops->mol_penalty(be, &penalty));
    CHECK_OK(be->ops->mol_loss(be, &softmax));
    CHECK(loss == 3);
    close_backends(&t);
}
