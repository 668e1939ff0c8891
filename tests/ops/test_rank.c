#include <string.h>

#include "base/mem.h"
#include "device.h"
#include "format/safetensors.h"
#include "ops/ops.h"
#include "test.h"
#include "train/report/metrics.h"

/* Memory for the length of a test. */
static void *kept[4096];
static int n_kept;

AFTER_TESTS {
    while (n_kept > 0)
        mem_free(kept[--n_kept]);
}

static void *zeros(size_t n, size_t size) {
    CHECK(n_kept < 4096);
    CHECK_OK(mem_alloc(&kept[n_kept], n, size));
    return kept[n_kept++];
}

typedef status (*backend_maker)(backend **out, pool *workers);

static void run_rank_on(backend_maker make, rank_args *a, int n_threads) {
    pool *p;
    backend *be;
    CHECK_OK(pool_create(&p, n_threads));
    CHECK_OK(make(&be, p));
    a->rank = a->target != NULL ? zeros((size_t)a->n_queries, sizeof *a->rank) : NULL;
    a->best = zeros((size_t)a->n_queries * (size_t)a->k, sizeof *a->best);
    a->best_score = zeros((size_t)a->n_queries * (size_t)a->k, sizeof *a->best_score);
    CHECK_OK(be->ops->rank(be, a));
    backend_destroy(be);
    pool_destroy(p);
}

static void run_rank(rank_args *a, int n_threads) {
    run_rank_on(test_backend, a, n_threads);
}

/* For what is the CPU's alone. */
static void run_rank_cpu(rank_args *a, int n_threads) {
    run_rank_on(backend_create_cpu, a, n_threads);
}

/* Rows of small integers: every product is exact, and ties are many. */
static uint32_t word(uint64_t seed, uint64_t i) {
    return rng_draw64(rng_make_key(seed, RNG_TEST), i, 0).word[0];
}

static float *small_integers(uint64_t seed, int64_t n) {
    float *x = zeros((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)rng_below(word(seed, (uint64_t)i), 7) - 3;
    return x;
}

/* Every third row, shifted by the query, is seen by it: some targets are. */
static bool is_seen_by(int32_t query, int32_t row) {
    return (query + row) % 3 == 0 && query % 5 != 0;
}

static rank_args make_problem(uint64_t seed, int32_t n_queries, int32_t dim, int32_t n_corpus,
                              int32_t k) {
    int32_t *offsets = zeros((size_t)n_queries + 1, sizeof *offsets), n = 0;
    int32_t *seen = zeros((size_t)n_queries * (size_t)n_corpus + 1, sizeof *seen);
    int32_t *target = zeros((size_t)n_queries, sizeof *target);
    for (int32_t q = 0; q < n_queries; q++) {
        target[q] = (int32_t)rng_below(word(seed + 9, (uint64_t)q), (uint32_t)n_corpus);
        for (int32_t row = 0; row < n_corpus; row++)
            if (is_seen_by(q, row)) seen[n++] = row;
        offsets[q + 1] = n;
    }
    return (rank_args){.n_queries = n_queries,
                       .dim = dim,
                       .n_corpus = n_corpus,
                       .query = small_integers(seed, (int64_t)n_queries * dim),
                       .corpus = small_integers(seed + 1, (int64_t)n_corpus * dim),
                       .seen_offsets = offsets,
                       .seen = seen,
                       .target = target,
                       .k = k};
}

static double score_of(const rank_args *a, int32_t q, int32_t row) {
    double sum = 0;
    for (int32_t c = 0; c < a->dim; c++)
        sum += (double)((const float *)a->query)[q * a->dim + c] * a->corpus[row * a->dim + c];
    return sum;
}

/* The place of a row among those a query has not seen, from 0. */
static int32_t place_of(const rank_args *a, int32_t q, int32_t row) {
    double own = score_of(a, q, row);
    int32_t n = 0;
    for (int32_t other = 0; other < a->n_corpus; other++) {
        double s = score_of(a, q, other);
        n += !is_seen_by(q, other) && (s > own || (s == own && other < row));
    }
    return n;
}

static void check_problem(rank_args a) {
    run_rank(&a, 2);
    for (int32_t q = 0; q < a.n_queries; q++) {
        int32_t n_left = 0;
        CHECK_EQ(a.rank[q],
                 is_seen_by(q, a.target[q]) ? a.n_corpus + 1 : place_of(&a, q, a.target[q]) + 1);
        for (int32_t row = 0; row < a.n_corpus; row++)
            n_left += !is_seen_by(q, row);
        for (int32_t i = 0; i < a.k; i++) {
            int32_t row = a.best[q * a.k + i];
            CHECK_EQ(row == -1, i >= n_left);
            if (row == -1) continue;
            CHECK(!is_seen_by(q, row));
            CHECK_EQ(place_of(&a, q, row), i);
            CHECK(a.best_score[q * a.k + i] == (float)score_of(&a, q, row));
        }
    }
}

TEST(rank_equals_counting) {
    check_problem(make_problem(1, 1, 1, 1, 1));
    check_problem(make_problem(2, 7, 3, 2, 5));
    check_problem(make_problem(3, 63, 4, 40, 10));
    check_problem(make_problem(4, 64, 5, 41, 41));
    check_problem(make_problem(5, 65, 2, 50, 60));
    check_problem(make_problem(6, 200, 16, 33, 0));
    check_problem(make_problem(7, 67, 2, 1500, 1)); /* ties in the target's chunk, and in others */
    check_problem(make_problem(8, 5, 2, 9000, 1));
}

typedef struct scored {
    double score;
    int32_t row;
} scored;

static int compare_scored(const void *a, const void *b) {
    const scored *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

static bool may_find(const rank_args *a, int32_t q, int32_t row) {
    const uint64_t *bits = a->allowed != NULL ? a->allowed[q] : NULL;
    if (bits != NULL && !(bits[row / 64] >> row % 64 & 1)) return false;
    return a->seen_offsets == NULL || !is_seen_by(q, row);
}

/* The best rows, by scores of the corpus in the type of the activations, where that is given. */
static void check_best(rank_args a) {
    a.target = NULL;
    float *rows = zeros((size_t)a.n_corpus * (size_t)a.dim, sizeof *rows); /* another type there */
    scored *all = zeros((size_t)a.n_corpus + 1, sizeof *all);
    memcpy(rows, a.corpus, (size_t)a.n_corpus * (size_t)a.dim * sizeof *rows);
    a.corpus_act = rows;
    run_rank(&a, 2);
    for (int32_t q = 0; q < a.n_queries; q++) {
        int32_t n = 0;
        for (int32_t row = 0; row < a.n_corpus; row++)
            if (may_find(&a, q, row)) all[n++] = (scored){score_of(&a, q, row), row};
        qsort(all, (size_t)n, sizeof *all, compare_scored);
        for (int32_t i = 0; i < a.k; i++) {
            int32_t want = i < n ? all[i].row : -1, row = a.best[q * a.k + i];
            float score = i < n ? (float)all[i].score : -INFINITY;
            if (row != want || a.best_score[q * a.k + i] != score)
                FAIL_TEST("%d queries x %d of %d rows, k %d: place %d of query %d is %d (%g), "
                          "not %d (%g)",
                          a.n_queries, a.dim, a.n_corpus, a.k, i, q, row,
                          (double)a.best_score[q * a.k + i], want, (double)score);
        }
    }
}

TEST(rank_best_of_a_corpus_in_act) {
    check_best(make_problem(11, 64, 64, 1500, 10));
    check_best(make_problem(12, 70, 128, 300, 128));
    check_best(make_problem(13, 3, 64, 70001, 5));
    check_best(make_problem(14, 5, 64, 20, 30));
    rank_args equal = make_problem(15, 2, 64, 40000, 20); /* all scores are 0 */
    memset((void *)(uintptr_t)equal.query, 0, sizeof(float) * 2 * 64);
    check_best(equal);
    rank_args rising = make_problem(16, 1, 64, 9000, 7); /* every row beats those before it */
    float *rows = (float *)(uintptr_t)rising.corpus, *query = (float *)(uintptr_t)rising.query;
    memset(rows, 0, sizeof(float) * 9000 * 64);
    for (int i = 0; i < 64; i++)
        query[i] = i == 0 ? 128 : i == 1;
    for (int r = 0; r < 9000; r++) {
        rows[r * 64] = (float)(r / 128);
        rows[r * 64 + 1] = (float)(r % 128);
    }
    check_best(rising);
}

/* Sizes at which a search goes another way: without a sample, with the last tile not whole, queries
 * in two batches, rows of several chunks, the largest k. */
TEST(rank_best_of_many_sizes) {
    const int32_t n_large = test_on.kind == ON_CUDA ? 300000 : 30000;
    const int32_t sizes[][4] = {{1, 64, 1, 1},       {65, 64, 1024, 9},   {2, 64, 1025, 100},
                                {3, 192, 1153, 10},  {130, 64, 2000, 20}, {200, 128, 1300, 3},
                                {64, 320, 4097, 5},  {1, 1024, 3000, 17}, {2, 64, 9000, 1024},
                                {1, 64, n_large, 64}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check_best(make_problem(60 + i, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]));
}

/* Bits of every n-th row: of all queries but each fourth. */
static const uint64_t *const *make_bits(const rank_args *a, int32_t every) {
    const uint64_t **bits = zeros((size_t)a->n_queries, sizeof *bits);
    for (int32_t q = 0; q < a->n_queries; q++) {
        uint64_t *own = q % 4 == 3 ? NULL : zeros((size_t)a->n_corpus / 64 + 1, sizeof *own);
        for (int32_t r = 0; own != NULL && r < a->n_corpus; r++)
            if ((r + q) % every == 0) own[r / 64] |= (uint64_t)1 << (r % 64);
        bits[q] = own;
    }
    return bits;
}

/* Rows that no query but some may find: on a GPU the sample of a search then has no bound, and the
 * lists of the last case are too short. */
TEST(rank_best_of_allowed_rows_in_act) {
    static const int32_t sizes[][5] = {{70, 64, 1500, 10, 3},
                                       {5, 33, 2000, 12, 7}, /* no 16-bit search of this one */
                                       {3, 64, 70000, 50, 1000},
                                       {2, 64, 150000, 1000, 10}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        rank_args a = make_problem(80 + i, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);
        a.allowed = make_bits(&a, sizes[i][4]);
        check_best(a);
        a.seen_offsets = a.seen = NULL;
        check_best(a);
    }
}

/* A corpus so large that blocks are at their smallest. */
TEST(rank_takes_a_large_corpus) {
    rank_args a = make_problem(7, 9, 3, 40000, 3);
    run_rank(&a, 2);
    for (int32_t q = 0; q < a.n_queries; q++) {
        bool is_seen = is_seen_by(q, a.target[q]);
        CHECK_EQ(a.rank[q], is_seen ? 40001 : place_of(&a, q, a.target[q]) + 1);
        for (int32_t i = 0; i < 3; i++)
            CHECK_EQ(place_of(&a, q, a.best[q * 3 + i]), i);
    }
}

TEST(rank_without_seen_rows) {
    rank_args a = make_problem(9, 20, 4, 50, 0);
    a.seen_offsets = a.seen = NULL;
    run_rank(&a, 2);
    for (int32_t q = 0; q < 20; q++) {
        double own = score_of(&a, q, a.target[q]);
        int32_t rank = 1;
        for (int32_t row = 0; row < 50; row++)
            rank +=
                score_of(&a, q, row) > own || (score_of(&a, q, row) == own && row < a.target[q]);
        CHECK_EQ(a.rank[q], rank);
    }
}

TEST(rank_of_nothing) {
    rank_args a = make_problem(1, 3, 2, 1, 2);
    a.n_queries = 0;
    run_rank(&a, 2);
    a.n_queries = 3;
    a.n_corpus = 0;
    a.target = NULL;
    run_rank(&a, 2);
    for (int i = 0; i < 6; i++)
        CHECK(a.best[i] == -1 && a.best_score[i] == -INFINITY);
}

TEST(rank_is_the_same_with_any_threads) {
    rank_args a = make_problem(8, 300, 6, 70, 20), b = a;
    run_rank(&a, 1);
    for (int n_threads = 2; n_threads <= 3; n_threads++) {
        run_rank(&b, n_threads);
        CHECK(memcmp(a.rank, b.rank, 300 * sizeof *a.rank) == 0);
        CHECK(memcmp(a.best, b.best, 300 * 20 * sizeof *a.best) == 0);
        CHECK(memcmp(a.best_score, b.best_score, 300 * 20 * sizeof *a.best_score) == 0);
    }
}

/* A model that broke must not come out first. */
TEST(rank_of_what_is_not_a_number) {
    float query[2] = {1, NAN}, corpus[3] = {1, 2, NAN};
    int32_t offsets[3] = {0}, target[2] = {1, 0}, seen = 0;
    rank_args a = {.n_queries = 2,
                   .dim = 1,
                   .n_corpus = 3,
                   .query = query,
                   .corpus = corpus,
                   .seen_offsets = offsets,
                   .seen = &seen,
                   .target = target,
                   .k = 3};
    run_rank(&a, 1);
    CHECK_EQ(a.rank[0], 2);
    CHECK_EQ(a.rank[1], 3);
    CHECK(a.best[0] == 1 && a.best[1] == 0 && a.best[2] == -1);
    CHECK(a.best[3] == -1);
}

/* Of infinite scores, too, the smaller row comes first; one of -infinity is never found. */
TEST(rank_of_infinite_scores) {
    enum { N = 600 };
    float query[3] = {1, 1, 1}, corpus[N];
    int32_t target[3] = {300, 599, 7};
    for (int i = 0; i < N; i++)
        corpus[i] = i == 7 ? -INFINITY : i % 100 == 0 || i == 599 ? INFINITY : 1;
    rank_args a = {.n_queries = 3,
                   .dim = 1,
                   .n_corpus = N,
                   .query = query,
                   .corpus = corpus,
                   .target = target};
    run_rank(&a, 1);
    CHECK_EQ(a.rank[0], 4);
    CHECK_EQ(a.rank[1], 7);
    CHECK_EQ(a.rank[2], N + 1);
}

static const st_tensor *tensor(st_file *f, const char *name, st_dtype dtype) {
    const st_tensor *t;
    CHECK_OK(st_get(f, name, dtype, &t));
    return t;
}

static int compare_rows(const void *a, const void *b) {
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Ids to rows of the corpus; padding and ids outside it are left out. */
static void list_seen(rank_args *a, const int64_t *ids, int64_t width, const int32_t *row_of,
                      int64_t n_ids) {
    int32_t *offsets = zeros((size_t)a->n_queries + 1, sizeof *offsets), n = 0;
    int32_t *seen = zeros((size_t)(a->n_queries * width), sizeof *seen);
    for (int32_t u = 0; u < a->n_queries; u++) {
        for (int64_t i = 0; i < width; i++) {
            int64_t id = ids[u * width + i];
            if (id > 0 && id < n_ids && row_of[id] >= 0) seen[n++] = row_of[id];
        }
        qsort(seen + offsets[u], (size_t)(n - offsets[u]), sizeof *seen, compare_rows);
        offsets[u + 1] = n;
    }
    a->seen_offsets = offsets, a->seen = seen;
}

static float *normalised(const float *rows, int64_t n, int64_t dim) {
    float *out = zeros((size_t)(n * dim), sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        double squares = 0;
        for (int64_t c = 0; c < dim; c++)
            squares += (double)rows[i * dim + c] * rows[i * dim + c];
        double length = sqrt(squares) > 1e-6 ? sqrt(squares) : 1e-6;
        for (int64_t c = 0; c < dim; c++)
            out[i * dim + c] = (float)(rows[i * dim + c] / length);
    }
    return out;
}

static void check_means(st_file *f, const position_counts *counts) {
    static const int at[] = {1, 10, 50, 100, 200, 500, 1000};
    char name[64];
    for (int i = 0; i < 7; i++) {
        snprintf(name, sizeof name, "mean_hr@%d", at[i]);
        double want = *(const double *)tensor(f, name, ST_F64)->data;
        CHECK(fabs(position_counts_metric(counts, &(metric){METRIC_HR, at[i]}) - want) < 1e-14);
        if (i >= 5) continue;
        snprintf(name, sizeof name, "mean_ndcg@%d", at[i]);
        want = *(const double *)tensor(f, name, ST_F64)->data;
        CHECK(fabs(position_counts_metric(counts, &(metric){METRIC_NDCG, at[i]}) - want) < 1e-14);
    }
    double mrr = *(const double *)tensor(f, "mean_mrr", ST_F64)->data;
    CHECK(fabs(position_counts_metric(counts, &(metric){METRIC_MRR, 0}) - mrr) < 1e-14);
}

static void check_rated(st_file *f, const rank_args *a) {
    const int64_t *rating = tensor(f, "target_ratings", ST_I64)->data;
    position_counts *counts = zeros(1, sizeof *counts);
    for (int32_t u = 0; u < a->n_queries; u++)
        if (rating[u] >= 4) position_counts_add(counts, &a->rank[u], 1, a->n_corpus);
    double want = *(const double *)tensor(f, "mean_hr@10_rated4", ST_F64)->data;
    CHECK(fabs(position_counts_metric(counts, &(metric){METRIC_HR, 10}) - want) < 1e-14);
}

/* Rounded scores can swap with near ones: the rank is between the ranks of a target with 4 u
 * |query| more and less, where |corpus row| is 1. */
static void check_near(const rank_args *a) {
    for (int32_t u = 0; u < a->n_queries; u++) {
        const float *query = (const float *)a->query + u * a->dim;
        double squares = 0, own = score_of(a, u, a->target[u]);
        int32_t n_above = 0, n_near = 0;
        for (int32_t c = 0; c < a->dim; c++)
            squares += (double)query[c] * query[c];
        double margin = 4 * precision_unit(test_on.p) * sqrt(squares);
        const int32_t *seen = a->seen + a->seen_offsets[u];
        const int32_t *end = a->seen + a->seen_offsets[u + 1];
        for (int32_t row = 0; row < a->n_corpus; row++) {
            while (seen < end && *seen < row)
                seen++;
            if (seen < end && *seen == row) continue;
            double d = score_of(a, u, row) - own;
            n_above += d > margin;
            n_near += fabs(d) <= margin;
        }
        if (a->rank[u] == a->n_corpus + 1) continue;
        CHECK(a->rank[u] > n_above && a->rank[u] <= n_above + n_near + 1);
    }
}

static void check_golden(const char *file) {
    enum { MAX_ID = 10000 };
    static int32_t row_of[MAX_ID];
    st_file *f;
    CHECK_OK(st_open(&f, test_shared(file)));
    const st_tensor *user = tensor(f, "user_emb", ST_F32), *item = tensor(f, "item_emb", ST_F32);
    const st_tensor *seen = tensor(f, "seen_ids", ST_I64);
    const int64_t *id = tensor(f, "item_ids", ST_I64)->data;
    const int64_t *target_id = tensor(f, "target_ids", ST_I64)->data;
    const int64_t *want = tensor(f, "rank", ST_I64)->data;
    rank_args a = {.n_queries = (int32_t)user->shape[0],
                   .dim = (int32_t)user->shape[1],
                   .n_corpus = (int32_t)item->shape[0],
                   .query = user->data,
                   .k = 5};
    for (int i = 0; i < MAX_ID; i++)
        row_of[i] = -1;
    for (int32_t i = 0; i < a.n_corpus; i++) {
        CHECK(id[i] > 0 && id[i] < MAX_ID);
        row_of[id[i]] = i;
    }
    int32_t *target = zeros((size_t)a.n_queries, sizeof *target);
    for (int32_t u = 0; u < a.n_queries; u++)
        target[u] = row_of[target_id[u]];
    a.target = target;
    a.corpus = normalised(item->data, a.n_corpus, a.dim);
    list_seen(&a, seen->data, seen->shape[1], row_of, MAX_ID);
    run_rank(&a, 2);
    if (test_on.p != PRECISION_F32) {
        check_near(&a);
        st_close(f);
        return;
    }
    for (int32_t u = 0; u < a.n_queries; u++)
        CHECK_EQ(a.rank[u] <= POSITION_LAST ? a.rank[u] : POSITION_MISS, want[u]);
    position_counts *counts = zeros(1, sizeof *counts);
    position_counts_add(counts, a.rank, a.n_queries, a.n_corpus);
    check_means(f, counts);
    check_rated(f, &a);
    st_close(f);
}

TEST(rank_golden) {
    check_golden("golden/meta_eval_x3000.safetensors");
    check_golden("golden/meta_eval_x3883.safetensors");
}

/* Without targets another way of searching runs; its rows and the bits of its scores are those of
 * the first one, for any number of queries, threads and chunks of the corpus. */
TEST(rank_of_the_best_alone) {
    static const int32_t cases[][4] = {{1, 64, 40000, 10},
                                       {130, 7, 9001, 5},
                                       {65, 33, 300, 400},
                                       {8, 1, 50, 50},
                                       {3, 300, 2000, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
            const int32_t *c = cases[i];
            rank_args a = make_problem(40 + i, c[0], c[1], c[2], c[3]), b = a;
            size_t n = (size_t)c[0] * (size_t)c[3];
            run_rank(&a, 1);
            b.target = NULL;
            run_rank(&b, n_threads);
            CHECK(memcmp(a.best, b.best, n * sizeof *a.best) == 0);
            CHECK(memcmp(a.best_score, b.best_score, n * sizeof *a.best_score) == 0);
        }
    }
}

/* Rows of unit length, as a retrieval model has them, some of them huge, zero or not finite. */
static float *unit_rows(uint64_t seed, int64_t n, int32_t dim, bool has_odd) {
    float *x = zeros((size_t)(n * dim), sizeof *x);
    for (int64_t r = 0; r < n; r++) {
        double sum = 0;
        for (int32_t d = 0; d < dim; d++) {
            uint32_t w = word(seed, (uint64_t)(r * dim + d));
            x[r * dim + d] = (float)(w >> 16) - (float)(w & 0xffff);
            sum += (double)x[r * dim + d] * (double)x[r * dim + d];
        }
        for (int32_t d = 0; d < dim; d++)
            x[r * dim + d] /= (float)sqrt(sum);
        if (!has_odd || r % 97 > 4) continue;
        static const float factor[5] = {0, 1e-38f, 1e30f, INFINITY, NAN};
        for (int32_t d = 0; d < dim; d++)
            x[r * dim + d] *= factor[r % 97];
    }
    return x;
}

/* Rows that differ by less than 8 bits can tell. */
static float *near_rows(uint64_t seed, int64_t n, int32_t dim) {
    float *x = unit_rows(seed, n, dim, false);
    for (int64_t r = 1; r < n; r++)
        for (int32_t d = 0; d < dim; d++)
            x[r * dim + d] = x[d] + 1e-3f * x[r * dim + d];
    return x;
}

static void check_same(const rank_args *a, const rank_args *b) {
    for (int64_t i = 0; i < (int64_t)a->n_queries * a->k; i++)
        if (a->best[i] != b->best[i] || memcmp(&a->best_score[i], &b->best_score[i], 4) != 0)
            FAIL_TEST("place %lld: row %d (%g), not %d (%g)", (long long)i, b->best[i],
                      (double)b->best_score[i], a->best[i], (double)a->best_score[i]);
}

/* With the rows in 8 bits beside it, a search finds the same rows with the same bits. */
TEST(rank_best_by_8_bits_is_exact) {
    static const int32_t dims[4] = {1, 16, 50, 64};
    for (int round = 0; round < 16; round++) {
        int32_t dim = dims[round % 4], n = round < 8 ? 3000 + round : 33 * round,
                n_queries = 1 + round % 5;
        rank_int8 small;
        rank_args a = make_problem((uint64_t)round, n_queries, dim, n, 1 + round * 3);
        a.target = NULL;
        a.query = unit_rows((uint64_t)round + 50, n_queries, dim, false);
        if (round % 3 != 2) a.corpus = unit_rows((uint64_t)round + 70, n, dim, round % 2 == 1);
        if (round % 3 == 1) a.corpus = near_rows((uint64_t)round, n, dim);
        if (round % 4 == 0) a.seen_offsets = NULL;
        rank_args b = a;
        run_rank_cpu(&a, 1);
        CHECK_OK(rank_int8_init(&small, b.corpus, n, dim, NULL));
        b.corpus_int8 = &small;
        run_rank_cpu(&b, 1 + round % 3);
        check_same(&a, &b);
        rank_int8_fini(&small);
    }
}

/* The bound that makes it exact: a score by 8-bit numbers is never off by more. */
TEST(rank_int8_bounds_its_errors) {
    enum { N = 500, DIM = 48 };
    rank_int8 c;
    const float *rows = unit_rows(1, N, DIM, false), *query = unit_rows(2, 20, DIM, false);
    CHECK_OK(rank_int8_init(&c, rows, N, DIM, NULL));
    double worst = 0;
    for (int q = 0; q < 20; q++)
        for (int r = 0; r < N; r++) {
            double exact = 0, sum = 0;
            for (int d = 0; d < DIM; d++) {
                int8_t small = c.rows[r / 32 * 32 * DIM + d * 32 + r % 32];
                exact += (double)query[q * DIM + d] * (double)rows[r * DIM + d];
                sum += (double)query[q * DIM + d] * (double)c.scale[r] * small;
            }
            worst = fmax(worst, fabs(exact - sum) / (double)c.error[r]);
        }
    CHECK(worst > 0.2 && worst <= 1);
    rank_int8_fini(&c);
}

/* Bitmaps of what may be found, with and without 8 bits, for few and for many queries. */
TEST(rank_best_of_allowed_rows) {
    for (int round = 0; round < 6; round++) {
        int32_t n_queries = round < 3 ? 3 : 40, n = 1000 + 7 * round;
        rank_int8 small;
        rank_args a = make_problem((uint64_t)round, n_queries, 16, n, 20), b = a;
        const uint64_t **bits = zeros((size_t)n_queries, sizeof *bits);
        int32_t *offsets = zeros((size_t)n_queries + 1, sizeof *offsets), n_seen = 0;
        int32_t *seen = zeros((size_t)n_queries * (size_t)n, sizeof *seen);
        a.target = b.target = NULL;
        for (int32_t q = 0; q < n_queries; q++) {
            uint64_t *own = q % 4 == 3 ? NULL : zeros((size_t)n / 64 + 1, sizeof *own);
            bits[q] = own;
            for (int32_t r = 0; r < n; r++) { /* whole words of nothing, too */
                bool is_allowed =
                    own == NULL || (r / 200 % 2 == q % 2 && word(7, (uint64_t)r) % 3 > 0);
                if (own != NULL && is_allowed) own[r / 64] |= (uint64_t)1 << (r % 64);
                if (!is_allowed || is_seen_by(q, r)) seen[n_seen++] = r;
            }
            offsets[q + 1] = n_seen;
        }
        a.seen = seen;
        a.seen_offsets = offsets;
        b.allowed = bits;
        run_rank_cpu(&a, 1);
        CHECK_OK(rank_int8_init(&small, b.corpus, n, 16, NULL));
        if (round % 3 == 1) b.corpus_int8 = &small;
        run_rank_cpu(&b, 2);
        check_same(&a, &b);
        rank_int8_fini(&small);
    }
}

/* One allowed row alone, at the ends of words, of groups of 8-bit rows and of the corpus: a list of
 * 8-bit rows, float32 rows for few queries and for many find it, and nothing else. */
TEST(rank_best_of_one_allowed_row) {
    enum { N = 1000, DIM = 16, MANY = 40 };
    static const int32_t rows[] = {0, 1, 31, 32, 33, 63, 64, 95, 127, 128, 991, 992, 999};
    rank_int8 small;
    rank_args a = make_problem(3, MANY, DIM, N, 3);
    uint64_t *own = zeros(N / 64 + 1, sizeof *own);
    const uint64_t **bits = zeros(MANY, sizeof *bits);
    for (int32_t q = 0; q < MANY; q++)
        bits[q] = own;
    a.target = NULL;
    a.seen_offsets = NULL;
    a.allowed = bits;
    CHECK_OK(rank_int8_init(&small, a.corpus, N, DIM, NULL));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        own[rows[i] / 64] = (uint64_t)1 << rows[i] % 64;
        for (int way = 0; way < 4; way++) { /* 1 and 4 queries by 8 bits, 4 and 40 without */
            a.n_queries = way == 0 ? 1 : way == 3 ? MANY : 4;
            a.corpus_int8 = way < 2 ? &small : NULL;
            run_rank_cpu(&a, 2);
            for (int32_t q = 0; q < a.n_queries; q++)
                if (a.best[q * 3] != rows[i] || a.best[q * 3 + 1] != -1)
                    FAIL_TEST("row %d, way %d: %d and %d", rows[i], way, a.best[q * 3],
                              a.best[q * 3 + 1]);
        }
        own[rows[i] / 64] = 0;
    }
    rank_int8_fini(&small);
}
