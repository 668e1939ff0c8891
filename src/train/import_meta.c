#include "train/import_meta.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "model/weight_file.h"
#include "nn/input.h"

enum { NAME_BYTES = TORCH_NAME_BYTES };

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

static const torch_tensor *find(const import_job *j, const char *prefix, const char *name) {
    char whole[NAME_BYTES];
    if (snprintf(whole, sizeof whole, "%s%s", prefix, name) >= (int)sizeof whole) return NULL;
    return torch_find(j->file, whole);
}

static status find_prefix(import_job *j) {
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (find(j, prefixes[i], META_ITEMS) == NULL) continue;
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

static status read_values(import_job *j, const param *p, float *host) {
    const torch_tensor *t = find(j, j->prefix, p->name);
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
    for (int64_t i = 0; i < p->n; i++)
        if (!isfinite(host[i]))
            return fail(ERR_NUMERIC, "%s: '%s' holds numbers that are not finite",
                        torch_path(j->file), p->name);
    return OK;
}

static status set_param(import_job *j, const param *p) {
    backend *be = j->s->be;
    float *host;
    TRY(MEM_NEW_RAW(&host, (size_t)p->n));
    status st = read_values(j, p, host);
    if (st == OK) st = be->ops->copy_in(be, p->value, host, (size_t)p->n * sizeof *host);
    mem_free(host);
    return st;
}

/* Parameters that the config does not make, such as those of a third layer, mean another model. */
static status check_unused(const import_job *j) {
    size_t n = strlen(j->prefix);
    for (size_t i = 0; i < torch_n_tensors(j->file); i++) {
        const char *name = torch_tensor_at(j->file, i)->name + n;
        bool is_known = strncmp(torch_tensor_at(j->file, i)->name, j->prefix, n) != 0 ||
                        strcmp(name, META_MASK) == 0;
        for (int k = 0; k < j->s->n_params && !is_known; k++)
            is_known = strcmp(name, j->s->params[k].name) == 0;
        if (!is_known)
            return fail(ERR_CONFIG,
                        "%s: has '%s', which this config does not make; give the config that the "
                        "checkpoint was trained with",
                        torch_path(j->file), name);
    }
    return OK;
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
        TRY(set_param(&j, &s->params[i]));
    return check_unused(&j);
}
