/* The dynamic tables of hstu.h, over embed/table.h: the same verbs on memory of the host, for any
 * number of ids. */
#include <stdio.h>
#include <string.h>

#include "api/api_int.h"
#include "base/env.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "embed/snapshot.h"
#include "hstu.h"
#include "ops/device.h"

struct hstu_table {
    pool *workers;
    backend *be;
    embed_table *t;
    int32_t dim;
    int64_t max_batch;
    float *gradients; /* (max_batch, dim) of the backend: sums by distinct id */
};

void hstu_table_defaults(hstu_table_config *out) {
    *out = (hstu_table_config){.optimizer = HSTU_TABLE_ADAM,
                               .eviction = HSTU_EVICT_LRU,
                               .capacity = 65536,
                               .max_batch = 65536,
                               .first_scale = 0.01f,
                               .admit_count = 1};
}

void hstu_table_step_defaults(hstu_table_step *out) {
    *out = (hstu_table_step){.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
}

static status lower(const hstu_table_config *c, embed_config *out) {
    static const row_opt opts[] = {ROW_SGD, ROW_ADAM, ROW_ADAGRAD, ROW_ROWWISE_ADAGRAD};
    static const embed_policy policies[] = {POLICY_NONE, POLICY_LRU, POLICY_LFU};
    if (c == NULL) return fail(ERR_USAGE, "table: there is no config");
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

static status open_table(hstu_table *table, const hstu_table_config *c) {
    embed_config config;
    const char *device = c->device != NULL ? c->device : "auto";
    int n_threads;
    TRY(api_begin());
    TRY(lower(c, &config));
    TRY(env_threads(&n_threads));
    TRY(pool_create(&table->workers, n_threads));
    TRY(backend_open(&table->be, table->workers, device, false));
    TRY(embed_create(&table->t, table->be, &config));
    table->dim = c->dim;
    table->max_batch = c->max_batch;
    return table->be->ops->alloc(table->be, (void **)&table->gradients,
                                 (size_t)c->max_batch * (size_t)c->dim * sizeof(float));
}

hstu_status hstu_table_create(hstu_table **out, const hstu_table_config *config) {
    hstu_table *table;
    *out = NULL;
    status st = config == NULL ? fail(ERR_USAGE, "table: there is no config") : MEM_NEW(&table, 1);
    if (st != OK) return (hstu_status)st;
    st = open_table(table, config);
    if (st == OK)
        *out = table;
    else
        hstu_table_destroy(table);
    return (hstu_status)st;
}

void hstu_table_destroy(hstu_table *table) {
    if (table == NULL) return;
    if (table->be != NULL) table->be->ops->release(table->be, table->gradients);
    embed_destroy(table->t);
    backend_destroy(table->be);
    pool_destroy(table->workers);
    mem_free(table);
}

static status check(const hstu_table *table, int64_t n, const void *ids, const void *rows) {
    if (table == NULL) return fail(ERR_USAGE, "table: make one first, hstu_table_create");
    if (n < 0) return fail(ERR_USAGE, "table: the number of ids is negative");
    if (n > 0 && (ids == NULL || rows == NULL))
        return fail(ERR_USAGE, "table: ids or rows are NULL");
    return OK;
}

hstu_status hstu_table_size(hstu_table *table, int64_t *out) {
    status st = check(table, 0, NULL, NULL);
    if (st == OK) st = embed_size(table->t, out);
    return (hstu_status)st;
}

hstu_status hstu_table_find(hstu_table *table, int64_t n, const uint64_t *ids, float *rows,
                            uint8_t *is_found) {
    status st = check(table, n, ids, rows);
    if (st == OK) st = embed_find(table->t, n, ids, table->dim, rows, is_found);
    return (hstu_status)st;
}

/* Fetches a piece; *inverse: (n) host, which of the distinct ids each is; the caller frees it. */
static status fetch(hstu_table *table, int64_t n, const uint64_t *ids, const embed_batch **batch,
                    int32_t **inverse) {
    *inverse = NULL;
    TRY(embed_fetch(table->t, FETCH_INSERT, n, ids, NULL, batch));
    TRY(MEM_NEW(inverse, (size_t)n));
    return table->be->ops->copy_out(table->be, *inverse, (*batch)->inverse,
                                    (size_t)n * sizeof(int32_t));
}

static status lookup_piece(hstu_table *table, int64_t n, const uint64_t *ids, float *rows) {
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

static int64_t piece_of(const hstu_table *table, int64_t left) {
    return left < table->max_batch ? left : table->max_batch;
}

static status lookup(hstu_table *table, int64_t n, const uint64_t *ids, float *rows) {
    TRY(check(table, n, ids, rows));
    for (int64_t i = 0; i < n; i += table->max_batch)
        TRY(lookup_piece(table, piece_of(table, n - i), ids + i, rows + i * table->dim));
    return OK;
}

hstu_status hstu_table_lookup(hstu_table *table, int64_t n, const uint64_t *ids, float *rows) {
    return (hstu_status)lookup(table, n, ids, rows);
}

static status insert(hstu_table *table, int64_t n, const uint64_t *ids, const float *rows,
                     int64_t *n_rejected) {
    int64_t rejected = 0;
    TRY(check(table, n, ids, rows));
    if (n > 0) TRY(embed_insert(table->t, n, ids, rows, &rejected));
    if (n_rejected != NULL) *n_rejected = rejected;
    return OK;
}

hstu_status hstu_table_insert(hstu_table *table, int64_t n, const uint64_t *ids, const float *rows,
                              int64_t *n_rejected) {
    return (hstu_status)insert(table, n, ids, rows, n_rejected);
}

/* The gradients of the distinct ids: sums over their repeats, in the order given. */
static status update_piece(hstu_table *table, int64_t n, const uint64_t *ids,
                           const float *gradients, const embed_step_args *args) {
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
    if (st == OK)
        st = table->be->ops->copy_in(table->be, table->gradients, sums, count * sizeof(float));
    if (st == OK) st = embed_update(table->t, table->gradients, args);
    mem_free(sums);
    mem_free(inverse);
    return st;
}

/* A call of more ids than a batch would step the rows of an id twice if it were in two pieces. */
static status update(hstu_table *table, int64_t n, const uint64_t *ids, const float *gradients,
                     const hstu_table_step *step) {
    TRY(check(table, n, ids, gradients));
    if (step == NULL) return fail(ERR_USAGE, "table: there is no hstu_table_step");
    if (n > table->max_batch)
        return fail(ERR_USAGE, "table: %lld ids in one update; max_batch is %lld", (long long)n,
                    (long long)table->max_batch);
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
    return (hstu_status)update(table, n, ids, gradients, step);
}

hstu_status hstu_table_erase(hstu_table *table, int64_t n, const uint64_t *ids, int64_t *n_erased) {
    int64_t erased = 0;
    status st = check(table, n, ids, ids);
    if (st == OK && n > 0) st = embed_erase(table->t, n, ids, &erased);
    if (n_erased != NULL) *n_erased = erased;
    return (hstu_status)st;
}

hstu_status hstu_table_save(hstu_table *table, const char *folder) {
    status st = check(table, 0, NULL, NULL);
    if (st == OK && folder == NULL) st = fail(ERR_USAGE, "table: there is no name of a folder");
    if (st == OK) st = embed_snapshot_write(table->t, folder, (snapshot_ranks){0, 1}, 0);
    return (hstu_status)st;
}

hstu_status hstu_table_load(hstu_table *table, const char *folder, int64_t *n_rejected) {
    int64_t rejected = 0;
    status st = check(table, 0, NULL, NULL);
    if (st == OK && folder == NULL) st = fail(ERR_USAGE, "table: there is no name of a folder");
    if (st == OK) st = embed_snapshot_read(table->t, folder, (snapshot_ranks){0, 1}, &rejected);
    if (n_rejected != NULL) *n_rejected = rejected;
    return (hstu_status)st;
}
