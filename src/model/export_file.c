#include "model/export_file.h"

#include "format/json.h"
#include "format/npz.h"
#include "format/safetensors.h"
#include "format/torch_file.h"
#include "model/checkpoint_load.h"
#include "model/vocabulary.h"
#include "nn/layer.h"

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
    MEM_FREE(s->mask, s->rows, s->tensor);
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
                    s->file->path, t->name);
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
    bool is_ligr = false;
    for (size_t i = 0; i < s->n; i++)
        is_ligr |= strncmp(s->tensor[i].name, LIGR_PREFIX, strlen(LIGR_PREFIX)) == 0;
    if (is_ligr || items == NULL || places == NULL || items->n_dims != 2 || places->n_dims != 2)
        return fail(ERR_UNSUPPORTED,
                    "%s: not one of Meta's research models (HSTU, SASRec; FuXi), which alone have "
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
    TRY(MEM_NEW(&s->tensor, s->file->n_tensors + 1));
    for (size_t i = 0; i < s->file->n_tensors; i++)
        if (!checkpoint_is_for_training(&s->file->tensors[i]))
            s->tensor[s->n++] = s->file->tensors[i];
    return is_meta ? make_meta(s, folder, workers) : OK;
}

static status add_array(zip_writer *w, const st_tensor *t) {
    static const char *const types[] = {[ST_F32] = "<f4", [ST_BOOL] = "|b1"};
    npz_array a = {t->name, types[t->dtype], st_dtype_bytes(t->dtype), t->n_dims, {0}};
    for (int d = 0; d < t->n_dims && d < NPZ_MAX_DIMS; d++)
        a.shape[d] = t->shape[d];
    TRY(npz_begin(w, &a));
    TRY(zip_write(w, t->data, (size_t)t->n * st_dtype_bytes(t->dtype)));
    return zip_end(w);
}

static status write_npz(const weight_set *s, const char *path) {
    zip_writer *w;
    TRY(zip_create(&w, path));
    status st = OK;
    for (size_t i = 0; i < s->n && st == OK; i++)
        st = add_array(w, &s->tensor[i]);
    if (st == OK) return zip_commit(w);
    zip_abandon(w);
    return st;
}

/* Types other than these two are in no checkpoint of ours, and have no name in write_npz. */
static status check_types(const weight_set *s) {
    for (size_t i = 0; i < s->n; i++)
        if (s->tensor[i].dtype != ST_F32 && s->tensor[i].dtype != ST_BOOL)
            return fail(ERR_FORMAT, "%s: '%s' is not float32", s->file->path, s->tensor[i].name);
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

enum { MAX_WIDTH = 4096, FLUSH_BYTES = 1 << 16 }; /* bytes of a string of an npz */

struct embedding_file {
    embedding_rows rows;
    embedding_format format;
    bool has_titles;
    int64_t n_done;
    zip_writer *npz;
    out_file *file; /* of the other formats */
    buf line, text;
};

/* Ids or titles, as text. */
typedef enum { TEXT_ID, TEXT_TITLE } text_kind;

static status text_of(embedding_file *f, text_kind kind, int64_t row) {
    const embedding_rows *r = &f->rows;
    if (r->item == NULL) return seq_user_name(r->data, (uint64_t)row, &f->text);
    uint32_t item = (uint32_t)r->item[row];
    return kind == TEXT_TITLE ? seq_item_title(r->data, item, &f->text)
                              : seq_item_name(r->data, item, &f->text);
}

static bool has_text_ids(const embedding_file *f) {
    return f->rows.item == NULL ? f->rows.data->has_text_users : f->rows.data->has_text_items;
}

static int64_t number_of(const embedding_file *f, int64_t row) {
    const embedding_rows *r = &f->rows;
    return r->item == NULL ? r->data->user_id[row] : r->data->item_id[r->item[row]];
}

/* Bytes of all texts, and of the longest. */
static status measure(embedding_file *f, text_kind kind, int64_t *n_bytes, int64_t *longest) {
    *n_bytes = *longest = 0;
    for (int64_t i = 0; i < f->rows.n; i++) {
        TRY(text_of(f, kind, i));
        *n_bytes += (int64_t)f->text.n_bytes;
        if ((int64_t)f->text.n_bytes > *longest) *longest = (int64_t)f->text.n_bytes;
    }
    return OK;
}

/* safetensors: strings are offsets first, bytes after the rows, so that wide types come first. */

static st_tensor vector(const char *name, st_dtype type, int64_t n) {
    return (st_tensor){.name = name, .dtype = type, .n_dims = 1, .shape = {n}, .n = n};
}

static status begin_tensors(embedding_file *f, const char *path) {
    const embedding_rows *r = &f->rows;
    st_tensor t[5];
    size_t n = 0;
    int64_t id_bytes = 0, title_bytes = 0, longest;
    const st_pair meta[] = {{"what", r->item == NULL ? "users" : "items"}};
    if (has_text_ids(f)) TRY(measure(f, TEXT_ID, &id_bytes, &longest));
    if (f->has_titles) TRY(measure(f, TEXT_TITLE, &title_bytes, &longest));
    t[n++] = has_text_ids(f) ? vector("id.offsets", ST_I64, r->n + 1) : vector("id", ST_I64, r->n);
    if (f->has_titles) t[n++] = vector("title.offsets", ST_I64, r->n + 1);
    t[n++] = (st_tensor){.name = "embedding",
                         .dtype = ST_F32,
                         .n_dims = 2,
                         .shape = {r->n, r->dim},
                         .n = r->n * r->dim};
    if (has_text_ids(f)) t[n++] = vector("id.bytes", ST_U8, id_bytes);
    if (f->has_titles) t[n++] = vector("title.bytes", ST_U8, title_bytes);
    return st_begin(&f->file, path, t, n, meta, 1);
}

static status put_offsets(embedding_file *f, text_kind kind) {
    int64_t at = 0;
    for (int64_t i = 0; i < f->rows.n; i++) {
        TRY(out_file_write(f->file, &at, sizeof at));
        TRY(text_of(f, kind, i));
        at += (int64_t)f->text.n_bytes;
    }
    return out_file_write(f->file, &at, sizeof at);
}

static status put_bytes(embedding_file *f, text_kind kind) {
    for (int64_t i = 0; i < f->rows.n; i++) {
        TRY(text_of(f, kind, i));
        TRY(out_file_write(f->file, buf_str(&f->text), f->text.n_bytes));
    }
    return OK;
}

static status start_safetensors(embedding_file *f, const char *path) {
    TRY(begin_tensors(f, path));
    for (int64_t i = 0; i < f->rows.n && !has_text_ids(f); i++) {
        int64_t id = number_of(f, i);
        TRY(out_file_write(f->file, &id, sizeof id));
    }
    if (has_text_ids(f)) TRY(put_offsets(f, TEXT_ID));
    return f->has_titles ? put_offsets(f, TEXT_TITLE) : OK;
}

static status finish_safetensors(embedding_file *f) {
    if (has_text_ids(f)) TRY(put_bytes(f, TEXT_ID));
    return f->has_titles ? put_bytes(f, TEXT_TITLE) : OK;
}

/* npz: strings of one width, which numpy opens without pickle. */

static status put_numbers(embedding_file *f) {
    TRY(npz_begin(f->npz, &(npz_array){"id", "<i8", sizeof(int64_t), 1, {f->rows.n}}));
    for (int64_t i = 0; i < f->rows.n; i++) {
        int64_t id = number_of(f, i);
        TRY(zip_write(f->npz, &id, sizeof id));
    }
    return zip_end(f->npz);
}

static status put_texts(embedding_file *f, text_kind kind, const char *name) {
    static const char zeros[MAX_WIDTH];
    char type[24];
    int64_t n_bytes, width;
    TRY(measure(f, kind, &n_bytes, &width));
    if (width > MAX_WIDTH)
        return fail(ERR_UNSUPPORTED,
                    "a string of %" PRId64 " bytes among the %ss: the strings of an npz have one "
                    "width, at most %d bytes; use --format safetensors",
                    width, name, MAX_WIDTH);
    if (width == 0) width = 1;
    snprintf(type, sizeof type, "|S%" PRId64, width);
    TRY(npz_begin(f->npz, &(npz_array){name, type, (size_t)width, 1, {f->rows.n}}));
    for (int64_t i = 0; i < f->rows.n; i++) {
        TRY(text_of(f, kind, i));
        TRY(zip_write(f->npz, buf_str(&f->text), f->text.n_bytes));
        TRY(zip_write(f->npz, zeros, (size_t)width - f->text.n_bytes));
    }
    return zip_end(f->npz);
}

static status start_npz(embedding_file *f, const char *path) {
    npz_array a = {"embedding", "<f4", sizeof(float), 2, {f->rows.n, f->rows.dim}};
    TRY(zip_create(&f->npz, path));
    TRY(has_text_ids(f) ? put_texts(f, TEXT_ID, "id") : put_numbers(f));
    if (f->has_titles) TRY(put_texts(f, TEXT_TITLE, "title"));
    return npz_begin(f->npz, &a);
}

static status start_csv(embedding_file *f, const char *path) {
    TRY(out_file_create(&f->file, path));
    TRY(buf_text(&f->line, f->has_titles ? "id,title" : "id"));
    for (int32_t c = 0; c < f->rows.dim; c++)
        TRY(buf_printf(&f->line, ",e%d", c));
    return buf_char(&f->line, '\n');
}

static status csv_row(embedding_file *f, const float *values) {
    char number[FLOAT_TEXT_BYTES];
    TRY(text_of(f, TEXT_ID, f->n_done));
    TRY(csv_put_field(&f->line, buf_str(&f->text), f->text.n_bytes));
    if (f->has_titles) {
        TRY(text_of(f, TEXT_TITLE, f->n_done));
        TRY(buf_char(&f->line, ','));
        TRY(csv_put_field(&f->line, buf_str(&f->text), f->text.n_bytes));
    }
    for (int32_t c = 0; c < f->rows.dim; c++) {
        TRY(buf_char(&f->line, ','));
        TRY(buf_append(&f->line, number, (size_t)float_text(number, values[c])));
    }
    return buf_char(&f->line, '\n');
}

static status flush_line(embedding_file *f) {
    status st = out_file_write(f->file, buf_str(&f->line), f->line.n_bytes);
    buf_clear(&f->line);
    return st;
}

status embedding_file_create(embedding_file **out, const char *path, embedding_format format,
                             const embedding_rows *rows) {
    embedding_file *f;
    *out = NULL;
    TRY(MEM_NEW(&f, 1));
    f->rows = *rows;
    f->format = format;
    f->has_titles = rows->item != NULL && rows->data->title.n > 0;
    status st = format == EMBEDDINGS_SAFETENSORS ? start_safetensors(f, path)
                : format == EMBEDDINGS_NPZ       ? start_npz(f, path)
                                                 : start_csv(f, path);
    return CREATED(st, out, f, embedding_file_abandon);
}

status embedding_file_add(embedding_file *f, const float *values, int64_t n) {
    size_t bytes = (size_t)n * (size_t)f->rows.dim * sizeof *values;
    if (n > f->rows.n - f->n_done)
        return fail(ERR_CONFIG, "%" PRId64 " rows; the file has room for %" PRId64, n,
                    f->rows.n - f->n_done);
    for (int64_t i = 0; i < n && f->format == EMBEDDINGS_CSV; i++, f->n_done++) {
        TRY(csv_row(f, values + i * f->rows.dim));
        if (f->line.n_bytes >= FLUSH_BYTES) TRY(flush_line(f));
    }
    if (f->format == EMBEDDINGS_CSV) return OK;
    f->n_done += n;
    return f->npz != NULL ? zip_write(f->npz, values, bytes)
                          : out_file_write(f->file, values, bytes);
}

static status finish(embedding_file *f) {
    if (f->n_done != f->rows.n)
        return fail(ERR_CONFIG, "%" PRId64 " rows of %" PRId64 " are missing",
                    f->rows.n - f->n_done, f->rows.n);
    if (f->format == EMBEDDINGS_NPZ) return zip_end(f->npz);
    return f->format == EMBEDDINGS_CSV ? flush_line(f) : finish_safetensors(f);
}

status embedding_file_commit(embedding_file *f) {
    status st = finish(f);
    zip_writer *npz = f->npz;
    out_file *file = f->file;
    if (st == OK) f->npz = NULL, f->file = NULL;
    embedding_file_abandon(f);
    if (st != OK) return st;
    return npz != NULL ? zip_commit(npz) : out_file_commit(file);
}

void embedding_file_abandon(embedding_file *f) {
    if (f == NULL) return;
    zip_abandon(f->npz);
    out_file_abandon(f->file);
    buf_fini(&f->line);
    buf_fini(&f->text);
    mem_free(f);
}
