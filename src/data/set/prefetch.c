#include "data/set/prefetch.h"

typedef struct slot {
    bool is_filled; /* signalled when the next piece, or the failure to make it, is there */
    failure failed; /* code OK: none */
} slot;

/* All numbers below are guarded by `lock`.  Pieces oldest..oldest+n_slots-1 own the slots, where
 * `oldest` is the piece the consumer holds, or waits for if it holds none. */
struct prefetch {
    prefetch_fill fill;
    void *ctx;
    int n_slots, n_threads;
    slot *slots;        /* (n_slots) */
    pthread_t *threads; /* (n_threads) */
    pthread_mutex_t lock;
    pthread_cond_t has_room, has_piece, is_idle;
    uint64_t oldest;    /* first piece whose slot must not be overwritten */
    uint64_t next_take; /* number of the piece that the consumer gets next: oldest, or oldest + 1
                           while it holds one */
    uint64_t next_fill; /* what a thread will start on next */
    int n_busy;         /* threads inside fill */
    bool is_stopping, is_paused;
};

static bool may_fill(const prefetch *p) {
    return !p->is_paused && p->next_fill < p->oldest + (uint64_t)p->n_slots;
}

static void fill_slot(prefetch *p, uint64_t number) {
    slot *s = &p->slots[number % (uint64_t)p->n_slots];
    status st = p->fill(p->ctx, number, (int)(number % (uint64_t)p->n_slots));
    s->failed.code = st;
    if (st != OK) failure_save(&s->failed, st);
}

static void *producer_main(void *arg) {
    prefetch *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->is_stopping) {
        if (!may_fill(p)) {
            pthread_cond_wait(&p->has_room, &p->lock);
            continue;
        }
        uint64_t number = p->next_fill++;
        p->n_busy++;
        pthread_mutex_unlock(&p->lock);
        fill_slot(p, number);
        pthread_mutex_lock(&p->lock);
        p->slots[number % (uint64_t)p->n_slots].is_filled = true;
        p->n_busy--;
        if (number == p->next_take) pthread_cond_signal(&p->has_piece);
        if (p->n_busy == 0) pthread_cond_signal(&p->is_idle);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static status start_threads(prefetch *p, int n_threads) {
    for (; p->n_threads < n_threads; p->n_threads++) {
        int error = pthread_create(&p->threads[p->n_threads], NULL, producer_main, p);
        if (error != 0)
            return fail(ERR_NOMEM,
                        "only %d of %d prefetch threads could be started (error %d); use fewer",
                        p->n_threads, n_threads, error);
    }
    return OK;
}

status prefetch_create(prefetch **out, int n_slots, int n_threads, uint64_t first,
                       prefetch_fill fill, void *ctx) {
    prefetch *p;
    *out = NULL;
    if (n_slots < 2 || n_slots > PREFETCH_MAX_SLOTS)
        return fail(ERR_CONFIG, "prefetch of %d batches: it must be from 2 to %d", n_slots,
                    PREFETCH_MAX_SLOTS);
    if (n_threads < 0 || n_threads > PREFETCH_MAX_THREADS)
        return fail(ERR_CONFIG, "%d prefetch threads: it must be from 0 to %d", n_threads,
                    PREFETCH_MAX_THREADS);
    TRY(MEM_NEW(&p, 1));
    *p = (prefetch){.fill = fill, .ctx = ctx, .n_slots = n_slots};
    p->oldest = p->next_take = p->next_fill = first;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->has_room, NULL);
    pthread_cond_init(&p->has_piece, NULL);
    pthread_cond_init(&p->is_idle, NULL);
    status st = MEM_NEW(&p->slots, (size_t)n_slots);
    if (st == OK) st = MEM_NEW(&p->threads, (size_t)n_threads);
    if (st == OK) st = start_threads(p, n_threads);
    return CREATED(st, out, p, prefetch_destroy);
}

void prefetch_destroy(prefetch *p) {
    if (p == NULL) return;
    pthread_mutex_lock(&p->lock);
    p->is_stopping = true;
    pthread_cond_broadcast(&p->has_room);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->has_room);
    pthread_cond_destroy(&p->has_piece);
    pthread_cond_destroy(&p->is_idle);
    pthread_mutex_destroy(&p->lock);
    MEM_FREE(p->slots, p->threads, p);
}

/* Releases the held slot, so that a thread may write the piece n_slots later into it. */
static void release_held(prefetch *p) {
    if (p->next_take == p->oldest) return;
    p->slots[p->oldest % (uint64_t)p->n_slots].is_filled = false;
    p->oldest++;
    pthread_cond_signal(&p->has_room);
}

/* Waits, with the lock held, for the next piece; returns the failure if filling it failed.  A
 * failed piece is not consumed: the next call finds it again. */
static status await_piece(prefetch *p, int *out_slot) {
    uint64_t number = p->next_take;
    slot *s = &p->slots[number % (uint64_t)p->n_slots];
    if (p->n_threads == 0 && !s->is_filled) {
        fill_slot(p, number);
        s->is_filled = true;
    }
    while (!s->is_filled)
        pthread_cond_wait(&p->has_piece, &p->lock);
    *out_slot = (int)(number % (uint64_t)p->n_slots);
    return s->failed.code == OK ? OK : failure_restore(&s->failed);
}

status prefetch_next(prefetch *p, int *out_slot) {
    pthread_mutex_lock(&p->lock);
    release_held(p);
    status st = await_piece(p, out_slot);
    if (st == OK) p->next_take++;
    pthread_mutex_unlock(&p->lock);
    return st;
}

status prefetch_peek(prefetch *p, int *out_slot) {
    pthread_mutex_lock(&p->lock);
    status st = await_piece(p, out_slot);
    pthread_mutex_unlock(&p->lock);
    return st;
}

uint64_t prefetch_position(const prefetch *p) {
    return p->next_take; /* only the consumer writes next_take, so no lock is needed */
}

void prefetch_seek(prefetch *p, uint64_t number) {
    pthread_mutex_lock(&p->lock);
    p->is_paused = true;
    while (p->n_busy > 0)
        pthread_cond_wait(&p->is_idle, &p->lock);
    for (int i = 0; i < p->n_slots; i++)
        p->slots[i].is_filled = false;
    p->oldest = p->next_take = p->next_fill = number;
    p->is_paused = false;
    pthread_cond_broadcast(&p->has_room);
    pthread_mutex_unlock(&p->lock);
}
