/* hstu bench search --mol: the k best items by a mixture of logits, exactly and in two stages, for
 * queries, items and weights drawn at random, in the sizes of rails' configs.  With gates as random
 * as their first values no plain product says much of a similarity; after training it does.  So the
 * gates' last layers are made smaller, until among 3,883 items the recall of the first stage is
 * that of a model trained on ML-1M for an epoch (k 100: .80 of 100 candidates and .98 of 300, there
 * .78 and .99).  The recall of a model is what `recommend --search` prints. */
#include <string.h>

#include "base/thread.h"
#include "cli/bench/bench.h"
#include "nn/mol_search.h"

enum { PIECE = 1 << 16, MAX_PARAMS = 32, GATES = 3 };

typedef struct problem {
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
} problem;

static mol_config sizes(int64_t dim) {
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

/* xorshift64: uniform in -1..1. */
static float draw(problem *p) {
    p->state ^= p->state << 13;
    p->state ^= p->state >> 7;
    p->state ^= p->state << 17;
    return (float)((double)(p->state >> 11) / 4503599627370496.0 - 1);
}

static status shrink(problem *p, const param *w) {
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

static status make_rows(problem *p) {
    int64_t dim = p->s->dim, n_piece = p->s->n_items < PIECE ? p->s->n_items : PIECE;
    size_t size = act_bytes(p->be->act);
    char *query;
    float *rows;
    TRY(nn_new_host(&p->memory, (void **)&query, p->s->n_queries * dim, size));
    TRY(NN_NEW_HOST(&p->memory, &rows, n_piece * dim));
    for (int64_t i = 0; i < p->s->n_queries * dim; i++)
        bench_put_act(p->be->act, query + (size_t)i * size, draw(p));
    TRY(p->be->ops->copy_in(p->be, p->queries, query, (size_t)(p->s->n_queries * dim) * size));
    for (int64_t first = 0; first < p->s->n_items; first += n_piece) {
        int64_t left = p->s->n_items - first, n = left < n_piece ? left : n_piece;
        for (int64_t i = 0; i < n * dim; i++)
            rows[i] = draw(p);
        TRY(p->be->ops->copy_in(p->be, p->items + first * dim, rows,
                                (size_t)(n * dim) * sizeof *rows));
    }
    return OK;
}

static status make_problem(problem *p) {
    const search_shape *s = p->s;
    nn_memory *m = &p->memory;
    mol_config c = sizes(s->dim);
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
    return make_rows(p);
}

static status search(void *ctx, int i) {
    problem *p = ctx;
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

static status find_and_time(problem *p, const mol_stages *stages, search_mol_row *out) {
    TRY(timing_plain(p->be, search, p, &out->exact_s));
    uint64_t before = p->memory.device_bytes, start = clock_ns();
    TRY(mol_search_index(&p->search, stages, &p->memory, p->s->n_items, p->items));
    out->index_s = (double)(clock_ns() - start) / 1e9;
    out->bytes = (double)(p->memory.device_bytes - before);
    p->search.n_to_measure = (int32_t)p->s->n_queries;
    TRY(search(p, 0));
    if (p->search.n_wanted > 0) out->recall = (double)p->search.n_hit / (double)p->search.n_wanted;
    p->search.n_to_measure = 0;
    return timing_plain(p->be, search, p, &out->stages_s);
}

status search_mol_measure(backend *be, const search_shape *s, const mol_stages *stages,
                          search_mol_row *out) {
    problem p = {.be = be, .s = s, .state = (uint64_t)s->seed * 0x9e3779b97f4a7c15u | 1};
    *out = (search_mol_row){0};
    nn_memory_init(&p.memory, be);
    status st = make_problem(&p);
    if (st == OK) st = find_and_time(&p, stages, out);
    nn_memory_fini(&p.memory);
    return st;
}
