#include "cli/user_service.h"

#include "base/progress.h"

/* While it serves. */
typedef struct serving {
    const user_service *s;
    void *ctx;
    waiting_users waiting;
    uint64_t n_served;
    progress bar;
} serving;

/* Runs the users that wait, and answers them. */
static status serve_batch(serving *v) {
    TRY(v->s->run(v->ctx));
    for (size_t i = 0; i < v->waiting.n; i++) {
        answer_subject who = waiting_users_at(&v->waiting, i);
        TRY(v->s->answer(v->ctx, (int32_t)i, &who));
    }
    v->n_served += v->waiting.n;
    progress_update(&v->bar, v->n_served);
    v->s->clear(v->ctx);
    waiting_users_clear(&v->waiting);
    return OK;
}

static status serve_list(serving *v, user_list *l) {
    uint64_t user;
    const char *id;
    bool is_end;
    for (;;) {
        TRY(user_list_next(l, &user, &id, &is_end));
        if (is_end) return v->waiting.n > 0 ? serve_batch(v) : OK;
        user_events u = user_events_of(l->data, user);
        if (v->waiting.n > 0 && !v->s->fits(v->ctx, &u)) TRY(serve_batch(v));
        TRY(v->s->add(v->ctx, &u));
        TRY(waiting_users_add(&v->waiting, user, id));
    }
}

status user_service_run(const user_service *s, void *ctx, const user_choice *users,
                        const seq_file *data, const answers *out) {
    serving v = {.s = s, .ctx = ctx};
    user_list l;
    status st = user_list_open(&l, users, data);
    if (st == OK && !sink_is_terminal(&out->out))
        progress_begin(&v.bar, s->doing, "users", user_list_total(&l));
    if (st == OK) st = serve_list(&v, &l);
    progress_end(&v.bar);
    if (st == OK && v.n_served == 0)
        st = fail(ERR_FORMAT, "%s: there is no user in it",
                  users->file != NULL ? users->file : data->path);
    if (st == OK) user_list_tell(&l, s->unknown);
    user_list_close(&l);
    waiting_users_fini(&v.waiting);
    return st;
}
