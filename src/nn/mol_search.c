#include "nn/mol_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static status read_stage(const char **at, const char *name, int32_t *out) {
    size_t n = strlen(name);
    char *end;
    if (strncmp(*at, name, n) != 0) return OK;
    if ((*at)[n] < '0' || (*at)[n] > '9') return fail(ERR_USAGE, "a number belongs after %s", name);
    long long value = strtoll(*at + n, &end, 10);
    if (value < 1 || value > MOL_MAX_CANDIDATES)
        return fail(ERR_USAGE, "%s is followed by 1 to %d", name, MOL_MAX_CANDIDATES);
    *out = (int32_t)value;
    *at = end;
    return OK;
}

status mol_stages_read(mol_stages *out, const char *text) {
    const char *at = text;
    *out = (mol_stages){0};
    if (strcmp(text, "exact") == 0) return OK;
    TRY(read_stage(&at, "mean:", &out->mean));
    if (at == text || *at == '+') {
        const char *second = at + (at > text);
        at = second;
        TRY(read_stage(&at, "components:", &out->pair));
        if (at == second) at = ""; /* neither */
        if (out->pair == 0) out->mean = 0;
    }
    if (*at == '\0' && out->mean + out->pair > 0) return OK;
    return fail(ERR_USAGE, "'%.40s': give exact, mean:N, components:N or mean:N+components:N",
                text);
}

status mol_search_alloc(mol_search *s, const mol *m, nn_memory *memory, int64_t max_items,
                        int64_t max_queries) {
    enum { MOST_QUERIES = 64, MOST_SCORES = 1 << 26, SOME_ROWS = 1024 };
    int64_t n_rows = max_items > SOME_ROWS ? max_items : SOME_ROWS, n = MOST_SCORES / n_rows;
    if (n > MOST_QUERIES) n = MOST_QUERIES;
    if (n > max_queries) n = max_queries;
    *s = (mol_search){.m = m, .n_queries = n > 1 ? (int32_t)n : 1};
    n = s->n_queries;
    TRY(mol_alloc(&s->acts, m, memory, n, n_rows, false));
    TRY(NN_NEW(memory, &s->sim, n * n_rows));
    TRY(NN_NEW(memory, &s->unit, n * n));
    TRY(nn_new(memory, &s->unit_act, n * n, act_bytes(memory->be->act)));
    return STAGED_NEW(memory, &s->users, n);
}

/* 0, each, 2 each, ... */
static status new_multiples(nn_memory *memory, int64_t n, int32_t each, int32_t **out) {
    int32_t *host;
    TRY(NN_NEW(memory, out, n));
    TRY(MEM_NEW_RAW(&host, (size_t)n));
    for (int64_t i = 0; i < n; i++)
        host[i] = (int32_t)i * each;
    status st = memory->be->ops->copy_in(memory->be, *out, host, (size_t)n * sizeof *host);
    MEM_FREE(host);
    return st;
}

static status alloc_stages(mol_search *s, nn_memory *memory) {
    const mol_config *c = &s->m->config;
    int64_t n = s->n_queries, d = c->dim_dot, own = c->n_query - c->n_user;
    int64_t n_parts = (s->acts.max_items > n ? s->acts.max_items : n) *
                          (c->n_item > c->n_query ? c->n_item : c->n_query) +
                      1;
    int64_t most = s->stages.mean + (int64_t)s->stages.pair * c->n_query * c->n_item;
    if (most > s->n_items) most = s->n_items;
    s->n_candidates = (int32_t)most;
    s->is_act = memory->be->card != NULL && memory->be->act != ACT_F32 && d % 64 == 0;
    size_t size = s->is_act ? act_bytes(memory->be->act) : sizeof(float);
    if (s->stages.mean > 0) TRY(nn_new(memory, (void **)&s->mean, s->n_items * d, size));
    if (s->stages.pair > 0)
        TRY(nn_new(memory, (void **)&s->part, c->n_item * s->n_items * d, size));
    TRY(new_multiples(memory, n_parts, 1, &s->number));
    TRY(new_multiples(memory, s->acts.max_items + 1, c->n_item, &s->item_first));
    TRY(new_multiples(memory, n + 1, (int32_t)own, &s->query_first));
    TRY(NN_NEW(memory, &s->tile, s->acts.max_items * d));
    TRY(NN_NEW(memory, &s->sum, n * d));
    TRY(nn_new(memory, &s->query, n * d, act_bytes(memory->be->act)));
    TRY(STAGED_NEW(memory, &s->row, n * most));
    int64_t n_list = s->stages.mean > s->stages.pair ? s->stages.mean : s->stages.pair;
    TRY(NN_NEW_HOST(memory, &s->is_listed, n * (s->n_items / 64 + 1)));
    if (n_list > MOL_PART_CANDIDATES) {
        TRY(NN_NEW_HOST(memory, &s->bits, n * (s->n_items / 64 + 1)));
        TRY(NN_NEW_HOST(memory, &s->allowed, n));
        n_list = MOL_PART_CANDIDATES;
    }
    TRY(NN_NEW_HOST(memory, &s->list, n * n_list));
    TRY(NN_NEW_HOST(memory, &s->n_found, n));
    return NN_NEW_HOST(memory, &s->score, n * (most > n_list ? most : n_list));
}

/* to (n, d) += rows of act, those that `groups` sums; to: a tile of the index, or a query. */
static status add_rows(backend *be, int32_t d, row_groups groups, float scale, const void *from,
                       float *to) {
    scatter_args a = {.groups = groups, .dim = d, .scale = scale, .dy = from, .grad = to};
    return be->ops->scatter(be, &a);
}

/* Rows first .. first + n - 1 of an array of the index, from the components of a tile of items. */
static status index_rows(mol_search *s, backend *be, char *to, int64_t first, int64_t n,
                         row_groups groups, float scale, const void *from) {
    int64_t d = s->m->config.dim_dot;
    size_t size = s->is_act ? act_bytes(be->act) : sizeof(float);
    char *at = to + (size_t)(first * d) * size;
    float *sum = s->is_act ? s->tile : (float *)(void *)at;
    TRY(be->ops->zero(be, sum, (size_t)(n * d) * sizeof *sum));
    TRY(add_rows(be, (int32_t)d, groups, scale, from, sum));
    return s->is_act ? mol_cast_rows(be, &s->acts, n, (int32_t)d, sum, at) : OK;
}

status mol_search_index(mol_search *s, const mol_stages *stages, nn_memory *memory, int64_t n_items,
                        const float *items) {
    backend *be = memory->be;
    int32_t p = s->m->config.n_item, d = s->m->config.dim_dot;
    s->stages = *stages;
    s->items = items;
    s->n_items = n_items;
    if ((stages->mean == 0 && stages->pair == 0) || n_items == 0) return OK;
    TRY(alloc_stages(s, memory));
    size_t part_bytes = (size_t)(n_items * d) * (s->is_act ? act_bytes(be->act) : sizeof(float));
    for (int64_t first = 0; first < n_items; first += s->acts.max_items) {
        int64_t left = n_items - first, n = left < s->acts.max_items ? left : s->acts.max_items;
        TRY(mol_items(s->m, &s->acts, be, n, items + first * s->m->config.dim, NULL));
        const void *unit = s->acts.item.unit;
        row_groups all = {n * p, (int32_t)n, s->number, s->item_first},
                   each = {n, (int32_t)n, s->number, s->number};
        if (stages->mean > 0) TRY(index_rows(s, be, s->mean, first, n, all, 1 / (float)p, unit));
        for (int32_t r = 0; r < p && stages->pair > 0; r++) {
            void *one = s->acts.item.y; /* has been used */
            gather_args g = {.n = n,
                             .dim = d,
                             .is_act = true,
                             .table = nn_act_at(be, unit, (int64_t)r * d),
                             .index = s->item_first,
                             .scale = 1,
                             .y = one};
            TRY(be->ops->gather(be, &g));
            TRY(index_rows(s, be, s->part + (size_t)r * part_bytes, first, n, each, 1, one));
        }
    }
    return be->ops->sync(be);
}

/* The unit matrix of n queries. */
static status send_unit(const mol_search *s, backend *be, int32_t n) {
    const float one = 1;
    TRY(be->ops->zero(be, s->unit, (size_t)n * (size_t)n * sizeof *s->unit));
    for (int32_t i = 0; i < n; i++)
        TRY(be->ops->copy_in(be, s->unit + (int64_t)i * n + i, &one, sizeof one));
    return mol_cast_rows(be, &s->acts, n, n, s->unit, s->unit_act);
}

/* The similarities of a row and all queries are its row of the corpus, and a query the column to
 * look at.  A product with ones and zeros is exact. */
static status run_exact(mol_search *s, backend *be, const rank_args *all) {
    int32_t n = all->n_queries;
    rank_args a = *all;
    TRY(mol_score(s->m, &s->acts, be, n, all->query, s->users.device, a.n_corpus, a.corpus,
                  s->sim));
    TRY(send_unit(s, be, n));
    a.dim = n;
    a.query = s->unit_act;
    a.corpus = s->sim;
    a.corpus_act = a.corpus_int8 = NULL;
    return be->ops->rank(be, &a);
}

/* The rows that queries may find as bits, without what they have seen. */
static status collect_bits(mol_search *s, backend *be, const rank_args *a) {
    int64_t n_words = s->n_items / 64 + 1;
    int32_t n = a->n_queries, *lists = NULL;
    for (int32_t i = 0; i < n; i++) {
        uint64_t *to = s->bits + i * n_words;
        if (a->allowed != NULL && a->allowed[i] != NULL)
            memcpy(to, a->allowed[i], (size_t)((s->n_items + 63) / 64) * sizeof *to);
        else
            memset(to, 0xff, (size_t)n_words * sizeof *to);
    }
    if (a->seen_offsets == NULL) return OK;
    size_t size = sizeof *lists, n_offsets = (size_t)n + 1;
    int32_t end;
    TRY(be->ops->copy_out(be, &end, a->seen_offsets + n, size));
    TRY(be->ops->sync(be));
    TRY(MEM_NEW_RAW(&lists, n_offsets + (size_t)end));
    status st = be->ops->copy_out(be, lists, a->seen_offsets, n_offsets * size);
    if (st == OK && end > 0)
        st = be->ops->copy_out(be, lists + n_offsets, a->seen, (size_t)end * size);
    if (st == OK) st = be->ops->sync(be);
    for (int32_t i = 0; st == OK && i < n; i++)
        for (int32_t j = lists[i]; j < lists[i + 1]; j++) {
            int32_t row = lists[n_offsets + (size_t)j];
            s->bits[i * n_words + row / 64] &= ~((uint64_t)1 << row % 64);
        }
    MEM_FREE(lists);
    return st;
}

/* The rows of a list join the candidates, each once: several products find the same. */
static void add_candidates(mol_search *s, const rank_args *a, int32_t first) {
    for (int32_t i = 0; i < a->n_queries; i++) {
        int32_t *row = s->row.host + (int64_t)i * s->n_candidates, *n = &s->n_found[i];
        const int32_t *from = s->list + (int64_t)i * a->k;
        uint64_t *listed = s->is_listed + i * (s->n_items / 64 + 1);
        for (int32_t j = 0; j < a->k && from[j] >= 0 && *n < s->n_candidates; j++) {
            int32_t found = first + from[j];
            uint64_t bit = (uint64_t)1 << found % 64;
            if (!(listed[found / 64] & bit)) row[(*n)++] = found;
            listed[found / 64] |= bit;
        }
    }
}

/* The k best rows of an array of the index by the product with s->query, or of each part of the
 * items its share of k. */
static status find_candidates(mol_search *s, backend *be, const rank_args *all, const char *rows,
                              int32_t k) {
    int32_t n_parts = (k + MOL_PART_CANDIDATES - 1) / MOL_PART_CANDIDATES, d = s->m->config.dim_dot;
    int32_t n_words = (int32_t)((s->n_items + 63) / 64), most = (n_words + n_parts - 1) / n_parts;
    size_t row_bytes = (size_t)d * (s->is_act ? act_bytes(be->act) : sizeof(float));
    for (int32_t word = 0; word < n_words; word += most) {
        int64_t left = s->n_items - 64 * (int64_t)word;
        const char *from = rows + 64 * (size_t)word * row_bytes;
        rank_args a = *all;
        a.dim = d;
        a.n_corpus = (int32_t)(left < 64 * (int64_t)most ? left : 64 * (int64_t)most);
        a.query = s->query;
        a.corpus = s->is_act ? NULL : (const float *)(const void *)from;
        a.corpus_act = s->is_act ? from : NULL;
        a.corpus_int8 = NULL;
        int64_t share = ((int64_t)k * a.n_corpus + s->n_items - 1) / s->n_items;
        a.k = share < MOL_PART_CANDIDATES ? (int32_t)share : MOL_PART_CANDIDATES;
        if (a.k > a.n_corpus) a.k = a.n_corpus;
        a.best = s->list;
        a.best_score = s->score;
        for (int32_t i = 0; n_parts > 1 && i < a.n_queries; i++)
            s->allowed[i] = s->bits + i * (s->n_items / 64 + 1) + word;
        if (n_parts > 1) {
            a.allowed = s->allowed;
            a.seen_offsets = NULL;
        }
        TRY(be->ops->rank(be, &a));
        TRY(be->ops->sync(be));
        add_candidates(s, &a, 64 * word);
    }
    return OK;
}

/* Ascending, and -1 after the last; forgets which are listed. */
static void sort_candidates(mol_search *s, int32_t n_queries) {
    for (int32_t i = 0; i < n_queries; i++) {
        int32_t *row = s->row.host + (int64_t)i * s->n_candidates;
        int32_t n = sort_distinct(row, s->n_found[i]);
        uint64_t *listed = s->is_listed + i * (s->n_items / 64 + 1);
        for (int32_t j = 0; j < n; j++)
            listed[row[j] / 64] = 0;
        for (; n < s->n_candidates; n++)
            row[n] = -1;
    }
}

static status first_stage(mol_search *s, backend *be, const rank_args *a) {
    const mol_config *c = &s->m->config;
    int32_t n = a->n_queries, d = c->dim_dot, own = c->n_query - c->n_user;
    row_groups each = {n, n, s->number, s->number}, all = {n * own, n, s->number, s->query_first};
    size_t part_bytes = (size_t)(s->n_items * d) * (s->is_act ? act_bytes(be->act) : sizeof(float));
    const void *unit = s->acts.query.unit;
    memset(s->n_found, 0, (size_t)n * sizeof *s->n_found);
    if (s->bits != NULL) TRY(collect_bits(s, be, a));
    if (s->stages.mean > 0) {
        TRY(be->ops->zero(be, s->sum, (size_t)(n * d) * sizeof *s->sum));
        TRY(add_rows(be, d, all, 1, unit, s->sum));
        for (int32_t t = 0; t < c->n_user; t++)
            TRY(add_rows(be, d, each, 1, nn_act_at(be, s->acts.user, t * s->acts.max_rows * d),
                         s->sum));
        TRY(mol_cast_rows(be, &s->acts, n, d, s->sum, s->query));
        TRY(find_candidates(s, be, a, s->mean, s->stages.mean));
    }
    for (int32_t p = 0; p < c->n_query && s->stages.pair > 0; p++) {
        bool is_user = p >= own;
        gather_args g = {.n = n,
                         .dim = d,
                         .is_act = true,
                         .table =
                             is_user ? nn_act_at(be, s->acts.user, (p - own) * s->acts.max_rows * d)
                                     : nn_act_at(be, unit, (int64_t)p * d),
                         .index = is_user ? s->number : s->query_first,
                         .scale = 1,
                         .y = s->query};
        TRY(be->ops->gather(be, &g));
        for (int32_t r = 0; r < c->n_item; r++)
            TRY(find_candidates(s, be, a, s->part + (size_t)r * part_bytes, s->stages.pair));
    }
    return OK;
}

/* The best k of the candidates of query i: of equal ones the smaller row. */
static void take_best(const mol_search *s, const rank_args *a, int32_t i) {
    const int32_t *row = s->row.host + (int64_t)i * s->n_candidates;
    const float *score = s->score + (int64_t)i * s->n_candidates;
    int32_t *best = a->best + (int64_t)i * a->k, n = 0;
    float *by = a->best_score + (int64_t)i * a->k;
    for (int32_t j = 0; j < s->n_found[i]; j++) {
        if (n == a->k && !(score[j] > by[n - 1])) continue;
        int32_t at = n < a->k ? n++ : n - 1;
        for (; at > 0 && by[at - 1] < score[j]; at--) {
            by[at] = by[at - 1];
            best[at] = best[at - 1];
        }
        by[at] = score[j];
        best[at] = row[j];
    }
    for (; n < a->k; n++) {
        best[n] = -1;
        by[n] = -INFINITY;
    }
}

static status run_stages(mol_search *s, backend *be, const rank_args *a) {
    int32_t n = a->n_queries, n_each = s->n_candidates;
    TRY(mol_queries(s->m, &s->acts, be, n, a->query, s->users.device));
    status st = first_stage(s, be, a);
    sort_candidates(s, n); /* also after a failure: the next search begins with none */
    TRY(st);
    TRY(STAGED_SEND(be, &s->row, (int64_t)n * n_each));
    TRY(mol_score_rows(s->m, &s->acts, be, n, n_each, s->items, s->row.device, s->sim));
    TRY(be->ops->copy_out(be, s->score, s->sim, (size_t)n * (size_t)n_each * sizeof *s->score));
    TRY(be->ops->sync(be));
    for (int32_t i = 0; i < n; i++)
        take_best(s, a, i);
    return OK;
}

/* How much of the exact lists of these queries two stages have found. */
static status measure(mol_search *s, backend *be, const rank_args *found) {
    rank_args a = *found;
    size_t n = (size_t)a.n_queries * (size_t)a.k;
    int32_t *best = NULL;
    float *score = NULL;
    status st = MEM_NEW(&best, n);
    if (st == OK) st = MEM_NEW(&score, n);
    a.best = best;
    a.best_score = score;
    if (st == OK) st = run_exact(s, be, &a);
    if (st == OK) st = be->ops->sync(be);
    for (size_t i = 0; st == OK && i < n; i++) {
        const int32_t *own = found->best + i / (size_t)a.k * (size_t)a.k;
        if (best[i] < 0) continue;
        s->n_wanted++;
        for (int32_t j = 0; j < a.k; j++)
            s->n_hit += own[j] == best[i];
    }
    s->n_measured += a.n_queries;
    MEM_FREE(best, score);
    return st;
}

/* Queries first .. first + n - 1. */
static status run_some(mol_search *s, backend *be, const rank_args *all, const uint64_t *users,
                       int32_t first, int32_t n) {
    bool has_stages = s->n_candidates > 0 && all->corpus == s->items &&
                      all->n_corpus == s->n_items && all->target == NULL && all->k > 0;
    rank_args a = *all;
    for (int32_t i = 0; i < n; i++)
        s->users.host[i] = users[first + i] < MOL_NOBODY ? (uint32_t)users[first + i] : MOL_NOBODY;
    TRY(STAGED_SEND(be, &s->users, n));
    a.n_queries = n;
    a.query = nn_act_at(be, all->query, (int64_t)first * s->m->config.dim);
    if (a.seen_offsets != NULL) a.seen_offsets += first;
    if (a.allowed != NULL) a.allowed += first;
    if (a.target != NULL) a.target += first;
    if (a.rank != NULL) a.rank += first;
    if (a.best != NULL) a.best += (int64_t)first * a.k;
    if (a.best_score != NULL) a.best_score += (int64_t)first * a.k;
    if (!has_stages) return run_exact(s, be, &a);
    TRY(run_stages(s, be, &a));
    return s->n_measured < s->n_to_measure ? measure(s, be, &a) : OK;
}

status mol_search_run(mol_search *s, backend *be, const rank_args *a, const uint64_t *users) {
    for (int32_t first = 0, left = a->n_queries; left > 0;
         first += s->n_queries, left = a->n_queries - first)
        TRY(run_some(s, be, a, users, first, left < s->n_queries ? left : s->n_queries));
    return OK;
}
