#include "serve/engine/workers.h"

typedef struct task {
    void (*fn)(void *ctx);
    void *ctx;
} task;

struct workers {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t *thread;
    int n_threads;
    task *ring;
    int max_waiting, first, n_waiting;
    bool is_ending;
};

static void *work(void *context) {
    workers *w = context;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->n_waiting == 0 && !w->is_ending)
            pthread_cond_wait(&w->wake, &w->lock);
        if (w->n_waiting == 0) break;
        task t = w->ring[w->first];
        w->first = (w->first + 1) % w->max_waiting;
        w->n_waiting--;
        pthread_mutex_unlock(&w->lock);
        t.fn(t.ctx);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static status start(workers *w, int n_threads, int max_waiting) {
    TRY(MEM_NEW(&w->ring, (size_t)max_waiting));
    TRY(MEM_NEW(&w->thread, (size_t)n_threads));
    w->max_waiting = max_waiting;
    for (; w->n_threads < n_threads; w->n_threads++)
        if (pthread_create(&w->thread[w->n_threads], NULL, work, w) != 0)
            return fail(ERR_IO, "cannot start a thread");
    return OK;
}

status workers_create(workers **out, int n_threads, int max_waiting) {
    workers *w;
    *out = NULL;
    TRY(MEM_NEW(&w, 1));
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    status st = start(w, n_threads, max_waiting);
    return CREATED(st, out, w, workers_destroy);
}

bool workers_run(workers *w, void (*fn)(void *ctx), void *ctx) {
    pthread_mutex_lock(&w->lock);
    bool has_room = w->n_waiting < w->max_waiting && !w->is_ending;
    if (has_room) {
        w->ring[(w->first + w->n_waiting++) % w->max_waiting] = (task){fn, ctx};
        pthread_cond_signal(&w->wake);
    }
    pthread_mutex_unlock(&w->lock);
    return has_room;
}

void workers_destroy(workers *w) {
    if (w == NULL) return;
    pthread_mutex_lock(&w->lock);
    w->is_ending = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->n_threads; i++)
        pthread_join(w->thread[i], NULL);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    MEM_FREE(w->thread, w->ring, w);
}
