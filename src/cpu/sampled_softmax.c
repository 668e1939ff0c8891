/* sampled_softmax, as ops.h states it.
 *
 * Three passes.  One normalises each row of the table once, into rows of whole vectors.  The next
 * takes chunks of queries: scores, softmax, and the gradient of the query while its rows are still
 * in the L1 cache; what each query must later add to the rows of the table (a "use") is stored
 * sorted by buckets of table rows, by a counting sort: one row each would be so many places to
 * write to that each write missed the L1 cache.  The last takes the buckets, whose sums stay in the
 * L1 cache, does their uses chunk by chunk, and passes the sums through the normalisation once.  A
 * row of the table sums its uses in the order of the queries, whatever the chunks, so the bits do
 * not depend on threads.  Bound by loads from the L2 cache: E floats a use, twice. */
#include "cpu/cpu.h"
#include "cpu/vec.h"

/* The loops of the sampled softmax over rows of a table, named by number: dot products with them,
 * sums of them, and sums into them.  Rows have `width` floats, whole vectors (vec_wide), at aligned
 * addresses.  A sum's order is the same wherever its row is: bits depend on the numbers alone. */
/* The loops below exist once for each number of vectors in a row, so that it is a constant and sums
 * stay in registers. */
#define INLINED static inline __attribute__((always_inline))
/* Compilers forget what p is made of: they would add the first column of a part to every address of
 * a loop again, a third of its instructions. */
#define FORGET(p) __asm__("" : "+r"(p))
#if defined(__AVX__) && !defined(__AVX512F__)
enum { MAX_VECTORS = 8 };
#define FOR_EACH_COUNT(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#else
enum { MAX_VECTORS = 16 };
#define FOR_EACH_COUNT(CASE)                                                                       \
    CASE(1)                                                                                        \
    CASE(2)                                                                                        \
    CASE(3)                                                                                        \
    CASE(4)                                                                                        \
    CASE(5)                                                                                        \
    CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14) CASE(15) CASE(16)
#endif

/* Wide rows go in parts of MAX_VECTORS: CASE(count) is the case of a part of `count` vectors whose
 * first column is c. */
#define FOR_EACH_PART(width, CASE)                                                                 \
    for (int64_t c = 0; c < (width); c += MAX_VECTORS * VEC_WIDE) {                                \
        int64_t left = ((width)-c) / VEC_WIDE;                                                     \
        switch (left < MAX_VECTORS ? left : MAX_VECTORS) { FOR_EACH_COUNT(CASE) }                  \
    }

/* dim rounded up to whole vectors. */
static int64_t loss_rows_width(int64_t dim) {
    return (dim + VEC_WIDE - 1) / VEC_WIDE * VEC_WIDE;
}

/* From zero: of x[0] * y[0] + x[1] * y[1] a compiler may fuse either product with the sum. */
INLINED vec_wide dot_lanes(int n_vectors, const vec_wide *x, const float *row) {
    const vec_wide *y = (const vec_wide *)row;
    vec_wide sum = {0};
    for (int v = 0; v < n_vectors; v++)
        sum = x[v] * y[v] + sum;
    return sum;
}

/* As many rows at a time as a vector has lanes: their sums over lanes then share instructions, and
 * enough loads are under way that to prefetch would only cost more of them. */
INLINED void dot_group(int n_vectors, const float *rows, int64_t width, const vec_wide *x,
                       const int32_t *row, bool adds, float *score) {
    vec_wide lanes[VEC_WIDE], old;
#pragma GCC unroll 16
    for (int t = 0; t < VEC_WIDE; t++)
        lanes[t] = dot_lanes(n_vectors, x, rows + row[t] * width);
    vec_wide sums = vec_wide_sums(lanes);
    memcpy(&old, score, sizeof old);
    if (adds) sums += old;
    memcpy(score, &sums, sizeof sums);
}

/* The rows after the last group: with any number of vectors, because a copy for each took half of
 * the time to compile this file. */
static __attribute__((noinline)) void dot_rest(int n_vectors, const float *rows, int64_t width,
                                               const float *q, const int32_t *row, int n, bool adds,
                                               float *score) {
    vec_wide x[MAX_VECTORS], lanes[VEC_WIDE] = {{0}}, sums;
    memcpy(x, q, (size_t)n_vectors * sizeof *x);
    for (int t = 0; t < n; t++)
        lanes[t] = dot_lanes(n_vectors, x, rows + row[t] * width);
    sums = vec_wide_sums(lanes);
    for (int t = 0; t < n; t++)
        score[t] = adds ? score[t] + sums[t] : sums[t];
}

INLINED void dot_part(int n_vectors, const float *rows, int64_t width, const float *q,
                      const int32_t *row, int64_t n, bool adds, float *score) {
    vec_wide x[MAX_VECTORS];
    int64_t i = 0;
    FORGET(rows);
    memcpy(x, q, (size_t)n_vectors * sizeof *x);
    for (; i + VEC_WIDE <= n; i += VEC_WIDE)
        dot_group(n_vectors, rows, width, x, row + i, adds, score + i);
    if (i < n) dot_rest(n_vectors, rows, width, q, row + i, (int)(n - i), adds, score + i);
}

/* score[i] = q . rows[row[i]] for i < n. */
static void loss_rows_dot(const float *rows, int64_t width, const float *q, const int32_t *row,
                          int64_t n, float *score) {
#define DOT_CASE(count)                                                                            \
    case count:                                                                                    \
        dot_part(count, rows + c, width, q + c, row, n, c > 0, score);                             \
        break;
    FOR_EACH_PART(width, DOT_CASE)
}

INLINED void sum_part(int n_vectors, const float *rows, int64_t width, const int32_t *row,
                      const float *weight, int64_t n, float *to) {
    vec_wide sum[MAX_VECTORS];
    FORGET(rows);
    for (int v = 0; v < n_vectors; v++)
        sum[v] = (vec_wide){0};
    for (int64_t i = 0; i < n; i++) {
        const vec_wide *x = (const vec_wide *)(rows + row[i] * width);
        for (int v = 0; v < n_vectors; v++)
            sum[v] = weight[i] * x[v] + sum[v];
    }
    for (int v = 0; v < n_vectors; v++)
        ((vec_wide *)to)[v] = sum[v];
}

/* sum = the sum of weight[i] rows[row[i]] in the order of i. */
static void loss_rows_sum(const float *rows, int64_t width, const int32_t *row, const float *weight,
                          int64_t n, float *sum) {
#define SUM_CASE(count)                                                                            \
    case count:                                                                                    \
        sum_part(count, rows + c, width, row, weight, n, sum + c);                                 \
        break;
    FOR_EACH_PART(width, SUM_CASE)
}

/* Add weight times row `query` of one matrix to row `row` of another: a "use", in one number, as it
 * is written to scattered places and then costs one store.  A table's rows are cut into buckets of
 * at most LOSS_ROWS_BUCKET, and `row` counts within a bucket. */
enum { LOSS_ROWS_BUCKET = 64 }; /* as many as bits of a mask */
typedef uint64_t loss_use;

static inline loss_use loss_use_make(uint32_t query, uint32_t row, float weight) {
    uint32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    return (uint64_t)bits << 32 | (query * LOSS_ROWS_BUCKET + row);
}

static inline uint32_t loss_use_query(loss_use use) {
    return (uint32_t)use / LOSS_ROWS_BUCKET;
}

static inline uint32_t loss_use_row(loss_use use) {
    return (uint32_t)use % LOSS_ROWS_BUCKET;
}

static inline float loss_use_weight(loss_use use) {
    uint32_t bits = (uint32_t)(use >> 32);
    float weight;
    memcpy(&weight, &bits, sizeof weight);
    return weight;
}

INLINED void spread_part(int n_vectors, const float *queries, int64_t width, const loss_use *uses,
                         int64_t n, float *sums) {
    FORGET(queries);
    FORGET(sums);
    for (int64_t i = 0; i < n; i++) {
        float weight = loss_use_weight(uses[i]);
        const vec_wide *x = (const vec_wide *)(queries + loss_use_query(uses[i]) * width);
        vec_wide *to = (vec_wide *)(sums + loss_use_row(uses[i]) * width);
        for (int v = 0; v < n_vectors; v++)
            to[v] = weight * x[v] + to[v];
    }
}

/* Does what the uses say, in their order: `sums` are the rows of the bucket. */
static void loss_rows_spread(const float *queries, int64_t width, const loss_use *uses, int64_t n,
                             float *sums) {
#define SPREAD_CASE(count)                                                                         \
    case count:                                                                                    \
        spread_part(count, queries + c, width, uses, n, sums + c);                                 \
        break;
    FOR_EACH_PART(width, SPREAD_CASE)
}

enum { MAX_CHUNK = 256, BLOCK_ROWS = 256 };
enum { MIN_BUCKET = 8, BUCKET_FLOATS = 4096 }; /* half of an L1 cache */
enum { GROUP_USES = 2048 }; /* sorted together: their weights stay in the L1 cache */

static const float MASKED = -50000.0f;

typedef struct job {
    backend *be;
    const sampled_softmax_args *a;
    int64_t width;       /* E, rounded up to whole vectors */
    int64_t n_uses;      /* of a query: R + 1 */
    int32_t bucket_rows; /* table rows of a bucket: a power of 2 */
    int64_t n_buckets;
    int64_t chunk_queries; /* queries of a chunk */
    int64_t n_chunks;
    int64_t group_queries; /* of a chunk, whose uses are sorted together */
    float *unit;           /* (V, width): normalised rows, zeros after E */
    float *scale;          /* (V): 1 / max(|row|, eps), negative where eps was larger */
    float *query;          /* (n, width): the queries, zeros after E */
    loss_use *uses;        /* (n, R + 1): uses, chunk by chunk, each chunk sorted by bucket; queries
                            * count from the chunk's first */
    int32_t *begin;     /* (n_chunks, n_buckets + 1): where a bucket's uses begin within a chunk */
    double *chunk_loss; /* (n_chunks) */
} job;

static int32_t rows_per_bucket(int64_t width) {
    int32_t rows = LOSS_ROWS_BUCKET;
    while (rows > MIN_BUCKET && rows * width > BUCKET_FLOATS)
        rows /= 2;
    return rows;
}

/* Chunks of n queries.  The index of a chunk has an entry for each bucket: chunks are long enough
 * that this is at most about twice the number of uses in the chunk.  Where the table allows it, the
 * number of chunks is a multiple of 4, so that few threads get equal shares of a short batch. */
static int64_t count_chunks(int64_t n, int64_t n_uses, int64_t n_buckets) {
    int64_t needed = n_buckets / (2 * n_uses);
    if (needed > MAX_CHUNK) return cpu_n_chunks(n, needed);
    int64_t n_chunks = cpu_n_chunks(n, MAX_CHUNK);
    return needed > MAX_CHUNK / 4 ? n_chunks : (n_chunks + 3) / 4 * 4;
}

/* Lays out the scratch memory, or with NULL only counts: *bytes. */
static job job_make(backend *be, const sampled_softmax_args *a, void *memory, size_t *bytes) {
    job j = {
        .be = be, .a = a, .width = loss_rows_width(a->dim), .n_uses = (int64_t)a->n_negatives + 1};
    cpu_carve carve = {memory, 0};
    j.bucket_rows = rows_per_bucket(j.width);
    j.n_buckets = cpu_n_chunks(a->n_rows, j.bucket_rows);
    j.n_chunks = count_chunks(a->n, j.n_uses, j.n_buckets);
    size_t n = (size_t)a->n, n_rows = (size_t)a->n_rows, width = (size_t)j.width;
    size_t n_begins = (size_t)(j.n_chunks * (j.n_buckets + 1));
    j.unit = cpu_take(&carve, n_rows * width, sizeof *j.unit);
    j.scale = cpu_take(&carve, n_rows, sizeof *j.scale);
    j.query = cpu_take(&carve, n * width, sizeof *j.query);
    j.uses = cpu_take(&carve, n * (size_t)j.n_uses, sizeof *j.uses);
    j.begin = cpu_take(&carve, n_begins, sizeof *j.begin);
    j.chunk_loss = cpu_take(&carve, (size_t)j.n_chunks, sizeof *j.chunk_loss);
    *bytes = carve.used;
    return j;
}

size_t cpu_sampled_softmax_scratch(backend *be, int64_t max_n, int32_t n_negatives, int32_t dim,
                                   int32_t n_rows) {
    size_t bytes;
    sampled_softmax_args a = {.n = max_n, .n_negatives = n_negatives, .dim = dim, .n_rows = n_rows};
    job_make(be, &a, NULL, &bytes);
    return bytes;
}

/* to = scale * from, followed by zeros. */
static void pad_row(float *to, int64_t width, const float *from, int32_t dim, float scale) {
    for (int32_t c = 0; c < dim; c++)
        to[c] = scale * from[c];
    for (int64_t c = dim; c < width; c++)
        to[c] = 0;
}

float cpu_unit_row(const float *row, int32_t dim, bool normalises, float eps, float *to,
                   int64_t width) {
    double squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int32_t c = 0; c < dim; c++)
        squares += (double)row[c] * row[c];
    double length = sqrt(squares);
    bool is_short = !(length > (double)eps);
    float scale = !normalises ? 1 : (float)(1 / (is_short ? (double)eps : length));
    pad_row(to, width, row, dim, scale);
    return is_short || !normalises ? -scale : scale;
}

/* (g - u (u . g)) / |row|, or g / eps below eps. */
void cpu_unit_gradient(const float *unit, float scale, int32_t dim, const float *g, float *grad) {
    double along = 0;
    int32_t n_along = scale > 0 ? dim : 0;
#pragma omp simd reduction(+ : along)
    for (int32_t c = 0; c < n_along; c++)
        along += (double)unit[c] * g[c];
    scale = fabsf(scale);
    for (int32_t c = 0; c < dim; c++)
        grad[c] += scale * (g[c] - (float)along * unit[c]);
}

static status normalise_block(void *ctx, int64_t block, int worker) {
    const job *j = ctx;
    const sampled_softmax_args *a = j->a;
    cpu_range range = cpu_chunk(block, BLOCK_ROWS, a->n_rows);
    for (int64_t v = range.first; v < range.end; v++)
        j->scale[v] = cpu_unit_row(a->table + v * a->dim, a->dim, a->normalises, a->eps,
                                   j->unit + v * j->width, j->width);
    return OK;
}

static int32_t row_name(const sampled_softmax_args *a, int32_t row) {
    return a->row_id != NULL ? a->row_id[row] : row;
}

/* The table rows of a query: its negatives, then its positive. */
static void list_rows(const sampled_softmax_args *a, int64_t m, int32_t *row) {
    memcpy(row, a->negative + m * a->n_negatives, (size_t)a->n_negatives * sizeof *row);
    row[a->n_negatives] = a->positive[m];
}

/* How many negatives equal the positive. */
static int32_t count_collisions(const sampled_softmax_args *a, const int32_t *row) {
    int32_t positive = row_name(a, row[a->n_negatives]), n = 0;
    for (int32_t r = 0; a->row_id == NULL && r < a->n_negatives; r++)
        n += row[r] == positive;
    for (int32_t r = 0; a->row_id != NULL && r < a->n_negatives; r++)
        n += a->row_id[row[r]] == positive;
    return n;
}

/* x[r] = value for each of them. */
static void set_collisions(const sampled_softmax_args *a, const int32_t *row, float value,
                           float *x) {
    int32_t positive = row_name(a, row[a->n_negatives]);
    for (int32_t r = 0; r < a->n_negatives; r++)
        if (row_name(a, row[r]) == positive) x[r] = value;
}

static float largest(const float *x, int64_t n) {
    int64_t whole = n / VEC * VEC;
    float max = x[n - 1];
    if (whole > 0) {
        vec lanes = vec_load(x);
        for (int64_t i = VEC; i < whole; i += VEC) {
            vec next = vec_load(x + i);
            lanes = vec_select((vec_int)(next > lanes), next, lanes);
        }
        for (int i = 0; i < VEC; i++)
            max = lanes[i] > max ? lanes[i] : max;
    }
    for (int64_t i = whole; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

static double sum_of(const float *x, int64_t n) {
    enum { SUMS = 8 };
    float sums[SUMS] = {0};
    double sum = 0;
    int64_t whole = n / SUMS * SUMS;
    for (int64_t i = 0; i < whole; i += SUMS) {
        for (int s = 0; s < SUMS; s++)
            sums[s] += x[i + s];
    }
    for (int s = 0; s < SUMS; s++)
        sum += (double)sums[s] + (whole + s < n ? (double)x[whole + s] : 0.0);
    return sum;
}

/* Computes the loss from the scores and replaces them by weights: weight_scale * d loss / d score.
 * The positive's derivative, p - 1, is computed as minus the sum of the others: exact also where p
 * rounds to 1. vec_exp is never 0, but a masked score's share must be. */
static double softmax(const sampled_softmax_args *a, const int32_t *row, float weight_scale,
                      float *score) {
    int32_t n = a->n_negatives, n_masked = count_collisions(a, row);
    if (n_masked > 0) set_collisions(a, row, MASKED, score);
    float max = largest(score, (int64_t)n + 1), positive = score[n] - max;
    for (int32_t r = 0; r < n; r++)
        score[r] = vec_exp(score[r] - max);
    if (n_masked > 0) set_collisions(a, row, expf(MASKED - max), score);
    double others = sum_of(score, n), total = others + exp((double)positive);
    float share = weight_scale * (float)(1 / total);
    if (n_masked > 0) set_collisions(a, row, 0, score);
    for (int32_t r = 0; r < n; r++)
        score[r] *= share;
    score[n] = -weight_scale * (float)(others / total);
    return log(total) - (double)positive;
}

/* The same for the binary losses. */
static double binary(const sampled_softmax_args *a, const int32_t *row, float weight_scale,
                     float *score) {
    int32_t n = a->n_negatives, n_masked = a->kind == PAIRS_BCE ? count_collisions(a, row) : 0;
    double loss = (double)a->beta * (double)pairs_softplus(-score[n]);
    float factor = weight_scale / (float)(n + 1);
    if (n_masked > 0 && n_masked == n) {
        memset(score, 0, (size_t)(n + 1) * sizeof *score);
        return 0;
    }
    if (n_masked > 0) set_collisions(a, row, -INFINITY, score);
    for (int32_t r = 0; r < n; r++) {
        loss += (double)pairs_softplus(score[r]);
        score[r] = factor * pairs_sigmoid(score[r]);
    }
    if (n_masked > 0) set_collisions(a, row, 0, score);
    score[n] = -factor * a->beta * pairs_sigmoid(-score[n]);
    return loss / (n + 1);
}

/* A worker's memory for the queries at hand, at most group_queries. */
typedef struct query_memory {
    int32_t *row;   /* (R + 1) of one query */
    float *weight;  /* (group_queries, R + 1): scores, then weights */
    int32_t *place; /* (R + 1) */
    float *sum;     /* (width) */
} query_memory;

static uint32_t bucket_bits(const job *j) {
    return (uint32_t)__builtin_ctz((unsigned)j->bucket_rows);
}

/* begin[b + 1] = where the uses of bucket b begin. sort_uses then advances it to their end, which
 * is where the uses of bucket b + 1 begin. */
static void count_uses(const job *j, cpu_range range, int32_t *begin) {
    const sampled_softmax_args *a = j->a;
    uint32_t bits = bucket_bits(j);
    memset(begin, 0, (size_t)(j->n_buckets + 1) * sizeof *begin);
    for (int64_t m = range.first; m < range.end; m++) {
        const int32_t *negative = a->negative + m * a->n_negatives;
        if (a->positive[m] < 0) continue;
        for (int32_t r = 0; r < a->n_negatives; r++)
            begin[((uint32_t)negative[r] >> bits) + 1]++;
        begin[((uint32_t)a->positive[m] >> bits) + 1]++;
    }
    int32_t sum = 0;
    for (int64_t b = 0; b < j->n_buckets; b++) {
        int32_t count = begin[b + 1];
        begin[b + 1] = sum;
        sum += count;
    }
}

/* Stores the uses of queries range.first .. range.end - 1 of the chunk that begins with query
 * `first`: of many queries at once, so that the lines written to stay in the L1 cache.  Two loops
 * for a query: the first finds the places, and prefetches them all at once; in one loop each store
 * would wait for its line, and each load for the address of the store before. */
static void sort_uses(const job *j, int64_t first, cpu_range range, const query_memory *q,
                      int32_t *begin, loss_use *sorted) {
    const sampled_softmax_args *a = j->a;
    uint32_t bits = bucket_bits(j), mask = (uint32_t)j->bucket_rows - 1;
    int32_t *row = q->row, *place = q->place;
    int64_t n = j->n_uses;
    for (int64_t m = range.first; m < range.end; m++) {
        const float *weight = q->weight + (m - range.first) * n;
        uint32_t query = (uint32_t)(m - first);
        if (a->positive[m] < 0) continue;
        list_rows(a, m, row);
        for (int64_t i = 0; i < n; i++) {
            place[i] = begin[((uint32_t)row[i] >> bits) + 1]++;
            __builtin_prefetch(&sorted[place[i]], 1);
        }
        for (int64_t i = 0; i < n; i++)
            sorted[place[i]] = loss_use_make(query, (uint32_t)row[i] & mask, weight[i]);
    }
}

/* With memory NULL it only counts bytes. */
static query_memory query_memory_make(const job *j, void *memory, size_t *bytes) {
    size_t n = (size_t)j->n_uses;
    cpu_carve carve = {memory, 0};
    query_memory q;
    q.row = cpu_take(&carve, n, sizeof *q.row);
    q.weight = cpu_take(&carve, n * (size_t)j->group_queries, sizeof *q.weight);
    q.place = cpu_take(&carve, n, sizeof *q.place);
    q.sum = cpu_take(&carve, (size_t)j->width, sizeof *q.sum);
    *bytes = carve.used;
    return q;
}

static status query_memory_take(const job *j, int worker, query_memory *q) {
    void *memory;
    size_t bytes;
    (void)query_memory_make(j, NULL, &bytes);
    TRY(cpu_scratch(j->be, worker, bytes, &memory));
    *q = query_memory_make(j, memory, &bytes);
    return OK;
}

/* The loss of query m; score becomes the weights of its uses. */
static double query_loss(const job *j, int64_t m, const query_memory *q, float *score) {
    const sampled_softmax_args *a = j->a;
    float *query = j->query + m * j->width;
    pad_row(query, j->width, (const float *)a->query + m * a->dim, a->dim, 1);
    list_rows(a, m, q->row);
    loss_rows_dot(j->unit, j->width, query, q->row, j->n_uses, score);
    for (int64_t i = 0; i < j->n_uses; i++)
        score[i] *= 1 / a->temperature;
    for (int64_t i = 0; a->log_q != NULL && i < j->n_uses - !a->corrects_positive; i++)
        score[i] -= a->log_q[q->row[i]];
    float weight_scale = *a->grad_scale / a->temperature;
    return (a->kind == PAIRS_SOFTMAX ? softmax : binary)(a, q->row, weight_scale, score);
}

/* A row that only fills the batch up. */
static void empty_row(const sampled_softmax_args *a, int64_t m) {
    if (a->row_loss != NULL) a->row_loss[m] = 0;
    if (a->dquery != NULL) memset((float *)a->dquery + m * a->dim, 0, (size_t)a->dim * 4);
}

/* The loss of query m, and the gradient of the query; its rows are in q->row then. */
static double query_run(const job *j, int64_t m, const query_memory *q, float *weight) {
    const sampled_softmax_args *a = j->a;
    double loss = query_loss(j, m, q, weight);
    if (a->row_loss != NULL) a->row_loss[m] = (float)loss;
    if (a->dquery == NULL) return loss;
    loss_rows_sum(j->unit, j->width, q->row, weight, j->n_uses, q->sum);
    memcpy((float *)a->dquery + m * a->dim, q->sum, (size_t)a->dim * sizeof *q->sum);
    return loss;
}

static status query_chunk(void *ctx, int64_t chunk, int worker) {
    const job *j = ctx;
    const sampled_softmax_args *a = j->a;
    cpu_range range = cpu_chunk(chunk, j->chunk_queries, a->n);
    int32_t *begin = j->begin + chunk * (j->n_buckets + 1);
    loss_use *sorted = j->uses + range.first * j->n_uses;
    query_memory q = {0};
    TRY(query_memory_take(j, worker, &q));
    if (a->dquery != NULL) count_uses(j, range, begin);
    j->chunk_loss[chunk] = 0;
    for (int64_t i = range.first; i < range.end; i += j->group_queries) {
        cpu_range group = {i, i + j->group_queries < range.end ? i + j->group_queries : range.end};
        for (int64_t m = group.first; m < group.end; m++) {
            if (a->positive[m] < 0)
                empty_row(a, m);
            else
                j->chunk_loss[chunk] +=
                    query_run(j, m, &q, q.weight + (m - group.first) * j->n_uses);
        }
        if (a->dquery != NULL) sort_uses(j, range.first, group, &q, begin, sorted);
    }
    return OK;
}

static status table_bucket(void *ctx, int64_t bucket, int worker) {
    const job *j = ctx;
    cpu_range range = cpu_chunk(bucket, j->bucket_rows, j->a->n_rows);
    int64_t n_rows = range.end - range.first;
    uint64_t used = 0; /* a bit for each row */
    float *sum;
    size_t bytes = (size_t)(n_rows * j->width) * sizeof *sum;
    TRY(cpu_scratch(j->be, worker, bytes, (void **)&sum));
    memset(sum, 0, bytes);
    for (int64_t chunk = 0; chunk < j->n_chunks; chunk++) {
        const int32_t *begin = j->begin + chunk * (j->n_buckets + 1) + bucket;
        const loss_use *uses = j->uses + chunk * j->chunk_queries * j->n_uses + begin[0];
        int64_t n = begin[1] - begin[0];
        loss_rows_spread(j->query + chunk * j->chunk_queries * j->width, j->width, uses, n, sum);
        for (int64_t i = 0; i < n; i++)
            used |= (uint64_t)1 << loss_use_row(uses[i]);
    }
    for (int64_t i = 0; i < n_rows; i++) {
        int64_t v = range.first + i;
        if (used >> i & 1)
            cpu_unit_gradient(j->unit + v * j->width, j->scale[v], j->a->dim, sum + i * j->width,
                              j->a->dtable + v * j->a->dim);
    }
    return OK;
}

static job job_begin(backend *be, const sampled_softmax_args *a) {
    size_t bytes;
    job j = job_make(be, a, a->scratch, &bytes);
    j.chunk_queries = cpu_n_chunks(a->n, j.n_chunks);
    j.n_chunks = cpu_n_chunks(a->n, j.chunk_queries);
    j.group_queries = j.n_uses < GROUP_USES ? GROUP_USES / j.n_uses : 1;
    return j;
}

status cpu_sampled_softmax(backend *be, const sampled_softmax_args *a) {
    if (a->n == 0) return OK;
    job j = job_begin(be, a);
    TRY(pool_run(be->workers, cpu_n_chunks(a->n_rows, BLOCK_ROWS), normalise_block, &j));
    TRY(pool_run(be->workers, j.n_chunks, query_chunk, &j));
    for (int64_t i = 0; i < j.n_chunks; i++)
        *a->loss += j.chunk_loss[i];
    if (a->dquery == NULL) return OK;
    return pool_run(be->workers, j.n_buckets, table_bucket, &j);
}
