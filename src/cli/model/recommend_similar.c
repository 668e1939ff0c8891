#include "base/mem.h"
#include "cli/model/recommend.h"
#include "model/item_table.h"

static status find_subject(const recommend_args *a, const item_table *t, const seq_file *data,
                           size_t i, uint32_t *item) {
    const char *id = a->similar.item[i];
    *item = seq_find_item(data, id);
    if (*item == 0) return fail(ERR_USAGE, "--similar %.100s: the model has no such item", id);
    if (t->items.row[*item] < 0)
        return fail(ERR_USAGE, "--similar %.100s: the model has learnt nothing of this item", id);
    return OK;
}

static status list_one(answers *out, const item_table *t, uint32_t item, const uint8_t *is_allowed,
                       int32_t k, int32_t *best, float *cosine) {
    int32_t n;
    char note[SHOW_BYTES] = "";
    answer_subject who = {SUBJECT_ITEM, item, NULL};
    TRY(similar_items(t, item, is_allowed, k, best, cosine, &n));
    TRY(seq_item_title(out->data, item, &out->text));
    if (out->data->title.n > 0) show_text(note, buf_str(&out->text), out->text.n_bytes, 80);
    TRY(answers_begin(out, &who, "model", note));
    for (int32_t i = 0; i < n; i++)
        TRY(answers_item(out, (uint32_t)best[i], &cosine[i]));
    return answers_end(out);
}

static status list_all(const recommend_args *a, const item_table *t, const uint8_t *is_allowed,
                       answers *out, int32_t *best, float *cosine) {
    uint32_t item;
    for (size_t i = 0; i < a->similar.n_items; i++) {
        TRY(find_subject(a, t, out->data, i, &item));
        TRY(list_one(out, t, item, is_allowed, (int32_t)a->k, best, cosine));
    }
    return OK;
}

status recommend_similar(const recommend_args *a, session *s, const uint8_t *is_allowed) {
    static const char *const columns[] = {"score"};
    answers out = {.format = a->format,
                   .data = s->data,
                   .subject = "item",
                   .columns = columns,
                   .n_columns = 1,
                   .has_ranks = true};
    item_table t;
    int32_t *best = NULL;
    float *cosine = NULL;
    status st = item_table_init(&t, s->model);
    if (st == OK) st = MEM_NEW(&best, (size_t)a->k);
    if (st == OK) st = MEM_NEW(&cosine, (size_t)a->k);
    if (st == OK) st = answers_open(&out, a->out);
    if (st == OK) st = list_all(a, &t, is_allowed, &out, best, cosine);
    st = answers_close(&out, st);
    mem_free(best);
    mem_free(cosine);
    item_table_fini(&t);
    return st;
}
