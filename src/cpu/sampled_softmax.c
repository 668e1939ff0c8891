/* sampled_softmax, as ops.h states it.
 *
 * Three passes.  One normalises each row of the table once, into rows of whole vectors.  The next
 * takes chunks of queries: scores, softmax, and the gradient of the query while its rows are still
 * in the L1 cache; what each query must later add to the rows of the table (a query number and a
 * weight: a "use") is stored sorted by table row, by a counting sort.  The last takes blocks of
 * table rows, adds up their uses chunk by chunk, and passes the sum through the normalisation once.
 * A row of the table sums its uses in the order of the queries, whatever the chunks, so the bits do
 * not depend on threads.  Bound by loads from the L2 cache: E floats a use, twice. */
#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/vec.h"

enum { MAX_CHUNK = 256, BLOCK_ROWS = 256, ALIGNMENT = 64 };
enum { AHEAD = 8, LINE_FLOATS = 16 }; /* rows to prefetch ahead; floats in a cache line */
enum { ROW_MARGIN = AHEAD + 4 };      /* row numbers read after a query's last */

static const float MASKED = -50000.0f;

/* Add `weight` times row `row` of some matrix. */
typedef struct use {
    int32_t row;
    float weight;
} use;

typedef struct job {
    backend *be;
    const sampled_softmax_args *a;
    int64_t width;         /* E, rounded up to whole vectors */
    int64_t n_uses;        /* of a query: R + 1 */
    int64_t chunk_queries; /* queries of a chunk */
    int64_t n_chunks;
    float *unit;        /* (V, width): normalised rows, zeros after E */
    float *scale;       /* (V): 1 / max(|row|, eps), negative where eps was larger */
    float *query;       /* (n, width): the queries, zeros after E */
    use *uses;          /* (n, R + 1): uses, chunk by chunk, each chunk sorted by table row */
    int32_t *begin;     /* (n_chunks, V + 1): where a table row's uses begin within a chunk */
    double *chunk_loss; /* (n_chunks) */
} job;

static int64_t whole_vectors(int64_t dim) {
    return (dim + VEC_WIDE - 1) / VEC_WIDE * VEC_WIDE;
}

/* Chunks of n queries.  The index of a chunk has V + 1 entries: chunks are long enough that this is
 * at most about twice the number of uses in the chunk.  Where the table allows it, the number of
 * chunks is a multiple of 4, so that few threads get equal shares of a short batch. */
static int64_t count_chunks(int64_t n, int64_t n_uses, int64_t n_rows) {
    int64_t needed = n_rows / (2 * n_uses);
    if (needed > MAX_CHUNK) return cpu_n_chunks(n, needed);
    int64_t n_chunks = cpu_n_chunks(n, MAX_CHUNK);
    return needed > MAX_CHUNK / 4 ? n_chunks : (n_chunks + 3) / 4 * 4;
}

static size_t aligned(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Hands out the next part of the scratch memory. */
static void *take(char **memory, int64_t n, size_t size) {
    void *part = *memory;
    *memory += aligned((size_t)n * size);
    return part;
}

size_t cpu_sampled_softmax_scratch(backend *be, int64_t max_n, int32_t n_negatives, int32_t dim,
                                   int32_t n_rows) {
    (void)be;
    int64_t n_uses = (int64_t)n_negatives + 1, width = whole_vectors(dim);
    int64_t n_chunks = count_chunks(max_n, n_uses, n_rows);
    return aligned((size_t)(n_rows * width) * sizeof(float)) +
           aligned((size_t)n_rows * sizeof(float)) +
           aligned((size_t)(max_n * width) * sizeof(float)) +
           aligned((size_t)(max_n * n_uses) * sizeof(use)) +
           aligned((size_t)(n_chunks * ((int64_t)n_rows + 1)) * sizeof(int32_t)) +
           aligned((size_t)n_chunks * sizeof(double));
}

static job job_make(backend *be, const sampled_softmax_args *a) {
    job j = {
        .be = be, .a = a, .width = whole_vectors(a->dim), .n_uses = (int64_t)a->n_negatives + 1};
    j.chunk_queries = cpu_n_chunks(a->n, count_chunks(a->n, j.n_uses, a->n_rows));
    j.n_chunks = cpu_n_chunks(a->n, j.chunk_queries);
    char *memory = a->scratch;
    j.unit = take(&memory, a->n_rows * j.width, sizeof *j.unit);
    j.scale = take(&memory, a->n_rows, sizeof *j.scale);
    j.query = take(&memory, a->n * j.width, sizeof *j.query);
    j.uses = take(&memory, a->n * j.n_uses, sizeof *j.uses);
    j.begin = take(&memory, j.n_chunks * ((int64_t)a->n_rows + 1), sizeof *j.begin);
    j.chunk_loss = take(&memory, j.n_chunks, sizeof *j.chunk_loss);
    return j;
}

/* to = scale * from, followed by zeros. */
static void pad_row(float *to, int64_t width, const float *from, int32_t dim, float scale) {
    for (int32_t c = 0; c < dim; c++)
        to[c] = scale * from[c];
    for (int64_t c = dim; c < width; c++)
        to[c] = 0;
}

/* The loops below exist once for each number of vectors in a row, so that it is a constant and sums
 * stay in registers. */
#define INLINED static inline __attribute__((always_inline))
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

/* score[i] (+)= q . rows[row[i]] over n_vectors (a constant) of each row, four rows at a time to
 * hide the latency of the sums.  row and score have n + ROW_MARGIN entries. */
INLINED void dot_vectors(int n_vectors, const float *rows, int64_t width, const float *q,
                         const int32_t *row, int64_t n, bool adds, float *score) {
    vec_wide x[MAX_VECTORS];
    memcpy(x, q, (size_t)n_vectors * sizeof *x);
    for (int64_t i = 0; i < n; i += 4) {
        const vec_wide *y0 = (const vec_wide *)(rows + row[i] * width);
        const vec_wide *y1 = (const vec_wide *)(rows + row[i + 1] * width);
        const vec_wide *y2 = (const vec_wide *)(rows + row[i + 2] * width);
        const vec_wide *y3 = (const vec_wide *)(rows + row[i + 3] * width);
        vec_wide sum0 = {0}, sum1 = {0}, sum2 = {0}, sum3 = {0};
        for (int t = 0; t < 4; t++) {
            const float *ahead = rows + row[i + AHEAD + t] * width;
            for (int c = 0; c < n_vectors * VEC_WIDE; c += LINE_FLOATS)
                __builtin_prefetch(ahead + c);
        }
        for (int v = 0; v < n_vectors; v++) {
            sum0 = x[v] * y0[v] + sum0;
            sum1 = x[v] * y1[v] + sum1;
            sum2 = x[v] * y2[v] + sum2;
            sum3 = x[v] * y3[v] + sum3;
        }
        score[i] = (adds ? score[i] : 0) + vec_wide_sum(sum0);
        score[i + 1] = (adds ? score[i + 1] : 0) + vec_wide_sum(sum1);
        score[i + 2] = (adds ? score[i + 2] : 0) + vec_wide_sum(sum2);
        score[i + 3] = (adds ? score[i + 3] : 0) + vec_wide_sum(sum3);
    }
}

/* Wide rows go in parts, here and below. */
static void dot_rows(const float *rows, int64_t width, const float *q, const int32_t *row,
                     int64_t n, float *score) {
    for (int64_t c = 0; c < width; c += MAX_VECTORS * VEC_WIDE) {
        int64_t left = (width - c) / VEC_WIDE;
        switch (left < MAX_VECTORS ? left : MAX_VECTORS) {
#define DOT_CASE(count)                                                                            \
    case count:                                                                                    \
        dot_vectors(count, rows + c, width, q + c, row, n, c > 0, score);                          \
        break;
            FOR_EACH_COUNT(DOT_CASE)
        }
    }
}

/* acc += sum of weight * rows[row] over the uses, for n_vectors (a constant) of each row. */
INLINED void add_vectors(int n_vectors, const float *rows, int64_t width, const use *uses,
                         int64_t n, float *acc) {
    vec_wide sum[MAX_VECTORS], *to = (vec_wide *)acc;
    for (int v = 0; v < n_vectors; v++)
        sum[v] = to[v];
    for (int64_t i = 0; i < n; i++) {
        const vec_wide *x = (const vec_wide *)(rows + uses[i].row * width);
        float weight = uses[i].weight;
        for (int v = 0; v < n_vectors; v++)
            sum[v] = weight * x[v] + sum[v];
    }
    for (int v = 0; v < n_vectors; v++)
        to[v] = sum[v];
}

static void add_rows(const float *rows, int64_t width, const use *uses, int64_t n, float *acc) {
    for (int64_t c = 0; c < width; c += MAX_VECTORS * VEC_WIDE) {
        int64_t left = (width - c) / VEC_WIDE;
        switch (left < MAX_VECTORS ? left : MAX_VECTORS) {
#define ADD_CASE(count)                                                                            \
    case count:                                                                                    \
        add_vectors(count, rows + c, width, uses, n, acc + c);                                     \
        break;
            FOR_EACH_COUNT(ADD_CASE)
        }
    }
}

static status normalise_block(void *ctx, int64_t block, int worker) {
    (void)worker;
    const job *j = ctx;
    const sampled_softmax_args *a = j->a;
    cpu_range range = cpu_chunk(block, BLOCK_ROWS, a->n_rows);
    for (int64_t v = range.first; v < range.end; v++) {
        const float *row = a->table + v * a->dim;
        double squares = 0;
        for (int32_t c = 0; c < a->dim; c++)
            squares += (double)row[c] * row[c];
        double length = sqrt(squares);
        bool is_short = !(length > (double)a->eps);
        float scale = !a->normalises ? 1 : (float)(1 / (is_short ? (double)a->eps : length));
        pad_row(j->unit + v * j->width, j->width, row, a->dim, scale);
        j->scale[v] = is_short ? -scale : scale;
    }
    return OK;
}

static int32_t row_name(const sampled_softmax_args *a, int32_t row) {
    return a->row_id != NULL ? a->row_id[row] : row;
}

/* The table rows of a query: its negatives, then its positive, which also fills the padding. */
static void list_rows(const sampled_softmax_args *a, int64_t m, int32_t *row) {
    memcpy(row, a->negative + m * a->n_negatives, (size_t)a->n_negatives * sizeof *row);
    for (int t = 0; t < ROW_MARGIN; t++)
        row[a->n_negatives + t] = a->positive[m];
}

/* x[r] = value for each negative that equals the positive; returns how many there are. */
static int32_t set_collisions(const sampled_softmax_args *a, const int32_t *row, float value,
                              float *x) {
    int32_t positive = row_name(a, row[a->n_negatives]), n = 0;
    for (int32_t r = 0; r < a->n_negatives; r++) {
        if (row_name(a, row[r]) != positive) continue;
        x[r] = value;
        n++;
    }
    return n;
}

static float largest(const float *x, int64_t n) {
    float max = x[0];
    for (int64_t i = 1; i < n; i++)
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
    int32_t n = a->n_negatives, n_masked = set_collisions(a, row, MASKED, score);
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

/* begin[v + 1] = where the uses of table row v begin. add_uses then advances it to their end, which
 * is where the uses of row v + 1 begin. */
static void count_uses(const job *j, cpu_range range, int32_t *begin) {
    const sampled_softmax_args *a = j->a;
    memset(begin, 0, ((size_t)a->n_rows + 1) * sizeof *begin);
    for (int64_t m = range.first; m < range.end; m++) {
        const int32_t *negative = a->negative + m * a->n_negatives;
        if (a->positive[m] < 0) continue;
        for (int32_t r = 0; r < a->n_negatives; r++)
            begin[negative[r] + 1]++;
        begin[a->positive[m] + 1]++;
    }
    int32_t sum = 0;
    for (int32_t v = 0; v < a->n_rows; v++) {
        int32_t count = begin[v + 1];
        begin[v + 1] = sum;
        sum += count;
    }
}

static void sort_uses(const use *uses, int64_t n, int32_t m, int32_t *begin, use *sorted) {
    for (int64_t i = 0; i < n; i++)
        sorted[begin[uses[i].row + 1]++] = (use){.row = m, .weight = uses[i].weight};
}

/* A worker's memory for the query at hand. */
typedef struct query_memory {
    int32_t *row; /* (R + 1 + ROW_MARGIN) */
    float *score; /* (R + 1 + ROW_MARGIN), then weights */
    use *uses;    /* (R + 1) */
    float *sum;   /* (width) */
} query_memory;

static status query_memory_take(const job *j, int worker, query_memory *q) {
    int64_t n = j->n_uses + ROW_MARGIN;
    size_t bytes = aligned((size_t)n * sizeof *q->row) + aligned((size_t)n * sizeof *q->score) +
                   aligned((size_t)n * sizeof *q->uses) +
                   aligned((size_t)j->width * sizeof *q->sum);
    char *memory;
    TRY(cpu_scratch(j->be, worker, bytes, (void **)&memory));
    q->row = take(&memory, n, sizeof *q->row);
    q->score = take(&memory, n, sizeof *q->score);
    q->uses = take(&memory, n, sizeof *q->uses);
    q->sum = take(&memory, j->width, sizeof *q->sum);
    return OK;
}

static double query_loss(const job *j, int64_t m, query_memory *q) {
    const sampled_softmax_args *a = j->a;
    float *query = j->query + m * j->width;
    pad_row(query, j->width, (const float *)a->query + m * a->dim, a->dim, 1);
    list_rows(a, m, q->row);
    dot_rows(j->unit, j->width, query, q->row, j->n_uses, q->score);
    for (int64_t i = 0; i < j->n_uses; i++)
        q->score[i] *= 1 / a->temperature;
    return softmax(a, q->row, *a->grad_scale / a->temperature, q->score);
}

static void query_gradient(const job *j, int64_t m, query_memory *q) {
    const sampled_softmax_args *a = j->a;
    for (int64_t i = 0; i < j->n_uses; i++)
        q->uses[i] = (use){q->row[i], q->score[i]};
    memset(q->sum, 0, (size_t)j->width * sizeof *q->sum);
    add_rows(j->unit, j->width, q->uses, j->n_uses, q->sum);
    memcpy((float *)a->dquery + m * a->dim, q->sum, (size_t)a->dim * sizeof *q->sum);
}

/* A row that only fills the batch up. */
static void empty_row(const sampled_softmax_args *a, int64_t m) {
    if (a->row_loss != NULL) a->row_loss[m] = 0;
    if (a->dquery != NULL) memset((float *)a->dquery + m * a->dim, 0, (size_t)a->dim * 4);
}

static status query_chunk(void *ctx, int64_t chunk, int worker) {
    const job *j = ctx;
    const sampled_softmax_args *a = j->a;
    cpu_range range = cpu_chunk(chunk, j->chunk_queries, a->n);
    int32_t *begin = j->begin + chunk * ((int64_t)a->n_rows + 1);
    use *sorted = j->uses + range.first * j->n_uses;
    query_memory q = {0};
    TRY(query_memory_take(j, worker, &q));
    if (a->dquery != NULL) count_uses(j, range, begin);
    j->chunk_loss[chunk] = 0;
    for (int64_t m = range.first; m < range.end; m++) {
        if (a->positive[m] < 0) {
            empty_row(a, m);
            continue;
        }
        double loss = query_loss(j, m, &q);
        if (a->row_loss != NULL) a->row_loss[m] = (float)loss;
        j->chunk_loss[chunk] += loss;
        if (a->dquery == NULL) continue;
        query_gradient(j, m, &q);
        sort_uses(q.uses, j->n_uses, (int32_t)m, begin, sorted);
    }
    return OK;
}

/* grad += d l2(row) / d row applied to g: (g - u (u . g)) / |row|, or g / eps below eps. */
static void add_gradient(const job *j, int64_t v, const float *g) {
    const sampled_softmax_args *a = j->a;
    float *grad = a->dtable + v * a->dim;
    const float *unit = j->unit + v * j->width;
    float scale = j->scale[v];
    double along = 0;
    if (a->normalises && scale > 0) {
        for (int32_t c = 0; c < a->dim; c++)
            along += (double)unit[c] * g[c];
    }
    scale = fabsf(scale);
    for (int32_t c = 0; c < a->dim; c++)
        grad[c] += scale * (g[c] - (float)along * unit[c]);
}

static status table_block(void *ctx, int64_t block, int worker) {
    const job *j = ctx;
    const sampled_softmax_args *a = j->a;
    cpu_range range = cpu_chunk(block, BLOCK_ROWS, a->n_rows);
    int64_t n_rows = range.end - range.first;
    bool is_used[BLOCK_ROWS] = {false};
    float *sum;
    size_t bytes = (size_t)(n_rows * j->width) * sizeof *sum;
    TRY(cpu_scratch(j->be, worker, bytes, (void **)&sum));
    memset(sum, 0, bytes);
    for (int64_t chunk = 0; chunk < j->n_chunks; chunk++) {
        const int32_t *begin = j->begin + chunk * ((int64_t)a->n_rows + 1) + range.first;
        const use *sorted = j->uses + chunk * j->chunk_queries * j->n_uses;
        for (int64_t i = 0; i < n_rows; i++) {
            int32_t n = begin[i + 1] - begin[i];
            if (n == 0) continue;
            is_used[i] = true;
            add_rows(j->query, j->width, sorted + begin[i], n, sum + i * j->width);
        }
    }
    for (int64_t i = 0; i < n_rows; i++) {
        if (is_used[i]) add_gradient(j, range.first + i, sum + i * j->width);
    }
    return OK;
}

status cpu_sampled_softmax(backend *be, const sampled_softmax_args *a) {
    if (a->n == 0) return OK;
    job j = job_make(be, a);
    int64_t n_blocks = cpu_n_chunks(a->n_rows, BLOCK_ROWS);
    TRY(pool_run(be->workers, n_blocks, normalise_block, &j));
    TRY(pool_run(be->workers, j.n_chunks, query_chunk, &j));
    for (int64_t i = 0; i < j.n_chunks; i++)
        *a->loss += j.chunk_loss[i];
    if (a->dquery == NULL) return OK;
    return pool_run(be->workers, n_blocks, table_block, &j);
}
