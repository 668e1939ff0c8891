#include "cli/model/users.h"
#include "cli/output.h"

status id_lines_open(id_lines *l, const char *path) {
    l->path = path;
    return input_lines_open(&l->lines, path);
}

void id_lines_close(id_lines *l) {
    input_lines_close(&l->lines);
}

status id_lines_next(id_lines *l, const char **out) {
    bool is_end;
    *out = NULL;
    do {
        TRY(input_lines_next(&l->lines, ID_LINE_MAX, &is_end));
        if (is_end) return OK;
        buf *line = &l->lines.line;
        const char *text = buf_str(line);
        if (memchr(text, '\0', line->n_bytes) != NULL)
            return fail(ERR_FORMAT, "%s: line %" PRIu64 " has a zero byte: not a list of ids",
                        l->path, l->lines.n);
        if (line->n_bytes > 0 && text[line->n_bytes - 1] == '\r')
            line->data[--line->n_bytes] = '\0';
        /* Editors of Windows begin a file with a mark. */
        if (l->lines.n == 1 && strncmp(text, "\xef\xbb\xbf", 3) == 0) text += 3;
        if (*text != '\0') *out = text;
    } while (*out == NULL);
    return OK;
}

void id_count_add(id_count *c, const char *id, bool is_known) {
    c->n++;
    if (!is_known && c->n_unknown++ == 0) escape_excerpt(c->first_unknown, id, strlen(id));
}

void id_count_tell(const id_count *c, const char *where) {
    if (c->n_unknown == 0) return;
    log_warn("%s: %" PRIu64 " of %" PRIu64 " ids %s not known to the model and left out; the first "
             "is '%s'",
             where, c->n_unknown, c->n, c->n_unknown == 1 ? "is" : "are", c->first_unknown);
}

status id_lines_mark(const char *path, const seq_file *data, uint8_t value, uint8_t *is_there,
                     id_count *count) {
    id_lines l;
    const char *id = NULL;
    *count = (id_count){0};
    status st = id_lines_open(&l, path);
    while (st == OK && (st = id_lines_next(&l, &id)) == OK && id != NULL) {
        uint32_t item = seq_find_item(data, id);
        id_count_add(count, id, item != 0);
        if (item != 0) is_there[item] = value;
    }
    id_lines_close(&l);
    return st;
}

status text_option_read(const char **text, size_t *n, char **content) {
    enum { MAX_BYTES = 64 << 20 };
    *content = NULL;
    *n = *text != NULL ? strlen(*text) : 0;
    if (*n == 0 || (*text)[0] != '@') return OK;
    TRY(file_read_all(*text + 1, MAX_BYTES, content, n));
    *text = *content;
    return OK;
}

status history_option_read(given_history *out, const session *s, const char *text) {
    char *content;
    size_t n;
    *out = (given_history){0};
    status st = text_option_read(&text, &n, &content);
    if (st == OK) st = given_history_read(out, s->data, s->limits.n_actions, text, n);
    mem_free(content);
    if (st == OK && out->unknown[0] != '\0')
        log_warn("--history: %s has no item %s; these events are left out", s->data->path,
                 out->unknown);
    return st == ERR_USAGE ? fail_prefix(st, "--history") : st;
}

int user_choice_n(const user_choice *c) {
    return (c->users.n_items > 0) + (c->file != NULL) + c->is_all;
}

typedef struct user_list {
    const user_choice *choice;
    const seq_file *data;
    id_lines lines;
    uint64_t next;
    id_count count;
} user_list;

/* Users that wait for their answers. */
typedef struct waiting_users {
    answer_subject *who; /* (n) */
    size_t n, capacity;
    arena ids; /* that the data does not have */
} waiting_users;

static status user_list_open(user_list *l, const user_choice *c, const seq_file *data) {
    *l = (user_list){.choice = c, .data = data};
    return c->file != NULL ? id_lines_open(&l->lines, c->file) : OK;
}

static void user_list_close(user_list *l) {
    if (l->choice != NULL && l->choice->file != NULL) id_lines_close(&l->lines);
    *l = (user_list){0};
}

/* The number of users; 0: not known beforehand. */
static uint64_t user_list_total(const user_list *l) {
    return l->choice->is_all ? l->data->n_users : l->choice->users.n_items;
}

static status next_id(user_list *l, const char **id) {
    const arg_list *given = &l->choice->users;
    if (l->choice->file != NULL) return id_lines_next(&l->lines, id);
    *id = l->next < given->n_items ? given->item[l->next++] : NULL;
    return OK;
}

/* The next user: *user is its number, or n_users where the data does not have it; *id is then the
 * id as given, valid until the next call, else NULL.  *is_end after the last. */
static status user_list_next(user_list *l, uint64_t *user, const char **id, bool *is_end) {
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

/* Says on stderr how many users the data did not have, if any, and what became of them. */
static void user_list_tell(const user_list *l, const char *what) {
    const id_count *c = &l->count;
    const char *file = l->choice->file;
    if (c->n_unknown == 0) return;
    bool may_be_list = file == NULL && strchr(c->first_unknown, ',') != NULL;
    log_warn("%s: %" PRIu64 " of %" PRIu64 " users %s not in the data and %s; the first is '%s'%s",
             file != NULL ? file : "--user", c->n_unknown, c->n, c->n_unknown == 1 ? "is" : "are",
             what, c->first_unknown,
             may_be_list ? ", which is one id; for several users repeat --user" : "");
}

static status waiting_users_add(waiting_users *w, uint64_t user, const char *id) {
    answer_subject who = {id != NULL ? SUBJECT_TEXT : SUBJECT_USER, user, NULL};
    if (id != NULL) TRY(arena_copy_text(&w->ids, id, strlen(id), &who.text));
    TRY(MEM_RESERVE(&w->who, &w->capacity, w->n + 1));
    w->who[w->n++] = who;
    return OK;
}

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
    TRY(user_group_run(v->s->group));
    for (size_t i = 0; i < v->waiting.n; i++)
        TRY(v->s->answer(v->ctx, (int32_t)i, &v->waiting.who[i]));
    if (v->ranks == NULL) v->n_served += v->waiting.n;
    progress_update(&v->bar, v->n_served);
    user_group_clear(v->s->group);
    v->waiting.n = 0;
    arena_clear(&v->waiting.ids);
    return OK;
}

static status serve_user(serving *v, const user_list *l, uint64_t user, const char *id) {
    user_events u = user_events_of(l->data, user);
    if (v->waiting.n > 0 && !user_group_fits(v->s->group, &u)) TRY(serve_batch(v));
    if (v->s->show != NULL) TRY(v->s->show(v->ctx, &u));
    TRY(user_group_add(v->s->group, &u));
    return waiting_users_add(&v->waiting, user, id);
}

/* A block of users: with ranks all of them read the list, and one serves.  *n: how many they are.
 */
static status serve_block(serving *v, user_list *l, bool is_own, uint64_t limit, uint64_t *n) {
    uint64_t user = 0;
    const char *id;
    bool is_end = false;
    for (*n = 0; *n < limit; ++*n) {
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
    MEM_FREE(bytes, counts, text);
    buf_clear(&v->held);
    return st;
}

static status serve_with_others(serving *v, user_list *l) {
    int size = v->ranks->size;
    uint64_t n = BLOCK_USERS;
    v->out->out.held = &v->held;
    for (int64_t block = 0; n == BLOCK_USERS; block++) {
        TRY(serve_block(v, l, block % size == v->ranks->rank, BLOCK_USERS, &n));
        v->n_served += n;
        progress_update(&v->bar, v->n_served);
        if (block % size == size - 1 || n < BLOCK_USERS) TRY(hand_over(v));
    }
    return OK;
}

status user_service_run(const user_service *s, void *ctx, const user_choice *users,
                        const seq_file *data, answers *out, transport *ranks) {
    serving v = {.s = s, .ctx = ctx, .out = out, .ranks = ranks};
    user_list l;
    uint64_t n;
    arena_init(&v.waiting.ids, 1 << 12);
    status st = user_list_open(&l, users, data);
    if (st == OK && !sink_is_terminal(&out->out) && (ranks == NULL || ranks->rank == 0))
        progress_begin(&v.bar, s->doing, "users", user_list_total(&l));
    if (st == OK)
        st = ranks != NULL ? serve_with_others(&v, &l) : serve_block(&v, &l, true, UINT64_MAX, &n);
    out->out.held = NULL;
    buf_fini(&v.held);
    progress_end(&v.bar);
    if (st == OK && v.n_served == 0)
        st = fail(ERR_FORMAT, "%s: contains no users",
                  users->file != NULL ? users->file : data->path);
    if (st == OK) user_list_tell(&l, s->unknown);
    user_list_close(&l);
    mem_free(v.waiting.who);
    arena_fini(&v.waiting.ids);
    return st;
}
