#include "cli/model/user_service.h"

#include "base/log.h"
#include "base/mem.h"

/* Ranks take so many users in turn. */
enum { BLOCK_USERS = 256 };

/* While it serves. */
typedef struct serving {
    const user_service *s;
    void *ctx;
    waiting_users waiting;
    uint64_t n_served; /* with ranks: by all of them */
    answers *out;
    transport *ranks; /* or NULL */
    buf held;         /* answers of this rank's block */
    progress bar;
} serving;

/* Runs the users that wait, and answers them. */
static status serve_batch(serving *v) {
    TRY(v->s->run(v->ctx));
    for (size_t i = 0; i < v->waiting.n; i++) {
        answer_subject who = waiting_users_at(&v->waiting, i);
        TRY(v->s->answer(v->ctx, (int32_t)i, &who));
    }
    if (v->ranks == NULL) v->n_served += v->waiting.n;
    progress_update(&v->bar, v->n_served);
    v->s->clear(v->ctx);
    waiting_users_clear(&v->waiting);
    return OK;
}

static status serve_user(serving *v, const user_list *l, uint64_t user, const char *id) {
    user_events u = user_events_of(l->data, user);
    if (v->waiting.n > 0 && !v->s->fits(v->ctx, &u)) TRY(serve_batch(v));
    TRY(v->s->add(v->ctx, &u));
    return waiting_users_add(&v->waiting, user, id);
}

static status serve_list(serving *v, user_list *l) {
    uint64_t user;
    const char *id;
    bool is_end;
    for (;;) {
        TRY(user_list_next(l, &user, &id, &is_end));
        if (is_end) return v->waiting.n > 0 ? serve_batch(v) : OK;
        TRY(serve_user(v, l, user, id));
    }
}

/* The block of a rank: all read the list, one serves.  *n: users of the block. */
static status serve_block(serving *v, user_list *l, bool is_own, int *n) {
    uint64_t user;
    const char *id;
    bool is_end = false;
    for (*n = 0; *n < BLOCK_USERS; ++*n) {
        TRY(user_list_next(l, &user, &id, &is_end));
        if (is_end) break;
        if (is_own) TRY(serve_user(v, l, user, id));
    }
    return v->waiting.n > 0 ? serve_batch(v) : OK;
}

/* Rank 0 writes the answers of all ranks, in their order. */
static status write_texts(serving *v, char *const *text, const int64_t *bytes) {
    v->out->out.held = NULL;
    status st = OK;
    for (int r = 0; r < v->ranks->size && st == OK; r++)
        st = sink_write(&v->out->out, text[r], (size_t)bytes[r]);
    v->out->out.held = &v->held;
    return st;
}

/* All send to rank 0, and nobody else gets anything.  bytes (size), counts (2 size, zeros). */
static status send_texts(serving *v, int64_t *bytes, int64_t *counts, char **text) {
    transport *t = v->ranks;
    int64_t own = (int64_t)v->held.n_bytes;
    bool is_first = t->rank == 0;
    TRY(transport_gather(t, &own, sizeof own, bytes));
    for (int r = 0; r < t->size; r++)
        text[r] = (char *)buf_str(&v->held);
    for (int r = 1; r < t->size && is_first; r++)
        TRY(mem_alloc_raw((void **)&text[r], (size_t)bytes[r] + 1, 1));
    counts[0] = own;
    exchange_args a = {(const void *const *)text, counts, (void *const *)text,
                       is_first ? bytes : counts + t->size};
    TRY(t->ops->exchange(t, &a));
    return is_first ? write_texts(v, text, bytes) : OK;
}

static status hand_over(serving *v) {
    size_t n = (size_t)v->ranks->size;
    int64_t *bytes = NULL, *counts = NULL;
    char **text = NULL;
    status st = MEM_NEW(&bytes, n);
    if (st == OK) st = MEM_NEW(&counts, 2 * n);
    if (st == OK) st = MEM_NEW(&text, n);
    if (st == OK) st = send_texts(v, bytes, counts, text);
    for (size_t r = 1; r < n && text != NULL && v->ranks->rank == 0; r++)
        if (text[r] != buf_str(&v->held)) mem_free(text[r]);
    mem_free(bytes);
    mem_free(counts);
    mem_free(text);
    buf_clear(&v->held);
    return st;
}

static status serve_with_others(serving *v, user_list *l) {
    int size = v->ranks->size, n = BLOCK_USERS;
    v->out->out.held = &v->held;
    for (int64_t block = 0; n == BLOCK_USERS; block++) {
        TRY(serve_block(v, l, block % size == v->ranks->rank, &n));
        v->n_served += (uint64_t)n;
        progress_update(&v->bar, v->n_served);
        if (block % size == size - 1 || n < BLOCK_USERS) TRY(hand_over(v));
    }
    return OK;
}

status user_service_run(const user_service *s, void *ctx, const user_choice *users,
                        const seq_file *data, answers *out, transport *ranks) {
    serving v = {.s = s, .ctx = ctx, .out = out, .ranks = ranks};
    user_list l;
    buf_init(&v.held);
    status st = user_list_open(&l, users, data);
    if (st == OK && !sink_is_terminal(&out->out) && (ranks == NULL || ranks->rank == 0))
        progress_begin(&v.bar, s->doing, "users", user_list_total(&l));
    if (st == OK) st = ranks != NULL ? serve_with_others(&v, &l) : serve_list(&v, &l);
    out->out.held = NULL;
    buf_fini(&v.held);
    progress_end(&v.bar);
    if (st == OK && v.n_served == 0)
        st = fail(ERR_FORMAT, "%s: there is no user in it",
                  users->file != NULL ? users->file : data->path);
    if (st == OK) user_list_tell(&l, s->unknown);
    user_list_close(&l);
    waiting_users_fini(&v.waiting);
    return st;
}
