#include "data/build/builder.h"
#include "data/build/builder_int.h"
#include "format/json.h"

status builder_create(builder **out, const builder_options *options, pool *p) {
    builder *b;
    *out = NULL;
    TRY(MEM_NEW(&b, 1));
    b->options = *options;
    b->workers = p;
    pthread_mutex_init(&b->lock, NULL);
    dictionary_init(&b->catalogue, options->has_text_items);
    dictionary_init(&b->vector_items, options->has_text_items);
    dictionary_init(&b->context_users, options->has_text_users);
    uint32_t n_sinks = p != NULL ? (uint32_t)pool_n_threads(p) : 1;
    bool has_names = options->action_map != NULL && options->actions == ACTION_CODE;
    status st = has_names ? buf_text(&b->action_map, options->action_map) : OK;
    if (st == OK) st = MEM_NEW(&b->sinks, n_sinks);
    if (st != OK) {
        builder_destroy(b);
        return st;
    }
    b->n_sinks = n_sinks;
    for (uint32_t i = 0; i < n_sinks; i++) {
        b->sinks[i].owner = b;
        b->sinks[i].index = i;
        dictionary_init(&b->sinks[i].users, options->has_text_users);
        dictionary_init(&b->sinks[i].items, options->has_text_items);
    }
    int feature; /* the first one; its values are known when all users are */
    if (options->has_user_feature) (void)builder_add_context(b, "user_id", &feature);
    *out = b;
    return OK;
}

static void free_block(event_block *block) {
    if (block == NULL) return;
    MEM_FREE(block->memory, block);
}

void builder_destroy(builder *b) {
    if (b == NULL) return;
    for (size_t i = 0; i < b->n_blocks; i++)
        free_block(b->blocks[i]);
    mem_free(b->blocks);
    for (uint32_t i = 0; i < b->n_sinks; i++) {
        free_block(b->sinks[i].open);
        dictionary_fini(&b->sinks[i].users);
        dictionary_fini(&b->sinks[i].items);
    }
    mem_free(b->sinks);
    dictionary_fini(&b->catalogue);
    MEM_FREE(b->title_begin, b->title_end);
    buf_fini(&b->titles);
    buf_fini(&b->action_map);
    for (int f = 0; f < b->n_content; f++)
        feature_input_fini(&b->content[f]);
    dictionary_fini(&b->vector_items);
    mem_free(b->vectors);
    dictionary_fini(&b->context_users);
    for (int f = 0; f < b->n_features; f++)
        feature_input_fini(&b->features[f]);
    pthread_mutex_destroy(&b->lock);
    mem_free(b);
}

builder_sink *builder_get_sink(builder *b, int worker) {
    return &b->sinks[worker];
}

/* The four columns of a block of `capacity` events, in one allocation. */
static void event_block_place(event_block *block, void *memory, uint64_t capacity) {
    block->memory = memory;
    block->capacity = capacity;
    block->time = memory;
    block->user = (uint32_t *)(block->time + capacity);
    block->item = block->user + capacity;
    block->action = (uint16_t *)(block->item + capacity);
}

status sink_begin_block(builder_sink *s, uint64_t sequence, uint64_t max_events) {
    event_block *block;
    void *memory;
    TRY(MEM_NEW(&block, 1));
    status st = mem_alloc_dense(&memory, max_events, EVENT_BYTES);
    if (st != OK) {
        mem_free(block);
        return st;
    }
    event_block_place(block, memory, max_events);
    block->sequence = sequence;
    block->sink = s->index;
    s->open = block;
    return OK;
}

/* Frees the unused memory of a block where that is worth a copy. */
static status trim_block(event_block *block) {
    event_block smaller = *block;
    void *memory;
    if (block->n > block->capacity - block->capacity / 16) return OK;
    TRY(mem_alloc_raw(&memory, block->n, EVENT_BYTES));
    event_block_place(&smaller, memory, block->n);
    memcpy(smaller.time, block->time, block->n * sizeof *block->time);
    memcpy(smaller.user, block->user, block->n * sizeof *block->user);
    memcpy(smaller.item, block->item, block->n * sizeof *block->item);
    memcpy(smaller.action, block->action, block->n * sizeof *block->action);
    mem_free(block->memory);
    *block = smaller;
    return OK;
}

status sink_end_block(builder_sink *s) {
    builder *b = s->owner;
    TRY(trim_block(s->open));
    pthread_mutex_lock(&b->lock);
    status st = MEM_RESERVE(&b->blocks, &b->block_capacity, b->n_blocks + 1);
    if (st == OK) {
        b->blocks[b->n_blocks++] = s->open;
        s->open = NULL;
    }
    pthread_mutex_unlock(&b->lock);
    return st;
}

void sink_keep_digits(builder_sink *s, int digits) {
    if (digits > s->time_digits) s->time_digits = digits;
}

status sink_user(builder_sink *s, int64_t id, uint32_t *out) {
    return dictionary_number(&s->users, id, out);
}

status sink_user_text(builder_sink *s, const char *id, size_t n, uint32_t *out) {
    return dictionary_text(&s->users, id, n, out);
}

status sink_item(builder_sink *s, int64_t id, uint32_t *out) {
    return dictionary_number(&s->items, id, out);
}

status sink_item_text(builder_sink *s, const char *id, size_t n, uint32_t *out) {
    return dictionary_text(&s->items, id, n, out);
}

status sink_add_numbered(builder_sink *s, uint32_t user, uint32_t item, uint16_t action,
                         int64_t time) {
    event_block *block = s->open;
    uint64_t i = block->n;
    if (i == block->capacity)
        return fail(ERR_FORMAT, "a block of %" PRIu64 " events is full", block->capacity);
    s->users.count[user]++;
    s->items.count[item]++;
    block->time[i] = time;
    block->user[i] = user;
    block->item[i] = item;
    block->action[i] = action;
    block->n++;
    return OK;
}

status sink_add_columns(builder_sink *s, size_t n, const int64_t *user, const int64_t *item,
                        const int64_t *action, const int64_t *time) {
    event_block *block = s->open;
    uint64_t at = block->n;
    if (n > block->capacity - at)
        return fail(ERR_FORMAT, "a block of %" PRIu64 " events is full", block->capacity);
    for (size_t i = 0; i < n; i++) {
        s->users.count[user[i]]++;
        s->items.count[item[i]]++;
        block->user[at + i] = (uint32_t)user[i];
        block->item[at + i] = (uint32_t)item[i];
        block->action[at + i] = (uint16_t)action[i];
    }
    memcpy(block->time + at, time, n * sizeof *time);
    block->n += n;
    return OK;
}

status sink_add(builder_sink *s, int64_t user, int64_t item, uint16_t action, int64_t time) {
    uint32_t u, i;
    const event_block *block = s->open;
    /* Most sources list a user's events together: the dictionary is used only when the user
     * changes. */
    uint32_t last = block->n > 0 ? block->user[block->n - 1] : 0;
    if (block->n > 0 && dictionary_get_number(&s->users, last) == user)
        u = last;
    else
        TRY(dictionary_number(&s->users, user, &u));
    TRY(dictionary_number(&s->items, item, &i));
    return sink_add_numbered(s, u, i, action, time);
}

status builder_add_item(builder *b, const char *id, size_t id_bytes, const char *title,
                        size_t title_bytes) {
    uint32_t i, n_before = b->catalogue.n;
    TRY(dictionary_parse(&b->catalogue, id, id_bytes, &i));
    TRY(MEM_RESERVE(&b->title_begin, &b->begin_capacity, (size_t)i + 1));
    TRY(MEM_RESERVE(&b->title_end, &b->end_capacity, (size_t)i + 1));
    if (i == n_before) b->title_begin[i] = b->title_end[i] = 0;
    b->last_item = i;
    b->is_new_item = i == n_before;
    b->n_item_rows++;
    if (title == NULL || title_bytes == 0 || b->title_end[i] > b->title_begin[i]) return OK;
    b->title_begin[i] = b->titles.n_bytes;
    TRY(buf_append(&b->titles, title, title_bytes));
    b->title_end[i] = b->titles.n_bytes;
    return OK;
}

uint64_t builder_n_item_rows(const builder *b) {
    return b->n_item_rows == b->catalogue.n ? b->n_item_rows : 0;
}

bool builder_item_is_new(const builder *b) {
    return b->is_new_item;
}

status builder_item_id(const builder *b, uint32_t i, buf *out) {
    size_t n;
    buf_clear(out);
    if (!b->catalogue.is_text)
        return buf_printf(out, "%" PRId64, dictionary_get_number(&b->catalogue, i));
    const char *text = text_map_get(&b->catalogue.texts, i, &n);
    return buf_append(out, text, n);
}

status builder_add_context(builder *b, const char *name, int *out_feature) {
    /* The name becomes a column "ctx.NAME.o". */
    if (b->n_features == CONTEXT_MAX || strlen(name) + 7 > COLUMN_NAME_BYTES)
        return fail(
            ERR_FORMAT,
            "contextual feature '%s' does not fit: at most %d features, names up to %d bytes", name,
            CONTEXT_MAX, COLUMN_NAME_BYTES - 7);
    if (builder_find_feature(b, false, name) >= 0)
        return fail(ERR_FORMAT,
                    "two user features are called '%s' (other characters than letters and digits "
                    "become '_'); rename one of their columns",
                    name);
    *out_feature = b->n_features++;
    b->features[*out_feature] = (feature_input){.cells.is_text = true};
    memcpy(b->features[*out_feature].spec.name, name, strlen(name));
    return OK;
}

status builder_set_context(builder *b, int feature, const char *user_id, size_t id_bytes,
                           const char *value, size_t value_bytes) {
    uint32_t user;
    TRY(dictionary_parse(&b->context_users, user_id, id_bytes, &user));
    return feature_input_add(&b->features[feature], user, value, value_bytes);
}

uint64_t builder_count_values(const builder *b, int feature, uint64_t *n_rows) {
    *n_rows = b->features[feature].n_pairs;
    return b->features[feature].cells.n;
}

/* A pass looks at every event: if its user or its item has too few, the event is dropped and both
 * counts go down at once, so that later events of the same pass see it.  The k-core of a data set
 * is unique, whatever the order of the drops; so threads may race for the counts.  Passes run
 * forwards and backwards in turn: a chain of drops in the order of the file then takes one pass,
 * not one per link. */
typedef struct peel_job {
    write_job *job;
    bool is_backward;
    uint64_t n_dropped;
} peel_job;

static bool is_rare(const uint32_t *count, uint32_t i, uint32_t minimum) {
    return __atomic_load_n(&count[i], __ATOMIC_RELAXED) < minimum;
}

static status peel_block(void *ctx, int64_t chunk, int worker) {
    peel_job *p = ctx;
    const builder *b = p->job->b;
    uint32_t *users = p->job->users.count, *items = p->job->items.count;
    uint64_t n_dropped = 0;
    if (p->is_backward) chunk = (int64_t)b->n_blocks - 1 - chunk;
    event_block *block = b->blocks[chunk];
    for (uint64_t k = 0; k < block->n; k++) {
        uint64_t i = p->is_backward ? block->n - 1 - k : k;
        uint32_t user = block->user[i], item = block->item[i];
        if (user == DROPPED || (!is_rare(users, user, b->options.min_user_events) &&
                                !is_rare(items, item, b->options.min_item_events)))
            continue;
        __atomic_fetch_sub(&users[user], 1, __ATOMIC_RELAXED);
        __atomic_fetch_sub(&items[item], 1, __ATOMIC_RELAXED);
        block->user[i] = DROPPED;
        n_dropped++;
    }
    __atomic_fetch_add(&p->n_dropped, n_dropped, __ATOMIC_RELAXED);
    return OK;
}

/* The k-core: drops the events of users and items that have fewer events than the minima of the
 * options, until all that are left have enough.  Events hold places in the merged order; the counts
 * of job->users and job->items become what is left. */
static status builder_k_core(write_job *job) {
    peel_job p = {.job = job};
    do {
        p.n_dropped = 0;
        TRY(pool_run(job->b->workers, (int64_t)job->b->n_blocks, peel_block, &p));
        p.is_backward = !p.is_backward;
    } while (p.n_dropped > 0);
    return OK;
}

static void id_space_fini(id_space *s) {
    for (uint32_t p = 0; s->rank != NULL && p < s->n_parts; p++)
        mem_free(s->rank[p]);
    MEM_FREE(s->rank, s->parts, s->ids, s->count, s->number);
}

static status id_space_merge(builder *b, bool is_item, id_space *s) {
    s->n_parts = b->n_sinks + (is_item ? 2 : 1);
    TRY(MEM_NEW(&s->parts, s->n_parts));
    TRY(MEM_NEW(&s->rank, s->n_parts));
    for (uint32_t p = 0; p < b->n_sinks; p++)
        s->parts[p] = is_item ? &b->sinks[p].items : &b->sinks[p].users;
    s->parts[b->n_sinks] = is_item ? &b->catalogue : &b->context_users;
    if (is_item) s->parts[b->n_sinks + 1] = &b->vector_items;
    TRY(dictionary_merge(s->parts, s->n_parts, s->rank, &s->ids, &s->n));
    TRY(MEM_NEW(&s->count, s->n));
    TRY(MEM_NEW(&s->number, s->n));
    for (uint32_t p = 0; p < b->n_sinks; p++)
        for (uint32_t i = 0; i < s->parts[p]->n; i++)
            s->count[s->rank[p][i]] += s->parts[p]->count[i];
    return OK;
}

static int compare_blocks(const void *a, const void *b) {
    const event_block *x = *(event_block *const *)a, *y = *(event_block *const *)b;
    return (x->sequence > y->sequence) - (x->sequence < y->sequence);
}

/* Local numbers become places in the merged order. */
static status rank_block(void *ctx, int64_t chunk, int worker) {
    write_job *job = ctx;
    event_block *block = job->b->blocks[chunk];
    const uint32_t *user_rank = job->users.rank[block->sink];
    const uint32_t *item_rank = job->items.rank[block->sink];
    for (uint64_t i = 0; i < block->n; i++) {
        block->user[i] = user_rank[block->user[i]];
        block->item[i] = item_rank[block->item[i]];
    }
    return OK;
}

/* A time in seconds as the events have it. */
static int64_t time_of(const write_job *job, int64_t seconds) {
    const builder_options *o = &job->b->options;
    int64_t time, unit = o->has_ns_times ? 1000000000 : o->time_per_second;
    if (__builtin_mul_overflow(seconds, unit, &time)) return seconds < 0 ? INT64_MIN : INT64_MAX;
    return time;
}

static void drop_event(write_job *job, event_block *block, uint64_t i) {
    job->users.count[block->user[i]]--;
    job->items.count[block->item[i]]--;
    block->user[i] = DROPPED;
}

static void drop_out_of_range(write_job *job) {
    const builder *b = job->b;
    int64_t since = time_of(job, b->options.since), until = time_of(job, b->options.until);
    for (size_t k = 0; k < b->n_blocks; k++)
        for (uint64_t i = 0; i < b->blocks[k]->n; i++) {
            int64_t time = b->blocks[k]->time[i];
            if ((b->options.since == 0 || time >= since) && (b->options.until == 0 || time < until))
                continue;
            drop_event(job, b->blocks[k], i);
            job->stats->n_out_of_range++;
        }
}

static uint64_t user_hash(const id_space *users, uint32_t u) {
    const dictionary *d = users->parts[users->ids[u].part];
    uint32_t i = users->ids[u].index;
    size_t n;
    if (!d->is_text) return hash64_mix((uint64_t)dictionary_get_number(d, i));
    const char *text = text_map_get(&d->texts, i, &n);
    return hash64(text, n, 0);
}

/* Of the users with events those with the smallest hashes. */
static status sample_users(write_job *job) {
    const builder *b = job->b;
    const id_space *users = &job->users;
    uint64_t *hash;
    uint32_t n = 0;
    TRY(MEM_NEW_RAW(&hash, users->n));
    for (uint32_t u = 0; u < users->n; u++)
        if (users->count[u] > 0) hash[n++] = user_hash(users, u);
    if (n > b->options.sample_users) {
        sort_uint64(hash, n);
        uint64_t most = hash[b->options.sample_users - 1];
        for (size_t k = 0; k < b->n_blocks; k++)
            for (uint64_t i = 0; i < b->blocks[k]->n; i++) {
                uint32_t user = b->blocks[k]->user[i];
                if (user == DROPPED || user_hash(users, user) <= most) continue;
                drop_event(job, b->blocks[k], i);
                job->stats->n_not_sampled++;
            }
    }
    mem_free(hash);
    return OK;
}

/* Drops the events of rare users and items; counts what is left of each. */
static void drop_rare(write_job *job, event_block *block, uint32_t *user_left,
                      uint32_t *item_left) {
    const builder_options *options = &job->b->options;
    for (uint64_t i = 0; i < block->n; i++) {
        if (block->user[i] == DROPPED) continue;
        if (job->users.count[block->user[i]] < options->min_user_events ||
            job->items.count[block->item[i]] < options->min_item_events) {
            block->user[i] = DROPPED;
            continue;
        }
        user_left[block->user[i]]++;
        item_left[block->item[i]]++;
    }
}

/* The minimum counts of the options, applied as the reference preprocessing does: items and users
 * are counted once, on the raw data; an event is kept if both have enough; then users with too few
 * events left are dropped.  Items that had an event before that last step are kept, because the
 * reference numbers items there. */
static status apply_minima(write_job *job) {
    builder *b = job->b;
    id_space *users = &job->users, *items = &job->items;
    uint32_t *user_left = NULL, *item_left = NULL;
    status st = MEM_NEW(&user_left, users->n);
    if (st == OK) st = MEM_NEW(&item_left, items->n);
    for (size_t k = 0; st == OK && k < b->n_blocks; k++)
        drop_rare(job, b->blocks[k], user_left, item_left);
    for (uint32_t u = 0; st == OK && u < users->n; u++)
        users->count[u] = user_left[u] < b->options.min_user_events ? 0 : user_left[u];
    if (st == OK) memcpy(items->count, item_left, items->n * sizeof *item_left);
    MEM_FREE(user_left, item_left);
    return st;
}

/* Final numbers: users with events get 0.., items of the catalogue or with events get 1... */
static status number_ids(write_job *job) {
    builder *b = job->b;
    id_space *users = &job->users, *items = &job->items;
    bool has_minima = b->options.min_item_events > 0 || b->options.min_user_events > 0;
    if (has_minima) TRY(b->options.is_k_core ? builder_k_core(job) : apply_minima(job));
    for (uint32_t u = 0; u < users->n; u++)
        users->number[u] = users->count[u] > 0 ? users->n_kept++ : DROPPED;
    uint8_t *is_listed;
    TRY(MEM_NEW(&is_listed, items->n));
    for (uint32_t i = 0; b->options.min_item_events == 0 && i < b->catalogue.n; i++)
        is_listed[items->rank[b->n_sinks][i]] = 1;
    for (uint32_t i = 0; i < items->n; i++)
        items->number[i] = items->count[i] > 0 || is_listed[i] ? ++items->n_kept : DROPPED;
    mem_free(is_listed);
    return OK;
}

/* The ticks of the file: as many a second as the finest time needs. */
static void choose_ticks(write_job *job) {
    const builder *b = job->b;
    int digits = b->options.min_time_digits;
    job->ns_per_tick = 1;
    job->stats->time_per_second = b->options.time_per_second;
    if (!b->options.has_ns_times) return;
    for (uint32_t i = 0; i < b->n_sinks; i++)
        if (b->sinks[i].time_digits > digits) digits = b->sinks[i].time_digits;
    job->stats->time_per_second = 1;
    for (int i = 0; i < digits; i++)
        job->stats->time_per_second *= 10;
    job->ns_per_tick = 1000000000 / job->stats->time_per_second;
}

/* Places in the merged order become final numbers; a dropped event has user DROPPED. */
static status number_block(void *ctx, int64_t chunk, int worker) {
    write_job *job = ctx;
    event_block *block = job->b->blocks[chunk];
    for (uint64_t i = 0; i < block->n; i++) {
        uint32_t user = block->user[i] == DROPPED ? DROPPED : job->users.number[block->user[i]];
        block->user[i] = user;
        if (user == DROPPED) continue;
        block->item[i] = job->items.number[block->item[i]];
    }
    return OK;
}

/* Users and items of the file that have a row in a side file. */
static void count_described(write_job *job) {
    const builder *b = job->b;
    const id_space *users = &job->users, *items = &job->items;
    for (uint32_t i = 0; i < b->context_users.n; i++)
        job->stats->n_described_users += users->number[users->rank[b->n_sinks][i]] != DROPPED;
    for (uint32_t i = 0; i < b->catalogue.n; i++)
        job->stats->n_described_items += items->count[items->rank[b->n_sinks][i]] > 0;
}

static status make_offsets(write_job *job) {
    builder_stats *stats = job->stats;
    stats->n_users = job->users.n_kept;
    stats->n_items = job->items.n_kept;
    TRY(MEM_NEW(&job->offsets, stats->n_users + 1));
    for (uint32_t u = 0; u < job->users.n; u++)
        if (job->users.number[u] != DROPPED)
            job->offsets[job->users.number[u] + 1] = job->users.count[u];
    for (uint64_t u = 0; u < stats->n_users; u++)
        job->offsets[u + 1] += job->offsets[u];
    return OK;
}

/* Counts users and items with events, before (sign 1) and after (-1) the minima. */
static void count_filtered(write_job *job, int sign) {
    const id_space *users = &job->users, *items = &job->items;
    for (uint32_t u = 0; u < users->n; u++)
        job->stats->n_filtered_users += (uint64_t)(users->count[u] > 0 ? sign : 0);
    for (uint32_t i = 0; i < items->n; i++)
        job->stats->n_filtered_items += (uint64_t)(items->count[i] > 0 ? sign : 0);
}

/* Merges ids, drops rare users and items, renumbers every event and chooses the ticks of the file;
 * fills job->offsets and the counts of job->stats.  A dropped event has user DROPPED. */
static status builder_renumber(write_job *job) {
    builder *b = job->b;
    uint64_t n_raw = 0;
    for (size_t k = 0; k < b->n_blocks; k++)
        n_raw += b->blocks[k]->n;
    if (n_raw == 0) return fail(ERR_FORMAT, "there are no events");
    qsort(b->blocks, b->n_blocks, sizeof *b->blocks, compare_blocks);
    TRY(id_space_merge(b, false, &job->users));
    TRY(id_space_merge(b, true, &job->items));
    TRY(pool_run(b->workers, (int64_t)b->n_blocks, rank_block, job));
    if (b->options.since != 0 || b->options.until != 0) drop_out_of_range(job);
    if (b->options.sample_users > 0) TRY(sample_users(job));
    n_raw -= job->stats->n_out_of_range + job->stats->n_not_sampled;
    if (n_raw == 0) return fail(ERR_FORMAT, "no event is in the time from --since to --until");
    count_filtered(job, 1);
    TRY(number_ids(job));
    count_filtered(job, -1);
    count_described(job);
    choose_ticks(job);
    TRY(pool_run(b->workers, (int64_t)b->n_blocks, number_block, job));
    TRY(make_offsets(job));
    job->stats->n_filtered_events = n_raw - job->offsets[job->users.n_kept];
    if (job->users.n_kept == 0)
        return fail(ERR_FORMAT,
                    "no user is left: all %" PRIu64
                    " events were dropped by the minimum counts (%" PRIu32
                    " events an item, %" PRIu32 " a user)",
                    n_raw, b->options.min_item_events, b->options.min_user_events);
    return OK;
}

/* From blocks of events to the file: ids become numbers (builder_renumber.c), the columns are laid
 * out, the small ones written (builder_vocab.c), then the events, partition by partition. */

/* The scalars a reader needs, and where the data came from. */
static status write_meta(const write_job *job, const char *source_json, buf *out) {
    const builder_options *options = &job->b->options;
    json_writer w;
    json_begin_object(&w, out, 0);
    JSON_FIELDS(&w, FIELD("action_kind", options->actions),
                FIELD("time_per_second", job->stats->time_per_second),
                FIELD("catalogue", job->stats->n_items));
    json_key(&w, "source");
    TRY(w.state);
    /* The caller's JSON object is copied as it is; reading the file back checks it. */
    TRY(buf_printf(out, "%s}", source_json));
    return buf_append(out, "", 1);
}

static status make_out_offsets(write_job *job) {
    uint64_t n = job->stats->n_users + 1;
    TRY(MEM_NEW(&job->out_offsets, n));
    if (job->b->options.drop_duplicates)
        TRY(partition_count_duplicates(job));
    else
        memcpy(job->out_offsets, job->offsets, n * sizeof *job->offsets);
    job->stats->n_events = job->out_offsets[n - 1];
    return OK;
}

static status write_columns(write_job *job, const buf *meta, const vocab_output *vocab,
                            column_writer *w) {
    const builder_stats *stats = job->stats;
    event_columns events = {.writer = w};
    uint64_t n_floats = (stats->n_items + 1) * (uint64_t)job->b->vector_dim;
    int vectors;
    TRY(column_writer_add(w, "meta", COLUMN_U8, meta->n_bytes, meta->data));
    const buf *names = &job->b->action_map;
    if (names->n_bytes > 0)
        TRY(column_writer_add(w, "action_map", COLUMN_U8, names->n_bytes + 1, buf_str(names)));
    TRY(column_writer_add(w, "offsets", COLUMN_U64, stats->n_users + 1, job->out_offsets));
    TRY(column_writer_declare(w, "item_index", COLUMN_U32, stats->n_events, &events.item));
    TRY(column_writer_declare(w, "action", COLUMN_U16, stats->n_events, &events.action));
    TRY(column_writer_declare(w, "time", COLUMN_I64, stats->n_events, &events.time));
    TRY(vocab_output_declare(vocab, w));
    if (n_floats > 0) TRY(column_writer_declare(w, "item_vector", COLUMN_F32, n_floats, &vectors));
    TRY(column_writer_begin(w));
    if (n_floats > 0) TRY(vectors_write(job, w, vectors));
    TRY(partition_write(job, &events));
    return column_writer_commit(w, job->b->workers);
}

static status write_file(write_job *job, const char *path, const char *source_json) {
    vocab_output *vocab = NULL;
    column_writer *w = NULL;
    buf meta = {0};
    status st = column_writer_create(
        &w, path); /* First, so that a target that cannot be written is reported early. */
    if (st == OK) st = builder_renumber(job);
    if (st == OK) st = make_out_offsets(job);
    if (st == OK) st = write_meta(job, source_json, &meta);
    if (st == OK) st = vocab_output_create(&vocab, job);
    if (st == OK) st = write_columns(job, &meta, vocab, w);
    column_writer_abandon(w);
    vocab_output_destroy(vocab);
    buf_fini(&meta);
    return st;
}

status builder_write(builder *b, const char *folder, const char *meta_json, builder_stats *stats) {
    char path[4096];
    bool is_made;
    *stats = (builder_stats){0};
    write_job job = {.b = b, .stats = stats};
    TRY(path_join(path, sizeof path, folder, "data.seq"));
    TRY(folder_create(folder, &is_made));
    status st = write_file(&job, path, meta_json);
    id_space_fini(&job.users);
    id_space_fini(&job.items);
    MEM_FREE(job.offsets, job.out_offsets);
    if (st != OK && is_made) (void)rmdir(folder);
    return st;
}

uint64_t builder_n_events(const builder *b) {
    uint64_t n = 0;
    for (size_t i = 0; i < b->n_blocks; i++)
        n += b->blocks[i]->n;
    return n;
}
