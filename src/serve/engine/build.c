#include "serve/engine/build.h"

#include <dirent.h>

#include "base/half.h"
#include "format/json.h"
#include "model/item_table.h"
#include "serve/engine/engine.h"

enum { PIECE = 1 << 16, FOLDER_DEPTH = 2 };

/* While a folder is written. */
typedef struct build {
    const build_config *c;
    build_report *report;
    char from[CHECKPOINT_PATH_BYTES]; /* the checkpoint */
    char to[CHECKPOINT_PATH_BYTES];   /* the folder, under another name */
    char tables[32][CHECKPOINT_TABLE_BYTES];
    st_tensor normed; /* the normalised items to write, too; n 0: there are none */
} build;

/* Numbers of a tensor in its new type, a piece at a time, with the largest number and error. */
static status write_half(const st_tensor *t, st_dtype dtype, out_file *f, double *error) {
    float *piece;
    uint16_t *half = NULL;
    double largest = 0, worst = 0;
    status st = MEM_NEW_RAW(&piece, PIECE);
    if (st == OK) st = MEM_NEW_RAW(&half, PIECE);
    for (int64_t at = 0; at < t->n && st == OK; at += PIECE) {
        int64_t n = t->n - at < PIECE ? t->n - at : PIECE;
        memcpy(piece, (const char *)t->data + 4 * at, (size_t)n * sizeof *piece);
        for (int64_t i = 0; i < n; i++) {
            bool is_bf16 = dtype == ST_BF16;
            half[i] = is_bf16 ? half_bf16_from_float(piece[i]) : half_f16_from_float(piece[i]);
            double back =
                (double)(is_bf16 ? half_bf16_to_float(half[i]) : half_f16_to_float(half[i]));
            largest = fmax(largest, fabs((double)piece[i]));
            worst = fmax(worst, fabs(back - (double)piece[i]));
        }
        st = out_file_write(f, half, (size_t)n * sizeof *half);
    }
    if (st == OK && !isfinite(worst))
        st = fail(ERR_NUMERIC,
                  "'%s' has numbers up to %g, which %s cannot hold; build with another --dtype",
                  t->name, largest, dtype == ST_BF16 ? "bfloat16" : "float16");
    if (largest > 0 && worst / largest > *error) *error = worst / largest;
    MEM_FREE(piece, half);
    return st;
}

/* Vectors (biases, scales of norms) are few and stay float32. */
static st_dtype type_of(const build_config *c, const st_tensor *t) {
    if (t->n_dims < 2 || c->dtype == DTYPE_FLOAT32) return ST_F32;
    return c->dtype == DTYPE_BFLOAT16 ? ST_BF16 : ST_F16;
}

static status write_tensors(build *b, const st_file *from, const st_tensor *to, out_file *f) {
    for (size_t i = 0; i < from->n_tensors; i++) {
        const st_tensor *t = &from->tensors[i];
        if (checkpoint_is_for_training(t)) continue;
        if (t->dtype != ST_F32)
            return fail(ERR_FORMAT, "%s: '%s' is not float32", from->path, t->name);
        b->report->n_numbers += (uint64_t)t->n;
        if (to->dtype == ST_F32)
            TRY(out_file_write(f, t->data, 4 * (size_t)t->n));
        else
            TRY(write_half(t, to->dtype, f, &b->report->weight_error));
        to++;
    }
    return b->normed.n > 0 ? out_file_write(f, b->normed.data, 4 * (size_t)b->normed.n) : OK;
}

static status write_weights(build *b, const st_file *from) {
    char path[CHECKPOINT_PATH_BYTES];
    st_tensor *to;
    out_file *f = NULL;
    size_t n = 0;
    const char *json = st_metadata(from, "config");
    const st_pair metadata[] = {{"format", ENGINE_FORMAT}, {"config", json}};
    if (json == NULL) return fail(ERR_FORMAT, "%s: it contains no config", from->path);
    TRY(path_join(path, sizeof path, b->to, engine_file_names[ENGINE_WEIGHTS]));
    TRY(MEM_NEW(&to, from->n_tensors + 1));
    for (size_t i = 0; i < from->n_tensors; i++) {
        if (checkpoint_is_for_training(&from->tensors[i])) continue;
        to[n] = from->tensors[i];
        to[n].dtype = type_of(b->c, &to[n]);
        n++;
    }
    to[n] = b->normed;
    status st = st_begin(&f, path, to, n + (b->normed.n > 0), metadata, 2);
    if (st == OK) st = write_tensors(b, from, to, f);
    st = out_file_end(f, st);
    mem_free(to);
    return st;
}

static status convert_file(build *b) {
    char path[CHECKPOINT_PATH_BYTES];
    st_file *from;
    TRY(path_join(path, sizeof path, b->from, checkpoint_file_names[CHECKPOINT_MODEL]));
    TRY(st_open(&from, path));
    status st = write_weights(b, from);
    st_close(from);
    return st;
}

/* With the items as they are scored, where a CPU can then map them. */
static status convert_with_items(build *b, backend *be) {
    trained t;
    item_table items = {0};
    TRY(trained_open(&t, b->from, NULL, be, 1));
    model *m = t.session.model;
    bool has_items = model_can_map_items(m) && model_normalises_items(m);
    status st = has_items ? item_table_init(&items, m) : OK;
    if (st == OK && has_items)
        b->normed = (st_tensor){.name = ENGINE_NORMED,
                                .dtype = ST_F32,
                                .n_dims = 2,
                                .shape = {items.items.n, items.dim},
                                .n = (int64_t)items.items.n * items.dim,
                                .data = items.items.rows};
    if (st == OK) st = convert_file(b);
    item_table_fini(&items);
    trained_close(&t);
    return st;
}

static status convert_weights(build *b) {
    backend *be;
    if (b->c->dtype != DTYPE_FLOAT32) return convert_file(b);
    TRY(backend_create_cpu(&be, NULL));
    status st = convert_with_items(b, be);
    backend_destroy(be);
    return st;
}

static status copy_inside(build *b, const char *name) {
    char from[CHECKPOINT_PATH_BYTES], to[CHECKPOINT_PATH_BYTES];
    TRY(path_join(from, sizeof from, b->from, name));
    TRY(path_join(to, sizeof to, b->to, name));
    return file_copy(from, to);
}

static status copy_table(build *b, const char *name) {
    char from[CHECKPOINT_PATH_BYTES], to[CHECKPOINT_PATH_BYTES];
    int at = b->report->n_tables;
    if (at == (int)(sizeof b->tables / sizeof *b->tables))
        return fail(ERR_UNSUPPORTED, "%s: more than %d tables", b->from, at);
    snprintf(b->tables[at], sizeof b->tables[at], "%.63s", name);
    b->report->n_tables++;
    TRY(path_join(from, sizeof from, b->from, name));
    TRY(path_join(to, sizeof to, b->to, name));
    return checkpoint_copy_folder(from, to, 1);
}

/* The checkpoint was verified: folders of this name are its tables. */
static status copy_tables(build *b) {
    DIR *dir = opendir(b->from);
    if (dir == NULL) return fail_errno("%s", b->from);
    status st = OK;
    for (struct dirent *e = readdir(dir); e != NULL && st == OK; e = readdir(dir))
        if (strncmp(e->d_name, "table-", 6) == 0 && strlen(e->d_name) < CHECKPOINT_TABLE_BYTES)
            st = copy_table(b, e->d_name);
    closedir(dir);
    return st;
}

static status list_files(build *b, json_writer *w) {
    int64_t bytes;
    json_key_array(w, "files");
    for (int i = 0; i < ENGINE_FILES; i++) {
        TRY(manifest_add_file(w, b->to, engine_file_names[i], &bytes));
        if (i == ENGINE_WEIGHTS) b->report->weight_bytes = (uint64_t)bytes;
    }
    json_array_close(w);
    return OK;
}

static status list_tables(const build *b, json_writer *w) {
    json_key_array(w, "tables");
    for (int i = 0; i < b->report->n_tables; i++)
        TRY(manifest_add_table(w, b->to, b->tables[i]));
    json_array_close(w);
    return OK;
}

static status write_manifest(build *b, buf *text) {
    json_writer w;
    const engine_limits *l = &b->c->limits;
    const char *dtype = b->c->is_fp8 ? ENGINE_FP8 : engine_dtype_name(b->c->dtype);
    json_begin_object(&w, text, 2);
    JSON_FIELDS(&w, FIELD("format", ENGINE_FORMAT), FIELD("dtype", dtype),
                FIELD("weight_error", b->report->weight_error));
    json_key_object(&w, "limits");
    JSON_FIELDS(&w, FIELD("max_batch", l->max_batch), FIELD("max_tokens", l->max_tokens),
                FIELD("kv_pages", l->kv_pages));
    if (l->has_int8_items) json_key_string(&w, "items", "int8");
    json_object_close(&w);
    TRY(list_files(b, &w));
    TRY(list_tables(b, &w));
    return json_finish_sealed(&w);
}

static status seal(build *b) {
    buf text = {0};
    return file_save(b->to, "engine.json", &text, write_manifest(b, &text));
}

static status write_folder(build *b) {
    checkpoint_origin origin;
    TRY(checkpoint_verify(b->from));
    TRY(checkpoint_read_origin(&origin, b->from));
    b->report->step = origin.step;
    TRY(folder_create(b->to, NULL));
    TRY(convert_weights(b));
    TRY(copy_inside(b, engine_file_names[ENGINE_VOCABULARY]));
    TRY(copy_inside(b, engine_file_names[ENGINE_STATE]));
    TRY(copy_tables(b));
    return seal(b);
}

/* Whether an engine folder answers as its run does. */

enum { N_ASKED = 32, N_CANDIDATES = 64, TOP_K = 10, LONGEST = 256 };

typedef struct comparison {
    engine *e; /* model 0: the run, model 1: the folder */
    engine_model_info info;
    bool is_exact;
    build_report *out;
    engine_event history[LONGEST];
    engine_id candidate[N_CANDIDATES];
    uint64_t n_drawn, n_top, n_top_kept;
} comparison;

static uint32_t draw(comparison *k, uint32_t n) {
    rng_block b = rng_draw64(rng_make_key(17, RNG_TEST), k->n_drawn++, 0);
    return rng_below(b.word[0], n);
}

static status some_item(comparison *k, engine_id *out) {
    engine_item item;
    TRY(engine_item_of(k->e, 0, 1 + draw(k, (uint32_t)k->info.n_items), &item));
    *out = item.id;
    return OK;
}

static status draw_request(comparison *k, engine_request *r) {
    uint32_t longest = k->info.max_history < LONGEST ? (uint32_t)k->info.max_history : LONGEST;
    uint32_t n = 1 + draw(k, longest);
    for (uint32_t i = 0; i < n; i++) {
        k->history[i] = (engine_event){.has_time = true, .time = 1500000000 + 600 * (int64_t)i};
        TRY(some_item(k, &k->history[i].item));
    }
    for (int i = 0; i < N_CANDIDATES; i++)
        TRY(some_item(k, &k->candidate[i]));
    *r = (engine_request){.task = ENGINE_RANK,
                          .has_history = true,
                          .history = k->history,
                          .n_history = n,
                          .candidates = k->candidate,
                          .n_candidates = N_CANDIDATES,
                          .deadline_ns = 600000000000u};
    return OK;
}

/* The scores of the same candidates. */
static status compare_scores(comparison *k, const engine_answer *a, const engine_answer *b) {
    double low = INFINITY, high = -INFINITY, worst = 0;
    if (a->n_items != b->n_items || a->n_columns != b->n_columns)
        return fail(ERR_NUMERIC, "the engine's answers have other items than those of the run");
    for (size_t i = 0; i < a->n_items; i++) {
        const float *x = a->items[i].values, *y = b->items[i].values;
        size_t bytes = (size_t)a->n_columns * sizeof *x;
        if (a->items[i].number != b->items[i].number || (k->is_exact && memcmp(x, y, bytes) != 0))
            return fail(ERR_NUMERIC, "the engine's answers differ from those of the run");
        for (int c = 0; c < a->n_columns; c++) {
            low = fmin(low, (double)x[c]);
            high = fmax(high, (double)x[c]);
            worst = fmax(worst, fabs((double)x[c] - (double)y[c]));
        }
    }
    if (high > low && worst / (high - low) > k->out->score_error)
        k->out->score_error = worst / (high - low);
    return OK;
}

static status compare_best(comparison *k, const engine_answer *a, const engine_answer *b) {
    uint64_t n = 0;
    for (size_t i = 0; i < a->n_items; i++)
        for (size_t j = 0; j < b->n_items; j++)
            n += a->items[i].number == b->items[j].number;
    k->n_top += a->n_items;
    k->n_top_kept += n;
    return k->is_exact ? compare_scores(k, a, b) : OK;
}

typedef status (*judge_fn)(comparison *k, const engine_answer *a, const engine_answer *b);

static status ask_both(comparison *k, engine_request *r, judge_fn judge) {
    engine_answer a, b;
    r->model = 0;
    engine_ask(k->e, r, &a);
    r->model = 1;
    engine_ask(k->e, r, &b);
    status st = OK;
    if (a.outcome != ENGINE_OK) st = fail(ERR_NUMERIC, "the run does not answer: %s", a.error);
    if (st == OK && b.outcome != ENGINE_OK)
        st = fail(ERR_NUMERIC, "the engine does not answer: %s", b.error);
    if (st == OK) st = judge(k, &a, &b);
    engine_answer_release(&a);
    engine_answer_release(&b);
    return st;
}

static status ask_all(comparison *k) {
    engine_request r;
    for (; k->out->n_asked < N_ASKED; k->out->n_asked++) {
        TRY(draw_request(k, &r));
        TRY(ask_both(k, &r, compare_scores));
        if (k->out->is_ranking) continue;
        r.task = ENGINE_RECOMMEND;
        r.candidates = NULL;
        r.n_candidates = 0;
        r.top_k = TOP_K;
        TRY(ask_both(k, &r, compare_best));
    }
    k->out->top_kept = k->n_top > 0 ? (double)k->n_top_kept / (double)k->n_top : 1;
    return OK;
}

static status open_both(comparison *k, const char *checkpoint, const char *folder) {
    engine_model_info info;
    log_level level = log_get_level();
    if (level < LOG_WARN) log_set_level(LOG_WARN); /* its notes were given when it was converted */
    status st = engine_load(k->e, "run", checkpoint);
    if (!k->is_exact) log_set_level(level);
    if (st == OK) st = engine_load(k->e, "engine", folder);
    log_set_level(level);
    TRY(st);
    TRY(engine_model(k->e, 0, &k->info));
    TRY(engine_model(k->e, 1, &info));
    k->out->n_items = info.n_items;
    k->out->is_ranking = strcmp(info.task, "ranking") == 0;
    k->out->run_open_s = k->info.load_s;
    k->out->engine_open_s = info.load_s;
    return OK;
}

/* Opens the checkpoint and the engine folder and asks both the same: fills in the report.
 * ERR_NUMERIC where float32 weights answer differently. */
static status compare(const char *checkpoint, const char *folder, const build_config *c,
                      build_report *out) {
    comparison *k;
    engine_config of_engine = {.device = "cpu",
                               .max_batch = c->limits.max_batch,
                               .max_tokens = c->limits.max_tokens,
                               .kv_pages = c->limits.kv_pages};
    TRY(MEM_NEW(&k, 1));
    k->out = out;
    k->is_exact = c->dtype == DTYPE_FLOAT32;
    status st = engine_create(&k->e, &of_engine);
    if (st == OK) st = open_both(k, checkpoint, folder);
    if (st == OK) st = ask_all(k);
    engine_destroy(k->e);
    mem_free(k);
    return st;
}

/* Its place. */

/* Where an engine folder is replaced, both names change in one step: a server that opens it at this
 * moment gets the old one or the new one. */
static status publish(build *b, const char *out) {
    folder_sync(b->to);
    bool is_there = folder_exists(out);
    int code =
        is_there ? renameat2(AT_FDCWD, b->to, AT_FDCWD, out, RENAME_EXCHANGE) : rename(b->to, out);
    if (code != 0)
        return fail_errno("%s: cannot rename the new folder to this%s", out,
                          is_there ? "; remove it, or choose another --out" : "");
    if (is_there) folder_remove(b->to, FOLDER_DEPTH);
    folder_sync_of(out);
    return OK;
}

/* Without the slashes at its end, which a rename would not like. */
static status clean_path(const char *path, char out[CHECKPOINT_PATH_BYTES]) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n == 0 || n + 32 >= CHECKPOINT_PATH_BYTES)
        return fail(ERR_USAGE, "--out %.100s: not a path for a folder", path);
    snprintf(out, CHECKPOINT_PATH_BYTES, "%.*s", (int)n, path);
    return OK;
}

static status check_target(const char *out) {
    struct stat found;
    if (lstat(out, &found) != 0) return errno == ENOENT ? OK : fail_errno("%s", out);
    if (S_ISDIR(found.st_mode) && engine_folder_is(out)) return OK;
    return fail(
        ERR_USAGE,
        "%s: exists and is not an engine folder, so it is not replaced; choose another --out", out);
}

status build_engine(const build_config *c, build_report *out) {
    build b = {.c = c, .report = out};
    char target[CHECKPOINT_PATH_BYTES];
    *out = (build_report){0};
    TRY(clean_path(c->out, target));
    TRY(check_target(target));
    TRY(checkpoint_choose(c->run, c->checkpoint, b.from));
    if (engine_folder_is(b.from))
        return fail(ERR_USAGE, "%s: an engine folder already; name the run that it was built from",
                    c->run);
    snprintf(b.to, sizeof b.to, "%.*s.%ld.tmp", CHECKPOINT_PATH_BYTES - 32, target, (long)getpid());
    folder_remove(b.to, FOLDER_DEPTH);
    status st = write_folder(&b);
    if (st == OK) st = compare(b.from, b.to, c, out);
    if (st == OK) st = publish(&b, target);
    if (st == OK) return OK;
    failure f;
    failure_save(&f, st);
    folder_remove(b.to, FOLDER_DEPTH);
    return failure_restore(&f);
}
