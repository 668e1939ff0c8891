#include "train/files/import_params.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

const torch_tensor *import_find(const torch_file *f, const char *prefix, const char *name) {
    char whole[TORCH_NAME_BYTES];
    if (snprintf(whole, sizeof whole, "%s%s", prefix, name) >= (int)sizeof whole) return NULL;
    return torch_find(f, whole);
}

status import_check_finite(const torch_file *f, const char *name, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return fail(ERR_NUMERIC, "%s: '%s' holds numbers that are not finite", torch_path(f),
                        name);
    return OK;
}

status import_set(session *s, const torch_file *f, const param *p, import_read_fn read, void *ctx) {
    backend *be = s->be;
    float *host;
    TRY(MEM_NEW_RAW(&host, (size_t)p->n));
    status st = read(ctx, p, host);
    if (st == OK) st = import_check_finite(f, p->name, host, p->n);
    if (st == OK) st = be->ops->copy_in(be, p->value, host, (size_t)p->n * sizeof *host);
    mem_free(host);
    return st;
}

status import_check_unused(const session *s, const torch_file *f, const char *prefix,
                           bool (*is_other)(const char *name)) {
    size_t n = strlen(prefix);
    for (size_t i = 0; i < torch_n_tensors(f); i++) {
        const char *name = torch_tensor_at(f, i)->name;
        if (strncmp(name, prefix, n) != 0) continue;
        name += n;
        bool is_known = is_other(name);
        for (int k = 0; k < s->n_params && !is_known; k++)
            is_known = strcmp(name, s->params[k].name) == 0;
        if (!is_known)
            return fail(ERR_CONFIG,
                        "%s: has '%s', which this config does not make; give the config that the "
                        "checkpoint was trained with",
                        torch_path(f), name);
    }
    return OK;
}
