#include "serve/engine/tensor_group.h"

#include <stdatomic.h>

#include "dist/ranks.h"
#include "serve/engine/served.h"

/* Models at a time, those included that answers still hold after a reload. */
enum { MAX_LOADED = 4 * ENGINE_MAX_MODELS };

typedef enum { TELL_LOAD, TELL_RUN, TELL_CLOSE, TELL_END } tell_what;

/* What rank 0 tells: this, and n_bytes more. */
typedef struct tell {
    uint64_t what, id, n_bytes;
} tell;

struct tensor_group {
    transport *t;
    comm *host; /* on memory of the host */
    pthread_mutex_t lock;
    atomic_bool is_lost;
    bool is_used[MAX_LOADED]; /* ids of models; the same on all ranks */
    buf body;
    const int32_t **rows; /* (row_capacity): pages of each sequence of a batch */
    size_t row_capacity;
};

status tensor_group_create(tensor_group **out, transport *t) {
    tensor_group *g;
    *out = NULL;
    TRY(MEM_NEW(&g, 1));
    g->t = t;
    pthread_mutex_init(&g->lock, NULL);
    status st = comm_create_beside(&g->host, NULL, t);
    return CREATED(st, out, g, tensor_group_destroy);
}

status tensor_group_check(tensor_group *g) {
    if (g == NULL || (!atomic_load(&g->is_lost) && !g->t->ops->has_failed(g->t))) return OK;
    return fail(ERR_IO, "a rank that shares the models is lost; the server stops");
}

/* An unexpected failure: the ranks are out of step. */
static status lose(tensor_group *g, status st) {
    if (st == OK) return OK;
    atomic_store(&g->is_lost, true);
    return fail_prefix(ERR_IO, "a rank that shares the models is lost; the server stops");
}

/* Rank 0 tells the others; under the lock. */
static status send(tensor_group *g, tell_what what, int id, void *body, size_t n) {
    tell head = {what, (uint64_t)id, n};
    if (g->t->rank > 0) return OK;
    TRY(tensor_group_check(g));
    status st = comm_host_broadcast(g->host, &head, sizeof head, 0);
    if (st == OK && n > 0) st = comm_host_broadcast(g->host, body, n, 0);
    return lose(g, st);
}

void tensor_group_destroy(tensor_group *g) {
    if (g == NULL) return;
    if (g->host != NULL) (void)send(g, TELL_END, 0, NULL, 0); /* unless they are gone */
    comm_destroy(g->host);
    pthread_mutex_destroy(&g->lock);
    buf_fini(&g->body);
    MEM_FREE(g->rows, g);
}

/* A call as bytes: one description for both directions.  Written lists are appended, each at a
 * multiple of 8; read ones are views of the bytes. */
typedef struct mail {
    buf *to;    /* or NULL: it is read */
    char *from; /* (n) */
    size_t n, at;
} mail;

/* list: the address of a pointer to the elements. */
static status put_list(mail *m, void *list, size_t n, size_t size) {
    static const char zeros[8];
    void *at;
    size_t bytes = n * size, gap = -bytes % 8;
    memcpy(&at, list, sizeof at);
    if (m->to != NULL) {
        TRY(buf_append(m->to, at, bytes));
        return buf_append(m->to, zeros, gap);
    }
    if (bytes + gap > m->n - m->at) return fail(ERR_FORMAT, "a batch of rank 0 is cut short");
    at = m->from + m->at;
    memcpy(list, &at, sizeof at);
    m->at += bytes + gap;
    return OK;
}

static status put_pages(mail *m, layout_cache *c, size_t n, const int32_t **rows) {
    for (size_t i = 0; i < n; i++) {
        const int32_t *page = m->to != NULL ? c->page[i] : NULL;
        size_t n_pages = (size_t)(c->n_stored[i] + KV_PAGE_LEN - 1) / KV_PAGE_LEN;
        TRY(put_list(m, &page, n_pages, sizeof *page));
        rows[i] = page;
    }
    c->page = rows;
    return OK;
}

static status put_call(mail *m, pass_call *c, tensor_group *g) {
    pass_call *whole = c;
    TRY(put_list(m, &whole, 1, sizeof *whole));
    *c = *whole;
    batch *b = &c->batch;
    size_t n = (size_t)b->n_users, n_tokens = (size_t)b->n_tokens, n_cached = c->has_cache ? n : 0;
    TRY(put_list(m, &b->offsets, n + 1, sizeof *b->offsets));
    TRY(put_list(m, &b->users, n, sizeof *b->users));
    TRY(put_list(m, &b->n_targets, n, sizeof *b->n_targets));
    TRY(put_list(m, &b->item, n_tokens, sizeof *b->item));
    TRY(put_list(m, &b->action, n_tokens, sizeof *b->action));
    TRY(put_list(m, &b->time, n_tokens, sizeof *b->time));
    TRY(put_list(m, &b->context, n * (size_t)b->n_context, sizeof *b->context));
    TRY(put_list(m, &c->moves.out, (size_t)c->moves.n_out, sizeof *c->moves.out));
    TRY(put_list(m, &c->moves.in, (size_t)c->moves.n_in, sizeof *c->moves.in));
    TRY(put_list(m, &c->cache.n_reused, n_cached, sizeof *c->cache.n_reused));
    TRY(put_list(m, &c->cache.n_stored, n_cached, sizeof *c->cache.n_stored));
    TRY(MEM_RESERVE(&g->rows, &g->row_capacity, n_cached));
    return put_pages(m, &c->cache, n_cached, g->rows);
}

static status begin_run(void *ctx, const pass_call *call) {
    const tensor_part *p = ctx;
    tensor_group *g = p->group;
    pass_call own = *call;
    pthread_mutex_lock(&g->lock);
    buf_clear(&g->body);
    status st = put_call(&(mail){.to = &g->body}, &own, g);
    if (st == OK) st = send(g, TELL_RUN, p->id, g->body.data, g->body.n_bytes);
    if (st != OK) pthread_mutex_unlock(&g->lock);
    return st;
}

/* Communicators of two models must not be at work at the same time, so the device ends first. */
static status end_run(void *ctx, status st) {
    const tensor_part *p = ctx;
    backend *be = p->comm->be;
    st = lose(p->group, st == OK ? be->ops->sync(be) : st);
    pthread_mutex_unlock(&p->group->lock);
    return st;
}

status tensor_part_begin(tensor_part *p, tensor_group *g, const char *path) {
    if (g == NULL) return OK;
    pthread_mutex_lock(&g->lock);
    int id = 0;
    while (id < MAX_LOADED && g->is_used[id])
        id++;
    status st = id == MAX_LOADED
                    ? fail(ERR_USAGE, "requests still hold %d models; load it later", MAX_LOADED)
                    : send(g, TELL_LOAD, id, (char *)(uintptr_t)path, strlen(path) + 1);
    if (st == OK)
        *p = (tensor_part){.group = g, .id = id};
    else
        pthread_mutex_unlock(&g->lock);
    return st;
}

status tensor_part_connect(tensor_part *p, backend *be, status st) {
    rank_options o = {0};
    if (p->group == NULL) return st;
    TRY(comm_host_agree(p->group->host, st));
    st = comm_create_ranks(&p->comm, be, p->group->t, &o);
    st = comm_host_agree(p->group->host, st);
    if (st == OK) return OK;
    comm_destroy(p->comm);
    p->comm = NULL;
    return st;
}

status tensor_part_end(tensor_part *p, uint64_t facts, pass *of, status st) {
    tensor_group *g = p->group;
    int64_t most[2] = {(int64_t)(facts >> 1), -(int64_t)(facts >> 1)};
    if (g == NULL) return st;
    if (p->comm != NULL) { /* else all know that it has failed */
        st = comm_host_agree(g->host, st);
        if (st == OK) st = comm_host_reduce(g->host, COMM_I64, COMM_MAX, 2, most);
        if (st == OK && most[0] != -most[1])
            st = fail(ERR_IO, "the model was replaced while it was opened; load it again");
    }
    g->is_used[p->id] = st == OK;
    if (st == OK && g->t->rank == 0) pass_set_lead(of, &(pass_lead){p, begin_run, end_run});
    if (st != OK) p->group = NULL; /* each rank closes it by itself */
    pthread_mutex_unlock(&g->lock);
    return st;
}

void tensor_part_close(tensor_part *p) {
    tensor_group *g = p->group;
    if (g != NULL) {
        pthread_mutex_lock(&g->lock);
        (void)send(g, TELL_CLOSE, p->id, NULL, 0); /* ranks that are gone have closed it */
        g->is_used[p->id] = false;
    }
    comm_destroy(p->comm);
    if (g != NULL) pthread_mutex_unlock(&g->lock);
}

/* The other ranks. */

static status follow_run(tensor_group *g, const served *m) {
    pass_call call;
    TRY(put_call(&(mail){.from = g->body.data, .n = g->body.n_bytes}, &call, g));
    return pass_follow(m->infer.pass, m->infer.store, &call);
}

static status follow_one(tensor_group *g, const engine_config *c, const tell *head, served **m) {
    if (head->what == TELL_RUN) return follow_run(g, *m);
    if (head->what == TELL_LOAD)
        (void)served_open(m, c, g->body.data, NULL); /* all ranks agree on a failure */
    if (head->what != TELL_CLOSE) return OK;
    served_drop(*m);
    *m = NULL;
    return OK;
}

static status receive(tensor_group *g, tell *head) {
    TRY(comm_host_broadcast(g->host, head, sizeof *head, 0));
    buf_clear(&g->body);
    TRY(buf_reserve(&g->body, head->n_bytes));
    g->body.n_bytes = head->n_bytes;
    return head->n_bytes > 0 ? comm_host_broadcast(g->host, g->body.data, head->n_bytes, 0) : OK;
}

status tensor_group_follow(tensor_group *g, const engine_config *c) {
    served *all[MAX_LOADED] = {0};
    tell head = {0};
    status st = OK;
    for (uint64_t n = 0; st == OK && head.what != TELL_END; n++) {
        g->t->ops->note_step(g->t, n);
        st = receive(g, &head);
        if (st == OK && head.what != TELL_END) st = follow_one(g, c, &head, &all[head.id]);
    }
    for (int i = 0; i < MAX_LOADED; i++)
        served_drop(all[i]);
    return st;
}
