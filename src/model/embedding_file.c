#include "model/embedding_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "format/json.h"
#include "format/npz.h"
#include "format/safetensors.h"

enum { MAX_WIDTH = 4096, FLUSH_BYTES = 1 << 16 }; /* bytes of a string of an npz */

struct embedding_file {
    embedding_rows rows;
    embedding_format format;
    bool has_titles;
    int64_t n_done;
    npz_writer *npz;
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
        TRY(npz_write(f->npz, &id, sizeof id));
    }
    return npz_end(f->npz);
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
        TRY(npz_write(f->npz, buf_str(&f->text), f->text.n_bytes));
        TRY(npz_write(f->npz, zeros, (size_t)width - f->text.n_bytes));
    }
    return npz_end(f->npz);
}

static status start_npz(embedding_file *f, const char *path) {
    npz_array a = {"embedding", "<f4", sizeof(float), 2, {f->rows.n, f->rows.dim}};
    TRY(npz_create(&f->npz, path));
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
    if (st != OK) {
        embedding_file_abandon(f);
        return st;
    }
    *out = f;
    return OK;
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
    return f->npz != NULL ? npz_write(f->npz, values, bytes)
                          : out_file_write(f->file, values, bytes);
}

static status finish(embedding_file *f) {
    if (f->n_done != f->rows.n)
        return fail(ERR_CONFIG, "%" PRId64 " rows of %" PRId64 " are missing",
                    f->rows.n - f->n_done, f->rows.n);
    if (f->format == EMBEDDINGS_NPZ) return npz_end(f->npz);
    return f->format == EMBEDDINGS_CSV ? flush_line(f) : finish_safetensors(f);
}

status embedding_file_commit(embedding_file *f) {
    status st = finish(f);
    npz_writer *npz = f->npz;
    out_file *file = f->file;
    if (st == OK) f->npz = NULL, f->file = NULL;
    embedding_file_abandon(f);
    if (st != OK) return st;
    return npz != NULL ? npz_commit(npz) : out_file_commit(file);
}

void embedding_file_abandon(embedding_file *f) {
    if (f == NULL) return;
    npz_abandon(f->npz);
    out_file_abandon(f->file);
    buf_fini(&f->line);
    buf_fini(&f->text);
    mem_free(f);
}
