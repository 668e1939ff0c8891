#include "train/files/checkpoint.h"

#include <dirent.h>

#include "dist/transport.h"
#include "embed/snapshot.h"
#include "format/safetensors.h"
#include "model/vocabulary.h"
#include "nn/params.h"
#include "ops/comm.h"
#include "train/report/run_log.h"

enum { NAME_BYTES = 256 };

/* A checkpoint has folders of tables, and these have one folder a rank. */
enum { MAX_DEPTH = 2 };

/* Each table has a checksum over its own files, and the checkpoint records it: a table of another
 * step may be complete, but it is not this checkpoint's. */
static status list_tables(json_writer *w, const char *folder, const dynamic_tables *tables) {
    char name[CHECKPOINT_TABLE_BYTES];
    if (tables == NULL || tables->n == 0) return OK;
    json_key_array(w, "tables");
    for (int i = 0; i < tables->n; i++) {
        if (!dynamic_is_owner(&tables->item[i])) continue;
        checkpoint_table_name(name, tables, i);
        TRY(manifest_add_table(w, folder, name));
    }
    json_array_close(w);
    return OK;
}

static status write_manifest(const char *folder, uint64_t step, const dynamic_tables *tables,
                             buf *text) {
    json_writer w;
    int64_t bytes;
    json_begin_object(&w, text, 2);
    json_key_string(&w, "format", CHECKPOINT_FORMAT);
    json_key_int(&w, "step", (int64_t)step);
    json_key_array(&w, "files");
    for (int i = 0; i < CHECKPOINT_FILES; i++)
        TRY(manifest_add_file(&w, folder, checkpoint_file_names[i], &bytes));
    json_array_close(&w);
    TRY(list_tables(&w, folder, tables));
    return json_finish_sealed(&w);
}

status checkpoint_seal(const char *folder, uint64_t step, const dynamic_tables *tables) {
    buf text = {0};
    return file_save(folder, "manifest.json", &text, write_manifest(folder, step, tables, &text));
}

/* Names the temporary and the final folder of a step; creates their parent if needed. */
static status name_folders(const char *run, uint64_t step, char *temporary, char *folder) {
    char name[NAME_BYTES];
    TRY(path_join(folder, CHECKPOINT_PATH_BYTES, run, "checkpoints"));
    TRY(folder_create(folder, NULL));
    snprintf(name, sizeof name, "checkpoints/.step-%08" PRIu64 ".%ld.tmp", step, (long)getpid());
    TRY(path_join(temporary, CHECKPOINT_PATH_BYTES, run, name));
    TRY(checkpoint_step_folder(run, (int64_t)step, folder));
    checkpoint_remove(temporary);
    return folder_create(temporary, NULL);
}

/* Makes RUN/name a link to checkpoints/BASE, atomically. */
static status point_link(const char *run, const char *name, const char *folder) {
    char link_path[CHECKPOINT_PATH_BYTES], temporary[CHECKPOINT_PATH_BYTES],
        target[NAME_BYTES + 32];
    char hidden[NAME_BYTES];
    snprintf(target, sizeof target, "checkpoints/%.200s", strrchr(folder, '/') + 1);
    snprintf(hidden, sizeof hidden, ".%s.tmp", name); /* the run is locked: nobody else makes it */
    TRY(path_join(link_path, sizeof link_path, run, name));
    TRY(path_join(temporary, sizeof temporary, run, hidden));
    (void)unlink(temporary);
    if (symlink(target, temporary) != 0) return fail_errno("%s: cannot be made", temporary);
    if (rename(temporary, link_path) != 0) {
        status st = fail_errno("%s: cannot be put in place", link_path);
        (void)unlink(temporary);
        return st;
    }
    folder_sync(run);
    return OK;
}

status checkpoint_point_best(const char *run, int64_t step) {
    char path[CHECKPOINT_PATH_BYTES];
    TRY(checkpoint_step_folder(run, step, path));
    if (step >= 0 && folder_exists(path)) return point_link(run, "best", path);
    TRY(path_join(path, sizeof path, run, "best"));
    (void)unlink(path);
    return OK;
}

/* Renames the folder; one that is there already leaves first, under a name that checkpoint_prune
 * removes. */
static status put_in_place(const char *temporary, const char *folder) {
    char old[CHECKPOINT_PATH_BYTES];
    const char *name = strrchr(folder, '/') + 1;
    struct stat found;
    if (lstat(folder, &found) == 0) {
        if ((size_t)snprintf(old, sizeof old, "%.*s.%s.%ld.old.tmp", (int)(name - folder), folder,
                             name, (long)getpid()) >= sizeof old)
            return fail(ERR_USAGE, "%s: the path is too long", folder);
        checkpoint_remove(old);
        if (rename(folder, old) != 0) return fail_errno("%s: cannot be replaced", folder);
    }
    if (rename(temporary, folder) != 0) return fail_errno("%s: cannot be put in place", folder);
    return OK;
}

/* Renames the temporary folder to its final name, durably, and points RUN/last (and RUN/best) to
 * it. */
static status publish(const char *run, const char *temporary, const char *folder, bool is_best) {
    char parent[CHECKPOINT_PATH_BYTES];
    TRY(path_join(parent, sizeof parent, run, "checkpoints"));
    folder_sync(temporary);
    /* A step is saved again where it turned out to be the best: the folder that `last` points to
     * stays.  Any other folder of that name is from a run that was killed before its link, or from
     * before the run went back to an older checkpoint: its weights are not those of the log. */
    int64_t step = checkpoint_step_of(folder);
    bool is_last =
        folder_exists(folder) && step >= 0 && checkpoint_linked_step(run, "last") == step;
    if (is_last && checkpoint_verify(folder) == OK)
        checkpoint_remove(temporary);
    else
        TRY(put_in_place(temporary, folder));
    folder_sync(parent);
    TRY(point_link(run, "last", folder));
    return is_best ? point_link(run, "best", folder) : OK;
}

void checkpoint_remove(const char *folder) {
    char path[CHECKPOINT_PATH_BYTES];
    struct stat found;
    /* The manifest is removed first: if the removal is killed, the remaining files are not a
     * checkpoint.  Of a link nothing but the link is removed. */
    if (lstat(folder, &found) == 0 && S_ISDIR(found.st_mode) &&
        path_join(path, sizeof path, folder, "manifest.json") == OK)
        (void)unlink(path);
    folder_remove(folder, MAX_DEPTH);
}

/* A folder, or a link to one: what a checkpoint's name may stand for. */
static bool is_checkpoint(const char *parent, const char *name) {
    char path[CHECKPOINT_PATH_BYTES];
    return checkpoint_step_of(name) >= 0 && path_join(path, sizeof path, parent, name) == OK &&
           folder_exists(path);
}

status checkpoint_check_run(const char *run) {
    char parent[CHECKPOINT_PATH_BYTES];
    status st = OK;
    TRY(path_join(parent, sizeof parent, run, "checkpoints"));
    DIR *dir = opendir(parent);
    if (dir == NULL && errno != ENOENT) return fail_errno("%s: cannot be read", parent);
    if (dir == NULL) return OK;
    for (struct dirent *e = readdir(dir); e != NULL && st == OK; e = readdir(dir))
        if (strncmp(e->d_name, "step-", 5) == 0 && !is_checkpoint(parent, e->d_name))
            st = fail(ERR_FORMAT,
                      "%s/%.200s: no checkpoint's folder, which is named like step-00000005; move "
                      "it away",
                      parent, e->d_name);
    closedir(dir);
    return st;
}

/* How many checkpoints there are, and the oldest that is neither `last` nor `best`; -1: none. */
static int count_steps(const char *parent, int64_t last, int64_t best, int64_t *oldest) {
    int n = 0;
    DIR *dir = opendir(parent);
    *oldest = -1;
    if (dir == NULL) return 0;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        int64_t step = checkpoint_step_of(e->d_name);
        if (!is_checkpoint(parent, e->d_name)) continue;
        n++;
        if (step == last || step == best) continue;
        if (*oldest < 0 || step < *oldest) *oldest = step;
    }
    closedir(dir);
    return n;
}

static void remove_remains(const char *run, const char *parent) {
    char path[CHECKPOINT_PATH_BYTES];
    if (path_join(path, sizeof path, run, ".last.tmp") == OK) (void)unlink(path);
    if (path_join(path, sizeof path, run, ".best.tmp") == OK) (void)unlink(path);
    DIR *dir = opendir(parent);
    if (dir == NULL) return;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        if (strncmp(e->d_name, ".step-", 6) != 0 || !text_ends_with(e->d_name, ".tmp")) continue;
        if (path_join(path, sizeof path, parent, e->d_name) == OK) checkpoint_remove(path);
    }
    closedir(dir);
}

void checkpoint_prune(const char *run, int keep) {
    char parent[CHECKPOINT_PATH_BYTES], path[CHECKPOINT_PATH_BYTES];
    int64_t last = checkpoint_linked_step(run, "last");
    int64_t oldest, best = checkpoint_linked_step(run, "best");
    if (path_join(parent, sizeof parent, run, "checkpoints") != OK) return;
    remove_remains(run, parent);
    /* The best checkpoint is kept in addition to the newest ones, unless it is one of them. */
    while (count_steps(parent, last, best, &oldest) > keep + (best >= 0 && best != last) &&
           oldest >= 0) {
        if (checkpoint_step_folder(run, oldest, path) != OK) return;
        checkpoint_remove(path);
        if (folder_exists(path)) { /* no endless loop over it */
            log_warn("%s: this old checkpoint cannot be removed", path);
            return;
        }
    }
}

/* The tensors of a checkpoint, written by all ranks at the same time: each writes its part of one
 * file, whose bytes do not depend on the number of ranks.
 *
 * What all ranks have is divided evenly among those that divide the users of a step.  Rows that
 * ranks hold together travel first, so that a rank writes a range of rows.  Where ranks share
 * layers, each of the first group writes its own heads.  Nothing needs memory for more than a
 * few MiB at a time. */
typedef struct part_tensor {
    char name[PARAM_NAME_BYTES + 16];
    param shape;        /* its shape, and what of it this rank has */
    const float *value; /* memory of the backend */
    /* Moments of rows that have missed steps are written as if they had not: */
    const float *last;          /* (rows), memory of the backend, or NULL */
    const missed_steps *missed; /* host */
    bool is_second;             /* moment */
} part_tensor;

typedef struct tensor_list {
    part_tensor *item; /* (n) */
    int n;
} tensor_list;

/* Floats that a rank writes at a time. */
enum { PIECE = 1 << 20 };

typedef struct part_writer {
    const checkpoint *c;
    part_file *file;
    float *piece;          /* (PIECE) or a row, if that is more */
    float *out, *in;       /* rows on their way between ranks */
    int64_t *n_out, *n_in; /* (size of c->ranks) */
    int64_t piece_n;       /* floats of the three */
    status st;             /* the first failure: exchanges go on, since other ranks wait for them */
} part_writer;

static void note(part_writer *w, status st) {
    if (w->st == OK) w->st = st;
}

static status check_finite(const part_tensor *t, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return fail(ERR_NUMERIC,
                        "'%s' holds numbers that are not finite; nothing was saved. Resume from "
                        "the last checkpoint with a smaller learning rate, or with clip_grad set",
                        t->name);
    return OK;
}

/* n floats of the host to element `at` of the whole tensor, which begins at byte `begin`. */
static status write_floats(part_writer *w, const part_tensor *t, uint64_t begin, int64_t at,
                           const float *x, int64_t n) {
    TRY(check_finite(t, x, n));
    return part_file_write(w->file, begin + (uint64_t)at * sizeof *x, x, (size_t)n * sizeof *x);
}

static status copy_out(const part_writer *w, float *to, const float *from, int64_t n) {
    backend *be = w->c->be;
    return n > 0 ? be->ops->copy_out(be, to, from, (size_t)n * sizeof *to) : OK;
}

/* n moments from element `at` on, after their missed steps. */
static status catch_up(const part_writer *w, const part_tensor *t, int64_t at, float *x,
                       int64_t n) {
    if (t->last == NULL || n == 0) return OK;
    int64_t dim = t->shape.shape[1], row = at / dim, n_rows = (at + n + dim - 1) / dim - row;
    float *last;
    TRY(MEM_NEW_RAW(&last, (size_t)n_rows));
    status st = copy_out(w, last, t->last + row, n_rows);
    for (int64_t i = 0; i < n && st == OK; i++) {
        const missed_steps *missed = &t->missed[(int)last[(at + i) / dim - row]];
        x[i] *= t->is_second ? missed->v : missed->m;
    }
    mem_free(last);
    return st;
}

/* This rank's part of a tensor: of one that every rank has a slice, of one that is cut each run. */
static status write_own(part_writer *w, const part_tensor *t, uint64_t begin) {
    const comm *c = w->c->ranks;
    bool is_cut = t->shape.cut.n_parts > 1;
    int rank = c != NULL ? c->rank : 0;
    int64_t at = is_cut ? 0 : slice_first(t->shape.n, rank, comm_size(c)), n;
    int64_t end = is_cut ? t->shape.n : slice_first(t->shape.n, rank + 1, comm_size(c));
    for (; at < end; at += n) {
        int64_t to = param_cut_run(&t->shape, at, &n);
        if (n > end - at) n = end - at;
        if (n > PIECE) n = PIECE;
        TRY(copy_out(w, w->piece, t->value + at, n));
        TRY(catch_up(w, t, at, w->piece, n));
        TRY(write_floats(w, t, begin, to, w->piece, n));
    }
    return OK;
}

/* A table whose rows ranks hold together, `width` floats each. */
typedef struct held_rows {
    const part_tensor *t;
    int64_t width, n_whole;
    int64_t first;    /* of this rank's rows that are not written yet */
    int64_t n_stripe; /* rows that a rank writes at a time */
} held_rows;

/* The rows that rank r writes next, from row `at` of the whole table on. */
static int64_t stripe(const held_rows *h, int64_t at, int r, int64_t *n) {
    int64_t first = at + r * h->n_stripe;
    if (first > h->n_whole) first = h->n_whole;
    *n = h->n_whole - first < h->n_stripe ? h->n_whole - first : h->n_stripe;
    return first;
}

/* This rank's rows of the next stripes to their writers.  It knows how many of its own go where;
 * how many come follows from the table's rule. */
static status exchange_stripes(part_writer *w, held_rows *h, int64_t at) {
    comm *c = w->c->ranks;
    const int32_t *rows = h->t->shape.rows;
    int64_t n_rows = h->t->shape.shape[0], from = h->first, n;
    for (int r = 0; r < c->size; r++) {
        int64_t end = stripe(h, at, r, &n) + n;
        w->n_out[r] = 0;
        for (; h->first < n_rows && rows[h->first] < end; h->first++)
            w->n_out[r]++;
        w->n_in[r] = 0;
    }
    int64_t first = stripe(h, at, c->rank, &n);
    for (int64_t i = first; i < first + n; i++)
        w->n_in[dynamic_rank_of_row((uint64_t)i, c->size)]++;
    note(w, copy_out(w, w->out, h->t->value + from * h->width, (h->first - from) * h->width));
    all_to_all_args a = {.row_bytes = h->width * (int64_t)sizeof *w->out,
                         .n_send = w->n_out,
                         .n_receive = w->n_in,
                         .from = w->out,
                         .to = w->in};
    return comm_host_exchange(c, &a);
}

/* The stripe of this rank in the order of the table. */
static void merge_stripe(part_writer *w, const held_rows *h, int64_t first, int64_t n) {
    int size = w->c->ranks->size;
    const float *next[DYNAMIC_MAX_RANKS];
    next[0] = w->in;
    for (int r = 1; r < size; r++)
        next[r] = next[r - 1] + w->n_in[r - 1] * h->width;
    for (int64_t i = 0; i < n; i++) {
        const float **from = &next[dynamic_rank_of_row((uint64_t)(first + i), size)];
        memcpy(w->piece + i * h->width, *from, (size_t)h->width * sizeof *w->piece);
        *from += h->width;
    }
}

static status write_held(part_writer *w, const part_tensor *t, uint64_t begin) {
    comm *c = w->c->ranks;
    held_rows h = {.t = t, .n_whole = t->shape.whole_rows};
    h.width = param_whole_n(&t->shape) / h.n_whole;
    h.n_stripe = w->piece_n / h.width / c->size;
    for (int64_t at = 0, n; at < h.n_whole; at += c->size * h.n_stripe) {
        TRY(exchange_stripes(w, &h, at));
        int64_t first = stripe(&h, at, c->rank, &n);
        merge_stripe(w, &h, first, n);
        if (w->st == OK) note(w, write_floats(w, t, begin, first * h.width, w->piece, n * h.width));
    }
    return OK;
}

static status write_tensor(part_writer *w, const part_tensor *t, uint64_t begin) {
    bool is_first_of_group = comm_is_first(w->c->group);
    if (t->shape.rows != NULL) return is_first_of_group ? write_held(w, t, begin) : OK;
    if (w->st != OK) return OK;
    bool is_cut = t->shape.cut.n_parts > 1;
    bool writes = is_cut ? comm_is_first(w->c->ranks) : is_first_of_group;
    note(w, writes ? write_own(w, t, begin) : OK);
    return OK;
}

static status open_writer(part_writer *w, const char *path, const tensor_list *l) {
    int64_t size = comm_size(w->c->ranks);
    bool is_held = false;
    w->piece_n = PIECE;
    for (int i = 0; i < l->n; i++) {
        if (l->item[i].shape.rows == NULL) continue;
        int64_t width = param_whole_n(&l->item[i].shape) / l->item[i].shape.whole_rows;
        is_held = true;
        if (w->piece_n < width * size) w->piece_n = width * size;
    }
    /* Rows may all come from one rank, and go to one. */
    size_t room = is_held ? (size_t)w->piece_n : 0;
    TRY(MEM_NEW_RAW(&w->piece, (size_t)w->piece_n));
    TRY(MEM_NEW_RAW(&w->out, room));
    TRY(MEM_NEW_RAW(&w->in, room));
    TRY(MEM_NEW(&w->n_out, (size_t)size));
    TRY(MEM_NEW(&w->n_in, (size_t)size));
    return part_file_open(&w->file, path);
}

/* Every rank takes part in every exchange, whatever has happened to it before. */
static status write_all(part_writer *w, const char *path, const tensor_list *l, uint64_t first) {
    uint64_t begin = first;
    for (int i = 0; i < l->n; i++) {
        TRY(write_tensor(w, &l->item[i], begin));
        begin += (uint64_t)param_whole_n(&l->item[i].shape) * sizeof(float);
    }
    int64_t sum = (int64_t)part_file_sum(w->file);
    w->st = part_file_close(w->file, w->st);
    w->file = NULL;
    TRY(comm_host_agree(w->c->world, w->st));
    if (comm_size(w->c->world) == 1) return OK;
    /* What is sealed is what the first rank reads; it must be what all have written. */
    TRY(comm_host_reduce(w->c->world, COMM_I64, COMM_SUM, 1, &sum));
    bool is_first = comm_is_first(w->c->world);
    status st = is_first ? part_file_check(path, first, (uint64_t)sum) : OK;
    return comm_host_agree(w->c->world, st);
}

static status describe(const tensor_list *l, const st_pair *metadata, size_t n_metadata,
                       buf *header, uint64_t *bytes) {
    st_tensor *tensor;
    *bytes = 0;
    TRY(MEM_NEW(&tensor, (size_t)l->n));
    for (int i = 0; i < l->n; i++) {
        int64_t shape[4];
        st_tensor *t = &tensor[i];
        *t = (st_tensor){.name = l->item[i].name,
                         .dtype = ST_F32,
                         .n_dims = l->item[i].shape.n_dims,
                         .n = param_whole_n(&l->item[i].shape)};
        param_whole_shape(&l->item[i].shape, shape);
        for (int d = 0; d < t->n_dims; d++)
            t->shape[d] = shape[d];
        *bytes += (uint64_t)t->n * sizeof(float);
    }
    status st = st_header(header, tensor, (size_t)l->n, metadata, n_metadata);
    *bytes += header->n_bytes;
    mem_free(tensor);
    return st;
}

/* Writes a new safetensors file of float32; all ranks of c->world call it with the same list.  A
 * value that is not finite is ERR_NUMERIC.  Where a rank fails, all do, with its words. */
static status write_tensors(const checkpoint *c, const char *path, const tensor_list *l,
                            const st_pair *metadata, size_t n_metadata) {
    part_writer w = {.c = c};
    buf header = {0};
    uint64_t bytes;
    status st = describe(l, metadata, n_metadata, &header, &bytes);
    if (st == OK && comm_is_first(c->world)) st = part_file_make(path, &header, bytes);
    uint64_t begin = header.n_bytes;
    buf_fini(&header);
    TRY(comm_host_agree(c->world, st));
    if (c->world != NULL) TRY(comm_host_broadcast(c->world, &begin, sizeof begin, 0));
    st = comm_host_agree(c->world, open_writer(&w, path, l));
    if (st == OK) st = write_all(&w, path, l, begin);
    (void)part_file_close(w.file, ERR_IO);
    MEM_FREE(w.piece, w.out, w.in, w.n_out, w.n_in);
    return st;
}

enum { STATE_MAX_BYTES = 1 << 16 };

/* Room for `per_param` tensors of every parameter. */
static status list_init(tensor_list *l, const checkpoint *c, int per_param) {
    l->n = 0;
    return MEM_NEW(&l->item, (size_t)c->n_params * (size_t)per_param);
}

static part_tensor *list_add(tensor_list *l, const param *p, const char *suffix,
                             const float *value) {
    part_tensor *t = &l->item[l->n++];
    snprintf(t->name, sizeof t->name, "%s%s", p->name, suffix);
    t->shape = *p;
    t->value = value;
    return t;
}

/* The keys of the rows of items' features, in hexadecimal; "" where there are none. */
static status write_keys(const checkpoint *c, buf *out) {
    uint64_t *keys;
    const content_rows *content = c->optimizer->content;
    if (content == NULL || content->values == NULL) return OK;
    int32_t n = content_n_values(c->data);
    TRY(MEM_NEW(&keys, (size_t)n));
    content_value_keys(c->data, keys);
    status st = OK;
    for (int32_t i = 0; i < n && st == OK; i++)
        st = buf_printf(out, "%016" PRIx64, keys[i]);
    mem_free(keys);
    return st;
}

static status write_model(const checkpoint *c, const char *path, const char *config_json,
                          const char *dtype) {
    tensor_list l = {0};
    buf keys = {0};
    status st = write_keys(c, &keys);
    const st_pair metadata[] = {{"format", "hstu model 1"},
                                {"dtype_str", dtype},
                                {"config", config_json},
                                {CONTENT_KEYS, buf_str(&keys)}};
    if (st == OK) st = list_init(&l, c, 2);
    for (int i = 0; i < c->n_params && st == OK; i++) {
        list_add(&l, &c->params[i], "", c->params[i].value);
        if (c->params[i].own != NULL) list_add(&l, &c->params[i], CONTENT_OWN, c->params[i].own);
    }
    if (st == OK) st = write_tensors(c, path, &l, metadata, keys.n_bytes > 0 ? 4 : 3);
    mem_free(l.item);
    buf_fini(&keys);
    return st;
}

/* A table some of whose rows have missed steps: it is written as if they had not, and then again as
 * training has it, so that a run that is resumed has the bits of one that was not. */
#define LATE_MARK ".late."
static void list_late(tensor_list *l, const checkpoint *c, int i, const missed_steps *missed) {
    const optimizer *o = c->optimizer;
    const param *p = &c->params[i];
    param rows = *p;
    const float *last = optimizer_last(o, p), *raw = optimizer_raw(o, p);
    for (int is_second = 0; is_second < 2; is_second++) {
        part_tensor *t =
            list_add(l, p, is_second ? ".v" : ".m", is_second ? o->state[i].v : o->state[i].m);
        t->last = last;
        t->missed = missed;
        t->is_second = is_second;
    }
    rows.n_dims = 1;
    rows.n = rows.shape[0];
    list_add(l, p, LATE_MARK "w", raw != NULL ? raw : p->value);
    list_add(l, p, LATE_MARK "m", o->state[i].m);
    list_add(l, p, LATE_MARK "v", o->state[i].v);
    list_add(l, &rows, LATE_MARK "last", last);
}

/* Where the model's file has averages: the weights as training has them. */
#define TRAINED_MARK ".trained"

static bool is_late(const optimizer *o, const param *p) {
    return optimizer_is_late(o) && optimizer_last(o, p) != NULL;
}

static status write_optimizer(const checkpoint *c, const char *path) {
    tensor_list l;
    const optimizer *o = c->optimizer;
    missed_steps missed[LATE_STEPS + 1];
    const st_pair metadata[] = {{"format", "hstu optimizer 1"}, {"rows", row_mode_name(o->rows)}};
    const param rules = {.name = "steps",
                         .n_dims = 2,
                         .shape = {o->now, LATE_RULE},
                         .n = (int64_t)o->now * LATE_RULE};
    if (optimizer_is_late(o))
        TRY(c->be->ops->copy_out(c->be, missed, o->late.missed, sizeof missed));
    TRY(list_init(&l, c, 8));
    if (optimizer_is_late(o)) list_add(&l, &rules, LATE_MARK "rules", o->late.rules + LATE_RULE);
    for (int i = 0; i < c->n_params; i++) {
        const param p = optimizer_state_shape(o, &c->params[i]);
        const moments *state = &o->state[i];
        const float *weights = optimizer_weights(o, i);
        if (weights != NULL) list_add(&l, &c->params[i], TRAINED_MARK, weights);
        if (is_late(o, &c->params[i])) {
            list_late(&l, c, i, missed);
            continue;
        }
        if (state->m != NULL) list_add(&l, &p, ".m", state->m);
        if (state->v != NULL) list_add(&l, &p, ".v", state->v);
    }
    status st = write_tensors(c, path, &l, metadata, 2);
    mem_free(l.item);
    return st;
}

static void write_sums(json_writer *w, const char *key, const train_sums *s) {
    json_key_object(w, key);
    JSON_FIELDS(w, FIELD("loss", s->loss), FIELD("loss_positions", s->n_loss),
                FIELD("tokens", s->n_tokens), FIELD("seconds", s->seconds));
    json_object_close(w);
}

/* 64-bit seeds are kept as text: JSON's numbers end at 2^53. */
static status write_state(const train_state *s, const char *folder) {
    json_writer w;
    buf text = {0};
    char seed[32];
    snprintf(seed, sizeof seed, "%" PRIu64, s->seed);
    json_begin_object(&w, &text, 2);
    json_key_string(&w, "seed", seed);
    json_key_int(&w, "step", (int64_t)s->step);
    if (s->n_earlier > 0) json_key_int(&w, "earlier_steps", (int64_t)s->n_earlier);
    json_key_int(&w, "epoch", (int64_t)s->epoch);
    split_record_write(&s->split, &w);
    write_sums(&w, "in_epoch", &s->in_epoch);
    write_sums(&w, "in_round", &s->in_round);
    json_key_double(&w, "first_loss", s->first_loss);
    if (s->loss_scale > 0) {
        json_key_double(&w, "loss_scale", s->loss_scale);
        json_key_int(&w, "good_steps", (int64_t)s->n_good_steps);
    }
    JSON_FIELDS(&w, FIELD("best_metric", s->best_metric), FIELD("best_step", s->best_step),
                FIELD("best_by", s->best_by), FIELD("evals_since_best", s->n_since_best),
                FIELD("patience", s->patience));
    json_key(&w, "batches");
    batcher_state_write(&s->batches, &w);
    return file_save(folder, checkpoint_file_names[CHECKPOINT_STATE], &text,
                     json_finish_object(&w));
}

static status member_seed(const json_value *object, uint64_t *out) {
    const char *text;
    char end;
    TRY(json_member_string(object, "seed", &text));
    if (sscanf(text, "%" SCNu64 "%c", out, &end) != 1)
        return fail(ERR_FORMAT, "'seed' is no whole number");
    return OK;
}

static status parse_sums(train_sums *s, const json_value *root, const char *key) {
    const json_value *object = json_member(root, key);
    uint64_t n_loss = 0, n_tokens = 0;
    if (object == NULL || object->type != JSON_OBJECT)
        return fail(ERR_FORMAT, "'%s' is missing", key);
    TRY(json_member_double(object, "loss", &s->loss));
    TRY(checkpoint_member_count(object, "loss_positions", &n_loss));
    TRY(checkpoint_member_count(object, "tokens", &n_tokens));
    s->n_loss = (int64_t)n_loss;
    s->n_tokens = (int64_t)n_tokens;
    return json_member_double(object, "seconds", &s->seconds);
}

/* Not in checkpoints of older versions. */
static status parse_patience(train_state *s, const json_value *root) {
    const char *name;
    uint64_t patience = 0;
    s->best_by[0] = '\0';
    s->n_since_best = 0;
    s->patience = 0;
    if (json_member(root, "best_by") == NULL) return OK;
    TRY(json_member_string(root, "best_by", &name));
    if (strlen(name) >= sizeof s->best_by) return fail(ERR_FORMAT, "'best_by' is too long");
    memcpy(s->best_by, name, strlen(name) + 1);
    TRY(checkpoint_member_count(root, "evals_since_best", &s->n_since_best));
    TRY(checkpoint_member_count(root, "patience", &patience));
    s->patience = (int64_t)patience;
    return OK;
}

static status parse_state(train_state *s, const json_value *root) {
    checkpoint_origin o;
    TRY(checkpoint_parse_origin(&o, root));
    TRY(member_seed(root, &s->seed));
    TRY(checkpoint_member_count(root, "epoch", &s->epoch));
    s->step = o.step;
    s->n_earlier = o.n_earlier;
    s->split = o.split;
    s->batches = o.batches;
    TRY(parse_sums(&s->in_epoch, root, "in_epoch"));
    TRY(parse_sums(&s->in_round, root, "in_round"));
    TRY(json_member_double(root, "first_loss", &s->first_loss));
    s->loss_scale = 0;
    s->n_good_steps = 0;
    if (json_member(root, "loss_scale") != NULL) { /* of float16 runs only */
        TRY(json_member_double(root, "loss_scale", &s->loss_scale));
        TRY(checkpoint_member_count(root, "good_steps", &s->n_good_steps));
    }
    TRY(json_member_double(root, "best_metric", &s->best_metric));
    TRY(checkpoint_member_count(root, "best_step", &s->best_step));
    return parse_patience(s, root);
}

static status read_state(train_state *s, const char *folder) {
    manifest m;
    status st =
        manifest_open(&m, folder, checkpoint_file_names[CHECKPOINT_STATE], STATE_MAX_BYTES, NULL);
    if (st == OK) st = parse_state(s, m.root);
    return manifest_close(&m, st);
}

/* Ranks that hold tables together write them together; of those that each have all rows the first
 * one does. */
static status write_tables(const checkpoint *c, const char *folder) {
    char path[CHECKPOINT_PATH_BYTES];
    if (c->tables == NULL || (c->tables->comm == NULL && !comm_is_first(c->world))) return OK;
    for (int i = 0; i < c->tables->n; i++) {
        if (!dynamic_is_owner(&c->tables->item[i])) continue;
        TRY(checkpoint_table_path(path, c->tables, i, folder));
        TRY(embed_snapshot_write(c->tables->item[i].table, path, 0));
    }
    return OK;
}

/* The vocabulary of a run does not change, so all its checkpoints share one file. */
static status write_vocabulary(const checkpoint *c, const char *run, const char *folder) {
    char path[CHECKPOINT_PATH_BYTES], last[CHECKPOINT_PATH_BYTES], previous[CHECKPOINT_PATH_BYTES];
    const char *name = checkpoint_file_names[CHECKPOINT_VOCABULARY];
    TRY(path_join(path, sizeof path, folder, name));
    TRY(path_join(last, sizeof last, run, "last"));
    TRY(path_join(previous, sizeof previous, last, name));
    return vocabulary_save(path, previous, c->data, c->n_actions, c->be->workers);
}

/* What the first rank writes alone. */
static status write_small_files(const checkpoint *c, const char *run, const char *folder) {
    TRY(write_state(&c->state, folder));
    return write_vocabulary(c, run, folder);
}

static status write_files(const checkpoint *c, const char *run, const char *folder,
                          const char *config_json, const char *dtype) {
    char path[CHECKPOINT_PATH_BYTES];
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_MODEL]));
    TRY(write_model(c, path, config_json, dtype));
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_OPTIMIZER]));
    TRY(write_optimizer(c, path));
    status st = comm_is_first(c->world) ? write_small_files(c, run, folder) : OK;
    TRY(comm_host_agree(c->world, st));
    /* Where ranks form groups, the first ones of all groups hold the tables together, and so do the
     * second ones. */
    return comm_is_first(c->group) ? write_tables(c, folder) : OK;
}

/* Names the folders on the first rank, and tells the others. */
static status begin(const checkpoint *c, const char *run, char *temporary, char *folder) {
    status st = OK;
    if (comm_is_first(c->world)) st = name_folders(run, c->state.step, temporary, folder);
    TRY(comm_host_agree(c->world, st));
    if (c->world == NULL) return OK;
    TRY(comm_host_broadcast(c->world, temporary, CHECKPOINT_PATH_BYTES, 0));
    return comm_host_broadcast(c->world, folder, CHECKPOINT_PATH_BYTES, 0);
}

status checkpoint_save(const checkpoint *c, const char *run, const char *config_json,
                       const char *dtype, int keep, bool is_best) {
    char temporary[CHECKPOINT_PATH_BYTES], folder[CHECKPOINT_PATH_BYTES];
    bool is_first = comm_is_first(c->world);
    TRY(begin(c, run, temporary, folder));
    status st = comm_host_agree(c->world, write_files(c, run, temporary, config_json, dtype));
    if (st == OK && is_first) st = checkpoint_seal(temporary, c->state.step, c->tables);
    if (st == OK && is_first) st = publish(run, temporary, folder, is_best);
    if (st != OK && is_first) {
        failure f;
        failure_save(&f, st);
        checkpoint_remove(temporary);
        st = failure_restore(&f);
    }
    TRY(comm_host_agree(c->world, st));
    if (is_first) checkpoint_prune(run, keep);
    return OK;
}

static size_t count_marked(const st_file *f, const char *mark) {
    size_t n = 0;
    for (size_t i = 0; i < f->n_tensors; i++)
        n += strstr(f->tensors[i].name, mark) != NULL;
    return n;
}

/* What was loaded are averages, and training goes on with these weights; where this run has no
 * averages, without them. */
static status load_trained(checkpoint *c, const st_file *f) {
    size_t n = count_marked(f, TRAINED_MARK);
    if (n == 0) return OK;
    TRY(optimizer_begin_averages(c->optimizer));
    for (int i = 0; i < c->n_params; i++) {
        const param *p = &c->params[i];
        float *to = p->own != NULL ? p->own : p->value;
        TRY(checkpoint_load_tensor(f, c->be, p, TRAINED_MARK, to));
    }
    return content_make(c->optimizer->content);
}

/* Steps of rows are 0 to n. */
static status check_last(const st_file *f, const param *rows, int64_t n) {
    char name[PARAM_NAME_BYTES + 16];
    const st_tensor *t;
    snprintf(name, sizeof name, "%s" LATE_MARK "last", rows->name);
    TRY(st_get(f, name, ST_F32, &t));
    for (int64_t i = 0; i < (int64_t)t->n; i++) {
        float step;
        memcpy(&step, (const char *)t->data + i * (int64_t)sizeof step, sizeof step);
        if (!(step >= 0 && step <= (float)n && step == (float)(int)step))
            return fail(ERR_FORMAT, "%s: '%s' has a step that is not one of 0 to %lld", f->path,
                        name, (long long)n);
    }
    return OK;
}

/* Tables as training had them.  Where this run's rows miss no steps, or the file's had not, what
 * was loaded is enough. */
static status load_late(checkpoint *c, const st_file *f) {
    optimizer *o = c->optimizer;
    const st_tensor *rules;
    if (o->late.rules == NULL || st_find(f, "steps" LATE_MARK "rules") == NULL) return OK;
    TRY(st_get(f, "steps" LATE_MARK "rules", ST_F32, &rules));
    if (rules->n_dims != 2 || rules->shape[1] != LATE_RULE || rules->shape[0] > LATE_STEPS)
        return fail(ERR_FORMAT, "%s: 'steps" LATE_MARK "rules' has another shape", f->path);
    for (int i = 0; i < c->n_params; i++) {
        const param *p = &c->params[i];
        param rows = *p;
        float *last = optimizer_last(o, p);
        if (last == NULL) continue;
        rows.n_dims = 1;
        rows.n = rows.shape[0];
        TRY(checkpoint_load_tensor(f, c->be, p, LATE_MARK "w", p->value));
        TRY(checkpoint_load_tensor(f, c->be, p, LATE_MARK "m", o->state[i].m));
        TRY(checkpoint_load_tensor(f, c->be, p, LATE_MARK "v", o->state[i].v));
        TRY(check_last(f, &rows, rules->shape[0]));
        TRY(checkpoint_load_tensor(f, c->be, &rows, LATE_MARK "last", last));
    }
    TRY(checkpoint_check_finite(f, rules));
    float copy[LATE_STEPS * LATE_RULE]; /* the file's need not be aligned */
    memcpy(copy, rules->data, (size_t)rules->n * sizeof *copy);
    return optimizer_redo_rules(o, copy, (int32_t)rules->shape[0]);
}

static status load_moments(checkpoint *c, const char *path) {
    st_file *f;
    size_t n = 0;
    const char *rows = row_mode_name(c->optimizer->rows);
    TRY(st_open(&f, path));
    status st = OK;
    const char *saved = st_metadata(f, "rows");
    if (saved == NULL || strcmp(saved, rows) != 0)
        st = fail(ERR_FORMAT, "%s: its rows are %.20s, those of this run %s; the modes do not mix",
                  path, saved != NULL ? saved : "unknown", rows);
    for (int i = 0; i < c->n_params && st == OK; i++) {
        const param p = optimizer_state_shape(c->optimizer, &c->params[i]);
        moments *state = &c->optimizer->state[i];
        if (state->m != NULL) st = checkpoint_load_tensor(f, c->be, &p, ".m", state->m);
        if (state->v != NULL && st == OK) st = checkpoint_load_tensor(f, c->be, &p, ".v", state->v);
        n += (state->m != NULL) + (size_t)(state->v != NULL);
    }
    n += count_marked(f, LATE_MARK) + count_marked(f, TRAINED_MARK);
    if (st == OK) st = checkpoint_check_count(f, n);
    if (st == OK) st = load_late(c, f);
    if (st == OK) st = load_trained(c, f);
    st_close(f);
    return st;
}

status checkpoint_load(checkpoint *c, const char *folder) {
    char path[CHECKPOINT_PATH_BYTES];
    TRY(checkpoint_verify(folder));
    TRY(checkpoint_load_weights(folder, c->be, c->params, c->n_params, c->tables));
    TRY(read_state(&c->state, folder));
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_OPTIMIZER]));
    return load_moments(c, path);
}
