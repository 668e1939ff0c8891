/* hstu bench attention: the problems, the check against float64, the timing and the table
 * (contract: attention.h). */
#include "cli/bench/attention.h"

#include "cpu/attn_naive.h"
#include "ops/attn_mask.h"
#include "profile/peak.h"

enum { HEADS_CHECKED = 6, ROWS_CHECKED = 4 };
enum { WINDOW = 256, MAX_CONTEXTS = 8, MAX_TARGETS = 64, MAX_QUERIES_LOG2 = 9 };
enum { N_HEADS = 4, RECORD_KEY = 77 };
enum { MAX_RANDOM_TOKENS = 400000, MAX_RANDOM_NUMBERS = 1 << 28 }; /* of q, say */

/* The rows that an op reads, then those that it writes, in the order of attn_result. */
enum { Q, K, V, DOUT, N_INPUTS, N_ARRAYS = N_INPUTS + N_ATTN_RESULTS };
static const struct {
    size_t at;
    bool is_key; /* else of queries */
} arrays[N_ARRAYS] = {
    {offsetof(attn_args, q), false},   {offsetof(attn_args, k), true},
    {offsetof(attn_args, v), true},    {offsetof(attn_args, dout), false},
    {offsetof(attn_args, out), false}, {offsetof(attn_args, dq), false},
    {offsetof(attn_args, dk), true},   {offsetof(attn_args, dv), true},
};

static void **array_of(attn_args *a, int i) {
    return (void **)((char *)a + arrays[i].at);
}

static int64_t rows_of(const attn_problem *p, int i) {
    return p->offsets[arrays[i].is_key][p->shape.n_sequences];
}

/* Keys or queries of sequence b. */
static int32_t length_of(const attn_problem *p, bool is_key, int32_t b) {
    return p->offsets[is_key][b + 1] - p->offsets[is_key][b];
}

/* More than the L2 cache of any GPU (H200: 50 MB). */
static const int64_t CACHE_BYTES = 64 << 20;

/* A CPU leaves out rows of the table whose forward pass has more FLOPs than the first, and shortens
 * the sequences of random cases to the second. */
static const double CPU_MAX_FLOPS = 2e10, CPU_RANDOM_FLOPS = 2e8;

/* From here on the time of the host is negligible, and replays would take long. */
static const double LONG_CALL_SECONDS = 2e-3;

static const char *attn_mask_kind_name(attn_mask_kind mask) {
    static const char *const names[] = {"causal",    "window 256", "context + target",
                                        "arbitrary", "context",    "target"};
    return names[mask];
}

static const char *attn_shape_label(const attn_shape *s) {
    static const char *const biases[] = {"", " + bias table", " + time bias"};
    return show_printf("%s%s", attn_mask_kind_name(s->mask), biases[s->bias]);
}

static int64_t width_of(const attn_problem *p) {
    return (int64_t)p->shape.n_heads * p->shape.dim;
}

/* The op is told the longest sequence of a random case, and the bound of the others. */
static status draw_lengths(attn_problem *p, rng_key key) {
    attn_shape *s = &p->shape;
    int32_t longest[2] = {0};
    for (int k = 0; k < 2; k++)
        TRY(NN_NEW_HOST(&p->memory, &p->offsets[k], s->n_sequences + 1));
    for (int32_t b = 0; b < s->n_sequences; b++) {
        rng_block drawn = rng_draw64(key, (uint64_t)b, 1);
        double u = 1 - (double)rng_uniform(drawn.word[0]); /* above 0 */
        uint32_t power = s->is_random ? rng_below(drawn.word[1], 3) : s->is_jagged;
        int32_t n = (int32_t)ceil(s->max_len * pow(u, power)), most = attn_min(n, s->max_queries);
        int32_t n_q = most > 0 ? 1 + (int32_t)rng_below(drawn.word[2], (uint32_t)most) : n;
        for (int k = 0; k < 2; k++) {
            int32_t len = k == 1 ? n : n_q;
            if (k == 1 && n > longest[k]) p->longest = b;
            p->offsets[k][b + 1] = p->offsets[k][b] + len;
            if (len > longest[k]) longest[k] = len;
        }
    }
    p->host.max_len_q = s->is_random ? longest[0] : s->max_len;
    p->host.max_len_k = s->max_len = s->is_random ? longest[1] : s->max_len;
    return OK;
}

static int64_t table_rows(const attn_shape *s) {
    return (int64_t)s->n_sequences * s->n_heads * s->max_len;
}

/* Events from a second to six days apart. */
static status draw_times(attn_problem *p, rng_key key) {
    int64_t now = 0, n = rows_of(p, K), *times;
    TRY(NN_NEW_HOST(&p->memory, &times, n));
    for (int64_t t = 0; t < n; t++) {
        rng_block drawn = rng_draw64(key, (uint64_t)t, 10);
        times[t] = now += 1 + (drawn.word[0] >> 13 >> drawn.word[1] % 19);
    }
    p->host.query_time = p->host.key_time = times;
    return OK;
}

static status draw_bias(attn_problem *p, rng_key key) {
    attn_shape *s = &p->shape;
    attn_args *a = &p->host;
    a->bias = s->bias;
    a->bias_len = a->table_len = s->max_len;
    a->table_heads = s->n_heads;
    if (s->bias == BIAS_TABLE)
        return bench_pool_draw(&p->pool, 11, table_rows(s), s->max_len, &p->table);
    if (s->bias == BIAS_NONE) return OK;
    TRY(draw_times(p, key));
    TRY(bench_draw(&p->memory, key, 12, 2 * (int64_t)s->max_len - 1, (float **)&a->position_w));
    return bench_draw(&p->memory, key, 13, ATTN_TIME_BUCKETS + 1, (float **)&a->time_w);
}

/* Each row sees some keys from the first on, and some in the middle. */
static status draw_func(attn_problem *p, rng_key key) {
    int64_t n = rows_of(p, Q);
    int32_t *func;
    TRY(NN_NEW_HOST(&p->memory, &func, 3 * n));
    for (int32_t b = 0; b < p->shape.n_sequences; b++) {
        uint32_t len = (uint32_t)length_of(p, true, b);
        for (int32_t t = p->offsets[0][b]; t < p->offsets[0][b + 1]; t++) {
            rng_block drawn = rng_draw64(key, (uint64_t)t, 9);
            uint32_t first = rng_below(drawn.word[1], len + 1);
            func[t] = (int32_t)rng_below(drawn.word[0], len / 4 + 1);
            func[n + t] = (int32_t)first;
            func[2 * n + t] = (int32_t)(first + rng_below(drawn.word[2], len - first + 1));
        }
    }
    p->host.func = func;
    p->host.n_func = 3;
    p->host.func_stride = n;
    return OK;
}

static status draw_mask(attn_problem *p, rng_key key) {
    attn_mask_kind mask = p->shape.mask;
    int32_t n = p->shape.n_sequences, *targets, *contexts;
    bool has_targets = mask == ATTN_BOTH || mask == ATTN_TARGETS;
    p->host.window_left = mask == ATTN_WINDOW ? WINDOW : -1;
    p->host.target_group = 1;
    if (mask == ATTN_ARBITRARY) return draw_func(p, key);
    TRY(NN_NEW_HOST(&p->memory, &targets, n));
    TRY(NN_NEW_HOST(&p->memory, &contexts, n));
    for (int32_t b = 0; b < n; b++) {
        rng_block drawn = rng_draw64(key, (uint64_t)b, 6);
        int32_t len = length_of(p, true, b);
        if (has_targets)
            targets[b] = attn_min(1 + (int32_t)rng_below(drawn.word[0], MAX_TARGETS), len);
        contexts[b] =
            attn_min(1 + (int32_t)rng_below(drawn.word[1], MAX_CONTEXTS), len - targets[b]);
    }
    if (has_targets) p->host.n_targets = targets;
    if (mask == ATTN_BOTH || mask == ATTN_CONTEXTS) p->host.n_contexts = contexts;
    return OK;
}

/* Replaces an array of the arguments, unless it is NULL, by a copy on the backend. */
static status send(attn_problem *p, void *array, int64_t n, size_t size) {
    const void *from = *(const void **)array;
    return from != NULL ? bench_send(&p->memory, from, n, size, array) : OK;
}

static status send_bias(attn_problem *p, attn_args *a) {
    int64_t n_position = 2 * (int64_t)p->shape.max_len - 1, n_rows = table_rows(&p->shape);
    const int32_t *rows = p->table;
    TRY(send(p, &a->key_time, rows_of(p, K), sizeof *a->key_time));
    a->query_time = a->key_time;
    TRY(send(p, &a->position_w, n_position, sizeof(float)));
    TRY(send(p, &a->time_w, ATTN_TIME_BUCKETS + 1, sizeof(float)));
    TRY(NN_NEW(&p->memory, &a->dposition_w, n_position));
    TRY(NN_NEW(&p->memory, &a->dtime_w, ATTN_TIME_BUCKETS + 1));
    if (rows == NULL) return OK;
    TRY(send(p, &rows, n_rows, sizeof *rows));
    TRY(bench_pool_rows(&p->pool, rows, n_rows, p->shape.max_len, 1, &a->table));
    return NN_NEW(&p->memory, &a->dtable, n_rows * p->shape.max_len);
}

/* All arguments except rows, which each copy has for itself. */
static status send_shared(attn_problem *p, attn_args *a) {
    int32_t n = p->shape.n_sequences;
    *a = p->host;
    TRY(send(p, &a->offsets_k, n + 1, sizeof(int32_t)));
    if (p->shape.max_queries == 0)
        a->offsets_q = a->offsets_k;
    else
        TRY(send(p, &a->offsets_q, n + 1, sizeof(int32_t)));
    TRY(send(p, &a->n_contexts, n, sizeof(int32_t)));
    TRY(send(p, &a->n_targets, n, sizeof(int32_t)));
    TRY(send(p, &a->func, 3 * rows_of(p, Q), sizeof(int32_t)));
    return send_bias(p, a);
}

/* Results begin as NAN: a row that the op does not write is wrong. */
static status send_all(attn_problem *p) {
    const int32_t *index[N_INPUTS];
    attn_args shared;
    TRY(send_shared(p, &shared));
    for (int i = 0; i < N_INPUTS; i++) {
        index[i] = p->input[i];
        TRY(send(p, &index[i], rows_of(p, i), sizeof(int32_t)));
    }
    for (int c = 0; c < p->n_copies; c++) {
        p->copy[c] = shared;
        for (int i = 0; i < N_ARRAYS; i++) {
            int from = i < N_INPUTS ? i : arrays[i].is_key ? K : Q;
            TRY(bench_pool_rows(&p->pool, index[from], rows_of(p, i), width_of(p),
                                i < N_INPUTS ? 1 : NAN, array_of(&p->copy[c], i)));
        }
    }
    return OK;
}

/* One head of one sequence, as the naive attention reads it; its results in float64, of which
 * single rows are computed; the largest error and value of each result. */
typedef struct checked_head {
    attn_args a;
    int32_t b, head, offsets[2][2]; /* of queries, of keys */
    float *rows[N_INPUTS];          /* (len, dim) each */
    float *table;                   /* (max_len, max_len) */
    double *result[N_ATTN_RESULTS]; /* (len, dim) each */
    float *got;                     /* (dim) */
    double off[N_ATTN_RESULTS], most[N_ATTN_RESULTS];
} checked_head;

static status make_checked(attn_problem *p, checked_head *v) {
    int64_t len = p->shape.max_len, dim = p->shape.dim;
    for (int i = 0; i < N_INPUTS; i++) {
        TRY(NN_NEW_HOST(&p->memory, &v->rows[i], len * dim));
        TRY(NN_NEW_HOST(&p->memory, &v->result[i], len * dim));
    }
    if (p->table != NULL) TRY(NN_NEW_HOST(&p->memory, &v->table, len * len));
    return NN_NEW_HOST(&p->memory, &v->got, dim);
}

static void view_head(const attn_problem *p, int32_t b, int32_t head, checked_head *v) {
    int32_t dim = p->shape.dim, max_len = p->shape.max_len, first_q = p->offsets[0][b];
    attn_args *a = &v->a;
    *a = p->host;
    v->b = b;
    v->head = head;
    for (int k = 0; k < 2; k++)
        v->offsets[k][1] = length_of(p, k, b);
    a->n_sequences = a->n_heads = a->table_heads = 1;
    a->offsets_q = v->offsets[0];
    a->offsets_k = v->offsets[1];
    a->stride_q = a->stride_k = a->stride_v = a->stride_out = dim;
    if (a->n_contexts != NULL) a->n_contexts += b;
    if (a->n_targets != NULL) a->n_targets += b;
    if (a->func != NULL) a->func += first_q;
    if (a->key_time != NULL) a->query_time = a->key_time += p->offsets[1][b];
    for (int i = 0; i < N_INPUTS; i++) {
        bool is_key = arrays[i].is_key;
        bench_pool_copy(&p->pool, p->input[i] + p->offsets[is_key][b], v->offsets[is_key][1],
                        width_of(p), (int64_t)head * dim, dim, v->rows[i]);
        *array_of(a, i) = v->rows[i];
    }
    a->table = v->table;
    if (p->table != NULL)
        bench_pool_copy(&p->pool, p->table + ((int64_t)b * p->shape.n_heads + head) * max_len,
                        v->offsets[1][1], max_len, 0, max_len, v->table);
}

/* Notes the error of row `at` of a result. */
static status compare_row(attn_problem *p, checked_head *v, int result, int32_t at) {
    int32_t first = p->offsets[arrays[N_INPUTS + result].is_key][v->b];
    int64_t skip = (int64_t)(first + at) * width_of(p) + (int64_t)v->head * p->shape.dim;
    const char *got = *array_of(&p->copy[0], N_INPUTS + result);
    const double *want = v->result[result] + (int64_t)at * p->shape.dim;
    TRY(backend_read_act(p->be, v->got, got + (size_t)skip * act_bytes(p->be->act),
                         (size_t)p->shape.dim));
    for (int32_t d = 0; d < p->shape.dim; d++) {
        v->most[result] = fmax(v->most[result], fabs(want[d]));
        v->off[result] = bench_worse(v->off[result], fabs(v->got[d] - want[d]));
    }
    return OK;
}

/* A query's row of out and dq, or a key's of dk and dv. */
static status check_row(attn_problem *p, checked_head *v, bool is_key, int32_t at) {
    int32_t n = v->offsets[!is_key][1], dim = p->shape.dim;
    int first = is_key ? RESULT_DK : RESULT_OUT;
    attn_naive_results to = {0};
    *(is_key ? &to.dk : &to.out) = v->result[first];
    *(is_key ? &to.dv : &to.dq) = v->result[first + 1];
    for (int i = 0; i < 2; i++)
        memset(v->result[first + i] + (int64_t)at * dim, 0, (size_t)dim * sizeof(double));
    for (int32_t i = 0; i < n; i++)
        attn_naive_pair(&v->a, 0, 0, is_key ? i : at, is_key ? at : i, NULL, &to);
    TRY(compare_row(p, v, first, at));
    return compare_row(p, v, first + 1, at);
}

/* The last row and some others, of queries and of keys. */
static status check_head(attn_problem *p, checked_head *v, rng_block drawn) {
    for (uint32_t i = 0; i < 2 * ROWS_CHECKED; i++) {
        bool is_key = i % 2 == 1;
        int32_t n = v->offsets[is_key][1];
        uint32_t word = drawn.word[2 + is_key] + i * 0x9E3779B9u;
        int32_t at = i < 2 ? n - 1 : (int32_t)rng_below(word, (uint32_t)n);
        TRY(check_row(p, v, is_key, at));
    }
    return OK;
}

status attn_problem_check(attn_problem *p, double error[N_ATTN_RESULTS]) {
    rng_key key = rng_make_key((uint64_t)rows_of(p, K), RNG_TEST);
    checked_head v = {0};
    TRY(p->be->ops->attn_fwd(p->be, &p->copy[0]));
    TRY(p->be->ops->attn_bwd(p->be, &p->copy[0]));
    TRY(make_checked(p, &v));
    for (int n = 0; n < HEADS_CHECKED; n++) {
        rng_block drawn = rng_draw64(key, (uint64_t)n, 20);
        int32_t b = (int32_t)rng_below(drawn.word[0], (uint32_t)p->shape.n_sequences);
        if (n == 0) b = p->longest;
        view_head(p, b, (int32_t)rng_below(drawn.word[1], (uint32_t)p->shape.n_heads), &v);
        TRY(check_head(p, &v, drawn));
    }
    for (int i = 0; i < N_ATTN_RESULTS; i++)
        error[i] = v.most[i] > 0 ? v.off[i] / v.most[i] : v.off[i];
    return OK;
}

/* Causal rows of the table as the field counts them; else the pairs that the mask lets through. */
static double count_flops(const attn_problem *p) {
    double pairs = 0;
    bool is_field = p->shape.mask == ATTN_CAUSAL && !p->shape.is_random;
    for (int32_t b = 0; b < p->shape.n_sequences; b++) {
        attn_sequence s = attn_sequence_of(&p->host, b);
        if (is_field) pairs += (double)s.len_k * s.len_k / 2;
        for (int row = 0; row < s.len_q && !is_field; row++) {
            attn_row_mask m = attn_row_spans(&p->host, &s, row);
            pairs += attn_max(m.end0 - m.first0, 0);
            pairs += attn_max(m.end1 - attn_max(m.first1, m.end0), 0);
        }
    }
    return 4.0 * p->shape.n_heads * p->shape.dim * pairs;
}

/* Between two uses of a copy the other copies are touched; together they have at least
 * cache_bytes. */
static int count_copies(double bytes, int64_t cache_bytes) {
    if (bytes >= (double)cache_bytes) return 1;
    int n = 2 + (int)((double)cache_bytes / bytes);
    return n < ATTN_MAX_COPIES ? n : ATTN_MAX_COPIES;
}

status attn_problem_open(attn_problem *p, backend *be, const attn_shape *shape, uint64_t seed,
                         int64_t cache_bytes) {
    rng_key key = rng_make_key(seed, RNG_TEST);
    *p = (attn_problem){.be = be, .shape = *shape};
    nn_memory_init(&p->memory, be);
    int64_t width = width_of(p);
    TRY(draw_lengths(p, key));
    TRY(bench_pool_init(&p->pool, &p->memory, key));
    for (int i = 0; i < N_INPUTS; i++)
        TRY(bench_pool_draw(&p->pool, 2 + (uint64_t)i, rows_of(p, i), width, &p->input[i]));
    attn_args *a = &p->host;
    a->n_sequences = p->shape.n_sequences;
    a->n_heads = p->shape.n_heads;
    a->dim_qk = a->dim_v = p->shape.dim;
    a->n_rows_q = rows_of(p, Q);
    a->n_rows_k = rows_of(p, K);
    a->offsets_q = p->offsets[0];
    a->offsets_k = p->offsets[1];
    a->stride_q = a->stride_k = a->stride_v = a->stride_out = width;
    a->alpha = 1 / sqrtf((float)p->shape.dim);
    a->scale = 1 / (float)p->shape.max_len;
    TRY(draw_mask(p, key));
    TRY(draw_bias(p, key));
    int64_t n_numbers = 2 * (a->n_rows_q + a->n_rows_k) * width;
    if (p->table != NULL) n_numbers += table_rows(&p->shape) * p->shape.max_len;
    p->flops = count_flops(p);
    p->bytes = (double)n_numbers * (double)act_bytes(p->be->act);
    p->n_copies = count_copies(p->bytes, cache_bytes);
    return send_all(p);
}

void attn_problem_close(attn_problem *p) {
    nn_memory_fini(&p->memory);
}

/* The published tables, and what they leave out: very long sequences, other masks, biases.  The
 * first N_LENGTHS rows are measured at every head dimension, the others at 64 and 128. */
static const attn_shape rows[] = {
#define ROW(B, S, is_jagged, mask, bias)                                                           \
    { N_HEADS, 64, B, S, is_jagged, mask, bias, false, 0 }
    ROW(32, 1024, false, ATTN_CAUSAL, BIAS_NONE), ROW(32, 4096, false, ATTN_CAUSAL, BIAS_NONE),
    ROW(32, 4096, true, ATTN_CAUSAL, BIAS_NONE),  ROW(128, 512, true, ATTN_CAUSAL, BIAS_NONE),
    ROW(128, 200, true, ATTN_CAUSAL, BIAS_NONE),  ROW(512, 50, true, ATTN_CAUSAL, BIAS_NONE),
    ROW(4, 16384, false, ATTN_CAUSAL, BIAS_NONE), ROW(32, 4096, true, ATTN_WINDOW, BIAS_NONE),
    ROW(32, 4096, true, ATTN_BOTH, BIAS_NONE),    ROW(32, 4096, true, ATTN_ARBITRARY, BIAS_NONE),
    ROW(8, 1024, false, ATTN_CAUSAL, BIAS_TABLE), ROW(32, 1024, false, ATTN_CAUSAL, BIAS_TIME),
    ROW(128, 200, true, ATTN_CAUSAL, BIAS_TIME),
};
enum { N_LENGTHS = 6, N_OTHERS = sizeof rows / sizeof *rows - N_LENGTHS };
enum { N_SHAPES = 4 * N_LENGTHS + 2 * N_OTHERS };

static attn_shape table_shape(int i) {
    int other = i - 4 * N_LENGTHS;
    attn_shape s = rows[other < 0 ? i % N_LENGTHS : N_LENGTHS + other % N_OTHERS];
    s.dim = other < 0 ? 32 << i / N_LENGTHS : 64 << other / N_OTHERS;
    return s;
}

/* One pass of a problem. */
typedef struct timed_pass {
    const attn_problem *p;
    int pass;
} timed_pass;

/* Call i uses the copies in turn. */
static status call(void *ctx, int i) {
    const timed_pass *t = ctx;
    backend *be = t->p->be;
    const attn_args *a = &t->p->copy[i % t->p->n_copies];
    return t->pass == PASS_BACKWARD ? be->ops->attn_bwd(be, a) : be->ops->attn_fwd(be, a);
}

/* Three times the error of naive code in this type or more, below what a wrong key causes. */
static double allowed_error(act_type act) {
    return act == ACT_F32 ? 2e-5 : act == ACT_F16 ? 2e-3 : 1.5e-2;
}

/* For short sequences the printed TFLOP/s have one digit, so the time is more precise.  This
 * computes the figure from the time (lengths uniform in 1..S have a mean square of (2 S + 1) / 3
 * times their mean), and clamps it to the values that round to the printed figure. */
double attn_peer_tflops(const attn_shape *s, attn_peer peer, bench_timing how, bench_pass pass) {
    int cell = 1 + 4 * (int)peer + 2 * (int)pass; /* after the number of tokens */
    bool is_other = s->mask != ATTN_CAUSAL || s->bias != BIAS_NONE || s->n_heads != N_HEADS;
    if (is_other || s->is_random) return NAN;
    const char *key = show_printf("%s,%d,%d,%d,%s", how == TIMED_PLAIN ? "plain" : "replay", s->dim,
                                  s->n_sequences, s->max_len, s->is_jagged ? "jagged" : "equal");
    double n_tokens = bench_peer("attention", key, 0), us = bench_peer("attention", key, cell);
    double printed = bench_peer("attention", key, cell + 1);
    double mean_len = s->is_jagged ? (2.0 * s->max_len + 1) / 3 : s->max_len;
    double flops = 4.0 * N_HEADS * s->dim * n_tokens * mean_len / 2;
    double from_time = (pass == PASS_FORWARD ? 1 : 2.5) * flops / us / 1e6;
    return isnan(us) ? NAN : fmin(fmax(from_time, printed - 0.5), printed + 0.5);
}

double attn_peer_best(const attn_shape *s, bool is_any_card, bench_timing how, bench_pass pass) {
    double ampere = attn_peer_tflops(s, PEER_AMPERE, how, pass);
    return is_any_card ? ampere : fmax(ampere, attn_peer_tflops(s, PEER_HOPPER, how, pass));
}

static double largest(const double error[N_ATTN_RESULTS]) {
    double most = 0;
    for (int i = 0; i < N_ATTN_RESULTS; i++)
        most = bench_worse(most, error[i]);
    return most;
}

/* Of replayed calls where the device records, and calls are short enough for that. */
static double best_of(const attn_row *r, int pass, const double *of) {
    return of[isnan(r->seconds[pass][TIMED_REPLAY]) ? TIMED_PLAIN : TIMED_REPLAY];
}

static void add_ratio(attn_mean *m, double ratio, int number) {
    if (isnan(ratio)) return;
    if (m->n++ == 0 || ratio < m->lowest) {
        m->lowest = ratio;
        m->lowest_row = number;
    }
    m->log_sum += log(ratio);
}

static status time_pass(attn_bench *b, attn_problem *p, attn_row *r, int pass) {
    timed_pass t = {p, pass};
    double *seconds = r->seconds[pass];
    TRY(timing_plain(p->be, call, &t, &seconds[TIMED_PLAIN]));
    if (!p->shape.is_random || seconds[TIMED_PLAIN] < LONG_CALL_SECONDS)
        TRY(timing_replay(p->be, RECORD_KEY + (uint64_t)pass, call, &t, &seconds[TIMED_REPLAY]));
    for (int how = 0; how < N_TIMINGS; how++) {
        r->tflops[pass][how] = (pass == PASS_FORWARD ? 1 : 2.5) * r->flops / seconds[how] / 1e12;
        double peer =
            attn_peer_best(&r->shape, b->filter.is_any_card, (bench_timing)how, (bench_pass)pass);
        if (b->has_peers) r->ratio[pass][how] = r->tflops[pass][how] / peer;
    }
    add_ratio(&b->share[pass], best_of(r, pass, r->tflops[pass]) * 1e12 / b->peak, r->number);
    add_ratio(&b->x_peer[pass], best_of(r, pass, r->ratio[pass]), r->number);
    return OK;
}

static status measure(attn_bench *b, attn_problem *p, attn_row *r) {
    r->shape = p->shape;
    r->n_tokens = rows_of(p, K);
    r->n_queries = rows_of(p, Q);
    r->flops = p->flops;
    r->n_copies = p->n_copies;
    for (int c = 0; c < p->n_copies && b->filter.is_any_card; c++)
        p->copy[c].n_rows_q = p->copy[c].n_rows_k = 0;
    TRY(attn_problem_check(p, r->error));
    b->error = bench_worse(b->error, largest(r->error));
    r->is_wrong = !(largest(r->error) <= allowed_error(p->be->act));
    if (r->is_wrong && b->n_wrong++ == 0) b->first_wrong = r->number;
    for (int pass = 0; pass < N_PASSES && !b->filter.is_check && !r->is_wrong; pass++)
        TRY(time_pass(b, p, r, pass));
    return OK;
}

status attn_measure(attn_bench *b, const attn_shape *s, attn_row *out) {
    attn_problem p;
    backend *be = b->be;
    *out = (attn_row){.number = b->next, .shape = *s};
    for (int i = 0; i < N_PASSES * N_TIMINGS; i++)
        (&out->seconds[0][0])[i] = (&out->tflops[0][0])[i] = (&out->ratio[0][0])[i] = NAN;
    /* Drops old recordings: they use the memory of the problem before. */
    TRY(be->ops->set_precision(be, be->act, false));
    uint64_t seed = s->is_random ? b->seed + (uint64_t)b->next : b->seed;
    status st = attn_problem_open(&p, be, s, seed,
                                  be->n_ahead > 0 && !b->filter.is_check ? CACHE_BYTES : 0);
    if (st == OK) st = measure(b, &p, out);
    attn_problem_close(&p);
    return st;
}

/* An upper bound of the forward pass's FLOPs, known before lengths are drawn. */
static double bound_flops(const attn_shape *s) {
    return 4.0 * s->n_heads * s->dim * s->n_sequences * (double)s->max_len * s->max_len / 2;
}

/* 2^x with x uniform in low .. high */
static double draw_power(uint32_t word, double low, double high) {
    return exp2(low + (high - low) * (double)rng_uniform(word));
}

/* A random case depends on the seed and its number alone. */
static attn_shape draw_shape(const attn_bench *b, int number) {
    static const int32_t heads[] = {1, 2, 3, 4, 8};
    static const attn_mask_kind masks[] = {ATTN_CAUSAL, ATTN_TARGETS, ATTN_CONTEXTS, ATTN_BOTH};
    rng_key key = rng_make_key(b->seed, RNG_TEST);
    rng_block x = rng_draw64(key, (uint64_t)number, 30), y = rng_draw64(key, (uint64_t)number, 31);
    attn_shape s = {.n_heads = heads[rng_below(x.word[0], 5)],
                    .dim = 32 << rng_below(x.word[1], 4),
                    .n_sequences = (int32_t)draw_power(x.word[2], 0, 8),
                    .is_jagged = true,
                    .mask = masks[rng_below(x.word[3], 4)],
                    .is_random = true};
    double most = fmin(MAX_RANDOM_TOKENS, (double)MAX_RANDOM_NUMBERS / s.n_heads / s.dim);
    double longest = fmin(draw_power(y.word[0], 5, 13), most / s.n_sequences);
    s.max_len = 1;
    if (b->be->n_ahead == 0) longest = fmin(longest, sqrt(CPU_RANDOM_FLOPS / bound_flops(&s)));
    s.max_len = (int32_t)fmax(longest, 16);
    if (rng_below(y.word[1], 4) == 0)
        s.max_queries = (int32_t)draw_power(y.word[2], 0, MAX_QUERIES_LOG2);
    return s;
}

static bool is_wanted(const attn_filter *f, const attn_shape *s) {
    if (f->dim != 0 && f->dim != s->dim) return false;
    if (f->length != 0 && f->length != s->max_len) return false;
    return f->mask == NULL || strstr(attn_shape_label(s), f->mask) != NULL;
}

const attn_shape *attn_bench_next(attn_bench *b) {
    const attn_filter *f = &b->filter;
    int n = f->n_random != 0 ? (int)f->n_random : N_SHAPES;
    while (b->next < n) {
        b->shape = f->n_random != 0 ? draw_shape(b, b->next + 1) : table_shape(b->next);
        b->next++;
        bool is_long = b->be->n_ahead == 0 && bound_flops(&b->shape) > CPU_MAX_FLOPS;
        if (!is_wanted(f, &b->shape) || (f->only != 0 && f->only != b->next)) continue;
        if (!is_long) return &b->shape;
        b->n_left_out++;
    }
    return NULL;
}

status attn_bench_open(attn_bench *b, backend *be, const attn_filter *filter) {
    *b = (attn_bench){.be = be, .filter = *filter};
    b->seed = filter->seed != 0 ? (uint64_t)filter->seed : clock_ns();
    b->has_peers = bench_has_peers(be);
    if (attn_bench_next(b) == NULL && b->n_left_out == 0)
        return fail(ERR_USAGE,
                    "no row has this --dim, --length, --mask and --only; without them all %d "
                    "rows are measured",
                    filter->n_random != 0 ? (int)filter->n_random : (int)N_SHAPES);
    b->next = b->n_left_out = 0;
    b->peak = NAN;
    return filter->is_check ? OK : peak_measure(be, &b->peak);
}

static void set_title(const attn_bench *b, bench *io) {
    const char *peak = "";
    if (!b->filter.is_check)
        peak = show_printf("; a large product here: %.3g TFLOP/s", b->peak / 1e12);
    bench_title(io, "HSTU attention on %s in %s%s, seed %llu%s", bench_device(b->be), io->dtype,
                b->filter.is_any_card ? ", kernels for any card" : "", (unsigned long long)b->seed,
                peak);
}

/* The table has the times of replayed calls, if there are any, --json those of both. */
static status print_row(const attn_bench *b, bench *io, const attn_row *r) {
    static const char *const biases[] = {"none", "table", "time"};
    const attn_shape *s = &r->shape;
    bool is_timed = !b->filter.is_check, has_peers = is_timed && b->has_peers && !s->is_random;
#define ERROR_COLUMN(name, i) COLUMN(name, " 7.1e", "error_" name, r->error[i])
#define TIME_MEMBERS(key, pass, how, time, unit)                                                   \
    MEMBER(key time, r->seconds[pass][how] * unit), MEMBER(key "tflops", r->tflops[pass][how]),    \
        MEMBER(key "ratio", r->ratio[pass][how])
#define PASS_COLUMNS(name, key, pass)                                                              \
    TIME_MEMBERS(key, pass, TIMED_PLAIN, "ms", 1e3),                                               \
        TIME_MEMBERS(key "replay_", pass, TIMED_REPLAY, "us", 1e6),                                \
        COLUMN(is_timed ? name " us" : NULL, " 11.1f", NULL,                                       \
               best_of(r, pass, r->seconds[pass]) * 1e6),                                          \
        COLUMN(is_timed ? "TFLOP/s" : NULL, " 8.4g", NULL, best_of(r, pass, r->tflops[pass])),     \
        COLUMN(is_timed ? "%" : NULL, " 5.1f", NULL,                                               \
               1e14 * best_of(r, pass, r->tflops[pass]) / b->peak),                                \
        COLUMN(has_peers ? "x peer" : NULL, " 7.2f", NULL, best_of(r, pass, r->ratio[pass]))
    return BENCH_ROW(io, MEMBER("seed", b->seed), COLUMN("case", "4", "case", r->number),
                     MEMBER("random", s->is_random), MEMBER("any_card", b->filter.is_any_card),
                     COLUMN("D", " 4", "dim", s->dim), COLUMN("H", " 2", "heads", s->n_heads),
                     COLUMN("B", " 4", "sequences", s->n_sequences),
                     COLUMN("longest", " 7", "length", s->max_len),
                     COLUMN("keys", " 7", "tokens", r->n_tokens),
                     COLUMN("queries", " 7", "queries", r->n_queries),
                     COLUMN("mask", "  -21", NULL, attn_shape_label(s)),
                     MEMBER("mask", attn_mask_kind_name(s->mask)), MEMBER("bias", biases[s->bias]),
                     MEMBER("jagged", s->is_jagged), MEMBER("fwd_gflop", r->flops / 1e9),
                     MEMBER("copies", r->n_copies), MEMBER("error", largest(r->error)),
                     MEMBER("peak_tflops", b->peak / 1e12), ERROR_COLUMN("out", RESULT_OUT),
                     ERROR_COLUMN("dq", RESULT_DQ), ERROR_COLUMN("dk", RESULT_DK),
                     ERROR_COLUMN("dv", RESULT_DV), PASS_COLUMNS("forward", "fwd_", PASS_FORWARD),
                     PASS_COLUMNS("backward", "bwd_", PASS_BACKWARD),
                     COLUMN("", "0", NULL, r->is_wrong ? "  WRONG" : ""));
}

static void print_means(const attn_bench *b) {
    static const char *const names[N_PASSES] = {"forward", "backward"};
    printf("\nLargest error: %.1e of the largest value (allowed: %.1e).\n", b->error,
           allowed_error(b->be->act));
    for (int pass = 0; pass < N_PASSES; pass++) {
        const attn_mean *m = &b->share[pass], *peer = &b->x_peer[pass];
        if (m->n > 0)
            printf("%-8s  %%: geometric mean %.1f, lowest %.1f (case %d)\n", names[pass],
                   100 * exp(m->log_sum / m->n), 100 * m->lowest, m->lowest_row);
        if (peer->n > 0)
            printf("%-8s  x peer: geometric mean %.3f over %d rows, lowest %.2f (case %d)\n", "",
                   exp(peer->log_sum / peer->n), peer->n, peer->lowest, peer->lowest_row);
    }
    if (b->filter.n_random != 0)
        printf(
            "FLOPs: 4 H D for each pair that the mask lets through, backward 2.5 times that.%s\n",
            b->be->n_ahead > 0 ? "" : "\nOn a CPU sequences are shortened.");
    if (b->x_peer[PASS_FORWARD].n > 0)
        printf("x peer: TFLOP/s / TFLOP/s of %s kernel on an H200; above 1 is faster.\n",
               b->filter.is_any_card ? "NVIDIA's Ampere" : "the better NVIDIA");
    if (b->n_left_out > 0)
        printf("%d rows are for a GPU: they would take minutes here.\n", b->n_left_out);
}

status attn_bench_end(const attn_bench *b) {
    if (b->n_wrong == 0) return OK;
    bool is_random = b->filter.n_random != 0;
    return fail(ERR_NUMERIC,
                "%d cases differ from float64 by more than %.1e and were not timed; the first "
                "again: hstu bench attention --device %s --dtype %s%s%s --seed %llu --only %d",
                b->n_wrong, allowed_error(b->be->act), b->be->name, work_dtypes[b->be->act],
                b->filter.is_any_card ? " --any-card" : "",
                is_random ? show_printf(" --random %d", b->first_wrong) : "",
                (unsigned long long)b->seed, b->first_wrong);
}

typedef struct bench_args {
    bench io;
    attn_filter filter;
} bench_args;

static status run(void *ctx) {
    bench_args *a = ctx;
    attn_bench b;
    attn_row r;
    a->filter.seed = a->io.seed;
    TRY(attn_bench_open(&b, a->io.be, &a->filter));
    set_title(&b, &a->io);
    for (const attn_shape *s; (s = attn_bench_next(&b)) != NULL;) {
        status st = attn_measure(&b, s, &r);
        if (st != OK) log_warn("case %d of seed %llu failed", r.number, (unsigned long long)b.seed);
        if (st == OK) st = print_row(&b, &a->io, &r);
        TRY(st);
    }
    if (!a->io.is_json) print_means(&b);
    return attn_bench_end(&b);
}

status bench_attention(int argc, char **argv) {
    bench_args a = {.io = {.name = "attention", .device = "auto", .act = ACT_BF16}};
    const arg_option options[] = {
        BENCH_OPTIONS(
            &a.io, work_dtypes, BENCH_DTYPES,
            "Seed of lengths and inputs, to compare two builds (default: a new one in every run)."),
        OPT_INT("--dim", &a.filter.dim, "D", 1, 65536,
                "Measure only rows with head dimension D: 32, 64, 128 or 256."),
        OPT_INT("--length", &a.filter.length, "S", 1, 1 << 24,
                "Measure only rows with sequences of up to S tokens: 50, 200, 512, 1024, 4096 or "
                "16384."),
        OPT_TEXT(
            "--mask", &a.filter.mask, "TEXT",
            "Measure only rows whose mask contains TEXT: causal, window, target, arbitrary, bias."),
        OPT_INT("--random", &a.filter.n_random, "N", 1, 1 << 20,
                "Instead of the table, measure N random shapes: head dimension, heads, sequences, "
                "lengths, mask, fewer queries than keys. A CPU shortens the sequences."),
        OPT_INT("--only", &a.filter.only, "K", 1, 1 << 20,
                "Measure only row K of the table, or of the random shapes of this --seed."),
        OPT_FLAG("--check", &a.filter.is_check, "Check the results, time nothing."),
        OPT_FLAG("--any-card", &a.filter.is_any_card,
                 "Use the kernels that run on every GPU instead of those for this one; the peer is "
                 "then the Ampere kernel."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench attention [options]",
        .summary = "Measure HSTU attention, forward and backward, at the shapes of the published "
                   "tables or at random ones. Each shape is first checked against float64; if "
                   "one is wrong, the others are measured and the exit status is 1.",
        .options = options,
        .notes =
            "Errors of out, dq, dk and dv at some rows are relative to the largest value. % "
            "is the share of a large matrix product's speed in this type. A GPU's times are "
            "of replayed calls; --json has plain calls, too. On an H200 in bfloat16, rows that "
            "NVIDIA's kernels were measured at show the ratio to the faster one."};
    ARGS_PARSE(&spec, NULL, NULL);
    return bench_run(&a.io, run, &a);
}
