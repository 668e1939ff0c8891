/* A store that reads ahead (store.h).
 *
 * Requested keys have an entry in a map and room for their row.  The thread reads them a few at a
 * time, holding the lock: so a row that is put meanwhile was either read before, and the put
 * removes its entry, or is read after, with the new content.  A get of a key that is not yet read
 * waits for it. */
#include "base/map.h"
#include "embed/store.h"

enum { AT_ONCE = 64 };

typedef enum { ENTRY_FREE, ENTRY_ASKED, ENTRY_READ } entry_state;

/* One place for a row. */
typedef struct entry {
    uint64_t key, score;
    uint32_t stamp;
    uint8_t state, is_found;
    uint32_t ask; /* in which call of ask */
} entry;

typedef struct ahead_store {
    embed_store base; /* first: a store is an ahead_store */
    embed_store *below;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* something was asked for, or read, or it is over */
    bool is_over;
    failure trouble; /* of the thread; told by the next get */
    int64_t n_places, n_free, n_asked;
    arena memory; /* of the arrays */
    uint32_t n_asks;
    entry *entries; /* (n_places) */
    int64_t *free;  /* (n_free) */
    int64_t *asked; /* (n_places) ring of places to be read */
    int64_t first_asked;
    float *rows;       /* (n_places, n_floats) */
    map held;          /* keys that have a place */
    int64_t *place_of; /* (held.n) */
    /* of the thread */
    uint64_t keys[AT_ONCE], scores[AT_ONCE];
    uint32_t stamps[AT_ONCE];
    uint8_t is_found[AT_ONCE];
    float *read; /* (AT_ONCE, n_floats) */
} ahead_store;

static void drop(ahead_store *s, int64_t place) {
    uint32_t number = map_remove(&s->held, s->entries[place].key);
    s->place_of[number] = s->place_of[s->held.n];
    s->entries[place].state = ENTRY_FREE;
    s->free[s->n_free++] = place;
}

/* -1: it was not asked for. */
static int64_t place_of_key(const ahead_store *s, uint64_t key) {
    uint32_t number = map_find(&s->held, key);
    return number != MAP_NONE ? s->place_of[number] : -1;
}

static void forget_key(ahead_store *s, uint64_t key) {
    int64_t place = place_of_key(s, key);
    /* A key that is not yet read will be read with its content at that time. */
    if (place >= 0 && s->entries[place].state == ENTRY_READ) drop(s, place);
}

static void drop_old(ahead_store *s) {
    for (int64_t p = 0; p < s->n_places; p++)
        if (s->entries[p].state == ENTRY_READ && s->n_asks - s->entries[p].ask >= 2) drop(s, p);
}

/* Reads up to AT_ONCE of the places asked for. */
static status read_some(ahead_store *s) {
    int64_t places[AT_ONCE], n = 0;
    size_t row = (size_t)s->base.n_floats;
    for (; n < AT_ONCE && s->n_asked > 0; s->n_asked--) {
        places[n] = s->asked[s->first_asked];
        s->first_asked = (s->first_asked + 1) % s->n_places;
        s->keys[n] = s->entries[places[n]].key;
        n++;
    }
    status st = s->below->get(s->below, n, s->keys, s->is_found, s->scores, s->stamps, s->read);
    for (int64_t i = 0; i < n; i++) {
        entry *e = &s->entries[places[i]];
        if (st != OK) {
            drop(s, places[i]);
            continue;
        }
        e->state = ENTRY_READ;
        e->is_found = s->is_found[i];
        e->score = s->scores[i];
        e->stamp = s->stamps[i];
        memcpy(s->rows + (size_t)places[i] * row, s->read + (size_t)i * row, row * sizeof(float));
    }
    return st;
}

static void *read_ahead(void *ctx) {
    ahead_store *s = ctx;
    pthread_mutex_lock(&s->lock);
    while (!s->is_over) {
        if (s->n_asked == 0) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        status st = read_some(s);
        if (st != OK) failure_save(&s->trouble, st);
        pthread_cond_broadcast(&s->changed);
        /* A moment for those who wait for the lock. */
        pthread_mutex_unlock(&s->lock);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static status ask_key(ahead_store *s, uint64_t key) {
    uint32_t number;
    if (place_of_key(s, key) >= 0 || s->n_free == 0) return OK;
    TRY(map_put(&s->held, key, &number));
    int64_t place = s->place_of[number] = s->free[--s->n_free];
    s->entries[place] = (entry){.key = key, .state = ENTRY_ASKED, .ask = s->n_asks};
    s->asked[(s->first_asked + s->n_asked++) % s->n_places] = place;
    return OK;
}

static status ahead_ask(embed_store *base, int64_t n, const uint64_t *keys) {
    ahead_store *s = (ahead_store *)base;
    status st = OK;
    pthread_mutex_lock(&s->lock);
    s->n_asks++;
    if (s->n_free < n) drop_old(s);
    for (int64_t i = 0; st == OK && i < n; i++)
        st = ask_key(s, keys[i]);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* Takes a row from memory, once it is read, and removes it: its key moves up now.  False: it was
 * not requested. */
static bool take(ahead_store *s, uint64_t key, int64_t i, uint8_t *is_found, uint64_t *scores,
                 uint32_t *stamps, float *rows) {
    size_t row = (size_t)s->base.n_floats;
    int64_t place;
    while ((place = place_of_key(s, key)) >= 0 && s->entries[place].state == ENTRY_ASKED)
        pthread_cond_wait(&s->changed, &s->lock);
    if (place < 0) return false;
    const entry *e = &s->entries[place];
    is_found[i] = e->is_found;
    if (e->is_found) {
        scores[i] = e->score;
        stamps[i] = e->stamp;
        memcpy(rows + (size_t)i * row, s->rows + (size_t)place * row, row * sizeof(float));
    }
    drop(s, place);
    return true;
}

/* Gets keys one after the other: each one that was not prefetched is a separate read of the store
 * below. */
static status get_rest(ahead_store *s, int64_t n, const uint64_t *keys, uint8_t *is_found,
                       uint64_t *scores, uint32_t *stamps, float *rows) {
    size_t row = (size_t)s->base.n_floats;
    for (int64_t i = 0; i < n; i++)
        if (!take(s, keys[i], i, is_found, scores, stamps, rows))
            TRY(s->below->get(s->below, 1, &keys[i], &is_found[i], &scores[i], &stamps[i],
                              rows + (size_t)i * row));
    return OK;
}

static status ahead_get(embed_store *base, int64_t n, const uint64_t *keys, uint8_t *is_found,
                        uint64_t *scores, uint32_t *stamps, float *rows) {
    ahead_store *s = (ahead_store *)base;
    status st = OK;
    pthread_mutex_lock(&s->lock);
    if (s->trouble.code != OK) {
        st = failure_restore(&s->trouble);
        s->trouble.code = OK;
    }
    if (st == OK && s->held.n == 0)
        st = s->below->get(s->below, n, keys, is_found, scores, stamps, rows);
    else if (st == OK)
        st = get_rest(s, n, keys, is_found, scores, stamps, rows);
    pthread_mutex_unlock(&s->lock);
    return st;
}

static status ahead_put(embed_store *base, const embed_rows *rows) {
    ahead_store *s = (ahead_store *)base;
    pthread_mutex_lock(&s->lock);
    status st = s->below->put(s->below, rows);
    for (int64_t i = 0; i < rows->n; i++)
        forget_key(s, rows->keys[i]);
    pthread_mutex_unlock(&s->lock);
    return st;
}

static status ahead_erase(embed_store *base, int64_t n, const uint64_t *keys) {
    ahead_store *s = (ahead_store *)base;
    pthread_mutex_lock(&s->lock);
    status st = s->below->erase(s->below, n, keys);
    for (int64_t i = 0; i < n; i++)
        forget_key(s, keys[i]);
    pthread_mutex_unlock(&s->lock);
    return st;
}

static status ahead_each(embed_store *base, embed_visit visit, void *ctx) {
    ahead_store *s = (ahead_store *)base;
    pthread_mutex_lock(&s->lock);
    status st = s->below->each(s->below, visit, ctx);
    pthread_mutex_unlock(&s->lock);
    return st;
}

static status ahead_clear(embed_store *base) {
    ahead_store *s = (ahead_store *)base;
    pthread_mutex_lock(&s->lock);
    status st = s->below->clear(s->below);
    for (int64_t p = 0; p < s->n_places; p++)
        if (s->entries[p].state == ENTRY_READ) drop(s, p);
    pthread_mutex_unlock(&s->lock);
    return st;
}

static void ahead_destroy(embed_store *base) {
    ahead_store *s = (ahead_store *)base;
    pthread_mutex_lock(&s->lock);
    s->is_over = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->has_thread) pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    map_fini(&s->held);
    arena_fini(&s->memory);
    mem_free(s);
}

static status make_places(ahead_store *s, int64_t max_rows) {
    size_t n = (size_t)max_rows, row = (size_t)s->base.n_floats;
    TRY(ARENA_NEW(&s->memory, &s->place_of, n));
    TRY(ARENA_NEW(&s->memory, &s->entries, n));
    TRY(ARENA_NEW(&s->memory, &s->free, n));
    TRY(ARENA_NEW(&s->memory, &s->asked, n));
    TRY(ARENA_NEW_RAW(&s->memory, &s->rows, n * row));
    TRY(ARENA_NEW_RAW(&s->memory, &s->read, AT_ONCE * row));
    s->n_places = max_rows;
    for (int64_t p = max_rows; p-- > 0;)
        s->free[s->n_free++] = p;
    return OK;
}

status embed_store_open_ahead(embed_store **out, embed_store *below, int64_t max_rows) {
    ahead_store *s;
    *out = NULL;
    if (max_rows < 1)
        return fail(ERR_CONFIG, "a store that reads %lld rows ahead", (long long)max_rows);
    TRY(MEM_NEW(&s, 1));
    s->base = (embed_store){.n_floats = below->n_floats,
                            .name = below->name,
                            .get = ahead_get,
                            .put = ahead_put,
                            .erase = ahead_erase,
                            .each = ahead_each,
                            .clear = ahead_clear,
                            .ask = ahead_ask,
                            .destroy = ahead_destroy};
    s->below = below;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    status st = make_places(s, max_rows);
    if (st == OK) {
        s->has_thread = pthread_create(&s->thread, NULL, read_ahead, s) == 0;
        if (!s->has_thread) st = fail(ERR_NOMEM, "no thread to read ahead could be started");
    }
    if (st == OK)
        *out = &s->base;
    else
        ahead_destroy(&s->base);
    return st;
}
