#include "embed/table_int.h"

enum { STEP_MAX = INT32_MAX, BATCH_MAX = 1 << 30 };

static status check_config(const backend *be, const embed_config *c) {
    if (be->tables == NULL)
        return fail(ERR_UNSUPPORTED, "%s has no dynamic tables; use --device cpu", be->name);
    if (c->dim < 1 || c->dim > 65536)
        return fail(ERR_CONFIG, "a dynamic table of dimension %d; 1 to 65536 are possible", c->dim);
    if (c->capacity[0] < 1 || c->capacity[1] < 0 || c->capacity[0] > (int64_t)1 << 48 ||
        c->capacity[1] > (int64_t)1 << 48)
        return fail(ERR_CONFIG, "a dynamic table of %lld + %lld rows; level 0 needs at least 1",
                    (long long)c->capacity[0], (long long)c->capacity[1]);
    if (c->max_batch < 1 || c->max_batch > BATCH_MAX)
        return fail(ERR_CONFIG, "batches of %lld ids; 1 to 2^30 are possible",
                    (long long)c->max_batch);
    if (c->policy == POLICY_NONE && (c->capacity[1] > 0 || c->store != NULL))
        return fail(ERR_CONFIG, "eviction policy 'none' moves no rows, so it works with one level; "
                                "with host memory or a store below choose lru: nothing is lost");
    if (!(c->admit_rate >= 0 && c->admit_rate <= 1))
        return fail(ERR_CONFIG, "an admission probability of %g; 0 to 1 are possible",
                    (double)c->admit_rate);
    if (c->admit_count > EMBED_MAX_ADMIT_COUNT)
        return fail(ERR_CONFIG, "an admission at the %u-th use; at most %d can be counted",
                    c->admit_count, EMBED_MAX_ADMIT_COUNT);
    int32_t n_floats = c->dim + optimizer_n_state(c->opt, c->dim);
    if (c->store != NULL && c->store->n_floats != n_floats)
        return fail(ERR_CONFIG, "the store holds rows of %d floats, the table of %d",
                    c->store->n_floats, n_floats);
    return OK;
}

static table_memory rows_memory(const embed_table *t, int level) {
    if (t->config.is_sparse && t->be->is_host) return TABLE_SPARSE;
    return level > 0 || t->config.is_on_host ? TABLE_ON_HOST : TABLE_ON_DEVICE;
}

/* Where an array would begin of which only the elements from `first` on are at `memory`.  Only
 * those are read and written, so that verbs compute buckets and slots as for a whole table. */
static unsigned char *begin_of_whole(void *memory, int64_t first, int64_t element_bytes) {
    return (unsigned char *)((uintptr_t)memory - (uintptr_t)(first * element_bytes));
}

/* This rank's buckets of a level. */
static status make_level(embed_table *t, int level, int64_t n_buckets) {
    table_level *l = &t->level[level];
    void **index = &t->memory[level][0], **rows = &t->memory[level][1];
    int64_t first = t->shards.first_bucket[level], n = t->shards.n_buckets[level];
    size_t index_bytes = (size_t)(n > 0 ? n : 1) * TABLE_BUCKET_BYTES, rows_bytes;
    l->n_buckets = n_buckets;
    l->row_bytes = ((int64_t)t->n_floats + 3) / 4 * 16;
    if (__builtin_mul_overflow((size_t)(n > 0 ? n : 1) * TABLE_SLOTS, (size_t)l->row_bytes,
                               &rows_bytes))
        return fail(ERR_NOMEM, "a table of %lld rows of %lld bytes is larger than any memory",
                    (long long)t->config.capacity[level], (long long)l->row_bytes);
    status st = t->v->alloc(t->be, index, index_bytes, TABLE_ON_DEVICE);
    if (st == OK) st = t->v->alloc(t->be, rows, rows_bytes, rows_memory(t, level));
    if (st == OK) st = t->be->ops->zero(t->be, *index, index_bytes);
    range_begin(rows_memory(t, level) == TABLE_ON_HOST ? "dynamic tables on the host"
                                                       : "dynamic tables",
                RANGE_NO_NUMBER);
    if (*index != NULL) range_memory(*index, index_bytes);
    if (*rows != NULL) range_memory(*rows, rows_bytes);
    range_end();
    l->index = begin_of_whole(*index, first, TABLE_BUCKET_BYTES);
    l->rows = begin_of_whole(*rows, first * TABLE_SLOTS, l->row_bytes);
    return st;
}

static void free_level(embed_table *t, int level) {
    void *index = t->memory[level][0], *rows = t->memory[level][1];
    range_memory(index, 0);
    range_memory(rows, 0);
    if (index != NULL) t->v->release(t->be, index, TABLE_ON_DEVICE);
    if (rows != NULL) t->v->release(t->be, rows, rows_memory(t, level));
}

/* One of the batch's arrays. */
typedef struct array {
    void **at;
    size_t bytes; /* of one element */
    size_t extra; /* elements besides M */
} array;

enum { N_DEVICE_ARRAYS = 25, N_HOST_ARRAYS = 26 };

/* M elements, or rows of n floats, and some more. */
#define ARRAY(x)                                                                                   \
    { (void **)&(x), sizeof *(x), 0 }
#define LONGER(x, extra)                                                                           \
    { (void **)&(x), sizeof *(x), (extra) }
#define ROWS(x, n)                                                                                 \
    { (void **)&(x), (size_t)(n) * sizeof *(x), 0 }

static void list_arrays(embed_table *t, array device[N_DEVICE_ARRAYS], array host[N_HOST_ARRAYS]) {
    embed_device *d = &t->d;
    embed_host *h = &t->h;
    const array of_device[N_DEVICE_ARRAYS] = {ARRAY(d->ids),
                                              ARRAY(d->keys),
                                              ARRAY(d->inverse),
                                              ARRAY(d->order),
                                              LONGER(d->begin, 1),
                                              ARRAY(d->n_unique),
                                              ARRAY(d->is_below),
                                              ARRAY(d->slot[0]),
                                              ARRAY(d->slot[1]),
                                              ARRAY(d->list_keys),
                                              ARRAY(d->list_scores),
                                              ARRAY(d->is_new),
                                              ARRAY(d->list_stamps),
                                              ARRAY(d->list_slot),
                                              ARRAY(d->evicted.keys),
                                              ARRAY(d->evicted.scores),
                                              ARRAY(d->evicted.stamps),
                                              ARRAY(d->evicted.slot),
                                              ARRAY(d->ahead),
                                              ARRAY(d->ahead_slot),
                                              LONGER(d->counts, PLACED_COUNTS),
                                              LONGER(d->late, EMBED_LATE * LATE_COUNTS),
                                              ROWS(d->staging, t->stride),
                                              ROWS(d->moved, t->n_floats),
                                              ROWS(d->pushed, t->n_floats)};
    const array of_host[N_HOST_ARRAYS] = {ARRAY(h->keys),
                                          ARRAY(h->scores),
                                          ARRAY(h->stamps),
                                          ARRAY(h->slot[0]),
                                          ARRAY(h->slot[1]),
                                          ARRAY(h->where),
                                          ARRAY(h->at),
                                          ARRAY(h->list_keys),
                                          ARRAY(h->list_scores),
                                          ARRAY(h->list_stamps),
                                          ARRAY(h->list_slot),
                                          ARRAY(h->list_of),
                                          ARRAY(h->flags),
                                          ARRAY(h->rejected),
                                          ARRAY(h->refused),
                                          ARRAY(h->out_keys),
                                          ARRAY(h->out_scores),
                                          ARRAY(h->out_stamps),
                                          ARRAY(h->inverse),
                                          ARRAY(h->given_scores),
                                          ARRAY(h->given_uses),
                                          ARRAY(h->given_stamps),
                                          ARRAY(h->ahead),
                                          ARRAY(h->ahead_slot),
                                          ROWS(h->store_rows, t->n_floats),
                                          ROWS(h->out_rows, t->n_floats)};
    memcpy(device, of_device, sizeof of_device);
    memcpy(host, of_host, sizeof of_host);
}

static status make_buffers(embed_table *t) {
    array device[N_DEVICE_ARRAYS], host[N_HOST_ARRAYS];
    size_t n = (size_t)t->n_room;
    list_arrays(t, device, host);
    for (int i = 0; i < N_DEVICE_ARRAYS; i++)
        TRY(t->be->ops->alloc(t->be, device[i].at, (n + device[i].extra) * device[i].bytes));
    for (int i = 0; i < N_HOST_ARRAYS; i++)
        TRY(mem_alloc(host[i].at, n + host[i].extra, host[i].bytes));
    return MEM_NEW(&t->crowd, EMBED_CROWDS);
}

static status make_levels(embed_table *t) {
    int64_t n_buckets[EMBED_LEVELS];
    t->n_levels = t->config.capacity[1] > 0 ? 2 : 1;
    for (int i = 0; i < EMBED_LEVELS; i++)
        n_buckets[i] = (t->config.capacity[i] + TABLE_SLOTS - 1) / TABLE_SLOTS;
    t->shards = embed_shards_make(t->config.comm, n_buckets, t->n_levels);
    for (int i = 0; i < t->n_levels; i++)
        TRY(make_level(t, i, n_buckets[i]));
    if (t->config.admit_count > 1)
        TRY(sketch_init(&t->seen, 4 * (t->config.capacity[0] + t->config.capacity[1]), t->shards.n,
                        t->shards.first, t->shards.end));
    return make_buffers(t);
}

status embed_create(embed_table **out, backend *be, const embed_config *config) {
    embed_table *t;
    *out = NULL;
    TRY(check_config(be, config));
    TRY(MEM_NEW(&t, 1));
    t->config = *config;
    t->be = be->tables_below != NULL ? be->tables_below : be;
    t->v = be->tables;
    t->n_floats = config->dim + optimizer_n_state(config->opt, config->dim);
    t->stride = (config->dim + 3) / 4 * 4;
    t->step = 1;
    t->n_room = config->max_batch > TABLE_SLOTS ? config->max_batch : TABLE_SLOTS;
    t->first = (table_first){config->first, rng_make_key(config->seed, RNG_TABLE),
                             (float)table_first_unit(config->first, config->first_scale),
                             config->first_state};
    status st = make_levels(t);
    return CREATED(st, out, t, embed_destroy);
}

void embed_destroy(embed_table *t) {
    array device[N_DEVICE_ARRAYS], host[N_HOST_ARRAYS];
    if (t == NULL) return;
    list_arrays(t, device, host);
    for (int i = 0; i < N_DEVICE_ARRAYS; i++)
        if (*device[i].at != NULL) t->be->ops->release(t->be, *device[i].at);
    for (int i = 0; i < N_HOST_ARRAYS; i++)
        mem_free(*host[i].at);
    for (int i = 0; i < EMBED_LEVELS; i++)
        free_level(t, i);
    sketch_fini(&t->seen);
    MEM_FREE(t->crowd, t->gone, t);
}

const embed_config *embed_config_of(const embed_table *t) {
    return &t->config;
}

const embed_counts *embed_counts_of(const embed_table *t) {
    return &t->counts;
}

int32_t embed_n_floats(const embed_table *t) {
    return t->n_floats;
}

int64_t embed_step(const embed_table *t) {
    return t->step;
}

status embed_set_step(embed_table *t, int64_t step) {
    if (step < t->step || step > STEP_MAX)
        return fail(ERR_USAGE, "step %lld of a dynamic table that is at step %lld", (long long)step,
                    (long long)t->step);
    t->step = step;
    return OK;
}

status embed_check_whole(const embed_table *t) {
    if (!t->is_torn) return OK;
    return fail(ERR_IO, "a batch of this dynamic table failed halfway, and rows were lost; read "
                        "its last full snapshot");
}

void embed_track_left(embed_table *t) {
    t->config.tracks_left = true;
}

status embed_note_left(embed_table *t, int64_t n, const uint64_t *keys) {
    if (!t->config.tracks_left) return OK;
    TRY(MEM_RESERVE(&t->gone, &t->gone_capacity, t->n_gone + (size_t)n));
    for (int64_t i = 0; i < n; i++)
        t->gone[t->n_gone++] = (embed_gone){keys[i], t->step};
    return OK;
}

void embed_forget_left(embed_table *t, int64_t before) {
    size_t n = 0;
    for (size_t i = 0; i < t->n_gone; i++)
        if (t->gone[i].step >= before) t->gone[n++] = t->gone[i];
    t->n_gone = n;
}

/* A table with a store may see far more keys than it has slots, hence the minimum width of all
 * parts together; a part alone has a minimum, too. */
enum { HALVING = 10, COUNTER_MAX = 65535, MIN_WIDTH = 1 << 14, MIN_PART = 64 };

status sketch_init(sketch *s, int64_t n_keys, int n_parts, int first, int end) {
    int64_t width = (n_keys > MIN_WIDTH ? n_keys : MIN_WIDTH) / n_parts;
    *s = (sketch){.mask = MIN_PART - 1, .first = first, .n = end - first};
    while ((int64_t)s->mask + 1 < width)
        s->mask = s->mask * 2 + 1;
    TRY(MEM_NEW(&s->n_seen, (size_t)s->n));
    return MEM_NEW(&s->counter, (size_t)s->n * sketch_part_n(s));
}

void sketch_fini(sketch *s) {
    MEM_FREE(s->counter, s->n_seen);
    *s = (sketch){0};
}

void sketch_clear(sketch *s) {
    if (s->counter == NULL) return;
    memset(s->counter, 0, (size_t)s->n * sketch_part_n(s) * sizeof *s->counter);
    memset(s->n_seen, 0, (size_t)s->n * sizeof *s->n_seen);
}

uint32_t sketch_add(sketch *s, int part, uint64_t hash, uint32_t times) {
    uint16_t *at[SKETCH_ROWS], *own = s->counter + (size_t)(part - s->first) * sketch_part_n(s);
    uint64_t *n_seen = &s->n_seen[part - s->first];
    uint32_t least = COUNTER_MAX;
    for (int r = 0; r < SKETCH_ROWS; r++) {
        /* One odd multiplier for each row, and the high bits of the product. */
        uint64_t mixed =
            (hash ^ hash >> 29) * (0x9e3779b97f4a7c15ull + 2 * (uint64_t)r * 0x632be5ab);
        at[r] = &own[(size_t)r * (s->mask + 1) + (mixed >> 32 & s->mask)];
        if (*at[r] < least) least = *at[r];
    }
    uint32_t count = times > COUNTER_MAX - least ? COUNTER_MAX : least + times;
    for (int r = 0; r < SKETCH_ROWS; r++)
        if (*at[r] < count) *at[r] = (uint16_t)count;
    *n_seen += times;
    if (*n_seen <= HALVING * (s->mask + 1)) return count;
    for (size_t i = 0; i < sketch_part_n(s); i++)
        own[i] /= 2;
    *n_seen = 0;
    return count;
}
