/* rank, as ops.h states it.
 *
 * The corpus is read once for up to 64 queries, and nothing of the size of the corpus is written: a
 * chunk of rows is multiplied by the packed queries (corpus rows on the left, as they are), and its
 * scores stay in the L2 cache, where each thread keeps a heap of the best k of each query and
 * counts the rows that beat its target.  A few queries would leave most of a panel empty: they are
 * on the left instead, and the chunk is packed.  A score has the same bits both ways and as the
 * score of a target alone (product.h); a count is a sum, and the k best by score and row number are
 * a unique list: so the cut and the threads change nothing.  Seen rows get -infinity. */
#include "cpu/cpu.h"
#include "cpu/product.h"
#include "cpu/vec.h"

enum { CHUNK_SCORES = 1 << 16, MAX_QUERIES = 64, MAX_ROWS = 1 << 14, MIN_ROWS = 1 << 8 };
enum { FEW = 8, GROUP = 32, VECTORS = 4 };
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
    bool is_few;            /* and no target; scores are (n, stride), else (n_rows, stride) */
    int64_t stride;         /* n_rows, or n rounded up to vectors */
    product_panels queries; /* (dim, n) */
    found *heaps;           /* (threads, n, k): the worst on top */
    int32_t *counts;        /* (threads, n): rows in them */
    int32_t *above;         /* (threads, n): rows that beat the target */
    float *own; /* (MAX_QUERIES): the target's score, -infinity if it was seen; NULL: no target */
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
    return j->is_few ? q * j->stride + row : row * j->stride + q;
}

/* The first of query q's seen rows that is not before `row`. */
static int32_t first_seen(const rank_args *a, int32_t q, int64_t row) {
    int32_t low = a->seen_offsets[q], high = a->seen_offsets[q + 1];
    BISECT(low, high, a->seen[middle] < row);
    return low;
}

static void hide_seen(const best_job *j, cpu_range rows, float *score) {
    const rank_args *a = j->a;
    for (int32_t q = 0; q < j->n && a->seen_offsets != NULL; q++) {
        int32_t end = a->seen_offsets[j->first + q + 1];
        for (int32_t i = first_seen(a, j->first + q, rows.first); i < end && a->seen[i] < rows.end;
             i++)
            score[score_at(j, a->seen[i] - rows.first, q)] = -INFINITY;
    }
}

/* Rows whose scores are below, and not above, those of the targets of n vectors of queries.  It is
 * inlined for a constant n, so that all counts stay in registers. */
static inline void count_vectors(const float *score, int64_t n_rows, int64_t stride, int n,
                                 const float *target, int32_t *below, int32_t *not_above) {
    vec own[VECTORS];
    vec_int lower[VECTORS] = {{0}}, no_higher[VECTORS] = {{0}};
    memcpy(own, target, (size_t)n * sizeof *own);
    for (int64_t r = 0; r < n_rows; r++, score += stride)
        for (int v = 0; v < n; v++) {
            vec_any s = *(const vec_any *)(score + v * VEC);
            lower[v] -= s < own[v]; /* a comparison that holds is -1 */
            no_higher[v] -= s <= own[v];
        }
    memcpy(below, lower, (size_t)n * sizeof *lower);
    memcpy(not_above, no_higher, (size_t)n * sizeof *no_higher);
}

/* The rows that beat a target: those before it with at least its score, those after it with a
 * higher one.  A NaN score beats the target, and a target's NaN score beats nothing: a broken model
 * must not look good. */
static int32_t count_tied(const best_job *j, cpu_range rows, const float *score, int32_t q) {
    int64_t target = j->a->target[j->first + q];
    int32_t n = 0;
    for (int64_t r = rows.first; r < rows.end; r++) {
        float own = score[score_at(j, r - rows.first, q)];
        n += r < target ? !(own < j->own[q]) : r > target && !(own <= j->own[q]);
    }
    return n;
}

/* Which side of its target a chunk is on decides about equal scores; only the target's own chunk
 * may be on both. */
static void add_above(const best_job *j, cpu_range rows, const float *score, int32_t q,
                      int32_t below, int32_t not_above, int worker) {
    int64_t target = j->a->target[j->first + q];
    int32_t n_rows = (int32_t)(rows.end - rows.first), n = n_rows - not_above;
    if (target >= rows.end) n = n_rows - below;
    if (target >= rows.first && target < rows.end && not_above - below != 1)
        n = count_tied(j, rows, score, q);
    j->above[(int64_t)worker * j->n + q] += n;
}

static void count_above(const best_job *j, cpu_range rows, const float *score, int worker) {
    int64_t n_rows = rows.end - rows.first;
    int32_t below[MAX_QUERIES], not_above[MAX_QUERIES], q = 0;
    if (j->own == NULL) return;
    for (; q + VECTORS * VEC <= j->stride; q += VECTORS * VEC)
        count_vectors(score + q, n_rows, j->stride, VECTORS, j->own + q, below + q, not_above + q);
    for (; q < j->n; q += VEC)
        count_vectors(score + q, n_rows, j->stride, 1, j->own + q, below + q, not_above + q);
    for (q = 0; q < j->n; q++)
        add_above(j, rows, score, q, below[q], not_above[q], worker);
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
    for (int64_t r = rows.first; r < rows.end; r++, score += j->stride) {
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
        const float *score = scores + q * j->stride;
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
    one.stride = RANK_INT8_GROUP;
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
    size_t n = PRODUCT_ROOM + (size_t)(j->stride * j->n);
    matrix query = matrix_rows((const float *)a->query + (int64_t)j->first * a->dim, a->dim);
    matrix corpus = matrix_rows(a->corpus + rows.first * a->dim, a->dim);
    TRY(cpu_scratch(j->be, worker, n * sizeof *room, (void **)&room));
    score = room + PRODUCT_ROOM;
    product_run_once(j->queries.isa, query, matrix_transposed(corpus), j->n, a->dim,
                     rows.end - rows.first, false, score, j->stride, room);
    hide_seen(j, rows, score);
    collect_few(j, rows, score, worker);
    return OK;
}

static status search_chunk(void *ctx, int64_t chunk, int worker) {
    const best_job *j = ctx;
    const rank_args *a = j->a;
    cpu_range rows = cpu_chunk(chunk, j->n_rows, a->n_corpus);
    float *score;
    if (j->n <= FEW_INT8 && a->corpus_int8 != NULL && j->own == NULL)
        return search_int8(j, rows, worker);
    if (j->is_few) return search_few(j, rows, worker);
    TRY(cpu_scratch(j->be, worker, (size_t)(j->n_rows * j->stride) * sizeof *score,
                    (void **)&score));
    product_run(matrix_rows(a->corpus + rows.first * a->dim, a->dim), rows.end - rows.first,
                &j->queries, 0, j->n, false, score, j->stride);
    hide_seen(j, rows, score);
    count_above(j, rows, score, worker);
    if (a->k > 0) collect(j, rows, score, worker);
    return OK;
}

/* All threads' rows of a query into the first one's heap, then out of it, the worst first. */
static void finish_best(const best_job *j, int n_threads, int32_t q) {
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

static void finish_rank(const best_job *j, int n_threads, int32_t q) {
    int32_t n = 0;
    for (int t = 0; t < n_threads; t++)
        n += j->above[(int64_t)t * j->n + q];
    j->a->rank[j->first + q] = j->own[q] == -INFINITY ? j->a->n_corpus + 1 : n + 1;
}

/* The scores of the targets; `room` is for PRODUCT_ROOM floats. */
static void score_targets(const best_job *j, float *room) {
    const rank_args *a = j->a;
    for (int32_t q = 0; q < j->n; q++) {
        int32_t query = j->first + q, target = a->target[query];
        matrix left = matrix_rows((const float *)a->query + (int64_t)query * a->dim, a->dim);
        matrix right = matrix_rows(a->corpus + (int64_t)target * a->dim, a->dim);
        product_run_once(j->queries.isa, left, matrix_transposed(right), 1, a->dim, 1, false,
                         &j->own[q], 1, room);
        if (a->seen_offsets == NULL) continue;
        int32_t i = first_seen(a, query, target);
        if (i < a->seen_offsets[query + 1] && a->seen[i] == target) j->own[q] = -INFINITY;
    }
}

static size_t aligned(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* One pass over the corpus. */
static status search(best_job *j, int n_threads) {
    const rank_args *a = j->a;
    size_t n_packed = (size_t)product_packed_size(j->queries.isa, a->dim, j->n);
    if (n_packed < PRODUCT_ROOM && a->rank != NULL) n_packed = PRODUCT_ROOM;
    size_t packed = aligned(n_packed * sizeof(float)), n = (size_t)n_threads * (size_t)j->n;
    size_t heaps = aligned(n * (size_t)a->k * sizeof *j->heaps);
    char *memory;
    TRY(cpu_scratch(j->be, CPU_SHARED,
                    packed + heaps + 2 * n * sizeof *j->counts + MAX_QUERIES * sizeof *j->own,
                    (void **)&memory));
    j->queries.data = (float *)memory;
    j->heaps = (found *)(memory + packed);
    j->counts = (int32_t *)(memory + packed + heaps);
    j->above = j->counts + n;
    memset(j->counts, 0, 2 * n * sizeof *j->counts);
    if (a->rank != NULL) {
        j->own = (float *)(j->above + n);
        score_targets(j, j->queries.data);
    }
    matrix queries = matrix_rows((const float *)a->query + (int64_t)j->first * a->dim, a->dim);
    TRY(product_pack(&j->queries, matrix_transposed(queries), j->be->workers));
    TRY(pool_run(j->be->workers, cpu_n_chunks(a->n_corpus, j->n_rows), search_chunk, j));
    for (int32_t q = 0; q < j->n && a->rank != NULL; q++)
        finish_rank(j, n_threads, q);
    for (int32_t q = 0; q < j->n && a->k > 0; q++)
        finish_best(j, n_threads, q);
    return OK;
}

status cpu_rank(backend *be, const rank_args *a) {
    int n_threads = be->workers != NULL ? pool_n_threads(be->workers) : 1;
    int32_t n_passes = (a->n_queries + MAX_QUERIES - 1) / MAX_QUERIES;
    if (a->n_corpus == 0) return rank_in_nothing(a);
    if (n_passes == 0 || (a->rank == NULL && a->k == 0)) return OK;
    int32_t size = (a->n_queries + n_passes - 1) / n_passes;
    for (int32_t first = 0; first < a->n_queries; first += size) {
        int32_t left = a->n_queries - first, n = left < size ? left : size;
        int64_t n_rows = CHUNK_SCORES / n, share = a->n_corpus / n_threads + 1;
        if (n_rows > MAX_ROWS) n_rows = MAX_ROWS;
        if (n_rows > share) n_rows = share;
        best_job j = {
            .be = be, .a = a, .first = first, .n = n, .is_few = n <= FEW && a->rank == NULL};
        j.n_rows = (n_rows + MIN_ROWS - 1) / MIN_ROWS * MIN_ROWS; /* whole groups of 8-bit rows */
        j.stride = j.is_few ? j.n_rows : (n + VEC - 1) / VEC * VEC;
        j.queries = (product_panels){.isa = product_choose(), .k = a->dim, .n = n};
        TRY(search(&j, n_threads));
    }
    return OK;
}
