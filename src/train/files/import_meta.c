#include "train/files/import_meta.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/export_file.h"
#include "nn/input.h"
#include "train/files/import_params.h"

/* Where train.py and others keep the state_dict; DDP adds "module.". */
static const char *const prefixes[] = {"model_state_dict.module.",
                                       "model_state_dict.",
                                       "state_dict.module.",
                                       "state_dict.",
                                       "module.",
                                       ""};

typedef struct import_job {
    session *s;
    const torch_file *file;
    const char *prefix;
    import_meta_report *report;
} import_job;

static status find_prefix(import_job *j) {
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (import_find(j->file, prefixes[i], META_ITEMS) == NULL) continue;
        j->prefix = prefixes[i];
        return OK;
    }
    return fail(ERR_CONFIG,
                "%s: has no '%s', so it is no checkpoint of Meta's research models; 'hstu info' "
                "lists what it has",
                torch_path(j->file), META_ITEMS);
}

static bool has_shape(const torch_tensor *t, const param *p, int first) {
    bool is_same = t->n_dims == p->n_dims;
    for (int d = first; d < p->n_dims && is_same; d++)
        is_same = t->shape[d] == p->shape[d];
    return is_same;
}

static void shape_text(char *text, size_t n, int n_dims, const int64_t *shape) {
    size_t used = (size_t)snprintf(text, n, "(");
    for (int d = 0; d < n_dims && used < n; d++)
        used += (size_t)snprintf(text + used, n - used, "%s%" PRId64, d > 0 ? ", " : "", shape[d]);
    if (used < n) snprintf(text + used, n - used, ")");
}

static status wrong_shape(const import_job *j, const torch_tensor *t, const param *p) {
    char there[160], here[160];
    shape_text(there, sizeof there, t->n_dims, t->shape);
    shape_text(here, sizeof here, p->n_dims, p->shape);
    return fail(ERR_CONFIG,
                "%s: '%s' has the shape %s, but the config makes it %s; give the config that the "
                "checkpoint was trained with",
                torch_path(j->file), p->name, there, here);
}

/* Rows of the item table: all that the data's ids need, in Meta's order there, in ours here. */
static status read_items(import_job *j, const torch_tensor *t, const param *p, float *host) {
    const seq_file *data = j->s->data;
    int64_t n_rows = 0, dim = p->shape[1];
    if (!has_shape(t, p, 1)) return wrong_shape(j, t, p);
    TRY(meta_count_rows(data, &n_rows));
    if (t->shape[0] < n_rows || (data->has_text_items && t->shape[0] != n_rows))
        return fail(ERR_CONFIG,
                    "%s: its item table has %" PRId64 " rows and the data %s need %" PRId64
                    " (the row of an item is its id); give the data it was trained on",
                    torch_path(j->file), t->shape[0], data->path, n_rows);
    for (int64_t i = 0; i < p->shape[0]; i++)
        TRY(torch_read_floats(j->file, t, meta_row(data, (uint32_t)i), 1, host + i * dim));
    j->report->n_rows = t->shape[0] - 1;
    j->report->n_dropped = t->shape[0] - p->shape[0];
    return OK;
}

static status read_values(void *ctx, const param *p, float *host) {
    import_job *j = ctx;
    const torch_tensor *t = import_find(j->file, j->prefix, p->name);
    if (t == NULL)
        return fail(ERR_CONFIG,
                    "%s: has no '%s'; give the config that the checkpoint was trained with",
                    torch_path(j->file), p->name);
    if (p == model_rows(j->s->model, ITEM_FEATURE)) {
        TRY(read_items(j, t, p, host));
    } else {
        if (!has_shape(t, p, 0)) return wrong_shape(j, t, p);
        TRY(torch_read_floats(j->file, t, 0, p->n_dims > 0 ? p->shape[0] : 1, host));
    }
    return OK;
}

static bool is_other(const char *name) {
    return strcmp(name, META_MASK) == 0;
}

status import_meta(session *s, const torch_file *f, import_meta_report *out) {
    import_job j = {.s = s, .file = f, .report = out};
    *out = (import_meta_report){.epoch = -1};
    if (s->config->model == MODEL_HSTU)
        return fail(ERR_CONFIG, "the config is not of Meta's research models (train_fn.main_module "
                                "= 'HSTU' or 'SASRec')");
    TRY(find_prefix(&j));
    (void)torch_find_int(f, "epoch", &out->epoch);
    for (int i = 0; i < s->n_params; i++)
        TRY(import_set(s, f, &s->params[i], read_values, &j));
    return import_check_unused(s, f, j.prefix, is_other);
}
