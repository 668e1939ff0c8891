/* The dynamic tables of hstu.h, over embed/table.h: the same verbs on memory of the host, for any
 * number of ids. */
#include <math.h>
#include <string.h>

#include "api/api_int.h"
#include "base/mem.h"
#include "embed/snapshot.h"
#include "hstu.h"

typedef struct api_table {
    pool *workers;
    backend *be;
    embed_table *t;
    int32_t dim;
    int64_t max_batch;
    float *gradients; /* (max_batch, dim) of the backend: sums by distinct id */
} api_table;

void hstu_table_defaults(hstu_table_config *out) {
    if (out == NULL) return;
    *out = (hstu_table_config){.optimizer = HSTU_TABLE_ADAM,
                               .eviction = HSTU_EVICT_LRU,
                               .capacity = 65536,
                               .max_batch = 65536,
                               .first_scale = 0.01f,
                               .admit_count = 1};
}

void hstu_table_step_defaults(hstu_table_step *out) {
    if (out == NULL) return;
    *out = (hstu_table_step){.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
}

static status lower(const hstu_table_config *c, embed_config *out) {
    static const opt_kind opts[] = {OPT_SGD, OPT_ADAMW, OPT_ADAGRAD, OPT_ROWWISE_ADAGRAD};
    static const embed_policy policies[] = {POLICY_NONE, POLICY_LRU, POLICY_LFU};
    if ((unsigned)c->optimizer > HSTU_TABLE_ROWWISE_ADAGRAD ||
        (unsigned)c->eviction > HSTU_EVICT_LFU)
        return fail(ERR_USAGE, "table: optimizer %d or eviction %d is unknown", (int)c->optimizer,
                    (int)c->eviction);
    if (c->dim < 1 || c->capacity < 1 || c->max_batch < 1 || c->host_capacity < 0 ||
        c->admit_count < 0 || c->admit_count > EMBED_MAX_ADMIT_COUNT)
        return fail(ERR_USAGE,
                    "table: dim, capacity and max_batch are at least 1, host_capacity at "
                    "least 0, admit_count 0..%d",
                    (int)EMBED_MAX_ADMIT_COUNT);
    if (!isfinite(c->first_scale) || c->first_scale < 0)
        return fail(ERR_USAGE, "table: first_scale is %g; it must be finite and at least 0",
                    (double)c->first_scale);
    *out = (embed_config){.dim = c->dim,
                          .opt = opts[c->optimizer],
                          .policy = policies[c->eviction],
                          .capacity = {c->capacity, c->host_capacity},
                          .max_batch = c->max_batch,
                          .seed = c->seed,
                          .first = c->first_scale != 0 ? FIRST_UNIFORM : FIRST_CONSTANT,
                          .first_scale = c->first_scale,
                          .admit_count = (uint32_t)c->admit_count};
    return OK;
}

static status open_table(api_table *table, const hstu_table_config *c) {
    embed_config config;
    TRY(api_begin());
    TRY(lower(c, &config));
    TRY(pool_create_default(&table->workers));
    TRY(api_backend(&table->be, table->workers, c->device));
    TRY(embed_create(&table->t, table->be, &config));
    table->dim = c->dim;
    table->max_batch = c->max_batch;
    return table->be->ops->alloc(table->be, (void **)&table->gradients,
                                 (size_t)c->max_batch * (size_t)c->dim * sizeof(float));
}

static void destroy_table(void *object) {
    api_table *table = object;
    if (table->be != NULL) table->be->ops->release(table->be, table->gradients);
    embed_destroy(table->t);
    backend_destroy(table->be);
    pool_destroy(table->workers);
    mem_free(table);
}

static const handle_type table_type = {"table", destroy_table, .survives_fork = false};

hstu_status hstu_table_create(hstu_table **out, const hstu_table_config *config) {
    api_table *table;
    API_TRY(api_need(out, "out"));
    *out = NULL;
    API_TRY(api_need(config, "config"));
    API_TRY(MEM_NEW(&table, 1));
    return (hstu_status)handle_open(out, &table_type, table, open_table(table, config));
}

void hstu_table_destroy(hstu_table *table) {
    handle_close(table, &table_type);
}

static status check(int64_t n, const void *ids, const void *rows) {
    if (n < 0) return fail(ERR_USAGE, "table: the number of ids is negative");
    if (n > 0 && (ids == NULL || rows == NULL))
        return fail(ERR_USAGE, "table: ids or rows are NULL");
    return OK;
}

/* Waits for the table's other calls; handle_leave ends it. */
static status enter(handle **h, hstu_table *table, api_table **out) {
    TRY(handle_enter(h, table, &table_type));
    *out = handle_object(*h);
    return OK;
}

hstu_status hstu_table_size(hstu_table *table, int64_t *out) {
    handle *h;
    api_table *t;
    status st = enter(&h, table, &t);
    if (st == OK) st = api_need(out, "out");
    if (st == OK) st = embed_size(t->t, out);
    return handle_leave(h, st);
}

hstu_status hstu_table_find(hstu_table *table, int64_t n, const uint64_t *ids, float *rows,
                            uint8_t *is_found) {
    handle *h;
    api_table *t;
    status st = enter(&h, table, &t);
    if (st == OK) st = check(n, ids, rows);
    if (st == OK) st = embed_find(t->t, n, ids, t->dim, rows, is_found);
    return handle_leave(h, st);
}

/* Fetches a piece; *inverse: (n) host, which of the distinct ids each is; the caller frees it. */
static status fetch(api_table *table, int64_t n, const uint64_t *ids, const embed_batch **batch,
                    int32_t **inverse) {
    *inverse = NULL;
    TRY(embed_fetch(table->t, FETCH_INSERT, n, ids, NULL, batch));
    TRY(MEM_NEW(inverse, (size_t)n));
    return table->be->ops->copy_out(table->be, *inverse, (*batch)->inverse,
                                    (size_t)n * sizeof(int32_t));
}

static status lookup_piece(api_table *table, int64_t n, const uint64_t *ids, float *rows) {
    const embed_batch *batch;
    int32_t *inverse;
    float *staged = NULL;
    size_t dim = (size_t)table->dim;
    status st = fetch(table, n, ids, &batch, &inverse);
    size_t count = st == OK ? (size_t)batch->n_unique * (size_t)batch->stride : 0;
    if (st == OK) st = MEM_NEW(&staged, count);
    if (st == OK)
        st = table->be->ops->copy_out(table->be, staged, batch->rows, count * sizeof(float));
    for (int64_t i = 0; i < n && st == OK; i++)
        memcpy(rows + (size_t)i * dim, staged + (size_t)inverse[i] * (size_t)batch->stride,
               dim * sizeof(float));
    mem_free(staged);
    mem_free(inverse);
    return st;
}

static int64_t piece_of(const api_table *table, int64_t left) {
    return left < table->max_batch ? left : table->max_batch;
}

static status lookup(api_table *table, int64_t n, const uint64_t *ids, float *rows) {
    TRY(check(n, ids, rows));
    for (int64_t i = 0; i < n; i += table->max_batch)
        TRY(lookup_piece(table, piece_of(table, n - i), ids + i, rows + i * table->dim));
    return OK;
}

hstu_status hstu_table_lookup(hstu_table *table, int64_t n, const uint64_t *ids, float *rows) {
    RETURN_WITHIN(table, &table_type, lookup(object, n, ids, rows));
}

static status insert(api_table *table, int64_t n, const uint64_t *ids, const float *rows,
                     int64_t *n_rejected) {
    int64_t rejected = 0;
    TRY(check(n, ids, rows));
    TRY(api_check_finite(rows, (size_t)n * (size_t)table->dim, "rows"));
    if (n > 0) TRY(embed_insert(table->t, n, ids, rows, &rejected));
    if (n_rejected != NULL) *n_rejected = rejected;
    return OK;
}

hstu_status hstu_table_insert(hstu_table *table, int64_t n, const uint64_t *ids, const float *rows,
                              int64_t *n_rejected) {
    RETURN_WITHIN(table, &table_type, insert(object, n, ids, rows, n_rejected));
}

/* Optimizers keep squares, and sums of squares over a row. */
static status check_sums(const float *sums, size_t n) {
    const float most = 1e15f;
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(sums[i]) <= most))
            return fail(ERR_NUMERIC,
                        "table: the gradients of an id add up to %g; at most %g can be squared",
                        (double)sums[i], (double)most);
    return OK;
}

/* The gradients of the distinct ids: sums over their repeats, in the order given. */
static status update_piece(api_table *table, int64_t n, const uint64_t *ids, const float *gradients,
                           const embed_step_args *args) {
    const embed_batch *batch;
    int32_t *inverse;
    float *sums = NULL;
    size_t dim = (size_t)table->dim;
    status st = fetch(table, n, ids, &batch, &inverse);
    size_t count = st == OK ? (size_t)batch->n_unique * dim : 0;
    if (st == OK) st = MEM_NEW(&sums, count);
    for (int64_t i = 0; i < n && st == OK; i++)
        for (size_t c = 0; c < dim; c++)
            sums[(size_t)inverse[i] * dim + c] += gradients[(size_t)i * dim + c];
    if (st == OK) st = check_sums(sums, count);
    if (st == OK)
        st = table->be->ops->copy_in(table->be, table->gradients, sums, count * sizeof(float));
    if (st == OK) st = embed_update(table->t, table->gradients, args);
    mem_free(sums);
    mem_free(inverse);
    return st;
}

/* Rows whose gradient is 0 have a first step of 0 / eps; lr * weight_decay above 1 turns rows round
 * at each step, and above 2 lets them grow without bounds. */
static status check_step(const hstu_table_step *s, opt_kind opt) {
    bool has_betas = s->beta1 >= 0 && s->beta1 < 1 && s->beta2 >= 0 && s->beta2 < 1;
    bool has_rates = s->lr >= 0 && s->lr <= 1e6f && isfinite(s->eps) && s->weight_decay >= 0 &&
                     s->lr * s->weight_decay <= 1;
    if (has_betas && has_rates && (s->eps > 0 || (opt == OPT_SGD && s->eps == 0))) return OK;
    return fail(ERR_USAGE,
                "table: lr %g, betas %g and %g, eps %g, weight_decay %g: all must be finite, lr 0 "
                "to 1e6, betas at least 0 and below 1, eps above 0 (SGD: at least 0), weight_decay "
                "at least 0 and at most 1 / lr",
                (double)s->lr, (double)s->beta1, (double)s->beta2, (double)s->eps,
                (double)s->weight_decay);
}

/* A call of more ids than a batch would step the rows of an id twice if it were in two pieces. */
static status update(api_table *table, int64_t n, const uint64_t *ids, const float *gradients,
                     const hstu_table_step *step) {
    TRY(check(n, ids, gradients));
    if (step == NULL) return fail(ERR_USAGE, "table: step is NULL");
    if (n > table->max_batch)
        return fail(ERR_USAGE, "table: %lld ids in one update; max_batch is %lld", (long long)n,
                    (long long)table->max_batch);
    TRY(check_step(step, embed_config_of(table->t)->opt));
    TRY(api_check_finite(gradients, (size_t)n * (size_t)table->dim, "gradients"));
    if (n == 0) return OK;
    embed_step_args args = {.lr = step->lr,
                            .beta1 = step->beta1,
                            .beta2 = step->beta2,
                            .eps = step->eps,
                            .weight_decay = step->weight_decay,
                            .step = embed_step(table->t)};
    TRY(update_piece(table, n, ids, gradients, &args));
    return embed_set_step(table->t, embed_step(table->t) + 1);
}

hstu_status hstu_table_update(hstu_table *table, int64_t n, const uint64_t *ids,
                              const float *gradients, const hstu_table_step *step) {
    RETURN_WITHIN(table, &table_type, update(object, n, ids, gradients, step));
}

hstu_status hstu_table_erase(hstu_table *table, int64_t n, const uint64_t *ids, int64_t *n_erased) {
    handle *h;
    api_table *t;
    int64_t erased = 0;
    status st = enter(&h, table, &t);
    if (st == OK) st = check(n, ids, ids);
    if (st == OK && n > 0) st = embed_erase(t->t, n, ids, &erased);
    if (n_erased != NULL) *n_erased = erased;
    return handle_leave(h, st);
}

hstu_status hstu_table_save(hstu_table *table, const char *folder) {
    handle *h;
    api_table *t;
    status st = enter(&h, table, &t);
    if (st == OK) st = api_need(folder, "folder");
    if (st == OK) st = embed_snapshot_write(t->t, folder, (snapshot_ranks){0, 1}, 0);
    return handle_leave(h, st);
}

hstu_status hstu_table_load(hstu_table *table, const char *folder, int64_t *n_rejected) {
    handle *h;
    api_table *t;
    int64_t rejected = 0;
    status st = enter(&h, table, &t);
    if (st == OK) st = api_need(folder, "folder");
    if (st == OK) st = embed_snapshot_read(t->t, folder, (snapshot_ranks){0, 1}, &rejected);
    if (n_rejected != NULL) *n_rejected = rejected;
    return handle_leave(h, st);
}
