/* rank, as ops.h states it.
 *
 * One matrix product scores a block of queries against the whole corpus, so that the target's score
 * and the scores it is compared with come from the same arithmetic.  A block's scores (256 KiB)
 * stay in the L2 cache beside the packed corpus up to some 4000 rows; beyond, a block still shares
 * the corpus among 16 queries, whose scores take 1 MiB up to 16384 rows, or 8.  Seen rows get
 * -infinity.  Where no target is ranked, rank_best finds the best rows without storing the
 * scores. */
#include <math.h>
#include <string.h>

#include "base/sort.h"
#include "cpu/cpu.h"
#include "cpu/product.h"

/* The k best rows where no target is ranked.  The corpus is read once for up to 64 queries, and
 * nothing of the size of the corpus is written: a chunk of rows is multiplied by the packed queries
 * (corpus rows on the left, as they are), its scores stay in the L2 cache, and each thread keeps a
 * heap of the best k of each query.  A few queries would leave most of a panel empty: they are on
 * the left instead, and the chunk is packed. A score has the same bits both ways (product.h), and
 * the k best by score and row number are a unique list, so the cut and the threads change nothing.
 */
enum { CHUNK_SCORES = 1 << 18, MAX_QUERIES = 64, MAX_ROWS = 1 << 14, MIN_ROWS = 1 << 8 };
enum { FEW = 8, GROUP = 32 };
enum {
    FEW_INT8 = 4
}; /* for more queries, converting 8-bit numbers costs more than reading float32 */

/* A row and its score. */
typedef struct found {
    float score;
    int32_t row;
} found;

typedef struct best_job {
    backend *be;
    const rank_args *a;
    int32_t first, n;       /* queries of this pass */
    int64_t n_rows;         /* of a chunk */
    bool is_few;            /* scores are (n, n_rows), else (n_rows, n) */
    product_panels queries; /* (dim, n) */
    found *heaps;           /* (threads, n, k): the worst on top */
    int32_t *counts;        /* (threads, n) */
} best_job;

static bool is_better(found a, found b) {
    return a.score > b.score || (a.score == b.score && a.row < b.row);
}

static void sink(found *heap, int32_t n, int32_t i) {
    found own = heap[i];
    for (int32_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && is_better(heap[child], heap[child + 1])) child++;
        if (!is_better(own, heap[child])) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = own;
}

static void add(found *heap, int32_t *n, int32_t k, found f) {
    if (*n < k) {
        heap[(*n)++] = f;
        for (int32_t i = *n / 2; *n == k && i-- > 0;)
            sink(heap, k, i);
    } else if (is_better(f, heap[0])) {
        heap[0] = f;
        sink(heap, k, 0);
    }
}

/* The score that a row must reach; -infinity never does, nor does NaN. */
static float limit_of(const found *heap, int32_t n, int32_t k) {
    return n < k ? -INFINITY : heap[0].score;
}

/* The rows of a heap, best first; -1 where there are fewer than k. */
static void empty_heap(found *heap, int32_t n, int32_t k, int32_t *best, float *score) {
    for (int32_t i = n / 2; n < k && i-- > 0;)
        sink(heap, n, i);
    for (int32_t i = n; i < k; i++)
        best[i] = -1, score[i] = -INFINITY;
    for (; n > 0; n--) {
        best[n - 1] = heap[0].row;
        score[n - 1] = heap[0].score;
        heap[0] = heap[n - 1];
        sink(heap, n - 1, 0);
    }
}

static int64_t score_at(const best_job *j, int64_t row, int32_t q) {
    return j->is_few ? q * j->n_rows + row : row * j->n + q;
}

static void hide_seen(const best_job *j, cpu_range rows, float *score) {
    const rank_args *a = j->a;
    for (int32_t q = 0; q < j->n && a->seen_offsets != NULL; q++) {
        int32_t low = a->seen_offsets[j->first + q], end = a->seen_offsets[j->first + q + 1];
        int32_t high = end;
        BISECT(low, high, a->seen[middle] < rows.first);
        for (; low < end && a->seen[low] < rows.end; low++)
            score[score_at(j, a->seen[low] - rows.first, q)] = -INFINITY;
    }
}

/* Asked of rows that are good enough alone: few are. */
static bool may_find(const best_job *j, int32_t q, int64_t row) {
    const uint64_t *bits = j->a->allowed != NULL ? j->a->allowed[j->first + q] : NULL;
    return bits == NULL || bits[row / 64] >> row % 64 & 1;
}

/* Most rows are no query's: one comparison of vectors says so. */
static void collect(const best_job *j, cpu_range rows, const float *score, int worker) {
    int32_t n = j->n, k = j->a->k, *counts = j->counts + (int64_t)worker * n;
    found *heaps = j->heaps + (int64_t)worker * n * k;
    float limit[MAX_QUERIES];
    for (int32_t q = 0; q < n; q++)
        limit[q] = limit_of(heaps + (int64_t)q * k, counts[q], k);
    for (int64_t r = rows.first; r < rows.end; r++, score += n) {
        int is_any = 0;
        for (int32_t q = 0; q < n; q++)
            is_any |= score[q] >= limit[q];
        for (int32_t q = 0; q < n && is_any; q++) {
            if (!(score[q] >= limit[q]) || score[q] == -INFINITY || !may_find(j, q, r)) continue;
            found *heap = heaps + (int64_t)q * k;
            add(heap, &counts[q], k, (found){score[q], (int32_t)r});
            limit[q] = limit_of(heap, counts[q], k);
        }
    }
}

/* The same where a query's scores are after one another: GROUP rows at a time. */
static void collect_few(const best_job *j, cpu_range rows, const float *scores, int worker) {
    int32_t k = j->a->k;
    int64_t n_rows = rows.end - rows.first;
    for (int32_t q = 0; q < j->n; q++) {
        int64_t place = (int64_t)worker * j->n + q;
        int32_t *count = &j->counts[place];
        found *heap = j->heaps + place * k;
        const float *score = scores + q * j->n_rows;
        float limit = limit_of(heap, *count, k);
        for (int64_t first = 0; first < n_rows; first += GROUP) {
            int64_t end = n_rows - first < GROUP ? n_rows : first + GROUP;
            int is_any = 0;
            for (int64_t r = first; r < end; r++)
                is_any |= score[r] >= limit;
            for (int64_t r = first; r < end && is_any; r++) {
                if (!(score[r] >= limit) || score[r] == -INFINITY ||
                    !may_find(j, q, rows.first + r))
                    continue;
                add(heap, count, k, (found){score[r], (int32_t)(rows.first + r)});
                limit = limit_of(heap, *count, k);
            }
        }
    }
}

/* Scores of a group's rows by their 8-bit numbers, but for the scale: from those, or from a copy of
 * them in float32 that several queries share. */
static void score_group(const int8_t *group, const float *query, int32_t dim, float *out) {
    float sum[RANK_INT8_GROUP] = {0};
    for (int32_t d = 0; d < dim; d++)
        for (int32_t r = 0; r < RANK_INT8_GROUP; r++)
            sum[r] += query[d] * (float)group[(int64_t)d * RANK_INT8_GROUP + r];
    memcpy(out, sum, sizeof sum);
}

static void score_copy(const float *group, const float *query, int32_t dim, float *out) {
    float sum[RANK_INT8_GROUP] = {0};
    for (int32_t d = 0; d < dim; d++)
        for (int32_t r = 0; r < RANK_INT8_GROUP; r++)
            sum[r] += query[d] * group[(int64_t)d * RANK_INT8_GROUP + r];
    memcpy(out, sum, sizeof sum);
}

/* Whether a row of the group may be one of the best: NaN may. */
static int may_be_best(const rank_int8 *c, int64_t group, const float *sum, double length,
                       float limit) {
    const float *scale = c->scale + group * RANK_INT8_GROUP;
    const float *error = c->error + group * RANK_INT8_GROUP;
    float size = (float)length;
    int is_any = 0;
    for (int32_t r = 0; r < RANK_INT8_GROUP; r++)
        is_any |= !(sum[r] * scale[r] + size * error[r] < limit);
    return is_any;
}

/* 32 bits for the rows of a group: which may be found at all. */
static uint32_t allowed_of(const rank_args *a, int32_t q, int64_t group) {
    if (a->allowed == NULL || a->allowed[q] == NULL) return UINT32_MAX;
    return (uint32_t)(a->allowed[q][group / 2] >> (group % 2 * 32));
}

static double length_of(const float *x, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return 1.0001 * sqrt(sum);
}

/* A group that may hold one of a query's best: its float32 rows. */
static void search_group(const best_job *j, cpu_range rows, int32_t q, int worker, float *room) {
    const rank_args *a = j->a;
    float score[RANK_INT8_GROUP];
    best_job one = *j; /* this query alone, these rows */
    one.first = j->first + q;
    one.n = 1;
    one.n_rows = RANK_INT8_GROUP;
    one.heaps = j->heaps + ((int64_t)worker * j->n + q) * a->k;
    one.counts = j->counts + (int64_t)worker * j->n + q;
    matrix query = matrix_rows((const float *)a->query + (int64_t)one.first * a->dim, a->dim);
    matrix corpus = matrix_rows(a->corpus + rows.first * a->dim, a->dim);
    product_run_once(j->queries.isa, query, matrix_transposed(corpus), 1, a->dim,
                     rows.end - rows.first, false, score, RANK_INT8_GROUP, room);
    hide_seen(&one, rows, score);
    collect_few(&one, rows, score, 0);
}

/* The 8-bit rows of a chunk, group by group. */
static status search_int8(const best_job *j, cpu_range rows, int worker) {
    const rank_args *a = j->a;
    int64_t size = (int64_t)RANK_INT8_GROUP * a->dim;
    float *room, *copy;
    double length[FEW_INT8];
    TRY(cpu_scratch(j->be, worker, (PRODUCT_ROOM + (size_t)size) * sizeof *room, (void **)&room));
    copy = room + PRODUCT_ROOM;
    for (int32_t q = 0; q < j->n; q++)
        length[q] = length_of((const float *)a->query + (int64_t)(j->first + q) * a->dim, a->dim);
    for (int64_t first = rows.first; first < rows.end; first += RANK_INT8_GROUP) {
        int64_t group = first / RANK_INT8_GROUP, left = rows.end - first;
        const int8_t *small = a->corpus_int8->rows + group * size;
        cpu_range own = {first, first + (left < RANK_INT8_GROUP ? left : RANK_INT8_GROUP)};
        for (int64_t i = 0; i < size && j->n > 1; i++)
            copy[i] = (float)small[i];
        for (int32_t q = 0; q < j->n; q++) {
            int64_t place = (int64_t)worker * j->n + q;
            const float *query = (const float *)a->query + (int64_t)(j->first + q) * a->dim;
            float sum[RANK_INT8_GROUP];
            if (allowed_of(a, j->first + q, group) == 0) continue;
            if (j->n > 1)
                score_copy(copy, query, a->dim, sum);
            else
                score_group(small, query, a->dim, sum);
            float limit = limit_of(j->heaps + place * a->k, j->counts[place], a->k);
            if (may_be_best(a->corpus_int8, group, sum, length[q], limit))
                search_group(j, own, q, worker, room);
        }
    }
    return OK;
}

static status search_few(const best_job *j, cpu_range rows, int worker) {
    const rank_args *a = j->a;
    float *room, *score;
    size_t n = PRODUCT_ROOM + (size_t)(j->n_rows * j->n);
    matrix query = matrix_rows((const float *)a->query + (int64_t)j->first * a->dim, a->dim);
    matrix corpus = matrix_rows(a->corpus + rows.first * a->dim, a->dim);
    TRY(cpu_scratch(j->be, worker, n * sizeof *room, (void **)&room));
    score = room + PRODUCT_ROOM;
    product_run_once(j->queries.isa, query, matrix_transposed(corpus), j->n, a->dim,
                     rows.end - rows.first, false, score, j->n_rows, room);
    hide_seen(j, rows, score);
    collect_few(j, rows, score, worker);
    return OK;
}

static status search_chunk(void *ctx, int64_t chunk, int worker) {
    const best_job *j = ctx;
    const rank_args *a = j->a;
    cpu_range rows = cpu_chunk(chunk, j->n_rows, a->n_corpus);
    float *score;
    if (j->n <= FEW_INT8 && a->corpus_int8 != NULL) return search_int8(j, rows, worker);
    if (j->is_few) return search_few(j, rows, worker);
    TRY(cpu_scratch(j->be, worker, (size_t)(j->n_rows * j->n) * sizeof *score, (void **)&score));
    product_run(matrix_rows(a->corpus + rows.first * a->dim, a->dim), rows.end - rows.first,
                &j->queries, 0, j->n, false, score, j->n);
    hide_seen(j, rows, score);
    collect(j, rows, score, worker);
    return OK;
}

/* All threads' rows of a query into the first one's heap, then out of it, the worst first. */
static void finish(const best_job *j, int n_threads, int32_t q) {
    const rank_args *a = j->a;
    int32_t k = a->k, n = j->counts[q], *best = a->best + (int64_t)(j->first + q) * k;
    float *score = a->best_score + (int64_t)(j->first + q) * k;
    found *heap = j->heaps + (int64_t)q * k;
    for (int t = 1; t < n_threads; t++) {
        const found *other = j->heaps + ((int64_t)t * j->n + q) * k;
        for (int32_t i = 0; i < j->counts[(int64_t)t * j->n + q]; i++)
            add(heap, &n, k, other[i]);
    }
    empty_heap(heap, n, k, best, score);
}

static size_t aligned(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* One pass over the corpus. */
static status search(best_job *j) {
    const rank_args *a = j->a;
    int n_threads = j->be->workers != NULL ? pool_n_threads(j->be->workers) : 1;
    size_t n_packed = (size_t)product_packed_size(j->queries.isa, a->dim, j->n);
    size_t packed = aligned(n_packed * sizeof(float)), n = (size_t)n_threads * (size_t)j->n;
    size_t heaps = aligned(n * (size_t)a->k * sizeof *j->heaps);
    char *memory;
    TRY(cpu_scratch(j->be, CPU_SHARED, packed + heaps + n * sizeof *j->counts, (void **)&memory));
    j->queries.data = (float *)memory;
    j->heaps = (found *)(memory + packed);
    j->counts = (int32_t *)(memory + packed + heaps);
    memset(j->counts, 0, n * sizeof *j->counts);
    matrix queries = matrix_rows((const float *)a->query + (int64_t)j->first * a->dim, a->dim);
    TRY(product_pack(&j->queries, matrix_transposed(queries), j->be->workers));
    TRY(pool_run(j->be->workers, cpu_n_chunks(a->n_corpus, j->n_rows), search_chunk, j));
    for (int32_t q = 0; q < j->n; q++)
        finish(j, n_threads, q);
    return OK;
}

static status rank_best(backend *be, const rank_args *a) {
    for (int32_t first = 0; first < a->n_queries; first += MAX_QUERIES) {
        int32_t left = a->n_queries - first, n = left < MAX_QUERIES ? left : MAX_QUERIES;
        int64_t n_rows = CHUNK_SCORES / n;
        best_job j = {.be = be, .a = a, .first = first, .n = n, .is_few = n <= FEW};
        j.n_rows = n_rows > MAX_ROWS ? MAX_ROWS : n_rows < MIN_ROWS ? MIN_ROWS : n_rows;
        j.queries = (product_panels){.isa = product_choose(), .k = a->dim, .n = n};
        TRY(search(&j));
    }
    return OK;
}

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

/* Rows with a NaN score are left out, like seen rows. */
static void find_best(const float *score, int32_t n_corpus, int32_t k, found *heap, int32_t *best,
                      float *best_score) {
    int32_t n = 0;
    for (int32_t row = 0; row < n_corpus; row++)
        if (score[row] > limit_of(heap, n, k)) add(heap, &n, k, (found){score[row], row});
    empty_heap(heap, n, k, best, best_score);
}

static void rank_query(const rank_args *a, int64_t q, float *score, found *heap) {
    if (a->seen_offsets != NULL)
        for (int32_t i = a->seen_offsets[q]; i < a->seen_offsets[q + 1]; i++)
            score[a->seen[i]] = -INFINITY;
    if (a->rank != NULL) a->rank[q] = find_rank(score, a->n_corpus, a->target[q]);
    if (a->k > 0)
        find_best(score, a->n_corpus, a->k, heap, a->best + q * a->k, a->best_score + q * a->k);
}

/* The scores of a block's queries; `heap` gets room for k rows.  Their memory has room for packing
 * the corpus, too, where it is not packed. */
static status block_scores(const job *j, cpu_range queries, int worker, float **out, found **heap) {
    const rank_args *a = j->a;
    matrix query = matrix_rows((const float *)a->query + queries.first * a->dim, a->dim);
    matrix corpus = matrix_transposed(matrix_rows(a->corpus, a->dim));
    size_t n_scores = (size_t)j->block_queries * (size_t)a->n_corpus;
    size_t n_room = j->corpus.data != NULL ? 0 : PRODUCT_ROOM;
    int64_t m = queries.end - queries.first;
    size_t n_heap = (size_t)a->k * sizeof **heap / sizeof(float);
    float *score;
    *out = NULL, *heap = NULL;
    TRY(cpu_scratch(j->be, worker, (n_room + n_scores + n_heap) * sizeof *score, (void **)&score));
    *out = score + n_room;
    *heap = (found *)(*out + n_scores);
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
    found *heap;
    TRY(block_scores(j, range, worker, &score, &heap));
    for (int64_t q = range.first; q < range.end; q++)
        rank_query(a, q, score + (q - range.first) * a->n_corpus, heap);
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
    if (a->rank == NULL) return a->k > 0 ? rank_best(be, a) : OK;
    j.corpus = (product_panels){.isa = product_choose(), .k = a->dim, .n = a->n_corpus};
    TRY(pack_corpus(be, &j));
    return pool_run(be->workers, cpu_n_chunks(a->n_queries, j.block_queries), rank_block, &j);
}
