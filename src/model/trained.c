#include "model/trained.h"

#include "base/half.h"
#include "format/json.h"

enum { JSON_MAX_BYTES = 1 << 16, PIECE = 1 << 16 };

const char *const engine_file_names[ENGINE_FILES] = {"weights.safetensors", "vocabulary.seq",
                                                     "state.json"};

const char *engine_dtype_name(config_dtype dtype) {
    static const char *const names[] = {[DTYPE_BFLOAT16] = "bfloat16",
                                        [DTYPE_FLOAT16] = "float16",
                                        [DTYPE_FLOAT32] = "float32",
                                        [DTYPE_TF32] = "tf32"};
    return names[dtype];
}

bool engine_folder_is(const char *path) {
    return folder_has(path, "engine.json");
}

static const char remedy[] =
    "this engine folder is damaged; make it again with 'hstu build RUN --out ENGINE'";

static status damaged(const char *path, const char *what) {
    return fail(ERR_FORMAT, "%s: %s; %s", path, what, remedy);
}

/* All but the content of the weights. */
static status check_files(const manifest *m, engine_facts *out) {
    const json_value *e;
    manifest_file f;
    TRY(manifest_check_names(m, engine_file_names, ENGINE_FILES, &e));
    for (; e != NULL; e = e->next) {
        TRY(manifest_read_file(m, e, &f));
        if (strcmp(f.name, engine_file_names[ENGINE_WEIGHTS]) != 0) {
            TRY(manifest_check_file(m, &f));
            continue;
        }
        out->weight_bytes = f.bytes;
        out->weight_hash = f.hash;
    }
    return OK;
}

static status read_dtype(const char *path, const char *name, engine_facts *out) {
    static const config_dtype all[] = {DTYPE_BFLOAT16, DTYPE_FLOAT16, DTYPE_FLOAT32};
    out->is_fp8 = strcmp(name, ENGINE_FP8) == 0;
    if (out->is_fp8) name = engine_dtype_name(DTYPE_BFLOAT16);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(name, engine_dtype_name(all[i])) != 0) continue;
        out->dtype = all[i];
        return OK;
    }
    return damaged(path, "its dtype is none");
}

static status read_limits(const manifest *m, engine_limits *out) {
    static const char *const keys[] = {"max_batch", "max_tokens", "kv_pages", "items", NULL};
    const json_value *limits = json_member(m->root, "limits");
    const char *path = m->path, *form = "int8";
    int64_t requests, tokens, pages;
    TRY(manifest_check_keys(m, limits, keys));
    /* "items" is there where it is int8, so that other folders are those of older programs. */
    bool has_items = json_member(limits, "items") != NULL;
    TRY(json_member_int(limits, "max_batch", &requests));
    TRY(json_member_int(limits, "max_tokens", &tokens));
    TRY(json_member_int(limits, "kv_pages", &pages));
    if (requests < 0 || requests > 4096 || tokens < 0 || tokens > 1 << 24 || pages < -1 ||
        pages > INT32_MAX)
        return damaged(path, "its limits are out of range");
    if (has_items) TRY(json_member_string(limits, "items", &form));
    if (strcmp(form, "int8") != 0) return damaged(path, "its items are in an unknown form");
    *out = (engine_limits){(int32_t)requests, (int32_t)tokens, pages, has_items};
    return OK;
}

static status read_facts(const manifest *m, engine_facts *out) {
    static const char *const keys[] = {"format", "dtype",  "weight_error", "limits",
                                       "files",  "tables", "crc32",        NULL};
    const char *format, *dtype;
    TRY(json_member_string(m->root, "format", &format));
    if (!m->is_sealed) return damaged(m->path, "it does not fit its own checksum");
    if (strcmp(format, ENGINE_FORMAT) != 0)
        return fail(ERR_UNSUPPORTED,
                    "%s: '%.60s' is a format this version does not know (it reads '%s'); make it "
                    "again with 'hstu build RUN --out ENGINE'",
                    m->path, format, ENGINE_FORMAT);
    TRY(manifest_check_keys(m, m->root, keys));
    TRY(json_member_string(m->root, "dtype", &dtype));
    TRY(json_member_double(m->root, "weight_error", &out->weight_error));
    TRY(read_dtype(m->path, dtype, out));
    return read_limits(m, &out->limits);
}

/* Reads engine.json, and unless is_alone checks the other files, too. */
static status read_engine(const char *folder, bool is_alone, engine_facts *out) {
    manifest m;
    *out = (engine_facts){0};
    status st = manifest_open(&m, folder, "engine.json", JSON_MAX_BYTES, remedy);
    if (st == OK) st = read_facts(&m, out);
    if (st == OK && !is_alone) st = check_files(&m, out);
    if (st == OK && !is_alone) st = manifest_check_tables(&m);
    return manifest_close(&m, st);
}

status engine_folder_facts(const char *folder, engine_facts *out) {
    return read_engine(folder, true, out);
}

/* Opens the folder and checks everything but the content of its weights. */
static status open_engine(const char *folder, engine_facts *facts, st_file **weights) {
    char path[CHECKPOINT_PATH_BYTES], reason[FAILURE_REASON_BYTES];
    *weights = NULL;
    TRY(read_engine(folder, false, facts));
    TRY(path_join(path, sizeof path, folder, engine_file_names[ENGINE_WEIGHTS]));
    status st = st_open(weights, path);
    if (st != ERR_FORMAT) return st;
    snprintf(reason, sizeof reason, "%s", status_reason());
    return fail(ERR_FORMAT, "%s; %s", reason, remedy);
}

/* The bytes that are mapped are the ones that are used; of others there are copies, made since the
 * file was opened, so it must not have been written to. */
static status check_weights(const st_file *w, const engine_facts *facts) {
    if ((int64_t)w->map.n_bytes != facts->weight_bytes ||
        hash64(w->map.bytes, w->map.n_bytes, 0) != facts->weight_hash)
        return damaged(w->path, "the content does not fit its checksum");
    file_change change = file_map_changed(&w->map, w->path);
    if (change == FILE_RESIZED || change == FILE_WRITTEN)
        return fail(ERR_FORMAT,
                    "%s: somebody wrote into it while it was opened; start again when it is whole",
                    w->path);
    for (size_t i = 0; i < w->n_tensors; i++)
        if (w->tensors[i].dtype == ST_F32) TRY(checkpoint_check_finite(w, &w->tensors[i]));
    return OK;
}

status engine_folder_verify(const char *folder, engine_facts *out) {
    st_file *weights;
    status st = open_engine(folder, out, &weights);
    if (st == OK) st = check_weights(weights, out);
    st_close(weights);
    return st;
}

static status read_config(config **out, const st_file *weights) {
    const char *json = st_metadata(weights, "config");
    *out = NULL;
    if (json == NULL) return damaged(weights->path, "it contains no config");
    return config_load_json(out, weights->path, json, strlen(json));
}

/* 16-bit numbers of this rank's part become float32 a piece at a time: what computes holds float32
 * everywhere. */
static status load_half(const st_file *f, backend *be, const st_tensor *t, const param *p) {
    float *piece;
    const unsigned char *from = t->data;
    TRY(MEM_NEW_RAW(&piece, PIECE));
    status st = OK;
    int64_t n_bad = 0, n_piece, n;
    for (int64_t at = 0; at < p->n && st == OK; at += n_piece) {
        for (n_piece = 0; n_piece < PIECE && at + n_piece < p->n; n_piece += n) {
            int64_t first = param_cut_run(p, at + n_piece, &n);
            if (n > PIECE - n_piece) n = PIECE - n_piece;
            for (int64_t i = 0; i < n; i++) {
                uint16_t x;
                memcpy(&x, from + 2 * (first + i), sizeof x);
                float y = t->dtype == ST_BF16 ? half_bf16_to_float(x) : half_f16_to_float(x);
                piece[n_piece + i] = y;
                n_bad += !isfinite(y);
            }
        }
        if (n_bad > 0) {
            char what[160];
            snprintf(what, sizeof what, "'%.80s' holds a number that is not finite", t->name);
            st = damaged(f->path, what);
        }
        if (st == OK)
            st = be->ops->copy_in(be, p->value + at, piece, (size_t)n_piece * sizeof *piece);
    }
    mem_free(piece);
    return st;
}

static status load_param(const st_file *f, backend *be, const param *p) {
    const st_tensor *t = st_find(f, p->name);
    if (t == NULL || (t->dtype != ST_BF16 && t->dtype != ST_F16))
        return checkpoint_load_tensor(f, be, p, "", p->value);
    if (!checkpoint_has_shape(t, p, 0)) return damaged(f->path, "a shape is not that of the model");
    return load_half(f, be, t, p);
}

/* Whether the item rows were mapped. */
static status map_items(const st_file *f, model *m, const st_tensor *normed, bool *is_mapped) {
    const param *p = model_item_param(m);
    const st_tensor *rows = model_can_map_items(m) ? st_find(f, p->name) : NULL;
    bool needs_normed = model_normalises_items(m);
    *is_mapped = false;
    if (rows == NULL || rows->dtype != ST_F32 || (needs_normed && normed == NULL)) return OK;
    if (!checkpoint_has_shape(rows, p, 0))
        return damaged(f->path, "a shape is not that of the model");
    if (needs_normed && (normed->dtype != ST_F32 || normed->n_dims != 2 ||
                         normed->shape[0] != p->shape[0] - 1 || normed->shape[1] != p->shape[1]))
        return damaged(f->path, "the normalised items are not those of the model");
    model_map_items(m, rows->data, needs_normed ? normed->data : NULL);
    *is_mapped = true;
    return OK;
}

/* Parameters of the same names and shapes, and dynamic tables.  A CPU's item rows stay in the
 * mapped file where they can (model_map_items): the file must outlive the model. */
static status load_engine(const char *folder, const st_file *f, backend *be, model *m) {
    const st_tensor *normed = st_find(f, ENGINE_NORMED);
    int n_params;
    const param *params = model_params(m, &n_params);
    bool is_mapped;
    status st = map_items(f, m, normed, &is_mapped);
    for (int i = 0; i < n_params && st == OK; i++)
        if (!is_mapped || &params[i] != model_item_param(m)) st = load_param(f, be, &params[i]);
    if (st == OK) st = checkpoint_check_count(f, (size_t)n_params + (normed != NULL));
    return st == OK ? checkpoint_load_tables(model_tables(m), folder) : st;
}

/* Opening either. */

/* The data in the model's numbering. */
static status match(trained *t, const seq_file *data, pool *p, const seq_file **out) {
    bool reads_actions = config_reads_actions(t->config);
    bool reads_context = config_reads_context(t->config);
    *out = NULL;
    TRY(vocabulary_open(&t->vocabulary, t->folder, p));
    if (data == NULL) {
        *out = t->vocabulary;
        return OK;
    }
    TRY(MEM_NEW(&t->view, 1));
    TRY(vocabulary_view_init(t->view, t->vocabulary, data, reads_actions, reads_context, p));
    *out = t->view->data;
    return OK;
}

/* Which folder, whether it is whole, and its config. */
static status find(trained *t, const char *path, bool is_checked) {
    t->is_engine = engine_folder_is(path);
    if (!t->is_engine) {
        TRY(checkpoint_find(path, t->folder));
        return checkpoint_config(&t->config, t->folder);
    }
    if (snprintf(t->folder, sizeof t->folder, "%s", path) >= (int)sizeof t->folder)
        return fail(ERR_USAGE, "%.100s...: the path is too long", path);
    TRY(open_engine(t->folder, &t->engine, &t->weights));
    if (is_checked) TRY(check_weights(t->weights, &t->engine));
    TRY(read_config(&t->config, t->weights));
    /* A GPU computes in the precision of 16-bit weights; float32 ones leave the choice to the run.
     */
    if (t->engine.dtype != DTYPE_FLOAT32) t->config->network.dtype = t->engine.dtype;
    t->config->network.is_fp8 = t->engine.is_fp8;
    return OK;
}

static status load_weights(trained *t, backend *be) {
    const session *s = &t->session;
    dynamic_tables *tables = model_tables(s->model);
    if (t->is_engine) return load_engine(t->folder, t->weights, be, s->model);
    return checkpoint_load_weights(t->folder, be, s->params, s->n_params, tables);
}

static status load(trained *t, const char *path, const seq_file *data, backend *be,
                   int32_t max_users, comm *tensor, bool is_checked) {
    const seq_file *matched;
    TRY(find(t, path, is_checked));
    TRY(checkpoint_read_origin(&t->origin, t->folder));
    if (!t->is_engine && checkpoint_is_best(t->folder))
        log_info("using the best checkpoint on validation, of step %" PRIu64
                 "; RUN/last is the newest",
                 t->origin.step);
    TRY(match(t, data, be->workers, &matched));
    TRY(session_open_inference(&t->session, t->config, matched, be, max_users, tensor));
    TRY(load_weights(t, be));
    return t->engine.is_fp8 ? model_pack_layers(t->session.model) : OK;
}

static status open_as(trained *t, const char *path, const seq_file *data, backend *be,
                      int32_t max_users, comm *tensor, bool is_checked) {
    *t = (trained){0};
    status st = load(t, path, data, be, max_users, tensor, is_checked);
    if (st != OK) trained_close(t);
    return st;
}

status trained_open(trained *t, const char *path, const seq_file *data, backend *be,
                    int32_t max_users) {
    return open_as(t, path, data, be, max_users, NULL, true);
}

status trained_open_unchecked(trained *t, const char *path, const seq_file *data, backend *be,
                              int32_t max_users, comm *tensor) {
    return open_as(t, path, data, be, max_users, tensor, false);
}

status trained_check(const trained *t) {
    return t->is_engine ? check_weights(t->weights, &t->engine) : OK;
}

void trained_close(trained *t) {
    session_close(&t->session);
    if (t->view != NULL) vocabulary_view_fini(t->view);
    mem_free(t->view);
    seq_file_close(t->vocabulary);
    config_destroy(t->config);
    st_close(t->weights);
    *t = (trained){0};
}
