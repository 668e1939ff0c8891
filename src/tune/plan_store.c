#include "tune/plan_store.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/file.h"
#include "base/hash.h"

/* Factors of two, of tokens and of lengths together. */
static const double farthest = 2;

status plan_store_open(plan_store *s, const char *cache) {
    if (cache == NULL) return env_cache_folder(s->folder, sizeof s->folder, "plans");
    return path_join(s->folder, sizeof s->folder, cache, "plans");
}

/* The name of the entry; the mask may be the path of a file, so its hash stands for it. */
static status path_of(const plan_store *s, const plan_file *f, char path[4096]) {
    char name[256], ffn[16] = "";
    if (f->dim_ffn > 0) snprintf(ffn, sizeof ffn, "-ffn%d", f->dim_ffn);
    snprintf(name, sizeof name, "%s-%s-%dx%d%s-%lld-%d-%s-%08x.json", f->layer, f->arch, f->n_heads,
             f->dim_head, ffn, (long long)f->n_tokens, f->max_len, f->dtype,
             (unsigned)hash64(f->mask, strlen(f->mask), 0));
    return path_join(path, 4096, s->folder, name);
}

status plan_store_put(const plan_store *s, const plan_file *f, const buf *text, bool *is_kept,
                      char path[4096]) {
    plan_file old;
    out_file *file;
    bool is_new;
    *is_kept = false;
    TRY(path_of(s, f, path));
    if (file_exists(path) && plan_file_read(&old, path) == OK && old.ms > 0 && old.ms < f->ms)
        return OK;
    TRY(folder_create(s->folder, &is_new));
    TRY(out_file_create(&file, path));
    status st = out_file_end(file, out_file_write(file, buf_str(text), text->n_bytes));
    *is_kept = st == OK;
    return st;
}

static bool is_same_layer(const plan_file *a, const plan_file *b) {
    return strcmp(a->layer, b->layer) == 0 && strcmp(a->arch, b->arch) == 0 &&
           strcmp(a->mask, b->mask) == 0 && strcmp(a->dtype, b->dtype) == 0 &&
           a->n_heads == b->n_heads && a->dim_head == b->dim_head && a->dim_ffn == b->dim_ffn;
}

static double distance(const plan_file *a, const plan_file *b) {
    return fabs(log2((double)a->n_tokens / (double)b->n_tokens)) +
           fabs(log2((double)a->max_len / (double)b->max_len));
}

/* A faster plan wins where two are as near. */
static void consider(const char *path, const plan_file *want, plan_file *best, double *nearest) {
    plan_file f;
    if (plan_file_read(&f, path) != OK) return;
    if (!is_same_layer(&f, want) || f.n_tokens < 1 || f.max_len < 1) return;
    double d = distance(&f, want);
    if (d > farthest || d > *nearest || (d == *nearest && f.ms >= best->ms)) return;
    *best = f;
    *nearest = d;
}

status plan_store_find(const plan_store *s, const plan_file *want, plan_file *out, bool *is_found) {
    double nearest = INFINITY;
    const struct dirent *entry;
    char path[4096];
    *out = (plan_file){0};
    *is_found = false;
    DIR *folder = opendir(s->folder);
    if (folder == NULL && errno == ENOENT) return OK;
    if (folder == NULL) return fail_errno("%s", s->folder);
    while ((entry = readdir(folder)) != NULL) {
        size_t n = strlen(entry->d_name);
        if (n < 5 || strcmp(entry->d_name + n - 5, ".json") != 0) continue;
        if (path_join(path, sizeof path, s->folder, entry->d_name) != OK) continue;
        consider(path, want, out, &nearest);
    }
    closedir(folder);
    *is_found = isfinite(nearest);
    return OK;
}
