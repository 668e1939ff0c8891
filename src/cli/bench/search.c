/* hstu bench search: the k best items of a catalogue by inner product for many queries at once (op
 * rank), on items in the type of the activations.
 *
 * Rows are multiples of 1/64 below 2 and sums therefore exact, so that the best items of the first
 * query must be those, and in the order, that a plain loop finds. */
#include "cli/bench/bench.h"
#include "model/item_filter.h"
#include "nn/memory.h"

enum { PIECE = 1 << 16, GATHERED = 1024, MAX_GATHERED = 1 << 17 }; /* rows made, scored at a time */

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
    char filter[32];
    double *number;           /* (n_items): the items' feature that is filtered by */
    int32_t *item;            /* (n_items): row r is item r */
    uint64_t *bits;           /* of the allowed rows; NULL: all */
    const uint64_t **allowed; /* (n_queries): bits */
    float *gathered;          /* (GATHERED, dim), */
    int32_t *gathered_best;   /* (GATHERED) */
    nn_memory memory;         /* of all arrays */
} problem;

/* xorshift64: there are billions to draw. */
static uint64_t draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* n random rows in act, and as multiples of 1/64. */
static void make_rows(problem *p, int64_t n, char *to, int8_t *plain) {
    size_t size = act_bytes(p->be->act);
    char table[256][4];
    for (int i = 0; i < 256; i++)
        bench_put_act(p->be->act, table[i], (float)(int8_t)(uint8_t)i / 64);
    for (int64_t i = 0; i < n * p->s->dim; i += 8) {
        uint64_t word = draw(&p->state);
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
            if (p->bits == NULL || p->bits[(first + i) / 64] >> (first + i) % 64 & 1)
                offer(p, multiply(p, plain + i * s->dim), first + i);
    }
    return OK;
}

static status search(void *ctx, int i) {
    problem *p = ctx;
    bool is_f32 = p->be->act == ACT_F32;
    rank_args a = {.n_queries = (int32_t)p->s->n_queries,
                   .dim = (int32_t)p->s->dim,
                   .n_corpus = (int32_t)p->s->n_items,
                   .query = p->queries,
                   .corpus = is_f32 ? (const float *)(const void *)p->items : NULL,
                   .corpus_act = p->items,
                   .corpus_int8 = p->s->has_int8 ? &p->small : NULL,
                   .allowed = p->allowed,
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

/* The allowed rows alone: copied, and the best of each piece found. */
static status gather(void *ctx, int i) {
    problem *p = ctx;
    size_t dim = (size_t)p->s->dim;
    for (int64_t q = 0; q < p->s->n_queries; q++)
        for (int64_t row = 0; row < p->s->n_items;) {
            int32_t n = 0;
            for (; row < p->s->n_items && n < GATHERED; row++)
                if (p->bits[row / 64] >> row % 64 & 1)
                    memcpy(p->gathered + (size_t)n++ * dim,
                           p->items + (size_t)row * dim * sizeof(float), dim * sizeof(float));
            rank_args a = {.n_queries = 1,
                           .dim = (int32_t)dim,
                           .n_corpus = n,
                           .query = p->queries + (size_t)q * dim * sizeof(float),
                           .corpus = p->gathered,
                           .k = n < p->s->k ? n : (int32_t)p->s->k,
                           .best = p->gathered_best,
                           .best_score = p->gathered + GATHERED * dim};
            TRY(p->be->ops->rank(p->be, &a));
        }
    return OK;
}

/* A feature that is uniform in 0..1, and an expression that allows the share. */
static status filter_items(void *ctx, int i) {
    problem *p = ctx;
    seq_file items = {.n_items = (uint64_t)p->s->n_items, .n_content = 1};
    items.content[0] = (item_content){.name = "x", .number = p->number};
    return item_filter_run(&items, p->filter, strlen(p->filter), p->item, p->s->n_items, p->bits);
}

static status make_filter(problem *p, search_row *out) {
    const search_shape *s = p->s;
    nn_memory *m = &p->memory;
    if (s->share == 0) return OK;
    TRY(NN_NEW_HOST(m, &p->number, s->n_items));
    TRY(NN_NEW_HOST(m, &p->item, s->n_items));
    TRY(NN_NEW_HOST(m, &p->bits, s->n_items / 64 + 1));
    TRY(NN_NEW_HOST(m, &p->allowed, s->n_queries));
    TRY(NN_NEW_HOST(m, &p->gathered, GATHERED * (s->dim + 1)));
    TRY(NN_NEW_HOST(m, &p->gathered_best, GATHERED));
    for (int64_t i = 0; i < s->n_items; i++) {
        p->item[i] = (int32_t)i;
        p->number[i] = (double)(draw(&p->state) >> 11) / 9007199254740992.0;
    }
    for (int64_t q = 0; q < s->n_queries; q++)
        p->allowed[q] = p->bits;
    snprintf(p->filter, sizeof p->filter, "x < %g", s->share);
    TRY(filter_items(p, 0));
    for (int64_t w = 0; w <= s->n_items / 64; w++)
        out->n_allowed += __builtin_popcountll(p->bits[w]);
    return timing_plain(p->be, filter_items, p, &out->filter_s);
}

static status find_and_time(problem *p, char *rows, int8_t *plain, search_row *out) {
    out->gather_s = NAN;
    TRY(make_filter(p, out));
    TRY(make_items(p, rows, plain));
    if (p->bits != NULL && p->be->is_host && out->n_allowed <= MAX_GATHERED)
        TRY(timing_plain(p->be, gather, p, &out->gather_s));
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
    *out = (search_row){0};
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

/* The k best items by a mixture of logits, exactly and in two stages, for
 * queries, items and weights drawn at random, in the sizes of rails' configs.  With gates as random
 * as their first values no plain product says much of a similarity; after training it does.  So the
 * gates' last layers are made smaller, until among 3,883 items the recall of the first stage is
 * that of a model trained on ML-1M for an epoch (k 100: .80 of 100 candidates and .98 of 300, there
 * .78 and .99).  The recall of a model is what `recommend --search` prints. */
enum { MAX_PARAMS = 32, GATES = 3 };

typedef struct mol_problem {
    backend *be;
    const search_shape *s;
    nn_memory memory;
    param_list params;
    mol m;
    mol_search search;
    uint64_t state; /* of the random numbers */
    float *items;
    char *queries;
    uint64_t *users;
    int32_t *best;
    float *score;
} mol_problem;

static mol_config mol_sizes(int64_t dim) {
    return (mol_config){.dim = (int32_t)dim,
                        .n_query = 8,
                        .n_item = 4,
                        .dim_dot = 64,
                        .query = {.hidden = 512, .gate_hidden = 128, .f = EPILOGUE_SILU},
                        .item = {.gate_hidden = 128},
                        .pair_hidden = 128,
                        .temperature = 0.05f,
                        .eps = 1e-6f};
}

/* Uniform in -1..1. */
static float draw_unit(uint64_t *state) {
    return (float)((double)(draw(state) >> 11) / 4503599627370496.0 - 1);
}

static status shrink(mol_problem *p, const param *w) {
    backend *be = p->be;
    size_t bytes = (size_t)w->n * sizeof(float);
    float *host;
    TRY(NN_NEW_HOST(&p->memory, &host, w->n));
    TRY(be->ops->copy_out(be, host, w->value, bytes));
    TRY(be->ops->sync(be));
    for (int64_t i = 0; i < w->n; i++)
        host[i] /= GATES;
    return be->ops->copy_in(be, w->value, host, bytes);
}

static status make_mol_rows(mol_problem *p) {
    int64_t dim = p->s->dim, n_piece = p->s->n_items < PIECE ? p->s->n_items : PIECE;
    size_t size = act_bytes(p->be->act);
    char *query;
    float *rows;
    TRY(nn_new_host(&p->memory, (void **)&query, p->s->n_queries * dim, size));
    TRY(NN_NEW_HOST(&p->memory, &rows, n_piece * dim));
    for (int64_t i = 0; i < p->s->n_queries * dim; i++)
        bench_put_act(p->be->act, query + (size_t)i * size, draw_unit(&p->state));
    TRY(p->be->ops->copy_in(p->be, p->queries, query, (size_t)(p->s->n_queries * dim) * size));
    for (int64_t first = 0; first < p->s->n_items; first += n_piece) {
        int64_t left = p->s->n_items - first, n = left < n_piece ? left : n_piece;
        for (int64_t i = 0; i < n * dim; i++)
            rows[i] = draw_unit(&p->state);
        TRY(p->be->ops->copy_in(p->be, p->items + first * dim, rows,
                                (size_t)(n * dim) * sizeof *rows));
    }
    return OK;
}

static status make_mol_problem(mol_problem *p) {
    const search_shape *s = p->s;
    nn_memory *m = &p->memory;
    mol_config c = mol_sizes(s->dim);
    TRY(param_list_init(&p->params, m, MAX_PARAMS));
    TRY(mol_add_params(&p->m, &c, &p->params));
    TRY(param_list_start(&p->params, (uint64_t)s->seed));
    TRY(shrink(p, p->m.query.gate_w[1]));
    TRY(shrink(p, p->m.pair_w[1]));
    TRY(mol_search_alloc(&p->search, &p->m, m, s->n_items, s->n_queries));
    TRY(NN_NEW(m, &p->items, s->n_items * s->dim));
    TRY(nn_new(m, (void **)&p->queries, s->n_queries * s->dim, act_bytes(p->be->act)));
    TRY(NN_NEW_HOST(m, &p->users, s->n_queries));
    TRY(NN_NEW_HOST(m, &p->best, s->n_queries * s->k));
    TRY(NN_NEW_HOST(m, &p->score, s->n_queries * s->k));
    return make_mol_rows(p);
}

static status mol_search_all(void *ctx, int i) {
    mol_problem *p = ctx;
    rank_args a = {.n_queries = (int32_t)p->s->n_queries,
                   .dim = (int32_t)p->s->dim,
                   .n_corpus = (int32_t)p->s->n_items,
                   .query = p->queries,
                   .corpus = p->items,
                   .k = (int32_t)p->s->k,
                   .best = p->best,
                   .best_score = p->score};
    (void)i;
    return mol_search_run(&p->search, p->be, &a, p->users);
}

static status time_mol(mol_problem *p, const mol_stages *stages, search_mol_row *out) {
    TRY(timing_plain(p->be, mol_search_all, p, &out->exact_s));
    uint64_t before = p->memory.device_bytes, start = clock_ns();
    TRY(mol_search_index(&p->search, stages, &p->memory, p->s->n_items, p->items));
    out->index_s = (double)(clock_ns() - start) / 1e9;
    out->bytes = (double)(p->memory.device_bytes - before);
    p->search.n_to_measure = (int32_t)p->s->n_queries;
    TRY(mol_search_all(p, 0));
    if (p->search.n_wanted > 0) out->recall = (double)p->search.n_hit / (double)p->search.n_wanted;
    p->search.n_to_measure = 0;
    return timing_plain(p->be, mol_search_all, p, &out->stages_s);
}

status search_mol_measure(backend *be, const search_shape *s, const mol_stages *stages,
                          search_mol_row *out) {
    mol_problem p = {.be = be, .s = s, .state = (uint64_t)s->seed * 0x9e3779b97f4a7c15u | 1};
    *out = (search_mol_row){0};
    nn_memory_init(&p.memory, be);
    status st = make_mol_problem(&p);
    if (st == OK) st = time_mol(&p, stages, out);
    nn_memory_fini(&p.memory);
    return st;
}

typedef struct bench_args {
    bench io;
    search_shape shape;
    bool has_filter;
    const char *mol; /* NULL: inner products */
    mol_stages stages;
} bench_args;

#define SHAPE_COLUMNS(s)                                                                           \
    COLUMN("items", "10", "items", (s)->n_items),                                                  \
        COLUMN("queries", " 7", "queries", (s)->n_queries), COLUMN("dim", " 5", "dim", (s)->dim),  \
        COLUMN("k", " 5", "k", (s)->k)

static status run_mol(bench_args *a) {
    const search_shape *s = &a->shape;
    search_mol_row r;
    bench_title(&a->io, "The best items by 8 x 4 x 64 components in %s on %s, exactly and by %s",
                a->io.dtype, bench_device(a->io.be), a->mol);
    TRY(search_mol_measure(a->io.be, s, &a->stages, &r));
    return BENCH_ROW(&a->io, SHAPE_COLUMNS(s), MEMBER("mol", a->mol),
                     COLUMN("exact ms", " 10.3f", "exact_ms", r.exact_s * 1e3),
                     COLUMN("ms", " 10.3f", "ms", r.stages_s * 1e3),
                     COLUMN("of it", " 7.4f", NULL, r.stages_s / r.exact_s),
                     COLUMN("recall", " 7.4f", "recall", r.recall),
                     COLUMN("index s", " 8.2f", "index_s", r.index_s),
                     COLUMN("index bytes", " 12.0f", "index_bytes", r.bytes));
}

static status print_row(bench_args *a, const search_shape *s, const search_row *r) {
    bool has = a->has_filter, is_all = s->share == 0;
    return BENCH_ROW(
        &a->io, SHAPE_COLUMNS(s), MEMBER("int8", s->has_int8),
        COLUMN(has ? "filter" : NULL, " 7.3g", "share", is_all ? NAN : s->share),
        COLUMN(has ? "allowed" : NULL, " 10", "allowed", is_all ? s->n_items : r->n_allowed),
        COLUMN(has ? "filter ms" : NULL, " 10.3f", "filter_ms", is_all ? NAN : r->filter_s * 1e3),
        COLUMN(has ? "alone ms" : NULL, " 10.3f", "rows_alone_ms", r->gather_s * 1e3),
        COLUMN("ms", " 10.3f", "ms", r->seconds * 1e3),
        COLUMN("GB/s", " 8.1f", "gb_per_s", r->bytes / r->seconds / 1e9),
        COLUMN("TFLOP/s", " 8.3f", "tflops", r->flops / r->seconds / 1e12));
}

/* Without a filter, then with some. */
static status run(void *ctx) {
    static const double shares[] = {0, 1, .1, .01, .001};
    bench_args *a = ctx;
    a->shape.seed = a->io.seed;
    search_shape s = a->shape;
    search_row r;
    if (a->mol != NULL) return run_mol(a);
    bench_title(&a->io, "The best items by inner product in %s%s on %s, checked by a plain loop",
                a->io.dtype, s.has_int8 ? " and int8" : "", bench_device(a->io.be));
    for (int i = 0; i < (a->has_filter ? 5 : 1); i++) {
        s.share = shares[i];
        TRY(search_measure(a->io.be, &s, &r));
        TRY(print_row(a, &s, &r));
    }
    return OK;
}

status bench_search(int argc, char **argv) {
    bench_args a = {.io = {.name = "search", .device = "auto", .act = ACT_BF16, .seed = 1},
                    .shape = {.n_items = 1000000, .n_queries = 64, .dim = 64, .k = 10}};
    const arg_option options[] = {
        BENCH_OPTIONS(&a.io, work_dtypes, BENCH_DTYPES, "Seed of items and queries (default 1)."),
        OPT_INT("--items", &a.shape.n_items, "N", 1, 1 << 30,
                "Items in the catalogue (default 1000000)."),
        OPT_INT("--queries", &a.shape.n_queries, "Q", 1, 65536, "Queries per call (default 64)."),
        OPT_INT("--dim", &a.shape.dim, "D", 1, 4096, "Dimension (default 64)."),
        OPT_INT("--k", &a.shape.k, "K", 1, 1024, "Items to find per query (default 10)."),
        OPT_FLAG("--int8", &a.shape.has_int8,
                 "On the CPU: rule out items by 8-bit numbers first; the result is the same."),
        OPT_FLAG("--filter", &a.has_filter,
                 "Compare filters that allow all, 10 %, 1 % and 0.1 % of the items with none."),
        OPT_TEXT("--mol", &a.mol, "HOW",
                 "By a mixture of logits with random weights instead: the exact search, and one in "
                 "two stages: mean:N, components:N or mean:N+components:N."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench search [options]",
        .summary = "Measure the search of a catalogue: the best items by inner product for many "
                   "queries. The result of one query is compared with a plain loop first.",
        .options = options};
    ARGS_PARSE(&spec, NULL, NULL);
    if (a.mol != NULL) TRY(mol_stages_read(&a.stages, a.mol));
    if (a.mol != NULL && (a.has_filter || a.shape.has_int8))
        return fail(ERR_USAGE, "--filter and --int8 are of inner products, not of --mol");
    return bench_run(&a.io, run, &a);
}
