#include "train/files/warm_start.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "train/files/warm_start_int.h"

static status check_model(const warm_job *j) {
    const config *there = j->config, *here = j->s->config;
    if (there->task == here->task && there->model == here->model) return OK;
    return fail(ERR_CONFIG,
                "%s: a model '%s' for %s, but this config is of '%s' for %s; use the config of "
                "that run, or train without --init-from",
                j->report->folder, config_model_name(there->model), config_task_name(there->task),
                config_model_name(here->model), config_task_name(here->task));
}

/* Actions are known by what they mean: stars are no signals. */
static status check_actions(const warm_job *j) {
    if (j->s->config->task != TASK_RANKING || j->names->actions == j->s->data->actions) return OK;
    return fail(ERR_CONFIG,
                "%s: its model learnt from another kind of actions than those of %s; use data with "
                "the same kind, or train without --init-from",
                j->report->folder, j->s->data->path);
}

/* The names that the other model knows. */
static status open_names(warm_job *j) {
    checkpoint_origin origin;
    pool *workers = j->c->be->workers;
    TRY(checkpoint_read_origin(&origin, j->report->folder));
    TRY(vocabulary_open(&j->names, j->report->folder, workers));
    j->report->step = origin.step;
    j->n_earlier = origin.n_earlier;
    TRY(check_actions(j));
    return vocabulary_map_init(&j->map, j->names, j->s->data, workers);
}

/* here[number there] = number here. */
static status invert(uint32_t **here, uint64_t n_there, const uint32_t *there, uint64_t n_here) {
    TRY(MEM_NEW(here, (size_t)n_there + 1));
    for (uint64_t i = 1; i < n_here; i++)
        if (there[i] != 0 && there[i] <= n_there) (*here)[there[i]] = (uint32_t)i;
    return OK;
}

static status invert_maps(warm_job *j) {
    const seq_file *data = j->s->data;
    if (j->c->tables->n == 0) return OK;
    TRY(invert(&j->item_here, j->names->n_items, j->map.item, data->n_items + 1));
    for (int f = 0; f < j->names->n_context; f++) {
        if (j->map.feature[f] < 0) continue;
        TRY(invert(&j->value_here[f], j->names->context[f].values.n, j->map.context[f],
                   data->context[j->map.feature[f]].values.n));
    }
    return OK;
}

static status open_files(warm_job *j) {
    char path[CHECKPOINT_PATH_BYTES];
    st_file *file;
    TRY(path_join(path, sizeof path, j->report->folder, checkpoint_file_names[CHECKPOINT_MODEL]));
    TRY(st_open(&j->values, path));
    TRY(path_join(path, sizeof path, j->report->folder,
                  checkpoint_file_names[CHECKPOINT_OPTIMIZER]));
    TRY(st_open(&file, path));
    j->report->has_state = warm_state_fits(j, file);
    if (j->report->has_state)
        j->moments = file;
    else
        st_close(file);
    return OK;
}

/* The feature there that is feature f here, or -1. */
static int feature_there(const warm_job *j, int32_t f) {
    for (int k = 0; k < j->names->n_context; k++)
        if (j->map.feature[k] == f) return k;
    return -1;
}

/* Contextual tables are called by number, and numbers may differ: "...context.2.weight". */
static status name_there(const param *p, int32_t here, int there, char name[PARAM_NAME_BYTES]) {
    char part[32];
    snprintf(part, sizeof part, ".%d.", here);
    const char *at = strstr(p->name, part);
    if (at == NULL) return fail(ERR_CONFIG, "'%s' has no number", p->name);
    snprintf(name, PARAM_NAME_BYTES, "%.*s.%d.%s", (int)(at - p->name), p->name, there,
             at + strlen(part));
    return OK;
}

/* Where the rows of a parameter come from; false: it is no table of ids. */
static status find_source(warm_job *j, const param *p, row_source *rows, const char **name,
                          bool *is_rows) {
    model *m = j->s->model;
    *is_rows = true;
    *rows = (row_source){0};
    if (p == model_rows(m, ITEM_FEATURE)) {
        *name = "item";
        rows->from = j->map.item;
        rows->n_there = (int64_t)j->names->n_items + 1;
        memcpy(rows->name, p->name, sizeof rows->name);
        return OK;
    }
    if (p == model_action_rows(m)) {
        *name = "action";
        rows->n_there = j->names->n_actions;
        memcpy(rows->name, p->name, sizeof rows->name);
        return OK;
    }
    for (int32_t f = 0; f < j->s->limits.n_context; f++) {
        if (p != model_rows(m, f)) continue;
        int there = feature_there(j, f);
        *name = j->s->data->context[f].name;
        if (there < 0) return OK; /* new as a whole */
        rows->from = j->map.context[there];
        rows->n_there = (int64_t)j->names->context[there].values.n;
        return name_there(p, f, there, rows->name);
    }
    *is_rows = false;
    return OK;
}

static warm_table *add_table(warm_report *r, const char *name) {
    warm_table *t = &r->table[r->n < WARM_MAX_TABLES - 1 ? r->n++ : r->n];
    *t = (warm_table){.name = name};
    return t;
}

static status copy_params(warm_job *j) {
    for (int i = 0; i < j->c->n_params; i++) {
        row_source rows;
        const char *name = NULL;
        bool is_rows;
        TRY(find_source(j, &j->c->params[i], &rows, &name, &is_rows));
        TRY(is_rows ? warm_copy_rows(j, i, &rows, add_table(j->report, name))
                    : warm_copy_whole(j, i));
    }
    return OK;
}

static status copy_tables(warm_job *j) {
    for (int i = 0; i < j->c->tables->n; i++) {
        const dynamic_table *t = &j->c->tables->item[i];
        if (dynamic_is_owner(t))
            TRY(warm_copy_table(j, i, add_table(j->report, t->config->table_name)));
    }
    return OK;
}

/* The count of the table that has the items. */
static warm_table *item_count(warm_job *j) {
    const dynamic_table *t = dynamic_find(j->c->tables, ITEM_FEATURE);
    const char *name = t != NULL ? t->config->table_name : "item";
    for (int i = 0; i < j->report->n; i++)
        if (strcmp(j->report->table[i].name, name) == 0) return &j->report->table[i];
    return &j->report->table[0];
}

static status run(warm_job *j) {
    TRY(checkpoint_find(j->options->from, j->report->folder));
    TRY(checkpoint_config(&j->config, j->report->folder));
    TRY(check_model(j));
    TRY(open_names(j));
    TRY(invert_maps(j));
    TRY(open_files(j));
    TRY(copy_params(j));
    TRY(copy_tables(j));
    if (j->options->means) TRY(warm_set_means(j, item_count(j)));
    if (j->report->has_state) j->c->state.n_earlier = j->n_earlier + j->report->step;
    return OK;
}

status warm_start(checkpoint *c, session *s, const warm_options *options, warm_report *out) {
    warm_job j = {.c = c, .s = s, .options = options, .report = out};
    *out = (warm_report){0};
    status st = run(&j);
    st_close(j.values);
    st_close(j.moments);
    vocabulary_map_fini(&j.map);
    mem_free(j.item_here);
    for (int f = 0; f < CONTEXT_MAX; f++)
        mem_free(j.value_here[f]);
    seq_file_close(j.names);
    config_destroy(j.config);
    return st;
}

void warm_report_say(const warm_report *r) {
    log_info("starting from %s, step %" PRIu64 "%s", r->folder, r->step,
             r->has_state ? ", with the state of its optimizer"
                          : "; the optimizer is another one, so its state starts again");
    for (int i = 0; i < r->n; i++) {
        const warm_table *t = &r->table[i];
        char mean[64] = "", no_place[64] = "";
        if (t->n_mean > 0)
            snprintf(mean, sizeof mean, " (%" PRId64 " from their neighbours)", t->n_mean);
        if (t->n_no_place > 0)
            snprintf(no_place, sizeof no_place, ", %" PRId64 " without a place", t->n_no_place);
        log_info("  table '%s': %" PRId64 " rows kept, %" PRId64 " new%s, %" PRId64 " dropped%s",
                 t->name, t->n_kept, t->n_new, mean, t->n_dropped, no_place);
    }
}

void warm_report_write(const warm_report *r, json_writer *w) {
    if (r->folder[0] == '\0') return;
    json_key(w, "init_from");
    json_object_open(w);
    json_key_string(w, "checkpoint", r->folder);
    json_key_int(w, "step", (int64_t)r->step);
    json_key_bool(w, "optimizer_state", r->has_state);
    json_key(w, "tables");
    json_array_open(w);
    for (int i = 0; i < r->n; i++) {
        const warm_table *t = &r->table[i];
        json_object_open(w);
        json_key_string(w, "name", t->name);
        json_key_int(w, "kept", t->n_kept);
        json_key_int(w, "new", t->n_new);
        json_key_int(w, "from_neighbors", t->n_mean);
        json_key_int(w, "dropped", t->n_dropped);
        json_key_int(w, "without_place", t->n_no_place);
        json_object_close(w);
    }
    json_array_close(w);
    json_object_close(w);
}
