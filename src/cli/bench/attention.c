/* hstu bench attention: the problems, the check against float64, the timing and the table
 * (contract: attention.h). */
#include "cli/bench/attention.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "base/thread.h"
#include "cpu/attn_naive.h"
#include "profile/peak.h"

enum { PIECE = 1 << 18, N_SAMPLES = 24, WINDOW = 256, N_CONTEXTS = 3, N_TARGETS = 20 };
enum { Q, K, V, DOUT, N_INPUTS };
enum { N_HEADS = 4, RECORD_KEY = 77 };

/* More than the L2 cache of any GPU (H200: 50 MB). */
static const int64_t CACHE_BYTES = 64 << 20;

/* A CPU leaves out shapes whose forward pass has more FLOPs than this. */
static const double CPU_MAX_FLOPS = 2e10;

static const char *attn_mask_kind_name(attn_mask_kind mask) {
    static const char *const names[] = {"causal", "window 256", "context + target", "arbitrary"};
    return names[mask];
}

static const char *attn_shape_label(const attn_shape *s, char text[ATTN_LABEL_BYTES]) {
    static const char *const biases[] = {"", " + bias table", " + time bias"};
    snprintf(text, ATTN_LABEL_BYTES, "%s%s", attn_mask_kind_name(s->mask), biases[s->bias]);
    return text;
}

static int64_t width_of(const attn_problem *p) {
    return (int64_t)p->shape.n_heads * p->shape.dim;
}

static status draw_lengths(attn_problem *p, rng_key key) {
    const attn_shape *s = &p->shape;
    TRY(NN_NEW_HOST(&p->memory, &p->offsets, s->n_sequences + 1));
    for (int32_t b = 0; b < s->n_sequences; b++) {
        uint32_t word = rng_draw64(key, (uint64_t)b, 1).word[0];
        int32_t n = s->is_jagged ? 1 + (int32_t)rng_below(word, (uint32_t)s->max_len) : s->max_len;
        p->offsets[b + 1] = p->offsets[b] + n;
    }
    p->n_tokens = p->offsets[s->n_sequences];
    return OK;
}

/* 16 numbers of a draw. */
static status draw_numbers(attn_problem *p, rng_key key, uint64_t what, int64_t n, int8_t **out) {
    TRY(NN_NEW_HOST(&p->memory, out, n + 16));
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
    TRY(NN_NEW_HOST(&p->memory, &p->times, p->n_tokens));
    for (int64_t t = 0; t < p->n_tokens; t++) {
        rng_block drawn = rng_draw64(key, (uint64_t)t, 10);
        p->times[t] = now += 1 + (drawn.word[0] >> 13 >> drawn.word[1] % 19);
    }
    return OK;
}

static status draw_weights(attn_problem *p, rng_key key, uint64_t what, int64_t n, float **out) {
    TRY(NN_NEW_HOST(&p->memory, out, n));
    for (int64_t i = 0; i < n; i++)
        (*out)[i] = 2 * rng_uniform(rng_draw64(key, (uint64_t)i, what).word[0]) - 1;
    return OK;
}

static status draw_bias(attn_problem *p, rng_key key) {
    const attn_shape *s = &p->shape;
    if (s->bias == BIAS_TABLE) return draw_numbers(p, key, 11, table_numbers(s), &p->table);
    if (s->bias == BIAS_NONE) return OK;
    TRY(draw_times(p, key));
    TRY(draw_weights(p, key, 12, 2 * (int64_t)s->max_len - 1, &p->position_w));
    return draw_weights(p, key, 13, ATTN_TIME_BUCKETS + 1, &p->time_w);
}

/* Each row sees some keys from the first on, and some in the middle. */
static status draw_func(attn_problem *p, rng_key key) {
    int64_t n = p->n_tokens;
    TRY(NN_NEW_HOST(&p->memory, &p->func, 3 * n));
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

static status send_plain(attn_problem *p, const void *from, size_t bytes, void **out) {
    TRY(nn_new(&p->memory, out, (int64_t)bytes, 1));
    return p->be->ops->copy_in(p->be, *out, from, bytes);
}

static status send_ints(attn_problem *p, const int32_t *from, int64_t n, const int32_t **out) {
    return send_plain(p, from, (size_t)n * sizeof *from, (void **)out);
}

/* Converts n inputs to the activation type; there are 256 different values. */
static void convert(act_type act, const int8_t *from, int64_t n, void *to) {
    float table[256];
    size_t size = act_bytes(act);
    for (int i = 0; i < 256; i++)
        bench_put_act(act, &table[i], (float)(int8_t)(uint8_t)i / 128);
    for (int64_t i = 0; i < n; i++)
        memcpy((char *)to + (size_t)i * size, &table[(uint8_t)from[i]], size);
}

/* Copies them into n_copies new arrays, in pieces. */
static status send_acts(attn_problem *p, const int8_t *from, int64_t n, int n_copies, void **out) {
    static float piece[PIECE];
    size_t size = act_bytes(p->be->act);
    for (int c = 0; c < n_copies; c++)
        TRY(nn_new(&p->memory, &out[c], n, size));
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
    a->window_left = p->shape.mask == ATTN_WINDOW ? WINDOW : -1;
    a->target_group = 1;
    if (p->shape.mask == ATTN_ARBITRARY) {
        a->n_func = 3;
        a->func_stride = p->n_tokens;
        return send_ints(p, p->func, 3 * p->n_tokens, &a->func);
    }
    if (p->shape.mask != ATTN_TARGETS) return OK;
    TRY(NN_NEW_HOST(&p->memory, &list, 2 * n));
    for (int32_t b = 0; b < n; b++) {
        list[b] = N_CONTEXTS;
        list[n + b] = N_TARGETS;
    }
    TRY(send_ints(p, list, n, &a->n_contexts));
    return send_ints(p, list + n, n, &a->n_targets);
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
        return NN_NEW(&p->memory, &a->dtable, table_numbers(s));
    }
    if (s->bias == BIAS_NONE) return OK;
    TRY(send_plain(p, p->times, (size_t)p->n_tokens * sizeof *p->times, &there));
    a->query_time = a->key_time = there;
    TRY(send_plain(p, p->position_w, n_position * sizeof(float), (void **)&a->position_w));
    TRY(send_plain(p, p->time_w, n_time * sizeof(float), (void **)&a->time_w));
    TRY(NN_NEW(&p->memory, &a->dposition_w, (int64_t)n_position));
    return NN_NEW(&p->memory, &a->dtime_w, (int64_t)n_time);
}

/* Fills in all arguments except q, k, v and the results, which each copy has for itself. */
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
        TRY(nn_new_act(&p->memory, &a->out, p->n_tokens, width_of(p)));
        TRY(nn_new_act(&p->memory, &a->dq, p->n_tokens, width_of(p)));
        TRY(nn_new_act(&p->memory, &a->dk, p->n_tokens, width_of(p)));
        TRY(nn_new_act(&p->memory, &a->dv, p->n_tokens, width_of(p)));
    }
    return OK;
}

/* One head of one sequence, as the naive attention reads it. */
typedef struct head_view {
    attn_args a;
    int32_t offsets[2], n_contexts, n_targets;
    float *rows[N_INPUTS]; /* (len, dim) each */
    float *table;          /* (len, len) */
} head_view;

/* What attn_naive_sees needs of sequence b. */
static void view_mask(const attn_problem *p, int32_t b, head_view *v) {
    int32_t first = p->offsets[b], len = p->offsets[b + 1] - first;
    v->offsets[1] = len;
    v->n_contexts = N_CONTEXTS;
    v->n_targets = len < N_TARGETS ? len : N_TARGETS;
    v->a = (attn_args){.n_sequences = 1,
                       .n_heads = 1,
                       .offsets_q = v->offsets,
                       .offsets_k = v->offsets,
                       .window_left = p->shape.mask == ATTN_WINDOW ? WINDOW : -1,
                       .target_group = 1};
    if (p->shape.mask == ATTN_TARGETS) {
        v->a.n_contexts = &v->n_contexts;
        v->a.n_targets = &v->n_targets;
    }
    if (p->shape.mask != ATTN_ARBITRARY) return;
    v->a.func = p->func + first;
    v->a.n_func = 3;
    v->a.func_stride = p->n_tokens;
}

static void to_floats(const int8_t *from, int64_t stride, int32_t n_rows, int32_t n, float *to) {
    for (int32_t i = 0; i < n_rows; i++)
        for (int32_t d = 0; d < n; d++)
            to[(int64_t)i * n + d] = (float)from[i * stride + d] / 128;
}

static void view_bias(const attn_problem *p, int32_t b, int32_t head, head_view *v) {
    const attn_shape *s = &p->shape;
    int32_t first = p->offsets[b], len = p->offsets[b + 1] - first;
    attn_args *a = &v->a;
    a->bias = s->bias;
    a->bias_len = s->max_len;
    a->table_heads = 1;
    a->table_len = len;
    a->table = v->table;
    if (s->bias == BIAS_TABLE) {
        int64_t table = (b * (int64_t)s->n_heads + head) * s->max_len * s->max_len;
        to_floats(p->table + table, s->max_len, len, len, v->table);
    }
    if (s->bias != BIAS_TIME) return;
    a->query_time = a->key_time = p->times + first;
    a->position_w = p->position_w;
    a->time_w = p->time_w;
}

static void view_head(const attn_problem *p, int32_t b, int32_t head, head_view *v) {
    int32_t first = p->offsets[b], len = p->offsets[b + 1] - first, dim = p->shape.dim;
    view_mask(p, b, v);
    view_bias(p, b, head, v);
    for (int i = 0; i < N_INPUTS; i++)
        to_floats(p->input[i] + first * width_of(p) + (int64_t)head * dim, width_of(p), len, dim,
                  v->rows[i]);
    attn_args *a = &v->a;
    a->dim_qk = a->dim_v = dim;
    a->stride_q = a->stride_k = a->stride_v = a->stride_out = dim;
    a->q = v->rows[Q];
    a->k = v->rows[K];
    a->v = v->rows[V];
    a->dout = v->rows[DOUT];
    a->alpha = 1 / sqrtf((float)dim);
    a->scale = 1 / (float)p->shape.max_len;
}

/* One row of out, dq, dk or dv. */
typedef enum { ROW_OUT, ROW_DQ, ROW_DK, ROW_DV, N_ROWS } result_row;

typedef struct sample {
    int32_t b, head, at; /* the row's place in its sequence */
} sample;

/* sum: (max_len, dim), of which row s->at is computed. */
static void compute_row(const attn_problem *p, const sample *s, result_row kind, head_view *v,
                        double *sum) {
    int32_t len = p->offsets[s->b + 1] - p->offsets[s->b], dim = p->shape.dim;
    bool is_query = kind == ROW_OUT || kind == ROW_DQ;
    attn_naive_results to = {.out = kind == ROW_OUT ? sum : NULL,
                             .dq = kind == ROW_DQ ? sum : NULL,
                             .dk = kind == ROW_DK ? sum : NULL,
                             .dv = kind == ROW_DV ? sum : NULL};
    memset(sum + (int64_t)s->at * dim, 0, (size_t)dim * sizeof *sum);
    view_head(p, s->b, s->head, v);
    for (int32_t other = 0; other < len; other++)
        attn_naive_pair(&v->a, 0, 0, is_query ? s->at : other, is_query ? other : s->at, NULL, &to);
}

static status read_row(const attn_problem *p, const sample *s, result_row kind, float *out) {
    const void *const arrays[] = {p->copy[0].out, p->copy[0].dq, p->copy[0].dk, p->copy[0].dv};
    int64_t row = p->offsets[s->b] + s->at;
    size_t skip = (size_t)(row * width_of(p) + (int64_t)s->head * p->shape.dim);
    const char *at = (const char *)arrays[kind] + skip * act_bytes(p->be->act);
    return backend_read_act(p->be, out, at, (size_t)p->shape.dim);
}

static status check_kind(const attn_problem *p, result_row kind, rng_key key, head_view *v,
                         double *sum, float *got, double *error) {
    double most = 0, off = 0;
    for (int n = 0; n < N_SAMPLES; n++) {
        rng_block drawn = rng_draw64(key, (uint64_t)n, 20 + (uint64_t)kind);
        sample s = {.b = (int32_t)rng_below(drawn.word[0], (uint32_t)p->shape.n_sequences),
                    .head = (int32_t)rng_below(drawn.word[1], (uint32_t)p->shape.n_heads)};
        s.at = (int32_t)rng_below(drawn.word[2], (uint32_t)(p->offsets[s.b + 1] - p->offsets[s.b]));
        compute_row(p, &s, kind, v, sum);
        TRY(read_row(p, &s, kind, got));
        const double *want = sum + (int64_t)s.at * p->shape.dim;
        for (int32_t d = 0; d < p->shape.dim; d++) {
            if (fabs(want[d]) > most) most = fabs(want[d]);
            if (!(fabs(got[d] - want[d]) <= off)) off = fabs(got[d] - want[d]);
        }
    }
    double relative = most > 0 ? off / most : off;
    if (!(relative <= *error)) *error = relative;
    return OK;
}

status attn_problem_check(attn_problem *p, double *error) {
    int64_t len = p->shape.max_len, dim = p->shape.dim;
    rng_key key = rng_make_key((uint64_t)p->n_tokens, RNG_TEST);
    head_view v = {0};
    double *sum;
    float *got;
    *error = 0;
    TRY(p->be->ops->attn_fwd(p->be, &p->copy[0]));
    TRY(p->be->ops->attn_bwd(p->be, &p->copy[0]));
    for (int i = 0; i < N_INPUTS; i++)
        TRY(NN_NEW_HOST(&p->memory, &v.rows[i], len * dim));
    if (p->shape.bias == BIAS_TABLE) TRY(NN_NEW_HOST(&p->memory, &v.table, len * len));
    TRY(NN_NEW_HOST(&p->memory, &sum, len * dim));
    TRY(NN_NEW_HOST(&p->memory, &got, dim));
    for (int kind = ROW_OUT; kind < N_ROWS; kind++)
        TRY(check_kind(p, (result_row)kind, key, &v, sum, got, error));
    return OK;
}

/* Causal as the field counts it; for other masks the pairs that are seen, estimated from some rows.
 */
static double count_flops(const attn_problem *p) {
    double pairs = 0, per_pair = 4.0 * p->shape.n_heads * p->shape.dim;
    head_view v = {0};
    for (int32_t b = 0; b < p->shape.n_sequences; b++) {
        int32_t len = p->offsets[b + 1] - p->offsets[b], step = len / 64 + 1, n_rows = 0;
        double seen = 0;
        if (p->shape.mask == ATTN_CAUSAL) {
            pairs += (double)len * len / 2;
            continue;
        }
        view_mask(p, b, &v);
        for (int32_t i = 0; i < len; i += step, n_rows++)
            for (int32_t j = 0; j < len; j++)
                seen += attn_naive_sees(&v.a, 0, i, j);
        pairs += seen * len / n_rows;
    }
    return per_pair * pairs;
}

/* Between two uses of a copy the other copies are touched; together they have at least
 * cache_bytes. */
static int count_copies(double bytes, int64_t cache_bytes) {
    if (bytes >= (double)cache_bytes) return 1;
    int n = 2 + (int)((double)cache_bytes / bytes);
    return n < ATTN_MAX_COPIES ? n : ATTN_MAX_COPIES;
}

static status make(attn_problem *p, uint64_t seed, int64_t cache_bytes) {
    rng_key key = rng_make_key(seed, RNG_TEST);
    TRY(draw_lengths(p, key));
    for (int i = 0; i < N_INPUTS; i++)
        TRY(draw_numbers(p, key, 2 + (uint64_t)i, p->n_tokens * width_of(p), &p->input[i]));
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
    nn_memory_init(&p->memory, be);
    return make(p, seed, cache_bytes);
}

void attn_problem_close(attn_problem *p) {
    nn_memory_fini(&p->memory);
}

/* The published tables, and what they leave out: very long sequences, other masks, biases. */
static const attn_shape shapes[] = {
#define ROW(D, B, S, is_jagged, mask, bias)                                                        \
    { N_HEADS, D, B, S, is_jagged, mask, bias }
#define LENGTHS(D)                                                                                 \
    ROW(D, 32, 1024, false, ATTN_CAUSAL, BIAS_NONE),                                               \
        ROW(D, 32, 4096, false, ATTN_CAUSAL, BIAS_NONE),                                           \
        ROW(D, 32, 4096, true, ATTN_CAUSAL, BIAS_NONE),                                            \
        ROW(D, 128, 512, true, ATTN_CAUSAL, BIAS_NONE),                                            \
        ROW(D, 128, 200, true, ATTN_CAUSAL, BIAS_NONE),                                            \
        ROW(D, 512, 50, true, ATTN_CAUSAL, BIAS_NONE)
#define OTHERS(D)                                                                                  \
    ROW(D, 4, 16384, false, ATTN_CAUSAL, BIAS_NONE),                                               \
        ROW(D, 32, 4096, true, ATTN_WINDOW, BIAS_NONE),                                            \
        ROW(D, 32, 4096, true, ATTN_TARGETS, BIAS_NONE),                                           \
        ROW(D, 32, 4096, true, ATTN_ARBITRARY, BIAS_NONE),                                         \
        ROW(D, 8, 1024, false, ATTN_CAUSAL, BIAS_TABLE),                                           \
        ROW(D, 32, 1024, false, ATTN_CAUSAL, BIAS_TIME),                                           \
        ROW(D, 128, 200, true, ATTN_CAUSAL, BIAS_TIME)
    LENGTHS(32), LENGTHS(64), LENGTHS(128), LENGTHS(256), OTHERS(64), OTHERS(128),
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

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

/* Well above the error of naive code in this type, well below what a wrong index causes. */
static double allowed_error(act_type act) {
    return act == ACT_F32 ? 1e-3 : act == ACT_F16 ? 5e-3 : 3e-2;
}

/* For short sequences the printed TFLOP/s have one digit, so the time is more precise.  This
 * computes the figure from the time (lengths uniform in 1..S have a mean square of (2 S + 1) / 3
 * times their mean), and clamps it to the values that round to the printed figure. */
double attn_peer_tflops(const attn_shape *s, attn_peer peer, bench_timing how, bench_pass pass) {
    char key[80];
    int cell = 1 + 4 * (int)peer + 2 * (int)pass; /* after the number of tokens */
    if (s->mask != ATTN_CAUSAL || s->bias != BIAS_NONE || s->n_heads != N_HEADS) return NAN;
    snprintf(key, sizeof key, "%s,%d,%d,%d,%s", how == TIMED_PLAIN ? "plain" : "replay", s->dim,
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

static status check(attn_bench *b, attn_problem *p, double *error) {
    char label[ATTN_LABEL_BYTES];
    for (int c = 0; c < p->n_copies && b->is_any_card; c++)
        p->copy[c].n_rows_q = p->copy[c].n_rows_k = 0;
    TRY(attn_problem_check(p, error));
    if (*error <= allowed_error(p->be->act)) return OK;
    return fail(ERR_NUMERIC,
                "head dimension %d, sequences of %d, %s: the result differs from float64 by %.2g "
                "of its largest value; nothing was timed",
                p->shape.dim, p->shape.max_len, attn_shape_label(&p->shape, label), *error);
}

static void compare_with_peers(attn_bench *b, attn_row *r, int pass, int how) {
    r->tflops[pass][how] =
        (pass == PASS_FORWARD ? 1 : 2.5) * r->flops / r->seconds[pass][how] / 1e12;
    r->ratio[pass][how] = NAN;
    if (b->has_peers)
        r->ratio[pass][how] =
            r->tflops[pass][how] /
            attn_peer_best(&r->shape, b->is_any_card, (bench_timing)how, (bench_pass)pass);
    if (isnan(r->ratio[pass][how])) return;
    b->log_ratio[pass][how] += log(r->ratio[pass][how]);
    b->n_ratios[pass][how]++;
}

static status measure(attn_bench *b, attn_problem *p, attn_row *r) {
    *r = (attn_row){
        .shape = p->shape, .n_tokens = p->n_tokens, .flops = p->flops, .n_copies = p->n_copies};
    TRY(check(b, p, &r->error));
    for (int pass = 0; pass < N_PASSES; pass++) {
        timed_pass t = {p, pass};
        TRY(timing_plain(p->be, call, &t, &r->seconds[pass][TIMED_PLAIN]));
        TRY(timing_replay(p->be, RECORD_KEY + (uint64_t)pass, call, &t,
                          &r->seconds[pass][TIMED_REPLAY]));
        for (int how = 0; how < N_TIMINGS; how++)
            compare_with_peers(b, r, pass, how);
    }
    return OK;
}

status attn_measure(attn_bench *b, const attn_shape *s, attn_row *out) {
    attn_problem p;
    backend *be = b->be;
    /* Drops old recordings: they use the memory of the problem before. */
    TRY(be->ops->set_precision(be, be->act, false));
    status st = attn_problem_open(&p, be, s, b->seed, be->n_ahead > 0 ? CACHE_BYTES : 0);
    if (st == OK) st = measure(b, &p, out);
    attn_problem_close(&p);
    return st;
}

/* An upper bound of the forward pass's FLOPs, known before lengths are drawn. */
static double bound_flops(const attn_shape *s) {
    return 4.0 * s->n_heads * s->dim * s->n_sequences * (double)s->max_len * s->max_len / 2;
}

static bool is_wanted(const attn_filter *f, const attn_shape *s) {
    char label[ATTN_LABEL_BYTES];
    if (f->dim != 0 && f->dim != s->dim) return false;
    if (f->length != 0 && f->length != s->max_len) return false;
    return f->mask == NULL || strstr(attn_shape_label(s, label), f->mask) != NULL;
}

status attn_bench_open(attn_bench *b, backend *be, const attn_filter *filter, bool is_any_card) {
    int n_wanted = 0;
    *b = (attn_bench){.be = be, .filter = *filter, .is_any_card = is_any_card};
    b->seed = filter->seed != 0 ? (uint64_t)filter->seed : clock_ns();
    b->has_peers = bench_has_peers(be);
    for (int i = 0; i < N_SHAPES; i++)
        n_wanted += is_wanted(filter, &shapes[i]);
    if (n_wanted == 0)
        return fail(ERR_USAGE,
                    "no row has this --dim, --length and --mask; without them all %d "
                    "rows are measured",
                    (int)N_SHAPES);
    return peak_measure(be, &b->peak);
}

const attn_shape *attn_bench_next(attn_bench *b) {
    while (b->next < N_SHAPES) {
        const attn_shape *s = &shapes[b->next++];
        bool is_long = b->be->n_ahead == 0 && bound_flops(s) > CPU_MAX_FLOPS;
        if (!is_wanted(&b->filter, s)) continue;
        if (!is_long) return s;
        b->n_left_out++;
    }
    return NULL;
}

static const char *const pass_names[N_PASSES] = {"forward", "backward"};

/* A number whose key is composed; left out if it is not known. */
static void write_number(json_writer *w, const char *pass, const char *name, double value) {
    char key[40];
    if (isnan(value)) return;
    snprintf(key, sizeof key, "%s_%s", pass, name);
    json_key_double(w, key, value);
}

static void write_pass(json_writer *w, const attn_row *r, int pass) {
    static const char *const keys[N_PASSES] = {"fwd", "bwd"};
    const double *seconds = r->seconds[pass];
    write_number(w, keys[pass], "ms", seconds[TIMED_PLAIN] * 1e3);
    write_number(w, keys[pass], "tflops", r->tflops[pass][TIMED_PLAIN]);
    write_number(w, keys[pass], "ratio", r->ratio[pass][TIMED_PLAIN]);
    write_number(w, keys[pass], "replay_us", seconds[TIMED_REPLAY] * 1e6);
    write_number(w, keys[pass], "replay_tflops", r->tflops[pass][TIMED_REPLAY]);
    write_number(w, keys[pass], "replay_ratio", r->ratio[pass][TIMED_REPLAY]);
}

static status print_json(const attn_bench *b, const attn_row *r) {
    static const char *const biases[] = {"none", "table", "time"};
    const attn_shape *s = &r->shape;
    json_writer *w = bench_json_open("attention", b->be);
    JSON_FIELDS(w, FIELD("seed", b->seed), FIELD("any_card", b->is_any_card),
                FIELD("mask", attn_mask_kind_name(s->mask)), FIELD("bias", biases[s->bias]),
                FIELD("heads", s->n_heads), FIELD("dim", s->dim),
                FIELD("sequences", s->n_sequences), FIELD("length", s->max_len),
                FIELD("jagged", s->is_jagged), FIELD("tokens", r->n_tokens),
                FIELD("fwd_gflop", r->flops / 1e9), FIELD("copies", r->n_copies),
                FIELD("error", r->error), FIELD("peak_tflops", b->peak / 1e12));
    for (int pass = 0; pass < N_PASSES; pass++)
        write_pass(w, r, pass);
    return json_line_print();
}

static bool has_replay(const attn_bench *b) {
    return b->be->token_bucket > 0;
}

static void print_head(const attn_bench *b) {
    show_style style = show_stdout_style();
    const char *x_peer = b->has_peers ? "  x peer" : "";
    printf("HSTU attention on %s in %s, 4 heads%s; a large product here: %.3g TFLOP/s\n\n",
           bench_device(b->be), work_dtypes[b->be->act],
           b->is_any_card ? ", kernels for any card" : "", b->peak / 1e12);
    printf("%s%4s %4s %8s  %-21s%7s  %-8s %10s %8s %6s%s", style.bold, "D", "B", "S", "mask",
           "tokens", "", "plain ms", "TFLOP/s", "%", x_peer);
    if (has_replay(b)) printf("  %10s %8s %6s%s", "replay us", "TFLOP/s", "%", x_peer);
    printf("  %8s%s\n", "error", style.plain);
}

/* Decimals that give about three digits. */
static int digits_of(double x) {
    return x < 1 ? 3 : x < 10 ? 2 : x < 100 ? 1 : 0;
}

static void print_timing(const attn_bench *b, const attn_row *r, int pass, int how) {
    double speed = r->tflops[pass][how], times = r->ratio[pass][how];
    double seconds = r->seconds[pass][how];
    printf(how == TIMED_PLAIN ? " %10.3f" : "  %10.1f", seconds * (how == TIMED_PLAIN ? 1e3 : 1e6));
    printf(" %8.*f %6.1f", digits_of(speed), speed, 1e14 * speed / b->peak);
    if (b->has_peers) bench_print_cell(times, " %7.2f");
}

/* Two lines, one for each pass. */
static void print_text(const attn_bench *b, const attn_row *r) {
    const attn_shape *s = &r->shape;
    char label[ATTN_LABEL_BYTES], length[16];
    snprintf(length, sizeof length, s->is_jagged ? "1-%d" : "%d", s->max_len);
    printf("%4d %4d %8s  %-21s%7lld", s->dim, s->n_sequences, length, attn_shape_label(s, label),
           (long long)r->n_tokens);
    for (int pass = 0; pass < N_PASSES; pass++) {
        if (pass > 0) printf("%48s", "");
        printf("  %-8s", pass_names[pass]);
        print_timing(b, r, pass, TIMED_PLAIN);
        if (has_replay(b)) print_timing(b, r, pass, TIMED_REPLAY);
        if (pass == 0) printf("  %8.1e", r->error);
        printf("\n");
    }
    (void)fflush(stdout);
}

static void print_mean(const char *name, const double *log_ratio, const int *n) {
    printf("  %-9s", name);
    for (int how = 0; how < N_TIMINGS; how++) {
        if (n[how] == 0)
            printf(" %9s      ", "-");
        else
            printf(" %9.3f (%3d)", exp(log_ratio[how] / n[how]), n[how]);
    }
    printf("\n");
}

static void print_means(const attn_bench *b) {
    double log_ratio[N_TIMINGS] = {0};
    int n[N_TIMINGS] = {0}, n_all = 0;
    for (int pass = 0; pass < N_PASSES; pass++)
        for (int how = 0; how < N_TIMINGS; how++) {
            log_ratio[how] += b->log_ratio[pass][how];
            n[how] += b->n_ratios[pass][how];
            n_all += b->n_ratios[pass][how];
        }
    if (has_replay(b))
        printf("\nplain: one call, waited for; replay: one of a recording of calls, without the "
               "host's time.\n");
    if (n_all == 0) return;
    printf("x peer: TFLOP/s / TFLOP/s of %s kernel on an H200; above 1 is faster.\n"
           "Geometric means (rows):\n\n  %-9s %9s %5s %9s\n",
           b->is_any_card ? "NVIDIA's Ampere" : "the better NVIDIA", "", "plain", "", "replay");
    for (int pass = 0; pass < N_PASSES; pass++)
        print_mean(pass_names[pass], b->log_ratio[pass], b->n_ratios[pass]);
    print_mean("both", log_ratio, n);
}

typedef struct bench_args {
    const char *device;
    int act;
    attn_filter filter;
    bool is_any_card, is_json;
} bench_args;

static status run(void *ctx, const work *w) {
    const bench_args *a = ctx;
    attn_bench b;
    attn_row r;
    TRY(attn_bench_open(&b, w->be, &a->filter, a->is_any_card));
    if (!a->is_json) print_head(&b);
    for (const attn_shape *s; (s = attn_bench_next(&b)) != NULL;) {
        TRY(attn_measure(&b, s, &r));
        if (a->is_json)
            TRY(print_json(&b, &r));
        else
            print_text(&b, &r);
    }
    if (a->is_json) return OK;
    print_means(&b);
    if (b.n_left_out > 0)
        printf("\n%d rows are for a GPU: they would take minutes here.\n", b.n_left_out);
    return OK;
}

status bench_attention(int argc, char **argv) {
    bench_args a = {.device = "auto", .act = ACT_BF16};
    const arg_option options[] = {
        OPT_TEXT("--device", &a.device, "DEVICE", WORK_DEVICES),
        OPT_CHOICE("--dtype", &a.act, "TYPE", work_dtypes, BENCH_DTYPES),
        OPT_INT("--dim", &a.filter.dim, "D", 1, 65536,
                "Measure only rows with head dimension D: 32, 64, 128 or 256."),
        OPT_INT("--length", &a.filter.length, "S", 1, 1 << 24,
                "Measure only rows with sequences of up to S tokens: 50, 200, 512, 1024, 4096 or "
                "16384."),
        OPT_TEXT(
            "--mask", &a.filter.mask, "TEXT",
            "Measure only rows whose mask contains TEXT: causal, window, target, arbitrary, bias."),
        OPT_INT(
            "--seed", &a.filter.seed, "N", 1, INT64_MAX,
            "Seed of lengths and inputs, to compare two builds (default: a new one in every run)."),
        OPT_FLAG("--any-card", &a.is_any_card,
                 "Use the kernels that run on every GPU instead of those for this one; the peer is "
                 "then the Ampere kernel."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object per row."),
        {0},
    };
    const arg_spec spec = {.usage = "hstu bench attention [options]",
                           .summary =
                               "Measure HSTU attention, forward and backward, at the shapes of the "
                               "published tables. Each shape is first checked against float64.",
                           .options = options,
                           .notes = "On an H200 in bfloat16, rows that NVIDIA's kernels were "
                                    "measured at show the ratio to the faster one."};
    ARGS_PARSE(&spec, NULL, NULL);
    return bench_run(a.device, a.act, false, run, &a);
}
