#include "bench/attn_problem.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "ops/time_bucket.h"

enum { PIECE = 1 << 18, N_SAMPLES = 24, WINDOW = 256, N_CONTEXTS = 3, N_TARGETS = 20 };
enum { Q, K, V, DOUT, N_INPUTS };

const char *attn_mask_kind_name(attn_mask_kind mask) {
    static const char *const names[] = {"causal", "window 256", "context + target", "arbitrary"};
    return names[mask];
}

/* ---- making ---------------------------------------------------------------------------------- */

static int64_t width_of(const attn_problem *p) {
    return (int64_t)p->shape.n_heads * p->shape.dim;
}

static status draw_lengths(attn_problem *p, rng_key key) {
    const attn_shape *s = &p->shape;
    TRY(MEM_NEW(&p->offsets, (size_t)s->n_sequences + 1));
    for (int32_t b = 0; b < s->n_sequences; b++) {
        uint32_t word = rng_draw64(key, (uint64_t)b, 1).word[0];
        int32_t n = s->is_jagged ? 1 + (int32_t)rng_below(word, (uint32_t)s->max_len) : s->max_len;
        p->offsets[b + 1] = p->offsets[b] + n;
    }
    p->n_tokens = p->offsets[s->n_sequences];
    return OK;
}

/* 16 numbers of a draw. */
static status draw_numbers(rng_key key, uint64_t what, int64_t n, int8_t **out) {
    TRY(mem_alloc_raw((void **)out, (size_t)n + 16, 1));
    for (int64_t at = 0; at < n; at += 16) {
        rng_block drawn = rng_draw64(key, (uint64_t)at, what);
        memcpy(*out + at, drawn.word, sizeof drawn.word);
    }
    return OK;
}

static int64_t table_numbers(const attn_shape *s) {
    return (int64_t)s->n_sequences * s->n_heads * s->max_len * s->max_len;
}

/* Events from a second to six days apart. */
static status draw_times(attn_problem *p, rng_key key) {
    int64_t now = 0;
    TRY(MEM_NEW(&p->times, (size_t)p->n_tokens));
    for (int64_t t = 0; t < p->n_tokens; t++) {
        rng_block drawn = rng_draw64(key, (uint64_t)t, 10);
        p->times[t] = now += 1 + (drawn.word[0] >> 13 >> drawn.word[1] % 19);
    }
    return OK;
}

static status draw_weights(rng_key key, uint64_t what, int64_t n, float **out) {
    TRY(MEM_NEW(out, (size_t)n));
    for (int64_t i = 0; i < n; i++)
        (*out)[i] = 2 * rng_uniform(rng_draw64(key, (uint64_t)i, what).word[0]) - 1;
    return OK;
}

static status draw_bias(attn_problem *p, rng_key key) {
    const attn_shape *s = &p->shape;
    if (s->bias == BIAS_TABLE) return draw_numbers(key, 11, table_numbers(s), &p->table);
    if (s->bias == BIAS_NONE) return OK;
    TRY(draw_times(p, key));
    TRY(draw_weights(key, 12, 2 * (int64_t)s->max_len - 1, &p->position_w));
    return draw_weights(key, 13, ATTN_TIME_BUCKETS + 1, &p->time_w);
}

/* Each row sees some keys from the first on, and some in the middle. */
static status draw_func(attn_problem *p, rng_key key) {
    int64_t n = p->n_tokens;
    TRY(MEM_NEW(&p->func, (size_t)(3 * n)));
    for (int32_t b = 0; b < p->shape.n_sequences; b++) {
        uint32_t len = (uint32_t)(p->offsets[b + 1] - p->offsets[b]);
        for (int32_t t = p->offsets[b]; t < p->offsets[b + 1]; t++) {
            rng_block drawn = rng_draw64(key, (uint64_t)t, 9);
            uint32_t first = rng_below(drawn.word[1], len + 1);
            p->func[t] = (int32_t)rng_below(drawn.word[0], len / 4 + 1);
            p->func[n + t] = (int32_t)first;
            p->func[2 * n + t] = (int32_t)(first + rng_below(drawn.word[2], len - first + 1));
        }
    }
    return OK;
}

static status new_array(attn_problem *p, size_t bytes, void **out) {
    TRY(p->be->ops->alloc(p->be, out, bytes));
    p->device[p->n_device++] = *out;
    return OK;
}

static status send_plain(attn_problem *p, const void *from, size_t bytes, void **out) {
    TRY(new_array(p, bytes, out));
    return p->be->ops->copy_in(p->be, *out, from, bytes);
}

static status send_ints(attn_problem *p, const int32_t *from, int64_t n, const int32_t **out) {
    return send_plain(p, from, (size_t)n * sizeof *from, (void **)out);
}

static uint16_t to_half(act_type act, int8_t x) {
    float value = (float)x / 128;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (act == ACT_BF16) return (uint16_t)(bits >> 16);
    if (x == 0) return 0;
    return (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10) |
                      (bits >> 13 & 1023));
}

/* n numbers in the type of activations; there are 256 of them. */
static void convert(act_type act, const int8_t *from, int64_t n, void *to) {
    uint16_t halves[256];
    for (int i = 0; i < 256; i++)
        halves[i] = to_half(act, (int8_t)(uint8_t)i);
    for (int64_t i = 0; i < n; i++) {
        if (act == ACT_F32)
            ((float *)to)[i] = (float)from[i] / 128;
        else
            ((uint16_t *)to)[i] = halves[(uint8_t)from[i]];
    }
}

/* To n_copies new arrays, in pieces. */
static status send_acts(attn_problem *p, const int8_t *from, int64_t n, int n_copies, void **out) {
    static float piece[PIECE];
    size_t size = act_bytes(p->be->act);
    for (int c = 0; c < n_copies; c++)
        TRY(new_array(p, (size_t)n * size, &out[c]));
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t left = n - at < PIECE ? n - at : PIECE;
        convert(p->be->act, from + at, left, piece);
        for (int c = 0; c < n_copies; c++)
            TRY(p->be->ops->copy_in(p->be, (char *)out[c] + (size_t)at * size, piece,
                                    (size_t)left * size));
    }
    return OK;
}

static status send_mask(attn_problem *p, attn_args *a) {
    int32_t n = p->shape.n_sequences, *list;
    status st = OK;
    a->window_left = p->shape.mask == ATTN_WINDOW ? WINDOW : -1;
    a->target_group = 1;
    if (p->shape.mask == ATTN_ARBITRARY) {
        a->n_func = 3;
        a->func_stride = p->n_tokens;
        return send_ints(p, p->func, 3 * p->n_tokens, &a->func);
    }
    if (p->shape.mask != ATTN_TARGETS) return OK;
    TRY(MEM_NEW(&list, (size_t)n));
    for (int32_t b = 0; b < n; b++)
        list[b] = N_CONTEXTS;
    st = send_ints(p, list, n, &a->n_contexts);
    for (int32_t b = 0; b < n; b++)
        list[b] = N_TARGETS;
    if (st == OK) st = send_ints(p, list, n, &a->n_targets);
    mem_free(list);
    return st;
}

static status send_bias(attn_problem *p, attn_args *a) {
    const attn_shape *s = &p->shape;
    size_t n_position = 2 * (size_t)s->max_len - 1, n_time = ATTN_TIME_BUCKETS + 1;
    void *there;
    a->bias = s->bias;
    a->bias_len = a->table_len = s->max_len;
    a->table_heads = s->n_heads;
    if (s->bias == BIAS_TABLE) {
        TRY(send_acts(p, p->table, table_numbers(s), 1, &there));
        a->table = there;
        return new_array(p, (size_t)table_numbers(s) * sizeof(float), (void **)&a->dtable);
    }
    if (s->bias == BIAS_NONE) return OK;
    TRY(send_plain(p, p->times, (size_t)p->n_tokens * sizeof *p->times, &there));
    a->query_time = a->key_time = there;
    TRY(send_plain(p, p->position_w, n_position * sizeof(float), (void **)&a->position_w));
    TRY(send_plain(p, p->time_w, n_time * sizeof(float), (void **)&a->time_w));
    TRY(new_array(p, n_position * sizeof(float), (void **)&a->dposition_w));
    return new_array(p, n_time * sizeof(float), (void **)&a->dtime_w);
}

/* All but the rows, which each copy has of its own. */
static status send_shared(attn_problem *p, attn_args *a) {
    const attn_shape *s = &p->shape;
    *a = (attn_args){.n_sequences = s->n_sequences,
                     .n_heads = s->n_heads,
                     .dim_qk = s->dim,
                     .dim_v = s->dim,
                     .max_len_q = s->max_len,
                     .max_len_k = s->max_len,
                     .n_rows_q = p->n_tokens,
                     .n_rows_k = p->n_tokens,
                     .alpha = 1 / sqrtf((float)s->dim),
                     .scale = 1 / (float)s->max_len};
    a->stride_q = a->stride_k = a->stride_v = a->stride_out = width_of(p);
    TRY(send_mask(p, a));
    TRY(send_bias(p, a));
    TRY(send_ints(p, p->offsets, (int64_t)s->n_sequences + 1, &a->offsets_q));
    a->offsets_k = a->offsets_q;
    return OK;
}

static status send_all(attn_problem *p) {
    int64_t n = p->n_tokens * width_of(p);
    size_t bytes = (size_t)n * act_bytes(p->be->act);
    void *there[N_INPUTS][ATTN_MAX_COPIES];
    attn_args shared;
    TRY(send_shared(p, &shared));
    for (int i = 0; i < N_INPUTS; i++)
        TRY(send_acts(p, p->input[i], n, p->n_copies, there[i]));
    for (int c = 0; c < p->n_copies; c++) {
        attn_args *a = &p->copy[c];
        *a = shared;
        a->q = there[Q][c];
        a->k = there[K][c];
        a->v = there[V][c];
        a->dout = there[DOUT][c];
        TRY(new_array(p, bytes, &a->out));
        TRY(new_array(p, bytes, &a->dq));
        TRY(new_array(p, bytes, &a->dk));
        TRY(new_array(p, bytes, &a->dv));
    }
    return OK;
}

/* ---- float64 --------------------------------------------------------------------------------- */

/* Does row i of a sequence of len tokens see column j?  In the words of ops.h. */
static bool sees(const attn_problem *p, int32_t b, int32_t i, int32_t j) {
    int32_t first = p->offsets[b], len = p->offsets[b + 1] - first;
    int32_t history = len > N_TARGETS ? len - N_TARGETS : 0;
    int64_t n = p->n_tokens, row = first + i;
    switch (p->shape.mask) {
    case ATTN_CAUSAL:
        return j <= i;
    case ATTN_WINDOW:
        return j <= i && j >= i - WINDOW;
    case ATTN_TARGETS:
        if (i < N_CONTEXTS && j < history) return true;
        return j <= i && !(i >= history && j >= history && j < i);
    case ATTN_ARBITRARY:
        return j < p->func[row] || (j >= p->func[n + row] && j < p->func[2 * n + row]);
    }
    return false;
}

static const int8_t *row_of(const attn_problem *p, int input, int64_t token, int32_t head) {
    return p->input[input] + token * width_of(p) + (int64_t)head * p->shape.dim;
}

static double dot(const int8_t *x, const int8_t *y, int32_t n) {
    int64_t sum = 0;
    for (int32_t d = 0; d < n; d++)
        sum += (int32_t)x[d] * y[d];
    return (double)sum / (128.0 * 128.0);
}

/* Buckets by the table that the backends use: the tests hold it against the logarithm. */
static double bias_of(const attn_problem *p, int32_t b, int32_t head, int32_t i, int32_t j) {
    int64_t n = p->shape.max_len, first = p->offsets[b];
    if (p->table != NULL)
        return p->table[((b * (int64_t)p->shape.n_heads + head) * n + i) * n + j] / 128.0;
    if (p->times == NULL) return 0;
    float distance = bucket_distance(p->times[first + i], p->times[first + j]);
    return (double)p->position_w[n - 1 + j - i] +
           (double)p->time_w[bucket_of(bucket_table_get(), distance)];
}

/* One row of out, dq, dk or dv. */
typedef enum { ROW_OUT, ROW_DQ, ROW_DK, ROW_DV, N_ROWS } result_row;

typedef struct sample {
    int32_t b, head, at; /* the row's place in its sequence */
    double *sum;         /* (dim) */
} sample;

static void add_scaled(double *sum, double weight, const int8_t *x, int32_t n) {
    for (int32_t d = 0; d < n; d++)
        sum[d] += weight * x[d] / 128;
}

/* What the pair (i, j) adds to a row. */
static void add_pair(const attn_problem *p, const sample *s, result_row kind, int32_t i,
                     int32_t j) {
    int32_t dim = p->shape.dim;
    int64_t first = p->offsets[s->b];
    double alpha = p->copy[0].alpha, scale = p->copy[0].scale;
    const int8_t *q = row_of(p, Q, first + i, s->head), *k = row_of(p, K, first + j, s->head);
    const int8_t *v = row_of(p, V, first + j, s->head), *d = row_of(p, DOUT, first + i, s->head);
    if (!sees(p, s->b, i, j)) return;
    double x = alpha * (dot(q, k, dim) + bias_of(p, s->b, s->head, i, j));
    double sigmoid = 1 / (1 + exp(-x));
    double slope = scale * alpha * sigmoid * (1 + x * (1 - sigmoid));
    if (kind == ROW_OUT) add_scaled(s->sum, scale * x * sigmoid, v, dim);
    if (kind == ROW_DV) add_scaled(s->sum, scale * x * sigmoid, d, dim);
    if (kind == ROW_DQ) add_scaled(s->sum, slope * dot(d, v, dim), k, dim);
    if (kind == ROW_DK) add_scaled(s->sum, slope * dot(d, v, dim), q, dim);
}

static void compute_row(const attn_problem *p, const sample *s, result_row kind) {
    int32_t len = p->offsets[s->b + 1] - p->offsets[s->b];
    memset(s->sum, 0, (size_t)p->shape.dim * sizeof *s->sum);
    for (int32_t other = 0; other < len; other++) {
        bool is_query = kind == ROW_OUT || kind == ROW_DQ;
        add_pair(p, s, kind, is_query ? s->at : other, is_query ? other : s->at);
    }
}

static status read_row(const attn_problem *p, const sample *s, result_row kind, float *out) {
    const void *const arrays[] = {p->copy[0].out, p->copy[0].dq, p->copy[0].dk, p->copy[0].dv};
    int64_t row = p->offsets[s->b] + s->at;
    size_t skip = (size_t)(row * width_of(p) + (int64_t)s->head * p->shape.dim);
    const char *at = (const char *)arrays[kind] + skip * act_bytes(p->be->act);
    return backend_read_act(p->be, out, at, (size_t)p->shape.dim);
}

static status check_kind(const attn_problem *p, result_row kind, rng_key key, double *sum,
                         float *got, double *error) {
    double most = 0, off = 0;
    for (int n = 0; n < N_SAMPLES; n++) {
        rng_block drawn = rng_draw64(key, (uint64_t)n, 20 + (uint64_t)kind);
        sample s = {.b = (int32_t)rng_below(drawn.word[0], (uint32_t)p->shape.n_sequences),
                    .head = (int32_t)rng_below(drawn.word[1], (uint32_t)p->shape.n_heads),
                    .sum = sum};
        s.at = (int32_t)rng_below(drawn.word[2], (uint32_t)(p->offsets[s.b + 1] - p->offsets[s.b]));
        compute_row(p, &s, kind);
        TRY(read_row(p, &s, kind, got));
        for (int32_t d = 0; d < p->shape.dim; d++) {
            if (fabs(sum[d]) > most) most = fabs(sum[d]);
            if (!(fabs(got[d] - sum[d]) <= off)) off = fabs(got[d] - sum[d]);
        }
    }
    double relative = most > 0 ? off / most : off;
    if (!(relative <= *error)) *error = relative;
    return OK;
}

status attn_problem_check(attn_problem *p, double *error) {
    double *sum = NULL;
    float *got = NULL;
    *error = 0;
    TRY(p->be->ops->attn_fwd(p->be, &p->copy[0]));
    TRY(p->be->ops->attn_bwd(p->be, &p->copy[0]));
    status st = MEM_NEW(&sum, (size_t)p->shape.dim);
    if (st == OK) st = MEM_NEW(&got, (size_t)p->shape.dim);
    for (int kind = ROW_OUT; kind < N_ROWS && st == OK; kind++)
        st = check_kind(p, (result_row)kind, rng_make_key((uint64_t)p->n_tokens, RNG_TEST), sum,
                        got, error);
    mem_free(sum);
    mem_free(got);
    return st;
}

/* ---- both ------------------------------------------------------------------------------------ */

/* Causal as the field counts it; of other masks the pairs that are seen, from some rows. */
static double count_flops(const attn_problem *p) {
    double pairs = 0, per_pair = 4.0 * p->shape.n_heads * p->shape.dim;
    for (int32_t b = 0; b < p->shape.n_sequences; b++) {
        int32_t len = p->offsets[b + 1] - p->offsets[b], step = len / 64 + 1, n_rows = 0;
        double seen = 0;
        if (p->shape.mask == ATTN_CAUSAL) {
            pairs += (double)len * len / 2;
            continue;
        }
        for (int32_t i = 0; i < len; i += step, n_rows++)
            for (int32_t j = 0; j < len; j++)
                seen += sees(p, b, i, j);
        pairs += seen * len / n_rows;
    }
    return per_pair * pairs;
}

/* Between two turns of a copy the others, and a cache's worth of bytes, must have passed. */
static int count_copies(double bytes, int64_t cache_bytes) {
    if (bytes >= (double)cache_bytes) return 1;
    int n = 2 + (int)((double)cache_bytes / bytes);
    return n < ATTN_MAX_COPIES ? n : ATTN_MAX_COPIES;
}

static status make(attn_problem *p, uint64_t seed, int64_t cache_bytes) {
    rng_key key = rng_make_key(seed, RNG_TEST);
    TRY(draw_lengths(p, key));
    for (int i = 0; i < N_INPUTS; i++)
        TRY(draw_numbers(key, 2 + (uint64_t)i, p->n_tokens * width_of(p), &p->input[i]));
    if (p->shape.mask == ATTN_ARBITRARY) TRY(draw_func(p, key));
    TRY(draw_bias(p, key));
    int64_t n_numbers = 4 * p->n_tokens * width_of(p);
    if (p->table != NULL) n_numbers += table_numbers(&p->shape);
    p->flops = count_flops(p);
    p->bytes = (double)n_numbers * (double)act_bytes(p->be->act);
    p->n_copies = count_copies(p->bytes, cache_bytes);
    return send_all(p);
}

status attn_problem_open(attn_problem *p, backend *be, const attn_shape *shape, uint64_t seed,
                         int64_t cache_bytes) {
    *p = (attn_problem){.be = be, .shape = *shape};
    return make(p, seed, cache_bytes);
}

void attn_problem_close(attn_problem *p) {
    void *const owned[] = {p->offsets, p->func, p->table, p->times, p->position_w, p->time_w};
    for (int i = 0; i < p->n_device; i++)
        p->be->ops->release(p->be, p->device[i]);
    for (int i = 0; i < N_INPUTS; i++)
        mem_free(p->input[i]);
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        mem_free(owned[i]);
    p->n_device = 0;
}
