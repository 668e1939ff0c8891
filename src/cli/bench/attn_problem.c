#include "cli/bench/attn_problem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "cpu/attn_naive.h"

enum { PIECE = 1 << 18, N_SAMPLES = 24, WINDOW = 256, N_CONTEXTS = 3, N_TARGETS = 20 };
enum { Q, K, V, DOUT, N_INPUTS };

const char *attn_mask_kind_name(attn_mask_kind mask) {
    static const char *const names[] = {"causal", "window 256", "context + target", "arbitrary"};
    return names[mask];
}

const char *attn_shape_label(const attn_shape *s, char text[ATTN_LABEL_BYTES]) {
    static const char *const biases[] = {"", " + bias table", " + time bias"};
    snprintf(text, ATTN_LABEL_BYTES, "%s%s", attn_mask_kind_name(s->mask), biases[s->bias]);
    return text;
}

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

/* Converts n inputs to the activation type; there are 256 different values. */
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

/* Copies them into n_copies new arrays, in pieces. */
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

static status alloc_view(const attn_shape *s, head_view *v) {
    *v = (head_view){0};
    for (int i = 0; i < N_INPUTS; i++)
        TRY(mem_alloc((void **)&v->rows[i], (size_t)s->max_len * (size_t)s->dim, sizeof(float)));
    if (s->bias != BIAS_TABLE) return OK;
    return MEM_NEW(&v->table, (size_t)s->max_len * (size_t)s->max_len);
}

static void free_view(head_view *v) {
    for (int i = 0; i < N_INPUTS; i++)
        mem_free(v->rows[i]);
    mem_free(v->table);
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
    const attn_shape *s = &p->shape;
    rng_key key = rng_make_key((uint64_t)p->n_tokens, RNG_TEST);
    head_view v;
    double *sum = NULL;
    float *got = NULL;
    *error = 0;
    TRY(p->be->ops->attn_fwd(p->be, &p->copy[0]));
    TRY(p->be->ops->attn_bwd(p->be, &p->copy[0]));
    status st = alloc_view(s, &v);
    if (st == OK) st = MEM_NEW(&sum, (size_t)s->max_len * (size_t)s->dim);
    if (st == OK) st = MEM_NEW(&got, (size_t)s->dim);
    for (int kind = ROW_OUT; kind < N_ROWS && st == OK; kind++)
        st = check_kind(p, (result_row)kind, key, &v, sum, got, error);
    free_view(&v);
    mem_free(sum);
    mem_free(got);
    return st;
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
