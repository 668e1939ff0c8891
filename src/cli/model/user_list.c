#include "cli/model/user_list.h"

#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

int user_choice_n(const user_choice *c) {
    return (c->users.n_items > 0) + (c->file != NULL) + c->is_all;
}

status user_list_open(user_list *l, const user_choice *c, const seq_file *data) {
    *l = (user_list){.choice = c, .data = data};
    return c->file != NULL ? id_lines_open(&l->lines, c->file) : OK;
}

void user_list_close(user_list *l) {
    if (l->choice != NULL && l->choice->file != NULL) id_lines_close(&l->lines);
    *l = (user_list){0};
}

uint64_t user_list_total(const user_list *l) {
    return l->choice->is_all ? l->data->n_users : l->choice->users.n_items;
}

static status next_id(user_list *l, const char **id) {
    const arg_list *given = &l->choice->users;
    if (l->choice->file != NULL) return id_lines_next(&l->lines, id);
    *id = l->next < given->n_items ? given->item[l->next++] : NULL;
    return OK;
}

status user_list_next(user_list *l, uint64_t *user, const char **id, bool *is_end) {
    *id = NULL;
    if (l->choice->is_all) {
        *user = l->next;
        *is_end = l->next++ >= l->data->n_users;
        return OK;
    }
    TRY(next_id(l, id));
    *is_end = *id == NULL;
    if (*is_end) return OK;
    *user = seq_find_user(l->data, *id);
    id_count_add(&l->count, *id, *user != UINT64_MAX);
    if (*user == UINT64_MAX)
        *user = l->data->n_users;
    else
        *id = NULL;
    return OK;
}

void user_list_tell(const user_list *l, const char *what) {
    const id_count *c = &l->count;
    const char *file = l->choice->file;
    if (c->n_unknown == 0) return;
    log_warn("%s: %" PRIu64 " of %" PRIu64 " users %s not in the data and %s; the first is '%s'",
             file != NULL ? file : "--user", c->n_unknown, c->n, c->n_unknown == 1 ? "is" : "are",
             what, c->first_unknown);
}

void waiting_users_fini(waiting_users *w) {
    mem_free(w->user);
    mem_free(w->id);
    buf_fini(&w->ids);
    *w = (waiting_users){0};
}

void waiting_users_clear(waiting_users *w) {
    w->n = 0;
    buf_clear(&w->ids);
}

status waiting_users_add(waiting_users *w, uint64_t user, const char *id) {
    TRY(MEM_RESERVE(&w->user, &w->user_capacity, w->n + 1));
    TRY(MEM_RESERVE(&w->id, &w->id_capacity, w->n + 1));
    w->user[w->n] = user;
    w->id[w->n] = id != NULL ? w->ids.n_bytes : SIZE_MAX;
    if (id != NULL) TRY(buf_append(&w->ids, id, strlen(id) + 1));
    w->n++;
    return OK;
}

answer_subject waiting_users_at(const waiting_users *w, size_t i) {
    if (w->id[i] == SIZE_MAX) return (answer_subject){SUBJECT_USER, w->user[i], NULL};
    return (answer_subject){SUBJECT_TEXT, w->user[i], w->ids.data + w->id[i]};
}
