#include "model/weight_file.h"

#include <inttypes.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "format/npz.h"
#include "format/safetensors.h"
#include "format/torch_file.h"
#include "model/checkpoint_load.h"
#include "model/vocabulary.h"

/* The tensors to write: those of the checkpoint, and what the layout replaces or adds. */
typedef struct weight_set {
    st_file *file;
    seq_file *items;
    st_tensor *tensor; /* (n) */
    size_t n;
    float *rows;   /* the item table in Meta's layout, or NULL */
    uint8_t *mask; /* (N, N), or NULL */
} weight_set;

static void weight_set_fini(weight_set *s) {
    mem_free(s->mask);
    mem_free(s->rows);
    mem_free(s->tensor);
    seq_file_close(s->items);
    st_close(s->file);
}

int64_t meta_row(const seq_file *items, uint32_t item) {
    return items->has_text_items ? (int64_t)item : items->item_id[item];
}

status meta_count_rows(const seq_file *items, int64_t *out) {
    int64_t most = 0;
    for (uint64_t i = 1; i <= items->n_items; i++) {
        int64_t row = meta_row(items, (uint32_t)i);
        if (row < 1 || row >= META_ROWS_MAX)
            return fail(ERR_UNSUPPORTED,
                        "the item id %" PRId64 " cannot be the row of Meta's table, whose rows are "
                        "the ids 1 to %d",
                        row, META_ROWS_MAX - 1);
        if (row > most) most = row;
    }
    *out = most + 1;
    return OK;
}

/* Moves the rows of the item table to the places of their ids. */
static status place_rows(weight_set *s, st_tensor *t) {
    int64_t n_rows = 0, dim = t->shape[1];
    TRY(meta_count_rows(s->items, &n_rows));
    if (t->shape[0] != (int64_t)s->items->n_items + 1)
        return fail(ERR_FORMAT, "%s: '%s' does not have a row for each item of the vocabulary",
                    st_path(s->file), t->name);
    TRY(MEM_NEW(&s->rows, (size_t)n_rows * (size_t)dim));
    for (uint64_t i = 0; i <= s->items->n_items; i++)
        memcpy(s->rows + meta_row(s->items, (uint32_t)i) * dim,
               (const char *)t->data + i * (size_t)dim * sizeof(float),
               (size_t)dim * sizeof(float));
    t->shape[0] = n_rows;
    t->n = n_rows * dim;
    t->data = s->rows;
    return OK;
}

/* True where a position must not be seen: above the diagonal. */
static status add_mask(weight_set *s, int64_t n) {
    TRY(MEM_NEW(&s->mask, (size_t)n * (size_t)n));
    for (int64_t row = 0; row < n; row++)
        memset(s->mask + row * n + row + 1, 1, (size_t)(n - row - 1));
    s->tensor[s->n++] = (st_tensor){.name = META_MASK,
                                    .dtype = ST_BOOL,
                                    .n_dims = 2,
                                    .shape = {n, n},
                                    .n = n * n,
                                    .data = s->mask};
    return OK;
}

static status make_meta(weight_set *s, const char *folder, pool *workers) {
    st_tensor *items = NULL, *places = NULL;
    for (size_t i = 0; i < s->n; i++) {
        if (strcmp(s->tensor[i].name, META_ITEMS) == 0) items = &s->tensor[i];
        if (strcmp(s->tensor[i].name, META_PLACES) == 0) places = &s->tensor[i];
    }
    if (items == NULL || places == NULL || items->n_dims != 2 || places->n_dims != 2)
        return fail(ERR_UNSUPPORTED,
                    "%s: not one of Meta's research models (HSTU, SASRec), which alone have "
                    "Meta's layout",
                    folder);
    TRY(vocabulary_open(&s->items, folder, workers));
    if (s->items == NULL)
        return fail(ERR_UNSUPPORTED,
                    "%s: has no vocabulary.seq, so the ids of its rows are not known", folder);
    TRY(place_rows(s, items));
    return add_mask(s, places->shape[0]);
}

static status weight_set_init(weight_set *s, const char *folder, bool is_meta, pool *workers) {
    char path[CHECKPOINT_PATH_BYTES];
    *s = (weight_set){0};
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_MODEL]));
    TRY(st_open(&s->file, path));
    TRY(MEM_NEW(&s->tensor, st_n_tensors(s->file) + 1));
    for (; s->n < st_n_tensors(s->file); s->n++)
        s->tensor[s->n] = *st_tensor_at(s->file, s->n);
    return is_meta ? make_meta(s, folder, workers) : OK;
}

static status add_array(npz_writer *w, const st_tensor *t) {
    static const char *const types[] = {[ST_F32] = "<f4", [ST_BOOL] = "|b1"};
    npz_array a = {t->name, types[t->dtype], st_dtype_bytes(t->dtype), t->n_dims, {0}};
    for (int d = 0; d < t->n_dims && d < NPZ_MAX_DIMS; d++)
        a.shape[d] = t->shape[d];
    TRY(npz_begin(w, &a));
    TRY(npz_write(w, t->data, (size_t)t->n * st_dtype_bytes(t->dtype)));
    return npz_end(w);
}

static status write_npz(const weight_set *s, const char *path) {
    npz_writer *w;
    TRY(npz_create(&w, path));
    status st = OK;
    for (size_t i = 0; i < s->n && st == OK; i++)
        st = add_array(w, &s->tensor[i]);
    if (st == OK) return npz_commit(w);
    npz_abandon(w);
    return st;
}

/* Types other than these two are in no checkpoint of ours, and have no name in write_npz. */
static status check_types(const weight_set *s) {
    for (size_t i = 0; i < s->n; i++)
        if (s->tensor[i].dtype != ST_F32 && s->tensor[i].dtype != ST_BOOL)
            return fail(ERR_FORMAT, "%s: '%s' is not float32", st_path(s->file), s->tensor[i].name);
    return OK;
}

/* The config is what our own readers need; Meta's have none to read. */
static status write_safetensors(const weight_set *s, const char *path) {
    const st_pair metadata[] = {{"format", "pt"}};
    return st_write(path, s->tensor, s->n, metadata, 1);
}

status weight_file_write(const char *folder, const char *path, weight_format format, bool is_meta,
                         pool *workers) {
    weight_set s;
    status st = weight_set_init(&s, folder, is_meta, workers);
    if (st == OK) st = check_types(&s);
    if (st == OK)
        st = format == WEIGHTS_PT    ? torch_write(path, s.tensor, s.n)
             : format == WEIGHTS_NPZ ? write_npz(&s, path)
                                     : write_safetensors(&s, path);
    weight_set_fini(&s);
    return st;
}
