/* hstu bench search: the k best items of a catalogue by inner product for many queries at once (op
 * rank), on items in the type of the activations.
 *
 * Rows are multiples of 1/64 below 2 and sums therefore exact, so that the best items of the first
 * query must be those, and in the order, that a plain loop finds. */
#include <stdio.h>
#include <string.h>

#include "cli/bench/bench.h"
#include "nn/memory.h"

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
    nn_memory memory; /* of all arrays */
} problem;

/* xorshift64: there are billions to draw. */
static uint64_t draw(problem *p) {
    p->state ^= p->state << 13;
    p->state ^= p->state >> 7;
    p->state ^= p->state << 17;
    return p->state;
}

/* n random rows in act, and as multiples of 1/64. */
static void make_rows(problem *p, int64_t n, char *to, int8_t *plain) {
    size_t size = act_bytes(p->be->act);
    char table[256][4];
    for (int i = 0; i < 256; i++)
        bench_put_act(p->be->act, table[i], (float)(int8_t)(uint8_t)i / 64);
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

static status find_and_time(problem *p, char *rows, int8_t *plain, search_row *out) {
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

static status make_room(problem *p, char **rows, int8_t **plain) {
    const search_shape *s = p->s;
    nn_memory *m = &p->memory;
    int64_t n_made = s->n_queries > PIECE ? s->n_queries : PIECE, n = s->n_queries * s->k;
    size_t size = act_bytes(p->be->act);
    TRY(nn_new(m, (void **)&p->items, s->n_items * s->dim, size));
    TRY(nn_new(m, (void **)&p->queries, s->n_queries * s->dim, size));
    TRY(nn_new_host(m, (void **)rows, n_made * s->dim, size));
    TRY(NN_NEW_HOST(m, plain, n_made * s->dim));
    TRY(NN_NEW_HOST(m, &p->query, s->dim));
    TRY(NN_NEW_HOST(m, &p->best, n));
    TRY(NN_NEW_HOST(m, &p->score, n));
    TRY(NN_NEW_HOST(m, &p->want, s->k + 1));
    return NN_NEW_HOST(m, &p->want_by, s->k + 1);
}

status search_measure(backend *be, const search_shape *s, search_row *out) {
    problem p = {.be = be, .s = s, .state = (uint64_t)s->seed * 0x9e3779b97f4a7c15u | 1};
    char *rows;
    int8_t *plain;
    if (s->has_int8 && be->card != NULL)
        return fail(ERR_UNSUPPORTED,
                    "items in 8 bits are searched on a CPU only; add --device cpu");
    if (be->act != ACT_F32 && (s->dim % 64 != 0 || s->k > 1024))
        return fail(ERR_UNSUPPORTED,
                    "in 16 bits dimensions are multiples of 64, and k at most 1024");
    out->bytes = (double)s->n_items * (double)s->dim * (double)act_bytes(be->act);
    out->flops = 2.0 * (double)s->n_items * (double)s->dim * (double)s->n_queries;
    nn_memory_init(&p.memory, be);
    status st = make_room(&p, &rows, &plain);
    if (st == OK) st = find_and_time(&p, rows, plain, out);
    rank_int8_fini(&p.small);
    nn_memory_fini(&p.memory);
    return st;
}

typedef struct bench_args {
    const char *device;
    int act;
    search_shape shape;
    bool is_json;
} bench_args;

static status print_json(const bench_args *a, const backend *be, const search_row *r) {
    json_writer *w = bench_json_open("search", be);
    JSON_FIELDS(w, FIELD("items", a->shape.n_items), FIELD("queries", a->shape.n_queries),
                FIELD("dim", a->shape.dim), FIELD("k", a->shape.k),
                FIELD("int8", a->shape.has_int8), FIELD("ms", r->seconds * 1e3),
                FIELD("gb_per_s", r->bytes / r->seconds / 1e9),
                FIELD("tflops", r->flops / r->seconds / 1e12));
    return json_line_print();
}

static status run(void *ctx, const work *w) {
    const bench_args *a = ctx;
    const search_shape *s = &a->shape;
    search_row r;
    TRY(search_measure(w->be, s, &r));
    if (a->is_json) return print_json(a, w->be, &r);
    printf("%lld items x %lld in %s%s, %lld queries, %lld best, on %s: %.3f ms, %.0f GB/s, "
           "%.2f TFLOP/s; the first query's are those of a plain loop\n",
           (long long)s->n_items, (long long)s->dim, work_dtypes[w->be->act],
           s->has_int8 ? " and int8" : "", (long long)s->n_queries, (long long)s->k,
           bench_device(w->be), r.seconds * 1e3, r.bytes / r.seconds / 1e9,
           r.flops / r.seconds / 1e12);
    return OK;
}

status bench_search(int argc, char **argv) {
    bench_args a = {.device = "auto",
                    .act = ACT_BF16,
                    .shape = {.n_items = 1000000, .n_queries = 64, .dim = 64, .k = 10, .seed = 1}};
    const arg_option options[] = {
        OPT_TEXT("--device", &a.device, "DEVICE", WORK_DEVICES),
        OPT_CHOICE("--dtype", &a.act, "TYPE", work_dtypes, BENCH_DTYPES),
        OPT_INT("--items", &a.shape.n_items, "N", 1, 1 << 30,
                "Items in the catalogue (default 1000000)."),
        OPT_INT("--queries", &a.shape.n_queries, "Q", 1, 65536, "Queries per call (default 64)."),
        OPT_INT("--dim", &a.shape.dim, "D", 1, 4096, "Dimension (default 64)."),
        OPT_INT("--k", &a.shape.k, "K", 1, 1024, "Items to find per query (default 10)."),
        OPT_INT("--seed", &a.shape.seed, "S", 1, INT64_MAX,
                "Seed of items and queries (default 1)."),
        OPT_FLAG("--int8", &a.shape.has_int8,
                 "On the CPU: rule out items by 8-bit numbers first; the result is the same."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench search [options]",
        .summary = "Measure the search of a catalogue: the best items by inner product for many "
                   "queries. The result of one query is compared with a plain loop first.",
        .options = options};
    ARGS_PARSE(&spec, NULL, NULL);
    return bench_run(a.device, a.act, false, run, &a);
}
