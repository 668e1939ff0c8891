/* The dynamic tables of hstu.h, over embed/table.h: the same verbs on memory of the host, for any
 * number of ids, and bags of ids. */
#include "api/api_int.h"
#include "embed/snapshot.h"
#include "hstu.h"

typedef struct api_table {
    pool *workers;
    backend *be;
    embed_table *t;
    int32_t dim;
    int64_t max_batch;
    float *gradients; /* (max_batch, dim) of the backend: sums by distinct id, or by bag */
    /* What a sum of rows reads, on the host and on the backend. */
    int64_t *offsets, *offsets_of_backend; /* (max_batch + 2) */
    int32_t *index, *index_of_backend;     /* (max_batch) */
    float *weights, *weights_of_backend;   /* (max_batch) */
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

static status new_memory(api_table *table, void **out, size_t bytes) {
    return table->be->ops->alloc(table->be, out, bytes);
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
    size_t n = (size_t)c->max_batch;
    TRY(MEM_NEW_RAW(&table->offsets, n + 2));
    TRY(MEM_NEW_RAW(&table->index, n));
    TRY(MEM_NEW_RAW(&table->weights, n));
    TRY(new_memory(table, (void **)&table->offsets_of_backend, (n + 2) * sizeof(int64_t)));
    TRY(new_memory(table, (void **)&table->index_of_backend, n * sizeof(int32_t)));
    TRY(new_memory(table, (void **)&table->weights_of_backend, n * sizeof(float)));
    return new_memory(table, (void **)&table->gradients, n * (size_t)c->dim * sizeof(float));
}

static void destroy_table(void *object) {
    api_table *table = object;
    void *memory[] = {table->gradients, table->offsets_of_backend, table->index_of_backend,
                      table->weights_of_backend};
    for (int i = 0; i < 4 && table->be != NULL; i++)
        table->be->ops->release(table->be, memory[i]);
    MEM_FREE(table->offsets, table->index, table->weights);
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
static status fetch(api_table *table, fetch_mode mode, int64_t n, const uint64_t *ids,
                    const embed_batch **batch, int32_t **inverse) {
    *inverse = NULL;
    TRY(embed_fetch(table->t, mode, n, ids, NULL, batch));
    TRY(MEM_NEW(inverse, (size_t)n));
    return table->be->ops->copy_out(table->be, *inverse, (*batch)->inverse,
                                    (size_t)n * sizeof(int32_t));
}

/* And their rows: *staged (U, stride of the batch) host; the caller frees it. */
static status fetch_rows(api_table *table, fetch_mode mode, int64_t n, const uint64_t *ids,
                         const embed_batch **batch, int32_t **inverse, float **staged) {
    *staged = NULL;
    TRY(fetch(table, mode, n, ids, batch, inverse));
    size_t count = (size_t)(*batch)->n_unique * (size_t)(*batch)->stride;
    TRY(MEM_NEW(staged, count));
    return table->be->ops->copy_out(table->be, *staged, (*batch)->rows, count * sizeof(float));
}

static status lookup_piece(api_table *table, int64_t n, const uint64_t *ids, float *rows) {
    const embed_batch *batch;
    int32_t *inverse;
    float *staged;
    size_t dim = (size_t)table->dim;
    status st = fetch_rows(table, FETCH_INSERT, n, ids, &batch, &inverse, &staged);
    for (int64_t i = 0; i < n && st == OK; i++)
        memcpy(rows + (size_t)i * dim, staged + (size_t)inverse[i] * (size_t)batch->stride,
               dim * sizeof(float));
    MEM_FREE(staged, inverse);
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
    status st = fetch(table, FETCH_INSERT, n, ids, &batch, &inverse);
    size_t count = st == OK ? (size_t)batch->n_unique * dim : 0;
    if (st == OK) st = MEM_NEW(&sums, count);
    for (int64_t i = 0; i < n && st == OK; i++)
        for (size_t c = 0; c < dim; c++)
            sums[(size_t)inverse[i] * dim + c] += gradients[(size_t)i * dim + c];
    if (st == OK) st = check_sums(sums, count);
    if (st == OK)
        st = table->be->ops->copy_in(table->be, table->gradients, sums, count * sizeof(float));
    if (st == OK) st = embed_update(table->t, table->gradients, args);
    MEM_FREE(sums, inverse);
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
static status lower_step(const api_table *table, int64_t n, const hstu_table_step *step,
                         embed_step_args *out) {
    if (step == NULL) return fail(ERR_USAGE, "table: step is NULL");
    if (n > table->max_batch)
        return fail(ERR_USAGE, "table: %lld ids in one update; max_batch is %lld", (long long)n,
                    (long long)table->max_batch);
    TRY(check_step(step, embed_config_of(table->t)->opt));
    *out = (embed_step_args){.lr = step->lr,
                             .beta1 = step->beta1,
                             .beta2 = step->beta2,
                             .eps = step->eps,
                             .weight_decay = step->weight_decay,
                             .step = embed_step(table->t)};
    return OK;
}

static status update(api_table *table, int64_t n, const uint64_t *ids, const float *gradients,
                     const hstu_table_step *step) {
    embed_step_args args;
    TRY(check(n, ids, gradients));
    TRY(lower_step(table, n, step, &args));
    TRY(api_check_finite(gradients, (size_t)n * (size_t)table->dim, "gradients"));
    if (n == 0) return OK;
    TRY(update_piece(table, n, ids, gradients, &args));
    return embed_set_step(table->t, embed_step(table->t) + 1);
}

hstu_status hstu_table_update(hstu_table *table, int64_t n, const uint64_t *ids,
                              const float *gradients, const hstu_table_step *step) {
    RETURN_WITHIN(table, &table_type, update(object, n, ids, gradients, step));
}

static int64_t n_ids(const hstu_bags *bags) {
    return bags->n_bags > 0 ? bags->offsets[bags->n_bags] : 0;
}

static status check_offsets(const api_table *table, const hstu_bags *bags) {
    if (bags->n_bags > 0 && bags->offsets[0] != 0)
        return fail(ERR_USAGE, "bags: the first of the offsets is %lld; it must be 0",
                    (long long)bags->offsets[0]);
    for (int64_t b = 0; b < bags->n_bags; b++) {
        int64_t first = bags->offsets[b], end = bags->offsets[b + 1];
        if (end < first)
            return fail(ERR_USAGE, "bags: offsets %lld and %lld of bag %lld decrease",
                        (long long)first, (long long)end, (long long)b);
        if (end - first > table->max_batch)
            return fail(ERR_USAGE, "bags: bag %lld has %lld ids; max_batch is %lld", (long long)b,
                        (long long)(end - first), (long long)table->max_batch);
    }
    return OK;
}

/* bag_rows: (n_bags, dim), pooled rows or their gradients. */
static status check_bags(const api_table *table, const hstu_bags *bags, const void *bag_rows) {
    TRY(api_need(bags, "bags"));
    if (bags->n_bags < 0 || bags->n_bags > INT32_MAX)
        return fail(ERR_USAGE, "bags: %lld bags; there can be 0 to 2^31 - 1",
                    (long long)bags->n_bags);
    if ((unsigned)bags->pooling > HSTU_POOL_MEAN)
        return fail(ERR_USAGE, "bags: pooling %d is unknown", (int)bags->pooling);
    if (bags->n_bags > 0 && (bags->offsets == NULL || bag_rows == NULL))
        return fail(ERR_USAGE, "bags: offsets, pooled rows or gradients are NULL");
    TRY(check_offsets(table, bags));
    if (n_ids(bags) > 0 && bags->ids == NULL) return fail(ERR_USAGE, "bags: ids are NULL");
    if (bags->weights == NULL) return OK;
    return api_check_finite(bags->weights, (size_t)n_ids(bags), "weights");
}

/* One factor an id: its weight, of a mean divided by the bag's number of ids. */
static float factor_of(const hstu_bags *bags, int64_t b, int64_t i) {
    float weight = bags->weights != NULL ? bags->weights[i] : 1;
    return bags->pooling == HSTU_POOL_SUM
               ? weight
               : weight / (float)(bags->offsets[b + 1] - bags->offsets[b]);
}

/* out (n_sums, dim) = table->gradients = sums of the rows at `rows`, `stride` floats apart.
 * table->offsets and, where the bags have factors, table->weights say which; so does table->index,
 * unless the inverse of a fetch does. */
static status pool_rows(api_table *table, const hstu_bags *bags, int64_t n, int64_t n_sums,
                        float *rows, int64_t stride, const int32_t *inverse, float *out) {
    backend *be = table->be;
    bool has_factors = bags->weights != NULL || bags->pooling == HSTU_POOL_MEAN;
    size_t offset_bytes = (size_t)(n_sums + 1) * sizeof(int64_t), n_bytes = (size_t)n * 4;
    table_level level = {.rows = (unsigned char *)rows, .row_bytes = stride * 4};
    table_pool_args a = {.n = n,
                         .n_bags = n_sums,
                         .offsets = table->offsets_of_backend,
                         .inverse = inverse != NULL ? inverse : table->index_of_backend,
                         .weights = has_factors ? table->weights_of_backend : NULL,
                         .dim = table->dim,
                         .y = table->gradients};
    TRY(be->ops->copy_in(be, table->offsets_of_backend, table->offsets, offset_bytes));
    if (inverse == NULL) TRY(be->ops->copy_in(be, table->index_of_backend, table->index, n_bytes));
    if (has_factors) TRY(be->ops->copy_in(be, table->weights_of_backend, table->weights, n_bytes));
    TRY(be->tables->pool(be, &level, &a));
    return be->ops->copy_out(be, out, a.y, (size_t)n_sums * (size_t)table->dim * sizeof(float));
}

/* The bags from `first` on that are worked on at a time end before the bag returned. */
static int64_t piece_end(const api_table *table, const hstu_bags *bags, int64_t first) {
    int64_t end = first;
    while (end < bags->n_bags && end - first < table->max_batch &&
           bags->offsets[end + 1] - bags->offsets[first] <= table->max_batch)
        end++;
    return end;
}

static status lookup_bags_piece(api_table *table, const hstu_bags *bags, int64_t first, int64_t end,
                                float *out) {
    const embed_batch *batch;
    int64_t from = bags->offsets[first], n = bags->offsets[end] - from;
    fetch_mode mode = bags->is_read_only ? FETCH_ZERO : FETCH_INSERT;
    if (n == 0) {
        memset(out, 0, (size_t)(end - first) * (size_t)table->dim * sizeof *out);
        return OK;
    }
    for (int64_t b = first; b <= end; b++) {
        table->offsets[b - first] = bags->offsets[b] - from;
        for (int64_t i = bags->offsets[b]; b < end && i < bags->offsets[b + 1]; i++)
            table->weights[i - from] = factor_of(bags, b, i);
    }
    TRY(embed_fetch(table->t, mode, n, bags->ids + from, NULL, &batch));
    return pool_rows(table, bags, n, end - first, batch->rows, batch->stride, batch->inverse, out);
}

static status lookup_bags(api_table *table, const hstu_bags *bags, float *out) {
    TRY(check_bags(table, bags, out));
    for (int64_t b = 0, end; b < bags->n_bags; b = end) {
        end = piece_end(table, bags, b);
        TRY(lookup_bags_piece(table, bags, b, end, out + b * table->dim));
    }
    return OK;
}

hstu_status hstu_table_lookup_pooled(hstu_table *table, const hstu_bags *bags, float *out) {
    RETURN_WITHIN(table, &table_type, lookup_bags(object, bags, out));
}

/* The gradient of a row is a pooled row, too: of the gradients of the bags that its ids are in.
 * Sorts the ids by row; inverse (n): their rows, which are n_rows. */
static void plan_gradients(api_table *table, const hstu_bags *bags, const int32_t *inverse,
                           int64_t n_rows) {
    int64_t *offsets = table->offsets;
    memset(offsets, 0, (size_t)(n_rows + 2) * sizeof *offsets);
    for (int64_t i = 0; i < n_ids(bags); i++)
        offsets[inverse[i] + 2]++;
    for (int64_t u = 0; u < n_rows; u++)
        offsets[u + 2] += offsets[u + 1];
    /* offsets[u + 1] is where row u begins, and ends as where it ends. */
    for (int64_t b = 0; b < bags->n_bags; b++)
        for (int64_t i = bags->offsets[b]; i < bags->offsets[b + 1]; i++) {
            int64_t k = offsets[inverse[i] + 1]++;
            table->index[k] = (int32_t)b;
            table->weights[k] = factor_of(bags, b, i);
        }
}

/* bag_gradients: (n_bags, dim) of the backend. */
static status update_bags_piece(api_table *table, const hstu_bags *bags, float *bag_gradients,
                                const embed_step_args *args) {
    const embed_batch *batch;
    int32_t *inverse;
    float *sums = NULL;
    int64_t n = n_ids(bags);
    status st = fetch(table, FETCH_INSERT, n, bags->ids, &batch, &inverse);
    size_t count = st == OK ? (size_t)batch->n_unique * (size_t)table->dim : 0;
    if (st == OK) st = MEM_NEW_RAW(&sums, count);
    if (st == OK) {
        plan_gradients(table, bags, inverse, batch->n_unique);
        st = pool_rows(table, bags, n, batch->n_unique, bag_gradients, table->dim, NULL, sums);
    }
    if (st == OK) st = check_sums(sums, count);
    if (st == OK) st = embed_update(table->t, table->gradients, args);
    MEM_FREE(sums, inverse);
    return st;
}

static status update_bags(api_table *table, const hstu_bags *bags, const float *gradients,
                          const hstu_table_step *step) {
    embed_step_args args;
    void *copy = NULL;
    TRY(check_bags(table, bags, gradients));
    TRY(lower_step(table, n_ids(bags), step, &args));
    size_t n = (size_t)bags->n_bags * (size_t)table->dim;
    TRY(api_check_finite(gradients, n, "gradients"));
    if (n_ids(bags) == 0) return OK;
    TRY(new_memory(table, &copy, n * sizeof(float)));
    status st = table->be->ops->copy_in(table->be, copy, gradients, n * sizeof(float));
    if (st == OK) st = update_bags_piece(table, bags, copy, &args);
    table->be->ops->release(table->be, copy);
    return st == OK ? embed_set_step(table->t, embed_step(table->t) + 1) : st;
}

hstu_status hstu_table_update_pooled(hstu_table *table, const hstu_bags *bags,
                                     const float *gradients, const hstu_table_step *step) {
    RETURN_WITHIN(table, &table_type, update_bags(object, bags, gradients, step));
}

static float dot(const float *x, const float *y, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return (float)sum;
}

static status weight_gradients_piece(api_table *table, const hstu_bags *bags, int64_t first,
                                     int64_t end, const float *gradients, float *out) {
    const embed_batch *batch;
    int32_t *inverse = NULL;
    float *staged = NULL;
    int64_t from = bags->offsets[first], n = bags->offsets[end] - from;
    fetch_mode mode = bags->is_read_only ? FETCH_ZERO : FETCH_FIRST;
    hstu_bags ones = *bags;
    ones.weights = NULL;
    if (n == 0) return OK;
    status st = fetch_rows(table, mode, n, bags->ids + from, &batch, &inverse, &staged);
    for (int64_t b = first; b < end && st == OK; b++)
        for (int64_t i = bags->offsets[b]; i < bags->offsets[b + 1]; i++)
            out[i] = factor_of(&ones, b, i) *
                     dot(gradients + b * table->dim,
                         staged + (int64_t)inverse[i - from] * batch->stride, table->dim);
    MEM_FREE(staged, inverse);
    return st;
}

static status weight_gradients(api_table *table, const hstu_bags *bags, const float *gradients,
                               float *out) {
    TRY(check_bags(table, bags, gradients));
    TRY(api_check_finite(gradients, (size_t)bags->n_bags * (size_t)table->dim, "gradients"));
    if (n_ids(bags) > 0) TRY(api_need(out, "out"));
    for (int64_t b = 0, end; b < bags->n_bags; b = end) {
        end = piece_end(table, bags, b);
        TRY(weight_gradients_piece(table, bags, b, end, gradients, out));
    }
    return OK;
}

hstu_status hstu_table_weight_gradients(hstu_table *table, const hstu_bags *bags,
                                        const float *gradients, float *out) {
    RETURN_WITHIN(table, &table_type, weight_gradients(object, bags, gradients, out));
}

static hstu_status do_request(const hstu_table_request *r, bool only_checks) {
    RETURN_WITHIN(r->table, &table_type,
                  only_checks ? check_bags(object, &r->bags, r->out)
                              : lookup_bags(object, &r->bags, r->out));
}

hstu_status hstu_tables_lookup_pooled(int32_t n_requests, const hstu_table_request *requests) {
    if (n_requests < 0) return (hstu_status)fail(ERR_USAGE, "the number of requests is negative");
    if (n_requests > 0) API_TRY(api_need(requests, "requests"));
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < n_requests; i++) {
            const char *name = requests[i].name;
            hstu_status st = do_request(&requests[i], pass == 0);
            if (st != HSTU_OK)
                return (hstu_status)fail_prefix((status)st, "request %d%s%s", (int)i,
                                                name != NULL ? ", table " : "",
                                                name != NULL ? name : "");
        }
    return HSTU_OK;
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
    if (st == OK) st = embed_snapshot_write(t->t, folder, 0);
    return handle_leave(h, st);
}

hstu_status hstu_table_load(hstu_table *table, const char *folder, int64_t *n_rejected) {
    handle *h;
    api_table *t;
    int64_t rejected = 0;
    status st = enter(&h, table, &t);
    if (st == OK) st = api_need(folder, "folder");
    if (st == OK) st = embed_snapshot_read(t->t, folder, &rejected);
    if (n_rejected != NULL) *n_rejected = rejected;
    return handle_leave(h, st);
}
