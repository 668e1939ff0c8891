#include "data/build/builder.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "data/build/builder_int.h"

status builder_create(builder **out, const builder_options *options, pool *p) {
    builder *b;
    *out = NULL;
    TRY(MEM_NEW(&b, 1));
    b->options = *options;
    b->workers = p;
    pthread_mutex_init(&b->lock, NULL);
    dictionary_init(&b->catalogue, options->has_text_items);
    dictionary_init(&b->context_users, options->has_text_users);
    uint32_t n_sinks = p != NULL ? (uint32_t)pool_n_threads(p) : 1;
    status st = MEM_NEW(&b->sinks, n_sinks);
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
    *out = b;
    return OK;
}

static void free_block(event_block *block) {
    if (block == NULL) return;
    mem_free(block->memory);
    mem_free(block);
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
    mem_free(b->title_begin);
    mem_free(b->title_end);
    buf_fini(&b->titles);
    dictionary_fini(&b->context_users);
    for (int f = 0; f < b->n_features; f++) {
        dictionary_fini(&b->features[f].values);
        mem_free(b->features[f].value);
    }
    pthread_mutex_destroy(&b->lock);
    mem_free(b);
}

builder_sink *builder_get_sink(builder *b, int worker) {
    return &b->sinks[worker];
}

void event_block_place(event_block *block, void *memory, uint64_t capacity) {
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

status sink_add_columns(builder_sink *s, size_t n, const uint32_t *user, const uint32_t *item,
                        const uint32_t *action, const int64_t *time) {
    event_block *block = s->open;
    uint64_t at = block->n;
    if (n > block->capacity - at)
        return fail(ERR_FORMAT, "a block of %" PRIu64 " events is full", block->capacity);
    for (size_t i = 0; i < n; i++) {
        s->users.count[user[i]]++;
        s->items.count[item[i]]++;
        block->action[at + i] = (uint16_t)action[i];
    }
    memcpy(block->user + at, user, n * sizeof *user);
    memcpy(block->item + at, item, n * sizeof *item);
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

status sink_add_text(builder_sink *s, const char *user, size_t user_bytes, const char *item,
                     size_t item_bytes, uint16_t action, int64_t time) {
    uint32_t u, i;
    TRY(dictionary_text(&s->users, user, user_bytes, &u));
    TRY(dictionary_text(&s->items, item, item_bytes, &i));
    return sink_add_numbered(s, u, i, action, time);
}

status builder_add_item(builder *b, const char *id, size_t id_bytes, const char *title,
                        size_t title_bytes) {
    uint32_t i, n_before = b->catalogue.n;
    TRY(dictionary_parse(&b->catalogue, id, id_bytes, &i));
    TRY(MEM_RESERVE(&b->title_begin, &b->begin_capacity, (size_t)i + 1));
    TRY(MEM_RESERVE(&b->title_end, &b->end_capacity, (size_t)i + 1));
    if (i == n_before) b->title_begin[i] = b->title_end[i] = 0;
    if (title == NULL || title_bytes == 0 || b->title_end[i] > b->title_begin[i]) return OK;
    b->title_begin[i] = b->titles.n_bytes;
    TRY(buf_append(&b->titles, title, title_bytes));
    b->title_end[i] = b->titles.n_bytes;
    return OK;
}

status builder_add_context(builder *b, const char *name, int *out_feature) {
    /* The name becomes a column "ctx.NAME.o". */
    if (b->n_features == CONTEXT_MAX || strlen(name) + 7 > COLUMN_NAME_BYTES)
        return fail(
            ERR_FORMAT,
            "contextual feature '%s' does not fit: at most %d features, names up to %d bytes", name,
            CONTEXT_MAX, COLUMN_NAME_BYTES - 7);
    feature_input *f = &b->features[b->n_features];
    *f = (feature_input){0};
    memcpy(f->name, name, strlen(name));
    dictionary_init(&f->values, true);
    *out_feature = b->n_features++;
    return OK;
}

status builder_set_context(builder *b, int feature, const char *user_id, size_t id_bytes,
                           const char *value, size_t value_bytes) {
    feature_input *f = &b->features[feature];
    uint32_t user, number;
    TRY(dictionary_parse(&b->context_users, user_id, id_bytes, &user));
    TRY(dictionary_text(&f->values, value, value_bytes, &number));
    size_t old = f->capacity;
    TRY(MEM_RESERVE(&f->value, &f->capacity, (size_t)user + 1));
    if (f->capacity > old) memset(f->value + old, 0, (f->capacity - old) * sizeof *f->value);
    f->value[user] = number + 1;
    return OK;
}
