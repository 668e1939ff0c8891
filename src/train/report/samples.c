#include "train/report/samples.h"

#include <stdio.h>

#include "base/mem.h"

enum { N_USERS = 3, N_EVENTS = 5, N_ITEMS = 5 };

/* Memory for one batch. */
typedef struct sample_room {
    int32_t *target, *rank; /* (B) */
    int32_t *best;          /* (B, N_ITEMS) */
    float *score;
} sample_room;

static void write_title(const seq_file *data, uint32_t item, buf *text, json_writer *w) {
    status st = item > 0 ? seq_item_title(data, item, text) : buf_text(text, "");
    json_string(w, st == OK && item > 0 ? buf_str(text) : "(not in the data)");
    if (st != OK) w->state = st;
}

static void write_items(const seq_file *data, const int32_t *best, const float *score, int32_t k,
                        buf *text, json_writer *w) {
    json_key(w, "items");
    json_array_open(w);
    for (int32_t i = 0; i < k && best[i] >= 0; i++) {
        json_object_open(w);
        json_key(w, "title");
        write_title(data, (uint32_t)best[i], text, w);
        json_key_double(w, "score", (double)score[i]);
        json_object_close(w);
    }
    json_array_close(w);
}

static void write_user(const session *s, const batch *b, int32_t u, const sample_room *room,
                       int32_t k, buf *text, json_writer *w) {
    int32_t last = b->offsets[u + 1] - 1, from = last - N_EVENTS;
    status st = seq_user_name(s->data, b->users[u], text);
    if (from < b->offsets[u]) from = b->offsets[u];
    if (st != OK) w->state = st;
    json_object_open(w);
    json_key_string(w, "user", buf_str(text));
    json_key(w, "history");
    json_array_open(w);
    for (int32_t i = from; i < last; i++)
        write_title(s->data, b->item[i], text, w);
    json_array_close(w);
    json_key(w, "target");
    write_title(s->data, b->item[last], text, w);
    if (room->target[u] >= 0) json_key_int(w, "rank", room->rank[u]);
    write_items(s->data, room->best + (int64_t)u * k, room->score + (int64_t)u * k, k, text, w);
    json_object_close(w);
}

static void write_users(const session *s, const batch *b, const sample_room *room, int32_t k,
                        json_writer *w) {
    int32_t n = b->n_users < N_USERS ? b->n_users : N_USERS;
    buf text;
    buf_init(&text);
    json_key(w, "users");
    json_array_open(w);
    for (int32_t i = 0; i < n; i++)
        write_user(s, b, n > 1 ? i * (b->n_users - 1) / (n - 1) : 0, room, k, &text, w);
    json_array_close(w);
    buf_fini(&text);
}

static status rank_users(pass *p, const batch *b, const model_items *corpus, sample_room *room,
                         int32_t *k) {
    *k = corpus->n < N_ITEMS ? corpus->n : N_ITEMS;
    for (int32_t u = 0; u < b->n_users; u++) {
        int32_t row = corpus->row[b->item[b->offsets[u + 1] - 1]];
        room->target[u] = row < 0 ? 0 : row;
    }
    rank_query q = {.corpus = corpus,
                    .target = room->target,
                    .rank = room->rank,
                    .k = *k,
                    .best = room->best,
                    .score = room->score};
    TRY(pass_rank(p, b, &q));
    for (int32_t u = 0; u < b->n_users; u++)
        if (corpus->row[b->item[b->offsets[u + 1] - 1]] < 0 || room->rank[u] > corpus->n)
            room->target[u] = -1; /* no rank: it cannot be recommended */
    return OK;
}

static status make_room(sample_room *room, size_t n_users) {
    TRY(MEM_NEW(&room->target, n_users));
    TRY(MEM_NEW(&room->rank, n_users));
    TRY(MEM_NEW(&room->best, n_users * N_ITEMS));
    return MEM_NEW(&room->score, n_users * N_ITEMS);
}

status samples_write(session *s, split_rule rule, split_part part, json_writer *w) {
    sample_room room = {0};
    model_items corpus;
    const batch *b;
    batcher *batches = NULL;
    pass *p = NULL;
    int32_t k;
    batcher_config c = session_eval_batches(s, rule, part);
    pass_config settings = {.max_users = s->eval_batch, .lender = s->train};
    status st = make_room(&room, (size_t)s->eval_batch);
    if (st == OK) st = pass_create(&p, s->model, &settings);
    if (st == OK) st = batcher_create(&batches, s->data, &c);
    if (st == OK) st = batcher_next(batches, &b);
    if (st == OK) st = model_corpus(s->model, &corpus);
    if (st == OK) st = rank_users(p, b, &corpus, &room, &k);
    if (st == OK) write_users(s, b, &room, k, w);
    batcher_destroy(batches);
    pass_destroy(p);
    mem_free(room.target);
    mem_free(room.rank);
    mem_free(room.best);
    mem_free(room.score);
    return st != OK ? st : w->state;
}
