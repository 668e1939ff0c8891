/* Vectors of items by id: --item-vectors.
 *
 * A .npy file, or a .safetensors file as `hstu encode` writes it.  The ids are the lines of
 * --item-vector-ids, else its tensor `ids`, else those of the rows of items, in their order. */
#include "data/read/source_job.h"
#include "format/npz.h"

typedef struct id_source {
    const builder *build;
    const st_tensor *tensor; /* or NULL */
    file_map lines;
    const char *at, *end; /* the lines that are left; NULL: there are none */
    buf text;             /* the last id */
} id_source;

static status next_id(id_source *s, int64_t i) {
    buf_clear(&s->text);
    if (s->at == NULL && s->tensor == NULL) return builder_item_id(s->build, (uint32_t)i, &s->text);
    if (s->at == NULL) return buf_printf(&s->text, "%" PRId64, st_int_at(s->tensor, i));
    const char *newline = memchr(s->at, '\n', (size_t)(s->end - s->at));
    size_t n = (size_t)((newline != NULL ? newline + 1 : s->end) - s->at);
    TRY(buf_append(&s->text, s->at, csv_without_end(s->at, n)));
    s->at += n;
    return OK;
}

static uint64_t count_ids(const id_source *s) {
    if (s->at == NULL)
        return s->tensor != NULL ? (uint64_t)s->tensor->n : builder_n_item_rows(s->build);
    return count_newlines(s->at, s->lines.n_bytes) + (s->end > s->at && s->end[-1] != '\n');
}

static bool is_matrix(const st_tensor *t) {
    return t != NULL && t->n_dims == 2 && t->dtype <= ST_BF16 && t->shape[0] > 0 &&
           t->shape[1] > 0 && t->shape[1] <= ITEM_VECTOR_MAX;
}

/* By a usual name, else the only matrix. */
static status find_vectors(const st_file *f, const st_tensor **out) {
    static const char *const usual[] = {"vectors", "embedding", "pooled"};
    int n = 0;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (is_matrix(*out = st_find(f, usual[i]))) return OK;
    for (size_t i = 0; i < f->n_tensors; i++)
        if (is_matrix(&f->tensors[i])) *out = &f->tensors[i], n++;
    if (n == 1) return OK;
    return fail(ERR_FORMAT,
                "%s: %d of its tensors are (n, dim) of floating point with dim up to %d; one is "
                "needed, or one called 'vectors'",
                f->path, n, ITEM_VECTOR_MAX);
}

static status add_vectors(source_job *job, const st_tensor *t, id_source *ids) {
    int64_t dim = t->shape[1];
    float *to;
    TRY(builder_begin_vectors(job->build, (uint64_t)t->shape[0], (int32_t)dim));
    for (int64_t row = 0; row < t->shape[0]; row++) {
        TRY(next_id(ids, row));
        if (ids->text.n_bytes == 0) return fail(ERR_FORMAT, "id %" PRId64 " is empty", row + 1);
        TRY(builder_add_vector(job->build, ids->text.data, ids->text.n_bytes, &to));
        for (int64_t i = 0; i < dim; i++)
            if (!isfinite(to[i] = st_float_at(t, row * dim + i)))
                return fail(ERR_FORMAT, "row %" PRId64 " is not finite", row + 1);
    }
    return OK;
}

static status read_vectors(source_job *job, const st_file *f, id_source *ids) {
    const char *lines = job->request->item_vector_ids;
    const st_tensor *t;
    TRY(find_vectors(f, &t));
    if (lines != NULL) {
        TRY(file_map_open(&ids->lines, lines));
        ids->at = (const char *)ids->lines.bytes;
        ids->end = ids->at + ids->lines.n_bytes;
    } else {
        ids->tensor = st_find(f, "ids");
        if (ids->tensor != NULL && ids->tensor->dtype != ST_I64 && ids->tensor->dtype != ST_I32)
            return fail(ERR_FORMAT, "%s: 'ids' is not of int64 or int32", f->path);
    }
    uint64_t n = count_ids(ids);
    if ((uint64_t)t->shape[0] != n)
        return fail(ERR_FORMAT,
                    "%s has %" PRId64 " vectors, but there are %" PRIu64 " %s, each once; give the "
                    "id of each vector in --item-vector-ids, one per line",
                    f->path, t->shape[0], n,
                    ids->tensor != NULL || lines != NULL ? "ids" : "rows of items");
    status st = add_vectors(job, t, ids);
    return st == OK ? OK : fail_prefix(st, "%s", lines != NULL ? lines : f->path);
}

status job_read_vectors(source_job *job) {
    const char *path = job->request->item_vectors;
    id_source ids = {.build = job->build};
    st_file *f;
    TRY(text_ends_with(path, ".npy") ? npy_open(&f, path) : st_open(&f, path));
    status st = read_vectors(job, f, &ids);
    if (ids.at != NULL) file_map_close(&ids.lines);
    buf_fini(&ids.text);
    st_close(f);
    return st;
}
