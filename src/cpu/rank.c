/* rank, as ops.h states it.
 *
 * One matrix product scores a block of queries against the whole corpus, so that the target's score
 * and the scores it is compared with come from the same arithmetic.  A block's scores (256 KiB)
 * stay in the L2 cache beside the packed corpus up to some 4000 rows; beyond, a block still shares
 * the corpus among 16 queries, whose scores take 1 MiB up to 16384 rows, or 8.  Seen rows get
 * -infinity.  Where no target is ranked, rank_best.h finds the best rows without storing the
 * scores. */
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/product.h"
#include "cpu/rank_best.h"

enum {
    BLOCK_SCORES = 1 << 16,
    SHARED_SCORES = 1 << 18,
    MIN_BLOCK = 8,
    FAIR_BLOCK = 16,
    MAX_BLOCK = 64
};
enum { MAX_PACKED = 1 << 24 }; /* numbers: 64 MiB */

typedef struct job {
    backend *be;
    const rank_args *a;
    int32_t block_queries;
    product_panels corpus; /* (dim, n_corpus); data is NULL where it is not packed as a whole */
} job;

/* Queries of a block; depends on the corpus alone, so that it is the same with any number of
 * threads. */
static int32_t block_size(int32_t n_corpus) {
    int32_t n = n_corpus > 0 ? BLOCK_SCORES / n_corpus : MAX_BLOCK;
    if (n < FAIR_BLOCK)
        n = SHARED_SCORES / n_corpus < FAIR_BLOCK ? SHARED_SCORES / n_corpus : FAIR_BLOCK;
    return n < MIN_BLOCK ? MIN_BLOCK : n > MAX_BLOCK ? MAX_BLOCK : n;
}

/* A NaN score beats the target, and a target's NaN score beats nothing: a broken model must not
 * look good. */
static int32_t find_rank(const float *score, int32_t n_corpus, int32_t target) {
    float own = score[target];
    int32_t n_above = 0;
    if (own == -INFINITY) return n_corpus + 1;
    for (int32_t i = 0; i < target; i++)
        n_above += !(score[i] < own);
    for (int32_t i = target + 1; i < n_corpus; i++)
        n_above += !(score[i] <= own);
    return n_above + 1;
}

static bool is_better(const float *score, int32_t a, int32_t b) {
    return score[a] > score[b] || (score[a] == score[b] && a < b);
}

/* A heap with the worst row on top: moves heap[i] down to its place. */
static void sink(const float *score, int32_t *heap, int32_t n, int32_t i) {
    int32_t row = heap[i];
    for (int32_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && is_better(score, heap[child], heap[child + 1])) child++;
        if (!is_better(score, row, heap[child])) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = row;
}

/* Rows with a NaN score are left out, like seen rows. */
static int32_t collect_best(const float *score, int32_t n_corpus, int32_t k, int32_t *heap) {
    int32_t n = 0;
    for (int32_t row = 0; row < n_corpus; row++) {
        if (!(score[row] > -INFINITY)) continue;
        if (n < k) {
            heap[n++] = row;
            for (int32_t i = n / 2; n == k && i-- > 0;)
                sink(score, heap, n, i);
        } else if (score[row] > score[heap[0]]) {
            heap[0] = row;
            sink(score, heap, n, 0);
        }
    }
    return n;
}

static void find_best(const float *score, int32_t n_corpus, int32_t k, int32_t *best,
                      float *best_score) {
    int32_t n = collect_best(score, n_corpus, k, best);
    for (int32_t i = n / 2; n < k && i-- > 0;)
        sink(score, best, n, i);
    for (int32_t left = n; left > 1; left--) {
        int32_t worst = best[0];
        best[0] = best[left - 1];
        sink(score, best, left - 1, 0);
        best[left - 1] = worst;
    }
    for (int32_t i = 0; i < k; i++) {
        if (i >= n) best[i] = -1;
        best_score[i] = i < n ? score[best[i]] : -INFINITY;
    }
}

static void rank_query(const rank_args *a, int64_t q, float *score) {
    if (a->seen_offsets != NULL)
        for (int32_t i = a->seen_offsets[q]; i < a->seen_offsets[q + 1]; i++)
            score[a->seen[i]] = -INFINITY;
    if (a->rank != NULL) a->rank[q] = find_rank(score, a->n_corpus, a->target[q]);
    if (a->k > 0) find_best(score, a->n_corpus, a->k, a->best + q * a->k, a->best_score + q * a->k);
}

/* Memory for the scores of a block's queries, and for packing the corpus where it is not packed. */
static status block_scores(const job *j, cpu_range queries, int worker, float **out) {
    const rank_args *a = j->a;
    matrix query = matrix_rows((const float *)a->query + queries.first * a->dim, a->dim);
    matrix corpus = matrix_transposed(matrix_rows(a->corpus, a->dim));
    size_t n_scores = (size_t)j->block_queries * (size_t)a->n_corpus;
    size_t n_room = j->corpus.data != NULL ? 0 : PRODUCT_ROOM;
    int64_t m = queries.end - queries.first;
    float *score;
    *out = NULL;
    TRY(cpu_scratch(j->be, worker, (n_room + n_scores) * sizeof *score, (void **)&score));
    *out = score + n_room;
    if (j->corpus.data != NULL)
        product_run(query, m, &j->corpus, 0, a->n_corpus, false, *out, a->n_corpus);
    else
        product_run_once(j->corpus.isa, query, corpus, m, a->dim, a->n_corpus, false, *out,
                         a->n_corpus, score);
    return OK;
}

static status rank_block(void *ctx, int64_t block, int worker) {
    const job *j = ctx;
    const rank_args *a = j->a;
    cpu_range range = cpu_chunk(block, j->block_queries, a->n_queries);
    float *score;
    TRY(block_scores(j, range, worker, &score));
    for (int64_t q = range.first; q < range.end; q++)
        rank_query(a, q, score + (q - range.first) * a->n_corpus);
    return OK;
}

/* A corpus that several blocks use is packed once, unless it is so large that the copy would take
 * too much memory; then each block packs it part by part, which costs an eighth of the speed. */
static status pack_corpus(backend *be, job *j) {
    int64_t n = product_packed_size(j->corpus.isa, j->corpus.k, j->corpus.n);
    void *memory;
    if (n > MAX_PACKED || j->a->n_queries <= j->block_queries) return OK;
    TRY(cpu_scratch(be, CPU_SHARED, (size_t)n * sizeof(float), &memory));
    j->corpus.data = memory;
    return product_pack(&j->corpus, matrix_transposed(matrix_rows(j->a->corpus, j->a->dim)),
                        be->workers);
}

/* An empty corpus has no row for any target, and a product of size 0 must not be called. */
static void rank_in_nothing(const rank_args *a) {
    for (int32_t q = 0; a->rank != NULL && q < a->n_queries; q++)
        a->rank[q] = 1;
    for (int64_t i = 0; i < (int64_t)a->n_queries * a->k; i++)
        a->best[i] = -1, a->best_score[i] = -INFINITY;
}

status cpu_rank(backend *be, const rank_args *a) {
    job j = {.be = be, .a = a, .block_queries = block_size(a->n_corpus)};
    if (a->n_corpus == 0) {
        rank_in_nothing(a);
        return OK;
    }
    if (a->rank == NULL) return a->k > 0 ? cpu_rank_best(be, a) : OK;
    j.corpus = (product_panels){.isa = product_choose(), .k = a->dim, .n = a->n_corpus};
    TRY(pack_corpus(be, &j));
    return pool_run(be->workers, cpu_n_chunks(a->n_queries, j.block_queries), rank_block, &j);
}
