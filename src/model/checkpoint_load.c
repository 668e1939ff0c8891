#include "model/checkpoint_load.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/set/batcher.h"
#include "embed/snapshot.h"
#include "format/json.h"
#include "nn/params.h"

enum { STATE_MAX_BYTES = 1 << 16, CONFIG_MAX_BYTES = 1 << 24 };
enum { TENSOR_NAME_BYTES = PARAM_NAME_BYTES + 8 };

status checkpoint_table_path(char path[CHECKPOINT_PATH_BYTES], const dynamic_tables *tables, int i,
                             const char *folder) {
    char name[CHECKPOINT_TABLE_BYTES];
    checkpoint_table_name(name, tables, i);
    return path_join(path, CHECKPOINT_PATH_BYTES, folder, name);
}

static void shape_text(char *text, size_t n, int n_dims, const int64_t *shape) {
    size_t used = (size_t)snprintf(text, n, "(");
    for (int d = 0; d < n_dims && used < n; d++)
        used += (size_t)snprintf(text + used, n - used, "%s%" PRId64, d > 0 ? ", " : "", shape[d]);
    if (used < n) snprintf(text + used, n - used, ")");
}

static status check_shape(const st_file *f, const st_tensor *t, const param *p) {
    bool is_same = t->n_dims == p->n_dims;
    int64_t shape[4];
    param_whole_shape(p, shape);
    for (int d = 0; d < p->n_dims && is_same; d++)
        is_same = t->shape[d] == shape[d];
    if (is_same) return OK;
    char there[128], here[128];
    shape_text(there, sizeof there, t->n_dims, t->shape);
    shape_text(here, sizeof here, p->n_dims, shape);
    return fail(ERR_FORMAT,
                "%s: '%s' has the shape %s, but the model here has %s; the checkpoint belongs to "
                "another config or other data: use those it was trained with, or start a new run",
                st_path(f), t->name, there, here);
}

/* Such a value would spread through every answer: all scores of a user are NaN then. */
status checkpoint_check_finite(const st_file *f, const st_tensor *t) {
    int64_t at = st_first_not_finite(t);
    if (at < 0) return OK;
    int64_t width = t->n_dims > 0 && t->shape[0] > 0 ? t->n / t->shape[0] : 1;
    return fail(ERR_NUMERIC,
                "%s: row %" PRId64 " of '%s' holds a number that is not finite; use an older "
                "checkpoint (the folders beside it), or start the run again",
                st_path(f), at / width, t->name);
}

status checkpoint_load_tensor(const st_file *f, backend *be, const param *p, const char *suffix,
                              float *to) {
    char name[TENSOR_NAME_BYTES];
    const st_tensor *t;
    snprintf(name, sizeof name, "%s%s", p->name, suffix);
    if (st_find(f, name) == NULL)
        return fail(ERR_FORMAT,
                    "%s: '%s' is missing; the checkpoint belongs to another config: use the one it "
                    "was trained with, or start a new run",
                    st_path(f), name);
    TRY(st_get(f, name, ST_F32, &t));
    TRY(check_shape(f, t, p));
    TRY(checkpoint_check_finite(f, t));
    return param_cut_take(p, be, t->data, to);
}

/* A tensor that the model does not have is a sign of another model. */
status checkpoint_check_count(const st_file *f, size_t n) {
    if (st_n_tensors(f) == n) return OK;
    return fail(ERR_FORMAT,
                "%s: %zu tensors, but the model here has %zu; the checkpoint belongs to another "
                "config: use the one it was trained with, or start a new run",
                st_path(f), st_n_tensors(f), n);
}

status checkpoint_load_tables(dynamic_tables *tables, const char *folder) {
    char path[CHECKPOINT_PATH_BYTES];
    dynamic_state as_loaded;
    int64_t n_rejected;
    for (int i = 0; tables != NULL && i < tables->n; i++) {
        if (!dynamic_is_owner(&tables->item[i])) continue;
        TRY(checkpoint_table_path(path, tables, i, folder));
        TRY(embed_snapshot_read(tables->item[i].table, path, (snapshot_ranks){0, 1}, &n_rejected));
        if (n_rejected > 0)
            log_warn("%s: %" PRId64 " rows found no place and start again", path, n_rejected);
        /* What the log tells next begins here. */
        TRY(dynamic_news(&tables->item[i], &as_loaded));
    }
    return OK;
}

static status load_params(const char *path, backend *be, const param *params, int n_params) {
    st_file *f;
    TRY(st_open(&f, path));
    status st = OK;
    for (int i = 0; i < n_params && st == OK; i++)
        st = checkpoint_load_tensor(f, be, &params[i], "", params[i].value);
    if (st == OK) st = checkpoint_check_count(f, (size_t)n_params);
    st_close(f);
    return st;
}

status checkpoint_load_weights(const char *folder, backend *be, const param *params, int n_params,
                               dynamic_tables *tables) {
    char path[CHECKPOINT_PATH_BYTES];
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_MODEL]));
    TRY(load_params(path, be, params, n_params));
    return checkpoint_load_tables(tables, folder);
}

static status parse_origin(checkpoint_origin *o, const json_value *root) {
    const json_value *batches = json_member(root, "batches");
    batcher_state state;
    int64_t step, n_earlier = 0;
    if (batches == NULL || batches->type != JSON_OBJECT)
        return fail(ERR_FORMAT, "'batches' is missing");
    TRY(json_member_int(root, "step", &step));
    if (step < 0) return fail(ERR_FORMAT, "'step' is negative");
    if (json_member(root, "earlier_steps") != NULL)
        TRY(json_member_int(root, "earlier_steps", &n_earlier));
    if (n_earlier < 0) return fail(ERR_FORMAT, "'earlier_steps' is negative");
    TRY(split_record_read(&o->split, root));
    TRY(batcher_state_read(&state, batches));
    o->step = (uint64_t)step;
    o->n_earlier = (uint64_t)n_earlier;
    o->data = state.data;
    return OK;
}

status checkpoint_read_origin(checkpoint_origin *out, const char *folder) {
    char path[CHECKPOINT_PATH_BYTES], *text;
    size_t n;
    arena a;
    const json_value *root;
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_STATE]));
    TRY(file_read_all(path, STATE_MAX_BYTES, &text, &n));
    arena_init(&a, 4096);
    status st = json_parse(&a, path, text, n, &root);
    if (st == OK && root->type != JSON_OBJECT) st = fail(ERR_FORMAT, "%s: no object", path);
    if (st == OK) {
        st = parse_origin(out, root);
        if (st != OK) st = fail_prefix(st, "%s", path);
    }
    arena_fini(&a);
    mem_free(text);
    return st;
}

status checkpoint_config(config **out, const char *folder) {
    char path[CHECKPOINT_PATH_BYTES];
    st_file *f;
    *out = NULL;
    TRY(checkpoint_verify(folder));
    TRY(path_join(path, sizeof path, folder, checkpoint_file_names[CHECKPOINT_MODEL]));
    TRY(st_open(&f, path));
    const char *json = st_metadata(f, "config");
    status st = json != NULL ? config_load_json(out, path, json, strlen(json))
                             : fail(ERR_FORMAT, "%s: it carries no config", path);
    st_close(f);
    return st;
}

status checkpoint_run_config(config **out, const char *run) {
    char path[CHECKPOINT_PATH_BYTES], *text;
    size_t n;
    *out = NULL;
    if (!checkpoint_is_to_come(run)) {
        TRY(checkpoint_find_last(run, path));
        return checkpoint_config(out, path);
    }
    TRY(path_join(path, sizeof path, run, "config.json"));
    TRY(file_read_all(path, CONFIG_MAX_BYTES, &text, &n));
    bool is_sealed = n > 0 && text[n - 1] == '\n' && json_is_sealed(text, n - 1);
    status st = is_sealed ? config_load_json(out, path, text, n)
                          : fail(ERR_FORMAT,
                                 "%s: it was changed or is damaged; resume with "
                                 "--gin-config-file, or start the run again",
                                 path);
    mem_free(text);
    return st;
}

/* The member "run" of config.json, which the trainer writes (trainer_log.c). */
static status read_run_split(split_record *out, const char *path) {
    char *text;
    size_t n;
    arena a;
    const json_value *root;
    TRY(file_read_all(path, CONFIG_MAX_BYTES, &text, &n));
    arena_init(&a, 4096);
    status st = json_parse(&a, path, text, n, &root);
    const json_value *run = st == OK ? json_member(root, "run") : NULL;
    if (st == OK && (run == NULL || run->type != JSON_OBJECT))
        st = fail(ERR_FORMAT, "%s: 'run' is missing", path);
    if (st == OK) {
        st = split_record_read(out, run);
        if (st != OK) st = fail_prefix(st, "%s", path);
    }
    arena_fini(&a);
    mem_free(text);
    return st;
}

status checkpoint_run_split(split_record *out, const char *run) {
    char path[CHECKPOINT_PATH_BYTES];
    checkpoint_origin origin;
    if (checkpoint_is_to_come(run)) {
        TRY(path_join(path, sizeof path, run, "config.json"));
        return read_run_split(out, path);
    }
    TRY(checkpoint_find_last(run, path));
    TRY(checkpoint_read_origin(&origin, path));
    *out = origin.split;
    return OK;
}
