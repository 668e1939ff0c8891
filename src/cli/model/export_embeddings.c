#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "cli/model/export.h"
#include "cli/show.h"
#include "cli/work.h"
#include "model/export_file.h"
#include "model/histories.h"
#include "model/item_table.h"
#include "model/trained.h"

enum { PIECE_ROWS = 4096 };

static status parse_format(const char *name, embedding_format *out) {
    static const char *const names[] = {"safetensors", "npz", "csv"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (embedding_format)i;
        return OK;
    }
    return fail(ERR_USAGE, "--format %.40s: it is one of safetensors, npz, csv", name);
}

/* Ends a file by its status, and says what is in it. */
static status end_file(embedding_file *f, status st, const export_args *a,
                       const embedding_rows *rows) {
    if (st != OK) {
        embedding_file_abandon(f);
        return st;
    }
    char path[SHOW_PATH_BYTES];
    TRY(embedding_file_commit(f));
    printf("the %s of %" PRId64 " %s, %d numbers each, in %s\n",
           rows->item != NULL ? "embeddings" : "encoded states", rows->n,
           rows->item != NULL ? "items" : "users", rows->dim, show_path(path, a->out));
    return OK;
}

static status copy_items(embedding_file *f, const item_table *t) {
    float *piece;
    status st = MEM_NEW_RAW(&piece, (size_t)PIECE_ROWS * (size_t)t->dim);
    for (int32_t first = 0; st == OK && first < t->items.n; first += PIECE_ROWS) {
        int32_t n = t->items.n - first < PIECE_ROWS ? t->items.n - first : PIECE_ROWS;
        st = item_table_read(t, first, n, piece);
        if (st == OK) st = embedding_file_add(f, piece, n);
    }
    mem_free(piece);
    return st;
}

static status write_items(const export_args *a, session *s, embedding_format format) {
    item_table t;
    embedding_file *f = NULL;
    embedding_rows rows = {.data = s->data};
    status st = item_table_init(&t, s->model);
    rows.item = t.items.item;
    rows.n = t.items.n;
    rows.dim = t.dim;
    if (st == OK) st = embedding_file_create(&f, a->out, format, &rows);
    if (st == OK) st = copy_items(f, &t);
    st = end_file(f, st, a, &rows);
    item_table_fini(&t);
    return st;
}

/* The users of the data, a batch after the other.  A user without a history has a row of zeros. */
static status encode_users(embedding_file *f, session *s, pass *p, histories *h, float *states) {
    uint64_t n_users = s->data->n_users, user = 0;
    int32_t dim = model_dim(s->model);
    progress bar;
    status st = OK;
    progress_begin(&bar, "encoding", "users", n_users);
    while (st == OK && user < n_users) {
        const void *encoded;
        histories_clear(h);
        for (; st == OK && user < n_users && h->view.n_users < h->max_users; user++) {
            user_events u = user_events_of(s->data, user);
            st = histories_add(h, &u, NULL, 0);
        }
        if (st == OK) st = pass_encode(p, &h->view, &encoded);
        if (st == OK)
            st = backend_read_act(s->be, states, encoded, (size_t)h->view.n_users * (size_t)dim);
        if (st == OK) st = embedding_file_add(f, states, h->view.n_users);
        progress_update(&bar, user);
    }
    progress_end(&bar);
    return st;
}

static status write_users(const export_args *a, session *s, embedding_format format) {
    embedding_file *f = NULL;
    pass *p = NULL;
    histories h = {0};
    float *states = NULL;
    embedding_rows rows = {
        .data = s->data, .n = (int64_t)s->data->n_users, .dim = model_dim(s->model)};
    if (s->config->task != TASK_RETRIEVAL)
        return fail(ERR_UNSUPPORTED, "--what users: a ranking model scores candidates; it has no "
                                     "state of a user to export");
    status st = pass_create(&p, s->model, &(pass_config){.max_users = s->eval_batch});
    if (st == OK) st = histories_init(&h, s, s->eval_batch);
    if (st == OK) st = MEM_NEW_RAW(&states, (size_t)s->eval_batch * (size_t)rows.dim);
    if (st == OK) st = embedding_file_create(&f, a->out, format, &rows);
    if (st == OK) st = encode_users(f, s, p, &h, states);
    st = end_file(f, st, a, &rows);
    mem_free(states);
    histories_fini(&h);
    pass_destroy(p);
    return st;
}

static status with_model(const export_args *a,
                         status (*write)(const export_args *, session *, embedding_format)) {
    embedding_format format = EMBEDDINGS_SAFETENSORS;
    work w;
    trained t;
    TRY(parse_format(a->format, &format));
    TRY(work_open(&w, a->data, a->device));
    status st = trained_open(&t, a->run, w.data, w.be, 0);
    if (st == OK) st = write(a, &t.session, format);
    trained_close(&t);
    work_close(&w);
    return st;
}

/* The run knows its items without any data. */
status export_items(const export_args *a, const char *folder) {
    (void)folder;
    return with_model(a, write_items);
}

status export_users(const export_args *a, const char *folder) {
    (void)folder;
    if (a->data == NULL)
        return fail(ERR_USAGE, "--what users: whose? Give --data DIR with their events");
    return with_model(a, write_users);
}
