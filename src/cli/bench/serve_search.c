#include "cli/bench/serve_search.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cli/bench/timing.h"

enum { PIECE = 1 << 16 }; /* rows made at a time */

typedef struct problem {
    backend *be;
    const search_shape *s;
    uint64_t state; /* of the random numbers */
    char *items, *queries;
    rank_int8 small; /* zeros: none */
    float *query;    /* (dim): the first one */
    int32_t *best;   /* (n_queries, k) */
    float *score;    /* (n_queries, k) */
    int32_t *want;   /* (k) */
    float *want_by;  /* (k) */
    int64_t n_want;
} problem;

/* xorshift64: there are billions to draw. */
static uint64_t draw(problem *p) {
    p->state ^= p->state << 13;
    p->state ^= p->state >> 7;
    p->state ^= p->state << 17;
    return p->state;
}

/* x / 64 in the type of the activations; every such number is exact in each of them. */
static void put(act_type act, char *to, int8_t x) {
    float value = (float)x / 64;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t half = (uint16_t)(bits >> 16);
    if (act == ACT_F16 && x != 0)
        half = (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 23 & 255) - 112) << 10 |
                          (bits >> 13 & 0x3ff));
    if (act == ACT_F32)
        memcpy(to, &value, sizeof value);
    else
        memcpy(to, &half, sizeof half);
}

/* n random rows in act, and as multiples of 1/64. */
static void make_rows(problem *p, int64_t n, char *to, int8_t *plain) {
    size_t size = act_bytes(p->be->act);
    char table[256][4];
    for (int i = 0; i < 256; i++)
        put(p->be->act, table[i], (int8_t)(uint8_t)i);
    for (int64_t i = 0; i < n * p->s->dim; i += 8) {
        uint64_t word = draw(p);
        for (int64_t b = 0; b < 8 && i + b < n * p->s->dim; b++) {
            uint8_t x = (uint8_t)(word >> (8 * b));
            plain[i + b] = (int8_t)x;
            memcpy(to + (size_t)(i + b) * size, table[x], size);
        }
    }
}

/* Item `row` joins the best of the first query, if it is one of them: of equal ones the first. */
static void offer(problem *p, float score, int64_t row) {
    int64_t at = p->n_want;
    while (at > 0 && p->want_by[at - 1] < score)
        at--;
    if (at == p->s->k) return;
    int64_t n = p->n_want < p->s->k ? p->n_want++ : p->n_want - 1;
    memmove(p->want + at + 1, p->want + at, (size_t)(n - at) * sizeof *p->want);
    memmove(p->want_by + at + 1, p->want_by + at, (size_t)(n - at) * sizeof *p->want_by);
    p->want[at] = (int32_t)row;
    p->want_by[at] = score;
}

static float multiply(const problem *p, const int8_t *row) {
    float sum = 0;
    for (int64_t c = 0; c < p->s->dim; c++)
        sum += p->query[c] * (float)row[c];
    return sum / 64;
}

static status make_items(problem *p, char *rows, int8_t *plain) {
    const search_shape *s = p->s;
    size_t row_bytes = (size_t)s->dim * act_bytes(p->be->act);
    make_rows(p, s->n_queries, rows, plain);
    for (int64_t c = 0; c < s->dim; c++)
        p->query[c] = (float)plain[c] / 64;
    TRY(p->be->ops->copy_in(p->be, p->queries, rows, (size_t)s->n_queries * row_bytes));
    for (int64_t first = 0; first < s->n_items; first += PIECE) {
        int64_t n = s->n_items - first < PIECE ? s->n_items - first : PIECE;
        make_rows(p, n, rows, plain);
        TRY(p->be->ops->copy_in(p->be, p->items + (size_t)first * row_bytes, rows,
                                (size_t)n * row_bytes));
        for (int64_t i = 0; i < n; i++)
            offer(p, multiply(p, plain + i * s->dim), first + i);
    }
    return OK;
}

static status search(void *ctx, int i) {
    problem *p = ctx;
    (void)i;
    bool is_f32 = p->be->act == ACT_F32;
    rank_args a = {.n_queries = (int32_t)p->s->n_queries,
                   .dim = (int32_t)p->s->dim,
                   .n_corpus = (int32_t)p->s->n_items,
                   .query = p->queries,
                   .corpus = is_f32 ? (const float *)(const void *)p->items : NULL,
                   .corpus_act = p->items,
                   .corpus_int8 = p->s->has_int8 ? &p->small : NULL,
                   .k = (int32_t)p->s->k,
                   .best = p->best,
                   .best_score = p->score};
    return p->be->ops->rank(p->be, &a);
}

static status check(const problem *p) {
    for (int64_t i = 0; i < p->s->k; i++) {
        bool is_there = i < p->n_want;
        if (p->best[i] == (is_there ? p->want[i] : -1) &&
            (!is_there || p->score[i] == p->want_by[i]))
            continue;
        return fail(ERR_NUMERIC, "place %lld of the search is item %d (%g), not %d (%g)",
                    (long long)i + 1, p->best[i], (double)p->score[i], is_there ? p->want[i] : -1,
                    (double)(is_there ? p->want_by[i] : 0));
    }
    return OK;
}

static status run(problem *p, char *rows, int8_t *plain, search_row *out) {
    TRY(make_items(p, rows, plain));
    if (p->s->has_int8) {
        TRY(rank_int8_init(&p->small, (const float *)(const void *)p->items, p->s->n_items,
                           (int32_t)p->s->dim, p->be->workers));
        out->bytes = (double)rank_int8_bytes(p->s->n_items, (int32_t)p->s->dim);
    }
    TRY(search(p, 0));
    TRY(check(p));
    return timing_plain(p->be, search, p, &out->seconds);
}

status serve_search_run(backend *be, const search_shape *s, search_row *out) {
    problem p = {.be = be, .s = s, .state = (uint64_t)s->seed * 0x9e3779b97f4a7c15u | 1};
    char *rows = NULL;
    int8_t *plain = NULL;
    size_t row_bytes = (size_t)s->dim * act_bytes(be->act), n = (size_t)(s->n_queries * s->k);
    size_t n_made = (size_t)(s->n_queries > PIECE ? s->n_queries : PIECE);
    if (s->has_int8 && be->card != NULL)
        return fail(ERR_UNSUPPORTED,
                    "items in 8 bits are searched on a CPU only; add --device cpu");
    if (be->act != ACT_F32 && (s->dim % 64 != 0 || s->k > 1024))
        return fail(ERR_UNSUPPORTED,
                    "in 16 bits dimensions are multiples of 64, and k at most 1024");
    out->bytes = (double)s->n_items * (double)row_bytes;
    out->flops = 2.0 * (double)s->n_items * (double)s->dim * (double)s->n_queries;
    status st = be->ops->alloc(be, (void **)&p.items, (size_t)s->n_items * row_bytes);
    if (st == OK) st = be->ops->alloc(be, (void **)&p.queries, (size_t)s->n_queries * row_bytes);
    if (st == OK) st = mem_alloc((void **)&rows, n_made, row_bytes);
    if (st == OK) st = mem_alloc((void **)&plain, n_made, (size_t)s->dim);
    if (st == OK) st = MEM_NEW(&p.query, (size_t)s->dim);
    if (st == OK) st = MEM_NEW(&p.best, n);
    if (st == OK) st = MEM_NEW(&p.score, n);
    if (st == OK) st = MEM_NEW(&p.want, (size_t)s->k + 1);
    if (st == OK) st = MEM_NEW(&p.want_by, (size_t)s->k + 1);
    if (st == OK) st = run(&p, rows, plain, out);
    if (p.items != NULL) be->ops->release(be, p.items);
    if (p.queries != NULL) be->ops->release(be, p.queries);
    rank_int8_fini(&p.small);
    void *owned[] = {rows, plain, p.query, p.best, p.score, p.want, p.want_by};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        mem_free(owned[i]);
    return st;
}
